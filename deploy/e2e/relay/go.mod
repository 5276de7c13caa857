module github.com/tpotscope/tpotscope/deploy/e2e/relay

go 1.26.0

replace github.com/tpotscope/tpotscope => ../../..

require github.com/tpotscope/tpotscope v0.0.0-00010101000000-000000000000

require golang.org/x/sys v0.50.0 // indirect

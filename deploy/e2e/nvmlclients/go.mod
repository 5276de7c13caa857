module github.com/tpotscope/tpotscope/deploy/e2e/nvmlclients

go 1.26.0

require github.com/tpotscope/tpotscope v0.0.0

require golang.org/x/sys v0.50.0 // indirect

replace github.com/tpotscope/tpotscope => ../../..

module github.com/tpotscope/tpotscope/deploy/e2e/prom

go 1.26.7

replace github.com/tpotscope/tpotscope => ../../..

require github.com/prometheus/prometheus v0.316.0 // indirect

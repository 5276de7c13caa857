# tpotscope: `make help` lists the targets. Everything a target needs beyond Go, gcc and make is installed by it, pinned, into
# the git-ignored bin/ and .cache/.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

GOLANGCI_VERSION := v2.15.0

BIN := $(CURDIR)/bin
GO ?= go
export GOFLAGS ?= -buildvcs=false
# The driver's header marks half of its functions as deprecated; that says nothing about this code.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: build
build: $(BIN)/tpotscope $(BIN)/tpotscope-nvml ## build both binaries into bin/

.PHONY: $(BIN)/tpotscope $(BIN)/tpotscope-nvml
$(BIN)/tpotscope:
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/tpotscope

# The helper is the only cgo binary. Lazy binding is part of its design: a driver that lacks a symbol must not end it at start,
# also where the toolchain resolves everything at once by default.
$(BIN)/tpotscope-nvml:
	@if command -v gcc >/dev/null; then \
		CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS) -linkmode external -extldflags "-Wl,-z,lazy"' -o $@ ./cmd/tpotscope-nvml; \
	else \
		echo 'no C compiler: $(notdir $@) not built; the demo will use in-process devices' >&2; rm -f $@; \
	fi

.PHONY: nvmlsim
nvmlsim: $(BIN)/nvmlsim/libnvidia-ml.so.1 ## build the simulated driver library (never installed)

DRIVER := nvml/sim/driver
$(BIN)/nvmlsim/libnvidia-ml.so.1: $(wildcard $(DRIVER)/*.c $(DRIVER)/*.h)
	@if command -v gcc >/dev/null; then \
		mkdir -p $(@D) && gcc -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -Wl,-soname,libnvidia-ml.so.1 -o $@ $(filter %.c,$^) -lm; \
	else \
		echo 'no C compiler: the simulated driver library was not built' >&2; \
	fi

.PHONY: test
test: nvmlsim build ## run all tests under the race detector
	$(GO) test -race -timeout 15m ./...

.PHONY: layout
layout: ## check the plan of the house: which room may import which
	$(GO) test -count=1 -run 'TestLayout' ./cmd/tpotscope

$(BIN)/golangci-lint: Makefile
	@$(BIN)/golangci-lint version 2>/dev/null | grep -q '$(GOLANGCI_VERSION:v%=%)' || GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@touch $@

.PHONY: lint
lint: $(BIN)/golangci-lint ## run golangci-lint
	$(BIN)/golangci-lint run ./...

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## format the code
	$(BIN)/golangci-lint fmt ./...

.PHONY: generate
generate: ## regenerate generated code and the generated parts of the README; leaves no diff
	sh agent/ingest/ingestpb/generate.sh
	PATH=$(BIN):$$PATH $(GO) generate ./...

.PHONY: check
check: layout build nvmlsim generate lint test ## everything a change must pass; fails if generating left a diff
	git diff --exit-code

.PHONY: demo
demo: build nvmlsim ## the whole path on a simulated H100 and a simulated server: no GPU, no network, under two minutes
	$(BIN)/tpotscope demo

.PHONY: e2e
e2e: e2e-collector e2e-prom ## real receivers: an OpenTelemetry Collector and Prometheus code

.PHONY: e2e-collector e2e-prom
e2e-collector e2e-prom: e2e-%:
	cd deploy/e2e/$* && $(GO) test -count=1 ./...

.PHONY: e2e-engine
e2e-engine: build nvmlsim ## real engines and clients through the proxy (needs PyPI)
	deploy/e2e/engine/run

.PHONY: gpucheck
gpucheck: build ## hold tpotscope against this machine's NVIDIA GPU (needs PyTorch; under ten minutes; changes no setting)
	PYTHONDONTWRITEBYTECODE=1 python3 deploy/gpucheck/gpucheck.py --bin $(BIN) --out $(BIN)/gpucheck

.PHONY: e2e-nvmlclients
e2e-nvmlclients: nvmlsim ## programs that others wrote (nvidia-ml-py, nvitop, gpustat) on the simulated driver library (needs PyPI)
	deploy/e2e/nvmlclients/run

.PHONY: bench
bench: ## benchmarks, ten runs each, for benchstat
	$(GO) test -run '^$$' -bench . -benchmem -count 10 ./... | tee $(BIN)/bench.txt

.PHONY: bench-verdict
bench-verdict: ## what is said beside what is true: every figure with its bar and its seeds (HOLDOUT=1: seeds and ranges held out)
	TPOTSCOPE_BENCH=$(if $(HOLDOUT),holdout,1) $(GO) test -count=1 -timeout 20m -v -run '^TestBench(Verdict|Compare)$$' ./correlate ./correlate/compare

.PHONY: bench-relay
bench-relay: build ## the relay beside httputil.ReverseProxy, nginx and HAProxy in one run
	deploy/e2e/relay/run

.PHONY: bench-engine
bench-engine: build ## tokens a second on one core, and a report on a million requests beside DuckDB (needs PyPI)
	deploy/e2e/offline/run

.PHONY: bench-agent
bench-agent: build nvmlsim ## what agent and helper cost: 8 simulated GPUs, 256 streams x 50 tokens/s
	cd deploy/e2e/load && CGO_ENABLED=0 $(GO) run . -bin $(BIN)

.PHONY: soak-agent
soak-agent: build nvmlsim ## what grows in agent and helper: short requests, replaced reporters, restarts, rotation
	cd deploy/e2e/load && CGO_ENABLED=0 $(GO) run . -bin $(BIN) -soak -for 9m

.PHONY: failures
failures: ## let the NVIDIA driver do its worst to a whole agent, the failures that take minutes included
	TPOTSCOPE_FAILURES=all $(GO) test -race -count=1 -timeout 15m -v -run '^TestNothingTheDriverDoes' ./agent

.PHONY: closed-loop
closed-loop: ## every scenario through the driver's library, the helper and whole agents, beside what a perfect observer says (about five minutes)
	TPOTSCOPE_CLOSED_LOOP=all $(GO) test -count=1 -timeout 30m -v -run '^TestTheLoopIsClosed$$' ./agent/demo

.PHONY: fuzz
fuzz: ## every fuzz target for ten seconds
	@for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$p 2>/dev/null | grep '^Fuzz' || true); do \
			echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime 10s $$p; \
		done; \
	done

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) .cache

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9 -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+)[^#]*## /\1\t/' | awk -F'\t' '{printf "  %-16s %s\n", $$1, $$2}'

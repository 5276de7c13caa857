#!/bin/sh
# Writes ingest.pb.go and ingest.connect.go anew from ingest.proto. The tools are installed, pinned, into bin/ at the
# top of the repository; nothing but the Go module proxy is asked.
set -eu
cd "$(dirname "$0")"
bin="$(cd ../../.. && pwd)/bin"
GOBIN="$bin" go install github.com/bufbuild/buf/cmd/buf@v1.75.0
GOBIN="$bin" go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN="$bin" go install connectrpc.com/connect/cmd/protoc-gen-connect-go@v1.21.1
PATH="$bin:$PATH" "$bin/buf" generate

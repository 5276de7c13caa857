package ingest_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/tpotscope/tpotscope/agent/ingest"
	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// forgetful counts how often it was told that its source is gone.
type forgetful struct {
	timeline.RequestSink

	told *atomic.Int64
}

func (f forgetful) Forget() { f.told.Add(1) }

func TestASourceThatGivesWayIsForgottenByItsSink(t *testing.T) {
	const room, sources = 1024, 1030
	var told atomic.Int64
	h := host{time.Now()}
	cfg := config(h, nil)
	cfg.Sink = func(ingest.Source) timeline.RequestSink { return forgetful{told: &told} }
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, socket, cfg)
	rpc := pb.NewIngestClient(dial(t, socket, true), "http://agent")
	for i := range sources {
		_, err := rpc.Report(t.Context(), connect.NewRequest(&pb.ReportRequest{
			Origin: &pb.Origin{Source: fmt.Sprint("s", i), Process: "1", BootId: bootID, Clock: pb.Clock_CLOCK_MONOTONIC}, Sequence: 1,
		}))
		if i == sources-1 && err != nil {
			t.Log(err)
		}
	}
	if got := told.Load(); got != sources-room {
		t.Errorf("%d sinks were told to forget, want %d", got, sources-room)
	}
}

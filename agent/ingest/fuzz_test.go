package ingest_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tpotscope/tpotscope/agent/ingest"
	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// FuzzHandler posts bodies of any kind to all methods. What is taken must be whole and in order, whatever was sent.
func FuzzHandler(f *testing.F) {
	const now = timeline.Instant(time.Hour)
	report, err := proto.Marshal(&pb.ReportRequest{
		Origin: origin("p"), Sequence: 1, Opened: []*pb.Request{{Ref: 1, SentNs: 5}},
		Tokens: &pb.Tokens{Ref: []uint64{1, 1}, AtDeltaNs: []int64{7, 2}, UncertainNs: []int64{3, 0}},
		Closed: []*pb.Request{{Ref: 1, SentNs: 5, DoneNs: 10}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("Report", false, report)
	f.Add("Submit", true, []byte(`{"origin":{"source":"s","clock":2,"boot_id":"`+bootID+`"},"requests":[{"sent_ns":5,"token_ns":[6,7],"token_counts":[2,1]}]}`))
	f.Add("Submit", true, []byte(`{"origin":{"source":"s","clock":1,"boot_id":"x"},"exchanges":[{"t1_ns":1,"t2_ns":5,"t3_ns":6,"t4_ns":9}],"requests":[{"sent_ns":5}]}`))
	f.Add("Exchange", true, []byte(`{"t1_ns":"9"}`))
	f.Fuzz(func(t *testing.T, method string, asJSON bool, body []byte) {
		var got journal
		cfg := config(host{}, &got)
		cfg.Now = func() timeline.Instant { return now }
		cfg.Anchor = func() timeline.Anchor { return timeline.Anchor{Mono: now, Real: 1e18, BootID: bootID} }
		_, h, err := ingest.NewHandler(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
		r.URL.Path = "/tpotscope.ingest.v1.Ingest/" + method
		r.Header.Set("Content-Type", "application/proto")
		if asJSON {
			r.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			if o, n, c := got.count(); o+n+c > 0 {
				t.Errorf("a refused message left %d rows", o+n+c)
			}
			return
		}
		newest := map[uint64]timeline.Instant{}
		for _, e := range got.tokens {
			if e.Ref == 0 || e.After <= 0 || e.After > e.At || e.At > now+5e9 || e.At < newest[e.Ref] || e.Tokens < 0 {
				t.Errorf("token %+v", e)
			}
			newest[e.Ref] = e.At
		}
		for _, q := range append(got.opened, got.closed...) {
			if q.Ref == 0 || q.Sent < 0 || q.Over().Duration() < 0 || q.ClockBound < 0 || q.OutputTokens < 0 {
				t.Errorf("request %+v", q)
			}
		}
	})
}

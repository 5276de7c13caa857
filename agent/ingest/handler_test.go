package ingest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/agent/ingest"
	pb "github.com/tpotscope/tpotscope/agent/ingest/ingestpb"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestEveryProtocolIsAnswered(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	serve(t, socket, config(h, &got))
	for name, rpc := range map[string]pb.IngestClient{
		"grpc":         pb.NewIngestClient(dial(t, socket, true), "http://agent", connect.WithGRPC()),
		"grpc json":    pb.NewIngestClient(dial(t, socket, true), "http://agent", connect.WithGRPC(), connect.WithProtoJSON()),
		"connect":      pb.NewIngestClient(dial(t, socket, false), "http://agent"),
		"connect gzip": pb.NewIngestClient(dial(t, socket, false), "http://agent", connect.WithSendGzip()),
	} {
		t.Run(name, func(t *testing.T) {
			_, before, _ := got.count()
			now := int64(h.now())
			resp, err := rpc.Report(t.Context(), connect.NewRequest(&pb.ReportRequest{
				Origin: origin(strings.ReplaceAll(name, " ", "-")), Sequence: 1, T1Ns: 5,
				Tokens: &pb.Tokens{Ref: []uint64{1, 1}, AtDeltaNs: []int64{now - 1000, 500}},
			}))
			if err != nil {
				t.Fatal(err)
			}
			m := resp.Msg
			if m.GetAccepted() != 2 || m.GetDropped() != 0 || m.GetT1Ns() != 5 || m.GetT2Ns() < now || m.GetT3Ns() < m.GetT2Ns() || m.GetBootId() != bootID {
				t.Errorf("answer %v", m)
			}
			if _, after, _ := got.count(); after != before+2 {
				t.Errorf("%d tokens arrived, want 2", after-before)
			}
			x, err := rpc.Exchange(t.Context(), connect.NewRequest(&pb.ExchangeRequest{T1Ns: 7}))
			if err != nil {
				t.Fatal(err)
			}
			if x.Msg.GetT1Ns() != 7 || x.Msg.GetT2Ns() < now || x.Msg.GetT3Ns() < x.Msg.GetT2Ns() || x.Msg.GetBootId() != bootID {
				t.Errorf("exchange %v", x.Msg)
			}
		})
	}
}

func origin(process string) *pb.Origin {
	return &pb.Origin{Source: "test", Process: process, Clock: pb.Clock_CLOCK_MONOTONIC, BootId: bootID}
}

// curl posts a body by hand over a fresh connection, as a script would.
func curl(t *testing.T, socket, method, body string) (int, string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "POST /tpotscope.ingest.v1.Ingest/%s HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, len(body), body); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestACurlCanSubmitTokenTimes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	serve(t, socket, config(h, &got))
	base := int64(h.now()) - 1e9
	code, body := curl(t, socket, "Submit", fmt.Sprintf(`{"origin":{"source":"script","clock":"CLOCK_MONOTONIC","boot_id":%q},
		"requests":[{"id":"a","model":"m","sent_ns":%d,"token_ns":[%d,%d,%d],"prompt_tokens":9},
		            {"id":"b","sent_ns":%d,"first_ns":%d,"last_ns":%d,"output_tokens":11,"done_ns":%d}]}`,
		bootID, base, base+100, base+200, base+300, base, base+1000, base+2000, base+3000))
	if code != http.StatusOK || !strings.Contains(body, `"accepted":"2"`) {
		t.Fatalf("answer %d %s", code, body)
	}
	at := timeline.Instant(base)
	want := []timeline.Request{
		{
			Ref: 1<<63 + 1, ID: "a", Model: "m", Dialect: "reported", Client: "script", Streaming: true, Sent: at, First: at + 100, Last: at + 300, Done: at + 300,
			PromptTokens: 9, PromptKnown: true, OutputTokens: 3, Counted: timeline.CountPerEvent, FirstTokens: 1, Choices: 1, Events: 3,
		},
		{
			Ref: 1<<63 + 2, ID: "b", Dialect: "reported", Client: "script", Streaming: true, Sent: at, First: at + 1000, Last: at + 2000, Done: at + 3000,
			OutputTokens: 11, Counted: timeline.CountFinal, FirstTokens: 1, Choices: 1, Flags: timeline.FlagFirstAssumed,
		},
	}
	if diff := cmp.Diff(want, got.closed); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
	if len(got.tokens) != 3 || got.tokens[2].At != at+300 || got.tokens[2].Stamp != timeline.StampClient {
		t.Errorf("tokens %+v", got.tokens)
	}
	inOrder(t, got.lines)
}

func TestWallTimesOfThisHostComeThroughTheAnchor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	serve(t, socket, config(h, &got))
	mono, wall := h.now(), time.Now().UnixNano()
	code, body := curl(t, socket, "Submit", fmt.Sprintf(
		`{"origin":{"source":"script","clock":"CLOCK_UNIX","boot_id":%q},"requests":[{"token_ns":[%d,%d],"token_counts":[4,2],"output_tokens":7}]}`,
		bootID, wall-2e9, wall-1e9))
	if code != http.StatusOK {
		t.Fatalf("answer %d %s", code, body)
	}
	r := got.closed[0]
	if off := r.Last.Sub(mono) + time.Second; off < -50*time.Millisecond || off > 50*time.Millisecond {
		t.Errorf("last token is %v off", off)
	}
	// Two seconds at the kernel's fastest slew are a millisecond.
	if r.ClockBound < time.Millisecond || r.ClockBound > 5*time.Millisecond {
		t.Errorf("clock bound %v, want about 1ms", r.ClockBound)
	}
	if r.FirstTokens != 4 || r.OutputTokens != 7 || r.Counted != timeline.CountFinal || r.Flags != timeline.FlagCountMismatch {
		t.Errorf("counts %+v", r)
	}
}

// What happened too long ago, before the boot or in the future is left out alone, and counted by why.
func TestRowsOfOtherTimesAreLeftOutAndCounted(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	var refused ingest.Refused
	cfg := config(h, &got)
	cfg.Refused = &refused
	serve(t, socket, cfg)
	local := fmt.Sprintf(`"origin":{"source":"s","process":"p","clock":"CLOCK_MONOTONIC","boot_id":%q}`, bootID)
	wall := strings.Replace(local, "CLOCK_MONOTONIC", "CLOCK_UNIX", 1)
	now := int64(h.now())
	code, body := curl(t, socket, "Submit", fmt.Sprintf(`{%s,"requests":[{"token_ns":[%d]},{"sent_ns":5,"token_ns":[7]},{"token_ns":[%d]},{"sent_ns":%d,"token_ns":[%d]}]}`,
		local, now, int64(9e18), now-int64(time.Hour)/2, now))
	if code != http.StatusOK || !strings.Contains(body, `"accepted":"2"`) || !strings.Contains(body, `"refused":"2"`) || !strings.Contains(body, "requests[1].sent_ns: more than ten minutes ago") {
		t.Errorf("%d %s, want the first and the long one taken, and the first fault named", code, body)
	}
	code, body = curl(t, socket, "Submit", fmt.Sprintf(`{%s,"requests":[{"token_ns":[%d]},{"token_ns":[%d]}]}`,
		wall, time.Now().UnixNano(), time.Now().Add(-2*time.Hour).UnixNano()))
	if code != http.StatusOK || !strings.Contains(body, "before this host's boot") {
		t.Errorf("%d %s, want the first taken, and what is before the boot named", code, body)
	}
	code, body = curl(t, socket, "Report", fmt.Sprintf(`{%s,"sequence":1,"tokens":{"ref":[1,1,1],"at_delta_ns":[1000,%d,5]}}`, local, now-1000))
	if code != http.StatusOK || !strings.Contains(body, `"accepted":"2"`) || !strings.Contains(body, `"refused":"1"`) {
		t.Errorf("%d %s, want two tokens taken and one refused", code, body)
	}
	if diff := cmp.Diff(map[string]uint64{"old": 2, "before_boot": 1, "future": 1}, refused.Counts()); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if _, n, c := got.count(); n != 5 || c != 3 {
		t.Errorf("%d tokens and %d requests arrived, want 5 and 3", n, c)
	}
}

func TestRefusalsNameTheField(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	serve(t, socket, config(h, &got))
	local := fmt.Sprintf(`"origin":{"source":"s","process":"p","clock":"CLOCK_MONOTONIC","boot_id":%q}`, bootID)
	tests := []struct{ method, body, want string }{
		{"Submit", `{"requests":[]}`, "origin: missing"},
		{"Submit", `{"origin":{"clock":1}}`, "origin.source: missing"},
		{"Submit", `{"origin":{"source":"s"}}`, "origin.clock"},
		{"Submit", `{"origin":{"source":"a b","clock":1}}`, "origin.source: not printable"},
		{"Submit", `{"origin":{"source":"stranger","clock":1}}`, "may not report here"},
		{"Submit", `{"origin":{"source":"s","clock":1,"boot_id":"other"}}`, "exchanges: none yet"},
		{"Submit", `{` + local + `,"prompt":"what I asked"}`, "unknown field"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":1,"token_ns":[5,4]}]}`, "requests[0].token_ns[1]: earlier"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":9,"token_ns":[5]}]}`, "requests[0].first_ns: earlier"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":-9}]}`, "requests[0].sent_ns: negative"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":9000000000000000000}]}`, "requests[0].sent_ns: in the future"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":9}]}`, "requests[0].sent_ns: more than ten minutes ago"},
		{"Report", `{` + local + `,"sequence":1,"tokens":{"ref":[1],"at_delta_ns":[2999000000000]}}`, "tokens[0].at_delta_ns: more than ten minutes ago"},
		{"Report", `{` + local + `,"sequence":1,"closed":[{"ref":1,"done_ns":5}]}`, "closed[0].sent_ns: more than ten minutes ago"},
		{"Submit", `{` + local + `,"requests":[{}]}`, "requests[0].sent_ns: missing"},
		{"Submit", `{` + local + `,"requests":[{"token_ns":[5,6],"token_counts":[1]}]}`, "requests[0].token_counts"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":5,"trace_id":"xyz"}]}`, "requests[0].trace_id"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":5,"id":"` + strings.Repeat("x", 200) + `"}]}`, "requests[0].id: too long"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":5,"model":"a\nb"}]}`, "requests[0].model: not printable"},
		{"Submit", `{` + local + `,"requests":[{"sent_ns":5,"status":99}]}`, "requests[0].status"},
		{"Report", `{` + local + `}`, "sequence: missing"},
		{"Report", `{` + local + `,"sequence":1,"opened":[{}]}`, "opened[0].ref"},
		{"Report", `{` + local + `,"sequence":1,"closed":[{"ref":1,"output_tokens":-1}]}`, "closed[0].output_tokens: negative"},
		{"Report", `{` + local + `,"sequence":1,"closed":[{"ref":1,"flags":65535}]}`, "closed[0].flags"},
		{"Report", `{` + local + `,"sequence":1,"tokens":{"ref":[1,2],"at_delta_ns":[1]}}`, "tokens.at_delta_ns"},
		{"Report", `{` + local + `,"sequence":1,"tokens":{"ref":[1],"at_delta_ns":[1],"kind":[1,1]}}`, "tokens.kind"},
		{"Report", `{` + local + `,"sequence":1,"tokens":{"ref":[1],"at_delta_ns":[1],"kind":[77]}}`, "tokens.kind[0]"},
		{"Report", `{` + local + `,"sequence":1,"tokens":{"ref":[1,1],"at_delta_ns":[3600000000000,-500000000]}}`, "tokens.at_delta_ns[1]: earlier"},
		{"Report", `{` + local + `,"sequence":1,"exchanges":[{"t1_ns":5,"t2_ns":1,"t3_ns":1,"t4_ns":4}]}`, "exchanges[0]"},
		{"Report", ``, "empty body"},
		{"Report", `{"origin":`, "unexpected"},
	}
	for _, tt := range tests {
		code, body := curl(t, socket, tt.method, tt.body)
		if code/100 == 2 || !strings.Contains(body, tt.want) {
			t.Errorf("%s %.80s: %d %s, want %s", tt.method, tt.body, code, body, tt.want)
		}
	}
	if o, n, c := got.count(); o+n+c != 0 {
		t.Errorf("refused messages left %d rows", o+n+c)
	}
}

func TestContentCannotTravelInUnknownFields(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	serve(t, socket, config(h, &got))
	rpc := pb.NewIngestClient(dial(t, socket, false), "http://agent")
	smuggled := &pb.Request{Ref: 1}
	smuggled.ProtoReflect().SetUnknown([]byte{0xfa, 0x07, 2, 'h', 'i'}) // field 127, two bytes
	_, err := rpc.Report(t.Context(), connect.NewRequest(&pb.ReportRequest{Origin: origin("p"), Sequence: 1, Opened: []*pb.Request{smuggled}}))
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "opened[0]") {
		t.Errorf("got %v, want a refusal of opened[0]", err)
	}
}

func TestAReportCountsOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := host{time.Now()}
	var got journal
	serve(t, socket, config(h, &got))
	rpc := pb.NewIngestClient(dial(t, socket, false), "http://agent")
	for i, want := range []uint64{1, 0, 1} {
		seq := []uint64{1, 1, 2}[i]
		resp, err := rpc.Report(t.Context(), connect.NewRequest(&pb.ReportRequest{Origin: origin("p"), Sequence: seq, Opened: []*pb.Request{{Ref: seq}}}))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Msg.GetAccepted() != want || resp.Msg.GetDropped() != 1-want {
			t.Errorf("report %d: accepted %d, dropped %d", i, resp.Msg.GetAccepted(), resp.Msg.GetDropped())
		}
	}
	if len(got.opened) != 2 {
		t.Errorf("%d requests arrived, want 2", len(got.opened))
	}
}

func TestNumbersOfTheWireAreThoseOfTheTimeline(t *testing.T) {
	for n, name := range pb.CountSource_name {
		if got := "COUNT_SOURCE_" + strings.ToUpper(timeline.CountSource(n).String()); got != name {
			t.Errorf("count source %d is %s on the wire and %s in the timeline", n, name, got)
		}
	}
	for n, name := range pb.TokenKind_name {
		if got := "TOKEN_KIND_" + strings.ToUpper(timeline.TokenKind(n).String()); got != name {
			t.Errorf("token kind %d is %s on the wire and %s in the timeline", n, name, got)
		}
	}
	for n, name := range pb.StampSource_name {
		if got := "STAMP_SOURCE_" + strings.ToUpper(timeline.StampSource(n).String()); got != name {
			t.Errorf("stamp source %d is %s on the wire and %s in the timeline", n, name, got)
		}
	}
	for n, name := range pb.Status_name {
		if got := "STATUS_" + strings.ToUpper(timeline.Status(n).String()); got != name {
			t.Errorf("status %d is %s on the wire and %s in the timeline", n, name, got)
		}
	}
}

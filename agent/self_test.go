package agent_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// post sends a body to a door of the agent's socket.
func post(t *testing.T, socket, path, body string) string {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent"+path, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	must(t, err)
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	must(t, resp.Body.Close())
	return string(text)
}

func TestWhatIsPassedAndWhatIsRefusedIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, small)
	cfg := w.config(t)
	cfg.Metrics.Profile = "full"
	ag := start(t, cfg, agent.Deps{Counters: w.counters(&cfg)})
	for range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ag.doors.Proxy+"/v1/models", http.NoBody)
		must(t, err)
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		must(t, resp.Body.Close())
	}
	now, old, why := time.Now(), time.Now().Add(-11*time.Minute), "old"
	if w.clock.Now() < timeline.Instant(12*time.Minute) { // this host has just booted
		why = "before_boot"
	}
	answer := post(t, cfg.Socket, "/tpotscope.ingest.v1.Ingest/Submit", fmt.Sprintf(
		`{"origin":{"source":"script","clock":"CLOCK_UNIX","boot_id":%q},"requests":[{"token_ns":[%d]},{"token_ns":[%d]},{"token_ns":[%d]}]}`,
		w.clock.BootID(), now.UnixNano(), old.UnixNano(), now.Add(time.Hour).UnixNano()))
	if !strings.Contains(answer, `"accepted":"1"`) || !strings.Contains(strings.ReplaceAll(answer, " ", ""), `"refused":"2"`) {
		t.Errorf("answer %s", answer)
	}
	page := ""
	until(t, 20*time.Second, "the series", func() bool {
		page = ag.get(t, "/metrics")
		return strings.Contains(page, `tpotscope_ingest_refused_total{reason="future"} 1`)
	})
	for _, want := range []string{
		`tpotscope_probe_passed_total{outcome="ok"} 2`, `tpotscope_probe_passed_total{outcome="error"} 0`, `tpotscope_probe_in_flight 0`,
		`tpotscope_probe_streamed_total 0`, `tpotscope_ingest_refused_total{reason="` + why + `"} 1`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("series lack %s", want)
		}
	}
	ag.stop(t)
}

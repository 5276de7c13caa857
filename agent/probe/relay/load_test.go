package relay_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestBodiesAreIdenticalToADirectCall(t *testing.T) {
	odd := "\xef\xbb\xbf: hi\r\n\r\ndata: \x00\xff\r\rdata: {\n\n" + strings.Repeat("z", 100_000) + "\n\n" + ev(text, finish, done) + "tail"
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Trailer", "X-Sum")
		flush := http.NewResponseController(w)
		for i := 0; i < len(odd); i += 777 {
			_, _ = io.WriteString(w, odd[i:min(i+777, len(odd))])
			_ = flush.Flush()
		}
		_, _ = w.Write(b)
		w.Header().Set("X-Sum", "7")
	})
	g := newRig(t, up, nil)
	c := client(t)
	direct, relayed := post(t, c, up+chatPath, chatBody), post(t, c, g.url+chatPath, chatBody)
	if direct.body != relayed.body || relayed.cut {
		t.Errorf("relayed body has %d bytes, direct %d, and they differ", len(relayed.body), len(direct.body))
	}
	if !strings.HasSuffix(relayed.body, chatBody) {
		t.Error("the request's body did not reach the upstream unchanged")
	}
	direct.header.Del("Date")
	relayed.header.Del("Date")
	if got, want := fmt.Sprint(relayed.header), fmt.Sprint(direct.header); got != want {
		t.Errorf("relayed header %s, direct %s", got, want)
	}
}

func TestAThousandStreamsInARowAndSixtyFourAtOnce(t *testing.T) {
	g := newRig(t, server(t, streaming(5, 0)), nil)
	c := client(t)
	want := post(t, c, g.url+chatPath, chatBody).body
	one := func() {
		if a := post(t, c, g.url+chatPath, chatBody); a.body != want || a.cut {
			t.Errorf("client saw %d bytes, want %d", len(a.body), len(want))
		}
	}
	for range 999 {
		one()
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 5 {
				one()
			}
		})
	}
	wg.Wait()
	const n = 1000 + 64*5
	refs := map[uint64]bool{}
	for _, r := range g.settle(t, n) {
		if r.Status != timeline.StatusOK || r.Events != 5 || r.OutputTokens != 5 {
			t.Fatalf("record says %v, %d events, %d tokens", r.Status, r.Events, r.OutputTokens)
		}
		refs[r.Ref] = true
	}
	if len(refs) != n {
		t.Errorf("%d different refs, want %d", len(refs), n)
	}
	if got := len(g.ledger.events()); got != n*5 {
		t.Errorf("%d token events, want %d", got, n*5)
	}
}

func TestStreamsAtServingSpeedCarryTheirOwnKernelStamp(t *testing.T) {
	g := newRig(t, server(t, streaming(50, 10*time.Millisecond)), nil)
	c := client(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { post(t, c, g.url+chatPath, chatBody) })
	}
	wg.Wait()
	g.settle(t, 16)
	var events, kernel, own int
	for _, e := range g.ledger.events() {
		events++
		if e.Stamp == timeline.StampKernel {
			kernel++
		}
		if e.At == e.After {
			own++
		}
	}
	s := g.relay.Stats()
	t.Logf("%d events, %d kernel stamps, %d stamps of their own; wake p50 %v p99 %v, hold p50 %v p99 %v",
		events, kernel, own, s.Wake.Quantile(.5), s.Wake.Quantile(.99), s.Hold.Quantile(.5), s.Hold.Quantile(.99))
	if events != 16*50 {
		t.Errorf("%d events, want %d", events, 16*50)
	}
	if runtime.GOOS == "linux" && kernel*100 < events*99 {
		t.Errorf("%d of %d events carry a kernel stamp, want 99 %%", kernel, events)
	}
	if got := s.Events[timeline.StampKernel]; got != uint64(kernel) {
		t.Errorf("stats count %d kernel stamps, want %d", got, kernel)
	}
}

func TestASlowClientHoldsUpOnlyItself(t *testing.T) {
	var sent atomic.Int64
	up := server(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(b), "flood") {
			streaming(5, 0)(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		block := ev(strings.Repeat("y", 64<<10))
		for r.Context().Err() == nil {
			n, err := io.WriteString(w, block)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	g := newRig(t, up, nil)
	c := client(t)
	resp, err := c.Post(g.url+chatPath, "application/json", strings.NewReader(`{"stream":true,"model":"flood"}`))
	if err != nil {
		t.Fatal(err)
	}
	// The flood is read by nobody: it stops when the buffers on its way are full.
	full := func() bool {
		before := sent.Load()
		time.Sleep(100 * time.Millisecond)
		return before > 0 && sent.Load() == before
	}
	eventually(t, "backpressure", full)
	for range 20 {
		if a := post(t, c, g.url+chatPath, chatBody); a.status != 200 || a.cut {
			t.Errorf("a client beside the slow one saw status %d", a.status)
		}
	}
	_ = resp.Body.Close()
	for _, r := range g.settle(t, 21) {
		if want := r.Model == "flood"; want != (r.Status == timeline.StatusCancelled) {
			t.Errorf("%s: record says %v", r.Model, r.Status)
		}
	}
}

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRelay measures 32 streams of 50 events each, through the relay, through httputil.ReverseProxy, and direct.
// All run in this process, so that cpu-ns/event holds the engine's and the client's share as well: compare differences.
func BenchmarkRelay(b *testing.B) {
	const streams, events = 32, 50
	sentAt := make([][events]atomic.Int64, streams)
	origin := time.Now()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		slot := &sentAt[len(r.Header.Get("X-Slot"))]
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for i := range events {
			time.Sleep(4 * time.Millisecond)
			slot[i].Store(int64(time.Since(origin)))
			_, _ = io.WriteString(w, ev(fmt.Sprintf(`{"id":"chatcmpl-0123456789abcdef","choices":[{"index":0,"delta":{"content":" word"}}],"usage":{"prompt_tokens":3,"completion_tokens":%d}}`, i+1)))
			_ = flush.Flush()
		}
		_, _ = io.WriteString(w, ev(finish, done))
	}))
	defer up.Close()
	u, err := url.Parse(up.URL)
	if err != nil {
		b.Fatal(err)
	}
	plain := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256}
	defer plain.CloseIdleConnections()
	reverse := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(u) }, Transport: plain, FlushInterval: -1})
	defer reverse.Close()
	g := newRig(b, up.URL, nil)
	for _, way := range []struct{ name, url string }{{"direct", up.URL}, {"reverseproxy", reverse.URL}, {"relay", g.url}} {
		b.Run(way.name, func(b *testing.B) {
			c := client(b)
			var mu sync.Mutex
			var lags []time.Duration
			start := cpu()
			n := 0
			for b.Loop() {
				n++
				var wg sync.WaitGroup
				for i := range streams {
					wg.Go(func() {
						got := follow(b, c, way.url+chatPath, i, origin, &sentAt[i])
						mu.Lock()
						lags = append(lags, got...)
						mu.Unlock()
					})
				}
				wg.Wait()
			}
			b.ReportMetric(float64(cpu()-start)/float64(n*streams*events), "cpu-ns/event")
			b.ReportMetric(float64(quantile(lags, .5).Microseconds()), "p50-µs")
			b.ReportMetric(float64(quantile(lags, .99).Microseconds()), "p99-µs")
		})
	}
	s := g.relay.Stats()
	b.Logf("relay: %d kernel and %d user stamps, %d coalesced", s.Events[timeline.StampKernel], s.Events[timeline.StampUser], s.Coalesced)
}

// BenchmarkStamps measures the stamps of 128 streams of 50 events a second each.
func BenchmarkStamps(b *testing.B) {
	g := newRig(b, server(b, streaming(50, 20*time.Millisecond)), nil)
	c := client(b)
	for b.Loop() {
		var wg sync.WaitGroup
		for range 128 {
			wg.Go(func() { post(b, c, g.url+chatPath, chatBody) })
			time.Sleep(150 * time.Microsecond) // streams do not tick together
		}
		wg.Wait()
	}
	var events, kernel, own float64
	for _, e := range g.ledger.events() {
		events++
		if e.Stamp == timeline.StampKernel {
			kernel++
			if e.At == e.After {
				own++
			}
		}
	}
	s := g.relay.Stats()
	b.ReportMetric(100*kernel/events, "%kernel")
	b.ReportMetric(100*own/events, "%own")
	b.ReportMetric(float64(s.Wake.Quantile(.99).Microseconds()), "wake-p99-µs")
	b.ReportMetric(float64(s.Hold.Quantile(.99).Microseconds()), "hold-p99-µs")
}

package spool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSpool returns a spool whose receiver is answer, which is told how many attempts came before.
func newSpool(t *testing.T, change func(*Config), answer func(ctx context.Context, n int, body string) result) *Spool {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Signal, cfg.Endpoint = Metrics, "http://receiver"
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	s.open = func(Config) (sender, func(), error) {
		return func(ctx context.Context, r record) result {
			n++
			return answer(ctx, n-1, string(r.body))
		}, func() {}, nil
	}
	return s
}

func post(t *testing.T, s *Spool, body string) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://spool/v1/metrics", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.RoundTrip(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		t.Errorf("RoundTrip() = %d, want 200", resp.StatusCode)
	}
	return resp.Body.Close()
}

func postAll(t *testing.T, s *Spool, n int) []string {
	t.Helper()
	var bodies []string
	for i := range n {
		bodies = append(bodies, "body "+strconv.Itoa(i))
		if err := post(t, s, bodies[i]); err != nil {
			t.Fatal(err)
		}
	}
	return bodies
}

func TestAnHourWithoutReceiverLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var got []string
		s := newSpool(t, nil, func(_ context.Context, _ int, body string) result {
			if time.Since(start) < time.Hour {
				return result{outcome: retry, why: "connection failed"}
			}
			got = append(got, body)
			return result{}
		})
		done := make(chan error, 1)
		go func() { done <- s.Run(t.Context()) }()
		var want []string
		for i := range 360 {
			want = append(want, strconv.Itoa(i))
			if err := post(t, s, want[i]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if st := s.Stats(); st.Queued != 360 || st.LastError == "" {
			t.Errorf("after an hour: %+v, want 360 queued and the reason", st)
		}
		time.Sleep(time.Minute)
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		st := s.Stats()
		// Attempts an hour at a backoff of at most 45 s, at least 15 s.
		if st.Sent != 360 || st.Queued != 0 || st.QueuedBytes != 0 || st.Retries < 80 || st.Retries > 250 || st.LastError != "" {
			t.Errorf("Stats() = %+v", st)
		}
	})
}

func TestAFullQueueDropsItsOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		s := newSpool(t, func(c *Config) { c.MaxBytes = 18 }, func(_ context.Context, _ int, body string) result {
			got = append(got, body)
			return result{}
		})
		postAll(t, s, 5) // six bytes each: three have room
		if err := post(t, s, strings.Repeat("x", 100)); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); st.DroppedFull != 3 || st.Queued != 3 || st.QueuedBytes != 18 {
			t.Errorf("a body too big for the queue: %+v, want it alone dropped", st)
		}
		bodies := postAll(t, s, 5)
		if st := s.Stats(); st.DroppedFull != 8 || st.Queued != 3 || st.QueuedBytes != 18 || st.Accepted != 11 {
			t.Errorf("Stats() = %+v, want the newest three of 18 bytes", st)
		}
		s.Close()
		if err := s.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(bodies[2:], got); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
	})
}

func TestAPoisonedRequestIsDroppedAndTheRestGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		s := newSpool(t, nil, func(_ context.Context, n int, body string) result {
			got = append(got, body)
			if n == 1 {
				return result{outcome: refused, why: "status 400"}
			}
			return result{rejected: int64(n), why: "partial success"}
		})
		bodies := postAll(t, s, 3)
		s.Close()
		if err := s.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(bodies, got); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if st := s.Stats(); st.DroppedRefused != 1 || st.Sent != 2 || st.Partial != 1 || st.RejectedItems != 2 {
			t.Errorf("Stats() = %+v, want one refused, one partial with 2 items", st)
		}
	})
}

func TestTheReceiverSetsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at time.Duration
		s := newSpool(t, nil, func(_ context.Context, n int, _ string) result {
			if n == 0 {
				return result{outcome: retry, after: 90 * time.Second}
			}
			at = time.Since(start)
			return result{}
		})
		postAll(t, s, 1)
		done := make(chan error, 1)
		go func() { done <- s.Run(t.Context()) }()
		time.Sleep(2 * time.Minute)
		s.Close()
		if err := <-done; err != nil || at != 90*time.Second {
			t.Errorf("second attempt after %v (%v), want 90 s", at, err)
		}
	})
}

func TestShutdownSendsWhatIsThere(t *testing.T) {
	for name, end := range map[string]func(*Spool, context.CancelFunc){
		"the input closes": func(s *Spool, _ context.CancelFunc) { s.Close() },
		"the context ends, then the input closes": func(s *Spool, cancel context.CancelFunc) {
			cancel()
			s.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []string
				s := newSpool(t, nil, func(ctx context.Context, _ int, body string) result {
					if ctx.Err() != nil {
						t.Error("an attempt is made under a context that has ended")
					}
					time.Sleep(time.Second)
					got = append(got, body)
					return result{}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- s.Run(ctx) }()
				bodies := postAll(t, s, 4)
				end(s, cancel)
				if err := <-done; err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(bodies, got); diff != "" {
					t.Errorf("delivered (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAfterTheContextEndsTheInputMayStillFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		s := newSpool(t, nil, func(context.Context, int, string) result { sent++; return result{} })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		cancel()
		time.Sleep(time.Second)
		postAll(t, s, 1)
		s.Close()
		if err := <-done; err != nil || sent != 1 {
			t.Errorf("sent %d (%v), want the last batch", sent, err)
		}
	})
}

func TestTheFlushDoesNotSitOutALongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, after := time.Now(), 0
		s := newSpool(t, nil, func(context.Context, int, string) result {
			if time.Since(start) >= 10*time.Minute {
				after++
			}
			if after < 2 {
				return result{outcome: retry}
			}
			return result{}
		})
		postAll(t, s, 1)
		done := make(chan error, 1)
		go func() { done <- s.Run(t.Context()) }()
		time.Sleep(10 * time.Minute) // the wait has grown to half a minute
		s.Close()
		if err := <-done; err != nil || s.Stats().Sent != 1 {
			t.Errorf("%+v (%v), want the second attempt of the flush to succeed", s.Stats(), err)
		}
	})
}

func TestADeadReceiverDoesNotHoldTheShutdown(t *testing.T) {
	for name, answer := range map[string]func(context.Context, int, string) result{
		"it refuses connections": func(context.Context, int, string) result { return result{outcome: retry} },
		"it hangs": func(ctx context.Context, _ int, _ string) result {
			<-ctx.Done()
			return result{outcome: retry}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSpool(t, nil, answer)
				postAll(t, s, 3)
				done := make(chan error, 1)
				go func() { done <- s.Run(t.Context()) }()
				time.Sleep(time.Minute)
				start := time.Now()
				s.Close()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("shutdown took %v, want at most the 5 s of the flush", took)
				}
				if st := s.Stats(); st.DroppedShutdown != 3 || st.Queued != 0 || st.QueuedBytes != 0 {
					t.Errorf("Stats() = %+v, want three lost and counted", st)
				}
				if err := post(t, s, "late"); !errors.Is(err, errClosed) {
					t.Errorf("RoundTrip() after the end = %v, want errClosed", err)
				}
			})
		})
	}
}

func TestConfigurationFaultsAreAllNamed(t *testing.T) {
	_, err := New(Config{Signal: "logs", Endpoint: "localhost:4318"})
	if err == nil {
		t.Fatal("New() takes it")
	}
	for _, want := range []string{"logs", "must be positive", "http://host"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want it to mention %q", err, want)
		}
	}
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
func (brokenBody) Close() error             { return nil }

func TestAHalfReadRequestIsNotStored(t *testing.T) {
	s := newSpool(t, nil, nil)
	req := &http.Request{Method: http.MethodPost, Body: brokenBody{}, Header: http.Header{}}
	resp, err := s.RoundTrip(req)
	if !errors.Is(err, io.ErrUnexpectedEOF) || s.Stats().Accepted != 0 {
		t.Errorf("RoundTrip() = %v, want the read's error", err)
	}
	if resp != nil {
		_ = resp.Body.Close()
	}
}

func TestRetryAfterIsReadInBothForms(t *testing.T) {
	for _, tt := range []struct {
		value, date string
		want        time.Duration
	}{
		{"7", "", 7 * time.Second},
		{"Mon, 30 Nov 2026 12:01:00 GMT", "Mon, 30 Nov 2026 12:00:30 GMT", 30 * time.Second},
		{"Mon, 30 Nov 2026 12:00:00 GMT", "Mon, 30 Nov 2026 12:00:30 GMT", 0},
		{"Mon, 30 Nov 2026 12:01:00 GMT", "", 0},
		{"-3", "", 0},
		{"soon", "", 0},
		{"", "", 0},
	} {
		h := http.Header{}
		h.Set("Retry-After", tt.value)
		h.Set("Date", tt.date)
		if got := retryAfter(h); got != tt.want {
			t.Errorf("retryAfter(%q, date %q) = %v, want %v", tt.value, tt.date, got, tt.want)
		}
	}
}

func TestBodiesAreEncodedAsTheWireWants(t *testing.T) {
	text := []byte(strings.Repeat("points ", 100))
	packed, err := record{body: text}.encoded(true)
	if err != nil || len(packed) < 30 || len(packed) >= len(text) {
		t.Fatalf("encoded(gzip) = %d bytes (%v), want fewer than %d", len(packed), err, len(text))
	}
	back, err := record{body: packed, gzip: true}.encoded(false)
	if err != nil || !bytes.Equal(back, text) {
		t.Errorf("encoded(plain) = %d bytes (%v), want the text again", len(back), err)
	}
	if _, err := (record{body: text, gzip: true}).encoded(false); err == nil {
		t.Error("damaged gzip is taken for a body")
	}
}

func FuzzPartial(f *testing.F) {
	b, err := proto.Marshal(&colmetrics.ExportMetricsServiceResponse{
		PartialSuccess: &colmetrics.ExportMetricsPartialSuccess{RejectedDataPoints: 3, ErrorMessage: "out of order"},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		for _, signal := range []Signal{Metrics, Traces} {
			res := partial(signal, answer)
			if res.outcome != taken || res.rejected < 0 || res.rejected > 0 != (res.why != "") {
				t.Errorf("partial(%s, %x) = %+v", signal, answer, res)
			}
		}
	})
}

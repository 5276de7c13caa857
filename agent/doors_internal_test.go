package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRequestsWaitForTheirTurnAndNoLongerThanTheyAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		release, inside := make(chan struct{}), 0
		h := inTurn(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			inside++ // synctest runs what is not blocked one by one up to each Wait
			<-release
		}), most)
		ask := func(ctx context.Context) chan struct{} {
			done := make(chan struct{})
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
			if err != nil {
				t.Error(err)
			}
			go func() { defer close(done); h.ServeHTTP(nil, r) }()
			synctest.Wait()
			return done
		}
		for range most {
			ask(t.Context())
		}
		ctx, giveUp := context.WithCancel(t.Context())
		tired, patient := ask(ctx), ask(t.Context())
		if inside != most {
			t.Fatalf("%d are served at once, want %d", inside, most)
		}
		giveUp()
		<-tired
		release <- struct{}{}
		synctest.Wait()
		if inside != most+1 {
			t.Errorf("%d were served after one had ended, want %d", inside, most+1)
		}
		close(release)
		<-patient
	})
}

func TestDoorsLeaveFilesForWhatMeasures(t *testing.T) {
	for files, want := range map[int]int{1 << 20: maxScrapers, 1024: 128, 40: 5, 1: 1} {
		if got := lent(maxScrapers, files); got != want {
			t.Errorf("of %d files a door has %d, want %d", files, got, want)
		}
	}
	if n := openFiles(); n < 16 {
		t.Errorf("this process may have %d files open", n)
	}
}

// A door holds so many connections, and lets go of those that are slow.
func TestADoorIsNotHeldByPeersThatDoNothing(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	go func() { done <- serve(ctx, l, 1, h, "", slog.New(slog.DiscardHandler)) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	dial := func() net.Conn {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	slow := dial()
	defer func() { _ = slow.Close() }()
	if _, err := io.WriteString(slow, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	second := dial() // waits in the queue of the listener
	defer func() { _ = second.Close() }()
	if _, err := io.WriteString(second, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := second.SetReadDeadline(began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(second)
	if took := time.Since(began); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") || took < readTimeout/2 {
		t.Errorf("after %v a second peer got %.40q, %v; want an answer once the first one was given up", took, answer, err)
	}
}

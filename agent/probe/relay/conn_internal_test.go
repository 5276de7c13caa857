//go:build linux

package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/probe"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// pair returns a stamping connection and its other end.
func pair(t *testing.T) (*conn, net.Conn, *hostclock.Clock) {
	t.Helper()
	clock, err := hostclock.New()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	d := net.Dialer{Control: control}
	near, err := d.DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	k, err := newConn(near, clock, &counters{}, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = k.Close(), far.Close() })
	return k, far, clock
}

func TestAKernelStampIsWhenTheBytesCameAndNotWhenTheyWereRead(t *testing.T) {
	k, far, clock := pair(t)
	stampAtAll(t, k, far, clock)
	var box probe.Stamp
	k.deliver(&box, clock.Now())
	before := clock.Now()
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	written := clock.Now()
	time.Sleep(30 * time.Millisecond) // the bytes wait for a reader that is late
	b := make([]byte, 8)
	if n, err := k.Read(b); n != 1 || err != nil {
		t.Fatalf("Read() = %d, %v", n, err)
	}
	st := k.look(&box)
	if st.Source != timeline.StampKernel || st.Shared {
		t.Fatalf("stamp %+v, want one of the kernel", st)
	}
	const slack = 5 * time.Millisecond // of a busy machine, far below the wait
	if st.At < before.Add(-slack) || st.At > written.Add(slack) {
		t.Errorf("stamp is %v after the write, want within it", st.At.Sub(written))
	}
	if got := k.stats.wake.snapshot(); got.Sum < 20*time.Millisecond {
		t.Errorf("wake lag %v of %d reads, want the wait", got.Sum, got.Count())
	}
}

// stampAtAll waits until the kernel notes receive times: it begins some time after it was asked.
func stampAtAll(t *testing.T, k *conn, far net.Conn, clock *hostclock.Clock) {
	t.Helper()
	keep, err := keepStamping()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keep.Close() })
	var box probe.Stamp
	k.deliver(&box, clock.Now())
	b := make([]byte, 1)
	for deadline := time.Now().Add(10 * time.Second); k.look(&box).Source != timeline.StampKernel; {
		if time.Now().After(deadline) {
			t.Fatal("the kernel notes no receive times")
		}
		_, _ = far.Write(b)
		_, _ = k.Read(b)
	}
}

func TestAReadReturnsWhatOrdinaryConnectionsReturn(t *testing.T) {
	k, far, _ := pair(t)
	if n, err := k.Read(nil); n != 0 || err != nil {
		t.Errorf("Read(nil) = %d, %v", n, err)
	}
	if err := k.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if _, err := k.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read() past the deadline = %v", err)
	}
	_ = k.SetReadDeadline(time.Time{})
	if _, err := far.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	if n, err := k.Read(b); string(b[:n]) != "abc" || err != nil {
		t.Errorf("Read() = %q, %v", b[:n], err)
	}
	_ = far.(*net.TCPConn).SetLinger(0)
	_ = far.Close()
	if _, err := k.Read(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read() after a reset = %v", err)
	}

	k, far, _ = pair(t)
	_ = far.Close()
	if n, err := k.Read(b); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("Read() at the end = %d, %v", n, err)
	}
	_ = k.Close()
	if _, err := k.Read(b); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read() after Close = %v", err)
	}
}

func TestStampsGoToTheExchangeThatHoldsTheConnection(t *testing.T) {
	m := marks{shared: true}
	var first, second probe.Stamp
	m.deliver(&first, 4)
	m.mark(5, timeline.StampKernel)
	m.deliver(&second, 6)
	m.mark(7, timeline.StampUser)
	if first != (probe.Stamp{At: 5, Source: timeline.StampKernel, Read: 1, Shared: true}) {
		t.Errorf("first exchange has %+v", first)
	}
	if second != (probe.Stamp{At: 7, Source: timeline.StampUser, Read: 2, Shared: true}) {
		t.Errorf("second exchange has %+v", second)
	}
}

func TestAReceiptBeforeTheRequestIsNotBelieved(t *testing.T) {
	k, far, clock := pair(t)
	stampAtAll(t, k, far, clock)
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	// A wall clock that was set forward meanwhile looks just like bytes that came before they were asked for.
	var box probe.Stamp
	k.deliver(&box, clock.Now())
	if _, err := k.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if st := k.look(&box); st.Source != timeline.StampUser {
		t.Errorf("stamp %+v, want one of the user", st)
	}
}

func TestReadDoesNotAllocate(t *testing.T) {
	k, far, _ := pair(t)
	b, x := make([]byte, 8), []byte("x")
	if got := testing.AllocsPerRun(100, func() {
		_, _ = far.Write(x)
		_, _ = k.Read(b)
	}); got != 0 {
		t.Errorf("Read() allocates %v times, want 0", got)
	}
}

func TestControlDataThatIsNoTimeIsNone(t *testing.T) {
	for _, oob := range [][]byte{nil, make([]byte, 4), make([]byte, 16), {24, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}} {
		if ns, ok := received(oob); ok {
			t.Errorf("received(%v) = %d, want none", oob, ns)
		}
	}
}

func TestParseTraceparent(t *testing.T) {
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	good := "00-" + trace + "-" + parent + "-01"
	for header, ok := range map[string]bool{
		good: true, "01" + good[2:]: true, "01" + good[2:] + "-more": true,
		"": false, good[1:]: false, good + "-more": false, "ff" + good[2:]: false, "01" + good[2:] + "more": false,
		"00-" + trace + "-0000000000000000-01": false, "00-00000000000000000000000000000000-" + parent + "-01": false,
		"00-" + trace + "-B7AD6B7169203331-01": false, "00-" + trace + "-" + parent + "-zz": false, "00_" + trace + "-" + parent + "-01": false,
	} {
		gotTrace, gotParent, flags, got := parseTraceparent(header)
		if got != ok || ok && (gotTrace != trace || gotParent != parent || flags != "01") {
			t.Errorf("parseTraceparent(%q) = %q, %q, %q, %v, want %v", header, gotTrace, gotParent, flags, got, ok)
		}
	}
}

func FuzzParseTraceparent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Fuzz(func(t *testing.T, s string) {
		trace, parent, flags, ok := parseTraceparent(s)
		if ok != (len(trace) == 32 && len(parent) == 16 && len(flags) == 2) {
			t.Fatalf("parseTraceparent(%q) = %q, %q, %q, %v", s, trace, parent, flags, ok)
		}
	})
}

func TestAnExchangeThatIsOverGetsNoMoreStamps(t *testing.T) {
	var m marks
	var over, next probe.Stamp
	m.deliver(&over, 1)
	m.forget(&over)
	m.mark(2, timeline.StampUser)
	if !m.look(&over).At.IsZero() {
		t.Errorf("stamp %+v after the end", over)
	}
	m.deliver(&next, 3)
	m.forget(&over) // late: the next exchange has the connection
	m.mark(4, timeline.StampUser)
	if got := m.look(&next).At; got != 4 {
		t.Errorf("the next exchange's stamp is %v, want 4", got)
	}
}

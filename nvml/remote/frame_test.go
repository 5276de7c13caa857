package remote

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func sampleOf(gpu int, cs ...timeline.Counter) timeline.Sample {
	s := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: 1_000_000_000, End: 1_110_000_000}, Slack: 4_000}
	for _, c := range cs {
		s.Put(c, 0.25+float64(c))
	}
	return s
}

func stream(tb testing.TB, version int, samples ...timeline.Sample) []byte {
	tb.Helper()
	b, err := appendJSON(nil, kindHello, hello{protocol, version})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range samples {
		b = appendSample(b, &samples[i])
	}
	return b
}

func TestSamplesSurviveTheWireInAnyChunks(t *testing.T) {
	want := []timeline.Sample{
		sampleOf(0, timeline.GraphicsUtil, timeline.DRAMUtil), sampleOf(7, timeline.ThrottleSyncBoost),
		sampleOf(3, timeline.SMClock, timeline.MemClock, timeline.EventReasons), sampleOf(1),
	}
	b := stream(t, protocolVersion, want...)
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(b), "bytes": iotest.OneByteReader(bytes.NewReader(b)), "halves": iotest.HalfReader(bytes.NewReader(b)),
	} {
		var have []timeline.Sample
		f := newFrameReader(r)
		for {
			k, payload, err := f.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if k != kindSample {
				continue
			}
			var s timeline.Sample
			if err := decodeSample(payload, &s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			have = append(have, s)
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s (-want +have):\n%s", name, diff)
		}
	}
}

func TestAFrameThatNobodyWouldTakeIsNotSent(t *testing.T) {
	long := timeline.Event{Kind: timeline.EventGap, Detail: strings.Repeat("x", maxFrame)}
	if b, err := appendJSON([]byte{1}, kindEvent, long); !errors.Is(err, errFrame) || len(b) != 1 {
		t.Errorf("%d bytes, %v, want what was there before", len(b), err)
	}
	most := timeline.Inventory{GPU: maxGPUs, Processes: make([]timeline.GPUProcess, maxListed), NVLinks: make([]timeline.NVLink, 72)} // links: NVML 13.4 has 72
	for i := range most.Processes {
		most.Processes[i] = timeline.GPUProcess{PID: 1 << 22, MemoryBytes: 1 << 50}
	}
	for i := range most.NVLinks {
		most.NVLinks[i] = timeline.NVLink{Link: i, Up: true, PeerBusID: "00000000:C5:00.0"}
	}
	if _, err := appendJSON(nil, kindInventory, most); err != nil {
		t.Errorf("the most that is around a GPU: %v", err)
	}
}

func TestBadStreamsAreRefusedWithAReason(t *testing.T) {
	nan := sampleOf(0, timeline.SMUtil)
	nan.Value[timeline.SMUtil] = math.NaN()
	inverted := sampleOf(0, timeline.SMUtil)
	inverted.Over.End = inverted.Over.Start
	good := stream(t, protocolVersion, sampleOf(0, timeline.SMUtil))
	for name, c := range map[string]struct {
		stream []byte
		want   string
	}{
		"other version": {stream(t, protocolVersion+1), "helper speaks version"},
		"no hello":      {appendSample(nil, &nan), "not a helper"},
		"text":          {[]byte("GET / HTTP/1.1\r\n\r\n"), "length"},
		"cut":           {good[:len(good)-3], "unexpected EOF"},
		"no length":     {append(stream(t, protocolVersion), 0, 0, 0, 0, 3), "length 0"},
		"huge":          {append(stream(t, protocolVersion), 255, 255, 255, 127, 3), "length"},
		"no number":     {stream(t, protocolVersion, nan), "sm_util is no number"},
		"inverted span": {stream(t, protocolVersion, inverted), "span"},
		"counters that do not exist": {
			appendFrame(stream(t, protocolVersion), kindSample, func(b []byte) []byte {
				s := appendSample(nil, &inverted)[headerLen:]
				s[33] = 0xff
				return append(b, s...)
			}), "unknown counters",
		},
	} {
		err := readAll(c.stream)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
	if err := readAll(good); err != nil {
		t.Errorf("a good stream: %v", err)
	}
}

// readAll reads a stream to its end as the agent does.
func readAll(b []byte) error {
	f := newFrameReader(bytes.NewReader(b))
	s := NewSource(Options{Now: func() timeline.Instant { return 1 }})
	in := newInbox(s, &record{})
	in.position = []int{0, 1, 2, 3, 4, 5, 6, 7}
	for {
		k, payload, err := f.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := in.take(k, payload, 1); err != nil {
			return err
		}
	}
}

func FuzzFrames(f *testing.F) {
	good := stream(f, protocolVersion, sampleOf(0, timeline.SMUtil, timeline.DRAMUtil), sampleOf(7))
	f.Add(good)
	f.Add(good[:len(good)/2])
	for k, v := range map[kind]any{
		kindGPUs: []timeline.GPU{{UUID: "GPU-1", Name: "a"}, {UUID: "GPU-2"}}, kindCapability: timeline.Capability{GPU: 1, Call: "power"},
		kindEvent: timeline.Event{GPU: -1, Kind: timeline.EventGap}, kindStats: samplerStats{GPU: 1}, kindBeat: struct{}{},
		kindRefused: refused{"no driver"},
	} {
		b, err := appendJSON(bytes.Clone(good), k, v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := readAll(b); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
		var s timeline.Sample
		if decodeSample(b, &s) == nil {
			if again := appendSample(nil, &s)[headerLen:]; !bytes.Equal(b, again) {
				t.Errorf("payload %x is written again as %x", b, again)
			}
		}
	})
}

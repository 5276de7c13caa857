package remote

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// The wire between helper and agent is a stream of frames: a length of four bytes (little endian, of what follows), a
// kind of one byte, a payload. The first frame is a hello, which names the protocol and its version. Samples are binary,
// because there are hundreds a second; all else is JSON. The agent's commands come the same way, without a hello, on the
// helper's standard input, whose end ends the helper.

type kind byte

const (
	kindHello      kind = 1 + iota
	kindGPUs            // the list that positions refer to
	kindSample          // one reading
	kindCapability      // a counter's state
	kindEvent           // something happened
	kindStats           // a sampler's counts
	kindBeat            // the helper is alive: nothing else is said
	kindRefused         // the driver could not be opened: the helper ends
	kindInventory       // what is on and around a GPU
	kindBurst           // agent to helper: read clocks at the highest rate for a while
)

const (
	protocol        = "tpotscope-nvml"
	protocolVersion = 2

	headerLen = 5
	// maxFrame bounds what a frame may claim to be. The longest are the list of GPUs, under 400 bytes each, and what is
	// around one, under 60 bytes a process or link.
	maxFrame = 1 << 16
	// sampleFixed is the length of a sample's payload without its values.
	sampleFixed = 2 + 8 + 8 + 8 + 8
)

// hello is the first frame.
type hello struct {
	Protocol string `json:"protocol"`
	Version  int    `json:"version"`
}

// samplerStats is the counts of the sampler at a position.
type samplerStats struct {
	GPU   int        `json:"gpu"`
	Stats nvml.Stats `json:"stats"`
}

// burst asks for the highest rate.
type burst struct {
	For time.Duration `json:"for_ns"`
}

// refused says why there is nothing to read.
type refused struct {
	Why string `json:"why"`
}

var errFrame = errors.New("bad frame")

// appendFrame appends a frame with the payload that body appends.
func appendFrame(dst []byte, k kind, body func([]byte) []byte) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0, byte(k))
	dst = body(dst)
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// appendJSON appends a frame whose payload is v.
func appendJSON(dst []byte, k kind, v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return dst, fmt.Errorf("encode frame: %w", err)
	}
	if 1+len(payload) > maxFrame {
		return dst, fmt.Errorf("encode frame: %d bytes: %w", len(payload), errFrame) // the other end would take it for garbage
	}
	return appendFrame(dst, k, func(b []byte) []byte { return append(b, payload...) }), nil
}

// appendSample appends a frame that holds s.
func appendSample(dst []byte, s *timeline.Sample) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0, byte(kindSample))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(s.GPU))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Over.Start))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Over.End))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Slack))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Has))
	for c, v := range s.Value {
		if s.Has.Has(timeline.Counter(c)) {
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
		}
	}
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// allCounters is the set of all counters that this version knows.
const allCounters = timeline.CounterSet(1)<<timeline.NumCounters - 1

// decodeSample reads a sample's payload into s.
func decodeSample(payload []byte, s *timeline.Sample) error {
	if len(payload) < sampleFixed {
		return fmt.Errorf("decode sample: %d bytes: %w", len(payload), errFrame)
	}
	le := binary.LittleEndian
	*s = timeline.Sample{
		GPU: int(le.Uint16(payload)),
		Over: timeline.Span{
			Start: timeline.Instant(le.Uint64(payload[2:])),
			End:   timeline.Instant(le.Uint64(payload[10:])),
		},
		Slack: int64(le.Uint64(payload[18:])),
		Has:   timeline.CounterSet(le.Uint64(payload[26:])),
	}
	values := payload[sampleFixed:]
	switch {
	case s.Has&^allCounters != 0:
		return fmt.Errorf("decode sample: unknown counters %#x: %w", uint64(s.Has&^allCounters), errFrame)
	case len(values) != 8*bits.OnesCount64(uint64(s.Has)):
		return fmt.Errorf("decode sample: %d bytes for counters %#x: %w", len(values), uint64(s.Has), errFrame)
	case s.Over.Empty() || s.Over.Start <= 0 || s.Slack < 0:
		return fmt.Errorf("decode sample: span %d to %d, slack %d: %w", s.Over.Start, s.Over.End, s.Slack, errFrame)
	}
	for c := range timeline.Counter(timeline.NumCounters) {
		if !s.Has.Has(c) {
			continue
		}
		v := math.Float64frombits(le.Uint64(values))
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("decode sample: %s is no number: %w", c, errFrame)
		}
		s.Value[c], values = v, values[8:]
	}
	return nil
}

// frameReader reads frames. The payload it returns is good until the next call.
type frameReader struct {
	r       *bufio.Reader
	payload []byte
	greeted bool
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, maxFrame)}
}

// next reads one frame. The stream's end between two frames is io.EOF. The hello is checked here and not returned.
func (f *frameReader) next() (kind, []byte, error) {
	k, payload, err := f.frame()
	if err != nil || f.greeted {
		return k, payload, err
	}
	var h hello
	if k != kindHello || json.Unmarshal(payload, &h) != nil || h.Protocol != protocol {
		return 0, nil, fmt.Errorf("read hello: not a helper of this project: %w", errFrame)
	}
	if h.Version != protocolVersion {
		return 0, nil, fmt.Errorf("read hello: helper speaks version %d, this agent %d; install both from one build: %w",
			h.Version, protocolVersion, errFrame)
	}
	f.greeted = true
	return k, nil, nil
}

func (f *frameReader) frame() (kind, []byte, error) {
	var header [headerLen]byte
	if _, err := io.ReadFull(f.r, header[:1]); err != nil {
		return 0, nil, err
	}
	if _, err := io.ReadFull(f.r, header[1:]); err != nil {
		return 0, nil, fmt.Errorf("read frame: %w", unexpected(err))
	}
	n := binary.LittleEndian.Uint32(header[:])
	if n < 1 || n > maxFrame {
		return 0, nil, fmt.Errorf("read frame: length %d: %w", n, errFrame)
	}
	if int(n) > cap(f.payload) {
		f.payload = make([]byte, n)
	}
	payload := f.payload[:n-1]
	if _, err := io.ReadFull(f.r, payload); err != nil {
		return 0, nil, fmt.Errorf("read frame: %w", unexpected(err))
	}
	return kind(header[4]), payload, nil
}

// unexpected turns an end within a frame into what it is.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decodeJSON reads the payload of a frame that is no sample.
func decodeJSON[T any](payload []byte) (T, error) {
	var v T
	if err := json.Unmarshal(payload, &v); err != nil {
		return v, fmt.Errorf("decode frame: %w: %w", errFrame, err)
	}
	return v, nil
}

// readCommands hands on what the agent commands until r ends. What is no command is not taken, and nothing after it: the
// end of r is waited for all the same.
func readCommands(r io.Reader, burstFor func(time.Duration)) {
	f := newFrameReader(r)
	for {
		k, payload, err := f.frame()
		if err != nil {
			_, _ = io.Copy(io.Discard, r) // however it ends, the agent is gone
			return
		}
		if k != kindBurst {
			continue // of a later agent
		}
		if b, err := decodeJSON[burst](payload); err == nil {
			burstFor(b.For)
		}
	}
}

package remote

import (
	"io"
	"strings"
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// A frame that is too long ends the helper that sends it: what a driver tells must not come to that.
func TestAFrameThatIsTooLongIsNotSent(t *testing.T) {
	out := newOutbox(io.Discard)
	out.AddEvent(timeline.Event{Detail: strings.Repeat("x", maxFrame)})
	if n := len(out.pending); n != 0 || out.takeDropped() != 1 {
		t.Errorf("%d bytes of it wait, want none and one frame counted as dropped", n)
	}
	out.AddEvent(timeline.Event{Detail: "short"})
	if len(out.pending) == 0 {
		t.Error("a short one does not wait either")
	}
}

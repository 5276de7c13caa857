package route

import (
	"fmt"
	"math"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	checkOver   = time.Minute // means over so long are compared
	checkPart   = 0.05        // of the greater: farther apart they disagree
	checkLeast  = 0.05        // below, both are as good as nothing
	checkCover  = 0.8         // of an exporter's interval must lie under the driver's windows
	checkRecent = 1024        // the driver's windows that are kept: a minute and more at ten a second
	slackPart   = 0.2         // of an interval: known worse at its ends, it is not compared
)

// checked are the counters that are compared.
var checked = [...]timeline.Counter{timeline.DRAMUtil, timeline.TensorUtil, timeline.SMUtil, timeline.GraphicsUtil}

// window is one of the driver's.
type window struct {
	over  timeline.Span
	has   timeline.CounterSet
	value [len(checked)]float64
}

// check compares the means of two sources over the same time.
type check struct {
	recent *timeline.Ring[window] // nil until the driver's first
	sums   [len(checked)]struct{ driver, exporter, seconds float64 }
	apart  [len(checked)]bool // was told, and holds
}

// driver keeps a window of the driver.
func (c *check) driver(s *timeline.Sample) {
	if c.recent == nil {
		c.recent = timeline.NewRing[window](checkRecent)
	}
	w := window{over: s.Over, has: s.Has}
	for k, counter := range checked {
		w.value[k] = s.Value[counter]
	}
	c.recent.Push(w)
}

// exporter takes an interval of the exporter, and says of each counter whose means have come apart by how much.
func (c *check) exporter(s *timeline.Sample) []string {
	if c.recent == nil || 2*float64(s.Slack) > slackPart*float64(s.Over.Duration()) {
		return nil
	}
	var said []string
	for k, counter := range checked {
		v, ok := s.Get(counter)
		if !ok {
			continue
		}
		var sum, seconds float64
		for w := range c.recent.All() {
			if sec := w.over.Overlap(s.Over).Seconds(); sec > 0 && w.has.Has(counter) {
				sum, seconds = sum+sec*w.value[k], seconds+sec
			}
		}
		if seconds < checkCover*s.Over.Duration().Seconds() {
			continue
		}
		t := &c.sums[k]
		t.driver, t.exporter, t.seconds = t.driver+sum, t.exporter+seconds*v, t.seconds+seconds
		if t.seconds < checkOver.Seconds() {
			continue
		}
		ours, theirs := t.driver/t.seconds, t.exporter/t.seconds
		apart := math.Abs(ours-theirs) > checkPart*max(ours, theirs) && max(ours, theirs) >= checkLeast
		if apart && !c.apart[k] {
			said = append(said, fmt.Sprintf("%s over %.0f s: driver %.3f, dcgm-exporter %.3f", counter, t.seconds, ours, theirs))
		}
		c.apart[k] = apart
		t.driver, t.exporter, t.seconds = 0, 0, 0
	}
	return said
}

// Package verdict says what bounded decode on a GPU group over a cell of time, from averaged counters and the work
// the engine did, how sure that is, and why it is withheld when it is. It knows no request and no clock.
package verdict

import "github.com/tpotscope/tpotscope/correlate/timeline"

// Verdict is what is said of one cell, or of a run of cells.
type Verdict struct {
	Label      timeline.Label
	Reason     string // why it is undetermined, or what the label rests on; one of the Reason constants where withheld
	Shares     timeline.Shares
	Roof       timeline.Interval // where the true share of time at a roof lies
	Confidence timeline.Confidence
	Overlays   []timeline.Overlay
	Caps       []string // what held the confidence down, one short clause each
}

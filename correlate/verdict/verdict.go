// Package verdict says what bounded decode on a GPU group over a cell of time, from averaged counters and the work
// the engine did, how sure that is, and why it is withheld when it is. It knows no request and no clock.
//
// [Judge] speaks of one cell, and a lone cell is never more than a hint: confidence belongs to a run of like cells and
// comes from [Run].
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

	D, C    float64             // DRAM bandwidth and tensor activity as parts of what is achievable; zero where a gate failed
	Mixed   bool                // prompt and decode work shared the cell, or may have
	Ceiling timeline.Confidence // the most that a run of cells like this one can reach
	// Watched and Unwatched are Ceiling as it would be had the probe seen all traffic, and had it not, and Traffic is the
	// clause of Caps that says what it saw; empty where that held nothing down. A run that knows better than its cells how
	// much was seen judges by these.
	Watched, Unwatched timeline.Confidence
	Traffic            string
	Rank               string            // UUID of the rank that the others wait for; empty if none stands out
	CI                 timeline.Interval // 95 % interval of the share that decides the label; empty for one cell and for short runs
}

// OK reports whether the verdict is determined.
func (v *Verdict) OK() bool { return v.Label != "" && v.Label != timeline.Undetermined }

// Placed reports whether the time was split into shares, also where none of them is large enough for a label.
func (v *Verdict) Placed() bool { return v.Shares.Sum() > 0.5 }

// ReasonChanging is why a run is mixed whose cells differ, as opposed to one whose steps carry prompts.
const ReasonChanging = "no label holds 60 % of the time"

// ReasonNotCounted is why a cell or a run is mixed that may have held prompt work or none: nobody counts it.
const ReasonNotCounted = "prompt tokens are not counted"

// Why a label is withheld.
const (
	ReasonNoMapping  = "no gpu mapping"
	ReasonNoCounters = "no counters"
	ReasonWindows    = "too few windows"
	ReasonCoverage   = "counters cover too little of the time"
	ReasonClock      = "clock"
	ReasonForeign    = "foreign process on the gpu"
	ReasonMIG        = "mig or mps"
	ReasonLegacy     = "legacy counters only"
	ReasonUntrusted  = "untrusted counter"
	ReasonIdle       = "no running requests"
	ReasonNoDecode   = "no request decoded"
	ReasonPipeline   = "a pipeline bubble explains the gap"
	ReasonIdleRank   = "an idle data-parallel rank explains the gap"
	ReasonNoShare    = "no share dominates"
	ReasonNoCells    = "no cells"
)

// withheld is the verdict of a failed gate.
func withheld(reason string) Verdict {
	return Verdict{Label: timeline.Undetermined, Reason: reason}
}

// Withhold returns the undetermined verdict for a reason that the caller found.
func Withhold(reason string) Verdict { return withheld(reason) }

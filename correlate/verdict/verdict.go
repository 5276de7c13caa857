// Package verdict says what bounded decode on a GPU group over a cell of time, from averaged counters and the work
// the engine did, how sure that is, and why it is withheld when it is. It knows no request and no clock.
//
// [Judge] speaks of one cell, and a lone cell is never more than a hint: confidence belongs to a run of like cells and
// comes from [Run].
//
// Counters are averages, and an average amplitude is no share of time. What each counter bounds, with all of them as parts
// of the achievable: kernels at the DRAM roof take at least D of the time if all traffic is theirs, more if they run below
// what is achievable, as small kernels and kernels of a slow device do, and less if kernels that wait for something else
// move bytes too; tensor activity bounds the time at the compute roof alike; both together end where no kernel is resident
// (G) or the SMs are not filled (S). Verdict.Roof is the interval that all of this leaves, and holds for serial kernels,
// overlapping ones and slow ones. The shares are a point in it.
package verdict

import (
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

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
	Rank               string // UUID of the rank that the others wait for; empty if none stands out
	// Lead is the rank of a group whose SMs were busiest, and LeadBy by what part of its activity more than the others',
	// whether or not one cell is enough to call it slow: a run weighs all of its cells.
	Lead   string
	LeadBy float64
	CI     timeline.Interval // 95 % interval of the share that decides the label; empty for one cell and for short runs
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

// Eta is how much of a GPU's peaks long, well-shaped kernels reach, and where the two numbers come from. They come
// from a calibration on the node with a known kernel, or from a table by model of GPU; never from what the node was
// seen to reach under load: a degraded node would calibrate itself healthy.
type Eta struct {
	Bandwidth       float64
	Tensor          float64
	BandwidthOrigin string // one of the Origin constants
	TensorOrigin    string
}

// Where an eta comes from.
const (
	OriginCalibrated = "calibrated"
	OriginTable      = "table"
	OriginAssumed    = "assumed"
)

// EtaOf returns the table's eta for g. A GPU that is in no table gets assumed values at the high end, which makes every
// roof look farther away than it may be.
func EtaOf(g hardware.GPU) Eta {
	e := hardware.PracticalEfficiency(g)
	eta := Eta{Bandwidth: e.Bandwidth, Tensor: e.Tensor, BandwidthOrigin: e.BandwidthOrigin, TensorOrigin: e.TensorOrigin}
	if eta.Bandwidth <= 0 {
		eta.Bandwidth, eta.BandwidthOrigin = 0.90, OriginAssumed
	}
	if eta.Tensor <= 0 {
		eta.Tensor, eta.TensorOrigin = 0.93, OriginAssumed
	}
	return eta
}

// Work is what the engine did in the cell. A measure that is not known is absent.
type Work struct {
	Running timeline.Measure // mean requests in the batch
	Decode  timeline.Measure // output tokens
	Prompt  timeline.Measure // prompt tokens processed, without those found in a cache
	Context timeline.Measure // tokens of context over the whole batch
	Steps   timeline.Measure // engine iterations
}

// Rank is one GPU of the group over the cell.
type Rank struct {
	UUID  string
	DRAM  timeline.Measure // fraction; needed of data-parallel ranks alone
	SM    timeline.Measure
	Clock timeline.Measure // Hz
	Power timeline.Measure // W
}

// Device is what decides whether the GPU ran as it should.
type Device struct {
	RateClockHz   float64          // the SM clock that the data sheet's rates assume; zero if unknown
	Clock         timeline.Measure // Hz, mean of the slowest GPU
	Reasons       uint64           // union of the reason bits seen
	ThrottledPart float64          // of the time, by reason bits or cumulative throttle time
	Power         timeline.Measure // W, mean of the GPU that draws most
	PowerLimitW   float64          // enforced; zero if unknown
	DefaultLimitW float64
}

// Input is all that is known of one cell of one GPU group.
type Input struct {
	Gate string // a Reason constant that the caller found: nothing is said then

	DRAM, Tensor, SM, Graphics timeline.Measure // mean fractions over whole windows

	CellS, CoveredS float64 // seconds of the cell, and of it under trusted windows
	Windows         int
	WindowS         float64 // mean width of a window
	ClockBoundS     float64 // bound of the clock of what was joined to the counters
	Foreign         bool    // a process that is not the engine's uses a GPU of the group
	AllowForeign    bool    // judge all the same
	Coalesced       bool    // more than 5 % of the token events shared a read

	Eta      Eta
	Device   Device
	Work     Work
	Model    *roofline.Model // nil if the model, its format or the GPU is unknown: the byte model is silent then
	Coverage timeline.Measure
	NoProbe  bool              // no probe is there: all that Work holds is the engine's own count, of all traffic
	Rho      timeline.Measure  // measured DRAM bytes over modelled ones
	Band     timeline.Interval // where rho may lie without being a finding

	Preempted float64 // preemptions in the cell
	Ranks     []Rank  // of a tensor-, expert- or data-parallel group; empty or one otherwise
	Parallel  int     // tensor- or expert-parallel degree
	Pipeline  int     // pipeline-parallel degree; zero and one: none
	Replicas  int     // data-parallel degree; zero and one: none. Ranks holds all of them then
	IdleRank  bool    // a data-parallel rank had nothing to do, by what the engine tells of it
}

// RhoBand returns where measured bytes over those that b estimates may lie without being a finding: from what the byte
// model leaves open, and from what counters and the traffic that no model holds may add and take off; and, where nobody
// counted the steps, from tokens that came several a step.
func RhoBand(b roofline.Band, counted bool) timeline.Interval {
	if b.Estimate <= 0 {
		return timeline.Interval{}
	}
	iv := timeline.Interval{Low: rhoLow * b.Low / b.Estimate, High: max(rhoHigh, rhoLeast*b.High/b.Estimate)}
	if !counted {
		iv.Low = min(iv.Low, rhoUncounted)
	}
	return iv
}

// Bounds of measured over modelled bytes where all inputs are known: copies, pages of tables and padding add, and the
// counter's denominator may be off by a twentieth. Where the model's own band is wider, its upper end counts with that
// error alone.
const (
	rhoLow   = 0.9
	rhoHigh  = 1.25
	rhoLeast = 1.05
	// rhoUncounted: where nobody counts steps, speculation may yield up to two and a half tokens of each.
	rhoUncounted = 0.4
)

package verdict

import (
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

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
	Ranks     []Rank  // of a tensor- or expert-parallel group; empty or one otherwise
	Parallel  int     // tensor- or expert-parallel degree
	Pipeline  int     // pipeline-parallel degree
	IdleRank  bool    // a data-parallel rank had nothing to do
}

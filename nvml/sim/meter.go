package sim

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// activity lists the counters of a window in the order in which the page holds them.
var activity = [...]timeline.Counter{
	timeline.GraphicsUtil, timeline.SMUtil, timeline.SMOccupancy, timeline.TensorUtil, timeline.HMMAUtil,
	timeline.IMMAUtil, timeline.DRAMUtil, timeline.IntegerUtil, timeline.FP32Util, timeline.FP16Util, timeline.DRAMCacheHit,
}

// throttles lists the throttle times in the order in which the page holds them.
var throttles = [...]timeline.Counter{
	timeline.ThrottlePower, timeline.ThrottleSWThermal, timeline.ThrottleHWThermal, timeline.ThrottlePowerBrake,
	timeline.ThrottleSyncBoost,
}

// totals lists the other cumulative counters in the order in which the page holds them.
var totals = [...]timeline.Counter{
	timeline.PCIeTx, timeline.PCIeRx, timeline.NVLinkTx, timeline.NVLinkRx, timeline.PCIeReplays,
	timeline.ECCCorrected, timeline.ECCUncorrected, timeline.ECCCorrectedEver, timeline.ECCUncorrectedEver,
	timeline.RemappedCorrectable, timeline.RemappedUncorrectable,
}

// snapshot is what the activity counters of a GPU hold at one refresh.
type snapshot struct {
	at       time.Duration // on the clock, not of the world
	integral [len(activity)]float64
}

// meter turns a world into what a driver shows at a moment: values that were refreshed a while ago. It has no state:
// the same moment shows the same values to whoever asks.
type meter struct {
	world  World
	opts   Options
	faults []instrument
	lacks  []timeline.CounterSet // by GPU: not supported
	err    error                 // the world asks for faults that make no sense
}

func newMeter(w World, opts Options) meter {
	m := meter{world: w, opts: opts.withDefaults()}
	m.faults, m.err = instrumentOf(w)
	for i := range w.GPUs() {
		m.lacks = append(m.lacks, untold(w, i)|unknownTo(branchOf(m.opts.Driver)))
	}
	return m
}

// worldTime places a time since the start in the world, and says how many times the world was played before.
func (m *meter) worldTime(t time.Duration) (time.Duration, float64) {
	w := time.Duration(float64(max(t, 0)) * m.opts.Speed)
	d := m.world.Duration()
	if w < d || d <= 0 {
		return w, 0
	}
	if !m.opts.Loop {
		return d, 0
	}
	return w % d, float64(w / d)
}

// integral returns what c has added up to by t, in seconds of the clock, as the instrument shows it.
func (m *meter) integral(gpu int, c timeline.Counter, t time.Duration) float64 {
	w, rounds := m.worldTime(t)
	v := m.shown(gpu, c, w)
	if rounds > 0 {
		v += rounds * m.shown(gpu, c, m.world.Duration())
	}
	return v / m.opts.Speed
}

// refreshed returns when the activity counters of a GPU were last refreshed. Each GPU has a phase of its own.
func (m *meter) refreshed(gpu int, t time.Duration) time.Duration {
	phase := time.Duration(mix(uint64(gpu)+1) % uint64(m.opts.Refresh))
	n := int64((t + m.opts.Refresh - phase) / m.opts.Refresh)
	at := m.refresh(gpu, n, phase)
	for at > t {
		n--
		at = m.refresh(gpu, n, phase)
	}
	return at
}

// refresh returns the time of the n-th refresh, with its own lateness.
func (m *meter) refresh(gpu int, n int64, phase time.Duration) time.Duration {
	at := time.Duration(n-1)*m.opts.Refresh + phase
	if jitter := max(m.opts.Jitter, m.jitter(gpu, at)); jitter > 0 {
		at += time.Duration(mix(uint64(gpu)<<32^uint64(n)) % uint64(jitter))
	}
	return at
}

// snapshot returns what a snapshot of the activity counters taken at t holds.
func (m *meter) snapshot(gpu int, t time.Duration) snapshot {
	s := snapshot{at: m.refreshed(gpu, t) - m.opts.Lag}
	for i, c := range activity {
		s.integral[i] = m.integral(gpu, c, s.at)
	}
	return s
}

// gauges returns what a GPU shows at t.
func (m *meter) gauges(gpu int, t time.Duration) Gauges {
	w, _ := m.worldTime(t)
	return m.world.At(gpu, w)
}

// dutySpan is what a duty cycle is measured over (NVML API: 1 s to 1/6 s, by product).
const dutySpan = time.Second / 6

// duty returns the percent of the last moments in which c was not idle, coarsely: kernels that are resident count
// whole, whatever they do.
func (m *meter) duty(gpu int, c timeline.Counter, t time.Duration) uint64 {
	grown := m.integral(gpu, c, t) - m.integral(gpu, c, t-dutySpan)
	return uint64(math.Round(100 * min(max(grown/dutySpan.Seconds(), 0), 1)))
}

// mix scatters x (the finalizer of SplitMix64, public domain).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// branchOf returns the major number of a driver version, zero if it has none.
func branchOf(version string) int {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return n
}

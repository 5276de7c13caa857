package scrape

import (
	"bytes"
	"cmp"
	"errors"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// dcgmFields are the exporter's series that are read, as its field ids name them, with the factor to the counter's own
// unit (the exporter has MHz, percent, MiB and mJ). Profiling fields are means over the collection interval, relative to
// the same peaks as the driver's own windows (NVIDIA, "DCGM user guide", profiling metrics).
var dcgmFields = map[string]struct {
	counter timeline.Counter
	factor  float64
}{
	"DCGM_FI_PROF_GR_ENGINE_ACTIVE":        {timeline.GraphicsUtil, 1},
	"DCGM_FI_PROF_SM_ACTIVE":               {timeline.SMUtil, 1},
	"DCGM_FI_PROF_SM_OCCUPANCY":            {timeline.SMOccupancy, 1},
	"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE":      {timeline.TensorUtil, 1},
	"DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE": {timeline.HMMAUtil, 1},
	"DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE": {timeline.IMMAUtil, 1},
	"DCGM_FI_PROF_PIPE_FP32_ACTIVE":        {timeline.FP32Util, 1},
	"DCGM_FI_PROF_PIPE_FP16_ACTIVE":        {timeline.FP16Util, 1},
	"DCGM_FI_PROF_DRAM_ACTIVE":             {timeline.DRAMUtil, 1},
	"DCGM_FI_DEV_SM_CLOCK":                 {timeline.SMClock, 1e6},
	"DCGM_FI_DEV_MEM_CLOCK":                {timeline.MemClock, 1e6},
	"DCGM_FI_DEV_POWER_USAGE":              {timeline.Power, 1},
	"DCGM_FI_DEV_GPU_TEMP":                 {timeline.Temperature, 1},
	"DCGM_FI_DEV_MEMORY_TEMP":              {timeline.MemTemperature, 1},
	"DCGM_FI_DEV_FB_USED":                  {timeline.MemUsed, 1 << 20},
	"DCGM_FI_DEV_GPU_UTIL":                 {timeline.GPUDuty, 0.01},
	"DCGM_FI_DEV_MEM_COPY_UTIL":            {timeline.MemDuty, 0.01},
	"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": {timeline.Energy, 1e-3},
}

// Values that DCGM shows for "no value" (dcgm_fields.h): blanks of floating-point and of 32-bit fields, and everything
// above them, which says why there is none. An exporter has shown them as values (guilbaults/slurm-job-exporter#30).
const (
	blankFloat = 140737488355328
	blankInt32 = 2147483632
)

// maxDCGMSeries is how many series of the exporter's page are read: eighteen fields of sixteen GPUs that a hundred pods
// share, each of which has a series.
const maxDCGMSeries = 1 << 15

// maxDCGMGPUs is the most GPUs that one page may tell of: four times what a server of this time holds.
const maxDCGMGPUs = 64

// fractionSlack is by how much rounding may lift a fraction over one.
const fractionSlack = 1e-6

// DCGMRefused counts values that were not taken.
type DCGMRefused struct {
	OutOfRange uint64 `json:"out_of_range,omitempty"` // fractions above one, negative values
	NotNumbers uint64 `json:"not_numbers,omitempty"`
	Blank      uint64 `json:"blank,omitempty"`     // DCGM's own sign for no value
	Frozen     uint64 `json:"frozen,omitempty"`    // did not change while others did, or zero while the GPU was busy
	Unnamed    uint64 `json:"unnamed,omitempty"`   // without the UUID of a GPU
	Instances  uint64 `json:"instances,omitempty"` // of a part of a GPU, scaled by the part's shape
}

func (r *DCGMRefused) add(o DCGMRefused) {
	r.OutOfRange += o.OutOfRange
	r.NotNumbers += o.NotNumbers
	r.Blank += o.Blank
	r.Frozen += o.Frozen
	r.Unnamed += o.Unnamed
	r.Instances += o.Instances
}

// DCGMRow is what one page tells of one GPU.
type DCGMRow struct {
	GPU   timeline.GPU
	has   timeline.CounterSet
	value [timeline.NumCounters]float64
}

// Get returns the value of c and whether the row has it.
func (r *DCGMRow) Get(c timeline.Counter) (float64, bool) { return r.value[c], r.has.Has(c) }

// print returns a hash of all values.
func (r *DCGMRow) print() uint64 {
	h := fnv.New64a()
	var b [9]byte
	for c := range timeline.Counter(timeline.NumCounters) {
		if v, ok := r.Get(c); ok {
			b[0] = byte(c)
			for i, bits := 0, math.Float64bits(v); i < 8; i++ {
				b[i+1] = byte(bits >> (8 * i))
			}
			_, _ = h.Write(b[:]) // a hash takes everything
		}
	}
	return h.Sum64()
}

var (
	errNoGPUs       = errors.New("no GPU in its metrics")
	errSeveralHosts = errors.New("metrics of several hosts")
)

// TranslateDCGM reads a page of dcgm-exporter: one row a GPU, in the order of the exporter's own numbers. Names of labels
// are compared without regard to case, because releases spell them differently.
func TranslateDCGM(page []byte) ([]DCGMRow, DCGMRefused, error) {
	var refused DCGMRefused
	kept, err := wanted(page, maxDCGMSeries, func(name []byte) bool { return dcgmFields[string(name)].factor != 0 })
	if err != nil {
		return nil, refused, err
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	fams, err := p.TextToMetricFamilies(bytes.NewReader(kept))
	if err != nil {
		return nil, refused, errUnreadable
	}
	b := dcgmPage{rows: map[string]*DCGMRow{}}
	for name, field := range dcgmFields {
		for _, m := range families(fams).metrics(name) {
			if row := b.row(m, &refused); row != nil {
				put(row, field.counter, field.factor, m, &refused)
			}
		}
	}
	switch {
	case len(b.host) > 1:
		return nil, refused, errSeveralHosts
	case len(b.rows) == 0:
		return nil, refused, errNoGPUs
	case len(b.rows) > maxDCGMGPUs:
		return nil, refused, errTooMany
	}
	return b.sorted(), refused, nil
}

// put takes the value of one series.
func put(row *DCGMRow, c timeline.Counter, factor float64, m *dto.Metric, refused *DCGMRefused) {
	v, ok := scalar(m)
	switch {
	case !ok:
		refused.NotNumbers++
	case v >= blankFloat || v >= blankInt32 && v < blankInt32+16:
		refused.Blank++
	case v < 0, c.Windowed() && v > 1+fractionSlack, (c == timeline.GPUDuty || c == timeline.MemDuty) && v > 100:
		refused.OutOfRange++
	case !row.has.Has(c): // time-sliced GPUs have a series for each pod, all with one value
		if c.Windowed() {
			v = min(1, v)
		}
		row.value[c], row.has = v*factor, row.has|timeline.Set(c)
	}
}

// dcgmPage gathers the rows of one page.
type dcgmPage struct {
	rows map[string]*DCGMRow
	host map[string]bool
}

// row returns the row that a series belongs to, nil if it belongs to none.
func (b *dcgmPage) row(m *dto.Metric, refused *DCGMRefused) *DCGMRow {
	var g timeline.GPU
	instance := false
	for _, l := range m.GetLabel() {
		v := clip(l.GetValue())
		switch strings.ToLower(l.GetName()) {
		case "uuid":
			g.UUID = v
		case "gpu":
			g.Index, _ = strconv.Atoi(v) // zero is as good as any for people
		case "modelname":
			g.Name = v
		case "pci_bus_id":
			g.PCIBusID = v
		case "dcgm_fi_driver_version":
			g.Driver = v
		case "gpu_i_id", "gpu_i_profile":
			instance = instance || v != ""
		case "hostname":
			if b.host == nil {
				b.host = map[string]bool{}
			}
			b.host[v] = true
		}
	}
	if !strings.HasPrefix(g.UUID, "GPU-") {
		refused.Unnamed++
		return nil
	}
	row := b.rows[g.UUID]
	if row == nil {
		row = &DCGMRow{GPU: g}
		b.rows[g.UUID] = row
	}
	if instance {
		refused.Instances++
		row.GPU.MIG = true
		return nil
	}
	return row
}

// sorted returns the rows in the order of the exporter's numbers.
func (b *dcgmPage) sorted() []DCGMRow {
	out := make([]DCGMRow, 0, len(b.rows))
	for _, r := range b.rows {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b DCGMRow) int {
		return cmp.Or(cmp.Compare(a.GPU.Index, b.GPU.Index), cmp.Compare(a.GPU.UUID, b.GPU.UUID))
	})
	return out
}

const (
	frozenAfter = 3   // collections with the same value to its last digit
	busyDuty    = 0.5 // from this part of the time with a kernel resident on, no activity at all is a contradiction (NVIDIA/DCGM#303)
)

// neverZero are the counters that cannot rest at zero while kernels run.
const neverZero timeline.CounterSet = 1<<timeline.GraphicsUtil | 1<<timeline.SMUtil | 1<<timeline.DRAMUtil

// trust follows whether the windowed counters of one GPU still live.
type trust struct {
	value [timeline.NumCounters]float64
	same  [timeline.NumCounters]int
}

// judge takes the frozen counters out of a new collection and returns how many that were. Counters that rest at zero or
// one do so for good reason, unless the GPU is said to be busy.
func (t *trust) judge(r *DCGMRow) uint64 {
	duty, known := r.Get(timeline.GPUDuty)
	dropped := uint64(0)
	for c := range timeline.Counter(timeline.NumCounters) {
		v, ok := r.Get(c)
		if !ok || !c.Windowed() {
			continue
		}
		resting := v == 1 || v == 0 && (!neverZero.Has(c) || !known || duty < busyDuty)
		if v != t.value[c] || resting {
			t.value[c], t.same[c] = v, 0
			continue
		}
		if t.same[c]++; t.same[c] >= frozenAfter-1 {
			r.has &^= timeline.Set(c)
			dropped++
		}
	}
	return dropped
}

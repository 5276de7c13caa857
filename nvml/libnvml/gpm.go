package libnvml

import (
	"errors"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// metrics lists what is asked of each window. All ids are below 98, the length of the array in the oldest header that
// has it: a longer array of a newer header is safe then.
var metrics = [...]struct {
	counter timeline.Counter
	id      driver.GpmMetricId
}{
	{timeline.GraphicsUtil, driver.GPM_METRIC_GRAPHICS_UTIL},
	{timeline.SMUtil, driver.GPM_METRIC_SM_UTIL},
	{timeline.SMOccupancy, driver.GPM_METRIC_SM_OCCUPANCY},
	{timeline.TensorUtil, driver.GPM_METRIC_ANY_TENSOR_UTIL},
	{timeline.HMMAUtil, driver.GPM_METRIC_HMMA_TENSOR_UTIL},
	{timeline.IMMAUtil, driver.GPM_METRIC_IMMA_TENSOR_UTIL},
	{timeline.DRAMUtil, driver.GPM_METRIC_DRAM_BW_UTIL},
}

// supportsGPM asks the driver whether the device has windows.
func (d *device) supportsGPM() bool {
	for _, symbol := range []string{
		"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMetricsGet",
	} {
		if !d.lib.has[symbol] {
			return false
		}
	}
	support, ret := d.handle.GpmQueryDeviceSupport()
	return ret == driver.SUCCESS && support.IsSupportedDevice != 0
}

// allocate makes the snapshot buffers, once: they are the driver's memory.
func (d *device) allocate() error {
	for i := range d.slots {
		s, ret := d.lib.lib.GpmSampleAlloc()
		if err := outcome("allocate snapshot", ret); err != nil {
			return errors.Join(err, d.free())
		}
		d.slots[i], d.taken[i] = s, true
	}
	d.metric.NumMetrics = uint32(len(metrics))
	for i, m := range metrics {
		d.metric.Metrics[i].MetricId = uint32(m.id)
	}
	return nil
}

// Take fills a snapshot buffer.
func (d *device) Take(slot int) error {
	if !d.taken[slot] {
		return d.lib.missing("windows of activity for this GPU")
	}
	return outcome("nvmlGpmSampleGet", d.slots[slot].Get(d.handle))
}

// Between asks for all metrics in one call: the binding copies 19 KB each time.
func (d *device) Between(older, newer int, r *nvml.Reading) {
	d.metric.Sample1, d.metric.Sample2 = d.slots[older], d.slots[newer]
	if err := outcome("nvmlGpmMetricsGet", d.lib.lib.GpmMetricsGet(&d.metric)); err != nil {
		r.FailAll(timeline.GPM, err)
		return
	}
	for i, m := range metrics {
		got := &d.metric.Metrics[i]
		put(r, m.counter, got.Value/100, outcome(m.counter.String(), driver.Return(got.NvmlReturn)))
	}
}

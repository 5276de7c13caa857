package libnvml

import (
	"errors"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// metricOf says which metric of a window holds a counter.
type metricOf struct {
	counter timeline.Counter
	id      driver.GpmMetricId
	branch  int // the driver's first that has it
}

// metrics lists what is asked of each window. The array in the request is as long as the header that this was built with
// says, and grew three times under one version (98 entries up to NVML 12.8, 210 in 12.9): so a driver before R575 is
// asked for no id above 97.
var metrics = [...]metricOf{
	{timeline.GraphicsUtil, driver.GPM_METRIC_GRAPHICS_UTIL, 0},
	{timeline.SMUtil, driver.GPM_METRIC_SM_UTIL, 0},
	{timeline.SMOccupancy, driver.GPM_METRIC_SM_OCCUPANCY, 0},
	{timeline.TensorUtil, driver.GPM_METRIC_ANY_TENSOR_UTIL, 0},
	{timeline.HMMAUtil, driver.GPM_METRIC_HMMA_TENSOR_UTIL, 0},
	{timeline.IMMAUtil, driver.GPM_METRIC_IMMA_TENSOR_UTIL, 0},
	{timeline.DRAMUtil, driver.GPM_METRIC_DRAM_BW_UTIL, 0},
	{timeline.IntegerUtil, driver.GPM_METRIC_INTEGER_UTIL, 0},
	{timeline.FP32Util, driver.GPM_METRIC_FP32_UTIL, 0},
	{timeline.FP16Util, driver.GPM_METRIC_FP16_UTIL, 0},
	{timeline.DRAMCacheHit, driver.GPM_METRIC_DRAM_CACHE_HIT, 575},
}

// mebi is the unit of a flow, which is told in MiB a second.
const mebi = 1 << 20

// flows are traffic a second, averaged over a window: for where there are no bytes that are counted.
var flows = []metricOf{
	{timeline.PCIeTx, driver.GPM_METRIC_PCIE_TX_PER_SEC, 0},
	{timeline.PCIeRx, driver.GPM_METRIC_PCIE_RX_PER_SEC, 0},
	{timeline.NVLinkTx, driver.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, 0},
	{timeline.NVLinkRx, driver.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, 0},
}

// metricsFor returns the metrics that a driver of that version may be asked for. Flows are always asked for: a driver before
// R555 has no fields of bytes over PCIe, an instance has none at all, and which of the fields of NVLink a device has differs
// (those from Blackwell on are others). They are a part of the same call.
func metricsFor(version string) []metricOf {
	var list []metricOf
	for _, m := range metrics {
		if branchOf(version) >= m.branch {
			list = append(list, m)
		}
	}
	return append(list, flows...)
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
	if d.parent != nil {
		return d.lib.has["nvmlGpmMigSampleGet"] && d.parent.info.GPM
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
	d.metrics = metricsFor(d.lib.version)
	d.metric.NumMetrics = uint32(len(d.metrics))
	for i, m := range d.metrics {
		d.metric.Metrics[i].MetricId = uint32(m.id)
	}
	return nil
}

// Take fills a snapshot buffer.
func (d *device) Take(slot int) error {
	if !d.taken[slot] {
		return d.lib.missing("windows of activity for this GPU")
	}
	if d.parent != nil {
		return outcome("nvmlGpmMigSampleGet", d.slots[slot].MigGet(d.parent.handle, d.instance))
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
	r.FailAll(timeline.GPM, d.lib.untold("metric"))
	for i, m := range d.metrics {
		got := &d.metric.Metrics[i]
		if ret := driver.Return(got.NvmlReturn); ret != driver.SUCCESS {
			r.Fail(m.counter, unknownToo(&returned{what: m.counter.String(), ret: ret}))
			continue
		}
		if !m.counter.Windowed() {
			r.Put(m.counter, got.Value*mebi)
			continue
		}
		r.Put(m.counter, got.Value/100)
	}
}

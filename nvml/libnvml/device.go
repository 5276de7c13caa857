package libnvml

import (
	"errors"
	"fmt"
	"strconv"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// device is one GPU of the driver, or one instance of a GPU.
type device struct {
	lib      *Library
	handle   driver.Device
	info     timeline.GPU
	parent   *device // nil: no instance
	instance int     // id of an instance within its device
	fields   batch
	health   batch
	peers    [driver.NVLINK_MAX_LINKS]string // bus id of the other end of each link
	mute     error                           // why the driver tells no errors of it

	slots   [nvml.Slots]driver.GpmSample
	taken   [nvml.Slots]bool // the buffer exists
	metrics []metricOf
	metric  driver.GpmMetricsGetType
}

// newDevice identifies the device behind a handle; parent is nil unless it is an instance.
func newDevice(l *Library, index int, handle driver.Device, parent *device) (*device, error) {
	d := &device{
		lib: l, handle: handle, parent: parent,
		fields: newBatch(fieldsFor(l.version)), health: newBatch(healthFields()),
	}
	name, ret := handle.GetName()
	if err := outcome("read name", ret); err != nil {
		return nil, err
	}
	uuid, ret := handle.GetUUID()
	if err := outcome("read uuid", ret); err != nil {
		return nil, err
	}
	d.info = timeline.GPU{UUID: uuid, Name: name, Index: index, Driver: l.version, Simulated: l.fake}
	if parent == nil {
		d.identify()
	} else if err := d.identifyInstance(); err != nil {
		return nil, err
	}
	if d.info.GPM = d.supportsGPM(); d.info.GPM {
		if err := d.allocate(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// identify fills in what else the driver tells of the device. What it does not tell stays zero.
func (d *device) identify() {
	g, h := &d.info, d.handle
	if d.lib.has["nvmlDeviceGetPciInfo_v3"] {
		if pci, ret := h.GetPciInfo(); ret == driver.SUCCESS {
			g.PCIBusID = text(pci.BusId[:])
		}
	}
	if d.lib.has["nvmlDeviceGetMigMode"] {
		current, _, ret := h.GetMigMode()
		g.MIG = ret == driver.SUCCESS && current == driver.DEVICE_MIG_ENABLE
	}
	if v, err := d.memory(); err == nil {
		g.MemoryBytes = v.total
	}
	if v, err := d.uint32Of("nvmlDeviceGetMemoryBusWidth", h.GetMemoryBusWidth); err == nil {
		g.BusWidthBits = int(v)
	}
	if v, err := d.clock("nvmlDeviceGetMaxClockInfo", driver.CLOCK_SM, h.GetMaxClockInfo); err == nil {
		g.MaxSMClockHz = v
	}
	if v, err := d.clock("nvmlDeviceGetMaxClockInfo", driver.CLOCK_MEM, h.GetMaxClockInfo); err == nil {
		g.MaxMemClockHz = v
	}
	if v, err := d.uint32Of("nvmlDeviceGetEnforcedPowerLimit", h.GetEnforcedPowerLimit); err == nil {
		g.PowerLimitW = float64(v) * 1e-3
	}
	if v, err := d.uint32Of("nvmlDeviceGetPowerManagementDefaultLimit", h.GetPowerManagementDefaultLimit); err == nil {
		g.DefaultLimitW = float64(v) * 1e-3
	}
	d.identifySMs()
}

func (d *device) identifySMs() {
	if !d.lib.has["nvmlDeviceGetCudaComputeCapability"] {
		return
	}
	major, minor, ret := d.handle.GetCudaComputeCapability()
	if ret != driver.SUCCESS {
		return
	}
	d.info.ComputeCapability = strconv.Itoa(major) + "." + strconv.Itoa(minor)
	if !d.lib.has["nvmlDeviceGetNumGpuCores"] {
		return
	}
	if cores, ret := d.handle.GetNumGpuCores(); ret == driver.SUCCESS {
		d.info.SMs = cores / nvml.CoresPerSM(major, minor)
	}
}

// text reads a C string.
func text(chars []int8) string {
	b := make([]byte, 0, len(chars))
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

// GPU returns what is fixed about the device.
func (d *device) GPU() timeline.GPU { return d.info }

// ofDevice are the calls that an instance does not answer: it has no clocks, power and links of its own, and duty cycles
// are not there while a device is cut into instances (NVML API, nvmlDeviceGetUtilizationRates).
const ofDevice = 1<<nvml.CallSMClock | 1<<nvml.CallMemClock | 1<<nvml.CallReasons | 1<<nvml.CallFields | 1<<nvml.CallHealth |
	1<<nvml.CallPowerLimit | 1<<nvml.CallTemperature | 1<<nvml.CallMargin | 1<<nvml.CallPCIeLink | 1<<nvml.CallUtilization

// Read makes one call of the driver.
func (d *device) Read(call nvml.Call, r *nvml.Reading) {
	if d.parent != nil && ofDevice&(1<<call) != 0 {
		r.FailAll(call.Counters(), fmt.Errorf("of the device, not of an instance: %w", nvml.ErrNotSupported))
		return
	}
	h := d.handle
	switch call {
	case nvml.CallSMClock:
		v, err := d.clock("nvmlDeviceGetClockInfo", driver.CLOCK_SM, h.GetClockInfo)
		put(r, timeline.SMClock, v, err)
	case nvml.CallMemClock:
		v, err := d.clock("nvmlDeviceGetClockInfo", driver.CLOCK_MEM, h.GetClockInfo)
		put(r, timeline.MemClock, v, err)
	case nvml.CallReasons:
		v, err := d.reasons()
		put(r, timeline.EventReasons, float64(v), err)
	case nvml.CallFields:
		d.readFields(r)
	case nvml.CallHealth:
		d.readBatch(&d.health, call, r)
	case nvml.CallPowerLimit:
		v, err := d.uint32Of("nvmlDeviceGetEnforcedPowerLimit", h.GetEnforcedPowerLimit)
		put(r, timeline.PowerLimit, float64(v)*1e-3, err)
	case nvml.CallMemory:
		v, err := d.memory()
		put(r, timeline.MemUsed, float64(v.used), err)
	case nvml.CallTemperature:
		v, err := d.temperature()
		put(r, timeline.Temperature, v, err)
	case nvml.CallMargin:
		v, err := d.margin()
		put(r, timeline.TemperatureMargin, v, err)
	case nvml.CallPCIeLink:
		v, err := d.intOf("nvmlDeviceGetCurrPcieLinkGeneration", h.GetCurrPcieLinkGeneration)
		put(r, timeline.PCIeGen, float64(v), err)
		v, err = d.intOf("nvmlDeviceGetCurrPcieLinkWidth", h.GetCurrPcieLinkWidth)
		put(r, timeline.PCIeWidth, float64(v), err)
	case nvml.CallUtilization:
		d.readUtilization(r)
	case nvml.CallProcesses, nvml.CallTopology, nvml.CallTake, nvml.CallBetween:
		r.FailAll(call.Counters(), nvml.ErrNotSupported)
	}
}

func put(r *nvml.Reading, c timeline.Counter, v float64, err error) {
	if err != nil {
		r.Fail(c, err)
		return
	}
	r.Put(c, v)
}

// untold is the error of a counter that this driver has nothing of a kind for, or said it tells not of this device.
func (l *Library) untold(kind string) error {
	return fmt.Errorf("driver %s tells it by no %s on this GPU: %w", l.version, kind, nvml.ErrNotSupported)
}

// missing is the error of a call that this driver does not have.
func (l *Library) missing(what string) error {
	return fmt.Errorf("driver %s has not %s: %w", l.version, what, nvml.ErrNotSupported)
}

func (d *device) uint32Of(symbol string, get func() (uint32, driver.Return)) (uint32, error) {
	if !d.lib.has[symbol] {
		return 0, d.lib.missing(symbol)
	}
	v, ret := get()
	return v, outcome(symbol, ret)
}

func (d *device) intOf(symbol string, get func() (int, driver.Return)) (int, error) {
	if !d.lib.has[symbol] {
		return 0, d.lib.missing(symbol)
	}
	v, ret := get()
	return v, outcome(symbol, ret)
}

func (d *device) uint64Of(symbol string, get func() (uint64, driver.Return)) (uint64, error) {
	if !d.lib.has[symbol] {
		return 0, d.lib.missing(symbol)
	}
	v, ret := get()
	return v, outcome(symbol, ret)
}

// clock returns a clock in Hz.
func (d *device) clock(symbol string, kind driver.ClockType, get func(driver.ClockType) (uint32, driver.Return)) (float64, error) {
	if !d.lib.has[symbol] {
		return 0, d.lib.missing(symbol)
	}
	mhz, ret := get(kind)
	return float64(mhz) * 1e6, outcome(symbol, ret)
}

// reasons returns why clocks are held, by the name the function has in this driver: it was renamed in NVML 12.2.
func (d *device) reasons() (uint64, error) {
	if d.lib.has["nvmlDeviceGetCurrentClocksEventReasons"] {
		return d.uint64Of("nvmlDeviceGetCurrentClocksEventReasons", d.handle.GetCurrentClocksEventReasons)
	}
	return d.uint64Of("nvmlDeviceGetCurrentClocksThrottleReasons", d.handle.GetCurrentClocksThrottleReasons)
}

type memory struct{ total, used uint64 }

// memory reads the second version where there is one: the first counts what the driver reserves as used.
func (d *device) memory() (memory, error) {
	if d.lib.has["nvmlDeviceGetMemoryInfo_v2"] {
		v, ret := d.handle.GetMemoryInfo_v2()
		if ret != driver.ERROR_ARGUMENT_VERSION_MISMATCH {
			return memory{v.Total, v.Used}, outcome("nvmlDeviceGetMemoryInfo_v2", ret)
		}
	}
	if !d.lib.has["nvmlDeviceGetMemoryInfo"] {
		return memory{}, d.lib.missing("nvmlDeviceGetMemoryInfo")
	}
	v, ret := d.handle.GetMemoryInfo()
	return memory{v.Total, v.Used}, outcome("nvmlDeviceGetMemoryInfo", ret)
}

// temperature reads the older function while there is one: it is in every driver of this time.
func (d *device) temperature() (float64, error) {
	if d.lib.has["nvmlDeviceGetTemperature"] {
		v, ret := d.handle.GetTemperature(driver.TEMPERATURE_GPU)
		return float64(v), outcome("nvmlDeviceGetTemperature", ret)
	}
	if !d.lib.has["nvmlDeviceGetTemperatureV"] {
		return 0, d.lib.missing("nvmlDeviceGetTemperatureV")
	}
	v, ret := d.handle.GetTemperatureV().V1()
	return float64(v.Temperature), outcome("nvmlDeviceGetTemperatureV", ret)
}

// margin returns the degrees that are left until clocks are cut.
func (d *device) margin() (float64, error) {
	const symbol = "nvmlDeviceGetMarginTemperature"
	if !d.lib.has[symbol] {
		return 0, d.lib.missing(symbol)
	}
	v, ret := d.handle.GetMarginTemperature()
	return float64(v.MarginTemperature), outcome(symbol, ret)
}

func (d *device) readUtilization(r *nvml.Reading) {
	const symbol = "nvmlDeviceGetUtilizationRates"
	if !d.lib.has[symbol] {
		r.FailAll(nvml.CallUtilization.Counters(), d.lib.missing(symbol))
		return
	}
	v, ret := d.handle.GetUtilizationRates()
	if err := outcome(symbol, ret); err != nil {
		r.FailAll(nvml.CallUtilization.Counters(), err)
		return
	}
	r.Put(timeline.GPUDuty, float64(v.Gpu)/100)
	r.Put(timeline.MemDuty, float64(v.Memory)/100)
}

// free gives the snapshot buffers back.
func (d *device) free() error {
	var errs []error
	for i, taken := range d.taken {
		if taken {
			errs = append(errs, outcome("free snapshot", d.slots[i].Free()))
			d.taken[i] = false
		}
	}
	return errors.Join(errs...)
}

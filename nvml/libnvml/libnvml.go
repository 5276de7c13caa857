// Package libnvml binds the driver's library, libnvidia-ml.so.1, through go-nvml. It is the only room with cgo. It
// knows which functions and field ids which driver has, and asks for none that is missing: the loader ends the process
// at the first call of a symbol that is not there, and nothing in Go can stop that. It knows nothing of time; the
// sampler brackets its calls.
//
// A binary that links this package must bind lazily (-ldflags "-linkmode external -extldflags -Wl,-z,lazy" where the
// toolchain defaults to -z now), and must not be started with LD_BIND_NOW: else it dies before main.
package libnvml

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tpotscope/tpotscope/nvml"
)

// libraryName is what the loader is asked for when no path is given.
const libraryName = "libnvidia-ml.so.1"

// required are the functions without which there is nothing to read; every library that deserves the name has them.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName", "nvmlDeviceGetUUID",
}

// optional are the functions that are asked for only where the library has them.
var optional = []string{
	"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMemoryBusWidth",
	"nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons",
	"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage",
	"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit",
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature",
	"nvmlDeviceGetTemperatureV", "nvmlDeviceGetMigMode", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc",
	"nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmMigSampleGet", "nvmlDeviceGetMarginTemperature",
	"nvmlDeviceGetViolationStatus", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth",
	"nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetApplicationsClock",
	"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetNvLinkState",
	"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetAttributes_v2", "nvmlEventSetCreate", "nvmlEventSetFree",
	"nvmlEventSetWait_v2", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents",
}

// simulated is a function that only this project's stand-in for the library has.
const simulated = "tpotscopeSimulatedDriver"

// Library is the driver's library, opened. A process holds at most one: once loaded, a second one would be ignored by
// the loader. Its methods are not safe for concurrent use; its devices are, each on a goroutine of its own.
type Library struct {
	lib     driver.Interface
	has     map[string]bool
	version string
	fake    bool // the simulated driver
	devices []*device
	events  events
}

var (
	_ nvml.Library = (*Library)(nil)
	_ nvml.Watcher = (*Library)(nil)
)

// Open loads the library at path, or the one that the loader finds if path is empty, and starts the driver's session.
func Open(path string) (*Library, error) {
	if path == "" {
		path = libraryName
	}
	if err := probe(path); err != nil {
		return nil, err
	}
	l := &Library{lib: driver.New(driver.WithLibraryPath(path)), has: make(map[string]bool, len(optional))}
	if err := outcome("open "+path, l.lib.Init()); err != nil {
		return nil, err
	}
	if err := l.lookUp(); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err) // its own shutdown may be what is missing
	}
	version, ret := l.lib.SystemGetDriverVersion()
	if err := outcome("read driver version", ret); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.version = version
	return l, nil
}

// probe loads the library once by itself, because the binding keeps the loader's own words to itself, and looks for the
// one function that the binding calls before anything can be looked up through it.
func probe(path string) error {
	lib := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := lib.Open(); err != nil {
		return fmt.Errorf("load %s: %w: %w", path, nvml.ErrNoLibrary, err)
	}
	if err := lib.Lookup("nvmlInit_v2"); err != nil {
		return fmt.Errorf("load %s: %w: %w", path, nvml.ErrNoLibrary, errors.Join(err, lib.Close()))
	}
	return lib.Close()
}

// lookUp finds out which functions the library has.
func (l *Library) lookUp() error {
	ext := l.lib.Extensions()
	for _, name := range required {
		if err := ext.LookupSymbol(name); err != nil {
			return fmt.Errorf("%w: %w", nvml.ErrNoLibrary, err)
		}
	}
	for _, name := range optional {
		l.has[name] = ext.LookupSymbol(name) == nil
	}
	l.fake = ext.LookupSymbol(simulated) == nil
	return nil
}

// Driver returns the driver's version.
func (l *Library) Driver() string { return l.version }

// The branches whose functions and fields were compared: R525 (NVML 12.0) to R610 (13.3).
const (
	oldestBranch = 525
	newestBranch = 610
)

// Note says what is made of a driver whose version is not one of those that are known, and nothing of one that is.
func (l *Library) Note() string {
	switch b := branchOf(l.version); {
	case b == 0:
		return fmt.Sprintf("the driver's version %q names no branch: it is read as the oldest one, by the fields that all have", l.version)
	case b < oldestBranch:
		return fmt.Sprintf("the driver's branch R%d is older than R%d, the oldest that is known: what it lacks is left out", b, oldestBranch)
	case b > newestBranch:
		return fmt.Sprintf("the driver's branch R%d is newer than R%d, the newest that is known: it is read as that one", b, newestBranch)
	}
	return ""
}

// Missing returns the functions that this driver does not have, in a fixed order.
func (l *Library) Missing() []string {
	missing := []string{}
	for _, name := range optional {
		if !l.has[name] {
			missing = append(missing, name)
		}
	}
	return missing
}

// Devices lists the GPUs that can be opened, each followed by the instances it is cut into. One that is lost must not
// hide the others.
func (l *Library) Devices() ([]nvml.Device, error) {
	count, ret := l.lib.DeviceGetCount()
	if err := outcome("count gpus", ret); err != nil {
		return nil, err
	}
	var errs []error
	for i := range count {
		d, err := l.device(i)
		if err != nil {
			errs = append(errs, fmt.Errorf("open gpu %d: %w", i, err))
			continue
		}
		l.devices = append(l.devices, d)
		instances, err := l.instances(d)
		if err != nil {
			errs = append(errs, fmt.Errorf("open instances of gpu %d: %w", i, err))
		}
		l.devices = append(l.devices, instances...)
	}
	devices := make([]nvml.Device, len(l.devices))
	for i, d := range l.devices {
		devices[i] = d
	}
	l.listen(count)
	return devices, errors.Join(errs...)
}

func (l *Library) device(index int) (*device, error) {
	handle, ret := l.lib.DeviceGetHandleByIndex(index)
	if err := outcome("get handle", ret); err != nil {
		return nil, err
	}
	return newDevice(l, index, handle, nil)
}

// Close frees the snapshot buffers and the set of events, and ends the session.
func (l *Library) Close() error {
	errs := make([]error, 0, len(l.devices)+2)
	for _, d := range l.devices {
		errs = append(errs, d.free())
	}
	l.devices = nil
	errs = append(errs, l.deafen())
	return errors.Join(append(errs, outcome("shut down", l.lib.Shutdown()))...)
}

// outcome turns the binding's return code into an error of this project.
func outcome(what string, ret driver.Return) error {
	if ret == driver.SUCCESS {
		return nil
	}
	return &returned{what: what, ret: ret}
}

// returned is a code of the driver that says that a call did not succeed.
type returned struct {
	what string
	ret  driver.Return
}

// Error says what was done and what the driver answered.
func (r *returned) Error() string {
	return r.what + ": code " + strconv.Itoa(int(r.ret)) + ": " + r.Unwrap().Error()
}

// Unwrap returns the kind of the failure.
func (r *returned) Unwrap() error {
	//nolint:exhaustive // every other code is an error of the driver without a meaning of its own here
	switch r.ret {
	case driver.ERROR_NOT_SUPPORTED, driver.ERROR_FUNCTION_NOT_FOUND, driver.ERROR_ARGUMENT_VERSION_MISMATCH:
		return nvml.ErrNotSupported
	case driver.ERROR_NO_PERMISSION:
		return nvml.ErrNoPermission
	case driver.ERROR_GPU_IS_LOST, driver.ERROR_RESET_REQUIRED, driver.ERROR_GPU_NOT_FOUND:
		return nvml.ErrGPULost
	case driver.ERROR_TIMEOUT:
		return nvml.ErrTimeout
	case driver.ERROR_LIBRARY_NOT_FOUND:
		return nvml.ErrNoLibrary
	case driver.ERROR_DRIVER_NOT_LOADED:
		return nvml.ErrNoDriver
	case driver.ERROR_LIB_RM_VERSION_MISMATCH:
		return nvml.ErrVersionMismatch
	}
	return nvml.ErrDriver
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

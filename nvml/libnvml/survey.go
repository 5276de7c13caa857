package libnvml

import (
	"errors"
	"fmt"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// Survey makes one of the calls whose answer is no counter.
func (d *device) Survey(call nvml.Call, v *timeline.Inventory) error {
	if call == nvml.CallProcesses {
		return d.processes(v)
	}
	if d.parent != nil {
		return fmt.Errorf("an instance has the links of its device: %w", nvml.ErrNotSupported)
	}
	return d.topology(v)
}

// brokenProcesses are the drivers whose process list has another shape under the same name and version
// (XuehaiPan/nvitop#89: 535.43.02 moved the fields of the third version, and 535.98 took it back).
func brokenProcesses(version string) bool {
	var branch, minor int
	n, err := fmt.Sscanf(version, "%d.%d", &branch, &minor)
	return err == nil && n == 2 && branch == 535 && minor >= 43 && minor < 98
}

// maxPID is more than any kernel gives out (proc(5): pid_max is at most 2^22).
const maxPID = 1 << 22

// processes lists who computes on the device. Ids that no kernel gives out mean that the list has another shape than
// its header says (NVIDIA/go-nvml#21): it is not believed then.
func (d *device) processes(v *timeline.Inventory) error {
	const symbol = "nvmlDeviceGetComputeRunningProcesses"
	v.Processes, v.ProcessesKnown = nil, false
	if !d.lib.has[symbol] {
		return d.lib.missing(symbol)
	}
	if brokenProcesses(d.lib.version) {
		return fmt.Errorf("driver %s lists processes in a shape of its own: %w", d.lib.version, nvml.ErrNotSupported)
	}
	list, ret := d.handle.GetComputeRunningProcesses()
	if err := outcome(symbol, ret); err != nil {
		return err
	}
	for _, p := range list {
		if p.Pid == 0 || p.Pid > maxPID {
			v.Processes = nil
			return fmt.Errorf("%s: a process with id %d: %w", symbol, p.Pid, nvml.ErrDriver)
		}
		proc := timeline.GPUProcess{PID: int(p.Pid), MemoryBytes: p.UsedGpuMemory}
		if p.UsedGpuMemory > d.info.MemoryBytes && d.info.MemoryBytes > 0 {
			proc.MemoryBytes = 0 // the driver says "not available" with all bits set
		}
		v.Processes = append(v.Processes, proc)
	}
	v.ProcessesKnown = true
	return nil
}

// topology reads what is around the device. What the driver does not tell stays out; only a device that is lost, or a
// driver that tells nothing of all this, is an error.
func (d *device) topology(v *timeline.Inventory) error {
	v.NUMANode = timeline.NoNUMANode
	var errs []error
	number := func(symbol string, get func() (int, driver.Return)) int {
		if !d.lib.has[symbol] {
			errs = append(errs, d.lib.missing(symbol))
			return 0
		}
		n, ret := get()
		if err := outcome(symbol, ret); err != nil {
			errs = append(errs, err)
			return 0
		}
		return n
	}
	failed := func() bool { return len(errs) > 0 && !errors.Is(errs[len(errs)-1], nvml.ErrNotSupported) }
	known := len(errs)
	if node := number("nvmlDeviceGetNumaNodeId", d.handle.GetNumaNodeId); len(errs) == known {
		v.NUMANode = node
	}
	if failed() {
		return errs[len(errs)-1]
	}
	v.PCIeMaxGen = number("nvmlDeviceGetMaxPcieLinkGeneration", d.handle.GetMaxPcieLinkGeneration)
	v.PCIeMaxWidth = number("nvmlDeviceGetMaxPcieLinkWidth", d.handle.GetMaxPcieLinkWidth)
	v.PCIeWidth = number("nvmlDeviceGetCurrPcieLinkWidth", d.handle.GetCurrPcieLinkWidth)
	if hz, err := d.clock("nvmlDeviceGetApplicationsClock", driver.CLOCK_SM, d.handle.GetApplicationsClock); err == nil {
		v.AppSMClockHz = hz
	}
	if hz, err := d.clock("nvmlDeviceGetApplicationsClock", driver.CLOCK_MEM, d.handle.GetApplicationsClock); err == nil {
		v.AppMemClockHz = hz
	}
	return d.links(v)
}

// links reads the state of every NVLink, and where its other end is. That does not change while the driver is open, so
// it is asked once a link.
func (d *device) links(v *timeline.Inventory) error {
	v.NVLinks = v.NVLinks[:0]
	if !d.lib.has["nvmlDeviceGetNvLinkState"] {
		return nil
	}
	for link := range driver.NVLINK_MAX_LINKS {
		state, ret := d.handle.GetNvLinkState(link)
		if ret != driver.SUCCESS {
			if err := outcome("read nvlink", ret); errors.Is(err, nvml.ErrGPULost) {
				return err
			}
			return nil // a device without links, or past its last one
		}
		l := timeline.NVLink{Link: link, Up: state == driver.FEATURE_ENABLED}
		if l.Up && d.lib.has["nvmlDeviceGetNvLinkRemotePciInfo_v2"] {
			if d.peers[link] == "" {
				if pci, ret := d.handle.GetNvLinkRemotePciInfo(link); ret == driver.SUCCESS {
					d.peers[link] = text(pci.BusId[:])
				}
			}
			l.PeerBusID = d.peers[link]
		}
		v.NVLinks = append(v.NVLinks, l)
	}
	return nil
}

package libnvml

import (
	"fmt"
	"time"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// migConfigChange is the event of a device that was cut into other instances (nvmlEventMigConfigChange).
const migConfigChange = 0x100

// wanted are the events that say something of counters or of the device's health. The event of a clock that changed is
// of Kepler alone (NVML API, nvmlEventTypeClock).
const wanted = driver.EventTypeXidCriticalError | driver.EventTypeDoubleBitEccError | driver.EventTypeSingleBitEccErrorStorm |
	driver.EventTypeDramRetirementEvent | driver.EventTypeDramRetirementFailure | driver.EventTypeNonFatalPoisonError |
	driver.EventTypeFatalPoisonError | driver.EventTypeGpuUnavailableError | driver.EventTypeGpuRecoveryAction | migConfigChange

// faultNames says in words what the driver told.
var faultNames = map[uint64]string{
	driver.EventTypeDoubleBitEccError: "uncorrectable memory error", driver.EventTypeSingleBitEccErrorStorm: "storm of corrected memory errors",
	driver.EventTypeDramRetirementEvent: "memory row retired", driver.EventTypeDramRetirementFailure: "memory row could not be retired",
	driver.EventTypeNonFatalPoisonError: "poisoned data, contained", driver.EventTypeFatalPoisonError: "poisoned data, not contained",
	driver.EventTypeGpuUnavailableError: "gpu is unavailable", driver.EventTypeGpuRecoveryAction: "gpu asks for a recovery action",
}

// events is the set of events that the driver was asked to tell.
type events struct {
	set   driver.EventSet // nil: none could be made, or none is told
	count int             // devices when it was made
	why   error           // it could not be made
}

// listen registers for the events of all devices. What happened before is lost to it (NVML API, nvmlDeviceRegisterEvents).
func (l *Library) listen(count int) {
	l.events.count = count
	for _, symbol := range []string{
		"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents",
	} {
		if !l.has[symbol] {
			l.events.why = l.missing(symbol)
			return
		}
	}
	if l.events.set != nil {
		return
	}
	set, ret := l.lib.EventSetCreate()
	if l.events.why = outcome("make set of events", ret); l.events.why != nil {
		return
	}
	l.events.set = set
	for _, d := range l.devices {
		d.mute = d.register(set) // the others may still tell
	}
}

// register asks the driver to tell the device's events, and returns why it will not tell its errors.
func (d *device) register(set driver.EventSet) error {
	if d.parent != nil {
		return fmt.Errorf("events are of the device, not of an instance: %w", nvml.ErrNotSupported)
	}
	types, ret := d.handle.GetSupportedEventTypes()
	if err := outcome("read types of events", ret); err != nil {
		return err
	}
	if types &= wanted; types != 0 {
		if err := outcome("register events", d.handle.RegisterEvents(types, set)); err != nil {
			return err
		}
	}
	if types&driver.EventTypeXidCriticalError == 0 {
		return fmt.Errorf("the device tells no errors: %w", nvml.ErrNotSupported)
	}
	return nil
}

// deafen frees the set of events.
func (l *Library) deafen() error {
	if l.events.set == nil {
		return nil
	}
	set := l.events.set
	l.events.set = nil
	return outcome("free set of events", set.Free())
}

// Await waits for the next event of the driver.
func (l *Library) Await(d time.Duration) (nvml.Happening, bool, error) {
	none := nvml.Happening{Device: timeline.NoGPU}
	if l.events.set == nil {
		return none, false, l.events.why
	}
	e, ret := l.events.set.Wait(uint32(d.Milliseconds()))
	if ret == driver.ERROR_TIMEOUT {
		return none, false, nil
	}
	if err := outcome("wait for events", ret); err != nil {
		return none, false, err
	}
	return l.happening(e), true, nil
}

// Tells returns why the driver tells no errors of a device.
func (l *Library) Tells(device int) error { return l.devices[device].mute }

func (l *Library) happening(e driver.EventData) nvml.Happening {
	h := nvml.Happening{Device: timeline.NoGPU, Kind: timeline.EventGPUFault, Detail: faultNames[e.EventType]}
	if e.Device != nil {
		if uuid, ret := e.Device.GetUUID(); ret == driver.SUCCESS {
			for i, d := range l.devices {
				if d.info.UUID == uuid {
					h.Device = i
				}
			}
		}
	}
	switch e.EventType {
	case driver.EventTypeXidCriticalError:
		h.Kind, h.Xid, h.Detail = timeline.EventXid, e.EventData, fmt.Sprintf("Xid %d", e.EventData)
	case migConfigChange:
		h.Kind, h.Detail = timeline.EventMIGChange, "cut into other instances"
	}
	if h.Detail == "" {
		h.Detail = fmt.Sprintf("event of type %#x", e.EventType)
	}
	return h
}

// Changed reports whether there are other devices or instances than were listed.
func (l *Library) Changed() (string, bool) {
	count, ret := l.lib.DeviceGetCount()
	if ret == driver.SUCCESS && count != l.events.count {
		return fmt.Sprintf("the driver lists %d gpus, and listed %d", count, l.events.count), true
	}
	for i, d := range l.devices {
		if d.parent != nil || !d.lib.has["nvmlDeviceGetMigMode"] {
			continue
		}
		listed := 0
		for _, m := range l.devices[i+1:] {
			if m.parent == d {
				listed++
			}
		}
		if n, ok := l.present(d); ok && n != listed {
			return fmt.Sprintf("%s has %d instances, and had %d", d.info.UUID, n, listed), true
		}
	}
	return "", false
}

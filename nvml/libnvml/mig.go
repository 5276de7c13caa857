package libnvml

import (
	"errors"
	"fmt"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// cut reports whether the device is cut into instances, and into how many at most.
func (l *Library) cut(d *device) (int, bool) {
	if !l.has["nvmlDeviceGetMigMode"] || !l.has["nvmlDeviceGetMaxMigDeviceCount"] || !l.has["nvmlDeviceGetMigDeviceHandleByIndex"] {
		return 0, false
	}
	current, _, ret := d.handle.GetMigMode()
	if ret != driver.SUCCESS || current != driver.DEVICE_MIG_ENABLE {
		return 0, false
	}
	most, ret := d.handle.GetMaxMigDeviceCount()
	return most, ret == driver.SUCCESS
}

// present counts the instances of a device. The answer is good only if the driver gave one.
func (l *Library) present(d *device) (int, bool) {
	most, ok := l.cut(d)
	if !ok {
		return 0, d.info.MIG // one that is not cut any more has none
	}
	n := 0
	for i := range most {
		if _, ret := d.handle.GetMigDeviceHandleByIndex(i); ret == driver.SUCCESS {
			n++
		}
	}
	return n, true
}

// instances opens the instances of a device. Places without one are no error.
func (l *Library) instances(parent *device) ([]*device, error) {
	most, ok := l.cut(parent)
	if !ok || !l.has["nvmlDeviceGetGpuInstanceId"] {
		return nil, nil
	}
	var found []*device
	var errs []error
	for i := range most {
		handle, ret := parent.handle.GetMigDeviceHandleByIndex(i)
		if ret == driver.ERROR_NOT_FOUND || ret == driver.ERROR_INVALID_ARGUMENT {
			continue
		}
		err := outcome("get handle", ret)
		if err == nil {
			var d *device
			if d, err = newDevice(l, parent.info.Index, handle, parent); err == nil {
				found = append(found, d)
				continue
			}
		}
		errs = append(errs, fmt.Errorf("instance %d: %w", i, err))
	}
	return found, errors.Join(errs...)
}

// identifyInstance fills in what an instance has of its own, and of its device what the driver tells of that alone.
func (d *device) identifyInstance() error {
	id, ret := d.handle.GetGpuInstanceId()
	if err := outcome("read instance id", ret); err != nil {
		return err
	}
	p := &d.parent.info
	d.instance = id
	d.info.MIG, d.info.ParentUUID, d.info.PCIBusID, d.info.ComputeCapability = true, p.UUID, p.PCIBusID, p.ComputeCapability
	d.info.MaxSMClockHz, d.info.MaxMemClockHz = p.MaxSMClockHz, p.MaxMemClockHz
	d.info.PowerLimitW, d.info.DefaultLimitW = p.PowerLimitW, p.DefaultLimitW // of the whole device
	if d.lib.has["nvmlDeviceGetAttributes_v2"] {
		if a, ret := d.handle.GetAttributes(); ret == driver.SUCCESS {
			d.info.SMs = int(a.MultiprocessorCount)
			d.info.MemoryBytes = a.MemorySizeMB << 20
		}
	}
	if m, err := d.memory(); err == nil && d.info.MemoryBytes == 0 {
		d.info.MemoryBytes = m.total
	}
	d.scale()
	return nil
}

// memorySlices is what the memory of a device is cut into at the finest, and with it its bandwidth (NVIDIA MIG User
// Guide, partitioning: eight memory slices; a slice has an eighth of capacity and bandwidth).
const memorySlices = 8

// scale gives the instance its part of the device's bus, by its part of the memory: whether the driver's own answer is
// of the instance or the device is not documented.
func (d *device) scale() {
	p := &d.parent.info
	if p.MemoryBytes == 0 || d.info.MemoryBytes == 0 {
		return
	}
	share := float64(d.info.MemoryBytes) / float64(p.MemoryBytes)
	slices := min(max(int(share*memorySlices+0.5), 1), memorySlices)
	d.info.PeakShare = float64(slices) / memorySlices
	d.info.BusWidthBits = p.BusWidthBits * slices / memorySlices
}

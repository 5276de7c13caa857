package libnvml

import (
	"encoding/binary"
	"fmt"
	"math"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

// fieldOf says which field of the driver holds a counter.
type fieldOf struct {
	counter timeline.Counter
	id      uint32
	scale   float64 // from the field's unit to the counter's
}

// The ids of the thermal and brake throttle times moved: 251 to 253 in the headers of NVML 12.9 and 13.0, 269 to 271
// since 13.1, where 251 to 253 are something else. A request for 251 to 253 was traced on 580.65.06
// (NVIDIA/k8s-test-infra#691). Branches: 12.9 is R575, 13.0 is R580, 13.1 is R590.
const (
	throttleBranch      = 575
	throttleMovedBranch = 590
	throttleID          = 251
	throttleMovedID     = 269
)

// fieldsFor returns the fields that a driver of that version has.
func fieldsFor(version string) []fieldOf {
	fields := []fieldOf{
		{timeline.Power, driver.FI_DEV_POWER_INSTANT, 1e-3},
		{timeline.Energy, driver.FI_DEV_TOTAL_ENERGY_CONSUMPTION, 1e-3},
		{timeline.ThrottlePower, driver.FI_DEV_PERF_POLICY_POWER, 1e-9},
		{timeline.ThrottleSyncBoost, driver.FI_DEV_PERF_POLICY_SYNC_BOOST, 1e-9},
	}
	first := uint32(throttleID)
	switch branch := branchOf(version); {
	case branch < throttleBranch:
		return fields
	case branch >= throttleMovedBranch:
		first = throttleMovedID
	}
	return append(fields,
		fieldOf{timeline.ThrottleSWThermal, first, 1e-9},
		fieldOf{timeline.ThrottleHWThermal, first + 1, 1e-9},
		fieldOf{timeline.ThrottlePowerBrake, first + 2, 1e-9})
}

// readFields reads all fields in one call, and power and energy by their own functions where the fields are missing.
func (d *device) readFields(r *nvml.Reading) {
	asked := nvml.CallFields.Counters()
	r.FailAll(asked, d.lib.missing("a field for it"))
	if !d.lib.has["nvmlDeviceGetFieldValues"] {
		r.FailAll(asked, d.lib.missing("nvmlDeviceGetFieldValues"))
	} else if err := outcome("read fields", d.handle.GetFieldValues(d.values)); err != nil {
		r.FailAll(asked, err)
	} else {
		for i, f := range d.lib.fields {
			d.putField(r, f, &d.values[i])
		}
	}
	if !r.Has.Has(timeline.Power) && nvml.StateOf(r.Err[timeline.Power]) == timeline.StateUnsupported {
		mw, err := d.uint32Of("nvmlDeviceGetPowerUsage", d.handle.GetPowerUsage)
		put(r, timeline.Power, float64(mw)*1e-3, err)
	}
	if !r.Has.Has(timeline.Energy) && nvml.StateOf(r.Err[timeline.Energy]) == timeline.StateUnsupported {
		mj, err := d.uint64Of("nvmlDeviceGetTotalEnergyConsumption", d.handle.GetTotalEnergyConsumption)
		put(r, timeline.Energy, float64(mj)*1e-3, err)
	}
}

func (d *device) putField(r *nvml.Reading, f fieldOf, v *driver.FieldValue) {
	if ret := driver.Return(v.NvmlReturn); ret != driver.SUCCESS {
		r.Fail(f.counter, fmt.Errorf("field %d: %w", f.id, &returned{what: "read", ret: ret}))
		return
	}
	number, ok := fieldNumber(v)
	if !ok {
		r.Fail(f.counter, fmt.Errorf("field %d: value of type %d: %w", f.id, v.ValueType, nvml.ErrNotSupported))
		return
	}
	r.Put(f.counter, number*f.scale)
}

// fieldNumber reads the union of a field's value by its type.
func fieldNumber(v *driver.FieldValue) (float64, bool) {
	bits := binary.NativeEndian.Uint64(v.Value[:])
	low := binary.NativeEndian.Uint32(v.Value[:4])
	switch driver.ValueType(v.ValueType) {
	case driver.VALUE_TYPE_DOUBLE:
		return math.Float64frombits(bits), true
	case driver.VALUE_TYPE_UNSIGNED_INT:
		return float64(low), true
	case driver.VALUE_TYPE_UNSIGNED_LONG, driver.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(bits), true
	case driver.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), true
	case driver.VALUE_TYPE_SIGNED_INT:
		return float64(int32(low)), true
	case driver.VALUE_TYPE_UNSIGNED_SHORT, driver.VALUE_TYPE_COUNT:
	}
	return 0, false
}

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
	scope   uint32
}

// allLinks is the scope that asks for the sum over all NVLinks (NVML API, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX).
const allLinks = math.MaxUint32

// The ids of the thermal and brake throttle times moved: 251 to 253 in the headers of NVML 12.9 and 13.0, 269 to 271
// since 13.1, where 251 to 253 are something else. A request for 251 to 253 was traced on 580.65.06
// (NVIDIA/k8s-test-infra#691). Branches: 12.9 is R575, 13.0 is R580, 13.1 is R590.
const (
	throttleBranch      = 575
	throttleMovedBranch = 590
	throttleID          = 251
	throttleMovedID     = 269
)

// Branches from which on a field is there: power at one moment came with NVML 12.2 (R535), bytes over PCIe with 12.5 (R555).
const (
	instantBranch = 535
	pcieBranch    = 555
)

// fieldsFor returns the fields that a driver of that version has. A version that tells no branch has the oldest ones.
func fieldsFor(version string) []fieldOf {
	branch := branchOf(version)
	fields := []fieldOf{
		{timeline.Energy, driver.FI_DEV_TOTAL_ENERGY_CONSUMPTION, 1e-3, 0},
		{timeline.ThrottlePower, driver.FI_DEV_PERF_POLICY_POWER, 1e-9, 0},
		{timeline.ThrottleSyncBoost, driver.FI_DEV_PERF_POLICY_SYNC_BOOST, 1e-9, 0},
		{timeline.NVLinkTx, driver.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 1024, allLinks},
		{timeline.NVLinkRx, driver.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 1024, allLinks},
	}
	if branch >= instantBranch {
		fields = append(fields, fieldOf{timeline.Power, driver.FI_DEV_POWER_INSTANT, 1e-3, 0})
	}
	if branch >= pcieBranch {
		fields = append(fields,
			fieldOf{timeline.PCIeTx, driver.FI_DEV_PCIE_COUNT_TX_BYTES, 1, 0},
			fieldOf{timeline.PCIeRx, driver.FI_DEV_PCIE_COUNT_RX_BYTES, 1, 0})
	}
	first := uint32(throttleID)
	switch {
	case branch < throttleBranch:
		return fields
	case branch >= throttleMovedBranch:
		first = throttleMovedID
	}
	return append(fields,
		fieldOf{timeline.ThrottleSWThermal, first, 1e-9, 0},
		fieldOf{timeline.ThrottleHWThermal, first + 1, 1e-9, 0},
		fieldOf{timeline.ThrottlePowerBrake, first + 2, 1e-9, 0})
}

// healthFields returns the fields that say how well the device is. They are older than every driver of this time.
func healthFields() []fieldOf {
	return []fieldOf{
		{timeline.ECCCorrected, driver.FI_DEV_ECC_SBE_VOL_TOTAL, 1, 0},
		{timeline.ECCUncorrected, driver.FI_DEV_ECC_DBE_VOL_TOTAL, 1, 0},
		{timeline.ECCCorrectedEver, driver.FI_DEV_ECC_SBE_AGG_TOTAL, 1, 0},
		{timeline.ECCUncorrectedEver, driver.FI_DEV_ECC_DBE_AGG_TOTAL, 1, 0},
		{timeline.MemTemperature, driver.FI_DEV_MEMORY_TEMP, 1, 0},
		{timeline.PCIeReplays, driver.FI_DEV_PCIE_REPLAY_COUNTER, 1, 0},
		{timeline.RemappedCorrectable, driver.FI_DEV_REMAPPED_COR, 1, 0},
		{timeline.RemappedUncorrectable, driver.FI_DEV_REMAPPED_UNC, 1, 0},
		{timeline.RowRemapPending, driver.FI_DEV_REMAPPED_PENDING, 1, 0},
		{timeline.RowRemapFailure, driver.FI_DEV_REMAPPED_FAILURE, 1, 0},
	}
}

// batch is a list of fields that are asked for in one call.
type batch struct {
	fields []fieldOf
	values []driver.FieldValue // reused: one entry a field, ids and scopes set
}

func newBatch(fields []fieldOf) batch {
	b := batch{fields: fields, values: make([]driver.FieldValue, len(fields))}
	b.name()
	return b
}

// name writes the ids and scopes anew.
func (b *batch) name() {
	for i, f := range b.fields {
		b.values[i].FieldId, b.values[i].ScopeId = f.id, f.scope
	}
}

// readBatch reads all fields of a batch in one call. A field that the device does not have is not asked for again.
func (d *device) readBatch(b *batch, call nvml.Call, r *nvml.Reading) {
	asked := call.Counters()
	r.FailAll(asked, d.lib.untold("field"))
	if !d.lib.has["nvmlDeviceGetFieldValues"] {
		r.FailAll(asked, d.lib.missing("nvmlDeviceGetFieldValues"))
		return
	}
	if len(b.fields) == 0 {
		return
	}
	if err := outcome("read fields", d.handle.GetFieldValues(b.values)); err != nil {
		r.FailAll(asked, err)
		return
	}
	kept := 0
	for i, f := range b.fields {
		d.putField(r, f, &b.values[i])
		if nvml.StateOf(r.Err[f.counter]) != timeline.StateUnsupported {
			b.fields[kept] = f
			kept++
		}
	}
	if kept < len(b.fields) {
		b.fields, b.values = b.fields[:kept], b.values[:kept]
		b.name()
	}
}

// readFields reads all fields in one call, and by functions of their own what the fields do not tell.
func (d *device) readFields(r *nvml.Reading) {
	d.readBatch(&d.fields, nvml.CallFields, r)
	unsupported := func(c timeline.Counter) bool {
		return !r.Has.Has(c) && nvml.StateOf(r.Err[c]) == timeline.StateUnsupported
	}
	if unsupported(timeline.Power) {
		mw, err := d.uint32Of("nvmlDeviceGetPowerUsage", d.handle.GetPowerUsage)
		put(r, timeline.Power, float64(mw)*1e-3, err)
		r.Note[timeline.Power] = "nvmlDeviceGetPowerUsage, which may be an average over a second"
	}
	if unsupported(timeline.Energy) {
		mj, err := d.uint64Of("nvmlDeviceGetTotalEnergyConsumption", d.handle.GetTotalEnergyConsumption)
		put(r, timeline.Energy, float64(mj)*1e-3, err)
	}
	for _, p := range policies {
		if unsupported(p.counter) {
			s, err := d.violation(p.policy)
			put(r, p.counter, s, err)
			r.Note[p.counter] = "nvmlDeviceGetViolationStatus"
		}
	}
}

// policies are the throttle times that have a policy of their own.
var policies = [...]struct {
	counter timeline.Counter
	policy  driver.PerfPolicyType
}{{timeline.ThrottlePower, driver.PERF_POLICY_POWER}, {timeline.ThrottleSyncBoost, driver.PERF_POLICY_SYNC_BOOST}}

// violation returns the seconds for which a policy held clocks. The function is deprecated, and there in all drivers of
// this time. Its thermal time is of software and hardware together, which are two counters here.
func (d *device) violation(policy driver.PerfPolicyType) (float64, error) {
	const symbol = "nvmlDeviceGetViolationStatus"
	if !d.lib.has[symbol] {
		return 0, d.lib.missing(symbol)
	}
	v, ret := d.handle.GetViolationStatus(policy)
	return float64(v.ViolationTime) * 1e-9, outcome(symbol, ret)
}

func (d *device) putField(r *nvml.Reading, f fieldOf, v *driver.FieldValue) {
	if ret := driver.Return(v.NvmlReturn); ret != driver.SUCCESS {
		r.Fail(f.counter, fmt.Errorf("field %d: %w", f.id, unknownToo(&returned{what: "read", ret: ret})))
		return
	}
	number, ok := fieldNumber(v)
	if !ok {
		r.Fail(f.counter, fmt.Errorf("field %d: value of type %d: %w", f.id, v.ValueType, nvml.ErrNotSupported))
		return
	}
	r.Put(f.counter, number*f.scale)
}

// unknownToo adds to an error that one of many questions was invalid what that means: the driver does not know it.
func unknownToo(r *returned) error {
	if r.ret == driver.ERROR_INVALID_ARGUMENT || r.ret == driver.ERROR_NOT_FOUND {
		return fmt.Errorf("%s: code %d: unknown to this driver: %w", r.what, int(r.ret), nvml.ErrNotSupported)
	}
	return r
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

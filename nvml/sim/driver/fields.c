/* Fields and violation times. Which fields there are, and by which ids, follows from the driver that the page tells. */
#include "driver.h"

typedef struct {
	unsigned id, scope;
	long long timestamp_us, latency_us;
	int type, code;
	union {
		unsigned ui;
		unsigned long long ull;
	} value;
} field_value;

enum { TYPE_UINT = 1, TYPE_ULONGLONG = 3 };

#define ALL_LINKS (~0u)

/* Ids of what only counts, in the order in which the page holds it. The first two are asked of all links at once. */
static const struct {
	unsigned id;
	int word, counter;
	unsigned long long unit; /* bytes of one */
} totals[] = {
	{138, 2, COUNTER_NVLINK_TX, 1024},
	{139, 3, COUNTER_NVLINK_RX, 1024},
	{197, 0, COUNTER_PCIE_TX, 1},
	{198, 1, COUNTER_PCIE_RX, 1},
	{94, 4, COUNTER_PCIE_REPLAYS, 1},
	{3, 5, COUNTER_ECC_CORRECTED, 1},
	{4, 6, COUNTER_ECC_UNCORRECTED, 1},
	{5, 7, COUNTER_ECC_CORRECTED_EVER, 1},
	{6, 8, COUNTER_ECC_UNCORRECTED_EVER, 1},
	{142, 9, COUNTER_REMAPPED_CORRECTABLE, 1},
	{143, 10, COUNTER_REMAPPED_UNCORRECTABLE, 1},
};

static int total(field_value *v, const block *b)
{
	for (unsigned i = 0; i < sizeof(totals) / sizeof(totals[0]); i++) {
		if (totals[i].id != v->id)
			continue;
		if ((v->id == 197 || v->id == 198) && driver_branch() < 555)
			return INVALID_ARGUMENT; /* an id that came later */
#ifdef OMIT_LINK_FIELDS
		if (v->id == 138 || v->id == 139)
			return NOT_SUPPORTED;
#endif
		if (lacks(b, totals[i].counter) || ((v->id == 138 || v->id == 139) && v->scope != ALL_LINKS))
			return NOT_SUPPORTED;
		v->value.ull = b->word[GPU_TOTALS + totals[i].word] / totals[i].unit;
		return OK;
	}
	return NOT_SUPPORTED;
}

static int small(field_value *v, const block *b, int word, int counter)
{
	if (lacks(b, counter))
		return NOT_SUPPORTED;
	v->type = TYPE_UINT;
	v->value.ui = (unsigned)b->word[word];
	return OK;
}

/* The ids of the thermal and brake throttle times moved between drivers. */
static int throttle(field_value *v, const block *b)
{
	const uint64_t *ns = &b->word[GPU_THROTTLE_NS];
	unsigned moved = (unsigned)page_header(PAGE_THROTTLE_FIELD);
	if (v->id == 74)
		v->value.ull = ns[0];
	else if (v->id == 76)
		v->value.ull = ns[4];
	else if (moved && v->id >= moved && v->id < moved + 3)
		v->value.ull = ns[1 + v->id - moved];
	else if (v->id >= 251 && v->id <= 273 && driver_branch() >= 570)
		v->value.ull = 12345; /* some other feature lives under the id */
	else
		return NOT_SUPPORTED;
	return OK;
}

static int value(field_value *v, const block *b)
{
	switch (v->id) {
	case 186:
		if (driver_branch() < 535 || v->scope != 0)
			return NOT_SUPPORTED;
		return small(v, b, GPU_POWER_MW, COUNTER_POWER);
	case 82:
		return small(v, b, GPU_MEM_TEMPERATURE, COUNTER_MEM_TEMPERATURE);
	case 144:
		return small(v, b, GPU_ROW_PENDING, COUNTER_ROW_REMAP_PENDING);
	case 145:
		return small(v, b, GPU_ROW_FAILURE, COUNTER_ROW_REMAP_FAILURE);
	case 83:
		v->value.ull = b->word[GPU_ENERGY_MJ];
		return OK;
	}
	return throttle(v, b) == OK ? OK : total(v, b);
}

static int is_health(unsigned id) { return id < 10 || id == 82 || id == 94 || (id >= 142 && id <= 145); }

API int nvmlDeviceGetFieldValues(handle h, int count, field_value *values)
{
	block b;
	int code;
	if (count <= 0 || !values)
		return INVALID_ARGUMENT;
	code = gpu_call(h, is_health(values[0].id) ? CALL_HEALTH_FIELDS : CALL_FIELD_VALUES, &b);
	if (code != OK)
		return code;
	for (int i = 0; i < count; i++) {
		values[i].type = TYPE_ULONGLONG;
		values[i].timestamp_us = values[i].latency_us = 0;
		values[i].value.ull = 0;
		values[i].code = is_device(gpu_of(h)) ? value(&values[i], &b) : NOT_SUPPORTED;
	}
	return OK;
}

typedef struct {
	unsigned long long reference_us, violation_ns;
} violation;

API int nvmlDeviceGetViolationStatus(handle h, int policy, violation *v)
{
	block b;
	int code = gpu_call(h, CALL_FIELD_VALUES, &b);
	if (code != OK)
		return code;
	if (!v)
		return INVALID_ARGUMENT;
	v->reference_us = b.word[GPU_ACTIVITY_NS] / 1000;
	switch (policy) {
	case 0: /* power */
		v->violation_ns = b.word[GPU_THROTTLE_NS];
		return OK;
	case 1: /* thermal, of software and hardware together */
		v->violation_ns = b.word[GPU_THROTTLE_NS + 1] + b.word[GPU_THROTTLE_NS + 2];
		return OK;
	case 2: /* sync boost */
		v->violation_ns = b.word[GPU_THROTTLE_NS + 4];
		return OK;
	}
	return NOT_SUPPORTED;
}

/* What one device is and shows. */
#include <stdio.h>
#include <string.h>

#include "driver.h"

/* Kinds of clock. */
enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM, CLOCK_VIDEO };

typedef struct {
	char legacy_id[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char id[32];
} pci_info;

typedef struct {
	unsigned gpu, memory;
} utilization;

typedef struct {
	unsigned long long total, free, used;
} memory;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} memory_v2;

typedef struct {
	unsigned version;
	int sensor, celsius;
} temperature;

/* An instance has no clocks, power and temperature of its own. */
static int of_device(handle h) { return is_device(gpu_of(h)); }

/* number puts one word of a block where an unsigned is wanted, as the outcome of a call (or of none). */
static int number(handle h, int call, int word, unsigned *to)
{
	block b;
	int code = call < 0 ? gpu_read(h, &b) : gpu_call(h, call, &b);
	if (code != OK)
		return code;
	if (!to)
		return INVALID_ARGUMENT;
	*to = (unsigned)b.word[word];
	return OK;
}

static int string(handle h, int word, size_t words, char *to, unsigned length)
{
	block b;
	int code = gpu_read(h, &b);
	return code != OK ? code : copy_text(&b.word[word], words, to, length);
}

API int nvmlDeviceGetName(handle h, char *to, unsigned length) { return string(h, GPU_NAME, GPU_NAME_WORDS, to, length); }

API int nvmlDeviceGetUUID(handle h, char *to, unsigned length) { return string(h, GPU_UUID, GPU_UUID_WORDS, to, length); }

API int nvmlDeviceGetIndex(handle h, unsigned *index)
{
	if (gpu_of(h) < 0 || !index)
		return INVALID_ARGUMENT;
	*index = (unsigned)gpu_of(h);
	return OK;
}

API int nvmlDeviceGetMinorNumber(handle h, unsigned *minor) { return nvmlDeviceGetIndex(h, minor); }

API int nvmlDeviceGetBrand(handle h, int *brand)
{
	(void)h;
	return brand ? (*brand = 14, OK) : INVALID_ARGUMENT; /* NVIDIA */
}

API int nvmlDeviceGetPciInfo_v3(handle h, pci_info *pci)
{
	int code;
	if (!pci)
		return INVALID_ARGUMENT;
	memset(pci, 0, sizeof(*pci));
	code = string(h, GPU_BUS_ID, GPU_BUS_ID_WORDS, pci->id, sizeof(pci->id));
	if (code == OK && sscanf(pci->id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) == 3)
		snprintf(pci->legacy_id, sizeof(pci->legacy_id), "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
	return code;
}

API int nvmlDeviceGetPciInfo_v2(handle h, pci_info *pci) { return nvmlDeviceGetPciInfo_v3(h, pci); }

API int nvmlDeviceGetCudaComputeCapability(handle h, int *major, int *minor)
{
	block b;
	int code = gpu_read(h, &b);
	if (code != OK)
		return code;
	if (!major || !minor)
		return INVALID_ARGUMENT;
	*major = (int)b.word[GPU_CC_MAJOR];
	*minor = (int)b.word[GPU_CC_MINOR];
	return OK;
}

API int nvmlDeviceGetNumGpuCores(handle h, unsigned *cores) { return number(h, -1, GPU_CORES, cores); }

API int nvmlDeviceGetMemoryBusWidth(handle h, unsigned *bits) { return number(h, -1, GPU_BUS_WIDTH, bits); }

API int nvmlDeviceGetMaxClockInfo(handle h, int kind, unsigned *mhz)
{
	return number(h, -1, kind == CLOCK_MEM ? GPU_MAX_MEM_MHZ : GPU_MAX_SM_MHZ, mhz);
}

API int nvmlDeviceGetClockInfo(handle h, int kind, unsigned *mhz)
{
	if (gpu_of(h) >= 0 && !of_device(h))
		return NOT_SUPPORTED;
	if (kind == CLOCK_MEM)
		return number(h, CALL_MEM_CLOCK, GPU_MEM_MHZ, mhz);
	return number(h, CALL_SM_CLOCK, GPU_SM_MHZ, mhz);
}

static int application_clock(handle h, int kind, unsigned *mhz)
{
	block b;
	int code = gpu_read(h, &b);
	if (code == OK && (!of_device(h) || !b.word[GPU_APP_SM_MHZ]))
		return NOT_SUPPORTED;
	return code != OK ? code : number(h, -1, kind == CLOCK_MEM ? GPU_APP_MEM_MHZ : GPU_APP_SM_MHZ, mhz);
}

API int nvmlDeviceGetApplicationsClock(handle h, int kind, unsigned *mhz) { return application_clock(h, kind, mhz); }

API int nvmlDeviceGetClock(handle h, int kind, int id, unsigned *mhz)
{
	if (id == 0)
		return nvmlDeviceGetClockInfo(h, kind, mhz);
	return id == 1 ? application_clock(h, kind, mhz) : nvmlDeviceGetMaxClockInfo(h, kind, mhz);
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(handle h, unsigned long long *mask)
{
	block b;
	int code = gpu_call(h, CALL_EVENT_REASONS, &b);
	if (code != OK)
		return code;
	return mask ? (*mask = b.word[GPU_REASONS], OK) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetSupportedClocksThrottleReasons(handle h, unsigned long long *mask)
{
	(void)h;
	return mask ? (*mask = 0x1ff, OK) : INVALID_ARGUMENT;
}

#if !defined(OMIT_EVENT_REASONS) && BRANCH >= 535
API int nvmlDeviceGetCurrentClocksEventReasons(handle h, unsigned long long *mask)
{
	return nvmlDeviceGetCurrentClocksThrottleReasons(h, mask);
}

API int nvmlDeviceGetSupportedClocksEventReasons(handle h, unsigned long long *mask)
{
	return nvmlDeviceGetSupportedClocksThrottleReasons(h, mask);
}
#endif

API int nvmlDeviceGetPerformanceState(handle h, int *state)
{
	(void)h;
	return state ? (*state = 0, OK) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetPowerUsage(handle h, unsigned *mw) { return gpu_of(h) >= 0 && !of_device(h) ? NOT_SUPPORTED : number(h, CALL_FIELD_VALUES, GPU_POWER_MW, mw); }

API int nvmlDeviceGetEnforcedPowerLimit(handle h, unsigned *mw) { return gpu_of(h) >= 0 && !of_device(h) ? NOT_SUPPORTED : number(h, CALL_POWER_LIMIT, GPU_LIMIT_MW, mw); }

API int nvmlDeviceGetPowerManagementLimit(handle h, unsigned *mw) { return nvmlDeviceGetEnforcedPowerLimit(h, mw); }

API int nvmlDeviceGetPowerManagementDefaultLimit(handle h, unsigned *mw) { return number(h, -1, GPU_DEFAULT_LIMIT_MW, mw); }

API int nvmlDeviceGetTotalEnergyConsumption(handle h, unsigned long long *mj)
{
	block b;
	int code = gpu_call(h, CALL_FIELD_VALUES, &b);
	if (code != OK)
		return code;
	return mj ? (*mj = b.word[GPU_ENERGY_MJ], OK) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetUtilizationRates(handle h, utilization *u)
{
	block b;
	int code = gpu_call(h, CALL_UTILIZATION, &b);
	if (code != OK)
		return code;
	if (!u)
		return INVALID_ARGUMENT;
	if (b.word[GPU_MIG])
		return NOT_SUPPORTED;
	u->gpu = (unsigned)b.word[GPU_GPU_DUTY];
	u->memory = (unsigned)b.word[GPU_MEM_DUTY];
	return OK;
}

API int nvmlDeviceGetMemoryInfo(handle h, memory *m)
{
	block b;
	int code = gpu_call(h, CALL_MEMORY, &b);
	if (code != OK)
		return code;
	if (!m)
		return INVALID_ARGUMENT;
	m->total = b.word[GPU_MEMORY_TOTAL];
	m->used = b.word[GPU_MEMORY_USED];
	m->free = m->total - m->used;
	return OK;
}

API int nvmlDeviceGetMemoryInfo_v2(handle h, memory_v2 *m)
{
	memory v1;
	int code;
	if (!m)
		return INVALID_ARGUMENT;
	if (m->version != (sizeof(*m) | 2u << 24))
		return ARGUMENT_VERSION_MISMATCH;
	code = nvmlDeviceGetMemoryInfo(h, &v1);
	if (code != OK)
		return code;
	m->total = v1.total;
	m->used = v1.used;
	m->free = v1.free;
	m->reserved = 0;
	return OK;
}

API int nvmlDeviceGetTemperature(handle h, int sensor, unsigned *celsius)
{
	if (sensor != 0)
		return INVALID_ARGUMENT;
	if (gpu_of(h) >= 0 && !of_device(h))
		return NOT_SUPPORTED;
	return number(h, CALL_TEMPERATURE, GPU_TEMPERATURE, celsius);
}

#if BRANCH >= 570
API int nvmlDeviceGetTemperatureV(handle h, temperature *t)
{
	unsigned celsius;
	int code;
	if (!t)
		return INVALID_ARGUMENT;
	if (t->version != (sizeof(*t) | 1u << 24))
		return ARGUMENT_VERSION_MISMATCH;
	code = nvmlDeviceGetTemperature(h, t->sensor, &celsius);
	t->celsius = code == OK ? (int)celsius : 0;
	return code;
}

typedef struct {
	unsigned version;
	int celsius;
} margin;

API int nvmlDeviceGetMarginTemperature(handle h, margin *m)
{
	unsigned celsius;
	block b;
	int code;
	if (!m)
		return INVALID_ARGUMENT;
	if (m->version != (sizeof(*m) | 1u << 24))
		return ARGUMENT_VERSION_MISMATCH;
	code = gpu_read(h, &b);
	if (code != OK)
		return code;
	if (!of_device(h) || lacks(&b, COUNTER_TEMPERATURE_MARGIN) || driver_branch() < 570)
		return NOT_SUPPORTED;
	code = number(h, CALL_TEMPERATURE_MARGIN, GPU_MARGIN, &celsius);
	m->celsius = code == OK ? (int)celsius : 0;
	return code;
}
#endif

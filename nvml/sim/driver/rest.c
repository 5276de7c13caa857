/* What clients ask for besides, answered the way a server's GPU without a display and a fan answers. */
#include "driver.h"

static int answer(handle h, unsigned *to, unsigned value)
{
	block b;
	int code = gpu_read(h, &b);
	if (code != OK)
		return code;
	return to ? (*to = value, OK) : INVALID_ARGUMENT;
}

static int refuse(handle h)
{
	block b;
	int code = gpu_read(h, &b);
	return code == OK ? NOT_SUPPORTED : code;
}

API int nvmlDeviceGetPersistenceMode(handle h, unsigned *mode) { return answer(h, mode, 1); }

API int nvmlDeviceGetComputeMode(handle h, unsigned *mode) { return answer(h, mode, 0); }

API int nvmlDeviceGetDisplayActive(handle h, unsigned *active) { return answer(h, active, 0); }

API int nvmlDeviceGetDisplayMode(handle h, unsigned *mode) { return answer(h, mode, 0); }

API int nvmlDeviceGetArchitecture(handle h, unsigned *architecture)
{
	block b;
	int code = gpu_read(h, &b);
	return code != OK ? code : answer(h, architecture, b.word[GPU_CC_MAJOR]); /* 9 is Hopper in both numberings */
}

API int nvmlDeviceGetEncoderUtilization(handle h, unsigned *percent, unsigned *period_us)
{
	if (period_us)
		*period_us = 166667;
	return is_device(gpu_of(h)) ? answer(h, percent, 0) : refuse(h);
}

API int nvmlDeviceGetDecoderUtilization(handle h, unsigned *percent, unsigned *period_us)
{
	return nvmlDeviceGetEncoderUtilization(h, percent, period_us);
}

API int nvmlDeviceGetEccMode(handle h, unsigned *current, unsigned *pending)
{
	int code = answer(h, current, 1);
	return code != OK ? code : answer(h, pending, 1);
}

API int nvmlDeviceGetTotalEccErrors(handle h, int kind, int counter, unsigned long long *count)
{
	block b;
	int code = gpu_call(h, CALL_HEALTH_FIELDS, &b), word = 5 + (kind != 0) + 2 * (counter != 0);
	static const int counters[] = {COUNTER_ECC_CORRECTED, COUNTER_ECC_UNCORRECTED, COUNTER_ECC_CORRECTED_EVER, COUNTER_ECC_UNCORRECTED_EVER};
	if (code != OK)
		return code;
	if (!is_device(gpu_of(h)) || lacks(&b, counters[word - 5]))
		return NOT_SUPPORTED;
	return count ? (*count = b.word[GPU_TOTALS + word], OK) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetRemappedRows(handle h, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed)
{
	block b;
	int code = gpu_call(h, CALL_HEALTH_FIELDS, &b);
	if (code != OK)
		return code;
	if (!is_device(gpu_of(h)) || lacks(&b, COUNTER_REMAPPED_CORRECTABLE))
		return NOT_SUPPORTED;
	if (!correctable || !uncorrectable || !pending || !failed)
		return INVALID_ARGUMENT;
	*correctable = (unsigned)b.word[GPU_TOTALS + 9];
	*uncorrectable = (unsigned)b.word[GPU_TOTALS + 10];
	*pending = (unsigned)b.word[GPU_ROW_PENDING];
	*failed = (unsigned)b.word[GPU_ROW_FAILURE];
	return OK;
}

typedef struct {
	unsigned long long total, free, used;
} bar1;

API int nvmlDeviceGetBAR1MemoryInfo(handle h, bar1 *m)
{
	block b;
	int code = gpu_read(h, &b);
	if (code != OK)
		return code;
	if (!m)
		return INVALID_ARGUMENT;
	*m = (bar1){128ull << 30, (128ull << 30) - (2 << 20), 2 << 20};
	return OK;
}

API int nvmlDeviceGetFanSpeed(handle h, unsigned *percent) { return (void)percent, refuse(h); }

API int nvmlDeviceGetSerial(handle h, char *serial, unsigned length) { return (void)serial, (void)length, refuse(h); }

API int nvmlDeviceGetPcieThroughput(handle h, int counter, unsigned *kb) { return (void)counter, (void)kb, refuse(h); }

API int nvmlDeviceGetProcessUtilization(handle h, void *samples, unsigned *count, unsigned long long since)
{
	(void)samples, (void)count, (void)since;
	return refuse(h);
}

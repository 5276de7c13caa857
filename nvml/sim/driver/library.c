/* Opening and closing the driver, its versions, error strings, and finding devices. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static int opened;

API int nvmlInit_v2(void)
{
	int code = page_open();
	if (code != OK)
		return code;
	stall(PAGE_INIT_DELAY_US);
	code = (int)page_header(PAGE_INIT_CODE);
	if (code == OK)
		__atomic_add_fetch(&opened, 1, __ATOMIC_SEQ_CST);
	return code;
}

/* Its presence tells that this is no driver, so that what is read of it can be labelled. */
API int tpotscopeSimulatedDriver(void) { return PAGE_VERSION_VALUE; }

API int nvmlInit(void) { return nvmlInit_v2(); }

API int nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return nvmlInit_v2();
}

API int nvmlShutdown(void)
{
	if (__atomic_load_n(&opened, __ATOMIC_SEQ_CST) == 0)
		return UNINITIALIZED;
	if (gpm_alive() > 0 || event_sets_alive() > 0)
		return IN_USE;
	__atomic_sub_fetch(&opened, 1, __ATOMIC_SEQ_CST);
	return OK;
}

API const char *nvmlErrorString(int code)
{
	switch (code) {
	case OK:
		return "success (simulated)";
	case UNINITIALIZED:
		return "not initialized (simulated)";
	case INVALID_ARGUMENT:
		return "invalid argument (simulated)";
	case NOT_SUPPORTED:
		return "not supported (simulated)";
	case NO_PERMISSION:
		return "no permission (simulated)";
	case NOT_FOUND:
		return "not found (simulated)";
	case INSUFFICIENT_SIZE:
		return "buffer too small (simulated)";
	case DRIVER_NOT_LOADED:
		return "driver not loaded (simulated: TPOTSCOPE_NVML_SIM names no page)";
	case TIMEOUT:
		return "timeout (simulated)";
	case GPU_IS_LOST:
		return "GPU is lost (simulated)";
	case VERSION_MISMATCH:
		return "driver/library version mismatch (simulated: the page has another version)";
	case IN_USE:
		return "in use (simulated)";
	case NO_MEMORY:
		return "out of memory (simulated)";
	case ARGUMENT_VERSION_MISMATCH:
		return "argument version mismatch (simulated)";
	}
	return "unknown error (simulated)";
}

static int text(char *to, unsigned length, const char *s)
{
	if (!to)
		return INVALID_ARGUMENT;
	if (strlen(s) + 1 > length)
		return INSUFFICIENT_SIZE;
	strcpy(to, s);
	return OK;
}

API int nvmlSystemGetDriverVersion(char *to, unsigned length)
{
	char version[8 * PAGE_DRIVER_WORDS + 1] = "";
	if (!opened)
		return UNINITIALIZED;
	page_header_text(PAGE_DRIVER, version, sizeof(version));
	return text(to, length, version);
}

API int nvmlSystemGetNVMLVersion(char *to, unsigned length) { return text(to, length, "13.580.0"); }

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!version)
		return INVALID_ARGUMENT;
	*version = 13000;
	return OK;
}

API int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

#ifndef OMIT_COUNT
API int nvmlDeviceGetCount_v2(unsigned *count)
{
	if (!opened)
		return UNINITIALIZED;
	if (!count)
		return INVALID_ARGUMENT;
	*count = (unsigned)page_header(PAGE_GPUS);
	return OK;
}

API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
#endif

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *h)
{
	block b;
	if (!opened)
		return UNINITIALIZED;
	if (!h || !is_device((int)index))
		return INVALID_ARGUMENT;
	gpu_read(handle_of((int)index), &b);
	*h = handle_of((int)index);
	return (int)b.word[GPU_OPEN_CODE];
}

API int nvmlDeviceGetHandleByIndex(unsigned index, handle *h) { return nvmlDeviceGetHandleByIndex_v2(index, h); }

static int find(int word, size_t words, const char *name, handle *found)
{
	block b;
	char have[8 * GPU_NAME_WORDS + 1];
	if (!opened)
		return UNINITIALIZED;
	if (!name || !found)
		return INVALID_ARGUMENT;
	for (int i = 0; handle_of(i); i++) {
		gpu_read(handle_of(i), &b);
		if (copy_text(&b.word[word], words, have, sizeof(have)) == OK && strcmp(have, name) == 0) {
			*found = handle_of(i);
			return OK;
		}
	}
	return NOT_FOUND;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, handle *h) { return find(GPU_UUID, GPU_UUID_WORDS, uuid, h); }

API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, handle *h) { return find(GPU_BUS_ID, GPU_BUS_ID_WORDS, id, h); }

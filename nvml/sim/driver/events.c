/* Events: a set remembers from where on it has to tell, and of which devices. */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <time.h>

#include "driver.h"

typedef struct event_set {
	uint64_t seen;
	unsigned long long types[PAGE_MAX_GPUS]; /* registered, of each device */
} *event_set;

typedef struct {
	handle device;
	unsigned long long type, data;
	unsigned instance, compute_instance;
} event;

static int alive;

int event_sets_alive(void) { return __atomic_load_n(&alive, __ATOMIC_RELAXED); }

API int nvmlEventSetCreate(event_set *set)
{
	if (!set)
		return INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	if (!*set)
		return NO_MEMORY;
	(*set)->seen = page_header(PAGE_EVENTS); /* what was before is lost */
	__atomic_add_fetch(&alive, 1, __ATOMIC_RELAXED);
	return OK;
}

API int nvmlEventSetFree(event_set set)
{
	if (!set)
		return INVALID_ARGUMENT;
	free(set);
	__atomic_sub_fetch(&alive, 1, __ATOMIC_RELAXED);
	return OK;
}

API int nvmlDeviceGetSupportedEventTypes(handle h, unsigned long long *types)
{
	if (gpu_of(h) < 0 || !types)
		return INVALID_ARGUMENT;
	*types = EVENT_KNOWN;
	return OK;
}

API int nvmlDeviceRegisterEvents(handle h, unsigned long long types, event_set set)
{
	if (!is_device(gpu_of(h)) || !set)
		return INVALID_ARGUMENT;
	if (types & ~(unsigned long long)EVENT_KNOWN)
		return NOT_SUPPORTED;
#ifdef OMIT_EVENTS
	if (gpu_of(h) == 1)
		return NO_PERMISSION;
#endif
	set->types[gpu_of(h)] |= types;
	return OK;
}

static int next(event_set set, event *e)
{
	while (set->seen < page_header(PAGE_EVENTS)) {
		int at = PAGE_EVENT + 3 * (int)(set->seen++ % PAGE_MAX_EVENTS);
		uint64_t gpu = page_header(at), type = page_header(at + 1);
		if (gpu >= PAGE_MAX_GPUS || !(set->types[gpu] & type))
			continue;
		*e = (event){handle_of((int)gpu), type, page_header(at + 2), ~0u, ~0u};
		return 1;
	}
	return 0;
}

API int nvmlEventSetWait_v2(event_set set, event *e, unsigned ms)
{
	const long step = 20;
	if (!set || !e)
		return INVALID_ARGUMENT;
	for (long waited = 0;; waited += step) {
		struct timespec ts = {0, step * 1000000};
		if (next(set, e))
			return OK;
		if (waited >= (long)ms)
			return TIMEOUT;
		nanosleep(&ts, NULL);
	}
}

API int nvmlEventSetWait(event_set set, event *e, unsigned ms) { return nvmlEventSetWait_v2(set, e, ms); }

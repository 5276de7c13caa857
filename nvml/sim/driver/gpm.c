/* Snapshots of activity, and the averages between two of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

typedef struct snapshot {
	int gpu; /* -1 until taken */
	uint64_t at_ns;
	uint64_t activity[GPU_ACTIVITY_WORDS];
	uint64_t code[GPU_METRIC_CODE_WORDS];
} *snapshot;

typedef struct {
	const char *short_name, *long_name, *unit;
} metric_info;

typedef struct {
	unsigned id;
	int code;
	double value;
	metric_info info;
} metric;

/* The array is as long as the caller's own header says; count of it are asked for. */
typedef struct {
	unsigned version, count;
	snapshot first, second;
	metric metrics[];
} metrics_request;

typedef struct {
	unsigned version, supported;
} support;

static int alive;

int gpm_alive(void) { return __atomic_load_n(&alive, __ATOMIC_RELAXED); }

#ifndef OMIT_GPM

/* Ids of the metrics, in the order in which the page holds them. */
static const struct {
	unsigned id;
	const char *name;
} known[GPU_ACTIVITY_WORDS] = {{1, "GRACT"}, {2, "SMUTIL"}, {3, "SMOCC"}, {5, "ANYTENSOR"}, {7, "HMMA"}, {9, "IMMA"}, {10, "DRAMBW"}};

API int nvmlGpmSampleAlloc(snapshot *s)
{
	if (!s)
		return INVALID_ARGUMENT;
	*s = calloc(1, sizeof(**s));
	if (!*s)
		return NO_MEMORY;
	(*s)->gpu = -1;
	__atomic_add_fetch(&alive, 1, __ATOMIC_RELAXED);
	return OK;
}

API int nvmlGpmSampleFree(snapshot s)
{
	if (!s)
		return INVALID_ARGUMENT;
	free(s);
	__atomic_sub_fetch(&alive, 1, __ATOMIC_RELAXED);
	return OK;
}

API int nvmlGpmSampleGet(handle h, snapshot s)
{
	block b;
	int code = gpu_call(h, CALL_GPM_SAMPLE, &b);
	if (code != OK)
		return code;
	if (!s)
		return INVALID_ARGUMENT;
	if (!b.word[GPU_GPM])
		return NOT_SUPPORTED;
	s->gpu = gpu_of(h);
	s->at_ns = b.word[GPU_ACTIVITY_NS];
	memcpy(s->activity, &b.word[GPU_ACTIVITY], sizeof(s->activity));
	memcpy(s->code, &b.word[GPU_METRIC_CODE], sizeof(s->code));
	return OK;
}

API int nvmlGpmMigSampleGet(handle h, unsigned instance, snapshot s)
{
	(void)h, (void)instance, (void)s;
	return NOT_SUPPORTED;
}

static double seconds(uint64_t bits)
{
	double d;
	memcpy(&d, &bits, sizeof(d));
	return d;
}

static void answer(metric *m, snapshot a, snapshot b)
{
	m->code = NOT_SUPPORTED;
	m->value = 0;
	memset(&m->info, 0, sizeof(m->info));
	for (int i = 0; i < GPU_ACTIVITY_WORDS; i++) {
		double passed = ((double)b->at_ns - (double)a->at_ns) / 1e9;
		if (known[i].id != m->id)
			continue;
		m->info = (metric_info){known[i].name, known[i].name, "%"};
		m->code = (int)b->code[i];
		/* Two snapshots of one refresh hold no time at all. */
		m->value = passed ? 100 * (seconds(b->activity[i]) - seconds(a->activity[i])) / passed : NAN;
	}
}

API int nvmlGpmMetricsGet(metrics_request *q)
{
	block b;
	int code;
	if (!q || !q->first || !q->second || q->first->gpu < 0 || q->first->gpu != q->second->gpu)
		return INVALID_ARGUMENT;
	if (q->version != 1)
		return ARGUMENT_VERSION_MISMATCH;
	code = gpu_call(handle_of(q->first->gpu), CALL_GPM_METRICS, &b);
	for (unsigned i = 0; code == OK && i < q->count; i++)
		answer(&q->metrics[i], q->first, q->second);
	return code;
}

API int nvmlGpmQueryDeviceSupport(handle h, support *s)
{
	block b;
	int code = gpu_read(h, &b);
	if (code != OK)
		return code;
	if (!s)
		return INVALID_ARGUMENT;
	if (s->version != 1)
		return ARGUMENT_VERSION_MISMATCH;
	s->supported = b.word[GPU_GPM] != 0;
	return OK;
}

API int nvmlGpmQueryIfStreamingEnabled(handle h, unsigned *state)
{
	(void)h;
	if (!state)
		return INVALID_ARGUMENT;
	*state = 0;
	return OK;
}

#endif

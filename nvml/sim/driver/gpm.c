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
	uint64_t totals[GPU_TOTALS_WORDS];
	uint64_t lacks;
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
} known[GPU_ACTIVITY_WORDS] = {{1, "GRACT"}, {2, "SMUTIL"}, {3, "SMOCC"}, {5, "ANYTENSOR"}, {7, "HMMA"}, {9, "IMMA"}, {10, "DRAMBW"}, {4, "INTUTIL"}, {12, "FP32UTIL"}, {13, "FP16UTIL"}, {164, "DRAMCACHEHIT"}};

static const int counters[GPU_ACTIVITY_WORDS] = {COUNTER_GRAPHICS_UTIL, COUNTER_SM_UTIL, COUNTER_SM_OCCUPANCY, COUNTER_TENSOR_UTIL, COUNTER_HMMA_UTIL,
						 COUNTER_IMMA_UTIL, COUNTER_DRAM_UTIL, COUNTER_INTEGER_UTIL, COUNTER_FP32_UTIL, COUNTER_FP16_UTIL, COUNTER_DRAM_CACHE_HIT};

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

static int take(handle h, snapshot s)
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
	memcpy(s->totals, &b.word[GPU_TOTALS], sizeof(s->totals));
	s->lacks = b.word[GPU_LACKS];
	return OK;
}

API int nvmlGpmSampleGet(handle h, snapshot s) { return take(h, s); }

#if BRANCH >= 525
API int nvmlGpmMigSampleGet(handle h, unsigned instance, snapshot s)
{
	block b;
	if (!is_device(gpu_of(h)))
		return gpu_of(h) < 0 ? gpu_read(h, &b) : INVALID_ARGUMENT;
	for (int i = 0; handle_of(i); i++) {
		gpu_read(handle_of(i), &b);
		if (b.word[GPU_PARENT] == (uint64_t)gpu_of(h) + 1 && b.word[GPU_INSTANCE_ID] == instance)
			return b.word[GPU_PRESENT] ? take(handle_of(i), s) : GPU_IS_LOST;
	}
	return NOT_FOUND;
}
#endif

static double seconds(uint64_t bits)
{
	double d;
	memcpy(&d, &bits, sizeof(d));
	return d;
}

/* Traffic, in MiB a second. */
static const struct {
	unsigned id;
	int total, counter;
} flows[] = {{20, 0, COUNTER_PCIE_TX}, {21, 1, COUNTER_PCIE_RX}, {60, 3, COUNTER_NVLINK_RX}, {61, 2, COUNTER_NVLINK_TX}};

static void answer_flow(metric *m, snapshot a, snapshot b)
{
	double passed = ((double)b->at_ns - (double)a->at_ns) / 1e9;
	for (unsigned i = 0; i < sizeof(flows) / sizeof(flows[0]); i++) {
		if (flows[i].id != m->id || (b->lacks >> flows[i].counter) & 1)
			continue;
		m->info = (metric_info){"TRAFFIC", "TRAFFIC", "MiB/s"};
		m->code = OK;
		m->value = passed ? (double)(b->totals[flows[i].total] - a->totals[flows[i].total]) / passed / (1 << 20) : NAN;
	}
}

/* What the metrics of each GPU last were, for the fault that they stay that. Each GPU is asked by one thread. */
static double said[PAGE_MAX_GPUS][GPU_ACTIVITY_WORDS];

static void answer(metric *m, snapshot a, snapshot b, int frozen)
{
	m->code = NOT_SUPPORTED;
	m->value = 0;
	memset(&m->info, 0, sizeof(m->info));
	answer_flow(m, a, b);
	for (int i = 0; i < GPU_ACTIVITY_WORDS; i++) {
		double passed = ((double)b->at_ns - (double)a->at_ns) / 1e9;
		if (known[i].id != m->id)
			continue;
		m->info = (metric_info){known[i].name, known[i].name, "%"};
		m->code = (b->lacks >> counters[i]) & 1 ? NOT_SUPPORTED : (int)b->code[i];
		/* Two snapshots of one refresh hold no time at all. */
		m->value = passed ? 100 * (seconds(b->activity[i]) - seconds(a->activity[i])) / passed : NAN;
		if (!frozen)
			said[b->gpu][i] = m->value;
		m->value = said[b->gpu][i];
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
	for (unsigned i = 0; i < q->count; i++)
		if (q->metrics[i].id >= 98 && driver_branch() < 575)
			return INVALID_ARGUMENT;
	code = gpu_call(handle_of(q->first->gpu), CALL_GPM_METRICS, &b);
	for (unsigned i = 0; code == OK && i < q->count; i++)
		answer(&q->metrics[i], q->first, q->second, b.word[GPU_FROZEN] != 0);
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

#if BRANCH >= 535
API int nvmlGpmQueryIfStreamingEnabled(handle h, unsigned *state)
{
	(void)h;
	if (!state)
		return INVALID_ARGUMENT;
	*state = 0;
	return OK;
}
#endif

#endif

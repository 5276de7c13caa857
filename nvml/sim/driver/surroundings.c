/* What is on and around a device: its instances, its links, who computes on it. */
#include <string.h>

#include "driver.h"

static int word_of(handle h, int word, unsigned *to)
{
	block b;
	int code = gpu_read(h, &b);
	if (code != OK)
		return code;
	return to ? (*to = (unsigned)b.word[word], OK) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetMigMode(handle h, unsigned *current, unsigned *pending)
{
	int code = word_of(h, GPU_MIG, current);
	if (code == OK && pending)
		*pending = *current;
	return code;
}

API int nvmlDeviceGetMaxMigDeviceCount(handle h, unsigned *count)
{
	block b;
	int code = gpu_read(h, &b);
	if (code != OK)
		return code;
	return count ? (*count = b.word[GPU_MIG] ? 7 : 0, OK) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(handle h, unsigned index, handle *mig)
{
	block b;
	unsigned n = 0;
	if (!is_device(gpu_of(h)) || !mig)
		return INVALID_ARGUMENT;
	for (int i = 0; handle_of(i); i++) {
		gpu_read(handle_of(i), &b);
		if (b.word[GPU_PARENT] != (uint64_t)gpu_of(h) + 1 || n++ != index)
			continue;
		*mig = handle_of(i);
		return b.word[GPU_PRESENT] ? OK : NOT_FOUND;
	}
	return index < 7 ? NOT_FOUND : INVALID_ARGUMENT;
}

API int nvmlDeviceIsMigDeviceHandle(handle h, unsigned *is)
{
	if (gpu_of(h) < 0 || !is)
		return INVALID_ARGUMENT;
	*is = !is_device(gpu_of(h));
	return OK;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle h, handle *parent)
{
	block b;
	int code = gpu_read(h, &b);
	if (code != OK)
		return code;
	if (!parent || !b.word[GPU_PARENT])
		return INVALID_ARGUMENT;
	*parent = handle_of((int)b.word[GPU_PARENT] - 1);
	return OK;
}

API int nvmlDeviceGetGpuInstanceId(handle h, unsigned *id)
{
	return is_device(gpu_of(h)) ? INVALID_ARGUMENT : word_of(h, GPU_INSTANCE_ID, id);
}

API int nvmlDeviceGetComputeInstanceId(handle h, unsigned *id)
{
	if (gpu_of(h) < 0 || is_device(gpu_of(h)) || !id)
		return INVALID_ARGUMENT;
	*id = 0;
	return OK;
}

typedef struct {
	unsigned sms, copy, decoders, encoders, jpeg, ofa, slices, compute_slices;
	unsigned long long memory_mb;
} attributes;

API int nvmlDeviceGetAttributes_v2(handle h, attributes *a)
{
	block b;
	int code = gpu_read(h, &b);
	if (code != OK)
		return code;
	if (!a)
		return INVALID_ARGUMENT;
	if (is_device(gpu_of(h)))
		return NOT_SUPPORTED;
	memset(a, 0, sizeof(*a));
	a->sms = (unsigned)b.word[GPU_CORES] / 128;
	a->slices = a->compute_slices = (unsigned)b.word[GPU_SLICES];
	a->memory_mb = b.word[GPU_MEMORY_TOTAL] >> 20;
	return OK;
}

#if BRANCH >= 550
API int nvmlDeviceGetNumaNodeId(handle h, unsigned *node)
{
	block b;
	int code = gpu_call(h, CALL_TOPOLOGY, &b);
	if (code != OK)
		return code;
	if (!b.word[GPU_NUMA])
		return NOT_SUPPORTED;
	return node ? (*node = (unsigned)b.word[GPU_NUMA] - 1, OK) : INVALID_ARGUMENT;
}
#endif

static int pcie(handle h, int call, int counter, int word, unsigned *to)
{
	block b;
	int code = call < 0 ? gpu_read(h, &b) : gpu_call(h, call, &b);
	if (code != OK)
		return code;
	if (!is_device(gpu_of(h)) || lacks(&b, counter))
		return NOT_SUPPORTED;
	return to ? (*to = (unsigned)b.word[word], OK) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetCurrPcieLinkGeneration(handle h, unsigned *gen) { return pcie(h, CALL_PCIE_LINK, COUNTER_PCIE_GEN, GPU_PCIE_GEN, gen); }

API int nvmlDeviceGetCurrPcieLinkWidth(handle h, unsigned *width) { return pcie(h, CALL_PCIE_LINK, COUNTER_PCIE_WIDTH, GPU_PCIE_WIDTH, width); }

API int nvmlDeviceGetMaxPcieLinkGeneration(handle h, unsigned *gen) { return pcie(h, -1, COUNTER_PCIE_GEN, GPU_PCIE_MAX_GEN, gen); }

API int nvmlDeviceGetMaxPcieLinkWidth(handle h, unsigned *width) { return pcie(h, -1, COUNTER_PCIE_WIDTH, GPU_PCIE_MAX_WIDTH, width); }

API int nvmlDeviceGetNvLinkState(handle h, unsigned link, unsigned *up)
{
	block b;
	int code = gpu_call(h, CALL_TOPOLOGY, &b);
	if (code != OK)
		return code;
	if (!up)
		return INVALID_ARGUMENT;
	if (!is_device(gpu_of(h)) || !b.word[GPU_LINKS])
		return NOT_SUPPORTED;
	if (link >= b.word[GPU_LINKS])
		return INVALID_ARGUMENT;
	*up = (b.word[GPU_LINKS_UP] >> link) & 1;
	return OK;
}

typedef struct {
	char legacy_id[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char id[32];
} pci_info;

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle h, unsigned link, pci_info *pci)
{
	block b;
	unsigned up;
	int code = nvmlDeviceGetNvLinkState(h, link, &up);
	if (code != OK)
		return code;
	if (!pci || !up)
		return INVALID_ARGUMENT;
	memset(pci, 0, sizeof(*pci));
	gpu_read(h, &b);
	return copy_text(&b.word[GPU_PEER_BUS_ID + BUS_ID_WORDS * link], BUS_ID_WORDS, pci->id, sizeof(pci->id));
}

typedef struct {
	unsigned pid;
	unsigned long long bytes;
	unsigned instance, compute_instance;
} process;

API int nvmlDeviceGetComputeRunningProcesses_v3(handle h, unsigned *count, process *infos)
{
	block b;
	unsigned room;
	int code = gpu_call(h, CALL_PROCESSES, &b);
	if (code != OK)
		return code;
	if (!count)
		return INVALID_ARGUMENT;
	if (!b.word[GPU_PROCESSES])
		return NOT_SUPPORTED;
	room = *count;
	*count = (unsigned)b.word[GPU_PROCESSES] - 1;
	if (room < *count)
		return INSUFFICIENT_SIZE;
	for (unsigned i = 0; infos && i < *count; i++)
		infos[i] = (process){(unsigned)b.word[GPU_PROCESS + 2 * i], b.word[GPU_PROCESS + 2 * i + 1], ~0u, ~0u};
	return OK;
}

API int nvmlDeviceGetComputeRunningProcesses_v2(handle h, unsigned *count, process *infos)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(h, count, infos);
}

typedef struct {
	unsigned pid;
	unsigned long long bytes;
} process_v1;

API int nvmlDeviceGetComputeRunningProcesses(handle h, unsigned *count, process_v1 *infos)
{
	process all[PAGE_MAX_PROCESSES];
	unsigned n = PAGE_MAX_PROCESSES, room;
	int code = nvmlDeviceGetComputeRunningProcesses_v3(h, &n, all);
	if (code != OK)
		return code;
	if (!count)
		return INVALID_ARGUMENT;
	room = *count;
	*count = n;
	if (room < n)
		return INSUFFICIENT_SIZE;
	for (unsigned i = 0; infos && i < n; i++)
		infos[i] = (process_v1){all[i].pid, all[i].bytes};
	return OK;
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(handle h, unsigned *count, void *infos)
{
	(void)infos;
	if (gpu_of(h) < 0 || !count)
		return INVALID_ARGUMENT;
	*count = 0;
	return OK;
}

/* The page: mapping it, and reading from it while another process writes. */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define PAGE_WORDS (PAGE_HEADER_WORDS + PAGE_MAX_GPUS * PAGE_BLOCK_WORDS)

static const uint64_t *page;
static struct device devices[PAGE_MAX_GPUS];

static uint64_t load(int word) { return __atomic_load_n(&page[word], __ATOMIC_ACQUIRE); }

static const uint64_t *map(void)
{
	const char *path = getenv("TPOTSCOPE_NVML_SIM");
	struct stat st;
	void *mem = MAP_FAILED;
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && st.st_size >= (off_t)(PAGE_WORDS * sizeof(uint64_t)))
		mem = mmap(NULL, PAGE_WORDS * sizeof(uint64_t), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	return mem == MAP_FAILED ? NULL : mem;
}

int page_open(void)
{
	const uint64_t *mapped = page ? page : map();
	if (!mapped)
		return DRIVER_NOT_LOADED;
	if (__atomic_load_n(&mapped[PAGE_MAGIC], __ATOMIC_ACQUIRE) != PAGE_MAGIC_VALUE)
		return DRIVER_NOT_LOADED;
	if (mapped[PAGE_VERSION] != PAGE_VERSION_VALUE)
		return VERSION_MISMATCH;
	for (int i = 0; i < PAGE_MAX_GPUS; i++)
		devices[i].index = i;
	page = mapped;
	return OK;
}

uint64_t page_header(int word) { return page ? load(word) : 0; }

int copy_text(const uint64_t *words, size_t words_n, char *to, unsigned length)
{
	const char *text = (const char *)words;
	size_t n = strnlen(text, words_n * sizeof(uint64_t));
	if (!to)
		return INVALID_ARGUMENT;
	if (length < n + 1)
		return INSUFFICIENT_SIZE;
	memcpy(to, text, n);
	to[n] = 0;
	return OK;
}

void page_header_text(int word, char *to, size_t length)
{
	copy_text(&page[word], PAGE_DRIVER_WORDS, to, (unsigned)length);
}

int gpu_of(handle h)
{
	if (!page || h < devices || h >= devices + PAGE_MAX_GPUS || (uint64_t)h->index >= load(PAGE_BLOCKS))
		return -1;
	return h->index;
}

handle handle_of(int index)
{
	if (!page || index < 0 || (uint64_t)index >= load(PAGE_BLOCKS))
		return NULL;
	return &devices[index];
}

int is_device(int index) { return page && index >= 0 && (uint64_t)index < load(PAGE_GPUS); }

int lacks(const block *b, int counter) { return (b->word[GPU_LACKS] >> counter) & 1; }

unsigned driver_branch(void)
{
	char version[8 * PAGE_DRIVER_WORDS + 1] = "";
	page_header_text(PAGE_DRIVER, version, sizeof(version));
	return (unsigned)strtoul(version, NULL, 10);
}

int gpu_read(handle h, block *b)
{
	int gpu = gpu_of(h), first = PAGE_HEADER_WORDS + gpu * PAGE_BLOCK_WORDS;
	uint64_t before;
	if (gpu < 0)
		return page ? INVALID_ARGUMENT : UNINITIALIZED;
	for (;;) {
		before = load(first + GPU_SEQ);
		for (int i = 0; i < PAGE_BLOCK_WORDS; i++)
			b->word[i] = load(first + i);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (before % 2 == 0 && before == load(first + GPU_SEQ))
			return OK;
		sched_yield(); /* the writer may wait for this core */
	}
}

/* The wait ends early when the word is set back, so that a hang can be ended from outside. */
void stall(int word)
{
	const long step = 5000000;
	for (uint64_t waited = 0; page && waited < load(word); waited += step / 1000) {
		uint64_t left = load(word) - waited;
		struct timespec ts = {0, left < (uint64_t)step / 1000 ? (long)left * 1000 : step};
		nanosleep(&ts, NULL);
	}
}

/* A stubborn wait takes no signal that can be held off, as a wait in the kernel does not. */
static void stall_stubbornly(int word)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	stall(word);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static volatile int *volatile nowhere;

int gpu_call(handle h, int call, block *b)
{
	int code = gpu_read(h, b);
	if (code != OK)
		return code;
	if (b->word[GPU_CALL_MODE + call] == MODE_CRASH)
		*nowhere = 0;
	if (b->word[GPU_CALL_DELAY_US + call]) {
		int word = PAGE_HEADER_WORDS + gpu_of(h) * PAGE_BLOCK_WORDS + GPU_CALL_DELAY_US + call;
		if (b->word[GPU_CALL_MODE + call] == MODE_STUBBORN)
			stall_stubbornly(word);
		else
			stall(word);
		code = gpu_read(h, b);
	}
	return code != OK ? code : (int)b->word[GPU_CALL_CODE + call];
}

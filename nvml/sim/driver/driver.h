/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU. It answers from a page of shared memory that
 * another process writes; page.h says what is where. Never install it.
 *
 * Build (into a folder of its own, so that only a loader that is pointed there finds it):
 *   gcc -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 *.c -lm
 * With -DBRANCH=535 it has only the functions that a driver of that branch has (which fields and metrics there are follows
 * from the version that the page tells). With -DOMIT_GPM, -DOMIT_EVENT_REASONS or -DOMIT_COUNT it lacks functions for good, and
 * with -DOMIT_LINK_FIELDS the bytes over NVLink. With -DOMIT_EVENTS it refuses to tell the events of its second device.
 *
 * Names, codes and struct shapes are the interface that programs for NVML are built against; the declarations here are
 * written for this library. Where the real one differs: nvmlShutdown refuses with "in use" while snapshots or sets of events
 * are not freed, so that a leak shows; and a driver before R575 refuses to be asked for a metric that it cannot know.
 */
#ifndef TPOTSCOPE_DRIVER_H
#define TPOTSCOPE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "page.h"

#ifndef BRANCH
#define BRANCH 999
#endif

#define API __attribute__((visibility("default")))

enum {
	OK = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	TIMEOUT = 10,
	GPU_IS_LOST = 15,
	VERSION_MISMATCH = 18,
	IN_USE = 19,
	NO_MEMORY = 20,
	ARGUMENT_VERSION_MISMATCH = 25,
	UNKNOWN = 999
};

/* Types of event. */
enum { EVENT_XID = 0x8, EVENT_MIG = 0x100, EVENT_KNOWN = 0xfd0f };

/* A handle points at the device's own entry. */
typedef struct device {
	int index;
} *handle;

/* block is a consistent copy of the words of one GPU. */
typedef struct {
	uint64_t word[PAGE_BLOCK_WORDS];
} block;

int page_open(void);                                      /* maps the page; a code */
uint64_t page_header(int word);                           /* one word of the header */
void page_header_text(int word, char *to, size_t length); /* the driver's version */
unsigned driver_branch(void);                             /* of the version that the page tells */
int gpu_of(handle h);                                     /* index of a device or instance, or -1 */
handle handle_of(int index);                              /* or NULL */
int is_device(int index);                                 /* and no instance */
int lacks(const block *b, int counter);                   /* the driver has no such counter for this GPU */
int gpu_read(handle h, block *b);                         /* copies without waiting or failing */
int gpu_call(handle h, int call, block *b);               /* copies, plays the call's delay, and returns its code */
void stall(int word);                                     /* waits for as long as the page's word says, in us */
int copy_text(const uint64_t *words, size_t words_n, char *to, unsigned length);
int gpm_alive(void);                                     /* snapshots that were not freed */
int event_sets_alive(void);                               /* sets that were not freed */

#endif

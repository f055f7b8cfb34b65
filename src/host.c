/* Host memory, threads and small locks. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

bool (*gvmm__host_fault)(void);

static gvmm_host_allocator allocator = {malloc, free};
static atomic_ullong held, memory_held;

void gvmm__hold(void) { atomic_fetch_add(&held, 1); }
void gvmm__unhold(void) { atomic_fetch_sub(&held, 1); }
bool gvmm__held(void) { return atomic_load(&held) != 0; }
void gvmm__hold_memory(void) { atomic_fetch_add(&memory_held, 1); }
void gvmm__unhold_memory(void) { atomic_fetch_sub(&memory_held, 1); }

gvmm_result gvmm_host_allocator_install(const gvmm_host_allocator *replacement)
{
    if (gvmm__held())
        return gvmm__fail(GVMM_E_INVALID, "the host allocator cannot be replaced while a resource is alive");
    if (atomic_load(&memory_held))
        return gvmm__fail(GVMM_E_INVALID, "the host allocator cannot be replaced while threads live that kept memory");
    if (replacement && (!replacement->allocate || !replacement->deallocate))
        return gvmm__fail(GVMM_E_INVALID, "allocator: both functions must be given");
    allocator = replacement ? *replacement : (gvmm_host_allocator){malloc, free};
    return GVMM_OK;
}

static bool is_to_fail(void) { return gvmm__host_fault && gvmm__host_fault(); }

void *gvmm__alloc(size_t size)
{
    void *ptr = is_to_fail() ? NULL : allocator.allocate(size);
    if (!ptr) gvmm__fail(GVMM_E_NO_HOST_MEMORY, "out of host memory: %zu bytes", size);
    return ptr;
}

void gvmm__free(void *ptr) { allocator.deallocate(ptr); }

/* ---- pages ---- */

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* So much more is mapped that they can begin at a huge page; addresses that nobody touches cost nothing. */
void *gvmm__pages_get(size_t size)
{
    char *got = MAP_FAILED;
    if (!is_to_fail() && size <= SIZE_MAX - HUGE_PAGE)
        got = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) {
        gvmm__fail(GVMM_E_NO_HOST_MEMORY, "out of host memory: %zu bytes of pages", size);
        return NULL;
    }
    size_t in_front = HUGE_PAGE - (uintptr_t)got % HUGE_PAGE, behind = HUGE_PAGE - in_front;
    char *pages = got + in_front;
    munmap(got, in_front);
    if (behind) munmap(pages + size, behind);
    madvise(pages, size, MADV_HUGEPAGE); /* a wish */
    madvise(pages, size, MADV_DONTFORK); /* a child would copy what is pinned, or take it from us when we write */
    return pages;
}

void gvmm__pages_put(void *pages, size_t size) { munmap(pages, size); }

bool gvmm__pages_fill(void *pages, size_t size)
{
    if (is_to_fail()) return false;
#ifdef MADV_POPULATE_WRITE
    if (madvise(pages, size, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) return false; /* EINVAL: a kernel before 5.14 */
#endif
    for (size_t at = 0; at < size; at += PAGE) ((volatile char *)pages)[at] = 0;
    return true;
}

/* The number behind `key` in a file of lines "key number", or alone in it where `key` is empty; UINT64_MAX if there is
 * none. */
static uint64_t read_number(const char *path, const char *key)
{
    char line[256];
    uint64_t value = UINT64_MAX;
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");
    while (file && value == UINT64_MAX && fgets(line, sizeof line, file)) {
        unsigned long long number;
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%llu", &number) == 1) value = number;
    }
    if (file) fclose(file);
    return value;
}

/* What a control group leaves; UINT64_MAX where there is none, or no limit. Files that are cached give way. */
static uint64_t group_available(const char *limit_file, const char *used_file, const char *stat_file,
                                const char *cached)
{
    uint64_t limit = read_number(limit_file, ""), used = read_number(used_file, "");
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    uint64_t gives_way = read_number(stat_file, cached);
    if (gives_way != UINT64_MAX) used -= gives_way < used ? gives_way : used;
    return limit > used ? limit - used : 0;
}

uint64_t gvmm__host_available(void)
{
    uint64_t kib = read_number("/proc/meminfo", "MemAvailable:"), least = kib == UINT64_MAX ? kib : kib << 10;
    uint64_t group = group_available("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                                     "/sys/fs/cgroup/memory.stat", "inactive_file ");
    if (group < least) least = group;
    group = group_available("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                            "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat",
                            "total_inactive_file ");
    return group < least ? group : least;
}

/* Those that the program may want on threads of its own, or on none; not those that tell what the thread itself does. */
static void block_signals(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* It has the mask of who starts it. */
bool gvmm__thread_start(pthread_t *out, void *(*run)(void *), void *data)
{
    sigset_t before;
    if (is_to_fail()) return false;
    block_signals(&before);
    bool started = pthread_create(out, NULL, run, data) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* ---- forks ---- */

atomic_bool gvmm__forked;

static void note_child(void)
{
    atomic_store(&gvmm__forked, true);
    gvmm__warnings_in_child();
}

bool gvmm__watch_forks(void)
{
    static bool watching;
    if (!watching) watching = !is_to_fail() && pthread_atfork(NULL, NULL, note_child) == 0;
    return watching;
}

gvmm_result gvmm__fail_in_child(void)
{
    return gvmm__fail(GVMM_E_NO_DRIVER, "the CUDA driver does not work in a child of fork: start processes with exec");
}

/* ---- locks ---- */

/* In a child of fork, where nothing but questions gets here, the holder is not there. */
void gvmm__lock_contended(small_lock *lock)
{
    while (!gvmm__in_child() && atomic_flag_test_and_set_explicit(lock, memory_order_acquire)) sched_yield();
}

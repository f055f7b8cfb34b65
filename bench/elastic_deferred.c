/* Deferred release: how soon the call returns while work is under way, and how soon after its end the memory is back. */
#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "elastic.h"

/* ---- work that lasts until it is told, or for so long ---- */

static const char spin_ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                               ".visible .entry spin(.param .u64 flag, .param .u64 ns)\n{\n"
                               ".reg .pred %p<3>;\n.reg .u32 %r<2>;\n.reg .u64 %d<5>;\n"
                               "ld.param.u64 %d1, [flag];\nld.param.u64 %d2, [ns];\n"
                               "mov.u64 %d3, %globaltimer;\nadd.u64 %d3, %d3, %d2;\n"
                               "again:\nld.volatile.global.u32 %r1, [%d1];\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra done;\n"
                               "mov.u64 %d4, %globaltimer;\nsetp.lt.u64 %p2, %d4, %d3;\n@%p2 bra again;\n"
                               "done:\nret;\n}\n";

/* A kernel that polls a flag in pinned memory; where there are no kernels, a host function that waits on a
 * semaphore. */
static struct {
    CUstream stream;
    CUmodule module; /* NULL: no kernel */
    CUfunction kernel;
    atomic_uint *flag; /* pinned */
    CUdeviceptr flag_there;
    sem_t told;
    double longest; /* us, of the host function */
} work;

static double busy_us(void) { return on_sim || bench_quick ? 30e3 : 300e3; }

static void wait_on_driver_thread(void *unused)
{
    (void)unused;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    long ns = until.tv_nsec + (long)(work.longest * 1e3) % 1000000000L;
    until.tv_sec += (time_t)(work.longest / 1e6) + ns / 1000000000L;
    until.tv_nsec = ns % 1000000000L;
    while (sem_timedwait(&work.told, &until) && errno == EINTR) {}
}

/* Ends when told, or after `us`. */
static void work_begin(double us)
{
    if (work.module) {
        atomic_store(work.flag, 0);
        unsigned long long ns = (unsigned long long)(us * 1e3);
        void *args[] = {&work.flag_there, &ns};
        CU(cu->cuLaunchKernel(work.kernel, 1, 1, 1, 1, 1, 1, 0, work.stream, args, NULL));
    } else {
        work.longest = us;
        CU(cu->cuLaunchHostFunc(work.stream, wait_on_driver_thread, NULL));
    }
}

/* Returns when it told. */
static double work_end(void)
{
    double at = now();
    if (work.module) atomic_store(work.flag, 1);
    else sem_post(&work.told);
    return at;
}

static void work_start(void)
{
    void *flag;
    CU(cu->cuStreamCreate(&work.stream, CU_STREAM_NON_BLOCKING));
    sem_init(&work.told, 0, 0);
    CU(cu->cuMemHostAlloc(&flag, 4096, 0));
    work.flag = flag;
    bool can = !cu->cuMemHostGetDevicePointer(&work.flag_there, flag, 0) &&
               !cu->cuModuleLoadData(&work.module, spin_ptx);
    if (can) can = !cu->cuModuleGetFunction(&work.kernel, work.module, "spin");
    if (!can) work.module = NULL;
    work_begin(1e3); /* the first launch takes longer */
    CU(cu->cuStreamSynchronize(work.stream));
}

static void work_stop(void)
{
    if (work.module) CU(cu->cuModuleUnload(work.module));
    CU(cu->cuMemFreeHost(work.flag));
    CU(cu->cuStreamDestroy(work.stream));
    sem_destroy(&work.told);
}

static const char *work_note(void) { return work.module ? "a spinning kernel" : "a waiting host function"; }

static void sleep_until(double when)
{
    for (double left; (left = when - now()) > 0;) {
        struct timespec t = {(time_t)(left / 1e6), (long)(left * 1e3) % 1000000000L};
        nanosleep(&t, NULL);
    }
}

/* Looks every few microseconds, and leaves the processor to the worker in between. */
static double until_memory_is_back(const gvmm_resource *resource, uint64_t wanted)
{
    for (;;) {
        gvmm_stats stats;
        gvmm_get_stats(resource, &stats);
        if (stats.physical_bytes <= wanted) return now();
        nanosleep(&(struct timespec){0, 2000}, NULL);
    }
}

static void make_many(gvmm_buffer **list, gvmm_resource *resource, size_t size, size_t count)
{
    for (size_t i = 0; i < count; i++) OK(gvmm_buffer_create(&list[i], resource, size, work.stream));
}

/* `count` closes in a row while the stream is busy. */
static void closes(gvmm_resource *resource, size_t size, size_t count)
{
    gvmm_buffer **list = malloc(count * sizeof *list);
    MUST(list);
    samples ours = room_for(count), free_raw = room_for(3), first_back = room_for(1), all_back = room_for(1);
    make_many(list, resource, size, count);
    double start = now();
    work_begin(4 * busy_us());
    for (size_t i = 0; i < count; i++) {
        double at = now();
        OK(gvmm_buffer_close_deferred(list[i], NULL));
        push(&ours, now() - at);
    }
    bool busy = cu->cuStreamQuery(work.stream) == CUDA_ERROR_NOT_READY;
    sleep_until(start + busy_us());
    double end = work_end();
    push(&first_back, until_memory_is_back(resource, (count - 1) * size) - end);
    push(&all_back, until_memory_is_back(resource, 0) - end);
    gvmm_drain();
    for (size_t i = 0; i < count; i++) gvmm_buffer_release(list[i]);
    free(list);

    for (size_t i = 0; i < (bench_quick ? 1 : 3); i++) { /* plain memory, which the device must be done with */
        CUdeviceptr plain;
        CU(cu->cuMemAlloc(&plain, size));
        work_begin(busy_us());
        double at = now();
        CU(cu->cuMemFree(plain));
        push(&free_raw, now() - at);
        CU(cu->cuStreamSynchronize(work.stream));
    }
    /* What the driver needs for as many, when nothing is to be waited for. */
    samples floor = room_for(1);
    raw_chunk *row = malloc(count * sizeof *row);
    MUST(row);
    for (size_t i = 0; i < count; i++) raw_make(&row[i], size, 0);
    double at = now();
    for (size_t i = 0; i < count; i++) raw_unmake(&row[i]);
    push(&floor, now() - at);
    free(row);

    figure f = {
        .name = "close_deferred", .size = size, .chunks = count, .note = "raw: cuMemFree, which waits for the work"};
    report(&f, &ours, &free_raw);
    report_least("close_deferred_outlasted", size, count, busy, NAN, 1, "1: the work outlasted all calls");
    report_value("close_deferred_median", count, samples_median(&ours), NAN, 5, "us");
    report_value("close_deferred_p99", count, samples_quantile(&ours, 0.99), NAN, 50, "us");
    report(&(figure){.name = "deferred_first_back", .size = size, .chunks = count, .note = "from the end of the work"},
           &first_back, NULL);
    report(&(figure){.name = "deferred_all_back",
                     .size = size,
                     .chunks = count,
                     .note = "from the end of the work; raw: unmap, release, address free of as many"},
           &all_back, &floor);
    samples *all[] = {&ours, &free_raw, &first_back, &all_back, &floor};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) samples_free(all[i]);
}

/* From the end of the work until the memory of a buffer that was closed meanwhile is back. `after`: how long the work
 * lasts. */
static double comes_back(gvmm_resource *resource, double after)
{
    gvmm_buffer *buffer;
    make_many(&buffer, resource, G, 1);
    double start = now();
    work_begin(20 * after);
    OK(gvmm_buffer_close_deferred(buffer, NULL));
    gvmm_buffer_release(buffer);
    sleep_until(start + after);
    double end = work_end(), took = until_memory_is_back(resource, 0) - end;
    gvmm_drain();
    return took;
}

/* The same by hand: a thread that does nothing but ask for the end, and then undoes it. */
static double comes_back_by_hand(double after)
{
    raw_chunk chunk;
    raw_make(&chunk, G, 0);
    double start = now();
    work_begin(20 * after);
    sleep_until(start + after);
    double end = work_end();
    while (cu->cuStreamQuery(work.stream) == CUDA_ERROR_NOT_READY) {}
    raw_unmake(&chunk);
    return now() - end;
}

/* One buffer, closed while work runs: how soon after its end is the memory back? The first of each is not counted: what
 * was released before may still cost the driver milliseconds. */
static void one_comes_back(gvmm_resource *resource)
{
    size_t n = bench_quick ? 2 : 40;
    double lasts = busy_us() / 5;
    samples back = room_for(n), by_hand = room_for(n);
    comes_back(resource, lasts);
    comes_back_by_hand(lasts);
    for (size_t i = 0; i < n; i++) {
        push(&back, comes_back(resource, lasts + (double)i * 77)); /* not in step with what looks */
        push(&by_hand, comes_back_by_hand(lasts));
    }
    report(&(figure){.name = "deferred_back",
                     .size = G,
                     .chunks = 1,
                     .note = "one closed; from the end of the work; raw: ask for it without a pause, then undo"},
           &back, &by_hand);
    report_value("deferred_back_most", 1, samples_quantile(&back, 1), samples_quantile(&by_hand, 1), 1000,
                 "us, the longest");
    samples_free(&back);
    samples_free(&by_hand);
}

/* Bytes that gvmm has asked for. */
static atomic_size_t live_bytes;

static void *counting_allocate(size_t size)
{
    size_t *p = malloc(size + 16);
    MUST(p);
    *p = size;
    live_bytes += size;
    return p + 2;
}

static void counting_deallocate(void *ptr)
{
    if (!ptr) return;
    size_t *p = (size_t *)ptr - 2;
    live_bytes -= *p;
    free(p);
}

static size_t from_proc(const char *key)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    size_t value = 0, length = strlen(key);
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, length) == 0) value = strtoull(line + length, NULL, 10);
    if (f) fclose(f);
    return value;
}

/* Ten thousand in flight. Their handles are given up, so that what is left of each is its chunk, which was there
 * before, and what gvmm remembers of the release. */
static void many_in_flight(void)
{
    size_t count = times(10000);
    while (count > 16 && !fits(count * G + 64 * MiB)) count /= 2;
    OK(gvmm_host_allocator_install(&(gvmm_host_allocator){counting_allocate, counting_deallocate}));
    gvmm_resource *resource;
    OK(gvmm_resource_create(&resource, 0, NULL));
    gvmm_buffer **list = malloc(count * sizeof *list), *alias, *first;
    MUST(list);
    make_many(&first, resource, G, 1);
    size_t before = live_bytes;
    OK(gvmm_buffer_grow(&alias, first, 0, NULL)); /* a handle and nothing else */
    size_t handle = live_bytes - before;
    gvmm_buffer_release(alias);
    OK(gvmm_buffer_close_deferred(first, NULL)); /* starts what there is to start */
    gvmm_drain();
    gvmm_buffer_release(first);

    size_t nothing = live_bytes;
    make_many(list, resource, G, count);
    size_t open = live_bytes, rss = from_proc("VmRSS:"), threads = from_proc("Threads:");
    samples each = room_for(count), back = room_for(1);
    double start = now();
    work_begin(4 * busy_us());
    for (size_t i = 0; i < count; i++) {
        double at = now();
        OK(gvmm_buffer_close_deferred(list[i], NULL));
        gvmm_buffer_release(list[i]);
        push(&each, now() - at);
    }
    size_t waiting = live_bytes, rss_more = from_proc("VmRSS:"), threads_more = from_proc("Threads:");
    gvmm_stats stats;
    gvmm_get_stats(NULL, &stats);
    sleep_until(start + busy_us());
    double end = work_end();
    push(&back, until_memory_is_back(resource, 0) - end);
    gvmm_drain();
    MUST(live_bytes == nothing);
    double n = (double)count;
    report(&(figure){.name = "in_flight_close", .size = G, .chunks = count, .note = "and its handle given up"}, &each,
           NULL);
    report(&(figure){.name = "in_flight_all_back", .size = G, .chunks = count}, &back, NULL);
    report_least("in_flight_waiting", G, count, (double)stats.releases_waiting, NAN, n, "releases in flight at once");
    report_value("in_flight_close_most", count, samples_quantile(&each, 1), NAN, NAN, "us, the longest call");
    report_value("in_flight_bytes", count, ((double)waiting - (double)open) / n + (double)handle, NAN, 128,
                 "bytes of gvmm for a release in flight, besides the chunk's");
    report_value("in_flight_bytes_with_chunk", count, ((double)waiting - (double)nothing) / n, NAN, NAN,
                 "bytes of gvmm in all");
    report_value("in_flight_resident_rise", count, ((double)rss_more - (double)rss) * 1024 / n, NAN, NAN,
                 "bytes of the process by release, the driver's events too");
    report_value("in_flight_threads", count, (double)threads_more - (double)threads, NAN, 0,
                 "threads more than when all were open");
    samples_free(&each);
    samples_free(&back);
    free(list);
    gvmm_resource_release(resource);
    OK(gvmm_host_allocator_install(NULL));
}

void deferred(void)
{
    work_start();
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: short sleeps are short */
    fprintf(stderr, "bench_elastic: the stream is kept busy by %s\n", work_note());
    gvmm_resource *resource;
    OK(gvmm_resource_create(&resource, 0, NULL));
    gvmm_buffer *first;
    make_many(&first, resource, G, 1);
    OK(gvmm_buffer_close_deferred(first, NULL)); /* starts the worker */
    gvmm_drain();
    gvmm_buffer_release(first);
    closes(resource, G, times(1000));
    if (fits(20 * 512 * MiB)) closes(resource, 512 * MiB, times(20));
    else report_skip("close_deferred", 512 * MiB, 20, "does not fit in device memory");
    one_comes_back(resource);
    gvmm_resource_release(resource);
    many_in_flight();
    work_stop();
}

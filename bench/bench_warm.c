/* Create and release with kept memory, beside the driver's stream-ordered allocator.
 *
 *     bench_warm [--quick] [--only warm|threads]
 *
 * README.md says what each figure means. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { LOOPS = 1000 };

/* One way to get memory and give it back, in a tight loop on one stream, with no work between. */
typedef struct way {
    const char *name;
    void (*once)(const struct way *w, CUstream stream);
    gvmm_resource *resource; /* NULL for the driver's own */
    size_t size;
    CUstream stream;
} way;

static void create_and_release(const way *w, CUstream stream)
{
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create(&buffer, w->resource, w->size, stream));
    gvmm_buffer_release(buffer);
}

static void alloc_and_free(const way *w, CUstream stream)
{
    CUdeviceptr address;
    CU(cu->cuMemAllocAsync(&address, w->size, stream));
    CU(cu->cuMemFreeAsync(address, stream));
}

static double loop(void *state)
{
    const way *w = state;
    double start = now();
    for (int i = 0; i < LOOPS; i++) w->once(w, w->stream);
    return now() - start;
}

enum { ANY_TIME, OUTLIVE, DRIVER, WAYS };

/* The driver's pool keeps everything, too. */
static void make_ways(way *ways, size_t size, CUstream stream)
{
    static const char *names[] = {"warm", "warm_streams_outlive", "cuMemAllocAsync"};
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = MAX_THREADS * size;
    for (int i = 0; i < WAYS; i++) {
        ways[i] = (way){names[i], i == DRIVER ? alloc_and_free : create_and_release, NULL, size, stream};
        options.streams_outlive = i == OUTLIVE;
        if (i != DRIVER) OK(gvmm_resource_create(&ways[i].resource, 0, &options));
    }
    CUmemoryPool pool;
    uint64_t all = UINT64_MAX;
    CU(cu->cuDeviceGetDefaultMemPool(&pool, 0));
    CU(cu->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static void end_ways(way *ways)
{
    for (int i = 0; i < WAYS; i++) gvmm_resource_release(ways[i].resource);
    gvmm_drain();
    CUmemoryPool pool;
    CU(cu->cuDeviceGetDefaultMemPool(&pool, 0));
    CU(cu->cuMemPoolTrimTo(pool, 0));
}

static void warm(void)
{
    static const size_t sizes[] = {2, 64, 2048};
    static const double targets[] = {2, 10};
    CUstream stream;
    CU(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i] * MiB;
        if (!fits(3 * size)) {
            report_skip("warm", size, 1, "does not fit in device memory");
            continue;
        }
        way ways[WAYS];
        make_ways(ways, size, stream);
        side sides[WAYS];
        samples s[WAYS];
        for (int k = 0; k < WAYS; k++) sides[k] = (side){loop, &ways[k]};
        interleave(s, sides, WAYS, bench_quick ? 20 : 200, 2);
        for (int k = 0; k < DRIVER; k++) {
            report(
                &(figure){
                    .name = ways[k].name, .size = size, .per = LOOPS, .note = "raw: cuMemAllocAsync, cuMemFreeAsync"},
                &s[k], &s[DRIVER]);
            char name[64];
            snprintf(name, sizeof name, "%s_speedup", ways[k].name);
            report_least(name, size, 1, samples_median(&s[DRIVER]) / samples_median(&s[k]), NAN, targets[k],
                         "times as fast as cuMemAllocAsync, cuMemFreeAsync");
        }
        for (int k = 0; k < WAYS; k++) samples_free(&s[k]);
        end_ways(ways);
    }
    CU(cu->cuStreamDestroy(stream));
}

/* ---- threads ---- */

/* The driver's lock, which everything that records an event waits for. */
static void record(const way *w, CUstream stream)
{
    static _Thread_local CUevent event;
    (void)w;
    if (!event) CU(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cu->cuEventRecord(event, stream));
}

static void once_of(const void *state, CUstream stream)
{
    const way *w = state;
    w->once(w, stream);
}

static void threads(void)
{
    way ways[WAYS + 1];
    CUstream streams[MAX_THREADS];
    threads_streams_make(streams);
    make_ways(ways, 2 * MiB, NULL);
    ways[WAYS] = (way){.name = "cuEventRecord", .once = record};
    for (int k = 0; k <= WAYS; k++)
        report_threads(ways[k].name, once_of, &ways[k], streams, 2 * MiB, k == OUTLIVE ? 6 : NAN);
    report_threads("cuStreamIsCapturing_twice", threads_ask, NULL, streams, 0, NAN);
    end_ways(ways);
    threads_streams_end(streams);
}

int main(int argc, char **argv)
{
    bench_start(bench_options(argc, argv, "warm|threads"));
    if (bench_wants("warm")) warm();
    if (bench_wants("threads")) threads();
    return bench_end();
}

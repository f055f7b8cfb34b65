/* gvmm_pool beside the driver's stream-ordered allocator.
 *
 *     bench_pool [--quick] [--only pairs|mixed|cold|threads]
 *
 * README.md says what each figure means. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { LOOPS = 1000, HELD = 64, WARM_UP = 20 };

/* One way to allocate and free. */
typedef struct way {
    const char *name;
    gvmm_pool *pool; /* NULL for the driver's own */
    size_t size;
    CUstream stream;
} way;

static uint64_t take(const way *w, size_t size, CUstream stream)
{
    uint64_t address;
    CUdeviceptr raw;
    if (w->pool) {
        OK(gvmm_pool_malloc(&address, w->pool, size, stream));
        return address;
    }
    CU(cu->cuMemAllocAsync(&raw, size, stream));
    return raw;
}

static void give(const way *w, uint64_t address, CUstream stream)
{
    if (w->pool) OK(gvmm_pool_free(w->pool, address, stream));
    else CU(cu->cuMemFreeAsync(address, stream));
}

enum { ANY_TIME, OUTLIVE, DRIVER, WAYS };

static CUmemoryPool driver_pool(void)
{
    CUmemoryPool pool;
    CU(cu->cuDeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

/* The driver's pool keeps everything, as ours do. */
static void make_ways(way *ways, size_t size, CUstream stream)
{
    static const char *names[] = {"pool", "pool_streams_outlive", "cuMemAllocAsync"};
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    gvmm_resource *resource;
    uint64_t all = UINT64_MAX;
    OK(gvmm_resource_create(&resource, 0, NULL));
    for (int i = 0; i < WAYS; i++) {
        ways[i] = (way){names[i], NULL, size, stream};
        options.streams_outlive = i == OUTLIVE;
        if (i != DRIVER) OK(gvmm_pool_create(&ways[i].pool, resource, &options));
    }
    gvmm_resource_release(resource);
    CU(cu->cuMemPoolSetAttribute(driver_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static void end_ways(way *ways)
{
    for (int i = 0; i < WAYS; i++) gvmm_pool_release(ways[i].pool);
    gvmm_drain();
    CU(cu->cuCtxSynchronize());
    CU(cu->cuMemPoolTrimTo(driver_pool(), 0));
}

/* Times every way in turn, and reports ours beside the driver's. */
static void compare(const char *what, way *ways, double (*run)(void *), size_t size, size_t per, size_t n, size_t batch)
{
    side sides[WAYS];
    samples s[WAYS];
    for (int k = 0; k < WAYS; k++) sides[k] = (side){run, &ways[k]};
    interleave(s, sides, WAYS, n, batch);
    for (int k = 0; k < DRIVER; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", ways[k].name, what);
        report(&(figure){.name = name, .size = size, .per = per, .note = "raw: cuMemAllocAsync, cuMemFreeAsync"}, &s[k],
               &s[DRIVER]);
    }
    static const double targets[] = {2, 10};
    for (int k = 0; k < DRIVER && !*what; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s_speedup", ways[k].name);
        report_least(name, size, 0, samples_median(&s[DRIVER]) / samples_median(&s[k]), NAN, targets[k],
                     "times as fast as cuMemAllocAsync, cuMemFreeAsync");
    }
    for (int k = 0; k < WAYS; k++) samples_free(&s[k]);
}

/* ---- one size ---- */

static double pairs_of(void *state)
{
    const way *w = state;
    double start = now();
    for (int i = 0; i < LOOPS; i++) give(w, take(w, w->size, w->stream), w->stream);
    return now() - start;
}

static void pairs(CUstream stream)
{
    static const size_t sizes[] = {512, 4096, 65536, 1 << 20, 2 << 20, 64 << 20, (size_t)2 << 30, (size_t)8 << 30};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!fits(WAYS * sizes[i])) {
            report_skip("pool", sizes[i], 0, "does not fit in device memory");
            continue;
        }
        way ways[WAYS];
        make_ways(ways, sizes[i], stream);
        compare("", ways, pairs_of, sizes[i], LOOPS, bench_quick ? 20 : 200, 2);
        end_ways(ways);
    }
}

/* ---- many sizes ---- */

/* Sixty-four blocks live, each replaced in turn by one of another size, up to w->size: what was freed seldom fits, so that
 * blocks are split and joined. */
static double mixed_of(void *state)
{
    const way *w = state;
    uint64_t held[HELD] = {0};
    unsigned random = 1;
    double start = now();
    for (int i = 0; i < LOOPS + HELD; i++) {
        random = random * 1664525u + 1013904223u;
        if (i == HELD) start = now();
        if (i >= HELD) give(w, held[i % HELD], w->stream);
        held[i % HELD] = take(w, w->size / 1024 * ((random >> 8) % 1024 + 1), w->stream);
    }
    double took = now() - start;
    for (int i = 0; i < HELD; i++) give(w, held[i], w->stream);
    return took;
}

/* A pool saves memory until that has cost it much, and then takes more: what is timed is how it goes on. */
static void mixed(CUstream stream)
{
    static const size_t sizes[] = {512 << 10, 32 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        way ways[WAYS];
        make_ways(ways, sizes[i], stream);
        for (int k = 0; k < WAYS * WARM_UP; k++) mixed_of(&ways[k % WAYS]);
        compare("_mixed", ways, mixed_of, sizes[i], LOOPS, bench_quick ? 4 : 40, 1);
        end_ways(ways);
    }
}

/* ---- the first time ---- */

static double cold_of(void *state)
{
    const way *w = state;
    double start = now();
    uint64_t address = take(w, w->size, w->stream);
    double took = now() - start;
    give(w, address, w->stream);
    CU(cu->cuStreamSynchronize(w->stream));
    if (w->pool) gvmm_pool_trim(w->pool, 0);
    else CU(cu->cuMemPoolTrimTo(driver_pool(), 0));
    return took;
}

static void cold(CUstream stream)
{
    static const size_t sizes[] = {512, 2 << 20, 32 << 20, 512 << 20, (size_t)8 << 30};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!fits(2 * sizes[i])) {
            report_skip("pool_cold", sizes[i], 0, "does not fit in device memory");
            continue;
        }
        way ways[WAYS];
        make_ways(ways, sizes[i], stream);
        compare("_cold", ways, cold_of, sizes[i], 1, bench_quick ? 4 : 20, 1);
        end_ways(ways);
    }
}

/* ---- threads ---- */

static void pair_of(const void *state, CUstream stream)
{
    const way *w = state;
    give(w, take(w, w->size, stream), stream);
}

static void threads(void)
{
    way ways[WAYS];
    CUstream streams[MAX_THREADS];
    threads_streams_make(streams);
    make_ways(ways, 65536, NULL);
    for (int k = 0; k < WAYS; k++)
        report_threads(ways[k].name, pair_of, &ways[k], streams, 65536, k == OUTLIVE ? 6 : NAN);
    report_threads("cuStreamIsCapturing_twice", threads_ask, NULL, streams, 0, NAN);
    end_ways(ways);
    threads_streams_end(streams);
}

int main(int argc, char **argv)
{
    bench_start(bench_options(argc, argv, "pairs|mixed|cold|threads"));
    CUstream stream;
    CU(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (bench_wants("pairs")) pairs(stream);
    if (bench_wants("mixed")) mixed(stream);
    if (bench_wants("cold")) cold(stream);
    CU(cu->cuStreamDestroy(stream));
    if (bench_wants("threads")) threads();
    return bench_end();
}

/* The loops of bench_peers.py that run without Python between the calls: a shared library, called through ctypes.
 *
 * As in the other benchmarks a failing call ends the program (the worker that loaded this), with the reason on standard
 * error; what is only too large for the device is refused with a reason. One thread at a time. */
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "bench.h"

#define PEERS_API __attribute__((visibility("default")))

/* The two functions of PyTorch's pluggable allocators. */
typedef void *(*pluggable_malloc)(ssize_t size, int device, CUstream stream);
typedef void (*pluggable_free)(void *memory, ssize_t size, int device, CUstream stream);

typedef struct work {
    size_t size; /* bytes */
    CUstream stream;
    pluggable_malloc get; /* for the side "pluggable" */
    pluggable_free give;
} work;

static CUcontext context;
static CUstream stream;
static gvmm_resource *plain;
static const char *why = "";

static int refuse(const char *reason)
{
    why = reason;
    return 1;
}

/* Why the last call was refused. Static. */
PEERS_API const char *peers_why(void) { return why; }

/* How much the device's own pool keeps, bytes; more goes back to the device at every wait. */
static void pool_keeps(uint64_t bytes)
{
    CUmemoryPool own;
    CU(cu->cuDeviceGetDefaultMemPool(&own, 0));
    CU(cu->cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

/* ---- one round: allocate and free ---- */

static void round_raw(const work *w)
{
    raw_chunk chunk;
    raw_make(&chunk, (w->size + G - 1) / G * G, 0);
    raw_wait();
    raw_unmake(&chunk);
}

static void round_mem_alloc(const work *w)
{
    CUdeviceptr address;
    CU(cu->cuMemAlloc(&address, w->size));
    CU(cu->cuMemFree(address));
}

static void round_mem_alloc_async(const work *w)
{
    CUdeviceptr address;
    CU(cu->cuMemAllocAsync(&address, w->size, w->stream));
    CU(cu->cuMemFreeAsync(address, w->stream));
}

static void round_buffer(const work *w)
{
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create(&buffer, plain, w->size, w->stream));
    OK(gvmm_buffer_close(buffer, NULL));
    gvmm_buffer_release(buffer);
}

/* Resources that keep the memory of closed buffers. */
static gvmm_resource *warm, *warm_outlived;

static void open_warm(void)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = UINT64_MAX;
    OK(gvmm_resource_create(&warm, 0, &options));
    options.streams_outlive = true;
    OK(gvmm_resource_create(&warm_outlived, 0, &options));
}

static void round_of_warm(gvmm_resource *of, const work *w)
{
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create(&buffer, of, w->size, w->stream));
    gvmm_buffer_release(buffer);
}

static void round_warm(const work *w) { round_of_warm(warm, w); }
static void round_warm_outlived(const work *w) { round_of_warm(warm_outlived, w); }

#ifdef GVMM_POOL_OPTIONS_INIT /* a gvmm that has pools */
static gvmm_pool *pool, *pool_outlived;

static void open_pools(void)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    OK(gvmm_pool_create(&pool, plain, &options));
    options.streams_outlive = true;
    OK(gvmm_pool_create(&pool_outlived, plain, &options));
}

static void round_of_pool(gvmm_pool *of, const work *w)
{
    uint64_t address;
    OK(gvmm_pool_malloc(&address, of, w->size, w->stream));
    OK(gvmm_pool_free(of, address, w->stream));
}

static void round_pool(const work *w) { round_of_pool(pool, w); }
static void round_pool_outlived(const work *w) { round_of_pool(pool_outlived, w); }

/* For replay.py. Results are those of gvmm. */
PEERS_API int peers_pool_malloc(uint64_t *out, size_t size, CUstream on)
{
    return gvmm_pool_malloc(out, pool, size, on);
}

PEERS_API int peers_pool_free(uint64_t address, CUstream on) { return gvmm_pool_free(pool, address, on); }

/* The most bytes of device memory that the pool had. */
PEERS_API uint64_t peers_pool_peak(void)
{
    gvmm_pool_stats stats;
    gvmm_pool_get_stats(pool, &stats);
    return stats.physical_peak;
}
#else
static void open_pools(void) {}
#endif

static void round_pluggable(const work *w)
{
    void *memory = w->get((ssize_t)w->size, 0, w->stream);
    MUST(memory);
    w->give(memory, (ssize_t)w->size, 0, w->stream);
}

/* A stream of the driver that this library uses. It lives as long as the process. */
PEERS_API CUstream peers_new_stream(void)
{
    CUstream made;
    CU(cu->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
    return made;
}

typedef void (*round_fn)(const work *w);

static round_fn round_of(const char *side)
{
    static const struct {
        const char *name;
        round_fn round;
    } sides[] = {{"raw", round_raw},
                 {"cuMemAlloc", round_mem_alloc},
                 {"cuMemAllocAsync", round_mem_alloc_async},
                 {"gvmm_buffer", round_buffer},
                 {"gvmm_warm", round_warm},
                 {"gvmm_warm_outlived", round_warm_outlived},
#ifdef GVMM_POOL_OPTIONS_INIT
                 {"gvmm_pool", round_pool},
                 {"gvmm_pool_outlived", round_pool_outlived},
#endif
                 {"pluggable", round_pluggable}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        if (strcmp(sides[i].name, side) == 0) return sides[i].round;
    return NULL;
}

/* Finds the driver and makes what the loops use. To be called first, once. */
PEERS_API void peers_open(void)
{
    bench_start(NULL);
    CU(cu->cuCtxGetCurrent(&context));
    stream = peers_new_stream();
    OK(gvmm_resource_create(&plain, 0, NULL));
    pool_keeps(UINT64_MAX);
    open_warm();
    open_pools();
}

/* Times `count` samples of `group` rounds each, after a round that is not counted: what other sides did between may
 * have emptied a cache.
 *
 * get, give  for the side "pluggable"; else NULL.
 * us         `count` times, microseconds of one round.
 * Returns    0, or 1: peers_why says why nothing was measured. */
PEERS_API int peers_sample(const char *side, pluggable_malloc get, pluggable_free give, size_t size, size_t group,
                           size_t count, double *us)
{
    round_fn round = round_of(side);
    if (!round) return refuse("this gvmm has no such side");
    if (!fits(size)) return refuse("does not fit in device memory");
    work w = {size, stream, get, give};
    round(&w);
    for (size_t i = 0; i < count; i++) {
        double start = now();
        for (size_t k = 0; k < group; k++) round(&w);
        us[i] = (now() - start) / (double)group;
    }
    return 0;
}

/* ---- the same from several threads ---- */

typedef struct crew {
    round_fn round;
    work work;
} crew;

static void round_of_crew(const void *state, CUstream on)
{
    const crew *c = state;
    work w = c->work;
    w.stream = on;
    c->round(&w);
}

/* Lets `threads` threads, at most MAX_THREADS, do rounds for `window` microseconds, each on a stream and a processor of its
 * own.
 *
 * us       microseconds for each round that any of them did. Of one thread: the mean over all those processors, as one
 *          may be twice as fast as another.
 * Returns  as peers_sample. */
PEERS_API int peers_threads(const char *side, pluggable_malloc get, pluggable_free give, size_t size, size_t window,
                            size_t threads, double *us)
{
    static CUstream streams[MAX_THREADS]; /* kept: pools are promised that */
    crew c = {round_of(side), {size, NULL, get, give}};
    if (!c.round) return refuse("this gvmm has no such side");
    if (threads < 1 || threads > MAX_THREADS) return refuse("no such number of threads");
    if (!fits(threads * size)) return refuse("does not fit in device memory");
    CU(cu->cuCtxSetCurrent(context));
    for (size_t i = 0; i < MAX_THREADS; i++)
        if (!streams[i]) streams[i] = peers_new_stream();
    *us = 1 / (threads == 1 ? threads_rate_alone(round_of_crew, &c, streams, MAX_THREADS, (double)window)
                            : threads_rate(round_of_crew, &c, streams, 0, threads, (double)window));
    return 0;
}

/* ---- growing by small steps ---- */

/* Every way begins with one step's bytes, of which the first is written, and must end with that byte in place. */
enum { MARK = 0x5a };

static void put_mark(CUdeviceptr address)
{
    CU(cu->cuMemsetD8(address, MARK, 1));
    raw_wait();
}

static void check_mark(CUdeviceptr address)
{
    unsigned char byte = 0;
    CU(cu->cuMemcpyDtoH(&byte, address, 1));
    MUST(byte == MARK);
}

static void grow_gvmm(size_t step, size_t steps, double *us)
{
    gvmm_buffer *buffer, *longer;
    double start = now();
    OK(gvmm_buffer_create_with_capacity(&buffer, plain, step, step * steps, NULL));
    us[0] = now() - start;
    put_mark(gvmm_buffer_address(buffer));
    for (size_t k = 1; k < steps; k++) {
        start = now();
        OK(gvmm_buffer_grow(&longer, buffer, (k + 1) * step, NULL));
        gvmm_buffer_release(buffer);
        us[k] = now() - start;
        buffer = longer;
    }
    check_mark(gvmm_buffer_address(buffer));
    MUST(gvmm_buffer_size(buffer) == step * steps);
    gvmm_buffer_release(buffer);
    gvmm_drain(); /* the next way wants the memory */
}

static void grow_raw(size_t step, size_t steps, double *us)
{
    CUmemGenericAllocationHandle *handles = malloc(steps * sizeof *handles);
    MUST(handles);
    CUdeviceptr base = 0;
    for (size_t k = 0; k < steps; k++) {
        double start = now();
        if (k == 0) CU(cu->cuMemAddressReserve(&base, step * steps, 0, 0, 0));
        CU(cu->cuMemCreate(&handles[k], step, &raw_prop, 0));
        CU(cu->cuMemMap(base + k * step, step, 0, handles[k], 0));
        CU(cu->cuMemSetAccess(base + k * step, step, &raw_access, 1));
        us[k] = now() - start;
        if (k == 0) put_mark(base);
    }
    check_mark(base);
    CU(cu->cuMemUnmap(base, step * steps));
    for (size_t k = 0; k < steps; k++) CU(cu->cuMemRelease(handles[k]));
    CU(cu->cuMemAddressFree(base, step * steps));
    free(handles);
}

/* What people do without virtual memory. Every step ends with a wait, as the copy is what a step costs. */
static void grow_copying(size_t step, size_t steps, double *us)
{
    CUdeviceptr old = 0, larger;
    for (size_t k = 0; k < steps; k++) {
        double start = now();
        CU(cu->cuMemAlloc(&larger, (k + 1) * step));
        if (k) {
            CU(cu->cuMemcpyDtoD(larger, old, k * step));
            CU(cu->cuMemFree(old));
            raw_wait();
        }
        us[k] = now() - start;
        old = larger;
        if (k == 0) put_mark(old);
    }
    check_mark(old);
    CU(cu->cuMemFree(old));
}

/* The same from the device's own pool, which may keep enough for the old and the new memory and as much again. */
static void grow_copying_async(size_t step, size_t steps, double *us)
{
    CUdeviceptr old = 0, larger;
    pool_keeps(3 * step * steps);
    for (size_t k = 0; k < steps; k++) {
        double start = now();
        CU(cu->cuMemAllocAsync(&larger, (k + 1) * step, stream));
        if (k) {
            CU(cu->cuMemcpyDtoDAsync(larger, old, k * step, stream));
            CU(cu->cuMemFreeAsync(old, stream));
        }
        CU(cu->cuStreamSynchronize(stream));
        us[k] = now() - start;
        old = larger;
        if (k == 0) put_mark(old);
    }
    check_mark(old);
    CU(cu->cuMemFreeAsync(old, stream));
    pool_keeps(0);
    CU(cu->cuStreamSynchronize(stream)); /* the pool's memory goes back here */
    pool_keeps(UINT64_MAX);
}

/* Grows from nothing to `steps` times `step` bytes.
 *
 * us       `steps` times, microseconds of each step; the first makes the first `step` bytes.
 * Returns  as peers_sample. */
PEERS_API int peers_grow(const char *way, size_t step, size_t steps, double *us)
{
    static const struct {
        const char *name;
        void (*grow)(size_t step, size_t steps, double *us);
        size_t copies; /* how often the memory is there at the same time */
    } ways[] = {{"gvmm", grow_gvmm, 1},
                {"raw", grow_raw, 1},
                {"cuMemAlloc", grow_copying, 2},
                {"cuMemAllocAsync", grow_copying_async, 3}};
    if (!steps || !step || step % G) return refuse("a step is whole chunks");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].name, way) != 0) continue;
        if (!fits(ways[i].copies * step * steps)) return refuse("does not fit in device memory");
        ways[i].grow(step, steps, us);
        return 0;
    }
    return refuse("there is no such way to grow");
}

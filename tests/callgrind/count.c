/* gvmm's own work, to be counted: operations on a driver that does nothing and an allocator that hardly does.
 *
 *     count             each operation inside a function of its own, measure_NAME, for callgrind to count (run.sh)
 *     count --names     the names of the operations
 *     count --depth     how much stack the release of a long range takes; fails if that depends on its length */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gvmm/driver.h"

enum { G = 2 << 20, LONG = 32768, CLASSES = 64, SEGMENTS = 16, STACK = 64 << 10 };

static void must(int ok, const char *what)
{
    if (ok) return;
    gvmm_error error;
    gvmm_last_error(&error);
    fprintf(stderr, "count: %s (%s)\n", what, error.text);
    exit(1);
}

#define MUST(what) must((what), #what)
#define OK(call) must((call) == GVMM_OK, #call)

/* ---- a driver that says yes ---- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define GVMM_X(need, role, name, symbol, version, params, args) \
    static CUresult yes_##name params { return CUDA_SUCCESS; }
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X

static CUdeviceptr next_address = (CUdeviceptr)1 << 40;
static CUmemGenericAllocationHandle next_handle;
static bool hints_granted = true;

static CUresult some_devices(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

static CUresult some_device(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult any_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    *value = 1;
    return CUDA_SUCCESS;
}

static CUresult some_context(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)&next_address;
    return CUDA_SUCCESS;
}

static CUresult no_context(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult some_id(CUstream stream, unsigned long long *id)
{
    *id = (uintptr_t)stream;
    return CUDA_SUCCESS;
}

static CUresult some_event(CUevent *event, unsigned int flags)
{
    *event = (CUevent)(uintptr_t)0x2000;
    return CUDA_SUCCESS;
}

static CUresult granularity(size_t *out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
    *out = G;
    return CUDA_SUCCESS;
}

/* Far from everything else, so that there is a hole behind. */
static CUresult reserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    if (hint && hints_granted) {
        *out = hint;
    } else {
        *out = next_address;
        next_address += (CUdeviceptr)1 << 40;
    }
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                       unsigned long long flags)
{
    *handle = ++next_handle;
    return CUDA_SUCCESS;
}

static CUresult some_memory(size_t *bytes, CUdevice device)
{
    *bytes = (size_t)4 << 30;
    return CUDA_SUCCESS;
}

static CUresult context_of_stream(CUstream stream, CUcontext *context)
{
    *context = (CUcontext)&next_address;
    return CUDA_SUCCESS;
}

static CUresult not_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

#pragma GCC diagnostic pop

static const gvmm_driver *null_driver(void)
{
    static gvmm_driver table = {
        .origin = "null driver",
#define GVMM_X(need, role, name, symbol, version, params, args) .name = yes_##name,
        GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
    };
    table.cuDeviceGetCount = some_devices;
    table.cuDeviceGet = some_device;
    table.cuDeviceGetAttribute = any_attribute;
    table.cuDevicePrimaryCtxRetain = some_context;
    table.cuCtxGetCurrent = no_context;
    table.cuCtxPopCurrent = no_context;
    table.cuMemGetAllocationGranularity = granularity;
    table.cuMemAddressReserve = reserve;
    table.cuMemCreate = create;
    table.cuStreamIsCapturing = not_capturing;
    table.cuDeviceTotalMem = some_memory;
    table.cuStreamGetCtx = context_of_stream;
    table.cuStreamGetId = some_id;
    table.cuEventCreate = some_event;
    return &table;
}

/* ---- an allocator of a few instructions, always the same: lists of free pieces by size, then the next piece of a large block ---- */

typedef struct piece {
    size_t class;       /* in units of 16 bytes */
    struct piece *next; /* when free; the user's bytes begin here plus 8 */
} piece;

static piece *free_pieces[CLASSES];
static char *block, *block_end;

static void *allocate(size_t size)
{
    size_t class = (size + 15) / 16;
    piece *p = class < CLASSES ? free_pieces[class] : NULL;
    if (p) {
        free_pieces[class] = p->next;
    } else {
        p = (piece *)block;
        block += 16 + class * 16;
        MUST(block <= block_end);
        p->class = class;
    }
    return (char *)p + 16;
}

static void deallocate(void *ptr)
{
    if (!ptr) return;
    piece *p = (piece *)((char *)ptr - 16);
    if (p->class >= CLASSES) return; /* few, and not used again */
    p->next = free_pieces[p->class];
    free_pieces[p->class] = p;
}

/* ---- ranges ---- */

static gvmm_resource *plain, *keeping, *keeping_outlived;
static const gvmm_stream some_stream = (gvmm_stream)0x1000;

static gvmm_buffer *range_of(size_t chunks)
{
    gvmm_buffer *buffer, *longer;
    OK(gvmm_buffer_create(&buffer, plain, G, NULL));
    uint64_t address = gvmm_buffer_address(buffer);
    for (size_t k = 2; k <= chunks; k++) {
        OK(gvmm_buffer_grow(&longer, buffer, k * G, NULL));
        gvmm_buffer_release(buffer);
        buffer = longer;
    }
    MUST(gvmm_buffer_address(buffer) == address);
    return buffer;
}

/* ---- what is counted ---- */

#if defined(__clang__)
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noinline, noclone))
#endif

/* What follows the body keeps its last call from becoming a jump. */
#define MEASURE(name, ...) \
    APART void measure_##name(gvmm_buffer *in, gvmm_buffer **out); \
    void measure_##name(gvmm_buffer *in, gvmm_buffer **out) \
    { \
        (void)in, (void)out; \
        __VA_ARGS__; \
        __asm__ volatile("" ::: "memory"); \
    }

static gvmm_segment segments[SEGMENTS];
static volatile uint64_t sink;

MEASURE(create, OK(gvmm_buffer_create(out, plain, G, NULL)))
MEASURE(close, OK(gvmm_buffer_close(in, NULL)))
MEASURE(create_close, OK(gvmm_buffer_create(out, plain, G, NULL)); OK(gvmm_buffer_close(*out, NULL));
        gvmm_buffer_release(*out))
MEASURE(warm, OK(gvmm_buffer_create(out, keeping, G, some_stream)); gvmm_buffer_release(*out))
MEASURE(warm_streams_outlive, OK(gvmm_buffer_create(out, keeping_outlived, G, some_stream)); gvmm_buffer_release(*out))
MEASURE(full_alias, OK(gvmm_buffer_grow(out, in, 0, NULL)))
MEASURE(full_alias_release, gvmm_buffer_release(in))
MEASURE(getters, sink = gvmm_buffer_address(in) + gvmm_buffer_size(in))
MEASURE(grow_in_place_1, OK(gvmm_buffer_grow(out, in, 2 * (size_t)G, NULL)))
MEASURE(grow_in_place_32768, OK(gvmm_buffer_grow(out, in, (LONG + 1) * (size_t)G, NULL)))
MEASURE(grow_moved_16, OK(gvmm_buffer_grow(out, in, 17 * (size_t)G, NULL)))
MEASURE(segments_16, size_t count; OK(gvmm_buffer_segments(in, segments, SEGMENTS, &count)))
MEASURE(release_1024, gvmm_buffer_release(in))
MEASURE(release_8192, gvmm_buffer_release(in))
MEASURE(release_32768, gvmm_buffer_release(in))

#define STREAM some_stream
static gvmm_pool *pool;
static uint64_t address;

MEASURE(pool_pair, OK(gvmm_pool_malloc(&address, pool, 65536, STREAM)); OK(gvmm_pool_free(pool, address, STREAM)))
MEASURE(pool_pair_streams_outlive, OK(gvmm_pool_malloc(&address, pool, 65536, STREAM));
        OK(gvmm_pool_free(pool, address, STREAM)))
MEASURE(pool_malloc_split, OK(gvmm_pool_malloc(&address, pool, 3000, STREAM)))

static const char names[] =
    "create close create_close warm warm_streams_outlive full_alias full_alias_release getters grow_in_place_1 grow_in_place_32768 "
    "grow_moved_16 segments_16 release_1024 release_8192 release_32768 "
    "pool_pair pool_pair_streams_outlive pool_malloc_split";

static void warm_up_pool(void)
{
    for (int i = 0; i < 10; i++) {
        OK(gvmm_pool_malloc(&address, pool, 65536, STREAM));
        OK(gvmm_pool_free(pool, address, STREAM));
    }
}

static void measure_pools(void)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    OK(gvmm_pool_create(&pool, plain, &options));
    warm_up_pool();
    measure_pool_pair(NULL, NULL);
    uint64_t others[2];
    for (int i = 0; i < 2; i++) OK(gvmm_pool_malloc(&others[i], pool, 3000, STREAM));
    measure_pool_malloc_split(NULL, NULL);
    OK(gvmm_pool_free(pool, address, STREAM));
    for (int i = 0; i < 2; i++) OK(gvmm_pool_free(pool, others[i], STREAM));
    gvmm_pool_release(pool);
    options.streams_outlive = true;
    OK(gvmm_pool_create(&pool, plain, &options));
    warm_up_pool();
    measure_pool_pair_streams_outlive(NULL, NULL);
    gvmm_pool_release(pool);
}

/* There is one, and this thread's front for it comes first. */
static void keep_one(gvmm_resource *resource)
{
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create(&buffer, resource, G, some_stream));
    gvmm_buffer_release(buffer);
}

/* Everything is done twice, so that lists of free pieces are filled and nothing is done for the first time when it counts. The second
 * time is what counts. */
static void measure_all(void)
{
    gvmm_buffer *out, *one = range_of(1);

    measure_create(NULL, &out);
    measure_close(out, NULL);
    gvmm_buffer_release(out);
    measure_create_close(NULL, &out);
    keep_one(keeping);
    measure_warm(NULL, &out);
    keep_one(keeping_outlived);
    measure_warm_streams_outlive(NULL, &out);
    measure_full_alias(one, &out);
    measure_getters(one, NULL);
    measure_full_alias_release(out, NULL);
    measure_grow_in_place_1(one, &out);
    gvmm_buffer_release(out);
    gvmm_buffer_release(one);

    gvmm_buffer *some = range_of(16);
    measure_segments_16(some, NULL);
    hints_granted = false;
    measure_grow_moved_16(some, &out);
    hints_granted = true;
    MUST(gvmm_buffer_address(out) != gvmm_buffer_address(some));
    gvmm_buffer_release(out);
    gvmm_buffer_release(some);

    measure_release_1024(range_of(1024), NULL);
    measure_release_8192(range_of(8192), NULL);
    gvmm_buffer *many = range_of(LONG);
    measure_grow_in_place_32768(many, &out);
    gvmm_buffer_release(out);
    measure_release_32768(many, NULL);
    measure_pools();
}

/* ---- depth ---- */

static void *release_it(void *buffer)
{
    gvmm_buffer_release(buffer);
    return NULL;
}

/* Releases a range on a thread with a small stack, which it has painted before. Answers how much of the paint is gone. */
static size_t depth_of_release(size_t chunks)
{
    unsigned char *guard = mmap(NULL, 2 * STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *stack = guard + STACK;
    MUST(guard != MAP_FAILED && mprotect(stack, STACK, PROT_READ | PROT_WRITE) == 0);
    memset(stack, 0xa5, STACK);
    gvmm_buffer *buffer = range_of(chunks);
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    MUST(pthread_attr_setstack(&attr, stack, STACK) == 0);
    MUST(pthread_create(&thread, &attr, release_it, buffer) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attr);
    size_t untouched = 0;
    while (untouched < STACK && stack[untouched] == 0xa5) untouched++;
    munmap(guard, 2 * STACK);
    return STACK - untouched;
}

static int measure_depth(void)
{
    depth_of_release(1); /* what is done once is done now */
    size_t one = depth_of_release(1), many = depth_of_release(LONG);
    printf("release of 1 chunk: %zu bytes of stack, thread's own included; of %d chunks: %zu\n", one, LONG, many);
    if (many <= one + 256) return 0;
    printf("the depth of the stack depends on the length of the range\n");
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--names") == 0) {
        puts(names);
        return 0;
    }
    size_t size = (size_t)64 << 20;
    block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(block != MAP_FAILED);
    block_end = block + size;
    OK(gvmm_host_allocator_install(&(gvmm_host_allocator){allocate, deallocate}));
    OK(gvmm_driver_install(null_driver()));
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.release_mode = GVMM_RELEASE_SYNC; /* all of it on this thread */
    OK(gvmm_resource_create(&plain, 0, &options));
    options.release_mode = GVMM_RELEASE_DEFERRED;
    options.reuse_limit = G;
    OK(gvmm_resource_create(&keeping, 0, &options));
    options.streams_outlive = true;
    OK(gvmm_resource_create(&keeping_outlived, 0, &options));
    int status = 0;
    if (argc > 1 && strcmp(argv[1], "--depth") == 0) {
        status = measure_depth();
    } else {
        for (int i = 0; i < 2; i++) measure_all();
    }
    gvmm_resource_release(keeping);
    gvmm_resource_release(keeping_outlived);
    gvmm_drain();
    gvmm_stats stats;
    gvmm_get_stats(NULL, &stats);
    MUST(!stats.buffers && !stats.mappings && !stats.memories && !stats.reservations);
    gvmm_resource_release(plain);
    return status;
}

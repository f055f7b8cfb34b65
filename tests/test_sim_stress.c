/* Random calls from eight threads at once, with faults, in rounds on new machines. Asked of each round: it ends, bytes
 * that nobody else touched are right, and when every thread has given back what it owns nothing is left. */
#include <dirent.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "sim_kit.h"

enum { THREADS = 8, ROUNDS = 20, OPERATIONS = SANITIZED ? 10000 : 100000, PER_THREAD = OPERATIONS / ROUNDS / THREADS };
enum { FEW = 4, SHARED = 64 };

static const gvmm_driver *faulty; /* the random calls; `cu`, which goes past the faults, only cleans up */
static bool risky;                /* memory may be unmapped under queued work in this round */
static pthread_barrier_t together;
static atomic_uint objects_made, objects_destroyed;
static _Atomic uint64_t shared_streams[SHARED], shared_events[SHARED], shared_execs[SHARED], shared_memory[SHARED];

typedef struct worker {
    pthread_t thread;
    uint64_t random;
    CUcontext own;      /* NULL: lost */
    CUstream quiet;     /* only for the steady memory: nobody else knows it */
    block steady;       /* mapped for the whole round; its first half is touched by this thread alone */
    unsigned char last; /* what that is filled with; 0 is unknown */
    block blocks[FEW];
    bool mapped[FEW];
    CUdeviceptr plain_memory[FEW], pooled[FEW];
    void *pinned[FEW];
    CUstream streams[FEW];
    CUevent events[FEW];
    CUgraph graphs[FEW];
    CUgraphExec execs[FEW];
    CUuserObject objects[FEW];
    CUmemoryPool pool;
    unsigned long long successes;
    char host[4096];
} worker;

static void expect(bool fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "%s\n", what); /* on any thread, where Check cannot help */
    abort();
}

static uint64_t next_random(worker *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

static unsigned below(worker *w, unsigned n) { return (unsigned)(next_random(w) >> 20) % n; }

/* The fault plans answer TIMEOUT and nothing else does. A failed undo call has undone; one that was refused has not. */
static bool undone(CUresult r)
{
    return r == CUDA_SUCCESS || r == CUDA_ERROR_TIMEOUT || r == CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void publish(worker *w, _Atomic uint64_t *where, uint64_t value)
{
    atomic_store(&where[below(w, SHARED)], value);
}

/* Somebody's, alive or not: mostly one's own. */
#define ANY(kind, own, shared) \
    static kind any_##kind(worker *w) \
    { \
        if (below(w, 4)) return w->own[below(w, FEW)]; \
        return (kind)(uintptr_t)atomic_load(&shared[below(w, SHARED)]); \
    }
ANY(CUevent, events, shared_events)
ANY(CUgraphExec, execs, shared_execs)

static CUstream any_stream(worker *w)
{
    switch (below(w, 12)) {
    case 0: return CU_STREAM_LEGACY;
    case 1: return CU_STREAM_PER_THREAD;
    case 2: return NULL;
    case 3:
    case 4: return (CUstream)(uintptr_t)atomic_load(&shared_streams[below(w, SHARED)]);
    default: return w->streams[below(w, FEW)];
    }
}

/* ---------------------------------------------------------------------------------------------
 * What a thread may do. Each answers the last call's status.
 * ------------------------------------------------------------------------------------------- */

static void linger(void *data)
{
    (void)data;
    nanosleep(&(struct timespec){0, 50000}, NULL);
}

/* A host function that stands in for a kernel, over memory that may be gone. */
static void kernel(void *data)
{
    CUdeviceptr address = (uintptr_t)data;
    char bytes[64];
    if (gvmm_sim_read(0, bytes, address, sizeof bytes) == CUDA_SUCCESS) gvmm_sim_write(0, address, bytes, sizeof bytes);
}

static void object_destroyed(void *data)
{
    (void)data;
    atomic_fetch_add(&objects_destroyed, 1);
}

static void drop_block(worker *w, int i, const gvmm_driver *d)
{
    block *b = &w->blocks[i];
    if (w->mapped[i] && undone(d->cuMemUnmap(b->address, b->size))) w->mapped[i] = false;
    if (b->handle && undone(d->cuMemRelease(b->handle))) b->handle = 0;
    if (b->address && !w->mapped[i] && undone(d->cuMemAddressFree(b->address, b->size))) b->address = 0;
}

static CUresult do_block(worker *w)
{
    int i = (int)below(w, FEW);
    block *b = &w->blocks[i];
    if (b->address || b->handle) return drop_block(w, i, faulty), CUDA_SUCCESS;
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, (int)below(w, 2),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemAccessDesc desc[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                               {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    b->size = G * (1 + below(w, 3));
    CUresult r = faulty->cuMemAddressReserve(&b->address, b->size, 0, 0, 0);
    if (r) return b->address = 0, r;
    r = faulty->cuMemCreate(&b->handle, b->size, &prop, 0);
    if (r) return b->handle = 0, r;
    r = faulty->cuMemMap(b->address, b->size, 0, b->handle, 0);
    w->mapped[i] = r == CUDA_SUCCESS;
    if (!r) r = faulty->cuMemSetAccess(b->address, b->size, desc, 2);
    if (!r && risky) publish(w, shared_memory, b->address);
    return r;
}

/* The same memory twice, through a second handle or a descriptor. */
static CUresult do_alias(worker *w)
{
    int i = (int)below(w, FEW), fd;
    CUmemGenericAllocationHandle again;
    if (!w->mapped[i]) return CUDA_SUCCESS;
    CUresult r;
    if (below(w, 4)) {
        r = faulty->cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(w->blocks[i].address + below(w, 100)));
    } else {
        if (!w->blocks[i].handle) return CUDA_SUCCESS;
        r = faulty->cuMemExportToShareableHandle(&fd, w->blocks[i].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (r) return r;
        r = faulty->cuMemImportFromShareableHandle(&again, (void *)(uintptr_t)(unsigned)fd,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        close(fd);
    }
    if (r) return r;
    r = faulty->cuMemRelease(again);
    expect(undone(r), "a handle was not released");
    return r;
}

/* Only this thread writes there, in the order of one stream: after a wait the bytes must be right. */
static CUresult do_steady(worker *w)
{
    unsigned char value = (unsigned char)(1 + below(w, 255)), back[64] = {0};
    size_t half = w->steady.size / 2, at = below(w, (unsigned)half - 64);
    if (w->last && faulty->cuMemcpyDtoH(back, w->steady.address + at, sizeof back) == CUDA_SUCCESS)
        for (size_t i = 0; i < sizeof back; i++) expect(back[i] == w->last, "bytes that nobody else touched are wrong");
    w->last = 0;
    CUresult r = faulty->cuMemsetD8Async(w->steady.address, value, half, w->quiet);
    if (!r) r = faulty->cuStreamSynchronize(w->quiet);
    if (!r) w->last = value;
    return r;
}

/* Work on memory of one's own that will be there, or in a risky round on any. */
static CUdeviceptr target(worker *w)
{
    if (!risky) return 0;
    if (below(w, 3)) return w->blocks[below(w, FEW)].address;
    return atomic_load(&shared_memory[below(w, SHARED)]);
}

static CUresult do_work(worker *w)
{
    CUstream s = any_stream(w);
    CUdeviceptr p = target(w), q = target(w), own = w->plain_memory[0];
    switch (below(w, 9)) {
    case 0: return faulty->cuLaunchHostFunc(s, linger, NULL);
    case 1: return p ? faulty->cuMemsetD8Async(p, 1, 1 + below(w, (unsigned)G), s) : CUDA_SUCCESS;
    case 2: return p && q ? faulty->cuMemcpyDtoDAsync(p, q, 1 + below(w, (unsigned)G), s) : CUDA_SUCCESS;
    case 3: return p ? faulty->cuMemcpyHtoDAsync(p, w->host, sizeof w->host, s) : CUDA_SUCCESS;
    case 4: return p ? faulty->cuMemcpyDtoH(w->host, p, sizeof w->host) : CUDA_SUCCESS;
    case 5: return p ? faulty->cuLaunchHostFunc(s, kernel, (void *)(uintptr_t)p) : CUDA_SUCCESS;
    case 6: return own ? faulty->cuMemsetD32(own, below(w, 1000), 100) : CUDA_SUCCESS;
    case 7: return own ? faulty->cuMemcpyHtoD(own, w->host, 64) : CUDA_SUCCESS;
    default: return faulty->cuLaunchHostFunc(s, linger, NULL);
    }
}

static CUresult do_stream(worker *w)
{
    CUstream *s = &w->streams[below(w, FEW)];
    if (*s) {
        CUresult r = faulty->cuStreamDestroy(*s);
        if (undone(r) || r == CUDA_ERROR_INVALID_HANDLE) *s = NULL; /* or gone with its context */
        return r;
    }
    CUresult r = faulty->cuStreamCreateWithPriority(s, below(w, 2), -(int)below(w, 3));
    if (r) *s = NULL;
    else publish(w, shared_streams, (uintptr_t)*s);
    return r;
}

static CUresult do_wait(worker *w)
{
    CUstreamCaptureStatus status;
    CUstream s = any_stream(w);
    float time;
    switch (below(w, 10)) {
    case 0: return faulty->cuStreamSynchronize(s);
    case 1: return faulty->cuStreamQuery(s);
    case 2: return faulty->cuEventSynchronize(any_CUevent(w));
    case 3: return faulty->cuEventQuery(any_CUevent(w));
    case 4: return faulty->cuCtxSynchronize();
    case 5: return faulty->cuStreamIsCapturing(s, &status);
    case 6: return faulty->cuEventElapsedTime(&time, any_CUevent(w), any_CUevent(w));
    case 7: return faulty->cuEventRecord(any_CUevent(w), s);
    default: return faulty->cuStreamWaitEvent(s, any_CUevent(w), 0);
    }
}

static CUresult do_event(worker *w)
{
    CUevent *e = &w->events[below(w, FEW)];
    if (*e && below(w, 2)) return faulty->cuEventRecord(*e, any_stream(w));
    if (*e) {
        CUresult r = faulty->cuEventDestroy(*e);
        if (undone(r) || r == CUDA_ERROR_INVALID_HANDLE) *e = NULL;
        return r;
    }
    CUresult r = faulty->cuEventCreate(e, below(w, 2) ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT);
    if (r) *e = NULL;
    else publish(w, shared_events, (uintptr_t)*e);
    return r;
}

static void drop_graph(CUgraph *g, const gvmm_driver *d)
{
    if (*g && undone(d->cuGraphDestroy(*g))) *g = NULL;
}

static CUresult do_capture(worker *w)
{
    CUstream s = w->streams[below(w, FEW)];
    CUgraph *g = &w->graphs[below(w, FEW)], captured = NULL;
    if (!s) return CUDA_SUCCESS;
    if (below(w, 2)) return faulty->cuStreamBeginCapture(s, (CUstreamCaptureMode)below(w, 3));
    drop_graph(g, faulty);
    if (*g) return CUDA_SUCCESS;
    CUresult r = faulty->cuStreamEndCapture(s, &captured);
    if (!r) *g = captured;
    return r;
}

static CUresult do_graph(worker *w)
{
    CUgraph *g = &w->graphs[below(w, FEW)], other = w->graphs[below(w, FEW)];
    CUgraphNode nodes[3];
    CUDA_HOST_NODE_PARAMS host = {linger, NULL};
    CUDA_MEMSET_NODE_PARAMS set = {
        .dst = w->steady.address + w->steady.size / 2, .value = 1, .elementSize = 4, .width = 50, .height = 1};
    if (!*g) {
        CUresult r = other && below(w, 2) ? faulty->cuGraphClone(g, other) : faulty->cuGraphCreate(g, 0);
        if (r) *g = NULL;
        return r;
    }
    if (below(w, 4) == 0) return drop_graph(g, faulty), CUDA_SUCCESS;
    CUresult r = faulty->cuGraphAddEmptyNode(&nodes[0], *g, NULL, 0);
    if (!r) r = faulty->cuGraphAddMemsetNode(&nodes[1], *g, nodes, 1, &set, w->own);
    if (!r) r = faulty->cuGraphAddHostNode(&nodes[2], *g, nodes, 2, &host);
    size_t count = 8;
    CUgraphNode list[8];
    if (!r) r = faulty->cuGraphGetNodes(*g, list, &count);
    if (!r && other && other != *g && below(w, 8) == 0)
        r = faulty->cuGraphAddChildGraphNode(&nodes[0], *g, NULL, 0, other);
    return r;
}

static CUresult do_exec(worker *w)
{
    CUgraphExec *x = &w->execs[below(w, FEW)];
    CUgraph g = w->graphs[below(w, FEW)];
    if (below(w, 2)) return faulty->cuGraphLaunch(any_CUgraphExec(w), any_stream(w));
    if (*x) {
        CUresult r = faulty->cuGraphExecDestroy(*x); /* a capture may refuse it: then it has failed twice */
        if (r == CUDA_SUCCESS) *x = NULL;
        return r;
    }
    if (!g) return CUDA_SUCCESS;
    CUresult r = faulty->cuGraphInstantiateWithFlags(x, g, 0);
    if (r) *x = NULL;
    else publish(w, shared_execs, (uintptr_t)*x);
    return r;
}

/* Also for the graph under capture. */
static CUresult do_object(worker *w)
{
    CUuserObject *o = &w->objects[below(w, FEW)];
    CUgraph g = w->graphs[below(w, FEW)];
    if (!*o) {
        CUresult r = faulty->cuUserObjectCreate(o, NULL, object_destroyed, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
        if (r) *o = NULL;
        else atomic_fetch_add(&objects_made, 1);
        return r;
    }
    CUstreamCaptureStatus status;
    CUstream s = w->streams[below(w, FEW)];
    if (s && below(w, 2)) faulty->cuStreamGetCaptureInfo(s, &status, NULL, &g, NULL, NULL);
    if (g && below(w, 2)) {
        bool move = below(w, 2);
        CUresult r = faulty->cuGraphRetainUserObject(g, *o, 1, move ? CU_GRAPH_USER_OBJECT_MOVE : 0);
        if (!r && move) *o = NULL;
        return r;
    }
    CUresult r = faulty->cuUserObjectRelease(*o, 1);
    if (undone(r)) *o = NULL;
    return r;
}

/* Addresses are not given twice: one that is kept by mistake harms nothing, and cuMemFree settles it in the end. */
static CUresult do_pooled(worker *w)
{
    int i = (int)below(w, FEW);
    CUdeviceptr *p = &w->pooled[i];
    CUresult r;
    if (*p) {
        r = faulty->cuMemFreeAsync(*p, any_stream(w));
        if (r == CUDA_SUCCESS) *p = 0;
        return r;
    }
    size_t size = 1 + below(w, 5000000);
    r = w->pool && below(w, 2) ? faulty->cuMemAllocFromPoolAsync(p, size, w->pool, any_stream(w))
                               : faulty->cuMemAllocAsync(p, size, any_stream(w));
    if (r) *p = 0;
    return r;
}

static CUresult do_pool(worker *w)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)below(w, 2)}};
    if (w->pool && below(w, 2)) return faulty->cuMemPoolTrimTo(w->pool, below(w, 10000000));
    if (w->pool) {
        CUresult r = faulty->cuMemPoolDestroy(w->pool);
        if (undone(r)) w->pool = NULL;
        return r;
    }
    CUresult r = faulty->cuMemPoolCreate(&w->pool, &props);
    if (r) w->pool = NULL;
    return r;
}

/* A failed context or a capture refuses to free these; then it is done when all is over. */
static CUresult do_plain(worker *w)
{
    CUdeviceptr *p = &w->plain_memory[below(w, FEW)];
    if (*p) {
        CUresult r = faulty->cuMemFree(*p);
        if (r == CUDA_SUCCESS) *p = 0;
        return r;
    }
    CUresult r = faulty->cuMemAlloc(p, 1000 + below(w, 5000000));
    if (r) *p = 0;
    return r;
}

static CUresult do_pinned(worker *w)
{
    void **p = &w->pinned[below(w, FEW)];
    if (*p) {
        CUresult r = faulty->cuMemFreeHost(*p);
        if (r == CUDA_SUCCESS) *p = NULL;
        return r;
    }
    CUresult r = faulty->cuMemHostAlloc(p, 1 + below(w, 10000), 0);
    if (r) *p = NULL;
    return r;
}

static CUresult do_context(worker *w)
{
    CUcontext context;
    CUstreamCaptureMode mode = (CUstreamCaptureMode)below(w, 3);
    size_t available;
    int device = (int)below(w, 2);
    CUresult r;
    switch (below(w, 40)) {
    case 0:
        if (!w->own) {
            r = faulty->cuCtxCreate(&w->own, 0, device);
            if (r) w->own = NULL;
            return r;
        }
        r = faulty->cuCtxDestroy(w->own);
        if (undone(r)) w->own = NULL;
        return r;
    case 1: /* it takes plain memory from under everybody's work */
        return below(w, 4) || !risky ? CUDA_SUCCESS : faulty->cuDevicePrimaryCtxReset(1);
    case 2: return faulty->cuMemGetInfo(&available, NULL);
    case 3: return faulty->cuThreadExchangeStreamCaptureMode(&mode);
    case 4: return faulty->cuCtxSetCurrent(w->own);
    default: break;
    }
    if (below(w, 2)) return faulty->cuCtxPopCurrent(NULL);
    if (w->own && below(w, 2)) return faulty->cuCtxPushCurrent(w->own);
    r = faulty->cuDevicePrimaryCtxRetain(&context, device);
    if (r) return r;
    r = faulty->cuCtxPushCurrent(context);
    faulty->cuDevicePrimaryCtxRelease(device); /* the round has one too */
    return r;
}

static CUresult (*const deeds[])(worker *w) = {
    do_block,  do_block,  do_alias,  do_steady, do_steady, do_work,    do_work,  do_work,
    do_stream, do_wait,   do_wait,   do_event,  do_event,  do_capture, do_graph, do_graph,
    do_exec,   do_object, do_pooled, do_pool,   do_pinned, do_context,
};
#define DEEDS (sizeof deeds / sizeof *deeds)

/* ---------------------------------------------------------------------------------------------
 * A round
 * ------------------------------------------------------------------------------------------- */

static CUcontext spare; /* never used for work */

static void print_finding(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "finding: %s\n", text);
}

/* An error that sticks, sticks to all contexts: nothing can be freed then but what a reset takes. With a context
 * current. */
static bool has_failed(void)
{
    CUdeviceptr any;
    CUresult r = cu->cuMemAlloc(&any, 1);
    if (!r) expect(cu->cuMemFree(any) == CUDA_SUCCESS, "all work cannot be waited for");
    else if (!risky || r != CUDA_ERROR_ILLEGAL_ADDRESS) {
        gvmm_sim_findings(print_finding, NULL);
        expect(false, gvmm_driver_status_name((int)r));
    }
    return r != CUDA_SUCCESS;
}

static void leave_streams(worker *w)
{
    while (cu->cuCtxPopCurrent(NULL) == CUDA_SUCCESS) {}
    expect(cu->cuCtxPushCurrent(spare) == CUDA_SUCCESS, "the spare context is not there");
    for (int i = 0; i < FEW; i++) {
        if (w->streams[i]) cu->cuStreamDestroy(w->streams[i]); /* its captures end */
        if (w->events[i]) cu->cuEventDestroy(w->events[i]);
    }
    if (w->own) expect(cu->cuCtxDestroy(w->own) == CUDA_SUCCESS, "a context of one's own is not there");
}

static void leave_rest(worker *w)
{
    bool failed = has_failed();
    CUresult r = cu->cuStreamDestroy(w->quiet);
    expect(r == (failed ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS), "the quiet stream is not there");
    for (int i = 0; i < FEW; i++) {
        if (w->execs[i]) cu->cuGraphExecDestroy(w->execs[i]);
        drop_graph(&w->graphs[i], cu);
        expect(!w->graphs[i], "a graph is not there");
        if (w->objects[i])
            expect(cu->cuUserObjectRelease(w->objects[i], 1) == CUDA_SUCCESS, "a user object is not there");
        if (w->plain_memory[i]) cu->cuMemFree(w->plain_memory[i]); /* what a failed free has freed is a finding */
        if (w->pooled[i]) cu->cuMemFree(w->pooled[i]);
        if (w->pinned[i]) cu->cuMemFreeHost(w->pinned[i]);
        drop_block(w, i, cu);
        expect(!w->mapped[i] && !w->blocks[i].handle && !w->blocks[i].address, "memory was not given back");
    }
    if (w->pool) cu->cuMemPoolDestroy(w->pool);
    expect(cu->cuMemUnmap(w->steady.address, w->steady.size) == CUDA_SUCCESS, "steady memory is not mapped");
    expect(cu->cuMemRelease(w->steady.handle) == CUDA_SUCCESS, "steady memory is not there");
    expect(cu->cuMemAddressFree(w->steady.address, w->steady.size) == CUDA_SUCCESS, "steady addresses are not there");
    cu->cuCtxPopCurrent(NULL);
}

static void *work(void *argument)
{
    worker *w = argument;
    CUcontext primary;
    pthread_barrier_wait(&together);
    if (cu->cuCtxCreate(&w->own, 0, (int)below(w, 2))) w->own = NULL;
    if (cu->cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS && below(w, 2)) cu->cuCtxPushCurrent(primary);
    cu->cuDevicePrimaryCtxRelease(0);
    for (int i = 0; i < PER_THREAD; i++) {
        CUresult r = below(w, 100) == 0 ? do_plain(w) : deeds[below(w, DEEDS)](w);
        w->successes += r == CUDA_SUCCESS;
        if (r == CUDA_ERROR_INVALID_CONTEXT || r == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
            if (!w->own && cu->cuCtxCreate(&w->own, 0, (int)below(w, 2))) w->own = NULL;
            if (w->own) cu->cuCtxSetCurrent(w->own);
        }
    }
    pthread_barrier_wait(&together);
    leave_streams(w);
    pthread_barrier_wait(&together);
    leave_rest(w);
    return NULL;
}

static void plan_faults(worker *w, char *text, size_t size)
{
    static const char *const often[] = {"cuMemCreate",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuMemUnmap",
                                        "cuMemRelease",
                                        "cuMemAddressFree",
                                        "cuMemAddressReserve",
                                        "cuStreamCreateWithPriority",
                                        "cuStreamDestroy",
                                        "cuStreamSynchronize",
                                        "cuStreamWaitEvent",
                                        "cuEventRecord",
                                        "cuStreamBeginCapture",
                                        "cuStreamEndCapture",
                                        "cuGraphInstantiateWithFlags",
                                        "cuGraphExecDestroy",
                                        "cuUserObjectRelease",
                                        "cuLaunchHostFunc",
                                        "cuMemFreeAsync",
                                        "cuCtxDestroy",
                                        "cuDevicePrimaryCtxRelease",
                                        "cuMemsetD8Async"};
    gvmm_fault plan = {
        .nth = 1 + below(w, PER_THREAD * THREADS), .onwards = below(w, 3) == 0, .status = CUDA_ERROR_TIMEOUT};
    if (below(w, 2)) {
        plan.call = often[below(w, sizeof often / sizeof *often)];
        plan.nth = 1 + below(w, 50);
        plan.onwards = true;
    }
    if (below(w, 5) == 0) plan.nth = 0;
    ck_ok(gvmm_faults_set(&plan));
    snprintf(text, size, "%s:%llu%s", plan.call ? plan.call : "any", (unsigned long long)plan.nth,
             plan.onwards ? "+" : "");
}

typedef struct addresses {
    CUdeviceptr items[4096];
    size_t count;
} addresses;

static void add_pooled(void *user, const gvmm_sim_item *item)
{
    addresses *a = user;
    if (item->kind == GVMM_SIM_POOLED && a->count < 4096) a->items[a->count++] = item->address;
}

/* A queued free that its context did not live to see was no free. */
static void free_what_streams_did_not(void)
{
    static addresses left;
    left.count = 0;
    gvmm_sim_census(NULL, add_pooled, &left);
    for (size_t i = 0; i < left.count; i++) ck_cu(cu->cuMemFree(left.items[i]));
}

static bool is_stuck(int kind)
{
    return kind == GVMM_SIM_PLAIN || kind == GVMM_SIM_POOLED || kind == GVMM_SIM_PINNED || kind == GVMM_SIM_REGISTERED;
}

static void ck_everything_came_back(int round, bool failed)
{
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    for (int kind = 0; kind < GVMM_SIM_KIND_COUNT; kind++)
        ck_assert_msg(counts[kind] == 0 || (failed && is_stuck(kind)), "round %d: %zu of kind %s are left", round,
                      counts[kind], gvmm_sim_kind_name((gvmm_sim_kind)kind));
}

static void run_round(int round, uint64_t seed)
{
    static worker workers[THREADS];
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    config.granularity = round % 3 ? 65536 : 2 * MiB;
    machine_start(&config);
    faulty = gvmm_faults_over(cu);
    CUcontext context;
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 1));
    ck_cu(cu->cuCtxCreate(&spare, 0, 0));
    risky = round % 4 == 3;

    worker dice = {.random = (seed + (uint64_t)round) * 0x9e3779b97f4a7c15u};
    char plan[80];
    for (int i = 0; i < 10; i++) next_random(&dice);
    plan_faults(&dice, plan, sizeof plan);
    ck_assert_int_eq(pthread_barrier_init(&together, NULL, THREADS), 0);
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < THREADS; i++) {
        worker *w = &workers[i];
        w->random = next_random(&dice) | 1;
        w->steady = block_make(2 * G);
        ck_cu(cu->cuStreamCreate(&w->quiet, CU_STREAM_NON_BLOCKING)); /* of the spare context */
        block_grant(&w->steady, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ck_assert_int_eq(pthread_create(&w->thread, NULL, work, w), 0);
    }
    unsigned long long successes = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        successes += workers[i].successes;
    }
    printf("round %2d, faults %-28s %s: %3.0f%% done, %llu failed on purpose, %zu findings\n", round, plan,
           risky ? "risky" : "safe ", 100.0 * (double)successes / (PER_THREAD * THREADS),
           (unsigned long long)gvmm_faults_injected(), gvmm_sim_findings(NULL, NULL));
    fflush(stdout);
    ck_ok(gvmm_faults_set(NULL));
    bool failed = has_failed();
    if (risky && !failed) free_what_streams_did_not();
    ck_cu(cu->cuCtxDestroy(spare)); /* popped too: it is on top */
    ck_cu(cu->cuDevicePrimaryCtxRelease(1));
    for (int i = 0; i < 1000 && atomic_load(&objects_destroyed) != atomic_load(&objects_made); i++) linger(NULL);
    ck_assert_uint_eq(atomic_load(&objects_destroyed), atomic_load(&objects_made));
    for (int i = 0; i < SHARED; i++) shared_streams[i] = shared_events[i] = shared_execs[i] = shared_memory[i] = 0;
    pthread_barrier_destroy(&together);
    ck_everything_came_back(round, failed);
    gvmm_sim_findings_clear();
    machine_end();
}

static int entries_of(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    ck_assert_ptr_nonnull(directory);
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

START_TEST(random_calls_from_eight_threads)
{
    const char *text = getenv("GVMM_STRESS_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20261130;
    printf("seed %llu (GVMM_STRESS_SEED), %d operations\n", (unsigned long long)seed, PER_THREAD * THREADS * ROUNDS);
    machine_start(NULL);
    machine_end();
    int descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    for (int round = 0; round < ROUNDS; round++) run_round(round, seed);
    ck_assert_int_eq(entries_of("/proc/self/fd"), descriptors);
    for (int i = 0; i < 1000 && entries_of("/proc/self/task") > threads + 1 + SANITIZED; i++) linger(NULL);
    ck_assert_int_le(entries_of("/proc/self/task"),
                     threads + 1 + SANITIZED); /* one for user objects stays, one is the sanitizer's */
}
END_TEST

int main(void)
{
    unsetenv("GVMM_SIM");
    unsetenv("GVMM_FAULTS");
    Suite *suite = suite_create("stress");
    TCase *tests = tcase_create("stress");
    tcase_set_timeout(tests, 500);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, random_calls_from_eight_threads);
    return run_suites(suite, NULL);
}

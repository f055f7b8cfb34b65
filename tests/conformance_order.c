/* O: order with the GPU's work: what waits, what does not, what goes wrong later, streams and events. */
#include "conformance.h"

#include <pthread.h>
#include <unistd.h>

/* ---- virtual memory calls do not wait ---- */

FACT(O_vmm_while_busy, "Every virtual memory call completes while work is running.")
{
    CUstream s = stream();
    gate_on(s);
    CUdeviceptr p = 0;
    handle h = 0;
    TELL("reserve", cuMemAddressReserve(&p, 32 * G, 0, 0, 0));
    TELL("create", cuMemCreate(&h, 32 * G, &on_device, 0));
    TELL("map", cuMemMap(p, 32 * G, 0, h, 0));
    TELL("access", cuMemSetAccess(p, 32 * G, &read_write, 1));
    TELL("unmap", cuMemUnmap(p, 32 * G));
    TELL("release", cuMemRelease(h));
    TELL("free", cuMemAddressFree(p, 32 * G));
    TELL("stream", cuStreamQuery(s));
}
FACT(O_unmap_others_memory, "Unmapping memory that running work does not touch leaves the work alone.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G), q = buffer(2 * G);
    gate *g = gate_on(s);
    DO(cuMemsetD8Async(p, 3, 2 * G, s));
    DO(cuMemUnmap(q, 2 * G));
    gate_open(g);
    TELL("synchronize", cuStreamSynchronize(s));
    say("byte=%d", byte_at(p));
}

/* ---- what waits: work of 50 ms is running, on a non-blocking stream ---- */

#define WAITS(name, call, what) \
    FACT(O_waits_##name, what " waits for running work.") \
    { \
        CUdeviceptr p = plain(2 * G), q = plain(2 * G); \
        CUstream s = stream(); \
        CUevent e = event(); \
        atomic_int *done = slow_on(s); \
        DO(cuEventRecord(e, s)); \
        (void)p, (void)q; \
        tell("", call); \
        say("waited=%d", atomic_load(done)); \
    }

static CUresult free_plain(CUdeviceptr p)
{
    forget(p);
    return drv->cuMemFree(p);
}

static CUresult alloc_plain(void)
{
    CUdeviceptr p = 0;
    return try_alloc(&p, 32 * G);
}

static CUresult make_stream(void)
{
    CUstream s = NULL;
    CUresult r = drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    return r ? r : drv->cuStreamDestroy(s);
}

static CUresult make_event(void)
{
    CUevent e = NULL;
    CUresult r = drv->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
    return r ? r : drv->cuEventDestroy(e);
}

static CUresult make_pinned(void)
{
    void *p = NULL;
    CUresult r = drv->cuMemAllocHost(&p, 1 << 20);
    return r ? r : drv->cuMemFreeHost(p);
}

static CUresult make_exec(void)
{
    CUgraph g = graph();
    CUgraphExec x = NULL;
    CUresult r = drv->cuGraphInstantiateWithFlags(&x, g, 0);
    return r ? r : drv->cuGraphExecDestroy(x);
}

static unsigned char some_bytes[4096];

/* clang-format off */
WAITS(free, free_plain(p), "cuMemFree")
WAITS(alloc, alloc_plain(), "cuMemAlloc")
WAITS(ctx_synchronize, drv->cuCtxSynchronize(), "cuCtxSynchronize")
WAITS(stream_synchronize, drv->cuStreamSynchronize(s), "cuStreamSynchronize of its stream")
WAITS(event_synchronize, drv->cuEventSynchronize(e), "cuEventSynchronize of an event behind it")
WAITS(other_stream, drv->cuStreamSynchronize(stream()), "cuStreamSynchronize of another stream")
WAITS(legacy, drv->cuStreamSynchronize(CU_STREAM_LEGACY), "cuStreamSynchronize of the legacy stream")
WAITS(stream_destroy, drv->cuStreamDestroy(GONE(s)), "cuStreamDestroy of its stream")
WAITS(event_destroy, drv->cuEventDestroy(GONE(e)), "cuEventDestroy of an event behind it")
WAITS(make_stream, make_stream(), "Creating and destroying a stream")
WAITS(make_event, make_event(), "Creating and destroying an event")
WAITS(make_pinned, make_pinned(), "Allocating and freeing pinned memory")
WAITS(make_exec, make_exec(), "Instantiating and destroying a graph")
WAITS(memset, drv->cuMemsetD8(p, 1, G), "cuMemsetD8")
WAITS(copy_in, drv->cuMemcpyHtoD(p, some_bytes, sizeof some_bytes), "cuMemcpyHtoD")
WAITS(copy_out, drv->cuMemcpyDtoH(some_bytes, p, sizeof some_bytes), "cuMemcpyDtoH")
WAITS(copy, drv->cuMemcpyDtoD(p, q, G), "cuMemcpyDtoD")
/* clang-format on */

/* The same, with the work on the legacy stream. */
#define LEGACY_WAITS(name, call, what) \
    FACT(O_legacy_waits_##name, what " waits for work on the legacy stream.") \
    { \
        CUdeviceptr p = plain(2 * G), q = plain(2 * G); \
        atomic_int *done = slow_on(CU_STREAM_LEGACY); \
        (void)q; \
        tell("", call); \
        say("waited=%d", atomic_load(done)); \
    }

LEGACY_WAITS(memset, drv->cuMemsetD8(p, 1, G), "cuMemsetD8")
LEGACY_WAITS(copy_in, drv->cuMemcpyHtoD(p, some_bytes, sizeof some_bytes), "cuMemcpyHtoD")
LEGACY_WAITS(copy_out, drv->cuMemcpyDtoH(some_bytes, p, sizeof some_bytes), "cuMemcpyDtoH")
LEGACY_WAITS(copy, drv->cuMemcpyDtoD(p, q, G), "cuMemcpyDtoD")

/* ---- memory unmapped under queued work ---- */

FACT_ALONE(O_unmap_under_memset,
           "Unmapping memory that a queued memset will touch; the error sticks, memory calls still work.")
{
    CUstream s = stream();
    CUdeviceptr p = reserve(2 * G);
    handle h = create(2 * G);
    map(p, 2 * G, h);
    give_access(p, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    gate *g = gate_on(s);
    DO(cuMemsetD8Async(p, 1, 2 * G, s));
    TELL("unmap", cuMemUnmap(p, 2 * G));
    gate_open(g);
    TELL("synchronize", cuStreamSynchronize(s));
    TELL("release", cuMemRelease(h));
    TELL("free", cuMemAddressFree(p, 2 * G));
    TELL("create", cuMemCreate(&h, 2 * G, &on_device, 0));
    TELL("again", cuCtxSynchronize());
}

/* Leaves the context with ILLEGAL_ADDRESS, from memory unmapped under a queued copy. */
static CUdeviceptr poison(CUstream s)
{
    CUdeviceptr p = buffer(2 * G), q = buffer(2 * G);
    gate *g = gate_on(s);
    DO(cuMemcpyDtoDAsync(q, p, 2 * G, s));
    DO(cuMemUnmap(p, 2 * G));
    gate_open(g);
    TELL("first", cuStreamSynchronize(s));
    return q;
}

FACT_ALONE(O_unmap_under_copy, "Unmapping memory that a queued copy will read.") { poison(stream()); }
FACT_ALONE(O_access_under_memset, "Taking access away from memory that a queued memset will touch.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G);
    gate *g = gate_on(s);
    DO(cuMemsetD8Async(p, 1, 2 * G, s));
    CUmemAccessDesc none = read_write;
    none.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    TELL("take", cuMemSetAccess(p, 2 * G, &none, 1));
    gate_open(g);
    TELL("synchronize", cuStreamSynchronize(s));
}
FACT_ALONE(O_unmap_legacy, "Unmapping memory that a queued memset will touch, seen from the legacy stream.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G);
    CUevent e = event();
    gate *g = gate_on(s);
    DO(cuMemsetD8Async(p, 1, 2 * G, s));
    DO(cuEventRecord(e, s));
    DO(cuMemUnmap(p, 2 * G));
    gate_open(g);
    TELL("event", cuEventSynchronize(e));
    TELL("legacy", cuStreamSynchronize(CU_STREAM_LEGACY));
}
FACT_ALONE(O_graph_unmapped, "Launching a graph over unmapped memory.")
{
    CUstream s = stream();
    CUdeviceptr p = reserve(2 * G);
    handle h = create(2 * G);
    map(p, 2 * G, h);
    give_access(p, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUgraph g = graph();
    memset_node(g, p, 2 * G, 1);
    CUgraphExec x = executable(g);
    DO(cuMemUnmap(p, 2 * G));
    TELL("launch", cuGraphLaunch(x, s));
    TELL("synchronize", cuStreamSynchronize(s));
    TELL("create-stream", cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    TELL("release", cuMemRelease(h));
}

/* ---- what a poisoned context answers ---- */

FACT_ALONE(O_sticky_streams, "Stream and event calls in a context with a sticky error.")
{
    CUstream s = stream(), other = stream();
    CUevent e = event(), e2 = NULL;
    CUstreamCaptureStatus status;
    poison(s);
    TELL("query", cuStreamQuery(s));
    TELL("other", cuStreamQuery(other));
    TELL("record", cuEventRecord(e, other));
    TELL("event-query", cuEventQuery(e));
    TELL("event-create", cuEventCreate(&e2, CU_EVENT_DISABLE_TIMING));
    TELL("wait", cuStreamWaitEvent(other, e, 0));
    TELL("host", cuLaunchHostFunc(other, count, counter()));
    TELL("capturing", cuStreamIsCapturing(other, &status));
    TELL("begin", cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    TELL("event-destroy", cuEventDestroy(e));
    TELL("stream-destroy", cuStreamDestroy(s));
}
FACT_ALONE(O_sticky_memory, "Memory calls in a context with a sticky error.")
{
    CUstream s = stream();
    CUdeviceptr block = plain(G), p = 0, q = poison(s);
    size_t available, total;
    unsigned type = 0;
    void *pinned = NULL;
    TELL("memset", cuMemsetD8(q, 1, G));
    TELL("info", cuMemGetInfo(&available, &total));
    TELL("alloc", cuMemAlloc(&p, G));
    TELL("free", cuMemFree(block));
    TELL("alloc-async", cuMemAllocAsync(&p, G, s));
    TELL("alloc-host", cuMemAllocHost(&pinned, 4096));
    TELL("attribute", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q));
}
FACT_ALONE(O_sticky_graphs, "Graph calls in a context with a sticky error.")
{
    CUstream s = stream();
    CUgraph g = graph(), g2 = NULL;
    CUgraphExec x = executable(g), x2 = NULL;
    atomic_int *gone = counter();
    CUuserObject object = NULL;
    DO(cuUserObjectCreate(&object, gone, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    DO(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    poison(s);
    TELL("create", cuGraphCreate(&g2, 0));
    TELL("instantiate", cuGraphInstantiateWithFlags(&x2, g, 0));
    TELL("launch", cuGraphLaunch(x, s));
    TELL("exec-destroy", cuGraphExecDestroy(x));
    TELL("destroy", cuGraphDestroy(g));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT_ALONE(O_sticky_context, "Context calls in a context with a sticky error.")
{
    CUcontext c = NULL;
    CUdevice device = 9;
    poison(stream());
    TELL("current", cuCtxGetCurrent(&c));
    TELL("device", cuCtxGetDevice(&device));
    TELL("push", cuCtxPushCurrent(ctx));
    TELL("pop", cuCtxPopCurrent(&c));
    TELL("retain", cuDevicePrimaryCtxRetain(&c, 0));
    CUresult r = drv->cuCtxCreate(&c, 0, 0);
    tell("new-context", r);
    if (!r) TELL("synchronize", cuCtxSynchronize());
}
FACT_ALONE(O_sticky_reset, "Resetting the primary context after a sticky error.")
{
    CUcontext c = NULL;
    poison(stream());
    TELL("reset", cuDevicePrimaryCtxReset(0));
    TELL("retain", cuDevicePrimaryCtxRetain(&c, 0));
    TELL("current", cuCtxSetCurrent(c));
    TELL("synchronize", cuCtxSynchronize());
}

/* ---- destroyed things ---- */

static CUstream destroyed_stream(void)
{
    CUstream s = stream();
    DO(cuStreamDestroy(GONE(s)));
    return s;
}

FACT_ALONE(O_destroyed_synchronize, "Synchronising a destroyed stream.")
{
    TELL("", cuStreamSynchronize(destroyed_stream()));
}
FACT_ALONE(O_destroyed_query, "Querying a destroyed stream.") { TELL("", cuStreamQuery(destroyed_stream())); }
FACT_ALONE(O_destroyed_record, "Recording an event on a destroyed stream.")
{
    TELL("", cuEventRecord(event(), destroyed_stream()));
}
FACT_ALONE(O_destroyed_event, "Querying a destroyed event.")
{
    CUevent e = event();
    DO(cuEventDestroy(GONE(e)));
    TELL("", cuEventQuery(e));
}
FACT(O_stream_destroy_pending,
     "A stream may be destroyed while its work is queued: the work is done, events tell when.")
{
    CUstream s = stream();
    CUevent e = event();
    atomic_int *ran = counter();
    gate *g = gate_on(s);
    DO(cuLaunchHostFunc(s, count, ran));
    DO(cuEventRecord(e, s));
    TELL("destroy", cuStreamDestroy(GONE(s)));
    TELL("before", cuEventQuery(e));
    gate_open(g);
    TELL("wait", cuEventSynchronize(e));
    say("ran=%d", atomic_load(ran));
    TELL("after", cuEventQuery(e));
}
FACT(O_event_destroy_pending, "An event may be destroyed while it is pending and another stream waits for it.")
{
    CUstream s = stream(), other = stream();
    CUevent e = event();
    CUdeviceptr p = buffer(2 * G);
    gate *g = gate_on(s);
    DO(cuMemsetD8Async(p, 5, G, s));
    DO(cuEventRecord(e, s));
    DO(cuStreamWaitEvent(other, e, 0));
    DO(cuMemsetD8Async(p, 6, 1, other));
    TELL("destroy", cuEventDestroy(GONE(e)));
    TELL("other", cuStreamQuery(other));
    gate_open(g);
    TELL("wait", cuStreamSynchronize(other));
    say("bytes=%d,%d", byte_at(p), byte_at(p + 1));
}

/* ---- host functions ---- */

static CUresult in_host[6];
static bool host_on_main;
static pthread_t asker;
static CUdeviceptr host_p;

static void host_calls(void *done)
{
    CUcontext c = NULL;
    int n = 0;
    const char *name = NULL;
    host_on_main = pthread_equal(pthread_self(), asker);
    in_host[0] = drv->cuMemUnmap(host_p, 2 * G);
    in_host[1] = drv->cuCtxGetCurrent(&c);
    in_host[2] = drv->cuEventQuery(NULL);
    in_host[3] = drv->cuDeviceGetCount(&n);
    in_host[4] = drv->cuDriverGetVersion(&n);
    in_host[5] = drv->cuGetErrorName(CUDA_ERROR_UNKNOWN, &name);
    count(done);
}

static CUresult callback_status;
static void callback(CUstream s, CUresult status, void *done)
{
    (void)s;
    callback_status = status;
    host_calls(done);
}

static void say_in_host(void)
{
    static const char *const names[] = {"unmap", "current", "event-query", "device-count", "version", "error-name"};
    for (int i = 0; i < 6; i++) tell(names[i], in_host[i]);
}

FACT(O_host_unmap, "A host function runs on a thread of the driver and may not make memory calls.")
{
    CUstream s = stream();
    host_p = buffer(2 * G);
    asker = pthread_self();
    DO(cuLaunchHostFunc(s, host_calls, counter()));
    DO(cuStreamSynchronize(s));
    say("main=%d", host_on_main);
    tell("unmap", in_host[0]);
}
FACT(O_host_calls, "Other driver calls in a host function.")
{
    CUstream s = stream();
    host_p = buffer(2 * G);
    DO(cuLaunchHostFunc(s, host_calls, counter()));
    DO(cuStreamSynchronize(s));
    say_in_host();
}
FACT(O_callback_calls, "Driver calls in a stream callback, and the status that it is given.")
{
    CUstream s = stream();
    host_p = buffer(2 * G);
    DO(cuStreamAddCallback(s, callback, counter(), 0));
    DO(cuStreamSynchronize(s));
    tell("status", callback_status);
    say_in_host();
}
FACT(O_callback_flags, "A stream callback with flags 1.")
{
    TELL("", cuStreamAddCallback(stream(), callback, counter(), 1));
}
FACT(O_host_null, "A NULL host function.") { TELL("", cuLaunchHostFunc(stream(), NULL, NULL)); }

/* ---- events ---- */

FACT(O_event_fresh, "An event that was never recorded is complete.")
{
    CUevent e = event();
    TELL("query", cuEventQuery(e));
    TELL("synchronize", cuEventSynchronize(e));
    TELL("wait", cuStreamWaitEvent(stream(), e, 0));
}
FACT(O_event_states, "An event behind running work, and after it.")
{
    CUstream s = stream();
    CUevent e = event();
    gate *g = gate_on(s);
    DO(cuEventRecord(e, s));
    TELL("event", cuEventQuery(e));
    TELL("stream", cuStreamQuery(s));
    gate_open(g);
    TELL("wait", cuEventSynchronize(e));
    TELL("event", cuEventQuery(e));
    DO(cuStreamSynchronize(s));
    TELL("stream", cuStreamQuery(s));
}
FACT(O_event_again, "Recording an event again forgets its first recording.")
{
    CUstream s = stream(), idle = stream();
    CUevent e = event();
    gate_on(s);
    DO(cuEventRecord(e, s));
    TELL("first", cuEventQuery(e));
    DO(cuEventRecord(e, idle));
    TELL("second", cuEventSynchronize(e));
}
FACT(O_event_snapshot, "A stream waits for the recording that an event had at the call, not for a later one.")
{
    CUstream s = stream(), other = stream(), idle = stream();
    CUevent e = event();
    gate *g = gate_on(s);
    DO(cuEventRecord(e, s));
    DO(cuStreamWaitEvent(other, e, 0));
    DO(cuEventRecord(e, idle));
    DO(cuEventSynchronize(e));
    TELL("other", cuStreamQuery(other));
    gate_open(g);
    TELL("wait", cuStreamSynchronize(other));
}
FACT(O_event_flags, "Unknown event flags.")
{
    CUevent e = NULL;
    CUresult r = drv->cuEventCreate(&e, 64);
    tell("", r);
    if (!r) DO(cuEventDestroy(e));
}
FACT(O_event_wait_flags, "Waiting for an event with flags 8.") { TELL("", cuStreamWaitEvent(stream(), event(), 8)); }
FACT(O_event_null, "Querying event NULL.") { TELL("", cuEventQuery(NULL)); }
FACT(O_event_record_null, "Recording event NULL.") { TELL("", cuEventRecord(NULL, stream())); }
FACT(O_elapsed, "Elapsed time between two timing events.")
{
    CUstream s = stream();
    CUevent a = timing_event(), b = timing_event(), c = timing_event();
    float ms = -1;
    DO(cuEventRecord(a, s));
    DO(cuEventRecord(b, s));
    gate *g = gate_on(s);
    DO(cuEventRecord(c, s));
    DO(cuEventSynchronize(b));
    TELL("", cuEventElapsedTime(&ms, a, b));
    say("sane=%d", ms >= 0 && ms < 10000);
    TELL("pending", cuEventElapsedTime(&ms, a, c));
    gate_open(g);
}
FACT(O_elapsed_wrong, "Elapsed time of events without timing, and of events never recorded.")
{
    CUstream s = stream();
    CUevent a = event(), b = event();
    float ms = -1;
    DO(cuEventRecord(a, s));
    DO(cuEventRecord(b, s));
    DO(cuStreamSynchronize(s));
    TELL("no-timing", cuEventElapsedTime(&ms, a, b));
    TELL("unrecorded", cuEventElapsedTime(&ms, timing_event(), timing_event()));
}

/* ---- the legacy stream and the others ---- */

/* Whether a memset on `second` waits for work on `first`: it is given 150 ms to be done. */
static void order(CUstream first, CUstream second)
{
    CUdeviceptr p = buffer(2 * G);
    CUevent e = event();
    gate *g = gate_on(first);
    DO(cuMemsetD8Async(p, 1, G, second));
    DO(cuEventRecord(e, second));
    CUresult r = drv->cuEventQuery(e);
    for (int i = 0; i < 150 && r == CUDA_ERROR_NOT_READY; i++) {
        usleep(1000);
        r = drv->cuEventQuery(e);
    }
    tell("", r);
    gate_open(g);
    TELL("then", cuEventSynchronize(e));
}

FACT(O_legacy_then_blocking, "Work on a blocking stream waits for the legacy stream's.")
{
    order(CU_STREAM_LEGACY, blocking_stream());
}
FACT(O_blocking_then_legacy, "Work on the legacy stream waits for a blocking stream's.")
{
    order(blocking_stream(), CU_STREAM_LEGACY);
}
FACT(O_legacy_then_nonblocking, "Work on a non-blocking stream does not wait for the legacy stream's.")
{
    order(CU_STREAM_LEGACY, stream());
}
FACT(O_nonblocking_then_legacy, "Work on the legacy stream does not wait for a non-blocking stream's.")
{
    order(stream(), CU_STREAM_LEGACY);
}
FACT(O_legacy_then_perthread, "Work on the per-thread stream waits for the legacy stream's.")
{
    order(CU_STREAM_LEGACY, CU_STREAM_PER_THREAD);
}
FACT(O_perthread_then_legacy, "Work on the legacy stream waits for the per-thread stream's.")
{
    order(CU_STREAM_PER_THREAD, CU_STREAM_LEGACY);
}
FACT(O_blocking_then_blocking, "Work on a blocking stream does not wait for another blocking stream's.")
{
    order(blocking_stream(), blocking_stream());
}
FACT(O_zero_then_blocking, "Work on a blocking stream waits for stream 0's.") { order(NULL, blocking_stream()); }
FACT(O_order_in_stream, "Work on a stream is done in order.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G);
    for (unsigned char i = 1; i <= 20; i++) DO(cuMemsetD8Async(p, i, 2 * G, s));
    TELL("", cuStreamSynchronize(s));
    say("bytes=%d,%d", byte_at(p), byte_at(p + 2 * G - 1));
}
FACT(O_stream_flags, "A stream's flags; creating one with flags 2.")
{
    unsigned a = 9, b = 9;
    CUstream s = NULL;
    TELL("non-blocking", cuStreamGetFlags(stream(), &a));
    TELL("blocking", cuStreamGetFlags(blocking_stream(), &b));
    say("%u,%u", a, b);
    CUresult r = drv->cuStreamCreate(&s, 2);
    tell("flags-2", r);
    if (!r) DO(cuStreamDestroy(s));
}
FACT(O_destroy_default, "Destroying the legacy stream, the per-thread stream and stream 0.")
{
    TELL("legacy", cuStreamDestroy(CU_STREAM_LEGACY));
    TELL("per-thread", cuStreamDestroy(CU_STREAM_PER_THREAD));
    TELL("zero", cuStreamDestroy(NULL));
}

/* N, O, G, P: contexts that are reset, destroyed or poisoned, handles used too late, and who runs destructors. */
#include "conformance.h"

#include <pthread.h>

/* ---- reset ---- */

FACT_ALONE(N_reset, "Resetting the primary context: what its thread meets then, and after retaining it again.")
{
    CUcontext c = NULL, again = NULL;
    CUdevice device = 9;
    CUstream s = NULL;
    CUdeviceptr p = buffer(G);
    unsigned flags = 9;
    int active = 9;
    TELL("", cuDevicePrimaryCtxReset(0));
    DO(cuDevicePrimaryCtxGetState(0, &flags, &active));
    DO(cuCtxGetCurrent(&c));
    say("active=%d current=%d", active, c == ctx);
    TELL("device", cuCtxGetDevice(&device));
    TELL("stream", cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    TELL("memset", cuMemsetD8(p, 1, G));
    TELL("push", cuCtxPushCurrent(ctx));
    TELL("pop", cuCtxPopCurrent(&c));
    TELL("retain", cuDevicePrimaryCtxRetain(&again, 0));
    say("same=%d", again == ctx);
    TELL("set", cuCtxSetCurrent(again));
    TELL("memset", cuMemsetD8(p, 1, G));
}
FACT_ALONE(N_reset_current, "After resetting and retaining the primary context: is it current without being set again.")
{
    CUcontext again = NULL;
    CUstream s = NULL;
    DO(cuDevicePrimaryCtxReset(0));
    DO(cuDevicePrimaryCtxRetain(&again, 0));
    TELL("", cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
}
FACT_ALONE(N_reset_releases, "How often the primary context can be released after it was reset and retained again.")
{
    CUcontext again = NULL;
    DO(cuDevicePrimaryCtxReset(0));
    DO(cuDevicePrimaryCtxRetain(&again, 0));
    TELL("", cuDevicePrimaryCtxRelease(0));
    TELL("", cuDevicePrimaryCtxRelease(0));
    TELL("", cuDevicePrimaryCtxRelease(0));
}
FACT_ALONE(N_reset_stream, "Querying a stream of a context that was reset and retained again.")
{
    CUcontext again = NULL;
    CUstream s = stream();
    DO(cuDevicePrimaryCtxReset(0));
    DO(cuDevicePrimaryCtxRetain(&again, 0));
    DO(cuCtxSetCurrent(again));
    TELL("", cuStreamQuery(s));
}
FACT_ALONE(N_reset_event, "Querying an event of a context that was reset and retained again.")
{
    CUcontext again = NULL;
    CUevent e = event();
    DO(cuDevicePrimaryCtxReset(0));
    DO(cuDevicePrimaryCtxRetain(&again, 0));
    DO(cuCtxSetCurrent(again));
    TELL("", cuEventQuery(e));
}
FACT_ALONE(N_reset_waits, "Resetting the primary context waits for running work.")
{
    atomic_int *done = slow_on(stream());
    TELL("", cuDevicePrimaryCtxReset(0));
    say("waited=%d", atomic_load(done));
}

/* ---- contexts of one's own ---- */

FACT(N_ctx_destroy_waits, "Destroying a context waits for running work.")
{
    CUcontext c = NULL, now = NULL;
    CUstream s = NULL;
    DO(cuCtxCreate(&c, 0, 0));
    DO(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    atomic_int *done = slow_on(s);
    TELL("", cuCtxDestroy(c));
    say("waited=%d", atomic_load(done));
    DO(cuCtxGetCurrent(&now));
    say("before=%d", now == ctx);
}
FACT_ALONE(N_ctx_destroy_primary, "Destroying a primary context.") { TELL("", cuCtxDestroy(ctx)); }
FACT_ALONE(N_push_destroyed, "Pushing a destroyed context.")
{
    CUcontext c = NULL;
    DO(cuCtxCreate(&c, 0, 0));
    DO(cuCtxDestroy(c));
    TELL("", cuCtxPushCurrent(c));
}
FACT(N_ctx_create_flags, "Creating a context with flags 0x10000.")
{
    CUcontext c = NULL;
    CUresult r = drv->cuCtxCreate(&c, 0x10000, 0);
    tell("", r);
    if (!r) DO(cuCtxDestroy(c));
}
FACT(N_peer_same_device, "Peer access between two contexts of one device.")
{
    CUcontext c = second_context();
    TELL("enable", cuCtxEnablePeerAccess(c, 0));
    TELL("disable", cuCtxDisablePeerAccess(c));
    TELL("disable-itself", cuCtxDisablePeerAccess(ctx));
    TELL("flags", cuCtxEnablePeerAccess(c, 1));
}
FACT(N_events_across,
     "An event of another context: query, wait there and here, elapsed time between the two contexts' events.")
{
    CUstream s = stream(), t = NULL;
    CUevent a = timing_event(), b = NULL;
    float ms = 0;
    DO(cuEventRecord(a, s));
    DO(cuCtxSetCurrent(second_context()));
    DO(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    DO(cuEventCreate(&b, CU_EVENT_DEFAULT));
    DO(cuEventRecord(b, t));
    DO(cuStreamSynchronize(t));
    DO(cuStreamSynchronize(s));
    TELL("query", cuEventQuery(a));
    TELL("here", cuStreamWaitEvent(t, a, 0));
    TELL("there", cuStreamWaitEvent(s, b, 0));
    TELL("record", cuEventRecord(b, s));
    TELL("elapsed", cuEventElapsedTime(&ms, a, b));
    DO(cuEventDestroy(b));
    DO(cuStreamDestroy(t));
}

/* ---- errors that stick, seen from elsewhere ---- */

static void poison(CUstream s)
{
    CUdeviceptr p = buffer(2 * G);
    gate *g = gate_on(s);
    DO(cuMemsetD8Async(p, 1, 2 * G, s));
    DO(cuMemUnmap(p, 2 * G));
    gate_open(g);
    TELL("first", cuStreamSynchronize(s));
}

FACT_ALONE(O_sticky_second, "An error that sticks to one context, seen by another of the device that was there before.")
{
    CUcontext other = second_context();
    CUdeviceptr p = buffer(G);
    CUstream s = NULL;
    poison(stream());
    DO(cuCtxSetCurrent(other));
    TELL("stream", cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    TELL("memset", cuMemsetD8(p, 1, G));
    TELL("synchronize", cuCtxSynchronize());
}
FACT_ALONE(P_sticky_existing, "An error that sticks to device 0's context, seen by device 1's that was there before.")
{
    needs_two_devices();
    CUcontext other = context_of(1), again = NULL;
    CUstream s = NULL;
    poison(stream());
    DO(cuCtxSetCurrent(other));
    TELL("stream", cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    TELL("synchronize", cuCtxSynchronize());
    TELL("retain", cuDevicePrimaryCtxRetain(&again, 1));
}

static CUresult callback_status = CUDA_ERROR_UNKNOWN;
static void callback(CUstream s, CUresult status, void *called)
{
    (void)s;
    callback_status = status;
    count(called);
}

FACT_ALONE(O_sticky_behind, "A host function and a callback queued behind the work that fails: which are called.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G);
    atomic_int *ran = counter(), *called = counter();
    gate *g = gate_on(s);
    DO(cuMemsetD8Async(p, 1, 2 * G, s));
    DO(cuLaunchHostFunc(s, count, ran));
    DO(cuStreamAddCallback(s, callback, called, 0));
    DO(cuMemUnmap(p, 2 * G));
    gate_open(g);
    TELL("first", cuStreamSynchronize(s));
    say("host=%d callback=%d", still(ran), still(called));
    if (atomic_load(called)) tell("status", callback_status);
}

/* ---- legacy and blocking streams, asked ---- */

FACT(O_legacy_query,
     "While a blocking stream is busy: queries of the legacy stream, an idle blocking one, a non-blocking one.")
{
    CUstream busy = blocking_stream(), idle = blocking_stream(), apart = stream();
    gate *g = gate_on(busy);
    TELL("busy", cuStreamQuery(busy));
    TELL("legacy", cuStreamQuery(CU_STREAM_LEGACY));
    TELL("idle", cuStreamQuery(idle));
    TELL("non-blocking", cuStreamQuery(apart));
    gate_open(g);
}
FACT(O_blocking_query,
     "While the legacy stream is busy: queries of an idle blocking stream, and of an event recorded there.")
{
    CUstream idle = blocking_stream();
    CUevent e = event();
    gate *g = gate_on(CU_STREAM_LEGACY);
    TELL("idle", cuStreamQuery(idle));
    DO(cuEventRecord(e, idle));
    TELL("event", cuEventQuery(e));
    TELL("recorded", cuStreamQuery(idle));
    gate_open(g);
}

static unsigned char some_bytes[4096];

#define BLOCKING_WAITS(name, call, what) \
    FACT(O_blocking_waits_##name, what " waits for work on a blocking stream.") \
    { \
        CUdeviceptr p = plain(2 * G); \
        atomic_int *done = slow_on(blocking_stream()); \
        (void)p; \
        TELL("", call); \
        say("waited=%d", atomic_load(done)); \
    }

BLOCKING_WAITS(synchronize, cuStreamSynchronize(CU_STREAM_LEGACY), "cuStreamSynchronize of the legacy stream")
BLOCKING_WAITS(memset, cuMemsetD8(p, 1, G), "cuMemsetD8")
BLOCKING_WAITS(copy_out, cuMemcpyDtoH(some_bytes, p, sizeof some_bytes), "cuMemcpyDtoH")

static CUevent asked_event;
static CUresult asked_result;

static void ask_event(void *done)
{
    asked_result = drv->cuEventQuery(asked_event);
    count(done);
}

FACT(O_host_event, "Querying an event in a host function.")
{
    CUstream s = stream();
    asked_event = event();
    DO(cuEventRecord(asked_event, s));
    DO(cuLaunchHostFunc(s, ask_event, counter()));
    DO(cuStreamSynchronize(s));
    tell("", asked_result);
}

/* ---- handles used too late ---- */

FACT_ALONE(O_event_destroy_twice, "Destroying an event twice.")
{
    CUevent e = event();
    DO(cuEventDestroy(e));
    TELL("", cuEventDestroy(e));
}
FACT_ALONE(O_stream_destroy_twice, "Destroying a stream twice.")
{
    CUstream s = stream();
    DO(cuStreamDestroy(s));
    TELL("", cuStreamDestroy(s));
}
FACT_ALONE(G_launch_destroyed, "Launching a destroyed executable.")
{
    CUgraphExec x = executable(graph());
    CUstream s = stream();
    DO(cuGraphExecDestroy(x));
    TELL("", cuGraphLaunch(x, s));
}

/* ---- arguments ---- */

FACT(O_priority, "Priorities beyond the range.")
{
    CUstream s = NULL;
    int priority = 9;
    TELL("", cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -100));
    DO(cuStreamGetPriority(s, &priority));
    say("%d", priority);
    DO(cuStreamDestroy(s));
    TELL("", cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, 100));
    DO(cuStreamGetPriority(s, &priority));
    say("%d", priority);
    DO(cuStreamDestroy(s));
}
FACT(O_event_interprocess, "An interprocess event with timing.")
{
    CUevent e = NULL;
    CUresult r = drv->cuEventCreate(&e, CU_EVENT_INTERPROCESS);
    tell("", r);
    if (!r) DO(cuEventDestroy(e));
}
FACT(O_event_wait_external, "Waiting for an event with flags 1, outside captures.")
{
    TELL("", cuStreamWaitEvent(stream(), event(), 1));
}

/* Copies whose pointers are of another kind than the call says. */
#define COPY(name, call, sentence) \
    FACT_ALONE(O_copy_##name, sentence) \
    { \
        CUdeviceptr p = buffer(G), host = (CUdeviceptr)(uintptr_t)some_bytes; \
        (void)p, (void)host; \
        TELL("", call); \
        TELL("synchronize", cuCtxSynchronize()); \
    }

/* clang-format off */
COPY(in_from_null, cuMemcpyHtoD(p, NULL, 16), "Copying in from NULL.")
COPY(out_to_null, cuMemcpyDtoH(NULL, p, 16), "Copying out to NULL.")
COPY(from_pageable, cuMemcpyDtoD(p, host, 16), "Copying from pageable memory as device memory.")
COPY(in_from_device, cuMemcpyHtoD(p, (const void *)(uintptr_t)(p + 64), 16), "Copying in from device memory.")
COPY(out_to_device, cuMemcpyDtoH((void *)(uintptr_t)(p + 64), p, 16), "Copying out to device memory.")
COPY(pageable, cuMemcpy(host, host + 64, 16), "cuMemcpy between pageable memory.")
COPY(from_16, cuMemcpy(p, 16, 16), "cuMemcpy from address 16.")
COPY(overlapping, cuMemcpyDtoD(p, p + 8, 64), "Copying between ranges that overlap.")
COPY(peer_null, cuMemcpyPeer(p, NULL, p + 64, ctx, 16), "A peer copy to no context.")
COPY(peer_same, cuMemcpyPeer(p, ctx, p + 64, ctx, 16), "A peer copy inside one context.")
/* clang-format on */

FACT(G_node_wrong, "Nodes with arguments that make no sense.")
{
    CUgraph g = graph();
    CUgraphNode a = NULL, b = NULL, nodes[2];
    CUdeviceptr p = buffer(G);
    size_t n = 1;
    CUDA_HOST_NODE_PARAMS host = {NULL, NULL};
    CUDA_MEMSET_NODE_PARAMS set = {.dst = p + 1, .elementSize = 4, .width = 4, .height = 1};
    DO(cuGraphAddEmptyNode(&a, g, NULL, 0));
    nodes[0] = nodes[1] = a;
    TELL("twice", cuGraphAddEmptyNode(&b, g, nodes, 2));
    TELL("misaligned", cuGraphAddMemsetNode(&b, g, NULL, 0, &set, ctx));
    set = (CUDA_MEMSET_NODE_PARAMS){.dst = p, .elementSize = 1, .width = 16, .height = 2, .pitch = 8};
    TELL("pitch", cuGraphAddMemsetNode(&b, g, NULL, 0, &set, ctx));
    TELL("host-null", cuGraphAddHostNode(&b, g, NULL, 0, &host));
    TELL("one-array", cuGraphGetEdges(g, nodes, NULL, &n));
}
FACT(G_copy_no_context, "A copy node that names no context.")
{
    CUgraphNode node = NULL;
    CUDA_MEMCPY3D copy;
    CUdeviceptr p = buffer(G);
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = p;
    copy.dstDevice = p + 4096;
    copy.WidthInBytes = 64;
    copy.Height = copy.Depth = 1;
    TELL("", cuGraphAddMemcpyNode(&node, graph(), NULL, 0, &copy, NULL));
}
FACT(G_object_no_function, "A user object without a destructor.")
{
    CUuserObject object = NULL;
    CUresult r = drv->cuUserObjectCreate(&object, NULL, NULL, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    tell("", r);
}

/* ---- which thread runs a destructor ---- */

static pthread_t asker;
static bool on_main;

static void destructor(void *gone)
{
    on_main = pthread_equal(pthread_self(), asker);
    count(gone);
}

static CUgraph holding(atomic_int *gone)
{
    CUuserObject object = NULL;
    CUgraph g = graph();
    asker = pthread_self();
    DO(cuUserObjectCreate(&object, gone, destructor, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    DO(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    return g;
}

static void say_destroyed(atomic_int *gone)
{
    int before = atomic_load(gone), after = wait_for(gone, 1);
    say("at-once=%d destroyed=%d main=%d", before, after, on_main);
}

FACT(G_object_by_graph, "Destroying the graph that holds a user object: the destructor's thread.")
{
    atomic_int *gone = counter();
    CUgraph g = holding(gone);
    TELL("", cuGraphDestroy(GONE(g)));
    say_destroyed(gone);
}
FACT(G_object_by_exec, "Destroying the executable that holds a user object: the destructor's thread.")
{
    atomic_int *gone = counter();
    CUgraph g = holding(gone);
    CUgraphExec x = executable(g);
    DO(cuGraphDestroy(GONE(g)));
    TELL("", cuGraphExecDestroy(GONE(x)));
    say_destroyed(gone);
}
FACT(G_object_by_launched, "The same, of an executable whose launch was waited for.")
{
    atomic_int *gone = counter();
    CUstream s = stream();
    CUgraph g = holding(gone);
    memset_node(g, buffer(G), G, 1);
    CUgraphExec x = executable(g);
    DO(cuGraphDestroy(GONE(g)));
    DO(cuGraphLaunch(x, s));
    DO(cuStreamSynchronize(s));
    TELL("", cuGraphExecDestroy(GONE(x)));
    say_destroyed(gone);
}
FACT(G_object_by_end, "Ending a lost capture whose graph holds a user object: the destructor's thread.")
{
    atomic_int *gone = counter();
    CUstream s = stream();
    CUstreamCaptureStatus status;
    CUgraph g = NULL;
    CUuserObject object = NULL;
    asker = pthread_self();
    begin(s, GLOBAL);
    DO(cuStreamGetCaptureInfo(s, &status, NULL, &g, NULL, NULL));
    DO(cuUserObjectCreate(&object, gone, destructor, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    DO(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    drv->cuStreamSynchronize(s);
    end(s);
    say_destroyed(gone);
}
FACT_ALONE(G_object_steal, "Releasing a reference that only the graph has; then destroying the graph.")
{
    CUuserObject object = NULL;
    CUgraph g = graph();
    atomic_int *gone = counter();
    DO(cuUserObjectCreate(&object, gone, count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    DO(cuGraphRetainUserObject(g, object, 2, CU_GRAPH_USER_OBJECT_MOVE));
    TELL("release", cuUserObjectRelease(object, 1));
    say("destroyed=%d", still(gone));
    TELL("destroy", cuGraphDestroy(GONE(g)));
    say("destroyed=%d", still(gone));
}

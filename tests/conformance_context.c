/* N: what calls need a current context, and what they do when another one is current. */
#include "conformance.h"

/* One of everything, made in `ctx` before the context is left. */
static struct {
    CUstream s;
    CUevent e, timed;
    CUdeviceptr p, block;
    CUgraph g;
    CUgraphExec x;
    handle h;
} my;

static void prepare(void)
{
    my.s = stream();
    my.e = event();
    my.timed = timing_event();
    my.p = buffer(2 * G);
    my.block = plain(G);
    my.g = graph();
    memset_node(my.g, my.p, G, 1);
    my.x = executable(my.g);
    DO(cuEventRecord(my.e, my.s));
    DO(cuEventRecord(my.timed, my.s));
    DO(cuStreamSynchronize(my.s));
}

static void with_none(void)
{
    prepare();
    DO(cuCtxSetCurrent(NULL));
}

static void with_second(void)
{
    prepare();
    DO(cuCtxSetCurrent(second_context()));
}

static void with_peer(void)
{
    needs_two_devices();
    prepare();
    DO(cuCtxSetCurrent(context_of(1)));
}

/* ---- virtual memory needs no context ---- */

FACT(N_vmm_reserve, "Reserving without a context.")
{
    CUdeviceptr p = 0;
    DO(cuCtxSetCurrent(NULL));
    tell("", try_reserve(&p, 2 * G, 0, 0, 0));
}
FACT(N_vmm_free, "Freeing addresses without a context.")
{
    CUdeviceptr p = reserve(2 * G);
    DO(cuCtxSetCurrent(NULL));
    TELL("", cuMemAddressFree(GONE(p), 2 * G));
}
FACT(N_vmm_create, "Creating memory without a context.")
{
    handle h = 0;
    DO(cuCtxSetCurrent(NULL));
    tell("", try_create(&h, 2 * G, on_device, 0));
}
FACT(N_vmm_release, "Releasing memory without a context.")
{
    handle h = create(2 * G);
    DO(cuCtxSetCurrent(NULL));
    TELL("", cuMemRelease(GONE(h)));
}
FACT(N_vmm_map, "Mapping without a context.")
{
    CUdeviceptr p = reserve(2 * G);
    handle h = create(2 * G);
    DO(cuCtxSetCurrent(NULL));
    tell("", try_map(p, 2 * G, 0, h, 0));
}
FACT(N_vmm_access, "Setting and asking for access without a context.")
{
    CUdeviceptr p = reserve(2 * G);
    map(p, 2 * G, create(2 * G));
    DO(cuCtxSetCurrent(NULL));
    TELL("", cuMemSetAccess(p, 2 * G, &read_write, 1));
}
FACT(N_vmm_get_access, "Asking for access without a context.")
{
    unsigned long long flags = 99;
    CUmemLocation l = location(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    with_none();
    TELL("", cuMemGetAccess(&flags, &l, my.p));
}
FACT(N_vmm_unmap, "Unmapping without a context.")
{
    with_none();
    TELL("", cuMemUnmap(my.p, 2 * G));
}
FACT(N_vmm_retain, "Retaining a handle without a context.")
{
    handle h = 0;
    with_none();
    TELL("", cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)my.p));
    if (h) DO(cuMemRelease(h));
}
FACT(N_vmm_granularity, "Granularity without a context.")
{
    size_t g = 0;
    DO(cuCtxSetCurrent(NULL));
    TELL("", cuMemGetAllocationGranularity(&g, &on_device, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}
FACT(N_vmm_share, "Exporting and importing without a context.")
{
    handle h = create_exportable(G), h2 = 0;
    DO(cuCtxSetCurrent(NULL));
    int fd = export_fd(h);
    tell("", try_import(&h2, fd));
}

/* ---- other calls: each without a context, with another context of the device, with another device's ---- */

static CUresult try_event(void)
{
    CUevent e = NULL;
    CUresult r = drv->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
    if (!r) drv->cuEventDestroy(e);
    return r;
}

static CUresult try_stream(void)
{
    CUstream s = NULL;
    CUresult r = drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    if (!r) drv->cuStreamDestroy(s);
    return r;
}

static CUresult try_capture(CUstream s)
{
    CUgraph g = NULL;
    CUresult r = drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (r) return r;
    r = drv->cuStreamEndCapture(s, &g);
    if (!r) drv->cuGraphDestroy(g);
    return r;
}

static CUresult try_capture_info(CUstream s)
{
    CUstreamCaptureStatus status;
    return drv->cuStreamGetCaptureInfo(s, &status, NULL, NULL, NULL, NULL);
}

static CUresult try_capturing(CUstream s)
{
    CUstreamCaptureStatus status;
    return drv->cuStreamIsCapturing(s, &status);
}

static CUresult try_context(CUstream s)
{
    CUcontext c = NULL;
    CUresult r = drv->cuStreamGetCtx(s, &c);
    if (!r) say("own=%d", c == ctx);
    return r;
}

static CUresult try_flags(void)
{
    unsigned flags = 0;
    return drv->cuStreamGetFlags(my.s, &flags);
}

static CUresult try_priority(void)
{
    int priority = 0;
    return drv->cuStreamGetPriority(my.s, &priority);
}

static CUresult try_id(void)
{
    unsigned long long id = 0;
    return drv->cuStreamGetId(my.s, &id);
}

static void callback(CUstream s, CUresult status, void *c)
{
    (void)s, (void)status;
    count(c);
}

static CUresult try_elapsed(void)
{
    float ms = 0;
    return drv->cuEventElapsedTime(&ms, my.timed, my.timed);
}

static CUresult try_mode(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult r = drv->cuThreadExchangeStreamCaptureMode(&mode);
    if (!r) drv->cuThreadExchangeStreamCaptureMode(&mode);
    return r;
}

static CUresult try_info(void)
{
    size_t available, total;
    return drv->cuMemGetInfo(&available, &total);
}

static CUresult try_attribute(void)
{
    unsigned type = 0;
    return drv->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, my.p);
}

static CUresult try_range(void)
{
    CUdeviceptr base;
    size_t size;
    return drv->cuMemGetAddressRange(&base, &size, my.p);
}

static CUresult try_graph(void)
{
    CUgraph g = NULL;
    CUresult r = drv->cuGraphCreate(&g, 0);
    if (!r) drv->cuGraphDestroy(g);
    return r;
}

static CUresult try_instantiate(void)
{
    CUgraphExec x = NULL;
    CUresult r = drv->cuGraphInstantiateWithFlags(&x, my.g, 0);
    if (!r) drv->cuGraphExecDestroy(x);
    return r;
}

static CUresult try_node(void)
{
    CUDA_MEMSET_NODE_PARAMS set = {.dst = my.p, .elementSize = 1, .width = G, .height = 1};
    CUgraphNode node;
    return drv->cuGraphAddMemsetNode(&node, my.g, NULL, 0, &set, ctx);
}

static CUresult try_object(void)
{
    CUuserObject object = NULL;
    CUresult r = drv->cuUserObjectCreate(&object, counter(), count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (!r) drv->cuUserObjectRelease(object, 1);
    return r;
}

static CUresult try_pinned(void)
{
    void *p = NULL;
    return try_alloc_host(&p, 4096);
}

static CUresult try_pin(void)
{
    static char page[8192];
    CUresult r = drv->cuMemHostRegister(page, sizeof page, 0);
    if (!r) drv->cuMemHostUnregister(page);
    return r;
}

static CUresult try_plain(void)
{
    CUdeviceptr p = 0;
    CUresult r = drv->cuMemAlloc(&p, G);
    if (!r) drv->cuMemFree(p);
    return r;
}

static CUresult try_pooled(CUstream s)
{
    CUdeviceptr p = 0;
    CUresult r = drv->cuMemAllocAsync(&p, G, s);
    if (!r) r = drv->cuMemFreeAsync(p, s);
    return r;
}

static CUresult try_pool(void)
{
    CUmemoryPool pool;
    cuuint64_t value;
    CUresult r = drv->cuDeviceGetDefaultMemPool(&pool, 0);
    if (!r) r = drv->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
    return r;
}

static CUresult try_device(void)
{
    CUdevice device = 9;
    CUresult r = drv->cuCtxGetDevice(&device);
    if (!r) say("device=%d", device);
    return r;
}

static CUresult free_block(void)
{
    CUresult r = drv->cuMemFree(my.block);
    if (!r) forget(my.block);
    return r;
}

static CUresult destroy_event(void)
{
    CUresult r = drv->cuEventDestroy(my.e);
    if (!r) forget((uint64_t)(uintptr_t)my.e);
    return r;
}

static CUresult destroy_stream(void)
{
    CUresult r = drv->cuStreamDestroy(my.s);
    if (!r) forget((uint64_t)(uintptr_t)my.s);
    return r;
}

#define CONTEXTS(name, call, what) \
    FACT(N_none_##name, what ", without a context.") \
    { \
        with_none(); \
        tell("", call); \
    } \
    FACT(N_second_##name, what ", with another context of the device.") \
    { \
        with_second(); \
        tell("", call); \
    } \
    FACT(N_peer_##name, what ", with another device's context.") \
    { \
        with_peer(); \
        tell("", call); \
    }

/* clang-format off */
CONTEXTS(stream_synchronize, drv->cuStreamSynchronize(my.s), "cuStreamSynchronize")
CONTEXTS(stream_query, drv->cuStreamQuery(my.s), "cuStreamQuery")
CONTEXTS(stream_capturing, try_capturing(my.s), "cuStreamIsCapturing")
CONTEXTS(stream_context, try_context(my.s), "cuStreamGetCtx")
CONTEXTS(stream_flags, try_flags(), "cuStreamGetFlags")
CONTEXTS(stream_info, try_capture_info(my.s), "cuStreamGetCaptureInfo")
CONTEXTS(stream_wait, drv->cuStreamWaitEvent(my.s, my.e, 0), "cuStreamWaitEvent")
CONTEXTS(stream_host, drv->cuLaunchHostFunc(my.s, count, counter()), "cuLaunchHostFunc")
CONTEXTS(stream_memset, drv->cuMemsetD8Async(my.p, 1, G, my.s), "cuMemsetD8Async")
CONTEXTS(stream_copy, drv->cuMemcpyDtoDAsync(my.p + G, my.p, G, my.s), "cuMemcpyDtoDAsync")
CONTEXTS(stream_capture, try_capture(my.s), "cuStreamBeginCapture and cuStreamEndCapture")
CONTEXTS(stream_launch, drv->cuGraphLaunch(my.x, my.s), "cuGraphLaunch")
CONTEXTS(stream_pooled, try_pooled(my.s), "cuMemAllocAsync and cuMemFreeAsync")
CONTEXTS(stream_callback, drv->cuStreamAddCallback(my.s, callback, counter(), 0), "cuStreamAddCallback")
CONTEXTS(stream_nothing, drv->cuMemsetD8Async(my.p, 1, 0, my.s), "cuMemsetD8Async of no bytes")
CONTEXTS(stream_priority, try_priority(), "cuStreamGetPriority")
CONTEXTS(stream_id, try_id(), "cuStreamGetId")
CONTEXTS(stream_create, try_stream(), "cuStreamCreate")
CONTEXTS(stream_destroy, destroy_stream(), "cuStreamDestroy")
CONTEXTS(event_record, drv->cuEventRecord(my.e, my.s), "cuEventRecord")
CONTEXTS(event_query, drv->cuEventQuery(my.e), "cuEventQuery")
CONTEXTS(event_synchronize, drv->cuEventSynchronize(my.e), "cuEventSynchronize")
CONTEXTS(event_elapsed, try_elapsed(), "cuEventElapsedTime")
CONTEXTS(event_create, try_event(), "cuEventCreate")
CONTEXTS(event_destroy, destroy_event(), "cuEventDestroy")
CONTEXTS(exchange_mode, try_mode(), "cuThreadExchangeStreamCaptureMode")
CONTEXTS(ctx_synchronize, drv->cuCtxSynchronize(), "cuCtxSynchronize")
CONTEXTS(ctx_device, try_device(), "cuCtxGetDevice")
CONTEXTS(memset, drv->cuMemsetD8(my.p, 1, G), "cuMemsetD8")
CONTEXTS(memset_nothing, drv->cuMemsetD8(my.p, 1, 0), "cuMemsetD8 of no bytes")
CONTEXTS(info, try_info(), "cuMemGetInfo")
CONTEXTS(attribute, try_attribute(), "cuPointerGetAttribute")
CONTEXTS(range, try_range(), "cuMemGetAddressRange")
CONTEXTS(graph_create, try_graph(), "cuGraphCreate")
CONTEXTS(graph_instantiate, try_instantiate(), "cuGraphInstantiateWithFlags")
CONTEXTS(graph_node, try_node(), "cuGraphAddMemsetNode that names the context")
CONTEXTS(user_object, try_object(), "cuUserObjectCreate")
CONTEXTS(alloc, try_plain(), "cuMemAlloc and cuMemFree")
CONTEXTS(free, free_block(), "cuMemFree of the first context's memory")
CONTEXTS(alloc_host, try_pinned(), "cuMemAllocHost")
CONTEXTS(register, try_pin(), "cuMemHostRegister")
CONTEXTS(pool, try_pool(), "cuMemPoolGetAttribute")

/* ---- default streams without a context ---- */

#define DEFAULTS(name, call, what)                                                     \
    FACT(N_legacy_##name, what " on the legacy stream, without a context.") { CUstream d = CU_STREAM_LEGACY; with_none(); tell("", call); } \
    FACT(N_perthread_##name, what " on the per-thread stream, without a context.") { CUstream d = CU_STREAM_PER_THREAD; with_none(); tell("", call); }

DEFAULTS(synchronize, drv->cuStreamSynchronize(d), "cuStreamSynchronize")
DEFAULTS(query, drv->cuStreamQuery(d), "cuStreamQuery")
DEFAULTS(capturing, try_capturing(d), "cuStreamIsCapturing")
DEFAULTS(context, try_context(d), "cuStreamGetCtx")
DEFAULTS(info, try_capture_info(d), "cuStreamGetCaptureInfo")
DEFAULTS(wait, drv->cuStreamWaitEvent(d, my.e, 0), "cuStreamWaitEvent")
DEFAULTS(record, drv->cuEventRecord(my.e, d), "cuEventRecord")
DEFAULTS(host, drv->cuLaunchHostFunc(d, count, counter()), "cuLaunchHostFunc")
DEFAULTS(memset, drv->cuMemsetD8Async(my.p, 1, G, d), "cuMemsetD8Async")
DEFAULTS(launch, drv->cuGraphLaunch(my.x, d), "cuGraphLaunch")
DEFAULTS(pooled, try_pooled(d), "cuMemAllocAsync and cuMemFreeAsync")
/* clang-format on */

FACT(N_legacy_record_second, "An event of one context recorded on the legacy stream of another.")
{
    with_second();
    TELL("", cuEventRecord(my.e, CU_STREAM_LEGACY));
}
FACT(N_legacy_wait_second, "The legacy stream of one context waits for an event of another.")
{
    with_second();
    TELL("", cuStreamWaitEvent(CU_STREAM_LEGACY, my.e, 0));
}
FACT(N_zero_is_legacy, "Stream 0 is the legacy stream: their ids, and their context.")
{
    unsigned long long zero = 1, legacy = 2, per_thread = 3;
    CUcontext c = NULL;
    TELL("", cuStreamGetId(NULL, &zero));
    TELL("", cuStreamGetId(CU_STREAM_LEGACY, &legacy));
    TELL("", cuStreamGetId(CU_STREAM_PER_THREAD, &per_thread));
    say("same=%d per-thread-same=%d", zero == legacy, zero == per_thread);
    TELL("context", cuStreamGetCtx(NULL, &c));
    say("own=%d", c == ctx);
}

/* ---- the stack of contexts ---- */

FACT(N_pop_empty, "Popping when no context is current.")
{
    CUcontext c = NULL;
    DO(cuCtxSetCurrent(NULL));
    TELL("", cuCtxPopCurrent(&c));
}
FACT(N_push_null, "Pushing no context.") { TELL("", cuCtxPushCurrent(NULL)); }
FACT(N_push_pop, "Pushing the current context again and popping it.")
{
    CUcontext c = NULL, now = NULL;
    TELL("push", cuCtxPushCurrent(ctx));
    TELL("pop", cuCtxPopCurrent(&c));
    DO(cuCtxGetCurrent(&now));
    say("popped=%d current=%d", c == ctx, now == ctx);
}
FACT(N_current_of_thread, "A context is current in one thread only.")
{
    CUcontext now = NULL;
    DO(cuCtxSetCurrent(NULL));
    TELL("", cuCtxGetCurrent(&now));
    say("null=%d", now == NULL);
}
FACT(N_primary_same, "Retaining the primary context twice gives the same context.")
{
    CUcontext again = NULL;
    TELL("", cuDevicePrimaryCtxRetain(&again, 0));
    say("same=%d", again == ctx);
    TELL("release", cuDevicePrimaryCtxRelease(0));
}
FACT(N_primary_state, "The primary context's state while it is retained.")
{
    unsigned flags = 9;
    int active = 9;
    TELL("", cuDevicePrimaryCtxGetState(0, &flags, &active));
    say("flags=%u active=%d", flags, active);
}
FACT_ALONE(N_primary_released, "After the last release of the primary context: its stream, memory, and state.")
{
    unsigned flags = 9;
    int active = 9;
    with_none();
    TELL("release", cuDevicePrimaryCtxRelease(0));
    DO(cuDevicePrimaryCtxGetState(0, &flags, &active));
    say("active=%d", active);
    TELL("unmap", cuMemUnmap(my.p, 2 * G));
    TELL("release-again", cuDevicePrimaryCtxRelease(0));
}

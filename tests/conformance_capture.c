/* C: what may be done while a stream captures, by which thread and in which mode. */
#include "conformance.h"

/* One of everything, made before the capture begins. */
static struct {
    CUstream capturing, other, spare;
    CUevent done, spare_event, timed; /* `done` and `timed` were recorded on `other` */
    CUdeviceptr p, block, pooled;
    void *pinned;
    CUgraph g;
    CUgraphExec x, spare_exec;
} my;

static char page[8192];

static void prepare(CUstream capturing)
{
    my.capturing = capturing;
    my.other = stream();
    my.spare = stream();
    my.done = event();
    my.spare_event = event();
    my.timed = timing_event();
    my.p = buffer(2 * G);
    my.block = plain(G);
    my.pinned = NULL;
    setup(try_alloc_async(&my.pooled, G, my.other), "cuMemAllocAsync", __FILE__, __LINE__);
    setup(try_alloc_host(&my.pinned, 4096), "cuMemAllocHost", __FILE__, __LINE__);
    my.g = graph();
    memset_node(my.g, my.p, G, 1);
    my.x = executable(my.g);
    my.spare_exec = executable(my.g);
    DO(cuEventRecord(my.done, my.other));
    DO(cuEventRecord(my.timed, my.other));
    DO(cuCtxSynchronize());
}

/* ---- the calls that are tried ---- */

static CUresult vmm_calls(void)
{
    CUdeviceptr p = 0;
    handle h = 0;
    CUresult r = drv->cuMemAddressReserve(&p, G, 0, 0, 0);
    if (!r) r = drv->cuMemCreate(&h, G, &on_device, 0);
    if (!r) r = drv->cuMemMap(p, G, 0, h, 0);
    if (!r) r = drv->cuMemSetAccess(p, G, &read_write, 1);
    if (!r) r = drv->cuMemUnmap(p, G);
    if (!r) r = drv->cuMemRelease(h);
    if (!r) r = drv->cuMemAddressFree(p, G);
    return r;
}

static CUresult try_event(void)
{
    CUevent e = NULL;
    CUresult r = drv->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
    return r ? r : drv->cuEventDestroy(e);
}

static CUresult gone_if(CUresult r, uint64_t object)
{
    if (!r) forget(object);
    return r;
}

static CUresult try_alloc_here(void)
{
    CUdeviceptr p = 0;
    return try_alloc(&p, G);
}

static CUresult try_pool_here(CUstream s)
{
    CUdeviceptr p = 0;
    return try_alloc_async(&p, G, s);
}

static CUresult try_pinned_here(void)
{
    void *p = NULL;
    return try_alloc_host(&p, 4096);
}

static void undo_stream_now(uint64_t s, size_t size)
{
    (void)size;
    drv->cuStreamDestroy((CUstream)(uintptr_t)s);
}

static CUresult try_stream(unsigned flags)
{
    CUstream s = NULL;
    CUresult r = drv->cuStreamCreate(&s, flags);
    if (!r) undo_later(undo_stream_now, ID(s), 0);
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

static void undo_context_now(uint64_t c, size_t size)
{
    (void)size;
    drv->cuCtxDestroy((CUcontext)(uintptr_t)c);
}

static CUresult try_context(void)
{
    CUcontext c = NULL, top = NULL;
    CUresult r = drv->cuCtxCreate(&c, 0, 0);
    if (r) return r;
    drv->cuCtxPopCurrent(&top);
    undo_later(undo_context_now, ID(c), 0);
    return r;
}

static CUresult try_primary(void)
{
    CUcontext c = NULL;
    CUresult r = drv->cuDevicePrimaryCtxRetain(&c, 0);
    return r ? r : drv->cuDevicePrimaryCtxRelease(0);
}

static CUresult try_capturing(CUstream s)
{
    CUstreamCaptureStatus status;
    return drv->cuStreamIsCapturing(s, &status);
}

static CUresult try_capture_info(CUstream s)
{
    CUstreamCaptureStatus status;
    return drv->cuStreamGetCaptureInfo(s, &status, NULL, NULL, NULL, NULL);
}

static CUresult try_begin(CUstream s)
{
    CUgraph g = NULL;
    CUresult r = drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (r) return r;
    r = drv->cuStreamEndCapture(s, &g);
    if (!r) drv->cuGraphDestroy(g);
    return r;
}

static CUresult try_graph(void)
{
    CUgraph g = NULL;
    CUresult r = drv->cuGraphCreate(&g, 0);
    return r ? r : drv->cuGraphDestroy(g);
}

static void undo_exec_now(uint64_t x, size_t size)
{
    (void)size;
    drv->cuGraphExecDestroy((CUgraphExec)(uintptr_t)x);
}

static CUresult try_exec(void)
{
    CUgraphExec x = NULL;
    CUresult r = drv->cuGraphInstantiateWithFlags(&x, my.g, 0);
    if (!r) undo_later(undo_exec_now, ID(x), 0);
    return r;
}

static CUresult try_object(void)
{
    CUuserObject object = NULL;
    CUresult r = drv->cuUserObjectCreate(&object, counter(), count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    return r ? r : drv->cuUserObjectRelease(object, 1);
}

static CUresult try_flags(CUstream s)
{
    unsigned flags = 0;
    return drv->cuStreamGetFlags(s, &flags);
}

static CUresult try_priority(CUstream s)
{
    int priority = 0;
    return drv->cuStreamGetPriority(s, &priority);
}

static CUresult try_id(CUstream s)
{
    unsigned long long id = 0;
    return drv->cuStreamGetId(s, &id);
}

static CUresult try_end(CUstream s)
{
    CUgraph g = NULL;
    return drv->cuStreamEndCapture(s, &g);
}

static CUresult try_elapsed(void)
{
    float ms = 0;
    return drv->cuEventElapsedTime(&ms, my.timed, my.timed);
}

static void callback(CUstream s, CUresult status, void *c)
{
    (void)s, (void)status;
    count(c);
}

static CUresult try_trim(void)
{
    CUmemoryPool pool;
    CUresult r = drv->cuDeviceGetDefaultMemPool(&pool, 0);
    return r ? r : drv->cuMemPoolTrimTo(pool, 0);
}

/* ---- the situations ---- */

static void during(CUstreamCaptureMode mode, bool exchanged, CUresult (*call)(void))
{
    prepare(stream());
    begin(my.capturing, mode);
    if (exchanged) set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult r = call();
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    tell("", r);
    end(my.capturing);
}

static CUresult (*thread_call)(void);
static CUresult thread_result;

static void thread_default(void *unused)
{
    (void)unused;
    thread_result = thread_call();
}

static void thread_relaxed(void *unused)
{
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    thread_default(unused);
}

static void during_elsewhere(CUstreamCaptureMode mode, bool relaxed, CUresult (*call)(void))
{
    prepare(stream());
    begin(my.capturing, mode);
    thread_call = call;
    in_thread(relaxed ? thread_relaxed : thread_default, NULL);
    tell("", thread_result);
    end(my.capturing);
}

/* Each call in each situation. Another stream than the capturing one is concerned, if any. */
#define CALL_DURING(name, call, what) \
    static CUresult call_##name(void) { return call; } \
    FACT(C_global_##name, what ", by the thread that captures in global mode.") \
    { \
        during(CU_STREAM_CAPTURE_MODE_GLOBAL, false, call_##name); \
    } \
    FACT(C_local_##name, what ", by the thread that captures in thread-local mode.") \
    { \
        during(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, call_##name); \
    } \
    FACT(C_relaxed_##name, what ", by the thread that captures in relaxed mode.") \
    { \
        during(CU_STREAM_CAPTURE_MODE_RELAXED, false, call_##name); \
    } \
    FACT(C_exchanged_##name, what ", by the thread that captures in global mode and then made itself relaxed.") \
    { \
        during(CU_STREAM_CAPTURE_MODE_GLOBAL, true, call_##name); \
    } \
    FACT(C_thread_##name, what ", by a thread in default mode while another captures in global mode.") \
    { \
        during_elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL, false, call_##name); \
    }

/* clang-format off */
CALL_DURING(vmm, vmm_calls(), "The seven virtual memory calls")
CALL_DURING(synchronize, drv->cuStreamSynchronize(my.other), "cuStreamSynchronize")
CALL_DURING(query, drv->cuStreamQuery(my.other), "cuStreamQuery")
CALL_DURING(event_query, drv->cuEventQuery(my.done), "cuEventQuery")
CALL_DURING(event_synchronize, drv->cuEventSynchronize(my.done), "cuEventSynchronize")
CALL_DURING(record, drv->cuEventRecord(my.spare_event, my.other), "cuEventRecord")
CALL_DURING(wait, drv->cuStreamWaitEvent(my.other, my.done, 0), "cuStreamWaitEvent")
CALL_DURING(host, drv->cuLaunchHostFunc(my.other, count, counter()), "cuLaunchHostFunc")
CALL_DURING(memset_async, drv->cuMemsetD8Async(my.p, 1, G, my.other), "cuMemsetD8Async")
CALL_DURING(memset, drv->cuMemsetD8(my.p, 1, G), "cuMemsetD8")
CALL_DURING(copy_in, drv->cuMemcpyHtoD(my.p, page, 16), "cuMemcpyHtoD")
CALL_DURING(copy_out, drv->cuMemcpyDtoH(page, my.p, 16), "cuMemcpyDtoH")
CALL_DURING(copy, drv->cuMemcpyDtoD(my.p + G, my.p, G), "cuMemcpyDtoD")
CALL_DURING(copy_out_async, drv->cuMemcpyDtoHAsync(page, my.p, 16, my.other), "cuMemcpyDtoHAsync to pageable memory")
CALL_DURING(callback, drv->cuStreamAddCallback(my.other, callback, counter(), 0), "cuStreamAddCallback")
CALL_DURING(elapsed, try_elapsed(), "cuEventElapsedTime")
CALL_DURING(flags, try_flags(my.other), "cuStreamGetFlags")
CALL_DURING(alloc, try_alloc_here(), "cuMemAlloc")
CALL_DURING(free, gone_if(drv->cuMemFree(my.block), my.block), "cuMemFree")
CALL_DURING(alloc_async, try_pool_here(my.other), "cuMemAllocAsync")
CALL_DURING(free_async, gone_if(drv->cuMemFreeAsync(my.pooled, my.other), my.pooled), "cuMemFreeAsync")
CALL_DURING(alloc_host, try_pinned_here(), "cuMemAllocHost")
CALL_DURING(free_host, gone_if(drv->cuMemFreeHost(my.pinned), ID(my.pinned)), "cuMemFreeHost")
CALL_DURING(register, try_register(page, sizeof page), "cuMemHostRegister")
CALL_DURING(info, try_info(), "cuMemGetInfo")
CALL_DURING(attribute, try_attribute(), "cuPointerGetAttribute")
CALL_DURING(ctx_synchronize, drv->cuCtxSynchronize(), "cuCtxSynchronize")
CALL_DURING(ctx_create, try_context(), "cuCtxCreate")
CALL_DURING(primary, try_primary(), "cuDevicePrimaryCtxRetain and cuDevicePrimaryCtxRelease")
CALL_DURING(stream_create, try_stream(CU_STREAM_NON_BLOCKING), "cuStreamCreate")
CALL_DURING(blocking_create, try_stream(CU_STREAM_DEFAULT), "cuStreamCreate of a blocking stream")
CALL_DURING(stream_destroy, gone_if(drv->cuStreamDestroy(my.spare), ID(my.spare)), "cuStreamDestroy")
CALL_DURING(event_create, try_event(), "cuEventCreate and cuEventDestroy")
CALL_DURING(capturing, try_capturing(my.other), "cuStreamIsCapturing")
CALL_DURING(capture_info, try_capture_info(my.other), "cuStreamGetCaptureInfo")
CALL_DURING(begin, try_begin(my.other), "A second capture, on another stream")
CALL_DURING(graph_create, try_graph(), "cuGraphCreate and cuGraphDestroy")
CALL_DURING(instantiate, try_exec(), "cuGraphInstantiateWithFlags")
CALL_DURING(launch, drv->cuGraphLaunch(my.x, my.other), "cuGraphLaunch")
CALL_DURING(exec_destroy, gone_if(drv->cuGraphExecDestroy(my.spare_exec), ID(my.spare_exec)), "cuGraphExecDestroy")
CALL_DURING(user_object, try_object(), "cuUserObjectCreate and cuUserObjectRelease")
CALL_DURING(trim, try_trim(), "cuMemPoolTrimTo")
/* clang-format on */

/* ---- another thread: what captures elsewhere mean to it ---- */

#define ELSEWHERE(name, mode, relaxed, call, sentence) \
    FACT(C_##name, sentence) { during_elsewhere(mode, relaxed, call); }

ELSEWHERE(thread_relaxed_synchronize, CU_STREAM_CAPTURE_MODE_GLOBAL, true, call_synchronize,
          "cuStreamSynchronize by a relaxed thread while another captures in global mode.")
ELSEWHERE(thread_relaxed_event_query, CU_STREAM_CAPTURE_MODE_GLOBAL, true, call_event_query,
          "cuEventQuery by a relaxed thread while another captures in global mode.")
ELSEWHERE(thread_relaxed_event_synchronize, CU_STREAM_CAPTURE_MODE_GLOBAL, true, call_event_synchronize,
          "cuEventSynchronize by a relaxed thread while another captures in global mode.")
ELSEWHERE(thread_relaxed_alloc, CU_STREAM_CAPTURE_MODE_GLOBAL, true, call_alloc,
          "cuMemAlloc by a relaxed thread while another captures in global mode.")
ELSEWHERE(thread_relaxed_free, CU_STREAM_CAPTURE_MODE_GLOBAL, true, call_free,
          "cuMemFree by a relaxed thread while another captures in global mode.")
ELSEWHERE(thread_relaxed_ctx_synchronize, CU_STREAM_CAPTURE_MODE_GLOBAL, true, call_ctx_synchronize,
          "cuCtxSynchronize by a relaxed thread while another captures in global mode.")
ELSEWHERE(thread_local_synchronize, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, call_synchronize,
          "cuStreamSynchronize by another thread while one captures in thread-local mode.")
ELSEWHERE(thread_local_event_query, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, call_event_query,
          "cuEventQuery by another thread while one captures in thread-local mode.")
ELSEWHERE(thread_local_event_synchronize, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, call_event_synchronize,
          "cuEventSynchronize by another thread while one captures in thread-local mode.")
ELSEWHERE(thread_local_ctx_synchronize, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, call_ctx_synchronize,
          "cuCtxSynchronize by another thread while one captures in thread-local mode.")
ELSEWHERE(thread_during_relaxed, CU_STREAM_CAPTURE_MODE_RELAXED, false, call_synchronize,
          "cuStreamSynchronize by another thread while one captures in relaxed mode.")

static CUresult several_calls(void)
{
    TELL("query", cuEventQuery(my.done));
    TELL("event-synchronize", cuEventSynchronize(my.done));
    TELL("synchronize", cuStreamSynchronize(my.other));
    TELL("record", cuEventRecord(my.spare_event, my.other));
    TELL("query", cuEventQuery(my.spare_event));
    return try_capturing(my.capturing);
}

FACT(
    C_thread_several,
    "Several calls in a row by a thread in default mode while another captures in global mode; the first costs the capture.")
{
    during_elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL, false, several_calls);
}

static CUresult synchronize_capturing(void) { return drv->cuStreamSynchronize(my.capturing); }
static CUresult query_capturing(void) { return drv->cuStreamQuery(my.capturing); }

ELSEWHERE(thread_synchronize_capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, synchronize_capturing,
          "A relaxed thread synchronises the stream that another captures in thread-local mode.")
ELSEWHERE(thread_query_capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, query_capturing,
          "A relaxed thread queries the stream that another captures in thread-local mode.")

/* ---- the capturing stream itself ---- */

#define ITSELF(name, call, what) \
    static CUresult self_##name(void) { return call; } \
    FACT(C_self_global_##name, what " of the stream that captures in global mode.") \
    { \
        during(CU_STREAM_CAPTURE_MODE_GLOBAL, false, self_##name); \
    } \
    FACT(C_self_exchanged_##name, what " of the stream that captures in global mode, by its thread made relaxed.") \
    { \
        during(CU_STREAM_CAPTURE_MODE_GLOBAL, true, self_##name); \
    } \
    FACT(C_self_local_##name, what " of the stream that captures in thread-local mode, by its thread made relaxed.") \
    { \
        during(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, self_##name); \
    }

static CUresult self_context(void)
{
    CUcontext c = NULL;
    return drv->cuStreamGetCtx(my.capturing, &c);
}

/* clang-format off */
ITSELF(synchronize, drv->cuStreamSynchronize(my.capturing), "cuStreamSynchronize")
ITSELF(query, drv->cuStreamQuery(my.capturing), "cuStreamQuery")
ITSELF(get_context, self_context(), "cuStreamGetCtx")
ITSELF(flags, try_flags(my.capturing), "cuStreamGetFlags")
ITSELF(priority, try_priority(my.capturing), "cuStreamGetPriority")
ITSELF(id, try_id(my.capturing), "cuStreamGetId")
ITSELF(launch, drv->cuGraphLaunch(my.x, my.capturing), "cuGraphLaunch")
ITSELF(capturing, try_capturing(my.capturing), "cuStreamIsCapturing")
ITSELF(begin, drv->cuStreamBeginCapture(my.capturing, CU_STREAM_CAPTURE_MODE_GLOBAL), "A second cuStreamBeginCapture")
ITSELF(wait, drv->cuStreamWaitEvent(my.capturing, my.done, 0), "cuStreamWaitEvent, for an event not captured,")
ITSELF(alloc_async, try_pool_here(my.capturing), "cuMemAllocAsync")
ITSELF(free_async, gone_if(drv->cuMemFreeAsync(my.pooled, my.capturing), my.pooled), "cuMemFreeAsync, of memory from before,")
ITSELF(callback, drv->cuStreamAddCallback(my.capturing, callback, counter(), 0), "cuStreamAddCallback")
/* clang-format on */

/* ---- the legacy stream while a blocking stream captures ---- */

static void during_blocking(bool exchanged, CUresult (*call)(void))
{
    prepare(blocking_stream());
    DO(cuEventRecord(my.done, CU_STREAM_LEGACY));
    DO(cuCtxSynchronize());
    begin(my.capturing, CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (exchanged) set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult r = call();
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    tell("", r);
    end(my.capturing);
}

#define LEGACY(name, call, what) \
    static CUresult legacy_##name(void) { return call; } \
    FACT(C_legacy_##name, what " while a blocking stream captures.") { during_blocking(false, legacy_##name); } \
    FACT(C_legacy_exchanged_##name, what " while a blocking stream captures, by its thread made relaxed.") \
    { \
        during_blocking(true, legacy_##name); \
    }

/* clang-format off */
LEGACY(capturing, try_capturing(CU_STREAM_LEGACY), "cuStreamIsCapturing of the legacy stream")
LEGACY(capture_info, try_capture_info(CU_STREAM_LEGACY), "cuStreamGetCaptureInfo of the legacy stream")
LEGACY(synchronize, drv->cuStreamSynchronize(CU_STREAM_LEGACY), "cuStreamSynchronize of the legacy stream")
LEGACY(query, drv->cuStreamQuery(CU_STREAM_LEGACY), "cuStreamQuery of the legacy stream")
LEGACY(record, drv->cuEventRecord(my.spare_event, CU_STREAM_LEGACY), "cuEventRecord on the legacy stream")
LEGACY(wait, drv->cuStreamWaitEvent(CU_STREAM_LEGACY, my.done, 0), "cuStreamWaitEvent on the legacy stream")
LEGACY(host, drv->cuLaunchHostFunc(CU_STREAM_LEGACY, count, counter()), "cuLaunchHostFunc on the legacy stream")
LEGACY(memset_async, drv->cuMemsetD8Async(my.p, 1, 16, CU_STREAM_LEGACY), "cuMemsetD8Async on the legacy stream")
LEGACY(memset, drv->cuMemsetD8(my.p, 1, 16), "cuMemsetD8")
LEGACY(copy_in, drv->cuMemcpyHtoD(my.p, page, 16), "cuMemcpyHtoD")
LEGACY(copy_out, drv->cuMemcpyDtoH(page, my.p, 16), "cuMemcpyDtoH")
LEGACY(event_query, drv->cuEventQuery(my.done), "cuEventQuery of an event recorded on the legacy stream before")
LEGACY(event_synchronize, drv->cuEventSynchronize(my.done), "cuEventSynchronize of an event recorded on the legacy stream before")
LEGACY(launch, drv->cuGraphLaunch(my.x, CU_STREAM_LEGACY), "cuGraphLaunch on the legacy stream")
LEGACY(alloc_async, try_pool_here(CU_STREAM_LEGACY), "cuMemAllocAsync on the legacy stream")
LEGACY(free_async, gone_if(drv->cuMemFreeAsync(my.pooled, CU_STREAM_LEGACY), my.pooled), "cuMemFreeAsync on the legacy stream")
LEGACY(alloc, try_alloc_here(), "cuMemAlloc")
LEGACY(free, gone_if(drv->cuMemFree(my.block), my.block), "cuMemFree")
LEGACY(other, drv->cuStreamSynchronize(my.other), "cuStreamSynchronize of another, non-blocking stream")
LEGACY(ctx_synchronize, drv->cuCtxSynchronize(), "cuCtxSynchronize")
LEGACY(begin, drv->cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture of the legacy stream")
LEGACY(flags, try_flags(CU_STREAM_LEGACY), "cuStreamGetFlags of the legacy stream")
LEGACY(priority, try_priority(CU_STREAM_LEGACY), "cuStreamGetPriority of the legacy stream")
LEGACY(id, try_id(CU_STREAM_LEGACY), "cuStreamGetId of the legacy stream")
LEGACY(end, try_end(CU_STREAM_LEGACY), "cuStreamEndCapture of the legacy stream")
LEGACY(nothing, drv->cuMemsetD8(my.p, 1, 0), "cuMemsetD8 of no bytes")
LEGACY(memset_wrong, drv->cuMemsetD8Async(my.p, 1, 4 * G, CU_STREAM_LEGACY), "cuMemsetD8Async, beyond the mapping, on the legacy stream")
LEGACY(vmm, vmm_calls(), "The seven virtual memory calls")
/* clang-format on */

/* Attacks: handles that are wrong in every way, nowhere to put the answer, sizes at the edges. The simulated driver
 * answers an error, changes nothing and never crashes, also where a real one does. */
#include <unistd.h>

#include "sim_kit.h"

static void nothing(void *data) { (void)data; }

/* ---------------------------------------------------------------------------------------------
 * One of everything alive, and one that was
 * ------------------------------------------------------------------------------------------- */

typedef enum kind { MEMORY, ADDRESS, STREAM, EVENT, GRAPH, NODE, EXEC, OBJECT, POOL, CONTEXT, HOST, KINDS } kind;

static const char *const kind_names[] = {"memory", "address", "stream", "event",   "graph", "node",
                                         "exec",   "object",  "pool",   "context", "host"};

static uint64_t live[KINDS], stale[KINDS];
static block here;

static void make(uint64_t *out)
{
    CUdeviceptr plain_memory;
    CUstream s;
    CUevent e;
    CUgraph g;
    CUgraphNode n;
    CUgraphExec x;
    CUuserObject o;
    CUmemoryPool p;
    CUcontext c;
    void *pinned;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ck_cu(cu->cuMemAlloc(&plain_memory, 100));
    ck_cu(cu->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    ck_cu(cu->cuEventCreate(&e, 0));
    ck_cu(cu->cuGraphCreate(&g, 0));
    ck_cu(cu->cuGraphAddEmptyNode(&n, g, NULL, 0));
    ck_cu(cu->cuGraphInstantiateWithFlags(&x, g, 0));
    ck_cu(cu->cuUserObjectCreate(&o, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ck_cu(cu->cuMemPoolCreate(&p, &props));
    ck_cu(cu->cuMemAllocHost(&pinned, 100));
    ck_cu(cu->cuCtxCreate(&c, 0, 1));
    ck_cu(cu->cuCtxPopCurrent(NULL));
    here = block_make(G); /* last: nothing is behind it */
    const uint64_t made[KINDS] = {here.handle,  plain_memory, (uintptr_t)s,     (uintptr_t)e,
                                  (uintptr_t)g, (uintptr_t)n, (uintptr_t)x,     (uintptr_t)o,
                                  (uintptr_t)p, (uintptr_t)c, (uintptr_t)pinned};
    memcpy(out, made, sizeof made);
}

/* Each of them must work: the attacks have changed nothing. */
static void end(const uint64_t *all)
{
    CUgraphNodeType type;
    ck_cu(cu->cuGraphNodeGetType((CUgraphNode)(uintptr_t)all[NODE], &type));
    ck_filled(here.address, 0, G);
    block_end(&here);
    ck_cu(cu->cuMemFree(all[ADDRESS]));
    ck_cu(cu->cuStreamDestroy((CUstream)(uintptr_t)all[STREAM]));
    ck_cu(cu->cuEventDestroy((CUevent)(uintptr_t)all[EVENT]));
    ck_cu(cu->cuGraphDestroy((CUgraph)(uintptr_t)all[GRAPH]));
    ck_cu(cu->cuGraphExecDestroy((CUgraphExec)(uintptr_t)all[EXEC]));
    ck_cu(cu->cuUserObjectRelease((CUuserObject)(uintptr_t)all[OBJECT], 1));
    ck_cu(cu->cuMemPoolDestroy((CUmemoryPool)(uintptr_t)all[POOL]));
    ck_cu(cu->cuMemFreeHost((void *)(uintptr_t)all[HOST]));
    ck_cu(cu->cuCtxDestroy((CUcontext)(uintptr_t)all[CONTEXT]));
}

/* ---------------------------------------------------------------------------------------------
 * Every call that takes a handle, with that one wrong and the rest right
 * ------------------------------------------------------------------------------------------- */

#define STREAM_(h) ((CUstream)(uintptr_t)(h))
#define EVENT_(h) ((CUevent)(uintptr_t)(h))
#define GRAPH_(h) ((CUgraph)(uintptr_t)(h))
#define NODE_(h) ((CUgraphNode)(uintptr_t)(h))
#define EXEC_(h) ((CUgraphExec)(uintptr_t)(h))
#define OBJECT_(h) ((CUuserObject)(uintptr_t)(h))
#define POOL_(h) ((CUmemoryPool)(uintptr_t)(h))
#define CONTEXT_(h) ((CUcontext)(uintptr_t)(h))
#define HOST_(h) ((void *)(uintptr_t)(h))
#define DEVICE_LOCATION \
    (CUmemLocation) { CU_MEM_LOCATION_TYPE_DEVICE, 0 }

/* Where answers go. */
static CUmemGenericAllocationHandle out_memory;
static CUdeviceptr out_address;
static CUmemAllocationProp out_prop;
static CUcontext out_context;
static CUgraph out_graph;
static CUgraphNode out_node, out_nodes[8];
static CUgraphExec out_exec;
static CUstreamCaptureStatus out_status;
static CUgraphNodeType out_type;
static CUmemAccess_flags out_access;
static CUipcMemHandle out_ipc;
static unsigned long long out_long;
static unsigned out_unsigned;
static size_t out_size, count8 = 8;
static cuuint64_t out_value;
static int out_int;
static float out_float;
static char out_bytes[64];

static const CUmemAccessDesc read_write = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static const CUDA_HOST_NODE_PARAMS host_node = {nothing, NULL};
static CUDA_MEMSET_NODE_PARAMS set_node(uint64_t dst)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = dst, .value = 1, .elementSize = 1, .width = 8, .height = 1};
}
static CUDA_MEMCPY3D copy_node(uint64_t dst, uint64_t src)
{
    return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = dst,
                           .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = src,
                           .WidthInBytes = 8,
                           .Height = 1,
                           .Depth = 1};
}
static void stream_callback(CUstream s, CUresult r, void *data) { (void)s, (void)r, (void)data; }

#define TRIES(X) \
    X(CONTEXT, cuCtxDestroy(CONTEXT_(h))) \
    X(CONTEXT, cuCtxSetCurrent(CONTEXT_(h))) \
    X(CONTEXT, cuCtxPushCurrent(CONTEXT_(h))) \
    X(CONTEXT, cuCtxEnablePeerAccess(CONTEXT_(h), 0)) \
    X(CONTEXT, cuCtxDisablePeerAccess(CONTEXT_(h))) \
    X(CONTEXT, cuMemcpyPeer(here.address, CONTEXT_(h), here.address, CONTEXT_(live[CONTEXT]), 8)) \
    X(CONTEXT, cuMemcpyPeerAsync(here.address, CONTEXT_(live[CONTEXT]), here.address, CONTEXT_(h), 8, NULL)) \
    X(CONTEXT, cuGraphAddMemsetNode(&out_node, GRAPH_(live[GRAPH]), NULL, 0, \
                                    (set_node_ = set_node(here.address), &set_node_), CONTEXT_(h))) \
    X(CONTEXT, cuGraphAddMemcpyNode(&out_node, GRAPH_(live[GRAPH]), NULL, 0, \
                                    (copy_node_ = copy_node(here.address, here.address), &copy_node_), CONTEXT_(h))) \
    X(MEMORY, cuMemRelease(h)) \
    X(MEMORY, cuMemMap(here.address, G, 0, h, 0)) \
    X(MEMORY, cuMemGetAllocationPropertiesFromHandle(&out_prop, h)) \
    X(MEMORY, cuMemExportToShareableHandle(&out_int, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) \
    X(KINDS, cuMemImportFromShareableHandle(&out_memory, HOST_(h), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) \
    X(KINDS, cuMemAddressFree(h, G)) \
    X(KINDS, cuMemMap(h, G, 0, live[MEMORY], 0)) \
    X(KINDS, cuMemUnmap(h, G)) \
    X(KINDS, cuMemSetAccess(h, G, &read_write, 1)) \
    X(ADDRESS, cuMemGetAccess(&out_long, &DEVICE_LOCATION, h)) \
    X(KINDS, cuMemRetainAllocationHandle(&out_memory, HOST_(h))) \
    X(ADDRESS, cuMemGetAddressRange(&out_address, &out_size, h)) \
    X(ADDRESS, cuPointerGetAttribute(out_bytes, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, h)) \
    X(ADDRESS, cuPointerSetAttribute(&out_unsigned, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, h)) \
    X(KINDS, cuIpcGetMemHandle(&out_ipc, h)) \
    X(KINDS, cuMemGetHandleForAddressRange(&out_int, h, G, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)) \
    X(ADDRESS, cuMemFree(h)) \
    X(HOST, cuMemFreeHost(HOST_(h))) \
    X(HOST, cuMemHostGetDevicePointer(&out_address, HOST_(h), 0)) \
    X(KINDS, cuMemHostUnregister(HOST_(h))) \
    X(ADDRESS, cuMemFreeAsync(h, NULL)) \
    X(STREAM, cuMemAllocAsync(&out_address, 8, STREAM_(h))) \
    X(POOL, cuMemAllocFromPoolAsync(&out_address, 8, POOL_(h), NULL)) \
    X(STREAM, cuMemAllocFromPoolAsync(&out_address, 8, POOL_(live[POOL]), STREAM_(h))) \
    X(POOL, cuDeviceSetMemPool(0, POOL_(h))) \
    X(POOL, cuMemPoolDestroy(POOL_(h))) \
    X(POOL, cuMemPoolTrimTo(POOL_(h), 0)) \
    X(POOL, cuMemPoolSetAttribute(POOL_(h), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &out_value)) \
    X(POOL, cuMemPoolGetAttribute(POOL_(h), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &out_value)) \
    X(POOL, cuMemPoolSetAccess(POOL_(h), &read_write, 1)) \
    X(POOL, cuMemPoolGetAccess(&out_access, POOL_(h), &(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0})) \
    X(ADDRESS, cuMemsetD8(h, 0, 8)) \
    X(ADDRESS, cuMemsetD16(h, 0, 8)) \
    X(ADDRESS, cuMemsetD32(h, 0, 8)) \
    X(ADDRESS, cuMemsetD8Async(h, 0, 8, STREAM_(live[STREAM]))) \
    X(STREAM, cuMemsetD8Async(here.address, 0, 8, STREAM_(h))) \
    X(STREAM, cuMemsetD16Async(here.address, 0, 8, STREAM_(h))) \
    X(STREAM, cuMemsetD32Async(here.address, 0, 8, STREAM_(h))) \
    X(ADDRESS, cuMemcpyHtoD(h, out_bytes, 8)) \
    X(ADDRESS, cuMemcpyDtoH(out_bytes, h, 8)) \
    X(ADDRESS, cuMemcpyDtoD(h, here.address, 8)) \
    X(ADDRESS, cuMemcpyDtoD(here.address, h, 8)) \
    X(ADDRESS, cuMemcpyHtoDAsync(h, out_bytes, 8, NULL)) \
    X(ADDRESS, cuMemcpyDtoHAsync(out_bytes, h, 8, NULL)) \
    X(ADDRESS, cuMemcpyDtoDAsync(h, here.address, 8, NULL)) \
    X(STREAM, cuMemcpyAsync(here.address, here.address + 8, 8, STREAM_(h))) \
    X(STREAM, cuMemcpyHtoDAsync(here.address, out_bytes, 8, STREAM_(h))) \
    X(STREAM, cuMemcpyDtoHAsync(out_bytes, here.address, 8, STREAM_(h))) \
    X(STREAM, cuMemcpyDtoDAsync(here.address, here.address + 8, 8, STREAM_(h))) \
    X(STREAM, \
      cuMemcpyPeerAsync(here.address, CONTEXT_(live[CONTEXT]), here.address, CONTEXT_(live[CONTEXT]), 8, STREAM_(h))) \
    X(STREAM, cuStreamDestroy(STREAM_(h))) \
    X(STREAM, cuStreamSynchronize(STREAM_(h))) \
    X(STREAM, cuStreamQuery(STREAM_(h))) \
    X(STREAM, cuStreamWaitEvent(STREAM_(h), EVENT_(live[EVENT]), 0)) \
    X(EVENT, cuStreamWaitEvent(NULL, EVENT_(h), 0)) \
    X(STREAM, cuStreamGetCtx(STREAM_(h), &out_context)) \
    X(STREAM, cuStreamGetFlags(STREAM_(h), &out_unsigned)) \
    X(STREAM, cuStreamGetPriority(STREAM_(h), &out_int)) \
    X(STREAM, cuStreamGetId(STREAM_(h), &out_long)) \
    X(STREAM, cuStreamAddCallback(STREAM_(h), stream_callback, NULL, 0)) \
    X(STREAM, cuLaunchHostFunc(STREAM_(h), nothing, NULL)) \
    X(STREAM, cuStreamBeginCapture(STREAM_(h), CU_STREAM_CAPTURE_MODE_RELAXED)) \
    X(STREAM, cuStreamEndCapture(STREAM_(h), &out_graph)) \
    X(STREAM, cuStreamIsCapturing(STREAM_(h), &out_status)) \
    X(STREAM, cuStreamGetCaptureInfo(STREAM_(h), &out_status, NULL, NULL, NULL, NULL)) \
    X(STREAM, cuStreamUpdateCaptureDependencies(STREAM_(h), NULL, 0, 0)) \
    X(EVENT, cuEventDestroy(EVENT_(h))) \
    X(EVENT, cuEventRecord(EVENT_(h), NULL)) \
    X(STREAM, cuEventRecord(EVENT_(live[EVENT]), STREAM_(h))) \
    X(EVENT, cuEventQuery(EVENT_(h))) \
    X(EVENT, cuEventSynchronize(EVENT_(h))) \
    X(EVENT, cuEventElapsedTime(&out_float, EVENT_(h), EVENT_(live[EVENT]))) \
    X(EVENT, cuEventElapsedTime(&out_float, EVENT_(live[EVENT]), EVENT_(h))) \
    X(GRAPH, cuGraphDestroy(GRAPH_(h))) \
    X(GRAPH, cuGraphClone(&out_graph, GRAPH_(h))) \
    X(GRAPH, cuGraphAddEmptyNode(&out_node, GRAPH_(h), NULL, 0)) \
    X(GRAPH, cuGraphAddHostNode(&out_node, GRAPH_(h), NULL, 0, &host_node)) \
    X(GRAPH, cuGraphAddMemsetNode(&out_node, GRAPH_(h), NULL, 0, (set_node_ = set_node(here.address), &set_node_), \
                                  CONTEXT_(live[CONTEXT]))) \
    X(GRAPH, cuGraphAddMemcpyNode(&out_node, GRAPH_(h), NULL, 0, \
                                  (copy_node_ = copy_node(here.address, here.address), &copy_node_), \
                                  CONTEXT_(live[CONTEXT]))) \
    X(GRAPH, cuGraphAddChildGraphNode(&out_node, GRAPH_(h), NULL, 0, GRAPH_(live[GRAPH]))) \
    X(KINDS, cuGraphAddChildGraphNode(&out_node, GRAPH_(live[GRAPH]), NULL, 0, GRAPH_(h))) \
    X(NODE, cuGraphAddEmptyNode(&out_node, GRAPH_(live[GRAPH]), (node_ = NODE_(h), &node_), 1)) \
    X(GRAPH, cuGraphAddDependencies(GRAPH_(h), (node_ = NODE_(live[NODE]), &node_), &node_, 1)) \
    X(KINDS, cuGraphAddDependencies(GRAPH_(live[GRAPH]), (node_ = NODE_(h), &node_), \
                                    (other_ = NODE_(live[NODE]), &other_), 1)) \
    X(GRAPH, cuGraphGetNodes(GRAPH_(h), out_nodes, (count8 = 8, &count8))) \
    X(GRAPH, cuGraphGetEdges(GRAPH_(h), NULL, NULL, &count8)) \
    X(NODE, cuGraphNodeGetType(NODE_(h), &out_type)) \
    X(GRAPH, cuGraphInstantiateWithFlags(&out_exec, GRAPH_(h), 0)) \
    X(EXEC, cuGraphLaunch(EXEC_(h), NULL)) \
    X(STREAM, cuGraphLaunch(EXEC_(live[EXEC]), STREAM_(h))) \
    X(EXEC, cuGraphExecDestroy(EXEC_(h))) \
    X(OBJECT, cuUserObjectRetain(OBJECT_(h), 1)) \
    X(OBJECT, cuUserObjectRelease(OBJECT_(h), 1)) \
    X(GRAPH, cuGraphRetainUserObject(GRAPH_(h), OBJECT_(live[OBJECT]), 1, 0)) \
    X(OBJECT, cuGraphRetainUserObject(GRAPH_(live[GRAPH]), OBJECT_(h), 1, 0)) \
    X(GRAPH, cuGraphReleaseUserObject(GRAPH_(h), OBJECT_(live[OBJECT]), 1)) \
    X(OBJECT, cuGraphReleaseUserObject(GRAPH_(live[GRAPH]), OBJECT_(h), 1)) \
    X(KINDS, cuModuleUnload((CUmodule)(uintptr_t)h)) \
    X(KINDS, cuModuleGetFunction(&(CUfunction){NULL}, (CUmodule)(uintptr_t)h, "f")) \
    X(KINDS, cuLaunchKernel((CUfunction)(uintptr_t)h, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))

static CUDA_MEMSET_NODE_PARAMS set_node_;
static CUDA_MEMCPY3D copy_node_;
static CUgraphNode node_, other_;

/* 0 is something to these: the default stream, no context, no memory. 1 and 2 are streams too. A destroyed context is
 * refused when it is used. */
static bool means_something(const char *call, kind k, uint64_t h)
{
    if (k == CONTEXT && h == stale[CONTEXT] &&
        (!strncmp(call, "cuCtxSetCurrent", 15) || !strncmp(call, "cuCtxPushCurrent", 16)))
        return true;
    if (k == STREAM && h <= 2) return strncmp(call, "cuStreamDestroy", 15) != 0;
    if (h) return false;
    if (k == CONTEXT && (strncmp(call, "cuMemcpyPeer", 12) == 0 || strncmp(call, "cuGraphAddMemcpyNode", 20) == 0))
        return true;
    return strncmp(call, "cuCtxSetCurrent", 15) == 0 || strncmp(call, "cuMemFree(", 10) == 0 ||
           strncmp(call, "cuMemFreeHost", 13) == 0 || strncmp(call, "cuMemFreeAsync", 14) == 0;
}

/* Pinned memory has one address for both sides. Answers the number of tries. */
static size_t try_all(uint64_t h, kind what)
{
    size_t tries = 0;
    CUresult r;
#define X(takes, call) \
    if (what != takes && !(takes == ADDRESS && what == HOST) && !means_something(#call, takes, h)) { \
        r = cu->call; \
        ck_assert_msg(r != CUDA_SUCCESS, "%s with 0x%llx (%s) is a success", #call, (unsigned long long)h, \
                      what == KINDS ? "nothing" : kind_names[what]); \
        tries++; \
    }
    TRIES(X)
#undef X
    return tries;
}

START_TEST(wrong_handles_of_every_kind_to_every_call)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       7,
                                       0x1000,
                                       0xdeadbeef,
                                       (uint64_t)1 << 40,
                                       (uint64_t)5 << 40 | 1,
                                       (uint64_t)99 << 40 | 1,
                                       ((uint64_t)1 << 47) - 1,
                                       UINT64_MAX - 4096,
                                       UINT64_MAX};
    size_t before[GVMM_SIM_KIND_COUNT], after[GVMM_SIM_KIND_COUNT], tries = 0;
    make(stale);
    end(stale);
    make(live);
    if (stale[HOST] == live[HOST]) stale[HOST] = 0; /* the system's addresses come again */
    gvmm_sim_census(before, NULL, NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) tries += try_all(numbers[i], KINDS);
    for (int k = 0; k < KINDS; k++) tries += try_all(stale[k], KINDS);
    for (int k = 0; k < KINDS; k++) tries += try_all(live[k], (kind)k);
    printf("%zu wrong handles\n", tries);
    gvmm_sim_census(after, NULL, NULL);
    ck_assert_mem_eq(before, after, sizeof before);
    ck_cu(cu->cuCtxSynchronize()); /* and no context was harmed */
    end(live);
    gvmm_sim_findings_clear();
}
END_TEST

/* A stale handle is never mistaken for a new object of its kind. */
START_TEST(handles_are_never_used_twice)
{
    uint64_t old[KINDS];
    make(old);
    end(old);
    for (int i = 0; i < 200; i++) {
        uint64_t now[KINDS];
        make(now);
        for (int k = 0; k < KINDS; k++) ck_assert_msg(k == HOST || now[k] != old[k], "%s", kind_names[k]);
        end(now);
    }
    gvmm_sim_findings_clear();
}
END_TEST

/* ---------------------------------------------------------------------------------------------
 * Nowhere to put the answer
 * ------------------------------------------------------------------------------------------- */

#define refuses(call) ck_cu_fails(cu->call, CUDA_ERROR_INVALID_VALUE)

START_TEST(null_instead_of_a_place_for_the_answer)
{
    make(live);
    CUstream s = STREAM_(live[STREAM]);
    CUgraph g = GRAPH_(live[GRAPH]);
    CUcontext c = CONTEXT_(live[CONTEXT]);
    const CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    const CUmemAllocationHandleType fd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = where};
    const CUDA_MEMSET_NODE_PARAMS set = set_node(here.address);
    const CUDA_MEMCPY3D copy = copy_node(here.address, here.address);
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *data = NULL;
    refuses(cuDriverGetVersion(NULL));
    refuses(cuGetErrorName(CUDA_SUCCESS, NULL));
    refuses(cuGetErrorString(CUDA_SUCCESS, NULL));
    refuses(cuDeviceGet(NULL, 0));
    refuses(cuDeviceGetCount(NULL));
    refuses(cuDeviceGetName(NULL, 10, 0));
    refuses(cuDeviceGetName(out_bytes, 0, 0));
    refuses(cuDeviceGetName(out_bytes, -1, 0));
    refuses(cuDeviceGetUuid(NULL, 0));
    refuses(cuDeviceTotalMem(NULL, 0));
    refuses(cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    refuses(cuDeviceCanAccessPeer(NULL, 0, 1));
    refuses(cuDevicePrimaryCtxRetain(NULL, 0));
    refuses(cuDevicePrimaryCtxGetState(0, NULL, NULL));
    refuses(cuCtxCreate(NULL, 0, 0));
    refuses(cuCtxGetCurrent(NULL));
    refuses(cuCtxGetDevice(NULL));
    refuses(cuMemGetAllocationGranularity(NULL, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    refuses(cuMemGetAllocationGranularity(&out_size, NULL, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    refuses(cuMemAddressReserve(NULL, G, 0, 0, 0));
    refuses(cuMemCreate(NULL, G, &prop, 0));
    refuses(cuMemCreate(&out_memory, G, NULL, 0));
    refuses(cuMemSetAccess(here.address, G, NULL, 1));
    refuses(cuMemGetAccess(NULL, &where, here.address));
    refuses(cuMemGetAccess(&out_long, NULL, here.address));
    refuses(cuMemRetainAllocationHandle(NULL, HOST_(here.address)));
    refuses(cuMemRetainAllocationHandle(&out_memory, NULL));
    refuses(cuMemGetAllocationPropertiesFromHandle(NULL, here.handle));
    refuses(cuMemExportToShareableHandle(NULL, here.handle, fd, 0));
    refuses(cuMemImportFromShareableHandle(NULL, HOST_(5), fd));
    refuses(cuMemGetHandleForAddressRange(NULL, here.address, G, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    refuses(cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, here.address));
    refuses(cuPointerGetAttributes(1, NULL, &data, here.address));
    refuses(cuPointerGetAttributes(1, &attribute, NULL, here.address));
    refuses(cuPointerGetAttributes(1, &attribute, &data, here.address));
    refuses(cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, here.address));
    refuses(cuIpcGetMemHandle(NULL, here.address));
    refuses(cuMemAlloc(NULL, 1));
    refuses(cuMemAllocHost(NULL, 1));
    refuses(cuMemHostAlloc(NULL, 1, 0));
    refuses(cuMemHostGetDevicePointer(NULL, HOST_(live[HOST]), 0));
    refuses(cuMemHostRegister(NULL, 4096, 0));
    refuses(cuMemHostUnregister(NULL));
    refuses(cuMemAllocAsync(NULL, 1, s));
    refuses(cuMemAllocFromPoolAsync(NULL, 1, POOL_(live[POOL]), s));
    refuses(cuMemAllocFromPoolAsync(&out_address, 1, NULL, s));
    refuses(cuDeviceGetDefaultMemPool(NULL, 0));
    refuses(cuDeviceGetMemPool(NULL, 0));
    refuses(cuMemPoolCreate(NULL, &props));
    refuses(cuMemPoolCreate(&(CUmemoryPool){NULL}, NULL));
    refuses(cuMemPoolSetAttribute(POOL_(live[POOL]), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, NULL));
    refuses(cuMemPoolGetAttribute(POOL_(live[POOL]), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, NULL));
    refuses(cuMemPoolSetAccess(POOL_(live[POOL]), NULL, 1));
    refuses(cuMemPoolGetAccess(NULL, POOL_(live[POOL]), &where));
    refuses(cuMemPoolGetAccess(&out_access, POOL_(live[POOL]), NULL));
    refuses(cuMemcpyHtoD(here.address, NULL, 8));
    refuses(cuMemcpyDtoH(NULL, here.address, 8));
    refuses(cuMemcpyHtoDAsync(here.address, NULL, 8, s));
    refuses(cuMemcpyDtoHAsync(NULL, here.address, 8, s));
    refuses(cuStreamCreate(NULL, 0));
    refuses(cuStreamCreateWithPriority(NULL, 0, 0));
    refuses(cuStreamGetCtx(s, NULL));
    refuses(cuStreamGetFlags(s, NULL));
    refuses(cuStreamGetPriority(s, NULL));
    refuses(cuStreamGetId(s, NULL));
    refuses(cuStreamAddCallback(s, NULL, NULL, 0));
    refuses(cuLaunchHostFunc(s, NULL, NULL));
    refuses(cuThreadExchangeStreamCaptureMode(NULL));
    refuses(cuStreamEndCapture(s, NULL));
    refuses(cuStreamIsCapturing(s, NULL));
    refuses(cuStreamUpdateCaptureDependencies(s, NULL, 1, 0));
    refuses(cuEventCreate(NULL, 0));
    refuses(cuEventElapsedTime(NULL, EVENT_(live[EVENT]), EVENT_(live[EVENT])));
    refuses(cuGraphCreate(NULL, 0));
    refuses(cuGraphClone(NULL, g));
    refuses(cuGraphAddEmptyNode(NULL, g, NULL, 0));
    refuses(cuGraphAddEmptyNode(&out_node, g, NULL, 1));
    refuses(cuGraphAddMemcpyNode(NULL, g, NULL, 0, &copy, c));
    refuses(cuGraphAddMemcpyNode(&out_node, g, NULL, 0, NULL, c));
    refuses(cuGraphAddMemsetNode(NULL, g, NULL, 0, &set, c));
    refuses(cuGraphAddMemsetNode(&out_node, g, NULL, 0, NULL, c));
    refuses(cuGraphAddHostNode(NULL, g, NULL, 0, &host_node));
    refuses(cuGraphAddHostNode(&out_node, g, NULL, 0, NULL));
    refuses(cuGraphAddHostNode(&out_node, g, NULL, 0, &(CUDA_HOST_NODE_PARAMS){NULL, NULL}));
    refuses(cuGraphAddChildGraphNode(NULL, g, NULL, 0, g));
    refuses(cuGraphAddDependencies(g, NULL, &node_, 1));
    refuses(cuGraphAddDependencies(g, &node_, NULL, 1));
    refuses(cuGraphGetNodes(g, out_nodes, NULL));
    refuses(cuGraphGetEdges(g, out_nodes, out_nodes, NULL));
    refuses(cuGraphGetEdges(g, NULL, out_nodes, &count8));
    refuses(cuGraphNodeGetType(NODE_(live[NODE]), NULL));
    refuses(cuGraphInstantiateWithFlags(NULL, g, 0));
    refuses(cuUserObjectCreate(NULL, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    refuses(cuUserObjectCreate(&(CUuserObject){NULL}, NULL, NULL, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ck_cu(cu->cuMemGetInfo(NULL, NULL)); /* these are asked for what one wants */
    ck_cu(cu->cuMemGetAddressRange(NULL, NULL, here.address));
    end(live);
    gvmm_sim_findings_clear();
}
END_TEST

/* ---------------------------------------------------------------------------------------------
 * Sizes at the edges
 * ------------------------------------------------------------------------------------------- */

START_TEST(sizes_at_the_edges)
{
    make(live);
    const size_t huge = ~(size_t)0, aligned = huge & ~(G - 1),
                 sizes[] = {
                     1, G - 1, G + 1, huge, huge - 1, aligned, (size_t)1 << 63, (size_t)1 << 47, ((size_t)1 << 47) - G};
    const CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    const CUdeviceptr a = here.address, last = ~(CUdeviceptr)0 & ~(G - 1);
    void *host;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        ck_assert_int_ne(cu->cuMemAddressReserve(&out_address, n, 0, 0, 0), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemCreate(&out_memory, n, &prop, 0), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemMap(a, n, 0, here.handle, 0), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemMap(a, G, n, here.handle, 0), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemUnmap(a, n), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemSetAccess(a, n, &read_write, 1), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemAddressFree(a, n), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemGetHandleForAddressRange(&out_int, a, n, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
                         CUDA_SUCCESS);
        if (n <= G) continue;
        ck_assert_int_ne(cu->cuMemsetD8(a, 1, n), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemsetD16(a, 1, n), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemsetD32(a, 1, n), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemsetD32(a, 1, n / 4 + 1), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemcpyDtoD(a, a, n), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemcpyDtoH(out_bytes, a, n), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemcpyHtoDAsync(a, out_bytes, n, NULL), CUDA_SUCCESS);
        ck_assert_int_ne(gvmm_sim_read(0, out_bytes, a + G, n), CUDA_SUCCESS);
        if (n == G + 1) continue;
        ck_assert_int_ne(cu->cuMemAlloc(&out_address, n), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemAllocAsync(&out_address, n, NULL), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemAllocFromPoolAsync(&out_address, n, POOL_(live[POOL]), NULL), CUDA_SUCCESS);
        ck_assert_int_ne(cu->cuMemAllocHost(&host, n), CUDA_SUCCESS);
    }
    const size_t alignments[] = {3, 3 * G, huge, (size_t)1 << 63, (size_t)1 << 47};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++)
        ck_assert_int_ne(cu->cuMemAddressReserve(&out_address, G, alignments[i], 0, 0), CUDA_SUCCESS);
    ck_assert_int_ne(cu->cuMemAddressReserve(&out_address, G, 0, last, 0), CUDA_SUCCESS);
    ck_assert_int_ne(cu->cuMemMap(last, G, 0, here.handle, 0), CUDA_SUCCESS);
    ck_assert_int_ne(cu->cuMemUnmap(last, G), CUDA_SUCCESS);
    ck_assert_int_ne(cu->cuMemsetD8(last, 1, G), CUDA_SUCCESS);
    ck_assert_int_ne(cu->cuMemHostRegister(out_bytes, huge, 0), CUDA_SUCCESS);
    refuses(cuMemAlloc(&out_address, 0));
    refuses(cuMemHostRegister(out_bytes, 0, 0));

    /* exactly what is there is fine */
    ck_cu(cu->cuMemsetD8(a, 0, G));
    ck_cu(cu->cuMemsetD32(a, 0, G / 4));
    ck_cu(cu->cuMemsetD16(a + 2, 0, G / 2 - 1));
    ck_assert_int_ne(cu->cuMemsetD16(a + 2, 0, G / 2), CUDA_SUCCESS);
    ck_assert_int_ne(cu->cuMemsetD16(a + 1, 0, 1), CUDA_SUCCESS);
    ck_assert_int_ne(cu->cuMemsetD32(a + 2, 0, 1), CUDA_SUCCESS);
    ck_cu(cu->cuCtxSynchronize());
    end(live);
    gvmm_sim_findings_clear();
}
END_TEST

START_TEST(graph_nodes_at_the_edges)
{
    make(live);
    const size_t odd[] = {0, ~(size_t)0, (size_t)1 << 63, (size_t)1 << 32, G + 1};
    CUgraph g = GRAPH_(live[GRAPH]);
    CUcontext c;
    ck_cu(cu->cuCtxGetCurrent(&c));
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        CUDA_MEMSET_NODE_PARAMS set[4];
        CUDA_MEMCPY3D copy[6];
        for (int k = 0; k < 4; k++) set[k] = set_node(here.address);
        for (int k = 0; k < 6; k++) copy[k] = copy_node(here.address, here.address + 64);
        set[0].width = odd[i];
        set[1].height = odd[i];
        set[1].pitch = 8192;
        set[2].dst = here.address + odd[i];
        set[2].width = odd[i] ? 8 : G + 1;
        set[3].elementSize = (unsigned)odd[i] == 1 ? 3 : (unsigned)odd[i];
        for (int k = 0; k < 4; k++)
            ck_assert_msg(cu->cuGraphAddMemsetNode(&out_node, g, NULL, 0, &set[k], c) != CUDA_SUCCESS, "memset %d, %zx",
                          k, odd[i]);
        copy[0].WidthInBytes = odd[i];
        copy[1].Height = odd[i];
        copy[1].srcPitch = copy[1].dstPitch = 8192;
        copy[2].Depth = odd[i];
        copy[2].srcPitch = copy[2].dstPitch = 8192;
        copy[2].srcHeight = copy[2].dstHeight = 8;
        copy[3].dstXInBytes = odd[i] ? odd[i] : G;
        copy[4].srcY = 1;
        copy[4].srcPitch = odd[i] ? odd[i] : G;
        copy[5].srcLOD = 1;
        for (int k = 0; k < 6; k++) {
            ck_assert_msg(cu->cuGraphAddMemcpyNode(&out_node, g, NULL, 0, &copy[k], c) != CUDA_SUCCESS,
                          "memcpy %d, %zx", k, odd[i]);
        }
    }
    CUDA_MEMCPY3D bad = copy_node(here.address, here.address + 64);
    bad.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    refuses(cuGraphAddMemcpyNode(&out_node, g, NULL, 0, &bad, c));
    bad.srcMemoryType = (CUmemorytype)0;
    refuses(cuGraphAddMemcpyNode(&out_node, g, NULL, 0, &bad, c));
    CUgraphNode twice[2] = {NODE_(live[NODE]), NODE_(live[NODE])};
    refuses(cuGraphAddEmptyNode(&out_node, g, twice, 2));
    refuses(cuGraphAddEmptyNode(&out_node, g, twice, ~(size_t)0));
    refuses(cuGraphAddDependencies(g, twice, twice, 1));
    refuses(cuUserObjectRetain(OBJECT_(live[OBJECT]), ~0u));
    refuses(cuUserObjectRetain(OBJECT_(live[OBJECT]), 0x7fffffff));
    refuses(cuUserObjectRetain(OBJECT_(live[OBJECT]), 0));
    refuses(cuGraphRetainUserObject(g, OBJECT_(live[OBJECT]), 0x7fffffff, 0));
    size_t count = 1000;
    static CUgraphNode many[1000];
    ck_cu(cu->cuGraphGetNodes(g, many, &count));
    ck_assert_uint_eq(count, 1); /* nothing was added */
    end(live);
    gvmm_sim_findings_clear();
}
END_TEST

START_TEST(descriptors_that_are_no_memory)
{
    int ends[2], closed = dup(0);
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 10000; i++) fputs("gvmm simulated", file);
    fflush(file);
    ck_assert_int_eq(pipe(ends), 0);
    close(closed);
    const int fds[] = {-1, 0, 1, 2, ends[0], fileno(file), closed, 100000};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        ck_assert_int_ne(cu->cuMemImportFromShareableHandle(&out_memory, HOST_((long)fds[i]),
                                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                         CUDA_SUCCESS);
    close(ends[0]);
    close(ends[1]);
    fclose(file);
    block b = block_make(G);
    const int types[] = {0, 2, 4, 8, 16, 3, -1};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        refuses(cuMemExportToShareableHandle(out_bytes, b.handle, (CUmemAllocationHandleType)types[i], 0));
        refuses(cuMemImportFromShareableHandle(&out_memory, HOST_(5), (CUmemAllocationHandleType)types[i]));
    }
    refuses(cuMemExportToShareableHandle(out_bytes, b.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
    block_end(&b);
}
END_TEST

/* What no device could reach either. */
START_TEST(registering_host_memory_that_is_not_there)
{
    ck_assert_int_ne(cu->cuMemHostRegister(HOST_(0x1000), 4096, 0), CUDA_SUCCESS);
    ck_assert_int_ne(cu->cuMemHostRegister(HOST_(~(uintptr_t)4095 - 4096), 4096, 0), CUDA_SUCCESS);
}
END_TEST

int main(void)
{
    unsetenv("GVMM_SIM");
    unsetenv("GVMM_SIM_REPORT");
    Suite *suite = suite_create("attacks");
    TCase *handles = add_machine_case(suite, "handles");
    tcase_add_test(handles, wrong_handles_of_every_kind_to_every_call);
    tcase_add_test(handles, handles_are_never_used_twice);
    tcase_add_test(handles, null_instead_of_a_place_for_the_answer);
    TCase *sizes = add_machine_case(suite, "sizes");
    tcase_add_test(sizes, sizes_at_the_edges);
    tcase_add_test(sizes, graph_nodes_at_the_edges);
    tcase_add_test(sizes, descriptors_that_are_no_memory);
    tcase_add_test(sizes, registering_host_memory_that_is_not_there);
    return run_suites(suite, NULL);
}

/* Spellings of the list's calls that have other parameters, and small calls that those of the list answer between them. What each
 * answers in odd cases was measured on an H200. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "standin.h"

/* As cuda.h lays them out. */
typedef struct edge_data {
    unsigned char from_port, to_port, type, reserved[5];
} edge_data;

typedef struct instantiate_params {
    cuuint64_t flags;
    CUstream upload_stream;
    CUgraphNode error_node;
    int result;
} instantiate_params;

/* ---------------------------------------------------------------------------------------------
 * Nothing but another name
 * ------------------------------------------------------------------------------------------- */

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return standin()->cuCtxCreate(context, flags, device);
}

EXPORT CUresult cuCtxDestroy(CUcontext context) { return standin()->cuCtxDestroy(context); }
EXPORT CUresult cuCtxPopCurrent(CUcontext *context) { return standin()->cuCtxPopCurrent(context); }
EXPORT CUresult cuCtxPushCurrent(CUcontext context) { return standin()->cuCtxPushCurrent(context); }
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return standin()->cuDeviceGetUuid(uuid, device); }
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return standin()->cuDevicePrimaryCtxRelease(device); }
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return standin()->cuDevicePrimaryCtxReset(device); }
EXPORT CUresult cuEventDestroy(CUevent event) { return standin()->cuEventDestroy(event); }
EXPORT CUresult cuStreamDestroy(CUstream stream) { return standin()->cuStreamDestroy(stream); }

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return standin()->cuEventElapsedTime(milliseconds, start, end);
}

EXPORT CUresult cuMemHostRegister(void *ptr, size_t size, unsigned flags)
{
    return standin()->cuMemHostRegister(ptr, size, flags);
}

static CUstream per_thread(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

/* ---------------------------------------------------------------------------------------------
 * Contexts and devices
 * ------------------------------------------------------------------------------------------- */

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned flags, CUdevice device)
{
    (void)affinities;
    return count ? CUDA_ERROR_NOT_SUPPORTED : standin()->cuCtxCreate(context, flags, device);
}

/* CUctxCreateParams: execution affinities and their number, then CIG. */
EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *const *params, unsigned flags, CUdevice device)
{
    if (params && (params[0] || params[2])) return CUDA_ERROR_NOT_SUPPORTED;
    return standin()->cuCtxCreate(context, flags, device);
}

/* Between these two, `context` is current; NULL: the one that is. */
static CUresult enter(CUcontext context)
{
    CUdevice device;
    return context ? standin()->cuCtxPushCurrent(context) : standin()->cuCtxGetDevice(&device);
}

static CUresult leave(CUcontext context, CUresult result)
{
    if (context) standin()->cuCtxPopCurrent(&context);
    return result;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    CUresult r = enter(context);
    return r ? r : leave(context, standin()->cuCtxGetDevice(device));
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUresult r = enter(context);
    return r ? r : leave(context, standin()->cuCtxSynchronize());
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = enter(context);
    if (!r) *version = 3020;
    return r ? r : leave(context, CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    CUresult r = enter(NULL);
    if (!r && flags) *flags = 8; /* CU_CTX_MAP_HOST: always on */
    return r ? r : flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUresult r = enter(NULL);
    if (!r && least) *least = 0;
    if (!r && greatest) *greatest = -5;
    return r;
}

/* Flags say how the CPU waits: nothing here depends on them. */
EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    unsigned old;
    int active;
    CUresult r = standin()->cuDevicePrimaryCtxGetState(device, &old, &active);
    return r ? r : flags & ~0xffu ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult r = standin()->cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    return r ? r : standin()->cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
}

enum { PCI_BUS_ID = 33, PCI_DEVICE_ID = 34, PCI_DOMAIN_ID = 50 }; /* CU_DEVICE_ATTRIBUTE_... */

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    int bus = 0, slot = 0, domain = 0;
    CUresult r = standin()->cuDeviceGetAttribute(&bus, (CUdevice_attribute)PCI_BUS_ID, device);
    if (!r) r = standin()->cuDeviceGetAttribute(&slot, (CUdevice_attribute)PCI_DEVICE_ID, device);
    if (!r) r = standin()->cuDeviceGetAttribute(&domain, (CUdevice_attribute)PCI_DOMAIN_ID, device);
    if (r) return r;
    if (!text || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    int needed = snprintf(text, (size_t)length, "%04x:%02x:%02x.0", (unsigned)domain & 0xffff, (unsigned)bus & 0xff,
                          (unsigned)slot & 0xff);
    return needed < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    int count;
    CUresult r = standin()->cuDeviceGetCount(&count);
    if (r) return r;
    if (!device || !text) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < count; i++) {
        char id[16];
        if (cuDeviceGetPCIBusId(id, sizeof id, i) || strcasecmp(id, text) != 0) continue;
        *device = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to)
{
    enum { PERFORMANCE_RANK = 1, ACCESS, NATIVE_ATOMICS, ARRAY_ACCESS };
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    int can;
    CUresult r = standin()->cuDeviceCanAccessPeer(&can, from, to);
    if (r) return r;
    if (from == to) return CUDA_ERROR_INVALID_DEVICE;
    if (attribute < PERFORMANCE_RANK || attribute > ARRAY_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == PERFORMANCE_RANK ? 0 : can;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = 2; /* CU_MODULE_LAZY_LOADING */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuProfilerStart(void) { return enter(NULL); }
EXPORT CUresult cuProfilerStop(void) { return enter(NULL); }

/* ---------------------------------------------------------------------------------------------
 * Streams, events, capture
 * ------------------------------------------------------------------------------------------- */

EXPORT CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, void **green)
{
    if (!green) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = standin()->cuStreamGetCtx(stream, context);
    if (!r) *green = NULL;
    return r;
}

EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, void **green)
{
    return cuStreamGetCtx_v2(per_thread(stream), context, green);
}

EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    CUcontext context;
    CUresult r = standin()->cuStreamGetCtx(stream, &context);
    return r ? r : cuCtxGetDevice_v2(device, context);
}

EXPORT CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device)
{
    return cuStreamGetDevice(per_thread(stream), device);
}

/* External (1) makes a node of its own in a graph under capture, which is not simulated; outside a capture it is an error. */
EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    if (flags == 0) return standin()->cuEventRecord(event, stream);
    if (flags != 1) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureStatus status;
    CUresult r = standin()->cuStreamIsCapturing(stream, &status);
    if (r) return r;
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
    return cuEventRecordWithFlags(event, per_thread(stream), flags);
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
    return standin()->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream) { return cuStreamBeginCapture(per_thread(stream)); }

EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return standin()->cuStreamGetCaptureInfo(stream, status, id, NULL, NULL, NULL);
}

EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return cuStreamGetCaptureInfo(per_thread(stream), status, id);
}

/* Edges here carry no data, which is told by an array of zeros. */
EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                          CUgraph *graph, const CUgraphNode **dependencies, const edge_data **edges,
                                          size_t *count)
{
    static const edge_data zeros[4096];
    size_t own = 0;
    size_t *dependency_count = count ? count : &own;
    CUresult r = standin()->cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, dependency_count);
    if (!r && edges) *edges = *dependency_count <= sizeof zeros / sizeof *zeros ? zeros : NULL;
    return r;
}

EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                               CUgraph *graph, const CUgraphNode **dependencies,
                                               const edge_data **edges, size_t *count)
{
    return cuStreamGetCaptureInfo_v3(per_thread(stream), status, id, graph, dependencies, edges, count);
}

/* Only edges that say nothing are simulated. */
static CUresult check_edges(const edge_data *edges, size_t count)
{
    static const edge_data zero;
    for (size_t i = 0; edges && i < count; i++)
        if (memcmp(&edges[i], &zero, sizeof zero) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *dependencies, const edge_data *edges,
                                                     size_t count, unsigned flags)
{
    CUresult r = check_edges(edges, count);
    return r ? r : standin()->cuStreamUpdateCaptureDependencies(stream, dependencies, count, flags);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *dependencies,
                                                          const edge_data *edges, size_t count, unsigned flags)
{
    return cuStreamUpdateCaptureDependencies_v2(per_thread(stream), dependencies, edges, count, flags);
}

/* ---------------------------------------------------------------------------------------------
 * Graphs
 * ------------------------------------------------------------------------------------------- */

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                          const edge_data *edges, size_t count)
{
    CUresult r = check_edges(edges, count);
    return r ? r : standin()->cuGraphAddDependencies(graph, from, to, count);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, edge_data *edges, size_t *count)
{
    size_t room = count ? *count : 0;
    CUresult r = standin()->cuGraphGetEdges(graph, from, to, count);
    if (!r && edges && from && to) memset(edges, 0, room * sizeof *edges);
    return r;
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    CUresult r = standin()->cuGraphInstantiateWithFlags(exec, graph, 0);
    if (error_node) *error_node = NULL;
    if (log && size) *log = '\0';
    return r;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    return cuGraphInstantiate_v2(exec, graph, error_node, log, size);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, instantiate_params *params)
{
    enum { FINE, ERROR };
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = standin()->cuGraphInstantiateWithFlags(exec, graph, params->flags);
    params->error_node = NULL;
    params->result = r ? ERROR : FINE;
    return r;
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, instantiate_params *params)
{
    return cuGraphInstantiateWithParams(exec, graph, params);
}

/* ---------------------------------------------------------------------------------------------
 * Blocking copies and fills on the calling thread's default stream
 * ------------------------------------------------------------------------------------------- */

static CUresult finish(CUresult result)
{
    return result ? result : standin()->cuStreamSynchronize(CU_STREAM_PER_THREAD);
}

EXPORT CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
    return finish(standin()->cuMemcpyAsync(dst, src, size, CU_STREAM_PER_THREAD));
}

EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dst, const void *src, size_t size)
{
    return finish(standin()->cuMemcpyHtoDAsync(dst, src, size, CU_STREAM_PER_THREAD));
}

EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src, size_t size)
{
    return finish(standin()->cuMemcpyDtoHAsync(dst, src, size, CU_STREAM_PER_THREAD));
}

EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
    return finish(standin()->cuMemcpyDtoDAsync(dst, src, size, CU_STREAM_PER_THREAD));
}

EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                                  size_t size)
{
    return finish(standin()->cuMemcpyPeerAsync(dst, dst_context, src, src_context, size, CU_STREAM_PER_THREAD));
}

EXPORT CUresult cuMemsetD8_v2_ptds(CUdeviceptr dst, unsigned char value, size_t count)
{
    return finish(standin()->cuMemsetD8Async(dst, value, count, CU_STREAM_PER_THREAD));
}

EXPORT CUresult cuMemsetD16_v2_ptds(CUdeviceptr dst, unsigned short value, size_t count)
{
    return finish(standin()->cuMemsetD16Async(dst, value, count, CU_STREAM_PER_THREAD));
}

EXPORT CUresult cuMemsetD32_v2_ptds(CUdeviceptr dst, unsigned value, size_t count)
{
    return finish(standin()->cuMemsetD32Async(dst, value, count, CU_STREAM_PER_THREAD));
}

/* ---------------------------------------------------------------------------------------------
 * For cuGetProcAddress
 * ------------------------------------------------------------------------------------------- */

const standin_entry standin_spellings[] = {
    /* clang-format off */
    STANDIN_ENTRY(cuCtxCreate, cuCtxCreate, 2000, false)
    STANDIN_ENTRY(cuCtxDestroy, cuCtxDestroy, 2000, false)
    STANDIN_ENTRY(cuCtxPopCurrent, cuCtxPopCurrent, 2000, false)
    STANDIN_ENTRY(cuCtxPushCurrent, cuCtxPushCurrent, 2000, false)
    STANDIN_ENTRY(cuDeviceGetUuid, cuDeviceGetUuid, 9020, false)
    STANDIN_ENTRY(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, false)
    STANDIN_ENTRY(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, false)
    STANDIN_ENTRY(cuEventDestroy, cuEventDestroy, 2000, false)
    STANDIN_ENTRY(cuStreamDestroy, cuStreamDestroy, 2000, false)
    STANDIN_ENTRY(cuEventElapsedTime, cuEventElapsedTime_v2, 12080, false)
    STANDIN_ENTRY(cuMemHostRegister, cuMemHostRegister, 4000, false)
    STANDIN_ENTRY(cuCtxCreate, cuCtxCreate_v3, 11040, false)
    STANDIN_ENTRY(cuCtxCreate, cuCtxCreate_v4, 12050, false)
    STANDIN_ENTRY(cuCtxGetDevice, cuCtxGetDevice_v2, 13000, false)
    STANDIN_ENTRY(cuCtxSynchronize, cuCtxSynchronize_v2, 13000, false)
    STANDIN_ENTRY(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, false)
    STANDIN_ENTRY(cuCtxGetFlags, cuCtxGetFlags, 7000, false)
    STANDIN_ENTRY(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, false)
    STANDIN_ENTRY(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags, 7000, false)
    STANDIN_ENTRY(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, 11000, false)
    STANDIN_ENTRY(cuDeviceComputeCapability, cuDeviceComputeCapability, 2000, false)
    STANDIN_ENTRY(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, false)
    STANDIN_ENTRY(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, false)
    STANDIN_ENTRY(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, 8000, false)
    STANDIN_ENTRY(cuModuleGetLoadingMode, cuModuleGetLoadingMode, 11070, false)
    STANDIN_ENTRY(cuProfilerStart, cuProfilerStart, 4000, false)
    STANDIN_ENTRY(cuProfilerStop, cuProfilerStop, 4000, false)
    STANDIN_ENTRY(cuStreamGetCtx, cuStreamGetCtx_v2, 12050, false)
    STANDIN_ENTRY(cuStreamGetCtx, cuStreamGetCtx_v2_ptsz, 12050, true)
    STANDIN_ENTRY(cuStreamGetDevice, cuStreamGetDevice, 12080, false)
    STANDIN_ENTRY(cuStreamGetDevice, cuStreamGetDevice_ptsz, 12080, true)
    STANDIN_ENTRY(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010, false)
    STANDIN_ENTRY(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, 11010, true)
    STANDIN_ENTRY(cuStreamBeginCapture, cuStreamBeginCapture, 10000, false)
    STANDIN_ENTRY(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, 10000, true)
    STANDIN_ENTRY(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo, 10010, false)
    STANDIN_ENTRY(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz, 10010, true)
    STANDIN_ENTRY(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, 12030, false)
    STANDIN_ENTRY(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3_ptsz, 12030, true)
    STANDIN_ENTRY(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2, 12030, false)
    STANDIN_ENTRY(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2_ptsz, 12030, true)
    STANDIN_ENTRY(cuGraphAddDependencies, cuGraphAddDependencies_v2, 12030, false)
    STANDIN_ENTRY(cuGraphGetEdges, cuGraphGetEdges_v2, 12030, false)
    STANDIN_ENTRY(cuGraphInstantiate, cuGraphInstantiate, 10000, false)
    STANDIN_ENTRY(cuGraphInstantiate, cuGraphInstantiate_v2, 11000, false)
    STANDIN_ENTRY(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, false)
    STANDIN_ENTRY(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, 12000, true)
    STANDIN_ENTRY(cuMemcpy, cuMemcpy_ptds, 7000, true)
    STANDIN_ENTRY(cuMemcpyHtoD, cuMemcpyHtoD_v2_ptds, 7000, true)
    STANDIN_ENTRY(cuMemcpyDtoH, cuMemcpyDtoH_v2_ptds, 7000, true)
    STANDIN_ENTRY(cuMemcpyDtoD, cuMemcpyDtoD_v2_ptds, 7000, true)
    STANDIN_ENTRY(cuMemcpyPeer, cuMemcpyPeer_ptds, 7000, true)
    STANDIN_ENTRY(cuMemsetD8, cuMemsetD8_v2_ptds, 7000, true)
    STANDIN_ENTRY(cuMemsetD16, cuMemsetD16_v2_ptds, 7000, true)
    STANDIN_ENTRY(cuMemsetD32, cuMemsetD32_v2_ptds, 7000, true)
    /* clang-format on */
};
const size_t standin_spelling_count = sizeof standin_spellings / sizeof *standin_spellings;

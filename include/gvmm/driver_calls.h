/* THE list of driver functions. The table (gvmm/driver.h), the loader, the fault and trace wrappers,
 * the simulated driver and the stand-in libcuda.so.1 all expand it; nothing names the functions twice.
 *
 * X(need, role, name, symbol, version, parameters, arguments)
 *   need       REQUIRED  a driver without it cannot serve gvmm
 *              OPTIONAL  a missing one is a missing capability: the table then holds a function that
 *                        answers CUDA_ERROR_NOT_SUPPORTED
 *   role       DO        a failed call has done nothing
 *              UNDO      gives something back, or waits; a fault injected into it is reported after it was done,
 *                        as the real driver reports an earlier asynchronous error
 *   name       what cuGetProcAddress is asked for, and the table's member
 *   symbol     what libcuda.so.1 exports for `version`
 *   version    CUDA version whose signature this is: 1000 * major + 10 * minor */
#ifndef GVMM_DRIVER_CALLS_H
#define GVMM_DRIVER_CALLS_H

/* clang-format off */
#define GVMM_DRIVER_CALLS(X) \
    /* start-up and errors */ \
    X(REQUIRED, DO,   cuInit, cuInit, 2000, (unsigned int flags), (flags)) \
    X(REQUIRED, DO,   cuDriverGetVersion, cuDriverGetVersion, 2020, (int *version), (version)) \
    X(REQUIRED, DO,   cuGetErrorName, cuGetErrorName, 6000, (CUresult error, const char **text), (error, text)) \
    X(OPTIONAL, DO,   cuGetErrorString, cuGetErrorString, 6000, (CUresult error, const char **text), (error, text)) \
    /* devices */ \
    X(REQUIRED, DO,   cuDeviceGet, cuDeviceGet, 2000, (CUdevice *device, int ordinal), (device, ordinal)) \
    X(REQUIRED, DO,   cuDeviceGetCount, cuDeviceGetCount, 2000, (int *count), (count)) \
    X(OPTIONAL, DO,   cuDeviceGetName, cuDeviceGetName, 2000, (char *name, int len, CUdevice device), (name, len, device)) \
    X(OPTIONAL, DO,   cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, (CUuuid *uuid, CUdevice device), (uuid, device)) \
    X(OPTIONAL, DO,   cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, (size_t *bytes, CUdevice device), (bytes, device)) \
    X(REQUIRED, DO,   cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, (int *value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device)) \
    X(OPTIONAL, DO,   cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, (int *can, CUdevice device, CUdevice peer), (can, device, peer)) \
    /* contexts */ \
    X(REQUIRED, DO,   cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (CUcontext *context, CUdevice device), (context, device)) \
    X(REQUIRED, UNDO, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, (CUdevice device), (device)) \
    X(OPTIONAL, UNDO, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, (CUdevice device), (device)) \
    X(OPTIONAL, DO,   cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned int *flags, int *active), (device, flags, active)) \
    X(OPTIONAL, DO,   cuCtxCreate, cuCtxCreate_v2, 3020, (CUcontext *context, unsigned int flags, CUdevice device), (context, flags, device)) \
    X(OPTIONAL, UNDO, cuCtxDestroy, cuCtxDestroy_v2, 4000, (CUcontext context), (context)) \
    X(REQUIRED, DO,   cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext *context), (context)) \
    X(REQUIRED, DO,   cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext context), (context)) \
    X(REQUIRED, DO,   cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, (CUcontext context), (context)) \
    X(REQUIRED, UNDO, cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, (CUcontext *context), (context)) \
    X(OPTIONAL, DO,   cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice *device), (device)) \
    X(OPTIONAL, DO,   cuCtxSynchronize, cuCtxSynchronize, 2000, (void), ()) \
    X(OPTIONAL, DO,   cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned int flags), (peer, flags)) \
    X(OPTIONAL, UNDO, cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, (CUcontext peer), (peer)) \
    /* virtual memory */ \
    X(REQUIRED, DO,   cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, (size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option), (granularity, prop, option)) \
    X(REQUIRED, DO,   cuMemAddressReserve, cuMemAddressReserve, 10020, (CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags), (ptr, size, alignment, hint, flags)) \
    X(REQUIRED, UNDO, cuMemAddressFree, cuMemAddressFree, 10020, (CUdeviceptr ptr, size_t size), (ptr, size)) \
    X(REQUIRED, DO,   cuMemCreate, cuMemCreate, 10020, (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags), (handle, size, prop, flags)) \
    X(REQUIRED, UNDO, cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle handle), (handle)) \
    X(REQUIRED, DO,   cuMemMap, cuMemMap, 10020, (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags), (ptr, size, offset, handle, flags)) \
    X(REQUIRED, UNDO, cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr ptr, size_t size), (ptr, size)) \
    X(REQUIRED, DO,   cuMemSetAccess, cuMemSetAccess, 10020, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count), (ptr, size, desc, count)) \
    X(OPTIONAL, DO,   cuMemGetAccess, cuMemGetAccess, 10020, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr), (flags, location, ptr)) \
    X(OPTIONAL, DO,   cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *handle, void *addr), (handle, addr)) \
    X(OPTIONAL, DO,   cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, (CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle), (prop, handle)) \
    X(OPTIONAL, DO,   cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags), (shareable, handle, type, flags)) \
    X(OPTIONAL, DO,   cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, (CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type), (handle, shareable, type)) \
    X(OPTIONAL, DO,   cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070, (void *handle, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type, unsigned long long flags), (handle, ptr, size, type, flags)) \
    /* pointers */ \
    X(OPTIONAL, DO,   cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, (CUdeviceptr *base, size_t *size, CUdeviceptr ptr), (base, size, ptr)) \
    X(OPTIONAL, DO,   cuPointerGetAttribute, cuPointerGetAttribute, 4000, (void *data, CUpointer_attribute attribute, CUdeviceptr ptr), (data, attribute, ptr)) \
    X(OPTIONAL, DO,   cuPointerGetAttributes, cuPointerGetAttributes, 7000, (unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr), (count, attributes, data, ptr)) \
    X(OPTIONAL, DO,   cuPointerSetAttribute, cuPointerSetAttribute, 6000, (const void *value, CUpointer_attribute attribute, CUdeviceptr ptr), (value, attribute, ptr)) \
    X(OPTIONAL, DO,   cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (CUipcMemHandle *handle, CUdeviceptr ptr), (handle, ptr)) \
    /* plain memory, host memory */ \
    X(OPTIONAL, DO,   cuMemGetInfo, cuMemGetInfo_v2, 3020, (size_t *available, size_t *total), (available, total)) \
    X(OPTIONAL, DO,   cuMemAlloc, cuMemAlloc_v2, 3020, (CUdeviceptr *ptr, size_t size), (ptr, size)) \
    X(OPTIONAL, UNDO, cuMemFree, cuMemFree_v2, 3020, (CUdeviceptr ptr), (ptr)) \
    X(OPTIONAL, DO,   cuMemAllocHost, cuMemAllocHost_v2, 3020, (void **ptr, size_t size), (ptr, size)) \
    X(OPTIONAL, DO,   cuMemHostAlloc, cuMemHostAlloc, 2020, (void **ptr, size_t size, unsigned int flags), (ptr, size, flags)) \
    X(OPTIONAL, UNDO, cuMemFreeHost, cuMemFreeHost, 2000, (void *ptr), (ptr)) \
    X(OPTIONAL, DO,   cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, (CUdeviceptr *device, void *host, unsigned int flags), (device, host, flags)) \
    X(OPTIONAL, DO,   cuMemHostRegister, cuMemHostRegister_v2, 6050, (void *ptr, size_t size, unsigned int flags), (ptr, size, flags)) \
    X(OPTIONAL, UNDO, cuMemHostUnregister, cuMemHostUnregister, 4000, (void *ptr), (ptr)) \
    /* stream-ordered pools */ \
    X(OPTIONAL, DO,   cuMemAllocAsync, cuMemAllocAsync, 11020, (CUdeviceptr *ptr, size_t size, CUstream stream), (ptr, size, stream)) \
    X(OPTIONAL, DO,   cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream), (ptr, size, pool, stream)) \
    X(OPTIONAL, UNDO, cuMemFreeAsync, cuMemFreeAsync, 11020, (CUdeviceptr ptr, CUstream stream), (ptr, stream)) \
    X(OPTIONAL, DO,   cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *pool, CUdevice device), (pool, device)) \
    X(OPTIONAL, DO,   cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, (CUmemoryPool *pool, CUdevice device), (pool, device)) \
    X(OPTIONAL, DO,   cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, (CUdevice device, CUmemoryPool pool), (device, pool)) \
    X(OPTIONAL, DO,   cuMemPoolCreate, cuMemPoolCreate, 11020, (CUmemoryPool *pool, const CUmemPoolProps *props), (pool, props)) \
    X(OPTIONAL, UNDO, cuMemPoolDestroy, cuMemPoolDestroy, 11020, (CUmemoryPool pool), (pool)) \
    X(OPTIONAL, DO,   cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, (CUmemoryPool pool, size_t keep), (pool, keep)) \
    X(OPTIONAL, DO,   cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value)) \
    X(OPTIONAL, DO,   cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value)) \
    X(OPTIONAL, DO,   cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, (CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count), (pool, desc, count)) \
    X(OPTIONAL, DO,   cuMemPoolGetAccess, cuMemPoolGetAccess, 11020, (CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location), (flags, pool, location)) \
    /* memset and memcpy */ \
    X(OPTIONAL, DO,   cuMemsetD8, cuMemsetD8_v2, 3020, (CUdeviceptr dst, unsigned char value, size_t count), (dst, value, count)) \
    X(OPTIONAL, DO,   cuMemsetD16, cuMemsetD16_v2, 3020, (CUdeviceptr dst, unsigned short value, size_t count), (dst, value, count)) \
    X(OPTIONAL, DO,   cuMemsetD32, cuMemsetD32_v2, 3020, (CUdeviceptr dst, unsigned int value, size_t count), (dst, value, count)) \
    X(OPTIONAL, DO,   cuMemsetD8Async, cuMemsetD8Async, 3020, (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream), (dst, value, count, stream)) \
    X(OPTIONAL, DO,   cuMemsetD16Async, cuMemsetD16Async, 3020, (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream), (dst, value, count, stream)) \
    X(OPTIONAL, DO,   cuMemsetD32Async, cuMemsetD32Async, 3020, (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream), (dst, value, count, stream)) \
    X(OPTIONAL, DO,   cuMemcpy, cuMemcpy, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t size), (dst, src, size)) \
    X(OPTIONAL, DO,   cuMemcpyAsync, cuMemcpyAsync, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream), (dst, src, size, stream)) \
    X(OPTIONAL, DO,   cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020, (CUdeviceptr dst, const void *src, size_t size), (dst, src, size)) \
    X(OPTIONAL, DO,   cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, (void *dst, CUdeviceptr src, size_t size), (dst, src, size)) \
    X(OPTIONAL, DO,   cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020, (CUdeviceptr dst, CUdeviceptr src, size_t size), (dst, src, size)) \
    X(OPTIONAL, DO,   cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, (CUdeviceptr dst, const void *src, size_t size, CUstream stream), (dst, src, size, stream)) \
    X(OPTIONAL, DO,   cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, (void *dst, CUdeviceptr src, size_t size, CUstream stream), (dst, src, size, stream)) \
    X(OPTIONAL, DO,   cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream), (dst, src, size, stream)) \
    X(OPTIONAL, DO,   cuMemcpyPeer, cuMemcpyPeer, 4000, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t size), (dst, dst_context, src, src_context, size)) \
    X(OPTIONAL, DO,   cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t size, CUstream stream), (dst, dst_context, src, src_context, size, stream)) \
    /* streams and capture */ \
    X(OPTIONAL, DO,   cuStreamCreate, cuStreamCreate, 2000, (CUstream *stream, unsigned int flags), (stream, flags)) \
    X(OPTIONAL, DO,   cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, (CUstream *stream, unsigned int flags, int priority), (stream, flags, priority)) \
    X(OPTIONAL, UNDO, cuStreamDestroy, cuStreamDestroy_v2, 4000, (CUstream stream), (stream)) \
    X(REQUIRED, UNDO, cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream), (stream)) \
    X(OPTIONAL, DO,   cuStreamQuery, cuStreamQuery, 2000, (CUstream stream), (stream)) \
    X(OPTIONAL, DO,   cuStreamWaitEvent, cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags)) \
    X(OPTIONAL, DO,   cuStreamGetCtx, cuStreamGetCtx, 9020, (CUstream stream, CUcontext *context), (stream, context)) \
    X(OPTIONAL, DO,   cuStreamGetFlags, cuStreamGetFlags, 5050, (CUstream stream, unsigned int *flags), (stream, flags)) \
    X(OPTIONAL, DO,   cuStreamGetPriority, cuStreamGetPriority, 5050, (CUstream stream, int *priority), (stream, priority)) \
    X(OPTIONAL, DO,   cuStreamGetId, cuStreamGetId, 12000, (CUstream stream, unsigned long long *id), (stream, id)) \
    X(OPTIONAL, DO,   cuStreamAddCallback, cuStreamAddCallback, 5000, (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags), (stream, callback, data, flags)) \
    X(OPTIONAL, DO,   cuLaunchHostFunc, cuLaunchHostFunc, 10000, (CUstream stream, CUhostFn fn, void *data), (stream, fn, data)) \
    X(REQUIRED, DO,   cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *mode), (mode)) \
    X(OPTIONAL, DO,   cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, (CUstream stream, CUstreamCaptureMode mode), (stream, mode)) \
    X(OPTIONAL, DO,   cuStreamEndCapture, cuStreamEndCapture, 10000, (CUstream stream, CUgraph *graph), (stream, graph)) \
    X(REQUIRED, DO,   cuStreamIsCapturing, cuStreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus *status), (stream, status)) \
    X(OPTIONAL, DO,   cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count), (stream, status, id, graph, dependencies, count)) \
    X(OPTIONAL, DO,   cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies, 11030, (CUstream stream, CUgraphNode *dependencies, size_t count, unsigned int flags), (stream, dependencies, count, flags)) \
    /* events */ \
    X(OPTIONAL, DO,   cuEventCreate, cuEventCreate, 2000, (CUevent *event, unsigned int flags), (event, flags)) \
    X(OPTIONAL, UNDO, cuEventDestroy, cuEventDestroy_v2, 4000, (CUevent event), (event)) \
    X(OPTIONAL, DO,   cuEventRecord, cuEventRecord, 2000, (CUevent event, CUstream stream), (event, stream)) \
    X(OPTIONAL, DO,   cuEventQuery, cuEventQuery, 2000, (CUevent event), (event)) \
    X(OPTIONAL, DO,   cuEventSynchronize, cuEventSynchronize, 2000, (CUevent event), (event)) \
    X(OPTIONAL, DO,   cuEventElapsedTime, cuEventElapsedTime, 2000, (float *milliseconds, CUevent start, CUevent end), (milliseconds, start, end)) \
    /* graphs */ \
    X(OPTIONAL, DO,   cuGraphCreate, cuGraphCreate, 10000, (CUgraph *graph, unsigned int flags), (graph, flags)) \
    X(OPTIONAL, UNDO, cuGraphDestroy, cuGraphDestroy, 10000, (CUgraph graph), (graph)) \
    X(OPTIONAL, DO,   cuGraphClone, cuGraphClone, 10000, (CUgraph *clone, CUgraph original), (clone, original)) \
    X(OPTIONAL, DO,   cuGraphAddEmptyNode, cuGraphAddEmptyNode, 10000, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count), (node, graph, dependencies, count)) \
    X(OPTIONAL, DO,   cuGraphAddMemcpyNode, cuGraphAddMemcpyNode, 10000, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_MEMCPY3D *copy, CUcontext context), (node, graph, dependencies, count, copy, context)) \
    X(OPTIONAL, DO,   cuGraphAddMemsetNode, cuGraphAddMemsetNode, 10000, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context), (node, graph, dependencies, count, set, context)) \
    X(OPTIONAL, DO,   cuGraphAddHostNode, cuGraphAddHostNode, 10000, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_HOST_NODE_PARAMS *host), (node, graph, dependencies, count, host)) \
    X(OPTIONAL, DO,   cuGraphAddChildGraphNode, cuGraphAddChildGraphNode, 10000, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child), (node, graph, dependencies, count, child)) \
    X(OPTIONAL, DO,   cuGraphAddDependencies, cuGraphAddDependencies, 10000, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count), (graph, from, to, count)) \
    X(OPTIONAL, DO,   cuGraphGetNodes, cuGraphGetNodes, 10000, (CUgraph graph, CUgraphNode *nodes, size_t *count), (graph, nodes, count)) \
    X(OPTIONAL, DO,   cuGraphGetEdges, cuGraphGetEdges, 10000, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count), (graph, from, to, count)) \
    X(OPTIONAL, DO,   cuGraphNodeGetType, cuGraphNodeGetType, 10000, (CUgraphNode node, CUgraphNodeType *type), (node, type)) \
    X(OPTIONAL, DO,   cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, (CUgraphExec *exec, CUgraph graph, unsigned long long flags), (exec, graph, flags)) \
    X(OPTIONAL, DO,   cuGraphLaunch, cuGraphLaunch, 10000, (CUgraphExec exec, CUstream stream), (exec, stream)) \
    X(OPTIONAL, UNDO, cuGraphExecDestroy, cuGraphExecDestroy, 10000, (CUgraphExec exec), (exec)) \
    X(OPTIONAL, DO,   cuUserObjectCreate, cuUserObjectCreate, 11030, (CUuserObject *object, void *data, CUhostFn destroy, unsigned int count, unsigned int flags), (object, data, destroy, count, flags)) \
    X(OPTIONAL, DO,   cuUserObjectRetain, cuUserObjectRetain, 11030, (CUuserObject object, unsigned int count), (object, count)) \
    X(OPTIONAL, UNDO, cuUserObjectRelease, cuUserObjectRelease, 11030, (CUuserObject object, unsigned int count), (object, count)) \
    X(OPTIONAL, DO,   cuGraphRetainUserObject, cuGraphRetainUserObject, 11030, (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags), (graph, object, count, flags)) \
    X(OPTIONAL, UNDO, cuGraphReleaseUserObject, cuGraphReleaseUserObject, 11030, (CUgraph graph, CUuserObject object, unsigned int count), (graph, object, count)) \
    /* kernels: a GPU only; the simulated driver answers NOT_SUPPORTED */ \
    X(OPTIONAL, DO,   cuModuleLoadData, cuModuleLoadData, 2000, (CUmodule *module, const void *image), (module, image)) \
    X(OPTIONAL, UNDO, cuModuleUnload, cuModuleUnload, 2000, (CUmodule module), (module)) \
    X(OPTIONAL, DO,   cuModuleGetFunction, cuModuleGetFunction, 2000, (CUfunction *function, CUmodule module, const char *name), (function, module, name)) \
    X(OPTIONAL, DO,   cuLaunchKernel, cuLaunchKernel, 4000, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **params, void **extra), (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params, extra))
/* clang-format on */

#endif

/* The driver API for programs that know only NVIDIA's: cuda.h where there is one, and otherwise the same declarations
 * from gvmm's own. Nothing here is needed from libgvmm. */
#ifndef DRIVER_API_H
#define DRIVER_API_H

#include <stdio.h>
#include <stdlib.h>

#if defined(USE_CUDA_H)
#include <cuda.h>
#else
#include "gvmm/cuda_abi.h"
#include "gvmm/driver_calls.h"
#define GVMM_X(need, role, name, symbol, version, params, args) CUresult symbol params;
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
/* As cuda.h does, for the calls that the tests make. */
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemAllocHost cuMemAllocHost_v2
#define cuMemFree cuMemFree_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemsetD32 cuMemsetD32_v2
#define cuStreamDestroy cuStreamDestroy_v2
#endif

/* Ends the program, and says where, unless `call` succeeds. */
#define CHECK(call) check((call), #call, __FILE__, __LINE__)

static inline void check(CUresult result, const char *call, const char *file, int line)
{
    if (result == CUDA_SUCCESS) return;
    const char *name = NULL;
    cuGetErrorName(result, &name);
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, name ? name : "?");
    exit(1);
}

/* Pinned memory of device 0 that can be exported as a descriptor, or not. */
static inline CUmemAllocationProp device_memory(CUmemAllocationHandleType handle_type)
{
    CUmemAllocationProp prop = {0};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = 0;
    prop.requestedHandleTypes = handle_type;
    return prop;
}

static inline CUmemAccessDesc read_write(void)
{
    CUmemAccessDesc access = {0};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = 0;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

#endif

/* A program with three memory bugs that run without a complaint on a GPU, and what the simulated driver says of them. A
 * loader puts batches into device memory through the plain virtual memory calls, as gvmm's users did before gvmm:
 *
 *     GVMM_DRIVER=sim GVMM_SIM_REPORT=- leak
 *
 * docs/simulator.md walks through the report. The program needs no kernels: a host function stands in for one. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gvmm/driver.h"

enum { BATCHES = 3 };

static const gvmm_driver *cu;
static size_t chunk;

static void must(CUresult status, const char *what)
{
    if (status == CUDA_SUCCESS) return;
    fprintf(stderr, "leak: %s: %s\n", what, gvmm_driver_status_name((int)status));
    exit(1);
}

static CUmemAllocationProp on_device(void)
{
    CUmemAllocationProp prop = {0};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return prop;
}

static CUdeviceptr load(CUmemGenericAllocationHandle *handle)
{
    CUdeviceptr ptr;
    CUmemAllocationProp prop = on_device();
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    must(cu->cuMemAddressReserve(&ptr, chunk, 0, 0, 0), "reserve");
    must(cu->cuMemCreate(handle, chunk, &prop, 0), "create");
    must(cu->cuMemMap(ptr, chunk, 0, *handle, 0), "map");
    must(cu->cuMemSetAccess(ptr, chunk, &access, 1), "open");
    return ptr;
}

/* Bug 1: unmapping is not releasing. The handle keeps the chunk: memory is lost with each batch. */
static void unload(CUdeviceptr ptr, CUmemGenericAllocationHandle handle)
{
    (void)handle; /* cuMemRelease(handle) is missing */
    must(cu->cuMemUnmap(ptr, chunk), "unmap");
    must(cu->cuMemAddressFree(ptr, chunk), "free addresses");
}

/* Bug 2: the way out after a failure forgets the address range. */
static CUresult load_all(size_t size)
{
    CUdeviceptr ptr;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device();
    must(cu->cuMemAddressReserve(&ptr, size, 0, 0, 0), "reserve");
    CUresult status = cu->cuMemCreate(&handle, size, &prop, 0);
    if (status != CUDA_SUCCESS) return status; /* cuMemAddressFree(ptr, size) is missing */
    must(cu->cuMemRelease(handle), "release");
    must(cu->cuMemAddressFree(ptr, size), "free addresses");
    return CUDA_SUCCESS;
}

static atomic_bool unmapped;

static void long_kernel(void *unused)
{
    (void)unused;
    while (!atomic_load(&unmapped)) usleep(1000);
}

/* Bug 3: no call here waits for the stream, and the memset runs when its memory is gone. */
static void clear_last(CUstream stream)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr = load(&handle);
    must(cu->cuLaunchHostFunc(stream, long_kernel, NULL), "launch");
    must(cu->cuMemsetD8Async(ptr, 0, chunk, stream), "clear");
    must(cu->cuMemRelease(handle), "release");
    must(cu->cuMemUnmap(ptr, chunk), "unmap"); /* cuStreamSynchronize(stream) is missing */
    must(cu->cuMemAddressFree(ptr, chunk), "free addresses");
    atomic_store(&unmapped, true);
    printf("synchronising answers %s\n", gvmm_driver_status_name((int)cu->cuStreamSynchronize(stream)));
}

int main(void)
{
    if (gvmm_driver_get(&cu)) {
        gvmm_error error;
        gvmm_last_error(&error);
        fprintf(stderr, "leak: %s\n", error.text);
        return 1;
    }
    CUcontext context;
    CUstream stream;
    CUmemAllocationProp prop = on_device();
    must(cu->cuDevicePrimaryCtxRetain(&context, 0), "context");
    must(cu->cuCtxSetCurrent(context), "context");
    must(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    must(cu->cuMemGetAllocationGranularity(&chunk, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity");

    for (int i = 0; i < BATCHES; i++) {
        CUmemGenericAllocationHandle handle;
        CUdeviceptr ptr = load(&handle);
        must(cu->cuMemsetD8Async(ptr, (unsigned char)i, chunk, stream), "fill");
        must(cu->cuStreamSynchronize(stream), "wait");
        unload(ptr, handle);
    }
    size_t available, total;
    must(cu->cuMemGetInfo(&available, &total), "memory");
    printf("loading more than fits answers %s\n", gvmm_driver_status_name((int)load_all((total / chunk + 1) * chunk)));
    clear_last(stream);
    cu->cuStreamDestroy(stream);
    cu->cuDevicePrimaryCtxRelease(0);
    return 0;
}

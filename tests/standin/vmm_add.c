/* A program that never heard of gvmm: c = a + b, with the three vectors in one range of two chunks. The sum is made by a
 * host function, so that it needs no kernel; it runs on a GPU as it does on the stand-in. */
#include <string.h>

#include "driver_api.h"

enum { COUNT = 300000, CHUNKS = 2 };

typedef struct job {
    float *a, *b, *c; /* pinned host memory */
} job;

static void add(void *data)
{
    job *j = data;
    for (int i = 0; i < COUNT; i++) j->c[i] = j->a[i] + j->b[i];
}

int main(void)
{
    CHECK(cuInit(0));
    CUdevice device;
    CUcontext context;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    /* one range, two chunks */
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    size_t chunk;
    CHECK(cuMemGetAllocationGranularity(&chunk, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    const size_t bytes = COUNT * sizeof(float);
    if (3 * bytes > CHUNKS * chunk || 3 * bytes <= chunk) {
        fprintf(stderr, "the vectors do not span the chunks\n");
        return 1;
    }
    CUdeviceptr range;
    CUmemGenericAllocationHandle handles[CHUNKS];
    CHECK(cuMemAddressReserve(&range, CHUNKS * chunk, 0, 0, 0));
    for (int i = 0; i < CHUNKS; i++) {
        CHECK(cuMemCreate(&handles[i], chunk, &prop, 0));
        CHECK(cuMemMap(range + i * chunk, chunk, 0, handles[i], 0));
    }
    if (cuMemsetD8Async(range, 0, chunk, stream) != CUDA_ERROR_INVALID_VALUE) {
        fprintf(stderr, "a fresh mapping was open\n");
        return 1;
    }
    CUmemAccessDesc access = read_write();
    CHECK(cuMemSetAccess(range, CHUNKS * chunk, &access, 1));
    CUdeviceptr a = range, b = a + bytes, c = b + bytes;

    /* in, add, out: all in stream order */
    job j;
    float *in = malloc(2 * bytes), *out = malloc(bytes);
    CHECK(cuMemAllocHost((void **)&j.a, bytes));
    CHECK(cuMemAllocHost((void **)&j.b, bytes));
    CHECK(cuMemAllocHost((void **)&j.c, bytes));
    for (int i = 0; i < COUNT; i++) {
        in[i] = (float)i;
        in[COUNT + i] = 0.5f * (float)i;
    }
    CHECK(cuMemcpyHtoDAsync(a, in, bytes, stream));
    CHECK(cuMemcpyHtoDAsync(b, in + COUNT, bytes, stream));
    CHECK(cuMemcpyDtoHAsync(j.a, a, bytes, stream));
    CHECK(cuMemcpyDtoHAsync(j.b, b, bytes, stream));
    CHECK(cuLaunchHostFunc(stream, add, &j));
    CHECK(cuMemcpyHtoDAsync(c, j.c, bytes, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH(out, c, bytes));
    for (int i = 0; i < COUNT; i++) {
        if (out[i] == 1.5f * (float)i) continue;
        fprintf(stderr, "c[%d] is %g, not %g\n", i, out[i], 1.5f * (float)i);
        return 1;
    }

    CHECK(cuMemUnmap(range, CHUNKS * chunk));
    for (int i = 0; i < CHUNKS; i++) CHECK(cuMemRelease(handles[i]));
    CHECK(cuMemAddressFree(range, CHUNKS * chunk));
    CHECK(cuMemFreeHost(j.a));
    CHECK(cuMemFreeHost(j.b));
    CHECK(cuMemFreeHost(j.c));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuDevicePrimaryCtxRelease(device));
    free(in);
    free(out);
    printf("vmm_add: %d sums right, in %d chunks\n", COUNT, CHUNKS);
    return 0;
}

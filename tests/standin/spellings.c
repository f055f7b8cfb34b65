/* Calls that are not in gvmm's list: other spellings of those that are, twins for the per-thread default stream, small calls, and
 * what is not simulated. The answers are an H200's, but for the last. */
#include <string.h>

#include "driver_api.h"

#if defined(USE_CUDA_H)
#error this one declares the spellings itself
#endif

CUresult cuCtxCreate(CUcontext *, unsigned, CUdevice);
CUresult cuCtxCreate_v3(CUcontext *, void *, int, unsigned, CUdevice);
CUresult cuCtxCreate_v4(CUcontext *, void *, unsigned, CUdevice);
CUresult cuCtxDestroy(CUcontext);
CUresult cuCtxGetDevice_v2(CUdevice *, CUcontext);
CUresult cuCtxSynchronize_v2(CUcontext);
CUresult cuCtxGetApiVersion(CUcontext, unsigned *);
CUresult cuCtxGetStreamPriorityRange(int *, int *);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned);
CUresult cuDeviceGetPCIBusId(char *, int, CUdevice);
CUresult cuDeviceGetByPCIBusId(CUdevice *, const char *);
CUresult cuDeviceGetP2PAttribute(int *, int, CUdevice, CUdevice);
CUresult cuStreamGetDevice(CUstream, CUdevice *);
CUresult cuEventRecordWithFlags(CUevent, CUstream, unsigned);
CUresult cuEventElapsedTime_v2(float *, CUevent, CUevent);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream, CUstreamCaptureMode);
CUresult cuStreamIsCapturing_ptsz(CUstream, CUstreamCaptureStatus *);
CUresult cuStreamEndCapture_ptsz(CUstream, CUgraph *);
CUresult cuMemsetD8Async_ptsz(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuStreamSynchronize_ptsz(CUstream);
CUresult cuMemcpyDtoH_v2_ptds(void *, CUdeviceptr, size_t);
CUresult cuStreamGetCaptureInfo(CUstream, CUstreamCaptureStatus *, cuuint64_t *);
CUresult cuStreamGetCaptureInfo_v3(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                                   const void **, size_t *);
CUresult cuGraphGetEdges_v2(CUgraph, CUgraphNode *, CUgraphNode *, void *, size_t *);
CUresult cuGraphAddDependencies_v2(CUgraph, const CUgraphNode *, const CUgraphNode *, const void *, size_t);
CUresult cuGraphInstantiate_v2(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);
CUresult cuGraphInstantiateWithParams(CUgraphExec *, CUgraph, void *);
CUresult cuGetProcAddress_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
CUresult cuTexRefCreate(void **);

static int wrong;

#define IS(call, expected) is((long long)(call), (long long)(expected), #call, __LINE__)

static void is(long long got, long long expected, const char *what, int line)
{
    if (got == expected) return;
    fprintf(stderr, "spellings.c:%d: %s is %lld, not %lld\n", line, what, got, expected);
    wrong = 1;
}

static void contexts(void)
{
    CUcontext first, second, current;
    CUdevice device = -1;
    unsigned version;
    int least, greatest;
    IS(cuCtxGetDevice_v2(&device, NULL), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuCtxCreate_v3(&first, NULL, 0, 0, 0), CUDA_SUCCESS);
    IS(cuCtxCreate_v4(&second, NULL, 0, 1), CUDA_SUCCESS);
    IS(cuCtxGetDevice_v2(&device, first), CUDA_SUCCESS);
    IS(device, 0);
    IS(cuCtxGetDevice_v2(&device, NULL), CUDA_SUCCESS);
    IS(device, 1);
    IS(cuCtxSynchronize_v2(first), CUDA_SUCCESS);
    IS(cuCtxGetApiVersion(first, &version), CUDA_SUCCESS);
    IS(version, 3020);
    IS(cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_SUCCESS);
    IS(least, 0);
    IS(greatest, -5);
    IS(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    IS(current == second, 1);
    IS(cuCtxDestroy(second), CUDA_SUCCESS);
    IS(cuCtxDestroy(first), CUDA_SUCCESS);
    IS(cuDevicePrimaryCtxSetFlags_v2(0, 4), CUDA_SUCCESS);
    IS(cuDevicePrimaryCtxSetFlags_v2(0, 0x400), CUDA_ERROR_INVALID_VALUE);
    IS(cuDevicePrimaryCtxSetFlags_v2(7, 0), CUDA_ERROR_INVALID_DEVICE);
}

static void devices(void)
{
    char first[16], second[16];
    CUdevice device;
    int value = -1;
    IS(cuDeviceGetPCIBusId(first, 5, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuDeviceGetPCIBusId(first, sizeof first, 0), CUDA_SUCCESS);
    IS(cuDeviceGetPCIBusId(second, sizeof second, 1), CUDA_SUCCESS);
    IS(strcmp(first, second) != 0, 1);
    IS(cuDeviceGetByPCIBusId(&device, second), CUDA_SUCCESS);
    IS(device, 1);
    IS(cuDeviceGetByPCIBusId(&device, "0000:99:00.0"), CUDA_ERROR_INVALID_DEVICE);
    IS(cuDeviceGetP2PAttribute(&value, 2, 0, 1), CUDA_SUCCESS);
    IS(value, 1);
    IS(cuDeviceGetP2PAttribute(&value, 2, 0, 0), CUDA_ERROR_INVALID_DEVICE);
}

/* Two memsets captured on the per-thread default stream by its other name, 0. */
static CUgraph capture(CUdeviceptr ptr)
{
    CUstreamCaptureStatus status;
    cuuint64_t id = 0, again = 0;
    CUgraph graph;
    const CUgraphNode *dependencies;
    const void *edges = NULL;
    size_t count = 0;
    IS(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    IS(cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    IS(cuMemsetD8Async_ptsz(ptr, 1, 4096, NULL), CUDA_SUCCESS);
    IS(cuMemsetD8Async_ptsz(ptr, 2, 4096, NULL), CUDA_SUCCESS);
    IS(cuStreamIsCapturing_ptsz(NULL, &status), CUDA_SUCCESS);
    IS(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    IS((cuStreamGetCaptureInfo)(CU_STREAM_PER_THREAD, &status, &id), CUDA_SUCCESS);
    IS(cuStreamGetCaptureInfo_v3(CU_STREAM_PER_THREAD, &status, &again, &graph, &dependencies, &edges, &count),
       CUDA_SUCCESS);
    IS(id == again && id != 0, 1);
    IS(count, 1);
    IS(edges != NULL, 1);
    IS(cuStreamEndCapture_ptsz(NULL, &graph), CUDA_SUCCESS);
    return graph;
}

static void graphs(CUdeviceptr ptr)
{
    static const unsigned char ported[8] = {1};
    CUgraph graph = capture(ptr);
    CUgraphNode from[4], to[4];
    unsigned char data[4][8];
    size_t count = 4;
    memset(data, 0xff, sizeof data);
    IS(cuGraphGetEdges_v2(graph, from, to, data, &count), CUDA_SUCCESS);
    IS(count, 1);
    IS(data[0][0] | data[1][0], 0);
    IS(cuGraphAddDependencies_v2(graph, from, to, ported, 1), CUDA_ERROR_NOT_SUPPORTED);

    struct {
        cuuint64_t flags;
        CUstream upload;
        CUgraphNode error;
        int result;
    } params = {0, NULL, (CUgraphNode)1, -1};
    CUgraphExec exec;
    char log[8] = "old";
    IS(cuGraphInstantiate_v2(&exec, graph, NULL, log, sizeof log), CUDA_SUCCESS);
    IS(log[0], 0);
    IS(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    IS(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_SUCCESS);
    IS(params.error == NULL && params.result == 0, 1);
    IS(cuGraphLaunch(exec, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    IS(cuStreamSynchronize_ptsz(NULL), CUDA_SUCCESS);
    unsigned char byte = 0;
    IS(cuMemcpyDtoH_v2_ptds(&byte, ptr, 1), CUDA_SUCCESS);
    IS(byte, 2);
    IS(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    IS(cuGraphDestroy(graph), CUDA_SUCCESS);
}

static void events(void)
{
    CUstream stream;
    CUevent start, end;
    CUdevice device = -1;
    float milliseconds = -1;
    IS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    IS(cuStreamGetDevice(stream, &device), CUDA_SUCCESS);
    IS(device, 0);
    IS(cuEventCreate(&start, CU_EVENT_DEFAULT), CUDA_SUCCESS);
    IS(cuEventCreate(&end, CU_EVENT_DEFAULT), CUDA_SUCCESS);
    IS(cuEventRecordWithFlags(start, stream, 0), CUDA_SUCCESS);
    IS(cuEventRecordWithFlags(end, stream, 1), CUDA_ERROR_ILLEGAL_STATE);
    IS(cuEventRecordWithFlags(end, stream, 2), CUDA_ERROR_INVALID_VALUE);
    IS(cuEventRecordWithFlags(end, stream, 0), CUDA_SUCCESS);
    IS(cuStreamSynchronize(stream), CUDA_SUCCESS);
    IS(cuEventElapsedTime_v2(&milliseconds, start, end), CUDA_SUCCESS);
    IS(milliseconds >= 0, 1);
    IS(cuEventDestroy_v2(start), CUDA_SUCCESS);
    IS(cuEventDestroy_v2(end), CUDA_SUCCESS);
    IS(cuStreamDestroy(stream), CUDA_SUCCESS);
}

/* Each says so once on standard error; run_env.sh counts the lines. */
static void missing(void)
{
    void *fn = NULL;
    CUdriverProcAddressQueryResult found;
    IS(cuTexRefCreate(&fn), CUDA_ERROR_NOT_SUPPORTED);
    IS(cuTexRefCreate(&fn), CUDA_ERROR_NOT_SUPPORTED);
    IS(cuGetProcAddress_v2("cuLibraryLoadData", &fn, 13000, 0, &found), CUDA_SUCCESS);
    IS(fn != NULL, 1);
    CUresult (*load)(void *, void *, void *, void *, unsigned, void *, void *, unsigned);
    *(void **)&load = fn;
    IS(load(NULL, NULL, NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_NOT_SUPPORTED);
    IS(load(NULL, NULL, NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_NOT_SUPPORTED);
    CUmodule module;
    IS(cuModuleLoadData(&module, "no kernels"), CUDA_ERROR_NOT_SUPPORTED);
}

int main(void)
{
    IS(cuCtxSynchronize_v2(NULL), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuDevicePrimaryCtxSetFlags_v2(0, 0), CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuInit(0));
    contexts();
    devices();
    CUcontext context;
    CUdeviceptr ptr;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc(&ptr, 4096));
    graphs(ptr);
    events();
    missing();
    CHECK(cuMemFree(ptr));
    CHECK(cuDevicePrimaryCtxRelease(0));
    if (!wrong) printf("spellings: all right\n");
    return wrong;
}

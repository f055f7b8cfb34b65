/* The recorded stream, and the wait before memory is given up. */
#include "internal.h"

gvmm_stream gvmm__stream_recorded(gvmm_stream stream, const device *d)
{
    if (!gvmm__stream_is_default(stream)) return stream;
    return d->ordinal >= 0 ? GVMM_STREAM_LEGACY : NULL;
}

gvmm_result gvmm__stream_check(gvmm_stream stream)
{
    if (gvmm__stream_is_default(stream)) return GVMM_OK;
    CUstreamCaptureStatus status;
    gvmm_result r = DRIVER(cuStreamIsCapturing, stream, &status);
    if (r) return gvmm__about(r, "stream", "%p", (void *)stream);
    if (status == CU_STREAM_CAPTURE_STATUS_NONE) return GVMM_OK;
    return gvmm__fail(GVMM_E_CAPTURING, "stream %p is a capturing stream: waiting for it would end its capture",
                      (void *)stream);
}

/* Would waiting for the current context's legacy stream end a capture? Asking harms nothing. */
static CUresult legacy_is_free(bool *free)
{
    CUstreamCaptureStatus capture;
    CUresult status = DRIVER_QUIET(cuStreamIsCapturing, CU_STREAM_LEGACY, &capture);
    *free = status == CUDA_SUCCESS && capture == CU_STREAM_CAPTURE_STATUS_NONE;
    return status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ? CUDA_SUCCESS : status;
}

static void warn_failed(gvmm_driver_call call, CUresult status, uint64_t address)
{
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_DEINITIALIZED)
        gvmm__warn_driver(call, status, "wait for buffer", address);
}

/* In relaxed mode the wait leaves all captures but the stream's own alone, this thread's and others'. */
static void wait_relaxed(gvmm_stream stream, uint64_t address)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult status = DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &mode);
    if (status != CUDA_SUCCESS) {
        warn_failed(GVMM_CALL_cuThreadExchangeStreamCaptureMode, status, address);
        return;
    }
    status = DRIVER_QUIET(cuStreamSynchronize, stream);
    (void)DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &mode);
    warn_failed(GVMM_CALL_cuStreamSynchronize, status, address);
}

static void wait_for_legacy(const device *d, uint64_t address)
{
    CUresult status = DRIVER_QUIET(cuCtxPushCurrent, d->primary);
    if (status != CUDA_SUCCESS) {
        warn_failed(GVMM_CALL_cuCtxPushCurrent, status, address);
        return;
    }
    bool free;
    status = legacy_is_free(&free);
    if (status != CUDA_SUCCESS)
        warn_failed(GVMM_CALL_cuStreamIsCapturing, status, address);
    else if (free)
        wait_relaxed(CU_STREAM_LEGACY, address);
    else
        gvmm__warn(GVMM_E_CAPTURING, "buffer", address,
                   "released without waiting for the legacy stream, as a capturing stream forbids it");
    gvmm__context_leave();
}

void gvmm__stream_wait(gvmm_stream stream, const device *d, uint64_t address)
{
    if (!gvmm__stream_is_default(stream))
        wait_relaxed(stream, address);
    else if (d->ordinal >= 0)
        wait_for_legacy(d, address);
}

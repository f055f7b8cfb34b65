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

gvmm_result gvmm__relaxed_enter(CUstreamCaptureMode *old)
{
    *old = CU_STREAM_CAPTURE_MODE_RELAXED;
    return DRIVER(cuThreadExchangeStreamCaptureMode, old);
}

void gvmm__relaxed_leave(CUstreamCaptureMode old) { (void)DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &old); }

/* Would waiting for the current context's legacy stream end a capture? Asking harms nothing. */
static gvmm_result check_legacy(void)
{
    CUstreamCaptureStatus capture;
    CUresult status = DRIVER_QUIET(cuStreamIsCapturing, CU_STREAM_LEGACY, &capture);
    if (status == CUDA_SUCCESS && capture == CU_STREAM_CAPTURE_STATUS_NONE) return GVMM_OK;
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return gvmm__fail_driver(GVMM_CALL_cuStreamIsCapturing, status);
    return gvmm__fail(GVMM_E_CAPTURING, "the legacy stream must not be waited for: a capturing stream forbids it");
}

static gvmm_result wait_relaxed(gvmm_stream stream)
{
    CUstreamCaptureMode old;
    gvmm_result r = gvmm__relaxed_enter(&old);
    if (r) return r;
    r = DRIVER(cuStreamSynchronize, stream);
    gvmm__relaxed_leave(old);
    return r;
}

static gvmm_result wait_for_legacy(const device *d)
{
    gvmm_result r = gvmm__context_enter(d->primary);
    if (r) return r;
    r = check_legacy();
    if (!r) r = wait_relaxed(CU_STREAM_LEGACY);
    gvmm__context_leave();
    return r;
}

static gvmm_result wait_for(gvmm_stream stream, const device *d)
{
    if (!gvmm__stream_is_default(stream)) return wait_relaxed(stream);
    return d->ordinal >= 0 ? wait_for_legacy(d) : GVMM_OK;
}

void gvmm__stream_wait(gvmm_stream stream, const device *d, uint64_t address)
{
    saved_error before; /* what goes wrong here is a warning, and no failure of the caller's */
    gvmm__error_save(&before);
    if (wait_for(stream, d) == GVMM_OK) return;
    gvmm__warn_last("released without waiting: buffer", address);
    gvmm__error_restore(&before);
}

gvmm_result gvmm__stream_wait_or_fail(gvmm_stream stream, const device *d)
{
    gvmm_result r = gvmm__stream_check(stream);
    return r ? r : wait_for(stream, d);
}

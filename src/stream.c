/* The recorded stream, and the wait before memory is given up. */
#include "internal.h"

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

bool gvmm__stream_must_not_wait(gvmm_stream stream, const device *d)
{
    if (!gvmm__stream_is_default(stream)) return gvmm__stream_check(stream) == GVMM_E_CAPTURING;
    if (d->ordinal < 0 || gvmm__context_enter(d->primary)) return false;
    bool must_not = check_legacy() == GVMM_E_CAPTURING;
    gvmm__context_leave();
    return must_not;
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

/* ---- marking how far it is ---- */

/* In the stream's context, if `event` is to be made or the stream is a default one. */
static stream_mark record(device *d, gvmm_stream stream, CUcontext context, CUevent *event, unsigned *calls)
{
    CUstreamCaptureStatus capture;
    if (!*event) *event = gvmm__event_get(d, context);
    if (!*event) return MARK_FAILED;
    CUresult status = DRIVER_COUNTED_IN(calls, cuEventRecord, *event, stream);
    /* A capture may have begun in between. An event that is part of one must not be asked about: that would end it. */
    if (status == CUDA_SUCCESS) status = DRIVER_COUNTED_IN(calls, cuStreamIsCapturing, stream, &capture);
    if (status == CUDA_SUCCESS && capture == CU_STREAM_CAPTURE_STATUS_NONE) return MARK_SET;
    gvmm__event_put(d, context, *event, false);
    *event = NULL;
    if (status == CUDA_SUCCESS) return MARK_CAPTURING;
    return status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ? MARK_LATER : MARK_FAILED;
}

static stream_mark ask_and_record(device *d, gvmm_stream stream, CUcontext context, CUevent *event, unsigned *calls)
{
    CUstreamCaptureStatus capture;
    CUresult status = DRIVER_COUNTED_IN(calls, cuStreamIsCapturing, stream, &capture);
    if (status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return MARK_LATER;
    if (status != CUDA_SUCCESS) return MARK_FAILED;
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE) return MARK_CAPTURING;
    return record(d, stream, context, event, calls);
}

/* The default stream's context is the device's, a real stream has its own; an event of another context does not do. */
stream_mark gvmm__stream_mark(device *d, gvmm_stream stream, CUevent *event, CUcontext *context, unsigned *calls)
{
    bool is_default = gvmm__stream_is_default(stream);
    CUcontext own = d->primary;
    if (*event && !is_default) { /* most likely of the right one */
        stream_mark m = ask_and_record(d, stream, *context, event, calls);
        if (m != MARK_FAILED) return m;
    }
    if (!is_default && DRIVER_QUIET(cuStreamGetCtx, stream, &own) != CUDA_SUCCESS) return MARK_FAILED;
    if (*event && *context != own) {
        gvmm__event_put(d, *context, *event, true);
        *event = NULL;
    }
    *context = own;
    if (DRIVER_QUIET(cuCtxPushCurrent, own) != CUDA_SUCCESS) return MARK_FAILED;
    stream_mark m = ask_and_record(d, stream, own, event, calls);
    gvmm__context_leave();
    return m;
}

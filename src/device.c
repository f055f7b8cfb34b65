/* A device's primary context and capabilities. */
#include "internal.h"

gvmm_result gvmm__device_open(device *out, int ordinal, CUdevice handle)
{
    CUcontext primary;
    gvmm_result r = DRIVER(cuDevicePrimaryCtxRetain, &primary, handle);
    if (r) return gvmm__about(r, "primary context", "of device %d", ordinal);
    out->ordinal = ordinal;
    out->handle = handle;
    out->primary = primary;
    return GVMM_OK;
}

void gvmm__device_close(device *d)
{
    for (unsigned i = 0; i < d->event_count; i++)
        DRIVER_UNDO("event", (uintptr_t)d->events[i], cuEventDestroy, d->events[i]);
    if (d->ordinal >= 0) DRIVER_UNDO("primary context", (uintptr_t)d->primary, cuDevicePrimaryCtxRelease, d->handle);
}

CUevent gvmm__event_get(device *d, CUcontext context)
{
    CUevent event = NULL;
    if (context == d->primary) {
        gvmm__lock(&d->lock);
        if (d->event_count) event = d->events[--d->event_count];
        gvmm__unlock(&d->lock);
    }
    if (!event && DRIVER_QUIET(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return NULL;
    return event;
}

void gvmm__event_put(device *d, CUcontext context, CUevent event, bool reusable)
{
    bool kept = false;
    if (reusable && context == d->primary) {
        gvmm__lock(&d->lock);
        kept = d->event_count < sizeof d->events / sizeof d->events[0];
        if (kept) d->events[d->event_count++] = event;
        gvmm__unlock(&d->lock);
    }
    if (!kept) DRIVER_UNDO("event", (uintptr_t)event, cuEventDestroy, event);
}

gvmm_result gvmm__device_can(bool *out, CUdevice handle, CUdevice_attribute attribute)
{
    int value = 0;
    CUresult status = DRIVER_QUIET(cuDeviceGetAttribute, &value, attribute, handle);
    if (status == CUDA_ERROR_INVALID_VALUE) value = 0; /* a question that this driver does not know */
    else if (status != CUDA_SUCCESS)
        return gvmm__about(gvmm__fail_driver(GVMM_CALL_cuDeviceGetAttribute, status), "attribute", "%d", attribute);
    *out = value != 0;
    return GVMM_OK;
}

gvmm_result gvmm__context_enter(CUcontext context) { return DRIVER(cuCtxPushCurrent, context); }

void gvmm__context_leave(void)
{
    CUcontext popped;
    DRIVER_UNDO("context", 0, cuCtxPopCurrent, &popped);
}

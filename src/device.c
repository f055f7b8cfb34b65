/* A device's primary context and capabilities. */
#include "internal.h"

gvmm_result gvmm__device_open(device *out, int ordinal, CUdevice handle)
{
    CUcontext primary;
    gvmm_result r = DRIVER(cuDevicePrimaryCtxRetain, &primary, handle);
    if (r) return gvmm__about(r, "primary context", "of device %d", ordinal);
    *out = (device){ordinal, handle, primary};
    return GVMM_OK;
}

void gvmm__device_close(device *d)
{
    if (d->ordinal >= 0)
        DRIVER_UNDO("primary context", (uintptr_t)d->primary, cuDevicePrimaryCtxRelease, d->handle);
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

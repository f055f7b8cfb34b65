/* What evicted memory keeps its contents in. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

/* A file without a name: it is gone with its descriptor, whatever becomes of the process. */
static gvmm_result open_file(backup *b, size_t size, const char *directory)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/gvmm-XXXXXX", directory);
    if (length < 0 || (size_t)length >= sizeof path)
        return gvmm__fail(GVMM_E_INVALID, "directory: its name is too long");
    b->file = mkostemp(path, O_CLOEXEC); /* a child must not keep it alive */
    if (b->file < 0) return gvmm__fail(GVMM_E_INVALID, "directory %s: no file can be made there: %m", directory);
    unlink(path);
    if (ftruncate(b->file, (off_t)size) == 0) return GVMM_OK;
    return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "directory %s: no room for %zu bytes: %m", directory, size);
}

static gvmm_result get_pinned(backup *b, size_t size, CUdevice device)
{
    gvmm_result r = DRIVER(cuDevicePrimaryCtxRetain, &b->primary, device);
    if (r) {
        b->primary = NULL;
        return gvmm__about(r, "primary context", "of device %d", device);
    }
    r = DRIVER(cuMemHostAlloc, &b->pinned, size, 0);
    if (!r) return GVMM_OK;
    b->pinned = NULL;
    return gvmm__about(r == GVMM_E_NO_DEVICE_MEMORY ? GVMM_E_NO_HOST_MEMORY : r, "backup", "%zu bytes of pinned memory",
                       size);
}

gvmm_result gvmm__backup_create(backup **out, size_t size, const char *directory, CUdevice device)
{
    backup *b = gvmm__alloc(sizeof *b);
    if (!b) return GVMM_E_NO_HOST_MEMORY;
    *b = (backup){.file = -1, .device = device};
    ref_init(&b->refs);
    gvmm_result r = directory ? open_file(b, size, directory) : get_pinned(b, size, device);
    if (r) {
        gvmm__backup_release(b);
        return r;
    }
    *out = b;
    return GVMM_OK;
}

backup *gvmm__backup_retain(backup *b)
{
    ref_retain(&b->refs);
    return b;
}

/* Under its own context, and in relaxed mode as it could disturb a capture. */
static void free_pinned(backup *b)
{
    CUstreamCaptureMode old = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool relaxed = DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &old) == CUDA_SUCCESS;
    bool entered = DRIVER_QUIET(cuCtxPushCurrent, b->primary) == CUDA_SUCCESS;
    DRIVER_UNDO("backup", (uintptr_t)b->pinned, cuMemFreeHost, b->pinned);
    if (entered) gvmm__context_leave();
    if (relaxed) gvmm__relaxed_leave(old);
}

void gvmm__backup_release(backup *b)
{
    if (!b || !ref_release(&b->refs)) return;
    if (b->pinned) free_pinned(b);
    if (b->primary) DRIVER_UNDO("primary context", (uintptr_t)b->primary, cuDevicePrimaryCtxRelease, b->device);
    if (b->file >= 0) close(b->file);
    gvmm__free(b);
}

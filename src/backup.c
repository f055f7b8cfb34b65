/* What evicted memory keeps its contents in. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

/* A file without a name: it is gone with its descriptor, whatever becomes of the process. */
static gvmm_result open_file(backup *b, size_t size, const char *directory)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/gvmm-XXXXXX", directory);
    if (length < 0 || (size_t)length >= sizeof path) return gvmm__fail(GVMM_E_INVALID, "directory: its name is too long");
    b->file = mkstemp(path);
    if (b->file < 0) return gvmm__fail(GVMM_E_INVALID, "directory %s: no file can be made there: %m", directory);
    unlink(path);
    if (ftruncate(b->file, (off_t)size) == 0) return GVMM_OK;
    return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "directory %s: no room for %zu bytes: %m", directory, size);
}

gvmm_result gvmm__backup_create(backup **out, size_t size, const char *directory)
{
    backup *b = gvmm__alloc(sizeof *b);
    if (!b) return GVMM_E_NO_HOST_MEMORY;
    ref_init(&b->refs);
    b->pinned = NULL;
    b->file = -1;
    gvmm_result r;
    if (directory) {
        r = open_file(b, size, directory);
    } else {
        r = DRIVER(cuMemHostAlloc, &b->pinned, size, 0);
        if (r) gvmm__about(r == GVMM_E_NO_DEVICE_MEMORY ? GVMM_E_NO_HOST_MEMORY : r, "backup", "%zu bytes of pinned memory", size);
        if (r == GVMM_E_NO_DEVICE_MEMORY) r = GVMM_E_NO_HOST_MEMORY;
    }
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

/* Freeing pinned memory can disturb a capture, so it is done in relaxed mode, and needs no context. */
void gvmm__backup_release(backup *b)
{
    if (!b || !ref_release(&b->refs)) return;
    if (b->pinned) {
        CUstreamCaptureMode old;
        bool relaxed = gvmm__relaxed_enter(&old) == GVMM_OK;
        DRIVER_UNDO("backup", (uintptr_t)b->pinned, cuMemFreeHost, b->pinned);
        if (relaxed) gvmm__relaxed_leave(old);
    }
    if (b->file >= 0) close(b->file);
    gvmm__free(b);
}

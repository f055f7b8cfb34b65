/* What evicted memory keeps its contents in.
 *
 * Host memory is pages of our own that the driver pins, and not cuMemHostAlloc's: for 8 GiB that takes 3.5 s where
 * huge pages filled by several threads and registered meanwhile take 0.3 s (measured). What the driver pins does not count
 * against RLIMIT_MEMLOCK. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

enum {
    PIECE = 256 << 20, /* bytes that are registered at a time: the first can be copied to while the next are pinned */
    BLOCK = 16 << 20,  /* bytes that a thread fills at a time */
    MANY_BYTES = 64 << 20, /* worth threads */
    MOST_THREADS = 8
};

/* ---- filling ---- */

/* The kernel clears pages when they are first touched, which one thread does more slowly than a device copies. */
typedef struct filling {
    pthread_mutex_t lock; /* guards next, failed, done */
    pthread_cond_t progress;
    char *bytes;
    size_t size;
    size_t next; /* what is behind is nobody's yet */
    bool failed; /* there are no more pages */
    unsigned thread_count;
    pthread_t threads[MOST_THREADS];
    size_t done[]; /* bytes filled, by piece */
} filling;

static size_t piece_size(size_t whole, size_t at) { return whole - at < PIECE ? whole - at : PIECE; }

/* Blocks in turn, until none before `end` is left. */
static void fill_blocks(filling *f, size_t end)
{
    pthread_mutex_lock(&f->lock);
    while (f->next < end && !f->failed) {
        size_t at = f->next, size = f->size - at < BLOCK ? f->size - at : BLOCK;
        f->next += size;
        pthread_mutex_unlock(&f->lock);
        bool filled = gvmm__pages_fill(f->bytes + at, size);
        pthread_mutex_lock(&f->lock);
        f->done[at / PIECE] += size;
        f->failed |= !filled;
        pthread_cond_broadcast(&f->progress);
    }
    pthread_mutex_unlock(&f->lock);
}

static void *fill_all(void *data)
{
    filling *f = data;
    fill_blocks(f, f->size);
    return NULL;
}

/* Takes part, so that it goes on also where no thread could be had. False if there are no pages. */
static bool wait_for_piece(filling *f, size_t at)
{
    size_t size = piece_size(f->size, at);
    fill_blocks(f, at + size);
    pthread_mutex_lock(&f->lock);
    while (f->done[at / PIECE] < size && !f->failed) pthread_cond_wait(&f->progress, &f->lock);
    bool fine = !f->failed;
    pthread_mutex_unlock(&f->lock);
    return fine;
}

static unsigned processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

/* NULL if there is no host memory for it: the pages are then filled when they are pinned. */
static filling *start_filling(char *bytes, size_t size)
{
    filling *f = gvmm__alloc(sizeof *f + (size / PIECE + 1) * sizeof f->done[0]);
    if (!f) return NULL;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->progress, NULL);
    f->bytes = bytes;
    f->size = size;
    f->next = 0;
    f->failed = false;
    for (size_t i = 0; i <= size / PIECE; i++) f->done[i] = 0;
    unsigned wanted = processors() < MOST_THREADS ? processors() : MOST_THREADS;
    f->thread_count = 0;
    while (f->thread_count < wanted && gvmm__thread_start(&f->threads[f->thread_count], fill_all, f)) f->thread_count++;
    return f;
}

/* Also before all is filled. */
static void end_filling(filling *f)
{
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->next = f->size;
    pthread_mutex_unlock(&f->lock);
    for (unsigned i = 0; i < f->thread_count; i++) pthread_join(f->threads[i], NULL);
    pthread_cond_destroy(&f->progress);
    pthread_mutex_destroy(&f->lock);
    gvmm__free(f);
}

/* ---- pinning ---- */

/* The driver's own refusal would come late, or the kernel would end the process. */
static gvmm_result get_pages(backup *b)
{
    uint64_t available = b->size >= MANY_BYTES ? gvmm__host_available() : UINT64_MAX;
    if (b->size > available)
        return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "backup: %zu bytes of pinned memory wanted, %llu available", b->size,
                          (unsigned long long)available);
    gvmm_result r = DRIVER(cuDevicePrimaryCtxRetain, &b->primary, b->device);
    if (r) {
        b->primary = NULL;
        return gvmm__about(r, "primary context", "of device %d", b->device);
    }
    b->bytes = gvmm__pages_get(b->size);
    if (!b->bytes) return GVMM_E_NO_HOST_MEMORY;
    saved_error before; /* what is missing here is no failure */
    gvmm__error_save(&before);
    if (b->size >= MANY_BYTES && !(b->fill = start_filling(b->bytes, b->size))) gvmm__error_restore(&before);
    return GVMM_OK;
}

static gvmm_result pin_piece(backup *b)
{
    size_t at = b->pinned, size = piece_size(b->size, at);
    if (!(b->fill ? wait_for_piece(b->fill, at) : gvmm__pages_fill(b->bytes + at, size)))
        return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "backup: out of host memory after %zu of %zu bytes", at, b->size);
    gvmm_result r = DRIVER(cuMemHostRegister, b->bytes + at, size, CU_MEMHOSTREGISTER_PORTABLE);
    if (r)
        return gvmm__about(r == GVMM_E_NO_DEVICE_MEMORY ? GVMM_E_NO_HOST_MEMORY : r, "backup",
                           "%zu bytes of pinned memory", b->size);
    b->pinned += size;
    gvmm__account_add(b->account, STAT_pinned_bytes, size);
    return GVMM_OK;
}

gvmm_result gvmm__backup_pin(backup *b, size_t end)
{
    if (b->pinned >= end) return GVMM_OK;
    gvmm_result r = gvmm__context_enter(b->primary);
    if (r) return r;
    while (b->pinned < end && !r) r = pin_piece(b);
    gvmm__context_leave();
    if (b->pinned == b->size) {
        end_filling(b->fill);
        b->fill = NULL;
    }
    return r;
}

size_t gvmm__backup_border(const backup *b, size_t offset)
{
    size_t piece = offset / PIECE * PIECE;
    return piece + piece_size(b->size, piece);
}

/* Under its own context, and in relaxed mode as it could disturb a capture. Without the context the driver may refuse:
 * false if pages stay pinned, whose addresses must then not be used again. */
static bool unpin(backup *b)
{
    size_t left = b->pinned;
    CUstreamCaptureMode old = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool relaxed = DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &old) == CUDA_SUCCESS;
    bool entered = DRIVER_QUIET(cuCtxPushCurrent, b->primary) == CUDA_SUCCESS;
    for (size_t at = 0; at < b->pinned; at += PIECE) {
        CUresult status = DRIVER_QUIET(cuMemHostUnregister, b->bytes + at);
        gvmm__checked_undo(GVMM_CALL_cuMemHostUnregister, status, "backup", (uintptr_t)(b->bytes + at));
        bool gone = entered || status == CUDA_SUCCESS || status == CUDA_ERROR_DEINITIALIZED;
        if (gone) left -= piece_size(b->pinned, at);
    }
    if (entered) gvmm__context_leave();
    if (relaxed) gvmm__relaxed_leave(old);
    gvmm__account_add(b->account, STAT_pinned_bytes, left - b->pinned);
    return left == 0;
}

/* ---- files ---- */

/* Without a name: it is gone with its descriptor, whatever becomes of the process. */
static gvmm_result open_file(backup *b, const char *directory)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/gvmm-XXXXXX", directory);
    if (length < 0 || (size_t)length >= sizeof path)
        return gvmm__fail(GVMM_E_INVALID, "directory: its name is too long");
    b->file = mkostemp(path, O_CLOEXEC); /* a child must not keep it alive */
    if (b->file < 0) return gvmm__fail(GVMM_E_INVALID, "directory %s: no file can be made there: %m", directory);
    unlink(path);
    if (ftruncate(b->file, (off_t)b->size) == 0) return GVMM_OK;
    return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "directory %s: no room for %zu bytes: %m", directory, b->size);
}

/* ---- both ---- */

gvmm_result gvmm__backup_create(backup **out, size_t size, const char *directory, CUdevice device, account *a)
{
    backup *b = gvmm__alloc(sizeof *b);
    if (!b) return GVMM_E_NO_HOST_MEMORY;
    *b = (backup){.account = gvmm__account_retain(a), .file = -1, .device = device, .size = size};
    ref_init(&b->refs);
    gvmm_result r = directory ? open_file(b, directory) : get_pages(b);
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

bool gvmm__backup_drop(backup *b) { return ref_release(&b->refs); }

void gvmm__backup_end(backup *b)
{
    bool has_pages = b->bytes != NULL;
    if (has_pages) end_filling(b->fill);
    bool free_of_driver = !b->pinned || unpin(b);
    if (has_pages && free_of_driver) gvmm__pages_put(b->bytes, b->size);
    if (b->primary) DRIVER_UNDO("primary context", (uintptr_t)b->primary, cuDevicePrimaryCtxRelease, b->device);
    if (b->file >= 0) close(b->file);
    account *a = b->account;
    gvmm__free(b);
    gvmm__account_release(a);
}

void gvmm__backup_release(backup *b)
{
    if (b && gvmm__backup_drop(b)) gvmm__backup_end(b);
}

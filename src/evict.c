/* Evict and restore: physical memory given back, addresses kept. Every view of the memory, every graph that holds it,
 * keeps its place and finds the bytes there again after the restore. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { STAGE = 8 << 20 }; /* bytes that go between the device and a file at a time */

/* Evicting and restoring take turns in the process; nothing else waits for them. */
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_over = PTHREAD_COND_INITIALIZER;
static bool turn_taken;

static void take_turn(void)
{
    pthread_mutex_lock(&turn_lock);
    while (turn_taken) pthread_cond_wait(&turn_over, &turn_lock);
    turn_taken = true;
    pthread_mutex_unlock(&turn_lock);
}

static void end_turn(void)
{
    pthread_mutex_lock(&turn_lock);
    turn_taken = false;
    pthread_cond_signal(&turn_over);
    pthread_mutex_unlock(&turn_lock);
}

/* ---- which memory ---- */

/* Originals, each once, retained. */
typedef struct set {
    memory **list;
    size_t count;
} set;

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (memory *const *)a, y = (uintptr_t) * (memory *const *)b;
    return x < y ? -1 : x > y;
}

static void set_release(set *s)
{
    while (s->count) gvmm__memory_release(s->list[--s->count]);
    gvmm__free(s->list);
    s->list = NULL;
}

static gvmm_result set_of_buffer(set *out, const gvmm_buffer *buffer)
{
    range *links = NULL;
    gvmm_result r = gvmm__buffer_borrow(&links, buffer);
    if (r) return r;
    size_t count = gvmm__range_count(links), kept = 0;
    memory **list = gvmm__alloc((count + 1) * sizeof *list);
    if (!list) {
        gvmm__range_release(links);
        return GVMM_E_NO_HOST_MEMORY;
    }
    count = 0;
    for (const range *link = links; link; link = link->before)
        list[count++] = gvmm__memory_original(link->mapping.memory);
    qsort(list, count, sizeof *list, by_address);
    for (size_t i = 0; i < count; i++) /* the same memory may be there more than once */
        if (i == 0 || list[i] != list[i - 1]) list[kept++] = gvmm__memory_retain(list[i]);
    gvmm__range_release(links);
    *out = (set){list, kept};
    return GVMM_OK;
}

static bool has_tag(const memory *m, int tag) { return tag == GVMM_TAG_ANY || m->made_as->tag == tag; }

/* The account's memory of a tag. */
static gvmm_result set_of_account(set *out, account *a, int tag)
{
    for (size_t room = 64;; room *= 2) {
        memory **list = gvmm__alloc(room * sizeof *list);
        if (!list) return GVMM_E_NO_HOST_MEMORY;
        size_t count = 0;
        bool all = true;
        pthread_mutex_lock(&a->lock);
        for (memory *m = a->memories; m && all; m = m->next_of_account) {
            if (!has_tag(m, tag)) continue;
            all = count < room;
            if (all && ref_try_retain(&m->refs)) list[count++] = m;
        }
        pthread_mutex_unlock(&a->lock);
        *out = (set){list, count};
        if (all) return GVMM_OK;
        set_release(out);
    }
}

/* Only those that are (not) resident go on, and are mapped somewhere: what is in stock, or on its way out, is not. */
static size_t keep_only(set *s, bool resident)
{
    size_t kept = 0, bytes = 0;
    for (size_t i = 0; i < s->count; i++) {
        memory *m = s->list[i];
        gvmm__memory_lock(m);
        bool wanted = m->resident == resident && m->mappings;
        gvmm__memory_unlock(m);
        if (wanted) {
            s->list[kept++] = m;
            bytes += m->size;
        } else {
            gvmm__memory_release(m);
        }
    }
    s->count = kept;
    return bytes;
}

/* ---- windows: where the device can reach a memory's bytes ---- */

typedef struct window {
    uint64_t address;
    range *held;          /* the link whose mapping it is, or NULL */
    reservation *private; /* or a mapping for the purpose alone */
} window;

static bool may_write(const memory *m, int device)
{
    bool may = false; /* of two entries for the same device the later counts */
    for (unsigned i = 0; i < m->access_count; i++)
        if (m->access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && m->access[i].location.id == device)
            may = m->access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return may;
}

/* A mapping that is there, held so that it stays. */
static bool borrow_mapping(window *out, memory *m, int device)
{
    bool found = false;
    gvmm__memory_lock(m);
    for (mapping *at = m->mappings; at && !found; at = at->next) {
        range *link = (range *)((char *)at - offsetof(range, mapping));
        found = may_write(at->memory, device) && ref_try_retain(&link->refs);
        if (found) *out = (window){at->address, link, NULL};
    }
    gvmm__memory_unlock(m);
    return found;
}

static gvmm_result window_open(window *out, memory *m, int device)
{
    if (borrow_mapping(out, m, device)) return GVMM_OK;
    reservation *where;
    gvmm_result r = gvmm__reservation_create(&where, m->size, 0, 0, m->account);
    if (r) return r;
    CUmemAccessDesc all = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    r = DRIVER(cuMemMap, where->base, m->size, 0, m->handle, 0);
    if (!r) {
        r = DRIVER(cuMemSetAccess, where->base, m->size, &all, 1);
        if (r) DRIVER_UNDO("mapping", where->base, cuMemUnmap, where->base, m->size);
    }
    if (r) {
        gvmm__reservation_release(where);
        return r;
    }
    *out = (window){where->base, NULL, where};
    return GVMM_OK;
}

static void window_close(window *w, const memory *m)
{
    if (w->private) DRIVER_UNDO("mapping", w->address, cuMemUnmap, w->address, m->size);
    gvmm__reservation_release(w->private);
    gvmm__range_release(w->held);
}

/* ---- moving contents ---- */

/* What a transfer needs; the device's context is current and the capture mode relaxed as long as it lasts. */
typedef struct transfer {
    CUdevice device;
    CUcontext primary; /* held */
    CUstream stream;
    CUstreamCaptureMode old_mode;
    backup *stage; /* pinned, for files */
} transfer;

static gvmm_result transfer_begin(transfer *t, int ordinal, bool with_file)
{
    *t = (transfer){0};
    gvmm_result r = DRIVER(cuDeviceGet, &t->device, ordinal);
    if (!r) r = DRIVER(cuDevicePrimaryCtxRetain, &t->primary, t->device);
    if (r) return r;
    r = gvmm__context_enter(t->primary);
    if (r) goto release_primary;
    r = gvmm__relaxed_enter(&t->old_mode);
    if (r) goto leave_context;
    r = DRIVER(cuStreamCreate, &t->stream, CU_STREAM_NON_BLOCKING);
    if (r) goto leave_relaxed;
    if (with_file) r = gvmm__backup_create(&t->stage, STAGE, NULL, t->device);
    if (r) goto destroy_stream;
    return GVMM_OK;

destroy_stream:
    DRIVER_UNDO("stream", (uintptr_t)t->stream, cuStreamDestroy, t->stream);
leave_relaxed:
    gvmm__relaxed_leave(t->old_mode);
leave_context:
    gvmm__context_leave();
release_primary:
    DRIVER_UNDO("primary context", (uintptr_t)t->primary, cuDevicePrimaryCtxRelease, t->device);
    return r;
}

static void transfer_end(transfer *t)
{
    gvmm__backup_release(t->stage);
    DRIVER_UNDO("stream", (uintptr_t)t->stream, cuStreamDestroy, t->stream);
    gvmm__relaxed_leave(t->old_mode);
    gvmm__context_leave();
    DRIVER_UNDO("primary context", (uintptr_t)t->primary, cuDevicePrimaryCtxRelease, t->device);
}

static gvmm_result file_failed(const char *what)
{
    return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "backup file: %s: %s", what, strerror(errno));
}

/* All of it: a call that a signal or a full disk cuts short is gone on with, or says what is wrong. */
static gvmm_result read_all(int file, char *to, size_t size, off_t at)
{
    for (ssize_t got; size; to += got, at += got, size -= (size_t)got) {
        got = pread(file, to, size, at);
        if (got == 0) errno = EIO; /* shorter than it was made */
        if (got == 0 || (got < 0 && errno != EINTR)) return file_failed("read");
        if (got < 0) got = 0;
    }
    return GVMM_OK;
}

static gvmm_result write_all(int file, const char *from, size_t size, off_t at)
{
    for (ssize_t put; size; from += put, at += put, size -= (size_t)put) {
        put = pwrite(file, from, size, at);
        if (put < 0 && errno != EINTR) return file_failed("write");
        if (put < 0) put = 0;
    }
    return GVMM_OK;
}

static gvmm_result copy_file(transfer *t, uint64_t address, const backup *b, size_t offset, size_t size, bool save)
{
    gvmm_result r = GVMM_OK;
    for (size_t done = 0; done < size && !r; done += STAGE) {
        size_t piece = size - done < STAGE ? size - done : STAGE;
        off_t at = (off_t)(offset + done);
        if (!save) r = read_all(b->file, t->stage->pinned, piece, at);
        if (r) break;
        r = save ? DRIVER(cuMemcpyDtoHAsync, t->stage->pinned, address + done, piece, t->stream)
                 : DRIVER(cuMemcpyHtoDAsync, address + done, t->stage->pinned, piece, t->stream);
        if (!r) r = DRIVER(cuStreamSynchronize, t->stream);
        if (!r && save) r = write_all(b->file, t->stage->pinned, piece, at);
    }
    return r;
}

static gvmm_result copy_one(transfer *t, uint64_t address, const backup *b, const memory *m, bool save)
{
    if (b->file >= 0) return copy_file(t, address, b, m->backup_offset, m->size, save);
    char *host = (char *)b->pinned + m->backup_offset;
    return save ? DRIVER(cuMemcpyDtoHAsync, host, address, m->size, t->stream)
                : DRIVER(cuMemcpyHtoDAsync, address, host, m->size, t->stream);
}

/* Where the device is full, what was made ahead is given up for it. */
static gvmm_result wake(const gvmm_resource *resource, memory *m)
{
    gvmm_result r = gvmm__memory_restore(m);
    if (r == GVMM_E_NO_DEVICE_MEMORY && gvmm__make_room(resource->stock)) r = gvmm__memory_restore(m);
    return r;
}

/* What is to be copied: all of a set to one backup, which is made with the first transfer; or what has a backup back
 * from it, which is woken for it. */
typedef struct copying {
    const set *set;
    const gvmm_resource *resource; /* for waking */
    bool save, with_file;
    backup *to;
    size_t bytes;
    const char *directory;
} copying;

/* The device with the lowest ordinal above `*device` that has something to copy. */
static bool next_device(const copying *c, int *device)
{
    int next = INT_MAX;
    for (size_t i = 0; i < c->set->count; i++) {
        const memory *m = c->set->list[i];
        if ((c->save || m->backup) && m->device > *device && m->device < next) next = m->device;
    }
    *device = next;
    return next < INT_MAX;
}

/* Each device copies what it has. Queued together, waited for once: while the driver makes and maps a chunk, which
 * waits for no work, those before it are on their way. */
static gvmm_result queue_all(transfer *t, const copying *c, int device)
{
    const set *s = c->set;
    window *windows = gvmm__alloc(s->count * sizeof *windows);
    if (!windows) return GVMM_E_NO_HOST_MEMORY;
    gvmm_result r = GVMM_OK;
    size_t open = 0;
    for (; open < s->count && !r; open++) {
        memory *m = s->list[open];
        const backup *b = c->save ? c->to : m->backup;
        windows[open] = (window){0};
        if (!b || m->device != device) continue;
        if (!c->save) r = wake(c->resource, m);
        if (!r) r = window_open(&windows[open], m, device);
        if (!r) r = copy_one(t, windows[open].address, b, m, c->save);
    }
    /* Also after a failure: nothing may be on its way. */
    CUresult status = DRIVER_QUIET(cuStreamSynchronize, t->stream);
    if (!r && status != CUDA_SUCCESS) r = gvmm__fail_driver(GVMM_CALL_cuStreamSynchronize, status);
    while (open--) window_close(&windows[open], s->list[open]);
    gvmm__free(windows);
    return r;
}

static gvmm_result copy_device(copying *c, int device)
{
    transfer t;
    gvmm_result r = transfer_begin(&t, device, c->with_file);
    if (r) return r;
    if (c->save && !c->to) r = gvmm__backup_create(&c->to, c->bytes, c->directory, t.device);
    if (!r) r = queue_all(&t, c, device);
    transfer_end(&t);
    return r;
}

static gvmm_result copy_all(copying *c)
{
    gvmm_result r = GVMM_OK;
    for (int device = -1; !r && next_device(c, &device);) r = copy_device(c, device);
    return r;
}

/* ---- evict ---- */

static gvmm_result save(backup **out, const set *s, size_t bytes, const char *directory)
{
    size_t offset = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (s->list[i]->device < 0)
            return gvmm__fail(GVMM_E_UNSUPPORTED, "evict option contents: host memory would be kept in host memory");
        s->list[i]->backup_offset = offset;
        offset += s->list[i]->size;
    }
    copying c = {.set = s, .save = true, .with_file = directory != NULL, .bytes = bytes, .directory = directory};
    gvmm_result r = copy_all(&c);
    if (r) gvmm__backup_release(c.to);
    else *out = c.to;
    return r;
}

static void tell(gvmm_resource *resource, gvmm_residency what, gvmm_buffer *buffer, int tag, size_t bytes)
{
    gvmm__lock(&resource->handler_lock);
    gvmm_residency_fn fn = resource->handler;
    void *user = resource->handler_user;
    gvmm__unlock(&resource->handler_lock);
    if (fn) fn(user, &(gvmm_residency_event){what, buffer, tag, bytes});
}

static gvmm_result check_evict(gvmm_evict_options *out, const gvmm_evict_options *given)
{
    *out = (gvmm_evict_options)GVMM_EVICT_OPTIONS_INIT;
    if (given && given->struct_size != sizeof *given)
        return gvmm__fail(GVMM_E_INVALID, "evict options: struct_size is %zu, not %zu", given->struct_size,
                          sizeof *given);
    if (given) *out = *given;
    if (out->contents < GVMM_CONTENTS_DROP || out->contents > GVMM_CONTENTS_FILE)
        return gvmm__fail(GVMM_E_INVALID, "evict option contents: %d is not an allowed value", out->contents);
    if (out->contents == GVMM_CONTENTS_FILE && !out->directory)
        return gvmm__fail(GVMM_E_INVALID, "evict option directory is NULL");
    return GVMM_OK;
}

/* Takes `s` over. The stream has been waited for. */
static gvmm_result evict(gvmm_resource *resource, gvmm_buffer *buffer, int tag, set *s, const gvmm_evict_options *o)
{
    gvmm_result r = GVMM_OK;
    size_t bytes = keep_only(s, true);
    if (!s->count) goto done; /* nothing to do is no failure */
    tell(resource, GVMM_BEFORE_EVICT, buffer, tag, bytes);
    backup *kept = NULL;
    if (o->contents >= GVMM_CONTENTS_HOST)
        r = save(&kept, s, bytes, o->contents == GVMM_CONTENTS_FILE ? o->directory : NULL);
    for (size_t i = 0; i < s->count && !r; i++) {
        gvmm__memory_evict(s->list[i]);
        s->list[i]->backup = kept ? gvmm__backup_retain(kept) : NULL;
    }
    gvmm__backup_release(kept);
    tell(resource, r ? GVMM_EVICT_FAILED : GVMM_AFTER_EVICT, buffer, tag, bytes);
done:
    set_release(s);
    return r;
}

/* Waiting needs no turn, and must not keep others from theirs: what is waited for may need them. */
static gvmm_result wait_and_evict(gvmm_resource *resource, gvmm_buffer *buffer, int tag, set *s,
                                  const gvmm_evict_options *o, gvmm_stream stream)
{
    gvmm_result r = gvmm__stream_wait_or_fail(stream, &resource->device);
    if (r) {
        set_release(s);
        return r;
    }
    take_turn();
    r = evict(resource, buffer, tag, s, o);
    end_turn();
    return r;
}

/* ---- restore ---- */

/* Wakes all. */
static gvmm_result bring_back(const gvmm_resource *resource, const set *s)
{
    copying c = {.set = s, .resource = resource};
    gvmm_result r = GVMM_OK;
    for (size_t i = 0; i < s->count && !r; i++)
        if (!s->list[i]->backup) r = wake(resource, s->list[i]);
    if (r) return r;
    for (size_t i = 0; i < s->count; i++) c.with_file |= s->list[i]->backup && s->list[i]->backup->file >= 0;
    return copy_all(&c);
}

/* All or nothing: what fails puts back to sleep what had been woken, with its contents still kept. Takes `s` over. */
static gvmm_result restore(gvmm_resource *resource, gvmm_buffer *buffer, int tag, set *s)
{
    gvmm_result r = GVMM_OK;
    size_t bytes = keep_only(s, false);
    if (!s->count) goto done;
    tell(resource, GVMM_BEFORE_RESTORE, buffer, tag, bytes);
    r = bring_back(resource, s);
    for (size_t i = 0; i < s->count; i++) {
        if (r) {
            gvmm__memory_evict(s->list[i]); /* nothing, where it was not woken */
        } else {
            gvmm__backup_release(s->list[i]->backup);
            s->list[i]->backup = NULL;
            gvmm__memory_lock(s->list[i]);
            s->list[i]->generation++; /* only now: who watches it need not act on a restore that failed */
            gvmm__memory_unlock(s->list[i]);
        }
    }
    tell(resource, r ? GVMM_RESTORE_FAILED : GVMM_AFTER_RESTORE, buffer, tag, bytes);
done:
    set_release(s);
    return r;
}

/* ---- public ---- */

gvmm_result gvmm_buffer_evict(gvmm_buffer *buffer, const gvmm_evict_options *options)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    gvmm_resource *resource = gvmm_buffer_resource(buffer);
    gvmm_evict_options o;
    set s;
    gvmm_result r = check_evict(&o, options);
    if (!r) r = set_of_buffer(&s, buffer);
    if (r) return r;
    gvmm_stream stream = o.stream ? gvmm__stream_recorded(o.stream, &resource->device) : gvmm_buffer_stream(buffer);
    return wait_and_evict(resource, buffer, resource->options.tag, &s, &o, stream);
}

gvmm_result gvmm_buffer_restore(gvmm_buffer *buffer)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    gvmm_resource *resource = gvmm_buffer_resource(buffer);
    set s;
    gvmm_result r = set_of_buffer(&s, buffer);
    if (r) return r;
    take_turn();
    r = restore(resource, buffer, resource->options.tag, &s);
    end_turn();
    return r;
}

gvmm_result gvmm_resource_evict(gvmm_resource *resource, int tag, const gvmm_evict_options *options)
{
    if (!resource) return gvmm__fail(GVMM_E_INVALID, "resource is NULL");
    gvmm_evict_options o;
    set s;
    gvmm_result r = check_evict(&o, options);
    if (!r && gvmm_resource_trim(resource, 0)) gvmm_drain(); /* what is kept for nobody is not worth saving */
    if (!r) r = set_of_account(&s, resource->account, tag);
    if (r) return r;
    gvmm_stream stream = gvmm__stream_recorded(o.stream, &resource->device);
    return wait_and_evict(resource, NULL, tag, &s, &o, stream);
}

gvmm_result gvmm_resource_restore(gvmm_resource *resource, int tag)
{
    if (!resource) return gvmm__fail(GVMM_E_INVALID, "resource is NULL");
    set s;
    gvmm_result r = set_of_account(&s, resource->account, tag);
    if (r) return r;
    take_turn();
    r = restore(resource, NULL, tag, &s);
    end_turn();
    return r;
}

void gvmm_resource_set_residency_handler(gvmm_resource *resource, gvmm_residency_fn fn, void *user)
{
    if (!resource) return;
    gvmm__lock(&resource->handler_lock);
    resource->handler = fn;
    resource->handler_user = user;
    gvmm__unlock(&resource->handler_lock);
}

/* ---- questions ---- */

/* Sums over the links; an empty or closed buffer has none. */
static void sum(const gvmm_buffer *buffer, size_t *evicted, uint64_t *generation)
{
    range *links = NULL;
    saved_error before;
    *evicted = 0;
    *generation = 0;
    if (!buffer) return;
    gvmm__error_save(&before);
    if (gvmm__buffer_borrow(&links, buffer)) gvmm__error_restore(&before); /* closed: nothing to say */
    for (const range *link = links; link; link = link->before) {
        memory *m = gvmm__memory_original(link->mapping.memory);
        gvmm__memory_lock(m);
        if (!m->resident) *evicted += m->size;
        *generation += m->generation;
        gvmm__memory_unlock(m);
    }
    gvmm__range_release(links);
}

size_t gvmm_buffer_evicted_bytes(const gvmm_buffer *buffer)
{
    size_t evicted;
    uint64_t generation;
    sum(buffer, &evicted, &generation);
    return evicted;
}

uint64_t gvmm_buffer_generation(const gvmm_buffer *buffer)
{
    size_t evicted;
    uint64_t generation;
    sum(buffer, &evicted, &generation);
    return generation;
}

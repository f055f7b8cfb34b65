/* Create, grow, close: policy over ranges. */
#include "internal.h"

/* What a buffer of someone else's mapping shows, and how it is given back. */
typedef struct wrapped {
    uint64_t address;
    size_t size;
    gvmm_free_fn free;
    void *user;
} wrapped;

/* `lock` guards what follows it, for the moments when it is read or changed; the objects behind it are immutable. */
struct gvmm_buffer {
    ref refs;
    gvmm_resource *resource;
    small_lock lock;
    bool open;
    gvmm_stream stream;
    range *range;     /* NULL if empty, closed or wrapped */
    wrapped *wrapped; /* NULL unless wrapped and open */
};

static small_lock *lock_of(const gvmm_buffer *buffer) { return (small_lock *)&buffer->lock; }

static gvmm_buffer *new_buffer(gvmm_resource *resource, gvmm_stream stream)
{
    gvmm_buffer *buffer = gvmm__alloc(sizeof *buffer);
    if (!buffer) return NULL;
    ref_init(&buffer->refs);
    atomic_flag_clear(&buffer->lock);
    buffer->resource = gvmm_resource_retain(resource);
    buffer->open = true;
    buffer->stream = stream;
    buffer->range = NULL;
    buffer->wrapped = NULL;
    gvmm__account_add(resource->account, STAT_buffers, 1);
    return buffer;
}

/* Ends a buffer that nobody has seen, or that is closed. */
static void delete_buffer(gvmm_buffer *buffer)
{
    if (buffer->open) gvmm__account_add(buffer->resource->account, STAT_buffers, -1ull);
    gvmm_resource_release(buffer->resource);
    gvmm__free(buffer);
}

/* ---- making ranges ---- */

/* New memory behind `before` (may be NULL), in a reservation that is there already. */
static gvmm_result add_chunk(range **out, range *before, reservation *where, uint64_t address, const placement *p, size_t size,
                             account *a)
{
    memory *what;
    gvmm_result r = gvmm__memory_create(&what, p, size, a);
    if (r) return r;
    r = gvmm__range_extend(out, before, where, address, what);
    gvmm__memory_release(what);
    return r;
}

static gvmm_result make_first(range **out, const placement *p, size_t size, account *a)
{
    reservation *where;
    gvmm_result r = gvmm__reservation_create(&where, size, p->addr_align, p->addr_hint, a);
    if (r) return r;
    r = add_chunk(out, NULL, where, where->base, p, size, a);
    gvmm__reservation_release(where);
    return r;
}

/* Every memory of `from` at a new address, and the new chunk behind. The chunk's memory comes first: it is the likeliest to fail, and
 * then nothing has been mapped for nothing. */
static gvmm_result grow_moved(range **out, const range *from, const placement *p, uint64_t align, size_t add, account *a)
{
    if (from->total > SIZE_MAX - add) return gvmm__fail(GVMM_E_INVALID, "size: %zu and %zu bytes overflow", from->total, add);
    memory *what;
    gvmm_result r = gvmm__memory_create(&what, p, add, a);
    if (r) return r;
    reservation *where = NULL;
    range *moved = NULL;
    r = gvmm__reservation_create(&where, from->total + add, align, 0, a);
    if (!r) r = gvmm__range_move(&moved, from, where, where->base);
    if (!r) r = gvmm__range_extend(out, moved, where, where->base + from->total, what);
    gvmm__range_release(moved);
    gvmm__reservation_release(where);
    gvmm__memory_release(what);
    if (!r) gvmm__account_add(a, STAT_grows_moved, 1);
    return r;
}

/* In place where the address space behind is free, else moved. What the probe says is of no interest; but a chunk that cannot be
 * made in place is tried once more by moving, and if that fails too the first failure is the one to report. */
static gvmm_result grow_range(range **out, range *from, const placement *p, uint64_t align, size_t add, account *a)
{
    uint64_t end = gvmm__range_base(from) + from->total;
    reservation *behind = gvmm__reservation_probe(end, add, a);
    if (!behind) return grow_moved(out, from, p, align, add, a);
    gvmm_result r = add_chunk(out, from, behind, end, p, add, a);
    gvmm__reservation_release(behind);
    if (!r) {
        gvmm__account_add(a, STAT_grows_in_place, 1);
        return GVMM_OK;
    }
    saved_error first;
    gvmm__error_save(&first);
    return grow_moved(out, from, p, align, add, a) == GVMM_OK ? GVMM_OK : gvmm__error_restore(&first);
}

/* ---- create and grow ---- */

gvmm_result gvmm_buffer_create(gvmm_buffer **out, gvmm_resource *resource, size_t size, gvmm_stream stream)
{
    if (!out || !resource) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "resource" : "out");
    size_t rounded = size;
    if (!gvmm__round_up(&rounded, resource->placement->granularity))
        return gvmm__fail(GVMM_E_INVALID, "size: %zu overflows when rounded up", size);

    gvmm_buffer *buffer = new_buffer(resource, gvmm__stream_recorded(stream, &resource->device));
    if (!buffer) return GVMM_E_NO_HOST_MEMORY;
    if (rounded) {
        gvmm_result r = make_first(&buffer->range, resource->placement, rounded, resource->account);
        if (r) {
            delete_buffer(buffer);
            return r;
        }
        gvmm__account_add(resource->account, STAT_allocations, 1);
    }
    *out = buffer;
    return GVMM_OK;
}

gvmm_result gvmm__buffer_borrow(range **out, const gvmm_buffer *buffer)
{
    gvmm__lock(lock_of(buffer));
    bool open = buffer->open, foreign = buffer->wrapped != NULL;
    range *r = buffer->range ? gvmm__range_retain(buffer->range) : NULL;
    gvmm__unlock(lock_of(buffer));
    if (!open) return gvmm__fail(GVMM_E_CLOSED, "buffer has been closed");
    if (foreign) return gvmm__fail(GVMM_E_INVALID, "buffer: a wrapped mapping is not gvmm's to share or grow");
    *out = r;
    return GVMM_OK;
}

/* The options of the new chunk: the resource's, or a checked set for this call alone, which the caller frees. */
static gvmm_result chunk_placement(placement **out, const gvmm_resource *resource, const gvmm_options *chunk, int ordinal)
{
    gvmm_options checked;
    gvmm_result r = gvmm__options_check(&checked, chunk);
    if (r) return r;
    if (checked.location != resource->options.location)
        return gvmm__fail(GVMM_E_INVALID, "option location: %d is not the resource's, %d", checked.location,
                          resource->options.location);
    return gvmm__placement_create(out, &checked, ordinal);
}

/* The range of the result: shared, or grown. */
static gvmm_result larger(range **out, range *from, const gvmm_resource *resource, const placement *p, size_t size)
{
    account *a = resource->account;
    size_t total = from ? from->total : 0;
    if (size <= total) {
        *out = from ? gvmm__range_retain(from) : NULL;
        gvmm__account_add(a, STAT_aliases, 1);
        return GVMM_OK;
    }
    size_t add = size - total;
    if (!gvmm__round_up(&add, p->granularity)) return gvmm__fail(GVMM_E_INVALID, "size: %zu overflows when rounded up", size);
    if (from) return grow_range(out, from, p, p->addr_align, add, a);
    gvmm_result r = make_first(out, p, add, a);
    if (!r) gvmm__account_add(a, STAT_allocations, 1);
    return r;
}

gvmm_result gvmm_buffer_grow(gvmm_buffer **out, gvmm_buffer *buffer, size_t size, const gvmm_options *chunk)
{
    if (!out || !buffer) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "buffer" : "out");
    gvmm_resource *resource = buffer->resource;
    range *from = NULL;
    gvmm_result r = gvmm__buffer_borrow(&from, buffer);
    if (r) return r;

    placement *own = NULL;
    if (chunk) r = chunk_placement(&own, resource, chunk, resource->ordinal);
    size_t rounded = size;
    if (!r && !gvmm__round_up(&rounded, resource->placement->granularity))
        r = gvmm__fail(GVMM_E_INVALID, "size: %zu overflows when rounded up", size);

    gvmm_buffer *result = NULL;
    if (!r) {
        result = new_buffer(resource, gvmm_buffer_stream(buffer));
        r = result ? larger(&result->range, from, resource, own ? own : resource->placement, rounded) : GVMM_E_NO_HOST_MEMORY;
    }
    gvmm__free(own);
    gvmm__range_release(from);
    if (r && result) delete_buffer(result);
    if (!r) *out = result;
    return r;
}

/* ---- close ---- */

static void free_wrapped(wrapped *w, gvmm_stream stream, gvmm_resource *resource)
{
    gvmm_result r = w->free ? w->free(w->user, w->address, w->size, stream)
                            : gvmm_resource_deallocate(resource, w->address, w->size, stream);
    if (r) {
        gvmm_error error;
        gvmm_last_error(&error);
        gvmm__warn(r, "wrapped buffer", w->address, "giving it back failed: %s",
                   error.result == r ? error.text : gvmm_result_name(r));
    }
    gvmm__free(w);
}

/* Takes the contents out under the lock, then waits for `stream` (unless told not to) and drops them without it. The range goes in
 * every case. */
static void empty(gvmm_buffer *buffer, gvmm_stream stream, bool wait)
{
    gvmm__lock(&buffer->lock);
    bool was_open = buffer->open;
    if (was_open) buffer->stream = stream;
    range *r = buffer->range;
    wrapped *w = buffer->wrapped;
    buffer->open = false;
    buffer->range = NULL;
    buffer->wrapped = NULL;
    gvmm__unlock(&buffer->lock);

    if (was_open) gvmm__account_add(buffer->resource->account, STAT_buffers, -1ull);
    if (w) free_wrapped(w, stream, buffer->resource);
    if (!r) return;
    if (wait) gvmm__stream_wait(stream, &buffer->resource->device, gvmm__range_base(r));
    gvmm__range_release(r);
}

gvmm_result gvmm_buffer_close(gvmm_buffer *buffer, gvmm_stream stream)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    if (gvmm_buffer_is_closed(buffer)) return GVMM_OK;
    stream = stream ? gvmm__stream_recorded(stream, &buffer->resource->device) : gvmm_buffer_stream(buffer);
    if (gvmm__stream_check(stream) == GVMM_E_CAPTURING) return GVMM_E_CAPTURING;
    empty(buffer, stream, true);
    return GVMM_OK;
}

gvmm_buffer *gvmm_buffer_retain(gvmm_buffer *buffer)
{
    if (buffer) ref_retain(&buffer->refs);
    return buffer;
}

void gvmm_buffer_release(gvmm_buffer *buffer)
{
    if (!buffer || !ref_release(&buffer->refs)) return;
    if (buffer->open) {
        bool capturing = buffer->range && gvmm__stream_check(buffer->stream) == GVMM_E_CAPTURING;
        if (capturing)
            gvmm__warn(GVMM_E_CAPTURING, "buffer", gvmm__range_base(buffer->range),
                       "released without waiting for its stream, which is a capturing stream");
        empty(buffer, buffer->stream, !capturing);
    }
    delete_buffer(buffer);
}

/* ---- questions ---- */

/* What a buffer shows at one moment; a NULL one is as a closed one. */
typedef struct view {
    bool open;
    uint64_t address;
    size_t size;
    gvmm_stream stream;
} view;

static view look(const gvmm_buffer *buffer)
{
    view v = {false, 0, 0, NULL};
    if (!buffer) return v;
    gvmm__lock(lock_of(buffer));
    v.open = buffer->open;
    v.stream = buffer->stream;
    if (buffer->range) {
        v.address = gvmm__range_base(buffer->range);
        v.size = buffer->range->total;
    } else if (buffer->wrapped) {
        v.address = buffer->wrapped->address;
        v.size = buffer->wrapped->size;
    }
    gvmm__unlock(lock_of(buffer));
    return v;
}

uint64_t gvmm_buffer_address(const gvmm_buffer *buffer) { return look(buffer).address; }
size_t gvmm_buffer_size(const gvmm_buffer *buffer) { return look(buffer).size; }
bool gvmm_buffer_is_closed(const gvmm_buffer *buffer) { return !look(buffer).open; }
gvmm_stream gvmm_buffer_stream(const gvmm_buffer *buffer) { return look(buffer).stream; }

gvmm_resource *gvmm_buffer_resource(const gvmm_buffer *buffer) { return buffer ? buffer->resource : NULL; }

gvmm_result gvmm_buffer_set_stream(gvmm_buffer *buffer, gvmm_stream stream)
{
    if (!buffer || !stream) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", buffer ? "stream" : "buffer");
    gvmm__lock(&buffer->lock);
    bool open = buffer->open;
    if (open) buffer->stream = gvmm__stream_recorded(stream, &buffer->resource->device);
    gvmm__unlock(&buffer->lock);
    return open ? GVMM_OK : gvmm__fail(GVMM_E_CLOSED, "buffer has been closed");
}

/* ---- segments, wrapping ---- */

/* The chain goes from the last piece to the first; `at` is where the last one is written. */
static size_t count_links(const range *r)
{
    size_t count = 0;
    for (; r; r = r->before) count++;
    return count;
}

gvmm_result gvmm_buffer_segments(const gvmm_buffer *buffer, gvmm_segment *segments, size_t capacity, size_t *count)
{
    if (!buffer || !count || (capacity && !segments))
        return gvmm__fail(GVMM_E_INVALID, "%s is NULL", !buffer ? "buffer" : !count ? "count" : "segments");
    range *r = NULL;
    gvmm_result failed = gvmm__buffer_borrow(&r, buffer);
    if (failed) return failed;
    size_t total = count_links(r), at = total;
    for (const range *link = r; link; link = link->before) {
        if (--at >= capacity) continue;
        const memory *m = link->mapping.memory;
        segments[at] = (gvmm_segment){link->mapping.address, m->size, (uint64_t)(uintptr_t)m, m->device};
    }
    gvmm__range_release(r);
    *count = total;
    return GVMM_OK;
}

gvmm_result gvmm_buffer_wrap(gvmm_buffer **out, gvmm_resource *resource, uint64_t address, size_t size, gvmm_stream stream,
                             gvmm_free_fn free, void *user)
{
    if (!out || !resource) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "resource" : "out");
    if (!address || !size) return gvmm__fail(GVMM_E_INVALID, "%s is 0", address ? "size" : "address");
    wrapped *w = gvmm__alloc(sizeof *w);
    if (!w) return GVMM_E_NO_HOST_MEMORY;
    gvmm_buffer *buffer = new_buffer(resource, gvmm__stream_recorded(stream, &resource->device));
    if (!buffer) {
        gvmm__free(w);
        return GVMM_E_NO_HOST_MEMORY;
    }
    *w = (wrapped){address, size, free, user};
    buffer->wrapped = w;
    *out = buffer;
    return GVMM_OK;
}

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
    uint64_t capacity; /* address space that its ranges are to have, bytes; 0: no more than needed */
    small_lock lock;
    bool open;
    gvmm_stream stream;
    range *range;          /* NULL if empty, closed or wrapped */
    wrapped *wrapped;      /* NULL unless wrapped and open */
    retirement retirement; /* of a deferred release, which holds the buffer meanwhile */
};

static small_lock *lock_of(const gvmm_buffer *buffer) { return (small_lock *)&buffer->lock; }

static gvmm_buffer *new_buffer(gvmm_resource *resource, gvmm_stream stream, uint64_t capacity)
{
    gvmm_buffer *buffer = gvmm__alloc(sizeof *buffer);
    if (!buffer) return NULL;
    ref_init(&buffer->refs);
    atomic_flag_clear(&buffer->lock);
    buffer->resource = gvmm_resource_retain(resource);
    buffer->open = true;
    buffer->capacity = capacity;
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

/* ---- making ranges ---- */

/* What a range is made with: the options that hold for the new bytes, and whose account and stock they come from. */
typedef struct maker {
    placement *placement;
    uint64_t capacity;
    account *account;
    stock *stock; /* NULL where options of the call's own hold */
} maker;

/* From the stock if it has one of that size, else new. Where the device is full, what waits to be given back is waited
 * for, the stock is given up, and it is tried once more. */
static gvmm_result make_memory(memory **out, const maker *with, size_t size, size_t place)
{
    if (with->stock && size == with->placement->chunk_size && (*out = gvmm__stock_take(with->stock))) return GVMM_OK;
    gvmm_result r = gvmm__memory_create(out, with->placement, size, place, with->account);
    if (r != GVMM_E_NO_DEVICE_MEMORY && r != GVMM_E_NO_HOST_MEMORY) return r;
    if (!gvmm__make_room(with->stock)) return r;
    return gvmm__memory_create(out, with->placement, size, place, with->account);
}

/* New memory at `address`, which has been claimed, `size` bytes in chunks of the wished size, behind `before` (may be
 * NULL). */
static gvmm_result add_chunks(range **out, range *before, reservation *where, uint64_t address, const maker *with,
                              size_t size)
{
    size_t chunk = with->placement->chunk_size ? with->placement->chunk_size : size;
    range *r = before ? gvmm__range_retain(before) : NULL;
    gvmm_result failed = GVMM_OK;
    for (size_t done = 0; done < size && !failed; done += chunk) {
        memory *what;
        range *longer = NULL;
        size_t piece = size - done < chunk ? size - done : chunk;
        size_t in_front = r ? r->total : (size_t)(address - where->base);
        failed = make_memory(&what, with, piece, in_front / chunk);
        if (failed) break;
        failed = gvmm__range_extend(&longer, r, where, address + done, what);
        gvmm__memory_release(what);
        if (failed) break;
        gvmm__range_release(r);
        r = longer;
    }
    if (failed) {
        bool none = r == before;
        gvmm__range_release(r); /* with the first link the claim goes back, and may be another's at once */
        if (none) gvmm__reservation_unclaim(where, address);
    } else {
        *out = r;
    }
    return failed;
}

static gvmm_result reserve(reservation **out, size_t need, const maker *with, uint64_t hint)
{
    const placement *p = with->placement;
    return gvmm__reservation_ahead(out, need, with->capacity, p->addr_align, hint, p->granularity, with->account);
}

static gvmm_result make_first(range **out, const maker *with, size_t size)
{
    reservation *where;
    gvmm_result r = reserve(&where, size, with, with->placement->addr_hint);
    if (r) return r;
    gvmm__reservation_claim(where, where->base, size); /* cannot fail: nobody else knows it */
    r = add_chunks(out, NULL, where, where->base, with, size);
    gvmm__reservation_release(where);
    return r;
}

/* Every memory of `from` at a new address, and the new chunks behind. The new memory comes first: it is the likeliest
 * to fail, and then nothing has been mapped for nothing. */
static gvmm_result grow_moved(range **out, const range *from, const maker *with, size_t add)
{
    if (from->total > SIZE_MAX - add)
        return gvmm__fail(GVMM_E_INVALID, "size: %zu and %zu bytes overflow", from->total, add);
    reservation *where;
    gvmm_result r = reserve(&where, from->total + add, with, 0);
    if (r) return r;
    range *tail = NULL;
    gvmm__reservation_claim(where, where->base, from->total + add);
    r = add_chunks(&tail, NULL, where, where->base + from->total, with, add);
    if (!r) r = gvmm__range_move(tail, from, where);
    gvmm__reservation_release(where);
    if (r) {
        gvmm__range_release(tail);
        return r;
    }
    gvmm__account_add(with->account, STAT_grows_moved, 1);
    *out = tail;
    return GVMM_OK;
}

/* Claims the address space behind a range: what its reservation has left, or a new one. NULL if it is taken. */
static reservation *claim_behind(range *from, size_t size, account *a)
{
    reservation *own = from->mapping.reservation;
    uint64_t end = gvmm__range_end(from);
    if (gvmm__reservation_claim(own, end, size)) return gvmm__reservation_retain(own);
    if (end - own->base < own->size) return NULL; /* it goes on, and so nobody else can reserve there */
    reservation *behind = gvmm__reservation_probe(end, size, a);
    if (behind) gvmm__reservation_claim(behind, end, size);
    return behind;
}

/* In place where the address space behind is free, else moved. What the probe says is of no interest; but a chunk that
 * cannot be made in place is tried once more by moving, and if that fails too the first failure is the one to
 * report. */
static gvmm_result grow_range(range **out, range *from, const maker *with, size_t add)
{
    reservation *behind = claim_behind(from, add, with->account);
    if (!behind) return grow_moved(out, from, with, add);
    gvmm_result r = add_chunks(out, from, behind, gvmm__range_end(from), with, add);
    gvmm__reservation_release(behind);
    if (!r) {
        gvmm__account_add(with->account, STAT_grows_in_place, 1);
        return GVMM_OK;
    }
    saved_error first;
    gvmm__error_save(&first);
    return grow_moved(out, from, with, add) == GVMM_OK ? GVMM_OK : gvmm__error_restore(&first);
}

/* ---- create and grow ---- */

/* The resource's options, or others for one call. */
static maker maker_of(const gvmm_resource *resource, placement *own, uint64_t capacity)
{
    return (maker){own ? own : resource->placement, capacity, resource->account, own ? NULL : resource->stock};
}

gvmm_result gvmm__buffer_make(gvmm_buffer **out, gvmm_resource *resource, const gvmm_buffer *like, range *r,
                              gvmm_stream stream)
{
    gvmm_buffer *buffer = new_buffer(resource, stream, like ? like->capacity : resource->placement->capacity);
    if (!buffer) return GVMM_E_NO_HOST_MEMORY;
    buffer->range = r;
    *out = buffer;
    return GVMM_OK;
}

gvmm_result gvmm_buffer_create_with_capacity(gvmm_buffer **out, gvmm_resource *resource, size_t size, uint64_t capacity,
                                             gvmm_stream stream)
{
    if (!out || !resource) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "resource" : "out");
    if (capacity == GVMM_CAPACITY_ALL)
        return gvmm__fail(GVMM_E_INVALID, "capacity: GVMM_CAPACITY_ALL is for the options of a resource");
    size_t rounded = size;
    if (!gvmm__round_up(&rounded, resource->placement->granularity))
        return gvmm__fail(GVMM_E_INVALID, "size: %zu overflows when rounded up", size);

    gvmm_buffer *buffer = new_buffer(resource, gvmm__stream_recorded(stream, &resource->device), capacity);
    if (!buffer) return GVMM_E_NO_HOST_MEMORY;
    if (rounded) {
        maker with = maker_of(resource, NULL, capacity);
        gvmm_result r = make_first(&buffer->range, &with, rounded);
        if (r) {
            delete_buffer(buffer);
            return r;
        }
        gvmm__account_add(resource->account, STAT_allocations, 1);
    }
    *out = buffer;
    return GVMM_OK;
}

gvmm_result gvmm_buffer_create(gvmm_buffer **out, gvmm_resource *resource, size_t size, gvmm_stream stream)
{
    return gvmm_buffer_create_with_capacity(out, resource, size, resource ? resource->placement->capacity : 0, stream);
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

/* The range of the result: shared, or grown. */
static gvmm_result larger(range **out, range *from, const maker *with, size_t size)
{
    size_t total = from ? from->total : 0, add = size - total;
    if (size <= total) {
        *out = from ? gvmm__range_retain(from) : NULL;
        gvmm__account_add(with->account, STAT_aliases, 1);
        return GVMM_OK;
    }
    if (!gvmm__round_up(&add, with->placement->granularity))
        return gvmm__fail(GVMM_E_INVALID, "size: %zu overflows when rounded up", size);
    if (from) return grow_range(out, from, with, add);
    gvmm_result r = make_first(out, with, add);
    if (!r) gvmm__account_add(with->account, STAT_allocations, 1);
    return r;
}

/* What the options of a new chunk come down to: checked for this call, also where it needs no chunk. The caller
 * releases it. */
static gvmm_result chunk_placement(placement **out, const gvmm_resource *resource, const gvmm_options *chunk)
{
    gvmm_options checked;
    if (!chunk) return GVMM_OK;
    gvmm_result r = gvmm__options_check(&checked, chunk);
    if (!r && checked.location != resource->options.location)
        r = gvmm__fail(GVMM_E_INVALID, "option location: %d is not the resource's, %d", checked.location,
                       resource->options.location);
    return r ? r : gvmm__placement_create(out, &checked, resource->ordinal);
}

/* Grows a range, or shares it, into a new buffer. */
static gvmm_result grow_into(gvmm_buffer **out, const gvmm_buffer *buffer, range *from, size_t size,
                             const gvmm_options *chunk)
{
    gvmm_resource *resource = buffer->resource;
    size_t rounded = size;
    if (!gvmm__round_up(&rounded, resource->placement->granularity))
        return gvmm__fail(GVMM_E_INVALID, "size: %zu overflows when rounded up", size);
    placement *own = NULL;
    gvmm_result r = chunk_placement(&own, resource, chunk);
    if (r) return r;
    gvmm_buffer *result = new_buffer(resource, gvmm_buffer_stream(buffer), buffer->capacity);
    maker with = maker_of(resource, own, buffer->capacity);
    r = result ? larger(&result->range, from, &with, rounded) : GVMM_E_NO_HOST_MEMORY;
    gvmm__placement_release(own);
    if (!r) *out = result;
    else if (result) delete_buffer(result);
    return r;
}

gvmm_result gvmm_buffer_grow(gvmm_buffer **out, gvmm_buffer *buffer, size_t size, const gvmm_options *chunk)
{
    if (!out || !buffer) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "buffer" : "out");
    range *from = NULL;
    gvmm_result r = gvmm__buffer_borrow(&from, buffer);
    if (!r) r = grow_into(out, buffer, from, size, chunk);
    gvmm__range_release(from);
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

/* On its way out: the range has gone, and with it what held the buffer. */
static void retired(retirement *self)
{
    gvmm_buffer *buffer = (gvmm_buffer *)((char *)self - offsetof(gvmm_buffer, retirement));
    if (ref_release(&buffer->refs)) delete_buffer(buffer);
}

/* How the range is given up, once nobody can get at it through the buffer any more. */
typedef enum leaving { LEAVE_AFTER_WAITING, LEAVE_AT_ONCE, LEAVE_DEFERRED } leaving;

/* Takes the contents out under the lock and gives them up without it. The range goes in every case. */
static void empty(gvmm_buffer *buffer, gvmm_stream stream, leaving how)
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
    if (w) free_wrapped(w, how == LEAVE_AT_ONCE ? NULL : stream, buffer->resource);
    if (!r) return;
    device *d = &buffer->resource->device;
    if (how == LEAVE_DEFERRED) {
        ref_retain(&buffer->refs);
        buffer->retirement = (retirement){.range = r, .stream = stream, .device = d, .done = retired};
        gvmm__retire(&buffer->retirement);
        return;
    }
    if (how == LEAVE_AFTER_WAITING) gvmm__stream_wait(stream, d, gvmm__range_base(r));
    gvmm__range_release(r);
}

/* Only one who waits can be refused. If the question whether the stream captures failed, so will the wait, and that is a
 * warning. */
static gvmm_result close_how(gvmm_buffer *buffer, gvmm_stream stream, leaving how)
{
    if (gvmm_buffer_is_closed(buffer)) return GVMM_OK;
    stream = stream ? gvmm__stream_recorded(stream, &buffer->resource->device) : gvmm_buffer_stream(buffer);
    saved_error before;
    gvmm__error_save(&before);
    if (how == LEAVE_AFTER_WAITING && gvmm__stream_check(stream) == GVMM_E_CAPTURING) return GVMM_E_CAPTURING;
    empty(buffer, stream, how);
    gvmm__error_restore(&before);
    return GVMM_OK;
}

gvmm_result gvmm_buffer_close(gvmm_buffer *buffer, gvmm_stream stream)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    return close_how(buffer, stream, LEAVE_AFTER_WAITING);
}

static bool is_wrapped(const gvmm_buffer *buffer)
{
    gvmm__lock(lock_of(buffer));
    bool wrapped = buffer->wrapped != NULL;
    gvmm__unlock(lock_of(buffer));
    return wrapped;
}

gvmm_result gvmm_buffer_close_deferred(gvmm_buffer *buffer, gvmm_stream stream)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    return close_how(buffer, stream, is_wrapped(buffer) ? LEAVE_AFTER_WAITING : LEAVE_DEFERRED);
}

gvmm_buffer *gvmm_buffer_retain(gvmm_buffer *buffer)
{
    if (buffer) ref_retain(&buffer->refs);
    return buffer;
}

/* The last reference: closes without refusing. A free function of somebody else's decides itself about waiting. */
static void close_at_last(gvmm_buffer *buffer)
{
    bool deferred = buffer->range && buffer->resource->options.release_mode == GVMM_RELEASE_DEFERRED;
    leaving how = deferred ? LEAVE_DEFERRED : LEAVE_AFTER_WAITING;
    bool ours = buffer->range || (buffer->wrapped && !buffer->wrapped->free);
    if (!deferred && ours && gvmm__stream_check(buffer->stream) == GVMM_E_CAPTURING) {
        gvmm__warn(GVMM_E_CAPTURING, "buffer", look(buffer).address,
                   "released without waiting for its stream, which is a capturing stream");
        how = LEAVE_AT_ONCE;
    }
    empty(buffer, buffer->stream, how);
}

void gvmm_buffer_release(gvmm_buffer *buffer)
{
    if (!buffer || !ref_release(&buffer->refs)) return;
    saved_error before; /* what goes wrong from here on is a warning */
    gvmm__error_save(&before);
    ref_init(&buffer->refs); /* the work of closing holds it, and a deferred release longer */
    if (buffer->open) close_at_last(buffer);
    if (ref_release(&buffer->refs)) delete_buffer(buffer);
    gvmm__error_restore(&before);
}

/* ---- questions ---- */

uint64_t gvmm_buffer_address(const gvmm_buffer *buffer) { return look(buffer).address; }
size_t gvmm_buffer_size(const gvmm_buffer *buffer) { return look(buffer).size; }
bool gvmm_buffer_is_closed(const gvmm_buffer *buffer) { return !look(buffer).open; }
gvmm_stream gvmm_buffer_stream(const gvmm_buffer *buffer) { return look(buffer).stream; }

/* As far as the reservation goes, if no other range has gone there. */
uint64_t gvmm_buffer_capacity(const gvmm_buffer *buffer)
{
    uint64_t capacity = 0;
    if (!buffer) return 0;
    gvmm__lock(lock_of(buffer));
    if (buffer->range) {
        const reservation *where = buffer->range->mapping.reservation;
        uint64_t end = gvmm__range_end(buffer->range), limit = where->base + where->size;
        bool free = where->base + atomic_load(&where->claimed) == end;
        capacity = buffer->range->total + (free ? limit - end : 0);
    } else if (buffer->wrapped) {
        capacity = buffer->wrapped->size;
    }
    gvmm__unlock(lock_of(buffer));
    return capacity;
}

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

gvmm_result gvmm_buffer_segments(const gvmm_buffer *buffer, gvmm_segment *segments, size_t capacity, size_t *count)
{
    if (!buffer || !count || (capacity && !segments))
        return gvmm__fail(GVMM_E_INVALID, "%s is NULL", !buffer ? "buffer" : !count ? "count" : "segments");
    range *r = NULL;
    gvmm_result failed = gvmm__buffer_borrow(&r, buffer);
    if (failed) return failed;
    size_t total = gvmm__range_count(r), at = total; /* the chain goes from the last piece to the first */
    for (const range *link = r; link; link = link->before) {
        if (--at >= capacity) continue;
        memory *m = gvmm__memory_original(link->mapping.memory);
        segments[at] = (gvmm_segment){link->mapping.address, m->size, (uint64_t)(uintptr_t)m, m->device};
    }
    gvmm__range_release(r);
    *count = total;
    return GVMM_OK;
}

gvmm_result gvmm_buffer_wrap(gvmm_buffer **out, gvmm_resource *resource, uint64_t address, size_t size,
                             gvmm_stream stream, gvmm_free_fn free, void *user)
{
    if (!out || !resource) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "resource" : "out");
    if (!address || !size) return gvmm__fail(GVMM_E_INVALID, "%s is 0", address ? "size" : "address");
    wrapped *w = gvmm__alloc(sizeof *w);
    if (!w) return GVMM_E_NO_HOST_MEMORY;
    gvmm_buffer *buffer = new_buffer(resource, gvmm__stream_recorded(stream, &resource->device), 0);
    if (!buffer) {
        gvmm__free(w);
        return GVMM_E_NO_HOST_MEMORY;
    }
    *w = (wrapped){address, size, free, user};
    buffer->wrapped = w;
    *out = buffer;
    return GVMM_OK;
}

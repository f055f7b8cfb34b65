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
    bool borrowed; /* its range was: there may be other views of it, or other access */
    gvmm_stream stream;
    range *range;     /* NULL if empty, closed or wrapped */
    wrapped *wrapped; /* NULL unless wrapped and open */
    union {
        reusable kept;         /* of an open buffer what it will need when it is kept; of a kept one all of it */
        retirement retirement; /* of a deferred release, which holds the buffer meanwhile */
    };
};

static gvmm_buffer *buffer_of(reusable *e) { return (gvmm_buffer *)((char *)e - offsetof(gvmm_buffer, kept)); }

static small_lock *lock_of(const gvmm_buffer *buffer) { return (small_lock *)&buffer->lock; }

/* Closed, which does not count. */
static gvmm_buffer *new_handle(gvmm_resource *resource, gvmm_stream stream, uint64_t capacity)
{
    gvmm_buffer *buffer = gvmm__alloc(sizeof *buffer);
    if (!buffer) return NULL;
    ref_init(&buffer->refs);
    atomic_flag_clear(&buffer->lock);
    gvmm__resource_hold(resource);
    buffer->resource = resource;
    buffer->open = false;
    buffer->borrowed = true; /* a range that comes from elsewhere may be any range */
    buffer->capacity = capacity;
    buffer->stream = stream;
    buffer->range = NULL;
    buffer->wrapped = NULL;
    buffer->kept.stream_id = 0;
    buffer->kept.event = NULL;
    return buffer;
}

static gvmm_buffer *new_buffer(gvmm_resource *resource, gvmm_stream stream, uint64_t capacity)
{
    gvmm_buffer *buffer = new_handle(resource, stream, capacity);
    if (!buffer) return NULL;
    buffer->open = true;
    gvmm__account_add(resource->account, STAT_buffers, 1);
    return buffer;
}

static void put_event_back(gvmm_buffer *buffer)
{
    if (buffer->kept.event)
        gvmm__event_put(&buffer->resource->device, buffer->kept.event_context, buffer->kept.event, true);
    buffer->kept.event = NULL;
}

/* Ends a buffer that nobody has seen, or that is closed. */
static void delete_buffer(gvmm_buffer *buffer)
{
    if (buffer->open) gvmm__account_add(buffer->resource->account, STAT_buffers, -1ull);
    put_event_back(buffer);
    gvmm__resource_unhold(buffer->resource);
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

/* ---- keeping buffers, to be made again ---- */

/* Is it as gvmm_buffer_create would make it, and nobody else's? */
static bool is_as_new(range *r, const placement *p)
{
    size_t chunk = p->chunk_size ? p->chunk_size : r->total;
    for (range *link = r; link; link = link->before) {
        memory *m = link->mapping.memory;
        size_t in_front = link->total - m->size;
        bool alone = ref_is_single(&link->refs) && ref_is_single(&m->refs) && !gvmm__memory_is_shared(m);
        bool untouched = m->made_as == p && m->access == p->access && !m->access_unsure && atomic_load(&m->resident);
        bool in_place = (!in_front || in_front % chunk == 0) && (m->size == chunk || link == r) &&
                        (!p->stripe_count || m->device == p->stripe[in_front / chunk % p->stripe_count]);
        if (!alone || !untouched || !in_place) return false;
    }
    return true;
}

/* Evicting and restoring by tag need no borrowing: neither has been, nor is it under way. */
static bool is_left_alone(const range *r)
{
    for (; r; r = r->before) {
        memory *m = r->mapping.memory;
        if (!ref_is_single(&m->refs) || !atomic_load(&m->resident)) return false;
    }
    return true;
}

/* Keeps the range of a closed buffer, which has it, and the buffer with it. */
static bool keep(gvmm_buffer *buffer, gvmm_stream stream)
{
    gvmm_resource *resource = buffer->resource;
    bool numbered = gvmm__stream_is_default(stream) || resource->options.streams_outlive;
    buffer->kept.size = buffer->range->total;
    if (stream != buffer->stream) buffer->kept.stream_id = 0;
    if (numbered) buffer->kept.stream_id = UINT64_MAX;
    buffer->kept.stream = buffer->stream = stream;
    return gvmm__reuse_put(resource->reuse, &buffer->kept);
}

static bool may_keep(const gvmm_buffer *buffer, range *r)
{
    const gvmm_resource *resource = buffer->resource;
    if (!r || !resource->reuse || buffer->capacity != resource->placement->capacity) return false;
    return buffer->borrowed ? is_as_new(r, resource->placement) : is_left_alone(r);
}

/* The same for a range that was taken out of a buffer, whose handle goes on to be somebody's. */
static bool keep_range(const gvmm_buffer *buffer, range *r, gvmm_stream stream)
{
    if (!may_keep(buffer, r)) return false;
    gvmm_buffer *carrier = new_handle(buffer->resource, buffer->stream, buffer->capacity);
    if (!carrier) return false;
    carrier->range = r;
    carrier->borrowed = false;
    carrier->kept.stream_id = buffer->kept.stream_id;
    if (keep(carrier, stream)) return true;
    delete_buffer(carrier);
    return false;
}

/* On its way out: the range has gone, and with it what held the buffer. */
static void retired(retirement *self)
{
    gvmm_buffer *buffer = (gvmm_buffer *)((char *)self - offsetof(gvmm_buffer, retirement));
    buffer->kept.event = NULL;
    if (ref_release(&buffer->refs)) delete_buffer(buffer);
}

/* Gives the buffer's range back when the work before is done, and then drops a reference to the buffer. */
static void retire(gvmm_buffer *buffer, range *r, gvmm_stream stream, CUevent event, CUcontext context)
{
    buffer->retirement = (retirement){.range = r,
                                      .stream = stream,
                                      .device = &buffer->resource->device,
                                      .done = retired,
                                      .event = event,
                                      .event_context = context};
    gvmm__retire(&buffer->retirement);
}

/* An event is only its own work's if it was recorded when it was kept. */
void gvmm__buffer_drop(reusable *e)
{
    gvmm_buffer *buffer = buffer_of(e);
    if (buffer->resource->options.streams_outlive) put_event_back(buffer);
    range *r = buffer->range;
    buffer->range = NULL;
    ref_init(&buffer->refs);
    retire(buffer, r, e->stream, e->event, e->event_context);
}

static bool make_zero(const gvmm_buffer *buffer, gvmm_stream stream)
{
    if (DRIVER_QUIET(cuCtxPushCurrent, buffer->resource->device.primary) != CUDA_SUCCESS) return false;
    CUresult status = DRIVER_QUIET(cuMemsetD8Async, gvmm__range_base(buffer->range), 0, buffer->range->total,
                                   stream ? stream : GVMM_STREAM_LEGACY);
    gvmm__context_leave();
    return status == CUDA_SUCCESS;
}

/* The cache has counted it. */
static SELDOM void drop_taken(gvmm_buffer *buffer)
{
    account *a = buffer->resource->account;
    gvmm__account_add(a, STAT_buffers, -1ull);
    gvmm__account_add(a, STAT_allocations, -1ull);
    gvmm__account_add(a, STAT_reused, -1ull);
    gvmm__buffer_drop(&buffer->kept);
}

/* A kept buffer, open again, or NULL. *stream_id is for the one that is made in its place. */
static gvmm_buffer *make_of_kept(gvmm_resource *resource, size_t size, gvmm_stream stream, uint64_t *stream_id)
{
    reusable *e = gvmm__reuse_take(resource->reuse, size, stream, stream_id);
    if (!e) return NULL;
    gvmm_buffer *buffer = buffer_of(e);
    if (is_left_alone(buffer->range) && (!resource->options.zero_reused || make_zero(buffer, stream))) {
        ref_init(&buffer->refs);
        buffer->kept.stream_id = *stream_id;
        buffer->stream = gvmm__stream_recorded(stream, &resource->device);
        buffer->borrowed = false;
        buffer->open = true;
        return buffer;
    }
    drop_taken(buffer);
    return NULL;
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

static SELDOM gvmm_result make_anew(gvmm_buffer **out, gvmm_resource *resource, size_t size, uint64_t capacity,
                                    gvmm_stream stream, uint64_t stream_id)
{
    gvmm_buffer *buffer = new_buffer(resource, gvmm__stream_recorded(stream, &resource->device), capacity);
    if (!buffer) return GVMM_E_NO_HOST_MEMORY;
    buffer->kept.stream_id = stream_id;
    if (size) {
        maker with = maker_of(resource, NULL, capacity);
        gvmm_result r = gvmm__range_make(&buffer->range, &with, size);
        if (r) {
            delete_buffer(buffer);
            return r;
        }
        buffer->borrowed = false;
        gvmm__account_add(resource->account, STAT_allocations, 1);
    }
    *out = buffer;
    return GVMM_OK;
}

/* *size: rounded up. */
static inline gvmm_result check_create(gvmm_buffer **out, const gvmm_resource *resource, size_t *size)
{
    if (!out || !resource) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "resource" : "out");
    if (gvmm__in_child()) return gvmm__fail_in_child();
    if (gvmm__round_up(size, resource->placement->granularity)) return GVMM_OK;
    return gvmm__fail(GVMM_E_INVALID, "size: %zu overflows when rounded up", *size);
}

gvmm_result gvmm_buffer_create(gvmm_buffer **out, gvmm_resource *resource, size_t size, gvmm_stream stream)
{
    uint64_t stream_id = 0;
    gvmm_result r = check_create(out, resource, &size);
    if (r) return r;
    gvmm_buffer *kept = resource->reuse && size ? make_of_kept(resource, size, stream, &stream_id) : NULL;
    if (!kept) return make_anew(out, resource, size, resource->placement->capacity, stream, stream_id);
    *out = kept;
    return GVMM_OK;
}

gvmm_result gvmm_buffer_create_with_capacity(gvmm_buffer **out, gvmm_resource *resource, size_t size, uint64_t capacity,
                                             gvmm_stream stream)
{
    gvmm_result r = check_create(out, resource, &size);
    if (r) return r;
    if (capacity == GVMM_CAPACITY_ALL)
        return gvmm__fail(GVMM_E_INVALID, "capacity: GVMM_CAPACITY_ALL is for the options of a resource");
    if (capacity == resource->placement->capacity) return gvmm_buffer_create(out, resource, size, stream);
    return make_anew(out, resource, size, capacity, stream, 0);
}

gvmm_result gvmm__buffer_borrow(range **out, const gvmm_buffer *buffer)
{
    if (gvmm__in_child()) return gvmm__fail_in_child();
    gvmm__lock(lock_of(buffer));
    bool open = buffer->open, foreign = buffer->wrapped != NULL;
    range *r = buffer->range ? gvmm__range_retain(buffer->range) : NULL;
    if (open) ((gvmm_buffer *)buffer)->borrowed = true; /* who closes it may be asking */
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
    if (from) return gvmm__range_grow(out, from, with, add);
    gvmm_result r = gvmm__range_make(out, with, add);
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

/* How the range is given up, once nobody can get at it through the buffer any more. */
typedef enum leaving {
    LEAVE_AFTER_WAITING,
    LEAVE_AT_ONCE,
    LEAVE_DEFERRED,
    LEAVE_KEPT /* if it can be; else deferred */
} leaving;

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

    if (how == LEAVE_KEPT && keep_range(buffer, r, stream)) return;
    if (was_open) gvmm__account_add(buffer->resource->account, STAT_buffers, -1ull);
    if (w) free_wrapped(w, how == LEAVE_AT_ONCE ? NULL : stream, buffer->resource);
    if (!r) return;
    device *d = &buffer->resource->device;
    if (how == LEAVE_DEFERRED || how == LEAVE_KEPT) {
        ref_retain(&buffer->refs);
        put_event_back(buffer);
        retire(buffer, r, stream, NULL, NULL);
        return;
    }
    if (how == LEAVE_AFTER_WAITING) gvmm__stream_wait(stream, d, gvmm__range_base(r));
    gvmm__range_release(r);
}

/* Only one who waits can be refused. If the question whether the stream captures failed, so will the wait, and that is
 * a warning. */
static gvmm_result close_how(gvmm_buffer *buffer, gvmm_stream stream, leaving how)
{
    if (gvmm__in_child()) return gvmm__fail_in_child();
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
    return close_how(buffer, stream, is_wrapped(buffer) ? LEAVE_AFTER_WAITING : LEAVE_KEPT);
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

/* The last reference, without a detour: for what is made and released all the time. */
static bool keep_at_last(gvmm_buffer *buffer)
{
    if (!buffer->open || buffer->resource->options.release_mode != GVMM_RELEASE_DEFERRED) return false;
    if (!may_keep(buffer, buffer->range)) return false;
    buffer->open = false;
    if (keep(buffer, buffer->stream)) return true; /* and it may be another's by now */
    buffer->open = true;
    return false;
}

void gvmm_buffer_release(gvmm_buffer *buffer)
{
    if (!buffer || gvmm__in_child()) return;
    if (!ref_is_single(&buffer->refs) && !ref_release(&buffer->refs)) return;
    if (keep_at_last(buffer)) return;
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
    if (open) {
        stream = gvmm__stream_recorded(stream, &buffer->resource->device);
        if (stream != buffer->stream) buffer->kept.stream_id = 0;
        buffer->stream = stream;
    }
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
    if (gvmm__in_child()) return gvmm__fail_in_child();
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

/* A stream-ordered allocator for many sizes.
 *
 * malloc and free meet a block in one of four places:
 *
 *   in use            the caller's
 *   waiting           freed while its stream captured, or where no event could be had: gvmm__retire has it
 *   its stream's      free in the heap, for that stream only (order.c)
 *   common            free in the heap, its work done; its memory can be unmapped
 *
 * The heap has one lock. What a thread counts is the thread's own, so that threads do not share a line of the cache. */
#include <string.h>

#include "internal.h"

enum {
    SPACE = 5,    /* address space, in times of what the pool may have: so that memory can always be put elsewhere */
    SLACK = 64,   /* one in so many bytes of the most that was live may be free before memory is saved */
    PATIENCE = 8, /* once so many times the most that was live has been moved, each EARNED bytes more */
    EARNED = 4,   /* allow one more byte to be free, up to one in MOST_EARNED of the most that was live */
    MOST_EARNED = 4
};

/* Bytes that were asked for less bytes that were freed, modulo 2^64. Written by one thread, but for the first, which is for
 * those threads that found no other. */
typedef struct counter {
    atomic_ullong live;
    char apart[128 - sizeof(atomic_ullong)];
} counter;

struct gvmm_pool {
    ref users; /* callers' references */
    ref refs;  /* theirs together, one; what waits has one each */
    gvmm_resource *resource;
    account *account;
    uint64_t memory;      /* of the device, or of those of the stripe, bytes */
    gvmm_pool *next;      /* of all pools, guarded by pools_lock */
    pthread_mutex_t lock; /* a silent one */
    heap heap;
    orders orders;
    reuse *reuse;
    bool reuse_ended;
    reuse_figures ended; /* what it had counted then */
    /* Guarded by the lock: figures; waiting: bytes of blocks that gvmm__retire has. */
    size_t live_peak, rounded_peak, waiting;
    uint64_t searches, given_up; /* mallocs and frees that the cache had no part in */
    counter counters[SEATS];     /* by seat */
};

static device *device_of(const gvmm_pool *pool) { return &pool->resource->device; }

/* ---- counting ---- */

static SELDOM void count_with_others(gvmm_pool *pool, uint64_t live)
{
    if (gvmm__seat == SEATS) gvmm__seat_find();
    atomic_fetch_add_explicit(&pool->counters[gvmm__seat].live, live, memory_order_relaxed);
}

/* One's own needs no atomic addition, only that readers see whole numbers. All else that figures tell is counted where
 * blocks go by anyway. */
static inline void count(gvmm_pool *pool, uint64_t live)
{
    if (gvmm__seat % SEATS == 0) {
        count_with_others(pool, live);
        return;
    }
    atomic_ullong *to = &pool->counters[gvmm__seat].live;
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + live, memory_order_relaxed);
}

/* With the lock held. What threads do meanwhile can make a sum go below zero for a moment. */
static void read_figures(gvmm_pool *pool, gvmm_pool_stats *out)
{
    const heap *h = &pool->heap;
    reuse_figures cache;
    gvmm__reuse_read(&cache, pool->reuse);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < gvmm__seats_used(); i++)
        out->live_bytes += atomic_load_explicit(&pool->counters[i].live, memory_order_relaxed);
    if (out->live_bytes > h->end - h->base) out->live_bytes = 0;
    uint64_t free = cache.kept_bytes + pool->waiting;
    out->rounded_bytes = h->used > free ? h->used - free : 0;
    out->physical_bytes = h->physical;
    out->physical_peak = h->physical_peak;
    out->reuses = cache.taken + pool->ended.taken;
    out->mallocs = out->reuses + pool->searches;
    uint64_t freed = cache.put + pool->ended.put + pool->given_up;
    out->blocks = out->mallocs > freed ? out->mallocs - freed : 0;
    out->stitches = h->stitches;
}

/* With the lock held. `coming`: bytes, as asked for and rounded. Whether the cache keeps anything. */
static bool note_peaks(gvmm_pool *pool, size_t coming, size_t coming_rounded)
{
    gvmm_pool_stats now;
    read_figures(pool, &now);
    size_t live = (size_t)now.live_bytes + coming, rounded = (size_t)now.rounded_bytes + coming_rounded;
    if (live > pool->live_peak) pool->live_peak = live;
    if (rounded > pool->rounded_peak) pool->rounded_peak = rounded;
    return pool->heap.used > pool->waiting + now.rounded_bytes;
}

/* ---- on the way back to the heap ---- */

static gvmm_pool *pool_of(pool_block *b) { return (gvmm_pool *)((char *)b->heap - offsetof(gvmm_pool, heap)); }

static pool_block *block_of(reusable *e) { return (pool_block *)((char *)e - offsetof(pool_block, kept)); }

static void hold(gvmm_pool *pool) { ref_retain(&pool->refs); }
static void unhold(gvmm_pool *pool);

/* What waited has come to its end: see `done` of a retirement. */
static void has_waited(retirement *self)
{
    pool_block *b = (pool_block *)((char *)self - offsetof(pool_block, retired));
    gvmm_pool *pool = pool_of(b);
    gvmm__silent_lock(&pool->lock);
    pool->waiting -= b->size;
    gvmm__heap_put(&pool->heap, b, &pool->heap.common, 0);
    gvmm__silent_unlock(&pool->lock);
    unhold(pool);
}

/* Waits without anybody's waiting for it, then is common. It holds the pool. */
static void retire(gvmm_pool *pool, pool_block *b, gvmm_stream stream, CUevent event, CUcontext context)
{
    hold(pool);
    gvmm__silent_lock(&pool->lock);
    pool->waiting += b->size;
    gvmm__silent_unlock(&pool->lock);
    b->retired = (retirement){
        .stream = stream, .device = device_of(pool), .done = has_waited, .event = event, .event_context = context};
    gvmm__retire(&b->retired);
}

/* Frees a block whose event is reached. In relaxed mode, as any question. */
static bool put_if_done(gvmm_pool *pool, pool_block *b, const reusable *was)
{
    CUstreamCaptureMode old = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!was->event || DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &old) != CUDA_SUCCESS) return false;
    bool done = DRIVER_QUIET(cuEventQuery, was->event) != CUDA_ERROR_NOT_READY;
    gvmm__relaxed_leave(old);
    if (!done) return false;
    gvmm__event_put(device_of(pool), was->event_context, was->event, true);
    gvmm__silent_lock(&pool->lock);
    gvmm__heap_put(&pool->heap, b, &pool->heap.common, 0);
    gvmm__silent_unlock(&pool->lock);
    return true;
}

/* The cache lets it go: to its stream's arena. An event is only its own work's if streams do not outlive. */
static void leave_cache(reusable *e)
{
    pool_block *b = block_of(e);
    gvmm_pool *pool = pool_of(b);
    reusable was = *e;
    if (was.event && pool->orders.streams_outlive) {
        gvmm__event_put(device_of(pool), was.event_context, was.event, true);
        was.event = NULL;
    }
    gvmm__silent_lock(&pool->lock);
    bool entered = was.stream_id &&
                   gvmm__order_enter(&pool->orders, b, was.stream, was.stream_id, was.event, was.event_context);
    gvmm__silent_unlock(&pool->lock);
    if (!entered && !put_if_done(pool, b, &was)) retire(pool, b, was.stream, was.event, was.event_context);
}

/* ---- start and end ---- */

static gvmm_result check_options(gvmm_pool_options *out, const gvmm_pool_options *given)
{
    *out = (gvmm_pool_options)GVMM_POOL_OPTIONS_INIT;
    if (!given) return GVMM_OK;
    if (given->struct_size != sizeof *given)
        return gvmm__fail(GVMM_E_INVALID, "pool options: struct_size is %zu, not %zu", given->struct_size,
                          sizeof *given);
    *out = *given;
    return GVMM_OK;
}

static gvmm_result fit_out(gvmm_pool *pool, const gvmm_pool_options *o)
{
    placement *p = pool->resource->placement;
    gvmm_result r = gvmm__placement_memory(&pool->memory, p);
    if (r) return r;
    pool->account = gvmm__account_create();
    if (!pool->account) return GVMM_E_NO_HOST_MEMORY;
    uint64_t limit = o->limit ? o->limit : SIZE_MAX, most = limit < pool->memory ? limit : pool->memory;
    r = gvmm__worker_start();
    if (!r) r = gvmm__heap_start(&pool->heap, p, pool->account, SPACE * most, (size_t)limit);
    if (!r) {
        r = gvmm__reuse_create(&pool->reuse, device_of(pool), SIZE_MAX, o->streams_outlive, leave_cache);
        if (r) gvmm__heap_end(&pool->heap);
    }
    if (r) gvmm__account_release(pool->account);
    else gvmm__reuse_set_of_pool(pool->reuse);
    return r;
}

/* ---- all pools: what they have free is given back where memory is short ---- */

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static gvmm_pool *pools;

/* The device's next pool behind that one, which is held and so stays where it is; NULL: the first. Held; one that is about
 * to end is passed over. */
static gvmm_pool *next_pool(const gvmm_pool *p, int device)
{
    pthread_mutex_lock(&pools_lock);
    gvmm_pool *next = p ? p->next : pools;
    while (next && !(gvmm__placement_has(next->resource->placement, device) && ref_try_retain(&next->refs)))
        next = next->next;
    pthread_mutex_unlock(&pools_lock);
    return next;
}

static bool trim_pools(int device)
{
    bool any = false;
    for (gvmm_pool *p = next_pool(NULL, device), *next; p; p = next) {
        any |= gvmm_pool_trim(p, 0) != 0;
        next = next_pool(p, device);
        unhold(p);
    }
    return any;
}

static void enter_list(gvmm_pool *pool)
{
    gvmm__room_from(trim_pools);
    pthread_mutex_lock(&pools_lock);
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&pools_lock);
}

static void leave_list(gvmm_pool *pool)
{
    pthread_mutex_lock(&pools_lock);
    gvmm_pool **at = &pools;
    while (*at != pool) at = &(*at)->next;
    *at = pool->next;
    pthread_mutex_unlock(&pools_lock);
}

/* ---- making and releasing ---- */

gvmm_result gvmm_pool_create(gvmm_pool **out, gvmm_resource *resource, const gvmm_pool_options *options)
{
    if (!out || !resource) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "resource" : "out");
    if (gvmm__in_child()) return gvmm__fail_in_child();
    gvmm_pool_options o;
    gvmm_result r = check_options(&o, options);
    if (r) return r;
    if (resource->device.ordinal < 0)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "a pool needs a resource whose location is a device");
    gvmm_pool *pool = gvmm__alloc(sizeof *pool);
    if (!pool) return GVMM_E_NO_HOST_MEMORY;
    memset(pool, 0, sizeof *pool);
    ref_init(&pool->users);
    ref_init(&pool->refs);
    pool->resource = resource;
    gvmm__resource_hold(resource);
    pthread_mutex_init(&pool->lock, NULL);
    pool->orders = (orders){.heap = &pool->heap, .device = &resource->device, .streams_outlive = o.streams_outlive};
    r = fit_out(pool, &o);
    if (r) {
        pthread_mutex_destroy(&pool->lock);
        gvmm__resource_unhold(resource);
        gvmm__free(pool);
        return r;
    }
    enter_list(pool);
    *out = pool;
    return GVMM_OK;
}

gvmm_pool *gvmm_pool_retain(gvmm_pool *pool)
{
    if (pool) ref_retain(&pool->users);
    return pool;
}

static bool is_all_common(const gvmm_pool *pool)
{
    const heap *h = &pool->heap;
    size_t holes = (size_t)(h->holes[REGION_SMALL].bytes + h->holes[REGION_LARGE].bytes);
    size_t common = (size_t)(h->common.bins[REGION_SMALL].bytes + h->common.bins[REGION_LARGE].bytes);
    return holes + common == h->end - h->base;
}

static void delete_pool(gvmm_pool *pool)
{
    leave_list(pool);
    gvmm__reuse_free(pool->reuse);
    gvmm__orders_end(&pool->orders);
    gvmm__heap_end(&pool->heap);
    pthread_mutex_destroy(&pool->lock);
    account *a = pool->account;
    gvmm_resource *resource = pool->resource;
    gvmm__free(pool);
    gvmm__account_release(a);
    gvmm__resource_unhold(resource);
}

/* What is not known to be done with stays where it is: unmapping it would be worse. The caller's again. */
static void refuse(gvmm_pool *pool)
{
    gvmm_pool_stats now;
    gvmm_pool_get_stats(pool, &now);
    ref_init(&pool->users);
    if (now.blocks)
        gvmm__warn(GVMM_E_INVALID, "pool", pool->heap.base, "not released: %llu bytes are in use",
                   (unsigned long long)now.rounded_bytes);
    else
        gvmm__warn(GVMM_E_CAPTURING, "pool", pool->heap.base,
                   "not released: work of what was freed cannot be waited for");
}

static void unhold(gvmm_pool *pool)
{
    if (!ref_release(&pool->refs)) return;
    if (is_all_common(pool)) {
        delete_pool(pool);
    } else {
        ref_init(&pool->refs);
        refuse(pool);
    }
}

static void end_reuse(gvmm_pool *pool)
{
    pool->reuse_ended = true;
    gvmm__reuse_end(pool->reuse, &pool->ended);
    gvmm__count_calls(pool->ended.calls);
}

/* All that waits for streams is done here, by the last user: what a graph holds keeps the pool longer, and comes to its
 * end on the worker, which is not to wait, nor to touch a stream. */
void gvmm_pool_release(gvmm_pool *pool)
{
    if (!pool || gvmm__in_child() || !ref_release(&pool->users)) return;
    gvmm_pool_stats now;
    gvmm_pool_get_stats(pool, &now);
    if (now.blocks && !pool->reuse_ended) {
        refuse(pool);
        return;
    }
    if (!pool->reuse_ended) end_reuse(pool);
    gvmm__orders_wait(&pool->orders, &pool->lock);
    unhold(pool);
}

/* ---- malloc ---- */

typedef struct request {
    size_t asked, size;
    unsigned region;
    gvmm_stream stream; /* as recorded */
    uint64_t id;        /* its number; 0: not known, or it captures: then only what is done may be had, as a graph may
                         * be launched anywhere */
} request;

/* How far one goes: what is free in the heap; what is kept for its size; moving free memory about; waiting for what is
 * busy. */
typedef enum effort { EASY, SPARING, SAVING, WAITING, EFFORTS } effort;

/* What may be free, bytes. Sizes that never fit what is free would have memory moved at every other malloc for ever: where
 * it goes on for long, having more of it is the better bargain. */
static size_t slack(const gvmm_pool *pool)
{
    uint64_t peak = pool->rounded_peak, moved = pool->heap.moved;
    uint64_t earned = moved > PATIENCE * peak ? (moved - PATIENCE * peak) / EARNED : 0;
    if (earned > peak / MOST_EARNED) earned = peak / MOST_EARNED;
    return (size_t)(peak / SLACK + earned);
}

/* May so much new memory be made although some may lie free elsewhere? */
static bool is_within_slack(const gvmm_pool *pool, size_t missing)
{
    return pool->heap.physical + missing <= pool->rounded_peak + slack(pool) || pool->heap.physical == 0;
}

/* *out is NULL if it needs more effort. With the lock held. */
static gvmm_result find_block(pool_block **out, gvmm_pool *pool, const request *q, effort effort)
{
    heap *h = &pool->heap;
    arena *own = q->id ? gvmm__order_arena(&pool->orders, q->stream, q->id) : NULL;
    gvmm__orders_poll(&pool->orders);
    gvmm_result r = gvmm__heap_take(out, h, q->region, q->size, own);
    if (r || *out) return r;
    size_t missing;
    bool has_kept = note_peaks(pool, q->asked, q->size);
    r = gvmm__heap_missing(&missing, h, q->region, q->size, own);
    if (r || (effort == EASY && missing && has_kept)) return r;
    if (effort <= SPARING && !is_within_slack(pool, missing)) return r;
    return gvmm__heap_fill(out, h, q->region, q->size, own, effort > SPARING);
}

/* What no waiting helps against. */
static gvmm_result check_limit(gvmm_pool *pool, size_t size)
{
    gvmm__silent_lock(&pool->lock);
    size_t limit = pool->heap.limit, most = limit > pool->heap.physical ? limit : pool->heap.physical;
    gvmm__silent_unlock(&pool->lock);
    if (size <= most) return GVMM_OK;
    return gvmm__fail(GVMM_E_NO_DEVICE_MEMORY, "pool: %zu bytes are more than its limit of %zu", size, limit);
}

/* Wherever memory may be short. */
static void make_room(const placement *p)
{
    for (unsigned i = 0; i < gvmm__placement_devices(p); i++) gvmm__make_room(gvmm__placement_device(p, i), 0);
}

static gvmm_result allocate(pool_block **out, gvmm_pool *pool, request *q)
{
    gvmm_result r = check_limit(pool, q->size);
    for (effort e = EASY; !r && e < EFFORTS; e++) {
        if (e == SPARING) gvmm__reuse_trim(pool->reuse, 0);
        if (e == SAVING) gvmm__orders_linger(&pool->orders, &pool->lock);
        if (e == WAITING) {
            make_room(pool->resource->placement);
            gvmm__orders_wait(&pool->orders, &pool->lock);
        }
        gvmm__silent_lock(&pool->lock);
        r = find_block(out, pool, q, e);
        if (!r && *out) pool->searches++;
        gvmm__silent_unlock(&pool->lock);
        if (!r && *out) break;
        bool may_help = r == GVMM_E_NO_DEVICE_MEMORY || r == GVMM_E_NO_ADDRESS_SPACE;
        if (may_help && e != WAITING) r = GVMM_OK;
    }
    return r;
}

static gvmm_result refuse_size(const gvmm_pool *pool, size_t size)
{
    if (!size) return gvmm__fail(GVMM_E_INVALID, "size is 0");
    return gvmm__fail(GVMM_E_NO_DEVICE_MEMORY, "pool: %zu bytes are more than its devices have: %llu", size,
                      (unsigned long long)pool->memory);
}

/* What the heap has at hand, else NULL. */
static gvmm_result take_ready(pool_block **out, gvmm_pool *pool, const request *q)
{
    gvmm__silent_lock(&pool->lock);
    arena *own = q->id ? gvmm__order_arena(&pool->orders, q->stream, q->id) : NULL;
    gvmm_result r = gvmm__heap_take(out, &pool->heap, q->region, q->size, own);
    if (!r && *out) pool->searches++;
    gvmm__silent_unlock(&pool->lock);
    return r;
}

/* One that the cache does not have. */
static SELDOM gvmm_result search(pool_block **out, gvmm_pool *pool, size_t size, gvmm_stream stream, uint64_t id)
{
    size_t rounded = gvmm__block_round(size);
    request q = {size, rounded, gvmm__block_region(rounded), stream, id};
    gvmm_result r = take_ready(out, pool, &q);
    if (r) return r;
    if (!*out) {
        gvmm__retire_mark();
        saved_error before; /* memory that was found in the end is no failure */
        gvmm__error_save(&before);
        r = allocate(out, pool, &q);
        if (r) return r;
        gvmm__error_restore(&before);
    }
    (*out)->kept = (reusable){0};
    return GVMM_OK;
}

gvmm_result gvmm_pool_malloc(uint64_t *out, gvmm_pool *pool, size_t size, gvmm_stream stream)
{
    if (!out || !pool) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "pool" : "out");
    if (size - 1 >= pool->memory) return refuse_size(pool, size); /* 0 too */
    if (gvmm__in_child()) return gvmm__fail_in_child();
    uint64_t id;
    reusable *e = gvmm__reuse_take(pool->reuse, gvmm__block_round(size), stream, &id);
    pool_block *b = e ? block_of(e) : NULL;
    if (gvmm__stream_is_default(stream)) stream = GVMM_STREAM_LEGACY;
    if (!b) {
        gvmm_result r = search(&b, pool, size, stream, id);
        if (r) return r;
    }
    b->kept.stream = stream;
    b->kept.stream_id = id;
    b->asked = size;
    count(pool, size);
    atomic_store_explicit(&b->tag, gvmm__block_tag(b->address, true), memory_order_release);
    *out = b->address;
    return GVMM_OK;
}

/* ---- free ---- */

/* The number of a stream that is not the one of the malloc; 0: it captures, when the question would end that, or has
 * none. */
static uint64_t number_of(gvmm_stream stream)
{
    CUstreamCaptureStatus status;
    unsigned long long id;
    if (DRIVER_QUIET(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS) return 0;
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) return 0;
    return DRIVER_QUIET(cuStreamGetId, stream, &id) == CUDA_SUCCESS ? id : 0;
}

static bool keep(gvmm_pool *pool, pool_block *b, gvmm_stream stream)
{
    reusable *e = &b->kept;
    if (gvmm__stream_is_default(stream) || pool->orders.streams_outlive) e->stream_id = UINT64_MAX;
    else if (stream != e->stream || !e->stream_id) e->stream_id = number_of(stream);
    e->stream = stream;
    e->size = b->size;
    return gvmm__reuse_put(pool->reuse, e);
}

/* Its stream captures, or could not be marked. */
static SELDOM void give_up(gvmm_pool *pool, pool_block *b)
{
    const reusable e = b->kept;
    saved_error before;
    gvmm__error_save(&before);
    if (e.event) gvmm__event_put(device_of(pool), e.event_context, e.event, true);
    gvmm__silent_lock(&pool->lock);
    pool->given_up++;
    gvmm__silent_unlock(&pool->lock);
    retire(pool, b, e.stream, NULL, NULL);
    gvmm__error_restore(&before);
}

static gvmm_result refuse_address(const pool_block *b, uint64_t address, unsigned long long tag)
{
    bool was = b && tag == gvmm__block_tag(address, false);
    return gvmm__fail(GVMM_E_INVALID, "0x%llx %s", (unsigned long long)address,
                      was ? "has been freed already" : "is not the address of a block of this pool");
}

gvmm_result gvmm_pool_free(gvmm_pool *pool, uint64_t address, gvmm_stream stream)
{
    if (!pool) return gvmm__fail(GVMM_E_INVALID, "pool is NULL");
    if (!address || gvmm__in_child()) return GVMM_OK;
    pool_block *b = gvmm__block_at(&pool->heap, address);
    unsigned long long tag = gvmm__block_tag(address, true);
    if (!b || !atomic_compare_exchange_strong_explicit(&b->tag, &tag, gvmm__block_tag(address, false),
                                                       memory_order_acq_rel, memory_order_relaxed))
        return refuse_address(b, address, tag);
    count(pool, -(uint64_t)b->asked);
    if (!keep(pool, b, gvmm__stream_is_default(stream) ? GVMM_STREAM_LEGACY : stream)) give_up(pool, b);
    return GVMM_OK;
}

/* ---- the rest ---- */

size_t gvmm_pool_trim(gvmm_pool *pool, size_t keep)
{
    if (!pool || gvmm__in_child()) return 0;
    gvmm__reuse_trim(pool->reuse, 0);
    gvmm__silent_lock(&pool->lock);
    gvmm__orders_poll(&pool->orders);
    size_t gone = gvmm__heap_trim(&pool->heap, keep);
    if (gone) pool->heap.moved = 0; /* what it earned is no longer wanted */
    gvmm__silent_unlock(&pool->lock);
    return gone;
}

gvmm_result gvmm_pool_set_limit(gvmm_pool *pool, size_t limit)
{
    if (!pool) return gvmm__fail(GVMM_E_INVALID, "pool is NULL");
    if (gvmm__in_child()) return gvmm__fail_in_child();
    gvmm__silent_lock(&pool->lock);
    pool->heap.limit = limit ? limit : SIZE_MAX;
    gvmm__silent_unlock(&pool->lock);
    return GVMM_OK;
}

void gvmm_pool_get_stats(gvmm_pool *pool, gvmm_pool_stats *out)
{
    memset(out, 0, sizeof *out);
    if (!pool || gvmm__in_child()) return;
    gvmm__silent_lock(&pool->lock);
    note_peaks(pool, 0, 0);
    read_figures(pool, out);
    out->live_peak = pool->live_peak;
    gvmm__silent_unlock(&pool->lock);
}

void gvmm_pool_reset_peaks(gvmm_pool *pool)
{
    if (!pool || gvmm__in_child()) return;
    gvmm__silent_lock(&pool->lock);
    pool->live_peak = pool->rounded_peak = 0;
    pool->heap.physical_peak = pool->heap.physical;
    pool->heap.moved = 0;
    note_peaks(pool, 0, 0);
    gvmm__silent_unlock(&pool->lock);
}

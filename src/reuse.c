/* What was given up in stream order, kept to be taken again without calling the driver for memory.
 *
 * Each thread has a front for each cache that it uses: entries in bins by size, newest first, and in a list by age.
 * Only a look into other threads' fronts, or a limit that is reached, takes the cache's own lock. A front may keep as
 * many bytes as it has got of the limit, its quota; the quotas together are never more than the limit.
 *
 * What makes an entry safe to hand out:
 *
 *   to the same stream      order: what the stream is given next comes after all that it had. A handle may be that of a
 *                           new stream, so the stream's number must be the same too, or the caller has promised that
 *                           streams live on
 *   to another stream       that waits for an event behind the entry's last work
 *   to a capturing stream   nothing does: what is captured may run anywhere, at any time. Nothing is taken
 *   while its own captures  nothing either: the capture may use it at every launch. It is not kept */
#include <string.h>

#include "internal.h"

enum { BINS = 32, FEW = 8, MANY = 256 };

typedef struct front front;
struct front {
    ref refs;              /* the thread's, the cache's */
    _Atomic(reuse *) of;   /* NULL when the cache has ended */
    front *next_of_thread; /* the thread's own list */
    front *next;           /* guarded by the cache's lock, as is the next */
    bool orphan;           /* its thread has ended: another may have it */
    small_lock lock;       /* guards what follows */
    size_t bytes, quota;   /* kept here; allowed to be */
    uint64_t taken, put;   /* since the start */
    uint64_t calls;        /* of the driver, which gvmm__driver_calls does not know */
    reusable *hand;        /* the newest, in no list: what is made and released all the time costs no more than that */
    reusable *newest, *oldest;
    reusable *bins[BINS];
    char apart[64]; /* from the next front: two threads are not to share a line of cache */
};

struct reuse {
    ref refs; /* its maker's, and one for each call that drops */
    device *device;
    atomic_size_t limit; /* bytes; changed with the lock held */
    bool streams_outlive;
    bool of_pool; /* gives to the same stream only; what it keeps are not buffers */
    void (*drop)(reusable *);
    reuse *next;            /* of all caches, oldest first; guarded by all_lock */
    uint64_t serial;        /* in that list */
    pthread_mutex_t lock;   /* guards what follows. Taken before a front's */
    pthread_cond_t dropped; /* fewer calls are dropping */
    unsigned dropping;      /* calls that drop what they have taken out, with no lock held; the cache does not end */
    size_t granted;         /* the quotas together, bytes */
    front *fronts;
    bool ended;
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows. Taken before a cache's */
static reuse *all;
static uint64_t last_serial;
static pthread_key_t at_thread_end;
static bool has_key; /* a process has 1024 */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local front *mine;

/* Calls of this thread's that drop, the innermost first: a warning handler of theirs may call gvmm. */
typedef struct dropping {
    reuse *of;
    struct dropping *outer;
} dropping;
static _Thread_local dropping *dropping_here;

/* ---- entries in a front, its lock held ---- */

static reusable **bin_of(front *f, size_t size) { return &f->bins[(size * 0x9e3779b97f4a7c15u) >> 59]; }

static void put_in(front *f, reusable *e)
{
    reusable **bin = bin_of(f, e->size);
    e->next = *bin;
    e->before = NULL;
    if (e->next) e->next->before = e;
    *bin = e;
    e->older = f->newest;
    e->newer = NULL;
    *(e->older ? &e->older->newer : &f->oldest) = e;
    f->newest = e;
}

/* Then all that is there is in the lists. */
static void lay_down(front *f)
{
    if (f->hand) put_in(f, f->hand);
    f->hand = NULL;
}

static void take_out(front *f, reusable *e)
{
    *(e->before ? &e->before->next : bin_of(f, e->size)) = e->next;
    if (e->next) e->next->before = e->before;
    *(e->older ? &e->older->newer : &f->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &f->newest) = e->older;
}

static inline bool is_same(const reusable *e, size_t size, gvmm_stream stream, uint64_t id)
{
    return e->size == size && e->stream == stream && e->stream_id == id && id;
}

/* An entry of the same stream among the newest few of the size, else NULL. */
static reusable *find_same(front *f, size_t size, gvmm_stream stream, uint64_t id)
{
    reusable *e = *bin_of(f, size);
    for (int i = 0; e && i < FEW; e = e->next, i++)
        if (is_same(e, size, stream, id)) return e;
    return NULL;
}

/* Any entry of the size; of several the oldest, as far as it is worth looking, whose work is the likeliest to be
 * done. */
static reusable *find_any(front *f, size_t size)
{
    reusable *found = NULL, *e = *bin_of(f, size);
    for (int i = 0; e && i < MANY; e = e->next, i++)
        if (e->size == size) found = e;
    return found;
}

/* ---- a thread's fronts ---- */

static void drop_reference(front *f)
{
    if (!ref_release(&f->refs)) return;
    gvmm__free(f);
    gvmm__unhold_memory();
}

/* Leaves its fronts, with what is in them, to other threads. */
static void thread_ends(void *unused)
{
    (void)unused;
    if (gvmm__in_child()) return;
    pthread_mutex_lock(&all_lock); /* no cache ends meanwhile */
    while (mine) {
        front *f = mine;
        mine = f->next_of_thread;
        reuse *u = atomic_load(&f->of);
        if (u) {
            pthread_mutex_lock(&u->lock);
            f->orphan = true;
            pthread_mutex_unlock(&u->lock);
        }
        drop_reference(f);
    }
    pthread_mutex_unlock(&all_lock);
}

static front *new_front(reuse *u)
{
    saved_error before;
    gvmm__error_save(&before);
    front *f = gvmm__alloc(sizeof *f);
    gvmm__error_restore(&before); /* nothing is kept then, which is no failure of the caller's */
    if (!f) return NULL;
    memset(f, 0, sizeof *f);
    ref_init(&f->refs);
    atomic_init(&f->of, u);
    atomic_flag_clear(&f->lock);
    gvmm__hold_memory(); /* a thread may have it longer than there is a cache */
    f->next = u->fronts;
    u->fronts = f;
    return f;
}

/* One that a thread has left, or a new one. NULL if there is no memory for it. */
static front *get_front(reuse *u)
{
    pthread_mutex_lock(&u->lock);
    front *f = u->fronts;
    while (f && !f->orphan) f = f->next;
    if (!f && !u->ended) f = new_front(u);
    if (f) {
        f->orphan = false;
        ref_retain(&f->refs);
    }
    pthread_mutex_unlock(&u->lock);
    if (!f) return NULL;
    f->next_of_thread = mine;
    mine = f;
    if (has_key)
        pthread_setspecific(at_thread_end, f); /* so that thread_ends is called; if it cannot be, the front stays */
    return f;
}

/* Gives up those of this thread's fronts whose cache has ended. */
static void forget_ended_fronts(void)
{
    for (front **at = &mine; *at;) {
        front *f = *at;
        if (atomic_load(&f->of)) {
            at = &f->next_of_thread;
        } else {
            *at = f->next_of_thread;
            drop_reference(f);
        }
    }
}

static SELDOM front *find_front(reuse *u)
{
    forget_ended_fronts();
    for (front **at = &mine; *at; at = &(*at)->next_of_thread) {
        front *f = *at;
        if (atomic_load(&f->of) != u) continue;
        *at = f->next_of_thread;
        f->next_of_thread = mine;
        mine = f;
        return f;
    }
    return get_front(u);
}

/* The one used last comes first. */
static inline front *front_of(reuse *u)
{
    bool first = mine && atomic_load_explicit(&mine->of, memory_order_relaxed) == u;
    return first ? mine : find_front(u);
}

/* ---- what holds before and after ---- */

static SELDOM bool default_is_capturing(const reuse *u, gvmm_stream stream)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (DRIVER_QUIET(cuCtxPushCurrent, u->device->primary) != CUDA_SUCCESS) return true;
    CUresult status = DRIVER_QUIET(cuStreamIsCapturing, stream, &capture);
    gvmm__context_leave();
    return status != CUDA_SUCCESS || capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

static inline bool is_capturing(const reuse *u, gvmm_stream stream, unsigned *calls)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (gvmm__stream_is_default(stream)) return default_is_capturing(u, stream);
    CUresult status = DRIVER_COUNTED_IN(calls, cuStreamIsCapturing, stream, &capture);
    return status != CUDA_SUCCESS || capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A number that no other stream has or will have; 0: there is none to be had. The stream is not capturing: asking would
 * end that. */
static inline uint64_t number_of(const reuse *u, gvmm_stream stream, unsigned *calls)
{
    unsigned long long id;
    if (stream == GVMM_STREAM_LEGACY || !stream) return UINT64_MAX;
    if (gvmm__stream_is_default(stream)) return 0; /* a thread's own: entries have the legacy stream instead */
    if (u->streams_outlive) return UINT64_MAX;
    CUresult status = DRIVER_COUNTED_IN(calls, cuStreamGetId, stream, &id);
    return status == CUDA_SUCCESS && id != UINT64_MAX ? id : 0;
}

/* On the host, without a stream, there is no work to be waited for. */
static bool has_work(const reuse *u, gvmm_stream stream)
{
    return u->device->ordinal >= 0 || !gvmm__stream_is_default(stream);
}

static bool set_mark(reuse *u, reusable *e, unsigned *calls)
{
    unsigned made = 0;
    stream_mark m = gvmm__stream_mark(u->device, e->stream, &e->event, &e->event_context, &made);
    *calls += made;
    return m == MARK_SET;
}

/* Marks the end of the entry's work, unless its stream will be there to be asked. False if it cannot be kept. */
static inline bool mark_end(reuse *u, reusable *e, unsigned *calls)
{
    if (!has_work(u, e->stream)) return true;
    return u->streams_outlive ? !is_capturing(u, e->stream, calls) : set_mark(u, e, calls);
}

/* Makes `stream` wait for the entry's work. */
static bool wait_for_end(reuse *u, reusable *e, gvmm_stream stream)
{
    if (!has_work(u, e->stream)) return true;
    if (!has_work(u, stream)) return false; /* there the next to write is the host, which waits for nobody */
    unsigned calls = 0;
    bool marked = !u->streams_outlive || set_mark(u, e, &calls);
    gvmm__count_calls(calls);
    if (!marked) return false;
    bool of_context = gvmm__stream_is_default(stream);
    if (of_context && DRIVER_QUIET(cuCtxPushCurrent, u->device->primary) != CUDA_SUCCESS) return false;
    CUresult status = DRIVER_QUIET(cuStreamWaitEvent, stream, e->event, 0);
    if (of_context) gvmm__context_leave();
    return status == CUDA_SUCCESS;
}

/* ---- taking ---- */

/* Out of a front and out of what it may keep. The cache's lock and the front's are held. */
static reusable *take_with_quota(reuse *u, front *f, reusable *e)
{
    if (!e) return NULL;
    take_out(f, e);
    f->bytes -= e->size;
    f->quota -= e->size;
    u->granted -= e->size;
    return e;
}

/* From any front: one of the same stream if there is one. */
static reusable *take_anywhere(reuse *u, size_t size, gvmm_stream stream, uint64_t id)
{
    reusable *found = NULL;
    pthread_mutex_lock(&u->lock);
    for (int pass = 0; pass < (u->of_pool ? 1 : 2); pass++) {
        for (front *f = u->fronts; f && !found; f = f->next) {
            gvmm__lock(&f->lock);
            lay_down(f);
            found = take_with_quota(u, f, pass == 0 ? find_same(f, size, stream, id) : find_any(f, size));
            gvmm__unlock(&f->lock);
        }
    }
    pthread_mutex_unlock(&u->lock);
    return found;
}

static SELDOM reusable *take_slowly(reuse *u, front *own, size_t size, gvmm_stream stream, uint64_t id)
{
    if (u->of_pool && !id) return NULL;
    reusable *e = take_anywhere(u, size, stream, id);
    if (!e) return NULL;
    bool same = is_same(e, size, stream, id);
    if (!same && !wait_for_end(u, e, stream)) {
        u->drop(e);
        return NULL;
    }
    gvmm__lock(&own->lock);
    own->taken++;
    gvmm__unlock(&own->lock);
    return e;
}

static SELDOM reusable *nothing(unsigned calls)
{
    gvmm__count_calls(calls);
    return NULL;
}

reusable *gvmm__reuse_take(reuse *u, size_t size, gvmm_stream stream, uint64_t *stream_id)
{
    *stream_id = 0;
    if (!stream && u->device->ordinal >= 0) stream = GVMM_STREAM_LEGACY;
    unsigned calls = 0;
    if (has_work(u, stream) && is_capturing(u, stream, &calls)) return nothing(calls);
    uint64_t id = *stream_id = number_of(u, stream, &calls);
    front *f = front_of(u);
    if (!f) return nothing(calls);
    gvmm__lock(&f->lock);
    reusable *e = f->hand;
    if (e && is_same(e, size, stream, id)) {
        f->hand = NULL;
    } else {
        e = find_same(f, size, stream, id);
        if (e) take_out(f, e);
    }
    if (e) {
        f->bytes -= size;
        f->taken++;
    }
    f->calls += calls;
    gvmm__unlock(&f->lock);
    return e ? e : take_slowly(u, f, size, stream, id);
}

/* ---- keeping, dropping ---- */

static void drop_all(reuse *u, reusable *victims)
{
    saved_error before; /* what fails on the way out is no failure of the caller's */
    if (victims) gvmm__error_save(&before);
    for (reusable *e = victims, *next; e; e = next) {
        next = e->next;
        u->drop(e);
    }
    if (victims) gvmm__error_restore(&before);
}

/* What a front may keep and does not. The cache's lock is held, as below, and the front's. */
static void take_back_quota(reuse *u, front *f)
{
    u->granted -= f->quota - f->bytes;
    f->quota = f->bytes;
}

static void take_back_quotas(reuse *u)
{
    for (front *f = u->fronts; f; f = f->next) {
        gvmm__lock(&f->lock);
        take_back_quota(u, f);
        gvmm__unlock(&f->lock);
    }
}

/* NULL: the front has nothing, and may keep nothing; threads may have taken what it had. */
static reusable *take_oldest(reuse *u, front *f)
{
    gvmm__lock(&f->lock);
    lay_down(f);
    take_back_quota(u, f);
    reusable *e = take_with_quota(u, f, f->oldest);
    gvmm__unlock(&f->lock);
    return e;
}

/* Where the next one goes. */
static reusable **empty_front(reuse *u, front *f, size_t most, reusable **end)
{
    for (reusable *e; u->granted > most && (e = take_oldest(u, f)); end = &e->next) {
        *end = e;
        e->next = NULL;
    }
    return end;
}

/* Brings what is granted down to `most`, at the cost of `first`'s oldest entries, then of others'. What has to go is
 * listed in `victims`, the oldest of a front first: their work is done in that order. */
static void bring_down(reuse *u, size_t most, front *first, reusable **victims)
{
    if (u->granted > most) take_back_quotas(u);
    if (first) victims = empty_front(u, first, most, victims);
    for (front *f = u->fronts; f; f = f->next) victims = empty_front(u, f, most, victims);
}

static void keep(front *f, reusable *e)
{
    lay_down(f);
    f->hand = e;
    f->bytes += e->size;
    f->put++;
}

/* With more of the limit than the front has. False if the cache has ended, or the limit has been lowered. */
static SELDOM bool put_slowly(reuse *u, front *f, reusable *e)
{
    reusable *victims = NULL;
    pthread_mutex_lock(&u->lock);
    size_t limit = atomic_load(&u->limit);
    bool can = !u->ended && e->size <= limit;
    if (can) {
        bring_down(u, limit - e->size, f, &victims);
        u->granted += e->size;
        gvmm__lock(&f->lock);
        f->quota += e->size;
        keep(f, e);
        gvmm__unlock(&f->lock);
    }
    pthread_mutex_unlock(&u->lock);
    drop_all(u, victims);
    return can;
}

bool gvmm__reuse_put(reuse *u, reusable *e)
{
    if (e->size > atomic_load_explicit(&u->limit, memory_order_relaxed)) return false;
    unsigned calls = 0;
    front *f = front_of(u);
    if (!f) return false;
    bool marked = mark_end(u, e, &calls);
    gvmm__lock(&f->lock);
    bool fits = marked && f->quota - f->bytes >= e->size;
    if (fits) keep(f, e);
    f->calls += calls;
    gvmm__unlock(&f->lock);
    return fits || (marked && put_slowly(u, f, e));
}

/* With the cache's lock held. */
static void begin_dropping(dropping *d, reuse *u)
{
    *d = (dropping){u, dropping_here};
    dropping_here = d;
    ref_retain(&u->refs);
    u->dropping++;
}

static void end_dropping(const dropping *d)
{
    reuse *u = d->of;
    dropping_here = d->outer;
    pthread_mutex_lock(&u->lock);
    u->dropping--;
    pthread_cond_broadcast(&u->dropped);
    pthread_mutex_unlock(&u->lock);
    gvmm__reuse_free(u);
}

/* Waits for what other threads drop. The cache's lock is held. */
static void wait_for_dropping(reuse *u)
{
    unsigned own = 0;
    for (const dropping *d = dropping_here; d; d = d->outer) own += d->of == u;
    while (u->dropping > own) pthread_cond_wait(&u->dropped, &u->lock);
}

size_t gvmm__reuse_trim(reuse *u, size_t keep)
{
    reusable *victims = NULL;
    size_t bytes = 0;
    dropping d;
    pthread_mutex_lock(&u->lock);
    begin_dropping(&d, u);
    bring_down(u, keep, NULL, &victims);
    pthread_mutex_unlock(&u->lock);
    for (const reusable *e = victims; e; e = e->next) bytes += e->size;
    drop_all(u, victims);
    end_dropping(&d);
    return bytes;
}

/* The cache that was made next after that one, held against its end: this counts as dropping. */
static reuse *next_cache(dropping *d, uint64_t serial)
{
    pthread_mutex_lock(&all_lock);
    reuse *u = all;
    while (u && u->serial <= serial) u = u->next;
    if (u) {
        pthread_mutex_lock(&u->lock);
        begin_dropping(d, u);
        pthread_mutex_unlock(&u->lock);
    }
    pthread_mutex_unlock(&all_lock);
    return u;
}

void gvmm__reuse_set_limit(reuse *u, size_t limit)
{
    pthread_mutex_lock(&u->lock);
    atomic_store(&u->limit, limit);
    pthread_mutex_unlock(&u->lock);
    gvmm__reuse_trim(u, limit);
}

bool gvmm__reuse_trim_all(void)
{
    bool any = false;
    uint64_t serial = 0;
    dropping d;
    for (reuse *u = next_cache(&d, 0); u; u = next_cache(&d, serial)) {
        serial = u->serial;
        any |= gvmm__reuse_trim(u, 0) != 0;
        end_dropping(&d);
    }
    return any;
}

/* ---- beginning and end ---- */

static void start(void) { has_key = pthread_key_create(&at_thread_end, thread_ends) == 0; }

gvmm_result gvmm__reuse_create(reuse **out, device *d, size_t limit, bool streams_outlive, void (*drop)(reusable *))
{
    reuse *u = gvmm__alloc(sizeof *u);
    if (!u) return GVMM_E_NO_HOST_MEMORY;
    pthread_once(&once, start);
    *u = (reuse){.refs = {1}, .device = d, .limit = limit, .streams_outlive = streams_outlive, .drop = drop};
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->dropped, NULL);
    pthread_mutex_lock(&all_lock);
    reuse **at = &all;
    while (*at) at = &(*at)->next;
    *at = u;
    u->serial = ++last_serial;
    pthread_mutex_unlock(&all_lock);
    *out = u;
    return GVMM_OK;
}

/* Adds the front's figures to `out`, with its lock held. */
static void add_figures(reuse_figures *out, const front *f)
{
    out->taken += f->taken;
    out->put += f->put;
    out->calls += f->calls;
    out->kept_bytes += f->bytes;
}

static void read_one(reuse_figures *out, reuse *u)
{
    pthread_mutex_lock(&u->lock);
    for (front *f = u->fronts; f; f = f->next) {
        gvmm__lock(&f->lock);
        add_figures(out, f);
        gvmm__unlock(&f->lock);
    }
    pthread_mutex_unlock(&u->lock);
}

void gvmm__reuse_read(reuse_figures *out, reuse *of)
{
    *out = (reuse_figures){0};
    if (of) {
        read_one(out, of);
        return;
    }
    pthread_mutex_lock(&all_lock);
    for (reuse *u = all; u; u = u->next) {
        reuse_figures one = {0};
        read_one(u->of_pool ? &one : out, u);
        out->calls += one.calls;
    }
    pthread_mutex_unlock(&all_lock);
}

void gvmm__reuse_set_of_pool(reuse *u) { u->of_pool = true; }

/* Takes the cache away from its fronts, and what they have. Both locks are held. */
static void empty_fronts(reuse *u, reuse_figures *last, reusable **victims)
{
    bring_down(u, 0, NULL, victims);
    while (u->fronts) {
        front *f = u->fronts;
        u->fronts = f->next;
        gvmm__lock(&f->lock); /* a thread that puts something sees that it may keep nothing */
        add_figures(last, f);
        gvmm__unlock(&f->lock);
        atomic_store(&f->of, NULL);
        drop_reference(f);
    }
}

void gvmm__reuse_end(reuse *u, reuse_figures *last)
{
    reusable *victims = NULL;
    *last = (reuse_figures){0};
    pthread_mutex_lock(&all_lock);
    reuse **at = &all;
    while (*at && *at != u) at = &(*at)->next;
    if (!*at) { /* it has ended before */
        pthread_mutex_unlock(&all_lock);
        return;
    }
    *at = u->next;
    pthread_mutex_lock(&u->lock);
    u->ended = true;
    empty_fronts(u, last, &victims);
    pthread_mutex_unlock(&all_lock);
    wait_for_dropping(u);
    pthread_mutex_unlock(&u->lock);
    drop_all(u, victims);
    forget_ended_fronts();
}

void gvmm__reuse_free(reuse *u)
{
    if (!u || !ref_release(&u->refs)) return;
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->dropped);
    gvmm__free(u);
}

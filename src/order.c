/* Free blocks by the stream that may have them at once.
 *
 * What a stream gave up, that stream may have again without waiting, as what it does next comes after what it did
 * before. Everybody else may have it when that work is done. So each stream has an arena of its own, and what is done
 * moves to the common one, which is all that can be unmapped. Blocks come into an arena with a number and an event; a block
 * is done when all events up to its number are reached, so that joining two blocks keeps but the larger number.
 *
 * If streams outlive the pool no event comes with a block. One is recorded when somebody asks, for all that came before. */
#include <time.h>

#include "internal.h"

enum { LINGER = 50000 }; /* nanoseconds: about what it takes to make and map a piece of memory */

typedef struct mark {
    struct mark *next;
    uint64_t number; /* all blocks up to this one */
    CUevent event;
    CUcontext context;
    unsigned waiting; /* threads in cuEventSynchronize */
} mark;

struct order {
    arena arena;
    gvmm_stream stream; /* as recorded */
    uint64_t id;
    uint64_t entered, marked; /* numbers: of the last block, and up to which there are events */
    mark *first, **last;
};

static bool is_empty(const order *o) { return !o->first && !o->arena.bins[0].bytes && !o->arena.bins[1].bytes; }

/* ---- streams ---- */

static order *find(const orders *o, gvmm_stream stream, uint64_t id)
{
    for (unsigned i = 0; i < o->count; i++)
        if (o->list[i]->stream == stream && o->list[i]->id == id) return o->list[i];
    return NULL;
}

arena *gvmm__order_arena(const orders *o, gvmm_stream stream, uint64_t id)
{
    order *found = find(o, stream, id);
    return found ? &found->arena : NULL;
}

/* A new one, or one of a stream that has nothing here any more. NULL: there are too many. */
static order *make(orders *o, gvmm_stream stream, uint64_t id)
{
    order *made = NULL;
    if (o->count < sizeof o->list / sizeof o->list[0]) {
        made = gvmm__alloc(sizeof *made);
        if (!made) return NULL;
        o->list[o->count++] = made;
    }
    for (unsigned i = 0; !made && i < o->count; i++)
        if (is_empty(o->list[i])) made = o->list[i];
    if (!made) return NULL;
    *made = (order){.stream = stream, .id = id};
    made->last = &made->first;
    return made;
}

/* ---- marks ---- */

static void add(order *to, mark *m, CUevent event, CUcontext context)
{
    *m = (mark){NULL, to->entered, event, context, 0};
    *to->last = m;
    to->last = &m->next;
    to->marked = to->entered;
}

bool gvmm__order_enter(orders *o, pool_block *b, gvmm_stream stream, uint64_t id, CUevent event, CUcontext context)
{
    order *to = find(o, stream, id);
    if (!to) to = make(o, stream, id);
    mark *m = to && event ? gvmm__alloc(sizeof *m) : NULL;
    if (!to || (event && !m)) return false;
    to->entered = ++o->entered; /* never used again, also where another stream gets this one's place */
    if (event) add(to, m, event, context);
    gvmm__heap_put(o->heap, b, &to->arena, to->entered);
    return true;
}

/* Events for what came without one. If none can be had, the blocks stay the stream's. */
static void mark_now(orders *o, order *to)
{
    mark *m = gvmm__alloc(sizeof *m);
    if (!m) return;
    CUevent event = NULL;
    CUcontext context = NULL;
    unsigned calls = 0;
    if (gvmm__stream_mark(o->device, to->stream, &event, &context, &calls) == MARK_SET) add(to, m, event, context);
    else gvmm__free(m);
    gvmm__count_calls(calls);
}

static void take_first(orders *o, order *from)
{
    mark *m = from->first;
    from->first = m->next;
    if (!from->first) from->last = &from->first;
    gvmm__event_put(o->device, m->context, m->event, true);
    gvmm__free(m);
}

/* In relaxed mode. */
static void poll_order(orders *o, order *of)
{
    uint64_t done = 0;
    if (of->marked < of->entered) mark_now(o, of);
    while (of->first && !of->first->waiting && DRIVER_QUIET(cuEventQuery, of->first->event) != CUDA_ERROR_NOT_READY) {
        done = of->first->number;
        take_first(o, of);
    }
    if (done && !is_empty(of)) gvmm__heap_done(o->heap, &of->arena, done);
}

void gvmm__orders_poll(orders *o)
{
    CUstreamCaptureMode old = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &old) != CUDA_SUCCESS) return;
    saved_error before; /* no memory for a mark is no failure of the caller's */
    gvmm__error_save(&before);
    for (unsigned i = 0; i < o->count; i++) poll_order(o, o->list[i]);
    gvmm__error_restore(&before);
    gvmm__relaxed_leave(old);
}

static bool has_marks(const orders *o)
{
    for (unsigned i = 0; i < o->count; i++)
        if (o->list[i]->first) return true;
    return false;
}

static long nanoseconds_since(const struct timespec *start)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (t.tv_sec - start->tv_sec) * 1000000000 + (t.tv_nsec - start->tv_nsec);
}

void gvmm__orders_linger(orders *o, pthread_mutex_t *lock)
{
    struct timespec start;
    bool busy = true;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (busy && nanoseconds_since(&start) < LINGER) {
        gvmm__silent_lock(lock);
        gvmm__orders_poll(o);
        busy = has_marks(o);
        gvmm__silent_unlock(lock);
    }
}

/* What an order has to be waited for, at some moment. */
typedef struct waiting {
    mark *at;      /* stays until it is let go; NULL: none is left */
    uint64_t last; /* number of the last mark */
    /* Where no event could be had, the number up to which only waiting for the stream helps; else 0. */
    uint64_t unmarked;
    gvmm_stream stream;
} waiting;

static void hold_first(waiting *out, const orders *o, unsigned i, pthread_mutex_t *lock)
{
    *out = (waiting){0};
    gvmm__silent_lock(lock);
    order *of = i < o->count ? o->list[i] : NULL;
    if (of) {
        out->at = of->first;
        out->last = of->marked;
        out->unmarked = of->marked < of->entered ? of->entered : 0;
        out->stream = of->stream;
    }
    if (out->at) out->at->waiting++;
    gvmm__silent_unlock(lock);
}

/* Those behind a mark that is held are there too. */
static void hold_next(waiting *w, pthread_mutex_t *lock)
{
    gvmm__silent_lock(lock);
    w->at->waiting--;
    w->at = w->at->number < w->last ? w->at->next : NULL;
    if (w->at) w->at->waiting++;
    gvmm__silent_unlock(lock);
}

/* Each mark, as threads' blocks do not come in the order of their events. The place may be another stream's in the end. */
static void wait_for(orders *o, unsigned i, pthread_mutex_t *lock)
{
    waiting w;
    hold_first(&w, o, i, lock);
    for (; w.at; hold_next(&w, lock))
        (void)DRIVER_QUIET(cuEventSynchronize, w.at->event); /* a failure: the poll will see what it is */
    if (!w.unmarked || gvmm__stream_wait_or_fail(w.stream, o->device) != GVMM_OK) return;
    gvmm__silent_lock(lock);
    gvmm__heap_done(o->heap, &o->list[i]->arena, w.unmarked);
    gvmm__silent_unlock(lock);
}

void gvmm__orders_wait(orders *o, pthread_mutex_t *lock)
{
    CUstreamCaptureMode old = CU_STREAM_CAPTURE_MODE_RELAXED;
    saved_error before; /* what cannot be waited for stays as it is */
    gvmm__error_save(&before);
    gvmm__silent_lock(lock);
    gvmm__orders_poll(o); /* which marks what is not */
    gvmm__silent_unlock(lock);
    if (DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &old) == CUDA_SUCCESS) {
        for (unsigned i = 0; i < sizeof o->list / sizeof o->list[0]; i++) wait_for(o, i, lock);
        gvmm__relaxed_leave(old);
    }
    gvmm__silent_lock(lock);
    gvmm__orders_poll(o);
    gvmm__silent_unlock(lock);
    gvmm__error_restore(&before);
}

void gvmm__orders_end(orders *o)
{
    for (unsigned i = 0; i < o->count; i++) {
        while (o->list[i]->first) take_first(o, o->list[i]);
        gvmm__free(o->list[i]);
    }
}

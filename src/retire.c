/* Deferred release: ranges that are given back when the work before them is done, without anybody waiting for it.
 *
 * A range comes with the stream whose work may still use it. An event of ours is recorded there, and the worker gives
 * the range back when the event is reached; after the record the stream may be destroyed. Four cases cannot be marked
 * by an event now:
 *
 *   the stream is capturing         what it captures may use the memory at every launch: the graph under capture holds
 *                                   the range, and when the graph is gone the stream's earlier work is still to be
 *                                   waited for (so here it must live on)
 *   the default stream, while a     every call on it but the question would end that capture
 *   blocking stream captures
 *   in a host function no call is   as before
 *   allowed
 *   no event can be had             wait here after all
 *
 * The first three are marked later, but not by the worker: a graph, also the one under capture, is for one thread at a
 * time, and the worker's records crashed the driver where other threads captured a lot (docs/capture.md). So the thread
 * that released them does it, at its next call that makes memory, retires some, or drains.
 *
 * Entries of a stream are reached in order, so they queue up in lanes, by their stream, and of each stream only the
 * first is asked about. What comes out of a cache has the event that it had there, and so lanes of its own. */
#include "internal.h"

enum { LANES = 2 * 64, MOST_BLIND = 100 };

typedef struct lane {
    retirement *first, **last;
    bool shared; /* by streams, since it was empty */
} lane;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static lane lanes[LANES];
static uint64_t marked;               /* entries in lanes */
static uint64_t entered;              /* the number of the last one, since the start; in each lane they grow */
static uint64_t in_hand = UINT64_MAX; /* the least of those that the worker has taken out and not counted yet */
static unsigned blind;                /* looks in a row for which the worker could not be put into relaxed mode */
static retirement *unmarked;          /* those that wait to be marked, in no order */
static atomic_ullong unmarked_count;  /* those, and those that are just being marked; changed with the lock held */
static atomic_ullong returned;        /* entries that have gone, since the start; likewise */
static unsigned marking[2], turn;     /* calls that mark what they have taken out: those of this turn, and older ones */
static pthread_cond_t marking_over = PTHREAD_COND_INITIALIZER; /* one of these */
static _Thread_local unsigned marks_here; /* such calls of this thread, whose handler may call gvmm */

/* No other thread has had or will have it: one that has ended left its streams to others. */
static uint64_t thread_number(void)
{
    static atomic_ullong last;
    static _Thread_local uint64_t number;
    if (!number) number = atomic_fetch_add(&last, 1) + 1;
    return number;
}

static lane *lane_of(const retirement *r, bool was_kept)
{
    uint64_t key = ((uint64_t)(uintptr_t)r->stream ^ (uint64_t)(uintptr_t)r->device->primary) * 0x9e3779b97f4a7c15u;
    return &lanes[2 * (key >> 58) + was_kept]; /* the top 6 bits */
}

static bool is_of_stream_of(const retirement *r, const retirement *other)
{
    return r->stream == other->stream && r->device->primary == other->device->primary;
}

/* A host function, say: every call is refused, that which gives back too. */
static bool is_forbidden_here(void)
{
    CUcontext current;
    return DRIVER_QUIET(cuCtxGetCurrent, &current) == CUDA_ERROR_NOT_PERMITTED;
}

/* Where no event can be had only waiting is left, but not if that would end a capture: the memory would go without the
 * wait. It is asked again later, by another thread where this one may ask nothing. */
static stream_mark without_event(const retirement *r)
{
    if (is_forbidden_here()) return MARK_LATER;
    if (!gvmm__stream_must_not_wait(r->stream, r->device)) return MARK_FAILED;
    return gvmm__stream_is_default(r->stream) ? MARK_LATER : MARK_CAPTURING;
}

static stream_mark try_to_mark(retirement *r)
{
    CUcontext context = NULL;
    unsigned calls = 0;
    stream_mark m = gvmm__stream_mark(r->device, r->stream, &r->event, &context, &calls);
    gvmm__count_calls(calls);
    if (m == MARK_SET) r->event_context = context;
    return m == MARK_FAILED ? without_event(r) : m;
}

/* ---- giving back ---- */

static void give_back(retirement *r)
{
    if (r->event) gvmm__event_put(r->device, r->event_context, r->event, true);
    gvmm__range_release(r->range);
    r->done(r);
}

static uint64_t address_of(const retirement *r) { return r->range ? gvmm__range_base(r->range) : 0; }

static void wait_for_event(const retirement *r)
{
    CUstreamCaptureMode old;
    saved_error before; /* what goes wrong here is a warning */
    gvmm__error_save(&before);
    gvmm_result failed = gvmm__relaxed_enter(&old);
    if (!failed) {
        failed = DRIVER(cuEventSynchronize, r->event);
        gvmm__relaxed_leave(old);
    }
    if (failed) gvmm__warn_last("released without waiting: buffer", address_of(r));
    gvmm__error_restore(&before);
}

/* For its event, if it has one: the stream may be gone. */
static void wait_here(const retirement *r)
{
    if (r->event) wait_for_event(r);
    else gvmm__stream_wait(r->stream, r->device, address_of(r));
}

static void wait_and_give_back(retirement *r)
{
    wait_here(r);
    give_back(r);
}

static void enqueue(retirement *r, bool was_kept)
{
    pthread_mutex_lock(&lock);
    lane *l = lane_of(r, was_kept);
    if (!l->first) *l = (lane){.last = &l->first};
    else if (!is_of_stream_of(r, l->first)) l->shared = true;
    r->next = NULL;
    r->number = ++entered;
    *l->last = r;
    l->last = &r->next;
    marked++;
    pthread_mutex_unlock(&lock);
    gvmm__worker_wake();
}

/* ---- to be marked later ---- */

static void remember(retirement *r)
{
    pthread_mutex_lock(&lock);
    r->next = unmarked;
    unmarked = r;
    atomic_fetch_add(&unmarked_count, 1);
    pthread_mutex_unlock(&lock);
}

/* False if only waiting is left. */
static bool mark_or_remember(retirement *r, stream_mark m, bool was_kept)
{
    if (m == MARK_FAILED) return false;
    if (m == MARK_SET) enqueue(r, was_kept);
    else remember(r);
    return true;
}

/* Those of the calling thread, or of all. They count as unmarked until they count as something else. */
static retirement *take_unmarked(bool all)
{
    retirement *list = NULL;
    uint64_t own = thread_number();
    pthread_mutex_lock(&lock);
    for (retirement **at = &unmarked, *r; (r = *at);) {
        if (all || r->thread == own) {
            *at = r->next;
            r->next = list;
            list = r;
        } else {
            at = &r->next;
        }
    }
    pthread_mutex_unlock(&lock);
    return list;
}

/* False if that has to wait. */
static bool mark_now(retirement *r)
{
    stream_mark m = try_to_mark(r);
    if (m != MARK_SET && m != MARK_FAILED) return false;
    if (m == MARK_SET) enqueue(r, false);
    else wait_and_give_back(r);
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&unmarked_count, 1);
    if (m == MARK_FAILED) atomic_fetch_add(&returned, 1);
    pthread_mutex_unlock(&lock);
    return true;
}

static unsigned begin_marking(void)
{
    pthread_mutex_lock(&lock);
    unsigned of = turn;
    marking[of]++;
    pthread_mutex_unlock(&lock);
    marks_here++;
    return of;
}

static void end_marking(unsigned of)
{
    marks_here--;
    pthread_mutex_lock(&lock);
    marking[of]--;
    pthread_cond_broadcast(&marking_over);
    pthread_mutex_unlock(&lock);
}

/* Waits until what threads are marking just now is marked, and not for those that begin meanwhile. Not where it could be
 * for itself, or for one that waits for this one. */
static void wait_for_marking(void)
{
    if (marks_here) return;
    pthread_mutex_lock(&lock);
    unsigned before = turn;
    turn = !turn;
    while (marking[before]) pthread_cond_wait(&marking_over, &lock);
    pthread_mutex_unlock(&lock);
}

/* Of a stream that has just been asked the others need not be: thousands may wait for one capture, and all are met at each
 * call. */
static void mark_list(retirement *r)
{
    retirement *left = NULL, **end = &left, *stuck = NULL;
    for (retirement *next; r; r = next) {
        next = r->next;
        if (!(stuck && is_of_stream_of(r, stuck)) && mark_now(r)) continue;
        stuck = *end = r;
        end = &r->next;
    }
    pthread_mutex_lock(&lock);
    *end = unmarked;
    unmarked = left;
    pthread_mutex_unlock(&lock);
}

/* Relaxed mode, unless the driver has shut down (*over): there are no captures to harm then, and who drains is not to wait for
 * ever. False: neither, so that nothing can be asked now. */
static bool may_ask(CUstreamCaptureMode *old, bool *over)
{
    *old = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult status = DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, old);
    *over = status == CUDA_ERROR_DEINITIALIZED;
    return status == CUDA_SUCCESS || *over;
}

static void mark_unmarked(bool all)
{
    CUstreamCaptureMode old;
    bool over;
    if (atomic_load_explicit(&unmarked_count, memory_order_relaxed) == 0 || !may_ask(&old, &over)) return;
    saved_error before; /* what goes wrong here is no failure of the caller's */
    gvmm__error_save(&before);
    unsigned of = begin_marking();
    mark_list(take_unmarked(all));
    end_marking(of);
    gvmm__error_restore(&before);
    if (!over) gvmm__relaxed_leave(old);
}

void gvmm__retire_mark(void) { mark_unmarked(false); }

/* ---- held by the graph under capture ---- */

/* On the worker: the graph is gone, the stream's earlier work is left to wait for. */
static void graph_let_go(job *self) { remember((retirement *)((char *)self - offsetof(retirement, job))); }

/* Likewise in graph.c: nothing but this is allowed. */
static void graph_is_gone(void *data) { gvmm__work(&((retirement *)data)->job); }

static bool hold_by_capture(retirement *r)
{
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph = NULL;
    CUuserObject object;
    if (DRIVER_QUIET(cuStreamGetCaptureInfo, r->stream, &status, &id, &graph, NULL, NULL) != CUDA_SUCCESS || !graph)
        return false;
    r->job = (job){.run = graph_let_go, .gives_back = true};
    if (DRIVER_QUIET(cuUserObjectCreate, &object, r, graph_is_gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) !=
        CUDA_SUCCESS)
        return false;
    if (DRIVER_QUIET(cuGraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) != CUDA_SUCCESS)
        DRIVER_UNDO("user object", (uintptr_t)object, cuUserObjectRelease, object, 1); /* which lets it go at once */
    return true;
}

/* ---- the queue ---- */

/* An error: the work will never be done, or is. */
static bool is_done(const retirement *r) { return DRIVER_QUIET(cuEventQuery, r->event) != CUDA_ERROR_NOT_READY; }

/* The first entry of a lane, or the one behind `r`; NULL also where all that follow wait for `stuck`, so that thousands
 * in flight cost nothing at every look. The worker alone takes entries out, so what it has seen stays. */
static retirement *next_in(const lane *l, const retirement *r, const retirement *stuck)
{
    pthread_mutex_lock(&lock);
    bool rest_is_behind = stuck && !l->shared;
    retirement *next = rest_is_behind ? NULL : r ? r->next : l->first;
    pthread_mutex_unlock(&lock);
    return next;
}

static void take_out(lane *l, retirement *before, retirement *r)
{
    pthread_mutex_lock(&lock);
    *(before ? &before->next : &l->first) = r->next;
    if (!r->next) l->last = before ? &before->next : &l->first;
    if (r->number < in_hand) in_hand = r->number;
    pthread_mutex_unlock(&lock);
}

/* Gives back what is done. Two streams can share a lane: behind an entry that is not done, those of the same stream are
 * not done either; others may be. */
static uint64_t clear_lane(lane *l)
{
    uint64_t gone = 0;
    retirement *stuck = NULL, *before = NULL, *r = next_in(l, NULL, NULL);
    while (r) {
        bool is_behind = stuck && is_of_stream_of(r, stuck);
        if (!is_behind && is_done(r)) {
            take_out(l, before, r);
            give_back(r);
            gone++;
        } else {
            if (!stuck) stuck = r;
            before = r;
        }
        r = next_in(l, before, stuck);
    }
    return gone;
}

static bool is_empty(void)
{
    pthread_mutex_lock(&lock);
    bool empty = marked == 0;
    pthread_mutex_unlock(&lock);
    return empty;
}

/* Counts what has gone. False if nothing could be asked. */
static bool clear_lanes(uint64_t *gone)
{
    CUstreamCaptureMode old;
    bool over;
    if (!may_ask(&old, &over)) return false;
    for (size_t i = 0; i < LANES; i++) *gone += clear_lane(&lanes[i]);
    if (!over) gvmm__relaxed_leave(old);
    return true;
}

/* On the worker. The last thing it does is to count what has gone, so that nobody waits for a driver call that is still
 * to come; nor is the driver replaced before that, though what goes may be the last that holds it. */
static worker_need poll_lanes(void)
{
    if (is_empty()) return WORKER_IDLE;
    gvmm__hold();
    uint64_t gone = 0;
    bool could_ask = clear_lanes(&gone);
    gvmm__unhold();
    pthread_mutex_lock(&lock);
    blind = could_ask ? 0 : blind + (blind < MOST_BLIND);
    marked -= gone;
    in_hand = UINT64_MAX;
    atomic_fetch_add(&returned, gone);
    pthread_mutex_unlock(&lock);
    return is_empty() ? WORKER_IDLE : gone ? WORKER_AGAIN : WORKER_SOON;
}

uint64_t gvmm__retire_returned(void) { return atomic_load(&returned) + gvmm__work_given_back(); }

uint64_t gvmm__retire_waiting(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = marked + atomic_load(&unmarked_count);
    pthread_mutex_unlock(&lock);
    return n;
}

/* What a capture was made to hold although no thread could be had for it needs one now. */
static bool has_worker(void)
{
    saved_error before;
    gvmm__error_save(&before);
    bool has = gvmm__worker_start() == GVMM_OK;
    gvmm__error_restore(&before);
    return has;
}

static uint64_t last_number(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = entered;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Has one that came with that number, or before, not gone yet, and is there a hope that it goes? */
static bool waits_up_to(uint64_t number)
{
    pthread_mutex_lock(&lock);
    bool any = in_hand <= number;
    for (size_t i = 0; i < LANES && !any; i++) any = lanes[i].first && lanes[i].first->number <= number;
    any &= blind < MOST_BLIND;
    pthread_mutex_unlock(&lock);
    return any;
}

static void wait_for_lanes(void)
{
    uint64_t until = last_number(), seen;
    while (seen = gvmm__worker_progress(), waits_up_to(until)) gvmm__worker_wait_past(seen);
}

/* Waits for what there is now: jobs of the worker's, and what waits for an event. Threads that go on to release could keep it
 * for ever if it waited until there is nothing. What waits for the end of a capture is not waited for: that may be the
 * caller's own. Nor is anything if there is no thread that could do it, or the driver answers it nothing any more. */
static void drain(bool only_released, bool of_all_threads)
{
    if (gvmm__on_worker() || gvmm__in_child()) return;
    bool any = gvmm__retire_waiting() || (only_released ? gvmm__work_gives_back() : gvmm__work_waiting());
    if (!any || !has_worker()) return;
    gvmm__work_wait(only_released);         /* they may leave something to be marked */
    if (of_all_threads) wait_for_marking(); /* what another thread has taken out for that it may put back */
    mark_unmarked(of_all_threads);
    wait_for_lanes();
    gvmm__work_wait(only_released); /* what has gone may have left something to do */
}

void gvmm_drain(void) { drain(false, true); }
void gvmm__drain(void) { drain(false, false); }
void gvmm__drain_released(void) { drain(true, false); }

static void tell_worker(void) { gvmm__worker_poll(poll_lanes); }

static bool start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, tell_worker);
    return gvmm__worker_start() == GVMM_OK;
}

/* On the worker. */
static void give_back_job(job *self) { give_back((retirement *)((char *)self - offsetof(retirement, job))); }

static void give_back_now(retirement *r)
{
    if (!is_forbidden_here()) {
        give_back(r);
    } else {
        (void)start(); /* else a drain does */
        r->job = (job){.run = give_back_job, .gives_back = true};
        gvmm__work(&r->job);
    }
}

void gvmm__retire(retirement *r)
{
    if (gvmm__stream_is_default(r->stream) && r->device->ordinal < 0) { /* nothing to wait for */
        give_back_now(r);
        return;
    }
    bool was_kept = r->event;
    if (!was_kept) r->thread = thread_number();
    gvmm__retire_mark();
    CUstreamCaptureMode old = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool relaxed = DRIVER_QUIET(cuThreadExchangeStreamCaptureMode, &old) == CUDA_SUCCESS;
    bool can = start() && (relaxed || is_forbidden_here());
    stream_mark m = was_kept ? (can ? MARK_SET : MARK_FAILED) : can ? try_to_mark(r) : without_event(r);
    bool on_its_way = (m == MARK_CAPTURING && hold_by_capture(r)) || mark_or_remember(r, m, was_kept);
    if (!on_its_way) wait_and_give_back(r);
    if (relaxed) gvmm__relaxed_leave(old);
}

/* Streams: queues of items, each worked off in order by a thread of its own, which starts with the first item that
 * has to wait or to run. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "exec.h"

static uint64_t last_order, last_serial;
static unsigned workers, workers_outside; /* outside: in a user's function */
static _Thread_local bool is_worker;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end;
static _Atomic pid_t process; /* a forked child has none of the threads, and perhaps the lock */

/* ---------------------------------------------------------------------------------------------
 * Threads
 * ------------------------------------------------------------------------------------------- */

bool sim_thread_start(void *(*body)(void *), void *argument)
{
    sigset_t every, old;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes)) return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &old);
    int failed = pthread_create(&thread, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return !failed;
}

/* On a worker, tells a reset that it need not wait for this thread. */
void sim_call_host(CUhostFn function, void *data)
{
    if (is_worker) {
        sim_enter();
        workers_outside++;
        pthread_cond_broadcast(&sim_changed);
        sim_leave(CUDA_SUCCESS);
    }
    function(data);
    if (is_worker) {
        sim_enter();
        workers_outside--;
        sim_leave(CUDA_SUCCESS);
    }
}

/* ---------------------------------------------------------------------------------------------
 * Life of a stream
 * ------------------------------------------------------------------------------------------- */

void sim_stream_retain(sim_stream *stream) { stream->references++; }

static void release(sim_stream *s, unsigned count)
{
    s->references -= count;
    if (s->references) return;
    pthread_cond_destroy(&s->wake);
    free(s->dependencies);
    free(s);
}

void sim_stream_release(sim_stream *stream) { release(stream, 1); }

/* Takes it out of its context's list. Answers how many references are to be released for that, as do `shut` and
 * `execute`: so every caller lets go of a stream once, at the end. */
static unsigned unlist(sim_stream *s)
{
    if (!s->listed) return 0;
    s->listed = false;
    if (s->before) s->before->after = s->after;
    if (!s->before && !s->abandoned) s->context->streams = s->after;
    if (s->after) s->after->before = s->before;
    s->before = s->after = NULL;
    return 1;
}

static unsigned shut(sim_stream *s)
{
    if (s->closed) return 0;
    sim_capture_leave(s);
    if (s->object.id) sim_object_remove(&s->object);
    s->closed = true;
    pthread_cond_signal(&s->wake);
    pthread_cond_broadcast(&sim_changed);
    return 1 + (s->head ? 0 : unlist(s));
}

void sim_stream_close(sim_stream *stream) { release(stream, shut(stream)); }

/* Per-thread default streams end with their thread. */
static void end_thread(void *argument)
{
    sim_thread *t = argument;
    if (getpid() != process) return;
    sim_enter();
    while (t->default_streams) {
        sim_stream *s = t->default_streams;
        t->default_streams = s->next_of_thread;
        release(s, shut(s) + 1);
    }
    sim_leave(CUDA_SUCCESS);
}

static void start(void)
{
    process = getpid();
    pthread_key_create(&thread_end, end_thread);
}

sim_stream *sim_stream_new(sim_context *context, unsigned flags, int priority)
{
    pthread_once(&once, start);
    sim_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->references = 2; /* the creator's and the list's */
    s->context = context;
    s->flags = flags;
    s->priority = priority;
    s->serial = ++last_serial;
    s->listed = true;
    pthread_cond_init(&s->wake, NULL);
    s->after = context->streams;
    if (s->after) s->after->before = s;
    context->streams = s;
    return s;
}

bool sim_stream_is_legacy(const sim_stream *stream) { return stream == stream->context->legacy; }

bool sim_stream_is_blocking(const sim_stream *stream)
{
    return !(stream->flags & CU_STREAM_NON_BLOCKING) && !sim_stream_is_legacy(stream);
}

/* The calling thread's default stream in a context, made on first use. */
static CUresult per_thread_stream(sim_context *context, sim_stream **out)
{
    sim_thread *t = sim_thread_self();
    for (sim_stream **link = &t->default_streams; *link;) {
        sim_stream *s = *link;
        if (s->closed) { /* with its context */
            *link = s->next_of_thread;
            sim_stream_release(s);
            continue;
        }
        if (s->context == context) return *out = s, CUDA_SUCCESS;
        link = &s->next_of_thread;
    }
    sim_stream *s = sim_stream_new(context, CU_STREAM_DEFAULT, 0);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    if (pthread_setspecific(thread_end, t)) {
        sim_stream_close(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_stream_retain(s); /* the thread's; the creator's is the context's, which closes it */
    s->next_of_thread = t->default_streams;
    t->default_streams = s;
    *out = s;
    return CUDA_SUCCESS;
}

static CUresult default_stream(CUstream handle, sim_stream **out)
{
    sim_context *current;
    CUresult r = sim_current_context(&current);
    if (r) return r;
    if (handle == CU_STREAM_PER_THREAD) return per_thread_stream(current, out);
    *out = current->legacy;
    return CUDA_SUCCESS;
}

CUresult sim_stream_find(CUstream handle, sim_stream **out)
{
    uint64_t id = (uintptr_t)handle;
    if (id <= (uintptr_t)CU_STREAM_PER_THREAD) return default_stream(handle, out);
    sim_stream *s = (sim_stream *)sim_object_find(GVMM_SIM_STREAM, id);
    if (!s) {
        sim_finding("%s (call %llu): stream 0x%llx %s; a real driver may crash here", sim_call_name,
                    (unsigned long long)sim_call_number, (unsigned long long)id,
                    sim_object_was(GVMM_SIM_STREAM, id) ? "was destroyed" : "is not a stream");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (s->context->error) return s->context->error;
    *out = s;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * Queues
 * ------------------------------------------------------------------------------------------- */

static uint64_t oldest(const sim_stream *s) { return s && s->head ? s->head->order : UINT64_MAX; }

uint64_t sim_order_now(void) { return last_order; }

bool sim_point_reached(const sim_point *point) { return oldest(point->stream) > point->order; }

void sim_point_release(sim_point *point)
{
    if (point->stream) sim_stream_release(point->stream);
    point->stream = NULL;
}

/* Has a blocking stream of the context an item up to `order`? */
static bool blocking_busy(const sim_context *context, uint64_t order)
{
    for (const sim_stream *s = context->streams; s; s = s->after)
        if (oldest(s) <= order && sim_stream_is_blocking(s)) return true;
    return false;
}

bool sim_stream_is_busy(const sim_stream *stream, uint64_t order)
{
    if (oldest(stream) <= order) return true;
    return !stream->abandoned && sim_stream_is_legacy(stream) && blocking_busy(stream->context, order);
}

/* May the item at the head of the queue, or one queued now with that order, start? The legacy stream and the blocking
 * streams of a context wait for each other's earlier items. */
static bool is_due(const sim_stream *s, uint64_t order)
{
    if (s->abandoned || s->flags & CU_STREAM_NON_BLOCKING) return true;
    if (sim_stream_is_legacy(s)) return !blocking_busy(s->context, order - 1);
    return oldest(s->context->legacy) > order;
}

bool sim_stream_is_free(sim_stream *stream) { return !stream->head && is_due(stream, last_order + 1); }

static bool head_is_due(const sim_stream *s)
{
    return !s->head->inlined && (s->abandoned || sim_point_reached(&s->head->after)) && is_due(s, s->head->order);
}

/* Does the item at the head of the queue, without the lock, and takes it out. Answers as `unlist` does. */
static unsigned execute(sim_stream *s)
{
    sim_item *item = s->head;
    CUresult r = CUDA_SUCCESS;
    if (item->work.run) {
        bool run = !s->abandoned && (!s->context->error || item->always);
        uint64_t id = s->object.id ? s->object.id : sim_stream_is_legacy(s) ? 1 : 2;
        sim_actor who = {s->context->device, id, item->work.operation, item->call};
        sim_leave(CUDA_SUCCESS);
        if (run) r = item->work.run(item->work.data, &who);
        if (item->work.drop) item->work.drop(item->work.data);
        sim_enter();
    }
    if (r && !s->abandoned) sim_context_error(s->context, r);
    if (item->stamp) sim_event_stamp(item->stamp, item->order);
    sim_point_release(&item->after);
    s->head = item->next;
    if (!s->head) s->tail = NULL;
    free(item);
    pthread_cond_broadcast(&sim_changed);
    return s->closed && !s->head ? unlist(s) : 0;
}

static void *work_off(void *argument)
{
    sim_stream *s = argument;
    unsigned count = 1;
    sim_on_driver_thread = is_worker = true;
    sim_enter();
    for (;;) {
        if (!s->head && s->closed) break;
        if (!s->head) pthread_cond_wait(&s->wake, &sim_lock);
        else if (!head_is_due(s)) pthread_cond_wait(&sim_changed, &sim_lock);
        else count += execute(s);
    }
    workers--;
    pthread_cond_broadcast(&sim_changed);
    release(s, count);
    sim_leave(CUDA_SUCCESS);
    return NULL;
}

static void append(sim_stream *s, sim_item *item)
{
    item->order = ++last_order;
    if (s->tail) s->tail->next = item;
    else s->head = item;
    s->tail = item;
}

CUresult sim_stream_push(sim_stream *stream, sim_item *item)
{
    if (stream->closed) return CUDA_ERROR_INVALID_HANDLE;
    if (!stream->worker) {
        sim_stream_retain(stream);
        if (!sim_thread_start(work_off, stream)) {
            sim_stream_release(stream);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        stream->worker = true;
        workers++;
    }
    append(stream, item);
    pthread_cond_signal(&stream->wake);
    return CUDA_SUCCESS;
}

CUresult sim_stream_run(sim_stream *stream, sim_item *item, bool wait, bool *taken)
{
    sim_context *c = stream->context;
    unsigned count = 1;
    *taken = false;
    if (stream->closed) return CUDA_ERROR_INVALID_HANDLE;
    sim_stream_retain(stream);
    if (sim_stream_is_free(stream) && sim_point_reached(&item->after)) {
        item->inlined = *taken = true;
        append(stream, item);
        count += execute(stream);
    } else {
        CUresult r = sim_stream_push(stream, item);
        if (r) return sim_stream_release(stream), r;
        *taken = true;
        uint64_t order = last_order;
        while (wait && oldest(stream) <= order) pthread_cond_wait(&sim_changed, &sim_lock);
    }
    release(stream, count);
    return c->error;
}

sim_item *sim_item_new(sim_work work)
{
    sim_item *item = calloc(1, sizeof *item);
    if (!item) return NULL;
    item->work = work;
    item->call = sim_call_number;
    return item;
}

void sim_item_drop(sim_item *item)
{
    if (item->work.drop) item->work.drop(item->work.data);
    free(item);
}

CUresult sim_queue(CUstream handle, sim_work work)
{
    sim_item *item = sim_item_new(work);
    if (!item) {
        if (work.drop) work.drop(work.data);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_enter();
    sim_stream *s;
    CUresult r = sim_stream_find(handle, &s);
    if (!r) r = sim_capture_forbid(s); /* this work has no node */
    if (!r) r = sim_stream_push(s, item);
    sim_leave(r);
    if (r) sim_item_drop(item);
    return r;
}

CUresult sim_stream_allocates(CUstream handle, int *device, bool *capturing)
{
    sim_enter();
    sim_stream *s;
    CUresult r = sim_stream_find(handle, &s);
    if (!r) r = sim_capture_admit(s);
    if (r) return sim_leave(r);
    *device = s->context->device;
    *capturing = s->capture != NULL;
    return sim_leave(*capturing ? CUDA_SUCCESS : sim_capture_unsafe());
}

/* ---------------------------------------------------------------------------------------------
 * Waiting
 * ------------------------------------------------------------------------------------------- */

static bool context_busy(const sim_context *context, uint64_t order)
{
    for (const sim_stream *s = context->streams; s; s = s->after)
        if (oldest(s) <= order) return true;
    return false;
}

void sim_context_wait(sim_context *context, uint64_t order)
{
    if (order == UINT64_MAX) order--; /* UINT64_MAX is an empty queue's oldest */
    while (context_busy(context, order)) pthread_cond_wait(&sim_changed, &sim_lock);
}

void sim_wait_all(void)
{
    sim_enter();
    uint64_t order = last_order;
    for (sim_context *c = sim_context_next(NULL); c; c = sim_context_next(c)) sim_context_wait(c, order);
    sim_leave(CUDA_SUCCESS);
}

/* Queued work is dropped. A worker inside a user's function is left alone: it cleans up when that returns, if ever. */
void sim_execution_reset(void)
{
    if (process && getpid() != process) return;
    sim_enter();
    for (sim_context *c = sim_context_next(NULL); c; c = sim_context_next(c)) {
        sim_events_forget(c);
        for (sim_stream *s = c->streams, *after; s; s = after) {
            after = s->after;
            s->abandoned = true;
            unsigned count = shut(s);
            release(s, count + unlist(s));
        }
        c->streams = NULL;
    }
    while (workers > workers_outside) pthread_cond_wait(&sim_changed, &sim_lock);
    sim_contexts_reset();
    sim_leave(CUDA_SUCCESS);
}

/* ---------------------------------------------------------------------------------------------
 * Calls
 * ------------------------------------------------------------------------------------------- */

static CUresult stream_create(CUstream *out, unsigned flags, int priority)
{
    sim_context *c;
    CUresult r = sim_current_context(&c);
    if (r) return r;
    sim_stream *s = sim_stream_new(c, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_object_add(&s->object, GVMM_SIM_STREAM, 0, 0);
    s->object.references = 1;
    *out = (CUstream)(uintptr_t)s->object.id;
    return CUDA_SUCCESS;
}

CUresult sim_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    if (!stream || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    return sim_leave(stream_create(stream, flags, priority));
}

CUresult sim_cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return sim_cuStreamCreateWithPriority(stream, flags, 0);
}

/* Needs no current context, and gives the stream back in a failed one too. */
static CUresult stream_destroy(CUstream handle)
{
    if ((uintptr_t)handle <= 2) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t id = (uintptr_t)handle;
    sim_stream *s = (sim_stream *)sim_object_find(GVMM_SIM_STREAM, id);
    if (!s) {
        sim_finding("cuStreamDestroy (call %llu): stream 0x%llx %s; a real driver may crash here",
                    (unsigned long long)sim_call_number, (unsigned long long)id,
                    sim_object_was(GVMM_SIM_STREAM, id) ? "was destroyed before" : "is not a stream");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult r = s->context->error;
    sim_stream_close(s);
    return r;
}

CUresult sim_cuStreamDestroy(CUstream stream)
{
    sim_enter();
    return sim_leave(stream_destroy(stream));
}

/* What can be asked and waited for only where no capture is disturbed. */
static CUresult stream_ask(CUstream handle, sim_stream **out)
{
    CUresult r = sim_stream_find(handle, out);
    if (!r) r = sim_capture_forbid(*out);
    if (!r) r = sim_capture_unsafe();
    return r;
}

static CUresult stream_synchronize(CUstream handle)
{
    sim_stream *s;
    CUresult r = stream_ask(handle, &s);
    if (r) return r;
    sim_context *c = s->context;
    uint64_t order = last_order;
    sim_stream_retain(s);
    while (sim_stream_is_busy(s, order)) pthread_cond_wait(&sim_changed, &sim_lock);
    sim_stream_release(s);
    return c->error;
}

CUresult sim_cuStreamSynchronize(CUstream stream)
{
    sim_enter();
    return sim_leave(stream_synchronize(stream));
}

/* A query, unlike a wait, takes no notice of records that only the legacy stream's work holds up. */
static bool only_records_held(const sim_stream *s)
{
    if (!sim_stream_is_blocking(s)) return false;
    for (const sim_item *item = s->head; item; item = item->next)
        if (item->work.run || item->after.stream) return false;
    return s->head && !is_due(s, s->head->order);
}

CUresult sim_cuStreamQuery(CUstream stream)
{
    sim_enter();
    sim_stream *s;
    CUresult r = stream_ask(stream, &s);
    if (!r && sim_stream_is_busy(s, last_order) && !only_records_held(s)) r = CUDA_ERROR_NOT_READY;
    return sim_leave(r);
}

CUresult sim_cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_stream *s;
    CUresult r = sim_stream_find(stream, &s);
    if (!r) *context = (CUcontext)s->context;
    return sim_leave(r);
}

/* Even such questions cost a capture: the flags, the id. */
static CUresult plain_question(CUstream handle, sim_stream **out)
{
    CUresult r = sim_stream_find(handle, out);
    return r ? r : sim_capture_forbid(*out);
}

CUresult sim_cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_stream *s;
    CUresult r = plain_question(stream, &s);
    if (!r) *flags = s->flags;
    return sim_leave(r);
}

CUresult sim_cuStreamGetPriority(CUstream stream, int *priority)
{
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_stream *s;
    CUresult r = sim_stream_find(stream, &s);
    if (!r) r = sim_capture_implicit(s);
    if (!r) *priority = s->priority;
    return sim_leave(r);
}

CUresult sim_cuStreamGetId(CUstream stream, unsigned long long *id)
{
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_stream *s;
    CUresult r = plain_question(stream, &s);
    if (!r) *id = s->serial;
    return sim_leave(r);
}

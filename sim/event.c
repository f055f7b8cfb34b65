/* Events: places in a stream's queue, with the time they were reached; or places in a capture. */
#include <string.h>
#include <time.h>

#include "exec.h"

enum { WAIT_EXTERNAL = 1 }; /* CU_EVENT_WAIT_EXTERNAL */

struct sim_event {
    sim_object object;
    unsigned references; /* the handle's, and one per item that will stamp it */
    sim_context *context;
    sim_event *before, *after; /* in the context's list */
    unsigned flags;
    bool recorded; /* last into a stream */
    sim_point point;
    double time;        /* ms; when the point was reached */
    uint64_t capture;   /* last recorded into this capture; 0: not into one */
    CUgraphNode *nodes; /* the capturing stream's dependencies then */
    size_t node_count;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void event_release(sim_event *e)
{
    if (--e->references) return;
    sim_point_release(&e->point);
    free(e->nodes);
    free(e);
}

/* A later record has another order: then this time is not wanted any more. */
void sim_event_stamp(sim_event *event, uint64_t order)
{
    if (event->recorded && event->point.order == order) event->time = now();
    event_release(event);
}

static void event_close(sim_event *e)
{
    sim_object_remove(&e->object);
    if (e->before) e->before->after = e->after;
    else e->context->events = e->after;
    if (e->after) e->after->before = e->before;
    event_release(e);
}

void sim_events_forget(sim_context *context)
{
    while (context->events) event_close(context->events);
}

static CUresult event_find(CUevent handle, sim_event **out)
{
    uint64_t id = (uintptr_t)handle;
    *out = (sim_event *)sim_object_find(GVMM_SIM_EVENT, id);
    if (*out) return CUDA_SUCCESS;
    sim_finding("%s (call %llu): event 0x%llx %s; a real driver may crash here", sim_call_name,
                (unsigned long long)sim_call_number, (unsigned long long)id,
                sim_object_was(GVMM_SIM_EVENT, id) ? "was destroyed" : "is not an event");
    return CUDA_ERROR_INVALID_HANDLE;
}

static CUresult event_create(CUevent *out, unsigned flags)
{
    sim_context *c;
    CUresult r = sim_current_context(&c);
    if (r) return r;
    sim_event *e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    e->references = 1;
    e->context = c;
    e->flags = flags;
    e->after = c->events;
    if (e->after) e->after->before = e;
    c->events = e;
    sim_object_add(&e->object, GVMM_SIM_EVENT, 0, 0);
    e->object.references = 1;
    *out = (CUevent)(uintptr_t)e->object.id;
    return CUDA_SUCCESS;
}

CUresult sim_cuEventCreate(CUevent *event, unsigned int flags)
{
    unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!event || flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    return sim_leave(event_create(event, flags));
}

/* Fine while pending, with no current context, and in a failed context. */
CUresult sim_cuEventDestroy(CUevent event)
{
    sim_enter();
    sim_event *e;
    CUresult r = event_find(event, &e);
    if (r) return sim_leave(r);
    r = e->context->error;
    event_close(e);
    return sim_leave(r);
}

/* ---------------------------------------------------------------------------------------------
 * Recording
 * ------------------------------------------------------------------------------------------- */

static void forget_record(sim_event *e)
{
    sim_point_release(&e->point);
    free(e->nodes);
    e->nodes = NULL;
    e->node_count = 0;
    e->capture = 0;
    e->recorded = false;
}

static CUgraphNode *nodes_copy(const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *copy = malloc((count ? count : 1) * sizeof *copy);
    if (copy && count) memcpy(copy, nodes, count * sizeof *copy);
    return copy;
}

/* Adds no node: the event stands for what the stream depends on. */
static CUresult record_captured(sim_event *e, sim_stream *s)
{
    CUgraphNode *nodes = nodes_copy(s->dependencies, s->dependency_count);
    if (!nodes) return CUDA_ERROR_OUT_OF_MEMORY;
    forget_record(e);
    e->nodes = nodes;
    e->node_count = s->dependency_count;
    e->capture = s->capture->id;
    return CUDA_SUCCESS;
}

static CUresult record_queued(sim_event *e, sim_stream *s)
{
    uint64_t order = 0; /* of no item: reached */
    if (!sim_stream_is_free(s)) {
        sim_item *item = sim_item_new((sim_work){.operation = sim_call_name});
        if (!item) return CUDA_ERROR_OUT_OF_MEMORY;
        item->stamp = e;
        e->references++;
        CUresult r = sim_stream_push(s, item);
        if (r) {
            e->references--;
            sim_item_drop(item);
            return r;
        }
        order = item->order;
    }
    forget_record(e);
    e->recorded = true;
    e->point = (sim_point){s, order};
    sim_stream_retain(s);
    if (!order) e->time = now();
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    sim_stream *s;
    sim_event *e;
    CUresult r = sim_stream_find(stream, &s);
    if (!r) r = event_find(event, &e);
    if (r) return r;
    if (e->context != s->context) return CUDA_ERROR_INVALID_HANDLE;
    r = sim_capture_admit(s);
    if (r) return r;
    return s->capture ? record_captured(e, s) : record_queued(e, s);
}

CUresult sim_cuEventRecord(CUevent event, CUstream stream)
{
    sim_enter();
    return sim_leave(event_record(event, stream));
}

/* ---------------------------------------------------------------------------------------------
 * Asking and waiting
 * ------------------------------------------------------------------------------------------- */

/* An event recorded into a capture stands for nothing that runs: asking it spoils the capture, and once that is over
 * or lost the event is worth nothing until it is recorded anew. */
static CUresult captured_event(const sim_event *e)
{
    sim_capture *capture = sim_capture_find(e->capture);
    if (!capture || capture->invalidated) return CUDA_ERROR_INVALID_VALUE;
    sim_capture_invalidate(capture);
    return CUDA_ERROR_CAPTURED_EVENT;
}

static CUresult event_ask(CUevent event, sim_event **out)
{
    CUresult r = event_find(event, out);
    if (!r) r = (*out)->capture ? captured_event(*out) : sim_capture_unsafe();
    return r ? r : (*out)->context->error;
}

/* The one call about work that is open to the driver's threads. */
CUresult sim_cuEventQuery(CUevent event)
{
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    sim_enter();
    sim_event *e;
    CUresult r = event_ask(event, &e);
    if (!r && !sim_point_reached(&e->point)) r = CUDA_ERROR_NOT_READY;
    return sim_leave(r);
}

/* The event may be destroyed or recorded anew meanwhile: what counts is where it was. */
static CUresult event_synchronize(CUevent event)
{
    sim_event *e;
    CUresult r = event_ask(event, &e);
    if (r) return r;
    sim_context *c = e->context;
    sim_point point = e->point;
    if (!point.stream) return CUDA_SUCCESS;
    sim_stream_retain(point.stream);
    while (!sim_point_reached(&point)) pthread_cond_wait(&sim_changed, &sim_lock);
    sim_point_release(&point);
    return c->error;
}

CUresult sim_cuEventSynchronize(CUevent event)
{
    sim_enter();
    return sim_leave(event_synchronize(event));
}

/* For the time between two events, one of them captured: harmless, unlike any other question about it. */
static CUresult captured_time(const sim_event *e)
{
    sim_capture *capture = sim_capture_find(e->capture);
    return capture && !capture->invalidated ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_INVALID_VALUE;
}

static CUresult event_elapsed(float *milliseconds, CUevent start, CUevent end)
{
    sim_event *a, *b;
    CUresult r = event_find(start, &a);
    if (!r) r = event_find(end, &b);
    if (r) return r;
    if (a->capture || b->capture) return captured_time(a->capture ? a : b);
    if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    if (!a->recorded || !b->recorded || a->context != b->context) return CUDA_ERROR_INVALID_HANDLE;
    if (a->context->error) return a->context->error;
    if (!sim_point_reached(&a->point) || !sim_point_reached(&b->point)) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)(b->time - a->time);
    return CUDA_SUCCESS;
}

CUresult sim_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    return sim_leave(event_elapsed(milliseconds, start, end));
}

/* ---------------------------------------------------------------------------------------------
 * Streams that wait for events: between streams, into a capture, and back out of a fork
 * ------------------------------------------------------------------------------------------- */

static CUresult wait_captured(sim_stream *s, const sim_event *e)
{
    sim_capture *capture = sim_capture_find(e->capture);
    if (!capture || capture->invalidated) {
        if (s->capture) sim_capture_invalidate(s->capture);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (s->capture && s->capture != capture) {
        sim_capture_invalidate(s->capture);
        sim_capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (sim_stream_is_legacy(s)) { /* it cannot capture */
        sim_capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return sim_capture_join(s, capture, e->nodes, e->node_count);
}

static CUresult wait_queued(sim_stream *s, const sim_event *e)
{
    if (sim_point_reached(&e->point) || e->point.stream == s) return CUDA_SUCCESS;
    sim_item *item = sim_item_new((sim_work){.operation = sim_call_name});
    if (!item) return CUDA_ERROR_OUT_OF_MEMORY;
    item->after = e->point;
    CUresult r = sim_stream_push(s, item);
    if (r) {
        free(item);
        return r;
    }
    sim_stream_retain(e->point.stream);
    return CUDA_SUCCESS;
}

static CUresult stream_wait_event(CUstream stream, CUevent event, bool external)
{
    sim_stream *s;
    sim_event *e;
    CUresult r = sim_stream_find(stream, &s);
    if (!r) r = event_find(event, &e);
    if (!r) r = sim_capture_admit(s);
    if (!r && external)
        r = s->capture ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_ILLEGAL_STATE; /* a node of its own kind */
    if (r) return r;
    if (e->capture) return wait_captured(s, e);
    if (s->capture && e->recorded) {
        sim_capture_invalidate(s->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    return s->capture ? CUDA_SUCCESS : wait_queued(s, e);
}

CUresult sim_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    if (flags & ~(unsigned)WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    return sim_leave(stream_wait_event(stream, event, flags == WAIT_EXTERNAL));
}

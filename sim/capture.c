/* Stream capture: who captures what, what disturbs it, and how it ends. */
#include <string.h>

#include "exec.h"

static sim_capture *captures; /* begun and not ended, lost ones too */
static uint64_t last_id;

/* ---------------------------------------------------------------------------------------------
 * Rules
 * ------------------------------------------------------------------------------------------- */

sim_capture *sim_capture_find(uint64_t id)
{
    sim_capture *c = captures;
    while (c && c->id != id) c = c->next;
    return c;
}

/* Streams stay in a lost capture, and its graph stays alive, until it is ended. */
void sim_capture_invalidate(sim_capture *capture) { capture->invalidated = true; }

/* The legacy stream would wait for a blocking stream that captures: invalidates if `harm`, and says so. */
static bool implicit(sim_stream *s, bool harm)
{
    bool hit = false;
    if (!captures || !sim_stream_is_legacy(s)) return false;
    for (sim_stream *other = s->context->streams; other; other = other->after) {
        if (!other->capture || !sim_stream_is_blocking(other)) continue;
        if (harm) sim_capture_invalidate(other->capture);
        hit = true;
    }
    return hit;
}

CUresult sim_capture_implicit(sim_stream *stream)
{
    return implicit(stream, true) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult sim_capture_admit(sim_stream *stream)
{
    CUresult r = sim_capture_implicit(stream);
    if (!r && stream->capture && stream->capture->invalidated) r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return r;
}

static CUresult refuse(sim_stream *stream)
{
    if (!stream->capture) return CUDA_SUCCESS;
    sim_capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_capture_forbid(sim_stream *stream)
{
    CUresult r = sim_capture_implicit(stream);
    return r ? r : refuse(stream);
}

CUresult sim_capture_forbid_context(sim_context *context)
{
    CUresult r = CUDA_SUCCESS;
    for (sim_stream *s = captures ? context->streams : NULL; s; s = s->after)
        if (refuse(s)) r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return r;
}

/* A capture guards against its own thread unless it is relaxed, and against every thread if it is global. A thread's
 * mode narrows that: thread-local looks at its own captures only, relaxed at none. A lost capture guards to its end. */
CUresult sim_capture_unsafe(void)
{
    CUresult r = CUDA_SUCCESS;
    const sim_thread *t = sim_thread_self();
    if (t->mode >= CU_STREAM_CAPTURE_MODE_RELAXED) return r;
    for (sim_capture *c = captures; c; c = c->next) {
        bool own = c->owner == t->id && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && t->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!own && !global) continue;
        sim_capture_invalidate(c);
        r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return r;
}

CUresult sim_capture_unsafe_call(void)
{
    sim_enter();
    return sim_leave(sim_capture_unsafe());
}

/* Any number is taken for a mode. */
CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    sim_thread *t = sim_thread_self();
    CUstreamCaptureMode old = t->mode;
    t->mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * What a captured stream depends on
 * ------------------------------------------------------------------------------------------- */

static void forget_dependencies(sim_stream *s)
{
    free(s->dependencies);
    s->dependencies = NULL;
    s->dependency_count = 0;
}

CUresult sim_capture_join(sim_stream *stream, sim_capture *capture, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *all = realloc(stream->dependencies, (stream->dependency_count + count + 1) * sizeof *all);
    if (!all) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->dependencies = all;
    stream->capture = capture;
    for (size_t i = 0; i < count; i++) {
        size_t j = 0;
        while (j < stream->dependency_count && all[j] != nodes[i]) j++;
        if (j == stream->dependency_count) all[stream->dependency_count++] = nodes[i];
    }
    return CUDA_SUCCESS;
}

CUresult sim_capture_add(sim_stream *stream, const sim_operation *operation)
{
    CUgraphNode node;
    CUgraphNode *only = malloc(sizeof *only);
    if (!only) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = sim_graph_add(stream->capture->graph, &node, stream->dependencies, stream->dependency_count, operation,
                               NULL);
    if (r) return free(only), r;
    free(stream->dependencies);
    stream->dependencies = only;
    stream->dependencies[0] = node;
    stream->dependency_count = 1;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * Beginning and ending
 * ------------------------------------------------------------------------------------------- */

static CUresult begin(CUstream handle, CUstreamCaptureMode mode)
{
    sim_stream *s;
    CUresult r = sim_stream_find(handle, &s);
    if (!r) r = sim_capture_implicit(s);
    if (r) return r;
    if (sim_stream_is_legacy(s)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    sim_capture *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    c->graph = sim_graph_new(true);
    if (!c->graph) return free(c), CUDA_ERROR_OUT_OF_MEMORY;
    c->graph->capture = c;
    c->id = ++last_id;
    c->owner = sim_thread_self()->id;
    c->mode = mode;
    c->origin = s;
    c->next = captures;
    captures = c;
    s->capture = c;
    return CUDA_SUCCESS;
}

CUresult sim_cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    if ((int)mode < CU_STREAM_CAPTURE_MODE_GLOBAL || (int)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    return sim_leave(begin(stream, mode));
}

/* Takes every stream out. The graph is the caller's afterwards. */
static sim_graph *finish(sim_capture *capture)
{
    for (sim_context *c = sim_context_next(NULL); c; c = sim_context_next(c))
        for (sim_stream *s = c->streams; s; s = s->after) {
            if (s->capture != capture) continue;
            s->capture = NULL;
            forget_dependencies(s);
        }
    sim_capture **link = &captures;
    while (*link != capture) link = &(*link)->next;
    *link = capture->next;
    sim_graph *graph = capture->graph;
    graph->capture = NULL;
    free(capture->left);
    free(capture);
    return graph;
}

void sim_capture_leave(sim_stream *stream)
{
    sim_capture *capture = stream->capture;
    if (!capture) return;
    if (capture->origin == stream) {
        sim_graph_free(finish(capture));
        return;
    }
    size_t count = capture->left_count + stream->dependency_count;
    CUgraphNode *left = realloc(capture->left, (count + 1) * sizeof *left);
    if (left) {
        for (size_t i = 0; i < stream->dependency_count; i++) left[capture->left_count++] = stream->dependencies[i];
        capture->left = left;
    } else {
        sim_capture_invalidate(capture);
    }
    stream->capture = NULL;
    forget_dependencies(stream);
}

/* Marks what the stream depends on, and everything before it. Captured edges point back, so that once through is
 * enough; edges that the program added may not. */
static void mark_before(const sim_graph *g, const sim_stream *from, bool *seen)
{
    bool more = true;
    for (size_t i = 0; i < from->dependency_count; i++) seen[sim_graph_place(g, from->dependencies[i])] = true;
    while (more) {
        more = false;
        for (size_t i = g->count; i-- > 0;)
            for (size_t k = 0; seen[i] && k < g->nodes[i].before_count; k++) {
                size_t b = g->nodes[i].before[k];
                more = more || (!seen[b] && b > i);
                seen[b] = true;
            }
    }
}

/* Has everything that other streams captured come back to the stream that began? */
static CUresult joined(const sim_capture *capture)
{
    const sim_graph *g = capture->graph;
    CUresult r = CUDA_SUCCESS;
    bool *seen = calloc(g->count + 1, sizeof *seen);
    if (!seen) return CUDA_ERROR_OUT_OF_MEMORY;
    mark_before(g, capture->origin, seen);
    for (size_t i = 0; i < capture->left_count; i++)
        if (!seen[sim_graph_place(g, capture->left[i])]) r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    for (sim_context *c = sim_context_next(NULL); c; c = sim_context_next(c))
        for (sim_stream *s = c->streams; s; s = s->after)
            for (size_t i = 0; s->capture == capture && i < s->dependency_count; i++)
                if (!seen[sim_graph_place(g, s->dependencies[i])]) r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    free(seen);
    return r;
}

/* How the capture ends when its stream or its thread is the wrong one: for the first, later. */
static CUresult mismatch(sim_capture *c, const sim_stream *s)
{
    if (c->origin != s) {
        sim_capture_invalidate(c);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (c->mode == CU_STREAM_CAPTURE_MODE_RELAXED || c->owner == sim_thread_self()->id) return CUDA_SUCCESS;
    sim_graph_free(finish(c));
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

static CUresult end(CUstream handle, CUgraph *graph)
{
    sim_stream *s;
    CUresult r = sim_stream_find(handle, &s);
    if (!r) r = sim_capture_implicit(s);
    if (r) return r;
    sim_capture *c = s->capture;
    if (!c) return CUDA_ERROR_ILLEGAL_STATE;
    r = mismatch(c, s);
    if (r) return r;
    r = c->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : joined(c);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) return r;
    sim_graph *g = finish(c);
    if (r) sim_graph_free(g);
    else *graph = (CUgraph)(uintptr_t)g->object.id;
    return r;
}

CUresult sim_cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *graph = NULL;
    sim_enter();
    return sim_leave(end(stream, graph));
}

/* ---------------------------------------------------------------------------------------------
 * Asking and changing
 * ------------------------------------------------------------------------------------------- */

static CUstreamCaptureStatus status_of(const sim_stream *s)
{
    if (!s->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return s->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* The two questions that harm nothing. */
static CUresult question(CUstream handle, sim_stream **out)
{
    CUresult r = sim_stream_find(handle, out);
    if (r) return r;
    return implicit(*out, false) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult sim_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_stream *s;
    CUresult r = question(stream, &s);
    if (!r) *status = status_of(s);
    return sim_leave(r);
}

/* The array of dependencies is the stream's: valid until the next call that changes it. */
CUresult sim_cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                    const CUgraphNode **dependencies, size_t *count)
{
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_stream *s;
    CUresult r = question(stream, &s);
    if (r) return sim_leave(r);
    *status = status_of(s);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return sim_leave(CUDA_SUCCESS);
    if (id) *id = s->capture->id;
    if (graph) *graph = (CUgraph)(uintptr_t)s->capture->graph->object.id;
    if (dependencies) *dependencies = s->dependencies;
    if (count) *count = s->dependency_count;
    return sim_leave(CUDA_SUCCESS);
}

static CUresult update(CUstream handle, const CUgraphNode *nodes, size_t count, bool replace)
{
    sim_stream *s;
    CUresult r = sim_stream_find(handle, &s);
    if (!r) r = sim_capture_admit(s);
    if (r) return r;
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    const sim_graph *g = s->capture->graph;
    for (size_t i = 0; i < count; i++)
        if (sim_graph_place(g, nodes[i]) == g->count) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode *copy = malloc((count + 1) * sizeof *copy); /* `nodes` may be the stream's own array */
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) copy[i] = nodes[i];
    size_t before = s->dependency_count;
    if (replace) s->dependency_count = 0;
    r = sim_capture_join(s, s->capture, copy, count);
    if (r) s->dependency_count = before;
    free(copy);
    return r;
}

CUresult sim_cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count,
                                               unsigned int flags)
{
    if (flags > 1 || (count && !dependencies)) return CUDA_ERROR_INVALID_VALUE; /* 0 adds, 1 replaces */
    sim_enter();
    return sim_leave(update(stream, dependencies, count, flags == 1));
}

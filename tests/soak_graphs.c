/* Captures in every mode, with other things going on meanwhile; graphs that hold memory, launched and destroyed in any
 * order. */
#include "soak.h"

typedef struct capture {
    CUstream on;
    bool blocking; /* the stream blocks the default stream: whoever uses that ends the capture */
    family *of;    /* NULL: no buffer is in it */
    exec got;
} capture;

/* Where a fault denied an event, another thread waits for the stream itself, and the capture may begin between its question
 * and its wait (docs/capture.md). */
static bool may_be_lost(const capture *c) { return c->blocking || faults_of_all() != 0; }

static CUstream stream_to_capture(member *m, bool *blocking)
{
    unsigned i = below(m, STREAMS + 2);
    bool own = i < STREAMS && m->streams[i];
    *blocking = own && m->blocking[i];
    return own ? m->streams[i] : m->lasting[1];
}

/* ---- what is captured ---- */

static void hold(exec *e, gvmm_buffer *view)
{
    gvmm_segment list[SEGMENTS];
    size_t count = segments_of(view, list);
    for (size_t i = 0; i < count; i++) e->held[i] = (chunk){list[i].memory, 0, false};
    e->held_count = count;
}

static void capture_fills(member *m, capture *c, gvmm_buffer *view)
{
    gvmm_segment list[SEGMENTS];
    size_t count = segments_of(view, list);
    for (size_t i = 0; i < count; i++) {
        uint32_t word = below(m, 1u << 30);
        CUresult status = cu->cuMemsetD32Async(list[i].address, word, list[i].size / 4, c->on);
        if (!may_be_lost(c)) must_cu(status);
        c->got.fills[i] = (chunk){list[i].memory, word, true};
    }
    c->got.fill_count = count;
}

/* Held by the graph because it is released while its stream captures. The one thing that cannot be waited for if the
 * graph cannot hold it, so no fault here. */
static void release_captured(member *m, family *f, size_t i, CUstream s)
{
    gvmm_buffer *view = f->views[i];
    f->views[i] = f->views[--f->view_count];
    f->read_only[i] = f->read_only[f->view_count];
    faults_mask(true);
    if (below(m, 2)) {
        must(gvmm_buffer_close_deferred(view, s) == GVMM_OK);
    } else {
        gvmm_options options;
        gvmm_resource_options(f->kind->resource, &options);
        must(gvmm_buffer_set_stream(view, s) == GVMM_OK);
        if (options.release_mode == GVMM_RELEASE_SYNC) {
            must(gvmm_buffer_close(view, NULL) == GVMM_E_CAPTURING); /* and the capture goes on */
            must(gvmm_buffer_close_deferred(view, NULL) == GVMM_OK);
        }
    }
    gvmm_buffer_release(view);
    faults_mask(false);
    counted(FIGURE_captured_releases);
}

/* The stream lives on until the graph is gone if something was released into its capture; lasting[1] does. */
static void capture_buffer(member *m, capture *c, family *f)
{
    size_t i = below(m, (unsigned)f->view_count);
    gvmm_buffer *view = f->views[i];
    bool release = c->on == m->lasting[1] && below(m, 2), retain = !release || below(m, 2);
    if (f->read_only[i] || f->exec_count == EXECS || gvmm_buffer_size(view) == 0) return;
    if (retain) {
        call_begins(m);
        faults_allow_retain(true);
        gvmm_result r = gvmm_buffer_retain_in_capture(view, c->on);
        faults_allow_retain(false);
        if (!call_ended(m, may_be_lost(c) && r == GVMM_E_INVALID ? GVMM_OK : r, "retain in capture") || r) return;
    }
    c->of = f;
    c->got.holds = true;
    hold(&c->got, view);
    capture_fills(m, c, view);
    if (release) release_captured(m, f, i, c->on);
}

/* A block of a pool that only the captured work has. */
static void capture_block(member *m, capture *c)
{
    size_t words;
    unsigned pool;
    uint64_t address = captured_malloc(m, c->on, &words, &pool);
    if (!address) return;
    must_cu(cu->cuMemsetD32Async(address, 7, words, c->on));
    c->got.holds = true;
    faults_mask(true);
    must(gvmm_pool_free(pools[pool], address, c->on) == GVMM_OK);
    faults_mask(false);
}

/* ---- from capture to graph ---- */

static void launch(exec *e, CUstream s)
{
    must_cu(cu->cuGraphLaunch(e->exec, s));
    if (e->holds && !e->launched) counted(FIGURE_launched_holders);
    e->launched = true;
}

static void destroy(exec *e)
{
    must_cu(cu->cuGraphExecDestroy(e->exec));
    if (e->graph) must_cu(cu->cuGraphDestroy(e->graph));
}

static void instantiate(member *m, capture *c)
{
    exec *e = &c->got;
    must_cu(cu->cuGraphInstantiateWithFlags(&e->exec, e->graph, 0));
    if (below(m, 2)) {
        must_cu(cu->cuGraphDestroy(e->graph));
        e->graph = NULL;
    }
    if (c->of) {
        c->of->execs[c->of->exec_count++] = *e;
        recount(c->of);
        return;
    }
    CUstream s = any_stream(m, &kinds[0]);
    if (below(m, 2)) launch(e, s);
    destroy(e);
}

/* What was captured is gone, and what it held goes back. */
static void lost(member *m, capture *c, CUresult status)
{
    if (!may_be_lost(c)) wrong("a capture was lost: %s", gvmm_driver_status_name((int)status));
    counted(FIGURE_captures_lost);
    if (c->got.graph) must_cu(cu->cuGraphDestroy(c->got.graph));
    if (!c->of) return;
    recount(c->of);
    bury_if_empty(m, c->of);
}

void do_capture(member *m)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    capture c = {0};
    if (m->capturing) return;
    c.on = stream_to_capture(m, &c.blocking);
    family *f = any_family(m);
    if (f && f->on != c.on) settle(f->on); /* the capturing stream may be the one that is waited for */
    must_cu(cu->cuStreamBeginCapture(c.on, modes[below(m, 3)]));
    m->capturing = c.on;
    counted(FIGURE_captures);
    if (f) capture_buffer(m, &c, f);
    if (c.on == m->lasting[1] && below(m, 3) == 0) capture_block(m, &c);
    m->captured = c.of;
    for (unsigned i = below(m, 4); i--;) meanwhile(m);
    m->capturing = NULL;
    m->captured = NULL;
    CUresult status = cu->cuStreamEndCapture(c.on, &c.got.graph);
    if (status) lost(m, &c, status);
    else instantiate(m, &c);
}

/* ---- launches ---- */

/* Any of the family's, in the order of its stream. */
void do_launch(member *m)
{
    family *f = m->families[below(m, FAMILIES)];
    if (!f || !f->exec_count || f == m->captured || f->on == m->capturing) return;
    size_t i = below(m, (unsigned)f->exec_count);
    exec *e = &f->execs[i];
    for (unsigned times = below(m, 3); times--;) {
        launch(e, f->on);
        for (size_t s = 0; s < e->fill_count; s++) know(f, e->fills[s].memory, e->fills[s].word, true);
        counted(FIGURE_launches);
    }
    if (below(m, 3)) return;
    drop_exec(f, i); /* with its launches under way */
    recount(f);
    bury_if_empty(m, f);
}

void drop_exec(family *f, size_t i)
{
    destroy(&f->execs[i]);
    f->execs[i] = f->execs[--f->exec_count];
}

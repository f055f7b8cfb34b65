/* What the tests of deferred release have in common: a resource that defers, and memory that a capture has held. */
#ifndef GVMM_DEFERRED_KIT_H
#define GVMM_DEFERRED_KIT_H

#include "support.h"

static gvmm_resource *deferring;

static inline void setup_deferring(void)
{
    setup();
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.release_mode = GVMM_RELEASE_DEFERRED;
    deferring = resource_with(options);
}

static inline void teardown_deferring(void)
{
    gvmm_resource_release(deferring);
    teardown();
}

static inline uint64_t waiting(void) { return stats_of(NULL).releases_waiting; }

static inline gvmm_buffer *on_stream(gvmm_stream s)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, deferring, G, s));
    return buffer;
}

static inline void ck_capture_ends(gvmm_stream s, CUgraph *graph) { ck_cu(cu->cuStreamEndCapture(s, graph)); }

static inline void hold_by_capture_and_let_go(gvmm_buffer *held)
{
    CUgraph graph;
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    gvmm_buffer_release(held);
    ck_capture_ends(stream, &graph);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ck_cu(cu->cuGraphDestroy(graph));
    while (waiting() < 1) sched_yield(); /* it waits to be marked */
}

/* The same, and nothing captures any more. */
static inline void hold_and_let_go_idle(gvmm_buffer *held)
{
    CUgraph graph;
    hold_by_capture_and_let_go(held);
    ck_capture_ends(stream, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    while (gvmm__work_waiting()) sched_yield();
}

#endif

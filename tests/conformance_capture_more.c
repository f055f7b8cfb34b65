/* C: what captures are made of: begin and end, events, forks and joins, default streams, the graph under capture. */
#include "conformance.h"

static size_t nodes_of(CUgraph g)
{
    size_t n = 0;
    DO(cuGraphGetNodes(g, NULL, &n));
    return n;
}

static void end_counting(CUstream s)
{
    CUgraph g = NULL;
    CUresult r = drv->cuStreamEndCapture(s, &g);
    tell("end", r);
    if (r || !g) return;
    say("nodes=%zu", nodes_of(g));
    DO(cuGraphDestroy(g));
}

/* ---- begin and end ---- */

FACT(C_empty, "An empty capture.")
{
    CUstream s = stream();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    end_counting(s);
}
FACT(C_work_is_not_done, "Captured work is not done until the graph is launched.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemsetD8Async(p, 5, G, s));
    CUgraph g = end_graph(s);
    say("before=%d", byte_at(p));
    CUgraphExec x = executable(g);
    DO(cuGraphLaunch(x, s));
    DO(cuStreamSynchronize(s));
    say("after=%d", byte_at(p));
}
FACT(C_states, "A stream's status before, during and after a capture.")
{
    CUstream s = stream();
    say_capturing("before", s);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    say_capturing("during", s);
    say_capturing("legacy", CU_STREAM_LEGACY);
    say_capturing("per-thread", CU_STREAM_PER_THREAD);
    end(s);
    say_capturing("after", s);
}
FACT(C_state_invalidated, "A stream's status after its capture was invalidated, and after that was ended.")
{
    CUstream s = stream(), other = stream();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemsetD8Async(buffer(G), 1, G, s));
    TELL("harm", cuStreamSynchronize(other));
    say_capturing("status", s);
    TELL("memset", cuMemsetD8Async(buffer(G), 1, G, s));
    TELL("synchronize", cuStreamSynchronize(other));
    end(s);
    say_capturing("after", s);
    TELL("usable", cuStreamSynchronize(s));
}
FACT(C_invalid_graph, "The graph that an invalidated capture gives.")
{
    CUstream s = stream();
    CUgraph g = (CUgraph)(uintptr_t)8;
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    cuuint64_t id = 0;
    CUstreamCaptureStatus status;
    CUgraph under = NULL;
    drv->cuStreamSynchronize(s);
    TELL("info", cuStreamGetCaptureInfo(s, &status, &id, &under, NULL, NULL));
    say("status=%d", (int)status);
    TELL("end", cuStreamEndCapture(s, &g));
    say("null=%d", g == NULL);
}
FACT(C_end_not_capturing, "Ending a capture that was not begun.") { end(stream()); }
FACT(C_begin_mode_3, "Beginning in mode 3.")
{
    CUstream s = stream();
    TELL("", cuStreamBeginCapture(s, (CUstreamCaptureMode)3));
}
FACT(C_exchange_mode_3, "Exchanging the thread's mode for mode 3.")
{
    CUstreamCaptureMode mode = (CUstreamCaptureMode)3;
    TELL("", cuThreadExchangeStreamCaptureMode(&mode));
}
FACT(C_exchange, "Exchanging the thread's mode gives the one before; a thread begins global.")
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    TELL("", cuThreadExchangeStreamCaptureMode(&mode));
    say("was=%d", (int)mode);
    mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    DO(cuThreadExchangeStreamCaptureMode(&mode));
    say("was=%d", (int)mode);
}
FACT(C_exchange_local,
     "A thread that captures in global mode and made itself thread-local synchronises another stream.")
{
    CUstream s = stream(), other = stream();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    set_mode(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    TELL("", cuStreamSynchronize(other));
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    end(s);
}

static CUstream thread_stream, thread_other;
static void synchronize_thread_local(void *unused)
{
    (void)unused;
    set_mode(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    TELL("", cuStreamSynchronize(thread_other));
}
FACT(C_thread_local_thread,
     "A thread that made itself thread-local synchronises a stream while another captures in global mode.")
{
    thread_stream = stream();
    thread_other = stream();
    begin(thread_stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    in_thread(synchronize_thread_local, NULL);
    end(thread_stream);
}

static void end_in_thread(void *unused)
{
    (void)unused;
    end(thread_stream);
}

static void end_elsewhere(CUstreamCaptureMode mode)
{
    thread_stream = stream();
    begin(thread_stream, mode);
    in_thread(end_in_thread, NULL);
    say_capturing("status", thread_stream);
    end(thread_stream);
}

FACT(C_end_thread_global, "Another thread ends a capture in global mode.")
{
    end_elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL);
}
FACT(C_end_thread_local, "Another thread ends a capture in thread-local mode.")
{
    end_elsewhere(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}
FACT(C_end_thread_relaxed, "Another thread ends a capture in relaxed mode.")
{
    end_elsewhere(CU_STREAM_CAPTURE_MODE_RELAXED);
}

static void work_in_thread(void *p) { TELL("", cuMemsetD8Async(*(CUdeviceptr *)p, 1, G, thread_stream)); }

FACT(C_work_thread, "Another thread gives work to a stream that captures in global mode.")
{
    CUdeviceptr p = buffer(G);
    thread_stream = stream();
    begin(thread_stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    in_thread(work_in_thread, &p);
    end_counting(thread_stream);
}
FACT(C_destroy_capturing, "Destroying a stream that captures: what a later call of the thread meets.")
{
    CUstream s = stream(), other = stream();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("destroy", cuStreamDestroy(GONE(s)));
    TELL("synchronize", cuStreamSynchronize(other));
}
FACT(C_two, "Two captures by one thread: both are lost by one forbidden call.")
{
    CUstream a = stream(), b = stream(), other = stream();
    begin(a, CU_STREAM_CAPTURE_MODE_GLOBAL);
    begin(b, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    TELL("", cuStreamSynchronize(other));
    end(a);
    end(b);
}
FACT(C_two_relaxed_safe, "A relaxed and a global capture by one thread: does a forbidden call cost the relaxed one.")
{
    CUstream a = stream(), b = stream(), other = stream();
    begin(a, CU_STREAM_CAPTURE_MODE_GLOBAL);
    begin(b, CU_STREAM_CAPTURE_MODE_RELAXED);
    TELL("", cuStreamSynchronize(other));
    end(a);
    end(b);
}

/* ---- default streams ---- */

FACT(C_begin_legacy, "Beginning a capture on the legacy stream.")
{
    TELL("", cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL));
}
FACT(C_begin_zero, "Beginning a capture on stream 0.")
{
    TELL("", cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
}
FACT(C_perthread, "A capture on the per-thread stream counts as a blocking stream's.")
{
    begin(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL);
    say_capturing("per-thread", CU_STREAM_PER_THREAD);
    say_capturing("legacy", CU_STREAM_LEGACY);
    end(CU_STREAM_PER_THREAD);
}
FACT(C_perthread_synchronize, "Synchronising the legacy stream, relaxed, while the per-thread stream captures.")
{
    begin(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL);
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    TELL("", cuStreamSynchronize(CU_STREAM_LEGACY));
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    end(CU_STREAM_PER_THREAD);
}
FACT(C_nonblocking_legacy, "Synchronising the legacy stream, relaxed, while a non-blocking stream captures.")
{
    CUstream s = stream();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    TELL("", cuStreamSynchronize(CU_STREAM_LEGACY));
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    end(s);
}
FACT(C_nonblocking_legacy_work, "Work on the legacy stream while a non-blocking stream captures.")
{
    CUstream s = stream();
    CUevent e = event();
    CUdeviceptr p = buffer(G);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("memset", cuMemsetD8Async(p, 1, G, CU_STREAM_LEGACY));
    TELL("record", cuEventRecord(e, CU_STREAM_LEGACY));
    end(s);
}
FACT(C_blocking_relaxed, "Work on the legacy stream while a blocking stream captures in relaxed mode.")
{
    CUstream s = blocking_stream();
    CUdeviceptr p = buffer(G);
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    say_capturing("legacy", CU_STREAM_LEGACY);
    TELL("memset", cuMemsetD8Async(p, 1, G, CU_STREAM_LEGACY));
    end(s);
}
FACT(C_fork_nonblocking, "A non-blocking stream that joined a blocking stream's capture, and the legacy stream.")
{
    CUstream s = stream(), b = blocking_stream();
    CUevent e = event(), back = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(e, s));
    DO(cuStreamWaitEvent(b, e, 0));
    say_capturing("legacy", CU_STREAM_LEGACY);
    DO(cuEventRecord(back, b));
    DO(cuStreamWaitEvent(s, back, 0));
    say_capturing("joined", CU_STREAM_LEGACY);
    end(s);
    say_capturing("after", CU_STREAM_LEGACY);
}

/* ---- events in captures ---- */

FACT(C_event_adds_nothing, "Recording an event into a capture adds no node.")
{
    CUstream s = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("record", cuEventRecord(e, s));
    end_counting(s);
}
FACT(C_event_timing, "Recording an event with timing into a capture.")
{
    CUstream s = stream();
    CUevent e = timing_event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("record", cuEventRecord(e, s));
    end_counting(s);
}

static CUstream idle;

/* `call` on an event that was recorded into the capture of a relaxed thread. */
static void captured_event(CUresult (*call)(CUevent))
{
    CUstream s = stream();
    idle = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(e, s));
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    tell("", call(e));
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    end(s);
}

static CUresult query(CUevent e) { return drv->cuEventQuery(e); }
static CUresult synchronize(CUevent e) { return drv->cuEventSynchronize(e); }
static CUresult elapsed(CUevent e)
{
    float ms;
    return drv->cuEventElapsedTime(&ms, e, e);
}
static CUresult record_elsewhere(CUevent e) { return drv->cuEventRecord(e, idle); }
static CUresult destroy(CUevent e) { return drv->cuEventDestroy(GONE(e)); }
static CUresult legacy_wait(CUevent e) { return drv->cuStreamWaitEvent(CU_STREAM_LEGACY, e, 0); }

FACT(C_event_query, "Querying an event that was recorded into a capture.") { captured_event(query); }
FACT(C_event_synchronize, "Synchronising an event that was recorded into a capture.") { captured_event(synchronize); }
FACT(C_event_elapsed, "Elapsed time of an event that was recorded into a capture.") { captured_event(elapsed); }
FACT(C_event_rerecord, "Recording an event elsewhere that was recorded into a capture.")
{
    captured_event(record_elsewhere);
}
FACT(C_event_destroy, "Destroying an event that was recorded into a capture.") { captured_event(destroy); }
FACT(C_event_legacy_wait, "The legacy stream waits for an event that was recorded into a capture.")
{
    captured_event(legacy_wait);
}
FACT(C_event_query_then, "Querying, then synchronising an event that was recorded into a capture.")
{
    CUstream s = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    TELL("record", cuEventRecord(e, s));
    TELL("query", cuEventQuery(e));
    TELL("synchronize", cuEventSynchronize(e));
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    end(s);
}
FACT(C_event_after_invalidated,
     "After its capture was lost, an event recorded into it has no meaning until it is recorded again.")
{
    CUstream s = stream(), other = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(e, s));
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    drv->cuEventQuery(e);
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    end(s);
    TELL("query", cuEventQuery(e));
    TELL("record", cuEventRecord(e, other));
    DO(cuStreamSynchronize(other));
    TELL("query", cuEventQuery(e));
}
FACT(C_event_after, "After the capture, an event recorded into it has no meaning until it is recorded again.")
{
    CUstream s = stream(), other = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(e, s));
    end_graph(s);
    TELL("query", cuEventQuery(e));
    TELL("record", cuEventRecord(e, other));
    DO(cuStreamSynchronize(other));
    TELL("query", cuEventQuery(e));
}
FACT(C_event_after_more, "After the capture: synchronising and waiting for an event recorded into it.")
{
    CUstream s = stream(), other = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(e, s));
    end_graph(s);
    TELL("synchronize", cuEventSynchronize(e));
    TELL("wait", cuStreamWaitEvent(other, e, 0));
}
FACT(C_event_before, "An event recorded on a stream before it began to capture can be queried and waited for, relaxed.")
{
    CUstream s = stream();
    CUevent e = event();
    DO(cuEventRecord(e, s));
    DO(cuStreamSynchronize(s));
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    TELL("query", cuEventQuery(e));
    TELL("synchronize", cuEventSynchronize(e));
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    end(s);
}
FACT(C_event_before_waited, "A captured stream that waits for an event recorded outside: isolation.")
{
    CUstream s = stream(), other = stream();
    CUevent e = event();
    DO(cuEventRecord(e, other));
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    TELL("", cuStreamWaitEvent(s, e, 0));
    end(s);
}
FACT(C_event_fresh_waited, "A captured stream that waits for an event never recorded.")
{
    CUstream s = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("", cuStreamWaitEvent(s, e, 0));
    end(s);
}
FACT(C_pending_before, "A stream whose earlier work still runs begins to capture; its event from before completes.")
{
    CUstream s = stream();
    CUevent e = event();
    gate *g = gate_on(s);
    DO(cuEventRecord(e, s));
    TELL("begin", cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    set_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    TELL("query", cuEventQuery(e));
    gate_open(g);
    TELL("synchronize", cuEventSynchronize(e));
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    end(s);
}

/* ---- forks and joins ---- */

FACT(C_fork_join, "A second stream joins a capture by an event and is joined back by another.")
{
    CUstream s = stream(), t = stream();
    CUdeviceptr p = buffer(2 * G);
    CUevent fork = event(), join = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemsetD8Async(p, 1, G, s));
    DO(cuEventRecord(fork, s));
    TELL("wait", cuStreamWaitEvent(t, fork, 0));
    say_capturing("forked", t);
    DO(cuMemsetD8Async(p + G, 1, G, t));
    DO(cuEventRecord(join, t));
    TELL("join", cuStreamWaitEvent(s, join, 0));
    end_counting(s);
    say_capturing("after", t);
}
FACT(C_fork_unjoined, "A forked stream that was given work and never joined back.")
{
    CUstream s = stream(), t = stream();
    CUdeviceptr p = buffer(2 * G);
    CUevent fork = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(fork, s));
    DO(cuStreamWaitEvent(t, fork, 0));
    DO(cuMemsetD8Async(p, 1, G, t));
    end(s);
    say_capturing("origin", s);
    say_capturing("fork", t);
}
FACT(C_fork_idle, "A forked stream that was given no work and never joined back.")
{
    CUstream s = stream(), t = stream();
    CUevent fork = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemsetD8Async(buffer(G), 1, G, s));
    DO(cuEventRecord(fork, s));
    DO(cuStreamWaitEvent(t, fork, 0));
    end(s);
    say_capturing("fork", t);
}
FACT(C_end_on_fork, "Ending the capture on the forked stream.")
{
    CUstream s = stream(), t = stream();
    CUevent fork = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(fork, s));
    DO(cuStreamWaitEvent(t, fork, 0));
    end(t);
    say_capturing("origin", s);
    end(s);
}
FACT(C_fork_destroyed, "Destroying the forked stream while it captures.")
{
    CUstream s = stream(), t = stream();
    CUevent fork = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(fork, s));
    DO(cuStreamWaitEvent(t, fork, 0));
    TELL("destroy", cuStreamDestroy(GONE(t)));
    say_capturing("origin", s);
    end(s);
}
FACT(C_merge, "A capture that waits for an event of another capture.")
{
    CUstream s = stream(), t = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    begin(t, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(e, s));
    TELL("", cuStreamWaitEvent(t, e, 0));
    end(s);
    end(t);
}
FACT(C_fork_busy, "A stream with running work joins a capture.")
{
    CUstream s = stream(), t = stream();
    CUevent fork = event();
    gate_on(t);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuEventRecord(fork, s));
    TELL("wait", cuStreamWaitEvent(t, fork, 0));
    say_capturing("status", t);
    end(s);
}
FACT(C_late_wait, "A stream that waits, after the capture ended, for an event recorded into it.")
{
    CUstream s = stream(), t = stream();
    CUevent e = event();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemsetD8Async(buffer(G), 1, G, s));
    DO(cuEventRecord(e, s));
    end_graph(s);
    TELL("", cuStreamWaitEvent(t, e, 0));
    say_capturing("status", t);
}

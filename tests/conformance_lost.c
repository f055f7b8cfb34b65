/* C: captures that are lost, forks, refused arguments on a capturing stream. */
#include "conformance.h"

static void end_counting(CUstream s)
{
    CUgraph g = NULL;
    size_t nodes = 0, edges = 0;
    CUresult r = drv->cuStreamEndCapture(s, &g);
    tell("end", r);
    if (r || !g) return;
    DO(cuGraphGetNodes(g, NULL, &nodes));
    DO(cuGraphGetEdges(g, NULL, NULL, &edges));
    say("nodes=%zu edges=%zu", nodes, edges);
    DO(cuGraphDestroy(g));
}

/* ---- a lost capture, before it is ended ---- */

static CUstream lost_stream(void)
{
    CUstream s = stream();
    begin(s, GLOBAL);
    drv->cuStreamSynchronize(s);
    return s;
}

FACT(C_lost_record, "Recording an event on a stream whose capture is lost.")
{
    CUevent e = event();
    CUstream s = lost_stream();
    TELL("", cuEventRecord(e, s));
    end(s);
}
FACT(C_lost_wait, "A stream whose capture is lost waits for an event never recorded.")
{
    CUevent e = event();
    CUstream s = lost_stream();
    TELL("", cuStreamWaitEvent(s, e, 0));
    end(s);
}
FACT(C_lost_synchronize, "Synchronising and querying a stream whose capture is lost.")
{
    CUstream s = lost_stream();
    TELL("synchronize", cuStreamSynchronize(s));
    TELL("query", cuStreamQuery(s));
    end(s);
}
FACT(C_lost_begin, "Beginning a capture on a stream whose capture is lost.")
{
    CUstream s = lost_stream();
    TELL("", cuStreamBeginCapture(s, GLOBAL));
    end(s);
}
FACT(C_lost_update, "Changing the dependencies of a capture that is lost.")
{
    CUstream s = lost_stream();
    TELL("", cuStreamUpdateCaptureDependencies(s, NULL, 0, 0));
    end(s);
}
FACT(C_lost_flags, "The flags of a stream whose capture is lost.")
{
    CUstream s = lost_stream();
    unsigned flags = 0;
    TELL("", cuStreamGetFlags(s, &flags));
    end(s);
}
FACT(C_lost_launch, "Launching a graph on a stream whose capture is lost.")
{
    CUgraphExec x = executable(graph());
    CUstream s = lost_stream();
    TELL("", cuGraphLaunch(x, s));
    end(s);
}
FACT(C_lost_alloc, "cuMemAllocAsync on a stream whose capture is lost.")
{
    CUdeviceptr p = 0;
    CUstream s = lost_stream();
    tell("", try_alloc_async(&p, G, s));
    end(s);
}
FACT(C_lost_end_twice, "Ending a lost capture twice.")
{
    CUstream s = lost_stream();
    end(s);
    end(s);
}
FACT(C_lost_object, "When a user object on the graph of a capture goes that is lost: at once, or when it is ended.")
{
    CUstream s = stream();
    CUstreamCaptureStatus status;
    CUgraph g = NULL;
    CUuserObject object = NULL;
    atomic_int *gone = counter();
    begin(s, GLOBAL);
    DO(cuStreamGetCaptureInfo(s, &status, NULL, &g, NULL, NULL));
    DO(cuUserObjectCreate(&object, gone, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    DO(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    drv->cuStreamSynchronize(s);
    say("lost=%d", still(gone));
    end(s);
    say("ended=%d", still(gone));
}
FACT(C_lost_legacy, "The legacy stream, relaxed, once a blocking stream's capture is lost: its status, a query.")
{
    CUstream s = blocking_stream();
    begin(s, GLOBAL);
    set_mode(RELAXED);
    drv->cuStreamQuery(CU_STREAM_LEGACY);
    say_capturing("legacy", CU_STREAM_LEGACY);
    TELL("query", cuStreamQuery(CU_STREAM_LEGACY));
    set_mode(GLOBAL);
    end(s);
    TELL("then", cuStreamQuery(CU_STREAM_LEGACY));
}

/* ---- asking ---- */

FACT(C_status_null, "Asking for a stream's status with nowhere to put it.")
{
    CUstream s = stream();
    cuuint64_t id = 0;
    begin(s, GLOBAL);
    TELL("capturing", cuStreamIsCapturing(s, NULL));
    TELL("info", cuStreamGetCaptureInfo(s, NULL, &id, NULL, NULL, NULL));
    end(s);
}
FACT(C_not_capturing, "Ending a capture on the legacy stream, and changing dependencies, where nothing captures.")
{
    CUgraph g = NULL;
    TELL("end", cuStreamEndCapture(CU_STREAM_LEGACY, &g));
    TELL("update", cuStreamUpdateCaptureDependencies(stream(), NULL, 0, 0));
}
FACT(C_event_query_default, "Querying an event that was recorded into a capture, in default mode.")
{
    CUstream s = stream();
    CUevent e = event();
    begin(s, GLOBAL);
    DO(cuEventRecord(e, s));
    TELL("", cuEventQuery(e));
    end(s);
}
FACT(C_event_elapsed_after, "Elapsed time with an event recorded into a capture, during it and after.")
{
    CUstream s = stream(), other = stream();
    CUevent a = timing_event(), b = timing_event();
    float ms = 0;
    DO(cuEventRecord(a, other));
    DO(cuStreamSynchronize(other));
    begin(s, GLOBAL);
    DO(cuEventRecord(b, s));
    TELL("during", cuEventElapsedTime(&ms, a, b));
    end(s);
    TELL("after", cuEventElapsedTime(&ms, a, b));
}
FACT(C_event_older, "A capturing stream waits for an event that was recorded into an earlier capture.")
{
    CUstream s = stream();
    CUevent e = event();
    begin(s, GLOBAL);
    DO(cuEventRecord(e, s));
    end(s);
    begin(s, GLOBAL);
    TELL("", cuStreamWaitEvent(s, e, 0));
    end(s);
}

/* ---- forks ---- */

static CUstream origin, fork_stream;
static CUevent there, back;
static CUdeviceptr memory;

static void fork_now(void)
{
    origin = stream();
    fork_stream = stream();
    there = event();
    back = event();
    memory = buffer(4 * G);
    begin(origin, GLOBAL);
    DO(cuEventRecord(there, origin));
    DO(cuStreamWaitEvent(fork_stream, there, 0));
}

static void work_on(CUstream s, unsigned chunk) { DO(cuMemsetD8Async(memory + chunk * G, 1, G, s)); }

static void join(void)
{
    DO(cuEventRecord(back, fork_stream));
    DO(cuStreamWaitEvent(origin, back, 0));
}

FACT(C_fork_empty, "A fork from a capture without work, not joined.")
{
    fork_now();
    end_counting(origin);
    say_capturing("fork", fork_stream);
}
FACT(C_fork_more, "A fork that is joined and then given more work.")
{
    fork_now();
    work_on(fork_stream, 0);
    join();
    work_on(fork_stream, 1);
    end_counting(origin);
}
FACT(C_fork_update, "A fork that is joined by changing the origin's dependencies.")
{
    CUstreamCaptureStatus status;
    const CUgraphNode *dependencies = NULL;
    CUgraphNode node = NULL;
    size_t n = 0;
    fork_now();
    work_on(fork_stream, 0);
    DO(cuStreamGetCaptureInfo(fork_stream, &status, NULL, NULL, &dependencies, &n));
    must(n == 1, "one dependency");
    node = dependencies[0];
    TELL("update", cuStreamUpdateCaptureDependencies(origin, &node, 1, 1));
    end_counting(origin);
}
FACT(C_fork_begin, "Beginning a capture on a fork.")
{
    fork_now();
    TELL("", cuStreamBeginCapture(fork_stream, GLOBAL));
    end_counting(origin);
}
FACT(C_fork_destroyed_work, "Destroying a fork that was given work and not joined.")
{
    fork_now();
    work_on(fork_stream, 0);
    TELL("destroy", cuStreamDestroy(GONE(fork_stream)));
    say_capturing("origin", origin);
    end_counting(origin);
}
FACT(C_fork_destroyed_joined, "Destroying a fork that was given work and joined.")
{
    fork_now();
    work_on(fork_stream, 0);
    join();
    TELL("destroy", cuStreamDestroy(GONE(fork_stream)));
    end_counting(origin);
}
FACT(C_fork_destroyed_then, "Joining a fork by its event after it was destroyed.")
{
    fork_now();
    work_on(fork_stream, 0);
    DO(cuEventRecord(back, fork_stream));
    TELL("destroy", cuStreamDestroy(GONE(fork_stream)));
    TELL("join", cuStreamWaitEvent(origin, back, 0));
    end_counting(origin);
}
FACT(C_fork_origin_destroyed, "Destroying the origin: the fork's status, and work on it.")
{
    fork_now();
    TELL("destroy", cuStreamDestroy(GONE(origin)));
    say_capturing("fork", fork_stream);
    TELL("memset", cuMemsetD8Async(memory, 1, G, fork_stream));
    TELL("synchronize", cuStreamSynchronize(fork_stream));
}
FACT(C_fork_dependencies, "What a stream depends on after a join: both last nodes.")
{
    CUstreamCaptureStatus status;
    size_t n = 9;
    fork_now();
    work_on(origin, 0);
    DO(cuEventRecord(there, origin));
    DO(cuStreamWaitEvent(fork_stream, there, 0));
    work_on(origin, 1);
    work_on(fork_stream, 2);
    join();
    DO(cuStreamGetCaptureInfo(origin, &status, NULL, NULL, NULL, &n));
    say("dependencies=%zu", n);
    end_counting(origin);
}

/* ---- the graph under capture ---- */

FACT(C_graph_node, "The graph under capture takes a node, is cloned, and is instantiated, all relaxed.")
{
    CUstream s = stream();
    CUstreamCaptureStatus status;
    CUgraph g = NULL, clone = NULL;
    CUgraphNode node = NULL;
    CUgraphExec x = NULL;
    begin(s, RELAXED);
    DO(cuStreamGetCaptureInfo(s, &status, NULL, &g, NULL, NULL));
    TELL("add", cuGraphAddEmptyNode(&node, g, NULL, 0));
    TELL("clone", cuGraphClone(&clone, g));
    if (clone) DO(cuGraphDestroy(clone));
    TELL("instantiate", cuGraphInstantiateWithFlags(&x, g, 0));
    if (x) DO(cuGraphExecDestroy(x));
    end_counting(s);
}
FACT_ALONE(C_graph_destroyed, "Destroying the graph under capture.")
{
    CUstream s = stream();
    CUstreamCaptureStatus status;
    CUgraph g = NULL;
    begin(s, GLOBAL);
    DO(cuStreamGetCaptureInfo(s, &status, NULL, &g, NULL, NULL));
    TELL("destroy", cuGraphDestroy(g));
    end(s);
}

/* ---- work on a capturing stream that makes no sense, or cannot be done yet ---- */

static unsigned char page[4096];

#define REFUSED(name, call, sentence) \
    FACT(C_##name, sentence ", captured.") \
    { \
        CUstream s = stream(); \
        CUdeviceptr p = buffer(G), hole = reserve(G), none = unreserved(), host = (CUdeviceptr)(uintptr_t)page; \
        CUgraphExec x = executable(graph()); \
        (void)p, (void)hole, (void)none, (void)host, (void)x; \
        begin(s, RELAXED); \
        TELL("", call); \
        end_counting(s); \
    }

/* clang-format off */
REFUSED(unreserved_memset, cuMemsetD8Async(none, 1, G, s), "A memset of memory that is not reserved")
REFUSED(unmapped_copy_to, cuMemcpyDtoDAsync(hole, p, G, s), "A copy to unmapped memory")
REFUSED(unmapped_copy_from, cuMemcpyDtoDAsync(p, hole, G, s), "A copy from unmapped memory")
REFUSED(unreserved_copy, cuMemcpyDtoDAsync(none, p, G, s), "A copy to memory that is not reserved")
REFUSED(unmapped_copy_in, cuMemcpyHtoDAsync(hole, page, 4096, s), "A copy from the host to unmapped memory")
REFUSED(memset_odd, cuMemsetD32Async(p + 1, 1, 16, s), "A misaligned memset of words")
REFUSED(memset_long, cuMemsetD8Async(p, 1, 2 * G, s), "A memset that leaves its mapping")
REFUSED(memset_pageable, cuMemsetD8Async(host, 1, 16, s), "A memset of pageable memory")
REFUSED(copy_pageable, cuMemcpyDtoDAsync(p, host, 16, s), "A copy from pageable memory as device memory")
REFUSED(copy_out, cuMemcpyDtoHAsync(page, p, 4096, s), "A copy to pageable memory")
REFUSED(launch_relaxed, cuGraphLaunch(x, s), "A launch in a relaxed capture")
REFUSED(host_null, cuLaunchHostFunc(s, NULL, NULL), "A NULL host function")
/* clang-format on */

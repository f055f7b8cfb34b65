/* C: what captured work becomes, and the graph under capture. */
#include "conformance.h"

static size_t nodes_of(CUgraph g)
{
    size_t n = 0;
    DO(cuGraphGetNodes(g, NULL, &n));
    return n;
}

/* What a node is: "memset", or "?" for one that the list does not know. */
static const char *type_of(CUgraph g)
{
    static const char *const names[] = {"kernel", "memcpy", "memset", "host", "graph", "empty", "wait", "record"};
    CUgraphNode nodes[8];
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    size_t n = 8;
    DO(cuGraphGetNodes(g, nodes, &n));
    must(n >= 1, "no nodes");
    DO(cuGraphNodeGetType(nodes[0], &type));
    if (type == 10) return "alloc";
    if (type == 11) return "free";
    return (unsigned)type < 8 ? names[type] : "?";
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

static CUgraph graph_under(CUstream s)
{
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    CUgraph g = NULL;
    const CUgraphNode *dependencies = NULL;
    size_t n = 0;
    DO(cuStreamGetCaptureInfo(s, &status, &id, &g, &dependencies, &n));
    return g;
}

/* ---- what work becomes ---- */

/* The type of the one node that `call` on a capturing stream makes. */
#define BECOMES(name, call, what) \
    FACT(C_node_##name, what ", captured: the node's type.") \
    { \
        CUstream s = stream(); \
        CUdeviceptr p = buffer(2 * G), made = 0; \
        CUgraph child = graph(); \
        memset_node(child, p, G, 1); \
        CUgraphExec x = executable(child); \
        (void)x, (void)made; \
        begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL); \
        TELL("", call); \
        CUgraph g = NULL; \
        CUresult r = drv->cuStreamEndCapture(s, &g); \
        tell("end", r); \
        if (r || !g) return; \
        say("nodes=%zu", nodes_of(g)); \
        if (nodes_of(g)) say("%s", type_of(g)); \
        DO(cuGraphDestroy(g)); \
    }

static unsigned char some_bytes[64];

BECOMES(memset, cuMemsetD8Async(p, 1, G, s), "cuMemsetD8Async")
BECOMES(memset_nothing, cuMemsetD8Async(p, 1, 0, s), "cuMemsetD8Async of no bytes")
BECOMES(copy, cuMemcpyDtoDAsync(p + G, p, G, s), "cuMemcpyDtoDAsync")
BECOMES(copy_in, cuMemcpyHtoDAsync(p, some_bytes, sizeof some_bytes, s), "cuMemcpyHtoDAsync of pageable memory")
BECOMES(host, cuLaunchHostFunc(s, count, counter()), "cuLaunchHostFunc")
BECOMES(launch, cuGraphLaunch(x, s), "cuGraphLaunch")
BECOMES(alloc, cuMemAllocAsync(&made, G, s), "cuMemAllocAsync")
FACT(C_node_alloc_free, "cuMemAllocAsync and cuMemFreeAsync, captured, and the graph launched.")
{
    CUstream s = stream();
    CUdeviceptr p = 0;
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("alloc", cuMemAllocAsync(&p, G, s));
    TELL("memset", cuMemsetD8Async(p, 1, G, s));
    TELL("free", cuMemFreeAsync(p, s));
    CUgraph g = NULL;
    TELL("end", cuStreamEndCapture(s, &g));
    if (!g) return;
    CUgraphExec x = NULL;
    TELL("instantiate", cuGraphInstantiateWithFlags(&x, g, 0));
    if (x) {
        TELL("launch", cuGraphLaunch(x, s));
        TELL("synchronize", cuStreamSynchronize(s));
        DO(cuGraphExecDestroy(x));
    }
    DO(cuGraphDestroy(g));
}
FACT(C_unmapped_memset, "A memset of unmapped memory while capturing: when is it refused.")
{
    CUstream s = stream();
    CUdeviceptr p = reserve(G);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("", cuMemsetD8Async(p, 1, G, s));
    say_capturing("status", s);
    end_counting(s);
}
FACT(C_read_only_memset, "A memset of read-only memory while capturing.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(G);
    give_access(p, G, CU_MEM_ACCESS_FLAGS_PROT_READ);
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("", cuMemsetD8Async(p, 1, G, s));
    end_counting(s);
}

/* ---- the graph under capture ---- */

static CUuserObject object_of(atomic_int *gone)
{
    CUuserObject object = NULL;
    DO(cuUserObjectCreate(&object, gone, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return object;
}

static void retain_under_capture(bool launch)
{
    CUstream s = stream(), other = stream();
    CUdeviceptr p = buffer(G);
    atomic_int *gone = counter();
    CUgraph g = NULL;
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemsetD8Async(p, 1, G, s));
    CUgraph under = graph_under(s);
    TELL("retain", cuGraphRetainUserObject(under, object_of(gone), 1, CU_GRAPH_USER_OBJECT_MOVE));
    TELL("end", cuStreamEndCapture(s, &g));
    say("same=%d", g == under);
    CUgraphExec x = executable(g);
    DO(cuGraphDestroy(g));
    say("graph-gone=%d", atomic_load(gone));
    gate *hold = launch ? gate_on(other) : NULL;
    if (launch) DO(cuGraphLaunch(x, other));
    DO(cuGraphExecDestroy(GONE(x)));
    if (launch) say("launched=%d", atomic_load(gone));
    if (hold) gate_open(hold);
    DO(cuStreamSynchronize(other));
    say("destroyed=%d", wait_for(gone, 1));
}

FACT(C_retain, "A user object retained on the graph under capture lives as long as the graph and its executables.")
{
    retain_under_capture(false);
}
FACT(C_retain_launch, "The same, with a launch in flight when the executable is destroyed.")
{
    retain_under_capture(true);
}
FACT(C_retain_invalidated, "A user object on the graph of a capture that is invalidated: when it goes.")
{
    CUstream s = stream();
    atomic_int *gone = counter();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuGraphRetainUserObject(graph_under(s), object_of(gone), 1, CU_GRAPH_USER_OBJECT_MOVE));
    drv->cuStreamSynchronize(s);
    end(s);
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(C_retain_destroyed, "A user object on the graph of a capture whose stream is destroyed.")
{
    CUstream s = stream();
    atomic_int *gone = counter();
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuGraphRetainUserObject(graph_under(s), object_of(gone), 1, CU_GRAPH_USER_OBJECT_MOVE));
    TELL("destroy", cuStreamDestroy(GONE(s)));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(C_info_none, "Capture info of a stream that does not capture.")
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cuuint64_t id = 99;
    CUgraph g = NULL;
    TELL("", cuStreamGetCaptureInfo(stream(), &status, &id, &g, NULL, NULL));
    say("status=%d", (int)status);
}
FACT(C_info, "Capture info: the last node is what later work depends on; two captures have different ids.")
{
    CUstream s = stream(), t = stream();
    CUstreamCaptureStatus status;
    cuuint64_t a = 0, b = 0;
    const CUgraphNode *dependencies = NULL;
    CUgraph g = NULL;
    size_t n = 9;
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    begin(t, CU_STREAM_CAPTURE_MODE_GLOBAL);
    TELL("", cuStreamGetCaptureInfo(s, &status, &a, &g, &dependencies, &n));
    say("status=%d dependencies=%zu", (int)status, n);
    DO(cuMemsetD8Async(buffer(G), 1, G, s));
    DO(cuStreamGetCaptureInfo(s, &status, &a, &g, &dependencies, &n));
    DO(cuStreamGetCaptureInfo(t, &status, &b, NULL, NULL, NULL));
    say("then=%zu differ=%d", n, a != b);
    end(s);
    end(t);
}
FACT(C_update, "Replacing a capture's dependencies with none: later work has none.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G);
    size_t edges = 9;
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemsetD8Async(p, 1, G, s));
    TELL("", cuStreamUpdateCaptureDependencies(s, NULL, 0, 1));
    DO(cuMemsetD8Async(p + G, 1, G, s));
    CUgraph g = NULL;
    TELL("end", cuStreamEndCapture(s, &g));
    if (!g) return;
    DO(cuGraphGetEdges(g, NULL, NULL, &edges));
    say("nodes=%zu edges=%zu", nodes_of(g), edges);
    DO(cuGraphDestroy(g));
}

/* G: graphs, executables, user objects. */
#include "conformance.h"

#include <pthread.h>

static CUuserObject object_of(atomic_int *gone)
{
    CUuserObject object = NULL;
    DO(cuUserObjectCreate(&object, gone, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return object;
}

/* A graph that holds a user object counted by `gone`. */
static CUgraph holding(atomic_int *gone)
{
    CUgraph g = graph();
    DO(cuGraphRetainUserObject(g, object_of(gone), 1, CU_GRAPH_USER_OBJECT_MOVE));
    return g;
}

/* ---- user objects ---- */

static pthread_t asker;
static CUdeviceptr destructor_p;
static CUresult in_destructor[2];
static bool destructor_on_main;

static void destructor(void *gone)
{
    CUcontext c = NULL;
    destructor_on_main = pthread_equal(pthread_self(), asker);
    in_destructor[0] = drv->cuCtxGetCurrent(&c);
    in_destructor[1] = drv->cuMemUnmap(destructor_p, 2 * G);
    count(gone);
}

FACT(G_object_order, "A graph's user object outlives the graph, and the executable while its launch is in flight.")
{
    CUstream s = stream();
    atomic_int *gone = counter();
    CUgraph g = holding(gone);
    memset_node(g, buffer(2 * G), 2 * G, 3);
    CUgraphExec x = executable(g);
    DO(cuGraphDestroy(GONE(g)));
    say("graph-gone=%d", atomic_load(gone));
    gate *hold = gate_on(s);
    DO(cuGraphLaunch(x, s));
    DO(cuGraphExecDestroy(GONE(x)));
    say("exec-gone=%d", atomic_load(gone));
    gate_open(hold);
    DO(cuStreamSynchronize(s));
    say("done=%d", wait_for(gone, 1));
}
FACT(G_object_destructor, "A destructor runs on a thread of the driver and may not call it.")
{
    atomic_int *gone = counter();
    CUuserObject object = NULL;
    asker = pthread_self();
    destructor_p = buffer(2 * G);
    DO(cuUserObjectCreate(&object, gone, destructor, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CUgraph g = graph();
    DO(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    memset_node(g, destructor_p, G, 1);
    CUgraphExec x = executable(g);
    CUstream s = stream();
    DO(cuGraphDestroy(GONE(g)));
    DO(cuGraphLaunch(x, s));
    DO(cuGraphExecDestroy(GONE(x)));
    DO(cuStreamSynchronize(s));
    must(wait_for(gone, 1) == 1, "destructor did not run");
    say("main=%d", destructor_on_main);
    tell("current", in_destructor[0]);
    tell("unmap", in_destructor[1]);
}
FACT(G_object_release,
     "Releasing the last reference to a user object: the destructor runs, on which thread, before the call returns?")
{
    atomic_int *gone = counter();
    CUuserObject object = NULL;
    asker = pthread_self();
    destructor_p = buffer(2 * G);
    DO(cuUserObjectCreate(&object, gone, destructor, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    TELL("", cuUserObjectRelease(object, 1));
    say("destroyed=%d", wait_for(gone, 1));
    say("main=%d", destructor_on_main);
    tell("unmap", in_destructor[1]);
}
FACT(G_object_graph_only, "Destroying a graph that was never instantiated drops its user object.")
{
    atomic_int *gone = counter();
    CUgraph g = holding(gone);
    TELL("", cuGraphDestroy(GONE(g)));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_exec_only, "Destroying the executable before the graph: the graph still holds the object.")
{
    atomic_int *gone = counter();
    CUgraph g = holding(gone);
    CUgraphExec x = executable(g);
    DO(cuGraphExecDestroy(GONE(x)));
    say("exec-gone=%d", still(gone));
    DO(cuGraphDestroy(GONE(g)));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_two_execs, "Each executable of a graph holds the user object.")
{
    atomic_int *gone = counter();
    CUgraph g = holding(gone);
    CUgraphExec x = executable(g), y = executable(g);
    DO(cuGraphDestroy(GONE(g)));
    DO(cuGraphExecDestroy(GONE(x)));
    say("one-left=%d", still(gone));
    DO(cuGraphExecDestroy(GONE(y)));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_late, "A user object retained on a graph after it was instantiated: the executable does not hold it.")
{
    atomic_int *gone = counter();
    CUgraph g = graph();
    executable(g);
    DO(cuGraphRetainUserObject(g, object_of(gone), 1, CU_GRAPH_USER_OBJECT_MOVE));
    DO(cuGraphDestroy(GONE(g)));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_no_move, "Retaining on a graph without MOVE leaves the caller its reference.")
{
    atomic_int *gone = counter();
    CUuserObject object = object_of(gone);
    CUgraph g = graph();
    TELL("retain", cuGraphRetainUserObject(g, object, 1, 0));
    DO(cuGraphDestroy(GONE(g)));
    say("graph-gone=%d", still(gone));
    TELL("release", cuUserObjectRelease(object, 1));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_counts, "References are counted: three created, one moved, one released, one more.")
{
    atomic_int *gone = counter();
    CUuserObject object = NULL;
    CUgraph g = graph();
    TELL("create", cuUserObjectCreate(&object, gone, count, 3, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    TELL("move", cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    TELL("release", cuUserObjectRelease(object, 1));
    DO(cuGraphDestroy(GONE(g)));
    say("one-left=%d", still(gone));
    TELL("release", cuUserObjectRelease(object, 1));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_retain, "cuUserObjectRetain adds references.")
{
    atomic_int *gone = counter();
    CUuserObject object = object_of(gone);
    TELL("retain", cuUserObjectRetain(object, 2));
    TELL("release", cuUserObjectRelease(object, 2));
    say("one-left=%d", still(gone));
    TELL("release", cuUserObjectRelease(object, 1));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_graph_release, "cuGraphReleaseUserObject takes the graph's reference away.")
{
    atomic_int *gone = counter();
    CUuserObject object = object_of(gone);
    CUgraph g = graph();
    DO(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    TELL("", cuGraphReleaseUserObject(g, object, 1));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_graph_release_none, "cuGraphReleaseUserObject of an object that the graph does not hold.")
{
    atomic_int *gone = counter();
    CUuserObject object = object_of(gone);
    TELL("", cuGraphReleaseUserObject(graph(), object, 1));
    say("destroyed=%d", wait_for(gone, 1));
    if (!atomic_load(gone)) DO(cuUserObjectRelease(object, 1));
}
FACT_ALONE(G_object_graph_release_more, "cuGraphReleaseUserObject of more references than the graph holds.")
{
    atomic_int *gone = counter();
    CUuserObject object = NULL;
    CUgraph g = graph();
    DO(cuUserObjectCreate(&object, gone, count, 3, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    DO(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    TELL("", cuGraphReleaseUserObject(g, object, 2));
    say("destroyed=%d", still(gone));
    TELL("release", cuUserObjectRelease(object, 2));
}
FACT_ALONE(G_object_move_more, "Moving more references to a graph than there are.")
{
    atomic_int *gone = counter();
    CUuserObject object = object_of(gone);
    TELL("", cuGraphRetainUserObject(graph(), object, 2, CU_GRAPH_USER_OBJECT_MOVE));
    say("destroyed=%d", still(gone));
    if (!atomic_load(gone)) TELL("release", cuUserObjectRelease(object, 1));
}
FACT(G_object_flags_0, "A user object with flags 0, without the promise of no synchronisation.")
{
    CUuserObject object = NULL;
    CUresult r = drv->cuUserObjectCreate(&object, counter(), count, 1, 0);
    tell("", r);
    if (!r) DO(cuUserObjectRelease(object, 1));
}
FACT(G_object_count_0, "A user object with no references; retaining and releasing none.")
{
    CUuserObject object = NULL, good = object_of(counter());
    TELL("create", cuUserObjectCreate(&object, counter(), count, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    TELL("retain", cuUserObjectRetain(good, 0));
    TELL("release", cuUserObjectRelease(good, 0));
    TELL("graph", cuGraphRetainUserObject(graph(), good, 0, CU_GRAPH_USER_OBJECT_MOVE));
    DO(cuUserObjectRelease(good, 1));
}
FACT(G_object_flags_2, "Retaining on a graph with flags 2.")
{
    CUuserObject object = object_of(counter());
    TELL("", cuGraphRetainUserObject(graph(), object, 1, 2));
    DO(cuUserObjectRelease(object, 1));
}
FACT(G_object_clone, "A clone holds the graph's user objects.")
{
    atomic_int *gone = counter();
    CUgraph g = holding(gone), clone = NULL;
    TELL("clone", cuGraphClone(&clone, g));
    DO(cuGraphDestroy(GONE(g)));
    say("original-gone=%d", still(gone));
    DO(cuGraphDestroy(clone));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_child, "A child graph node holds the user objects of the graph it was made from.")
{
    atomic_int *gone = counter();
    CUgraph g = graph(), child = holding(gone);
    CUgraphNode node = NULL;
    TELL("add", cuGraphAddChildGraphNode(&node, g, NULL, 0, child));
    DO(cuGraphDestroy(GONE(child)));
    say("child-gone=%d", still(gone));
    CUgraphExec x = executable(g);
    DO(cuGraphDestroy(GONE(g)));
    say("graph-gone=%d", still(gone));
    DO(cuGraphExecDestroy(GONE(x)));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_object_relaunched, "An object goes once, after the last of several launches.")
{
    CUstream s = stream();
    atomic_int *gone = counter();
    CUgraph g = holding(gone);
    memset_node(g, buffer(2 * G), G, 3);
    CUgraphExec x = executable(g);
    DO(cuGraphDestroy(GONE(g)));
    gate *hold = gate_on(s);
    for (int i = 0; i < 3; i++) DO(cuGraphLaunch(x, s));
    DO(cuGraphExecDestroy(GONE(x)));
    gate_open(hold);
    DO(cuStreamSynchronize(s));
    wait_for(gone, 1);
    say("destroyed=%d", still(gone));
}
FACT(G_object_stream_gone, "The launch's stream may be destroyed too; the object goes when the launch is done.")
{
    CUstream s = stream();
    CUevent e = event();
    atomic_int *gone = counter();
    CUgraph g = holding(gone);
    memset_node(g, buffer(2 * G), G, 3);
    CUgraphExec x = executable(g);
    DO(cuGraphDestroy(GONE(g)));
    gate *hold = gate_on(s);
    DO(cuGraphLaunch(x, s));
    DO(cuEventRecord(e, s));
    TELL("exec", cuGraphExecDestroy(GONE(x)));
    TELL("stream", cuStreamDestroy(GONE(s)));
    say("before=%d", atomic_load(gone));
    gate_open(hold);
    TELL("wait", cuEventSynchronize(e));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT_ALONE(G_object_reset, "Resetting the primary context: does the user object of a live graph go.")
{
    atomic_int *gone = counter();
    holding(gone);
    TELL("", cuDevicePrimaryCtxReset(0));
    say("destroyed=%d", still(gone));
}

/* ---- launching ---- */

FACT(G_launch_empty, "Launching an empty graph.")
{
    CUstream s = stream();
    TELL("", cuGraphLaunch(executable(graph()), s));
    TELL("synchronize", cuStreamSynchronize(s));
}
FACT(G_launch_twice, "Launching an executable again while it runs: the launches follow each other, on two streams too.")
{
    CUstream s = stream(), t = stream();
    CUgraph g = graph();
    gate *hold = gate_new();
    atomic_int *runs = counter();
    CUgraphNode first = host_node(g, gate_wait, hold), second = host_node(g, count, runs);
    DO(cuGraphAddDependencies(g, &first, &second, 1));
    CUgraphExec x = executable(g);
    TELL("first", cuGraphLaunch(x, s));
    TELL("second", cuGraphLaunch(x, s));
    TELL("other", cuGraphLaunch(x, t));
    TELL("query", cuStreamQuery(t));
    say("runs=%d", atomic_load(runs));
    gate_open(hold);
    TELL("synchronize", cuStreamSynchronize(s));
    TELL("synchronize", cuStreamSynchronize(t));
    say("runs=%d", atomic_load(runs));
}
FACT(G_exec_destroyed_running, "Destroying an executable while it runs: the work is done all the same.")
{
    CUstream s = stream();
    CUgraph g = graph();
    CUdeviceptr p = buffer(2 * G);
    memset_node(g, p, G, 9);
    CUgraphExec x = executable(g);
    gate *hold = gate_on(s);
    DO(cuGraphLaunch(x, s));
    TELL("destroy", cuGraphExecDestroy(GONE(x)));
    TELL("query", cuStreamQuery(s));
    gate_open(hold);
    TELL("synchronize", cuStreamSynchronize(s));
    say("byte=%d", byte_at(p));
}
FACT(G_graph_gone, "An executable outlives its graph.")
{
    CUstream s = stream();
    CUgraph g = graph();
    CUdeviceptr p = buffer(2 * G);
    memset_node(g, p, G, 9);
    CUgraphExec x = executable(g);
    DO(cuGraphDestroy(GONE(g)));
    TELL("launch", cuGraphLaunch(x, s));
    TELL("synchronize", cuStreamSynchronize(s));
    say("byte=%d", byte_at(p));
}
FACT(G_exec_is_snapshot, "A node added after instantiation is not in the executable.")
{
    CUstream s = stream();
    CUgraph g = graph();
    CUdeviceptr p = buffer(2 * G);
    memset_node(g, p, G, 9);
    CUgraphExec x = executable(g);
    memset_node(g, p + G, G, 8);
    DO(cuGraphLaunch(x, s));
    DO(cuStreamSynchronize(s));
    say("bytes=%d,%d", byte_at(p), byte_at(p + G));
}
FACT(G_launch_legacy, "Launching on the legacy stream.")
{
    TELL("", cuGraphLaunch(executable(graph()), CU_STREAM_LEGACY));
}
FACT(G_launch_perthread, "Launching on the per-thread stream.")
{
    TELL("", cuGraphLaunch(executable(graph()), CU_STREAM_PER_THREAD));
}
FACT(G_instantiate_flags, "Instantiating with an unknown flag.")
{
    CUgraphExec x = NULL;
    CUresult r = drv->cuGraphInstantiateWithFlags(&x, graph(), 1ull << 20);
    tell("", r);
    if (!r) DO(cuGraphExecDestroy(x));
}
FACT(G_create_flags, "Creating a graph with flags 1.")
{
    CUgraph g = NULL;
    CUresult r = drv->cuGraphCreate(&g, 1);
    tell("", r);
    if (!r) DO(cuGraphDestroy(g));
}

/* ---- nodes ---- */

static void add_memset(CUgraph g, CUdeviceptr p)
{
    CUDA_MEMSET_NODE_PARAMS set = {.dst = p, .value = 1, .elementSize = 1, .width = G, .height = 1};
    CUgraphNode node = NULL;
    CUresult r = drv->cuGraphAddMemsetNode(&node, g, NULL, 0, &set, ctx);
    tell("add", r);
    if (r) return;
    CUgraphExec x = NULL;
    r = drv->cuGraphInstantiateWithFlags(&x, g, 0);
    tell("instantiate", r);
    if (r) return;
    CUstream s = stream();
    TELL("launch", cuGraphLaunch(x, s));
    TELL("synchronize", cuStreamSynchronize(s));
}

FACT_ALONE(G_memset_unmapped, "A memset node of memory that is not mapped: when is it refused.")
{
    add_memset(graph(), reserve(G));
}
FACT_ALONE(G_memset_unreserved, "A memset node of memory that is not reserved: when is it refused.")
{
    add_memset(graph(), unreserved());
}
FACT_ALONE(G_memset_read_only, "A memset node of read-only memory: when is it refused.")
{
    CUdeviceptr p = buffer(G);
    give_access(p, G, CU_MEM_ACCESS_FLAGS_PROT_READ);
    add_memset(graph(), p);
}
FACT_ALONE(G_memset_no_access, "A memset node of memory without access: when is it refused.")
{
    CUdeviceptr p = reserve(G);
    map(p, G, create(G));
    add_memset(graph(), p);
}
FACT(G_memset_kinds, "Memset nodes: element sizes 3 and 4, width 0, height 0, two rows.")
{
    CUgraph g = graph();
    CUgraphNode node = NULL;
    CUdeviceptr p = buffer(2 * G);
    CUDA_MEMSET_NODE_PARAMS set = {.dst = p, .value = 1, .elementSize = 3, .width = 8, .height = 1};
    TELL("size-3", cuGraphAddMemsetNode(&node, g, NULL, 0, &set, ctx));
    set.elementSize = 4;
    TELL("size-4", cuGraphAddMemsetNode(&node, g, NULL, 0, &set, ctx));
    set.width = 0;
    TELL("width-0", cuGraphAddMemsetNode(&node, g, NULL, 0, &set, ctx));
    set.width = 8;
    set.height = 0;
    TELL("height-0", cuGraphAddMemsetNode(&node, g, NULL, 0, &set, ctx));
    set.height = 2;
    set.pitch = 4096;
    TELL("rows", cuGraphAddMemsetNode(&node, g, NULL, 0, &set, ctx));
}
FACT(G_memset_no_context, "A memset node that names no context.")
{
    CUDA_MEMSET_NODE_PARAMS set = {.dst = buffer(G), .value = 1, .elementSize = 1, .width = G, .height = 1};
    CUgraphNode node = NULL;
    TELL("", cuGraphAddMemsetNode(&node, graph(), NULL, 0, &set, NULL));
}

static unsigned char host_bytes[4096];

static CUresult add_copy(CUgraph g, CUmemorytype from, CUdeviceptr src, CUmemorytype to, CUdeviceptr dst, size_t size)
{
    CUDA_MEMCPY3D copy;
    CUgraphNode node = NULL;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = from;
    copy.dstMemoryType = to;
    if (from == CU_MEMORYTYPE_HOST) copy.srcHost = (const void *)(uintptr_t)src;
    else copy.srcDevice = src;
    if (to == CU_MEMORYTYPE_HOST) copy.dstHost = (void *)(uintptr_t)dst;
    else copy.dstDevice = dst;
    copy.WidthInBytes = size;
    copy.Height = copy.Depth = 1;
    return drv->cuGraphAddMemcpyNode(&node, g, NULL, 0, &copy, ctx);
}

FACT(G_copy_in, "A copy node from the host; the host's bytes are read at the launch.")
{
    CUstream s = stream();
    CUgraph g = graph();
    CUdeviceptr p = buffer(G);
    host_bytes[0] = 1;
    tell("add", add_copy(g, CU_MEMORYTYPE_HOST, (CUdeviceptr)(uintptr_t)host_bytes, CU_MEMORYTYPE_DEVICE, p,
                         sizeof host_bytes));
    CUgraphExec x = executable(g);
    host_bytes[0] = 77;
    TELL("launch", cuGraphLaunch(x, s));
    TELL("synchronize", cuStreamSynchronize(s));
    say("byte=%d", byte_at(p));
}
FACT(G_copy_out, "A copy node to the host.")
{
    CUstream s = stream();
    CUgraph g = graph();
    CUdeviceptr p = buffer(G);
    DO(cuMemsetD8(p, 55, G));
    tell("add", add_copy(g, CU_MEMORYTYPE_DEVICE, p, CU_MEMORYTYPE_HOST, (CUdeviceptr)(uintptr_t)host_bytes,
                         sizeof host_bytes));
    TELL("launch", cuGraphLaunch(executable(g), s));
    TELL("synchronize", cuStreamSynchronize(s));
    say("byte=%d", host_bytes[100]);
}
FACT(G_copy, "A copy node between device buffers, as UNIFIED too.")
{
    CUstream s = stream();
    CUgraph g = graph();
    CUdeviceptr p = buffer(G), q = buffer(2 * G);
    DO(cuMemsetD8(p, 44, G));
    tell("device", add_copy(g, CU_MEMORYTYPE_DEVICE, p, CU_MEMORYTYPE_DEVICE, q, G));
    tell("unified", add_copy(g, CU_MEMORYTYPE_UNIFIED, p, CU_MEMORYTYPE_UNIFIED, q + G, G));
    TELL("launch", cuGraphLaunch(executable(g), s));
    TELL("synchronize", cuStreamSynchronize(s));
    say("bytes=%d,%d", byte_at(q + 1), byte_at(q + G + 1));
}
FACT(G_copy_unmapped, "A copy node from memory that is not mapped.")
{
    tell("add", add_copy(graph(), CU_MEMORYTYPE_DEVICE, reserve(G), CU_MEMORYTYPE_DEVICE, buffer(G), G));
}
FACT(G_copy_nothing, "A copy node of no bytes.")
{
    tell("add", add_copy(graph(), CU_MEMORYTYPE_DEVICE, buffer(G), CU_MEMORYTYPE_DEVICE, buffer(G), 0));
}
FACT(G_cycle, "Two nodes that depend on each other: when is it refused.")
{
    CUgraph g = graph();
    CUgraphNode a = host_node(g, count, counter()), b = host_node(g, count, counter());
    CUgraphExec x = NULL;
    DO(cuGraphAddDependencies(g, &a, &b, 1));
    TELL("add", cuGraphAddDependencies(g, &b, &a, 1));
    CUresult r = drv->cuGraphInstantiateWithFlags(&x, g, 0);
    tell("instantiate", r);
    if (!r) DO(cuGraphExecDestroy(x));
}
FACT(G_self_edge, "A node that depends on itself.")
{
    CUgraph g = graph();
    CUgraphNode a = host_node(g, count, counter());
    TELL("", cuGraphAddDependencies(g, &a, &a, 1));
}
FACT(G_same_edge, "The same dependency twice.")
{
    CUgraph g = graph();
    CUgraphNode a = host_node(g, count, counter()), b = host_node(g, count, counter());
    TELL("first", cuGraphAddDependencies(g, &a, &b, 1));
    TELL("second", cuGraphAddDependencies(g, &a, &b, 1));
}
FACT(G_foreign_node, "A dependency on a node of another graph.")
{
    CUgraph g = graph(), other = graph();
    CUgraphNode a = host_node(g, count, counter()), b = host_node(other, count, counter());
    TELL("", cuGraphAddDependencies(g, &a, &b, 1));
}
FACT(G_child_is_copy, "A child graph is copied when it is added: a node added to it later is not run.")
{
    CUstream s = stream();
    CUgraph g = graph(), child = graph();
    CUgraphNode node = NULL;
    atomic_int *runs = counter();
    host_node(child, count, runs);
    DO(cuGraphAddChildGraphNode(&node, g, NULL, 0, child));
    host_node(child, count, runs);
    TELL("launch", cuGraphLaunch(executable(g), s));
    TELL("synchronize", cuStreamSynchronize(s));
    say("runs=%d", atomic_load(runs));
}
FACT(G_child_itself, "A graph as its own child.")
{
    CUgraph g = graph();
    CUgraphNode node = NULL;
    TELL("", cuGraphAddChildGraphNode(&node, g, NULL, 0, g));
}
FACT(G_nodes_and_edges, "Counting nodes and edges; asking for fewer than there are.")
{
    CUgraph g = graph();
    CUgraphNode a = host_node(g, count, counter()), b = host_node(g, count, counter()), nodes[4] = {0};
    size_t n = 9, edges = 9;
    DO(cuGraphAddDependencies(g, &a, &b, 1));
    TELL("nodes", cuGraphGetNodes(g, NULL, &n));
    TELL("edges", cuGraphGetEdges(g, NULL, NULL, &edges));
    say("%zu %zu", n, edges);
    n = 1;
    TELL("one", cuGraphGetNodes(g, nodes, &n));
    say("%zu", n);
    n = 4;
    TELL("four", cuGraphGetNodes(g, nodes, &n));
    say("%zu null=%d", n, nodes[3] == NULL);
}
FACT(G_host_driver_call, "A host node's function may not call the driver either.")
{
    CUstream s = stream();
    CUgraph g = graph();
    asker = pthread_self();
    destructor_p = buffer(2 * G);
    host_node(g, destructor, counter());
    DO(cuGraphLaunch(executable(g), s));
    DO(cuStreamSynchronize(s));
    say("main=%d", destructor_on_main);
    tell("unmap", in_destructor[1]);
}

/* ---- handles that are gone ---- */

FACT_ALONE(G_destroy_twice, "Destroying a graph twice.")
{
    CUgraph g = graph();
    DO(cuGraphDestroy(g));
    TELL("", cuGraphDestroy(g));
}
FACT_ALONE(G_exec_destroy_twice, "Destroying an executable twice.")
{
    CUgraphExec x = executable(graph());
    DO(cuGraphExecDestroy(x));
    TELL("", cuGraphExecDestroy(x));
}
FACT_ALONE(G_object_release_more, "Releasing more references to a user object than there are.")
{
    atomic_int *gone = counter();
    TELL("", cuUserObjectRelease(object_of(gone), 2));
    say("destroyed=%d", wait_for(gone, 1));
}
FACT(G_destroy_null, "Destroying graph NULL and executable NULL.")
{
    TELL("graph", cuGraphDestroy(NULL));
    TELL("exec", cuGraphExecDestroy(NULL));
}

/* Graphs and their nodes. */
#include <string.h>

#include "exec.h"

static sim_graph *graphs; /* child graphs too */
static uint64_t last_node;

/* ---------------------------------------------------------------------------------------------
 * Life of a graph
 * ------------------------------------------------------------------------------------------- */

sim_graph *sim_graph_new(bool handle)
{
    sim_graph *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    if (handle) {
        sim_object_add(&g->object, GVMM_SIM_GRAPH, 0, 0);
        g->object.references = 1;
    }
    g->next = graphs;
    if (graphs) graphs->previous = g;
    graphs = g;
    return g;
}

static void node_free(sim_node *n)
{
    if (n->child) sim_graph_free(n->child);
    free(n->before);
}

void sim_graph_free(sim_graph *graph)
{
    if (graph->object.id) sim_object_remove(&graph->object);
    if (graph->previous) graph->previous->next = graph->next;
    else graphs = graph->next;
    if (graph->next) graph->next->previous = graph->previous;
    for (size_t i = 0; i < graph->count; i++) node_free(&graph->nodes[i]);
    free(graph->nodes);
    sim_holdings_drop(&graph->holdings, false);
    free(graph);
}

CUresult sim_graph_find(CUgraph handle, sim_graph **out)
{
    *out = (sim_graph *)sim_object_find(GVMM_SIM_GRAPH, (uintptr_t)handle);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---------------------------------------------------------------------------------------------
 * Nodes
 * ------------------------------------------------------------------------------------------- */

size_t sim_graph_place(const sim_graph *graph, CUgraphNode node)
{
    size_t low = 0, high = graph->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)graph->nodes[middle].handle < (uintptr_t)node) low = middle + 1;
        else high = middle;
    }
    return low < graph->count && graph->nodes[low].handle == node ? low : graph->count;
}

static CUgraphNode new_handle(void)
{
    return (CUgraphNode)(uintptr_t)((uint64_t)(GVMM_SIM_KIND_COUNT + 1) << 40 | ++last_node);
}

/* Room for one more node. */
static bool make_room(sim_graph *g)
{
    if (g->count < g->capacity) return true;
    size_t capacity = g->capacity ? 2 * g->capacity : 8;
    sim_node *nodes = realloc(g->nodes, capacity * sizeof *nodes);
    if (!nodes) return false;
    g->nodes = nodes;
    g->capacity = capacity;
    return true;
}

/* The places of `nodes`, each in the graph and none twice. */
static CUresult places(const sim_graph *g, const CUgraphNode *nodes, size_t count, size_t *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = sim_graph_place(g, nodes[i]);
        if (out[i] == g->count) return CUDA_ERROR_INVALID_VALUE;
        for (size_t j = 0; j < i; j++)
            if (out[j] == out[i]) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_graph_add(sim_graph *graph, CUgraphNode *out, const CUgraphNode *dependencies, size_t count,
                       const sim_operation *operation, sim_graph *child)
{
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    size_t *before = count <= graph->count ? malloc((count + 1) * sizeof *before) : NULL;
    if (count > graph->count) r = CUDA_ERROR_INVALID_VALUE;
    if (!before || !make_room(graph)) goto fail;
    r = places(graph, dependencies, count, before);
    if (r) goto fail;
    sim_node *n = &graph->nodes[graph->count++];
    *n = (sim_node){new_handle(), *operation, child, before, count};
    *out = n->handle;
    return CUDA_SUCCESS;

fail:
    free(before);
    if (child) sim_graph_free(child);
    return r;
}

/* Handles are new: a handle names one node of one graph. */
static bool node_copy(sim_graph *to, const sim_node *from)
{
    if (!make_room(to)) return false;
    sim_node n = *from;
    n.handle = new_handle();
    n.before = malloc((from->before_count + 1) * sizeof *n.before);
    if (!n.before) return false;
    for (size_t i = 0; i < from->before_count; i++) n.before[i] = from->before[i];
    n.child = from->child ? sim_graph_copy(from->child, false) : NULL;
    if (from->child && !n.child) return free(n.before), false;
    to->nodes[to->count++] = n;
    return true;
}

sim_graph *sim_graph_copy(const sim_graph *graph, bool handle)
{
    sim_graph *copy = sim_graph_new(handle);
    if (!copy) return NULL;
    bool fine = !sim_holdings_add(&copy->holdings, &graph->holdings);
    for (size_t i = 0; fine && i < graph->count; i++) fine = node_copy(copy, &graph->nodes[i]);
    if (fine) return copy;
    sim_graph_free(copy);
    return NULL;
}

/* Depth first along the edges backwards. `next[n]` counts the edges of n that were followed; `order` grows from the
 * front, the path from the back of the same array: together they never hold a node twice. */
static CUresult visit(const sim_graph *g, size_t root, size_t *order, size_t *done, size_t *next, char *state)
{
    enum { NEW, ON_PATH, DONE };
    size_t path = g->count;
    if (state[root] != NEW) return CUDA_SUCCESS;
    order[--path] = root;
    state[root] = ON_PATH;
    while (path < g->count) {
        size_t n = order[path];
        if (next[n] < g->nodes[n].before_count) {
            size_t b = g->nodes[n].before[next[n]++];
            if (state[b] == ON_PATH) return CUDA_ERROR_INVALID_VALUE;
            if (state[b] == DONE) continue;
            state[b] = ON_PATH;
            order[--path] = b;
            continue;
        }
        state[n] = DONE;
        path++;
        order[(*done)++] = n;
    }
    return CUDA_SUCCESS;
}

CUresult sim_graph_sort(const sim_graph *graph, size_t *order)
{
    size_t done = 0;
    size_t *next = calloc(graph->count + 1, sizeof *next);
    char *state = calloc(graph->count + 1, 1);
    CUresult r = next && state ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; !r && i < graph->count; i++) r = visit(graph, i, order, &done, next, state);
    free(next);
    free(state);
    return r;
}

/* ---------------------------------------------------------------------------------------------
 * Calls
 * ------------------------------------------------------------------------------------------- */

CUresult sim_cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    if (!graph || flags) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_graph *g = sim_graph_new(true);
    if (g) *graph = (CUgraph)(uintptr_t)g->object.id;
    return sim_leave(g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* A graph under capture is its capture's. */
CUresult sim_cuGraphDestroy(CUgraph graph)
{
    sim_enter();
    sim_graph *g;
    CUresult r = sim_graph_find(graph, &g);
    if (!r && g->capture) r = CUDA_ERROR_ILLEGAL_STATE;
    if (!r) sim_graph_free(g);
    return sim_leave(r);
}

CUresult sim_cuGraphClone(CUgraph *clone, CUgraph original)
{
    if (!clone) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_graph *g;
    CUresult r = sim_graph_find(original, &g);
    if (r) return sim_leave(r);
    sim_graph *copy = sim_graph_copy(g, true);
    if (copy) *clone = (CUgraph)(uintptr_t)copy->object.id;
    return sim_leave(copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                         const sim_operation *operation)
{
    if (!node || (count && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = sim_operation_check(operation, false);
    if (r) return r;
    sim_enter();
    sim_graph *g;
    r = sim_graph_find(graph, &g);
    return sim_leave(r ? r : sim_graph_add(g, node, dependencies, count, operation, NULL));
}

CUresult sim_cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    sim_operation o = {.type = CU_GRAPH_NODE_TYPE_EMPTY, .name = "graph empty node"};
    return node_add(node, graph, dependencies, count, &o);
}

/* The device of the context that a node is given; NULL: the current one. */
static CUresult device_of(CUcontext context, int *device)
{
    sim_context *c;
    sim_enter();
    CUresult r = context ? sim_context_find(context, &c) : sim_current_context(&c);
    if (!r) *device = sim_context_device(c);
    return sim_leave(r);
}

CUresult sim_cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  const CUDA_MEMCPY3D *copy, CUcontext context)
{
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    int device;
    sim_operation o;
    CUresult r = device_of(context, &device);
    if (!r) r = sim_operation_memcpy(&o, copy, device);
    return r ? r : node_add(node, graph, dependencies, count, &o);
}

CUresult sim_cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context)
{
    if (!set || !context) return CUDA_ERROR_INVALID_VALUE;
    int device;
    sim_operation o;
    CUresult r = device_of(context, &device);
    if (!r) r = sim_operation_memset(&o, set, device);
    return r ? r : node_add(node, graph, dependencies, count, &o);
}

CUresult sim_cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                const CUDA_HOST_NODE_PARAMS *host)
{
    if (!host || !host->fn) return CUDA_ERROR_INVALID_VALUE;
    sim_operation o = {.type = CU_GRAPH_NODE_TYPE_HOST, .name = "graph host node", .host = *host};
    return node_add(node, graph, dependencies, count, &o);
}

/* The child is copied, with what it holds. */
CUresult sim_cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                      CUgraph child)
{
    if (!node || (count && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    sim_operation o = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .name = "graph child node"};
    sim_enter();
    sim_graph *g, *c;
    CUresult r = sim_graph_find(graph, &g);
    if (!r) r = sim_graph_find(child, &c);
    if (!r && c == g) {
        sim_finding(
            "cuGraphAddChildGraphNode (call %llu): graph 0x%llx is to be its own child; a real driver crashes here",
            (unsigned long long)sim_call_number, (unsigned long long)g->object.id);
        r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r) return sim_leave(r);
    sim_graph *copy = sim_graph_copy(c, false);
    if (!copy) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    return sim_leave(sim_graph_add(g, node, dependencies, count, &o, copy));
}

static bool has_edge(const sim_node *to, size_t from)
{
    for (size_t i = 0; i < to->before_count; i++)
        if (to->before[i] == from) return true;
    return false;
}

static CUresult edge_add(sim_graph *g, size_t from, size_t to)
{
    sim_node *n = &g->nodes[to];
    size_t *before = realloc(n->before, (n->before_count + 2) * sizeof *before);
    if (!before) return CUDA_ERROR_OUT_OF_MEMORY;
    n->before = before;
    n->before[n->before_count++] = from;
    return CUDA_SUCCESS;
}

/* All or none: a bad or repeated edge adds nothing. A cycle is found when the graph is instantiated. */
static CUresult edges_add(sim_graph *g, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    CUresult r = CUDA_SUCCESS;
    size_t added = 0;
    for (; added < count; added++) {
        size_t a = sim_graph_place(g, from[added]), b = sim_graph_place(g, to[added]);
        if (a == g->count || b == g->count || a == b || has_edge(&g->nodes[b], a)) r = CUDA_ERROR_INVALID_VALUE;
        if (!r) r = edge_add(g, a, b);
        if (r) break;
    }
    while (r && added-- > 0) g->nodes[sim_graph_place(g, to[added])].before_count--;
    return r;
}

CUresult sim_cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    if (count && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_graph *g;
    CUresult r = sim_graph_find(graph, &g);
    return sim_leave(r ? r : edges_add(g, from, to, count));
}

/* Both fill what there is room for, set the rest to NULL, and answer how many they filled. */
CUresult sim_cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_graph *g;
    CUresult r = sim_graph_find(graph, &g);
    if (r) return sim_leave(r);
    for (size_t i = 0; nodes && i < *count; i++) nodes[i] = i < g->count ? g->nodes[i].handle : NULL;
    if (!nodes || *count > g->count) *count = g->count;
    return sim_leave(CUDA_SUCCESS);
}

CUresult sim_cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    if (!count || !from != !to) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_graph *g;
    CUresult r = sim_graph_find(graph, &g);
    if (r) return sim_leave(r);
    size_t total = 0;
    for (size_t i = 0; i < g->count; i++)
        for (size_t k = 0; k < g->nodes[i].before_count; k++, total++) {
            if (!from || total >= *count) continue;
            from[total] = g->nodes[g->nodes[i].before[k]].handle;
            to[total] = g->nodes[i].handle;
        }
    for (size_t i = total; from && i < *count; i++) from[i] = to[i] = NULL;
    if (!from || *count > total) *count = total;
    return sim_leave(CUDA_SUCCESS);
}

CUresult sim_cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    if (!type) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    for (const sim_graph *g = graphs; g; g = g->next) {
        size_t place = sim_graph_place(g, node);
        if (place == g->count) continue;
        *type = g->nodes[place].operation.type;
        return sim_leave(CUDA_SUCCESS);
    }
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
}

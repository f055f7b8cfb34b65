/* Executables: a graph's work, copied into one list in an order that respects its edges. */
#include <string.h>

#include "exec.h"

typedef struct sim_exec {
    sim_object object;
    unsigned references; /* the handle's, and one per launch that is not done */
    sim_operation *operations;
    size_t count, capacity;
    sim_holdings holdings; /* the graph's, and its child graphs' */
    sim_point last;        /* the latest launch: the next one comes after it */
} sim_exec;

static void exec_release(sim_exec *x)
{
    if (--x->references) return;
    sim_holdings_drop(&x->holdings, x->last.stream); /* one that was launched lets go on the driver's thread */
    sim_point_release(&x->last);
    free(x->operations);
    free(x);
}

/* A used executable that was destroyed is a finding. */
static CUresult exec_find(CUgraphExec handle, sim_exec **out)
{
    uint64_t id = (uintptr_t)handle;
    *out = (sim_exec *)sim_object_find(GVMM_SIM_EXEC, id);
    if (*out) return CUDA_SUCCESS;
    if (sim_object_was(GVMM_SIM_EXEC, id))
        sim_finding("%s (call %llu): graph executable 0x%llx was destroyed; a real driver may crash here",
                    sim_call_name, (unsigned long long)sim_call_number, (unsigned long long)id);
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---------------------------------------------------------------------------------------------
 * Instantiating
 * ------------------------------------------------------------------------------------------- */

static bool append(sim_exec *x, const sim_operation *operation)
{
    if (x->count == x->capacity) {
        size_t capacity = x->capacity ? 2 * x->capacity : 8;
        sim_operation *operations = realloc(x->operations, capacity * sizeof *operations);
        if (!operations) return false;
        x->operations = operations;
        x->capacity = capacity;
    }
    x->operations[x->count++] = *operation;
    return true;
}

/* A child graph's work stands where its node does. */
static CUresult flatten(sim_exec *x, const sim_graph *g)
{
    size_t *order = malloc((g->count + 1) * sizeof *order);
    if (!order) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = sim_holdings_add(&x->holdings, &g->holdings);
    if (!r) r = sim_graph_sort(g, order);
    for (size_t i = 0; !r && i < g->count; i++) {
        const sim_node *n = &g->nodes[order[i]];
        if (n->child) r = flatten(x, n->child);
        else if (!append(x, &n->operation)) r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(order);
    return r;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph)
{
    sim_graph *g;
    sim_context *current;
    CUresult r = sim_current_context(&current);
    if (!r) r = sim_capture_unsafe();
    if (!r) r = sim_graph_find(graph, &g);
    if (r) return r;
    sim_exec *x = calloc(1, sizeof *x);
    if (!x) return CUDA_ERROR_OUT_OF_MEMORY;
    x->references = 1;
    r = flatten(x, g);
    if (r) return exec_release(x), r;
    sim_object_add(&x->object, GVMM_SIM_EXEC, 0, 0);
    x->object.references = 1;
    *out = (CUgraphExec)(uintptr_t)x->object.id;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    if (!exec || flags > 15) return CUDA_ERROR_INVALID_VALUE;
    if (flags & 4) return CUDA_ERROR_NOT_SUPPORTED; /* launched from the device */
    sim_enter();
    return sim_leave(instantiate(exec, graph));
}

/* Kept until its launches are done. */
CUresult sim_cuGraphExecDestroy(CUgraphExec exec)
{
    sim_enter();
    sim_exec *x;
    CUresult r = exec_find(exec, &x);
    if (!r) r = sim_capture_unsafe();
    if (r) return sim_leave(r);
    sim_object_remove(&x->object);
    exec_release(x);
    return sim_leave(CUDA_SUCCESS);
}

/* ---------------------------------------------------------------------------------------------
 * Launching
 * ------------------------------------------------------------------------------------------- */

static CUresult exec_run(void *data, const sim_actor *who)
{
    const sim_exec *x = data;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; !r && i < x->count; i++) r = sim_operation_run(&x->operations[i], who);
    return r;
}

static void exec_drop(void *data)
{
    sim_enter();
    exec_release(data);
    sim_leave(CUDA_SUCCESS);
}

static CUresult launch_queued(sim_exec *x, sim_stream *s)
{
    sim_item *item = sim_item_new((sim_work){"cuGraphLaunch", exec_run, exec_drop, x});
    if (!item) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = sim_stream_push(s, item);
    if (r) return free(item), r;
    x->references++;
    item->after = x->last; /* its reference goes with it */
    x->last = (sim_point){s, item->order};
    sim_stream_retain(s);
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream stream)
{
    sim_stream *s;
    sim_exec *x;
    CUresult r = sim_stream_find(stream, &s);
    if (!r) r = exec_find(exec, &x);
    if (!r) r = sim_capture_forbid(s); /* no child graph node: the driver has none either */
    return r ? r : launch_queued(x, s);
}

CUresult sim_cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    sim_enter();
    return sim_leave(launch(exec, stream));
}

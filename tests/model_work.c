/* The model test: work, captures, graphs, surroundings; the list of operations. */
#include <errno.h>
#include <string.h>

#include "model_state.h"

/* ---------------------------------------------------------------------------------------------
 * Operations: work, captures, graphs
 * ------------------------------------------------------------------------------------------- */

static void do_memset(const uint8_t *op)
{
    int slot = pick_open(op[1]), s = op[2] % STREAMS;
    work w = {0};
    uint64_t address;
    size_t size;
    twin_stream *q = &t->streams[s];
    if (slot < 0 || q->capturing || !pick_sets(&t->buffers[slot].view, op[2], op[3], &w, &address, &size)) return;
    if (q->pending_count == PENDING) finish(s);
    finish_conflicts(s, &w);
    driver(cuMemsetD8Async(address, op[3], size, m.streams[s]));
    push(s, &w, -1);
}

/* By the host, through one view; the others see it. */
static void do_write(const uint8_t *op)
{
    int slot = pick_open(op[1]);
    if (slot < 0 || !t->buffers[slot].view.count) return;
    const view *v = &t->buffers[slot].view;
    const place *p = &t->places[v->place[op[2] % v->count]];
    chunk *c = &t->chunks[p->chunk];
    int device = c->access[0] == GVMM_ACCESS_READ_WRITE ? 0 : 1, end = op[2] >> 7;
    if (c->access[device] != GVMM_ACCESS_READ_WRITE) return;
    for (int s = 0; s < STREAMS; s++)
        if (twin_pending_on_chunk(&t->streams[s], p->chunk)) finish(s);
    uint8_t bytes[WATCHED];
    memset(bytes, op[3], sizeof bytes);
    uint64_t at = end ? p->address + c->size - WATCHED : p->address;
    equal("status of a write", gvmm_sim_write(device, at, bytes, sizeof bytes), CUDA_SUCCESS);
    c->bytes[end] = op[3];
}

static void wait_at_gate(void *gate)
{
    while (sem_wait(gate) && errno == EINTR) continue;
}

static void do_gate(const uint8_t *op)
{
    int s = op[1] % STREAMS;
    if (t->streams[s].gate || t->streams[s].capturing) return;
    finish(s); /* so that all that is pending is behind the gate */
    driver(cuLaunchHostFunc(m.streams[s], wait_at_gate, &m.gates[s]));
    t->streams[s].gate = true;
}

static void do_finish(const uint8_t *op) { finish(op[1] % STREAMS); }

static void do_begin_capture(const uint8_t *op)
{
    int s = op[1] % STREAMS;
    if (t->streams[s].capturing) return;
    finish(s);
    driver(cuStreamBeginCapture(m.streams[s], (CUstreamCaptureMode)(op[2] % 3)));
    t->streams[s].capturing = true;
    t->streams[s].capture = (work){0};
}

static int free_graph(void)
{
    for (int i = 0; i < GRAPHS; i++)
        if (!t->graphs[i].alive) return i;
    return -1;
}

/* The capture has come to no harm, whatever was done meanwhile. */
void do_end_capture(const uint8_t *op)
{
    int s = op[1] % STREAMS, slot = free_graph();
    CUgraph graph;
    if (!t->streams[s].capturing) return;
    driver(cuStreamEndCapture(m.streams[s], &graph));
    t->streams[s].capturing = false;
    if (slot < 0) {
        driver(cuGraphDestroy(graph));
        return;
    }
    m.graphs[slot] = graph;
    m.by_hand[slot] = false;
    t->graphs[slot] = (twin_graph){true, t->streams[s].capture};
}

static gvmm_result retain_outlook(const twin_buffer *b)
{
    return !b->open ? GVMM_E_CLOSED : b->wrapped ? GVMM_E_INVALID : GVMM_OK;
}

/* Retains in the graph under capture, then captures work that needs it. */
static void do_capture_memset(const uint8_t *op)
{
    int slot = pick_open(op[1]), s = op[2] % STREAMS;
    if (slot < 0) return;
    const twin_buffer *b = &t->buffers[slot];
    twin_stream *q = &t->streams[s];
    work *w = &q->capture;
    uint64_t address;
    size_t size;
    if (q->capturing && w->held_count == HELD) return;
    arm();
    gvmm_result r = gvmm_buffer_retain_in_capture(m.buffers[slot], m.streams[s]);
    bool faulty = fired();
    check_result(r, q->capturing ? retain_outlook(b) : GVMM_E_INVALID, faulty);
    check_warnings(0, faulty);
    if (r || !b->view.count) return;
    w->held[w->held_count++] = b->view;
    if (!pick_sets(&b->view, op[2] >> 1, op[3], w, &address, &size)) return;
    driver(cuMemsetD8Async(address, op[3], size, m.streams[s]));
}

static void add_memset_node(int graph, uint64_t address, uint8_t value, size_t size)
{
    CUDA_MEMSET_NODE_PARAMS set = {.dst = address, .value = value, .elementSize = 1, .width = size, .height = 1};
    CUgraphNode node, *last = &m.last_node[graph];
    driver(cuGraphAddMemsetNode(&node, m.graphs[graph], *last ? last : NULL, *last ? 1 : 0, &set, m.context));
    *last = node;
}

static void do_graph_retain(const uint8_t *op)
{
    int slot = pick_open(op[1]), g = op[2] % GRAPHS;
    if (slot < 0) return;
    const twin_buffer *b = &t->buffers[slot];
    uint64_t address;
    size_t size;
    if (!t->graphs[g].alive) {
        driver(cuGraphCreate(&m.graphs[g], 0));
        m.last_node[g] = NULL;
        m.by_hand[g] = true;
        t->graphs[g] = (twin_graph){.alive = true};
    }
    work *w = &t->graphs[g].work;
    if (w->held_count == HELD) return;
    arm();
    gvmm_result r = gvmm_buffer_retain_in_graph(m.buffers[slot], m.graphs[g]);
    bool faulty = fired();
    check_result(r, retain_outlook(b), faulty);
    check_warnings(0, faulty);
    if (r || !b->view.count) return;
    w->held[w->held_count++] = b->view;
    if (m.by_hand[g] && pick_sets(&b->view, op[2] >> 1, op[3], w, &address, &size))
        add_memset_node(g, address, op[3], size);
}

static void do_instantiate(const uint8_t *op)
{
    int g = op[1] % GRAPHS, x = op[2] % EXECS;
    if (!t->graphs[g].alive || t->execs[x].alive) return;
    driver(cuGraphInstantiateWithFlags(&m.execs[x], m.graphs[g], 0));
    t->execs[x] = t->graphs[g];
}

static void do_launch(const uint8_t *op)
{
    int x = op[1] % EXECS, s = op[2] % STREAMS;
    twin_stream *q = &t->streams[s];
    if (!t->execs[x].alive || q->capturing) return;
    if (q->pending_count == PENDING) finish(s);
    for (int i = 0; i < STREAMS; i++) /* launches of one executable follow one another, on whatever stream */
        for (int k = 0; i != s && k < t->streams[i].pending_count; k++)
            if (t->streams[i].exec[k] == x) finish(i);
    finish_conflicts(s, &t->execs[x].work);
    driver(cuGraphLaunch(m.execs[x], m.streams[s]));
    push(s, &t->execs[x].work, x);
}

void do_destroy_graph(const uint8_t *op)
{
    int g = op[1] % GRAPHS;
    if (!t->graphs[g].alive) return;
    driver(cuGraphDestroy(m.graphs[g]));
    t->graphs[g].alive = false;
}

/* A launch behind a shut gate keeps what it needs; of others nobody knows how far they are. */
void do_destroy_exec(const uint8_t *op)
{
    int x = op[1] % EXECS;
    if (!t->execs[x].alive) return;
    for (int s = 0; s < STREAMS; s++)
        for (int k = 0; k < t->streams[s].pending_count; k++)
            if (t->streams[s].exec[k] == x && !t->streams[s].gate) finish(s);
    driver(cuGraphExecDestroy(m.execs[x]));
    t->execs[x].alive = false;
}

/* ---------------------------------------------------------------------------------------------
 * Operations: surroundings
 * ------------------------------------------------------------------------------------------- */

/* Reserves what is behind a buffer, so that it can only move. */
static void do_decoy(const uint8_t *op)
{
    int slot = pick_open(op[1]), d = op[2] % DECOYS;
    CUdeviceptr at;
    if (slot < 0 || t->decoys[d] || !t->buffers[slot].view.count) return;
    uint64_t end = twin_address(t, &t->buffers[slot].view) + twin_size(t, &t->buffers[slot].view);
    bool could = twin_is_free(t, &m.s, G, end, G);
    driver(cuMemAddressReserve(&at, G, 0, end, 0));
    if (could) equal("address of the decoy", at, end);
    t->decoys[d] = at;
}

void do_free_decoy(const uint8_t *op)
{
    uint64_t *decoy = &t->decoys[op[1] % DECOYS];
    if (*decoy) driver(cuMemAddressFree(*decoy, G));
    *decoy = 0;
}

static void do_fault(const uint8_t *op)
{
    static const int statuses[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_PERMITTED,
                                   CUDA_ERROR_INVALID_VALUE};
    m.fault = (gvmm_fault){
        .nth = op[1] % (op[1] & 64 ? 40 : 9) + 1, .onwards = op[2] % 3 == 0, .status = statuses[op[3] % 4]};
}

static void do_leave_context(const uint8_t *op)
{
    (void)op;
    m.contextless = true;
}

/* Arguments that are wrong in every state. */
static void do_misuse(const uint8_t *op)
{
    int slot = pick(op[1]);
    gvmm_buffer *made = NULL, *some = slot < 0 ? NULL : m.buffers[slot];
    size_t count;
    equal("result", gvmm_buffer_create(&made, NULL, G, NULL), GVMM_E_INVALID);
    equal("result", gvmm_buffer_create(NULL, m.resources[0], G, NULL), GVMM_E_INVALID);
    equal("result", gvmm_buffer_grow(&made, NULL, G, NULL), GVMM_E_INVALID);
    equal("result", gvmm_buffer_grow(NULL, some, G, NULL), GVMM_E_INVALID);
    equal("result", gvmm_buffer_wrap(&made, m.resources[0], 0, G, NULL, NULL, NULL), GVMM_E_INVALID);
    equal("result", gvmm_buffer_wrap(&made, m.resources[0], G, 0, NULL, NULL, NULL), GVMM_E_INVALID);
    equal("result", gvmm_buffer_retain_in_graph(some, NULL), GVMM_E_INVALID);
    equal("result", gvmm_buffer_segments(some, NULL, 1, &count), GVMM_E_INVALID);
    equal("result", gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    expect(!made, "out was written");
    gvmm_buffer_release(NULL);
}

static const operation operations[] = {
    {"create", do_create, 8},
    {"grow", do_grow, 26},
    {"close", do_close, 8},
    {"release", do_release, 16},
    {"retain", do_retain, 1},
    {"set_stream", do_set_stream, 3},
    {"wrap", do_wrap, 1},
    {"memset", do_memset, 8},
    {"write", do_write, 8},
    {"gate", do_gate, 4},
    {"finish", do_finish, 1},
    {"begin capture", do_begin_capture, 1},
    {"end capture", do_end_capture, 3},
    {"captured memset", do_capture_memset, 3},
    {"retain in graph", do_graph_retain, 3},
    {"instantiate", do_instantiate, 2},
    {"launch", do_launch, 3},
    {"destroy graph", do_destroy_graph, 1},
    {"destroy executable", do_destroy_exec, 1},
    {"decoy", do_decoy, 2},
    {"free decoy", do_free_decoy, 1},
    {"fault", do_fault, 8},
    {"leave context", do_leave_context, 2},
    {"misuse", do_misuse, 1},
};

const operation *decode(uint8_t what)
{
    int total = 0;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) total += operations[i].weight;
    int left = what % total;
    const operation *op = operations;
    while (left >= op->weight) left -= op++->weight;
    return op;
}

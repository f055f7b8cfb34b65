/* The model test: a run, and what is compared after each operation. */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model_state.h"

bool model_tells;
struct model m;

static atomic_int warnings, blocks; /* blocks: the library's host memory */

/* ---------------------------------------------------------------------------------------------
 * Differences
 * ------------------------------------------------------------------------------------------- */

void differs(const char *format, ...)
{
    va_list args;
    fprintf(stderr, "model: operation %zu, %s", m.step, m.name);
    if (m.bytes) fprintf(stderr, " (%02x%02x%02x%02x)", m.bytes[0], m.bytes[1], m.bytes[2], m.bytes[3]);
    fprintf(stderr, ": ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}

static const char *last_text(void)
{
    static gvmm_error error;
    gvmm_last_error(&error);
    return error.text;
}

static void count_warning(void *user, const gvmm_error *error)
{
    (void)user;
    if (model_tells) fprintf(stderr, "    warning: %s\n", error->text);
    atomic_fetch_add(&warnings, 1);
}

static void tell_finding(void *user, const char *text)
{
    (void)user;
    differs("the simulated driver found: %s", text);
}

/* ---------------------------------------------------------------------------------------------
 * Comparing
 * ------------------------------------------------------------------------------------------- */

/* The first figure that differs, or NULL. */
static const char *different_figure(const gvmm_stats *now, const gvmm_stats *wanted, const gvmm_stats *base)
{
#define FIGURE(name) \
    if (now->name - base->name != wanted->name) return #name;
    FIGURE(physical_bytes)
    FIGURE(mapped_bytes)
    FIGURE(reserved_bytes)
    FIGURE(buffers)
    FIGURE(mappings)
    FIGURE(memories)
    FIGURE(reservations)
    FIGURE(allocations)
    FIGURE(grows_in_place)
    FIGURE(grows_moved)
    FIGURE(aliases)
#undef FIGURE
    return NULL;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The process's figures agree with the twin's; what graphs held comes back on other threads, a little later. */
void check_figures(void)
{
    gvmm_stats now, wanted;
    const char *figure;
    double until = 0;
    twin_survey(t, &m.s);
    twin_stats(t, &m.s, -1, &wanted);
    for (;;) {
        gvmm_get_stats(NULL, &now);
        figure = different_figure(&now, &wanted, &m.at_start);
        if (!figure) return;
        if (until == 0) until = seconds() + 2;
        if (seconds() > until) break;
        gvmm_drain();
        sched_yield();
    }
    differs("%s differs: %llu mappings, %llu bytes of memory, %llu reserved; the twin has %llu, %llu, %llu", figure,
            (unsigned long long)(now.mappings - m.at_start.mappings),
            (unsigned long long)(now.physical_bytes - m.at_start.physical_bytes),
            (unsigned long long)(now.reserved_bytes - m.at_start.reserved_bytes), (unsigned long long)wanted.mappings,
            (unsigned long long)wanted.physical_bytes, (unsigned long long)wanted.reserved_bytes);
}

static void check_resources(void)
{
    static const gvmm_stats zero;
    for (int i = 0; i < RESOURCES; i++) {
        gvmm_stats now, wanted;
        if (!m.resources[i]) continue;
        gvmm_get_stats(m.resources[i], &now);
        twin_stats(t, &m.s, i, &wanted);
        const char *figure = different_figure(&now, &wanted, &zero);
        expect(!figure, "%s of resource %d differs", figure, i);
    }
}

/* The simulator's own view of what is alive. */
static void check_census(void)
{
    size_t counts[GVMM_SIM_KIND_COUNT];
    size_t decoys = 0, graphs = 0, execs = 0;
    for (int i = 0; i < DECOYS; i++) decoys += t->decoys[i] != 0;
    for (int i = 0; i < GRAPHS; i++) graphs += t->graphs[i].alive;
    for (int i = 0; i < STREAMS; i++) graphs += t->streams[i].capturing;
    for (int i = 0; i < EXECS; i++) execs += t->execs[i].alive;
    gvmm_sim_census(counts, NULL, NULL);
    equal("census: memory", counts[GVMM_SIM_MEMORY], m.s.library_chunks);
    equal("census: mappings", counts[GVMM_SIM_MAPPING], m.s.places);
    equal("census: reservations", counts[GVMM_SIM_RESERVATION], m.s.spaces + decoys);
    equal("census: graphs", counts[GVMM_SIM_GRAPH], graphs);
    equal("census: executables", counts[GVMM_SIM_EXEC], execs);
    equal("census: streams", counts[GVMM_SIM_STREAM], STREAMS);
    equal("census: events", counts[GVMM_SIM_EVENT], 0);
}

static void check_buffer(int i)
{
    const twin_buffer *b = &t->buffers[i];
    equal("address", gvmm_buffer_address(m.buffers[i]), twin_address(t, &b->view));
    equal("size", gvmm_buffer_size(m.buffers[i]), twin_size(t, &b->view));
    equal("is_closed", gvmm_buffer_is_closed(m.buffers[i]), !b->open);
    equal("stream", (uintptr_t)gvmm_buffer_stream(m.buffers[i]), (uintptr_t)b->stream);
}

static void check_segments(int i)
{
    const twin_buffer *b = &t->buffers[i];
    gvmm_segment list[PIECES];
    size_t count = 77;
    gvmm_result wanted = !b->open ? GVMM_E_CLOSED : b->wrapped ? GVMM_E_INVALID : GVMM_OK;
    equal("result of segments", gvmm_buffer_segments(m.buffers[i], list, PIECES, &count), wanted);
    if (wanted) return;
    equal("number of segments", count, b->view.count);
    for (int k = 0; k < b->view.count; k++) {
        const place *p = &t->places[b->view.place[k]];
        chunk *c = &t->chunks[p->chunk];
        if (!c->identity) c->identity = list[k].memory;
        equal("segment's address", list[k].address, p->address);
        equal("segment's size", list[k].size, c->size);
        equal("segment's memory", list[k].memory, c->identity);
        equal("segment's device", list[k].device, c->on_device ? 0 : -1);
        for (int other = 0; other < PLACES; other++)
            expect(other == p->chunk || !m.s.chunk[other] || t->chunks[other].identity != c->identity,
                   "two chunks have the same identity");
    }
}

static bool is_pending(int chunk)
{
    for (int i = 0; i < STREAMS; i++)
        if (twin_pending_on_chunk(&t->streams[i], chunk)) return true;
    return false;
}

/* Through this view, the watched bytes of every chunk, and who may touch it. */
static void check_bytes(int i)
{
    const view *v = &t->buffers[i].view;
    for (int k = 0; k < v->count; k++) {
        const place *p = &t->places[v->place[k]];
        const chunk *c = &t->chunks[p->chunk];
        for (int device = 0; device < 2; device++) {
            unsigned long long flags;
            CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
            driver(cuMemGetAccess(&flags, &location, p->address));
            equal("access", flags, c->access[device]);
        }
        int device = c->access[0] ? 0 : 1;
        if (!c->access[device] || is_pending(p->chunk)) continue;
        for (int end = 0; end < 2; end++) {
            uint8_t bytes[WATCHED];
            uint64_t at = end ? p->address + c->size - WATCHED : p->address;
            CUresult r = gvmm_sim_read(device, bytes, at, WATCHED);
            expect(r == CUDA_SUCCESS, "piece %d cannot be read: %s", k, gvmm_driver_status_name((int)r));
            for (int n = 0; n < WATCHED; n++)
                expect(bytes[n] == c->bytes[end], "byte %d at the %s of piece %d of buffer %d is %u, not %u", n,
                       end ? "end" : "start", k, i, bytes[n], c->bytes[end]);
        }
    }
}

static void check(void)
{
    check_figures();
    for (int i = 0; i < BUFFERS; i++)
        if (t->buffers[i].alive) check_buffer(i);
    int turn = (int)(m.step % BUFFERS); /* the dear checks take turns */
    if (t->buffers[turn].alive) {
        check_segments(turn);
        check_bytes(turn);
    }
    if (m.step % 32 == 0) {
        check_resources();
        check_census();
    }
    gvmm_sim_findings(tell_finding, NULL);
}

/* ---------------------------------------------------------------------------------------------
 * Streams
 * ------------------------------------------------------------------------------------------- */

void open_gate(int s)
{
    if (t->streams[s].gate) sem_post(&m.gates[s]);
    t->streams[s].gate = false;
}

/* Everything queued has been done. */
void all_done(int s)
{
    for (int i = 0; i < t->streams[s].pending_count; i++) twin_do(t, &t->streams[s].pending[i]);
    t->streams[s].pending_count = 0;
}

void finish(int s)
{
    if (!t->streams[s].gate && !t->streams[s].pending_count) return;
    open_gate(s);
    driver(cuStreamSynchronize(m.streams[s]));
    all_done(s);
}

static void finish_all(void)
{
    for (int i = 0; i < STREAMS; i++) finish(i);
}

/* Work that sets the same bytes has an order only on one stream, or when the other's is over. */
void finish_conflicts(int s, const work *w)
{
    for (int i = 0; i < STREAMS; i++)
        for (int k = 0; k < w->set_count; k++)
            if (i != s && twin_pending_on_chunk(&t->streams[i], w->sets[k].chunk)) finish(i);
}

void push(int s, const work *w, int exec)
{
    twin_stream *q = &t->streams[s];
    q->pending[q->pending_count] = *w;
    q->exec[q->pending_count++] = exec;
}

int index_of(gvmm_stream stream)
{
    for (int i = 0; i < STREAMS; i++)
        if (m.streams[i] == stream) return i;
    return -1;
}

bool is_capturing(gvmm_stream stream)
{
    int i = index_of(stream);
    return i >= 0 && t->streams[i].capturing;
}

/* ---------------------------------------------------------------------------------------------
 * Calls that can fail
 * ------------------------------------------------------------------------------------------- */

/* Before an operation: with a fault planned, nothing else may make driver calls meanwhile. */
static void calm_down(void)
{
    if (!m.fault.nth) return;
    finish_all();
    check_figures();
}

/* The model's own calls are made in relaxed mode, so as to harm no capture; the library's in the mode that threads
 * begin with. */
static CUstreamCaptureMode change_mode(CUstreamCaptureMode mode)
{
    driver(cuThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

void arm(void)
{
    atomic_store(&warnings, 0);
    change_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (m.contextless) driver(cuCtxSetCurrent(NULL));
    if (m.fault.nth) gvmm_faults_set(&m.fault);
}

/* The thread's current context and capture mode are what they were. A fault may have kept the mode from being put
 * back. */
static void check_thread(bool faulty)
{
    CUcontext now;
    CUstreamCaptureMode mode = change_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    expect(faulty || mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "the call has changed the capture mode");
    driver(cuCtxGetCurrent(&now));
    expect(now == (m.contextless ? NULL : m.context), "the call has changed the current context");
    if (m.contextless) driver(cuCtxSetCurrent(m.context));
    m.contextless = false;
}

bool fired(void)
{
    bool did = m.fault.nth && gvmm_faults_injected() > 0;
    if (m.fault.nth) gvmm_faults_set(NULL);
    m.fault.nth = 0;
    check_thread(did);
    if (did && model_tells) fprintf(stderr, "    fault\n");
    return did;
}

/* The result is the wanted one; with a fault it may be any failure instead. */
void check_result(gvmm_result got, gvmm_result wanted, bool faulty)
{
    if (faulty && got) {
        expect(got <= GVMM_E_DRIVER && got != GVMM_E_PEER_GONE && got != GVMM_E_CAPTURING, "the result is %s",
               gvmm_result_name(got));
        expect(last_text()[0], "the failure has no text");
        return;
    }
    expect(got == wanted, "the result is %s, not %s (%s)", gvmm_result_name(got), gvmm_result_name(wanted),
           last_text());
}

void check_warnings(int wanted, bool faulty)
{
    int got = atomic_exchange(&warnings, 0);
    expect(faulty || got == wanted, "%d warnings, not %d", got, wanted);
}

/* ---------------------------------------------------------------------------------------------
 * A run
 * ------------------------------------------------------------------------------------------- */

static void choose_resources(void)
{
    static const int peer_one[] = {1}, peer_zero[] = {0};
    for (int i = 0; i < RESOURCES; i++) {
        m.options[i] = (gvmm_options)GVMM_OPTIONS_INIT;
        m.options[i].release_mode = GVMM_RELEASE_SYNC; /* the twin has no pending releases */
    }
    m.options[1].handle_type = GVMM_HANDLE_NONE;
    m.options[1].addr_align = ALIGN;
    m.options[1].peers = peer_one;
    m.options[1].peer_count = 1;
    m.options[1].peer_access = GVMM_ACCESS_READ;
    m.options[2].location = GVMM_LOCATION_HOST;
    m.options[2].handle_type = GVMM_HANDLE_NONE;
    m.options[2].peers = peer_zero;
    m.options[2].peer_count = 1;
    for (int i = 0; i < RESOURCES; i++)
        equal("result of resource_create", gvmm_resource_create(&m.resources[i], 0, &m.options[i]), GVMM_OK);
    equal("granularity", gvmm_resource_granularity(m.resources[0]), G);
}

static void *allocate(size_t size)
{
    atomic_fetch_add(&blocks, 1);
    return malloc(size);
}

static void deallocate(void *ptr)
{
    if (ptr) atomic_fetch_sub(&blocks, 1);
    free(ptr);
}

static void start(void)
{
    static const gvmm_host_allocator counting = {allocate, deallocate};
    memset(&m, 0, sizeof m);
    m.name = "start";
    equal("result of install", gvmm_host_allocator_install(&counting), GVMM_OK);
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    config.memory = MEMORY;
    config.address_space = SPACE;
    config.granularity = G;
    gvmm_sim_quiet(true); /* findings are told as differences */
    equal("result of reset", gvmm_sim_reset(&config), GVMM_OK);
    gvmm_sim_findings_clear();
    m.cu = gvmm_sim_driver();
    const gvmm_driver *used;
    gvmm_faults_set(NULL);
    equal("result of install", gvmm_driver_install(gvmm_faults_over(m.cu)), GVMM_OK);
    equal("result of driver_get", gvmm_driver_get(&used), GVMM_OK);
    gvmm_set_warning_handler(count_warning, NULL);
    driver(cuDevicePrimaryCtxRetain(&m.context, 0));
    driver(cuCtxSetCurrent(m.context));
    change_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    for (int i = 0; i < STREAMS; i++) {
        sem_init(&m.gates[i], 0, 0);
        driver(cuStreamCreate(&m.streams[i], i == BLOCKING ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    }
    choose_resources();
    gvmm_get_stats(NULL, &m.at_start);
}

/* Gives everything up, the resources first: buffers hold them. */
static void stop(void)
{
    m.name = "end";
    m.bytes = NULL;
    m.fault.nth = 0;
    m.contextless = false;
    for (uint8_t i = 0; i < STREAMS; i++) do_end_capture((uint8_t[]){0, i, 0, 0});
    for (int i = 0; i < RESOURCES; i++) {
        gvmm_resource_release(m.resources[i]);
        m.resources[i] = NULL;
    }
    for (uint8_t i = 0; i < BUFFERS; i++)
        while (t->buffers[i].alive) do_release((uint8_t[]){0, i, 0, 0});
    check_figures();
    for (uint8_t i = 0; i < GRAPHS; i++) do_destroy_graph((uint8_t[]){0, i, 0, 0});
    for (uint8_t i = 0; i < EXECS; i++) do_destroy_exec((uint8_t[]){0, i, 0, 0});
    for (uint8_t i = 0; i < DECOYS; i++) do_free_decoy((uint8_t[]){0, i, 0, 0});
    finish_all();
    check_figures();
    gvmm_drain();
    check_census();
    equal("places left", m.s.places, 0);
    for (int i = 0; i < STREAMS; i++) {
        driver(cuStreamDestroy(m.streams[i]));
        sem_destroy(&m.gates[i]);
    }
    change_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    driver(cuCtxSetCurrent(NULL));
    driver(cuDevicePrimaryCtxRelease(0));
    gvmm_sim_findings(tell_finding, NULL);
    equal("result of install", gvmm_driver_install(NULL),
          GVMM_OK); /* refused if an object of the library has been lost */
    equal("blocks of host memory left", atomic_load(&blocks), 0);
    equal("result of install", gvmm_host_allocator_install(NULL), GVMM_OK);
    equal("result of reset", gvmm_sim_reset(NULL), GVMM_OK);
}

void model_run(const uint8_t *bytes, size_t size)
{
    start();
    for (size_t at = 0; at < size; at += MODEL_OPERATION) {
        uint8_t op[MODEL_OPERATION] = {0};
        memcpy(op, bytes + at, size - at < sizeof op ? size - at : sizeof op);
        const operation *o = decode(op[0]);
        m.step = at / MODEL_OPERATION;
        m.bytes = op;
        m.name = o->name;
        if (model_tells) fprintf(stderr, "%zu %02x%02x%02x%02x %s\n", m.step, op[0], op[1], op[2], op[3], o->name);
        calm_down();
        o->run(op);
        check();
    }
    stop();
}

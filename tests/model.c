/* The model test: decoding, operations, comparing. */
#include "model.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gvmm/sim.h"
#include "twin.h"

#define G      ((size_t)64 << 10)
#define MEMORY (64 * G)                   /* of device 0: running out is a matter of course */
#define SPACE  ((uint64_t)1 << 30)        /* more than the views ever need */
#define ALIGN  ((size_t)1 << 20)
#define WATCHED 8                         /* bytes at each end of a chunk */

bool model_tells;

/* One machine with everything on it, the twin first. */
static struct {
    twin t;
    survey s; /* of the twin after the last operation */
    const gvmm_driver *cu;
    CUcontext context;
    gvmm_resource *resources[RESOURCES];
    gvmm_options options[RESOURCES];
    gvmm_buffer *buffers[BUFFERS];
    gvmm_stream streams[STREAMS];
    sem_t gates[STREAMS];
    CUgraph graphs[GRAPHS];
    CUgraphNode last_node[GRAPHS];
    bool by_hand[GRAPHS]; /* made by hand, not captured: memsets can be added */
    CUgraphExec execs[EXECS];
    gvmm_stats at_start;
    gvmm_fault fault; /* for the next call that can fail */
    int own_frees;    /* calls of free_by_hand */
    size_t step;
    const uint8_t *bytes;
    const char *name; /* of the operation */
} m;

static twin *const t = &m.t;
static atomic_int warnings;

/* ---------------------------------------------------------------------------------------------
 * Differences
 * ------------------------------------------------------------------------------------------- */

static void differs(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void differs(const char *format, ...)
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

#define expect(condition, ...) \
    do { \
        if (!(condition)) differs(__VA_ARGS__); \
    } while (0)
#define equal(what, got, wanted) \
    expect((uint64_t)(got) == (uint64_t)(wanted), "%s is 0x%llx, not 0x%llx", what, (unsigned long long)(uint64_t)(got), \
           (unsigned long long)(uint64_t)(wanted))
#define driver(call) \
    do { \
        CUresult status_ = m.cu->call; \
        expect(status_ == CUDA_SUCCESS, "the model's own %s: %s", #call, gvmm_driver_status_name((int)status_)); \
    } while (0)

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
static void check_figures(void)
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

static void wait_at_gate(void *gate)
{
    while (sem_wait(gate) && errno == EINTR) continue;
}

static void open_gate(int s)
{
    if (t->streams[s].gate) sem_post(&m.gates[s]);
    t->streams[s].gate = false;
}

/* Everything queued has been done. */
static void all_done(int s)
{
    for (int i = 0; i < t->streams[s].pending_count; i++) twin_do(t, &t->streams[s].pending[i]);
    t->streams[s].pending_count = 0;
}

static void finish(int s)
{
    if (!t->streams[s].gate && !t->streams[s].pending_count) return;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* others may be capturing */
    open_gate(s);
    driver(cuThreadExchangeStreamCaptureMode(&mode));
    driver(cuStreamSynchronize(m.streams[s]));
    driver(cuThreadExchangeStreamCaptureMode(&mode));
    all_done(s);
}

static void finish_all(void)
{
    for (int i = 0; i < STREAMS; i++) finish(i);
}

/* Work that sets the same bytes has an order only on one stream, or when the other's is over. */
static void finish_conflicts(int s, const work *w)
{
    for (int i = 0; i < STREAMS; i++)
        for (int k = 0; k < w->set_count; k++)
            if (i != s && twin_pending_on_chunk(&t->streams[i], w->sets[k].chunk)) finish(i);
}

static void push(int s, const work *w, int exec)
{
    twin_stream *q = &t->streams[s];
    q->pending[q->pending_count] = *w;
    q->exec[q->pending_count++] = exec;
}

static int index_of(gvmm_stream stream)
{
    for (int i = 0; i < STREAMS; i++)
        if (m.streams[i] == stream) return i;
    return -1;
}

static bool is_capturing(gvmm_stream stream)
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

/* Before a call: the planned fault. */
static void arm(void)
{
    atomic_store(&warnings, 0);
    if (m.fault.nth) gvmm_faults_set(&m.fault);
}

/* After it: did the fault fire? A failed call may have left the thread's capture mode relaxed. */
static bool fired(void)
{
    if (!m.fault.nth) return false;
    m.fault.nth = 0;
    bool did = gvmm_faults_injected() > 0;
    gvmm_faults_set(NULL);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    driver(cuThreadExchangeStreamCaptureMode(&mode));
    if (did && model_tells) fprintf(stderr, "    fault\n");
    return did;
}

/* The result is the wanted one; with a fault it may be any failure instead. */
static void check_result(gvmm_result got, gvmm_result wanted, bool faulty)
{
    if (faulty && got) {
        expect(got <= GVMM_E_DRIVER && got != GVMM_E_PEER_GONE && got != GVMM_E_CLOSED + (wanted == GVMM_E_CLOSED) * 99,
               "the result is %s", gvmm_result_name(got));
        expect(last_text()[0], "the failure has no text");
        return;
    }
    expect(got == wanted, "the result is %s, not %s (%s)", gvmm_result_name(got), gvmm_result_name(wanted), last_text());
}

static void check_warnings(int wanted, bool faulty)
{
    int got = atomic_exchange(&warnings, 0);
    expect(faulty || got == wanted, "%d warnings, not %d", got, wanted);
}

/* ---------------------------------------------------------------------------------------------
 * Choosing
 * ------------------------------------------------------------------------------------------- */

/* A buffer whose handle is alive: the one at the place, or the next. -1: none. */
static int pick(uint8_t place)
{
    for (int i = 0; i < BUFFERS; i++)
        if (t->buffers[(place + i) % BUFFERS].alive) return (place + i) % BUFFERS;
    return -1;
}

/* The same, open ones first; seldom any. */
static int pick_open(uint8_t place)
{
    for (int i = 0; place < 240 && i < BUFFERS; i++)
        if (t->buffers[(place + i) % BUFFERS].open) return (place + i) % BUFFERS;
    return pick(place);
}

static int free_slot(void)
{
    for (int i = 0; i < BUFFERS; i++)
        if (!t->buffers[i].alive) return i;
    return -1;
}

/* A stream to name: none, legacy, per-thread, or a real one. */
static gvmm_stream pick_stream(uint8_t which)
{
    switch (which % 8) {
    case 0:
    case 1: return NULL;
    case 2: return GVMM_STREAM_LEGACY;
    case 3: return (gvmm_stream)0x2;
    default: return m.streams[which % STREAMS];
    }
}

static bool on_device(int resource) { return m.options[resource].location == GVMM_LOCATION_DEVICE; }

static gvmm_stream recorded(gvmm_stream stream, int resource)
{
    if ((uintptr_t)stream > 2) return stream;
    return on_device(resource) ? GVMM_STREAM_LEGACY : NULL;
}

static size_t pick_size(uint8_t which, size_t total)
{
    size_t more = (which >> 4) % 4 + 1;
    switch (which % 16) {
    case 0: return 0;
    case 1: return 1;
    case 2: return total;
    case 3: return total - 1; /* overflows for an empty buffer */
    case 4: return total + 1;
    case 5: return total / 2 + G / 2;
    case 6:
        if (which < 0x40) return which & 16 ? (size_t)1 << 62 : 2 * SPACE;
        if (which < 0x60) return SIZE_MAX - (which >> 4);
        return total + more * G - 1;
    case 7: return total + more * G - 1;
    case 8: return total + more * G;
    default: return total + (which >> 6) * G + G / 3;
    }
}

static const int peer_one[] = {1}, peer_zero[] = {0}, no_such_peer[] = {7};

typedef struct choice {
    gvmm_options options;
    bool given, wrong;
} choice;

static choice pick_options(uint8_t which, int resource)
{
    choice c = {m.options[resource], true, false};
    gvmm_options *o = &c.options;
    switch (which % 16) {
    case 0: o->self_access = GVMM_ACCESS_READ; break;
    case 1: o->self_access = o->peer_access = GVMM_ACCESS_NONE; break;
    case 2:
        o->peers = peer_one;
        o->peer_count = 1;
        o->peer_access = GVMM_ACCESS_READ_WRITE;
        break;
    case 3:
        o->peers = peer_one;
        o->peer_count = 1;
        o->peer_access = GVMM_ACCESS_READ;
        o->self_access = GVMM_ACCESS_NONE;
        break;
    case 4: o->addr_align = ALIGN; break;
    case 5:
        o->location = on_device(resource) ? GVMM_LOCATION_HOST : GVMM_LOCATION_DEVICE;
        o->handle_type = GVMM_HANDLE_NONE;
        c.wrong = true;
        break;
    case 6:
        o->gpu_direct_rdma = true;
        o->granularity = GVMM_GRANULARITY_MINIMUM;
        break;
    case 7:
        o->peers = no_such_peer;
        o->peer_count = 1;
        c.wrong = true;
        break;
    default: c.given = false;
    }
    return c;
}

/* Who may touch memory that is made with these options. */
static void access_from(const gvmm_options *o, uint8_t access[2])
{
    access[0] = o->location == GVMM_LOCATION_DEVICE ? (uint8_t)o->self_access : 0;
    access[1] = 0;
    for (size_t i = 0; i < o->peer_count; i++) access[o->peers[i]] = (uint8_t)o->peer_access;
}

/* What a memset through a view sets: where two pieces meet if it can, else the start of one. False: it may not write there. */
static bool pick_sets(const view *v, uint8_t which, uint8_t value, work *w, uint64_t *address, size_t *size)
{
    if (!v->count) return false;
    int k = which % v->count, first = v->place[k];
    const chunk *c = &t->chunks[t->places[first].chunk];
    if (c->access[0] != GVMM_ACCESS_READ_WRITE) return false;
    int next = which & 0x80 && k + 1 < v->count ? v->place[k + 1] : -1;
    if (next >= 0 && t->chunks[t->places[next].chunk].access[0] != GVMM_ACCESS_READ_WRITE) next = -1;
    bool straddles = next >= 0;
    if (w->set_count + 1 + straddles > SETS) return false;
    w->sets[w->set_count++] = (set){t->places[first].chunk, first, straddles, value};
    if (straddles) w->sets[w->set_count++] = (set){t->places[next].chunk, next, 0, value};
    *address = straddles ? t->places[next].address - WATCHED : t->places[first].address;
    *size = straddles ? 2 * WATCHED : WATCHED;
    return true;
}

/* ---------------------------------------------------------------------------------------------
 * Making: what the twin adds
 * ------------------------------------------------------------------------------------------- */

static int add_chunk(survey *s, size_t size, int resource, const gvmm_options *o)
{
    int c = twin_free_chunk(s);
    s->chunk[c] = true;
    t->chunks[c] = (chunk){.size = size, .resource = resource, .on_device = o->location == GVMM_LOCATION_DEVICE};
    access_from(o, t->chunks[c].access);
    return c;
}

static int add_space(survey *s, uint64_t base, size_t size, int resource)
{
    expect(base && base % G == 0, "the address 0x%llx is not aligned", (unsigned long long)base);
    expect(twin_is_free(t, s, G, base, size), "what is reserved at 0x%llx was reserved before", (unsigned long long)base);
    int i = twin_free_space(s);
    s->space[i] = true;
    t->spaces[i] = (space){base, size, resource};
    return i;
}

static void add_place(survey *s, view *v, uint64_t address, int chunk, int space)
{
    int p = twin_free_place(s);
    s->place[p] = true;
    t->places[p] = (place){address, chunk, space};
    v->place[v->count++] = p;
}

static bool is_full(void) { return m.s.places > PLACES - 2 * PIECES; }

static void check_alignment(uint64_t address, const gvmm_options *o)
{
    if (o->addr_align) expect(address % o->addr_align == 0, "0x%llx is not aligned", (unsigned long long)address);
}

static void first_view(view *v, uint64_t address, size_t size, int resource, const gvmm_options *o)
{
    survey s = m.s;
    check_alignment(address, o);
    int where = add_space(&s, address, size, resource);
    v->count = 0;
    add_place(&s, v, address, add_chunk(&s, size, resource, o), where);
    t->so_far[resource].allocations++;
}

static bool has_room(const gvmm_options *o, size_t size)
{
    return o->location != GVMM_LOCATION_DEVICE || m.s.device_bytes + size <= MEMORY;
}

static bool overflows(size_t size) { return size > SIZE_MAX - G + 1; }
static size_t rounded(size_t size) { return (size + G - 1) / G * G; }

/* What making `size` bytes must come to. */
static gvmm_result outlook(size_t size, const gvmm_options *o)
{
    if (size >= SPACE) return GVMM_E_NO_ADDRESS_SPACE;
    return has_room(o, size) ? GVMM_OK : GVMM_E_NO_DEVICE_MEMORY;
}

/* Too much for every address space is too much for the memory too: which is told first depends on the way taken. */
static void check_made(gvmm_result got, gvmm_result wanted, bool faulty)
{
    if (wanted == GVMM_E_NO_ADDRESS_SPACE && (got == GVMM_E_NO_DEVICE_MEMORY || got == GVMM_E_NO_HOST_MEMORY)) return;
    check_result(got, wanted, faulty);
}

static void enter(int slot, gvmm_buffer *made, int resource, gvmm_stream stream, const view *v)
{
    m.buffers[slot] = made;
    t->buffers[slot] = (twin_buffer){
        .alive = true, .open = true, .references = 1, .resource = resource, .stream = stream, .view = *v};
    expect(gvmm_buffer_resource(made) == m.resources[resource], "the buffer is another resource's");
}

/* ---------------------------------------------------------------------------------------------
 * Operations: making
 * ------------------------------------------------------------------------------------------- */

static void do_create(const uint8_t *op)
{
    static const int weighted[] = {0, 0, 0, 0, 1, 1, 1, 2};
    int slot = free_slot(), resource = weighted[op[1] % 8];
    size_t size = pick_size(op[2], 0);
    const gvmm_options *o = &m.options[resource];
    gvmm_buffer *made = NULL;
    gvmm_stream stream = pick_stream(op[3]);
    if (slot < 0 || is_full()) return;
    gvmm_result wanted = overflows(size) ? GVMM_E_INVALID : outlook(rounded(size), o);

    arm();
    gvmm_result r = gvmm_buffer_create(&made, m.resources[resource], size, stream);
    bool faulty = fired();
    check_made(r, wanted, faulty);
    check_warnings(0, faulty);
    expect(!r == !!made, "out and the result do not agree");
    if (r) return;
    view v = {0};
    if (size) first_view(&v, gvmm_buffer_address(made), rounded(size), resource, o);
    enter(slot, made, resource, recorded(stream, resource), &v);
}

/* The result of a grow that added memory: in place or moved, as its address tells. */
static void grown_view(view *v, const twin_buffer *b, uint64_t address, size_t add, const gvmm_options *o, bool faulty)
{
    survey s = m.s;
    size_t total = twin_size(t, &b->view);
    uint64_t base = twin_address(t, &b->view);
    bool could = twin_is_free(t, &s, G, base + total, add);
    if (address == base) {
        *v = b->view;
        int where = add_space(&s, base + total, add, b->resource);
        add_place(&s, v, base + total, add_chunk(&s, add, b->resource, o), where);
        t->so_far[b->resource].grows_in_place++;
        return;
    }
    expect(!could || faulty, "moved, although the address space behind is free");
    check_alignment(address, o);
    int where = add_space(&s, address, total + add, b->resource);
    uint64_t at = address;
    v->count = 0;
    for (int i = 0; i < b->view.count; i++) {
        int c = t->places[b->view.place[i]].chunk;
        add_place(&s, v, at, c, where);
        at += t->chunks[c].size;
    }
    add_place(&s, v, at, add_chunk(&s, add, b->resource, o), where);
    t->so_far[b->resource].grows_moved++;
}

static gvmm_result grow_outlook(const twin_buffer *b, size_t size, const choice *c)
{
    size_t total = twin_size(t, &b->view);
    if (!b->open) return GVMM_E_CLOSED;
    if (b->wrapped || (c->given && c->wrong) || overflows(size)) return GVMM_E_INVALID;
    return size <= total ? GVMM_OK : outlook(rounded(size) - total, &c->options);
}

static void do_grow(const uint8_t *op)
{
    int from = pick_open(op[1]), slot = free_slot();
    if (from < 0 || slot < 0 || is_full()) return;
    const twin_buffer *b = &t->buffers[from];
    size_t total = twin_size(t, &b->view), size = pick_size(op[2], total);
    choice c = pick_options(op[3], b->resource);
    gvmm_buffer *made = NULL;
    if (b->view.count == PIECES) size = op[2] % 2 ? 0 : total;
    gvmm_result wanted = grow_outlook(b, size, &c);

    arm();
    gvmm_result r = gvmm_buffer_grow(&made, m.buffers[from], size, c.given ? &c.options : NULL);
    bool faulty = fired();
    check_made(r, wanted, faulty);
    check_warnings(0, faulty);
    expect(!r == !!made, "out and the result do not agree");
    if (r) return;
    view v = {0};
    uint64_t address = gvmm_buffer_address(made);
    if (size <= total) {
        v = b->view;
        t->so_far[b->resource].aliases++;
    } else if (!total) {
        first_view(&v, address, rounded(size), b->resource, &c.options);
    } else {
        grown_view(&v, b, address, rounded(size) - total, &c.options, faulty);
    }
    enter(slot, made, b->resource, b->stream, &v);
}

/* ---------------------------------------------------------------------------------------------
 * Operations: wrapping
 * ------------------------------------------------------------------------------------------- */

static bool map_by_hand(uint64_t *base, size_t size)
{
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (m.s.device_bytes + size > MEMORY) return false;
    driver(cuMemAddressReserve(&address, size, 0, 0, 0));
    driver(cuMemCreate(&handle, size, &prop, 0));
    driver(cuMemMap(address, size, 0, handle, 0));
    driver(cuMemSetAccess(address, size, &access, 1));
    driver(cuMemRelease(handle));
    *base = address;
    return true;
}

static void unmap_by_hand(uint64_t base, size_t size)
{
    driver(cuMemUnmap(base, size));
    driver(cuMemAddressFree(base, size));
}

static gvmm_result free_by_hand(void *user, uint64_t address, size_t size, gvmm_stream stream)
{
    const twin_buffer *b = user;
    equal("address to free", address, twin_address(t, &b->view));
    equal("size to free", size, twin_size(t, &b->view));
    expect(stream == b->stream || b->open, "the stream to free on is not the recorded one");
    m.own_frees++;
    unmap_by_hand(address, size);
    return GVMM_OK;
}

static void do_wrap(const uint8_t *op)
{
    int slot = free_slot(), resource = op[1] % 2;
    size_t size = (op[1] / 2 % 4 + 1) * G;
    bool own_free = op[2] & 1;
    gvmm_stream stream = pick_stream(op[3]);
    uint64_t base;
    gvmm_buffer *made = NULL;
    if (slot < 0 || is_full() || !map_by_hand(&base, size)) return;

    arm();
    gvmm_result r = gvmm_buffer_wrap(&made, m.resources[resource], base, size, stream, own_free ? free_by_hand : NULL,
                                     &t->buffers[slot]);
    bool faulty = fired();
    check_result(r, GVMM_OK, faulty);
    check_warnings(0, faulty);
    if (r) {
        unmap_by_hand(base, size);
        return;
    }
    survey s = m.s;
    view v = {0};
    gvmm_options open_to_0 = GVMM_OPTIONS_INIT;
    int where = add_space(&s, base, size, BY_HAND);
    add_place(&s, &v, base, add_chunk(&s, size, BY_HAND, &open_to_0), where);
    enter(slot, made, resource, recorded(stream, resource), &v);
    t->buffers[slot].wrapped = true;
    t->buffers[slot].own_free = own_free;
}

/* ---------------------------------------------------------------------------------------------
 * Operations: giving up
 * ------------------------------------------------------------------------------------------- */

typedef struct ending {
    int waits_for; /* the stream that it waits for, or -1 */
    int warnings;
} ending;

/* What closing does about its stream. For the default one it waits for the blocking streams. */
static ending end_of(const twin_buffer *b, gvmm_stream stream)
{
    ending e = {-1, 0};
    if (!b->view.count || b->own_free) return e;
    bool legacy = (uintptr_t)stream <= 2;
    if (legacy && !on_device(b->resource)) return e;
    if (legacy ? t->streams[BLOCKING].capturing : is_capturing(stream))
        e.warnings = 1;
    else
        e.waits_for = legacy ? BLOCKING : index_of(stream);
    return e;
}

/* What the close does not wait for is the program's to wait for, as far as it touches what may be unmapped. */
static void before_end(int slot, const ending *e)
{
    const view *v = &t->buffers[slot].view;
    for (int s = 0; s < STREAMS; s++)
        for (int i = 0; s != e->waits_for && i < v->count; i++)
            if (twin_pending_on_place(&t->streams[s], v->place[i]) && !twin_shown_elsewhere(t, v->place[i], slot)) finish(s);
    if (!t->buffers[slot].view.count || t->buffers[slot].own_free) return;
    if (e->waits_for >= 0) open_gate(e->waits_for); /* now it is the library that must wait */
}

static void after_end(int slot, const ending *e, gvmm_stream stream, bool faulty)
{
    twin_buffer *b = &t->buffers[slot];
    check_warnings(e->warnings, faulty);
    equal("calls of the free function", m.own_frees, b->own_free);
    m.own_frees = 0;
    if (e->waits_for >= 0) all_done(e->waits_for);
    b->open = false;
    b->stream = stream;
    b->view.count = 0;
    b->own_free = false;
}

static void do_close(const uint8_t *op)
{
    int slot = pick_open(op[1]);
    if (slot < 0) return;
    twin_buffer *b = &t->buffers[slot];
    gvmm_stream named = pick_stream(op[2]), stream = named ? recorded(named, b->resource) : b->stream;
    bool refused = b->open && is_capturing(stream);
    ending e = refused || !b->open ? (ending){-1, 0} : end_of(b, stream);
    if (refused) m.fault.nth = 0; /* not told that it captures, the library would have to harm the capture or refuse for ever */

    if (!refused && b->open) before_end(slot, &e);
    arm();
    gvmm_result r = gvmm_buffer_close(m.buffers[slot], named);
    bool faulty = fired();
    equal("result of close", r, refused ? GVMM_E_CAPTURING : GVMM_OK);
    if (refused || !b->open) check_warnings(0, faulty);
    else after_end(slot, &e, stream, faulty);
}

static void do_release(const uint8_t *op)
{
    int slot = pick(op[1]);
    if (slot < 0) return;
    twin_buffer *b = &t->buffers[slot];
    bool ends = b->references == 1 && b->open;
    if (ends && b->wrapped && !b->own_free && is_capturing(b->stream)) return; /* left out: the mapping is lost, a known bug */
    ending e = ends ? end_of(b, b->stream) : (ending){-1, 0};
    if (is_capturing(b->stream)) m.fault.nth = 0;
    if (ends) before_end(slot, &e);
    arm();
    gvmm_buffer_release(m.buffers[slot]);
    bool faulty = fired();
    if (ends) after_end(slot, &e, b->stream, faulty);
    else check_warnings(0, faulty);
    if (--b->references) return;
    b->alive = false;
    b->view.count = 0;
    m.buffers[slot] = NULL;
}

static void do_retain(const uint8_t *op)
{
    int slot = pick(op[1]);
    if (slot < 0 || t->buffers[slot].references == 3) return;
    expect(gvmm_buffer_retain(m.buffers[slot]) == m.buffers[slot], "retain gives another buffer");
    t->buffers[slot].references++;
    if (op[2] % 2) return;
    gvmm_buffer_release(m.buffers[slot]);
    t->buffers[slot].references--;
}

static void do_set_stream(const uint8_t *op)
{
    int slot = pick_open(op[1]);
    if (slot < 0) return;
    twin_buffer *b = &t->buffers[slot];
    gvmm_stream stream = pick_stream(op[2]);
    gvmm_result wanted = !stream ? GVMM_E_INVALID : b->open ? GVMM_OK : GVMM_E_CLOSED;
    equal("result of set_stream", gvmm_buffer_set_stream(m.buffers[slot], stream), wanted);
    if (wanted) return;
    b->stream = recorded(stream, b->resource);
}

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
static void do_end_capture(const uint8_t *op)
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

static void do_destroy_graph(const uint8_t *op)
{
    int g = op[1] % GRAPHS;
    if (!t->graphs[g].alive) return;
    driver(cuGraphDestroy(m.graphs[g]));
    t->graphs[g].alive = false;
}

/* A launch behind a shut gate keeps what it needs; of others nobody knows how far they are. */
static void do_destroy_exec(const uint8_t *op)
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

static void do_free_decoy(const uint8_t *op)
{
    uint64_t *decoy = &t->decoys[op[1] % DECOYS];
    if (*decoy) driver(cuMemAddressFree(*decoy, G));
    *decoy = 0;
}

static void do_fault(const uint8_t *op)
{
    static const int statuses[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_PERMITTED,
                                   CUDA_ERROR_INVALID_VALUE};
    m.fault = (gvmm_fault){.nth = op[1] % (op[1] & 64 ? 40 : 9) + 1, .onwards = op[2] % 3 == 0, .status = statuses[op[3] % 4]};
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

typedef struct operation {
    const char *name;
    void (*run)(const uint8_t *op);
    int weight;
} operation;

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
    {"misuse", do_misuse, 1},
};

static const operation *decode(uint8_t what)
{
    int total = 0;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) total += operations[i].weight;
    int left = what % total;
    const operation *op = operations;
    while (left >= op->weight) left -= op++->weight;
    return op;
}

/* ---------------------------------------------------------------------------------------------
 * A run
 * ------------------------------------------------------------------------------------------- */

static void choose_resources(void)
{
    for (int i = 0; i < RESOURCES; i++) m.options[i] = (gvmm_options)GVMM_OPTIONS_INIT;
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

static void start(void)
{
    memset(&m, 0, sizeof m);
    m.name = "start";
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
    CUcontext now;
    driver(cuCtxGetCurrent(&now));
    expect(now == m.context, "the current context is another");
    driver(cuCtxSetCurrent(NULL));
    driver(cuDevicePrimaryCtxRelease(0));
    gvmm_sim_findings(tell_finding, NULL);
    equal("result of install", gvmm_driver_install(NULL), GVMM_OK); /* refused if an object of the library has been lost */
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
        if (model_tells)
            fprintf(stderr, "%zu %02x%02x%02x%02x %s\n", m.step, op[0], op[1], op[2], op[3], o->name);
        calm_down();
        o->run(op);
        check();
    }
    stop();
}

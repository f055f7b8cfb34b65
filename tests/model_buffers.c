/* The model test: operations on buffers. */
#include "model_state.h"

/* ---------------------------------------------------------------------------------------------
 * Choosing
 * ------------------------------------------------------------------------------------------- */

/* A buffer whose handle is alive: the one at the place, or the next. -1: none. */
int pick(uint8_t place)
{
    for (int i = 0; i < BUFFERS; i++)
        if (t->buffers[(place + i) % BUFFERS].alive) return (place + i) % BUFFERS;
    return -1;
}

/* The same, open ones first; seldom any. */
int pick_open(uint8_t place)
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

static const int peer_one[] = {1}, no_such_peer[] = {7};

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

/* What a memset through a view sets: where two pieces meet if it can, else the start of one. False: it may not write
 * there. */
bool pick_sets(const view *v, uint8_t which, uint8_t value, work *w, uint64_t *address, size_t *size)
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
    expect(twin_is_free(t, s, G, base, size), "what is reserved at 0x%llx was reserved before",
           (unsigned long long)base);
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

void do_create(const uint8_t *op)
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

void do_grow(const uint8_t *op)
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

void do_wrap(const uint8_t *op)
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
    if (legacy ? t->streams[BLOCKING].capturing : is_capturing(stream)) e.warnings = 1;
    else e.waits_for = legacy ? BLOCKING : index_of(stream);
    return e;
}

/* What the close does not wait for is the program's to wait for, as far as it touches what may be unmapped. */
static void before_end(int slot, const ending *e)
{
    const view *v = &t->buffers[slot].view;
    for (int s = 0; s < STREAMS; s++)
        for (int i = 0; s != e->waits_for && i < v->count; i++)
            if (twin_pending_on_place(&t->streams[s], v->place[i]) && !twin_shown_elsewhere(t, v->place[i], slot))
                finish(s);
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

void do_close(const uint8_t *op)
{
    int slot = pick_open(op[1]);
    if (slot < 0) return;
    twin_buffer *b = &t->buffers[slot];
    gvmm_stream named = pick_stream(op[2]), stream = named ? recorded(named, b->resource) : b->stream;
    bool refused = b->open && is_capturing(stream);
    ending e = refused || !b->open ? (ending){-1, 0} : end_of(b, stream);
    if (refused)
        m.fault.nth = 0; /* not told that it captures, the library would have to harm the capture or refuse for ever */

    if (!refused && b->open) before_end(slot, &e);
    arm();
    gvmm_result r = gvmm_buffer_close(m.buffers[slot], named);
    bool faulty = fired();
    equal("result of close", r, refused ? GVMM_E_CAPTURING : GVMM_OK);
    if (refused || !b->open) check_warnings(0, faulty);
    else after_end(slot, &e, stream, faulty);
}

void do_release(const uint8_t *op)
{
    int slot = pick(op[1]);
    if (slot < 0) return;
    twin_buffer *b = &t->buffers[slot];
    bool ends = b->references == 1 && b->open;
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

void do_retain(const uint8_t *op)
{
    int slot = pick(op[1]);
    if (slot < 0 || t->buffers[slot].references == 3) return;
    expect(gvmm_buffer_retain(m.buffers[slot]) == m.buffers[slot], "retain gives another buffer");
    t->buffers[slot].references++;
    if (op[2] % 2) return;
    gvmm_buffer_release(m.buffers[slot]);
    t->buffers[slot].references--;
}

void do_set_stream(const uint8_t *op)
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

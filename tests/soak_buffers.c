/* Families of buffers: made, grown, put together otherwise, filled and read again, moved from stream to stream and from
 * thread to thread, evicted, and given up in every way.
 *
 * Memory is known by its identity, and all of a chunk is filled with one word. So whatever becomes of the buffers, it
 * is known what each view must show. */
#include "soak.h"

/* ---- what a family's memory holds ---- */

static chunk *find_chunk(family *f, uint64_t memory)
{
    for (size_t i = 0; i < f->chunk_count; i++)
        if (f->chunks[i].memory == memory) return &f->chunks[i];
    return NULL;
}

void know(family *f, uint64_t memory, uint32_t word, bool known)
{
    chunk *c = find_chunk(f, memory);
    must(c || f->chunk_count < sizeof f->chunks / sizeof f->chunks[0]);
    if (!c) c = &f->chunks[f->chunk_count++];
    *c = (chunk){memory, word, known};
}

size_t segments_of(gvmm_buffer *view, gvmm_segment list[SEGMENTS])
{
    size_t count = 0;
    must(gvmm_buffer_segments(view, list, SEGMENTS, &count) == GVMM_OK && count <= SEGMENTS);
    return count;
}

static void keep_known(chunk *kept, size_t *count, family *f, uint64_t memory)
{
    const chunk *c = find_chunk(f, memory);
    must(c != NULL);
    for (size_t i = 0; i < *count; i++)
        if (kept[i].memory == memory) return;
    if (c) kept[(*count)++] = *c;
}

/* An identity may be another memory's as soon as nothing shows it. */
void recount(family *f)
{
    chunk kept[sizeof f->chunks / sizeof f->chunks[0]];
    size_t count = 0;
    gvmm_segment list[SEGMENTS];
    for (size_t v = 0; v < f->view_count; v++)
        for (size_t n = segments_of(f->views[v], list), i = 0; i < n; i++) keep_known(kept, &count, f, list[i].memory);
    for (size_t e = 0; e < f->exec_count; e++)
        for (size_t i = 0; i < f->execs[e].held_count; i++) keep_known(kept, &count, f, f->execs[e].held[i].memory);
    memcpy(f->chunks, kept, count * sizeof *kept);
    f->chunk_count = count;
}

/* Takes a new view in. What it shows for the first time is zero, or unknown if it was used before. */
static void add_view(family *f, gvmm_buffer *view, bool read_only, bool zero)
{
    gvmm_segment list[SEGMENTS];
    size_t count = segments_of(view, list), bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += list[i].size;
        if (!find_chunk(f, list[i].memory)) know(f, list[i].memory, 0, zero);
    }
    must(bytes == gvmm_buffer_size(view));
    must(!count || list[0].address == gvmm_buffer_address(view));
    f->read_only[f->view_count] = read_only;
    f->views[f->view_count++] = view;
}

/* ---- streams ---- */

static gvmm_stream recorded(const family *f) { return f->legacy ? GVMM_STREAM_LEGACY : f->on; }

static void record_stream(family *f, CUstream s)
{
    f->on = s;
    for (size_t i = 0; i < f->view_count; i++) must(gvmm_buffer_set_stream(f->views[i], recorded(f)) == GVMM_OK);
}

static void move(family *f, CUstream to)
{
    if (to == f->on) return;
    follow(to, f->on);
    record_stream(f, to);
    counted(FIGURE_moves);
}

static void fill_view(member *m, family *f, gvmm_buffer *view)
{
    gvmm_segment list[SEGMENTS];
    size_t count = segments_of(view, list);
    for (size_t i = 0; i < count; i++) {
        uint32_t word = below(m, 1u << 30);
        must_cu(cu->cuMemsetD32Async(list[i].address, word, list[i].size / 4, f->on));
        know(f, list[i].memory, word, true);
    }
    counted(FIGURE_fills);
}

/* ---- giving up ---- */

/* In one of all ways, and often with work under way, which gvmm waits for, but for the default stream's. */
void drop_view(member *m, family *f, size_t i)
{
    gvmm_buffer *view = f->views[i];
    if (!f->read_only[i] && gvmm_buffer_evicted_bytes(view) == 0 && below(m, 4) == 0) {
        linger(f->on);
        fill_view(m, f, view);
    }
    f->views[i] = f->views[--f->view_count];
    f->read_only[i] = f->read_only[f->view_count];
    recount(f); /* before the memory is another's: it need not know what this view alone showed */
    if (f->legacy) settle(f->on);
    unsigned how = below(m, 4);
    if (how == 0 && tried(m, gvmm_buffer_close(view, NULL))) {
        counted(FIGURE_closes);
    } else if (how == 1 && tried(m, gvmm_buffer_close_deferred(view, NULL))) {
        counted(FIGURE_deferred);
    } else if (how == 2 && !f->kind->outlive) {
        CUstream other = any_stream(m, f->kind);
        if (other != f->on) follow(other, f->on);
        must(gvmm_buffer_close_deferred(view, other) == GVMM_OK);
        counted(FIGURE_deferred);
    }
    call_begins(m);
    gvmm_buffer_release(view);
    call_ended(m, GVMM_OK, "release");
    counted(FIGURE_releases);
}

static void drop_all(member *m, family *f)
{
    while (f->view_count) drop_view(m, f, below(m, (unsigned)f->view_count));
    while (f->exec_count) drop_exec(f, 0);
}

void bury_if_empty(member *m, family *f)
{
    if (f->view_count || f->exec_count) return;
    for (size_t i = 0; i < FAMILIES; i++)
        if (m->families[i] == f) m->families[i] = NULL;
    free(f);
}

void give_up_all(member *m)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        if (!m->families[i]) continue;
        drop_all(m, m->families[i]);
        bury_if_empty(m, m->families[i]);
    }
}

family *any_family(member *m)
{
    for (unsigned tries = 0; tries < 4; tries++) {
        family *f = m->families[below(m, FAMILIES)];
        if (f && f->view_count && f != m->captured && f->on != m->capturing) return f;
    }
    return NULL;
}

/* ---- new views ---- */

static void do_create(member *m)
{
    unsigned place = below(m, FAMILIES);
    if (m->families[place]) return;
    const kind *k = &kinds[below(m, (unsigned)kind_count)];
    family *f = calloc(1, sizeof *f);
    gvmm_buffer *view = NULL;
    must(f != NULL);
    f->kind = k;
    f->on = any_stream(m, k);
    f->legacy = !k->reuse && !k->host && below(m, 4) == 0;
    size_t size = (1 + below(m, k->reuse ? 2 : MOST / 2)) * G - below(m, 2) * 100; /* few sizes meet more often */
    bool made = below(m, 4) ? tried(m, gvmm_buffer_create(&view, k->resource, size, recorded(f)))
                            : tried(m, gvmm_buffer_create_with_capacity(&view, k->resource, size, 16 * G, recorded(f)));
    must(made == (view != NULL));
    if (made) {
        m->families[place] = f;
        add_view(f, view, false, !k->reuse || k->zeroed);
        if (below(m, 2)) fill_view(m, f, view); /* soon: who had the memory before may still have work under way */
        counted(FIGURE_creates);
    } else {
        free(f);
    }
}

static void do_grow(member *m, family *f)
{
    gvmm_buffer *larger = NULL;
    size_t i = below(m, (unsigned)f->view_count);
    gvmm_options chunk = GVMM_OPTIONS_INIT;
    bool own = !f->kind->host && below(m, 8) == 0;
    if (f->view_count == VIEWS) return;
    if (gvmm_buffer_size(f->views[i]) > (MOST - 4) * G) return;
    chunk.handle_type = GVMM_HANDLE_NONE;
    size_t size = gvmm_buffer_size(f->views[i]) + below(m, 4) * G;
    if (!tried(m, gvmm_buffer_grow(&larger, f->views[i], size, own ? &chunk : NULL))) return;
    must(gvmm_buffer_size(larger) >= size);
    add_view(f, larger, f->read_only[i], true);
    counted(FIGURE_grows);
    if (below(m, 2)) drop_view(m, f, i);
}

static void do_shrink(member *m, family *f)
{
    gvmm_buffer *shorter = NULL;
    size_t i = below(m, (unsigned)f->view_count);
    if (f->view_count == VIEWS) return;
    size_t size = gvmm_buffer_size(f->views[i]) / 2;
    if (!tried(m, gvmm_buffer_shrink(&shorter, f->views[i], size))) return;
    must(gvmm_buffer_size(shorter) >= size && gvmm_buffer_address(shorter) == gvmm_buffer_address(f->views[i]));
    add_view(f, shorter, f->read_only[i], true);
    counted(FIGURE_shrinks);
    if (below(m, 2)) drop_view(m, f, i);
}

/* Some segments in a row of some views. */
static void do_compose(member *m, family *f)
{
    gvmm_piece pieces[3];
    gvmm_segment list[SEGMENTS];
    gvmm_buffer *view = NULL;
    size_t count = 0, bytes = 0;
    bool read_only = false;
    if (f->view_count == VIEWS) return;
    for (unsigned wanted = 1 + below(m, 3); count < wanted; count++) {
        size_t v = below(m, (unsigned)f->view_count), n = segments_of(f->views[v], list);
        if (!n) return;
        size_t first = below(m, (unsigned)n), last = first + below(m, (unsigned)(n - first));
        size_t offset = list[first].address - list[0].address;
        size_t size = list[last].address + list[last].size - list[first].address;
        pieces[count] = (gvmm_piece){f->views[v], offset, size, below(m, 6) == 0};
        read_only |= pieces[count].read_only || f->read_only[v];
        bytes += size;
    }
    if (bytes > MOST * G) return;
    if (!tried(m, gvmm_buffer_compose(&view, f->kind->resource, pieces, count, recorded(f)))) return;
    must(gvmm_buffer_size(view) == bytes);
    add_view(f, view, read_only, false);
    counted(FIGURE_composes);
}

static void do_ring(member *m, family *f)
{
    gvmm_buffer *ring = NULL;
    size_t i = below(m, (unsigned)f->view_count), size = gvmm_buffer_size(f->views[i]);
    if (f->view_count == VIEWS || size == 0 || 3 * size > MOST * G) return;
    if (!tried(m, gvmm_buffer_ring(&ring, f->views[i], 3))) return;
    must(gvmm_buffer_size(ring) == 3 * size);
    add_view(f, ring, f->read_only[i], false);
    counted(FIGURE_rings);
}

/* ---- work ---- */

static void do_fill(member *m, family *f)
{
    size_t v = below(m, (unsigned)f->view_count);
    if (below(m, 8) == 0) linger(f->on);
    if (!f->read_only[v]) fill_view(m, f, f->views[v]);
}

static void do_copy(member *m, family *f)
{
    gvmm_segment list[SEGMENTS];
    size_t v = below(m, (unsigned)f->view_count), count = segments_of(f->views[v], list);
    if (f->read_only[v] || count < 2) return;
    const gvmm_segment *from = &list[below(m, (unsigned)count)], *to = &list[below(m, (unsigned)count)];
    if (from->size != to->size || from->memory == to->memory) return;
    const chunk *c = find_chunk(f, from->memory);
    must_cu(cu->cuMemcpyDtoDAsync(to->address, from->address, from->size, f->on));
    know(f, to->memory, c->word, c->known);
    counted(FIGURE_copies);
}

static void check_segment(member *m, family *f, const gvmm_segment *s)
{
    enum { WORDS = 64 };
    uint32_t words[WORDS];
    const chunk *c = find_chunk(f, s->memory);
    size_t at = (size_t)below(m, (unsigned)(s->size / sizeof words)) * sizeof words;
    must_cu(cu->cuMemcpyDtoHAsync(words, s->address + at, sizeof words, f->on));
    settle(f->on);
    for (size_t i = 0; c->known && i < WORDS; i++) {
        if (words[i] == c->word) continue;
        wrong("%s: the word at 0x%llx + %zu is 0x%x, not 0x%x", f->kind->name, (unsigned long long)s->address,
              at + i * 4, words[i], c->word);
        return;
    }
    counted(FIGURE_checks);
}

static void do_check(member *m, family *f)
{
    gvmm_segment list[SEGMENTS];
    size_t count = segments_of(f->views[below(m, (unsigned)f->view_count)], list);
    for (size_t i = 0; i < 3 && count; i++) check_segment(m, f, &list[below(m, (unsigned)count)]);
}

/* ---- access, eviction ---- */

/* A failure leaves the access as it was, unless putting it back fails too. */
static bool change_access(member *m, gvmm_buffer *view, int device, gvmm_access access)
{
    if (tried(m, gvmm_buffer_set_access(view, device, access))) return true;
    if (faults_of_thread() - m->before < 2) return false;
    faults_mask(true);
    must(gvmm_buffer_set_access(view, 0, GVMM_ACCESS_READ_WRITE) == GVMM_OK);
    faults_mask(false);
    return false;
}

static void do_access(member *m, family *f)
{
    gvmm_access access = GVMM_ACCESS_NONE;
    size_t v = below(m, (unsigned)f->view_count);
    gvmm_buffer *view = f->views[v];
    if (f->read_only[v] || !gvmm_buffer_size(view)) return;
    settle(f->on);
    if (device_count > 1 && below(m, 2)) {
        change_access(m, view, 1, below(m, 2) ? GVMM_ACCESS_READ_WRITE : GVMM_ACCESS_NONE);
    } else if (change_access(m, view, 0, GVMM_ACCESS_READ)) {
        must(gvmm_buffer_get_access(view, 0, &access) == GVMM_OK && access == GVMM_ACCESS_READ);
        do_check(m, f);
        faults_mask(true);
        must(gvmm_buffer_set_access(view, 0, GVMM_ACCESS_READ_WRITE) == GVMM_OK);
        faults_mask(false);
    }
    counted(FIGURE_accesses);
}

static void contents_are_back(family *f, gvmm_buffer *view, gvmm_contents contents)
{
    gvmm_segment list[SEGMENTS];
    size_t count = segments_of(view, list);
    if (contents == GVMM_CONTENTS_HOST || contents == GVMM_CONTENTS_FILE) return;
    for (size_t i = 0; i < count; i++) know(f, list[i].memory, 0, contents == GVMM_CONTENTS_ZERO);
}

/* Of the family's memory alone. What cannot be restored is given up as it is. */
static void do_evict(member *m, family *f)
{
    static const gvmm_contents all[] = {GVMM_CONTENTS_DROP, GVMM_CONTENTS_ZERO, GVMM_CONTENTS_HOST, GVMM_CONTENTS_HOST,
                                        GVMM_CONTENTS_FILE};
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    gvmm_buffer *view = f->views[below(m, (unsigned)f->view_count)];
    options.contents = all[below(m, f->kind->host ? 2 : 5)];
    options.stream = f->on;
    options.directory = P_tmpdir;
    settle(f->on);
    if (!tried(m, gvmm_buffer_evict(view, &options))) {
        must(gvmm_buffer_evicted_bytes(view) == 0);
        return;
    }
    counted(FIGURE_evictions);
    bool back = false;
    for (int tries = 0; tries < 20 && !back; tries++) back = tried(m, gvmm_buffer_restore(view));
    if (back) {
        must(gvmm_buffer_evicted_bytes(view) == 0);
        contents_are_back(f, view, options.contents);
        counted(FIGURE_restores);
    } else {
        drop_all(m, f);
        bury_if_empty(m, f);
    }
}

/* ---- from stream to stream, from thread to thread ---- */

void leave_stream(member *m, CUstream s)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        family *f = m->families[i];
        if (!f || f->on != s) continue;
        CUstream to = any_stream(m, f->kind);
        if (to == s || (!f->legacy && below(m, 2))) {
            bool sync = to == s && f->legacy;
            if (sync) settle(s);
            while (f->view_count) { /* after this call the stream may be destroyed */
                gvmm_buffer *view = f->views[--f->view_count];
                must(gvmm_buffer_close_deferred(view, NULL) == GVMM_OK);
                gvmm_buffer_release(view);
                counted(FIGURE_deferred);
            }
            while (f->exec_count) drop_exec(f, 0);
            f->chunk_count = 0;
            bury_if_empty(m, f);
        } else {
            move(f, to);
        }
    }
}

static struct {
    pthread_mutex_t lock;
    family *families[QUEUE];
    size_t count;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Nobody uses the recorded stream until the other thread has put its own in its place. */
void hand_over(member *m)
{
    unsigned place = below(m, FAMILIES);
    family *f = m->families[place];
    if (!f || f == m->captured || f->on == m->capturing) return;
    pthread_mutex_lock(&queue.lock);
    bool room = queue.count < QUEUE;
    if (room) {
        must_cu(cu->cuEventCreate(&f->handed, CU_EVENT_DISABLE_TIMING));
        must_cu(cu->cuEventRecord(f->handed, f->on));
        queue.families[queue.count++] = f;
        m->families[place] = NULL;
    }
    pthread_mutex_unlock(&queue.lock);
}

void take_over(member *m)
{
    unsigned place = below(m, FAMILIES);
    if (m->families[place]) return;
    pthread_mutex_lock(&queue.lock);
    family *f = queue.count ? queue.families[--queue.count] : NULL;
    pthread_mutex_unlock(&queue.lock);
    if (!f) return;
    CUstream mine = any_stream(m, f->kind);
    must_cu(cu->cuStreamWaitEvent(mine, f->handed, 0));
    must_cu(cu->cuEventDestroy(f->handed));
    f->handed = NULL;
    m->families[place] = f;
    record_stream(f, mine);
    counted(FIGURE_handed);
}

/* A resource and a buffer of this thread's alone; the resource goes first. */
static void do_resource(member *m)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *resource = NULL;
    gvmm_buffer *buffer = NULL;
    CUstream s = any_stream(m, &kinds[0]);
    options.release_mode = below(m, 2) ? GVMM_RELEASE_SYNC : GVMM_RELEASE_DEFERRED;
    options.chunk_size = below(m, 2) ? G : 0;
    options.ahead_count = options.chunk_size ? below(m, 3) : 0;
    options.reuse_limit = below(m, 2) * 4 * G;
    if (!tried(m, gvmm_resource_create(&resource, 0, &options))) return;
    if (tried(m, gvmm_buffer_create(&buffer, resource, 2 * G, s)))
        must_cu(cu->cuMemsetD8Async(gvmm_buffer_address(buffer), 1, 2 * G, s));
    gvmm_resource_release(resource);
    gvmm_buffer_release(buffer);
    counted(FIGURE_resources);
}

void do_buffers(member *m)
{
    unsigned what = below(m, 100);
    if (what < 15) {
        do_create(m);
        return;
    }
    if (what < 17) {
        do_resource(m);
        return;
    }
    family *f = any_family(m);
    if (!f) return;
    if (what < 27) do_grow(m, f);
    else if (what < 31) do_shrink(m, f);
    else if (what < 35) do_compose(m, f);
    else if (what < 38) do_ring(m, f);
    else if (what < 55) do_fill(m, f);
    else if (what < 60) do_copy(m, f);
    else if (what < 76) do_check(m, f);
    else if (what < 80) do_access(m, f);
    else if (what < 82) do_evict(m, f);
    else if (what < 86) move(f, any_stream(m, f->kind));
    else {
        drop_view(m, f, below(m, (unsigned)f->view_count));
        bury_if_empty(m, f);
    }
}

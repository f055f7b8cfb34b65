/* Create, grow, alias, release, each beside the same driver calls by hand.
 *
 *     bench_core [--quick] [--only GROUP]
 *
 * On the machine's driver, or with GVMM_DRIVER=sim on the simulated one. README.md says what each figure means. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static gvmm_resource *plain;

/* A release waits and undoes, as the raw side does. */
static gvmm_options waiting_options(void)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.release_mode = GVMM_RELEASE_SYNC;
    return options;
}

static size_t at_least(size_t n) { return bench_quick ? (n + 9) / 10 : n; }

/* ---- create and close ---- */

typedef struct creation {
    size_t size;
    bool touch;
} creation;

static double create_gvmm(void *state)
{
    const creation *c = state;
    double start = now();
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create(&buffer, plain, c->size, NULL));
    if (c->touch) CU(cu->cuMemsetD8(gvmm_buffer_address(buffer), 1, c->size));
    OK(gvmm_buffer_close(buffer, NULL));
    gvmm_buffer_release(buffer);
    return now() - start;
}

static double create_raw(void *state)
{
    const creation *c = state;
    double start = now();
    raw_chunk chunk;
    raw_make(&chunk, c->size, 0);
    if (c->touch) CU(cu->cuMemsetD8(chunk.address, 1, c->size));
    raw_wait();
    raw_unmake(&chunk);
    return now() - start;
}

static void creations(bool touch)
{
    static const struct {
        size_t mib, n, batch;
    } steps[] = {{2, 1000, 10}, {32, 600, 10}, {512, 200, 5}, {2048, 200, 2}, {8192, 100, 2}};
    const char *name = touch ? "create_close_memset" : "create_close";
    const char *twice = touch ? "create_close_memset_raw_twice" : "create_close_raw_twice";
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        size_t size = steps[i].mib * MiB;
        if (!fits(size)) {
            report_skip(name, size, 1, "does not fit in device memory");
        } else if (touch && on_sim && size > 512 * MiB) {
            report_skip(name, size, 1, "the simulated driver's memory is the host's");
        } else {
            creation c = {size, touch};
            side sides[] = {{create_gvmm, &c}, {create_raw, &c}, {create_raw, &c}};
            samples s[3];
            size_t n = touch && on_sim ? 512 * MiB / size * 4
                                       : at_least(steps[i].n); /* there it is the host that writes */
            if (n > steps[i].n) n = at_least(steps[i].n);
            interleave(s, sides, 3, n, n < 20 ? 1 : steps[i].batch);
            report(&(figure){.name = name, .size = size, .chunks = 1}, &s[0], &s[1]);
            report(&(figure){.name = twice, .size = size, .chunks = 1, .note = "no gvmm: what the noise is"}, &s[2],
                   &s[1]);
            for (size_t k = 0; k < 3; k++) samples_free(&s[k]);
        }
    }
}

/* ---- buffers in known surroundings ---- */

/* A buffer of `size` bytes in such chunks, whose next `hole` bytes are free. A hint may be refused, then another place is
 * tried. */
static gvmm_buffer *buffer_with_hole(size_t size, size_t chunk, size_t hole)
{
    for (int attempt = 0; attempt < 32; attempt++) {
        gvmm_options options = waiting_options();
        options.addr_hint = free_place(size + hole);
        options.chunk_size = chunk;
        options.capacity = size;
        gvmm_resource *there;
        OK(gvmm_resource_create(&there, 0, &options));
        gvmm_buffer *buffer;
        OK(gvmm_buffer_create(&buffer, there, size, NULL));
        gvmm_resource_release(there);
        if (gvmm_buffer_address(buffer) == options.addr_hint) return buffer;
        gvmm_buffer_release(buffer);
    }
    MUST(!"a place with a hole behind was to be had");
    return NULL;
}

static CUdeviceptr end_of(const gvmm_buffer *buffer) { return gvmm_buffer_address(buffer) + gvmm_buffer_size(buffer); }

/* What takes the address behind so much memory. */
static size_t decoy_behind(size_t size) { return size < HINTED ? G : HINTED; }

/* The buffer, grown in place step by step; takes the reference that it is given. */
static gvmm_buffer *grow_to(gvmm_buffer *buffer, size_t total, size_t step)
{
    uint64_t address = gvmm_buffer_address(buffer);
    for (size_t size = gvmm_buffer_size(buffer); size < total;) {
        gvmm_buffer *longer;
        OK(gvmm_buffer_grow(&longer, buffer, size += step, NULL));
        gvmm_buffer_release(buffer);
        buffer = longer;
    }
    MUST(gvmm_buffer_address(buffer) == address);
    return buffer;
}

static gvmm_buffer *create_ahead(size_t size, size_t capacity)
{
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create_with_capacity(&buffer, plain, size, capacity, NULL));
    MUST(gvmm_buffer_capacity(buffer) >= capacity);
    return buffer;
}

/* ---- grow in place ---- */

typedef struct growing {
    const char *name;
    size_t step; /* bytes of a chunk and of a grow */
    bool ahead;  /* the address space is reserved: three calls; else four */
    gvmm_buffer *of;
} growing;

static double grow_gvmm(void *state)
{
    const growing *g = state;
    gvmm_buffer *longer;
    size_t size = gvmm_buffer_size(g->of) + g->step;
    double start = now();
    OK(gvmm_buffer_grow(&longer, g->of, size, NULL));
    double took = now() - start;
    MUST(gvmm_buffer_address(longer) == gvmm_buffer_address(g->of));
    gvmm_buffer_release(longer);
    return took;
}

/* By hand behind the very same range. */
static double grow_raw(void *state)
{
    const growing *g = state;
    CUdeviceptr end = end_of(g->of), at = end;
    CUmemGenericAllocationHandle handle;
    double start = now();
    if (!g->ahead) CU(cu->cuMemAddressReserve(&at, g->step, 0, end, 0));
    CU(cu->cuMemCreate(&handle, g->step, &raw_prop, 0));
    CU(cu->cuMemMap(at, g->step, 0, handle, 0));
    CU(cu->cuMemSetAccess(at, g->step, &raw_access, 1));
    double took = now() - start;
    MUST(at == end);
    raw_wait();
    CU(cu->cuMemUnmap(at, g->step));
    CU(cu->cuMemRelease(handle));
    if (!g->ahead) CU(cu->cuMemAddressFree(at, g->step));
    return took;
}

static gvmm_buffer *first_chunk(const growing *g, size_t room)
{
    return g->ahead ? create_ahead(g->step, room) : buffer_with_hole(g->step, g->step, room - g->step);
}

/* At each length, in the same minutes, also a range of one chunk: what the driver does more slowly with much memory in
 * use is then no matter of the range's length. */
static void grows(growing g, const size_t *lengths, size_t count)
{
    growing one = g;
    one.of = first_chunk(&one, 2 * g.step);
    CUdeviceptr keep_off; /* or the long range may be placed behind it */
    if (!g.ahead) CU(cu->cuMemAddressReserve(&keep_off, g.step, 0, end_of(one.of), 0));
    g.of = first_chunk(&g, (lengths[count - 1] + 1) * g.step);
    if (!g.ahead) CU(cu->cuMemAddressFree(keep_off, g.step));
    double first = NAN, raw_first = NAN, flatness = NAN, raw_flatness = NAN, beside = NAN, raw_beside = NAN;
    size_t last = 0;
    char name[64];
    for (size_t i = 0; i < count; i++) {
        size_t total = lengths[i] * g.step;
        if ((bench_quick && total > 4096 * MiB) || !fits(total - gvmm_buffer_size(g.of) + 2 * g.step)) {
            report_skip(g.name, g.step, lengths[i], bench_quick ? "--quick" : "does not fit in device memory");
            continue;
        }
        g.of = grow_to(g.of, total, g.step);
        side sides[] = {{grow_gvmm, &g}, {grow_raw, &g}, {grow_gvmm, &one}, {grow_raw, &one}};
        samples s[4];
        interleave(s, sides, 4, at_least(400), 5);
        report(&(figure){.name = g.name, .size = g.step, .chunks = lengths[i]}, &s[0], &s[1]);
        snprintf(name, sizeof name, "%s_one_beside", g.name);
        report(&(figure){.name = name,
                         .size = g.step,
                         .chunks = lengths[i],
                         .note = "a range of 1 chunk, measured while the long one exists"},
               &s[2], &s[3]);
        double ours = samples_median(&s[0]), raw = samples_median(&s[1]);
        if (i == 0) first = ours, raw_first = raw;
        flatness = ours / first;
        raw_flatness = raw / raw_first;
        beside = ours / samples_median(&s[2]);
        raw_beside = raw / samples_median(&s[3]);
        last = lengths[i];
        for (int k = 0; k < 4; k++) samples_free(&s[k]);
    }
    snprintf(name, sizeof name, "%s_flatness", g.name);
    report_value(name, last, flatness, raw_flatness, NAN, "median at this length / at 1");
    snprintf(name, sizeof name, "%s_flatness_beside", g.name);
    report_value(name, last, beside, raw_beside, NAN, "the same, both measured in turn");
    gvmm_buffer_release(g.of);
    gvmm_buffer_release(one.of);
}

static void grows_in_place(void)
{
    static const size_t small[] = {1, 16, 256, 4096, 32768}, large[] = {1, 16, 256, 2048};
    grows((growing){.name = "grow_in_capacity", .step = G, .ahead = true}, small, sizeof small / sizeof *small);
    grows((growing){.name = "grow_in_place", .step = HINTED}, large, sizeof large / sizeof *large);
}

/* ---- grow by moving ---- */

typedef struct movable {
    gvmm_buffer *buffer; /* the next address is taken */
    raw_span row;        /* likewise */
    CUdeviceptr decoys[2];
    size_t chunks;
} movable;

static double move_gvmm(void *state)
{
    const movable *m = state;
    gvmm_buffer *moved;
    double start = now();
    OK(gvmm_buffer_grow(&moved, m->buffer, (m->chunks + 1) * G, NULL));
    double took = now() - start;
    MUST(gvmm_buffer_address(moved) != gvmm_buffer_address(m->buffer));
    gvmm_buffer_release(moved);
    return took;
}

/* Tries the address behind the row, then maps everything anew. */
static double move_raw(const movable *m, bool access_at_once)
{
    size_t total = (m->chunks + 1) * G;
    CUdeviceptr behind = m->row.base + m->chunks * G, got, to;
    CUmemGenericAllocationHandle handle;
    double start = now();
    CU(cu->cuMemAddressReserve(&got, G, 0, behind, 0));
    MUST(got != behind);
    CU(cu->cuMemAddressFree(got, G));
    CU(cu->cuMemCreate(&handle, G, &raw_prop, 0));
    CU(cu->cuMemAddressReserve(&to, total, 0, 0, 0));
    for (size_t i = 0; i <= m->chunks; i++) {
        CU(cu->cuMemMap(to + i * G, G, 0, i < m->chunks ? m->row.handles[i] : handle, 0));
        if (!access_at_once) CU(cu->cuMemSetAccess(to + i * G, G, &raw_access, 1));
    }
    if (access_at_once) CU(cu->cuMemSetAccess(to, total, &raw_access, 1));
    double took = now() - start;
    raw_wait();
    for (size_t i = 0; i <= m->chunks; i++) CU(cu->cuMemUnmap(to + i * G, G));
    CU(cu->cuMemRelease(handle));
    CU(cu->cuMemAddressFree(to, total));
    return took;
}

static double move_raw_each(void *state) { return move_raw(state, false); }
static double move_raw_at_once(void *state) { return move_raw(state, true); }

/* Both sides with one reservation for the whole range, and something behind it. */
static void start_moving(movable *m)
{
    size_t size = m->chunks * G, decoy = decoy_behind(size);
    m->buffer = buffer_with_hole(size, G, decoy);
    CU(cu->cuMemAddressReserve(&m->decoys[0], decoy, 0, end_of(m->buffer), 0));
    MUST(m->decoys[0] == end_of(m->buffer));
    m->row = raw_span_reserve(m->chunks, free_place(size + decoy));
    raw_span_fill(&m->row);
    CU(cu->cuMemAddressReserve(&m->decoys[1], decoy, 0, m->row.base + size, 0));
    MUST(m->decoys[1] == m->row.base + size);
}

static void stop_moving(movable *m)
{
    gvmm_buffer_release(m->buffer);
    raw_span_unmake(&m->row);
    for (int i = 0; i < 2; i++) CU(cu->cuMemAddressFree(m->decoys[i], decoy_behind(m->chunks * G)));
}

static void grows_moved(void)
{
    static const struct {
        size_t chunks, n, batch;
    } steps[] = {{1, 400, 5}, {16, 200, 5}, {256, 30, 1}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        size_t chunks = steps[i].chunks;
        movable m = {.chunks = chunks};
        start_moving(&m);
        side sides[] = {{move_gvmm, &m}, {move_raw_each, &m}, {move_raw_at_once, &m}};
        samples s[3];
        interleave(s, sides, 3, at_least(steps[i].n), steps[i].batch);
        report(&(figure){.name = "grow_moved", .size = chunks * G, .chunks = chunks}, &s[0], &s[1]);
        report(&(figure){.name = "grow_moved_vs_one_access",
                         .size = chunks * G,
                         .chunks = chunks,
                         .note = "raw: one cuMemSetAccess for the whole range"},
               &s[0], &s[2]);
        for (int k = 0; k < 3; k++) samples_free(&s[k]);
        stop_moving(&m);
    }
}

/* ---- growing to a large total by small steps ---- */

/* Both with the address space reserved. */
static double climb_gvmm(void *state)
{
    size_t chunks = *(const size_t *)state;
    double start = now();
    gvmm_buffer *buffer = grow_to(create_ahead(G, chunks * G), chunks * G, G);
    double took = now() - start;
    gvmm_buffer_release(buffer);
    return took;
}

static double climb_raw(void *state)
{
    double start = now();
    raw_span span = raw_span_reserve(*(const size_t *)state, 0);
    raw_span_fill(&span);
    double took = now() - start;
    raw_span_unmake(&span);
    return took;
}

/* Allocate, copy, free: what gvmm is there to replace. */
static double climb_copy(void *state)
{
    size_t chunks = *(const size_t *)state;
    CUdeviceptr old, larger;
    CU(cu->cuMemAlloc(&old, G));
    CU(cu->cuMemsetD8(old, 1, G));
    raw_wait();
    double start = now();
    for (size_t k = 2; k <= chunks; k++) {
        CU(cu->cuMemAlloc(&larger, k * G));
        CU(cu->cuMemcpyDtoD(larger, old, (k - 1) * G));
        CU(cu->cuMemFree(old));
        old = larger;
    }
    raw_wait();
    double took = now() - start;
    CU(cu->cuMemFree(old));
    return took;
}

/* Four times the total costs sixteen times the copying: stops before the first that would take too long. */
static void climbs(void)
{
    static const size_t totals[] = {128, 512, 2048, 8192};
    double budget = bench_quick ? 1e6 : on_sim ? 5e6 : 60e6, one = 0;
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) {
        size_t size = totals[i] * MiB, chunks = size / G;
        size_t n = totals[i] > 2048 ? 1 : on_sim ? 2 : 6;
        if (!fits(2 * size + 2 * G)) {
            report_skip("grow_steps", size, chunks, "two copies do not fit in device memory");
            continue;
        }
        double expected = one * (double)(n == 1 ? 1 : n + 1);
        if (expected > budget) {
            report_skip("grow_steps", size, chunks, "copying would take too long");
            one *= 16;
            continue;
        }
        side sides[] = {{climb_gvmm, &chunks}, {climb_raw, &chunks}, {climb_copy, &chunks}};
        samples s[3];
        interleave(s, sides, 3, n, 1);
        report(&(figure){.name = "grow_steps", .size = size, .chunks = chunks, .per_chunk = true}, &s[0], &s[1]);
        report(&(figure){.name = "grow_steps_vs_copy",
                         .size = size,
                         .chunks = chunks,
                         .per_chunk = true,
                         .note = "raw: cuMemAlloc, cuMemcpyDtoD, cuMemFree at each step"},
               &s[0], &s[2]);
        one = samples_median(&s[2]) * 16;
        for (int k = 0; k < 3; k++) samples_free(&s[k]);
    }
}

/* ---- releasing long ranges ---- */

static double release_gvmm(void *state)
{
    size_t chunks = *(const size_t *)state;
    gvmm_buffer *buffer = grow_to(create_ahead(G, chunks * G), chunks * G, G);
    double start = now();
    gvmm_buffer_release(buffer);
    return now() - start;
}

static double release_raw(void *state)
{
    raw_span span = raw_span_reserve(*(const size_t *)state, 0);
    raw_span_fill(&span);
    double start = now();
    raw_wait();
    raw_span_unmake(&span);
    return now() - start;
}

static void releases(void)
{
    static const struct {
        size_t chunks, n;
    } steps[] = {{1024, 10}, {8192, 6}, {32768, 4}};
    double first = NAN, raw_first = NAN, ours = NAN, raw = NAN;
    size_t last = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        size_t chunks = steps[i].chunks;
        if ((bench_quick && chunks > 1024) || !fits(chunks * G)) {
            report_skip("release", chunks * G, chunks, bench_quick ? "--quick" : "does not fit in device memory");
            continue;
        }
        side sides[] = {{release_gvmm, &chunks}, {release_raw, &chunks}};
        samples s[2];
        interleave(s, sides, 2, at_least(steps[i].n), 1);
        report(&(figure){.name = "release", .size = chunks * G, .chunks = chunks, .per_chunk = true}, &s[0], &s[1]);
        ours = samples_median(&s[0]) / (double)chunks;
        raw = samples_median(&s[1]) / (double)chunks;
        if (i == 0) first = ours, raw_first = raw;
        last = chunks;
        samples_free(&s[0]);
        samples_free(&s[1]);
    }
    report_value("release_linearity", last, ours / first, raw / raw_first, NAN,
                 "time per chunk at this length / at 1024");
}

/* ---- what calls no driver, or hardly ---- */

enum { MANY = 200 };

static gvmm_buffer *shown;
static gvmm_buffer *aliases[MANY];
static volatile uint64_t sink;

static void drop_aliases(void)
{
    for (int i = 0; i < MANY; i++) gvmm_buffer_release(aliases[i]);
}

static double alias_gvmm(void *state)
{
    (void)state;
    double start = now();
    for (int i = 0; i < MANY; i++) OK(gvmm_buffer_grow(&aliases[i], shown, 0, NULL));
    double took = now() - start;
    drop_aliases();
    return took;
}

static double alias_release_gvmm(void *state)
{
    (void)state;
    for (int i = 0; i < MANY; i++) OK(gvmm_buffer_grow(&aliases[i], shown, 0, NULL));
    double start = now();
    drop_aliases();
    return now() - start;
}

static double wait_raw(void *state)
{
    (void)state;
    double start = now();
    for (int i = 0; i < MANY; i++) raw_wait();
    return now() - start;
}

static double getters_gvmm(void *state)
{
    (void)state;
    double start = now();
    for (int i = 0; i < MANY; i++) sink = gvmm_buffer_address(shown) + gvmm_buffer_size(shown);
    return now() - start;
}

static double getters_raw(void *state)
{
    CUdeviceptr address = gvmm_buffer_address(state), base;
    size_t size;
    double start = now();
    for (int i = 0; i < MANY; i++) {
        CU(cu->cuMemGetAddressRange(&base, &size, address));
        sink = base + size;
    }
    return now() - start;
}

static void small_things(void)
{
    OK(gvmm_buffer_create(&shown, plain, G, NULL));
    side sides[] = {{alias_gvmm, NULL}, {alias_release_gvmm, NULL}, {wait_raw, NULL}};
    samples s[3];
    interleave(s, sides, 3, at_least(400), 2);
    report(&(figure){.name = "full_alias", .size = G, .per = MANY, .note = "raw: there is no call for it"}, &s[0],
           NULL);
    report(&(figure){.name = "full_alias_release", .size = G, .per = MANY, .note = "raw: cuStreamSynchronize, legacy"},
           &s[1], &s[2]);
    for (int k = 0; k < 3; k++) samples_free(&s[k]);

    side getters[] = {{getters_gvmm, NULL}, {getters_raw, shown}};
    interleave(s, getters, 2, at_least(400), 2);
    report(&(figure){.name = "getters", .size = G, .per = MANY, .note = "address and size; raw: cuMemGetAddressRange"},
           &s[0], &s[1]);
    samples_free(&s[0]);
    samples_free(&s[1]);
    gvmm_buffer_release(shown);
}

/* ---- host memory ---- */

static size_t live_bytes, live_usable, live_objects;
static struct {
    void *ptr;
    size_t size;
} objects[64];

static void *counting_allocate(size_t size)
{
    void *ptr = malloc(size);
    MUST(ptr);
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        if (objects[i].ptr) continue;
        objects[i].ptr = ptr;
        objects[i].size = size;
        live_bytes += size;
        live_usable += malloc_usable_size(ptr);
        live_objects++;
        return ptr;
    }
    bench_die(__FILE__, __LINE__, "counting_allocate", "more objects than expected");
}

static void counting_deallocate(void *ptr)
{
    if (!ptr) return;
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        if (objects[i].ptr != ptr) continue;
        objects[i].ptr = NULL;
        live_bytes -= objects[i].size;
        live_usable -= malloc_usable_size(ptr);
        live_objects--;
    }
    free(ptr);
}

/* A full alias is a handle and nothing else; what a grow keeps beyond that is the chunk's. Comes before any resource is
 * made. */
static void host_bytes(void)
{
    OK(gvmm_host_allocator_install(&(gvmm_host_allocator){counting_allocate, counting_deallocate}));
    gvmm_buffer *buffer = buffer_with_hole(G, G, G), *alias, *longer;
    size_t bytes = live_bytes, usable = live_usable, count = live_objects;
    OK(gvmm_buffer_grow(&alias, buffer, 0, NULL));
    size_t handle = live_bytes - bytes, handle_usable = live_usable - usable;
    MUST(live_objects - count == 1);
    bytes = live_bytes, usable = live_usable, count = live_objects;
    OK(gvmm_buffer_grow(&longer, buffer, 2 * G, NULL));
    MUST(gvmm_buffer_address(longer) == gvmm_buffer_address(buffer));

    report_value("host_bytes_chunk", 1, (double)(live_usable - usable - handle_usable), NAN, 256,
                 "bytes, malloc_usable_size");
    report_value("host_bytes_chunk_asked", 1, (double)(live_bytes - bytes - handle), NAN, 256, "bytes as asked for");
    report_value("host_objects_chunk", 1, (double)(live_objects - count - 1), NAN, NAN, "allocations");
    report_value("host_bytes_handle", 0, (double)handle_usable, NAN, NAN,
                 "bytes of a buffer handle, malloc_usable_size");
    gvmm_buffer_release(longer);
    gvmm_buffer_release(alias);
    gvmm_buffer_release(buffer);
    MUST(live_objects == 0);
    OK(gvmm_host_allocator_install(NULL));
}

int main(int argc, char **argv)
{
    bench_start(bench_options(argc, argv, "host|create|memset|place|move|steps|release|small"));
    if (bench_wants("host")) host_bytes();
    gvmm_options options = waiting_options();
    OK(gvmm_resource_create(&plain, 0, &options));
    MUST(gvmm_resource_granularity(plain) == G);
    if (bench_wants("create")) creations(false);
    if (bench_wants("memset")) creations(true);
    if (bench_wants("small")) small_things();
    if (bench_wants("place")) grows_in_place();
    if (bench_wants("move")) grows_moved();
    if (bench_wants("steps")) climbs();
    if (bench_wants("release")) releases();
    gvmm_resource_release(plain);
    return bench_end();
}

/* gvmm_pool beside a naive twin: random sizes, streams, gates, trims. The twin knows which bytes are live, and which were
 * freed but are still to be touched by work of which stream; nobody else may get those. Every live block keeps its bytes,
 * as its stream's own work sees them. */
#include "support.h"

enum { STREAMS = 3, LIVE = 200, BUSY = 4000, EDGE = 64, STEPS = 4000 };

typedef struct live {
    uint64_t address;
    size_t size;
    int stream;
    unsigned char value;
} live;

/* Freed behind a gate that is shut. */
typedef struct busy {
    uint64_t address;
    size_t size;
    int stream;
} busy;

/* What a stream read back, to be looked at once it is synchronised. */
typedef struct reading {
    unsigned char bytes[2 * EDGE], value;
    size_t size;
} reading;

static struct {
    gvmm_pool *pool;
    CUstream streams[STREAMS];
    gate *gates[STREAMS];
    live live[LIVE];
    int live_count;
    busy busy[BUSY];
    int busy_count;
    reading *readings[STREAMS]; /* pinned: else the copy would wait */
    int reading_count[STREAMS];
    uint64_t bytes;
    unsigned state;
} m;

static unsigned any(unsigned below)
{
    m.state = m.state * 1664525u + 1013904223u;
    return (m.state >> 8) % below;
}

static bool overlap(uint64_t a, size_t a_size, uint64_t b, size_t b_size) { return a < b + b_size && b < a + a_size; }

static size_t any_size(void)
{
    size_t size = (size_t)1 << (6 + any(17));
    return size + (size_t)any((unsigned)size);
}

static size_t edge_of(const live *b) { return b->size < EDGE ? b->size : EDGE; }

static void ck_place(uint64_t address, size_t size, int by)
{
    for (int i = 0; i < m.live_count; i++) ck_assert(!overlap(address, size, m.live[i].address, m.live[i].size));
    for (int i = 0; i < m.busy_count; i++)
        ck_assert_msg(m.busy[i].stream == by || !overlap(address, size, m.busy[i].address, m.busy[i].size),
                      "stream %d got what stream %d still works with", by, m.busy[i].stream);
}

static void do_malloc(void)
{
    live b = {.size = any_size(), .stream = (int)any(STREAMS), .value = (unsigned char)any(256)};
    if (m.live_count == LIVE) return;
    ck_ok(gvmm_pool_malloc(&b.address, m.pool, b.size, m.streams[b.stream]));
    ck_place(b.address, b.size, b.stream);
    size_t edge = edge_of(&b);
    ck_cu(cu->cuMemsetD8Async(b.address, b.value, edge, m.streams[b.stream]));
    ck_cu(cu->cuMemsetD8Async(b.address + b.size - edge, b.value, edge, m.streams[b.stream]));
    m.bytes += b.size;
    m.live[m.live_count++] = b;
}

/* The block's last use is to be read by its stream. */
static void do_free(void)
{
    if (!m.live_count) return;
    int i = (int)any((unsigned)m.live_count);
    live b = m.live[i];
    if (m.busy_count == BUSY || m.reading_count[b.stream] == BUSY) return;
    reading *r = &m.readings[b.stream][m.reading_count[b.stream]++];
    size_t edge = edge_of(&b);
    *r = (reading){.value = b.value, .size = edge};
    ck_cu(cu->cuMemcpyDtoHAsync(r->bytes, b.address, edge, m.streams[b.stream]));
    ck_cu(cu->cuMemcpyDtoHAsync(r->bytes + edge, b.address + b.size - edge, edge, m.streams[b.stream]));
    ck_ok(gvmm_pool_free(m.pool, b.address, m.streams[b.stream]));
    if (m.gates[b.stream]) m.busy[m.busy_count++] = (busy){b.address, b.size, b.stream};
    m.bytes -= b.size;
    m.live[i] = m.live[--m.live_count];
}

static void do_shut(void)
{
    int s = (int)any(STREAMS);
    if (!m.gates[s]) m.gates[s] = gate_on(m.streams[s]);
}

/* Everything that the stream gave up is done with. */
static void do_open(int s)
{
    if (m.gates[s]) gate_end(m.gates[s]);
    m.gates[s] = NULL;
    ck_cu(cu->cuStreamSynchronize(m.streams[s]));
    for (int i = 0; i < m.reading_count[s]; i++) {
        const reading *r = &m.readings[s][i];
        for (size_t k = 0; k < 2 * r->size; k++) ck_assert_uint_eq(r->bytes[k], r->value);
    }
    m.reading_count[s] = 0;
    int kept = 0;
    for (int i = 0; i < m.busy_count; i++)
        if (m.busy[i].stream != s) m.busy[kept++] = m.busy[i];
    m.busy_count = kept;
}

static void step(void)
{
    unsigned what = any(100);
    if (what < 48) do_malloc();
    else if (what < 92) do_free();
    else if (what < 94) do_shut();
    else if (what < 98) do_open((int)any(STREAMS));
    else if (what < 99) gvmm_pool_trim(m.pool, (size_t)any(64) * MiB);
    else ck_fails(gvmm_pool_free(m.pool, m.live[0].address + 64, NULL), GVMM_E_INVALID);
}

static void ck_figures(void)
{
    gvmm_pool_stats now;
    gvmm_pool_get_stats(m.pool, &now);
    ck_assert_uint_eq(now.live_bytes, m.bytes);
    ck_assert_uint_eq(now.blocks, (unsigned)m.live_count);
    ck_assert_uint_ge(now.physical_bytes, now.rounded_bytes);
    ck_assert_uint_ge(now.rounded_bytes, now.live_bytes);
    ck_assert_uint_ge(now.physical_peak, now.physical_bytes);
}

static void run(bool outlive, unsigned seed, size_t limit)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    memset(&m, 0, sizeof m);
    m.state = seed;
    options.streams_outlive = outlive;
    options.limit = limit;
    ck_ok(gvmm_pool_create(&m.pool, plain, &options));
    for (int i = 0; i < STREAMS; i++) {
        ck_cu(cu->cuStreamCreate(&m.streams[i], CU_STREAM_NON_BLOCKING));
        ck_cu(cu->cuMemAllocHost((void **)&m.readings[i], BUSY * sizeof(reading)));
    }
    for (int i = 0; i < STEPS; i++) {
        step();
        if (i % 16 == 0) ck_figures();
    }
    while (m.live_count) {
        if (m.busy_count == BUSY) do_open(0), do_open(1), do_open(2);
        do_free();
    }
    for (int i = 0; i < STREAMS; i++) do_open(i);
    ck_figures();
    gvmm_pool_trim(m.pool, 0);
    gvmm_pool_release(m.pool);
    for (int i = 0; i < STREAMS; i++) {
        ck_cu(cu->cuStreamDestroy(m.streams[i]));
        ck_cu(cu->cuMemFreeHost(m.readings[i]));
    }
    ck_no_warnings();
}

START_TEST(as_the_twin_has_it) { run(_i % 2 != 0, 17u + (unsigned)_i, 0); }
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool model");
    TCase *tests = add_case(suite, "model");
    tcase_add_loop_test(tests, as_the_twin_has_it, 0, 8);
    return run_suites(suite, NULL);
}

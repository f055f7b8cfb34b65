/* gvmm_pool when every driver call and every host allocation fails, one at a time, or all from one on: what is live stays as
 * it is, nothing is lost, and the same call then succeeds. */
#include "support.h"

enum { BLOCKS = 4, MOST = 600 };

typedef struct scene {
    gvmm_pool *pool;
    uint64_t at[BLOCKS];
    size_t size[BLOCKS];
    uint64_t out; /* what the operation made */
    CUgraph graph;
    gvmm_pool *out_pool;
    bool capturing;
} scene;

typedef struct operation {
    const char *name;
    void (*prepare)(scene *s);
    gvmm_result (*run)(scene *s);
    bool gives_back; /* cannot fail */
} operation;

/* ---- before ---- */

/* A limit far away: the less address space, the faster. */
static void with_pool(scene *s)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.limit = 256 * MiB;
    ck_ok(gvmm_pool_create(&s->pool, plain, &options));
}

static void nothing(scene *s) { (void)s; }

/* The bytes of a block that are looked at. */
static size_t watched(size_t size) { return size < 4096 ? size : 4096; }

static void take(scene *s, int i, size_t size)
{
    ck_ok(gvmm_pool_malloc(&s->at[i], s->pool, size, stream));
    s->size[i] = size;
    write_pattern(s->at[i], watched(size), (unsigned)i);
}

static void with_blocks(scene *s)
{
    with_pool(s);
    take(s, 0, 700);
    take(s, 1, 3 * MiB);
    take(s, 2, 2 * MiB);
}

static void give(scene *s, int i)
{
    ck_ok(gvmm_pool_free(s->pool, s->at[i], stream));
    s->at[i] = 0;
}

/* Free pieces on both sides of a live block, done with. */
static void with_holes(scene *s)
{
    with_pool(s);
    take(s, 0, 6 * MiB);
    take(s, 1, 2 * MiB);
    take(s, 2, 6 * MiB);
    take(s, 3, MiB);
    give(s, 0);
    give(s, 2);
    ck_cu(cu->cuStreamSynchronize(stream));
}

static void with_capture(scene *s)
{
    with_holes(s);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    s->capturing = true;
}

static void with_limit(scene *s)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.limit = 16 * MiB;
    ck_ok(gvmm_pool_create(&s->pool, plain, &options));
    take(s, 0, 8 * MiB);
    take(s, 1, 4 * MiB);
    give(s, 0);
}

/* All that may be had is there, and what is free of it is one piece. */
static void with_one_piece(scene *s)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.limit = 40 * MiB;
    ck_ok(gvmm_pool_create(&s->pool, plain, &options));
    take(s, 0, 32 * MiB);
    take(s, 1, 8 * MiB);
    give(s, 0);
    ck_cu(cu->cuStreamSynchronize(stream));
}

static void with_promise(scene *s)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.streams_outlive = true;
    options.limit = 256 * MiB;
    ck_ok(gvmm_pool_create(&s->pool, plain, &options));
    take(s, 0, 8 * MiB);
    take(s, 1, 4 * MiB);
    give(s, 0);
    ck_cu(cu->cuStreamSynchronize(stream));
}

/* ---- operations ---- */

static gvmm_result create_pool(scene *s)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.limit = 256 * MiB;
    return gvmm_pool_create(&s->out_pool, plain, &options);
}

static gvmm_result malloc_of(scene *s, size_t size, gvmm_stream of)
{
    gvmm_result r = gvmm_pool_malloc(&s->out, s->pool, size, of);
    if (r) ck_assert_uint_eq(s->out, 0);
    return r;
}

static gvmm_result malloc_small(scene *s) { return malloc_of(s, 900, stream); }
static gvmm_result malloc_large(scene *s) { return malloc_of(s, 9 * MiB, stream); }
static gvmm_result malloc_default(scene *s) { return malloc_of(s, 5 * MiB, NULL); }
static gvmm_result malloc_stitched(scene *s) { return malloc_of(s, 10 * MiB, stream); }
static gvmm_result malloc_other(scene *s) { return malloc_of(s, 12 * MiB, NULL); }

static gvmm_result free_one(scene *s)
{
    gvmm_result r = gvmm_pool_free(s->pool, s->at[1], stream);
    s->at[1] = 0;
    return r;
}

static gvmm_result free_default(scene *s)
{
    gvmm_result r = gvmm_pool_free(s->pool, s->at[1], NULL);
    s->at[1] = 0;
    return r;
}

static gvmm_result trim(scene *s)
{
    gvmm_pool_trim(s->pool, 0);
    return GVMM_OK;
}

static const operation operations[] = {
    {"pool_create", nothing, create_pool, false},
    {"malloc, small, the first", with_pool, malloc_small, false},
    {"malloc, large, the first", with_pool, malloc_large, false},
    {"malloc beside others", with_blocks, malloc_large, false},
    {"malloc on the default stream", with_blocks, malloc_default, false},
    {"malloc, stitched", with_holes, malloc_stitched, false},
    {"malloc of a piece that is broken up", with_one_piece, malloc_small, false},
    {"malloc into a capture", with_capture, malloc_large, false},
    {"malloc at the limit", with_limit, malloc_other, false},
    {"malloc of another's, streams outlive", with_promise, malloc_default, false},
    {"free", with_blocks, free_one, true},
    {"free on the default stream", with_blocks, free_default, true},
    {"free into a capture", with_capture, free_one, true},
    {"free, streams outlive", with_promise, free_one, true},
    {"trim", with_holes, trim, true},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

/* ---- the sweep ---- */

static void ck_live(const scene *s)
{
    size_t live = 0, count = 0;
    gvmm_pool_stats now;
    if (!s->pool) return;
    for (int i = 0; i < BLOCKS; i++) {
        if (!s->at[i]) continue;
        if (!s->capturing) ck_pattern(s->at[i], watched(s->size[i]), (unsigned)i);
        live += s->size[i];
        count++;
    }
    gvmm_pool_get_stats(s->pool, &now);
    ck_assert_uint_eq(now.blocks, count + (s->out ? 1 : 0));
    if (!s->out) ck_assert_uint_eq(now.live_bytes, live);
}

/* Until nothing waits any more, and the pool is gone. */
static void end_pool(gvmm_pool *pool)
{
    drain_wholly();
    gvmm_pool_release(pool);
}

static void end_scene(scene *s)
{
    if (s->capturing) {
        ck_cu(cu->cuStreamEndCapture(stream, &s->graph));
        ck_cu(cu->cuGraphDestroy(s->graph));
    }
    for (int i = 0; i < BLOCKS; i++)
        if (s->at[i]) ck_ok(gvmm_pool_free(s->pool, s->at[i], NULL));
    if (s->out) ck_ok(gvmm_pool_free(s->pool, s->out, NULL));
    end_pool(s->pool);
    end_pool(s->out_pool);
    wait_for_mappings(0);
}

/* False when the fault did not fire any more. */
static bool sweep_step(const operation *op, uint64_t nth, bool onwards)
{
    scene s = {0};
    op->prepare(&s);
    gvmm_drain();
    atomic_store(&warning_count, 0);
    fault(nth, onwards);
    gvmm_result r = op->run(&s);
    bool fired = gvmm_faults_injected() > 0;
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    if (op->gives_back) ck_ok(r);
    if (r) {
        ck_assert_msg(fired, "%s: %s", op->name, last_text());
        ck_assert(r <= GVMM_E_DRIVER && r != GVMM_E_PEER_GONE);
        ck_assert_str_ne(last_text(), "");
        ck_assert(!s.out_pool);
        ck_live(&s);
        ck_ok(op->run(&s)); /* the same call then succeeds */
    }
    if (!fired) ck_no_warnings();
    ck_live(&s);
    if (s.out && !s.capturing) fill(s.out, 1, 512);
    ck_live(&s);
    end_scene(&s);
    ck_nothing_left();
    return fired;
}

START_TEST(sweep_once)
{
    uint64_t nth = 1;
    while (sweep_step(&operations[_i], nth, false)) ck_assert_uint_lt(++nth, MOST);
}
END_TEST

START_TEST(sweep_onwards)
{
    uint64_t nth = 1;
    while (sweep_step(&operations[_i], nth, true)) ck_assert_uint_lt(++nth, MOST);
}
END_TEST

/* What ran out is told, and memory of which the pieces could not be had is not kept. */
START_TEST(no_memory_is_told)
{
    scene s = {0};
    gvmm_error error;
    with_blocks(&s);
    gvmm_pool_stats before, after;
    gvmm_pool_get_stats(s.pool, &before);
    ck_ok(gvmm_faults_set(&(gvmm_fault){2, true, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY}));
    ck_fails(gvmm_pool_malloc(&s.out, s.pool, 64 * MiB, stream), GVMM_E_NO_DEVICE_MEMORY);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemCreate");
    ck_ok(gvmm_faults_set(NULL));
    gvmm_pool_get_stats(s.pool, &after);
    ck_assert_uint_eq(before.physical_bytes, after.physical_bytes);
    ck_no_warnings();
    end_scene(&s);
}
END_TEST

/* However little is asked for. */
START_TEST(no_address_space_is_told)
{
    gvmm_pool *none = NULL;
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY}));
    ck_fails(gvmm_pool_create(&none, plain, NULL), GVMM_E_NO_ADDRESS_SPACE);
    ck_assert_ptr_null(none);
    ck_ok(gvmm_faults_set(NULL));
    ck_no_warnings();
    ck_nothing_left();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool faults");
    TCase *sweep = add_case(suite, "sweep");
    tcase_add_loop_test(sweep, sweep_once, 0, OPERATIONS);
    tcase_add_loop_test(sweep, sweep_onwards, 0, OPERATIONS);
    TCase *errors = add_case(suite, "errors");
    tcase_add_test(errors, no_memory_is_told);
    tcase_add_test(errors, no_address_space_is_told);
    return run_suites(suite, NULL);
}

/* gvmm_pool: sizes and addresses, order on streams, captures, wrong frees, limits, stitching, trimming. Work that lasts is a
 * host function at a gate. */
#include "pool_kit.h"

/* What was freed on the default stream while nothing could be asked of it waits for the end of that. */
static void drain_and_teardown(void)
{
    drain_wholly();
    teardown_pool();
}

static void synchronize(gvmm_stream s) { ck_cu(cu->cuStreamSynchronize(s)); }

/* ---- sizes and addresses ---- */

START_TEST(every_size_gets_its_own_memory)
{
    const size_t sizes[] = {1,   511,     512,     513,     4096,        64 * KiB, MiB - 1,
                            MiB, MiB + 1, 2 * MiB, 3 * MiB, 5 * MiB + 1, 64 * MiB, 100 * MiB + 512};
    enum { N = sizeof sizes / sizeof *sizes };
    uint64_t at[N];
    for (int i = 0; i < N; i++) {
        at[i] = take(sizes[i], stream);
        ck_assert_uint_eq(at[i] % (sizes[i] < MiB ? 512 : 4096), 0);
        write_pattern(at[i], sizes[i], (unsigned)i);
    }
    for (int i = 0; i < N; i++) ck_pattern(at[i], sizes[i], (unsigned)i);
    size_t total = 0;
    for (int i = 0; i < N; i++) total += sizes[i];
    ck_assert_uint_eq(stats().live_bytes, total);
    ck_assert_uint_eq(stats().blocks, N);
    ck_assert_uint_ge(stats().rounded_bytes, total);
    ck_assert_uint_ge(stats().physical_bytes, stats().rounded_bytes);
    for (int i = 0; i < N; i++) give(at[i], stream);
    ck_assert_uint_eq(stats().live_bytes, 0);
    ck_assert_uint_eq(stats().rounded_bytes, 0);
    ck_assert_uint_eq(stats().blocks, 0);
}
END_TEST

/* Just below a border a size is rounded up to it: what it leaves must do for the border itself. */
START_TEST(sizes_below_a_border_are_aligned_as_those_on_it)
{
    uint64_t odd = take(512, stream), below = take(1 * MiB - 1, stream);
    ck_assert_uint_eq(below % 4096, 0);
    give(below, stream);
    uint64_t on = take(1 * MiB, stream);
    ck_assert_uint_eq(on % 4096, 0);
    give(on, stream);
    give(odd, stream);
}
END_TEST

START_TEST(small_blocks_share_a_granule)
{
    uint64_t at[64];
    for (int i = 0; i < 64; i++) at[i] = take(512, stream);
    ck_assert_uint_eq(stats().physical_bytes, G);
    for (int i = 1; i < 64; i++) ck_assert_uint_eq(at[i], at[i - 1] + 512);
    for (int i = 0; i < 64; i += 2) give(at[i], stream);
    for (int i = 1; i < 64; i += 2) give(at[i], stream);
    uint64_t all;
    gvmm_pool_trim(pool, SIZE_MAX); /* what is kept for its size goes back to the heap */
    all = take(64 * 512, stream);   /* they have been joined */
    ck_assert_uint_eq(all, at[0]);
    give(all, stream);
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
    uint64_t address = 7;
    ck_fails(gvmm_pool_malloc(&address, pool, 0, stream), GVMM_E_INVALID);
    ck_fails(gvmm_pool_malloc(&address, pool, SIZE_MAX, stream), GVMM_E_NO_DEVICE_MEMORY);
    ck_fails(gvmm_pool_malloc(&address, pool, (size_t)1 << 62, stream), GVMM_E_NO_DEVICE_MEMORY);
    ck_fails(gvmm_pool_malloc(NULL, pool, 512, stream), GVMM_E_INVALID);
    ck_fails(gvmm_pool_malloc(&address, NULL, 512, stream), GVMM_E_INVALID);
    ck_assert_uint_eq(address, 7);
    ck_assert_uint_eq(stats().physical_bytes, 0);
}
END_TEST

START_TEST(wrong_frees_are_refused)
{
    uint64_t small = take(1000, stream), large = take(3 * MiB, stream);
    const uint64_t wrong[] = {small + 1,
                              small + 256,
                              small + 512,
                              large + 4096,
                              large + 2 * MiB,
                              512,
                              1,
                              UINT64_MAX,
                              large + ((uint64_t)1 << 50)};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_fails(gvmm_pool_free(pool, wrong[i], stream), GVMM_E_INVALID);
        ck_names("not the address of a block");
    }
    ck_fails(gvmm_pool_free(NULL, small, stream), GVMM_E_INVALID);
    ck_ok(gvmm_pool_free(pool, 0, stream));
    ck_assert_uint_eq(stats().blocks, 2);
    give(small, stream);
    ck_fails(gvmm_pool_free(pool, small, stream), GVMM_E_INVALID);
    ck_names("freed already");
    give(large, stream);
    ck_fails(gvmm_pool_free(pool, large, NULL), GVMM_E_INVALID);
    gvmm_pool *other = pool_with(0, false);
    uint64_t again = take(1000, stream);
    ck_fails(gvmm_pool_free(other, again, stream), GVMM_E_INVALID);
    gvmm_pool_release(other);
    give(again, stream);
    ck_assert_uint_eq(stats().blocks, 0);
}
END_TEST

START_TEST(options_are_checked)
{
    gvmm_pool *made = NULL;
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.struct_size = 3;
    ck_fails(gvmm_pool_create(&made, plain, &options), GVMM_E_INVALID);
    ck_fails(gvmm_pool_create(&made, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_pool_create(NULL, plain, NULL), GVMM_E_INVALID);
    gvmm_resource *of_host = resource_with(on_host());
    ck_fails(gvmm_pool_create(&made, of_host, NULL), GVMM_E_UNSUPPORTED);
    gvmm_resource_release(of_host);
    ck_assert_ptr_null(made);
    gvmm_pool_release(NULL);
    ck_assert_ptr_null(gvmm_pool_retain(NULL));
}
END_TEST

START_TEST(the_pool_holds_its_resource)
{
    gvmm_resource *own = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
    gvmm_pool *made;
    ck_ok(gvmm_pool_create(&made, own, NULL));
    gvmm_resource_release(own);
    uint64_t address;
    ck_ok(gvmm_pool_malloc(&address, made, 5 * MiB, stream));
    ck_assert_uint_eq(access_of(address, 0), GVMM_ACCESS_READ_WRITE);
    ck_ok(gvmm_pool_free(made, address, stream));
    gvmm_pool_retain(made);
    gvmm_pool_release(made);
    gvmm_pool_release(made);
}
END_TEST

/* ---- order ---- */

/* The stream itself may have it at once, whatever runs; others when that is over. */
static void ck_order(void)
{
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    uint64_t mine = take(8 * MiB, stream);
    gate *g = gate_on(stream);
    give(mine, stream);
    uint64_t theirs = take(8 * MiB, other);
    ck_assert(theirs + 8 * MiB <= mine || mine + 8 * MiB <= theirs);
    ck_assert_uint_eq(take(8 * MiB, stream), mine);
    give(mine, stream);
    ck_assert_uint_eq(take(3 * MiB, stream), mine); /* parts of it too */
    give(mine, stream);
    give(theirs, other);
    gate_end(g);
    synchronize(other);
    uint64_t before = stats().physical_bytes, both = take(16 * MiB, other); /* all is done: it can be had together */
    ck_assert_uint_eq(stats().physical_bytes, before);
    give(both, other);
    synchronize(other);
    ck_cu(cu->cuStreamDestroy(other));
}

START_TEST(a_stream_has_its_own_at_once)
{
    ck_order();
    new_pool(0, true);
    CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
    uint64_t a = take(4 * MiB, own);
    give(a, own);
    ck_assert_uint_eq(take(4 * MiB, own), a);
    give(a, own);
    gvmm_pool_release(pool); /* before the stream, as was promised */
    ck_cu(cu->cuStreamDestroy(own));
    pool = pool_with(0, false);
}
END_TEST

START_TEST(default_streams_are_one)
{
    uint64_t a = take(4 * MiB, NULL);
    gate *g = gate_on(CU_STREAM_LEGACY);
    give(a, GVMM_STREAM_LEGACY);
    ck_assert_uint_eq(take(4 * MiB, NULL), a);
    uint64_t other = take(4 * MiB, stream);
    ck_assert_uint_ne(other, a);
    give(a, NULL);
    give(other, stream);
    gate_end(g);
}
END_TEST

/* Its handle may come again for another stream. */
START_TEST(a_stream_may_be_destroyed_after_a_free)
{
    for (int i = 0; i < 50; i++) {
        CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
        uint64_t a = take(4 * MiB, own);
        CUevent passed;
        ck_cu(cu->cuEventCreate(&passed, CU_EVENT_DISABLE_TIMING));
        gate *g = gate_on(own);
        ck_cu(cu->cuMemsetD8Async(a, 1, 4 * MiB, own));
        ck_cu(cu->cuEventRecord(passed, own));
        give(a, own);
        ck_cu(cu->cuStreamDestroy(own));
        CUstream next = new_stream(CU_STREAM_NON_BLOCKING);
        uint64_t b = take(4 * MiB, next);
        ck_assert(b + 4 * MiB <= a || a + 4 * MiB <= b);
        give(b, next);
        gate_open(g);
        ck_cu(cu->cuEventSynchronize(passed));
        ck_cu(cu->cuEventDestroy(passed));
        synchronize(next);
        ck_cu(cu->cuStreamDestroy(next));
        free(g);
    }
    ck_assert_uint_le(stats().physical_bytes, 32 * MiB);
    ck_no_warnings();
}
END_TEST

START_TEST(more_streams_than_arenas)
{
    enum { N = 80 };
    CUstream s[N];
    uint64_t at[N];
    for (int i = 0; i < N; i++) {
        s[i] = new_stream(CU_STREAM_NON_BLOCKING);
        at[i] = take(4 * MiB, s[i]);
    }
    gate *g[N];
    for (int i = 0; i < N; i++) {
        g[i] = gate_on(s[i]);
        give(at[i], s[i]);
    }
    for (int i = 0; i < N; i++) gate_open(g[i]); /* one thread of the driver may wait at all of them in turn */
    for (int i = 0; i < N; i++) gate_end(g[i]);
    gvmm_drain();
    uint64_t before = stats().physical_bytes, all = take(N * 4 * MiB, stream);
    ck_assert_uint_eq(stats().physical_bytes, before);
    give(all, stream);
    for (int i = 0; i < N; i++) ck_cu(cu->cuStreamDestroy(s[i]));
}
END_TEST

/* ---- captures ---- */

/* What is freed into a capture is held by its graph; a launch may still use it. */
START_TEST(freed_while_its_stream_captures)
{
    CUgraph graph;
    CUgraphExec exec;
    uint64_t a = take(4 * MiB, stream), done = take(6 * MiB, stream);
    give(done, stream);
    synchronize(stream);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async(a, 9, 4 * MiB, stream));
    give(a, stream);
    uint64_t b = take(4 * MiB, stream); /* of what is done */
    ck_assert_uint_eq(b, done);
    ck_cu(cu->cuMemsetD8Async(b, 8, 4 * MiB, stream));
    give(b, stream);
    ck_fails(gvmm_pool_free(pool, b, stream), GVMM_E_INVALID);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    ck_cu(cu->cuGraphDestroy(graph));
    uint64_t c = take(20 * MiB, stream);
    fill(c, 1, 20 * MiB);
    ck_cu(cu->cuGraphLaunch(exec, stream));
    synchronize(stream);
    ck_filled(a, 9, 4 * MiB);
    ck_filled(b, 8, 4 * MiB);
    ck_filled(c, 1, 20 * MiB);
    give(c, stream);
    ck_cu(cu->cuGraphExecDestroy(exec));
    while (gvmm_pool_trim(pool, 0), stats().physical_bytes) {
        sched_yield();
        gvmm_drain();
    }
    c = take(4 * MiB, stream);
    ck_assert_uint_eq(stats().rounded_bytes, 4 * MiB);
    give(c, stream);
    ck_no_warnings();
}
END_TEST

START_TEST(a_capture_gets_nothing_that_is_busy)
{
    CUgraph graph;
    uint64_t a = take(4 * MiB, stream);
    gate *g = gate_on(stream);
    give(a, stream);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    uint64_t b = take(4 * MiB, stream);
    ck_assert(b + 4 * MiB <= a || a + 4 * MiB <= b);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    give(b, stream);
    gate_end(g);
}
END_TEST

static void beside_a_capture(CUstreamCaptureMode mode, unsigned flags)
{
    CUgraph graph;
    CUstream capturing, other = new_stream(CU_STREAM_NON_BLOCKING);
    ck_cu(cu->cuStreamCreate(&capturing, flags));
    ck_cu(cu->cuStreamBeginCapture(capturing, mode));
    for (int i = 0; i < 20; i++) {
        uint64_t a = take((size_t)(i + 1) * MiB, other), b = take((size_t)(i + 1) * KiB, NULL);
        give(b, NULL);
        give(a, other);
        gvmm_pool_trim(pool, 4 * MiB);
    }
    ck_cu(cu->cuStreamEndCapture(capturing, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuStreamDestroy(capturing));
    synchronize(other);
    ck_cu(cu->cuStreamDestroy(other));
    gvmm_drain();
}

START_TEST(unrelated_captures_stay_valid)
{
    for (int flags = 0; flags < 2; flags++) { /* a blocking stream forbids all calls on the default stream meanwhile */
        beside_a_capture(CU_STREAM_CAPTURE_MODE_GLOBAL, (unsigned)flags);
        beside_a_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, (unsigned)flags);
        beside_a_capture(CU_STREAM_CAPTURE_MODE_RELAXED, (unsigned)flags);
    }
    ck_no_warnings();
}
END_TEST

/* ---- limits, out of memory ---- */

START_TEST(a_limit_is_kept)
{
    uint64_t address;
    new_pool(16 * MiB, false);
    uint64_t a = take(8 * MiB, stream), b = take(6 * MiB, stream);
    ck_fails(gvmm_pool_malloc(&address, pool, 4 * MiB, stream), GVMM_E_NO_DEVICE_MEMORY);
    ck_names("limit");
    ck_fails(gvmm_pool_malloc(&address, pool, 17 * MiB, stream), GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_uint_eq(stats().blocks, 2);
    ck_assert_uint_le(stats().physical_bytes, 16 * MiB);
    ck_ok(gvmm_pool_set_limit(pool, 18 * MiB));
    uint64_t c = take(4 * MiB, stream);
    ck_ok(gvmm_pool_set_limit(pool, 4 * MiB));
    give(b, stream);
    ck_assert_uint_eq(take(6 * MiB, stream), b); /* what is there can be had */
    give(a, stream);
    give(b, stream);
    give(c, stream);
    ck_assert_uint_le(stats().physical_peak, 18 * MiB);
    ck_no_warnings();
}
END_TEST

static void *open_soon(void *g)
{
    for (int i = 0; i < 1000; i++) sched_yield();
    gate_open(g);
    return NULL;
}

/* What another stream gave up and still uses is waited for before there is said to be no memory. */
START_TEST(no_memory_waits_for_what_is_busy)
{
    new_pool(16 * MiB, false);
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    uint64_t a = take(16 * MiB, other);
    gate *g = gate_on(other);
    give(a, other);
    pthread_t opener;
    ck_assert_int_eq(pthread_create(&opener, NULL, open_soon, g), 0);
    give(take(12 * MiB, stream), stream);
    pthread_join(opener, NULL);
    gate_end(g);
    ck_cu(cu->cuStreamDestroy(other));
}
END_TEST

static void look_at_the_pool(void *told, const gvmm_error *error)
{
    (void)error;
    atomic_fetch_add((atomic_int *)told, stats().blocks == 0);
}

/* The event of a stream of another context is destroyed when it has been waited for, and that fails. */
START_TEST(a_warning_handler_may_use_the_pool)
{
    CUcontext context;
    CUstream other;
    atomic_int told = 0;
    if (device_count < 2) {
        fprintf(stderr, "skip (hardware): streams of another device's context: one device\n");
        return;
    }
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 1));
    ck_cu(cu->cuCtxPushCurrent(context));
    other = new_stream(CU_STREAM_NON_BLOCKING);
    new_pool(16 * MiB, false);
    uint64_t a = take(16 * MiB, other);
    gate *g = gate_on(other);
    ck_cu(cu->cuCtxPopCurrent(&context));
    give(a, other);
    pthread_t opener;
    gvmm_set_warning_handler(look_at_the_pool, &told);
    fault_call("cuEventDestroy", 1, CUDA_ERROR_UNKNOWN);
    ck_assert_int_eq(pthread_create(&opener, NULL, open_soon, g), 0);
    give(take(12 * MiB, stream), stream);
    pthread_join(opener, NULL);
    ck_assert_int_eq(atomic_load(&told), 1);
    ck_ok(gvmm_faults_set(NULL));
    gate_end(g);
    ck_cu(cu->cuStreamDestroy(other));
    ck_cu(cu->cuDevicePrimaryCtxRelease(1));
}
END_TEST

/* ---- stitching, trimming ---- */

/* Two holes that lie apart make room for what fits into neither. */
START_TEST(holes_are_stitched_together)
{
    uint64_t a = take(8 * MiB, stream), b = take(2 * MiB, stream), c = take(8 * MiB, stream), d = take(MiB, stream);
    write_pattern(b, 2 * MiB, 1);
    write_pattern(d, MiB, 2);
    give(a, stream);
    give(c, stream);
    synchronize(stream);
    uint64_t before = stats().physical_bytes, e = take(14 * MiB, stream);
    ck_assert_uint_le(stats().physical_bytes, before);
    ck_assert_uint_gt(stats().stitches, 0);
    write_pattern(e, 14 * MiB, 3);
    ck_pattern(b, 2 * MiB, 1);
    ck_pattern(d, MiB, 2);
    ck_pattern(e, 14 * MiB, 3);
    if (!on_gpu) {
        size_t counts[GVMM_SIM_KIND_COUNT]; /* each piece of memory is mapped once */
        gvmm_sim_census(counts, NULL, NULL);
        ck_assert_uint_eq(counts[GVMM_SIM_MAPPING], counts[GVMM_SIM_MEMORY]);
    }
    give(b, stream);
    give(d, stream);
    give(e, stream);
}
END_TEST

/* Small blocks' memory serves large ones and the other way round. */
START_TEST(memory_moves_between_the_regions)
{
    enum { N = 64 };
    uint64_t small[N];
    for (int i = 0; i < N; i++) small[i] = take(512 * KiB, stream);
    for (int i = 0; i < N; i++) give(small[i], stream);
    synchronize(stream);
    uint64_t before = stats().physical_bytes, large = take(N / 2 * MiB, stream);
    ck_assert_uint_eq(stats().physical_bytes, before);
    give(large, stream);
    synchronize(stream);
    for (int i = 0; i < N; i++) small[i] = take(512 * KiB, stream);
    ck_assert_uint_eq(stats().physical_bytes, before);
    for (int i = 0; i < N; i++) give(small[i], stream);
}
END_TEST

/* Memory under work that is not done stays where it is. */
START_TEST(what_is_busy_is_not_stitched)
{
    uint64_t a = take(8 * MiB, stream), b = take(2 * MiB, stream);
    gate *g = gate_on(stream);
    ck_cu(cu->cuMemsetD8Async(a, 5, 8 * MiB, stream));
    give(a, stream);
    uint64_t c = take(20 * MiB, stream);
    ck_assert_uint_eq(stats().stitches, 0);
    ck_assert_uint_eq(gvmm_pool_trim(pool, 0), 0);
    gate_end(g);
    give(b, stream);
    give(c, stream);
}
END_TEST

/* What was done with before the stream got work that lasts does not wait for that. */
START_TEST(trimming_gives_what_was_freed_first)
{
    uint64_t a = take(8 * MiB, stream), apart = take(2 * MiB, stream), b = take(8 * MiB, stream);
    give(a, stream);
    synchronize(stream);
    gate *g = gate_on(stream);
    give(b, stream);
    ck_assert_uint_eq(gvmm_pool_trim(pool, 0), 8 * MiB);
    gate_end(g);
    ck_assert_uint_eq(gvmm_pool_trim(pool, 0), 8 * MiB);
    give(apart, stream);
}
END_TEST

START_TEST(trimming_gives_free_memory_back)
{
    uint64_t a = take(8 * MiB, stream), b = take(100, stream), c = take(32 * MiB, stream);
    write_pattern(b, 100, 1);
    give(a, stream);
    give(c, stream);
    synchronize(stream);
    uint64_t before = stats().physical_bytes;
    ck_assert_uint_eq(gvmm_pool_trim(pool, before), 0);
    size_t gone = gvmm_pool_trim(pool, 20 * MiB);
    ck_assert_uint_le(stats().physical_bytes, 20 * MiB);
    ck_assert_uint_eq(stats().physical_bytes, before - gone);
    gvmm_pool_trim(pool, 0);
    ck_assert_uint_eq(stats().physical_bytes, G); /* the small one's */
    ck_pattern(b, 100, 1);
    give(b, stream);
    synchronize(stream);
    ck_assert_uint_eq(gvmm_pool_trim(pool, 0), G);
    ck_assert_uint_eq(gvmm_pool_trim(NULL, 0), 0);
    uint64_t again = take(8 * MiB, stream);
    fill(again, 1, 8 * MiB);
    give(again, stream);
}
END_TEST

/* Without events of blocks, one is recorded to see. */
START_TEST(trimming_where_streams_outlive)
{
    new_pool(0, true);
    give(take(8 * MiB, stream), stream);
    gate *g = gate_on(stream);
    ck_assert_uint_eq(gvmm_pool_trim(pool, 0), 0);
    gate_end(g);
    while (!gvmm_pool_trim(pool, 0)) sched_yield();
    ck_assert_uint_eq(stats().physical_bytes, 0);
}
END_TEST

START_TEST(peaks_can_be_reset)
{
    give(take(64 * MiB, stream), stream);
    ck_assert_uint_eq(stats().live_peak, 64 * MiB);
    ck_assert_uint_eq(stats().physical_peak, 64 * MiB);
    synchronize(stream);
    gvmm_pool_trim(pool, 0);
    ck_assert_uint_eq(stats().physical_peak, 64 * MiB);
    gvmm_pool_reset_peaks(pool);
    ck_assert_uint_eq(stats().physical_peak, 0);
    ck_assert_uint_eq(stats().live_peak, 0);
    ck_assert_uint_eq(stats().mallocs, 1);
    gvmm_pool_reset_peaks(NULL);
    gvmm_pool_get_stats(NULL, &(gvmm_pool_stats){0});
}
END_TEST

/* Its memory may be in use, so it is not unmapped. */
START_TEST(a_pool_in_use_is_not_released)
{
    gvmm_stats before, after;
    gvmm_pool *early = pool_with(0, false);
    uint64_t a, b;
    ck_ok(gvmm_pool_malloc(&a, early, 3 * MiB, stream));
    ck_ok(gvmm_pool_malloc(&b, early, 3 * MiB, stream));
    ck_ok(gvmm_pool_free(early, b, stream));
    gvmm_get_stats(NULL, &before);
    gvmm_pool_release(early);
    ck_assert_int_eq(atomic_load(&warning_count), 1);
    ck_assert_ptr_nonnull(strstr(last_warning_text, " 3145728 bytes are in use"));
    gvmm_get_stats(NULL, &after);
    ck_assert_uint_eq(before.physical_bytes, after.physical_bytes);
    fill(a, 1, 3 * MiB);
    ck_ok(gvmm_pool_free(early, a, stream));
    gvmm_pool_release(early);
    ck_assert_int_eq(atomic_load(&warning_count), 1);
}
END_TEST

/* A stream that captures cannot be waited for: the pool stays whole, and its figures true. */
START_TEST(a_pool_that_cannot_be_waited_for_is_not_released)
{
    gvmm_pool *early = pool_with(0, true);
    CUgraph graph;
    uint64_t a, b;
    ck_ok(gvmm_pool_malloc(&a, early, 3 * MiB, stream));
    ck_ok(gvmm_pool_free(early, a, stream));
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    gvmm_pool_release(early);
    ck_assert_int_eq(atomic_load(&warning_count), 1);
    ck_assert_ptr_nonnull(strstr(last_warning_text, "cannot be waited for"));
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_ok(gvmm_pool_malloc(&b, early, 700, stream));
    gvmm_pool_stats now;
    gvmm_pool_get_stats(early, &now);
    ck_assert_uint_eq(now.blocks, 1);
    ck_assert_uint_eq(now.mallocs, 2);
    ck_assert_uint_eq(now.live_bytes, 700);
    ck_ok(gvmm_pool_free(early, b, stream));
    gvmm_drain();
    gvmm_pool_release(early);
    ck_assert_int_eq(atomic_load(&warning_count), 1);
}
END_TEST

/* ---- address space, other resources, PyTorch's functions ---- */

START_TEST(address_space_is_that_of_the_first_limit)
{
    uint64_t address;
    new_pool(256 * MiB, false);
    uint64_t a = take(192 * MiB, stream);
    ck_ok(gvmm_pool_set_limit(pool, 0));
    uint64_t b = take(640 * MiB, stream);
    ck_fails(gvmm_pool_malloc(&address, pool, 640 * MiB, stream), GVMM_E_NO_ADDRESS_SPACE);
    ck_names("address space");
    give(b, stream); /* the search looks at what is kept, and waits */
    uint64_t c = take(768 * MiB, stream);
    give(a, stream);
    give(c, stream);
    ck_fails(gvmm_pool_set_limit(NULL, 0), GVMM_E_INVALID);
}
END_TEST

/* Every tenth granule holds a small block: what is free has to be put elsewhere, and there must be an elsewhere. */
START_TEST(a_small_pool_has_room_to_move_small_blocks)
{
    enum { COUNT = 128 };
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    gvmm_resource *fine;
    uint64_t blocks[COUNT], wide;
    config.granularity = 64 * KiB;
    options.limit = COUNT * 64 * KiB;
    ck_ok(gvmm_sim_reset(&config));
    ck_ok(gvmm_driver_install(gvmm_sim_driver()));
    ck_ok(gvmm_resource_create(&fine, 0, NULL));
    ck_ok(gvmm_pool_create(&pool, fine, &options));
    for (int i = 0; i < COUNT; i++) blocks[i] = take(64 * KiB, NULL);
    for (int i = 0; i < COUNT; i++)
        if (i % 10) give(blocks[i], NULL);
    wide = take(900 * KiB, NULL);
    give(wide, NULL);
    for (int i = 0; i < COUNT; i += 10) give(blocks[i], NULL);
    gvmm_pool_release(pool);
    gvmm_resource_release(fine);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

static void enter_device(int of)
{
    CUcontext context;
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, of));
    ck_cu(cu->cuCtxPushCurrent(context));
}

static void leave_device(int of)
{
    CUcontext context;
    ck_cu(cu->cuCtxPopCurrent(&context));
    ck_cu(cu->cuDevicePrimaryCtxRelease(of));
}

static size_t free_memory(int of)
{
    size_t available, total;
    enter_device(of);
    ck_cu(cu->cuMemGetInfo(&available, &total));
    leave_device(of);
    return available;
}

static gvmm_pool *striped_pool(size_t chunk_size)
{
    static const int both[] = {0, 1};
    gvmm_options striped = GVMM_OPTIONS_INIT;
    gvmm_pool *made;
    striped.stripe = both;
    striped.stripe_count = 2;
    striped.chunk_size = chunk_size;
    gvmm_resource *resource = resource_with(striped);
    ck_ok(gvmm_pool_create(&made, resource, NULL));
    gvmm_resource_release(resource);
    return made;
}

static atomic_int allocated;

static void *counted_alloc(size_t size)
{
    atomic_fetch_add(&allocated, 1);
    return malloc(size);
}

static void counted_free(void *ptr)
{
    if (ptr) atomic_fetch_sub(&allocated, 1);
    free(ptr);
}

/* What is cut off, and joined again, in another way each time. */
static void cut_and_join(int times)
{
    uint64_t at[4];
    for (int round = 0; round < times; round++) {
        for (int i = 0; i < 4; i++) at[i] = take(512 * (size_t)(1 + (round + i) % 5), NULL);
        for (int i = 0; i < 4; i++) give(at[i], NULL);
        gvmm_pool_trim(pool, SIZE_MAX);
    }
    enter_device(0);
    synchronize(NULL);
    leave_device(0);
    gvmm_pool_trim(pool, SIZE_MAX);
}

START_TEST(cutting_and_joining_takes_no_more_host_memory)
{
    const gvmm_host_allocator counted = {counted_alloc, counted_free};
    gvmm_resource *resource;
    ck_ok(gvmm_sim_reset(NULL));
    ck_ok(gvmm_host_allocator_install(&counted));
    cu = gvmm_sim_driver();
    ck_ok(gvmm_driver_install(cu));
    ck_ok(gvmm_resource_create(&resource, 0, NULL));
    ck_ok(gvmm_pool_create(&pool, resource, NULL));
    cut_and_join(10);
    int before = atomic_load(&allocated);
    cut_and_join(500);
    ck_assert_int_eq(atomic_load(&allocated), before);
    gvmm_pool_release(pool);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_host_allocator_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

/* One device could not have it; and on the second another pool has some that it does not use. */
START_TEST(a_striped_pool_has_the_memory_of_all)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_resource *second;
    gvmm_pool *other;
    uint64_t address;
    config.devices = 2;
    config.memory = 64 * MiB;
    ck_ok(gvmm_sim_reset(&config));
    cu = gvmm_sim_driver();
    ck_ok(gvmm_driver_install(cu));
    ck_ok(gvmm_resource_create(&second, 1, NULL));
    ck_ok(gvmm_pool_create(&other, second, NULL));
    ck_ok(gvmm_pool_malloc(&address, other, 32 * MiB, NULL));
    ck_ok(gvmm_pool_free(other, address, NULL));
    enter_device(1);
    synchronize(NULL);
    leave_device(1);
    pool = striped_pool(8 * MiB);
    give(take(128 * MiB, NULL), NULL);
    ck_fails(gvmm_pool_malloc(&address, pool, 128 * MiB + 1, NULL), GVMM_E_NO_DEVICE_MEMORY);
    gvmm_pool_release(pool);
    gvmm_pool_release(other);
    gvmm_resource_release(second);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

START_TEST(memory_is_made_as_the_resource_says)
{
    if (device_count < 2) {
        fprintf(stderr, "skip (hardware): peers and stripes of a pool: one device\n");
        return;
    }
    int both[] = {0, 1};
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.stripe = both;
    options.stripe_count = 2;
    options.chunk_size = G;
    gvmm_resource *striped = resource_with(options);
    gvmm_pool_release(pool);
    ck_ok(gvmm_pool_create(&pool, striped, NULL));
    gvmm_resource_release(striped);
    uint64_t a = take(4 * G, stream);
    for (size_t at = 0; at < 4 * G; at += G)
        for (int device = 0; device < 2; device++) ck_assert_uint_eq(access_of(a + at, device), GVMM_ACCESS_READ_WRITE);
    give(a, stream);
}
END_TEST

/* Chunk by chunk of the pool's address space, however much of it is made at once. */
START_TEST(memory_is_striped)
{
    if (device_count < 2) {
        fprintf(stderr, "skip (hardware): a striped pool: one device\n");
        return;
    }
    gvmm_pool_release(pool);
    pool = striped_pool(2 * G);
    size_t first = free_memory(0), second = free_memory(1);
    uint64_t a = take(16 * G, stream), b = take(3 * G, stream), c = take(G, stream);
    ck_assert_uint_eq(first - free_memory(0), 10 * G);
    ck_assert_uint_eq(second - free_memory(1), 10 * G);
    give(a, stream);
    give(b, stream);
    give(c, stream);
}
END_TEST

/* What was freed is found again without a search; by another thread's stream it is not. */
START_TEST(reuse_is_counted)
{
    for (int i = 0; i < 10; i++) give(take(64 * KiB, stream), stream);
    ck_assert_uint_eq(stats().reuses, 9);
    ck_assert_uint_eq(stats().mallocs, 10);
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    give(take(64 * KiB, other), other);
    ck_assert_uint_eq(stats().reuses, 9);
    synchronize(other);
    ck_cu(cu->cuStreamDestroy(other));
    gvmm_stats all;
    gvmm_get_stats(NULL, &all);
    ck_assert_uint_eq(all.buffers, 0); /* a pool's blocks are no buffers */
    ck_assert_uint_eq(all.reused, 0);
}
END_TEST

static void *torch_take(ptrdiff_t size, int device) { return gvmm_torch_malloc(size, device, stream); }

START_TEST(functions_for_torch)
{
    ck_assert_ptr_null(gvmm_torch_pool(0));
    gvmm_torch_free(NULL, 0, 0, stream);
    ck_assert_ptr_null(torch_take(0, 0));
    char *a = torch_take(1000, 0), *b = torch_take((ptrdiff_t)(3 * MiB), 0);
    ck_assert_ptr_nonnull(a);
    fill((uint64_t)(uintptr_t)b, 1, 3 * MiB);
    gvmm_pool_stats now;
    gvmm_pool_get_stats(gvmm_torch_pool(0), &now);
    ck_assert_uint_eq(now.live_bytes, 1000 + 3 * MiB);
    for (int device = 1; device < device_count; device++) {
        char *there = gvmm_torch_malloc(512, device, NULL);
        ck_assert_ptr_nonnull(there);
        gvmm_torch_free(there, 512, device, NULL);
    }
    gvmm_torch_free(a, 1000, 0, stream);
    gvmm_torch_free(b, (ptrdiff_t)(3 * MiB), 0, stream);
    ck_no_warnings();
    ck_assert_ptr_null(torch_take(-1, 0));
    ck_assert_ptr_null(torch_take(1, 99));
    ck_assert_ptr_null(torch_take(1, -1));
    ck_assert_ptr_null(torch_take(PTRDIFF_MAX, 0));
    gvmm_torch_free(b, (ptrdiff_t)(3 * MiB), 0, stream);
    gvmm_torch_free(b, 1, 99, stream);
    ck_assert_int_eq(atomic_load(&warning_count), 6);
    ck_assert_ptr_null(gvmm_torch_pool(99));
    gvmm__torch_end();
    ck_assert_ptr_null(gvmm_torch_pool(0));
}
END_TEST

/* What a pool has free is given up for who finds no memory elsewhere. */
START_TEST(a_pool_gives_way)
{
    uint64_t first = take(8 * MiB, stream), second = take(8 * MiB, stream);
    give(first, stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    ck_assert_uint_eq(stats().physical_bytes, 16 * MiB);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer *buffer = create(plain, G);
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(stats().physical_bytes, 8 * MiB);
    gvmm_buffer_release(buffer);
    give(second, stream);
}
END_TEST

/* Also on the other devices of a stripe. */
START_TEST(a_striped_pool_gives_way)
{
    if (device_count < 2) {
        fprintf(stderr, "skip (hardware): a striped pool: one device\n");
        return;
    }
    gvmm_resource *second;
    gvmm_pool *striped = striped_pool(G);
    uint64_t address;
    ck_ok(gvmm_resource_create(&second, 1, NULL));
    ck_ok(gvmm_pool_malloc(&address, striped, 4 * G, stream));
    ck_ok(gvmm_pool_free(striped, address, stream));
    synchronize(stream);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer *buffer = create(second, G);
    ck_ok(gvmm_faults_set(NULL));
    gvmm_pool_stats now;
    gvmm_pool_get_stats(striped, &now);
    ck_assert_uint_eq(now.physical_bytes, 0);
    gvmm_buffer_release(buffer);
    gvmm_pool_release(striped);
    gvmm_resource_release(second);
}
END_TEST

/* Where another stream has the handle now: what was that one's is not this one's. */
START_TEST(a_stream_is_told_by_its_number)
{
    static gvmm_driver hooked;
    gvmm_pool_release(pool);
    hooked = *cu;
    number_streams_anew(&hooked);
    use_driver(&hooked);
    pool = pool_with(0, false);
    uint64_t busy = take(4096, stream);
    gate *g = gate_on(stream);
    give(busy, stream);
    gvmm_pool_trim(pool, 0); /* from the thread to the stream's own */
    streams_before = 1;
    uint64_t other = take(4096, stream);
    ck_assert_uint_ne(other, busy);
    streams_before = 0;
    ck_assert_uint_eq(take(4096, stream), busy);
    give(busy, stream);
    give(other, stream);
    gate_end(g);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool");
    TCase *tests = tcase_create("pool");
    tcase_add_checked_fixture(tests, setup_pool, drain_and_teardown);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, every_size_gets_its_own_memory);
    tcase_add_test(tests, sizes_below_a_border_are_aligned_as_those_on_it);
    tcase_add_test(tests, small_blocks_share_a_granule);
    tcase_add_test(tests, impossible_sizes_are_refused);
    tcase_add_test(tests, wrong_frees_are_refused);
    tcase_add_test(tests, options_are_checked);
    tcase_add_test(tests, the_pool_holds_its_resource);
    tcase_add_test(tests, a_stream_has_its_own_at_once);
    tcase_add_test(tests, default_streams_are_one);
    tcase_add_test(tests, a_stream_may_be_destroyed_after_a_free);
    tcase_add_test(tests, more_streams_than_arenas);
    tcase_add_test(tests, freed_while_its_stream_captures);
    tcase_add_test(tests, a_capture_gets_nothing_that_is_busy);
    tcase_add_test(tests, unrelated_captures_stay_valid);
    tcase_add_test(tests, a_limit_is_kept);
    tcase_add_test(tests, no_memory_waits_for_what_is_busy);
    tcase_add_test(tests, a_warning_handler_may_use_the_pool);
    tcase_add_test(tests, holes_are_stitched_together);
    tcase_add_test(tests, memory_moves_between_the_regions);
    tcase_add_test(tests, what_is_busy_is_not_stitched);
    tcase_add_test(tests, trimming_gives_what_was_freed_first);
    tcase_add_test(tests, trimming_gives_free_memory_back);
    tcase_add_test(tests, trimming_where_streams_outlive);
    tcase_add_test(tests, peaks_can_be_reset);
    tcase_add_test(tests, a_pool_in_use_is_not_released);
    tcase_add_test(tests, a_pool_that_cannot_be_waited_for_is_not_released);
    tcase_add_test(tests, a_stream_is_told_by_its_number);
    tcase_add_test(tests, address_space_is_that_of_the_first_limit);
    tcase_add_test(tests, memory_is_made_as_the_resource_says);
    tcase_add_test(tests, memory_is_striped);
    tcase_add_test(tests, reuse_is_counted);
    tcase_add_test(tests, a_pool_gives_way);
    tcase_add_test(tests, a_striped_pool_gives_way);
    tcase_add_test(tests, functions_for_torch);
    TCase *alone = tcase_create("a machine of its own");
    suite_add_tcase(suite, alone);
    tcase_add_test(alone, a_small_pool_has_room_to_move_small_blocks);
    tcase_add_test(alone, a_striped_pool_has_the_memory_of_all);
    tcase_add_test(alone, cutting_and_joining_takes_no_more_host_memory);
    return run_suites(suite, NULL);
}

/* What a pool finds among many free blocks, and how long it looks. */
#include <time.h>

#include "pool_kit.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t rest[1024];
static int rest_count;

/* Takes all that is left of the memory that the pool has, and lets it have no more. */
static void take_the_rest(void)
{
    rest_count = 0;
    ck_ok(gvmm_pool_set_limit(pool, stats().physical_bytes));
    for (size_t size = 64 * MiB; size >= 512; size /= 2)
        while (gvmm_pool_malloc(&rest[rest_count], pool, size, stream) == GVMM_OK) rest_count++;
}

static void give_the_rest(void)
{
    while (rest_count) give(rest[--rest_count], stream);
}

/* The one that fits was freed first: of blocks of about its size it is the last to be looked at. No other memory is left. */
static void ck_found_among(size_t fits, size_t too_small)
{
    enum { N = 100 };
    uint64_t small[N], apart[N], fitting = take(fits, stream), behind = take(too_small, stream);
    for (int i = 0; i < N; i++) {
        small[i] = take(too_small, stream);
        apart[i] = take(too_small, stream);
    }
    take_the_rest();
    give(fitting, stream);
    for (int i = 0; i < N; i++) give(small[i], stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    gvmm_pool_trim(pool, SIZE_MAX); /* from the thread to the heap */
    ck_assert_uint_eq(take(fits, stream), fitting);
    give(fitting, stream);
    give(behind, stream);
    give_the_rest();
    for (int i = 0; i < N; i++) give(apart[i], stream);
}

START_TEST(a_block_that_fits_is_found_among_many)
{
    if (_i) ck_found_among(1 * MiB + 48 * KiB, 1 * MiB);
    else ck_found_among(33 * KiB, 32 * KiB);
}
END_TEST

/* Blocks that are done with and a stream's own in turn, a hundred thousand side by side: a window of them is found in
 * milliseconds, where looking to the left from each would take half a minute. */
START_TEST(looking_among_many_takes_no_longer_than_there_are)
{
    enum { N = 100000, TIMES = 5 };
    static uint64_t blocks[N];
    CUstream other;
    ck_cu(cu->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < N; i++) blocks[i] = take(512, stream);
    take_the_rest();
    for (int i = 0; i < N; i += 2) give(blocks[i], stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    gvmm_pool_trim(pool, SIZE_MAX);
    gate *g = gate_on(other);
    for (int i = 1; i < N; i += 2) give(blocks[i], other);
    gvmm_pool_trim(pool, SIZE_MAX);
    double start = seconds();
    for (int i = 0; i < TIMES; i++) {
        blocks[i] = take((size_t)(i + 2) * 512, other);
        ck_assert_uint_le(blocks[i] - blocks[0], N * 512);
    }
    ck_assert_double_lt(seconds() - start, 5);
    for (int i = 0; i < TIMES; i++) give(blocks[i], other);
    give_the_rest();
    gate_end(g);
    ck_cu(cu->cuStreamDestroy(other));
}
END_TEST

/* ---- windows ---- */

static void trim(void)
{
    ck_cu(cu->cuStreamSynchronize(stream));
    gvmm_pool_trim(pool, 0);
}

/* A hole, half of a piece that is free, and its other half, which is not. */
START_TEST(the_end_of_a_hole_and_what_is_behind)
{
    uint64_t a = take(8 * MiB, stream), b = take(3 * MiB, stream), c = take(MiB, stream);
    ck_assert_uint_eq(b, a + 8 * MiB);
    ck_assert_uint_eq(c, b + 3 * MiB);
    give(a, stream);
    give(b, stream);
    trim();
    ck_assert_uint_eq(stats().physical_bytes, 2 * MiB);
    ck_assert_uint_eq(take(3 * MiB, stream), b);
    ck_assert_uint_eq(stats().physical_bytes, 4 * MiB);
    give(b, stream);
    give(c, stream);
}
END_TEST

/* Holes and the stream's own blocks, which are busy and cannot be moved, in turn: the window begins in the first hole, and has
 * all of the second one in it. */
START_TEST(the_end_of_a_hole_and_another)
{
    static const size_t sizes[] = {6, 2, 2, 2, 2};
    uint64_t at[5];
    CUstream other;
    ck_cu(cu->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 5; i++) at[i] = take(sizes[i] * MiB, stream);
    for (int i = 1; i < 5; i++) ck_assert_uint_eq(at[i], at[i - 1] + sizes[i - 1] * MiB);
    give(at[0], stream);
    give(at[2], stream);
    trim();
    gate *g = gate_on(other);
    give(at[1], other);
    give(at[3], other);
    trim(); /* to the stream's own */
    ck_assert_uint_eq(stats().physical_bytes, 6 * MiB);
    ck_assert_uint_eq(take(9 * MiB, other), at[0] + 2 * MiB);
    ck_assert_uint_eq(stats().physical_bytes, 12 * MiB);
    give(at[0] + 2 * MiB, other);
    give(at[4], other);
    gate_end(g);
    ck_cu(cu->cuStreamDestroy(other));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool search");
    TCase *tests = tcase_create("search");
    tcase_add_checked_fixture(tests, setup_pool, teardown_pool);
    tcase_set_timeout(tests, 100);
    suite_add_tcase(suite, tests);
    tcase_add_loop_test(tests, a_block_that_fits_is_found_among_many, 0, 2);
    tcase_add_test(tests, looking_among_many_takes_no_longer_than_there_are);
    tcase_add_test(tests, the_end_of_a_hole_and_what_is_behind);
    tcase_add_test(tests, the_end_of_a_hole_and_another);
    return run_suites(suite, NULL);
}

/* What a pool's memory is made of: how many pieces, when they are broken up, when moving them ends. */
#include "pool_kit.h"

/* The block, for which the driver is asked for memory so many times: not once more, and not once less. */
static uint64_t take_in_pieces(size_t size, unsigned pieces)
{
    uint64_t address = 0;
    if (pieces) {
        ck_ok(gvmm_faults_set(&(gvmm_fault){pieces, true, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY}));
        ck_fails(gvmm_pool_malloc(&address, pool, size, stream), GVMM_E_NO_DEVICE_MEMORY);
    }
    ck_ok(gvmm_faults_set(&(gvmm_fault){pieces + 1, true, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY}));
    address = take(size, stream);
    ck_assert_uint_eq(gvmm_faults_injected(), 0);
    ck_ok(gvmm_faults_set(NULL));
    return address;
}

START_TEST(first_memory_is_in_few_pieces)
{
    static const struct {
        size_t size;
        unsigned pieces;
    } rows[] = {{512, 1}, {2 * MiB, 1}, {31 * MiB, 1}, {32 * MiB, 1}, {33 * MiB, 2}, {512 * MiB, 4}, {1536 * MiB, 12}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        new_pool(0, false);
        give(take_in_pieces(rows[i].size, rows[i].pieces), stream);
    }
    give(take(512, stream), stream); /* next to nothing */
    ck_cu(cu->cuStreamSynchronize(stream));
    gvmm_pool_trim(pool, 0);
    uint64_t small = take(512, stream);
    give(take_in_pieces(32 * MiB, 1), stream);
    give(small, stream);
}
END_TEST

/* So that the parts which blocks leave of them are little. */
START_TEST(later_memory_is_in_small_pieces)
{
    uint64_t first = take(64 * MiB, stream), second = take_in_pieces(8 * MiB, 4), third = take_in_pieces(128 * MiB, 32);
    give(first, stream);
    give(second, stream);
    give(third, stream);
}
END_TEST

/* No more than is missing is taken from a piece that is too large, and the rest of its memory can be had. */
START_TEST(a_large_piece_is_broken_up)
{
    new_pool(40 * MiB, false);
    uint64_t first = take_in_pieces(32 * MiB, 1), kept = take(8 * MiB, stream);
    write_pattern(kept, 8 * MiB, 1);
    give(first, stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    uint64_t small = take(512, stream), large = take(30 * MiB, stream);
    write_pattern(small, 512, 2);
    write_pattern(large, 30 * MiB, 3);
    ck_pattern(kept, 8 * MiB, 1);
    ck_pattern(small, 512, 2);
    ck_pattern(large, 30 * MiB, 3);
    ck_assert_uint_eq(stats().physical_bytes, 40 * MiB);
    ck_assert_uint_le(stats().physical_peak, 40 * MiB);
    give(kept, stream);
    give(small, stream);
    give(large, stream);
    ck_no_warnings();
}
END_TEST

/* Of several, one is given back at a time. */
START_TEST(only_one_piece_is_broken_up)
{
    new_pool(136 * MiB, false);
    uint64_t first = take(128 * MiB, stream), kept = take(8 * MiB, stream);
    give(first, stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    uint64_t small = take(512, stream);
    ck_assert_uint_ge(stats().physical_bytes, (96 + 8 + 2) * MiB);
    give(kept, stream);
    give(small, stream);
}
END_TEST

/* What is missing is made piece by piece, of the one. */
START_TEST(one_piece_that_is_broken_up_serves_all_that_is_missing)
{
    uint64_t first = take(256 * MiB, stream), a[4]; /* pieces of 64 MiB */
    give(first, stream);
    for (int i = 0; i < 3; i++) a[i] = take(64 * MiB, stream);
    a[3] = take(4 * MiB, stream); /* what is behind is free, and then there is nothing */
    give(a[0], stream);
    give(a[2], stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    uint64_t wide = take(72 * MiB, stream);
    ck_assert_uint_eq(wide, a[3] + 4 * MiB);
    ck_assert_uint_eq(stats().physical_bytes, (256 - 64 + 12) * MiB);
    give(wide, stream);
    give(a[1], stream);
    give(a[3], stream);
}
END_TEST

/* ---- sizes that never fit ---- */

enum { HELD = 64, ROUND = 1000, ROUNDS = 24 };

/* Replaces blocks by others of up to 32 MiB, their work done; as many pieces were moved. */
static uint64_t moved_in_round(uint64_t *held)
{
    uint64_t before = stats().stitches;
    unsigned random = 1;
    for (int i = 0; i < ROUND; i++) {
        random = random * 1664525u + 1013904223u;
        if (held[i % HELD]) give(held[i % HELD], stream);
        ck_cu(cu->cuStreamSynchronize(stream));
        held[i % HELD] = take(32768 * (size_t)((random >> 8) % 1024 + 1), stream);
    }
    return stats().stitches - before;
}

/* At first memory is saved. Where that never ends, having a quarter more of it ends it; trimming begins anew. */
/* What misses least is a hole with what is free on both sides, of which the end is not needed: that goes into the hole. */
START_TEST(the_rest_of_a_block_fills_the_hole_beside_it)
{
    new_pool(16 * MiB, false);
    uint64_t first = take(4 * MiB, stream), hole = take(2 * MiB, stream), large = take(8 * MiB, stream),
             last = take(2 * MiB, stream);
    give(hole, stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    ck_assert_uint_eq(gvmm_pool_trim(pool, 14 * MiB), 2 * MiB);
    ck_ok(gvmm_pool_set_limit(pool, 14 * MiB));
    give(first, stream);
    give(large, stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    uint64_t all = take_in_pieces(12 * MiB, 0);
    write_pattern(all, 12 * MiB, 1);
    ck_pattern(all, 12 * MiB, 1);
    ck_assert_uint_eq(stats().physical_bytes, 14 * MiB);
    give(all, stream);
    give(last, stream);
}
END_TEST

START_TEST(moving_does_not_go_on_for_ever)
{
    uint64_t held[HELD] = {0}, first = moved_in_round(held), last = 0;
    gvmm_pool_stats saved = stats();
    ck_assert_uint_gt(first, ROUND / 10);
    ck_assert_uint_le(saved.physical_peak, saved.live_peak / 100 * 110);
    for (int i = 1; i < ROUNDS; i++) last = moved_in_round(held);
    ck_assert_uint_lt(last, first / 10);
    ck_assert_uint_le(stats().physical_peak, stats().live_peak / 100 * 130);
    for (int i = 0; i < HELD; i++) give(held[i], stream);
    ck_cu(cu->cuStreamSynchronize(stream));
    gvmm_pool_trim(pool, 0);
    gvmm_pool_reset_peaks(pool);
    memset(held, 0, sizeof held);
    moved_in_round(held);
    ck_assert_uint_le(stats().physical_peak, stats().live_peak / 100 * 110);
    for (int i = 0; i < HELD; i++) give(held[i], stream);
}
END_TEST

/* A limit is no less one for it. */
START_TEST(moving_goes_on_at_a_limit)
{
    uint64_t held[HELD] = {0};
    new_pool(1300 * MiB, false);
    for (int i = 0; i < ROUNDS; i++) moved_in_round(held);
    ck_assert_uint_le(stats().physical_peak, 1300 * MiB);
    for (int i = 0; i < HELD; i++) give(held[i], stream);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool pieces");
    TCase *pieces = tcase_create("pieces");
    tcase_set_timeout(pieces, 60);
    suite_add_tcase(suite, pieces);
    tcase_add_checked_fixture(pieces, setup_pool, teardown_pool);
    tcase_add_test(pieces, first_memory_is_in_few_pieces);
    tcase_add_test(pieces, later_memory_is_in_small_pieces);
    tcase_add_test(pieces, a_large_piece_is_broken_up);
    tcase_add_test(pieces, only_one_piece_is_broken_up);
    tcase_add_test(pieces, one_piece_that_is_broken_up_serves_all_that_is_missing);
    tcase_add_test(pieces, the_rest_of_a_block_fills_the_hole_beside_it);
    tcase_add_test(pieces, moving_does_not_go_on_for_ever);
    tcase_add_test(pieces, moving_goes_on_at_a_limit);
    return run_suites(suite, NULL);
}

/* The objects one by one: each makes one driver call, is undone by one, holds what it needs and nothing else. */
#include "support.h"

static account *acct;
static placement *place;

static void make_base(void)
{
    setup();
    acct = gvmm__account_create();
    ck_assert_ptr_nonnull(acct);
    gvmm_options options = waiting_options();
    ck_ok(gvmm__placement_create(&place, &options, 0));
}

static void end_base(void)
{
    gvmm__placement_release(place);
    gvmm__account_release(acct);
    teardown();
}

static memory *new_memory(size_t size)
{
    memory *m;
    ck_ok(gvmm__memory_create(&m, place, size, 0, acct));
    return m;
}

static reservation *new_reservation(size_t size)
{
    reservation *r;
    ck_ok(gvmm__reservation_create(&r, size, 0, 0, acct));
    return r;
}

static uint64_t amount(figure which) { return atomic_load(&acct->figures[which]); }

START_TEST(memory_is_released_once_with_its_last_reference)
{
    memory *m = new_memory(2 * G);
    ck_assert_uint_eq(amount(STAT_physical_bytes), 2 * G);
    ck_assert_int_eq(m->device, 0);
    ck_assert_uint_eq(m->access_count, 1);
    CUmemGenericAllocationHandle handle = m->handle;
    gvmm__memory_release(gvmm__memory_retain(m));
    CUmemAllocationProp prop;
    ck_cu(cu->cuMemGetAllocationPropertiesFromHandle(&prop, handle)); /* still ours */
    gvmm__memory_release(m);
    ck_assert_uint_eq(amount(STAT_physical_bytes), 0);
    ck_assert_uint_eq(amount(STAT_memories), 0);
    gvmm__memory_release(NULL);
}
END_TEST

START_TEST(a_reservation_is_freed_with_its_original_pair)
{
    reservation *r = new_reservation(3 * G);
    uint64_t base = r->base;
    ck_assert_uint_eq(base % G, 0);
    ck_assert_uint_eq(amount(STAT_reserved_bytes), 3 * G);
    gvmm__reservation_release(r);
    ck_cu_fails(cu->cuMemAddressFree(base, 3 * G), CUDA_ERROR_INVALID_VALUE); /* gone already */
    ck_assert_uint_eq(amount(STAT_reservations), 0);
    gvmm__reservation_release(NULL);
}
END_TEST

START_TEST(a_probe_gets_the_exact_place_or_nothing)
{
    reservation *whole = new_reservation(4 * G);
    uint64_t base = whole->base;
    ck_assert_ptr_null(gvmm__reservation_probe(base, G, acct)); /* taken: another place comes back, and is freed */
    ck_assert_uint_eq(amount(STAT_reservations), 1);
    gvmm__reservation_release(whole);
    reservation *first = gvmm__reservation_probe(base, 2 * G, acct);
    ck_assert_ptr_nonnull(first);
    ck_assert_uint_eq(first->base, base);
    reservation *behind = gvmm__reservation_probe(base + 2 * G, G, acct);
    ck_assert_ptr_nonnull(behind);
    gvmm__reservation_release(first);
    gvmm__reservation_release(behind);
}
END_TEST

START_TEST(a_refused_hint_is_tried_again_without)
{
    reservation *r;
    fault_call("cuMemAddressReserve", 1, CUDA_ERROR_INVALID_VALUE);
    ck_ok(gvmm__reservation_create(&r, G, 0, (uint64_t)64 << 30, acct));
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    gvmm__reservation_release(r);
}
END_TEST

START_TEST(a_mapping_must_lie_in_its_reservation)
{
    reservation *r = new_reservation(2 * G);
    memory *m = new_memory(2 * G);
    mapping out = {0};
    const uint64_t wrong[] = {r->base + G, r->base - G, r->base + 2 * G, 0, UINT64_MAX - G + 1};
    fault(0, false); /* counts: no driver call is made for these */
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_fails(gvmm__mapping_open(&out, r, wrong[i], m), GVMM_E_INVALID);
    ck_assert_uint_eq(gvmm_faults_counted(), 0);
    ck_assert_ptr_null(out.memory);
    gvmm__memory_release(m);
    gvmm__reservation_release(r);
}
END_TEST

START_TEST(a_mapping_holds_memory_and_reservation)
{
    reservation *r = new_reservation(G);
    memory *m = new_memory(G);
    uint64_t base = r->base;
    mapping map;
    ck_ok(gvmm__mapping_open(&map, r, base, m));
    gvmm__memory_release(m);
    gvmm__reservation_release(r);
    ck_mapped(base);
    ck_assert_uint_eq(access_of(base, 0), GVMM_ACCESS_READ_WRITE);
    fill(base, 3, G);
    ck_filled(base, 3, G);
    gvmm__mapping_close(&map);
    ck_released(base, G);
    ck_assert_uint_eq(amount(STAT_mapped_bytes), 0);
}
END_TEST

START_TEST(a_mapping_that_cannot_be_opened_is_undone)
{
    reservation *r = new_reservation(G);
    memory *m = new_memory(G);
    mapping map;
    fault_call("cuMemSetAccess", 1, CUDA_ERROR_NOT_SUPPORTED);
    ck_fails(gvmm__mapping_open(&map, r, r->base, m), GVMM_E_UNSUPPORTED);
    CUmemGenericAllocationHandle handle;
    ck_cu_fails(cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)r->base), CUDA_ERROR_INVALID_VALUE);
    gvmm__memory_release(m);
    gvmm__reservation_release(r);
    ck_assert_uint_eq(amount(STAT_mappings), 0);
    ck_no_warnings();
}
END_TEST

/* Links of G bytes each, in one reservation. */
static range *chain(reservation *r, range *before, size_t links)
{
    for (size_t i = 0; i < links; i++) {
        memory *m = new_memory(G);
        range *next;
        uint64_t at = before ? gvmm__range_base(before) + before->total : r->base;
        ck_ok(gvmm__range_extend(&next, before, r, at, m));
        gvmm__memory_release(m);
        gvmm__range_release(before);
        before = next;
    }
    return before;
}

START_TEST(ranges_share_their_links)
{
    reservation *r = new_reservation(6 * G);
    uint64_t base = r->base;
    range *two = chain(r, NULL, 2), *five = chain(r, gvmm__range_retain(two), 3);
    ck_assert_ptr_eq(five->before->before->before, two);
    ck_assert_uint_eq(gvmm__range_base(five), base);
    ck_assert_uint_eq(five->total, 5 * G);
    ck_assert_uint_eq(amount(STAT_mappings), 5);
    gvmm__range_release(five);
    ck_assert_uint_eq(amount(STAT_mappings), 2); /* only what was its own */
    ck_mapped(base + G);
    gvmm__range_release(two);
    gvmm__reservation_release(r);
    ck_released(base, 6 * G);
    gvmm__range_release(NULL);
}
END_TEST

/* A chunk that stands alone behind the room for others. */
static range *tail_in(reservation *where, uint64_t address)
{
    range *tail;
    memory *m = new_memory(G);
    ck_ok(gvmm__range_extend(&tail, NULL, where, address, m));
    gvmm__memory_release(m);
    return tail;
}

START_TEST(a_move_maps_the_same_memory_in_the_same_order)
{
    reservation *here = new_reservation(3 * G), *there = new_reservation(4 * G);
    range *r = chain(here, NULL, 3), *moved;
    uint64_t old = here->base, new = there->base;
    for (unsigned i = 0; i < 3; i++) write_pattern(old + i * G, G, i);
    moved = tail_in(there, new + 3 * G);
    ck_ok(gvmm__range_move(moved, r, there));
    ck_assert_uint_eq(gvmm__range_base(moved), new);
    ck_assert_uint_eq(moved->total, 4 * G);
    ck_assert_uint_eq(amount(STAT_physical_bytes), 4 * G);
    ck_assert_uint_eq(amount(STAT_mapped_bytes), 7 * G);
    for (unsigned i = 0; i < 3; i++) ck_pattern(new + i *G, G, i);
    gvmm__reservation_release(here);
    gvmm__reservation_release(there);
    gvmm__range_release(r);
    ck_released(old, 3 * G);
    for (unsigned i = 0; i < 3; i++) ck_pattern(new + i *G, G, i);
    gvmm__range_release(moved);
    ck_released(new, 4 * G);
}
END_TEST

/* A failure in the middle of a move takes back what was mapped of it, and nothing of the source. */
START_TEST(a_failed_move_leaves_nothing)
{
    reservation *here = new_reservation(4 * G), *there = new_reservation(5 * G);
    range *r = chain(here, NULL, 4);
    const char *calls[] = {"cuMemMap", "cuMemSetAccess", "malloc"};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (uint64_t nth = 1; nth <= 4; nth++) {
            range *tail = tail_in(there, there->base + 4 * G);
            fault_call(calls[c], nth, CUDA_ERROR_UNKNOWN);
            ck_assert_int_ne(gvmm__range_move(tail, r, there), GVMM_OK);
            ck_ok(gvmm_faults_set(NULL));
            gvmm__range_release(tail);
            ck_assert_uint_eq(amount(STAT_mappings), 4);
        }
    gvmm__range_release(r);
    gvmm__reservation_release(here);
    gvmm__reservation_release(there);
    ck_no_warnings();
}
END_TEST

/* 32,768 links: no recursion, so a small stack is enough. */
static void *release_it(void *r)
{
    gvmm__range_release(r);
    return NULL;
}

START_TEST(a_long_range_is_released_on_a_small_stack)
{
    enum { LINKS = 32768 };
    if (on_gpu) return; /* the same code: the GPU adds only time */
    reservation *r = new_reservation(LINKS * G);
    range *long_one = chain(r, NULL, LINKS);
    gvmm__reservation_release(r);
    ck_assert_uint_eq(amount(STAT_mapped_bytes), LINKS * G);
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    ck_assert_int_eq(pthread_attr_setstacksize(&small, 128 << 10), 0);
    ck_assert_int_eq(pthread_create(&thread, &small, release_it, long_one), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&small);
    ck_assert_uint_eq(amount(STAT_mappings), 0);
}
END_TEST

START_TEST(sizes_round_up_or_do_not_fit)
{
    size_t size = 0;
    ck_assert(gvmm__round_up(&size, 4096) && size == 0);
    size = 1;
    ck_assert(gvmm__round_up(&size, 4096) && size == 4096);
    size = SIZE_MAX - 4095; /* the last multiple */
    ck_assert(gvmm__round_up(&size, 4096) && size == SIZE_MAX - 4095);
    size = SIZE_MAX - 4094;
    ck_assert(!gvmm__round_up(&size, 4096) && size == SIZE_MAX - 4094);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("objects");
    TCase *tests = tcase_create("objects");
    tcase_add_checked_fixture(tests, make_base, end_base);
    tcase_set_timeout(tests, 120);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, memory_is_released_once_with_its_last_reference);
    tcase_add_test(tests, a_reservation_is_freed_with_its_original_pair);
    tcase_add_test(tests, a_probe_gets_the_exact_place_or_nothing);
    tcase_add_test(tests, a_refused_hint_is_tried_again_without);
    tcase_add_test(tests, a_mapping_must_lie_in_its_reservation);
    tcase_add_test(tests, a_mapping_holds_memory_and_reservation);
    tcase_add_test(tests, a_mapping_that_cannot_be_opened_is_undone);
    tcase_add_test(tests, ranges_share_their_links);
    tcase_add_test(tests, a_move_maps_the_same_memory_in_the_same_order);
    tcase_add_test(tests, a_failed_move_leaves_nothing);
    tcase_add_test(tests, a_long_range_is_released_on_a_small_stack);
    tcase_add_test(tests, sizes_round_up_or_do_not_fit);
    return run_suites(suite, NULL);
}

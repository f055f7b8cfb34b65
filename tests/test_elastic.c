/* Elastic buffers: address space and memory ahead of need, memory spread over devices and in chunks of a chosen size.
 * Shorter views, views put together, their access: test_elastic_views.c. Evicting and restoring: test_evict.c. */
#include "elastic_kit.h"

static gvmm_resource *with_capacity(uint64_t capacity)
{
    gvmm_options options = waiting_options();
    options.capacity = capacity;
    return resource_with(options);
}

/* ---- capacity ---- */

enum { GROWS = 1000 };

START_TEST(a_thousand_grows_stay_in_place_and_make_three_calls_each)
{
    gvmm_resource *resource = with_capacity((GROWS + 1) * (uint64_t)G);
    gvmm_buffer *buffer = create(resource, G);
    uint64_t base = address(buffer);
    ck_assert_uint_eq(gvmm_buffer_capacity(buffer), (GROWS + 1) * (uint64_t)G);
    for (size_t i = 1; i <= GROWS; i++) {
        watch();
        gvmm_buffer *larger = grow(buffer, (i + 1) * G);
        ck_calls("cuMemCreate cuMemMap cuMemSetAccess");
        ck_assert_uint_eq(address(larger), base);
        gvmm_buffer_release(buffer);
        buffer = larger;
    }
    ck_assert_uint_eq(gvmm_buffer_size(buffer), (GROWS + 1) * G);
    ck_assert_uint_eq(stats_of(resource).grows_in_place, GROWS);
    ck_assert_uint_eq(stats_of(resource).reservations, 1);
    write_pattern(end(buffer) - 2 * G, 2 * G, 1);
    ck_pattern(end(buffer) - 2 * G, 2 * G, 1);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* Which thread creates memory: the driver table with one entry of ours in it. */
static _Thread_local bool in_a_grow;
static atomic_uint created_in_a_grow, created_elsewhere;
static const gvmm_driver *below;

static CUresult noted_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                             unsigned long long flags)
{
    atomic_fetch_add(in_a_grow ? &created_in_a_grow : &created_elsewhere, 1);
    return below->cuMemCreate(handle, size, prop, flags);
}

START_TEST(with_memory_ahead_two_calls_are_left)
{
    static gvmm_driver noted;
    below = gvmm_faults_over(cu);
    noted = *below;
    noted.cuMemCreate = noted_create;
    use_driver(&noted);
    atomic_store(&created_in_a_grow, 0);
    atomic_store(&created_elsewhere, 0);

    gvmm_options options = waiting_options();
    options.capacity = (GROWS + 1) * (uint64_t)G;
    options.chunk_size = G;
    options.ahead_count = 2;
    gvmm_resource *resource = resource_with(options);
    gvmm_drain();
    ck_assert_uint_eq(atomic_load(&created_elsewhere), 2);
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 2 * G);
    gvmm_buffer *buffer = create(resource, G);
    uint64_t base = address(buffer);
    for (size_t i = 1; i <= GROWS; i++) {
        gvmm_drain();
        uint64_t before = stats_of(NULL).driver_calls;
        in_a_grow = true;
        gvmm_buffer *larger = grow(buffer, (i + 1) * G);
        in_a_grow = false;
        gvmm_drain();
        /* map and access here, the next create on the thread */
        ck_assert_uint_eq(stats_of(NULL).driver_calls - before, 3);
        ck_assert_uint_eq(address(larger), base);
        gvmm_buffer_release(buffer);
        buffer = larger;
    }
    ck_assert_uint_eq(atomic_load(&created_in_a_grow), 0);
    ck_assert_uint_eq(atomic_load(&created_elsewhere), GROWS + 3);
    ck_assert_uint_eq(stats_of(resource).memories, GROWS + 3);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_no_warnings();
}
END_TEST

/* What is made ahead must not be why there is no memory left. */
START_TEST(memory_ahead_is_given_up_where_the_device_is_full)
{
    gvmm_options options = waiting_options();
    options.chunk_size = 2 * G;
    options.ahead_count = 3;
    gvmm_resource *resource = resource_with(options);
    gvmm_drain();
    ck_assert_uint_eq(stats_of(resource).memories, 3);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer *small = create(resource, G); /* smaller than what is in stock */
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    ck_assert_uint_eq(stats_of(resource).memories, 1);
    ck_ok(gvmm_faults_set(NULL));
    gvmm_buffer *one = create(resource, 2 * G); /* finds none, and has the thread make new ones */
    gvmm_drain();
    ck_assert_uint_eq(stats_of(resource).memories, 2 + 3);
    gvmm_buffer_release(small);
    gvmm_buffer_release(one);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_no_warnings();
}
END_TEST

/* The thread's failures are nobody's: no error, no warning, and the grow makes its memory itself. */
START_TEST(a_thread_that_gets_no_memory_is_silent)
{
    gvmm_options options = waiting_options();
    options.chunk_size = G;
    options.ahead_count = 2;
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY}));
    gvmm_resource *resource = resource_with(options);
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(stats_of(resource).memories, 0);
    gvmm_buffer *buffer = create(resource, 3 * G);
    write_pattern(address(buffer), 3 * G, 1);
    ck_pattern(address(buffer), 3 * G, 1);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_no_warnings();
}
END_TEST

START_TEST(capacity_all_is_the_memory_of_the_device)
{
    size_t total;
    ck_cu(cu->cuDeviceTotalMem(&total, 0));
    gvmm_resource *resource = with_capacity(GVMM_CAPACITY_ALL);
    gvmm_options got;
    gvmm_resource_options(resource, &got);
    ck_assert_uint_eq(got.capacity, total);
    gvmm_buffer *buffer = create(resource, 1);
    ck_assert_uint_ge(gvmm_buffer_capacity(buffer), total);
    ck_assert_uint_lt(gvmm_buffer_capacity(buffer), total + G);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);

    gvmm_options host = on_host();
    host.capacity = GVMM_CAPACITY_ALL;
    resource = resource_with(host);
    gvmm_resource_options(resource, &got);
    ck_assert_uint_gt(got.capacity, (uint64_t)1 << 28);
    ck_assert_uint_lt(got.capacity, (uint64_t)1 << 48);
    gvmm_resource_release(resource);

    gvmm_buffer *none = NULL;
    ck_fails(gvmm_buffer_create_with_capacity(&none, plain, G, GVMM_CAPACITY_ALL, NULL), GVMM_E_INVALID);
    ck_names("capacity");
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(a_refused_capacity_is_halved)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY}));
    ck_fails(gvmm_buffer_create_with_capacity(&buffer, plain, 2 * G, 64 * G, NULL), GVMM_E_NO_ADDRESS_SPACE);
    ck_assert_uint_eq(gvmm_faults_injected(), 6); /* 64, 32, 16, 8, 4 and the 2 that are needed */
    ck_fails(gvmm_buffer_create(&buffer, NULL, G, NULL), GVMM_E_INVALID);
    char before[200];
    snprintf(before, sizeof before, "%s", last_text());
    fault_call("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(gvmm_buffer_create_with_capacity(&buffer, plain, 2 * G, 64 * G, NULL));
    ck_assert_uint_eq(gvmm_buffer_capacity(buffer), 32 * G);
    ck_assert_str_eq(last_text(), before); /* a wish that is not granted is no failure */
    uint64_t base = address(buffer);
    regrow(&buffer, 32 * G);
    ck_assert_uint_eq(address(buffer), base);
    ck_assert_uint_eq(gvmm_buffer_capacity(buffer), 32 * G);
    gvmm_buffer_release(buffer);

    ck_ok(gvmm_buffer_create_with_capacity(&buffer, plain, 3 * G, 2 * G, NULL)); /* less than needed is no wish */
    ck_assert_uint_eq(gvmm_buffer_capacity(buffer), 3 * G);
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_buffer_create_with_capacity(&buffer, plain, G, 2 * G + 1, NULL)); /* rounded up */
    ck_assert_uint_eq(gvmm_buffer_capacity(buffer), 3 * G);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* The address space has really run out. */
START_TEST(what_is_left_of_the_address_space_is_taken)
{
    enum { MOST = 64 };
    CUdeviceptr taken[MOST];
    size_t sizes[MOST], count = 0;
    for (size_t size = (size_t)1 << 45; size >= 16 * G; size /= 2) /* all but 16 G of them */
        if (cu->cuMemAddressReserve(&taken[count], size, 0, 0, 0) == CUDA_SUCCESS) sizes[count++] = size;
    gvmm_buffer *buffer;
    CUdeviceptr more;
    /* a sanitizer's machine has other sizes */
    bool plenty = cu->cuMemAddressReserve(&more, 1024 * G, 0, 0, 0) == CUDA_SUCCESS;
    if (plenty) ck_cu(cu->cuMemAddressFree(more, 1024 * G));
    ck_ok(gvmm_buffer_create_with_capacity(&buffer, plain, G, 1024 * (uint64_t)G, NULL));
    uint64_t capacity = gvmm_buffer_capacity(buffer), base = address(buffer);
    ck_assert_uint_ge(capacity, 4 * G);
    if (!plenty) ck_assert_uint_lt(capacity, 1024 * (uint64_t)G);
    if (!plenty) regrow(&buffer, capacity);
    ck_assert_uint_eq(address(buffer), base);
    gvmm_buffer_release(buffer);
    while (count--) ck_cu(cu->cuMemAddressFree(taken[count], sizes[count]));
}
END_TEST

START_TEST(after_the_capacity_a_grow_moves)
{
    gvmm_resource *resource = with_capacity(4 * G);
    gvmm_buffer *buffer = create(resource, G), *full = grow(buffer, 4 * G);
    uint64_t decoy = block_behind(full);
    write_pattern(address(full), 4 * G, 1);
    ck_assert_uint_eq(address(full), address(buffer));
    gvmm_buffer *moved = grow(full, 6 * G);
    ck_assert_uint_ne(address(moved), address(full));
    ck_pattern(address(moved), 4 * G, 1);
    ck_assert_uint_eq(gvmm_buffer_capacity(moved), 6 * G);
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(full);

    /* a move before the capacity is used up takes it along */
    gvmm_buffer *short_one = create(resource, G), *rival = grow(short_one, 2 * G), *elsewhere = grow(short_one, 3 * G);
    ck_assert_uint_ne(address(elsewhere), address(short_one));
    ck_assert_uint_eq(gvmm_buffer_capacity(elsewhere), 4 * G);
    if (decoy) free_decoy(decoy);
    gvmm_buffer_release(moved);
    gvmm_buffer_release(short_one);
    gvmm_buffer_release(rival);
    gvmm_buffer_release(elsewhere);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(space_is_claimed_once_and_comes_back)
{
    gvmm_resource *resource = with_capacity(8 * G);
    gvmm_buffer *root = create(resource, 2 * G), *first = grow(root, 4 * G);
    ck_assert_uint_eq(gvmm_buffer_capacity(root), 2 * G); /* taken */
    ck_assert_uint_eq(gvmm_buffer_capacity(first), 8 * G);
    watch();
    gvmm_buffer *second = grow(root, 4 * G);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemAddressReserve), 1); /* no probe where it would be in vain */
    ck_assert_uint_ne(address(second), address(root));
    fill(address(first) + 2 * G, 1, 2 * G);
    fill(address(second) + 2 * G, 2, 2 * G);
    ck_filled(address(first) + 2 * G, 1, 2 * G);

    gvmm_buffer *alias = grow(first, G); /* the longer one, seen twice */
    gvmm_buffer_release(first);
    ck_assert_uint_eq(gvmm_buffer_capacity(root), 2 * G);
    gvmm_buffer_release(alias);
    ck_assert_uint_eq(gvmm_buffer_capacity(root), 8 * G);
    gvmm_buffer *third = grow(root, 8 * G);
    ck_assert_uint_eq(address(third), address(root));
    ck_filled(address(third) + 2 * G, 0, 6 * G);
    gvmm_buffer_release(root); /* the shorter one first */
    gvmm_buffer_release(third);
    gvmm_buffer_release(second);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(a_graph_keeps_its_claim)
{
    gvmm_resource *resource = with_capacity(8 * G);
    CUgraph graph;
    ck_cu(cu->cuGraphCreate(&graph, 0));
    gvmm_buffer *root = create(resource, G), *longer = grow(root, 3 * G);
    ck_ok(gvmm_buffer_retain_in_graph(longer, graph));
    gvmm_buffer_release(longer);
    ck_assert_uint_eq(gvmm_buffer_capacity(root), G);
    gvmm_buffer *moved = grow(root, 2 * G);
    ck_assert_uint_ne(address(moved), address(root));
    ck_cu(cu->cuGraphDestroy(graph));
    for (int i = 0; i < 100000 && gvmm_buffer_capacity(root) != 8 * G; i++) { /* the driver tells some time later */
        gvmm_drain();
        sched_yield();
    }
    ck_assert_uint_eq(gvmm_buffer_capacity(root), 8 * G);
    gvmm_buffer_release(moved);
    gvmm_buffer_release(root);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* A grow of several chunks that fails gives its claim back once: another may have it at once. */
START_TEST(a_failed_grow_leaves_the_space_to_others)
{
    gvmm_resource *resource = with_chunks(G, 8 * G);
    gvmm_buffer *root = create(resource, G), *out = NULL;
    const char *calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    for (int i = 0; i < 3; i++)
        for (uint64_t k = 1; k <= 3; k++) {
            ck_ok(gvmm_faults_set(&(gvmm_fault){k, true, calls[i], CUDA_ERROR_UNKNOWN}));
            ck_fails(gvmm_buffer_grow(&out, root, 4 * G, NULL), GVMM_E_DRIVER);
            ck_ok(gvmm_faults_set(NULL));
            ck_assert_uint_eq(gvmm_buffer_capacity(root), 8 * G);
        }
    gvmm_buffer *larger = grow(root, 8 * G);
    ck_assert_uint_eq(address(larger), address(root));
    gvmm_buffer_release(larger);
    gvmm_buffer_release(root);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(an_empty_buffer_has_its_capacity_when_it_grows)
{
    gvmm_buffer *empty;
    ck_ok(gvmm_buffer_create_with_capacity(&empty, plain, 0, 8 * G, NULL));
    ck_assert_uint_eq(gvmm_buffer_capacity(empty), 0); /* nothing has been reserved */
    gvmm_buffer *one = grow(empty, G);
    ck_assert_uint_eq(gvmm_buffer_capacity(one), 8 * G);
    gvmm_buffer *none = shrink(one, 0), *again = grow(none, 2 * G); /* and keeps it through shrinking to nothing */
    ck_assert_uint_eq(gvmm_buffer_capacity(again), 8 * G);
    gvmm_buffer_release(empty);
    gvmm_buffer_release(one);
    gvmm_buffer_release(none);
    gvmm_buffer_release(again);
    ck_assert_uint_eq(gvmm_buffer_capacity(NULL), 0);
}
END_TEST

/* ---- chunks and stripes ---- */

static void ck_segment_sizes(gvmm_buffer *buffer, const char *sizes)
{
    gvmm_segment segments[32];
    size_t count;
    ck_ok(gvmm_buffer_segments(buffer, segments, 32, &count));
    ck_assert_uint_eq(count, strlen(sizes));
    uint64_t at = address(buffer);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(segments[i].address, at);
        ck_assert_uint_eq(segments[i].size, (size_t)(sizes[i] - '0') * G);
        at += segments[i].size;
    }
    ck_assert_uint_eq(at, end(buffer));
}

START_TEST(chunks_have_the_size_that_was_asked_for)
{
    const struct {
        size_t chunk, size;
        const char *sizes;
    } cases[] = {{0, 5, "5"}, {1, 3, "111"}, {2, 5, "221"}, {2, 1, "1"}, {4, 8, "44"}, {8, 3, "3"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gvmm_resource *resource = with_chunks(cases[i].chunk * G, 0);
        gvmm_buffer *buffer = create(resource, cases[i].size * G);
        ck_segment_sizes(buffer, cases[i].sizes);
        gvmm_buffer_release(buffer);
        gvmm_resource_release(resource);
    }
    gvmm_resource *resource = with_chunks(G + 1, 16 * G); /* rounded up to two */
    gvmm_options got;
    gvmm_resource_options(resource, &got);
    ck_assert_uint_eq(got.chunk_size, 2 * G);
    gvmm_buffer *buffer = create(resource, 3 * G);
    ck_segment_sizes(buffer, "21");
    regrow(&buffer, 8 * G);
    ck_segment_sizes(buffer, "21221");
    gvmm_options one_piece = waiting_options();
    gvmm_buffer *larger;
    ck_ok(gvmm_buffer_grow(&larger, buffer, 12 * G, &one_piece)); /* the options of the call hold for what it adds */
    ck_segment_sizes(larger, "212214");
    write_pattern(address(larger), 12 * G, 1);
    ck_pattern(address(larger), 12 * G, 1);
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(larger);
    gvmm_resource_release(resource);
}
END_TEST

static void ck_devices(gvmm_buffer *buffer, const char *devices)
{
    gvmm_segment segments[32];
    size_t count;
    ck_ok(gvmm_buffer_segments(buffer, segments, 32, &count));
    ck_assert_uint_eq(count, strlen(devices));
    for (size_t i = 0; i < count; i++) ck_assert_int_eq(segments[i].device, devices[i] - '0');
}

START_TEST(stripes_alternate_and_growth_goes_on_at_the_right_device)
{
    if (lacks_second_device("stripes_alternate_and_growth_goes_on_at_the_right_device")) return;
    static const int both[] = {1, 0};
    gvmm_options options = waiting_options();
    options.chunk_size = 2 * G;
    options.stripe = both;
    options.stripe_count = 2;
    gvmm_resource *resource = resource_with(options);
    gvmm_options got;
    gvmm_resource_options(resource, &got);
    ck_assert_ptr_ne(got.stripe, both); /* copied */
    ck_assert_int_eq(got.stripe[0], 1);
    gvmm_buffer *buffer = create(resource, 6 * G);
    ck_devices(buffer, "101");
    ck_access(buffer, GVMM_ACCESS_READ_WRITE, GVMM_ACCESS_READ_WRITE);
    write_pattern(address(buffer), 6 * G, 1);
    regrow(&buffer, 8 * G);
    ck_devices(buffer, "1010");
    uint64_t decoy = block_behind(buffer);
    regrow(&buffer, 14 * G); /* moved, or not */
    if (decoy) free_decoy(decoy);
    ck_devices(buffer, "1010101");
    ck_pattern(address(buffer), 6 * G, 1);
    ck_access(buffer, GVMM_ACCESS_READ_WRITE, GVMM_ACCESS_READ_WRITE);
    gvmm_buffer *odd = create(resource, 3 * G); /* one and a half: what follows still belongs to the second place */
    ck_devices(odd, "10");
    regrow(&odd, 5 * G);
    ck_devices(odd, "100");
    gvmm_buffer *short_one = shrink(buffer, 4 * G);
    regrow(&short_one, 6 * G);
    ck_devices(short_one, "101");
    gvmm_buffer_release(short_one);
    gvmm_buffer_release(odd);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);

    options.self_access = GVMM_ACCESS_READ;
    resource = resource_with(options);
    buffer = create(resource, 4 * G);
    ck_access(buffer, GVMM_ACCESS_READ, GVMM_ACCESS_READ);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(options_that_contradict_each_other)
{
    static const int both[] = {0, 1}, missing[] = {0, 99};
    gvmm_resource *none = NULL;
    gvmm_options options = waiting_options();
    options.stripe = both;
    options.stripe_count = 2;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("stripe");
    options.chunk_size = G;
    options.ahead_count = 1;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("ahead_count");
    options.ahead_count = 0;
    options.stripe = missing;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("stripe");
    options.stripe = NULL;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("stripe");
    options = on_host();
    options.stripe = both;
    options.stripe_count = 1;
    options.chunk_size = G;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    options = waiting_options();
    options.ahead_count = 3;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("chunk_size");
    options.chunk_size = SIZE_MAX;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("chunk_size");
    options = waiting_options();
    options.tag = GVMM_TAG_ANY;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("tag");
    ck_assert_ptr_null(none);
}
END_TEST

/* What a program built with the first header passes: fewer fields, and who knows what behind them. */
START_TEST(options_of_an_older_header)
{
    gvmm_resource *resource = NULL;
    gvmm_options options, got;
    memset(&options, 0xff, sizeof options);
    gvmm_options now = waiting_options();
    memcpy(&options, &now, offsetof(gvmm_options, capacity));
    options.struct_size = offsetof(gvmm_options, capacity);
    ck_ok(gvmm_resource_create(&resource, 0, &options));
    gvmm_resource_options(resource, &got);
    ck_assert_uint_eq(got.struct_size, sizeof got);
    ck_assert_uint_eq(got.capacity, 0);
    ck_assert_uint_eq(got.chunk_size, 0);
    ck_assert_uint_eq(got.stripe_count, 0);
    ck_assert_int_eq(got.tag, 0);
    gvmm_buffer *buffer = create(resource, G), *larger;
    ck_ok(gvmm_buffer_grow(&larger, buffer, 2 * G, &options));
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(larger);
    gvmm_resource_release(resource);
    options.struct_size--;
    ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_INVALID);
    ck_names("struct_size");
    options.struct_size = sizeof options + 1;
    ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("elastic");
    TCase *capacity = add_watched_case(suite, "capacity");
    tcase_add_test(capacity, a_thousand_grows_stay_in_place_and_make_three_calls_each);
    tcase_add_test(capacity, memory_ahead_is_given_up_where_the_device_is_full);
    tcase_add_test(capacity, a_thread_that_gets_no_memory_is_silent);
    tcase_add_test(capacity, capacity_all_is_the_memory_of_the_device);
    tcase_add_test(capacity, a_refused_capacity_is_halved);
    tcase_add_test(capacity, after_the_capacity_a_grow_moves);
    tcase_add_test(capacity, space_is_claimed_once_and_comes_back);
    tcase_add_test(capacity, a_graph_keeps_its_claim);
    tcase_add_test(capacity, a_failed_grow_leaves_the_space_to_others);
    tcase_add_test(capacity, an_empty_buffer_has_its_capacity_when_it_grows);
    TCase *chunk_sizes = add_watched_case(suite, "chunks and stripes");
    tcase_add_test(chunk_sizes, chunks_have_the_size_that_was_asked_for);
    tcase_add_test(chunk_sizes, stripes_alternate_and_growth_goes_on_at_the_right_device);
    tcase_add_test(chunk_sizes, options_that_contradict_each_other);
    tcase_add_test(chunk_sizes, options_of_an_older_header);
    TCase *unwatched = add_case(suite, "with a driver table of their own");
    tcase_add_test(unwatched, with_memory_ahead_two_calls_are_left);
    if (!getenv("GVMM_TEST_DRIVER") || strcmp(getenv("GVMM_TEST_DRIVER"), "gpu") != 0)
        tcase_add_test(unwatched, what_is_left_of_the_address_space_is_taken);
    return run_suites(suite, NULL);
}

/* Elastic buffers: address space and memory ahead of need, shorter views, views put together, access changed later,
 * memory spread over devices and in chunks of a chosen size. Evicting and restoring: test_evict.c. */
#include "watch.h"

static gvmm_options defaults(void) { return waiting_options(); }

static gvmm_resource *with_capacity(uint64_t capacity)
{
    gvmm_options options = defaults();
    options.capacity = capacity;
    return resource_with(options);
}

static gvmm_resource *with_chunks(size_t chunk, uint64_t capacity)
{
    gvmm_options options = defaults();
    options.chunk_size = chunk;
    options.capacity = capacity;
    return resource_with(options);
}

static gvmm_options on_host(void)
{
    gvmm_options options = defaults();
    options.location = GVMM_LOCATION_HOST;
    options.handle_type = GVMM_HANDLE_NONE;
    return options;
}

static gvmm_buffer *shrink(gvmm_buffer *buffer, size_t size)
{
    gvmm_buffer *out;
    ck_ok(gvmm_buffer_shrink(&out, buffer, size));
    return out;
}

static gvmm_buffer *compose(const gvmm_piece *pieces, size_t count)
{
    gvmm_buffer *out;
    ck_ok(gvmm_buffer_compose(&out, plain, pieces, count, NULL));
    return out;
}

static gvmm_buffer *ring(gvmm_buffer *buffer, unsigned times)
{
    gvmm_buffer *out;
    ck_ok(gvmm_buffer_ring(&out, buffer, times));
    return out;
}

static gvmm_access get_access(gvmm_buffer *buffer, int device)
{
    gvmm_access access;
    ck_ok(gvmm_buffer_get_access(buffer, device, &access));
    return access;
}

static uint64_t address(gvmm_buffer *buffer) { return gvmm_buffer_address(buffer); }
static uint64_t end(gvmm_buffer *buffer) { return gvmm_buffer_address(buffer) + gvmm_buffer_size(buffer); }

static gvmm_stats stats_of(gvmm_resource *resource)
{
    gvmm_stats stats;
    gvmm_get_stats(resource, &stats);
    return stats;
}

/* The result takes the buffer's place. */
static void regrow(gvmm_buffer **buffer, size_t size)
{
    gvmm_buffer *larger = grow(*buffer, size);
    gvmm_buffer_release(*buffer);
    *buffer = larger;
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

    gvmm_options options = defaults();
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
        ck_assert_uint_eq(stats_of(NULL).driver_calls - before,
                          3); /* map and access here, the next create on the thread */
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
    gvmm_options options = defaults();
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
    gvmm_options options = defaults();
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
    bool plenty = cu->cuMemAddressReserve(&more, 1024 * G, 0, 0, 0) ==
                  CUDA_SUCCESS; /* a sanitizer's machine has other sizes */
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

/* ---- shrink ---- */

START_TEST(shrink_ends_at_the_next_border)
{
    gvmm_resource *resource = with_chunks(2 * G, 8 * G);
    gvmm_buffer *buffer = create(resource, 6 * G);
    const size_t sizes[][2] = {{1, 2 * G},     {G, 2 * G},         {2 * G, 2 * G}, {2 * G + 1, 4 * G},
                               {4 * G, 4 * G}, {6 * G - 1, 6 * G}, {6 * G, 6 * G}, {7 * G, 6 * G}};
    write_pattern(address(buffer), 6 * G, 1);
    ck_ok(gvmm_buffer_set_stream(buffer, stream));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        watch();
        gvmm_buffer *part = shrink(buffer, sizes[i][0]);
        ck_calls("");
        ck_assert_uint_eq(gvmm_buffer_size(part), sizes[i][1]);
        ck_assert_uint_eq(address(part), address(buffer));
        ck_assert_ptr_eq(gvmm_buffer_stream(part), stream);
        ck_pattern(address(part), sizes[i][1], 1);
        gvmm_buffer_release(part);
    }
    gvmm_buffer *none = shrink(buffer, 0);
    ck_assert_uint_eq(gvmm_buffer_size(none), 0);
    ck_assert_uint_eq(address(none), 0);
    ck_assert(!gvmm_buffer_is_closed(none));
    gvmm_buffer *still_none = shrink(none, 3);
    ck_assert_uint_eq(gvmm_buffer_size(still_none), 0);
    gvmm_buffer_release(still_none);
    gvmm_buffer_release(none);
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_fails(gvmm_buffer_shrink(&none, buffer, G), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_shrink(&none, NULL, G), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_shrink(NULL, buffer, G), GVMM_E_INVALID);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(what_nobody_shows_any_more_goes)
{
    gvmm_resource *resource = with_chunks(G, 8 * G);
    gvmm_buffer *buffer = create(resource, 6 * G), *part = shrink(buffer, 2 * G);
    write_pattern(address(buffer), 6 * G, 1);
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 6 * G);
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 2 * G);
    ck_assert_uint_eq(gvmm_buffer_capacity(part), 8 * G);
    CUmemGenericAllocationHandle handle;
    ck_cu_fails(cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)end(part)), CUDA_ERROR_INVALID_VALUE);
    gvmm_buffer *again = grow(part, 8 * G);
    ck_assert_uint_eq(address(again), address(part));
    ck_pattern(address(again), 2 * G, 1);
    ck_filled(address(again) + 2 * G, 0, 6 * G);
    gvmm_buffer_release(part);
    gvmm_buffer_release(again);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- compose ---- */

/* Chunk k of the buffer is filled with the value k + 1. */
static gvmm_buffer *numbered(gvmm_resource *resource, size_t count)
{
    gvmm_buffer *buffer = create(resource, count * G);
    for (size_t i = 0; i < count; i++) fill(address(buffer) + i * G, (unsigned char)(i + 1), G);
    return buffer;
}

static void ck_chunks(gvmm_buffer *buffer, const char *values)
{
    ck_assert_uint_eq(gvmm_buffer_size(buffer), strlen(values) * G);
    for (size_t i = 0; values[i]; i++) ck_filled(address(buffer) + i * G, (unsigned char)(values[i] - '0'), G);
}

START_TEST(pieces_are_put_together_without_copies)
{
    gvmm_resource *resource = with_chunks(G, 0);
    gvmm_buffer *a = numbered(resource, 3), *b = numbered(resource, 2);
    gvmm_buffer *both = compose((gvmm_piece[]){{.buffer = a}, {.buffer = b}}, 2);
    ck_chunks(both, "12312");
    gvmm_buffer *slice = compose((gvmm_piece[]){{a, G, G, false}}, 1);
    ck_chunks(slice, "2");
    gvmm_buffer *tail = compose((gvmm_piece[]){{a, G, 0, false}}, 1);
    ck_chunks(tail, "23");
    gvmm_buffer *turned = compose(
        (gvmm_piece[]){{a, 2 * G, G, false}, {a, 0, G, false}, {b, G, G, false}, {a, 0, G, false}}, 4);
    ck_chunks(turned, "3121");
    gvmm_buffer *of_composed = compose(
        (gvmm_piece[]){{turned, G, 2 * G, false}, {a, 3 * G, 0, false}, {both, 0, 0, false}}, 3);
    ck_chunks(of_composed, "1212312");
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 5 * G); /* nothing was copied */
    ck_assert_uint_eq(stats_of(resource).memories, 5);

    fill(address(turned) + 3 * G, 9, G); /* a's first chunk, wherever it is seen */
    ck_chunks(a, "923");
    ck_chunks(both, "92312");
    ck_chunks(turned, "3929");
    gvmm_segment segments[8], first;
    size_t count;
    ck_ok(gvmm_buffer_segments(a, &first, 1, &count));
    ck_ok(gvmm_buffer_segments(turned, segments, 8, &count));
    ck_assert_uint_eq(count, 4);
    ck_assert_uint_eq(segments[1].memory, first.memory);
    ck_assert_uint_eq(segments[3].memory, first.memory);
    ck_assert_uint_ne(segments[0].memory, first.memory);

    gvmm_buffer_release(a); /* the pieces hold what they show */
    gvmm_buffer_release(b);
    ck_chunks(both, "92312");
    gvmm_buffer_release(both);
    gvmm_buffer_release(of_composed);
    ck_chunks(turned, "3929");
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 4 * G);
    gvmm_buffer_release(slice);
    gvmm_buffer_release(tail);
    gvmm_buffer_release(turned);
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 0);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(pieces_of_several_devices)
{
    if (lacks_second_device("pieces_of_several_devices")) return;
    gvmm_resource *second, *host = resource_with(on_host());
    ck_ok(gvmm_resource_create(&second, 1, NULL));
    gvmm_buffer *a = create(plain, G), *b = create(second, G), *c = create(host, G);
    gvmm_buffer *all = compose((gvmm_piece[]){{.buffer = a}, {.buffer = b}, {.buffer = c}}, 3);
    gvmm_segment segments[3];
    size_t count;
    ck_ok(gvmm_buffer_segments(all, segments, 3, &count));
    ck_assert_int_eq(segments[0].device, 0);
    ck_assert_int_eq(segments[1].device, 1);
    ck_assert_int_eq(segments[2].device, -1);
    ck_assert_uint_eq(access_of(address(all), 0), 3); /* each keeps its readers */
    ck_assert_uint_eq(access_of(address(all), 1), 0);
    ck_assert_uint_eq(access_of(address(all) + G, 0), 0);
    ck_assert_uint_eq(access_of(address(all) + G, 1), 3);
    ck_assert_int_eq(get_access(all, 0), GVMM_ACCESS_NONE);
    *(volatile char *)(uintptr_t)(address(all) + 2 * G) = 7; /* the CPU's */
    ck_assert_int_eq(*(volatile char *)(uintptr_t)address(c), 7);
    ck_ok(gvmm_buffer_set_access(all, 0, GVMM_ACCESS_READ_WRITE));
    write_pattern(address(all), 2 * G,
                  1); /* one copy from device to host memory crashes the driver: H200, driver 580 */
    ck_pattern(address(all), 2 * G, 1);
    gvmm_buffer *larger = grow(all, 4 * G);
    ck_pattern(address(larger), 2 * G, 1);
    ck_assert_int_eq(*(volatile char *)(uintptr_t)(address(larger) + 2 * G), 7);
    gvmm_buffer_release(larger);
    gvmm_buffer_release(all);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_buffer_release(c);
    gvmm_resource_release(second);
    gvmm_resource_release(host);
    ck_no_warnings();
}
END_TEST

START_TEST(nobody_writes_through_a_read_only_piece)
{
    gvmm_buffer *a = create(plain, G);
    gvmm_buffer *mixed = compose((gvmm_piece[]){{.buffer = a, .read_only = true}, {.buffer = a}}, 2);
    ck_assert_uint_eq(access_of(address(mixed), 0), 1);
    ck_assert_uint_eq(access_of(address(mixed) + G, 0), 3);
    ck_assert_int_eq(get_access(mixed, 0), GVMM_ACCESS_READ);
    ck_cu_fails(cu->cuMemsetD8(address(mixed), 1, G), CUDA_ERROR_INVALID_VALUE);
    fill(address(mixed) + G, 5, G); /* the writable view of it */
    ck_filled(address(mixed), 5, G);
    fill(address(a), 6, G);
    ck_filled(address(mixed), 6, 2 * G);
    gvmm_segment segments[2];
    size_t count;
    ck_ok(gvmm_buffer_segments(mixed, segments, 2, &count));
    ck_assert_uint_eq(segments[0].memory, segments[1].memory);

    uint64_t decoy = block_behind(mixed);
    gvmm_buffer *moved = grow(mixed, 3 * G); /* it stays so, and what is new is not */
    ck_assert_uint_eq(access_of(address(moved), 0), 1);
    ck_assert_uint_eq(access_of(address(moved) + 2 * G, 0), 3);
    gvmm_buffer *piece_of_it = compose((gvmm_piece[]){{moved, 0, G, false}}, 1);
    ck_assert_uint_eq(access_of(address(piece_of_it), 0), 1);
    gvmm_buffer_release(a);
    gvmm_buffer_release(mixed);
    gvmm_buffer_release(moved);
    ck_filled(address(piece_of_it), 6, G);
    drop(piece_of_it, decoy);
    ck_no_warnings();
}
END_TEST

START_TEST(a_piece_that_is_not_of_whole_chunks_is_named)
{
    gvmm_resource *resource = with_chunks(2 * G, 0);
    gvmm_buffer *a = create(resource, 4 * G), *empty = create(plain, 0), *closed = create(plain, G), *out = NULL;
    ck_ok(gvmm_buffer_close(closed, NULL));
    const gvmm_piece bad[] = {
        {a, G, 0, false},     {a, 0, G, false},         {a, 1, 2 * G, false},    {a, 0, 5 * G, false},
        {a, 6 * G, 0, false}, {a, 4 * G, 2 * G, false}, {a, SIZE_MAX, 2, false}, {a, 2 * G, SIZE_MAX, false},
        {empty, 0, G, false}, {NULL, 0, 0, false}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gvmm_piece pieces[] = {{.buffer = a}, bad[i], {.buffer = a}};
        ck_fails(gvmm_buffer_compose(&out, plain, pieces, 3, NULL), GVMM_E_INVALID);
        ck_names("piece 1");
    }
    ck_fails(gvmm_buffer_compose(&out, plain, (gvmm_piece[]){{.buffer = closed}}, 1, NULL), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_compose(&out, plain, NULL, 1, NULL), GVMM_E_INVALID);
    ck_names("pieces");
    ck_fails(gvmm_buffer_compose(&out, NULL, bad, 1, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_compose(NULL, plain, bad, 1, NULL), GVMM_E_INVALID);
    ck_assert_ptr_null(out);

    gvmm_buffer *none = compose(NULL, 0),
                *still_none = compose((gvmm_piece[]){{.buffer = empty}, {a, 4 * G, 0, false}}, 2);
    ck_assert_uint_eq(gvmm_buffer_size(none) + gvmm_buffer_size(still_none), 0);
    gvmm_buffer *grown = grow(none, G);
    ck_filled(address(grown), 0, G);
    gvmm_buffer_release(grown);
    gvmm_buffer_release(none);
    gvmm_buffer_release(still_none);
    gvmm_buffer_release(a);
    gvmm_buffer_release(empty);
    gvmm_buffer_release(closed);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(a_ring_wraps)
{
    gvmm_resource *resource = with_chunks(G, 0);
    gvmm_buffer *a = create(resource, 2 * G), *out = NULL;
    gvmm_buffer *twice = ring(a, 2);
    ck_assert_uint_eq(gvmm_buffer_size(twice), 4 * G);
    write_pattern(address(twice) + G, 2 * G, 3); /* across the end */
    ck_pattern(address(twice) + 3 * G, G, 3);
    unsigned char *bytes = malloc(2 * G), *wrapped = malloc(2 * G);
    ck_assert(bytes && wrapped);
    ck_cu(cu->cuMemcpyDtoH(bytes, address(twice) + G, 2 * G));
    ck_cu(cu->cuMemcpyDtoH(wrapped, address(a), 2 * G));
    ck_assert(memcmp(bytes, wrapped + G, G) == 0 && memcmp(bytes + G, wrapped, G) == 0);
    free(bytes);
    free(wrapped);

    gvmm_buffer *many = ring(a, 1024), *once = ring(a, 1);
    ck_assert_uint_eq(gvmm_buffer_size(many), 2048 * G);
    fill(address(many) + 1111 * G, 8, G);
    ck_filled(address(a) + G, 8, G);
    ck_fails(gvmm_buffer_ring(&out, a, 0), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_ring(&out, a, 1025), GVMM_E_INVALID);
    ck_names("times");
    ck_fails(gvmm_buffer_ring(&out, NULL, 2), GVMM_E_INVALID);
    gvmm_buffer *empty = create(plain, 0), *empty_ring = ring(empty, 5);
    ck_assert_uint_eq(gvmm_buffer_size(empty_ring), 0);
    gvmm_buffer_release(empty);
    gvmm_buffer_release(empty_ring);
    gvmm_buffer_release(a);
    gvmm_buffer_release(many);
    gvmm_buffer_release(once);
    fill(address(twice), 4, G);
    ck_filled(address(twice) + 2 * G, 4, G);
    gvmm_buffer_release(twice);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(composed_buffers_grow_shrink_and_have_the_resources_capacity)
{
    gvmm_resource *resource = with_chunks(G, 16 * G);
    gvmm_buffer *a = numbered(resource, 2), *twice = ring(a, 2);
    ck_assert_uint_eq(gvmm_buffer_capacity(twice), 16 * G);
    gvmm_buffer *larger = grow(twice, 6 * G);
    ck_assert_uint_eq(address(larger), address(twice));
    fill(address(larger) + 4 * G, 7, 2 * G);
    ck_chunks(larger, "121277");
    gvmm_buffer *shorter = shrink(larger, 3 * G);
    ck_chunks(shorter, "121");
    gvmm_buffer *moved = grow(shorter, 4 * G);
    fill(address(moved) + 3 * G, 8, G);
    ck_chunks(moved, "1218");
    gvmm_buffer_release(a);
    gvmm_buffer_release(twice);
    gvmm_buffer_release(shorter);
    ck_chunks(larger, "121277");
    gvmm_buffer_release(larger);
    ck_chunks(moved, "1218");
    gvmm_buffer_release(moved);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- access ---- */

/* Both devices' access to every chunk of the buffer. */
static void ck_access(gvmm_buffer *buffer, gvmm_access first, gvmm_access second)
{
    for (uint64_t at = address(buffer); at < end(buffer); at += G) {
        ck_assert_uint_eq(access_of(at, 0), first);
        ck_assert_uint_eq(access_of(at, 1), second);
    }
    ck_assert_int_eq(get_access(buffer, 0), first);
    ck_assert_int_eq(get_access(buffer, 1), second);
}

START_TEST(access_is_granted_and_revoked_later_and_follows_the_memory)
{
    if (lacks_second_device("access_is_granted_and_revoked_later_and_follows_the_memory")) return;
    const gvmm_access RW = GVMM_ACCESS_READ_WRITE, R = GVMM_ACCESS_READ, NONE = GVMM_ACCESS_NONE;
    uint64_t decoy;
    gvmm_buffer *a = chunks(2, &decoy), *moved = grow(a, 3 * G), *part = shrink(moved, 2 * G);
    ck_access(a, RW, NONE);
    ck_ok(gvmm_buffer_set_access(a, 1, RW));
    ck_access(a, RW, RW);
    ck_access(part, RW, RW); /* the same memory, at another address */
    ck_assert_uint_eq(access_of(address(moved) + 2 * G, 1), 0);
    ck_assert_int_eq(get_access(moved, 1), NONE); /* the least of all bytes */
    ck_ok(gvmm_buffer_set_access(moved, 1, R));
    ck_access(moved, RW, R);
    ck_access(a, RW, R);
    gvmm_buffer *twice = ring(moved, 2); /* later mappings too */
    ck_access(twice, RW, R);
    ck_ok(gvmm_buffer_evict(moved, NULL));
    ck_assert_int_eq(get_access(moved, 1), R);
    ck_ok(gvmm_buffer_set_access(moved, 1, RW)); /* and while it is evicted */
    ck_ok(gvmm_buffer_restore(moved));
    ck_access(moved, RW, RW);
    ck_access(a, RW, RW);
    ck_access(twice, RW, RW);
    ck_ok(gvmm_buffer_set_access(twice, 1, NONE));
    ck_ok(gvmm_buffer_set_access(twice, 1, NONE));
    ck_access(moved, RW, NONE);
    ck_ok(gvmm_buffer_set_access(a, 0, NONE)); /* the owner's too */
    ck_access(a, NONE, NONE);
    ck_ok(gvmm_buffer_set_access(a, 0, RW));
    ck_access(twice, RW, NONE);
    gvmm_buffer_release(twice);
    gvmm_buffer_release(part);
    gvmm_buffer_release(moved);
    drop(a, decoy);
    ck_no_warnings();
}
END_TEST

/* A change that cannot be put back everywhere leaves the driver with what gvmm does not know; granting again helps. */
START_TEST(access_that_could_not_be_put_back_can_be_set)
{
    gvmm_buffer *a = create(plain, G), *twice;
    ck_ok(gvmm_buffer_ring(&twice, a, 2));
    uint64_t places[] = {address(a), address(twice), address(twice) + G};
    ck_ok(gvmm_faults_set(&(gvmm_fault){2, true, "cuMemSetAccess", 0}));
    ck_fails(gvmm_buffer_set_access(a, 0, GVMM_ACCESS_READ), GVMM_E_NO_DEVICE_MEMORY);
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_int_eq(atomic_load(&warning_count), 1);
    ck_assert_int_eq(get_access(a, 0), GVMM_ACCESS_READ_WRITE);
    ck_ok(gvmm_buffer_set_access(a, 0, GVMM_ACCESS_READ_WRITE));
    for (int i = 0; i < 3; i++) ck_assert_uint_eq(access_of(places[i], 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    gvmm_buffer_release(twice);
    gvmm_buffer_release(a);
}
END_TEST

START_TEST(a_change_that_is_there_already_asks_no_driver)
{
    gvmm_buffer *a = create(plain, G);
    watch();
    ck_ok(gvmm_buffer_set_access(a, 0, GVMM_ACCESS_READ_WRITE));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemSetAccess), 0);
    watch();
    ck_assert_int_eq(get_access(a, 0), GVMM_ACCESS_READ_WRITE);
    ck_calls("");
    gvmm_buffer_release(a);
}
END_TEST

START_TEST(the_cpu_and_host_memory)
{
    gvmm_resource *host = resource_with(on_host());
    gvmm_buffer *buffer = create(host, G), *on_device = create(plain, G);
    volatile char *bytes = (volatile char *)(uintptr_t)address(buffer);
    ck_assert_int_eq(get_access(buffer, -1), GVMM_ACCESS_READ_WRITE);
    ck_assert_int_eq(get_access(buffer, 0), GVMM_ACCESS_NONE);
    bytes[5] = 42;
    ck_ok(gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ_WRITE));
    fill(address(buffer), 9, 5);
    ck_assert_int_eq(bytes[4], 9);
    ck_assert_int_eq(bytes[5], 42);
    ck_ok(gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_NONE));
    ck_cu_fails(cu->cuMemsetD8(address(buffer), 1, 5), CUDA_ERROR_INVALID_VALUE);
    ck_ok(gvmm_buffer_set_access(buffer, -1, GVMM_ACCESS_NONE));
    ck_assert_int_eq(get_access(buffer, -1), GVMM_ACCESS_NONE);
    ck_ok(gvmm_buffer_set_access(buffer, -1, GVMM_ACCESS_READ_WRITE));
    ck_assert_int_eq(bytes[5], 42);

    ck_assert_int_eq(get_access(on_device, -1), GVMM_ACCESS_NONE);
    ck_fails(gvmm_buffer_set_access(on_device, -1, GVMM_ACCESS_READ), GVMM_E_UNSUPPORTED);
    ck_ok(gvmm_buffer_set_access(on_device, -1, GVMM_ACCESS_NONE));
    ck_ok(gvmm_buffer_evict(on_device, NULL)); /* also where no driver would refuse it now */
    ck_fails(gvmm_buffer_set_access(on_device, -1, GVMM_ACCESS_READ), GVMM_E_UNSUPPORTED);
    ck_ok(gvmm_buffer_restore(on_device));
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(on_device);
    gvmm_resource_release(host);
    ck_no_warnings();
}
END_TEST

/* The same memory twice in one buffer: what is put back after a failure is what was there before the first change. */
START_TEST(access_that_fails_is_put_back_where_a_chunk_appears_twice)
{
    if (lacks_second_device("access_that_fails_is_put_back_where_a_chunk_appears_twice")) return;
    gvmm_buffer *a = create(plain, G), *c = create(plain, G);
    gvmm_buffer *k = compose((gvmm_piece[]){{.buffer = c}, {.buffer = a}, {.buffer = a}}, 3);
    for (uint64_t nth = 1; nth <= 5; nth++) { /* a has three places, c two */
        fault_call("cuMemSetAccess", nth, CUDA_ERROR_OUT_OF_MEMORY);
        ck_assert_int_ne(gvmm_buffer_set_access(k, 1, GVMM_ACCESS_READ), GVMM_OK);
        ck_ok(gvmm_faults_set(NULL));
        ck_assert_int_eq(get_access(a, 1), GVMM_ACCESS_NONE);
        ck_assert_int_eq(get_access(c, 1), GVMM_ACCESS_NONE);
        ck_assert_uint_eq(access_of(address(a), 1), GVMM_ACCESS_NONE);
        ck_assert_uint_eq(access_of(address(c), 1), GVMM_ACCESS_NONE);
    }
    ck_fails(gvmm_buffer_set_access(k, -2, GVMM_ACCESS_READ), GVMM_E_INVALID);
    gvmm_buffer_release(k);
    gvmm_buffer_release(a);
    gvmm_buffer_release(c);
}
END_TEST

START_TEST(wrong_arguments_of_access)
{
    gvmm_buffer *a = create(plain, G), *empty = create(plain, 0);
    gvmm_access access = 77;
    ck_fails(gvmm_buffer_set_access(NULL, 0, GVMM_ACCESS_READ), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_set_access(a, 0, 2), GVMM_E_INVALID);
    ck_names("access");
    ck_fails(gvmm_buffer_set_access(a, 99, GVMM_ACCESS_READ), GVMM_E_INVALID);
    ck_names("99");
    ck_fails(gvmm_buffer_get_access(a, 0, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_get_access(NULL, 0, &access), GVMM_E_INVALID);
    ck_ok(gvmm_buffer_set_access(empty, 0, GVMM_ACCESS_READ));
    ck_assert_int_eq(get_access(empty, 0), GVMM_ACCESS_NONE);
    ck_ok(gvmm_buffer_close(a, NULL));
    ck_fails(gvmm_buffer_set_access(a, 0, GVMM_ACCESS_READ), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_get_access(a, 0, &access), GVMM_E_CLOSED);
    ck_assert_int_eq(access, 77);
    gvmm_buffer_release(a);
    gvmm_buffer_release(empty);
}
END_TEST

/* Two places of each of three chunks: the change fails at each of them once. */
START_TEST(access_that_fails_half_way_is_put_back)
{
    if (lacks_second_device("access_that_fails_half_way_is_put_back")) return;
    const gvmm_access RW = GVMM_ACCESS_READ_WRITE, NONE = GVMM_ACCESS_NONE;
    gvmm_resource *resource = with_chunks(G, 0);
    gvmm_buffer *a = create(resource, 3 * G), *twice = ring(a, 2);
    for (uint64_t k = 1; k <= 6; k++) {
        gvmm_error error;
        fault_call("cuMemSetAccess", k, CUDA_ERROR_UNKNOWN);
        ck_fails(gvmm_buffer_set_access(a, 1, RW), GVMM_E_DRIVER);
        ck_ok(gvmm_faults_set(NULL));
        gvmm_last_error(&error);
        ck_assert_str_eq(error.call, "cuMemSetAccess");
        ck_access(twice, RW, NONE);
        ck_access(a, RW, NONE);
    }
    ck_ok(gvmm_buffer_set_access(a, 1, RW));
    for (uint64_t k = 1; k <= 6; k++) {
        fault_call("cuMemSetAccess", k, CUDA_ERROR_UNKNOWN);
        ck_fails(gvmm_buffer_set_access(twice, 1, NONE), GVMM_E_DRIVER);
        ck_ok(gvmm_faults_set(NULL));
        ck_access(twice, RW, RW);
    }
    gvmm_buffer_release(twice);
    gvmm_buffer_release(a);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(a_read_only_view_has_its_own_access)
{
    if (lacks_second_device("a_read_only_view_has_its_own_access")) return;
    const gvmm_access RW = GVMM_ACCESS_READ_WRITE, R = GVMM_ACCESS_READ, NONE = GVMM_ACCESS_NONE;
    gvmm_buffer *a = create(plain, G), *view = compose((gvmm_piece[]){{.buffer = a, .read_only = true}}, 1);
    ck_ok(gvmm_buffer_set_access(view, 1, R));
    ck_access(view, R, R);
    ck_access(a, RW, NONE);
    ck_ok(gvmm_buffer_set_access(a, 1, RW));
    ck_access(view, R, R);
    ck_ok(gvmm_buffer_set_access(view, 0, NONE));
    ck_access(view, NONE, R);
    ck_access(a, RW, RW);
    gvmm_buffer *view_of_view = compose((gvmm_piece[]){{.buffer = view, .read_only = true}}, 1); /* keeps its readers */
    ck_access(view_of_view, NONE, R);
    ck_ok(gvmm_buffer_set_access(view, 1, NONE));
    ck_access(view_of_view, NONE, R);
    ck_ok(gvmm_buffer_evict(a, NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(view_of_view), G);
    ck_ok(gvmm_buffer_restore(view));
    ck_access(a, RW, RW);
    ck_access(view, NONE, NONE);
    ck_access(view_of_view, NONE, R);
    gvmm_buffer_release(a);
    gvmm_buffer_release(view_of_view);
    gvmm_buffer_release(view);
    ck_no_warnings();
}
END_TEST

/* The simulated machine without links between the devices. */
START_TEST(a_device_that_cannot_reach_the_memory_is_refused)
{
    gvmm_resource_release(plain);
    ck_cu(cu->cuStreamDestroy(stream));
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    config.peers = false;
    ck_ok(gvmm_sim_reset(&config));
    CUcontext context;
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 0));
    ck_cu(cu->cuCtxSetCurrent(context));
    ck_cu(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    plain = resource_with(waiting_options());
    gvmm_buffer *a = create(plain, G);
    ck_fails(gvmm_buffer_set_access(a, 1, GVMM_ACCESS_READ), GVMM_E_UNSUPPORTED);
    ck_names("device 1");
    ck_ok(gvmm_buffer_evict(a, NULL));
    ck_fails(gvmm_buffer_set_access(a, 1, GVMM_ACCESS_READ), GVMM_E_UNSUPPORTED);
    ck_ok(gvmm_buffer_restore(a));
    gvmm_buffer_release(a);
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
    gvmm_options one_piece = defaults();
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
    gvmm_options options = defaults();
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
    gvmm_options options = defaults();
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
    options = defaults();
    options.ahead_count = 3;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("chunk_size");
    options.chunk_size = SIZE_MAX;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("chunk_size");
    options = defaults();
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
    gvmm_options now = defaults();
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
    TCase *shrinking = add_watched_case(suite, "shrink");
    tcase_add_test(shrinking, shrink_ends_at_the_next_border);
    tcase_add_test(shrinking, what_nobody_shows_any_more_goes);
    TCase *composing = add_watched_case(suite, "compose");
    tcase_add_test(composing, pieces_are_put_together_without_copies);
    tcase_add_test(composing, pieces_of_several_devices);
    tcase_add_test(composing, nobody_writes_through_a_read_only_piece);
    tcase_add_test(composing, a_piece_that_is_not_of_whole_chunks_is_named);
    tcase_add_test(composing, a_ring_wraps);
    tcase_add_test(composing, composed_buffers_grow_shrink_and_have_the_resources_capacity);
    TCase *access = add_watched_case(suite, "access");
    tcase_add_test(access, access_is_granted_and_revoked_later_and_follows_the_memory);
    tcase_add_test(access, access_that_could_not_be_put_back_can_be_set);
    tcase_add_test(access, a_change_that_is_there_already_asks_no_driver);
    tcase_add_test(access, the_cpu_and_host_memory);
    tcase_add_test(access, wrong_arguments_of_access);
    tcase_add_test(access, access_that_fails_half_way_is_put_back);
    tcase_add_test(access, access_that_fails_is_put_back_where_a_chunk_appears_twice);
    tcase_add_test(access, a_read_only_view_has_its_own_access);
    TCase *chunk_sizes = add_watched_case(suite, "chunks and stripes");
    tcase_add_test(chunk_sizes, chunks_have_the_size_that_was_asked_for);
    tcase_add_test(chunk_sizes, stripes_alternate_and_growth_goes_on_at_the_right_device);
    tcase_add_test(chunk_sizes, options_that_contradict_each_other);
    tcase_add_test(chunk_sizes, options_of_an_older_header);
    TCase *unwatched = add_case(suite, "with a driver table of their own");
    tcase_add_test(unwatched, with_memory_ahead_two_calls_are_left);
    if (!getenv("GVMM_TEST_DRIVER") || strcmp(getenv("GVMM_TEST_DRIVER"), "gpu") != 0) {
        tcase_add_test(unwatched, what_is_left_of_the_address_space_is_taken);
        tcase_add_test(unwatched, a_device_that_cannot_reach_the_memory_is_refused);
    }
    return run_suites(suite, NULL);
}

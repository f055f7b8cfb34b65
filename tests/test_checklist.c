/* What buffers and resources have to do, in numbered points: 1 to 14, 19, 20, 24, 25; 9 is in test_threads.c, 18 in test_errors.c,
 * the rest in test_release.c. 29 (weak references) is Python's. */
#include "support.h"

START_TEST(c01_sizes_are_rounded_up_to_the_granularity)
{
    const size_t asked[] = {1, 4096, G - 1, G, G + 1, 2 * G + 1}, given[] = {G, G, G, G, 2 * G, 3 * G};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        gvmm_buffer *buffer = create(plain, asked[i]);
        ck_assert_uint_eq(gvmm_buffer_size(buffer), given[i]);
        ck_assert_uint_eq(gvmm_buffer_address(buffer) % G, 0);
        ck_filled(gvmm_buffer_address(buffer), 0, given[i]);
        write_pattern(gvmm_buffer_address(buffer), given[i], 1);
        ck_pattern(gvmm_buffer_address(buffer), given[i], 1);
        ck_ok(gvmm_buffer_close(buffer, NULL));
        ck_assert_uint_eq(gvmm_buffer_size(buffer), 0);
        ck_assert_uint_eq(gvmm_buffer_address(buffer), 0);
        ck_assert(gvmm_buffer_is_closed(buffer));
        gvmm_buffer_release(buffer);
    }
    ck_no_warnings();
}
END_TEST

START_TEST(c02_options_reach_the_driver)
{
    gvmm_options options = waiting_options();
    options.handle_type = GVMM_HANDLE_NONE;
    options.granularity = GVMM_GRANULARITY_MINIMUM;
    options.gpu_direct_rdma = true;
    options.addr_align = 64 * MiB;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *buffer = create(resource, G);
    ck_assert_uint_eq(gvmm_buffer_address(buffer) % (64 * MiB), 0);

    CUmemAllocationProp prop = properties_at(gvmm_buffer_address(buffer));
    ck_assert_int_eq(prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    ck_assert_int_eq(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
    ck_assert_int_eq(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    ck_assert_int_eq(prop.location.id, 0);
    ck_assert_int_eq(prop.allocFlags.gpuDirectRDMACapable, 1);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(c03_a_chunk_can_be_read_only)
{
    gvmm_options options = waiting_options();
    options.self_access = GVMM_ACCESS_READ;
    gvmm_buffer *small = create(plain, G), *large;
    ck_ok(gvmm_buffer_grow(&large, small, 2 * G, &options));
    uint64_t address = gvmm_buffer_address(large);
    ck_assert_uint_eq(access_of(address, 0), GVMM_ACCESS_READ_WRITE);
    ck_assert_uint_eq(access_of(address + G, 0), GVMM_ACCESS_READ);
    ck_cu_fails(cu->cuMemsetD8(address + G, 1, G), CUDA_ERROR_INVALID_VALUE);
    ck_filled(address + G, 0, G);

    /* not stored: the next chunk is as the resource says */
    gvmm_buffer *larger = grow(large, 3 * G);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(larger) + G, 0), GVMM_ACCESS_READ);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(larger) + 2 * G, 0), GVMM_ACCESS_READ_WRITE);
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
    gvmm_buffer_release(larger);
}
END_TEST

START_TEST(c04_a_covered_request_gives_a_full_alias)
{
    gvmm_buffer *original = create(plain, G);
    gvmm_buffer *large = grow(original, 2 * G);
    ck_assert_uint_eq(gvmm_buffer_size(large), 2 * G);
    const size_t covered[] = {0, 1, G, 2 * G - 1, 2 * G};
    for (size_t i = 0; i < sizeof covered / sizeof *covered; i++) {
        gvmm_buffer *alias = grow(large, covered[i]);
        ck_assert_ptr_ne(alias, large);
        ck_assert_uint_eq(gvmm_buffer_address(alias), gvmm_buffer_address(large));
        ck_assert_uint_eq(gvmm_buffer_size(alias), 2 * G);
        fill(gvmm_buffer_address(alias), (unsigned char)i, 2 * G);
        gvmm_buffer_release(alias);
        ck_filled(gvmm_buffer_address(large), (unsigned char)i, 2 * G);
    }
    gvmm_buffer_release(large);
    fill(gvmm_buffer_address(original), 9, G);
    gvmm_buffer_release(original);
}
END_TEST

static void grows_in_place(gvmm_resource *resource)
{
    gvmm_stats before, after;
    gvmm_buffer *small = buffer_with_hole_behind(resource, 2 * G, 4 * G);
    write_pattern(gvmm_buffer_address(small), 2 * G, 5);
    gvmm_get_stats(NULL, &before);
    gvmm_buffer *large = grow(small, 6 * G);
    gvmm_get_stats(NULL, &after);

    ck_assert_uint_eq(gvmm_buffer_address(large), gvmm_buffer_address(small));
    ck_assert_uint_eq(after.grows_in_place - before.grows_in_place, 1);
    ck_assert_uint_eq(after.grows_moved, before.grows_moved);
    ck_pattern(gvmm_buffer_address(large), 2 * G, 5);
    write_pattern(gvmm_buffer_address(large), 6 * G, 6);
    ck_pattern(gvmm_buffer_address(small), 2 * G, 6);

    uint64_t address = gvmm_buffer_address(small);
    gvmm_buffer_release(small); /* frees nothing: the memory is large's too */
    ck_pattern(address, 6 * G, 6);
    gvmm_buffer_release(large);
    ck_released(address, 2 * G);
    ck_released(address + 2 * G, 4 * G);
}

START_TEST(c05_growing_in_place_keeps_the_address) { grows_in_place(plain); }
END_TEST

/* The alignment is for new addresses: a chunk that goes in place is not held to it, a move is. */
START_TEST(c05_growing_in_place_with_an_alignment)
{
    gvmm_options options = waiting_options();
    options.addr_align = 64 * MiB;
    gvmm_buffer *small = buffer_with_hole_behind(plain, G, G), *large;
    ck_ok(gvmm_buffer_grow(&large, small, 2 * G, &options));
    ck_assert_uint_eq(gvmm_buffer_address(large), gvmm_buffer_address(small));
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);

    uint64_t decoy;
    small = buffer_with_decoy_behind(plain, G, &decoy);
    ck_ok(gvmm_buffer_grow(&large, small, 2 * G, &options));
    ck_assert_uint_ne(gvmm_buffer_address(large), gvmm_buffer_address(small));
    ck_assert_uint_eq(gvmm_buffer_address(large) % (64 * MiB), 0);
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
    free_decoy(decoy);
}
END_TEST

/* The wished address is for new buffers: a move goes where there is room. */
START_TEST(c05_a_hint_is_no_wish_of_a_move)
{
    uint64_t decoy;
    CUdeviceptr space;
    gvmm_buffer *small = buffer_with_decoy_behind(plain, G, &decoy), *large;
    gvmm_options options = waiting_options();
    ck_cu(cu->cuMemAddressReserve(&space, 128 * MiB, 0, 0, 0));
    ck_cu(cu->cuMemAddressFree(space, 128 * MiB));
    options.addr_hint = space + 64 * MiB; /* whoever wishes for nothing is given its beginning at most */
    ck_ok(gvmm_buffer_grow(&large, small, 2 * G, &options));
    ck_assert_uint_ne(gvmm_buffer_address(large), gvmm_buffer_address(small));
    ck_assert_uint_ne(gvmm_buffer_address(large), options.addr_hint);
    gvmm_resource *there = resource_with(options);
    gvmm_buffer *fresh = create(there, G);
    if (!on_gpu) ck_assert_uint_eq(gvmm_buffer_address(fresh), options.addr_hint); /* where it could have gone */
    gvmm_buffer_release(fresh);
    gvmm_resource_release(there);
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
    free_decoy(decoy);
}
END_TEST

START_TEST(c06_writes_are_seen_both_ways)
{
    gvmm_buffer *small = create(plain, 2 * G);
    write_pattern(gvmm_buffer_address(small), 2 * G, 1);
    gvmm_buffer *large = grow(small, 5 * G);
    ck_pattern(gvmm_buffer_address(large), 2 * G, 1);
    ck_filled(gvmm_buffer_address(large) + 2 * G, 0, 3 * G);
    write_pattern(gvmm_buffer_address(large), 2 * G, 2);
    ck_pattern(gvmm_buffer_address(small), 2 * G, 2);
    write_pattern(gvmm_buffer_address(small), 2 * G, 3);
    ck_pattern(gvmm_buffer_address(large), 2 * G, 3);
    gvmm_buffer_release(large);
    gvmm_buffer_release(small);
}
END_TEST

START_TEST(c07_a_forced_move_leaves_both_addresses_usable)
{
    uint64_t decoy;
    gvmm_stats before, after;
    gvmm_buffer *small = buffer_with_decoy_behind(plain, 2 * G, &decoy);
    uint64_t old = gvmm_buffer_address(small);
    write_pattern(old, 2 * G, 7);
    gvmm_get_stats(NULL, &before);
    gvmm_buffer *large = grow(small, 4 * G);
    gvmm_get_stats(NULL, &after);
    uint64_t moved = gvmm_buffer_address(large);
    ck_assert_uint_ne(moved, old);
    ck_assert_uint_eq(after.grows_moved - before.grows_moved, 1);
    ck_pattern(moved, 2 * G, 7);
    write_pattern(moved, 4 * G, 8);
    ck_pattern(old, 2 * G, 8);

    gvmm_buffer_release(large); /* the result first: the input goes on */
    ck_released(moved, 4 * G);
    ck_pattern(old, 2 * G, 8);
    gvmm_buffer_release(small);
    ck_released(old, 2 * G);
    free_decoy(decoy);
}
END_TEST

/* All orders of closing five views, made by unaligned and repeated grows of different ancestors. */
START_TEST(c08_closes_in_every_order)
{
    enum { N = 5 };
    int order[N];
    for (int code = 0; code < 120; code++) {
        gvmm_buffer *b[N];
        b[0] = create(plain, 1);
        b[1] = grow(b[0], G + 1);
        b[2] = grow(b[1], 3 * G - 1);
        b[3] = grow(b[0], 2 * G + 5); /* a chunk of its own */
        b[4] = grow(b[2], 3 * G);     /* full alias */
        for (int i = 0; i < N; i++) write_pattern(gvmm_buffer_address(b[i]), gvmm_buffer_size(b[i]), 3);
        for (int i = 0, rest = code; i < N; i++) { /* the code-th permutation */
            order[i] = rest % (N - i);
            rest /= N - i;
        }
        for (int i = 0; i < N; i++) {
            int at = order[i], k = 0;
            while (!b[k] || at-- > 0) k++;
            gvmm_buffer_release(b[k]);
            b[k] = NULL;
            for (int j = 0; j < N; j++)
                if (b[j] && code % 8 == 0) ck_pattern(gvmm_buffer_address(b[j]), gvmm_buffer_size(b[j]), 3);
        }
        ck_nothing_left();
    }
    ck_no_warnings();
}
END_TEST

START_TEST(c10_bad_buffers_are_refused)
{
    gvmm_buffer *out = (gvmm_buffer *)1, *closed = create(plain, G), *foreign;
    ck_ok(gvmm_buffer_close(closed, NULL));
    ck_fails(gvmm_buffer_grow(&out, closed, 2 * G, NULL), GVMM_E_CLOSED);
    ck_names("buffer has been closed");
    ck_ok(gvmm_buffer_close(closed, NULL)); /* no effect */
    gvmm_buffer_release(closed);

    uint64_t base = map_by_hand(G);
    ck_ok(gvmm_buffer_wrap(&foreign, plain, base, G, NULL, NULL, NULL));
    ck_fails(gvmm_buffer_grow(&out, foreign, 2 * G, NULL), GVMM_E_INVALID);
    ck_names("wrapped");
    ck_mapped(base);
    gvmm_buffer_release(foreign);
    ck_released(base, G);

    ck_fails(gvmm_buffer_grow(&out, NULL, G, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_grow(NULL, foreign, G, NULL), GVMM_E_INVALID);
    ck_assert_ptr_eq(out, (gvmm_buffer *)1);
    ck_no_warnings();
}
END_TEST

START_TEST(c11_a_chunk_of_another_location_is_refused)
{
    gvmm_options options = on_host();
    gvmm_buffer *buffer = create(plain, G), *out = NULL;
    write_pattern(gvmm_buffer_address(buffer), G, 1);
    ck_fails(gvmm_buffer_grow(&out, buffer, 2 * G, &options), GVMM_E_INVALID);
    ck_names("location");
    options.handle_type = GVMM_HANDLE_POSIX_FD;
    ck_fails(gvmm_buffer_grow(&out, buffer, 2 * G, &options), GVMM_E_INVALID);
    ck_names("handle_type=None");
    ck_assert_ptr_null(out);
    ck_pattern(gvmm_buffer_address(buffer), G, 1);
    gvmm_buffer_release(buffer);
}
END_TEST

/* The device answers that it lacks RDMA: attribute 110, asked once per creation. */
START_TEST(c11_rdma_unsupported_is_refused)
{
    gvmm_options options = waiting_options();
    options.gpu_direct_rdma = true;
    gvmm_buffer *buffer = create(plain, G), *out = NULL;
    gvmm_resource *resource = NULL;
    /* an unknown attribute is a missing capability; the third question is the one about RDMA */
    fault_call("cuDeviceGetAttribute", 3, CUDA_ERROR_INVALID_VALUE);
    ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_UNSUPPORTED);
    ck_names("GPU Direct RDMA is not supported on this device");
    fault_call("cuDeviceGetAttribute", 3, CUDA_ERROR_INVALID_VALUE);
    ck_fails(gvmm_buffer_grow(&out, buffer, 2 * G, &options), GVMM_E_UNSUPPORTED);
    ck_names("GPU Direct RDMA is not supported on this device");
    ck_assert(!resource && !out);
    ck_assert_uint_eq(gvmm_buffer_size(buffer), G);
    gvmm_buffer_release(buffer);
}
END_TEST

START_TEST(c12_host_options)
{
    gvmm_options options = waiting_options();
    gvmm_resource *resource = NULL;
    options.location = GVMM_LOCATION_HOST;
    ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_INVALID); /* the default handle type is posix_fd */
    ck_names("handle_type=None");
    ck_assert_ptr_null(resource);

    resource = resource_with(on_host());
    ck_assert_int_eq(gvmm_resource_device(resource), -1);
    ck_assert(gvmm_resource_is_host_accessible(resource));
    ck_assert(!gvmm_resource_is_device_accessible(resource));
    gvmm_buffer *buffer = create(resource, G);
    ck_assert_ptr_null(gvmm_buffer_stream(buffer));
    ck_fails(gvmm_buffer_grow(&buffer, buffer, 2 * G, &(gvmm_options)GVMM_OPTIONS_INIT), GVMM_E_INVALID);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);

    int peer = 0;
    options = on_host();
    options.peers = &peer;
    options.peer_count = 1;
    resource = resource_with(options);
    ck_assert(gvmm_resource_is_device_accessible(resource));
    buffer = create(resource, G);
    *(volatile char *)gvmm_buffer_address(buffer) = 42; /* the CPU and the device see the same byte */
    char byte;
    ck_cu(cu->cuMemcpyDtoH(&byte, gvmm_buffer_address(buffer), 1));
    ck_assert_int_eq(byte, 42);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(c12_numa_memory)
{
    gvmm_options options = waiting_options();
    options.location = GVMM_LOCATION_HOST_NUMA_CURRENT;
    gvmm_resource *resource = resource_with(options), *out = NULL;
    gvmm_options resolved;
    gvmm_resource_options(resource, &resolved);
    ck_assert_int_eq(resolved.location, GVMM_LOCATION_HOST_NUMA);
    ck_assert_int_ge(resolved.numa_node, 0);
    gvmm_buffer *buffer = create(resource, G);
    volatile char *bytes = (volatile char *)(uintptr_t)gvmm_buffer_address(buffer);
    bytes[0] = bytes[G - 1] = 7;
    ck_assert_int_eq(bytes[G - 1], 7);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);

    options.location = GVMM_LOCATION_HOST_NUMA;
    options.numa_node = -1;
    ck_fails(gvmm_resource_create(&out, 0, &options), GVMM_E_INVALID);
    ck_names("numa_node");
    options.numa_node = 63; /* only the driver knows the nodes */
    resource = resource_with(options);
    buffer = NULL;
    ck_fails(gvmm_buffer_create(&buffer, resource, G, NULL), GVMM_E_INVALID);
    ck_names("numa_node 63");
    ck_assert_ptr_null(buffer);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(c14_no_access_at_all)
{
    gvmm_options options = waiting_options();
    options.self_access = GVMM_ACCESS_NONE;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *small = create(resource, G); /* an empty list of readers: no access call is made */
    ck_assert_uint_eq(access_of(gvmm_buffer_address(small), 0), GVMM_ACCESS_NONE);
    ck_cu_fails(cu->cuMemsetD8(gvmm_buffer_address(small), 1, G), CUDA_ERROR_INVALID_VALUE);
    gvmm_buffer *large = grow(small, 2 * G);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(large) + G, 0), GVMM_ACCESS_NONE);
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(c19_an_impossible_grow_changes_nothing)
{
    gvmm_buffer *buffer = create(plain, G), *out = NULL;
    uint64_t address = gvmm_buffer_address(buffer);
    write_pattern(address, G, 4);
    gvmm_result r = gvmm_buffer_grow(&out, buffer, (size_t)1 << 62, NULL);
    ck_assert_msg(r == GVMM_E_NO_DEVICE_MEMORY || r == GVMM_E_NO_ADDRESS_SPACE, "%s", gvmm_result_name(r));
    ck_assert_ptr_null(out);
    ck_assert_uint_eq(gvmm_buffer_address(buffer), address);
    ck_assert_uint_eq(gvmm_buffer_size(buffer), G);
    ck_assert_uint_eq(access_of(address, 0), GVMM_ACCESS_READ_WRITE);
    ck_pattern(address, G, 4);
    ck_no_warnings();
    gvmm_buffer_release(buffer);
    ck_released(address, G);
}
END_TEST

START_TEST(c20_sizes_that_overflow)
{
    gvmm_buffer *buffer = create(plain, G), *out = NULL;
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - G + 2};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ck_fails(gvmm_buffer_create(&out, plain, sizes[i], NULL), GVMM_E_INVALID);
        ck_names("size");
        ck_fails(gvmm_buffer_grow(&out, buffer, sizes[i], NULL), GVMM_E_INVALID);
        ck_names("size");
    }
    ck_assert_ptr_null(out);
    gvmm_buffer_release(buffer);
}
END_TEST

START_TEST(c24_nothing_is_left_at_any_address)
{
    uint64_t decoy;
    gvmm_buffer *first = buffer_with_hole_behind(plain, G, G);
    gvmm_buffer *second = grow(first, 2 * G);
    uint64_t a = gvmm_buffer_address(second);
    gvmm_buffer *stuck = buffer_with_decoy_behind(plain, G, &decoy);
    gvmm_buffer *moved = grow(stuck, 3 * G);
    uint64_t b = gvmm_buffer_address(stuck), c = gvmm_buffer_address(moved);
    gvmm_buffer_release(first);
    gvmm_buffer_release(second);
    ck_released(a, G);
    ck_released(a + G, G);
    gvmm_buffer_release(stuck);
    ck_released(b, G);
    gvmm_buffer_release(moved);
    ck_released(c, 3 * G);
    free_decoy(decoy);
}
END_TEST

START_TEST(c25_host_memory_needs_no_context)
{
    ck_cu(cu->cuCtxSetCurrent(NULL));
    gvmm_resource *resource = resource_with(on_host());
    gvmm_buffer *first = create(resource, G), *second = grow(first, 2 * G), *third = grow(second, 5 * G);
    memset((void *)(uintptr_t)gvmm_buffer_address(third), 3, 5 * G);
    ck_assert_int_eq(*(char *)(uintptr_t)gvmm_buffer_address(first), 3);
    ck_ok(gvmm_buffer_close(first, NULL));
    ck_ok(gvmm_buffer_close(second, GVMM_STREAM_LEGACY)); /* records no default stream, waits for none */
    ck_ok(gvmm_buffer_close(third, NULL));
    CUcontext current = (CUcontext)1;
    ck_cu(cu->cuCtxGetCurrent(&current));
    ck_assert_ptr_null(current);
    gvmm_buffer_release(first);
    gvmm_buffer_release(second);
    gvmm_buffer_release(third);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* Every call works without a current context, and leaves the current one as it was. */
START_TEST(c25_device_memory_needs_no_context_either)
{
    CUcontext mine, now;
    ck_cu(cu->cuCtxGetCurrent(&mine));
    ck_cu(cu->cuCtxSetCurrent(NULL));
    gvmm_resource *resource = resource_with(waiting_options());
    gvmm_buffer *first = create(resource, G), *second = grow(first, 2 * G), *third;
    ck_ok(gvmm_buffer_create(&third, resource, G, stream));
    ck_ok(gvmm_buffer_close(first, NULL));
    ck_ok(gvmm_buffer_close(second, stream));
    ck_ok(gvmm_buffer_close(third, NULL));
    ck_cu(cu->cuCtxGetCurrent(&now));
    ck_assert_ptr_null(now);
    gvmm_buffer_release(first);
    gvmm_buffer_release(second);
    gvmm_buffer_release(third);
    gvmm_resource_release(resource);
    ck_cu(cu->cuCtxSetCurrent(mine));
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checklist");
    TCase *sizes = add_case(suite, "sizes and options");
    tcase_add_test(sizes, c01_sizes_are_rounded_up_to_the_granularity);
    tcase_add_test(sizes, c02_options_reach_the_driver);
    tcase_add_test(sizes, c03_a_chunk_can_be_read_only);
    tcase_add_test(sizes, c14_no_access_at_all);
    tcase_add_test(sizes, c19_an_impossible_grow_changes_nothing);
    tcase_add_test(sizes, c20_sizes_that_overflow);
    TCase *growing = add_case(suite, "growing");
    tcase_add_test(growing, c04_a_covered_request_gives_a_full_alias);
    tcase_add_test(growing, c05_growing_in_place_keeps_the_address);
    tcase_add_test(growing, c05_growing_in_place_with_an_alignment);
    tcase_add_test(growing, c05_a_hint_is_no_wish_of_a_move);
    tcase_add_test(growing, c06_writes_are_seen_both_ways);
    tcase_add_test(growing, c07_a_forced_move_leaves_both_addresses_usable);
    tcase_add_test(growing, c08_closes_in_every_order);
    tcase_add_test(growing, c24_nothing_is_left_at_any_address);
    TCase *refusals = add_case(suite, "refusals");
    tcase_add_test(refusals, c10_bad_buffers_are_refused);
    tcase_add_test(refusals, c11_a_chunk_of_another_location_is_refused);
    tcase_add_test(refusals, c11_rdma_unsupported_is_refused);
    TCase *host = add_case(suite, "host memory");
    tcase_add_test(host, c12_host_options);
    tcase_add_test(host, c12_numa_memory);
    tcase_add_test(host, c25_host_memory_needs_no_context);
    tcase_add_test(host, c25_device_memory_needs_no_context_either);
    return run_suites(suite, NULL);
}

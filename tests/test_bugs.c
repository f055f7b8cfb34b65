/* Bugs of cuda.core that gvmm is not to have, by their numbers in NVIDIA/cuda-python. Each test fails on an
 * implementation that has the bug; the comment says what the faulty version did. */
#include "watch.h"

#include <pthread.h>

static size_t free_memory(void)
{
    size_t available, total;
    ck_cu(cu->cuMemGetInfo(&available, &total));
    return available;
}

/* #2344: the reference that creating the memory gives was never released. Sixty-four buffers of 64 MiB came and went,
 * and 4096 MiB stayed. */
START_TEST(n2344_every_chunk_goes_back)
{
    enum { N = 64 };
    const size_t size = 64 * MiB;
    gvmm_buffer *buffers[N];
    uint64_t addresses[N];
    gvmm_stats before, now;
    size_t available = free_memory();
    gvmm_get_stats(NULL, &before);
    for (int i = 0; i < N; i++) buffers[i] = create(plain, size);
    gvmm_get_stats(NULL, &now);
    ck_assert_uint_eq(now.physical_bytes - before.physical_bytes, N * size);
    ck_assert_uint_eq(now.memories - before.memories, N);
    if (!on_gpu) ck_assert_uint_eq(available - free_memory(), N * size);

    for (int i = 0; i < N; i++) {
        addresses[i] = gvmm_buffer_address(buffers[i]);
        ck_ok(gvmm_buffer_close(buffers[i], NULL));
    }
    for (int i = 0; i < N; i++) ck_released(addresses[i], size);
    ck_nothing_left();
    if (!on_gpu) ck_assert_uint_eq(free_memory(), available); /* on a GPU other processes move it */
    for (int i = 0; i < N; i++) gvmm_buffer_release(buffers[i]);
    ck_no_warnings();
}
END_TEST

/* #2882: the same, met as an error: 1000 times 256 MiB, each closed before the next, ran out of memory (128 GiB here,
 * 139 on an H200). */
START_TEST(n2882_a_loop_does_not_run_out_of_memory)
{
    for (int i = 0; i < 1000; i++) {
        gvmm_buffer *buffer;
        ck_ok(gvmm_buffer_create(&buffer, plain, 256 * MiB, stream));
        gvmm_buffer_release(buffer);
    }
    ck_nothing_left();
    ck_no_warnings();
}
END_TEST

/* #2887: the whole of a buffer grown in place was given back in one call, which the driver refuses for two reservations
 * side by side: the added chunk was never freed. */
START_TEST(n2887_a_chunk_added_in_place_goes_back)
{
    for (int input_first = 0; input_first < 2; input_first++) {
        gvmm_buffer *small = buffer_with_hole_behind(plain, 2 * G, 3 * G), *large = grow(small, 5 * G);
        uint64_t address = gvmm_buffer_address(small);
        ck_assert_uint_eq(gvmm_buffer_address(large), address);
        gvmm_buffer_release(input_first ? small : large);
        if (input_first) {
            ck_mapped(address);
            ck_mapped(address + 2 * G);
        } else {
            ck_mapped(address);
            ck_released(address + 2 * G, 3 * G);
        }
        gvmm_buffer_release(input_first ? large : small);
        ck_released(address, 2 * G);
        ck_released(address + 2 * G, 3 * G);
        ck_nothing_left();
    }
    ck_no_warnings();
}
END_TEST

/* #2907: a grown buffer recorded the size that was asked for, not the rounded one; unmapping that many bytes was
 * refused, and all of it leaked. */
START_TEST(n2907_a_grown_buffer_knows_its_whole_size)
{
    const size_t sizes[] = {G + 1, 3 * G - 1, 3 * G + 4096, 6 * G - 7, 6 * G + 1}, rounded[] = {2, 3, 4, 6, 7};
    for (int in_place = 0; in_place < 2; in_place++) {
        gvmm_buffer *buffer = in_place ? buffer_with_hole_behind(plain, G, 8 * G) : create(plain, 1);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint64_t decoy = in_place ? 0 : block_behind(buffer);
            gvmm_buffer *larger = grow(buffer, sizes[i]);
            ck_assert_uint_eq(gvmm_buffer_size(larger), rounded[i] * G);
            gvmm_buffer_release(buffer);
            if (decoy) free_decoy(decoy);
            buffer = larger;
        }
        uint64_t address = gvmm_buffer_address(buffer);
        fill(address, 1, 7 * G);
        gvmm_buffer_release(buffer);
        for (int i = 0; i < 7; i++) ck_released(address + i * G, G);
        ck_nothing_left();
    }
    ck_no_warnings();
}
END_TEST

/* #2908: a move mapped only the first chunk of what it moved, with the size of the whole: the second move was
 * refused. */
START_TEST(n2908_three_moves_carry_every_chunk)
{
    enum { N = 4 };
    const size_t chunk[N] = {2 * G, G, 3 * G, 2 * G};
    gvmm_buffer *buffers[N];
    uint64_t decoys[N] = {0};
    gvmm_stats before, after;
    size_t total = chunk[0];
    gvmm_get_stats(NULL, &before);
    buffers[0] = create(plain, chunk[0]);
    write_pattern(gvmm_buffer_address(buffers[0]), chunk[0], 0);
    for (int i = 1; i < N; i++) {
        decoys[i] = block_behind(buffers[i - 1]);
        buffers[i] = grow(buffers[i - 1], total + chunk[i]);
        ck_assert_uint_ne(gvmm_buffer_address(buffers[i]), gvmm_buffer_address(buffers[i - 1]));
        write_pattern(gvmm_buffer_address(buffers[i]) + total, chunk[i], (unsigned)i);
        total += chunk[i];
    }
    gvmm_get_stats(NULL, &after);
    ck_assert_uint_eq(after.grows_moved - before.grows_moved, N - 1);
    for (int i = 0; i < N; i++) { /* every buffer shows every chunk that it has */
        size_t at = 0;
        for (int j = 0; j <= i; at += chunk[j++])
            ck_pattern(gvmm_buffer_address(buffers[i]) + at, chunk[j], (unsigned)j);
    }
    const int order[N] = {1, 3, 0, 2};
    for (int i = 0; i < N; i++) gvmm_buffer_release(buffers[order[i]]);
    for (int i = 1; i < N; i++)
        if (decoys[i]) free_decoy(decoys[i]);
    ck_no_warnings();
}
END_TEST

/* #2909: the options of one grow replaced the resource's, for all buffers to come. */
START_TEST(n2909_options_of_a_grow_are_not_stored)
{
    gvmm_options chunk = waiting_options(), before, after;
    chunk.self_access = GVMM_ACCESS_READ;
    chunk.handle_type = GVMM_HANDLE_NONE;
    gvmm_resource_options(plain, &before);
    gvmm_buffer *small = create(plain, G), *large, *larger, *fresh;
    ck_ok(gvmm_buffer_grow(&large, small, 2 * G, &chunk));
    uint64_t address = gvmm_buffer_address(large);
    ck_assert_uint_eq(access_of(address + G, 0), GVMM_ACCESS_READ);
    ck_assert_int_eq(properties_at(address).requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ck_assert_int_eq(properties_at(address + G).requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);

    gvmm_resource_options(plain, &after);
    ck_assert_int_eq(after.self_access, before.self_access);
    ck_assert_int_eq(after.handle_type, before.handle_type);
    larger = grow(large, 3 * G);
    fresh = create(plain, G);
    const uint64_t made_later[] = {gvmm_buffer_address(larger) + 2 * G, gvmm_buffer_address(fresh)};
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(access_of(made_later[i], 0), GVMM_ACCESS_READ_WRITE);
        ck_assert_int_eq(properties_at(made_later[i]).requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    }
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
    gvmm_buffer_release(larger);
    gvmm_buffer_release(fresh);
}
END_TEST

/* #2909: nor were they checked. */
START_TEST(n2909_options_of_a_grow_are_checked)
{
    static const int nobody[] = {99};
    const gvmm_options good = waiting_options();
    gvmm_options bad[6] = {good, good, good, good, good, good};
    bad[0].location = GVMM_LOCATION_HOST_NUMA;
    bad[1].handle_type = (gvmm_handle_type)5;
    bad[2].addr_align = 3 * G;
    bad[3].self_access = (gvmm_access)2;
    bad[4].peers = nobody;
    bad[4].peer_count = 1;
    bad[5].struct_size = 1;
    const char *names[] = {"location", "handle_type", "addr_align", "self_access", "device 99", "struct_size"};
    gvmm_buffer *buffer = create(plain, G), *out = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t sizes[] = {2 * G, 0}; /* also where the options would have no effect */
        for (int j = 0; j < 2; j++) {
            ck_fails(gvmm_buffer_grow(&out, buffer, sizes[j], &bad[i]), GVMM_E_INVALID);
            ck_names(names[i]);
            ck_assert_ptr_null(out);
        }
    }
    ck_assert_uint_eq(gvmm_buffer_size(buffer), G);
    gvmm_buffer_release(buffer);
}
END_TEST

/* #2886: closing unmapped at once, while kernels that used the memory ran. */
START_TEST(n2886_nothing_is_unmapped_while_work_runs)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, 2 * G, stream));
    ck_waits_for(stream, buffer, close_it);
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_buffer_create(&buffer, plain, 2 * G, stream));
    ck_waits_for(stream, buffer, release_it);
    buffer = create(plain, 2 * G);
    ck_waits_for(CU_STREAM_LEGACY, buffer, close_it);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* #2345: when the probe for the space behind a buffer failed, the address that it had not got was freed, and the status
 * of that hid the real error. */
START_TEST(n2345_a_failed_probe_frees_nothing)
{
    gvmm_buffer *small = buffer_with_hole_behind(plain, G, G);
    fault_call("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
    watch();
    gvmm_buffer *large = grow(small, 2 * G); /* falls back to a move */
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemAddressFree), 0);
    ck_assert_uint_ne(gvmm_buffer_address(large), gvmm_buffer_address(small));

    gvmm_buffer *out = NULL;
    gvmm_error error;
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY}));
    watch();
    ck_fails(gvmm_buffer_grow(&out, small, 2 * G, NULL), GVMM_E_NO_ADDRESS_SPACE);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemAddressReserve");
    ck_assert_int_eq(error.status, CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemAddressFree), 0);
    ck_assert_ptr_null(out);
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
    ck_no_warnings();
}
END_TEST

/* #2345: an address that the probe got elsewhere is owned, and freed, once; the failure of what follows is the one that
 * is told. */
START_TEST(n2345_a_probe_granted_elsewhere_is_freed_once)
{
    uint64_t decoy;
    gvmm_error error;
    gvmm_buffer *small = buffer_with_decoy_behind(plain, G, &decoy), *out = NULL;
    watch();
    gvmm_buffer *large = grow(small, 2 * G);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemAddressReserve), 2);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemAddressFree), 1);

    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_buffer_grow(&out, small, 2 * G, NULL), GVMM_E_NO_DEVICE_MEMORY);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemCreate");
    ck_assert_int_eq(error.status, CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(gvmm_faults_set(
        &(gvmm_fault){1, true, "cuMemAddressFree", CUDA_ERROR_INVALID_VALUE})); /* harmless: a warning */
    gvmm_buffer *third = grow(small, 2 * G);
    ck_ok(gvmm_faults_set(NULL));
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
    gvmm_buffer_release(third);
    free_decoy(decoy);
}
END_TEST

/* #2345: neither in place nor elsewhere, for different reasons: the first is the one to tell. */
START_TEST(n2345_the_first_failure_is_told)
{
    size_t available, total;
    gvmm_error error;
    ck_cu(cu->cuMemGetInfo(&available, &total));
    const size_t much = (2 * total + G) / G * G;
    const size_t had = 16 * G; /* not so small that a GPU would put it elsewhere than the hole */
    gvmm_buffer *small = buffer_with_hole_behind(plain, had, much), *out = NULL;
    fault_call("cuMemAddressReserve", 2, CUDA_ERROR_OUT_OF_MEMORY); /* the first is the probe's, which gets its place */
    ck_fails(gvmm_buffer_grow(&out, small, had + much, NULL), GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemCreate");
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_ptr_null(out);
    gvmm_buffer_release(small);
    ck_no_warnings();
}
END_TEST

/* #2877: after a move the old range was freed by the move and again by the close of its buffer. */
START_TEST(n2877_the_old_range_is_freed_once)
{
    for (int input_first = 0; input_first < 2; input_first++) {
        uint64_t decoy;
        gvmm_buffer *small = buffer_with_decoy_behind(plain, G, &decoy);
        uint64_t old = gvmm_buffer_address(small);
        watch();
        gvmm_buffer *large = grow(small, 3 * G);
        ck_assert_uint_eq(calls_at(GVMM_CALL_cuMemUnmap, old, G), 0);
        ck_assert_uint_eq(calls_at(GVMM_CALL_cuMemAddressFree, old, G), 0);
        ck_mapped(old);
        gvmm_buffer_release(input_first ? small : large);
        gvmm_buffer_release(input_first ? large : small);
        ck_assert_uint_eq(calls_at(GVMM_CALL_cuMemUnmap, old, G), 1);
        ck_assert_uint_eq(calls_at(GVMM_CALL_cuMemAddressFree, old, G), 1);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemRelease), 2);
        ck_released(old, G);
        free_decoy(decoy);
    }
    ck_no_warnings();
}
END_TEST

/* #2388: a grow that failed had taken the old mapping away first, and put it back without its access; finalizers
 * warned. */
START_TEST(n2388_a_failed_grow_leaves_mapping_and_access)
{
    const char *calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    for (int in_place = 0; in_place < 2; in_place++) {
        uint64_t decoy = 0;
        gvmm_buffer *first = in_place ? buffer_with_hole_behind(plain, G, 4 * G) : create(plain, G);
        gvmm_buffer *buffer = grow(first, 2 * G), *out = NULL;
        uint64_t address = gvmm_buffer_address(buffer);
        if (!in_place) decoy = block_behind(buffer);
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            write_pattern(address, 2 * G, (unsigned)i);
            ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, calls[i], CUDA_ERROR_UNKNOWN}));
            watch();
            ck_fails(gvmm_buffer_grow(&out, buffer, 3 * G, NULL), GVMM_E_DRIVER);
            ck_ok(gvmm_faults_set(NULL));
            ck_assert_uint_eq(calls_at(GVMM_CALL_cuMemUnmap, address, 2 * G), 0);
            ck_assert_uint_eq(calls_at(GVMM_CALL_cuMemSetAccess, address, 2 * G), 0);
            for (int chunk = 0; chunk < 2; chunk++)
                ck_assert_uint_eq(access_of(address + chunk * G, 0), GVMM_ACCESS_READ_WRITE);
            ck_pattern(address, 2 * G, (unsigned)i);
            fill(address, 3, 2 * G);
        }
        gvmm_buffer_release(first);
        gvmm_buffer_release(buffer);
        if (decoy) free_decoy(decoy);
    }
    ck_no_warnings();
}
END_TEST

/* #2388: growing in place was never reached; every grow moved. */
START_TEST(n2388_in_place_really_happens)
{
    gvmm_stats before, after;
    gvmm_buffer *small = buffer_with_hole_behind(plain, G, 3 * G);
    gvmm_get_stats(NULL, &before);
    gvmm_buffer *large = grow(small, 2 * G), *larger = grow(large, 4 * G);
    gvmm_get_stats(NULL, &after);
    ck_assert_uint_eq(gvmm_buffer_address(large), gvmm_buffer_address(small));
    ck_assert_uint_eq(gvmm_buffer_address(larger), gvmm_buffer_address(small));
    ck_assert_uint_eq(after.grows_in_place - before.grows_in_place, 2);
    ck_assert_uint_eq(after.grows_moved, before.grows_moved);
    ck_assert_uint_eq(after.mapped_bytes - before.mapped_bytes, 3 * G); /* nothing is mapped a second time */
    gvmm_buffer_release(large);
    gvmm_buffer_release(larger);
    gvmm_buffer_release(small);
    ck_no_warnings();
}
END_TEST

/* #2910: an alignment above the granularity was handed to the probe, whose answer then counted as an error. */
START_TEST(n2910_an_alignment_does_not_prevent_growing_in_place)
{
    gvmm_options options = waiting_options();
    options.addr_align = 64 * MiB;
    CUdeviceptr hole;
    ck_cu(cu->cuMemAddressReserve(&hole, 4 * G, options.addr_align, 0, 0));
    ck_cu(cu->cuMemAddressFree(hole, 4 * G));
    options.addr_hint = hole;
    gvmm_resource *aligned = resource_with(options);
    gvmm_buffer *small = create(aligned, G), *large = grow(small, 2 * G), *larger = grow(large, 3 * G);
    ck_assert_uint_eq(gvmm_buffer_address(small) % options.addr_align, 0);
    ck_assert_uint_eq(gvmm_buffer_address(large), gvmm_buffer_address(small));
    ck_assert_uint_eq(gvmm_buffer_address(larger), gvmm_buffer_address(small));
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);

    uint64_t decoy = block_behind(larger); /* and a move keeps the alignment */
    gvmm_buffer *moved = grow(larger, 4 * G);
    ck_assert_uint_ne(gvmm_buffer_address(moved), gvmm_buffer_address(larger));
    ck_assert_uint_eq(gvmm_buffer_address(moved) % options.addr_align, 0);
    gvmm_buffer_release(larger);
    gvmm_buffer_release(moved);
    gvmm_resource_release(aligned);
    if (decoy) free_decoy(decoy);
    ck_no_warnings();
}
END_TEST

/* #2910: asking for less than the buffer has changed the access of all of it to the options given. */
START_TEST(n2910_a_smaller_request_leaves_access_alone)
{
    gvmm_options chunk = waiting_options();
    chunk.self_access = GVMM_ACCESS_READ;
    gvmm_buffer *buffer = create(plain, 2 * G), *alias;
    uint64_t address = gvmm_buffer_address(buffer);
    const size_t sizes[] = {0, 1, G, 2 * G};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ck_ok(gvmm_buffer_grow(&alias, buffer, sizes[i], &chunk));
        ck_assert_uint_eq(gvmm_buffer_size(alias), 2 * G);
        ck_assert_uint_eq(access_of(address, 0), GVMM_ACCESS_READ_WRITE);
        ck_assert_uint_eq(access_of(address + G, 0), GVMM_ACCESS_READ_WRITE);
        gvmm_buffer_release(alias);
        fill(address, (unsigned char)i, 2 * G);
    }
    gvmm_buffer_release(buffer);
}
END_TEST

/* #2910: a size of 0 was handed to the driver, which refuses it. */
START_TEST(n2910_a_size_of_zero_works)
{
    gvmm_buffer *empty = create(plain, 0), *alias = grow(empty, 0), *grown = grow(alias, 1);
    ck_assert_uint_eq(gvmm_buffer_size(empty), 0);
    ck_assert_uint_eq(gvmm_buffer_address(empty), 0);
    ck_assert(!gvmm_buffer_is_closed(empty));
    ck_assert_uint_eq(gvmm_buffer_size(alias), 0);
    ck_assert_uint_eq(gvmm_buffer_size(grown), G);
    fill(gvmm_buffer_address(grown), 1, G);
    ck_ok(gvmm_buffer_close(empty, NULL));
    ck_assert(gvmm_buffer_is_closed(empty));
    gvmm_buffer_release(empty);
    gvmm_buffer_release(alias);
    gvmm_buffer_release(grown);
    ck_no_warnings();
}
END_TEST

/* #2910: users' mistakes ended in assertions. */
START_TEST(n2910_mistakes_are_errors)
{
    gvmm_buffer *buffer = create(plain, G), *out = NULL;
    gvmm_resource *resource = NULL;
    gvmm_segment segment;
    size_t count = 77;
    ck_fails(gvmm_resource_create(NULL, 0, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_resource_create(&resource, -1, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_resource_create(&resource, 99, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_create(NULL, plain, G, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_create(&out, NULL, G, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_create(&out, plain, SIZE_MAX, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_grow(&out, NULL, G, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_grow(&out, buffer, SIZE_MAX, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_set_stream(buffer, NULL), GVMM_E_INVALID);
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_fails(gvmm_buffer_grow(&out, buffer, G, NULL), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_set_stream(buffer, stream), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_segments(buffer, &segment, 1, &count), GVMM_E_CLOSED);
    ck_assert_uint_eq(count, 77);
    ck_assert_uint_eq(gvmm_buffer_address(NULL) + gvmm_buffer_size(NULL), 0);
    ck_assert(gvmm_buffer_is_closed(NULL));
    gvmm_buffer_release(NULL);
    gvmm_resource_release(NULL);
    ck_assert(!out && !resource);
    gvmm_buffer_release(buffer);
}
END_TEST

/* #2910: host memory took the default handle type, which the driver answered with a bare INVALID_VALUE at the first
 * allocation; NUMA memory was asked for on node -1. */
START_TEST(n2910_host_options_are_checked_when_given)
{
    gvmm_options options = waiting_options();
    gvmm_resource *resource = NULL;
    options.location = GVMM_LOCATION_HOST;
    ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_INVALID);
    ck_names("handle_type=None");
    options.location = GVMM_LOCATION_HOST_NUMA;
    options.numa_node = -1;
    ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_INVALID);
    ck_names("numa_node");
    ck_assert_ptr_null(resource);

    const gvmm_location_type locations[] = {GVMM_LOCATION_HOST_NUMA, GVMM_LOCATION_HOST_NUMA_CURRENT};
    for (int i = 0; i < 2; i++) { /* and these may be exportable */
        options = waiting_options();
        options.location = locations[i];
        resource = resource_with(options);
        gvmm_resource_options(resource, &options);
        gvmm_buffer *buffer = create(resource, G);
        CUmemAllocationProp prop = properties_at(gvmm_buffer_address(buffer));
        ck_assert_int_eq(prop.location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
        ck_assert_int_ge(prop.location.id, 0);
        ck_assert_int_eq(prop.location.id, options.numa_node);
        gvmm_buffer_release(buffer);
        gvmm_resource_release(resource);
    }
}
END_TEST

/* #2889, in review: a host buffer recorded the default stream; waiting for that failed where no context was current,
 * and the memory stayed. */
START_TEST(n2889_host_memory_goes_back_without_a_context)
{
    ck_cu(cu->cuCtxSetCurrent(NULL));
    gvmm_resource *host = resource_with(on_host());
    const gvmm_stream given[] = {NULL, GVMM_STREAM_LEGACY};
    for (int i = 0; i < 2; i++) {
        gvmm_buffer *small, *large;
        ck_ok(gvmm_buffer_create(&small, host, G, given[i]));
        ck_assert_ptr_null(gvmm_buffer_stream(small));
        large = grow(small, 2 * G);
        uint64_t a = gvmm_buffer_address(small), b = gvmm_buffer_address(large);
        watch();
        gvmm_buffer_release(small);
        ck_ok(gvmm_buffer_close(large, given[i]));
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamSynchronize), 0);
        ck_released(a, G);
        ck_released(b, G);
        ck_released(b + G, G);
        gvmm_buffer_release(large);
    }
    gvmm_resource_release(host);
    ck_nothing_left();
    ck_no_warnings();
}
END_TEST

/* #2889, the same kind with a real stream: where no context is current it can still be asked and waited for. */
START_TEST(n2889_a_close_without_a_context_asks_and_waits)
{
    CUgraph graph;
    CUcontext mine;
    gvmm_buffer *buffer;
    ck_cu(cu->cuCtxGetCurrent(&mine));
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ck_cu(cu->cuCtxSetCurrent(NULL));
    ck_fails(gvmm_buffer_close(buffer, NULL), GVMM_E_CAPTURING);
    ck_cu(cu->cuCtxSetCurrent(mine));
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuCtxSetCurrent(NULL));
    watch();
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamSynchronize), 1);
    ck_assert_uint_eq(calls_failed(), 0);
    ck_cu(cu->cuCtxGetCurrent(&mine));
    ck_assert_ptr_null(mine);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* ---- from the review of the pull request ---- */

static void *grow_and_drop(void *data)
{
    for (size_t i = 0; i < 200; i++) {
        gvmm_buffer *larger;
        if (gvmm_buffer_grow(&larger, data, (2 + i % 5) * G, NULL)) return data;
        gvmm_buffer_release(larger);
    }
    return NULL;
}

/* Threads that grew aliases of one buffer at the same time crashed. (Four threads, at length: test_threads.c.) */
START_TEST(review_two_threads_grow_aliases)
{
    gvmm_buffer *root = create(plain, G), *alias = grow(root, 4 * G);
    pthread_t threads[2];
    void *failed[2];
    ck_assert_int_eq(pthread_create(&threads[0], NULL, grow_and_drop, root), 0);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, grow_and_drop, alias), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], &failed[i]);
    ck_assert(!failed[0] && !failed[1]);
    gvmm_buffer_release(root);
    gvmm_buffer_release(alias);
    ck_nothing_left();
    ck_no_warnings();
}
END_TEST

/* An error that somebody is about to report: what a release does in between must leave it alone. */
static void make_an_error(gvmm_buffer *closed)
{
    gvmm_buffer *out;
    ck_fails(gvmm_buffer_grow(&out, closed, G, NULL), GVMM_E_CLOSED);
}

static void ck_error_is_still_there(void)
{
    gvmm_error error;
    gvmm_last_error(&error);
    ck_assert_msg(error.result == GVMM_E_CLOSED && strstr(error.text, "closed"), "%s: %s",
                  gvmm_result_name(error.result), error.text);
}

/* A release that ran while an exception was under way, and had something to warn of, replaced the exception. */
START_TEST(review_a_failing_release_does_not_disturb_an_error)
{
    gvmm_buffer *closed = create(plain, 0), *buffer;
    ck_ok(gvmm_buffer_close(closed, NULL));
    const char *calls[] = {"cuStreamSynchronize", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree",
                           "cuStreamIsCapturing"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
        make_an_error(closed);
        fault_call(calls[i], 1, CUDA_ERROR_UNKNOWN);
        atomic_store(&warning_count, 0);
        gvmm_buffer_release(buffer);
        ck_assert_uint_eq(gvmm_faults_injected(), 1);
        ck_assert_int_le(atomic_load(&warning_count), 1);
        ck_error_is_still_there();
    }
    gvmm_buffer_release(closed);
}
END_TEST

static gvmm_result free_nothing_and_fail(void *user, uint64_t address, size_t size, gvmm_stream on)
{
    (void)user, (void)address, (void)size, (void)on;
    gvmm_buffer *out;
    return gvmm_buffer_grow(&out, NULL, 0, NULL); /* an error of its own */
}

START_TEST(review_a_release_that_warns_does_not_disturb_an_error)
{
    gvmm_buffer *closed = create(plain, 0), *buffer;
    CUgraph graph;
    ck_ok(gvmm_buffer_close(closed, NULL));
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    make_an_error(closed);
    gvmm_buffer_release(buffer);
    ck_assert_int_eq(atomic_load(&warning_count), 1);
    ck_error_is_still_there();
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));

    ck_ok(gvmm_buffer_wrap(&buffer, plain, 0x1000, G, stream, free_nothing_and_fail, NULL));
    make_an_error(closed);
    gvmm_buffer_release(buffer);
    ck_assert_int_eq(atomic_load(&warning_count), 2);
    ck_error_is_still_there();
    gvmm_buffer_release(closed);
}
END_TEST

/* #2989, closing and collecting block on GPU work: answered by deferred release, test_deferred.c. */

int main(void)
{
    Suite *suite = suite_create("bugs");
    TCase *leaks = add_watched_case(suite, "leaks");
    tcase_add_test(leaks, n2344_every_chunk_goes_back);
    tcase_add_test(leaks, n2882_a_loop_does_not_run_out_of_memory);
    tcase_add_test(leaks, n2887_a_chunk_added_in_place_goes_back);
    tcase_add_test(leaks, n2907_a_grown_buffer_knows_its_whole_size);
    tcase_add_test(leaks, n2877_the_old_range_is_freed_once);
    tcase_add_test(leaks, n2889_host_memory_goes_back_without_a_context);
    TCase *growing = add_watched_case(suite, "growing");
    tcase_add_test(growing, n2908_three_moves_carry_every_chunk);
    tcase_add_test(growing, n2345_a_failed_probe_frees_nothing);
    tcase_add_test(growing, n2345_a_probe_granted_elsewhere_is_freed_once);
    tcase_add_test(growing, n2345_the_first_failure_is_told);
    tcase_add_test(growing, n2388_a_failed_grow_leaves_mapping_and_access);
    tcase_add_test(growing, n2388_in_place_really_happens);
    tcase_add_test(growing, n2910_an_alignment_does_not_prevent_growing_in_place);
    tcase_add_test(growing, n2910_a_smaller_request_leaves_access_alone);
    TCase *options = add_watched_case(suite, "options");
    tcase_add_test(options, n2909_options_of_a_grow_are_not_stored);
    tcase_add_test(options, n2909_options_of_a_grow_are_checked);
    tcase_add_test(options, n2910_a_size_of_zero_works);
    tcase_add_test(options, n2910_mistakes_are_errors);
    tcase_add_test(options, n2910_host_options_are_checked_when_given);
    TCase *order = add_watched_case(suite, "order");
    tcase_add_test(order, n2886_nothing_is_unmapped_while_work_runs);
    tcase_add_test(order, n2889_a_close_without_a_context_asks_and_waits);
    tcase_add_test(order, review_two_threads_grow_aliases);
    tcase_add_test(order, review_a_failing_release_does_not_disturb_an_error);
    tcase_add_test(order, review_a_release_that_warns_does_not_disturb_an_error);
    return run_suites(suite, NULL);
}

/* Elastic buffers: shorter views, views put together, access changed later. */
#include "elastic_kit.h"

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
    /* one copy from device to host memory crashes the driver: H200, driver 580 */
    write_pattern(address(all), 2 * G, 1);
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

int main(void)
{
    Suite *suite = suite_create("views");
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
    if (!getenv("GVMM_TEST_DRIVER") || strcmp(getenv("GVMM_TEST_DRIVER"), "gpu") != 0) {
        TCase *unwatched = add_case(suite, "with a driver table of their own");
        tcase_add_test(unwatched, a_device_that_cannot_reach_the_memory_is_refused);
    }
    return run_suites(suite, NULL);
}

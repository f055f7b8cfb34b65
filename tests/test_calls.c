/* No driver call is made that the operation does not need: every operation, and the calls that it makes, by name and in
 * order.
 *
 * The expectations are put together from the pieces below; a change to how gvmm waits or asks is a change to one of
 * them. */
#include "watch.h"

/* One chunk: addresses, memory, its place, its readers. */
#define MAP "cuMemMap cuMemSetAccess"
#define MAKE "cuMemAddressReserve cuMemCreate " MAP

/* The last owner of a chunk that has a reservation of its own. */
#define UNMAKE "cuMemUnmap cuMemRelease cuMemAddressFree"

/* Waiting for a real stream, and for the legacy stream. Both: may it be waited for, and then in relaxed mode. */
#define ASK_REAL "cuStreamIsCapturing"
#define RELAXED_WAIT "cuThreadExchangeStreamCaptureMode cuStreamSynchronize cuThreadExchangeStreamCaptureMode"
#define WAIT_REAL ASK_REAL " " RELAXED_WAIT
#define WAIT_LEGACY "cuCtxPushCurrent cuStreamIsCapturing " RELAXED_WAIT " cuCtxPopCurrent"

/* What a device can do and how it counts: once per resource, and once per grow that has options of its own. */
#define QUESTIONS "cuDeviceGet cuDeviceGetAttribute cuDeviceGetAttribute cuMemGetAllocationGranularity"

/* A grow that cannot stay in place asks for the addresses behind, gets others and returns them. */
#define PROBE_IN_VAIN "cuMemAddressReserve cuMemAddressFree"

static gvmm_buffer *create_on(gvmm_resource *resource, size_t size, gvmm_stream on)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, resource, size, on));
    return buffer;
}

/* Ends buffers that are no longer of interest. */
static void end(gvmm_buffer *a, gvmm_buffer *b)
{
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    watch();
}

static gvmm_options without_readers(void)
{
    gvmm_options options = waiting_options();
    options.self_access = GVMM_ACCESS_NONE;
    return options;
}

/* ---- resources ---- */

START_TEST(a_resource_asks_each_question_once)
{
    watch();
    gvmm_resource *resource = resource_with(waiting_options());
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuDeviceGetAttribute), 2); /* virtual memory, descriptors */
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemGetAllocationGranularity), 1);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuDevicePrimaryCtxRetain), 1);
    ck_assert_uint_le(calls_of(GVMM_CALL_cuDeviceGet), 2);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuCtxSetCurrent) + calls_of(GVMM_CALL_cuCtxPushCurrent), 0);
    watch();
    for (int i = 0; i < 10; i++) {
        gvmm_buffer *small = create(resource, G), *large = grow(small, 2 * G);
        gvmm_buffer_release(small);
        gvmm_buffer_release(large);
    }
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuDeviceGet) + calls_of(GVMM_CALL_cuDeviceGetAttribute) +
                          calls_of(GVMM_CALL_cuMemGetAllocationGranularity) +
                          calls_of(GVMM_CALL_cuDevicePrimaryCtxRetain),
                      0);
    watch();
    gvmm_resource_release(resource);
    ck_calls("cuDevicePrimaryCtxRelease");
}
END_TEST

START_TEST(a_host_resource_holds_nothing_of_the_driver)
{
    watch();
    gvmm_resource *host = resource_with(on_host());
    ck_calls("cuDeviceGet cuDeviceGetAttribute cuMemGetAllocationGranularity");
    watch();
    gvmm_resource_release(host);
    ck_calls("");
}
END_TEST

/* ---- create ---- */

START_TEST(create_makes_four_calls)
{
    const size_t sizes[] = {1, G, 64 * G};
    for (int i = 0; i < 3; i++) {
        watch();
        gvmm_buffer *buffer = create_on(plain, sizes[i], i % 2 ? stream : NULL);
        ck_calls(MAKE);
        end(buffer, NULL);
    }
    gvmm_resource *host = resource_with(on_host());
    watch();
    gvmm_buffer *buffer = create(host, G);
    ck_calls(MAKE);
    end(buffer, NULL);
    gvmm_resource_release(host);
}
END_TEST

START_TEST(create_makes_no_access_call_without_readers)
{
    gvmm_resource *resource = resource_with(without_readers());
    watch();
    gvmm_buffer *buffer = create(resource, G);
    ck_calls("cuMemAddressReserve cuMemCreate cuMemMap");
    end(buffer, NULL);
    gvmm_resource_release(resource);

    static const int peers[] = {0}; /* which may do nothing are no readers either */
    gvmm_options options = without_readers();
    options.peers = peers;
    options.peer_count = 1;
    options.peer_access = GVMM_ACCESS_NONE;
    resource = resource_with(options);
    watch();
    buffer = create(resource, G);
    ck_calls("cuMemAddressReserve cuMemCreate cuMemMap");
    end(buffer, NULL);
    gvmm_resource_release(resource);
}
END_TEST

/* One access call a chunk, however many devices may touch it. */
START_TEST(create_opens_to_all_readers_at_once)
{
    if (lacks_second_device("create_opens_to_all_readers_at_once")) return;
    gvmm_resource *resource = resource_with_peer();
    watch();
    gvmm_buffer *buffer = create(resource, G);
    ck_calls(MAKE);
    end(buffer, NULL);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(an_empty_buffer_costs_nothing)
{
    watch();
    gvmm_buffer *empty = create_on(plain, 0, stream), *legacy = create(plain, 0), *alias = grow(empty, 0);
    gvmm_buffer_release(alias);
    ck_ok(gvmm_buffer_close(legacy, NULL));
    gvmm_buffer_release(legacy);
    ck_calls("");
    gvmm_buffer *grown = grow(empty, G);
    ck_calls(MAKE);
    watch();
    gvmm_buffer_release(empty);
    ck_calls("");
    end(grown, NULL);
}
END_TEST

/* ---- grow ---- */

START_TEST(an_alias_costs_nothing)
{
    gvmm_buffer *buffer = create(plain, 2 * G);
    watch();
    gvmm_buffer *same = grow(buffer, 2 * G), *less = grow(buffer, 1), *none = grow(buffer, 0);
    ck_calls("");
    end(same, less);
    end(none, buffer);
}
END_TEST

/* Four calls, however long the range is already. */
START_TEST(growing_in_place_makes_four_calls)
{
    enum { LENGTH = 20 };
    const size_t step = 16 * G; /* see free_place in support.c */
    gvmm_buffer *buffer = buffer_with_hole_behind(plain, step, LENGTH * step);
    uint64_t address = gvmm_buffer_address(buffer);
    for (size_t i = 2; i < LENGTH; i++) {
        watch();
        gvmm_buffer *larger = grow(buffer, i * step);
        ck_calls(MAKE);
        ck_assert_uint_eq(gvmm_buffer_address(larger), address);
        gvmm_buffer_release(buffer);
        buffer = larger;
    }
    end(buffer, NULL);
}
END_TEST

START_TEST(growing_in_place_makes_three_without_readers)
{
    gvmm_resource *resource = resource_with(without_readers());
    gvmm_buffer *small = buffer_with_hole_behind(resource, G, G);
    watch();
    gvmm_buffer *large = grow(small, 2 * G);
    ck_calls("cuMemAddressReserve cuMemCreate cuMemMap");
    end(small, large);
    gvmm_resource_release(resource);
}
END_TEST

/* Each of the old chunks is mapped and opened once, and the new one: nothing is unmapped or waited for. */
START_TEST(a_move_maps_each_chunk_once)
{
    gvmm_buffer *one = buffer_with_hole_behind(plain, G, 2 * G), *two = grow(one, 2 * G), *three = grow(two, 3 * G);
    uint64_t decoy = block_behind(three);
    ck_assert_uint_ne(decoy, 0);
    watch();
    gvmm_buffer *moved = grow(three, 4 * G);
    ck_calls(PROBE_IN_VAIN " cuMemAddressReserve cuMemCreate " MAP " " MAP " " MAP " " MAP);
    watch(); /* the shorter view: one chunk to carry */
    gvmm_buffer *other = grow(one, 3 * G);
    ck_calls(PROBE_IN_VAIN " cuMemAddressReserve cuMemCreate " MAP " " MAP);
    end(one, two);
    end(three, moved);
    end(other, NULL);
    free_decoy(decoy);
}
END_TEST

/* A probe that the driver refuses has nothing to return. */
START_TEST(a_refused_probe_returns_nothing)
{
    gvmm_buffer *small = create(plain, G);
    fault_call("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
    watch();
    gvmm_buffer *moved = grow(small, 2 * G);
    ck_calls("cuMemAddressReserve cuMemAddressReserve cuMemCreate " MAP " " MAP);
    end(small, moved);
}
END_TEST

/* Options of its own are asked about; the four calls are the same. Where they have no effect they are checked all the
 * same. */
START_TEST(growing_with_options_asks_about_them)
{
    gvmm_options chunk = waiting_options();
    gvmm_buffer *small = buffer_with_hole_behind(plain, G, G), *large, *alias;
    watch();
    ck_ok(gvmm_buffer_grow(&large, small, 2 * G, &chunk));
    ck_calls(QUESTIONS " " MAKE);
    watch();
    ck_ok(gvmm_buffer_grow(&alias, large, G, &chunk));
    ck_calls(QUESTIONS);
    end(small, large);
    end(alias, NULL);
}
END_TEST

START_TEST(a_refusal_calls_nobody)
{
    gvmm_options elsewhere = on_host();
    gvmm_buffer *buffer = create(plain, G), *closed = create(plain, 0), *out;
    ck_ok(gvmm_buffer_close(closed, NULL));
    watch();
    ck_fails(gvmm_buffer_create(&out, plain, SIZE_MAX, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_grow(&out, buffer, SIZE_MAX, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_grow(&out, buffer, 2 * G, &elsewhere), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_grow(&out, closed, 2 * G, NULL), GVMM_E_CLOSED);
    ck_calls("");
    end(buffer, closed);
}
END_TEST

/* ---- close and release ---- */

START_TEST(closing_the_last_owner_waits_and_undoes)
{
    gvmm_buffer *buffer = create_on(plain, G, stream);
    watch();
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_calls(WAIT_REAL " " UNMAKE);
    watch();
    ck_ok(gvmm_buffer_close(buffer, stream)); /* closed already */
    gvmm_buffer_release(buffer);
    ck_calls("");

    buffer = create(plain, G);
    watch();
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_calls(WAIT_LEGACY " " UNMAKE);
    end(buffer, NULL);

    buffer = create(plain, G);
    watch();
    ck_ok(gvmm_buffer_close(buffer, stream)); /* the given stream, not the recorded one too */
    ck_calls(WAIT_REAL " " UNMAKE);
    end(buffer, NULL);
}
END_TEST

START_TEST(releasing_is_closing)
{
    gvmm_buffer *buffer = create_on(plain, G, stream);
    watch();
    gvmm_buffer_retain(buffer);
    gvmm_buffer_release(buffer);
    ck_calls("");
    gvmm_buffer_release(buffer);
    ck_calls(WAIT_REAL " " UNMAKE);
    buffer = create(plain, G);
    watch();
    gvmm_buffer_release(buffer);
    ck_calls(WAIT_LEGACY " " UNMAKE);
}
END_TEST

START_TEST(closing_another_owner_only_waits)
{
    gvmm_buffer *buffer = create_on(plain, G, stream), *alias = grow(buffer, G);
    watch();
    ck_ok(gvmm_buffer_close(alias, NULL));
    ck_calls(WAIT_REAL);
    ck_ok(gvmm_buffer_set_stream(buffer, GVMM_STREAM_LEGACY));
    gvmm_buffer *other = grow(buffer, G);
    watch();
    ck_ok(gvmm_buffer_close(other, NULL));
    ck_calls(WAIT_LEGACY);
    end(alias, other);
    end(buffer, NULL);
}
END_TEST

/* In place, each chunk has a reservation; after a move they share one. */
START_TEST(closing_undoes_each_chunk_once)
{
    gvmm_buffer *small = buffer_with_hole_behind(plain, G, G), *large = grow(small, 2 * G);
    gvmm_buffer_release(small);
    watch();
    ck_ok(gvmm_buffer_close(large, stream));
    ck_calls(WAIT_REAL " " UNMAKE " " UNMAKE);
    end(large, NULL);

    uint64_t decoy;
    small = buffer_with_decoy_behind(plain, G, &decoy);
    large = grow(small, 2 * G);
    watch();
    ck_ok(gvmm_buffer_close(small, stream)); /* its addresses go, its memory has moved on */
    ck_calls(WAIT_REAL " cuMemUnmap cuMemAddressFree");
    watch();
    ck_ok(gvmm_buffer_close(large, stream));
    ck_calls(WAIT_REAL " cuMemUnmap cuMemRelease " UNMAKE);
    end(small, large);
    free_decoy(decoy);
}
END_TEST

START_TEST(closing_host_memory_waits_for_nobody)
{
    gvmm_resource *host = resource_with(on_host());
    gvmm_buffer *buffer = create(host, G);
    watch();
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_calls(UNMAKE);
    end(buffer, NULL);
    gvmm_resource_release(host);
}
END_TEST

/* A capturing stream is found out by asking, and that is all that happens. */
START_TEST(closing_asks_before_it_waits)
{
    CUgraph graph;
    gvmm_buffer *buffer = create_on(plain, G, stream);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    watch();
    ck_fails(gvmm_buffer_close(buffer, NULL), GVMM_E_CAPTURING);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamIsCapturing), 1);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamSynchronize) + calls_of(GVMM_CALL_cuThreadExchangeStreamCaptureMode),
                      0);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    end(buffer, NULL);
}
END_TEST

/* ---- everything else ---- */

START_TEST(questions_call_nobody)
{
    gvmm_options options;
    gvmm_segment segments[4];
    gvmm_stats stats;
    gvmm_error error;
    size_t count;
    gvmm_buffer *small = create(plain, G), *buffer = grow(small, 3 * G);
    watch();
    ck_assert_uint_ne(gvmm_buffer_address(buffer), 0);
    ck_assert_uint_eq(gvmm_buffer_size(buffer), 3 * G);
    ck_assert(!gvmm_buffer_is_closed(buffer));
    ck_assert_ptr_eq(gvmm_buffer_resource(buffer), plain);
    ck_assert_ptr_eq(gvmm_buffer_stream(buffer), GVMM_STREAM_LEGACY);
    ck_ok(gvmm_buffer_set_stream(buffer, stream));
    ck_ok(gvmm_buffer_segments(buffer, segments, 4, &count));
    ck_assert_int_eq(gvmm_resource_device(plain), 0);
    ck_assert_uint_eq(gvmm_resource_granularity(plain), G);
    gvmm_resource_options(plain, &options);
    ck_assert(gvmm_resource_is_device_accessible(plain));
    ck_assert(!gvmm_resource_is_host_accessible(plain));
    gvmm_resource_release(gvmm_resource_retain(plain));
    gvmm_get_stats(NULL, &stats);
    gvmm_get_stats(plain, &stats);
    gvmm_last_error(&error);
    gvmm_drain();
    ck_calls("");
    end(small, buffer);
}
END_TEST

START_TEST(a_wrapper_that_owns_nothing_calls_nobody)
{
    gvmm_buffer *buffer;
    watch();
    ck_ok(gvmm_buffer_wrap(&buffer, plain, 0x1000, G, NULL, free_nothing, NULL));
    ck_ok(gvmm_buffer_close(buffer, NULL));
    gvmm_buffer_release(buffer);
    ck_calls("");
}
END_TEST

START_TEST(retaining_in_a_graph_makes_two_calls)
{
    CUgraph graph;
    gvmm_buffer *small = create(plain, G), *buffer = grow(small, 4 * G);
    ck_cu(cu->cuGraphCreate(&graph, 0));
    watch();
    ck_ok(gvmm_buffer_retain_in_graph(buffer, graph)); /* one user object, however many chunks */
    ck_calls("cuUserObjectCreate cuGraphRetainUserObject");
    end(small, buffer);
    ck_cu(cu->cuGraphDestroy(graph));
    wait_for_mappings(0);
}
END_TEST

/* Nothing here waits for the whole device, or makes a context current for good. */
START_TEST(no_operation_waits_for_the_device)
{
    watch();
    gvmm_buffer *small = create(plain, G), *large = grow(small, 2 * G), *other = create_on(plain, G, stream);
    ck_ok(gvmm_buffer_close(small, NULL));
    ck_ok(gvmm_buffer_close(large, stream));
    gvmm_buffer_release(other);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuCtxSynchronize), 0);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuCtxSetCurrent), 0);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuCtxPushCurrent), calls_of(GVMM_CALL_cuCtxPopCurrent));
    end(small, large);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("calls");
    TCase *making = add_watched_case(suite, "making");
    tcase_add_test(making, a_resource_asks_each_question_once);
    tcase_add_test(making, a_host_resource_holds_nothing_of_the_driver);
    tcase_add_test(making, create_makes_four_calls);
    tcase_add_test(making, create_makes_no_access_call_without_readers);
    tcase_add_test(making, create_opens_to_all_readers_at_once);
    tcase_add_test(making, an_empty_buffer_costs_nothing);
    TCase *growing = add_watched_case(suite, "growing");
    tcase_add_test(growing, an_alias_costs_nothing);
    tcase_add_test(growing, growing_in_place_makes_four_calls);
    tcase_add_test(growing, growing_in_place_makes_three_without_readers);
    tcase_add_test(growing, a_move_maps_each_chunk_once);
    tcase_add_test(growing, a_refused_probe_returns_nothing);
    tcase_add_test(growing, growing_with_options_asks_about_them);
    tcase_add_test(growing, a_refusal_calls_nobody);
    TCase *closing = add_watched_case(suite, "closing");
    tcase_add_test(closing, closing_the_last_owner_waits_and_undoes);
    tcase_add_test(closing, releasing_is_closing);
    tcase_add_test(closing, closing_another_owner_only_waits);
    tcase_add_test(closing, closing_undoes_each_chunk_once);
    tcase_add_test(closing, closing_host_memory_waits_for_nobody);
    tcase_add_test(closing, closing_asks_before_it_waits);
    TCase *others = add_watched_case(suite, "everything else");
    tcase_add_test(others, questions_call_nobody);
    tcase_add_test(others, a_wrapper_that_owns_nothing_calls_nobody);
    tcase_add_test(others, retaining_in_a_graph_makes_two_calls);
    tcase_add_test(others, no_operation_waits_for_the_device);
    return run_suites(suite, NULL);
}

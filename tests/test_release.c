/* Points 13, 15 to 17, 21 to 23, 26 to 28 (see test_checklist.c): closing, releasing and the order with GPU work, captures and
 * graphs.
 *
 * Work that lasts is a host function at a gate. A close "waits" if, once it is inside cuStreamSynchronize, it neither
 * returns nor unmaps as long as the gate is shut. */
#include "support.h"

#include <pthread.h>

typedef struct closing {
    pthread_t thread;
    gvmm_buffer *buffer;
    gvmm_stream stream;
    atomic_bool returned;
    gvmm_result result;
} closing;

static void *close_it(void *data)
{
    closing *c = data;
    c->result = gvmm_buffer_close(c->buffer, c->stream);
    atomic_store(&c->returned, true);
    return NULL;
}

static void close_in_thread(closing *c, gvmm_buffer *buffer, gvmm_stream on)
{
    c->buffer = buffer;
    c->stream = on;
    atomic_init(&c->returned, false);
    ck_assert_int_eq(pthread_create(&c->thread, NULL, close_it, c), 0);
}

/* The close is inside its wait, and stays there. */
static void ck_waiting(closing *c, uint64_t address)
{
    while (gvmm_faults_counted() == 0 && !atomic_load(&c->returned)) sched_yield();
    for (int look = 0; look < 50; look++) {
        ck_assert(!atomic_load(&c->returned));
        ck_mapped(address);
    }
}

static void joined(closing *c)
{
    pthread_join(c->thread, NULL);
    ck_ok(c->result);
}

/* Closes with `given` while `busy` is held up; the buffer's memory stays mapped until the gate opens. */
static void ck_close_waits_for(gvmm_buffer *buffer, gvmm_stream given, gvmm_stream busy)
{
    closing c;
    uint64_t address = gvmm_buffer_address(buffer);
    gate *g = gate_on(busy);
    ck_ok(gvmm_faults_set(&(gvmm_fault){.call = "cuStreamSynchronize"})); /* fails none, counts them as they begin */
    close_in_thread(&c, buffer, given);
    ck_waiting(&c, address);
    gate_open(g);
    joined(&c);
    gate_end(g);
}

START_TEST(c13_an_empty_buffer_hands_its_stream_on)
{
    gvmm_buffer *empty;
    gvmm_stats before, after;
    gvmm_get_stats(NULL, &before);
    ck_ok(gvmm_buffer_create(&empty, plain, 0, stream));
    gvmm_get_stats(NULL, &after);
    ck_assert_uint_eq(after.driver_calls, before.driver_calls);
    ck_assert_uint_eq(gvmm_buffer_size(empty), 0);
    ck_assert_uint_eq(gvmm_buffer_address(empty), 0);
    ck_assert(!gvmm_buffer_is_closed(empty));
    gvmm_buffer *grown = grow(empty, G);
    ck_assert_ptr_eq(gvmm_buffer_stream(grown), stream);
    ck_close_waits_for(grown, NULL, stream);
    gvmm_buffer_release(grown);
    gvmm_buffer_release(empty);
    ck_no_warnings();
}
END_TEST

static gvmm_stream begin_capture(gvmm_stream s, CUstreamCaptureMode mode)
{
    ck_cu(cu->cuStreamBeginCapture(s, mode));
    return s;
}

/* The capture is intact: it ends well. */
static void ck_capture_ends(gvmm_stream s)
{
    CUgraph graph;
    ck_cu(cu->cuStreamEndCapture(s, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
}

START_TEST(c15_close_refuses_a_capturing_stream)
{
    gvmm_stream other = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    uint64_t address = gvmm_buffer_address(buffer);

    begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); /* the recorded stream */
    ck_fails(gvmm_buffer_close(buffer, NULL), GVMM_E_CAPTURING);
    ck_names("capturing stream");
    ck_assert(!gvmm_buffer_is_closed(buffer));
    ck_capture_ends(stream);

    begin_capture(other, CU_STREAM_CAPTURE_MODE_GLOBAL); /* the argument */
    ck_fails(gvmm_buffer_close(buffer, other), GVMM_E_CAPTURING);
    ck_assert_ptr_eq(gvmm_buffer_stream(buffer), stream);
    ck_assert_uint_eq(gvmm_buffer_address(buffer), address);
    ck_capture_ends(other);

    ck_ok(gvmm_buffer_close(buffer, other));
    ck_released(address, G);
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuStreamDestroy(other));
    ck_no_warnings();
}
END_TEST

/* Two aliases with a stream each: each close waits for its own, in both orders. */
static void close_two(bool first_the_idle_one)
{
    gvmm_stream busy = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *a, *b;
    ck_ok(gvmm_buffer_create(&a, plain, G, stream));
    b = grow(a, G);
    ck_ok(gvmm_buffer_set_stream(b, busy));
    gate *g = first_the_idle_one ? gate_on(busy) : NULL;
    uint64_t address = gvmm_buffer_address(a);
    if (g) {
        ck_ok(gvmm_buffer_close(a, NULL)); /* does not wait for busy */
        ck_mapped(address);
        gate_end(g);
        ck_close_waits_for(b, NULL, busy);
    } else {
        ck_close_waits_for(b, NULL, busy);
        ck_mapped(address);
        ck_close_waits_for(a, NULL, stream);
    }
    ck_released(address, G);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    ck_cu(cu->cuStreamDestroy(busy));
    ck_no_warnings();
}

START_TEST(c16_close_waits_for_its_own_stream)
{
    close_two(true);
    close_two(false);
}
END_TEST

START_TEST(c16_close_waits_for_the_given_stream)
{
    gvmm_stream busy = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    ck_close_waits_for(buffer, busy, busy);
    ck_assert_ptr_eq(gvmm_buffer_stream(buffer), busy); /* which is recorded from then on */
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_buffer_create(&buffer, plain, G, NULL));
    ck_close_waits_for(buffer, NULL, CU_STREAM_LEGACY);
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuStreamDestroy(busy));
    ck_no_warnings();
}
END_TEST

START_TEST(c17_a_wrapped_mapping_is_deallocated)
{
    uint64_t base = map_by_hand(2 * G);
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_wrap(&buffer, plain, base, 2 * G, stream, NULL, NULL));
    ck_assert_uint_eq(gvmm_buffer_address(buffer), base);
    ck_assert_uint_eq(gvmm_buffer_size(buffer), 2 * G);
    ck_close_waits_for(buffer, NULL, stream);
    ck_released(base, 2 * G);
    gvmm_buffer_release(buffer);

    ck_ok(gvmm_resource_deallocate(plain, 0, G, NULL));
    ck_ok(gvmm_resource_deallocate(plain, base, 0, NULL));
    base = map_by_hand(G);
    begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    ck_fails(gvmm_resource_deallocate(plain, base, G, stream), GVMM_E_CAPTURING);
    ck_mapped(base);
    ck_capture_ends(stream);
    ck_ok(gvmm_resource_deallocate(plain, base, G, stream));
    ck_released(base, G);
    gvmm_error error;
    ck_fails(gvmm_resource_deallocate(plain, base, G, NULL), GVMM_E_DRIVER); /* both fail; the first is told */
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemUnmap");
    ck_no_warnings();
}
END_TEST

/* Unmapping fails, the address is freed all the same, and the first failure is told. */
START_TEST(c17_deallocate_tries_both)
{
    uint64_t base = map_by_hand(G);
    gvmm_error error;
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    ck_fails(gvmm_resource_deallocate(plain, base, G, NULL), GVMM_E_DRIVER);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemUnmap");
    ck_released(base, G);
}
END_TEST

static void unrelated_capture(CUstreamCaptureMode mode)
{
    gvmm_stream capturing = begin_capture(new_stream(CU_STREAM_NON_BLOCKING), mode);
    gvmm_buffer *a = create(plain, G), *b, *c = grow(a, 2 * G);
    ck_ok(gvmm_buffer_create(&b, plain, G, stream));
    ck_ok(gvmm_buffer_close(a, NULL));
    ck_ok(gvmm_buffer_close(b, NULL));
    gvmm_buffer_release(c);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
    ck_cu(cu->cuThreadExchangeStreamCaptureMode(&now)); /* the thread's mode is as it was */
    ck_assert_int_eq(now, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ck_capture_ends(capturing);
    ck_cu(cu->cuStreamDestroy(capturing));
    ck_no_warnings();
}

START_TEST(c21_unrelated_captures_stay_valid)
{
    unrelated_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    unrelated_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    unrelated_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
}
END_TEST

static void *all_of_it(void *unused)
{
    (void)unused;
    gvmm_buffer *a = create(plain, G), *b = grow(a, 2 * G);
    ck_ok(gvmm_buffer_close(a, stream));
    ck_ok(gvmm_buffer_close(b, NULL));
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    return NULL;
}

START_TEST(c21_captures_of_other_threads_stay_valid)
{
    pthread_t thread;
    gvmm_stream capturing = begin_capture(new_stream(CU_STREAM_NON_BLOCKING), CU_STREAM_CAPTURE_MODE_GLOBAL);
    ck_assert_int_eq(pthread_create(&thread, NULL, all_of_it, NULL), 0);
    pthread_join(thread, NULL);
    ck_capture_ends(capturing);
    ck_cu(cu->cuStreamDestroy(capturing));
    ck_no_warnings();
}
END_TEST

START_TEST(c22_released_while_its_stream_captures)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    uint64_t address = gvmm_buffer_address(buffer);
    begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    gvmm_buffer_release(buffer);
    ck_released(address, G);
    ck_assert_int_eq(atomic_load(&warning_count), 1);
    ck_assert_int_eq(last_warning.result, GVMM_E_CAPTURING);
    ck_assert_ptr_nonnull(strstr(last_warning_text, "capturing"));
    ck_capture_ends(stream);
}
END_TEST

START_TEST(c23_default_stream_while_a_blocking_stream_captures)
{
    gvmm_stream blocking = begin_capture(new_stream(CU_STREAM_DEFAULT), CU_STREAM_CAPTURE_MODE_GLOBAL);
    gvmm_buffer *closed = create(plain, G), *released = create(plain, G);
    uint64_t a = gvmm_buffer_address(closed), b = gvmm_buffer_address(released);
    ck_ok(gvmm_buffer_close(closed, NULL));
    ck_released(a, G);
    ck_assert_int_eq(atomic_load(&warning_count), 1);
    ck_assert_int_eq(last_warning.result, GVMM_E_CAPTURING);
    ck_assert_ptr_nonnull(strstr(last_warning_text, "legacy stream"));
    gvmm_buffer_release(released);
    ck_released(b, G);
    ck_assert_int_eq(atomic_load(&warning_count), 2);
    gvmm_buffer_release(closed);
    ck_capture_ends(blocking);
    ck_cu(cu->cuStreamDestroy(blocking));
}
END_TEST

typedef struct freed {
    uint64_t address;
    size_t size;
    gvmm_stream stream;
    int times;
} freed;

static gvmm_result note_and_fail(void *user, uint64_t address, size_t size, gvmm_stream on)
{
    freed *f = user;
    *f = (freed){address, size, on, f->times + 1};
    return gvmm__fail(GVMM_E_PEER_GONE, "nobody home");
}

START_TEST(c26_a_callback_that_fails_becomes_a_warning)
{
    freed f = {0};
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_wrap(&buffer, plain, 0x1000, 77, stream, note_and_fail, &f));
    gvmm_buffer_release(buffer);
    ck_assert_int_eq(f.times, 1);
    ck_assert_uint_eq(f.address, 0x1000);
    ck_assert_uint_eq(f.size, 77);
    ck_assert_ptr_eq(f.stream, stream);
    ck_assert_int_eq(atomic_load(&warning_count), 1);
    ck_assert_int_eq(last_warning.result, GVMM_E_PEER_GONE);
    ck_assert_ptr_nonnull(strstr(last_warning_text, "nobody home"));
}
END_TEST

/* ---- graphs ---- */

static CUgraph graph_with_memset(uint64_t address, size_t size)
{
    CUgraph graph;
    CUgraphNode node;
    CUcontext context;
    CUDA_MEMSET_NODE_PARAMS set = {.dst = address, .value = 5, .elementSize = 1, .width = size, .height = 1};
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_cu(cu->cuGraphCreate(&graph, 0));
    ck_cu(cu->cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, context));
    return graph;
}

static void ck_goes_away(uint64_t address, size_t size)
{
    wait_for_mappings(0);
    ck_released(address, size);
}

START_TEST(c27_a_graph_keeps_a_closed_buffer)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    uint64_t address = gvmm_buffer_address(buffer);
    CUgraph graph = graph_with_memset(address, G);
    CUgraphExec exec;
    ck_ok(gvmm_buffer_retain_in_graph(buffer, graph));
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_mapped(address);
    ck_cu(cu->cuGraphDestroy(graph));
    ck_mapped(address);

    gate *g = gate_on(stream);
    ck_cu(cu->cuGraphLaunch(exec, stream));
    ck_cu(cu->cuGraphExecDestroy(exec));
    ck_mapped(address); /* the launch is in flight */
    gate_open(g);
    gate_end(g);
    ck_cu(cu->cuStreamSynchronize(stream));
    ck_goes_away(address, G);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

START_TEST(c28_a_graph_keeps_memory_across_a_grow_and_every_close)
{
    uint64_t decoy;
    gvmm_buffer *small = buffer_with_decoy_behind(plain, G, &decoy);
    uint64_t address = gvmm_buffer_address(small);
    CUgraph graph = graph_with_memset(address, G);
    CUgraphExec exec;
    ck_ok(gvmm_buffer_retain_in_graph(small, graph));
    gvmm_buffer *moved = grow(small, 2 * G), *alias = grow(small, G);
    uint64_t new_address = gvmm_buffer_address(moved);
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    gvmm_buffer_release(small);
    gvmm_buffer_release(alias);
    ck_cu(cu->cuGraphLaunch(exec, stream));
    ck_cu(cu->cuStreamSynchronize(stream));
    ck_filled(new_address, 5, G); /* written through the old address */
    gvmm_buffer_release(moved);
    ck_released(new_address, 2 * G);
    ck_mapped(address);
    ck_cu(cu->cuGraphExecDestroy(exec));
    ck_mapped(address);
    ck_cu(cu->cuGraphDestroy(graph));
    ck_goes_away(address, G);
    free_decoy(decoy);
    ck_no_warnings();
}
END_TEST

START_TEST(c28_a_captured_graph_keeps_it_too)
{
    gvmm_buffer *buffer;
    CUgraph graph;
    CUgraphExec exec;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, NULL));
    uint64_t address = gvmm_buffer_address(buffer);
    ck_fails(gvmm_buffer_retain_in_capture(buffer, stream), GVMM_E_INVALID);
    ck_names("not capturing");
    begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ck_cu(cu->cuMemsetD8Async(address, 6, G, stream));
    ck_ok(gvmm_buffer_retain_in_capture(buffer, stream));
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuGraphLaunch(exec, stream));
    ck_cu(cu->cuStreamSynchronize(stream));
    ck_filled(address, 6, G);
    ck_cu(cu->cuGraphExecDestroy(exec));
    ck_goes_away(address, G);
    ck_no_warnings();
}
END_TEST

START_TEST(a_graph_holds_nothing_of_an_empty_or_closed_buffer)
{
    CUgraph graph;
    gvmm_buffer *buffer = create(plain, 0);
    ck_cu(cu->cuGraphCreate(&graph, 0));
    ck_ok(gvmm_buffer_retain_in_graph(buffer, graph));
    ck_fails(gvmm_buffer_retain_in_graph(buffer, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_retain_in_graph(NULL, graph), GVMM_E_INVALID);
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_fails(gvmm_buffer_retain_in_graph(buffer, graph), GVMM_E_CLOSED);
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuGraphDestroy(graph));
}
END_TEST

/* ---- the recorded stream ---- */

START_TEST(set_stream_replaces_the_recorded_one)
{
    gvmm_buffer *buffer = create(plain, G);
    ck_assert_ptr_eq(gvmm_buffer_stream(buffer), GVMM_STREAM_LEGACY);
    ck_ok(gvmm_buffer_set_stream(buffer, stream));
    ck_fails(gvmm_buffer_set_stream(buffer, NULL), GVMM_E_INVALID);
    ck_assert_ptr_eq(gvmm_buffer_stream(buffer), stream);
    ck_close_waits_for(buffer, NULL, stream);
    ck_fails(gvmm_buffer_set_stream(buffer, stream), GVMM_E_CLOSED);
    gvmm_buffer_release(buffer);
}
END_TEST

/* A wait that fails loses nothing: the memory goes, and one warning names the call. */
START_TEST(a_failed_wait_still_gives_the_memory_up)
{
    const char *calls[] = {"cuStreamSynchronize", "cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing",
                           "cuCtxPushCurrent"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        gvmm_buffer *buffer = create(plain, G);
        uint64_t address = gvmm_buffer_address(buffer);
        atomic_store(&warning_count, 0);
        fault_call(calls[i], 1, CUDA_ERROR_UNKNOWN);
        ck_ok(gvmm_buffer_close(buffer, NULL));
        ck_assert_int_eq(atomic_load(&warning_count), 1);
        ck_assert_str_eq(last_warning.call, calls[i]);
        ck_assert_int_eq(last_warning.status, CUDA_ERROR_UNKNOWN);
        ck_released(address, G);
        gvmm_buffer_release(buffer);
    }
}
END_TEST

START_TEST(a_driver_that_has_shut_down_is_no_failure)
{
    const char *calls[] = {"cuStreamSynchronize", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        gvmm_buffer *buffer = create(plain, G);
        fault_call(calls[i], 1, CUDA_ERROR_DEINITIALIZED);
        gvmm_buffer_release(buffer);
        ck_assert_uint_eq(gvmm_faults_injected(), 1);
    }
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("release");
    TCase *closing_case = add_case(suite, "close");
    tcase_add_test(closing_case, c13_an_empty_buffer_hands_its_stream_on);
    tcase_add_test(closing_case, c15_close_refuses_a_capturing_stream);
    tcase_add_test(closing_case, c16_close_waits_for_its_own_stream);
    tcase_add_test(closing_case, c16_close_waits_for_the_given_stream);
    tcase_add_test(closing_case, c17_a_wrapped_mapping_is_deallocated);
    tcase_add_test(closing_case, c17_deallocate_tries_both);
    tcase_add_test(closing_case, c26_a_callback_that_fails_becomes_a_warning);
    tcase_add_test(closing_case, set_stream_replaces_the_recorded_one);
    tcase_add_test(closing_case, a_failed_wait_still_gives_the_memory_up);
    tcase_add_test(closing_case, a_driver_that_has_shut_down_is_no_failure);
    TCase *captures = add_case(suite, "captures");
    tcase_add_test(captures, c21_unrelated_captures_stay_valid);
    tcase_add_test(captures, c21_captures_of_other_threads_stay_valid);
    tcase_add_test(captures, c22_released_while_its_stream_captures);
    tcase_add_test(captures, c23_default_stream_while_a_blocking_stream_captures);
    TCase *graphs = add_case(suite, "graphs");
    tcase_add_test(graphs, c27_a_graph_keeps_a_closed_buffer);
    tcase_add_test(graphs, c28_a_graph_keeps_memory_across_a_grow_and_every_close);
    tcase_add_test(graphs, c28_a_captured_graph_keeps_it_too);
    tcase_add_test(graphs, a_graph_holds_nothing_of_an_empty_or_closed_buffer);
    return run_suites(suite, NULL);
}

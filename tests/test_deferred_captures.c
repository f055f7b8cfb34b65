/* Deferred release beside captures: nothing ends one, and what captured work may use is held until the graph is gone. */
#include "deferred_kit.h"

#include <semaphore.h>

/* Unrelated captures of this thread are not disturbed by the call, nor by what the worker does. */
static void beside_a_capture(CUstreamCaptureMode mode)
{
    CUgraph graph;
    CUstream capturing = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *a = on_stream(stream), *b = on_stream(NULL);
    ck_cu(cu->cuStreamBeginCapture(capturing, mode));
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_drain();
    ck_nothing_left();
    ck_capture_ends(capturing, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuStreamDestroy(capturing));
}

START_TEST(unrelated_captures_stay_valid)
{
    beside_a_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    beside_a_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    beside_a_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    ck_no_warnings();
}
END_TEST

/* The captured work may use the memory at every launch. */
START_TEST(released_while_its_stream_captures)
{
    CUgraph graph;
    CUgraphExec exec;
    gvmm_buffer *buffer = on_stream(stream);
    uint64_t address = gvmm_buffer_address(buffer);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async(address, 9, G, stream));
    gvmm_buffer_release(buffer);
    gvmm_drain(); /* does not wait for it */
    ck_capture_ends(stream, &graph);
    ck_mapped(address);
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuGraphLaunch(exec, stream));
    ck_cu(cu->cuStreamSynchronize(stream));
    ck_filled(address, 9, G);
    ck_cu(cu->cuGraphExecDestroy(exec));
    wait_for_mappings(0);
    ck_released(address, G);
    ck_no_warnings();
}
END_TEST

/* Every call on the default stream would end the blocking stream's capture: the memory is held until that is over. */
START_TEST(default_stream_while_a_blocking_stream_captures)
{
    CUgraph graph;
    CUstream blocking = new_stream(CU_STREAM_DEFAULT);
    gvmm_buffer *buffer = on_stream(NULL);
    uint64_t address = gvmm_buffer_address(buffer);
    ck_cu(cu->cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
    gvmm_buffer_release(buffer);
    gvmm_drain();
    ck_mapped(address);
    ck_assert_uint_eq(waiting(), 1);
    ck_capture_ends(blocking, &graph);
    gvmm_drain();
    ck_released(address, G);
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuStreamDestroy(blocking));
    ck_no_warnings();
}
END_TEST

static uint64_t calls_to_release(gvmm_buffer *buffer)
{
    uint64_t before = stats_of(NULL).driver_calls;
    gvmm_buffer_release(buffer);
    return stats_of(NULL).driver_calls - before;
}

/* Many wait for the same capture: each call asks about one of them. */
START_TEST(many_that_wait_for_one_capture)
{
    enum { N = 300 };
    CUgraph graph;
    CUstream blocking = new_stream(CU_STREAM_DEFAULT);
    gvmm_buffer *buffers[N];
    uint64_t calls[N];
    for (int i = 0; i < N; i++) buffers[i] = on_stream(NULL);
    ck_cu(cu->cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < N; i++) calls[i] = calls_to_release(buffers[i]);
    for (int i = 2; i < N; i++) ck_assert_uint_eq(calls[i], calls[1]);
    ck_assert_uint_eq(waiting(), N);
    ck_capture_ends(blocking, &graph);
    gvmm__drain();
    ck_assert_uint_eq(waiting(), 0);
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuStreamDestroy(blocking));
    ck_no_warnings();
}
END_TEST

/* Also where the one call fails by which that would have been seen, and no event can be had, at once or later. */
START_TEST(default_stream_that_cannot_be_marked_while_a_blocking_stream_captures)
{
    const char *calls[] = {"cuCtxPushCurrent", "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode", "malloc"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        CUgraph graph;
        CUstream blocking = new_stream(CU_STREAM_DEFAULT);
        gvmm_buffer *buffer = on_stream(NULL);
        uint64_t address = gvmm_buffer_address(buffer);
        ck_cu(cu->cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
        fault_call(calls[i], 1, CUDA_ERROR_UNKNOWN);
        gvmm_buffer_release(buffer);
        fault_call(calls[i], 1, CUDA_ERROR_UNKNOWN);
        gvmm__retire_mark();
        fault(0, false);
        ck_mapped(address);
        ck_assert_uint_eq(waiting(), 1);
        ck_capture_ends(blocking, &graph);
        gvmm_drain();
        ck_released(address, G);
        ck_cu(cu->cuGraphDestroy(graph));
        ck_cu(cu->cuStreamDestroy(blocking));
    }
    ck_no_warnings();
}
END_TEST

static void *release_one(void *on)
{
    gvmm_buffer_release(on_stream(on));
    gvmm__drain(); /* what is this thread's */
    return NULL;
}

static void *drain(void *unused)
{
    gvmm_drain();
    return unused;
}

static void in_thread(void *(*run)(void *), void *data)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, run, data), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

/* No other touches the stream, on which this one may be about to begin a capture. Its next call does, whatever it is
 * about; or anybody's that asks for all. */
START_TEST(what_a_capture_held_is_marked_by_the_thread_that_released_it)
{
    CUgraph graph;
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_pool *pool;
    uint64_t block = 0;
    gvmm_evict_options drop = GVMM_EVICT_OPTIONS_INIT;
    drop.contents = GVMM_CONTENTS_DROP;
    gvmm_buffer *held = on_stream(stream), *between = on_stream(other), *another = NULL;
    uint64_t at_held = gvmm_buffer_address(held);
    ck_ok(gvmm_pool_create(&pool, plain, NULL));
    if (_i == 4) ck_ok(gvmm_buffer_evict(between, &drop));
    hold_by_capture_and_let_go(held);
    gvmm_drain();
    ck_mapped(at_held); /* it captures again */
    ck_capture_ends(stream, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    in_thread(release_one, other);
    ck_mapped(at_held);
    ck_assert_uint_eq(waiting(), 1);
    if (_i == 0) gvmm_buffer_release(between);
    else if (_i == 1) another = on_stream(other);
    else if (_i == 2) ck_ok(gvmm_pool_malloc(&block, pool, 512, other));
    else if (_i == 3) ck_ok(gvmm_buffer_grow(&another, between, 2 * G, NULL));
    else if (_i == 4) ck_ok(gvmm_buffer_restore(between));
    else in_thread(drain, NULL);
    while (waiting()) sched_yield();
    ck_released(at_held, G);
    gvmm_buffer_release(another);
    if (_i != 0) gvmm_buffer_release(between);
    if (block) ck_ok(gvmm_pool_free(pool, block, other));
    gvmm_pool_release(pool);
    gvmm_drain();
    ck_cu(cu->cuStreamDestroy(other));
    ck_no_warnings();
}
END_TEST

/* What cannot be marked yet is met first or last. */
START_TEST(one_stream_that_captures_holds_up_no_other)
{
    CUgraph graph;
    CUstream blocking = new_stream(CU_STREAM_DEFAULT);
    gvmm_buffer *held = on_stream(stream), *first = on_stream(NULL), *second = on_stream(NULL);
    uint64_t address = gvmm_buffer_address(held);
    ck_cu(cu->cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (_i == 0) gvmm_buffer_release(first);
    hold_and_let_go_idle(held);
    gvmm_buffer_release(second);
    while (waiting() > 2 - (unsigned)_i) sched_yield();
    ck_released(address, G);
    ck_capture_ends(blocking, &graph);
    if (_i == 1) gvmm_buffer_release(first);
    gvmm_drain();
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuStreamDestroy(blocking));
    ck_no_warnings();
}
END_TEST

static void let_worker_look(int times)
{
    for (int i = 0; i < times; i++) {
        uint64_t seen = gvmm__worker_progress();
        gvmm__worker_wake();
        gvmm__worker_wait_past(seen);
    }
}

/* The graph is gone, the capture over: what the stream (the default one) had to do before may be under way yet. */
START_TEST(what_a_capture_held_waits_for_the_work_before_it)
{
    CUgraph graph;
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING), blocking = new_stream(CU_STREAM_DEFAULT);
    CUstream on = _i ? CU_STREAM_LEGACY : other, captures = _i ? blocking : other;
    gvmm_buffer *held = on_stream(on);
    uint64_t address = gvmm_buffer_address(held);
    gate *g = gate_on(on);
    ck_cu(cu->cuMemsetD8Async(address, 1, G, on));
    ck_cu(cu->cuStreamBeginCapture(captures, CU_STREAM_CAPTURE_MODE_RELAXED));
    gvmm_buffer_release(held);
    ck_capture_ends(captures, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    while (waiting() != 1 || gvmm__work_waiting()) sched_yield(); /* it can be marked now */
    gvmm__retire_mark();
    let_worker_look(2);
    ck_assert_uint_eq(waiting(), 1);
    ck_mapped(address);
    gate_open(g);
    gvmm_drain();
    ck_released(address, G);
    gate_end(g);
    ck_cu(cu->cuStreamDestroy(other));
    ck_cu(cu->cuStreamDestroy(blocking));
    ck_no_warnings();
}
END_TEST

/* Nor does it now: it makes no memory. */
START_TEST(an_empty_buffer_calls_no_driver)
{
    CUgraph graph;
    gvmm_stats before, after;
    gvmm_buffer *empty;
    hold_by_capture_and_let_go(on_stream(stream));
    ck_capture_ends(stream, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    while (gvmm__work_waiting()) sched_yield();
    gvmm_get_stats(NULL, &before);
    ck_ok(gvmm_buffer_create(&empty, deferring, 0, stream));
    gvmm_buffer_release(empty);
    gvmm_get_stats(NULL, &after);
    ck_assert_uint_eq(after.driver_calls, before.driver_calls);
    ck_assert_uint_eq(waiting(), 1);
    gvmm_drain();
}
END_TEST

static void *hold_and_end(void *buffer)
{
    CUgraph graph;
    hold_by_capture_and_let_go(buffer);
    ck_capture_ends(stream, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    return NULL;
}

/* A thread that has ended has left the stream to somebody, who may be about to begin a capture, and not to the thread that
 * has its place now. */
START_TEST(what_a_thread_has_left_is_marked_by_a_drain_alone)
{
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *held = on_stream(stream);
    uint64_t address = gvmm_buffer_address(held);
    in_thread(hold_and_end, held);
    for (int i = 0; i < 4; i++) in_thread(release_one, other);
    ck_mapped(address);
    ck_assert_uint_eq(waiting(), 1);
    gvmm_drain();
    ck_released(address, G);
    ck_cu(cu->cuStreamDestroy(other));
    ck_no_warnings();
}
END_TEST

static sem_t is_marking, may_mark;
static atomic_bool is_about_to_drain;
static _Thread_local bool stops_marking;

static CUresult record_when_allowed(CUevent event, CUstream on)
{
    if (stops_marking) {
        sem_post(&is_marking);
        while (sem_wait(&may_mark)) continue;
    }
    return cu->cuEventRecord(event, on);
}

static void *hold_and_mark(void *buffer)
{
    hold_and_end(buffer);
    while (gvmm__work_waiting()) sched_yield(); /* the worker leaves it to be marked */
    stops_marking = true;
    gvmm__retire_mark();
    return NULL;
}

/* When the worker has made a few rounds, in which a drain that does not wait has returned. */
static void *allow_after_a_while(void *unused)
{
    while (!atomic_load(&is_about_to_drain)) sched_yield();
    let_worker_look(20);
    sem_post(&may_mark);
    return unused;
}

/* What another thread is about to mark is neither unmarked nor on its way yet. */
START_TEST(a_drain_waits_for_what_is_being_marked)
{
    static gvmm_driver hooked;
    pthread_t marker, opener;
    gvmm_resource_release(deferring);
    hooked = *cu;
    hooked.cuEventRecord = record_when_allowed;
    use_driver(&hooked);
    deferring = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
    gvmm_buffer *held = on_stream(stream);
    uint64_t address = gvmm_buffer_address(held);
    sem_init(&is_marking, 0, 0);
    sem_init(&may_mark, 0, 0);
    atomic_store(&is_about_to_drain, false);
    ck_assert_int_eq(pthread_create(&marker, NULL, hold_and_mark, held), 0);
    while (sem_wait(&is_marking)) continue;
    ck_assert_int_eq(pthread_create(&opener, NULL, allow_after_a_while, NULL), 0);
    atomic_store(&is_about_to_drain, true);
    gvmm_drain();
    ck_assert_uint_eq(waiting(), 0);
    ck_released(address, G);
    pthread_join(marker, NULL);
    pthread_join(opener, NULL);
    ck_no_warnings();
}
END_TEST

/* If no event can be had while the stream captures, a wait would end the capture, and the memory would go without. */
START_TEST(a_capture_outlasts_a_mark_that_fails)
{
    CUgraph graph;
    gvmm_buffer *held = on_stream(stream);
    uint64_t address = gvmm_buffer_address(held);
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuStreamGetCtx", CUDA_ERROR_UNKNOWN}));
    hold_by_capture_and_let_go(held);
    ck_fails(gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    gvmm_drain();
    ck_names("buffer is NULL"); /* the caller's last failure */
    ck_mapped(address);
    ck_capture_ends(stream, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    gvmm_drain();
    ck_released(address, G);
    ck_no_warnings();
}
END_TEST

/* `call` fails at the release into a capture: it is held as ever, and seen to later. */
static void hold_while_it_fails(const char *call, CUresult status)
{
    CUgraph graph;
    gvmm_buffer *held = on_stream(stream);
    uint64_t address = gvmm_buffer_address(held);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    fault_call(call, 1, status);
    gvmm_buffer_release(held);
    ck_ok(gvmm_faults_set(NULL));
    ck_mapped(address);
    ck_capture_ends(stream, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    while (waiting()) {
        gvmm_drain();
        sched_yield();
    }
    ck_released(address, G);
    ck_no_warnings();
}

/* What a capture holds comes back to a thread of gvmm's, which can be had later if it cannot be had just now. */
START_TEST(a_capture_outlasts_a_thread_that_does_not_start) { hold_while_it_fails("malloc", CUDA_ERROR_OUT_OF_MEMORY); }
END_TEST

/* The first thing that is released, and the capture mode cannot be changed then. */
START_TEST(a_capture_outlasts_a_mode_that_stays)
{
    hold_while_it_fails("cuThreadExchangeStreamCaptureMode", CUDA_ERROR_UNKNOWN);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("deferred release beside captures");
    TCase *tests = tcase_create("captures");
    tcase_add_checked_fixture(tests, setup_deferring, teardown_deferring);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, unrelated_captures_stay_valid);
    tcase_add_test(tests, released_while_its_stream_captures);
    tcase_add_test(tests, default_stream_while_a_blocking_stream_captures);
    tcase_add_test(tests, many_that_wait_for_one_capture);
    tcase_add_loop_test(tests, one_stream_that_captures_holds_up_no_other, 0, 2);
    tcase_add_test(tests, default_stream_that_cannot_be_marked_while_a_blocking_stream_captures);
    tcase_add_loop_test(tests, what_a_capture_held_is_marked_by_the_thread_that_released_it, 0, 6);
    tcase_add_loop_test(tests, what_a_capture_held_waits_for_the_work_before_it, 0, 2);
    tcase_add_test(tests, an_empty_buffer_calls_no_driver);
    tcase_add_test(tests, what_a_thread_has_left_is_marked_by_a_drain_alone);
    tcase_add_test(tests, a_drain_waits_for_what_is_being_marked);
    tcase_add_test(tests, a_capture_outlasts_a_mark_that_fails);
    tcase_add_test(tests, a_capture_outlasts_a_thread_that_does_not_start);
    tcase_add_test(tests, a_capture_outlasts_a_mode_that_stays);
    return run_suites(suite, NULL);
}

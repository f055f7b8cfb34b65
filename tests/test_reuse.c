/* Kept memory: its contents, its figures, what fails, threads. To whom it goes and what is kept: test_reuse_kept.c. */
#include "reuse_kit.h"

/* ---- contents ---- */

START_TEST(contents_stay_unless_asked_for)
{
    gvmm_buffer *buffer = make(G, stream);
    uint64_t address = gvmm_buffer_address(buffer);
    fill(address, 0x5a, G);
    gvmm_buffer_release(buffer);
    buffer = make(G, stream);
    ck_filled(address, 0x5a, G);
    gvmm_buffer_release(buffer);

    gvmm_options options = keeping_options();
    options.zero_reused = true;
    keep_with(options);
    gvmm_stream streams[] = {stream, NULL};
    for (int i = 0; i < 2; i++) {
        buffer = make(G, streams[i]);
        fill(gvmm_buffer_address(buffer), 0x5a, G);
        gvmm_buffer_release(buffer);
        buffer = make(G, streams[i]);
        ck_cu(cu->cuCtxSynchronize()); /* in order of the stream */
        ck_filled(gvmm_buffer_address(buffer), 0, G);
        gvmm_buffer_release(buffer);
        gvmm_resource_trim(keeping, 0);
    }
    ck_assert_uint_eq(figures().reused, 2);
    gvmm_drain();
    fault_call("cuMemsetD8Async", 1, CUDA_ERROR_UNKNOWN);
    leave(G, stream);
    buffer = make(G, stream); /* what cannot be made zero is not handed out */
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_filled(gvmm_buffer_address(buffer), 0, G);
    ck_assert_uint_eq(figures().reused, 2);
    ck_assert_uint_eq(figures().buffers, 1);
    gvmm_buffer_release(buffer);
    options.location = GVMM_LOCATION_HOST;
    options.handle_type = GVMM_HANDLE_NONE;
    gvmm_resource *none;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("zero_reused");
}
END_TEST

/* ---- figures, failures ---- */

START_TEST(the_figures_know)
{
    gvmm_stats all, before = figures();
    gvmm_get_stats(NULL, &all);
    gvmm_buffer *a = make(G, stream), *b = make(G, stream);
    gvmm_buffer_release(a);
    a = make(G, stream);
    gvmm_stats now = figures(), all_now;
    gvmm_get_stats(NULL, &all_now);
    ck_assert_uint_eq(now.buffers - before.buffers, 2);
    ck_assert_uint_eq(all_now.buffers - all.buffers, 2);
    ck_assert_uint_eq(now.allocations - before.allocations, 3);
    ck_assert_uint_eq(now.reused - before.reused, 1);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    now = figures();
    ck_assert_uint_eq(now.buffers, before.buffers);
    ck_assert_uint_eq(now.kept_bytes, 2 * G);
    ck_assert_uint_eq(now.physical_bytes, 2 * G);
    uint64_t reused = now.reused;
    gvmm_resource *same = keeping;
    gvmm_buffer *holder = make(G, stream); /* the resource's figures outlive its cache */
    gvmm_resource_release(same);
    gvmm_drain();
    now = figures();
    ck_assert_uint_eq(now.buffers, 1);
    ck_assert_uint_eq(now.reused, reused + 1);
    ck_assert_uint_eq(now.kept_bytes, 0);
    gvmm_buffer_release(holder);
    gvmm_drain();
    begin();
}
END_TEST

static void *release_without_memory(void *buffer)
{
    ck_fails(gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    fault_call("malloc", 1, CUDA_ERROR_OUT_OF_MEMORY); /* a thread's first needs some */
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    fault(0, false);
    ck_names("buffer is NULL");
    return NULL;
}

static void *keep_one(void *unused)
{
    leave(G, stream);
    return unused;
}

/* What a thread has left is the next one's, which needs no host memory of its own. */
START_TEST(threads_that_end_leave_their_place)
{
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        fault_call("malloc", i ? 1 : 1000, CUDA_ERROR_OUT_OF_MEMORY);
        ck_assert_int_eq(pthread_create(&thread, NULL, keep_one, NULL), 0);
        pthread_join(thread, NULL);
        ck_assert_uint_eq(gvmm_faults_injected(), 0);
        fault(0, false);
    }
    ck_assert_uint_eq(kept(), G);
    ck_assert_uint_eq(figures().reused, 2);
}
END_TEST

/* What never fails leaves the thread's last failure as it was, whether it can keep something or not. */
START_TEST(what_cannot_be_kept_is_no_failure)
{
    pthread_t thread;
    leave(G, stream);
    ck_fails(gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    fault_call("malloc", 1, CUDA_ERROR_OUT_OF_MEMORY); /* no thread can be had, so it waits */
    ck_assert_uint_eq(gvmm_resource_trim(keeping, 0), G);
    fault(0, false);
    ck_names("buffer is NULL");
    ck_assert_int_eq(pthread_create(&thread, NULL, release_without_memory, make(G, stream)), 0);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(kept(), 0);
    ck_no_warnings();
}
END_TEST

/* Whatever fails: the memory is kept or goes back, and a buffer is made or nothing is left of it. */
static void sweep(bool outlive, bool onwards)
{
    for (uint64_t nth = 1, fired = 1; fired; nth++) {
        ck_assert_uint_lt(nth, 200);
        gvmm_options options = keeping_options();
        options.streams_outlive = outlive;
        options.zero_reused = true;
        keep_with(options);
        gvmm_drain(); /* nobody makes calls when a fault is planned */
        CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
        gvmm_buffer *made[3] = {make(G, stream), make(G, stream), NULL};
        fault(nth, onwards);
        gvmm_buffer_release(made[0]);
        ck_ok(gvmm_buffer_close_deferred(made[1], NULL));
        made[0] = NULL;
        gvmm_result a = gvmm_buffer_create(&made[0], keeping, G, stream);
        gvmm_result b = gvmm_buffer_create(&made[2], keeping, G, other);
        gvmm_resource_trim(keeping, G);
        gvmm_drain();
        fired = gvmm_faults_injected();
        ck_ok(gvmm_faults_set(NULL));
        ck_assert((a == GVMM_OK) == (made[0] != NULL) && (b == GVMM_OK) == (made[2] != NULL));
        ck_assert_uint_eq(figures().buffers, (uint64_t)(made[0] != NULL) + (made[2] != NULL));
        for (int i = 0; i < 3; i++) gvmm_buffer_release(made[i]);
        gvmm_buffer *works = make(G, stream);
        ck_filled(gvmm_buffer_address(works), 0, G);
        gvmm_buffer_release(works);
        gvmm_resource_trim(keeping, 0);
        gvmm_drain();
        ck_assert_uint_eq(figures().physical_bytes, 0);
        ck_cu(cu->cuStreamDestroy(other));
        atomic_store(&warning_count, 0); /* some were right */
    }
}

START_TEST(whatever_fails_nothing_is_lost) { sweep(_i & 1, _i & 2); }
END_TEST

/* ---- threads ---- */

enum { THREADS = 8, ROUNDS = 300 };

static void *make_and_release(void *data)
{
    ck_cu(cu->cuCtxSetCurrent(data));
    CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < ROUNDS; i++) {
        gvmm_buffer *a = make(G, own), *b = make((1 + i % 2) * G, own);
        gvmm_buffer_release(a);
        gvmm_buffer_release(b);
    }
    ck_cu(cu->cuStreamDestroy(own));
    return NULL;
}

static void pair(bool close, gvmm_stream on)
{
    gvmm_buffer *buffer = make(G, on);
    if (close) ck_ok(gvmm_buffer_close_deferred(buffer, NULL));
    gvmm_buffer_release(buffer);
}

static uint64_t calls_counted(void) { return stats_of(NULL).driver_calls; }

static unsigned calls_made(void)
{
    unsigned all = 0;
    for (int call = 0; call < GVMM_CALL_COUNT; call++) all += calls_of((gvmm_driver_call)call);
    return all;
}

/* Whoever counts them. */
START_TEST(every_driver_call_is_counted)
{
    CUgraph graph;
    gvmm_options options = keeping_options();
    for (int i = 0; i < 8; i++) {
        gvmm_stream on = i & 1 ? stream : NULL;
        options.streams_outlive = i & 4;
        keep_with(options);
        pair(i & 2, on);
        gvmm_drain();
        uint64_t before = calls_counted();
        watch();
        for (int k = 0; k < 5; k++) pair(i & 2, on);
        ck_assert_uint_eq(calls_counted() - before, calls_made());
        ck_assert_uint_eq(figures().reused, 5);
    }
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    uint64_t before = calls_counted();
    watch();
    gvmm_buffer *fresh = make(G, stream);
    ck_assert_uint_eq(calls_counted() - before, calls_made());
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    gvmm_buffer_release(fresh);
}
END_TEST

START_TEST(threads_share_it)
{
    pthread_t threads[THREADS];
    CUcontext context;
    ck_cu(cu->cuCtxGetCurrent(&context));
    for (int round = 0; round < 2; round++) { /* the second ones take over what the first have left */
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, make_and_release, context), 0);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
    gvmm_stats now = figures();
    ck_assert_uint_eq(now.buffers, 0);
    ck_assert_uint_eq(now.allocations, 2 * THREADS * ROUNDS * 2);
    ck_assert_uint_gt(now.reused, THREADS * ROUNDS);
    ck_assert_uint_le(now.kept_bytes, LIMIT * G);
}
END_TEST

static void *release_in_thread(void *data)
{
    gvmm_buffer_release(data);
    return NULL;
}

START_TEST(what_one_thread_releases_another_is_given)
{
    for (int i = 0; i < 20; i++) {
        gvmm_buffer *buffer = make(G, stream);
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, release_in_thread, buffer), 0);
        pthread_join(thread, NULL);
    }
    ck_assert_uint_eq(figures().reused, 19);
    ck_assert_uint_eq(figures().memories, 1);
}
END_TEST

static gvmm_resource *to_end;

static void end_resource(void *unused, const gvmm_error *error)
{
    (void)unused;
    (void)error;
    gvmm_resource_release(to_end);
    to_end = NULL;
}

/* It would wait for the call that it is told of, which drops what another resource needs the room of. */
START_TEST(a_warning_handler_may_end_a_cache_that_drops)
{
    gvmm_buffer *buffers[2];
    to_end = resource_with(keeping_options());
    for (int i = 0; i < 2; i++) ck_ok(gvmm_buffer_create(&buffers[i], to_end, G, stream));
    for (int i = 0; i < 2; i++) gvmm_buffer_release(buffers[i]);
    gvmm_set_warning_handler(end_resource, NULL);
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuThreadExchangeStreamCaptureMode", CUDA_ERROR_UNKNOWN}));
    ck_assert(gvmm__reuse_trim_all());
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_ptr_null(to_end);
}
END_TEST

enum { KEPT = 10 };

static void *keep_many(void *chunks)
{
    gvmm_buffer *many[KEPT];
    for (int i = 0; i < KEPT; i++) many[i] = make((size_t)(uintptr_t)chunks * G, stream);
    for (int i = 0; i < KEPT; i++) gvmm_buffer_release(many[i]);
    return NULL;
}

static atomic_bool going, over;

/* By a buffer, which holds the resource. Check's assertions would take longer than all of it. */
static void *make_until_told(void *of)
{
    while (!atomic_load(&over)) {
        gvmm_buffer *buffer;
        if (gvmm_buffer_create(&buffer, gvmm_buffer_resource(of), G, stream)) abort();
        gvmm_buffer_release(buffer);
        atomic_store(&going, true);
    }
    return NULL;
}

static void wait_until_it_goes(void)
{
    atomic_store(&going, false);
    while (!atomic_load(&going)) sched_yield();
}

/* The cache's end finds what it has in the middle of what others keep: it comes and goes meanwhile. */
START_TEST(a_thread_goes_on_while_the_last_user_leaves)
{
    gvmm_options options = keeping_options();
    options.reuse_limit = 6 * KEPT * G;
    options.streams_outlive = true;
    for (int round = 0; round < 60; round++) {
        pthread_t busy, many;
        keep_with(options);
        gvmm_buffer *buffer = make(4 * G, stream);
        keep_many((void *)2);
        over = false;
        ck_assert_int_eq(pthread_create(&busy, NULL, make_until_told, buffer), 0);
        wait_until_it_goes();
        ck_assert_int_eq(pthread_create(&many, NULL, keep_many, (void *)3), 0);
        pthread_join(many, NULL);
        wait_until_it_goes();
        gvmm_resource_release(keeping);
        keeping = NULL;
        over = true;
        pthread_join(busy, NULL);
        gvmm_buffer_release(buffer);
        ck_nothing_left();
    }
    begin();
}
END_TEST

static unsigned waits;

static CUresult count_waits(CUstream s, CUevent event, unsigned flags)
{
    waits++;
    return cu->cuStreamWaitEvent(s, event, flags);
}

/* By its handle, the stream is the same. */
START_TEST(a_stream_is_told_by_its_number)
{
    static gvmm_driver hooked;
    gvmm_resource_release(keeping);
    hooked = *cu;
    hooked.cuStreamWaitEvent = count_waits;
    number_streams_anew(&hooked);
    use_driver(&hooked);
    begin();
    for (unsigned i = 0; i < 6; i++) {
        streams_before = i / 2;
        gvmm_buffer *buffer = make(G, stream);
        ck_assert_uint_eq(waits, i / 2); /* the second of each stream's has it at once */
        gvmm_buffer_release(buffer);
    }
    ck_assert_uint_eq(figures().reused, 5);
}
END_TEST

/* ---- a machine of its own ---- */

static void *keep_and_stay(void *unused)
{
    leave(G, stream);
    while (!atomic_load(&over)) atomic_store(&going, true);
    return unused;
}

/* What a thread still has of a cache that has ended is the host's alone. */
START_TEST(the_driver_can_be_replaced_while_threads_live)
{
    const gvmm_driver *used;
    pthread_t thread;
    ck_ok(gvmm_driver_get(&used));
    atomic_store(&over, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, keep_and_stay, NULL), 0);
    wait_until_it_goes();
    gvmm_resource_release(keeping);
    gvmm_resource_release(plain);
    gvmm_drain();
    ck_ok(gvmm_driver_install(used));
    ck_fails(gvmm_host_allocator_install(NULL), GVMM_E_INVALID);
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    ck_ok(gvmm_host_allocator_install(NULL));
    plain = resource_with(waiting_options());
    begin();
}
END_TEST

static gvmm_buffer *restoring;
static gvmm_stats meanwhile;

static CUresult release_and_copy(CUdeviceptr to, const void *from, size_t size, CUstream on)
{
    gvmm_buffer_release(restoring);
    gvmm_get_stats(NULL, &meanwhile);
    return gvmm_sim_driver()->cuMemcpyHtoDAsync(to, from, size, on);
}

/* Released while another thread restores it by tag: what is being copied there must not be another's by then. */
START_TEST(what_is_being_restored_is_not_kept)
{
    gvmm_driver table = *gvmm_sim_driver();
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *resource;
    ck_ok(gvmm_sim_reset(NULL));
    table.cuMemcpyHtoDAsync = release_and_copy;
    ck_ok(gvmm_driver_install(&table));
    options.reuse_limit = (size_t)64 << 20;
    ck_ok(gvmm_resource_create(&resource, 0, &options));
    ck_ok(gvmm_buffer_create(&restoring, resource, 1, NULL));
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
    ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
    ck_assert_uint_eq(meanwhile.buffers, 0);
    ck_assert_uint_eq(meanwhile.kept_bytes, 0);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

static _Atomic(gvmm_buffer *) released_meanwhile;

static CUresult release_and_unmap(CUdeviceptr address, size_t size)
{
    gvmm_buffer_release(atomic_exchange(&released_meanwhile, NULL));
    return gvmm_sim_driver()->cuMemUnmap(address, size);
}

/* An evict gives up what is kept, and waits for that; what another thread keeps meanwhile it evicts. */
START_TEST(what_was_evicted_in_the_cache_is_not_handed_out)
{
    gvmm_driver table = *gvmm_sim_driver();
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_evict_options drop = GVMM_EVICT_OPTIONS_INIT;
    drop.contents = GVMM_CONTENTS_DROP;
    gvmm_resource *resource;
    gvmm_buffer *buffer;
    gvmm_stats stats;
    ck_ok(gvmm_sim_reset(NULL));
    table.cuMemUnmap = release_and_unmap;
    ck_ok(gvmm_driver_install(&table));
    options.reuse_limit = (size_t)64 << 20;
    ck_ok(gvmm_resource_create(&resource, 0, &options));
    ck_ok(gvmm_buffer_create(&buffer, resource, 1, NULL));
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_buffer_create(&buffer, resource, (size_t)4 << 20, NULL));
    atomic_store(&released_meanwhile, buffer);
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, &drop));
    gvmm_get_stats(resource, &stats);
    ck_assert_uint_eq(stats.kept_bytes, (size_t)4 << 20);
    ck_assert_uint_eq(stats.physical_bytes, 0);
    ck_ok(gvmm_buffer_create(&buffer, resource, (size_t)4 << 20, NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
    gvmm_get_stats(resource, &stats);
    ck_assert_uint_eq(stats.reused, 0);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reuse");
    TCase *watched = add_watched_case(suite, "contents, figures, threads");
    tcase_add_checked_fixture(watched, begin, finish);
    tcase_add_test(watched, contents_stay_unless_asked_for);
    tcase_add_test(watched, the_figures_know);
    tcase_add_test(watched, every_driver_call_is_counted);
    tcase_add_test(watched, threads_share_it);
    tcase_add_test(watched, what_one_thread_releases_another_is_given);
    TCase *unwatched = add_case(suite, "that nobody watches");
    tcase_add_checked_fixture(unwatched, begin, finish);
    tcase_add_test(unwatched, a_thread_goes_on_while_the_last_user_leaves);
    tcase_add_test(unwatched, the_driver_can_be_replaced_while_threads_live);
    tcase_add_test(unwatched, a_stream_is_told_by_its_number);
    TCase *faults = add_case(suite, "faults");
    tcase_add_checked_fixture(faults, begin, finish);
    tcase_add_test(faults, threads_that_end_leave_their_place);
    tcase_add_test(faults, what_cannot_be_kept_is_no_failure);
    tcase_add_test(faults, a_warning_handler_may_end_a_cache_that_drops);
    tcase_add_loop_test(faults, whatever_fails_nothing_is_lost, 0, 4);
    TCase *alone = tcase_create("a machine of its own");
    tcase_set_timeout(alone, 60);
    suite_add_tcase(suite, alone);
    tcase_add_test(alone, what_is_being_restored_is_not_kept);
    tcase_add_test(alone, what_was_evicted_in_the_cache_is_not_handed_out);
    return run_suites(suite, NULL);
}

/* Deferred release: nothing is unmapped early, nothing blocks, nothing warns, nothing is lost. Work that lasts is a
 * host function at a gate. Beside captures: test_deferred_captures.c. */
#include "deferred_kit.h"

#include <limits.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

START_TEST(a_release_returns_while_work_runs)
{
    CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *a = on_stream(own), *b = on_stream(own), *idle = on_stream(stream);
    uint64_t at_a = gvmm_buffer_address(a), at_b = gvmm_buffer_address(b), at_idle = gvmm_buffer_address(idle);
    gate *g = gate_on(own);
    gvmm_buffer_release(a); /* neither of these waits: the gate is shut */
    ck_ok(gvmm_buffer_close_deferred(b, NULL));
    ck_assert(gvmm_buffer_is_closed(b));
    ck_assert_uint_eq(gvmm_buffer_address(b), 0);
    gvmm_buffer_release(idle);
    while (waiting() > 2) sched_yield(); /* an idle stream's memory goes back meanwhile */
    ck_released(at_idle, G);
    ck_mapped(at_a);
    ck_mapped(at_b);
    gvmm_buffer_release(b);
    gate_open(g);
    gvmm_drain();
    ck_released(at_a, G);
    ck_released(at_b, G);
    gate_end(g);
    ck_cu(cu->cuStreamDestroy(own));
    ck_no_warnings();
}
END_TEST

START_TEST(the_stream_may_be_destroyed_after_the_call)
{
    CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *buffer = on_stream(own);
    uint64_t address = gvmm_buffer_address(buffer);
    gate *g = gate_on(own);
    CUevent passed;
    ck_cu(cu->cuEventCreate(&passed, CU_EVENT_DISABLE_TIMING));
    ck_cu(cu->cuMemsetD8Async(address, 1, G, own));
    ck_cu(cu->cuEventRecord(passed, own));
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuStreamDestroy(own));
    ck_mapped(address);
    gate_open(g);
    ck_cu(cu->cuEventSynchronize(passed));
    gvmm_drain();
    ck_released(address, G);
    ck_cu(cu->cuEventDestroy(passed));
    free(g);
    ck_no_warnings();
}
END_TEST

START_TEST(the_default_stream_is_marked_too)
{
    gvmm_buffer *buffer = on_stream(NULL);
    uint64_t address = gvmm_buffer_address(buffer);
    gate *g = gate_on(CU_STREAM_LEGACY);
    gvmm_buffer_release(buffer);
    ck_mapped(address);
    gate_open(g);
    gvmm_drain();
    ck_released(address, G);
    gate_end(g);
    ck_no_warnings();
}
END_TEST

/* No event can be had, or nothing can be asked: the call waits itself. Nothing is lost. */
START_TEST(what_cannot_be_deferred_is_waited_for)
{
    const char *calls[] = {"cuEventCreate",  "cuEventRecord",       "cuCtxPushCurrent",
                           "cuStreamGetCtx", "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int legacy = 0; legacy < 2; legacy++) {
            gvmm_buffer *buffer = on_stream(legacy ? NULL : stream);
            uint64_t address = gvmm_buffer_address(buffer);
            ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, calls[i], CUDA_ERROR_UNKNOWN}));
            gvmm_buffer_release(buffer);
            gvmm_drain();
            ck_ok(gvmm_faults_set(NULL));
            ck_released(address, G);
        }
}
END_TEST

static atomic_bool is_open;

static void *open_soon(void *g)
{
    for (int i = 0; i < 2000; i++) sched_yield();
    atomic_store(&is_open, true);
    gate_open(g);
    return NULL;
}

/* It does wait: the work that uses the memory is done when it goes, on the default stream too. */
START_TEST(what_is_waited_for_is_done)
{
    gvmm_stream on = _i ? CU_STREAM_LEGACY : stream;
    pthread_t opener;
    gvmm_buffer *buffer = on_stream(on);
    uint64_t address = gvmm_buffer_address(buffer);
    gate *g = gate_on(on);
    ck_cu(cu->cuMemsetD8Async(address, 1, G, on));
    atomic_store(&is_open, false);
    ck_assert_int_eq(pthread_create(&opener, NULL, open_soon, g), 0);
    fault_call("cuEventCreate", 1, CUDA_ERROR_UNKNOWN);
    gvmm_buffer_release(buffer);
    ck_assert(atomic_load(&is_open));
    ck_released(address, G);
    pthread_join(opener, NULL);
    gate_end(g);
    ck_no_warnings();
}
END_TEST

/* The driver ends before the process does; whoever drains then, in an atexit function perhaps, must get back. */
START_TEST(a_driver_that_has_shut_down_ends_the_waiting)
{
    gvmm_buffer *buffer = on_stream(stream);
    uint64_t address = gvmm_buffer_address(buffer);
    gate *g = gate_on(stream);
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuThreadExchangeStreamCaptureMode", CUDA_ERROR_DEINITIALIZED}));
    gate_end(g);
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_released(address, G);
    ck_no_warnings();
}
END_TEST

/* The address of what was released behind work that is done when a call, or every call, fails. */
static uint64_t released_when(const char *call, bool onwards)
{
    gvmm_buffer *buffer = on_stream(stream);
    uint64_t address = gvmm_buffer_address(buffer);
    gate *g = gate_on(stream);
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, onwards, call, CUDA_ERROR_ILLEGAL_ADDRESS}));
    gate_end(g);
    gvmm_drain();
    return address;
}

/* If the driver refuses everything from some moment on nothing can go, and nobody waits for ever. It goes when the driver is
 * well again. What fails once is tried again. */
START_TEST(a_driver_that_refuses_everything_holds_nobody_up)
{
    uint64_t address = released_when("cuThreadExchangeStreamCaptureMode", false);
    ck_released(address, G);
    address = released_when(NULL, true);
    ck_mapped(address);
    ck_assert_uint_eq(waiting(), 1);
    ck_ok(gvmm_faults_set(NULL));
    while (waiting()) sched_yield();
    ck_released(address, G);
    ck_no_warnings();
}
END_TEST

static atomic_bool was_replaceable;

static CUresult exchange_while_held(CUstreamCaptureMode *mode)
{
    if (gvmm__on_worker() && !gvmm__held()) atomic_store(&was_replaceable, true);
    return cu->cuThreadExchangeStreamCaptureMode(mode);
}

/* The last thing that holds the driver goes on gvmm's thread, which has a call to make after that. */
START_TEST(the_driver_is_not_replaced_under_the_worker)
{
    static gvmm_driver hooked;
    hooked = *cu;
    hooked.cuThreadExchangeStreamCaptureMode = exchange_while_held;
    gvmm_resource_release(deferring);
    use_driver(&hooked);
    deferring = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
    gvmm_buffer *last = on_stream(stream);
    gvmm_resource_release(plain);
    gvmm_resource_release(deferring);
    plain = deferring = NULL;
    gvmm_buffer_release(last);
    gvmm_drain();
    ck_assert(!gvmm__held());
    ck_assert(!atomic_load(&was_replaceable));
    plain = resource_with(waiting_options());
}
END_TEST

static atomic_bool is_ahead;

/* In place of the C library's: seen from the worker, as if the clock were set back by an hour once it has looked. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
    int r = (int)syscall(SYS_clock_gettime, clock, out);
    if (clock == CLOCK_REALTIME && atomic_load(&is_ahead)) out->tv_sec += 3600;
    return r;
}

START_TEST(a_clock_that_is_set_back_holds_nothing_up)
{
    if (on_gpu) return; /* whose driver has a use for the clock, too */
    gvmm_buffer *buffer = on_stream(stream);
    uint64_t address = gvmm_buffer_address(buffer);
    gate *g = gate_on(stream);
    atomic_store(&is_ahead, true);
    gvmm_buffer_release(buffer);
    for (uint64_t seen = gvmm__worker_progress(); gvmm__worker_progress() < seen + 2;) sched_yield();
    gate_end(g);
    gvmm_drain();
    ck_released(address, G);
    atomic_store(&is_ahead, false);
}
END_TEST

/* Device memory that waits to be given back is waited for before an allocation says that there is none. */
START_TEST(an_allocation_that_finds_no_memory_drains)
{
    if (on_gpu) return; /* it would fill the card */
    size_t half = (size_t)100 << 30;
    gvmm_buffer *first, *second;
    ck_ok(gvmm_buffer_create(&first, deferring, half, stream));
    gate *g = gate_on(stream);
    gvmm_buffer_release(first);
    gate_open(g);
    ck_ok(gvmm_buffer_create(&second, deferring, half, stream));
    gvmm_buffer_release(second);
    gate_end(g);
}
END_TEST

START_TEST(many_releases_in_flight)
{
    enum { N = 2000 };
    gate *g = gate_on(stream);
    for (int i = 0; i < N; i++) gvmm_buffer_release(on_stream(i % 2 ? stream : NULL));
    gate_open(g);
    gvmm_drain();
    ck_nothing_left();
    gate_end(g);
    ck_no_warnings();
}
END_TEST

START_TEST(host_memory_has_nothing_to_wait_for)
{
    gvmm_options options = on_host();
    options.release_mode = GVMM_RELEASE_DEFERRED;
    gvmm_resource *host = resource_with(options);
    gvmm_buffer *plain_one = create(host, G), *streamed;
    ck_ok(gvmm_buffer_create(&streamed, host, G, stream));
    uint64_t a = gvmm_buffer_address(plain_one), b = gvmm_buffer_address(streamed);
    gate *g = gate_on(stream);
    gvmm_buffer_release(plain_one);
    ck_released(a, G);
    gvmm_buffer_release(streamed);
    gvmm_resource_release(host);
    ck_mapped(b);
    gate_open(g);
    gvmm_drain();
    ck_released(b, G);
    gate_end(g);
    ck_no_warnings();
}
END_TEST

static void release_buffer(void *buffer) { gvmm_buffer_release(buffer); }

/* Where every driver call is refused nothing can be asked, recorded or given back. Another thread sees to it. */
START_TEST(what_a_host_function_releases_is_not_lost)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    if (_i == 1) options.reuse_limit = G;
    if (_i == 2) options.location = GVMM_LOCATION_HOST;
    if (_i == 2) options.handle_type = GVMM_HANDLE_NONE;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *first = NULL, *second = NULL;
    ck_ok(gvmm_buffer_create(&first, resource, G, _i == 2 ? NULL : stream));
    ck_ok(gvmm_buffer_create(&second, resource, G, _i == 2 ? NULL : stream));
    uint64_t at_first = gvmm_buffer_address(first), at_second = gvmm_buffer_address(second);
    ck_cu(cu->cuLaunchHostFunc(stream, release_buffer, first));
    ck_cu(cu->cuLaunchHostFunc(stream, release_buffer, second));
    ck_cu(cu->cuStreamSynchronize(stream));
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_released(at_first, G);
    ck_released(at_second, G);
    ck_no_warnings();
}
END_TEST

static gvmm_resource *to_trim;

static void trim(void *unused)
{
    (void)unused;
    gvmm_resource_trim(to_trim, 0);
}

/* What was kept has its event. */
START_TEST(what_a_host_function_trims_goes)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = G;
    gvmm_buffer *buffer;
    to_trim = resource_with(options);
    ck_ok(gvmm_buffer_create(&buffer, to_trim, G, stream));
    uint64_t address = gvmm_buffer_address(buffer);
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuLaunchHostFunc(stream, trim, NULL));
    ck_cu(cu->cuStreamSynchronize(stream));
    while (waiting()) sched_yield();
    ck_released(address, G);
    gvmm_resource_release(to_trim);
    ck_no_warnings();
}
END_TEST

static CUstreamCaptureMode mode_of_thread(void)
{
    CUstreamCaptureMode was = CU_STREAM_CAPTURE_MODE_RELAXED, relaxed;
    ck_cu(cu->cuThreadExchangeStreamCaptureMode(&was));
    relaxed = was;
    ck_cu(cu->cuThreadExchangeStreamCaptureMode(&relaxed));
    return was;
}

/* Whoever releases, or marks what a capture held, has the capture mode that he had. */
START_TEST(the_capture_mode_stays_as_it_was)
{
    CUstreamCaptureMode mode = (CUstreamCaptureMode)_i, before = mode;
    gvmm_buffer *held = on_stream(stream), *buffer = on_stream(NULL);
    ck_cu(cu->cuThreadExchangeStreamCaptureMode(&before));
    gvmm_buffer_release(buffer);
    ck_assert_int_eq(mode_of_thread(), mode);
    hold_and_let_go_idle(held);
    ck_assert_int_eq(mode_of_thread(), mode);
    gvmm__retire_mark();
    ck_assert_int_eq(mode_of_thread(), mode);
    gvmm_drain();
    ck_assert_int_eq(mode_of_thread(), mode);
    ck_cu(cu->cuThreadExchangeStreamCaptureMode(&before));
}
END_TEST

/* As src/retire.c does it. */
static unsigned lane_of(gvmm_stream s)
{
    uint64_t key = ((uint64_t)(uintptr_t)s ^ (uint64_t)(uintptr_t)deferring->device.primary) * 0x9e3779b97f4a7c15u;
    return (unsigned)(key >> 58);
}

/* Of more streams than there are lanes, two share one. What is not done of one holds up nothing of the other. */
START_TEST(streams_that_share_a_lane)
{
    enum { N = 65 };
    CUstream streams[N], of_lane[64] = {NULL}, busy = NULL, idle = NULL;
    for (int i = 0; i < N; i++) {
        streams[i] = new_stream(CU_STREAM_NON_BLOCKING);
        CUstream *there = &of_lane[lane_of(streams[i])];
        if (*there) busy = *there, idle = streams[i];
        *there = streams[i];
    }
    gvmm_buffer *first = on_stream(busy), *second = on_stream(busy), *others[3];
    uint64_t at_first = gvmm_buffer_address(first), at_second = gvmm_buffer_address(second);
    for (int i = 0; i < 3; i++) others[i] = on_stream(idle);
    gate *g = gate_on(busy);
    gvmm_buffer_release(first);
    for (int i = 0; i < 3; i++) {
        gvmm_buffer_release(others[i]);
        while (waiting() > (i < 1 ? 1 : 2)) sched_yield();
        if (i == 0) gvmm_buffer_release(second);
    }
    ck_mapped(at_first);
    ck_mapped(at_second);
    gate_end(g);
    gvmm_drain();
    ck_assert_uint_eq(waiting(), 0);
    ck_nothing_left();
    for (int i = 0; i < N; i++) ck_cu(cu->cuStreamDestroy(streams[i]));
    ck_no_warnings();
}
END_TEST

/* Also what had to be waited for by who marks it. */
START_TEST(what_is_waited_for_counts_as_returned)
{
    gvmm_buffer *held = on_stream(stream);
    hold_and_let_go_idle(held);
    uint64_t before = gvmm__retire_returned();
    fault_call("cuStreamGetCtx", 1, CUDA_ERROR_UNKNOWN);
    gvmm__retire_mark();
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(gvmm__retire_returned(), before + 1);
    ck_nothing_left();
}
END_TEST

static void *release_many(void *s)
{
    for (int i = 0; i < 200; i++) {
        gvmm_buffer *a = on_stream(s), *b = grow(a, 2 * G);
        gvmm_buffer_release(a);
        ck_ok(gvmm_buffer_close_deferred(b, NULL));
        gvmm_buffer_release(b);
        if (i % 50 == 0) gvmm_drain();
    }
    return NULL;
}

START_TEST(many_threads_release)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, release_many, i % 2 ? stream : NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    gvmm_drain();
    ck_nothing_left();
    ck_no_warnings();
}
END_TEST

static atomic_bool is_drained, goes_on;
static gvmm_stream in_turn[2];

/* On two streams in turn, so that there is always one that waits. */
static void *release_until_drained(void *context)
{
    gate *before = NULL;
    ck_cu(cu->cuCtxSetCurrent(context));
    for (unsigned i = 0; !atomic_load(&is_drained); i++) {
        gvmm_buffer *buffer = on_stream(in_turn[i % 2]);
        gate *g = gate_on(in_turn[i % 2]);
        gvmm_buffer_release(buffer);
        if (before) gate_end(before);
        before = g;
        atomic_store(&goes_on, true);
    }
    gate_end(before);
    return NULL;
}

/* A drain, and so an allocation that finds no memory, waits for what there is, and not until all threads pause. */
START_TEST(a_drain_ends_while_others_go_on_releasing)
{
    pthread_t other;
    CUcontext context;
    ck_cu(cu->cuCtxGetCurrent(&context));
    for (int i = 0; i < 2; i++) in_turn[i] = new_stream(CU_STREAM_NON_BLOCKING);
    atomic_store(&is_drained, false);
    atomic_store(&goes_on, false);
    ck_assert_int_eq(pthread_create(&other, NULL, release_until_drained, context), 0);
    while (!atomic_load(&goes_on)) sched_yield();
    if (_i == 0) gvmm_drain();
    else if (_i == 1) gvmm__drain();
    else gvmm__drain_released();
    atomic_store(&is_drained, true);
    pthread_join(other, NULL);
    for (int i = 0; i < 2; i++) ck_cu(cu->cuStreamDestroy(in_turn[i]));
    ck_no_warnings();
}
END_TEST

/* A process has a limited number of keys for what is a thread's own. Without one of its own gvmm takes nobody else's, and
 * does its work. */
START_TEST(without_a_key_nobody_elses_is_taken)
{
    static pthread_key_t keys[PTHREAD_KEYS_MAX];
    static char values[PTHREAD_KEYS_MAX];
    size_t count = 0;
    uint64_t block;
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = G;
    const void *first = pthread_getspecific(0);
    while (count < PTHREAD_KEYS_MAX && pthread_key_create(&keys[count], NULL) == 0) count++;
    for (size_t i = 0; i < count; i++) ck_assert_int_eq(pthread_setspecific(keys[i], &values[i]), 0);
    if (count && keys[0] == 0) first = &values[0];
    gvmm_resource *keeping = resource_with(options);
    gvmm_pool *pool;
    ck_ok(gvmm_pool_create(&pool, keeping, NULL));
    ck_ok(gvmm_pool_malloc(&block, pool, 512, stream));
    ck_ok(gvmm_pool_free(pool, block, stream));
    gvmm_buffer_release(create(keeping, G));
    gvmm_buffer_release(create(keeping, G));
    gvmm_stats stats;
    gvmm_get_stats(keeping, &stats);
    ck_assert_uint_eq(stats.reused, 1);
    gvmm_pool_release(pool);
    gvmm_resource_release(keeping);
    ck_assert_ptr_eq(pthread_getspecific(0), first);
    for (size_t i = 0; i < count; i++) {
        ck_assert_ptr_eq(pthread_getspecific(keys[i]), &values[i]);
        pthread_key_delete(keys[i]);
    }
}
END_TEST

typedef struct asking {
    job job;
    sigset_t mask;
} asking;

static void ask_mask(job *self) { pthread_sigmask(SIG_BLOCK, NULL, &((asking *)self)->mask); }

/* A signal that the program blocks in its threads would end it there; one that it handles is not to run on a stranger. A
 * crash is told as ever. */
START_TEST(no_signal_goes_to_gvmms_thread)
{
    asking a = {.job = {.run = ask_mask}};
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    ck_ok(gvmm__worker_start());
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    gvmm__work(&a.job);
    gvmm_drain();
    for (int signal = 1; signal < 32; signal++)
        ck_assert_int_eq(sigismember(&before, signal), sigismember(&after, signal));
    ck_assert(sigismember(&a.mask, SIGTERM) && sigismember(&a.mask, SIGINT) && sigismember(&a.mask, SIGUSR1));
    ck_assert(!sigismember(&a.mask, SIGSEGV) && !sigismember(&a.mask, SIGABRT));
}
END_TEST

static job turns[2];

static void hand_the_other_over(job *self)
{
    if (!atomic_load(&is_drained)) gvmm__work(&turns[self == &turns[0]]);
}

START_TEST(a_drain_ends_while_gvmms_thread_has_more_to_do)
{
    atomic_store(&is_drained, false);
    for (int i = 0; i < 2; i++) turns[i] = (job){.run = hand_the_other_over, .gives_back = _i == 1};
    ck_ok(gvmm__worker_start());
    gvmm__work(&turns[0]);
    if (_i == 0) gvmm_drain();
    else gvmm__drain_released();
    atomic_store(&is_drained, true);
    while (gvmm__work_waiting()) sched_yield();
}
END_TEST

static atomic_int times;

static void go_on_five_times(job *self)
{
    for (int i = 0; i < 50; i++) sched_yield();
    if (atomic_fetch_add(&times, 1) < 4) gvmm__work(self);
}

/* What is done in pieces is waited for to its end. */
START_TEST(a_drain_waits_for_what_goes_on)
{
    job in_pieces = {.run = go_on_five_times};
    atomic_store(&times, 0);
    ck_ok(gvmm__worker_start());
    gvmm__work(&in_pieces);
    gvmm_drain();
    ck_assert_int_eq(atomic_load(&times), 5);
}
END_TEST

static atomic_bool is_about_to_drain;

/* On gvmm's thread: until a drain is most likely waiting for it. */
static void take_a_while(void)
{
    while (!atomic_load(&is_about_to_drain)) sched_yield();
    for (int i = 0; i < 2000; i++) sched_yield();
}

static atomic_bool is_at_it;

static CUresult unmap_slowly(CUdeviceptr address, size_t size)
{
    atomic_store(&is_at_it, true);
    if (gvmm__on_worker()) take_a_while();
    return cu->cuMemUnmap(address, size);
}

static void be_slow(job *self)
{
    (void)self;
    take_a_while();
}

/* On its way: just being given back; handed over behind something else, by a graph, to be marked. */
START_TEST(a_drain_waits_for_what_is_on_its_way)
{
    static gvmm_driver hooked;
    job before = {.run = be_slow};
    hooked = *cu;
    if (_i == 0) hooked.cuMemUnmap = unmap_slowly;
    gvmm_resource_release(deferring);
    use_driver(&hooked);
    deferring = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
    gvmm_buffer *buffer = on_stream(stream);
    uint64_t address = gvmm_buffer_address(buffer);
    atomic_store(&is_about_to_drain, false);
    if (_i == 0) {
        atomic_store(&is_at_it, false);
        gvmm_buffer_release(buffer);
        while (!atomic_load(&is_at_it)) sched_yield();
    } else {
        CUgraph graph;
        ck_ok(gvmm__worker_start());
        gvmm__work(&before);
        ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        gvmm_buffer_release(buffer);
        ck_capture_ends(stream, &graph);
        ck_cu(cu->cuGraphDestroy(graph));
    }
    atomic_store(&is_about_to_drain, true);
    gvmm_drain();
    ck_released(address, G);
    ck_assert_uint_eq(waiting(), 0);
    gvmm_resource_release(deferring);
    deferring = NULL;
    gvmm_drain();
    use_driver(gvmm_faults_over(cu));
    ck_no_warnings();
}
END_TEST

/* The resource ends with what has gone, and leaves gvmm's thread more to do. */
START_TEST(a_drain_waits_for_what_that_leaves)
{
    for (int i = 0; i < 20; i++) {
        gvmm_resource *one = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
        gvmm_buffer *buffer;
        ck_ok(gvmm_resource_prepare_evict(one, G));
        ck_ok(gvmm_buffer_create(&buffer, one, G, stream));
        gvmm_resource_release(one);
        gate *g = gate_on(stream);
        gvmm_buffer_release(buffer);
        gate_end(g);
        gvmm_drain();
        ck_assert_uint_eq(waiting(), 0);
    }
}
END_TEST

static void drain_in_handler(void *user, const gvmm_error *error)
{
    (void)error;
    gvmm_drain(); /* on the thread that it would wait for */
    atomic_fetch_add((atomic_int *)user, 1);
}

START_TEST(a_warning_handler_may_drain)
{
    atomic_int told = 0;
    gvmm_buffer *buffer = on_stream(stream);
    gvmm_set_warning_handler(drain_in_handler, &told);
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    gvmm_buffer_release(buffer);
    gvmm_drain();
    ck_assert_int_eq(atomic_load(&told), 1);
}
END_TEST

/* Nor does it wait for the call that it is told of, which is marking; then every call fails. */
START_TEST(a_warning_handler_may_drain_while_its_thread_marks)
{
    CUgraph graph;
    atomic_int told = 0;
    gvmm_buffer *held = on_stream(stream);
    hold_by_capture_and_let_go(held);
    ck_capture_ends(stream, &graph);
    ck_cu(cu->cuGraphDestroy(graph));
    while (gvmm__work_waiting()) sched_yield();
    gvmm_set_warning_handler(drain_in_handler, &told);
    fault(2, true);
    gvmm__retire_mark();
    fault(0, false);
    ck_assert_int_gt(atomic_load(&told), 0);
    ck_assert_uint_eq(waiting(), 0);
}
END_TEST

/* A mapping made elsewhere is given back by the one who knows how, at once: a capturing stream refuses, and nothing is
 * lost. */
START_TEST(a_wrapped_buffer_is_closed_at_once)
{
    CUgraph graph;
    gvmm_buffer *buffer;
    uint64_t base = map_by_hand(G);
    ck_ok(gvmm_buffer_wrap(&buffer, deferring, base, G, stream, NULL, NULL));
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_fails(gvmm_buffer_close_deferred(buffer, NULL), GVMM_E_CAPTURING);
    ck_mapped(base);
    ck_capture_ends(stream, &graph);
    ck_ok(gvmm_buffer_close_deferred(buffer, NULL));
    ck_released(base, G);
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuGraphDestroy(graph));
    ck_no_warnings();
}
END_TEST

static sem_t is_unmapping, may_unmap;

static CUresult unmap_when_allowed(CUdeviceptr address, size_t size)
{
    if (gvmm__on_worker()) {
        sem_post(&is_unmapping);
        while (sem_wait(&may_unmap)) continue;
    }
    return cu->cuMemUnmap(address, size);
}

static bool comes_back_first; /* before it is known that there was no memory */

static CUresult create_and_allow(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop,
                                 unsigned long long flags)
{
    CUresult status = cu->cuMemCreate(out, size, prop, flags);
    if (status != CUDA_ERROR_OUT_OF_MEMORY) return status;
    for (int i = 0; i < 2; i++) sem_post(&may_unmap);
    while (comes_back_first && gvmm__work_gives_back()) sched_yield();
    return status;
}

static CUgraph graph_that_alone_holds(gvmm_buffer *buffer)
{
    CUgraph graph;
    ck_cu(cu->cuGraphCreate(&graph, 0));
    ck_ok(gvmm_buffer_retain_in_graph(buffer, graph));
    gvmm_buffer_release(buffer);
    gvmm_drain();
    return graph;
}

static CUgraph graph_that_captured_the_release_of(gvmm_buffer *buffer)
{
    CUgraph graph;
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    gvmm_buffer_release(buffer);
    ck_capture_ends(stream, &graph);
    return graph;
}

/* So is what a graph that is gone has held: the worker has it and is about something else yet. */
START_TEST(an_allocation_that_finds_no_memory_waits_for_the_worker)
{
    if (on_gpu) return; /* it would fill the card */
    static gvmm_driver hooked;
    size_t half = (size_t)100 << 30;
    gvmm_buffer *large;
    gvmm_resource_release(deferring);
    hooked = *cu;
    hooked.cuMemUnmap = unmap_when_allowed;
    hooked.cuMemCreate = create_and_allow;
    use_driver(&hooked);
    deferring = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
    comes_back_first = _i == 1;
    sem_init(&is_unmapping, 0, 0);
    sem_init(&may_unmap, 0, 0);
    ck_ok(gvmm_buffer_create(&large, deferring, half, stream));
    CUgraph first = graph_that_alone_holds(on_stream(stream));
    CUgraph second = _i == 2 ? graph_that_captured_the_release_of(large) : graph_that_alone_holds(large);
    ck_cu(cu->cuGraphDestroy(first));
    while (sem_wait(&is_unmapping)) continue;
    ck_cu(cu->cuGraphDestroy(second));
    while (gvmm__work_gives_back() < 2) sched_yield();
    ck_ok(gvmm_buffer_create(&large, deferring, half, stream));
    ck_ok(gvmm_buffer_close(large, NULL));
    gvmm_buffer_release(large);
}
END_TEST

/* A restore finds what a deferred release is about to give back, as an allocation does; one that fails leaves the
 * generation. */
START_TEST(a_restore_that_finds_no_memory_drains)
{
    if (on_gpu) return; /* it would fill the card */
    size_t most = (size_t)100 << 30;
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.chunk_size = most / 4; /* one fits beside `second`: a part is made, goes back, and is made again */
    gvmm_resource *in_chunks = resource_with(options);
    gvmm_evict_options drop = GVMM_EVICT_OPTIONS_INIT;
    drop.contents = GVMM_CONTENTS_DROP;
    gvmm_buffer *first, *second;
    ck_ok(gvmm_buffer_create(&first, in_chunks, most, stream));
    ck_ok(gvmm_buffer_evict(first, &drop));
    ck_ok(gvmm_buffer_create(&second, deferring, most, stream));
    ck_fails(gvmm_buffer_restore(first), GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_uint_eq(gvmm_buffer_generation(first), 0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(first), most);
    gate *g = gate_on(stream);
    gvmm_buffer_release(second);
    gate_open(g);
    ck_ok(gvmm_buffer_restore(first));
    ck_assert_uint_eq(gvmm_buffer_generation(first), 4);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(first), 0);
    gvmm_buffer_release(first);
    gvmm_resource_release(in_chunks);
    gate_end(g);
}
END_TEST

/* The same where the memory comes back while the restore fails: it has gone from the queue when that is asked. */
START_TEST(what_came_back_since_the_attempt_is_room)
{
    if (on_gpu) return; /* it would fill the card */
    size_t most = (size_t)100 << 30;
    gvmm_evict_options drop = GVMM_EVICT_OPTIONS_INIT;
    drop.contents = GVMM_CONTENTS_DROP;
    gvmm_buffer *first, *second;
    ck_ok(gvmm_buffer_create(&first, deferring, most, stream));
    for (int i = 0; i < 200; i++) { /* meets that moment now and then */
        ck_ok(gvmm_buffer_evict(first, &drop));
        ck_ok(gvmm_buffer_create(&second, deferring, most, stream));
        gvmm_buffer_release(second);
        ck_ok(gvmm_buffer_restore(first));
    }
    uint64_t before = gvmm__retire_returned();
    gvmm_buffer_release(first);
    gvmm_drain();
    ck_assert(gvmm__make_room(0, before));
    ck_assert(!gvmm__make_room(0, gvmm__retire_returned()));
}
END_TEST

/* On a thread of its own: opens the gate when the worker has looked at what waits a few times. */
static void *open_after_a_while(void *g)
{
    for (int i = 0; i < 20; i++) gvmm__worker_wait_past(gvmm__worker_progress());
    gate_open(g);
    return NULL;
}

static size_t bytes_evicted;

static void note_bytes(void *unused, const gvmm_residency_event *event)
{
    (void)unused;
    bytes_evicted = event->bytes;
}

/* Nobody can order the work of what was released any more: the evict must not unmap it from under that. */
START_TEST(an_evict_leaves_released_memory_to_its_work)
{
    CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *kept = on_stream(stream), *released = on_stream(own);
    pthread_t opener;
    gate *g = gate_on(own);
    ck_cu(cu->cuMemsetD8Async(gvmm_buffer_address(released), 1, G, own));
    gvmm_buffer_release(released);
    gvmm_resource_set_residency_handler(deferring, note_bytes, NULL);
    ck_assert_int_eq(pthread_create(&opener, NULL, open_after_a_while, g), 0);
    ck_ok(gvmm_resource_evict(deferring, GVMM_TAG_ANY, NULL));
    pthread_join(opener, NULL);
    gate_end(g);
    ck_assert_uint_eq(bytes_evicted, G); /* that of `kept` alone */
    ck_cu(cu->cuStreamSynchronize(own));
    ck_cu(cu->cuStreamDestroy(own));
    ck_ok(gvmm_resource_restore(deferring, GVMM_TAG_ANY));
    gvmm_buffer_release(kept);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("deferred release");
    TCase *tests = tcase_create("deferred");
    tcase_add_checked_fixture(tests, setup_deferring, teardown_deferring);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, a_release_returns_while_work_runs);
    tcase_add_test(tests, the_stream_may_be_destroyed_after_the_call);
    tcase_add_test(tests, the_default_stream_is_marked_too);
    tcase_add_test(tests, what_cannot_be_deferred_is_waited_for);
    tcase_add_loop_test(tests, what_is_waited_for_is_done, 0, 2);
    tcase_add_test(tests, a_driver_that_has_shut_down_ends_the_waiting);
    tcase_add_test(tests, a_driver_that_refuses_everything_holds_nobody_up);
    tcase_add_test(tests, the_driver_is_not_replaced_under_the_worker);
    tcase_add_test(tests, a_clock_that_is_set_back_holds_nothing_up);
    tcase_add_test(tests, an_allocation_that_finds_no_memory_drains);
    tcase_add_loop_test(tests, an_allocation_that_finds_no_memory_waits_for_the_worker, 0, 3);
    tcase_add_test(tests, a_restore_that_finds_no_memory_drains);
    tcase_add_test(tests, what_came_back_since_the_attempt_is_room);
    tcase_add_test(tests, without_a_key_nobody_elses_is_taken);
    tcase_add_test(tests, no_signal_goes_to_gvmms_thread);
    tcase_add_loop_test(tests, a_drain_ends_while_others_go_on_releasing, 0, 3);
    tcase_add_loop_test(tests, a_drain_ends_while_gvmms_thread_has_more_to_do, 0, 2);
    tcase_add_test(tests, a_drain_waits_for_what_goes_on);
    tcase_add_loop_test(tests, a_drain_waits_for_what_is_on_its_way, 0, 2);
    tcase_add_test(tests, a_drain_waits_for_what_that_leaves);
    tcase_add_test(tests, a_warning_handler_may_drain);
    tcase_add_test(tests, a_warning_handler_may_drain_while_its_thread_marks);
    tcase_add_test(tests, a_wrapped_buffer_is_closed_at_once);
    tcase_add_test(tests, many_releases_in_flight);
    tcase_add_test(tests, host_memory_has_nothing_to_wait_for);
    tcase_add_loop_test(tests, what_a_host_function_releases_is_not_lost, 0, 3);
    tcase_add_test(tests, what_a_host_function_trims_goes);
    tcase_add_loop_test(tests, the_capture_mode_stays_as_it_was, 0, 3);
    tcase_add_test(tests, streams_that_share_a_lane);
    tcase_add_test(tests, what_is_waited_for_counts_as_returned);
    tcase_add_test(tests, many_threads_release);
    tcase_add_test(tests, an_evict_leaves_released_memory_to_its_work);
    return run_suites(suite, NULL);
}

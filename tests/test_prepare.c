/* Host memory pinned ahead of an evict, and given up behind a restore, both while nobody waits for it. */
#include "support.h"

#include <sys/wait.h>
#include <unistd.h>

static const size_t LARGE = (size_t)300 << 20; /* pinned in two pieces */

/* ---- a driver that pins when it may ---- */

static gvmm_driver hooked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool pin_held, unpin_held; /* such calls wait until that is over */
static unsigned pins, unpins;     /* calls that succeeded */
static unsigned pins_begun;
static unsigned most_pinned; /* pieces; with more, memory is said to be out, and unpin_held is over */

static void set(bool *what, bool value)
{
    pthread_mutex_lock(&lock);
    *what = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static unsigned read_count(const unsigned *count)
{
    pthread_mutex_lock(&lock);
    unsigned n = *count;
    pthread_mutex_unlock(&lock);
    return n;
}

static CUresult pin(void *pages, size_t size, unsigned flags)
{
    pthread_mutex_lock(&lock);
    pins_begun++;
    pthread_cond_broadcast(&changed);
    while (pin_held) pthread_cond_wait(&changed, &lock);
    bool full = pins - unpins >= most_pinned;
    if (full) unpin_held = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (full) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = cu->cuMemHostRegister(pages, size, flags);
    pthread_mutex_lock(&lock);
    pins += r == CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return r;
}

static CUresult unpin(void *pages)
{
    pthread_mutex_lock(&lock);
    while (unpin_held) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    CUresult r = cu->cuMemHostUnregister(pages);
    pthread_mutex_lock(&lock);
    unpins += r == CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return r;
}

static void wait_for_a_pin(void)
{
    pthread_mutex_lock(&lock);
    while (!pins_begun) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static uint64_t pinned_by(gvmm_resource *resource)
{
    gvmm_stats stats;
    gvmm_get_stats(resource, &stats);
    return stats.pinned_bytes;
}

static uint64_t pinned_at_start; /* where all tests are one process: what a fault kept from being unpinned */

static uint64_t pinned_now(void) { return pinned_by(NULL) - pinned_at_start; }

static void hook(void)
{
    pinned_at_start = pinned_by(NULL);
    pin_held = unpin_held = false;
    pins = unpins = pins_begun = 0;
    most_pinned = 1000;
    hooked = *cu;
    hooked.cuMemHostRegister = pin;
    hooked.cuMemHostUnregister = unpin;
    use_driver(gvmm_faults_over(&hooked));
}

static TCase *add_hooked_case(Suite *suite, const char *name)
{
    TCase *tests = add_case(suite, name);
    tcase_add_checked_fixture(tests, hook, NULL);
    return tests;
}

/* ---- what is pinned ---- */

/* By gvmm's figures, and by the simulator's, when nothing is on its way. */
static void ck_pinned(size_t bytes, size_t pieces)
{
    gvmm_drain();
    ck_assert_uint_eq(pinned_now(), bytes);
    ck_assert_uint_eq(read_count(&pins) - read_count(&unpins), pieces);
    if (on_gpu) return;
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    ck_assert_uint_eq(counts[GVMM_SIM_REGISTERED], pieces);
}

/* Where pieces begin and end. */
static void write_marks(gvmm_buffer *buffer)
{
    const size_t size = gvmm_buffer_size(buffer), at[] = {0, size / 2, size - 64};
    for (size_t i = 0; i < 3; i++) ck_cu(cu->cuMemsetD8(address(buffer) + at[i], (unsigned char)(7 + i), 64));
    ck_cu(cu->cuCtxSynchronize());
}

static void ck_marks(gvmm_buffer *buffer)
{
    const size_t size = gvmm_buffer_size(buffer), at[] = {0, size / 2, size - 64};
    for (size_t i = 0; i < 3; i++) ck_filled(address(buffer) + at[i], (unsigned char)(7 + i), 64);
}

static gvmm_buffer *marked(gvmm_resource *resource, size_t size)
{
    gvmm_buffer *buffer = create(resource, size);
    write_marks(buffer);
    return buffer;
}

/* The buffer, or the resource, which has no other: a driver that is held up in pinning is nobody's to wait for. */
static void evict_one(gvmm_buffer *buffer, bool by_resource)
{
    if (by_resource) ck_ok(gvmm_resource_evict(gvmm_buffer_resource(buffer), GVMM_TAG_ANY, NULL));
    else ck_ok(gvmm_buffer_evict(buffer, NULL));
}

/* ---- prepared ---- */

START_TEST(an_evict_takes_what_was_prepared)
{
    gvmm_buffer *buffer = marked(plain, LARGE);
    for (unsigned round = 1; round <= 2; round++) {
        ck_ok(gvmm_resource_prepare_evict(plain, LARGE - 1)); /* rounded up */
        ck_pinned(LARGE, 2);
        ck_assert_uint_eq(pinned_by(plain), LARGE);
        if (round == 1) ck_ok(gvmm_buffer_evict(buffer, NULL));
        else ck_ok(gvmm_resource_evict(plain, GVMM_TAG_ANY, NULL));
        ck_assert_uint_eq(read_count(&pins), 2 * round);
        ck_pinned(LARGE, 2);
        ck_ok(gvmm_buffer_restore(buffer));
        ck_pinned(0, 0);
        ck_marks(buffer);
    }
    ck_ok(gvmm_buffer_evict(buffer, NULL)); /* nothing is left of it */
    ck_assert_uint_eq(read_count(&pins), 6);
    gvmm_buffer_release(buffer);
    ck_pinned(0, 0);
    ck_no_warnings();
}
END_TEST

START_TEST(less_takes_it_and_more_gives_it_up)
{
    gvmm_buffer *small = marked(plain, 2 * G), *large = marked(plain, LARGE);
    ck_ok(gvmm_resource_prepare_evict(plain, 4 * G));
    ck_ok(gvmm_buffer_evict(small, NULL));
    ck_pinned(4 * G, 1);
    ck_ok(gvmm_resource_prepare_evict(plain, 4 * G));
    ck_pinned(8 * G, 2);
    ck_ok(gvmm_buffer_evict(large, NULL));
    ck_pinned(4 * G + LARGE, 3);
    ck_assert_uint_eq(read_count(&pins), 4);
    ck_ok(gvmm_resource_restore(plain, GVMM_TAG_ANY));
    ck_pinned(0, 0);
    ck_marks(small);
    ck_marks(large);
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
    ck_no_warnings();
}
END_TEST

START_TEST(other_contents_leave_it)
{
    gvmm_buffer *buffer = marked(plain, 2 * G);
    gvmm_evict_options drop = GVMM_EVICT_OPTIONS_INIT, file = GVMM_EVICT_OPTIONS_INIT;
    drop.contents = GVMM_CONTENTS_DROP;
    file.contents = GVMM_CONTENTS_FILE;
    file.directory = "/tmp";
    ck_ok(gvmm_resource_prepare_evict(plain, 2 * G));
    ck_ok(gvmm_buffer_evict(buffer, &file));
    ck_ok(gvmm_buffer_restore(buffer));
    ck_marks(buffer);
    ck_ok(gvmm_buffer_evict(buffer, &drop));
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pinned(2 * G, 1);
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_resource_prepare_evict(plain, 0));
    ck_pinned(0, 0);
    ck_ok(gvmm_resource_prepare_evict(plain, 0)); /* nothing to give up */
    ck_no_warnings();
}
END_TEST

START_TEST(asking_again_keeps_or_replaces_it)
{
    ck_ok(gvmm_resource_prepare_evict(plain, 3 * G));
    ck_ok(gvmm_resource_prepare_evict(plain, 3 * G)); /* also under way */
    ck_pinned(3 * G, 1);
    ck_ok(gvmm_resource_prepare_evict(plain, 3 * G));
    ck_pinned(3 * G, 1);
    ck_assert_uint_eq(read_count(&pins), 1);
    ck_ok(gvmm_resource_prepare_evict(plain, 2 * G));
    ck_pinned(2 * G, 1);
    ck_ok(gvmm_resource_prepare_evict(plain, LARGE));
    ck_pinned(LARGE, 2);
    ck_ok(gvmm_resource_prepare_evict(plain, 0));
    ck_pinned(0, 0);
    ck_no_warnings();
}
END_TEST

START_TEST(each_resource_has_its_own_until_its_end)
{
    gvmm_resource *other = resource_with(waiting_options());
    gvmm_buffer *buffer = marked(other, 2 * G);
    ck_ok(gvmm_resource_prepare_evict(plain, G));
    ck_ok(gvmm_resource_prepare_evict(other, 3 * G));
    ck_pinned(4 * G, 2);
    ck_assert_uint_eq(pinned_by(plain), G);
    ck_assert_uint_eq(pinned_by(other), 3 * G);
    gvmm_resource_release(other);
    ck_pinned(4 * G, 2); /* its buffer may still be evicted */
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pinned(G, 1);
    ck_assert_uint_eq(read_count(&pins), 2);
    ck_marks(buffer);
    ck_ok(gvmm_resource_prepare_evict(gvmm_buffer_resource(buffer), 2 * G));
    gvmm_buffer_release(buffer);
    ck_pinned(G, 1);
    ck_ok(gvmm_resource_prepare_evict(plain, 0));
    ck_pinned(0, 0);
    ck_no_warnings();
}
END_TEST

START_TEST(what_cannot_be_prepared)
{
    gvmm_resource *host = resource_with(on_host());
    ck_ok(gvmm_resource_prepare_evict(plain, G));
    ck_fails(gvmm_resource_prepare_evict(NULL, G), GVMM_E_INVALID);
    ck_fails(gvmm_resource_prepare_evict(host, G), GVMM_E_UNSUPPORTED);
    ck_fails(gvmm_resource_prepare_evict(plain, SIZE_MAX), GVMM_E_INVALID);
    ck_fails(gvmm_resource_prepare_evict(plain, (size_t)1 << 46), GVMM_E_NO_HOST_MEMORY);
    ck_names("available");
    ck_pinned(G, 1); /* still there */
    ck_ok(gvmm_resource_prepare_evict(plain, 0));
    gvmm_resource_release(host);
    ck_pinned(0, 0);
}
END_TEST

/* ---- under way ---- */

static void let_pins_go_on(void *user, const gvmm_residency_event *event)
{
    (void)user;
    if (event->what == GVMM_BEFORE_EVICT) set(&pin_held, false);
}

/* The first piece is being pinned when the evict comes; the second is one's or the other's. */
START_TEST(an_evict_takes_what_is_being_pinned)
{
    gvmm_buffer *buffer = marked(plain, LARGE);
    gvmm_resource_set_residency_handler(plain, let_pins_go_on, NULL);
    pin_held = true;
    ck_ok(gvmm_resource_prepare_evict(plain, LARGE));
    wait_for_a_pin();
    ck_assert_uint_eq(pinned_now(), 0);
    evict_one(buffer, _i);
    ck_assert_uint_eq(read_count(&pins), 2);
    ck_pinned(LARGE, 2);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pinned(0, 0);
    ck_marks(buffer);
    gvmm_resource_set_residency_handler(plain, NULL, NULL);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* 0: given up; 1: replaced; 2: the resource ends; while the first piece is being pinned, with nobody waiting. */
START_TEST(it_can_be_given_up_under_way)
{
    gvmm_resource *resource = resource_with(waiting_options());
    pin_held = true;
    ck_ok(gvmm_resource_prepare_evict(resource, LARGE));
    wait_for_a_pin();
    if (_i < 2) ck_ok(gvmm_resource_prepare_evict(resource, _i ? G : 0));
    if (_i == 2) gvmm_resource_release(resource);
    ck_assert_uint_eq(read_count(&pins), 0);
    set(&pin_held, false);
    if (_i == 1) ck_pinned(G, 1);
    if (_i < 2) gvmm_resource_release(resource);
    ck_pinned(0, 0);
    ck_assert_uint_le(read_count(&pins), 2);
    ck_no_warnings();
}
END_TEST

/* Neither is waited for by the restore; the next evict does what it has to in the meantime. */
START_TEST(a_restore_does_not_wait_for_unpinning)
{
    gvmm_buffer *buffer = marked(plain, LARGE);
    evict_one(buffer, _i);
    unpin_held = true;
    ck_ok(gvmm_buffer_restore(buffer));
    ck_marks(buffer);
    ck_assert_uint_eq(pinned_now(), LARGE);
    evict_one(buffer, _i);
    ck_assert_uint_eq(pinned_now(), 2 * LARGE);
    ck_ok(gvmm_buffer_restore(buffer));
    set(&unpin_held, false);
    ck_pinned(0, 0);
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* What is released while it sleeps is given up at once. */
START_TEST(a_backup_that_nobody_restores_goes_with_its_memory)
{
    gvmm_buffer *buffer = marked(plain, LARGE);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(read_count(&unpins), 2);
    ck_pinned(0, 0);
    ck_no_warnings();
}
END_TEST

/* The unpinning, which is held up, goes on when an evict misses memory, and the evict waits for it. */
START_TEST(an_evict_waits_for_host_memory_that_is_on_its_way)
{
    gvmm_buffer *buffer = marked(plain, LARGE);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    unpin_held = true;
    most_pinned = (unsigned)(2 + _i); /* at the first or the second piece */
    ck_ok(gvmm_buffer_restore(buffer));
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_pinned(LARGE, 2);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pinned(0, 0);
    most_pinned = 1; /* nothing is on its way: no use trying again */
    unsigned begun = read_count(&pins_begun);
    ck_fails(gvmm_buffer_evict(buffer, NULL), GVMM_E_NO_HOST_MEMORY);
    ck_assert_uint_eq(read_count(&pins_begun), begun + 2);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
    ck_pinned(0, 0);
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* ---- what fails ---- */

/* Objects, pages, threads. Once there is a worker, starting it cannot fail. */
START_TEST(a_failed_preparation_leaves_nothing)
{
    unsigned failed = 0;
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        fault_call("malloc", nth, 0);
        gvmm_result r = gvmm_resource_prepare_evict(plain, LARGE);
        gvmm_drain();
        fired = gvmm_faults_injected() > 0;
        ck_ok(gvmm_faults_set(NULL));
        failed += r != GVMM_OK;
        if (r) {
            ck_assert_int_eq(r, GVMM_E_NO_HOST_MEMORY);
            ck_assert_str_ne(last_text(), "");
            ck_pinned(0, 0);
        }
        ck_ok(gvmm_resource_prepare_evict(plain, 0));
        gvmm_drain();
    }
    ck_assert_uint_ge(failed, 3);
    fault_call("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_resource_prepare_evict(plain, G), GVMM_E_NO_DEVICE_MEMORY);
    ck_ok(gvmm_faults_set(NULL));
    ck_pinned(0, 0);
    ck_no_warnings();
}
END_TEST

/* Not told; nothing is left of it; the evict then pins itself. */
START_TEST(what_fails_behind_the_caller_is_made_good_by_the_evict)
{
    static const char *const calls[] = {"cuMemHostRegister", "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"};
    gvmm_buffer *buffer = marked(plain, LARGE);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        fault_call(calls[_i], nth, CUDA_ERROR_OUT_OF_MEMORY);
        ck_ok(gvmm_resource_prepare_evict(plain, LARGE));
        gvmm_drain();
        ck_assert_uint_eq(gvmm_faults_injected(), 1);
        ck_ok(gvmm_faults_set(NULL));
        if (_i < 2) ck_pinned(0, 0); /* leaving relaxed mode fails, but not pinning */
        ck_ok(gvmm_buffer_evict(buffer, NULL));
        ck_pinned(LARGE, 2);
        ck_ok(gvmm_buffer_restore(buffer));
        ck_pinned(0, 0);
        ck_marks(buffer);
        ck_ok(gvmm_resource_prepare_evict(plain, LARGE)); /* may be had later */
        ck_pinned(LARGE, 2);
        ck_ok(gvmm_resource_prepare_evict(plain, 0));
        ck_pinned(0, 0);
    }
    gvmm_buffer_release(buffer);
}
END_TEST

/* Any call of an evict with prepared memory, and of the restore behind it: all or nothing, and nothing stays pinned. */
START_TEST(evicts_of_prepared_memory_fail_like_others)
{
    gvmm_buffer *buffer = marked(plain, 2 * G);
    bool fired = true;
    unsigned failed = 0;
    for (uint64_t nth = 1; fired; nth++) {
        ck_ok(gvmm_resource_prepare_evict(plain, 4 * G));
        gvmm_drain();
        fault(nth, false);
        gvmm_result r = gvmm_buffer_evict(buffer, NULL);
        gvmm_result back = r ? GVMM_OK : gvmm_buffer_restore(buffer);
        gvmm_drain();
        fired = gvmm_faults_injected() > 0;
        ck_ok(gvmm_faults_set(NULL));
        failed += r || back;
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), back ? 2 * G : 0);
        if (back) ck_ok(gvmm_buffer_restore(buffer));
        ck_marks(buffer);
        ck_ok(gvmm_resource_prepare_evict(plain, 0));
        gvmm_drain();
        ck_assert_uint_eq(pinned_now(), 4 * G * (read_count(&pins) - read_count(&unpins)));
    }
    ck_assert_uint_ge(failed, 10);
    gvmm_buffer_release(buffer);
}
END_TEST

/* The restore that cannot have the worker's thread unpins itself. */
START_TEST(without_a_worker_the_restore_unpins)
{
    if (gvmm__worker_progress() > 0) return; /* all tests in one process: it is there */
    gvmm_buffer *buffer = marked(plain, LARGE);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    gvmm_result r = GVMM_E_NO_HOST_MEMORY;
    for (uint64_t nth = 1; r; nth++) { /* the thread comes last, and can be done without */
        fault_call("malloc", nth, 0);
        r = gvmm_buffer_restore(buffer);
        ck_assert_uint_eq(gvmm_faults_injected(), 1);
        ck_ok(gvmm_faults_set(NULL));
        ck_assert_uint_eq(read_count(&unpins), r ? 0 : 2);
    }
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    ck_pinned(0, 0);
    ck_no_warnings();
}
END_TEST

/* ---- captures, processes, threads ---- */

START_TEST(pinning_and_unpinning_leave_captures_alone)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    gvmm_buffer *buffer = marked(plain, LARGE), *other = create(plain, G);
    CUgraph graph;
    ck_ok(gvmm_buffer_set_stream(buffer, GVMM_STREAM_LEGACY));
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_cu(cu->cuStreamBeginCapture(stream, modes[_i]));
    ck_cu(cu->cuMemsetD8Async(address(other), 1, G, stream));
    ck_ok(gvmm_resource_prepare_evict(plain, LARGE));
    gvmm_drain();
    ck_ok(gvmm_buffer_restore(buffer));
    gvmm_drain();
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_ok(gvmm_buffer_restore(buffer));
    ck_ok(gvmm_resource_prepare_evict(plain, G));
    ck_ok(gvmm_resource_prepare_evict(plain, 0));
    gvmm_drain();
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_pinned(0, 0);
    ck_marks(buffer);
    gvmm_buffer_release(other);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

static int in_a_child(void (*act)(gvmm_resource *resource, gvmm_buffer *buffer), gvmm_buffer *buffer)
{
    pid_t child = fork();
    if (child == 0) {
        gvmm_set_warning_handler(NULL, NULL);
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        act(plain, buffer);
        gvmm_drain();
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

static void give_up_all(gvmm_resource *resource, gvmm_buffer *buffer)
{
    gvmm_resource_prepare_evict(resource, 0);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}

static void try_to_evict(gvmm_resource *resource, gvmm_buffer *buffer)
{
    if (gvmm_buffer_evict(buffer, NULL) == GVMM_OK) _exit(3); /* there is no driver here */
    if (gvmm_resource_prepare_evict(resource, 2 * G) == GVMM_OK) _exit(4);
}

/* With it pinned; with the worker about it, and threads that fill pages. A child has none of them. */
START_TEST(a_forked_child_leaves_it_alone)
{
    gvmm_buffer *buffer = marked(plain, LARGE);
    ck_ok(gvmm_resource_prepare_evict(plain, LARGE));
    if (_i == 0) {
        ck_pinned(LARGE, 2);
    } else {
        gvmm_drain();
        ck_ok(gvmm_resource_prepare_evict(plain, 0));
        gvmm_drain();
        pins_begun = 0;
        pin_held = true;
        ck_ok(gvmm_resource_prepare_evict(plain, LARGE));
        wait_for_a_pin();
    }
    ck_assert_int_eq(in_a_child(give_up_all, buffer), 0);
    ck_assert_int_eq(in_a_child(try_to_evict, buffer), 0);
    set(&pin_held, false);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_pinned(LARGE, 2);
    ck_assert_int_eq(in_a_child(give_up_all, buffer), 0);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pinned(0, 0);
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* Two threads a resource: one prepares and gives up, one sleeps and wakes. */
enum { ROUNDS = 30 };

typedef struct player {
    gvmm_resource *resource;
    gvmm_buffer *buffer; /* NULL: the one that prepares */
    gvmm_result result;
} player;

static void *play(void *data)
{
    player *p = data;
    for (unsigned i = 0; i < ROUNDS && !p->result; i++) {
        if (!p->buffer) p->result = gvmm_resource_prepare_evict(p->resource, i % 4 * G);
        if (p->buffer) p->result = gvmm_buffer_evict(p->buffer, NULL);
        if (p->buffer && !p->result) p->result = gvmm_buffer_restore(p->buffer);
    }
    return NULL;
}

START_TEST(threads_prepare_and_evict_at_the_same_time)
{
    gvmm_resource *resources[2] = {resource_with(waiting_options()), resource_with(waiting_options())};
    player players[4];
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        players[i] = (player){resources[i / 2], i % 2 ? marked(resources[i / 2], 2 * G) : NULL, GVMM_OK};
    for (size_t i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, play, &players[i]), 0);
    for (size_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(players[i].result, GVMM_OK);
        if (players[i].buffer) ck_marks(players[i].buffer);
        gvmm_buffer_release(players[i].buffer);
    }
    for (size_t i = 0; i < 2; i++) gvmm_resource_release(resources[i]);
    ck_pinned(0, 0);
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("prepare");
    TCase *prepared = add_hooked_case(suite, "prepared");
    tcase_add_test(prepared, an_evict_takes_what_was_prepared);
    tcase_add_test(prepared, less_takes_it_and_more_gives_it_up);
    tcase_add_test(prepared, other_contents_leave_it);
    tcase_add_test(prepared, asking_again_keeps_or_replaces_it);
    tcase_add_test(prepared, each_resource_has_its_own_until_its_end);
    tcase_add_test(prepared, what_cannot_be_prepared);
    TCase *under_way = add_hooked_case(suite, "under way");
    tcase_add_loop_test(under_way, an_evict_takes_what_is_being_pinned, 0, 2);
    tcase_add_loop_test(under_way, it_can_be_given_up_under_way, 0, 3);
    tcase_add_loop_test(under_way, a_restore_does_not_wait_for_unpinning, 0, 2);
    tcase_add_test(under_way, a_backup_that_nobody_restores_goes_with_its_memory);
    tcase_add_loop_test(under_way, an_evict_waits_for_host_memory_that_is_on_its_way, 0, 2);
    TCase *fails = add_hooked_case(suite, "what fails");
    tcase_add_test(fails, a_failed_preparation_leaves_nothing);
    tcase_add_loop_test(fails, what_fails_behind_the_caller_is_made_good_by_the_evict, 0, 3);
    tcase_add_test(fails, evicts_of_prepared_memory_fail_like_others);
    tcase_add_test(fails, without_a_worker_the_restore_unpins);
    TCase *others = add_hooked_case(suite, "captures, processes, threads");
    tcase_add_loop_test(others, pinning_and_unpinning_leave_captures_alone, 0, 3);
    tcase_add_loop_test(others, a_forked_child_leaves_it_alone, 0, 2);
    tcase_add_test(others, threads_prepare_and_evict_at_the_same_time);
    return run_suites(suite, NULL);
}

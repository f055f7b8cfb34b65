/* Evict and restore: who is told, what is waited for, what fails, threads. What comes back: test_evict_contents.c. */
#include "elastic_kit.h"

#include <pthread.h>

/* ---- the handler ---- */

enum { MOST_EVENTS = 16 };
static gvmm_residency_event events[MOST_EVENTS];
static size_t evicted_then[MOST_EVENTS];
static unsigned event_count;
static gvmm_buffer *looked_at;

static void note(void *user, const gvmm_residency_event *event)
{
    ck_assert_ptr_eq(user, &event_count);
    ck_assert_uint_lt(event_count, MOST_EVENTS);
    evicted_then[event_count] = gvmm_buffer_evicted_bytes(looked_at); /* it may use the buffer */
    events[event_count++] = *event;
}

static void ck_event(unsigned i, gvmm_residency what, gvmm_buffer *buffer, int tag, size_t bytes, size_t evicted)
{
    ck_assert_uint_lt(i, event_count);
    ck_assert_int_eq(events[i].what, what);
    ck_assert_ptr_eq(events[i].buffer, buffer);
    ck_assert_int_eq(events[i].tag, tag);
    ck_assert_uint_eq(events[i].bytes, bytes);
    ck_assert_uint_eq(evicted_then[i], evicted);
}

START_TEST(the_handler_is_told_before_and_after)
{
    gvmm_options options = waiting_options();
    options.tag = 7;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *a = create(resource, 2 * G);
    looked_at = a;
    event_count = 0;
    gvmm_resource_set_residency_handler(resource, note, &event_count);
    evict(a, GVMM_CONTENTS_HOST);
    evict(a, GVMM_CONTENTS_HOST); /* does nothing, tells nothing */
    ck_ok(gvmm_buffer_restore(a));
    ck_ok(gvmm_buffer_restore(a));
    ck_assert_uint_eq(event_count, 4);
    ck_event(0, GVMM_BEFORE_EVICT, a, 7, 2 * G, 0);
    ck_event(1, GVMM_AFTER_EVICT, a, 7, 2 * G, 2 * G);
    ck_event(2, GVMM_BEFORE_RESTORE, a, 7, 2 * G, 2 * G);
    ck_event(3, GVMM_AFTER_RESTORE, a, 7, 2 * G, 0);

    event_count = 0;
    gvmm_drain();
    gvmm_evict_options kept = keep(GVMM_CONTENTS_HOST);
    fault_call("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_resource_evict(resource, GVMM_TAG_ANY, &kept), GVMM_E_NO_HOST_MEMORY);
    ck_names("pinned");
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_resource_evict(resource, 7, &kept));
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_resource_restore(resource, 7), GVMM_E_NO_DEVICE_MEMORY);
    ck_ok(gvmm_faults_set(NULL));
    ck_event(0, GVMM_BEFORE_EVICT, NULL, GVMM_TAG_ANY, 2 * G, 0);
    ck_event(1, GVMM_EVICT_FAILED, NULL, GVMM_TAG_ANY, 2 * G, 0);
    ck_event(3, GVMM_AFTER_EVICT, NULL, 7, 2 * G, 2 * G);
    ck_event(4, GVMM_BEFORE_RESTORE, NULL, 7, 2 * G, 2 * G);
    ck_event(5, GVMM_RESTORE_FAILED, NULL, 7, 2 * G, 2 * G);
    ck_assert_uint_eq(event_count, 6);
    gvmm_resource_set_residency_handler(resource, NULL, NULL);
    ck_ok(gvmm_buffer_restore(a));
    ck_assert_uint_eq(event_count, 6);
    gvmm_buffer_release(a);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- work and captures ---- */

static void evict_it(gvmm_buffer *buffer) { evict(buffer, GVMM_CONTENTS_HOST); }

START_TEST(evicting_waits_for_the_stream)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    ck_waits_for(stream, buffer, evict_it); /* whose work fills it with ones */
    ck_ok(gvmm_buffer_restore(buffer));
    ck_filled(address(buffer), 1, G);

    gvmm_stream other;
    ck_cu(cu->cuStreamCreate(&other, CU_STREAM_DEFAULT)); /* blocking: the default stream waits for it */
    fill(address(buffer), 0, G);
    ck_ok(gvmm_buffer_set_stream(buffer, GVMM_STREAM_LEGACY));
    ck_waits_for(other, buffer, evict_it);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_filled(address(buffer), 1, G);
    ck_cu(cu->cuStreamDestroy(other));
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

static CUgraphExec captured_fill(gvmm_stream on, uint64_t at, unsigned char value, size_t size)
{
    CUgraph graph;
    CUgraphExec exec;
    ck_cu(cu->cuStreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async(at, value, size, on));
    ck_cu(cu->cuStreamEndCapture(on, &graph));
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    ck_cu(cu->cuGraphDestroy(graph));
    return exec;
}

START_TEST(captures_refuse_it_and_are_unharmed)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    uint64_t at = address(buffer);
    gvmm_stream blocking;
    CUgraph graph;
    CUgraphExec exec;
    ck_cu(cu->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                         CU_STREAM_CAPTURE_MODE_RELAXED};
    for (int i = 0; i < 6; i++) {
        gvmm_stream on = i % 2 ? stream : blocking;
        gvmm_evict_options options = keep(GVMM_CONTENTS_HOST);
        ck_cu(cu->cuStreamBeginCapture(on, modes[i / 2]));
        ck_cu(cu->cuMemsetD8Async(at, 5, G, on));
        options.stream = on;
        ck_fails(gvmm_buffer_evict(buffer, &options), GVMM_E_CAPTURING); /* the capturing stream itself */
        options.stream = GVMM_STREAM_LEGACY;
        gvmm_result r = gvmm_buffer_evict(buffer, &options); /* waiting for it would end a blocking stream's capture */
        ck_assert_int_eq(r, on == blocking ? GVMM_E_CAPTURING : GVMM_OK);
        r = gvmm_resource_evict(plain, GVMM_TAG_ANY, NULL);
        ck_assert_int_eq(r, on == blocking ? GVMM_E_CAPTURING : GVMM_OK);
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), on == blocking ? 0 : G);
        options.stream = on == blocking ? stream : blocking; /* one that has nothing to do with it */
        ck_ok(gvmm_buffer_evict(buffer, &options));
        ck_ok(gvmm_buffer_restore(buffer));
        ck_cu(cu->cuStreamEndCapture(on, &graph)); /* it is still good */
        ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
        fill(at, 0, G);
        ck_cu(cu->cuGraphLaunch(exec, on));
        ck_cu(cu->cuStreamSynchronize(on));
        ck_filled(at, 5, G);
        ck_cu(cu->cuGraphExecDestroy(exec));
        ck_cu(cu->cuGraphDestroy(graph));
    }
    ck_cu(cu->cuStreamDestroy(blocking));
    gvmm_buffer_release(buffer);
    ck_pinned(0);
    ck_no_warnings();
}
END_TEST

START_TEST(a_graph_replays_right_after_the_restore)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, 2 * G, stream));
    uint64_t at = address(buffer);
    CUgraphExec exec = captured_fill(stream, at + G, 6, G);
    write_pattern(at, G, 1);
    for (int round = 0; round < 3; round++) {
        ck_cu(cu->cuGraphLaunch(exec, stream));
        evict(buffer, GVMM_CONTENTS_HOST); /* waits for the launch */
        ck_ok(gvmm_buffer_restore(buffer));
        ck_filled(at + G, 6, G);
        fill(at + G, 0, G);
        ck_cu(cu->cuGraphLaunch(exec, stream));
        ck_cu(cu->cuStreamSynchronize(stream));
        ck_filled(at + G, 6, G);
        ck_pattern(at, G, 1);
    }
    ck_cu(cu->cuGraphExecDestroy(exec));
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

static gvmm_buffer *of_thread;

static void *sleep_and_wake(void *unused)
{
    (void)unused;
    CUcontext context;
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_assert_ptr_null(context);
    evict(of_thread, GVMM_CONTENTS_HOST);
    ck_ok(gvmm_buffer_restore(of_thread));
    evict(of_thread, GVMM_CONTENTS_FILE);
    ck_ok(gvmm_resource_restore(plain, GVMM_TAG_ANY));
    ck_ok(gvmm_resource_evict(plain, GVMM_TAG_ANY, NULL));
    ck_ok(gvmm_buffer_close(of_thread, NULL)); /* with the backup */
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_assert_ptr_null(context);
    return NULL;
}

START_TEST(no_context_need_be_current)
{
    of_thread = create(plain, 2 * G);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, sleep_and_wake, NULL), 0);
    pthread_join(thread, NULL);
    gvmm_buffer_release(of_thread);
    ck_pinned(0);
    ck_no_warnings();
}
END_TEST

/* ---- what fails ---- */

START_TEST(a_restore_that_fails_half_way_can_be_tried_again)
{
    gvmm_contents contents = _i ? GVMM_CONTENTS_FILE : GVMM_CONTENTS_HOST;
    gvmm_resource *resource = with_chunks(G, 0);
    gvmm_buffer *a = create(resource, 4 * G), *twice, *b = create(resource, G);
    ck_ok(gvmm_buffer_ring(&twice, a, 2));
    write_pattern(address(a), 4 * G, 3);
    evict(a, contents);
    const char *calls[] = {"cuMemCreate",       "cuMemMap",       "cuMemSetAccess",
                           "cuMemcpyHtoDAsync", "cuStreamCreate", "cuStreamSynchronize"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (uint64_t k = 1;; k++) {
            fault_call(calls[i], k, CUDA_ERROR_OUT_OF_MEMORY);
            gvmm_result r = gvmm_buffer_restore(twice);
            gvmm_drain();
            bool fired = gvmm_faults_injected() > 0;
            ck_ok(gvmm_faults_set(NULL));
            if (!fired) {
                ck_ok(r);
                ck_pattern(address(a), 4 * G, 3);
                ck_pinned(0);
                evict(a, contents);
                break;
            }
            ck_assert_int_eq(r, GVMM_E_NO_DEVICE_MEMORY);
            ck_assert_uint_eq(gvmm_buffer_evicted_bytes(a), 4 * G);
            ck_assert_uint_eq(stats_of(resource).physical_bytes, G);
            ck_not_mapped(address(a));
            ck_not_mapped(address(twice) + 7 * G);
            ck_pinned(contents == GVMM_CONTENTS_HOST);
            ck_in_order();
        }
    }
    ck_ok(gvmm_buffer_restore(a));
    ck_pattern(address(a), 4 * G, 3);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_buffer_release(twice);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(memory_made_ahead_is_given_up_for_a_restore)
{
    gvmm_options options = waiting_options();
    options.chunk_size = G;
    options.ahead_count = 2;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *a = create(resource, 2 * G);
    gvmm_drain();
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL)); /* what is in stock is not mapped, and stays */
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 2 * G);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(gvmm_buffer_restore(a));
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 2 * G);
    gvmm_buffer_release(a);
    gvmm_resource_release(resource);
    gvmm_drain();
}
END_TEST

/* Also what another resource has ahead on that device; not what one has on another device. */
START_TEST(memory_made_ahead_elsewhere_is_given_up_too)
{
    gvmm_options options = waiting_options();
    options.chunk_size = G;
    options.ahead_count = 2;
    gvmm_resource *other = resource_with(options), *second = NULL;
    if (device_count > 1) ck_ok(gvmm_resource_create(&second, 1, &options));
    gvmm_buffer *a = create(plain, 2 * G), *b;
    gvmm_drain();
    ck_assert_uint_eq(stats_of(other).physical_bytes, 2 * G);
    evict(a, GVMM_CONTENTS_HOST);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(gvmm_buffer_restore(a));
    ck_assert_uint_eq(stats_of(other).physical_bytes, 0);
    if (second) ck_assert_uint_eq(stats_of(second).physical_bytes, 2 * G);

    b = create(other, G); /* the other makes more ahead again, and gives it up for a buffer of `plain` */
    gvmm_drain();
    ck_assert_uint_eq(stats_of(other).physical_bytes, 3 * G);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer_release(create(plain, G));
    ck_assert_uint_eq(stats_of(other).physical_bytes, G);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer *none;
    ck_fails(gvmm_buffer_create(&none, plain, G, NULL), GVMM_E_NO_DEVICE_MEMORY); /* nothing is left to give up */
    ck_ok(gvmm_faults_set(NULL));
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_resource_release(other);
    gvmm_resource_release(second);
    gvmm_drain();
    ck_no_warnings();
}
END_TEST

/* A warning's function may call gvmm, so nothing may be locked when it is called. */
static gvmm_buffer *used_by_warning;
static unsigned warnings;

static void use_the_buffer(void *user, const gvmm_error *error)
{
    (void)user, (void)error;
    gvmm_access access;
    gvmm_buffer *out;
    warnings++;
    ck_ok(gvmm_buffer_get_access(used_by_warning, 0, &access)); /* takes the memory's lock */
    ck_ok(gvmm_buffer_grow(&out, used_by_warning, 5 * G, NULL));
    gvmm_buffer_release(out);
}

START_TEST(a_warning_may_use_the_buffer)
{
    gvmm_buffer *a = create(plain, G), *twice;
    ck_ok(gvmm_buffer_ring(&twice, a, 12));
    used_by_warning = a;
    warnings = 0;
    gvmm_set_warning_handler(use_the_buffer, NULL);
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    evict(a, GVMM_CONTENTS_DROP);
    ck_assert_uint_eq(warnings, 1);
    ck_ok(gvmm_buffer_restore(a));
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    gvmm_buffer_release(twice);
    ck_assert_uint_eq(warnings, 2);
    ck_ok(gvmm_faults_set(NULL));
    gvmm_buffer_release(a);
}
END_TEST

static void restore_in_warning(void *user, const gvmm_error *error)
{
    (void)user, (void)error;
    ck_fails(gvmm_buffer_restore(used_by_warning), GVMM_E_INVALID);
    warnings++;
}

static void restore_in_handler(void *user, const gvmm_residency_event *event)
{
    (void)user, (void)event;
    ck_fails(gvmm_buffer_restore(used_by_warning), GVMM_E_INVALID);
    warnings++;
}

/* Who is told of something by an evict waits for no other: it would be itself. */
START_TEST(a_handler_does_not_wait_for_its_own_evict)
{
    used_by_warning = create(plain, G);
    warnings = 0;
    gvmm_set_warning_handler(restore_in_warning, NULL);
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    evict(used_by_warning, GVMM_CONTENTS_DROP);
    fault(0, false);
    ck_assert_uint_eq(warnings, 1);
    gvmm_resource_set_residency_handler(plain, restore_in_handler, NULL);
    ck_ok(gvmm_buffer_restore(used_by_warning));
    ck_assert_uint_eq(warnings, 3);
    gvmm_resource_set_residency_handler(plain, NULL, NULL);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(used_by_warning), 0);
    gvmm_buffer_release(used_by_warning);
}
END_TEST

static void open_gate(void *g, const gvmm_residency_event *event)
{
    if (event->what == GVMM_BEFORE_RESTORE) gate_open(g);
}

/* Nor does gvmm's thread, for which the restore waits that needs the room. */
START_TEST(a_handler_does_not_wait_for_who_waits_for_it)
{
    if (on_gpu) return; /* it would fill the card */
    gvmm_buffer *second;
    size_t most = (size_t)100 << 30;
    gvmm_resource *deferring = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
    ck_ok(gvmm_buffer_create(&used_by_warning, deferring, most, stream));
    evict(used_by_warning, GVMM_CONTENTS_DROP);
    ck_ok(gvmm_buffer_create(&second, deferring, most, stream));
    gate *g = gate_on(stream);
    gvmm_buffer_release(second);
    warnings = 0;
    gvmm_set_warning_handler(restore_in_warning, NULL);
    gvmm_resource_set_residency_handler(deferring, open_gate, g); /* when it is under way */
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    ck_ok(gvmm_buffer_restore(used_by_warning));
    fault(0, false);
    ck_assert_uint_eq(warnings, 1);
    gvmm_buffer_release(used_by_warning);
    gvmm_resource_release(deferring);
    gate_end(g);
}
END_TEST

START_TEST(ten_rotations_leave_no_pinned_memory)
{
    enum { MODELS = 3 };
    gvmm_resource *resource = with_chunks(4 * G, 0);
    gvmm_buffer *models[MODELS];
    uint64_t at[MODELS];
    for (unsigned i = 0; i < MODELS; i++) {
        models[i] = create(resource, 10 * G);
        at[i] = address(models[i]);
        write_pattern(at[i], 10 * G, i);
        evict(models[i], GVMM_CONTENTS_HOST);
    }
    ck_pinned(MODELS);
    for (unsigned round = 0; round < 10; round++)
        for (unsigned i = 0; i < MODELS; i++) {
            ck_ok(gvmm_buffer_restore(models[i]));
            ck_assert_uint_eq(address(models[i]), at[i]);
            ck_assert_uint_eq(stats_of(resource).physical_bytes, 10 * G); /* one at a time */
            ck_pattern(at[i], 10 * G, i);
            ck_pinned(MODELS - 1);
            evict(models[i], GVMM_CONTENTS_HOST);
        }
    for (unsigned i = 0; i < MODELS; i++) gvmm_buffer_release(models[i]);
    ck_pinned(0);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- threads ---- */

enum { ROUNDS = 40, THREADS = 5 };
static gvmm_buffer *shared, *other_view;
static atomic_int failures;
static char first_failure[200];

#define must_ok(call) \
    do { \
        gvmm_result got_ = (call); \
        if (got_ && atomic_fetch_add(&failures, 1) == 0) \
            snprintf(first_failure, sizeof first_failure, "line %d: %s", __LINE__, gvmm_result_name(got_)); \
    } while (0)

static void *rotate(void *index)
{
    for (int i = 0; i < ROUNDS; i++) {
        gvmm_evict_options options = keep(i % 3 ? GVMM_CONTENTS_HOST : GVMM_CONTENTS_FILE);
        options.stream = stream;
        must_ok((intptr_t)index ? gvmm_buffer_evict(i % 2 ? shared : other_view, &options)
                                : gvmm_resource_evict(plain, GVMM_TAG_ANY, &options));
        must_ok((intptr_t)index ? gvmm_buffer_restore(shared) : gvmm_resource_restore(plain, GVMM_TAG_ANY));
    }
    return NULL;
}

static void *grow_aliases(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        gvmm_buffer *longer, *twice, *shorter;
        must_ok(gvmm_buffer_grow(&longer, i % 2 ? shared : other_view, (size_t)(4 + i % 3) * G, NULL));
        must_ok(gvmm_buffer_ring(&twice, longer, 2));
        must_ok(gvmm_buffer_shrink(&shorter, twice, G));
        must_ok(gvmm_buffer_close(longer, stream));
        must_ok(gvmm_buffer_close(twice, stream));
        must_ok(gvmm_buffer_close(shorter, stream));
        gvmm_buffer_release(longer);
        gvmm_buffer_release(twice);
        gvmm_buffer_release(shorter);
    }
    return NULL;
}

static void *ask(void *unused)
{
    (void)unused;
    uint64_t generation = 0;
    for (int i = 0; i < 10 * ROUNDS; i++) {
        gvmm_segment segments[8];
        size_t count;
        gvmm_access access;
        must_ok(gvmm_buffer_segments(shared, segments, 8, &count));
        must_ok(gvmm_buffer_get_access(other_view, 0, &access));
        uint64_t now = gvmm_buffer_generation(shared);
        must_ok(now < generation || gvmm_buffer_evicted_bytes(shared) > 3 * G ? GVMM_E_INVALID : GVMM_OK);
        generation = now;
        sched_yield();
    }
    return NULL;
}

static void *change_access(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        gvmm_buffer *view;
        must_ok(gvmm_buffer_compose(&view, plain, (gvmm_piece[]){{.buffer = shared, .read_only = true}}, 1, stream));
        if (device_count > 1) must_ok(gvmm_buffer_set_access(view, 1, i % 2 ? GVMM_ACCESS_READ : GVMM_ACCESS_NONE));
        if (device_count > 1) must_ok(gvmm_buffer_set_access(shared, 1, i % 2 ? GVMM_ACCESS_NONE : GVMM_ACCESS_READ));
        gvmm_buffer_release(view);
    }
    return NULL;
}

START_TEST(threads_use_the_buffer_meanwhile)
{
    gvmm_resource *resource = with_chunks(G, 0);
    ck_ok(gvmm_buffer_create(&shared, resource, 3 * G, stream));
    ck_ok(gvmm_buffer_compose(&other_view, plain, (gvmm_piece[]){{.buffer = shared}}, 1, stream));
    write_pattern(address(shared), 3 * G, 1);
    pthread_t threads[THREADS];
    void *(*bodies[THREADS])(void *) = {rotate, rotate, grow_aliases, ask, change_access};
    atomic_store(&failures, 0);
    for (intptr_t i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, bodies[i], (void *)i), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    ck_assert_msg(atomic_load(&failures) == 0, "%d failures; the first: %s", atomic_load(&failures), first_failure);
    ck_ok(gvmm_buffer_restore(shared));
    ck_pattern(address(shared), 3 * G, 1);
    ck_pattern(address(other_view), 3 * G, 1);
    gvmm_buffer_release(shared);
    gvmm_buffer_release(other_view);
    gvmm_resource_release(resource);
    ck_pinned(0);
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("evict");
    TCase *order = add_watched_case(suite, "handler, work, captures");
    tcase_add_test(order, the_handler_is_told_before_and_after);
    tcase_add_test(order, evicting_waits_for_the_stream);
    tcase_add_test(order, captures_refuse_it_and_are_unharmed);
    tcase_add_test(order, a_graph_replays_right_after_the_restore);
    tcase_add_test(order, no_context_need_be_current);
    TCase *failing = add_watched_case(suite, "what fails");
    tcase_add_loop_test(failing, a_restore_that_fails_half_way_can_be_tried_again, 0, 2);
    tcase_add_test(failing, memory_made_ahead_is_given_up_for_a_restore);
    tcase_add_test(failing, memory_made_ahead_elsewhere_is_given_up_too);
    tcase_add_test(failing, a_warning_may_use_the_buffer);
    tcase_add_test(failing, a_handler_does_not_wait_for_its_own_evict);
    tcase_add_test(failing, a_handler_does_not_wait_for_who_waits_for_it);
    tcase_add_test(failing, ten_rotations_leave_no_pinned_memory);
    TCase *threads = add_watched_case(suite, "threads");
    tcase_add_test(threads, threads_use_the_buffer_meanwhile);
    return run_suites(suite, NULL);
}

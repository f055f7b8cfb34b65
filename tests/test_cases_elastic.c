/* What went wrong for others, as in test_cases.c: sleep and wake, access changed later, what is wanted again and
 * again. */
#include "watch.h"

#include <pthread.h>

static gvmm_resource *with_chunks(int tag)
{
    gvmm_options options = waiting_options();
    options.chunk_size = G;
    options.tag = tag;
    return resource_with(options);
}

static size_t physical(gvmm_resource *resource)
{
    gvmm_stats stats;
    gvmm_get_stats(resource, &stats);
    return stats.physical_bytes;
}

/* ---- partial failures ---- */

/* Waking up ran out of memory half way; what had been mapped stayed. */
START_TEST(vllm_34600_a_failed_wake_goes_back_to_sleep)
{
    gvmm_resource *resource = with_chunks(0);
    gvmm_buffer *model = create(resource, 4 * G);
    uint64_t at = gvmm_buffer_address(model);
    write_pattern(at, 4 * G, 1);
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
    for (uint64_t k = 1; k <= 4; k++) {
        fault_call("cuMemCreate", k, CUDA_ERROR_OUT_OF_MEMORY);
        watch();
        ck_fails(gvmm_resource_restore(resource, GVMM_TAG_ANY), GVMM_E_NO_DEVICE_MEMORY);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemUnmap), k > 1); /* those before it, which lie together */
        ck_assert_uint_eq(physical(resource), 0);
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(model), 4 * G);
        ck_in_order();
    }
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
    ck_pattern(at, 4 * G, 1);
    gvmm_buffer_release(model);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* Out of memory on waking was printed and swallowed, or ended the process. Here somebody else really has the memory. */
START_TEST(vllm_12981_torch_memory_saver_87_the_caller_knows_and_can_wake_later)
{
    gvmm_buffer *model = create(plain, 4 * G), *hog = NULL;
    uint64_t at = gvmm_buffer_address(model);
    write_pattern(at, 4 * G, 1);
    ck_ok(gvmm_buffer_evict(model, NULL));
    size_t available, total;
    ck_cu(cu->cuMemGetInfo(&available, &total));
    for (size_t size = available / G * G; gvmm_buffer_create(&hog, plain, size, NULL); size -= G) {}
    ck_fails(gvmm_buffer_restore(model), GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_str_ne(last_text(), "");
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(model), 4 * G);
    gvmm_buffer_release(hog);
    ck_ok(gvmm_buffer_restore(model));
    ck_pattern(at, 4 * G, 1);
    gvmm_buffer_release(model);
    ck_no_warnings();
}
END_TEST

/* ---- order with work ---- */

static void evict_it(gvmm_buffer *buffer) { ck_ok(gvmm_buffer_evict(buffer, NULL)); }

/* Sleep during decode: illegal address, and the server said 200. */
START_TEST(vllm_45552_45615_sleep_waits_for_the_work)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    ck_waits_for(stream, buffer, evict_it);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_filled(gvmm_buffer_address(buffer), 1, G);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* With graphs resident sleeping and waking took 3 to 4 times as long, as each chunk was unmapped and opened by itself. */
START_TEST(vllm_45648_a_run_of_chunks_goes_in_one_call)
{
    enum { CHUNKS = 32 };
    gvmm_resource *resource = with_chunks(0);
    gvmm_buffer *model = create(resource, CHUNKS * G);
    uint64_t at = gvmm_buffer_address(model);
    CUgraph graph;
    CUgraphExec exec;
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async(at, 9, CHUNKS * G, stream));
    ck_ok(gvmm_buffer_retain_in_capture(model, stream));
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int round = 0; round < 2; round++) {
        watch();
        ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemUnmap), 1);
        ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemSetAccess), 1);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemcpyDtoHAsync) + calls_of(GVMM_CALL_cuMemcpyHtoDAsync), 2);
        ck_cu(cu->cuGraphLaunch(exec, stream));
        ck_cu(cu->cuStreamSynchronize(stream));
        ck_filled(at, 9, CHUNKS * G);
    }
    ck_cu(cu->cuGraphExecDestroy(exec));
    ck_cu(cu->cuGraphDestroy(graph));
    gvmm_buffer_release(model);
    wait_for_mappings(0);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* The second of two planes ran out of memory: the first stayed mapped while the object said it was not. */
START_TEST(surogate_117_both_planes_wake_or_none)
{
    gvmm_resource *resource = with_chunks(0);
    gvmm_buffer *first = create(resource, 3 * G), *second = create(resource, 3 * G);
    write_pattern(gvmm_buffer_address(first), 3 * G, 1);
    write_pattern(gvmm_buffer_address(second), 3 * G, 2);
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
    fault_call("cuMemCreate", 5, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_resource_restore(resource, GVMM_TAG_ANY), GVMM_E_NO_DEVICE_MEMORY);
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(physical(resource), 0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(first), 3 * G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(second), 3 * G);
    ck_in_order();
    ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
    ck_pattern(gvmm_buffer_address(first), 3 * G, 1);
    ck_pattern(gvmm_buffer_address(second), 3 * G, 2);
    gvmm_buffer_release(first);
    gvmm_buffer_release(second);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* Housekeeping in one thread, sleeping and waking too, must not end another's capture. */
static void *sleep_and_wake(void *model)
{
    for (int i = 0; i < 3; i++) {
        gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
        options.stream = gvmm_buffer_stream(model);
        ck_ok(gvmm_buffer_evict(model, &options));
        ck_ok(gvmm_buffer_restore(model));
    }
    return NULL;
}

START_TEST(llama_cpp_14033_cuda_python_2834_sleeping_leaves_other_captures_alone)
{
    gvmm_buffer *model, *other = create(plain, G);
    gvmm_stream own;
    ck_cu(cu->cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    ck_ok(gvmm_buffer_create(&model, plain, 40 * G, own)); /* large enough for threads of gvmm's */
    pthread_t thread;
    CUgraph graph;
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async(gvmm_buffer_address(other), 1, G, stream));
    ck_assert_int_eq(pthread_create(&thread, NULL, sleep_and_wake, model), 0);
    pthread_join(thread, NULL);
    ck_cu(cu->cuMemsetD8Async(gvmm_buffer_address(other), 2, G, stream));
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_ok(gvmm_buffer_close(model, NULL));
    ck_cu(cu->cuStreamDestroy(own));
    gvmm_buffer_release(model);
    gvmm_buffer_release(other);
    ck_no_warnings();
}
END_TEST

static unsigned deregistered, registered;
static uint64_t registered_generation;

static void registrar(void *buffer, const gvmm_residency_event *event)
{
    if (event->what == GVMM_BEFORE_EVICT) deregistered++;
    if (event->what != GVMM_AFTER_RESTORE) return;
    registered++;
    registered_generation = gvmm_buffer_generation(buffer);
}

/* The same address, new memory: registrations pointed at the old pages. */
START_TEST(torch_memory_saver_88_sglang_40648_registrations_are_renewed)
{
    gvmm_buffer *buffer = create(plain, 2 * G);
    registered_generation = gvmm_buffer_generation(buffer);
    deregistered = registered = 0;
    gvmm_resource_set_residency_handler(plain, registrar, buffer);
    for (unsigned round = 1; round <= 3; round++) {
        uint64_t before = gvmm_buffer_generation(buffer);
        ck_ok(gvmm_resource_evict(plain, GVMM_TAG_ANY, NULL));
        ck_assert_uint_eq(deregistered, round);
        ck_ok(gvmm_resource_restore(plain, GVMM_TAG_ANY));
        ck_assert_uint_eq(registered, round);
        ck_assert_uint_gt(gvmm_buffer_generation(buffer), before);
        ck_assert_uint_eq(registered_generation, gvmm_buffer_generation(buffer));
    }
    gvmm_resource_set_residency_handler(plain, NULL, NULL);
    gvmm_buffer_release(buffer);
}
END_TEST

static unsigned handled;
static void use_from_handler(void *buffer, const gvmm_residency_event *event);

/* Whatever of gvmm were locked meanwhile would stop it. */
static void *use_everything(void *data)
{
    gvmm_buffer *buffer = data, *ring = NULL, *other = NULL;
    gvmm_access now;
    gvmm_resource_set_residency_handler(plain, use_from_handler, buffer);
    if (gvmm_buffer_get_access(buffer, 0, &now) || gvmm_buffer_set_access(buffer, 0, now)) return data;
    if (gvmm_buffer_ring(&ring, buffer, 2) || gvmm_buffer_create(&other, plain, G, stream)) return data;
    gvmm_buffer_release(ring);
    gvmm_buffer_release(other);
    (void)gvmm_buffer_generation(buffer), (void)gvmm_buffer_evicted_bytes(buffer);
    gvmm_drain();
    return NULL;
}

static void use_from_handler(void *buffer, const gvmm_residency_event *event)
{
    pthread_t thread;
    void *failed;
    (void)event;
    handled++;
    ck_assert_ptr_null(use_everything(buffer));
    ck_assert_int_eq(pthread_create(&thread, NULL, use_everything, buffer), 0);
    pthread_join(thread, &failed);
    ck_assert_ptr_null(failed);
}

/* A callback ran under a lock that it, or another thread that it waited for, wanted. */
START_TEST(kvcached_371_a_residency_handler_may_use_the_buffer)
{
    gvmm_buffer *buffer = create(plain, 2 * G);
    handled = 0;
    gvmm_resource_set_residency_handler(plain, use_from_handler, buffer);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_ok(gvmm_buffer_restore(buffer));
    ck_assert_uint_eq(handled, 4);
    gvmm_resource_set_residency_handler(plain, NULL, NULL);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* ---- access ---- */

/* Copies between devices failed without access; a remapped address lost it. */
START_TEST(ucx_11265_xla_40852_access_later_and_through_every_map)
{
    if (lacks_second_device("ucx_11265_xla_40852")) return;
    gvmm_access now;
    gvmm_buffer *buffer = create(plain, 2 * G), *larger;
    ck_ok(gvmm_buffer_get_access(buffer, 1, &now));
    ck_assert_int_eq(now, GVMM_ACCESS_NONE);
    ck_ok(gvmm_buffer_set_access(buffer, 1, GVMM_ACCESS_READ_WRITE));
    uint64_t decoy = block_behind(buffer);
    larger = grow(buffer, 3 * G);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_ok(gvmm_buffer_restore(larger));
    for (size_t at = 0; at < 2 * G; at += G) {
        ck_assert_uint_eq(access_of(gvmm_buffer_address(buffer) + at, 1), 3);
        ck_assert_uint_eq(access_of(gvmm_buffer_address(larger) + at, 1), 3);
    }
    ck_ok(gvmm_buffer_set_access(buffer, 1, GVMM_ACCESS_NONE));
    ck_assert_uint_eq(access_of(gvmm_buffer_address(larger), 1), 0);
    gvmm_buffer_release(larger);
    drop(buffer, decoy);
    ck_no_warnings();
}
END_TEST

/* ---- wanted again and again ---- */

/* Physical memory released and the address kept: tagged subsets, some with a backup, the host copy really freed
 * afterwards. */
START_TEST(wanted_weights_are_kept_and_caches_dropped)
{
    gvmm_resource *weights = with_chunks(1), *cache = with_chunks(2);
    gvmm_buffer *w = create(weights, 3 * G), *c = create(cache, 3 * G);
    uint64_t at_w = gvmm_buffer_address(w), at_c = gvmm_buffer_address(c);
    write_pattern(at_w, 3 * G, 1);
    gvmm_evict_options drop_it = GVMM_EVICT_OPTIONS_INIT;
    drop_it.contents = GVMM_CONTENTS_DROP;
    ck_ok(gvmm_resource_evict(weights, 1, NULL));
    ck_ok(gvmm_resource_evict(cache, 2, &drop_it));
    ck_assert_uint_eq(physical(weights) + physical(cache), 0);
    ck_ok(gvmm_resource_restore(weights, 1)); /* weights first, as they are needed for reloading */
    ck_pattern(at_w, 3 * G, 1);
    ck_ok(gvmm_resource_restore(cache, 2));
    fill(at_c, 1, 3 * G);
    gvmm_drain();
    if (!on_gpu) {
        size_t counts[GVMM_SIM_KIND_COUNT];
        gvmm_sim_census(counts, NULL, NULL);
        ck_assert_uint_eq(counts[GVMM_SIM_PINNED] + counts[GVMM_SIM_REGISTERED], 0);
    }
    gvmm_buffer_release(w);
    gvmm_buffer_release(c);
    gvmm_resource_release(weights);
    gvmm_resource_release(cache);
    ck_no_warnings();
}
END_TEST

/* Grow and shrink with a stable address. */
START_TEST(wanted_a_stable_address_whatever_the_size)
{
    gvmm_buffer *buffer, *next;
    ck_ok(gvmm_buffer_create_with_capacity(&buffer, plain, G, 32 * G, NULL));
    uint64_t at = gvmm_buffer_address(buffer);
    const size_t sizes[] = {8, 3, 17, 1, 32, 2}, got[] = {8, 8, 17, 1, 32, 32};
    for (int i = 0; i < 6; i++) { /* a shrink ends at the border of what one grow made */
        bool less = sizes[i] * G < gvmm_buffer_size(buffer);
        ck_ok(less ? gvmm_buffer_shrink(&next, buffer, sizes[i] * G)
                   : gvmm_buffer_grow(&next, buffer, sizes[i] * G, NULL));
        gvmm_buffer_release(buffer);
        buffer = next;
        ck_assert_uint_eq(gvmm_buffer_address(buffer), at);
        ck_assert_uint_eq(gvmm_buffer_size(buffer), got[i] * G);
        ck_assert_uint_eq(gvmm_buffer_capacity(buffer), 32 * G);
        ck_assert_uint_eq(physical(plain), gvmm_buffer_size(buffer));
    }
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cases, elastic");
    TCase *cases = add_watched_case(suite, "sleep, wake, access");
    tcase_add_test(cases, vllm_34600_a_failed_wake_goes_back_to_sleep);
    tcase_add_test(cases, surogate_117_both_planes_wake_or_none);
    tcase_add_test(cases, vllm_12981_torch_memory_saver_87_the_caller_knows_and_can_wake_later);
    tcase_add_test(cases, vllm_45552_45615_sleep_waits_for_the_work);
    tcase_add_test(cases, vllm_45648_a_run_of_chunks_goes_in_one_call);
    tcase_add_test(cases, llama_cpp_14033_cuda_python_2834_sleeping_leaves_other_captures_alone);
    tcase_add_test(cases, torch_memory_saver_88_sglang_40648_registrations_are_renewed);
    tcase_add_test(cases, kvcached_371_a_residency_handler_may_use_the_buffer);
    tcase_add_test(cases, ucx_11265_xla_40852_access_later_and_through_every_map);
    TCase *wanted = add_watched_case(suite, "wanted again and again");
    tcase_add_test(wanted, wanted_weights_are_kept_and_caches_dropped);
    tcase_add_test(wanted, wanted_a_stable_address_whatever_the_size);
    return run_suites(suite, NULL);
}

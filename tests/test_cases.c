/* What went wrong for others: public reports from systems that do this job. Each test is named by its reference; the
 * comment says what happened there. Here: partial failures, order with GPU work, captures, callbacks; the rest is in
 * test_cases_memory.c, and in test_cases_elastic.c what evicting and access changed later answer.
 *
 * Elsewhere:
 *
 *   the second answer to TensorRT-LLM#11641 and xla#41652, defer     test_deferred.c
 *   sharing: pytorch#165685 and #179220, mscclpp#764, ucx#11753,
 *   dynamo#8108, LMCache#4805                                         test_share.c, test_share_process.c, Python's test_share.py
 *   fabric that falls back: pytorch#173606, Mooncake#1297,
 *   mscclpp#467                                                       test_probe.c; the clear error is in test_cases_memory.c
 *   the interpreter lock: kvcached#371 and #422, LMCache#2823, #4676  Python's test_lock.py; callbacks under a lock are here
 *   registrations that are not renewed                                test_nccl.c */
#include "watch.h"

#include <pthread.h>
#include <unistd.h>

/* More than the device has, in whole chunks. */
static size_t too_much(void)
{
    size_t available, total;
    ck_cu(cu->cuMemGetInfo(&available, &total));
    return (2 * total + G) / G * G;
}

/* ---- partial failures ---- */

/* Mapping or opening failed at some chunk; a later unmap of the whole met the part that was never mapped, inside a
 * destructor. */
START_TEST(pytorch_188008_a_failure_at_any_chunk_undoes_what_was_done)
{
    uint64_t decoy;
    gvmm_buffer *buffer = chunks(4, &decoy), *out = NULL;
    uint64_t address = gvmm_buffer_address(buffer);
    const char *calls[] = {"cuMemMap", "cuMemSetAccess"};
    write_pattern(address, 4 * G, 1);
    for (int i = 0; i < 2; i++) {
        for (unsigned k = 1; k <= 5; k++) {
            gvmm_error error;
            fault_call(calls[i], k, CUDA_ERROR_UNKNOWN);
            watch();
            ck_fails(gvmm_buffer_grow(&out, buffer, 5 * G, NULL), GVMM_E_DRIVER);
            gvmm_last_error(&error);
            ck_assert_str_eq(error.call, calls[i]);
            ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemUnmap), i ? k : k - 1); /* as many as were mapped */
            ck_assert_uint_eq(calls_at(GVMM_CALL_cuMemUnmap, address, 4 * G), 0);
            ck_in_order();
            ck_ok(gvmm_faults_set(NULL));
            ck_intact(buffer, address, 4 * G, 1);
        }
    }
    drop(buffer, decoy);
    ck_no_warnings();
}
END_TEST

/* The second of two planes found no memory; the first stayed mapped, and addresses were freed under it. */
START_TEST(surogate_117_out_of_memory_leaves_nothing_half_made)
{
    gvmm_stats before, after;
    gvmm_buffer *keys = create(plain, G), *values = NULL, *out = NULL;
    uint64_t address = gvmm_buffer_address(keys);
    write_pattern(address, G, 2);
    gvmm_get_stats(NULL, &before);
    watch();
    ck_fails(gvmm_buffer_create(&values, plain, too_much(), NULL), GVMM_E_NO_DEVICE_MEMORY);
    ck_fails(gvmm_buffer_grow(&out, keys, too_much(), NULL), GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemMap) + calls_of(GVMM_CALL_cuMemUnmap), 0);
    gvmm_get_stats(NULL, &after);
    ck_assert_uint_eq(after.reserved_bytes, before.reserved_bytes);
    ck_assert_uint_eq(after.physical_bytes, before.physical_bytes);
    ck_assert_uint_eq(after.mapped_bytes, before.mapped_bytes);
    ck_assert_uint_eq(after.buffers, before.buffers);
    ck_assert(!values && !out);
    ck_in_order();
    ck_intact(keys, address, G, 2);
    values = create(plain, G); /* and with a size that fits it goes on */
    drop(keys, 0);
    drop(values, 0);
    ck_no_warnings();
}
END_TEST

/* Three error paths freed the addresses before the memory that was mapped there. */
START_TEST(Mooncake_2380_every_error_path_undoes_in_order)
{
    const char *calls[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "malloc"};
    uint64_t decoy;
    gvmm_buffer *moves = chunks(2, &decoy), *stays = buffer_with_hole_behind(plain, G, G), *out;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (unsigned nth = 1; nth <= 8; nth++) {
            fault_call(calls[i], nth, CUDA_ERROR_UNKNOWN);
            if (!gvmm_buffer_create(&out, plain, G, NULL)) gvmm_buffer_release(out);
            ck_in_order();
            fault_call(calls[i], nth, CUDA_ERROR_UNKNOWN);
            if (!gvmm_buffer_grow(&out, stays, 2 * G, NULL)) gvmm_buffer_release(out);
            ck_in_order();
            fault_call(calls[i], nth, CUDA_ERROR_UNKNOWN);
            if (!gvmm_buffer_grow(&out, moves, 3 * G, NULL)) gvmm_buffer_release(out);
            ck_in_order();
        }
    }
    ck_ok(gvmm_faults_set(NULL));
    drop(moves, decoy);
    drop(stays, 0);
    ck_no_warnings();
}
END_TEST

static void make_resources(void)
{
    gvmm_options options[3] = {waiting_options(), on_host(), waiting_options()};
    options[2].location = GVMM_LOCATION_HOST_NUMA_CURRENT;
    for (int i = 0; i < 3; i++) gvmm_resource_release(resource_with(options[i]));
}

/* How many bytes `act` writes to standard error. */
static off_t written_to_stderr(void (*act)(void))
{
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fileno(file), STDERR_FILENO), 0);
    act();
    fflush(stderr);
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
    close(saved);
    off_t size = lseek(fileno(file), 0, SEEK_END);
    fclose(file);
    return size;
}

/* Looking for a feature that was not there printed errors at every start, and a memory checker reported each refused
 * call. */
START_TEST(realm_285_making_a_resource_is_quiet)
{
    gvmm_set_warning_handler(NULL, NULL); /* warnings would go to standard error */
    watch();
    ck_assert_int_eq(written_to_stderr(make_resources), 0);
    ck_assert_uint_eq(calls_failed(), 0);
}
END_TEST

/* ---- order with work, captures ---- */

/* Unmapping is immediate, unlike cudaFree: memory went away under kernels. (xla: under those that used the address from
 * before a move.) */
START_TEST(TensorRT_LLM_11641_xla_41652_giving_up_waits_for_work)
{
    uint64_t decoy;
    gvmm_buffer *small, *large;
    small = buffer_with_decoy_behind(plain, G, &decoy);
    ck_ok(gvmm_buffer_set_stream(small, stream));
    large = grow(small, 2 * G);
    ck_assert_ptr_eq(gvmm_buffer_stream(large), stream);
    ck_waits_for(stream, small, release_it); /* the old address */
    ck_waits_for(stream, large, close_it);
    drop(large, decoy);
    ck_no_warnings();
}
END_TEST

/* Code that had cudaMalloc replaced relied on cudaFree to wait for everything. A buffer that names no stream offers
 * that: the legacy stream waits for all blocking ones. */
START_TEST(comfy_aimdo_20_the_default_stream_waits_for_blocking_streams)
{
    CUstream blocking;
    ck_cu(cu->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    gvmm_buffer *buffer = create(plain, G);
    ck_waits_for(blocking, buffer, close_it);
    drop(buffer, 0);
    ck_cu(cu->cuStreamDestroy(blocking));
    ck_no_warnings();
}
END_TEST

/* Running out of memory inside a capture freed cached memory and tried again, which ended the capture. */
START_TEST(pytorch_187795_out_of_memory_in_a_capture_fails_cleanly)
{
    gvmm_buffer *buffer, *out = NULL;
    CUstreamCaptureStatus status;
    CUgraph graph;
    CUgraphExec exec;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    uint64_t address = gvmm_buffer_address(buffer);
    const size_t size = too_much();
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async(address, 7, G, stream));
    watch();
    ck_fails(gvmm_buffer_create(&out, plain, size, stream), GVMM_E_NO_DEVICE_MEMORY);
    ck_fails(gvmm_buffer_grow(&out, buffer, size, NULL), GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemUnmap) + calls_of(GVMM_CALL_cuMemRelease), 0);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamSynchronize) + calls_of(GVMM_CALL_cuCtxSynchronize), 0);
    ck_assert_ptr_null(out);
    ck_cu(cu->cuStreamIsCapturing(stream, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    gvmm_buffer *larger = grow(buffer, 2 * G); /* what fits is still to be had */
    ck_cu(cu->cuMemsetD8Async(gvmm_buffer_address(larger) + G, 8, G, stream));
    ck_cu(cu->cuStreamEndCapture(stream, &graph));

    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    ck_cu(cu->cuGraphLaunch(exec, stream));
    ck_cu(cu->cuStreamSynchronize(stream));
    ck_filled(address, 7, G);
    ck_filled(gvmm_buffer_address(larger) + G, 8, G);
    ck_cu(cu->cuGraphExecDestroy(exec));
    ck_cu(cu->cuGraphDestroy(graph));
    drop(buffer, 0);
    drop(larger, 0);
    ck_no_warnings();
}
END_TEST

typedef struct housekeeper {
    gvmm_stream side;
    atomic_bool stop;
    atomic_int rounds;
    gvmm_result result;
} housekeeper;

static void *keep_house(void *data)
{
    housekeeper *h = data;
    while (!h->result && !atomic_load(&h->stop)) {
        gvmm_buffer *small = NULL, *large = NULL;
        h->result = gvmm_buffer_create(&small, plain, G, atomic_load(&h->rounds) % 2 ? h->side : NULL);
        if (!h->result) h->result = gvmm_buffer_grow(&large, small, 3 * G, NULL);
        if (!h->result) h->result = gvmm_buffer_close(small, NULL);
        if (!h->result) h->result = gvmm_buffer_close(large, h->side);
        gvmm_buffer_release(small);
        gvmm_buffer_release(large);
        atomic_fetch_add(&h->rounds, 1);
    }
    return NULL;
}

/* Housekeeping in one thread ended captures in another: it waited in the default mode, or for the whole device.
 * (cuda-python#2834 is the same.) */
START_TEST(llama_cpp_14033_housekeeping_disturbs_no_capture)
{
    housekeeper h = {0};
    pthread_t thread;
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    ck_cu(cu->cuStreamCreate(&h.side, CU_STREAM_NON_BLOCKING));
    ck_assert_int_eq(pthread_create(&thread, NULL, keep_house, &h), 0);
    for (int i = 0; i < 40; i++) {
        CUgraph graph;
        size_t nodes;
        int rounds = atomic_load(&h.rounds);
        ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        ck_cu(cu->cuMemsetD8Async(gvmm_buffer_address(buffer), 1, G, stream));
        while (atomic_load(&h.rounds) < rounds + 2) sched_yield(); /* at least one round is whole within the capture */
        ck_cu(cu->cuMemsetD8Async(gvmm_buffer_address(buffer), 2, G, stream));
        ck_cu(cu->cuStreamEndCapture(stream, &graph));
        ck_cu(cu->cuGraphGetNodes(graph, NULL, &nodes));
        ck_assert_uint_eq(nodes, 2);
        ck_cu(cu->cuGraphDestroy(graph));
    }
    atomic_store(&h.stop, true);
    pthread_join(thread, NULL);
    ck_assert_int_eq(h.result, GVMM_OK);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuCtxSynchronize), 0);
    ck_cu(cu->cuStreamDestroy(h.side));
    drop(buffer, 0);
    ck_no_warnings();
}
END_TEST

/* ---- callbacks ---- */

/* Everything that can be done to a buffer; any lock that gvmm held meanwhile would stop it. */
static void *use_everything(void *data)
{
    gvmm_buffer *buffer = data, *out;
    gvmm_segment segment;
    gvmm_stats stats;
    size_t count;
    (void)gvmm_buffer_address(buffer), (void)gvmm_buffer_size(buffer), (void)gvmm_buffer_stream(buffer);
    if (gvmm_buffer_set_stream(buffer, stream) != GVMM_E_CLOSED) return data;
    if (gvmm_buffer_segments(buffer, &segment, 1, &count) != GVMM_E_CLOSED) return data;
    if (gvmm_buffer_grow(&out, buffer, 2 * G, NULL) != GVMM_E_CLOSED) return data;
    if (gvmm_buffer_close(buffer, NULL)) return data;
    gvmm_buffer_release(gvmm_buffer_retain(buffer));
    gvmm_get_stats(NULL, &stats);
    gvmm_get_stats(gvmm_buffer_resource(buffer), &stats);
    if (gvmm_buffer_create(&out, gvmm_buffer_resource(buffer), G, NULL)) return data;
    gvmm_buffer_release(out);
    gvmm_drain();
    return NULL;
}

/* On this thread, and on one that shares no lock with it. */
static void use_from_callback(gvmm_buffer *buffer)
{
    pthread_t thread;
    void *failed;
    ck_assert_ptr_null(use_everything(buffer));
    ck_assert_int_eq(pthread_create(&thread, NULL, use_everything, buffer), 0);
    pthread_join(thread, &failed);
    ck_assert_ptr_null(failed);
}

static int callbacks;

static void warned(void *user, const gvmm_error *error)
{
    (void)error;
    callbacks++;
    gvmm_set_warning_handler(warned, user);
    use_from_callback(user);
}

static gvmm_result freed(void *user, uint64_t address, size_t size, gvmm_stream on)
{
    (void)address, (void)size, (void)on;
    callbacks++;
    use_from_callback(*(gvmm_buffer **)user);
    return GVMM_OK;
}

/* A callback ran under a lock that the driver's own thread, or the callback, wanted: a deadlock for good. (LMCache#2823
 * and #4676 are of the same kind.) */
START_TEST(kvcached_371_a_warning_may_use_the_buffer)
{
    const char *calls[] = {"cuStreamSynchronize", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"};
    for (int i = 0; i < 4; i++) {
        gvmm_buffer *buffer = create(plain, G);
        gvmm_set_warning_handler(warned, buffer);
        fault_call(calls[i], 1, CUDA_ERROR_UNKNOWN);
        ck_ok(gvmm_buffer_close(buffer, NULL));
        ck_assert_int_eq(callbacks, i + 1);
        gvmm_buffer_release(buffer);
    }
    callbacks = 0;
}
END_TEST

START_TEST(kvcached_422_a_free_callback_may_use_the_buffer)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_wrap(&buffer, plain, 0x1000, G, stream, freed, &buffer));
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_assert_int_eq(callbacks, 1);
    gvmm_buffer_release(buffer);
    ck_assert_int_eq(callbacks, 1);
    callbacks = 0;
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cases");
    TCase *partial = add_watched_case(suite, "partial failures");
    tcase_add_test(partial, pytorch_188008_a_failure_at_any_chunk_undoes_what_was_done);
    tcase_add_test(partial, surogate_117_out_of_memory_leaves_nothing_half_made);
    tcase_add_test(partial, Mooncake_2380_every_error_path_undoes_in_order);
    tcase_add_test(partial, realm_285_making_a_resource_is_quiet);
    TCase *order = add_watched_case(suite, "order with work, captures");
    tcase_add_test(order, TensorRT_LLM_11641_xla_41652_giving_up_waits_for_work);
    tcase_add_test(order, comfy_aimdo_20_the_default_stream_waits_for_blocking_streams);
    tcase_add_test(order, pytorch_187795_out_of_memory_in_a_capture_fails_cleanly);
    tcase_add_test(order, llama_cpp_14033_housekeeping_disturbs_no_capture);
    TCase *callbacks_case = add_watched_case(suite, "callbacks");
    tcase_add_test(callbacks_case, kvcached_371_a_warning_may_use_the_buffer);
    tcase_add_test(callbacks_case, kvcached_422_a_free_callback_may_use_the_buffer);
    return run_suites(suite, NULL);
}

/* What went wrong for others: public reports from systems that do this job. Each test is named by its reference; the comment says what
 * happened there.
 *
 * Reports that wait for a part of gvmm that does not exist yet, or that a C test cannot show:
 *
 *   elastic memory (evict, restore, shrink, access changed later, notifications)
 *     vllm#34600                                  waking up runs out of memory half way
 *     vllm#12981, torch_memory_saver#87           out of memory on wake swallowed
 *     vllm#45552, vllm#45615                      sleep during decode
 *     torch_memory_saver#88, sglang#40648         registrations point at the old pages after waking
 *     vllm#45648                                  one unmap and one access call for a run of mappings
 *     ucx#11265                                   access granted and revoked later
 *   deferred release
 *     TensorRT-LLM#11641, xla#41652               the second of their two answers, "wait or defer"; the first is tested here
 *     cuda-python#2989                            close blocks on GPU work
 *   sharing
 *     pytorch#165685, pytorch#179220, mscclpp#764, ucx#11753, dynamo#8108, LMCache#4805
 *     pytorch#173606, Mooncake#1297, mscclpp#467  the probe and the fall-back; the clear error is tested here
 *   Python
 *     kvcached#371, #422, LMCache#2823, #4676     the interpreter lock; callbacks under a lock are tested here */
#include "watch.h"

#include <pthread.h>
#include <unistd.h>

/* A simulated machine of another kind, with everything of the fixture on it. False on a GPU. */
static bool another_machine(gvmm_sim_config config)
{
    if (on_gpu) return false;
    const gvmm_driver *watched;
    CUcontext context;
    ck_ok(gvmm_driver_get(&watched));
    gvmm_resource_release(plain);
    ck_cu(cu->cuStreamDestroy(stream));
    ck_cu(cu->cuCtxSetCurrent(NULL));
    ck_cu(cu->cuDevicePrimaryCtxRelease(0));
    ck_ok(gvmm_sim_reset(&config));
    ck_ok(gvmm_driver_install(watched));
    ck_ok(gvmm_driver_get(&watched));
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 0));
    ck_cu(cu->cuCtxSetCurrent(context));
    ck_cu(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ck_ok(gvmm_resource_create(&plain, 0, NULL));
    G = gvmm_resource_granularity(plain);
    return true;
}

/* More than the device has, in whole chunks. */
static size_t too_much(void)
{
    size_t available, total;
    ck_cu(cu->cuMemGetInfo(&available, &total));
    return (2 * total + G) / G * G;
}

/* A range of `count` chunks of G that the next grow has to move. */
static gvmm_buffer *chunks(size_t count, uint64_t *decoy)
{
    gvmm_buffer *buffer = buffer_with_hole_behind(plain, G, count * G);
    for (size_t i = 2; i <= count; i++) {
        gvmm_buffer *larger = grow(buffer, i * G);
        gvmm_buffer_release(buffer);
        buffer = larger;
    }
    *decoy = block_behind(buffer);
    return buffer;
}

static void drop(gvmm_buffer *buffer, uint64_t decoy)
{
    gvmm_buffer_release(buffer);
    if (decoy) free_decoy(decoy);
}

static void ck_intact(gvmm_buffer *buffer, uint64_t address, size_t size, unsigned seed)
{
    ck_assert_uint_eq(gvmm_buffer_address(buffer), address);
    ck_assert_uint_eq(gvmm_buffer_size(buffer), size);
    for (size_t at = 0; at < size; at += G) ck_assert_uint_eq(access_of(address + at, 0), GVMM_ACCESS_READ_WRITE);
    ck_pattern(address, size, seed);
}

/* ---- partial failures ---- */

/* Mapping or opening failed at some chunk; a later unmap of the whole met the part that was never mapped, inside a destructor. */
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
    gvmm_options options[3] = {GVMM_OPTIONS_INIT, GVMM_OPTIONS_INIT, GVMM_OPTIONS_INIT};
    options[1].location = GVMM_LOCATION_HOST;
    options[1].handle_type = GVMM_HANDLE_NONE;
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

/* Looking for a feature that was not there printed errors at every start, and a memory checker reported each refused call. */
START_TEST(realm_285_making_a_resource_is_quiet)
{
    gvmm_set_warning_handler(NULL, NULL); /* warnings would go to standard error */
    watch();
    ck_assert_int_eq(written_to_stderr(make_resources), 0);
    ck_assert_uint_eq(calls_failed(), 0);
}
END_TEST

/* ---- order with work, captures ---- */

/* Unmapping is immediate, unlike cudaFree: memory went away under kernels. (xla: under those that used the address from before a
 * move.) */
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

/* Code that had cudaMalloc replaced relied on cudaFree to wait for everything. A buffer that names no stream offers that: the legacy
 * stream waits for all blocking ones. */
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

/* Housekeeping in one thread ended captures in another: it waited in the default mode, or for the whole device. (cuda-python#2834 is
 * the same.) */
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

/* A callback ran under a lock that the driver's own thread, or the callback, wanted: a deadlock for good. (LMCache#2823 and #4676 are
 * of the same kind.) */
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

/* ---- access and peers ---- */

/* Writes as device 1 would. */
static CUresult write_from_device_1(uint64_t address, unsigned char value, size_t size)
{
    CUcontext context;
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 1));
    ck_cu(cu->cuCtxPushCurrent(context));
    CUresult status = cu->cuMemsetD8(address, value, size);
    if (status == CUDA_SUCCESS) status = cu->cuCtxSynchronize();
    ck_cu(cu->cuCtxPopCurrent(&context));
    ck_cu(cu->cuDevicePrimaryCtxRelease(1));
    return status;
}

/* Memory was open to its owner alone; the kernel of a peer wrote to it, and the error came far away. */
START_TEST(llama_cpp_24489_peers_are_granted_or_refused_at_once)
{
    if (lacks_second_device("llama_cpp_24489")) return;
    gvmm_resource *shared = resource_with_peer();
    gvmm_buffer *closed = create(plain, G), *open = create(shared, G);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(closed), 1), GVMM_ACCESS_NONE);
    ck_cu_fails(write_from_device_1(gvmm_buffer_address(closed), 1, G), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(open), 1), GVMM_ACCESS_READ_WRITE);
    ck_cu(write_from_device_1(gvmm_buffer_address(open), 2, G));
    ck_filled(gvmm_buffer_address(open), 2, G);
    drop(closed, 0);
    drop(open, 0);
    gvmm_resource_release(shared);
}
END_TEST

START_TEST(llama_cpp_24489_a_peer_that_cannot_is_a_clear_error)
{
    static const int peers[] = {1, 99};
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *resource = NULL;
    options.peers = &peers[1];
    options.peer_count = 1;
    ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_INVALID);
    ck_names("peers: there is no device 99");
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    config.peers = false;
    if (another_machine(config)) {
        options.peers = peers;
        ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_UNSUPPORTED);
        ck_names("peers: device 1 cannot access the memory of device 0");
    }
    ck_assert_ptr_null(resource);
}
END_TEST

/* A buffer that had moved was no longer open to its peer: a training step hung for 56 minutes. */
START_TEST(xla_40852_access_follows_the_memory)
{
    if (lacks_second_device("xla_40852")) return;
    gvmm_options owner_only = GVMM_OPTIONS_INIT;
    gvmm_resource *shared = resource_with_peer();
    uint64_t decoy;
    gvmm_buffer *a = buffer_with_decoy_behind(shared, G, &decoy), *b, *c, *d;
    const unsigned long long wanted[] = {GVMM_ACCESS_READ_WRITE, GVMM_ACCESS_NONE, GVMM_ACCESS_READ_WRITE,
                                         GVMM_ACCESS_READ_WRITE};
    ck_ok(gvmm_buffer_grow(&b, a, 2 * G, &owner_only)); /* this chunk is not the peer's */
    uint64_t second = block_behind(b);
    c = grow(b, 3 * G);
    uint64_t third = block_behind(c);
    d = grow(c, 4 * G);
    ck_assert_uint_ne(gvmm_buffer_address(c), gvmm_buffer_address(b));
    ck_assert_uint_ne(gvmm_buffer_address(d), gvmm_buffer_address(c));
    gvmm_buffer *all[] = {a, b, c, d};
    for (size_t i = 0; i < 4; i++) {
        for (size_t chunk = 0; chunk <= i; chunk++) {
            uint64_t at = gvmm_buffer_address(all[i]) + chunk * G;
            ck_assert_uint_eq(access_of(at, 0), GVMM_ACCESS_READ_WRITE);
            ck_assert_uint_eq(access_of(at, 1), wanted[chunk]);
        }
    }
    ck_cu(write_from_device_1(gvmm_buffer_address(d) + 2 * G, 5, 2 * G));
    ck_filled(gvmm_buffer_address(d) + 2 * G, 5, 2 * G);
    ck_filled(gvmm_buffer_address(c) + 2 * G, 5, G);
    for (size_t i = 0; i < 4; i++) gvmm_buffer_release(all[i]);
    free_decoy(decoy);
    if (second) free_decoy(second);
    if (third) free_decoy(third);
    gvmm_resource_release(shared);
    ck_no_warnings();
}
END_TEST

/* Host memory passed for a host pointer, but the CPU had never been let in: a load crashed. */
START_TEST(ompi_12751_the_cpu_may_touch_host_memory)
{
    static const int peers[] = {0};
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.location = GVMM_LOCATION_HOST_NUMA;
    options.peers = peers;
    options.peer_count = 1;
    gvmm_resource *host = resource_with(options);
    ck_assert(gvmm_resource_is_host_accessible(host));
    ck_assert(gvmm_resource_is_device_accessible(host));
    gvmm_buffer *small = create(host, G), *middle = grow(small, 2 * G), *large;
    uint64_t decoy = block_behind(middle);
    large = grow(middle, 3 * G);
    unsigned char *bytes = (unsigned char *)(uintptr_t)gvmm_buffer_address(large);
    memset(bytes, 6, 3 * G);
    ck_assert_int_eq(*(unsigned char *)(uintptr_t)gvmm_buffer_address(small), 6);
    ck_filled(gvmm_buffer_address(large), 6, 3 * G); /* the device sees the same */
    fill(gvmm_buffer_address(large), 7, 3 * G);
    for (size_t at = 0; at < 3 * G; at += 4096) ck_assert_int_eq(bytes[at], 7);
    drop(small, 0);
    drop(middle, decoy);
    drop(large, 0);
    gvmm_resource_release(host);
    ck_no_warnings();
}
END_TEST

/* ---- sharing ---- */

/* The device says that it has fabric handles, creating one is not permitted: nothing told which call had failed, or why. (Mooncake#1297,
 * mscclpp#467: the same.) */
START_TEST(pytorch_173606_fabric_that_is_not_permitted_is_a_clear_error)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.handle_type = GVMM_HANDLE_FABRIC;
    gvmm_resource *resource;
    if (gvmm_resource_create(&resource, 0, &options)) {
        ck_names("fabric");
        printf("skip (hardware): pytorch_173606: no fabric handles\n");
        return;
    }
    gvmm_buffer *buffer = NULL;
    gvmm_error error;
    if (on_gpu && !gvmm_buffer_create(&buffer, resource, G, NULL)) { /* a GPU with an IMEX channel */
        drop(buffer, 0);
        buffer = NULL;
        fault_call("cuMemCreate", 1, CUDA_ERROR_NOT_PERMITTED);
    }
    ck_fails(gvmm_buffer_create(&buffer, resource, G, NULL), GVMM_E_NOT_PERMITTED);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemCreate");
    ck_assert_int_eq(error.status, CUDA_ERROR_NOT_PERMITTED);
    ck_names("cuMemCreate");
    ck_assert_ptr_null(buffer);
    gvmm_resource_release(resource);
}
END_TEST

/* ---- sizes, address space, environments ---- */

/* 128 TiB of addresses really ran out: reservations stayed behind. (nccl#2064: the same.) */
START_TEST(pytorch_192269_reserved_addresses_are_counted_and_come_back)
{
    gvmm_stats before, now;
    gvmm_get_stats(plain, &before);
    for (int i = 0; i < 100; i++) {
        uint64_t decoy;
        gvmm_buffer *small = buffer_with_decoy_behind(plain, G, &decoy), *large = grow(small, 3 * G);
        gvmm_get_stats(NULL, &now);
        ck_assert_uint_eq(now.reservations, 2);
        ck_assert_uint_eq(now.reserved_bytes, 4 * G);
        drop(small, decoy);
        gvmm_get_stats(NULL, &now);
        ck_assert_uint_eq(now.reserved_bytes, 3 * G);
        drop(large, 0);
    }
    gvmm_get_stats(plain, &now);
    ck_assert_uint_eq(now.reserved_bytes, before.reserved_bytes);
    ck_assert_uint_eq(now.reservations, before.reservations);
    ck_no_warnings();
}
END_TEST

START_TEST(pytorch_192269_when_addresses_run_out_it_says_so)
{
    gvmm_buffer *buffers[16], *out = NULL;
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_error error;
    int count = 0;
    config.address_space = 16 * G;
    if (!another_machine(config)) ck_ok(gvmm_faults_set(&(gvmm_fault){5, true, "cuMemAddressReserve", 0}));
    gvmm_result r = GVMM_OK;
    while (count < 16 && !(r = gvmm_buffer_create(&buffers[count], plain, 4 * G, NULL))) count++;
    ck_assert_int_eq(count, 4);
    ck_assert_int_eq(r, GVMM_E_NO_ADDRESS_SPACE);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemAddressReserve");
    uint64_t address = gvmm_buffer_address(buffers[1]);
    write_pattern(address, 4 * G, 1);
    ck_fails(gvmm_buffer_grow(&out, buffers[1], 5 * G, NULL), GVMM_E_NO_ADDRESS_SPACE);
    ck_assert_ptr_null(out);
    ck_intact(buffers[1], address, 4 * G, 1);

    ck_ok(gvmm_faults_set(NULL));
    drop(buffers[0], 0);
    drop(buffers[3], 0);
    out = grow(buffers[1], 5 * G); /* eight are free again: in place, or moved, it fits */
    drop(out, 0);
    drop(buffers[1], 0);
    drop(buffers[2], 0);
    ck_no_warnings();
}
END_TEST

static void use_odd_sizes(void)
{
    const size_t sizes[] = {1, G / 2, G / 2 + 1, G - 1, G + 1, 3 * G - 1, 3 * G + 1};
    gvmm_buffer *buffer = create(plain, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t whole = (sizes[i] + G - 1) / G * G;
        gvmm_buffer *fresh = create(plain, sizes[i]), *larger = grow(buffer, sizes[i]);
        ck_assert_uint_eq(gvmm_buffer_size(fresh), whole);
        ck_assert_uint_eq(gvmm_buffer_size(larger), whole);
        fill(gvmm_buffer_address(larger), 1, whole);
        drop(fresh, 0);
        drop(buffer, 0);
        buffer = larger;
    }
    drop(buffer, 0);
}

/* A reservation of a size that was no multiple of the granularity was refused. */
START_TEST(ComfyUI_12727_sizes_are_rounded_for_the_caller)
{
    const uint64_t granularities[] = {4096, 64 << 10, 32 << 20};
    use_odd_sizes();
    for (int i = 0; i < 3; i++) {
        gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
        config.granularity = granularities[i];
        if (!another_machine(config)) break;
        ck_assert_uint_eq(G, granularities[i]);
        use_odd_sizes();
    }
    ck_no_warnings();
}
END_TEST

/* Some drivers refuse a hint that they cannot follow. (DALI#3145: the same.) */
START_TEST(DALI_3128_a_refused_hint_is_left_out)
{
    const CUresult answers[] = {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY};
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_buffer *taken = create(plain, G);
    options.addr_hint = gvmm_buffer_address(taken);
    gvmm_resource *resource = resource_with(options);
    for (int i = 0; i < 3; i++) {
        fault_call("cuMemAddressReserve", 1, answers[i]);
        watch();
        gvmm_buffer *buffer = create(resource, G);
        ck_assert_uint_eq(gvmm_faults_injected(), 1);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemAddressReserve), 2);
        fill(gvmm_buffer_address(buffer), 1, G);
        drop(buffer, 0);
    }
    gvmm_buffer *buffer = create(resource, G); /* taken, and not refused: another address comes */
    ck_assert_uint_ne(gvmm_buffer_address(buffer), options.addr_hint);
    drop(buffer, 0);
    drop(taken, 0);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* A virtual GPU has no virtual memory management, and its attribute may say otherwise. (ppl.nn#8: the same.) */
START_TEST(comfy_aimdo_21_a_virtual_gpu_is_named_unsupported)
{
    const char *calls[] = {"cuMemAddressReserve", "cuMemCreate"};
    gvmm_buffer *buffer = NULL;
    gvmm_resource *resource = NULL;
    gvmm_error error;
    for (int i = 0; i < 2; i++) {
        fault_call(calls[i], 1, CUDA_ERROR_NOT_SUPPORTED);
        ck_fails(gvmm_buffer_create(&buffer, plain, G, NULL), GVMM_E_UNSUPPORTED);
        gvmm_last_error(&error);
        ck_assert_str_eq(error.call, calls[i]);
        ck_names(calls[i]);
        ck_assert_ptr_null(buffer);
    }
    fault_call("cuDeviceGetAttribute", 1, CUDA_ERROR_INVALID_VALUE); /* does not know the question */
    ck_fails(gvmm_resource_create(&resource, 0, NULL), GVMM_E_UNSUPPORTED);
    ck_names("virtual memory management is not supported on this device");
    fault_call("cuMemGetAllocationGranularity", 1, CUDA_ERROR_NOT_SUPPORTED);
    ck_fails(gvmm_resource_create(&resource, 0, NULL), GVMM_E_UNSUPPORTED);
    ck_names("cuMemGetAllocationGranularity");
    ck_assert_ptr_null(resource);
}
END_TEST

/* Host memory of a node failed in containers and on nodes that have memory only, with a bare status. (nccl#2190, xgboost#10933: the
 * same.) */
START_TEST(nccl_2106_numa_memory_that_fails_says_why)
{
    const struct {
        CUresult status;
        gvmm_result result;
    } answers[] = {{CUDA_ERROR_NOT_PERMITTED, GVMM_E_NOT_PERMITTED},
                   {CUDA_ERROR_NOT_SUPPORTED, GVMM_E_UNSUPPORTED},
                   {CUDA_ERROR_INVALID_VALUE, GVMM_E_INVALID},
                   {CUDA_ERROR_OUT_OF_MEMORY, GVMM_E_NO_HOST_MEMORY}};
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.location = GVMM_LOCATION_HOST_NUMA;
    gvmm_resource *host = resource_with(options), *resource = NULL;
    gvmm_buffer *buffer = NULL;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        fault_call("cuMemCreate", 1, answers[i].status);
        ck_fails(gvmm_buffer_create(&buffer, host, G, NULL), answers[i].result);
        ck_names("cuMemCreate");
        ck_names("numa_node 0");
        ck_assert_ptr_null(buffer);
    }
    fault_call("cuDeviceGetAttribute", 1, CUDA_ERROR_INVALID_VALUE);
    ck_fails(gvmm_resource_create(&resource, 0, &options), GVMM_E_UNSUPPORTED);
    ck_names("host NUMA memory is not supported on this device");
    ck_assert_ptr_null(resource);
    gvmm_resource_release(host);
    ck_no_warnings();
}
END_TEST

/* Every segment is what the driver's own query says of it, and together they are the buffer. */
static void ck_segments_cover(gvmm_buffer *buffer, const gvmm_segment *segments, size_t count)
{
    uint64_t at = gvmm_buffer_address(buffer);
    for (size_t i = 0; i < count; i++) {
        CUdeviceptr base;
        size_t size;
        ck_assert_uint_eq(segments[i].address, at);
        ck_assert_int_eq(segments[i].device, 0);
        ck_cu(cu->cuMemGetAddressRange(&base, &size, at + segments[i].size / 2));
        ck_assert_uint_eq(base, segments[i].address);
        ck_assert_uint_eq(size, segments[i].size);
        at += segments[i].size;
    }
    ck_assert_uint_eq(at, gvmm_buffer_address(buffer) + gvmm_buffer_size(buffer));
}

/* The driver's address-range query sees one chunk: libraries registered the first, and failed at the border. (ucx#11461,
 * libfabric#12473: the same.) */
START_TEST(nccl_2332_segments_cover_the_buffer)
{
    enum { N = 5 };
    gvmm_segment before[N], after[N + 1];
    size_t count;
    uint64_t decoy;
    gvmm_buffer *buffer = chunks(N, &decoy), *moved = grow(buffer, (N + 2) * G);
    ck_ok(gvmm_buffer_segments(buffer, NULL, 0, &count));
    ck_assert_uint_eq(count, N);
    ck_ok(gvmm_buffer_segments(buffer, before, N, &count));
    ck_segments_cover(buffer, before, N);
    ck_ok(gvmm_buffer_segments(moved, after, N + 1, &count));
    ck_assert_uint_eq(count, N + 1);
    ck_segments_cover(moved, after, N + 1);
    for (size_t i = 0; i < N; i++) {
        ck_assert_uint_eq(after[i].memory, before[i].memory); /* the same memory, elsewhere */
        for (size_t j = 0; j < i; j++) ck_assert_uint_ne(before[i].memory, before[j].memory);
    }
    drop(buffer, decoy);
    drop(moved, 0);
}
END_TEST

/* A memory checker gave false alarms for copies across the border of two chunks. The copies are right; who cannot have borders makes a
 * buffer at once, of whatever size: one chunk. */
START_TEST(pytorch_196209_copies_across_borders_and_a_single_chunk)
{
    gvmm_segment segment;
    size_t count;
    uint64_t decoy;
    gvmm_buffer *pieces = chunks(3, &decoy), *whole = create(plain, 3 * G);
    ck_ok(gvmm_buffer_segments(whole, &segment, 1, &count));
    ck_assert_uint_eq(count, 1);
    ck_segments_cover(whole, &segment, 1);
    write_pattern(gvmm_buffer_address(whole), 3 * G, 9);
    ck_cu(cu->cuMemcpyDtoD(gvmm_buffer_address(pieces), gvmm_buffer_address(whole), 3 * G));
    ck_pattern(gvmm_buffer_address(pieces), 3 * G, 9);
    fill(gvmm_buffer_address(pieces) + G - 100, 4, 200);
    ck_filled(gvmm_buffer_address(pieces) + G - 100, 4, 200);
    drop(pieces, decoy);
    drop(whole, 0);
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
    TCase *access = add_watched_case(suite, "access and peers");
    tcase_add_test(access, llama_cpp_24489_peers_are_granted_or_refused_at_once);
    tcase_add_test(access, llama_cpp_24489_a_peer_that_cannot_is_a_clear_error);
    tcase_add_test(access, xla_40852_access_follows_the_memory);
    tcase_add_test(access, ompi_12751_the_cpu_may_touch_host_memory);
    TCase *sharing = add_watched_case(suite, "sharing");
    tcase_add_test(sharing, pytorch_173606_fabric_that_is_not_permitted_is_a_clear_error);
    TCase *sizes = add_watched_case(suite, "sizes, address space, environments");
    tcase_add_test(sizes, pytorch_192269_reserved_addresses_are_counted_and_come_back);
    tcase_add_test(sizes, pytorch_192269_when_addresses_run_out_it_says_so);
    tcase_add_test(sizes, ComfyUI_12727_sizes_are_rounded_for_the_caller);
    tcase_add_test(sizes, DALI_3128_a_refused_hint_is_left_out);
    tcase_add_test(sizes, comfy_aimdo_21_a_virtual_gpu_is_named_unsupported);
    tcase_add_test(sizes, nccl_2106_numa_memory_that_fails_says_why);
    tcase_add_test(sizes, nccl_2332_segments_cover_the_buffer);
    tcase_add_test(sizes, pytorch_196209_copies_across_borders_and_a_single_chunk);
    return run_suites(suite, NULL);
}

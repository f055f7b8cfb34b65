/* What went wrong for others, as in test_cases.c: access and peers, sharing, sizes, address space, environments. */
#include "watch.h"

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
    plain = resource_with(waiting_options());
    G = gvmm_resource_granularity(plain);
    return true;
}

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
    gvmm_options options = waiting_options();
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
    gvmm_options owner_only = waiting_options();
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
    gvmm_options options = waiting_options();
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

/* The device says that it has fabric handles, creating one is not permitted: nothing told which call had failed, or
 * why. (Mooncake#1297, mscclpp#467: the same.) */
START_TEST(pytorch_173606_fabric_that_is_not_permitted_is_a_clear_error)
{
    gvmm_options options = waiting_options();
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
    gvmm_options options = waiting_options();
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

/* Host memory of a node failed in containers and on nodes that have memory only, with a bare status. (nccl#2190,
 * xgboost#10933: the same.) */
START_TEST(nccl_2106_numa_memory_that_fails_says_why)
{
    const struct {
        CUresult status;
        gvmm_result result;
    } answers[] = {{CUDA_ERROR_NOT_PERMITTED, GVMM_E_NOT_PERMITTED},
                   {CUDA_ERROR_NOT_SUPPORTED, GVMM_E_UNSUPPORTED},
                   {CUDA_ERROR_INVALID_VALUE, GVMM_E_INVALID},
                   {CUDA_ERROR_OUT_OF_MEMORY, GVMM_E_NO_HOST_MEMORY}};
    gvmm_options options = waiting_options();
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

/* The driver's address-range query sees one chunk: libraries registered the first, and failed at the border.
 * (ucx#11461, libfabric#12473: the same.) */
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

/* A memory checker gave false alarms for copies across the border of two chunks. The copies are right; who cannot have
 * borders makes a buffer at once, of whatever size: one chunk. */
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
    Suite *suite = suite_create("cases, memory");
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

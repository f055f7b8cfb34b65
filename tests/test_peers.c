/* Several GPUs: peers in the options and granted later, striping, copies between devices, devices that do not reach one
 * another. On two GPUs, and on simulated machines of up to four with links that the test chooses. */
#include "watch.h"

static void replace(gvmm_buffer **buffer, gvmm_buffer *other)
{
    gvmm_buffer_release(*buffer);
    *buffer = other;
}

static CUcontext enter(int device)
{
    CUcontext context;
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, device));
    ck_cu(cu->cuCtxPushCurrent(context));
    return context;
}

static void leave(int device)
{
    CUcontext context;
    ck_cu(cu->cuCtxSynchronize());
    ck_cu(cu->cuCtxPopCurrent(&context));
    ck_cu(cu->cuDevicePrimaryCtxRelease(device));
}

/* Writes as the device would. */
static CUresult write_as(int device, uint64_t at, unsigned char value, size_t size)
{
    enter(device);
    CUresult status = cu->cuMemsetD8(at, value, size);
    leave(device);
    return status;
}

static void ck_both_may(gvmm_buffer *buffer)
{
    for (int device = 0; device < 2; device++) {
        gvmm_access access;
        ck_ok(gvmm_buffer_get_access(buffer, device, &access));
        ck_assert_int_eq(access, GVMM_ACCESS_READ_WRITE);
        ck_cu(write_as(device, address(buffer), (unsigned char)(device + 1), gvmm_buffer_size(buffer)));
        ck_filled(address(buffer), (unsigned char)(device + 1), gvmm_buffer_size(buffer));
    }
}

static void ck_device_1_may_not(gvmm_buffer *buffer, size_t offset)
{
    ck_cu_fails(write_as(1, address(buffer) + offset, 9, G), CUDA_ERROR_INVALID_VALUE);
}

static void sleep_and_wake(gvmm_buffer *buffer)
{
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_ok(gvmm_buffer_restore(buffer));
}

/* ---- peers ---- */

START_TEST(peers_in_the_options)
{
    if (lacks_second_device("peers_in_the_options")) return;
    gvmm_resource *resource = resource_with_peer();
    gvmm_buffer *buffer = buffer_with_hole_behind(resource, 2 * G, G);
    ck_both_may(buffer);
    replace(&buffer, grow(buffer, 3 * G)); /* in place */
    ck_both_may(buffer);
    uint64_t decoy = block_behind(buffer);
    replace(&buffer, grow(buffer, 5 * G)); /* moved */
    ck_both_may(buffer);
    sleep_and_wake(buffer);
    ck_both_may(buffer);
    gvmm_buffer *ring;
    ck_ok(gvmm_buffer_ring(&ring, buffer, 2));
    ck_both_may(ring);
    gvmm_buffer_release(ring);
    gvmm_buffer_release(buffer);
    if (decoy) free_decoy(decoy);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(a_peer_that_may_only_read)
{
    if (lacks_second_device("a_peer_that_may_only_read")) return;
    static const int peers[] = {1};
    gvmm_options options = waiting_options();
    options.peers = peers;
    options.peer_count = 1;
    options.peer_access = GVMM_ACCESS_READ;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *buffer = create(resource, G), *mine;
    gvmm_resource *own;
    ck_ok(gvmm_resource_create(&own, 1, (gvmm_options[]){waiting_options()}));
    mine = create(own, G);
    write_pattern(address(buffer), G, 4);
    ck_device_1_may_not(buffer, 0);
    enter(1);
    ck_cu(cu->cuMemcpyDtoD(address(mine), address(buffer), G));
    ck_pattern(address(mine), G, 4);
    leave(1);
    gvmm_buffer_release(mine);
    gvmm_resource_release(own);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

/* The grant is the memory's: at every address where it is mapped, now and later. */
START_TEST(granted_later_and_revoked)
{
    if (lacks_second_device("granted_later_and_revoked")) return;
    uint64_t decoy;
    gvmm_buffer *buffer = buffer_with_decoy_behind(plain, 2 * G, &decoy), *alias = grow(buffer, G);
    gvmm_access access;
    ck_device_1_may_not(buffer, 0);
    ck_ok(gvmm_buffer_set_access(alias, 1, GVMM_ACCESS_READ_WRITE));
    ck_both_may(buffer);
    sleep_and_wake(buffer);
    ck_both_may(buffer);
    gvmm_buffer *moved = grow(buffer, 3 * G);
    ck_cu(write_as(1, address(moved), 5, 2 * G));
    ck_filled(address(buffer), 5, 2 * G);
    ck_device_1_may_not(moved, 2 * G); /* the new chunk is as the resource says */
    ck_ok(gvmm_buffer_get_access(moved, 1, &access));
    ck_assert_int_eq(access, GVMM_ACCESS_NONE); /* the least of all */
    ck_ok(gvmm_buffer_set_access(moved, 1, GVMM_ACCESS_READ_WRITE));
    ck_both_may(moved);
    ck_ok(gvmm_buffer_set_access(moved, 1, GVMM_ACCESS_NONE));
    ck_device_1_may_not(moved, 0);
    ck_device_1_may_not(buffer, 0);
    sleep_and_wake(moved);
    ck_device_1_may_not(buffer, G);
    ck_cu(write_as(0, address(moved), 6, 3 * G));
    gvmm_buffer_release(moved);
    gvmm_buffer_release(alias);
    gvmm_buffer_release(buffer);
    if (decoy) free_decoy(decoy);
    ck_no_warnings();
}
END_TEST

/* ---- copies between devices ---- */

START_TEST(copies_between_buffers_of_two_devices)
{
    if (lacks_second_device("copies_between_buffers_of_two_devices")) return;
    static const int both[] = {0, 1};
    gvmm_options options = waiting_options();
    options.peers = both;
    options.peer_count = 2;
    options.chunk_size = 2 * G; /* the copies go across borders of chunks */
    gvmm_resource *resources[2];
    gvmm_buffer *buffers[2];
    for (int i = 0; i < 2; i++) {
        ck_ok(gvmm_resource_create(&resources[i], i, &options));
        buffers[i] = create(resources[i], 5 * G);
    }
    for (int device = 0; device < 2; device++) { /* each in turn makes the copies, in both directions */
        for (int from = 0; from < 2; from++) {
            enter(device);
            write_pattern(address(buffers[from]), 5 * G, (unsigned)(2 * device + from));
            ck_cu(cu->cuMemcpyDtoD(address(buffers[1 - from]), address(buffers[from]), 5 * G));
            ck_pattern(address(buffers[1 - from]), 5 * G, (unsigned)(2 * device + from));
            leave(device);
        }
    }
    CUcontext first = enter(0), second = enter(1);
    write_pattern(address(buffers[0]), 5 * G, 7);
    ck_cu(cu->cuMemcpyPeer(address(buffers[1]), second, address(buffers[0]), first, 5 * G));
    ck_pattern(address(buffers[1]), 5 * G, 7);
    leave(1);
    leave(0);
    for (int i = 0; i < 2; i++) {
        gvmm_buffer_release(buffers[i]);
        gvmm_resource_release(resources[i]);
    }
    ck_no_warnings();
}
END_TEST

/* ucx#11265: a copy between devices of one process fails where neither may touch the other's memory. */
START_TEST(without_access_a_copy_fails_at_once)
{
    if (lacks_second_device("without_access_a_copy_fails_at_once")) return;
    gvmm_resource *second;
    ck_ok(gvmm_resource_create(&second, 1, (gvmm_options[]){waiting_options()}));
    gvmm_buffer *a = create(plain, G), *b = create(second, G);
    write_pattern(address(a), G, 3);
    ck_cu_fails(cu->cuMemcpyDtoD(address(b), address(a), G), CUDA_ERROR_INVALID_VALUE);
    ck_ok(gvmm_buffer_set_access(b, 0, GVMM_ACCESS_READ_WRITE));
    ck_cu(cu->cuMemcpyDtoD(address(b), address(a), G));
    ck_pattern(address(b), G, 3);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_resource_release(second);
}
END_TEST

/* ---- striping ---- */

static gvmm_resource *striped(uint64_t capacity)
{
    static const int both[] = {0, 1};
    gvmm_options options = waiting_options();
    options.chunk_size = G;
    options.stripe = both;
    options.stripe_count = 2;
    options.capacity = capacity;
    return resource_with(options);
}

static void ck_devices(gvmm_buffer *buffer, const char *devices)
{
    gvmm_segment segments[16];
    size_t count;
    ck_ok(gvmm_buffer_segments(buffer, segments, 16, &count));
    ck_assert_uint_eq(count, strlen(devices));
    for (size_t i = 0; i < count; i++) ck_assert_int_eq(segments[i].device, devices[i] - '0');
}

START_TEST(a_striped_buffer_is_one_range_to_both)
{
    if (lacks_second_device("a_striped_buffer_is_one_range_to_both")) return;
    gvmm_resource *resource = striped(8 * G);
    gvmm_buffer *buffer = create(resource, 3 * G);
    uint64_t base = address(buffer);
    ck_devices(buffer, "010");
    ck_both_may(buffer);
    for (int device = 0; device < 2; device++) { /* from device 0's chunk to device 1's, and within */
        write_pattern(base, G, (unsigned)device);
        enter(device);
        ck_cu(cu->cuMemcpyDtoD(base + G, base, G));
        ck_cu(cu->cuMemcpyDtoD(base + 2 * G, base + G, G));
        leave(device);
        ck_pattern(base + G, G, (unsigned)device);
        ck_pattern(base + 2 * G, G, (unsigned)device);
    }
    write_pattern(base, 3 * G, 5);
    replace(&buffer, grow(buffer, 6 * G));
    ck_assert_uint_eq(address(buffer), base); /* in place, and on with the other device */
    ck_devices(buffer, "010101");
    ck_pattern(base, 3 * G, 5);
    ck_both_may(buffer);
    uint64_t decoy = block_behind(buffer);
    replace(&buffer, grow(buffer, 10 * G)); /* beyond the capacity: moved, or not */
    ck_devices(buffer, "0101010101");
    ck_both_may(buffer);
    gvmm_buffer *shorter;
    ck_ok(gvmm_buffer_shrink(&shorter, buffer, 3 * G));
    replace(&buffer, shorter);
    replace(&buffer, grow(buffer, 5 * G));
    ck_devices(buffer, "01010");
    gvmm_buffer_release(buffer);
    if (decoy) free_decoy(decoy);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

static void evict(gvmm_buffer *buffer, gvmm_contents contents)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = contents;
    options.directory = "/tmp";
    ck_ok(gvmm_buffer_evict(buffer, &options));
}

/* xla#40852: after the restore an address had lost its peer. */
START_TEST(a_striped_buffer_wakes_on_its_devices_with_its_readers)
{
    if (lacks_second_device("a_striped_buffer_wakes_on_its_devices_with_its_readers")) return;
    gvmm_resource *resource = striped(0);
    gvmm_buffer *buffer = create(resource, 5 * G);
    for (int i = 0; i < 2; i++) {
        write_pattern(address(buffer), 5 * G, (unsigned)i);
        evict(buffer, i ? GVMM_CONTENTS_FILE : GVMM_CONTENTS_HOST);
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 5 * G);
        ck_ok(gvmm_buffer_restore(buffer));
        ck_devices(buffer, "01010");
        ck_pattern(address(buffer), 5 * G, (unsigned)i);
        ck_both_may(buffer);
    }
    evict(buffer, GVMM_CONTENTS_DROP);
    ck_ok(gvmm_buffer_set_access(buffer, 1, GVMM_ACCESS_READ)); /* also while it is asleep */
    ck_ok(gvmm_buffer_restore(buffer));
    ck_device_1_may_not(buffer, 0);
    ck_device_1_may_not(buffer, G); /* not in its own memory either */
    ck_cu(write_as(0, address(buffer), 2, 5 * G));
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* A restore that fails in the middle of the stripe puts all back to sleep, on both devices. */
START_TEST(a_stripe_wakes_as_a_whole)
{
    if (lacks_second_device("a_stripe_wakes_as_a_whole")) return;
    gvmm_resource *resource = striped(0);
    gvmm_buffer *buffer = create(resource, 4 * G);
    write_pattern(address(buffer), 4 * G, 8);
    evict(buffer, GVMM_CONTENTS_HOST);
    for (uint64_t nth = 1; nth <= 4; nth++) {
        fault_call("cuMemCreate", nth, CUDA_ERROR_OUT_OF_MEMORY);
        ck_fails(gvmm_buffer_restore(buffer), GVMM_E_NO_DEVICE_MEMORY);
        ck_ok(gvmm_faults_set(NULL));
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 4 * G);
    }
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pattern(address(buffer), 4 * G, 8);
    ck_both_may(buffer);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- links that the test chooses: 0 and 1, 2 and 3; nothing between ---- */

static CUresult linked_in_pairs(int *can, CUdevice device, CUdevice peer)
{
    CUresult status = gvmm_sim_driver()->cuDeviceCanAccessPeer(can, device, peer);
    if (status == CUDA_SUCCESS && device / 2 != peer / 2) *can = 0;
    return status;
}

/* As the real driver: the library must have asked before. */
static CUresult open_in_pairs(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    int owner = -1;
    CUresult status = gvmm_sim_driver()->cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr);
    for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++)
        if (desc[i].flags && desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            desc[i].location.id / 2 != owner / 2)
            return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return gvmm_sim_driver()->cuMemSetAccess(ptr, size, desc, count);
}

static void start_four(bool in_pairs)
{
    static gvmm_driver table;
    CUcontext context;
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 4;
    ck_ok(gvmm_sim_reset(&config));
    table = *gvmm_sim_driver();
    if (in_pairs) {
        table.cuDeviceCanAccessPeer = linked_in_pairs;
        table.cuMemSetAccess = open_in_pairs;
    }
    G = config.granularity;
    ck_ok(gvmm_driver_install(&table));
    ck_ok(gvmm_driver_get(&cu));
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 0));
    ck_cu(cu->cuCtxSetCurrent(context));
}

static void end_four(void)
{
    ck_cu(cu->cuCtxSetCurrent(NULL));
    ck_cu(cu->cuDevicePrimaryCtxRelease(0));
    ck_ok(gvmm_driver_install(NULL));
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
    ck_ok(gvmm_sim_reset(NULL));
}

static gvmm_result make(gvmm_resource **out, int device, const char *stripe, const char *peers, unsigned optional)
{
    int ordinals[8], stripes[8];
    gvmm_options options = waiting_options();
    options.peers = ordinals;
    options.stripe = stripes;
    options.chunk_size = G;
    options.optional = optional;
    for (; *peers; peers++) ordinals[options.peer_count++] = *peers - '0';
    for (; *stripe; stripe++) stripes[options.stripe_count++] = *stripe - '0';
    return gvmm_resource_create(out, device, &options);
}

static void ck_accesses(gvmm_buffer *buffer, const gvmm_access wanted[4])
{
    for (int device = 0; device < 4; device++) {
        gvmm_access access;
        ck_ok(gvmm_buffer_get_access(buffer, device, &access));
        ck_assert_int_eq(access, wanted[device]);
        for (size_t at = 0; at < gvmm_buffer_size(buffer); at += G) /* and so says the driver, of every chunk */
            ck_assert_uint_eq(access_of(address(buffer) + at, device), wanted[device]);
    }
}

/* Over devices 3 and 1, with 0 as a reader and 2 granted later: through grows, moves, sleep, and in every chunk. */
START_TEST(a_stripe_keeps_its_peers)
{
    static const int stripe[] = {3, 1}, peers[] = {0};
    static const gvmm_access R = GVMM_ACCESS_READ, RW = GVMM_ACCESS_READ_WRITE;
    gvmm_options options = waiting_options();
    options.stripe = stripe;
    options.stripe_count = 2;
    options.peers = peers;
    options.peer_count = 1;
    options.peer_access = R;
    start_four(false);
    options.chunk_size = G;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *buffer = create(resource, 3 * G);
    ck_devices(buffer, "313");
    ck_accesses(buffer, (gvmm_access[]){R, RW, 0, RW});
    ck_ok(gvmm_buffer_set_access(buffer, 2, RW));
    ck_accesses(buffer, (gvmm_access[]){R, RW, RW, RW});
    sleep_and_wake(buffer);
    ck_devices(buffer, "313");
    ck_accesses(buffer, (gvmm_access[]){R, RW, RW, RW});
    uint64_t decoy = block_behind(buffer);
    gvmm_buffer *moved = grow(buffer, 6 * G);
    ck_assert_uint_ne(address(moved), address(buffer));
    ck_devices(moved, "313131");
    ck_ok(gvmm_buffer_set_access(moved, 2, RW)); /* the new chunks were not yet open to it */
    evict(moved, GVMM_CONTENTS_ZERO);
    ck_ok(gvmm_buffer_restore(moved));
    ck_accesses(moved, (gvmm_access[]){R, RW, RW, RW});
    ck_accesses(buffer, (gvmm_access[]){R, RW, RW, RW});
    for (int device = 1; device < 4; device++) ck_cu(write_as(device, address(moved), 7, 6 * G));
    ck_cu_fails(write_as(0, address(moved), 8, G), CUDA_ERROR_INVALID_VALUE);
    ck_filled(address(buffer), 7, 3 * G);
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(moved);
    free_decoy(decoy);
    gvmm_resource_release(resource);
    end_four();
}
END_TEST

START_TEST(who_cannot_reach_the_memory_is_refused)
{
    static const struct {
        int device;
        const char *stripe, *peers, *refused;
    } cases[] = {
        {0, "", "1", NULL},
        {0, "", "10", NULL},
        {2, "", "3", NULL},
        {0, "", "2", "peers: device 2 cannot access the memory of device 0"},
        {3, "", "21", "peers: device 1 cannot access the memory of device 3"},
        {0, "", "4", "peers: there is no device 4"},
        {0, "01", "", NULL},
        {0, "0101", "01", NULL},
        {0, "23", "", NULL}, /* the resource's own device takes no part */
        {0, "02", "", "stripe: device 0 cannot access the memory of device 2"},
        {0, "01", "2", "peers: device 2 cannot access the memory of device 0"},
        {0, "09", "", "stripe: there is no device 9"},
    };
    start_four(true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gvmm_resource *resource = NULL;
        gvmm_result r = make(&resource, cases[i].device, cases[i].stripe, cases[i].peers, 0);
        if (cases[i].refused) {
            bool missing = strstr(cases[i].refused, "there is no") != NULL;
            ck_fails(r, missing ? GVMM_E_INVALID : GVMM_E_UNSUPPORTED);
            ck_names(cases[i].refused);
            ck_assert_ptr_null(resource);
            continue;
        }
        ck_ok(r);
        gvmm_buffer *buffer = create(resource, 4 * G); /* what was allowed works */
        gvmm_buffer_release(buffer);
        gvmm_resource_release(resource);
    }
    end_four();
}
END_TEST

START_TEST(a_grant_to_who_cannot_reach_it_changes_nothing)
{
    gvmm_resource *resource;
    gvmm_access access;
    start_four(true);
    ck_ok(make(&resource, 0, "01", "", 0));
    gvmm_buffer *buffer = create(resource, 4 * G);
    for (int device = 2; device < 4; device++) {
        ck_fails(gvmm_buffer_set_access(buffer, device, GVMM_ACCESS_READ), GVMM_E_UNSUPPORTED);
        ck_ok(gvmm_buffer_get_access(buffer, device, &access));
        ck_assert_int_eq(access, GVMM_ACCESS_NONE);
    }
    ck_fails(gvmm_buffer_set_access(buffer, 4, GVMM_ACCESS_READ), GVMM_E_INVALID);
    for (int device = 0; device < 2; device++) {
        ck_ok(gvmm_buffer_get_access(buffer, device, &access));
        ck_assert_int_eq(access, GVMM_ACCESS_READ_WRITE);
        ck_cu(write_as(device, address(buffer), 1, 4 * G));
    }
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    end_four();
}
END_TEST

START_TEST(optional_peers_are_those_in_reach)
{
    gvmm_resource *resource;
    gvmm_options got;
    start_four(true);
    ck_ok(make(&resource, 2, "", "0123", GVMM_OPTIONAL_PEERS));
    gvmm_resource_options(resource, &got);
    ck_assert_uint_eq(got.peer_count, 2);
    ck_assert_int_eq(got.peers[0], 2);
    ck_assert_int_eq(got.peers[1], 3);
    gvmm_resource_release(resource);
    end_four();
}
END_TEST

/* Ranks on all four devices have no device in common; those of a pair have the pair. */
START_TEST(ranks_have_in_common_what_all_reach)
{
    gvmm_probe_record records[4];
    gvmm_common_report common;
    start_four(true);
    for (int device = 0; device < 4; device++) {
        gvmm_probe_report report;
        ck_ok(gvmm_probe(&report, device));
        ck_assert_uint_eq(report.peers, 1u << (device ^ 1));
        ck_assert_int_eq(report.device, device);
        ck_assert(!report.answers[GVMM_CAPABILITY_PEERS].available); /* not every other device */
        ck_ok(gvmm_probe_pack(&records[device], &report));
    }
    ck_ok(gvmm_probe_common(&common, records, 4));
    ck_assert_uint_eq(common.report.peers, 0);
    ck_ok(gvmm_probe_common(&common, records + 2, 2));
    ck_assert_uint_eq(common.report.peers, 12);
    ck_assert_uint_eq(common.first[GVMM_CAPABILITY_PEERS], 0);
    ck_assert_uint_eq(common.lacking[GVMM_CAPABILITY_PEERS], 2);
    end_four();
}
END_TEST

int main(void)
{
    const char *driver = getenv("GVMM_TEST_DRIVER");
    Suite *suite = suite_create("peers");
    TCase *peers = add_watched_case(suite, "peers");
    tcase_add_test(peers, peers_in_the_options);
    tcase_add_test(peers, a_peer_that_may_only_read);
    tcase_add_test(peers, granted_later_and_revoked);
    TCase *copies = add_watched_case(suite, "copies");
    tcase_add_test(copies, copies_between_buffers_of_two_devices);
    tcase_add_test(copies, without_access_a_copy_fails_at_once);
    TCase *stripes = add_watched_case(suite, "stripes");
    tcase_add_test(stripes, a_striped_buffer_is_one_range_to_both);
    tcase_add_test(stripes, a_striped_buffer_wakes_on_its_devices_with_its_readers);
    tcase_add_test(stripes, a_stripe_wakes_as_a_whole);
    if (driver && strcmp(driver, "gpu") == 0) return run_suites(suite, NULL); /* the rest needs links of its own */

    TCase *links = tcase_create("links");
    tcase_add_test(links, a_stripe_keeps_its_peers);
    tcase_add_test(links, who_cannot_reach_the_memory_is_refused);
    tcase_add_test(links, a_grant_to_who_cannot_reach_it_changes_nothing);
    tcase_add_test(links, optional_peers_are_those_in_reach);
    tcase_add_test(links, ranks_have_in_common_what_all_reach);
    suite_add_tcase(suite, links);
    return run_suites(suite, NULL);
}

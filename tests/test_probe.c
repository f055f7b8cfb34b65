/* The probe, and options that are asked for if available: right answers, the failed call named, quiet, nothing left
 * whatever fails. */
#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- a machine of the test's own, its calls recorded ---- */

enum { MOST_CALLS = 4096 };
static gvmm_driver_call calls[MOST_CALLS];
static size_t call_count;

static void record(void *user, const gvmm_trace_record *r)
{
    (void)user;
    if (call_count < MOST_CALLS) calls[call_count++] = r->call;
}

static void start_machine(gvmm_sim_config config)
{
    ck_ok(gvmm_sim_reset(&config));
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_driver_install(gvmm_faults_over(gvmm_trace_over(gvmm_sim_driver(), record, NULL))));
    ck_ok(gvmm_driver_get(&cu));
    cu = gvmm_sim_driver();
}

/* A destructor of the driver's may still be on its way; all else must be gone already. */
static void ck_machine_empty(void)
{
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    for (int kind = 0; kind < GVMM_SIM_KIND_COUNT; kind++)
        ck_assert_msg(kind == GVMM_SIM_USER_OBJECT || counts[kind] == 0, "%zu of %s left", counts[kind],
                      gvmm_sim_kind_name((gvmm_sim_kind)kind));
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (all && readdir(all)) count++;
    if (all) closedir(all);
    return count;
}

static void wait_for_destructors(void)
{
    size_t counts[GVMM_SIM_KIND_COUNT];
    do {
        gvmm_sim_census(counts, NULL, NULL);
    } while (counts[GVMM_SIM_USER_OBJECT] && usleep(1000) == 0);
}

static void end_machine(void)
{
    ck_ok(gvmm_faults_set(NULL));
    wait_for_destructors();
    ck_machine_empty();
    ck_ok(gvmm_driver_install(NULL));
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
    ck_ok(gvmm_sim_reset(NULL));
}

static gvmm_sim_config machine(unsigned devices)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = devices;
    return config;
}

static gvmm_probe_report probe(int device)
{
    gvmm_probe_report report;
    ck_ok(gvmm_probe(&report, device));
    return report;
}

static const gvmm_answer *answer(const gvmm_probe_report *report, gvmm_capability which)
{
    return &report->answers[which];
}

static void ck_no(const gvmm_probe_report *report, gvmm_capability which, const char *call, CUresult status,
                  const char *advice)
{
    const gvmm_answer *a = answer(report, which);
    ck_assert_msg(!a->available, "%s is available", gvmm_capability_name(which));
    if (call) ck_assert_str_eq(a->call, call);
    else ck_assert_ptr_null(a->call);
    ck_assert_int_eq(a->status, (int)status);
    ck_assert_msg(strstr(a->advice, advice) != NULL, "'%s' does not say '%s'", a->advice, advice);
}

static void ck_yes(const gvmm_probe_report *report, gvmm_capability which)
{
    const gvmm_answer *a = answer(report, which);
    ck_assert_msg(a->available, "%s is not available: %s %d", gvmm_capability_name(which), a->call ? a->call : "-",
                  a->status);
    ck_assert(!a->call && !a->status && !a->advice);
}

/* ---- what it says ---- */

START_TEST(names)
{
    ck_assert_str_eq(gvmm_capability_name(GVMM_CAPABILITY_POSIX_FD), "posix_fd");
    ck_assert_str_eq(gvmm_capability_name(GVMM_CAPABILITY_COUNT), "?");
    ck_assert_str_eq(gvmm_capability_text((gvmm_capability)-1), "?");
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) {
        ck_assert_str_ne(gvmm_capability_name((gvmm_capability)i), "?");
        ck_assert_str_ne(gvmm_capability_text((gvmm_capability)i), "");
    }
}
END_TEST

START_TEST(a_whole_machine)
{
    gvmm_sim_config config = machine(2);
    config.numa_nodes = 2;
    start_machine(config);
    gvmm_probe_report report = probe(1);
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++)
        if (i != GVMM_CAPABILITY_FABRIC) ck_yes(&report, (gvmm_capability)i);
    ck_no(&report, GVMM_CAPABILITY_FABRIC, "cuMemCreate", CUDA_ERROR_NOT_PERMITTED, "imex");
    ck_assert_uint_eq(report.memory, config.memory);
    ck_assert_uint_eq(report.granularity, config.granularity);
    ck_assert_uint_eq(report.reservable, config.address_space);
    ck_assert_uint_eq(report.peers, 1); /* device 0 */
    ck_assert_uint_eq(report.numa_nodes & 3, 3);
    end_machine();
}
END_TEST

START_TEST(no_peers)
{
    gvmm_sim_config config = machine(3);
    config.peers = false;
    start_machine(config);
    gvmm_probe_report report = probe(0);
    ck_no(&report, GVMM_CAPABILITY_PEERS, "cuDeviceCanAccessPeer", CUDA_SUCCESS, "GVMM_OPTIONAL_PEERS");
    ck_assert_uint_eq(report.peers, 0);
    end_machine();
    start_machine(machine(1));
    report = probe(0);
    ck_no(&report, GVMM_CAPABILITY_PEERS, NULL, CUDA_SUCCESS, "no other device");
    end_machine();
}
END_TEST

START_TEST(little_address_space)
{
    gvmm_sim_config config = machine(1);
    config.memory = (uint64_t)2 << 30;
    config.address_space = (uint64_t)1 << 30;
    start_machine(config);
    gvmm_probe_report report = probe(0);
    ck_no(&report, GVMM_CAPABILITY_RESERVATION, "cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY, "smaller capacity");
    ck_assert_uint_eq(report.reservable, config.address_space);
    end_machine();
}
END_TEST

/* A full device is no device without capabilities. */
START_TEST(a_full_device_is_told_apart)
{
    gvmm_sim_config config = machine(1);
    start_machine(config);
    CUmemGenericAllocationHandle all;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ck_cu(cu->cuMemCreate(&all, config.memory, &prop, 0));
    gvmm_probe_report report = probe(0);
    ck_no(&report, GVMM_CAPABILITY_MEMORY, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, "ask again");
    ck_yes(&report, GVMM_CAPABILITY_HOST);

    gvmm_resource *resource;
    gvmm_options options = waiting_options();
    options.optional = GVMM_OPTIONAL_HANDLE;
    ck_fails(gvmm_resource_create(&resource, 0, &options),
             GVMM_E_NO_DEVICE_MEMORY); /* not another answer on this rank alone */
    ck_cu(cu->cuMemRelease(all));
    end_machine();
}
END_TEST

/* ---- a machine that lacks something ---- */

static CUdevice_attribute lacking;
static int broken_node;
static bool uncompressed;

static CUresult attribute_without(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult status = gvmm_sim_driver()->cuDeviceGetAttribute(value, attribute, device);
    if (attribute == lacking) *value = 0;
    return status;
}

static CUresult create_without(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                               unsigned long long flags)
{
    if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && prop->location.id == broken_node)
        return CUDA_ERROR_NOT_PERMITTED;
    CUmemAllocationProp made = *prop;
    if (uncompressed) made.allocFlags.compressionType = 0;
    return gvmm_sim_driver()->cuMemCreate(handle, size, &made, flags);
}

static void start_lacking_machine(CUdevice_attribute attribute, int node)
{
    static gvmm_driver table;
    gvmm_sim_config config = machine(2);
    config.numa_nodes = 2;
    ck_ok(gvmm_sim_reset(&config));
    table = *gvmm_sim_driver();
    table.cuDeviceGetAttribute = attribute_without;
    table.cuMemCreate = create_without;
    lacking = attribute;
    broken_node = node;
    ck_ok(gvmm_driver_install(&table));
}

START_TEST(the_attribute_says_no)
{
    static const struct {
        gvmm_capability capability;
        CUdevice_attribute attribute;
    } asked[] = {
        {GVMM_CAPABILITY_MEMORY, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
        {GVMM_CAPABILITY_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
        {GVMM_CAPABILITY_FABRIC, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
        {GVMM_CAPABILITY_RDMA, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
        {GVMM_CAPABILITY_COMPRESSIBLE, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED},
        {GVMM_CAPABILITY_HOST, CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
        {GVMM_CAPABILITY_HOST_NUMA, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
        {GVMM_CAPABILITY_POOLS, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        start_lacking_machine(asked[i].attribute, -1);
        gvmm_probe_report report = probe(0);
        for (int k = 0; k < GVMM_CAPABILITY_COUNT; k++)
            if (k == (int)asked[i].capability)
                ck_no(&report, asked[i].capability, "cuDeviceGetAttribute", CUDA_SUCCESS, "");
            else if (k != GVMM_CAPABILITY_FABRIC) ck_yes(&report, (gvmm_capability)k);
        end_machine();
    }
}
END_TEST

/* One node that cannot be had leaves the others; none at all is a no. */
START_TEST(some_nodes)
{
    start_lacking_machine((CUdevice_attribute)0, 0);
    gvmm_probe_report report = probe(1); /* its node is 1 */
    ck_yes(&report, GVMM_CAPABILITY_HOST_NUMA);
    ck_assert_uint_eq(report.numa_nodes & 3, 2);
    ck_ok(gvmm_probe(&report, 0));
    if (!report.numa_nodes)
        ck_no(&report, GVMM_CAPABILITY_HOST_NUMA, "cuMemCreate", CUDA_ERROR_NOT_PERMITTED, "container");
    end_machine();
}
END_TEST

/* A driver that takes the wish and makes plain memory. */
START_TEST(a_wish_that_is_not_granted)
{
    start_lacking_machine((CUdevice_attribute)0, -1);
    uncompressed = true;
    gvmm_probe_report report = probe(0);
    uncompressed = false;
    ck_no(&report, GVMM_CAPABILITY_COMPRESSIBLE, "cuMemGetAllocationPropertiesFromHandle", CUDA_SUCCESS, "");
    ck_yes(&report, GVMM_CAPABILITY_RDMA);
    end_machine();
}
END_TEST

START_TEST(the_attribute_is_believed_when_it_says_no)
{
    gvmm_options o = waiting_options(), shown;
    gvmm_resource *resource;
    gvmm_error before, after;
    start_lacking_machine(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, -1);
    gvmm_last_error(&before);
    o.gpu_direct_rdma = true;
    o.optional = GVMM_OPTIONAL_RDMA;
    resource = resource_with(o);
    gvmm_resource_options(resource, &shown);
    gvmm_last_error(&after);
    ck_assert(!shown.gpu_direct_rdma);
    ck_assert_int_eq(after.result, before.result); /* what is left out is no failure */
    gvmm_resource_release(resource);
    o.optional = GVMM_OPTIONAL_FABRIC; /* says nothing about RDMA */
    ck_fails(gvmm_resource_create(&resource, 0, &o), GVMM_E_UNSUPPORTED);
    end_machine();
}
END_TEST

START_TEST(bad_arguments)
{
    gvmm_probe_report report = {.memory = 7};
    start_machine(machine(1));
    ck_fails(gvmm_probe(NULL, 0), GVMM_E_INVALID);
    ck_fails(gvmm_probe(&report, 1), GVMM_E_INVALID);
    ck_names("device: 1");
    ck_fails(gvmm_probe(&report, -1), GVMM_E_INVALID);
    ck_assert_uint_eq(report.memory, 7);
    end_machine();
}
END_TEST

/* ---- faults ---- */

static bool same_answer(const gvmm_answer *a, const gvmm_answer *b)
{
    return a->available == b->available && a->status == b->status &&
           (a->call == b->call || strcmp(a->call, b->call) == 0);
}

/* One call fails: the capability that it was made for says so, with the call's name and status and what to do; no other
 * one changes. A few calls may fail without harm: how much more than the device's memory can be reserved, the device's
 * own node. */
START_TEST(each_call_belongs_to_one_capability)
{
    start_machine(machine(2));
    call_count = 0;
    gvmm_probe_report whole = probe(0), report;
    size_t total = call_count, harmless = 0;
    unsigned descriptors = open_descriptors();
    ck_assert_uint_gt(total, 60);
    ck_assert_uint_lt(total, 400);
    bool seen[GVMM_CAPABILITY_COUNT] = {false};
    int last = 0;
    gvmm_driver_call in_order[MOST_CALLS];
    memcpy(in_order, calls, sizeof in_order);

    for (size_t n = 1; n <= total; n++) {
        const char *name = gvmm_driver_call_name(in_order[n - 1]);
        ck_ok(gvmm_faults_set(&(gvmm_fault){n, false, NULL, CUDA_ERROR_UNKNOWN}));
        gvmm_result r = gvmm_probe(&report, 0);
        ck_assert_uint_eq(gvmm_faults_injected(), 1);
        ck_ok(gvmm_faults_set(NULL));
        ck_machine_empty();
        ck_assert_uint_eq(open_descriptors(), descriptors);
        if (n == 1) {
            ck_fails(r, GVMM_E_DRIVER);
            ck_names("cuDeviceGet");
            continue;
        }
        ck_ok(r);
        int changed = -1;
        for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) {
            if (same_answer(&whole.answers[i], &report.answers[i])) continue;
            ck_assert_msg(changed < 0, "call %zu, %s: %s and %s", n, name,
                          gvmm_capability_name((gvmm_capability)changed), gvmm_capability_name((gvmm_capability)i));
            changed = i;
        }
        if (changed < 0) {
            ck_assert_msg(in_order[n - 1] == GVMM_CALL_cuMemAddressReserve ||
                              in_order[n - 1] == GVMM_CALL_cuDeviceGetAttribute,
                          "%s fails and nothing shows it", name);
            harmless++;
            continue;
        }
        ck_assert_int_ge(changed, last);
        last = changed;
        seen[changed] = true;
        const gvmm_answer *a = answer(&report, (gvmm_capability)changed);
        ck_assert(!a->available);
        ck_assert_str_eq(a->call, name);
        ck_assert_int_eq(a->status, CUDA_ERROR_UNKNOWN);
        ck_assert_str_ne(a->advice, "");

        gvmm_probe_report onwards; /* what fails while it is undone does not replace the first failure */
        ck_ok(gvmm_faults_set(&(gvmm_fault){n, true, NULL, CUDA_ERROR_UNKNOWN}));
        ck_ok(gvmm_probe(&onwards, 0));
        ck_ok(gvmm_faults_set(NULL));
        ck_assert(same_answer(a, answer(&onwards, (gvmm_capability)changed)));
    }
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++)
        ck_assert_msg(seen[i], "no fault reached %s", gvmm_capability_name((gvmm_capability)i));
    ck_assert_uint_lt(harmless, 20);
    end_machine();
}
END_TEST

START_TEST(everything_from_one_call_on)
{
    start_machine(machine(2));
    for (uint64_t n = 1;; n++) {
        gvmm_probe_report report;
        ck_assert_uint_lt(n, 400);
        ck_ok(gvmm_faults_set(&(gvmm_fault){n, true, NULL, CUDA_ERROR_NOT_SUPPORTED}));
        gvmm_result r = gvmm_probe(&report, 0);
        bool fired = gvmm_faults_injected() > 0;
        ck_ok(gvmm_faults_set(NULL));
        ck_machine_empty();
        if (!fired) break;
        if (n == 1) ck_fails(r, GVMM_E_UNSUPPORTED);
        else ck_ok(r);
        if (n > 1) ck_assert(!report.answers[GVMM_CAPABILITY_GRAPHS].available);
    }
    end_machine();
}
END_TEST

/* ---- quiet, harmless: on a GPU too ---- */

START_TEST(quiet_and_nothing_left)
{
    CUcontext before, after;
    gvmm_error error_before, error_after;
    gvmm_buffer *out;
    ck_fails(gvmm_buffer_create(&out, NULL, 1, NULL), GVMM_E_INVALID);
    gvmm_last_error(&error_before);
    ck_cu(cu->cuCtxPopCurrent(&before)); /* none is needed */

    char path[] = "/tmp/gvmm-probe-XXXXXX";
    int file = mkstemp(path), out_was = dup(1), err_was = dup(2);
    unlink(path);
    fflush(NULL);
    dup2(file, 1);
    dup2(file, 2);
    gvmm_probe_report report;
    gvmm_result r = gvmm_probe(&report, 0);
    fflush(NULL);
    dup2(out_was, 1);
    dup2(err_was, 2);
    ck_ok(r);
    ck_assert_int_eq(lseek(file, 0, SEEK_END), 0);
    close(file);
    close(out_was);
    close(err_was);

    ck_no_warnings();
    gvmm_last_error(&error_after);
    ck_assert_int_eq(error_after.result, error_before.result);
    ck_names("resource is NULL");
    CUresult none = cu->cuCtxGetDevice(&(CUdevice){0});
    ck_cu(cu->cuCtxPushCurrent(before));
    ck_cu_fails(none, CUDA_ERROR_INVALID_CONTEXT);
    ck_cu(cu->cuCtxPopCurrent(&after));
    ck_assert_ptr_eq(after, before);
    ck_cu(cu->cuCtxPushCurrent(before));
    ck_nothing_left();
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) {
        const gvmm_answer *a = &report.answers[i];
        ck_assert(a->available ? !a->advice : a->advice != NULL);
        if (on_gpu)
            printf("%-13s %s %s %d\n", gvmm_capability_name((gvmm_capability)i), a->available ? "yes" : "no",
                   a->call ? a->call : "", a->status);
    }
    ck_yes(&report, GVMM_CAPABILITY_MEMORY);
    ck_yes(&report, GVMM_CAPABILITY_POSIX_FD);
    ck_yes(&report, GVMM_CAPABILITY_RESERVATION);
    ck_yes(&report, GVMM_CAPABILITY_GRAPHS);
    if (!on_gpu) wait_for_destructors();
}
END_TEST

START_TEST(harms_no_capture)
{
    gvmm_probe_report report;
    CUgraph graph;
    CUstreamCaptureStatus status;
    ck_cu(cu->cuStreamBeginCapture(stream, _i ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_ok(gvmm_probe(&report, 0));
    ck_cu(cu->cuStreamIsCapturing(stream, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_yes(&report, GVMM_CAPABILITY_MEMORY);
    if (!on_gpu) wait_for_destructors();
}
END_TEST

/* ---- optional options ---- */

static gvmm_options got(gvmm_options wanted)
{
    gvmm_options options;
    gvmm_resource *resource = resource_with(wanted);
    gvmm_resource_options(resource, &options);
    gvmm_buffer *buffer = create(resource, 1); /* what was got works */
    gvmm_buffer_release(buffer);
    options.peers = NULL; /* the resource's */
    gvmm_resource_release(resource);
    return options;
}

static gvmm_options wish(unsigned optional)
{
    gvmm_options options = waiting_options();
    options.optional = optional;
    return options;
}

/* On the simulated machine the attribute promises fabric handles and making them is not permitted, as on an H200
 * without IMEX. */
START_TEST(fabric_falls_back)
{
    gvmm_error before, after;
    gvmm_options o = wish(GVMM_OPTIONAL_FABRIC);
    o.handle_type = GVMM_HANDLE_FABRIC;
    gvmm_last_error(&before);
    gvmm_options shown = got(o);
    gvmm_last_error(&after);
    ck_assert_int_eq(after.result, before.result); /* what is left out is no failure */
    ck_assert_int_eq(shown.handle_type, GVMM_HANDLE_POSIX_FD);
    ck_assert_uint_eq(shown.optional, GVMM_OPTIONAL_FABRIC);
    o.optional = GVMM_OPTIONAL_FABRIC | GVMM_OPTIONAL_HANDLE | GVMM_OPTIONAL_RDMA;
    o.gpu_direct_rdma = true;
    shown = got(o);
    ck_assert_int_eq(shown.handle_type, GVMM_HANDLE_POSIX_FD);
    ck_assert(shown.gpu_direct_rdma); /* each is judged alone */
    o.gpu_direct_rdma = false;
    o.optional = GVMM_OPTIONAL_HANDLE;
    ck_assert_int_eq(got(o).handle_type, GVMM_HANDLE_NONE);

    fault_call("cuMemExportToShareableHandle", 1, CUDA_ERROR_NOT_SUPPORTED); /* nor descriptors */
    o.optional = GVMM_OPTIONAL_FABRIC | GVMM_OPTIONAL_HANDLE;
    ck_assert_int_eq(got(o).handle_type, GVMM_HANDLE_NONE);

    gvmm_buffer *small = create(plain, G), *large; /* for one chunk */
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_buffer_grow(&large, small, 2 * G, &o));
    o.optional = 0;
    gvmm_buffer *none;
    ck_fails(gvmm_buffer_grow(&none, large, 3 * G, &o), GVMM_E_NOT_PERMITTED);
    gvmm_buffer_release(small);
    gvmm_buffer_release(large);
}
END_TEST

START_TEST(handle_and_rdma_are_left_out)
{
    gvmm_options o = wish(GVMM_OPTIONAL_HANDLE);
    ck_assert_int_eq(got(o).handle_type, GVMM_HANDLE_POSIX_FD);
    o.location = GVMM_LOCATION_HOST;
    ck_assert_int_eq(got(o).handle_type, GVMM_HANDLE_NONE);
    o = wish(GVMM_OPTIONAL_HANDLE);
    o.handle_type = GVMM_HANDLE_WIN32;
    ck_assert_int_eq(got(o).handle_type, GVMM_HANDLE_NONE);

    o = wish(GVMM_OPTIONAL_RDMA);
    o.gpu_direct_rdma = true;
    ck_assert(got(o).gpu_direct_rdma);
    fault_call("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED);
    ck_assert(!got(o).gpu_direct_rdma);
    ck_ok(gvmm_faults_set(NULL));
    o.gpu_direct_rdma = false;
    ck_assert(!got(o).gpu_direct_rdma);

    gvmm_resource *resource;
    o.optional = 16;
    ck_fails(gvmm_resource_create(&resource, 0, &o), GVMM_E_INVALID);
    ck_names("optional");
}
END_TEST

START_TEST(peers_are_left_out)
{
    static const int peers[] = {7, 1, 0, -1};
    gvmm_options o = wish(GVMM_OPTIONAL_PEERS), shown;
    o.peers = peers;
    o.peer_count = 4;
    gvmm_resource *resource = resource_with(o);
    gvmm_resource_options(resource, &shown);
    ck_assert_uint_eq(shown.peer_count, 2);
    ck_assert_int_eq(shown.peers[0], 1);
    ck_assert_int_eq(shown.peers[1], 0);
    gvmm_buffer *buffer = create(resource, G);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(buffer), 1), GVMM_ACCESS_READ_WRITE);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);

    fault_call("cuDeviceCanAccessPeer", 1, CUDA_ERROR_UNKNOWN); /* no answer at all is a failure */
    ck_fails(gvmm_resource_create(&resource, 0, &o), GVMM_E_DRIVER);
    o.optional = 0;
    ck_ok(gvmm_faults_set(NULL));
    ck_fails(gvmm_resource_create(&resource, 0, &o), GVMM_E_INVALID);
    ck_names("no device 7");
}
END_TEST

START_TEST(unreachable_peers_are_left_out)
{
    gvmm_sim_config config = machine(2);
    config.peers = false;
    start_machine(config);
    static const int peers[] = {1};
    gvmm_options o = wish(GVMM_OPTIONAL_PEERS), shown;
    o.peers = peers;
    o.peer_count = 1;
    gvmm_resource *resource = resource_with(o);
    gvmm_resource_options(resource, &shown);
    ck_assert_uint_eq(shown.peer_count, 0);
    ck_assert_ptr_null(shown.peers);
    gvmm_resource_release(resource);
    o.optional = 0;
    ck_fails(gvmm_resource_create(&resource, 0, &o), GVMM_E_UNSUPPORTED);
    end_machine();
}
END_TEST

START_TEST(optional_options_under_faults)
{
    static const int peers[] = {1, 5};
    gvmm_options o = wish(GVMM_OPTIONAL_RDMA | GVMM_OPTIONAL_FABRIC | GVMM_OPTIONAL_HANDLE | GVMM_OPTIONAL_PEERS);
    o.handle_type = GVMM_HANDLE_FABRIC;
    o.gpu_direct_rdma = true;
    o.peers = peers;
    o.peer_count = 2;
    bool fired = true;
    for (uint64_t n = 1; fired; n++) {
        gvmm_resource *resource = NULL;
        ck_assert_uint_lt(n, 200);
        fault(n, _i);
        gvmm_result r = gvmm_resource_create(&resource, 0, &o);
        fired = gvmm_faults_injected() > 0;
        ck_ok(gvmm_faults_set(NULL));
        ck_assert((r == GVMM_OK) == (resource != NULL));
        gvmm_resource_release(resource);
        ck_nothing_left();
    }
}
END_TEST

int main(void)
{
    const char *driver = getenv("GVMM_TEST_DRIVER");
    Suite *suite = suite_create("probe");
    TCase *here = add_case(suite, "here");
    tcase_add_test(here, quiet_and_nothing_left);
    tcase_add_loop_test(here, harms_no_capture, 0, 2);
    if (driver && strcmp(driver, "gpu") == 0) return run_suites(suite, NULL); /* the rest says what a machine is like */

    TCase *answers = tcase_create("answers");
    tcase_add_test(answers, names);
    tcase_add_test(answers, a_whole_machine);
    tcase_add_test(answers, no_peers);
    tcase_add_test(answers, little_address_space);
    tcase_add_test(answers, a_full_device_is_told_apart);
    tcase_add_test(answers, the_attribute_says_no);
    tcase_add_test(answers, some_nodes);
    tcase_add_test(answers, a_wish_that_is_not_granted);
    tcase_add_test(answers, the_attribute_is_believed_when_it_says_no);
    tcase_add_test(answers, bad_arguments);
    tcase_add_test(answers, each_call_belongs_to_one_capability);
    tcase_add_test(answers, everything_from_one_call_on);
    tcase_add_test(answers, unreachable_peers_are_left_out);
    suite_add_tcase(suite, answers);
    TCase *optional = add_case(suite, "optional");
    tcase_add_test(optional, fabric_falls_back);
    tcase_add_test(optional, handle_and_rdma_are_left_out);
    tcase_add_test(optional, peers_are_left_out);
    tcase_add_loop_test(optional, optional_options_under_faults, 0, 2);
    return run_suites(suite, NULL);
}

/* Bad input names the thing; finding the driver; errors, names and warnings. */
#include "support.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void ck_refused(gvmm_options options, gvmm_result expected, const char *field)
{
    gvmm_resource *out = NULL;
    ck_fails(gvmm_resource_create(&out, 0, &options), expected);
    ck_names(field);
    ck_assert_ptr_null(out);
}

START_TEST(bad_options_are_named)
{
    gvmm_options o;
#define REFUSED(field, value, expected) \
    o = waiting_options(); \
    o.field = value; \
    ck_refused(o, expected, #field)
    REFUSED(struct_size, 8, GVMM_E_INVALID);
    REFUSED(allocation_type, (gvmm_allocation_type)0, GVMM_E_INVALID);
    REFUSED(allocation_type, GVMM_ALLOCATION_MANAGED, GVMM_E_UNSUPPORTED);
    REFUSED(location, (gvmm_location_type)0, GVMM_E_INVALID);
    REFUSED(location, (gvmm_location_type)5, GVMM_E_INVALID);
    REFUSED(handle_type, (gvmm_handle_type)3, GVMM_E_INVALID);
    REFUSED(handle_type, GVMM_HANDLE_WIN32, GVMM_E_UNSUPPORTED);
    REFUSED(handle_type, GVMM_HANDLE_WIN32_KMT, GVMM_E_UNSUPPORTED);
    REFUSED(granularity, (gvmm_granularity)2, GVMM_E_INVALID);
    REFUSED(addr_align, 3 * MiB, GVMM_E_INVALID);
    REFUSED(addr_hint, G + 4096, GVMM_E_INVALID);
    REFUSED(self_access, (gvmm_access)2, GVMM_E_INVALID);
    REFUSED(peer_access, (gvmm_access)7, GVMM_E_INVALID);
    REFUSED(peer_count, 1, GVMM_E_INVALID);
#undef REFUSED
    int peers[] = {0, 99};
    o = waiting_options();
    o.peers = peers;
    o.peer_count = 2;
    ck_refused(o, GVMM_E_INVALID, "99");
}
END_TEST

START_TEST(null_and_absent_things_are_named)
{
    gvmm_resource *resource = NULL;
    gvmm_buffer *buffer = NULL, *real = create(plain, G);
    size_t count;
    ck_fails(gvmm_resource_create(NULL, 0, NULL), GVMM_E_INVALID);
    ck_names("out");
    ck_fails(gvmm_resource_create(&resource, 99, NULL), GVMM_E_INVALID);
    ck_names("99");
    ck_fails(gvmm_resource_create(&resource, -1, NULL), GVMM_E_INVALID);
    ck_names("-1");
    ck_fails(gvmm_buffer_create(NULL, plain, G, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_create(&buffer, NULL, G, NULL), GVMM_E_INVALID);
    ck_names("resource");
    ck_fails(gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_segments(real, NULL, 3, &count), GVMM_E_INVALID);
    ck_names("segments");
    ck_fails(gvmm_buffer_segments(real, NULL, 0, NULL), GVMM_E_INVALID);
    ck_names("count");
    ck_fails(gvmm_buffer_wrap(&buffer, plain, 0, G, NULL, NULL, NULL), GVMM_E_INVALID);
    ck_names("address");
    ck_fails(gvmm_buffer_wrap(&buffer, plain, G, 0, NULL, NULL, NULL), GVMM_E_INVALID);
    ck_names("size");
    ck_fails(gvmm_resource_deallocate(NULL, G, G, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_driver_load(NULL, "x"), GVMM_E_INVALID);
    ck_fails(gvmm_driver_get(NULL), GVMM_E_INVALID);
    gvmm_buffer_release(NULL);
    gvmm_resource_release(NULL);
    ck_assert_ptr_null(gvmm_buffer_retain(NULL));
    ck_assert_uint_eq(gvmm_buffer_address(NULL), 0);
    ck_assert(gvmm_buffer_is_closed(NULL));
    ck_assert(!resource && !buffer);
    gvmm_buffer_release(real);
}
END_TEST

/* A device that lacks something says so when the resource is made, and names it. */
START_TEST(missing_capabilities_are_named)
{
    const struct {
        uint64_t question; /* in the order they are asked */
        gvmm_options options;
        const char *names;
    } cases[] = {
        {1, waiting_options(), "virtual memory management"},
        {2, waiting_options(), "posix_fd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gvmm_resource *out = NULL;
        fault_call("cuDeviceGetAttribute", cases[i].question, CUDA_ERROR_INVALID_VALUE);
        ck_fails(gvmm_resource_create(&out, 0, &cases[i].options), GVMM_E_UNSUPPORTED);
        ck_names(cases[i].names);
        ck_assert_ptr_null(out);
    }
    int peer = 1;
    gvmm_options o = waiting_options();
    o.peers = &peer;
    o.peer_count = 1;
    fault_call("cuDeviceCanAccessPeer", 1, CUDA_ERROR_UNKNOWN);
    ck_refused(o, GVMM_E_DRIVER, "cuDeviceCanAccessPeer");
}
END_TEST

static void *fail_here(void *unused)
{
    (void)unused;
    ck_fails(gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    return NULL;
}

START_TEST(errors_are_each_threads_own)
{
    gvmm_buffer *out = NULL;
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_buffer_create(&out, plain, 3 * G, NULL), GVMM_E_NO_DEVICE_MEMORY);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, fail_here, NULL), 0);
    pthread_join(thread, NULL);
    gvmm_buffer_release(create(plain, G)); /* a success clears nothing */
    gvmm_error error;
    gvmm_last_error(&error);
    ck_assert_int_eq(error.result, GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_int_eq(error.status, CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_str_eq(error.call, "cuMemCreate");
    ck_assert_str_eq(error.object, "memory");
    char size[32];
    snprintf(size, sizeof size, "%zu bytes", 3 * G);
    ck_names(size);
    ck_names("device 0");
}
END_TEST

START_TEST(names_and_texts)
{
    ck_assert_str_eq(gvmm_result_name(GVMM_OK), "GVMM_OK");
    ck_assert_str_eq(gvmm_result_name(GVMM_E_NO_ADDRESS_SPACE), "GVMM_E_NO_ADDRESS_SPACE");
    ck_assert_str_eq(gvmm_result_name((gvmm_result)77), "GVMM_E_?");
    for (int r = 0; r <= GVMM_E_DRIVER; r++) ck_assert_uint_gt(strlen(gvmm_result_text((gvmm_result)r)), 0);
    ck_assert_str_eq(gvmm_driver_status_name(CUDA_ERROR_NOT_SUPPORTED), "CUDA_ERROR_NOT_SUPPORTED");
    ck_assert_str_eq(gvmm_driver_status_name(424242), "CUDA_ERROR_?");
    ck_assert_str_eq(gvmm_driver_call_name(GVMM_CALL_cuMemMap), "cuMemMap");
    ck_assert_str_eq(gvmm_driver_call_name(GVMM_CALL_COUNT), "?");
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", GVMM_VERSION_MAJOR, GVMM_VERSION_MINOR, GVMM_VERSION_PATCH);
    ck_assert_str_eq(gvmm_version(), version);
}
END_TEST

START_TEST(driver_and_allocator_stay_while_they_are_used)
{
    gvmm_host_allocator half = {malloc, NULL};
    ck_fails(gvmm_driver_install(gvmm_sim_driver()), GVMM_E_INVALID); /* `plain` is alive */
    ck_names("alive");
    ck_fails(gvmm_host_allocator_install(NULL), GVMM_E_INVALID);
    ck_names("alive");
    gvmm_resource_release(plain);
    ck_fails(gvmm_host_allocator_install(&half), GVMM_E_INVALID);
    ck_ok(gvmm_host_allocator_install(NULL));
    plain = resource_with(waiting_options());
}
END_TEST

/* ---- finding the driver: each in a process of its own ---- */

/* Runs `body` in a child with GVMM_DRIVER set (NULL: unset) and no driver installed; its exit status. */
static int in_child(const char *driver, int (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        if (driver) setenv("GVMM_DRIVER", driver, 1);
        else unsetenv("GVMM_DRIVER");
        _exit(body());
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static gvmm_result try_resource(void)
{
    gvmm_resource *out = NULL;
    return gvmm_resource_create(&out, 0, NULL);
}

static int no_such_library(void)
{
    return try_resource() == GVMM_E_NO_DRIVER && strstr(last_text(), "/nonexistent/libcuda.so") &&
                   strstr(last_text(), "GVMM_DRIVER")
               ? 0
               : 1;
}

static int not_a_driver(void)
{
    return try_resource() == GVMM_E_NO_DRIVER && strstr(last_text(), "cuGetProcAddress_v2") ? 0 : 1;
}

static int system_driver(void)
{
    gvmm_result r = try_resource();
    if (r == GVMM_OK) return 0; /* a machine with a GPU */
    return r == GVMM_E_NO_DRIVER && strstr(last_text(), "libcuda.so.1") ? 0 : 1;
}

static int simulated(void)
{
    const gvmm_driver *driver;
    return gvmm_driver_get(&driver) == GVMM_OK && driver == gvmm_sim_driver() && try_resource() == GVMM_OK ? 0 : 1;
}

static int bad_fault_plan(void)
{
    setenv("GVMM_FAULTS", "nonsense", 1);
    return try_resource() == GVMM_E_INVALID && strstr(last_text(), "GVMM_FAULTS") ? 0 : 1;
}

static int fault_from_the_environment(void)
{
    setenv("GVMM_FAULTS", "cuMemCreate:1=NOT_PERMITTED", 1);
    gvmm_resource *resource;
    gvmm_buffer *buffer;
    if (gvmm_resource_create(&resource, 0, NULL)) return 1;
    return gvmm_buffer_create(&buffer, resource, 1, NULL) == GVMM_E_NOT_PERMITTED &&
                   gvmm_buffer_create(&buffer, resource, 1, NULL) == GVMM_OK
               ? 0
               : 2;
}

START_TEST(finding_the_driver)
{
    ck_assert_int_eq(in_child("/nonexistent/libcuda.so", no_such_library), 0);
    ck_assert_int_eq(in_child("libm.so.6", not_a_driver), 0);
    ck_assert_int_eq(in_child(NULL, system_driver), 0);
    ck_assert_int_eq(in_child("", system_driver), 0);
    ck_assert_int_eq(in_child("sim", simulated), 0);
    ck_assert_int_eq(in_child("sim", bad_fault_plan), 0);
    ck_assert_int_eq(in_child("sim", fault_from_the_environment), 0);
}
END_TEST

static void never_done(void *unused)
{
    (void)unused;
    for (;;) pause();
}

/* Ends with a buffer open, one kept for reuse, and one given up behind work that is never done. */
static int end_with_things_alive(void)
{
    const gvmm_driver *driver = gvmm_sim_driver();
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *resource;
    gvmm_buffer *open, *kept, *alias;
    CUcontext context;
    CUstream busy;
    alarm(30);
    options.reuse_limit = 64 * MiB;
    if (gvmm_resource_create(&resource, 0, &options)) return 1;
    if (driver->cuDevicePrimaryCtxRetain(&context, 0) || driver->cuCtxSetCurrent(context)) return 2;
    if (driver->cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING)) return 3;
    if (gvmm_buffer_create(&open, resource, 1, busy) || gvmm_buffer_create(&kept, resource, 1, NULL)) return 4;
    if (gvmm_buffer_grow(&alias, open, 1, NULL)) return 5;
    if (driver->cuLaunchHostFunc(busy, never_done, NULL)) return 6;
    gvmm_buffer_release(kept);
    gvmm_buffer_release(alias);
    gvmm_stats stats;
    gvmm_get_stats(NULL, &stats);
    if (stats.buffers != 1 || !stats.kept_bytes || stats.releases_waiting != 1) return 7;
    exit(0);
}

/* Nothing is waited for, nothing is said. */
START_TEST(c18_alive_at_exit)
{
    int ends[2], saved = dup(STDERR_FILENO);
    char text[512];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
    int status = in_child("sim", end_with_things_alive);
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
    close(saved);
    close(ends[1]);
    ssize_t length = read(ends[0], text, sizeof text - 1);
    ck_assert_int_ge(length, 0);
    text[length] = '\0';
    close(ends[0]);
    ck_assert_int_eq(status, 0);
    ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(a_driver_that_does_not_start)
{
    gvmm_resource *out = NULL;
    gvmm_driver broken = *gvmm_sim_driver();
    broken.origin = "broken driver";
    ck_ok(gvmm_driver_install(gvmm_faults_over(&broken)));
    fault_call("cuInit", 1, CUDA_ERROR_NO_DEVICE);
    ck_fails(gvmm_resource_create(&out, 0, NULL), GVMM_E_NO_DRIVER);
    ck_names("cuInit");
    ck_names("CUDA_ERROR_NO_DEVICE");
    ck_names("broken driver");
    const gvmm_driver *driver = NULL;
    ck_ok(gvmm_faults_set_text("malloc:1"));
    ck_fails(gvmm_driver_get(&driver), GVMM_E_NO_HOST_MEMORY);
    ck_names("forks");
    ck_assert_ptr_null(driver);
    ck_ok(gvmm_resource_create(&out, 0, NULL)); /* and the next time it does */
    gvmm_resource_release(out);
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_driver_install(NULL));
}
END_TEST

/* ---- what is asked ---- */

static CUdevice_attribute lacking;
static CUmemAllocationGranularity_flags granularity_asked;

static CUresult attribute_but_one(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult status = gvmm_sim_driver()->cuDeviceGetAttribute(value, attribute, device);
    if (attribute == lacking) *value = 0;
    return status;
}

static CUresult note_granularity(size_t *out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
    granularity_asked = option;
    return gvmm_sim_driver()->cuMemGetAllocationGranularity(out, prop, option);
}

static void install_asking_table(void)
{
    static gvmm_driver table;
    table = *gvmm_sim_driver();
    table.cuDeviceGetAttribute = attribute_but_one;
    table.cuMemGetAllocationGranularity = note_granularity;
    ck_ok(gvmm_driver_install(&table));
}

START_TEST(each_option_needs_its_own_attribute)
{
    enum { VMM = 1, FD = 2, RDMA = 4, FABRIC = 8, NODE = 16, HOST = 32 };
    static const CUdevice_attribute all[] = {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                             CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
                                             CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                             CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                             CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED};
    static const struct {
        gvmm_location_type location;
        gvmm_handle_type handle_type;
        bool rdma;
        unsigned needs;
    } rows[] = {{GVMM_LOCATION_DEVICE, GVMM_HANDLE_NONE, false, VMM},
                {GVMM_LOCATION_DEVICE, GVMM_HANDLE_POSIX_FD, false, VMM | FD},
                {GVMM_LOCATION_DEVICE, GVMM_HANDLE_FABRIC, false, VMM | FABRIC},
                {GVMM_LOCATION_DEVICE, GVMM_HANDLE_NONE, true, VMM | RDMA},
                {GVMM_LOCATION_HOST_NUMA, GVMM_HANDLE_NONE, false, NODE},
                {GVMM_LOCATION_HOST_NUMA_CURRENT, GVMM_HANDLE_POSIX_FD, false, NODE | FD},
                {GVMM_LOCATION_HOST, GVMM_HANDLE_NONE, false, HOST}};
    install_asking_table();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            gvmm_options o = GVMM_OPTIONS_INIT;
            gvmm_resource *resource = NULL;
            o.location = rows[i].location;
            o.handle_type = rows[i].handle_type;
            o.gpu_direct_rdma = rows[i].rdma;
            lacking = all[k];
            gvmm_result r = gvmm_resource_create(&resource, 0, &o);
            gvmm_result expected = rows[i].needs >> k & 1 ? GVMM_E_UNSUPPORTED : GVMM_OK;
            ck_assert_msg(r == expected, "row %zu without attribute %d: %s", i, lacking, gvmm_result_name(r));
            gvmm_resource_release(resource);
        }
    lacking = (CUdevice_attribute)0;
    ck_ok(gvmm_driver_install(NULL));
}
END_TEST

START_TEST(the_granularity_is_that_of_the_options)
{
    static const gvmm_granularity asked[] = {GVMM_GRANULARITY_MINIMUM, GVMM_GRANULARITY_RECOMMENDED};
    install_asking_table();
    for (int i = 0; i < 2; i++) {
        gvmm_options o = GVMM_OPTIONS_INIT;
        o.granularity = asked[i];
        gvmm_resource_release(resource_with(o));
        ck_assert_int_eq(granularity_asked,
                         i ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED : CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    }
    ck_ok(gvmm_driver_install(NULL));
}
END_TEST

/* ---- trace ---- */

static gvmm_trace_record traced[64];
static unsigned traced_count;

static void note(void *user, const gvmm_trace_record *record)
{
    ck_assert_ptr_eq(user, traced);
    if (traced_count < 64) traced[traced_count++] = *record;
}

START_TEST(the_trace_shows_calls_and_arguments)
{
    gvmm_resource *resource;
    gvmm_buffer *buffer;
    ck_ok(gvmm_driver_install(gvmm_trace_over(gvmm_sim_driver(), note, traced)));
    ck_ok(gvmm_resource_create(&resource, 0, NULL));
    traced_count = 0;
    ck_ok(gvmm_buffer_create(&buffer, resource, 1, NULL));
    ck_assert_uint_eq(traced_count, 4);
    ck_assert_int_eq(traced[0].call, GVMM_CALL_cuMemAddressReserve);
    ck_assert_uint_eq(traced[0].arg_count, 5);
    ck_assert_int_eq(traced[3].call, GVMM_CALL_cuMemSetAccess);
    ck_assert_uint_eq(traced[3].args[0], gvmm_buffer_address(buffer));
    ck_assert_uint_eq(traced[3].args[1], gvmm_buffer_size(buffer));
    ck_assert_uint_eq(traced[3].args[3], 1);
    ck_assert_int_eq(traced[3].result, CUDA_SUCCESS);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    gvmm_drain(); /* the release was deferred */
    ck_ok(gvmm_driver_install(NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("errors");
    TCase *input = add_case(suite, "bad input");
    tcase_add_test(input, bad_options_are_named);
    tcase_add_test(input, null_and_absent_things_are_named);
    tcase_add_test(input, missing_capabilities_are_named);
    tcase_add_test(input, errors_are_each_threads_own);
    tcase_add_test(input, names_and_texts);
    tcase_add_test(input, driver_and_allocator_stay_while_they_are_used);
    TCase *driver = tcase_create("driver"); /* no fixture: nothing is installed yet */
    suite_add_tcase(suite, driver);
    tcase_add_test(driver, finding_the_driver);
    tcase_add_test(driver, c18_alive_at_exit);
    tcase_add_test(driver, a_driver_that_does_not_start);
    tcase_add_test(driver, each_option_needs_its_own_attribute);
    tcase_add_test(driver, the_granularity_is_that_of_the_options);
    tcase_add_test(driver, the_trace_shows_calls_and_arguments);
    return run_suites(suite, NULL);
}

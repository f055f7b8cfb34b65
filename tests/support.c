#include "support.h"

#include <semaphore.h>
#include <stdarg.h>
#include <unistd.h>

const gvmm_driver *cu;
size_t G;
gvmm_resource *plain;
gvmm_stream stream;
bool on_gpu;
int device_count;
atomic_int warning_count;
gvmm_error last_warning;
char last_warning_text[256];

static gvmm_stats at_start;

static void count_warning(void *user, const gvmm_error *error)
{
    (void)user;
    last_warning = *error;
    snprintf(last_warning_text, sizeof last_warning_text, "%s", error->text);
    atomic_fetch_add(&warning_count, 1);
}

static void choose_driver(void)
{
    const char *which = getenv("GVMM_TEST_DRIVER");
    on_gpu = which && strcmp(which, "gpu") == 0;
    if (on_gpu) {
        static gvmm_driver real;
        ck_ok(gvmm_driver_load(&real, "libcuda.so.1"));
        cu = &real;
        return;
    }
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    config.memory = (uint64_t)128 << 30;
    ck_ok(gvmm_sim_reset(&config));
    gvmm_sim_findings_clear();
    cu = gvmm_sim_driver();
}

static void print_finding(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "finding: %s\n", text);
}

void setup(void)
{
    choose_driver();
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_driver_install(gvmm_faults_over(cu)));
    const gvmm_driver *used;
    ck_ok(gvmm_driver_get(&used));
    gvmm_set_warning_handler(count_warning, NULL);
    atomic_store(&warning_count, 0);
    CUcontext context;
    ck_cu(cu->cuDeviceGetCount(&device_count));
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 0));
    ck_cu(cu->cuCtxSetCurrent(context));
    ck_cu(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    plain = resource_with(waiting_options());
    G = gvmm_resource_granularity(plain);
    gvmm_get_stats(NULL, &at_start);
}

void use_driver(const gvmm_driver *driver)
{
    gvmm_resource_release(plain);
    ck_ok(gvmm_driver_install(driver));
    plain = resource_with(waiting_options());
}

unsigned streams_before;

static CUresult number_of_stream(CUstream of, unsigned long long *id)
{
    CUresult status = cu->cuStreamGetId(of, id);
    *id += 1000000ull * streams_before;
    return status;
}

void number_streams_anew(gvmm_driver *table)
{
    table->cuStreamGetId = number_of_stream;
    streams_before = 0;
}

void teardown(void)
{
    gvmm_drain(); /* no thread of gvmm makes calls any more */
    gvmm_drain(); /* nobody makes calls when the plan changes */
    ck_ok(gvmm_faults_set(NULL));
    ck_nothing_left();
    gvmm_resource_release(plain);
    ck_cu(cu->cuStreamDestroy(stream));
    ck_cu(cu->cuCtxSetCurrent(NULL));
    ck_cu(cu->cuDevicePrimaryCtxRelease(0));
    ck_ok(gvmm_driver_install(NULL)); /* fails if a resource or a range has been lost */
    if (on_gpu) return;
    ck_assert_msg(gvmm_sim_findings(print_finding, NULL) == 0, "the simulated driver found something, see above");
    ck_ok(gvmm_sim_reset(NULL)); /* fails if a stream, event, graph ... has been lost */
}

TCase *add_case(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    return tests;
}

int run_suites(Suite *first, ...)
{
    SRunner *runner = srunner_create(first);
    va_list more;
    va_start(more, first);
    for (Suite *suite; (suite = va_arg(more, Suite *));) srunner_add_suite(runner, suite);
    va_end(more);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

const char *last_text(void)
{
    static _Thread_local gvmm_error error;
    gvmm_last_error(&error);
    return error.text;
}

void ck_nothing_left(void)
{
    gvmm_drain();
    gvmm_stats now;
    gvmm_get_stats(NULL, &now);
    ck_assert_uint_eq(now.physical_bytes, at_start.physical_bytes);
    ck_assert_uint_eq(now.mapped_bytes, at_start.mapped_bytes);
    ck_assert_uint_eq(now.reserved_bytes, at_start.reserved_bytes);
    ck_assert_uint_eq(now.buffers, at_start.buffers);
    if (on_gpu) return;
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    ck_assert_uint_eq(counts[GVMM_SIM_MEMORY], 0);
    ck_assert_uint_eq(counts[GVMM_SIM_RESERVATION], 0);
    ck_assert_uint_eq(counts[GVMM_SIM_MAPPING], 0);
}

void wait_for_mappings(uint64_t mappings)
{
    gvmm_stats now;
    do {
        sched_yield();
        gvmm_drain();
        gvmm_get_stats(NULL, &now);
    } while (now.mappings > mappings);
}

void ck_released(uint64_t address, size_t size)
{
    CUmemGenericAllocationHandle handle;
    ck_cu_fails(cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address), CUDA_ERROR_INVALID_VALUE);
    ck_cu_fails(cu->cuMemAddressFree(address, size), CUDA_ERROR_INVALID_VALUE);
}

void ck_mapped(uint64_t address)
{
    CUmemGenericAllocationHandle handle;
    ck_cu(cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address));
    ck_cu(cu->cuMemRelease(handle));
}

void fill(uint64_t address, unsigned char value, size_t size)
{
    ck_cu(cu->cuMemsetD8(address, value, size));
    ck_cu(cu->cuCtxSynchronize());
}

void ck_filled(uint64_t address, unsigned char value, size_t size)
{
    unsigned char *bytes = malloc(size);
    ck_assert_ptr_nonnull(bytes);
    ck_cu(cu->cuMemcpyDtoH(bytes, address, size));
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != value)
            ck_abort_msg("byte %zu of 0x%llx is %u, not %u", i, (unsigned long long)address, bytes[i], value);
    free(bytes);
}

static void make_pattern(unsigned char *bytes, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i ^ (i >> 8) ^ (i >> 16) * 7 ^ seed * 31);
}

void write_pattern(uint64_t address, size_t size, unsigned seed)
{
    unsigned char *bytes = malloc(size);
    ck_assert_ptr_nonnull(bytes);
    make_pattern(bytes, size, seed);
    ck_cu(cu->cuMemcpyHtoD(address, bytes, size));
    ck_cu(cu->cuStreamSynchronize(
        CU_STREAM_LEGACY)); /* it returns when it has read them: a buffer of another stream does not wait */
    free(bytes);
}

void ck_pattern(uint64_t address, size_t size, unsigned seed)
{
    unsigned char *bytes = malloc(size), *wanted = malloc(size);
    ck_assert(bytes && wanted);
    make_pattern(wanted, size, seed);
    ck_cu(cu->cuMemcpyDtoH(bytes, address, size));
    ck_assert_msg(memcmp(bytes, wanted, size) == 0, "the bytes at 0x%llx are not those that were written",
                  (unsigned long long)address);
    free(bytes);
    free(wanted);
}

unsigned long long access_of(uint64_t address, int device)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    unsigned long long flags;
    ck_cu(cu->cuMemGetAccess(&flags, &location, address));
    return flags;
}

CUmemAllocationProp properties_at(uint64_t address)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    ck_cu(cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address));
    ck_cu(cu->cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    ck_cu(cu->cuMemRelease(handle));
    return prop;
}

uint64_t map_by_hand(size_t size)
{
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ck_cu(cu->cuMemAddressReserve(&base, size, 0, 0, 0));
    ck_cu(cu->cuMemCreate(&handle, size, &prop, 0));
    ck_cu(cu->cuMemMap(base, size, 0, handle, 0));
    ck_cu(cu->cuMemRelease(handle));
    return base;
}

gvmm_stream new_stream(unsigned flags)
{
    CUstream s;
    ck_cu(cu->cuStreamCreate(&s, flags));
    return s;
}

gvmm_buffer *create(gvmm_resource *resource, size_t size)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, resource, size, NULL));
    return buffer;
}

gvmm_buffer *grow(gvmm_buffer *buffer, size_t size)
{
    gvmm_buffer *larger;
    ck_ok(gvmm_buffer_grow(&larger, buffer, size, NULL));
    return larger;
}

gvmm_options waiting_options(void)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.release_mode = GVMM_RELEASE_SYNC;
    return options;
}

gvmm_options on_host(void)
{
    gvmm_options options = waiting_options();
    options.location = GVMM_LOCATION_HOST;
    options.handle_type = GVMM_HANDLE_NONE;
    return options;
}

gvmm_stats stats_of(const gvmm_resource *resource)
{
    gvmm_stats stats;
    gvmm_get_stats(resource, &stats);
    return stats;
}

void drain_wholly(void)
{
    do {
        sched_yield();
        gvmm_drain();
    } while (stats_of(NULL).releases_waiting);
}

gvmm_result free_nothing(void *user, uint64_t address, size_t size, gvmm_stream on)
{
    (void)user, (void)address, (void)size, (void)on;
    return GVMM_OK;
}

gvmm_resource *resource_with(gvmm_options options)
{
    gvmm_resource *resource;
    ck_ok(gvmm_resource_create(&resource, 0, &options));
    return resource;
}

/* An address with `size` free bytes behind it. From 32 MiB on the H200's driver grants every hint that is free; smaller
 * reservations it puts elsewhere, and grants only the place of a small one that was just freed. So what is to be placed
 * there is to be on the same side of 32 MiB as the whole. */
static uint64_t free_place(size_t size)
{
    CUdeviceptr address;
    ck_cu(cu->cuMemAddressReserve(&address, size, 0, 0, 0));
    ck_cu(cu->cuMemAddressFree(address, size));
    return address;
}

/* A buffer at that address, or NULL. It belongs to a resource of its own, with the options of `resource` and the
 * address as hint. */
static gvmm_buffer *create_at(gvmm_resource *resource, uint64_t address, size_t size)
{
    gvmm_options options;
    gvmm_resource_options(resource, &options);
    options.addr_hint = address;
    gvmm_resource *there = resource_with(options);
    gvmm_buffer *buffer = create(there, size);
    gvmm_resource_release(there);
    if (gvmm_buffer_address(buffer) == address) return buffer;
    gvmm_buffer_release(buffer);
    return NULL;
}

enum { ATTEMPTS = 16 };

gvmm_buffer *buffer_with_hole_behind(gvmm_resource *resource, size_t size, size_t hole)
{
    gvmm_buffer *buffer = NULL;
    for (unsigned i = 0; i < ATTEMPTS && !buffer; i++) buffer = create_at(resource, free_place(size + hole), size);
    ck_assert_msg(buffer != NULL, "no place was granted twice");
    return buffer;
}

gvmm_buffer *buffer_with_decoy_behind(gvmm_resource *resource, size_t size, uint64_t *decoy)
{
    gvmm_buffer *buffer = NULL;
    for (unsigned i = 0; i < ATTEMPTS && !buffer; i++) {
        uint64_t address = free_place(size + G);
        CUdeviceptr behind;
        ck_cu(cu->cuMemAddressReserve(&behind, G, 0, address + size, 0));
        *decoy = behind;
        if (behind == address + size) buffer = create_at(resource, address, size);
        if (!buffer) free_decoy(behind);
    }
    ck_assert_msg(buffer != NULL, "no place was granted twice");
    return buffer;
}

void free_decoy(uint64_t decoy) { ck_cu(cu->cuMemAddressFree(decoy, G)); }

struct gate {
    sem_t open;
    bool opened;
    CUstream on;
};

static void wait_at_gate(void *data) { sem_wait(&((gate *)data)->open); }

gate *gate_on(gvmm_stream on)
{
    gate *g = malloc(sizeof *g);
    ck_assert_ptr_nonnull(g);
    sem_init(&g->open, 0, 0);
    g->opened = false;
    g->on = on;
    ck_cu(cu->cuLaunchHostFunc(on, wait_at_gate, g));
    return g;
}

void gate_open(gate *g)
{
    g->opened = true;
    sem_post(&g->open);
}

void gate_end(gate *g)
{
    if (!g->opened) gate_open(g);
    ck_cu(cu->cuStreamSynchronize(g->on));
    sem_destroy(&g->open);
    free(g);
}

void ck_no_warnings(void) { ck_assert_msg(atomic_load(&warning_count) == 0, "warning: %s", last_warning_text); }

void fault(uint64_t nth, bool onwards) { ck_ok(gvmm_faults_set(&(gvmm_fault){nth, onwards, NULL, 0})); }

void fault_call(const char *call, uint64_t nth, CUresult status)
{
    ck_ok(gvmm_faults_set(&(gvmm_fault){nth, false, call, (int)status}));
}

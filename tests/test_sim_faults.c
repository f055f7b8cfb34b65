/* Fault plans over the simulated driver: what fails, how, and what has been done all the same. */
#include <stdatomic.h>
#include <unistd.h>

#include "sim_kit.h"

static const gvmm_driver *faulty; /* the fault table; `cu` goes past it */

static void faults_begin(void)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    machine_start(&config);
    faulty = gvmm_faults_over(cu);
    ck_ok(gvmm_faults_set(NULL));
}

static void faults_end(void)
{
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_driver_install(NULL));
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
    machine_end();
}

static void nothing(void *data) { (void)data; }

/* ---------------------------------------------------------------------------------------------
 * A failing undo call still undoes. One pair of functions for every such call of driver_calls.h: `make` prepares,
 * `undo` is the call, once through the fault table and once more past it, to see that there is nothing left to undo.
 * ------------------------------------------------------------------------------------------- */

static struct {
    block b;
    CUdeviceptr address;
    CUcontext context, before;
    CUstream stream;
    CUevent event;
    CUgraph graph;
    CUgraphExec exec;
    CUuserObject object;
    CUmemoryPool pool;
    void *pinned;
} it;

static char host[4096];

static void make_block(void) { it.b = block_make(G); }
static void make_reservation(void) { ck_cu(cu->cuMemAddressReserve(&it.address, G, 0, 0, 0)); }
static void make_memory(void)
{
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    ck_cu(cu->cuMemCreate(&it.b.handle, G, &prop, 0));
}
static void make_plain(void) { ck_cu(cu->cuMemAlloc(&it.address, 1)); }
static void make_pooled(void) { ck_cu(cu->cuMemAllocAsync(&it.address, 1, NULL)); }
static void make_pinned(void) { ck_cu(cu->cuMemAllocHost(&it.pinned, 1)); }
static void make_registered(void) { ck_cu(cu->cuMemHostRegister(host, sizeof host, 0)); }
static void make_pool(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ck_cu(cu->cuMemPoolCreate(&it.pool, &props));
}
static void make_stream(void) { ck_cu(cu->cuStreamCreate(&it.stream, 0)); }
static atomic_bool woken;
static void wake_late(void *data)
{
    (void)data;
    usleep(20000);
    atomic_store(&woken, true);
}
static void make_busy(void)
{
    make_stream();
    atomic_store(&woken, false);
    ck_cu(cu->cuLaunchHostFunc(it.stream, wake_late, NULL));
}
static void make_event(void) { ck_cu(cu->cuEventCreate(&it.event, 0)); }
static void make_graph(void) { ck_cu(cu->cuGraphCreate(&it.graph, 0)); }
static void make_exec(void)
{
    make_graph();
    ck_cu(cu->cuGraphInstantiateWithFlags(&it.exec, it.graph, 0));
    ck_cu(cu->cuGraphDestroy(it.graph));
}
static void make_object(void)
{
    ck_cu(cu->cuUserObjectCreate(&it.object, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
}
static void make_held_object(void)
{
    make_graph();
    make_object();
    ck_cu(cu->cuGraphRetainUserObject(it.graph, it.object, 1, CU_GRAPH_USER_OBJECT_MOVE));
}
static void make_primary(void) { ck_cu(cu->cuDevicePrimaryCtxRetain(&it.context, 1)); }
static void make_context(void)
{
    ck_cu(cu->cuCtxGetCurrent(&it.before));
    ck_cu(cu->cuCtxCreate(&it.context, 0, 1));
}
static void make_peer(void)
{
    make_primary();
    ck_cu(cu->cuCtxEnablePeerAccess(it.context, 0));
}

static CUresult undo_cuMemUnmap(const gvmm_driver *d) { return d->cuMemUnmap(it.b.address, G); }
static CUresult undo_cuMemAddressFree(const gvmm_driver *d) { return d->cuMemAddressFree(it.address, G); }
static CUresult undo_cuMemRelease(const gvmm_driver *d) { return d->cuMemRelease(it.b.handle); }
static CUresult undo_cuMemFree(const gvmm_driver *d) { return d->cuMemFree(it.address); }
static CUresult undo_cuMemFreeAsync(const gvmm_driver *d) { return d->cuMemFreeAsync(it.address, NULL); }
static CUresult undo_cuMemFreeHost(const gvmm_driver *d) { return d->cuMemFreeHost(it.pinned); }
static CUresult undo_cuMemHostUnregister(const gvmm_driver *d) { return d->cuMemHostUnregister(host); }
static CUresult undo_cuMemPoolDestroy(const gvmm_driver *d) { return d->cuMemPoolDestroy(it.pool); }
static CUresult undo_cuStreamDestroy(const gvmm_driver *d) { return d->cuStreamDestroy(it.stream); }
static CUresult undo_cuStreamSynchronize(const gvmm_driver *d)
{
    CUresult r = d->cuStreamSynchronize(it.stream);
    ck_assert(atomic_load(&woken));
    return r;
}
static CUresult undo_cuEventDestroy(const gvmm_driver *d) { return d->cuEventDestroy(it.event); }
static CUresult undo_cuGraphDestroy(const gvmm_driver *d) { return d->cuGraphDestroy(it.graph); }
static CUresult undo_cuGraphExecDestroy(const gvmm_driver *d) { return d->cuGraphExecDestroy(it.exec); }
static CUresult undo_cuUserObjectRelease(const gvmm_driver *d) { return d->cuUserObjectRelease(it.object, 1); }
static CUresult undo_cuGraphReleaseUserObject(const gvmm_driver *d)
{
    return d->cuGraphReleaseUserObject(it.graph, it.object, 1);
}
static CUresult undo_cuDevicePrimaryCtxRelease(const gvmm_driver *d) { return d->cuDevicePrimaryCtxRelease(1); }
static CUresult undo_cuDevicePrimaryCtxReset(const gvmm_driver *d) { return d->cuDevicePrimaryCtxReset(1); }
static CUresult undo_cuCtxDestroy(const gvmm_driver *d) { return d->cuCtxDestroy(it.context); }
static CUresult undo_cuCtxPopCurrent(const gvmm_driver *d) { return d->cuCtxPopCurrent(NULL); }
static CUresult undo_cuCtxDisablePeerAccess(const gvmm_driver *d) { return d->cuCtxDisablePeerAccess(it.context); }

static void end_stream(void) { ck_cu(cu->cuStreamDestroy(it.stream)); }
static void end_block(void) { block_free(&it.b); }
static void end_graph(void) { ck_cu(cu->cuGraphDestroy(it.graph)); }
static void end_peer(void) { ck_cu(cu->cuDevicePrimaryCtxRelease(1)); }
static void end_reset(void)
{
    unsigned flags;
    int active;
    ck_cu(cu->cuDevicePrimaryCtxGetState(1, &flags, &active));
    ck_assert_int_eq(active, 0);
    ck_cu(cu->cuDevicePrimaryCtxRelease(1));
}
static void end_pop(void)
{
    CUcontext now;
    ck_cu(cu->cuCtxGetCurrent(&now));
    ck_assert_ptr_eq(now, it.before);
    ck_cu(cu->cuCtxDestroy(it.context));
}

static const struct {
    gvmm_driver_call call;
    void (*make)(void);
    CUresult (*undo)(const gvmm_driver *d);
    void (*end)(void);
    bool again; /* undoing it again is a success */
} undoes[] = {
#define ROW(name, make, end, again) \
    { \
        GVMM_CALL_##name, make, undo_##name, end, again \
    }
    ROW(cuMemUnmap, make_block, end_block, true), /* unmapping a hole is */
    ROW(cuMemAddressFree, make_reservation, NULL, false),
    ROW(cuMemRelease, make_memory, NULL, false),
    ROW(cuMemFree, make_plain, NULL, false),
    ROW(cuMemFreeAsync, make_pooled, NULL, false),
    ROW(cuMemFreeHost, make_pinned, NULL, false),
    ROW(cuMemHostUnregister, make_registered, NULL, false),
    ROW(cuMemPoolDestroy, make_pool, NULL, false),
    ROW(cuStreamDestroy, make_stream, NULL, false),
    ROW(cuStreamSynchronize, make_busy, end_stream, true), /* waits, that is */
    ROW(cuEventDestroy, make_event, NULL, false),
    ROW(cuGraphDestroy, make_graph, NULL, false),
    ROW(cuGraphExecDestroy, make_exec, NULL, false),
    ROW(cuUserObjectRelease, make_object, NULL, false),
    ROW(cuGraphReleaseUserObject, make_held_object, end_graph, false),
    ROW(cuDevicePrimaryCtxRelease, make_primary, NULL, false),
    ROW(cuDevicePrimaryCtxReset, make_primary, end_reset, true),
    ROW(cuCtxDestroy, make_context, NULL, false),
    ROW(cuCtxDisablePeerAccess, make_peer, end_peer, false),
};

START_TEST(a_failing_undo_call_still_undoes)
{
    size_t before[GVMM_SIM_KIND_COUNT], after[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(before, NULL, NULL);
    for (size_t i = 0; i < sizeof undoes / sizeof *undoes; i++) {
        const char *name = gvmm_driver_call_name(undoes[i].call);
        undoes[i].make();
        fault_call(name, 1, CUDA_ERROR_TIMEOUT);
        CUresult r = undoes[i].undo(faulty);
        ck_assert_msg(r == CUDA_ERROR_TIMEOUT, "%s: %s", name, gvmm_driver_status_name((int)r));
        ck_assert_uint_eq(gvmm_faults_injected(), 1);
        ck_cu(cu->cuCtxSynchronize());
        r = undoes[i].undo(cu);
        ck_assert_msg((r == CUDA_SUCCESS) == undoes[i].again, "%s again: %s", name, gvmm_driver_status_name((int)r));
        if (undoes[i].end) undoes[i].end();
        gvmm_sim_findings_clear(); /* of what was undone twice */
        gvmm_sim_census(after, NULL, NULL);
        ck_assert_msg(memcmp(before, after, sizeof before) == 0, "%s: something is left", name);
    }
    make_context(); /* a second pop would take another's */
    fault_call("cuCtxPopCurrent", 1, CUDA_ERROR_TIMEOUT);
    ck_cu_fails(undo_cuCtxPopCurrent(faulty), CUDA_ERROR_TIMEOUT);
    end_pop();
}
END_TEST

/* What the driver itself refuses to undo is not undone: its answer counts. */
START_TEST(a_refused_undo_call_says_so)
{
    make_block();
    fault_call("cuMemUnmap", 1, CUDA_ERROR_TIMEOUT);
    ck_cu_fails(faulty->cuMemUnmap(it.b.address + 1, G), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    ck_cu(cu->cuMemUnmap(it.b.address, G));
    end_block();
}
END_TEST

/* The list above is whole. */
START_TEST(every_undo_call_was_tried)
{
#define DO false
#define UNDO true
#define GVMM_X(need, role, name, symbol, version, params, args) role,
    static const bool is_undo[GVMM_CALL_COUNT] = { GVMM_DRIVER_CALLS(GVMM_X) };
#undef GVMM_X
#undef DO
#undef UNDO
    for (int call = 0; call < GVMM_CALL_COUNT; call++) {
        bool tried = call == GVMM_CALL_cuCtxPopCurrent ||
                     call == GVMM_CALL_cuModuleUnload; /* the simulator has no modules */
        for (size_t i = 0; i < sizeof undoes / sizeof *undoes; i++) tried = tried || (int)undoes[i].call == call;
        ck_assert_msg(tried == is_undo[call], "%s", gvmm_driver_call_name((gvmm_driver_call)call));
    }
}
END_TEST

/* ---------------------------------------------------------------------------------------------
 * Plans
 * ------------------------------------------------------------------------------------------- */

START_TEST(a_failing_call_has_done_nothing)
{
    block b = block_make(G);
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemGenericAllocationHandle handle = 7;
    CUdeviceptr address = 7;
    int fd = 7;
    size_t before[GVMM_SIM_KIND_COUNT], after[GVMM_SIM_KIND_COUNT];
    ck_cu(cu->cuMemAddressReserve(&it.address, G, 0, 0, 0));
    gvmm_sim_census(before, NULL, NULL);
    fault(1, true);
    ck_cu_fails(faulty->cuMemCreate(&handle, G, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(faulty->cuMemAddressReserve(&address, G, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(faulty->cuMemMap(it.address, G, 0, b.handle, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(faulty->cuMemSetAccess(b.address, G, &desc, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(faulty->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)b.address), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(faulty->cuMemExportToShareableHandle(&fd, b.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(faulty->cuMemAlloc(&address, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(faulty->cuMemsetD8(b.address, 1, G), CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_uint_eq(gvmm_faults_counted(), 8);
    ck_assert_uint_eq(gvmm_faults_injected(), 8);
    ck_ok(gvmm_faults_set(NULL));
    gvmm_sim_census(after, NULL, NULL);
    ck_assert_mem_eq(before, after, sizeof before);
    ck_assert_uint_eq(handle, 7);
    ck_assert_uint_eq(address, 7);
    ck_assert_int_eq(fd, 7);
    ck_assert_uint_eq(access_of(b.address, 1), 0);
    ck_filled(b.address, 0, G);
    ck_cu(cu->cuMemAddressFree(it.address, G));
    block_end(&b);
}
END_TEST

/* What a plan from text does to eight calls of two functions in turn: 'x' where one failed. */
static void ck_plan(const char *text, const char *pattern)
{
    int count;
    char got[9] = "";
    CUdevice device;
    ck_ok(gvmm_faults_set_text(text));
    for (int i = 0; i < 8; i++) {
        CUresult r = i % 2 ? faulty->cuDeviceGet(&device, 0) : faulty->cuDeviceGetCount(&count);
        got[i] = r == CUDA_SUCCESS ? '.' : r == CUDA_ERROR_OUT_OF_MEMORY ? 'x' : 't';
    }
    ck_assert_msg(strcmp(got, pattern) == 0, "%s: %s, not %s", text, got, pattern);
}

START_TEST(plans_from_text)
{
    ck_plan("3", "..x.....");
    ck_plan("3+", "..xxxxxx");
    ck_plan("1+", "xxxxxxxx");
    ck_plan("9", "........");
    ck_plan("cuDeviceGet:2", "...x....");
    ck_plan("cuDeviceGet:2+", "...x.x.x");
    ck_plan("cuDeviceGetCount:1=TIMEOUT", "t.......");
    ck_plan("cuDeviceGetCount:3+=TIMEOUT", "....t.t.");
    ck_plan("cuMemMap:1+", "........");
    ck_plan("malloc:1+", "........");
    ck_plan("2=ERROR_TIMEOUT", ".t......");
    static const char *const bad[] = {"",          "0",          "x",          "-1",          "+",
                                      "3=",        "3=NONSENSE", "cuNoCall:1", "cuMemMap",    "cuMemMap:",
                                      ":3",        "3++",        "3 ",         "cuMemMap:1=", "cuMemMap:0",
                                      "1=SUCCESS", "3,4",        "cumemmap:1", "3=TIMEOUT "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_msg(gvmm_faults_set_text(bad[i]) == GVMM_E_INVALID, "'%s' is accepted", bad[i]);
        ck_names("fault plan");
    }
}
END_TEST

START_TEST(every_status_has_a_name)
{
    static const struct {
        const char *name;
        int value;
    } statuses[] = {
#define GVMM_X(name, value) {#name, value},
        GVMM_CUDA_STATUSES(GVMM_X)
#undef GVMM_X
    };
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        char text[100], name[100];
        const char *official;
        int count;
        snprintf(name, sizeof name, "CUDA_%s", statuses[i].name);
        ck_assert_str_eq(gvmm_driver_status_name(statuses[i].value), name);
        ck_cu(cu->cuGetErrorName((CUresult)statuses[i].value, &official));
        ck_assert_str_eq(official, name);
        ck_cu(cu->cuGetErrorString((CUresult)statuses[i].value, &official));
        if (!statuses[i].value) continue;
        snprintf(text, sizeof text, "cuDeviceGetCount:1=%s", statuses[i].name + strlen("ERROR_"));
        ck_ok(gvmm_faults_set_text(text));
        ck_assert_int_eq(faulty->cuDeviceGetCount(&count), statuses[i].value);
    }
    const char *none = "";
    ck_cu_fails(cu->cuGetErrorName((CUresult)12345, &none), CUDA_ERROR_INVALID_VALUE);
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(plans_from_the_environment)
{
    const gvmm_driver *d;
    CUdeviceptr address;
    setenv("GVMM_DRIVER", "sim", 1);
    setenv("GVMM_FAULTS", "cuMemAddressReserve:2+=NOT_SUPPORTED", 1);
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_driver_get(&d));
    ck_assert_str_eq(d->origin, "simulated driver");
    ck_cu(d->cuMemAddressReserve(&address, G, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        CUdeviceptr none;
        ck_cu_fails(d->cuMemAddressReserve(&none, G, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    }
    ck_assert_uint_eq(gvmm_faults_injected(), 3);
    ck_cu(d->cuMemAddressFree(address, G));

    setenv("GVMM_FAULTS", "cuMemAddressFree:1=UNKNOWN", 1);
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_driver_get(&d));
    ck_cu(d->cuMemAddressReserve(&address, G, 0, 0, 0));
    ck_cu_fails(d->cuMemAddressFree(address, G), CUDA_ERROR_UNKNOWN);
    ck_cu_fails(d->cuMemAddressFree(address, G), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(alive(GVMM_SIM_RESERVATION), 0);

    setenv("GVMM_FAULTS", "cuInit:1", 1);
    ck_ok(gvmm_driver_install(NULL));
    ck_fails(gvmm_driver_get(&d), GVMM_E_NO_DRIVER);
    ck_names("cuInit");
    setenv("GVMM_FAULTS", "cuNoCall:1", 1);
    ck_ok(gvmm_driver_install(NULL));
    ck_fails(gvmm_driver_get(&d), GVMM_E_INVALID);
    ck_names("GVMM_FAULTS");
    unsetenv("GVMM_FAULTS");
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_driver_get(&d));
    ck_assert_ptr_eq(d, cu);
}
END_TEST

/* Each of them, from the first one on, with nothing planned for the others. */
START_TEST(every_function_can_be_failed)
{
    for (int call = 0; call < GVMM_CALL_COUNT; call++) {
        ck_ok(
            gvmm_faults_set(&(gvmm_fault){1, true, gvmm_driver_call_name((gvmm_driver_call)call), CUDA_ERROR_TIMEOUT}));
        int count;
        CUresult r = faulty->cuDeviceGetCount(&count);
        ck_assert_int_eq(r, call == GVMM_CALL_cuDeviceGetCount ? CUDA_ERROR_TIMEOUT : CUDA_SUCCESS);
        ck_assert_uint_eq(gvmm_faults_counted(), call == GVMM_CALL_cuDeviceGetCount);
    }
    ck_fails(gvmm_faults_set(&(gvmm_fault){1, true, "cuNoCall", 0}), GVMM_E_INVALID);
}
END_TEST

int main(void)
{
    unsetenv("GVMM_SIM");
    unsetenv("GVMM_FAULTS");
    unsetenv("GVMM_TRACE");
    Suite *suite = suite_create("faults over the simulated driver");
    TCase *tests = tcase_create("faults");
    tcase_add_checked_fixture(tests, faults_begin, faults_end);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, a_failing_undo_call_still_undoes);
    tcase_add_test(tests, a_refused_undo_call_says_so);
    tcase_add_test(tests, every_undo_call_was_tried);
    tcase_add_test(tests, a_failing_call_has_done_nothing);
    tcase_add_test(tests, plans_from_text);
    tcase_add_test(tests, every_status_has_a_name);
    tcase_add_test(tests, plans_from_the_environment);
    tcase_add_test(tests, every_function_can_be_failed);
    return run_suites(suite, NULL);
}

#include "sim_kit.h"

#include <spawn.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void machine_start(const gvmm_sim_config *config)
{
    const gvmm_sim_config defaults = GVMM_SIM_CONFIG_INIT;
    if (!config) config = &defaults;
    CUcontext context;
    cu = gvmm_sim_driver();
    ck_ok(gvmm_sim_reset(config));
    gvmm_sim_findings_clear();
    gvmm_sim_quiet(true);
    ck_cu(cu->cuInit(0));
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 0));
    ck_cu(cu->cuCtxSetCurrent(context));
    G = config->granularity;
    device_count = (int)config->devices;
}

void machine_end(void)
{
    ck_cu(cu->cuCtxSetCurrent(NULL));
    ck_cu(cu->cuDevicePrimaryCtxRelease(0));
    gvmm_sim_quiet(false);
    ck_ok(gvmm_sim_reset(NULL));
}

void machine_of_two_devices(void)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    machine_start(&config);
}

static void end_without_findings(void)
{
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
    machine_end();
}

TCase *add_machine_case(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_add_checked_fixture(tests, machine_of_two_devices, end_without_findings);
    tcase_set_timeout(tests, 120);
    suite_add_tcase(suite, tests);
    return tests;
}

CUmemAllocationProp memory_of(CUmemLocationType type, int id, CUmemAllocationHandleType handles)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = handles, .location = {type, id}};
}

void block_grant(const block *b, int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    ck_cu(cu->cuMemSetAccess(b->address, b->size, &desc, 1));
}

block block_make(size_t size)
{
    block b = {.size = size};
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ck_cu(cu->cuMemAddressReserve(&b.address, size, 0, 0, 0));
    ck_cu(cu->cuMemCreate(&b.handle, size, &prop, 0));
    ck_cu(cu->cuMemMap(b.address, size, 0, b.handle, 0));
    block_grant(&b, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return b;
}

void block_unmap(const block *b) { ck_cu(cu->cuMemUnmap(b->address, b->size)); }

void block_free(const block *b)
{
    ck_cu(cu->cuMemRelease(b->handle));
    ck_cu(cu->cuMemAddressFree(b->address, b->size));
}

void block_end(const block *b)
{
    block_unmap(b);
    block_free(b);
}

static void latest(void *user, const gvmm_sim_item *item)
{
    uint64_t *call = user;
    if (item->call > *call) *call = item->call;
}

uint64_t calls_made(void)
{
    CUgraph graph; /* needs no context */
    uint64_t call = 0;
    ck_cu(cu->cuGraphCreate(&graph, 0));
    gvmm_sim_census(NULL, latest, &call);
    ck_cu(cu->cuGraphDestroy(graph));
    return call + 1;
}

size_t alive(gvmm_sim_kind kind)
{
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    return counts[kind];
}

static void keep_text(void *user, const char *text) { snprintf(user, 512, "%s", text); }

void ck_finding(const char *format, ...)
{
    char found[512] = "", wanted[512];
    va_list args;
    va_start(args, format);
    vsnprintf(wanted, sizeof wanted, format, args);
    va_end(args);
    size_t count = gvmm_sim_findings(keep_text, found);
    gvmm_sim_findings_clear();
    ck_assert_str_eq(found, wanted);
    ck_assert_uint_eq(count, 1);
}

int child_run(const char *role, char *text, size_t size)
{
    int ends[2], status;
    pid_t child;
    char *arguments[] = {"child", (char *)(uintptr_t)role, NULL};
    posix_spawn_file_actions_t actions;
    ck_assert_int_eq(pipe(ends), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    ck_assert_int_eq(posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    size_t length = 0;
    char bytes[512];
    for (ssize_t n; (n = read(ends[0], bytes, sizeof bytes)) > 0;) {
        size_t kept = (size_t)n < size - 1 - length ? (size_t)n : size - 1 - length;
        memcpy(text + length, bytes, kept);
        length += kept;
    }
    text[length] = 0;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

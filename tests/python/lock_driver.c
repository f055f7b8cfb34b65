/* A driver for the tests of the Python package: another one (LOCK_DRIVER_BELOW names it) that notes which of its functions are
 * called by a thread that has the interpreter lock. Whoever keeps that lock while a driver waits stops the whole program, for good
 * if the driver waits for another thread of it. It can also make memory take as long as is wanted. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gvmm/driver.h"

#define EXPORT __attribute__((visibility("default")))

static gvmm_driver below;
static int (*has_lock)(void); /* PyGILState_Check */
static atomic_bool noted[GVMM_CALL_COUNT], called[GVMM_CALL_COUNT];
static const char *const names[] = {
#define GVMM_X(need, role, name, symbol, version, params, args) #name,
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
};

static atomic_bool shut, waiting; /* the door of cuMemCreate; who is before it */

/* Ten seconds at most: then nobody is there to open. */
static void wait_for_door(void)
{
    atomic_store(&waiting, true);
    for (int i = 0; i < 10000 && atomic_load(&shut); i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_store(&waiting, false);
}

static void note(gvmm_driver_call call)
{
    atomic_store(&called[call], true);
    if (has_lock && has_lock()) atomic_store(&noted[call], true);
    if (call == GVMM_CALL_cuMemCreate && atomic_load(&shut)) wait_for_door();
}

#define GVMM_X(need, role, name, symbol, version, params, args) \
    static CUresult noting_##name params \
    { \
        note(GVMM_CALL_##name); \
        return below.name args; \
    }
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X

__attribute__((constructor)) static void find_below(void)
{
    const char *path = getenv("LOCK_DRIVER_BELOW");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    *(void **)&has_lock = dlsym(RTLD_DEFAULT, "PyGILState_Check");
#define GVMM_X(need, role, name, symbol, version, params, args) \
    if (library) *(void **)&below.name = dlsym(library, #symbol);
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *found)
{
    (void)version, (void)flags;
    *fn = NULL;
#define GVMM_X(need, role, call, symbol, version_, params, args) \
    if (below.call && strcmp(name, #call) == 0) *(CUresult(**) params)fn = noting_##call;
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
    if (found) *found = *fn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* The names of the functions that were called at all, or with the lock, in words; false where they do not fit. */
EXPORT bool lock_driver_calls(char *out, size_t size, bool with_lock)
{
    *out = '\0';
    for (int call = 0; call < GVMM_CALL_COUNT; call++) {
        if (!atomic_load(with_lock ? &noted[call] : &called[call])) continue;
        if (strlen(out) + strlen(names[call]) + 2 > size) return false;
        strcat(strcat(out, names[call]), " ");
    }
    return true;
}

EXPORT void lock_driver_shut(bool yes) { atomic_store(&shut, yes); }
EXPORT bool lock_driver_is_waiting(void) { return atomic_load(&waiting); }

/* Finds the driver and fills the table. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gvmm/sim.h"
#include "internal.h"

#define SYSTEM_DRIVER "libcuda.so.1"

const gvmm_driver *gvmm__driver;
atomic_ullong gvmm__driver_calls;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and the search itself */
static const gvmm_driver *installed;
static gvmm_driver loaded;

typedef CUresult (*get_proc_address_fn)(const char *name, void **fn, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *found);

static const struct {
    const char *name;
    bool required;
    int version;
} calls[GVMM_CALL_COUNT] = {
#define REQUIRED true
#define OPTIONAL false
#define GVMM_X(need, role, name, symbol, version, params, args) {#name, need, version},
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
#undef REQUIRED
#undef OPTIONAL
};

const char *gvmm_driver_call_name(gvmm_driver_call call)
{
    return (unsigned)call < GVMM_CALL_COUNT ? calls[call].name : "?";
}

const char *gvmm_driver_status_name(int status)
{
    switch (status) {
#define GVMM_X(name, value) \
    case value: return "CUDA_" #name;
        GVMM_CUDA_STATUSES(GVMM_X)
#undef GVMM_X
    }
    return "CUDA_ERROR_?";
}

/* A missing optional function is a missing capability: it answers so. */
#define GVMM_X(need, role, name, symbol, version, params, args) \
    static CUresult missing_##name params { return CUDA_ERROR_NOT_SUPPORTED; }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
GVMM_DRIVER_CALLS(GVMM_X)
#pragma GCC diagnostic pop
#undef GVMM_X

static const gvmm_driver all_missing = {.origin = "none",
#define GVMM_X(need, role, name, symbol, version, params, args) .name = missing_##name,
                                        GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
};

/* A library that the program has loaded already is the one it uses: take that before searching. */
static void *open_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return library ? library : dlopen(path, RTLD_NOW);
}

static void *find(get_proc_address_fn get, gvmm_driver_call call)
{
    void *fn = NULL;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult status = get(calls[call].name, &fn, calls[call].version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    return status == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS ? fn : NULL;
}

gvmm_result gvmm_driver_load(gvmm_driver *out, const char *path)
{
    if (!out || !path) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "path" : "out");
    void *library = open_library(path);
    if (!library) return gvmm__fail(GVMM_E_NO_DRIVER, "cannot load %s: %s", path, dlerror());

    get_proc_address_fn get;
    *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
    if (!get) {
        dlclose(library);
        return gvmm__fail(GVMM_E_NO_DRIVER, "%s has no cuGetProcAddress_v2: no CUDA driver, or older than 12.0", path);
    }
    gvmm_driver table = all_missing;
    table.origin = path;
    void *fn;
#define GVMM_X(need, role, name, symbol, version, params, args) \
    if ((fn = find(get, GVMM_CALL_##name))) *(void **)&table.name = fn;
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
#define REQUIRED true
#define OPTIONAL false
#define GVMM_X(need, role, name, symbol, version, params, args) \
    if (need && table.name == all_missing.name) { \
        dlclose(library); \
        return gvmm__fail(GVMM_E_NO_DRIVER, "%s lacks %s", path, #name); \
    }
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
#undef REQUIRED
#undef OPTIONAL
    *out = table;
    return GVMM_OK;
}

/* GVMM_DRIVER, else the system's driver. */
static gvmm_result choose(const gvmm_driver **out)
{
    static char path[1024]; /* lives as long as the table that names it */
    const char *name = getenv("GVMM_DRIVER");
    if (name && strcmp(name, "sim") == 0) {
        *out = gvmm_sim_driver();
        return GVMM_OK;
    }
    snprintf(path, sizeof path, "%s", name && *name ? name : SYSTEM_DRIVER);
    gvmm_result r = gvmm_driver_load(&loaded, path);
    if (r) {
        return gvmm__about(r, "driver",
                           name && *name ? "GVMM_DRIVER names it"
                                         : "GVMM_DRIVER is not set (\"sim\" is the simulated driver, or a path)");
    }
    *out = &loaded;
    return GVMM_OK;
}

/* What the environment puts around the table. */
static gvmm_result wrap(const gvmm_driver **driver)
{
    const char *faults = getenv("GVMM_FAULTS");
    if (faults && *faults) {
        gvmm_result r = gvmm_faults_set_text(faults);
        if (r) return gvmm__about(r, "driver", "from GVMM_FAULTS");
        *driver = gvmm_faults_over(*driver);
    }
    const char *trace = getenv("GVMM_TRACE");
    if (trace && *trace && strcmp(trace, "0") != 0) *driver = gvmm_trace_over(*driver, NULL, NULL);
    return GVMM_OK;
}

static gvmm_result start(void)
{
    const gvmm_driver *driver = installed;
    gvmm_result r = driver ? GVMM_OK : choose(&driver);
    if (!r && !installed) r = wrap(&driver);
    if (r) return r;
    CUresult status = driver->cuInit(0);
    if (status != CUDA_SUCCESS) {
        gvmm__fail_driver(GVMM_CALL_cuInit, status);
        return gvmm__about(GVMM_E_NO_DRIVER, "driver", "%s would not start", driver->origin);
    }
    if (!gvmm__watch_forks()) return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "out of host memory: cannot watch forks");
    gvmm__driver = driver;
    return GVMM_OK;
}

gvmm_result gvmm_driver_get(const gvmm_driver **out)
{
    if (!out) return gvmm__fail(GVMM_E_INVALID, "out is NULL");
    if (gvmm__in_child()) return gvmm__fail_in_child();
    pthread_mutex_lock(&lock);
    gvmm_result r = gvmm__driver ? GVMM_OK : start();
    if (!r) *out = gvmm__driver;
    pthread_mutex_unlock(&lock);
    return r;
}

gvmm_result gvmm_driver_install(const gvmm_driver *driver)
{
    if (gvmm__in_child()) return gvmm__fail_in_child();
    if (gvmm__held()) return gvmm__fail(GVMM_E_INVALID, "the driver cannot be replaced while a resource is alive");
    pthread_mutex_lock(&lock);
    installed = driver;
    gvmm__driver = NULL;
    pthread_mutex_unlock(&lock);
    return GVMM_OK;
}

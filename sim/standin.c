/* The stand-in libcuda.so.1: the simulated driver under the official names. Programs that never heard of gvmm run on it with
 * LD_LIBRARY_PATH. It shows the driver's names and no others (cmake/standin.map), and allocates nothing before cuInit. */
#include "standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin_missing.h"

/* ---------------------------------------------------------------------------------------------
 * The table behind the names
 * ------------------------------------------------------------------------------------------- */

static _Atomic(const gvmm_driver *) wrapped; /* NULL before the first cuInit */

const gvmm_driver *standin(void)
{
    const gvmm_driver *driver = atomic_load_explicit(&wrapped, memory_order_acquire);
    return driver ? driver : gvmm_sim_driver();
}

/* Puts around the table what the environment asks for, once. Unlike in libgvmm a plan that cannot be read has nobody to go to
 * but standard error. */
static CUresult wrap(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&wrapped)) {
        const gvmm_driver *driver = gvmm_sim_driver();
        const char *faults = getenv("GVMM_FAULTS");
        const char *trace = getenv("GVMM_TRACE");
        if (faults && *faults) {
            if (gvmm_faults_set_text(faults)) {
                gvmm_error error;
                gvmm_last_error(&error);
                dprintf(STDERR_FILENO, "gvmm stand-in driver: GVMM_FAULTS: %s\n", error.text);
                result = CUDA_ERROR_INVALID_VALUE;
            }
            driver = gvmm_faults_over(driver);
        }
        if (trace && *trace && strcmp(trace, "0") != 0) driver = gvmm_trace_over(driver, NULL, NULL);
        if (result == CUDA_SUCCESS) atomic_store_explicit(&wrapped, driver, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult standin_missing(const char *symbol, atomic_flag *told)
{
    if (!atomic_flag_test_and_set(told))
        dprintf(STDERR_FILENO, "gvmm stand-in driver: %s is not simulated and answers CUDA_ERROR_NOT_SUPPORTED\n",
                symbol);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---------------------------------------------------------------------------------------------
 * The list, exported. A macro whose name ends in a call's chooses what its function does: CHOOSE takes the second of its
 * arguments, and a mark that is defined brings one along.
 * ------------------------------------------------------------------------------------------- */

#define CHOOSE_(first, second, ...) second
#define CHOOSE(...) CHOOSE_(__VA_ARGS__)

#define KIND_cuInit , START
#define KIND_cuModuleLoadData , REFUSE
#define KIND_cuModuleUnload , REFUSE
#define KIND_cuModuleGetFunction , REFUSE
#define KIND_cuLaunchKernel , REFUSE

#define FORWARD(name, args) return standin()->name args;
#define START(name, args) \
    CUresult refused_ = wrap(); \
    return refused_ ? refused_ : standin()->name args;
#define REFUSE(name, args) \
    static atomic_flag told_ = ATOMIC_FLAG_INIT; \
    standin_missing(#name, &told_); \
    return standin()->name args;

#define GVMM_X(need, role, name, symbol, version, params, args) \
    EXPORT CUresult symbol params { CHOOSE(KIND_##name, FORWARD, )(name, args) }
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X

/* Their twins for programs built with a default stream for each thread: stream 0 is that one. */

#define TWIN_cuEventRecord , PTSZ
#define TWIN_cuGraphLaunch , PTSZ
#define TWIN_cuLaunchHostFunc , PTSZ
#define TWIN_cuLaunchKernel , PTSZ
#define TWIN_cuMemAllocAsync , PTSZ
#define TWIN_cuMemAllocFromPoolAsync , PTSZ
#define TWIN_cuMemFreeAsync , PTSZ
#define TWIN_cuMemcpyAsync , PTSZ
#define TWIN_cuMemcpyDtoDAsync , PTSZ
#define TWIN_cuMemcpyDtoHAsync , PTSZ
#define TWIN_cuMemcpyHtoDAsync , PTSZ
#define TWIN_cuMemcpyPeerAsync , PTSZ
#define TWIN_cuMemsetD8Async , PTSZ
#define TWIN_cuMemsetD16Async , PTSZ
#define TWIN_cuMemsetD32Async , PTSZ
#define TWIN_cuStreamAddCallback , PTSZ
#define TWIN_cuStreamBeginCapture , PTSZ
#define TWIN_cuStreamEndCapture , PTSZ
#define TWIN_cuStreamGetCaptureInfo , PTSZ
#define TWIN_cuStreamGetCtx , PTSZ
#define TWIN_cuStreamGetFlags , PTSZ
#define TWIN_cuStreamGetId , PTSZ
#define TWIN_cuStreamGetPriority , PTSZ
#define TWIN_cuStreamIsCapturing , PTSZ
#define TWIN_cuStreamQuery , PTSZ
#define TWIN_cuStreamSynchronize , PTSZ
#define TWIN_cuStreamUpdateCaptureDependencies , PTSZ
#define TWIN_cuStreamWaitEvent , PTSZ

#define NO_TWIN(name, symbol, version, params, args)
#define PTSZ(name, symbol, version, params, args) \
    EXPORT CUresult symbol##_ptsz params \
    { \
        if (!stream) stream = CU_STREAM_PER_THREAD; \
        return symbol args; \
    }
#define GVMM_X(need, role, name, symbol, version, params, args) \
    CHOOSE(TWIN_##name, NO_TWIN, )(name, symbol, version, params, args)
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
#undef PTSZ

/* What is not simulated. On the machines that gvmm knows a function may leave its arguments unread. */
#define X(name, symbol, version, per_thread) \
    EXPORT CUresult symbol(void) \
    { \
        static atomic_flag told = ATOMIC_FLAG_INIT; \
        return standin_missing(#symbol, &told); \
    }
STANDIN_MISSING(X)
#undef X

/* ---------------------------------------------------------------------------------------------
 * cuGetProcAddress. The rules are an H200's: tests/standin/procaddress.c
 * ------------------------------------------------------------------------------------------- */

enum { ANY_STREAM = 0, LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 }; /* CU_GET_PROC_ADDRESS_... */

EXPORT CUresult cuGetProcAddress(const char *name, void **fn, int version, cuuint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *found);
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id);

#define AT_LEAST_7000(version) ((version) < 7000 ? 7000 : (version)) /* the version that brought the twins */

static const standin_entry entries[] = {
#define GVMM_X(need, role, name, symbol, version, params, args) STANDIN_ENTRY(name, symbol, version, false)
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
#define PTSZ(name, symbol, version, params, args) STANDIN_ENTRY(name, symbol##_ptsz, AT_LEAST_7000(version), true)
#define GVMM_X(need, role, name, symbol, version, params, args) \
    CHOOSE(TWIN_##name, NO_TWIN, )(name, symbol, version, params, args)
        GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
#undef PTSZ
#define X(name, symbol, version, per_thread) STANDIN_ENTRY(name, symbol, version, per_thread)
            STANDIN_MISSING(X)
#undef X
                STANDIN_ENTRY(cuGetProcAddress, cuGetProcAddress, 11030, false)
                    STANDIN_ENTRY(cuGetProcAddress, cuGetProcAddress_v2, 12000, false)
                        STANDIN_ENTRY(cuGetExportTable, cuGetExportTable, 3000, false)};

/* The best function of one name so far: the newest that `version` may have, among the twins or among the others. */
typedef struct search {
    const char *name;
    int version;
    bool known[2]; /* by per_thread: there is such a function, of whatever version */
    const standin_entry *best[2];
} search;

static void look(search *s, const standin_entry *list, size_t count)
{
    for (const standin_entry *e = list; e < list + count; e++) {
        if (strcmp(e->name, s->name) != 0) continue;
        const standin_entry **best = &s->best[e->per_thread];
        s->known[e->per_thread] = true;
        if (e->version <= s->version && (!*best || e->version > (*best)->version)) *best = e;
    }
}

/* A name that has twins means them alone when they are asked for, even where only an older other fits the version. */
CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *found)
{
    int newest = 0;
    gvmm_sim_driver()->cuDriverGetVersion(&newest);
    if (!name || !fn || version > newest || flags > (LEGACY_STREAM | PER_THREAD_STREAM))
        return CUDA_ERROR_INVALID_VALUE;

    search s = {.name = name, .version = version};
    look(&s, entries, sizeof entries / sizeof *entries);
    look(&s, standin_spellings, standin_spelling_count);
    bool twins = (flags & PER_THREAD_STREAM) && s.known[true];
    *fn = s.best[twins] ? s.best[twins]->fn : NULL;
    if (found)
        *found = *fn                        ? CU_GET_PROC_ADDRESS_SUCCESS
                 : s.known[0] || s.known[1] ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **fn, int version, cuuint64_t flags)
{
    void *answer = NULL;
    CUresult result = cuGetProcAddress_v2(name, fn ? &answer : NULL, version, flags, NULL);
    if (result != CUDA_SUCCESS) return result;
    if (!answer) return CUDA_ERROR_NOT_FOUND;
    *fn = answer;
    return CUDA_SUCCESS;
}

/* The tables behind the driver's back, which the CUDA runtime cannot do without. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)table, (void)id;
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        dprintf(
            STDERR_FILENO,
            "gvmm stand-in driver: cuGetExportTable knows no table: the CUDA runtime (libcudart) does not run on it\n");
    return CUDA_ERROR_INVALID_VALUE;
}

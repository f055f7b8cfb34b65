/* Driver calls and host allocations that fail at random, in whatever thread makes them, gvmm's own too; and each thread
 * knows how many of its own have failed. What gvmm has of the host and of the driver is counted on the way. */
#include "soak.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

static const gvmm_driver *inner;
static atomic_uint one_in;
static atomic_int only, status;
static atomic_ullong injected, threads;
static atomic_llong alive[OWNED];
static uint64_t first_seed;
static _Thread_local unsigned long long mine;
static _Thread_local uint64_t state;
static _Thread_local bool masked, retaining, of_soak;

/* Calls that tell gvmm how far the work is, or that it waits with. What fails there is not waited for and given up all
 * the same, with a warning: so it is documented, and work that ran into it would be no fault of gvmm's. */
static bool is_harmful(int call)
{
    switch (call) {
    case GVMM_CALL_cuEventQuery:
    case GVMM_CALL_cuEventSynchronize:
    case GVMM_CALL_cuThreadExchangeStreamCaptureMode:
    case GVMM_CALL_cuStreamIsCapturing:
    case GVMM_CALL_cuCtxPushCurrent:
    case GVMM_CALL_cuCtxGetCurrent:
    case GVMM_CALL_cuCtxSetCurrent: return true;
    /* With these a capture is made to hold what is released into it, which nothing else can. Asked for by
     * gvmm_buffer_retain_in_capture, they may fail. */
    case GVMM_CALL_cuStreamGetCaptureInfo:
    case GVMM_CALL_cuUserObjectCreate:
    case GVMM_CALL_cuGraphRetainUserObject: return !retaining;
    default: return false;
    }
}

bool faults_can_fail(int call) { return !is_harmful(call); }

static uint64_t roll(void)
{
    if (!state) state = (first_seed + 0x9e3779b97f4a7c15u * (atomic_fetch_add(&threads, 1) + 1)) | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 16;
}

/* gvmm's own thread asks events: streams are for their owners, who may be capturing (docs/capture.md). */
static void is_allowed(int call)
{
    switch (call) {
    case GVMM_CALL_cuEventRecord:
    case GVMM_CALL_cuStreamGetCaptureInfo:
    case GVMM_CALL_cuStreamGetCtx:
    case GVMM_CALL_cuStreamGetId:
    case GVMM_CALL_cuStreamIsCapturing:
    case GVMM_CALL_cuStreamQuery:
    case GVMM_CALL_cuStreamSynchronize:
    case GVMM_CALL_cuStreamWaitEvent:
        if (!of_soak) wrong("a thread of gvmm calls %s", gvmm_driver_call_name((gvmm_driver_call)call));
    }
}

static CUresult next(int call)
{
    is_allowed(call);
    unsigned n = atomic_load_explicit(&one_in, memory_order_relaxed);
    int which = atomic_load_explicit(&only, memory_order_relaxed);
    if (!n || masked || is_harmful(call) || (which != FAULT_ANY && which != call) || roll() % n) return CUDA_SUCCESS;
    mine++;
    atomic_fetch_add(&injected, 1);
    return (CUresult)atomic_load(&status);
}

/* +1, -1: the call makes or gives back one of `what`. */
static int change(int call, owned *what)
{
    switch (call) {
#define COUNT(kind, make, unmake) \
    case GVMM_CALL_##make: *what = OWNED_##kind; return 1; \
    case GVMM_CALL_##unmake: *what = OWNED_##kind; return -1;
        COUNT(MEMORY, cuMemCreate, cuMemRelease)
        COUNT(RESERVATION, cuMemAddressReserve, cuMemAddressFree)
        COUNT(EVENT, cuEventCreate, cuEventDestroy)
        COUNT(STREAM, cuStreamCreate, cuStreamDestroy)
        COUNT(CONTEXT, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease)
#undef COUNT
    case GVMM_CALL_cuMemImportFromShareableHandle: *what = OWNED_MEMORY; return 1;
    default: return 0;
    }
}

static void made_or_given_back(int call)
{
    owned what;
    int by = change(call, &what);
    if (by) atomic_fetch_add(&alive[what], by);
}

#define DO false
#define UNDO true
#define X(need, role, name, symbol, version, params, args) \
    static CUresult failing_##name params \
    { \
        CUresult fault_ = next(GVMM_CALL_##name); \
        if (fault_ != CUDA_SUCCESS && !role) return fault_; \
        CUresult answer_ = inner->name args; \
        if (answer_ == CUDA_SUCCESS) made_or_given_back(GVMM_CALL_##name); \
        return answer_ == CUDA_SUCCESS ? fault_ : answer_; \
    }
GVMM_DRIVER_CALLS(X)
#undef X
#undef DO
#undef UNDO

static void *allocate(size_t size)
{
    void *ptr = next(FAULT_MALLOC) ? NULL : malloc(size);
    if (ptr) atomic_fetch_add(&alive[OWNED_BYTES], (long long)malloc_usable_size(ptr));
    return ptr;
}

static void deallocate(void *ptr)
{
    if (ptr) atomic_fetch_sub(&alive[OWNED_BYTES], (long long)malloc_usable_size(ptr));
    free(ptr);
}

const gvmm_driver *faults_over(const gvmm_driver *over, uint64_t seed)
{
    static const gvmm_host_allocator counting = {allocate, deallocate};
    static gvmm_driver table = {
#define X(need, role, name, symbol, version, params, args) .name = failing_##name,
        GVMM_DRIVER_CALLS(X)
#undef X
    };
    inner = over;
    first_seed = seed;
    table.origin = over->origin;
    if (gvmm_host_allocator_install(&counting)) return NULL;
    return &table;
}

void faults_plan(const fault_plan *plan)
{
    atomic_store(&only, plan->call);
    atomic_store(&status, (int)plan->status);
    atomic_store(&one_in, plan->one_in);
}

void faults_thread_is_soaks(void) { of_soak = true; }
unsigned long long faults_of_thread(void) { return mine; }
unsigned long long faults_of_all(void) { return atomic_load(&injected); }
void faults_mask(bool on) { masked = on; }
void faults_allow_retain(bool allowed) { retaining = allowed; }

/* They have no name any more, and the system tells the one that they had. */
static long long open_files(void)
{
    long long count = 0;
    DIR *all = opendir("/proc/self/fd");
    must(all != NULL);
    for (const struct dirent *one; (one = readdir(all));) {
        char name[sizeof P_tmpdir "/gvmm-"] = "";
        bool known = readlinkat(dirfd(all), one->d_name, name, sizeof name - 1) > 0;
        count += known && strcmp(name, P_tmpdir "/gvmm-") == 0;
    }
    closedir(all);
    return count;
}

long long gvmm_owns(owned what) { return what == OWNED_FILE ? open_files() : atomic_load(&alive[what]); }

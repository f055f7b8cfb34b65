/* The kit's answers, undoing and memory, and running one fact. */
#include "conformance.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gvmm/sim.h"

const gvmm_driver *drv;
bool simulated;
int device_count;
size_t G;
CUcontext ctx;
CUmemAllocationProp on_device;
CUmemAccessDesc read_write;

/* ---- the answer ---- */

static char answer[1024];
static size_t answer_length;
static jmp_buf leave;
static pthread_t main_thread;
static bool left_in_thread;

void say(const char *format, ...)
{
    if (answer_length && answer_length < sizeof answer - 1) answer[answer_length++] = ' ';
    va_list args;
    va_start(args, format);
    int n = vsnprintf(answer + answer_length, sizeof answer - answer_length, format, args);
    va_end(args);
    answer_length += n > 0 ? (size_t)n : 0;
    if (answer_length > sizeof answer - 1) answer_length = sizeof answer - 1;
    answer[answer_length] = 0;
}

static const char *status_text(CUresult status)
{
    static _Thread_local char number[32];
    const char *name = gvmm_driver_status_name((int)status);
    if (strchr(name, '?')) {
        snprintf(number, sizeof number, "STATUS_%d", (int)status);
        return number;
    }
    if (!strncmp(name, "CUDA_ERROR_", 11)) return name + 11;
    return strncmp(name, "CUDA_", 5) ? name : name + 5;
}

void tell(const char *label, CUresult status) { say("%s%s%s", label, *label ? "=" : "", status_text(status)); }

static void leave_fact(void)
{
    if (pthread_equal(pthread_self(), main_thread)) longjmp(leave, 1);
    left_in_thread = true;
    pthread_exit(NULL);
}

void setup(CUresult status, const char *call, const char *file, int line)
{
    if (!status) return;
    const char *base = strrchr(file, '/');
    say("SETUP %.*s %s %s:%d", (int)strcspn(call, "("), call, status_text(status), base ? base + 1 : file, line);
    leave_fact();
}

void must(bool condition, const char *what)
{
    if (condition) return;
    say("SETUP %s", what);
    leave_fact();
}

void skip(const char *reason)
{
    answer_length = 0;
    say("SKIP %s", reason);
    leave_fact();
}

void needs_two_devices(void)
{
    if (device_count < 2) skip("needs two GPUs");
}

/* ---- undoing ---- */

static struct {
    undo_fn fn;
    uint64_t object;
    size_t size;
} undos[512];
static size_t undo_count;

void undo_later(undo_fn fn, uint64_t object, size_t size)
{
    must(undo_count < sizeof undos / sizeof *undos, "too much to undo");
    undos[undo_count].fn = fn;
    undos[undo_count].object = object;
    undos[undo_count++].size = size;
}

void forget(uint64_t object)
{
    for (size_t i = undo_count; i-- > 0;) {
        if (undos[i].object != object) continue;
        memmove(undos + i, undos + i + 1, (--undo_count - i) * sizeof *undos);
        return;
    }
}

static void undo_address(uint64_t p, size_t size) { drv->cuMemAddressFree(p, size); }
static void undo_handle(uint64_t h, size_t size)
{
    (void)size;
    drv->cuMemRelease(h);
}
static void undo_map(uint64_t p, size_t size) { drv->cuMemUnmap(p, size); }
static void undo_alloc(uint64_t p, size_t size)
{
    (void)size;
    drv->cuMemFree(p);
}
static void undo_alloc_async(uint64_t p, size_t size)
{
    (void)size;
    drv->cuMemFreeAsync(p, CU_STREAM_LEGACY);
}
static void undo_alloc_host(uint64_t p, size_t size)
{
    (void)size;
    drv->cuMemFreeHost((void *)(uintptr_t)p);
}
static void undo_register(uint64_t p, size_t size)
{
    (void)size;
    drv->cuMemHostUnregister((void *)(uintptr_t)p);
}
void undo_fd(uint64_t fd, size_t size)
{
    (void)size;
    close((int)fd);
}

/* ---- memory ---- */

CUresult try_reserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    CUresult r = drv->cuMemAddressReserve(p, size, alignment, hint, flags);
    if (!r) undo_later(undo_address, *p, size);
    return r;
}

CUresult try_create(handle *h, size_t size, CUmemAllocationProp prop, unsigned long long flags)
{
    CUresult r = drv->cuMemCreate(h, size, &prop, flags);
    if (!r) undo_later(undo_handle, *h, 0);
    return r;
}

CUresult try_map(CUdeviceptr p, size_t size, size_t offset, handle h, unsigned long long flags)
{
    CUresult r = drv->cuMemMap(p, size, offset, h, flags);
    if (!r) undo_later(undo_map, p, size);
    return r;
}

CUresult try_import(handle *h, int fd)
{
    CUresult r = drv->cuMemImportFromShareableHandle(h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (!r) undo_later(undo_handle, *h, 0);
    return r;
}

CUresult try_alloc(CUdeviceptr *p, size_t size)
{
    CUresult r = drv->cuMemAlloc(p, size);
    if (!r) undo_later(undo_alloc, *p, 0);
    return r;
}

CUresult try_alloc_async(CUdeviceptr *p, size_t size, CUstream s)
{
    CUresult r = drv->cuMemAllocAsync(p, size, s);
    if (!r) undo_later(undo_alloc_async, *p, 0);
    return r;
}

CUresult try_alloc_host(void **p, size_t size)
{
    CUresult r = drv->cuMemAllocHost(p, size);
    if (!r) undo_later(undo_alloc_host, ID(*p), 0);
    return r;
}

CUresult try_register(void *p, size_t size)
{
    CUresult r = drv->cuMemHostRegister(p, size, 0);
    if (!r) undo_later(undo_register, ID(p), 0);
    return r;
}

#define SETUP(name, result) setup(result, name, __FILE__, __LINE__)

CUdeviceptr reserve(size_t size)
{
    CUdeviceptr p = 0;
    SETUP("cuMemAddressReserve", try_reserve(&p, size, 0, 0, 0));
    return p;
}

CUdeviceptr reserve_pair(size_t first, size_t second)
{
    for (int i = 0; i < 16; i++) {
        CUdeviceptr p = reserve(first), q = 0;
        SETUP("cuMemAddressReserve", try_reserve(&q, second, 0, p + first, 0));
        if (q == p + first) return p;
    }
    must(false, "no adjacent reservations");
    return 0;
}

CUdeviceptr unreserved(void)
{
    CUdeviceptr p = 0;
    DO(cuMemAddressReserve(&p, 8 * G, 0, 0, 0));
    DO(cuMemAddressFree(p, 8 * G));
    return p;
}

handle create_on(int device, size_t size)
{
    CUmemAllocationProp prop = on_device;
    prop.location.id = device;
    handle h = 0;
    SETUP("cuMemCreate", try_create(&h, size, prop, 0));
    return h;
}

handle create(size_t size) { return create_on(0, size); }

handle create_exportable(size_t size)
{
    CUmemAllocationProp prop = on_device;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    handle h = 0;
    SETUP("cuMemCreate", try_create(&h, size, prop, 0));
    return h;
}

void map(CUdeviceptr p, size_t size, handle h) { SETUP("cuMemMap", try_map(p, size, 0, h, 0)); }

void give_access(CUdeviceptr p, size_t size, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = read_write;
    access.flags = flags;
    DO(cuMemSetAccess(p, size, &access, 1));
}

CUdeviceptr buffer(size_t size)
{
    CUdeviceptr p = reserve(size);
    handle h = create(size);
    map(p, size, h);
    give_access(p, size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    DO(cuMemRelease(GONE(h)));
    return p;
}

CUdeviceptr plain(size_t size)
{
    CUdeviceptr p = 0;
    SETUP("cuMemAlloc", try_alloc(&p, size));
    return p;
}

int byte_at(CUdeviceptr p)
{
    unsigned char byte = 0;
    DO(cuMemcpyDtoH(&byte, p, 1));
    return byte;
}

size_t free_bytes(void)
{
    size_t available = 0, total = 0;
    DO(cuMemGetInfo(&available, &total));
    return available;
}

int free_moved(size_t before, size_t size)
{
    long long moved = (long long)free_bytes() - (long long)before, half = (long long)size / 2;
    return (int)((moved + (moved < 0 ? -half : half)) / (long long)size);
}

int export_fd(handle h)
{
    int fd = -1;
    DO(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    undo_later(undo_fd, (uint64_t)fd, 0);
    return fd;
}

CUmemLocation location(CUmemLocationType type, int id)
{
    CUmemLocation l = {type, id};
    return l;
}

/* ---- running a fact ---- */

struct errand {
    void (*fn)(void *);
    void *arg;
};

static void *run_errand(void *arg)
{
    struct errand *errand = arg;
    DO(cuCtxSetCurrent(ctx));
    errand->fn(errand->arg);
    return NULL;
}

void in_thread(void (*fn)(void *), void *arg)
{
    struct errand errand = {fn, arg};
    pthread_t thread;
    must(!pthread_create(&thread, NULL, run_errand, &errand), "pthread_create");
    pthread_join(thread, NULL);
    if (left_in_thread) leave_fact();
}

static size_t census(size_t counts[GVMM_SIM_KIND_COUNT])
{
    size_t total = 0;
    gvmm_sim_census(counts, NULL, NULL);
    for (int k = 0; k < GVMM_SIM_KIND_COUNT; k++) total += counts[k];
    return total;
}

static size_t counts_before[GVMM_SIM_KIND_COUNT];
static size_t total_before;

bool kit_start(char *message, size_t size)
{
    main_thread = pthread_self();
    if (gvmm_driver_get(&drv)) {
        gvmm_error error;
        gvmm_last_error(&error);
        snprintf(message, size, "no driver: %s", error.text);
        return false;
    }
    char name[128] = "";
    drv->cuDeviceGetCount(&device_count);
    drv->cuDeviceGetName(name, sizeof name, 0);
    simulated = strstr(drv->origin, "simul") || strstr(name, "imulated");
    if (simulated && !getenv("CONFORMANCE_LOUD")) gvmm_sim_quiet(true); /* facts do what gives findings */

    on_device.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    on_device.location = location(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    read_write.location = on_device.location;
    read_write.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult r = drv->cuMemGetAllocationGranularity(&G, &on_device, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (!r) r = drv->cuDevicePrimaryCtxRetain(&ctx, 0);
    if (!r) r = drv->cuCtxSetCurrent(ctx);
    if (!r) r = drv->cuCtxSynchronize();
    snprintf(message, size, "%s %d devices, %s, %s%s", simulated ? "sim" : "gpu", device_count, drv->origin, name,
             r ? ", does not start" : "");
    return !r;
}

const char *fact_answer(const fact *f)
{
    answer_length = 0;
    answer[0] = 0;
    left_in_thread = false;
    if (simulated) total_before = census(counts_before);
    if (!setjmp(leave)) f->run();
    return answer_length ? answer : "nothing said";
}

bool fact_tidy(const fact *f)
{
    gates_open();
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    bool fine = contexts_wait(); /* before their work loses its memory */
    drv->cuCtxSetCurrent(ctx);
    drv->cuCtxSynchronize();
    while (undo_count > 0) {
        undo_count--;
        undos[undo_count].fn(undos[undo_count].object, undos[undo_count].size);
    }
    if (drv->cuCtxSynchronize() || !fine) return false;
    if (!simulated) return true;

    size_t counts[GVMM_SIM_KIND_COUNT]; /* driver threads may be about to drop the last things */
    for (int i = 0; i < 500 && census(counts) != total_before; i++) pause_ms(1);
    for (int k = 0; k < GVMM_SIM_KIND_COUNT; k++) {
        if (counts[k] == counts_before[k]) continue;
        fprintf(stderr, "%s: alive before and after: %zu and %zu of kind %s\n", f->id, counts_before[k], counts[k],
                gvmm_sim_kind_name((gvmm_sim_kind)k));
    }
    return true;
}

/* The driver table: a prologue around every call, then sim_<call>. Starting, configuring and resetting the simulated
 * machine; the names of errors; what a call costs. */
#include <ctype.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "exec.h"
#include "memory.h"

extern gvmm_result gvmm__fail(gvmm_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define DRIVER_VERSION 13000

gvmm_sim_config sim_config = GVMM_SIM_CONFIG_INIT;
_Thread_local bool sim_on_driver_thread;
_Thread_local uint64_t sim_call_number;
_Thread_local const char *sim_call_name;

static atomic_bool configured;  /* sim_config was set, by GVMM_SIM or gvmm_sim_reset */
static atomic_bool initialised; /* cuInit succeeded */
static atomic_bool forked;      /* this is a child of the process that called cuInit */
static atomic_uint_least64_t calls;
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------------------------------------
 * Configuration from text: "devices=2,memory=8G,granularity=64K"
 * ------------------------------------------------------------------------------------------- */

typedef enum { COUNT, BYTES, YES_NO } value_kind;

static const char *const kind_texts[] = {
    [COUNT] = "a number", [BYTES] = "a size such as 64K or 8G", [YES_NO] = "0 or 1"};

typedef struct field {
    const char *name;
    value_kind kind;
    size_t offset, width;
    uint64_t least, most;
} field;

#define FIELD(member, kind, least, most) \
    { \
#member, kind, offsetof(gvmm_sim_config, member), sizeof(((gvmm_sim_config *)0)->member), least, most \
    }

static const field fields[] = {
    FIELD(devices, COUNT, 1, SIM_MAX_DEVICES),
    FIELD(numa_nodes, COUNT, 1, 8),
    FIELD(memory, BYTES, 4096, (uint64_t)1 << 50),
    FIELD(address_space, BYTES, 4096, (uint64_t)1 << 47),
    FIELD(granularity, BYTES, 4096, (uint64_t)1 << 30),
    FIELD(descriptors, COUNT, 0, 1 << 20),
    FIELD(peers, YES_NO, 0, 1),
    FIELD(latency, YES_NO, 0, 1),
    FIELD(fabric, YES_NO, 0, 1),
};
#define FIELD_COUNT (sizeof fields / sizeof *fields)

static uint64_t get_field(const gvmm_sim_config *config, const field *f)
{
    const char *at = (const char *)config + f->offset;
    if (f->width == sizeof(uint64_t)) return *(const uint64_t *)(const void *)at;
    if (f->width == sizeof(bool)) return *(const bool *)(const void *)at;
    return *(const unsigned *)(const void *)at;
}

static void set_field(gvmm_sim_config *config, const field *f, uint64_t value)
{
    char *at = (char *)config + f->offset;
    if (f->width == sizeof(uint64_t)) *(uint64_t *)(void *)at = value;
    else if (f->width == sizeof(bool)) *(bool *)(void *)at = value;
    else *(unsigned *)(void *)at = (unsigned)value;
}

/* A number with an optional K, M, G or T. False: it is none, or too large. */
static bool parse_number(const char *text, uint64_t *out)
{
    if (!isdigit((unsigned char)*text)) return false;
    char *end;
    unsigned long long value = strtoull(text, &end, 0);
    static const char suffixes[] = "KMGT";
    const char *suffix = *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    unsigned shift = suffix ? 10 * (unsigned)(suffix - suffixes + 1) : 0;
    if (suffix) end++;
    if (*end || value > UINT64_MAX >> shift) return false;
    *out = (uint64_t)value << shift;
    return true;
}

typedef struct message {
    char text[200];
} message;

static bool check_range(const field *f, uint64_t value, message *why)
{
    if (value >= f->least && value <= f->most) return true;
    snprintf(why->text, sizeof why->text, "%s is %llu, not within %llu and %llu", f->name, (unsigned long long)value,
             (unsigned long long)f->least, (unsigned long long)f->most);
    return false;
}

/* False, and why, if a value is out of range. */
static bool check_config(const gvmm_sim_config *config, message *why)
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const field *f = &fields[i];
        if (!check_range(f, get_field(config, f), why)) return false;
    }
    if (config->granularity & (config->granularity - 1)) {
        snprintf(why->text, sizeof why->text, "granularity is %llu, not a power of two",
                 (unsigned long long)config->granularity);
        return false;
    }
    return true;
}

static bool parse_setting(gvmm_sim_config *config, char *setting, message *why)
{
    char *value = strchr(setting, '=');
    if (value) *value++ = 0;
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        if (strcmp(fields[i].name, setting) != 0) continue;
        uint64_t number;
        if (value && parse_number(value, &number)) {
            if (!check_range(&fields[i], number, why)) return false;
            set_field(config, &fields[i], number);
            return true;
        }
        snprintf(why->text, sizeof why->text, "%s is \"%.80s\", not %s", setting, value ? value : "",
                 kind_texts[fields[i].kind]);
        return false;
    }
    snprintf(why->text, sizeof why->text, "there is no setting %.80s", setting);
    return false;
}

/* Puts the settings of `text` (may be NULL) over `config`. */
static bool parse_config(gvmm_sim_config *config, const char *text, message *why)
{
    char copy[512];
    if (text && strlen(text) >= sizeof copy) {
        snprintf(why->text, sizeof why->text, "it is too long");
        return false;
    }
    strcpy(copy, text ? text : "");
    char *rest = copy;
    for (char *setting; (setting = strtok_r(rest, ", ", &rest));)
        if (!parse_setting(config, setting, why)) return false;
    return check_config(config, why);
}

/* The defaults, with GVMM_SIM over them. */
static bool config_from_environment(gvmm_sim_config *config, message *why)
{
    *config = (gvmm_sim_config)GVMM_SIM_CONFIG_INIT;
    message reason;
    if (parse_config(config, getenv("GVMM_SIM"), &reason)) return true;
    snprintf(why->text, sizeof why->text, "GVMM_SIM: %.180s", reason.text);
    return false;
}

/* ---------------------------------------------------------------------------------------------
 * Start, reset, end
 * ------------------------------------------------------------------------------------------- */

static void in_forked_child(void)
{
    sim_after_fork();
    if (atomic_load(&initialised)) atomic_store(&forked, true);
}

CUresult sim_cuInit(unsigned int flags)
{
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&start_lock);
    if (!atomic_load(&configured)) {
        message why;
        gvmm_sim_config config;
        if (config_from_environment(&config, &why)) {
            sim_config = config;
            atomic_store(&configured, true);
        } else {
            dprintf(STDERR_FILENO, "gvmm simulated driver: %s\n", why.text);
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (result == CUDA_SUCCESS && !atomic_load(&initialised)) {
        if (pthread_atfork(sim_before_fork, sim_after_fork, in_forked_child)) result = CUDA_ERROR_OUT_OF_MEMORY;
        else atomic_store(&initialised, true);
    }
    pthread_mutex_unlock(&start_lock);
    return result;
}

/* Nobody can give these back any more: memory that the driver refuses to free after an error stuck, and user objects of which
 * more references were given away than there were. A reset takes them. */
static bool is_stuck(const gvmm_sim_item *item, bool failed)
{
    if (item->kind == GVMM_SIM_USER_OBJECT) return !item->references;
    return failed && (item->kind == GVMM_SIM_PLAIN || item->kind == GVMM_SIM_POOLED || item->kind == GVMM_SIM_PINNED ||
                      item->kind == GVMM_SIM_REGISTERED);
}

typedef struct first_item {
    gvmm_sim_item item;
    bool failed;
} first_item;

static void remember_first(void *user, const gvmm_sim_item *item)
{
    first_item *first = user;
    if (!first->item.made_by && !is_stuck(item, first->failed)) first->item = *item;
}

gvmm_result gvmm_sim_reset(const gvmm_sim_config *config)
{
    gvmm_sim_config wanted = GVMM_SIM_CONFIG_INIT;
    message why;
    bool fine;
    if (config) {
        if (config->struct_size < sizeof config->struct_size || config->struct_size > sizeof wanted)
            return gvmm__fail(GVMM_E_INVALID, "gvmm_sim_reset: struct_size is %zu, not %zu", config->struct_size,
                              sizeof wanted);
        memcpy(&wanted, config, config->struct_size);
        wanted.struct_size = sizeof wanted;
        fine = check_config(&wanted, &why);
    } else {
        fine = config_from_environment(&wanted, &why);
    }
    if (!fine) return gvmm__fail(GVMM_E_INVALID, "gvmm_sim_reset: %s", why.text);

    first_item first = {.failed = sim_has_failed()};
    gvmm_sim_census(NULL, remember_first, &first);
    if (first.item.made_by)
        return gvmm__fail(GVMM_E_INVALID, "gvmm_sim_reset: a %s is alive: 0x%llx, made by %s (call %llu)",
                          gvmm_sim_kind_name(first.item.kind), (unsigned long long)first.item.address,
                          first.item.made_by, (unsigned long long)first.item.call);

    sim_execution_reset();
    sim_memory_reset();
    sim_config = wanted;
    atomic_store(&configured, true);
    atomic_store(&calls, 0);
    return GVMM_OK;
}

/* A destructor rather than atexit: it runs after every function that the program gave to atexit, and what those release
 * is no leak. Without one of the simulator's own threads having been stopped: they end with the process. */
__attribute__((destructor)) static void report_at_exit(void)
{
    const char *name = getenv("GVMM_SIM_REPORT");
    if (!name || !*name || !atomic_load(&initialised) || atomic_load(&forked)) return;
    if (strcmp(name, "-") == 0) {
        gvmm_sim_report(STDERR_FILENO, false);
        return;
    }
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        dprintf(STDERR_FILENO, "gvmm simulated driver: GVMM_SIM_REPORT: cannot write %s\n", name);
        return;
    }
    size_t length = strlen(name);
    gvmm_sim_report(fd, length >= 5 && strcmp(name + length - 5, ".json") == 0);
    close(fd);
}

/* ---------------------------------------------------------------------------------------------
 * Names of errors
 * ------------------------------------------------------------------------------------------- */

#define ERRORS(X) \
    X(CUDA_SUCCESS, "no error") \
    X(CUDA_ERROR_INVALID_VALUE, "an argument is out of its range") \
    X(CUDA_ERROR_OUT_OF_MEMORY, "not enough memory") \
    X(CUDA_ERROR_NOT_INITIALIZED, "the driver was not initialised in this process") \
    X(CUDA_ERROR_DEINITIALIZED, "the driver is shutting down") \
    X(CUDA_ERROR_STUB_LIBRARY, "the loaded driver is a stub") \
    X(CUDA_ERROR_NO_DEVICE, "there is no device") \
    X(CUDA_ERROR_INVALID_DEVICE, "there is no such device") \
    X(CUDA_ERROR_INVALID_IMAGE, "the kernel image is not valid") \
    X(CUDA_ERROR_INVALID_CONTEXT, "there is no valid current context") \
    X(CUDA_ERROR_ALREADY_MAPPED, "it is mapped already") \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "the two devices cannot access each other") \
    X(CUDA_ERROR_FILE_NOT_FOUND, "file not found") \
    X(CUDA_ERROR_OPERATING_SYSTEM, "an operating system call failed") \
    X(CUDA_ERROR_INVALID_HANDLE, "the handle is not valid") \
    X(CUDA_ERROR_ILLEGAL_STATE, "the object is not in the state that this needs") \
    X(CUDA_ERROR_NOT_FOUND, "not found") \
    X(CUDA_ERROR_NOT_READY, "the work is not done yet") \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "work on the device touched memory it may not") \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is enabled already") \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled") \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is in use") \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed") \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the host memory is registered already") \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the host memory is not registered") \
    X(CUDA_ERROR_NOT_PERMITTED, "not permitted here") \
    X(CUDA_ERROR_NOT_SUPPORTED, "not supported") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not allowed while a stream captures") \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was lost to an earlier error") \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "this would merge two captures") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture was not begun on this stream") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a forked stream was not joined to the capture again") \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "this would make the capture depend on work outside it") \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream would depend on a capturing stream") \
    X(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture") \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "another thread began the capture") \
    X(CUDA_ERROR_TIMEOUT, "it took too long") \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

CUresult sim_cuGetErrorName(CUresult error, const char **text)
{
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    switch (error) {
#define X(value, words) \
    case value: *text = #value; return CUDA_SUCCESS;
        ERRORS(X)
#undef X
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGetErrorString(CUresult error, const char **text)
{
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    switch (error) {
#define X(value, words) \
    case value: *text = words; return CUDA_SUCCESS;
        ERRORS(X)
#undef X
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuDriverGetVersion(int *version)
{
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * What an H200 takes for a call, by size
 * ------------------------------------------------------------------------------------------- */

static const double cost_mib[] = {2, 8, 32, 128, 512, 2048, 8192};
#define COST_POINTS (sizeof cost_mib / sizeof *cost_mib)

static const double cost_us[SIM_COST_COUNT][COST_POINTS] = {
    [SIM_COST_RESERVE] = {0.8, 1.2, 3.6, 3.7, 5.4, 8.4, 24.5},
    [SIM_COST_CREATE] = {12.0, 11.2, 12.0, 12.8, 20.7, 45.7, 165.4},
    [SIM_COST_MAP] = {1.1, 1.1, 1.3, 1.2, 1.8, 3.4, 8.7},
    [SIM_COST_ACCESS] = {26.2, 26.8, 54.6, 54.7, 75.5, 131.4, 416.2},
    [SIM_COST_UNMAP] = {16.9, 17.3, 25.6, 26.1, 32.4, 50.6, 129.3},
    [SIM_COST_RELEASE] = {12.1, 17.6, 43.1, 71.3, 248.3, 970.0, 5442.2},
    [SIM_COST_ADDRESS_FREE] = {0.7, 0.8, 3.7, 3.4, 5.3, 6.9, 20.7},
};

/* Straight lines between the measured sizes. Only reserving and freeing addresses was measured beyond the last: there it
 * costs the same at any size. */
uint64_t sim_cost_of(sim_cost what, uint64_t size)
{
    if (!sim_config.latency) return 0;
    const double *us = cost_us[what];
    double mib = (double)size / (1 << 20);
    bool flat = what == SIM_COST_RESERVE || what == SIM_COST_ADDRESS_FREE;
    if (mib <= cost_mib[0]) return (uint64_t)(us[0] * 1000);
    if (flat && mib >= cost_mib[COST_POINTS - 1]) return (uint64_t)(us[COST_POINTS - 1] * 1000);
    size_t i = 1;
    while (i + 1 < COST_POINTS && mib > cost_mib[i]) i++;
    double slope = (us[i] - us[i - 1]) / (cost_mib[i] - cost_mib[i - 1]);
    return (uint64_t)((us[i - 1] + slope * (mib - cost_mib[i - 1])) * 1000);
}

static uint64_t nanoseconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One call at a time: the real driver has one lock. Sleeping is too coarse for the last stretch. */
void sim_spend(uint64_t nanoseconds)
{
    if (!nanoseconds) return;
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    const uint64_t coarse = 200000;
    pthread_mutex_lock(&one_at_a_time);
    uint64_t until = nanoseconds_now() + nanoseconds;
    if (nanoseconds > coarse) {
        struct timespec rest = {(time_t)((nanoseconds - coarse) / 1000000000u),
                                (long)((nanoseconds - coarse) % 1000000000u)};
        nanosleep(&rest, NULL);
    }
    while (nanoseconds_now() < until) {}
    pthread_mutex_unlock(&one_at_a_time);
}

/* ---------------------------------------------------------------------------------------------
 * Kernels need a GPU
 * ------------------------------------------------------------------------------------------- */

CUresult sim_cuModuleLoadData(CUmodule *module, const void *image)
{
    (void)module, (void)image;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuModuleUnload(CUmodule module)
{
    (void)module;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)function, (void)module, (void)name;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                            unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                            CUstream stream, void **params, void **extra)
{
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)params, (void)extra;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---------------------------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------------------------- */

/* Answers in every state of the process and on every thread. */
static bool is_harmless(gvmm_driver_call call)
{
    return call == GVMM_CALL_cuDriverGetVersion || call == GVMM_CALL_cuGetErrorName ||
           call == GVMM_CALL_cuGetErrorString;
}

static CUresult enter(gvmm_driver_call call, const char *name)
{
    if (is_harmless(call)) return CUDA_SUCCESS;
    if (atomic_load_explicit(&forked, memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
    if (sim_on_driver_thread && call != GVMM_CALL_cuEventQuery)
        return CUDA_ERROR_NOT_PERMITTED; /* which refuses itself */
    if (call != GVMM_CALL_cuInit && !atomic_load_explicit(&initialised, memory_order_acquire))
        return CUDA_ERROR_NOT_INITIALIZED;
    sim_call_number = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
    sim_call_name = name;
    return CUDA_SUCCESS;
}

/* Pools give memory back when somebody waits. */
static bool is_wait(gvmm_driver_call call)
{
    return call == GVMM_CALL_cuStreamSynchronize || call == GVMM_CALL_cuEventSynchronize ||
           call == GVMM_CALL_cuCtxSynchronize;
}

#define GVMM_X(need, role, name, symbol, version, params, args) \
    static CUresult enter_##name params \
    { \
        CUresult result = enter(GVMM_CALL_##name, #name); \
        if (result) return result; \
        result = sim_##name args; \
        if (is_wait(GVMM_CALL_##name)) sim_pools_synchronised(); \
        return result; \
    }
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X

const gvmm_driver *gvmm_sim_driver(void)
{
    static const gvmm_driver table = {
        .origin = "simulated driver",
#define GVMM_X(need, role, name, symbol, version, params, args) .name = enter_##name,
        GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
    };
    return &table;
}

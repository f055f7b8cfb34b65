/* What failed, per thread, and warnings. Allocates nothing. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

static _Thread_local gvmm_error last;
static _Thread_local char last_text[sizeof((saved_error *)0)->text];

static pthread_mutex_t warning_lock = PTHREAD_MUTEX_INITIALIZER;
static gvmm_warning_fn warning_fn;
static void *warning_user;

const char *gvmm_version(void)
{
#define GVMM_TEXT_(x) #x
#define GVMM_TEXT(x) GVMM_TEXT_(x)
    return GVMM_TEXT(GVMM_VERSION_MAJOR) "." GVMM_TEXT(GVMM_VERSION_MINOR) "." GVMM_TEXT(GVMM_VERSION_PATCH);
}

const char *gvmm_result_name(gvmm_result result)
{
    switch (result) {
#define GVMM_X(name, value, text) \
    case GVMM_##name: return "GVMM_" #name;
        GVMM_RESULTS(GVMM_X)
#undef GVMM_X
    }
    return "GVMM_E_?";
}

const char *gvmm_result_text(gvmm_result result)
{
    switch (result) {
#define GVMM_X(name, value, text) \
    case GVMM_##name: return text;
        GVMM_RESULTS(GVMM_X)
#undef GVMM_X
    }
    return "not a result of gvmm";
}

void gvmm_last_error(gvmm_error *out)
{
    *out = last;
    out->text = last_text;
}

gvmm_result gvmm__fail(gvmm_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_text, sizeof last_text, format, args);
    va_end(args);
    last = (gvmm_error){.result = result};
    return result;
}

/* The same status means different things from different calls: what ran out is told by the call. */
static gvmm_result result_of(gvmm_driver_call call, CUresult status)
{
    switch (status) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return call == GVMM_CALL_cuMemAddressReserve ? GVMM_E_NO_ADDRESS_SPACE : GVMM_E_NO_DEVICE_MEMORY;
    case CUDA_ERROR_INVALID_DEVICE: return GVMM_E_INVALID;
    case CUDA_ERROR_NOT_SUPPORTED: return GVMM_E_UNSUPPORTED;
    case CUDA_ERROR_NOT_PERMITTED: return GVMM_E_NOT_PERMITTED;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY: return GVMM_E_NO_DRIVER;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: return GVMM_E_CAPTURING;
    default: return GVMM_E_DRIVER;
    }
}

gvmm_result gvmm__fail_driver(gvmm_driver_call call, CUresult status)
{
    gvmm__fail(result_of(call, status), "%s: %s", gvmm_driver_call_name(call), gvmm_driver_status_name(status));
    last.status = status;
    last.call = gvmm_driver_call_name(call);
    return last.result;
}

gvmm_result gvmm__about(gvmm_result result, const char *object, const char *format, ...)
{
    if (result == GVMM_OK) return GVMM_OK;
    size_t used = strlen(last_text);
    used += (size_t)snprintf(last_text + used, sizeof last_text - used, ", %s: ", object);
    if (used < sizeof last_text) {
        va_list args;
        va_start(args, format);
        vsnprintf(last_text + used, sizeof last_text - used, format, args);
        va_end(args);
    }
    last.result = result;
    last.object = object;
    return result;
}

void gvmm__error_save(saved_error *out)
{
    out->error = last;
    memcpy(out->text, last_text, sizeof last_text);
}

gvmm_result gvmm__error_restore(const saved_error *saved)
{
    last = saved->error;
    memcpy(last_text, saved->text, sizeof last_text);
    return last.result;
}

typedef struct saved_warning {
    gvmm_error error;
    char text[sizeof last_text + 64];
} saved_warning;

void gvmm_set_warning_handler(gvmm_warning_fn fn, void *user)
{
    pthread_mutex_lock(&warning_lock);
    warning_fn = fn;
    warning_user = user;
    pthread_mutex_unlock(&warning_lock);
}

void gvmm__warnings_in_child(void) { pthread_mutex_init(&warning_lock, NULL); }

/* Warnings of a thread that holds a lock; told when it has let go. What does not fit is counted. */
typedef struct held_back {
    unsigned depth, count, more;
    saved_warning list[8];
} held_back;
static _Thread_local held_back held;

void gvmm__warnings_hold(void) { held.depth++; }

static void hold_back(const gvmm_error *error)
{
    if (held.count == sizeof held.list / sizeof held.list[0]) {
        held.more++;
        return;
    }
    saved_warning *to = &held.list[held.count++];
    to->error = *error;
    snprintf(to->text, sizeof to->text, "%s", error->text);
}

static void tell(const gvmm_error *error)
{
    pthread_mutex_lock(&warning_lock);
    gvmm_warning_fn fn = warning_fn;
    void *user = warning_user;
    pthread_mutex_unlock(&warning_lock);
    if (fn) fn(user, error);
    else fprintf(stderr, "gvmm: warning: %s\n", error->text);
}

static void warn(const gvmm_error *error)
{
    if (held.depth) hold_back(error);
    else tell(error);
}

void gvmm__warnings_tell(void)
{
    if (--held.depth || !held.count) return;
    held_back all = held; /* the handler may call gvmm, and more may be held back meanwhile */
    held.count = held.more = 0;
    for (unsigned i = 0; i < all.count; i++) {
        all.list[i].error.text = all.list[i].text;
        tell(&all.list[i].error);
    }
    if (all.more) gvmm__warn(GVMM_E_DRIVER, "memory", 0, "%u more warnings of the same call are left out", all.more);
}

void gvmm__silent_lock(pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
    gvmm__warnings_hold();
}

void gvmm__silent_unlock(pthread_mutex_t *lock)
{
    pthread_mutex_unlock(lock);
    gvmm__warnings_tell();
}

void gvmm__warn(gvmm_result result, const char *object, uint64_t address, const char *format, ...)
{
    char text[sizeof last_text];
    int used = snprintf(text, sizeof text, "%s 0x%llx: ", object, (unsigned long long)address);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    va_end(args);
    warn(&(gvmm_error){.result = result, .object = object, .text = text});
}

void gvmm__warn_last(const char *object, uint64_t address)
{
    char text[sizeof last_text + 64];
    if (last.status == CUDA_ERROR_DEINITIALIZED) return;
    snprintf(text, sizeof text, "%s 0x%llx: %s", object, (unsigned long long)address, last_text);
    warn(&(gvmm_error){last.result, last.status, last.call, object, text});
}

void gvmm__warn_driver(gvmm_driver_call call, CUresult status, const char *object, uint64_t address)
{
    char text[sizeof last_text];
    snprintf(text, sizeof text, "%s 0x%llx: %s: %s", object, (unsigned long long)address, gvmm_driver_call_name(call),
             gvmm_driver_status_name(status));
    warn(&(gvmm_error){.result = result_of(call, status),
                       .status = status,
                       .call = gvmm_driver_call_name(call),
                       .object = object,
                       .text = text});
}

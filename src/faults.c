/* A table over any other that makes chosen calls fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { ANY_CALL = -1, HOST_ALLOCATION = GVMM_CALL_COUNT };

static const gvmm_driver *inner;

/* Read by all. A call that is made while it changes may see some of the old and some of the new. */
static struct {
    atomic_ullong nth;
    atomic_bool onwards;
    atomic_int call; /* ANY_CALL, HOST_ALLOCATION, or one of the list */
    _Atomic(CUresult) status;
} plan;

static atomic_ullong counted, injected;

/* Counts a call; the status to inject, or success. */
static CUresult next(int call)
{
    if (plan.call != ANY_CALL && plan.call != call) return CUDA_SUCCESS;
    uint64_t n = atomic_fetch_add(&counted, 1) + 1;
    if (plan.nth == 0 || (plan.onwards ? n < plan.nth : n != plan.nth)) return CUDA_SUCCESS;
    atomic_fetch_add(&injected, 1);
    return plan.status;
}

static bool next_host_allocation(void) { return next(HOST_ALLOCATION) != CUDA_SUCCESS; }

/* Locals end in _ : the list's parameters have all the good names. */
#define DO false
#define UNDO true
#define GVMM_X(need, role, name, symbol, version, params, args) \
    static CUresult faulty_##name params \
    { \
        CUresult fault_ = next(GVMM_CALL_##name); \
        if (fault_ != CUDA_SUCCESS && !role) return fault_; \
        CUresult answer_ = inner->name args; \
        return answer_ == CUDA_SUCCESS ? fault_ : answer_; \
    }
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
#undef DO
#undef UNDO

const gvmm_driver *gvmm_faults_over(const gvmm_driver *over)
{
    static gvmm_driver table = {
#define GVMM_X(need, role, name, symbol, version, params, args) .name = faulty_##name,
        GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
    };
    inner = over;
    table.origin = over->origin;
    gvmm__host_fault = next_host_allocation;
    return &table;
}

static int call_of(const char *name)
{
    if (strcmp(name, "malloc") == 0) return HOST_ALLOCATION;
    for (int call = 0; call < GVMM_CALL_COUNT; call++)
        if (strcmp(name, gvmm_driver_call_name((gvmm_driver_call)call)) == 0) return call;
    return ANY_CALL;
}

static void set(uint64_t nth, bool onwards, int call, int status)
{
    plan.nth = nth;
    plan.onwards = onwards;
    plan.call = call;
    plan.status = status ? (CUresult)status : CUDA_ERROR_OUT_OF_MEMORY;
    atomic_store(&counted, 0);
    atomic_store(&injected, 0);
}

gvmm_result gvmm_faults_set(const gvmm_fault *fault)
{
    int call = fault && fault->call ? call_of(fault->call) : ANY_CALL;
    if (fault && fault->call && call == ANY_CALL)
        return gvmm__fail(GVMM_E_INVALID, "fault plan: no call is named '%s'", fault->call);
    if (fault) set(fault->nth, fault->onwards, call, fault->status);
    else set(0, false, ANY_CALL, 0);
    return GVMM_OK;
}

static int status_of(const char *name)
{
#define GVMM_X(status, value) \
    if (value && strcmp(#status, name) == 0) return value; \
    if (value && strcmp(&#status[sizeof "ERROR_" - 1], name) == 0) return value;
    GVMM_CUDA_STATUSES(GVMM_X)
#undef GVMM_X
    return 0;
}

gvmm_result gvmm_faults_set_text(const char *text)
{
    if (!text) return gvmm_faults_set(NULL);
    char name[64];
    const char *number = strchr(text, ':');
    int call = ANY_CALL;
    if (number) {
        snprintf(name, sizeof name, "%.*s", (int)(number - text), text);
        call = call_of(name);
        if (call == ANY_CALL) return gvmm__fail(GVMM_E_INVALID, "fault plan '%s': no call is named '%s'", text, name);
    }
    number = number ? number + 1 : text;
    char *end;
    uint64_t nth = strtoull(number, &end, 10);
    bool onwards = *end == '+';
    if (onwards) end++;
    int status = *end == '=' ? status_of(end + 1) : 0;
    if (*number < '0' || *number > '9' || nth == 0 || (*end != '\0' && *end != '='))
        return gvmm__fail(GVMM_E_INVALID, "fault plan '%s': not of the form [call:]nth[+][=status]", text);
    if (*end == '=' && !status)
        return gvmm__fail(GVMM_E_INVALID, "fault plan '%s': no status is named '%s'", text, end + 1);
    set(nth, onwards, call, status);
    return GVMM_OK;
}

uint64_t gvmm_faults_counted(void) { return atomic_load(&counted); }
uint64_t gvmm_faults_injected(void) { return atomic_load(&injected); }

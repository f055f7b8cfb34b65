/* A table over any other that reports every call. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "internal.h"

static const gvmm_driver *inner;
static gvmm_trace_fn report;
static void *report_user;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Parameter names as the list has them, "(ptr, size)", for the printed line. */
static const char *const arg_names[GVMM_CALL_COUNT] = {
#define GVMM_X(need, role, name, symbol, version, params, args) #args,
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
};

static void print(void *user, const gvmm_trace_record *record)
{
    (void)user;
    char line[512], *end = line + sizeof line, *at = line;
    at += snprintf(at, (size_t)(end - at), "gvmm: %s(", gvmm_driver_call_name(record->call));
    const char *name = arg_names[record->call] + 1;
    for (unsigned i = 0; i < record->arg_count && at < end; i++) {
        int length = (int)strcspn(name, ",)");
        at += snprintf(at, (size_t)(end - at), "%s%.*s=0x%llx", i ? ", " : "", length, name, record->args[i]);
        name += length;
        name += strspn(name, ", ");
    }
    if (at < end)
        snprintf(at, (size_t)(end - at), ") = %s, %.1f us", gvmm_driver_status_name(record->result),
                 (double)record->nanoseconds / 1000);
    fprintf(stderr, "%s\n", line);
}

static void done(gvmm_driver_call call, uint64_t start, CUresult result, unsigned count, const unsigned long long *args)
{
    gvmm_trace_record record = {call, result, now() - start, count, {0}};
    memcpy(record.args, args, count * sizeof *args);
    report(report_user, &record);
}

/* Every argument as a number: each is an integer or a pointer. */
#define NUMBER(x) (unsigned long long)(x)
#define N1(a) NUMBER(a)
#define N2(a, ...) NUMBER(a), N1(__VA_ARGS__)
#define N3(a, ...) NUMBER(a), N2(__VA_ARGS__)
#define N4(a, ...) NUMBER(a), N3(__VA_ARGS__)
#define N5(a, ...) NUMBER(a), N4(__VA_ARGS__)
#define N6(a, ...) NUMBER(a), N5(__VA_ARGS__)
#define N7(a, ...) NUMBER(a), N6(__VA_ARGS__)
#define N8(a, ...) NUMBER(a), N7(__VA_ARGS__)
#define N9(a, ...) NUMBER(a), N8(__VA_ARGS__)
#define N10(a, ...) NUMBER(a), N9(__VA_ARGS__)
#define N11(a, ...) NUMBER(a), N10(__VA_ARGS__)
#define N12(a, ...) NUMBER(a), N11(__VA_ARGS__)
#define PICK(a, b, c, d, e, f, g, h, i, j, k, l, m, name, ...) name
/* The leading 0 makes a list without arguments legal; it is not passed on. */
#define NUMBERS(...) PICK(__VA_ARGS__, N13, N12, N11, N10, N9, N8, N7, N6, N5, N4, N3, N2, N1, )(__VA_ARGS__)
#define LIST(...) 0, ##__VA_ARGS__

/* Locals end in _ : the list's parameters have all the good names. */
#define GVMM_X(need, role, name, symbol, version, params, args) \
    static CUresult traced_##name params \
    { \
        const unsigned long long numbers_[] = {EXPAND(NUMBERS, LIST args)}; \
        uint64_t start_ = now(); \
        CUresult answer_ = inner->name args; \
        done(GVMM_CALL_##name, start_, answer_, sizeof numbers_ / sizeof *numbers_ - 1, numbers_ + 1); \
        return answer_; \
    }
#define EXPAND(macro, ...) macro(__VA_ARGS__)
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X

const gvmm_driver *gvmm_trace_over(const gvmm_driver *over, gvmm_trace_fn fn, void *user)
{
    static gvmm_driver table = {
#define GVMM_X(need, role, name, symbol, version, params, args) .name = traced_##name,
        GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
    };
    inner = over;
    table.origin = over->origin;
    report = fn ? fn : print;
    report_user = user;
    return &table;
}

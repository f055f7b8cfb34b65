/* gvmm/driver.h: the driver table, replacing it, and watching or failing its calls.
 *
 * For tests, tools and programs that drive CUDA through the same table as gvmm. This header may
 * change in a minor release. To use it beside cuda.h, include cuda.h first. */
#ifndef GVMM_DRIVER_H
#define GVMM_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gvmm.h"
#include "gvmm/cuda_abi.h"
#include "gvmm/driver_calls.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One function pointer for every call of driver_calls.h, with the driver's own signature. */
typedef struct gvmm_driver {
    const char *origin; /* where the functions come from, for messages: "libcuda.so.1", "simulated driver" */
#define GVMM_X(need, role, name, symbol, version, params, args) CUresult(*name) params;
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
} gvmm_driver;

/* The driver calls by position in the list, for tables indexed by call. */
typedef enum gvmm_driver_call {
#define GVMM_X(need, role, name, symbol, version, params, args) GVMM_CALL_##name,
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
        GVMM_CALL_COUNT
} gvmm_driver_call;

/* Name of a driver call, "cuMemMap". Static; "?" when out of range. */
GVMM_API const char *gvmm_driver_call_name(gvmm_driver_call call);

/* Official name of a driver status, "CUDA_ERROR_OUT_OF_MEMORY". Static; needs no driver. "CUDA_ERROR_?" for one that
 * gvmm does not know. */
GVMM_API const char *gvmm_driver_status_name(int status);

/* The table that gvmm uses, found on the first call: an installed one, else the driver that GVMM_DRIVER
 * names ("sim", or the path of a library), else libcuda.so.1. cuInit has succeeded on it.
 *
 * Returns  GVMM_E_NO_DRIVER   none was found or it would not start; the message says what was tried
 *          GVMM_E_INVALID     out is NULL, or GVMM_FAULTS makes no sense
 *          GVMM_E_NO_HOST_MEMORY
 * Owns     the table is gvmm's and stays valid until the process ends.
 * Threads  any. */
GVMM_API gvmm_result gvmm_driver_get(const gvmm_driver **out);

/* Makes gvmm use `driver` from now on, or look for one again when it is NULL. `driver` must stay valid.
 *
 * Returns  GVMM_E_INVALID     a resource is alive, or held by a deferred release on its way (gvmm_drain waits for those):
 *                             its objects belong to the table in use
 * Threads  not while another thread uses gvmm. */
GVMM_API gvmm_result gvmm_driver_install(const gvmm_driver *driver);

/* Fills `*out` from the library at `path`, as the loader does for libcuda.so.1. Does not call cuInit.
 *
 * Returns  GVMM_E_NO_DRIVER   it does not load, or lacks a required function; the message names it
 * Owns     the library stays loaded until the process ends. `path`, the table's origin, must stay valid: it is not copied.
 * Threads  any. */
GVMM_API gvmm_result gvmm_driver_load(gvmm_driver *out, const char *path);

/* ---------------------------------------------------------------------------------------------
 * Host memory. gvmm allocates its own objects through two functions that can be replaced.
 * ------------------------------------------------------------------------------------------- */

typedef struct gvmm_host_allocator {
    void *(*allocate)(size_t size); /* NULL when out of memory; aligned for any type */
    void (*deallocate)(void *ptr);  /* takes NULL */
} gvmm_host_allocator;

/* Replaces malloc and free; NULL restores them.
 *
 * Returns  GVMM_E_INVALID     a resource is alive: its objects belong to the allocator in use; so do those of a thread that
 *                             used a pool, or a resource with a reuse_limit, and has not ended
 * Threads  not while another thread uses gvmm. */
GVMM_API gvmm_result gvmm_host_allocator_install(const gvmm_host_allocator *allocator);

/* ---------------------------------------------------------------------------------------------
 * Faults: a table over any other, the real driver's too, that makes chosen calls fail. Host
 * allocations of gvmm count in the same sequence once one has been made, under the name "malloc".
 * ------------------------------------------------------------------------------------------- */

typedef struct gvmm_fault {
    uint64_t nth;     /* first call to fail, counted from 1 since the plan was set; 0: no fault */
    bool onwards;     /* every call from the nth on fails, not it alone */
    const char *call; /* count only calls of this name ("cuMemMap", or "malloc"); NULL: all. Copied. */
    int status;       /* CUresult to answer; 0 means CUDA_ERROR_OUT_OF_MEMORY. A failed malloc gives NULL. */
} gvmm_fault;

/* A table that forwards to `inner` and fails what the plan says. A failing call that undoes something
 * (role UNDO in driver_calls.h) has done it all the same. One such table per process.
 *
 * Owns     `inner` must stay valid; the table is gvmm's.
 * Threads  not while another thread uses either table. */
GVMM_API const gvmm_driver *gvmm_faults_over(const gvmm_driver *inner);

/* Sets the plan and starts counting anew; NULL ends it. From text ("3", "3+", "cuMemMap:2=OUT_OF_MEMORY",
 * also read from GVMM_FAULTS when the driver is found):
 *     [call:]nth[+][=status name without CUDA_ERROR_]
 * Returns  GVMM_E_INVALID     text that is none of these, or an unknown call or status
 * Threads  not while another thread makes driver calls. */
GVMM_API gvmm_result gvmm_faults_set(const gvmm_fault *plan);
GVMM_API gvmm_result gvmm_faults_set_text(const char *text);

/* Calls counted since the plan was set, and how many of them were failed. */
GVMM_API uint64_t gvmm_faults_counted(void);
GVMM_API uint64_t gvmm_faults_injected(void);

/* ---------------------------------------------------------------------------------------------
 * Trace: a table over any other that reports every call.
 * ------------------------------------------------------------------------------------------- */

#define GVMM_TRACE_ARGS 12

typedef struct gvmm_trace_record {
    gvmm_driver_call call;
    CUresult result;
    uint64_t nanoseconds;                     /* inside the call */
    unsigned arg_count;                       /* entries used in args */
    unsigned long long args[GVMM_TRACE_ARGS]; /* numbers and pointers as passed, in order */
} gvmm_trace_record;

typedef void (*gvmm_trace_fn)(void *user, const gvmm_trace_record *record);

/* A table that forwards to `inner` and calls `report` after each call, on the calling thread. One such
 * table per process. `report` NULL: a line per call on standard error, which is also what GVMM_TRACE=1 gives.
 *
 * Owns     `inner` and `user` must stay valid; the table is gvmm's.
 * Threads  not while another thread uses either table. `report` may be called from any thread. */
GVMM_API const gvmm_driver *gvmm_trace_over(const gvmm_driver *inner, gvmm_trace_fn report, void *user);

#ifdef __cplusplus
}
#endif
#endif

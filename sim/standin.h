/* The stand-in's map. Its files are not part of libgvmm: they make libcuda.so.1 out of the simulated driver.
 *
 *   standin.c             the calls of driver_calls.h under their exported names, cuGetProcAddress, what is not simulated
 *   standin_spellings.c   other spellings of those calls with other parameters, and small calls that others answer
 *   standin_missing.h     every other function of the driver */
#ifndef GVMM_SIM_STANDIN_H
#define GVMM_SIM_STANDIN_H

#include <stdatomic.h>

#include "gvmm/sim.h"

/* The library is built with hidden visibility. */
#define EXPORT __attribute__((visibility("default")))

/* What cuGetProcAddress knows of a function. */
typedef struct standin_entry {
    const char *name; /* without _v2, _ptsz ... */
    int version;      /* the first CUDA version that means this function by the name */
    bool per_thread;  /* its stream 0 is the per-thread default stream */
    void *fn;
} standin_entry;

#define STANDIN_ENTRY(name, symbol, version, per_thread) {#name, version, per_thread, (void *)symbol},

/* The simulated driver's table, with what GVMM_FAULTS and GVMM_TRACE put around it once cuInit was called. */
const gvmm_driver *standin(void);

/* Says on standard error, once for each `told`, that a function is not simulated. Returns NOT_SUPPORTED. */
CUresult standin_missing(const char *symbol, atomic_flag *told);

/* standin_spellings.c */
extern const standin_entry standin_spellings[];
extern const size_t standin_spelling_count;

#endif

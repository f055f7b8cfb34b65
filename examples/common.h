/* What the examples share: the driver, a context, bytes to recognise. */
#ifndef GVMM_EXAMPLES_COMMON_H
#define GVMM_EXAMPLES_COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gvmm/sim.h"

#define MiB ((size_t)1 << 20)

static const gvmm_driver *cu; /* for copies; gvmm itself moves no bytes */

/* Ends the program if a gvmm call has failed. */
static inline void must(gvmm_result result, const char *what)
{
    gvmm_error error;
    if (result == GVMM_OK) return;
    gvmm_last_error(&error);
    fprintf(stderr, "%s: %s\n", what, error.text);
    exit(1);
}

static inline void must_cu(CUresult status, const char *what)
{
    if (status == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %s\n", what, gvmm_driver_status_name((int)status));
    exit(1);
}

static inline void expect(bool so, const char *what)
{
    if (so) return;
    fprintf(stderr, "NOT SO: %s\n", what);
    exit(1);
}

/* Makes device 0's context current on this thread. */
static inline void enter_device(void)
{
    CUcontext context;
    must_cu(cu->cuDevicePrimaryCtxRetain(&context, 0), "context");
    must_cu(cu->cuCtxSetCurrent(context), "context");
}

/* The machine's GPU, or the simulated driver where there is none. */
static inline void open_device(void)
{
    if (gvmm_driver_get(&cu)) {
        const char *named = getenv("GVMM_DRIVER");
        if (named && *named) must(GVMM_E_NO_DRIVER, "driver");
        must(gvmm_driver_install(gvmm_sim_driver()), "simulated driver");
        must(gvmm_driver_get(&cu), "simulated driver");
    }
    enter_device();
    printf("driver                  %s\n", cu->origin);
}

/* Writes words that tell their place and `seed`, or finds out whether they are there. */
static inline void write_words(uint64_t address, size_t bytes, unsigned seed)
{
    unsigned *words = malloc(bytes);
    for (size_t i = 0; words && i < bytes / sizeof *words; i++) words[i] = (unsigned)i * 2654435761u + seed;
    must_cu(words ? cu->cuMemcpyHtoD(address, words, bytes) : CUDA_ERROR_OUT_OF_MEMORY, "copy to the device");
    free(words);
}

/* The same for the sums of `count` such words whose seeds come to `seeds`. */
static inline bool has_sums(uint64_t address, size_t bytes, unsigned count, unsigned seeds)
{
    unsigned *words = malloc(bytes);
    bool same = true;
    must_cu(words ? cu->cuMemcpyDtoH(words, address, bytes) : CUDA_ERROR_OUT_OF_MEMORY, "copy from the device");
    for (size_t i = 0; same && i < bytes / sizeof *words; i++)
        same = words[i] == count * (unsigned)i * 2654435761u + seeds;
    free(words);
    return same;
}

static inline bool has_words(uint64_t address, size_t bytes, unsigned seed)
{
    return has_sums(address, bytes, 1, seed);
}

/* Everything that was made has gone back. */
static inline void expect_nothing_left(void)
{
    gvmm_stats stats;
    gvmm_drain();
    gvmm_get_stats(NULL, &stats);
    expect(!stats.physical_bytes && !stats.mapped_bytes && !stats.reserved_bytes, "nothing is left");
    must_cu(cu->cuDevicePrimaryCtxRelease(0), "context");
}

#endif

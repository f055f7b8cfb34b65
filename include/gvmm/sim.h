/* gvmm/sim.h: the simulated driver. Real bytes, real errors, no GPU.
 *
 * docs/simulator.md says what it does and how each rule is known. This header may change in a minor release. */
#ifndef GVMM_SIM_H
#define GVMM_SIM_H

#include "gvmm/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the simulated machine is like. Every field has the default of GVMM_SIM_CONFIG_INIT; the environment
 * variable GVMM_SIM sets them by name: "devices=2,memory=8G,granularity=64K". */
typedef struct gvmm_sim_config {
    size_t struct_size;
    unsigned devices;       /* 1 to 16 */
    unsigned numa_nodes;    /* 1 to 8 */
    uint64_t memory;        /* bytes of each device */
    uint64_t address_space; /* bytes that can be reserved in all */
    uint64_t granularity;   /* bytes; a power of two, at least 4096 */
    unsigned descriptors;   /* exported descriptors open at a time; 0: what the system gives */
    bool peers;             /* every device can access every other */
    bool latency;           /* each VMM call takes the time measured on an H200 */
    bool fabric;            /* memory can have fabric handles, as where there is an IMEX channel */
} gvmm_sim_config;

#define GVMM_SIM_CONFIG_INIT \
    { \
        sizeof(gvmm_sim_config), 1, 1, (uint64_t)80 << 30, (uint64_t)1 << 46, 2u << 20, 0, true, false, false \
    }

/* The simulated driver's table. Usable at once: gvmm_driver_install(gvmm_sim_driver()). */
GVMM_API const gvmm_driver *gvmm_sim_driver(void);

/* Starts a new simulated machine. The old one must be empty but for contexts: no handle, reservation,
 * mapping, stream, event or graph alive. What nobody can free any more, after an error that sticks, is taken along.
 * NULL: the defaults, with GVMM_SIM over them.
 *
 * Returns  GVMM_E_INVALID     a value is out of range, or something is alive; the message names it
 * Threads  not while another thread uses the simulated driver. */
GVMM_API gvmm_result gvmm_sim_reset(const gvmm_sim_config *config);

/* ---------------------------------------------------------------------------------------------
 * Census: everything alive, with the call that made it.
 * ------------------------------------------------------------------------------------------- */

typedef enum gvmm_sim_kind {
    GVMM_SIM_MEMORY,      /* physical memory with creation references: cuMemCreate, import, retain */
    GVMM_SIM_RESERVATION, /* cuMemAddressReserve */
    GVMM_SIM_MAPPING,     /* cuMemMap */
    GVMM_SIM_PLAIN,       /* cuMemAlloc */
    GVMM_SIM_POOLED,      /* cuMemAllocAsync */
    GVMM_SIM_PINNED,      /* cuMemAllocHost, cuMemHostAlloc */
    GVMM_SIM_REGISTERED,  /* cuMemHostRegister */
    GVMM_SIM_STREAM,
    GVMM_SIM_EVENT,
    GVMM_SIM_GRAPH,
    GVMM_SIM_EXEC,
    GVMM_SIM_USER_OBJECT,
    GVMM_SIM_KIND_COUNT
} gvmm_sim_kind;

typedef struct gvmm_sim_item {
    gvmm_sim_kind kind;
    uint64_t address;    /* device address, or the handle's value where there is none */
    uint64_t size;       /* bytes; 0 where it means nothing */
    unsigned references; /* creation references of memory; 1 elsewhere */
    uint64_t call;       /* number of the driver call that made it, counted from 1 */
    const char *made_by; /* name of that call */
} gvmm_sim_item;

/* Counts what is alive, per kind, in `counts` (may be NULL), and calls `visit` for each (may be NULL), oldest first
 * within its kind. Default streams, contexts and default pools are not counted.
 *
 * Threads  any; `visit` must not call the simulated driver. */
GVMM_API void gvmm_sim_census(size_t counts[GVMM_SIM_KIND_COUNT], void (*visit)(void *user, const gvmm_sim_item *item),
                              void *user);

/* Name of a kind: "memory". Static. */
GVMM_API const char *gvmm_sim_kind_name(gvmm_sim_kind kind);

/* ---------------------------------------------------------------------------------------------
 * Findings: what a GPU cannot tell. Work that touched memory which was unmapped or without access
 * when it ran, destroyed streams used, double releases.
 * ------------------------------------------------------------------------------------------- */

/* Calls `visit` with the text of each finding so far, in order. Returns their number. A finding is also written to
 * standard error when it is made, unless gvmm_sim_quiet(true). */
GVMM_API size_t gvmm_sim_findings(void (*visit)(void *user, const char *text), void *user);
GVMM_API void gvmm_sim_quiet(bool quiet);

/* Forgets the findings. */
GVMM_API void gvmm_sim_findings_clear(void);

/* ---------------------------------------------------------------------------------------------
 * Bytes: what a simulated kernel would do.
 * ------------------------------------------------------------------------------------------- */

/* Reads or writes device memory as a kernel of `device` would, for host functions that stand in for kernels.
 *
 * Returns  CUDA_ERROR_ILLEGAL_ADDRESS   unmapped, or no access for `device`; it is a finding too
 * Threads  any, a host function too. */
GVMM_API CUresult gvmm_sim_read(int device, void *dst, CUdeviceptr src, size_t size);
GVMM_API CUresult gvmm_sim_write(int device, CUdeviceptr dst, const void *src, size_t size);

/* Writes the leak report: everything in the census, as text, or as JSON. Returns the number of items. With
 * GVMM_SIM_REPORT=FILE (or "-" for standard error; JSON if the name ends in .json) it is written at exit. */
GVMM_API size_t gvmm_sim_report(int fd, bool json);

#ifdef __cplusplus
}
#endif
#endif

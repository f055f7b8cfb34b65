/* What the tests of the simulated driver itself share: machines, mapped memory, findings, call numbers, child processes. */
#ifndef GVMM_SIM_KIT_H
#define GVMM_SIM_KIT_H

#include "support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* A new machine with device 0's primary context current, and `cu`, `G` and `device_count` for it; findings are kept quietly.
 * NULL: the defaults. The end gives the context back and fails if anything is left. */
void machine_start(const gvmm_sim_config *config);
void machine_of_two_devices(void);
void machine_end(void);

/* Fixture: a machine of two devices. The end expects that findings were cleared. */
TCase *add_machine_case(Suite *suite, const char *name);

/* Memory of device 0, mapped and open to it. */
typedef struct block {
    CUdeviceptr address;
    size_t size;
    CUmemGenericAllocationHandle handle;
} block;
block block_make(size_t size);
void block_grant(const block *b, int device, CUmemAccess_flags flags);
void block_unmap(const block *b);
void block_free(const block *b); /* what is left after block_unmap */
void block_end(const block *b);  /* both */

CUmemAllocationProp memory_of(CUmemLocationType type, int id, CUmemAllocationHandleType handles);

/* The number of the last driver call. Makes two. */
uint64_t calls_made(void);

size_t alive(gvmm_sim_kind kind);

/* There is exactly one finding, with this text; it is cleared. */
void ck_finding(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Runs this program again with one argument and the environment as it is now; `text` gets its standard error. Its exit status,
 * or 1000 + the signal that ended it. */
int child_run(const char *role, char *text, size_t size);

#endif

/* What the memory side of the simulated driver shares among its files; core.h is what it offers to the others.
 *
 *   chunk.c      physical memory: where its bytes are, its handles, what each device has left
 *   memory.c     reservations, mappings, access: the virtual memory calls
 *   bytes.c      checking and moving bytes
 *   share.c      descriptors between processes
 *   plain.c      cuMemAlloc, pinned and registered host memory, pointer attributes
 *   pool.c       stream-ordered pools
 *
 * All chunks live in one sparse file in memory, the arena, at offsets that only grow, until they are exported. Device addresses are
 * real addresses of the process, reserved and closed, so that a CPU load of a device pointer crashes as it does beside a GPU. A
 * mapping is only an entry in a table; host memory opened to the CPU is the one thing that is really mapped. So untouched memory
 * costs nothing, and neither descriptors nor kernel mappings run out.
 *
 * Everything here is called with sim_lock held unless it says otherwise. */
#ifndef GVMM_SIM_MEMORY_H
#define GVMM_SIM_MEMORY_H

#include <sys/types.h>

#include "core.h"

/* Let go of sim_lock with this, not pthread_mutex_unlock, where a chunk may have died: giving its pages back is slow
 * and is done after. */
void sim_memory_unlock(void); /* chunk.c */

/* ---- table.c ---- */

/* Time on an H200, added to a call when sim_config.latency is set. Without sim_lock. */
typedef enum sim_cost {
    SIM_COST_RESERVE,
    SIM_COST_CREATE,
    SIM_COST_MAP,
    SIM_COST_ACCESS,
    SIM_COST_UNMAP,
    SIM_COST_RELEASE,
    SIM_COST_ADDRESS_FREE,
    SIM_COST_COUNT
} sim_cost;
uint64_t sim_cost_of(sim_cost what, uint64_t size); /* nanoseconds; 0 unless asked for */
void sim_spend(uint64_t nanoseconds);

/* ---- registry.c ---- */

/* A new id of a kind, for a handle that is not an object of its own. */
uint64_t sim_id_next(gvmm_sim_kind kind);

/* The first live object of a kind with an id >= `id`. */
sim_object *sim_object_from(gvmm_sim_kind kind, uint64_t id);

/* ---- chunk.c ---- */

typedef struct sim_handle {
    uint64_t value;
    bool live; /* false: released; the first handle of a chunk still maps while a mapping keeps the chunk */
    struct sim_chunk *chunk;
    struct sim_handle *left, *right;
} sim_handle;

/* Physical memory. It lives while it has a handle, a mapping, or bytes in flight. */
typedef struct sim_chunk {
    sim_object object; /* in the census while a handle is live; references: live handles */
    CUmemAllocationProp prop;
    uint64_t size;
    uint64_t serial;       /* tells allocations apart, for CU_POINTER_ATTRIBUTE_BUFFER_ID */
    int fd;                /* the bytes are [offset, offset + size) of this file: the arena, or one of its own */
    uint64_t offset;
    dev_t file_device;     /* of its own file: tells an import of what is already here */
    ino_t file_inode;
    sim_handle *first;     /* what cuMemCreate or the import gave; kept as long as the chunk */
    unsigned handles;      /* live ones */
    unsigned mappings;
    unsigned pins;         /* threads moving its bytes without sim_lock */
    unsigned exports;      /* under way */
    bool own_file;
    bool moving;           /* on its way to a file of its own: wait for sim_changed before pinning */
    bool written;          /* may have pages to give back */
    bool counted;          /* takes part in the device's memory; imports do not */
    struct sim_chunk *next_file, *next_dead;
} sim_chunk;

/* A chunk without handle or mapping: give it one, or drop it. `prop` has been checked. */
CUresult sim_chunk_create(sim_chunk **out, uint64_t size, const CUmemAllocationProp *prop);
/* A chunk over a file of another process, or of this one; takes `fd` over when it succeeds. */
CUresult sim_chunk_adopt(sim_chunk **out, uint64_t size, const CUmemAllocationProp *prop, int fd);
void sim_chunk_drop(sim_chunk *chunk); /* if nothing needs it any more */
sim_chunk *sim_chunk_of_file(dev_t device, ino_t inode);
/* Moves the bytes to a file of the chunk's own, where the kernel keeps them for other processes. Lets go of the lock on the way:
 * chunk->exports keeps the chunk meanwhile. */
CUresult sim_chunk_to_own_file(sim_chunk *chunk);

CUresult sim_handle_create(uint64_t *out, sim_chunk *chunk);
sim_handle *sim_handle_find(uint64_t value); /* live, or the first one of a chunk that lives on */
CUresult sim_handle_release(uint64_t value);

static inline bool sim_chunk_on_host(const sim_chunk *chunk)
{
    return chunk->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* Memory that a pool keeps for later counts as used. False if the device has not that much left. */
bool sim_memory_hold(int device, uint64_t bytes);
void sim_memory_unhold(int device, uint64_t bytes);

/* The last page of an exported file says what it is. */
#define SIM_FILE_TRAILER 4096u
bool sim_file_describes(int fd, uint64_t *size, CUmemAllocationProp *prop);

/* ---- memory.c ---- */

typedef struct sim_reservation {
    sim_object object;
    uint64_t base, size;
    struct sim_block *block; /* not NULL: plain memory, closed to the virtual memory calls */
    struct sim_reservation *left, *right;
} sim_reservation;

typedef struct sim_mapping {
    sim_object object;
    uint64_t base, size;
    sim_chunk *chunk;
    struct sim_block *block;               /* as above; then size is what the user asked for, not rounded */
    unsigned char access[SIM_MAX_DEVICES]; /* CUmemAccess_flags of each device */
    unsigned char host_access;
    unsigned char host_before;             /* while a grant is under way */
    bool outside;                          /* runs past the end of its reservations: never mapped for the CPU */
    struct sim_mapping *left, *right;
} sim_mapping;

/* cuMemAlloc and the pools: all three in one. */
typedef struct sim_block {
    sim_object object;
    sim_reservation reservation;
    sim_mapping mapping;
    CUcontext context;
    unsigned sync_memops;
    bool freeing;               /* its cuMemFreeAsync is queued */
    struct sim_pool *pool;      /* NULL: cuMemAlloc */
    struct sim_block *sibling;  /* next of the pool */
} sim_block;

sim_reservation *sim_reservation_at(uint64_t address);
sim_mapping *sim_mapping_at(uint64_t address);      /* the one that covers it, or NULL */
sim_mapping *sim_mapping_from(uint64_t address);    /* that one, or else the first behind it */
bool sim_in_device_space(uint64_t address);         /* sim_is_device_address, with sim_lock held */

CUresult sim_block_make(sim_block **out, int device, size_t size, gvmm_sim_kind kind);
void sim_block_unmake(sim_block *block);

/* Which call took the memory at an address away, from a bounded history; false: not known. */
bool sim_unmapped_by(uint64_t address, uint64_t *call, const char **name);

void sim_memory_reset(void);

/* ---- plain.c, pool.c ---- */

bool sim_is_pinned(uint64_t address, uint64_t size); /* host memory that devices can reach */
CUresult sim_pool_free(sim_block *block);            /* gives back a pooled block now */
CUmemoryPool sim_pool_handle(const struct sim_pool *pool);
void sim_pool_reset(void);

/* ---- chunk.c ---- */

void sim_chunk_reset(void);

static inline uint64_t sim_round_up(uint64_t value, uint64_t power_of_two)
{
    return (value + power_of_two - 1) & ~(power_of_two - 1);
}

#endif

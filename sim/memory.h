/* What the memory side of the simulated driver shares among its files; core.h is what it offers to the others.
 *
 *   chunk.c      physical memory: where its bytes are, its handles, what each device has left
 *   address.c    reservations, what is at an address, who unmapped it
 *   memory.c     physical memory and mappings: the virtual memory calls
 *   access.c     who may touch a mapping
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

/* Hold all locks over a fork, so that the child can ask for the census. */
void sim_before_fork(void);
void sim_after_fork(void); /* in both */

/* The first live object of a kind with an id >= `id`. */
sim_object *sim_object_from(gvmm_sim_kind kind, uint64_t id);

/* ---- chunk.c ---- */

/* What cuMemCreate or an import gave. It lives while it has references or mappings: a released one still maps, and can be
 * retained again, while a mapping keeps it. */
typedef struct sim_handle {
    sim_object object; /* its id is the handle; in the census while it has references */
    struct sim_chunk *chunk;
    unsigned mappings;
    bool imported; /* cannot be exported */
    struct sim_handle *left, *right;
} sim_handle;

/* Physical memory. It lives while it has a handle, a mapping, bytes in flight, or a descriptor that was handed out. */
typedef struct sim_chunk {
    CUmemAllocationProp prop;
    uint64_t size;
    int fd; /* the bytes are [offset, offset + size) of this file: the arena, or one of its own */
    uint64_t offset;
    dev_t file_device; /* of its own file: tells an import of what is already here */
    ino_t file_inode;
    unsigned handles; /* sim_handles, live or kept by a mapping */
    unsigned mappings;
    unsigned pins;    /* threads moving its bytes without sim_lock */
    unsigned exports; /* under way */
    bool own_file;
    bool exported; /* a descriptor was handed out */
    bool lingers;  /* only that descriptor keeps it */
    bool moving;   /* on its way to a file of its own: wait for sim_changed before pinning */
    bool written;  /* may have pages to give back */
    bool counted;  /* takes part in the device's memory; imports do not, and pools count for themselves */
    struct sim_chunk *next_file, *next_dead;
} sim_chunk;

/* A chunk without handle or mapping: give it one, or drop it. `prop` has been checked. */
CUresult sim_chunk_create(sim_chunk **out, uint64_t size, const CUmemAllocationProp *prop, bool counted);
/* A chunk over a file of another process, or of this one; takes `fd` over when it succeeds. */
CUresult sim_chunk_adopt(sim_chunk **out, uint64_t size, const CUmemAllocationProp *prop, int fd);
void sim_chunk_drop(sim_chunk *chunk); /* if nothing needs it any more */
sim_chunk *sim_chunk_of_file(dev_t device, ino_t inode);
/* Moves the bytes to a file of the chunk's own, where the kernel keeps them for other processes. Lets go of the lock on the way:
 * chunk->exports keeps the chunk meanwhile. */
CUresult sim_chunk_to_own_file(sim_chunk *chunk);
/* A descriptor of a chunk's own file, for the user; -1: the system has none left. */
int sim_file_open_again(int fd);

CUresult sim_handle_create(uint64_t *out, sim_chunk *chunk, bool imported);
sim_handle *sim_handle_find(uint64_t value); /* NULL, and a finding unless it is 0: dead, or never was one */
uint64_t sim_handle_retain(sim_handle *handle);
CUresult sim_handle_release(sim_handle *handle);
void sim_handle_drop(sim_handle *handle); /* if it has neither references nor mappings */

static inline bool sim_chunk_on_host(const sim_chunk *chunk)
{
    return chunk->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* Counts memory as used. False if the location has not that much left. */
bool sim_memory_hold(const CUmemLocation *where, uint64_t size);
void sim_memory_unhold(const CUmemLocation *where, uint64_t size);

/* Bytes in use on a device; looks for descriptors that were closed, so let go with sim_memory_unlock. */
uint64_t sim_memory_used(int device);

/* The last page of an exported file says what it is. */
#define SIM_FILE_TRAILER 4096u
bool sim_file_describes(int fd, uint64_t *size, CUmemAllocationProp *prop);

/* ---- address.c ---- */

#define SIM_ADDRESS_LIMIT ((uint64_t)1 << 47)

typedef struct sim_reservation {
    sim_object object;
    uint64_t base, size;
    bool plain; /* of cuMemAlloc or a pool: closed to the virtual memory calls */
    struct sim_reservation *left, *right, *next_spare;
} sim_reservation;

typedef struct sim_mapping {
    sim_object object;
    uint64_t base, size;
    uint64_t shown; /* of these, new calls see; work that was queued before may touch all */
    sim_chunk *chunk;
    uint64_t offset;         /* where in the chunk it begins */
    sim_handle *handle;      /* NULL in blocks */
    struct sim_block *block; /* plain or pooled memory; then size is what the user asked for, not rounded */
    unsigned char access[SIM_MAX_DEVICES]; /* CUmemAccess_flags of each device */
    unsigned char host_access;
    unsigned char host_before; /* while a grant is under way */
    bool outside;              /* runs past the end of its reservations: never mapped for the CPU */
    struct sim_mapping *left, *right;
} sim_mapping;

/* Memory of cuMemAlloc or of a pool. */
typedef struct sim_block {
    sim_object object;
    sim_reservation reservation; /* cuMemAlloc; a pool has one for all its blocks */
    sim_mapping mapping;
    CUcontext context;
    unsigned sync_memops;
    unsigned frees;        /* of cuMemFreeAsync, still queued */
    uint64_t stream;       /* a pooled block that was freed: on which stream */
    struct sim_pool *pool; /* NULL: cuMemAlloc */
} sim_block;

sim_reservation *sim_reservation_at(uint64_t address);
sim_mapping *sim_mapping_at(uint64_t address);   /* the one that covers it, or NULL */
sim_mapping *sim_mapping_from(uint64_t address); /* that one, or else the first behind it */
sim_mapping *sim_shown_at(uint64_t address);     /* as sim_mapping_at, for new calls */
bool sim_in_device_space(uint64_t address);      /* sim_is_device_address, with sim_lock held */

/* The first byte of [base, base + size) that is neither mapped nor reserved; base + size if there is none. */
uint64_t sim_first_outside(uint64_t base, uint64_t size);

void sim_mapping_insert(sim_mapping *m);
void sim_mapping_take_out(sim_mapping *m); /* and remembers which call did it */

/* Which call took the memory at an address away, from a bounded history; false: not known. */
bool sim_unmapped_by(uint64_t address, uint64_t *call, const char **name);

/* Addresses for memory that the virtual memory calls do not see. */
CUresult sim_plain_reserve(sim_reservation *r, uint64_t size);
void sim_plain_unreserve(sim_reservation *r);

CUresult sim_block_make(sim_block **out, int device, size_t size); /* cuMemAlloc's */
void sim_block_unmake(sim_block *block);

void sim_memory_reset(void);

/* ---- memory.c ---- */

void sim_mapping_add(sim_mapping *m, uint64_t base, uint64_t size, sim_chunk *chunk);
void sim_mapping_remove(sim_mapping *m);

/* Shows the mapping to the CPU as `flags` say. False: the kernel has no mappings left, and nothing has changed. */
bool sim_show_to_host(sim_mapping *m, unsigned flags);

/* ---- bytes.c ---- */

/* May kernels and memsets of the device (-1: the host) touch it? */
bool sim_may_touch(const sim_mapping *m, int device, bool write);

/* ---- plain.c, pool.c ---- */

void sim_plain_forget(const sim_context *context); /* what it allocated and registered; NULL: all there is */

bool sim_is_pinned(uint64_t address, uint64_t size); /* host memory that devices can reach */
void sim_pool_free(sim_block *block);                /* gives back a pooled block that new calls see */
CUmemoryPool sim_pool_handle(const struct sim_pool *pool);
void sim_pools_synchronised(void); /* work was waited for: they give back what they need not keep */
void sim_pool_reset(void);

/* ---- chunk.c ---- */

void sim_chunk_reset(void);

static inline uint64_t sim_round_up(uint64_t value, uint64_t power_of_two)
{
    return (value + power_of_two - 1) & ~(power_of_two - 1);
}

#endif

/* What the two files of the stream-ordered pools share; with sim_lock held.
 *
 *   pool.c        windows and blocks: allocating and freeing in a stream's order
 *   pool_calls.c  the calls about pools themselves */
#ifndef GVMM_SIM_POOL_H
#define GVMM_SIM_POOL_H

#include "memory.h"

typedef struct sim_pool {
    struct sim_pool *next;
    uint64_t id;
    CUmemLocation location;
    bool is_default;
    bool destroyed; /* lives on until its last block is free */
    int reuse[3];   /* attributes 1 to 3, which change nothing here */
    uint64_t threshold, most;
    uint64_t used, used_high;              /* as asked for */
    uint64_t reserved, reserved_high;      /* whole steps */
    unsigned char access[SIM_MAX_DEVICES]; /* of its blocks, old and new */
    sim_reservation *window;               /* NULL: there was no block yet */
    sim_chunk *chunk;
    unsigned char *held; /* of each step */
    uint64_t step;
    uint64_t lowest; /* below it there is no room */
    size_t blocks;   /* queued frees too */
} sim_pool;

extern sim_pool *sim_current_pools[SIM_MAX_DEVICES]; /* NULL: the default one */

sim_pool *sim_pool_find(CUmemoryPool handle);
sim_pool *sim_pool_new(CUmemLocation location, uint64_t most);
sim_pool *sim_pool_default(int device); /* NULL: out of memory */
sim_pool *sim_pool_current(int device);

/* Keeps `keep` bytes at least, and what is in use. */
void sim_pool_trim(sim_pool *pool, uint64_t keep);
void sim_pool_close(sim_pool *pool); /* it has no blocks */

static inline bool sim_pool_on_device(const sim_pool *pool)
{
    return pool->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static inline bool sim_pool_is_of(const sim_pool *pool, int device)
{
    return sim_pool_on_device(pool) && pool->location.id == device;
}

#endif

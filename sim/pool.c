/* Stream-ordered pools. A block is there as soon as it is asked for, and goes when the stream reaches its free. What a pool keeps
 * for later is only counted, not kept: every allocation gets new addresses, so that late use of a freed block is noticed. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

typedef struct sim_pool {
    struct sim_pool *next;
    uint64_t id;
    int device;
    bool is_default;
    bool destroyed;                        /* lives on until its last block is free */
    int reuse[3];                          /* attributes 1 to 3, which change nothing here */
    uint64_t threshold, most;
    uint64_t used, used_high;              /* by blocks, whole granules */
    uint64_t reserved, reserved_high;      /* used and kept for later */
    unsigned char access[SIM_MAX_DEVICES]; /* of its blocks, old and new */
    sim_block *blocks;
} sim_pool;

static sim_pool *pools;
static sim_pool *default_pool[SIM_MAX_DEVICES], *current_pool[SIM_MAX_DEVICES];
static uint64_t last_serial;

CUmemoryPool sim_pool_handle(const sim_pool *pool)
{
    return (CUmemoryPool)(uintptr_t)pool->id;
}

static sim_pool *find_pool(CUmemoryPool handle)
{
    sim_pool *pool = pools;
    while (pool && (pool->id != (uint64_t)(uintptr_t)handle || pool->destroyed)) pool = pool->next;
    return pool;
}

static sim_pool *new_pool(int device, uint64_t most)
{
    sim_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->id = (uint64_t)(GVMM_SIM_KIND_COUNT + 1) << 40 | ++last_serial;
    pool->device = device;
    pool->most = most ? most : UINT64_MAX;
    for (int i = 0; i < 3; i++) pool->reuse[i] = 1;
    pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool->next = pools;
    pools = pool;
    return pool;
}

static sim_pool *default_pool_of(int device)
{
    if (!default_pool[device]) {
        default_pool[device] = new_pool(device, 0);
        if (default_pool[device]) default_pool[device]->is_default = true;
    }
    return default_pool[device];
}

static sim_pool *current_pool_of(int device)
{
    return current_pool[device] ? current_pool[device] : default_pool_of(device);
}

/* Keeps `keep` bytes at most, but never less than is in use. */
static void trim(sim_pool *pool, uint64_t keep)
{
    if (keep < pool->used) keep = pool->used;
    if (pool->reserved <= keep) return;
    sim_memory_unhold(pool->device, pool->reserved - keep);
    pool->reserved = keep;
}

static void unlink_pool(sim_pool *pool)
{
    sim_pool **link = &pools;
    while (*link != pool) link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

void sim_pool_reset(void)
{
    while (pools) {
        trim(pools, 0);
        unlink_pool(pools);
    }
    memset(default_pool, 0, sizeof default_pool);
    memset(current_pool, 0, sizeof current_pool);
}

/* ---------------------------------------------------------------------------------------------
 * Blocks
 * ------------------------------------------------------------------------------------------- */

static CUresult make_block(CUdeviceptr *ptr, sim_pool *pool, size_t size)
{
    uint64_t g = sim_config.granularity;
    if (size > UINT64_MAX - g) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t granules = sim_round_up(size, g), kept = pool->reserved - pool->used;
    uint64_t again = kept < granules ? kept : granules;
    if (pool->reserved > pool->most || granules - again > pool->most - pool->reserved) return CUDA_ERROR_OUT_OF_MEMORY;

    sim_memory_unhold(pool->device, again); /* the block takes it */
    sim_block *block;
    CUresult result = sim_block_make(&block, pool->device, size, GVMM_SIM_POOLED);
    if (result != CUDA_SUCCESS) {
        sim_memory_hold(pool->device, again);
        return result;
    }
    block->pool = pool;
    block->sibling = pool->blocks;
    pool->blocks = block;
    memcpy(block->mapping.access, pool->access, sizeof pool->access);
    pool->used += granules;
    pool->reserved += granules - again;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    *ptr = block->object.address;
    return CUDA_SUCCESS;
}

/* What the pool keeps of it counts as used from here on; if bytes are still in flight and there is no room to count it, it
 * is not kept. */
CUresult sim_pool_free(sim_block *block)
{
    sim_pool *pool = block->pool;
    uint64_t granules = block->mapping.chunk->size;
    sim_block **link = &pool->blocks;
    while (*link != block) link = &(*link)->sibling;
    *link = block->sibling;
    sim_block_unmake(block);
    pool->used -= granules;
    if (!sim_memory_hold(pool->device, granules)) pool->reserved -= granules;
    trim(pool, pool->destroyed ? 0 : pool->threshold);
    if (pool->destroyed && !pool->blocks) unlink_pool(pool);
    return CUDA_SUCCESS;
}

/* With sim_lock held. A full device takes back what the pools keep. */
static CUresult make_block_trimming(CUdeviceptr *ptr, sim_pool *pool, size_t size)
{
    CUresult result = make_block(ptr, pool, size);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    for (sim_pool *p = pools; p; p = p->next)
        if (p->device == pool->device && p != pool) trim(p, 0);
    return make_block(ptr, pool, size);
}

/* `handle` NULL: the device's current pool. */
static CUresult allocate_once(CUdeviceptr *ptr, size_t size, CUmemoryPool handle, int device)
{
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = handle ? find_pool(handle) : current_pool_of(device);
    CUresult result = pool ? make_block_trimming(ptr, pool, size)
                           : handle ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    sim_memory_unlock();
    return result;
}

static CUresult allocate(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
    int device;
    bool capturing;
    CUresult result = sim_stream_allocates(stream, &device, &capturing);
    if (result != CUDA_SUCCESS) return result;
    if (!ptr || !size) return CUDA_ERROR_INVALID_VALUE;
    if (capturing) return CUDA_ERROR_NOT_SUPPORTED; /* it would be a node of the graph */
    result = allocate_once(ptr, size, pool, device);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    sim_wait_all(); /* frees that are still queued */
    return allocate_once(ptr, size, pool, device);
}

CUresult sim_cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
    return allocate(ptr, size, NULL, stream);
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
    return pool ? allocate(ptr, size, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

/* A free on its way through a stream. */
typedef struct pending_free {
    uint64_t ptr, id;
    bool done;
} pending_free;

/* The block, if it is still the one that was meant. With sim_lock held. */
static sim_block *block_of(const pending_free *f)
{
    sim_mapping *m = sim_mapping_at(f->ptr);
    return m && m->block && m->block->object.id == f->id ? m->block : NULL;
}

static CUresult run_free(void *data, const sim_actor *who)
{
    pending_free *f = data;
    sim_call_number = who->call; /* for findings about work that comes later */
    sim_call_name = "cuMemFreeAsync";
    pthread_mutex_lock(&sim_lock);
    sim_block *block = block_of(f);
    if (block) sim_pool_free(block);
    f->done = true;
    sim_memory_unlock();
    return CUDA_SUCCESS;
}

static void drop_free(void *data)
{
    pending_free *f = data;
    pthread_mutex_lock(&sim_lock);
    sim_block *block = f->done ? NULL : block_of(f);
    if (block) block->freeing = false; /* it was not freed after all */
    pthread_mutex_unlock(&sim_lock);
    free(f);
}

/* Marks the block that begins at `f->ptr` as being freed. */
static CUresult begin_free(pending_free *f)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    uint64_t call;
    const char *name;
    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_mapping_at(f->ptr);
    sim_block *block = m && m->base == f->ptr && m->block && m->block->pool ? m->block : NULL;
    if (block && !block->freeing) {
        block->freeing = true;
        f->id = block->object.id;
        result = CUDA_SUCCESS;
    } else if (block) {
        sim_finding("cuMemFreeAsync (call %llu): 0x%llx is being freed already", (unsigned long long)sim_call_number,
                    (unsigned long long)f->ptr);
    } else if (!m && sim_unmapped_by(f->ptr, &call, &name)) {
        sim_finding("cuMemFreeAsync (call %llu): 0x%llx was given back by %s (call %llu) before",
                    (unsigned long long)sim_call_number, (unsigned long long)f->ptr, name, (unsigned long long)call);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    int device;
    bool capturing;
    CUresult result = sim_stream_allocates(stream, &device, &capturing);
    if (result != CUDA_SUCCESS) return result;
    if (capturing) return CUDA_ERROR_INVALID_VALUE; /* a graph frees only what its own nodes allocate */
    if (!ptr) return CUDA_SUCCESS;
    pending_free *f = calloc(1, sizeof *f);
    if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
    f->ptr = ptr;
    result = begin_free(f);
    if (result == CUDA_SUCCESS) return sim_queue(stream, (sim_work){"cuMemFreeAsync", run_free, drop_free, f});
    free(f);
    return result;
}

/* ---------------------------------------------------------------------------------------------
 * The pools themselves
 * ------------------------------------------------------------------------------------------- */

static bool is_device(int device)
{
    return device >= 0 && (unsigned)device < sim_config.devices;
}

static CUresult get_pool(CUmemoryPool *out, CUdevice device, sim_pool *(*which)(int))
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = which(device);
    if (pool) *out = sim_pool_handle(pool);
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    return get_pool(pool, device, default_pool_of);
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    return get_pool(pool, device, current_pool_of);
}

CUresult sim_cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = find_pool(handle);
    if (pool && pool->device != device) pool = NULL;
    if (pool) current_pool[device] = pool;
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    if (!out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    const unsigned types = (unsigned)props->handleTypes;
    if (types & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT)) return CUDA_ERROR_INVALID_VALUE;
    if (types & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (!is_device(props->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = new_pool(props->location.id, props->maxSize);
    if (pool) *out = sim_pool_handle(pool);
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemPoolDestroy(CUmemoryPool handle)
{
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = find_pool(handle);
    if (pool && pool->is_default) pool = NULL;
    if (pool) {
        if (current_pool[pool->device] == pool) current_pool[pool->device] = NULL;
        pool->destroyed = true;
        trim(pool, 0);
        if (!pool->blocks) unlink_pool(pool);
    }
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    CUresult result = sim_capture_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = find_pool(handle);
    if (pool) trim(pool, keep);
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_attribute(sim_pool *pool, CUmemPool_attribute attribute, const void *value)
{
    switch ((unsigned)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->reuse[attribute - 1] = *(const int *)value; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = *(const cuuint64_t *)value; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* these can only be started anew */
        if (*(const cuuint64_t *)value) return CUDA_ERROR_INVALID_VALUE;
        pool->reserved_high = pool->reserved;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const cuuint64_t *)value) return CUDA_ERROR_INVALID_VALUE;
        pool->used_high = pool->used;
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult get_attribute(const sim_pool *pool, CUmemPool_attribute attribute, void *value)
{
    switch ((unsigned)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = pool->reuse[attribute - 1]; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(cuuint64_t *)value = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(cuuint64_t *)value = pool->reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(cuuint64_t *)value = pool->reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(cuuint64_t *)value = pool->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = pool->used_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = find_pool(handle);
    CUresult result = pool ? set_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = find_pool(handle);
    CUresult result = pool ? get_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Read-only access does not exist for pools, and the owner keeps its own. */
static CUresult check_pool_access(const sim_pool *pool, const CUmemAccessDesc *desc)
{
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(desc->location.id)) return CUDA_ERROR_INVALID_VALUE;
    if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (desc->location.id == pool->device)
        return desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return sim_config.peers ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult sim_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *desc, size_t count)
{
    if (!desc || !count) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = find_pool(handle);
    CUresult result = pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) result = check_pool_access(pool, &desc[i]);
    if (result == CUDA_SUCCESS) {
        for (size_t i = 0; i < count; i++) pool->access[desc[i].location.id] = (unsigned char)desc[i].flags;
        for (sim_block *b = pool->blocks; b; b = b->sibling) memcpy(b->mapping.access, pool->access, sizeof pool->access);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(location->id)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = find_pool(handle);
    if (pool) *flags = (CUmemAccess_flags)pool->access[location->id];
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

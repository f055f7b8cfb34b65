/* The calls about pools themselves: the current one, their life, attributes and access. */
#include <string.h>

#include "pool.h"

static bool is_device(int device) { return device >= 0 && (unsigned)device < sim_config.devices; }

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
    return get_pool(pool, device, sim_pool_default);
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    return get_pool(pool, device, sim_pool_current);
}

CUresult sim_cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = sim_pool_find(handle);
    if (pool && !sim_pool_is_of(pool, device)) pool = NULL;
    if (pool) sim_current_pools[device] = pool;
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Devices and nodes that are not there are INVALID_VALUE here, unlike in cuMemCreate. */
static CUresult check_place(const CUmemLocation *location, unsigned handle_types)
{
    bool there = false;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) there = is_device(location->id);
    if (location->type == CU_MEM_LOCATION_TYPE_HOST) there = !handle_types;
    if (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        there = location->id >= 0 && (unsigned)location->id < sim_config.numa_nodes;
    if (!there || handle_types & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT))
        return CUDA_ERROR_INVALID_VALUE;
    return handle_types & CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

CUresult sim_cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    if (!out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_place(&props->location, (unsigned)props->handleTypes);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = sim_pool_new(props->location, props->maxSize);
    if (pool) *out = sim_pool_handle(pool);
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemPoolDestroy(CUmemoryPool handle)
{
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = sim_pool_find(handle);
    if (pool && pool->is_default) pool = NULL;
    if (pool) {
        for (int d = 0; d < SIM_MAX_DEVICES; d++)
            if (sim_current_pools[d] == pool) sim_current_pools[d] = NULL;
        pool->destroyed = true;
        if (pool->blocks) sim_pool_trim(pool, 0);
        else sim_pool_close(pool);
    }
    sim_memory_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    CUresult result = sim_capture_unsafe_call();
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = sim_pool_find(handle);
    if (pool) sim_pool_trim(pool, keep);
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
    sim_pool *pool = sim_pool_find(handle);
    CUresult result = pool ? set_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = sim_pool_find(handle);
    CUresult result = pool ? get_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Read-only access does not exist for pools, and the owner keeps its own. */
static CUresult check_pool_access(const sim_pool *pool, const CUmemAccessDesc *desc)
{
    if (desc->location.type == CU_MEM_LOCATION_TYPE_HOST || desc->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return sim_pool_on_device(pool) || !desc->flags ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(desc->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
    if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_pool_is_of(pool, desc->location.id))
        return desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    return sim_config.peers || !sim_pool_on_device(pool) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

static void set_access(sim_pool *pool, const CUmemAccessDesc *desc)
{
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return; /* the host has it already */
    pool->access[desc->location.id] = (unsigned char)desc->flags;
    if (!pool->window) return;
    uint64_t end = pool->window->base + pool->window->size;
    for (sim_mapping *m = sim_mapping_from(pool->window->base); m && m->base < end;
         m = sim_mapping_from(m->base + m->size))
        memcpy(m->access, pool->access, sizeof pool->access);
}

CUresult sim_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *desc, size_t count)
{
    if (!desc || !count) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = sim_pool_find(handle);
    CUresult result = pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) result = check_pool_access(pool, &desc[i]);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) set_access(pool, &desc[i]);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult sim_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!host && (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(location->id)))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = sim_pool_find(handle);
    unsigned own = pool && !sim_pool_on_device(pool) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (pool) *flags = (CUmemAccess_flags)(host ? own : pool->access[location->id]);
    pthread_mutex_unlock(&sim_lock);
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

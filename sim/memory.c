/* Physical memory, and where it is mapped: the virtual memory calls. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"

/* ---------------------------------------------------------------------------------------------
 * Physical memory
 * ------------------------------------------------------------------------------------------- */

static CUresult check_location(const CUmemLocation *location, CUmemAllocationHandleType handle_types)
{
    switch ((unsigned)location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return location->id >= 0 && (unsigned)location->id < sim_config.devices ? CUDA_SUCCESS
                                                                                : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST: /* any id */
        return handle_types == CU_MEM_HANDLE_TYPE_NONE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return location->id >= 0 && (unsigned)location->id < sim_config.numa_nodes ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_INVALID_VALUE;
    default: /* HOST_NUMA_CURRENT too, whatever its id */ return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                         unsigned long long flags)
{
    if (!handle || !prop || flags || !size || size % sim_config.granularity) return CUDA_ERROR_INVALID_VALUE;
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    const unsigned types = (unsigned)prop->requestedHandleTypes;
    if (types & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_location(&prop->location, prop->requestedHandleTypes);
    if (result != CUDA_SUCCESS) return result;

    pthread_mutex_lock(&sim_lock);
    sim_chunk *chunk;
    uint64_t value = 0;
    result = sim_chunk_create(&chunk, size, prop, true);
    if (result == CUDA_SUCCESS) {
        /* There may be no IMEX channel, but want of memory is noticed before. */
        result = types & CU_MEM_HANDLE_TYPE_FABRIC && !sim_config.fabric ? CUDA_ERROR_NOT_PERMITTED
                                                                         : sim_handle_create(&value, chunk, false);
        if (result != CUDA_SUCCESS) sim_chunk_drop(chunk);
    }
    sim_memory_unlock();
    if (result == CUDA_SUCCESS) *handle = value;
    sim_spend(sim_cost_of(SIM_COST_CREATE, size));
    return result;
}

CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&sim_lock);
    sim_handle *h = sim_handle_find(handle);
    bool last = h && h->object.references == 1 && !h->mappings && h->chunk->handles == 1;
    uint64_t size = last ? h->chunk->size : 0; /* only the last use costs what the pages cost */
    CUresult result = h ? sim_handle_release(h) : CUDA_ERROR_INVALID_VALUE;
    sim_memory_unlock();
    if (result == CUDA_SUCCESS) sim_spend(sim_cost_of(SIM_COST_RELEASE, size));
    return result;
}

CUresult sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_mapping_at((uint64_t)(uintptr_t)addr);
    if (m && !m->block) *handle = sim_handle_retain(m->handle);
    pthread_mutex_unlock(&sim_lock);
    return m && !m->block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_handle *h = sim_handle_find(handle);
    if (h) *prop = h->chunk->prop;
    if (h && h->imported) prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    pthread_mutex_unlock(&sim_lock);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Checks little, as the driver does. */
CUresult sim_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option)
{
    if (!granularity || !prop || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = sim_config.granularity;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * Mappings
 * ------------------------------------------------------------------------------------------- */

bool sim_show_to_host(sim_mapping *m, unsigned flags)
{
    if (flags != m->host_access && !m->outside) {
        void *at = (void *)(uintptr_t)m->base, *got;
        int protection = PROT_READ | (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_WRITE : 0);
        if (flags) got = mmap(at, m->size, protection, MAP_SHARED | MAP_FIXED, m->chunk->fd, (off_t)m->chunk->offset);
        else got = mmap(at, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (got == MAP_FAILED) return false;
        if (flags) m->chunk->written = true;
    }
    m->host_access = (unsigned char)flags;
    return true;
}

void sim_mapping_add(sim_mapping *m, uint64_t base, uint64_t size, sim_chunk *chunk)
{
    m->base = base;
    m->size = m->shown = size;
    m->chunk = chunk;
    chunk->mappings++;
    sim_mapping_insert(m);
}

void sim_mapping_remove(sim_mapping *m)
{
    if (m->host_access && !m->block) sim_show_to_host(m, 0);
    sim_mapping_take_out(m);
    m->chunk->mappings--;
    if (!m->handle) {
        sim_chunk_drop(m->chunk);
        return;
    }
    m->handle->mappings--;
    sim_handle_drop(m->handle);
}

/* What the memory is comes before where it shall be. */
static CUresult check_map(uint64_t ptr, uint64_t size, uint64_t offset, uint64_t handle, sim_handle **found)
{
    sim_handle *h = sim_handle_find(handle);
    if (!h) return CUDA_ERROR_INVALID_VALUE;
    if (offset || size != h->chunk->size) return CUDA_ERROR_NOT_SUPPORTED;
    if (ptr % sim_config.granularity || ptr > UINT64_MAX - size) return CUDA_ERROR_INVALID_VALUE;
    sim_reservation *r = sim_reservation_at(ptr);
    if (!r || r->plain) return CUDA_ERROR_INVALID_VALUE;
    sim_mapping *m = sim_mapping_from(ptr);
    if (m && m->base < ptr + size) return CUDA_ERROR_INVALID_VALUE;
    *found = h;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
    uint64_t g = sim_config.granularity;
    if (flags || !size || size % g || offset % g) return CUDA_ERROR_INVALID_VALUE;
    sim_mapping *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;

    sim_handle *h;
    pthread_mutex_lock(&sim_lock);
    CUresult result = check_map(ptr, size, offset, handle, &h);
    if (result == CUDA_SUCCESS) {
        uint64_t end = sim_first_outside(ptr, size);
        m->outside = end < ptr + size;
        m->handle = h;
        h->mappings++;
        sim_mapping_add(m, ptr, size, h->chunk);
        sim_object_add(&m->object, GVMM_SIM_MAPPING, ptr, size);
        if (m->outside)
            sim_finding("cuMemMap (call %llu): the mapping at 0x%llx runs past the end of its reservation at 0x%llx",
                        (unsigned long long)sim_call_number, (unsigned long long)ptr, (unsigned long long)end);
    }
    pthread_mutex_unlock(&sim_lock);

    if (result != CUDA_SUCCESS) free(m);
    else sim_spend(sim_cost_of(SIM_COST_MAP, size));
    return result;
}

/* Holes are fine, and so is what nobody reserved, except at the beginning; a part of a mapping is not. */
static CUresult check_unmap(uint64_t ptr, uint64_t size)
{
    if (sim_first_outside(ptr, 1) == ptr || ptr + size > SIM_ADDRESS_LIMIT) return CUDA_ERROR_INVALID_VALUE;
    sim_reservation *r = sim_reservation_at(ptr);
    if (r && r->plain) return CUDA_ERROR_INVALID_VALUE;
    for (sim_mapping *m = sim_mapping_from(ptr); m && m->base < ptr + size; m = sim_mapping_from(m->base + m->size))
        if (m->block || m->base < ptr || m->size > ptr + size - m->base) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    uint64_t g = sim_config.granularity, cost = 0;
    if (!size || ptr % g || size % g || ptr > UINT64_MAX - size) return CUDA_ERROR_INVALID_VALUE;
    sim_mapping *gone = NULL;
    pthread_mutex_lock(&sim_lock);
    CUresult result = check_unmap(ptr, size);
    if (result == CUDA_SUCCESS) {
        for (sim_mapping *m; (m = sim_mapping_from(ptr)) && m->base < ptr + size;) {
            cost += sim_cost_of(SIM_COST_UNMAP, m->size);
            sim_object_remove(&m->object);
            sim_mapping_remove(m);
            m->right = gone;
            gone = m;
        }
    }
    sim_memory_unlock();
    while (gone) {
        sim_mapping *next = gone->right;
        free(gone);
        gone = next;
    }
    sim_spend(cost);
    return result;
}

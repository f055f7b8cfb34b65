/* Memory mapped into a reservation. */
#include "internal.h"

/* The driver lets a mapping run past the end of its reservation; that is never meant. */
static bool lies_inside(const reservation *where, uint64_t address, size_t size)
{
    return address >= where->base && size <= where->size && address - where->base <= where->size - size;
}

gvmm_result gvmm__mapping_map(const mapping *m, CUmemGenericAllocationHandle handle)
{
    gvmm_result r = DRIVER(cuMemMap, m->address, m->memory->size, 0, handle, 0);
    if (r) return gvmm__about(r, "mapping", "%zu bytes at 0x%llx", m->memory->size, (unsigned long long)m->address);
    gvmm__account_add(m->memory->account, STAT_mapped_bytes, m->memory->size);
    return GVMM_OK;
}

gvmm_result gvmm__mapping_give_access(const mapping *first, size_t size)
{
    const memory *what = first->memory;
    if (!what->access_count) return GVMM_OK; /* the driver refuses an empty list */
    gvmm_result r = DRIVER(cuMemSetAccess, first->address, size, what->access, what->access_count);
    if (r) gvmm__about(r, "mapping", "%zu bytes at 0x%llx", size, (unsigned long long)first->address);
    return r;
}

void gvmm__mapping_unmap(const mapping *m)
{
    DRIVER_UNDO("mapping", m->address, cuMemUnmap, m->address, m->memory->size);
    gvmm__account_add(m->memory->account, STAT_mapped_bytes, -(uint64_t)m->memory->size);
}

/* With the memory's lock held. */
static gvmm_result map_and_open(const mapping *m, CUmemGenericAllocationHandle handle)
{
    gvmm_result r = gvmm__mapping_map(m, handle);
    if (r) return r;
    r = gvmm__mapping_give_access(m, m->memory->size);
    if (r) gvmm__mapping_unmap(m);
    return r;
}

gvmm_result gvmm__mapping_open(mapping *out, reservation *where, uint64_t address, memory *what)
{
    if (!lies_inside(where, address, what->size))
        return gvmm__fail(GVMM_E_INVALID, "mapping of %zu bytes at 0x%llx does not lie in its reservation", what->size,
                          (unsigned long long)address);
    memory *original = gvmm__memory_original(what);
    *out = (mapping){.address = address, .memory = what, .reservation = where};
    gvmm__memory_lock(what);
    gvmm_result r = original->resident ? map_and_open(out, original->handle) : GVMM_OK;
    if (!r) {
        out->next = original->mappings;
        original->mappings = out;
    }
    gvmm__memory_unlock(what);
    if (r) return r;
    gvmm__memory_retain(what);
    gvmm__reservation_retain(where);
    gvmm__account_add(what->account, STAT_mappings, 1);
    return GVMM_OK;
}

void gvmm__mapping_close(mapping *m)
{
    memory *original = gvmm__memory_original(m->memory);
    gvmm__memory_lock(original);
    mapping **at = &original->mappings; /* few: one, or one more for each move and view */
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    if (original->resident) gvmm__mapping_unmap(m);
    gvmm__memory_unlock(original);

    gvmm__account_add(m->memory->account, STAT_mappings, -1ull);
    gvmm__reservation_unclaim(m->reservation, m->address);
    gvmm__memory_release(m->memory);
    gvmm__reservation_release(m->reservation);
}

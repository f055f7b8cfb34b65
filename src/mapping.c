/* Memory mapped into a reservation. */
#include "internal.h"

/* The driver lets a mapping run past the end of its reservation; that is never meant. */
static bool lies_inside(const reservation *where, uint64_t address, size_t size)
{
    return address >= where->base && size <= where->size && address - where->base <= where->size - size;
}

gvmm_result gvmm__mapping_open(mapping *out, reservation *where, uint64_t address, memory *what)
{
    if (!lies_inside(where, address, what->size))
        return gvmm__fail(GVMM_E_INVALID, "mapping of %zu bytes at 0x%llx does not lie in its reservation", what->size,
                          (unsigned long long)address);

    gvmm_result r = DRIVER(cuMemMap, address, what->size, 0, what->handle, 0);
    if (r) return gvmm__about(r, "mapping", "%zu bytes at 0x%llx", what->size, (unsigned long long)address);

    if (what->access_count) { /* the driver refuses an empty list */
        r = DRIVER(cuMemSetAccess, address, what->size, what->access, what->access_count);
        if (r) {
            gvmm__about(r, "mapping", "%zu bytes at 0x%llx", what->size, (unsigned long long)address);
            DRIVER_UNDO("mapping", address, cuMemUnmap, address, what->size);
            return r;
        }
    }
    out->address = address;
    out->memory = gvmm__memory_retain(what);
    out->reservation = gvmm__reservation_retain(where);
    gvmm__account_add(what->account, STAT_mapped_bytes, what->size);
    gvmm__account_add(what->account, STAT_mappings, 1);
    return GVMM_OK;
}

void gvmm__mapping_close(mapping *m)
{
    DRIVER_UNDO("mapping", m->address, cuMemUnmap, m->address, m->memory->size);
    gvmm__account_add(m->memory->account, STAT_mapped_bytes, -(uint64_t)m->memory->size);
    gvmm__account_add(m->memory->account, STAT_mappings, -1ull);
    gvmm__memory_release(m->memory);
    gvmm__reservation_release(m->reservation);
}

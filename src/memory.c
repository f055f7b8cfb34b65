/* Physical memory. */
#include <string.h>

#include "internal.h"

/* A refused value is the caller's only where the library could not check it before: the driver alone knows the nodes. */
static gvmm_result better(gvmm_result r, const placement *p)
{
    gvmm_error error;
    gvmm_last_error(&error);
    bool on_host = p->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    if (r == GVMM_E_NO_DEVICE_MEMORY && on_host) return GVMM_E_NO_HOST_MEMORY;
    if (error.status == CUDA_ERROR_INVALID_VALUE && p->prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return GVMM_E_INVALID;
    return r;
}

static const char *place_name(const placement *p)
{
    switch (p->prop.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return "device";
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: return "host, numa_node";
    default: return "host";
    }
}

gvmm_result gvmm__memory_create(memory **out, const placement *p, size_t size, account *a)
{
    size_t list = p->access_count * sizeof p->access[0];
    memory *m = gvmm__alloc(sizeof *m + list);
    if (!m) return GVMM_E_NO_HOST_MEMORY;
    ref_init(&m->refs);
    m->size = size;
    m->device = p->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? p->prop.location.id : -1;
    m->access_count = p->access_count;
    for (unsigned i = 0; i < p->access_count; i++) m->access[i] = p->access[i];

    gvmm_result r = DRIVER(cuMemCreate, &m->handle, size, &p->prop, 0);
    if (r) {
        gvmm__free(m);
        return gvmm__about(better(r, p), "memory", "%zu bytes on %s %d", size, place_name(p), p->prop.location.id);
    }
    m->account = gvmm__account_retain(a);
    gvmm__account_add(a, STAT_physical_bytes, size);
    gvmm__account_add(a, STAT_memories, 1);
    *out = m;
    return GVMM_OK;
}

memory *gvmm__memory_retain(memory *m)
{
    ref_retain(&m->refs);
    return m;
}

void gvmm__memory_release(memory *m)
{
    if (!m || !ref_release(&m->refs)) return;
    DRIVER_UNDO("memory", m->handle, cuMemRelease, m->handle);
    gvmm__account_add(m->account, STAT_physical_bytes, -(uint64_t)m->size);
    gvmm__account_add(m->account, STAT_memories, -1ull);
    gvmm__account_release(m->account);
    gvmm__free(m);
}

/* Who may touch a mapping. */
#include <string.h>

#include "memory.h"

/* ---------------------------------------------------------------------------------------------
 * Access
 * ------------------------------------------------------------------------------------------- */

typedef struct grants {
    bool given[SIM_MAX_DEVICES], host_given;
    unsigned char flags[SIM_MAX_DEVICES], host_flags;
} grants;

/* Of two descriptors for one place the later counts. */
static CUresult read_grants(grants *g, const CUmemAccessDesc *desc, size_t count)
{
    memset(g, 0, sizeof *g);
    for (size_t i = 0; i < count; i++) {
        const CUmemLocation *where = &desc[i].location;
        unsigned flags = (unsigned)desc[i].flags;
        if (flags == 2 || flags > CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
        if (where->type == CU_MEM_LOCATION_TYPE_DEVICE) {
            if (where->id < 0 || (unsigned)where->id >= sim_config.devices) return CUDA_ERROR_INVALID_VALUE;
            g->given[where->id] = true;
            g->flags[where->id] = (unsigned char)flags;
        } else if (where->type == CU_MEM_LOCATION_TYPE_HOST || where->type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
            g->host_given = true;
            g->host_flags = (unsigned char)flags;
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult check_grants(const grants *g, const sim_mapping *m)
{
    bool on_host = sim_chunk_on_host(m->chunk);
    if (m->block) return CUDA_ERROR_INVALID_VALUE;
    if (g->host_flags && !on_host) return CUDA_ERROR_NOT_SUPPORTED; /* taking what it has not is fine */
    for (int d = 0; d < SIM_MAX_DEVICES && !sim_config.peers && !on_host; d++)
        if (g->given[d] && d != m->chunk->prop.location.id) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return CUDA_SUCCESS;
}

/* The range begins and ends with a mapping, whole; between them may be holes. */
static CUresult check_access_range(uint64_t ptr, uint64_t size, const grants *g)
{
    sim_mapping *m = sim_mapping_at(ptr);
    if (!m || m->base != ptr) return CUDA_ERROR_INVALID_VALUE;
    uint64_t reached = ptr;
    CUresult result = CUDA_SUCCESS;
    for (; m && m->base < ptr + size; m = sim_mapping_from(reached)) {
        reached = m->base + m->size;
        if (result == CUDA_SUCCESS) result = check_grants(g, m);
    }
    return reached == ptr + size ? result : CUDA_ERROR_INVALID_VALUE;
}

/* Where the first hole behind `ptr` begins: the driver stops there, and says nothing. */
static uint64_t first_hole(uint64_t ptr, uint64_t end)
{
    for (sim_mapping *m; ptr < end && (m = sim_mapping_at(ptr));) ptr = m->base + m->size;
    return ptr;
}

/* Opens the host mappings from `from` up to `to` as the grants say. Undoes what it did if the kernel refuses. */
static bool grant_host(uint64_t from, uint64_t to, const grants *g)
{
    for (sim_mapping *m = sim_mapping_from(from); m && m->base < to; m = sim_mapping_from(m->base + m->size)) {
        unsigned before = m->host_access;
        if (!sim_chunk_on_host(m->chunk)) continue;
        if (sim_show_to_host(m, g->host_flags)) {
            m->host_before = (unsigned char)before;
            continue;
        }
        for (sim_mapping *u = sim_mapping_from(from); u != m; u = sim_mapping_from(u->base + u->size))
            if (sim_chunk_on_host(u->chunk)) sim_show_to_host(u, u->host_before);
        return false;
    }
    return true;
}

/* Returns what it costs: a grant that is there already is nearly free. */
static uint64_t grant_devices(uint64_t from, uint64_t to, const grants *g)
{
    uint64_t cost = 0;
    for (sim_mapping *m = sim_mapping_from(from); m && m->base < to; m = sim_mapping_from(m->base + m->size)) {
        bool changed = g->host_given && sim_chunk_on_host(m->chunk);
        for (unsigned d = 0; d < sim_config.devices; d++) {
            if (!g->given[d] || m->access[d] == g->flags[d]) continue;
            m->access[d] = g->flags[d];
            changed = true;
        }
        if (changed) cost += sim_cost_of(SIM_COST_ACCESS, m->size);
    }
    return cost;
}

CUresult sim_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    uint64_t granularity = sim_config.granularity, cost = 0;
    if (!desc || !count || !size || ptr % granularity || size % granularity || ptr > UINT64_MAX - size)
        return CUDA_ERROR_INVALID_VALUE;
    grants g;
    CUresult result = read_grants(&g, desc, count);
    if (result != CUDA_SUCCESS) return result;

    pthread_mutex_lock(&sim_lock);
    result = check_access_range(ptr, size, &g);
    uint64_t end = first_hole(ptr, ptr + size);
    if (result == CUDA_SUCCESS && g.host_given && !grant_host(ptr, end, &g)) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) cost = grant_devices(ptr, end, &g);
    if (result == CUDA_SUCCESS && end < ptr + size)
        sim_finding("cuMemSetAccess (call %llu): changes nothing behind the hole at 0x%llx",
                    (unsigned long long)sim_call_number, (unsigned long long)end);
    pthread_mutex_unlock(&sim_lock);
    sim_spend(cost);
    return result;
}

/* Plain and pooled memory show none, whoever asks. Of device memory the host is told what device 0 may. */
static unsigned access_of(const sim_mapping *m, const CUmemLocation *who)
{
    if (m->block) return 0;
    if (who->type == CU_MEM_LOCATION_TYPE_DEVICE) return m->access[who->id];
    if (sim_chunk_on_host(m->chunk)) return m->host_access;
    return who->type == CU_MEM_LOCATION_TYPE_HOST ? m->access[0] : 0;
}

CUresult sim_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!host && location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_DEVICE;
    if (!host && (location->id < 0 || (unsigned)location->id >= sim_config.devices)) return CUDA_ERROR_INVALID_DEVICE;

    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_shown_at(ptr);
    if (m) *flags = access_of(m, location);
    pthread_mutex_unlock(&sim_lock);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Reservations, mappings, access: the virtual memory calls. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"
#include "tree.h"

/* Where reservations go. In the first region neither sanitizers nor the kernel put anything (it begins at the top, at a third
 * or, with an unlimited stack, at a sixth of the address space), so that an address there can only be a device's. The second
 * is for ThreadSanitizer, which leaves no other. */
#define ADDRESS_LIMIT ((uint64_t)1 << 47)
#define LOWEST_HINT   ((uint64_t)8 << 30)
#define FOREIGN_STEP  ((uint64_t)1 << 30)

typedef struct region {
    uint64_t start, end;
} region;

static const region regions[] = {{0x160000000000, 0x2a0000000000}, {0x001000000000, 0x008000000000}};

static const region *space;    /* the region in use; NULL until the first reservation */
static uint64_t next_place;    /* new reservations go behind the last one, so that stale addresses stay stale */
static uint64_t reserved_size; /* by the user's reservations */

SIM_TREE(reservation, sim_reservation, base, left, right)
SIM_TREE(mapping, sim_mapping, base, left, right)

static sim_reservation *reservations;
static sim_mapping *mappings;

/* ---------------------------------------------------------------------------------------------
 * What is at an address
 * ------------------------------------------------------------------------------------------- */

sim_mapping *sim_mapping_at(uint64_t address)
{
    sim_mapping *m = mapping_floor(mappings, address);
    return m && address - m->base < m->size ? m : NULL;
}

sim_mapping *sim_mapping_from(uint64_t address)
{
    sim_mapping *m = sim_mapping_at(address);
    return m ? m : mapping_ceiling(mappings, address);
}

sim_reservation *sim_reservation_at(uint64_t address)
{
    sim_reservation *r = reservation_floor(reservations, address);
    return r && address - r->base < r->size ? r : NULL;
}

static sim_reservation *reservation_from(uint64_t address)
{
    sim_reservation *r = sim_reservation_at(address);
    return r ? r : reservation_ceiling(reservations, address);
}

bool sim_in_device_space(uint64_t address)
{
    if (space && address >= space->start && address < space->end) return true;
    return sim_reservation_at(address) || sim_mapping_at(address);
}

bool sim_is_device_address(uint64_t ptr)
{
    pthread_mutex_lock(&sim_lock);
    bool is = sim_in_device_space(ptr);
    pthread_mutex_unlock(&sim_lock);
    return is;
}

/* The first byte of [base, base + size) that is neither mapped nor reserved; base + size if there is none. */
static uint64_t first_outside(uint64_t base, uint64_t size)
{
    uint64_t at = base, end = base + size;
    while (at < end) {
        sim_reservation *r = sim_reservation_at(at);
        sim_mapping *m = r ? NULL : sim_mapping_at(at);
        if (r) at = r->base + r->size;
        else if (m) at = m->base + m->size;
        else return at;
    }
    return end;
}

/* ---------------------------------------------------------------------------------------------
 * Who unmapped what: the last calls of a long time
 * ------------------------------------------------------------------------------------------- */

#define HISTORY 4096

static struct {
    uint64_t base, size, call;
    const char *name;
} history[HISTORY];
static uint64_t history_count;

static void remember_unmap(const sim_mapping *m)
{
    size_t i = history_count++ % HISTORY;
    history[i].base = m->base;
    history[i].size = m->size;
    history[i].call = sim_call_number;
    history[i].name = sim_call_name ? sim_call_name : "?";
}

bool sim_unmapped_by(uint64_t address, uint64_t *call, const char **name)
{
    uint64_t oldest = history_count > HISTORY ? history_count - HISTORY : 0;
    for (uint64_t n = history_count; n > oldest; n--) {
        size_t i = (n - 1) % HISTORY;
        if (address - history[i].base >= history[i].size) continue;
        *call = history[i].call;
        *name = history[i].name;
        return true;
    }
    return false;
}

/* ---------------------------------------------------------------------------------------------
 * Addresses
 * ------------------------------------------------------------------------------------------- */

/* Only if they are free. Not with MAP_FIXED_NOREPLACE: ThreadSanitizer makes that a fixed mapping at 0. */
static bool claim(uint64_t base, uint64_t size)
{
    void *got = mmap((void *)(uintptr_t)base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return false;
    if ((uint64_t)(uintptr_t)got == base) return true;
    munmap(got, size);
    return false;
}

/* The end of a reservation or mapping in the way, or 0. */
static uint64_t in_the_way(uint64_t base, uint64_t size)
{
    sim_reservation *r = reservation_from(base);
    if (r && r->base < base + size) return r->base + r->size;
    sim_mapping *m = sim_mapping_from(base);
    return m && m->base < base + size ? m->base + m->size : 0;
}

static void choose_space(void)
{
    if (space) return;
    space = &regions[0];
    if (claim(space->start, 4096)) munmap((void *)(uintptr_t)space->start, 4096);
    else space = &regions[1];
    next_place = space->start;
}

/* Anywhere in the process: what does not fit into the region. 0: nowhere. */
static uint64_t claim_elsewhere(uint64_t size, uint64_t alignment)
{
    uint64_t slack = alignment - 4096;
    if (size > ADDRESS_LIMIT - slack) return 0;
    void *got = mmap(NULL, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return 0;
    uint64_t start = (uint64_t)(uintptr_t)got, base = sim_round_up(start, alignment);
    if (base > start) munmap(got, base - start);
    uint64_t behind = start + size + slack - (base + size);
    if (behind) munmap((void *)(uintptr_t)(base + size), behind);
    if (!in_the_way(base, size)) return base;
    munmap((void *)(uintptr_t)base, size); /* under a mapping that runs past its reservation */
    return 0;
}

/* Addresses behind the last reservation, or the first that are free from the start of the region. 0: none. */
static uint64_t claim_any(uint64_t size, uint64_t alignment)
{
    choose_space();
    uint64_t at = sim_round_up(next_place, alignment);
    bool again = false;
    for (int foreign = 0; foreign < 64;) {
        if (at > space->end || size > space->end - at) {
            if (again) break;
            again = true;
            at = sim_round_up(space->start, alignment);
            continue;
        }
        uint64_t end = in_the_way(at, size);
        if (!end && claim(at, size)) {
            next_place = at + size;
            return at;
        }
        if (!end) {
            foreign++;
            end = at + FOREIGN_STEP;
        }
        at = sim_round_up(end, alignment);
    }
    return claim_elsewhere(size, alignment);
}

static uint64_t claim_hint(uint64_t hint, uint64_t size, uint64_t alignment)
{
    if (hint < LOWEST_HINT || hint % alignment || in_the_way(hint, size)) return 0;
    return claim(hint, size) ? hint : 0;
}

static CUresult reserve(sim_reservation *r, uint64_t size, uint64_t alignment, uint64_t hint)
{
    if (alignment < sim_config.granularity) alignment = sim_config.granularity;
    if (size >= ADDRESS_LIMIT || alignment >= ADDRESS_LIMIT || hint > ADDRESS_LIMIT - size) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t base = claim_hint(hint, size, alignment);
    if (!base) base = claim_any(size, alignment);
    if (!base) return CUDA_ERROR_OUT_OF_MEMORY;
    r->base = base;
    r->size = size;
    reservation_insert(&reservations, r);
    return CUDA_SUCCESS;
}

static void unreserve(sim_reservation *r)
{
    munmap((void *)(uintptr_t)r->base, r->size);
    reservation_remove(&reservations, r);
}

CUresult sim_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    uint64_t g = sim_config.granularity;
    if (!ptr || flags || !size || size % g || hint % g || (alignment & (alignment - 1))) return CUDA_ERROR_INVALID_VALUE;
    sim_reservation *r = calloc(1, sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;

    pthread_mutex_lock(&sim_lock);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (size <= sim_config.address_space && reserved_size <= sim_config.address_space - size)
        result = reserve(r, size, alignment, hint);
    if (result == CUDA_SUCCESS) {
        reserved_size += size;
        sim_object_add(&r->object, GVMM_SIM_RESERVATION, r->base, size);
        *ptr = r->base;
    }
    pthread_mutex_unlock(&sim_lock);

    if (result != CUDA_SUCCESS) free(r);
    sim_spend(sim_cost_of(SIM_COST_RESERVE, size));
    return result;
}

CUresult sim_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    pthread_mutex_lock(&sim_lock);
    sim_reservation *r = sim_reservation_at(ptr);
    if (r && (r->base != ptr || r->size != size || r->block)) r = NULL;
    sim_mapping *m = r ? sim_mapping_from(ptr) : NULL;
    if (m && m->base < ptr + size) r = NULL;
    if (r) {
        unreserve(r);
        reserved_size -= size;
        sim_object_remove(&r->object);
    }
    pthread_mutex_unlock(&sim_lock);
    if (!r) return CUDA_ERROR_INVALID_VALUE;
    free(r);
    sim_spend(sim_cost_of(SIM_COST_ADDRESS_FREE, size));
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * Physical memory
 * ------------------------------------------------------------------------------------------- */

static CUresult check_location(const CUmemLocation *location, CUmemAllocationHandleType handle_types)
{
    switch ((unsigned)location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return location->id >= 0 && (unsigned)location->id < sim_config.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST: /* any id */
        return handle_types == CU_MEM_HANDLE_TYPE_NONE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return location->id >= 0 && (unsigned)location->id < sim_config.numa_nodes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: /* HOST_NUMA_CURRENT too, whatever its id */
        return CUDA_ERROR_INVALID_VALUE;
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
    if (types & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED; /* there is no IMEX channel */

    pthread_mutex_lock(&sim_lock);
    sim_chunk *chunk;
    uint64_t value = 0;
    result = sim_chunk_create(&chunk, size, prop);
    if (result == CUDA_SUCCESS) {
        result = sim_handle_create(&value, chunk);
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
    bool last = h && h->chunk->handles == 1 && !h->chunk->mappings;
    uint64_t size = last ? h->chunk->size : 0; /* only the last use costs what the pages cost */
    CUresult result = sim_handle_release(handle);
    sim_memory_unlock();
    if (result == CUDA_SUCCESS) sim_spend(sim_cost_of(SIM_COST_RELEASE, size));
    return result;
}

CUresult sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_mapping_at((uint64_t)(uintptr_t)addr);
    uint64_t value = 0;
    CUresult result = m && !m->block ? sim_handle_create(&value, m->chunk) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim_lock);
    if (result == CUDA_SUCCESS) *handle = value;
    return result;
}

CUresult sim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_handle *h = sim_handle_find(handle);
    if (h) *prop = h->chunk->prop;
    pthread_mutex_unlock(&sim_lock);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Checks little, as the driver does. */
CUresult sim_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option)
{
    if (!granularity || !prop || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)prop->location.type - 1 >= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return CUDA_ERROR_INVALID_VALUE;
    *granularity = sim_config.granularity;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * Mappings
 * ------------------------------------------------------------------------------------------- */

/* Shows the mapping to the CPU as `flags` say. False: the kernel has no mappings left, and nothing has changed. */
static bool show_to_host(sim_mapping *m, unsigned flags)
{
    if (flags != m->host_access && !m->outside) {
        void *at = (void *)(uintptr_t)m->base, *got;
        int protection = PROT_READ | (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_WRITE : 0);
        if (flags)
            got = mmap(at, m->size, protection, MAP_SHARED | MAP_FIXED, m->chunk->fd, (off_t)m->chunk->offset);
        else
            got = mmap(at, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (got == MAP_FAILED) return false;
        if (flags) m->chunk->written = true;
    }
    m->host_access = (unsigned char)flags;
    return true;
}

static void add_mapping(sim_mapping *m, uint64_t base, uint64_t size, sim_chunk *chunk)
{
    m->base = base;
    m->size = size;
    m->chunk = chunk;
    chunk->mappings++;
    mapping_insert(&mappings, m);
}

static void remove_mapping(sim_mapping *m)
{
    if (m->host_access) show_to_host(m, 0);
    remember_unmap(m);
    mapping_remove(&mappings, m);
    m->chunk->mappings--;
    sim_chunk_drop(m->chunk);
}

static CUresult check_map(uint64_t ptr, uint64_t size, uint64_t offset, uint64_t handle, sim_chunk **chunk)
{
    sim_handle *h = sim_handle_find(handle);
    if (!h) return CUDA_ERROR_INVALID_VALUE;
    if (offset || size != h->chunk->size) return CUDA_ERROR_NOT_SUPPORTED;
    sim_reservation *r = sim_reservation_at(ptr);
    if (!r || r->block) return CUDA_ERROR_INVALID_VALUE;
    sim_mapping *m = sim_mapping_from(ptr);
    if (m && m->base < ptr + size) return CUDA_ERROR_INVALID_VALUE;
    *chunk = h->chunk;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    uint64_t g = sim_config.granularity;
    if (flags || !size || ptr % g || size % g || offset % g || ptr > UINT64_MAX - size) return CUDA_ERROR_INVALID_VALUE;
    sim_mapping *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;

    sim_chunk *chunk;
    pthread_mutex_lock(&sim_lock);
    CUresult result = check_map(ptr, size, offset, handle, &chunk);
    if (result == CUDA_SUCCESS) {
        uint64_t end = first_outside(ptr, size);
        m->outside = end < ptr + size;
        add_mapping(m, ptr, size, chunk);
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

/* Holes are fine; a part of a mapping, and addresses that nobody reserved, are not. */
static CUresult check_unmap(uint64_t ptr, uint64_t size)
{
    if (first_outside(ptr, size) != ptr + size) return CUDA_ERROR_INVALID_VALUE;
    sim_reservation *r = sim_reservation_at(ptr);
    if (r && r->block) return CUDA_ERROR_INVALID_VALUE;
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
            remove_mapping(m);
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
    if (g->host_given && !on_host) return CUDA_ERROR_NOT_SUPPORTED;
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

/* Opens the host mappings from `from` up to `to` as the grants say. Undoes what it did if the kernel refuses. */
static bool grant_host(uint64_t from, uint64_t to, const grants *g)
{
    for (sim_mapping *m = sim_mapping_from(from); m && m->base < to; m = sim_mapping_from(m->base + m->size)) {
        unsigned before = m->host_access;
        if (show_to_host(m, g->host_flags)) {
            m->host_before = (unsigned char)before;
            continue;
        }
        for (sim_mapping *u = sim_mapping_from(from); u != m; u = sim_mapping_from(u->base + u->size))
            show_to_host(u, u->host_before);
        return false;
    }
    return true;
}

/* Returns what it costs: a grant that is there already is nearly free. */
static uint64_t grant_devices(uint64_t from, uint64_t to, const grants *g)
{
    uint64_t cost = 0;
    for (sim_mapping *m = sim_mapping_from(from); m && m->base < to; m = sim_mapping_from(m->base + m->size)) {
        bool changed = g->host_given;
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
    if (result == CUDA_SUCCESS && g.host_given && !grant_host(ptr, ptr + size, &g)) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) cost = grant_devices(ptr, ptr + size, &g);
    pthread_mutex_unlock(&sim_lock);
    sim_spend(cost);
    return result;
}

CUresult sim_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!host && location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!host && (location->id < 0 || (unsigned)location->id >= sim_config.devices)) return CUDA_ERROR_INVALID_VALUE;

    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_mapping_at(ptr);
    if (m) *flags = host ? m->host_access : m->access[location->id];
    pthread_mutex_unlock(&sim_lock);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---------------------------------------------------------------------------------------------
 * Blocks: plain and pooled memory
 * ------------------------------------------------------------------------------------------- */

CUresult sim_block_make(sim_block **out, int device, size_t size, gvmm_sim_kind kind)
{
    uint64_t g = sim_config.granularity;
    if (!size || size > UINT64_MAX - g) return size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    sim_block *block = calloc(1, sizeof *block);
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_chunk *chunk;
    CUresult result = sim_chunk_create(&chunk, sim_round_up(size, g), &prop);
    if (result != CUDA_SUCCESS) goto free_block;
    result = reserve(&block->reservation, chunk->size, g, 0);
    if (result != CUDA_SUCCESS) goto drop_chunk;

    block->reservation.block = block;
    block->mapping.block = block;
    block->mapping.access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    add_mapping(&block->mapping, block->reservation.base, size, chunk);
    sim_object_add(&block->object, kind, block->reservation.base, size);
    *out = block;
    return CUDA_SUCCESS;

drop_chunk:
    sim_chunk_drop(chunk);
free_block:
    free(block);
    return result;
}

void sim_block_unmake(sim_block *block)
{
    sim_object_remove(&block->object);
    remove_mapping(&block->mapping);
    unreserve(&block->reservation);
    free(block);
}

/* Nothing is alive. Addresses and history start anew; ids do not. */
void sim_memory_reset(void)
{
    pthread_mutex_lock(&sim_lock);
    sim_pool_reset();
    sim_chunk_reset();
    history_count = 0;
    reserved_size = 0;
    if (space) next_place = space->start;
    sim_memory_unlock();
}

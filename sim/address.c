/* Addresses: what is at them, reserving and freeing them, and the blocks that cuMemAlloc gives. */
#include <stdlib.h>
#include <sys/mman.h>

#include "memory.h"
#include "tree.h"

/* Where reservations go. In the first region neither sanitizers nor the kernel put anything (it begins at the top, at a third
 * or, with an unlimited stack, at a sixth of the address space), so that an address there can only be a device's. The second
 * is for ThreadSanitizer, which leaves no other. */
#define LOWEST_HINT ((uint64_t)8 << 30)
#define FOREIGN_STEP ((uint64_t)1 << 30)

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

sim_mapping *sim_shown_at(uint64_t address)
{
    sim_mapping *m = mapping_floor(mappings, address);
    return m && address - m->base < m->shown ? m : NULL;
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

uint64_t sim_first_outside(uint64_t base, uint64_t size)
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

void sim_mapping_take_out(sim_mapping *m)
{
    size_t i = history_count++ % HISTORY;
    history[i].base = m->base;
    history[i].size = m->size;
    history[i].call = sim_call_number;
    history[i].name = sim_call_name ? sim_call_name : "?";
    mapping_remove(&mappings, m);
}

void sim_mapping_insert(sim_mapping *m) { mapping_insert(&mappings, m); }

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
    if (size > SIM_ADDRESS_LIMIT - slack) return 0;
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

static uint64_t claim_hint(uint64_t hint, uint64_t size)
{
    if (hint < LOWEST_HINT || in_the_way(hint, size)) return 0;
    return claim(hint, size) ? hint : 0;
}

static CUresult reserve(sim_reservation *r, uint64_t size, uint64_t alignment, uint64_t hint)
{
    if (alignment < sim_config.granularity) alignment = sim_config.granularity;
    if (size >= SIM_ADDRESS_LIMIT || alignment >= SIM_ADDRESS_LIMIT || hint > SIM_ADDRESS_LIMIT - size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t base = claim_hint(hint, size);
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

CUresult sim_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint,
                                 unsigned long long flags)
{
    uint64_t g = sim_config.granularity;
    if (!ptr || flags || !size || size % g || hint % g || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment && hint % alignment) return CUDA_ERROR_INVALID_VALUE;
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
    if (r && (r->base != ptr || r->size != size || r->plain)) r = NULL;
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
 * Plain memory
 * ------------------------------------------------------------------------------------------- */

CUresult sim_plain_reserve(sim_reservation *r, uint64_t size)
{
    r->plain = true;
    return reserve(r, size, sim_config.granularity, 0);
}

void sim_plain_unreserve(sim_reservation *r) { unreserve(r); }

CUresult sim_block_make(sim_block **out, int device, size_t size)
{
    uint64_t g = sim_config.granularity;
    if (!size || size > UINT64_MAX - g) return size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    sim_block *block = calloc(1, sizeof *block);
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_chunk *chunk;
    CUresult result = sim_chunk_create(&chunk, sim_round_up(size, g), &prop, true);
    if (result != CUDA_SUCCESS) goto free_block;
    result = sim_plain_reserve(&block->reservation, chunk->size);
    if (result != CUDA_SUCCESS) goto drop_chunk;

    block->mapping.block = block;
    block->mapping.access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sim_mapping_add(&block->mapping, block->reservation.base, size, chunk);
    sim_object_add(&block->object, GVMM_SIM_PLAIN, block->reservation.base, size);
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
    sim_mapping_remove(&block->mapping);
    unreserve(&block->reservation);
    free(block);
}

/* Nothing is alive but what an error keeps from being given back. Addresses and history start anew; ids do not. */
void sim_memory_reset(void)
{
    pthread_mutex_lock(&sim_lock);
    sim_plain_forget(NULL);
    sim_pool_reset();
    sim_chunk_reset();
    history_count = 0;
    reserved_size = 0;
    if (space) next_place = space->start;
    sim_memory_unlock();
}

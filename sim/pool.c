/* Stream-ordered pools. A pool has a window of addresses over one sparse chunk, and holds it in steps of 32 MiB; blocks lie in it
 * at multiples of 512 bytes, the first place that is large enough. A block is there as soon as it is asked for. From its free on
 * new calls do not see it, but what was queued before may touch it until the stream gets there; a new block on the same stream
 * may take its place at once. What is not in use is given back when somebody waits for work. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pool.h"

#define STEP ((uint64_t)32 << 20)
#define SMALL ((uint64_t)1 << 30) /* devices with less give granules */
#define ALIGNMENT 512u

static sim_pool *pools;
static sim_reservation *spare_windows; /* of pools that are gone: they are large, and addresses are not without end */
static sim_pool *default_pool[SIM_MAX_DEVICES];
sim_pool *sim_current_pools[SIM_MAX_DEVICES];
static uint64_t last_serial;
static atomic_bool may_trim; /* something went since pools were trimmed last */

CUmemoryPool sim_pool_handle(const sim_pool *pool) { return (CUmemoryPool)(uintptr_t)pool->id; }

sim_pool *sim_pool_find(CUmemoryPool handle)
{
    sim_pool *pool = pools;
    while (pool && (pool->id != (uint64_t)(uintptr_t)handle || pool->destroyed)) pool = pool->next;
    return pool;
}

sim_pool *sim_pool_new(CUmemLocation location, uint64_t most)
{
    sim_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->id = (uint64_t)(GVMM_SIM_KIND_COUNT + 2) << 40 | ++last_serial;
    pool->location = location;
    pool->step = sim_config.memory < SMALL || sim_config.granularity > STEP ? sim_config.granularity : STEP;
    pool->most = most && most < sim_config.memory ? most : sim_config.memory;
    for (int i = 0; i < 3; i++) pool->reuse[i] = 1;
    if (sim_pool_on_device(pool)) pool->access[location.id] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool->next = pools;
    pools = pool;
    return pool;
}

sim_pool *sim_pool_default(int device)
{
    if (!default_pool[device]) {
        default_pool[device] = sim_pool_new((CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device}, 0);
        if (default_pool[device]) default_pool[device]->is_default = true;
    }
    return default_pool[device];
}

sim_pool *sim_pool_current(int device)
{
    return sim_current_pools[device] ? sim_current_pools[device] : sim_pool_default(device);
}

/* ---------------------------------------------------------------------------------------------
 * The window and its steps
 * ------------------------------------------------------------------------------------------- */

static sim_reservation *take_window(uint64_t size)
{
    sim_reservation **link = &spare_windows;
    while (*link && (*link)->size != size) link = &(*link)->next_spare;
    sim_reservation *r = *link;
    if (r) {
        *link = r->next_spare;
        return r;
    }
    r = calloc(1, sizeof *r);
    if (!r || sim_plain_reserve(r, size) == CUDA_SUCCESS) return r;
    free(r);
    return NULL;
}

static void keep_window(sim_reservation *window)
{
    window->next_spare = spare_windows;
    spare_windows = window;
}

static CUresult open_window(sim_pool *pool)
{
    if (pool->window) return CUDA_SUCCESS;
    uint64_t size = sim_round_up(pool->most, pool->step);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = pool->location};
    pool->held = calloc(1, size / pool->step);
    if (!pool->held) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_chunk_create(&pool->chunk, size, &prop, false);
    if (result != CUDA_SUCCESS) goto free_held;
    pool->window = take_window(size);
    if (!pool->window) goto drop_chunk;
    pool->chunk->mappings++;
    pool->lowest = pool->window->base;
    return CUDA_SUCCESS;

drop_chunk:
    sim_chunk_drop(pool->chunk);
free_held:
    free(pool->held);
    pool->held = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Host memory is there for the CPU as long as it is held. */
static bool show_step(const sim_pool *pool, uint64_t at, bool on)
{
    if (sim_pool_on_device(pool)) return true;
    void *where = (void *)(uintptr_t)(pool->window->base + at), *got;
    if (on)
        got = mmap(where, pool->step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pool->chunk->fd,
                   (off_t)(pool->chunk->offset + at));
    else got = mmap(where, pool->step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (got != MAP_FAILED && on) pool->chunk->written = true;
    return got != MAP_FAILED;
}

static void release_step(sim_pool *pool, uint64_t index)
{
    uint64_t at = index * pool->step;
    show_step(pool, at, false);
    if (pool->chunk->written)
        fallocate(pool->chunk->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(pool->chunk->offset + at),
                  (off_t)pool->step);
    pool->held[index] = 0;
    pool->reserved -= pool->step;
    sim_memory_unhold(&pool->location, pool->step);
}

void sim_pool_trim(sim_pool *pool, uint64_t keep)
{
    if (!pool->window) return;
    for (uint64_t i = pool->window->size / pool->step; i-- > 0 && pool->reserved >= pool->step;) {
        if (pool->reserved - pool->step < keep) return;
        uint64_t at = pool->window->base + i * pool->step;
        sim_mapping *m = pool->held[i] ? sim_mapping_from(at) : NULL;
        if (pool->held[i] && (!m || m->base >= at + pool->step)) release_step(pool, i);
    }
}

/* Holds the steps that [at, at + size) lies in. OUT_OF_MEMORY: it holds no more than before. */
static CUresult hold(sim_pool *pool, uint64_t at, uint64_t size)
{
    uint64_t first = (at - pool->window->base) / pool->step, last = (at + size - 1 - pool->window->base) / pool->step;
    uint64_t missing = 0;
    for (uint64_t i = first; i <= last; i++) missing += pool->held[i] ? 0 : pool->step;
    if (missing > pool->window->size - pool->reserved || !sim_memory_hold(&pool->location, missing))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->reserved += missing;
    bool shown = true;
    for (uint64_t i = first; i <= last; i++) {
        if (pool->held[i]) continue;
        pool->held[i] = 1;
        shown = show_step(pool, i * pool->step, true) && shown;
    }
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    if (shown) return CUDA_SUCCESS;
    sim_pool_trim(pool, 0); /* the kernel has no mapping left */
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_pool_close(sim_pool *pool)
{
    sim_pool **link = &pools;
    while (*link != pool) link = &(*link)->next;
    *link = pool->next;
    sim_pool_trim(pool, 0);
    if (pool->window) {
        keep_window(pool->window);
        pool->chunk->mappings--;
        sim_chunk_drop(pool->chunk);
    }
    free(pool->held);
    free(pool);
}

/* A worker that never comes back from a user's function may still know a block: then that is left to it. */
static void forget_blocks(sim_pool *pool)
{
    uint64_t end = pool->window ? pool->window->base + pool->window->size : 0;
    for (sim_mapping *m; end && (m = sim_mapping_from(pool->window->base)) && m->base < end;) {
        sim_block *block = m->block;
        if (m->shown) sim_object_remove(&block->object);
        sim_mapping_remove(m);
        block->pool = NULL;
        if (!block->frees) free(block);
    }
}

void sim_pool_reset(void)
{
    for (sim_pool *pool = pools; pool; pool = pool->next) forget_blocks(pool);
    while (pools) sim_pool_close(pools);
    for (sim_reservation *window; (window = spare_windows);) {
        spare_windows = window->next_spare;
        sim_plain_unreserve(window);
        free(window);
    }
    memset(default_pool, 0, sizeof default_pool);
    memset(sim_current_pools, 0, sizeof sim_current_pools);
}

void sim_pools_synchronised(void)
{
    if (!atomic_exchange(&may_trim, false)) return;
    pthread_mutex_lock(&sim_lock);
    for (sim_pool *pool = pools; pool; pool = pool->next) sim_pool_trim(pool, pool->destroyed ? 0 : pool->threshold);
    sim_memory_unlock();
}

/* ---------------------------------------------------------------------------------------------
 * Blocks
 * ------------------------------------------------------------------------------------------- */

/* The first place for `size` bytes: 0 if there is none. A block whose free is queued on the same stream is one; then it
 * is `*again`. */
static uint64_t find_place(sim_pool *pool, uint64_t size, uint64_t stream, sim_block **again)
{
    uint64_t from = pool->lowest, end = pool->window->base + pool->window->size;
    *again = NULL;
    for (;;) {
        sim_mapping *m = sim_mapping_from(from);
        if (!m || m->base >= end) return size <= end - from ? from : 0;
        if (size <= m->base - from) return from;
        bool seen = m->shown != 0;
        if (!seen && stream && m->block->stream == stream && size <= sim_round_up(m->size, ALIGNMENT)) {
            *again = m->block;
            return m->base;
        }
        bool full = m->base == from && seen;
        uint64_t next = sim_round_up(m->base + m->size, ALIGNMENT);
        if (full && from == pool->lowest) pool->lowest = next;
        from = next;
        if (from >= end) return 0;
    }
}

static CUresult make_block(CUdeviceptr *ptr, sim_pool *pool, size_t size, uint64_t stream)
{
    CUresult result = open_window(pool);
    if (result != CUDA_SUCCESS) return result;
    sim_block *block;
    uint64_t at = find_place(pool, size, stream, &block);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    if (block) {
        if (block->mapping.size < size) block->mapping.size = size;
        block->mapping.shown = size;
    } else {
        block = calloc(1, sizeof *block);
        if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
        result = hold(pool, at, size);
        if (result != CUDA_SUCCESS) {
            free(block);
            return result;
        }
        block->pool = pool;
        block->mapping.block = block;
        block->mapping.offset = at - pool->window->base;
        if (!sim_pool_on_device(pool)) block->mapping.host_access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        memcpy(block->mapping.access, pool->access, sizeof pool->access);
        sim_mapping_add(&block->mapping, at, size, pool->chunk);
        pool->blocks++;
    }
    sim_object_add(&block->object, GVMM_SIM_POOLED, at, size);
    pool->used += size;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    *ptr = at;
    return CUDA_SUCCESS;
}

/* From here on new calls do not see it. */
static void hide(sim_block *block)
{
    sim_object_remove(&block->object);
    block->pool->used -= block->mapping.shown;
    block->mapping.shown = 0;
    if (block->mapping.base < block->pool->lowest) block->pool->lowest = block->mapping.base;
}

/* When no free of it is queued any more, the place is anybody's, or wholly that of the block that took it. */
static void settle(sim_block *block)
{
    sim_pool *pool = block->pool;
    if (block->frees) return;
    if (block->mapping.shown) {
        block->mapping.size = block->mapping.shown;
        if (block->mapping.base < pool->lowest) pool->lowest = block->mapping.base;
        return;
    }
    sim_mapping_remove(&block->mapping);
    free(block);
    pool->blocks--;
    atomic_store(&may_trim, true);
    if (pool->destroyed && !pool->blocks) sim_pool_close(pool);
}

void sim_pool_free(sim_block *block)
{
    hide(block);
    settle(block);
}

/* With sim_lock held. A full device takes back what the pools keep. */
static CUresult make_block_trimming(CUdeviceptr *ptr, sim_pool *pool, size_t size, uint64_t stream)
{
    CUresult result = make_block(ptr, pool, size, stream);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    for (sim_pool *p = pools; p; p = p->next) sim_pool_trim(p, 0);
    return make_block(ptr, pool, size, stream);
}

/* `handle` NULL: the device's current pool. */
static CUresult allocate_once(CUdeviceptr *ptr, size_t size, CUmemoryPool handle, int device, uint64_t stream)
{
    pthread_mutex_lock(&sim_lock);
    sim_pool *pool = handle ? sim_pool_find(handle) : sim_pool_current(device);
    CUresult result = pool     ? make_block_trimming(ptr, pool, size, stream)
                      : handle ? CUDA_ERROR_INVALID_VALUE
                               : CUDA_ERROR_OUT_OF_MEMORY;
    sim_memory_unlock();
    return result;
}

/* What tells streams apart, for reuse before a free has run; 0: not this one. The legacy stream is its context's. */
static uint64_t key_of(CUstream stream)
{
    CUcontext context = NULL;
    if (stream == CU_STREAM_PER_THREAD) return 0;
    if (stream && stream != CU_STREAM_LEGACY) return (uint64_t)(uintptr_t)stream;
    sim_cuCtxGetCurrent(&context);
    return (uint64_t)(uintptr_t)context;
}

static CUresult allocate(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
    int device;
    bool capturing;
    CUresult result = sim_stream_allocates(stream, &device, &capturing);
    if (result != CUDA_SUCCESS) return result;
    if (!ptr) return CUDA_ERROR_INVALID_VALUE;
    if (capturing) return CUDA_ERROR_NOT_SUPPORTED; /* it would be a node of the graph */
    *ptr = 0;
    if (!size) return CUDA_SUCCESS;
    uint64_t key = key_of(stream);
    result = allocate_once(ptr, size, pool, device, key);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    sim_wait_all(); /* frees that are still queued */
    return allocate_once(ptr, size, pool, device, key);
}

CUresult sim_cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
    return allocate(ptr, size, NULL, stream);
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
    return pool ? allocate(ptr, size, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

/* A free on its way through a stream. The block counts it, and so lives until it is done. */
typedef struct pending_free {
    sim_block *block;
    uint64_t ptr;
    uint64_t shown; /* what new calls saw before */
    bool done;
} pending_free;

static CUresult run_free(void *data, const sim_actor *who)
{
    pending_free *f = data;
    sim_call_number = who->call; /* for findings about work that comes later */
    sim_call_name = "cuMemFreeAsync";
    pthread_mutex_lock(&sim_lock);
    f->block->frees--;
    if (f->block->pool) settle(f->block);
    else sim_block_unmake(f->block);
    f->done = true;
    sim_memory_unlock();
    return CUDA_SUCCESS;
}

/* Where it was not freed after all, it is as before, unless somebody has its place by now. */
static void drop_free(void *data)
{
    pending_free *f = data;
    pthread_mutex_lock(&sim_lock);
    sim_block *block = f->done ? NULL : f->block;
    if (block) block->frees--;
    if (block && block->pool && block->mapping.shown) settle(block);
    if (block && block->pool && !block->mapping.shown && !block->frees) {
        block->mapping.shown = f->shown;
        block->pool->used += f->shown;
        sim_object_add_again(&block->object);
    }
    pthread_mutex_unlock(&sim_lock);
    free(f);
}

/* What `f->ptr` begins: a block that nobody frees yet. With sim_lock held. */
static sim_block *block_to_free(const pending_free *f)
{
    uint64_t call;
    const char *name;
    sim_mapping *m = sim_mapping_at(f->ptr);
    sim_block *block = m && m->base == f->ptr ? m->block : NULL;
    if (block && (block->pool ? m->shown : !block->frees)) return block;
    if (block)
        sim_finding("cuMemFreeAsync (call %llu): 0x%llx is being freed already", (unsigned long long)sim_call_number,
                    (unsigned long long)f->ptr);
    else if (!m && sim_unmapped_by(f->ptr, &call, &name))
        sim_finding("cuMemFreeAsync (call %llu): 0x%llx was given back by %s (call %llu) before",
                    (unsigned long long)sim_call_number, (unsigned long long)f->ptr, name, (unsigned long long)call);
    return NULL;
}

/* Pooled memory goes out of sight at once, memory of cuMemAlloc when the stream gets there. */
static CUresult begin_free(pending_free *f, uint64_t stream)
{
    pthread_mutex_lock(&sim_lock);
    sim_block *block = block_to_free(f);
    if (block) {
        f->block = block;
        f->shown = block->mapping.shown;
        block->frees++;
        block->stream = stream;
        if (block->pool) hide(block);
    }
    pthread_mutex_unlock(&sim_lock);
    return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    result = begin_free(f, key_of(stream));
    if (result == CUDA_SUCCESS) return sim_queue(stream, (sim_work){"cuMemFreeAsync", run_free, drop_free, f});
    free(f);
    return result;
}

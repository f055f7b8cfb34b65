/* cuMemAlloc, pinned and registered host memory, and what can be asked about a pointer. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "exec.h"
#include "memory.h"
#include "tree.h"

/* ---------------------------------------------------------------------------------------------
 * Plain device memory
 * ------------------------------------------------------------------------------------------- */

static sim_block *block_at_start(uint64_t ptr)
{
    sim_mapping *m = sim_shown_at(ptr);
    return m && m->block && m->base == ptr ? m->block : NULL;
}

/* For the calls of this file that wait for the device, or might: a context, and no capture that they disturb. */
static CUresult begin(sim_context **context)
{
    CUresult result = sim_current(context);
    return result == CUDA_SUCCESS ? sim_capture_unsafe_call() : result;
}

/* Giving back needs no context; a broken one refuses it. */
static CUresult begin_free(void)
{
    sim_context *context;
    CUresult result = sim_current(&context);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_CONTEXT ? sim_capture_unsafe_call() : result;
}

CUresult sim_cuMemGetInfo(size_t *available, size_t *total)
{
    sim_context *context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&sim_lock);
    uint64_t used = sim_memory_used(sim_context_device(context));
    sim_memory_unlock();
    if (available) *available = sim_config.memory - used;
    if (total) *total = sim_config.memory;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAlloc(CUdeviceptr *ptr, size_t size)
{
    sim_context *context;
    CUcontext handle = NULL;
    CUresult result = begin(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!ptr) return CUDA_ERROR_INVALID_VALUE;
    *ptr = 0;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    sim_cuCtxGetCurrent(&handle);

    sim_block *block;
    pthread_mutex_lock(&sim_lock);
    result = sim_block_make(&block, sim_context_device(context), size);
    if (result == CUDA_SUCCESS) {
        block->context = handle;
        *ptr = block->object.address;
    }
    sim_memory_unlock();
    return result;
}

/* Waits for all work, as the driver does. */
CUresult sim_cuMemFree(CUdeviceptr ptr)
{
    CUresult result = begin_free();
    if (result != CUDA_SUCCESS || !ptr) return result;
    sim_wait_all();

    uint64_t call;
    const char *name;
    pthread_mutex_lock(&sim_lock);
    sim_block *block = block_at_start(ptr);
    if (block && !block->pool && block->frees) block = NULL; /* another thread is faster */
    if (block && block->pool) sim_pool_free(block);
    else if (block) sim_block_unmake(block);
    else if (!sim_mapping_at(ptr) && sim_unmapped_by(ptr, &call, &name))
        sim_finding("cuMemFree (call %llu): 0x%llx was given back by %s (call %llu) before",
                    (unsigned long long)sim_call_number, (unsigned long long)ptr, name, (unsigned long long)call);
    sim_memory_unlock();
    sim_pools_synchronised();
    return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---------------------------------------------------------------------------------------------
 * Host memory that devices can reach: pinned (made here) and registered (the program's own)
 * ------------------------------------------------------------------------------------------- */

typedef struct host_range {
    sim_object object;
    uint64_t base, size;
    size_t mapped; /* bytes of ours; 0: registered */
    CUcontext context;
    struct host_range *left, *right;
} host_range;

SIM_TREE(host, host_range, base, left, right)

static host_range *host_ranges;

static host_range *host_at(uint64_t address)
{
    host_range *r = host_floor(host_ranges, address);
    return r && address - r->base < r->size ? r : NULL;
}

/* The first range that overlaps it, or NULL. */
static host_range *host_overlap(uint64_t base, uint64_t size)
{
    host_range *r = host_at(base);
    if (!r) r = host_ceiling(host_ranges, base);
    return r && (r->base < base || r->base - base < size) ? r : NULL;
}

bool sim_is_pinned(uint64_t address, uint64_t size)
{
    host_range *r = host_at(address);
    return r && size <= r->size - (address - r->base);
}

bool sim_is_partly_pinned(uint64_t address, uint64_t size)
{
    pthread_mutex_lock(&sim_lock);
    bool is = host_overlap(address, size) && !sim_is_pinned(address, size);
    pthread_mutex_unlock(&sim_lock);
    return is;
}

static CUresult add_host_range(host_range *r, gvmm_sim_kind kind, uint64_t base, uint64_t size)
{
    sim_cuCtxGetCurrent(&r->context);
    r->base = base;
    r->size = size;
    pthread_mutex_lock(&sim_lock);
    CUresult result = CUDA_SUCCESS;
    host_range *taken = host_overlap(base, size);
    if (!taken) {
        host_insert(&host_ranges, r);
        sim_object_add(&r->object, kind, base, size);
    } else {
        result = taken->mapped ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Ends the range that begins at `ptr`, if it is of that kind. `inside`: there is some range. */
static host_range *take_host_range(void *ptr, gvmm_sim_kind kind, bool *inside)
{
    pthread_mutex_lock(&sim_lock);
    host_range *r = host_at((uint64_t)(uintptr_t)ptr);
    *inside = r != NULL;
    if (r && (r->base != (uint64_t)(uintptr_t)ptr || r->object.kind != kind)) r = NULL;
    if (r) {
        host_remove(&host_ranges, r);
        sim_object_remove(&r->object);
    }
    pthread_mutex_unlock(&sim_lock);
    return r;
}

CUresult sim_cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
    const unsigned known = 7; /* portable, device map, write combined */
    sim_context *context;
    CUresult result = begin(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!ptr || flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    *ptr = NULL;
    if (!size) return CUDA_SUCCESS;
    if (size > SIZE_MAX - 4096) return CUDA_ERROR_OUT_OF_MEMORY;
    host_range *r = calloc(1, sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    r->mapped = sim_round_up(size, 4096);
    void *got = mmap(NULL, r->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = add_host_range(r, GVMM_SIM_PINNED, (uint64_t)(uintptr_t)got, size);
    if (result == CUDA_SUCCESS) {
        *ptr = got;
        return CUDA_SUCCESS;
    }
    munmap(got, r->mapped); /* under memory that was registered, and unmapped since */
    free(r);
    return result;
}

CUresult sim_cuMemAllocHost(void **ptr, size_t size) { return sim_cuMemHostAlloc(ptr, size, 0); }

CUresult sim_cuMemFreeHost(void *ptr)
{
    bool inside;
    CUresult result = begin_free();
    if (result != CUDA_SUCCESS || !ptr) return result;
    sim_wait_all();
    host_range *r = take_host_range(ptr, GVMM_SIM_PINNED, &inside);
    if (!r) return CUDA_ERROR_INVALID_VALUE;
    munmap(ptr, r->mapped);
    free(r);
    return CUDA_SUCCESS;
}

/* Is all of it in the program's address space? MS_ASYNC does nothing but look. */
static bool is_there(uint64_t base, uint64_t size)
{
    uint64_t start = base & ~(uint64_t)4095;
    return base <= UINT64_MAX - size && msync((void *)(uintptr_t)start, base + size - start, MS_ASYNC) == 0;
}

CUresult sim_cuMemHostRegister(void *ptr, size_t size, unsigned int flags)
{
    const unsigned known = 15; /* portable, device map, io memory, read only */
    uint64_t base = (uint64_t)(uintptr_t)ptr;
    sim_context *context;
    CUresult result = begin(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!ptr || !size || flags & ~known || sim_is_device_address(base) || !is_there(base, size))
        return CUDA_ERROR_INVALID_VALUE;
    host_range *r = calloc(1, sizeof *r);
    if (!r) return CUDA_ERROR_OUT_OF_MEMORY;
    result = add_host_range(r, GVMM_SIM_REGISTERED, base, size);
    if (result != CUDA_SUCCESS) free(r);
    return result;
}

CUresult sim_cuMemHostUnregister(void *ptr)
{
    sim_context *context;
    CUresult result = begin(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!ptr) return CUDA_ERROR_INVALID_VALUE;
    sim_wait_all();
    bool inside;
    host_range *r = take_host_range(ptr, GVMM_SIM_REGISTERED, &inside);
    free(r);
    if (r) return CUDA_SUCCESS;
    return inside ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult sim_cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned int flags)
{
    sim_context *context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!device || flags) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    bool known = sim_is_pinned((uint64_t)(uintptr_t)host, 1);
    pthread_mutex_unlock(&sim_lock);
    if (!known) return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)(uintptr_t)host; /* one address for both */
    return CUDA_SUCCESS;
}

/* The first block of the context, from an id on; NULL: of any. One whose free is on its way goes with that. */
static sim_block *block_of(const sim_context *context, uint64_t id)
{
    for (sim_object *o; (o = sim_object_from(GVMM_SIM_PLAIN, id)); id = o->id + 1) {
        sim_block *block = (sim_block *)o;
        if (!context || (block->context == (CUcontext)context && !block->frees)) return block;
    }
    return NULL;
}

static host_range *host_range_of(const sim_context *context, uint64_t base)
{
    host_range *r = host_ceiling(host_ranges, base);
    while (r && context && r->context != (CUcontext)context) r = host_ceiling(host_ranges, r->base + 1);
    return r;
}

static void wait_all_locked(void)
{
    uint64_t order = sim_order_now();
    for (sim_context *c = sim_context_next(NULL); c; c = sim_context_next(c)) sim_context_wait(c, order);
}

void sim_plain_forget(const sim_context *context)
{
    if (context && (block_of(context, 0) || host_range_of(context, 0))) wait_all_locked(); /* as a free does */
    for (sim_block *b; (b = block_of(context, 0));) sim_block_unmake(b);
    for (host_range *r; (r = host_range_of(context, 0));) {
        host_remove(&host_ranges, r);
        sim_object_remove(&r->object);
        if (r->mapped) munmap((void *)(uintptr_t)r->base, r->mapped);
        free(r);
    }
}

/* ---------------------------------------------------------------------------------------------
 * Pointers
 * ------------------------------------------------------------------------------------------- */

/* Of what the current device cannot read there is none. */
CUresult sim_cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    sim_context *context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_shown_at(ptr);
    if (m && !sim_may_touch(m, sim_context_device(context), false)) m = NULL;
    host_range *h = m ? NULL : host_at(ptr);
    if (base && (m || h)) *base = m ? m->base : h->base;
    if (size && (m || h)) *size = m ? m->shown : h->size;
    pthread_mutex_unlock(&sim_lock);
    return m || h ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* What is known about a pointer, all at once. */
typedef struct pointer_facts {
    bool known, on_host, rdma;
    bool in_context, device_reaches, host_reaches;
    uint64_t base, size, buffer, memory;
    int device;
    unsigned handle_types, access, sync_memops;
    CUcontext context;
    CUmemoryPool pool;
} pointer_facts;

static void mapping_facts(pointer_facts *f, const sim_mapping *m, int viewer)
{
    f->base = m->base;
    f->size = m->shown;
    f->buffer = m->block ? m->block->object.id : m->object.id;
    f->memory = m->block ? m->block->object.id : m->handle->object.id;
    f->on_host = sim_chunk_on_host(m->chunk);
    f->device = f->on_host ? 0 : m->chunk->prop.location.id;
    f->device_reaches = viewer >= 0 && sim_may_touch(m, viewer, false);
    f->host_reaches = f->on_host && m->host_access;
    f->rdma = m->chunk->prop.allocFlags.gpuDirectRDMACapable;
    if (!m->block) {
        f->handle_types = m->handle->imported ? 0 : (unsigned)m->chunk->prop.requestedHandleTypes;
        f->access = viewer < 0 ? 0 : m->access[viewer];
        return;
    }
    f->access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; /* whoever asks */
    f->context = m->block->context;
    f->sync_memops = m->block->sync_memops;
    f->pool = m->block->pool ? sim_pool_handle(m->block->pool) : NULL;
}

static pointer_facts facts_of(uint64_t ptr)
{
    pointer_facts f = {.known = false};
    sim_context *context;
    int viewer = sim_current(&context) == CUDA_SUCCESS ? sim_context_device(context) : -1;
    f.in_context = viewer >= 0;
    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_shown_at(ptr);
    host_range *h = m ? NULL : host_at(ptr);
    f.known = m || h;
    if (m) mapping_facts(&f, m, viewer);
    if (h) {
        f.base = h->base;
        f.size = h->size;
        f.buffer = f.memory = h->object.id;
        f.on_host = f.host_reaches = true;
        f.device_reaches = viewer >= 0;
        f.device = sim_context_device((const sim_context *)h->context);
        f.access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        f.context = h->context;
    }
    pthread_mutex_unlock(&sim_lock);
    return f;
}

/* The width of each answer is the attribute's own. */
static CUresult answer(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, const pointer_facts *f)
{
    switch ((unsigned)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = f->context; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = f->on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!f->device_reaches) return f->in_context ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
        *(CUdeviceptr *)data = ptr;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!f->host_reaches) return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)ptr;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = f->sync_memops; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = f->buffer; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = f->device; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)data = f->base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = f->size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)data = 1; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)data = f->handle_types; break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(int *)data = f->rdma; break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(unsigned *)data = f->access; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = f->pool; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(unsigned long long *)data = f->memory; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    pointer_facts f = facts_of(ptr);
    return f.known ? answer(data, attribute, ptr, &f) : CUDA_ERROR_INVALID_VALUE;
}

/* An unknown pointer is no error here: its answers are null. */
CUresult sim_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
    if (!count || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    pointer_facts f = facts_of(ptr);
    if (!f.known) f = (pointer_facts){.in_context = true, .device_reaches = true, .device = -2};
    for (unsigned i = 0; i < count; i++) {
        if (!data[i]) return CUDA_ERROR_INVALID_VALUE;
        bool null = !f.known;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER && !f.host_reaches) *(void **)data[i] = NULL;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && !f.device_reaches) *(CUdeviceptr *)data[i] = 0;
        else if (null && attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *(unsigned *)data[i] = 0;
        else if (null && attributes[i] == CU_POINTER_ATTRIBUTE_MAPPED) *(int *)data[i] = 0;
        else {
            CUresult result = answer(data[i], attributes[i], f.known ? ptr : 0, &f);
            if (result != CUDA_SUCCESS) return result;
        }
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_shown_at(ptr);
    CUresult result = !m ? CUDA_ERROR_INVALID_VALUE : !m->block ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) m->block->sync_memops = *(const unsigned *)value;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Memory of the virtual memory calls cannot be shared this way; plain memory could, but not between simulated devices. */
CUresult sim_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_mapping *m = sim_shown_at(ptr);
    bool plain = m && m->block && !m->block->pool;
    pthread_mutex_unlock(&sim_lock);
    return plain ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

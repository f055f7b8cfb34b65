/* The two functions that PyTorch's pluggable allocator wants: a pool for each device, made on first use. */
#include "internal.h"

enum { DEVICES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while a pool is made */
static _Atomic(gvmm_pool *) pools[DEVICES];

gvmm_pool *gvmm_torch_pool(int device)
{
    return device >= 0 && device < DEVICES ? atomic_load_explicit(&pools[device], memory_order_acquire) : NULL;
}

void gvmm__torch_end(void)
{
    for (int i = 0; i < DEVICES; i++) gvmm_pool_release(atomic_exchange(&pools[i], NULL));
}

static gvmm_result make_pool(gvmm_pool **out, int device)
{
    gvmm_resource *resource;
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.optional = GVMM_OPTIONAL_HANDLE;
    gvmm_result r = gvmm_resource_create(&resource, device, &options);
    if (r) return r;
    r = gvmm_pool_create(out, resource, NULL);
    gvmm_resource_release(resource); /* the pool holds it */
    return r;
}

static gvmm_result get_pool(gvmm_pool **out, int device)
{
    *out = gvmm_torch_pool(device);
    if (*out) return GVMM_OK;
    if (gvmm__in_child()) return gvmm__fail_in_child();
    if (device < 0 || device >= DEVICES) return gvmm__fail(GVMM_E_INVALID, "there is no device %d", device);
    pthread_mutex_lock(&lock);
    *out = gvmm_torch_pool(device);
    gvmm_result r = *out ? GVMM_OK : make_pool(out, device);
    if (!r) atomic_store_explicit(&pools[device], *out, memory_order_release);
    pthread_mutex_unlock(&lock);
    return r;
}

void *gvmm_torch_malloc(ptrdiff_t size, int device, gvmm_stream stream)
{
    gvmm_pool *pool;
    uint64_t address = 0;
    if (size == 0) return NULL;
    gvmm_result r = size < 0 ? gvmm__fail(GVMM_E_INVALID, "size %td is negative", size) : get_pool(&pool, device);
    if (!r) r = gvmm_pool_malloc(&address, pool, (size_t)size, stream);
    if (r) gvmm__warn_last("gvmm_torch_malloc", 0);
    return (void *)(uintptr_t)address;
}

void gvmm_torch_free(void *ptr, ptrdiff_t size, int device, gvmm_stream stream)
{
    (void)size;
    if (!ptr) return;
    gvmm_pool *pool = gvmm_torch_pool(device);
    gvmm_result r = pool ? gvmm_pool_free(pool, (uint64_t)(uintptr_t)ptr, stream)
                         : gvmm__fail(GVMM_E_INVALID, "nothing was allocated on device %d", device);
    if (r) gvmm__warn_last("gvmm_torch_free", (uint64_t)(uintptr_t)ptr);
}

/* Host memory and small locks. */
#include <sched.h>
#include <stdlib.h>

#include "internal.h"

bool (*gvmm__host_fault)(void);

static gvmm_host_allocator allocator = {malloc, free};
static atomic_ullong held;

void gvmm__hold(void) { atomic_fetch_add(&held, 1); }
void gvmm__unhold(void) { atomic_fetch_sub(&held, 1); }
bool gvmm__held(void) { return atomic_load(&held) != 0; }

gvmm_result gvmm_host_allocator_install(const gvmm_host_allocator *replacement)
{
    if (gvmm__held())
        return gvmm__fail(GVMM_E_INVALID, "the host allocator cannot be replaced while a resource is alive");
    if (replacement && (!replacement->allocate || !replacement->deallocate))
        return gvmm__fail(GVMM_E_INVALID, "allocator: both functions must be given");
    allocator = replacement ? *replacement : (gvmm_host_allocator){malloc, free};
    return GVMM_OK;
}

void *gvmm__alloc(size_t size)
{
    void *ptr = gvmm__host_fault && gvmm__host_fault() ? NULL : allocator.allocate(size);
    if (!ptr) gvmm__fail(GVMM_E_NO_HOST_MEMORY, "out of host memory: %zu bytes", size);
    return ptr;
}

void gvmm__free(void *ptr) { allocator.deallocate(ptr); }

void gvmm__lock_contended(small_lock *lock)
{
    while (atomic_flag_test_and_set_explicit(lock, memory_order_acquire)) sched_yield();
}

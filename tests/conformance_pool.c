/* L: plain memory and stream-ordered pools. */
#include "conformance.h"

#define MiB ((size_t)1 << 20)

/* ---- plain memory ---- */

FACT(L_alloc, "cuMemAlloc gives memory aligned to 256 bytes or better.")
{
    CUdeviceptr p = 0;
    tell("", try_alloc(&p, 1000));
    say("aligned=%d", p % 256 == 0);
}
FACT(L_alloc_zero, "cuMemAlloc of no bytes.")
{
    CUdeviceptr p = 99;
    tell("", try_alloc(&p, 0));
    say("written=%d", p != 99);
}
FACT(L_alloc_too_much, "cuMemAlloc of more than is free.")
{
    CUdeviceptr p = 0;
    tell("", try_alloc(&p, free_bytes() + 64 * G));
}
FACT(L_free_0, "cuMemFree of 0.") { TELL("", cuMemFree(0)); }
FACT(L_free_twice, "cuMemFree twice.")
{
    CUdeviceptr p = plain(G);
    DO(cuMemFree(GONE(p)));
    TELL("", cuMemFree(p));
}
FACT(L_free_inside, "cuMemFree of an inner address.") { TELL("", cuMemFree(plain(G) + 256)); }
FACT(L_free_mapped, "cuMemFree of mapped memory.") { TELL("", cuMemFree(buffer(G))); }
FACT(L_free_reserved, "cuMemFree of reserved addresses.") { TELL("", cuMemFree(reserve(G))); }
FACT(L_free_pinned, "cuMemFree of pinned memory.")
{
    void *p = NULL;
    setup(try_alloc_host(&p, 4096), "cuMemAllocHost", __FILE__, __LINE__);
    TELL("", cuMemFree((CUdeviceptr)(uintptr_t)p));
}
FACT(L_unmap_plain, "cuMemUnmap of memory from cuMemAlloc.") { TELL("", cuMemUnmap(plain(2 * G), 2 * G)); }
FACT(L_plain_counts, "cuMemAlloc lowers free memory, cuMemFree raises it.")
{
    size_t size = 64 * G, before = free_bytes();
    CUdeviceptr p = plain(size);
    say("moved=%d", free_moved(before, size));
    DO(cuMemFree(GONE(p)));
    say("moved=%d", free_moved(before, size));
}

/* ---- pools ---- */

static CUmemoryPool default_pool(void)
{
    CUmemoryPool pool = NULL;
    DO(cuDeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

static cuuint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t value = 0;
    DO(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static void undo_pool(uint64_t pool, size_t size)
{
    (void)size;
    drv->cuMemPoolDestroy((CUmemoryPool)(uintptr_t)pool);
}

static CUmemPoolProps pool_props(void)
{
    CUmemPoolProps props;
    memset(&props, 0, sizeof props);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = location(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    return props;
}

static CUmemoryPool new_pool(void)
{
    CUmemPoolProps props = pool_props();
    CUmemoryPool pool = NULL;
    DO(cuMemPoolCreate(&pool, &props));
    undo_later(undo_pool, (uint64_t)(uintptr_t)pool, 0);
    return pool;
}

static CUdeviceptr from_pool(CUmemoryPool pool, size_t size, CUstream s) /* the fact frees it */
{
    CUdeviceptr p = 0;
    DO(cuMemAllocFromPoolAsync(&p, size, pool, s));
    return p;
}

static void say_held(const char *label, CUmemoryPool pool) /* in MiB */
{
    say("%s=%llu/%llu", label, attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) / MiB,
        attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) / MiB);
}

FACT(L_pool_basic, "Pool memory is allocated, written, read and freed on one stream.")
{
    CUstream s = stream();
    CUdeviceptr p = 0;
    unsigned char bytes[4] = {0};
    TELL("alloc", cuMemAllocAsync(&p, G, s));
    TELL("memset", cuMemsetD8Async(p, 5, G, s));
    TELL("copy", cuMemcpyDtoHAsync(bytes, p, sizeof bytes, s));
    TELL("free", cuMemFreeAsync(p, s));
    TELL("synchronize", cuStreamSynchronize(s));
    say("byte=%d", bytes[3]);
}
FACT(L_pool_zero, "Allocating no bytes from a pool.")
{
    CUdeviceptr p = 0;
    tell("", try_alloc_async(&p, 0, stream()));
}
FACT(L_pool_other_stream, "Pool memory used on another stream without waiting is accepted.")
{
    CUstream s = stream(), t = stream();
    CUdeviceptr p = 0;
    TELL("alloc", cuMemAllocAsync(&p, G, s));
    TELL("memset", cuMemsetD8Async(p, 5, G, t));
    TELL("synchronize", cuStreamSynchronize(t));
    TELL("free", cuMemFreeAsync(p, t));
}
FACT(L_pool_behind_gate, "Pool memory allocated behind running work has its address at once.")
{
    CUstream s = stream();
    CUdeviceptr p = 0;
    gate *g = gate_on(s);
    TELL("alloc", cuMemAllocAsync(&p, G, s));
    say("address=%d", p != 0);
    TELL("free", cuMemFreeAsync(p, s));
    gate_open(g);
    TELL("synchronize", cuStreamSynchronize(s));
}
FACT(L_pool_use_freed, "A memset of pool memory after it was freed on the stream.")
{
    CUstream s = stream();
    CUdeviceptr p = 0;
    DO(cuMemAllocAsync(&p, G, s));
    DO(cuMemFreeAsync(p, s));
    DO(cuStreamSynchronize(s));
    TELL("", cuMemsetD8Async(p, 5, 16, s));
}
FACT(L_pool_free_twice, "Freeing pool memory twice.")
{
    CUstream s = stream();
    CUdeviceptr p = 0;
    DO(cuMemAllocAsync(&p, G, s));
    DO(cuMemFreeAsync(p, s));
    TELL("", cuMemFreeAsync(p, s));
}
FACT(L_pool_free_0, "cuMemFreeAsync of 0.") { TELL("", cuMemFreeAsync(0, stream())); }
FACT(L_pool_free_mapped, "cuMemFreeAsync of mapped memory.") { TELL("", cuMemFreeAsync(buffer(G), stream())); }
FACT(L_pool_free_inside, "cuMemFreeAsync of an inner address.")
{
    CUstream s = stream();
    CUdeviceptr p = 0;
    setup(try_alloc_async(&p, G, s), "cuMemAllocAsync", __FILE__, __LINE__);
    TELL("", cuMemFreeAsync(p + 512, s));
}
FACT(L_pool_free_plain, "cuMemFreeAsync of memory from cuMemAlloc.")
{
    CUstream s = stream();
    CUdeviceptr p = plain(G);
    CUresult r = drv->cuMemFreeAsync(p, s);
    tell("", r);
    if (!r) forget(p);
    DO(cuStreamSynchronize(s));
}
FACT(L_pool_free_plainly, "cuMemFree of pool memory.")
{
    CUstream s = stream();
    CUdeviceptr p = 0;
    setup(try_alloc_async(&p, G, s), "cuMemAllocAsync", __FILE__, __LINE__);
    DO(cuStreamSynchronize(s));
    CUresult r = drv->cuMemFree(p);
    tell("", r);
    if (!r) forget(p);
}
FACT(L_pool_threshold, "A pool's release threshold is 0 at first, and can be set.")
{
    CUmemoryPool pool = new_pool();
    cuuint64_t value = ~0ull;
    say("first=%llu", attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    TELL("set", cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    say("same=%d", attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == value);
}
FACT(L_pool_held_0, "What a pool with threshold 0 uses/holds (MiB): fresh, allocated 64, freed, synchronised.")
{
    CUmemoryPool pool = new_pool();
    CUstream s = stream();
    say_held("fresh", pool);
    CUdeviceptr p = from_pool(pool, 64 * MiB, s);
    say_held("allocated", pool);
    DO(cuMemFreeAsync(p, s));
    DO(cuStreamSynchronize(s));
    say_held("synchronised", pool);
}
FACT(L_pool_held_max,
     "What a pool with the largest threshold uses/holds (MiB): allocated 64, freed and synchronised, trimmed.")
{
    CUmemoryPool pool = new_pool();
    CUstream s = stream();
    cuuint64_t value = ~0ull;
    DO(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    CUdeviceptr p = from_pool(pool, 64 * MiB, s);
    say_held("allocated", pool);
    DO(cuMemFreeAsync(p, s));
    DO(cuStreamSynchronize(s));
    say_held("synchronised", pool);
    TELL("trim", cuMemPoolTrimTo(pool, 0));
    say_held("trimmed", pool);
}
FACT(L_pool_small, "What a pool holds (MiB) for one allocation of 512 bytes.")
{
    CUmemoryPool pool = new_pool();
    CUstream s = stream();
    CUdeviceptr p = from_pool(pool, 512, s);
    say("used=%llu", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    say_held("held", pool);
    DO(cuMemFreeAsync(p, s));
    DO(cuStreamSynchronize(s));
}
FACT(L_pool_reuse, "With the largest threshold, memory freed on a stream is given to the stream's next allocation.")
{
    CUmemoryPool pool = new_pool();
    CUstream s = stream();
    cuuint64_t value = ~0ull;
    DO(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    CUdeviceptr p = from_pool(pool, 4 * MiB, s);
    DO(cuMemFreeAsync(p, s));
    CUdeviceptr q = from_pool(pool, 4 * MiB, s);
    say("same=%d", p == q);
    DO(cuMemFreeAsync(q, s));
    DO(cuStreamSynchronize(s));
}
FACT(L_pool_no_reuse, "Memory freed behind running work is not given to another stream.")
{
    CUmemoryPool pool = new_pool();
    CUstream s = stream(), t = stream();
    CUdeviceptr p = from_pool(pool, 4 * MiB, s);
    gate *g = gate_on(s);
    DO(cuMemFreeAsync(p, s));
    CUdeviceptr q = from_pool(pool, 4 * MiB, t);
    say("same=%d", p == q);
    gate_open(g);
    DO(cuMemFreeAsync(q, t));
    DO(cuStreamSynchronize(s));
    DO(cuStreamSynchronize(t));
}
FACT(L_pool_high, "High-water marks can be read and reset to 0 only (MiB used, held).")
{
    CUmemoryPool pool = new_pool();
    CUstream s = stream();
    cuuint64_t zero = 0, one = 1;
    CUdeviceptr p = from_pool(pool, 64 * MiB, s);
    DO(cuMemFreeAsync(p, s));
    DO(cuStreamSynchronize(s));
    say("high=%llu/%llu", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) / MiB,
        attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) / MiB);
    TELL("zero", cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    TELL("one", cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
    TELL("current", cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero));
    say("high=%llu", attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) / MiB);
}
FACT(L_pool_reuse_flags, "The three reuse attributes are on at first.")
{
    int value = 9;
    CUmemoryPool pool = new_pool();
    for (int a = 1; a <= 3; a++) {
        DO(cuMemPoolGetAttribute(pool, (CUmemPool_attribute)a, &value));
        say("%d", value);
    }
}
FACT(L_pool_attribute_99, "An unknown pool attribute.")
{
    cuuint64_t value = 0;
    TELL("get", cuMemPoolGetAttribute(default_pool(), (CUmemPool_attribute)99, &value));
    TELL("set", cuMemPoolSetAttribute(default_pool(), (CUmemPool_attribute)99, &value));
}
FACT(L_pool_attributes, "Pointer attributes of pool memory: type, pool, ordinal; its range.")
{
    CUdeviceptr p = 0, base = 0;
    CUmemoryPool pool = NULL;
    unsigned type = 9;
    size_t size = 0;
    CUstream s = stream();
    setup(try_alloc_async(&p, 1000, s), "cuMemAllocAsync", __FILE__, __LINE__);
    DO(cuStreamSynchronize(s));
    TELL("type", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    say("%u", type);
    TELL("pool", cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    say("default=%d", pool == default_pool());
    TELL("range", cuMemGetAddressRange(&base, &size, p));
    say("base=%d size=%zu", base == p, size);
}
FACT(L_pool_current, "The current pool is the default pool; another can be made current.")
{
    CUmemoryPool pool = NULL, mine = new_pool();
    TELL("get", cuDeviceGetMemPool(&pool, 0));
    say("default=%d", pool == default_pool());
    TELL("set", cuDeviceSetMemPool(0, mine));
    DO(cuDeviceGetMemPool(&pool, 0));
    say("mine=%d", pool == mine);
    DO(cuDeviceSetMemPool(0, default_pool()));
}
FACT(L_pool_destroy_current, "Destroying the current pool makes the default pool current.")
{
    CUmemoryPool pool = NULL, mine = new_pool();
    DO(cuDeviceSetMemPool(0, mine));
    TELL("destroy", cuMemPoolDestroy(GONE(mine)));
    DO(cuDeviceGetMemPool(&pool, 0));
    say("default=%d", pool == default_pool());
    DO(cuDeviceSetMemPool(0, default_pool()));
}
FACT(L_pool_destroy_default, "Destroying the default pool.") { TELL("", cuMemPoolDestroy(default_pool())); }
FACT(L_pool_destroy_used, "Destroying a pool whose memory is in use: the memory stays until it is freed.")
{
    CUmemoryPool pool = new_pool();
    CUstream s = stream();
    CUdeviceptr p = from_pool(pool, 4 * MiB, s);
    TELL("destroy", cuMemPoolDestroy(GONE(pool)));
    TELL("memset", cuMemsetD8Async(p, 1, 4 * MiB, s));
    TELL("free", cuMemFreeAsync(p, s));
    TELL("synchronize", cuStreamSynchronize(s));
}
FACT(L_pool_create_wrong, "Creating pools: type 0, a device that is not there, location 0, a host location, usage 1.")
{
    for (int i = 0; i < 5; i++) {
        CUmemPoolProps props = pool_props();
        CUmemoryPool pool = NULL;
        if (i == 0) props.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
        if (i == 1) props.location.id = 99;
        if (i == 2) props.location.type = CU_MEM_LOCATION_TYPE_INVALID;
        if (i == 3) props.location.type = CU_MEM_LOCATION_TYPE_HOST;
        if (i == 4) props.usage = 1;
        CUresult r = drv->cuMemPoolCreate(&pool, &props);
        tell("", r);
        if (!r) DO(cuMemPoolDestroy(pool));
    }
}
FACT(L_pool_access, "A pool's access: its own device; taking it away.")
{
    CUmemoryPool pool = new_pool();
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemLocation own = location(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    TELL("get", cuMemPoolGetAccess(&flags, pool, &own));
    say("%d", (int)flags);
    CUmemAccessDesc access = {own, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    TELL("none", cuMemPoolSetAccess(pool, &access, 1));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    TELL("read", cuMemPoolSetAccess(pool, &access, 1));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    TELL("read-write", cuMemPoolSetAccess(pool, &access, 1));
}

/* H: memory on the host: locations, pinned, registered. */
#include "conformance.h"

enum {
    HOST = CU_MEM_LOCATION_TYPE_HOST,
    NUMA = CU_MEM_LOCATION_TYPE_HOST_NUMA,
    NUMA_CURRENT = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
};

static CUresult create_at(handle *h, int type, int id, int handles)
{
    CUmemAllocationProp prop = on_device;
    prop.location = location((CUmemLocationType)type, id);
    prop.requestedHandleTypes = (CUmemAllocationHandleType)handles;
    return try_create(h, G, prop, 0);
}

static void say_create(int type, int id, int handles)
{
    handle h = 0;
    tell("", create_at(&h, type, id, handles));
}

FACT(H_create_host, "Creating memory at the host.") { say_create(HOST, 0, 0); }
FACT(H_create_host_minus_1, "Creating memory at host -1.") { say_create(HOST, -1, 0); }
FACT(H_create_host_7, "Creating memory at host 7.") { say_create(HOST, 7, 0); }
FACT(H_create_host_fd, "Creating exportable memory at the host.") { say_create(HOST, 0, 1); }
FACT(H_create_numa, "Creating memory at NUMA node 0.") { say_create(NUMA, 0, 0); }
FACT(H_create_numa_fd, "Creating exportable memory at NUMA node 0.") { say_create(NUMA, 0, 1); }
FACT(H_create_numa_minus_1, "Creating memory at NUMA node -1.") { say_create(NUMA, -1, 0); }
FACT(H_create_numa_5, "Creating memory at a NUMA node that is not there.") { say_create(NUMA, 5, 0); }
FACT(H_create_current, "Creating memory at the current NUMA node.") { say_create(NUMA_CURRENT, 0, 0); }
FACT(H_create_current_fd, "Creating exportable memory at the current NUMA node.") { say_create(NUMA_CURRENT, 0, 1); }

/* ---- host locations: access ---- */

static CUdeviceptr host_mapping(int type)
{
    handle h = 0;
    setup(create_at(&h, type, 0, 0), "cuMemCreate", __FILE__, __LINE__);
    CUdeviceptr p = reserve(G);
    map(p, G, h);
    return p;
}

static CUresult open_to_host(CUdeviceptr p, int type, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {location((CUmemLocationType)type, 0), flags};
    return drv->cuMemSetAccess(p, G, &access, 1);
}

#define READ_WRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* The CPU stores, the device reads; the device writes, the CPU loads. */
static void both_ways(int type)
{
    CUdeviceptr p = host_mapping(type);
    tell("host", open_to_host(p, type, READ_WRITE));
    TELL("device", cuMemSetAccess(p, G, &read_write, 1));
    volatile unsigned char *bytes = (volatile unsigned char *)(uintptr_t)p;
    bytes[5] = 42;
    say("device-reads=%d", byte_at(p + 5));
    DO(cuMemsetD8(p, 43, G));
    DO(cuCtxSynchronize());
    say("cpu-loads=%d", bytes[6]);
}

/* The CPU stores and loads. */
static void cpu_only(int type, int handles)
{
    handle h = 0;
    setup(create_at(&h, type, 0, handles), "cuMemCreate", __FILE__, __LINE__);
    CUdeviceptr p = reserve(G);
    map(p, G, h);
    tell("", open_to_host(p, type, READ_WRITE));
    volatile unsigned char *bytes = (volatile unsigned char *)(uintptr_t)p;
    bytes[5] = 42;
    say("loads=%d", bytes[5]);
}

FACT(H_host_store, "The CPU stores and loads in memory at the host that is open to it.") { cpu_only(HOST, 0); }
FACT(H_numa_store, "The CPU stores and loads in memory at a NUMA node that is open to it.") { cpu_only(NUMA, 0); }
FACT(H_numa_fd_store, "The same, exportable.") { cpu_only(NUMA, 1); }
FACT(H_host_both, "Memory at the host, open to CPU and device: each sees what the other writes.") { both_ways(HOST); }
FACT(H_numa_both, "Memory at a NUMA node, open to CPU and device: each sees what the other writes.")
{
    both_ways(NUMA);
}
FACT(H_host_device_only, "Memory at the host may be opened to the device alone.")
{
    CUdeviceptr p = host_mapping(HOST);
    TELL("device", cuMemSetAccess(p, G, &read_write, 1));
    TELL("memset", cuMemsetD8(p, 1, G));
    TELL("synchronize", cuCtxSynchronize());
}
FACT(H_host_cpu_only, "Memory at the host, open to the CPU alone: the device is refused.")
{
    CUdeviceptr p = host_mapping(HOST);
    tell("host", open_to_host(p, HOST, READ_WRITE));
    TELL("memset", cuMemsetD8(p, 1, G));
}
FACT(H_host_by_numa, "Opening memory at the host to NUMA node 0.")
{
    tell("", open_to_host(host_mapping(HOST), NUMA, READ_WRITE));
}
FACT(H_numa_by_host, "Opening memory at a NUMA node to the host.")
{
    tell("", open_to_host(host_mapping(NUMA), HOST, READ_WRITE));
}
FACT(H_numa_by_other, "Opening memory at a NUMA node to a node that is not there.")
{
    CUmemAccessDesc access = {location(CU_MEM_LOCATION_TYPE_HOST_NUMA, 5), READ_WRITE};
    TELL("", cuMemSetAccess(host_mapping(NUMA), G, &access, 1));
}
FACT(H_host_by_7, "Opening memory at host 0 to host 7.")
{
    CUmemAccessDesc access = {location(CU_MEM_LOCATION_TYPE_HOST, 7), READ_WRITE};
    TELL("", cuMemSetAccess(host_mapping(HOST), G, &access, 1));
}
FACT(H_get_access, "Asking for the host's access before and after it was set, and for the device's.")
{
    CUdeviceptr p = host_mapping(HOST);
    CUmemLocation host = location(CU_MEM_LOCATION_TYPE_HOST, 0), device = location(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    unsigned long long a = 9, b = 9, c = 9;
    TELL("before", cuMemGetAccess(&a, &host, p));
    DO(cuMemSetAccess(p, G, &(CUmemAccessDesc){host, READ_WRITE}, 1));
    TELL("after", cuMemGetAccess(&b, &host, p));
    TELL("device", cuMemGetAccess(&c, &device, p));
    say("%llu,%llu,%llu", a, b, c);
}
FACT_ALONE(H_load_without_access, "The CPU loads from memory at the host that is not open to it.")
{
    volatile unsigned char *bytes = (volatile unsigned char *)(uintptr_t)host_mapping(HOST);
    say("loaded=%d", bytes[0]);
}
FACT_ALONE(H_store_read_only, "The CPU stores to memory at the host that it may only read.")
{
    CUdeviceptr p = host_mapping(HOST);
    setup(open_to_host(p, HOST, CU_MEM_ACCESS_FLAGS_PROT_READ), "cuMemSetAccess", __FILE__, __LINE__);
    volatile unsigned char *bytes = (volatile unsigned char *)(uintptr_t)p;
    bytes[0] = 1;
    say("stored");
}
FACT_ALONE(H_load_unmapped, "The CPU loads from memory at the host after it was unmapped.")
{
    CUdeviceptr p = host_mapping(HOST);
    setup(open_to_host(p, HOST, READ_WRITE), "cuMemSetAccess", __FILE__, __LINE__);
    volatile unsigned char *bytes = (volatile unsigned char *)(uintptr_t)p;
    bytes[0] = 1;
    DO(cuMemUnmap(p, G));
    say("loaded=%d", bytes[0]);
}
FACT_ALONE(H_load_device, "The CPU loads from device memory.")
{
    volatile unsigned char *bytes = (volatile unsigned char *)(uintptr_t)buffer(G);
    say("loaded=%d", bytes[0]);
}
FACT(H_info, "Memory at the host does not count as the device's.")
{
    size_t before = free_bytes();
    for (int i = 0; i < 16; i++) host_mapping(HOST);
    say("moved=%d", free_moved(before, 16 * G));
}
FACT(H_zero, "Fresh memory at the host reads as zero.")
{
    CUdeviceptr p = host_mapping(HOST);
    setup(open_to_host(p, HOST, READ_WRITE), "cuMemSetAccess", __FILE__, __LINE__);
    size_t nonzero = 0;
    for (size_t i = 0; i < G; i++) nonzero += ((volatile unsigned char *)(uintptr_t)p)[i] != 0;
    say("nonzero=%zu", nonzero);
}

static void attributes(CUdeviceptr p)
{
    unsigned type = 9;
    int ordinal = 9;
    void *host = NULL;
    CUdeviceptr device = 0;
    TELL("type", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    say("%u", type);
    TELL("ordinal", cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    say("%d", ordinal);
    TELL("host", cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, p));
    say("same=%d", (CUdeviceptr)(uintptr_t)host == p);
    TELL("device", cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p));
    say("same=%d", device == p);
}

FACT(H_attributes, "Pointer attributes of memory at the host.") { attributes(host_mapping(HOST)); }
FACT(H_attributes_numa, "Pointer attributes of memory at a NUMA node.") { attributes(host_mapping(NUMA)); }

/* ---- pinned memory ---- */

static void *pinned(void)
{
    void *p = NULL;
    setup(try_alloc_host(&p, 1 << 20), "cuMemAllocHost", __FILE__, __LINE__);
    return p;
}

FACT(H_pinned_pointer, "The device pointer of pinned memory is its host pointer.")
{
    void *p = pinned();
    CUdeviceptr q = 0;
    TELL("", cuMemHostGetDevicePointer(&q, p, 0));
    say("same=%d", q == (CUdeviceptr)(uintptr_t)p);
    TELL("inside", cuMemHostGetDevicePointer(&q, (char *)p + 100, 0));
    TELL("flags", cuMemHostGetDevicePointer(&q, p, 1));
}
FACT(H_pinned_attributes, "Pointer attributes of pinned memory.") { attributes((CUdeviceptr)(uintptr_t)pinned()); }
FACT(H_pinned_memset, "Memset of pinned memory.")
{
    unsigned char *p = pinned();
    TELL("", cuMemsetD8((CUdeviceptr)(uintptr_t)p, 6, 4096));
    DO(cuCtxSynchronize());
    say("byte=%d", p[4095]);
}
FACT(H_pinned_memset_async, "Memset of pinned memory on a stream.")
{
    CUstream s = stream();
    unsigned char *p = pinned();
    TELL("", cuMemsetD8Async((CUdeviceptr)(uintptr_t)p, 7, 4096, s));
    DO(cuStreamSynchronize(s));
    say("byte=%d", p[4095]);
}
FACT(H_pinned_copy, "Copying between device and pinned memory on a stream does not wait for the stream.")
{
    CUstream s = stream();
    CUdeviceptr p = buffer(G);
    unsigned char *q = pinned();
    memset(q, 0, 4096);
    gate *g = gate_on(s);
    TELL("memset", cuMemsetD8Async(p, 8, G, s));
    TELL("copy", cuMemcpyDtoHAsync(q, p, 4096, s));
    TELL("stream", cuStreamQuery(s));
    gate_open(g);
    DO(cuStreamSynchronize(s));
    say("byte=%d", q[100]);
}
FACT(H_pageable_copy_out, "Copying to pageable memory on a stream waits for the stream.")
{
    static unsigned char bytes[4096];
    CUstream s = stream();
    CUdeviceptr p = buffer(G);
    DO(cuMemsetD8(p, 8, G));
    DO(cuCtxSynchronize());
    atomic_int *done = slow_on(s);
    TELL("copy", cuMemcpyDtoHAsync(bytes, p, 4096, s));
    say("waited=%d", atomic_load(done));
    DO(cuStreamSynchronize(s));
    say("byte=%d", bytes[100]);
}
FACT(H_pageable_copy_in, "Copying 4 KiB from pageable memory on a stream: it may be changed after the call.")
{
    static unsigned char bytes[4096];
    CUstream s = stream();
    CUdeviceptr p = buffer(G);
    memset(bytes, 3, sizeof bytes);
    atomic_int *done = slow_on(s);
    TELL("copy", cuMemcpyHtoDAsync(p, bytes, 4096, s));
    int waited = atomic_load(done);
    memset(bytes, 4, sizeof bytes);
    DO(cuStreamSynchronize(s));
    say("waited=%d byte=%d", waited, byte_at(p));
}
FACT(H_pinned_zero, "Pinning no bytes.")
{
    void *p = NULL;
    tell("", try_alloc_host(&p, 0));
}
FACT(H_pinned_free_unknown, "Freeing as pinned what is not.")
{
    static char byte;
    TELL("program", cuMemFreeHost(&byte));
    TELL("inside", cuMemFreeHost((char *)pinned() + 64));
    TELL("null", cuMemFreeHost(NULL));
}
FACT(H_pinned_free_twice, "Freeing pinned memory twice.")
{
    void *p = pinned();
    DO(cuMemFreeHost(GONE(p)));
    TELL("", cuMemFreeHost(p));
}
FACT(H_pinned_alloc_flags, "cuMemHostAlloc with flags 0, 7 and 64.")
{
    static const unsigned flags[] = {0, 7, 64};
    for (int i = 0; i < 3; i++) {
        void *p = NULL;
        CUresult r = drv->cuMemHostAlloc(&p, 4096, flags[i]);
        tell("", r);
        if (!r) DO(cuMemFreeHost(p));
    }
}

/* ---- registered memory ---- */

static _Alignas(4096) unsigned char pages[8 * 4096];

FACT(H_register, "Registering memory; its device pointer.")
{
    CUdeviceptr q = 0;
    tell("", try_register(pages, sizeof pages));
    TELL("pointer", cuMemHostGetDevicePointer(&q, pages, 0));
    say("same=%d", q == (CUdeviceptr)(uintptr_t)pages);
}
FACT(H_register_twice, "Registering memory twice.")
{
    tell("first", try_register(pages, sizeof pages));
    TELL("second", cuMemHostRegister(pages, sizeof pages, 0));
}
FACT(H_register_overlap, "Registering memory that overlaps registered memory.")
{
    tell("first", try_register(pages, 4 * 4096));
    TELL("second", cuMemHostRegister(pages + 2 * 4096, 4 * 4096, 0));
}
FACT(H_register_beside, "Registering memory beside registered memory, and a part that shares its page.")
{
    tell("first", try_register(pages, 4 * 4096));
    tell("second", try_register(pages + 4 * 4096, 4096));
    tell("third", try_register(pages + 5 * 4096, 100));
    tell("fourth", try_register(pages + 5 * 4096 + 2000, 100));
}
FACT(H_register_zero, "Registering no bytes.") { tell("", try_register(pages, 0)); }
FACT(H_register_null, "Registering NULL.") { TELL("", cuMemHostRegister(NULL, 4096, 0)); }
FACT(H_register_unaligned, "Registering memory that is no page.") { tell("", try_register(pages + 100, 200)); }
FACT(H_register_pinned, "Registering pinned memory.") { TELL("", cuMemHostRegister(pinned(), 4096, 0)); }
FACT(H_register_flags, "Registering with flags 64.") { TELL("", cuMemHostRegister(pages, 4096, 64)); }
FACT(H_unregister_unknown, "Unregistering memory that is not registered.") { TELL("", cuMemHostUnregister(pages)); }
FACT(H_unregister_inside, "Unregistering from the middle of registered memory.")
{
    tell("first", try_register(pages, sizeof pages));
    TELL("inside", cuMemHostUnregister(pages + 4096));
}
FACT(H_unregister_pinned, "Unregistering pinned memory.") { TELL("", cuMemHostUnregister(pinned())); }
FACT(H_free_registered, "Freeing registered memory as pinned.")
{
    tell("first", try_register(pages, sizeof pages));
    TELL("", cuMemFreeHost(pages));
}
FACT(H_pointer_unknown, "The device pointer of memory that is not pinned.")
{
    CUdeviceptr q = 0;
    TELL("", cuMemHostGetDevicePointer(&q, pages, 0));
}
FACT(H_register_attributes, "Pointer attributes of registered memory, and after it was unregistered.")
{
    unsigned type = 9;
    tell("", try_register(pages, sizeof pages));
    attributes((CUdeviceptr)(uintptr_t)pages);
    DO(cuMemHostUnregister(GONE(pages)));
    TELL("after", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)pages));
}
FACT(H_register_memset, "Memset of registered memory.")
{
    tell("", try_register(pages, sizeof pages));
    TELL("memset", cuMemsetD8((CUdeviceptr)(uintptr_t)pages, 9, sizeof pages));
    DO(cuCtxSynchronize());
    say("byte=%d", pages[4096]);
}

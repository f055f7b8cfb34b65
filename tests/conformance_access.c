/* A: who may touch mapped memory, and what touching it without leave answers; what the driver says of an address. */
#include "conformance.h"

#include <unistd.h>

enum {
    NONE = CU_MEM_ACCESS_FLAGS_PROT_NONE,
    READ = CU_MEM_ACCESS_FLAGS_PROT_READ,
    WRITE = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};

static CUdeviceptr mapped(size_t size) /* no access */
{
    CUdeviceptr p = reserve(size);
    map(p, size, create(size));
    return p;
}

/* 2 G mapped at 0 and at 4 G of 8 G, with access if `access`. */
static CUdeviceptr with_hole(bool access)
{
    CUdeviceptr p = reserve(8 * G);
    for (int i = 0; i < 2; i++) {
        map(p + (size_t)i * 4 * G, 2 * G, create(2 * G));
        if (access) give_access(p + (size_t)i * 4 * G, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    return p;
}

static CUdeviceptr adjacent_mappings(void) /* 2 G and 2 G, in two reservations, no access */
{
    CUdeviceptr p = reserve_pair(2 * G, 2 * G);
    map(p, 2 * G, create(2 * G));
    map(p + 2 * G, 2 * G, create(2 * G));
    return p;
}

/* ---- asking ---- */

static void say_access_of(CUmemLocation who, CUdeviceptr p)
{
    unsigned long long flags = 99;
    CUresult r = drv->cuMemGetAccess(&flags, &who, p);
    tell("get", r);
    if (!r) say("%llu", flags);
}

static void say_access(CUdeviceptr p) { say_access_of(location(CU_MEM_LOCATION_TYPE_DEVICE, 0), p); }

FACT(A_get_fresh, "A fresh mapping has no access.") { say_access(mapped(2 * G)); }
FACT(A_get_read_write, "Access after read and write was set.") { say_access(buffer(2 * G)); }
FACT(A_get_inside, "Asking at an address inside a mapping that is no granule.") { say_access(buffer(2 * G) + 12345); }
FACT(A_get_reserved, "Asking where nothing is mapped.") { say_access(reserve(G)); }
FACT(A_get_unreserved, "Asking where nothing is reserved.") { say_access(unreserved()); }
FACT(A_get_plain, "Asking about memory from cuMemAlloc.") { say_access(plain(G)); }
FACT(A_get_device_99, "Asking for a device that is not there.")
{
    say_access_of(location(CU_MEM_LOCATION_TYPE_DEVICE, 99), buffer(2 * G));
}
FACT(A_get_location_0, "Asking for location type 0.")
{
    say_access_of(location(CU_MEM_LOCATION_TYPE_INVALID, 0), buffer(2 * G));
}
FACT(A_get_host, "Asking for the host about device memory.")
{
    say_access_of(location(CU_MEM_LOCATION_TYPE_HOST, 0), buffer(2 * G));
}

/* ---- setting: arguments ---- */

static void set_with(CUdeviceptr p, size_t size, int location_type, int id, int flags)
{
    CUmemAccessDesc access = {location((CUmemLocationType)location_type, id), (CUmemAccess_flags)flags};
    TELL("", cuMemSetAccess(p, size, &access, 1));
}

FACT(A_set, "Setting access to a mapping.") { set_with(mapped(2 * G), 2 * G, 1, 0, WRITE); }
FACT(A_set_count_0, "Setting access with no descriptor.")
{
    TELL("", cuMemSetAccess(mapped(2 * G), 2 * G, &read_write, 0));
}
FACT(A_set_null, "Setting access with no descriptor and a NULL list.")
{
    TELL("", cuMemSetAccess(mapped(2 * G), 2 * G, NULL, 0));
}
FACT(A_set_zero, "Setting access to no bytes.") { set_with(mapped(2 * G), 0, 1, 0, WRITE); }
FACT(A_set_half, "Setting access to half of a mapping.") { set_with(mapped(4 * G), 2 * G, 1, 0, WRITE); }
FACT(A_set_second_half, "Setting access to the second half of a mapping.")
{
    set_with(mapped(4 * G) + 2 * G, 2 * G, 1, 0, WRITE);
}
FACT(A_set_unaligned, "Setting access from a page that is no granule.")
{
    set_with(mapped(4 * G) + 4096, G, 1, 0, WRITE);
}
FACT(A_set_past, "Setting access past the last mapping.")
{
    CUdeviceptr p = reserve(8 * G);
    map(p, 4 * G, create(4 * G));
    set_with(p, 8 * G, 1, 0, WRITE);
}
FACT(A_set_hole, "Setting access over two mappings with a hole between.")
{
    CUdeviceptr p = with_hole(false);
    set_with(p, 6 * G, 1, 0, WRITE);
}
FACT(A_set_hole_effect, "Access of both mappings after it was set over them and the hole between.")
{
    CUdeviceptr p = with_hole(false);
    DO(cuMemSetAccess(p, 6 * G, &read_write, 1));
    say_access(p);
    say_access(p + 4 * G);
}
FACT(A_set_hole_first, "Setting access to a range whose first part is unmapped.")
{
    CUdeviceptr p = with_hole(false);
    set_with(p + 2 * G, 4 * G, 1, 0, WRITE);
    say_access(p + 4 * G);
}
FACT(A_set_and_half, "Setting access to one mapping and half of the next: is the first changed.")
{
    CUdeviceptr p = adjacent_mappings();
    set_with(p, 3 * G, 1, 0, WRITE);
    say_access(p);
}
FACT(A_set_reserved, "Setting access where nothing is mapped.") { set_with(reserve(2 * G), 2 * G, 1, 0, WRITE); }
FACT(A_set_unreserved, "Setting access where nothing is reserved.") { set_with(unreserved(), 2 * G, 1, 0, WRITE); }
FACT(A_set_two_reservations, "Setting access across two adjacent reservations.")
{
    set_with(adjacent_mappings(), 4 * G, 1, 0, WRITE);
}
FACT(A_set_device_99, "Setting access for a device that is not there.")
{
    set_with(mapped(2 * G), 2 * G, 1, 99, WRITE);
}
FACT(A_set_flags_2, "Setting access flags 2.") { set_with(mapped(2 * G), 2 * G, 1, 0, 2); }
FACT(A_set_flags_4, "Setting access flags 4.") { set_with(mapped(2 * G), 2 * G, 1, 0, 4); }
FACT(A_set_location_0, "Setting access for location type 0.") { set_with(mapped(2 * G), 2 * G, 0, 0, WRITE); }
FACT(A_set_host, "Setting access for the host on device memory.") { set_with(mapped(2 * G), 2 * G, 2, 0, WRITE); }
FACT(A_set_numa, "Setting access for a NUMA node on device memory.") { set_with(mapped(2 * G), 2 * G, 3, 0, WRITE); }
FACT(A_set_host_flags_2, "The host and flags 2: which error comes.") { set_with(mapped(2 * G), 2 * G, 2, 0, 2); }
FACT(A_set_host_half, "The host and half a mapping: which error comes.")
{
    set_with(mapped(4 * G), 2 * G, 2, 0, WRITE);
}
FACT(A_set_host_reserved, "The host, where nothing is mapped: which error comes.")
{
    set_with(reserve(2 * G), 2 * G, 2, 0, WRITE);
}
FACT(A_set_host_none, "Taking access on device memory from the host, which has none.")
{
    set_with(mapped(2 * G), 2 * G, 2, 0, NONE);
}
FACT(A_set_plain, "Setting access to memory from cuMemAlloc.") { set_with(plain(2 * G), 2 * G, 1, 0, WRITE); }

/* ---- setting: what it does ---- */

FACT(A_set_twice, "Naming the same device twice in one call.")
{
    CUmemAccessDesc twice[2] = {read_write, read_write};
    twice[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    TELL("", cuMemSetAccess(mapped(2 * G), 2 * G, twice, 2));
}
FACT(A_set_twice_last, "Of two entries for the same device, which counts.")
{
    CUdeviceptr p = mapped(2 * G);
    CUmemAccessDesc twice[2] = {read_write, read_write};
    twice[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    DO(cuMemSetAccess(p, 2 * G, twice, 2));
    say_access(p);
}
FACT(A_set_one_bad, "A good entry and a bad one: is the good one applied.")
{
    CUdeviceptr p = mapped(2 * G);
    CUmemAccessDesc both[2] = {read_write, read_write};
    both[1].location.id = 99;
    TELL("", cuMemSetAccess(p, 2 * G, both, 2));
    say_access(p);
}
FACT(A_narrow, "Setting read-only after read and write.")
{
    CUdeviceptr p = buffer(2 * G);
    set_with(p, 2 * G, 1, 0, READ);
    say_access(p);
    TELL("memset", cuMemsetD8(p, 1, G));
}
FACT(A_widen, "Setting read and write after read-only.")
{
    CUdeviceptr p = mapped(2 * G);
    set_with(p, 2 * G, 1, 0, READ);
    set_with(p, 2 * G, 1, 0, WRITE);
    TELL("memset", cuMemsetD8(p, 1, G));
}
FACT(A_none, "Setting no access after read and write.")
{
    CUdeviceptr p = buffer(2 * G);
    set_with(p, 2 * G, 1, 0, NONE);
    say_access(p);
    TELL("memset", cuMemsetD8(p, 1, G));
    TELL("synchronize", cuCtxSynchronize());
}
FACT(A_alias_apart, "Access belongs to the mapping, not the memory: an alias has its own.")
{
    CUdeviceptr p = reserve(2 * G), q = reserve(2 * G);
    handle h = create(2 * G);
    map(p, 2 * G, h);
    map(q, 2 * G, h);
    set_with(p, 2 * G, 1, 0, WRITE);
    say_access(q);
    set_with(q, 2 * G, 1, 0, READ);
    say_access(p);
    TELL("write-alias", cuMemsetD8(q, 1, G));
}
FACT(A_remap, "A new mapping at an address does not inherit the access of the one before.")
{
    CUdeviceptr p = reserve(2 * G);
    handle h = create(2 * G);
    map(p, 2 * G, h);
    give_access(p, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    DO(cuMemUnmap(p, 2 * G));
    map(p, 2 * G, h);
    say_access(p);
}

/* ---- touching ---- */

FACT(A_touch_fresh, "Memset of a mapping without access; the error does not stick.")
{
    TELL("memset", cuMemsetD8(mapped(2 * G), 1, G));
    TELL("synchronize", cuCtxSynchronize());
}
FACT(A_touch_read_only, "Memset of read-only memory; the error does not stick.")
{
    CUdeviceptr p = mapped(2 * G);
    set_with(p, 2 * G, 1, 0, READ);
    TELL("memset", cuMemsetD8(p, 1, G));
    TELL("synchronize", cuCtxSynchronize());
    TELL("unmap", cuMemUnmap(p, 2 * G));
}
FACT(A_copy_from_read_only, "Copying from read-only memory.")
{
    CUdeviceptr p = mapped(2 * G);
    unsigned char byte = 9;
    set_with(p, 2 * G, 1, 0, READ);
    TELL("to-device", cuMemcpyDtoD(buffer(2 * G), p, G));
    TELL("to-host", cuMemcpyDtoH(&byte, p, 1));
}
FACT(A_copy_to_read_only, "Copying to read-only memory.")
{
    CUdeviceptr p = mapped(2 * G);
    unsigned char byte = 9;
    set_with(p, 2 * G, 1, 0, READ);
    TELL("from-device", cuMemcpyDtoD(p, buffer(2 * G), G));
    TELL("from-host", cuMemcpyHtoD(p, &byte, 1));
}
FACT(A_copy_without_access, "Copying from and to memory without access.")
{
    CUdeviceptr p = mapped(2 * G);
    unsigned char byte = 9;
    TELL("to-host", cuMemcpyDtoH(&byte, p, 1));
    TELL("from-host", cuMemcpyHtoD(p, &byte, 1));
    TELL("from", cuMemcpyDtoD(buffer(2 * G), p, G));
    TELL("to", cuMemcpyDtoD(p, buffer(2 * G), G));
}
FACT(A_memset_beyond, "Memset that leaves its mapping.") { TELL("", cuMemsetD8(with_hole(true), 1, 3 * G)); }
FACT(A_memset_hole, "Memset of a hole.") { TELL("", cuMemsetD8(with_hole(true) + 2 * G, 1, G)); }
FACT(A_memset_hole_async, "Memset of a hole, on a stream.")
{
    TELL("", cuMemsetD8Async(with_hole(true) + 2 * G, 1, G, stream()));
}
FACT(A_memset_over_hole, "Memset over two mappings and the hole between.")
{
    TELL("", cuMemsetD8(with_hole(true), 1, 6 * G));
}
FACT(A_memset_unreserved, "Memset where nothing is reserved.") { TELL("", cuMemsetD8(unreserved(), 1, G)); }
FACT(A_memset_0, "Memset at address 0.") { TELL("", cuMemsetD8(0, 1, 16)); }
FACT(A_memset_nothing, "Memset of no bytes, where nothing is mapped.") { TELL("", cuMemsetD8(reserve(G), 1, 0)); }
FACT(A_memset_two, "Memset across two adjacent mappings.")
{
    CUdeviceptr p = adjacent_mappings();
    give_access(p, 4 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    TELL("", cuMemsetD8(p, 7, 4 * G));
}
FACT(A_memset_two_half_open, "Memset across two adjacent mappings of which the second has no access.")
{
    CUdeviceptr p = adjacent_mappings();
    give_access(p, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    TELL("", cuMemsetD8(p, 7, 4 * G));
}
FACT(A_memset_32_unaligned, "A 32-bit memset at an odd address.") { TELL("", cuMemsetD32(buffer(2 * G) + 1, 7, 4)); }
FACT(A_memset_16_unaligned, "A 16-bit memset at an odd address.") { TELL("", cuMemsetD16(buffer(2 * G) + 1, 7, 4)); }
FACT(A_memset_32, "A 32-bit memset.")
{
    CUdeviceptr p = buffer(2 * G);
    TELL("", cuMemsetD32(p, 0x04030201, 2));
    say("bytes=%d,%d,%d,%d,%d,%d", byte_at(p), byte_at(p + 1), byte_at(p + 2), byte_at(p + 3), byte_at(p + 7),
        byte_at(p + 8));
}
FACT(A_memset_host, "Memset of the program's own memory.")
{
    char bytes[64];
    TELL("", cuMemsetD8((CUdeviceptr)(uintptr_t)bytes, 1, sizeof bytes));
}
FACT(A_copy_over_hole, "Copying across a hole.")
{
    CUdeviceptr p = with_hole(true);
    TELL("", cuMemcpyDtoD(p, p + G, 2 * G));
    TELL("synchronize", cuCtxSynchronize());
}
FACT(A_copy_two, "Copying from two adjacent mappings.")
{
    CUdeviceptr p = adjacent_mappings(), q = buffer(4 * G);
    give_access(p, 4 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    DO(cuMemsetD8(p, 9, 4 * G));
    TELL("", cuMemcpyDtoD(q, p, 4 * G));
    say("byte=%d", byte_at(q + 3 * G));
}
FACT(A_copy_unmapped, "Copying to and from the host where nothing is mapped.")
{
    unsigned char byte = 9;
    CUdeviceptr p = reserve(G);
    TELL("from", cuMemcpyDtoH(&byte, p, 1));
    TELL("to", cuMemcpyHtoD(p, &byte, 1));
}
FACT(A_copy_nothing, "Copying no bytes, where nothing is mapped.")
{
    CUdeviceptr p = reserve(G);
    TELL("", cuMemcpyDtoD(p, p + G / 2, 0));
    TELL("to-host", cuMemcpyDtoH(NULL, p, 0));
}
FACT(A_copy_wrong_way, "cuMemcpyDtoD between device and host addresses.")
{
    static unsigned char bytes[64];
    CUdeviceptr p = buffer(2 * G);
    TELL("", cuMemcpyDtoD(p, (CUdeviceptr)(uintptr_t)bytes, sizeof bytes));
    TELL("synchronize", cuCtxSynchronize());
}
FACT(A_copy_any, "cuMemcpy finds out by itself which side is the host.")
{
    static unsigned char bytes[2] = {17, 0};
    CUdeviceptr p = buffer(2 * G);
    TELL("to", cuMemcpy(p, (CUdeviceptr)(uintptr_t)bytes, 1));
    TELL("from", cuMemcpy((CUdeviceptr)(uintptr_t)(bytes + 1), p, 1));
    say("byte=%d", bytes[1]);
}

/* ---- what an address is ---- */

static void say_range(CUdeviceptr p, CUdeviceptr from)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult r = drv->cuMemGetAddressRange(&base, &size, p);
    tell("range", r);
    if (!r) say("base+%lldg size=%zug", ((long long)base - (long long)from) / (long long)G, size / G);
}

FACT(A_range, "The address range of a mapping without access.")
{
    CUdeviceptr p = adjacent_mappings();
    say_range(p, p);
}
FACT(A_range_second, "The address range of the second of two adjacent mappings, from its middle.")
{
    CUdeviceptr p = adjacent_mappings();
    say_range(p + 3 * G, p);
}
FACT(A_range_open, "The address range of a mapping that the device may access.")
{
    CUdeviceptr p = adjacent_mappings();
    give_access(p, 4 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    say_range(p + 3 * G, p);
}
FACT(A_range_open_none, "The same after access was taken away again.")
{
    CUdeviceptr p = adjacent_mappings();
    give_access(p, 4 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    give_access(p, 4 * G, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    say_range(p, p);
}
FACT(A_range_reserved, "The address range where nothing is mapped.") { say_range(reserve(G), 0); }
FACT(A_range_unreserved, "The address range where nothing is reserved.") { say_range(unreserved(), 0); }
FACT(A_range_plain, "The address range of memory from cuMemAlloc, from its inside.")
{
    CUdeviceptr p = plain(4 * G);
    say_range(p + 3 * G, p);
}

static void say_number(CUpointer_attribute attribute, CUdeviceptr p)
{
    long long value = 0; /* attributes are of 4 or 8 bytes, little endian, and numbers here are small */
    CUresult r = drv->cuPointerGetAttribute(&value, attribute, p);
    tell("", r);
    if (!r) say("%lld", value);
}

#define ATTRIBUTE(name, attribute, sentence) \
    FACT(A_pointer_##name, sentence " of mapped memory.") { say_number(attribute, buffer(4 * G) + G); }

ATTRIBUTE(context, CU_POINTER_ATTRIBUTE_CONTEXT, "The context")
ATTRIBUTE(type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "The memory type (2: device)")
ATTRIBUTE(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "The device ordinal")
ATTRIBUTE(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, "Is-managed")
ATTRIBUTE(ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "Legacy IPC capability")
ATTRIBUTE(is_mapped, CU_POINTER_ATTRIBUTE_MAPPED, "The attribute MAPPED")
ATTRIBUTE(handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, "Allowed handle types")
ATTRIBUTE(rdma, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, "RDMA capability")
ATTRIBUTE(access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, "Access flags")
ATTRIBUTE(pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "The pool")

FACT(A_pointer_range, "The pointer attributes for range see one mapping.")
{
    CUdeviceptr p = adjacent_mappings(), start = 0;
    size_t size = 0;
    TELL("start", cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 2 * G));
    TELL("size", cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 2 * G));
    say("start+%lldg %zug", ((long long)start - (long long)p) / (long long)G, size / G);
}
FACT(A_pointer_mapping, "The pointer attributes MAPPING_BASE_ADDR and MAPPING_SIZE.")
{
    CUdeviceptr p = adjacent_mappings(), start = 0;
    size_t size = 0;
    TELL("base", cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, p + 3 * G));
    TELL("size", cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p + 3 * G));
    say("base+%lldg %zug", ((long long)start - (long long)p) / (long long)G, size / G);
}
FACT(A_pointer_device, "The device pointer of mapped memory is the pointer itself.")
{
    CUdeviceptr p = buffer(2 * G), q = 0;
    TELL("", cuPointerGetAttribute(&q, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p + G));
    say("same=%d", q == p + G);
}
FACT(A_pointer_host, "Device memory has no host pointer.")
{
    void *q = NULL;
    TELL("", cuPointerGetAttribute(&q, CU_POINTER_ATTRIBUTE_HOST_POINTER, buffer(2 * G)));
    say("null=%d", q == NULL);
}
FACT(A_pointer_ids, "Two mappings of one memory: are their buffer ids and block ids the same.")
{
    CUdeviceptr p = reserve(2 * G);
    handle h = create(G);
    unsigned long long a = 0, b = 0;
    map(p, G, h);
    map(p + G, G, h);
    TELL("buffer", cuPointerGetAttribute(&a, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    TELL("buffer", cuPointerGetAttribute(&b, CU_POINTER_ATTRIBUTE_BUFFER_ID, p + G));
    say("same=%d", a == b);
    a = b = 0;
    TELL("block", cuPointerGetAttribute(&a, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, p));
    TELL("block", cuPointerGetAttribute(&b, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, p + G));
    say("same=%d", a == b);
}
FACT(A_pointer_exportable, "Allowed handle types of exportable memory.")
{
    CUdeviceptr p = reserve(G);
    map(p, G, create_exportable(G));
    say_number(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p);
}
FACT(A_pointer_no_access, "The memory type of a mapping without access.")
{
    say_number(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mapped(G));
}
FACT(A_pointer_reserved, "The memory type where nothing is mapped.")
{
    say_number(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reserve(G));
}
FACT(A_pointer_unreserved, "The memory type where nothing is reserved.")
{
    say_number(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unreserved());
}
FACT(A_pointer_program, "The memory type of the program's own memory.")
{
    char byte;
    say_number(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&byte);
}
FACT(A_pointer_plain, "The memory type of memory from cuMemAlloc.")
{
    say_number(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain(G));
}
FACT(A_pointer_plain_context, "The context of memory from cuMemAlloc.")
{
    CUcontext c = NULL;
    TELL("", cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, plain(G)));
    say("own=%d", c == ctx);
}
FACT(A_pointer_many, "cuPointerGetAttributes where nothing is mapped.")
{
    int type = 5, ordinal = 5;
    CUpointer_attribute what[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *where[2] = {&type, &ordinal};
    TELL("", cuPointerGetAttributes(2, what, where, reserve(G)));
    say("type=%d ordinal=%d", type, ordinal);
    TELL("mapped", cuPointerGetAttributes(2, what, where, buffer(G)));
    say("type=%d ordinal=%d", type, ordinal);
}
FACT(A_pointer_sync_memops, "Setting SYNC_MEMOPS on mapped memory.")
{
    int on = 1;
    TELL("", cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer(2 * G)));
}
FACT(A_ipc, "A legacy IPC handle of mapped memory.")
{
    CUipcMemHandle ipc;
    TELL("", cuIpcGetMemHandle(&ipc, buffer(2 * G)));
}

static void dma_buf(CUdeviceptr p, size_t size)
{
    int fd = -1;
    TELL("", cuMemGetHandleForAddressRange(&fd, p, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    if (fd >= 0) close(fd);
}

FACT(A_dma_buf, "A dma-buf of a whole mapping.") { dma_buf(buffer(4 * G), 4 * G); }
FACT(A_dma_buf_part, "A dma-buf of part of a mapping.") { dma_buf(buffer(4 * G) + G, G); }
FACT(A_dma_buf_page, "A dma-buf of a page of a mapping.") { dma_buf(buffer(4 * G) + 4096, 4096); }
FACT(A_dma_buf_odd, "A dma-buf of a part that is no page.") { dma_buf(buffer(4 * G) + 1, 100); }
FACT(A_dma_buf_two, "A dma-buf across two adjacent mappings.")
{
    CUdeviceptr p = adjacent_mappings();
    give_access(p, 4 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    dma_buf(p, 4 * G);
}
FACT(A_dma_buf_reserved, "A dma-buf where nothing is mapped.") { dma_buf(reserve(4 * G), 4 * G); }

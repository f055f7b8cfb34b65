/* M: granularity, physical memory, mappings. */
#include "conformance.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static CUmemAllocationProp with_type(int type)
{
    CUmemAllocationProp prop = on_device;
    prop.type = (CUmemAllocationType)type;
    return prop;
}

static CUmemAllocationProp with_location(int type, int id)
{
    CUmemAllocationProp prop = on_device;
    prop.location = location((CUmemLocationType)type, id);
    return prop;
}

static CUmemAllocationProp with_handles(int types)
{
    CUmemAllocationProp prop = on_device;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)types;
    return prop;
}

/* ---- granularity ---- */

static void say_granularity(CUmemAllocationProp prop, int option, bool value)
{
    size_t g = 0;
    CUresult r = drv->cuMemGetAllocationGranularity(&g, &prop, (CUmemAllocationGranularity_flags)option);
    tell("", r);
    if (!r && value) say("%zu", g);
}

FACT(M_granularity_minimum, "Minimum granularity of device memory.") { say_granularity(on_device, 0, true); }
FACT(M_granularity_recommended, "Recommended granularity of device memory.") { say_granularity(on_device, 1, true); }
FACT(M_granularity_fd, "Minimum granularity of exportable memory.") { say_granularity(with_handles(1), 0, true); }
FACT(M_granularity_fabric, "Recommended granularity of fabric memory.") { say_granularity(with_handles(8), 1, true); }
FACT(M_granularity_host, "Granularity of memory on the host.") { say_granularity(with_location(2, 0), 0, true); }
FACT(M_granularity_numa, "Granularity of memory on a NUMA node.") { say_granularity(with_location(3, 0), 0, true); }
FACT(M_granularity_numa_current, "Granularity at the current NUMA node.")
{
    say_granularity(with_location(4, 0), 0, true);
}
FACT(M_granularity_host_fd, "Granularity of exportable host memory, which cannot be created.")
{
    CUmemAllocationProp prop = with_location(2, 0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    say_granularity(prop, 0, true);
}
FACT(M_granularity_device_99, "Granularity of a device that is not there.")
{
    say_granularity(with_location(1, 99), 0, false);
}
FACT(M_granularity_option_7, "Granularity with an unknown option.") { say_granularity(on_device, 7, false); }
FACT(M_granularity_type_0, "Granularity of allocation type 0.") { say_granularity(with_type(0), 0, false); }
FACT(M_granularity_managed, "Granularity of managed memory.") { say_granularity(with_type(2), 0, false); }
FACT(M_granularity_location_0, "Granularity at location type 0.") { say_granularity(with_location(0, 0), 0, false); }

/* ---- create ---- */

static void create_with(size_t size, CUmemAllocationProp prop, unsigned long long flags)
{
    handle h = 0;
    tell("", try_create(&h, size, prop, flags));
}

static size_t too_much(void) { return (free_bytes() / G + 64) * G; }

FACT(M_create_zero, "Creating no bytes.") { create_with(0, on_device, 0); }
FACT(M_create_odd, "Creating the granularity and one byte.") { create_with(G + 1, on_device, 0); }
FACT(M_create_too_much, "Creating more than is free.") { create_with(too_much(), on_device, 0); }
FACT(M_create_flags, "Creating with flags 1.") { create_with(G, on_device, 1); }
FACT(M_create_type_0, "Allocation type 0.") { create_with(G, with_type(0), 0); }
FACT(M_create_managed, "Allocation type managed.") { create_with(G, with_type(2), 0); }
FACT(M_create_location_0, "Location type 0.") { create_with(G, with_location(0, 0), 0); }
FACT(M_create_location_9, "Location type 9.") { create_with(G, with_location(9, 0), 0); }
FACT(M_create_device_99, "A device that is not there.") { create_with(G, with_location(1, 99), 0); }
FACT(M_create_device_minus_1, "Device -1.") { create_with(G, with_location(1, -1), 0); }
FACT(M_create_fd, "Memory that can be exported as a descriptor.") { create_with(G, with_handles(1), 0); }
FACT(M_create_win32, "Handle type win32.") { create_with(G, with_handles(2), 0); }
FACT(M_create_kmt, "Handle type win32_kmt.") { create_with(G, with_handles(4), 0); }
FACT(M_create_fabric, "Handle type fabric, with no IMEX channel.") { create_with(G, with_handles(8), 0); }
FACT(M_create_handle_16, "Handle type 16, unknown.") { create_with(G, with_handles(16), 0); }
FACT(M_create_fd_win32, "Handle types descriptor and win32 at once.") { create_with(G, with_handles(3), 0); }
FACT(M_create_rdma, "Memory that is RDMA capable.")
{
    CUmemAllocationProp prop = on_device;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    create_with(G, prop, 0);
}
FACT(M_create_compressible, "Memory that is compressible.")
{
    CUmemAllocationProp prop = on_device;
    prop.allocFlags.compressionType = 1;
    create_with(G, prop, 0);
}
FACT(M_create_too_much_device_99, "Too much, on a device that is not there: which error comes.")
{
    create_with(too_much(), with_location(1, 99), 0);
}
FACT(M_create_zero_device_99, "No bytes, on a device that is not there.") { create_with(0, with_location(1, 99), 0); }
FACT(M_create_flags_device_99, "Flags 1, on a device that is not there.") { create_with(G, with_location(1, 99), 1); }
FACT(M_create_too_much_fabric, "Too much, for the fabric.") { create_with(too_much(), with_handles(8), 0); }
FACT(M_create_zero_fabric, "No bytes, for the fabric.") { create_with(0, with_handles(8), 0); }
FACT(M_create_too_much_odd, "Too much, and no multiple of the granularity.")
{
    create_with(too_much() + 1, on_device, 0);
}

static void say_properties(handle h)
{
    CUmemAllocationProp prop;
    memset(&prop, 0xff, sizeof prop);
    CUresult r = drv->cuMemGetAllocationPropertiesFromHandle(&prop, h);
    tell("", r);
    if (!r) {
        say("type=%d location=%d/%d handles=%d rdma=%d compression=%d", (int)prop.type, (int)prop.location.type,
            prop.location.id, (int)prop.requestedHandleTypes, prop.allocFlags.gpuDirectRDMACapable,
            prop.allocFlags.compressionType);
    }
}

FACT(M_properties, "Properties of memory, from its handle.")
{
    CUmemAllocationProp prop;
    memset(&prop, 0xff, sizeof prop);
    TELL("", cuMemGetAllocationPropertiesFromHandle(&prop, create(G)));
    say("type=%d location=%d/%d handles=%d", (int)prop.type, (int)prop.location.type, prop.location.id,
        (int)prop.requestedHandleTypes);
}
FACT(M_properties_exportable, "Properties of exportable memory.") { say_properties(create_exportable(G)); }
FACT(M_properties_rdma, "Properties of RDMA capable memory.")
{
    CUmemAllocationProp prop = on_device;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    handle h = 0;
    setup(try_create(&h, G, prop, 0), "cuMemCreate", __FILE__, __LINE__);
    say_properties(h);
}
FACT(M_properties_0, "Properties of handle 0.") { say_properties(0); }

/* ---- map ---- */

static void map_with(CUdeviceptr p, size_t size, size_t offset, handle h, unsigned long long flags)
{
    tell("", try_map(p, size, offset, h, flags));
}

FACT(M_map, "Mapping memory, whole, in a reservation.") { map_with(reserve(8 * G), 2 * G, 0, create(2 * G), 0); }
FACT(M_map_offset, "Mapping from an offset in the memory.") { map_with(reserve(8 * G), G, G, create(8 * G), 0); }
FACT(M_map_smaller, "Mapping less than the memory.") { map_with(reserve(8 * G), 2 * G, 0, create(8 * G), 0); }
FACT(M_map_larger, "Mapping more than the memory.") { map_with(reserve(8 * G), 4 * G, 0, create(2 * G), 0); }
FACT(M_map_zero, "Mapping no bytes.") { map_with(reserve(8 * G), 0, 0, create(2 * G), 0); }
FACT(M_map_unaligned, "Mapping at a page that is no granule.")
{
    map_with(reserve(8 * G) + 4096, 2 * G, 0, create(2 * G), 0);
}
FACT(M_map_64K, "Mapping at 64 KiB in a reservation.") { map_with(reserve(8 * G) + 65536, 2 * G, 0, create(2 * G), 0); }
FACT(M_map_unreserved, "Mapping where nothing is reserved.") { map_with(unreserved(), 2 * G, 0, create(2 * G), 0); }
FACT(M_map_flags, "Mapping with flags 1.") { map_with(reserve(8 * G), 2 * G, 0, create(2 * G), 1); }
FACT(M_map_handle_0, "Mapping handle 0.") { map_with(reserve(8 * G), 2 * G, 0, 0, 0); }
FACT(M_map_past_end, "Mapping past the end of a reservation.")
{
    map_with(reserve(8 * G) + 7 * G, 2 * G, 0, create(2 * G), 0);
}
FACT(M_map_across, "One mapping across two adjacent reservations.")
{
    map_with(reserve_pair(2 * G, 2 * G), 4 * G, 0, create(4 * G), 0);
}
FACT(M_map_taken, "Mapping where something is mapped.")
{
    CUdeviceptr p = reserve(8 * G);
    handle h = create(4 * G);
    map(p, 4 * G, h);
    TELL("", cuMemMap(p, 4 * G, 0, h, 0));
}
FACT(M_map_overlap, "Mapping over the beginning of another mapping.")
{
    CUdeviceptr p = reserve(8 * G);
    map(p + 2 * G, 4 * G, create(4 * G));
    TELL("", cuMemMap(p, 4 * G, 0, create(4 * G), 0));
}
FACT(M_map_again, "Mapping the same memory again in the same reservation.")
{
    CUdeviceptr p = reserve(8 * G);
    handle h = create(2 * G);
    map(p, 2 * G, h);
    map_with(p + 4 * G, 2 * G, 0, h, 0);
}
FACT(M_map_alias, "Memory mapped at two addresses shows the same bytes.")
{
    CUdeviceptr p = reserve(4 * G), q = reserve(4 * G);
    handle h = create(4 * G);
    map(p, 4 * G, h);
    tell("", try_map(q, 4 * G, 0, h, 0));
    give_access(p, 4 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    give_access(q, 4 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    DO(cuMemsetD8(p, 0x5a, 4 * G));
    say("sees=0x%x", byte_at(q + 3 * G));
}
FACT(M_map_ring, "Memory mapped twice side by side: a write past its end shows at its start.")
{
    CUdeviceptr p = reserve(2 * G);
    handle h = create(G);
    map(p, G, h);
    map(p + G, G, h);
    give_access(p, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    DO(cuMemsetD8(p, 0, G));
    DO(cuMemsetD8(p + G - 4, 7, 8));
    say("start=%d,%d next=%d", byte_at(p), byte_at(p + 3), byte_at(p + 4));
}
FACT(M_map_released_alive, "Mapping a released handle whose memory another mapping keeps alive.")
{
    CUdeviceptr p = reserve(8 * G);
    handle h = create(2 * G);
    map(p, 2 * G, h);
    DO(cuMemRelease(GONE(h)));
    map_with(p + 4 * G, 2 * G, 0, h, 0);
}
FACT_ALONE(M_map_released_dead, "Mapping a released handle whose memory is gone.")
{
    handle h = create(2 * G);
    DO(cuMemRelease(GONE(h)));
    map_with(reserve(8 * G), 2 * G, 0, h, 0);
}
FACT(M_map_offset_unreserved, "Mapping from an offset where nothing is reserved: which error comes.")
{
    map_with(unreserved(), G, G, create(2 * G), 0);
}
FACT(M_map_offset_flags, "Mapping from an offset with flags 1.") { map_with(reserve(8 * G), G, G, create(2 * G), 1); }
FACT(M_map_larger_taken, "Mapping more than the memory where something is mapped.")
{
    CUdeviceptr p = reserve(8 * G);
    map(p, 2 * G, create(2 * G));
    TELL("", cuMemMap(p, 4 * G, 0, create(2 * G), 0));
}
FACT(M_map_larger_unaligned, "Mapping more than the memory at a page that is no granule.")
{
    map_with(reserve(8 * G) + 4096, 4 * G, 0, create(2 * G), 0);
}

/* ---- unmap ---- */

/* Reserves 8 G with 2 G mapped at 0 and at 4 G. */
static CUdeviceptr two_mappings(void)
{
    CUdeviceptr p = reserve(8 * G);
    map(p, 2 * G, create(2 * G));
    map(p + 4 * G, 2 * G, create(2 * G));
    return p;
}

static bool is_mapped(CUdeviceptr p)
{
    unsigned long long flags = 0;
    CUmemLocation l = location(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    return !drv->cuMemGetAccess(&flags, &l, p);
}

FACT(M_unmap, "Unmapping a mapping.") { TELL("", cuMemUnmap(two_mappings(), 2 * G)); }
FACT(M_unmap_half, "Unmapping half a mapping.")
{
    CUdeviceptr p = two_mappings();
    TELL("", cuMemUnmap(p, G));
    say("mapped=%d", is_mapped(p));
}
FACT(M_unmap_second_half, "Unmapping the second half of a mapping.") { TELL("", cuMemUnmap(two_mappings() + G, G)); }
FACT(M_unmap_zero, "Unmapping no bytes.") { TELL("", cuMemUnmap(two_mappings(), 0)); }
FACT(M_unmap_unaligned, "Unmapping at a page that is no granule.") { TELL("", cuMemUnmap(two_mappings() + 4096, G)); }
FACT(M_unmap_unreserved, "Unmapping where nothing is reserved.") { TELL("", cuMemUnmap(unreserved(), G)); }
FACT(M_unmap_hole_behind, "Unmapping a mapping and the hole behind it.")
{
    TELL("", cuMemUnmap(two_mappings(), 4 * G));
}
FACT(M_unmap_holes, "Unmapping two mappings with a hole between.")
{
    CUdeviceptr p = two_mappings();
    TELL("", cuMemUnmap(p, 6 * G));
    say("mapped=%d,%d", is_mapped(p), is_mapped(p + 4 * G));
}
FACT(M_unmap_hole_first, "Unmapping a range whose first part is unmapped.")
{
    CUdeviceptr p = two_mappings();
    TELL("", cuMemUnmap(p + 2 * G, 4 * G));
    say("mapped=%d", is_mapped(p + 4 * G));
}
FACT(M_unmap_and_half, "Unmapping one mapping and half of the next.")
{
    CUdeviceptr p = two_mappings();
    TELL("", cuMemUnmap(p, 5 * G));
    say("mapped=%d,%d", is_mapped(p), is_mapped(p + 4 * G));
}
FACT(M_unmap_two_reservations, "Unmapping across two adjacent reservations.")
{
    CUdeviceptr p = reserve_pair(2 * G, 2 * G);
    map(p, 2 * G, create(2 * G));
    map(p + 2 * G, 2 * G, create(2 * G));
    TELL("", cuMemUnmap(p, 4 * G));
}
FACT(M_unmap_twice, "Unmapping an unmapped range.")
{
    CUdeviceptr p = two_mappings();
    DO(cuMemUnmap(p, 2 * G));
    TELL("", cuMemUnmap(p, 2 * G));
}
FACT(M_unmap_never_mapped, "Unmapping a reservation that nothing was ever mapped in.")
{
    TELL("", cuMemUnmap(reserve(8 * G), 8 * G));
}
FACT(M_unmap_past_end, "Unmapping past the end of a reservation.")
{
    CUdeviceptr p = reserve_pair(2 * G, 2 * G);
    forget(p + 2 * G);
    DO(cuMemAddressFree(p + 2 * G, 2 * G));
    map(p, 2 * G, create(2 * G));
    TELL("", cuMemUnmap(p, 4 * G));
    say("mapped=%d", is_mapped(p));
}

/* ---- release, retain ---- */

FACT(M_release_mapped, "Releasing memory while it is mapped.")
{
    handle h = create(2 * G);
    map(reserve(2 * G), 2 * G, h);
    TELL("", cuMemRelease(GONE(h)));
}
FACT(M_release_twice, "Releasing memory twice.")
{
    handle h = create(2 * G);
    DO(cuMemRelease(GONE(h)));
    TELL("", cuMemRelease(h));
}
FACT(M_release_twice_mapped, "Releasing memory twice while it is mapped.")
{
    handle h = create(2 * G);
    map(reserve(2 * G), 2 * G, h);
    DO(cuMemRelease(GONE(h)));
    TELL("", cuMemRelease(h));
}
FACT(M_release_0, "Releasing handle 0.") { TELL("", cuMemRelease(0)); }
FACT_ALONE(M_release_made_up, "Releasing a handle that never was.") { TELL("", cuMemRelease(0x1234)); }

static void retain_at(CUdeviceptr p, handle was)
{
    handle h = 0;
    CUresult r = drv->cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)p);
    tell("", r);
    if (r) return;
    say("same=%d", h == was);
    TELL("release", cuMemRelease(h));
}

FACT(M_retain, "Retaining the handle of a mapping, from its middle.")
{
    CUdeviceptr p = reserve(4 * G);
    handle h = create(4 * G);
    map(p, 4 * G, h);
    retain_at(p + G, h);
}
FACT(M_retain_unaligned, "Retaining from an address that is no granule.") { retain_at(buffer(2 * G) + 12345, 0); }
FACT(M_retain_reserved, "Retaining where nothing is mapped.") { retain_at(reserve(G), 0); }
FACT(M_retain_unreserved, "Retaining where nothing is reserved.") { retain_at(unreserved(), 0); }
FACT(M_retain_plain, "Retaining the handle of memory from cuMemAlloc.") { retain_at(plain(G), 0); }
FACT(M_retain_maps, "A retained handle can be mapped, and shows the same bytes.")
{
    CUdeviceptr p = buffer(2 * G), q = reserve(2 * G);
    handle h = 0;
    DO(cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)p));
    tell("", try_map(q, 2 * G, 0, h, 0));
    give_access(q, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    DO(cuMemRelease(h));
    DO(cuMemsetD8(p, 0x21, 2 * G));
    say("sees=0x%x", byte_at(q + G));
}
FACT(M_retain_twice, "Retaining twice: are the handle values the same.")
{
    CUdeviceptr p = buffer(2 * G);
    handle a = 0, b = 0;
    DO(cuMemRetainAllocationHandle(&a, (void *)(uintptr_t)p));
    DO(cuMemRetainAllocationHandle(&b, (void *)(uintptr_t)p));
    say("same=%d", a == b);
    TELL("release", cuMemRelease(a));
    TELL("release", cuMemRelease(b));
    TELL("once-more", cuMemRelease(b));
}
FACT(M_retain_keeps_alive, "A retained handle keeps memory after the creation's handle is released and it is unmapped.")
{
    size_t size = 32 * G, before = free_bytes();
    CUdeviceptr p = reserve(size);
    handle h = create(size), kept = 0;
    map(p, size, h);
    DO(cuMemRetainAllocationHandle(&kept, (void *)(uintptr_t)p));
    DO(cuMemUnmap(p, size));
    DO(cuMemRelease(GONE(h)));
    say("kept=%d", free_moved(before, size) == -1);
    DO(cuMemRelease(kept));
    say("after=%d", free_moved(before, size) == -1);
}
FACT(M_mapping_keeps_alive, "A mapping keeps memory after its handle is released.")
{
    size_t size = 32 * G, before = free_bytes();
    CUdeviceptr p = buffer(size);
    say("kept=%d", free_moved(before, size) == -1);
    DO(cuMemUnmap(p, size));
    say("after=%d", free_moved(before, size) == -1);
}

/* ---- what memory holds, what it counts ---- */

static size_t nonzero_bytes(CUdeviceptr p, size_t size)
{
    unsigned char *bytes = malloc(size);
    must(bytes != NULL, "malloc");
    CUresult r = drv->cuMemcpyDtoH(bytes, p, size);
    size_t found = 0;
    for (size_t i = 0; i < size && !r; i++) found += bytes[i] != 0;
    free(bytes);
    setup(r, "cuMemcpyDtoH", __FILE__, __LINE__);
    return found;
}

FACT(M_fresh_zero, "Fresh memory reads as zero.") { say("nonzero=%zu", nonzero_bytes(buffer(8 * G), 8 * G)); }
FACT(M_recycled_zero, "Memory that was written and given back reads as zero in its next life.")
{
    CUdeviceptr p = buffer(8 * G);
    DO(cuMemsetD8(p, 0xab, 8 * G));
    DO(cuCtxSynchronize());
    DO(cuMemUnmap(p, 8 * G));
    say("nonzero=%zu", nonzero_bytes(buffer(8 * G), 8 * G));
}
FACT(M_remap_keeps_bytes, "Memory keeps its bytes while it is mapped nowhere.")
{
    CUdeviceptr p = reserve(2 * G);
    handle h = create(2 * G);
    map(p, 2 * G, h);
    give_access(p, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    DO(cuMemsetD8(p, 0x33, 2 * G));
    DO(cuCtxSynchronize());
    DO(cuMemUnmap(p, 2 * G));
    map(p, 2 * G, h);
    give_access(p, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    say("byte=0x%x", byte_at(p + G));
}
FACT(M_info, "Creating lowers, releasing raises free memory by exactly the size.")
{
    long long down = 0, up = 0, size = (long long)(16 * G);
    for (int i = 0; i < 20 && (down != size || up != size); i++) { /* others use the device too */
        handle h = 0;
        size_t before = free_bytes();
        DO(cuMemCreate(&h, 16 * G, &on_device, 0));
        size_t during = free_bytes();
        DO(cuMemRelease(h));
        down = (long long)before - (long long)during;
        up = (long long)free_bytes() - (long long)during;
    }
    say("create=-%lld%% release=+%lld%%", down * 100 / size, up * 100 / size);
}
FACT(M_info_reserve, "Reserving addresses leaves free memory alone.")
{
    size_t before = free_bytes();
    reserve((size_t)1 << 38);
    say("moved=%d", free_moved(before, 16 * G));
}

/* ---- reset, fork ---- */

FACT_ALONE(M_reset, "After a primary context reset with live mappings, memory can still be given back.")
{
    CUdeviceptr p = reserve(2 * G);
    handle h = create(2 * G);
    map(p, 2 * G, h);
    give_access(p, 2 * G, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    TELL("reset", cuDevicePrimaryCtxReset(0));
    TELL("unmap", cuMemUnmap(p, 2 * G));
    TELL("release", cuMemRelease(h));
    TELL("free", cuMemAddressFree(p, 2 * G));
}
FACT_ALONE(M_fork, "A forked child gets an error from every call; the parent is unharmed.")
{
    CUdeviceptr p = buffer(2 * G);
    int ends[2];
    CUresult got[4] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN};
    must(!pipe(ends), "pipe");
    pid_t pid = fork();
    if (!pid) {
        handle h = 0;
        int count = 0;
        alarm(10);
        got[0] = drv->cuMemCreate(&h, G, &on_device, 0);
        got[1] = drv->cuMemUnmap(p, 2 * G);
        got[2] = drv->cuStreamSynchronize(CU_STREAM_LEGACY);
        got[3] = drv->cuDeviceGetCount(&count);
        _exit(write(ends[1], got, sizeof got) != sizeof got);
    }
    must(pid > 0, "fork");
    waitpid(pid, NULL, 0);
    close(ends[1]);
    must(read(ends[0], got, sizeof got) == sizeof got, "the child died");
    close(ends[0]);
    tell("create", got[0]);
    tell("unmap", got[1]);
    tell("synchronize", got[2]);
    tell("count", got[3]);
    TELL("parent", cuMemsetD8(p, 1, 2 * G));
}

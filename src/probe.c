/* What a device can do here, found by trying. Quiet: every call is made without recording a failure, and giving back
 * counts as part of the try. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define FULL_ADVICE "memory is short just now, which says nothing about the device: ask again when some is free"
#define ALONE_ADVICE "there is no other device"

static const struct {
    const char *name, *text, *advice;
} capabilities[GVMM_CAPABILITY_COUNT] = {
#define GVMM_X(name, value, text, what, advice) [value] = {text, what, advice},
    GVMM_CAPABILITIES(GVMM_X)
#undef GVMM_X
};

const char *gvmm_capability_name(gvmm_capability capability)
{
    return (unsigned)capability < GVMM_CAPABILITY_COUNT ? capabilities[capability].name : "?";
}

const char *gvmm_capability_text(gvmm_capability capability)
{
    return (unsigned)capability < GVMM_CAPABILITY_COUNT ? capabilities[capability].text : "?";
}

/* TRY makes a driver call and says whether it went well; the first one that did not is the answer. */
#define TRY(answer, name, ...) went_well(answer, GVMM_CALL_##name, DRIVER_QUIET(name, __VA_ARGS__))

static bool went_well(gvmm_answer *a, gvmm_driver_call call, CUresult status)
{
    if (status != CUDA_SUCCESS && a->available)
        *a = (gvmm_answer){false, (int)status, gvmm_driver_call_name(call), NULL};
    return status == CUDA_SUCCESS;
}

/* The call went well, and its answer is no. */
static void says_no(gvmm_answer *a, gvmm_driver_call call)
{
    if (a->available) *a = (gvmm_answer){false, 0, gvmm_driver_call_name(call), NULL};
}

static bool has_attribute(gvmm_answer *a, CUdevice device, CUdevice_attribute attribute)
{
    int value = 0;
    if (!TRY(a, cuDeviceGetAttribute, &value, attribute, device)) return false;
    if (!value) says_no(a, GVMM_CALL_cuDeviceGetAttribute);
    return value != 0;
}

/* ---- chunks: what is made is given back whatever fails ---- */

/* Out through a handle and in again, which gives a second handle to the same memory. */
static void send(gvmm_answer *a, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type)
{
    union {
        int fd;
        unsigned char fabric[64];
    } shared;
    CUmemGenericAllocationHandle second;
    bool is_fd = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!TRY(a, cuMemExportToShareableHandle, &shared, handle, type, 0)) return;
    if (TRY(a, cuMemImportFromShareableHandle, &second, is_fd ? (void *)(intptr_t)shared.fd : (void *)&shared, type))
        TRY(a, cuMemRelease, second);
    if (is_fd) close(shared.fd);
}

static void map(gvmm_answer *a, CUmemGenericAllocationHandle handle, size_t size, const CUmemAccessDesc *readers,
                size_t count)
{
    CUdeviceptr address;
    if (!TRY(a, cuMemAddressReserve, &address, size, 0, 0, 0)) return;
    if (TRY(a, cuMemMap, address, size, 0, handle, 0)) {
        TRY(a, cuMemSetAccess, address, size, readers, count);
        TRY(a, cuMemUnmap, address, size);
    }
    TRY(a, cuMemAddressFree, address, size);
}

/* The driver may make memory without what was asked for. */
static void check_flags(gvmm_answer *a, CUmemGenericAllocationHandle handle, const CUmemAllocationProp *wanted)
{
    CUmemAllocationProp got;
    memset(&got, 0, sizeof got);
    if (!wanted->allocFlags.compressionType && !wanted->allocFlags.gpuDirectRDMACapable) return;
    if (!TRY(a, cuMemGetAllocationPropertiesFromHandle, &got, handle)) return;
    if (got.allocFlags.compressionType != wanted->allocFlags.compressionType ||
        got.allocFlags.gpuDirectRDMACapable != wanted->allocFlags.gpuDirectRDMACapable)
        says_no(a, GVMM_CALL_cuMemGetAllocationPropertiesFromHandle);
}

/* Makes a chunk of one granule, sends it through its handle type if it has one, and maps it for `readers` if there are
 * any. */
static void try_chunk(gvmm_answer *a, const CUmemAllocationProp *prop, const CUmemAccessDesc *readers, size_t count)
{
    size_t size;
    CUmemGenericAllocationHandle handle;
    if (!TRY(a, cuMemGetAllocationGranularity, &size, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) return;
    if (!TRY(a, cuMemCreate, &handle, size, prop, 0)) return;
    check_flags(a, handle, prop);
    if (prop->requestedHandleTypes) send(a, handle, prop->requestedHandleTypes);
    if (count) map(a, handle, size, readers, count);
    TRY(a, cuMemRelease, handle);
}

static bool is_short_of_memory(const gvmm_answer *a)
{
    return a->call && a->status == CUDA_ERROR_OUT_OF_MEMORY && strcmp(a->call, "cuMemCreate") == 0;
}

const char *gvmm__probe_advice(gvmm_capability which, const gvmm_answer *a)
{
    if (is_short_of_memory(a)) return FULL_ADVICE;
    return which == GVMM_CAPABILITY_PEERS && !a->call ? ALONE_ADVICE : capabilities[which].advice;
}

gvmm_result gvmm__probe_chunk(gvmm_answer *out, const CUmemAllocationProp *prop)
{
    gvmm_answer a = {.available = true};
    try_chunk(&a, prop, NULL, 0);
    *out = a;
    if (!is_short_of_memory(&a)) return GVMM_OK;
    bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    gvmm_result r = gvmm__fail_driver(GVMM_CALL_cuMemCreate, CUDA_ERROR_OUT_OF_MEMORY);
    return gvmm__about(on_device ? r : GVMM_E_NO_HOST_MEMORY, "memory", "a chunk to try an optional option with");
}

/* ---- one function for each capability ---- */

static CUmemAllocationProp memory_at(CUmemLocationType type, int id)
{
    CUmemAllocationProp prop = {0};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = (CUmemLocation){type, id};
    return prop;
}

static CUmemAccessDesc open_to(CUmemLocationType type, int id)
{
    return (CUmemAccessDesc){{type, id}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

static void try_memory(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    CUmemAllocationProp prop = memory_at(CU_MEM_LOCATION_TYPE_DEVICE, device);
    CUmemAccessDesc reader = open_to(CU_MEM_LOCATION_TYPE_DEVICE, device);
    if (!has_attribute(a, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return;
    if (!TRY(a, cuMemGetAllocationGranularity, &report->granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return;
    try_chunk(a, &prop, &reader, 1);
}

static void try_handle(gvmm_answer *a, CUdevice device, CUdevice_attribute attribute, CUmemAllocationHandleType type)
{
    CUmemAllocationProp prop = memory_at(CU_MEM_LOCATION_TYPE_DEVICE, device);
    prop.requestedHandleTypes = type;
    if (has_attribute(a, device, attribute)) try_chunk(a, &prop, NULL, 0);
}

static void try_posix_fd(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    (void)report;
    try_handle(a, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static void try_fabric(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    (void)report;
    try_handle(a, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, CU_MEM_HANDLE_TYPE_FABRIC);
}

static void try_rdma(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    (void)report;
    CUmemAllocationProp prop = memory_at(CU_MEM_LOCATION_TYPE_DEVICE, device);
    prop.allocFlags.gpuDirectRDMACapable = 1;
    if (has_attribute(a, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        try_chunk(a, &prop, NULL, 0);
}

static void try_compressible(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    (void)report;
    CUmemAllocationProp prop = memory_at(CU_MEM_LOCATION_TYPE_DEVICE, device);
    prop.allocFlags.compressionType = 1; /* CU_MEM_ALLOCATION_COMP_GENERIC */
    if (has_attribute(a, device, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED)) try_chunk(a, &prop, NULL, 0);
}

static void try_host_at(gvmm_answer *a, CUmemLocationType type, int id, CUdevice device)
{
    CUmemAllocationProp prop = memory_at(type, id);
    const CUmemAccessDesc readers[] = {open_to(type, id), open_to(CU_MEM_LOCATION_TYPE_DEVICE, device)};
    try_chunk(a, &prop, readers, 2);
}

static void try_host(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    (void)report;
    if (has_attribute(a, device, CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        try_host_at(a, CU_MEM_LOCATION_TYPE_HOST, 0, device);
}

/* The nodes that are online, as bits, from text such as "0-1,8". Those from 64 on are left out. */
static uint64_t read_nodes(const char *text)
{
    uint64_t nodes = 0;
    unsigned first = 0, number = 0;
    bool span = false;
    for (const char *at = text;; at++) {
        if (*at >= '0' && *at <= '9') {
            number = number * 10 + (unsigned)(*at - '0');
            continue;
        }
        for (unsigned n = span ? first : number; n <= number && n < 64; n++) nodes |= (uint64_t)1 << n;
        span = *at == '-';
        first = number;
        number = 0;
        if (*at != '-' && *at != ',') return nodes;
    }
}

/* What the system has, and the device's own node. */
static uint64_t nodes_here(CUdevice device)
{
    char text[256];
    int own = -1;
    FILE *online = fopen("/sys/devices/system/node/online", "re");
    uint64_t nodes = online && fgets(text, sizeof text, online) ? read_nodes(text) : 1;
    if (online) fclose(online);
    if (DRIVER_QUIET(cuDeviceGetAttribute, &own, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) == CUDA_SUCCESS &&
        own >= 0 && own < 64)
        nodes |= (uint64_t)1 << own;
    return nodes;
}

static void try_host_numa(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    if (!has_attribute(a, device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return;
    uint64_t nodes = nodes_here(device);
    for (int node = 0; node < 64; node++) {
        gvmm_answer one = {.available = true};
        if (!(nodes >> node & 1)) continue;
        try_host_at(&one, CU_MEM_LOCATION_TYPE_HOST_NUMA, node, device);
        if (one.available) report->numa_nodes |= (uint64_t)1 << node;
        else if (a->available) *a = one;
    }
    if (report->numa_nodes) *a = (gvmm_answer){.available = true};
}

static void try_peer(gvmm_answer *a, CUdevice device, CUdevice peer)
{
    CUmemAllocationProp prop = memory_at(CU_MEM_LOCATION_TYPE_DEVICE, device);
    const CUmemAccessDesc readers[] = {open_to(CU_MEM_LOCATION_TYPE_DEVICE, device),
                                       open_to(CU_MEM_LOCATION_TYPE_DEVICE, peer)};
    int can = 0;
    if (!TRY(a, cuDeviceCanAccessPeer, &can, peer, device)) return;
    if (can) try_chunk(a, &prop, readers, 2);
    else says_no(a, GVMM_CALL_cuDeviceCanAccessPeer);
}

static void try_peers(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    int count = 0;
    if (!TRY(a, cuDeviceGetCount, &count)) return;
    for (int i = 0; i < count; i++) {
        gvmm_answer one = {.available = true};
        CUdevice peer;
        if (!TRY(&one, cuDeviceGet, &peer, i) || peer != device) {
            if (one.available) try_peer(&one, device, peer);
            if (one.available && i < 64) report->peers |= (uint64_t)1 << i;
            if (!one.available && a->available) *a = one;
        }
    }
    if (count == 1) *a = (gvmm_answer){.advice = ALONE_ADVICE};
}

/* The largest of 2 MiB, 4 MiB ... that the driver reserves, freed at once. */
static void try_reservation(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    size_t memory;
    if (TRY(a, cuDeviceTotalMem, &memory, device)) report->memory = memory;
    gvmm_answer one = {.available = true};
    for (uint64_t size = (uint64_t)2 << 20; size && one.available; size *= 2) {
        CUdeviceptr address;
        if (!TRY(&one, cuMemAddressReserve, &address, size, 0, 0, 0)) break;
        TRY(&one, cuMemAddressFree, address, size);
        report->reservable = size;
    }
    bool refused = one.call && strcmp(one.call, "cuMemAddressReserve") == 0;
    if (a->available && (!refused || report->reservable < report->memory)) *a = one;
}

static void try_pools(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    (void)report;
    CUmemoryPool pool;
    if (has_attribute(a, device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED))
        TRY(a, cuDeviceGetDefaultMemPool, &pool, device);
}

static void forget(void *data) { (void)data; }

static void try_graphs(gvmm_answer *a, gvmm_probe_report *report, CUdevice device)
{
    (void)report, (void)device;
    CUgraph graph;
    CUuserObject object;
    if (!TRY(a, cuGraphCreate, &graph, 0)) return;
    if (TRY(a, cuUserObjectCreate, &object, NULL, forget, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) &&
        !TRY(a, cuGraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE))
        TRY(a, cuUserObjectRelease, object, 1);
    TRY(a, cuGraphDestroy, graph);
}

/* ---- all of them ---- */

static void (*const tries[GVMM_CAPABILITY_COUNT])(gvmm_answer *, gvmm_probe_report *, CUdevice) = {
    [GVMM_CAPABILITY_MEMORY] = try_memory,
    [GVMM_CAPABILITY_POSIX_FD] = try_posix_fd,
    [GVMM_CAPABILITY_FABRIC] = try_fabric,
    [GVMM_CAPABILITY_RDMA] = try_rdma,
    [GVMM_CAPABILITY_COMPRESSIBLE] = try_compressible,
    [GVMM_CAPABILITY_HOST] = try_host,
    [GVMM_CAPABILITY_HOST_NUMA] = try_host_numa,
    [GVMM_CAPABILITY_PEERS] = try_peers,
    [GVMM_CAPABILITY_RESERVATION] = try_reservation,
    [GVMM_CAPABILITY_POOLS] = try_pools,
    [GVMM_CAPABILITY_GRAPHS] = try_graphs,
};

gvmm_result gvmm_probe(gvmm_probe_report *out, int device)
{
    if (!out) return gvmm__fail(GVMM_E_INVALID, "out is NULL");
    const gvmm_driver *driver;
    CUdevice handle;
    gvmm_result r = gvmm_driver_get(&driver);
    if (r) return r;
    r = DRIVER(cuDeviceGet, &handle, device);
    if (r) return gvmm__about(r, "device", "%d", device);
    gvmm_probe_report report;
    memset(&report, 0, sizeof report);
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) {
        gvmm_answer *a = &report.answers[i];
        a->available = true;
        tries[i](a, &report, handle);
        if (!a->available) a->advice = gvmm__probe_advice((gvmm_capability)i, a);
    }
    report.device = device;
    *out = report;
    return GVMM_OK;
}

/* Options: checked, and brought down to what the driver takes. */
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

/* The options that were there from the first. */
#define FIRST_SIZE offsetof(gvmm_options, capacity)

static bool on_device(const gvmm_options *o) { return o->location == GVMM_LOCATION_DEVICE; }

static gvmm_result bad(const char *field, long long value)
{
    return gvmm__fail(GVMM_E_INVALID, "option %s: %lld is not an allowed value", field, value);
}

static bool is_access(gvmm_access access)
{
    return access == GVMM_ACCESS_NONE || access == GVMM_ACCESS_READ || access == GVMM_ACCESS_READ_WRITE;
}

static gvmm_result check_values(const gvmm_options *o)
{
    if (o->allocation_type != GVMM_ALLOCATION_PINNED && o->allocation_type != GVMM_ALLOCATION_MANAGED)
        return bad("allocation_type", o->allocation_type);
    if (o->location < GVMM_LOCATION_DEVICE || o->location > GVMM_LOCATION_HOST_NUMA_CURRENT)
        return bad("location", o->location);
    switch (o->handle_type) {
    case GVMM_HANDLE_NONE:
    case GVMM_HANDLE_POSIX_FD:
    case GVMM_HANDLE_WIN32:
    case GVMM_HANDLE_WIN32_KMT:
    case GVMM_HANDLE_FABRIC: break;
    default: return bad("handle_type", o->handle_type);
    }
    if (o->granularity != GVMM_GRANULARITY_MINIMUM && o->granularity != GVMM_GRANULARITY_RECOMMENDED)
        return bad("granularity", o->granularity);
    if (!is_access(o->self_access)) return bad("self_access", o->self_access);
    if (!is_access(o->peer_access)) return bad("peer_access", o->peer_access);
    if (o->addr_align & (o->addr_align - 1)) return bad("addr_align", (long long)o->addr_align);
    if (o->peer_count && !o->peers)
        return gvmm__fail(GVMM_E_INVALID, "option peers is NULL, peer_count %zu", o->peer_count);
    if (o->peer_count > 1024) return bad("peer_count", (long long)o->peer_count);
    if (o->location == GVMM_LOCATION_HOST_NUMA && o->numa_node < 0) return bad("numa_node", o->numa_node);
    if (o->stripe_count && !o->stripe)
        return gvmm__fail(GVMM_E_INVALID, "option stripe is NULL, stripe_count %zu", o->stripe_count);
    if (o->stripe_count > 1024) return bad("stripe_count", (long long)o->stripe_count);
    if (o->release_mode != GVMM_RELEASE_SYNC && o->release_mode != GVMM_RELEASE_DEFERRED)
        return bad("release_mode", o->release_mode);
    if (o->optional &
        ~(unsigned)(GVMM_OPTIONAL_RDMA | GVMM_OPTIONAL_FABRIC | GVMM_OPTIONAL_HANDLE | GVMM_OPTIONAL_PEERS))
        return bad("optional", (long long)o->optional);
    if (o->tag == GVMM_TAG_ANY) return bad("tag", o->tag);
    if (o->ahead_count > 1 << 20) return bad("ahead_count", (long long)o->ahead_count);
    return GVMM_OK;
}

/* What no device can do, and what options contradict each other. */
static gvmm_result check_together(const gvmm_options *o)
{
    if (o->allocation_type == GVMM_ALLOCATION_MANAGED)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "option allocation_type: drivers refuse managed memory here");
    if (o->handle_type == GVMM_HANDLE_WIN32)
        return gvmm__fail(GVMM_E_UNSUPPORTED,
                          "option handle_type: win32 needs security attributes, which gvmm does not take");
    if (o->location == GVMM_LOCATION_HOST && o->handle_type != GVMM_HANDLE_NONE)
        return gvmm__fail(
            GVMM_E_INVALID,
            "option location: host memory cannot be exported: GVMM_HANDLE_NONE (Python: handle_type=None)");
    if ((o->stripe_count || o->ahead_count) && !o->chunk_size)
        return gvmm__fail(GVMM_E_INVALID, "option %s needs a chunk_size", o->stripe_count ? "stripe" : "ahead_count");
    if (o->stripe_count && !on_device(o))
        return gvmm__fail(GVMM_E_INVALID, "option stripe: only device memory can be striped");
    if (o->stripe_count && o->ahead_count)
        return gvmm__fail(GVMM_E_INVALID, "option ahead_count: striped chunks are not made ahead");
    if (o->zero_reused && !on_device(o))
        return gvmm__fail(GVMM_E_INVALID, "option zero_reused: only device memory is made zero in stream order");
    return GVMM_OK;
}

/* The driver refuses "the current node" for every id. */
static int current_node(void)
{
    unsigned cpu, node;
    return syscall(SYS_getcpu, &cpu, &node, NULL) == 0 ? (int)node : 0;
}

gvmm_result gvmm__options_check(gvmm_options *out, const gvmm_options *given)
{
    gvmm_options o = GVMM_OPTIONS_INIT;
    if (given) { /* a program built with an older header has fewer fields; the rest keep their defaults */
        if (given->struct_size < FIRST_SIZE || given->struct_size > sizeof o)
            return gvmm__fail(GVMM_E_INVALID,
                              "options: struct_size is %zu, not %zu to %zu: start from GVMM_OPTIONS_INIT",
                              given->struct_size, FIRST_SIZE, sizeof o);
        memcpy(&o, given, given->struct_size);
        o.struct_size = sizeof o;
    }
    gvmm_result r = check_values(&o);
    bool never = o.location == GVMM_LOCATION_HOST || o.handle_type == GVMM_HANDLE_WIN32;
    if (never && o.optional & GVMM_OPTIONAL_HANDLE) o.handle_type = GVMM_HANDLE_NONE;
    if (!r) r = check_together(&o);
    if (r) return r;
    if (o.location == GVMM_LOCATION_HOST_NUMA_CURRENT) {
        o.location = GVMM_LOCATION_HOST_NUMA;
        o.numa_node = current_node();
    }
    *out = o;
    return GVMM_OK;
}

static gvmm_result need(CUdevice device, CUdevice_attribute attribute, const char *what)
{
    bool can;
    gvmm_result r = gvmm__device_can(&can, device, attribute);
    if (r || can) return r;
    return gvmm__fail(GVMM_E_UNSUPPORTED, "%s is not supported on this device", what);
}

static gvmm_result check_capabilities(const gvmm_options *o, CUdevice device)
{
    static const struct {
        gvmm_location_type location;
        CUdevice_attribute attribute;
        const char *what;
    } locations[] = {
        {GVMM_LOCATION_DEVICE, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
        {GVMM_LOCATION_HOST, CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
         "virtual memory management of host memory"},
        {GVMM_LOCATION_HOST_NUMA, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
         "virtual memory management of host NUMA memory"},
    };
    static const struct {
        gvmm_handle_type type;
        CUdevice_attribute attribute;
        const char *what;
    } handles[] = {
        {GVMM_HANDLE_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "handle_type posix_fd"},
        {GVMM_HANDLE_WIN32_KMT, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED, "handle_type win32_kmt"},
        {GVMM_HANDLE_FABRIC, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "handle_type fabric"},
    };
    gvmm_result r = GVMM_OK;
    for (size_t i = 0; !r && i < sizeof locations / sizeof *locations; i++)
        if (locations[i].location == o->location) r = need(device, locations[i].attribute, locations[i].what);
    for (size_t i = 0; !r && i < sizeof handles / sizeof *handles; i++)
        if (handles[i].type == o->handle_type) r = need(device, handles[i].attribute, handles[i].what);
    /* RDMA with VMM: integrated GPUs say yes to the general question and then fail. */
    if (!r && o->gpu_direct_rdma)
        r = need(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, "GPU Direct RDMA");
    return r;
}

/* A device must exist, and reach the owner's memory; host memory is in reach of all. */
static gvmm_result check_reader(const gvmm_options *o, const char *option, CUdevice owner, int reader)
{
    CUdevice handle;
    CUresult status = DRIVER_QUIET(cuDeviceGet, &handle, reader);
    if (status == CUDA_ERROR_INVALID_DEVICE || status == CUDA_ERROR_INVALID_VALUE)
        return gvmm__fail(GVMM_E_INVALID, "option %s: there is no device %d", option, reader);
    if (status != CUDA_SUCCESS) return gvmm__fail_driver(GVMM_CALL_cuDeviceGet, status);
    if (!on_device(o) || handle == owner) return GVMM_OK;
    int can = 0;
    gvmm_result r = DRIVER(cuDeviceCanAccessPeer, &can, handle, owner);
    if (r || can) return r;
    return gvmm__fail(GVMM_E_UNSUPPORTED, "option %s: device %d cannot access the memory of device %d", option, reader,
                      owner);
}

/* Who reads must reach everyone who owns. */
static gvmm_result check_reach(const gvmm_options *o, const char *option, CUdevice device, int reader)
{
    if (!o->stripe_count) return check_reader(o, option, device, reader);
    gvmm_result r = GVMM_OK;
    for (size_t i = 0; !r && i < o->stripe_count; i++) r = check_reader(o, option, o->stripe[i], reader);
    return r;
}

static gvmm_result check_readers(const gvmm_options *o, CUdevice device)
{
    gvmm_result r = GVMM_OK;
    for (size_t i = 0; !r && i < o->stripe_count; i++) r = check_reader(o, "stripe", o->stripe[i], o->stripe[i]);
    for (size_t i = 0; !r && i < o->stripe_count; i++) r = check_reach(o, "stripe", device, o->stripe[i]);
    for (size_t i = 0; !r && i < o->peer_count; i++) r = check_reach(o, "peers", device, o->peers[i]);
    return r;
}

static CUmemLocation owner_of(const gvmm_options *o, CUdevice device)
{
    int id = on_device(o) ? device : o->location == GVMM_LOCATION_HOST_NUMA ? o->numa_node : 0;
    return (CUmemLocation){(CUmemLocationType)o->location, id};
}

/* The owner first, or all devices of the stripe; then each peer. Nobody is granted nothing. */
static unsigned list_access(CUmemAccessDesc *list, const gvmm_options *o, CUmemLocation owner)
{
    unsigned count = 0;
    CUmemAccess_flags self = (CUmemAccess_flags)o->self_access, peer = (CUmemAccess_flags)o->peer_access;
    if (self && !o->stripe_count) list[count++] = (CUmemAccessDesc){owner, self};
    for (size_t i = 0; self && i < o->stripe_count; i++)
        list[count++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, o->stripe[i]}, self};
    for (size_t i = 0; peer && i < o->peer_count; i++)
        list[count++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, o->peers[i]}, peer};
    return count;
}

static gvmm_result ask_granularity(placement *p, const gvmm_options *o)
{
    CUmemAllocationGranularity_flags option = o->granularity == GVMM_GRANULARITY_MINIMUM
                                                  ? CU_MEM_ALLOC_GRANULARITY_MINIMUM
                                                  : CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    gvmm_result r = DRIVER(cuMemGetAllocationGranularity, &p->granularity, &p->prop, option);
    if (!r && p->granularity == 0) r = gvmm__fail(GVMM_E_DRIVER, "the driver says that the granularity is 0");
    if (!r && o->addr_hint % p->granularity)
        r = gvmm__fail(GVMM_E_INVALID, "option addr_hint: 0x%llx is not a multiple of the granularity, %zu",
                       (unsigned long long)o->addr_hint, p->granularity);
    if (!r && !gvmm__round_up(&p->chunk_size, p->granularity)) r = bad("chunk_size", (long long)o->chunk_size);
    return r;
}

/* As much address space as the location has memory. */
static gvmm_result ask_capacity(placement *p, const gvmm_options *o)
{
    if (o->capacity != GVMM_CAPACITY_ALL) return GVMM_OK;
    if (!on_device(o)) {
        p->capacity = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        return GVMM_OK;
    }
    return gvmm__placement_memory(&p->capacity, p);
}

static CUmemAllocationProp prop_of(const gvmm_options *o, CUdevice device)
{
    CUmemAllocationProp prop = {0};
    prop.type = (CUmemAllocationType)o->allocation_type;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)o->handle_type;
    prop.location = owner_of(o, device);
    prop.allocFlags.gpuDirectRDMACapable = o->gpu_direct_rdma;
    return prop;
}

/* ---- what is asked for if available ---- */

/* By the device's word, and by a chunk. What is not there is no failure. */
static gvmm_result is_there(gvmm_answer *out, const gvmm_options *o, CUdevice device)
{
    saved_error before;
    gvmm__error_save(&before);
    gvmm_result r = check_capabilities(o, device);
    if (!r) {
        CUmemAllocationProp prop = prop_of(o, device);
        return gvmm__probe_chunk(out, &prop);
    }
    if (r != GVMM_E_UNSUPPORTED) return r;
    gvmm__error_restore(&before);
    *out = (gvmm_answer){.call = gvmm_driver_call_name(GVMM_CALL_cuDeviceGetAttribute)};
    return GVMM_OK;
}

static bool may_go_without_handle(const gvmm_options *o)
{
    unsigned bits = GVMM_OPTIONAL_HANDLE | (o->handle_type == GVMM_HANDLE_FABRIC ? GVMM_OPTIONAL_FABRIC : 0);
    return o->handle_type != GVMM_HANDLE_NONE && o->optional & bits;
}

/* *refused: the answer to the handle type that was asked for. */
static gvmm_result settle_memory(gvmm_options *o, gvmm_answer *refused, CUdevice device)
{
    gvmm_result r = GVMM_OK;
    gvmm_answer answer;
    if (o->gpu_direct_rdma && o->optional & GVMM_OPTIONAL_RDMA) {
        gvmm_options alone = *o;
        alone.handle_type = GVMM_HANDLE_NONE;
        r = is_there(&answer, &alone, device);
        if (!r) o->gpu_direct_rdma = answer.available;
    }
    while (!r && may_go_without_handle(o)) {
        r = is_there(&answer, o, device);
        if (r || answer.available) break;
        bool is_fabric = o->handle_type == GVMM_HANDLE_FABRIC;
        answer.advice = gvmm__probe_advice(is_fabric ? GVMM_CAPABILITY_FABRIC : GVMM_CAPABILITY_POSIX_FD, &answer);
        if (refused->available) *refused = answer;
        bool fabric = o->handle_type == GVMM_HANDLE_FABRIC && o->optional & GVMM_OPTIONAL_FABRIC;
        o->handle_type = fabric ? GVMM_HANDLE_POSIX_FD : GVMM_HANDLE_NONE;
    }
    return r;
}

/* `peers` are the options'. */
static gvmm_result settle_peers(gvmm_options *o, int *peers, CUdevice device)
{
    size_t kept = 0;
    saved_error before;
    gvmm__error_save(&before);
    if (!(o->optional & GVMM_OPTIONAL_PEERS)) return GVMM_OK;
    for (size_t i = 0; i < o->peer_count; i++) {
        gvmm_result r = check_reach(o, "peers", device, peers[i]);
        if (!r) peers[kept++] = peers[i];
        else if (r != GVMM_E_UNSUPPORTED && r != GVMM_E_INVALID) return r;
    }
    gvmm__error_restore(&before);
    o->peer_count = kept;
    if (!kept) o->peers = NULL;
    return GVMM_OK;
}

/* ---- the placement ---- */

/* One allocation: the placement, room for its readers, its stripe and peers, to which the options' lists then point. */
static placement *new_placement(gvmm_options *o)
{
    size_t readers = 1 + o->stripe_count + o->peer_count, ordinals = o->stripe_count + o->peer_count;
    placement *p = gvmm__alloc(sizeof *p + readers * sizeof p->access[0] + ordinals * sizeof p->stripe[0]);
    if (!p) return NULL;
    memset(p, 0, sizeof *p);
    ref_init(&p->refs);
    int *stripe = (int *)(p->access + readers), *peers = stripe + o->stripe_count;
    for (size_t i = 0; i < o->stripe_count; i++) stripe[i] = o->stripe[i];
    for (size_t i = 0; i < o->peer_count; i++) peers[i] = o->peers[i];
    p->stripe = stripe;
    p->stripe_count = (unsigned)o->stripe_count;
    p->peers = peers;
    o->stripe = o->stripe_count ? stripe : NULL;
    o->peers = o->peer_count ? peers : NULL;
    return p;
}

static void fill(placement *p, const gvmm_options *o, CUdevice device)
{
    p->prop = prop_of(o, device);
    p->addr_hint = o->addr_hint;
    p->addr_align = o->addr_align;
    p->capacity = o->capacity;
    p->chunk_size = o->chunk_size;
    p->tag = o->tag;
    p->access_count = list_access(p->access, o, p->prop.location);
}

gvmm_result gvmm__placement_create(placement **out, gvmm_options *o, int ordinal)
{
    CUdevice device;
    gvmm_result r = DRIVER(cuDeviceGet, &device, ordinal);
    if (r) return gvmm__about(GVMM_E_INVALID, "device", "%d", ordinal);
    gvmm_answer refused = {.available = true};
    r = settle_memory(o, &refused, device);
    if (!r) r = check_capabilities(o, device);
    if (r) return r;
    placement *p = new_placement(o);
    if (!p) return GVMM_E_NO_HOST_MEMORY;
    p->handle_answer = refused;
    r = settle_peers(o, p->peers, device);
    if (!r) r = check_readers(o, device);
    if (!r) {
        fill(p, o, device);
        r = ask_granularity(p, o);
    }
    if (!r) r = ask_capacity(p, o);
    if (r) {
        gvmm__placement_release(p);
        return r;
    }
    *out = p;
    return GVMM_OK;
}

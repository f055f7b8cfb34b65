/* memset and memcpy: checked when called, done on a stream or as a graph node. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "exec.h"

/* ---------------------------------------------------------------------------------------------
 * Checks
 * ------------------------------------------------------------------------------------------- */

/* Host memory that no device can reach, unlike page-locked memory. */
static bool is_pageable(uint64_t ptr, size_t size)
{
    return !sim_is_device_address(ptr) && sim_check_access(0, ptr, size, false);
}

/* Is all of it in the program's address space? MS_ASYNC does nothing but look. */
static bool is_mapped(uint64_t ptr, size_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = ptr & ~(page - 1), end = ptr + size;
    return ptr && end > ptr && !msync((void *)(uintptr_t)start, end - start, MS_ASYNC);
}

/* Rows of bytes, and planes of rows. */
typedef struct shape {
    size_t width, height, depth, pitch, rows; /* rows: from one plane to the next */
} shape;

/* x + y * by, with an overflow remembered. */
static uint64_t sum(uint64_t x, uint64_t y, uint64_t by, bool *overflow)
{
    uint64_t product, total;
    bool over = __builtin_mul_overflow(y, by, &product);
    over |= __builtin_add_overflow(x, product, &total);
    *overflow |= over;
    return total;
}

/* From the first byte to behind the last. */
static uint64_t extent_of(const shape *s, bool *overflow)
{
    uint64_t lines = s->depth > 1 ? sum(s->height - 1, s->depth - 1, s->rows, overflow) : s->height - 1;
    return sum(s->width, lines, s->pitch, overflow);
}

static shape dst_shape(const CUDA_MEMCPY3D *c)
{
    return (shape){c->WidthInBytes, c->Height, c->Depth, c->dstPitch, c->dstHeight};
}

static shape src_shape(const CUDA_MEMCPY3D *c)
{
    return (shape){c->WidthInBytes, c->Height, c->Depth, c->srcPitch, c->srcHeight};
}

static shape set_shape(const CUDA_MEMSET_NODE_PARAMS *s)
{
    return (shape){s->width * s->elementSize, s->height, 1, s->pitch, 0};
}

/* One side. A pointer given as a device pointer may be page-locked host memory: one address space. One that could be
 * either is looked up; one given as a host pointer is trusted, as a real driver does. */
static CUresult side_check(CUmemorytype type, int device, uint64_t ptr, shape what, bool write)
{
    bool overflow = false; /* there is none: see sim_operation_memcpy */
    size_t size = extent_of(&what, &overflow);
    if (type == CU_MEMORYTYPE_DEVICE || sim_is_device_address(ptr)) return sim_check_access(device, ptr, size, write);
    if (type == CU_MEMORYTYPE_HOST)
        return ptr && !sim_is_partly_pinned(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (is_mapped(ptr, size)) return CUDA_SUCCESS;
    sim_finding("%s (call %llu): 0x%llx is no address of the program's; a real driver crashes here", sim_call_name,
                (unsigned long long)sim_call_number, (unsigned long long)ptr);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult memcpy_check(const sim_operation *o)
{
    const CUDA_MEMCPY3D *c = &o->copy;
    int dst_device = o->peer ? o->dst_device : o->device, src_device = o->peer ? o->src_device : o->device;
    CUresult r = side_check(c->dstMemoryType, dst_device, c->dstDevice, dst_shape(c), true);
    return r ? r : side_check(c->srcMemoryType, src_device, c->srcDevice, src_shape(c), false);
}

static CUresult memset_check(const sim_operation *o)
{
    bool overflow = false;
    shape s = set_shape(&o->set);
    return sim_check_set(o->device, o->set.dst, extent_of(&s, &overflow));
}

CUresult sim_operation_check(const sim_operation *operation, bool captured)
{
    if (operation->type == CU_GRAPH_NODE_TYPE_MEMCPY) return memcpy_check(operation);
    bool later = captured && operation->set.dst;
    if (operation->type == CU_GRAPH_NODE_TYPE_MEMSET && !later) return memset_check(operation);
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * From the driver's structs
 * ------------------------------------------------------------------------------------------- */

static bool side_of(uint64_t *out, CUmemorytype type, const void *host, CUdeviceptr device)
{
    *out = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device;
    return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

static bool fits(size_t from, size_t size, size_t whole) { return size <= whole && from <= whole - size; }

/* Offsets go into the addresses. Arrays are not simulated. */
CUresult sim_operation_memcpy(sim_operation *out, const CUDA_MEMCPY3D *copy, int device)
{
    CUDA_MEMCPY3D c = *copy;
    uint64_t src, dst;
    if (!side_of(&src, c.srcMemoryType, c.srcHost, c.srcDevice)) return CUDA_ERROR_INVALID_VALUE;
    if (!side_of(&dst, c.dstMemoryType, c.dstHost, c.dstDevice)) return CUDA_ERROR_INVALID_VALUE;
    if (c.srcLOD || c.dstLOD || !c.WidthInBytes || !c.Height || !c.Depth) return CUDA_ERROR_INVALID_VALUE;
    bool rows = c.Height > 1 || c.Depth > 1;
    if (rows && !(fits(c.srcXInBytes, c.WidthInBytes, c.srcPitch) && fits(c.dstXInBytes, c.WidthInBytes, c.dstPitch)))
        return CUDA_ERROR_INVALID_VALUE;
    if (c.Depth > 1 && !(fits(c.srcY, c.Height, c.srcHeight) && fits(c.dstY, c.Height, c.dstHeight)))
        return CUDA_ERROR_INVALID_VALUE;
    bool over = false;
    c.srcDevice = sum(sum(src, sum(c.srcY, c.srcZ, c.srcHeight, &over), c.srcPitch, &over), c.srcXInBytes, 1, &over);
    c.dstDevice = sum(sum(dst, sum(c.dstY, c.dstZ, c.dstHeight, &over), c.dstPitch, &over), c.dstXInBytes, 1, &over);
    shape from = src_shape(&c), to = dst_shape(&c);
    sum(c.srcDevice, extent_of(&from, &over), 1, &over);
    sum(c.dstDevice, extent_of(&to, &over), 1, &over);
    if (over) return CUDA_ERROR_INVALID_VALUE;
    c.srcXInBytes = c.srcY = c.srcZ = c.dstXInBytes = c.dstY = c.dstZ = 0;
    *out = (sim_operation){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .name = "graph memcpy node", .device = device, .copy = c};
    return CUDA_SUCCESS;
}

CUresult sim_operation_memset(sim_operation *out, const CUDA_MEMSET_NODE_PARAMS *set, int device)
{
    CUDA_MEMSET_NODE_PARAMS s = *set;
    if (s.elementSize != 1 && s.elementSize != 2 && s.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
    if (!s.width || !s.height || s.width > SIZE_MAX / s.elementSize) return CUDA_ERROR_INVALID_VALUE;
    if (s.height > 1 && (s.pitch < s.width * s.elementSize || s.pitch % s.elementSize)) return CUDA_ERROR_INVALID_VALUE;
    bool over = s.dst % s.elementSize;
    shape what = set_shape(&s);
    sum(s.dst, extent_of(&what, &over), 1, &over);
    if (over) return CUDA_ERROR_INVALID_VALUE;
    *out = (sim_operation){.type = CU_GRAPH_NODE_TYPE_MEMSET, .name = "graph memset node", .device = device, .set = s};
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * Doing it
 * ------------------------------------------------------------------------------------------- */

/* Each side by its own device, through a buffer: neither needs access to the other. */
static CUresult peer_row(const sim_operation *o, const sim_actor *who, uint64_t dst, uint64_t src, size_t size)
{
    char buffer[1 << 16];
    sim_actor writer = *who, reader = *who;
    writer.device = o->dst_device;
    reader.device = o->src_device;
    for (size_t done = 0; done < size;) {
        size_t n = size - done < sizeof buffer ? size - done : sizeof buffer;
        CUresult r = sim_bytes_copy(&reader, (uintptr_t)buffer, src + done, n);
        if (!r) r = sim_bytes_copy(&writer, dst + done, (uintptr_t)buffer, n);
        if (r) return r;
        done += n;
    }
    return CUDA_SUCCESS;
}

static CUresult memcpy_run(const sim_operation *o, const sim_actor *who)
{
    const CUDA_MEMCPY3D *c = &o->copy;
    for (size_t z = 0; z < c->Depth; z++)
        for (size_t y = 0; y < c->Height; y++) {
            uint64_t dst = c->dstDevice + (z * c->dstHeight + y) * c->dstPitch;
            uint64_t src = c->srcDevice + (z * c->srcHeight + y) * c->srcPitch;
            if (o->snapshot) src = (uintptr_t)o->snapshot;
            CUresult r = o->peer ? peer_row(o, who, dst, src, c->WidthInBytes)
                                 : sim_bytes_copy(who, dst, src, c->WidthInBytes);
            if (r) return r;
        }
    return CUDA_SUCCESS;
}

static CUresult memset_run(const sim_operation *o, const sim_actor *who)
{
    const CUDA_MEMSET_NODE_PARAMS *s = &o->set;
    for (size_t y = 0; y < s->height; y++) {
        CUresult r = sim_bytes_set(who, s->dst + y * s->pitch, s->value, s->elementSize, s->width);
        if (r) return r;
    }
    return CUDA_SUCCESS;
}

CUresult sim_operation_run(const sim_operation *operation, const sim_actor *who)
{
    sim_actor actor = *who;
    actor.device = operation->device;
    actor.operation = operation->name;
    switch (operation->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: return memcpy_run(operation, &actor);
    case CU_GRAPH_NODE_TYPE_MEMSET: return memset_run(operation, &actor);
    case CU_GRAPH_NODE_TYPE_HOST: sim_call_host(operation->host.fn, operation->host.userData); return CUDA_SUCCESS;
    default: return CUDA_SUCCESS;
    }
}

/* ---------------------------------------------------------------------------------------------
 * Queueing it
 * ------------------------------------------------------------------------------------------- */

static CUresult operation_work(void *data, const sim_actor *who) { return sim_operation_run(data, who); }

static void operation_drop(void *data)
{
    sim_operation *o = data;
    free(o->snapshot);
    free(o);
}

static sim_item *item_of(const sim_operation *operation)
{
    sim_operation *copy = malloc(sizeof *copy);
    if (!copy) return NULL;
    *copy = *operation;
    sim_item *item = sim_item_new((sim_work){operation->name, operation_work, operation_drop, copy});
    if (!item) free(copy);
    return item;
}

/* An asynchronous copy from pageable memory has read it when the call returns. */
static CUresult take_snapshot(sim_operation *o)
{
    if (o->type != CU_GRAPH_NODE_TYPE_MEMCPY || !is_pageable(o->copy.srcDevice, o->copy.WidthInBytes))
        return CUDA_SUCCESS;
    o->snapshot = malloc(o->copy.WidthInBytes);
    if (!o->snapshot) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(o->snapshot, (const void *)(uintptr_t)o->copy.srcDevice, o->copy.WidthInBytes);
    return CUDA_SUCCESS;
}

/* With sim_lock held. `*taken`: the item was queued, and is gone when its work is done. */
static CUresult enqueue(sim_stream *s, sim_operation *o, sim_item *item, sim_mode mode, bool wait, bool *taken)
{
    CUresult r = sim_capture_admit(s);
    if (r) return r;
    if (s->capture) {
        o->snapshot = NULL; /* the item's */
        return sim_capture_add(s, o);
    }
    if (wait || mode == SIM_SYNC) return sim_stream_run(s, item, wait, taken);
    r = sim_stream_push(s, item);
    *taken = !r;
    return r;
}

/* A copy, unlike a memset, must be one that the current context could make too. */
static CUresult asker_check(const sim_operation *o)
{
    sim_context *current;
    sim_operation asked = *o;
    if (o->peer || sim_current(&current)) return CUDA_SUCCESS;
    asked.device = sim_context_device(current);
    return asked.device == o->device ? CUDA_SUCCESS : sim_operation_check(&asked, false);
}

static CUresult prepare(sim_stream *s, sim_operation *o, bool capturing, sim_mode mode, bool *wait)
{
    const bool copies = o->type == CU_GRAPH_NODE_TYPE_MEMCPY;
    o->device = sim_context_device(s->context);
    *wait = mode == SIM_SYNC && copies &&
            !(sim_is_device_address(o->copy.dstDevice) && sim_is_device_address(o->copy.srcDevice));
    CUresult r = sim_operation_check(o, capturing);
    if (r || capturing || !copies) return r;
    r = asker_check(o);
    if (r || mode == SIM_SYNC) return r;
    *wait = is_pageable(o->copy.dstDevice, o->copy.WidthInBytes); /* such a copy has written it when the call returns */
    return *wait ? CUDA_SUCCESS : take_snapshot(o);
}

CUresult sim_submit(CUstream handle, const sim_operation *operation, sim_mode mode)
{
    sim_operation o = *operation;
    bool wait, taken = false;
    sim_stream *s;
    sim_enter();
    CUresult r = sim_stream_find(handle, &s);
    if (!r) r = sim_capture_admit(s);
    if (r) return sim_leave(r);
    bool capturing = s->capture != NULL;
    sim_stream_retain(s); /* another thread may destroy it while the memory is looked at */
    sim_leave(CUDA_SUCCESS);

    sim_item *item = NULL;
    r = prepare(s, &o, capturing, mode, &wait);
    if (!r) {
        item = item_of(&o);
        if (!item) {
            free(o.snapshot);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    sim_enter();
    if (!r) r = enqueue(s, &o, item, mode, wait, &taken);
    sim_stream_release(s);
    sim_leave(r);
    if (item && !taken) sim_item_drop(item);
    return r;
}

/* ---------------------------------------------------------------------------------------------
 * Calls. Nothing to do is a success whatever the pointers are, but the stream must be one that takes work.
 * ------------------------------------------------------------------------------------------- */

static CUresult nothing_to_do(CUstream stream)
{
    sim_stream *s;
    sim_enter();
    CUresult r = sim_stream_find(stream, &s);
    return sim_leave(r ? r : sim_capture_admit(s));
}

static CUresult set(CUdeviceptr dst, unsigned value, unsigned element, size_t count, CUstream stream, sim_mode mode)
{
    if (!count) return nothing_to_do(stream);
    sim_operation o;
    CUDA_MEMSET_NODE_PARAMS p = {.dst = dst, .value = value, .elementSize = element, .width = count, .height = 1};
    CUresult r = nothing_to_do(stream); /* what it says comes before a bad argument */
    if (!r) r = sim_operation_memset(&o, &p, 0);
    if (r) return r;
    o.name = sim_call_name;
    return sim_submit(stream, &o, mode);
}

static sim_operation linear(uint64_t dst, CUmemorytype dst_type, uint64_t src, CUmemorytype src_type, size_t size)
{
    return (sim_operation){.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                           .name = sim_call_name,
                           .copy = {.dstDevice = dst,
                                    .dstMemoryType = dst_type,
                                    .srcDevice = src,
                                    .srcMemoryType = src_type,
                                    .WidthInBytes = size,
                                    .Height = 1,
                                    .Depth = 1}};
}

static CUresult copy(uint64_t dst, CUmemorytype dst_type, uint64_t src, CUmemorytype src_type, size_t size,
                     CUstream stream, sim_mode mode)
{
    if (!size) return nothing_to_do(stream);
    sim_operation o = linear(dst, dst_type, src, src_type, size);
    return sim_submit(stream, &o, mode);
}

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define EITHER CU_MEMORYTYPE_UNIFIED

CUresult sim_cuMemsetD8(CUdeviceptr dst, unsigned char value, size_t count)
{
    return set(dst, value, 1, count, CU_STREAM_LEGACY, SIM_SYNC);
}

CUresult sim_cuMemsetD16(CUdeviceptr dst, unsigned short value, size_t count)
{
    return set(dst, value, 2, count, CU_STREAM_LEGACY, SIM_SYNC);
}

CUresult sim_cuMemsetD32(CUdeviceptr dst, unsigned int value, size_t count)
{
    return set(dst, value, 4, count, CU_STREAM_LEGACY, SIM_SYNC);
}

CUresult sim_cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    return set(dst, value, 1, count, stream, SIM_ASYNC);
}

CUresult sim_cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream)
{
    return set(dst, value, 2, count, stream, SIM_ASYNC);
}

CUresult sim_cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
    return set(dst, value, 4, count, stream, SIM_ASYNC);
}

CUresult sim_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
    return copy(dst, EITHER, src, EITHER, size, CU_STREAM_LEGACY, SIM_SYNC);
}

CUresult sim_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
    return copy(dst, EITHER, src, EITHER, size, stream, SIM_ASYNC);
}

CUresult sim_cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t size)
{
    return copy(dst, DEVICE, (uintptr_t)src, HOST, size, CU_STREAM_LEGACY, SIM_SYNC);
}

CUresult sim_cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t size)
{
    return copy((uintptr_t)dst, HOST, src, DEVICE, size, CU_STREAM_LEGACY, SIM_SYNC);
}

CUresult sim_cuMemcpyDtoD(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
    return copy(dst, DEVICE, src, DEVICE, size, CU_STREAM_LEGACY, SIM_SYNC);
}

CUresult sim_cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
    return copy(dst, DEVICE, (uintptr_t)src, HOST, size, stream, SIM_ASYNC);
}

CUresult sim_cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
    return copy((uintptr_t)dst, HOST, src, DEVICE, size, stream, SIM_ASYNC);
}

CUresult sim_cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
    return copy(dst, DEVICE, src, DEVICE, size, stream, SIM_ASYNC);
}

/* NULL is the current context. */
static CUresult peer_copy(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t size, CUstream stream,
                          sim_mode mode)
{
    sim_context *dst_context, *src_context;
    sim_enter();
    CUresult r = to ? sim_context_find(to, &dst_context) : sim_current_context(&dst_context);
    if (!r) r = from ? sim_context_find(from, &src_context) : sim_current_context(&src_context);
    sim_leave(r);
    if (r) return r;
    if (!size) return nothing_to_do(stream);
    sim_operation o = linear(dst, DEVICE, src, DEVICE, size);
    o.peer = true;
    o.dst_device = sim_context_device(dst_context);
    o.src_device = sim_context_device(src_context);
    return sim_submit(stream, &o, mode);
}

CUresult sim_cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t size)
{
    return peer_copy(dst, dst_context, src, src_context, size, CU_STREAM_LEGACY, SIM_SYNC);
}

CUresult sim_cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                               size_t size, CUstream stream)
{
    return peer_copy(dst, dst_context, src, src_context, size, stream, SIM_ASYNC);
}

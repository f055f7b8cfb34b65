/* Devices, contexts, what each thread has current, and errors that stick to a context. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "exec.h"
#include "memory.h"

static sim_context primaries[SIM_MAX_DEVICES];
static sim_context *all; /* every context that ever lived */
static CUresult failed;  /* the first error that stuck to one: the process gets no new contexts */
static _Atomic uint64_t epoch = 1, threads;
static _Thread_local sim_thread this_thread;

/* ---------------------------------------------------------------------------------------------
 * Threads and their current contexts
 * ------------------------------------------------------------------------------------------- */

/* A new simulated machine finds every thread as if it had just started. */
sim_thread *sim_thread_self(void)
{
    sim_thread *t = &this_thread;
    if (!t->id) t->id = ++threads;
    if (t->epoch != epoch) {
        t->epoch = epoch;
        t->depth = 0;
        t->mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    }
    return t;
}

static sim_context *top(void)
{
    sim_thread *t = sim_thread_self();
    return t->depth ? t->stack[t->depth - 1] : NULL;
}

CUresult sim_current_context(sim_context **out)
{
    sim_context *c = top();
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!c->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (c->error) return c->error;
    *out = c;
    return CUDA_SUCCESS;
}

CUresult sim_current(sim_context **out)
{
    sim_enter();
    return sim_leave(sim_current_context(out));
}

int sim_context_device(const sim_context *context) { return context->device; }

/* The first error stays: later ones are its consequences. It is the process's: all contexts have it, of all devices. */
void sim_context_error(sim_context *context, CUresult error)
{
    if (!context->error) context->error = error;
    for (sim_context *c = all; c; c = c->next)
        if (c->alive && !c->error) c->error = error;
    if (!failed) failed = error;
    pthread_cond_broadcast(&sim_changed);
}

bool sim_has_failed(void)
{
    sim_enter();
    bool has = failed != CUDA_SUCCESS;
    sim_leave(CUDA_SUCCESS);
    return has;
}

sim_context *sim_context_next(sim_context *context) { return context ? context->next : all; }

/* A dead one too. */
static CUresult context_known(CUcontext handle, sim_context **out)
{
    sim_context *c = all;
    while (c && (CUcontext)c != handle) c = c->next;
    *out = c;
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_context_find(CUcontext handle, sim_context **out)
{
    CUresult r = context_known(handle, out);
    return !r && !(*out)->alive ? CUDA_ERROR_CONTEXT_IS_DESTROYED : r;
}

/* ---------------------------------------------------------------------------------------------
 * Their life
 * ------------------------------------------------------------------------------------------- */

static CUresult context_open(sim_context *c, int device, unsigned flags)
{
    if (failed) return failed;
    c->device = device;
    sim_stream *legacy = sim_stream_new(c, CU_STREAM_DEFAULT, 0);
    if (!legacy) return CUDA_ERROR_OUT_OF_MEMORY;
    c->legacy = legacy;
    c->flags = flags;
    c->error = CUDA_SUCCESS;
    c->alive = true;
    if (!c->listed) c->next = all, all = c;
    c->listed = true;
    return CUDA_SUCCESS;
}

/* Calls are refused from the start; what is queued is waited for; then streams and events lose their handles, and plain and
 * host memory goes. Mappings, their memory and pools do not belong to contexts. An error stays: calls that are waiting
 * meanwhile have yet to answer it. */
static void context_close(sim_context *c)
{
    c->alive = false;
    c->closing = true;
    sim_context_wait(c, UINT64_MAX);
    while (c->streams) sim_stream_close(c->streams);
    sim_events_forget(c);
    sim_plain_forget(c);
    free(c->peers);
    c->peers = NULL;
    c->peer_count = 0;
    c->legacy = NULL;
    c->closing = false;
    pthread_cond_broadcast(&sim_changed);
}

/* Lets go of the lock after closing: the pages of what went are given back without it. */
static CUresult leave_closed(void)
{
    sim_memory_unlock();
    sim_enter();
    return sim_leave(CUDA_SUCCESS);
}

/* For a new simulated machine. Streams are gone by now. */
void sim_contexts_reset(void)
{
    for (sim_context *c = all; c; c = c->next) {
        c->alive = c->closing = false;
        c->retained = 0;
        c->error = CUDA_SUCCESS;
        c->legacy = NULL;
        free(c->peers);
        c->peers = NULL;
        c->peer_count = 0;
    }
    failed = CUDA_SUCCESS;
    sim_objects_reset();
    epoch++;
}

static CUresult device_check(CUdevice device)
{
    return device >= 0 && (unsigned)device < sim_config.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    sim_enter();
    sim_context *c = &primaries[device];
    while (c->closing) pthread_cond_wait(&sim_changed, &sim_lock);
    c->primary = true;
    CUresult r = c->alive ? CUDA_SUCCESS : context_open(c, device, c->flags);
    if (r) return sim_leave(r);
    c->retained++;
    *context = (CUcontext)c;
    return sim_leave(CUDA_SUCCESS);
}

CUresult sim_cuDevicePrimaryCtxRelease(CUdevice device)
{
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    sim_enter();
    sim_context *c = &primaries[device];
    if (!c->retained) return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (--c->retained == 0 && c->alive) context_close(c);
    return leave_closed();
}

/* The references stay with those who hold them; the next retain makes the context live again, unless an error stuck. */
CUresult sim_cuDevicePrimaryCtxReset(CUdevice device)
{
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    sim_enter();
    if (primaries[device].alive) context_close(&primaries[device]);
    return leave_closed();
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    *flags = primaries[device].flags;
    *active = primaries[device].alive;
    return sim_leave(CUDA_SUCCESS);
}

static CUresult push(sim_context *c)
{
    sim_thread *t = sim_thread_self();
    if (t->depth == SIM_STACK_DEPTH) return CUDA_ERROR_OUT_OF_MEMORY;
    t->stack[t->depth++] = c;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    if (!context || flags > 0xff) return CUDA_ERROR_INVALID_VALUE;
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    sim_context *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_enter();
    CUresult r = push(c);
    if (r) goto free_context;
    r = context_open(c, device, flags);
    if (r) goto pop;
    *context = (CUcontext)c;
    return sim_leave(CUDA_SUCCESS);

pop:
    sim_thread_self()->depth--;
free_context:
    sim_leave(r);
    free(c);
    return r;
}

/* Popped from this thread where it is on top; other threads keep it and get CONTEXT_IS_DESTROYED. */
CUresult sim_cuCtxDestroy(CUcontext context)
{
    sim_enter();
    sim_context *c;
    CUresult r = sim_context_find(context, &c);
    if (!r && c->primary) r = CUDA_ERROR_INVALID_CONTEXT;
    if (r) return sim_leave(r);
    if (top() == c) sim_thread_self()->depth--;
    context_close(c);
    return leave_closed();
}

CUresult sim_cuCtxGetCurrent(CUcontext *context)
{
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)top();
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetCurrent(CUcontext context)
{
    sim_thread *t = sim_thread_self();
    if (!context) {
        if (t->depth) t->depth--;
        return CUDA_SUCCESS;
    }
    sim_enter();
    sim_context *c;
    CUresult r = context_known(context, &c);
    if (!r && t->depth) t->stack[t->depth - 1] = c;
    else if (!r) r = push(c);
    return sim_leave(r);
}

/* A dead one is refused when it is used. */
CUresult sim_cuCtxPushCurrent(CUcontext context)
{
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_context *c;
    CUresult r = context_known(context, &c);
    return sim_leave(r ? r : push(c));
}

CUresult sim_cuCtxPopCurrent(CUcontext *context)
{
    sim_thread *t = sim_thread_self();
    if (!t->depth) return CUDA_ERROR_INVALID_CONTEXT;
    sim_context *c = t->stack[--t->depth];
    if (context) *context = (CUcontext)c;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevice(CUdevice *device)
{
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    sim_context *c = top();
    if (!c) return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    *device = c->device;
    return sim_leave(CUDA_SUCCESS);
}

CUresult sim_cuCtxSynchronize(void)
{
    sim_enter();
    sim_context *c;
    CUresult r = sim_current_context(&c);
    if (!r) r = sim_capture_forbid_context(c);
    if (!r) r = sim_capture_unsafe();
    if (r) return sim_leave(r);
    sim_context_wait(c, sim_order_now());
    return sim_leave(c->error);
}

/* ---------------------------------------------------------------------------------------------
 * Peers
 * ------------------------------------------------------------------------------------------- */

static size_t peer_place(const sim_context *c, const sim_context *peer)
{
    size_t i = 0;
    while (i < c->peer_count && c->peers[i] != peer) i++;
    return i;
}

static CUresult peer_find(CUcontext handle, sim_context **current, sim_context **peer)
{
    CUresult r = sim_current_context(current);
    if (r) return r;
    return sim_context_find(handle, peer) ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult peer_enable(CUcontext handle)
{
    sim_context *c, *peer;
    CUresult r = peer_find(handle, &c, &peer);
    if (r) return r;
    if (c->device == peer->device || !sim_config.peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (peer_place(c, peer) < c->peer_count) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    sim_context **peers = realloc(c->peers, (c->peer_count + 1) * sizeof *peers);
    if (!peers) return CUDA_ERROR_OUT_OF_MEMORY;
    c->peers = peers;
    peers[c->peer_count++] = peer;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    return sim_leave(peer_enable(peer));
}

CUresult sim_cuCtxDisablePeerAccess(CUcontext handle)
{
    sim_enter();
    sim_context *c, *peer;
    CUresult r = peer_find(handle, &c, &peer);
    if (r) return sim_leave(r);
    size_t i = peer_place(c, peer);
    if (i == c->peer_count) return sim_leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    c->peers[i] = c->peers[--c->peer_count];
    return sim_leave(CUDA_SUCCESS);
}

/* Access is asked for by device, so what one context enabled is open to the device's others. */
bool sim_peer_enabled(int device, int peer)
{
    for (const sim_context *c = all; c; c = c->next)
        for (size_t i = 0; c->alive && c->device == device && i < c->peer_count; i++)
            if (c->peers[i]->alive && c->peers[i]->device == peer) return true;
    return false;
}

CUresult sim_cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    if (device_check(device) || device_check(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && sim_config.peers;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * Devices
 * ------------------------------------------------------------------------------------------- */

CUresult sim_cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (device_check(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetCount(int *count)
{
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (int)sim_config.devices;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetName(char *name, int len, CUdevice device)
{
    if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)len, "gvmm simulated GPU");
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "gvmm simulation", 15);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = (size_t)sim_config.memory;
    return CUDA_SUCCESS;
}

/* An H200's answers where they say what the device can do. Numbers without a name here are those of cuda.h. */
static const struct {
    int attribute, value;
} attributes[] = {
    {1, 1024}, /* threads per block */
    {2, 1024}, /* block x, y, z */
    {3, 1024},
    {4, 64},
    {5, 2147483647}, /* grid x, y, z */
    {6, 65535},
    {7, 65535},
    {8, 49152},       /* shared memory per block */
    {9, 65536},       /* constant memory */
    {10, 32},         /* warp size */
    {11, 2147483647}, /* copy pitch */
    {12, 65536},      /* registers per block */
    {13, 1980000},    /* clock, kHz */
    {14, 512},        /* texture alignment */
    {15, 1},          /* copies overlap with kernels */
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {17, 0}, /* kernel time limit */
    {18, 0}, /* integrated */
    {19, 1}, /* can map host memory */
    {20, 0}, /* compute mode: default */
    {31, 1}, /* concurrent kernels */
    {32, 1}, /* ECC */
    {33, 1}, /* PCI bus, device; the bus is the device's ordinal + 1 */
    {34, 0},
    {36, 3201000},  /* memory clock, kHz */
    {37, 6144},     /* memory bus, bits */
    {38, 62914560}, /* L2 */
    {39, 2048},     /* threads per multiprocessor */
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {50, 0}, /* PCI domain */
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {78, 1}, /* stream priorities */
    {83, 0}, /* managed memory: not simulated */
    {84, 0}, /* multi-GPU board */
    {88, 0}, /* pageable memory access */
    {89, 0}, /* concurrent managed access */
    {91, 1}, /* registered host pointers may be used as they are */
    {99, 1}, /* host registration */
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 1},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0}, /* spread over the nodes, see below */
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
};

CUresult sim_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (device_check(device)) return CUDA_ERROR_INVALID_DEVICE;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        if (attributes[i].attribute != (int)attribute) continue;
        *value = attributes[i].value;
        if (attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
            *value = (int)((unsigned)device * sim_config.numa_nodes / sim_config.devices);
        if ((int)attribute == 33) *value = device + 1;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

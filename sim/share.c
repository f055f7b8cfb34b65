/* Descriptors between processes. An exported chunk has a file of its own, which says in a trailer what it is; the kernel keeps it
 * for whoever holds a descriptor. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

/* ---------------------------------------------------------------------------------------------
 * The limit on exported descriptors. The program closes them behind our back: they are counted again when it is reached.
 * ------------------------------------------------------------------------------------------- */

typedef struct exported {
    int fd;
    dev_t device;
    ino_t inode;
} exported;

static exported *out_there;
static size_t out_count, out_room;

static bool is_still_open(const exported *e)
{
    struct stat st;
    return fstat(e->fd, &st) == 0 && st.st_dev == e->device && st.st_ino == e->inode;
}

static void forget_closed(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < out_count; i++)
        if (is_still_open(&out_there[i])) out_there[kept++] = out_there[i];
    out_count = kept;
}

/* Makes room for one more. With sim_lock held. */
static CUresult admit_descriptor(void)
{
    if (!sim_config.descriptors) return CUDA_SUCCESS;
    if (out_count >= sim_config.descriptors) forget_closed();
    if (out_count >= sim_config.descriptors) return CUDA_ERROR_OPERATING_SYSTEM;
    if (out_count == out_room) {
        size_t room = out_room ? 2 * out_room : 64;
        exported *larger = realloc(out_there, room * sizeof *larger);
        if (!larger) return CUDA_ERROR_OUT_OF_MEMORY;
        out_there = larger;
        out_room = room;
    }
    return CUDA_SUCCESS;
}

/* A new descriptor for the user; never 0, which an import refuses. With sim_lock held, after admit_descriptor. */
static CUresult hand_out(sim_chunk *chunk, int *descriptor)
{
    int copy = sim_file_open_again(chunk->fd);
    if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    struct stat st;
    if (sim_config.descriptors && fstat(copy, &st) == 0)
        out_there[out_count++] = (exported){copy, st.st_dev, st.st_ino};
    chunk->exported = true;
    *descriptor = copy;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * Fabric handles: they name the file where its owner has it open, and keep nothing.
 * ------------------------------------------------------------------------------------------- */

typedef struct fabric {
    char magic[16];
    uint64_t device, inode;
    int32_t process, fd;
    char zeros[24];
} fabric;

_Static_assert(sizeof(fabric) == 64, "a CUmemFabricHandle");

static const char fabric_magic[16] = "gvmm fabric";

static void write_fabric(void *shareable, const sim_chunk *chunk)
{
    fabric f = {.device = chunk->file_device, .inode = chunk->file_inode, .process = getpid(), .fd = chunk->fd};
    memcpy(f.magic, fabric_magic, sizeof f.magic);
    memcpy(shareable, &f, sizeof f);
}

/* -1: it names nothing, or nothing any more. */
static int open_fabric(const void *shareable)
{
    fabric f;
    struct stat st;
    char name[48];
    memcpy(&f, shareable, sizeof f);
    if (memcmp(f.magic, fabric_magic, sizeof f.magic) != 0) return -1;
    snprintf(name, sizeof name, "/proc/%d/fd/%d", f.process, f.fd);
    int fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return -1;
    if (fstat(fd, &st) == 0 && st.st_dev == f.device && st.st_ino == f.inode) return fd;
    close(fd);
    return -1;
}

/* ---------------------------------------------------------------------------------------------
 * Export, import
 * ------------------------------------------------------------------------------------------- */

CUresult sim_cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType type, unsigned long long flags)
{
    bool is_fd = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!shareable || flags || (!is_fd && type != CU_MEM_HANDLE_TYPE_FABRIC)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    sim_handle *h = sim_handle_find(handle);
    sim_chunk *chunk = h && !h->imported ? h->chunk : NULL; /* an import cannot be passed on */
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (chunk && (chunk->prop.requestedHandleTypes & type)) {
        chunk->exports++; /* it outlives its handle until this is done */
        result = sim_chunk_to_own_file(chunk);
        if (result == CUDA_SUCCESS && !is_fd) write_fabric(shareable, chunk);
        if (result == CUDA_SUCCESS && is_fd) result = admit_descriptor();
        if (result == CUDA_SUCCESS && is_fd) result = hand_out(chunk, shareable);
        chunk->exports--;
        sim_chunk_drop(chunk);
    }
    sim_memory_unlock();
    return result;
}

/* Can this machine have such memory? The exporter's may have had more devices. */
static bool fits_here(const CUmemAllocationProp *prop, uint64_t size)
{
    const CUmemLocation *where = &prop->location;
    unsigned count = where->type == CU_MEM_LOCATION_TYPE_DEVICE ? sim_config.devices : sim_config.numa_nodes;
    return size % sim_config.granularity == 0 && where->id >= 0 && (unsigned)where->id < count;
}

/* The chunk behind a descriptor: the one that is here, or a new one. With sim_lock held. */
static CUresult chunk_of_descriptor(sim_chunk **out, int fd, uint64_t size, const CUmemAllocationProp *prop)
{
    struct stat st;
    if (fstat(fd, &st)) return CUDA_ERROR_UNKNOWN;
    *out = sim_chunk_of_file(st.st_dev, st.st_ino);
    if (*out) return CUDA_SUCCESS;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = sim_chunk_adopt(out, size, prop, copy);
    if (result != CUDA_SUCCESS) close(copy);
    return result;
}

static CUresult import(CUmemGenericAllocationHandle *handle, int fd)
{
    if (fcntl(fd, F_GETFD) < 0) return CUDA_ERROR_UNKNOWN;
    uint64_t size, value = 0;
    CUmemAllocationProp prop;
    if (!sim_file_describes(fd, &size, &prop)) return CUDA_ERROR_UNKNOWN;
    if (!fits_here(&prop, size)) return CUDA_ERROR_INVALID_VALUE;

    sim_chunk *chunk;
    pthread_mutex_lock(&sim_lock);
    CUresult result = chunk_of_descriptor(&chunk, fd, size, &prop);
    if (result == CUDA_SUCCESS) {
        result = sim_handle_create(&value, chunk, true);
        if (result != CUDA_SUCCESS) sim_chunk_drop(chunk);
    }
    sim_memory_unlock();
    if (result == CUDA_SUCCESS) *handle = value;
    return result;
}

CUresult sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                            CUmemAllocationHandleType type)
{
    if (!handle || !shareable) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return import(handle, (int)(intptr_t)shareable);
    int fd = type == CU_MEM_HANDLE_TYPE_FABRIC && sim_config.fabric ? open_fabric(shareable) : -1;
    if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = import(handle, fd);
    close(fd);
    return result;
}

/* ---------------------------------------------------------------------------------------------
 * dma-buf. The descriptor is real and can be passed on; there is no network card to read through it.
 * ------------------------------------------------------------------------------------------- */

static bool is_device_memory(uint64_t ptr, uint64_t size)
{
    for (uint64_t at = ptr; at < ptr + size;) {
        sim_mapping *m = sim_shown_at(at);
        if (!m || sim_chunk_on_host(m->chunk)) return false;
        at = m->base + m->shown;
    }
    return true;
}

CUresult sim_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
                                           unsigned long long flags)
{
    const uint64_t page = 4096;
    if (!handle || flags || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) return CUDA_ERROR_INVALID_VALUE;
    if (!size || ptr % page || size % page || ptr > UINT64_MAX - size) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    bool fine = is_device_memory(ptr, size);
    pthread_mutex_unlock(&sim_lock);
    if (!fine) return CUDA_ERROR_INVALID_VALUE;
    int fd = memfd_create("gvmm-sim-dma-buf", MFD_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    if (ftruncate(fd, (off_t)size)) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)handle = fd;
    return CUDA_SUCCESS;
}

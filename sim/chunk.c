/* Physical memory: where its bytes are, its handles, what each device has left. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"
#include "tree.h"

#define ARENA_SIZE ((uint64_t)1 << 60)  /* of addresses in the file; it has only the pages that were written */
#define HOST_MEMORY ((uint64_t)1 << 40) /* all that host locations can have */

SIM_TREE(handle, sim_handle, object.id, left, right)

static int arena = -1;
static uint64_t arena_used; /* offsets given away: each is given once */
static uint64_t device_used[SIM_MAX_DEVICES], host_used;
static sim_handle *handles;
static sim_chunk *with_file; /* chunks with a file of their own */
static sim_chunk *dead;      /* to be freed without the lock */
static unsigned lingering;   /* chunks that only descriptors keep */

/* ---------------------------------------------------------------------------------------------
 * What is left
 * ------------------------------------------------------------------------------------------- */

static void end_lingering(void);

uint64_t sim_memory_used(int device)
{
    end_lingering();
    return device_used[device];
}

bool sim_memory_hold(const CUmemLocation *where, uint64_t size)
{
    bool on_device = where->type == CU_MEM_LOCATION_TYPE_DEVICE;
    uint64_t *used = on_device ? &device_used[where->id] : &host_used,
             most = on_device ? sim_config.memory : HOST_MEMORY;
    if (size > most) return false;
    if (*used > most - size) end_lingering();
    if (*used > most - size) return false;
    *used += size;
    return true;
}

void sim_memory_unhold(const CUmemLocation *where, uint64_t size)
{
    if (where->type == CU_MEM_LOCATION_TYPE_DEVICE) device_used[where->id] -= size;
    else host_used -= size;
}

/* ---------------------------------------------------------------------------------------------
 * Files
 * ------------------------------------------------------------------------------------------- */

typedef struct trailer {
    char magic[16];
    uint64_t size;
    int32_t type, handle_types, location_type, location_id;
    uint8_t compression, rdma;
    uint16_t usage;
} trailer;

static const char trailer_magic[16] = "gvmm simulated";

static bool write_trailer(int fd, uint64_t size, const CUmemAllocationProp *prop)
{
    trailer t;
    memset(&t, 0, sizeof t); /* the padding too: it is written */
    memcpy(t.magic, trailer_magic, sizeof t.magic);
    t.size = size;
    t.type = (int32_t)prop->type;
    t.handle_types = (int32_t)prop->requestedHandleTypes;
    t.location_type = (int32_t)prop->location.type;
    t.location_id = prop->location.id;
    t.compression = prop->allocFlags.compressionType;
    t.rdma = prop->allocFlags.gpuDirectRDMACapable;
    t.usage = prop->allocFlags.usage;
    return pwrite(fd, &t, sizeof t, (off_t)size) == (ssize_t)sizeof t;
}

bool sim_file_describes(int fd, uint64_t *size, CUmemAllocationProp *prop)
{
    struct stat st;
    trailer t;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= (off_t)SIM_FILE_TRAILER) return false;
    if (pread(fd, &t, sizeof t, st.st_size - (off_t)SIM_FILE_TRAILER) != (ssize_t)sizeof t) return false;
    if (memcmp(t.magic, trailer_magic, sizeof t.magic) != 0) return false;
    if (t.size != (uint64_t)st.st_size - SIM_FILE_TRAILER) return false;
    memset(prop, 0, sizeof *prop);
    prop->type = (CUmemAllocationType)t.type;
    prop->requestedHandleTypes = (CUmemAllocationHandleType)t.handle_types;
    prop->location.type = (CUmemLocationType)t.location_type;
    prop->location.id = t.location_id;
    prop->allocFlags.compressionType = t.compression;
    prop->allocFlags.gpuDirectRDMACapable = t.rdma;
    prop->allocFlags.usage = t.usage;
    *size = t.size;
    return true;
}

/* Opened anew, with a lock that lasts as long as any copy of the descriptor does, in this process or another, and tells that
 * somebody has one. Where /proc is missing it is only a copy, and nobody knows. Never 0 to 2. */
int sim_file_open_again(int fd)
{
    char name[48];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int again = open(name, O_RDWR | O_CLOEXEC);
    if (again < 0 || flock(again, LOCK_SH)) {
        if (again >= 0) close(again);
        return fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    if (again > 2) return again;
    int higher = fcntl(again, F_DUPFD_CLOEXEC, 3);
    close(again);
    return higher;
}

/* Has anybody a descriptor of the chunk that was handed out? */
static bool is_held_elsewhere(const sim_chunk *chunk)
{
    if (flock(chunk->fd, LOCK_EX | LOCK_NB)) return errno == EWOULDBLOCK;
    flock(chunk->fd, LOCK_UN);
    return false;
}

/* A file of `size` bytes and a trailer, that nobody can make shorter under an importer. -1: the system has none left. */
static int open_own_file(uint64_t size, const CUmemAllocationProp *prop)
{
    int fd = memfd_create("gvmm-sim-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)(size + SIM_FILE_TRAILER)) || !write_trailer(fd, size, prop) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* From now on the chunk's bytes are those of `fd`. */
static void use_own_file(sim_chunk *chunk, int fd)
{
    struct stat st = {0};
    fstat(fd, &st);
    chunk->fd = fd;
    chunk->offset = 0;
    chunk->own_file = true;
    chunk->file_device = st.st_dev;
    chunk->file_inode = st.st_ino;
    chunk->next_file = with_file;
    with_file = chunk;
}

static bool place_in_arena(sim_chunk *chunk)
{
    if (arena < 0) {
        int fd = memfd_create("gvmm-sim-arena", MFD_CLOEXEC);
        if (fd < 0) return false;
        if (ftruncate(fd, (off_t)ARENA_SIZE)) {
            close(fd);
            return false;
        }
        arena = fd;
        arena_used = 0;
    }
    if (chunk->size > ARENA_SIZE - arena_used) return false;
    chunk->fd = arena;
    chunk->offset = arena_used;
    arena_used += chunk->size;
    return true;
}

/* Exporting moves the bytes to another file. CPU stores cannot be held up meanwhile, so memory that can be both exported and
 * opened to the CPU starts in a file of its own. */
static bool needs_own_file(const CUmemAllocationProp *prop)
{
    return prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE && prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
}

static bool place(sim_chunk *chunk)
{
    if (!needs_own_file(&chunk->prop)) return place_in_arena(chunk);
    int fd = open_own_file(chunk->size, &chunk->prop);
    if (fd >= 0) use_own_file(chunk, fd);
    return fd >= 0;
}

/* ---------------------------------------------------------------------------------------------
 * Life and death
 * ------------------------------------------------------------------------------------------- */

static sim_chunk *new_chunk(uint64_t size, const CUmemAllocationProp *prop)
{
    sim_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) return NULL;
    chunk->size = size;
    chunk->prop = *prop;
    chunk->prop.win32HandleMetaData = NULL;
    return chunk;
}

CUresult sim_chunk_create(sim_chunk **out, uint64_t size, const CUmemAllocationProp *prop, bool counted)
{
    if (counted && !sim_memory_hold(&prop->location, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_chunk *chunk = new_chunk(size, prop);
    if (!chunk || !place(chunk)) {
        free(chunk);
        if (counted) sim_memory_unhold(&prop->location, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    chunk->counted = counted;
    *out = chunk;
    return CUDA_SUCCESS;
}

CUresult sim_chunk_adopt(sim_chunk **out, uint64_t size, const CUmemAllocationProp *prop, int fd)
{
    sim_chunk *chunk = new_chunk(size, prop);
    if (!chunk) return CUDA_ERROR_OUT_OF_MEMORY;
    use_own_file(chunk, fd);
    *out = chunk;
    return CUDA_SUCCESS;
}

static void die(sim_chunk *chunk)
{
    if (chunk->counted) sim_memory_unhold(&chunk->prop.location, chunk->size);
    if (chunk->own_file) {
        sim_chunk **link = &with_file;
        while (*link != chunk) link = &(*link)->next_file;
        *link = chunk->next_file;
    }
    chunk->next_dead = dead;
    dead = chunk;
}

/* Closing a descriptor makes no noise, so it is looked for when somebody wants to know. */
static void end_lingering(void)
{
    for (sim_chunk *chunk = lingering ? with_file : NULL, *next; chunk; chunk = next) {
        next = chunk->next_file;
        if (!chunk->lingers || is_held_elsewhere(chunk)) continue;
        lingering--;
        die(chunk);
    }
}

/* A descriptor that was handed out keeps the memory. The chunk's own is one more as long, so they are not left to pile up. */
void sim_chunk_drop(sim_chunk *chunk)
{
    static unsigned enough = 16;
    if (chunk->handles || chunk->mappings || chunk->pins || chunk->exports) return;
    if (!chunk->exported || !is_held_elsewhere(chunk)) {
        die(chunk);
        return;
    }
    if (!chunk->lingers) lingering++;
    chunk->lingers = true;
    if (lingering < enough) return;
    end_lingering();
    enough = 2 * lingering + 16;
}

/* Gives the pages back. The offsets are never used again, so nobody sees when. */
static void bury(sim_chunk *chunk)
{
    if (chunk->own_file) close(chunk->fd);
    else if (chunk->written)
        fallocate(chunk->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)chunk->offset, (off_t)chunk->size);
    free(chunk);
}

void sim_memory_unlock(void)
{
    sim_chunk *chunk = dead;
    dead = NULL;
    pthread_mutex_unlock(&sim_lock);
    while (chunk) {
        sim_chunk *next = chunk->next_dead;
        bury(chunk);
        chunk = next;
    }
}

sim_chunk *sim_chunk_of_file(dev_t device, ino_t inode)
{
    sim_chunk *chunk = with_file; /* no longer than the process has descriptors */
    while (chunk && (chunk->file_device != device || chunk->file_inode != inode)) chunk = chunk->next_file;
    return chunk;
}

/* Copies what was ever written; the rest reads as zero there as here. */
static bool copy_data(int to, int from, uint64_t offset, uint64_t size)
{
    char bytes[32768];
    off_t end = (off_t)(offset + size), at = (off_t)offset;
    while ((at = lseek(from, at, SEEK_DATA)) >= 0 && at < end) {
        off_t hole = lseek(from, at, SEEK_HOLE);
        if (hole < 0 || hole > end) hole = end;
        while (at < hole) {
            size_t n = hole - at < (off_t)sizeof bytes ? (size_t)(hole - at) : sizeof bytes;
            if (pread(from, bytes, n, at) != (ssize_t)n) return false;
            if (pwrite(to, bytes, n, at - (off_t)offset) != (ssize_t)n) return false;
            at += (off_t)n;
        }
    }
    return at >= 0 || errno == ENXIO; /* no data behind `at` */
}

CUresult sim_chunk_to_own_file(sim_chunk *chunk)
{
    while (chunk->moving) pthread_cond_wait(&sim_changed, &sim_lock);
    if (chunk->own_file) return CUDA_SUCCESS;
    int fd = open_own_file(chunk->size, &chunk->prop);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;

    chunk->moving = true; /* nobody pins it any more */
    while (chunk->pins) pthread_cond_wait(&sim_changed, &sim_lock);
    bool copied = true;
    if (chunk->written) {
        pthread_mutex_unlock(&sim_lock);
        copied = copy_data(fd, chunk->fd, chunk->offset, chunk->size);
        if (copied)
            fallocate(chunk->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)chunk->offset, (off_t)chunk->size);
        pthread_mutex_lock(&sim_lock);
    }
    chunk->moving = false;
    if (copied) use_own_file(chunk, fd);
    else close(fd);
    pthread_cond_broadcast(&sim_changed);
    return copied ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* ---------------------------------------------------------------------------------------------
 * Handles. What cuMemCreate or an import gave, and cuMemRetainAllocationHandle gives again, counted.
 * ------------------------------------------------------------------------------------------- */

CUresult sim_handle_create(uint64_t *out, sim_chunk *chunk, bool imported)
{
    sim_handle *handle = calloc(1, sizeof *handle);
    if (!handle) return CUDA_ERROR_OUT_OF_MEMORY;
    handle->chunk = chunk;
    handle->imported = imported;
    chunk->handles++;
    if (chunk->lingers) lingering--;
    chunk->lingers = false;
    sim_object_add(&handle->object, GVMM_SIM_MEMORY, 0, chunk->size);
    handle_insert(&handles, handle);
    *out = handle->object.id;
    return CUDA_SUCCESS;
}

sim_handle *sim_handle_find(uint64_t value)
{
    sim_handle *handle = handle_floor(handles, value);
    if (handle && handle->object.id == value) return handle;
    bool was = sim_object_was(GVMM_SIM_MEMORY, value);
    if (was)
        sim_finding("%s (call %llu): handle 0x%llx was released before", sim_call_name,
                    (unsigned long long)sim_call_number, (unsigned long long)value);
    else if (value)
        sim_finding("%s (call %llu): 0x%llx is not a handle of memory; a real driver may crash here", sim_call_name,
                    (unsigned long long)sim_call_number, (unsigned long long)value);
    return NULL;
}

uint64_t sim_handle_retain(sim_handle *handle)
{
    if (handle->object.references++ == 0) sim_object_add_again(&handle->object);
    return handle->object.id;
}

void sim_handle_drop(sim_handle *handle)
{
    if (handle->object.references || handle->mappings) return;
    handle_remove(&handles, handle);
    handle->chunk->handles--;
    sim_chunk_drop(handle->chunk);
    free(handle);
}

CUresult sim_handle_release(sim_handle *handle)
{
    if (!handle->object.references) {
        sim_finding("cuMemRelease (call %llu): handle 0x%llx was released before", (unsigned long long)sim_call_number,
                    (unsigned long long)handle->object.id);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (--handle->object.references == 0) sim_object_remove(&handle->object);
    sim_handle_drop(handle);
    return CUDA_SUCCESS;
}

/* Nothing is alive but what descriptors keep. A new arena is as good as new. */
void sim_chunk_reset(void)
{
    for (sim_chunk *chunk = with_file, *next; chunk; chunk = next) {
        next = chunk->next_file;
        if (chunk->lingers) die(chunk);
    }
    lingering = 0;
    if (arena >= 0) close(arena);
    arena = -1;
    host_used = 0;
    memset(device_used, 0, sizeof device_used);
}

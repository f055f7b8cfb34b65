/* Checking and moving bytes. Bytes are moved without sim_lock: the chunk is pinned meanwhile, and after at most 4 MiB the tables
 * are looked at again, so that memory which is unmapped under running work is noticed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

#define LONGEST_MOVE ((uint64_t)4 << 20)
#define BUFFER 32768u
#define WORTH_A_HOLE 65536u /* zeroes from here on are made by giving pages back */

/* ---------------------------------------------------------------------------------------------
 * The check made when work is queued
 * ------------------------------------------------------------------------------------------- */

typedef enum purpose { READ, WRITE, SET } purpose;

bool sim_may_touch(const sim_mapping *m, int device, bool write)
{
    unsigned access = device < 0 ? m->host_access : m->access[device];
    if (access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE || (!write && access)) return true;
    return m->block && !m->block->pool && device >= 0 && sim_peer_enabled(device, m->chunk->prop.location.id);
}

/* A copy finds plain memory of any device; a memset needs peer access. */
static bool may(const sim_mapping *m, int device, purpose what)
{
    bool plain = m->block && !m->block->pool && device >= 0;
    return (plain && what != SET) || sim_may_touch(m, device, what != READ);
}

static bool may_all(int device, uint64_t ptr, uint64_t size, purpose what)
{
    while (size) {
        sim_mapping *m = sim_shown_at(ptr);
        if (!m || !may(m, device, what)) return false;
        uint64_t here = m->shown - (ptr - m->base);
        if (here >= size) return true;
        ptr += here;
        size -= here;
    }
    return true;
}

static CUresult check(int device, uint64_t ptr, uint64_t size, purpose what)
{
    if (size && ptr > UINT64_MAX - size) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    bool fine = may_all(device, ptr, size, what) || (!sim_in_device_space(ptr) && sim_is_pinned(ptr, size));
    pthread_mutex_unlock(&sim_lock);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_check_access(int device, CUdeviceptr ptr, size_t size, bool write)
{
    return check(device, ptr, size, write ? WRITE : READ);
}

CUresult sim_check_set(int device, CUdeviceptr ptr, size_t size) { return check(device, ptr, size, SET); }

/* ---------------------------------------------------------------------------------------------
 * Stretches: what is behind an address for a while
 * ------------------------------------------------------------------------------------------- */

typedef struct stretch {
    sim_chunk *chunk; /* pinned; NULL: the program's own memory */
    int fd;
    uint64_t at; /* in the file, or in the program's memory */
    uint64_t size;
    bool write;
} stretch;

/* "cuMemsetD8Async (call 7) on stream 0x80000000001" */
static void describe(const sim_actor *who, char *out, size_t size)
{
    char call[32] = "", stream[48] = "";
    if (who->call) snprintf(call, sizeof call, " (call %llu)", (unsigned long long)who->call);
    if (who->stream) snprintf(stream, sizeof stream, " on stream 0x%llx", (unsigned long long)who->stream);
    snprintf(out, size, "%.60s%s%s", who->operation ? who->operation : "?", call, stream);
}

/* One sentence for whoever queued the work. With sim_lock held. */
static void report_touch(const sim_actor *who, uint64_t ptr, bool write, const sim_mapping *m)
{
    char actor[160];
    describe(who, actor, sizeof actor);
    const char *verb = write ? "wrote" : "read";
    uint64_t call;
    const char *name;
    if (m && who->device < 0)
        sim_finding("%s %s 0x%llx, which is not open to the host", actor, verb, (unsigned long long)ptr);
    else if (m)
        sim_finding("%s %s 0x%llx, which is not open to device %d for that", actor, verb, (unsigned long long)ptr,
                    who->device);
    else if (sim_unmapped_by(ptr, &call, &name))
        sim_finding("%s %s 0x%llx, which was unmapped by %s (call %llu)", actor, verb, (unsigned long long)ptr, name,
                    (unsigned long long)call);
    else sim_finding("%s %s 0x%llx, where nothing is mapped", actor, verb, (unsigned long long)ptr);
}

/* Finds what is at `ptr`, without pinning it yet. */
static CUresult look(stretch *s, const sim_actor *who, uint64_t ptr, uint64_t size, bool write)
{
    *s = (stretch){.at = ptr, .size = size < LONGEST_MOVE ? size : LONGEST_MOVE, .write = write};
    sim_mapping *m = sim_mapping_at(ptr);
    if (!m && !sim_in_device_space(ptr)) return CUDA_SUCCESS;
    if (!m || !may(m, who->device, write ? WRITE : READ)) {
        report_touch(who, ptr, write, m);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    uint64_t inside = ptr - m->base;
    s->chunk = m->chunk;
    if (s->size > m->size - inside) s->size = m->size - inside;
    s->at = m->offset + inside; /* in the chunk; pin() makes it a place in the file, which may move until then */
    return CUDA_SUCCESS;
}

static bool is_moving(const stretch *s) { return s->chunk && s->chunk->moving; }

static void pin(stretch *s)
{
    if (!s->chunk) return;
    s->chunk->pins++;
    s->chunk->written |= s->write;
    s->fd = s->chunk->fd;
    s->at += s->chunk->offset;
}

static void unpin(stretch *s)
{
    if (!s->chunk) return;
    if (--s->chunk->pins == 0) {
        if (s->chunk->moving) pthread_cond_broadcast(&sim_changed);
        sim_chunk_drop(s->chunk);
    }
}

/* Opens both ends of a copy; `src` may be NULL. Pins neither while it waits for the other. */
static CUresult open_ends(const sim_actor *who, stretch *dst, uint64_t to, stretch *src, uint64_t from, uint64_t size)
{
    CUresult result;
    pthread_mutex_lock(&sim_lock);
    for (;;) {
        result = look(dst, who, to, size, true);
        if (result == CUDA_SUCCESS && src) result = look(src, who, from, size, false);
        if (result != CUDA_SUCCESS || !(is_moving(dst) || (src && is_moving(src)))) break;
        pthread_cond_wait(&sim_changed, &sim_lock);
    }
    if (result == CUDA_SUCCESS) {
        pin(dst);
        if (src) pin(src);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static void close_ends(stretch *dst, stretch *src)
{
    pthread_mutex_lock(&sim_lock);
    unpin(dst);
    if (src) unpin(src);
    sim_memory_unlock();
}

/* ---------------------------------------------------------------------------------------------
 * Moving
 * ------------------------------------------------------------------------------------------- */

static bool read_file(int fd, char *to, uint64_t size, uint64_t at)
{
    while (size) {
        ssize_t n = pread(fd, to, size, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        to += n;
        at += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return true;
}

static bool write_file(int fd, const char *from, uint64_t size, uint64_t at)
{
    while (size) {
        ssize_t n = pwrite(fd, from, size, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        from += n;
        at += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return true;
}

/* Nothing was written here since the memory was made. */
static bool is_hole(int fd, uint64_t at, uint64_t size)
{
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);
    return data < 0 ? errno == ENXIO : (uint64_t)data >= at + size;
}

static bool make_hole(int fd, uint64_t at, uint64_t size)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)size) == 0;
}

static bool move_between_files(const stretch *dst, const stretch *src, uint64_t size)
{
    if (size >= WORTH_A_HOLE && is_hole(src->fd, src->at, size) && make_hole(dst->fd, dst->at, size)) return true;
    char bytes[BUFFER];
    for (uint64_t done = 0; done < size;) {
        uint64_t n = size - done < sizeof bytes ? size - done : sizeof bytes;
        if (!read_file(src->fd, bytes, n, src->at + done) || !write_file(dst->fd, bytes, n, dst->at + done))
            return false;
        done += n;
    }
    return true;
}

static bool move(const stretch *dst, const stretch *src, uint64_t size)
{
    if (dst->chunk && src->chunk) return move_between_files(dst, src, size);
    char *to = (char *)(uintptr_t)dst->at;
    const char *from = (const char *)(uintptr_t)src->at;
    if (dst->chunk) return write_file(dst->fd, from, size, dst->at);
    if (src->chunk) return read_file(src->fd, to, size, src->at);
    memmove(to, from, size);
    return true;
}

/* The kernel refused to move the bytes: a bad pointer of the program, or no memory left in the machine. */
static CUresult moving_failed(const sim_actor *who, uint64_t ptr)
{
    int error = errno;
    char actor[160];
    describe(who, actor, sizeof actor);
    sim_finding("%s could not move bytes at 0x%llx: error %d of the system", actor, (unsigned long long)ptr, error);
    return error == EFAULT ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_UNKNOWN;
}

CUresult sim_bytes_copy(const sim_actor *who, uint64_t dst, uint64_t src, size_t size)
{
    while (size) {
        stretch to, from;
        CUresult result = open_ends(who, &to, dst, &from, src, size);
        if (result != CUDA_SUCCESS) return result;
        uint64_t n = to.size < from.size ? to.size : from.size;
        if (!move(&to, &from, n)) result = moving_failed(who, dst);
        close_ends(&to, &from);
        if (result != CUDA_SUCCESS) return result;
        dst += n;
        src += n;
        size -= n;
    }
    return CUDA_SUCCESS;
}

/* A run of the pattern that can be written from any of its first bytes on. */
typedef struct pattern {
    char bytes[BUFFER + 4];
    unsigned element_size;
    bool zero;
} pattern;

static void fill_pattern(pattern *p, unsigned value, unsigned element_size, uint64_t size)
{
    p->element_size = element_size;
    p->zero = (element_size == 4 ? value : element_size == 2 ? value & 0xffff : value & 0xff) == 0;
    uint64_t needed = size < BUFFER ? size + 4 : sizeof p->bytes;
    for (uint64_t i = 0; i < needed; i++)
        p->bytes[i] = (char)(value >> 8 * (i % element_size)); /* little-endian, as a GPU is */
}

static bool set(const stretch *dst, const pattern *p, uint64_t phase, uint64_t size)
{
    if (dst->chunk && p->zero && size >= WORTH_A_HOLE && make_hole(dst->fd, dst->at, size)) return true;
    for (uint64_t done = 0; done < size;) {
        uint64_t n = size - done < BUFFER ? size - done : BUFFER;
        const char *from = p->bytes + (phase + done) % p->element_size;
        if (!dst->chunk) memcpy((char *)(uintptr_t)dst->at + done, from, n);
        else if (!write_file(dst->fd, from, n, dst->at + done)) return false;
        done += n;
    }
    return true;
}

/* Memory of devices, or host memory that is open to them. */
static bool can_reach(uint64_t ptr, uint64_t size)
{
    pthread_mutex_lock(&sim_lock);
    bool can = sim_in_device_space(ptr) || sim_is_pinned(ptr, size);
    pthread_mutex_unlock(&sim_lock);
    return can;
}

static CUresult out_of_reach(const sim_actor *who, uint64_t ptr)
{
    char actor[160];
    describe(who, actor, sizeof actor);
    sim_finding("%s touched 0x%llx, which is no device memory", actor, (unsigned long long)ptr);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult sim_bytes_set(const sim_actor *who, CUdeviceptr dst, unsigned value, unsigned element_size, size_t count)
{
    if (count > SIZE_MAX / element_size) return CUDA_ERROR_INVALID_VALUE;
    pattern p;
    uint64_t size = (uint64_t)count * element_size, done = 0;
    if (size && who->device >= 0 && !can_reach(dst, size)) return out_of_reach(who, dst);
    fill_pattern(&p, value, element_size, size);
    while (done < size) {
        stretch to;
        CUresult result = open_ends(who, &to, dst + done, NULL, 0, size - done);
        if (result != CUDA_SUCCESS) return result;
        if (!set(&to, &p, done, to.size)) result = moving_failed(who, dst + done);
        close_ends(&to, NULL);
        if (result != CUDA_SUCCESS) return result;
        done += to.size;
    }
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------
 * For host functions that stand in for kernels
 * ------------------------------------------------------------------------------------------- */

static CUresult touch(int device, const char *operation, uint64_t dst, uint64_t src, uint64_t device_side, size_t size)
{
    if (device < 0 || (unsigned)device >= sim_config.devices) return CUDA_ERROR_INVALID_DEVICE;
    sim_actor who = {.device = device, .operation = operation};
    if (size && !can_reach(device_side, size)) return out_of_reach(&who, device_side);
    return sim_bytes_copy(&who, dst, src, size);
}

CUresult gvmm_sim_read(int device, void *dst, CUdeviceptr src, size_t size)
{
    return touch(device, "gvmm_sim_read", (uint64_t)(uintptr_t)dst, src, src, size);
}

CUresult gvmm_sim_write(int device, CUdeviceptr dst, const void *src, size_t size)
{
    return touch(device, "gvmm_sim_write", dst, (uint64_t)(uintptr_t)src, dst, size);
}

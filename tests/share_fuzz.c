/* What a hostile process could send, from a byte string: see share_fuzz.h. */
#include "share_fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gvmm/sim.h"
#include "internal.h"

enum { CHUNKS = 4, ROOM = 1 << 16, FRAME = 32 };

/* A frame of exchange.c, as a stranger would write it. */
typedef struct frame {
    char magic[4];
    uint16_t version, kind;
    uint32_t result, count;
    uint64_t size;
    uint32_t batch, zero;
} frame;

static gvmm_resource *resource;
static gvmm_buffer *buffer;
static gvmm_export *exported;
static gvmm_shared good;
static size_t descriptors;
static gvmm_stats before;

static void must(bool so, const char *what)
{
    if (so) return;
    gvmm_error error;
    gvmm_last_error(&error);
    fprintf(stderr, "share_fuzz: not so: %s (last error: %s)\n", what, error.text);
    abort();
}

static size_t open_descriptors(void)
{
    DIR *all = opendir("/proc/self/fd");
    size_t count = 0;
    must(all != NULL, "/proc/self/fd");
    while (readdir(all)) count++;
    closedir(all);
    return count;
}

/* Once in a process. */
static void start(void)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_options options = GVMM_OPTIONS_INIT;
    if (resource) return;
    config.granularity = 4096;
    config.memory = (uint64_t)1 << 40;
    options.chunk_size = 4096;
    must(!gvmm_sim_reset(&config), "a machine");
    must(!gvmm_driver_install(gvmm_sim_driver()), "a driver");
    must(!gvmm_resource_create(&resource, 0, &options), "a resource");
    must(!gvmm_buffer_create(&buffer, resource, CHUNKS * 4096, NULL), "a buffer");
    must(!gvmm_buffer_export(&exported, buffer, 0), "an export");
    gvmm_export_contents(exported, &good);
    descriptors = open_descriptors();
    gvmm_get_stats(NULL, &before);
}

/* ---- what is sent ---- */

typedef struct message {
    unsigned char bytes[ROOM];
    size_t size;
} message;

static void add(message *m, const void *bytes, size_t size)
{
    if (size > ROOM - m->size) size = ROOM - m->size;
    if (size) memcpy(m->bytes + m->size, bytes, size);
    m->size += size;
}

static void add_frame(message *m, unsigned kind, unsigned count, uint64_t size)
{
    frame f = {.magic = "gvm", .version = 1, .kind = (uint16_t)kind, .count = count, .size = size, .batch = 3};
    add(m, &f, sizeof f);
}

/* Four bytes each: where (two), how, and with what. */
static void edit(message *m, const uint8_t *edits, size_t size)
{
    for (; size >= 4 && m->size; edits += 4, size -= 4) {
        size_t at = (edits[0] | (size_t)edits[1] << 8) % m->size;
        switch (edits[2] % 6) {
        case 0: m->bytes[at] = edits[3]; break;
        case 1: m->bytes[at] ^= (unsigned char)(1u << edits[3] % 8); break;
        case 2: m->bytes[at] = (unsigned char)(m->bytes[at] + edits[3]); break;
        case 3: m->size = at; break;     /* truncated */
        case 4: add(m, edits, 4); break; /* longer */
        case 5: memset(m->bytes + at, edits[3], m->size - at < 8 ? m->size - at : 8); break;
        }
    }
}

static void seal(message *m, size_t at)
{
    if (m->size >= at + sizeof(wire_head)) gvmm__wire_seal(m->bytes + at, m->size - at);
}

/* Writes it all into a socket and closes that for writing; the other end's owner finds it there. Descriptors go with
 * the bytes from `fds_at` on. `cut`: bytes of a packet; 0: all in a stream. */
static int write_all(const message *m, size_t fds_at, size_t fd_count, size_t cut, int *other)
{
    int ends[2], room = 1 << 20;
    must(!socketpair(AF_UNIX, (cut ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC, 0, ends), "a socket pair");
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    for (size_t at = 0, n; at < m->size; at += n) {
        char space[CMSG_SPACE(CHUNKS * sizeof(int))] = {0};
        struct iovec part = {(void *)(uintptr_t)(m->bytes + at), 0};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
        n = cut && cut < m->size - at ? cut : m->size - at;
        if (at < fds_at && fds_at - at < n) n = fds_at - at;
        if (at == fds_at && fd_count) {
            header.msg_control = space;
            header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
            struct cmsghdr *c = CMSG_FIRSTHDR(&header);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
            memcpy(CMSG_DATA(c), good.fds, fd_count * sizeof(int));
            if (n > FRAME) n = FRAME;
        }
        part.iov_len = n;
        if (sendmsg(ends[0], &header, MSG_DONTWAIT | MSG_NOSIGNAL) <= 0) break; /* full: that is long enough */
    }
    shutdown(ends[0], SHUT_WR);
    *other = ends[1];
    return ends[0];
}

/* ---- what it is sent to ---- */

/* Nothing is left of what failed, and what succeeded is memory. */
static void check(gvmm_result r, gvmm_buffer *out)
{
    gvmm_stats now;
    gvmm_segment segments[8];
    size_t count = 0, total = 0;
    must(r == GVMM_OK || out == NULL, "out is not written by a failure");
    must(r <= GVMM_E_DRIVER, "the result is a documented one");
    if (out) {
        must(!gvmm_buffer_segments(out, segments, 8, &count), "segments");
        for (size_t i = 0; i < count && i < 8; i++) total += segments[i].size;
        must(count > 8 || total == gvmm_buffer_size(out), "its size is that of its chunks");
        gvmm_buffer_release(out);
    }
    gvmm_drain();
    gvmm_get_stats(NULL, &now);
    must(now.mapped_bytes == before.mapped_bytes && now.imported_bytes == before.imported_bytes &&
             now.reserved_bytes == before.reserved_bytes && now.buffers == before.buffers &&
             now.memories == before.memories,
         "nothing is left");
    must(open_descriptors() == descriptors, "no descriptor is left");
    must(gvmm_sim_findings(NULL, NULL) == 0, "the driver was used well");
}

static void import(const message *m, size_t fd_count, bool have)
{
    gvmm_buffer *out = NULL;
    unsigned char *bytes = malloc(m->size + 1); /* of just that size, for the sanitizer */
    gvmm_shared shared = {bytes, m->size, good.fds, fd_count, GVMM_HANDLE_POSIX_FD};
    memcpy(bytes, m->bytes, m->size);
    gvmm_result r = gvmm_buffer_import(&out, resource, &shared, have ? buffer : NULL, NULL);
    free(bytes);
    check(r, out);
}

static void receive(const message *m, size_t fds_at, size_t fd_count, size_t cut, bool have)
{
    gvmm_share_options options = {sizeof options, 0, have ? buffer : NULL};
    gvmm_buffer *out = NULL;
    int end, writer = write_all(m, fds_at, fd_count, cut, &end);
    gvmm_result r = gvmm_buffer_receive(&out, resource, end, NULL, &options);
    close(end);
    close(writer);
    check(r, out);
}

static void send_to(const message *m, size_t cut)
{
    gvmm_share_options options = {sizeof options, 0, NULL};
    int end, writer = write_all(m, SIZE_MAX, 0, cut, &end);
    gvmm_result r = gvmm_buffer_send(buffer, end, &options);
    close(end);
    close(writer);
    check(r, NULL);
}

/* All frames of a sender, right but for the edits. */
static void receive_edited(const uint8_t *edits, size_t size, uint8_t how, size_t fd_count)
{
    static message m, descriptor;
    m.size = descriptor.size = 0;
    add(&descriptor, good.bytes, good.size);
    size_t half = how & 0x20 ? size / 2 / 4 * 4 : 0; /* some for the descriptor, which may then be sealed */
    edit(&descriptor, edits, half);
    if (how & 0x80) seal(&descriptor, 0);
    add_frame(&m, 1, CHUNKS, 0);
    add_frame(&m, 3, 0, descriptor.size);
    add(&m, descriptor.bytes, descriptor.size);
    size_t fds_at = m.size;
    add_frame(&m, 4, (unsigned)fd_count, 0);
    add_frame(&m, 4, (unsigned)fd_count, 0);
    edit(&m, edits + half, size - half);
    receive(&m, fds_at, fd_count, how & 0x40 ? FRAME : 0, how & 0x10);
}

void share_run(const uint8_t *bytes, size_t size)
{
    static message m;
    start();
    if (size < 2) return;
    uint8_t how = bytes[0];
    size_t fd_count = bytes[1] % (CHUNKS + 1), cut = how & 0x40 ? FRAME : 0;
    bytes += 2;
    size -= 2;
    m.size = 0;
    switch (how % 5) {
    case 0: /* a descriptor of any bytes */
        add(&m, bytes, size);
        if (how & 0x80) seal(&m, 0);
        import(&m, fd_count, how & 0x10);
        break;
    case 1: /* a good one, edited */
        add(&m, good.bytes, good.size);
        edit(&m, bytes, size);
        if (how & 0x80) seal(&m, 0);
        import(&m, fd_count, how & 0x10);
        break;
    case 2: /* a sender that sends anything */
        add(&m, bytes, size);
        receive(&m, 0, fd_count, cut, how & 0x10);
        break;
    case 3: receive_edited(bytes, size, how, fd_count); break;
    case 4: /* a receiver that answers anything, or well but for the edits */
        if (how & 0x80) {
            add_frame(&m, 2, CHUNKS, 0);
            gvmm_identity list[CHUNKS];
            size_t count;
            must(!gvmm_buffer_identities(buffer, list, CHUNKS, &count), "identities");
            add(&m, list, how & 0x10 ? sizeof list : sizeof list / 2);
            for (int i = 0; i < 3; i++) add_frame(&m, 5, 0, 0);
            edit(&m, bytes, size);
        } else {
            add(&m, bytes, size);
        }
        send_to(&m, cut);
        break;
    }
}

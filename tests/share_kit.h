/* What the tests of sharing have in common: both ends of an exchange in one process, descriptors counted. */
#ifndef GVMM_SHARE_KIT_H
#define GVMM_SHARE_KIT_H

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support.h"

static inline size_t open_descriptors(void)
{
    size_t count = 0;
    gvmm_drain(); /* what was given up may have some */
    DIR *all = opendir("/proc/self/fd");
    if (!all) return 0;
    while (readdir(all)) count++;
    closedir(all);
    return count;
}

static inline void look(const gvmm_resource *resource, gvmm_stats *out)
{
    gvmm_drain();
    gvmm_get_stats(resource, out);
}

static inline bool is_open(int fd)
{
    gvmm_drain();
    return fcntl(fd, F_GETFD) >= 0;
}

/* A buffer of `count` chunks of G, with room to grow in place, and the pattern `seed` in it (0: none). */
static inline gvmm_buffer *chunked(size_t count, unsigned seed)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.chunk_size = G;
    options.capacity = (count + 64) * G;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *buffer = create(resource, count * G);
    gvmm_resource_release(resource);
    if (count && seed) write_pattern(gvmm_buffer_address(buffer), count * G, seed);
    return buffer;
}

static inline gvmm_buffer *import(const gvmm_export *e, gvmm_buffer *have)
{
    gvmm_shared shared;
    gvmm_buffer *buffer = NULL;
    gvmm_export_contents(e, &shared);
    ck_ok(gvmm_buffer_import(&buffer, plain, &shared, have, NULL));
    return buffer;
}

static inline gvmm_export *export(gvmm_buffer *buffer, size_t known)
{
    gvmm_export *e = NULL;
    ck_ok(gvmm_buffer_export(&e, buffer, known));
    return e;
}

static inline gvmm_buffer *copy_of(gvmm_buffer *buffer)
{
    gvmm_export *e = export(buffer, 0);
    gvmm_buffer *copy = import(e, NULL);
    gvmm_export_release(e);
    return copy;
}

/* Counts a call's uses from now on, and fails none. */
static inline void count_calls(const char *call)
{
    gvmm_drain(); /* nobody makes calls when a fault is planned; here and below */
    ck_ok(gvmm_faults_set(&(gvmm_fault){.call = call}));
}

static inline void ck_same_chunks(const gvmm_buffer *a, const gvmm_buffer *b, size_t count)
{
    gvmm_identity x[8], y[8];
    size_t n;
    ck_ok(gvmm_buffer_identities(a, x, 8, &n));
    ck_ok(gvmm_buffer_identities(b, y, 8, &n));
    ck_assert_int_eq(memcmp(x, y, count * sizeof *x), 0);
}

/* What a driver keeps open from its first export or import on is open afterwards. */
static inline void warm_up(void)
{
    gvmm_buffer *buffer = create(plain, G), *copy;
    gvmm_export *e;
    gvmm_shared shared;
    ck_ok(gvmm_buffer_export(&e, buffer, 0));
    gvmm_export_contents(e, &shared);
    ck_ok(gvmm_buffer_import(&copy, plain, &shared, NULL, NULL));
    gvmm_buffer_release(copy);
    gvmm_export_release(e);
    gvmm_buffer_release(buffer);
}

/* A sender on a thread of its own. */
typedef struct sending {
    gvmm_buffer *buffer;
    int socket;
    gvmm_share_options options;
    gvmm_result result;
    char text[192];
    pthread_t thread;
} sending;

static inline void *send_it(void *data)
{
    sending *s = data;
    s->result = gvmm_buffer_send(s->buffer, s->socket, &s->options);
    snprintf(s->text, sizeof s->text, "%s", s->result ? last_text() : "");
    close(s->socket); /* as a process does that has failed, or is done */
    return NULL;
}

/* Starts it; the other end of its socket. */
static inline int send_start(sending *s, gvmm_buffer *buffer, int type)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), 0);
    *s = (sending){.buffer = buffer, .socket = ends[0], .options = GVMM_SHARE_OPTIONS_INIT};
    ck_assert_int_eq(pthread_create(&s->thread, NULL, send_it, s), 0);
    return ends[1];
}

/* Both ends of an exchange. The receiver's result, or the sender's where the receiver knows only that it has gone. */
static inline gvmm_result exchange(gvmm_buffer **out, gvmm_resource *to, gvmm_buffer *buffer, gvmm_buffer *have,
                                   int type, sending *s)
{
    int end = send_start(s, buffer, type);
    gvmm_share_options options = GVMM_SHARE_OPTIONS_INIT;
    options.have = have;
    gvmm_result r = gvmm_buffer_receive(out, to, end, NULL, &options);
    close(end);
    pthread_join(s->thread, NULL);
    return r == GVMM_E_PEER_GONE ? s->result : r;
}

#endif

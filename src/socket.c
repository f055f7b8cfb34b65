/* Bytes and descriptors over a Unix socket, with a time limit for the whole; how many descriptors there may be. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Bytes of one packet: less than the least buffer that a socket can have. In a stream the kernel finds its own. */
enum { PIECE = 4096 };

/* ---- descriptors ---- */

/* Descriptors mostly come in a row, for which one call is enough where the kernel has it (5.9; the flag: 5.11). glibc has
 * had no function for it before 2.34. How many from the beginning on are done. */
static size_t do_run(const int *fds, size_t count, unsigned flags)
{
#ifdef SYS_close_range
    size_t run = 1;
    while (run < count && fds[run] == fds[run - 1] + 1) run++;
    if (run > 1 && syscall(SYS_close_range, (unsigned)fds[0], (unsigned)fds[run - 1], flags) == 0) return run;
#endif
    return 0;
}

void gvmm__fds_close(const int *fds, size_t count)
{
    for (size_t i = 0; i < count;) {
        size_t done = do_run(fds + i, count - i, 0);
        if (!done) close(fds[i++]);
        i += done;
    }
}

void gvmm__fds_end_on_exec(const int *fds, size_t count)
{
    enum { END_ON_EXEC = 1 << 2 }; /* CLOSE_RANGE_CLOEXEC, which older headers lack */
    for (size_t i = 0; i < count;) {
        size_t done = do_run(fds + i, count - i, END_ON_EXEC);
        if (!done) fcntl(fds[i++], F_SETFD, FD_CLOEXEC);
        i += done;
    }
}

/* Without /proc nobody knows, and 0 is as good as any; but when not one is left the directory cannot be opened. */
static size_t count_open(size_t most)
{
    struct stat st;
    size_t count = 0;
    if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0) return (size_t)st.st_size; /* Linux 6.2 and newer */
    DIR *all = opendir("/proc/self/fd");
    if (!all) return errno == EMFILE ? most : 0;
    for (const struct dirent *entry; (entry = readdir(all));) count += entry->d_name[0] != '.';
    closedir(all);
    return count - 1; /* the directory's own */
}

gvmm_result gvmm__fds_need(size_t count, size_t *left)
{
    struct rlimit limit;
    *left = SIZE_MAX;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY) return GVMM_OK;
    size_t most = (size_t)limit.rlim_cur, open_now = count_open(most);
    *left = most > open_now ? most - open_now : 0;
    if (*left >= count) return GVMM_OK;
    return gvmm__fail(GVMM_E_UNSUPPORTED,
                      "descriptors: %zu are needed, one for each chunk; %zu of %zu are open (ulimit -n): make larger "
                      "chunks (option chunk_size)",
                      count, open_now, most);
}

/* ---- time ---- */

static uint64_t clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static gvmm_result failed(const char *call)
{
    switch (errno) {
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
        return gvmm__fail(GVMM_E_PEER_GONE, "socket: %s: %s: the other process has gone", call, strerror(errno));
    case ETOOMANYREFS: return gvmm__fail(GVMM_E_UNSUPPORTED, "socket: too many descriptors are on their way (%m)");
    case ENOMEM:
    case ENOBUFS: return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "socket: %s: %m", call);
    default: return gvmm__fail(GVMM_E_INVALID, "socket: %s: %m", call);
    }
}

/* Until something can be sent or received, or the other end is closed. */
static gvmm_result wait_for(const connection *c, short events)
{
    struct pollfd p = {c->socket, events, 0};
    for (;;) {
        uint64_t now = clock_ms(), left = c->deadline > now ? c->deadline - now : 0;
        int wait = c->deadline == UINT64_MAX ? -1 : left > 60000 ? 60000 : (int)left;
        int ready = poll(&p, 1, wait);
        if (ready > 0) return GVMM_OK;
        if (ready < 0 && errno != EINTR) return failed("poll");
        if (clock_ms() >= c->deadline)
            return gvmm__fail(GVMM_E_PEER_GONE, "socket: the other process did not answer within %d ms", c->timeout_ms);
    }
}

/* ---- sending and receiving ---- */

static size_t piece_of(const connection *c, size_t size) { return c->packets && size > PIECE ? PIECE : size; }

gvmm_result gvmm__connection_open(connection *out, int socket, int timeout_ms)
{
    int domain = 0, type = 0;
    socklen_t size = sizeof domain;
    if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) ||
        getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size))
        return gvmm__fail(GVMM_E_INVALID, "socket: %d: %m", socket);
    if (domain != AF_UNIX || (type != SOCK_STREAM && type != SOCK_SEQPACKET))
        return gvmm__fail(GVMM_E_INVALID, "socket: %d is not a Unix socket of type SOCK_STREAM or SOCK_SEQPACKET",
                          socket);
    uint64_t deadline = timeout_ms < 0 ? UINT64_MAX : clock_ms() + (uint64_t)timeout_ms;
    *out = (connection){socket, type == SOCK_SEQPACKET, deadline, timeout_ms};
    return GVMM_OK;
}

/* A message's descriptors, aligned as the kernel wants them; and room for what the owner of the socket may have asked
 * for besides, such as who the sender is. */
typedef union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(SOCKET_MOST_FDS * sizeof(int)) + 256];
} control;

/* One message or a part of it. */
static gvmm_result send_some(const connection *c, const void *bytes, size_t size, const int *fds, size_t fd_count,
                             size_t *sent)
{
    control space;
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count) {
        memset(&space, 0, sizeof space);
        message.msg_control = &space;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof *fds);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_count * sizeof *fds);
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof *fds);
    }
    for (;;) {
        ssize_t n = sendmsg(c->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        *sent = n > 0 ? (size_t)n : 0;
        if (n >= 0) return GVMM_OK;
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return failed("sendmsg");
        gvmm_result r = wait_for(c, POLLOUT);
        if (r) return r;
    }
}

gvmm_result gvmm__connection_send(const connection *c, const void *bytes, size_t size, const int *fds, size_t fd_count)
{
    const char *at = bytes;
    while (size) {
        size_t sent, piece = piece_of(c, size);
        gvmm_result r = send_some(c, at, piece, fds, fd_count, &sent);
        if (r) return r;
        at += sent;
        size -= sent;
        fd_count = 0;
    }
    return GVMM_OK;
}

/* Takes the descriptors out of a message. What there is no room for is closed. */
static void take_fds(struct msghdr *message, int *fds, size_t *count)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof *fds;
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            if (*count < SOCKET_MOST_FDS) fds[(*count)++] = fd;
            else close(fd);
        }
    }
}

/* Without room for descriptors the kernel closes those that come. */
static gvmm_result receive_some(const connection *c, void *bytes, size_t size, int *fds, size_t *fd_count, size_t *got)
{
    control space;
    struct iovec part = {bytes, size};
    for (;;) {
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (fds) message.msg_control = &space, message.msg_controllen = sizeof space;
        ssize_t n = recvmsg(c->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            gvmm_result r = wait_for(c, POLLIN);
            if (r) return r;
            continue;
        }
        if (n < 0) return failed("recvmsg");
        if (fds) take_fds(&message, fds, fd_count);
        if (n == 0) return gvmm__fail(GVMM_E_PEER_GONE, "socket: the other process has closed it");
        if (message.msg_flags & MSG_TRUNC)
            return gvmm__fail(GVMM_E_INVALID, "socket: a message is longer than it should be");
        if (fds && message.msg_flags & MSG_CTRUNC) {
            size_t left;
            gvmm_result r = gvmm__fds_need(*fd_count + 1, &left);
            return r ? r : gvmm__fail(GVMM_E_INVALID, "socket: descriptors were lost on their way");
        }
        *got = (size_t)n;
        return GVMM_OK;
    }
}

gvmm_result gvmm__connection_receive(const connection *c, void *bytes, size_t size, int *fds, size_t *fd_count)
{
    char *at = bytes;
    if (fds) *fd_count = 0;
    while (size) {
        size_t got, piece = piece_of(c, size);
        gvmm_result r = receive_some(c, at, piece, fds, fd_count, &got);
        if (!r && c->packets && got != piece)
            r = gvmm__fail(GVMM_E_INVALID, "socket: a message is shorter than it should be");
        if (r) {
            if (fds) gvmm__fds_close(fds, *fd_count);
            return r;
        }
        at += got;
        size -= got;
    }
    return GVMM_OK;
}

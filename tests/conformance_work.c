/* The kit's streams, events, graphs, gates, and other processes. */
#include "conformance.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void undo_stream(uint64_t s, size_t size)
{
    (void)size;
    drv->cuStreamDestroy((CUstream)(uintptr_t)s);
}
static void undo_event(uint64_t e, size_t size)
{
    (void)size;
    drv->cuEventDestroy((CUevent)(uintptr_t)e);
}
static void undo_graph(uint64_t g, size_t size)
{
    (void)size;
    drv->cuGraphDestroy((CUgraph)(uintptr_t)g);
}
static void undo_exec(uint64_t x, size_t size)
{
    (void)size;
    drv->cuGraphExecDestroy((CUgraphExec)(uintptr_t)x);
}
static void undo_context(uint64_t c, size_t size)
{
    (void)size;
    drv->cuCtxDestroy((CUcontext)(uintptr_t)c);
}

static void undo_peer(uint64_t pid, size_t size)
{
    (void)size;
    kill((pid_t)pid, SIGKILL);
    waitpid((pid_t)pid, NULL, 0);
}

/* ---- streams, events, graphs ---- */

static CUstream stream_with(unsigned flags)
{
    CUstream s = NULL;
    DO(cuStreamCreate(&s, flags));
    undo_later(undo_stream, ID(s), 0);
    return s;
}

CUstream stream(void) { return stream_with(CU_STREAM_NON_BLOCKING); }
CUstream blocking_stream(void) { return stream_with(CU_STREAM_DEFAULT); }

static CUevent event_with(unsigned flags)
{
    CUevent e = NULL;
    DO(cuEventCreate(&e, flags));
    undo_later(undo_event, ID(e), 0);
    return e;
}

CUevent event(void) { return event_with(CU_EVENT_DISABLE_TIMING); }
CUevent timing_event(void) { return event_with(CU_EVENT_DEFAULT); }

CUgraph graph(void)
{
    CUgraph g = NULL;
    DO(cuGraphCreate(&g, 0));
    undo_later(undo_graph, ID(g), 0);
    return g;
}

CUgraphExec executable(CUgraph g)
{
    CUgraphExec x = NULL;
    DO(cuGraphInstantiateWithFlags(&x, g, 0));
    undo_later(undo_exec, ID(x), 0);
    return x;
}

CUgraphNode memset_node(CUgraph g, CUdeviceptr p, size_t size, unsigned value)
{
    CUDA_MEMSET_NODE_PARAMS set = {.dst = p, .value = value, .elementSize = 1, .width = size, .height = 1};
    CUgraphNode node = NULL;
    DO(cuGraphAddMemsetNode(&node, g, NULL, 0, &set, ctx));
    return node;
}

CUgraphNode host_node(CUgraph g, CUhostFn fn, void *data)
{
    CUDA_HOST_NODE_PARAMS host = {fn, data};
    CUgraphNode node = NULL;
    DO(cuGraphAddHostNode(&node, g, NULL, 0, &host));
    return node;
}

CUcontext second_context(void)
{
    CUcontext other = NULL, top = NULL;
    DO(cuCtxCreate(&other, 0, 0));
    DO(cuCtxPopCurrent(&top));
    undo_later(undo_context, ID(other), 0);
    return other;
}

static CUcontext known[16];

bool contexts_wait(void)
{
    bool fine = true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i]) fine = !drv->cuCtxSetCurrent(known[i]) && !drv->cuCtxSynchronize() && fine;
    drv->cuCtxSetCurrent(ctx);
    return fine;
}

CUcontext context_of(int device)
{
    if (!known[device]) DO(cuDevicePrimaryCtxRetain(&known[device], device));
    return known[device];
}

CUstreamCaptureMode set_mode(CUstreamCaptureMode mode)
{
    drv->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void begin(CUstream s, CUstreamCaptureMode mode) { DO(cuStreamBeginCapture(s, mode)); }

void end(CUstream s)
{
    CUgraph g = NULL;
    CUresult r = drv->cuStreamEndCapture(s, &g);
    tell("end", r);
    if (!r && g) drv->cuGraphDestroy(g);
}

CUgraph end_graph(CUstream s)
{
    CUgraph g = NULL;
    DO(cuStreamEndCapture(s, &g));
    undo_later(undo_graph, ID(g), 0);
    return g;
}

void say_capturing(const char *label, CUstream s)
{
    static const char *const names[] = {"NONE", "ACTIVE", "INVALIDATED"};
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = drv->cuStreamIsCapturing(s, &status);
    if (r) tell(label, r);
    else say("%s=%s", label, (unsigned)status < 3 ? names[status] : "?");
}

/* ---- time ---- */

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    atomic_int done;
};

static gate gates[512]; /* never used twice: a driver thread may still stand in one */
static int gate_count;

gate *gate_new(void)
{
    must(gate_count < (int)(sizeof gates / sizeof *gates), "too many gates");
    gate *g = &gates[gate_count++];
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    return g;
}

void gate_wait(void *data)
{
    gate *g = data;
    pthread_mutex_lock(&g->lock);
    while (!g->open) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
    atomic_store(&g->done, 1);
}

void gate_open(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void gates_open(void)
{
    for (int i = 0; i < gate_count; i++) gate_open(&gates[i]);
}

gate *gate_on(CUstream s)
{
    gate *g = gate_new();
    DO(cuLaunchHostFunc(s, gate_wait, g));
    return g;
}

void pause_ms(long ms)
{
    struct timespec t = {0, ms * 1000000L};
    while (nanosleep(&t, &t) && errno == EINTR) {}
}

static void slow(void *done)
{
    pause_ms(50);
    atomic_store((atomic_int *)done, 1);
}

atomic_int *slow_on(CUstream s)
{
    atomic_int *done = counter();
    DO(cuLaunchHostFunc(s, slow, done));
    return done;
}

atomic_int *counter(void)
{
    static atomic_int counters[1024];
    static int used;
    must(used < (int)(sizeof counters / sizeof *counters), "too many counters");
    return &counters[used++];
}

void count(void *c) { atomic_fetch_add((atomic_int *)c, 1); }

int wait_for(atomic_int *c, int wanted)
{
    for (int i = 0; i < 2000 && atomic_load(c) != wanted; i++) pause_ms(1);
    return atomic_load(c);
}

int still(atomic_int *c)
{
    pause_ms(50);
    return atomic_load(c);
}

/* ---- another process ---- */

int peer_start(const char *name)
{
    int ends[2];
    must(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    undo_later(undo_fd, (uint64_t)ends[0], 0);
    char number[16];
    snprintf(number, sizeof number, "%d", ends[1]);
    char *const args[] = {"conformance", "--peer", (char *)(uintptr_t)name, number, NULL};
    pid_t pid = fork();
    if (!pid) {
        close(ends[0]);
        execv("/proc/self/exe", args);
        _exit(127);
    }
    close(ends[1]);
    must(pid > 0, "fork");
    undo_later(undo_peer, (uint64_t)pid, 0);
    return ends[0];
}

void send_fd(int to, int fd)
{
    char byte = 'f', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    must(sendmsg(to, &message, MSG_NOSIGNAL) == 1, "sendmsg");
}

int receive_fd(int from)
{
    int fd = -1;
    char byte, control[CMSG_SPACE(sizeof fd)];
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    must(recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message), "recvmsg");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

void send_line(int to, const char *line)
{
    must(send(to, line, strlen(line), MSG_NOSIGNAL) == (ssize_t)strlen(line) && send(to, "\n", 1, MSG_NOSIGNAL) == 1,
         "send");
}

void say_line(int from)
{
    char line[256];
    size_t n = 0;
    while (n < sizeof line - 1 && read(from, line + n, 1) == 1 && line[n] != '\n') n++;
    line[n] = 0;
    say("%s", n ? line : "peer gone");
}

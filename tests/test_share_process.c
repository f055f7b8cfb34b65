/* Sharing between processes, of which one is killed at every step: at every message of the exchange, and in every driver
 * call. The other gets a clear error or carries on, and nothing is left.
 *
 * The processes are this program with a role for its first argument. Between the two stands the test, which passes
 * their messages on, and so can stop at any of them. */
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "share_kit.h"

extern char **environ;

enum { FIRST = 3, LATER = 5 };  /* chunks before and after the exporter has grown */
enum { SOCKET = 3, SPARE = 5 }; /* descriptors of a child */

/* ---- the children ---- */

static uint64_t kill_at;
static atomic_ullong calls_made;
static atomic_bool armed;

static void count_call(void *unused, const gvmm_trace_record *record)
{
    (void)unused, (void)record;
    if (atomic_load(&armed) && atomic_fetch_add(&calls_made, 1) + 1 == kill_at) raise(SIGKILL);
}

static gvmm_resource *start_child(size_t *descriptors)
{
    const char *driver = getenv("GVMM_TEST_DRIVER"), *at = getenv("KILL_AT");
    static gvmm_driver real;
    on_gpu = driver && strcmp(driver, "gpu") == 0;
    cu = on_gpu ? &real : gvmm_sim_driver();
    if (on_gpu && gvmm_driver_load(&real, "libcuda.so.1")) return NULL;
    if (gvmm_driver_install(gvmm_trace_over(cu, count_call, NULL))) return NULL;
    kill_at = at ? strtoull(at, NULL, 10) : 0;
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *resource;
    gvmm_buffer *first, *copy;
    gvmm_export *e;
    gvmm_shared shared;
    if (gvmm_resource_create(&resource, 0, NULL)) return NULL;
    options.chunk_size = G = gvmm_resource_granularity(resource);
    options.capacity = 16 * G;
    gvmm_resource_release(resource);
    CUcontext context;
    if (cu->cuDevicePrimaryCtxRetain(&context, 0) || cu->cuCtxSetCurrent(context)) return NULL;
    if (gvmm_resource_create(&resource, 0, &options) || gvmm_buffer_create(&first, resource, G, NULL)) return NULL;
    if (gvmm_buffer_export(&e, first, 0)) return NULL;
    gvmm_export_contents(e, &shared);
    if (gvmm_buffer_import(&copy, resource, &shared, NULL, NULL)) return NULL;
    gvmm_buffer_release(copy);
    gvmm_export_release(e);
    gvmm_buffer_release(first); /* what the driver keeps open is open now */
    *descriptors = open_descriptors();
    return resource;
}

static bool put_words(uint64_t address, size_t size, unsigned seed)
{
    unsigned *words = malloc(size);
    for (size_t i = 0; i < size / sizeof *words; i++) words[i] = (unsigned)i * 2654435761u + seed;
    bool fine = cu->cuMemcpyHtoD(address, words, size) == CUDA_SUCCESS;
    free(words);
    return fine;
}

/* Each with either seed: who writes may be killed in the middle. */
static bool has_words(uint64_t address, size_t size, unsigned seed, unsigned or_seed)
{
    unsigned *words = malloc(size);
    bool same = cu->cuMemcpyDtoH(words, address, size) == CUDA_SUCCESS;
    for (size_t i = 0; same && i < size / sizeof *words; i++) {
        unsigned found = words[i] - (unsigned)i * 2654435761u;
        same = found == seed || found == or_seed;
    }
    free(words);
    return same;
}

/* The simulated driver keeps a descriptor of what it has exported as long as others have the memory, and looks again
 * when it is asked how much there is. The others are about to end. */
static size_t descriptors_in_the_end(size_t wanted)
{
    size_t now, available, total;
    for (int looks = 0; (now = open_descriptors()) > wanted && looks < 10000; looks++) {
        cu->cuMemGetInfo(&available, &total);
        usleep(1000);
    }
    return now;
}

/* What is still there at the end, that was not at the start. */
static int end_child(gvmm_resource *resource, size_t descriptors, bool intact)
{
    gvmm_stats stats;
    size_t counts[GVMM_SIM_KIND_COUNT] = {0};
    gvmm_drain();
    gvmm_get_stats(NULL, &stats);
    if (!on_gpu) gvmm_sim_census(counts, NULL, NULL);
    bool clean = !stats.physical_bytes && !stats.mapped_bytes && !stats.reserved_bytes && !stats.imported_bytes &&
                 !stats.buffers && !counts[GVMM_SIM_MEMORY] && !counts[GVMM_SIM_MAPPING] &&
                 !counts[GVMM_SIM_RESERVATION];
    size_t now = descriptors_in_the_end(descriptors);
    gvmm_resource_release(resource);
    if (!on_gpu) clean = clean && gvmm_sim_findings(NULL, NULL) == 0;
    if (!intact) printf(" damaged");
    if (!clean) printf(" something-left");
    if (now > descriptors) printf(" descriptors-left=%zu", now - descriptors);
    printf(" end\n");
    return 0;
}

static bool is_first(const gvmm_buffer *buffer)
{
    return gvmm_buffer_size(buffer) == FIRST * G && has_words(gvmm_buffer_address(buffer), FIRST * G, 1, 2);
}

static const char *name_of(gvmm_result r) { return gvmm_result_name(r) + strlen("GVMM_"); }

/* Sends a buffer, grows it, sends it again; and then to another process, on the spare socket, if it has one. */
static int be_exporter(bool has_spare)
{
    size_t descriptors;
    gvmm_resource *resource = start_child(&descriptors);
    gvmm_buffer *buffer, *longer = NULL;
    if (!resource || gvmm_buffer_create(&buffer, resource, FIRST * G, NULL)) return 2;
    if (!put_words(gvmm_buffer_address(buffer), FIRST * G, 1)) return 3;
    atomic_store(&armed, true);
    gvmm_result r = gvmm_buffer_send(buffer, SOCKET, NULL);
    printf("first=%s", name_of(r));
    if (!r) {
        if (gvmm_buffer_grow(&longer, buffer, LATER * G, NULL)) return 4;
        if (!put_words(gvmm_buffer_address(longer), LATER * G, 2)) return 5;
        r = gvmm_buffer_send(longer, SOCKET, NULL);
        printf(" later=%s", name_of(r));
    }
    close(SOCKET);
    bool intact = longer ? has_words(gvmm_buffer_address(longer), LATER * G, 2, 2)
                         : has_words(gvmm_buffer_address(buffer), FIRST * G, 1, 1);
    if (has_spare) {
        printf(" again=%s", name_of(gvmm_buffer_send(buffer, SPARE, NULL)));
        close(SPARE);
        descriptors--;
    }
    gvmm_buffer_release(longer);
    gvmm_buffer_release(buffer);
    return end_child(resource, descriptors - 1, intact);
}

static int be_importer(bool once)
{
    size_t descriptors;
    gvmm_resource *resource = start_child(&descriptors);
    gvmm_share_options options = GVMM_SHARE_OPTIONS_INIT;
    gvmm_buffer *buffer = NULL, *longer = NULL;
    if (!resource) return 2;
    atomic_store(&armed, true);
    gvmm_result r = gvmm_buffer_receive(&buffer, resource, SOCKET, NULL, &options);
    printf("first=%s", name_of(r));
    bool intact = r || is_first(buffer);
    if (!r && !once) {
        options.have = buffer;
        r = gvmm_buffer_receive(&longer, resource, SOCKET, NULL, &options);
        printf(" later=%s", name_of(r));
        /* The exporter may be gone: its memory is not. */
        if (r) intact = intact && is_first(buffer);
        else
            intact = intact && has_words(gvmm_buffer_address(longer), LATER * G, 2, 2) &&
                     gvmm_buffer_address(longer) == gvmm_buffer_address(buffer);
    }
    close(SOCKET);
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(longer);
    return end_child(resource, descriptors - 1, intact);
}

/* ---- starting and ending them ---- */

typedef struct child {
    pid_t pid;
    int out; /* what it prints */
    char text[512];
} child;

static int out_of_the_way(int fd) /* of the numbers that the children get */
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 20);
    ck_assert_int_ge(high, 0);
    close(fd);
    return high;
}

static void make_pair(int ends[2])
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    for (int i = 0; i < 2; i++) ends[i] = out_of_the_way(ends[i]);
}

/* Takes the sockets over; `spare` -1: none. */
static child start(const char *role, int socket, int spare)
{
    child c = {0};
    int ends[2];
    char *arguments[] = {"test_share_process", (char *)(uintptr_t)role, NULL};
    posix_spawn_file_actions_t actions;
    ck_assert_int_eq(pipe(ends), 0);
    for (int i = 0; i < 2; i++) ends[i] = out_of_the_way(ends[i]);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, socket, SOCKET);
    if (spare >= 0) posix_spawn_file_actions_adddup2(&actions, spare, SPARE);
    ck_assert_int_eq(posix_spawn(&c.pid, "/proc/self/exe", &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    close(socket);
    if (spare >= 0) close(spare);
    c.out = ends[0];
    return c;
}

/* What it said, when it has ended. Exit status, or -signal. */
static int finish(child *c)
{
    int status;
    size_t length = 0;
    for (ssize_t n; (n = read(c->out, c->text + length, sizeof c->text - 1 - length)) > 0;) length += (size_t)n;
    c->text[length] = 0;
    close(c->out);
    ck_assert_int_eq(waitpid(c->pid, &status, 0), c->pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* It said nothing that is no good: what it had begun failed with PEER_GONE or was done, and nothing is left of it. */
static void ck_well(child *c, const char *where, uint64_t step)
{
    int status = finish(c);
    static const char *const good[] = {"first=OK",          "first=E_PEER_GONE", "later=OK",
                                       "later=E_PEER_GONE", "again=OK",          "end"};
    char copy[sizeof c->text], *rest = copy, *last = "";
    snprintf(copy, sizeof copy, "%s", c->text);
    for (char *word; (word = strsep(&rest, " \n"));) {
        bool known = !*word;
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) known = known || strcmp(word, good[i]) == 0;
        ck_assert_msg(known, "%s, step %llu: '%s'", where, (unsigned long long)step, c->text);
        if (*word) last = word;
    }
    ck_assert_msg(status == 0 && strcmp(last, "end") == 0, "%s, step %llu: status %d, '%s'", where,
                  (unsigned long long)step, status, c->text);
}

/* ---- between them ---- */

/* Passes one message on, with its descriptors. False when the sender of it has gone. */
static bool pass_on(int from, int to)
{
    char bytes[8192], space[CMSG_SPACE(SOCKET_MOST_FDS * sizeof(int))];
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t n = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    if (n <= 0) return false;
    part.iov_len = (size_t)n;
    (void)!sendmsg(to, &message, MSG_NOSIGNAL); /* who has gone does not hear it */
    struct cmsghdr *h = CMSG_FIRSTHDR(&message);
    if (h) gvmm__fds_close((const int *)(const void *)CMSG_DATA(h), (h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    return true;
}

/* Until `steps` messages have gone over and the next one waits here. False if there is no next one. */
static bool pass_until(int a, int b, uint64_t steps)
{
    for (uint64_t passed = 0;;) {
        struct pollfd p[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
        ck_assert_int_gt(poll(p, 2, -1), 0);
        int from = p[0].revents ? a : b, to = from == a ? b : a;
        char byte;
        if (recv(from, &byte, 1, MSG_PEEK) <= 0) return false;
        if (passed == steps) return true;
        if (!pass_on(from, to)) return false;
        passed++;
    }
}

enum { EXPORTER_DIES, IMPORTER_DIES, VICTIMS };

/* Kills one after `steps` messages. What it had sent by then arrives or is lost. False if there are not so many. */
static bool kill_after(int victim, uint64_t steps, bool arrives)
{
    int a[2], b[2], spare[2] = {-1, -1};
    child fresh = {0};
    make_pair(a);
    make_pair(b);
    if (victim == IMPORTER_DIES) {
        make_pair(spare);
        fresh = start("importer-once", spare[1], -1);
    }
    child exporter = start(spare[0] < 0 ? "exporter" : "exporter-twice", a[1], spare[0]),
          importer = start("importer", b[1], -1);
    bool reached = pass_until(a[0], b[0], steps);
    child *dies = victim == EXPORTER_DIES ? &exporter : &importer, *lives = dies == &exporter ? &importer : &exporter;
    int its = victim == EXPORTER_DIES ? a[0] : b[0], other = its == a[0] ? b[0] : a[0];
    if (reached) {
        kill(dies->pid, SIGKILL);
        int status = finish(dies); /* who sends the last message may have ended by itself */
        ck_assert_msg(status == -SIGKILL || status == 0, "step %llu: %d", (unsigned long long)steps, status);
        while (arrives && pass_on(its, other)) {}
    }
    close(a[0]);
    close(b[0]);
    ck_well(lives, victim == EXPORTER_DIES ? "importer" : "exporter", steps);
    if (!reached) ck_well(dies, "the other", steps);
    if (victim == IMPORTER_DIES) {
        ck_assert_msg(strstr(lives->text, "again=OK") != NULL, "step %llu: '%s'", (unsigned long long)steps,
                      lives->text);
        ck_well(&fresh, "fresh importer", steps);
        ck_assert_msg(strstr(fresh.text, "first=OK") != NULL, "'%s'", fresh.text);
    }
    return reached;
}

START_TEST(one_is_killed_at_every_message)
{
    uint64_t steps = 0;
    int victim = _i / 2;
    while (kill_after(victim, steps, _i % 2)) steps++;
    ck_assert_uint_ge(steps, 12); /* two exchanges */
}
END_TEST

/* Side by side, without the test in between; one of them kills itself in its nth driver call. */
static bool kill_in_call(int victim, uint64_t nth)
{
    int ends[2], spare[2] = {-1, -1};
    char at[32];
    child fresh = {0}, exporter, importer;
    make_pair(ends);
    if (victim == IMPORTER_DIES) {
        make_pair(spare);
        fresh = start("importer-once", spare[1], -1);
    }
    snprintf(at, sizeof at, "%llu", (unsigned long long)nth);
    if (victim == EXPORTER_DIES) setenv("KILL_AT", at, 1);
    exporter = start(spare[0] < 0 ? "exporter" : "exporter-twice", ends[0], spare[0]);
    unsetenv("KILL_AT");
    if (victim == IMPORTER_DIES) setenv("KILL_AT", at, 1);
    importer = start("importer", ends[1], -1);
    unsetenv("KILL_AT");
    child *dies = victim == EXPORTER_DIES ? &exporter : &importer, *lives = dies == &exporter ? &importer : &exporter;
    int status = finish(dies);
    ck_assert_msg(status == 0 || status == -SIGKILL, "call %llu: status %d, '%s'", (unsigned long long)nth, status,
                  dies->text);
    ck_well(lives, victim == EXPORTER_DIES ? "importer" : "exporter", nth);
    if (victim == IMPORTER_DIES) ck_well(&fresh, "fresh importer", nth);
    return status != 0;
}

START_TEST(one_is_killed_in_every_driver_call)
{
    const uint64_t stride = on_gpu ? 9 : 1; /* there it takes a process a second to start */
    uint64_t nth = 1;
    while (kill_in_call(_i, nth)) nth += stride;
    ck_assert_uint_ge(nth, 20);
}
END_TEST

START_TEST(nobody_is_killed)
{
    int ends[2];
    make_pair(ends);
    child exporter = start("exporter", ends[0], -1), importer = start("importer", ends[1], -1);
    ck_well(&exporter, "exporter", 0);
    ck_well(&importer, "importer", 0);
    ck_assert_str_eq(exporter.text, "first=OK later=OK end\n");
    ck_assert_str_eq(importer.text, "first=OK later=OK end\n");
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1 && strncmp(argv[1], "exporter", 8) == 0) return be_exporter(argv[1][8] != 0);
    if (argc > 1 && strncmp(argv[1], "importer", 8) == 0) return be_importer(argv[1][8] != 0);
    const char *driver = getenv("GVMM_TEST_DRIVER");
    on_gpu = driver && strcmp(driver, "gpu") == 0;
    if (!on_gpu) setenv("GVMM_SIM", "granularity=64K", 1); /* smaller chunks are sooner written */
    Suite *suite = suite_create("share between processes");
    TCase *tests = tcase_create("processes"); /* this one has no driver of its own */
    tcase_set_timeout(tests, 280);
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, nobody_is_killed);
    tcase_add_loop_test(tests, one_is_killed_at_every_message, 0, 2 * VICTIMS);
    tcase_add_loop_test(tests, one_is_killed_in_every_driver_call, 0, VICTIMS);
    return run_suites(suite, NULL);
}

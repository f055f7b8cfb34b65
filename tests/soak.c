/* Long random work from many threads, on streams that come and go, with captures and graphs, on resources and pools
 * that all share; on the simulated driver also with calls that fail at random.
 *
 *     soak [--seconds N] [--threads N] [--seed N] [--faults]      GVMM_TEST_DRIVER=gpu: on the machine's own driver
 *
 * Asked of it: bytes are what was written; no call fails but for a fault of its own; nothing is lost and nothing goes
 * early (the simulator tells); memory stays flat. It goes in rounds: after each all threads meet, and after some they
 * have given up everything, so that it can be seen that nothing is left. Work depends on the seed, but for how threads
 * meet. Exit status 0: fine, 1: something was wrong, 2: usage. */
#include "soak.h"

#include <argp.h>
#include <execinfo.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif

enum { OPERATIONS = SANITIZED ? 150 : 500, PATIENCE = SANITIZED ? 300 : 60, MOST_KINDS = 12 };

const gvmm_driver *cu;
bool on_gpu;
size_t G;
int device_count;
kind kinds[MOST_KINDS];
size_t kind_count;
gvmm_pool *pools[POOLS];

static struct {
    unsigned seconds, threads;
    uint64_t seed;
    bool faults;
} asked = {60, 8, 0, false};

static CUcontext context;
static member members[MEMBERS + 1]; /* the last asked: the main thread's, for what is left over */
static pthread_barrier_t meeting;
static atomic_bool over, cleaning;
static atomic_uint failures, round_number;
static atomic_ullong figures[FIGURES];
static fault_plan plan; /* of the round */

void counted(figure what) { atomic_fetch_add_explicit(&figures[what], 1, memory_order_relaxed); }

void wrong(const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (atomic_fetch_add(&failures, 1) < 20)
        fprintf(stderr, "soak: seed %llu, round %u: %s\n", (unsigned long long)asked.seed, atomic_load(&round_number),
                text);
}

/* Ends at once where going on makes no sense. */
static void need(bool fine, const char *what)
{
    if (fine) return;
    gvmm_error error;
    gvmm_last_error(&error);
    fprintf(stderr, "soak: %s: %s\n", what, error.text);
    exit(1);
}

/* ---- what a thread does ---- */

unsigned below(member *m, unsigned n)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (unsigned)(m->random >> 20) % n;
}

/* The soak's own calls are made in relaxed mode, where they harm nobody's capture; gvmm has to see to that itself. */
static void exchange_mode(CUstreamCaptureMode mode) { must_cu(cu->cuThreadExchangeStreamCaptureMode(&mode)); }

void call_begins(member *m)
{
    m->before = faults_of_thread();
    exchange_mode(m->mode);
}

bool call_ended(member *m, gvmm_result r, const char *what)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    must_cu(cu->cuThreadExchangeStreamCaptureMode(&mode));
    must(mode == m->mode); /* as it was */
    if (r == GVMM_OK) return true;
    gvmm_error error;
    gvmm_last_error(&error);
    must(error.result == r);
    bool short_of_memory = !on_gpu && (r == GVMM_E_NO_DEVICE_MEMORY || r == GVMM_E_NO_ADDRESS_SPACE);
    if (faults_of_thread() == m->before && !short_of_memory)
        wrong("thread %u: %s: %s: %s", m->index, what, gvmm_result_name(r), error.text);
    counted(short_of_memory ? FIGURE_out_of_memory : FIGURE_refused);
    return false;
}

CUstream any_stream(member *m, const kind *k)
{
    for (unsigned tries = 0; tries < 4 && !k->outlive; tries++) {
        CUstream s = m->streams[below(m, STREAMS)];
        if (s && s != m->capturing) return s;
    }
    if (k->outlive) return m->lasting[2 * below(m, 2)]; /* which do not capture, as the promise asks */
    CUstream s = m->lasting[below(m, LASTING)];
    return s != m->capturing ? s : m->lasting[0];
}

void settle(CUstream s) { must_cu(cu->cuStreamSynchronize(s)); }

void follow(CUstream later, CUstream earlier)
{
    CUevent event;
    must_cu(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    must_cu(cu->cuEventRecord(event, earlier));
    must_cu(cu->cuStreamWaitEvent(later, event, 0));
    must_cu(cu->cuEventDestroy(event));
}

/* Mostly short, now and then long enough for all threads to do something. */
static void sleep_a_little(void *unused)
{
    static atomic_uint times;
    (void)unused;
    nanosleep(&(struct timespec){0, atomic_fetch_add(&times, 1) % 4 ? 200000 : 3000000}, NULL);
}

void linger(CUstream s) { must_cu(cu->cuLaunchHostFunc(s, sleep_a_little, NULL)); }

static void do_stream(member *m)
{
    unsigned i = below(m, STREAMS);
    CUstream s = m->streams[i];
    if (s) {
        leave_stream(m, s);
        free_blocks_on(m, s);
        must_cu(cu->cuStreamDestroy(s));
        m->streams[i] = NULL;
        return;
    }
    m->blocking[i] = below(m, 4) == 0 && !on_gpu; /* others use the default stream while it captures: docs/capture.md */
    must_cu(cu->cuStreamCreate(&m->streams[i], m->blocking[i] ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    counted(FIGURE_streams);
}

/* Figures never go below zero. */
static void look_at_figures(member *m)
{
    gvmm_stats s;
    gvmm_pool_stats p;
    gvmm_get_stats(below(m, 2) ? kinds[below(m, (unsigned)kind_count)].resource : NULL, &s);
    must(s.mapped_bytes < (uint64_t)1 << 50 && s.physical_bytes < (uint64_t)1 << 50);
    must(s.buffers < 1000000 && s.kept_bytes < (uint64_t)1 << 50);
    gvmm_pool_get_stats(pools[below(m, POOLS)], &p);
    must(p.physical_bytes <= (uint64_t)1 << 50 && p.blocks < 1000000);
}

static void do_maintenance(member *m)
{
    switch (below(m, 8)) {
    case 0:
        if (on_gpu) break; /* others begin and end captures just now, which the simulator alone does not mind */
        gvmm_drain();
        counted(FIGURE_drains);
        break;
    case 1:
        gvmm_pool_trim(pools[below(m, POOLS)], below(m, 64) * G);
        counted(FIGURE_trims);
        break;
    case 2:
    case 3:
        gvmm_resource_trim(kinds[below(m, (unsigned)kind_count)].resource, below(m, 16) * G);
        counted(FIGURE_trims);
        break;
    default: look_at_figures(m);
    }
}

void meanwhile(member *m)
{
    unsigned what = below(m, 100);
    if (what < 65) do_buffers(m);
    else if (what < 87) do_pool(m);
    else if (what < 92) do_launch(m);
    else if (what < 95) hand_over(m);
    else if (what < 98) take_over(m);
    else do_maintenance(m);
}

static void do_something(member *m)
{
    unsigned what = below(m, 100);
    m->mode = (CUstreamCaptureMode)below(m, 3);
    if (what < 3) do_stream(m);
    else if (what < 8) do_capture(m);
    else meanwhile(m);
}

static void start_member(member *m, unsigned index)
{
    faults_thread_is_soaks();
    m->index = index;
    m->random = (asked.seed + 1) * 0x9e3779b97f4a7c15u + index * 0x2545f4914f6cdd1du;
    must_cu(cu->cuCtxSetCurrent(context));
    exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    for (int i = 0; i < LASTING; i++) must_cu(cu->cuStreamCreate(&m->lasting[i], CU_STREAM_NON_BLOCKING));
}

/* Those that last do so until nothing is left. */
static void end_streams(member *m)
{
    for (int i = 0; i < STREAMS; i++)
        if (m->streams[i]) must_cu(cu->cuStreamDestroy(m->streams[i]));
    memset(m->streams, 0, sizeof m->streams);
}

static void *live(void *data)
{
    member *m = data;
    start_member(m, (unsigned)(m - members));
    for (;;) {
        pthread_barrier_wait(&meeting);
        if (atomic_load(&over)) break;
        for (int i = 0; i < OPERATIONS; i++) do_something(m);
        if (atomic_load(&cleaning)) {
            give_up_all(m);
            free_all_blocks(m);
        }
        pthread_barrier_wait(&meeting);
    }
    end_streams(m);
    must_cu(cu->cuCtxSetCurrent(NULL));
    return NULL;
}

/* ---- warnings ---- */

/* A default stream that cannot be waited for is the one reason without a fault; its work has been waited for before. */
static void on_warning(void *user, const gvmm_error *error)
{
    (void)user;
    counted(FIGURE_warnings);
    bool of_capture = error->status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
                      (error->result == GVMM_E_CAPTURING && strstr(error->text, "legacy"));
    if (!plan.one_in && !of_capture) wrong("warning without a fault: %s", error->text);
}

/* ---- the surroundings ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Where a driver crashes, as a rule on a GPU: addr2line tells the functions. Sanitizers have a report of their own. */
static void tell_crash(int number)
{
    void *frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_crashes(void)
{
    void *first;
    backtrace(&first, 1); /* loads what it needs */
    signal(SIGSEGV, tell_crash);
    signal(SIGABRT, tell_crash);
}

static void choose_driver(void)
{
    static gvmm_driver real;
    const char *which = getenv("GVMM_TEST_DRIVER");
    on_gpu = which && strcmp(which, "gpu") == 0;
    if (on_gpu) {
        need(gvmm_driver_load(&real, "libcuda.so.1") == GVMM_OK, "driver");
        cu = &real;
    } else { /* small granules, so that filling them costs little, and so few that they run out now and then */
        gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
        config.devices = 2;
        config.granularity = 64 << 10;
        config.memory = 1024 * config.granularity;
        need(gvmm_sim_reset(&config) == GVMM_OK, "simulated machine");
        cu = gvmm_sim_driver();
    }
    const gvmm_driver *failing = faults_over(cu, asked.seed), *used;
    need(failing && gvmm_driver_install(failing) == GVMM_OK && gvmm_driver_get(&used) == GVMM_OK, "driver");
    gvmm_set_warning_handler(on_warning, NULL);
    need(cu->cuDeviceGetCount(&device_count) == CUDA_SUCCESS && device_count > 0, "no device");
    need(cu->cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "no context");
}

static void add_kind(const char *name, const gvmm_options *options)
{
    kind *k = &kinds[kind_count++];
    *k = (kind){.name = name,
                .outlive = options->streams_outlive,
                .reuse = options->reuse_limit != 0,
                .zeroed = options->zero_reused,
                .host = options->location == GVMM_LOCATION_HOST};
    need(gvmm_resource_create(&k->resource, 0, options) == GVMM_OK, name);
    G = gvmm_resource_granularity(k->resource);
}

#define ADD_KIND(name, ...) \
    do { \
        gvmm_options o = GVMM_OPTIONS_INIT; \
        __VA_ARGS__; \
        add_kind(name, &o); \
    } while (0)

static void make_kinds(void)
{
    static const int first[] = {0}, second[] = {1}, both[] = {0, 1};
    ADD_KIND("plain", (void)0);
    ADD_KIND("waiting", o.release_mode = GVMM_RELEASE_SYNC);
    ADD_KIND("roomy", o.capacity = 16 * G, o.chunk_size = G, o.ahead_count = 2);
    ADD_KIND("chunked", o.chunk_size = 2 * G);
    ADD_KIND("kept", o.reuse_limit = 24 * G);
    ADD_KIND("zeroed", o.reuse_limit = 24 * G, o.zero_reused = true, o.chunk_size = G);
    ADD_KIND("lasting", o.reuse_limit = 24 * G, o.streams_outlive = true);
    ADD_KIND("host", o.location = GVMM_LOCATION_HOST, o.handle_type = GVMM_HANDLE_NONE, o.peers = first,
             o.peer_count = 1);
    if (device_count < 2) return;
    ADD_KIND("open to another", o.peers = second, o.peer_count = 1);
    ADD_KIND("striped", o.stripe = both, o.stripe_count = 2, o.chunk_size = G);
}

static void make_pools(void)
{
    for (int i = 0; i < POOLS; i++) {
        gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
        options.limit = on_gpu ? (size_t)1 << 30 : 256 * G;
        options.streams_outlive = i == 1;
        need(gvmm_pool_create(&pools[i], kinds[0].resource, &options) == GVMM_OK, "pool");
    }
}

/* ---- rounds ---- */

static void new_plan(member *m)
{
    static const CUresult statuses[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                        CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN};
    plan = (fault_plan){0, FAULT_ANY, statuses[below(m, 6)]};
    if (asked.faults && below(m, 4)) {
        plan.one_in = (unsigned[]){200, 50, 20}[below(m, 3)];
        if (below(m, 2)) {
            do plan.call = (int)below(m, GVMM_CALL_COUNT + 1);
            while (!faults_can_fail(plan.call));
            plan.one_in = 3;
        }
    }
    faults_plan(&plan);
}

static void end_of_faults(void)
{
    plan.one_in = 0;
    faults_plan(&plan);
}

static size_t pooled_bytes(void)
{
    size_t bytes = 0;
    for (int i = 0; i < POOLS; i++) {
        gvmm_pool_stats s;
        gvmm_pool_trim(pools[i], 0);
        gvmm_pool_get_stats(pools[i], &s);
        bytes += s.physical_bytes;
    }
    return bytes;
}

static void print_item(void *user, const gvmm_sim_item *item)
{
    (void)user;
    if (item->kind != GVMM_SIM_STREAM && item->kind != GVMM_SIM_EVENT)
        fprintf(stderr, "  %s 0x%llx, %llu bytes, made by %s (call %llu)\n", gvmm_sim_kind_name(item->kind),
                (unsigned long long)item->address, (unsigned long long)item->size, item->made_by,
                (unsigned long long)item->call);
}

/* What graphs held comes back some time after they are gone, so that it has to be waited for. */
static bool wait_until_empty(bool with_pools)
{
    gvmm_stats s;
    for (double until = now() + PATIENCE; now() < until; sched_yield()) {
        gvmm_drain();
        size_t pooled = with_pools ? pooled_bytes() : 0;
        for (size_t i = 0; with_pools && i < kind_count; i++) gvmm_resource_trim(kinds[i].resource, 0);
        gvmm_get_stats(NULL, &s);
        if (!pooled && !s.mappings && !s.buffers && !s.releases_waiting && !s.kept_bytes) return true;
    }
    wrong("left over: %llu buffers, %llu mappings, %llu memories, %llu bytes kept, %llu releases",
          (unsigned long long)s.buffers, (unsigned long long)s.mappings, (unsigned long long)s.memories,
          (unsigned long long)s.kept_bytes, (unsigned long long)s.releases_waiting);
    if (!on_gpu) gvmm_sim_census(NULL, print_item, NULL);
    return false;
}

/* Of gvmm's objects only the resources and pools are there, with what is made ahead. */
static void nothing_left(member *m)
{
    gvmm_stats s;
    for (bool any = true; any;) { /* what is on its way between threads */
        any = false;
        for (int i = 0; i < FAMILIES; i++) take_over(m);
        for (int i = 0; i < FAMILIES; i++) any |= m->families[i] != NULL;
        give_up_all(m);
    }
    if (!wait_until_empty(true)) return;
    gvmm_get_stats(NULL, &s);
    must(s.mapped_bytes == 0);
    must(s.reservations == POOLS);
    must(gvmm_owns(OWNED_MEMORY) == (long long)s.memories && gvmm_owns(OWNED_RESERVATION) == POOLS);
    if (on_gpu) return;
    size_t alive[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(alive, NULL, NULL);
    must(alive[GVMM_SIM_MEMORY] == s.memories);
    must(alive[GVMM_SIM_MAPPING] == 0 && alive[GVMM_SIM_RESERVATION] == POOLS);
    must(alive[GVMM_SIM_GRAPH] == 0 && alive[GVMM_SIM_EXEC] == 0 && alive[GVMM_SIM_USER_OBJECT] == 0);
}

/* Bytes of memory that the process has for itself; 0: not known. */
static size_t resident(void)
{
    char line[200];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    malloc_trim(0);
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %zu", &kib) == 1) break;
    if (f) fclose(f);
    return kib << 10;
}

/* Bytes, and the graphs until then that held something and ran: of each the driver keeps a little for good. */
typedef struct footprint {
    size_t resident;
    long long own; /* of them gvmm's */
    unsigned long long launched_holders;
} footprint;

enum { MARKS = 10, WARM = 2 };

static struct {
    unsigned clean;             /* rounds after which nothing was left */
    footprint marks[MARKS + 1]; /* after the last of them in each tenth of the time, and at the end */
} memory;

static void note_memory(double share)
{
    memory.clean++;
    memory.marks[share < 1 ? (int)(share * MARKS) : MARKS] = (footprint){
        resident(), gvmm_owns(OWNED_BYTES), atomic_load(&figures[FIGURE_launched_holders])};
}

static void one_round(member *mine, double share, bool last)
{
    bool clean = last || below(mine, 3) == 0;
    atomic_fetch_add(&round_number, 1);
    atomic_store(&cleaning, clean);
    new_plan(mine);
    pthread_barrier_wait(&meeting); /* they begin */
    pthread_barrier_wait(&meeting); /* they have done */
    gvmm_drain();
    end_of_faults();
    if (clean) {
        nothing_left(mine);
        note_memory(share);
    }
    if (!on_gpu) must(gvmm_sim_findings(NULL, NULL) == 0);
}

static void run_rounds(member *mine)
{
    bool terminal = isatty(STDERR_FILENO);
    double start = now(), passed;
    do {
        passed = now() - start;
        one_round(mine, passed / asked.seconds, passed >= asked.seconds);
        if (terminal)
            fprintf(stderr, "\r%.0f s, round %u, %llu faults, %u failures ", passed, atomic_load(&round_number),
                    faults_of_all(), atomic_load(&failures));
    } while (passed < asked.seconds && !atomic_load(&failures));
    if (terminal) fprintf(stderr, "\n");
}

/* ---- the end ---- */

static void end_all(member *mine)
{
    end_streams(mine);
    for (int i = 0; i < POOLS; i++) gvmm_pool_release(pools[i]);
    for (size_t i = 0; i < kind_count; i++) gvmm_resource_release(kinds[i].resource);
    wait_until_empty(false);
    for (unsigned i = 0; i <= asked.threads; i++)
        for (int s = 0; s < LASTING; s++) must_cu(cu->cuStreamDestroy(members[i].lasting[s]));
    must_cu(cu->cuCtxSetCurrent(NULL));
    must_cu(cu->cuDevicePrimaryCtxRelease(0));
    must(gvmm_driver_install(NULL) == GVMM_OK); /* no resource is alive */
    for (int i = 0; i < OWNED; i++)
        if (gvmm_owns((owned)i)) wrong("%lld left of what gvmm owns, %d", gvmm_owns((owned)i), i);
    if (on_gpu) return;
    size_t alive[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(alive, NULL, NULL);
    for (int i = 0; i < GVMM_SIM_KIND_COUNT; i++)
        if (alive[i]) wrong("%zu left in the simulator: %s", alive[i], gvmm_sim_kind_name((gvmm_sim_kind)i));
    must(gvmm_sim_findings(NULL, NULL) == 0);
}

static void summary(double took)
{
    static const char *const names[] = {
#define X(name) #name,
        SOAK_FIGURES(X)
#undef X
    };
    printf("soak: seed %llu, %u threads, %.0f s, %u rounds, %u of them emptied; %llu faults\n",
           (unsigned long long)asked.seed, asked.threads, took, atomic_load(&round_number), memory.clean,
           faults_of_all());
    for (int i = 0; i < FIGURES; i++)
        printf("%s%llu %s", i == 0 ? "  " : i % 8 ? ", " : ",\n  ", atomic_load(&figures[i]), names[i]);
    printf("\n  MiB after each tenth: ");
    for (int i = 0; i <= MARKS; i++) printf(" %.1f", (double)memory.marks[i].resident / (1 << 20));
    printf("\n  of them gvmm's:       ");
    for (int i = 0; i <= MARKS; i++) printf(" %.2f", (double)memory.marks[i].own / (1 << 20));
    printf("\n");
    printf("soak: %s, %u failures\n", atomic_load(&failures) ? "FAILED" : "ok", atomic_load(&failures));
}

/* A tenth, and what allocators of the host keep. Sanitizers keep what was freed. A driver keeps 208 bytes of every
 * executable graph that had a user object and has run, with nothing of gvmm's in the program, too (580.159). */
static void memory_is_flat(void)
{
    const footprint *warm = &memory.marks[WARM], *last = &memory.marks[MARKS];
    while (!warm->resident && warm < last) warm++; /* none was clean just then */
    size_t drivers = on_gpu ? 208 * (size_t)(last->launched_holders - warm->launched_holders) : 0;
    if (last->own > warm->own + warm->own / 10 + (512 << 10))
        wrong("memory of gvmm's grew from %lld to %lld bytes", warm->own, last->own);
    if (!SANITIZED && last->resident > warm->resident + warm->resident / 10 + drivers + ((size_t)4 << 20))
        wrong("memory grew from %zu to %zu bytes, %zu of them the driver's", warm->resident, last->resident, drivers);
}

static const struct argp_option options[] = {
    {"seconds", 's', "N", 0, "how long; 60", 0},
    {"threads", 't', "N", 0, "how many; 8", 0},
    {"seed", 'r', "N", 0, "what is done depends on it, but for how threads meet; else a new one each time", 0},
    {"faults", 'f', NULL, 0, "calls fail at random", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    char *rest = NULL;
    unsigned long long n = arg ? strtoull(arg, &rest, 10) : 0;
    if (arg && (!*arg || *rest)) argp_error(state, "\"%s\" is no number", arg);
    switch (key) {
    case 's': asked.seconds = n ? (unsigned)n : 1; return 0;
    case 't': asked.threads = n < 1 ? 1 : n > MEMBERS ? MEMBERS : (unsigned)n; return 0;
    case 'r': asked.seed = n; return 0;
    case 'f': asked.faults = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp syntax = {options, parse, NULL, "Long random work from many threads.", NULL, NULL, NULL};
    pthread_t threads[MEMBERS];
    asked.seed = (uint64_t)time(NULL);
    argp_err_exit_status = 2;
    if (argp_parse(&syntax, argc, argv, 0, NULL, NULL)) return 2;
    double start = now();
    if (!SANITIZED) catch_crashes();
    choose_driver();
    member *mine = &members[asked.threads];
    start_member(mine, asked.threads);
    make_kinds();
    make_pools();
    pthread_barrier_init(&meeting, NULL, asked.threads + 1);
    for (unsigned i = 0; i < asked.threads; i++)
        need(pthread_create(&threads[i], NULL, live, &members[i]) == 0, "thread");
    run_rounds(mine);
    atomic_store(&over, true);
    pthread_barrier_wait(&meeting);
    for (unsigned i = 0; i < asked.threads; i++) pthread_join(threads[i], NULL);
    if (!atomic_load(&failures)) end_all(mine);
    memory_is_flat();
    summary(now() - start);
    return atomic_load(&failures) ? 1 : 0;
}

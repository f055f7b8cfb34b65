/* Replays traces of allocations on a gvmm_pool, and says how much memory that took.
 *
 *     replay [--most RATIO] [--busy] [--outlive] [--limit BYTES] TRACE...
 *
 *     --most RATIO   fail if the peak of physical memory over the peak of live bytes is more
 *     --busy         no work is done before the end of the trace: what a host far ahead of its device sees
 *     --outlive      promise that streams outlive the pool
 *
 * A trace is text: a line "gvmm-trace 1", then "a ID BYTES STREAM" and "f ID STREAM". Stream 0 is the default stream. One line of
 * figures a trace goes to standard output. */
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gvmm/driver.h"

enum { STREAMS = 64, MOST_IDS = 1 << 26 };

static const gvmm_driver *cu;
static CUstream streams[STREAMS];

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "replay: %s: %s\n", what, why);
    exit(1);
}

#define CU(call) \
    do { \
        CUresult status_ = (call); \
        if (status_) die(#call, gvmm_driver_status_name((int)status_)); \
    } while (0)

static void ok(gvmm_result r, const char *what)
{
    gvmm_error error;
    gvmm_last_error(&error);
    if (r) die(what, error.text);
}

typedef struct event {
    bool is_alloc;
    unsigned stream;
    size_t id;
    uint64_t size;
} event;

typedef struct trace {
    event *events;
    size_t count, ids;
} trace;

static void read_event(trace *t, const char *path, const char *line)
{
    char kind;
    event e = {0};
    if (sscanf(line, "%c %zu", &kind, &e.id) != 2 || e.id >= MOST_IDS) die(path, line);
    e.is_alloc = kind == 'a';
    bool good = e.is_alloc ? sscanf(line, "a %*u %" SCNu64 " %u", &e.size, &e.stream) == 2
                           : kind == 'f' && sscanf(line, "f %*u %u", &e.stream) == 1;
    if (!good || e.stream >= STREAMS) die(path, line);
    if ((t->count & (t->count - 1)) == 0) { /* full, at each power of two */
        t->events = realloc(t->events, (t->count ? 2 * t->count : 1) * sizeof e);
        if (!t->events) die(path, "no host memory");
    }
    t->events[t->count++] = e;
    if (e.id >= t->ids) t->ids = e.id + 1;
}

static trace read_trace(const char *path)
{
    trace t = {0};
    char line[128];
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file) || strcmp(line, "gvmm-trace 1\n") != 0) die(path, "not a trace");
    while (fgets(line, sizeof line, file))
        if (line[0] != '\n' && line[0] != '#') read_event(&t, path, line);
    fclose(file);
    return t;
}

static CUstream stream_of(const event *e)
{
    CUstream *s = &streams[e->stream];
    if (e->stream && !*s) CU(cu->cuStreamCreate(s, CU_STREAM_NON_BLOCKING));
    return *s;
}

static void wait_at_gate(void *gate) { sem_wait(gate); }

/* Shuts every stream that the trace uses; all pass when it is opened. */
static unsigned shut(sem_t *gate, const trace *t)
{
    bool done[STREAMS] = {false};
    unsigned count = 0;
    sem_init(gate, 0, 0);
    for (size_t i = 0; i < t->count; i++) {
        const event *e = &t->events[i];
        if (done[e->stream]) continue;
        done[e->stream] = true;
        count++;
        CU(cu->cuLaunchHostFunc(e->stream ? stream_of(e) : CU_STREAM_LEGACY, wait_at_gate, gate));
    }
    return count;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

typedef struct block {
    uint64_t address, size;
} block;

static void step(gvmm_pool *pool, const event *e, block *b, uint64_t *live)
{
    CUstream s = stream_of(e);
    if (e->is_alloc) {
        ok(gvmm_pool_malloc(&b->address, pool, e->size, s), "malloc");
        b->size = e->size;
        *live += e->size;
        return;
    }
    ok(gvmm_pool_free(pool, b->address, s), "free");
    *live -= b->size;
    b->address = 0;
}

/* Gives the ratio. */
static double replay(const char *path, gvmm_resource *resource, const gvmm_pool_options *options, bool busy)
{
    trace t = read_trace(path);
    block *blocks = calloc(t.ids + 1, sizeof *blocks);
    gvmm_pool *pool;
    sem_t gate;
    ok(gvmm_pool_create(&pool, resource, options), "pool");
    unsigned gates = busy ? shut(&gate, &t) : 0;
    uint64_t live = 0, peak = 0;
    double start = now();
    for (size_t i = 0; i < t.count; i++) {
        step(pool, &t.events[i], &blocks[t.events[i].id], &live);
        if (live > peak) peak = live;
    }
    double took = now() - start;
    gvmm_pool_stats s;
    gvmm_pool_get_stats(pool, &s);
    double ratio = (double)s.physical_peak / (double)(peak ? peak : 1);
    printf("%s: %zu calls, live peak %.1f MiB, physical peak %.1f MiB, ratio %.4f, reused %" PRIu64
           ", stitched %" PRIu64 ", %.3f us a call\n",
           path, t.count, (double)peak / 1048576, (double)s.physical_peak / 1048576, ratio, s.reuses, s.stitches,
           took / (double)(t.count ? t.count : 1));
    while (gates--) sem_post(&gate);
    for (size_t i = 0; i < t.ids; i++)
        if (blocks[i].address) ok(gvmm_pool_free(pool, blocks[i].address, NULL), "free");
    gvmm_drain();
    gvmm_pool_release(pool);
    free(blocks);
    free(t.events);
    return ratio;
}

int main(int argc, char **argv)
{
    double most = 0;
    bool busy = false;
    int failed = 0;
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    gvmm_resource *resource;
    CUcontext context;
    ok(gvmm_driver_get(&cu), "driver");
    CU(cu->cuDevicePrimaryCtxRetain(&context, 0));
    CU(cu->cuCtxSetCurrent(context));
    ok(gvmm_resource_create(&resource, 0, NULL), "resource");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--busy") == 0) busy = true;
        else if (strcmp(argv[i], "--outlive") == 0) options.streams_outlive = true;
        else if (strcmp(argv[i], "--most") == 0 && i + 1 < argc) most = atof(argv[++i]);
        else if (strcmp(argv[i], "--limit") == 0 && i + 1 < argc) options.limit = strtoull(argv[++i], NULL, 0);
        else {
            double ratio = replay(argv[i], resource, &options, busy);
            if (most > 0 && ratio > most) {
                fprintf(stderr, "replay: %s: the ratio %.4f is above %g\n", argv[i], ratio, most);
                failed = 1;
            }
        }
    }
    for (int i = 1; i < STREAMS; i++)
        if (streams[i]) CU(cu->cuStreamDestroy(streams[i]));
    gvmm_resource_release(resource);
    return failed;
}

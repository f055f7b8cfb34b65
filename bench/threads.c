/* The same from several threads, each on a processor of its own. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

/* ---- processors ---- */

/* The first processor of the core that has this one; itself where the system does not say. */
static int first_of_core(int processor)
{
    char path[96];
    int first = processor;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", processor);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%d", &first) != 1) first = processor;
    if (f) fclose(f);
    return first;
}

static size_t count_those(int *list, const cpu_set_t *allowed, bool one_of_core)
{
    size_t count = 0;
    for (int p = 0; p < CPU_SETSIZE && count < MAX_THREADS; p++)
        if (CPU_ISSET(p, allowed) && (!one_of_core || first_of_core(p) == p)) list[count++] = p;
    return count;
}

/* For thread `i`: a core of its own as long as there are enough, or else a processor, or else one that it shares. */
static void move_to_processor(size_t i)
{
    static int list[MAX_THREADS];
    static size_t count;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards both */
    pthread_mutex_lock(&lock);
    if (!count) {
        cpu_set_t allowed;
        MUST(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
        count = count_those(list, &allowed, true);
        if (count < MAX_THREADS) count = count_those(list, &allowed, false);
        MUST(count);
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(list[i % count], &one);
    pthread_mutex_unlock(&lock);
    MUST(pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0);
}

/* ---- timing ---- */

typedef struct member {
    pair_fn once;
    const void *state;
    CUcontext context;
    CUstream stream;
    pthread_barrier_t *start;
    size_t number, loops;
    double began, ended; /* its own, as whoever waits for it may be woken late */
} member;

static void *run_member(void *data)
{
    member *m = data;
    move_to_processor(m->number);
    CU(cu->cuCtxSetCurrent(m->context));
    for (int i = 0; i < 10; i++) m->once(m->state, m->stream);
    pthread_barrier_wait(m->start);
    m->began = now();
    for (size_t i = 0; i < m->loops; i++) m->once(m->state, m->stream);
    m->ended = now();
    CU(cu->cuStreamSynchronize(m->stream));
    return NULL;
}

void threads_streams_make(CUstream *streams)
{
    for (int i = 0; i < MAX_THREADS; i++) CU(cu->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
}

void threads_streams_end(const CUstream *streams)
{
    for (int i = 0; i < MAX_THREADS; i++) CU(cu->cuStreamDestroy(streams[i]));
}

double threads_time(pair_fn once, const void *state, const CUstream *streams, size_t first, size_t count, size_t loops)
{
    member members[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    pthread_barrier_t start;
    CUcontext context;
    MUST(first + count <= MAX_THREADS);
    CU(cu->cuCtxGetCurrent(&context));
    MUST(pthread_barrier_init(&start, NULL, (unsigned)count) == 0);
    for (size_t i = 0; i < count; i++) {
        members[i] = (member){.once = once,
                              .state = state,
                              .context = context,
                              .stream = streams[first + i],
                              .start = &start,
                              .number = first + i,
                              .loops = loops};
        MUST(pthread_create(&ids[i], NULL, run_member, &members[i]) == 0);
    }
    double began = INFINITY, ended = 0;
    for (size_t i = 0; i < count; i++) {
        MUST(pthread_join(ids[i], NULL) == 0);
        if (members[i].began < began) began = members[i].began;
        if (members[i].ended > ended) ended = members[i].ended;
    }
    pthread_barrier_destroy(&start);
    return ended - began;
}

double threads_time_alone(pair_fn once, const void *state, const CUstream *streams, size_t count, size_t loops)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += threads_time(once, state, streams, i, 1, loops);
    return sum / (double)count;
}

/* ---- figures ---- */

/* So many that one thread takes about as long as it should. */
static size_t loops_for(pair_fn once, const void *state, const CUstream *streams, double us)
{
    enum { FEW = 200 };
    double one = threads_time(once, state, streams, 0, 1, FEW) / FEW;
    return (size_t)fmin(fmax(us / one, 50), 1e6);
}

/* Pairs in a microsecond, medians over rounds: of all together, and of one of them alone. */
static void rates_of(pair_fn once, const void *state, const CUstream *streams, size_t count, double *together,
                     double *alone)
{
    enum { ROUNDS = 9 };
    double all[ROUNDS], one[ROUNDS];
    size_t loops = loops_for(once, state, streams, bench_quick ? 200 : 5e3);
    for (int i = 0; i < ROUNDS; i++) {
        all[i] = (double)(count * loops) / threads_time(once, state, streams, 0, count, loops);
        one[i] = (double)loops / threads_time_alone(once, state, streams, count, loops);
    }
    *together = samples_median(&(samples){all, ROUNDS});
    *alone = samples_median(&(samples){one, ROUNDS});
}

void report_threads(const char *what, pair_fn once, const void *state, const CUstream *streams, size_t size,
                    double target)
{
    char name[64];
    for (size_t count = 2; count <= MAX_THREADS; count *= 2) {
        double together, alone;
        rates_of(once, state, streams, count, &together, &alone);
        snprintf(name, sizeof name, "threads_%zu_%s", count, what);
        report_value(name, 0, together, NAN, NAN, "pairs in a microsecond");
        snprintf(name, sizeof name, "threads_%zu_%s_alone", count, what);
        report_value(name, 0, alone, NAN, NAN, "pairs in a microsecond of one of them alone, the mean");
        snprintf(name, sizeof name, "threads_%zu_%s_over_1", count, what);
        report_least(name, size, 0, together / alone, NAN, count == MAX_THREADS ? target : NAN,
                     "times the throughput of one alone");
    }
}

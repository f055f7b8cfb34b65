/* The same from several threads, each on a processor of its own. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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

/* ---- throughput ---- */

typedef struct member {
    pair_fn once;
    const void *state;
    CUcontext context;
    CUstream stream;
    pthread_barrier_t *start;
    const atomic_bool *stop;
    size_t number, pairs;
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
    do {
        m->once(m->state, m->stream);
        m->pairs++;
    } while (!atomic_load_explicit(m->stop, memory_order_relaxed));
    m->ended = now();
    CU(cu->cuStreamSynchronize(m->stream));
    return NULL;
}

void threads_ask(const void *state, CUstream stream)
{
    CUstreamCaptureStatus status;
    (void)state;
    for (int i = 0; i < 2; i++) CU(cu->cuStreamIsCapturing(stream, &status));
}

void threads_streams_make(CUstream *streams)
{
    for (int i = 0; i < MAX_THREADS; i++) CU(cu->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
}

void threads_streams_end(const CUstream *streams)
{
    for (int i = 0; i < MAX_THREADS; i++) CU(cu->cuStreamDestroy(streams[i]));
}

/* Sleeps: what else there is to do is done by the threads, which have the processors. */
static void let_pass(double us)
{
    struct timespec left = {(time_t)(us / 1e6), (long)(fmod(us, 1e6) * 1e3)};
    while (nanosleep(&left, &left)) {}
}

double threads_rate(pair_fn once, const void *state, const CUstream *streams, size_t first, size_t count, double us)
{
    member members[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    pthread_barrier_t start;
    atomic_bool stop = false;
    CUcontext context;
    MUST(first + count <= MAX_THREADS);
    CU(cu->cuCtxGetCurrent(&context));
    MUST(pthread_barrier_init(&start, NULL, (unsigned)count + 1) == 0);
    for (size_t i = 0; i < count; i++) {
        members[i] = (member){.once = once,
                              .state = state,
                              .context = context,
                              .stream = streams[first + i],
                              .start = &start,
                              .stop = &stop,
                              .number = first + i};
        MUST(pthread_create(&ids[i], NULL, run_member, &members[i]) == 0);
    }
    pthread_barrier_wait(&start);
    let_pass(us);
    atomic_store(&stop, true);
    double pairs = 0, began = INFINITY, ended = 0;
    for (size_t i = 0; i < count; i++) {
        MUST(pthread_join(ids[i], NULL) == 0);
        pairs += (double)members[i].pairs;
        began = fmin(began, members[i].began);
        ended = fmax(ended, members[i].ended);
    }
    pthread_barrier_destroy(&start);
    return pairs / (ended - began);
}

double threads_rate_alone(pair_fn once, const void *state, const CUstream *streams, size_t count, double us)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += threads_rate(once, state, streams, i, 1, us);
    return sum / (double)count;
}

/* ---- figures ---- */

/* Shares nothing with anybody, and takes about as long as a pair with kept memory: so much the machine itself gives. */
static void compute(const void *state, CUstream stream)
{
    (void)state, (void)stream;
    for (volatile int i = 0; i < 40; i++) {}
}

/* Medians over rounds: pairs in a microsecond of all together, and of one of them alone; and the former over the latter
 * for `compute`, in the same moments. */
typedef struct rates {
    double together, alone, machine_gain;
} rates;

static rates rates_of(pair_fn once, const void *state, const CUstream *streams, size_t count)
{
    enum { ROUNDS = 9 };
    double all[ROUNDS], one[ROUNDS], gains[ROUNDS], us = bench_quick ? 200 : 10e3;
    for (int i = 0; i < ROUNDS; i++) {
        all[i] = threads_rate(once, state, streams, 0, count, us);
        double of_machine = threads_rate(compute, NULL, streams, 0, count, us);
        one[i] = threads_rate_alone(once, state, streams, count, us);
        gains[i] = of_machine / threads_rate_alone(compute, NULL, streams, count, us);
    }
    return (rates){samples_median(&(samples){all, ROUNDS}), samples_median(&(samples){one, ROUNDS}),
                   samples_median(&(samples){gains, ROUNDS})};
}

void report_threads(const char *what, pair_fn once, const void *state, const CUstream *streams, size_t size,
                    double target)
{
    char name[64];
    for (size_t count = 2; count <= MAX_THREADS; count *= 2) {
        rates r = rates_of(once, state, streams, count);
        snprintf(name, sizeof name, "threads_%zu_%s", count, what);
        report_value(name, 0, r.together, NAN, NAN, "pairs in a microsecond");
        snprintf(name, sizeof name, "threads_%zu_%s_alone", count, what);
        report_value(name, 0, r.alone, NAN, NAN, "pairs in a microsecond of one of them alone, the mean");
        snprintf(name, sizeof name, "threads_%zu_%s_over_1", count, what);
        report_least(name, size, 0, r.together / r.alone, r.machine_gain, count == MAX_THREADS ? target : NAN,
                     "times the throughput of one alone; raw: threads that share nothing");
    }
}

/* What the benchmarks share: two sides timed in turn, figures as JSON lines, and the same calls by hand.
 *
 * bench.c measures and reports, threads.c does so from several threads, raw.c is the other side: what a careful program
 * does without gvmm. */
#ifndef GVMM_BENCH_H
#define GVMM_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gvmm/driver.h"

#define MiB ((size_t)1 << 20)

extern const gvmm_driver *cu; /* the table that gvmm uses, too */
extern bool on_sim;
extern size_t G; /* the granularity, bytes */

/* Reads --quick and --only GROUP, and answers that group or NULL. Says how it is used and exits for anything else. */
extern bool bench_quick;
const char *bench_options(int argc, char **argv, const char *groups);

/* Finds the driver, makes device 0's primary context current and starts the record. `only` NULL: every figure. */
void bench_start(const char *only);

/* Prints the table on standard error, gives the context back. Returns main's exit status. */
int bench_end(void);

/* Is this group of figures wanted? */
bool bench_wants(const char *group);

_Noreturn void bench_die(const char *file, int line, const char *what, const char *why);

/* A benchmark that measures failures is worth nothing: it ends at the first. */
#define OK(call) \
    do { \
        gvmm_result result_ = (call); \
        if (result_) bench_die(__FILE__, __LINE__, #call, gvmm_result_name(result_)); \
    } while (0)
#define CU(call) \
    do { \
        CUresult status_ = (call); \
        if (status_) bench_die(__FILE__, __LINE__, #call, gvmm_driver_status_name((int)status_)); \
    } while (0)
#define MUST(what) \
    do { \
        if (!(what)) bench_die(__FILE__, __LINE__, #what, "is not so"); \
    } while (0)

/* Microseconds. */
double now(void);

/* ---- timing ---- */

typedef struct samples {
    double *us;
    size_t count;
} samples;

double samples_quantile(samples *s, double q);
static inline double samples_median(samples *s) { return samples_quantile(s, 0.5); }
void samples_free(samples *s);

/* One side of a comparison: does the thing once and answers how long it took, in microseconds. What is to be undone
 * without being timed it undoes before it returns. */
typedef struct side {
    double (*run)(void *state);
    void *state;
} side;

enum { MAX_SIDES = 4 };

/* Runs the sides in turn, `batch` times each, forwards and then backwards (A B B A), so that a drift of the machine
 * falls on all alike; at least `n` samples of each. Before that, a batch of each that is not counted. `n` 1, for what
 * takes long: once each, and nothing before it. */
void interleave(samples *out, const side *sides, size_t count, size_t n, size_t batch);

/* ---- figures ---- */

typedef struct figure {
    const char *name;
    size_t size;      /* bytes */
    size_t chunks;    /* 0: left out */
    size_t per;       /* operations in one sample; the times are of one. 0: 1 */
    const char *note; /* NULL: left out */
    bool per_chunk;   /* also the medians by chunk */
} figure;

/* `raw` NULL: no driver call does it. */
void report(const figure *f, samples *ours, samples *raw);

/* One number that is no time, beside the raw one (NAN: there is none) and the most it should be (NAN: no target). */
void report_value(const char *name, size_t chunks, double value, double raw, double target, const char *unit);

/* The same for a number that should be at least the target. */
void report_least(const char *name, size_t size, size_t chunks, double value, double raw, double target,
                  const char *unit);

void report_skip(const char *name, size_t size, size_t chunks, const char *why);

/* ---- threads.c ---- */

/* What a thread does again and again, on its stream. */
typedef void (*pair_fn)(const void *state, CUstream stream);
enum { MAX_THREADS = 8 };

/* Pairs in a microsecond, from the first start to the last end, of `count` threads that go on for `us`, each on its
 * stream and its processor, those of number `first` on, in the caller's context. */
double threads_rate(pair_fn once, const void *state, const CUstream *streams, size_t first, size_t count, double us);

/* The same of one thread at a time, the mean over the first `count` processors: one may be twice as fast as another. */
double threads_rate_alone(pair_fn once, const void *state, const CUstream *streams, size_t count, double us);

/* A pair_fn: what a pair with kept memory asks the driver where streams outlive it, alone. */
void threads_ask(const void *state, CUstream stream);

/* The throughput of 2, 4 and 8 threads, of the same ones alone, and what the machine gives; `target`: at least so many
 * times as much of eight. */
void report_threads(const char *what, pair_fn once, const void *state, const CUstream *streams, size_t size,
                    double target);

/* MAX_THREADS streams, which must outlive what is measured. */
void threads_streams_make(CUstream *streams);
void threads_streams_end(const CUstream *streams);

/* ---- raw.c: by hand ---- */

typedef struct raw_chunk {
    CUdeviceptr address;
    size_t size;
    CUmemGenericAllocationHandle handle;
} raw_chunk;

/* Properties and access as gvmm's default options give them. */
extern CUmemAllocationProp raw_prop;
extern CUmemAccessDesc raw_access;
void raw_start(void);

/* Reserve, create, map, set access; `hint` 0: anywhere. */
void raw_make(raw_chunk *out, size_t size, CUdeviceptr hint);

/* Unmap, release, address free. */
void raw_unmake(const raw_chunk *c);
void raw_wait(void);

/* A reservation for `count` chunks of G, and the chunks. */
typedef struct raw_span {
    CUdeviceptr base;
    size_t count;
    CUmemGenericAllocationHandle *handles;
} raw_span;
raw_span raw_span_reserve(size_t count, CUdeviceptr hint);
void raw_span_fill(raw_span *span);

/* From the last to the first, then the reservation. */
void raw_span_unmake(raw_span *span);

/* An address with `size` free bytes behind it. */
CUdeviceptr free_place(size_t size);

/* From this size on the H200's driver grants every hint that is free; smaller reservations it puts elsewhere, and grants
 * only the place of a small one that was just freed. */
#define HINTED ((size_t)32 * MiB)

/* Does that much device memory fit beside what is there? */
bool fits(size_t size);

#endif

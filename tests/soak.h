/* What the files of the soak share. soak.c has the threads and the checks, soak_faults.c what goes wrong on purpose,
 * soak_buffers.c, soak_graphs.c and soak_pool.c what a thread does. */
#ifndef GVMM_SOAK_H
#define GVMM_SOAK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gvmm/sim.h"

/* STREAMS that come and go, LASTING ones, FAMILIES, BLOCKS of pools: most that a thread has. VIEWS, EXECS: of a family.
 * SEGMENTS, MOST granules: of a buffer. */
enum {
    MEMBERS = 64,
    STREAMS = 4,
    LASTING = 3,
    FAMILIES = 6,
    BLOCKS = 12,
    VIEWS = 6,
    EXECS = 2,
    SEGMENTS = 64,
    MOST = 12
};
enum { POOLS = 2, QUEUE = 32 };

/* ---- what goes wrong on purpose (soak_faults.c) ---- */

enum { FAULT_ANY = -1, FAULT_MALLOC = GVMM_CALL_COUNT };

typedef struct fault_plan {
    unsigned one_in; /* so many calls, on average, one fails; 0: none */
    int call;        /* FAULT_ANY, FAULT_MALLOC, or one of the list */
    CUresult status;
} fault_plan;

/* gvmm is to use the table that it gives, whose calls fail as planned. Host allocations fail, too. */
const gvmm_driver *faults_over(const gvmm_driver *inner, uint64_t seed);
void faults_plan(const fault_plan *plan); /* while nobody makes calls */
bool faults_can_fail(int call);           /* see is_harmful there */
unsigned long long faults_of_thread(void);
unsigned long long faults_of_all(void);
void faults_thread_is_soaks(void); /* the calling one, and none of gvmm's */
void faults_mask(bool masked);     /* no faults on this thread */
void faults_allow_retain(bool allowed);

/* What gvmm has just now: bytes of the host, the driver's objects that it made, files with what was evicted. */
typedef enum owned {
    OWNED_BYTES,
    OWNED_MEMORY,
    OWNED_RESERVATION,
    OWNED_EVENT,
    OWNED_STREAM,
    OWNED_CONTEXT,
    OWNED_FILE,
    OWNED
} owned;
long long gvmm_owns(owned what);

/* ---- what a thread has ---- */

/* A resource that all threads share, and what holds for its buffers. */
typedef struct kind {
    const char *name;
    gvmm_resource *resource;
    bool outlive, reuse, zeroed, host;
} kind;

/* Memory that some view or graph of a family shows, by its identity, and the word that all of it is filled with. */
typedef struct chunk {
    uint64_t memory;
    uint32_t word;
    bool known;
} chunk;

/* An executable graph that fills memory which it holds. */
typedef struct exec {
    CUgraphExec exec;
    CUgraph graph;        /* NULL: destroyed after the instantiation */
    bool holds, launched; /* it has user objects of gvmm's; it has run */
    chunk fills[SEGMENTS], held[SEGMENTS];
    size_t fill_count, held_count;
} exec;

/* Buffers that share memory. All work on it is done on one stream, which they record. One thread has it at a time. */
typedef struct family {
    const kind *kind;
    CUstream on;
    bool legacy;    /* the buffers record the default stream: the work is waited for before they are given up */
    CUevent handed; /* the work before, while it is on its way to another thread */
    gvmm_buffer *views[VIEWS];
    bool read_only[VIEWS];
    size_t view_count, exec_count, chunk_count;
    exec execs[EXECS];
    chunk chunks[(VIEWS + EXECS) * SEGMENTS];
} family;

typedef struct pool_block {
    uint64_t address; /* 0: none */
    size_t words;
    CUstream on;
    uint32_t word;
    unsigned pool;
} pool_block;

typedef struct member {
    unsigned index;
    uint64_t random;
    CUstreamCaptureMode mode;                    /* while it calls gvmm */
    CUstream streams[STREAMS], lasting[LASTING]; /* those come and go. Of these only lasting[1] captures */
    bool blocking[STREAMS];
    CUstream capturing; /* NULL: none. Only the work that is to be captured may go there */
    family *captured;   /* by it; nothing else is done with that until it is a graph */
    family *families[FAMILIES];
    pool_block blocks[BLOCKS];
    unsigned long long before; /* faults on this thread, before the call */
} member;

/* ---- what all share (soak.c) ---- */

extern const gvmm_driver *cu; /* past the faults */
extern bool on_gpu;
extern size_t G; /* granularity, bytes */
extern int device_count;
extern kind kinds[];
extern size_t kind_count;
extern gvmm_pool *pools[POOLS];

/* X(name): what is counted */
/* clang-format off */
#define SOAK_FIGURES(X) \
    X(creates) X(grows) X(shrinks) X(composes) X(rings) X(accesses) X(closes) X(deferred) X(releases) X(handed) \
    X(fills) X(copies) X(checks) X(moves) X(evictions) X(restores) X(captures) X(captures_lost) X(captured_releases) \
    X(launches) X(launched_holders) X(mallocs) X(frees) X(trims) X(drains) X(resources) X(streams) X(refused) \
    X(out_of_memory) X(warnings)
/* clang-format on */
typedef enum figure {
#define X(name) FIGURE_##name,
    SOAK_FIGURES(X)
#undef X
        FIGURES
} figure;
void counted(figure what);

/* Something is wrong: says so, with the thread and the round; the soak ends with the round. */
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define must(condition) \
    do { \
        if (!(condition)) wrong("%s:%d: not so: %s", __FILE__, __LINE__, #condition); \
    } while (0)
#define must_cu(call) \
    do { \
        CUresult status_ = (call); \
        if (status_) wrong("%s:%d: %s: %s", __FILE__, __LINE__, #call, gvmm_driver_status_name((int)status_)); \
    } while (0)

/* Did a call of gvmm succeed? If not, that must be because of a fault on this thread during the call, or for want of
 * device memory. */
#define tried(m, call) (call_begins(m), call_ended(m, (call), #call))
void call_begins(member *m); /* in the thread's own capture mode */
bool call_ended(member *m, gvmm_result r, const char *what);

unsigned below(member *m, unsigned n);
CUstream any_stream(member *m, const kind *k); /* not the capturing one */
void settle(CUstream s);                       /* waits for its work */
void follow(CUstream later, CUstream earlier); /* makes one wait for the other */
void linger(CUstream s);                       /* keeps it busy for a moment: what comes next is late */

/* ---- what a thread does. Nothing, if there is nothing to do it with ---- */

void do_buffers(member *m);
void do_pool(member *m);
void do_capture(member *m); /* and, while it captures, other things by `meanwhile` */
void meanwhile(member *m);
void do_launch(member *m);

void hand_over(member *m);
void take_over(member *m);
void leave_stream(member *m, CUstream s); /* nothing of the thread's is on it any more, and it may be destroyed */
void give_up_all(member *m);

/* A family that has views, or NULL; not on the capturing stream. */
family *any_family(member *m);
size_t segments_of(gvmm_buffer *view, gvmm_segment list[SEGMENTS]);
void know(family *f, uint64_t memory, uint32_t word, bool known);
void recount(family *f); /* forgets what no view or graph shows any more */
void drop_view(member *m, family *f, size_t i);
void drop_exec(family *f, size_t i);
void bury_if_empty(member *m, family *f);

/* A block on `s` that captured work may use and that is freed there, or 0. */
uint64_t captured_malloc(member *m, CUstream s, size_t *words, unsigned *pool);
void free_blocks_on(member *m, CUstream s);
void free_all_blocks(member *m);

#endif

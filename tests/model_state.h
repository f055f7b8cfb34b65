/* What the files of the model test share.
 *
 *   model.c           a run: comparing the library with its twin, streams, faults
 *   model_buffers.c   operations on buffers, and the choices that their arguments stand for
 *   model_work.c      operations on streams and graphs; the list of all operations
 *   twin.c            the twin */
#ifndef GVMM_TEST_MODEL_STATE_H
#define GVMM_TEST_MODEL_STATE_H

#include <semaphore.h>

#include "gvmm/sim.h"
#include "model.h"
#include "twin.h"

#define G ((size_t)64 << 10)
#define MEMORY (64 * G)           /* of device 0: running out is a matter of course */
#define SPACE ((uint64_t)1 << 30) /* more than the views ever need */
#define ALIGN ((size_t)1 << 20)
#define WATCHED 8 /* bytes at each end of a chunk */

/* One machine with everything on it, the twin first. */
struct model {
    twin t;
    survey s; /* of the twin after the last operation */
    const gvmm_driver *cu;
    CUcontext context;
    gvmm_resource *resources[RESOURCES];
    gvmm_options options[RESOURCES];
    gvmm_buffer *buffers[BUFFERS];
    gvmm_stream streams[STREAMS];
    sem_t gates[STREAMS];
    CUgraph graphs[GRAPHS];
    CUgraphNode last_node[GRAPHS];
    bool by_hand[GRAPHS]; /* made by hand, not captured: memsets can be added */
    CUgraphExec execs[EXECS];
    gvmm_stats at_start;
    gvmm_fault fault; /* for the next call that can fail */
    bool contextless; /* the next such call is made without a current context */
    int own_frees;    /* calls of free_by_hand */
    size_t step;
    const uint8_t *bytes;
    const char *name; /* of the operation */
};
extern struct model m;

static twin *const t = &m.t;

typedef struct operation {
    const char *name;
    void (*run)(const uint8_t *op); /* op: the four bytes, the first said which */
    int weight;                     /* of 256 first bytes, about this many mean it */
} operation;

/* ---- model.c ---- */

/* Tells the difference and ends the process. */
void differs(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define expect(condition, ...) \
    do { \
        if (!(condition)) differs(__VA_ARGS__); \
    } while (0)
#define equal(what, got, wanted) \
    expect((uint64_t)(got) == (uint64_t)(wanted), "%s is 0x%llx, not 0x%llx", what, \
           (unsigned long long)(uint64_t)(got), (unsigned long long)(uint64_t)(wanted))
#define driver(call) \
    do { \
        CUresult status_ = m.cu->call; \
        expect(status_ == CUDA_SUCCESS, "the model's own %s: %s", #call, gvmm_driver_status_name((int)status_)); \
    } while (0)

/* The process's figures agree with the twin's; what graphs held comes back on other threads, a little later. Looks over the twin. */
void check_figures(void);

/* The stream's gate, and its queue: all of it becomes done, by waiting for it, or because somebody has waited. */
void open_gate(int s);
void finish(int s);
void all_done(int s);

/* Work that sets the same bytes has an order only on one stream, or when the other's is over. */
void finish_conflicts(int s, const work *w);
void push(int s, const work *w, int exec);

int index_of(gvmm_stream stream); /* -1: none of ours */
bool is_capturing(gvmm_stream stream);

/* Around a call that can fail: what was planned for it, and whether a fault was injected. */
void arm(void);
bool fired(void);

/* The result is the wanted one; with a fault it may be any failure instead. */
void check_result(gvmm_result got, gvmm_result wanted, bool faulty);
void check_warnings(int wanted, bool faulty);

/* ---- model_buffers.c ---- */

/* A buffer whose handle is alive: the one at the place, or the next; open ones first. -1: none. */
int pick(uint8_t place);
int pick_open(uint8_t place);

/* What a memset through a view sets: where two pieces meet if it can, else the start of one. False: it may not write there. */
bool pick_sets(const view *v, uint8_t which, uint8_t value, work *w, uint64_t *address, size_t *size);

void do_create(const uint8_t *op);
void do_grow(const uint8_t *op);
void do_wrap(const uint8_t *op);
void do_close(const uint8_t *op);
void do_release(const uint8_t *op);
void do_retain(const uint8_t *op);
void do_set_stream(const uint8_t *op);

/* ---- model_work.c ---- */

/* What the first byte of an operation means. */
const operation *decode(uint8_t what);

void do_end_capture(const uint8_t *op);
void do_destroy_graph(const uint8_t *op);
void do_destroy_exec(const uint8_t *op);
void do_free_decoy(const uint8_t *op);

#endif

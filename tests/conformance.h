/* The kit that conformance facts are written with.
 *
 * A fact makes driver calls and says, in one line, what came of them. Everything it makes through this kit is undone after it, in
 * reverse order. It starts with device 0's primary context current, on the main thread of a process
 * that no failed fact has touched. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gvmm/driver.h"

typedef CUmemGenericAllocationHandle handle;

typedef struct fact {
    const char *id;   /* "M-reserve-zero"; its first letter is its group */
    const char *text; /* one sentence: what is asked */
    const char *file;
    int place;  /* in the file */
    bool alone; /* in a process of its own, left without cleaning up: it crashes or poisons the context */
    void (*run)(void);
    struct fact *next;
    char id_space[64];
} fact;

void fact_register(fact *f, const char *c_name);

#define FACT_(name, is_alone, sentence) \
    static void name(void); \
    __attribute__((constructor)) static void register_##name(void) \
    { \
        static fact f = {.text = sentence, .file = __FILE__, .place = __COUNTER__, .alone = is_alone, .run = name}; \
        fact_register(&f, #name); \
    } \
    static void name(void)

/* FACT(M_reserve_zero, "Reserving no bytes.") { ... } makes the fact M-reserve-zero. */
#define FACT(name, sentence) FACT_(name, false, sentence)
#define FACT_ALONE(name, sentence) FACT_(name, true, sentence)

/* ---- what is there ---- */

extern const gvmm_driver *drv;
extern bool simulated;
extern int device_count;
extern size_t G;                      /* granularity */
extern CUcontext ctx;                 /* device 0's primary context */
extern CUmemAllocationProp on_device; /* device 0, pinned, not exportable */
extern CUmemAccessDesc read_write;    /* for device 0 */

CUcontext context_of(int device); /* its primary context, retained once a process */
bool contexts_wait(void);         /* for all that context_of gave; false: an error sticks */
void needs_two_devices(void);     /* leaves the fact, skipped, on a machine with one */

/* ---- the answer ---- */

/* Adds a word to the answer. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Adds "label=STATUS", or "STATUS" where label is "". */
void tell(const char *label, CUresult status);
#define TELL(label, call) tell(label, drv->call)

/* A step that must succeed before the question can be asked; the answer is SETUP and what failed otherwise. */
void setup(CUresult status, const char *call, const char *file, int line);
#define DO(call) setup(drv->call, #call, __FILE__, __LINE__)
void must(bool condition, const char *what);

/* Leaves the fact, skipped. */
void skip(const char *reason);

/* ---- undoing ---- */

typedef void (*undo_fn)(uint64_t object, size_t size);
void undo_later(undo_fn fn, uint64_t object, size_t size);
void forget(uint64_t object);
void undo_fd(uint64_t fd, size_t size);
#define ID(object) ((uint64_t)(uintptr_t)(object))
#define GONE(object) (forget(ID(object)), (object)) /* `object`, which the fact destroys itself */

/* ---- memory; the try_ functions are the driver call, undone later if it succeeds ---- */

CUresult try_reserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags);
CUresult try_create(handle *h, size_t size, CUmemAllocationProp prop, unsigned long long flags);
CUresult try_map(CUdeviceptr p, size_t size, size_t offset, handle h, unsigned long long flags);
CUresult try_import(handle *h, int fd);
CUresult try_alloc(CUdeviceptr *p, size_t size);
CUresult try_alloc_async(CUdeviceptr *p, size_t size, CUstream s); /* freed on the legacy stream */
CUresult try_alloc_host(void **p, size_t size);
CUresult try_register(void *p, size_t size);

CUdeviceptr reserve(size_t size);
CUdeviceptr reserve_pair(size_t first, size_t second); /* two adjacent reservations */
CUdeviceptr unreserved(void);                          /* an address, aligned, with 8 G of nothing behind it */
handle create(size_t size);
handle create_on(int device, size_t size);
handle create_exportable(size_t size);
void map(CUdeviceptr p, size_t size, handle h);
void give_access(CUdeviceptr p, size_t size, CUmemAccess_flags flags); /* to device 0 */
CUdeviceptr buffer(size_t size); /* reserved, created, mapped, read-write; the creation reference is gone */
CUdeviceptr plain(size_t size);  /* cuMemAlloc */
int byte_at(CUdeviceptr p);
size_t free_bytes(void); /* of device 0 */

/* How far free memory has moved since it was `before`, in units of `size`, rounded: -1 when `size` more is in use. Small
 * movements of other programs do not show. */
int free_moved(size_t before, size_t size);
int export_fd(handle h);
CUmemLocation location(CUmemLocationType type, int id);

/* ---- streams, events, graphs ---- */

CUstream stream(void); /* non-blocking */
CUstream blocking_stream(void);
CUevent event(void); /* without timing */
CUevent timing_event(void);
CUgraph graph(void);
CUgraphExec executable(CUgraph g);
CUgraphNode memset_node(CUgraph g, CUdeviceptr p, size_t size, unsigned value);
CUgraphNode host_node(CUgraph g, CUhostFn fn, void *data);
CUcontext second_context(void); /* another context of device 0; not current */

CUstreamCaptureMode set_mode(CUstreamCaptureMode mode);
void begin(CUstream s, CUstreamCaptureMode mode);
void end(CUstream s); /* says end=STATUS; the graph goes away */
CUgraph end_graph(CUstream s);
void say_capturing(const char *label, CUstream s); /* "label=ACTIVE" */

#define GLOBAL CU_STREAM_CAPTURE_MODE_GLOBAL
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

/* ---- time ---- */

/* Work that stays on its stream until the gate is opened. Every gate opens when the fact ends. */
typedef struct gate gate;
gate *gate_on(CUstream s);
gate *gate_new(void);
void gate_wait(void *g); /* a host function */
void gate_open(gate *g);

/* Work of 50 ms that tells whether something waited for it. */
atomic_int *slow_on(CUstream s);

/* Counters that driver threads may touch after the fact has ended. */
atomic_int *counter(void);
void count(void *c);                     /* a host function or destructor: adds one */
int wait_for(atomic_int *c, int wanted); /* up to 2 s; the value then */

/* Waits 50 ms for what should not happen, and gives the counter's value. */
int still(atomic_int *c);

/* Runs `fn` in a thread with `ctx` current and waits for it. */
void in_thread(void (*fn)(void *), void *arg);

/* ---- another process ---- */

/* Starts this program again as the peer `name` (conformance_share.c) and returns the socket to it. */
int peer_start(const char *name);
void send_fd(int to, int fd);
int receive_fd(int from);
void send_line(int to, const char *line);
void say_line(int from); /* adds what the peer sends to the answer */
int share_peer(const char *name, int to);

/* ---- for the runner ---- */

extern fact **facts;
extern size_t fact_count;
void facts_sort(void);
const char *fact_answer(const fact *f); /* runs it */
bool fact_tidy(const fact *f);          /* false: the process is of no more use */
void gates_open(void);
void pause_ms(long ms);
bool kit_start(char *message, size_t size);

#endif

/* What the execution side of the simulated driver shares: contexts, streams, events, captures, graphs.
 *
 *   context.c    devices, contexts, what each thread has current
 *   stream.c     queues and their threads, streams
 *   callback.c   host functions and callbacks
 *   event.c      events
 *   copy.c       memset and memcpy: checking and running operations
 *   capture.c    who captures what, which calls disturb it
 *   graph.c      graphs and their nodes
 *   launch.c     executables and their launches
 *   holding.c    user objects, and who holds them
 *
 * Everything here is called with sim_lock held unless its comment says otherwise.
 *
 * Order. Every queued item has a number from one counter, `order`. An item waits only for items with a smaller number,
 * so waiting can never be circular, and "everything so far" is one comparison. */
#ifndef GVMM_SIM_EXEC_H
#define GVMM_SIM_EXEC_H

#include <stdlib.h>

#include "core.h"

typedef struct sim_event sim_event;
typedef struct sim_capture sim_capture;
typedef struct sim_graph sim_graph;
typedef struct sim_user_object sim_user_object;

static inline void sim_enter(void) { pthread_mutex_lock(&sim_lock); }

/* Destroys the user objects that this thread let go of for the last time, if it is not a driver thread. */
void sim_objects_destroy(void);
extern _Thread_local struct sim_user_object *sim_objects_due; /* both in holding.c */

static inline CUresult sim_leave(CUresult result)
{
    pthread_mutex_unlock(&sim_lock);
    if (sim_objects_due) sim_objects_destroy();
    return result;
}

/* ---- context.c ---- */

/* Never freed: a destroyed context's handle stays known, and a primary context can live again. */
struct sim_context {
    struct sim_context *next;
    int device;
    bool listed, primary, alive, closing;
    unsigned retained; /* primary: cuDevicePrimaryCtxRetain */
    unsigned flags;
    CUresult error; /* sticky */
    sim_stream *legacy;
    sim_stream *streams; /* all of them, and destroyed ones until their work is done */
    sim_event *events;
    sim_context **peers; /* peer access enabled to these */
    size_t peer_count;
};

enum { SIM_STACK_DEPTH = 64 };

typedef struct sim_thread {
    uint64_t id;    /* never used twice, unlike pthread_t */
    uint64_t epoch; /* simulated machine that the rest belongs to */
    unsigned depth;
    sim_context *stack[SIM_STACK_DEPTH];
    CUstreamCaptureMode mode;
    sim_stream *default_streams; /* per-thread default streams, one per context */
} sim_thread;

/* The calling thread. With or without sim_lock. */
sim_thread *sim_thread_self(void);

/* As sim_current, with sim_lock held. */
CUresult sim_current_context(sim_context **out);

/* The context that a handle names, alive: INVALID_CONTEXT, CONTEXT_IS_DESTROYED. */
CUresult sim_context_find(CUcontext handle, sim_context **out);

/* Makes `error` the answer of every later call that uses the context, or any other that is alive. */
void sim_context_error(sim_context *context, CUresult error);

/* Every context in turn; NULL starts, NULL ends. */
sim_context *sim_context_next(sim_context *context);

void sim_contexts_reset(void);

/* Has an error stuck to a context? Without sim_lock. */
bool sim_has_failed(void);

/* ---- stream.c ---- */

/* A place in a stream's queue: reached when the item of that order is done. Holds a reference to the stream. */
typedef struct sim_point {
    sim_stream *stream; /* NULL: reached */
    uint64_t order;
} sim_point;

typedef struct sim_item {
    struct sim_item *next;
    uint64_t order;
    uint64_t call;
    sim_work work;    /* run NULL: a marker, which only waits or stamps */
    sim_point after;  /* not before this place in another stream */
    sim_event *stamp; /* gets the time when the item is done */
    bool inlined;     /* its caller runs it */
    bool always;      /* runs after an error too */
} sim_item;

struct sim_stream {
    sim_object object; /* id 0 for default streams */
    unsigned references;
    sim_context *context;
    sim_stream *before, *after; /* in the context's list */
    sim_stream *next_of_thread;
    unsigned flags;
    int priority;
    uint64_t serial;
    bool listed, closed;
    bool abandoned;            /* by a reset: work is dropped, the context is not looked at */
    bool worker;               /* has a thread */
    sim_item *head, *tail;     /* the head stays until it is done */
    pthread_cond_t wake;       /* for the worker of an empty queue */
    sim_capture *capture;      /* the capture it takes part in */
    CUgraphNode *dependencies; /* of the next captured node */
    size_t dependency_count;
};

/* A stream of the context: flags CU_STREAM_..., in the context's list, one reference. NULL: out of memory. */
sim_stream *sim_stream_new(sim_context *context, unsigned flags, int priority);
void sim_stream_retain(sim_stream *stream);
void sim_stream_release(sim_stream *stream);

/* Ends the stream's handle and its capture. Queued work still runs. Drops the creator's reference. */
void sim_stream_close(sim_stream *stream);

/* The stream that a user named, in a healthy context; only the default streams need a current one. A destroyed or unknown
 * one is a finding and INVALID_HANDLE. */
CUresult sim_stream_find(CUstream handle, sim_stream **out);

bool sim_stream_is_legacy(const sim_stream *stream);

/* Ordered with the legacy stream; the legacy stream itself is not. */
bool sim_stream_is_blocking(const sim_stream *stream);

/* An item of the call in progress; NULL when out of memory. Without sim_lock or with it. */
sim_item *sim_item_new(sim_work work);

/* Frees an item that was not queued, with its work's data. Without sim_lock. */
void sim_item_drop(sim_item *item);

/* Queues an item. On failure the item is still the caller's. */
CUresult sim_stream_push(sim_stream *stream, sim_item *item);

/* Runs an item on this thread when nothing is before it; else queues it and, if `wait`, waits until it is done. On
 * success the answer is the context's error. `*taken` says whether the item was queued. */
CUresult sim_stream_run(sim_stream *stream, sim_item *item, bool wait, bool *taken);

/* Would an item queued now have to wait for nothing? */
bool sim_stream_is_free(sim_stream *stream);

bool sim_point_reached(const sim_point *point);
void sim_point_release(sim_point *point);

/* The order of the latest item of all. */
uint64_t sim_order_now(void);

/* Has it anything left that was queued up to `order`? Of the legacy stream, the blocking streams are asked too. */
bool sim_stream_is_busy(const sim_stream *stream, uint64_t order);

/* Waits until no stream of the context has anything left that was queued up to `order`. */
void sim_context_wait(sim_context *context, uint64_t order);

/* Runs a user's function on this driver thread; nothing waits for it at exit. Without sim_lock. */
void sim_call_host(CUhostFn function, void *data);

/* A detached thread with all signals blocked. False: the system gave none. */
bool sim_thread_start(void *(*body)(void *), void *argument);

/* ---- event.c ---- */

void sim_event_stamp(sim_event *event, uint64_t order); /* the item that records it is done; drops its reference */
void sim_events_forget(sim_context *context);           /* ends the handles of a context's events */

/* ---- copy.c ---- */

/* What a stream or a graph node does. */
typedef struct sim_operation {
    CUgraphNodeType type; /* MEMSET, MEMCPY, HOST, EMPTY; GRAPH for a child */
    const char *name;
    int device;                 /* whose access counts */
    int dst_device, src_device; /* the same for each side of a copy, where `peer` */
    bool peer;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_MEMCPY3D copy; /* srcDevice and dstDevice hold the address, whatever the memory type */
    CUDA_HOST_NODE_PARAMS host;
    void *snapshot; /* the source, copied when the call was made */
} sim_operation;

/* May it be queued? A memset into a capture may, whatever is at its address, but for NULL. Without sim_lock. */
CUresult sim_operation_check(const sim_operation *operation, bool captured);

/* Does it, on a driver thread or inside a synchronous call. Without sim_lock. */
CUresult sim_operation_run(const sim_operation *operation, const sim_actor *who);

/* Fills in a memcpy or memset given in the driver's form; INVALID_VALUE when it makes no sense. */
CUresult sim_operation_memcpy(sim_operation *out, const CUDA_MEMCPY3D *copy, int device);
CUresult sim_operation_memset(sim_operation *out, const CUDA_MEMSET_NODE_PARAMS *set, int device);

/* A synchronous call returns when its work is done, if that reads or writes the program's memory: no other does. */
typedef enum sim_mode { SIM_ASYNC, SIM_SYNC } sim_mode;

/* Checks an operation, then queues it on the stream that a user named, or captures it. Without sim_lock. */
CUresult sim_submit(CUstream handle, const sim_operation *operation, sim_mode mode);

/* ---- capture.c ---- */

struct sim_capture {
    struct sim_capture *next;
    uint64_t id;
    uint64_t owner; /* thread that began it */
    CUstreamCaptureMode mode;
    bool invalidated;
    sim_stream *origin;
    sim_graph *graph;
    CUgraphNode *left; /* what forks depended on that were destroyed */
    size_t left_count;
};

sim_capture *sim_capture_find(uint64_t id);
void sim_capture_invalidate(sim_capture *capture);

/* IMPLICIT, and the captures are lost, for the legacy stream while a blocking stream of its context captures. */
CUresult sim_capture_implicit(sim_stream *stream);

/* Asked before anything is queued on a stream or recorded into it, and before its arguments are looked at: IMPLICIT as
 * above, INVALIDATED for a stream whose capture is lost. */
CUresult sim_capture_admit(sim_stream *stream);

/* As sim_capture_unsafe_call, with sim_lock held. */
CUresult sim_capture_unsafe(void);

/* For what a stream cannot do or be asked while it captures: IMPLICIT as above; UNSUPPORTED, and its capture is lost, also if
 * it was lost before. */
CUresult sim_capture_forbid(sim_stream *stream);

/* The same for any stream of the context. */
CUresult sim_capture_forbid_context(sim_context *context);

/* Adds a node after the stream's dependencies; it becomes the only one. */
CUresult sim_capture_add(sim_stream *stream, const sim_operation *operation);

/* Makes the stream depend on `nodes` too, and take part in the capture. OUT_OF_MEMORY leaves it as it was. */
CUresult sim_capture_join(sim_stream *stream, sim_capture *capture, const CUgraphNode *nodes, size_t count);

/* The stream is going away: its capture ends, or goes on without it if another stream began it. */
void sim_capture_leave(sim_stream *stream);

/* ---- graph.c ---- */

/* References of one holder to user objects. */
typedef struct sim_holding {
    sim_user_object *object;
    unsigned count;
} sim_holding;

typedef struct sim_holdings {
    sim_holding *items;
    size_t count;
} sim_holdings;

/* Nodes are only ever added, so that a node's place in the array is its name inside the graph, and handles ascend. */
typedef struct sim_node {
    CUgraphNode handle;
    sim_operation operation;
    sim_graph *child; /* type GRAPH */
    size_t *before;   /* places of the nodes that come before it */
    size_t before_count;
} sim_node;

struct sim_graph {
    sim_object object;                 /* id 0 for child graphs */
    struct sim_graph *previous, *next; /* all graphs, for finding a node's */
    sim_capture *capture;              /* under capture */
    sim_node *nodes;
    size_t count, capacity;
    sim_holdings holdings;
};

sim_graph *sim_graph_new(bool handle);
void sim_graph_free(sim_graph *graph);
sim_graph *sim_graph_copy(const sim_graph *graph, bool handle);
CUresult sim_graph_find(CUgraph handle, sim_graph **out);

/* INVALID_VALUE for a dependency that is not in the graph or comes twice. Takes `child` over, also on failure. */
CUresult sim_graph_add(sim_graph *graph, CUgraphNode *out, const CUgraphNode *dependencies, size_t count,
                       const sim_operation *operation, sim_graph *child);

/* The node's place; graph->count when it is not in the graph. */
size_t sim_graph_place(const sim_graph *graph, CUgraphNode node);

/* Puts the places into `order` (graph->count of them) so that all edges point forward. INVALID_VALUE: a cycle. */
CUresult sim_graph_sort(const sim_graph *graph, size_t *order);

/* ---- holding.c ---- */

/* Adds `from`'s references to `to`. OUT_OF_MEMORY leaves both as they were. */
CUresult sim_holdings_add(sim_holdings *to, const sim_holdings *from);
void sim_holdings_drop(sim_holdings *holdings, bool later); /* later: by the driver's thread */
void sim_objects_reset(void);                               /* forgets those that nobody can give back */

#endif

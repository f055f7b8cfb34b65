/* The simulated driver's map: what each file offers to the others, grouped under the file that defines it.
 *
 *   table.c      the driver table: a prologue around every call, then sim_<call>
 *   registry.c   handles, the census, findings, the leak report
 *   memory.c     physical memory, reservations, mappings, access; the bytes: with chunk.c, address.c, access.c, bytes.c
 *   share.c      descriptors between processes
 *   plain.c      cuMemAlloc, pinned and registered host memory, pointer attributes
 *   pool.c       stream-ordered pools, with pool_calls.c
 *   context.c    devices, contexts, errors that stick to a context
 *   stream.c     streams, their threads and queues
 *   callback.c   host functions and callbacks
 *   event.c      events
 *   copy.c       memset and memcpy: checks at the call, work on a stream or as a graph node
 *   capture.c    stream capture
 *   graph.c      graphs and their nodes
 *   launch.c     executables and their launches
 *   holding.c    user objects, and who holds them
 *
 * One lock, sim_lock, guards every table and list. It is never held while bytes are moved, while a user's function runs, or while
 * waiting for anything but itself and sim_changed. */
#ifndef GVMM_SIM_CORE_H
#define GVMM_SIM_CORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gvmm/sim.h"

/* Every call of driver_calls.h has one implementation, sim_<call>, in the file of its subject. */
#define GVMM_X(need, role, name, symbol, version, params, args) CUresult sim_##name params;
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X

#define SIM_MAX_DEVICES 16

extern pthread_mutex_t sim_lock;   /* registry.c */
extern pthread_cond_t sim_changed; /* broadcast when work completes, is queued or is torn down */
extern gvmm_sim_config sim_config; /* table.c; constant between resets */

/* ---- table.c ---- */

/* True on a thread of the driver (stream workers, user-object destructors), where user code may make no driver call: the prologue
 * answers NOT_PERMITTED there. */
extern _Thread_local bool sim_on_driver_thread;

/* The call in progress on this thread, for the census: its number and name. */
extern _Thread_local uint64_t sim_call_number;
extern _Thread_local const char *sim_call_name;

/* ---- registry.c ---- */

/* What every object that users hold begins with. Handles are ids that are never used twice, so that a stale one is
 * always recognised. An id is (kind + 1) << 40 | serial; memory handles and stream, event, graph ... pointers are ids. */
typedef struct sim_object {
    uint64_t id;
    gvmm_sim_kind kind;
    uint64_t call;
    const char *made_by;
    uint64_t address, size; /* for the census; the owner keeps them true */
    unsigned references;
    struct sim_object *before, *after;
} sim_object;

/* All with sim_lock held. `sim_object_find` returns NULL for an id that is not alive or is of another kind. Objects
 * outlive their id: removing only ends the handle, the owner frees the object when its last internal user is done. */
void sim_object_add(sim_object *object, gvmm_sim_kind kind, uint64_t address, uint64_t size);
void sim_object_add_again(sim_object *object); /* removed before, under the same id */
void sim_object_remove(sim_object *object);
sim_object *sim_object_find(gvmm_sim_kind kind, uint64_t id);

/* True if `id` was a live object of `kind` once and is no more. */
bool sim_object_was(gvmm_sim_kind kind, uint64_t id);

/* Records a finding and writes it to standard error. With or without sim_lock held (it has a lock of its own). */
void sim_finding(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- address.c, bytes.c ---- */

/* Who touches memory, for access checks and for the text of findings. */
typedef struct sim_actor {
    int device;            /* whose access counts; -1: the host */
    uint64_t stream;       /* id, or 0 */
    const char *operation; /* "cuMemsetD8Async", "graph memcpy node" */
    uint64_t call;         /* number of the call that queued it */
} sim_actor;

/* Is `ptr` an address of the simulated devices (inside a reservation or an allocation), rather than the program's own memory?
 * Without sim_lock. */
bool sim_is_device_address(uint64_t ptr);

/* Is some of that host memory page-locked, but not all of it in one piece? Without sim_lock. */
bool sim_is_partly_pinned(uint64_t address, uint64_t size);

/* The check made when a copy is queued: every byte mapped, and `device` may read it (and write it if `write`).
 * INVALID_VALUE otherwise; no finding. Without sim_lock. */
CUresult sim_check_access(int device, CUdeviceptr ptr, size_t size, bool write);

/* The same for a memset, which cannot reach plain memory of another device without peer access. */
CUresult sim_check_set(int device, CUdeviceptr ptr, size_t size);

/* Move bytes when work runs; NULL-safe for size 0. A side that is no device address is the program's own memory. Memory
 * that is unmapped or closed to the actor by then: ILLEGAL_ADDRESS, and a finding that names stream, operation, address and
 * the call that unmapped it. They hold no lock while moving, and at most 4 MiB at a time between looks at the tables. */
CUresult sim_bytes_copy(const sim_actor *who, uint64_t dst, uint64_t src, size_t size);
CUresult sim_bytes_set(const sim_actor *who, CUdeviceptr dst, unsigned value, unsigned element_size, size_t count);

/* ---- context.c ---- */

typedef struct sim_context sim_context;
typedef struct sim_stream sim_stream;

/* The calling thread's current context, live and without a sticky error: INVALID_CONTEXT if there is none, else the error that
 * sticks to it. Without sim_lock. */
CUresult sim_current(sim_context **out);
int sim_context_device(const sim_context *context);

/* Has a context of `device` peer access to one of `peer`? With sim_lock held. */
bool sim_peer_enabled(int device, int peer);

/* ---- stream.c ---- */

/* Work on a stream. `run` is called on a driver thread, in order, without sim_lock; its error sticks to the context.
 * `drop` frees `data`, after `run` or instead of it. */
typedef struct sim_work {
    const char *operation;
    CUresult (*run)(void *data, const sim_actor *who);
    void (*drop)(void *data);
    void *data;
} sim_work;

/* Queues work on the stream that a user named (0, 1, 2 or a handle), after what it waits for: the stream's earlier work,
 * and the legacy stream's and blocking streams' rule. This work has no graph node: on a capturing stream it is refused with
 * STREAM_CAPTURE_UNSUPPORTED and the capture is lost. Takes `data` over, also on failure. Without sim_lock. */
CUresult sim_queue(CUstream stream, sim_work work);

/* For calls that allocate in a stream's order: its device, and whether it captures. Refused as a wait for another stream
 * would be, and on the legacy stream as work is. Without sim_lock. */
CUresult sim_stream_allocates(CUstream stream, int *device, bool *capturing);

/* Waits until all work queued on every stream so far that could touch device memory is done (cuMemFree, reset). */
void sim_wait_all(void);

/* Stops the stream threads and forgets every stream, event, graph and context: for gvmm_sim_reset and exit. */
void sim_execution_reset(void);

/* ---- capture.c ---- */

/* For calls that are not allowed while a capture could be disturbed (cuMemAlloc, cuStreamSynchronize, cuEventQuery,
 * cuCtxSynchronize ...): if the thread's capture mode and the captures in progress forbid it, invalidates those captures and
 * returns STREAM_CAPTURE_UNSUPPORTED. Without sim_lock. */
CUresult sim_capture_unsafe_call(void);

#endif

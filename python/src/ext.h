/* The extension's map: what each file offers to the others, grouped under the file that defines it.
 *
 *     module  →  resource, pool, buffer, elastic, residency, release, exchange, share, work, probe, simulate, timing  →  stream, call,
 *         args, error
 *
 * Objects are ordinary Python objects over one reference to an object of the library. They hold their module's state by pointer: an
 * object keeps its type alive, the type its module. What may block runs between call_begin and call_end, without the interpreter lock. */
#ifndef GVMM_EXT_H
#define GVMM_EXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pyapi.h"

#include "gvmm.h"
#include "gvmm/driver.h"

/* ---- module.c: one state per interpreter ---- */

typedef struct module_state {
    bool main_interpreter;
    PyObject *is_finalizing; /* sys.is_finalizing; NULL once the module has been cleared */
    PyObject *pack_options;  /* gvmm._options.pack */
    PyObject *settled_options, *device_ordinal;
    PyObject *residency_event; /* gvmm._residency.ResidencyEvent */
    PyObject *cuda_error, *cuda_value_error, *cuda_memory_error, *cuda_warning;
    PyObject *pool_stats;  /* gvmm._pool.PoolStats */
    PyObject *stream_type; /* gvmm.Stream, or NULL as long as gvmm._cuda has not been imported */
    PyObject *name_protocol, *name_torch, *name_cupy, *name_handle; /* attributes of streams, see stream.c */
    PyTypeObject *resource_type, *buffer_type, *vm_buffer_type, *pool_type;
    PyObject *outliving; /* {id: stream}: streams that a deferred release may still need (release.c) */
} module_state;

/* The state behind a type of ours or a subclass of one. */
module_state *state_of_type(PyTypeObject *type);

/* Is the process on its way out? Then nothing is waited for and nothing given back: the driver takes back everything. The end of a
 * subinterpreter is no such end. */
bool is_exiting(module_state *state);

/* Counts forks: what was made before a fork is not the child's to give back, as the driver refuses every call there. */
unsigned fork_generation(void);

/* ---- error.c: failures and warnings of the library as Python's ---- */

/* Raise the calling thread's last failure; raise a driver call's status. Both give NULL. */
PyObject *raise_result(module_state *state, gvmm_result result);
PyObject *raise_status(module_state *state, CUresult status, const char *call);

PyObject *raise_closed(void);

/* One line to the caller as CUDAWarning. If warnings are errors, that one goes to sys.unraisablehook: a release never raises. Keeps
 * an exception that is propagating. */
void warn_text(module_state *state, const char *text);

/* ---- call.c: around everything that may block ---- */

/* Warnings of the library that come up on this thread, until they can be told to Python. Lives on the caller's stack. */
enum { WARNINGS_KEPT = 4, WARNING_SIZE = 256 };
typedef struct call {
    struct call *outer;
    PyThreadState *thread;
    unsigned warnings;
    char text[WARNINGS_KEPT][WARNING_SIZE];
} call;

/* Gives the interpreter lock away; takes it back and tells Python of the warnings since. Between the two no Python is used. */
void call_begin(call *c);
void call_end(call *c, module_state *state);

/* The driver's table, outside a call: without the interpreter lock while the driver starts. */
gvmm_result call_driver(module_state *state, const gvmm_driver **out);

/* Within a call, in a callback of the library: has the interpreter lock, with this thread's own state, between the two. */
void call_interrupt(void);
void call_resume(void);

/* Makes the library's warnings come here. Once per process. */
void catch_warnings(void);

/* ---- args.c: arguments of fast calls ---- */

typedef struct signature {
    const char *function;
    const char *names[8];
    int positional;  /* the first so many may be given by position; the rest by name only */
    unsigned needed; /* a bit for each name that has to be given */
} signature;

/* Sorts the arguments into `out`, borrowed, in the order of the names; NULL where one is not given. False: TypeError. */
bool take_arguments(const signature *s, PyObject *const *args, Py_ssize_t nargs, PyObject *names, PyObject **out);

/* Bytes from an int. TypeError, or OverflowError when negative or over 64 bits. */
bool take_size(PyObject *object, size_t *out);

/* An address: an int, or an object that int() takes. None is 0. */
bool take_address(PyObject *object, uint64_t *out);

/* ---- stream.c: streams of others ---- */

/* A stream and the object that keeps it alive. */
typedef struct stream_ref {
    gvmm_stream stream; /* NULL: none */
    PyObject *object;   /* owned; NULL: an integer, or none */
} stream_ref;

/* From anything with __cuda_stream__, a PyTorch or CuPy stream, an int or, where allowed, None (gives none). */
bool take_stream(module_state *state, PyObject *object, bool none_allowed, stream_ref *out);

/* _own_streams(type): streams of just this type have their handle in an attribute, which is read without a call. */
PyObject *own_streams(PyObject *module, PyObject *type);
void stream_ref_clear(stream_ref *ref);

/* What a buffer records, as gvmm does: real streams as they are, the legacy token on a device, nothing on the host. */
void stream_ref_record(stream_ref *ref, bool on_device);

/* ---- resource.c ---- */

typedef struct resource_object {
    PyObject_HEAD module_state *state;
    gvmm_resource *resource; /* NULL until initialised */
    unsigned generation;
    int ordinal; /* of the device that was given, for host locations too */
    bool on_device;
    size_t granularity;
    PyObject *device, *config;
    atomic_flag lock; /* guards on_residency */
    PyObject *on_residency;
    PyObject *weakrefs;
} resource_object;

extern PyType_Spec resource_spec;

/* False, with an exception, if __init__ was not called. */
bool resource_ready(resource_object *self);

/* What all ranks can have of options: see gvmm._probe.CommonProbe. */
PyObject *probe_settle(PyObject *module, PyObject *args);

/* From an int, or an object that knows its ordinal. What is too large for the library becomes a number that it refuses. */
bool take_ordinal(module_state *state, PyObject *device, int *out);

/* ---- pool.c ---- */

extern PyType_Spec pool_spec;
PyObject *torch_stats(PyObject *module, PyObject *device);
gvmm_pool *pool_of(PyObject *pool); /* NULL: not initialised */

/* ---- buffer.c ---- */

/* `lock` guards what follows it up to `weakrefs`, for a few loads and stores: free-threaded builds have no other. */
typedef struct buffer_object {
    PyObject_HEAD module_state *state;
    gvmm_buffer *buffer; /* NULL for someone else's mapping */
    unsigned generation;
    PyObject *owner; /* wrapped: kept alive until closed */
    PyObject *mr;    /* the resource, ours or another's, or NULL */
    atomic_flag lock;
    bool closing; /* closed, or about to be: no new exports */
    bool closed;  /* done: the last export gives up what is kept */
    bool pinned;  /* __cuda_array_interface__ was read: its reader holds this object */
    size_t exports;
    gvmm_buffer *kept; /* a full alias for exports that are out after close */
    uint64_t address;  /* wrapped only; 0 once closed */
    size_t size;       /* likewise */
    bool deferred;     /* closed with wait=False: nor does what was kept wait */
    bool callback_due; /* wrapped only: mr.deallocate is yet to be called */
    uint64_t due_address;
    size_t due_size;
    stream_ref recorded;
    PyObject *weakrefs;
} buffer_object;

extern PyType_Spec buffer_spec, vm_buffer_spec;

/* A new object over `buffer`, whose reference it takes, also on failure. `recorded` is taken too. */
PyObject *buffer_wrap(resource_object *mr, gvmm_buffer *buffer, stream_ref *recorded);

void buffer_lock(buffer_object *self);
void buffer_unlock(buffer_object *self);

/* What the buffer shows now. */
typedef struct view {
    bool open;
    uint64_t address;
    size_t size;
} view;
view buffer_view(buffer_object *self);

/* The recorded stream with a reference of the caller's own. */
stream_ref buffer_recorded(buffer_object *self);

/* Counts something that shows the memory without this library's doing; it stays mapped until the last is gone, closed or not. */
bool buffer_export(buffer_object *self, view *out);
void buffer_unexport(buffer_object *self);

/* Where the memory is and who reaches it. False: an exception is set. */
typedef struct place {
    int device; /* ordinal, -1: host */
    bool device_accessible, host_accessible, managed;
} place;
bool buffer_place(buffer_object *self, place *out);

/* ---- elastic.c: shorter and composed views, access; the type of the library's own buffers ---- */

PyObject *resource_compose(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

/* False, with a TypeError, for someone else's mapping. */
bool buffer_is_own(buffer_object *self);

/* The place of a str in `words`, which NULL ends. ValueError, which says `what`. */
bool take_word(const char *what, PyObject *object, const char *const *words, int *out);

/* ---- residency.c: evict and restore ---- */

PyObject *buffer_evict(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *buffer_restore(PyObject *self, PyObject *unused);
PyObject *buffer_get_evicted(PyObject *self, void *unused);
PyObject *buffer_get_generation(PyObject *self, void *unused);
PyObject *resource_evict(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *resource_restore(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *resource_prepare_evict(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *resource_get_on_residency(PyObject *self, void *unused);
int resource_set_on_residency(PyObject *self, PyObject *value, void *unused);

/* Makes the library tell this object, as long as it lives. */
void resource_watch(resource_object *self);

/* ---- release.c: closing, and the end of an object ---- */

PyObject *buffer_close(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *buffer_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* Gives up everything, or what close() had to leave because of exports; without an exception and without disturbing one. */
void buffer_give_up(buffer_object *self);
void buffer_give_up_kept(buffer_object *self);

/* ---- work.c: copies, fills, graphs ---- */

PyObject *buffer_copy_to(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *buffer_copy_from(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *buffer_fill(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *buffer_retain_in_graph(PyObject *self, PyObject *graph);
PyObject *buffer_retain_in_capture(PyObject *self, PyObject *stream);

/* ---- exchange.c: DLPack, the CUDA array interface, Python's buffer protocol ---- */

PyObject *buffer_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *buffer_dlpack_device(PyObject *self, PyObject *unused);
PyObject *buffer_array_interface(PyObject *self, void *unused);
int buffer_getbuffer(PyObject *self, Py_buffer *view, int flags);
void buffer_releasebuffer(PyObject *self, Py_buffer *view);

/* ---- share.c: buffers between processes ---- */

PyObject *buffer_send(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *buffer_export_all(PyObject *self, PyObject *unused);
PyObject *buffer_identities(PyObject *self, PyObject *unused);
PyObject *buffer_refuse_pickle(PyObject *self, PyObject *unused);
PyObject *resource_receive(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *resource_import(PyObject *self, PyObject *args);

/* ---- probe.c: what a device can do, and what all ranks have ---- */

PyObject *probe(PyObject *module, PyObject *device);
PyObject *probe_common(PyObject *module, PyObject *records);

/* The common answer of records as bytes. False: an exception is set. */
bool take_records(module_state *state, PyObject *records, gvmm_common_report *out);

/* ---- simulate.c: the simulated driver, faults, and the driver table for gvmm._cuda ---- */

extern PyMethodDef simulate_methods[];

/* ---- timing.c: the C side of bench/bench_python.py ---- */

/* (resource, size, rounds, close) -> us for one creation and release, with a close in between if asked for */
PyObject *time_create(PyObject *module, PyObject *args);
PyObject *time_alias(PyObject *module, PyObject *args); /* (buffer, rounds) -> us for one full alias */
PyObject *time_pool(PyObject *module, PyObject *args);  /* (pool, size, rounds, stream) -> us for one malloc and free */

#endif

/* Pool: the stream-ordered allocator for many sizes, and the functions that PyTorch loads from here. */
#include <stddef.h>

#include "ext.h"

typedef struct pool_object {
    PyObject_HEAD module_state *state;
    gvmm_pool *pool; /* NULL until initialised */
    unsigned generation;
    PyObject *resource;
    PyObject *weakrefs;
} pool_object;

/* ---- start and end ---- */

static bool is_ready(const pool_object *self)
{
    if (self->pool) return true;
    PyErr_SetString(PyExc_RuntimeError, "Pool is not initialised");
    return false;
}

gvmm_pool *pool_of(PyObject *pool) { return ((pool_object *)pool)->pool; }

/* The resource itself, or one for a device. A new reference. */
static PyObject *resource_of(module_state *state, PyObject *device)
{
    if (!PyObject_TypeCheck(device, state->resource_type))
        return PyObject_CallFunctionObjArgs((PyObject *)state->resource_type, device, NULL);
    return resource_ready((resource_object *)device) ? Py_NewRef(device) : NULL;
}

/* Bytes, or None for no limit. */
static bool take_limit(PyObject *object, size_t *out)
{
    *out = 0;
    if (object == Py_None) return true;
    if (!take_size(object, out)) return false;
    if (*out) return true;
    PyErr_SetString(PyExc_ValueError, "limit must be positive, or None");
    return false;
}

static int pool_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "limit", "streams_outlive", NULL};
    pool_object *self = (pool_object *)op;
    PyObject *device, *limit = Py_None;
    int outlive = 0;
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$Op:Pool", names, &device, &limit, &outlive)) return -1;
    module_state *state = state_of_type(Py_TYPE(op));
    if (!state || !take_limit(limit, &options.limit)) return -1;
    if (self->pool) {
        PyErr_SetString(PyExc_RuntimeError, "Pool is initialised already");
        return -1;
    }
    PyObject *resource = resource_of(state, device);
    if (!resource) return -1;
    options.streams_outlive = outlive;
    gvmm_pool *pool = NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_pool_create(&pool, ((resource_object *)resource)->resource, &options);
    call_end(&c, state);
    if (r) {
        raise_result(state, r);
        Py_DECREF(resource);
        return -1;
    }
    self->state = state;
    self->pool = pool;
    self->generation = fork_generation();
    self->resource = resource;
    return 0;
}

static int pool_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((pool_object *)op)->resource);
    return 0;
}

static int pool_clear(PyObject *op)
{
    Py_CLEAR(((pool_object *)op)->resource);
    return 0;
}

/* Waits for what was freed. Keeps an exception. */
static void give_up(pool_object *self)
{
    gvmm_pool *pool = self->pool;
    PyObject *type, *value, *traceback;
    self->pool = NULL;
    if (!pool || self->generation != fork_generation()) return;
    PyErr_Fetch(&type, &value, &traceback);
    if (!is_exiting(self->state)) {
        call c;
        call_begin(&c);
        gvmm_pool_release(pool);
        call_end(&c, self->state);
    }
    PyErr_Restore(type, value, traceback);
}

static void pool_dealloc(PyObject *op)
{
    pool_object *self = (pool_object *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs) PyObject_ClearWeakRefs(op);
    give_up(self);
    pool_clear(op);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

/* ---- methods ---- */

static PyObject *pool_malloc(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"malloc", {"size", "stream"}, 2, 1};
    pool_object *self = (pool_object *)op;
    PyObject *given[2];
    size_t size;
    stream_ref stream;
    if (!take_arguments(&s, args, nargs, names, given) || !is_ready(self) || !take_size(given[0], &size)) return NULL;
    if (!take_stream(self->state, given[1], true, &stream)) return NULL;
    uint64_t address = 0;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_pool_malloc(&address, self->pool, size, stream.stream);
    call_end(&c, self->state);
    PyObject *result = r ? raise_result(self->state, r) : PyLong_FromUnsignedLongLong(address);
    if (!r && !result) gvmm_pool_free(self->pool, address, stream.stream);
    stream_ref_clear(&stream);
    return result;
}

static PyObject *pool_free(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"free", {"address", "stream"}, 2, 1};
    pool_object *self = (pool_object *)op;
    PyObject *given[2];
    uint64_t address;
    stream_ref stream;
    if (!take_arguments(&s, args, nargs, names, given) || !is_ready(self) || !take_address(given[0], &address))
        return NULL;
    if (!take_stream(self->state, given[1], true, &stream)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_pool_free(self->pool, address, stream.stream);
    call_end(&c, self->state);
    if (r) raise_result(self->state, r);
    stream_ref_clear(&stream);
    return r ? NULL : Py_NewRef(Py_None);
}

static PyObject *pool_trim(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"trim", {"keep"}, 1, 0};
    pool_object *self = (pool_object *)op;
    PyObject *given[1];
    size_t keep = 0;
    if (!take_arguments(&s, args, nargs, names, given) || !is_ready(self)) return NULL;
    if (given[0] && !take_size(given[0], &keep)) return NULL;
    call c;
    call_begin(&c);
    size_t gone = gvmm_pool_trim(self->pool, keep);
    call_end(&c, self->state);
    return PyLong_FromSize_t(gone);
}

static PyObject *pool_set_limit(PyObject *op, PyObject *limit)
{
    pool_object *self = (pool_object *)op;
    size_t bytes;
    if (!is_ready(self) || !take_limit(limit, &bytes)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_pool_set_limit(self->pool, bytes);
    call_end(&c, self->state);
    return r ? raise_result(self->state, r) : Py_NewRef(Py_None);
}

/* The pool's own lock is held while another thread has memory made: the interpreter's must not wait for it. */
static PyObject *stats_of(module_state *state, gvmm_pool *pool)
{
    gvmm_pool_stats s;
    call c;
    call_begin(&c);
    gvmm_pool_get_stats(pool, &s);
    call_end(&c, state);
    return PyObject_CallFunction(state->pool_stats, "KKKKKKKKK", (unsigned long long)s.live_bytes,
                                 (unsigned long long)s.rounded_bytes, (unsigned long long)s.physical_bytes,
                                 (unsigned long long)s.live_peak, (unsigned long long)s.physical_peak,
                                 (unsigned long long)s.blocks, (unsigned long long)s.mallocs,
                                 (unsigned long long)s.reuses, (unsigned long long)s.stitches);
}

static PyObject *pool_get_stats(PyObject *op, PyObject *unused)
{
    (void)unused;
    pool_object *self = (pool_object *)op;
    return is_ready(self) ? stats_of(self->state, self->pool) : NULL;
}

static PyObject *pool_reset_peaks(PyObject *op, PyObject *unused)
{
    (void)unused;
    pool_object *self = (pool_object *)op;
    if (!is_ready(self)) return NULL;
    call c;
    call_begin(&c);
    gvmm_pool_reset_peaks(self->pool);
    call_end(&c, self->state);
    Py_RETURN_NONE;
}

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"malloc", FAST(pool_malloc),
     "malloc($self, /, size, stream=None)\n--\n\n"
     "The address of a block of `size` bytes, for use by `stream` first; None: the device's legacy default stream. Its bytes are\n"
     "whatever was there before. Raises MemoryError when there is no memory even after waiting for what was freed."},
    {"free", FAST(pool_free),
     "free($self, /, address, stream=None)\n--\n\n"
     "Frees a block, whose last use is work of `stream` so far. Does not wait. While the stream captures, the graph holds the\n"
     "block, and the stream must live until that is gone and drain() was called. Raises ValueError for what is no live block's\n"
     "address."},
    {"trim", FAST(pool_trim),
     "trim($self, /, keep=0)\n--\n\n"
     "Gives free memory back until the pool has no more than `keep` bytes; the bytes that went. Waits for nothing."},
    {"set_limit", pool_set_limit, METH_O,
     "set_limit($self, limit, /)\n--\n\nBytes of memory that the pool may have; None: no limit."},
    {"stats", pool_get_stats, METH_NOARGS, "stats($self, /)\n--\n\nThe pool's figures, as PoolStats."},
    {"reset_peaks", pool_reset_peaks, METH_NOARGS,
     "reset_peaks($self, /)\n--\n\nThe peaks of the figures become what they are now."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"resource", T_OBJECT, offsetof(pool_object, resource), READONLY,
     "The resource whose options the memory is made with."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(pool_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, pool_init},
    {Py_tp_traverse, pool_traverse},
    {Py_tp_clear, pool_clear},
    {Py_tp_dealloc, pool_dealloc},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_doc,
     "Pool(device, *, limit=None, streams_outlive=False)\n--\n\n"
     "A stream-ordered allocator for many sizes, whose blocks are plain addresses.\n\n"
     "device\n    A VirtualMemoryResource on a device, or what makes one.\n"
     "limit\n    Bytes of memory that it may have. None: what the device has.\n"
     "streams_outlive\n    Promises that streams named to free() live as long as the pool, and begin no capture while another thread uses it.\n"
     "    A free is then cheaper.\n\n"
     "When the object goes the work of what was freed is waited for. Blocks must have been freed before; else a CUDAWarning says\n"
     "so, and the memory is lost.\n\n"
     ">>> pool = Pool(0)\n>>> address = pool.malloc(1000, stream)\n>>> pool.free(address, stream)"},
    {0, NULL},
};

PyType_Spec pool_spec = {"gvmm.Pool", sizeof(pool_object), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

/* ---- PyTorch's ---- */

/* _torch_stats(device) -> PoolStats or None. That this file names the pool brings the two functions beside it into the extension. */
PyObject *torch_stats(PyObject *module, PyObject *device)
{
    module_state *state = PyModule_GetState(module);
    int ordinal;
    if (!take_ordinal(state, device, &ordinal)) return NULL;
    gvmm_pool *pool = gvmm_torch_pool(ordinal);
    return pool ? stats_of(state, pool) : Py_NewRef(Py_None);
}

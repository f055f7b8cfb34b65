/* The memory for others: DLPack, the CUDA array interface, Python's buffer protocol.
 *
 * Each shows the bytes as one dimension. What shows them counts as an export: it holds this object, and if the buffer is closed before
 * the last export has gone, a full alias keeps the memory mapped for it (release.c). */
#include <stdlib.h>
#include <string.h>

#include "ext.h"

/* ---- may it be touched? ---- */

/* Read-only or not, by what the memory's own location may do; false, with a BufferError, if it may not even read. A grow with options
 * of its own can make a chunk that differs: the least counts. */
static bool readable(buffer_object *self, bool *readonly)
{
    gvmm_access access = GVMM_ACCESS_READ_WRITE; /* who wrapped a mapping answers for it */
    gvmm_result r = GVMM_OK;
    if (self->buffer && buffer_view(self).size) {
        call c;
        call_begin(&c); /* the memory may be on its way out on another thread */
        r = gvmm_buffer_get_access(self->buffer, gvmm_resource_device(gvmm_buffer_resource(self->buffer)), &access);
        call_end(&c, self->state);
    }
    if (r) return raise_result(self->state, r) != NULL;
    *readonly = access != GVMM_ACCESS_READ_WRITE;
    if (access != GVMM_ACCESS_NONE) return true;
    PyErr_SetString(PyExc_BufferError, "the memory's own location has no access to it (self_access=None)");
    return false;
}

/* Counts an export of memory that may be read. */
static bool start_export(buffer_object *self, view *v, bool *readonly)
{
    if (!buffer_export(self, v)) return false;
    if (readable(self, readonly)) return true;
    buffer_unexport(self);
    return false;
}

/* ---- DLPack ---- */

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t dimensions;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

typedef struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_versioned;

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { DL_INT = 0 };
enum { DL_READ_ONLY = 1 };

/* What a capsule stands for; either structure first, so that its address is this one's. */
typedef struct exported {
    union {
        dl_managed plain;
        dl_versioned versioned;
    } as;
    buffer_object *buffer; /* a reference */
    int64_t shape, stride;
} exported;

/* Consumers let go on whatever thread, with or without the interpreter lock, and perhaps after the interpreter has ended. */
static void end_export(exported *e)
{
    if (!Py_IsInitialized()) return;
    PyGILState_STATE lock = PyGILState_Ensure();
    buffer_unexport(e->buffer);
    Py_DECREF((PyObject *)e->buffer);
    PyGILState_Release(lock);
    free(e);
}

static void delete_plain(dl_managed *m) { end_export((exported *)m); }
static void delete_versioned(dl_versioned *m) { end_export((exported *)m); }

/* A capsule that nobody took: a consumer renames what it takes. */
static void capsule_gone(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    if (!name || strncmp(name, "dltensor", 8) != 0) return;
    exported *e = PyCapsule_GetPointer(capsule, name);
    if (!e) return PyErr_Clear();
    buffer_unexport(e->buffer);
    Py_DECREF((PyObject *)e->buffer);
    free(e);
}

static bool dl_device(buffer_object *self, int32_t *type, int32_t *id)
{
    place where;
    if (!buffer_place(self, &where)) return false;
    *id = where.device >= 0 ? where.device : 0;
    if (where.device_accessible)
        *type = where.managed ? DL_CUDA_MANAGED : where.host_accessible ? DL_CUDA_HOST : DL_CUDA;
    else *type = DL_CPU;
    if (*type == DL_CPU && !where.host_accessible) {
        PyErr_SetString(PyExc_BufferError, "neither a device nor the CPU can touch the memory");
        return false;
    }
    return true;
}

PyObject *buffer_dlpack_device(PyObject *op, PyObject *unused)
{
    int32_t type, id;
    (void)unused;
    return dl_device((buffer_object *)op, &type, &id) ? Py_BuildValue("ii", (int)type, (int)id) : NULL;
}

/* (major, minor) or None, which means before there were versions. */
static bool take_version(PyObject *version, bool *versioned)
{
    *versioned = false;
    if (!version || version == Py_None) return true;
    if (!PyTuple_Check(version) || PyTuple_Size(version) != 2) {
        PyErr_Format(PyExc_BufferError, "max_version must be a tuple of two ints, not %R", version);
        return false;
    }
    long major = PyLong_AsLong(PyTuple_GetItem(version, 0));
    if (major == -1 && PyErr_Occurred()) return false;
    *versioned = major >= 1;
    return true;
}

static bool check_request(PyObject *wanted, PyObject *copy, int32_t type, int32_t id)
{
    int want_type, want_id;
    if (copy && copy != Py_None && PyObject_IsTrue(copy)) {
        PyErr_SetString(PyExc_BufferError, "a copy cannot be made: copy must be False or None");
        return false;
    }
    if (!wanted || wanted == Py_None) return true;
    if (!PyTuple_Check(wanted) || !PyArg_ParseTuple(wanted, "ii", &want_type, &want_id)) {
        PyErr_Clear();
        PyErr_Format(PyExc_BufferError, "dl_device must be a tuple of type and id, not %R", wanted);
        return false;
    }
    if (want_type == type && want_id == id) return true;
    PyErr_Format(PyExc_BufferError, "the memory is on DLPack device (%d, %d), not (%d, %d)", (int)type, (int)id,
                 want_type, want_id);
    return false;
}

static PyObject *make_capsule(buffer_object *self, bool versioned, int32_t type, int32_t id)
{
    view v;
    bool readonly;
    if (!start_export(self, &v, &readonly)) return NULL;
    exported *e = calloc(1, sizeof *e);
    if (!e || (readonly && !versioned)) {
        free(e);
        buffer_unexport(self);
        if (!e) return PyErr_NoMemory();
        PyErr_SetString(PyExc_BufferError, "read-only memory needs DLPack 1.0: pass max_version=(1, 0)");
        return NULL;
    }
    e->buffer = (buffer_object *)Py_NewRef((PyObject *)self);
    e->shape = (int64_t)v.size;
    e->stride = 1;
    dl_tensor tensor = {(void *)(uintptr_t)v.address, type, id, 1, DL_INT, 8, 1, &e->shape, &e->stride, 0};
    if (versioned) e->as.versioned = (dl_versioned){1, 0, e, delete_versioned, readonly ? DL_READ_ONLY : 0, tensor};
    else e->as.plain = (dl_managed){tensor, e, delete_plain};
    PyObject *capsule = PyCapsule_New(e, versioned ? "dltensor_versioned" : "dltensor", capsule_gone);
    if (capsule) return capsule;
    buffer_unexport(self);
    Py_DECREF((PyObject *)self);
    free(e);
    return NULL;
}

PyObject *buffer_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"__dlpack__", {"stream", "max_version", "dl_device", "copy"}, 0, 0};
    buffer_object *self = (buffer_object *)op;
    PyObject *given[4];
    bool versioned;
    int32_t type, id;
    if (!take_arguments(&s, args, nargs, names, given) || !take_version(given[1], &versioned)) return NULL;
    if (!dl_device(self, &type, &id) || !check_request(given[2], given[3], type, id)) return NULL;
    return make_capsule(self, versioned, type, id);
}

/* ---- the CUDA array interface ---- */

/* The protocol has no way to say that a reader is done, but the reader holds this object: from here on the memory lives as long. */
PyObject *buffer_array_interface(PyObject *op, void *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    view v;
    place where;
    bool readonly;
    if (!buffer_place(self, &where)) return NULL;
    if (!where.device_accessible) {
        PyErr_SetString(PyExc_AttributeError, "__cuda_array_interface__: no device can touch this memory");
        return NULL;
    }
    if (!start_export(self, &v, &readonly)) return NULL;
    buffer_lock(self);
    self->exports--;
    self->pinned = true;
    buffer_unlock(self);
    return Py_BuildValue("{s(n)sss(KO)sisOsO}", "shape", (Py_ssize_t)v.size, "typestr", "|i1", "data",
                         (unsigned long long)v.address, readonly ? Py_True : Py_False, "version", 3, "strides", Py_None,
                         "stream", Py_None);
}

/* ---- the buffer protocol ---- */

/* What touches it would end the process. */
static bool evicted(buffer_object *self)
{
    if (!self->buffer) return false;
    call c;
    call_begin(&c);
    bool is = gvmm_buffer_evicted_bytes(self->buffer) > 0;
    call_end(&c, self->state);
    return is;
}

static bool host_memory(buffer_object *self)
{
    place where;
    if (!buffer_place(self, &where)) {
        PyErr_Clear();
        PyErr_SetString(PyExc_BufferError, "Buffer has been closed");
        return false;
    }
    bool there = where.host_accessible && !evicted(self);
    if (there) return true;
    PyErr_SetString(PyExc_BufferError, where.host_accessible ? "the memory is evicted: restore it first"
                                                             : "the memory is a device's, which the CPU cannot touch");
    return false;
}

int buffer_getbuffer(PyObject *op, Py_buffer *out, int flags)
{
    buffer_object *self = (buffer_object *)op;
    view v;
    bool readonly;
    out->obj = NULL;
    if (!host_memory(self) || !start_export(self, &v, &readonly)) return -1;
    if (readonly && (flags & PyBUF_WRITABLE)) {
        buffer_unexport(self);
        PyErr_SetString(PyExc_BufferError, "the memory is read-only");
        return -1;
    }
    out->buf = (void *)(uintptr_t)v.address;
    out->obj = Py_NewRef(op);
    out->len = (Py_ssize_t)v.size;
    out->itemsize = 1;
    out->readonly = readonly;
    out->ndim = 1;
    out->format = flags & PyBUF_FORMAT ? "B" : NULL;
    out->shape = (flags & PyBUF_ND) == PyBUF_ND ? &out->len : NULL;
    out->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &out->itemsize : NULL;
    out->suboffsets = NULL;
    out->internal = NULL;
    return 0;
}

void buffer_releasebuffer(PyObject *op, Py_buffer *unused)
{
    (void)unused;
    buffer_unexport((buffer_object *)op);
}

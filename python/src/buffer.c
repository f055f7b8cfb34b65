/* Buffer and VirtualMemoryBuffer: what they show, what they hold, what they are equal to. */
#include <stddef.h>
#include <string.h>

#include "ext.h"

void buffer_lock(buffer_object *self)
{
    while (atomic_flag_test_and_set_explicit(&self->lock, memory_order_acquire)) {}
}

void buffer_unlock(buffer_object *self) { atomic_flag_clear_explicit(&self->lock, memory_order_release); }

static buffer_object *new_buffer(module_state *state, PyTypeObject *type)
{
    buffer_object *self = (buffer_object *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->state = state;
    self->generation = fork_generation();
    atomic_flag_clear(&self->lock);
    return self;
}

/* The library's own record of the stream is set right before it is used (release.c). What counts is this pair: a stream and the object
 * that keeps it alive must not come apart when two threads set streams at once. */
PyObject *buffer_wrap(resource_object *mr, gvmm_buffer *buffer, stream_ref *recorded)
{
    buffer_object *self = new_buffer(mr->state, mr->state->vm_buffer_type);
    if (!self) {
        call c;
        call_begin(&c);
        gvmm_buffer_release(buffer);
        call_end(&c, mr->state);
        stream_ref_clear(recorded);
        return NULL;
    }
    self->buffer = buffer;
    self->mr = Py_NewRef((PyObject *)mr);
    self->recorded = *recorded;
    return (PyObject *)self;
}

view buffer_view(buffer_object *self)
{
    view v;
    if (self->buffer) {
        v.open = !gvmm_buffer_is_closed(self->buffer);
        v.address = gvmm_buffer_address(self->buffer);
        v.size = gvmm_buffer_size(self->buffer);
        return v;
    }
    buffer_lock(self);
    v = (view){!self->closing, self->address, self->size};
    buffer_unlock(self);
    return v;
}

stream_ref buffer_recorded(buffer_object *self)
{
    buffer_lock(self);
    stream_ref ref = self->recorded;
    Py_XINCREF(ref.object);
    buffer_unlock(self);
    return ref;
}

/* ---- someone else's mapping ---- */

/* Their default stream is recorded as ours would be: waited for where there is a device. */
static bool record_default(buffer_object *self)
{
    if (!self->mr) return true;
    place where;
    if (!buffer_place(self, &where)) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
        PyErr_Clear(); /* a resource that only deallocates will do */
        return true;
    }
    self->recorded.stream = where.device >= 0 ? GVMM_STREAM_LEGACY : NULL;
    return true;
}

static PyObject *buffer_from_handle(PyObject *class, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"from_handle", {"ptr", "size", "mr", "owner"}, 4, 3};
    PyObject *given[4];
    uint64_t address;
    size_t size;
    if (!take_arguments(&s, args, nargs, names, given)) return NULL;
    if (!take_address(given[0], &address) || !take_size(given[1], &size)) return NULL;
    PyObject *mr = given[2] == Py_None ? NULL : given[2], *owner = given[3] == Py_None ? NULL : given[3];
    if (mr && owner) {
        PyErr_SetString(PyExc_ValueError, "owner and mr cannot be given together");
        return NULL;
    }
    module_state *state = state_of_type((PyTypeObject *)class);
    buffer_object *self = state ? new_buffer(state, (PyTypeObject *)class) : NULL;
    if (!self) return NULL;
    self->mr = Py_XNewRef(mr);
    self->owner = Py_XNewRef(owner);
    self->address = address;
    self->size = size;
    if (!record_default(self)) {
        Py_DECREF(self);
        return NULL;
    }
    self->callback_due = mr != NULL;
    self->due_address = address;
    self->due_size = size;
    return (PyObject *)self;
}

/* ---- exports ---- */

bool buffer_export(buffer_object *self, view *out)
{
    buffer_lock(self);
    bool open = !self->closing;
    if (open) self->exports++;
    buffer_unlock(self);
    if (!open) return raise_closed() != NULL;
    *out = buffer_view(self);
    return true;
}

void buffer_unexport(buffer_object *self)
{
    buffer_lock(self);
    bool last = --self->exports == 0 && self->closed && !self->pinned;
    buffer_unlock(self);
    if (last) buffer_give_up_kept(self);
}

/* ---- construction, collection ---- */

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    PyErr_Format(PyExc_RuntimeError,
                 "%S cannot be made directly: a resource allocates it, or Buffer.from_handle wraps a mapping", type);
    return NULL;
}

/* The recorded stream is not shown to the collector, which would finalize the objects of a cycle in an order of its own: a stream in
 * the cycle could be destroyed before this buffer has waited for it, which crashes the driver. As it is, the stream outlives the buffer
 * there too. The price: a stream object that itself leads to the buffer keeps both alive until close(). */
static int buffer_traverse(PyObject *op, visitproc visit, void *arg)
{
    buffer_object *self = (buffer_object *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->owner);
    Py_VISIT(self->mr);
    return 0;
}

/* Before the collector takes a cycle apart: resource and callback are still whole. */
static void buffer_finalize(PyObject *op) { buffer_give_up((buffer_object *)op); }

static int buffer_clear(PyObject *op)
{
    buffer_object *self = (buffer_object *)op;
    buffer_give_up(self);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->mr);
    stream_ref_clear(&self->recorded);
    return 0;
}

static void buffer_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (((buffer_object *)op)->weakrefs) PyObject_ClearWeakRefs(op);
    buffer_clear(op);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

/* ---- attributes ---- */

static PyObject *get_handle(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(buffer_view((buffer_object *)op).address);
}

static PyObject *get_size(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(buffer_view((buffer_object *)op).size);
}

static PyObject *get_is_closed(PyObject *op, void *unused)
{
    (void)unused;
    return PyBool_FromLong(!buffer_view((buffer_object *)op).open);
}

static PyObject *get_memory_resource(PyObject *op, void *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    return Py_NewRef(buffer_view(self).open && self->mr ? self->mr : Py_None);
}

static PyObject *get_owner(PyObject *op, void *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    return Py_NewRef(buffer_view(self).open && self->owner ? self->owner : Py_None);
}

/* Of a mapping that nobody answers for, the driver knows. */
static bool ask_driver(buffer_object *self, uint64_t address, place *out)
{
    const gvmm_driver *driver;
    int type = 0, ordinal = -1;
    unsigned managed = 0;
    gvmm_result r = call_driver(self->state, &driver);
    if (r) return raise_result(self->state, r) != NULL;
    call c;
    call_begin(&c);
    CUresult status = driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    bool known = status == CUDA_SUCCESS; /* else it is the process's own memory */
    if (known) (void)driver->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    bool on_device = known && type == CU_MEMORYTYPE_DEVICE;
    if (on_device) status = driver->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    call_end(&c, self->state);
    if (on_device && status != CUDA_SUCCESS) return raise_status(self->state, status, "cuPointerGetAttribute") != NULL;
    *out = (place){on_device ? ordinal : -1, known, !on_device || managed, managed};
    return true;
}

/* One attribute of a resource that may be anyone's. */
static bool ask_attribute(PyObject *mr, const char *name, long *out)
{
    PyObject *value = PyObject_GetAttrString(mr, name);
    if (!value) return false;
    *out = PyLong_Check(value) ? PyLong_AsLong(value) : PyObject_IsTrue(value);
    Py_DECREF(value);
    return !PyErr_Occurred();
}

static bool ask_resource(PyObject *mr, place *out)
{
    long device, on_device, on_host, managed = 0;
    if (!ask_attribute(mr, "device_id", &device) || !ask_attribute(mr, "is_device_accessible", &on_device) ||
        !ask_attribute(mr, "is_host_accessible", &on_host))
        return false;
    if (!ask_attribute(mr, "is_managed", &managed)) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
        PyErr_Clear();
    }
    *out = (place){(int)device, on_device, on_host, managed};
    return true;
}

bool buffer_place(buffer_object *self, place *out)
{
    view v = buffer_view(self);
    if (!v.open) return raise_closed() != NULL;
    if (self->buffer) {
        const gvmm_resource *resource = gvmm_buffer_resource(self->buffer);
        *out = (place){gvmm_resource_device(resource), gvmm_resource_is_device_accessible(resource),
                       gvmm_resource_is_host_accessible(resource), false};
        return true;
    }
    return self->mr ? ask_resource(self->mr, out) : ask_driver(self, v.address, out);
}

static PyObject *get_place(PyObject *op, void *which)
{
    place where;
    if (!buffer_place((buffer_object *)op, &where)) return NULL;
    switch ((intptr_t)which) {
    case 0: return PyLong_FromLong(where.device);
    case 1: return PyBool_FromLong(where.device_accessible);
    case 2: return PyBool_FromLong(where.host_accessible);
    default: return PyBool_FromLong(where.managed);
    }
}

/* ---- equality, text ---- */

static PyObject *buffer_compare(PyObject *a, PyObject *b, int op)
{
    buffer_object *self = (buffer_object *)a;
    if ((op != Py_EQ && op != Py_NE) || !self->state->buffer_type || !PyObject_TypeCheck(b, self->state->buffer_type))
        return Py_NewRef(Py_NotImplemented);
    view one = buffer_view(self), other = buffer_view((buffer_object *)b);
    bool equal = one.address == other.address && one.size == other.size;
    return PyBool_FromLong(equal == (op == Py_EQ));
}

static Py_hash_t buffer_hash(PyObject *op)
{
    view v = buffer_view((buffer_object *)op);
    uint64_t mixed = (v.address ^ (v.address >> 21)) * 0x9e3779b97f4a7c15u + v.size / 4096;
    Py_hash_t hash = (Py_hash_t)(mixed >> 1);
    return hash == -1 ? -2 : hash;
}

static PyObject *buffer_repr(PyObject *op)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    buffer_object *self = (buffer_object *)op;
    const char *name = PyObject_TypeCheck(op, self->state->vm_buffer_type) ? "VirtualMemoryBuffer" : "Buffer";
    view v = buffer_view(self);
    if (!v.open) return PyUnicode_FromFormat("<%s, closed>", name);
    size_t amount = v.size, unit = 0;
    while (unit < 3 && amount && amount % 1024 == 0) {
        amount /= 1024;
        unit++;
    }
    const char *kind = self->buffer ? "" : ", wrapped";
    if (!self->buffer)
        return PyUnicode_FromFormat("<%s %p, %zu %s%s>", name, (void *)(uintptr_t)v.address, amount, units[unit], kind);
    int device = gvmm_resource_device(gvmm_buffer_resource(self->buffer));
    if (device < 0)
        return PyUnicode_FromFormat("<%s %p, %zu %s on the host>", name, (void *)(uintptr_t)v.address, amount,
                                    units[unit]);
    return PyUnicode_FromFormat("<%s %p, %zu %s on device %d>", name, (void *)(uintptr_t)v.address, amount, units[unit],
                                device);
}

/* ---- methods ---- */

static PyObject *buffer_set_stream(PyObject *op, PyObject *stream)
{
    buffer_object *self = (buffer_object *)op;
    stream_ref new, old;
    place where = {.device = 0};
    if (!buffer_view(self).open) return raise_closed();
    if (!take_stream(self->state, stream, false, &new)) return NULL;
    if (self->buffer && !buffer_place(self, &where)) {
        stream_ref_clear(&new);
        return NULL;
    }
    stream_ref_record(&new, where.device >= 0);
    buffer_lock(self);
    old = self->recorded;
    self->recorded = new;
    buffer_unlock(self);
    stream_ref_clear(&old);
    Py_RETURN_NONE;
}

/* (address, size, memory, device) of each physical piece. */
static PyObject *buffer_segments(PyObject *op, PyObject *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    if (!self->buffer) return PyErr_Format(PyExc_TypeError, "buffer is a wrapped mapping, whose pieces are not known");
    size_t count = 0, capacity = 0;
    gvmm_segment *list = NULL;
    gvmm_result r = gvmm_buffer_segments(self->buffer, NULL, 0, &capacity);
    if (!r && !(list = PyMem_Calloc(capacity + 1, sizeof *list))) return PyErr_NoMemory();
    if (!r) r = gvmm_buffer_segments(self->buffer, list, capacity, &count);
    PyObject *out = r ? raise_result(self->state, r) : PyList_New(0);
    for (size_t i = 0; out && i < count; i++) {
        PyObject *piece = Py_BuildValue("KnKi", (unsigned long long)list[i].address, (Py_ssize_t)list[i].size,
                                        (unsigned long long)list[i].memory, list[i].device);
        if (!piece || PyList_Append(out, piece) < 0) Py_CLEAR(out);
        Py_XDECREF(piece);
    }
    PyMem_Free(list);
    return out;
}

static PyObject *buffer_enter(PyObject *op, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(op);
}

static PyGetSetDef attributes[] = {
    {"handle", get_handle, NULL, "Address as an int; 0 when empty or closed.", NULL},
    {"size", get_size, NULL, "Bytes, rounded up; 0 when empty or closed.", NULL},
    {"is_closed", get_is_closed, NULL, "Has it been closed?", NULL},
    {"memory_resource", get_memory_resource, NULL, "The resource; None when closed.", NULL},
    {"owner", get_owner, NULL, "What from_handle was told to keep alive; else None.", NULL},
    {"device_id", get_place, NULL, "Ordinal of the device, -1 for host memory. RuntimeError when closed.", (void *)0},
    {"is_device_accessible", get_place, NULL, "Can a device touch it? RuntimeError when closed.", (void *)1},
    {"is_host_accessible", get_place, NULL, "Can the CPU touch it? RuntimeError when closed.", (void *)2},
    {"is_managed", get_place, NULL, "Is it managed memory? RuntimeError when closed.", (void *)3},
    {"__cuda_array_interface__", buffer_array_interface, NULL,
     "Version 3 of the CUDA array interface: 1-D, int8. Only for memory that a device can touch. Its reader holds this object; after it\n"
     "has been read, close() leaves the memory mapped until the object itself is gone.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(buffer_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"from_handle", (PyCFunction)(void (*)(void))buffer_from_handle, METH_FASTCALL | METH_KEYWORDS | METH_CLASS,
     "from_handle($type, /, ptr, size, mr=None, owner=None)\n--\n\n"
     "Makes a buffer of a mapping that gvmm did not make. It cannot grow.\n\n"
     "mr\n    Closing calls mr.deallocate(ptr, size, stream=...). An exception there becomes a CUDAWarning.\n"
     "owner\n    Kept alive until the buffer is closed; nothing is freed.\n\n"
     "Raises ValueError if both are given.\n\n"
     ">>> with Buffer.from_handle(tensor.data_ptr(), tensor.nbytes, owner=tensor) as buffer: ..."},
    {"close", FAST(buffer_close),
     "close($self, /, stream=None, *, wait=True)\n--\n\n"
     "Waits for the stream's work, then gives up the buffer's share of its memory. Closing again does nothing. What other\n"
     "buffers, graphs or exports still hold stays where it is.\n\n"
     "stream\n    Waited for and recorded in place of the recorded one.\n"
     "wait\n    False: returns at once, and the memory goes back when the work that is queued now is done (drain() waits for that), or is\n"
     "    kept for reuse. While the stream captures, the graph holds the memory. A wrapped mapping goes to its resource at once all the same.\n\n"
     "Raises RuntimeError while the stream is capturing, if it is to be waited for: the buffer stays open. Anything that goes wrong\n"
     "later is a CUDAWarning.\n\n"
     ">>> buffer.close(stream)"},
    {"set_deallocation_stream", buffer_set_stream, METH_O,
     "set_deallocation_stream($self, stream, /)\n--\n\n"
     "Replaces the recorded stream, whose work is waited for before the memory is given up. The object is kept alive.\n\n"
     "Raises TypeError for None, RuntimeError when the buffer or the stream has been closed. After a failure nothing has changed.\n\n"
     ">>> buffer.set_deallocation_stream(torch.cuda.current_stream())"},
    {"copy_to", FAST(buffer_copy_to),
     "copy_to($self, /, dst=None, *, stream)\n--\n\n"
     "Queues a copy of all bytes to `dst` and returns it. None: to a new buffer of the same resource. While `stream` captures, the\n"
     "graph holds both buffers' memory.\n\n"
     "Raises ValueError if the sizes differ, RuntimeError for a closed buffer, CUDAError.\n\n"
     ">>> other = buffer.copy_to(stream=stream)"},
    {"copy_from", FAST(buffer_copy_from),
     "copy_from($self, /, src, *, stream)\n--\n\n"
     "Queues a copy of all bytes of `src` into this buffer. Otherwise as copy_to().\n\n"
     ">>> buffer.copy_from(other, stream=stream)"},
    {"fill", FAST(buffer_fill),
     "fill($self, /, value, *, stream)\n--\n\n"
     "Queues a fill with a byte (0 to 255), or with the 1, 2 or 4 bytes of a bytes-like object, whose length must divide the size.\n\n"
     "Raises OverflowError, ValueError, TypeError for the value, RuntimeError for a closed buffer, CUDAError.\n\n"
     ">>> buffer.fill(0, stream=stream); buffer.fill(b\"\\xde\\xad\", stream=stream)"},
    {"retain_in_graph", buffer_retain_in_graph, METH_O,
     "retain_in_graph($self, graph, /)\n--\n\n"
     "Makes a graph (an int, or an object with a handle) hold the memory that the buffer has now, until the graph, its executables and\n"
     "their launches in flight are gone, whatever becomes of the buffers. drain() waits for what graphs have given up.\n\n"
     "Raises RuntimeError for a closed buffer, ValueError for a wrapped one, CUDAError.\n\n"
     ">>> buffer.retain_in_graph(graph); buffer.close()"},
    {"retain_in_capture", buffer_retain_in_capture, METH_O,
     "retain_in_capture($self, stream, /)\n--\n\n"
     "The same for the graph that `stream` is capturing into. Raises also ValueError if it is not capturing.\n\n"
     ">>> buffer.retain_in_capture(stream)"},
    {"segments", buffer_segments, METH_NOARGS,
     "segments($self, /)\n--\n\n"
     "The physical pieces in address order, as (address, bytes, memory, device): for libraries that register memory piece by piece.\n"
     "`memory` is the same in two pieces if and only if they show the same memory.\n\n"
     "Raises RuntimeError for a closed buffer, TypeError for a wrapped one.\n\n"
     ">>> sum(size for _, size, _, _ in buffer.segments()) == buffer.size\nTrue"},
    {"__dlpack__", FAST(buffer_dlpack),
     "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A DLPack capsule: 1-D, int8, of `size`. It holds the memory until its consumer lets go, also after close(). `stream` has no\n"
     "effect: order with work on other streams is the caller's.\n\n"
     "Raises BufferError for what cannot be done, RuntimeError for a closed buffer.\n\n"
     ">>> torch.from_dlpack(buffer)"},
    {"__dlpack_device__", buffer_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\nDLPack's device type and ordinal: (2, n) a device, (1, 0) the host, (3, 0) host memory open to devices."},
    {"__enter__", buffer_enter, METH_NOARGS, "__enter__($self, /)\n--\n\nThe buffer itself."},
    {"__exit__", (PyCFunction)(void (*)(void))buffer_exit, METH_FASTCALL,
     "__exit__($self, /, *exception)\n--\n\nCloses. Swallows nothing, and does not replace an exception of the block."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, buffer_new},
    {Py_tp_traverse, buffer_traverse},
    {Py_tp_clear, buffer_clear},
    {Py_tp_finalize, buffer_finalize},
    {Py_tp_dealloc, buffer_dealloc},
    {Py_tp_repr, buffer_repr},
    {Py_tp_hash, buffer_hash},
    {Py_tp_richcompare, buffer_compare},
    {Py_tp_getset, attributes},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_bf_getbuffer, buffer_getbuffer},
    {Py_bf_releasebuffer, buffer_releasebuffer},
    {Py_tp_doc,
     "A contiguous range of addresses. Not made directly: a resource allocates it, or from_handle() wraps a mapping.\n\n"
     "Equality and hash are those of (address, size), so two buffers of the same memory are equal, and the hash\n"
     "changes at close(). Host memory is also a bytes-like object (memoryview, numpy.frombuffer)."},
    {0, NULL},
};

PyType_Spec buffer_spec = {"gvmm.Buffer", sizeof(buffer_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

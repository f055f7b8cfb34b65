/* Copies, fills, and graphs that hold memory. */
#include <string.h>

#include "ext.h"

/* One queued operation. Everything in it is plain, as it runs without the interpreter lock. */
typedef struct work {
    module_state *state;
    const gvmm_driver *driver;
    gvmm_stream stream;
    int device;              /* whose default stream is meant */
    gvmm_buffer *uses[2];    /* what a capture is to hold, or NULL */
    uint64_t dst, src;       /* src 0: a fill */
    size_t size;             /* bytes */
    unsigned width, pattern; /* of a fill, in bytes */
    const char *call;        /* the driver call that failed */
} work;

#define TRY(w, name, ...) ((w)->call = #name, (w)->driver->name(__VA_ARGS__))

static CUresult queue(work *w)
{
    if (w->src) return TRY(w, cuMemcpyAsync, w->dst, w->src, w->size, w->stream);
    switch (w->width) {
    case 1: return TRY(w, cuMemsetD8Async, w->dst, (unsigned char)w->pattern, w->size, w->stream);
    case 2: return TRY(w, cuMemsetD16Async, w->dst, (unsigned short)w->pattern, w->size / 2, w->stream);
    default: return TRY(w, cuMemsetD32Async, w->dst, w->pattern, w->size / 4, w->stream);
    }
}

static CUresult queue_in(work *w, CUcontext context)
{
    CUresult status = TRY(w, cuCtxPushCurrent, context);
    if (status != CUDA_SUCCESS) return status;
    status = queue(w);
    (void)w->driver->cuCtxPopCurrent(&context);
    return status;
}

/* A default stream is that of the buffer's device. A real stream knows its context, if none is current. */
static CUresult queue_anywhere(work *w)
{
    CUcontext context = NULL;
    CUdevice device;
    CUresult status;
    if ((uintptr_t)w->stream > 2) {
        status = TRY(w, cuCtxGetCurrent, &context);
        if (status != CUDA_SUCCESS || context) return context ? queue(w) : status;
        status = TRY(w, cuStreamGetCtx, w->stream, &context);
        return status == CUDA_SUCCESS ? queue_in(w, context) : status;
    }
    status = TRY(w, cuDeviceGet, &device, w->device);
    if (status == CUDA_SUCCESS) status = TRY(w, cuDevicePrimaryCtxRetain, &context, device);
    if (status != CUDA_SUCCESS) return status;
    status = queue_in(w, context);
    (void)w->driver->cuDevicePrimaryCtxRelease(device);
    return status;
}

/* Captured work uses the memory at every launch, so the graph holds it. */
static gvmm_result hold_in_capture(work *w)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if ((uintptr_t)w->stream <= 2 || w->driver->cuStreamIsCapturing(w->stream, &capture) != CUDA_SUCCESS)
        return GVMM_OK;
    gvmm_result r = GVMM_OK;
    for (int i = 0; i < 2 && !r && capture == CU_STREAM_CAPTURE_STATUS_ACTIVE; i++)
        if (w->uses[i]) r = gvmm_buffer_retain_in_capture(w->uses[i], w->stream);
    return r;
}

static bool run(work *w)
{
    if (w->size == 0) return true;
    CUresult status = CUDA_SUCCESS;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_driver_get(&w->driver);
    if (!r) r = hold_in_capture(w);
    if (!r) status = queue_anywhere(w);
    call_end(&c, w->state);
    if (r) return raise_result(w->state, r) != NULL;
    if (status != CUDA_SUCCESS) return raise_status(w->state, status, w->call) != NULL;
    return true;
}

/* ---- what is copied ---- */

/* Ours, or anyone's with a handle and a size. */
static bool take_buffer(module_state *state, PyObject *object, view *out, gvmm_buffer **uses)
{
    *uses = NULL;
    if (PyObject_TypeCheck(object, state->buffer_type)) {
        *uses = ((buffer_object *)object)->buffer;
        *out = buffer_view((buffer_object *)object);
        return out->open || raise_closed();
    }
    PyObject *handle = PyObject_GetAttrString(object, "handle"),
             *size = handle ? PyObject_GetAttrString(object, "size") : NULL;
    bool taken = size && take_address(handle, &out->address) && take_size(size, &out->size);
    if (!size && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Format(PyExc_TypeError, "a Buffer is needed, not %R", (PyObject *)Py_TYPE(object));
    Py_XDECREF(handle);
    Py_XDECREF(size);
    out->open = true;
    return taken;
}

static int device_of(buffer_object *self)
{
    if (self->mr && PyObject_TypeCheck(self->mr, self->state->resource_type))
        return ((resource_object *)self->mr)->ordinal;
    place where;
    if (buffer_place(self, &where) && where.device >= 0) return where.device;
    PyErr_Clear();
    return 0;
}

static bool copy(buffer_object *self, PyObject *dst, PyObject *src, PyObject *stream)
{
    stream_ref on;
    view to, from;
    work w = {.state = self->state, .device = device_of(self)};
    if (!take_buffer(self->state, dst, &to, &w.uses[0]) || !take_buffer(self->state, src, &from, &w.uses[1]))
        return false;
    if (to.size != from.size) {
        PyErr_Format(PyExc_ValueError, "buffer sizes mismatch: %zu and %zu bytes", from.size, to.size);
        return false;
    }
    if (!take_stream(self->state, stream, false, &on)) return false;
    w.stream = on.stream;
    w.dst = to.address;
    w.src = from.address;
    w.size = to.size;
    bool done = run(&w);
    stream_ref_clear(&on);
    return done;
}

static PyObject *allocate_like(buffer_object *self, PyObject *stream)
{
    view v = buffer_view(self);
    if (!v.open) return raise_closed();
    if (!self->mr)
        return PyErr_Format(PyExc_ValueError, "dst must be given: the buffer has no resource to allocate from");
    PyObject *allocate = PyObject_GetAttrString(self->mr, "allocate");
    PyObject *args = Py_BuildValue("(n)", (Py_ssize_t)v.size), *names = Py_BuildValue("{sO}", "stream", stream);
    PyObject *made = allocate && args && names ? PyObject_Call(allocate, args, names) : NULL;
    Py_XDECREF(allocate);
    Py_XDECREF(args);
    Py_XDECREF(names);
    return made;
}

PyObject *buffer_copy_to(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"copy_to", {"dst", "stream"}, 1, 2};
    buffer_object *self = (buffer_object *)op;
    PyObject *given[2];
    if (!take_arguments(&s, args, nargs, names, given)) return NULL;
    bool make = !given[0] || given[0] == Py_None;
    PyObject *dst = make ? allocate_like(self, given[1]) : Py_NewRef(given[0]);
    if (dst && !copy(self, dst, op, given[1])) Py_CLEAR(dst);
    return dst;
}

PyObject *buffer_copy_from(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"copy_from", {"src", "stream"}, 1, 3};
    PyObject *given[2];
    if (!take_arguments(&s, args, nargs, names, given)) return NULL;
    if (!copy((buffer_object *)op, op, given[0], given[1])) return NULL;
    Py_RETURN_NONE;
}

/* ---- fill ---- */

static bool take_byte(PyObject *value, work *w)
{
    long byte = PyLong_AsLong(value);
    if (byte == -1 && PyErr_Occurred()) return false;
    if (byte < 0 || byte > 255) {
        PyErr_Format(PyExc_OverflowError, "value must be from 0 to 255, not %ld", byte);
        return false;
    }
    w->width = 1;
    w->pattern = (unsigned)byte;
    return true;
}

/* The bytes of anything bytes-like. The buffer protocol's own functions are not in the stable ABI of 3.10; a memoryview is. */
static PyObject *bytes_of(PyObject *value)
{
    PyObject *view = PyMemoryView_FromObject(value);
    PyObject *bytes = view ? PyObject_CallMethod(view, "tobytes", NULL) : NULL;
    Py_XDECREF(view);
    if (!view && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "value must be an int or bytes-like, not %R", (PyObject *)Py_TYPE(value));
    return bytes;
}

static bool take_pattern(PyObject *value, work *w)
{
    if (PyLong_Check(value)) return take_byte(value, w);
    PyObject *bytes = bytes_of(value);
    if (!bytes) return false;
    char *data;
    Py_ssize_t length;
    bool good = PyBytes_AsStringAndSize(bytes, &data, &length) == 0;
    if (good && length != 1 && length != 2 && length != 4) {
        PyErr_Format(PyExc_ValueError, "value must have 1, 2 or 4 bytes, not %zd", length);
        good = false;
    } else if (good && w->size % (size_t)length) {
        PyErr_Format(PyExc_ValueError, "buffer size %zu is not divisible by the %zd bytes of value", w->size, length);
        good = false;
    }
    unsigned short two = 0;
    if (good && length == 1) w->pattern = (unsigned char)data[0];
    if (good && length == 2) w->pattern = (memcpy(&two, data, 2), two);
    if (good && length == 4) memcpy(&w->pattern, data, 4);
    w->width = good ? (unsigned)length : 0;
    Py_DECREF(bytes);
    return good;
}

PyObject *buffer_fill(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"fill", {"value", "stream"}, 1, 3};
    buffer_object *self = (buffer_object *)op;
    PyObject *given[2];
    stream_ref on;
    view v;
    work w = {.state = self->state, .device = device_of(self)};
    if (!take_arguments(&s, args, nargs, names, given) || !take_buffer(self->state, op, &v, &w.uses[0])) return NULL;
    w.dst = v.address;
    w.size = v.size;
    if (!take_pattern(given[0], &w) || !take_stream(self->state, given[1], false, &on)) return NULL;
    w.stream = on.stream;
    bool done = run(&w);
    stream_ref_clear(&on);
    return done ? Py_NewRef(Py_None) : NULL;
}

/* ---- graphs ---- */

static PyObject *retained(buffer_object *self, gvmm_result r)
{
    return r ? raise_result(self->state, r) : Py_NewRef(Py_None);
}

static bool may_retain(buffer_object *self)
{
    if (!buffer_view(self).open) return raise_closed() != NULL;
    if (self->buffer) return true;
    PyErr_SetString(PyExc_ValueError, "buffer is a wrapped mapping, which is not gvmm's to hold");
    return false;
}

PyObject *buffer_retain_in_graph(PyObject *op, PyObject *graph)
{
    buffer_object *self = (buffer_object *)op;
    if (!may_retain(self)) return NULL;
    PyObject *handle = PyLong_Check(graph) ? Py_NewRef(graph) : PyObject_GetAttrString(graph, "handle");
    uint64_t address = 0;
    bool taken = handle && take_address(handle, &address);
    Py_XDECREF(handle);
    if (!taken) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Format(PyExc_TypeError, "graph must be an int or an object with a handle, not %R",
                         (PyObject *)Py_TYPE(graph));
        return NULL;
    }
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_retain_in_graph(self->buffer, (gvmm_graph)(uintptr_t)address);
    call_end(&c, self->state);
    return retained(self, r);
}

PyObject *buffer_retain_in_capture(PyObject *op, PyObject *stream)
{
    buffer_object *self = (buffer_object *)op;
    stream_ref on;
    if (!may_retain(self) || !take_stream(self->state, stream, false, &on)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_retain_in_capture(self->buffer, on.stream);
    call_end(&c, self->state);
    stream_ref_clear(&on);
    return retained(self, r);
}

/* Buffers between processes: over a socket, and the two halves that multiprocessing carries over (gvmm/_share.py). */
#include <string.h>

#include "ext.h"

/* ---- arguments ---- */

/* A descriptor, or what has one. */
static bool take_socket(PyObject *object, int *out)
{
    *out = PyObject_AsFileDescriptor(object);
    return *out >= 0;
}

/* Seconds as an int or float; None: for ever. */
static bool take_timeout(PyObject *object, gvmm_share_options *out)
{
    if (!object) return true;
    out->timeout_ms = -1;
    if (object == Py_None) return true;
    double seconds = PyFloat_AsDouble(object);
    if (seconds == -1 && PyErr_Occurred()) return false;
    if (!(seconds >= 0)) {
        PyErr_Format(PyExc_ValueError, "timeout must be None or not negative, not %R", object);
        return false;
    }
    if (seconds < 2e6) out->timeout_ms = (int)(seconds * 1e3); /* longer than three weeks is for ever */
    return true;
}

static bool take_have(resource_object *self, PyObject *object, gvmm_buffer **out)
{
    *out = NULL;
    if (!object || object == Py_None) return true;
    if (!PyObject_TypeCheck(object, self->state->vm_buffer_type)) {
        PyErr_Format(PyExc_TypeError, "have must be a VirtualMemoryBuffer or None, not %R",
                     (PyObject *)Py_TYPE(object));
        return false;
    }
    *out = ((buffer_object *)object)->buffer;
    return buffer_is_own((buffer_object *)object);
}

/* ---- over a socket ---- */

PyObject *buffer_send(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"send", {"socket", "timeout"}, 1, 1};
    buffer_object *self = (buffer_object *)op;
    PyObject *given[2];
    int socket;
    gvmm_share_options options = GVMM_SHARE_OPTIONS_INIT;
    if (!take_arguments(&s, args, nargs, names, given) || !buffer_is_own(self)) return NULL;
    if (!take_socket(given[0], &socket) || !take_timeout(given[1], &options)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_send(self->buffer, socket, &options);
    call_end(&c, self->state);
    return r ? raise_result(self->state, r) : Py_NewRef(Py_None);
}

PyObject *resource_receive(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"receive", {"socket", "have", "stream", "timeout"}, 1, 1};
    resource_object *self = (resource_object *)op;
    PyObject *given[4];
    int socket;
    gvmm_share_options options = GVMM_SHARE_OPTIONS_INIT;
    stream_ref recorded;
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self)) return NULL;
    if (!take_socket(given[0], &socket) || !take_timeout(given[3], &options)) return NULL;
    if (!take_have(self, given[1], &options.have) || !take_stream(self->state, given[2], true, &recorded)) return NULL;
    stream_ref_record(&recorded, self->on_device);
    gvmm_buffer *buffer = NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_receive(&buffer, self->resource, socket, recorded.stream, &options);
    call_end(&c, self->state);
    if (!r) return buffer_wrap(self, buffer, &recorded);
    stream_ref_clear(&recorded);
    return raise_result(self->state, r);
}

/* ---- exports ---- */

/* In a capsule, with the buffer whose type keeps the module. */
typedef struct held_export {
    gvmm_export *exported;
    unsigned generation;
    buffer_object *buffer;
} held_export;

static void drop_export(held_export *held)
{
    module_state *state = held->buffer->state;
    if (held->generation == fork_generation() && !is_exiting(state)) {
        call c;
        call_begin(&c);
        gvmm_export_release(held->exported);
        call_end(&c, state);
    }
    Py_DECREF((PyObject *)held->buffer);
    PyMem_Free(held);
}

static void end_capsule(PyObject *capsule)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    drop_export(PyCapsule_GetPointer(capsule, "gvmm.export"));
    PyErr_Restore(type, value, traceback);
}

static PyObject *descriptors(const gvmm_shared *shared)
{
    PyObject *list = PyTuple_New((Py_ssize_t)shared->fd_count);
    for (size_t i = 0; list && i < shared->fd_count; i++) {
        PyObject *fd = PyLong_FromLong(shared->fds[i]);
        if (!fd || PyTuple_SetItem(list, (Py_ssize_t)i, fd) < 0) Py_CLEAR(list);
    }
    return list;
}

/* (bytes, descriptors, what keeps these open) */
PyObject *buffer_export_all(PyObject *op, PyObject *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    if (!buffer_is_own(self)) return NULL;
    held_export *held = PyMem_Calloc(1, sizeof *held);
    if (!held) return PyErr_NoMemory();
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_export(&held->exported, self->buffer, 0);
    call_end(&c, self->state);
    if (r) {
        PyMem_Free(held);
        return raise_result(self->state, r);
    }
    held->generation = fork_generation();
    held->buffer = (buffer_object *)Py_NewRef(op);
    PyObject *capsule = PyCapsule_New(held, "gvmm.export", end_capsule);
    if (!capsule) {
        drop_export(held);
        return NULL;
    }
    gvmm_shared shared;
    gvmm_export_contents(held->exported, &shared);
    PyObject *fds = descriptors(&shared);
    PyObject *all = fds ? Py_BuildValue("(y#OO)", (const char *)shared.bytes, (Py_ssize_t)shared.size, fds, capsule)
                        : NULL;
    Py_XDECREF(fds);
    Py_DECREF(capsule);
    return all;
}

/* ---- imports ---- */

/* Those of a sequence; the caller frees them. */
static int *take_descriptors(PyObject *sequence, size_t *count)
{
    PyObject *held = PySequence_Tuple(sequence);
    Py_ssize_t size = held ? PyTuple_Size(held) : -1;
    int *fds = size >= 0 ? PyMem_Calloc((size_t)size + 1, sizeof *fds) : NULL;
    if (size >= 0 && !fds) PyErr_NoMemory();
    for (Py_ssize_t i = 0; fds && i < size; i++) {
        long fd = PyLong_AsLong(PyTuple_GetItem(held, i));
        fds[i] = fd < INT32_MIN || fd > INT32_MAX ? -1 : (int)fd;
        if (fd == -1 && PyErr_Occurred()) {
            PyMem_Free(fds);
            fds = NULL;
        }
    }
    Py_XDECREF(held);
    *count = size > 0 ? (size_t)size : 0;
    return fds;
}

/* (bytes, descriptors): the descriptors stay the caller's. */
PyObject *resource_import(PyObject *op, PyObject *args)
{
    resource_object *self = (resource_object *)op;
    const char *bytes;
    Py_ssize_t size;
    PyObject *sequence;
    stream_ref recorded = {NULL, NULL};
    if (!PyArg_ParseTuple(args, "y#O:_import", &bytes, &size, &sequence) || !resource_ready(self)) return NULL;
    gvmm_shared shared = {.bytes = bytes, .size = (size_t)size};
    int *fds = take_descriptors(sequence, &shared.fd_count);
    if (!fds) return NULL;
    shared.fds = fds;
    stream_ref_record(&recorded, self->on_device);
    gvmm_buffer *buffer = NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_import(&buffer, self->resource, &shared, NULL, recorded.stream);
    call_end(&c, self->state);
    PyMem_Free(fds);
    return r ? raise_result(self->state, r) : buffer_wrap(self, buffer, &recorded);
}

/* ---- names ---- */

/* (origin, serial, generation) of each chunk. */
PyObject *buffer_identities(PyObject *op, PyObject *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    size_t count = 0, capacity = 0;
    call c;
    if (!buffer_is_own(self)) return NULL;
    gvmm_result r = gvmm_buffer_identities(self->buffer, NULL, 0, &capacity);
    if (r) return raise_result(self->state, r);
    gvmm_identity *list = PyMem_Calloc(capacity + 1, sizeof *list);
    if (!list) return PyErr_NoMemory();
    call_begin(&c); /* the memory may be on its way out on another thread */
    r = gvmm_buffer_identities(self->buffer, list, capacity, &count);
    call_end(&c, self->state);
    PyObject *all = r ? raise_result(self->state, r) : PyList_New(0);
    for (size_t i = 0; all && i < count && i < capacity; i++) {
        PyObject *one = Py_BuildValue("(y#KI)", (const char *)list[i].origin, (Py_ssize_t)sizeof list[i].origin,
                                      (unsigned long long)list[i].serial, (unsigned)list[i].generation);
        if (!one || PyList_Append(all, one) < 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    PyMem_Free(list);
    return all;
}

PyObject *buffer_refuse_pickle(PyObject *op, PyObject *unused)
{
    (void)unused;
    PyErr_Format(
        PyExc_TypeError,
        "a %S cannot be pickled or copied as bytes: its memory goes to other processes by descriptors. Pass it through "
        "multiprocessing (spawn or forkserver), or send() it over a Unix socket",
        (PyObject *)Py_TYPE(op));
    return NULL;
}

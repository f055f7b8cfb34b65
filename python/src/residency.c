/* Evict and restore, and who is told of it.
 *
 * The library tells on the thread that evicts or restores, inside the call: so that is always a thread of this file's, whose objects are
 * known (`current`), with the resource and the buffer held by the caller. */
#include <limits.h>

#include "ext.h"

/* The call in progress on this thread. */
typedef struct turn {
    PyObject *buffer; /* borrowed; NULL: the resource's call */
} turn;
static _Thread_local turn *current;

/* The handler must not evict or restore: it would wait for itself. */
static bool may_turn(void)
{
    if (!current) return true;
    PyErr_SetString(PyExc_RuntimeError, "on_residency must not evict or restore");
    return false;
}

/* ---- who is told ---- */

static PyObject *handler_of(resource_object *self)
{
    while (atomic_flag_test_and_set_explicit(&self->lock, memory_order_acquire)) {}
    PyObject *handler = Py_XNewRef(self->on_residency);
    atomic_flag_clear_explicit(&self->lock, memory_order_release);
    return handler;
}

static void set_handler(resource_object *self, PyObject *handler)
{
    Py_XINCREF(handler);
    while (atomic_flag_test_and_set_explicit(&self->lock, memory_order_acquire)) {}
    PyObject *old = self->on_residency;
    self->on_residency = handler;
    atomic_flag_clear_explicit(&self->lock, memory_order_release);
    Py_XDECREF(old);
}

static void tell(resource_object *self, const gvmm_residency_event *event)
{
    static const char *const names[] = {"before_evict",   "after_evict",   "evict_failed",
                                        "before_restore", "after_restore", "restore_failed"};
    PyObject *handler = handler_of(self);
    if (!handler) return;
    PyObject *buffer = event->buffer && current->buffer ? current->buffer : Py_None;
    PyObject *tag = event->tag == GVMM_TAG_ANY ? Py_NewRef(Py_None) : PyLong_FromLong(event->tag);
    PyObject *what = PyUnicode_FromString(names[event->what]), *bytes = PyLong_FromSize_t(event->bytes);
    PyObject *told = tag && what && bytes && self->state->residency_event
                         ? PyObject_CallFunctionObjArgs(self->state->residency_event, what, buffer, tag, bytes, NULL)
                         : NULL;
    PyObject *result = told ? PyObject_CallFunctionObjArgs(handler, told, NULL) : NULL;
    if (!result && PyErr_Occurred()) PyErr_WriteUnraisable(handler);
    Py_XDECREF(result);
    Py_XDECREF(told);
    Py_XDECREF(bytes);
    Py_XDECREF(what);
    Py_XDECREF(tag);
    Py_DECREF(handler);
}

static void on_residency(void *user, const gvmm_residency_event *event)
{
    if (!current) return;
    call_interrupt();
    tell(user, event);
    call_resume();
}

void resource_watch(resource_object *self) { gvmm_resource_set_residency_handler(self->resource, on_residency, self); }

PyObject *resource_get_on_residency(PyObject *op, void *unused)
{
    (void)unused;
    PyObject *handler = handler_of((resource_object *)op);
    return handler ? handler : Py_NewRef(Py_None);
}

int resource_set_on_residency(PyObject *op, PyObject *value, void *unused)
{
    (void)unused;
    if (value && value != Py_None && !PyCallable_Check(value)) {
        PyErr_Format(PyExc_TypeError, "on_residency must be callable or None, not %R", (PyObject *)Py_TYPE(value));
        return -1;
    }
    set_handler((resource_object *)op, value == Py_None ? NULL : value);
    return 0;
}

/* ---- arguments ---- */

/* What an evict was asked for, and what that refers to. */
typedef struct request {
    gvmm_evict_options options;
    PyObject *directory; /* owned, or NULL */
    stream_ref stream;
} request;

static void request_clear(request *q)
{
    Py_CLEAR(q->directory);
    stream_ref_clear(&q->stream);
}

/* Each may be NULL: not given. */
static bool take_request(module_state *state, PyObject *contents, PyObject *stream, PyObject *directory, bool on_device,
                         request *out)
{
    static const char *const words[] = {"drop", "zero", "host", "file", NULL}; /* as gvmm_contents */
    int word = GVMM_CONTENTS_HOST;
    *out = (request){.options = GVMM_EVICT_OPTIONS_INIT};
    if (contents && !take_word("contents", contents, words, &word)) return false;
    if (word == GVMM_CONTENTS_FILE && (!directory || directory == Py_None)) {
        PyErr_SetString(PyExc_ValueError, "contents \"file\" needs a directory");
        return false;
    }
    if (directory && directory != Py_None && !PyUnicode_FSConverter(directory, &out->directory)) return false;
    if (!take_stream(state, stream, true, &out->stream)) {
        request_clear(out);
        return false;
    }
    if (out->stream.stream) stream_ref_record(&out->stream, on_device);
    out->options.contents = (gvmm_contents)word;
    out->options.stream = out->stream.stream;
    out->options.directory = out->directory ? PyBytes_AsString(out->directory) : NULL;
    return true;
}

static bool take_tag(PyObject *object, int *out)
{
    *out = GVMM_TAG_ANY;
    if (!object || object == Py_None) return true;
    PyObject *number = PyNumber_Index(object);
    if (!number) return false;
    int overflow;
    long tag = PyLong_AsLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (!overflow && tag > INT_MIN && tag <= INT_MAX) {
        *out = (int)tag;
        return true;
    }
    PyErr_Format(PyExc_ValueError, "tag must be between -2**31 + 1 and 2**31 - 1, not %R", object);
    return false;
}

/* ---- of a buffer ---- */

PyObject *buffer_evict(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"evict", {"contents", "stream", "directory"}, 1, 0};
    buffer_object *self = (buffer_object *)op;
    PyObject *given[3];
    request q;
    if (!take_arguments(&s, args, nargs, names, given) || !buffer_is_own(self) || !may_turn()) return NULL;
    bool on_device = gvmm_resource_device(gvmm_buffer_resource(self->buffer)) >= 0;
    if (!take_request(self->state, given[0], given[1], given[2], on_device, &q)) return NULL;
    if (!q.stream.stream) {
        q.stream = buffer_recorded(self);
        q.options.stream = q.stream.stream;
    }
    turn t = {op};
    call c;
    call_begin(&c);
    current = &t;
    gvmm_result r = gvmm_buffer_evict(self->buffer, &q.options);
    current = NULL;
    call_end(&c, self->state);
    if (r) raise_result(self->state, r);
    request_clear(&q);
    return r ? NULL : Py_NewRef(Py_None);
}

PyObject *buffer_restore(PyObject *op, PyObject *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    if (!buffer_is_own(self) || !may_turn()) return NULL;
    turn t = {op};
    call c;
    call_begin(&c);
    current = &t;
    gvmm_result r = gvmm_buffer_restore(self->buffer);
    current = NULL;
    call_end(&c, self->state);
    return r ? raise_result(self->state, r) : Py_NewRef(Py_None);
}

PyObject *buffer_get_evicted(PyObject *op, void *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    call c;
    call_begin(&c); /* the memory may be on its way out on another thread */
    size_t bytes = gvmm_buffer_evicted_bytes(self->buffer);
    call_end(&c, self->state);
    return PyLong_FromSize_t(bytes);
}

PyObject *buffer_get_generation(PyObject *op, void *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    call c;
    call_begin(&c);
    uint64_t generation = gvmm_buffer_generation(self->buffer);
    call_end(&c, self->state);
    return PyLong_FromUnsignedLongLong(generation);
}

/* ---- of a resource ---- */

PyObject *resource_evict(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"evict", {"tag", "contents", "stream", "directory"}, 1, 0};
    resource_object *self = (resource_object *)op;
    PyObject *given[4];
    int tag;
    request q;
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self) || !may_turn()) return NULL;
    if (!take_tag(given[0], &tag) || !take_request(self->state, given[1], given[2], given[3], self->on_device, &q))
        return NULL;
    turn t = {NULL};
    call c;
    call_begin(&c);
    current = &t;
    gvmm_result r = gvmm_resource_evict(self->resource, tag, &q.options);
    current = NULL;
    call_end(&c, self->state);
    if (r) raise_result(self->state, r);
    request_clear(&q);
    return r ? NULL : Py_NewRef(Py_None);
}

PyObject *resource_prepare_evict(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"prepare_evict", {"size"}, 1, 1};
    resource_object *self = (resource_object *)op;
    PyObject *given[1];
    size_t size;
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self)) return NULL;
    if (!take_size(given[0], &size)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_resource_prepare_evict(self->resource, size);
    call_end(&c, self->state);
    return r ? raise_result(self->state, r) : Py_NewRef(Py_None);
}

PyObject *resource_restore(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"restore", {"tag"}, 1, 0};
    resource_object *self = (resource_object *)op;
    PyObject *given[1];
    int tag;
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self) || !may_turn()) return NULL;
    if (!take_tag(given[0], &tag)) return NULL;
    turn t = {NULL};
    call c;
    call_begin(&c);
    current = &t;
    gvmm_result r = gvmm_resource_restore(self->resource, tag);
    current = NULL;
    call_end(&c, self->state);
    return r ? raise_result(self->state, r) : Py_NewRef(Py_None);
}

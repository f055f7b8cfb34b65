/* Closing, and the end of a buffer object. */
#include <stdio.h>

#include "ext.h"

/* ---- what the library holds ---- */

/* Right before the library waits it is told the stream whose object this buffer keeps alive. */
static void use_stream(gvmm_buffer *buffer, gvmm_stream stream)
{
    if (buffer) (void)gvmm_buffer_set_stream(buffer, stream ? stream : GVMM_STREAM_LEGACY);
}

/* Asking harms no capture. Without a driver there is no stream. */
static bool is_capturing(module_state *state, gvmm_stream stream)
{
    const gvmm_driver *driver;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if ((uintptr_t)stream <= 2) return false;
    call c;
    call_begin(&c);
    bool asked = !gvmm_driver_get(&driver) && driver->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS;
    call_end(&c, state);
    return asked && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A deferred release while the stream captures gives the memory to the graph; when that is gone the library comes back to the stream, which
 * must still be there. Nobody says when that is over, so such a stream object is kept as long as the module. */
static void outlive(buffer_object *self, gvmm_buffer *buffer, const stream_ref *recorded)
{
    gvmm_options options;
    if (!recorded->object || !self->state->outliving) return;
    gvmm_resource_options(gvmm_buffer_resource(buffer), &options);
    bool deferred = self->deferred || options.release_mode == GVMM_RELEASE_DEFERRED;
    if (!deferred || !is_capturing(self->state, recorded->stream)) return;
    PyObject *key = PyLong_FromVoidPtr(recorded->object);
    if (!key || PyDict_SetItem(self->state->outliving, key, recorded->object) < 0) PyErr_Clear();
    Py_XDECREF(key);
}

/* Lets go of up to two references, waiting without the interpreter lock. At the end of the process, and in a forked child for what is
 * the parent's, nothing is given back. */
static void let_go(buffer_object *self, gvmm_buffer *a, gvmm_buffer *b)
{
    if ((!a && !b) || self->generation != fork_generation()) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!is_exiting(self->state)) {
        stream_ref recorded = buffer_recorded(self);
        outlive(self, a ? a : b, &recorded);
        call c;
        call_begin(&c);
        use_stream(a, recorded.stream);
        use_stream(b, recorded.stream);
        if (self->deferred && a) (void)gvmm_buffer_close_deferred(a, NULL);
        if (self->deferred && b) (void)gvmm_buffer_close_deferred(b, NULL);
        gvmm_buffer_release(a);
        gvmm_buffer_release(b);
        call_end(&c, self->state);
        stream_ref_clear(&recorded);
    }
    PyErr_Restore(type, value, traceback);
}

/* ---- someone else's mapping ---- */

/* The recorded stream as mr.deallocate() may take it: cuda.core's resources want an object. A new reference, or NULL. */
static PyObject *stream_for_callback(buffer_object *self, const stream_ref *recorded)
{
    if (recorded->object) return Py_NewRef(recorded->object);
    if (!recorded->stream) return Py_NewRef(Py_None);
    if (PyObject_TypeCheck(self->mr, self->state->resource_type)) return PyLong_FromVoidPtr(recorded->stream);
    PyObject *module = PyImport_ImportModule("gvmm._cuda");
    PyObject *stream = module ? PyObject_CallMethod(module, "stream_of", "N", PyLong_FromVoidPtr(recorded->stream))
                              : NULL;
    Py_XDECREF(module);
    return stream;
}

static bool call_deallocate(buffer_object *self, PyObject *stream)
{
    PyObject *method = PyObject_GetAttrString(self->mr, "deallocate");
    PyObject *args = Py_BuildValue("Kn", (unsigned long long)self->due_address, (Py_ssize_t)self->due_size);
    PyObject *names = Py_BuildValue("{sO}", "stream", stream);
    PyObject *result = method && args && names ? PyObject_Call(method, args, names) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(args);
    Py_XDECREF(names);
    Py_XDECREF(result);
    return result != NULL;
}

static void warn_of_callback(buffer_object *self)
{
    PyObject *type, *value, *traceback, *text = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value) text = PyObject_Str(value);
    PyErr_Clear();
    PyObject *name = type ? PyObject_GetAttrString(type, "__name__") : NULL;
    PyErr_Clear();
    char message[512];
    const char *reason = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const char *kind = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    PyErr_Clear();
    snprintf(message, sizeof message, "mr.deallocate(0x%llx) failed during Buffer destruction: %s: %s",
             (unsigned long long)self->due_address, kind ? kind : "exception", reason ? reason : "");
    warn_text(self->state, message);
    Py_XDECREF(name);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

/* Calls mr.deallocate() if it is due. An exception there becomes a warning; one that is propagating survives. */
static void give_back_wrapped(buffer_object *self)
{
    buffer_lock(self);
    bool due = self->callback_due;
    self->callback_due = false;
    buffer_unlock(self);
    if (!due || !self->mr || self->generation != fork_generation()) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!is_exiting(self->state)) {
        stream_ref recorded = buffer_recorded(self);
        bool ours = PyObject_TypeCheck(self->mr, self->state->resource_type);
        if (ours && is_capturing(self->state, recorded.stream)) { /* only at the end of the object: close() refuses */
            stream_ref_clear(&recorded);
            warn_text(self->state, "Buffer released without waiting for its stream, which is a capturing stream");
        }
        PyObject *stream = stream_for_callback(self, &recorded);
        if (!stream || !call_deallocate(self, stream)) warn_of_callback(self);
        Py_XDECREF(stream);
        stream_ref_clear(&recorded);
    }
    PyErr_Restore(type, value, traceback);
}

/* ---- close ---- */

/* One closer at a time; false: there is nothing to do. */
static bool begin_closing(buffer_object *self)
{
    buffer_lock(self);
    bool first = !self->closing;
    self->closing = true;
    buffer_unlock(self);
    return first;
}

static PyObject *stay_open(buffer_object *self)
{
    buffer_lock(self);
    self->closing = false;
    buffer_unlock(self);
    return NULL;
}

static bool is_exported(buffer_object *self)
{
    buffer_lock(self);
    bool is = self->exports > 0 || self->pinned;
    buffer_unlock(self);
    return is;
}

/* The stream that was waited for becomes the recorded one. */
static void record(buffer_object *self, stream_ref *used)
{
    buffer_lock(self);
    stream_ref old = self->recorded;
    self->recorded = *used;
    buffer_unlock(self);
    stream_ref_clear(&old);
}

static PyObject *closed(buffer_object *self, stream_ref *used)
{
    record(self, used);
    buffer_lock(self);
    self->closed = true;
    self->address = 0;
    self->size = 0;
    buffer_unlock(self);
    if (!is_exported(self)) buffer_give_up_kept(self);
    Py_RETURN_NONE;
}

/* Exports that are out are given a full alias to show before the buffer closes. */
static gvmm_result keep_for_exports(buffer_object *self)
{
    gvmm_buffer *alias;
    if (self->kept) return GVMM_OK; /* from a close that was refused */
    gvmm_result r = gvmm_buffer_grow(&alias, self->buffer, 0, NULL);
    if (r) return r;
    buffer_lock(self);
    self->kept = alias;
    buffer_unlock(self);
    return GVMM_OK;
}

/* For exports that have gone since a close was refused. It ends as the buffer does: a close that waits leaves nothing
 * to go later. */
static void close_unneeded_alias(buffer_object *self, gvmm_stream stream, bool wait)
{
    buffer_lock(self);
    gvmm_buffer *kept = self->kept;
    self->kept = NULL;
    buffer_unlock(self);
    use_stream(kept, stream);
    if (kept) (void)(wait ? gvmm_buffer_close(kept, NULL) : gvmm_buffer_close_deferred(kept, NULL));
    gvmm_buffer_release(kept);
}

/* Takes `used` over, as does close_wrapped. */
static PyObject *close_own(buffer_object *self, stream_ref *used, bool wait)
{
    bool exported = is_exported(self);
    self->deferred = !wait;
    if (!wait) outlive(self, self->buffer, used);
    call c;
    call_begin(&c);
    gvmm_result r = exported ? keep_for_exports(self) : GVMM_OK;
    if (!r) {
        use_stream(self->buffer, used->stream);
        r = wait ? gvmm_buffer_close(self->buffer, NULL) : gvmm_buffer_close_deferred(self->buffer, NULL);
    }
    if (!r && !exported) close_unneeded_alias(self, used->stream, wait);
    call_end(&c, self->state);
    if (!r) return closed(self, used);
    self->deferred = false;
    raise_result(self->state, r);
    stream_ref_clear(used);
    return stay_open(self);
}

static PyObject *close_wrapped(buffer_object *self, stream_ref *used)
{
    if (!is_capturing(self->state, used->stream)) return closed(self, used);
    stream_ref_clear(used);
    PyErr_SetString(PyExc_RuntimeError, "stream is a capturing stream: waiting for it would end its capture");
    return stay_open(self);
}

/* What close() left because of exports; or nothing. */
void buffer_give_up_kept(buffer_object *self)
{
    buffer_lock(self);
    gvmm_buffer *kept = self->kept;
    PyObject *owner = self->owner;
    self->kept = NULL;
    self->owner = NULL;
    buffer_unlock(self);
    let_go(self, kept, NULL);
    give_back_wrapped(self);
    Py_XDECREF(owner);
    stream_ref none = {NULL, NULL};
    record(self, &none);
}

static bool on_device(buffer_object *self)
{
    if (self->buffer) return gvmm_resource_device(gvmm_buffer_resource(self->buffer)) >= 0;
    return true;
}

PyObject *buffer_close(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"close", {"stream", "wait"}, 1, 0};
    buffer_object *self = (buffer_object *)op;
    PyObject *given[2];
    stream_ref used;
    if (!take_arguments(&s, args, nargs, names, given)) return NULL;
    int wait = given[1] ? PyObject_IsTrue(given[1]) : 1;
    if (wait < 0) return NULL;
    if (!buffer_view(self).open) Py_RETURN_NONE;
    if (!take_stream(self->state, given[0], true, &used)) return NULL;
    if (used.stream) stream_ref_record(&used, on_device(self));
    else used = buffer_recorded(self);
    if (!begin_closing(self)) {
        stream_ref_clear(&used);
        Py_RETURN_NONE;
    }
    return self->buffer ? close_own(self, &used, wait) : close_wrapped(self, &used);
}

/* __exit__(type, value, traceback): a close that is refused leaves the buffer to its end, rather than hide the block's exception. */
PyObject *buffer_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *closed = buffer_close(op, NULL, 0, NULL);
    if (closed || nargs == 0 || args[0] == Py_None) return closed;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* ---- the end ---- */

void buffer_give_up(buffer_object *self)
{
    buffer_lock(self);
    gvmm_buffer *buffer = self->buffer, *kept = self->kept;
    self->closing = true;
    self->buffer = NULL;
    self->kept = NULL;
    self->address = 0;
    self->size = 0;
    buffer_unlock(self);
    let_go(self, buffer, kept);
    give_back_wrapped(self);
}

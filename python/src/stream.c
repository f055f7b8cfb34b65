/* Streams of others: what a Python object says its stream is, and the reference that keeps it alive. */
#include <string.h>

#include "ext.h"

PyObject *own_streams(PyObject *module, PyObject *type)
{
    module_state *state = PyModule_GetState(module);
    PyObject *before = state->stream_type;
    state->stream_type = Py_NewRef(type);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* An attribute or NULL; an error only if asking failed otherwise than for want of it. */
static bool look_up(PyObject *object, PyObject *name, PyObject **out)
{
    *out = PyObject_GetAttr(object, name);
    if (*out) return true;
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();
    return true;
}

/* (version, handle), from a method or, in the protocol's first days, a property. Takes `value`. */
static PyObject *handle_of_protocol(PyObject *value)
{
    if (PyCallable_Check(value)) {
        PyObject *called = PyObject_CallNoArgs(value);
        Py_DECREF(value);
        value = called;
        if (!value) return NULL;
    }
    PyObject *handle = NULL;
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 2)
        PyErr_SetString(PyExc_TypeError, "__cuda_stream__ must give a tuple of version and handle");
    else {
        long version = PyLong_AsLong(PyTuple_GetItem(value, 0));
        if (version == 0) handle = Py_NewRef(PyTuple_GetItem(value, 1));
        else if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "__cuda_stream__ version %ld is not known, only 0", version);
    }
    Py_DECREF(value);
    return handle;
}

/* A new reference to the handle as a number, or NULL without an error if `object` is no stream. Libraries tell it, best
 * first: by the protocol; as PyTorch does; as CuPy. */
static PyObject *handle_of(module_state *state, PyObject *object)
{
    PyObject *const protocols[] = {state->name_protocol, state->name_torch, state->name_cupy}, *value = NULL;
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++) {
        if (!look_up(object, protocols[i], &value)) return NULL;
        if (value) return i == 0 ? handle_of_protocol(value) : value;
    }
    return NULL;
}

/* cuda.core says 0 for a stream that has been closed, where others mean the default stream. */
static bool is_of_cuda_core(PyObject *object)
{
    PyObject *module = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__module__");
    if (!module) {
        PyErr_Clear();
        return false;
    }
    const char *name = PyUnicode_Check(module) ? PyUnicode_AsUTF8AndSize(module, NULL) : NULL;
    bool is = name && strncmp(name, "cuda.core", 9) == 0;
    if (!name) PyErr_Clear();
    Py_DECREF(module);
    return is;
}

static bool take_number(PyObject *number, uintptr_t *out)
{
    PyObject *whole = PyNumber_Long(number);
    if (!whole) return false;
    unsigned long long value = PyLong_AsUnsignedLongLong(whole);
    Py_DECREF(whole);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return false;
    *out = (uintptr_t)value;
    return true;
}

static bool has_been_closed(void)
{
    PyErr_SetString(PyExc_RuntimeError, "stream has been closed");
    return false;
}

/* From an object; 0 is its default stream. */
static bool take_handle(module_state *state, PyObject *object, uintptr_t *out)
{
    bool own = (PyObject *)Py_TYPE(object) == state->stream_type;
    PyObject *number = own ? PyObject_GetAttr(object, state->name_handle) : handle_of(state, object);
    if (!number) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "stream must be an object with __cuda_stream__ or an int, not %R",
                         (PyObject *)Py_TYPE(object));
        return false;
    }
    bool taken = take_number(number, out);
    Py_DECREF(number);
    if (!taken) return false;
    return *out || (!own && !is_of_cuda_core(object)) || has_been_closed();
}

bool take_stream(module_state *state, PyObject *object, bool none_allowed, stream_ref *out)
{
    uintptr_t handle = 0;
    *out = (stream_ref){NULL, NULL};
    if (!object || object == Py_None) {
        if (none_allowed) return true;
        PyErr_SetString(PyExc_TypeError, "stream must be given, and not None");
        return false;
    }
    bool is_number = PyLong_Check(object) && !PyBool_Check(object);
    if (!(is_number ? take_number(object, &handle) : take_handle(state, object, &handle))) return false;
    out->stream = handle ? (gvmm_stream)handle : GVMM_STREAM_LEGACY;
    out->object = is_number ? NULL : Py_NewRef(object);
    return true;
}

void stream_ref_clear(stream_ref *ref)
{
    PyObject *object = ref->object;
    *ref = (stream_ref){NULL, NULL};
    Py_XDECREF(object);
}

void stream_ref_record(stream_ref *ref, bool on_device)
{
    if ((uintptr_t)ref->stream > 2) return;
    stream_ref_clear(ref); /* a default stream needs nobody to keep it alive */
    ref->stream = on_device ? GVMM_STREAM_LEGACY : NULL;
}

/* Arguments of fast calls. */
#include "ext.h"

static int index_of(const signature *s, PyObject *name)
{
    for (int i = 0; s->names[i]; i++)
        if (PyUnicode_CompareWithASCIIString(name, s->names[i]) == 0) return i;
    return -1;
}

bool take_arguments(const signature *s, PyObject *const *args, Py_ssize_t nargs, PyObject *names, PyObject **out)
{
    for (int i = 0; s->names[i]; i++) out[i] = i < nargs ? args[i] : NULL;
    if (nargs > s->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes %d positional arguments but %zd were given", s->function,
                     s->positional, nargs);
        return false;
    }
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        int at = index_of(s, name);
        if (at < 0 || out[at]) {
            PyErr_Format(PyExc_TypeError,
                         at < 0 ? "%s() got an unexpected keyword argument '%U'"
                                : "%s() got multiple values for argument '%U'",
                         s->function, name);
            return false;
        }
        out[at] = args[nargs + i];
    }
    for (int i = 0; s->names[i]; i++) {
        if (out[i] || !(s->needed & 1u << i)) continue;
        PyErr_Format(PyExc_TypeError, "%s() missing required argument: '%s'", s->function, s->names[i]);
        return false;
    }
    return true;
}

bool take_size(PyObject *object, size_t *out)
{
    PyObject *number = PyNumber_Index(object);
    if (!number) return false;
    *out = PyLong_AsSize_t(number);
    Py_DECREF(number);
    if (*out != (size_t)-1 || !PyErr_Occurred()) return true;
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Format(PyExc_OverflowError, "a size must be between 0 and 2**64 - 1, not %R", object);
    return false;
}

bool take_address(PyObject *object, uint64_t *out)
{
    *out = 0;
    if (!object || object == Py_None) return true;
    PyObject *number = PyNumber_Long(object);
    if (!number) return false;
    *out = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    return *out != (uint64_t)-1 || !PyErr_Occurred();
}

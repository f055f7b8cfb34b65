/* Failures and warnings of the library as Python's. */
#include "ext.h"

/* The exception that says what a caller can do about it: see gvmm/_errors.py. */
static PyObject *class_of(module_state *state, gvmm_result result)
{
    switch (result) {
    case GVMM_E_INVALID: return state->cuda_value_error;
    case GVMM_E_NO_DEVICE_MEMORY:
    case GVMM_E_NO_HOST_MEMORY: return state->cuda_memory_error;
    default: return state->cuda_error;
    }
}

static PyObject *raise_with(PyObject *class, const char *text, int code, const char *call, const char *result)
{
    if (!class) {
        PyErr_SetString(PyExc_RuntimeError, text); /* the module has been cleared */
        return NULL;
    }
    PyObject *error = PyObject_CallFunction(class, "sizs", text, code, call, result);
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

PyObject *raise_result(module_state *state, gvmm_result result)
{
    gvmm_error error;
    gvmm_last_error(&error);
    if (error.result != result) error = (gvmm_error){.result = result, .text = gvmm_result_text(result)};
    if (result == GVMM_E_CLOSED) return raise_closed();
    return raise_with(class_of(state, result), error.text, error.status, error.call, gvmm_result_name(result));
}

PyObject *raise_status(module_state *state, CUresult status, const char *call)
{
    PyObject *text = PyUnicode_FromFormat("%s: %s", call, gvmm_driver_status_name((int)status));
    const char *utf8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    bool memory = status == CUDA_ERROR_OUT_OF_MEMORY;
    if (utf8)
        raise_with(memory ? state->cuda_memory_error : state->cuda_error, utf8, (int)status, call,
                   gvmm_result_name(memory ? GVMM_E_NO_DEVICE_MEMORY : GVMM_E_DRIVER));
    Py_XDECREF(text);
    return NULL;
}

PyObject *raise_closed(void)
{
    PyErr_SetString(PyExc_RuntimeError, "Buffer has been closed");
    return NULL;
}

void warn_text(module_state *state, const char *text)
{
    if (!state->cuda_warning || is_exiting(state)) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_WarnEx(state->cuda_warning, text, 1) < 0) PyErr_WriteUnraisable(state->cuda_warning);
    PyErr_Restore(type, value, traceback);
}

/* The C side of bench/bench_python.py: what the same calls cost without Python. */
#include <string.h>
#include <time.h>

#include "ext.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static gvmm_result create_and_end(gvmm_resource *resource, size_t size, bool close)
{
    gvmm_buffer *buffer;
    gvmm_result r = gvmm_buffer_create(&buffer, resource, size, NULL);
    if (r) return r;
    if (close) r = gvmm_buffer_close(buffer, NULL);
    gvmm_buffer_release(buffer);
    return r;
}

PyObject *time_create(PyObject *module, PyObject *args)
{
    PyObject *resource;
    Py_ssize_t size, rounds;
    int close;
    module_state *state = PyModule_GetState(module);
    if (!PyArg_ParseTuple(args, "O!nnp", state->resource_type, &resource, &size, &rounds, &close)) return NULL;
    gvmm_result r = GVMM_OK;
    double start = now();
    for (Py_ssize_t i = 0; i < rounds && !r; i++)
        r = create_and_end(((resource_object *)resource)->resource, (size_t)size, close);
    return r ? raise_result(state, r) : PyFloat_FromDouble((now() - start) / (double)rounds);
}

PyObject *time_alias(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_ssize_t rounds;
    module_state *state = PyModule_GetState(module);
    if (!PyArg_ParseTuple(args, "O!n", state->vm_buffer_type, &buffer, &rounds)) return NULL;
    gvmm_buffer **made = PyMem_Calloc((size_t)rounds, sizeof *made);
    if (!made) return PyErr_NoMemory();
    gvmm_result r = GVMM_OK;
    double start = now();
    for (Py_ssize_t i = 0; i < rounds && !r; i++)
        r = gvmm_buffer_grow(&made[i], ((buffer_object *)buffer)->buffer, 0, NULL);
    double took = now() - start;
    for (Py_ssize_t i = 0; i < rounds; i++) gvmm_buffer_release(made[i]);
    PyMem_Free(made);
    return r ? raise_result(state, r) : PyFloat_FromDouble(took / (double)rounds);
}

PyObject *time_pool(PyObject *module, PyObject *args)
{
    PyObject *object;
    Py_ssize_t size, rounds;
    unsigned long long stream;
    uint64_t address;
    module_state *state = PyModule_GetState(module);
    if (!PyArg_ParseTuple(args, "O!nnK", state->pool_type, &object, &size, &rounds, &stream)) return NULL;
    gvmm_pool *pool = pool_of(object);
    gvmm_result r = GVMM_OK;
    double start = now();
    for (Py_ssize_t i = 0; i < rounds && !r; i++) {
        r = gvmm_pool_malloc(&address, pool, (size_t)size, (gvmm_stream)(uintptr_t)stream);
        if (!r) r = gvmm_pool_free(pool, address, (gvmm_stream)(uintptr_t)stream);
    }
    return r ? raise_result(state, r) : PyFloat_FromDouble((now() - start) / (double)rounds);
}

/* The module: what it holds per interpreter, and how it starts in each. */
#include <pthread.h>
#include <stdlib.h>

#include "ext.h"

static atomic_uint forks;

unsigned fork_generation(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }

static void count_fork(void) { atomic_fetch_add(&forks, 1); }

/* What the process needs once, whichever interpreter comes first. */
static void start_process(void)
{
    catch_warnings();
    pthread_atfork(NULL, NULL, count_fork);
}

bool is_exiting(module_state *state)
{
    if (!state->main_interpreter) return false;
    if (!state->is_finalizing) return true;
    PyObject *answer = PyObject_CallFunctionObjArgs(state->is_finalizing, NULL);
    if (!answer) PyErr_Clear();
    bool is = answer == Py_True;
    Py_XDECREF(answer);
    return is;
}

/* ---- functions ---- */

/* clang-format off */
#define STATS(X) \
    X(physical_bytes) \
    X(mapped_bytes) \
    X(reserved_bytes) \
    X(buffers) \
    X(mappings) \
    X(memories) \
    X(reservations) \
    X(allocations) \
    X(grows_in_place) \
    X(grows_moved) \
    X(aliases) \
    X(driver_calls) \
    X(releases_waiting) \
    X(reused) \
    X(kept_bytes) \
    X(imported_bytes) \
    X(pinned_bytes)
/* clang-format on */

/* _stats(resource or None) -> dict */
static PyObject *get_stats(PyObject *module, PyObject *resource)
{
    module_state *state = PyModule_GetState(module);
    gvmm_stats stats;
    if (resource != Py_None && !PyObject_TypeCheck(resource, state->resource_type))
        return PyErr_Format(PyExc_TypeError, "stats() takes a VirtualMemoryResource or None, not %R",
                            (PyObject *)Py_TYPE(resource));
    gvmm_get_stats(resource == Py_None ? NULL : ((resource_object *)resource)->resource, &stats);
    PyObject *out = PyDict_New();
#define X(name) \
    if (out) { \
        PyObject *value = PyLong_FromUnsignedLongLong(stats.name); \
        if (!value || PyDict_SetItemString(out, #name, value) < 0) Py_CLEAR(out); \
        Py_XDECREF(value); \
    }
    STATS(X)
#undef X
    return out;
}

static PyObject *drain(PyObject *module, PyObject *unused)
{
    (void)unused;
    call c;
    call_begin(&c);
    gvmm_drain();
    call_end(&c, PyModule_GetState(module));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_stats", get_stats, METH_O, NULL},
    {"drain", drain, METH_NOARGS,
     "drain()\n--\n\nWaits until everything that was given up has gone back to the driver: what was closed with wait=False or ended\n"
     "without a close, and what graphs that are gone had retained. Memory that buffers, graphs or a capture still hold is not waited for.\n\n"
     ">>> buffer.close(wait=False); gvmm.drain()"},
    {"_probe", probe, METH_O, NULL},
    {"_probe_common", probe_common, METH_O, NULL},
    {"_probe_settle", probe_settle, METH_VARARGS, NULL},
    {"_own_streams", own_streams, METH_O, NULL},
    {"_torch_stats", torch_stats, METH_O, NULL},
    {"_time_create", time_create, METH_VARARGS, NULL},
    {"_time_alias", time_alias, METH_VARARGS, NULL},
    {"_time_pool", time_pool, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* ---- start and end ---- */

static PyObject *import_name(const char *module, const char *name)
{
    PyObject *m = PyImport_ImportModule(module);
    PyObject *object = m ? PyObject_GetAttrString(m, name) : NULL;
    Py_XDECREF(m);
    return object;
}

static bool import_names(module_state *state)
{
    return (state->is_finalizing = import_name("sys", "is_finalizing")) &&
           (state->pack_options = import_name("gvmm._options", "pack")) &&
           (state->settled_options = import_name("gvmm._options", "settled")) &&
           (state->residency_event = import_name("gvmm._residency", "ResidencyEvent")) &&
           (state->pool_stats = import_name("gvmm._pool", "PoolStats")) &&
           (state->device_ordinal = import_name("gvmm._options", "device_ordinal")) &&
           (state->cuda_error = import_name("gvmm._errors", "CUDAError")) &&
           (state->cuda_value_error = import_name("gvmm._errors", "CUDAValueError")) &&
           (state->cuda_memory_error = import_name("gvmm._errors", "CUDAMemoryError")) &&
           (state->cuda_warning = import_name("gvmm._errors", "CUDAWarning"));
}

/* Interned once, as making a string takes longer than looking it up. */
static bool make_names(module_state *state)
{
    return (state->name_protocol = PyUnicode_InternFromString("__cuda_stream__")) &&
           (state->name_torch = PyUnicode_InternFromString("cuda_stream")) &&
           (state->name_cupy = PyUnicode_InternFromString("ptr")) &&
           (state->name_handle = PyUnicode_InternFromString("_handle"));
}

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    if (type && PyModule_AddType(module, type) < 0) Py_CLEAR(type);
    return type;
}

static int module_exec(PyObject *module)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_process);
    module_state *state = PyModule_GetState(module);
    state->main_interpreter = PyInterpreterState_GetID(PyInterpreterState_Get()) == 0;
    if (!make_names(state) || !import_names(state) || !(state->outliving = PyDict_New())) return -1;
    if (!(state->resource_type = add_type(module, &resource_spec, NULL))) return -1;
    if (!(state->buffer_type = add_type(module, &buffer_spec, NULL))) return -1;
    if (!(state->vm_buffer_type = add_type(module, &vm_buffer_spec, state->buffer_type))) return -1;
    if (!(state->pool_type = add_type(module, &pool_spec, NULL))) return -1;
    if (PyModule_AddFunctions(module, simulate_methods) < 0) return -1;
    return PyModule_AddStringConstant(module, "version", gvmm_version());
}

/* clang-format off */
#define HELD(X) \
    X(is_finalizing) \
    X(pack_options) \
    X(settled_options) \
    X(device_ordinal) \
    X(residency_event) \
    X(pool_stats) \
    X(stream_type) \
    X(name_protocol) \
    X(name_torch) \
    X(name_cupy) \
    X(name_handle) \
    X(cuda_error) \
    X(cuda_value_error) \
    X(cuda_memory_error) \
    X(cuda_warning) \
    X(resource_type) \
    X(buffer_type) \
    X(vm_buffer_type) \
    X(pool_type) \
    X(outliving)
/* clang-format on */

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    if (!state) return 0;
#define X(name) Py_VISIT(state->name);
    HELD(X)
#undef X
    return 0;
}

static int module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    if (!state) return 0;
#define X(name) Py_CLEAR(state->name);
    HELD(X)
#undef X
    return 0;
}

static void module_free(void *module) { module_clear(module); }

/* ---- the definition, for the interpreter that runs ---- */

static PyModuleDef_Slot slots_310[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static PyModuleDef_Slot slots_312[] = {
    {Py_mod_exec, module_exec}, {SLOT_MULTIPLE_INTERPRETERS, PER_INTERPRETER_GIL}, {0, NULL}};
static PyModuleDef_Slot slots_313[] = {
    {Py_mod_exec, module_exec}, {SLOT_MULTIPLE_INTERPRETERS, PER_INTERPRETER_GIL}, {SLOT_GIL, GIL_NOT_USED}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,          .m_name = "gvmm._gvmm", .m_doc = "The extension behind gvmm: use the package.",
    .m_size = sizeof(module_state), .m_methods = functions, .m_traverse = module_traverse,
    .m_clear = module_clear,        .m_free = module_free,
};

module_state *state_of_type(PyTypeObject *type)
{
    for (; type; type = PyType_GetSlot(type, Py_tp_base)) {
        PyObject *module = PyType_GetModule(type);
        if (module && PyModule_GetDef(module) == &definition) return PyModule_GetState(module);
        PyErr_Clear();
    }
    PyErr_SetString(PyExc_SystemError, "not a type of gvmm");
    return NULL;
}

/* Every interpreter refuses slots that it does not know, so one file for all versions has to choose at run time. */
PyMODINIT_FUNC PyInit__gvmm(void)
{
    int minor = atoi(Py_GetVersion() + 2); /* "3.12.1 (main, ..." */
    definition.m_slots = minor >= 13 ? slots_313 : minor >= 12 ? slots_312 : slots_310;
    return PyModuleDef_Init(&definition);
}

/* The simulated driver and fault plans for gvmm.sim, and the addresses of driver functions for gvmm._cuda. */
#include <stddef.h>
#include <stdlib.h>

#include "ext.h"
#include "gvmm/sim.h"

static const gvmm_driver *faulty; /* the table with faults over it, once this file has installed it */

static PyObject *done(PyObject *module, gvmm_result r)
{
    return r ? raise_result(PyModule_GetState(module), r) : Py_NewRef(Py_None);
}

/* _simulate(devices, numa_nodes, memory, address_space, granularity, descriptors, peers, latency): a new simulated machine, which
 * gvmm uses from now on, with faults over it. A memory of 0 and the like keep the default. */
static PyObject *simulate(PyObject *module, PyObject *args)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    unsigned long long memory, space, granularity;
    int peers, latency;
    if (!PyArg_ParseTuple(args, "IIKKKIpp", &config.devices, &config.numa_nodes, &memory, &space, &granularity,
                          &config.descriptors, &peers, &latency))
        return NULL;
    if (memory) config.memory = memory;
    if (space) config.address_space = space;
    if (granularity) config.granularity = granularity;
    config.peers = peers;
    config.latency = latency;
    call c;
    call_begin(&c);
    gvmm_drain();                                /* what is on its way back still uses the old one */
    gvmm_result r = gvmm_driver_install(faulty); /* as it is; but refuses while a resource is alive */
    if (!r) r = gvmm_sim_reset(&config);
    if (!r) r = gvmm_faults_set(NULL);
    if (!r) r = gvmm_driver_install(faulty = gvmm_faults_over(gvmm_sim_driver()));
    call_end(&c, PyModule_GetState(module));
    return done(module, r);
}

/* Puts faults over the driver that would be used, whichever that is, unless they are there: from simulate(), an earlier plan, or the
 * environment. */
static gvmm_result faults_ready(void)
{
    static gvmm_driver below;
    const gvmm_driver *driver;
    const char *environment = getenv("GVMM_FAULTS");
    gvmm_result r = gvmm_driver_get(&driver);
    if (r || driver == faulty || (!faulty && environment && *environment)) return r;
    gvmm_drain(); /* what is on its way back holds its resource */
    below = *driver;
    const gvmm_driver *over = gvmm_faults_over(&below);
    r = gvmm_driver_install(over); /* refuses while a resource is alive */
    if (!r) faulty = over;
    return r;
}

/* _faults_set(plan or None) */
static PyObject *faults_set(PyObject *module, PyObject *plan)
{
    if (plan == Py_None) return done(module, gvmm_faults_set(NULL));
    const char *text = PyUnicode_AsUTF8AndSize(plan, NULL);
    if (!text) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = faults_ready();
    call_end(&c, PyModule_GetState(module));
    return done(module, r ? r : gvmm_faults_set_text(text));
}

static PyObject *faults_counted(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return Py_BuildValue("KK", (unsigned long long)gvmm_faults_counted(), (unsigned long long)gvmm_faults_injected());
}

/* ---- census, findings, report ---- */

/* Visitors run under a lock of the simulator, which calls nobody back: lists of Python are all they touch. */
typedef struct gathering {
    PyObject *list; /* NULL after a failure */
} gathering;

static void gather(gathering *g, PyObject *item)
{
    if (!g->list || !item || PyList_Append(g->list, item) < 0) Py_CLEAR(g->list);
    Py_XDECREF(item);
}

static void gather_item(void *user, const gvmm_sim_item *i)
{
    gather(user, Py_BuildValue("sKKIKs", gvmm_sim_kind_name(i->kind), (unsigned long long)i->address,
                               (unsigned long long)i->size, i->references, (unsigned long long)i->call, i->made_by));
}

static void gather_text(void *user, const char *text) { gather(user, PyUnicode_FromString(text)); }

/* _items() -> [(kind, address, size, references, call, made_by)] */
static PyObject *items(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    gathering g = {PyList_New(0)};
    if (g.list) gvmm_sim_census(NULL, gather_item, &g);
    return g.list;
}

/* census() -> {kind: count} */
static PyObject *census(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    PyObject *out = PyDict_New();
    for (int kind = 0; out && kind < GVMM_SIM_KIND_COUNT; kind++) {
        PyObject *count = PyLong_FromSize_t(counts[kind]);
        if (!count || PyDict_SetItemString(out, gvmm_sim_kind_name((gvmm_sim_kind)kind), count) < 0) Py_CLEAR(out);
        Py_XDECREF(count);
    }
    return out;
}

static PyObject *findings(PyObject *module, PyObject *clear)
{
    (void)module;
    gathering g = {PyList_New(0)};
    if (g.list) gvmm_sim_findings(gather_text, &g);
    if (g.list && PyObject_IsTrue(clear)) gvmm_sim_findings_clear();
    return g.list;
}

static PyObject *quiet(PyObject *module, PyObject *yes)
{
    (void)module;
    gvmm_sim_quiet(PyObject_IsTrue(yes));
    Py_RETURN_NONE;
}

/* _report(descriptor, json) -> number of items */
static PyObject *report(PyObject *module, PyObject *args)
{
    int descriptor, json;
    if (!PyArg_ParseTuple(args, "ip", &descriptor, &json)) return NULL;
    call c;
    call_begin(&c);
    size_t count = gvmm_sim_report(descriptor, json);
    call_end(&c, PyModule_GetState(module));
    return PyLong_FromSize_t(count);
}

/* ---- the driver table ---- */

static const struct {
    const char *name;
    size_t offset;
} members[] = {
#define GVMM_X(need, role, name, symbol, version, params, args) {#name, offsetof(gvmm_driver, name)},
    GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X
};

/* _driver_function(name) -> its address, for ctypes. */
static PyObject *driver_function(PyObject *module, PyObject *name)
{
    const gvmm_driver *driver;
    gvmm_result r = call_driver(PyModule_GetState(module), &driver);
    if (r) return raise_result(PyModule_GetState(module), r);
    for (size_t i = 0; PyUnicode_Check(name) && i < sizeof members / sizeof *members; i++)
        if (PyUnicode_CompareWithASCIIString(name, members[i].name) == 0)
            return PyLong_FromVoidPtr(*(void *const *)((const char *)driver + members[i].offset));
    return PyErr_Format(PyExc_AttributeError, "gvmm knows no driver function %R", name);
}

/* _origin() -> where the driver comes from */
static PyObject *origin(PyObject *module, PyObject *unused)
{
    const gvmm_driver *driver;
    (void)unused;
    gvmm_result r = call_driver(PyModule_GetState(module), &driver);
    return r ? raise_result(PyModule_GetState(module), r) : PyUnicode_FromString(driver->origin);
}

static PyObject *status_name(PyObject *module, PyObject *status)
{
    (void)module;
    long number = PyLong_AsLong(status);
    if (number == -1 && PyErr_Occurred()) return NULL;
    return PyUnicode_FromString(gvmm_driver_status_name((int)number));
}

PyMethodDef simulate_methods[] = {
    {"_simulate", simulate, METH_VARARGS, NULL},
    {"_faults_set", faults_set, METH_O, NULL},
    {"_faults_counted", faults_counted, METH_NOARGS, NULL},
    {"_items", items, METH_NOARGS, NULL},
    {"_census", census, METH_NOARGS, NULL},
    {"_findings", findings, METH_O, NULL},
    {"_quiet", quiet, METH_O, NULL},
    {"_report", report, METH_VARARGS, NULL},
    {"_driver_function", driver_function, METH_O, NULL},
    {"_origin", origin, METH_NOARGS, NULL},
    {"_status_name", status_name, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

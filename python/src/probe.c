/* What a device can do here: the library's report as tuples, for gvmm/_probe.py. */
#include "ext.h"

static PyObject *bits(uint64_t set)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < 64; i++) {
        if (!(set >> i & 1)) continue;
        PyObject *number = PyLong_FromLong(i);
        if (!number || PyList_Append(list, number) < 0) Py_CLEAR(list);
        Py_XDECREF(number);
    }
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *answers(const gvmm_probe_report *report)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < GVMM_CAPABILITY_COUNT; i++) {
        const gvmm_answer *a = &report->answers[i];
        gvmm_capability which = (gvmm_capability)i;
        PyObject *one = Py_BuildValue("sOzizs", gvmm_capability_name(which), a->available ? Py_True : Py_False, a->call,
                                      a->status, a->advice, gvmm_capability_text(which));
        if (!one || PyList_Append(list, one) < 0) Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

/* _probe(device) -> ([(name, ok, call, status, advice, text)], memory, reservable, granularity, peers, numa_nodes) */
PyObject *probe(PyObject *module, PyObject *device)
{
    module_state *state = PyModule_GetState(module);
    gvmm_probe_report report;
    int ordinal;
    if (!take_ordinal(state, device, &ordinal)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_probe(&report, ordinal);
    call_end(&c, state);
    if (r) return raise_result(state, r);
    PyObject *list = answers(&report), *peers = bits(report.peers), *nodes = bits(report.numa_nodes), *all = NULL;
    if (list && peers && nodes)
        all = Py_BuildValue("OKKKOO", list, (unsigned long long)report.memory, (unsigned long long)report.reservable,
                            (unsigned long long)report.granularity, peers, nodes);
    Py_XDECREF(list);
    Py_XDECREF(peers);
    Py_XDECREF(nodes);
    return all;
}

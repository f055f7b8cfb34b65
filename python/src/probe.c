/* What a device can do here, and what all ranks have: the library's reports as tuples, for gvmm/_probe.py. */
#include <string.h>

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

/* (answers, memory, reservable, granularity, peers, numa_nodes, last). Takes `last`, which is NULL after a failure. */
static PyObject *as_tuple(const gvmm_probe_report *report, PyObject *last)
{
    PyObject *list = answers(report), *peers = bits(report->peers), *nodes = bits(report->numa_nodes), *all = NULL;
    if (list && peers && nodes && last)
        all = Py_BuildValue("OKKKOOO", list, (unsigned long long)report->memory, (unsigned long long)report->reservable,
                            (unsigned long long)report->granularity, peers, nodes, last);
    Py_XDECREF(list);
    Py_XDECREF(peers);
    Py_XDECREF(nodes);
    Py_XDECREF(last);
    return all;
}

/* _probe(device) -> ([(name, ok, call, status, advice, text)], memory, reservable, granularity, peers, numa_nodes, record) */
PyObject *probe(PyObject *module, PyObject *device)
{
    module_state *state = PyModule_GetState(module);
    gvmm_probe_report report;
    gvmm_probe_record record;
    int ordinal;
    if (!take_ordinal(state, device, &ordinal)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_probe(&report, ordinal);
    if (!r) r = gvmm_probe_pack(&record, &report);
    call_end(&c, state);
    if (r) return raise_result(state, r);
    return as_tuple(&report, PyBytes_FromStringAndSize((const char *)&record, sizeof record));
}

bool take_records(module_state *state, PyObject *records, gvmm_common_report *out)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(records, &bytes, &size) < 0) return false;
    if ((size_t)size % sizeof(gvmm_probe_record)) {
        PyErr_SetString(PyExc_ValueError, "a record is of another version of gvmm, or damaged");
        return false;
    }
    gvmm_probe_record *aligned = PyMem_Malloc((size_t)size + 1);
    if (!aligned) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(aligned, bytes, (size_t)size);
    gvmm_result r = gvmm_probe_common(out, aligned, (size_t)size / sizeof *aligned);
    PyMem_Free(aligned);
    if (r) raise_result(state, r);
    return r == GVMM_OK;
}

/* _probe_common(records) -> the same, with [(how many ranks have it not, the first of them)] last */
PyObject *probe_common(PyObject *module, PyObject *records)
{
    gvmm_common_report common;
    if (!take_records(PyModule_GetState(module), records, &common)) return NULL;
    PyObject *lacking = PyList_New(0);
    for (int i = 0; lacking && i < GVMM_CAPABILITY_COUNT; i++) {
        PyObject *one = Py_BuildValue("nn", (Py_ssize_t)common.lacking[i], (Py_ssize_t)common.first[i]);
        if (!one || PyList_Append(lacking, one) < 0) Py_CLEAR(lacking);
        Py_XDECREF(one);
    }
    return as_tuple(&common.report, lacking);
}

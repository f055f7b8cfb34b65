/* The part of Python's C interface that the extension uses: the stable ABI of Python 3.10, with two additions by hand.
 *
 * The build defines Py_LIMITED_API as 0x030A0000, so one file serves every later Python. A free-threaded build has no stable ABI yet;
 * there the same source is compiled against the full interface. */
#ifndef GVMM_PYAPI_H
#define GVMM_PYAPI_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* The buffer protocol joined the stable ABI in 3.11. Python 3.10 takes the same structure and the same slots from a heap type: what
 * 3.11 froze is what 3.10 has. Nothing is called for it, so no symbol newer than 3.10 is needed. */
#if defined(Py_LIMITED_API) && Py_LIMITED_API + 0 < 0x030B0000
typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len;
    Py_ssize_t itemsize;
    int readonly;
    int ndim;
    char *format;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    Py_ssize_t *suboffsets;
    void *internal;
} Py_buffer;
#define Py_bf_getbuffer 1
#define Py_bf_releasebuffer 2
#define PyBUF_WRITABLE 0x0001
#define PyBUF_FORMAT 0x0004
#define PyBUF_ND 0x0008
#define PyBUF_STRIDES (0x0010 | PyBUF_ND)
#endif

/* Module slots that newer interpreters understand and older ones refuse, by value: which to pass is decided when the module is
 * loaded (module.c). */
#define SLOT_MULTIPLE_INTERPRETERS 3 /* 3.12 */
#define SLOT_GIL 4                   /* 3.13 */
#define PER_INTERPRETER_GIL ((void *)2)
#define GIL_NOT_USED ((void *)1)

#endif

/* Elastic buffers: capacity, shorter views, views put together, access granted later. What VirtualMemoryBuffer has beyond Buffer. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ext.h"

bool buffer_is_own(buffer_object *self)
{
    if (self->buffer) return true;
    PyErr_SetString(PyExc_TypeError, "buffer is a wrapped mapping, whose memory is not gvmm's");
    return false;
}

bool take_word(const char *what, PyObject *object, const char *const *words, int *out)
{
    for (int i = 0; words[i]; i++) {
        if (!PyUnicode_Check(object) || PyUnicode_CompareWithASCIIString(object, words[i]) != 0) continue;
        *out = i;
        return true;
    }
    char all[64] = "";
    for (int i = 0; words[i]; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), i ? ", '%s'" : "'%s'", words[i]);
    PyErr_Format(PyExc_ValueError, "%s must be one of %s, not %R", what, all, object);
    return false;
}

/* ---- shorter, repeated ---- */

static PyObject *get_capacity(PyObject *op, void *unused)
{
    (void)unused;
    buffer_object *self = (buffer_object *)op;
    return PyLong_FromUnsignedLongLong(self->buffer ? gvmm_buffer_capacity(self->buffer) : buffer_view(self).size);
}

/* A view of this buffer's memory, or the failure to make one; it records the same stream. */
static PyObject *new_view(buffer_object *self, gvmm_result r, gvmm_buffer *made)
{
    if (r) return raise_result(self->state, r);
    stream_ref recorded = buffer_recorded(self);
    return buffer_wrap((resource_object *)self->mr, made, &recorded);
}

static PyObject *buffer_shrink(PyObject *op, PyObject *size)
{
    buffer_object *self = (buffer_object *)op;
    size_t bytes;
    if (!buffer_is_own(self) || !take_size(size, &bytes)) return NULL;
    gvmm_buffer *made = NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_shrink(&made, self->buffer, bytes);
    call_end(&c, self->state);
    return new_view(self, r, made);
}

static PyObject *buffer_ring(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"ring", {"times"}, 1, 0};
    buffer_object *self = (buffer_object *)op;
    PyObject *given[1];
    size_t times = 2;
    if (!take_arguments(&s, args, nargs, names, given) || !buffer_is_own(self)) return NULL;
    if (given[0] && !take_size(given[0], &times)) return NULL;
    gvmm_buffer *made = NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_ring(&made, self->buffer, times > UINT_MAX ? UINT_MAX : (unsigned)times);
    call_end(&c, self->state);
    return new_view(self, r, made);
}

/* ---- put together ---- */

static bool take_buffer(module_state *state, PyObject *object, gvmm_buffer **out)
{
    if (!PyObject_TypeCheck(object, state->vm_buffer_type)) {
        PyErr_Format(PyExc_TypeError, "a piece must be a VirtualMemoryBuffer or a tuple of one, offset, size, not %R",
                     (PyObject *)Py_TYPE(object));
        return false;
    }
    *out = ((buffer_object *)object)->buffer;
    return buffer_is_own((buffer_object *)object);
}

/* A size of None is the rest, as the library's 0. A given 0 is nothing: the rest of what begins at the end. */
static bool take_extent(PyObject *offset, PyObject *size, gvmm_piece *out)
{
    if (!take_size(offset, &out->offset)) return false;
    if (size == Py_None) return true;
    if (!take_size(size, &out->size)) return false;
    size_t whole = gvmm_buffer_size(out->buffer);
    if (!out->size && out->offset < whole) out->offset = whole;
    return true;
}

static bool take_piece(module_state *state, PyObject *piece, gvmm_piece *out)
{
    static const char *const words[] = {"r", "rw", NULL};
    *out = (gvmm_piece){.buffer = NULL};
    if (!PyTuple_Check(piece)) return take_buffer(state, piece, &out->buffer);
    Py_ssize_t count = PyTuple_Size(piece);
    if (count != 3 && count != 4) {
        PyErr_Format(PyExc_TypeError,
                     "a piece must be (buffer, offset, size) or (buffer, offset, size, access), not %R", piece);
        return false;
    }
    int word = 1;
    if (!take_buffer(state, PyTuple_GetItem(piece, 0), &out->buffer)) return false;
    if (!take_extent(PyTuple_GetItem(piece, 1), PyTuple_GetItem(piece, 2), out)) return false;
    if (count == 4 && !take_word("access of a piece", PyTuple_GetItem(piece, 3), words, &word)) return false;
    out->read_only = word == 0;
    return true;
}

/* `held`: a tuple, so that what is in it stays. */
static PyObject *compose(resource_object *self, PyObject *held, stream_ref *recorded)
{
    Py_ssize_t count = PyTuple_Size(held);
    gvmm_piece *pieces = PyMem_Calloc((size_t)count + 1, sizeof *pieces);
    bool taken = pieces || PyErr_NoMemory();
    for (Py_ssize_t i = 0; taken && i < count; i++)
        taken = take_piece(self->state, PyTuple_GetItem(held, i), &pieces[i]);
    PyObject *result = NULL;
    if (taken) {
        gvmm_buffer *made = NULL;
        call c;
        call_begin(&c);
        gvmm_result r = gvmm_buffer_compose(&made, self->resource, pieces, (size_t)count, recorded->stream);
        call_end(&c, self->state);
        result = r ? raise_result(self->state, r) : buffer_wrap(self, made, recorded);
        taken = !r;
    }
    if (!taken) stream_ref_clear(recorded);
    PyMem_Free(pieces);
    return result;
}

PyObject *resource_compose(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"compose", {"pieces", "stream"}, 1, 1};
    resource_object *self = (resource_object *)op;
    PyObject *given[2];
    stream_ref recorded;
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self)) return NULL;
    PyObject *held = PySequence_Tuple(given[0]);
    if (!held) return NULL;
    PyObject *result = NULL;
    if (take_stream(self->state, given[1], true, &recorded)) {
        stream_ref_record(&recorded, self->on_device);
        result = compose(self, held, &recorded);
    }
    Py_DECREF(held);
    return result;
}

/* ---- access ---- */

/* An ordinal, -1 for the CPU. */
static bool take_device(module_state *state, PyObject *device, int *out)
{
    if (PyUnicode_Check(device)) {
        static const char *const words[] = {"host", NULL};
        *out = -1;
        int word;
        return take_word("device", device, words, &word);
    }
    return take_ordinal(state, device, out);
}

static const gvmm_access accesses[] = {GVMM_ACCESS_READ, GVMM_ACCESS_READ_WRITE};
static const char *const access_words[] = {"r", "rw", NULL};

static PyObject *buffer_set_access(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"set_access", {"device", "access"}, 2, 3};
    buffer_object *self = (buffer_object *)op;
    PyObject *given[2];
    int device, word = 0;
    if (!take_arguments(&s, args, nargs, names, given) || !buffer_is_own(self)) return NULL;
    if (!take_device(self->state, given[0], &device)) return NULL;
    bool none = given[1] == Py_None;
    if (!none && !take_word("access", given[1], access_words, &word)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_set_access(self->buffer, device, none ? GVMM_ACCESS_NONE : accesses[word]);
    call_end(&c, self->state);
    return r ? raise_result(self->state, r) : Py_NewRef(Py_None);
}

static PyObject *buffer_get_access(PyObject *op, PyObject *device)
{
    buffer_object *self = (buffer_object *)op;
    gvmm_access access;
    int ordinal;
    if (!buffer_is_own(self) || !take_device(self->state, device, &ordinal)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_get_access(self->buffer, ordinal, &access);
    call_end(&c, self->state);
    if (r) return raise_result(self->state, r);
    if (access == GVMM_ACCESS_NONE) Py_RETURN_NONE;
    return PyUnicode_FromString(access_words[access == GVMM_ACCESS_READ_WRITE]);
}

/* ---- the type ---- */

static PyGetSetDef attributes[] = {
    {"capacity", get_capacity, NULL,
     "Bytes up to which it can grow where it is. Buffers with the same beginning compete for the space behind it. 0 when closed.",
     NULL},
    {"evicted_bytes", buffer_get_evicted, NULL, "Bytes of it that are evicted now; 0 when closed.", NULL},
    {"generation", buffer_get_generation, NULL,
     "Grows with every restore of any of its memory: a registration made at another number is of old pages.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"shrink", buffer_shrink, METH_O,
     "shrink($self, size, /)\n--\n\n"
     "Makes a buffer that shows the beginning: at least `size` bytes, up to the next border of a chunk, at the same address. `self`\n"
     "stays open; when it is closed, memory behind goes back unless somebody else holds it. Calls no driver.\n\n"
     "Raises RuntimeError for a closed buffer, TypeError for a wrapped one, OverflowError, CUDAMemoryError.\n\n"
     ">>> short = buffer.shrink(2 << 20); buffer.close()"},
    {"ring", FAST(buffer_ring),
     "ring($self, /, times=2)\n--\n\n"
     "Makes a buffer, at an address of its own, that shows this one's memory `times` (1 to 1024) in a row: what is written past the\n"
     "end is found at the beginning. Nothing is copied, and the ring holds the memory.\n\n"
     "Raises ValueError for `times`, RuntimeError for a closed buffer, TypeError for a wrapped one, CUDAError.\n\n"
     ">>> buffer.ring().size == 2 * buffer.size\nTrue"},
    {"set_access", FAST(buffer_set_access),
     "set_access($self, /, device, access)\n--\n\n"
     "Grants or revokes a device's access to the memory, wherever it is mapped, now and later; of a read-only piece of compose(), to\n"
     "that view alone. Work under way is yours to wait for.\n\n"
     "device\n    Ordinal, or an object with a device_id; \"host\" for the CPU, which can be granted host memory only.\n"
     "access\n    \"rw\", \"r\", or None, which revokes.\n\n"
     "Raises ValueError for either, RuntimeError for what the device cannot reach or a closed buffer, TypeError for a wrapped one,\n"
     "CUDAError. After a failure the access is everywhere as it was.\n\n"
     ">>> buffer.set_access(1, \"r\")"},
    {"get_access", buffer_get_access, METH_O,
     "get_access($self, device, /)\n--\n\n"
     "The least access that the device has to any byte: \"rw\", \"r\" or None. Calls no driver.\n\n"
     "Raises RuntimeError for a closed buffer, TypeError for a wrapped one.\n\n"
     ">>> buffer.get_access(0)\n'rw'"},
    {"evict", FAST(buffer_evict),
     "evict($self, /, contents=\"host\", *, stream=None, directory=None)\n--\n\n"
     "Gives the physical memory back and keeps the addresses. All views of the memory are concerned; until restore() touching it is\n"
     "an error, as for unmapped memory. Evicting again does nothing.\n\n"
     "contents\n    After the restore they are as before (\"host\": kept in pinned memory, \"file\": in a nameless file in `directory`), zero\n"
     "    (\"zero\") or undefined (\"drop\").\n"
     "stream\n    Waited for first. None: the recorded one. Work on others is yours to end.\n\n"
     "Raises RuntimeError while the stream is capturing, for a closed buffer, for contents of host memory that are to be kept, or in\n"
     "on_residency; TypeError for a wrapped buffer, ValueError, CUDAMemoryError if there is no room for the contents, CUDAError.\n"
     "After a failure nothing is evicted.\n\n"
     ">>> buffer.evict(); buffer.restore()"},
    {"restore", buffer_restore, METH_NOARGS,
     "restore($self, /)\n--\n\n"
     "Makes the memory anew at all its addresses and brings the contents back; when it returns all work may use it. Restoring again\n"
     "does nothing.\n\n"
     "Raises CUDAMemoryError if the device is full, CUDAError, RuntimeError for a closed buffer or in on_residency, TypeError for a\n"
     "wrapped one. After a failure all is evicted as before, contents still kept, to be tried again.\n\n"
     ">>> buffer.restore()"},
    {"send", FAST(buffer_send),
     "send($self, /, socket, *, timeout=30.0)\n--\n\n"
     "Sends the memory over a connected Unix socket to a process that calls VirtualMemoryResource.receive(), and returns when that\n"
     "holds it. Nothing is copied, and chunks that the receiver has are not sent again. Order between the processes' work is yours.\n\n"
     "socket\n    Of type SOCK_STREAM or SOCK_SEQPACKET, or its descriptor. After a failure it is good for closing only.\n"
     "timeout\n    Seconds for all of it; None: none.\n\n"
     "Raises CUDAError if the other process has gone (its result is \"GVMM_E_PEER_GONE\") or the memory cannot be exported,\n"
     "ValueError for what is no such socket or evicted memory, RuntimeError for a closed buffer, TypeError for a wrapped one.\n\n"
     ">>> weights.send(connection)"},
    {"identities", buffer_identities, METH_NOARGS,
     "identities($self, /)\n--\n\n"
     "(origin, serial, generation) of each chunk of memory, in address order: what it is known by in all processes. Equal if and\n"
     "only if it is the same memory. `origin`: 16 bytes, of the process that made it; `generation` rises with every restore.\n\n"
     "Raises RuntimeError for a closed buffer, TypeError for a wrapped one.\n\n"
     ">>> received.identities() == weights.identities()\nTrue"},
    {"_export", buffer_export_all, METH_NOARGS, NULL},
    {"__reduce__", buffer_refuse_pickle, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_getset, attributes},
    {Py_tp_methods, methods},
    {Py_tp_doc,
     "A buffer that a VirtualMemoryResource made. It can grow (modify_allocation() gives a longer view of the same memory),\n"
     "shrink, be put together with others (compose()), and sleep (evict())."},
    {0, NULL},
};

PyType_Spec vm_buffer_spec = {"gvmm.VirtualMemoryBuffer", sizeof(buffer_object), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots}; /* collected as its base is */

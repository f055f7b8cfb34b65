/* VirtualMemoryResource: where memory is made, and what is made there. */
#include <stddef.h>
#include <stdlib.h>

#include "ext.h"

/* ---- options ---- */

static bool take_peers(PyObject *peers, gvmm_options *out)
{
    Py_ssize_t count = PyTuple_Size(peers);
    int *list = count > 0 ? PyMem_Malloc((size_t)count * sizeof *list) : NULL;
    if (count < 0 || (count && !list)) return count < 0 ? false : (PyErr_NoMemory(), false);
    for (Py_ssize_t i = 0; i < count; i++) {
        long peer = PyLong_AsLong(PyTuple_GetItem(peers, i));
        if (peer == -1 && PyErr_Occurred()) {
            PyMem_Free(list);
            return false;
        }
        list[i] = (int)peer;
    }
    out->peers = list;
    out->peer_count = (size_t)count;
    return true;
}

/* Fills `out`, whose peers the caller frees. `of`: the resource's own options, if these are for a chunk of it; or NULL. A new reference
 * to the checked options. */
static PyObject *take_options(module_state *state, PyObject *config, PyObject *of, gvmm_options *out)
{
    PyObject *packed = PyObject_CallFunctionObjArgs(state->pack_options, config ? config : Py_None, of, NULL);
    if (!packed) return NULL;
    PyObject *checked = NULL, *numbers, *peers;
    int allocation, location, handle, granularity, rdma, self_access, peer_access, release;
    unsigned long long hint, align;
    *out = (gvmm_options)GVMM_OPTIONS_INIT;
    if (PyArg_ParseTuple(packed, "OO", &checked, &numbers) &&
        PyArg_ParseTuple(numbers, "iiiiipKKiiiO!", &allocation, &location, &out->numa_node, &handle, &granularity,
                         &rdma, &hint, &align, &self_access, &peer_access, &release, &PyTuple_Type, &peers) &&
        take_peers(peers, out)) {
        out->allocation_type = (gvmm_allocation_type)allocation;
        out->location = (gvmm_location_type)location;
        out->handle_type = (gvmm_handle_type)handle;
        out->granularity = (gvmm_granularity)granularity;
        out->gpu_direct_rdma = rdma;
        out->addr_hint = hint;
        out->addr_align = align;
        out->self_access = (gvmm_access)self_access;
        out->peer_access = (gvmm_access)peer_access;
        out->release_mode = (gvmm_release_mode)release;
        Py_INCREF(checked);
    } else checked = NULL;
    Py_DECREF(packed);
    return checked;
}

/* ---- start and end ---- */

static bool take_ordinal(module_state *state, PyObject *device, int *out)
{
    PyObject *number = PyObject_CallFunctionObjArgs(state->device_ordinal, device, NULL);
    if (!number) return false;
    long ordinal = PyLong_AsLong(number);
    Py_DECREF(number);
    if (ordinal == -1 && PyErr_Occurred()) return false;
    *out = ordinal > INT32_MAX || ordinal < INT32_MIN ? INT32_MAX : (int)ordinal;
    return true;
}

static int resource_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "config", NULL};
    resource_object *self = (resource_object *)op;
    PyObject *device, *config = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:VirtualMemoryResource", names, &device, &config)) return -1;
    module_state *state = state_of_type(Py_TYPE(op));
    if (!state) return -1;
    if (self->resource) {
        PyErr_SetString(PyExc_RuntimeError, "VirtualMemoryResource is initialised already");
        return -1;
    }
    int ordinal;
    gvmm_options options;
    if (!take_ordinal(state, device, &ordinal)) return -1;
    PyObject *checked = take_options(state, config, NULL, &options);
    if (!checked) return -1;

    gvmm_resource *resource = NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_resource_create(&resource, ordinal, &options);
    call_end(&c, state);
    PyMem_Free((void *)options.peers);
    if (r) {
        raise_result(state, r);
        Py_DECREF(checked);
        return -1;
    }
    self->state = state;
    self->resource = resource;
    self->generation = fork_generation();
    self->ordinal = ordinal;
    self->on_device = options.location == GVMM_LOCATION_DEVICE;
    self->granularity = gvmm_resource_granularity(resource);
    self->device = Py_NewRef(self->on_device ? device : Py_None);
    self->config = checked;
    return 0;
}

static int resource_traverse(PyObject *op, visitproc visit, void *arg)
{
    resource_object *self = (resource_object *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->device);
    Py_VISIT(self->config);
    return 0;
}

static int resource_clear(PyObject *op)
{
    resource_object *self = (resource_object *)op;
    Py_CLEAR(self->device);
    Py_CLEAR(self->config);
    return 0;
}

/* Giving up the last reference gives up the device's primary context, which may take a while. */
static void release_resource(resource_object *self)
{
    gvmm_resource *resource = self->resource;
    self->resource = NULL;
    if (!resource || self->generation != fork_generation()) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!is_exiting(self->state)) {
        call c;
        call_begin(&c);
        gvmm_resource_release(resource);
        call_end(&c, self->state);
    }
    PyErr_Restore(type, value, traceback);
}

static void resource_dealloc(PyObject *op)
{
    resource_object *self = (resource_object *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs) PyObject_ClearWeakRefs(op);
    release_resource(self);
    resource_clear(op);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

static bool ready(resource_object *self)
{
    if (self->resource) return true;
    PyErr_SetString(PyExc_RuntimeError, "VirtualMemoryResource is not initialised: call its __init__");
    return false;
}

/* ---- allocate, grow, give back ---- */

/* Sizes round up; what does not fit then is an overflow, not an error of the driver. */
static bool fits(const resource_object *self, size_t size)
{
    if (size <= SIZE_MAX / self->granularity * self->granularity) return true;
    PyErr_Format(PyExc_OverflowError, "size %zu overflows when rounded up to the granularity", size);
    return false;
}

static PyObject *resource_allocate(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"allocate", {"size", "stream"}, 1, 1};
    resource_object *self = (resource_object *)op;
    PyObject *given[2];
    size_t size;
    stream_ref recorded;
    if (!take_arguments(&s, args, nargs, names, given) || !ready(self)) return NULL;
    if (!take_size(given[0], &size) || !fits(self, size) || !take_stream(given[1], true, &recorded)) return NULL;
    stream_ref_record(&recorded, self->on_device);

    gvmm_buffer *buffer = NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_buffer_create(&buffer, self->resource, size, recorded.stream);
    call_end(&c, self->state);
    if (!r) return buffer_wrap(self, buffer, &recorded);
    raise_result(self->state, r);
    stream_ref_clear(&recorded);
    return NULL;
}

/* The buffer must be one of this resource's own making. */
static bool may_modify(resource_object *self, PyObject *buffer)
{
    if (!PyObject_TypeCheck(buffer, self->state->vm_buffer_type)) {
        PyErr_Format(PyExc_TypeError, "buffer must be a VirtualMemoryBuffer, not %R", (PyObject *)Py_TYPE(buffer));
        return false;
    }
    buffer_object *b = (buffer_object *)buffer;
    if (!buffer_view(b).open) return raise_closed() != NULL;
    if (b->mr == (PyObject *)self && b->buffer) return true;
    PyErr_SetString(PyExc_TypeError,
                    b->buffer ? "buffer is of another resource" : "buffer is a wrapped mapping, which cannot grow");
    return false;
}

static PyObject *resource_modify(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"modify_allocation", {"buffer", "new_size", "config"}, 3, 3};
    resource_object *self = (resource_object *)op;
    PyObject *given[3];
    size_t size;
    gvmm_options options = {.peers = NULL};
    if (!take_arguments(&s, args, nargs, names, given) || !ready(self) || !may_modify(self, given[0])) return NULL;
    bool own = given[2] && given[2] != Py_None;
    if (own) {
        PyObject *checked = take_options(self->state, given[2], self->config, &options);
        if (!checked) return NULL;
        Py_DECREF(checked);
    }
    PyObject *result = NULL;
    if (take_size(given[1], &size) && fits(self, size)) {
        buffer_object *input = (buffer_object *)given[0];
        stream_ref recorded = buffer_recorded(input);
        gvmm_buffer *buffer = NULL;
        call c;
        call_begin(&c);
        gvmm_result r = gvmm_buffer_grow(&buffer, input->buffer, size, own ? &options : NULL);
        call_end(&c, self->state);
        result = r ? raise_result(self->state, r) : buffer_wrap(self, buffer, &recorded);
        if (r) stream_ref_clear(&recorded);
    }
    PyMem_Free((void *)options.peers);
    return result;
}

static PyObject *resource_deallocate(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"deallocate", {"ptr", "size", "stream"}, 2, 3};
    resource_object *self = (resource_object *)op;
    PyObject *given[3];
    uint64_t address;
    size_t size;
    stream_ref stream;
    if (!take_arguments(&s, args, nargs, names, given) || !ready(self)) return NULL;
    if (!take_address(given[0], &address) || !take_size(given[1], &size) || !take_stream(given[2], true, &stream))
        return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_resource_deallocate(self->resource, address, size, stream.stream);
    call_end(&c, self->state);
    if (r) raise_result(self->state, r);
    stream_ref_clear(&stream);
    return r ? NULL : Py_NewRef(Py_None);
}

/* ---- attributes ---- */

static PyObject *get_device_id(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromLong(gvmm_resource_device(((resource_object *)op)->resource));
}

static PyObject *get_granularity(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((resource_object *)op)->granularity);
}

static PyObject *get_accessible(PyObject *op, void *on_host)
{
    resource_object *self = (resource_object *)op;
    if (!ready(self)) return NULL;
    return PyBool_FromLong(on_host ? gvmm_resource_is_host_accessible(self->resource)
                                   : gvmm_resource_is_device_accessible(self->resource));
}

static PyObject *get_managed(PyObject *op, void *unused)
{
    (void)op;
    (void)unused;
    Py_RETURN_FALSE;
}

static PyObject *resource_repr(PyObject *op)
{
    resource_object *self = (resource_object *)op;
    if (!self->resource) return PyUnicode_FromString("<VirtualMemoryResource, not initialised>");
    if (self->on_device) return PyUnicode_FromFormat("<VirtualMemoryResource on device %d>", self->ordinal);
    return PyUnicode_FromString("<VirtualMemoryResource on the host>");
}

static PyGetSetDef attributes[] = {
    {"device_id", get_device_id, NULL, "Ordinal of the device, or -1 for host locations.", NULL},
    {"granularity", get_granularity, NULL, "What sizes are rounded up to, in bytes.", NULL},
    {"is_device_accessible", get_accessible, NULL, "Can a device touch the memory?", NULL},
    {"is_host_accessible", get_accessible, NULL, "Can the CPU touch the memory?", (void *)1},
    {"is_managed", get_managed, NULL, "False: it is never managed memory.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"device", T_OBJECT, offsetof(resource_object, device), READONLY,
     "The device as it was given; None for host locations."},
    {"config", T_OBJECT, offsetof(resource_object, config), READONLY, "The options, as VirtualMemoryResourceOptions."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(resource_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"allocate", FAST(resource_allocate),
     "allocate($self, /, size, *, stream=None)\n--\n\n"
     "Makes a buffer of `size` bytes, rounded up to the granularity (2 MiB on today's devices). Its bytes are zero. Size 0 gives\n"
     "an empty buffer and calls no driver.\n\n"
     "stream\n    Whose work is waited for before the memory is given up: anything with __cuda_stream__, or an int. None: the\n"
     "    device's legacy default stream; for host locations none.\n\n"
     "Raises OverflowError, TypeError for the size, RuntimeError for a closed stream, CUDAMemoryError or another CUDAError. Needs\n"
     "no current context. After a failure nothing is left.\n\n"
     ">>> resource.allocate(3 << 20).size\n4194304"},
    {"modify_allocation", FAST(resource_modify),
     "modify_allocation($self, /, buffer, new_size, config=None)\n--\n\n"
     "Makes a buffer that shows `buffer`'s memory followed by new bytes up to `new_size` in all, rounded up. Nothing is copied, and\n"
     "`buffer` stays as it is and open. The address stays where the addresses behind are free; else all is mapped again at a\n"
     "new one, and both work. Not more than `buffer` has: a second buffer of the whole.\n\n"
     "config\n    Options for the new bytes alone. None: the resource's.\n\n"
     "Raises TypeError for a buffer that is not this resource's, RuntimeError for a closed one, ValueError for the config,\n"
     "OverflowError, CUDAError. After a failure `buffer` is as it was. Waits for nothing, and may be called while capturing.\n\n"
     ">>> large = resource.modify_allocation(small, 64 << 20)"},
    {"deallocate", FAST(resource_deallocate),
     "deallocate($self, /, ptr, size, *, stream=None)\n--\n\n"
     "Unmaps `size` bytes at `ptr` and frees that reservation: for a mapping made by hand, that is one reservation, wholly mapped,\n"
     "whose handles have been released. Buffers of allocate() and modify_allocation() never need it.\n\n"
     "stream\n    Waited for first. None: nothing is.\n\n"
     "Raises RuntimeError for a capturing stream, with nothing done; CUDAError with the first failure of unmapping and freeing:\n"
     "both are tried.\n\n"
     ">>> Buffer.from_handle(ptr, size, mr=resource).close()  # calls resource.deallocate(ptr, size, stream=...)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, resource_init},
    {Py_tp_traverse, resource_traverse},
    {Py_tp_clear, resource_clear},
    {Py_tp_dealloc, resource_dealloc},
    {Py_tp_repr, resource_repr},
    {Py_tp_getset, attributes},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_doc,
     "VirtualMemoryResource(device, config=None)\n--\n\n"
     "A device, or the host, and the options of the memory that is made there. Finds and starts the driver on first use.\n\n"
     "device\n    Ordinal, or an object with a device_id. For host locations only asked what it supports.\n"
     "config\n    VirtualMemoryResourceOptions, a mapping, or None for the defaults.\n\n"
     "Raises ValueError for an option that is wrong, NotImplementedError for win32 handles, RuntimeError for what the device\n"
     "lacks, CUDAError. Dropping it while buffers live is harmless.\n\n"
     ">>> resource = VirtualMemoryResource(0, {\"self_access\": \"rw\"})"},
    {0, NULL},
};

PyType_Spec resource_spec = {"gvmm.VirtualMemoryResource", sizeof(resource_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

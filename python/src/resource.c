/* VirtualMemoryResource: where memory is made, and what is made there. */
#include <stddef.h>
#include <stdlib.h>

#include "ext.h"

/* ---- options ---- */

/* A tuple of ordinals as an array, which the caller frees. */
static bool take_ordinals(PyObject *ordinals, const int **out, size_t *out_count)
{
    Py_ssize_t count = PyTuple_Size(ordinals);
    int *list = count > 0 ? PyMem_Malloc((size_t)count * sizeof *list) : NULL;
    if (count < 0 || (count && !list)) return count < 0 ? false : (PyErr_NoMemory(), false);
    for (Py_ssize_t i = 0; i < count; i++) {
        long ordinal = PyLong_AsLong(PyTuple_GetItem(ordinals, i));
        if (ordinal == -1 && PyErr_Occurred()) {
            PyMem_Free(list);
            return false;
        }
        list[i] = (int)ordinal;
    }
    *out = list;
    *out_count = (size_t)count;
    return true;
}

static void free_lists(gvmm_options *options)
{
    PyMem_Free((void *)options->peers);
    PyMem_Free((void *)options->stripe);
}

/* The numbers in the order of gvmm._options.pack. False: an exception is set, and `out` has no lists. */
static bool take_numbers(PyObject *numbers, gvmm_options *out)
{
    int allocation, location, handle, granularity, rdma, self_access, peer_access, release, outlive, zero;
    unsigned long long hint, align, capacity, chunk_size, ahead_count, reuse_limit;
    PyObject *peers, *stripe;
    *out = (gvmm_options)GVMM_OPTIONS_INIT;
    if (!PyArg_ParseTuple(numbers, "iiiiipKKiiiO!KKO!KiIKpp", &allocation, &location, &out->numa_node, &handle,
                          &granularity, &rdma, &hint, &align, &self_access, &peer_access, &release, &PyTuple_Type,
                          &peers, &capacity, &chunk_size, &PyTuple_Type, &stripe, &ahead_count, &out->tag,
                          &out->optional, &reuse_limit, &outlive, &zero))
        return false;
    if (!take_ordinals(peers, &out->peers, &out->peer_count)) return false;
    if (!take_ordinals(stripe, &out->stripe, &out->stripe_count)) {
        PyMem_Free((void *)out->peers);
        return false;
    }
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
    out->capacity = capacity;
    out->chunk_size = (size_t)chunk_size;
    out->ahead_count = (size_t)ahead_count;
    out->reuse_limit = reuse_limit;
    out->streams_outlive = outlive;
    out->zero_reused = zero;
    return true;
}

/* Fills `out`, whose lists the caller frees. `of`: the resource's own options, if these are for a chunk of it; or NULL. A new reference
 * to the checked options. */
static PyObject *take_options(module_state *state, PyObject *config, PyObject *of, gvmm_options *out)
{
    PyObject *packed = PyObject_CallFunctionObjArgs(state->pack_options, config ? config : Py_None, of, NULL);
    if (!packed) return NULL;
    PyObject *checked = NULL, *numbers;
    if (PyArg_ParseTuple(packed, "OO", &checked, &numbers) && take_numbers(numbers, out)) Py_INCREF(checked);
    else checked = NULL;
    Py_DECREF(packed);
    return checked;
}

static PyObject *peers_of(const gvmm_options *options)
{
    PyObject *peers = PyTuple_New((Py_ssize_t)options->peer_count);
    for (size_t i = 0; peers && i < options->peer_count; i++) {
        PyObject *peer = PyLong_FromLong(options->peers[i]);
        if (!peer || PyTuple_SetItem(peers, (Py_ssize_t)i, peer) < 0) Py_CLEAR(peers);
    }
    return peers;
}

/* The options with what was got of the optional ones. Takes `checked`. */
static PyObject *settle(module_state *state, PyObject *checked, const gvmm_resource *resource)
{
    gvmm_options got;
    gvmm_resource_options(resource, &got);
    if (!got.optional) return checked;
    PyObject *peers = peers_of(&got), *settled = NULL;
    if (peers)
        settled = PyObject_CallFunction(state->settled_options, "OOiO", checked,
                                        got.gpu_direct_rdma ? Py_True : Py_False, (int)got.handle_type, peers);
    Py_XDECREF(peers);
    Py_DECREF(checked);
    return settled;
}

/* _probe_settle(records, config) -> (options as checked, rdma, handle_type, peers, capacity, chunk_size): what all ranks can have */
PyObject *probe_settle(PyObject *module, PyObject *args)
{
    module_state *state = PyModule_GetState(module);
    gvmm_common_report common;
    gvmm_options options;
    PyObject *records, *config, *settled = NULL;
    if (!PyArg_ParseTuple(args, "OO", &records, &config) || !take_records(state, records, &common)) return NULL;
    PyObject *checked = take_options(state, config, NULL, &options);
    if (!checked) return NULL;
    int *given = (int *)options.peers; /* settled in place */
    gvmm_result r = gvmm_probe_settle(&options, given, &common);
    PyObject *peers = r ? raise_result(state, r) : peers_of(&options);
    if (peers)
        settled = Py_BuildValue("OOiOKK", checked, options.gpu_direct_rdma ? Py_True : Py_False,
                                (int)options.handle_type, peers, (unsigned long long)options.capacity,
                                (unsigned long long)options.chunk_size);
    options.peers = given;
    free_lists(&options);
    Py_XDECREF(peers);
    Py_DECREF(checked);
    return settled;
}

/* ---- start and end ---- */

bool take_ordinal(module_state *state, PyObject *device, int *out)
{
    PyObject *number = PyObject_CallFunctionObjArgs(state->device_ordinal, device, NULL);
    if (!number) return false;
    long ordinal = PyLong_AsLong(number);
    Py_DECREF(number);
    if (ordinal == -1 && PyErr_Occurred()) return false;
    *out = ordinal > INT32_MAX || ordinal < INT32_MIN ? INT32_MAX : (int)ordinal;
    return true;
}

/* Giving up the last reference gives up the device's primary context, which may take a while. Keeps an exception. */
static void drop(module_state *state, gvmm_resource *resource)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!is_exiting(state)) {
        call c;
        call_begin(&c);
        gvmm_resource_set_residency_handler(resource, NULL, NULL);
        gvmm_resource_release(resource);
        call_end(&c, state);
    }
    PyErr_Restore(type, value, traceback);
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
    free_lists(&options);
    if (r) {
        raise_result(state, r);
        Py_DECREF(checked);
        return -1;
    }
    self->state = state;
    atomic_flag_clear(&self->lock);
    checked = settle(state, checked, resource);
    if (!checked) {
        drop(state, resource);
        return -1;
    }
    self->resource = resource;
    self->generation = fork_generation();
    self->ordinal = ordinal;
    self->on_device = options.location == GVMM_LOCATION_DEVICE;
    self->granularity = gvmm_resource_granularity(resource);
    self->device = Py_NewRef(self->on_device ? device : Py_None);
    self->config = checked;
    resource_watch(self);
    return 0;
}

static int resource_traverse(PyObject *op, visitproc visit, void *arg)
{
    resource_object *self = (resource_object *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->device);
    Py_VISIT(self->config);
    Py_VISIT(self->on_residency);
    return 0;
}

static int resource_clear(PyObject *op)
{
    resource_object *self = (resource_object *)op;
    Py_CLEAR(self->device);
    Py_CLEAR(self->config);
    Py_CLEAR(self->on_residency);
    return 0;
}

static void release_resource(resource_object *self)
{
    gvmm_resource *resource = self->resource;
    self->resource = NULL;
    if (resource && self->generation == fork_generation()) drop(self->state, resource);
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

bool resource_ready(resource_object *self)
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
    static const signature s = {"allocate", {"size", "stream", "capacity"}, 1, 1};
    resource_object *self = (resource_object *)op;
    PyObject *given[3];
    size_t size, capacity = 0;
    stream_ref recorded;
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self)) return NULL;
    bool ahead = given[2] && given[2] != Py_None;
    if (!take_size(given[0], &size) || !fits(self, size) || (ahead && !take_size(given[2], &capacity))) return NULL;
    if (!take_stream(self->state, given[1], true, &recorded)) return NULL;
    gvmm_stream on = recorded.stream; /* kept memory tells a thread's own default stream from the legacy one */
    stream_ref_record(&recorded, self->on_device);

    gvmm_buffer *buffer = NULL;
    call c;
    call_begin(&c);
    gvmm_result r = ahead ? gvmm_buffer_create_with_capacity(&buffer, self->resource, size, capacity, on)
                          : gvmm_buffer_create(&buffer, self->resource, size, on);
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
    gvmm_options options = {.peers = NULL, .stripe = NULL};
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self) || !may_modify(self, given[0]))
        return NULL;
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
    free_lists(&options);
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
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self)) return NULL;
    if (!take_address(given[0], &address) || !take_size(given[1], &size) ||
        !take_stream(self->state, given[2], true, &stream))
        return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_resource_deallocate(self->resource, address, size, stream.stream);
    call_end(&c, self->state);
    if (r) raise_result(self->state, r);
    stream_ref_clear(&stream);
    return r ? NULL : Py_NewRef(Py_None);
}

static PyObject *resource_trim(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const signature s = {"trim", {"keep"}, 1, 0};
    resource_object *self = (resource_object *)op;
    PyObject *given[1];
    size_t keep = 0;
    if (!take_arguments(&s, args, nargs, names, given) || !resource_ready(self)) return NULL;
    if (given[0] && !take_size(given[0], &keep)) return NULL;
    call c;
    call_begin(&c);
    size_t bytes = gvmm_resource_trim(self->resource, keep);
    call_end(&c, self->state);
    return PyLong_FromSize_t(bytes);
}

static PyObject *resource_set_reuse_limit(PyObject *op, PyObject *limit)
{
    resource_object *self = (resource_object *)op;
    size_t bytes;
    if (!resource_ready(self) || !take_size(limit, &bytes)) return NULL;
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_resource_set_reuse_limit(self->resource, bytes);
    call_end(&c, self->state);
    return r ? raise_result(self->state, r) : Py_NewRef(Py_None);
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
    if (!resource_ready(self)) return NULL;
    return PyBool_FromLong(on_host ? gvmm_resource_is_host_accessible(self->resource)
                                   : gvmm_resource_is_device_accessible(self->resource));
}

static PyObject *get_managed(PyObject *op, void *unused)
{
    (void)op;
    (void)unused;
    Py_RETURN_FALSE;
}

static PyObject *get_handle_answer(PyObject *op, void *unused)
{
    (void)unused;
    resource_object *self = (resource_object *)op;
    gvmm_answer answer = {0};
    if (!resource_ready(self)) return NULL;
    gvmm_resource_handle_answer(self->resource, &answer);
    PyObject *module = PyImport_ImportModule("gvmm._probe");
    PyObject *told = module
                         ? PyObject_CallMethod(module, "handle_answer", "Oziz", answer.available ? Py_True : Py_False,
                                               answer.call, answer.status, answer.advice)
                         : NULL;
    Py_XDECREF(module);
    return told;
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
    {"handle_answer", get_handle_answer, NULL,
     "Why the handle_type in force is not the one that was asked for if available, as a Capability: which driver call said no, and\n"
     "what helps. True if it is, or if no driver had to be asked, as for \"host\" memory and \"win32\".\n\n"
     ">>> resource = VirtualMemoryResource(0, {\"handle_type\": \"fabric\", \"optional\": \"fabric\"})\n"
     ">>> if not resource.handle_answer:\n...     print(resource.config.handle_type, resource.handle_answer.advice)",
     NULL},
    {"is_managed", get_managed, NULL, "False: it is never managed memory.", NULL},
    {"on_residency", resource_get_on_residency, resource_set_on_residency,
     "Who is told of evicting and restoring: None, or a callable that takes a ResidencyEvent, so that registrations of the memory\n"
     "elsewhere can be renewed. Called on the thread that evicts or restores; it may use the buffer, and must not evict or restore.\n"
     "An exception in it goes to sys.unraisablehook and changes nothing.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"device", T_OBJECT, offsetof(resource_object, device), READONLY,
     "The device as it was given; None for host locations."},
    {"config", T_OBJECT, offsetof(resource_object, config), READONLY,
     "The options, as VirtualMemoryResourceOptions; of the optional ones what was got."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(resource_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"allocate", FAST(resource_allocate),
     "allocate($self, /, size, *, stream=None, capacity=None)\n--\n\n"
     "Makes a buffer of `size` bytes, rounded up to the granularity (2 MiB on today's devices). Its bytes are zero, unless it is\n"
     "made of kept memory (reuse_limit, without zero_reused). Size 0 gives an empty buffer and calls no driver.\n\n"
     "stream\n    Whose work is waited for before the memory is given up: anything with __cuda_stream__, or an int. None: the\n"
     "    device's legacy default stream; for host locations none. With a reuse_limit also the stream whose work may use the\n"
     "    buffer first; it must not begin to capture in another thread during the call.\n"
     "capacity\n    Bytes of addresses to reserve, so that it grows in place. None: the resource's. What the driver refuses is halved\n"
     "    until it agrees: buffer.capacity says what was got.\n\n"
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
    {"trim", FAST(resource_trim),
     "trim($self, /, keep=0)\n--\n\n"
     "Gives back memory that is kept for reuse, the oldest first, until no more than `keep` bytes are kept. It goes when the work\n"
     "before it is done; drain() waits for that. Returns the bytes given up. Harms no capture.\n\n"
     "Raises TypeError and OverflowError for the number.\n\n"
     ">>> resource.trim(); gvmm.drain()"},
    {"set_reuse_limit", resource_set_reuse_limit, METH_O,
     "set_reuse_limit($self, limit, /)\n--\n\n"
     "Another reuse_limit from now on, bytes; what is kept above it goes as by trim(). 0 keeps nothing. `config` tells the first\n"
     "one. Harms no capture.\n\n"
     "Raises ValueError for a resource that was made without a reuse_limit, TypeError and OverflowError for the number.\n\n"
     ">>> resource.set_reuse_limit(1 << 30)"},
    {"compose", FAST(resource_compose),
     "compose($self, /, pieces, *, stream=None)\n--\n\n"
     "Makes a buffer, at an address of its own, that shows pieces of others one behind the other. Nothing is copied; the pieces'\n"
     "buffers stay open, and may be closed. It can grow.\n\n"
     "pieces\n    Each a VirtualMemoryBuffer, of whatever resource, or a tuple (buffer, offset, size) or (buffer, offset, size, \"r\"), in\n"
     "    bytes, at borders of the buffer's chunks. A size of None is all from the offset on. With \"r\" nobody writes through this view.\n"
     "stream\n    As in allocate().\n\n"
     "Raises ValueError for a piece that does not lie at borders of chunks, TypeError for what is no piece, RuntimeError for a closed\n"
     "buffer, OverflowError, CUDAError. After a failure nothing is left.\n\n"
     ">>> swapped = resource.compose([(b, 4 << 20, None), (b, 0, 4 << 20)])"},
    {"evict", FAST(resource_evict),
     "evict($self, /, tag=None, *, contents=\"host\", stream=None, directory=None)\n--\n\n"
     "Evicts the memory that was made with this resource's options of this tag and is mapped: VirtualMemoryBuffer.evict() of all.\n\n"
     "tag\n    As in the options. None: all of the resource's memory.\n"
     "stream\n    Waited for first. None: the device's legacy default stream. Work on others is yours to end.\n\n"
     "Raises as VirtualMemoryBuffer.evict(); RuntimeError also while waiting for the default stream would end a capture.\n\n"
     ">>> resource.evict(tag=WEIGHTS); resource.evict(tag=CACHE, contents=\"drop\")"},
    {"prepare_evict", FAST(resource_prepare_evict),
     "prepare_evict($self, /, size)\n--\n\n"
     "Has `size` bytes of host memory pinned ahead, in the background: the next evict() that keeps contents in host memory, of this\n"
     "resource or of a buffer of it, takes them and returns that much sooner. One that needs more gives them up.\n\n"
     "size\n    Rounded up to the granularity; replaces another size that was prepared before. 0 gives it up.\n\n"
     "Raises MemoryError if the machine does not have as much, RuntimeError for host memory, OverflowError, CUDAError. drain() waits\n"
     "until it is pinned; what fails on the way is not told, and evict() then pins for itself.\n\n"
     ">>> resource.prepare_evict(8 << 30)"},
    {"restore", FAST(resource_restore),
     "restore($self, /, tag=None)\n--\n\n"
     "Restores what evict() evicted, and raises as VirtualMemoryBuffer.restore(): all of it or none.\n\n"
     ">>> resource.restore(tag=WEIGHTS)"},
    {"receive", FAST(resource_receive),
     "receive($self, /, socket, *, have=None, stream=None, timeout=30.0)\n--\n\n"
     "Makes a buffer of what VirtualMemoryBuffer.send() sends: the same memory, open to this resource's readers. It can grow by memory\n"
     "of its own; it cannot be evicted or sent on.\n\n"
     "have\n    What an earlier receive gave: what it begins with is not sent again, and if the sender's has only grown, the result\n"
     "    stays at its address where there is room (option capacity). It stays open.\n"
     "stream\n    As in allocate().\n"
     "socket, timeout\n    As in send().\n\n"
     "Raises CUDAError if the other process has gone (\"GVMM_E_PEER_GONE\"), ValueError for what is no such socket, or no memory,\n"
     "TypeError, RuntimeError. After a failure nothing is left.\n\n"
     ">>> weights = resource.receive(connection)"},
    {"_import", resource_import, METH_VARARGS, NULL},
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

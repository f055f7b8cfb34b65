/* Graphs hold ranges through CUDA user objects. */
#include "internal.h"

typedef struct held {
    job give_back;
    range *range;
} held;

/* On the worker. */
static void give_back(job *self)
{
    held *h = (held *)self; /* its first member */
    gvmm__range_release(h->range);
    gvmm__free(h);
    gvmm__unhold();
}

/* Runs where every driver call is refused, on a thread of the driver's or in a caller's last call: all it may do is hand the
 * range over. */
static void graph_is_gone(void *data) { gvmm__work(&((held *)data)->give_back); }

/* Takes `h` over, also on failure. */
static gvmm_result hold(gvmm_graph graph, held *h)
{
    CUuserObject object;
    gvmm_result r = DRIVER(cuUserObjectCreate, &object, h, graph_is_gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (r) {
        graph_is_gone(h);
        return r;
    }
    r = DRIVER(cuGraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (r) DRIVER_UNDO("user object", (uintptr_t)object, cuUserObjectRelease, object, 1);
    return r;
}

gvmm_result gvmm_buffer_retain_in_graph(gvmm_buffer *buffer, gvmm_graph graph)
{
    if (!buffer || !graph) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", buffer ? "graph" : "buffer");
    range *r;
    gvmm_result failed = gvmm__buffer_borrow(&r, buffer);
    if (failed || !r) return failed; /* an empty buffer has nothing to hold */
    failed = gvmm__worker_start();
    held *h = failed ? NULL : gvmm__alloc(sizeof *h);
    if (!h) {
        gvmm__range_release(r);
        return failed ? failed : GVMM_E_NO_HOST_MEMORY;
    }
    *h = (held){{.run = give_back, .gives_back = true}, r};
    gvmm__hold();
    failed = hold(graph, h);
    return gvmm__about(failed, "graph", "%p", (void *)graph);
}

gvmm_result gvmm_buffer_retain_in_capture(gvmm_buffer *buffer, gvmm_stream stream)
{
    if (!buffer || !stream) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", buffer ? "stream" : "buffer");
    if (gvmm__in_child()) return gvmm__fail_in_child();
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph = NULL;
    gvmm_result r = DRIVER(cuStreamGetCaptureInfo, stream, &status, &id, &graph, NULL, NULL);
    if (r) return gvmm__about(r, "stream", "%p", (void *)stream);
    if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || !graph)
        return gvmm__fail(GVMM_E_INVALID, "stream %p is not capturing", (void *)stream);
    return gvmm_buffer_retain_in_graph(buffer, graph);
}

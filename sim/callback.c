/* Host functions, and the callbacks that came before them. */
#include "exec.h"

CUresult sim_cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data)
{
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    sim_operation operation = {.type = CU_GRAPH_NODE_TYPE_HOST, .name = sim_call_name, .host = {fn, data}};
    return sim_submit(stream, &operation, SIM_ASYNC);
}

typedef struct callback {
    sim_stream *stream; /* held */
    CUstream handle;
    CUstreamCallback function;
    void *data;
    CUresult status;
} callback;

static void callback_call(void *argument)
{
    callback *c = argument;
    c->function(c->handle, c->status, c->data);
}

/* Called after an error too, and told of it. */
static CUresult callback_run(void *argument, const sim_actor *who)
{
    (void)who;
    callback *c = argument;
    sim_enter();
    c->status = c->stream->context->error;
    sim_leave(CUDA_SUCCESS);
    sim_call_host(callback_call, c);
    return CUDA_SUCCESS;
}

static void callback_drop(void *argument)
{
    callback *c = argument;
    sim_enter();
    if (c->stream) sim_stream_release(c->stream);
    sim_leave(CUDA_SUCCESS);
    free(c);
}

static CUresult callback_queue(CUstream handle, callback *c, sim_item *item)
{
    sim_stream *s;
    CUresult r = sim_stream_find(handle, &s);
    if (!r) r = sim_capture_forbid(s);
    if (!r) r = sim_stream_push(s, item);
    if (r) return r;
    c->stream = s;
    sim_stream_retain(s);
    return CUDA_SUCCESS;
}

CUresult sim_cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data, unsigned int flags)
{
    if (!function || flags) return CUDA_ERROR_INVALID_VALUE;
    callback *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (callback){.handle = stream, .function = function, .data = data};
    sim_item *item = sim_item_new((sim_work){sim_call_name, callback_run, callback_drop, c});
    if (!item) return free(c), CUDA_ERROR_OUT_OF_MEMORY;
    item->always = true;
    sim_enter();
    CUresult r = sim_leave(callback_queue(stream, c, item));
    if (r) sim_item_drop(item);
    return r;
}

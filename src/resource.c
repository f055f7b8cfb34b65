/* A device, or the host, and the options of the memory that is made there. */
#include <string.h>

#include "internal.h"

static gvmm_resource *new_resource(int ordinal, const gvmm_options *o)
{
    gvmm_resource *resource = gvmm__alloc(sizeof *resource);
    if (!resource) return NULL;
    memset(resource, 0, sizeof *resource);
    ref_init(&resource->refs);
    resource->options = *o;
    resource->ordinal = ordinal;
    resource->device.ordinal = -1;
    atomic_init(&resource->users, 1);
    return resource;
}

/* What options and driver decide; a failure leaves it to the caller to release what is there. */
static gvmm_result fit_out(gvmm_resource *resource)
{
    gvmm_options *o = &resource->options;
    resource->account = gvmm__account_create();
    gvmm_result r = resource->account ? GVMM_OK : GVMM_E_NO_HOST_MEMORY;
    if (!r) r = gvmm__placement_create(&resource->placement, o, resource->ordinal);
    if (r) return r;
    o->capacity = resource->placement->capacity;
    o->chunk_size = resource->placement->chunk_size;
    if (o->location == GVMM_LOCATION_DEVICE)
        r = gvmm__device_open(&resource->device, resource->ordinal, resource->placement->prop.location.id);
    if (!r && o->ahead_count)
        r = gvmm__stock_create(&resource->stock, resource->placement, o->ahead_count, resource->account);
    if (!r && o->reuse_limit)
        r = gvmm__reuse_create(&resource->reuse, &resource->device, o->reuse_limit, o->streams_outlive,
                               gvmm__buffer_drop);
    return r;
}

gvmm_result gvmm_resource_create(gvmm_resource **out, int device, const gvmm_options *options)
{
    if (!out) return gvmm__fail(GVMM_E_INVALID, "out is NULL");
    const gvmm_driver *driver;
    gvmm_options checked;
    gvmm_result r = gvmm__options_check(&checked, options);
    if (!r) r = gvmm_driver_get(&driver);
    if (r) return r;

    gvmm_resource *resource = new_resource(device, &checked);
    if (!resource) return GVMM_E_NO_HOST_MEMORY;
    r = fit_out(resource);
    if (r) {
        gvmm_resource_release(resource);
        return r;
    }
    *out = resource;
    return GVMM_OK;
}

gvmm_resource *gvmm_resource_retain(gvmm_resource *resource)
{
    if (!resource) return NULL;
    gvmm__resource_hold(resource);
    atomic_fetch_add(&resource->users, 1);
    return resource;
}

void gvmm__resource_hold(gvmm_resource *resource) { ref_retain(&resource->refs); }

/* Also the end of one that was only half made. */
void gvmm__resource_unhold(gvmm_resource *resource)
{
    if (!ref_release(&resource->refs)) return;
    gvmm__stock_end(resource->stock);
    gvmm__prepare_end(&resource->prepared);
    gvmm__reuse_free(resource->reuse);
    gvmm__device_close(&resource->device);
    gvmm__placement_release(resource->placement);
    account *a = resource->account;
    gvmm__free(resource);
    gvmm__account_release(a); /* last: from here on the allocator may be replaced */
}

/* What the cache counted, from now on with the rest. */
static void end_reuse(gvmm_resource *resource)
{
    reuse_figures last;
    gvmm__reuse_end(resource->reuse, &last);
    gvmm__account_add(resource->account, STAT_buffers, last.taken - last.put);
    gvmm__account_add(resource->account, STAT_allocations, last.taken);
    gvmm__account_add(resource->account, STAT_reused, last.taken);
    gvmm__count_calls(last.calls);
}

/* Nobody makes buffers any more with the last user's reference: what is kept for them goes, and holds the resource no
 * longer. */
void gvmm_resource_release(gvmm_resource *resource)
{
    if (!resource || gvmm__in_child()) return;
    bool last = atomic_fetch_sub(&resource->users, 1) == 1;
    if (last && resource->reuse) end_reuse(resource);
    gvmm__resource_unhold(resource);
}

int gvmm_resource_device(const gvmm_resource *resource) { return resource ? resource->device.ordinal : -1; }

size_t gvmm_resource_granularity(const gvmm_resource *resource)
{
    return resource ? resource->placement->granularity : 0;
}

void gvmm_resource_options(const gvmm_resource *resource, gvmm_options *out)
{
    if (resource && out) *out = resource->options;
}

void gvmm_resource_handle_answer(const gvmm_resource *resource, gvmm_answer *out)
{
    if (resource && out) *out = resource->placement->handle_answer;
}

bool gvmm_resource_is_device_accessible(const gvmm_resource *resource)
{
    if (!resource) return false;
    const gvmm_options *o = &resource->options;
    bool peers_may = o->peer_count && o->peer_access;
    return o->location == GVMM_LOCATION_DEVICE || peers_may;
}

bool gvmm_resource_is_host_accessible(const gvmm_resource *resource)
{
    return resource && resource->options.location != GVMM_LOCATION_DEVICE;
}

static _Atomic(room_maker) others;

void gvmm__room_from(room_maker fn) { atomic_store(&others, fn); }

bool gvmm__make_room(int device, uint64_t before)
{
    bool kept = gvmm__reuse_trim_all(), had_stock = gvmm__stocks_flush(device);
    bool waiting = gvmm__retire_waiting() || gvmm__work_gives_back(); /* also what a graph that is gone has held */
    bool any = kept || waiting || had_stock;
    if (any) gvmm__drain(); /* a chunk may just be on its way into the stock, and out again */
    room_maker fn = atomic_load(&others);
    return (fn && fn(device)) || any || gvmm__retire_returned() != before;
}

size_t gvmm_resource_trim(gvmm_resource *resource, size_t keep)
{
    bool keeps = resource && resource->reuse && !gvmm__in_child();
    return keeps ? gvmm__reuse_trim(resource->reuse, keep) : 0;
}

gvmm_result gvmm_resource_set_reuse_limit(gvmm_resource *resource, uint64_t limit)
{
    if (!resource) return gvmm__fail(GVMM_E_INVALID, "resource is NULL");
    if (!resource->reuse) return gvmm__fail(GVMM_E_INVALID, "reuse_limit: the resource was made without one");
    if (gvmm__in_child()) return gvmm__fail_in_child();
    gvmm__reuse_set_limit(resource->reuse, limit < SIZE_MAX ? (size_t)limit : SIZE_MAX);
    return GVMM_OK;
}

gvmm_result gvmm_resource_deallocate(gvmm_resource *resource, uint64_t address, size_t size, gvmm_stream stream)
{
    if (!resource) return gvmm__fail(GVMM_E_INVALID, "resource is NULL");
    if (gvmm__in_child()) return gvmm__fail_in_child();
    if (stream) {
        if (gvmm__stream_check(stream) == GVMM_E_CAPTURING) return GVMM_E_CAPTURING;
        gvmm__stream_wait(gvmm__stream_recorded(stream, &resource->device), &resource->device, address);
    }
    if (!address || !size) return GVMM_OK;
    gvmm_result r = DRIVER(cuMemUnmap, address, size);
    if (r) gvmm__about(r, "mapping", "%zu bytes at 0x%llx", size, (unsigned long long)address);
    CUresult freed = DRIVER_QUIET(cuMemAddressFree, address, size);
    if (r || freed == CUDA_SUCCESS) return r; /* the first failure is the caller's */
    return gvmm__about(gvmm__fail_driver(GVMM_CALL_cuMemAddressFree, freed), "reservation", "%zu bytes at 0x%llx", size,
                       (unsigned long long)address);
}

static void add_reuse(gvmm_stats *out, reuse *of)
{
    reuse_figures f;
    gvmm__reuse_read(&f, of);
    out->buffers += f.taken - f.put;
    if (out->buffers > INT64_MAX) out->buffers = 0; /* what was made and kept since the account was read */
    out->allocations += f.taken;
    out->reused += f.taken;
    out->kept_bytes = f.kept_bytes;
    out->driver_calls += f.calls;
}

void gvmm_get_stats(const gvmm_resource *resource, gvmm_stats *out)
{
    memset(out, 0, sizeof *out);
    if (gvmm__in_child()) return;
    gvmm__account_read(resource ? resource->account : NULL, out);
    if (!resource) {
        out->driver_calls = atomic_load(&gvmm__driver_calls);
        out->releases_waiting = gvmm__work_waiting() + gvmm__retire_waiting();
    }
    if (!resource || resource->reuse) add_reuse(out, resource ? resource->reuse : NULL);
    if (resource) out->driver_calls = 0;
}

/* New views of memory that is there: shorter, put together otherwise, with less access; and access granted and revoked. */
#include "internal.h"

/* ---- shrink ---- */

gvmm_result gvmm_buffer_shrink(gvmm_buffer **out, gvmm_buffer *buffer, size_t size)
{
    if (!out || !buffer) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "buffer" : "out");
    range *whole = NULL;
    gvmm_result r = gvmm__buffer_borrow(&whole, buffer);
    if (r) return r;
    range *part = whole;
    while (part && (part->before ? part->before->total >= size : size == 0)) part = part->before;
    if (part) gvmm__range_retain(part);
    r = gvmm__buffer_make(out, gvmm_buffer_resource(buffer), buffer, part, gvmm_buffer_stream(buffer));
    if (r) gvmm__range_release(part);
    gvmm__range_release(whole);
    return r;
}

/* ---- compose ---- */

/* A piece of a range, by its links: from `last` backwards to where it begins. */
typedef struct span {
    range *whole; /* retained */
    const range *last;
    size_t begin; /* offset in the range, bytes */
    size_t size;
    bool read_only;
} span;

/* Does a link end at `offset`? The last such one. */
static const range *link_ending_at(const range *r, size_t offset)
{
    while (r && r->total > offset) r = r->before;
    return r && r->total == offset ? r : NULL;
}

static gvmm_result span_of(span *out, const gvmm_piece *piece, size_t number)
{
    range *whole = NULL;
    if (!piece->buffer) return gvmm__fail(GVMM_E_INVALID, "piece %zu: buffer is NULL", number);
    gvmm_result r = gvmm__buffer_borrow(&whole, piece->buffer);
    if (r) return r;
    size_t total = whole ? whole->total : 0;
    size_t size = piece->size ? piece->size : piece->offset <= total ? total - piece->offset : 0;
    bool inside = piece->offset <= total && size <= total - piece->offset;
    const range *last = inside && size ? link_ending_at(whole, piece->offset + size) : NULL;
    bool at_borders = inside && (!size || last) && (piece->offset == 0 || !size || link_ending_at(whole, piece->offset));
    if (!at_borders) {
        gvmm__range_release(whole);
        return gvmm__fail(GVMM_E_INVALID, "piece %zu: %zu bytes at %zu are not whole chunks of a buffer of %zu", number, size,
                          piece->offset, total);
    }
    *out = (span){whole, last, piece->offset, size, piece->read_only};
    return GVMM_OK;
}

/* The memory of a link, or a read-only view of it. */
static gvmm_result memory_for(memory **out, const range *link, bool read_only)
{
    if (read_only) return gvmm__memory_view(out, link->mapping.memory, GVMM_ACCESS_READ);
    *out = gvmm__memory_retain(link->mapping.memory);
    return GVMM_OK;
}

/* The links come last first, so what they show is collected from behind. */
static gvmm_result collect(memory **list, size_t count, const span *spans, size_t span_count)
{
    size_t at = count;
    for (size_t i = span_count; i-- > 0;)
        for (const range *link = spans[i].last; link && link->total > spans[i].begin; link = link->before) {
            gvmm_result r = memory_for(&list[at - 1], link, spans[i].read_only);
            if (r) {
                while (at < count) gvmm__memory_release(list[at++]);
                return r;
            }
            at--;
        }
    return GVMM_OK;
}

static gvmm_result map_all(range **out, memory **list, size_t count, size_t total, reservation *where)
{
    range *r = NULL;
    gvmm__reservation_claim(where, where->base, total); /* cannot fail: nobody else knows it */
    uint64_t address = where->base;
    for (size_t i = 0; i < count; i++) {
        range *longer = NULL;
        gvmm_result failed = gvmm__range_extend(&longer, r, where, address, list[i]);
        gvmm__range_release(r);
        if (failed) return failed;
        r = longer;
        address += list[i]->size;
    }
    *out = r;
    return GVMM_OK;
}

/* A range of all spans in a row. */
static gvmm_result join(range **out, const gvmm_resource *resource, const span *spans, size_t span_count)
{
    size_t count = 0, total = 0;
    for (size_t i = 0; i < span_count; i++) {
        if (spans[i].size > SIZE_MAX - total) return gvmm__fail(GVMM_E_INVALID, "pieces: their sizes overflow");
        total += spans[i].size;
        for (const range *link = spans[i].last; link && link->total > spans[i].begin; link = link->before) count++;
    }
    *out = NULL;
    if (!count) return GVMM_OK;
    memory **list = gvmm__alloc(count * sizeof *list);
    if (!list) return GVMM_E_NO_HOST_MEMORY;
    reservation *where = NULL;
    const placement *p = resource->placement;
    gvmm_result r = collect(list, count, spans, span_count);
    if (!r) {
        r = gvmm__reservation_ahead(&where, total, p->capacity, p->addr_align, 0, p->granularity, resource->account);
        if (!r) r = map_all(out, list, count, total, where);
        for (size_t i = 0; i < count; i++) gvmm__memory_release(list[i]);
    }
    gvmm__reservation_release(where);
    gvmm__free(list);
    return r;
}

gvmm_result gvmm_buffer_compose(gvmm_buffer **out, gvmm_resource *resource, const gvmm_piece *pieces, size_t count,
                                gvmm_stream stream)
{
    if (!out || !resource || (count && !pieces))
        return gvmm__fail(GVMM_E_INVALID, "%s is NULL", !out ? "out" : !resource ? "resource" : "pieces");
    if (count > SIZE_MAX / sizeof(span) - 1) return gvmm__fail(GVMM_E_INVALID, "count: %zu overflows", count);
    span *spans = gvmm__alloc((count + 1) * sizeof *spans);
    if (!spans) return GVMM_E_NO_HOST_MEMORY;
    size_t known = 0;
    gvmm_result r = GVMM_OK;
    while (!r && known < count) {
        r = span_of(&spans[known], &pieces[known], known);
        if (!r) known++;
    }
    range *joined = NULL;
    if (!r) r = join(&joined, resource, spans, count);
    if (!r) {
        r = gvmm__buffer_make(out, resource, NULL, joined, gvmm__stream_recorded(stream, &resource->device));
        if (r) gvmm__range_release(joined);
    }
    while (known) gvmm__range_release(spans[--known].whole);
    gvmm__free(spans);
    return r;
}

gvmm_result gvmm_buffer_ring(gvmm_buffer **out, gvmm_buffer *buffer, unsigned times)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    if (times == 0 || times > 1024) return gvmm__fail(GVMM_E_INVALID, "times: %u is not 1 to 1024", times);
    gvmm_piece pieces[1024];
    for (unsigned i = 0; i < times; i++) pieces[i] = (gvmm_piece){.buffer = buffer};
    return gvmm_buffer_compose(out, gvmm_buffer_resource(buffer), pieces, times, gvmm_buffer_stream(buffer));
}

/* ---- access ---- */

/* The access of each link's memory before it is changed, so that a failure can be put back. */
static gvmm_result set_all(range *r, int device, gvmm_access access, gvmm_access *before)
{
    size_t done = 0;
    gvmm_result failed = GVMM_OK;
    range *link = r;
    for (; link && !failed; link = failed ? link : link->before) {
        before[done] = gvmm__memory_access(link->mapping.memory, device);
        failed = gvmm__memory_set_access(link->mapping.memory, device, access);
        if (!failed) done++;
    }
    if (!failed) return GVMM_OK;
    saved_error first;
    gvmm__error_save(&first);
    size_t i = 0;
    for (range *at = r; at != link; at = at->before, i++)
        if (gvmm__memory_set_access(at->mapping.memory, device, before[i])) gvmm__warn_last("memory", at->mapping.address);
    return gvmm__error_restore(&first);
}

static gvmm_result check_device(int device)
{
    CUdevice handle;
    gvmm_result r = device < 0 ? GVMM_OK : DRIVER(cuDeviceGet, &handle, device);
    return r ? gvmm__about(GVMM_E_INVALID, "device", "%d", device) : GVMM_OK;
}

/* Can the device reach what it is granted? Asked here and not left to the driver, as evicted memory is shown to it later. */
static gvmm_result check_reach(const range *r, int device)
{
    int owner = device; /* the last one asked about: chunks in a row mostly lie on the same device */
    for (; r; r = r->before) {
        int can = 0, now = r->mapping.memory->device;
        if (now < 0 || now == device || now == owner) continue;
        if (device < 0) return gvmm__fail(GVMM_E_UNSUPPORTED, "the CPU cannot access the memory of device %d", now);
        gvmm_result failed = DRIVER(cuDeviceCanAccessPeer, &can, device, now);
        if (failed) return failed;
        if (!can) return gvmm__fail(GVMM_E_UNSUPPORTED, "device %d cannot access the memory of device %d", device, now);
        owner = now;
    }
    return GVMM_OK;
}

gvmm_result gvmm_buffer_set_access(gvmm_buffer *buffer, int device, gvmm_access access)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    if (access != GVMM_ACCESS_NONE && access != GVMM_ACCESS_READ && access != GVMM_ACCESS_READ_WRITE)
        return gvmm__fail(GVMM_E_INVALID, "access: %d is not an allowed value", access);
    gvmm_result r = check_device(device);
    range *links = NULL;
    if (!r) r = gvmm__buffer_borrow(&links, buffer);
    if (!r && access) r = check_reach(links, device);
    if (r || !links) {
        gvmm__range_release(links);
        return r;
    }
    size_t count = 0;
    for (const range *link = links; link; link = link->before) count++;
    gvmm_access *before = gvmm__alloc(count * sizeof *before);
    r = before ? set_all(links, device, access, before) : GVMM_E_NO_HOST_MEMORY;
    gvmm__free(before);
    gvmm__range_release(links);
    return r;
}

gvmm_result gvmm_buffer_get_access(const gvmm_buffer *buffer, int device, gvmm_access *out)
{
    if (!buffer || !out) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", buffer ? "out" : "buffer");
    range *links = NULL;
    gvmm_result r = gvmm__buffer_borrow(&links, buffer);
    if (r) return r;
    unsigned least = links ? GVMM_ACCESS_READ_WRITE : GVMM_ACCESS_NONE;
    for (const range *link = links; link; link = link->before) least &= gvmm__memory_access(link->mapping.memory, device);
    gvmm__range_release(links);
    *out = (gvmm_access)least;
    return GVMM_OK;
}

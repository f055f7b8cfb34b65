/* New views of memory that is there: shorter, put together otherwise, with less access; and access granted and
 * revoked. */
#include <stdlib.h>
#include <string.h>

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

/* A piece of a range: `count` of its links, from the `first` on, in address order. */
typedef struct span {
    range *whole;        /* retained; NULL if the buffer is empty */
    const range **links; /* all of them, shared by the spans of one range */
    bool owns_links;
    size_t link_count, first, count;
    size_t size;
    bool read_only;
} span;

static void spans_free(span *spans, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (spans[i].owns_links) gvmm__free(spans[i].links);
        gvmm__range_release(spans[i].whole);
    }
    gvmm__free(spans);
}

static int by_whole(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)(*(span *const *)a)->whole, y = (uintptr_t)(*(span *const *)b)->whole;
    return x < y ? -1 : x > y;
}

/* A chain only goes backwards, so what is to be found in it is laid out first. */
static gvmm_result lay_out(span *s)
{
    s->links = gvmm__range_links(s->whole, &s->link_count);
    s->owns_links = s->links != NULL;
    return s->links ? GVMM_OK : GVMM_E_NO_HOST_MEMORY;
}

/* Each range once, however many pieces are of it. */
static gvmm_result lay_out_all(span *spans, size_t count)
{
    span **sorted = gvmm__alloc((count + 1) * sizeof *sorted);
    if (!sorted) return GVMM_E_NO_HOST_MEMORY;
    for (size_t i = 0; i < count; i++) sorted[i] = &spans[i];
    qsort(sorted, count, sizeof *sorted, by_whole);
    gvmm_result r = GVMM_OK;
    for (size_t i = 0; i < count && !r; i++) {
        if (i == 0 || sorted[i]->whole != sorted[i - 1]->whole) {
            r = lay_out(sorted[i]);
        } else {
            sorted[i]->links = sorted[i - 1]->links;
            sorted[i]->link_count = sorted[i - 1]->link_count;
        }
    }
    gvmm__free(sorted);
    return r;
}

/* How many links end at or before `offset`; true if one ends there, or nothing is in front of it. */
static bool links_before(const span *s, size_t offset, size_t *count)
{
    size_t low = 0, high = s->link_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->links[middle]->total <= offset) low = middle + 1;
        else high = middle;
    }
    *count = low;
    return offset == 0 || (low > 0 && s->links[low - 1]->total == offset);
}

static gvmm_result find_piece(span *s, const gvmm_piece *piece, size_t number)
{
    size_t total = s->whole ? s->whole->total : 0, end;
    bool inside = piece->offset <= total && piece->size <= total - piece->offset;
    s->size = piece->size ? piece->size : inside ? total - piece->offset : 0;
    if (!inside || !links_before(s, piece->offset, &s->first) || !links_before(s, piece->offset + s->size, &end))
        return gvmm__fail(GVMM_E_INVALID, "piece %zu: %zu bytes at %zu are not whole chunks of a buffer of %zu", number,
                          s->size, piece->offset, total);
    s->count = end - s->first;
    s->read_only = piece->read_only;
    return GVMM_OK;
}

/* The memory of a link, or a read-only view of it. */
static gvmm_result memory_for(memory **out, const range *link, bool read_only)
{
    if (read_only) return gvmm__memory_view(out, link->mapping.memory, GVMM_ACCESS_READ);
    *out = gvmm__memory_retain(link->mapping.memory);
    return GVMM_OK;
}

static gvmm_result collect(memory **list, const span *spans, size_t span_count)
{
    size_t at = 0;
    for (size_t i = 0; i < span_count; i++)
        for (size_t k = 0; k < spans[i].count; k++) {
            gvmm_result r = memory_for(&list[at], spans[i].links[spans[i].first + k], spans[i].read_only);
            if (r) {
                while (at) gvmm__memory_release(list[--at]);
                return r;
            }
            at++;
        }
    return GVMM_OK;
}

/* A range of all spans in a row. */
static gvmm_result join(range **out, const gvmm_resource *resource, const span *spans, size_t span_count)
{
    size_t count = 0, total = 0;
    for (size_t i = 0; i < span_count; i++) {
        if (spans[i].size > SIZE_MAX - total) return gvmm__fail(GVMM_E_INVALID, "pieces: their sizes overflow");
        total += spans[i].size;
        count += spans[i].count;
    }
    *out = NULL;
    if (!count) return GVMM_OK;
    memory **list = gvmm__alloc(count * sizeof *list);
    if (!list) return GVMM_E_NO_HOST_MEMORY;
    reservation *where = NULL;
    const placement *p = resource->placement;
    gvmm_result r = collect(list, spans, span_count);
    if (!r) {
        r = gvmm__reservation_ahead(&where, total, p->capacity, p->addr_align, 0, p->granularity, resource->account);
        if (!r) {
            gvmm__reservation_claim(where, where->base, total); /* cannot fail: nobody else knows it */
            r = gvmm__range_extend_by(out, NULL, where, where->base, list, count);
        }
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
    memset(spans, 0, (count + 1) * sizeof *spans);
    gvmm_result r = GVMM_OK;
    for (size_t i = 0; i < count && !r; i++)
        r = pieces[i].buffer ? gvmm__buffer_borrow(&spans[i].whole, pieces[i].buffer)
                             : gvmm__fail(GVMM_E_INVALID, "piece %zu: buffer is NULL", i);
    if (!r) r = lay_out_all(spans, count);
    for (size_t i = 0; i < count && !r; i++) r = find_piece(&spans[i], &pieces[i], i);
    range *joined = NULL;
    if (!r) r = join(&joined, resource, spans, count);
    if (!r) {
        r = gvmm__buffer_make(out, resource, NULL, joined, gvmm__stream_recorded(stream, &resource->device));
        if (r) gvmm__range_release(joined);
    }
    spans_free(spans, count);
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

/* What a memory's access was before it was changed, so that a failure can be put back. */
typedef struct change {
    memory *memory;
    gvmm_access before;
} change;

/* Put back from the last change to the first, as the same memory may be there more than once. */
static gvmm_result set_all(range *r, int device, gvmm_access access, change *changes)
{
    size_t done = 0;
    gvmm_result failed = GVMM_OK;
    for (range *link = r; link && !failed; link = link->before) {
        memory *m = link->mapping.memory;
        changes[done] = (change){m, gvmm__memory_access(m, device)};
        failed = gvmm__memory_set_access(m, device, access);
        if (!failed) done++;
    }
    if (!failed) return GVMM_OK;
    saved_error first;
    gvmm__error_save(&first);
    while (done--)
        if (gvmm__memory_set_access(changes[done].memory, device, changes[done].before))
            gvmm__warn_last("memory", changes[done].memory->handle);
    return gvmm__error_restore(&first);
}

static gvmm_result check_device(int device)
{
    CUdevice handle;
    if (device < -1) return gvmm__fail(GVMM_E_INVALID, "device: there is no device %d", device);
    gvmm_result r = device < 0 ? GVMM_OK : DRIVER(cuDeviceGet, &handle, device);
    return r ? gvmm__about(GVMM_E_INVALID, "device", "%d", device) : GVMM_OK;
}

/* Can the device reach what it is granted? Asked here and not left to the driver, as evicted memory is shown to it
 * later. */
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
    if (gvmm__in_child()) return gvmm__fail_in_child();
    gvmm_result r = check_device(device);
    range *links = NULL;
    if (!r) r = gvmm__buffer_borrow(&links, buffer);
    if (!r && access) r = check_reach(links, device);
    if (r || !links) {
        gvmm__range_release(links);
        return r;
    }
    change *changes = gvmm__alloc(gvmm__range_count(links) * sizeof *changes);
    r = changes ? set_all(links, device, access, changes) : GVMM_E_NO_HOST_MEMORY;
    gvmm__free(changes);
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
    for (const range *link = links; link; link = link->before)
        least &= gvmm__memory_access(link->mapping.memory, device);
    gvmm__range_release(links);
    *out = (gvmm_access)least;
    return GVMM_OK;
}

/* Buffers for other processes: exported as bytes and handles, imported from them. exchange.c carries these over a
 * socket. */
#include <string.h>

#include "internal.h"

gvmm_result gvmm_buffer_identities(const gvmm_buffer *buffer, gvmm_identity *list, size_t capacity, size_t *count)
{
    if (!buffer || !count || (capacity && !list))
        return gvmm__fail(GVMM_E_INVALID, "%s is NULL", !buffer ? "buffer" : !count ? "count" : "list");
    range *r = NULL;
    gvmm_result failed = gvmm__buffer_borrow(&r, buffer);
    if (failed) return failed;
    size_t total = gvmm__range_count(r), at = total;
    for (const range *link = r; link; link = link->before)
        if (--at < capacity) list[at] = gvmm__memory_identity(link->mapping.memory);
    gvmm__range_release(r);
    *count = total;
    return GVMM_OK;
}

/* ---- export ---- */

struct gvmm_export {
    range *range;
    size_t count, size; /* of the lists, of the bytes; all in one allocation with this */
    gvmm_handle_type handle_type;
    handout **handouts; /* one for each chunk whose descriptor is handed out */
    int *fds;
    bool *made; /* the descriptor is this export's doing */
    unsigned char *bytes;
};

/* What a chunk was made to be exported as, if it can be at all. */
static gvmm_result check_exportable(const range *link, size_t number, unsigned *handle_type)
{
    const memory *m = link->mapping.memory;
    if (m->original)
        return gvmm__fail(GVMM_E_UNSUPPORTED,
                          "chunk %zu is a read-only view, and its memory would be exported for writing: export the "
                          "buffer that it was made of",
                          number);
    if (m->imported)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "chunk %zu was imported: only the process that made it can export it",
                          number);
    unsigned type = m->made_as->prop.requestedHandleTypes;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "chunk %zu was not made to be exported: its handle_type is %u", number,
                          type);
    if (*handle_type && *handle_type != type)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "chunk %zu has another handle_type, %u, than those in front of it, %u",
                          number, type, *handle_type);
    *handle_type = type;
    return GVMM_OK;
}

gvmm_result gvmm__export_check(unsigned *handle_type, const range **links, size_t count, size_t first)
{
    gvmm_result r = count <= WIRE_MOST_CHUNKS ? GVMM_OK
                                              : gvmm__fail(GVMM_E_UNSUPPORTED, "buffer has %zu chunks", count);
    *handle_type = 0;
    for (size_t i = first; i < count && !r; i++) r = check_exportable(links[i], i, handle_type);
    return r;
}

/* The least that the process must be able to open. */
static gvmm_result check_limit(const range **links, size_t count, size_t known)
{
    size_t new = 0, left;
    for (size_t i = known; i < count; i++) new += !gvmm__memory_is_exported(links[i]->mapping.memory);
    return new ? gvmm__fds_need(new, &left) : GVMM_OK;
}

/* Where a chunk lies: the device's UUID, asked again when it is another device, or the node. */
static gvmm_result find_place(uint8_t place[16], const memory *m, int *device, CUuuid *uuid)
{
    memset(place, 0, 16);
    if (m->device < 0) {
        int32_t node = m->made_as->prop.location.id;
        memcpy(place, &node, sizeof node);
        return GVMM_OK;
    }
    if (m->device != *device) {
        gvmm_result r = DRIVER(cuDeviceGetUuid, uuid, m->device);
        if (r) return gvmm__about(r, "device", "%d", m->device);
        *device = m->device;
    }
    memcpy(place, uuid->bytes, 16);
    return GVMM_OK;
}

/* An export whose bytes and lists have room for all. */
static gvmm_export *new_export(range *r, size_t count, size_t known, unsigned handle_type)
{
    size_t size = gvmm__wire_size(count, known, handle_type), out = count - known;
    size_t lists = handle_type == CU_MEM_HANDLE_TYPE_FABRIC ? 0 : out;
    gvmm_export *e;
    size_t each = sizeof *e->handouts + sizeof *e->fds + sizeof *e->made;
    e = gvmm__alloc(sizeof *e + lists * each + size);
    if (!e) return NULL;
    *e = (gvmm_export){.handouts = (handout **)(e + 1), .size = size, .handle_type = (gvmm_handle_type)handle_type};
    e->fds = (int *)(e->handouts + lists);
    e->made = (bool *)(e->fds + lists);
    e->bytes = (unsigned char *)(e->made + lists);
    e->range = r ? gvmm__range_retain(r) : NULL;
    return e;
}

/* Writes the chunks, with what is handed out of those that are not known. */
static gvmm_result fill(gvmm_export *e, const range **links, wire_head *head)
{
    CUuuid uuid;
    int device = -1;
    gvmm_result r = GVMM_OK;
    for (size_t i = 0; i < head->count && !r; i++) {
        memory *m = gvmm__memory_original(links[i]->mapping.memory);
        bool out = i >= head->known;
        wire_chunk c = {.size = m->size,
                        .location = m->device < 0 ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE};
        gvmm_identity who;
        r = find_place(c.place, m, &device, &uuid);
        if (r) break;
        if (out && e->handle_type == GVMM_HANDLE_FABRIC) {
            r = gvmm__memory_export_fabric((unsigned char *)(uintptr_t)gvmm__wire_fabric(e->bytes, head, i), &who, m);
        } else if (out) {
            r = gvmm__memory_export(&e->handouts[e->count], &e->made[e->count], &who, m);
            if (r) break;
            e->fds[e->count] = e->handouts[e->count]->fd;
            e->count++;
        } else {
            who = gvmm__memory_identity(m);
        }
        if (r) break;
        c.serial = who.serial;
        c.generation = who.generation;
        if (i && memcmp(head->origin, who.origin, sizeof head->origin) != 0) /* the bytes have one for all */
            r = gvmm__fail(GVMM_E_UNSUPPORTED, "chunk %zu was made by another process than those in front of it", i);
        memcpy(head->origin, who.origin, sizeof head->origin);
        memcpy(e->bytes + sizeof *head + i * sizeof c, &c, sizeof c);
    }
    return r;
}

/* Today's drivers have done it. */
static void end_on_exec(const gvmm_export *e)
{
    for (size_t i = 0, n; i < e->count; i += n + 1) {
        for (n = 0; i + n < e->count && e->made[i + n];) n++;
        gvmm__fds_end_on_exec(e->fds + i, n);
    }
}

/* Takes back the descriptors that were made for an export which failed. */
static void unfill(const gvmm_export *e, const range **links, size_t known)
{
    for (size_t i = 0; i < e->count; i++)
        if (e->made[i]) gvmm__memory_unexport(links[known + i]->mapping.memory, e->handouts[i]);
}

/* Out of descriptors is told by the driver if it needs some of its own. */
static gvmm_result better(gvmm_result r, size_t count)
{
    gvmm_error error;
    size_t left;
    if (!r) return r;
    gvmm_last_error(&error);
    if (error.status != CUDA_ERROR_OPERATING_SYSTEM) return r;
    saved_error first;
    gvmm__error_save(&first);
    return gvmm__fds_need(count, &left) ? GVMM_E_UNSUPPORTED : gvmm__error_restore(&first);
}

gvmm_result gvmm__export_create(gvmm_export **out, range *r, size_t known)
{
    size_t count;
    const range **links = gvmm__range_links(r, &count);
    if (!links) return GVMM_E_NO_HOST_MEMORY;
    unsigned handle_type;
    gvmm_result failed = gvmm__export_check(&handle_type, links, count, known);
    if (!handle_type) handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; /* nothing is handed out */
    if (!failed && handle_type != CU_MEM_HANDLE_TYPE_FABRIC) failed = check_limit(links, count, known);
    gvmm_export *e = failed ? NULL : new_export(r, count, known, handle_type);
    if (!failed && !e) failed = GVMM_E_NO_HOST_MEMORY;
    if (!failed) {
        wire_head head = {.magic = "gvmmbuf", .version = WIRE_VERSION, .handle_type = handle_type};
        head.count = (uint32_t)count;
        head.known = (uint32_t)known;
        head.total = r ? r->total : 0;
        failed = better(fill(e, links, &head), count - known);
        end_on_exec(e);
        memcpy(e->bytes, &head, sizeof head);
        gvmm__wire_seal(e->bytes, e->size);
        if (failed) unfill(e, links, known);
    }
    gvmm__free(links);
    if (failed) gvmm_export_release(e);
    else *out = e;
    return failed;
}

/* How many chunks end at `known` bytes. */
static gvmm_result count_known(size_t *out, const range *r, size_t known)
{
    const range *link = r;
    while (link && link->total > known) link = link->before;
    if ((link ? link->total : 0) != known)
        return gvmm__fail(GVMM_E_INVALID, "known: %zu is not at a border of the buffer's chunks", known);
    *out = gvmm__range_count(link);
    return GVMM_OK;
}

gvmm_result gvmm_buffer_export(gvmm_export **out, gvmm_buffer *buffer, size_t known)
{
    if (!out || !buffer) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "buffer" : "out");
    range *r = NULL;
    size_t chunks = 0;
    gvmm_result failed = gvmm__buffer_borrow(&r, buffer);
    if (!failed) failed = count_known(&chunks, r, known);
    if (!failed) failed = gvmm__export_create(out, r, chunks);
    gvmm__range_release(r);
    return failed;
}

void gvmm_export_contents(const gvmm_export *e, gvmm_shared *out)
{
    if (!out) return;
    *out = e ? (gvmm_shared){e->bytes, e->size, e->fds, e->count, e->handle_type} : (gvmm_shared){0};
}

void gvmm_export_release(gvmm_export *e)
{
    if (!e || gvmm__in_child()) return;
    while (e->count) gvmm__handout_release(e->handouts[--e->count]);
    range *r = e->range;
    gvmm__free(e);
    gvmm__range_release(r); /* last: from here on the allocator may be replaced */
}

/* ---- import: what is there already ---- */

static bool is_chunk(const range *link, const wire_head *head, const wire_chunk *c)
{
    gvmm_identity who = gvmm__memory_identity(link->mapping.memory);
    return who.serial == c->serial && who.generation == c->generation && link->mapping.memory->size == c->size &&
           memcmp(who.origin, head->origin, sizeof who.origin) == 0;
}

/* The links of `have` that show the chunks which the bytes leave out. */
static gvmm_result find_base(importer *i, range *have)
{
    size_t count = gvmm__range_count(have), known = i->head.known;
    range *base = have;
    for (; count > known; count--) base = base->before;
    range *link = count == known ? base : NULL;
    for (size_t at = known; at && link; link = link->before) {
        wire_chunk c = gvmm__wire_chunk(i->bytes, --at);
        if (!is_chunk(link, &i->head, &c)) break;
    }
    if (known && (count < known || link))
        return gvmm__fail(GVMM_E_INVALID, "descriptor: it leaves out %zu chunks that `have` does not have", known);
    i->base = known ? gvmm__range_retain(base) : NULL;
    return GVMM_OK;
}

gvmm_result gvmm__importer_begin(importer *out, gvmm_resource *resource, void *bytes, size_t size, range *have)
{
    if (gvmm__in_child()) return gvmm__fail_in_child();
    *out = (importer){.resource = resource, .bytes = bytes, .reached = -1, .asked = -1};
    gvmm_result r = gvmm__wire_read(&out->head, bytes, size);
    size_t granularity = resource->placement->granularity;
    for (size_t k = 0; k < out->head.count && !r; k++) {
        wire_chunk c = gvmm__wire_chunk(bytes, k);
        if (c.size % granularity)
            r = gvmm__fail(GVMM_E_INVALID, "descriptor: chunk %zu: its size, %llu, is not a multiple of %zu", k,
                           (unsigned long long)c.size, granularity);
    }
    if (!r && out->head.total > SIZE_MAX) r = gvmm__fail(GVMM_E_INVALID, "descriptor: its size is too large");
    if (!r) r = find_base(out, have);
    if (!r) {
        out->wanted = out->head.count - out->head.known;
        out->list = gvmm__alloc((out->wanted + 1) * sizeof *out->list);
        if (!out->list) r = GVMM_E_NO_HOST_MEMORY;
    }
    if (r) gvmm__importer_end(out);
    return r;
}

void gvmm__importer_end(importer *i)
{
    while (i->count) gvmm__memory_release(i->list[--i->count]);
    gvmm__range_release(i->base);
    if (i->list) gvmm__free(i->list);
    gvmm__free(i->bytes);
}

/* ---- import: chunk by chunk ---- */

static gvmm_result misplaced(size_t number, const char *why)
{
    return gvmm__fail(GVMM_E_INVALID, "chunk %zu: %s", number, why);
}

/* Is the memory what the descriptor says, and where the resource's is? *device: who has it. */
static gvmm_result check_memory(importer *i, size_t number, const CUmemAllocationProp *real, int *device)
{
    wire_chunk c = gvmm__wire_chunk(i->bytes, number);
    const CUmemLocation *own = &i->resource->placement->prop.location;
    if (real->type != CU_MEM_ALLOCATION_TYPE_PINNED) return misplaced(number, "memory of another type than pinned");
    if ((uint32_t)real->location.type != c.location) return misplaced(number, "it lies elsewhere than it says");
    if (real->location.type != own->type) return misplaced(number, "it is not at a location of the resource's kind");
    *device = real->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? real->location.id : -1;
    if (*device < 0) {
        int32_t node;
        memcpy(&node, c.place, sizeof node);
        if (real->location.id != node) return misplaced(number, "it lies on another node than it says");
        return node == own->id ? GVMM_OK : misplaced(number, "it lies on another node than the resource's");
    }
    if (i->head.handle_type == CU_MEM_HANDLE_TYPE_FABRIC) return GVMM_OK; /* the device may be another machine's */
    if (*device != i->asked) {
        gvmm_result r = DRIVER(cuDeviceGetUuid, &i->uuid, *device);
        if (r) return gvmm__about(r, "device", "%d", *device);
        i->asked = *device;
    }
    if (memcmp(i->uuid.bytes, c.place, sizeof c.place) != 0)
        return misplaced(number, "it lies on another device than it says");
    return GVMM_OK;
}

/* Can those who are to read it reach it? Chunks in a row mostly lie on the same device. */
static gvmm_result check_reach(importer *i, size_t number, int device)
{
    const placement *p = i->resource->placement;
    if (device < 0 || device == i->reached) return GVMM_OK;
    for (unsigned k = 0; k < p->access_count; k++) {
        int can = 0, reader = p->access[k].location.id;
        if (p->access[k].location.type != CU_MEM_LOCATION_TYPE_DEVICE || reader == device) continue;
        gvmm_result r = DRIVER(cuDeviceCanAccessPeer, &can, reader, device);
        if (r) return r;
        if (!can)
            return gvmm__fail(GVMM_E_UNSUPPORTED, "chunk %zu: device %d cannot access the memory of device %d", number,
                              reader, device);
    }
    i->reached = device;
    return GVMM_OK;
}

static gvmm_result get_handle(const importer *i, size_t number, const int *fd, CUmemGenericAllocationHandle *handle)
{
    gvmm_result r;
    if (fd && *fd < 0) return gvmm__fail(GVMM_E_INVALID, "chunk %zu: %d is no descriptor", number, *fd);
    if (fd) {
        r = DRIVER(cuMemImportFromShareableHandle, handle, (void *)(intptr_t)*fd,
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    } else {
        unsigned char fabric[WIRE_FABRIC]; /* aligned */
        memcpy(fabric, gvmm__wire_fabric(i->bytes, &i->head, number), sizeof fabric);
        r = DRIVER(cuMemImportFromShareableHandle, handle, fabric, CU_MEM_HANDLE_TYPE_FABRIC);
    }
    if (!r) return GVMM_OK;
    gvmm_error error;
    gvmm_last_error(&error);
    bool none = error.status == CUDA_ERROR_INVALID_VALUE || error.status == CUDA_ERROR_UNKNOWN ||
                error.status == CUDA_ERROR_INVALID_HANDLE;
    return gvmm__about(none ? GVMM_E_INVALID : r, "chunk", "%zu%s", number,
                       none ? ", whose handle is none of memory that is here" : "");
}

gvmm_result gvmm__importer_add(importer *i, const int *fd)
{
    size_t number = i->head.known + i->count;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp real;
    int device = -1;
    gvmm_result r = get_handle(i, number, fd, &handle);
    if (r) return r;
    memset(&real, 0, sizeof real);
    r = DRIVER(cuMemGetAllocationPropertiesFromHandle, &real, handle);
    if (!r) r = check_memory(i, number, &real, &device);
    if (!r) r = check_reach(i, number, device);
    if (!r) {
        wire_chunk c = gvmm__wire_chunk(i->bytes, number);
        gvmm_identity who = {.serial = c.serial, .generation = c.generation};
        memcpy(who.origin, i->head.origin, sizeof who.origin);
        r = gvmm__memory_import(&i->list[i->count], i->resource->placement, handle, c.size, device, &who,
                                i->resource->account);
    }
    if (r) DRIVER_UNDO("memory", handle, cuMemRelease, handle);
    else i->count++;
    return r;
}

/* ---- import: putting it together ---- */

static gvmm_result map_anew(range **out, const importer *i)
{
    const placement *p = i->resource->placement;
    size_t total = (size_t)i->head.total;
    reservation *where;
    range *tail = NULL;
    gvmm_result r = gvmm__reservation_ahead(&where, total, p->capacity, p->addr_align, p->addr_hint, p->granularity,
                                            i->resource->account);
    if (r) return r;
    gvmm__reservation_claim(where, where->base, total); /* cannot fail: nobody else knows it */
    r = gvmm__range_extend_by(&tail, NULL, where, where->base + (i->base ? i->base->total : 0), i->list, i->count);
    if (!r && i->base) r = gvmm__range_move(tail, i->base, where);
    gvmm__reservation_release(where);
    if (r) {
        gvmm__range_release(tail);
        return r;
    }
    if (i->base) gvmm__account_add(i->resource->account, STAT_grows_moved, 1);
    *out = tail;
    return GVMM_OK;
}

static gvmm_result map_behind(range **out, const importer *i, reservation *behind)
{
    gvmm_result r = gvmm__range_extend_by(out, i->base, behind, gvmm__range_end(i->base), i->list, i->count);
    if (!r) gvmm__account_add(i->resource->account, STAT_grows_in_place, 1);
    return r;
}

static gvmm_result put_together(range **out, const importer *i)
{
    *out = NULL;
    if (!i->wanted) { /* nothing, or a beginning of what is there */
        if (i->base) *out = gvmm__range_retain(i->base);
        return GVMM_OK;
    }
    size_t add = (size_t)i->head.total - (i->base ? i->base->total : 0);
    reservation *behind = i->base ? gvmm__claim_behind(i->base, add, i->resource->account) : NULL;
    gvmm_result r = behind ? map_behind(out, i, behind) : map_anew(out, i);
    gvmm__reservation_release(behind);
    if (!r) return GVMM_OK;
    gvmm_error error; /* the driver maps memory whole, and tells its size by refusing another */
    gvmm_last_error(&error);
    bool by_size = error.status == CUDA_ERROR_NOT_SUPPORTED && error.call &&
                   strcmp(error.call, gvmm_driver_call_name(GVMM_CALL_cuMemMap)) == 0;
    return by_size ? gvmm__about(GVMM_E_INVALID, "descriptor", "a chunk has not the size that it says") : r;
}

gvmm_result gvmm__importer_finish(gvmm_buffer **out, importer *i, gvmm_stream stream)
{
    range *r;
    if (i->count != i->wanted)
        return gvmm__fail(GVMM_E_INVALID, "descriptors: %zu came for %zu chunks", i->count, i->wanted);
    gvmm_result failed = put_together(&r, i);
    if (failed) return failed;
    stream = gvmm__stream_recorded(stream, &i->resource->device);
    failed = gvmm__buffer_make(out, i->resource, NULL, r, stream);
    if (failed) gvmm__range_release(r);
    return failed;
}

static gvmm_result import_all(gvmm_buffer **out, importer *i, const gvmm_shared *shared, gvmm_stream stream)
{
    bool fabric = i->head.handle_type == CU_MEM_HANDLE_TYPE_FABRIC;
    size_t expected = fabric ? 0 : i->wanted;
    if (shared->fd_count != expected)
        return gvmm__fail(GVMM_E_INVALID, "descriptors: %zu came, not %zu", shared->fd_count, expected);
    gvmm_result r = GVMM_OK;
    for (size_t k = 0; k < i->wanted && !r; k++) r = gvmm__importer_add(i, fabric ? NULL : &shared->fds[k]);
    return r ? r : gvmm__importer_finish(out, i, stream);
}

gvmm_result gvmm_buffer_import(gvmm_buffer **out, gvmm_resource *resource, const gvmm_shared *shared, gvmm_buffer *have,
                               gvmm_stream stream)
{
    if (!out || !resource || !shared)
        return gvmm__fail(GVMM_E_INVALID, "%s is NULL", !out ? "out" : !resource ? "resource" : "shared");
    if (!shared->bytes || (shared->fd_count && !shared->fds))
        return gvmm__fail(GVMM_E_INVALID, "shared: %s is NULL", shared->bytes ? "fds" : "bytes");
    if (shared->size > gvmm__wire_size(WIRE_MOST_CHUNKS, 0, CU_MEM_HANDLE_TYPE_FABRIC))
        return gvmm__fail(GVMM_E_INVALID, "descriptor: it is longer than any");
    range *known = NULL;
    gvmm_result r = have ? gvmm__buffer_borrow(&known, have) : GVMM_OK;
    void *bytes = r ? NULL : gvmm__alloc(shared->size + 1);
    if (!r && !bytes) r = GVMM_E_NO_HOST_MEMORY;
    if (!r) { /* a copy: what is checked must not change, and the original may lie in memory that others write */
        importer i;
        memcpy(bytes, shared->bytes, shared->size);
        r = gvmm__importer_begin(&i, resource, bytes, shared->size, known);
        if (!r) {
            r = import_all(out, &i, shared, stream);
            gvmm__importer_end(&i);
        }
    }
    gvmm__range_release(known);
    return r;
}

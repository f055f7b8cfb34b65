/* Physical memory given back while its places stay, and made anew there.
 *
 * The driver takes time by the chunk and by the call, and with graphs around by the call above all. So adjacent places
 * are unmapped in one call and opened in one, whatever reservations they lie in (the driver allows that, measured). All
 * memory locks are held meanwhile: a place can neither go nor come while its neighbours are dealt with. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Memories for which the locks are held at a time, and places that are sorted at a time. */
enum { BATCH = 64, PLACES = 256 };

/* Mappings of resident memory, gathered to be dealt with in runs. */
typedef struct places {
    const mapping *list[PLACES];
    size_t count;
} places;

static int by_address(const void *a, const void *b)
{
    uint64_t x = (*(const mapping *const *)a)->address, y = (*(const mapping *const *)b)->address;
    return x < y ? -1 : x > y;
}

static bool same_readers(const memory *a, const memory *b)
{
    return a->access_count == b->access_count &&
           (a->access == b->access || memcmp(a->access, b->access, a->access_count * sizeof *a->access) == 0);
}

/* How many of the sorted places from `first` on lie one behind the other, and their bytes. */
static size_t run_from(const places *p, size_t first, bool readers_matter, size_t *size)
{
    size_t end = first + 1;
    *size = p->list[first]->memory->size;
    for (; end < p->count && p->list[end]->address == p->list[first]->address + *size; end++) {
        if (readers_matter && !same_readers(p->list[first]->memory, p->list[end]->memory)) break;
        *size += p->list[end]->memory->size;
    }
    return end - first;
}

static void unmap_runs(places *p)
{
    qsort(p->list, p->count, sizeof p->list[0], by_address);
    for (size_t i = 0, n, size; i < p->count; i += n) {
        uint64_t address = p->list[i]->address;
        n = run_from(p, i, false, &size);
        DRIVER_UNDO("mapping", address, cuMemUnmap, address, size);
        for (size_t k = i; k < i + n; k++) {
            const memory *m = p->list[k]->memory;
            gvmm__account_add(m->account, STAT_mapped_bytes, -(uint64_t)m->size);
        }
    }
    p->count = 0;
}

static gvmm_result open_runs(places *p)
{
    gvmm_result r = GVMM_OK;
    qsort(p->list, p->count, sizeof p->list[0], by_address);
    for (size_t i = 0, n, size; i < p->count && !r; i += n) {
        n = run_from(p, i, true, &size);
        r = gvmm__mapping_give_access(p->list[i], size);
    }
    p->count = 0;
    return r;
}

/* With all locks held, here and below. */
static void evict_batch(const member *list, size_t count)
{
    places open = {.count = 0};
    for (size_t i = 0; i < count; i++) {
        const memory *m = list[i].memory;
        for (const mapping *at = m->resident ? m->mappings : NULL; at; at = at->next) {
            if (open.count == PLACES) unmap_runs(&open);
            open.list[open.count++] = at;
        }
    }
    unmap_runs(&open);
    for (size_t i = 0; i < count; i++) {
        memory *m = list[i].memory;
        if (m->resident) gvmm__memory_release_handle(m, m->handle);
        m->resident = m->waking = false;
    }
}

/* Made and mapped at all its places, which are not open yet; or nothing. */
static gvmm_result make_and_map(memory *m)
{
    CUmemGenericAllocationHandle handle;
    gvmm_result r = gvmm__memory_get_handle(m, &handle);
    if (r) return r;
    const mapping *at = m->mappings;
    for (; at && !r; at = r ? at : at->next) r = gvmm__mapping_map(at, handle);
    if (r) {
        for (const mapping *done = m->mappings; done != at; done = done->next) gvmm__mapping_unmap(done);
        gvmm__memory_release_handle(m, handle);
        return r;
    }
    m->handle = handle;
    m->resident = m->waking = true;
    return GVMM_OK;
}

/* All or nothing. */
static gvmm_result restore_batch(const member *list, size_t count)
{
    places closed = {.count = 0};
    gvmm_result r = GVMM_OK;
    for (size_t made = 0; made < count && !r; made++) {
        r = make_and_map(list[made].memory);
        for (const mapping *at = r ? NULL : list[made].memory->mappings; at && !r; at = at->next) {
            if (closed.count == PLACES) r = open_runs(&closed);
            if (!r) closed.list[closed.count++] = at;
        }
    }
    if (!r) r = open_runs(&closed);
    if (r) evict_batch(list, count); /* those that are resident by now */
    return r;
}

void gvmm__evict(const member *list, size_t count)
{
    for (size_t done = 0; done < count; done += BATCH) {
        gvmm__memory_lock_all();
        evict_batch(list + done, count - done < BATCH ? count - done : BATCH);
        gvmm__memory_unlock_all();
    }
}

gvmm_result gvmm__restore(const member *list, size_t count)
{
    gvmm_result r = GVMM_OK;
    for (size_t done = 0; done < count && !r; done += BATCH) {
        gvmm__memory_lock_all();
        r = restore_batch(list + done, count - done < BATCH ? count - done : BATCH);
        gvmm__memory_unlock_all();
        if (r) gvmm__evict(list, done);
    }
    return r;
}

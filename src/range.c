/* The immutable chain of adjacent mappings. */
#include "internal.h"

/* A link with everything but its `before`. */
static gvmm_result link_create(range **out, size_t total, reservation *where, uint64_t address, memory *what)
{
    range *link = gvmm__alloc(sizeof *link);
    if (!link) return GVMM_E_NO_HOST_MEMORY;
    gvmm_result r = gvmm__mapping_open(&link->mapping, where, address, what);
    if (r) {
        gvmm__free(link);
        return r;
    }
    ref_init(&link->refs);
    link->before = NULL;
    link->total = total;
    *out = link;
    return GVMM_OK;
}

gvmm_result gvmm__range_extend(range **out, range *before, reservation *where, uint64_t address, memory *what)
{
    size_t total = (before ? before->total : 0) + what->size;
    gvmm_result r = link_create(out, total, where, address, what);
    if (!r && before) (*out)->before = gvmm__range_retain(before);
    return r;
}

/* Built from the last link to the first, so that each knows its place before the ones in front of it exist; a failure releases the
 * part that does. */
gvmm_result gvmm__range_move(range **out, const range *from, reservation *where, uint64_t address)
{
    range *moved = NULL, **next = &moved;
    for (const range *link = from; link; link = link->before) {
        memory *what = link->mapping.memory;
        gvmm_result r = link_create(next, link->total, where, address + link->total - what->size, what);
        if (r) {
            gvmm__range_release(moved);
            return r;
        }
        next = &(*next)->before;
    }
    *out = moved;
    return GVMM_OK;
}

range *gvmm__range_retain(range *r)
{
    ref_retain(&r->refs);
    return r;
}

/* A loop, not a recursion: a range may have tens of thousands of links. It stops at the first one that is still shared. */
void gvmm__range_release(range *r)
{
    while (r && ref_release(&r->refs)) {
        range *before = r->before;
        gvmm__mapping_close(&r->mapping);
        gvmm__free(r);
        r = before;
    }
}

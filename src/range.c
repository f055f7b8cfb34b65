/* The immutable chain of adjacent mappings. */
#include "internal.h"

/* A link with everything but its `before`. Its address has been claimed. */
static gvmm_result link_create(range **out, size_t total, reservation *where, uint64_t address, memory *what)
{
    range *link = gvmm__alloc(sizeof *link);
    if (!link) return GVMM_E_NO_HOST_MEMORY;
    ref_init(&link->refs); /* before others can find it: evict.c borrows what is mapped */
    link->before = NULL;
    link->total = total;
    gvmm_result r = gvmm__mapping_open(&link->mapping, where, address, what);
    if (r) gvmm__free(link);
    else *out = link;
    return r;
}

gvmm_result gvmm__range_extend(range **out, range *before, reservation *where, uint64_t address, memory *what)
{
    size_t in_front = before ? before->total : (size_t)(address - where->base);
    gvmm_result r = link_create(out, in_front + what->size, where, address, what);
    if (!r && before) (*out)->before = gvmm__range_retain(before);
    return r;
}

void gvmm__range_give_up(range *r, const range *before, reservation *where, uint64_t address)
{
    bool none = r == before;
    gvmm__range_release(r); /* with the first link the claim goes back, and may be another's at once */
    if (none) gvmm__reservation_unclaim(where, address);
}

gvmm_result gvmm__range_extend_by(range **out, range *before, reservation *where, uint64_t address, memory **list,
                                  size_t count)
{
    range *r = before ? gvmm__range_retain(before) : NULL;
    gvmm_result failed = GVMM_OK;
    uint64_t at = address;
    for (size_t i = 0; i < count; i++) {
        range *longer;
        failed = gvmm__range_extend(&longer, r, where, at, list[i]);
        if (failed) break;
        gvmm__range_release(r);
        r = longer;
        at += list[i]->size;
    }
    if (failed) gvmm__range_give_up(r, before, where, address);
    else *out = r;
    return failed;
}

/* From the last link to the first, so that each knows its place before the ones in front of it exist. */
gvmm_result gvmm__range_move(range *tail, const range *from, reservation *where)
{
    range **next = &tail->before;
    while (*next) next = &(*next)->before;
    for (const range *link = from; link; link = link->before) {
        memory *what = link->mapping.memory;
        gvmm_result r = link_create(next, link->total, where, where->base + link->total - what->size, what);
        if (r) return r;
        next = &(*next)->before;
    }
    return GVMM_OK;
}

size_t gvmm__range_count(const range *r)
{
    size_t count = 0;
    for (; r; r = r->before) count++;
    return count;
}

const range **gvmm__range_links(const range *r, size_t *count)
{
    *count = gvmm__range_count(r);
    const range **links = gvmm__alloc((*count + 1) * sizeof *links);
    if (!links) return NULL;
    size_t at = *count; /* the chain goes from the last to the first */
    for (; r; r = r->before) links[--at] = r;
    return links;
}

range *gvmm__range_retain(range *r)
{
    ref_retain(&r->refs);
    return r;
}

/* A loop, not a recursion: a range may have tens of thousands of links. It stops at the first one that is still
 * shared. */
void gvmm__range_release(range *r)
{
    while (r && ref_release(&r->refs)) {
        range *before = r->before;
        gvmm__mapping_close(&r->mapping);
        gvmm__free(r);
        r = before;
    }
}

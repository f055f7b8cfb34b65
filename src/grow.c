/* Making ranges and growing them: where the memory comes from and where it is put. */
#include "internal.h"

/* From the stock if it has one of that size, else new. Where the device is full, what waits to be given back is waited
 * for, what was made ahead is given up, and it is tried once more. */
static gvmm_result make_memory(memory **out, const maker *with, size_t size, size_t place)
{
    if (with->stock && size == with->placement->chunk_size && (*out = gvmm__stock_take(with->stock))) return GVMM_OK;
    uint64_t before = gvmm__retire_returned();
    gvmm_result r = gvmm__memory_create(out, with->placement, size, place, with->account);
    if (r != GVMM_E_NO_DEVICE_MEMORY && r != GVMM_E_NO_HOST_MEMORY) return r;
    if (!gvmm__make_room(gvmm__placement_device(with->placement, place), before)) return r;
    return gvmm__memory_create(out, with->placement, size, place, with->account);
}

/* New memory at `address`, which has been claimed, `size` bytes in chunks of the wished size, behind `before` (may be
 * NULL). */
static gvmm_result add_chunks(range **out, range *before, reservation *where, uint64_t address, const maker *with,
                              size_t size)
{
    size_t chunk = with->placement->chunk_size ? with->placement->chunk_size : size;
    range *r = before ? gvmm__range_retain(before) : NULL;
    gvmm_result failed = GVMM_OK;
    for (size_t done = 0; done < size && !failed; done += chunk) {
        memory *what;
        range *longer = NULL;
        size_t piece = size - done < chunk ? size - done : chunk;
        size_t in_front = r ? r->total : (size_t)(address - where->base);
        failed = make_memory(&what, with, piece, in_front / chunk);
        if (failed) break;
        failed = gvmm__range_extend(&longer, r, where, address + done, what);
        gvmm__memory_release(what);
        if (failed) break;
        gvmm__range_release(r);
        r = longer;
    }
    if (failed) gvmm__range_give_up(r, before, where, address);
    else *out = r;
    return failed;
}

static gvmm_result reserve(reservation **out, size_t need, const maker *with, uint64_t hint)
{
    const placement *p = with->placement;
    return gvmm__reservation_ahead(out, need, with->capacity, p->addr_align, hint, p->granularity, with->account);
}

gvmm_result gvmm__range_make(range **out, const maker *with, size_t size)
{
    reservation *where;
    gvmm__retire_mark();
    gvmm_result r = reserve(&where, size, with, with->placement->addr_hint);
    if (r) return r;
    gvmm__reservation_claim(where, where->base, size); /* cannot fail: nobody else knows it */
    r = add_chunks(out, NULL, where, where->base, with, size);
    gvmm__reservation_release(where);
    return r;
}

/* Every memory of `from` at a new address, and the new chunks behind. The new memory comes first: it is the likeliest
 * to fail, and then nothing has been mapped for nothing. */
static gvmm_result grow_moved(range **out, const range *from, const maker *with, size_t add)
{
    if (from->total > SIZE_MAX - add)
        return gvmm__fail(GVMM_E_INVALID, "size: %zu and %zu bytes overflow", from->total, add);
    reservation *where;
    gvmm_result r = reserve(&where, from->total + add, with, 0);
    if (r) return r;
    range *tail = NULL;
    gvmm__reservation_claim(where, where->base, from->total + add);
    r = add_chunks(&tail, NULL, where, where->base + from->total, with, add);
    if (!r) r = gvmm__range_move(tail, from, where);
    gvmm__reservation_release(where);
    if (r) {
        gvmm__range_release(tail);
        return r;
    }
    gvmm__account_add(with->account, STAT_grows_moved, 1);
    *out = tail;
    return GVMM_OK;
}

reservation *gvmm__claim_behind(range *from, size_t size, account *a)
{
    reservation *own = from->mapping.reservation;
    uint64_t end = gvmm__range_end(from);
    if (gvmm__reservation_claim(own, end, size)) return gvmm__reservation_retain(own);
    if (end - own->base < own->size) return NULL; /* it goes on, and so nobody else can reserve there */
    reservation *behind = gvmm__reservation_probe(end, size, a);
    if (behind) gvmm__reservation_claim(behind, end, size);
    return behind;
}

/* In place where the address space behind is free, else moved. What the probe says is of no interest; but a chunk that
 * cannot be made in place is tried once more by moving, and if that fails too the first failure is the one to
 * report. */
gvmm_result gvmm__range_grow(range **out, range *from, const maker *with, size_t add)
{
    gvmm__retire_mark();
    reservation *behind = gvmm__claim_behind(from, add, with->account);
    if (!behind) return grow_moved(out, from, with, add);
    gvmm_result r = add_chunks(out, from, behind, gvmm__range_end(from), with, add);
    gvmm__reservation_release(behind);
    if (!r) {
        gvmm__account_add(with->account, STAT_grows_in_place, 1);
        return GVMM_OK;
    }
    saved_error first;
    gvmm__error_save(&first);
    return grow_moved(out, from, with, add) == GVMM_OK ? GVMM_OK : gvmm__error_restore(&first);
}

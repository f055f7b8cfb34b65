/* Reserved address space. */
#include "internal.h"

static reservation *new_reservation(size_t size)
{
    reservation *r = gvmm__alloc(sizeof *r);
    if (!r) return NULL;
    ref_init(&r->refs);
    r->size = size;
    atomic_init(&r->claimed, 0);
    return r;
}

static reservation *entered(reservation *r, uint64_t base, account *a)
{
    r->base = base;
    r->account = gvmm__account_retain(a);
    gvmm__account_add(a, STAT_reserved_bytes, r->size);
    gvmm__account_add(a, STAT_reservations, 1);
    return r;
}

gvmm_result gvmm__reservation_create(reservation **out, size_t size, uint64_t align, uint64_t hint, account *a)
{
    reservation *where = new_reservation(size);
    if (!where) return GVMM_E_NO_HOST_MEMORY;
    CUdeviceptr base;
    gvmm_result r = DRIVER(cuMemAddressReserve, &base, size, align, hint, 0);
    bool refused_hint = r && hint; /* as some drivers do with one that they cannot follow */
    if (refused_hint) r = DRIVER(cuMemAddressReserve, &base, size, align, 0, 0);
    if (r) {
        gvmm__free(where);
        return gvmm__about(r, "reservation", "%zu bytes, alignment %llu", size, (unsigned long long)align);
    }
    *out = entered(where, base, a);
    return GVMM_OK;
}

gvmm_result gvmm__reservation_ahead(reservation **out, size_t need, uint64_t wish, uint64_t align, uint64_t hint,
                                    size_t granularity, account *a)
{
    size_t size = wish > SIZE_MAX - granularity ? SIZE_MAX / granularity * granularity : (size_t)wish;
    gvmm__round_up(&size, granularity);
    saved_error before; /* a wish that is not granted is no failure */
    gvmm__error_save(&before);
    gvmm_result r = GVMM_E_NO_ADDRESS_SPACE;
    for (; r && size > need; size = size / 2 / granularity * granularity)
        r = gvmm__reservation_create(out, size, align, hint, a);
    if (r) r = gvmm__reservation_create(out, need, align, hint, a);
    if (!r) gvmm__error_restore(&before);
    return r;
}

bool gvmm__reservation_claim(reservation *r, uint64_t address, size_t size)
{
    size_t offset = (size_t)(address - r->base);
    if (offset > r->size || size > r->size - offset) return false;
    return atomic_compare_exchange_strong(&r->claimed, &offset, offset + size);
}

void gvmm__reservation_unclaim(reservation *r, uint64_t address)
{
    size_t offset = (size_t)(address - r->base);
    if (atomic_load(&r->claimed) > offset) atomic_store(&r->claimed, offset);
}

reservation *gvmm__reservation_probe(uint64_t address, size_t size, account *a)
{
    reservation *where = new_reservation(size);
    if (!where) return NULL;
    CUdeviceptr base;
    if (DRIVER_QUIET(cuMemAddressReserve, &base, size, 0, address, 0) == CUDA_SUCCESS) {
        if (base == address) return entered(where, base, a);
        DRIVER_UNDO("reservation", base, cuMemAddressFree, base, size);
    }
    gvmm__free(where);
    return NULL;
}

reservation *gvmm__reservation_retain(reservation *r)
{
    ref_retain(&r->refs);
    return r;
}

void gvmm__reservation_release(reservation *r)
{
    if (!r || !ref_release(&r->refs)) return;
    DRIVER_UNDO("reservation", r->base, cuMemAddressFree, r->base, r->size);
    gvmm__account_add(r->account, STAT_reserved_bytes, -(uint64_t)r->size);
    gvmm__account_add(r->account, STAT_reservations, -1ull);
    gvmm__account_release(r->account);
    gvmm__free(r);
}

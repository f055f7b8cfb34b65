/* Reserved address space. */
#include "internal.h"

static reservation *new_reservation(size_t size)
{
    reservation *r = gvmm__alloc(sizeof *r);
    if (!r) return NULL;
    ref_init(&r->refs);
    r->size = size;
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
    if (r && hint) r = DRIVER(cuMemAddressReserve, &base, size, align, 0, 0); /* some drivers refuse a hint that they cannot follow */
    if (r) {
        gvmm__free(where);
        return gvmm__about(r, "reservation", "%zu bytes, alignment %llu", size, (unsigned long long)align);
    }
    *out = entered(where, base, a);
    return GVMM_OK;
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

/* Where memory is made and who may touch it. */
#include "internal.h"

placement *gvmm__placement_retain(placement *p)
{
    ref_retain(&p->refs);
    return p;
}

void gvmm__placement_release(placement *p)
{
    if (p && ref_release(&p->refs)) gvmm__free(p);
}

int gvmm__placement_device(const placement *p, size_t place)
{
    if (p->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return -1;
    return p->stripe_count ? p->stripe[place % p->stripe_count] : p->prop.location.id;
}

unsigned gvmm__placement_devices(const placement *p) { return p->stripe_count ? p->stripe_count : 1; }

bool gvmm__placement_has(const placement *p, int device)
{
    bool has = false;
    for (unsigned i = 0; i < gvmm__placement_devices(p); i++) has |= gvmm__placement_device(p, i) == device;
    return has;
}

gvmm_result gvmm__placement_memory(uint64_t *out, const placement *p)
{
    uint64_t all = 0;
    for (unsigned i = 0; i < gvmm__placement_devices(p); i++) {
        size_t bytes;
        int device = gvmm__placement_device(p, i);
        gvmm_result r = DRIVER(cuDeviceTotalMem, &bytes, device);
        if (r) return gvmm__about(r, "device", "memory of device %d", device);
        all += bytes;
    }
    *out = all;
    return GVMM_OK;
}

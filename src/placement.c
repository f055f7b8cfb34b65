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

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

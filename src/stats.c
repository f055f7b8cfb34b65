/* What is alive and what has happened. */
#include "internal.h"

static atomic_ullong process[STAT_COUNT];

account *gvmm__account_create(void)
{
    account *a = gvmm__alloc(sizeof *a);
    if (!a) return NULL;
    ref_init(&a->refs);
    for (int i = 0; i < STAT_COUNT; i++) atomic_init(&a->figures[i], 0);
    pthread_mutex_init(&a->lock, NULL);
    a->memories = NULL;
    gvmm__hold();
    return a;
}

account *gvmm__account_retain(account *a)
{
    ref_retain(&a->refs);
    return a;
}

void gvmm__account_release(account *a)
{
    if (!a || !ref_release(&a->refs)) return;
    pthread_mutex_destroy(&a->lock);
    gvmm__free(a);
    gvmm__unhold();
}

void gvmm__account_add(account *a, figure which, uint64_t amount)
{
    atomic_fetch_add_explicit(&a->figures[which], amount, memory_order_relaxed);
    atomic_fetch_add_explicit(&process[which], amount, memory_order_relaxed);
}

void gvmm__account_read(const account *a, gvmm_stats *out)
{
    const atomic_ullong *figures = a ? a->figures : process;
#define GVMM_X(name) out->name = atomic_load_explicit(&figures[STAT_##name], memory_order_relaxed);
    GVMM_STATS(GVMM_X)
#undef GVMM_X
}

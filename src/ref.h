/* The reference count that every shared object embeds. */
#ifndef GVMM_REF_H
#define GVMM_REF_H

#include <stdatomic.h>
#include <stdbool.h>

typedef struct ref {
    atomic_uint count;
} ref;

static inline void ref_init(ref *r) { atomic_init(&r->count, 1); }

/* A new reference is made from an existing one, so nothing needs ordering here. */
static inline void ref_retain(ref *r) { atomic_fetch_add_explicit(&r->count, 1, memory_order_relaxed); }

/* For who finds an object in a list that does not hold it: false if its last reference has gone already. */
static inline bool ref_try_retain(ref *r)
{
    unsigned count = atomic_load_explicit(&r->count, memory_order_relaxed);
    while (count)
        if (atomic_compare_exchange_weak_explicit(&r->count, &count, count + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* True for the caller that dropped the last reference, who then sees everything that other holders did. */
static inline bool ref_release(ref *r) { return atomic_fetch_sub_explicit(&r->count, 1, memory_order_acq_rel) == 1; }

/* For its holder: nobody else holds it, so nobody else can begin to; and the caller sees what earlier holders did. */
static inline bool ref_is_single(ref *r) { return atomic_load_explicit(&r->count, memory_order_acquire) == 1; }

#endif

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

/* True for the caller that dropped the last reference, who then sees everything that other holders did. */
static inline bool ref_release(ref *r)
{
    return atomic_fetch_sub_explicit(&r->count, 1, memory_order_acq_rel) == 1;
}

#endif

/* What the tests of pools have in common: a pool, and what is asked of it. */
#ifndef GVMM_POOL_KIT_H
#define GVMM_POOL_KIT_H

#include "support.h"

#define KiB ((size_t)1 << 10)

static gvmm_pool *pool;

static inline gvmm_pool *pool_with(size_t limit, bool streams_outlive)
{
    gvmm_pool *made;
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.limit = limit;
    options.streams_outlive = streams_outlive;
    ck_ok(gvmm_pool_create(&made, plain, &options));
    return made;
}

/* In place of the one that each test begins with. */
static inline void new_pool(size_t limit, bool streams_outlive)
{
    gvmm_pool_release(pool);
    pool = pool_with(limit, streams_outlive);
}

static inline void setup_pool(void)
{
    setup();
    pool = pool_with(0, false);
}

static inline void teardown_pool(void)
{
    gvmm_pool_release(pool);
    teardown();
}

static inline uint64_t take(size_t size, gvmm_stream s)
{
    uint64_t address;
    ck_ok(gvmm_pool_malloc(&address, pool, size, s));
    return address;
}

static inline void give(uint64_t address, gvmm_stream s) { ck_ok(gvmm_pool_free(pool, address, s)); }

static inline gvmm_pool_stats stats(void)
{
    gvmm_pool_stats now;
    gvmm_pool_get_stats(pool, &now);
    return now;
}

#endif

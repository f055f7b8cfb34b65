/* What the tests of kept memory have in common: a resource that keeps some, and what is asked of it. */
#ifndef GVMM_REUSE_KIT_H
#define GVMM_REUSE_KIT_H

#include "watch.h"

enum { LIMIT = 16 }; /* chunks */

static gvmm_resource *keeping;

static inline gvmm_options keeping_options(void)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = LIMIT * G;
    return options;
}

/* In place of the one that each test begins with. */
static inline void keep_with(gvmm_options options)
{
    gvmm_resource_release(keeping);
    keeping = resource_with(options);
}

static inline void begin(void) { keeping = resource_with(keeping_options()); }

static inline void finish(void)
{
    gvmm_resource_release(keeping);
    gvmm_drain();
    ck_no_warnings();
}

static inline gvmm_buffer *make(size_t size, gvmm_stream on)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, keeping, size, on));
    return buffer;
}

static inline gvmm_stats figures(void) { return stats_of(keeping); }

static inline uint64_t kept(void) { return figures().kept_bytes; }

/* Makes one and releases it; its address, to be compared. */
static inline uint64_t leave(size_t size, gvmm_stream on)
{
    gvmm_buffer *buffer = make(size, on);
    uint64_t address = gvmm_buffer_address(buffer);
    gvmm_buffer_release(buffer);
    return address;
}

/* Is the memory handed out again when a buffer is made on that stream? */
static inline bool is_reused(uint64_t address, size_t size, gvmm_stream on)
{
    uint64_t before = figures().reused;
    gvmm_buffer *buffer = make(size, on);
    bool reused = figures().reused == before + 1;
    ck_assert(!reused || gvmm_buffer_address(buffer) == address);
    ck_ok(gvmm_buffer_close(buffer, NULL)); /* which does not keep it */
    gvmm_buffer_release(buffer);
    return reused;
}

/* Is all work of the stream so far done? */
static inline bool is_idle(CUstream s)
{
    CUresult status = cu->cuStreamQuery(s);
    ck_assert(status == CUDA_SUCCESS || status == CUDA_ERROR_NOT_READY);
    return status == CUDA_SUCCESS;
}

#endif

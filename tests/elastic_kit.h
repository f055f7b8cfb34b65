/* What the tests of elastic buffers and of evicting have in common. */
#ifndef GVMM_ELASTIC_KIT_H
#define GVMM_ELASTIC_KIT_H

#include "watch.h"

static inline gvmm_resource *with_chunks(size_t chunk, uint64_t capacity)
{
    gvmm_options options = waiting_options();
    options.chunk_size = chunk;
    options.capacity = capacity;
    return resource_with(options);
}

static inline gvmm_buffer *shrink(gvmm_buffer *buffer, size_t size)
{
    gvmm_buffer *out;
    ck_ok(gvmm_buffer_shrink(&out, buffer, size));
    return out;
}

static inline gvmm_access get_access(gvmm_buffer *buffer, int device)
{
    gvmm_access access;
    ck_ok(gvmm_buffer_get_access(buffer, device, &access));
    return access;
}

static inline uint64_t end(gvmm_buffer *buffer) { return gvmm_buffer_address(buffer) + gvmm_buffer_size(buffer); }

/* The result takes the buffer's place. */
static inline void regrow(gvmm_buffer **buffer, size_t size)
{
    gvmm_buffer *larger = grow(*buffer, size);
    gvmm_buffer_release(*buffer);
    *buffer = larger;
}

/* Both devices' access to every chunk of the buffer. */
static inline void ck_access(gvmm_buffer *buffer, gvmm_access first, gvmm_access second)
{
    for (uint64_t at = address(buffer); at < end(buffer); at += G) {
        ck_assert_uint_eq(access_of(at, 0), first);
        ck_assert_uint_eq(access_of(at, 1), second);
    }
    ck_assert_int_eq(get_access(buffer, 0), first);
    ck_assert_int_eq(get_access(buffer, 1), second);
}

/* ---- evicting ---- */

static inline gvmm_evict_options keep(gvmm_contents contents)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = contents;
    options.directory = contents == GVMM_CONTENTS_FILE ? "/tmp" : NULL;
    return options;
}

static inline void evict(gvmm_buffer *buffer, gvmm_contents contents)
{
    gvmm_evict_options options = keep(contents);
    ck_ok(gvmm_buffer_evict(buffer, &options));
}

/* Pieces of pinned memory that are alive when all that was given up has gone, and that there are as many: one for each
 * 256 MiB of a backup. A GPU does not tell. */
static inline void ck_pinned(size_t pieces)
{
    gvmm_drain();
    if (on_gpu) return;
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    ck_assert_uint_eq(counts[GVMM_SIM_REGISTERED], pieces);
    ck_assert_uint_eq(counts[GVMM_SIM_PINNED], 0);
}

static inline void ck_not_mapped(uint64_t at)
{
    CUmemGenericAllocationHandle handle;
    ck_cu_fails(cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
}

#endif

/* The other side: the same things by hand. */
#include <stdlib.h>

#include "bench.h"

CUmemAllocationProp raw_prop;
CUmemAccessDesc raw_access;

void raw_start(void)
{
    raw_prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    raw_prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    raw_prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0};
    raw_access = (CUmemAccessDesc){raw_prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

void raw_make(raw_chunk *out, size_t size, CUdeviceptr hint)
{
    out->size = size;
    CU(cu->cuMemAddressReserve(&out->address, size, 0, hint, 0));
    CU(cu->cuMemCreate(&out->handle, size, &raw_prop, 0));
    CU(cu->cuMemMap(out->address, size, 0, out->handle, 0));
    CU(cu->cuMemSetAccess(out->address, size, &raw_access, 1));
}

void raw_unmake(const raw_chunk *c)
{
    CU(cu->cuMemUnmap(c->address, c->size));
    CU(cu->cuMemRelease(c->handle));
    CU(cu->cuMemAddressFree(c->address, c->size));
}

void raw_wait(void) { CU(cu->cuStreamSynchronize(CU_STREAM_LEGACY)); }

raw_span raw_span_reserve(size_t count, CUdeviceptr hint)
{
    raw_span span = {.count = count, .handles = malloc(count * sizeof *span.handles)};
    MUST(span.handles);
    CU(cu->cuMemAddressReserve(&span.base, count * G, 0, hint, 0));
    return span;
}

void raw_span_fill(raw_span *span)
{
    for (size_t i = 0; i < span->count; i++) {
        CU(cu->cuMemCreate(&span->handles[i], G, &raw_prop, 0));
        CU(cu->cuMemMap(span->base + i * G, G, 0, span->handles[i], 0));
        CU(cu->cuMemSetAccess(span->base + i * G, G, &raw_access, 1));
    }
}

void raw_span_unmake(raw_span *span)
{
    for (size_t i = span->count; i-- > 0;) {
        CU(cu->cuMemUnmap(span->base + i * G, G));
        CU(cu->cuMemRelease(span->handles[i]));
    }
    CU(cu->cuMemAddressFree(span->base, span->count * G));
    free(span->handles);
}

CUdeviceptr free_place(size_t size)
{
    CUdeviceptr address;
    CU(cu->cuMemAddressReserve(&address, size, 0, 0, 0));
    CU(cu->cuMemAddressFree(address, size));
    return address;
}

bool fits(size_t size)
{
    size_t available, total;
    CU(cu->cuMemGetInfo(&available, &total));
    return size + 64 * MiB <= available;
}

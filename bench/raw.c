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

raw_chunk *raw_row(CUdeviceptr base, size_t count)
{
    raw_chunk *row = malloc(count * sizeof *row);
    MUST(row);
    for (size_t i = 0; i < count; i++) {
        raw_make(&row[i], G, base + i * G);
        MUST(row[i].address == base + i * G);
    }
    return row;
}

void raw_row_unmake(raw_chunk *row, size_t count)
{
    for (size_t i = count; i-- > 0;) raw_unmake(&row[i]);
    free(row);
}

/* Far away from everything the driver grants what is asked for, and nothing else is there; another place each time.
 * Where it does not, the place of a reservation that was just freed may do. */
CUdeviceptr free_place(size_t size)
{
    static unsigned times;
    CUdeviceptr address, wish = ((CUdeviceptr)0x30 << 40) + ((CUdeviceptr)(times++ % 16) << 40);
    CU(cu->cuMemAddressReserve(&address, G, 0, wish, 0));
    CU(cu->cuMemAddressFree(address, G));
    if (address == wish) return address;
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

/* M: address ranges. */
#include "conformance.h"

#define MiB ((size_t)1 << 20)

/* ---- reserve ---- */

static void reserve_with(size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    CUdeviceptr p = 0;
    CUresult r = try_reserve(&p, size, alignment, hint, flags);
    tell("", r);
    if (!r && alignment) say("aligned=%d", p % alignment == 0);
    if (!r && hint) say("granted=%d", p == hint);
}

FACT(M_reserve_zero, "Reserving no bytes.") { reserve_with(0, 0, 0, 0); }
FACT(M_reserve_half, "Reserving half the granularity.") { reserve_with(G / 2, 0, 0, 0); }
FACT(M_reserve_64K, "Reserving 64 KiB.") { reserve_with(65536, 0, 0, 0); }
FACT(M_reserve_odd, "Reserving the granularity and a page.") { reserve_with(G + 4096, 0, 0, 0); }
FACT(M_reserve_flags, "Reserving with flags 1.") { reserve_with(G, 0, 0, 1); }
FACT(M_reserve_huge, "Reserving 2^46 bytes.")
{
#ifdef __SANITIZE_THREAD__
    skip("ThreadSanitizer leaves no such hole");
#endif
    reserve_with((size_t)1 << 46, 0, 0, 0);
}
FACT(M_reserve_too_huge, "Reserving 2^47 bytes.") { reserve_with((size_t)1 << 47, 0, 0, 0); }
FACT(M_reserve_far_too_huge, "Reserving 2^49 bytes.") { reserve_with((size_t)1 << 49, 0, 0, 0); }
FACT(M_reserve_overflow, "Reserving all of the 64-bit range but one granule.") { reserve_with(0 - G, 0, 0, 0); }
FACT(M_reserve_align_page, "Alignment of 4096, less than the granularity.") { reserve_with(G, 4096, 0, 0); }
FACT(M_reserve_align_g, "Alignment of 2 MiB.") { reserve_with(G, 2 * MiB, 0, 0); }
FACT(M_reserve_align_large, "Alignment of 32 MiB, larger than the size.") { reserve_with(G, 32 * MiB, 0, 0); }
FACT(M_reserve_align_huge, "Alignment of 512 MiB, larger than the size.") { reserve_with(G, 512 * MiB, 0, 0); }
FACT(M_reserve_align_odd, "Alignment of 3 MiB, no power of two.") { reserve_with(G, 3 * MiB, 0, 0); }
FACT(M_reserve_align_1, "Alignment of 1.") { reserve_with(G, 1, 0, 0); }
FACT(M_reserve_align_3, "Alignment of 3.") { reserve_with(G, 3, 0, 0); }
FACT(M_reserve_align_2_40, "Alignment of 2^40.") { reserve_with(G, (size_t)1 << 40, 0, 0); }
FACT(M_reserve_hint_unaligned, "A hint that is no multiple of the granularity.")
{
    reserve_with(G, 0, 0x200001000ull, 0);
}
FACT(M_reserve_hint_low, "A hint at 4 GiB.") { reserve_with(G, 0, 0x100000000ull, 0); }
FACT(M_reserve_hint_beyond, "A hint at 2^47.")
{
    CUdeviceptr p = 0;
    CUresult r = try_reserve(&p, G, 0, 1ull << 47, 0);
    tell("", r);
}
FACT(M_reserve_hint_taken, "A hint that is reserved already.") { reserve_with(G, 0, reserve(G), 0); }
FACT(M_reserve_hint_inside, "A hint inside a larger reservation.") { reserve_with(G, 0, reserve(4 * G) + G, 0); }
FACT(M_reserve_hint_overlap, "A hint whose end would lie in a reservation.")
{
    CUdeviceptr p = reserve_pair(2 * G, 2 * G);
    forget(p);
    DO(cuMemAddressFree(p, 2 * G));
    reserve_with(4 * G, 0, p, 0);
}
FACT(M_reserve_hint_behind, "A hint right behind a reservation.")
{
    CUdeviceptr p = 0, q = 0;
    CUresult r = CUDA_SUCCESS;
    for (int i = 0; i < 16 && !r && (!p || q != p + 2 * G); i++) {
        p = reserve(2 * G);
        r = try_reserve(&q, 2 * G, 0, p + 2 * G, 0);
    }
    tell("", r);
    say("granted=%d", q == p + 2 * G);
}
FACT(M_reserve_hint_behind_aligned, "A hint right behind a reservation, with an alignment that it does not have.")
{
    CUdeviceptr p = 0, q = 0;
    setup(try_reserve(&p, 2 * G, 32 * G, 0, 0), "cuMemAddressReserve", __FILE__, __LINE__);
    CUresult r = try_reserve(&q, 2 * G, 32 * G, p + 2 * G, 0);
    tell("", r);
    if (!r) say("granted=%d aligned=%d", q == p + 2 * G, q % (32 * G) == 0);
}
FACT(M_reserve_hint_freed, "A hint where a reservation was freed.") { reserve_with(2 * G, 0, unreserved(), 0); }
FACT(M_reserve_hint_hole, "A hint at a hole between two reservations that is as large as asked.")
{
    CUdeviceptr p = reserve_pair(6 * G, 2 * G); /* then the first is freed but for its beginning */
    forget(p);
    DO(cuMemAddressFree(p, 6 * G));
    CUdeviceptr first = 0;
    setup(try_reserve(&first, 2 * G, 0, p, 0), "cuMemAddressReserve", __FILE__, __LINE__);
    must(first == p, "first hint not granted");
    reserve_with(4 * G, 0, p + 2 * G, 0);
}
FACT(M_reserve_hint_middle, "A hint in the middle of a free hole.")
{
    CUdeviceptr p = reserve_pair(6 * G, 2 * G);
    forget(p);
    DO(cuMemAddressFree(p, 6 * G));
    reserve_with(2 * G, 0, p + 2 * G, 0);
}
FACT(M_reserve_hint_behind_freed, "A hint right behind where a reservation was freed.")
{
    CUdeviceptr p = reserve_pair(4 * G, 2 * G);
    forget(p);
    forget(p + 4 * G);
    DO(cuMemAddressFree(p + 4 * G, 2 * G));
    DO(cuMemAddressFree(p, 4 * G));
    reserve_with(2 * G, 0, p + 4 * G, 0);
}
FACT(M_reserve_too_huge_flags, "2^47 bytes and flags 1: which error comes.") { reserve_with((size_t)1 << 47, 0, 0, 1); }
FACT(M_reserve_too_huge_align, "2^47 bytes and alignment 3 MiB: which error comes.")
{
    reserve_with((size_t)1 << 47, 3 * MiB, 0, 0);
}

/* ---- address free ---- */

FACT(M_free, "Freeing a reservation.")
{
    CUdeviceptr p = reserve(8 * G);
    TELL("", cuMemAddressFree(GONE(p), 8 * G));
}
FACT(M_free_part, "Freeing the first half of a reservation.") { TELL("", cuMemAddressFree(reserve(8 * G), 4 * G)); }
FACT(M_free_inner, "Freeing the inside of a reservation.") { TELL("", cuMemAddressFree(reserve(8 * G) + G, G)); }
FACT(M_free_more, "Freeing more than was reserved.") { TELL("", cuMemAddressFree(reserve(8 * G), 16 * G)); }
FACT(M_free_size_0, "Freeing a reservation with size 0.") { TELL("", cuMemAddressFree(reserve(8 * G), 0)); }
FACT(M_free_twice, "Freeing a reservation twice.") { TELL("", cuMemAddressFree(unreserved(), 8 * G)); }
FACT(M_free_nothing, "Freeing address 0, size 0.") { TELL("", cuMemAddressFree(0, 0)); }
FACT(M_free_two, "Freeing two adjacent reservations in one call.")
{
    TELL("", cuMemAddressFree(reserve_pair(2 * G, 2 * G), 4 * G));
}
FACT(M_free_mapped, "Freeing a reservation while something is mapped in it.")
{
    CUdeviceptr p = reserve(8 * G);
    map(p + 2 * G, 2 * G, create(2 * G));
    TELL("", cuMemAddressFree(p, 8 * G));
}
FACT(M_free_after_unmap, "Freeing a reservation that something was mapped in.")
{
    CUdeviceptr p = reserve(8 * G);
    map(p + 2 * G, 2 * G, create(2 * G));
    DO(cuMemUnmap(p, 8 * G));
    TELL("", cuMemAddressFree(GONE(p), 8 * G));
}
FACT(M_free_shared_mapping, "Freeing a reservation that the end of a mapping begun in the one before lies in.")
{
    CUdeviceptr p = reserve_pair(2 * G, 2 * G);
    map(p, 4 * G, create(4 * G));
    TELL("", cuMemAddressFree(p + 2 * G, 2 * G));
}

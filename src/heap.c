/* A pool's physical memory, in pieces, under its blocks.
 *
 * Address space is plenty and memory is not. So a request that finds no free block takes a window of the address space
 * whose free parts are there already and has the missing pieces put under the rest: first, if memory is to be saved,
 * pieces that lie wholly free elsewhere (stitching: unmapped there, mapped here), then new ones.
 *
 * A piece is one or more granules, made, mapped and moved as a whole. The driver's cost is by piece, and what a live block
 * holds of the pieces at its ends is lost for others; so pieces are larger the more the pool holds. Where all that is free
 * lies in larger pieces than what is missing, one is given back and smaller ones are made of it. */
#include <string.h>

#include "internal.h"

#define LARGE_STEP ((size_t)2 << 20)    /* what regions begin at multiples of; blocks.c has a table for each */
#define LEAST_SPACE ((uint64_t)1 << 30) /* bytes of address space, however little memory there may be */

/* A piece is at most one in so many bytes of all that the pool will hold, or of the request: the larger of the two. But where
 * there is next to nothing yet, it is a quarter of the request, and all of it up to a LARGE_PIECE: a pool's first memory
 * costs little more than the same bytes in one piece, and is broken up where it turns out to be too coarse. */
enum {
    SHARE_OF_POOL = 256,
    SHARE_OF_REQUEST = 32,
    FIRST_PIECES = 4,
    NEXT_TO_NOTHING = 8 /* one in so many bytes of the request */
};
#define LARGE_PIECE ((size_t)32 << 20)
#define LARGEST_PIECE ((size_t)128 << 20) /* of a pool's first memory */

typedef struct piece {
    mapping mapping;
    struct piece *next; /* of those made within one call */
} piece;

/* Part of the address space that a request fits in. */
typedef struct window {
    pool_block *first;
    uint64_t start; /* in `first` */
    size_t missing; /* bytes that are not mapped */
    size_t over;    /* bytes behind it that will be mapped and free */
} window;

static size_t granule(const heap *h) { return h->placement->granularity; }

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static uint64_t end_of(const pool_block *b) { return b->address + b->size; }

static piece **piece_at(const heap *h, uint64_t address) { return &h->pieces[(address - h->base) / granule(h)]; }

/* ---- which blocks a request may have ---- */

static bool is_ready_for(const heap *h, const pool_block *b, const arena *own)
{
    return b && b->kind == BLOCK_READY && (b->arena == &h->common || b->arena == own);
}

static bool is_usable(const heap *h, const pool_block *b, const arena *own)
{
    return is_ready_for(h, b, own) || (b && b->kind == BLOCK_HOLE);
}

/* Less to be mapped, then less left over, then the lower address. */
static void keep_better(window *best, const window *w)
{
    bool better = w->missing != best->missing ? w->missing < best->missing
                  : w->over != best->over     ? w->over < best->over
                                              : w->start < best->start;
    if (better) *best = *w;
}

/* Windows that begin with the block `first` and end in `last`, at whose end `covered` bytes lie behind the beginning, `missing`
 * of which are holes. It is the first block with which they are enough. */
static void try_begin(const heap *h, size_t size, pool_block *first, const pool_block *last, size_t covered,
                      size_t missing, window *best)
{
    size_t left_out = last->kind == BLOCK_HOLE ? (covered - size) / granule(h) * granule(h) : 0;
    window w = {first, first->address, missing - left_out, covered - left_out - size};
    keep_better(best, &w);
}

/* Windows that begin in the hole and end with the last block: `covered` bytes lie behind the hole, too few. */
static void try_end_of(const heap *h, size_t size, pool_block *hole, size_t covered, size_t missing, window *best)
{
    size_t needed = size - covered;
    gvmm__round_up(&needed, granule(h));
    window w = {hole, end_of(hole) - needed, missing + needed, covered + needed - size};
    keep_better(best, &w);
}

/* From the first block of a run of usable ones to its end, with a window that is moved along: from `first` to `last`, too small
 * but for a moment. */
static void try_run(const heap *h, const arena *own, size_t size, pool_block *start, window *best)
{
    pool_block *first = start;
    size_t covered = 0, missing = 0;
    for (pool_block *last = start; is_usable(h, last, own); last = last->right) {
        covered += last->size;
        if (last->kind == BLOCK_HOLE) missing += last->size;
        for (; covered >= size; first = first->right) {
            try_begin(h, size, first, last, covered, missing, best);
            covered -= first->size;
            if (first->kind == BLOCK_HOLE) missing -= first->size;
        }
        if (covered && first != start && first->left->kind == BLOCK_HOLE)
            try_end_of(h, size, first->left, covered, missing, best);
    }
}

/* In the run of usable blocks that `b`, a hole or of one's own arena, is the first of its kind in; else it has been looked at.
 * Before `b` in it there can only be one common block, as two are joined. */
static void try_around(const heap *h, const arena *own, size_t size, pool_block *b, window *best)
{
    pool_block *first = is_ready_for(h, b->left, NULL) ? b->left : b;
    if (!is_usable(h, first->left, own)) try_run(h, own, size, first, best);
}

/* The best of the arena's own, else of the common ones; NULL: none is ready. */
static pool_block *best_ready(const heap *h, unsigned region, size_t size, const arena *own, bool quick)
{
    pool_block *b = own ? gvmm__bins_best(&own->bins[region], size, quick) : NULL;
    return b ? b : gvmm__bins_best(&h->common.bins[region], size, quick);
}

/* The window that misses least. Only where a hole is, or where blocks of two kinds meet, can there be one that no bin
 * shows. */
static window find_window(const heap *h, unsigned region, size_t size, const arena *own)
{
    window best = {NULL, UINT64_MAX, SIZE_MAX, SIZE_MAX};
    pool_block *ready = best_ready(h, region, size, own, false);
    if (ready) return (window){ready, ready->address, 0, 0};
    for (pool_block *b = NULL; (b = gvmm__bins_next(&h->holes[region], b, 1));) try_around(h, own, size, b, &best);
    for (pool_block *b = NULL; own && (b = gvmm__bins_next(&own->bins[region], b, 1));)
        try_around(h, own, size, b, &best);
    return best;
}

/* ---- taking ---- */

/* The block, and those to its right as far as they are needed, all ready, become one of that size. */
static pool_block *take_from(heap *h, pool_block *b, size_t size)
{
    pool_block *last = b;
    gvmm__block_unlink(h, b);
    arena *of = b->arena;
    uint64_t number = b->number;
    while (b->size < size) {
        last = b->right;
        gvmm__block_unlink(h, last);
        of = last->arena;
        number = last->number;
        gvmm__block_absorb(h, b);
    }
    if (b->size > size) {
        b->kind = BLOCK_USED;
        pool_block *rest = gvmm__block_cut(h, b, size);
        gvmm__block_put(h, rest, BLOCK_READY, of, number);
    }
    b->kind = BLOCK_USED;
    h->used += size;
    return b;
}

/* Whole granules in [from, to). */
static uint64_t granules_in(const heap *h, uint64_t from, uint64_t to)
{
    uint64_t first = (from - h->base + granule(h) - 1) / granule(h), end = (to - h->base) / granule(h);
    return end > first ? end - first : 0;
}

/* Where in a larger block to take it: at the end if more whole granules are left before it than would be behind it. */
static uint64_t place_in(const heap *h, const pool_block *b, size_t size)
{
    uint64_t at_end = end_of(b) - size;
    if (b->size <= size) return b->address;
    return granules_in(h, b->address, at_end) > granules_in(h, b->address + size, end_of(b)) ? at_end : b->address;
}

/* Hands it out, known by its address. */
static gvmm_result hand_out(pool_block **out, heap *h, pool_block *b, size_t size)
{
    uint64_t at = place_in(h, b, size);
    gvmm_result r = gvmm__blocks_room(h, b->region, at);
    if (r) return r;
    if (at == b->address) b = take_from(h, b, size);
    else {
        b = gvmm__block_carve(h, b, at, at + size);
        b->kind = BLOCK_USED;
        h->used += size;
    }
    gvmm__block_enter(h, b);
    *out = b;
    return GVMM_OK;
}

gvmm_result gvmm__heap_take(pool_block **out, heap *h, unsigned region, size_t size, arena *own)
{
    gvmm_result r = gvmm__blocks_spare(h, 1);
    if (r) return r;
    pool_block *b = best_ready(h, region, size, own, true);
    *out = NULL;
    return b ? hand_out(out, h, b, size) : GVMM_OK;
}

void gvmm__heap_put(heap *h, pool_block *b, arena *of, uint64_t number)
{
    h->used -= b->size;
    gvmm__block_put(h, b, BLOCK_READY, of, number);
}

void gvmm__heap_done(heap *h, arena *of, uint64_t number)
{
    for (unsigned region = 0; region < REGIONS; region++)
        for (pool_block *next, *b = gvmm__bins_next(&of->bins[region], NULL, 1); b; b = next) {
            next = gvmm__bins_next(&of->bins[region], b, 1);
            if (b->number > number) continue;
            gvmm__block_unlink(h, b);
            gvmm__block_put(h, b, BLOCK_READY, &h->common, 0);
        }
}

/* ---- pieces ---- */

static void enter_piece(heap *h, piece *p, piece *as)
{
    for (size_t at = 0; at < p->mapping.memory->size; at += granule(h)) *piece_at(h, p->mapping.address + at) = as;
}

/* Maps the memory at `at`, in a hole, of which so much becomes free and ready. Takes over the piece and the caller's reference to
 * the memory, also on failure. */
static gvmm_result lay(heap *h, piece *p, memory *m, pool_block *hole, uint64_t at)
{
    gvmm_result r = gvmm__mapping_open(&p->mapping, h->where, at, m);
    if (r) gvmm__free(p);
    else {
        h->physical += m->size;
        if (h->physical > h->physical_peak) h->physical_peak = h->physical;
        enter_piece(h, p, p);
        gvmm__block_put(h, gvmm__block_carve(h, hole, at, at + m->size), BLOCK_READY, &h->common, 0);
    }
    gvmm__memory_release(m);
    return r;
}

/* Takes a piece away from under a free block, which gets a hole: *b, which holes beside it are part of then. Gives its
 * memory, still held. */
static memory *lift(heap *h, piece *p, pool_block **b)
{
    memory *m = gvmm__memory_retain(p->mapping.memory);
    uint64_t at = p->mapping.address;
    enter_piece(h, p, NULL);
    gvmm__mapping_close(&p->mapping);
    h->physical -= m->size;
    *b = gvmm__block_put(h, gvmm__block_carve(h, *b, at, at + m->size), BLOCK_HOLE, NULL, 0);
    return m;
}

static void drop(heap *h, piece *p, pool_block *b)
{
    gvmm__memory_release(lift(h, p, &b));
    gvmm__free(p);
}

/* Of the window that a request of that size is to have; NULL: of none. */
static bool is_apart(uint64_t start, uint64_t end, const window *w, size_t size)
{
    return !w || end <= w->start || w->start + size <= start;
}

/* A piece that lies wholly in the free block, outside of the window, and has at most `most` bytes; NULL: none. */
static piece *piece_in(const heap *h, const pool_block *b, const window *w, size_t size, size_t most)
{
    uint64_t at = (b->address - h->base + granule(h) - 1) / granule(h) * granule(h) + h->base;
    while (at + granule(h) <= end_of(b)) {
        piece *p = *piece_at(h, at);
        uint64_t start = p->mapping.address, end = start + p->mapping.memory->size;
        bool whole = start >= b->address && end <= end_of(b);
        if (whole && end - start <= most && is_apart(start, end, w, size)) return p;
        at = end;
    }
    return NULL;
}

/* A free piece outside of the window, whose work is done, in the smallest block that has one. */
static piece *find_piece(const heap *h, const window *w, size_t size, size_t most, pool_block **in)
{
    for (unsigned region = 0; region < REGIONS; region++)
        for (pool_block *b = NULL; (b = gvmm__bins_next(&h->common.bins[region], b, granule(h)));) {
            piece *p = piece_in(h, b, w, size, most);
            if (!p) continue;
            *in = b;
            return p;
        }
    return NULL;
}

/* ---- filling ---- */

typedef struct filling {
    heap *heap;
    size_t size;  /* of the request */
    bool stitch;  /* before making new memory */
    size_t held;  /* physical memory before the call, bytes */
    size_t freed; /* of a piece that was broken up: bytes that have not been made anew yet */
    piece *made;  /* within this call: undone if it fails */
} filling;

static size_t piece_size(const filling *f)
{
    size_t most = larger((f->held + f->size) / SHARE_OF_POOL, f->size / SHARE_OF_REQUEST);
    most = smaller(most, LARGE_PIECE);
    if (f->held <= f->size / NEXT_TO_NOTHING)
        most = smaller(larger(f->size / FIRST_PIECES, LARGE_PIECE), LARGEST_PIECE);
    size_t granules = most / granule(f->heap);
    return (granules < 2 ? 1 : (size_t)1 << (63 - __builtin_clzll(granules))) * granule(f->heap);
}

/* Of a stripe a chunk lies on one device: which one the address tells. */
static gvmm_result make(filling *f, pool_block *hole, uint64_t at, size_t room)
{
    heap *h = f->heap;
    uint64_t offset = at - h->base, chunk = h->placement->stripe_count ? h->placement->chunk_size : SIZE_MAX;
    size_t size = smaller(smaller(piece_size(f), room), (size_t)(chunk - offset % chunk));
    if (size > h->limit || h->physical > h->limit - size)
        return gvmm__fail(GVMM_E_NO_DEVICE_MEMORY, "pool: %zu bytes more would exceed its limit of %zu; it has %zu",
                          size, h->limit, h->physical);
    piece *p = gvmm__alloc(sizeof *p);
    if (!p) return GVMM_E_NO_HOST_MEMORY;
    memory *m;
    gvmm_result r = gvmm__memory_create(&m, h->placement, size, (size_t)(offset / chunk), h->account);
    if (r) {
        gvmm__free(p);
        return r;
    }
    r = lay(h, p, m, hole, at);
    if (r) return r;
    f->freed -= smaller(f->freed, size);
    p->next = f->made;
    f->made = p;
    return GVMM_OK;
}

/* Puts one piece under what the window misses first. */
static gvmm_result fill_one(filling *f, const window *w)
{
    heap *h = f->heap;
    pool_block *hole = w->first, *in;
    while (hole->kind != BLOCK_HOLE) hole = hole->right;
    uint64_t at = hole->address < w->start ? w->start : hole->address;
    size_t needed = smaller((size_t)(end_of(hole) - at), w->missing);
    gvmm_result r = gvmm__blocks_spare(h, 4);
    if (r) return r;
    piece *p = f->stitch ? find_piece(h, w, f->size, needed, &in) : NULL;
    bool fits = p != NULL;
    if (!p && f->stitch && !f->freed) p = find_piece(h, w, f->size, SIZE_MAX, &in);
    if (!p) return make(f, hole, at, needed);
    h->stitches++;
    memory *m = lift(h, p, &in);
    h->moved += m->size;
    if (in->address <= at && at < end_of(in)) hole = in; /* they have been joined */
    if (fits) return lay(h, p, m, hole, at);
    f->freed = m->size;
    gvmm__memory_release(m);
    gvmm__free(p);
    return make(f, hole, at, needed);
}

/* Finds the free block that has the address. */
static pool_block *free_block_at(heap *h, uint64_t address)
{
    for (unsigned region = 0; region < REGIONS; region++)
        for (pool_block *b = NULL; (b = gvmm__bins_next(&h->common.bins[region], b, 1));)
            if (b->address <= address && address < end_of(b)) return b;
    return NULL;
}

static void undo(filling *f)
{
    while (f->made) {
        piece *p = f->made;
        f->made = p->next;
        if (gvmm__blocks_spare(f->heap, 3)) return; /* it stays, free */
        drop(f->heap, p, free_block_at(f->heap, p->mapping.address));
    }
}

static gvmm_result look(window *out, const heap *h, unsigned region, size_t size, const arena *own)
{
    *out = find_window(h, region, size, own);
    if (out->first) return GVMM_OK;
    return gvmm__fail(GVMM_E_NO_ADDRESS_SPACE, "pool: no address space is left for a block of %zu bytes", size);
}

gvmm_result gvmm__heap_missing(size_t *out, const heap *h, unsigned region, size_t size, const arena *own)
{
    window w;
    gvmm_result r = look(&w, h, region, size, own);
    if (!r) *out = w.missing;
    return r;
}

/* Each round leaves the heap whole, and the window that misses least missing less. */
gvmm_result gvmm__heap_fill(pool_block **out, heap *h, unsigned region, size_t size, const arena *own, bool stitch)
{
    filling f = {.heap = h, .size = size, .stitch = stitch, .held = h->physical};
    window w;
    gvmm_result r = look(&w, h, region, size, own);
    while (!r && w.missing) {
        r = fill_one(&f, &w);
        if (!r) r = look(&w, h, region, size, own);
    }
    if (!r) r = gvmm__blocks_spare(h, 1);
    if (!r) r = hand_out(out, h, w.first, size);
    if (!r) return GVMM_OK;
    saved_error first;
    gvmm__error_save(&first);
    undo(&f);
    return gvmm__error_restore(&first);
}

size_t gvmm__heap_trim(heap *h, size_t keep)
{
    size_t before = h->physical;
    pool_block *in;
    while (h->physical > keep && !gvmm__blocks_spare(h, 3)) {
        piece *p = find_piece(h, NULL, 0, SIZE_MAX, &in);
        if (!p) break;
        drop(h, p, in);
    }
    return before - h->physical;
}

/* ---- start and end ---- */

static size_t up(size_t size, size_t to) { return (size + to - 1) / to * to; }

/* A fifth for small blocks. They could fill the device too: address space is not what a pool runs out of. In little of it
 * they could: each that is left holds a granule's addresses. */
static gvmm_result reserve(heap *h, uint64_t space)
{
    if (space < LEAST_SPACE) space = LEAST_SPACE;
    size_t step = granule(h) > LARGE_STEP ? granule(h) : LARGE_STEP;
    gvmm_result r = gvmm__reservation_ahead(&h->where, REGIONS * step, space, 0, 0, step, h->account);
    if (r) return r;
    h->base = h->where->base;
    h->large = h->base + up(h->where->size / 5, step);
    h->end = h->base + h->where->size / step * step;
    return GVMM_OK;
}

gvmm_result gvmm__heap_start(heap *h, placement *p, account *a, uint64_t space, size_t limit)
{
    memset(h, 0, sizeof *h);
    h->placement = p;
    h->account = a;
    h->limit = limit;
    gvmm_result r = reserve(h, space);
    if (r) return r;
    size_t count = (size_t)((h->end - h->base) / granule(h));
    h->pieces = gvmm__alloc(count * sizeof h->pieces[0]);
    r = h->pieces ? gvmm__blocks_start(h) : GVMM_E_NO_HOST_MEMORY;
    if (r) {
        gvmm__blocks_end(h);
        gvmm__free(h->pieces);
        gvmm__reservation_release(h->where);
        return r;
    }
    memset(h->pieces, 0, count * sizeof h->pieces[0]);
    return GVMM_OK;
}

void gvmm__heap_end(heap *h)
{
    for (uint64_t at = h->base; at < h->end; at += granule(h)) {
        piece *p = *piece_at(h, at);
        if (!p) continue;
        enter_piece(h, p, NULL);
        gvmm__mapping_close(&p->mapping); /* and with it the memory's last reference */
        gvmm__free(p);
    }
    gvmm__blocks_end(h);
    gvmm__free(h->pieces);
    gvmm__reservation_release(h->where);
}

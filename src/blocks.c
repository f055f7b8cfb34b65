/* A pool's address space as blocks side by side: free ones by size, used ones by address.
 *
 * Free blocks lie in bins: sixteen classes for each power of two, a bit for each class that has any (two-level
 * segregated fit), so that finding one costs the same however many there are. Within a class the best fit is taken, of
 * those alike the one at the lowest address: what is freed last then tends to be at the end, and whole.
 *
 * A block that was handed out is found by its address without a lock: a table has a leaf for each 2 MiB, with an entry
 * for each place where a block may begin. Entries and blocks are never given back to the host while the pool lives, so
 * that a wrong address meets at worst a block whose tag does not fit. */
#include <string.h>

#include "internal.h"

enum {
    SCAN = 64, /* blocks of a class that a quick look takes in */
    SLAB = 64  /* blocks that are allocated at a time */
};

struct slab {
    struct slab *next;
    pool_block blocks[SLAB];
};

/* ---- bins ---- */

static void class_of(size_t size, unsigned *level, unsigned *slot)
{
    uint64_t units = size >> UNIT_SHIFT;
    unsigned log = units < BIN_SLOTS ? 0 : 63 - (unsigned)__builtin_clzll(units);
    *level = units < BIN_SLOTS ? 0 : log - 3;
    *slot = units < BIN_SLOTS ? (unsigned)units : (unsigned)(units >> (log - 4)) & (BIN_SLOTS - 1);
}

static bins *bins_of(heap *h, pool_block *b)
{
    return b->kind == BLOCK_HOLE ? &h->holes[b->region] : &b->arena->bins[b->region];
}

static void link_in(heap *h, pool_block *b)
{
    bins *in = bins_of(h, b);
    unsigned level, slot;
    class_of(b->size, &level, &slot);
    b->list.before = NULL;
    b->list.next = in->first[level][slot];
    if (b->list.next) b->list.next->list.before = b;
    in->first[level][slot] = b;
    in->slots[level] |= (uint16_t)(1u << slot);
    in->levels |= (uint64_t)1 << level;
    in->bytes += b->size;
}

void gvmm__block_unlink(heap *h, pool_block *b)
{
    bins *in = bins_of(h, b);
    unsigned level, slot;
    class_of(b->size, &level, &slot);
    if (b->list.next) b->list.next->list.before = b->list.before;
    if (b->list.before) b->list.before->list.next = b->list.next;
    else in->first[level][slot] = b->list.next;
    in->bytes -= b->size;
    if (in->first[level][slot]) return;
    in->slots[level] &= (uint16_t) ~(1u << slot);
    if (!in->slots[level]) in->levels &= ~((uint64_t)1 << level);
}

/* The first class from this one on that has any; NULL: none. */
static pool_block *first_from(const bins *in, unsigned level, unsigned slot)
{
    unsigned slots = level < BIN_LEVELS && slot < BIN_SLOTS ? in->slots[level] & ~0u << slot : 0;
    if (!slots) {
        uint64_t levels = level + 1 < BIN_LEVELS ? in->levels & ~(uint64_t)0 << (level + 1) : 0;
        if (!levels) return NULL;
        level = (unsigned)__builtin_ctzll(levels);
        slots = in->slots[level];
    }
    return in->first[level][__builtin_ctz(slots)];
}

static pool_block *best_of(pool_block *list, size_t size, size_t scan)
{
    pool_block *best = NULL;
    for (pool_block *b = list; b && scan--; b = b->list.next) {
        if (b->size < size) continue;
        if (!best || b->size < best->size || (b->size == best->size && b->address < best->address)) best = b;
    }
    return best;
}

pool_block *gvmm__bins_best(const bins *in, size_t size, bool quick)
{
    unsigned level, slot;
    /* In the size's own class what fits may be behind any number that does not. */
    size_t scan = quick ? SCAN : SIZE_MAX;
    class_of(size, &level, &slot);
    pool_block *best = in->slots[level] & 1u << slot ? best_of(in->first[level][slot], size, scan) : NULL;
    return best ? best : best_of(first_from(in, level, slot + 1), size, SCAN);
}

pool_block *gvmm__bins_next(const bins *in, const pool_block *after, size_t least)
{
    unsigned level, slot;
    if (after && after->list.next) return after->list.next;
    class_of(after ? after->size : least, &level, &slot);
    return first_from(in, level, after ? slot + 1 : slot);
}

/* ---- cutting and joining ---- */

gvmm_result gvmm__blocks_spare(heap *h, size_t count)
{
    while (h->spare_count < count) {
        struct slab *s = gvmm__alloc(sizeof *s);
        if (!s) return GVMM_E_NO_HOST_MEMORY;
        s->next = h->slabs;
        h->slabs = s;
        for (size_t i = 0; i < SLAB; i++) {
            atomic_init(&s->blocks[i].tag, 0);
            s->blocks[i].heap = h;
            s->blocks[i].list.next = h->spare;
            h->spare = &s->blocks[i];
        }
        h->spare_count += SLAB;
    }
    return GVMM_OK;
}

static pool_block *take_spare(heap *h)
{
    pool_block *b = h->spare;
    h->spare = b->list.next;
    h->spare_count--;
    return b;
}

static void put_spare(heap *h, pool_block *b)
{
    atomic_store_explicit(&b->tag, 0, memory_order_relaxed);
    b->list.next = h->spare;
    h->spare = b;
    h->spare_count++;
}

/* The part from `size` on becomes a block of its own, of the same kind; neither is in a bin. */
pool_block *gvmm__block_cut(heap *h, pool_block *b, size_t size)
{
    pool_block *rest = take_spare(h);
    rest->kind = b->kind;
    rest->region = b->region;
    rest->arena = b->arena;
    rest->number = b->number;
    rest->address = b->address + size;
    rest->size = b->size - size;
    rest->left = b;
    rest->right = b->right;
    if (rest->right) rest->right->left = rest;
    b->right = rest;
    b->size = size;
    return rest;
}

void gvmm__block_absorb(heap *h, pool_block *b)
{
    pool_block *next = b->right;
    b->size += next->size;
    b->right = next->right;
    if (b->right) b->right->left = b;
    if (next->number > b->number) b->number = next->number;
    put_spare(h, next);
}

pool_block *gvmm__block_carve(heap *h, pool_block *b, uint64_t from, uint64_t to)
{
    gvmm__block_unlink(h, b);
    if (from > b->address) {
        pool_block *left = b;
        b = gvmm__block_cut(h, left, (size_t)(from - left->address));
        link_in(h, left);
    }
    if (to < b->address + b->size) link_in(h, gvmm__block_cut(h, b, (size_t)(to - b->address)));
    return b;
}

static bool are_alike(const pool_block *a, const pool_block *b)
{
    return a->kind == b->kind && (a->kind == BLOCK_HOLE || a->arena == b->arena);
}

pool_block *gvmm__block_put(heap *h, pool_block *b, block_kind kind, arena *of, uint64_t number)
{
    b->kind = kind;
    b->arena = of;
    b->number = number;
    if (b->right && are_alike(b, b->right)) {
        gvmm__block_unlink(h, b->right);
        gvmm__block_absorb(h, b);
    }
    if (b->left && are_alike(b, b->left)) {
        b = b->left;
        gvmm__block_unlink(h, b);
        gvmm__block_absorb(h, b);
    }
    link_in(h, b);
    return b;
}

/* ---- by address ---- */

static size_t entries_of(unsigned region) { return (size_t)1 << (LEAF_SHIFT - gvmm__block_shift(region)); }

gvmm_result gvmm__blocks_room(heap *h, unsigned region, uint64_t address)
{
    _Atomic(leaf *) *slot = &h->index[(address - h->base) >> LEAF_SHIFT];
    size_t entries = entries_of(region);
    if (atomic_load_explicit(slot, memory_order_relaxed)) return GVMM_OK;
    leaf *l = gvmm__alloc(entries * sizeof l->at[0]);
    if (!l) return GVMM_E_NO_HOST_MEMORY;
    for (size_t i = 0; i < entries; i++) atomic_init(&l->at[i], NULL);
    atomic_store_explicit(slot, l, memory_order_release);
    return GVMM_OK;
}

void gvmm__block_enter(heap *h, pool_block *b)
{
    uint64_t offset = b->address - h->base;
    leaf *l = atomic_load_explicit(&h->index[offset >> LEAF_SHIFT], memory_order_relaxed);
    size_t entry = (offset >> gvmm__block_shift(b->region)) & (entries_of(b->region) - 1);
    atomic_store_explicit(&b->tag, gvmm__block_tag(b->address, false), memory_order_relaxed);
    atomic_store_explicit(&l->at[entry], b, memory_order_release);
}

/* ---- the whole ---- */

static void first_hole(heap *h, unsigned region, uint64_t from, uint64_t to)
{
    pool_block *b = take_spare(h);
    *b = (pool_block){.heap = h, .address = from, .size = (size_t)(to - from), .region = region};
    gvmm__block_put(h, b, BLOCK_HOLE, NULL, 0);
}

gvmm_result gvmm__blocks_start(heap *h)
{
    size_t leaves = (size_t)((h->end - h->base) >> LEAF_SHIFT) + 1;
    gvmm_result r = gvmm__blocks_spare(h, REGIONS);
    if (r) return r;
    h->index = gvmm__alloc(leaves * sizeof h->index[0]);
    if (!h->index) return GVMM_E_NO_HOST_MEMORY;
    h->leaves = leaves;
    for (size_t i = 0; i < leaves; i++) atomic_init(&h->index[i], NULL);
    first_hole(h, REGION_SMALL, h->base, h->large);
    first_hole(h, REGION_LARGE, h->large, h->end);
    return GVMM_OK;
}

/* Also of what was only half started. */
void gvmm__blocks_end(heap *h)
{
    for (size_t i = 0; i < h->leaves; i++) {
        leaf *l = atomic_load_explicit(&h->index[i], memory_order_relaxed);
        if (l) gvmm__free(l);
    }
    gvmm__free(h->index);
    for (struct slab *s = h->slabs; s;) {
        struct slab *next = s->next;
        gvmm__free(s);
        s = next;
    }
}

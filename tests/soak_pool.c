/* Blocks of two pools: one that is told of every stream's end by events, one whose streams outlive it. */
#include "soak.h"

static CUstream stream_for(member *m, unsigned pool)
{
    static const kind any = {.outlive = false}, lasting = {.outlive = true};
    return any_stream(m, pool ? &lasting : &any);
}

static size_t some_words(member *m)
{
    size_t bytes = (size_t)512 << below(m, below(m, 4) ? 12 : 16);
    size_t most = 4 * G < (size_t)2 << 20 ? (size_t)2 << 20 : 4 * G; /* large blocks too */
    while (bytes > most) bytes /= 2;
    return (bytes - below(m, (unsigned)bytes / 2)) / 4;
}

/* All of its bytes are written at once: who had it before is done with it. */
static void do_malloc(member *m, pool_block *b)
{
    uint64_t address = 0;
    unsigned pool = below(m, POOLS);
    size_t words = some_words(m);
    CUstream s = stream_for(m, pool);
    if (!tried(m, gvmm_pool_malloc(&address, pools[pool], words * 4, s))) return;
    must(address && address % 512 == 0);
    *b = (pool_block){address, words, s, below(m, 1u << 30), pool};
    must_cu(cu->cuMemsetD32Async(address, b->word, words, s));
    counted(FIGURE_mallocs);
}

static void check_block(member *m, const pool_block *b)
{
    enum { WORDS = 64 };
    uint32_t words[WORDS];
    size_t count = b->words < WORDS ? b->words : WORDS, at = below(m, (unsigned)(b->words - count + 1));
    must_cu(cu->cuMemcpyDtoHAsync(words, b->address + at * 4, count * 4, b->on));
    settle(b->on);
    for (size_t i = 0; i < count; i++) {
        if (words[i] == b->word) continue;
        wrong("pool %u: word %zu of %zu at 0x%llx is 0x%x, not 0x%x", b->pool, at + i, b->words,
              (unsigned long long)b->address, words[i], b->word);
        return;
    }
    counted(FIGURE_checks);
}

static void free_block(member *m, pool_block *b)
{
    CUstream s = below(m, 4) ? b->on : stream_for(m, b->pool);
    if (below(m, 4) == 0) { /* with work under way */
        linger(b->on);
        must_cu(cu->cuMemsetD32Async(b->address, 1, b->words, b->on));
    }
    if (s != b->on) follow(s, b->on);
    if (tried(m, gvmm_pool_free(pools[b->pool], b->address, s))) counted(FIGURE_frees);
    b->address = 0;
}

void do_pool(member *m)
{
    pool_block *b = &m->blocks[below(m, BLOCKS)];
    if (!b->address) {
        do_malloc(m, b);
        return;
    }
    if (b->on == m->capturing) return;
    if (below(m, 2)) check_block(m, b);
    else free_block(m, b);
}

uint64_t captured_malloc(member *m, CUstream s, size_t *words, unsigned *pool)
{
    uint64_t address = 0;
    *words = some_words(m);
    *pool = below(m, POOLS);
    return tried(m, gvmm_pool_malloc(&address, pools[*pool], *words * 4, s)) ? address : 0;
}

void free_blocks_on(member *m, CUstream s)
{
    for (size_t i = 0; i < BLOCKS; i++) {
        pool_block *b = &m->blocks[i];
        if (!b->address || b->on != s) continue;
        must(gvmm_pool_free(pools[b->pool], b->address, s) == GVMM_OK);
        b->address = 0;
        counted(FIGURE_frees);
    }
}

void free_all_blocks(member *m)
{
    for (size_t i = 0; i < BLOCKS; i++)
        if (m->blocks[i].address) free_block(m, &m->blocks[i]);
}

/* A KV cache in which every sequence is one contiguous array that grows with its tokens and shrinks when some are
 * dropped. Kernels see plain pointers that never change; memory is taken for the tokens there are, not for the longest
 * there might be. */
#include "common.h"

enum { SEQUENCES = 6, ROUNDS = 40, MOST_TOKENS = 4096 };
#define TOKEN_BYTES ((size_t)16 << 10) /* keys and values of one token, all layers */

typedef struct sequence {
    gvmm_buffer *cache;
    size_t tokens;
} sequence;

static gvmm_resource *resource;

/* The cache is replaced by a longer or shorter view of itself: no byte is copied, and what is not shown any more goes
 * back. It is closed, which waits, and not only released: the addresses behind are then free for the next grow. */
static void resize(sequence *s, size_t tokens)
{
    gvmm_buffer *other;
    size_t bytes = tokens * TOKEN_BYTES;
    if (bytes > gvmm_buffer_size(s->cache)) must(gvmm_buffer_grow(&other, s->cache, bytes, NULL), "grow");
    else must(gvmm_buffer_shrink(&other, s->cache, bytes), "shrink");
    expect(gvmm_buffer_address(other) == gvmm_buffer_address(s->cache), "the cache stays where it is");
    must(gvmm_buffer_close(s->cache, NULL), "close");
    gvmm_buffer_release(s->cache);
    s->cache = other;
}

static uint64_t token_at(const sequence *s, size_t token)
{
    return gvmm_buffer_address(s->cache) + token * TOKEN_BYTES;
}

static void append(sequence *s, size_t count, unsigned seed)
{
    resize(s, s->tokens + count);
    for (size_t i = 0; i < count; i++, s->tokens++)
        write_words(token_at(s, s->tokens), TOKEN_BYTES, seed + (unsigned)s->tokens);
}

/* The newest tokens go: a rejected draft, or a turn that is taken back. */
static void drop(sequence *s, size_t count)
{
    s->tokens -= count;
    resize(s, s->tokens);
}

int main(void)
{
    open_device();
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.capacity = MOST_TOKENS * TOKEN_BYTES; /* addresses only */
    options.chunk_size = 2 * MiB;                 /* what is given back when a sequence shrinks */
    must(gvmm_resource_create(&resource, 0, &options), "resource");

    sequence sequences[SEQUENCES];
    for (unsigned i = 0; i < SEQUENCES; i++) {
        sequences[i].tokens = 0;
        must(gvmm_buffer_create(&sequences[i].cache, resource, TOKEN_BYTES, NULL), "cache");
    }
    uint64_t most = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        sequence *s = &sequences[round * 5 % SEQUENCES];
        append(s, 1 + round * 37 % 160, round * 5 % SEQUENCES << 16);
        if (round % 3 == 2) drop(s, s->tokens / 2);
        gvmm_stats stats;
        gvmm_get_stats(resource, &stats);
        if (stats.physical_bytes > most) most = stats.physical_bytes;
    }
    for (unsigned i = 0; i < SEQUENCES; i++) {
        for (size_t t = 0; t < sequences[i].tokens; t++)
            expect(has_words(token_at(&sequences[i], t), TOKEN_BYTES, (i << 16) + (unsigned)t),
                   "every token is what was written");
        gvmm_buffer_release(sequences[i].cache);
    }
    printf("memory at most          %zu MiB\n", (size_t)(most / MiB));
    printf("for the longest         %zu MiB\n", SEQUENCES * MOST_TOKENS * TOKEN_BYTES / MiB);
    gvmm_resource_release(resource);
    expect_nothing_left();
    return 0;
}

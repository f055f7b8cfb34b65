/* Memory made ahead of need: chunks of one size, filled up by the worker whenever one is taken. */
#include "internal.h"

struct stock {
    ref refs;
    stock *next; /* in `all`, guarded by its lock */
    job refill;
    placement *made_as;
    account *account;
    size_t wanted;
    pthread_mutex_t lock; /* guards what follows */
    size_t count;
    bool refilling, ended, paused; /* paused: the memory is needed elsewhere, until a chunk is asked for again */
    memory *chunks[];              /* room for `wanted` */
};

/* Those of every resource: what one finds missing another may have ahead. In the list until the last reference is
 * gone. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static stock *all;

static void give_back(memory **chunks, size_t count)
{
    while (count) gvmm__memory_release(chunks[--count]);
}

/* The owner's release ends the stock at once; the worker's, whenever it notices. */
static void delete_stock(stock *s)
{
    pthread_mutex_lock(&all_lock);
    stock **at = &all;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&all_lock);
    give_back(s->chunks, s->count);
    gvmm__placement_release(s->made_as);
    account *a = s->account;
    pthread_mutex_destroy(&s->lock);
    gvmm__free(s);
    gvmm__account_release(a);
}

static void release(stock *s)
{
    if (ref_release(&s->refs)) delete_stock(s);
}

/* Makes chunks until there are enough, none can be had, or nobody wants them. Holds a reference of its own to the
 * stock. */
static void refill(job *self)
{
    stock *s = (stock *)((char *)self - offsetof(stock, refill));
    for (;;) {
        memory *m = NULL;
        bool made = gvmm__memory_create(&m, s->made_as, s->made_as->chunk_size, 0, s->account) == GVMM_OK;
        pthread_mutex_lock(&s->lock);
        bool room = made && !s->ended && !s->paused && s->count < s->wanted;
        if (room) s->chunks[s->count++] = m;
        bool more = room && s->count < s->wanted;
        if (!more) s->refilling = false;
        pthread_mutex_unlock(&s->lock);
        if (!room) gvmm__memory_release(m);
        if (!more) break;
    }
    release(s);
}

/* With the lock held. */
static void ask_for_more(stock *s)
{
    if (s->refilling || s->ended || s->count >= s->wanted) return;
    s->refilling = true;
    ref_retain(&s->refs);
    gvmm__work(&s->refill);
}

gvmm_result gvmm__stock_create(stock **out, placement *p, size_t count, account *a)
{
    gvmm_result r = gvmm__worker_start();
    if (r) return r;
    stock *s = gvmm__alloc(sizeof *s + count * sizeof s->chunks[0]);
    if (!s) return GVMM_E_NO_HOST_MEMORY;
    ref_init(&s->refs);
    s->refill = (job){.run = refill};
    s->made_as = gvmm__placement_retain(p);
    s->account = gvmm__account_retain(a);
    s->wanted = count;
    pthread_mutex_init(&s->lock, NULL);
    s->count = 0;
    s->refilling = s->ended = s->paused = false;
    pthread_mutex_lock(&all_lock);
    s->next = all;
    all = s;
    pthread_mutex_unlock(&all_lock);
    pthread_mutex_lock(&s->lock);
    ask_for_more(s);
    pthread_mutex_unlock(&s->lock);
    *out = s;
    return GVMM_OK;
}

memory *gvmm__stock_take(stock *s)
{
    if (!s) return NULL;
    pthread_mutex_lock(&s->lock);
    memory *m = s->count ? s->chunks[--s->count] : NULL;
    s->paused = false;
    ask_for_more(s);
    pthread_mutex_unlock(&s->lock);
    return m;
}

/* True if there was something, or may be on its way back. */
static bool flush(stock *s)
{
    pthread_mutex_lock(&s->lock);
    s->paused = true;
    bool any = s->count || s->refilling;
    while (s->count) {
        memory *one = s->chunks[--s->count];
        pthread_mutex_unlock(&s->lock);
        gvmm__memory_release(one);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return any;
}

/* The next in the list, held; NULL: the first. `s` stays where it is as long as it is held. */
static stock *next_of(const stock *s)
{
    pthread_mutex_lock(&all_lock);
    stock *next = s ? s->next : all;
    while (next && !ref_try_retain(&next->refs)) next = next->next;
    pthread_mutex_unlock(&all_lock);
    return next;
}

bool gvmm__stocks_flush(int device)
{
    bool any = false;
    for (stock *s = next_of(NULL), *next; s; s = next) {
        if (gvmm__placement_device(s->made_as, 0) == device) any |= flush(s);
        next = next_of(s);
        release(s);
    }
    return any;
}

void gvmm__stock_end(stock *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_mutex_unlock(&s->lock);
    flush(s);
    release(s);
}

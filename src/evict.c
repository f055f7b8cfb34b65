/* Evict and restore: physical memory given back, addresses kept. Every view of the memory, every graph that holds it,
 * keeps its place and finds the bytes there again after the restore. */
#include <stdlib.h>

#include "internal.h"

/* Evicting and restoring take turns in the process; nothing else waits for them. */
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_over = PTHREAD_COND_INITIALIZER;
static bool turn_taken;
static _Thread_local bool turn_is_here;

/* A handler could wait for its own thread's, or on the worker for one who waits for that. */
static gvmm_result take_turn(void)
{
    pthread_mutex_lock(&turn_lock);
    while (turn_taken && !turn_is_here && !gvmm__on_worker()) pthread_cond_wait(&turn_over, &turn_lock);
    bool is_ours = !turn_taken;
    turn_taken = true;
    pthread_mutex_unlock(&turn_lock);
    if (!is_ours) return gvmm__fail(GVMM_E_INVALID, "a handler must not evict or restore while that is under way");
    turn_is_here = true;
    return GVMM_OK;
}

static void end_turn(void)
{
    turn_is_here = false;
    pthread_mutex_lock(&turn_lock);
    turn_taken = false;
    pthread_cond_signal(&turn_over);
    pthread_mutex_unlock(&turn_lock);
}

/* ---- which memory ---- */

/* Originals, each once, retained. */
typedef struct set {
    member *list;
    size_t count;
} set;

static int by_identity(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const member *)a)->memory, y = (uintptr_t)((const member *)b)->memory;
    return x < y ? -1 : x > y;
}

/* What lies together comes together: the driver is then called for many at a time. The host comes first. */
static int by_place(const void *a, const void *b)
{
    const member *x = a, *y = b;
    if (x->memory->device != y->memory->device) return x->memory->device < y->memory->device ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static void set_release(set *s)
{
    while (s->count) gvmm__memory_release(s->list[--s->count].memory);
    gvmm__free(s->list);
    s->list = NULL;
}

static gvmm_result set_of_buffer(set *out, const gvmm_buffer *buffer)
{
    range *links = NULL;
    gvmm_result r = gvmm__buffer_borrow(&links, buffer);
    if (r) return r;
    size_t count = gvmm__range_count(links), kept = 0;
    member *list = gvmm__alloc((count + 1) * sizeof *list);
    if (!list) {
        gvmm__range_release(links);
        return GVMM_E_NO_HOST_MEMORY;
    }
    count = 0;
    for (const range *link = links; link; link = link->before)
        list[count++].memory = gvmm__memory_original(link->mapping.memory);
    qsort(list, count, sizeof *list, by_identity);
    for (size_t i = 0; i < count; i++) /* the same memory may be there more than once */
        if (i == 0 || list[i].memory != list[i - 1].memory) list[kept++].memory = gvmm__memory_retain(list[i].memory);
    gvmm__range_release(links);
    *out = (set){list, kept};
    return GVMM_OK;
}

/* Imported memory is another's to evict. Lets go of the set where it has some. */
static gvmm_result check_own(set *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].memory->imported) {
            set_release(s);
            return gvmm__fail(GVMM_E_UNSUPPORTED,
                              "buffer has imported memory, which only the process that made it can evict");
        }
    return GVMM_OK;
}

static bool has_tag(const memory *m, int tag)
{
    return !m->imported && (tag == GVMM_TAG_ANY || m->made_as->tag == tag);
}

/* The account's memory of a tag. */
static gvmm_result set_of_account(set *out, account *a, int tag)
{
    if (gvmm__in_child()) return gvmm__fail_in_child();
    for (size_t room = 64;; room *= 2) {
        member *list = gvmm__alloc(room * sizeof *list);
        if (!list) return GVMM_E_NO_HOST_MEMORY;
        size_t count = 0;
        bool all = true;
        pthread_mutex_lock(&a->lock);
        for (memory *m = a->memories; m && all; m = m->next_of_account) {
            if (!has_tag(m, tag)) continue;
            all = count < room;
            if (all && ref_try_retain(&m->refs)) list[count++].memory = m;
        }
        pthread_mutex_unlock(&a->lock);
        *out = (set){list, count};
        if (all) return GVMM_OK;
        set_release(out);
    }
}

/* Only those that are (not) resident go on, and are mapped somewhere: what is in stock, or on its way out, is not. */
static size_t keep_only(set *s, bool resident)
{
    size_t kept = 0, bytes = 0;
    for (size_t i = 0; i < s->count; i++) {
        memory *m = s->list[i].memory;
        gvmm__memory_lock(m);
        bool wanted = m->resident == resident && m->mappings;
        uint64_t at = wanted ? m->mappings->address : 0;
        gvmm__memory_unlock(m);
        if (wanted) {
            s->list[kept++] = (member){m, at};
            bytes += m->size;
        } else {
            gvmm__memory_release(m);
        }
    }
    s->count = kept;
    qsort(s->list, kept, sizeof *s->list, by_place);
    return bytes;
}

/* ---- evict ---- */

static void tell(gvmm_resource *resource, gvmm_residency what, gvmm_buffer *buffer, int tag, size_t bytes)
{
    gvmm__lock(&resource->handler_lock);
    gvmm_residency_fn fn = resource->handler;
    void *user = resource->handler_user;
    gvmm__unlock(&resource->handler_lock);
    if (fn) fn(user, &(gvmm_residency_event){what, buffer, tag, bytes});
}

static gvmm_result check_evict(gvmm_evict_options *out, const gvmm_evict_options *given)
{
    *out = (gvmm_evict_options)GVMM_EVICT_OPTIONS_INIT;
    if (given && given->struct_size != sizeof *given)
        return gvmm__fail(GVMM_E_INVALID, "evict options: struct_size is %zu, not %zu", given->struct_size,
                          sizeof *given);
    if (given) *out = *given;
    if (out->contents < GVMM_CONTENTS_DROP || out->contents > GVMM_CONTENTS_FILE)
        return gvmm__fail(GVMM_E_INVALID, "evict option contents: %d is not an allowed value", out->contents);
    if (out->contents == GVMM_CONTENTS_FILE && !out->directory)
        return gvmm__fail(GVMM_E_INVALID, "evict option directory is NULL");
    return GVMM_OK;
}

/* Takes `s` over. The stream has been waited for. */
static gvmm_result evict(gvmm_resource *resource, gvmm_buffer *buffer, int tag, set *s, const gvmm_evict_options *o)
{
    gvmm_result r = GVMM_OK;
    contents_place where = {o->contents == GVMM_CONTENTS_FILE ? o->directory : NULL, &resource->prepared,
                            resource->account};
    size_t bytes = keep_only(s, true);
    if (!s->count) goto done; /* nothing to do is no failure */
    tell(resource, GVMM_BEFORE_EVICT, buffer, tag, bytes);
    if (o->contents < GVMM_CONTENTS_HOST) gvmm__evict(s->list, s->count);
    else r = gvmm__contents_out(s->list, s->count, &where);
    tell(resource, r ? GVMM_EVICT_FAILED : GVMM_AFTER_EVICT, buffer, tag, bytes);
done:
    set_release(s);
    return r;
}

/* Waiting needs no turn, and must not keep others from theirs: what is waited for may need them. */
static gvmm_result wait_and_evict(gvmm_resource *resource, gvmm_buffer *buffer, int tag, set *s,
                                  const gvmm_evict_options *o, gvmm_stream stream)
{
    gvmm_result r = gvmm__stream_wait_or_fail(stream, &resource->device);
    if (!r) r = take_turn();
    if (r) {
        set_release(s);
        return r;
    }
    r = evict(resource, buffer, tag, s, o);
    end_turn();
    return r;
}

/* ---- restore ---- */

/* Takes `s` over. */
static gvmm_result restore(gvmm_resource *resource, gvmm_buffer *buffer, int tag, set *s)
{
    gvmm__retire_mark();
    gvmm_result r = take_turn();
    if (r) {
        set_release(s);
        return r;
    }
    size_t bytes = keep_only(s, false);
    if (s->count) {
        tell(resource, GVMM_BEFORE_RESTORE, buffer, tag, bytes);
        r = gvmm__contents_in(s->list, s->count);
        tell(resource, r ? GVMM_RESTORE_FAILED : GVMM_AFTER_RESTORE, buffer, tag, bytes);
    }
    set_release(s);
    end_turn();
    return r;
}

/* ---- public ---- */

gvmm_result gvmm_buffer_evict(gvmm_buffer *buffer, const gvmm_evict_options *options)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    gvmm_resource *resource = gvmm_buffer_resource(buffer);
    gvmm_evict_options o;
    set s;
    gvmm_result r = check_evict(&o, options);
    if (!r) r = set_of_buffer(&s, buffer);
    if (!r) r = check_own(&s);
    if (r) return r;
    gvmm_stream stream = o.stream ? gvmm__stream_recorded(o.stream, &resource->device) : gvmm_buffer_stream(buffer);
    return wait_and_evict(resource, buffer, resource->options.tag, &s, &o, stream);
}

gvmm_result gvmm_buffer_restore(gvmm_buffer *buffer)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    gvmm_resource *resource = gvmm_buffer_resource(buffer);
    set s;
    gvmm_result r = set_of_buffer(&s, buffer);
    return r ? r : restore(resource, buffer, resource->options.tag, &s);
}

gvmm_result gvmm_resource_evict(gvmm_resource *resource, int tag, const gvmm_evict_options *options)
{
    if (!resource) return gvmm__fail(GVMM_E_INVALID, "resource is NULL");
    gvmm_evict_options o;
    set s;
    gvmm_result r = check_evict(&o, options);
    if (!r) {
        gvmm_resource_trim(resource, 0); /* what is kept for nobody is not worth saving */
        gvmm__drain_released();          /* nor is what was released, whose work only we can still wait for */
    }
    if (!r) r = set_of_account(&s, resource->account, tag);
    if (r) return r;
    gvmm_stream stream = gvmm__stream_recorded(o.stream, &resource->device);
    return wait_and_evict(resource, NULL, tag, &s, &o, stream);
}

gvmm_result gvmm_resource_restore(gvmm_resource *resource, int tag)
{
    if (!resource) return gvmm__fail(GVMM_E_INVALID, "resource is NULL");
    set s;
    gvmm_result r = set_of_account(&s, resource->account, tag);
    return r ? r : restore(resource, NULL, tag, &s);
}

gvmm_result gvmm_resource_prepare_evict(gvmm_resource *resource, size_t bytes)
{
    if (!resource) return gvmm__fail(GVMM_E_INVALID, "resource is NULL");
    if (resource->device.ordinal < 0)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "prepare_evict: host memory would be kept in host memory");
    size_t whole = bytes;
    if (!gvmm__round_up(&whole, resource->placement->granularity))
        return gvmm__fail(GVMM_E_INVALID, "prepare_evict: %zu bytes are too many", bytes);
    if (gvmm__in_child()) return gvmm__fail_in_child();
    return gvmm__prepare(&resource->prepared, whole, resource->device.handle, resource->account);
}

void gvmm_resource_set_residency_handler(gvmm_resource *resource, gvmm_residency_fn fn, void *user)
{
    if (!resource) return;
    gvmm__lock(&resource->handler_lock);
    resource->handler = fn;
    resource->handler_user = user;
    gvmm__unlock(&resource->handler_lock);
}

/* ---- questions ---- */

/* Sums over the links; an empty or closed buffer has none. */
static void sum(const gvmm_buffer *buffer, size_t *evicted, uint64_t *generation)
{
    range *links = NULL;
    saved_error before;
    *evicted = 0;
    *generation = 0;
    if (!buffer) return;
    gvmm__error_save(&before);
    if (gvmm__buffer_borrow(&links, buffer)) gvmm__error_restore(&before); /* closed: nothing to say */
    for (const range *link = links; link; link = link->before) {
        memory *m = gvmm__memory_original(link->mapping.memory);
        gvmm__memory_lock(m);
        if (!m->resident) *evicted += m->size;
        *generation += m->generation;
        gvmm__memory_unlock(m);
    }
    gvmm__range_release(links);
}

size_t gvmm_buffer_evicted_bytes(const gvmm_buffer *buffer)
{
    size_t evicted;
    uint64_t generation;
    sum(buffer, &evicted, &generation);
    return evicted;
}

uint64_t gvmm_buffer_generation(const gvmm_buffer *buffer)
{
    size_t evicted;
    uint64_t generation;
    sum(buffer, &evicted, &generation);
    return generation;
}

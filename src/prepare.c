/* A backup made ahead of an evict: its pages are filled and pinned while nobody waits for them.
 *
 * The worker pins a piece at a time, and sees to other things in between. An evict takes the backup as far as it has
 * come and pins the rest itself, piece by piece, as it copies; so a failure here is the evict's to repeat, or nobody's. */
#include "internal.h"

struct prepared {
    job job;
    backup *backup; /* NULL: taken, or it failed */
    bool queued;    /* the job is the worker's, which comes to see the rest */
    bool pinning;   /* just now */
    bool stopped;   /* nothing more is to be pinned */
    bool abandoned; /* in no slot: the last to know it ends it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all slots and what they point to */
static pthread_cond_t paused = PTHREAD_COND_INITIALIZER; /* one is not being pinned any more */

static void forget(prepared *p)
{
    gvmm__free(p);
    gvmm__unhold();
}

/* Relaxed, as pinning could disturb a capture. */
static bool pin_piece(backup *b)
{
    CUstreamCaptureMode old;
    if (gvmm__relaxed_enter(&old)) return false;
    gvmm_result r = gvmm__backup_pin(b, gvmm__backup_border(b, b->pinned));
    gvmm__relaxed_leave(old);
    return r == GVMM_OK;
}

/* On the worker. Whoever takes the backup waits until it is not being pinned; warnings, whose handler may evict, wait
 * for that too. */
static void go_on(job *self)
{
    prepared *p = (prepared *)((char *)self - offsetof(prepared, job));
    backup *gone = NULL;
    pthread_mutex_lock(&lock);
    bool wanted = p->backup && !p->stopped;
    p->pinning = wanted;
    pthread_mutex_unlock(&lock);
    gvmm__warnings_hold();
    bool pinned = wanted && pin_piece(p->backup);

    pthread_mutex_lock(&lock);
    p->queued = pinned && !p->stopped && p->backup->pinned < p->backup->size;
    p->pinning = false;
    bool again = p->queued, over = p->abandoned && !again;
    if (over || (wanted && !pinned)) { /* pages that could not be filled are of no use to an evict either */
        gone = p->backup;
        p->backup = NULL;
    }
    pthread_cond_broadcast(&paused);
    pthread_mutex_unlock(&lock);
    gvmm__warnings_tell();
    if (again) gvmm__work(&p->job);
    gvmm__backup_release(gone);
    if (over) forget(p);
}

/* Out of its slot, or NULL if there is none. With the lock held. */
static prepared *take_out(prepared **slot)
{
    prepared *p = *slot;
    *slot = NULL;
    return p;
}

/* It has been taken out. What takes long is the worker's. */
static void give_up(prepared *p)
{
    if (!p) return;
    pthread_mutex_lock(&lock);
    bool hand_over = !p->queued;
    p->stopped = p->abandoned = p->queued = true;
    pthread_mutex_unlock(&lock);
    if (hand_over) gvmm__work(&p->job);
}

static gvmm_result make(prepared **out, size_t bytes, CUdevice device, account *a)
{
    prepared *p = gvmm__alloc(sizeof *p);
    if (!p) return GVMM_E_NO_HOST_MEMORY;
    gvmm__hold(); /* it may outlive the resource and the backup */
    *p = (prepared){.job = {.run = go_on}, .queued = true};
    gvmm_result r = gvmm__backup_create(&p->backup, bytes, NULL, device, a);
    if (r) {
        forget(p);
        return r;
    }
    r = gvmm__worker_start();
    if (r) {
        gvmm__backup_release(p->backup);
        forget(p);
        return r;
    }
    *out = p;
    return GVMM_OK;
}

static bool is_there(prepared **slot, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const prepared *p = *slot;
    bool there = p && p->backup && p->backup->size == bytes;
    pthread_mutex_unlock(&lock);
    return there;
}

gvmm_result gvmm__prepare(prepared **slot, size_t bytes, CUdevice device, account *a)
{
    prepared *p = NULL;
    if (bytes) {
        if (is_there(slot, bytes)) return GVMM_OK;
        gvmm_result r = make(&p, bytes, device, a);
        if (r) return r;
    }
    pthread_mutex_lock(&lock);
    prepared *old = take_out(slot);
    *slot = p;
    pthread_mutex_unlock(&lock);
    if (p) gvmm__work(&p->job);
    give_up(old);
    return GVMM_OK;
}

/* The worker, where a warning handler may evict, must not wait for itself. */
backup *gvmm__prepare_take(prepared **slot, size_t bytes)
{
    if (gvmm__on_worker()) return NULL;
    pthread_mutex_lock(&lock);
    prepared *p = take_out(slot);
    if (!p) {
        pthread_mutex_unlock(&lock);
        return NULL;
    }
    p->stopped = true;
    while (p->pinning) pthread_cond_wait(&paused, &lock);
    backup *b = p->backup;
    p->backup = NULL;
    p->abandoned = true;
    bool over = !p->queued;
    pthread_mutex_unlock(&lock);
    if (over) forget(p);
    if (b && b->size >= bytes) return b;
    gvmm__backup_release(b);
    return NULL;
}

void gvmm__prepare_end(prepared **slot)
{
    pthread_mutex_lock(&lock);
    prepared *p = take_out(slot);
    pthread_mutex_unlock(&lock);
    give_up(p);
}

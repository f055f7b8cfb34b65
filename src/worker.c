/* A thread of ours: for what must not be done where it comes up (driver threads may make no driver call) or not be
 * waited for.
 *
 * It starts with the first thing that may need it, so that handing over cannot fail, and lives as long as the process.
 * At exit it is simply gone: the driver takes back what is left. */
#include <time.h>

#include "internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static pthread_cond_t progressed = PTHREAD_COND_INITIALIZER;
static bool running, woken;
static bool idle; /* waits without an end of its own */
static worker_need (*poll)(void);
static uint64_t progress; /* rounds of the loop */
static job *first, **last = &first;
static uint64_t handed, done;    /* jobs since the start: handed over, come to their end */
static uint64_t handed_back;     /* of these, those that give back; and those that have: */
static atomic_ullong given_back; /* changed with the lock held */
static const job *at_work;       /* being done */
static uint64_t goes_on;         /* how many were handed over up to the last one that handed itself over again */

/* How long until the next look at what cannot announce itself, microseconds: longer and longer while nothing
 * happens. */
enum { FIRST_LOOK = 20, LAST_LOOK = 160 };

static void pause_for(unsigned microseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until); /* the other can be set back */
    until.tv_nsec += microseconds * 1000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&arrived, &lock, &until);
}

static _Thread_local bool is_worker;

bool gvmm__on_worker(void) { return is_worker; }

static void *work(void *unused)
{
    (void)unused;
    is_worker = true;
    unsigned pause = FIRST_LOOK;
    pthread_mutex_lock(&lock);
    for (;;) {
        job *j = first;
        bool gives_back = j && j->gives_back;
        if (j) {
            first = j->next;
            if (!first) last = &first;
        }
        at_work = j;
        worker_need (*look)(void) = poll;
        bool idle_before = !woken;
        woken = false;
        pthread_mutex_unlock(&lock);
        if (j) j->run(j);
        worker_need need = look ? look() : WORKER_IDLE;
        pthread_mutex_lock(&lock);
        at_work = NULL;
        if (j) done++;
        if (gives_back) atomic_fetch_add(&given_back, 1);
        progress++;
        pthread_cond_broadcast(&progressed);
        if (first || woken) continue;
        pause = need == WORKER_SOON && idle_before ? (pause < LAST_LOOK ? pause * 2 : LAST_LOOK) : FIRST_LOOK;
        idle = need == WORKER_IDLE;
        if (idle) pthread_cond_wait(&arrived, &lock);
        else pause_for(pause);
        idle = false;
    }
    return NULL;
}

/* Nobody waits for it yet. */
static void set_clock_of_waiting(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_destroy(&arrived);
    pthread_cond_init(&arrived, &attributes);
    pthread_condattr_destroy(&attributes);
}

static gvmm_result start_locked(void)
{
    if (running) return GVMM_OK;
    pthread_t thread;
    set_clock_of_waiting();
    if (!gvmm__thread_start(&thread, work, NULL)) return gvmm__fail(GVMM_E_NO_HOST_MEMORY, "cannot start a thread");
    pthread_detach(thread);
    running = true;
    return GVMM_OK;
}

gvmm_result gvmm__worker_start(void)
{
    pthread_mutex_lock(&lock);
    gvmm_result r = start_locked();
    pthread_mutex_unlock(&lock);
    return r;
}

void gvmm__work(job *j)
{
    j->next = NULL;
    pthread_mutex_lock(&lock);
    *last = j;
    last = &j->next;
    handed++;
    handed_back += j->gives_back;
    if (j == at_work) goes_on = handed;
    pthread_cond_signal(&arrived);
    pthread_mutex_unlock(&lock);
}

uint64_t gvmm__work_waiting(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = handed - done;
    pthread_mutex_unlock(&lock);
    return n;
}

uint64_t gvmm__work_gives_back(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = handed_back - atomic_load(&given_back);
    pthread_mutex_unlock(&lock);
    return n;
}

uint64_t gvmm__work_given_back(void) { return atomic_load(&given_back); }

/* Jobs are done in their order. One that goes on has its place behind others each time. */
void gvmm__work_wait(bool for_giving_back)
{
    pthread_mutex_lock(&lock);
    uint64_t until = for_giving_back ? handed_back : handed;
    while (for_giving_back ? atomic_load(&given_back) < until : done < until || done < goes_on)
        pthread_cond_wait(&progressed, &lock);
    pthread_mutex_unlock(&lock);
}

void gvmm__worker_poll(worker_need (*look)(void))
{
    pthread_mutex_lock(&lock);
    poll = look;
    pthread_mutex_unlock(&lock);
}

void gvmm__worker_wake(void)
{
    pthread_mutex_lock(&lock);
    woken = true;
    if (idle) pthread_cond_signal(&arrived); /* else it will look soon, and waking a thread takes microseconds */
    pthread_mutex_unlock(&lock);
}

uint64_t gvmm__worker_progress(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = progress;
    pthread_mutex_unlock(&lock);
    return n;
}

void gvmm__worker_wait_past(uint64_t seen)
{
    pthread_mutex_lock(&lock);
    while (progress == seen) pthread_cond_wait(&progressed, &lock);
    pthread_mutex_unlock(&lock);
}

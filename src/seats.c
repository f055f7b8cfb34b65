/* A small number for each thread, so that what threads count for themselves can lie in an array. */
#include "internal.h"

_Thread_local unsigned gvmm__seat = SEATS;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next two */
static bool taken[SEATS] = {true};
static atomic_uint used = 1;
static pthread_key_t at_thread_end;
static bool has_key; /* a process has 1024; without one nobody would give a seat back */

static void give_back(void *seat)
{
    gvmm__seat = SEATS;
    if (gvmm__in_child()) return;
    pthread_mutex_lock(&lock);
    taken[(uintptr_t)seat] = false;
    pthread_mutex_unlock(&lock);
}

static void make_key(void) { has_key = pthread_key_create(&at_thread_end, give_back) == 0; }

void gvmm__seat_find(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned found = 0;
    pthread_once(&once, make_key);
    pthread_mutex_lock(&lock);
    for (unsigned i = 1; i < SEATS && !found; i++)
        if (!taken[i]) found = i;
    if (found && (!has_key || pthread_setspecific(at_thread_end, (void *)(uintptr_t)found))) found = 0;
    taken[found] = true;
    if (found >= atomic_load(&used)) atomic_store(&used, found + 1);
    pthread_mutex_unlock(&lock);
    gvmm__seat = found;
}

unsigned gvmm__seats_used(void) { return atomic_load(&used); }

/* Around everything that may block: the interpreter lock is given away, and warnings of the library are kept until it is back.
 *
 * The library warns on the thread that releases. That may be one of its own, or a driver's consumer that knows nothing of Python; so
 * the handler enters no interpreter. On a thread that is between call_begin and call_end it leaves the text there, else in a list that
 * the next such call, on any thread, tells. */
#include <pthread.h>
#include <stdio.h>

#include "ext.h"

static _Thread_local call *innermost;

enum { STRAYS_KEPT = 8 };
static pthread_mutex_t stray_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static char stray_text[STRAYS_KEPT][WARNING_SIZE];
static atomic_uint strays; /* also read without the lock, to see whether there is anything to do */

static void keep(char (*texts)[WARNING_SIZE], unsigned capacity, unsigned count, const char *text)
{
    if (count < capacity) snprintf(texts[count], WARNING_SIZE, "%.*s", WARNING_SIZE - 1, text);
}

static void on_warning(void *unused, const gvmm_error *error)
{
    (void)unused;
    if (innermost) {
        keep(innermost->text, WARNINGS_KEPT, innermost->warnings++, error->text);
        return;
    }
    pthread_mutex_lock(&stray_lock);
    keep(stray_text, STRAYS_KEPT, atomic_load(&strays), error->text);
    atomic_fetch_add(&strays, 1);
    pthread_mutex_unlock(&stray_lock);
}

void catch_warnings(void) { gvmm_set_warning_handler(on_warning, NULL); }

/* A release that fails at every chunk would warn thousands of times; the first few tell the story. */
static void tell(module_state *state, char (*texts)[WARNING_SIZE], unsigned capacity, unsigned count)
{
    char more[64];
    for (unsigned i = 0; i < count && i < capacity; i++) warn_text(state, texts[i]);
    if (count <= capacity) return;
    snprintf(more, sizeof more, "and %u more warnings of gvmm", count - capacity);
    warn_text(state, more);
}

static void tell_strays(module_state *state)
{
    char texts[STRAYS_KEPT][WARNING_SIZE];
    pthread_mutex_lock(&stray_lock);
    unsigned count = atomic_exchange(&strays, 0);
    for (unsigned i = 0; i < count && i < STRAYS_KEPT; i++) keep(texts, STRAYS_KEPT, i, stray_text[i]);
    pthread_mutex_unlock(&stray_lock);
    tell(state, texts, STRAYS_KEPT, count);
}

void call_begin(call *c)
{
    c->warnings = 0;
    c->outer = innermost;
    innermost = c;
    c->thread = PyEval_SaveThread();
}

void call_interrupt(void) { PyEval_RestoreThread(innermost->thread); }
void call_resume(void) { innermost->thread = PyEval_SaveThread(); }

void call_end(call *c, module_state *state)
{
    innermost = c->outer;
    PyEval_RestoreThread(c->thread);
    if (c->warnings) tell(state, c->text, WARNINGS_KEPT, c->warnings);
    if (atomic_load_explicit(&strays, memory_order_relaxed)) tell_strays(state);
}

gvmm_result call_driver(module_state *state, const gvmm_driver **out)
{
    call c;
    call_begin(&c);
    gvmm_result r = gvmm_driver_get(out);
    call_end(&c, state);
    return r;
}

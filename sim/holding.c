/* User objects: destroyed when the user and all graphs and executables have let go, on the thread that was the last to do so, or
 * on one of the driver's own after a launch. */
#include <limits.h>
#include <time.h>

#include "exec.h"
#include "memory.h"

struct sim_user_object {
    sim_object object; /* references: all of them */
    unsigned users;    /* those that are the user's own */
    unsigned holders;  /* graphs and executables that point here, if only to find it dead */
    bool dead, destroyed;
    bool lost; /* more references were given away than there were: it is never destroyed */
    CUhostFn destroy;
    void *data;
    struct sim_user_object *next; /* to be destroyed */
};

_Thread_local sim_user_object *sim_objects_due;
static sim_user_object *first, *last; /* for the driver's thread, in order */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool started;

/* ---------------------------------------------------------------------------------------------
 * Destroying
 * ------------------------------------------------------------------------------------------- */

static void free_unheld(sim_user_object *o)
{
    if (o->destroyed && !o->holders) free(o);
}

/* With sim_lock held, and without it while the user's function runs. */
static void object_destroy(sim_user_object *o)
{
    bool driver = sim_on_driver_thread;
    pthread_mutex_unlock(&sim_lock);
    sim_on_driver_thread = true;
    o->destroy(o->data);
    sim_on_driver_thread = driver;
    pthread_mutex_lock(&sim_lock);
    o->destroyed = true;
    free_unheld(o);
}

void sim_objects_destroy(void)
{
    sim_enter();
    while (sim_objects_due) {
        sim_user_object *o = sim_objects_due;
        sim_objects_due = o->next;
        object_destroy(o);
    }
    pthread_mutex_unlock(&sim_lock);
}

static void *destroy_objects(void *unused)
{
    (void)unused;
    sim_on_driver_thread = true;
    sim_enter();
    for (;;) {
        while (!first) pthread_cond_wait(&wake, &sim_lock);
        pthread_mutex_unlock(&sim_lock);
        nanosleep(&(struct timespec){0, 2000000}, NULL); /* never before the call returns that let go */
        pthread_mutex_lock(&sim_lock);
        while (first) {
            sim_user_object *o = first;
            first = o->next;
            if (!first) last = NULL;
            object_destroy(o);
        }
    }
    return NULL;
}

static void end(sim_user_object *o, bool later)
{
    sim_object_remove(&o->object);
    o->dead = true;
    o->next = NULL;
    if (!later && !sim_on_driver_thread) {
        sim_user_object **link = &sim_objects_due;
        while (*link) link = &(*link)->next;
        *link = o;
        return;
    }
    if (last) last->next = o;
    else first = o;
    last = o;
    pthread_cond_signal(&wake);
}

static void drop(sim_user_object *o, unsigned count, bool later)
{
    if (o->dead) return;
    if (count > o->object.references) o->lost = true;
    o->object.references -= count < o->object.references ? count : o->object.references;
    if (!o->object.references && !o->lost) end(o, later);
}

/* ---------------------------------------------------------------------------------------------
 * What graphs and executables hold
 * ------------------------------------------------------------------------------------------- */

static sim_holding *holding_of(const sim_holdings *h, const sim_user_object *o)
{
    for (size_t i = 0; i < h->count; i++)
        if (h->items[i].object == o) return &h->items[i];
    return NULL;
}

/* Room for `extra` more objects. */
static bool make_room(sim_holdings *h, size_t extra)
{
    if (!extra) return true;
    sim_holding *items = realloc(h->items, (h->count + extra) * sizeof *items);
    if (items) h->items = items;
    return items;
}

/* References that were counted before; there is room. */
static void take(sim_holdings *h, sim_user_object *o, unsigned count)
{
    sim_holding *held = holding_of(h, o);
    if (held) {
        held->count += count;
        return;
    }
    h->items[h->count++] = (sim_holding){o, count};
    o->holders++;
}

static void unhold(sim_user_object *o)
{
    o->holders--;
    free_unheld(o);
}

CUresult sim_holdings_add(sim_holdings *to, const sim_holdings *from)
{
    if (!make_room(to, from->count)) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < from->count; i++) {
        sim_user_object *o = from->items[i].object;
        take(to, o, from->items[i].count);
        if (!o->dead) o->object.references += from->items[i].count;
    }
    return CUDA_SUCCESS;
}

void sim_holdings_drop(sim_holdings *holdings, bool later)
{
    for (size_t i = 0; i < holdings->count; i++) {
        drop(holdings->items[i].object, holdings->items[i].count, later);
        unhold(holdings->items[i].object);
    }
    free(holdings->items);
    *holdings = (sim_holdings){0};
}

void sim_objects_reset(void)
{
    sim_object *object;
    while ((object = sim_object_from(GVMM_SIM_USER_OBJECT, 0))) {
        sim_user_object *o = (sim_user_object *)object;
        sim_object_remove(object);
        o->dead = o->destroyed = true;
        free_unheld(o);
    }
}

/* ---------------------------------------------------------------------------------------------
 * Calls
 * ------------------------------------------------------------------------------------------- */

static CUresult find(CUuserObject handle, unsigned count, sim_user_object **out)
{
    *out = (sim_user_object *)sim_object_find(GVMM_SIM_USER_OBJECT, (uintptr_t)handle);
    return *out && count && count <= INT_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool fits(const sim_user_object *o, unsigned count) { return count <= INT_MAX - o->object.references; }

/* The user gives references away. More than it has is a success, as on a GPU: that ends objects which graphs still hold, or
 * gets them lost. */
static void give(sim_user_object *o, unsigned count)
{
    if (count > o->users)
        sim_finding("%s (call %llu): gives %u references to user object 0x%llx away, but the caller has %u",
                    sim_call_name, (unsigned long long)sim_call_number, count, (unsigned long long)o->object.id,
                    o->users);
    o->users -= count < o->users ? count : o->users;
}

CUresult sim_cuUserObjectCreate(CUuserObject *object, void *data, CUhostFn destroy, unsigned int count,
                                unsigned int flags)
{
    if (!object || !destroy || !count || count > INT_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
    sim_user_object *o = calloc(1, sizeof *o);
    if (!o) return CUDA_ERROR_OUT_OF_MEMORY;
    o->users = count;
    o->destroy = destroy;
    o->data = data;
    sim_enter();
    if (!started) started = sim_thread_start(destroy_objects, NULL); /* now: giving back cannot fail */
    if (!started) return free(o), sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    sim_object_add(&o->object, GVMM_SIM_USER_OBJECT, 0, 0);
    o->object.references = count;
    *object = (CUuserObject)(uintptr_t)o->object.id;
    return sim_leave(CUDA_SUCCESS);
}

CUresult sim_cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    sim_enter();
    sim_user_object *o;
    CUresult r = find(object, count, &o);
    if (!r && !fits(o, count)) r = CUDA_ERROR_INVALID_VALUE;
    if (r) return sim_leave(r);
    o->users += count;
    o->object.references += count;
    return sim_leave(CUDA_SUCCESS);
}

CUresult sim_cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    sim_enter();
    sim_user_object *o;
    CUresult r = find(object, count, &o);
    if (r) return sim_leave(r);
    give(o, count);
    drop(o, count, false);
    return sim_leave(CUDA_SUCCESS);
}

static CUresult graph_retain(CUgraph graph, CUuserObject object, unsigned count, bool move)
{
    sim_graph *g;
    sim_user_object *o;
    CUresult r = sim_graph_find(graph, &g);
    if (!r) r = find(object, count, &o);
    if (!r && !move && !fits(o, count)) r = CUDA_ERROR_INVALID_VALUE;
    if (r) return r;
    if (!make_room(&g->holdings, 1)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (move) give(o, count);
    else o->object.references += count;
    take(&g->holdings, o, count);
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    if (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
    sim_enter();
    return sim_leave(graph_retain(graph, object, count, flags == CU_GRAPH_USER_OBJECT_MOVE));
}

/* What the graph has not is taken from the user's, as on a GPU. */
static CUresult graph_release(CUgraph graph, CUuserObject object, unsigned count)
{
    sim_graph *g;
    sim_user_object *o;
    CUresult r = sim_graph_find(graph, &g);
    if (!r) r = find(object, count, &o);
    if (r) return r;
    sim_holding *held = holding_of(&g->holdings, o);
    unsigned own = !held ? 0 : held->count < count ? held->count : count;
    if (own < count) give(o, count - own);
    if (held) held->count -= own;
    drop(o, count, false);
    if (held && !held->count) {
        *held = g->holdings.items[--g->holdings.count];
        unhold(o);
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    sim_enter();
    return sim_leave(graph_release(graph, object, count));
}

/* Physical memory: made, viewed, given back; who may touch it; what other processes know it by and get of it. */
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* ---- locks ---- */

/* Few, as a lock for each of tens of thousands of chunks would be most of their size, and who deals with many chunks at
 * a time takes all locks. */
enum { LOCKS = 32 };
static pthread_mutex_t locks[LOCKS] = {[0 ... LOCKS - 1] = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t *lock_of(memory *m)
{
    return &locks[((uintptr_t)gvmm__memory_original(m) / sizeof(memory)) % LOCKS];
}

void gvmm__memory_lock(memory *m) { gvmm__silent_lock(lock_of(m)); }
void gvmm__memory_unlock(memory *m) { gvmm__silent_unlock(lock_of(m)); }

void gvmm__memory_lock_all(void)
{
    for (size_t i = 0; i < LOCKS; i++) pthread_mutex_lock(&locks[i]);
    gvmm__warnings_hold();
}

void gvmm__memory_unlock_all(void)
{
    for (size_t i = LOCKS; i-- > 0;) pthread_mutex_unlock(&locks[i]);
    gvmm__warnings_tell();
}

/* ---- the account's list of originals ---- */

static void enter(memory *m)
{
    account *a = m->account;
    pthread_mutex_lock(&a->lock);
    m->next_of_account = a->memories;
    if (m->next_of_account) m->next_of_account->before_of_account = m;
    a->memories = m;
    pthread_mutex_unlock(&a->lock);
}

static void leave(memory *m)
{
    account *a = m->account;
    pthread_mutex_lock(&a->lock);
    if (m->next_of_account) m->next_of_account->before_of_account = m->before_of_account;
    if (m->before_of_account) m->before_of_account->next_of_account = m->next_of_account;
    else a->memories = m->next_of_account;
    pthread_mutex_unlock(&a->lock);
}

/* ---- making it ---- */

/* A refused value is the caller's only where the library could not check it before: the driver alone knows the
 * nodes. */
static gvmm_result better(gvmm_result r, const placement *p)
{
    gvmm_error error;
    gvmm_last_error(&error);
    bool on_host = p->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    if (r == GVMM_E_NO_DEVICE_MEMORY && on_host) return GVMM_E_NO_HOST_MEMORY;
    if (error.status == CUDA_ERROR_INVALID_VALUE && p->prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return GVMM_E_INVALID;
    return r;
}

static const char *place_name(const placement *p)
{
    switch (p->prop.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return "device";
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: return "host, numa_node";
    default: return "host";
    }
}

gvmm_result gvmm__memory_get_handle(memory *m, CUmemGenericAllocationHandle *out)
{
    const placement *p = m->made_as;
    CUmemAllocationProp prop = p->prop;
    if (m->device >= 0) prop.location.id = m->device;
    gvmm_result r = DRIVER(cuMemCreate, out, m->size, &prop, 0);
    if (r) return gvmm__about(better(r, p), "memory", "%zu bytes on %s %d", m->size, place_name(p), prop.location.id);
    gvmm__account_add(m->account, STAT_physical_bytes, m->size);
    return GVMM_OK;
}

/* A descriptor would keep the memory from going back: it goes first. */
void gvmm__memory_release_handle(memory *m, CUmemGenericAllocationHandle handle)
{
    if (!m->imported) {
        gvmm__handout_release(m->handout);
        m->handout = NULL;
    }
    DRIVER_UNDO("memory", handle, cuMemRelease, handle);
    gvmm__account_add(m->account, m->imported ? STAT_imported_bytes : STAT_physical_bytes, -(uint64_t)m->size);
}

static memory *new_memory(size_t size)
{
    memory *m = gvmm__alloc(sizeof *m);
    if (!m) return NULL;
    memset(m, 0, sizeof *m);
    ref_init(&m->refs);
    m->size = size;
    return m;
}

/* The rest of what memory with a handle needs: readers, holders, a place in the account. */
static void settle(memory *m, placement *p, account *a)
{
    m->resident = true;
    m->access = p->access;
    m->access_count = p->access_count;
    gvmm__placement_retain(p);
    gvmm__account_retain(a);
    gvmm__account_add(a, STAT_memories, 1);
    enter(m);
}

gvmm_result gvmm__memory_create(memory **out, placement *p, size_t size, size_t place, account *a)
{
    memory *m = new_memory(size);
    if (!m) return GVMM_E_NO_HOST_MEMORY;
    m->device = gvmm__placement_device(p, place);
    m->made_as = p;
    m->account = a;
    gvmm_result r = gvmm__memory_get_handle(m, &m->handle);
    if (r) {
        gvmm__free(m);
        return r;
    }
    settle(m, p, a);
    *out = m;
    return GVMM_OK;
}

gvmm_result gvmm__memory_import(memory **out, placement *p, CUmemGenericAllocationHandle handle, size_t size,
                                int device, const gvmm_identity *who, account *a)
{
    memory *m = new_memory(size);
    gvmm_identity *identity = m ? gvmm__alloc(sizeof *identity) : NULL;
    if (!identity) {
        if (m) gvmm__free(m);
        return GVMM_E_NO_HOST_MEMORY;
    }
    *identity = *who;
    m->identity = identity;
    m->imported = true;
    m->device = device;
    m->made_as = p;
    m->account = a;
    m->handle = handle;
    gvmm__account_add(a, STAT_imported_bytes, size);
    settle(m, p, a);
    *out = m;
    return GVMM_OK;
}

/* The readers of `of`, none with more than `access`. */
gvmm_result gvmm__memory_view(memory **out, memory *of, gvmm_access access)
{
    memory *m = new_memory(of->size);
    if (!m) return GVMM_E_NO_HOST_MEMORY;
    gvmm__memory_lock(of);
    unsigned count = of->access_count;
    m->access = gvmm__alloc((count + 1) * sizeof *m->access);
    for (unsigned i = 0; m->access && i < count; i++) {
        m->access[i] = of->access[i];
        m->access[i].flags &= (CUmemAccess_flags)access;
        if (m->access[i].flags) m->access_count = i + 1;
    }
    gvmm__memory_unlock(of);
    if (!m->access) {
        gvmm__free(m);
        return GVMM_E_NO_HOST_MEMORY;
    }
    m->device = of->device;
    m->account = gvmm__account_retain(of->account);
    m->original = gvmm__memory_retain(gvmm__memory_original(of));
    *out = m;
    return GVMM_OK;
}

memory *gvmm__memory_retain(memory *m)
{
    ref_retain(&m->refs);
    return m;
}

void gvmm__memory_release(memory *m)
{
    if (!m || !ref_release(&m->refs)) return;
    memory *original = m->original;
    if (!original) {
        leave(m);
        if (m->resident) gvmm__memory_release_handle(m, m->handle);
        gvmm__backup_release(m->backup);
        gvmm__account_add(m->account, STAT_memories, -1ull);
        if (m->imported) gvmm__free(m->identity);
    }
    if (!m->made_as || m->access != m->made_as->access) gvmm__free(m->access);
    gvmm__placement_release(m->made_as);
    gvmm__account_release(m->account);
    gvmm__free(m);
    gvmm__memory_release(original);
}

/* ---- access ---- */

/* -1 means the host, by the name that the memory's own location has for it. */
static CUmemLocation location_of(memory *m, int device)
{
    const placement *p = gvmm__memory_original(m)->made_as;
    if (device >= 0) return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
    if (m->device < 0) return p->prop.location;
    return (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
}

static CUmemAccessDesc *find(memory *m, CUmemLocation location)
{
    CUmemAccessDesc *found = NULL; /* of two for the same location the later counts, as for the driver */
    for (unsigned i = 0; i < m->access_count; i++)
        if (m->access[i].location.type == location.type && m->access[i].location.id == location.id)
            found = &m->access[i];
    return found;
}

gvmm_access gvmm__memory_access(memory *m, int device)
{
    gvmm__memory_lock(m);
    CUmemAccessDesc *found = find(m, location_of(m, device));
    gvmm_access access = found ? (gvmm_access)found->flags : GVMM_ACCESS_NONE;
    gvmm__memory_unlock(m);
    return access;
}

/* Tells the driver at every place of `m` up to (not including) `end`. */
static gvmm_result apply(memory *m, CUmemAccessDesc desc, mapping **failed)
{
    memory *original = gvmm__memory_original(m);
    for (mapping *at = original->resident ? original->mappings : NULL; at && at != *failed; at = at->next) {
        if (at->memory != m) continue;
        gvmm_result r = DRIVER(cuMemSetAccess, at->address, m->size, &desc, 1);
        if (r) {
            *failed = at;
            return gvmm__about(r, "mapping", "%zu bytes at 0x%llx", m->size, (unsigned long long)at->address);
        }
    }
    return GVMM_OK;
}

gvmm_result gvmm__memory_set_access(memory *m, int device, gvmm_access access)
{
    gvmm__memory_lock(m);
    CUmemAccessDesc *list = gvmm__alloc((m->access_count + 1) * sizeof *list);
    if (!list) {
        gvmm__memory_unlock(m);
        return GVMM_E_NO_HOST_MEMORY;
    }
    CUmemLocation location = location_of(m, device);
    CUmemAccessDesc wanted = {location, (CUmemAccess_flags)access}, *had = find(m, location);
    CUmemAccessDesc old = had ? *had : (CUmemAccessDesc){location, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    mapping *failed = NULL;
    gvmm_result r = old.flags == wanted.flags && !m->access_unsure ? GVMM_OK : apply(m, wanted, &failed);
    if (r) { /* back to what it was, at those places where it was changed */
        saved_error first;
        gvmm__error_save(&first);
        if (apply(m, old, &failed)) {
            m->access_unsure = true;
            gvmm__warn(GVMM_E_DRIVER, "memory", m->handle, "its access could not be put back");
        }
        gvmm__error_restore(&first);
        gvmm__memory_unlock(m);
        gvmm__free(list);
        return r;
    }
    unsigned count = 0;
    for (unsigned i = 0; i < m->access_count; i++) /* without this location, then with it */
        if (m->access[i].location.type != location.type || m->access[i].location.id != location.id)
            list[count++] = m->access[i];
    if (access) list[count++] = wanted;
    CUmemAccessDesc *before = m->access;
    m->access = list;
    m->access_count = count;
    gvmm__memory_unlock(m);
    if (!m->made_as || before != m->made_as->access) gvmm__free(before);
    return GVMM_OK;
}

/* ---- what others know it by, and get of it ---- */

static uint8_t origin[16];
static pthread_once_t origin_once = PTHREAD_ONCE_INIT;

static void make_origin(void)
{
    struct timespec now = {0};
    if (getrandom(origin, sizeof origin, 0) == (ssize_t)sizeof origin) return;
    clock_gettime(CLOCK_REALTIME, &now); /* a kernel without: no process has this id at the same nanosecond */
    uint64_t unlike[2] = {(uint64_t)getpid(), (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec};
    memcpy(origin, unlike, sizeof origin);
}

/* With the lock held. */
static gvmm_identity identity_of(memory *m)
{
    static atomic_ullong serials;
    if (m->imported) return *m->identity;
    gvmm_identity who = {.generation = m->generation};
    if (!m->serial) m->serial = atomic_fetch_add(&serials, 1) + 1;
    who.serial = m->serial;
    memcpy(who.origin, origin, sizeof origin);
    return who;
}

gvmm_identity gvmm__memory_identity(memory *m)
{
    m = gvmm__memory_original(m);
    pthread_once(&origin_once, make_origin);
    gvmm__memory_lock(m);
    gvmm_identity who = identity_of(m);
    gvmm__memory_unlock(m);
    return who;
}

void gvmm__handout_release(handout *h)
{
    if (!h || !ref_release(&h->refs)) return;
    close(h->fd);
    gvmm__free(h);
}

static gvmm_result check_resident(const memory *m)
{
    bool there = m->resident && !m->waking; /* before that it has the name of what it was */
    return there ? GVMM_OK : gvmm__fail(GVMM_E_INVALID, "memory is evicted: restore it before it is exported");
}

static gvmm_result make_handout(memory *m)
{
    handout *h = gvmm__alloc(sizeof *h);
    if (!h) return GVMM_E_NO_HOST_MEMORY;
    ref_init(&h->refs);
    h->wanted = false;
    gvmm_result r = DRIVER(cuMemExportToShareableHandle, &h->fd, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                           0);
    if (r) {
        gvmm__free(h);
        return gvmm__about(r, "memory", "export of %zu bytes to a descriptor", m->size);
    }
    m->handout = h;
    return GVMM_OK;
}

gvmm_result gvmm__memory_export(handout **out, bool *made, gvmm_identity *who, memory *m)
{
    pthread_once(&origin_once, make_origin);
    gvmm__memory_lock(m);
    gvmm_result r = check_resident(m);
    *made = !m->handout;
    if (!r && *made) r = make_handout(m);
    if (!r) {
        m->handout->wanted |= !*made;
        ref_retain(&m->handout->refs);
        *out = m->handout;
        *who = identity_of(m);
    }
    gvmm__memory_unlock(m);
    return r;
}

void gvmm__memory_unexport(memory *m, const handout *h)
{
    gvmm__memory_lock(m);
    handout *taken = m->handout == h && !h->wanted ? m->handout : NULL; /* else others may have the memory by now */
    if (taken) m->handout = NULL;
    gvmm__memory_unlock(m);
    gvmm__handout_release(taken);
}

bool gvmm__memory_is_exported(memory *m)
{
    gvmm__memory_lock(m);
    bool is = !m->imported && m->handout;
    gvmm__memory_unlock(m);
    return is;
}

/* Of all memory that has been exported so. It is never let go of: one reference is nobody's. */
static handout fabric_handout = {{1}, -1, true};

gvmm_result gvmm__memory_export_fabric(unsigned char out[WIRE_FABRIC], gvmm_identity *who, memory *m)
{
    pthread_once(&origin_once, make_origin);
    gvmm__memory_lock(m);
    gvmm_result r = check_resident(m);
    if (!r) {
        r = DRIVER(cuMemExportToShareableHandle, out, m->handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);
        gvmm__about(r, "memory", "export of %zu bytes to a fabric handle", m->size);
    }
    if (!r && !m->handout) {
        ref_retain(&fabric_handout.refs);
        m->handout = &fabric_handout;
    }
    if (!r) *who = identity_of(m);
    gvmm__memory_unlock(m);
    return r;
}

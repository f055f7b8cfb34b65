#include "watch.h"

#include <pthread.h>

/* One call. `base` is the address it is about, for cuMemCreate and cuMemRelease the handle; `handle` what is mapped. */
typedef struct seen {
    gvmm_driver_call call;
    CUresult result;
    uint64_t base, size, handle;
} seen;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static seen *list;
static size_t count, capacity;
static size_t start; /* of what was seen since watch() */

static void note(void *unused, const gvmm_trace_record *record)
{
    (void)unused;
    const unsigned long long *args = record->args;
    seen s = {.call = record->call, .result = record->result, .base = args[0], .size = args[1]};
    bool gives_a_value = s.call == GVMM_CALL_cuMemAddressReserve || s.call == GVMM_CALL_cuMemCreate;
    if (gives_a_value) s.base = s.result == CUDA_SUCCESS ? *(uint64_t *)(uintptr_t)args[0] : 0;
    if (s.call == GVMM_CALL_cuMemMap) s.handle = args[3];
    pthread_mutex_lock(&lock);
    if (count == capacity) {
        capacity = capacity ? 2 * capacity : 256;
        list = realloc(list, capacity * sizeof *list);
    }
    list[count++] = s;
    pthread_mutex_unlock(&lock);
}

/* ---- the books ---- */

/* What is alive: reservations, memory and mappings, as the calls that made them. */
typedef struct books {
    seen *alive;
    size_t count;
} books;

static bool meets(const seen *a, uint64_t base, size_t size)
{
    return a->base < base + size && base < a->base + a->size;
}

static void strike(books *b, size_t at) { b->alive[at] = b->alive[--b->count]; }

static void book_address_free(books *b, const seen *s)
{
    size_t found = b->count;
    for (size_t i = 0; i < b->count; i++) {
        const seen *a = &b->alive[i];
        ck_assert_msg(a->call != GVMM_CALL_cuMemMap || !meets(a, s->base, s->size), "0x%llx freed while mapped",
                      (unsigned long long)s->base);
        if (a->call == GVMM_CALL_cuMemAddressReserve && a->base == s->base && a->size == s->size) found = i;
    }
    ck_assert_msg(found < b->count, "cuMemAddressFree(0x%llx, %llu): not a reservation of ours",
                  (unsigned long long)s->base, (unsigned long long)s->size);
    strike(b, found);
}

/* One call may unmap several mappings, all of them whole. */
static void book_unmap(books *b, const seen *s)
{
    size_t unmapped = 0;
    for (size_t i = b->count; i-- > 0;) {
        const seen *a = &b->alive[i];
        if (a->call != GVMM_CALL_cuMemMap || !meets(a, s->base, s->size)) continue;
        unmapped += a->size;
        strike(b, i);
    }
    ck_assert_msg(unmapped == s->size, "cuMemUnmap(0x%llx, %llu): not whole mappings of ours",
                  (unsigned long long)s->base, (unsigned long long)s->size);
}

static void book_release(books *b, const seen *s)
{
    size_t found = b->count;
    for (size_t i = 0; i < b->count; i++) {
        const seen *a = &b->alive[i];
        ck_assert_msg(a->call != GVMM_CALL_cuMemMap || a->handle != s->base, "memory released while mapped at 0x%llx",
                      (unsigned long long)a->base);
        if (a->call == GVMM_CALL_cuMemCreate && a->base == s->base) found = i;
    }
    ck_assert_msg(found < b->count, "cuMemRelease(0x%llx): not memory of ours", (unsigned long long)s->base);
    strike(b, found);
}

/* A call that undoes something has done so whatever it answers. */
static void book(books *b, const seen *s)
{
    switch (s->call) {
    case GVMM_CALL_cuMemAddressReserve:
    case GVMM_CALL_cuMemCreate:
    case GVMM_CALL_cuMemMap:
        if (s->result == CUDA_SUCCESS) b->alive[b->count++] = *s;
        break;
    case GVMM_CALL_cuMemUnmap: book_unmap(b, s); break;
    case GVMM_CALL_cuMemRelease: book_release(b, s); break;
    case GVMM_CALL_cuMemAddressFree: book_address_free(b, s); break;
    default: break;
    }
}

/* What has been seen so far, for the caller to free: gvmm's thread may add to the list meanwhile. */
static seen *copy_of_list(size_t *start_out, size_t *count_out)
{
    pthread_mutex_lock(&lock);
    seen *copy = malloc((count + 1) * sizeof *copy);
    for (size_t i = 0; copy && i < count; i++) copy[i] = list[i];
    if (start_out) *start_out = start;
    *count_out = count;
    pthread_mutex_unlock(&lock);
    ck_assert_ptr_nonnull(copy);
    return copy;
}

static size_t still_alive(void)
{
    size_t n;
    seen *all = copy_of_list(NULL, &n);
    books b = {malloc((n + 1) * sizeof *b.alive), 0};
    ck_assert_ptr_nonnull(b.alive);
    for (size_t i = 0; i < n; i++) book(&b, &all[i]);
    free(all);
    free(b.alive);
    return b.count;
}

void ck_in_order(void) { still_alive(); }

/* ---- the fixture ---- */

static bool is_booked(gvmm_driver_call call)
{
    switch (call) {
    case GVMM_CALL_cuMemAddressReserve:
    case GVMM_CALL_cuMemAddressFree:
    case GVMM_CALL_cuMemCreate:
    case GVMM_CALL_cuMemRelease:
    case GVMM_CALL_cuMemMap:
    case GVMM_CALL_cuMemUnmap: return true;
    default: return false;
    }
}

/* The calls that the books are kept of, one at a time with its note: else what one thread frees and another gets again could be
 * noted in the other order. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static const gvmm_driver *noting;

#define X(need, role, name, symbol, version, params, args) \
    static CUresult ordered_##name params \
    { \
        if (!is_booked(GVMM_CALL_##name)) return noting->name args; \
        pthread_mutex_lock(&one_at_a_time); \
        CUresult result_ = noting->name args; \
        pthread_mutex_unlock(&one_at_a_time); \
        return result_; \
    }
GVMM_DRIVER_CALLS(X)
#undef X

static const gvmm_driver *in_order(void)
{
    static gvmm_driver table = {
#define X(need, role, name, symbol, version, params, args) .name = ordered_##name,
        GVMM_DRIVER_CALLS(X)
#undef X
    };
    noting = gvmm_trace_over(gvmm_faults_over(cu), note, NULL);
    table.origin = noting->origin;
    return &table;
}

static void start_watching(void)
{
    count = start = 0;
    use_driver(in_order());
}

static void stop_watching(void)
{
    gvmm_drain();
    ck_assert_msg(still_alive() == 0, "something that gvmm made was not given back");
    free(list);
    list = NULL;
    count = capacity = start = 0;
}

TCase *add_watched_case(Suite *suite, const char *name)
{
    TCase *tests = add_case(suite, name);
    tcase_add_checked_fixture(tests, start_watching, stop_watching);
    return tests;
}

/* ---- what was seen ---- */

void watch(void)
{
    pthread_mutex_lock(&lock);
    start = count;
    pthread_mutex_unlock(&lock);
}

const char *calls_seen(void)
{
    static char text[8192];
    size_t used = 0, from, n;
    seen *all = copy_of_list(&from, &n);
    text[0] = '\0';
    for (size_t i = from; i < n && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > from ? " " : "",
                                 gvmm_driver_call_name(all[i].call));
    free(all);
    return text;
}

typedef struct question {
    bool any_call, failed;
    gvmm_driver_call call;
    uint64_t address, size;
} question;

static unsigned count_seen(question q)
{
    unsigned found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = start; i < count; i++)
        found += (q.any_call || list[i].call == q.call) && (!q.failed || list[i].result != CUDA_SUCCESS) &&
                 (!q.size || list[i].base - q.address < q.size);
    pthread_mutex_unlock(&lock);
    return found;
}

unsigned calls_of(gvmm_driver_call call) { return count_seen((question){.call = call}); }
unsigned calls_failed(void) { return count_seen((question){.any_call = true, .failed = true}); }
unsigned calls_at(gvmm_driver_call call, uint64_t address, size_t size)
{
    return count_seen((question){.call = call, .address = address, .size = size});
}

/* ---- surroundings ---- */

uint64_t block_behind(gvmm_buffer *buffer)
{
    CUdeviceptr behind, end = gvmm_buffer_address(buffer) + gvmm_buffer_size(buffer);
    ck_cu(cu->cuMemAddressReserve(&behind, G, 0, end, 0));
    if (behind == end) return behind;
    free_decoy(behind);
    return 0;
}

gvmm_buffer *chunks(size_t count, uint64_t *decoy)
{
    gvmm_buffer *buffer = buffer_with_hole_behind(plain, G, count * G);
    for (size_t i = 2; i <= count; i++) {
        gvmm_buffer *larger = grow(buffer, i * G);
        gvmm_buffer_release(buffer);
        buffer = larger;
    }
    *decoy = block_behind(buffer);
    return buffer;
}

void drop(gvmm_buffer *buffer, uint64_t decoy)
{
    gvmm_buffer_release(buffer);
    if (decoy) free_decoy(decoy);
}

void ck_intact(gvmm_buffer *buffer, uint64_t address, size_t size, unsigned seed)
{
    ck_assert_uint_eq(gvmm_buffer_address(buffer), address);
    ck_assert_uint_eq(gvmm_buffer_size(buffer), size);
    for (size_t at = 0; at < size; at += G) ck_assert_uint_eq(access_of(address + at, 0), GVMM_ACCESS_READ_WRITE);
    ck_pattern(address, size, seed);
}

bool lacks_second_device(const char *test)
{
    if (device_count > 1) return false;
    printf("skip (hardware): %s: needs two devices\n", test);
    return true;
}

gvmm_resource *resource_with_peer(void)
{
    static const int peers[] = {1};
    gvmm_options options = waiting_options();
    options.peers = peers;
    options.peer_count = 1;
    return resource_with(options);
}

/* ---- waiting ---- */

typedef struct giving_up {
    gvmm_buffer *buffer;
    void (*give_up)(gvmm_buffer *buffer);
    atomic_bool returned;
} giving_up;

static void *run(void *data)
{
    giving_up *g = data;
    g->give_up(g->buffer);
    atomic_store(&g->returned, true);
    return NULL;
}

void close_it(gvmm_buffer *buffer) { ck_ok(gvmm_buffer_close(buffer, NULL)); }
void release_it(gvmm_buffer *buffer) { gvmm_buffer_release(buffer); }

void ck_waits_for(gvmm_stream busy, gvmm_buffer *buffer, void (*give_up)(gvmm_buffer *buffer))
{
    uint64_t address = gvmm_buffer_address(buffer);
    giving_up g = {.buffer = buffer, .give_up = give_up};
    atomic_init(&g.returned, false);
    pthread_t thread;
    gate *work = gate_on(busy);
    ck_cu(cu->cuMemsetD8Async(address, 1, gvmm_buffer_size(buffer), busy)); /* faults if unmapped too early */
    ck_ok(gvmm_faults_set(&(gvmm_fault){.call = "cuStreamSynchronize"}));   /* fails none, counts them as they begin */
    ck_assert_int_eq(pthread_create(&thread, NULL, run, &g), 0);
    while (gvmm_faults_counted() == 0 && !atomic_load(&g.returned)) sched_yield();
    for (int look = 0; look < 50; look++) {
        bool returned = atomic_load(&g.returned);
        ck_assert(!returned);
        ck_mapped(address);
    }
    gate_open(work);
    pthread_join(thread, NULL);
    gate_end(work);
}

/* Contents kept in pinned host memory, and three models that take turns. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "elastic.h"

/* ---- watching the driver's calls, to count what is pinned ---- */

/* Evicts pin on this thread, what is restored is unpinned on gvmm's. */
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct {
        unsigned long long ptr;
        size_t size;
    } pinned[512];
    size_t pinned_bytes, pinned_most, pinned_made;
} seen;

static void see_pinned(const gvmm_trace_record *record)
{
    bool made = record->call == GVMM_CALL_cuMemHostRegister;
    unsigned long long ptr = record->args[0];
    for (size_t i = 0; i < sizeof seen.pinned / sizeof *seen.pinned; i++) {
        if (seen.pinned[i].ptr != (made ? 0 : ptr)) continue;
        seen.pinned_bytes += made ? record->args[1] : 0 - seen.pinned[i].size;
        seen.pinned[i].ptr = made ? ptr : 0;
        seen.pinned[i].size = made ? record->args[1] : 0;
        break;
    }
    if (made) seen.pinned_made++;
    if (seen.pinned_bytes > seen.pinned_most) seen.pinned_most = seen.pinned_bytes;
}

static void see(void *unused, const gvmm_trace_record *record)
{
    (void)unused;
    switch (record->call) {
    case GVMM_CALL_cuMemHostRegister:
    case GVMM_CALL_cuMemHostUnregister:
        pthread_mutex_lock(&seen_lock);
        if (!record->result) see_pinned(record);
        pthread_mutex_unlock(&seen_lock);
        break;
    default: break;
    }
}

/* No resource is alive. */
static void watch_calls(bool on)
{
    static const gvmm_driver *direct;
    gvmm_drain();
    if (on) direct = cu;
    OK(gvmm_driver_install(on ? gvmm_trace_over(direct, see, NULL) : direct));
    OK(gvmm_driver_get(&cu));
}

static void expect_byte(const gvmm_buffer *buffer, size_t offset, unsigned char wanted)
{
    unsigned char got = 0;
    CU(cu->cuMemcpyDtoH(&got, gvmm_buffer_address(buffer) + offset, 1));
    MUST(got == wanted);
}

/* ---- what everything else is measured by ---- */

/* Medians of this run, microseconds: the whole model copied each way in one go by hand. */
static struct {
    double copy_out, copy_in;
} alone;

static double copy_raw(bool out, CUdeviceptr device, void *host, size_t size, CUstream stream)
{
    double start = now();
    if (out) CU(cu->cuMemcpyDtoHAsync(host, device, size, stream));
    else CU(cu->cuMemcpyHtoDAsync(device, host, size, stream));
    CU(cu->cuStreamSynchronize(stream));
    return now() - start;
}

typedef struct touching {
    char *from;
    size_t size;
} touching;

static void *touch(void *data)
{
    const touching *t = data;
    for (size_t i = 0; i < t->size; i += 4096) t->from[i] = 0;
    return NULL;
}

/* Huge pages touched by several threads, then registered. Microseconds of each. */
typedef struct pinning {
    samples touch, pin, both, undo;
} pinning;

static void register_raw(pinning *out, size_t size)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    touching parts[THREADS];
    double start = now();
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(p != MAP_FAILED);
    madvise(p, size, MADV_HUGEPAGE);
    for (size_t i = 0; i < THREADS; i++) {
        parts[i] = (touching){p + size / THREADS * i, size / THREADS};
        MUST(pthread_create(&threads[i], NULL, touch, &parts[i]) == 0);
    }
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    double touched = now();
    CU(cu->cuMemHostRegister(p, size, 0));
    double end = now();
    push(&out->touch, touched - start);
    push(&out->pin, end - touched);
    push(&out->both, end - start);
    start = now();
    CU(cu->cuMemHostUnregister(p));
    munmap(p, size);
    push(&out->undo, now() - start);
}

/* The same, but that each thread registers what it touches, by 256 MiB: does the driver take them side by side? */
typedef struct registering {
    CUcontext context;
    char *pages;
    size_t size;
    atomic_size_t next;
    atomic_bool failed;
} registering;

enum { PART = 256 << 20 };

static void *touch_and_register(void *data)
{
    registering *r = data;
    if (cu->cuCtxSetCurrent(r->context)) atomic_store(&r->failed, true);
    for (size_t at; (at = atomic_fetch_add(&r->next, PART)) < r->size;) {
        touching part = {r->pages + at, r->size - at < PART ? r->size - at : PART};
        touch(&part);
        if (cu->cuMemHostRegister(part.from, part.size, 0)) atomic_store(&r->failed, true);
    }
    return NULL;
}

static double register_side_by_side(size_t size)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    registering r = {.size = size};
    CU(cu->cuCtxGetCurrent(&r.context));
    double start = now();
    r.pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(r.pages != MAP_FAILED);
    madvise(r.pages, size, MADV_HUGEPAGE);
    for (size_t i = 0; i < THREADS; i++) MUST(pthread_create(&threads[i], NULL, touch_and_register, &r) == 0);
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    double took = now() - start;
    MUST(!atomic_load(&r.failed));
    for (size_t at = 0; at < size; at += PART) CU(cu->cuMemHostUnregister(r.pages + at));
    munmap(r.pages, size);
    return took;
}

/* As an evict does it. */
static void pin_backup(size_t size, samples *make, samples *drop)
{
    double start = now();
    void *made = backup_make(size);
    push(make, now() - start);
    MUST(made);
    start = now();
    backup_drop(made);
    push(drop, now() - start);
}

enum { ROUNDS = 2, COPIES = 3 };

static void copies_alone(size_t size)
{
    samples out = room_for(ROUNDS * COPIES), in = room_for(ROUNDS * COPIES);
    samples make = room_for(ROUNDS), drop = room_for(ROUNDS);
    CUstream stream;
    raw_chunk device;
    CU(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    raw_make(&device, size, 0);
    CU(cu->cuMemsetD8(device.address, 1, size));
    raw_wait();
    for (size_t i = 0; i < ROUNDS; i++) {
        void *host;
        double start = now();
        CU(cu->cuMemHostAlloc(&host, size, 0));
        push(&make, now() - start);
        for (size_t k = 0; k < COPIES; k++) {
            push(&out, copy_raw(true, device.address, host, size, stream));
            push(&in, copy_raw(false, device.address, host, size, stream));
        }
        start = now();
        CU(cu->cuMemFreeHost(host));
        push(&drop, now() - start);
    }
    raw_unmake(&device);
    CU(cu->cuStreamDestroy(stream));
    alone.copy_out = samples_median(&out);
    alone.copy_in = samples_median(&in);
    report(&(figure){.name = "pinned_alloc", .size = size, .note = "cuMemHostAlloc alone, nothing of gvmm"}, &make,
           NULL);
    report(&(figure){.name = "pinned_free", .size = size, .note = "cuMemFreeHost alone"}, &drop, NULL);
    report(&(figure){.name = "pinned_copy_out", .size = size, .note = "cuMemcpyDtoHAsync in one go"}, &out, NULL);
    report(&(figure){.name = "pinned_copy_in", .size = size, .note = "cuMemcpyHtoDAsync in one go"}, &in, NULL);
    report_least("pinned_bandwidth_out", size, 0, per_second(size, alone.copy_out), NAN, NAN, "GB/s");
    report_least("pinned_bandwidth_in", size, 0, per_second(size, alone.copy_in), NAN, NAN, "GB/s");
    samples *all[] = {&out, &in, &make, &drop};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) samples_free(all[i]);
}

static void pinning_alone(size_t size)
{
    samples make = room_for(ROUNDS), drop = room_for(ROUNDS), side_by_side = room_for(ROUNDS);
    pinning hand = {room_for(ROUNDS), room_for(ROUNDS), room_for(ROUNDS), room_for(ROUNDS)};
    for (size_t i = 0; i < ROUNDS; i++) {
        register_raw(&hand, size);
        pin_backup(size, &make, &drop);
        push(&side_by_side, register_side_by_side(size));
    }
    report(&(figure){.name = "pinned_backup", .size = size, .note = "raw: mmap, 8 threads touch, register"}, &make,
           &hand.both);
    report(&(figure){.name = "pinned_backup_gone", .size = size, .note = "raw: unregister, munmap"}, &drop, &hand.undo);
    report(&(figure){.name = "pinned_touch", .size = size, .note = "of that by hand"}, &hand.touch, NULL);
    report(&(figure){.name = "pinned_register", .size = size, .note = "of that by hand"}, &hand.pin, NULL);
    report(&(figure){.name = "pinned_side_by_side", .size = size, .note = "8 threads touch and register 256 MiB each"},
           &side_by_side, &hand.both);
    samples *all[] = {&make, &drop, &side_by_side, &hand.touch, &hand.pin, &hand.both, &hand.undo};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) samples_free(all[i]);
}

/* ---- contents kept in pinned host memory ---- */

/* A time, and the bandwidth that comes of it beside that of one copy, `alone_us`; at least 80 % of it where that is the
 * target. */
static void report_way(const char *name, const char *suffix, samples *us, double alone_us, bool is_target, size_t size,
                       size_t chunks)
{
    char time[64], bandwidth[64];
    double pinned = per_second(size, alone_us);
    snprintf(time, sizeof time, "%s%s", name, suffix);
    snprintf(bandwidth, sizeof bandwidth, "%s_bandwidth%s", name, suffix);
    report(&(figure){.name = time, .size = size, .chunks = chunks}, us, NULL);
    report_least(bandwidth, size, chunks, per_second(size, samples_median(us)), pinned, is_target ? 0.8 * pinned : NAN,
                 "GB/s; raw: pinned copy");
}

/* As the caller waits for it: with host memory prepared, and with all that an evict pins itself; until the contents are
 * back, and until the host memory is given up too. */
typedef struct ways {
    samples out, out_unprepared, in, in_all;
} ways;

static void evict_both_ways(gvmm_buffer *buffer, ways *w)
{
    gvmm_resource *resource = gvmm_buffer_resource(buffer);
    for (int prepared = 0; prepared < 2; prepared++) {
        if (prepared) OK(gvmm_resource_prepare_evict(resource, gvmm_buffer_size(buffer)));
        gvmm_drain();
        double start = now();
        evict_with(buffer, GVMM_CONTENTS_HOST);
        push(prepared ? &w->out : &w->out_unprepared, now() - start);
        start = now();
        OK(gvmm_buffer_restore(buffer));
        push(&w->in, now() - start);
        gvmm_drain();
        push(&w->in_all, now() - start);
    }
}

enum { HOST_CYCLES = 3 };

static void evict_to_host(size_t size, size_t chunk)
{
    gvmm_buffer *buffer = buffer_of(size, chunk);
    size_t chunks = size / chunk;
    CU(cu->cuMemsetD8(gvmm_buffer_address(buffer), 0x5a, size));
    raw_wait();
    ways w = {room_for(HOST_CYCLES), room_for(HOST_CYCLES), room_for(2 * HOST_CYCLES), room_for(2 * HOST_CYCLES)};
    double begin = now();
    for (size_t i = 0; i < HOST_CYCLES && (i == 0 || now() - begin < 6e6); i++) evict_both_ways(buffer, &w);
    expect_byte(buffer, 0, 0x5a);
    expect_byte(buffer, size - 1, 0x5a);
    gvmm_buffer_release(buffer);
    report_way("evict_host", "", &w.out, alone.copy_out, true, size, chunks);
    report_way("evict_host", "_unprepared", &w.out_unprepared, alone.copy_out, false, size, chunks);
    report_way("restore_host", "", &w.in, alone.copy_in, true, size, chunks);
    report_way("restore_host", "_all", &w.in_all, alone.copy_in, false, size, chunks);
    samples *all[] = {&w.out, &w.out_unprepared, &w.in, &w.in_all};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) samples_free(all[i]);
}

void contents(void)
{
    size_t size = model_size();
    copies_alone(size);
    pinning_alone(size);
    for (size_t i = 0; i < LAYOUTS; i++) {
        size_t chunk = chunk_of(i, size);
        if (seconds_left() < 15) report_skip("evict_host", size, size / chunk, "no time is left");
        else evict_to_host(size, chunk);
    }
}

/* ---- three models in rotation ---- */

enum { MODELS = 3, TURNS = 10 };

/* One is awake at a time. A turn wakes each of the three; where thirty switches would take too long, ten are made. */
void rotations(void)
{
    size_t size = model_size();
    watch_calls(true);
    memset(&seen, 0, sizeof seen);
    gvmm_buffer *models[MODELS];
    for (size_t i = 0; i < MODELS; i++) {
        models[i] = buffer_of(size, 32 * G);
        CU(cu->cuMemsetD8(gvmm_buffer_address(models[i]), (unsigned char)(i + 1), size));
        raw_wait();
        if (i) evict_with(models[i], GVMM_CONTENTS_HOST);
    }
    gvmm_drain();
    size_t switches = MODELS * TURNS, done = 0, made_before = seen.pinned_made;
    samples each = room_for(switches);
    double begin = now(), budget = seconds_left() * 1e6 - 5e6;
    while (done < switches) {
        double start = now();
        evict_with(models[done % MODELS], GVMM_CONTENTS_HOST);
        OK(gvmm_buffer_restore(models[(done + 1) % MODELS]));
        push(&each, now() - start);
        if (++done == 1 && each.us[0] * (double)switches > budget) switches = TURNS;
        if (seconds_left() < -5) switches = done;
    }
    double took = now() - begin;
    size_t made = seen.pinned_made - made_before; /* by this thread */
    for (size_t i = 0; i < MODELS; i++) {
        OK(gvmm_buffer_restore(models[i]));
        expect_byte(models[i], 0, (unsigned char)(i + 1));
        expect_byte(models[i], size - 1, (unsigned char)(i + 1));
    }
    gvmm_drain();
    report_value("rotation_pinned_left", size / (32 * G), (double)seen.pinned_bytes, NAN, 0,
                 "bytes of pinned memory, all awake again");
    report_value("rotation_pinned_most", size / (32 * G), (double)seen.pinned_most, NAN, NAN,
                 "bytes of pinned memory at a time");
    report_value("rotation_pinned_made", size / (32 * G), (double)made, NAN, NAN, "calls of cuMemHostRegister");
    report_value("rotation_switches", size / (32 * G), (double)switches, NAN, NAN, "evict one and restore the next");
    samples whole = room_for(1);
    push(&whole, took);
    report(&(figure){.name = "rotation_switch", .size = size, .chunks = size / (32 * G)}, &each, NULL);
    report(&(figure){.name = "rotation_total", .size = size, .chunks = size / (32 * G), .note = "all switches"}, &whole,
           NULL);
    samples_free(&each);
    samples_free(&whole);
    for (size_t i = 0; i < MODELS; i++) gvmm_buffer_release(models[i]);
    watch_calls(false);
}

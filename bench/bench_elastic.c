/* Evict and restore, views, deferred release, grows with capacity, each beside the same driver calls by hand.
 *
 *     bench_elastic [--quick] [--only GROUP]
 *
 * On the machine's driver, or with GVMM_DRIVER=sim on the simulated one. README.md says what each figure means. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

static bool quick;
static double began;

/* The whole program is to take less than 100 s: what repeats stops when its share is used up. Microseconds. */
static double seconds_left(void) { return 85 - (now() - began) / 1e6; }

static size_t times(size_t n) { return quick ? (n + 9) / 10 : n; }

/* ---- samples that are not taken by interleave ---- */

static samples room_for(size_t n)
{
    samples s = {malloc((n ? n : 1) * sizeof(double)), 0};
    MUST(s.us);
    return s;
}

static void push(samples *s, double value) { s->us[s->count++] = value; }

static double per_second(size_t bytes, double us) { return (double)bytes / us / 1e3; } /* GB/s, of 10^9 bytes */

/* ---- watching the driver's calls: on in the groups that count or split, off in those that time the shortest ---- */

static const gvmm_driver *direct;

/* One thread makes the calls that are counted. */
static struct {
    double us[GVMM_CALL_COUNT];
    double first_copy, last_wait; /* begin, end */
    struct {
        unsigned long long ptr;
        size_t size;
    } pinned[64];
    size_t pinned_bytes, pinned_most, pinned_made;
} seen;

static void see_pinned(const gvmm_trace_record *record)
{
    bool made = record->call == GVMM_CALL_cuMemHostAlloc;
    unsigned long long ptr = record->args[0];
    if (made) memcpy(&ptr, (const void *)(uintptr_t)record->args[0], sizeof(void *));
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
    double end = now(), took = (double)record->nanoseconds / 1e3;
    seen.us[record->call] += took;
    switch (record->call) {
    case GVMM_CALL_cuMemcpyDtoHAsync:
    case GVMM_CALL_cuMemcpyHtoDAsync:
        if (!seen.first_copy) seen.first_copy = end - took;
        break;
    case GVMM_CALL_cuStreamSynchronize:
        if (seen.first_copy) seen.last_wait = end;
        break;
    case GVMM_CALL_cuMemHostAlloc:
    case GVMM_CALL_cuMemFreeHost:
        if (!record->result) see_pinned(record);
        break;
    default: break;
    }
}

/* No resource is alive. */
static void watch_calls(bool on)
{
    gvmm_drain();
    OK(gvmm_driver_install(on ? gvmm_trace_over(direct, see, NULL) : direct));
    OK(gvmm_driver_get(&cu));
}

static void forget_times(void)
{
    memset(seen.us, 0, sizeof seen.us);
    seen.first_copy = seen.last_wait = 0;
}

/* ---- sizes ---- */

static size_t host_available(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    size_t kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %zu", &kib) == 1) break;
    if (f) fclose(f);
    return kib << 10;
}

/* 8 GiB, or what fits three times into the device and into half of the host's memory. */
static size_t model_size(void)
{
    size_t size = (on_sim ? (quick ? 64 : 256) : quick ? 1024 : 8192) * MiB;
    while (size > 64 * MiB && (3 * size > host_available() / 2 || !fits(3 * size + 64 * MiB))) size /= 2;
    return size;
}

/* Whole, by 64 MiB, by 2 MiB. */
enum { LAYOUTS = 3 };
static size_t chunk_of(size_t layout, size_t size) { return layout == 0 ? size : layout == 1 ? 32 * G : G; }

static gvmm_resource *resource_of(size_t chunk)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.chunk_size = chunk;
    gvmm_resource *resource;
    OK(gvmm_resource_create(&resource, 0, &options));
    return resource;
}

static gvmm_buffer *buffer_of(size_t size, size_t chunk)
{
    gvmm_resource *resource = resource_of(chunk);
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create(&buffer, resource, size, NULL));
    gvmm_resource_release(resource);
    return buffer;
}

static void evict_with(gvmm_buffer *buffer, gvmm_contents contents)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = contents;
    OK(gvmm_buffer_evict(buffer, &options));
}

/* ---- contents kept in pinned host memory ---- */

typedef struct direction {
    const char *name, *total, *without, *copy; /* the figures' */
    double pinned;                             /* GB/s by hand, in one go */
} direction;

static direction out_of = {"evict_host", "evict_host_bandwidth_all", "evict_host_bandwidth",
                           "evict_host_bandwidth_copy", NAN};
static direction back_in = {"restore_host", "restore_host_bandwidth_all", "restore_host_bandwidth",
                            "restore_host_bandwidth_copy", NAN};

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

/* The other way to pinned memory: huge pages touched by several threads, then registered. Microseconds, or NAN. */
static double register_raw(size_t size, double *undo_us)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    touching parts[THREADS];
    double start = now();
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NAN;
    madvise(p, size, MADV_HUGEPAGE);
    for (size_t i = 0; i < THREADS; i++) {
        parts[i] = (touching){p + size / THREADS * i, size / THREADS};
        MUST(pthread_create(&threads[i], NULL, touch, &parts[i]) == 0);
    }
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CUresult status = cu->cuMemHostRegister(p, size, 0);
    double took = status ? NAN : now() - start;
    start = now();
    if (!status) CU(cu->cuMemHostUnregister(p));
    munmap(p, size);
    *undo_us = now() - start;
    return took;
}

/* What everything else of this group is measured by; and what pinned memory itself costs. */
static void pinned_memory(size_t size)
{
    enum { ROUNDS = 2, COPIES = 3 };
    samples out = room_for(ROUNDS * COPIES), in = room_for(ROUNDS * COPIES), make = room_for(ROUNDS),
            drop = room_for(ROUNDS);
    samples other = room_for(ROUNDS), other_drop = room_for(ROUNDS);
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
    for (size_t i = 0; i < ROUNDS; i++) {
        double undo, took = register_raw(size, &undo);
        if (isnan(took)) break;
        push(&other, took);
        push(&other_drop, undo);
    }
    raw_unmake(&device);
    CU(cu->cuStreamDestroy(stream));
    out_of.pinned = per_second(size, samples_median(&out));
    back_in.pinned = per_second(size, samples_median(&in));
    report(&(figure){.name = "pinned_alloc", .size = size, .note = "cuMemHostAlloc alone, nothing of gvmm"}, &make,
           NULL);
    report(&(figure){.name = "pinned_free", .size = size, .note = "cuMemFreeHost alone"}, &drop, NULL);
    if (other.count) {
        report(&(figure){.name = "pinned_register",
                         .size = size,
                         .note = "mmap, huge pages, 8 threads touch, cuMemHostRegister; raw: cuMemHostAlloc"},
               &other, &make);
        report(&(figure){.name = "pinned_unregister", .size = size, .note = "and munmap; raw: cuMemFreeHost"},
               &other_drop, &drop);
    }
    report(&(figure){.name = "pinned_copy_out", .size = size, .note = "cuMemcpyDtoHAsync in one go"}, &out, NULL);
    report(&(figure){.name = "pinned_copy_in", .size = size, .note = "cuMemcpyHtoDAsync in one go"}, &in, NULL);
    report_least("pinned_bandwidth_out", size, 0, out_of.pinned, NAN, NAN, "GB/s");
    report_least("pinned_bandwidth_in", size, 0, back_in.pinned, NAN, NAN, "GB/s");
    samples *all[] = {&out, &in, &make, &drop, &other, &other_drop};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) samples_free(all[i]);
}

/* Of one operation: in all, without making and freeing pinned memory, from the first copy to the end of the wait for
 * all. */
typedef struct split {
    samples total, without, copy;
} split;

static void take(split *s, double total)
{
    push(&s->total, total);
    push(&s->without, total - seen.us[GVMM_CALL_cuMemHostAlloc] - seen.us[GVMM_CALL_cuMemFreeHost]);
    push(&s->copy, seen.last_wait - seen.first_copy);
}

static void report_split(split *s, const direction *d, size_t size, size_t chunks)
{
    double copy = samples_median(&s->copy), without = samples_median(&s->without), pinned = d->pinned;
    report(
        &(figure){.name = d->name, .size = size, .chunks = chunks, .note = "pinned memory made or freed is included"},
        &s->total, NULL);
    report_least(d->total, size, chunks, per_second(size, samples_median(&s->total)), pinned, NAN,
                 "GB/s, all; raw: pinned copy");
    report_least(d->without, size, chunks, per_second(size, without), pinned, 0.8 * pinned,
                 "GB/s, all but cuMemHostAlloc and cuMemFreeHost; raw: pinned copy");
    report_least(d->copy, size, chunks, per_second(size, copy), pinned, 0.8 * pinned,
                 "GB/s, first copy to last; raw: pinned copy");
    samples_free(&s->total);
    samples_free(&s->without);
    samples_free(&s->copy);
}

enum { HOST_CYCLES = 3 };

static void evict_to_host(size_t size, size_t chunk)
{
    gvmm_buffer *buffer = buffer_of(size, chunk);
    CU(cu->cuMemsetD8(gvmm_buffer_address(buffer), 0x5a, size));
    raw_wait();
    split out = {room_for(HOST_CYCLES), room_for(HOST_CYCLES), room_for(HOST_CYCLES)};
    split in = {room_for(HOST_CYCLES), room_for(HOST_CYCLES), room_for(HOST_CYCLES)};
    double begin = now();
    for (size_t i = 0; i < HOST_CYCLES && (i == 0 || now() - begin < 4e6); i++) {
        forget_times();
        double start = now();
        evict_with(buffer, GVMM_CONTENTS_HOST);
        take(&out, now() - start);
        forget_times();
        start = now();
        OK(gvmm_buffer_restore(buffer));
        take(&in, now() - start);
    }
    unsigned char last = 0;
    CU(cu->cuMemcpyDtoH(&last, gvmm_buffer_address(buffer) + size - 1, 1));
    MUST(last == 0x5a);
    gvmm_buffer_release(buffer);
    report_split(&out, &out_of, size, size / chunk);
    report_split(&in, &back_in, size, size / chunk);
}

static void contents(void)
{
    size_t size = model_size();
    watch_calls(true);
    pinned_memory(size);
    for (size_t i = 0; i < LAYOUTS; i++) {
        size_t chunk = chunk_of(i, size);
        if (seconds_left() < 15) report_skip("evict_host", size, size / chunk, "no time is left");
        else evict_to_host(size, chunk);
    }
    watch_calls(false);
}

/* ---- evict and restore without contents ---- */

/* Both halves are timed; the warm-up is among the samples of each and taken out. */
typedef struct sleeper {
    gvmm_buffer *buffer;
    CUdeviceptr base;
    size_t size, chunk;
    CUmemGenericAllocationHandle *handles;
    samples asleep, awake;
} sleeper;

static double cycle_gvmm(void *state)
{
    sleeper *s = state;
    double start = now();
    evict_with(s->buffer, GVMM_CONTENTS_DROP);
    double middle = now();
    OK(gvmm_buffer_restore(s->buffer));
    double end = now();
    push(&s->asleep, middle - start);
    push(&s->awake, end - middle);
    return end - start;
}

static void wake_raw(const sleeper *s)
{
    for (size_t i = 0; i < s->size / s->chunk; i++) {
        CUdeviceptr at = s->base + i * s->chunk;
        CU(cu->cuMemCreate(&s->handles[i], s->chunk, &raw_prop, 0));
        CU(cu->cuMemMap(at, s->chunk, 0, s->handles[i], 0));
        CU(cu->cuMemSetAccess(at, s->chunk, &raw_access, 1));
    }
}

static void sleep_raw(const sleeper *s)
{
    raw_wait();
    for (size_t i = 0; i < s->size / s->chunk; i++) {
        CU(cu->cuMemUnmap(s->base + i * s->chunk, s->chunk));
        CU(cu->cuMemRelease(s->handles[i]));
    }
}

static double cycle_raw(void *state)
{
    sleeper *s = state;
    double start = now();
    sleep_raw(s);
    double middle = now();
    wake_raw(s);
    double end = now();
    push(&s->asleep, middle - start);
    push(&s->awake, end - middle);
    return end - start;
}

static void drop_warmup(samples *s, size_t batch)
{
    s->count -= batch;
    memmove(s->us, s->us + batch, s->count * sizeof *s->us);
}

static void evict_and_drop(size_t size, size_t chunk, size_t n)
{
    sleeper ours = {.buffer = buffer_of(size, chunk), .size = size, .chunk = chunk},
            hand = {.size = size, .chunk = chunk};
    size_t chunks = size / chunk;
    hand.handles = malloc(chunks * sizeof *hand.handles);
    MUST(hand.handles);
    CU(cu->cuMemAddressReserve(&hand.base, size, 0, 0, 0));
    wake_raw(&hand);
    sleeper *both[] = {&ours, &hand};
    for (size_t i = 0; i < 2; i++) {
        both[i]->asleep = room_for(n + 4);
        both[i]->awake = room_for(n + 4);
    }
    side sides[] = {{cycle_gvmm, &ours}, {cycle_raw, &hand}};
    samples s[2];
    interleave(s, sides, 2, n, 1);
    for (size_t i = 0; i < 2; i++) {
        drop_warmup(&both[i]->asleep, 1);
        drop_warmup(&both[i]->awake, 1);
    }
    report(&(figure){.name = "evict_drop", .size = size, .chunks = chunks, .per_chunk = true}, &ours.asleep,
           &hand.asleep);
    report(&(figure){.name = "restore_drop", .size = size, .chunks = chunks, .per_chunk = true}, &ours.awake,
           &hand.awake);
    report(&(figure){.name = "evict_restore_drop", .size = size, .chunks = chunks, .per_chunk = true}, &s[0], &s[1]);
    report_value("evict_restore_drop_ratio", chunks, samples_median(&s[0]) / samples_median(&s[1]), NAN, 1.05,
                 "gvmm / raw");
    for (size_t i = 0; i < 2; i++) {
        samples_free(&both[i]->asleep);
        samples_free(&both[i]->awake);
        samples_free(&s[i]);
    }
    sleep_raw(&hand);
    CU(cu->cuMemAddressFree(hand.base, size));
    free(hand.handles);
    gvmm_buffer_release(ours.buffer);
}

static void without_contents(void)
{
    static const size_t n[LAYOUTS] = {100, 40, 10};
    size_t size = (quick ? 1024 : 8192) * MiB;
    while (size > 64 * MiB && !fits(2 * size + 64 * MiB)) size /= 2;
    for (size_t i = 0; i < LAYOUTS; i++) evict_and_drop(size, chunk_of(i, size), quick ? 4 : n[i]);
}

/* ---- three models in rotation ---- */

enum { MODELS = 3, TURNS = 10 };

static void expect_byte(const gvmm_buffer *buffer, size_t offset, unsigned char wanted)
{
    unsigned char got = 0;
    CU(cu->cuMemcpyDtoH(&got, gvmm_buffer_address(buffer) + offset, 1));
    MUST(got == wanted);
}

/* One is awake at a time. A turn wakes each of the three; where thirty switches would take too long, ten are made. */
static void rotations(void)
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
    size_t made = seen.pinned_made - made_before;
    for (size_t i = 0; i < MODELS; i++) {
        OK(gvmm_buffer_restore(models[i]));
        expect_byte(models[i], 0, (unsigned char)(i + 1));
        expect_byte(models[i], size - 1, (unsigned char)(i + 1));
    }
    report_value("rotation_pinned_left", size / (32 * G), (double)seen.pinned_bytes, NAN, 0,
                 "bytes of pinned memory, all awake again");
    report_value("rotation_pinned_most", size / (32 * G), (double)seen.pinned_most, NAN, NAN,
                 "bytes of pinned memory at a time");
    report_value("rotation_pinned_made", size / (32 * G), (double)made, NAN, NAN, "calls of cuMemHostAlloc");
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

/* ---- linear in the chunks touched ---- */

typedef enum view_kind { SHRINK, RING, CONCATENATE, PIECES, EVICT, RESTORE, KINDS } view_kind;

static const char *const view_names[KINDS] = {"view_shrink", "view_ring",  "view_concatenate",
                                              "view_pieces", "long_evict", "long_restore"};

static double shrink_gvmm(gvmm_buffer **out, gvmm_buffer *buffer, size_t size)
{
    double start = now();
    OK(gvmm_buffer_shrink(out, buffer, size));
    return now() - start;
}

static double compose_gvmm(gvmm_buffer **out, gvmm_buffer *buffer, const gvmm_piece *pieces, size_t count)
{
    double start = now();
    OK(gvmm_buffer_compose(out, gvmm_buffer_resource(buffer), pieces, count, NULL));
    return now() - start;
}

static double ring_gvmm(gvmm_buffer **out, gvmm_buffer *buffer)
{
    double start = now();
    OK(gvmm_buffer_ring(out, buffer, 2));
    return now() - start;
}

/* The same memory by hand, its handles known. */
static double ring_raw(const CUmemGenericAllocationHandle *handles, size_t count)
{
    CUdeviceptr base;
    double start = now();
    CU(cu->cuMemAddressReserve(&base, 2 * count * G, 0, 0, 0));
    for (size_t i = 0; i < 2 * count; i++) {
        CU(cu->cuMemMap(base + i * G, G, 0, handles[i % count], 0));
        CU(cu->cuMemSetAccess(base + i * G, G, &raw_access, 1));
    }
    double took = now() - start;
    CU(cu->cuMemUnmap(base, 2 * count * G));
    CU(cu->cuMemAddressFree(base, 2 * count * G));
    return took;
}

/* Each chunk of the first quarter a piece of its own, in reverse. */
static double pieces_gvmm(gvmm_buffer **out, gvmm_buffer *buffer, size_t count)
{
    gvmm_piece *pieces = calloc(count, sizeof *pieces);
    MUST(pieces);
    for (size_t i = 0; i < count; i++) pieces[i] = (gvmm_piece){buffer, (count - 1 - i) * G, G, false};
    double took = compose_gvmm(out, buffer, pieces, count);
    free(pieces);
    return took;
}

enum { VIEW_ROUNDS = 3 };

typedef struct views {
    samples times[KINDS], raw_ring;
} views;

static void view_round(views *v, gvmm_buffer *buffer, size_t chunks, const CUmemGenericAllocationHandle *handles)
{
    size_t quarter = chunks / 4;
    gvmm_buffer *part, *made;
    push(&v->times[SHRINK], shrink_gvmm(&part, buffer, quarter * G));
    push(&v->times[RING], ring_gvmm(&made, part));
    gvmm_buffer_release(made);
    push(&v->raw_ring, ring_raw(handles, quarter));
    for (size_t i = 0; i < quarter; i++) CU(cu->cuMemRelease(handles[i]));
    gvmm_piece pieces[] = {{buffer, quarter * G, quarter * G, false}, {part, 0, 0, false}};
    push(&v->times[CONCATENATE], compose_gvmm(&made, buffer, pieces, 2));
    gvmm_buffer_release(made);
    if (chunks <= 8192) {
        push(&v->times[PIECES], pieces_gvmm(&made, buffer, quarter));
        gvmm_buffer_release(made);
    }
    gvmm_buffer_release(part);
    double start = now();
    evict_with(buffer, GVMM_CONTENTS_DROP);
    double middle = now();
    OK(gvmm_buffer_restore(buffer));
    push(&v->times[EVICT], middle - start);
    push(&v->times[RESTORE], now() - middle);
}

/* Chunks that an operation touches in a range of so many. */
static size_t touched(view_kind kind, size_t chunks)
{
    switch (kind) {
    case SHRINK: return chunks - chunks / 4; /* those it leaves out: the rest is shared */
    case RING:
    case CONCATENATE: return chunks / 2;
    case PIECES: return chunks / 4;
    default: return chunks;
    }
}

static void view_lengths(double by_chunk[KINDS], double *raw_ring, size_t chunks, size_t rounds)
{
    gvmm_buffer *buffer = buffer_of(chunks * G, G);
    size_t quarter = chunks / 4;
    CUmemGenericAllocationHandle *handles = malloc(quarter * sizeof *handles);
    MUST(handles);
    views v;
    for (size_t k = 0; k < KINDS; k++) v.times[k] = room_for(rounds);
    v.raw_ring = room_for(rounds);
    for (size_t r = 0; r < rounds; r++) { /* new memory after each restore */
        for (size_t i = 0; i < quarter; i++)
            CU(cu->cuMemRetainAllocationHandle(&handles[i], (void *)(uintptr_t)(gvmm_buffer_address(buffer) + i * G)));
        view_round(&v, buffer, chunks, handles);
    }
    for (size_t k = 0; k < KINDS; k++) {
        size_t per = touched((view_kind)k, chunks);
        if (!v.times[k].count) {
            report_skip(view_names[k], G, chunks, "one piece a chunk: looked for from the end each");
        } else {
            report(
                &(figure){.name = view_names[k], .size = G, .chunks = chunks, .per = per, .note = "by chunk touched"},
                &v.times[k], k == RING || k == CONCATENATE ? &v.raw_ring : NULL);
            by_chunk[k] = samples_median(&v.times[k]) / (double)per;
        }
        samples_free(&v.times[k]);
    }
    *raw_ring = samples_median(&v.raw_ring) / (double)touched(RING, chunks);
    samples_free(&v.raw_ring);
    free(handles);
    gvmm_buffer_release(buffer);
}

static void long_ranges(void)
{
    static const size_t lengths[] = {1024, 8192, 32768};
    double first[KINDS], last[KINDS], raw_first = NAN, raw_last = NAN;
    size_t longest = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t chunks = lengths[i];
        if ((quick && chunks > 1024) || !fits(chunks * G + 64 * MiB)) {
            report_skip("view_ring", G, chunks, quick ? "--quick" : "does not fit in device memory");
            continue;
        }
        view_lengths(last, &raw_last, chunks, chunks > 8192 ? 1 : VIEW_ROUNDS);
        if (!longest) memcpy(first, last, sizeof first), raw_first = raw_last;
        longest = chunks;
    }
    for (size_t k = 0; longest && k < KINDS; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s_linearity", view_names[k]);
        report_value(name, k == PIECES && longest > 8192 ? 8192 : longest, last[k] / first[k],
                     k == RING || k == CONCATENATE ? raw_last / raw_first : NAN, NAN,
                     "time by chunk touched at this length / at 1024");
    }
}

/* ---- deferred release: work that lasts until it is told, or for so long ---- */

static const char spin_ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                               ".visible .entry spin(.param .u64 flag, .param .u64 ns)\n{\n"
                               ".reg .pred %p<3>;\n.reg .u32 %r<2>;\n.reg .u64 %d<5>;\n"
                               "ld.param.u64 %d1, [flag];\nld.param.u64 %d2, [ns];\n"
                               "mov.u64 %d3, %globaltimer;\nadd.u64 %d3, %d3, %d2;\n"
                               "again:\nld.volatile.global.u32 %r1, [%d1];\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra done;\n"
                               "mov.u64 %d4, %globaltimer;\nsetp.lt.u64 %p2, %d4, %d3;\n@%p2 bra again;\n"
                               "done:\nret;\n}\n";

/* A kernel that polls a flag in pinned memory; where there are no kernels, a host function that waits on a
 * semaphore. */
static struct {
    CUstream stream;
    CUmodule module; /* NULL: no kernel */
    CUfunction kernel;
    atomic_uint *flag; /* pinned */
    CUdeviceptr flag_there;
    sem_t told;
    double longest; /* us, of the host function */
} work;

static double busy_us(void) { return on_sim || quick ? 30e3 : 300e3; }

static void wait_on_driver_thread(void *unused)
{
    (void)unused;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    long ns = until.tv_nsec + (long)(work.longest * 1e3) % 1000000000L;
    until.tv_sec += (time_t)(work.longest / 1e6) + ns / 1000000000L;
    until.tv_nsec = ns % 1000000000L;
    while (sem_timedwait(&work.told, &until) && errno == EINTR) {}
}

/* Ends when told, or after `us`. */
static void work_begin(double us)
{
    if (work.module) {
        atomic_store(work.flag, 0);
        unsigned long long ns = (unsigned long long)(us * 1e3);
        void *args[] = {&work.flag_there, &ns};
        CU(cu->cuLaunchKernel(work.kernel, 1, 1, 1, 1, 1, 1, 0, work.stream, args, NULL));
    } else {
        work.longest = us;
        CU(cu->cuLaunchHostFunc(work.stream, wait_on_driver_thread, NULL));
    }
}

/* Returns when it told. */
static double work_end(void)
{
    double at = now();
    if (work.module) atomic_store(work.flag, 1);
    else sem_post(&work.told);
    return at;
}

static void work_start(void)
{
    void *flag;
    CU(cu->cuStreamCreate(&work.stream, CU_STREAM_NON_BLOCKING));
    sem_init(&work.told, 0, 0);
    CU(cu->cuMemHostAlloc(&flag, 4096, 0));
    work.flag = flag;
    bool can = !cu->cuMemHostGetDevicePointer(&work.flag_there, flag, 0) &&
               !cu->cuModuleLoadData(&work.module, spin_ptx);
    if (can) can = !cu->cuModuleGetFunction(&work.kernel, work.module, "spin");
    if (!can) work.module = NULL;
    work_begin(1e3); /* the first launch takes longer */
    CU(cu->cuStreamSynchronize(work.stream));
}

static void work_stop(void)
{
    if (work.module) CU(cu->cuModuleUnload(work.module));
    CU(cu->cuMemFreeHost(work.flag));
    CU(cu->cuStreamDestroy(work.stream));
    sem_destroy(&work.told);
}

static const char *work_note(void) { return work.module ? "a spinning kernel" : "a waiting host function"; }

static void sleep_until(double when)
{
    for (double left; (left = when - now()) > 0;) {
        struct timespec t = {(time_t)(left / 1e6), (long)(left * 1e3) % 1000000000L};
        nanosleep(&t, NULL);
    }
}

/* Looks every few microseconds, and leaves the processor to the worker in between. */
static double until_memory_is_back(const gvmm_resource *resource, uint64_t wanted)
{
    for (;;) {
        gvmm_stats stats;
        gvmm_get_stats(resource, &stats);
        if (stats.physical_bytes <= wanted) return now();
        nanosleep(&(struct timespec){0, 2000}, NULL);
    }
}

static void make_many(gvmm_buffer **list, gvmm_resource *resource, size_t size, size_t count)
{
    for (size_t i = 0; i < count; i++) OK(gvmm_buffer_create(&list[i], resource, size, work.stream));
}

/* `count` closes in a row while the stream is busy. */
static void closes(gvmm_resource *resource, size_t size, size_t count)
{
    gvmm_buffer **list = malloc(count * sizeof *list);
    MUST(list);
    samples ours = room_for(count), free_raw = room_for(3), first_back = room_for(1), all_back = room_for(1);
    make_many(list, resource, size, count);
    double start = now();
    work_begin(4 * busy_us());
    for (size_t i = 0; i < count; i++) {
        double at = now();
        OK(gvmm_buffer_close_deferred(list[i], NULL));
        push(&ours, now() - at);
    }
    bool busy = cu->cuStreamQuery(work.stream) == CUDA_ERROR_NOT_READY;
    sleep_until(start + busy_us());
    double end = work_end();
    push(&first_back, until_memory_is_back(resource, (count - 1) * size) - end);
    push(&all_back, until_memory_is_back(resource, 0) - end);
    gvmm_drain();
    for (size_t i = 0; i < count; i++) gvmm_buffer_release(list[i]);
    free(list);

    for (size_t i = 0; i < (quick ? 1 : 3); i++) { /* plain memory, which the device must be done with */
        CUdeviceptr plain;
        CU(cu->cuMemAlloc(&plain, size));
        work_begin(busy_us());
        double at = now();
        CU(cu->cuMemFree(plain));
        push(&free_raw, now() - at);
        CU(cu->cuStreamSynchronize(work.stream));
    }
    /* What the driver needs for as many, when nothing is to be waited for. */
    samples floor = room_for(1);
    raw_chunk *row = malloc(count * sizeof *row);
    MUST(row);
    for (size_t i = 0; i < count; i++) raw_make(&row[i], size, 0);
    double at = now();
    for (size_t i = 0; i < count; i++) raw_unmake(&row[i]);
    push(&floor, now() - at);
    free(row);

    figure f = {
        .name = "close_deferred", .size = size, .chunks = count, .note = "raw: cuMemFree, which waits for the work"};
    report(&f, &ours, &free_raw);
    report_least("close_deferred_outlasted", size, count, busy, NAN, 1, "1: the work outlasted all calls");
    report_value("close_deferred_median", count, samples_median(&ours), NAN, 5, "us");
    report_value("close_deferred_p99", count, samples_quantile(&ours, 0.99), NAN, 50, "us");
    report(&(figure){.name = "deferred_first_back", .size = size, .chunks = count, .note = "from the end of the work"},
           &first_back, NULL);
    report(&(figure){.name = "deferred_all_back",
                     .size = size,
                     .chunks = count,
                     .note = "from the end of the work; raw: unmap, release, address free of as many"},
           &all_back, &floor);
    samples *all[] = {&ours, &free_raw, &first_back, &all_back, &floor};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) samples_free(all[i]);
}

/* One buffer, closed while work runs: how soon after its end is the memory back? */
static void one_comes_back(gvmm_resource *resource)
{
    size_t n = quick ? 2 : on_sim ? 20 : 10;
    samples back = room_for(n);
    for (size_t i = 0; i < n; i++) {
        gvmm_buffer *buffer;
        make_many(&buffer, resource, G, 1);
        double start = now();
        work_begin(4 * busy_us());
        OK(gvmm_buffer_close_deferred(buffer, NULL));
        gvmm_buffer_release(buffer);
        sleep_until(start + busy_us() + (double)i * 77); /* not in step with what looks */
        double end = work_end();
        push(&back, until_memory_is_back(resource, 0) - end);
        gvmm_drain();
    }
    report(&(figure){.name = "deferred_back", .size = G, .chunks = 1, .note = "one closed; from the end of the work"},
           &back, NULL);
    report_value("deferred_back_most", 1, samples_quantile(&back, 1), NAN, 1000, "us, the longest");
    samples_free(&back);
}

/* Bytes that gvmm has asked for. */
static atomic_size_t live_bytes;

static void *counting_allocate(size_t size)
{
    size_t *p = malloc(size + 16);
    MUST(p);
    *p = size;
    live_bytes += size;
    return p + 2;
}

static void counting_deallocate(void *ptr)
{
    if (!ptr) return;
    size_t *p = (size_t *)ptr - 2;
    live_bytes -= *p;
    free(p);
}

static size_t from_proc(const char *key)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    size_t value = 0, length = strlen(key);
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, length) == 0) value = strtoull(line + length, NULL, 10);
    if (f) fclose(f);
    return value;
}

/* Ten thousand in flight. Their handles are given up, so that what is left of each is its chunk, which was there
 * before, and what gvmm remembers of the release. */
static void many_in_flight(void)
{
    size_t count = times(10000);
    while (count > 16 && !fits(count * G + 64 * MiB)) count /= 2;
    OK(gvmm_host_allocator_install(&(gvmm_host_allocator){counting_allocate, counting_deallocate}));
    gvmm_resource *resource;
    OK(gvmm_resource_create(&resource, 0, NULL));
    gvmm_buffer **list = malloc(count * sizeof *list), *alias, *first;
    MUST(list);
    make_many(&first, resource, G, 1);
    size_t before = live_bytes;
    OK(gvmm_buffer_grow(&alias, first, 0, NULL)); /* a handle and nothing else */
    size_t handle = live_bytes - before;
    gvmm_buffer_release(alias);
    OK(gvmm_buffer_close_deferred(first, NULL)); /* starts what there is to start */
    gvmm_drain();
    gvmm_buffer_release(first);

    size_t nothing = live_bytes;
    make_many(list, resource, G, count);
    size_t open = live_bytes, rss = from_proc("VmRSS:"), threads = from_proc("Threads:");
    samples each = room_for(count), back = room_for(1);
    double start = now();
    work_begin(4 * busy_us());
    for (size_t i = 0; i < count; i++) {
        double at = now();
        OK(gvmm_buffer_close_deferred(list[i], NULL));
        gvmm_buffer_release(list[i]);
        push(&each, now() - at);
    }
    size_t waiting = live_bytes, rss_more = from_proc("VmRSS:"), threads_more = from_proc("Threads:");
    gvmm_stats stats;
    gvmm_get_stats(NULL, &stats);
    sleep_until(start + busy_us());
    double end = work_end();
    push(&back, until_memory_is_back(resource, 0) - end);
    gvmm_drain();
    MUST(live_bytes == nothing);
    double n = (double)count;
    report(&(figure){.name = "in_flight_close", .size = G, .chunks = count, .note = "and its handle given up"}, &each,
           NULL);
    report(&(figure){.name = "in_flight_all_back", .size = G, .chunks = count}, &back, NULL);
    report_least("in_flight_waiting", G, count, (double)stats.releases_waiting, NAN, n, "releases in flight at once");
    report_value("in_flight_close_most", count, samples_quantile(&each, 1), NAN, NAN, "us, the longest call");
    report_value("in_flight_bytes", count, ((double)waiting - (double)open) / n + (double)handle, NAN, 128,
                 "bytes of gvmm for a release in flight, besides the chunk's");
    report_value("in_flight_bytes_with_chunk", count, ((double)waiting - (double)nothing) / n, NAN, NAN,
                 "bytes of gvmm in all");
    report_value("in_flight_resident_rise", count, ((double)rss_more - (double)rss) * 1024 / n, NAN, NAN,
                 "bytes of the process by release, the driver's events too");
    report_value("in_flight_threads", count, (double)threads_more - (double)threads, NAN, 0,
                 "threads more than when all were open");
    samples_free(&each);
    samples_free(&back);
    free(list);
    gvmm_resource_release(resource);
    OK(gvmm_host_allocator_install(NULL));
}

static void deferred(void)
{
    work_start();
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: short sleeps are short */
    fprintf(stderr, "bench_elastic: the stream is kept busy by %s\n", work_note());
    gvmm_resource *resource;
    OK(gvmm_resource_create(&resource, 0, NULL));
    gvmm_buffer *first;
    make_many(&first, resource, G, 1);
    OK(gvmm_buffer_close_deferred(first, NULL)); /* starts the worker */
    gvmm_drain();
    gvmm_buffer_release(first);
    closes(resource, G, times(1000));
    if (fits(20 * 512 * MiB)) closes(resource, 512 * MiB, times(20));
    else report_skip("close_deferred", 512 * MiB, 20, "does not fit in device memory");
    one_comes_back(resource);
    gvmm_resource_release(resource);
    many_in_flight();
    work_stop();
}

/* ---- grows with capacity reserved ---- */

enum { GROWS = 1000 };

static void climb_gvmm(samples *out, gvmm_resource *resource)
{
    static gvmm_buffer *steps[GROWS + 1];
    OK(gvmm_buffer_create_with_capacity(&steps[0], resource, G, (GROWS + 1) * G, NULL));
    gvmm_stats before, after;
    gvmm_get_stats(NULL, &before);
    for (size_t i = 0; i < GROWS; i++) {
        double start = now();
        OK(gvmm_buffer_grow(&steps[i + 1], steps[i], (i + 2) * G, NULL));
        push(out, now() - start);
    }
    gvmm_get_stats(NULL, &after);
    MUST(after.driver_calls - before.driver_calls == 3 * GROWS);
    uint64_t address = gvmm_buffer_address(steps[0]);
    for (size_t i = 0; i <= GROWS; i++) {
        MUST(gvmm_buffer_address(steps[i]) == address);
        gvmm_buffer_release(steps[i]);
    }
}

static void climb_raw(samples *out)
{
    static CUmemGenericAllocationHandle handles[GROWS + 1];
    CUdeviceptr base;
    CU(cu->cuMemAddressReserve(&base, (GROWS + 1) * G, 0, 0, 0));
    for (size_t i = 0; i <= GROWS; i++) {
        double start = now();
        CU(cu->cuMemCreate(&handles[i], G, &raw_prop, 0));
        CU(cu->cuMemMap(base + i * G, G, 0, handles[i], 0));
        CU(cu->cuMemSetAccess(base + i * G, G, &raw_access, 1));
        if (i) push(out, now() - start); /* the first is there from the beginning */
    }
    for (size_t i = 0; i <= GROWS; i++) {
        CU(cu->cuMemUnmap(base + i * G, G));
        CU(cu->cuMemRelease(handles[i]));
    }
    CU(cu->cuMemAddressFree(base, (GROWS + 1) * G));
}

static void grows_with_capacity(void)
{
    if (!fits((GROWS + 1) * G)) {
        report_skip("grow_capacity", G, GROWS, "does not fit in device memory");
        return;
    }
    size_t rounds = times(10);
    gvmm_resource *resource;
    OK(gvmm_resource_create(&resource, 0, NULL));
    samples ours = room_for(2 * rounds * GROWS), raw = room_for(2 * rounds * GROWS);
    for (size_t i = 0; i < rounds; i++) {
        climb_gvmm(&ours, resource);
        climb_raw(&raw);
        climb_raw(&raw);
        climb_gvmm(&ours, resource);
    }
    report(
        &(figure){
            .name = "grow_capacity", .size = G, .chunks = GROWS, .note = "address checked; three driver calls each"},
        &ours, &raw);
    report_value("grow_capacity_ratio", GROWS, samples_median(&ours) / samples_median(&raw), NAN, 1.02, "gvmm / raw");
    samples_free(&ours);
    samples_free(&raw);
    gvmm_resource_release(resource);
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    began = now();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            quick = true;
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else {
            fprintf(stderr, "usage: bench_elastic [--quick] [--only capacity|deferred|drop|long|host|rotation]\n");
            return 2;
        }
    }
    bench_start(only);
    direct = cu;
    static const struct {
        const char *name;
        void (*run)(void);
    } groups[] = {{"capacity", grows_with_capacity},
                  {"deferred", deferred},
                  {"drop", without_contents},
                  {"long", long_ranges},
                  {"host", contents},
                  {"rotation", rotations}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (!bench_wants(groups[i].name)) continue;
        double start = now();
        groups[i].run();
        fprintf(stderr, "bench_elastic: %s took %.1f s\n", groups[i].name, (now() - start) / 1e6);
    }
    return bench_end();
}

/* Evict and restore, views, deferred release, grows with capacity, each beside the same driver calls by hand.
 *
 *     bench_elastic [--quick] [--only GROUP]
 *
 * On the machine's driver, or with GVMM_DRIVER=sim on the simulated one. README.md says what each figure means. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elastic.h"

static double began; /* microseconds */

double seconds_left(void) { return 85 - (now() - began) / 1e6; }

size_t times(size_t n) { return bench_quick ? (n + 9) / 10 : n; }

/* ---- samples that are not taken by interleave ---- */

samples room_for(size_t n)
{
    samples s = {malloc((n ? n : 1) * sizeof(double)), 0};
    MUST(s.us);
    return s;
}

void push(samples *s, double value) { s->us[s->count++] = value; }

double per_second(size_t bytes, double us) { return (double)bytes / us / 1e3; }

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

size_t model_size(void)
{
    size_t size = (on_sim ? (bench_quick ? 64 : 256) : bench_quick ? 1024 : 8192) * MiB;
    while (size > 64 * MiB && (3 * size > host_available() / 2 || !fits(3 * size + 64 * MiB))) size /= 2;
    return size;
}

size_t chunk_of(size_t layout, size_t size) { return layout == 0 ? size : layout == 1 ? 32 * G : G; }

/* A release waits and undoes, as the raw side does. `chunk` 0: whole. */
static gvmm_resource *resource_of(size_t chunk)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.chunk_size = chunk;
    options.release_mode = GVMM_RELEASE_SYNC;
    gvmm_resource *resource;
    OK(gvmm_resource_create(&resource, 0, &options));
    return resource;
}

gvmm_buffer *buffer_of(size_t size, size_t chunk)
{
    gvmm_resource *resource = resource_of(chunk);
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create(&buffer, resource, size, NULL));
    gvmm_resource_release(resource);
    return buffer;
}

void evict_with(gvmm_buffer *buffer, gvmm_contents contents)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = contents;
    OK(gvmm_buffer_evict(buffer, &options));
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
    size_t size = (bench_quick ? 1024 : 8192) * MiB;
    while (size > 64 * MiB && !fits(2 * size + 64 * MiB)) size /= 2;
    for (size_t i = 0; i < LAYOUTS; i++) evict_and_drop(size, chunk_of(i, size), bench_quick ? 4 : n[i]);
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
    push(&v->times[PIECES], pieces_gvmm(&made, buffer, quarter));
    gvmm_buffer_release(made);
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
        report(&(figure){.name = view_names[k], .size = G, .chunks = chunks, .per = per, .note = "by chunk touched"},
               &v.times[k], k == RING || k == CONCATENATE ? &v.raw_ring : NULL);
        by_chunk[k] = samples_median(&v.times[k]) / (double)per;
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
        if ((bench_quick && chunks > 1024) || !fits(chunks * G + 64 * MiB)) {
            report_skip("view_ring", G, chunks, bench_quick ? "--quick" : "does not fit in device memory");
            continue;
        }
        view_lengths(last, &raw_last, chunks, chunks > 8192 ? 1 : VIEW_ROUNDS);
        if (!longest) memcpy(first, last, sizeof first), raw_first = raw_last;
        longest = chunks;
    }
    for (size_t k = 0; longest && k < KINDS; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s_linearity", view_names[k]);
        report_value(name, longest, last[k] / first[k], k == RING || k == CONCATENATE ? raw_last / raw_first : NAN, NAN,
                     "time by chunk touched at this length / at 1024");
    }
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
    gvmm_resource *resource = resource_of(0);
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
    began = now();
    bench_start(bench_options(argc, argv, "capacity|deferred|drop|long|host|rotation"));
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

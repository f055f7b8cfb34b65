/* Evict and restore: physical memory given back, addresses kept, and every view finds its bytes again. */
#include "watch.h"

#include <pthread.h>

static gvmm_evict_options keep(gvmm_contents contents)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = contents;
    options.directory = contents == GVMM_CONTENTS_FILE ? "/tmp" : NULL;
    return options;
}

static void evict(gvmm_buffer *buffer, gvmm_contents contents)
{
    gvmm_evict_options options = keep(contents);
    ck_ok(gvmm_buffer_evict(buffer, &options));
}

static uint64_t address(gvmm_buffer *buffer) { return gvmm_buffer_address(buffer); }

static gvmm_stats stats_of(gvmm_resource *resource)
{
    gvmm_stats stats;
    gvmm_get_stats(resource, &stats);
    return stats;
}

static gvmm_options defaults(void) { return waiting_options(); }

static gvmm_resource *with_chunks(size_t chunk, uint64_t capacity)
{
    gvmm_options options = defaults();
    options.chunk_size = chunk;
    options.capacity = capacity;
    return resource_with(options);
}

/* Pieces of pinned memory that are alive when all that was given up has gone, and that there are as many: one for each
 * 256 MiB of a backup. A GPU does not tell. */
static void ck_pinned(size_t pieces)
{
    gvmm_drain();
    if (on_gpu) return;
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    ck_assert_uint_eq(counts[GVMM_SIM_REGISTERED], pieces);
    ck_assert_uint_eq(counts[GVMM_SIM_PINNED], 0);
}

static void ck_not_mapped(uint64_t at)
{
    CUmemGenericAllocationHandle handle;
    ck_cu_fails(cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
}

/* ---- contents ---- */

START_TEST(contents_come_back_as_promised)
{
    gvmm_contents contents = (gvmm_contents)_i;
    gvmm_resource *resource = with_chunks(3 * G, 0);
    gvmm_buffer *buffer = create(resource,
                                 8 * G); /* chunks of 3, 3 and 2: no multiple of what goes to a file at a time */
    uint64_t base = address(buffer), generation = gvmm_buffer_generation(buffer);
    for (unsigned round = 1; round <= 2; round++) {
        write_pattern(base, 8 * G, round);
        evict(buffer, contents);
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 8 * G);
        ck_assert_uint_eq(address(buffer), base);
        ck_assert_uint_eq(gvmm_buffer_size(buffer), 8 * G);
        ck_not_mapped(base);
        ck_not_mapped(base + 7 * G);
        ck_cu_fails(cu->cuMemsetD8(base, 1, G), CUDA_ERROR_INVALID_VALUE);
        ck_pinned(contents == GVMM_CONTENTS_HOST);
        evict(buffer, GVMM_CONTENTS_DROP); /* there is nothing more to evict, and what is kept stays */
        ck_ok(gvmm_buffer_restore(buffer));
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
        ck_assert_uint_gt(gvmm_buffer_generation(buffer), generation);
        generation = gvmm_buffer_generation(buffer);
        ck_ok(gvmm_buffer_restore(buffer));
        ck_assert_uint_eq(gvmm_buffer_generation(buffer), generation);
        ck_pinned(0);
        if (contents >= GVMM_CONTENTS_HOST) ck_pattern(base, 8 * G, round);
        if (contents == GVMM_CONTENTS_ZERO) ck_filled(base, 0, 8 * G);
    }
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(statistics_tell_what_is_gone)
{
    gvmm_resource *resource = with_chunks(G, 8 * G);
    gvmm_buffer *buffer = create(resource, 4 * G);
    gvmm_stats awake = stats_of(resource);
    evict(buffer, GVMM_CONTENTS_HOST);
    gvmm_stats asleep = stats_of(resource);
    ck_assert_uint_eq(asleep.physical_bytes, 0);
    ck_assert_uint_eq(asleep.mapped_bytes, 0);
    ck_assert_uint_eq(asleep.reserved_bytes, awake.reserved_bytes);
    ck_assert_uint_eq(asleep.buffers, 1);
    ck_assert_uint_eq(asleep.mappings, 4);
    ck_assert_uint_eq(asleep.memories, 4);
    gvmm_segment before[4], after[4];
    size_t count;
    ck_ok(gvmm_buffer_segments(buffer, before, 4, &count));
    ck_ok(gvmm_buffer_restore(buffer));
    ck_ok(gvmm_buffer_segments(buffer, after, 4, &count));
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(before[i].address, after[i].address);
        ck_assert_uint_eq(before[i].memory,
                          after[i].memory); /* the same memory, as far as gvmm's users are concerned */
    }
    ck_assert_uint_eq(asleep.pinned_bytes, 4 * G);
    gvmm_drain();
    gvmm_stats again = stats_of(resource);
    ck_assert_int_eq(memcmp(&awake, &again, sizeof awake), 0);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(a_resource_evicts_by_tag)
{
    gvmm_options weights = defaults(), cache = defaults();
    weights.tag = 1;
    cache.tag = 2;
    gvmm_resource *resource = resource_with(weights), *other = resource_with(weights);
    gvmm_buffer *a = create(resource, 2 * G), *b, *stranger = create(other, G), *empty = create(resource, 0);
    ck_ok(gvmm_buffer_grow(&b, a, 5 * G, &cache)); /* its new chunk has a tag of its own */
    write_pattern(address(b), 5 * G, 1);
    gvmm_evict_options options = keep(GVMM_CONTENTS_HOST);
    ck_ok(gvmm_resource_evict(resource, 2, &options));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(a), 0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(b), 3 * G);
    ck_pattern(address(b), 2 * G, 1);
    ck_ok(gvmm_resource_evict(resource, 3, &options)); /* nobody's */
    ck_ok(gvmm_resource_evict(resource, 1, &options));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(b), 5 * G);
    ck_pinned(2);
    ck_ok(gvmm_resource_restore(resource, 2));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(b), 2 * G);
    ck_pinned(1);
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(b), 5 * G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(stranger), 0); /* another resource's */
    ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
    ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
    ck_pattern(address(b), 5 * G, 1);
    ck_pinned(0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(empty) + gvmm_buffer_generation(empty), 0);
    ck_ok(gvmm_buffer_evict(empty, NULL));
    ck_ok(gvmm_buffer_restore(empty));
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_buffer_release(stranger);
    gvmm_buffer_release(empty);
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL)); /* nothing there */
    gvmm_resource_release(resource);
    gvmm_resource_release(other);
    ck_no_warnings();
}
END_TEST

/* More memories than fit the first list. */
START_TEST(a_resource_of_many_chunks)
{
    gvmm_resource *resource = with_chunks(G, 0);
    gvmm_buffer *buffer = create(resource, 200 * G);
    for (size_t i = 0; i < 200; i++) ck_cu(cu->cuMemsetD8(address(buffer) + i * G, (unsigned char)(i + 1), 16));
    ck_cu(cu->cuCtxSynchronize());
    ck_ok(gvmm_resource_evict(resource, 0, NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 200 * G);
    ck_pinned(2);
    ck_ok(gvmm_resource_restore(resource, 0));
    ck_assert_uint_eq(gvmm_buffer_generation(buffer), 200);
    for (size_t i = 0; i < 200; i++) ck_filled(address(buffer) + i * G, (unsigned char)(i + 1), 16);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(wrong_options_evict_nothing)
{
    gvmm_buffer *buffer = create(plain, G);
    gvmm_evict_options options = keep(GVMM_CONTENTS_HOST);
    options.struct_size--;
    ck_fails(gvmm_buffer_evict(buffer, &options), GVMM_E_INVALID);
    ck_names("struct_size");
    options = keep((gvmm_contents)4);
    ck_fails(gvmm_buffer_evict(buffer, &options), GVMM_E_INVALID);
    ck_names("contents");
    options = keep(GVMM_CONTENTS_FILE);
    options.directory = NULL;
    ck_fails(gvmm_resource_evict(plain, 0, &options), GVMM_E_INVALID);
    ck_names("directory");
    options.directory = "/nowhere/at/all";
    ck_fails(gvmm_buffer_evict(buffer, &options), GVMM_E_INVALID);
    ck_names("/nowhere/at/all");
    ck_fails(gvmm_buffer_evict(NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_restore(NULL), GVMM_E_INVALID);
    ck_fails(gvmm_resource_evict(NULL, 0, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_resource_restore(NULL, 0), GVMM_E_INVALID);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
    ck_mapped(address(buffer));
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_fails(gvmm_buffer_evict(buffer, NULL), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_restore(buffer), GVMM_E_CLOSED);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer) + gvmm_buffer_generation(buffer), 0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(NULL) + gvmm_buffer_generation(NULL), 0);
    gvmm_buffer_release(buffer);
}
END_TEST

/* ---- views ---- */

START_TEST(every_view_finds_its_bytes_again)
{
    gvmm_contents contents = (gvmm_contents)_i;
    gvmm_resource *resource = with_chunks(G, 4 * G);
    CUgraph graph;
    ck_cu(cu->cuGraphCreate(&graph, 0));
    gvmm_buffer *a = create(resource, 3 * G), *alias = grow(a, 2 * G), *longer = grow(a, 4 * G),
                *moved = grow(a, 5 * G);
    gvmm_buffer *shorter, *twice, *read_only, *gone = grow(a, 6 * G);
    ck_ok(gvmm_buffer_shrink(&shorter, moved, G));
    ck_ok(gvmm_buffer_ring(&twice, a, 2));
    ck_ok(gvmm_buffer_compose(&read_only, plain, (gvmm_piece[]){{a, G, 0, true}}, 1, NULL));
    ck_ok(gvmm_buffer_retain_in_graph(gone, graph));
    uint64_t held = address(gone);
    gvmm_buffer_release(gone);
    write_pattern(address(a), 3 * G, 5);

    evict(twice, contents); /* one is as good as another */
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(alias), 3 * G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(longer), 3 * G); /* its own chunk is not shared */
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(shorter), G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(read_only), 2 * G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(twice), 6 * G);
    gvmm_buffer *all[] = {a, alias, longer, moved, shorter, twice, read_only};
    for (int i = 0; i < 7; i++) ck_not_mapped(address(all[i]));
    ck_not_mapped(held);
    ck_ok(gvmm_buffer_restore(read_only)); /* two of the three */
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(a), G);
    ck_ok(gvmm_buffer_restore(shorter));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(a), 0);
    ck_pinned(0);
    gvmm_buffer *whole[] = {a, alias, longer, moved, twice};
    for (int i = 0; i < 5; i++) ck_pattern(address(whole[i]), 3 * G, 5);
    ck_pattern(address(shorter), G, 5);
    ck_pattern(held, 3 * G, 5);
    unsigned char *first = malloc(2 * G), *second = malloc(2 * G);
    ck_cu(cu->cuMemcpyDtoH(first, address(a) + G, 2 * G));
    ck_cu(cu->cuMemcpyDtoH(second, address(read_only), 2 * G));
    ck_assert_int_eq(memcmp(first, second, 2 * G), 0);
    free(first);
    free(second);
    ck_assert_uint_eq(access_of(address(read_only), 0), 1);
    ck_assert_uint_eq(access_of(address(twice), 0), 3);
    fill(address(moved), 3, G); /* still one memory */
    ck_filled(address(twice) + 3 * G, 3, G);

    for (int i = 0; i < 7; i++) gvmm_buffer_release(all[i]);
    ck_cu(cu->cuGraphDestroy(graph));
    while (stats_of(resource).mappings) gvmm_drain(); /* the driver tells some time later */
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(buffers_live_on_while_evicted)
{
    gvmm_resource *resource = with_chunks(G, 4 * G);
    gvmm_buffer *a = create(resource, 2 * G), *in_place, *moved, *shorter, *twice;
    write_pattern(address(a), 2 * G, 1);
    evict(a, GVMM_CONTENTS_HOST);
    in_place = grow(a, 4 * G);
    ck_assert_uint_eq(address(in_place), address(a));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(in_place), 2 * G); /* what is new is there */
    fill(address(in_place) + 2 * G, 7, 2 * G);
    moved = grow(a, 3 * G);
    ck_assert_uint_ne(address(moved), address(a));
    ck_ok(gvmm_buffer_shrink(&shorter, moved, G));
    ck_ok(gvmm_buffer_ring(&twice, shorter, 3));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(twice), 3 * G);
    ck_not_mapped(address(twice));
    evict(in_place, GVMM_CONTENTS_FILE); /* the rest of it, kept elsewhere */
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(in_place), 4 * G);
    ck_pinned(1);
    ck_ok(gvmm_buffer_close(a, NULL));
    ck_ok(gvmm_buffer_restore(in_place));
    ck_pinned(0);
    ck_pattern(address(in_place), 2 * G, 1);
    ck_filled(address(in_place) + 2 * G, 7, 2 * G);
    ck_pattern(address(moved), 2 * G, 1);
    ck_pattern(address(shorter), G, 1);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(twice), 0);
    fill(address(twice) + 2 * G, 9, G);
    ck_filled(address(in_place), 9, G);
    gvmm_buffer_release(a);
    gvmm_buffer_release(in_place);
    gvmm_buffer_release(moved);
    gvmm_buffer_release(shorter);
    gvmm_buffer_release(twice);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(evicted_memory_that_nobody_shows_goes_with_its_backup)
{
    gvmm_buffer *a = create(plain, 2 * G), *alias = grow(a, G);
    evict(a, GVMM_CONTENTS_HOST);
    gvmm_buffer_release(a);
    ck_pinned(1);
    ck_ok(gvmm_buffer_close(alias, NULL));
    ck_pinned(0);
    gvmm_buffer_release(alias);
    ck_nothing_left();

    /* one backup of two chunks: kept as long as one of them may need it */
    gvmm_resource *resource = with_chunks(G, 0);
    a = create(resource, 2 * G);
    write_pattern(address(a), G, 1);
    ck_ok(gvmm_buffer_shrink(&alias, a, G));
    evict(a, GVMM_CONTENTS_HOST);
    gvmm_buffer_release(a);
    ck_pinned(1);
    gvmm_resource_release(resource); /* the buffer holds it */
    ck_ok(gvmm_buffer_restore(alias));
    ck_pattern(address(alias), G, 1);
    ck_pinned(0);
    gvmm_buffer_release(alias);
    ck_no_warnings();
}
END_TEST

/* ---- the handler ---- */

enum { MOST_EVENTS = 16 };
static gvmm_residency_event events[MOST_EVENTS];
static size_t evicted_then[MOST_EVENTS];
static unsigned event_count;
static gvmm_buffer *looked_at;

static void note(void *user, const gvmm_residency_event *event)
{
    ck_assert_ptr_eq(user, &event_count);
    ck_assert_uint_lt(event_count, MOST_EVENTS);
    evicted_then[event_count] = gvmm_buffer_evicted_bytes(looked_at); /* it may use the buffer */
    events[event_count++] = *event;
}

static void ck_event(unsigned i, gvmm_residency what, gvmm_buffer *buffer, int tag, size_t bytes, size_t evicted)
{
    ck_assert_uint_lt(i, event_count);
    ck_assert_int_eq(events[i].what, what);
    ck_assert_ptr_eq(events[i].buffer, buffer);
    ck_assert_int_eq(events[i].tag, tag);
    ck_assert_uint_eq(events[i].bytes, bytes);
    ck_assert_uint_eq(evicted_then[i], evicted);
}

START_TEST(the_handler_is_told_before_and_after)
{
    gvmm_options options = defaults();
    options.tag = 7;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *a = create(resource, 2 * G);
    looked_at = a;
    event_count = 0;
    gvmm_resource_set_residency_handler(resource, note, &event_count);
    evict(a, GVMM_CONTENTS_HOST);
    evict(a, GVMM_CONTENTS_HOST); /* does nothing, tells nothing */
    ck_ok(gvmm_buffer_restore(a));
    ck_ok(gvmm_buffer_restore(a));
    ck_assert_uint_eq(event_count, 4);
    ck_event(0, GVMM_BEFORE_EVICT, a, 7, 2 * G, 0);
    ck_event(1, GVMM_AFTER_EVICT, a, 7, 2 * G, 2 * G);
    ck_event(2, GVMM_BEFORE_RESTORE, a, 7, 2 * G, 2 * G);
    ck_event(3, GVMM_AFTER_RESTORE, a, 7, 2 * G, 0);

    event_count = 0;
    gvmm_drain();
    gvmm_evict_options kept = keep(GVMM_CONTENTS_HOST);
    fault_call("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_resource_evict(resource, GVMM_TAG_ANY, &kept), GVMM_E_NO_HOST_MEMORY);
    ck_names("pinned");
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_resource_evict(resource, 7, &kept));
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_resource_restore(resource, 7), GVMM_E_NO_DEVICE_MEMORY);
    ck_ok(gvmm_faults_set(NULL));
    ck_event(0, GVMM_BEFORE_EVICT, NULL, GVMM_TAG_ANY, 2 * G, 0);
    ck_event(1, GVMM_EVICT_FAILED, NULL, GVMM_TAG_ANY, 2 * G, 0);
    ck_event(3, GVMM_AFTER_EVICT, NULL, 7, 2 * G, 2 * G);
    ck_event(4, GVMM_BEFORE_RESTORE, NULL, 7, 2 * G, 2 * G);
    ck_event(5, GVMM_RESTORE_FAILED, NULL, 7, 2 * G, 2 * G);
    ck_assert_uint_eq(event_count, 6);
    gvmm_resource_set_residency_handler(resource, NULL, NULL);
    ck_ok(gvmm_buffer_restore(a));
    ck_assert_uint_eq(event_count, 6);
    gvmm_buffer_release(a);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- work and captures ---- */

static void evict_it(gvmm_buffer *buffer) { evict(buffer, GVMM_CONTENTS_HOST); }

START_TEST(evicting_waits_for_the_stream)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    ck_waits_for(stream, buffer, evict_it); /* whose work fills it with ones */
    ck_ok(gvmm_buffer_restore(buffer));
    ck_filled(address(buffer), 1, G);

    gvmm_stream other;
    ck_cu(cu->cuStreamCreate(&other, CU_STREAM_DEFAULT)); /* blocking: the default stream waits for it */
    fill(address(buffer), 0, G);
    ck_ok(gvmm_buffer_set_stream(buffer, GVMM_STREAM_LEGACY));
    ck_waits_for(other, buffer, evict_it);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_filled(address(buffer), 1, G);
    ck_cu(cu->cuStreamDestroy(other));
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

static CUgraphExec captured_fill(gvmm_stream on, uint64_t at, unsigned char value, size_t size)
{
    CUgraph graph;
    CUgraphExec exec;
    ck_cu(cu->cuStreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async(at, value, size, on));
    ck_cu(cu->cuStreamEndCapture(on, &graph));
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    ck_cu(cu->cuGraphDestroy(graph));
    return exec;
}

START_TEST(captures_refuse_it_and_are_unharmed)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    uint64_t at = address(buffer);
    gvmm_stream blocking;
    CUgraph graph;
    CUgraphExec exec;
    ck_cu(cu->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                         CU_STREAM_CAPTURE_MODE_RELAXED};
    for (int i = 0; i < 6; i++) {
        gvmm_stream on = i % 2 ? stream : blocking;
        gvmm_evict_options options = keep(GVMM_CONTENTS_HOST);
        ck_cu(cu->cuStreamBeginCapture(on, modes[i / 2]));
        ck_cu(cu->cuMemsetD8Async(at, 5, G, on));
        options.stream = on;
        ck_fails(gvmm_buffer_evict(buffer, &options), GVMM_E_CAPTURING); /* the capturing stream itself */
        options.stream = GVMM_STREAM_LEGACY;
        gvmm_result r = gvmm_buffer_evict(buffer, &options); /* waiting for it would end a blocking stream's capture */
        ck_assert_int_eq(r, on == blocking ? GVMM_E_CAPTURING : GVMM_OK);
        r = gvmm_resource_evict(plain, GVMM_TAG_ANY, NULL);
        ck_assert_int_eq(r, on == blocking ? GVMM_E_CAPTURING : GVMM_OK);
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), on == blocking ? 0 : G);
        options.stream = on == blocking ? stream : blocking; /* one that has nothing to do with it */
        ck_ok(gvmm_buffer_evict(buffer, &options));
        ck_ok(gvmm_buffer_restore(buffer));
        ck_cu(cu->cuStreamEndCapture(on, &graph)); /* it is still good */
        ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
        fill(at, 0, G);
        ck_cu(cu->cuGraphLaunch(exec, on));
        ck_cu(cu->cuStreamSynchronize(on));
        ck_filled(at, 5, G);
        ck_cu(cu->cuGraphExecDestroy(exec));
        ck_cu(cu->cuGraphDestroy(graph));
    }
    ck_cu(cu->cuStreamDestroy(blocking));
    gvmm_buffer_release(buffer);
    ck_pinned(0);
    ck_no_warnings();
}
END_TEST

START_TEST(a_graph_replays_right_after_the_restore)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, 2 * G, stream));
    uint64_t at = address(buffer);
    CUgraphExec exec = captured_fill(stream, at + G, 6, G);
    write_pattern(at, G, 1);
    for (int round = 0; round < 3; round++) {
        ck_cu(cu->cuGraphLaunch(exec, stream));
        evict(buffer, GVMM_CONTENTS_HOST); /* waits for the launch */
        ck_ok(gvmm_buffer_restore(buffer));
        ck_filled(at + G, 6, G);
        fill(at + G, 0, G);
        ck_cu(cu->cuGraphLaunch(exec, stream));
        ck_cu(cu->cuStreamSynchronize(stream));
        ck_filled(at + G, 6, G);
        ck_pattern(at, G, 1);
    }
    ck_cu(cu->cuGraphExecDestroy(exec));
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

static gvmm_buffer *of_thread;

static void *sleep_and_wake(void *unused)
{
    (void)unused;
    CUcontext context;
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_assert_ptr_null(context);
    evict(of_thread, GVMM_CONTENTS_HOST);
    ck_ok(gvmm_buffer_restore(of_thread));
    evict(of_thread, GVMM_CONTENTS_FILE);
    ck_ok(gvmm_resource_restore(plain, GVMM_TAG_ANY));
    ck_ok(gvmm_resource_evict(plain, GVMM_TAG_ANY, NULL));
    ck_ok(gvmm_buffer_close(of_thread, NULL)); /* with the backup */
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_assert_ptr_null(context);
    return NULL;
}

START_TEST(no_context_need_be_current)
{
    of_thread = create(plain, 2 * G);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, sleep_and_wake, NULL), 0);
    pthread_join(thread, NULL);
    gvmm_buffer_release(of_thread);
    ck_pinned(0);
    ck_no_warnings();
}
END_TEST

/* ---- what fails ---- */

START_TEST(a_restore_that_fails_half_way_can_be_tried_again)
{
    gvmm_contents contents = _i ? GVMM_CONTENTS_FILE : GVMM_CONTENTS_HOST;
    gvmm_resource *resource = with_chunks(G, 0);
    gvmm_buffer *a = create(resource, 4 * G), *twice, *b = create(resource, G);
    ck_ok(gvmm_buffer_ring(&twice, a, 2));
    write_pattern(address(a), 4 * G, 3);
    evict(a, contents);
    const char *calls[] = {"cuMemCreate",       "cuMemMap",       "cuMemSetAccess",
                           "cuMemcpyHtoDAsync", "cuStreamCreate", "cuStreamSynchronize"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (uint64_t k = 1;; k++) {
            fault_call(calls[i], k, CUDA_ERROR_OUT_OF_MEMORY);
            gvmm_result r = gvmm_buffer_restore(twice);
            gvmm_drain();
            bool fired = gvmm_faults_injected() > 0;
            ck_ok(gvmm_faults_set(NULL));
            if (!fired) {
                ck_ok(r);
                ck_pattern(address(a), 4 * G, 3);
                ck_pinned(0);
                evict(a, contents);
                break;
            }
            ck_assert_int_eq(r, GVMM_E_NO_DEVICE_MEMORY);
            ck_assert_uint_eq(gvmm_buffer_evicted_bytes(a), 4 * G);
            ck_assert_uint_eq(stats_of(resource).physical_bytes, G);
            ck_not_mapped(address(a));
            ck_not_mapped(address(twice) + 7 * G);
            ck_pinned(contents == GVMM_CONTENTS_HOST);
            ck_in_order();
        }
    }
    ck_ok(gvmm_buffer_restore(a));
    ck_pattern(address(a), 4 * G, 3);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_buffer_release(twice);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(memory_made_ahead_is_given_up_for_a_restore)
{
    gvmm_options options = defaults();
    options.chunk_size = G;
    options.ahead_count = 2;
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *a = create(resource, 2 * G);
    gvmm_drain();
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL)); /* what is in stock is not mapped, and stays */
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 2 * G);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(gvmm_buffer_restore(a));
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(stats_of(resource).physical_bytes, 2 * G);
    gvmm_buffer_release(a);
    gvmm_resource_release(resource);
    gvmm_drain();
}
END_TEST

/* Also what another resource has ahead on that device; not what one has on another device. */
START_TEST(memory_made_ahead_elsewhere_is_given_up_too)
{
    gvmm_options options = defaults();
    options.chunk_size = G;
    options.ahead_count = 2;
    gvmm_resource *other = resource_with(options), *second = NULL;
    if (device_count > 1) ck_ok(gvmm_resource_create(&second, 1, &options));
    gvmm_buffer *a = create(plain, 2 * G), *b;
    gvmm_drain();
    ck_assert_uint_eq(stats_of(other).physical_bytes, 2 * G);
    evict(a, GVMM_CONTENTS_HOST);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(gvmm_buffer_restore(a));
    ck_assert_uint_eq(stats_of(other).physical_bytes, 0);
    if (second) ck_assert_uint_eq(stats_of(second).physical_bytes, 2 * G);

    b = create(other, G); /* the other makes more ahead again, and gives it up for a buffer of `plain` */
    gvmm_drain();
    ck_assert_uint_eq(stats_of(other).physical_bytes, 3 * G);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer_release(create(plain, G));
    ck_assert_uint_eq(stats_of(other).physical_bytes, G);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer *none;
    ck_fails(gvmm_buffer_create(&none, plain, G, NULL), GVMM_E_NO_DEVICE_MEMORY); /* nothing is left to give up */
    ck_ok(gvmm_faults_set(NULL));
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_resource_release(other);
    gvmm_resource_release(second);
    gvmm_drain();
    ck_no_warnings();
}
END_TEST

/* A warning's function may call gvmm, so nothing may be locked when it is called. */
static gvmm_buffer *used_by_warning;
static unsigned warnings;

static void use_the_buffer(void *user, const gvmm_error *error)
{
    (void)user, (void)error;
    gvmm_access access;
    gvmm_buffer *out;
    warnings++;
    ck_ok(gvmm_buffer_get_access(used_by_warning, 0, &access)); /* takes the memory's lock */
    ck_ok(gvmm_buffer_grow(&out, used_by_warning, 5 * G, NULL));
    gvmm_buffer_release(out);
}

START_TEST(a_warning_may_use_the_buffer)
{
    gvmm_buffer *a = create(plain, G), *twice;
    ck_ok(gvmm_buffer_ring(&twice, a, 12));
    used_by_warning = a;
    warnings = 0;
    gvmm_set_warning_handler(use_the_buffer, NULL);
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    evict(a, GVMM_CONTENTS_DROP);
    ck_assert_uint_eq(warnings, 1);
    ck_ok(gvmm_buffer_restore(a));
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    gvmm_buffer_release(twice);
    ck_assert_uint_eq(warnings, 2);
    ck_ok(gvmm_faults_set(NULL));
    gvmm_buffer_release(a);
}
END_TEST

static void restore_in_warning(void *user, const gvmm_error *error)
{
    (void)user, (void)error;
    ck_fails(gvmm_buffer_restore(used_by_warning), GVMM_E_INVALID);
    warnings++;
}

static void restore_in_handler(void *user, const gvmm_residency_event *event)
{
    (void)user, (void)event;
    ck_fails(gvmm_buffer_restore(used_by_warning), GVMM_E_INVALID);
    warnings++;
}

/* Who is told of something by an evict waits for no other: it would be itself. */
START_TEST(a_handler_does_not_wait_for_its_own_evict)
{
    used_by_warning = create(plain, G);
    warnings = 0;
    gvmm_set_warning_handler(restore_in_warning, NULL);
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    evict(used_by_warning, GVMM_CONTENTS_DROP);
    fault(0, false);
    ck_assert_uint_eq(warnings, 1);
    gvmm_resource_set_residency_handler(plain, restore_in_handler, NULL);
    ck_ok(gvmm_buffer_restore(used_by_warning));
    ck_assert_uint_eq(warnings, 3);
    gvmm_resource_set_residency_handler(plain, NULL, NULL);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(used_by_warning), 0);
    gvmm_buffer_release(used_by_warning);
}
END_TEST

static void open_gate(void *g, const gvmm_residency_event *event)
{
    if (event->what == GVMM_BEFORE_RESTORE) gate_open(g);
}

/* Nor does gvmm's thread, for which the restore waits that needs the room. */
START_TEST(a_handler_does_not_wait_for_who_waits_for_it)
{
    if (on_gpu) return; /* it would fill the card */
    gvmm_buffer *second;
    size_t most = (size_t)100 << 30;
    gvmm_resource *deferring = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
    ck_ok(gvmm_buffer_create(&used_by_warning, deferring, most, stream));
    evict(used_by_warning, GVMM_CONTENTS_DROP);
    ck_ok(gvmm_buffer_create(&second, deferring, most, stream));
    gate *g = gate_on(stream);
    gvmm_buffer_release(second);
    warnings = 0;
    gvmm_set_warning_handler(restore_in_warning, NULL);
    gvmm_resource_set_residency_handler(deferring, open_gate, g); /* when it is under way */
    fault_call("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    ck_ok(gvmm_buffer_restore(used_by_warning));
    fault(0, false);
    ck_assert_uint_eq(warnings, 1);
    gvmm_buffer_release(used_by_warning);
    gvmm_resource_release(deferring);
    gate_end(g);
}
END_TEST

START_TEST(ten_rotations_leave_no_pinned_memory)
{
    enum { MODELS = 3 };
    gvmm_resource *resource = with_chunks(4 * G, 0);
    gvmm_buffer *models[MODELS];
    uint64_t at[MODELS];
    for (unsigned i = 0; i < MODELS; i++) {
        models[i] = create(resource, 10 * G);
        at[i] = address(models[i]);
        write_pattern(at[i], 10 * G, i);
        evict(models[i], GVMM_CONTENTS_HOST);
    }
    ck_pinned(MODELS);
    for (unsigned round = 0; round < 10; round++)
        for (unsigned i = 0; i < MODELS; i++) {
            ck_ok(gvmm_buffer_restore(models[i]));
            ck_assert_uint_eq(address(models[i]), at[i]);
            ck_assert_uint_eq(stats_of(resource).physical_bytes, 10 * G); /* one at a time */
            ck_pattern(at[i], 10 * G, i);
            ck_pinned(MODELS - 1);
            evict(models[i], GVMM_CONTENTS_HOST);
        }
    for (unsigned i = 0; i < MODELS; i++) gvmm_buffer_release(models[i]);
    ck_pinned(0);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- who may touch the memory ---- */

START_TEST(host_memory_can_be_dropped)
{
    gvmm_options options = defaults();
    options.location = GVMM_LOCATION_HOST;
    options.handle_type = GVMM_HANDLE_NONE;
    gvmm_resource *host = resource_with(options);
    gvmm_buffer *buffer = create(host, G), *device_buffer = create(plain, G), *both;
    volatile char *bytes = (volatile char *)(uintptr_t)address(buffer);
    bytes[3] = 1;
    gvmm_evict_options kept = keep(GVMM_CONTENTS_HOST);
    ck_fails(gvmm_buffer_evict(buffer, &kept), GVMM_E_UNSUPPORTED);
    kept = keep(GVMM_CONTENTS_FILE);
    ck_fails(gvmm_resource_evict(host, GVMM_TAG_ANY, &kept), GVMM_E_UNSUPPORTED);
    ck_assert_int_eq(bytes[3], 1);
    evict(buffer, GVMM_CONTENTS_ZERO);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), G);
    ck_ok(gvmm_buffer_evict(buffer, &kept)); /* done already */
    ck_ok(gvmm_resource_restore(host, GVMM_TAG_ANY));
    ck_assert_int_eq(bytes[3], 0);
    bytes[3] = 2;
    evict(buffer, GVMM_CONTENTS_DROP);
    ck_ok(gvmm_buffer_restore(buffer));
    bytes[3] = 3;

    /* beside device memory in one buffer */
    ck_ok(gvmm_buffer_compose(&both, plain, (gvmm_piece[]){{.buffer = buffer}, {.buffer = device_buffer}}, 2, NULL));
    ck_fails(gvmm_buffer_evict(both, NULL), GVMM_E_UNSUPPORTED);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(both), 0);
    evict(both, GVMM_CONTENTS_DROP);
    ck_ok(gvmm_buffer_restore(both));
    gvmm_buffer_release(both);
    /* device memory in a buffer of a host resource can be kept */
    ck_ok(gvmm_buffer_compose(&both, host, (gvmm_piece[]){{.buffer = device_buffer}}, 1, NULL));
    write_pattern(address(device_buffer), G, 1);
    evict(both, GVMM_CONTENTS_HOST);
    ck_ok(gvmm_buffer_restore(both));
    ck_pattern(address(device_buffer), G, 1);
    gvmm_buffer_release(both);
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(device_buffer);
    gvmm_resource_release(host);
    ck_no_warnings();
}
END_TEST

/* It is copied through a mapping for the purpose. */
START_TEST(memory_that_its_device_may_not_write_can_be_kept)
{
    gvmm_access wanted = _i == 0 ? GVMM_ACCESS_NONE : GVMM_ACCESS_READ;
    gvmm_options options = defaults();
    options.self_access = wanted;
    static const int itself[] = {0};
    if (_i == 2) { /* the later of two entries for a device counts */
        options.self_access = GVMM_ACCESS_READ_WRITE;
        options.peers = itself;
        options.peer_count = 1;
        options.peer_access = GVMM_ACCESS_READ;
    }
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *buffer = create(resource, 2 * G);
    ck_assert_uint_eq(access_of(address(buffer), 0), wanted);
    ck_ok(gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ_WRITE));
    write_pattern(address(buffer), 2 * G, 1);
    ck_ok(gvmm_buffer_set_access(buffer, 0, wanted));
    for (int i = 0; i < 2; i++) {
        evict(buffer, i ? GVMM_CONTENTS_FILE : GVMM_CONTENTS_HOST);
        ck_assert_uint_eq(stats_of(resource).reserved_bytes, 2 * G);
        ck_ok(gvmm_buffer_restore(buffer));
        ck_assert_uint_eq(access_of(address(buffer), 0), wanted);
        ck_assert_uint_eq(stats_of(resource).reserved_bytes, 2 * G);
    }
    ck_ok(gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ_WRITE));
    ck_pattern(address(buffer), 2 * G, 1);
    gvmm_buffer_release(buffer);

    /* as it was made: never opened by set_access, so with the list of the options */
    buffer = create(resource, G);
    evict(buffer, GVMM_CONTENTS_HOST);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_assert_uint_eq(access_of(address(buffer), 0), wanted);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* Each device copies its own: none need reach another's. */
START_TEST(memory_of_several_devices)
{
    if (lacks_second_device("memory_of_several_devices")) return;
    gvmm_resource *second;
    ck_ok(gvmm_resource_create(&second, 1, NULL));
    gvmm_buffer *a = create(plain, G), *b = create(second, 2 * G), *both;
    CUcontext context;
    ck_ok(gvmm_buffer_compose(&both, plain, (gvmm_piece[]){{.buffer = b}, {.buffer = a}}, 2, NULL));
    ck_ok(gvmm_buffer_set_access(both, 0, GVMM_ACCESS_READ_WRITE));
    write_pattern(address(both), 3 * G, 1);
    ck_ok(gvmm_buffer_set_access(b, 0, GVMM_ACCESS_NONE));
    gvmm_buffer_release(b);
    gvmm_resource_release(second); /* nobody but the copies holds device 1's context */
    for (int i = 0; i < 2; i++) {
        evict(both, i ? GVMM_CONTENTS_FILE : GVMM_CONTENTS_HOST);
        ck_pinned(i == 0);
        ck_ok(gvmm_buffer_restore(both));
    }
    ck_ok(gvmm_buffer_set_access(both, 0, GVMM_ACCESS_READ_WRITE));
    ck_pattern(address(both), 3 * G, 1);
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_assert_ptr_nonnull(context);
    gvmm_buffer_release(a);
    gvmm_buffer_release(both);

    static const int devices[] = {0, 1};
    gvmm_options options = defaults();
    options.chunk_size = G;
    options.stripe = devices;
    options.stripe_count = 2;
    gvmm_resource *striped = resource_with(options);
    a = create(striped, 5 * G);
    write_pattern(address(a), 5 * G, 2);
    ck_ok(gvmm_resource_evict(striped, GVMM_TAG_ANY, NULL));
    ck_pinned(1);
    ck_ok(gvmm_resource_restore(striped, GVMM_TAG_ANY));
    ck_pattern(address(a), 5 * G, 2);
    gvmm_buffer_release(a);
    gvmm_resource_release(striped);
    ck_pinned(0);
    ck_no_warnings();
}
END_TEST

/* ---- threads ---- */

enum { ROUNDS = 40, THREADS = 5 };
static gvmm_buffer *shared, *other_view;
static atomic_int failures;
static char first_failure[200];

#define must_ok(call) \
    do { \
        gvmm_result got_ = (call); \
        if (got_ && atomic_fetch_add(&failures, 1) == 0) \
            snprintf(first_failure, sizeof first_failure, "line %d: %s", __LINE__, gvmm_result_name(got_)); \
    } while (0)

static void *rotate(void *index)
{
    for (int i = 0; i < ROUNDS; i++) {
        gvmm_evict_options options = keep(i % 3 ? GVMM_CONTENTS_HOST : GVMM_CONTENTS_FILE);
        options.stream = stream;
        must_ok((intptr_t)index ? gvmm_buffer_evict(i % 2 ? shared : other_view, &options)
                                : gvmm_resource_evict(plain, GVMM_TAG_ANY, &options));
        must_ok((intptr_t)index ? gvmm_buffer_restore(shared) : gvmm_resource_restore(plain, GVMM_TAG_ANY));
    }
    return NULL;
}

static void *grow_aliases(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        gvmm_buffer *longer, *twice, *shorter;
        must_ok(gvmm_buffer_grow(&longer, i % 2 ? shared : other_view, (size_t)(4 + i % 3) * G, NULL));
        must_ok(gvmm_buffer_ring(&twice, longer, 2));
        must_ok(gvmm_buffer_shrink(&shorter, twice, G));
        must_ok(gvmm_buffer_close(longer, stream));
        must_ok(gvmm_buffer_close(twice, stream));
        must_ok(gvmm_buffer_close(shorter, stream));
        gvmm_buffer_release(longer);
        gvmm_buffer_release(twice);
        gvmm_buffer_release(shorter);
    }
    return NULL;
}

static void *ask(void *unused)
{
    (void)unused;
    uint64_t generation = 0;
    for (int i = 0; i < 10 * ROUNDS; i++) {
        gvmm_segment segments[8];
        size_t count;
        gvmm_access access;
        must_ok(gvmm_buffer_segments(shared, segments, 8, &count));
        must_ok(gvmm_buffer_get_access(other_view, 0, &access));
        uint64_t now = gvmm_buffer_generation(shared);
        must_ok(now < generation || gvmm_buffer_evicted_bytes(shared) > 3 * G ? GVMM_E_INVALID : GVMM_OK);
        generation = now;
        sched_yield();
    }
    return NULL;
}

static void *change_access(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        gvmm_buffer *view;
        must_ok(gvmm_buffer_compose(&view, plain, (gvmm_piece[]){{.buffer = shared, .read_only = true}}, 1, stream));
        if (device_count > 1) must_ok(gvmm_buffer_set_access(view, 1, i % 2 ? GVMM_ACCESS_READ : GVMM_ACCESS_NONE));
        if (device_count > 1) must_ok(gvmm_buffer_set_access(shared, 1, i % 2 ? GVMM_ACCESS_NONE : GVMM_ACCESS_READ));
        gvmm_buffer_release(view);
    }
    return NULL;
}

START_TEST(threads_use_the_buffer_meanwhile)
{
    gvmm_resource *resource = with_chunks(G, 0);
    ck_ok(gvmm_buffer_create(&shared, resource, 3 * G, stream));
    ck_ok(gvmm_buffer_compose(&other_view, plain, (gvmm_piece[]){{.buffer = shared}}, 1, stream));
    write_pattern(address(shared), 3 * G, 1);
    pthread_t threads[THREADS];
    void *(*bodies[THREADS])(void *) = {rotate, rotate, grow_aliases, ask, change_access};
    atomic_store(&failures, 0);
    for (intptr_t i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, bodies[i], (void *)i), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    ck_assert_msg(atomic_load(&failures) == 0, "%d failures; the first: %s", atomic_load(&failures), first_failure);
    ck_ok(gvmm_buffer_restore(shared));
    ck_pattern(address(shared), 3 * G, 1);
    ck_pattern(address(other_view), 3 * G, 1);
    gvmm_buffer_release(shared);
    gvmm_buffer_release(other_view);
    gvmm_resource_release(resource);
    ck_pinned(0);
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("evict");
    TCase *contents = add_watched_case(suite, "contents");
    tcase_add_loop_test(contents, contents_come_back_as_promised, GVMM_CONTENTS_DROP, GVMM_CONTENTS_FILE + 1);
    tcase_add_test(contents, statistics_tell_what_is_gone);
    tcase_add_test(contents, a_resource_evicts_by_tag);
    tcase_add_test(contents, a_resource_of_many_chunks);
    tcase_add_test(contents, wrong_options_evict_nothing);
    TCase *views = add_watched_case(suite, "views");
    tcase_add_loop_test(views, every_view_finds_its_bytes_again, GVMM_CONTENTS_HOST, GVMM_CONTENTS_FILE + 1);
    tcase_add_test(views, buffers_live_on_while_evicted);
    tcase_add_test(views, evicted_memory_that_nobody_shows_goes_with_its_backup);
    TCase *order = add_watched_case(suite, "handler, work, captures");
    tcase_add_test(order, the_handler_is_told_before_and_after);
    tcase_add_test(order, evicting_waits_for_the_stream);
    tcase_add_test(order, captures_refuse_it_and_are_unharmed);
    tcase_add_test(order, a_graph_replays_right_after_the_restore);
    tcase_add_test(order, no_context_need_be_current);
    TCase *failing = add_watched_case(suite, "what fails");
    tcase_add_loop_test(failing, a_restore_that_fails_half_way_can_be_tried_again, 0, 2);
    tcase_add_test(failing, memory_made_ahead_is_given_up_for_a_restore);
    tcase_add_test(failing, memory_made_ahead_elsewhere_is_given_up_too);
    tcase_add_test(failing, a_warning_may_use_the_buffer);
    tcase_add_test(failing, a_handler_does_not_wait_for_its_own_evict);
    tcase_add_test(failing, a_handler_does_not_wait_for_who_waits_for_it);
    tcase_add_test(failing, ten_rotations_leave_no_pinned_memory);
    TCase *access = add_watched_case(suite, "who may touch the memory");
    tcase_add_test(access, host_memory_can_be_dropped);
    tcase_add_loop_test(access, memory_that_its_device_may_not_write_can_be_kept, 0, 3);
    tcase_add_test(access, memory_of_several_devices);
    TCase *threads = add_watched_case(suite, "threads");
    tcase_add_test(threads, threads_use_the_buffer_meanwhile);
    return run_suites(suite, NULL);
}

/* The fault sweep: every public operation, with the nth driver call or host allocation failed, once and from then on,
 * for every n until the fault no longer fires. Each time: a documented result, inputs intact to the byte, nothing new
 * alive, no warning for what was not given back, and the same call then succeeds. */
#include "share_kit.h"

/* What an operation works on. */
typedef struct scene {
    gvmm_buffer *input;
    uint64_t decoy;
    gvmm_options chunk;
    CUgraph graph;
    gvmm_stream capturing;
    uint64_t by_hand;
    gvmm_resource *resource; /* of the input, where it is not `plain` */
    gvmm_export *exported, *out_export;
    gvmm_buffer *have;
    gvmm_buffer *out;
    gvmm_resource *out_resource;
} scene;

typedef struct operation {
    const char *name;
    void (*prepare)(scene *s);
    gvmm_result (*run)(scene *s);
    bool gives_back; /* it may warn, succeeds in every case, and leaves no input */
} operation;

/* ---- scenes ---- */

static const int three_chunks = 3;

/* A range of three chunks with the pattern in it, and a hole or a decoy behind. */
static void three(scene *s, bool hole)
{
    gvmm_buffer *first = hole ? buffer_with_hole_behind(plain, G, 8 * G)
                              : buffer_with_decoy_behind(plain, G, &s->decoy);
    gvmm_buffer *second = grow(first, 2 * G);
    s->input = grow(second, three_chunks * G);
    gvmm_buffer_release(first);
    gvmm_buffer_release(second);
    if (!hole) { /* the moves went elsewhere; the decoy goes behind where they ended */
        free_decoy(s->decoy);
        CUdeviceptr end = gvmm_buffer_address(s->input) + three_chunks * G, at;
        ck_cu(cu->cuMemAddressReserve(&at, G, 0, end, 0));
        s->decoy = at;
    }
    write_pattern(gvmm_buffer_address(s->input), three_chunks * G, 1);
}

static void nothing(scene *s) { (void)s; }
static void hole(scene *s) { three(s, true); }
static void decoy(scene *s) { three(s, false); }
static void empty(scene *s) { s->input = create(plain, 0); }

static void with_options(scene *s)
{
    static const int peers[] = {1};
    three(s, true);
    s->chunk = waiting_options();
    s->chunk.self_access = GVMM_ACCESS_READ;
    s->chunk.gpu_direct_rdma = true;
    s->chunk.peers = peers;
    s->chunk.peer_count = device_count > 1;
}

static void with_graph(scene *s)
{
    three(s, true);
    ck_cu(cu->cuGraphCreate(&s->graph, 0));
}

static void with_capture(scene *s)
{
    three(s, true);
    ck_cu(cu->cuStreamCreate(&s->capturing, CU_STREAM_NON_BLOCKING));
    ck_cu(cu->cuStreamBeginCapture(s->capturing, CU_STREAM_CAPTURE_MODE_RELAXED)); /* the checks copy meanwhile */
}

static const int both_devices[] = {0, 1};

static gvmm_options in_chunks(void)
{
    gvmm_options options = waiting_options();
    options.chunk_size = G;
    options.capacity = 16 * G;
    return options;
}

static void chunked_scene(scene *s)
{
    s->resource = resource_with(in_chunks());
    s->input = create(s->resource, three_chunks * G);
    write_pattern(gvmm_buffer_address(s->input), three_chunks * G, 1);
}

static void striped(scene *s)
{
    gvmm_options options = in_chunks();
    options.stripe = both_devices;
    options.stripe_count = device_count > 1 ? 2 : 1;
    s->resource = resource_with(options);
    s->input = create(s->resource, three_chunks * G);
    write_pattern(gvmm_buffer_address(s->input), three_chunks * G, 1);
}

/* One that device 0 may only read, beside one that it may write: what must be kept of the former needs a mapping for
 * the purpose. */
static void partly_read_only(scene *s)
{
    three(s, true);
    ck_ok(gvmm_buffer_set_access(s->input, 1, GVMM_ACCESS_READ));
}

static void sleep_with(scene *s, gvmm_contents contents)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = contents;
    options.directory = "/tmp";
    ck_ok(gvmm_buffer_evict(s->input, &options));
}

static void asleep_in_host_memory(scene *s)
{
    hole(s);
    sleep_with(s, GVMM_CONTENTS_HOST);
}

static void asleep_in_a_file(scene *s)
{
    decoy(s);
    sleep_with(s, GVMM_CONTENTS_FILE);
}

static void striped_asleep(scene *s)
{
    striped(s);
    sleep_with(s, GVMM_CONTENTS_HOST);
}

static void exported(scene *s)
{
    chunked_scene(s);
    ck_ok(gvmm_buffer_export(&s->exported, s->input, 0));
}

/* The importer has one chunk of three, and room behind it or not. */
static void partly_imported(scene *s, bool room)
{
    gvmm_buffer *one;
    gvmm_shared shared;
    chunked_scene(s);
    ck_ok(gvmm_buffer_shrink(&one, s->input, G));
    ck_ok(gvmm_buffer_export(&s->exported, one, 0));
    gvmm_export_contents(s->exported, &shared);
    ck_ok(gvmm_buffer_import(&s->have, room ? s->resource : plain, &shared, NULL, NULL));
    gvmm_export_release(s->exported);
    gvmm_buffer_release(one);
    ck_ok(gvmm_buffer_export(&s->exported, s->input, G));
    if (room) return;
    CUdeviceptr end = gvmm_buffer_address(s->have) + G, at;
    ck_cu(cu->cuMemAddressReserve(&at, G, 0, end, 0));
    s->decoy = at;
}

static void imported_with_room(scene *s) { partly_imported(s, true); }
static void imported_without_room(scene *s) { partly_imported(s, false); }

static void by_hand(scene *s) { s->by_hand = map_by_hand(G); }

/* ---- operations ---- */

static gvmm_result create_resource(scene *s)
{
    static const int peers[] = {1};
    gvmm_options options = waiting_options();
    options.gpu_direct_rdma = true;
    options.peers = peers;
    options.peer_count = device_count > 1;
    return gvmm_resource_create(&s->out_resource, 0, &options);
}

static gvmm_result create_host_resource(scene *s)
{
    gvmm_options options = waiting_options();
    options.location = GVMM_LOCATION_HOST_NUMA_CURRENT;
    return gvmm_resource_create(&s->out_resource, 0, &options);
}

static gvmm_result create_buffer(scene *s) { return gvmm_buffer_create(&s->out, plain, 2 * G, stream); }
static gvmm_result create_empty(scene *s) { return gvmm_buffer_create(&s->out, plain, 0, stream); }
static gvmm_result alias(scene *s) { return gvmm_buffer_grow(&s->out, s->input, G, NULL); }
static gvmm_result grow_to_five(scene *s) { return gvmm_buffer_grow(&s->out, s->input, 5 * G, NULL); }
static gvmm_result grow_with_options(scene *s) { return gvmm_buffer_grow(&s->out, s->input, 5 * G, &s->chunk); }
static gvmm_result retain_in_graph(scene *s) { return gvmm_buffer_retain_in_graph(s->input, s->graph); }
static gvmm_result retain_in_capture(scene *s) { return gvmm_buffer_retain_in_capture(s->input, s->capturing); }

static gvmm_result wrap(scene *s) { return gvmm_buffer_wrap(&s->out, plain, 0x1000, G, NULL, free_nothing, NULL); }

static gvmm_result segments(scene *s)
{
    gvmm_segment list[8];
    size_t count;
    gvmm_result r = gvmm_buffer_segments(s->input, list, 8, &count);
    ck_assert_uint_eq(count, three_chunks);
    return r;
}

static gvmm_result close_it(scene *s) { return gvmm_buffer_close(s->input, NULL); }

static gvmm_result release_it(scene *s)
{
    gvmm_buffer_release(s->input);
    s->input = NULL;
    return GVMM_OK;
}

static gvmm_result deallocate(scene *s)
{
    gvmm_result r = gvmm_resource_deallocate(plain, s->by_hand, G, stream);
    if (r) ck_assert_str_ne(last_text(), "");
    ck_released(s->by_hand, G);
    return GVMM_OK; /* the failure is reported and both steps are tried: nothing to try again */
}

static gvmm_result create_with_capacity(scene *s)
{
    return gvmm_buffer_create_with_capacity(&s->out, plain, 2 * G, 16 * G, stream);
}

static gvmm_result create_in_chunks(scene *s) { return gvmm_buffer_create(&s->out, s->resource, 5 * G, stream); }
static gvmm_result grow_past_capacity(scene *s) { return gvmm_buffer_grow(&s->out, s->input, 18 * G, NULL); }
static gvmm_result shrink(scene *s) { return gvmm_buffer_shrink(&s->out, s->input, 2 * G); }
static gvmm_result ring(scene *s) { return gvmm_buffer_ring(&s->out, s->input, 3); }
static gvmm_result grant(scene *s) { return gvmm_buffer_set_access(s->input, 1, GVMM_ACCESS_READ_WRITE); }
static gvmm_result take_away(scene *s) { return gvmm_buffer_set_access(s->input, 1, GVMM_ACCESS_NONE); }

/* What the worker does behind it is counted too. */
static gvmm_result restore(scene *s)
{
    gvmm_result r = gvmm_buffer_restore(s->input);
    gvmm_drain();
    return r;
}

static gvmm_result compose(scene *s)
{
    gvmm_piece pieces[] = {{s->input, G, G, false}, {s->input, 0, 0, true}, {s->input, 2 * G, 0, false}};
    return gvmm_buffer_compose(&s->out, plain, pieces, 3, stream);
}

static gvmm_result evict_with(scene *s, gvmm_contents contents)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = contents;
    options.directory = "/tmp";
    return gvmm_buffer_evict(s->input, &options);
}

static gvmm_result evict_to_host(scene *s) { return evict_with(s, GVMM_CONTENTS_HOST); }
static gvmm_result evict_to_file(scene *s) { return evict_with(s, GVMM_CONTENTS_FILE); }

static gvmm_result evict_all(scene *s) { return gvmm_resource_evict(s->resource, GVMM_TAG_ANY, NULL); }

static gvmm_result restore_all(scene *s)
{
    gvmm_result r = gvmm_resource_restore(s->resource, GVMM_TAG_ANY);
    gvmm_drain();
    return r;
}

static gvmm_result prepare_evict(scene *s)
{
    gvmm_result r = gvmm_resource_prepare_evict(s->resource, three_chunks * G);
    gvmm_drain();
    return r;
}

/* What the thread does is counted too. */
static gvmm_result create_with_memory_ahead(scene *s)
{
    gvmm_options options = in_chunks();
    options.ahead_count = 3;
    gvmm_result r = gvmm_resource_create(&s->out_resource, 0, &options);
    gvmm_drain();
    return r;
}

static gvmm_result export_it(scene *s) { return gvmm_buffer_export(&s->out_export, s->input, 0); }

static gvmm_result import_it(scene *s)
{
    gvmm_shared shared;
    gvmm_export_contents(s->exported, &shared);
    return gvmm_buffer_import(&s->out, s->have ? gvmm_buffer_resource(s->have) : plain, &shared, s->have, NULL);
}

/* The faults hit both sides; after one of the receiver's the sender's work is done all the same. */
static gvmm_result send_and_receive(scene *s)
{
    sending sender;
    return exchange(&s->out, plain, s->input, s->have, SOCK_STREAM, &sender);
}

static gvmm_result identities(scene *s)
{
    gvmm_identity list[8];
    size_t count = 0;
    return gvmm_buffer_identities(s->input, list, 8, &count);
}

static const operation operations[] = {
    {"resource_create", nothing, create_resource, false},
    {"resource_create host_numa_current", nothing, create_host_resource, false},
    {"buffer_create", nothing, create_buffer, false},
    {"buffer_create empty", nothing, create_empty, false},
    {"buffer_grow of an empty buffer", empty, grow_to_five, false},
    {"buffer_grow alias", hole, alias, false},
    {"buffer_grow in place", hole, grow_to_five, false},
    {"buffer_grow moved", decoy, grow_to_five, false},
    {"buffer_grow with options", with_options, grow_with_options, false},
    {"buffer_retain_in_graph", with_graph, retain_in_graph, false},
    {"buffer_retain_in_capture", with_capture, retain_in_capture, false},
    {"buffer_wrap", nothing, wrap, false},
    {"buffer_segments", hole, segments, false},
    {"resource_create with memory ahead", nothing, create_with_memory_ahead, false},
    {"buffer_create with capacity", nothing, create_with_capacity, false},
    {"buffer_create in chunks", chunked_scene, create_in_chunks, false},
    {"buffer_create striped", striped, create_in_chunks, false},
    {"buffer_grow in chunks", chunked_scene, grow_to_five, false},
    {"buffer_grow striped", striped, grow_to_five, false},
    {"buffer_grow past its capacity", chunked_scene, grow_past_capacity, false},
    {"buffer_shrink", hole, shrink, false},
    {"buffer_compose", decoy, compose, false},
    {"buffer_ring", hole, ring, false},
    {"buffer_set_access, granted", hole, grant, false},
    {"buffer_set_access, revoked", partly_read_only, take_away, false},
    {"buffer_evict to host memory", hole, evict_to_host, false},
    {"buffer_evict to a file", decoy, evict_to_file, false},
    {"resource_evict striped", striped, evict_all, false},
    {"resource_prepare_evict", chunked_scene, prepare_evict, false},
    {"buffer_restore from host memory", asleep_in_host_memory, restore, false},
    {"buffer_restore from a file", asleep_in_a_file, restore, false},
    {"resource_restore striped", striped_asleep, restore_all, false},
    {"buffer_grow of an evicted buffer", asleep_in_host_memory, grow_to_five, false},
    {"buffer_ring of an evicted buffer", asleep_in_host_memory, ring, false},
    {"buffer_set_access of an evicted buffer", asleep_in_host_memory, grant, false},
    {"buffer_identities", hole, identities, false},
    {"buffer_export", chunked_scene, export_it, false},
    {"buffer_import", exported, import_it, false},
    {"buffer_import behind what is there", imported_with_room, import_it, false},
    {"buffer_import, moved", imported_without_room, import_it, false},
    {"buffer_send and buffer_receive", chunked_scene, send_and_receive, false},
    {"buffer_send and buffer_receive of growth", imported_with_room, send_and_receive, false},
    {"buffer_close", hole, close_it, true},
    {"buffer_release", decoy, release_it, true},
    {"resource_deallocate", by_hand, deallocate, true},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

/* ---- the sweep ---- */

static bool is_documented(gvmm_result r) { return r > GVMM_OK && r <= GVMM_E_DRIVER && r != GVMM_E_PEER_GONE; }

static void ck_same_figures(const gvmm_stats *a, const gvmm_stats *b)
{
    ck_assert_uint_eq(a->physical_bytes, b->physical_bytes);
    ck_assert_uint_eq(a->mapped_bytes, b->mapped_bytes);
    ck_assert_uint_eq(a->reserved_bytes, b->reserved_bytes);
    ck_assert_uint_eq(a->buffers, b->buffers);
    ck_assert_uint_eq(a->mappings, b->mappings);
    ck_assert_uint_eq(a->memories, b->memories);
    ck_assert_uint_eq(a->reservations, b->reservations);
    ck_assert_uint_eq(a->imported_bytes, b->imported_bytes);
}

/* Chunks that keep a descriptor. */
static size_t exported_chunks(const gvmm_buffer *buffer)
{
    size_t count = 0;
    range *links = NULL;
    if (buffer && !gvmm_buffer_is_closed(buffer)) ck_ok(gvmm__buffer_borrow(&links, buffer));
    for (const range *link = links; link; link = link->before) count += gvmm__memory_is_exported(link->mapping.memory);
    gvmm__range_release(links);
    return count;
}

static void census(size_t counts[GVMM_SIM_KIND_COUNT])
{
    memset(counts, 0, GVMM_SIM_KIND_COUNT * sizeof *counts);
    if (!on_gpu) gvmm_sim_census(counts, NULL, NULL);
}

static void ck_input_intact(const scene *s, uint64_t address, size_t size)
{
    ck_assert_uint_eq(gvmm_buffer_address(s->input), address);
    ck_assert_uint_eq(gvmm_buffer_size(s->input), size);
    if (!size) return;
    ck_pattern(address, size, 1);
    for (size_t at = 0; at < size; at += G) ck_assert_uint_eq(access_of(address + at, 0), GVMM_ACCESS_READ_WRITE);
}

/* As it was before: in place and with its bytes, or asleep with a backup of them; and as open to the other device. */
static void ck_input_as_it_was(const scene *s, uint64_t address, size_t size, size_t evicted, gvmm_access second)
{
    gvmm_access now;
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(s->input), evicted);
    if (!evicted) ck_input_intact(s, address, size);
    if (!size || atomic_load(&warning_count)) return; /* access that the driver would not take back is a warning */
    ck_ok(gvmm_buffer_get_access(s->input, 1, &now));
    ck_assert_int_eq(now, second);
    for (size_t at = 0; at < size && !evicted; at += G) ck_assert_uint_eq(access_of(address + at, 1), second);
}

static void ck_input_good(const scene *s, uint64_t address, size_t size)
{
    if (size) ck_ok(gvmm_buffer_restore(s->input));
    ck_input_intact(s, address, size);
}

static void end_scene(scene *s)
{
    gvmm_buffer_release(s->out);
    gvmm_buffer_release(s->have);
    gvmm_export_release(s->exported);
    gvmm_export_release(s->out_export);
    gvmm_resource_release(s->out_resource);
    gvmm_buffer_release(s->input);
    gvmm_resource_release(s->resource);
    if (s->decoy) free_decoy(s->decoy);
    if (s->capturing) {
        ck_cu(cu->cuStreamEndCapture(s->capturing, &s->graph));
        ck_cu(cu->cuStreamDestroy(s->capturing));
    }
    if (s->graph) ck_cu(cu->cuGraphDestroy(s->graph));
    wait_for_mappings(0);
}

/* One fault. False when it did not fire any more: the sweep is done. */
static bool sweep_step(const operation *op, uint64_t nth, bool onwards)
{
    scene s = {0};
    op->prepare(&s);
    uint64_t address = gvmm_buffer_address(s.input);
    size_t size = gvmm_buffer_size(s.input), evicted = gvmm_buffer_evicted_bytes(s.input);
    gvmm_access second = GVMM_ACCESS_NONE;
    if (size) ck_ok(gvmm_buffer_get_access(s.input, 1, &second));
    size_t counts[GVMM_SIM_KIND_COUNT], counts_after[GVMM_SIM_KIND_COUNT];
    gvmm_stats before, after;
    gvmm_drain();
    census(counts);
    gvmm_get_stats(NULL, &before);
    size_t exported = exported_chunks(s.input);
    atomic_store(&warning_count, 0);

    fault(nth, onwards);
    gvmm_result r = op->run(&s);
    bool fired = gvmm_faults_injected() > 0;
    ck_ok(gvmm_faults_set(NULL));

    if (op->gives_back) {
        ck_ok(r);
        if (!fired) ck_no_warnings();
    } else if (r) {
        ck_assert_msg(is_documented(r), "%s: %s", op->name, gvmm_result_name(r));
        gvmm_error error;
        gvmm_last_error(&error);
        bool is_mine = op->run != send_and_receive; /* which may tell of the other thread's */
        ck_assert_msg(!is_mine || error.result == r, "%s: %s, and told is %s", op->name, gvmm_result_name(r),
                      gvmm_result_name(error.result));
        ck_assert_str_ne(error.text, "");
        ck_assert(!s.out && !s.out_resource && !s.out_export);
        wait_for_mappings(before.mappings); /* what a failed retention gave up is on its way */
        gvmm_get_stats(NULL, &after);
        ck_same_figures(&before, &after);
        if (op->run != send_and_receive) ck_assert_uint_eq(exported_chunks(s.input), exported);
        census(counts_after);
        for (int kind = 0; kind < GVMM_SIM_USER_OBJECT; kind++) ck_assert_uint_eq(counts[kind], counts_after[kind]);
        ck_input_as_it_was(&s, address, size, evicted, second);
        ck_ok(op->run(&s)); /* the same call then succeeds */
        ck_input_good(&s, address, size);
    } else {
        ck_input_good(&s, address, size);
    }
    if (!fired) ck_ok(r);
    end_scene(&s);
    ck_nothing_left();
    return fired;
}

START_TEST(sweep_once)
{
    uint64_t nth = 1;
    while (sweep_step(&operations[_i], nth, false)) ck_assert_uint_lt(++nth, 500);
}
END_TEST

START_TEST(sweep_onwards)
{
    uint64_t nth = 1;
    while (sweep_step(&operations[_i], nth, true)) ck_assert_uint_lt(++nth, 500);
}
END_TEST

/* ---- which error ---- */

/* The first failure is the one that is told, whatever fails while it is undone. */
START_TEST(the_first_failure_wins)
{
    gvmm_buffer *out = NULL;
    gvmm_error error;
    fault_call("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN);
    ck_fails(gvmm_buffer_create(&out, plain, G, NULL), GVMM_E_DRIVER);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemSetAccess");
    ck_assert_int_eq(error.status, CUDA_ERROR_UNKNOWN);
    ck_assert_str_eq(error.object, "mapping");

    fault(4, true); /* buffer, reservation, reserve, then everything */
    ck_fails(gvmm_buffer_create(&out, plain, G, NULL), GVMM_E_NO_HOST_MEMORY);
    ck_assert_int_gt(atomic_load(&warning_count), 0); /* the failing undo is a warning */
    gvmm_last_error(&error);
    ck_assert_int_eq(error.result, GVMM_E_NO_HOST_MEMORY);
    ck_assert_ptr_null(error.call);
    ck_assert_ptr_null(out);
}
END_TEST

START_TEST(what_ran_out_is_told_apart)
{
    gvmm_buffer *out = NULL;
    gvmm_error error;
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_buffer_create(&out, plain, G, NULL), GVMM_E_NO_DEVICE_MEMORY);
    fault_call("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_buffer_create(&out, plain, G, NULL), GVMM_E_NO_ADDRESS_SPACE);
    fault_call("malloc", 1, 0);
    ck_fails(gvmm_buffer_create(&out, plain, G, NULL), GVMM_E_NO_HOST_MEMORY);
    gvmm_last_error(&error);
    ck_assert_int_eq(error.status, 0);
    ck_assert_ptr_null(error.call);

    gvmm_options options = waiting_options();
    options.location = GVMM_LOCATION_HOST_NUMA_CURRENT;
    gvmm_resource *host = resource_with(options);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_buffer_create(&out, host, G, NULL), GVMM_E_NO_HOST_MEMORY);
    gvmm_resource_release(host);
    fault_call("cuMemAddressReserve", 1, CUDA_ERROR_NOT_SUPPORTED); /* a virtual GPU */
    ck_fails(gvmm_buffer_create(&out, plain, G, NULL), GVMM_E_UNSUPPORTED);
    ck_names("cuMemAddressReserve");
    fault_call("cuMemCreate", 1, CUDA_ERROR_NOT_PERMITTED);
    ck_fails(gvmm_buffer_create(&out, plain, G, NULL), GVMM_E_NOT_PERMITTED);
}
END_TEST

/* A probe that is refused, or granted elsewhere, costs nothing and is not heard of again. */
START_TEST(a_failed_probe_becomes_a_move)
{
    gvmm_buffer *small = buffer_with_hole_behind(plain, G, G);
    fault_call("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer *large = grow(small, 2 * G);
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    ck_assert_uint_ne(gvmm_buffer_address(large), gvmm_buffer_address(small));
    gvmm_buffer_release(large);

    fault_call("cuMemMap", 1, CUDA_ERROR_UNKNOWN); /* granted, but not to be mapped: moved */
    large = grow(small, 2 * G);
    ck_assert_uint_ne(gvmm_buffer_address(large), gvmm_buffer_address(small));
    gvmm_buffer_release(large);

    gvmm_error error;
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuMemMap", CUDA_ERROR_UNKNOWN}));
    ck_fails(gvmm_buffer_grow(&large, small, 2 * G, NULL), GVMM_E_DRIVER);
    gvmm_last_error(&error);
    ck_assert_str_eq(error.call, "cuMemMap");
    gvmm_buffer_release(small);
    ck_no_warnings();
}
END_TEST

START_TEST(plans_are_read_from_text)
{
    const char *good[] = {"3", "3+", "cuMemMap:2", "cuMemMap:2+=NOT_SUPPORTED", "malloc:1", "7=ERROR_UNKNOWN"};
    const char *bad[] = {"", "0", "x", "cuMemMop:1", "cuMemMap:", "1=NOT_A_STATUS", "1=SUCCESS", "-1", "1 ", "1+x"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) ck_ok(gvmm_faults_set_text(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_fails(gvmm_faults_set_text(bad[i]), GVMM_E_INVALID);
        ck_names("fault plan");
    }
    ck_fails(gvmm_faults_set(&(gvmm_fault){.nth = 1, .call = "cuNope"}), GVMM_E_INVALID);
    ck_names("cuNope");
    gvmm_buffer *out = NULL;
    ck_ok(gvmm_faults_set_text("cuMemCreate:2=NOT_PERMITTED"));
    gvmm_buffer *first = create(plain, G);
    ck_fails(gvmm_buffer_create(&out, plain, G, NULL), GVMM_E_NOT_PERMITTED);
    gvmm_buffer_release(first);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("faults");
    TCase *sweep = add_case(suite, "sweep");
    tcase_add_loop_test(sweep, sweep_once, 0, OPERATIONS);
    tcase_add_loop_test(sweep, sweep_onwards, 0, OPERATIONS);
    TCase *errors = add_case(suite, "which error");
    tcase_add_test(errors, the_first_failure_wins);
    tcase_add_test(errors, what_ran_out_is_told_apart);
    tcase_add_test(errors, a_failed_probe_becomes_a_move);
    tcase_add_test(errors, plans_are_read_from_text);
    return run_suites(suite, NULL);
}

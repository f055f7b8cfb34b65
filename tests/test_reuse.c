/* Kept memory: what a resource hands out again without calling the driver for it, to whom, and what it must not
 * keep. */
#include "watch.h"

enum { LIMIT = 16 }; /* chunks */

static gvmm_resource *keeping;

static gvmm_options keeping_options(void)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = LIMIT * G;
    return options;
}

/* In place of the one that each test begins with. */
static void keep_with(gvmm_options options)
{
    gvmm_resource_release(keeping);
    keeping = resource_with(options);
}

static void begin(void) { keeping = resource_with(keeping_options()); }

static void finish(void)
{
    gvmm_resource_release(keeping);
    gvmm_drain();
    ck_no_warnings();
}

static gvmm_buffer *make(size_t size, gvmm_stream on)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, keeping, size, on));
    return buffer;
}

static gvmm_stats figures(void)
{
    gvmm_stats stats;
    gvmm_get_stats(keeping, &stats);
    return stats;
}

static uint64_t kept(void) { return figures().kept_bytes; }

/* Makes one and releases it; its address, to be compared. */
static uint64_t leave(size_t size, gvmm_stream on)
{
    gvmm_buffer *buffer = make(size, on);
    uint64_t address = gvmm_buffer_address(buffer);
    gvmm_buffer_release(buffer);
    return address;
}

/* Is the memory handed out again when a buffer is made on that stream? */
static bool is_reused(uint64_t address, size_t size, gvmm_stream on)
{
    uint64_t before = figures().reused;
    gvmm_buffer *buffer = make(size, on);
    bool reused = figures().reused == before + 1;
    ck_assert(!reused || gvmm_buffer_address(buffer) == address);
    ck_ok(gvmm_buffer_close(buffer, NULL)); /* which does not keep it */
    gvmm_buffer_release(buffer);
    return reused;
}

/* Is all work of the stream so far done? */
static bool is_idle(CUstream s)
{
    CUresult status = cu->cuStreamQuery(s);
    ck_assert(status == CUDA_SUCCESS || status == CUDA_ERROR_NOT_READY);
    return status == CUDA_SUCCESS;
}

/* ---- to whom ---- */

START_TEST(the_same_stream_has_it_at_once)
{
    uint64_t address = leave(G, stream);
    ck_assert_uint_eq(kept(), G);
    gate *g = gate_on(stream); /* nobody waits for this */
    watch();
    gvmm_buffer *buffer = make(G, stream);
    ck_calls("cuStreamIsCapturing cuStreamGetId");
    ck_assert_uint_eq(gvmm_buffer_address(buffer), address);
    ck_assert_ptr_eq(gvmm_buffer_stream(buffer), stream);
    ck_assert(!gvmm_buffer_is_closed(buffer));
    ck_assert_uint_eq(kept(), 0);
    watch();
    gvmm_buffer_release(buffer);
    ck_calls("cuStreamIsCapturing cuEventRecord cuStreamIsCapturing"); /* the event is the same again */
    ck_assert_uint_eq(kept(), G);
    ck_mapped(address);
    gate_end(g);
}
END_TEST

START_TEST(where_streams_outlive_nothing_is_recorded)
{
    gvmm_options options = keeping_options();
    options.streams_outlive = true;
    keep_with(options);
    uint64_t address = leave(G, stream);
    watch();
    gvmm_buffer *buffer = make(G, stream);
    gvmm_buffer_release(buffer);
    ck_calls("cuStreamIsCapturing cuStreamIsCapturing");
    ck_assert(is_reused(address, G, stream));
}
END_TEST

/* What comes on `to` runs after the work that was on `from`, and the host waits for neither. */
static void ck_waits_for_the_other(gvmm_stream from, gvmm_stream to)
{
    gvmm_buffer *first = make(G, from);
    uint64_t address = gvmm_buffer_address(first);
    gate *g = gate_on(from);
    ck_cu(cu->cuMemsetD8Async(address, 1, G, from));
    gvmm_buffer_release(first);
    gvmm_buffer *second = make(G, to);
    ck_assert_uint_eq(gvmm_buffer_address(second), address);
    ck_cu(cu->cuMemsetD8Async(address, 2, G, to));
    ck_assert(!is_idle(to));
    gate_open(g);
    ck_cu(cu->cuStreamSynchronize(to));
    gate_end(g);
    ck_filled(address, 2, G);
    gvmm_buffer_release(second);
}

START_TEST(another_stream_waits)
{
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    ck_waits_for_the_other(stream, other);
    ck_waits_for_the_other(other, stream);
    ck_waits_for_the_other(CU_STREAM_LEGACY, stream);
    ck_waits_for_the_other(stream, CU_STREAM_LEGACY);
    gvmm_resource_trim(keeping, 0);
    gvmm_drain();
    ck_cu(cu->cuStreamDestroy(other));
}
END_TEST

START_TEST(another_stream_waits_where_streams_outlive)
{
    gvmm_options options = keeping_options();
    options.streams_outlive = true;
    keep_with(options);
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    ck_waits_for_the_other(stream, other);
    ck_waits_for_the_other(CU_STREAM_LEGACY, other);
    ck_waits_for_the_other(other, CU_STREAM_LEGACY);
    gvmm_resource_release(keeping);
    gvmm_drain();
    ck_cu(cu->cuStreamDestroy(other));
    begin();
}
END_TEST

/* A thread's own default stream is recorded as the legacy one, and is not taken for it here: it has to wait. */
START_TEST(a_per_thread_stream_waits_for_the_legacy_one)
{
    uint64_t address = leave(G, CU_STREAM_LEGACY);
    watch();
    ck_assert(is_reused(address, G, CU_STREAM_PER_THREAD));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamWaitEvent), 1);
    address = leave(G, CU_STREAM_PER_THREAD);
    watch();
    ck_assert(is_reused(address, G, NULL));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamWaitEvent), 0);
}
END_TEST

/* A handle comes back with the next stream, but is not the same stream. */
START_TEST(a_new_stream_with_an_old_handle_waits)
{
    CUstream first = new_stream(CU_STREAM_NON_BLOCKING);
    uint64_t address = leave(G, first);
    ck_cu(cu->cuStreamDestroy(first));
    CUstream second = new_stream(CU_STREAM_NON_BLOCKING);
    watch();
    ck_assert(is_reused(address, G, second));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamWaitEvent), 1);
    ck_cu(cu->cuStreamDestroy(second));
}
END_TEST

/* Nor is one that has no number the same as another without. */
START_TEST(streams_without_a_number_are_not_the_same)
{
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuStreamGetId", CUDA_ERROR_UNKNOWN}));
    uint64_t address = leave(G, stream);
    watch();
    ck_assert(is_reused(address, G, stream));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamWaitEvent), 1);
    ck_ok(gvmm_faults_set(NULL));
}
END_TEST

START_TEST(a_replaced_stream_counts)
{
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    gvmm_buffer *buffer = make(G, stream);
    uint64_t address = gvmm_buffer_address(buffer);
    ck_ok(gvmm_buffer_set_stream(buffer, other));
    gvmm_buffer_release(buffer);
    watch();
    ck_assert(is_reused(address, G, stream));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamWaitEvent), 1);
    buffer = make(G, stream);
    address = gvmm_buffer_address(buffer);
    ck_ok(gvmm_buffer_close_deferred(buffer, NULL)); /* the handle stays, closed; the stream is the same */
    gvmm_buffer_release(buffer);
    watch();
    ck_assert(is_reused(address, G, stream));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamWaitEvent), 0);
    buffer = make(G, stream);
    address = gvmm_buffer_address(buffer);
    ck_ok(gvmm_buffer_close_deferred(buffer, other));
    ck_assert(gvmm_buffer_is_closed(buffer));
    ck_assert_uint_eq(gvmm_buffer_size(buffer), 0);
    watch();
    ck_assert(is_reused(address, G, stream));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuStreamWaitEvent), 1);
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuStreamDestroy(other));
}
END_TEST

START_TEST(only_the_same_size_is_reused)
{
    uint64_t address = leave(2 * G, stream);
    ck_assert(!is_reused(address, G, stream));
    ck_assert(!is_reused(address, 3 * G, stream));
    ck_assert(is_reused(address, 2 * G - 1, stream)); /* rounded up */
}
END_TEST

START_TEST(host_memory_is_kept_too)
{
    gvmm_options options = keeping_options();
    options.location = GVMM_LOCATION_HOST;
    options.handle_type = GVMM_HANDLE_NONE;
    keep_with(options);
    uint64_t address = leave(G, NULL);
    ck_assert(is_reused(address, G, NULL));
    address = leave(G, NULL);
    ck_assert(is_reused(address, G, stream)); /* there was nothing to wait for */
    address = leave(G, stream);
    ck_assert(!is_reused(address, G, NULL)); /* here there may be, and the host waits for nobody */
    address = leave(G, stream);
    ck_assert(is_reused(address, G, stream));
}
END_TEST

/* ---- captures ---- */

START_TEST(a_capturing_stream_is_given_new_memory)
{
    CUgraph graph;
    uint64_t address = leave(G, stream);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    gvmm_buffer *buffer = make(G, stream);
    ck_assert_uint_ne(gvmm_buffer_address(buffer), address);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuGraphDestroy(graph));
}
END_TEST

START_TEST(what_a_capture_may_use_is_not_kept)
{
    CUgraph graph;
    gvmm_buffer *buffer = make(G, stream);
    uint64_t address = gvmm_buffer_address(buffer);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async(address, 7, G, stream));
    gvmm_buffer_release(buffer);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_assert_uint_eq(kept(), 0);
    gvmm_drain();
    ck_mapped(address); /* the graph holds it */
    ck_assert(!is_reused(address, G, stream));
    ck_cu(cu->cuGraphDestroy(graph));
    wait_for_mappings(0);
}
END_TEST

/* It has its event: the mode that cannot be changed is not needed, and waiting here without it would end the capture. */
START_TEST(trimming_needs_no_mode)
{
    CUgraph graph;
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    uint64_t address = leave(G, other);
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fault_call("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_UNKNOWN);
    ck_assert_uint_eq(gvmm_resource_trim(keeping, 0), G);
    fault(0, false);
    gvmm_drain();
    ck_released(address, G);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuStreamDestroy(other));
}
END_TEST

START_TEST(a_default_stream_beside_a_capture_is_left_alone)
{
    CUstream blocking;
    CUgraph graph;
    ck_cu(cu->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    uint64_t address = leave(G, NULL);
    gvmm_buffer *second = make(2 * G, NULL);
    ck_cu(cu->cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
    gvmm_buffer *first = make(G, NULL);
    ck_assert_uint_ne(gvmm_buffer_address(first), address);
    gvmm_buffer_release(second);
    ck_assert_uint_eq(kept(), G);
    ck_cu(cu->cuStreamEndCapture(blocking, &graph)); /* not disturbed */
    gvmm_buffer_release(first);
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuStreamDestroy(blocking));
}
END_TEST

/* ---- what is kept, and how much ---- */

static gvmm_buffer *other_view(gvmm_buffer *buffer)
{
    gvmm_buffer *view;
    ck_ok(gvmm_buffer_grow(&view, buffer, 0, NULL));
    return view;
}

START_TEST(what_others_show_is_not_kept)
{
    gvmm_buffer *buffer = make(G, stream), *alias = other_view(buffer), *twice;
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(kept(), 0);
    ck_ok(gvmm_buffer_ring(&twice, alias, 2)); /* the memory has other addresses */
    gvmm_buffer_release(alias);
    ck_assert_uint_eq(kept(), 0);
    gvmm_buffer_release(twice);
    gvmm_drain();
    ck_assert_uint_eq(kept(), 0);

    buffer = make(G, stream); /* but the last of several views is like a new one */
    alias = other_view(buffer);
    gvmm_buffer_release(buffer);
    gvmm_drain();
    gvmm_buffer_release(alias);
    ck_assert_uint_eq(kept(), G);
}
END_TEST

START_TEST(what_was_changed_is_not_kept)
{
    gvmm_buffer *buffer = make(G, stream), *longer;
    ck_ok(gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ));
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(kept(), 0);
    buffer = make(G, stream); /* of two chunks, where a new one has one */
    ck_ok(gvmm_buffer_grow(&longer, buffer, 2 * G, NULL));
    gvmm_buffer_release(buffer);
    gvmm_drain();
    gvmm_buffer_release(longer);
    ck_assert_uint_eq(kept(), 0);
    buffer = make(G, stream);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(kept(), 0);
    gvmm_buffer_release(make(0, stream));
    ck_assert_uint_eq(kept(), 0);
}
END_TEST

START_TEST(what_waited_is_not_kept)
{
    gvmm_buffer *buffer = make(G, stream);
    uint64_t address = gvmm_buffer_address(buffer);
    ck_ok(gvmm_buffer_close(buffer, NULL));
    gvmm_buffer_release(buffer);
    ck_released(address, G);
    gvmm_options options = keeping_options();
    options.release_mode = GVMM_RELEASE_SYNC;
    keep_with(options);
    address = leave(G, stream);
    ck_released(address, G);
}
END_TEST

START_TEST(a_range_of_chunks_is_kept_whole)
{
    gvmm_options options = keeping_options();
    options.chunk_size = G;
    keep_with(options);
    uint64_t address = leave(5 * G, stream);
    ck_assert_uint_eq(kept(), 5 * G);
    ck_assert(is_reused(address, 5 * G, stream));
    gvmm_buffer *part = make(2 * G, stream), *grown; /* grown by the same chunks, it is like a new one */
    ck_ok(gvmm_buffer_grow(&grown, part, 4 * G, NULL));
    gvmm_buffer_release(part);
    gvmm_drain();
    address = gvmm_buffer_address(grown);
    gvmm_buffer_release(grown);
    ck_assert(is_reused(address, 4 * G, stream));
}
END_TEST

START_TEST(a_capacity_comes_back_with_it)
{
    gvmm_options options = keeping_options();
    options.capacity = 8 * G;
    keep_with(options);
    gvmm_buffer *buffer = make(G, stream), *larger;
    uint64_t address = gvmm_buffer_address(buffer);
    ck_ok(gvmm_buffer_grow(&larger, buffer, 4 * G, NULL));
    gvmm_buffer_release(larger);
    gvmm_drain();
    gvmm_buffer_release(buffer);
    buffer = make(G, stream);
    ck_assert_uint_eq(gvmm_buffer_address(buffer), address);
    ck_assert_uint_eq(gvmm_buffer_capacity(buffer), 8 * G);
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_buffer_create_with_capacity(&buffer, keeping, G, 2 * G, stream)); /* not what is kept */
    ck_assert_uint_ne(gvmm_buffer_address(buffer), address);
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(kept(), G);
    ck_ok(gvmm_buffer_create_with_capacity(&buffer, keeping, G, 8 * G, stream)); /* the resource's own: is */
    ck_assert_uint_eq(gvmm_buffer_address(buffer), address);
    ck_assert_uint_eq(kept(), 0);
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(kept(), G);
}
END_TEST

START_TEST(the_oldest_goes_at_the_limit)
{
    gvmm_buffer *buffers[LIMIT + 2];
    uint64_t addresses[LIMIT + 2];
    for (int i = 0; i < LIMIT + 2; i++) {
        buffers[i] = make(G, stream);
        addresses[i] = gvmm_buffer_address(buffers[i]);
    }
    for (int i = 0; i < LIMIT + 2; i++) {
        gvmm_buffer_release(buffers[i]);
        ck_assert_uint_le(kept(), LIMIT * G);
    }
    ck_assert_uint_eq(kept(), LIMIT * G);
    gvmm_drain();
    ck_released(addresses[0], G);
    ck_released(addresses[1], G);
    for (int i = 2; i < LIMIT + 2; i++) ck_mapped(addresses[i]);
    uint64_t large = leave((LIMIT - 1) * G, stream); /* makes way for itself */
    ck_assert_uint_eq(kept(), LIMIT * G);
    ck_mapped(addresses[LIMIT + 1]); /* the newest has stayed */
    leave((LIMIT + 1) * G, stream);  /* more than is ever kept: nothing makes way */
    ck_assert_uint_eq(kept(), LIMIT * G);
    ck_mapped(large);
}
END_TEST

START_TEST(trimming_gives_up_the_oldest)
{
    gvmm_buffer *a = make(G, stream), *b = make(G, stream), *c = make(G, stream);
    uint64_t at_a = gvmm_buffer_address(a), at_c = gvmm_buffer_address(c);
    gate *g = gate_on(stream);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_buffer_release(c);
    ck_assert_uint_eq(gvmm_resource_trim(keeping, 3 * G), 0);
    ck_assert_uint_eq(gvmm_resource_trim(keeping, G + 1), 2 * G);
    ck_assert_uint_eq(kept(), G);
    ck_mapped(at_a); /* the work before it is not done */
    gate_open(g);
    gvmm_drain();
    ck_released(at_a, G);
    ck_mapped(at_c);
    ck_assert_uint_eq(gvmm_resource_trim(NULL, 0), 0);
    ck_assert_uint_eq(gvmm_resource_trim(plain, 0), 0);
    gate_end(g);
}
END_TEST

/* Beside a newer one of `size` bytes, behind work that is not done. */
static void ck_goes_before(size_t size, size_t trimmed)
{
    gvmm_buffer *a = make(G, stream), *b = make(size, stream);
    uint64_t at_a = gvmm_buffer_address(a), at_b = gvmm_buffer_address(b);
    gvmm_stats now;
    gvmm_buffer_release(a);
    gate *g = gate_on(stream);
    gvmm_buffer_release(b);
    ck_assert_uint_eq(gvmm_resource_trim(keeping, 0), trimmed);
    do { /* Check's timeout bounds it */
        sched_yield();
        gvmm_get_stats(NULL, &now);
    } while (now.releases_waiting > 1);
    ck_released(at_a, G);
    ck_mapped(at_b);
    gate_end(g);
    gvmm_drain();
}

/* What is trimmed goes when the work before it is done, whatever the stream is about since. */
START_TEST(what_is_trimmed_waits_for_its_own_work)
{
    ck_goes_before(G, 2 * G);
    ck_goes_before((LIMIT + 1) * G, G); /* which is not kept */
}
END_TEST

START_TEST(the_limit_can_be_changed)
{
    gvmm_buffer *list[3];
    for (int i = 0; i < 3; i++) list[i] = make(G, stream);
    uint64_t oldest = gvmm_buffer_address(list[0]), newest = gvmm_buffer_address(list[2]);
    for (int i = 0; i < 3; i++) gvmm_buffer_release(list[i]);
    ck_ok(gvmm_resource_set_reuse_limit(keeping, 2 * G - 1)); /* one of them */
    ck_assert_uint_eq(kept(), G);
    gvmm_drain();
    ck_released(oldest, G);
    ck_mapped(newest);
    leave(2 * G, stream); /* larger than the limit: it goes, what is kept stays */
    ck_assert_uint_eq(kept(), G);
    ck_ok(gvmm_resource_set_reuse_limit(keeping, 0));
    leave(G, stream);
    ck_assert_uint_eq(kept(), 0);
    ck_ok(gvmm_resource_set_reuse_limit(keeping, UINT64_MAX));
    leave((LIMIT + 1) * G, stream);
    ck_assert_uint_eq(kept(), (LIMIT + 1) * G);
    ck_fails(gvmm_resource_set_reuse_limit(plain, G), GVMM_E_INVALID);
    ck_names("reuse_limit");
    ck_fails(gvmm_resource_set_reuse_limit(NULL, G), GVMM_E_INVALID);
    ck_names("resource");
}
END_TEST

START_TEST(all_goes_with_the_last_user)
{
    uint64_t address = leave(G, stream);
    gvmm_buffer *last = make(2 * G, stream);
    gvmm_resource *again = gvmm_resource_retain(keeping);
    gvmm_resource_release(again);
    ck_mapped(address);
    gvmm_resource_release(keeping);
    gvmm_drain();
    ck_released(address, G);
    address = gvmm_buffer_address(last);
    gvmm_buffer_release(last); /* with nobody to be kept for */
    gvmm_drain();
    ck_released(address, 2 * G);
    begin();
}
END_TEST

START_TEST(an_evicted_resource_keeps_nothing)
{
    uint64_t address = leave(G, stream);
    gvmm_buffer *open = make(G, stream);
    gvmm_buffer *other = make(G, stream);
    gvmm_buffer_release(other);
    ck_ok(gvmm_resource_evict(keeping, GVMM_TAG_ANY, NULL));
    ck_assert_uint_eq(kept(), 0);
    ck_assert_uint_eq(figures().physical_bytes, 0);
    ck_ok(gvmm_resource_restore(keeping, GVMM_TAG_ANY));
    ck_assert_uint_eq(figures().physical_bytes, G);
    ck_assert_uint_eq(gvmm_buffer_address(open), address);
    gvmm_buffer_release(open);
}
END_TEST

/* A buffer tells its resource, whose users may begin and end again. */
START_TEST(the_last_user_can_come_again)
{
    gvmm_buffer *buffer = make(G, stream), *another;
    gvmm_resource_release(keeping);
    for (int i = 0; i < 2; i++) {
        gvmm_resource *again = gvmm_resource_retain(gvmm_buffer_resource(buffer));
        ck_ok(gvmm_buffer_create(&another, again, G, stream));
        gvmm_buffer_release(another);
        gvmm_resource_release(again);
    }
    gvmm_buffer_release(buffer);
    begin();
}
END_TEST

/* Released while it is evicted: neither it nor the backup of its contents is kept for nobody. */
START_TEST(evicted_memory_is_not_kept)
{
    gvmm_buffer *buffer = make(G, stream);
    gvmm_stats now;
    ck_ok(gvmm_resource_evict(keeping, GVMM_TAG_ANY, NULL));
    gvmm_get_stats(NULL, &now);
    ck_assert_uint_eq(now.pinned_bytes, G);
    gvmm_buffer_release(buffer);
    gvmm_drain();
    gvmm_get_stats(NULL, &now);
    ck_assert_uint_eq(now.pinned_bytes, 0);
    ck_assert_uint_eq(kept(), 0);
    ck_ok(gvmm_resource_restore(keeping, GVMM_TAG_ANY)); /* has nothing to do */
    ck_assert_uint_eq(figures().physical_bytes, 0);
}
END_TEST

/* A failing allocation, here or for another resource, gets what is kept. */
START_TEST(kept_memory_makes_room)
{
    leave(4 * G, stream);
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gvmm_buffer *buffer = create(plain, G);
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(kept(), 0);
    ck_assert_uint_eq(figures().physical_bytes, 0); /* gone before it was tried again */
    gvmm_buffer_release(buffer);
}
END_TEST

/* A restore too: what it had made of the memory by then is made once more. */
START_TEST(kept_memory_makes_room_for_a_restore)
{
    gvmm_options options = waiting_options();
    options.chunk_size = G;
    gvmm_resource *in_chunks = resource_with(options);
    gvmm_buffer *buffer = create(in_chunks, 4 * G);
    write_pattern(gvmm_buffer_address(buffer), 4 * G, 1);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    leave(4 * G, stream);
    fault_call("cuMemCreate", 3, CUDA_ERROR_OUT_OF_MEMORY);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(kept(), 0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
    ck_assert_uint_eq(gvmm_buffer_generation(buffer), 4);
    ck_pattern(gvmm_buffer_address(buffer), 4 * G, 1);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(in_chunks);
}
END_TEST

/* While a stream captures: kept memory is what no capture uses, and unmapping it harms none. */
START_TEST(kept_memory_makes_room_beside_a_capture)
{
    CUstream capturing = new_stream(CU_STREAM_NON_BLOCKING);
    CUgraph graph;
    gvmm_buffer *buffer, *none = NULL;
    uint64_t address = leave(4 * G, stream);
    ck_cu(cu->cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    buffer = make(G, capturing);
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    ck_assert_uint_eq(kept(), 0);
    ck_released(address, 4 * G);
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY}));
    ck_fails(gvmm_buffer_create(&none, keeping, G, capturing), GVMM_E_NO_DEVICE_MEMORY);
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_cu(cu->cuStreamEndCapture(capturing, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    gvmm_buffer_release(buffer);
    gvmm_drain();
    gvmm_resource_trim(keeping, 0);
    gvmm_drain();
    ck_cu(cu->cuStreamDestroy(capturing));
}
END_TEST

/* ---- contents ---- */

START_TEST(contents_stay_unless_asked_for)
{
    gvmm_buffer *buffer = make(G, stream);
    uint64_t address = gvmm_buffer_address(buffer);
    fill(address, 0x5a, G);
    gvmm_buffer_release(buffer);
    buffer = make(G, stream);
    ck_filled(address, 0x5a, G);
    gvmm_buffer_release(buffer);

    gvmm_options options = keeping_options();
    options.zero_reused = true;
    keep_with(options);
    gvmm_stream streams[] = {stream, NULL};
    for (int i = 0; i < 2; i++) {
        buffer = make(G, streams[i]);
        fill(gvmm_buffer_address(buffer), 0x5a, G);
        gvmm_buffer_release(buffer);
        buffer = make(G, streams[i]);
        ck_cu(cu->cuCtxSynchronize()); /* in order of the stream */
        ck_filled(gvmm_buffer_address(buffer), 0, G);
        gvmm_buffer_release(buffer);
        gvmm_resource_trim(keeping, 0);
    }
    ck_assert_uint_eq(figures().reused, 2);
    gvmm_drain();
    fault_call("cuMemsetD8Async", 1, CUDA_ERROR_UNKNOWN);
    leave(G, stream);
    buffer = make(G, stream); /* what cannot be made zero is not handed out */
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    gvmm_drain();
    ck_ok(gvmm_faults_set(NULL));
    ck_filled(gvmm_buffer_address(buffer), 0, G);
    ck_assert_uint_eq(figures().reused, 2);
    ck_assert_uint_eq(figures().buffers, 1);
    gvmm_buffer_release(buffer);
    options.location = GVMM_LOCATION_HOST;
    options.handle_type = GVMM_HANDLE_NONE;
    gvmm_resource *none;
    ck_fails(gvmm_resource_create(&none, 0, &options), GVMM_E_INVALID);
    ck_names("zero_reused");
}
END_TEST

/* ---- figures, failures ---- */

START_TEST(the_figures_know)
{
    gvmm_stats all, before = figures();
    gvmm_get_stats(NULL, &all);
    gvmm_buffer *a = make(G, stream), *b = make(G, stream);
    gvmm_buffer_release(a);
    a = make(G, stream);
    gvmm_stats now = figures(), all_now;
    gvmm_get_stats(NULL, &all_now);
    ck_assert_uint_eq(now.buffers - before.buffers, 2);
    ck_assert_uint_eq(all_now.buffers - all.buffers, 2);
    ck_assert_uint_eq(now.allocations - before.allocations, 3);
    ck_assert_uint_eq(now.reused - before.reused, 1);
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    now = figures();
    ck_assert_uint_eq(now.buffers, before.buffers);
    ck_assert_uint_eq(now.kept_bytes, 2 * G);
    ck_assert_uint_eq(now.physical_bytes, 2 * G);
    uint64_t reused = now.reused;
    gvmm_resource *same = keeping;
    gvmm_buffer *holder = make(G, stream); /* the resource's figures outlive its cache */
    gvmm_resource_release(same);
    gvmm_drain();
    now = figures();
    ck_assert_uint_eq(now.buffers, 1);
    ck_assert_uint_eq(now.reused, reused + 1);
    ck_assert_uint_eq(now.kept_bytes, 0);
    gvmm_buffer_release(holder);
    gvmm_drain();
    begin();
}
END_TEST

static void *release_without_memory(void *buffer)
{
    ck_fails(gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    fault_call("malloc", 1, CUDA_ERROR_OUT_OF_MEMORY); /* a thread's first needs some */
    gvmm_buffer_release(buffer);
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    fault(0, false);
    ck_names("buffer is NULL");
    return NULL;
}

static void *keep_one(void *unused)
{
    leave(G, stream);
    return unused;
}

/* What a thread has left is the next one's, which needs no host memory of its own. */
START_TEST(threads_that_end_leave_their_place)
{
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        fault_call("malloc", i ? 1 : 1000, CUDA_ERROR_OUT_OF_MEMORY);
        ck_assert_int_eq(pthread_create(&thread, NULL, keep_one, NULL), 0);
        pthread_join(thread, NULL);
        ck_assert_uint_eq(gvmm_faults_injected(), 0);
        fault(0, false);
    }
    ck_assert_uint_eq(kept(), G);
    ck_assert_uint_eq(figures().reused, 2);
}
END_TEST

/* What never fails leaves the thread's last failure as it was, whether it can keep something or not. */
START_TEST(what_cannot_be_kept_is_no_failure)
{
    pthread_t thread;
    leave(G, stream);
    ck_fails(gvmm_buffer_close(NULL, NULL), GVMM_E_INVALID);
    fault_call("malloc", 1, CUDA_ERROR_OUT_OF_MEMORY); /* no thread can be had, so it waits */
    ck_assert_uint_eq(gvmm_resource_trim(keeping, 0), G);
    fault(0, false);
    ck_names("buffer is NULL");
    ck_assert_int_eq(pthread_create(&thread, NULL, release_without_memory, make(G, stream)), 0);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(kept(), 0);
    ck_no_warnings();
}
END_TEST

/* Whatever fails: the memory is kept or goes back, and a buffer is made or nothing is left of it. */
static void sweep(bool outlive, bool onwards)
{
    for (uint64_t nth = 1, fired = 1; fired; nth++) {
        ck_assert_uint_lt(nth, 200);
        gvmm_options options = keeping_options();
        options.streams_outlive = outlive;
        options.zero_reused = true;
        keep_with(options);
        gvmm_drain(); /* nobody makes calls when a fault is planned */
        CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
        gvmm_buffer *made[3] = {make(G, stream), make(G, stream), NULL};
        fault(nth, onwards);
        gvmm_buffer_release(made[0]);
        ck_ok(gvmm_buffer_close_deferred(made[1], NULL));
        made[0] = NULL;
        gvmm_result a = gvmm_buffer_create(&made[0], keeping, G, stream);
        gvmm_result b = gvmm_buffer_create(&made[2], keeping, G, other);
        gvmm_resource_trim(keeping, G);
        gvmm_drain();
        fired = gvmm_faults_injected();
        ck_ok(gvmm_faults_set(NULL));
        ck_assert((a == GVMM_OK) == (made[0] != NULL) && (b == GVMM_OK) == (made[2] != NULL));
        ck_assert_uint_eq(figures().buffers, (uint64_t)(made[0] != NULL) + (made[2] != NULL));
        for (int i = 0; i < 3; i++) gvmm_buffer_release(made[i]);
        gvmm_buffer *works = make(G, stream);
        ck_filled(gvmm_buffer_address(works), 0, G);
        gvmm_buffer_release(works);
        gvmm_resource_trim(keeping, 0);
        gvmm_drain();
        ck_assert_uint_eq(figures().physical_bytes, 0);
        ck_cu(cu->cuStreamDestroy(other));
        atomic_store(&warning_count, 0); /* some were right */
    }
}

START_TEST(whatever_fails_nothing_is_lost) { sweep(_i & 1, _i & 2); }
END_TEST

/* ---- threads ---- */

enum { THREADS = 8, ROUNDS = 300 };

static void *make_and_release(void *data)
{
    ck_cu(cu->cuCtxSetCurrent(data));
    CUstream own = new_stream(CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < ROUNDS; i++) {
        gvmm_buffer *a = make(G, own), *b = make((1 + i % 2) * G, own);
        gvmm_buffer_release(a);
        gvmm_buffer_release(b);
    }
    ck_cu(cu->cuStreamDestroy(own));
    return NULL;
}

static void pair(bool close, gvmm_stream on)
{
    gvmm_buffer *buffer = make(G, on);
    if (close) ck_ok(gvmm_buffer_close_deferred(buffer, NULL));
    gvmm_buffer_release(buffer);
}

static uint64_t calls_counted(void)
{
    gvmm_stats stats;
    gvmm_get_stats(NULL, &stats);
    return stats.driver_calls;
}

static unsigned calls_made(void)
{
    unsigned all = 0;
    for (int call = 0; call < GVMM_CALL_COUNT; call++) all += calls_of((gvmm_driver_call)call);
    return all;
}

/* Whoever counts them. */
START_TEST(every_driver_call_is_counted)
{
    CUgraph graph;
    gvmm_options options = keeping_options();
    for (int i = 0; i < 8; i++) {
        gvmm_stream on = i & 1 ? stream : NULL;
        options.streams_outlive = i & 4;
        keep_with(options);
        pair(i & 2, on);
        gvmm_drain();
        uint64_t before = calls_counted();
        watch();
        for (int k = 0; k < 5; k++) pair(i & 2, on);
        ck_assert_uint_eq(calls_counted() - before, calls_made());
        ck_assert_uint_eq(figures().reused, 5);
    }
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    uint64_t before = calls_counted();
    watch();
    gvmm_buffer *fresh = make(G, stream);
    ck_assert_uint_eq(calls_counted() - before, calls_made());
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    gvmm_buffer_release(fresh);
}
END_TEST

START_TEST(threads_share_it)
{
    pthread_t threads[THREADS];
    CUcontext context;
    ck_cu(cu->cuCtxGetCurrent(&context));
    for (int round = 0; round < 2; round++) { /* the second ones take over what the first have left */
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, make_and_release, context), 0);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
    gvmm_stats now = figures();
    ck_assert_uint_eq(now.buffers, 0);
    ck_assert_uint_eq(now.allocations, 2 * THREADS * ROUNDS * 2);
    ck_assert_uint_gt(now.reused, THREADS * ROUNDS);
    ck_assert_uint_le(now.kept_bytes, LIMIT * G);
}
END_TEST

static void *release_in_thread(void *data)
{
    gvmm_buffer_release(data);
    return NULL;
}

START_TEST(what_one_thread_releases_another_is_given)
{
    for (int i = 0; i < 20; i++) {
        gvmm_buffer *buffer = make(G, stream);
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, release_in_thread, buffer), 0);
        pthread_join(thread, NULL);
    }
    ck_assert_uint_eq(figures().reused, 19);
    ck_assert_uint_eq(figures().memories, 1);
}
END_TEST

static gvmm_resource *to_end;

static void end_resource(void *unused, const gvmm_error *error)
{
    (void)unused;
    (void)error;
    gvmm_resource_release(to_end);
    to_end = NULL;
}

/* It would wait for the call that it is told of, which drops what another resource needs the room of. */
START_TEST(a_warning_handler_may_end_a_cache_that_drops)
{
    gvmm_buffer *buffers[2];
    to_end = resource_with(keeping_options());
    for (int i = 0; i < 2; i++) ck_ok(gvmm_buffer_create(&buffers[i], to_end, G, stream));
    for (int i = 0; i < 2; i++) gvmm_buffer_release(buffers[i]);
    gvmm_set_warning_handler(end_resource, NULL);
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuThreadExchangeStreamCaptureMode", CUDA_ERROR_UNKNOWN}));
    ck_assert(gvmm__reuse_trim_all());
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_ptr_null(to_end);
}
END_TEST

enum { KEPT = 10 };

static void *keep_many(void *chunks)
{
    gvmm_buffer *many[KEPT];
    for (int i = 0; i < KEPT; i++) many[i] = make((size_t)(uintptr_t)chunks * G, stream);
    for (int i = 0; i < KEPT; i++) gvmm_buffer_release(many[i]);
    return NULL;
}

static atomic_bool going, over;

/* By a buffer, which holds the resource. Check's assertions would take longer than all of it. */
static void *make_until_told(void *of)
{
    while (!atomic_load(&over)) {
        gvmm_buffer *buffer;
        if (gvmm_buffer_create(&buffer, gvmm_buffer_resource(of), G, stream)) abort();
        gvmm_buffer_release(buffer);
        atomic_store(&going, true);
    }
    return NULL;
}

static void wait_until_it_goes(void)
{
    atomic_store(&going, false);
    while (!atomic_load(&going)) sched_yield();
}

/* The cache's end finds what it has in the middle of what others keep: it comes and goes meanwhile. */
START_TEST(a_thread_goes_on_while_the_last_user_leaves)
{
    gvmm_options options = keeping_options();
    options.reuse_limit = 6 * KEPT * G;
    options.streams_outlive = true;
    for (int round = 0; round < 60; round++) {
        pthread_t busy, many;
        keep_with(options);
        gvmm_buffer *buffer = make(4 * G, stream);
        keep_many((void *)2);
        over = false;
        ck_assert_int_eq(pthread_create(&busy, NULL, make_until_told, buffer), 0);
        wait_until_it_goes();
        ck_assert_int_eq(pthread_create(&many, NULL, keep_many, (void *)3), 0);
        pthread_join(many, NULL);
        wait_until_it_goes();
        gvmm_resource_release(keeping);
        keeping = NULL;
        over = true;
        pthread_join(busy, NULL);
        gvmm_buffer_release(buffer);
        ck_nothing_left();
    }
    begin();
}
END_TEST

/* ---- a machine of its own ---- */

static void *keep_and_stay(void *unused)
{
    leave(G, stream);
    while (!atomic_load(&over)) atomic_store(&going, true);
    return unused;
}

/* What a thread still has of a cache that has ended is the host's alone. */
START_TEST(the_driver_can_be_replaced_while_threads_live)
{
    const gvmm_driver *used;
    pthread_t thread;
    ck_ok(gvmm_driver_get(&used));
    atomic_store(&over, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, keep_and_stay, NULL), 0);
    wait_until_it_goes();
    gvmm_resource_release(keeping);
    gvmm_resource_release(plain);
    gvmm_drain();
    ck_ok(gvmm_driver_install(used));
    ck_fails(gvmm_host_allocator_install(NULL), GVMM_E_INVALID);
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    ck_ok(gvmm_host_allocator_install(NULL));
    plain = resource_with(waiting_options());
    begin();
}
END_TEST

static gvmm_buffer *restoring;
static gvmm_stats meanwhile;

static CUresult release_and_copy(CUdeviceptr to, const void *from, size_t size, CUstream on)
{
    gvmm_buffer_release(restoring);
    gvmm_get_stats(NULL, &meanwhile);
    return gvmm_sim_driver()->cuMemcpyHtoDAsync(to, from, size, on);
}

/* Released while another thread restores it by tag: what is being copied there must not be another's by then. */
START_TEST(what_is_being_restored_is_not_kept)
{
    gvmm_driver table = *gvmm_sim_driver();
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *resource;
    ck_ok(gvmm_sim_reset(NULL));
    table.cuMemcpyHtoDAsync = release_and_copy;
    ck_ok(gvmm_driver_install(&table));
    options.reuse_limit = (size_t)64 << 20;
    ck_ok(gvmm_resource_create(&resource, 0, &options));
    ck_ok(gvmm_buffer_create(&restoring, resource, 1, NULL));
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
    ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
    ck_assert_uint_eq(meanwhile.buffers, 0);
    ck_assert_uint_eq(meanwhile.kept_bytes, 0);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

static unsigned long long streams_before; /* that had the same handle */
static unsigned waits;

static CUresult number_of_stream(CUstream of, unsigned long long *id)
{
    CUresult status = gvmm_sim_driver()->cuStreamGetId(of, id);
    *id += 1000000 * streams_before;
    return status;
}

static CUresult count_waits(CUstream s, CUevent event, unsigned flags)
{
    waits++;
    return gvmm_sim_driver()->cuStreamWaitEvent(s, event, flags);
}

/* As a driver uses handles again and the simulated one does not: by its handle, the stream is the same. */
START_TEST(a_stream_is_told_by_its_number)
{
    const gvmm_driver *sim = gvmm_sim_driver();
    gvmm_driver table = *sim;
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *resource;
    gvmm_buffer *buffer;
    CUcontext context;
    CUstream s;
    ck_ok(gvmm_sim_reset(NULL));
    table.cuStreamGetId = number_of_stream;
    table.cuStreamWaitEvent = count_waits;
    ck_ok(gvmm_driver_install(&table));
    options.reuse_limit = (size_t)64 << 20;
    ck_ok(gvmm_resource_create(&resource, 0, &options));
    ck_cu(sim->cuDevicePrimaryCtxRetain(&context, 0));
    ck_cu(sim->cuCtxSetCurrent(context));
    ck_cu(sim->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < 6; i++) {
        streams_before = i / 2;
        ck_ok(gvmm_buffer_create(&buffer, resource, 1, s));
        ck_assert_uint_eq(waits, i / 2); /* the second of each stream's has it at once */
        gvmm_buffer_release(buffer);
    }
    gvmm_stats stats;
    gvmm_get_stats(resource, &stats);
    ck_assert_uint_eq(stats.reused, 5);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_cu(sim->cuStreamDestroy(s));
    ck_cu(sim->cuCtxSetCurrent(NULL));
    ck_cu(sim->cuDevicePrimaryCtxRelease(0));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

static _Atomic(gvmm_buffer *) released_meanwhile;

static CUresult release_and_unmap(CUdeviceptr address, size_t size)
{
    gvmm_buffer_release(atomic_exchange(&released_meanwhile, NULL));
    return gvmm_sim_driver()->cuMemUnmap(address, size);
}

/* An evict gives up what is kept, and waits for that; what another thread keeps meanwhile it evicts. */
START_TEST(what_was_evicted_in_the_cache_is_not_handed_out)
{
    gvmm_driver table = *gvmm_sim_driver();
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_evict_options drop = GVMM_EVICT_OPTIONS_INIT;
    drop.contents = GVMM_CONTENTS_DROP;
    gvmm_resource *resource;
    gvmm_buffer *buffer;
    gvmm_stats stats;
    ck_ok(gvmm_sim_reset(NULL));
    table.cuMemUnmap = release_and_unmap;
    ck_ok(gvmm_driver_install(&table));
    options.reuse_limit = (size_t)64 << 20;
    ck_ok(gvmm_resource_create(&resource, 0, &options));
    ck_ok(gvmm_buffer_create(&buffer, resource, 1, NULL));
    gvmm_buffer_release(buffer);
    ck_ok(gvmm_buffer_create(&buffer, resource, (size_t)4 << 20, NULL));
    atomic_store(&released_meanwhile, buffer);
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, &drop));
    gvmm_get_stats(resource, &stats);
    ck_assert_uint_eq(stats.kept_bytes, (size_t)4 << 20);
    ck_assert_uint_eq(stats.physical_bytes, 0);
    ck_ok(gvmm_buffer_create(&buffer, resource, (size_t)4 << 20, NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
    gvmm_get_stats(resource, &stats);
    ck_assert_uint_eq(stats.reused, 0);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reuse");
    const struct {
        const char *name;
        const TTest *tests[20]; /* the rest are NULL */
    } cases[] = {
        {"streams",
         {the_same_stream_has_it_at_once, where_streams_outlive_nothing_is_recorded, another_stream_waits,
          another_stream_waits_where_streams_outlive, a_per_thread_stream_waits_for_the_legacy_one,
          a_new_stream_with_an_old_handle_waits, streams_without_a_number_are_not_the_same, a_replaced_stream_counts,
          only_the_same_size_is_reused, host_memory_is_kept_too}},
        {"captures",
         {a_capturing_stream_is_given_new_memory, what_a_capture_may_use_is_not_kept,
          a_default_stream_beside_a_capture_is_left_alone, trimming_needs_no_mode}},
        {"kept",
         {what_others_show_is_not_kept, what_was_changed_is_not_kept, what_waited_is_not_kept,
          a_range_of_chunks_is_kept_whole, a_capacity_comes_back_with_it, the_oldest_goes_at_the_limit,
          trimming_gives_up_the_oldest, what_is_trimmed_waits_for_its_own_work, the_limit_can_be_changed,
          all_goes_with_the_last_user, an_evicted_resource_keeps_nothing, evicted_memory_is_not_kept,
          the_last_user_can_come_again, kept_memory_makes_room, kept_memory_makes_room_for_a_restore,
          kept_memory_makes_room_beside_a_capture}},
        {"figures and threads",
         {contents_stay_unless_asked_for, the_figures_know, every_driver_call_is_counted, threads_share_it,
          what_one_thread_releases_another_is_given}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TCase *tests = add_watched_case(suite, cases[i].name);
        tcase_add_checked_fixture(tests, begin, finish);
        for (const TTest *const *test = cases[i].tests; *test; test++) tcase_add_test(tests, *test);
    }
    TCase *threads = add_case(suite, "threads that nobody watches");
    tcase_add_checked_fixture(threads, begin, finish);
    tcase_add_test(threads, a_thread_goes_on_while_the_last_user_leaves);
    tcase_add_test(threads, the_driver_can_be_replaced_while_threads_live);
    TCase *faults = add_case(suite, "faults");
    tcase_add_checked_fixture(faults, begin, finish);
    tcase_add_test(faults, threads_that_end_leave_their_place);
    tcase_add_test(faults, what_cannot_be_kept_is_no_failure);
    tcase_add_test(faults, a_warning_handler_may_end_a_cache_that_drops);
    tcase_add_loop_test(faults, whatever_fails_nothing_is_lost, 0, 4);
    TCase *alone = tcase_create("a machine of its own");
    tcase_set_timeout(alone, 60);
    suite_add_tcase(suite, alone);
    tcase_add_test(alone, what_is_being_restored_is_not_kept);
    tcase_add_test(alone, what_was_evicted_in_the_cache_is_not_handed_out);
    tcase_add_test(alone, a_stream_is_told_by_its_number);
    return run_suites(suite, NULL);
}

/* Kept memory: to whom a resource hands it out again, and what it must not keep. */
#include "reuse_kit.h"

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
    gvmm_buffer_release(a);
    gate *g = gate_on(stream);
    gvmm_buffer_release(b);
    ck_assert_uint_eq(gvmm_resource_trim(keeping, 0), trimmed);
    while (stats_of(NULL).releases_waiting > 1) sched_yield(); /* Check's timeout bounds it */
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

int main(void)
{
    Suite *suite = suite_create("what is kept");
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
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TCase *tests = add_watched_case(suite, cases[i].name);
        tcase_add_checked_fixture(tests, begin, finish);
        for (const TTest *const *test = cases[i].tests; *test; test++) tcase_add_test(tests, *test);
    }
    return run_suites(suite, NULL);
}

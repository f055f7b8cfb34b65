/* What gvmm.h lists under "Returns": each result of each function once, brought about as a caller could meet it, or by a driver
 * call or host allocation that fails. What other tests show already is not here: their names are the results' reasons. */
#include "share_kit.h"

/* `act` meets a failing driver call or host allocation ("malloc"), the first from now on, and gives `expected`. */
#define ck_gives(call, status, act, expected) \
    do { \
        fault_call(call, 1, status); \
        ck_fails(act, expected); \
        ck_assert_uint_eq(gvmm_faults_injected(), 1); \
        ck_ok(gvmm_faults_set(NULL)); \
    } while (0)
#define ck_no_host_memory(act) ck_gives("malloc", 0, act, GVMM_E_NO_HOST_MEMORY)

static gvmm_buffer *closed_buffer(void)
{
    gvmm_buffer *buffer = create(plain, G);
    ck_ok(gvmm_buffer_close(buffer, NULL));
    return buffer;
}

START_TEST(making_and_ending)
{
    gvmm_resource *resource = NULL;
    gvmm_buffer *buffer = create(plain, G), *out = NULL;
    ck_no_host_memory(gvmm_resource_create(&resource, 0, NULL));
    ck_no_host_memory(gvmm_buffer_create_with_capacity(&out, plain, G, 8 * G, NULL));
    ck_fails(gvmm_buffer_create_with_capacity(&out, plain, SIZE_MAX, 0, NULL), GVMM_E_INVALID);
    ck_no_host_memory(gvmm_buffer_grow(&out, buffer, 2 * G, NULL));
    ck_no_host_memory(gvmm_buffer_grow(&out, buffer, G, NULL)); /* an alias is an object too */
    ck_no_host_memory(gvmm_buffer_wrap(&out, plain, 0x1000, G, NULL, NULL, NULL));
    ck_fails(gvmm_buffer_wrap(NULL, plain, 0x1000, G, NULL, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_wrap(&out, NULL, 0x1000, G, NULL, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_close_deferred(NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_set_stream(NULL, stream), GVMM_E_INVALID);
    ck_assert(!resource && !out);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

START_TEST(other_views)
{
    gvmm_buffer *buffer = create(plain, G), *closed = closed_buffer(), *out = NULL;
    gvmm_piece piece = {.buffer = buffer}, gone = {.buffer = closed};
    ck_no_host_memory(gvmm_buffer_shrink(&out, buffer, G));
    ck_fails(gvmm_buffer_shrink(&out, closed, G), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_shrink(&out, NULL, G), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_shrink(NULL, buffer, G), GVMM_E_INVALID);

    ck_no_host_memory(gvmm_buffer_compose(&out, plain, &piece, 1, NULL));
    ck_gives("cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY, gvmm_buffer_compose(&out, plain, &piece, 1, NULL),
             GVMM_E_NO_ADDRESS_SPACE);
    ck_gives("cuMemSetAccess", CUDA_ERROR_OUT_OF_MEMORY, gvmm_buffer_compose(&out, plain, &piece, 1, NULL),
             GVMM_E_NO_DEVICE_MEMORY);
    ck_gives("cuMemMap", CUDA_ERROR_UNKNOWN, gvmm_buffer_compose(&out, plain, &piece, 1, NULL), GVMM_E_DRIVER);
    ck_fails(gvmm_buffer_compose(&out, plain, &gone, 1, NULL), GVMM_E_CLOSED);

    ck_no_host_memory(gvmm_buffer_ring(&out, buffer, 2));
    ck_fails(gvmm_buffer_ring(&out, closed, 2), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_ring(NULL, buffer, 2), GVMM_E_INVALID);
    ck_assert_ptr_null(out);
    gvmm_stats now;
    gvmm_get_stats(NULL, &now);
    ck_assert_uint_eq(now.mappings, 1);
    ck_assert_uint_eq(now.reservations, 1);
    ck_assert_uint_eq(now.buffers, 1);
    gvmm_buffer_release(closed);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

START_TEST(who_may_touch_it)
{
    gvmm_buffer *buffer = create(plain, G), *closed = closed_buffer();
    gvmm_access had = (gvmm_access)77;
    ck_no_host_memory(gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ));
    ck_gives("cuMemSetAccess", CUDA_ERROR_UNKNOWN, gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ), GVMM_E_DRIVER);
    ck_gives("cuMemSetAccess", CUDA_ERROR_OUT_OF_MEMORY, gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ),
             GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(buffer), 0), GVMM_ACCESS_READ_WRITE);
    ck_fails(gvmm_buffer_set_access(closed, 0, GVMM_ACCESS_READ), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_get_access(closed, 0, &had), GVMM_E_CLOSED);
    ck_assert_int_eq(had, 77);
    gvmm_buffer_release(closed);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

START_TEST(evicting_and_restoring)
{
    gvmm_buffer *buffer = create(plain, G), *closed = closed_buffer();
    write_pattern(gvmm_buffer_address(buffer), G, 1);
    ck_no_host_memory(gvmm_buffer_evict(buffer, NULL));
    ck_gives("cuStreamSynchronize", CUDA_ERROR_UNKNOWN, gvmm_buffer_evict(buffer, NULL), GVMM_E_DRIVER);
    ck_gives("cuStreamSynchronize", CUDA_ERROR_UNKNOWN, gvmm_resource_evict(plain, GVMM_TAG_ANY, NULL), GVMM_E_DRIVER);
    ck_fails(gvmm_buffer_evict(closed, NULL), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_restore(closed), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_restore(NULL), GVMM_E_INVALID);
    ck_fails(gvmm_resource_restore(NULL, GVMM_TAG_ANY), GVMM_E_INVALID);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
    ck_pattern(gvmm_buffer_address(buffer), G, 1);

    CUgraph graph;
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.stream = stream;
    ck_fails(gvmm_resource_evict(plain, GVMM_TAG_ANY, &options), GVMM_E_CAPTURING);
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));

    ck_gives("cuDevicePrimaryCtxRetain", CUDA_ERROR_UNKNOWN, gvmm_resource_prepare_evict(plain, G), GVMM_E_DRIVER);
    ck_no_host_memory(gvmm_resource_prepare_evict(plain, G));
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_gives("cuMemMap", CUDA_ERROR_UNKNOWN, gvmm_buffer_restore(buffer), GVMM_E_DRIVER);
    ck_no_host_memory(gvmm_resource_restore(plain, GVMM_TAG_ANY));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), G);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pattern(gvmm_buffer_address(buffer), G, 1);
    gvmm_buffer_release(closed);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* ---- sharing ---- */

/* Both sides are in one process, and take turns: the nth of their calls is always the same one. */
static void failing(gvmm_buffer *buffer, const char *call, uint64_t nth, CUresult status, gvmm_result sender,
                    gvmm_result receiver)
{
    sending s;
    gvmm_buffer *out = NULL;
    fault_call(call, nth, status);
    int end = send_start(&s, buffer, SOCK_STREAM);
    gvmm_result r = gvmm_buffer_receive(&out, plain, end, NULL, NULL);
    close(end);
    pthread_join(s.thread, NULL);
    gvmm_drain();
    ck_assert_uint_eq(gvmm_faults_injected(), 1);
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_ptr_null(out);
    ck_assert_msg(s.result == sender && r == receiver, "%s: %s, %s", call, gvmm_result_name(s.result),
                  gvmm_result_name(r));
}

START_TEST(sending_and_receiving)
{
    gvmm_buffer *buffer = chunked(1, 1), *closed = closed_buffer(), *out = NULL;
    int ends[2];
    const char *import = "cuMemImportFromShareableHandle", *ask = "cuMemGetAllocationPropertiesFromHandle";
    failing(buffer, "malloc", 1, 0, GVMM_E_NO_HOST_MEMORY, GVMM_E_PEER_GONE);
    failing(buffer, "malloc", 2, 0, GVMM_E_NO_HOST_MEMORY, GVMM_E_NO_HOST_MEMORY); /* the receiver's first */
    failing(buffer, "cuMemExportToShareableHandle", 1, CUDA_ERROR_UNKNOWN, GVMM_E_DRIVER, GVMM_E_DRIVER);
    failing(buffer, import, 1, CUDA_ERROR_OUT_OF_MEMORY, GVMM_E_NO_DEVICE_MEMORY, GVMM_E_NO_DEVICE_MEMORY);
    failing(buffer, ask, 1, CUDA_ERROR_NOT_PERMITTED, GVMM_E_NOT_PERMITTED, GVMM_E_NOT_PERMITTED);
    failing(buffer, "cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY, GVMM_OK, GVMM_E_NO_ADDRESS_SPACE);

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ck_fails(gvmm_buffer_send(closed, ends[0], NULL), GVMM_E_CLOSED);
    gvmm_share_options options = GVMM_SHARE_OPTIONS_INIT;
    options.have = closed;
    ck_fails(gvmm_buffer_receive(&out, plain, ends[1], NULL, &options), GVMM_E_CLOSED);
    close(ends[0]);
    close(ends[1]);
    ck_assert_ptr_null(out);
    gvmm_buffer_release(closed);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

START_TEST(exporting_and_importing)
{
    gvmm_buffer *buffer = chunked(1, 1), *closed = closed_buffer(), *out = NULL;
    gvmm_export *e = NULL;
    gvmm_shared shared;
    size_t count = 77;
    ck_fails(gvmm_buffer_identities(closed, NULL, 0, &count), GVMM_E_CLOSED);
    ck_assert_uint_eq(count, 77);
    ck_fails(gvmm_buffer_export(&e, closed, 0), GVMM_E_CLOSED);
    ck_no_host_memory(gvmm_buffer_export(&e, buffer, 0));
    ck_ok(gvmm_buffer_export(&e, buffer, 0));
    gvmm_export_contents(e, &shared);
    ck_fails(gvmm_buffer_import(&out, plain, &shared, closed, NULL), GVMM_E_CLOSED);
    ck_no_host_memory(gvmm_buffer_import(&out, plain, &shared, NULL, NULL));
    ck_gives("cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY, gvmm_buffer_import(&out, plain, &shared, NULL, NULL),
             GVMM_E_NO_ADDRESS_SPACE);
    ck_gives("cuMemSetAccess", CUDA_ERROR_OUT_OF_MEMORY, gvmm_buffer_import(&out, plain, &shared, NULL, NULL),
             GVMM_E_NO_DEVICE_MEMORY);
    ck_gives("cuMemMap", CUDA_ERROR_UNKNOWN, gvmm_buffer_import(&out, plain, &shared, NULL, NULL), GVMM_E_DRIVER);
    ck_assert_ptr_null(out);
    gvmm_export_release(e);
    gvmm_buffer_release(closed);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* ---- graphs, probes, pools ---- */

START_TEST(graphs)
{
    CUgraph graph;
    gvmm_buffer *buffer = create(plain, G), *closed = closed_buffer();
    ck_cu(cu->cuGraphCreate(&graph, 0));
    ck_no_host_memory(gvmm_buffer_retain_in_graph(buffer, graph));
    ck_gives("cuUserObjectCreate", CUDA_ERROR_NOT_SUPPORTED, gvmm_buffer_retain_in_graph(buffer, graph),
             GVMM_E_UNSUPPORTED);
    ck_gives("cuGraphRetainUserObject", CUDA_ERROR_UNKNOWN, gvmm_buffer_retain_in_graph(buffer, graph), GVMM_E_DRIVER);
    ck_fails(gvmm_buffer_retain_in_capture(NULL, stream), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_retain_in_capture(buffer, NULL), GVMM_E_INVALID);
    ck_cu(cu->cuGraphDestroy(graph));
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_fails(gvmm_buffer_retain_in_capture(closed, stream), GVMM_E_CLOSED);
    ck_no_host_memory(gvmm_buffer_retain_in_capture(buffer, stream));
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    ck_cu(cu->cuGraphDestroy(graph));
    gvmm_buffer_release(closed);
    gvmm_buffer_release(buffer);
    wait_for_mappings(0);
    ck_no_warnings();
}
END_TEST

START_TEST(probing)
{
    gvmm_probe_report report = {.device = 77};
    ck_gives("cuDeviceGet", CUDA_ERROR_UNKNOWN, gvmm_probe(&report, 0), GVMM_E_DRIVER);
    ck_fails(gvmm_probe(&report, 99), GVMM_E_INVALID);
    ck_fails(gvmm_probe(NULL, 0), GVMM_E_INVALID);
    gvmm_resource_release(plain); /* so that the driver has to start anew */
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_driver_install(gvmm_faults_over(cu)));
    ck_gives("cuInit", CUDA_ERROR_NO_DEVICE, gvmm_probe(&report, 0), GVMM_E_NO_DRIVER);
    ck_assert_int_eq(report.device, 77);
    plain = resource_with(waiting_options());
}
END_TEST

START_TEST(pools)
{
    gvmm_pool *pool = NULL;
    uint64_t block = 0;
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.limit = 64 * MiB;
    ck_no_host_memory(gvmm_pool_create(&pool, plain, &options));
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY}));
    ck_fails(gvmm_pool_create(&pool, plain, &options), GVMM_E_NO_ADDRESS_SPACE);
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuMemAddressReserve", CUDA_ERROR_UNKNOWN}));
    ck_fails(gvmm_pool_create(&pool, plain, &options), GVMM_E_DRIVER);
    ck_assert_ptr_null(pool);
    ck_ok(gvmm_faults_set(NULL));
    ck_ok(gvmm_pool_create(&pool, plain, &options));
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "malloc", 0}));
    ck_fails(gvmm_pool_malloc(&block, pool, 3 * MiB, stream), GVMM_E_NO_HOST_MEMORY);
    ck_ok(gvmm_faults_set(NULL));
    ck_gives("cuMemMap", CUDA_ERROR_UNKNOWN, gvmm_pool_malloc(&block, pool, 3 * MiB, stream), GVMM_E_DRIVER);
    ck_fails(gvmm_pool_set_limit(NULL, 0), GVMM_E_INVALID);
    ck_assert_uint_eq(block, 0);
    gvmm_pool_release(pool);
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("results");
    TCase *buffers = add_case(suite, "buffers");
    tcase_add_test(buffers, making_and_ending);
    tcase_add_test(buffers, other_views);
    tcase_add_test(buffers, who_may_touch_it);
    tcase_add_test(buffers, evicting_and_restoring);
    TCase *others = add_case(suite, "others");
    tcase_add_test(others, sending_and_receiving);
    tcase_add_test(others, exporting_and_importing);
    tcase_add_test(others, graphs);
    tcase_add_test(others, probing);
    tcase_add_test(others, pools);
    return run_suites(suite, NULL);
}

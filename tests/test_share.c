/* Sharing: exports and imports in one process, where every descriptor and every byte can be looked at. What goes from
 * one side to the other is in test_share_exchange.c, two processes in test_share_process.c, damaged descriptors by the
 * thousand in share_fuzz.c. */
#include "share_kit.h"

/* ---- what an import is ---- */

START_TEST(an_import_shows_the_same_memory)
{
    gvmm_buffer *buffer = chunked(3, 1), *copy = copy_of(buffer);
    gvmm_stats stats;
    uint64_t address = gvmm_buffer_address(copy);
    ck_assert_uint_ne(address, gvmm_buffer_address(buffer));
    ck_assert_uint_eq(gvmm_buffer_size(copy), 3 * G);
    ck_pattern(address, 3 * G, 1);
    fill(address + G, 7, 2 * G);
    ck_filled(gvmm_buffer_address(buffer) + G, 7, 2 * G);
    look(plain, &stats);
    ck_assert_uint_eq(stats.physical_bytes, 0); /* it is the exporter's */
    ck_assert_uint_eq(stats.imported_bytes, 3 * G);
    ck_assert_uint_eq(stats.mapped_bytes, 3 * G);
    gvmm_buffer_release(buffer); /* the importer has it as long as it likes */
    ck_filled(address + G, 7, 2 * G);
    gvmm_buffer_release(copy);
    look(plain, &stats);
    ck_assert_uint_eq(stats.imported_bytes, 0);
    ck_no_warnings();
}
END_TEST

START_TEST(an_import_grows_by_memory_of_its_own)
{
    gvmm_buffer *buffer = chunked(2, 1), *copy = copy_of(buffer), *longer = grow(copy, 4 * G);
    gvmm_stats stats;
    look(plain, &stats);
    ck_assert_uint_eq(stats.physical_bytes, 2 * G);
    fill(gvmm_buffer_address(longer), 9, 4 * G);
    ck_filled(gvmm_buffer_address(buffer), 9, 2 * G);
    gvmm_export *e = NULL;
    ck_fails(gvmm_buffer_export(&e, longer, 0), GVMM_E_UNSUPPORTED);
    ck_names("chunk 0 was imported");
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(longer);
}
END_TEST

START_TEST(an_importer_sets_its_own_access)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.self_access = GVMM_ACCESS_READ;
    gvmm_resource *reader = resource_with(options);
    gvmm_buffer *buffer = chunked(2, 1), *copy;
    gvmm_export *e = export(buffer, 0);
    gvmm_shared shared;
    gvmm_export_contents(e, &shared);
    ck_ok(gvmm_buffer_import(&copy, reader, &shared, NULL, NULL));
    ck_assert_uint_eq(access_of(gvmm_buffer_address(copy) + G, 0), GVMM_ACCESS_READ);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(buffer), 0), GVMM_ACCESS_READ_WRITE);
    ck_cu_fails(cu->cuMemsetD8(gvmm_buffer_address(copy), 1, G), CUDA_ERROR_INVALID_VALUE);
    ck_pattern(gvmm_buffer_address(copy), 2 * G, 1);
    gvmm_buffer_release(copy);
    gvmm_export_release(e);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(reader);
}
END_TEST

START_TEST(an_export_holds_the_memory_until_it_is_withdrawn)
{
    gvmm_buffer *buffer = chunked(2, 3);
    gvmm_export *e = export(buffer, 0);
    gvmm_stats stats;
    gvmm_buffer_release(buffer);
    look(NULL, &stats);
    ck_assert_uint_eq(stats.physical_bytes, 2 * G);
    gvmm_buffer *copy = import(e, NULL);
    ck_pattern(gvmm_buffer_address(copy), 2 * G, 3);
    gvmm_export_release(e);
    look(NULL, &stats);
    ck_assert_uint_eq(stats.physical_bytes, 0);
    ck_pattern(gvmm_buffer_address(copy), 2 * G, 3);
    gvmm_buffer_release(copy);
    gvmm_export_release(NULL);
    gvmm_shared none = {.size = 1};
    gvmm_export_contents(NULL, &none);
    ck_assert(!none.bytes && !none.size && !none.fds && !none.fd_count);
}
END_TEST

START_TEST(nothing_is_shared_too)
{
    gvmm_buffer *empty = create(plain, 0), *copy = copy_of(empty);
    ck_assert_uint_eq(gvmm_buffer_size(copy), 0);
    gvmm_buffer_release(copy);
    sending s;
    ck_ok(exchange(&copy, plain, empty, NULL, SOCK_STREAM, &s));
    ck_ok(s.result);
    ck_assert_uint_eq(gvmm_buffer_size(copy), 0);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(empty);
}
END_TEST

/* ---- descriptors and identities ---- */

START_TEST(each_chunk_keeps_one_descriptor)
{
    warm_up();
    gvmm_buffer *buffer = chunked(3, 1);
    size_t before = open_descriptors();
    count_calls("cuMemExportToShareableHandle");
    gvmm_export *first = export(buffer, 0);
    ck_assert_uint_eq(gvmm_faults_counted(), 3);
    gvmm_export *second = export(buffer, 0);
    gvmm_buffer *alias = grow(buffer, G);
    gvmm_export *third = export(alias, 0);
    ck_assert_uint_eq(gvmm_faults_counted(), 3);
    gvmm_shared a, b, c;
    gvmm_export_contents(first, &a);
    gvmm_export_contents(second, &b);
    gvmm_export_contents(third, &c);
    ck_assert_uint_eq(a.fd_count, 3);
    ck_assert_int_eq(a.handle_type, GVMM_HANDLE_POSIX_FD);
    ck_assert_int_eq(memcmp(a.fds, b.fds, 3 * sizeof *a.fds), 0);
    ck_assert_int_eq(memcmp(a.fds, c.fds, 3 * sizeof *a.fds), 0);
    ck_assert_uint_eq(a.size, b.size);
    ck_assert_int_eq(memcmp(a.bytes, b.bytes, a.size), 0);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(fcntl(a.fds[i], F_GETFD), FD_CLOEXEC);
    int kept = a.fds[1];
    gvmm_export_release(first);
    gvmm_export_release(second);
    gvmm_export_release(third);
    ck_assert(is_open(kept)); /* as long as the memory is there */
    gvmm_buffer_release(alias);
    gvmm_buffer_release(buffer);
    ck_assert(!is_open(kept));
    ck_assert_uint_le(open_descriptors(), before);
}
END_TEST

static const gvmm_driver *below;

/* A driver whose descriptors outlive exec, and do not all come in a row. */
static CUresult export_open(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                            unsigned long long flags)
{
    static int exports;
    CUresult status = below->cuMemExportToShareableHandle(out, handle, type, flags);
    if (status == CUDA_SUCCESS) {
        int *fd = out, higher = exports++ == 1 ? fcntl(*fd, F_DUPFD, *fd + 10) : -1;
        if (higher >= 0) {
            close(*fd);
            *fd = higher;
        }
        fcntl(*fd, F_SETFD, 0);
    }
    return status;
}

START_TEST(no_descriptor_outlives_exec)
{
    static gvmm_driver table;
    gvmm_resource_release(plain);
    gvmm_drain();
    below = gvmm_faults_over(cu);
    table = *below;
    table.cuMemExportToShareableHandle = export_open;
    ck_ok(gvmm_driver_install(&table));
    plain = resource_with((gvmm_options)GVMM_OPTIONS_INIT);
    warm_up();
    gvmm_buffer *buffer = chunked(4, 1);
    size_t before = open_descriptors();
    gvmm_export *e = export(buffer, 0);
    gvmm_shared s;
    gvmm_export_contents(e, &s);
    ck_assert_uint_eq(s.fd_count, 4);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(fcntl(s.fds[i], F_GETFD), FD_CLOEXEC);
    gvmm_export_release(e);
    gvmm_buffer_release(buffer);
    ck_assert_uint_le(open_descriptors(), before);
}
END_TEST

START_TEST(memory_is_known_by_one_name)
{
    uint64_t decoy;
    gvmm_buffer *buffer = buffer_with_decoy_behind(plain, G, &decoy), *alias = grow(buffer, G),
                *moved = grow(buffer, 2 * G), *ring, *copy = copy_of(moved), *again = copy_of(moved);
    ck_ok(gvmm_buffer_ring(&ring, buffer, 2));
    gvmm_identity list[2];
    size_t count;
    ck_same_chunks(buffer, alias, 1);
    ck_same_chunks(buffer, moved, 1);
    ck_same_chunks(buffer, ring, 1);
    ck_same_chunks(moved, copy, 2);
    ck_same_chunks(moved, again, 2);
    ck_ok(gvmm_buffer_identities(ring, list, 2, &count));
    ck_assert_int_eq(memcmp(&list[0], &list[1], sizeof list[0]), 0);
    ck_ok(gvmm_buffer_identities(moved, list, 2, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_int_ne(memcmp(&list[0], &list[1], sizeof list[0]), 0);
    ck_ok(gvmm_buffer_identities(moved, NULL, 0, &count));
    ck_assert_uint_eq(count, 2);
    ck_fails(gvmm_buffer_identities(NULL, list, 2, &count), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_identities(moved, NULL, 2, &count), GVMM_E_INVALID);
    gvmm_buffer *all[] = {buffer, alias, moved, ring, copy, again};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gvmm_buffer_release(all[i]);
    free_decoy(decoy);
}
END_TEST

/* Evicting gives the memory back, whatever was exported; what is restored is other memory. */
START_TEST(evicting_ends_what_was_exported)
{
    gvmm_buffer *buffer = chunked(2, 1), *copy = copy_of(buffer);
    gvmm_identity before[2], after[2];
    size_t count;
    gvmm_export *e = export(buffer, 0), *none = NULL;
    gvmm_shared shared;
    gvmm_export_contents(e, &shared);
    int fd = shared.fds[0];
    ck_ok(gvmm_buffer_identities(buffer, before, 2, &count));
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_assert(is_open(fd)); /* the export's, which is still there */
    gvmm_export_release(e);
    ck_assert(!is_open(fd));
    ck_fails(gvmm_buffer_export(&none, buffer, 0), GVMM_E_INVALID);
    ck_names("evicted");
    ck_ok(gvmm_buffer_restore(buffer));
    ck_ok(gvmm_buffer_identities(buffer, after, 2, &count));
    ck_assert_uint_eq(after[0].serial, before[0].serial);
    ck_assert_uint_eq(after[0].generation, before[0].generation + 1);
    fill(gvmm_buffer_address(buffer), 5, 2 * G);
    ck_pattern(gvmm_buffer_address(copy), 2 * G, 1); /* the old pages */

    e = export(buffer, G);
    gvmm_export_contents(e, &shared);
    gvmm_buffer *wrong = NULL;
    ck_fails(gvmm_buffer_import(&wrong, plain, &shared, copy, NULL), GVMM_E_INVALID);
    ck_names("`have` does not have");
    gvmm_export_release(e);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(buffer);
}
END_TEST

START_TEST(imported_memory_is_not_evicted)
{
    gvmm_buffer *buffer = chunked(2, 1), *copy = copy_of(buffer), *own = create(plain, G);
    ck_fails(gvmm_buffer_evict(copy, NULL), GVMM_E_UNSUPPORTED);
    ck_names("imported");
    ck_ok(gvmm_resource_evict(plain, GVMM_TAG_ANY, NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(own), G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(copy), 0);
    ck_pattern(gvmm_buffer_address(copy), 2 * G, 1);
    ck_ok(gvmm_buffer_restore(copy)); /* has nothing to do */
    ck_ok(gvmm_resource_restore(plain, GVMM_TAG_ANY));
    gvmm_buffer_release(own);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(buffer);
}
END_TEST

/* Closed buffers that are kept are handed out again; not those that other processes may still have, or whose memory is
 * theirs. */
START_TEST(shared_memory_is_not_used_again)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = 64 * G;
    options.release_mode = GVMM_RELEASE_DEFERRED;
    gvmm_resource *keeping = resource_with(options);
    gvmm_buffer *buffer = create(keeping, 2 * G), *copy, *other;
    gvmm_shared shared;
    gvmm_stats stats;
    write_pattern(gvmm_buffer_address(buffer), 2 * G, 1);
    gvmm_export *e = export(buffer, 0);
    gvmm_export_contents(e, &shared);
    ck_ok(gvmm_buffer_import(&copy, keeping, &shared, NULL, NULL));
    gvmm_export_release(e);
    gvmm_buffer_release(buffer);
    other = create(keeping, 2 * G);
    fill(gvmm_buffer_address(other), 7, 2 * G);
    ck_pattern(gvmm_buffer_address(copy), 2 * G, 1);
    gvmm_buffer_release(copy);
    look(keeping, &stats);
    ck_assert_uint_eq(stats.kept_bytes, 0);
    ck_assert_uint_eq(stats.reused, 0);
    gvmm_buffer_release(other); /* nobody else's */
    look(keeping, &stats);
    ck_assert_uint_eq(stats.kept_bytes, 2 * G);
    gvmm_resource_release(keeping);
}
END_TEST

/* A chunk has one name with one origin in a descriptor: what was imported from elsewhere cannot go with own memory. */
START_TEST(memory_of_two_origins_is_not_exported_together)
{
    gvmm_buffer *buffer = chunked(1, 1), *foreign = NULL;
    gvmm_export *e = export(buffer, 0), *both = NULL;
    gvmm_shared shared;
    unsigned char bytes[256];
    gvmm_export_contents(e, &shared);
    ck_assert_uint_le(shared.size, sizeof bytes);
    memcpy(bytes, shared.bytes, shared.size);
    bytes[offsetof(wire_head, origin)] ^= 1; /* as if another process had made it */
    gvmm__wire_seal(bytes, shared.size);
    shared.bytes = bytes;
    ck_ok(gvmm_buffer_import(&foreign, plain, &shared, NULL, NULL));
    gvmm_buffer *longer = grow(foreign, 2 * G);
    size_t descriptors = open_descriptors();
    ck_fails(gvmm_buffer_export(&both, longer, G), GVMM_E_UNSUPPORTED);
    ck_names("chunk 1");
    gvmm_buffer_release(longer);
    ck_assert_uint_le(open_descriptors(), descriptors);
    gvmm_buffer_release(foreign);
    gvmm_export_release(e);
    gvmm_buffer_release(buffer);
}
END_TEST

/* The limit is found before the first descriptor is made. */
START_TEST(too_few_descriptors_is_told_before)
{
    struct rlimit old, few;
    gvmm_buffer *buffer = chunked(12, 1);
    gvmm_export *e = NULL;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = open_descriptors() + 4;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    count_calls("cuMemExportToShareableHandle");
    ck_fails(gvmm_buffer_export(&e, buffer, 0), GVMM_E_UNSUPPORTED);
    ck_assert_uint_eq(gvmm_faults_counted(), 0);
    ck_names("12 are needed");
    ck_names("chunk_size");
    ck_assert_ptr_null(e);
    gvmm_drain();
    fault_call("cuMemExportToShareableHandle", 1, CUDA_ERROR_OPERATING_SYSTEM); /* the driver's own are too many */
    gvmm_buffer *one = chunked(1, 1);
    ck_fails(gvmm_buffer_export(&e, one, 0), GVMM_E_DRIVER);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    e = export(buffer, 0);
    gvmm_export_release(e);
    gvmm_buffer_release(one);
    gvmm_buffer_release(buffer);
}
END_TEST

/* Not one is left for a descriptor that comes. */
START_TEST(a_receiver_without_descriptors_says_so)
{
    struct rlimit old, few;
    gvmm_buffer *buffer = chunked(2, 1), *copy = copy_of(buffer), *none = NULL;
    sending s;
    int end = send_start(&s, buffer, SOCK_STREAM);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_fails(gvmm_buffer_receive(&none, plain, end, NULL, NULL), GVMM_E_UNSUPPORTED);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    ck_names("descriptors: 1 are needed");
    close(end);
    pthread_join(s.thread, NULL);
    ck_assert_int_eq(s.result, GVMM_E_UNSUPPORTED);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(buffer);
}
END_TEST

/* ---- what cannot be exported ---- */

START_TEST(what_cannot_be_exported)
{
    gvmm_export *e = NULL;
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.handle_type = GVMM_HANDLE_NONE;
    gvmm_resource *secret = resource_with(options);
    gvmm_buffer *mine = create(secret, G), *buffer = chunked(1, 1), *view, *wrapped, *mixed;
    ck_fails(gvmm_buffer_export(&e, mine, 0), GVMM_E_UNSUPPORTED);
    ck_names("handle_type");
    ck_ok(gvmm_buffer_compose(&view, plain, &(gvmm_piece){buffer, 0, 0, true}, 1, NULL));
    ck_fails(gvmm_buffer_export(&e, view, 0), GVMM_E_UNSUPPORTED);
    ck_names("read-only");
    ck_ok(gvmm_buffer_grow(&mixed, buffer, 2 * G, &options));
    ck_fails(gvmm_buffer_export(&e, mixed, 0), GVMM_E_UNSUPPORTED);
    ck_names("chunk 1");
    ck_ok(gvmm_buffer_wrap(&wrapped, plain, 0x1000, G, NULL, free_nothing, NULL));
    ck_fails(gvmm_buffer_export(&e, wrapped, 0), GVMM_E_INVALID);
    ck_ok(gvmm_buffer_close(mine, NULL));
    ck_fails(gvmm_buffer_export(&e, mine, 0), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_send(mine, -1, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_export(NULL, buffer, 0), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_export(&e, NULL, 0), GVMM_E_INVALID);
    ck_assert_ptr_null(e);
    gvmm_buffer *all[] = {mine, buffer, view, wrapped, mixed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gvmm_buffer_release(all[i]);
    gvmm_resource_release(secret);
}
END_TEST

/* ---- where memory lies ---- */

START_TEST(host_memory_of_a_node)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.location = GVMM_LOCATION_HOST_NUMA;
    options.optional = GVMM_OPTIONAL_HANDLE;
    gvmm_resource *host = resource_with(options);
    gvmm_buffer *buffer = create(host, 2 * G), *copy = NULL;
    gvmm_export *e = NULL;
    gvmm_shared shared;
    memset((void *)(uintptr_t)gvmm_buffer_address(buffer), 3, 2 * G);
    if (gvmm_buffer_export(&e, buffer, 0)) {
        printf("skip (hardware): host memory: it cannot be exported here\n");
    } else {
        gvmm_export_contents(e, &shared);
        ck_fails(gvmm_buffer_import(&copy, plain, &shared, NULL, NULL), GVMM_E_INVALID);
        ck_names("location");
        ck_ok(gvmm_buffer_import(&copy, host, &shared, NULL, NULL));
        const unsigned char *bytes = (const unsigned char *)(uintptr_t)gvmm_buffer_address(copy);
        ck_assert_int_eq(bytes[2 * G - 1], 3);
        gvmm_buffer_release(copy);
        gvmm_export_release(e);
    }
    gvmm_buffer_release(buffer);
    gvmm_resource_release(host);
}
END_TEST

/* The importer works on another device than the one that has the memory. */
START_TEST(memory_of_another_device)
{
    if (device_count < 2) {
        printf("skip (hardware): memory of another device: needs two devices\n");
        return;
    }
    gvmm_resource *second;
    gvmm_segment segment;
    size_t count;
    ck_ok(gvmm_resource_create(&second, 1, NULL));
    gvmm_buffer *buffer = create(second, 2 * G), *copy = copy_of(buffer);
    ck_ok(gvmm_buffer_segments(copy, &segment, 1, &count));
    ck_assert_int_eq(segment.device, 1);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(copy), 0), GVMM_ACCESS_READ_WRITE);
    ck_assert_uint_eq(access_of(gvmm_buffer_address(copy), 1), GVMM_ACCESS_NONE); /* not of this resource's readers */
    fill(gvmm_buffer_address(copy), 8, 2 * G);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(second);
}
END_TEST

static void without_peers(void)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_resource *second;
    config.devices = 2;
    config.peers = false;
    ck_ok(gvmm_sim_reset(&config));
    ck_ok(gvmm_driver_install(gvmm_sim_driver()));
    ck_ok(gvmm_resource_create(&plain, 0, NULL));
    ck_ok(gvmm_resource_create(&second, 1, NULL));
    gvmm_buffer *buffer = create(second, gvmm_resource_granularity(second)), *copy = NULL;
    gvmm_export *e = export(buffer, 0);
    gvmm_shared shared;
    gvmm_export_contents(e, &shared);
    ck_fails(gvmm_buffer_import(&copy, plain, &shared, NULL, NULL), GVMM_E_UNSUPPORTED);
    ck_names("device 0 cannot access the memory of device 1");
    gvmm_export_release(e);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(second);
    gvmm_resource_release(plain);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}

START_TEST(memory_out_of_reach) { without_peers(); }
END_TEST

/* ---- two exports of the same memory at a time ---- */

static gvmm_buffer *shorter, *seen_by_others;
static gvmm_resource *reader;

/* Fails for the second device; but first somebody exports the chunk that lies on the first one, successfully. */
static CUresult share_and_fail(CUuuid *uuid, CUdevice device)
{
    gvmm_shared shared;
    if (device == 0) return gvmm_sim_driver()->cuDeviceGetUuid(uuid, device);
    gvmm_export *e = export(shorter, 0);
    gvmm_export_contents(e, &shared);
    ck_ok(gvmm_buffer_import(&seen_by_others, reader, &shared, NULL, NULL));
    gvmm_export_release(e);
    return CUDA_ERROR_UNKNOWN;
}

/* An export that fails takes its descriptors back, but not those that another has handed out: that memory stays shared. */
START_TEST(a_failed_export_leaves_what_another_has_shared)
{
    int both[] = {0, 1};
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_driver table = *gvmm_sim_driver();
    gvmm_resource *keeping;
    gvmm_stats stats;
    gvmm_export *failed = NULL;
    config.devices = 2;
    ck_ok(gvmm_sim_reset(&config));
    table.cuDeviceGetUuid = share_and_fail;
    ck_ok(gvmm_driver_install(&table));
    G = config.granularity;
    options.stripe = both;
    options.stripe_count = 2;
    options.chunk_size = G;
    options.reuse_limit = 8 * G;
    ck_ok(gvmm_resource_create(&keeping, 0, &options));
    ck_ok(gvmm_resource_create(&reader, 0, NULL));
    shorter = create(keeping, G);
    gvmm_buffer *longer = grow(shorter, 2 * G);
    ck_fails(gvmm_buffer_export(&failed, longer, 0), GVMM_E_DRIVER);
    gvmm_buffer_release(longer);
    gvmm_drain();
    gvmm_buffer_release(shorter);
    gvmm_drain();
    gvmm_get_stats(keeping, &stats);
    ck_assert_uint_eq(stats.kept_bytes, 0); /* seen_by_others shows it */
    gvmm_buffer_release(seen_by_others);
    gvmm_resource_release(reader);
    gvmm_resource_release(keeping);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

/* ---- an export under way of a restore ---- */

static gvmm_buffer *restoring;
static gvmm_result exported_meanwhile;

static CUresult export_and_copy(CUdeviceptr to, const void *from, size_t size, CUstream on)
{
    gvmm_export *e = NULL;
    exported_meanwhile = gvmm_buffer_export(&e, restoring, 0);
    gvmm_export_release(e);
    return gvmm_sim_driver()->cuMemcpyHtoDAsync(to, from, size, on);
}

/* Until the restore is over the memory has the name of the old one: whoever has that would take it for this. */
START_TEST(memory_that_is_being_restored_is_not_exported)
{
    gvmm_driver table = *gvmm_sim_driver();
    gvmm_resource *resource;
    ck_ok(gvmm_sim_reset(NULL));
    table.cuMemcpyHtoDAsync = export_and_copy;
    ck_ok(gvmm_driver_install(&table));
    ck_ok(gvmm_resource_create(&resource, 0, NULL));
    restoring = create(resource, 1);
    ck_ok(gvmm_buffer_evict(restoring, NULL));
    exported_meanwhile = GVMM_OK;
    ck_ok(gvmm_buffer_restore(restoring));
    ck_assert_int_eq(exported_meanwhile, GVMM_E_INVALID);
    gvmm_export_release(export(restoring, 0));
    gvmm_buffer_release(restoring);
    gvmm_resource_release(resource);
    gvmm_drain();
    ck_ok(gvmm_driver_install(NULL));
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("share");
    TCase *imports = add_case(suite, "imports");
    tcase_add_test(imports, an_import_shows_the_same_memory);
    tcase_add_test(imports, an_import_grows_by_memory_of_its_own);
    tcase_add_test(imports, an_importer_sets_its_own_access);
    tcase_add_test(imports, an_export_holds_the_memory_until_it_is_withdrawn);
    tcase_add_test(imports, nothing_is_shared_too);
    tcase_add_test(imports, each_chunk_keeps_one_descriptor);
    tcase_add_test(imports, no_descriptor_outlives_exec);
    tcase_add_test(imports, memory_is_known_by_one_name);
    tcase_add_test(imports, evicting_ends_what_was_exported);
    tcase_add_test(imports, imported_memory_is_not_evicted);
    tcase_add_test(imports, shared_memory_is_not_used_again);
    tcase_add_test(imports, memory_of_two_origins_is_not_exported_together);
    tcase_add_test(imports, too_few_descriptors_is_told_before);
    tcase_add_test(imports, a_receiver_without_descriptors_says_so);
    tcase_add_test(imports, what_cannot_be_exported);
    tcase_add_test(imports, host_memory_of_a_node);
    tcase_add_test(imports, memory_of_another_device);
    TCase *alone = tcase_create("a machine of its own");
    tcase_set_timeout(alone, 60);
    suite_add_tcase(suite, alone);
    tcase_add_test(alone, memory_out_of_reach);
    tcase_add_test(alone, a_failed_export_leaves_what_another_has_shared);
    tcase_add_test(alone, memory_that_is_being_restored_is_not_exported);
    return run_suites(suite, NULL);
}

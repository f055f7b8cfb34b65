/* Sharing: exports and imports in one process, where every descriptor and every byte can be looked at. Two processes
 * are in test_share_process.c, damaged descriptors by the thousand in share_fuzz.c. */
#include "share_kit.h"

static gvmm_buffer *import(const gvmm_export *e, gvmm_buffer *have)
{
    gvmm_shared shared;
    gvmm_buffer *buffer = NULL;
    gvmm_export_contents(e, &shared);
    ck_ok(gvmm_buffer_import(&buffer, plain, &shared, have, NULL));
    return buffer;
}

static gvmm_export *export(gvmm_buffer *buffer, size_t known)
{
    gvmm_export *e = NULL;
    ck_ok(gvmm_buffer_export(&e, buffer, known));
    return e;
}

static gvmm_buffer *copy_of(gvmm_buffer *buffer)
{
    gvmm_export *e = export(buffer, 0);
    gvmm_buffer *copy = import(e, NULL);
    gvmm_export_release(e);
    return copy;
}

/* Counts a call's uses from now on, and fails none. */
static void count_calls(const char *call)
{
    gvmm_drain(); /* nobody makes calls when a fault is planned; here and below */
    ck_ok(gvmm_faults_set(&(gvmm_fault){.call = call}));
}

static void ck_same_chunks(const gvmm_buffer *a, const gvmm_buffer *b, size_t count)
{
    gvmm_identity x[8], y[8];
    size_t n;
    ck_ok(gvmm_buffer_identities(a, x, 8, &n));
    ck_ok(gvmm_buffer_identities(b, y, 8, &n));
    ck_assert_int_eq(memcmp(x, y, count * sizeof *x), 0);
}

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

/* ---- growing ---- */

START_TEST(growth_is_all_that_goes_over)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.capacity = 16 * G;
    gvmm_resource *to = resource_with(options);
    gvmm_buffer *two = chunked(2, 1), *five = grow(two, 5 * G), *copy, *longer;
    gvmm_export *e = export(two, 0), *rest = export(five, 2 * G);
    gvmm_shared shared;
    gvmm_export_contents(e, &shared);
    ck_ok(gvmm_buffer_import(&copy, to, &shared, NULL, NULL));
    gvmm_export_contents(rest, &shared);
    ck_assert_uint_eq(shared.fd_count, 3);
    write_pattern(gvmm_buffer_address(five), 5 * G, 2);
    ck_ok(gvmm_buffer_import(&longer, to, &shared, copy, NULL));
    ck_assert_uint_eq(gvmm_buffer_address(longer), gvmm_buffer_address(copy));
    ck_assert_uint_eq(gvmm_buffer_size(longer), 5 * G);
    ck_pattern(gvmm_buffer_address(longer), 5 * G, 2);
    ck_same_chunks(five, longer, 5);

    gvmm_buffer *wrong = NULL;
    ck_fails(gvmm_buffer_import(&wrong, to, &shared, NULL, NULL), GVMM_E_INVALID);
    ck_ok(gvmm_buffer_import(&wrong, to, &shared, five, NULL)); /* has them, too: its own */
    ck_same_chunks(five, wrong, 5);
    gvmm_export *never = NULL;
    ck_fails(gvmm_buffer_export(&never, five, G + 1), GVMM_E_INVALID);
    ck_names("border");
    ck_fails(gvmm_buffer_export(&never, five, 6 * G), GVMM_E_INVALID);
    gvmm_buffer *all[] = {two, five, copy, longer, wrong};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gvmm_buffer_release(all[i]);
    gvmm_export_release(e);
    gvmm_export_release(rest);
    gvmm_resource_release(to);
}
END_TEST

/* Whatever the receiver has, it ends up with what the sender has, and as little as possible goes over. */
START_TEST(a_receiver_catches_up)
{
    static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
    gvmm_buffer *two = chunked(2, 1), *four = grow(two, 4 * G), *had = NULL, *got = NULL, *own;
    sending s;
    int type = types[_i];
    write_pattern(gvmm_buffer_address(four), 4 * G, 1);
    ck_ok(exchange(&had, plain, two, NULL, type, &s));
    ck_ok(s.result);
    count_calls("cuMemImportFromShareableHandle");
    ck_ok(exchange(&got, plain, four, had, type, &s)); /* grown */
    ck_ok(s.result);
    ck_assert_uint_eq(gvmm_faults_counted(), 2);
    ck_pattern(gvmm_buffer_address(got), 4 * G, 1);
    gvmm_buffer_release(had);
    had = got;
    ck_ok(exchange(&got, plain, four, had, type, &s)); /* the same */
    ck_assert_uint_eq(gvmm_faults_counted(), 2);
    ck_assert_uint_eq(gvmm_buffer_address(got), gvmm_buffer_address(had));
    gvmm_buffer_release(got);
    ck_ok(exchange(&got, plain, two, had, type, &s)); /* less */
    ck_assert_uint_eq(gvmm_faults_counted(), 2);
    ck_assert_uint_eq(gvmm_buffer_address(got), gvmm_buffer_address(had));
    ck_assert_uint_eq(gvmm_buffer_size(got), 2 * G);
    own = grow(got, 3 * G); /* by memory of the receiver's */
    gvmm_buffer_release(got);
    ck_ok(exchange(&got, plain, four, own, type, &s));
    ck_assert_uint_eq(gvmm_faults_counted(), 4);
    ck_pattern(gvmm_buffer_address(got), 4 * G, 1);
    ck_same_chunks(four, got, 4);
    gvmm_buffer_release(got);
    gvmm_buffer *other = create(plain, 3 * G);
    ck_ok(exchange(&got, plain, four, other, type, &s)); /* nothing that helps */
    ck_pattern(gvmm_buffer_address(got), 4 * G, 1);
    gvmm_buffer *all[] = {two, four, had, got, own, other};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gvmm_buffer_release(all[i]);
    ck_no_warnings();
}
END_TEST

/* ---- over a socket ---- */

/* More chunks than one message can take descriptors, and both ends short of them. */
START_TEST(many_chunks_come_in_several_messages)
{
    enum { CHUNKS = 600 };
    struct rlimit old, few;
    gvmm_buffer *buffer, *copy;
    warm_up();
    size_t before = open_descriptors();
    sending s;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 4096;
    if (old.rlim_cur < few.rlim_cur && setrlimit(RLIMIT_NOFILE, &few)) {
        printf("skip: many chunks: no more than %llu descriptors\n", (unsigned long long)old.rlim_cur);
        return;
    }
    buffer = chunked(CHUNKS, 0);
    fill(gvmm_buffer_address(buffer) + (CHUNKS - 1) * G, 1, G);
    ck_ok(exchange(&copy, plain, buffer, NULL, _i ? SOCK_SEQPACKET : SOCK_STREAM, &s));
    ck_ok(s.result);
    ck_filled(gvmm_buffer_address(copy) + (CHUNKS - 1) * G, 1, G);
    gvmm_buffer_release(copy);
    few.rlim_cur = open_descriptors() + 20; /* now all are exported; the receiver can take a few at a time */
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_ok(exchange(&copy, plain, buffer, NULL, _i ? SOCK_SEQPACKET : SOCK_STREAM, &s));
    ck_ok(s.result);
    ck_filled(gvmm_buffer_address(copy) + (CHUNKS - 1) * G, 1, G);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(buffer);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    ck_assert_uint_le(open_descriptors(), before);
}
END_TEST

START_TEST(several_exchanges_at_a_time)
{
    enum { PEERS = 4 };
    gvmm_buffer *buffer = chunked(6, 4), *copies[PEERS];
    sending s[PEERS];
    int ends[PEERS];
    for (int i = 0; i < PEERS; i++) {
        int yes = 1;
        ends[i] = send_start(&s[i], buffer, i % 2 ? SOCK_STREAM : SOCK_SEQPACKET);
        ck_assert_int_eq(setsockopt(ends[i], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes), 0);
        ck_assert_int_eq(fcntl(ends[i], F_SETFL, O_NONBLOCK), 0);
    }
    for (int i = PEERS - 1; i >= 0; i--) {
        ck_ok(gvmm_buffer_receive(&copies[i], plain, ends[i], NULL, NULL));
        pthread_join(s[i].thread, NULL);
        ck_ok(s[i].result);
        close(ends[i]);
    }
    for (int i = 0; i < PEERS; i++) {
        ck_pattern(gvmm_buffer_address(copies[i]), 6 * G, 4);
        gvmm_buffer_release(copies[i]);
    }
    gvmm_buffer_release(buffer);
}
END_TEST

static void *sleep_and_wake(void *buffer)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = GVMM_CONTENTS_DROP;
    for (int i = 0; i < 30; i++) {
        ck_ok(gvmm_buffer_evict(buffer, &options));
        ck_ok(gvmm_buffer_restore(buffer));
    }
    return NULL;
}

/* It goes over whole, or it does not. */
START_TEST(memory_is_evicted_while_it_is_sent)
{
    gvmm_buffer *buffer = chunked(4, 1), *had = NULL;
    pthread_t other;
    ck_assert_int_eq(pthread_create(&other, NULL, sleep_and_wake, buffer), 0);
    for (int i = 0; i < 30; i++) {
        sending s;
        gvmm_buffer *got = NULL;
        gvmm_result r = exchange(&got, plain, buffer, had, SOCK_STREAM, &s);
        ck_assert_msg(r == GVMM_OK || r == GVMM_E_INVALID, "%s (%s)", gvmm_result_name(r), last_text());
        if (r) continue;
        ck_assert_uint_eq(gvmm_buffer_size(got), 4 * G);
        gvmm_buffer_release(had);
        had = got;
    }
    pthread_join(other, NULL);
    gvmm_buffer_release(had);
    gvmm_buffer_release(buffer);
}
END_TEST

START_TEST(each_side_hears_why_the_other_failed)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.location = GVMM_LOCATION_HOST_NUMA;
    gvmm_resource *host = resource_with(options);
    gvmm_buffer *buffer = chunked(2, 1), *copy = copy_of(buffer);
    size_t before = open_descriptors();
    gvmm_buffer_release(copy);
    copy = NULL;
    sending s;
    ck_fails(exchange(&copy, host, buffer, NULL, SOCK_STREAM, &s), GVMM_E_INVALID);
    ck_names("location");
    ck_assert_uint_le(open_descriptors(), before);
    ck_assert_int_eq(s.result, GVMM_E_INVALID);
    ck_assert_msg(strstr(s.text, "the receiver failed") != NULL, "%s", s.text);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_fails(exchange(&copy, plain, buffer, NULL, SOCK_STREAM, &s), GVMM_E_INVALID);
    ck_names("the sender failed: GVMM_E_INVALID");
    ck_assert_msg(strstr(s.text, "evicted") != NULL, "%s", s.text);
    gvmm_buffer *view;
    ck_ok(gvmm_buffer_compose(&view, plain, &(gvmm_piece){buffer, 0, 0, true}, 1, NULL));
    ck_fails(exchange(&copy, plain, view, NULL, SOCK_STREAM, &s), GVMM_E_UNSUPPORTED);
    ck_names("the sender failed: GVMM_E_UNSUPPORTED");
    ck_assert_msg(strstr(s.text, "read-only") != NULL, "%s", s.text);
    gvmm_buffer_release(view);
    ck_assert_ptr_null(copy);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(host);
}
END_TEST

START_TEST(sockets_that_will_not_do)
{
    gvmm_buffer *buffer = chunked(1, 1), *copy = NULL;
    gvmm_share_options options = GVMM_SHARE_OPTIONS_INIT;
    int ends[2], others[] = {-1, 9999, open("/dev/null", O_RDWR), socket(AF_INET, SOCK_STREAM, 0)};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ck_fails(gvmm_buffer_send(buffer, others[i], NULL), GVMM_E_INVALID);
        ck_names("socket");
        ck_fails(gvmm_buffer_receive(&copy, plain, others[i], NULL, NULL), GVMM_E_INVALID);
    }
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
    ck_fails(gvmm_buffer_send(buffer, ends[0], NULL), GVMM_E_INVALID);
    close(ends[0]), close(ends[1]);
    ends[0] = socket(AF_UNIX, SOCK_STREAM, 0); /* not connected */
    ck_fails(gvmm_buffer_send(buffer, ends[0], NULL), GVMM_E_INVALID);
    close(ends[0]);

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    options.timeout_ms = 1;
    ck_fails(gvmm_buffer_send(buffer, ends[0], &options), GVMM_E_PEER_GONE);
    ck_names("did not answer within 1 ms");
    ck_fails(gvmm_buffer_receive(&copy, plain, ends[0], NULL, &options), GVMM_E_PEER_GONE);
    close(ends[1]);
    ck_fails(gvmm_buffer_send(buffer, ends[0], NULL), GVMM_E_PEER_GONE); /* and no signal */
    ck_fails(gvmm_buffer_receive(&copy, plain, ends[0], NULL, NULL), GVMM_E_PEER_GONE);
    options.struct_size--;
    ck_fails(gvmm_buffer_send(buffer, ends[0], &options), GVMM_E_INVALID);
    close(ends[0]), close(others[2]), close(others[3]);
    ck_fails(gvmm_buffer_send(NULL, 0, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_receive(NULL, plain, 0, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_receive(&copy, NULL, 0, NULL, NULL), GVMM_E_INVALID);
    gvmm_buffer_release(buffer);
}
END_TEST

/* ---- what cannot be exported ---- */

static gvmm_result free_nothing(void *user, uint64_t address, size_t size, gvmm_stream on)
{
    (void)user, (void)address, (void)size, (void)on;
    return GVMM_OK;
}

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

/* ---- fabric handles, on a machine of their own ---- */

static gvmm_resource *start_fabric(bool has_channel, CUcontext *context)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *fabric;
    config.fabric = has_channel;
    ck_ok(gvmm_sim_reset(&config));
    ck_ok(gvmm_faults_set(NULL));
    cu = gvmm_sim_driver();
    ck_ok(gvmm_driver_install(gvmm_faults_over(cu)));
    ck_ok(gvmm_resource_create(&plain, 0, NULL));
    ck_cu(cu->cuDevicePrimaryCtxRetain(context, 0));
    ck_cu(cu->cuCtxSetCurrent(*context));
    G = gvmm_resource_granularity(plain);
    options.handle_type = GVMM_HANDLE_FABRIC;
    options.optional = GVMM_OPTIONAL_FABRIC;
    options.chunk_size = G;
    options.capacity = 16 * G;
    ck_ok(gvmm_resource_create(&fabric, 0, &options));
    return fabric;
}

static void end_fabric(gvmm_resource *fabric)
{
    gvmm_resource_release(fabric);
    gvmm_resource_release(plain);
    gvmm_drain();
    ck_cu(cu->cuCtxSetCurrent(NULL));
    ck_cu(cu->cuDevicePrimaryCtxRelease(0));
    ck_ok(gvmm_driver_install(NULL));
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
    ck_ok(gvmm_sim_reset(NULL));
}

START_TEST(fabric_handles_need_no_descriptors)
{
    CUcontext context;
    gvmm_answer answer;
    sending s;
    gvmm_resource *fabric = start_fabric(true, &context);
    gvmm_resource_handle_answer(fabric, &answer);
    ck_assert(answer.available);
    gvmm_buffer *buffer = create(fabric, 3 * G), *copy, *longer, *again, *none = NULL;
    write_pattern(gvmm_buffer_address(buffer), 3 * G, 1);
    gvmm_export *e = export(buffer, 0);
    gvmm_shared shared;
    gvmm_export_contents(e, &shared);
    ck_assert_int_eq(shared.handle_type, GVMM_HANDLE_FABRIC);
    ck_assert_uint_eq(shared.fd_count, 0);
    copy = import(e, NULL);
    ck_pattern(gvmm_buffer_address(copy), 3 * G, 1);
    longer = grow(buffer, 5 * G);
    fill(gvmm_buffer_address(longer), 4, 5 * G);
    ck_ok(exchange(&again, plain, longer, copy, SOCK_SEQPACKET, &s));
    ck_ok(s.result);
    ck_filled(gvmm_buffer_address(again), 4, 5 * G);

    unsigned char *kept = malloc(shared.size);
    memcpy(kept, shared.bytes, shared.size);
    gvmm_buffer *views[] = {buffer, copy, longer, again};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) gvmm_buffer_release(views[i]);
    copy = import(e, NULL); /* the export holds what the handles do not */
    gvmm_buffer_release(copy);
    shared.bytes = kept;
    gvmm_export_release(e); /* withdrawn */
    gvmm_drain();
    ck_fails(gvmm_buffer_import(&none, plain, &shared, NULL, NULL), GVMM_E_INVALID);
    free(kept);
    end_fabric(fabric);
}
END_TEST

/* Descriptors in place of them, and the reason is told; out of memory is no reason. */
START_TEST(without_a_channel_descriptors_will_do)
{
    CUcontext context;
    gvmm_answer answer;
    gvmm_options options, none = GVMM_OPTIONS_INIT;
    gvmm_resource *fabric = start_fabric(false, &context), *another = NULL;
    gvmm_resource_options(fabric, &options);
    ck_assert_int_eq(options.handle_type, GVMM_HANDLE_POSIX_FD);
    gvmm_resource_handle_answer(fabric, &answer);
    ck_assert(!answer.available);
    ck_assert_str_eq(answer.call, "cuMemCreate");
    ck_assert_int_eq(answer.status, CUDA_ERROR_NOT_PERMITTED);
    ck_assert_msg(strstr(answer.advice, "nvidia-imex") != NULL, "%s", answer.advice);
    gvmm_resource_handle_answer(plain, &answer);
    ck_assert(answer.available);
    gvmm_buffer *buffer = create(fabric, 2 * G), *copy = copy_of(buffer);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(buffer);

    none.handle_type = GVMM_HANDLE_FABRIC;
    none.optional = GVMM_OPTIONAL_FABRIC | GVMM_OPTIONAL_HANDLE;
    gvmm_drain();
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_resource_create(&another, 0, &none), GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_ptr_null(another);
    gvmm_drain();
    fault_call("cuDeviceGetAttribute", 2, CUDA_ERROR_INVALID_VALUE); /* a driver that knows no fabric */
    ck_ok(gvmm_resource_create(&another, 0, &none));
    gvmm_resource_handle_answer(another, &answer);
    ck_assert_str_eq(answer.call, "cuDeviceGetAttribute");
    gvmm_resource_release(another);
    end_fabric(fabric);
}
END_TEST

/* ---- descriptors that are not what they say ---- */

typedef struct hostile {
    gvmm_buffer *buffer;
    gvmm_export *e;
    gvmm_shared good;
    unsigned char *bytes; /* a copy to spoil */
    int fds[8];
    size_t descriptors;
    gvmm_stats before;
} hostile;

static hostile start_hostile(void)
{
    warm_up();
    hostile h = {.buffer = chunked(3, 1)};
    h.e = export(h.buffer, 0);
    gvmm_export_contents(h.e, &h.good);
    h.bytes = malloc(2 * h.good.size);
    memset(h.bytes, 0, 2 * h.good.size);
    memcpy(h.bytes, h.good.bytes, h.good.size);
    memcpy(h.fds, h.good.fds, 3 * sizeof *h.fds);
    h.descriptors = open_descriptors();
    look(NULL, &h.before);
    return h;
}

static void end_hostile(hostile *h)
{
    gvmm_buffer *copy = import(h->e, NULL); /* the good one still is */
    gvmm_buffer_release(copy);
    free(h->bytes);
    gvmm_export_release(h->e);
    gvmm_buffer_release(h->buffer);
}

/* It is refused, and nothing comes of it. */
static void ck_refused(const hostile *h, size_t size, size_t fd_count, gvmm_result result)
{
    gvmm_shared bad = {h->bytes, size, h->fds, fd_count, GVMM_HANDLE_POSIX_FD};
    gvmm_buffer *out = NULL;
    gvmm_stats now;
    gvmm_result r = gvmm_buffer_import(&out, plain, &bad, NULL, NULL);
    if (result) ck_fails(r, result);
    ck_assert_int_ne(r, GVMM_OK);
    ck_assert_str_ne(last_text(), "");
    ck_assert_ptr_null(out);
    ck_assert_uint_eq(open_descriptors(), h->descriptors);
    look(NULL, &now);
    ck_assert_uint_eq(now.mapped_bytes, h->before.mapped_bytes);
    ck_assert_uint_eq(now.imported_bytes, h->before.imported_bytes);
    ck_assert_uint_eq(now.reserved_bytes, h->before.reserved_bytes);
}

START_TEST(no_bit_of_a_descriptor_can_be_changed)
{
    hostile h = start_hostile();
    for (size_t bit = 0; bit < 8 * h.good.size; bit++) {
        h.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        ck_refused(&h, h.good.size, 3, GVMM_OK);
        h.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (size_t size = 0; size < 2 * h.good.size; size++)
        if (size != h.good.size) ck_refused(&h, size, 3, GVMM_E_INVALID);
    end_hostile(&h);
}
END_TEST

/* With the right checksum: one who lies, and not one who errs. */
typedef struct lie {
    const char *about;
    size_t offset, size;
    uint64_t value; /* 0: as it says */
    const char *names;
} lie;

#define HEAD(field) offsetof(wire_head, field), sizeof(((wire_head *)0)->field)
#define CHUNK(n, field) \
    sizeof(wire_head) + (n) * sizeof(wire_chunk) + offsetof(wire_chunk, field), sizeof(((wire_chunk *)0)->field)

static const lie lies[] = {
    {"version", HEAD(version), 2, "version is 2"},
    {"win32 handles", HEAD(handle_type), 2, "handle type is 2"},
    {"fabric handles, which are not there", HEAD(handle_type), 8, "size"},
    {"no chunk", HEAD(count), 0, "size"},
    {"fewer chunks", HEAD(count), 2, "size"},
    {"a million chunks and one", HEAD(count), 1 << 20 | 1, "more chunks"},
    {"all there is", HEAD(count), UINT32_MAX, "more chunks"},
    {"more known than there are", HEAD(known), 4, "leaves out more"},
    {"some known", HEAD(known), 1, "`have`"},
    {"total too small", HEAD(total), 1, "sum"},
    {"total that overflows", HEAD(total), UINT64_MAX, "sum"},
    {"reserved", HEAD(reserved), 1, "reserved"},
    {"chunk of no size", CHUNK(1, size), 0, "chunk 1"},
    {"chunk of an odd size", CHUNK(1, size), 1, "sum"},
    {"chunk as large as all", CHUNK(1, size), UINT64_MAX, "overflow"},
    {"no identity", CHUNK(2, serial), 0, "identity"},
    {"location nowhere", CHUNK(0, location), 0, "location"},
    {"location on the host", CHUNK(0, location), 2, "location"},
    {"location on a node", CHUNK(0, location), 3, "node"},
    {"location far away", CHUNK(0, location), UINT32_MAX, "location"},
    {"another device", CHUNK(0, place), 77, "another device"},
};

START_TEST(every_lie_is_found_out)
{
    hostile h = start_hostile();
    const lie *l = &lies[_i];
    memcpy(h.bytes + l->offset, &l->value, l->size < 8 ? l->size : 8);
    gvmm__wire_seal(h.bytes, h.good.size);
    ck_refused(&h, h.good.size, 3, GVMM_OK);
    ck_assert_msg(strstr(last_text(), l->names) != NULL, "%s: '%s'", l->about, last_text());
    end_hostile(&h);
}
END_TEST

/* Sizes that add up, and are multiples, but are not those of the memory: the driver alone knows. */
START_TEST(sizes_that_are_not_the_memory_s)
{
    hostile h = start_hostile();
    wire_chunk first = gvmm__wire_chunk(h.bytes, 0), last = gvmm__wire_chunk(h.bytes, 2);
    wire_head head;
    memcpy(&head, h.bytes, sizeof head);
    for (int more = 0; more < 2; more++) {
        first.size = 2 * G;
        last.size = more ? 2 * G : G;
        head.total = more ? 5 * G : 4 * G;
        memcpy(h.bytes, &head, sizeof head);
        memcpy(h.bytes + sizeof head, &first, sizeof first);
        memcpy(h.bytes + sizeof head + 2 * sizeof last, &last, sizeof last);
        gvmm__wire_seal(h.bytes, h.good.size);
        ck_refused(&h, h.good.size, 3, GVMM_E_INVALID);
        ck_names("not the size");
    }
    first.size = last.size = (uint64_t)1 << 62; /* more than there are addresses */
    head.total = ((uint64_t)1 << 63) + G;
    memcpy(h.bytes, &head, sizeof head);
    memcpy(h.bytes + sizeof head, &first, sizeof first);
    memcpy(h.bytes + sizeof head + 2 * sizeof last, &last, sizeof last);
    gvmm__wire_seal(h.bytes, h.good.size);
    ck_refused(&h, h.good.size, 3, GVMM_OK);
    end_hostile(&h);
}
END_TEST

START_TEST(handles_that_are_none)
{
    hostile h = start_hostile();
    int ends[2], null = open("/dev/null", O_RDWR), directory = open("/", O_RDONLY);
    ck_assert_int_eq(pipe(ends), 0);
    int others[] = {-1, 0, 9999, null, directory, ends[0], INT32_MIN, INT32_MAX};
    h.descriptors = open_descriptors();
    for (size_t count = 0; count < 6; count++)
        if (count != 3) ck_refused(&h, h.good.size, count, GVMM_E_INVALID);
    for (size_t chunk = 0; chunk < 3; chunk++)
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            h.fds[chunk] = others[i];
            ck_refused(&h, h.good.size, 3, GVMM_E_INVALID);
            h.fds[chunk] = h.good.fds[chunk];
        }
    gvmm_buffer *out = NULL;
    gvmm_shared bad = h.good;
    bad.fds = NULL;
    ck_fails(gvmm_buffer_import(&out, plain, &bad, NULL, NULL), GVMM_E_INVALID);
    bad = h.good;
    bad.bytes = NULL;
    ck_fails(gvmm_buffer_import(&out, plain, &bad, NULL, NULL), GVMM_E_INVALID);
    bad = h.good;
    bad.size = SIZE_MAX;
    ck_fails(gvmm_buffer_import(&out, plain, &bad, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_import(&out, plain, NULL, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_import(NULL, plain, &h.good, NULL, NULL), GVMM_E_INVALID);
    close(ends[0]), close(ends[1]), close(null), close(directory);
    end_hostile(&h);
}
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
    TCase *growth = add_case(suite, "growth");
    tcase_add_test(growth, growth_is_all_that_goes_over);
    tcase_add_loop_test(growth, a_receiver_catches_up, 0, 2);
    TCase *sockets = add_case(suite, "sockets");
    tcase_set_timeout(sockets, 240);
    tcase_add_loop_test(sockets, many_chunks_come_in_several_messages, 0, 2);
    tcase_add_test(sockets, several_exchanges_at_a_time);
    tcase_add_test(sockets, memory_is_evicted_while_it_is_sent);
    tcase_add_test(sockets, each_side_hears_why_the_other_failed);
    tcase_add_test(sockets, sockets_that_will_not_do);
    TCase *hostiles = add_case(suite, "hostile descriptors");
    tcase_add_test(hostiles, no_bit_of_a_descriptor_can_be_changed);
    tcase_add_loop_test(hostiles, every_lie_is_found_out, 0, (int)(sizeof lies / sizeof *lies));
    tcase_add_test(hostiles, sizes_that_are_not_the_memory_s);
    tcase_add_test(hostiles, handles_that_are_none);
    TCase *alone = tcase_create("a machine of its own");
    tcase_set_timeout(alone, 60);
    suite_add_tcase(suite, alone);
    tcase_add_test(alone, memory_out_of_reach);
    tcase_add_test(alone, a_failed_export_leaves_what_another_has_shared);
    tcase_add_test(alone, memory_that_is_being_restored_is_not_exported);
    tcase_add_test(alone, fabric_handles_need_no_descriptors);
    tcase_add_test(alone, without_a_channel_descriptors_will_do);
    return run_suites(suite, NULL);
}

/* Evict and restore of more than goes in one piece: runs of chunks, pages pinned piece by piece, memory given back while
 * the rest is copied; and what is left when any of that fails. */
#include "watch.h"

#include <sys/wait.h>
#include <unistd.h>

enum { CHUNKS = 100 };                         /* of G: four pieces of 64 MiB, on several threads */
static const size_t LARGE = (size_t)300 << 20; /* pinned in two pieces */

static gvmm_resource *with_chunks(size_t chunk)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.chunk_size = chunk;
    return resource_with(options);
}

static uint64_t physical(gvmm_resource *resource)
{
    gvmm_stats stats;
    gvmm_get_stats(resource, &stats);
    return stats.physical_bytes;
}

static void drop_contents(gvmm_buffer *buffer)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = GVMM_CONTENTS_DROP;
    ck_ok(gvmm_buffer_evict(buffer, &options));
}

/* When all that was given up has gone. */
static void ck_pinned(size_t pieces)
{
    gvmm_drain();
    if (on_gpu) return;
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    ck_assert_uint_eq(counts[GVMM_SIM_REGISTERED] + counts[GVMM_SIM_PINNED], pieces);
}

/* Something else at the beginning and at the end of every eighth chunk and of the one before it: pieces and pinned
 * pieces end there. */
static bool has_mark(size_t chunk) { return chunk % 8 == 0 || chunk % 8 == 7; }

static void write_marks(gvmm_buffer *buffer)
{
    for (size_t i = 0; i < gvmm_buffer_size(buffer) / G; i++) {
        if (!has_mark(i)) continue;
        ck_cu(cu->cuMemsetD8(address(buffer) + i * G, (unsigned char)(i % 251 + 1), 64));
        ck_cu(cu->cuMemsetD8(address(buffer) + (i + 1) * G - 64, (unsigned char)(i % 251 + 1), 64));
    }
    ck_cu(cu->cuCtxSynchronize());
}

static void ck_marks(gvmm_buffer *buffer)
{
    for (size_t i = 0; i < gvmm_buffer_size(buffer) / G; i++) {
        if (!has_mark(i)) continue;
        ck_filled(address(buffer) + i * G, (unsigned char)(i % 251 + 1), 64);
        ck_filled(address(buffer) + (i + 1) * G - 64, (unsigned char)(i % 251 + 1), 64);
    }
}

/* ---- runs ---- */

START_TEST(what_lies_together_goes_in_one_call)
{
    enum { N = 24 };
    gvmm_resource *resource = with_chunks(G);
    gvmm_buffer *buffer = create(resource, N * G);
    write_marks(buffer);
    for (int kept = 0; kept < 2; kept++) {
        watch();
        if (kept) ck_ok(gvmm_buffer_evict(buffer, NULL));
        else drop_contents(buffer);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemUnmap), 1);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemRelease), N);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemcpyDtoHAsync), kept);
        watch();
        ck_ok(gvmm_buffer_restore(buffer));
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemMap), N);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemSetAccess), 1);
        ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemcpyHtoDAsync), kept);
        if (!kept) write_marks(buffer);
    }
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* Those with other readers are opened by themselves. */
START_TEST(runs_end_where_readers_differ)
{
    gvmm_options read_only = GVMM_OPTIONS_INIT, unseen = GVMM_OPTIONS_INIT;
    read_only.self_access = GVMM_ACCESS_READ;
    unseen.self_access = GVMM_ACCESS_NONE;
    const gvmm_options *chunk[] = {NULL, NULL, &read_only, &read_only, NULL, &unseen, NULL};
    const unsigned long long access[] = {3, 3, 1, 1, 3, 0, 3};
    gvmm_buffer *buffer, *next;
    ck_ok(gvmm_buffer_create_with_capacity(&buffer, plain, G, 16 * G, NULL));
    for (size_t i = 1; i < 7; i++) {
        ck_ok(gvmm_buffer_grow(&next, buffer, (i + 1) * G, chunk[i]));
        gvmm_buffer_release(buffer);
        buffer = next;
    }
    drop_contents(buffer);
    watch();
    ck_ok(gvmm_buffer_restore(buffer));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemSetAccess), 4); /* 0-1, 2-3, 4, 6 */
    for (size_t i = 0; i < 7; i++) ck_assert_uint_eq(access_of(address(buffer) + i * G, 0), access[i]);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* A ring: many places of few memories. */
START_TEST(more_places_than_are_sorted_at_a_time)
{
    gvmm_resource *resource = with_chunks(G);
    gvmm_buffer *buffer = create(resource, 2 * G), *ring;
    ck_ok(gvmm_buffer_ring(&ring, buffer, 300));
    write_marks(buffer);
    for (uint64_t k = 1;; k++) { /* each call that opens some of them */
        ck_ok(gvmm_buffer_evict(ring, NULL));
        ck_assert_uint_eq(physical(resource), 0);
        gvmm_drain();
        fault_call("cuMemSetAccess", k, CUDA_ERROR_UNKNOWN);
        gvmm_result r = gvmm_buffer_restore(ring);
        gvmm_drain();
        bool fired = gvmm_faults_injected() > 0;
        ck_ok(gvmm_faults_set(NULL));
        if (!fired) break;
        ck_assert_int_eq(r, GVMM_E_DRIVER);
        ck_assert_uint_eq(physical(resource), 0);
        ck_ok(gvmm_buffer_restore(ring));
    }
    ck_marks(buffer);
    for (size_t i = 0; i < 600; i += 98) ck_filled(address(ring) + i * G, 1, 64);
    gvmm_buffer_release(ring);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(a_restore_that_fails_late_gives_all_back)
{
    gvmm_resource *resource = with_chunks(G);
    gvmm_buffer *buffer = create(resource, CHUNKS * G);
    const char *const calls[] = {"cuMemCreate", "cuMemMap"};
    const uint64_t at[] = {1, 33, 65, CHUNKS};
    for (size_t contents = 0; contents < 2; contents++) {
        write_marks(buffer);
        if (contents) ck_ok(gvmm_buffer_evict(buffer, NULL));
        else drop_contents(buffer);
        for (size_t i = 0; i < 8; i++) {
            fault_call(calls[i % 2], at[i / 2], CUDA_ERROR_OUT_OF_MEMORY);
            ck_fails(gvmm_buffer_restore(buffer), GVMM_E_NO_DEVICE_MEMORY);
            ck_assert_uint_eq(gvmm_faults_injected(), 1);
            ck_assert_uint_eq(physical(resource), 0);
            ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), CHUNKS * G);
            ck_assert_uint_eq(gvmm_buffer_generation(buffer), contents * CHUNKS);
            ck_pinned(contents);
            ck_in_order();
        }
        ck_ok(gvmm_faults_set(NULL));
        ck_ok(gvmm_buffer_restore(buffer));
        if (contents) ck_marks(buffer);
    }
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- pinned in pieces ---- */

START_TEST(no_copy_reaches_over_the_border_of_a_pinned_piece)
{
    gvmm_buffer *buffer = create(plain, LARGE);
    write_marks(buffer);
    watch();
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_pinned(2);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemHostRegister), 2);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemcpyDtoHAsync), 2);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemcpyHtoDAsync), 2);
    ck_pinned(0);
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemHostUnregister), 2);
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

/* Chunks of 3 G: pieces and pinned pieces do not end at the same places. */
START_TEST(chunks_that_no_border_divides)
{
    gvmm_resource *resource = with_chunks(3 * G);
    gvmm_buffer *buffer = create(resource, LARGE);
    write_marks(buffer);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_pinned(2);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pinned(0);
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

static size_t host_available(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    if (file) fclose(file);
    return (size_t)kib << 10;
}

/* Refused in time: the kernel would end the process. */
START_TEST(more_than_the_host_has_is_refused)
{
    size_t wanted = (host_available() / G + 512) * G, available, total;
    ck_cu(cu->cuMemGetInfo(&available, &total));
    if (wanted > available) {
        printf("skip (hardware): more_than_the_host_has_is_refused: the host has more memory than the device\n");
        return;
    }
    gvmm_buffer *buffer = create(plain, wanted);
    watch();
    ck_fails(gvmm_buffer_evict(buffer, NULL), GVMM_E_NO_HOST_MEMORY);
    ck_names("available");
    ck_assert_uint_eq(calls_of(GVMM_CALL_cuMemUnmap) + calls_of(GVMM_CALL_cuMemHostRegister), 0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
    ck_mapped(address(buffer));
    gvmm_buffer_release(buffer);
}
END_TEST

/* ---- what fails ---- */

/* The `nth` call of a name fails: nothing was evicted. Or it was not needed: all was. True as long as it fired. */
static bool evict_with_fault(gvmm_buffer *buffer, const char *call, uint64_t nth, gvmm_result *out)
{
    uint64_t generation = gvmm_buffer_generation(buffer);
    fault_call(call, nth, CUDA_ERROR_OUT_OF_MEMORY);
    *out = gvmm_buffer_evict(buffer, NULL);
    bool fired = gvmm_faults_injected() > 0;
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), *out ? 0 : gvmm_buffer_size(buffer));
    ck_assert_uint_eq(gvmm_buffer_generation(buffer), generation);
    if (*out) ck_pinned(0);
    if (!*out) ck_ok(gvmm_buffer_restore(buffer));
    ck_pinned(0);
    ck_marks(buffer);
    return fired;
}

START_TEST(an_evict_that_is_refused_leaves_everything)
{
    static const char *const calls[] = {"cuMemHostRegister", "cuMemcpyDtoHAsync", "cuDevicePrimaryCtxRetain",
                                        "cuStreamCreate",    "cuCtxPushCurrent",  "cuDeviceGet"};
    gvmm_resource *resource = with_chunks(G);
    gvmm_buffer *buffer = create(resource, LARGE);
    write_marks(buffer);
    unsigned failed = 0;
    gvmm_result r;
    for (uint64_t nth = 1; evict_with_fault(buffer, calls[_i], nth, &r); nth++) {
        if (r) ck_assert(r == GVMM_E_NO_DEVICE_MEMORY || r == GVMM_E_NO_HOST_MEMORY);
        failed += r != GVMM_OK; /* not all: where memory is given back a context may be there already */
        ck_in_order();
    }
    ck_ok(r);
    ck_assert_uint_ge(failed, 1);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

/* Without an event the stream is waited for, which takes longer and does no harm. */
START_TEST(events_can_be_done_without)
{
    static const char *const calls[] = {"cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventDestroy"};
    gvmm_resource *resource = with_chunks(G);
    gvmm_buffer *buffer = create(resource, CHUNKS * G);
    write_marks(buffer);
    for (size_t i = 0; i < 4; i++) {
        gvmm_result r;
        uint64_t nth = 1;
        for (; evict_with_fault(buffer, calls[i], nth, &r); nth++) ck_ok(r);
        ck_assert_uint_eq(nth, 4); /* three pieces before the last */
    }
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

/* Objects, pages, what fills them, threads: the latter can be done without. */
START_TEST(host_memory_runs_out_anywhere)
{
    gvmm_resource *resource = with_chunks(_i ? 40 * G : G);
    gvmm_buffer *buffer = create(resource, 40 * G);
    write_marks(buffer);
    unsigned failed = 0;
    gvmm_result r;
    for (uint64_t nth = 1; evict_with_fault(buffer, "malloc", nth, &r); nth++) {
        if (r) ck_assert_int_eq(r, GVMM_E_NO_HOST_MEMORY);
        failed += r != GVMM_OK;
        ck_in_order();
    }
    ck_ok(r);
    ck_assert_uint_ge(failed, 5); /* the set, the backup, its pages, their filling, windows, ... */
    ck_ok(
        gvmm_faults_set(&(gvmm_fault){.nth = 4, .onwards = true, .call = "malloc"})); /* no threads at all, no pages */
    ck_fails(gvmm_buffer_evict(buffer, NULL), GVMM_E_NO_HOST_MEMORY);
    ck_ok(gvmm_faults_set(NULL));
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* ---- a copy that fails when memory has been given back ---- */

/* gvmm's waits, from the one that `waits_left` names, fail: as after an error that sticks. */
static atomic_int waits_left;
static atomic_bool creates_fail;
static gvmm_driver failing;

static bool is_to_fail(void) { return atomic_fetch_sub(&waits_left, 1) <= 0; }

static CUresult wait_for_event(CUevent event)
{
    CUresult r = cu->cuEventSynchronize(event);
    return is_to_fail() ? CUDA_ERROR_ILLEGAL_ADDRESS : r;
}

/* Fails once after an event did. */
static CUresult wait_for_stream(CUstream on)
{
    CUresult r = cu->cuStreamSynchronize(on);
    if (atomic_load(&waits_left) >= 0) return r;
    atomic_store(&waits_left, 1 << 30);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult create_memory(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                              unsigned long long flags)
{
    return atomic_load(&creates_fail) ? CUDA_ERROR_OUT_OF_MEMORY : cu->cuMemCreate(handle, size, prop, flags);
}

/* The table, and a buffer made with it. */
static gvmm_buffer *buffer_on_failing_driver(gvmm_resource **resource)
{
    failing = *cu;
    failing.cuEventSynchronize = wait_for_event;
    failing.cuStreamSynchronize = wait_for_stream;
    failing.cuMemCreate = create_memory;
    atomic_store(&waits_left, 1 << 30);
    atomic_store(&creates_fail, false);
    gvmm_resource_release(plain);
    plain = NULL;
    ck_ok(gvmm_driver_install(&failing));
    *resource = with_chunks(G);
    gvmm_buffer *buffer = create(*resource, CHUNKS * G);
    write_marks(buffer);
    return buffer;
}

START_TEST(what_was_given_back_too_early_comes_back)
{
    gvmm_resource *resource;
    gvmm_buffer *buffer = buffer_on_failing_driver(&resource);
    for (int good = 0; good < 3; good++) {
        uint64_t generation = gvmm_buffer_generation(buffer);
        atomic_store(&waits_left, good);
        ck_fails(gvmm_buffer_evict(buffer, NULL), GVMM_E_DRIVER);
        ck_names("cuStreamSynchronize");
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
        ck_assert_uint_eq(gvmm_buffer_generation(buffer), generation + (uint64_t)good * 32); /* other pages: said so */
        ck_assert_uint_eq(physical(resource), CHUNKS * G);
        ck_pinned(0);
        ck_marks(buffer);
    }
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_ok(gvmm_buffer_restore(buffer));
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(what_does_not_come_back_sleeps_with_its_contents)
{
    gvmm_resource *resource;
    gvmm_buffer *buffer = buffer_on_failing_driver(&resource);
    atomic_store(&waits_left, 2);
    atomic_store(&creates_fail, true);
    ck_fails(gvmm_buffer_evict(buffer, NULL), GVMM_E_DRIVER);
    ck_names("cuStreamSynchronize");
    ck_assert_int_eq(atomic_load(&warning_count), 1);
    ck_assert_ptr_nonnull(strstr(last_warning_text, "stays evicted"));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 64 * G);
    atomic_store(&creates_fail, false);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_pinned(0);
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

/* ---- other processes ---- */

/* A child has neither the driver nor the pages, and must not unmap what is its own at those addresses. */
START_TEST(a_forked_child_leaves_the_backup_alone)
{
    gvmm_buffer *buffer = create(plain, 4 * G);
    write_marks(buffer);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    pid_t child = fork();
    if (child == 0) {
        gvmm_set_warning_handler(NULL, NULL);
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        gvmm_buffer_release(buffer);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_marks(buffer);
    gvmm_buffer_release(buffer);
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backup");
    TCase *runs = add_watched_case(suite, "runs");
    tcase_add_test(runs, what_lies_together_goes_in_one_call);
    tcase_add_test(runs, runs_end_where_readers_differ);
    tcase_add_test(runs, more_places_than_are_sorted_at_a_time);
    tcase_add_test(runs, a_restore_that_fails_late_gives_all_back);
    TCase *pieces = add_watched_case(suite, "pieces");
    tcase_add_test(pieces, no_copy_reaches_over_the_border_of_a_pinned_piece);
    tcase_add_test(pieces, chunks_that_no_border_divides);
    tcase_add_test(pieces, more_than_the_host_has_is_refused);
    TCase *refused = add_watched_case(suite, "what fails");
    tcase_add_loop_test(refused, an_evict_that_is_refused_leaves_everything, 0, 6);
    tcase_add_test(refused, events_can_be_done_without);
    tcase_add_loop_test(refused, host_memory_runs_out_anywhere, 0, 2);
    TCase *late = add_case(suite, "what fails late");
    tcase_add_test(late, what_was_given_back_too_early_comes_back);
    tcase_add_test(late, what_does_not_come_back_sleeps_with_its_contents);
    TCase *others = add_case(suite, "other processes");
    tcase_add_test(others, a_forked_child_leaves_the_backup_alone);
    return run_suites(suite, NULL);
}

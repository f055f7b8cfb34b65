/* A child of fork has no driver, and threads that it does not have may hold any lock: nothing hangs there, what needs
 * the driver says so, and what is given up stays the parent's. */
#include "support.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- calls that last until they are told to end ---- */

static gvmm_driver hooked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool held;
static unsigned inside;

static void wait_while_held(void)
{
    pthread_mutex_lock(&lock);
    inside++;
    pthread_cond_broadcast(&changed);
    while (held) pthread_cond_wait(&changed, &lock);
    inside--;
    pthread_mutex_unlock(&lock);
}

static CUresult slow_unmap(CUdeviceptr address, size_t size)
{
    wait_while_held();
    return cu->cuMemUnmap(address, size);
}

static CUresult slow_create(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags)
{
    wait_while_held();
    return cu->cuMemCreate(out, size, prop, flags);
}

static void hold(bool value)
{
    pthread_mutex_lock(&lock);
    held = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_for_inside(unsigned count)
{
    pthread_mutex_lock(&lock);
    while (inside < count) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* ---- what there is before the fork ---- */

static gvmm_buffer *open_buffer, *evicted;
static gvmm_pool *pool;
static gvmm_export *exported;
static uint64_t block;
static void *torch_block;

static void make_all(void)
{
    gvmm_resource_release(plain);
    hooked = *cu;
    hooked.cuMemUnmap = slow_unmap;
    hooked.cuMemCreate = slow_create;
    held = false;
    ck_ok(gvmm_driver_install(&hooked));
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = 8 * G;
    plain = resource_with(options);
    open_buffer = create(plain, 2 * G);
    evicted = create(plain, 4 * G);
    write_pattern(gvmm_buffer_address(evicted), 4 * G, 7);
    ck_ok(gvmm_pool_create(&pool, plain, NULL));
    ck_ok(gvmm_pool_malloc(&block, pool, 512, stream));
    ck_ok(gvmm_buffer_export(&exported, open_buffer, 0));
    torch_block = gvmm_torch_malloc(512, 0, stream);
    ck_assert_ptr_nonnull(torch_block);
}

static void give_all_up(void)
{
    gvmm_torch_free(torch_block, 512, 0, stream);
    gvmm__torch_end();
    gvmm_export_release(exported);
    ck_ok(gvmm_pool_free(pool, block, stream));
    gvmm_pool_release(pool);
    gvmm_buffer_release(evicted);
    gvmm_buffer_release(open_buffer);
    gvmm_resource_trim(plain, 0);
    gvmm_drain();
}

static void *evict(void *result)
{
    *(gvmm_result *)result = gvmm_buffer_evict(evicted, NULL);
    return NULL;
}

/* More than the pool has: its lock is held while memory is made. */
static void *allocate(void *result)
{
    uint64_t address;
    gvmm_result r = gvmm_pool_malloc(&address, pool, 64 * MiB, stream);
    *(gvmm_result *)result = r ? r : gvmm_pool_free(pool, address, stream);
    return NULL;
}

/* ---- in the child: the number of the line that is not so is its exit status ---- */

#define must(condition) \
    do { \
        if (!(condition)) _exit(__LINE__ % 251 + 4); \
    } while (0)
#define must_refuse(call) must((call) == GVMM_E_NO_DRIVER && strstr(last_text(), "fork"))

static void try_buffers(void)
{
    gvmm_buffer *out = NULL;
    gvmm_piece piece = {.buffer = open_buffer};
    gvmm_segment segment;
    gvmm_identity identity;
    gvmm_access access;
    size_t count;
    must_refuse(gvmm_buffer_create(&out, plain, G, NULL));
    must_refuse(gvmm_buffer_grow(&out, open_buffer, 3 * G, NULL));
    must_refuse(gvmm_buffer_shrink(&out, open_buffer, 0));
    must_refuse(gvmm_buffer_compose(&out, plain, &piece, 1, NULL));
    must_refuse(gvmm_buffer_ring(&out, open_buffer, 2));
    must_refuse(gvmm_buffer_wrap(&out, plain, G, G, NULL, NULL, NULL));
    must_refuse(gvmm_buffer_segments(open_buffer, &segment, 1, &count));
    must_refuse(gvmm_buffer_identities(open_buffer, &identity, 1, &count));
    must_refuse(gvmm_buffer_get_access(open_buffer, 0, &access));
    must_refuse(gvmm_buffer_set_access(open_buffer, 0, GVMM_ACCESS_READ));
    must_refuse(gvmm_buffer_retain_in_graph(open_buffer, (gvmm_graph)&out));
    must_refuse(gvmm_buffer_retain_in_capture(open_buffer, stream));
    must_refuse(gvmm_buffer_evict(evicted, NULL));
    must_refuse(gvmm_buffer_restore(evicted));
    must_refuse(gvmm_buffer_close(open_buffer, NULL));
    must_refuse(gvmm_buffer_close_deferred(open_buffer, NULL));
    must(!out && !gvmm_buffer_is_closed(open_buffer));
}

static void try_sharing(void)
{
    gvmm_buffer *out = NULL;
    gvmm_export *e = NULL;
    gvmm_shared shared;
    int ends[2];
    gvmm_export_contents(exported, &shared);
    must_refuse(gvmm_buffer_export(&e, open_buffer, 0));
    must_refuse(gvmm_buffer_import(&out, plain, &shared, NULL, NULL));
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    must_refuse(gvmm_buffer_send(open_buffer, ends[0], NULL));
    must_refuse(gvmm_buffer_receive(&out, plain, ends[0], NULL, NULL)); /* nobody sends */
    must(!out && !e);
}

static void try_resources(void)
{
    const gvmm_driver *driver;
    gvmm_resource *resource = NULL;
    gvmm_probe_report report;
    gvmm_pool *other = NULL;
    uint64_t address = 0;
    must_refuse(gvmm_driver_get(&driver));
    must_refuse(gvmm_resource_create(&resource, 0, NULL));
    must_refuse(gvmm_probe(&report, 0));
    must_refuse(gvmm_resource_evict(plain, 0, NULL));
    must_refuse(gvmm_resource_restore(plain, 0));
    must_refuse(gvmm_resource_prepare_evict(plain, G));
    must_refuse(gvmm_resource_deallocate(plain, block, G, stream));
    must_refuse(gvmm_pool_create(&other, plain, NULL));
    must_refuse(gvmm_pool_malloc(&address, pool, 512, stream));
    must_refuse(gvmm_pool_set_limit(pool, 0));
    must_refuse(gvmm_resource_set_reuse_limit(plain, 0));
    must(!gvmm_torch_malloc(512, 0, stream));
    must(!resource && !other && !address);
}

static void give_up_in_child(void)
{
    gvmm_stats stats;
    gvmm_pool_stats of_pool;
    gvmm_get_stats(NULL, &stats);
    gvmm_pool_get_stats(pool, &of_pool);
    must(stats.physical_bytes == 0 && stats.buffers == 0 && of_pool.blocks == 0);
    must(gvmm_resource_trim(plain, 0) == 0 && gvmm_pool_trim(pool, 0) == 0);
    gvmm_pool_reset_peaks(pool);
    must(gvmm_pool_free(pool, block, stream) == GVMM_OK);
    gvmm_torch_free(torch_block, 512, 0, stream);
    gvmm_export_release(exported);
    gvmm_pool_release(pool);
    gvmm_buffer_release(evicted);
    gvmm_buffer_release(open_buffer);
    gvmm_resource_release(plain);
    gvmm_drain();
}

static void *use_kept_memory(void *unused)
{
    (void)unused;
    gvmm_buffer *buffer;
    return gvmm_buffer_create(&buffer, plain, G, NULL) == GVMM_E_NO_DRIVER ? NULL : plain;
}

static void live_in_child(void)
{
    pthread_t thread;
    void *wrong;
    alarm(60); /* what hangs ends with a signal */
    gvmm_set_warning_handler(NULL, NULL);
    must(freopen("/dev/null", "w", stderr));
    try_buffers();
    try_sharing();
    try_resources();
    must(pthread_create(&thread, NULL, use_kept_memory, NULL) == 0 && pthread_join(thread, &wrong) == 0 && !wrong);
    give_up_in_child();
    _exit(0);
}

static int status_of_child(void)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) live_in_child();
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

/* Kept memory makes a front of this thread, which the child's thread that forked ends with. */
static void keep_some(void)
{
    gvmm_buffer *buffer;
    ck_ok(gvmm_buffer_create(&buffer, plain, G, stream));
    gvmm_buffer_release(buffer);
}

START_TEST(a_child_is_told_and_leaves_everything)
{
    make_all();
    keep_some();
    ck_assert_int_eq(status_of_child(), 0);
    ck_ok(gvmm_buffer_evict(evicted, NULL));
    ck_ok(gvmm_buffer_restore(evicted));
    ck_pattern(gvmm_buffer_address(evicted), 4 * G, 7);
    give_all_up();
    ck_no_warnings();
}
END_TEST

/* One evicts, one allocates from the pool, both inside the driver and with locks held. */
START_TEST(a_child_does_not_hang_on_what_other_threads_do)
{
    gvmm_result results[2] = {GVMM_E_DRIVER, GVMM_E_DRIVER};
    pthread_t threads[2];
    make_all();
    keep_some();
    hold(true);
    ck_assert_int_eq(pthread_create(&threads[0], NULL, evict, &results[0]), 0);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, allocate, &results[1]), 0);
    wait_for_inside(2);
    ck_assert_int_eq(status_of_child(), 0);
    hold(false);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(results[i], GVMM_OK);
    }
    ck_ok(gvmm_buffer_restore(evicted));
    ck_pattern(gvmm_buffer_address(evicted), 4 * G, 7);
    give_all_up();
    ck_no_warnings();
}
END_TEST

/* ---- locks that are held for a moment: sooner or later one is, just then ---- */

static atomic_bool enough;

static void *ask_on_and_on(void *unused)
{
    while (!atomic_load(&enough)) {
        gvmm_set_warning_handler(NULL, NULL);
        (void)gvmm_buffer_address(open_buffer);
    }
    return unused;
}

static void ask_in_child(void)
{
    alarm(10);
    gvmm_set_warning_handler(NULL, NULL);
    must(gvmm_buffer_address(open_buffer) && gvmm_buffer_size(open_buffer) == 2 * G);
    must(!gvmm_buffer_is_closed(open_buffer) && gvmm_buffer_capacity(open_buffer) >= 2 * G);
    must_refuse(gvmm_driver_install(NULL));
    _exit(0);
}

START_TEST(a_child_does_not_hang_on_what_other_threads_ask)
{
    pthread_t threads[2];
    make_all();
    atomic_store(&enough, false);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_on_and_on, NULL), 0);
    for (int i = 0; i < 50; i++) {
        int status;
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) ask_in_child();
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(status, 0);
    }
    atomic_store(&enough, true);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    give_all_up();
}
END_TEST

static void end_process(void *unused)
{
    (void)unused;
    _exit(0); /* without the leak checker: what only the lost threads knew is no leak */
}

/* The end of a thread in the child: it has memory kept in the parent. Of the functions that are called then, glibc calls
 * the youngest last. */
static void *fork_in_thread(void *status)
{
    keep_some();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        pthread_key_t youngest;
        alarm(60);
        must(pthread_key_create(&youngest, end_process) == 0 && pthread_setspecific(youngest, &youngest) == 0);
        pthread_exit(NULL);
    }
    waitpid(child, status, 0);
    return NULL;
}

START_TEST(the_thread_that_forks_may_end)
{
    pthread_t thread;
    int status = -1;
    make_all();
    ck_assert_int_eq(pthread_create(&thread, NULL, fork_in_thread, &status), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(status, 0);
    give_all_up();
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("forks");
    TCase *forks = add_case(suite, "forks");
    tcase_add_test(forks, a_child_is_told_and_leaves_everything);
    tcase_add_test(forks, a_child_does_not_hang_on_what_other_threads_do);
    tcase_add_test(forks, a_child_does_not_hang_on_what_other_threads_ask);
    tcase_add_test(forks, the_thread_that_forks_may_end);
    return run_suites(suite, NULL);
}

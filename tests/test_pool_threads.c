/* gvmm_pool from many threads: each on a stream of its own, blocks that one allocates and another frees, gvmm's own. Check's
 * assertions belong to the main thread: what fails in another is counted. */
#include "support.h"

#include <semaphore.h>

enum { THREADS = 8, ROUNDS = 300, HELD = 16, POSTS = 64 };

static gvmm_pool *pool;
static atomic_int failures;
static pthread_barrier_t start;
static CUstream streams[THREADS];
static atomic_ullong post[POSTS]; /* blocks on their way from one thread to another */
static void (*body)(int index);

#define must(condition) \
    do { \
        if (!(condition)) atomic_fetch_add(&failures, 1); \
    } while (0)

static void *run_member(void *index)
{
    CUcontext context;
    must(cu->cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    must(cu->cuCtxSetCurrent(context) == CUDA_SUCCESS);
    pthread_barrier_wait(&start);
    body((int)(intptr_t)index);
    must(cu->cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    must(cu->cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    return NULL;
}

static void together(void (*each)(int index))
{
    pthread_t threads[THREADS];
    body = each;
    atomic_store(&failures, 0);
    pthread_barrier_init(&start, NULL, THREADS);
    for (intptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_member, (void *)i), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    ck_assert_int_eq(atomic_load(&failures), 0);
}

static void with_pool(bool outlive)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    options.streams_outlive = outlive;
    ck_ok(gvmm_pool_create(&pool, plain, &options));
    for (int i = 0; i < THREADS; i++) ck_cu(cu->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
}

static void end_pool(void)
{
    gvmm_pool_stats s;
    gvmm_pool_get_stats(pool, &s);
    ck_assert_uint_eq(s.live_bytes, 0);
    ck_assert_uint_eq(s.rounded_bytes, 0);
    ck_assert_uint_eq(s.blocks, 0);
    gvmm_drain();
    gvmm_pool_release(pool);
    for (int i = 0; i < THREADS; i++)
        if (streams[i]) ck_cu(cu->cuStreamDestroy(streams[i]));
    memset(streams, 0, sizeof streams);
    ck_no_warnings();
}

static size_t size_of(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (size_t)512 << (*state >> 8) % 14;
}

/* The block's bytes are nobody else's: what was written is read again after a while. */
static void own_stream(int index)
{
    uint64_t held[HELD] = {0};
    CUstream s = streams[index];
    unsigned state = (unsigned)index;
    unsigned char value;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t *h = &held[i % HELD];
        if (*h) {
            must(cu->cuMemcpyDtoHAsync(&value, *h, 1, s) == CUDA_SUCCESS && cu->cuStreamSynchronize(s) == CUDA_SUCCESS);
            must(value == (unsigned char)(index * HELD + i % HELD));
            must(gvmm_pool_free(pool, *h, s) == GVMM_OK);
        }
        must(gvmm_pool_malloc(h, pool, size_of(&state), s) == GVMM_OK);
        must(cu->cuMemsetD8Async(*h, (unsigned char)(index * HELD + i % HELD), 1, s) == CUDA_SUCCESS);
        if (i % 100 == 99) gvmm_pool_trim(pool, 0);
    }
    for (int i = 0; i < HELD; i++) must(gvmm_pool_free(pool, held[i], s) == GVMM_OK);
}

START_TEST(each_on_its_stream)
{
    with_pool(_i != 0);
    together(own_stream);
    end_pool();
}
END_TEST

/* Whoever finds a block frees it. */
static void pass_on(int index)
{
    unsigned state = (unsigned)index * 77u;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t block = 0;
        must(gvmm_pool_malloc(&block, pool, size_of(&state), streams[index]) == GVMM_OK);
        uint64_t other = atomic_exchange(&post[(state >> 4) % POSTS], block);
        if (other) must(gvmm_pool_free(pool, other, streams[index]) == GVMM_OK);
    }
}

START_TEST(allocated_here_and_freed_there)
{
    with_pool(_i != 0);
    together(pass_on);
    for (int i = 0; i < POSTS; i++) ck_ok(gvmm_pool_free(pool, atomic_exchange(&post[i], 0), NULL));
    end_pool();
}
END_TEST

/* One of those who free a block at once succeeds. */
static uint64_t contested;
static atomic_int freed;

static void free_it(int index)
{
    gvmm_result r = gvmm_pool_free(pool, contested, streams[index]);
    must(r == GVMM_OK || r == GVMM_E_INVALID);
    if (r == GVMM_OK) atomic_fetch_add(&freed, 1);
}

START_TEST(a_block_is_freed_once)
{
    with_pool(false);
    for (int i = 0; i < 20; i++) {
        ck_ok(gvmm_pool_malloc(&contested, pool, (size_t)512 << i % 14, stream));
        atomic_store(&freed, 0);
        together(free_it);
        ck_assert_int_eq(atomic_load(&freed), 1);
    }
    end_pool();
}
END_TEST

/* ---- what one waits for may be another's by then ---- */

enum { ORDERS = 33 }; /* one more than a pool has */

static gvmm_driver hooked;
static gvmm_stream looked_for;
static sem_t is_waiting;
static gvmm_result answer;

static CUresult tell_of_waiting(CUstream s)
{
    if (s == looked_for) sem_post(&is_waiting);
    return cu->cuStreamSynchronize(s);
}

static void hook(void)
{
    hooked = *cu;
    hooked.cuStreamSynchronize = tell_of_waiting;
    use_driver(gvmm_faults_over(&hooked));
}

static void *take_all(void *unused)
{
    uint64_t all = 0;
    (void)unused;
    answer = gvmm_pool_malloc(&all, pool, 32 * 2 * MiB, stream);
    gvmm_pool_free(pool, all, stream);
    return NULL;
}

static void free_to_heap(uint64_t block, gvmm_stream s)
{
    ck_ok(gvmm_pool_free(pool, block, s));
    gvmm_pool_trim(pool, SIZE_MAX);
}

/* Without events only waiting for the streams helps. While one is waited for it takes its block back, and another stream
 * gets its place in the pool: the work before that one's block is not done. */
START_TEST(waiting_is_for_what_was_there)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    CUstream on[ORDERS];
    uint64_t blocks[ORDERS];
    pthread_t waiter;
    options.streams_outlive = true;
    options.limit = ORDERS * 2 * MiB;
    ck_ok(gvmm_pool_create(&pool, plain, &options));
    for (int i = 0; i < ORDERS; i++) {
        ck_cu(cu->cuStreamCreate(&on[i], CU_STREAM_NON_BLOCKING));
        ck_ok(gvmm_pool_malloc(&blocks[i], pool, 2 * MiB, on[i]));
    }
    ck_assert_int_eq(sem_init(&is_waiting, 0, 0), 0);
    ck_ok(gvmm_faults_set(&(gvmm_fault){1, true, "cuEventCreate", CUDA_ERROR_UNKNOWN}));
    gate *first = gate_on(on[0]), *last = gate_on(on[ORDERS - 1]);
    looked_for = on[0];
    free_to_heap(blocks[0], on[0]);
    ck_assert_int_eq(pthread_create(&waiter, NULL, take_all, NULL), 0);
    sem_wait(&is_waiting);
    ck_ok(gvmm_pool_malloc(&blocks[0], pool, 2 * MiB, on[0]));
    for (int i = 1; i < ORDERS; i++) free_to_heap(blocks[i], on[i]);
    gate_open(first);
    pthread_join(waiter, NULL);
    ck_assert_int_eq(answer, GVMM_E_NO_DEVICE_MEMORY);
    gate_end(last);
    gate_end(first);
    ck_ok(gvmm_pool_free(pool, blocks[0], on[0]));
    ck_ok(gvmm_faults_set(NULL));
    end_pool();
    for (int i = 0; i < ORDERS; i++) ck_cu(cu->cuStreamDestroy(on[i]));
    sem_destroy(&is_waiting);
}
END_TEST

/* ---- all that was freed is waited for, in whatever order it came ---- */

static gate *shut;
static uint64_t early, late;
static sem_t is_freed, may_end;

/* Who waits for work behind the gate opens it. */
static CUresult open_when_waited_for(CUevent event)
{
    if (cu->cuEventQuery(event) == CUDA_ERROR_NOT_READY) gate_open(shut);
    return cu->cuEventSynchronize(event);
}

static void hook_events(void)
{
    hooked = *cu;
    hooked.cuEventSynchronize = open_when_waited_for;
    use_driver(&hooked);
}

static void *free_early(void *unused)
{
    (void)unused;
    must(gvmm_pool_malloc(&early, pool, 1000, stream) == GVMM_OK);
    must(gvmm_pool_malloc(&late, pool, 3 * MiB, stream) == GVMM_OK);
    must(gvmm_pool_free(pool, early, stream) == GVMM_OK);
    sem_post(&is_freed);
    sem_wait(&may_end);
    return NULL;
}

/* Two threads free on one stream; in which order that comes from where they keep it depends on who was there first. */
START_TEST(the_last_to_come_need_not_be_the_last_freed)
{
    pthread_t other;
    atomic_store(&failures, 0);
    ck_ok(gvmm_pool_create(&pool, plain, NULL));
    if (_i) ck_ok(gvmm_pool_malloc(&late, pool, 512, stream));
    if (_i) ck_ok(gvmm_pool_free(pool, late, stream));
    ck_assert_int_eq(sem_init(&is_freed, 0, 0), 0);
    ck_assert_int_eq(sem_init(&may_end, 0, 0), 0);
    ck_assert_int_eq(pthread_create(&other, NULL, free_early, NULL), 0);
    sem_wait(&is_freed);
    shut = gate_on(stream);
    ck_ok(gvmm_pool_free(pool, late, stream));
    gvmm_pool_release(pool);
    ck_no_warnings();
    gate_end(shut);
    sem_post(&may_end);
    pthread_join(other, NULL);
    ck_assert_int_eq(atomic_load(&failures), 0);
    sem_destroy(&is_freed);
    sem_destroy(&may_end);
}
END_TEST

/* ---- a pool that a graph keeps beyond its last user ---- */

static pthread_t user;
static atomic_int by_another;

/* The calls that wait, or are for who owns a stream. */
static void note_foreign(void *unused, const gvmm_trace_record *record)
{
    (void)unused;
    switch (record->call) {
    case GVMM_CALL_cuEventRecord:
    case GVMM_CALL_cuEventSynchronize:
    case GVMM_CALL_cuStreamSynchronize:
    case GVMM_CALL_cuStreamIsCapturing:
    case GVMM_CALL_cuStreamGetCtx: atomic_fetch_add(&by_another, !pthread_equal(user, pthread_self()));
    default: break;
    }
}

static void watch_foreign(void)
{
    user = pthread_self();
    atomic_store(&by_another, 0);
    use_driver(gvmm_trace_over(cu, note_foreign, NULL));
}

/* It comes to its end on gvmm's thread, which does not wait for what the pool's other blocks were used for. */
START_TEST(what_a_graph_holds_ends_the_pool)
{
    gvmm_pool_options options = GVMM_POOL_OPTIONS_INIT;
    CUgraph graph;
    uint64_t held, other;
    options.streams_outlive = _i;
    ck_ok(gvmm_pool_create(&pool, plain, &options));
    ck_ok(gvmm_pool_malloc(&held, pool, 1000, stream));
    ck_ok(gvmm_pool_malloc(&other, pool, 3 * MiB, stream));
    ck_ok(gvmm_pool_free(pool, other, stream));
    ck_cu(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ck_ok(gvmm_pool_free(pool, held, stream));
    ck_cu(cu->cuStreamEndCapture(stream, &graph));
    gvmm_pool_release(pool);
    gvmm_stats now;
    gvmm_get_stats(NULL, &now);
    ck_assert_uint_gt(now.physical_bytes, 0);
    ck_cu(cu->cuGraphDestroy(graph));
    do {
        sched_yield();
        gvmm_drain();
        gvmm_get_stats(NULL, &now);
    } while (now.physical_bytes || now.releases_waiting);
    ck_assert_int_eq(atomic_load(&by_another), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool threads");
    TCase *tests = add_case(suite, "threads");
    tcase_add_loop_test(tests, each_on_its_stream, 0, 2);
    tcase_add_loop_test(tests, allocated_here_and_freed_there, 0, 2);
    tcase_add_test(tests, a_block_is_freed_once);
    TCase *waits = add_case(suite, "waiting");
    tcase_add_checked_fixture(waits, hook, NULL);
    tcase_add_test(waits, waiting_is_for_what_was_there);
    TCase *all = add_case(suite, "all");
    tcase_add_checked_fixture(all, hook_events, NULL);
    tcase_add_loop_test(all, the_last_to_come_need_not_be_the_last_freed, 0, 2);
    TCase *ends = add_case(suite, "ends");
    tcase_add_checked_fixture(ends, watch_foreign, NULL);
    tcase_add_loop_test(ends, what_a_graph_holds_ends_the_pool, 0, 2);
    return run_suites(suite, NULL);
}

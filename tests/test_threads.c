/* Threads on buffers that share memory, on distinct ones, and on the same one.
 *
 * Check's assertions belong to the main thread: what fails in another is noted, and looked at after the join. */
#include "support.h"

#include <pthread.h>
#include <stdarg.h>

enum { MOST = 8 };

static atomic_int failures;
static char first_failure[300];

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
    if (atomic_fetch_add(&failures, 1)) return;
    va_list args;
    va_start(args, format);
    vsnprintf(first_failure, sizeof first_failure, format, args);
    va_end(args);
}

#define must(condition) \
    do { \
        if (!(condition)) note("line %d: not so: %s", __LINE__, #condition); \
    } while (0)
#define must_ok(call) \
    do { \
        gvmm_result got_ = (call); \
        if (got_) note("line %d: %s: %s (%s)", __LINE__, #call, gvmm_result_name(got_), last_text()); \
    } while (0)

static struct {
    void (*body)(int index);
    pthread_barrier_t start;
    atomic_bool over; /* for those who watch until the others have done */
} crew;

static void *run_member(void *index)
{
    pthread_barrier_wait(&crew.start);
    crew.body((int)(intptr_t)index);
    return NULL;
}

static void *read_statistics(void *resource)
{
    gvmm_stats all, own;
    while (!atomic_load(&crew.over)) {
        gvmm_get_stats(NULL, &all);
        gvmm_get_stats(resource, &own);
        must(all.mapped_bytes < (uint64_t)1 << 50 && own.mapped_bytes < (uint64_t)1
                                                                            << 50); /* nothing went below zero */
        sched_yield();
    }
    return NULL;
}

/* Runs `body` in `count` threads that start together, with another that reads statistics meanwhile. */
static void together(int count, void (*body)(int index))
{
    pthread_t threads[MOST], reader;
    atomic_store(&failures, 0);
    atomic_store(&crew.over, false);
    crew.body = body;
    pthread_barrier_init(&crew.start, NULL, (unsigned)count);
    ck_assert_int_eq(pthread_create(&reader, NULL, read_statistics, plain), 0);
    for (intptr_t i = 0; i < count; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, run_member, (void *)i), 0);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    atomic_store(&crew.over, true);
    pthread_join(reader, NULL);
    pthread_barrier_destroy(&crew.start);
    ck_assert_msg(atomic_load(&failures) == 0, "%d failures; the first: %s", atomic_load(&failures), first_failure);
}

/* ---- aliases ---- */

static gvmm_buffer *root, *alias;
static int iteration;

static void grow_and_close(int index)
{
    for (int round = 0; round < 8; round++) {
        gvmm_buffer *result = NULL;
        size_t size = (size_t)(8 * iteration + round + 2) * G;
        gvmm_buffer *input = index % 2 ? root : alias;
        must_ok(gvmm_buffer_grow(&result, input, size, NULL));
        if (!result) continue;
        size_t had = gvmm_buffer_size(input);
        must(gvmm_buffer_size(result) == (size < had ? had : size));
        must_ok(gvmm_buffer_close(result, NULL));
        gvmm_buffer_release(result);
    }
}

START_TEST(c09_four_threads_grow_what_they_share)
{
    root = create(plain, G);
    alias = grow(root, 4 * G);
    write_pattern(gvmm_buffer_address(alias), 4 * G, 9);
    for (iteration = 0; iteration < 6; iteration++) together(4, grow_and_close);
    ck_pattern(gvmm_buffer_address(alias), 4 * G, 9);
    ck_pattern(gvmm_buffer_address(root), G, 9);
    gvmm_buffer_release(root);
    gvmm_buffer_release(alias);
    ck_no_warnings();
}
END_TEST

/* A chain that every thread hangs its own links on, and lets go of in its own order. */
static void grow_chains(int index)
{
    for (int round = 0; round < 10; round++) {
        gvmm_buffer *chain[4] = {root};
        for (int i = 1; i < 4; i++) must_ok(gvmm_buffer_grow(&chain[i], chain[i - 1], (size_t)(i + 1) * G, NULL));
        gvmm_segment list[4];
        size_t count = 0;
        must_ok(gvmm_buffer_segments(chain[3], list, 4, &count));
        must(count == 4);
        for (int i = 0; i < 3; i++) gvmm_buffer_release(chain[index % 2 ? 3 - i : i + 1]);
    }
}

START_TEST(chains_on_one_root)
{
    root = create(plain, G);
    together(8, grow_chains);
    gvmm_buffer_release(root);
    ck_no_warnings();
}
END_TEST

/* The last reference to a link goes in any thread. */
static gvmm_buffer *shared[MOST];

static void give_up_mine(int index) { gvmm_buffer_release(shared[index]); }

START_TEST(the_last_view_goes_in_any_thread)
{
    for (int round = 0; round < 30; round++) {
        shared[0] = create(plain, G);
        for (int i = 1; i < MOST; i++) shared[i] = grow(shared[i - 1], (size_t)(i % 4 + 1) * G);
        together(MOST, give_up_mine);
        ck_nothing_left();
    }
    ck_no_warnings();
}
END_TEST

/* ---- one buffer: misuse that must not crash ---- */

static gvmm_buffer *torn;
static uint64_t torn_address;
static gvmm_stream other_stream;

static void grow_or_close(int index)
{
    gvmm_buffer *result = NULL;
    if (index % 2) {
        must_ok(gvmm_buffer_close(torn, NULL));
        must(gvmm_buffer_is_closed(torn));
        return;
    }
    gvmm_result r = gvmm_buffer_grow(&result, torn, (size_t)(index + 1) * G, NULL);
    must(r == GVMM_OK || r == GVMM_E_CLOSED);
    must((r == GVMM_OK) == (result != NULL));
    gvmm_buffer_release(result);
}

START_TEST(a_close_races_a_grow)
{
    for (int round = 0; round < 60; round++) {
        torn = create(plain, G);
        torn_address = gvmm_buffer_address(torn);
        together(round % 3 + 2, grow_or_close);
        ck_assert(gvmm_buffer_is_closed(torn));
        gvmm_buffer_release(torn);
        ck_nothing_left();
    }
    ck_no_warnings();
}
END_TEST

/* Everything that can be asked, while somebody closes: the answer is that of the open or of the closed buffer. */
static void ask_or_close(int index)
{
    if (index == 0) {
        for (int i = 0; i < 20; i++) sched_yield();
        must_ok(gvmm_buffer_close(torn, NULL));
        return;
    }
    for (bool open = true; open;) {
        gvmm_segment list[2];
        size_t count = 0;
        open = !gvmm_buffer_is_closed(torn);
        uint64_t address = gvmm_buffer_address(torn);
        size_t size = gvmm_buffer_size(torn);
        gvmm_result r = gvmm_buffer_segments(torn, list, 2, &count);
        must(open || (address == 0 && size == 0 && r == GVMM_E_CLOSED));
        must(address == 0 || address == torn_address);
        must(size == 0 || size == 2 * G);
        must(r == GVMM_E_CLOSED || (r == GVMM_OK && count == 2 && list[1].address == torn_address + G));
        must(gvmm_buffer_stream(torn) == stream);
        must(gvmm_buffer_resource(torn) == plain);
    }
}

START_TEST(questions_race_a_close)
{
    for (int round = 0; round < 40; round++) {
        gvmm_buffer *first;
        ck_ok(gvmm_buffer_create(&first, plain, G, stream));
        torn = grow(first, 2 * G);
        gvmm_buffer_release(first);
        torn_address = gvmm_buffer_address(torn);
        together(4, ask_or_close);
        gvmm_buffer_release(torn);
    }
    ck_no_warnings();
}
END_TEST

static void set_or_close(int index)
{
    for (int i = 0; index && i < 50; i++) {
        gvmm_result r = gvmm_buffer_set_stream(torn, i % 2 ? stream : other_stream);
        must(r == GVMM_OK || r == GVMM_E_CLOSED);
        if (r) return;
    }
    if (!index) must_ok(gvmm_buffer_close(torn, NULL));
}

START_TEST(set_stream_races_a_close)
{
    ck_cu(cu->cuStreamCreate(&other_stream, CU_STREAM_DEFAULT));
    for (int round = 0; round < 60; round++) {
        ck_ok(gvmm_buffer_create(&torn, plain, G, stream));
        together(3, set_or_close);
        gvmm_buffer_release(torn);
        ck_nothing_left();
    }
    ck_cu(cu->cuStreamDestroy(other_stream));
    ck_no_warnings();
}
END_TEST

/* Given up once, whoever closes, names another stream, or lets go of a reference. */
static atomic_int given_back;

static gvmm_result count_free(void *user, uint64_t address, size_t size, gvmm_stream on)
{
    (void)user, (void)on;
    must(address == 0x1000 && size == 0x2000);
    atomic_fetch_add(&given_back, 1);
    return GVMM_OK;
}

static void close_too(int index)
{
    gvmm_buffer_retain(torn);
    if (index % 2) must_ok(gvmm_buffer_close(torn, index % 4 == 1 ? stream : NULL));
    gvmm_buffer_release(torn);
}

START_TEST(many_close_one_buffer)
{
    for (int round = 0; round < 40; round++) {
        torn = create(plain, G);
        together(6, close_too);
        ck_assert(gvmm_buffer_is_closed(torn));
        gvmm_buffer_release(torn);
        ck_nothing_left();

        atomic_store(&given_back, 0);
        ck_ok(gvmm_buffer_wrap(&torn, plain, 0x1000, 0x2000, NULL, count_free, NULL));
        together(6, close_too);
        ck_assert_int_eq(atomic_load(&given_back), 1);
        gvmm_buffer_release(torn);
        ck_assert_int_eq(atomic_load(&given_back), 1);
    }
    ck_no_warnings();
}
END_TEST

/* ---- distinct buffers ---- */

static gvmm_resource *resources[2];

static void live_a_life(int index)
{
    gvmm_resource *mine = resources[index % 2];
    for (int round = 0; round < 20; round++) {
        gvmm_buffer *a = NULL, *b = NULL, *c = NULL;
        must_ok(gvmm_buffer_create(&a, mine, (size_t)(index % 3 + 1) * G, round % 2 ? stream : NULL));
        must_ok(gvmm_buffer_grow(&b, a, (size_t)(index % 3 + 3) * G, NULL));
        must_ok(gvmm_buffer_close(a, NULL));
        must_ok(gvmm_buffer_grow(&c, b, G, NULL));
        must(gvmm_buffer_address(c) == gvmm_buffer_address(b));
        gvmm_buffer_release(b);
        must(gvmm_buffer_size(c) == (size_t)(index % 3 + 3) * G);
        must_ok(gvmm_buffer_close(c, stream));
        gvmm_buffer_release(c);
        gvmm_buffer_release(a);
    }
}

START_TEST(distinct_buffers_of_one_resource)
{
    resources[0] = resources[1] = plain;
    together(8, live_a_life);
    ck_no_warnings();
}
END_TEST

START_TEST(distinct_buffers_of_two_resources)
{
    gvmm_options options = waiting_options();
    options.handle_type = GVMM_HANDLE_NONE;
    resources[0] = plain;
    resources[1] = resource_with(options);
    together(8, live_a_life);
    gvmm_resource_release(resources[1]);
    ck_no_warnings();
}
END_TEST

/* Buffers outlive the reference that the thread had to the resource. */
static void make_a_resource(int index)
{
    gvmm_options options = waiting_options();
    if (index % 2) options.location = GVMM_LOCATION_HOST_NUMA_CURRENT;
    for (int round = 0; round < 15; round++) {
        gvmm_resource *mine = NULL;
        gvmm_buffer *buffer = NULL;
        must_ok(gvmm_resource_create(&mine, 0, &options));
        must_ok(gvmm_buffer_create(&buffer, mine, G, NULL));
        gvmm_resource_release(mine);
        must(gvmm_buffer_size(buffer) == G);
        gvmm_buffer_release(buffer);
    }
}

START_TEST(resources_come_and_go)
{
    together(6, make_a_resource);
    ck_no_warnings();
}
END_TEST

/* Each thread's last error is its own. */
static void fail_in_my_way(int index)
{
    gvmm_buffer *out = NULL, *closed = NULL;
    gvmm_error error;
    must_ok(gvmm_buffer_create(&closed, plain, 0, NULL));
    must_ok(gvmm_buffer_close(closed, NULL));
    for (int round = 0; round < 100; round++) {
        if (index % 2) must(gvmm_buffer_create(&out, plain, SIZE_MAX, NULL) == GVMM_E_INVALID);
        else must(gvmm_buffer_grow(&out, closed, G, NULL) == GVMM_E_CLOSED);
        sched_yield();
        gvmm_last_error(&error);
        must(error.result == (index % 2 ? GVMM_E_INVALID : GVMM_E_CLOSED));
        must(strstr(error.text, index % 2 ? "overflows" : "closed") != NULL);
    }
    gvmm_buffer_release(closed);
}

START_TEST(errors_are_each_threads_own) { together(6, fail_in_my_way); }
END_TEST

/* ---- graphs ---- */

/* A graph of the thread's own retains what all share, and a buffer of the thread's own. */
static void retain_in_my_graph(int index)
{
    for (int round = 0; round < 15; round++) {
        CUgraph graph = NULL;
        gvmm_buffer *own = NULL;
        must(cu->cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
        must_ok(gvmm_buffer_create(&own, plain, G, NULL));
        must_ok(gvmm_buffer_retain_in_graph(root, graph));
        must_ok(gvmm_buffer_retain_in_graph(own, graph));
        gvmm_buffer_release(own);
        if (index % 2) gvmm_drain();
        must(cu->cuGraphDestroy(graph) == CUDA_SUCCESS);
        if (index % 3 == 0) gvmm_drain();
    }
}

START_TEST(graphs_retain_in_threads)
{
    root = create(plain, G);
    together(6, retain_in_my_graph);
    wait_for_mappings(1);
    gvmm_buffer_release(root);
    ck_no_warnings();
}
END_TEST

/* Retained and closed at once: held or refused, and never lost. */
static CUgraph torn_graph;

static void retain_or_close(int index)
{
    if (index) {
        must_ok(gvmm_buffer_close(torn, NULL));
        return;
    }
    gvmm_result r = gvmm_buffer_retain_in_graph(torn, torn_graph);
    must(r == GVMM_OK || r == GVMM_E_CLOSED);
}

START_TEST(a_close_races_a_graph)
{
    for (int round = 0; round < 40; round++) {
        torn = create(plain, G);
        ck_cu(cu->cuGraphCreate(&torn_graph, 0));
        together(2, retain_or_close);
        ck_cu(cu->cuGraphDestroy(torn_graph));
        wait_for_mappings(0);
        gvmm_buffer_release(torn);
    }
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("threads");
    TCase *aliases = add_case(suite, "aliases");
    tcase_add_test(aliases, c09_four_threads_grow_what_they_share);
    tcase_add_test(aliases, chains_on_one_root);
    tcase_add_test(aliases, the_last_view_goes_in_any_thread);
    TCase *one = add_case(suite, "one buffer");
    tcase_add_test(one, a_close_races_a_grow);
    tcase_add_test(one, questions_race_a_close);
    tcase_add_test(one, set_stream_races_a_close);
    tcase_add_test(one, many_close_one_buffer);
    TCase *distinct = add_case(suite, "distinct");
    tcase_add_test(distinct, distinct_buffers_of_one_resource);
    tcase_add_test(distinct, distinct_buffers_of_two_resources);
    tcase_add_test(distinct, resources_come_and_go);
    tcase_add_test(distinct, errors_are_each_threads_own);
    TCase *graphs = add_case(suite, "graphs");
    tcase_add_test(graphs, graphs_retain_in_threads);
    tcase_add_test(graphs, a_close_races_a_graph);
    return run_suites(suite, NULL);
}

/* The model test. As a test it runs fixed seeds, one seed of the day, and the corpus; with arguments it runs what they
 * say:
 *
 *     test_model --replay FILE | HEX    tells every operation of one string
 *     test_model --seed NUMBER          the string of a seed
 *
 * Every string runs in a process of its own, as the simulated driver does not live on in a forked child: this one never
 * starts it. A string that fails is made shorter as long as it fails, and printed. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "model.h"

#ifndef MODEL_CORPUS
#define MODEL_CORPUS "corpus"
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum {
    RUN = 2000 * MODEL_OPERATION,    /* bytes of one run: 2,000 operations */
    SHARES = 10,                     /* the seeds come in as many tests */
    RUNS = SANITIZED ? 25 : 500,     /* 50,000 or a million operations in all */
    TIME_LIMIT = SANITIZED ? 60 : 20 /* seconds for one run: after that it hangs */
};

typedef struct string {
    uint8_t *bytes;
    size_t size;
} string;

/* ---- running ---- */

/* Runs the strings one after another in one child. */
static bool fails(const string *s, size_t count, bool quiet)
{
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        if (quiet && !freopen("/dev/null", "w", stderr)) _exit(1);
        alarm(TIME_LIMIT);
        for (size_t i = 0; i < count; i++) model_run(s[i].bytes, s[i].size);
        exit(EXIT_SUCCESS); /* not _exit: a sanitizer looks for leaks */
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (!quiet && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) fprintf(stderr, "model: it hangs\n");
    return status != 0;
}

/* Leaves out what is not needed to fail: halves, then smaller and smaller parts. */
static void shrink(string *s)
{
    time_t until = time(NULL) + 60;
    for (size_t part = s->size / 2 / MODEL_OPERATION * MODEL_OPERATION; part;
         part = part / 2 / MODEL_OPERATION * MODEL_OPERATION)
        for (size_t at = 0; at < s->size && time(NULL) < until;) {
            size_t end = at + part < s->size ? at + part : s->size;
            string shorter = {malloc(s->size), s->size - (end - at)};
            memcpy(shorter.bytes, s->bytes, at);
            memcpy(shorter.bytes + at, s->bytes + end, s->size - end);
            if (fails(&shorter, 1, true)) {
                free(s->bytes);
                *s = shorter;
            } else {
                free(shorter.bytes);
                at = end;
            }
        }
}

static void must_pass(string *s, const char *name)
{
    if (!fails(s, 1, false)) return;
    shrink(s);
    fprintf(stderr, "%s fails; %zu operations are enough:\n", name, s->size / MODEL_OPERATION);
    fails(s, 1, false);
    fprintf(stderr, "    test_model --replay ");
    for (size_t i = 0; i < s->size; i++) fprintf(stderr, "%02x", s->bytes[i]);
    fprintf(stderr, "\n");
    ck_abort_msg("%s: the library and its twin differ, see above", name);
}

/* ---- strings ---- */

/* splitmix64: the same numbers everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static string from_seed(uint64_t seed)
{
    string s = {malloc(RUN), RUN};
    for (size_t i = 0; i < RUN; i++) s.bytes[i] = (uint8_t)next_random(&seed);
    return s;
}

static string from_file(const char *path)
{
    enum { LONGEST = 1 << 16 };
    string s = {malloc(LONGEST), 0};
    FILE *file = fopen(path, "rb");
    if (file) {
        s.size = fread(s.bytes, 1, LONGEST, file);
        fclose(file);
    }
    return s;
}

static string from_hex(const char *hex)
{
    string s = {malloc(strlen(hex) / 2 + 1), 0};
    unsigned value;
    while (sscanf(hex + 2 * s.size, "%2x", &value) == 1) s.bytes[s.size++] = (uint8_t)value;
    return s;
}

static void seed_must_pass(uint64_t seed)
{
    char name[40];
    string s = from_seed(seed);
    snprintf(name, sizeof name, "seed %llu", (unsigned long long)seed);
    must_pass(&s, name);
    free(s.bytes);
}

/* ---- tests ---- */

START_TEST(fixed_seeds)
{
    for (int i = _i; i < RUNS; i += SHARES) seed_must_pass((uint64_t)i);
}
END_TEST

START_TEST(a_seed_of_the_moment)
{
    uint64_t seed = (uint64_t)time(NULL);
    printf("model: seed of the moment %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 2; i++) seed_must_pass(seed + (uint64_t)i);
}
END_TEST

/* All in one process, which is faster; only if that fails, one by one. */
START_TEST(the_corpus)
{
    enum { MOST = 1000 };
    static string strings[MOST];
    static char names[MOST][64];
    DIR *corpus = opendir(MODEL_CORPUS);
    ck_assert_msg(corpus != NULL, "there is no corpus at %s", MODEL_CORPUS);
    size_t count = 0;
    for (struct dirent *entry; count < MOST && (entry = readdir(corpus));) {
        char path[512];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", MODEL_CORPUS, entry->d_name);
        snprintf(names[count], sizeof names[count], "%.63s", entry->d_name);
        strings[count++] = from_file(path);
    }
    closedir(corpus);
    ck_assert_uint_gt(count, 0);
    bool failed = fails(strings, count, true);
    for (size_t i = 0; i < count; i++) {
        if (failed) must_pass(&strings[i], names[i]);
        free(strings[i].bytes);
    }
    ck_assert_msg(!failed, "strings of the corpus fail together, but not alone");
}
END_TEST

static int run_one(const char *what, const char *which)
{
    string s = strcmp(what, "--seed") == 0 ? from_seed(strtoull(which, NULL, 10))
               : access(which, R_OK) == 0  ? from_file(which)
                                           : from_hex(which);
    model_tells = true;
    model_run(s.bytes, s.size);
    free(s.bytes);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    if (argc == 3) return run_one(argv[1], argv[2]);
    Suite *suite = suite_create("model");
    TCase *strings = tcase_create("strings");
    tcase_set_timeout(strings, 300);
    tcase_add_loop_test(strings, fixed_seeds, 0, SHARES);
    tcase_add_test(strings, a_seed_of_the_moment);
    tcase_add_test(strings, the_corpus);
    suite_add_tcase(suite, strings);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

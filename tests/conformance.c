/* conformance: asks a driver the same questions whether it is the simulated one or a GPU's, one line a fact.
 *
 *   conformance [--list] [--only PREFIX] [--answers FILE] [--expected FILE [--fill]]
 *     --list       id and sentence of every fact; no driver needed
 *     --only       facts whose id begins with PREFIX
 *     --expected   compares with FILE (lines "ID answer"; "ID ?" is not measured yet; "ID gpu:ANSWER sim:ANSWER" where
 *                  the two differ on purpose; "ANSWER|ANSWER" where one GPU gives now this, now that) and closes with
 *                  "N passed, N failed, N skipped"
 *     --answers    takes the answers from FILE, what an earlier run printed, and runs nothing
 *     --fill       writes FILE on standard output with a GPU's answers in place of its "?"
 *
 * The driver is the one gvmm_driver_get finds (GVMM_DRIVER). Facts run in child processes, a group at a time: a fact
 * that crashes, hangs or poisons its context costs only itself. This process never starts a driver. */
#include "conformance.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_SECONDS 60 /* for a driver to start */
#define FACT_SECONDS 30

/* ---------------------------------------------------------------------------------------------
 * The facts, in order: by group, then by place in their file.
 * ------------------------------------------------------------------------------------------- */

static const char groups[] = "MANOCGSHLP";
static fact *registered;
fact **facts;
size_t fact_count;

void fact_register(fact *f, const char *c_name)
{
    size_t i = 0;
    for (; c_name[i] && i < sizeof f->id_space - 1; i++) f->id_space[i] = c_name[i] == '_' ? '-' : c_name[i];
    f->id = f->id_space;
    f->next = registered;
    registered = f;
    fact_count++;
}

static int by_place(const void *a, const void *b)
{
    const fact *x = *(fact *const *)a, *y = *(fact *const *)b;
    const char *gx = strchr(groups, x->id[0]), *gy = strchr(groups, y->id[0]);
    if (gx != gy) return gx < gy ? -1 : 1;
    int files = strcmp(x->file, y->file);
    return files ? files : (x->place > y->place) - (x->place < y->place);
}

void facts_sort(void)
{
    size_t i = 0;
    facts = malloc(fact_count * sizeof *facts);
    if (!facts) abort();
    for (fact *f = registered; f; f = f->next) facts[i++] = f;
    qsort(facts, fact_count, sizeof *facts, by_place);
    for (i = 0; i < fact_count; i++) {
        for (size_t k = 0; k < i; k++) {
            if (strcmp(facts[i]->id, facts[k]->id)) continue;
            fprintf(stderr, "conformance: two facts %s\n", facts[i]->id);
            exit(2);
        }
    }
}

static bool chosen(const fact *f, const char *only) { return !strncmp(f->id, only, strlen(only)); }

/* ---------------------------------------------------------------------------------------------
 * The child: facts from `first` on, as long as they share its group, reported as they come:
 * "@ driver", "> fact begun", "= answer".
 * ------------------------------------------------------------------------------------------- */

static int child(size_t first, const char *only, int report)
{
    char line[512];
    fcntl(report, F_SETFD, FD_CLOEXEC);
    setpgid(0, 0);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(SIGPIPE, SIG_IGN);
    signal(SIGSEGV, SIG_DFL); /* whatever a sanitizer has set: the parent names the signal */
    signal(SIGBUS, SIG_DFL);
    alarm(START_SECONDS);
    bool started = kit_start(line, sizeof line);
    dprintf(report, "@ %s\n", line);
    if (!started) return 3;

    for (size_t i = first; i < fact_count; i++) {
        if (facts[i]->id[0] != facts[first]->id[0] || (i > first && facts[i]->alone)) break;
        if (!chosen(facts[i], only)) continue;
        alarm(FACT_SECONDS);
        dprintf(report, "> %zu\n", i);
        dprintf(report, "= %s\n", fact_answer(facts[i]));
        if (facts[i]->alone) _exit(0); /* what it left is not worth cleaning */
        if (!fact_tidy(facts[i])) _exit(0);
    }
    alarm(START_SECONDS);
    return 0;
}

/* ---------------------------------------------------------------------------------------------
 * The parent
 * ------------------------------------------------------------------------------------------- */

static char **answers;
static char driver_line[2048];

static const char *ending(int status)
{
    static char text[32];
    if (WIFEXITED(status)) snprintf(text, sizeof text, "EXIT_%d", WEXITSTATUS(status));
    else switch (WTERMSIG(status)) {
        case SIGALRM: return "TIMEOUT";
        case SIGSEGV: return "SIGSEGV";
        case SIGBUS: return "SIGBUS";
        case SIGABRT: return "SIGABRT";
        default: snprintf(text, sizeof text, "SIGNAL_%d", WTERMSIG(status));
        }
    return text;
}

static void take(size_t i, const char *answer, bool print)
{
    answers[i] = strdup(answer);
    if (!answers[i]) abort();
    if (print) printf("%s %s\n", facts[i]->id, answer);
    fflush(stdout);
}

/* Keeps what the first child says of its driver. */
static void meet(const char *driver, bool print)
{
    if (!driver_line[0] && print) printf("# %s\n", driver);
    snprintf(driver_line, sizeof driver_line, "%s", driver);
}

/* Starts a child at fact `first` and returns the index of the first fact that it has not answered. */
static size_t run_from(size_t first, const char *only, bool print)
{
    int ends[2], status;
    char number[32], fd[16], line[2048];
    if (pipe(ends)) return fact_count;
    snprintf(number, sizeof number, "%zu", first);
    snprintf(fd, sizeof fd, "%d", ends[1]);
    char *const args[] = {"conformance", "--child", number, (char *)(uintptr_t)only, fd, NULL};
    pid_t pid = fork();
    if (!pid) {
        close(ends[0]);
        execv("/proc/self/exe", args);
        _exit(127);
    }
    close(ends[1]);

    size_t next = first, begun = fact_count;
    FILE *report = fdopen(ends[0], "r");
    while (report && fgets(line, sizeof line, report)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '@') meet(line + 2, print);
        if (line[0] == '>') begun = strtoul(line + 2, NULL, 10);
        if (line[0] != '=') continue;
        take(begun, line + 2, print);
        next = begun + 1;
        begun = fact_count;
    }
    if (report) fclose(report);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    kill(-pid, SIGKILL); /* peers and forks it may have left */
    if (begun < fact_count) {
        take(begun, ending(status), print);
        return begun + 1;
    }
    if (next == first) {
        fprintf(stderr, "conformance: the driver did not start: %s (%s)\n", driver_line, ending(status));
        exit(2);
    }
    if (WIFSIGNALED(status))
        fprintf(stderr, "conformance: %s: %s while cleaning up\n", facts[next - 1]->id, ending(status));
    return next;
}

static void run_all(const char *only, bool print)
{
    answers = calloc(fact_count, sizeof *answers);
    if (!answers) abort();
    size_t i = 0;
    while (i < fact_count) i = chosen(facts[i], only) ? run_from(i, only, print) : i + 1;
}

/* ---------------------------------------------------------------------------------------------
 * Comparing
 * ------------------------------------------------------------------------------------------- */

static size_t index_of(const char *id)
{
    size_t i = 0;
    while (i < fact_count && strcmp(facts[i]->id, id)) i++;
    return i;
}

/* Reads what a run printed. */
static bool read_answers(const char *path, const char *only)
{
    char line[2048];
    FILE *file = fopen(path, "r");
    answers = calloc(fact_count, sizeof *answers);
    if (!answers) abort();
    if (!file) return false;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *space = strchr(line, ' ');
        if (!space) continue;
        if (line[0] == '#') {
            meet(space + 1, false);
            continue;
        }
        *space = 0;
        size_t i = index_of(line);
        if (i < fact_count && chosen(facts[i], only)) take(i, space + 1, false);
    }
    fclose(file);
    return true;
}

/* The part of an expected answer that is meant for the driver that ran; in place. */
static const char *meant(char *expected)
{
    bool sim = !strncmp(driver_line, "sim", 3);
    char *other = strstr(expected, " sim:");
    if (strncmp(expected, "gpu:", 4) || !other) return expected;
    *other = 0;
    return sim ? other + 5 : expected + 4;
}

/* Is it one of the answers expected? */
static bool is_among(const char *got, const char *expected)
{
    size_t length = strlen(got);
    for (const char *one = expected; one; one = strchr(one, '|') ? strchr(one, '|') + 1 : NULL)
        if (!strncmp(one, got, length) && (!one[length] || one[length] == '|')) return true;
    return false;
}

typedef struct tally {
    size_t passed, failed, skipped;
} tally;

static void compare(const char *id, const char *expected, const char *got, tally *sum)
{
    if (!strncmp(got, "SKIP ", 5)) {
        printf("skip (hardware): %s: %s\n", id, got + 5);
        sum->skipped++;
    } else if (!strcmp(expected, "?")) {
        printf("not measured yet: %s: got %s\n", id, got);
        sum->skipped++;
    } else if (!is_among(got, expected)) {
        printf("%s: expected %s, got %s\n", id, expected, got);
        sum->failed++;
    } else {
        sum->passed++;
    }
}

/* Reads FILE line by line; compares, or writes it filled. */
static int against(FILE *file, const char *only, bool fill)
{
    char line[2048], was[2048];
    tally sum = {0, 0, 0};
    bool *seen = calloc(fact_count + 1, sizeof *seen);
    if (!seen) abort();
    while (fgets(line, sizeof line, file)) {
        snprintf(was, sizeof was, "%s", line);
        line[strcspn(line, "\n")] = 0;
        char *space = strchr(line, ' ');
        if (line[0] == '#' || !space) {
            if (fill) fputs(was, stdout);
            continue;
        }
        *space = 0;
        char *expected = space + 1;
        size_t i = index_of(line);
        seen[i] = true;
        bool asked = i < fact_count && answers[i];
        if (fill) {
            if (asked && !strcmp(expected, "?") && strncmp(answers[i], "SKIP ", 5)) printf("%s %s\n", line, answers[i]);
            else if (asked && !strncmp(expected, "gpu:? ", 6) && strncmp(driver_line, "sim", 3))
                printf("%s gpu:%s %s\n", line, answers[i], expected + 6);
            else fputs(was, stdout);
            continue;
        }
        if (strncmp(line, only, strlen(only))) continue;
        if (asked) {
            compare(line, meant(expected), answers[i], &sum);
        } else {
            printf("%s: expected %s, but it was not run\n", line, expected);
            sum.failed++;
        }
    }
    for (size_t i = 0; i < fact_count; i++) {
        if (!answers[i] || seen[i]) continue;
        if (fill) {
            printf("%s %s\n", facts[i]->id, strncmp(answers[i], "SKIP ", 5) ? answers[i] : "?");
            continue;
        }
        printf("%s: not in the expected file, got %s\n", facts[i]->id, answers[i]);
        sum.failed++;
    }
    free(seen);
    if (!fill) printf("%zu passed, %zu failed, %zu skipped\n", sum.passed, sum.failed, sum.skipped);
    return sum.failed ? 1 : 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: conformance [--list] [--only PREFIX] [--answers FILE] [--expected FILE [--fill]]\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *only = "", *expected = NULL, *earlier = NULL;
    bool list = false, fill = false;
    char line[512];

    facts_sort();
    if (argc == 5 && !strcmp(argv[1], "--child")) return child(strtoul(argv[2], NULL, 10), argv[3], atoi(argv[4]));
    if (argc == 4 && !strcmp(argv[1], "--peer")) {
        alarm(FACT_SECONDS);
        return kit_start(line, sizeof line) ? share_peer(argv[2], atoi(argv[3])) : 3;
    }
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) list = true;
        else if (!strcmp(argv[i], "--fill")) fill = true;
        else if (!strcmp(argv[i], "--only") && i + 1 < argc) only = argv[++i];
        else if (!strcmp(argv[i], "--answers") && i + 1 < argc) earlier = argv[++i];
        else if (!strcmp(argv[i], "--expected") && i + 1 < argc) expected = argv[++i];
        else return usage();
    }
    if (fill && !expected) return usage();

    if (list) {
        for (size_t i = 0; i < fact_count; i++)
            if (chosen(facts[i], only)) printf("%s %s\n", facts[i]->id, facts[i]->text);
        return 0;
    }

    const char *kind = getenv("GVMM_TEST_DRIVER"); /* "sim" or "gpu", as the other tests have it */
    if (kind && !strcmp(kind, "sim")) setenv("GVMM_DRIVER", "sim", 0);
    setenv("GVMM_SIM", "devices=2", 0); /* so that nothing is skipped on the simulated driver */
    FILE *file = expected ? fopen(expected, "r") : NULL;
    if (expected && !file) {
        fprintf(stderr, "conformance: %s: %s\n", expected, strerror(errno));
        return 2;
    }
    if (!earlier) {
        run_all(only, !expected);
    } else if (!read_answers(earlier, only)) {
        fprintf(stderr, "conformance: %s: %s\n", earlier, strerror(errno));
        return 2;
    }
    fprintf(stderr, "conformance: %s\n", driver_line);
    if (!file) return 0;
    if (fill && !strncmp(driver_line, "sim", 3)) {
        fprintf(stderr, "conformance: only a GPU's answers go into the expected file\n");
        return 2;
    }
    int failed = against(file, only, fill);
    fclose(file);
    return failed;
}

/* Times the sides in turn, reports the figures. */
#include "bench.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const gvmm_driver *cu;
bool on_sim, bench_quick;
size_t G;

static const char *wanted;
static char machine[512]; /* the JSON object that every line ends with */
static char *table;       /* the lines for people */
static size_t table_size;
static FILE *table_file;

static void print_table(void)
{
    if (!table_file) return;
    fclose(table_file);
    table_file = NULL;
    fputs(table, stderr);
    free(table);
}

void bench_die(const char *file, int line, const char *what, const char *why)
{
    gvmm_error error;
    gvmm_last_error(&error);
    fflush(stdout);
    print_table();
    fprintf(stderr, "%s:%d: %s: %s (last error: %s)\n", file, line, what, why, error.text);
    exit(1);
}

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- start and end ---- */

/* Letters that would have to be escaped do not occur in what is described here; left out if they do. */
static void put_clean(char *out, size_t size, const char *text)
{
    size_t k = 0;
    for (; *text && k + 1 < size; text++)
        if (*text >= ' ' && *text != '"' && *text != '\\') out[k++] = *text;
    out[k] = 0;
}

static void describe_machine(void)
{
    char name[128] = "?", clean[128], origin[128], commit[80], date[32];
    int version = 0;
    CUdevice device;
    CU(cu->cuDeviceGet(&device, 0));
    (void)cu->cuDeviceGetName(name, sizeof name, device);
    on_sim = strstr(name, "simulated") != NULL; /* also behind a wrapper, or as the stand-in library */
    CU(cu->cuDriverGetVersion(&version));
    time_t t = time(NULL);
    struct tm utc;
    gmtime_r(&t, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const char *given = getenv("GVMM_COMMIT");
    put_clean(clean, sizeof clean, name);
    put_clean(origin, sizeof origin, cu->origin);
    put_clean(commit, sizeof commit, given ? given : "");
    snprintf(machine, sizeof machine,
             "\"machine\":{\"device\":\"%s\",\"driver\":%d,\"origin\":\"%s\",\"date\":\"%s\",\"gvmm\":\"%s\","
             "\"commit\":\"%s\"}",
             clean, version, origin, date, gvmm_version(), commit);
    fprintf(table_file, "%s, driver %d (%s), gvmm %s, %s\n", clean, version, origin, gvmm_version(), date);
}

const char *bench_options(int argc, char **argv, const char *groups)
{
    static const struct option options[] = {
        {"quick", no_argument, NULL, 'q'}, {"only", required_argument, NULL, 'o'}, {NULL, 0, NULL, 0}};
    const char *only = NULL;
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'q') bench_quick = true;
        if (option == 'o') only = optarg;
        if (option == '?') break;
    }
    if (option == -1 && optind == argc) return only;
    fprintf(stderr, "usage: %s [--quick] [--only %s]\n", argv[0], groups);
    exit(2);
}

void bench_start(const char *only)
{
    wanted = only;
    table_file = open_memstream(&table, &table_size);
    MUST(table_file);
    OK(gvmm_driver_get(&cu));
    CUcontext context;
    CU(cu->cuDevicePrimaryCtxRetain(&context, 0));
    CU(cu->cuCtxSetCurrent(context));
    raw_start();
    CU(cu->cuMemGetAllocationGranularity(&G, &raw_prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    describe_machine();
    fprintf(table_file, "times in us      %16s %7s %5s | %11s %11s | %11s %11s | %6s\n", "MiB", "chunks", "n",
            "gvmm median", "p99", "raw median", "p99", "ratio");
}

int bench_end(void)
{
    CU(cu->cuCtxSetCurrent(NULL));
    CU(cu->cuDevicePrimaryCtxRelease(0));
    print_table();
    return 0;
}

bool bench_wants(const char *group) { return !wanted || strcmp(wanted, group) == 0; }

/* ---- timing ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The smallest sample that at least the share q of all does not exceed. */
double samples_quantile(samples *s, double q)
{
    qsort(s->us, s->count, sizeof *s->us, by_value);
    size_t rank = (size_t)ceil(q * (double)s->count);
    return s->us[rank ? rank - 1 : 0];
}

void samples_free(samples *s)
{
    free(s->us);
    *s = (samples){NULL, 0};
}

static void run_batch(samples *out, const side *s, size_t batch)
{
    for (size_t i = 0; i < batch; i++) out->us[out->count++] = s->run(s->state);
}

void interleave(samples *out, const side *sides, size_t count, size_t n, size_t batch)
{
    MUST(count <= MAX_SIDES);
    if (n == 1) {
        for (size_t k = 0; k < count; k++) {
            out[k] = (samples){malloc(sizeof(double)), 0};
            MUST(out[k].us);
            run_batch(&out[k], &sides[k], 1);
        }
        return;
    }
    size_t rounds = (n + 2 * batch - 1) / (2 * batch);
    for (size_t k = 0; k < count; k++) {
        out[k].us = malloc(rounds * 2 * batch * sizeof(double));
        MUST(out[k].us);
        out[k].count = 0;
        run_batch(&out[k], &sides[k], batch); /* warms up */
        out[k].count = 0;
    }
    for (size_t i = 0; i < rounds; i++) {
        for (size_t k = 0; k < count; k++) run_batch(&out[k], &sides[k], batch);
        for (size_t k = count; k-- > 0;) run_batch(&out[k], &sides[k], batch);
    }
}

/* ---- figures ---- */

/* A number, or null. */
static void put_number(const char *key, double value)
{
    if (isnan(value)) printf("\"%s\":null,", key);
    else printf("\"%s\":%.6g,", key, value);
}

static void begin_line(const char *name, size_t size, size_t chunks)
{
    printf("{\"name\":\"%s\",\"size\":%zu,", name, size);
    if (chunks) printf("\"chunks\":%zu,", chunks);
}

static void end_line(void)
{
    printf("%s}\n", machine);
    fflush(stdout);
}

static void table_cell(double value)
{
    if (isnan(value)) fprintf(table_file, " %11s", "-");
    else fprintf(table_file, " %11.*f", value < 10 ? 4 : 1, value);
}

void report(const figure *f, samples *ours, samples *raw)
{
    double per = f->per ? (double)f->per : 1;
    double median = samples_median(ours) / per, p99 = samples_quantile(ours, 0.99) / per;
    double raw_median = raw ? samples_median(raw) / per : NAN, raw_p99 = raw ? samples_quantile(raw, 0.99) / per : NAN;
    double ratio = median / raw_median;

    begin_line(f->name, f->size, f->chunks);
    printf("\"n\":%zu,", ours->count);
    put_number("median_us", median);
    put_number("p99_us", p99);
    put_number("raw_median_us", raw_median);
    put_number("raw_p99_us", raw_p99);
    put_number("ratio", ratio);
    put_number("overhead_us", median - raw_median);
    if (f->per_chunk) {
        put_number("chunk_us", median / (double)f->chunks);
        put_number("raw_chunk_us", raw_median / (double)f->chunks);
    }
    if (f->note) printf("\"note\":\"%s\",", f->note);
    end_line();

    fprintf(table_file, "%-24s %8zu %7zu %5zu |", f->name, f->size / MiB, f->chunks, ours->count);
    table_cell(median);
    table_cell(p99);
    fprintf(table_file, " |");
    table_cell(raw_median);
    table_cell(raw_p99);
    if (isnan(ratio)) fprintf(table_file, " |      -\n");
    else fprintf(table_file, " | %6.3f\n", ratio);
}

static void put_value(const char *name, size_t size, size_t chunks, double value, double raw, double target, bool least,
                      const char *unit)
{
    begin_line(name, size, chunks);
    put_number("value", value);
    put_number("raw_value", raw);
    put_number("target", target);
    if (least) printf("\"target_is\":\"least\",");
    printf("\"unit\":\"%s\",", unit);
    end_line();

    bool missed = least ? value < target : value > target; /* no target: no */
    fprintf(table_file, "%-28s %7zu   gvmm %.3f", name, chunks, value);
    if (!isnan(raw)) fprintf(table_file, ", raw %.3f, ratio %.3f", raw, value / raw);
    fprintf(table_file, " (%s", unit);
    if (!isnan(target))
        fprintf(table_file, "; target: at %s %.4g%s", least ? "least" : "most", target, missed ? "; MISSED" : "");
    fprintf(table_file, ")\n");
}

void report_value(const char *name, size_t chunks, double value, double raw, double target, const char *unit)
{
    put_value(name, 0, chunks, value, raw, target, false, unit);
}

void report_least(const char *name, size_t size, size_t chunks, double value, double raw, double target,
                  const char *unit)
{
    put_value(name, size, chunks, value, raw, target, true, unit);
}

void report_skip(const char *name, size_t size, size_t chunks, const char *why)
{
    begin_line(name, size, chunks);
    printf("\"skipped\":\"%s\",", why);
    end_line();
    fprintf(table_file, "%-24s %8zu %7zu skipped: %s\n", name, size / MiB, chunks, why);
}

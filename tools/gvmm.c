/* gvmm: what gvmm can do on this machine, and whether it does.
 *
 *     gvmm info [--json] [--device N]     what each device can, found by trying
 *     gvmm check [--device N]             a self-test on each device
 *     gvmm version
 *
 * Exit status: 0 fine, 1 a check failed, 2 wrong usage or no driver. */
#include <argp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gvmm/sim.h"

#define MiB ((size_t)1 << 20)

static const gvmm_driver *cu;
static bool simulated;

static const char *last_text(void)
{
    static gvmm_error error;
    gvmm_last_error(&error);
    return error.text;
}

/* ---- info ---- */

typedef struct described {
    int ordinal;
    char name[128];
    bool probed;
    gvmm_probe_report report;
} described;

static int driver_version(void)
{
    int version = 0;
    return cu->cuDriverGetVersion(&version) == CUDA_SUCCESS ? version : 0;
}

static described describe(int ordinal)
{
    described d = {.ordinal = ordinal, .name = "?"};
    CUdevice device;
    if (cu->cuDeviceGet(&device, ordinal) == CUDA_SUCCESS) cu->cuDeviceGetName(d.name, sizeof d.name, device);
    d.probed = gvmm_probe(&d.report, ordinal) == GVMM_OK;
    return d;
}

static void print_size(const char *what, uint64_t bytes)
{
    const char *units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit < 6; unit++) value /= 1024;
    printf("  %-14s %.*f %s\n", what, value == (double)(uint64_t)value ? 0 : 1, value, units[unit]);
}

static void print_bits(const char *what, uint64_t bits)
{
    printf("  %-14s", what);
    for (int i = 0; i < 64; i++)
        if (bits >> i & 1) printf(" %d", i);
    printf("%s\n", bits ? "" : " none");
}

static void print_answer(gvmm_capability which, const gvmm_answer *a)
{
    printf("  %-14s %-4s %s", gvmm_capability_name(which), a->available ? "yes" : "no", gvmm_capability_text(which));
    if (a->call)
        printf("\n  %-14s      %s: %s", "", a->call, a->status ? gvmm_driver_status_name(a->status) : "says no");
    if (a->advice) printf("\n  %-14s      %s", "", a->advice);
    printf("\n");
}

static void print_table(const described *d)
{
    printf("\ndevice %d         %s\n", d->ordinal, d->name);
    if (!d->probed) {
        printf("  %s\n", last_text());
        return;
    }
    print_size("total", d->report.memory);
    print_size("granularity", d->report.granularity);
    print_size("reservable", d->report.reservable);
    print_bits("peers", d->report.peers);
    print_bits("numa nodes", d->report.numa_nodes);
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) print_answer((gvmm_capability)i, &d->report.answers[i]);
}

static void json_string(const char *text)
{
    if (!text) {
        printf("null");
        return;
    }
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') printf("\\%c", *text);
        else if ((unsigned char)*text < 32) printf("\\u%04x", (unsigned)*text);
        else putchar(*text);
    }
    putchar('"');
}

static void json_field(const char *name, const char *text, const char *behind)
{
    printf("\"%s\": ", name);
    json_string(text);
    printf("%s", behind);
}

static void json_bits(const char *name, uint64_t bits)
{
    const char *between = "";
    printf("      \"%s\": [", name);
    for (int i = 0; i < 64; i++) {
        if (!(bits >> i & 1)) continue;
        printf("%s%d", between, i);
        between = ", ";
    }
    printf("],\n");
}

static void json_answer(gvmm_capability which, const gvmm_answer *a)
{
    printf("        \"%s\": {\"available\": %s, ", gvmm_capability_name(which), a->available ? "true" : "false");
    json_field("call", a->call, ", ");
    json_field("status", a->status ? gvmm_driver_status_name(a->status) : NULL, ", ");
    json_field("advice", a->advice, "}");
}

static void print_json(const described *d)
{
    printf("    {\n      \"ordinal\": %d,\n      ", d->ordinal);
    json_field("name", d->name, ",\n      ");
    json_field("error", d->probed ? NULL : last_text(), ",\n");
    printf("      \"memory\": %llu,\n", (unsigned long long)d->report.memory);
    printf("      \"granularity\": %zu,\n", d->report.granularity);
    printf("      \"reservable\": %llu,\n", (unsigned long long)d->report.reservable);
    json_bits("peers", d->report.peers);
    json_bits("numa_nodes", d->report.numa_nodes);
    printf("      \"capabilities\": {\n");
    for (int i = 0; d->probed && i < GVMM_CAPABILITY_COUNT; i++) {
        json_answer((gvmm_capability)i, &d->report.answers[i]);
        printf("%s\n", i + 1 < GVMM_CAPABILITY_COUNT ? "," : "");
    }
    printf("      }\n    }");
}

static void print_driver(void)
{
    int version = driver_version();
    printf("gvmm             %s\ndriver           %s, CUDA %d.%d\n", gvmm_version(), cu->origin, version / 1000,
           version % 1000 / 10);
    if (simulated) printf("                 This is no GPU: it says nothing about one.\n");
}

static int info(int first, int end, bool json)
{
    bool fine = true;
    if (json) {
        printf("{\n  ");
        json_field("version", gvmm_version(), ",\n  ");
        json_field("driver", cu->origin, ",\n");
        printf("  \"simulated\": %s,\n  \"cuda\": %d,\n  \"devices\": [\n", simulated ? "true" : "false",
               driver_version());
    } else {
        print_driver();
    }
    for (int i = first; i < end; i++) {
        described d = describe(i);
        fine &= d.probed;
        if (json) print_json(&d);
        else print_table(&d);
        if (json) printf("%s\n", i + 1 < end ? "," : "");
    }
    if (json) printf("  ]\n}\n");
    return fine ? 0 : 1;
}

/* ---- check: steps that build on one another; the first that fails ends a device's turn ---- */

typedef struct scene {
    int device;
    gvmm_resource *resource; /* address space to grow into, chunks of the granularity */
    gvmm_buffer *buffer;     /* with the pattern in it */
    size_t chunk;
    unsigned char *bytes, *wanted;
} scene;

static char why[256];

static bool no(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return false;
}

#define DO(call) \
    do { \
        if ((call) != GVMM_OK) return no("%s", last_text()); \
    } while (0)
#define DO_CU(name, ...) \
    do { \
        CUresult status_ = cu->name(__VA_ARGS__); \
        if (status_ != CUDA_SUCCESS) return no("%s: %s", #name, gvmm_driver_status_name((int)status_)); \
    } while (0)
#define HOLDS(what) \
    do { \
        if (!(what)) return no("not so: %s", #what); \
    } while (0)

enum { CHUNKS = 8 }; /* of address space */

static void make_pattern(unsigned char *bytes, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i ^ (i >> 8) ^ (i >> 16) * 7 ^ seed * 31);
}

static bool write_pattern(scene *s, uint64_t address, size_t size, unsigned seed)
{
    make_pattern(s->bytes, size, seed);
    DO_CU(cuMemcpyHtoD, address, s->bytes, size);
    return true;
}

static bool has_pattern(scene *s, uint64_t address, size_t size, unsigned seed)
{
    make_pattern(s->wanted, size, seed);
    DO_CU(cuMemcpyDtoH, s->bytes, address, size);
    for (size_t i = 0; i < size; i++)
        if (s->bytes[i] != s->wanted[i])
            return no("byte %zu of %zu at 0x%llx is wrong", i, size, (unsigned long long)address);
    return true;
}

static void replace(scene *s, gvmm_buffer *with)
{
    gvmm_buffer_release(s->buffer);
    s->buffer = with;
}

static bool step_create(scene *s)
{
    DO(gvmm_buffer_create(&s->buffer, s->resource, s->chunk, NULL));
    HOLDS(gvmm_buffer_size(s->buffer) == s->chunk);
    uint64_t at = gvmm_buffer_address(s->buffer);
    DO_CU(cuMemcpyDtoH, s->bytes, at, s->chunk);
    for (size_t i = 0; i < s->chunk; i++)
        if (s->bytes[i]) return no("byte %zu of new memory is not zero", i);
    return write_pattern(s, at, s->chunk, 1) && has_pattern(s, at, s->chunk, 1);
}

static bool step_grow_in_place(scene *s)
{
    uint64_t at = gvmm_buffer_address(s->buffer);
    for (size_t chunks = 2; chunks <= 4; chunks++) {
        gvmm_buffer *larger;
        DO(gvmm_buffer_grow(&larger, s->buffer, chunks * s->chunk, NULL));
        replace(s, larger);
        HOLDS(gvmm_buffer_address(s->buffer) == at);
        if (!write_pattern(s, at + (chunks - 1) * s->chunk, s->chunk, (unsigned)chunks)) return false;
    }
    for (unsigned i = 0; i < 4; i++)
        if (!has_pattern(s, at + i * s->chunk, s->chunk, i + 1)) return false;
    return true;
}

/* Beyond the reserved addresses, with somebody else's behind them if the driver grants that. */
static bool step_grow_moved(scene *s)
{
    gvmm_buffer *larger = NULL;
    size_t size = gvmm_buffer_capacity(s->buffer);
    uint64_t at = gvmm_buffer_address(s->buffer);
    CUdeviceptr behind;
    DO_CU(cuMemAddressReserve, &behind, s->chunk, 0, at + size, 0);
    gvmm_result r = gvmm_buffer_grow(&larger, s->buffer, size + s->chunk, NULL);
    DO_CU(cuMemAddressFree, behind, s->chunk);
    DO(r);
    uint64_t moved = gvmm_buffer_address(larger);
    bool fine = (moved != at || behind != at + size) || no("it has not moved");
    for (unsigned i = 0; fine && i < 4; i++) fine = has_pattern(s, moved + i * s->chunk, s->chunk, i + 1);
    fine = fine && write_pattern(s, moved, s->chunk, 9) &&
           has_pattern(s, at, s->chunk, 9); /* both show the same memory */
    gvmm_buffer_release(larger);
    return fine && write_pattern(s, at, s->chunk, 1);
}

static bool step_alias(scene *s)
{
    gvmm_buffer *alias;
    DO(gvmm_buffer_grow(&alias, s->buffer, 0, NULL));
    uint64_t at = gvmm_buffer_address(alias);
    bool same = at == gvmm_buffer_address(s->buffer) && gvmm_buffer_size(alias) == gvmm_buffer_size(s->buffer);
    replace(s, alias); /* the first view goes, the memory stays */
    HOLDS(same);
    return has_pattern(s, at, s->chunk, 1);
}

static bool step_shrink(scene *s)
{
    gvmm_buffer *shorter;
    gvmm_stats before, after;
    gvmm_get_stats(s->resource, &before);
    DO(gvmm_buffer_shrink(&shorter, s->buffer, 2 * s->chunk));
    replace(s, shorter);
    gvmm_drain(); /* what was released goes back when its stream is done */
    gvmm_get_stats(s->resource, &after);
    HOLDS(gvmm_buffer_size(s->buffer) == 2 * s->chunk);
    HOLDS(before.physical_bytes - after.physical_bytes == 2 * s->chunk);
    uint64_t at = gvmm_buffer_address(s->buffer);
    return has_pattern(s, at, s->chunk, 1) && has_pattern(s, at + s->chunk, s->chunk, 2);
}

static bool step_ring(scene *s)
{
    gvmm_buffer *ring;
    size_t once = gvmm_buffer_size(s->buffer);
    DO(gvmm_buffer_ring(&ring, s->buffer, 2));
    uint64_t at = gvmm_buffer_address(ring);
    bool fine = has_pattern(s, at + once, s->chunk, 1);
    fine = fine && write_pattern(s, at + once - s->chunk / 2, s->chunk, 7); /* over the end */
    fine = fine && has_pattern(s, gvmm_buffer_address(s->buffer) + once - s->chunk / 2, s->chunk / 2, 7);
    gvmm_buffer_release(ring);
    fine = fine && write_pattern(s, gvmm_buffer_address(s->buffer), s->chunk, 1);
    return fine && write_pattern(s, gvmm_buffer_address(s->buffer) + s->chunk, s->chunk, 2);
}

static bool step_evict(scene *s)
{
    gvmm_stats stats;
    uint64_t at = gvmm_buffer_address(s->buffer), generation = gvmm_buffer_generation(s->buffer);
    DO(gvmm_buffer_evict(s->buffer, NULL));
    gvmm_get_stats(s->resource, &stats);
    HOLDS(stats.physical_bytes == 0);
    HOLDS(gvmm_buffer_evicted_bytes(s->buffer) == gvmm_buffer_size(s->buffer));
    DO(gvmm_buffer_restore(s->buffer));
    HOLDS(gvmm_buffer_evicted_bytes(s->buffer) == 0);
    HOLDS(gvmm_buffer_address(s->buffer) == at && gvmm_buffer_generation(s->buffer) != generation);
    return has_pattern(s, at, s->chunk, 1) && has_pattern(s, at + s->chunk, s->chunk, 2);
}

/* The graph clears the buffer after the buffer has been closed. */
static bool run_graph(scene *s, CUgraph graph, CUstream stream, CUcontext context)
{
    uint64_t at = gvmm_buffer_address(s->buffer);
    CUDA_MEMSET_NODE_PARAMS clear = {at, 0, 0x5a, 1, s->chunk, 1};
    CUgraphNode node;
    CUgraphExec exec;
    DO_CU(cuGraphAddMemsetNode, &node, graph, NULL, 0, &clear, context);
    DO(gvmm_buffer_retain_in_graph(s->buffer, graph));
    DO_CU(cuGraphInstantiateWithFlags, &exec, graph, 0);
    CUresult status = CUDA_SUCCESS;
    bool closed = gvmm_buffer_close(s->buffer, NULL) == GVMM_OK || no("%s", last_text());
    if (closed) status = cu->cuGraphLaunch(exec, stream);
    if (closed && !status) status = cu->cuStreamSynchronize(stream);
    if (closed && !status) status = cu->cuMemcpyDtoH(s->bytes, at, s->chunk);
    DO_CU(cuGraphExecDestroy, exec);
    if (!closed) return false;
    if (status) return no("after the close: %s", gvmm_driver_status_name((int)status));
    for (size_t i = 0; i < s->chunk; i++) HOLDS(s->bytes[i] == 0x5a);
    return true;
}

static bool step_graph(scene *s)
{
    CUgraph graph;
    CUstream stream;
    CUcontext context;
    gvmm_stats stats;
    DO_CU(cuDevicePrimaryCtxRetain, &context, s->device);
    DO_CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    DO_CU(cuGraphCreate, &graph, 0);
    bool fine = run_graph(s, graph, stream, context);
    DO_CU(cuGraphDestroy, graph);
    DO_CU(cuStreamDestroy, stream);
    DO_CU(cuDevicePrimaryCtxRelease, s->device);
    for (int i = 0; fine && i < 500; i++) { /* the driver says on a thread of its own that the graph is gone */
        gvmm_drain();
        gvmm_get_stats(s->resource, &stats);
        if (stats.physical_bytes == 0) return true;
        usleep(10000);
    }
    return fine ? no("the graph is gone and its memory is not") : false;
}

static bool step_close(scene *s)
{
    gvmm_stats stats;
    gvmm_buffer *buffer;
    DO(gvmm_buffer_create(&buffer, s->resource, s->chunk, NULL));
    gvmm_result r = gvmm_buffer_close(buffer, NULL);
    gvmm_buffer_release(buffer);
    DO(r);
    DO(gvmm_buffer_create(&buffer, s->resource, s->chunk, NULL));
    r = gvmm_buffer_close_deferred(buffer, NULL);
    gvmm_buffer_release(buffer);
    DO(r);
    replace(s, NULL);
    gvmm_drain();
    gvmm_get_stats(s->resource, &stats);
    HOLDS(!stats.physical_bytes && !stats.mapped_bytes && !stats.reserved_bytes && !stats.buffers);
    return true;
}

static const struct {
    const char *name;
    bool (*run)(scene *s);
} steps[] = {
    {"create", step_create},
    {"grow in place", step_grow_in_place},
    {"grow moved", step_grow_moved},
    {"alias", step_alias},
    {"shrink", step_shrink},
    {"ring", step_ring},
    {"evict and restore", step_evict},
    {"hold in a graph", step_graph},
    {"close", step_close},
};
enum { STEPS = sizeof steps / sizeof *steps };

static bool prepare(scene *s)
{
    gvmm_resource *plain;
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.optional = GVMM_OPTIONAL_HANDLE;
    DO(gvmm_resource_create(&plain, s->device, &options));
    s->chunk = gvmm_resource_granularity(plain);
    gvmm_resource_release(plain);
    options.capacity = CHUNKS * s->chunk;
    options.chunk_size = s->chunk;
    options.release_mode = GVMM_RELEASE_SYNC; /* figures are looked at right after releases */
    s->bytes = malloc(s->chunk);
    s->wanted = malloc(s->chunk);
    HOLDS(s->bytes && s->wanted);
    DO(gvmm_resource_create(&s->resource, s->device, &options));
    return true;
}

/* How many steps went well. */
static int check_device(int device)
{
    scene s = {.device = device};
    int done = 0;
    CUcontext context, popped;
    if (cu->cuDevicePrimaryCtxRetain(&context, device) || cu->cuCtxPushCurrent(context)) {
        printf("device %d  no context\n", device);
        return 0;
    }
    bool fine = prepare(&s);
    if (!fine) printf("device %d  %-18s NO   %s\n", device, "prepare", why);
    for (; fine && done < STEPS; done += fine) {
        fine = steps[done].run(&s);
        printf("device %d  %-18s %s%s\n", device, steps[done].name, fine ? "ok" : "NO   ", fine ? "" : why);
    }
    gvmm_buffer_release(s.buffer);
    gvmm_resource_release(s.resource);
    free(s.bytes);
    free(s.wanted);
    cu->cuCtxPopCurrent(&popped);
    cu->cuDevicePrimaryCtxRelease(device);
    return done;
}

static int check(int first, int end)
{
    int done = 0, all = (end - first) * STEPS;
    print_driver();
    for (int i = first; i < end; i++) done += check_device(i);
    printf("check: %s, %d of %d steps on %d device%s%s\n", done == all ? "ok" : "FAILED", done, all, end - first,
           end - first == 1 ? "" : "s", simulated ? " (simulated)" : "");
    return done == all ? 0 : 1;
}

/* ---- the command line ---- */

typedef struct command {
    const char *name;
    int device; /* -1: all */
    bool json;
} command;

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "info: as JSON", 0},
    {"device", 'd', "N", 0, "this device alone, in place of all", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    command *c = state->input;
    char *rest;
    switch (key) {
    case 'j': c->json = true; return 0;
    case 'd':
        c->device = (int)strtol(arg, &rest, 10);
        if (!*arg || *rest || c->device < 0) argp_error(state, "--device: \"%s\" is no ordinal", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (c->name) argp_error(state, "one command at a time: not \"%s\" too", arg);
        c->name = arg;
        return 0;
    case ARGP_KEY_END:
        if (!c->name) argp_usage(state);
        if (strcmp(c->name, "info") != 0 && strcmp(c->name, "check") != 0 && strcmp(c->name, "version") != 0)
            argp_error(state, "\"%s\" is no command", c->name);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp syntax = {options,
                                       parse,
                                       "info|check|version",
                                       "What gvmm can do on this machine, and whether it does.\v"
                                       "GVMM_DRIVER=sim runs it on the simulated driver, a path on that library.",
                                       NULL,
                                       NULL,
                                       NULL};
    command c = {NULL, -1, false};
    int count;
    argp_err_exit_status = 2;
    if (argp_parse(&syntax, argc, argv, 0, NULL, &c)) return 2;
    if (strcmp(c.name, "version") == 0) {
        printf("gvmm %s\n", gvmm_version());
        return 0;
    }
    if (gvmm_driver_get(&cu)) {
        fprintf(stderr, "gvmm: no usable CUDA driver: %s\n", last_text());
        fprintf(stderr, "gvmm: GVMM_DRIVER=sim gvmm %s runs on the simulated driver\n", c.name);
        return 2;
    }
    simulated = strcmp(cu->origin, gvmm_sim_driver()->origin) == 0;
    if (cu->cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0 || c.device >= count) {
        fprintf(stderr, c.device < 0 ? "gvmm: there is no device\n" : "gvmm: there is no device %d\n", c.device);
        return 2;
    }
    int first = c.device < 0 ? 0 : c.device, end = c.device < 0 ? count : c.device + 1;
    return strcmp(c.name, "info") == 0 ? info(first, end, c.json) : check(first, end);
}

/* Handles, the census, findings, the leak report. */
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"
#include "tree.h"

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sim_changed = PTHREAD_COND_INITIALIZER;

/* ---------------------------------------------------------------------------------------------
 * Objects. One tree for each kind, by id: ids ascend, so that its order is the order of birth.
 * ------------------------------------------------------------------------------------------- */

#define SERIAL_BITS 40

SIM_TREE(object, sim_object, id, before, after)

static sim_object *alive[GVMM_SIM_KIND_COUNT];
static size_t alive_count[GVMM_SIM_KIND_COUNT];
static uint64_t last_serial[GVMM_SIM_KIND_COUNT];

uint64_t sim_id_next(gvmm_sim_kind kind) { return (uint64_t)(kind + 1) << SERIAL_BITS | ++last_serial[kind]; }

void sim_object_add_again(sim_object *object)
{
    object_insert(&alive[object->kind], object);
    alive_count[object->kind]++;
}

void sim_object_add(sim_object *object, gvmm_sim_kind kind, uint64_t address, uint64_t size)
{
    object->id = sim_id_next(kind);
    object->kind = kind;
    object->call = sim_call_number;
    object->made_by = sim_call_name ? sim_call_name : "?";
    object->address = address;
    object->size = size;
    object->references = 1;
    sim_object_add_again(object);
}

void sim_object_remove(sim_object *object)
{
    object_remove(&alive[object->kind], object);
    alive_count[object->kind]--;
}

sim_object *sim_object_from(gvmm_sim_kind kind, uint64_t id) { return object_ceiling(alive[kind], id); }

sim_object *sim_object_find(gvmm_sim_kind kind, uint64_t id)
{
    sim_object *object = object_floor(alive[kind], id);
    return object && object->id == id ? object : NULL;
}

bool sim_object_was(gvmm_sim_kind kind, uint64_t id)
{
    uint64_t serial = id & (((uint64_t)1 << SERIAL_BITS) - 1);
    return id >> SERIAL_BITS == (uint64_t)kind + 1 && serial && serial <= last_serial[kind] &&
           !sim_object_find(kind, id);
}

/* ---------------------------------------------------------------------------------------------
 * Census
 * ------------------------------------------------------------------------------------------- */

static const char *const kind_names[GVMM_SIM_KIND_COUNT] = {
    [GVMM_SIM_MEMORY] = "memory",         [GVMM_SIM_RESERVATION] = "reservation",
    [GVMM_SIM_MAPPING] = "mapping",       [GVMM_SIM_PLAIN] = "plain",
    [GVMM_SIM_POOLED] = "pooled",         [GVMM_SIM_PINNED] = "pinned",
    [GVMM_SIM_REGISTERED] = "registered", [GVMM_SIM_STREAM] = "stream",
    [GVMM_SIM_EVENT] = "event",           [GVMM_SIM_GRAPH] = "graph",
    [GVMM_SIM_EXEC] = "executable graph", [GVMM_SIM_USER_OBJECT] = "user object",
};

const char *gvmm_sim_kind_name(gvmm_sim_kind kind)
{
    return (unsigned)kind < GVMM_SIM_KIND_COUNT ? kind_names[kind] : "?";
}

void gvmm_sim_census(size_t counts[GVMM_SIM_KIND_COUNT], void (*visit)(void *user, const gvmm_sim_item *item),
                     void *user)
{
    pthread_mutex_lock(&sim_lock);
    if (counts) memcpy(counts, alive_count, sizeof alive_count);
    for (int kind = 0; visit && kind < GVMM_SIM_KIND_COUNT; kind++) {
        for (sim_object *o = sim_object_from(kind, 0); o; o = sim_object_from(kind, o->id + 1)) {
            gvmm_sim_item item = {
                .kind = kind,
                .address = o->address ? o->address : o->id,
                .size = o->size,
                .references = o->references,
                .call = o->call,
                .made_by = o->made_by,
            };
            visit(user, &item);
        }
    }
    pthread_mutex_unlock(&sim_lock);
}

/* ---------------------------------------------------------------------------------------------
 * Findings. Their lock is inside sim_lock, and nothing is called under it but the visitor.
 * ------------------------------------------------------------------------------------------- */

#define MOST_FINDINGS 10000 /* kept; later ones are only counted and written */

static pthread_mutex_t finding_lock = PTHREAD_MUTEX_INITIALIZER;
static char **findings;
static size_t finding_count, finding_room, finding_total;
static atomic_bool quiet;

void gvmm_sim_quiet(bool on) { atomic_store(&quiet, on); }

/* With finding_lock. False when there is no memory, or enough of them. */
static bool keep_finding(const char *text)
{
    if (finding_count == MOST_FINDINGS) return false;
    if (finding_count == finding_room) {
        size_t room = finding_room ? 2 * finding_room : 16;
        char **larger = realloc(findings, room * sizeof *findings);
        if (!larger) return false;
        findings = larger;
        finding_room = room;
    }
    char *copy = strdup(text);
    if (!copy) return false;
    findings[finding_count++] = copy;
    return true;
}

void sim_finding(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    pthread_mutex_lock(&finding_lock);
    finding_total++;
    keep_finding(text);
    if (!atomic_load(&quiet)) dprintf(STDERR_FILENO, "gvmm simulated driver: %s\n", text);
    pthread_mutex_unlock(&finding_lock);
}

size_t gvmm_sim_findings(void (*visit)(void *user, const char *text), void *user)
{
    pthread_mutex_lock(&finding_lock);
    for (size_t i = 0; visit && i < finding_count; i++) visit(user, findings[i]);
    size_t total = finding_total;
    pthread_mutex_unlock(&finding_lock);
    return total;
}

void sim_before_fork(void)
{
    pthread_mutex_lock(&sim_lock);
    pthread_mutex_lock(&finding_lock);
}

void sim_after_fork(void)
{
    pthread_mutex_unlock(&finding_lock);
    pthread_mutex_unlock(&sim_lock);
}

void gvmm_sim_findings_clear(void)
{
    pthread_mutex_lock(&finding_lock);
    for (size_t i = 0; i < finding_count; i++) free(findings[i]);
    free(findings);
    findings = NULL;
    finding_count = finding_room = finding_total = 0;
    pthread_mutex_unlock(&finding_lock);
}

/* ---------------------------------------------------------------------------------------------
 * The leak report. It is put together in memory and written in one go, without a lock.
 * ------------------------------------------------------------------------------------------- */

typedef struct report {
    FILE *out;
    bool json;
    size_t items;
} report;

static void report_item(void *user, const gvmm_sim_item *item)
{
    report *r = user;
    bool first = r->items++ == 0;
    if (r->json)
        fprintf(
            r->out,
            "%s\n    {\"kind\": \"%s\", \"address\": \"0x%llx\", \"size\": %llu, \"references\": %u, \"call\": %llu, "
            "\"made_by\": \"%s\"}",
            first ? "" : ",", gvmm_sim_kind_name(item->kind), (unsigned long long)item->address,
            (unsigned long long)item->size, item->references, (unsigned long long)item->call, item->made_by);
    else
        fprintf(r->out, "  %-16s 0x%012llx  %llu bytes, %u reference%s, made by %s (call %llu)\n",
                gvmm_sim_kind_name(item->kind), (unsigned long long)item->address, (unsigned long long)item->size,
                item->references, item->references == 1 ? "" : "s", item->made_by, (unsigned long long)item->call);
}

static void write_json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
        else if (c < 0x20) fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}

static void report_finding(void *user, const char *text)
{
    report *r = user;
    bool first = r->items++ == 0;
    if (r->json) {
        fputs(first ? "\n    " : ",\n    ", r->out);
        write_json_string(r->out, text);
    } else {
        fprintf(r->out, "  finding: %s\n", text);
    }
}

static void write_all(int fd, const char *bytes, size_t size)
{
    while (size) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        bytes += n;
        size -= (size_t)n;
    }
}

size_t gvmm_sim_report(int fd, bool json)
{
    char *text = NULL;
    size_t length = 0;
    report items = {open_memstream(&text, &length), json, 0};
    if (!items.out) return 0;

    if (json) fputs("{\n  \"items\": [", items.out);
    else fputs("gvmm simulated driver: alive\n", items.out);
    gvmm_sim_census(NULL, report_item, &items);

    report found = {items.out, json, 0};
    if (json) fputs(items.items ? "\n  ],\n  \"findings\": [" : "],\n  \"findings\": [", items.out);
    gvmm_sim_findings(report_finding, &found);
    if (json) fputs(found.items ? "\n  ]\n}\n" : "]\n}\n", items.out);
    else
        fprintf(items.out, "  %zu item%s, %zu finding%s\n", items.items, items.items == 1 ? "" : "s", found.items,
                found.items == 1 ? "" : "s");

    if (fclose(items.out) == 0) write_all(fd, text, length);
    free(text);
    return items.items;
}

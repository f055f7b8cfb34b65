/* Ranks that agree: the same answer from every rank's probe, and options that all of them can have. */
#include <string.h>

#include "internal.h"

_Static_assert(GVMM_CAPABILITY_COUNT <= GVMM_PROBE_ROOM, "a record has room for every capability");
_Static_assert(sizeof(gvmm_probe_record) == 16 + 5 * 8 + GVMM_PROBE_ROOM * (4 + 44), "a record has no padding");

gvmm_result gvmm_probe_pack(gvmm_probe_record *out, const gvmm_probe_report *report)
{
    if (!out || !report) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "report" : "out");
    gvmm_probe_record record;
    memset(&record, 0, sizeof record);
    record.size = sizeof record;
    record.count = GVMM_CAPABILITY_COUNT;
    record.device = report->device;
    record.memory = report->memory;
    record.reservable = report->reservable;
    record.granularity = report->granularity;
    record.peers = report->peers;
    record.numa_nodes = report->numa_nodes;
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) {
        const gvmm_answer *a = &report->answers[i];
        if (a->available) record.available |= 1u << i;
        record.status[i] = a->status;
        if (a->call) strncpy(record.call[i], a->call, sizeof record.call[i] - 1);
    }
    *out = record;
    return GVMM_OK;
}

/* ---- the common answer ---- */

/* The table's own text for a name that came over the wire; "?" for a call that this gvmm does not know. */
static const char *own_name(const char *call)
{
    if (!*call) return NULL;
    for (int i = 0; i < GVMM_CALL_COUNT; i++)
        if (strncmp(call, gvmm_driver_call_name((gvmm_driver_call)i), sizeof((gvmm_probe_record *)0)->call[0]) == 0)
            return gvmm_driver_call_name((gvmm_driver_call)i);
    return "?";
}

static gvmm_answer answer_of(const gvmm_probe_record *record, gvmm_capability which)
{
    if (which >= record->count) return (gvmm_answer){.advice = "that rank's gvmm is older and did not try it"};
    if (record->available >> which & 1) return (gvmm_answer){.available = true};
    gvmm_answer a = {false, record->status[which], own_name(record->call[which]), NULL};
    a.advice = gvmm__probe_advice(which, &a);
    return a;
}

/* 0 for none that fits. */
static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b, product;
    while (y) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return __builtin_mul_overflow(a / x, b, &product) ? 0 : product;
}

static uint64_t devices_of(const gvmm_probe_record *record)
{
    bool fits = record->device >= 0 && record->device < 64;
    return record->peers | (fits ? (uint64_t)1 << record->device : 0);
}

/* The first rank's figures to begin with. A granularity of 0, where there is no device memory, is everybody's. */
static gvmm_result join(gvmm_probe_report *all, const gvmm_probe_record *record, size_t rank)
{
    uint64_t granularity = record->granularity;
    if (rank > 0 && all->granularity && granularity) {
        granularity = common_multiple(all->granularity, granularity);
        if (!granularity) return gvmm__fail(GVMM_E_INVALID, "rank %zu: no common multiple of the granularities", rank);
    } else if (rank > 0) {
        granularity = 0;
    }
    if (rank == 0 || record->memory < all->memory) all->memory = record->memory;
    if (rank == 0 || record->reservable < all->reservable) all->reservable = record->reservable;
    all->peers = rank == 0 ? devices_of(record) : all->peers & devices_of(record);
    all->numa_nodes = rank == 0 ? record->numa_nodes : all->numa_nodes & record->numa_nodes;
    all->granularity = (size_t)granularity;
    return GVMM_OK;
}

gvmm_result gvmm_probe_common(gvmm_common_report *out, const gvmm_probe_record *records, size_t count)
{
    if (!out || !records || !count)
        return gvmm__fail(GVMM_E_INVALID, !out ? "out is NULL" : !records ? "records is NULL" : "there are no records");
    gvmm_common_report common;
    memset(&common, 0, sizeof common);
    common.ranks = count;
    common.report.device = -1;
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) {
        common.first[i] = count;
        common.report.answers[i].available = true;
    }
    for (size_t rank = 0; rank < count; rank++) {
        const gvmm_probe_record *record = &records[rank];
        if (record->size != sizeof *record || record->count > GVMM_PROBE_ROOM)
            return gvmm__fail(GVMM_E_INVALID, "rank %zu: its record is of another version of gvmm, or damaged", rank);
        gvmm_result r = join(&common.report, record, rank);
        if (r) return r;
        for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) {
            gvmm_answer a = answer_of(record, (gvmm_capability)i);
            if (a.available) continue;
            if (common.lacking[i]++ > 0) continue;
            common.first[i] = rank;
            common.report.answers[i] = a;
        }
    }
    *out = common;
    return GVMM_OK;
}

/* ---- options that all can have ---- */

static bool all_have(const gvmm_common_report *c, gvmm_capability which) { return c->report.answers[which].available; }

/* Fails if somebody lacks it. */
static gvmm_result need(const gvmm_common_report *c, const char *option, gvmm_capability which)
{
    if (all_have(c, which)) return GVMM_OK;
    const gvmm_answer *a = &c->report.answers[which];
    return gvmm__fail(GVMM_E_UNSUPPORTED, "option %s: %zu of %zu ranks lack %s, the first is rank %zu (%s%s%s)", option,
                      c->lacking[which], c->ranks, gvmm_capability_name(which), c->first[which],
                      a->call ? a->call : "not tried", a->status ? ": " : "",
                      a->status ? gvmm_driver_status_name(a->status) : "");
}

static gvmm_result settle_memory(gvmm_options *o, const gvmm_common_report *c)
{
    gvmm_capability where = o->location == GVMM_LOCATION_DEVICE ? GVMM_CAPABILITY_MEMORY
                            : o->location == GVMM_LOCATION_HOST ? GVMM_CAPABILITY_HOST
                                                                : GVMM_CAPABILITY_HOST_NUMA;
    gvmm_result r = need(c, "location", where);
    if (!r && o->gpu_direct_rdma && o->optional & GVMM_OPTIONAL_RDMA)
        o->gpu_direct_rdma = all_have(c, GVMM_CAPABILITY_RDMA);
    return !r && o->gpu_direct_rdma ? need(c, "gpu_direct_rdma", GVMM_CAPABILITY_RDMA) : r;
}

static gvmm_result settle_handle(gvmm_options *o, const gvmm_common_report *c)
{
    bool may_be_none = o->optional & GVMM_OPTIONAL_HANDLE;
    if (o->handle_type == GVMM_HANDLE_FABRIC && o->optional & GVMM_OPTIONAL_FABRIC &&
        !all_have(c, GVMM_CAPABILITY_FABRIC))
        o->handle_type = GVMM_HANDLE_POSIX_FD;
    if (o->handle_type != GVMM_HANDLE_FABRIC && o->handle_type != GVMM_HANDLE_POSIX_FD) {
        if (may_be_none) o->handle_type = GVMM_HANDLE_NONE; /* nobody has tried the others */
        return GVMM_OK;
    }
    gvmm_capability which = o->handle_type == GVMM_HANDLE_FABRIC ? GVMM_CAPABILITY_FABRIC : GVMM_CAPABILITY_POSIX_FD;
    if (!all_have(c, which) && may_be_none) o->handle_type = GVMM_HANDLE_NONE;
    return o->handle_type ? need(c, "handle_type", which) : GVMM_OK;
}

static bool in_reach(const gvmm_common_report *c, int device)
{
    return device >= 0 && device < 64 && c->report.peers >> device & 1;
}

/* Counts the peers that are kept; writes them where `kept` is not NULL. Host memory is in every device's reach. */
static gvmm_result settle_devices(gvmm_options *o, int *kept, const gvmm_common_report *c)
{
    size_t count = 0;
    for (size_t i = 0; i < o->peer_count; i++) {
        bool optional = o->optional & GVMM_OPTIONAL_PEERS, near = in_reach(c, o->peers[i]);
        if (!near && !optional && o->location == GVMM_LOCATION_DEVICE)
            return gvmm__fail(GVMM_E_UNSUPPORTED, "option peers: device %d does not reach every rank's memory",
                              o->peers[i]);
        if (!near && optional) continue;
        if (kept) kept[count] = o->peers[i];
        count++;
    }
    for (size_t i = 0; i < o->stripe_count; i++)
        if (!in_reach(c, o->stripe[i]))
            return gvmm__fail(GVMM_E_UNSUPPORTED, "option stripe: not every rank's device reaches device %d",
                              o->stripe[i]);
    if (kept) o->peer_count = count;
    return GVMM_OK;
}

static gvmm_result settle_sizes(gvmm_options *o, const gvmm_common_report *c)
{
    uint64_t capacity = c->report.memory;
    if (o->capacity == GVMM_CAPACITY_ALL && capacity && o->location == GVMM_LOCATION_DEVICE) {
        if (o->stripe_count && __builtin_mul_overflow(capacity, o->stripe_count, &capacity))
            capacity = c->report.memory;
        o->capacity = capacity;
    }
    if (c->report.granularity && !gvmm__round_up(&o->chunk_size, c->report.granularity))
        return gvmm__fail(GVMM_E_INVALID, "option chunk_size: %zu cannot be rounded up", o->chunk_size);
    return GVMM_OK;
}

gvmm_result gvmm_probe_settle(gvmm_options *options, int *peers, const gvmm_common_report *common)
{
    if (!options || !common) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", options ? "common" : "options");
    gvmm_options o;
    gvmm_result r = gvmm__options_check(&o, options);
    if (r) return r;
    if (o.peer_count && !peers) return gvmm__fail(GVMM_E_INVALID, "peers is NULL");
    r = settle_memory(&o, common);
    if (!r) r = settle_handle(&o, common);
    if (!r) r = settle_devices(&o, NULL, common);
    if (!r) r = settle_sizes(&o, common);
    if (r) return r;
    if (peers) settle_devices(&o, peers, common);
    o.peers = o.peer_count ? peers : NULL;
    o.optional = 0;
    o.location = options->location; /* the current node is the one where the resource is made */
    o.numa_node = options->numa_node;
    o.struct_size = options->struct_size;
    memcpy(options, &o, o.struct_size); /* a program built with an older header has no more room */
    return GVMM_OK;
}

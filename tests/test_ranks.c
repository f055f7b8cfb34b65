/* Ranks that agree: records that survive the way to another process, the common answer, options that all can have. */
#include "sim_kit.h"

#include <unistd.h>

/* ---- ranks made by hand ---- */

static gvmm_probe_report whole(int device, uint64_t peers)
{
    gvmm_probe_report report = {.memory = (uint64_t)80 << 30,
                                .reservable = (uint64_t)1 << 46,
                                .granularity = 2 * MiB,
                                .peers = peers,
                                .numa_nodes = 3,
                                .device = device};
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) report.answers[i].available = true;
    return report;
}

static void take(gvmm_probe_report *report, gvmm_capability which, const char *call, CUresult status)
{
    report->answers[which] = (gvmm_answer){false, (int)status, call, "not the receiver's text"};
}

static gvmm_probe_record packed(gvmm_probe_report report)
{
    gvmm_probe_record record;
    ck_ok(gvmm_probe_pack(&record, &report));
    return record;
}

static gvmm_common_report common_of(const gvmm_probe_record *records, size_t count)
{
    gvmm_common_report common;
    ck_ok(gvmm_probe_common(&common, records, count));
    return common;
}

/* Two devices that reach each other; `lacking`, on rank 1 only, if it is a capability. */
static gvmm_common_report two_ranks(gvmm_capability lacking)
{
    gvmm_probe_report second = whole(1, 1);
    if (lacking < GVMM_CAPABILITY_COUNT) take(&second, lacking, "cuMemCreate", CUDA_ERROR_NOT_PERMITTED);
    return common_of((gvmm_probe_record[]){packed(whole(0, 2)), packed(second)}, 2);
}

/* ---- records ---- */

START_TEST(a_record_is_the_same_bytes_whoever_packs_it)
{
    gvmm_probe_report report = whole(0, 2);
    char name[] = "cuMemCreate"; /* another process has its names elsewhere */
    take(&report, GVMM_CAPABILITY_FABRIC, "cuMemCreate", CUDA_ERROR_NOT_PERMITTED);
    gvmm_probe_record a = packed(report);
    report.answers[GVMM_CAPABILITY_FABRIC].call = name;
    gvmm_probe_record b = packed(report);
    ck_assert_mem_eq(&a, &b, sizeof a);
    memset(name, 0, sizeof name);
    gvmm_common_report common = common_of(&b, 1);
    ck_assert_str_eq(common.report.answers[GVMM_CAPABILITY_FABRIC].call, "cuMemCreate");
    for (int i = 0; i < GVMM_CALL_COUNT; i++)
        ck_assert_uint_lt(strlen(gvmm_driver_call_name((gvmm_driver_call)i)), sizeof a.call[0]);
}
END_TEST

/* Each advice is found again: it does not travel. */
START_TEST(what_a_rank_was_told_is_what_the_others_read)
{
    gvmm_probe_report report = whole(0, 0);
    take(&report, GVMM_CAPABILITY_FABRIC, "cuMemCreate", CUDA_ERROR_NOT_PERMITTED);
    take(&report, GVMM_CAPABILITY_MEMORY, "cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY);
    take(&report, GVMM_CAPABILITY_RDMA, "cuDeviceGetAttribute", CUDA_SUCCESS);
    take(&report, GVMM_CAPABILITY_PEERS, NULL, CUDA_SUCCESS);
    take(&report, GVMM_CAPABILITY_GRAPHS, "cuFromTheFuture", CUDA_ERROR_UNKNOWN);
    gvmm_probe_record record = packed(report);
    static const struct {
        gvmm_capability which;
        const char *call, *advice;
        CUresult status;
    } wanted[] = {
        {GVMM_CAPABILITY_FABRIC, "cuMemCreate", "imex", CUDA_ERROR_NOT_PERMITTED},
        {GVMM_CAPABILITY_MEMORY, "cuMemCreate", "ask again", CUDA_ERROR_OUT_OF_MEMORY},
        {GVMM_CAPABILITY_RDMA, "cuDeviceGetAttribute", "gpu_direct_rdma", CUDA_SUCCESS},
        {GVMM_CAPABILITY_PEERS, NULL, "no other device", CUDA_SUCCESS},
        {GVMM_CAPABILITY_GRAPHS, "?", "user objects", CUDA_ERROR_UNKNOWN},
    };
    gvmm_common_report common = common_of(&record, 1);
    const gvmm_answer *a = common.report.answers;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const gvmm_answer *got = &a[wanted[i].which];
        ck_assert(!got->available);
        ck_assert_int_eq(got->status, (int)wanted[i].status);
        ck_assert_ptr_nonnull(strstr(got->advice, wanted[i].advice));
        if (wanted[i].call) ck_assert_str_eq(got->call, wanted[i].call);
        else ck_assert_ptr_null(got->call);
    }
    ck_assert(a[GVMM_CAPABILITY_POSIX_FD].available && !a[GVMM_CAPABILITY_POSIX_FD].advice);
}
END_TEST

/* ---- the common answer ---- */

START_TEST(available_is_what_all_have)
{
    gvmm_probe_record ranks[5];
    for (int i = 0; i < 5; i++) {
        gvmm_probe_report report = whole(0, 0);
        if (i == 2) take(&report, GVMM_CAPABILITY_FABRIC, "cuMemCreate", CUDA_ERROR_NOT_PERMITTED);
        if (i >= 3) take(&report, GVMM_CAPABILITY_FABRIC, "cuDeviceGetAttribute", CUDA_SUCCESS);
        if (i == 4) take(&report, GVMM_CAPABILITY_RDMA, "cuDeviceGetAttribute", CUDA_SUCCESS);
        ranks[i] = packed(report);
    }
    gvmm_common_report common = common_of(ranks, 5);
    ck_assert_uint_eq(common.ranks, 5);
    for (int i = 0; i < GVMM_CAPABILITY_COUNT; i++) {
        size_t lacking = i == GVMM_CAPABILITY_FABRIC ? 3 : i == GVMM_CAPABILITY_RDMA;
        size_t first = i == GVMM_CAPABILITY_FABRIC ? 2 : i == GVMM_CAPABILITY_RDMA ? 4 : 5;
        ck_assert_int_eq(common.report.answers[i].available, !lacking);
        ck_assert_uint_eq(common.lacking[i], lacking);
        ck_assert_uint_eq(common.first[i], first);
    }
    ck_assert_str_eq(common.report.answers[GVMM_CAPABILITY_FABRIC].call, "cuMemCreate"); /* the first rank's */
    common = common_of(ranks, 2);
    ck_assert(common.report.answers[GVMM_CAPABILITY_FABRIC].available);
}
END_TEST

START_TEST(figures_suit_all)
{
    gvmm_probe_report a = whole(0, 0), b = whole(0, 0);
    a.memory = 5, b.memory = 3;
    a.reservable = 7, b.reservable = 9;
    a.granularity = 2 * MiB, b.granularity = 3 * MiB;
    a.numa_nodes = 6, b.numa_nodes = 5;
    gvmm_probe_record both[] = {packed(a), packed(b)};
    gvmm_probe_report got = common_of(both, 2).report;
    ck_assert_uint_eq(got.memory, 3);
    ck_assert_uint_eq(got.reservable, 7);
    ck_assert_uint_eq(got.granularity, 6 * MiB);
    ck_assert_uint_eq(got.numa_nodes, 4);
    ck_assert_int_eq(got.device, -1);
    both[0].memory = 0; /* does not say */
    ck_assert_uint_eq(common_of(both, 2).report.memory, 0);
    both[0].granularity = 0; /* no device memory there */
    ck_assert_uint_eq(common_of(both, 2).report.granularity, 0);
    both[0].granularity = 2 * MiB;
    both[1].granularity = 0;
    ck_assert_uint_eq(common_of(both, 2).report.granularity, 0);
}
END_TEST

/* A device is no peer of its own, but all ranks together use it. */
START_TEST(peers_are_the_devices_that_all_reach)
{
    gvmm_probe_record three[] = {packed(whole(0, 6)), packed(whole(1, 5)), packed(whole(2, 3))};
    ck_assert_uint_eq(common_of(three, 3).report.peers, 7);
    three[2] = packed(whole(2, 1)); /* 2 does not reach 1 */
    ck_assert_uint_eq(common_of(three, 3).report.peers, 5);
    gvmm_probe_record alone[] = {packed(whole(0, 0)), packed(whole(0, 0))}; /* each sees one device */
    ck_assert_uint_eq(common_of(alone, 2).report.peers, 1);
    alone[1] = packed(whole(70, 0)); /* no bit for it */
    ck_assert_uint_eq(common_of(alone, 2).report.peers, 0);
}
END_TEST

START_TEST(an_older_rank_has_not_what_it_does_not_know)
{
    gvmm_probe_record ranks[] = {packed(whole(0, 0)), packed(whole(0, 0))};
    ranks[1].count = GVMM_CAPABILITY_GRAPHS;
    gvmm_common_report common = common_of(ranks, 2);
    const gvmm_answer *a = &common.report.answers[GVMM_CAPABILITY_GRAPHS];
    ck_assert(!a->available && !a->call);
    ck_assert_ptr_nonnull(strstr(a->advice, "older"));
    ck_assert_uint_eq(common.first[GVMM_CAPABILITY_GRAPHS], 1);
    ck_assert(common.report.answers[GVMM_CAPABILITY_POOLS].available);
    ranks[1].count = GVMM_PROBE_ROOM; /* a newer one knows more */
    ck_assert(common_of(ranks, 2).report.answers[GVMM_CAPABILITY_GRAPHS].available);
}
END_TEST

START_TEST(bad_records)
{
    gvmm_probe_record good[] = {packed(whole(0, 0)), packed(whole(0, 0))}, bad[2];
    gvmm_common_report common = {.ranks = 77};
    gvmm_probe_report report = whole(0, 0);
    ck_fails(gvmm_probe_common(NULL, good, 2), GVMM_E_INVALID);
    ck_fails(gvmm_probe_common(&common, NULL, 2), GVMM_E_INVALID);
    ck_fails(gvmm_probe_common(&common, good, 0), GVMM_E_INVALID);
    ck_fails(gvmm_probe_pack(NULL, &report), GVMM_E_INVALID);
    ck_fails(gvmm_probe_pack(&bad[0], NULL), GVMM_E_INVALID);
    for (int i = 0; i < 3; i++) {
        memcpy(bad, good, sizeof bad);
        if (i == 0) bad[1].size--;
        if (i == 1) bad[1].count = GVMM_PROBE_ROOM + 1;
        if (i == 2) bad[0].granularity = (uint64_t)1 << 63, bad[1].granularity = 3;
        ck_fails(gvmm_probe_common(&common, bad, 2), GVMM_E_INVALID);
        ck_names("rank 1");
    }
    memcpy(bad, good, sizeof bad);
    memset(bad[1].call, 'x', sizeof bad[1].call); /* texts without an end */
    bad[1].available = 0;
    ck_ok(gvmm_probe_common(&common, bad, 2));
    ck_assert_str_eq(common.report.answers[0].call, "?");
    common.ranks = 77;
    ck_fails(gvmm_probe_common(&common, NULL, 2), GVMM_E_INVALID);
    ck_assert_uint_eq(common.ranks, 77);
}
END_TEST

/* ---- options ---- */

#define NOBODY GVMM_CAPABILITY_COUNT
#define RDMA GVMM_OPTIONAL_RDMA
#define FABRIC GVMM_OPTIONAL_FABRIC
#define HANDLE GVMM_OPTIONAL_HANDLE

START_TEST(handles_and_rdma_are_settled_alike)
{
    static const struct {
        gvmm_capability lacking;
        gvmm_handle_type handle;
        bool rdma;
        unsigned optional;
        gvmm_result result;
        gvmm_handle_type got;
        bool got_rdma;
    } cases[] = {
        {NOBODY, 8, true, RDMA | FABRIC | HANDLE, GVMM_OK, 8, true},
        {NOBODY, 8, true, 0, GVMM_OK, 8, true},
        {GVMM_CAPABILITY_FABRIC, 8, false, FABRIC, GVMM_OK, 1, false},
        {GVMM_CAPABILITY_FABRIC, 8, false, FABRIC | HANDLE, GVMM_OK, 1, false},
        {GVMM_CAPABILITY_FABRIC, 8, false, HANDLE, GVMM_OK, 0, false},
        {GVMM_CAPABILITY_FABRIC, 8, false, RDMA, GVMM_E_UNSUPPORTED, 0, false},
        {GVMM_CAPABILITY_FABRIC, 1, false, 0, GVMM_OK, 1, false},
        {GVMM_CAPABILITY_POSIX_FD, 1, false, HANDLE, GVMM_OK, 0, false},
        {GVMM_CAPABILITY_POSIX_FD, 1, false, FABRIC, GVMM_E_UNSUPPORTED, 0, false},
        {GVMM_CAPABILITY_POSIX_FD, 0, false, 0, GVMM_OK, 0, false},
        {NOBODY, 4, false, 0, GVMM_OK, 4, false},
        {NOBODY, 4, false, HANDLE, GVMM_OK, 0, false},
        {NOBODY, 2, false, HANDLE, GVMM_OK, 0, false},
        {NOBODY, 2, false, 0, GVMM_E_UNSUPPORTED, 0, false},
        {GVMM_CAPABILITY_RDMA, 1, true, RDMA, GVMM_OK, 1, false},
        {GVMM_CAPABILITY_RDMA, 1, true, FABRIC, GVMM_E_UNSUPPORTED, 0, false},
        {GVMM_CAPABILITY_RDMA, 1, false, 0, GVMM_OK, 1, false},
        {GVMM_CAPABILITY_MEMORY, 1, false, RDMA | FABRIC | HANDLE, GVMM_E_UNSUPPORTED, 0, false},
        {GVMM_CAPABILITY_GRAPHS, 1, true, 0, GVMM_OK, 1, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gvmm_common_report common = two_ranks(cases[i].lacking);
        gvmm_options o = GVMM_OPTIONS_INIT, before;
        o.handle_type = cases[i].handle;
        o.gpu_direct_rdma = cases[i].rdma;
        o.optional = cases[i].optional;
        before = o;
        ck_fails(gvmm_probe_settle(&o, NULL, &common), cases[i].result);
        if (cases[i].result) {
            ck_assert_mem_eq(&o, &before, sizeof o);
            continue;
        }
        ck_assert_msg(o.handle_type == cases[i].got, "case %zu: handle_type %d", i, o.handle_type);
        ck_assert_int_eq(o.gpu_direct_rdma, cases[i].got_rdma);
        ck_assert_uint_eq(o.optional, 0);
    }
}
END_TEST

START_TEST(the_message_names_option_rank_and_reason)
{
    gvmm_common_report common = two_ranks(GVMM_CAPABILITY_FABRIC);
    gvmm_options o = GVMM_OPTIONS_INIT;
    o.handle_type = GVMM_HANDLE_FABRIC;
    ck_fails(gvmm_probe_settle(&o, NULL, &common), GVMM_E_UNSUPPORTED);
    ck_names("option handle_type: 1 of 2 ranks lack fabric, the first is rank 1 (cuMemCreate: "
             "CUDA_ERROR_NOT_PERMITTED)");
    ck_fails(gvmm_probe_settle(NULL, NULL, &common), GVMM_E_INVALID);
    ck_fails(gvmm_probe_settle(&o, NULL, NULL), GVMM_E_INVALID);
    o.handle_type = (gvmm_handle_type)5;
    ck_fails(gvmm_probe_settle(&o, NULL, &common), GVMM_E_INVALID);
    ck_names("handle_type");
}
END_TEST

START_TEST(peers_and_stripes_are_settled_alike)
{
    static const int wanted[] = {1, 5, 0, -1, 99}, far[] = {0, 5};
    int room[5] = {0};
    gvmm_common_report common = two_ranks(NOBODY);
    gvmm_options o = GVMM_OPTIONS_INIT;
    o.peers = wanted;
    o.peer_count = 5;
    ck_fails(gvmm_probe_settle(&o, room, &common), GVMM_E_UNSUPPORTED);
    ck_names("peers: device 5 does not reach every rank's memory");
    ck_assert_ptr_eq(o.peers, wanted);
    o.optional = GVMM_OPTIONAL_PEERS;
    ck_fails(gvmm_probe_settle(&o, NULL, &common), GVMM_E_INVALID);
    ck_ok(gvmm_probe_settle(&o, room, &common));
    ck_assert_uint_eq(o.peer_count, 2);
    ck_assert_ptr_eq(o.peers, room);
    ck_assert_int_eq(room[0], 1);
    ck_assert_int_eq(room[1], 0);
    o.peers = &wanted[1];
    o.peer_count = 1;
    o.optional = GVMM_OPTIONAL_PEERS;
    ck_ok(gvmm_probe_settle(&o, room, &common));
    ck_assert_uint_eq(o.peer_count, 0);
    ck_assert_ptr_null(o.peers);
    o.stripe = far;
    o.stripe_count = 2;
    o.chunk_size = MiB;
    ck_fails(gvmm_probe_settle(&o, NULL, &common), GVMM_E_UNSUPPORTED);
    ck_names("stripe: not every rank's device reaches device 5");
    o.stripe_count = 1;
    ck_ok(gvmm_probe_settle(&o, NULL, &common));
}
END_TEST

START_TEST(sizes_are_settled_alike)
{
    static const int both[] = {0, 1};
    gvmm_probe_record ranks[] = {packed(whole(0, 2)), packed(whole(1, 1))};
    ranks[1].memory = (uint64_t)24 << 30;
    ranks[1].granularity = 4 * MiB;
    gvmm_common_report common = common_of(ranks, 2);
    gvmm_options o = GVMM_OPTIONS_INIT;
    o.capacity = GVMM_CAPACITY_ALL;
    o.chunk_size = 3 * MiB;
    ck_ok(gvmm_probe_settle(&o, NULL, &common));
    ck_assert_uint_eq(o.capacity, (uint64_t)24 << 30);
    ck_assert_uint_eq(o.chunk_size, 4 * MiB);
    o.capacity = GVMM_CAPACITY_ALL;
    o.stripe = both;
    o.stripe_count = 2;
    ck_ok(gvmm_probe_settle(&o, NULL, &common));
    ck_assert_uint_eq(o.capacity, (uint64_t)48 << 30);
    o.capacity = 7;
    ck_ok(gvmm_probe_settle(&o, NULL, &common));
    ck_assert_uint_eq(o.capacity, 7);
    o.chunk_size = SIZE_MAX;
    ck_fails(gvmm_probe_settle(&o, NULL, &common), GVMM_E_INVALID);
    ck_names("chunk_size");
    common.report.memory = 0; /* some device does not say: each keeps what it has */
    o.chunk_size = MiB;
    o.capacity = GVMM_CAPACITY_ALL;
    ck_ok(gvmm_probe_settle(&o, NULL, &common));
    ck_assert_uint_eq(o.capacity, GVMM_CAPACITY_ALL);
}
END_TEST

/* A program built with the first header has room for the first fields only. */
START_TEST(older_options_are_settled_within_their_room)
{
    gvmm_common_report common = two_ranks(GVMM_CAPABILITY_RDMA);
    struct {
        gvmm_options options;
    } given = {GVMM_OPTIONS_INIT};
    given.options.struct_size = offsetof(gvmm_options, capacity);
    given.options.capacity = 12345; /* whoever's memory that is */
    given.options.optional = 77;
    ck_ok(gvmm_probe_settle(&given.options, NULL, &common));
    ck_assert_uint_eq(given.options.struct_size, offsetof(gvmm_options, capacity));
    ck_assert_uint_eq(given.options.capacity, 12345);
    ck_assert_uint_eq(given.options.optional, 77);
}
END_TEST

START_TEST(host_memory_is_settled_alike)
{
    static const int peers[] = {1, 5};
    int room[2];
    gvmm_common_report common = two_ranks(GVMM_CAPABILITY_HOST_NUMA);
    gvmm_options o = GVMM_OPTIONS_INIT;
    o.location = GVMM_LOCATION_HOST_NUMA_CURRENT;
    ck_fails(gvmm_probe_settle(&o, NULL, &common), GVMM_E_UNSUPPORTED);
    ck_names("host_numa");
    common = two_ranks(GVMM_CAPABILITY_MEMORY);
    ck_ok(gvmm_probe_settle(&o, NULL, &common));
    ck_assert_int_eq(o.location, GVMM_LOCATION_HOST_NUMA_CURRENT); /* each rank's own, when it makes the resource */
    o.location = GVMM_LOCATION_HOST;
    ck_fails(gvmm_probe_settle(&o, NULL, &common), GVMM_E_INVALID); /* as everywhere: it cannot be exported */
    o.handle_type = GVMM_HANDLE_NONE;
    o.capacity = GVMM_CAPACITY_ALL;
    o.peers = peers;
    o.peer_count = 2;
    ck_ok(gvmm_probe_settle(&o, room, &common));
    ck_assert_uint_eq(o.peer_count, 2); /* in everybody's reach */
    ck_assert_uint_eq(o.capacity, GVMM_CAPACITY_ALL);
}
END_TEST

/* ---- two processes on different machines ---- */

static int probe_and_send(void)
{
    gvmm_probe_report report;
    gvmm_probe_record record;
    if (gvmm_driver_install(gvmm_sim_driver()) || gvmm_probe(&report, atoi(getenv("RANK_DEVICE")))) return 1;
    if (gvmm_probe_pack(&record, &report)) return 2;
    return write(STDERR_FILENO, &record, sizeof record) == (ssize_t)sizeof record ? 0 : 3;
}

static void receive(gvmm_probe_record *out, const char *machine, const char *device)
{
    char bytes[sizeof *out + 1];
    setenv("GVMM_SIM", machine, 1);
    setenv("RANK_DEVICE", device, 1);
    ck_assert_int_eq(child_run("rank", bytes, sizeof bytes), 0);
    memcpy(out, bytes, sizeof *out);
    unsetenv("GVMM_SIM");
}

static gvmm_options options_got_on(gvmm_options wanted, unsigned devices, int device)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_resource *resource;
    gvmm_options got;
    config.devices = devices;
    ck_ok(gvmm_sim_reset(&config));
    ck_ok(gvmm_driver_install(gvmm_sim_driver()));
    ck_ok(gvmm_resource_create(&resource, device, &wanted));
    gvmm_resource_options(resource, &got);
    gvmm_resource_release(resource);
    ck_ok(gvmm_driver_install(NULL));
    return got;
}

START_TEST(two_processes_take_the_same_options)
{
    static const int all[] = {0, 1, 2, 3};
    int room[4];
    gvmm_probe_record ranks[2];
    receive(&ranks[0], "devices=4,memory=8G", "0");
    receive(&ranks[1], "devices=2,memory=4G,granularity=4M", "1");
    ck_assert_int_eq(ranks[1].device, 1);
    gvmm_common_report common = common_of(ranks, 2);
    ck_assert_uint_eq(common.report.memory, (uint64_t)4 << 30);
    ck_assert_uint_eq(common.report.granularity, 4 * MiB);
    ck_assert_uint_eq(common.report.peers, 3);
    ck_assert_uint_eq(common.lacking[GVMM_CAPABILITY_FABRIC], 2);
    ck_assert_str_eq(common.report.answers[GVMM_CAPABILITY_FABRIC].call, "cuMemCreate");
    ck_assert(common.report.answers[GVMM_CAPABILITY_MEMORY].available);

    gvmm_options o = GVMM_OPTIONS_INIT;
    o.handle_type = GVMM_HANDLE_FABRIC;
    o.gpu_direct_rdma = true;
    o.peers = all;
    o.peer_count = 4;
    o.capacity = GVMM_CAPACITY_ALL;
    o.optional = GVMM_OPTIONAL_FABRIC | GVMM_OPTIONAL_RDMA | GVMM_OPTIONAL_PEERS;
    ck_ok(gvmm_probe_settle(&o, room, &common));
    gvmm_options first = options_got_on(o, 4, 0), second = options_got_on(o, 2, 1);
    ck_assert_int_eq(first.handle_type, GVMM_HANDLE_POSIX_FD);
    ck_assert_int_eq(second.handle_type, first.handle_type);
    ck_assert(first.gpu_direct_rdma && second.gpu_direct_rdma);
    ck_assert_uint_eq(first.peer_count, 2);
    ck_assert_uint_eq(second.peer_count, 2);
    ck_assert_uint_eq(first.capacity, (uint64_t)4 << 30);
    ck_assert_uint_eq(second.capacity, first.capacity);
    ck_ok(gvmm_sim_reset(NULL));
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1) return strcmp(argv[1], "rank") == 0 ? probe_and_send() : 9;
    unsetenv("GVMM_SIM");
    unsetenv("GVMM_SIM_REPORT");
    Suite *suite = suite_create("ranks");
    TCase *records = tcase_create("records");
    tcase_add_test(records, a_record_is_the_same_bytes_whoever_packs_it);
    tcase_add_test(records, what_a_rank_was_told_is_what_the_others_read);
    tcase_add_test(records, bad_records);
    suite_add_tcase(suite, records);
    TCase *common = tcase_create("common");
    tcase_add_test(common, available_is_what_all_have);
    tcase_add_test(common, figures_suit_all);
    tcase_add_test(common, peers_are_the_devices_that_all_reach);
    tcase_add_test(common, an_older_rank_has_not_what_it_does_not_know);
    suite_add_tcase(suite, common);
    TCase *options = tcase_create("options");
    tcase_add_test(options, handles_and_rdma_are_settled_alike);
    tcase_add_test(options, the_message_names_option_rank_and_reason);
    tcase_add_test(options, peers_and_stripes_are_settled_alike);
    tcase_add_test(options, sizes_are_settled_alike);
    tcase_add_test(options, older_options_are_settled_within_their_room);
    tcase_add_test(options, host_memory_is_settled_alike);
    tcase_add_test(options, two_processes_take_the_same_options);
    suite_add_tcase(suite, options);
    return run_suites(suite, NULL);
}

/* What goes from an exporter to an importer: growth alone, messages over a socket, fabric handles, descriptors that
 * lie. */
#include "share_kit.h"

/* ---- growing ---- */

START_TEST(growth_is_all_that_goes_over)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.capacity = 16 * G;
    gvmm_resource *to = resource_with(options);
    gvmm_buffer *two = chunked(2, 1), *five = grow(two, 5 * G), *copy, *longer;
    gvmm_export *e = export(two, 0), *rest = export(five, 2 * G);
    gvmm_shared shared;
    gvmm_export_contents(e, &shared);
    ck_ok(gvmm_buffer_import(&copy, to, &shared, NULL, NULL));
    gvmm_export_contents(rest, &shared);
    ck_assert_uint_eq(shared.fd_count, 3);
    write_pattern(gvmm_buffer_address(five), 5 * G, 2);
    ck_ok(gvmm_buffer_import(&longer, to, &shared, copy, NULL));
    ck_assert_uint_eq(gvmm_buffer_address(longer), gvmm_buffer_address(copy));
    ck_assert_uint_eq(gvmm_buffer_size(longer), 5 * G);
    ck_pattern(gvmm_buffer_address(longer), 5 * G, 2);
    ck_same_chunks(five, longer, 5);

    gvmm_buffer *wrong = NULL;
    ck_fails(gvmm_buffer_import(&wrong, to, &shared, NULL, NULL), GVMM_E_INVALID);
    ck_ok(gvmm_buffer_import(&wrong, to, &shared, five, NULL)); /* has them, too: its own */
    ck_same_chunks(five, wrong, 5);
    gvmm_export *never = NULL;
    ck_fails(gvmm_buffer_export(&never, five, G + 1), GVMM_E_INVALID);
    ck_names("border");
    ck_fails(gvmm_buffer_export(&never, five, 6 * G), GVMM_E_INVALID);
    gvmm_buffer *all[] = {two, five, copy, longer, wrong};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gvmm_buffer_release(all[i]);
    gvmm_export_release(e);
    gvmm_export_release(rest);
    gvmm_resource_release(to);
}
END_TEST

/* Whatever the receiver has, it ends up with what the sender has, and as little as possible goes over. */
START_TEST(a_receiver_catches_up)
{
    static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
    gvmm_buffer *two = chunked(2, 1), *four = grow(two, 4 * G), *had = NULL, *got = NULL, *own;
    sending s;
    int type = types[_i];
    write_pattern(gvmm_buffer_address(four), 4 * G, 1);
    ck_ok(exchange(&had, plain, two, NULL, type, &s));
    ck_ok(s.result);
    count_calls("cuMemImportFromShareableHandle");
    ck_ok(exchange(&got, plain, four, had, type, &s)); /* grown */
    ck_ok(s.result);
    ck_assert_uint_eq(gvmm_faults_counted(), 2);
    ck_pattern(gvmm_buffer_address(got), 4 * G, 1);
    gvmm_buffer_release(had);
    had = got;
    ck_ok(exchange(&got, plain, four, had, type, &s)); /* the same */
    ck_assert_uint_eq(gvmm_faults_counted(), 2);
    ck_assert_uint_eq(gvmm_buffer_address(got), gvmm_buffer_address(had));
    gvmm_buffer_release(got);
    ck_ok(exchange(&got, plain, two, had, type, &s)); /* less */
    ck_assert_uint_eq(gvmm_faults_counted(), 2);
    ck_assert_uint_eq(gvmm_buffer_address(got), gvmm_buffer_address(had));
    ck_assert_uint_eq(gvmm_buffer_size(got), 2 * G);
    own = grow(got, 3 * G); /* by memory of the receiver's */
    gvmm_buffer_release(got);
    ck_ok(exchange(&got, plain, four, own, type, &s));
    ck_assert_uint_eq(gvmm_faults_counted(), 4);
    ck_pattern(gvmm_buffer_address(got), 4 * G, 1);
    ck_same_chunks(four, got, 4);
    gvmm_buffer_release(got);
    gvmm_buffer *other = create(plain, 3 * G);
    ck_ok(exchange(&got, plain, four, other, type, &s)); /* nothing that helps */
    ck_pattern(gvmm_buffer_address(got), 4 * G, 1);
    gvmm_buffer *all[] = {two, four, had, got, own, other};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gvmm_buffer_release(all[i]);
    ck_no_warnings();
}
END_TEST

/* ---- over a socket ---- */

/* More chunks than one message can take descriptors, and both ends short of them. */
START_TEST(many_chunks_come_in_several_messages)
{
    enum { CHUNKS = 600 };
    struct rlimit old, few;
    gvmm_buffer *buffer, *copy;
    warm_up();
    size_t before = open_descriptors();
    sending s;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 4096;
    if (old.rlim_cur < few.rlim_cur && setrlimit(RLIMIT_NOFILE, &few)) {
        printf("skip: many chunks: no more than %llu descriptors\n", (unsigned long long)old.rlim_cur);
        return;
    }
    buffer = chunked(CHUNKS, 0);
    fill(gvmm_buffer_address(buffer) + (CHUNKS - 1) * G, 1, G);
    ck_ok(exchange(&copy, plain, buffer, NULL, _i ? SOCK_SEQPACKET : SOCK_STREAM, &s));
    ck_ok(s.result);
    ck_filled(gvmm_buffer_address(copy) + (CHUNKS - 1) * G, 1, G);
    gvmm_buffer_release(copy);
    few.rlim_cur = open_descriptors() + 20; /* now all are exported; the receiver can take a few at a time */
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_ok(exchange(&copy, plain, buffer, NULL, _i ? SOCK_SEQPACKET : SOCK_STREAM, &s));
    ck_ok(s.result);
    ck_filled(gvmm_buffer_address(copy) + (CHUNKS - 1) * G, 1, G);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(buffer);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    ck_assert_uint_le(open_descriptors(), before);
}
END_TEST

START_TEST(several_exchanges_at_a_time)
{
    enum { PEERS = 4 };
    gvmm_buffer *buffer = chunked(6, 4), *copies[PEERS];
    sending s[PEERS];
    int ends[PEERS];
    for (int i = 0; i < PEERS; i++) {
        int yes = 1;
        ends[i] = send_start(&s[i], buffer, i % 2 ? SOCK_STREAM : SOCK_SEQPACKET);
        ck_assert_int_eq(setsockopt(ends[i], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes), 0);
        ck_assert_int_eq(fcntl(ends[i], F_SETFL, O_NONBLOCK), 0);
    }
    for (int i = PEERS - 1; i >= 0; i--) {
        ck_ok(gvmm_buffer_receive(&copies[i], plain, ends[i], NULL, NULL));
        pthread_join(s[i].thread, NULL);
        ck_ok(s[i].result);
        close(ends[i]);
    }
    for (int i = 0; i < PEERS; i++) {
        ck_pattern(gvmm_buffer_address(copies[i]), 6 * G, 4);
        gvmm_buffer_release(copies[i]);
    }
    gvmm_buffer_release(buffer);
}
END_TEST

static void *sleep_and_wake(void *buffer)
{
    gvmm_evict_options options = GVMM_EVICT_OPTIONS_INIT;
    options.contents = GVMM_CONTENTS_DROP;
    for (int i = 0; i < 30; i++) {
        ck_ok(gvmm_buffer_evict(buffer, &options));
        ck_ok(gvmm_buffer_restore(buffer));
    }
    return NULL;
}

/* It goes over whole, or it does not. */
START_TEST(memory_is_evicted_while_it_is_sent)
{
    gvmm_buffer *buffer = chunked(4, 1), *had = NULL;
    pthread_t other;
    ck_assert_int_eq(pthread_create(&other, NULL, sleep_and_wake, buffer), 0);
    for (int i = 0; i < 30; i++) {
        sending s;
        gvmm_buffer *got = NULL;
        gvmm_result r = exchange(&got, plain, buffer, had, SOCK_STREAM, &s);
        ck_assert_msg(r == GVMM_OK || r == GVMM_E_INVALID, "%s (%s)", gvmm_result_name(r), last_text());
        if (r) continue;
        ck_assert_uint_eq(gvmm_buffer_size(got), 4 * G);
        gvmm_buffer_release(had);
        had = got;
    }
    pthread_join(other, NULL);
    gvmm_buffer_release(had);
    gvmm_buffer_release(buffer);
}
END_TEST

START_TEST(each_side_hears_why_the_other_failed)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.location = GVMM_LOCATION_HOST_NUMA;
    gvmm_resource *host = resource_with(options);
    gvmm_buffer *buffer = chunked(2, 1), *copy = copy_of(buffer);
    size_t before = open_descriptors();
    gvmm_buffer_release(copy);
    copy = NULL;
    sending s;
    ck_fails(exchange(&copy, host, buffer, NULL, SOCK_STREAM, &s), GVMM_E_INVALID);
    ck_names("location");
    ck_assert_uint_le(open_descriptors(), before);
    ck_assert_int_eq(s.result, GVMM_E_INVALID);
    ck_assert_msg(strstr(s.text, "the receiver failed") != NULL, "%s", s.text);
    ck_ok(gvmm_buffer_evict(buffer, NULL));
    ck_fails(exchange(&copy, plain, buffer, NULL, SOCK_STREAM, &s), GVMM_E_INVALID);
    ck_names("the sender failed: GVMM_E_INVALID");
    ck_assert_msg(strstr(s.text, "evicted") != NULL, "%s", s.text);
    gvmm_buffer *view;
    ck_ok(gvmm_buffer_compose(&view, plain, &(gvmm_piece){buffer, 0, 0, true}, 1, NULL));
    ck_fails(exchange(&copy, plain, view, NULL, SOCK_STREAM, &s), GVMM_E_UNSUPPORTED);
    ck_names("the sender failed: GVMM_E_UNSUPPORTED");
    ck_assert_msg(strstr(s.text, "read-only") != NULL, "%s", s.text);
    gvmm_buffer_release(view);
    ck_assert_ptr_null(copy);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(host);
}
END_TEST

START_TEST(sockets_that_will_not_do)
{
    gvmm_buffer *buffer = chunked(1, 1), *copy = NULL;
    gvmm_share_options options = GVMM_SHARE_OPTIONS_INIT;
    int ends[2], others[] = {-1, 9999, open("/dev/null", O_RDWR), socket(AF_INET, SOCK_STREAM, 0)};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ck_fails(gvmm_buffer_send(buffer, others[i], NULL), GVMM_E_INVALID);
        ck_names("socket");
        ck_fails(gvmm_buffer_receive(&copy, plain, others[i], NULL, NULL), GVMM_E_INVALID);
    }
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
    ck_fails(gvmm_buffer_send(buffer, ends[0], NULL), GVMM_E_INVALID);
    close(ends[0]), close(ends[1]);
    ends[0] = socket(AF_UNIX, SOCK_STREAM, 0); /* not connected */
    ck_fails(gvmm_buffer_send(buffer, ends[0], NULL), GVMM_E_INVALID);
    close(ends[0]);

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    options.timeout_ms = 1;
    ck_fails(gvmm_buffer_send(buffer, ends[0], &options), GVMM_E_PEER_GONE);
    ck_names("did not answer within 1 ms");
    ck_fails(gvmm_buffer_receive(&copy, plain, ends[0], NULL, &options), GVMM_E_PEER_GONE);
    close(ends[1]);
    ck_fails(gvmm_buffer_send(buffer, ends[0], NULL), GVMM_E_PEER_GONE); /* and no signal */
    ck_fails(gvmm_buffer_receive(&copy, plain, ends[0], NULL, NULL), GVMM_E_PEER_GONE);
    options.struct_size--;
    ck_fails(gvmm_buffer_send(buffer, ends[0], &options), GVMM_E_INVALID);
    close(ends[0]), close(others[2]), close(others[3]);
    ck_fails(gvmm_buffer_send(NULL, 0, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_receive(NULL, plain, 0, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_receive(&copy, NULL, 0, NULL, NULL), GVMM_E_INVALID);
    gvmm_buffer_release(buffer);
}
END_TEST

/* ---- fabric handles, on a machine of their own ---- */

static gvmm_resource *start_fabric(bool has_channel, CUcontext *context)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    gvmm_options options = GVMM_OPTIONS_INIT;
    gvmm_resource *fabric;
    config.fabric = has_channel;
    ck_ok(gvmm_sim_reset(&config));
    ck_ok(gvmm_faults_set(NULL));
    cu = gvmm_sim_driver();
    ck_ok(gvmm_driver_install(gvmm_faults_over(cu)));
    ck_ok(gvmm_resource_create(&plain, 0, NULL));
    ck_cu(cu->cuDevicePrimaryCtxRetain(context, 0));
    ck_cu(cu->cuCtxSetCurrent(*context));
    G = gvmm_resource_granularity(plain);
    options.handle_type = GVMM_HANDLE_FABRIC;
    options.optional = GVMM_OPTIONAL_FABRIC;
    options.chunk_size = G;
    options.capacity = 16 * G;
    ck_ok(gvmm_resource_create(&fabric, 0, &options));
    return fabric;
}

static void end_fabric(gvmm_resource *fabric)
{
    gvmm_resource_release(fabric);
    gvmm_resource_release(plain);
    gvmm_drain();
    ck_cu(cu->cuCtxSetCurrent(NULL));
    ck_cu(cu->cuDevicePrimaryCtxRelease(0));
    ck_ok(gvmm_driver_install(NULL));
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
    ck_ok(gvmm_sim_reset(NULL));
}

START_TEST(fabric_handles_need_no_descriptors)
{
    CUcontext context;
    gvmm_answer answer;
    sending s;
    gvmm_resource *fabric = start_fabric(true, &context);
    gvmm_resource_handle_answer(fabric, &answer);
    ck_assert(answer.available);
    gvmm_buffer *buffer = create(fabric, 3 * G), *copy, *longer, *again, *none = NULL;
    write_pattern(gvmm_buffer_address(buffer), 3 * G, 1);
    gvmm_export *e = export(buffer, 0);
    gvmm_shared shared;
    gvmm_export_contents(e, &shared);
    ck_assert_int_eq(shared.handle_type, GVMM_HANDLE_FABRIC);
    ck_assert_uint_eq(shared.fd_count, 0);
    copy = import(e, NULL);
    ck_pattern(gvmm_buffer_address(copy), 3 * G, 1);
    longer = grow(buffer, 5 * G);
    fill(gvmm_buffer_address(longer), 4, 5 * G);
    ck_ok(exchange(&again, plain, longer, copy, SOCK_SEQPACKET, &s));
    ck_ok(s.result);
    ck_filled(gvmm_buffer_address(again), 4, 5 * G);

    unsigned char *kept = malloc(shared.size);
    memcpy(kept, shared.bytes, shared.size);
    gvmm_buffer *views[] = {buffer, copy, longer, again};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) gvmm_buffer_release(views[i]);
    copy = import(e, NULL); /* the export holds what the handles do not */
    gvmm_buffer_release(copy);
    shared.bytes = kept;
    gvmm_export_release(e); /* withdrawn */
    gvmm_drain();
    ck_fails(gvmm_buffer_import(&none, plain, &shared, NULL, NULL), GVMM_E_INVALID);
    free(kept);
    end_fabric(fabric);
}
END_TEST

/* Descriptors in place of them, and the reason is told; out of memory is no reason. */
START_TEST(without_a_channel_descriptors_will_do)
{
    CUcontext context;
    gvmm_answer answer;
    gvmm_options options, none = GVMM_OPTIONS_INIT;
    gvmm_resource *fabric = start_fabric(false, &context), *another = NULL;
    gvmm_resource_options(fabric, &options);
    ck_assert_int_eq(options.handle_type, GVMM_HANDLE_POSIX_FD);
    gvmm_resource_handle_answer(fabric, &answer);
    ck_assert(!answer.available);
    ck_assert_str_eq(answer.call, "cuMemCreate");
    ck_assert_int_eq(answer.status, CUDA_ERROR_NOT_PERMITTED);
    ck_assert_msg(strstr(answer.advice, "nvidia-imex") != NULL, "%s", answer.advice);
    gvmm_resource_handle_answer(plain, &answer);
    ck_assert(answer.available);
    gvmm_buffer *buffer = create(fabric, 2 * G), *copy = copy_of(buffer);
    gvmm_buffer_release(copy);
    gvmm_buffer_release(buffer);

    none.handle_type = GVMM_HANDLE_FABRIC;
    none.optional = GVMM_OPTIONAL_FABRIC | GVMM_OPTIONAL_HANDLE;
    gvmm_drain();
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_resource_create(&another, 0, &none), GVMM_E_NO_DEVICE_MEMORY);
    ck_assert_ptr_null(another);
    gvmm_drain();
    fault_call("cuDeviceGetAttribute", 2, CUDA_ERROR_INVALID_VALUE); /* a driver that knows no fabric */
    ck_ok(gvmm_resource_create(&another, 0, &none));
    gvmm_resource_handle_answer(another, &answer);
    ck_assert_str_eq(answer.call, "cuDeviceGetAttribute");
    gvmm_resource_release(another);
    end_fabric(fabric);
}
END_TEST

/* ---- descriptors that are not what they say ---- */

typedef struct hostile {
    gvmm_buffer *buffer;
    gvmm_export *e;
    gvmm_shared good;
    unsigned char *bytes; /* a copy to spoil */
    int fds[8];
    size_t descriptors;
    gvmm_stats before;
} hostile;

static hostile start_hostile(void)
{
    warm_up();
    hostile h = {.buffer = chunked(3, 1)};
    h.e = export(h.buffer, 0);
    gvmm_export_contents(h.e, &h.good);
    h.bytes = malloc(2 * h.good.size);
    memset(h.bytes, 0, 2 * h.good.size);
    memcpy(h.bytes, h.good.bytes, h.good.size);
    memcpy(h.fds, h.good.fds, 3 * sizeof *h.fds);
    h.descriptors = open_descriptors();
    look(NULL, &h.before);
    return h;
}

static void end_hostile(hostile *h)
{
    gvmm_buffer *copy = import(h->e, NULL); /* the good one still is */
    gvmm_buffer_release(copy);
    free(h->bytes);
    gvmm_export_release(h->e);
    gvmm_buffer_release(h->buffer);
}

/* It is refused, and nothing comes of it. */
static void ck_refused(const hostile *h, size_t size, size_t fd_count, gvmm_result result)
{
    gvmm_shared bad = {h->bytes, size, h->fds, fd_count, GVMM_HANDLE_POSIX_FD};
    gvmm_buffer *out = NULL;
    gvmm_stats now;
    gvmm_result r = gvmm_buffer_import(&out, plain, &bad, NULL, NULL);
    if (result) ck_fails(r, result);
    ck_assert_int_ne(r, GVMM_OK);
    ck_assert_str_ne(last_text(), "");
    ck_assert_ptr_null(out);
    ck_assert_uint_eq(open_descriptors(), h->descriptors);
    look(NULL, &now);
    ck_assert_uint_eq(now.mapped_bytes, h->before.mapped_bytes);
    ck_assert_uint_eq(now.imported_bytes, h->before.imported_bytes);
    ck_assert_uint_eq(now.reserved_bytes, h->before.reserved_bytes);
}

START_TEST(no_bit_of_a_descriptor_can_be_changed)
{
    hostile h = start_hostile();
    for (size_t bit = 0; bit < 8 * h.good.size; bit++) {
        h.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        ck_refused(&h, h.good.size, 3, GVMM_OK);
        h.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (size_t size = 0; size < 2 * h.good.size; size++)
        if (size != h.good.size) ck_refused(&h, size, 3, GVMM_E_INVALID);
    end_hostile(&h);
}
END_TEST

/* With the right checksum: one who lies, and not one who errs. */
typedef struct lie {
    const char *about;
    size_t offset, size;
    uint64_t value; /* 0: as it says */
    const char *names;
} lie;

#define HEAD(field) offsetof(wire_head, field), sizeof(((wire_head *)0)->field)
#define CHUNK(n, field) \
    sizeof(wire_head) + (n) * sizeof(wire_chunk) + offsetof(wire_chunk, field), sizeof(((wire_chunk *)0)->field)

static const lie lies[] = {
    {"version", HEAD(version), 2, "version is 2"},
    {"win32 handles", HEAD(handle_type), 2, "handle type is 2"},
    {"fabric handles, which are not there", HEAD(handle_type), 8, "size"},
    {"no chunk", HEAD(count), 0, "size"},
    {"fewer chunks", HEAD(count), 2, "size"},
    {"a million chunks and one", HEAD(count), 1 << 20 | 1, "more chunks"},
    {"all there is", HEAD(count), UINT32_MAX, "more chunks"},
    {"more known than there are", HEAD(known), 4, "leaves out more"},
    {"some known", HEAD(known), 1, "`have`"},
    {"total too small", HEAD(total), 1, "sum"},
    {"total that overflows", HEAD(total), UINT64_MAX, "sum"},
    {"reserved", HEAD(reserved), 1, "reserved"},
    {"chunk of no size", CHUNK(1, size), 0, "chunk 1"},
    {"chunk of an odd size", CHUNK(1, size), 1, "sum"},
    {"chunk as large as all", CHUNK(1, size), UINT64_MAX, "overflow"},
    {"no identity", CHUNK(2, serial), 0, "identity"},
    {"location nowhere", CHUNK(0, location), 0, "location"},
    {"location on the host", CHUNK(0, location), 2, "location"},
    {"location on a node", CHUNK(0, location), 3, "node"},
    {"location far away", CHUNK(0, location), UINT32_MAX, "location"},
    {"another device", CHUNK(0, place), 77, "another device"},
};

START_TEST(every_lie_is_found_out)
{
    hostile h = start_hostile();
    const lie *l = &lies[_i];
    memcpy(h.bytes + l->offset, &l->value, l->size < 8 ? l->size : 8);
    gvmm__wire_seal(h.bytes, h.good.size);
    ck_refused(&h, h.good.size, 3, GVMM_OK);
    ck_assert_msg(strstr(last_text(), l->names) != NULL, "%s: '%s'", l->about, last_text());
    end_hostile(&h);
}
END_TEST

/* Sizes that add up, and are multiples, but are not those of the memory: the driver alone knows. */
START_TEST(sizes_that_are_not_the_memory_s)
{
    hostile h = start_hostile();
    wire_chunk first = gvmm__wire_chunk(h.bytes, 0), last = gvmm__wire_chunk(h.bytes, 2);
    wire_head head;
    memcpy(&head, h.bytes, sizeof head);
    for (int more = 0; more < 2; more++) {
        first.size = 2 * G;
        last.size = more ? 2 * G : G;
        head.total = more ? 5 * G : 4 * G;
        memcpy(h.bytes, &head, sizeof head);
        memcpy(h.bytes + sizeof head, &first, sizeof first);
        memcpy(h.bytes + sizeof head + 2 * sizeof last, &last, sizeof last);
        gvmm__wire_seal(h.bytes, h.good.size);
        ck_refused(&h, h.good.size, 3, GVMM_E_INVALID);
        ck_names("not the size");
    }
    first.size = last.size = (uint64_t)1 << 62; /* more than there are addresses */
    head.total = ((uint64_t)1 << 63) + G;
    memcpy(h.bytes, &head, sizeof head);
    memcpy(h.bytes + sizeof head, &first, sizeof first);
    memcpy(h.bytes + sizeof head + 2 * sizeof last, &last, sizeof last);
    gvmm__wire_seal(h.bytes, h.good.size);
    ck_refused(&h, h.good.size, 3, GVMM_OK);
    end_hostile(&h);
}
END_TEST

START_TEST(handles_that_are_none)
{
    hostile h = start_hostile();
    int ends[2], null = open("/dev/null", O_RDWR), directory = open("/", O_RDONLY);
    ck_assert_int_eq(pipe(ends), 0);
    int others[] = {-1, 0, 9999, null, directory, ends[0], INT32_MIN, INT32_MAX};
    h.descriptors = open_descriptors();
    for (size_t count = 0; count < 6; count++)
        if (count != 3) ck_refused(&h, h.good.size, count, GVMM_E_INVALID);
    for (size_t chunk = 0; chunk < 3; chunk++)
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            h.fds[chunk] = others[i];
            ck_refused(&h, h.good.size, 3, GVMM_E_INVALID);
            h.fds[chunk] = h.good.fds[chunk];
        }
    gvmm_buffer *out = NULL;
    gvmm_shared bad = h.good;
    bad.fds = NULL;
    ck_fails(gvmm_buffer_import(&out, plain, &bad, NULL, NULL), GVMM_E_INVALID);
    bad = h.good;
    bad.bytes = NULL;
    ck_fails(gvmm_buffer_import(&out, plain, &bad, NULL, NULL), GVMM_E_INVALID);
    bad = h.good;
    bad.size = SIZE_MAX;
    ck_fails(gvmm_buffer_import(&out, plain, &bad, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_import(&out, plain, NULL, NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_import(NULL, plain, &h.good, NULL, NULL), GVMM_E_INVALID);
    close(ends[0]), close(ends[1]), close(null), close(directory);
    end_hostile(&h);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange");
    TCase *growth = add_case(suite, "growth");
    tcase_add_test(growth, growth_is_all_that_goes_over);
    tcase_add_loop_test(growth, a_receiver_catches_up, 0, 2);
    TCase *sockets = add_case(suite, "sockets");
    tcase_set_timeout(sockets, 240);
    tcase_add_loop_test(sockets, many_chunks_come_in_several_messages, 0, 2);
    tcase_add_test(sockets, several_exchanges_at_a_time);
    tcase_add_test(sockets, memory_is_evicted_while_it_is_sent);
    tcase_add_test(sockets, each_side_hears_why_the_other_failed);
    tcase_add_test(sockets, sockets_that_will_not_do);
    TCase *hostiles = add_case(suite, "hostile descriptors");
    tcase_add_test(hostiles, no_bit_of_a_descriptor_can_be_changed);
    tcase_add_loop_test(hostiles, every_lie_is_found_out, 0, (int)(sizeof lies / sizeof *lies));
    tcase_add_test(hostiles, sizes_that_are_not_the_memory_s);
    tcase_add_test(hostiles, handles_that_are_none);
    TCase *alone = tcase_create("a machine of its own");
    tcase_set_timeout(alone, 60);
    suite_add_tcase(suite, alone);
    tcase_add_test(alone, fabric_handles_need_no_descriptors);
    tcase_add_test(alone, without_a_channel_descriptors_will_do);
    return run_suites(suite, NULL);
}

/* What NCCL needs of the memory, against the stand-in: registrations piece by piece, renewed when pages have gone; buffers that
 * the other devices of the process can reach, from the start or granted later. */
#include "support.h"

enum { UINT32 = 3, SUM = 0, NCCL_OK = 0, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

/* Of the stand-in, which is linked; see tests/nccl/standin.c. */
typedef struct ncclComm *comm;
int ncclCommInitAll(comm *comms, int count, const int *devices);
int ncclCommDestroy(comm c);
int ncclCommRegister(comm c, void *buffer, size_t size, void **handle);
int ncclCommDeregister(comm c, void *handle);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int how, comm c, gvmm_stream stream);
const char *ncclGetLastError(comm c);

#define ck_nccl(call, expected, text) \
    do { \
        int result_ = (call); \
        ck_assert_msg(result_ == (expected), "%s: %d, not %d (%s)", #call, result_, expected, ncclGetLastError(NULL)); \
        if (result_) ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), text)); \
    } while (0)
#define ck_nccl_ok(call) ck_nccl(call, NCCL_OK, "")

static comm comms[2];
static gvmm_resource *resources[2];
static gvmm_buffer *buffers[2];

static void *pointer(gvmm_buffer *buffer, size_t offset)
{
    return (void *)(uintptr_t)(gvmm_buffer_address(buffer) + offset);
}

/* A buffer of 2 G, with room to grow, on each of two devices. */
static void start(bool with_peers)
{
    static const int both[] = {0, 1};
    ck_nccl_ok(ncclCommInitAll(comms, 2, both));
    for (int i = 0; i < 2; i++) {
        gvmm_options options = GVMM_OPTIONS_INIT;
        options.peers = both;
        options.peer_count = with_peers ? 2 : 0;
        options.capacity = 16 * G;
        ck_ok(gvmm_resource_create(&resources[i], i, &options));
        buffers[i] = create(resources[i], 2 * G);
    }
}

static void end(void)
{
    for (int i = 0; i < 2; i++) {
        gvmm_buffer_release(buffers[i]);
        gvmm_resource_release(resources[i]);
        ck_nccl_ok(ncclCommDestroy(comms[i]));
    }
}

static void grow_both(size_t size)
{
    for (int i = 0; i < 2; i++) {
        gvmm_buffer *larger = grow(buffers[i], size);
        ck_assert_ptr_eq(pointer(larger, 0), pointer(buffers[i], 0));
        gvmm_buffer_release(buffers[i]);
        buffers[i] = larger;
    }
}

static int reduce(void)
{
    ck_nccl_ok(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        void *at = pointer(buffers[i], 0);
        ck_nccl_ok(ncclAllReduce(at, at, gvmm_buffer_size(buffers[i]) / 4, UINT32, SUM, comms[i], NULL));
    }
    return ncclGroupEnd();
}

static void ck_reduces(void)
{
    for (int i = 0; i < 2; i++)
        fill(gvmm_buffer_address(buffers[i]), (unsigned char)(i + 1), gvmm_buffer_size(buffers[i]));
    ck_nccl_ok(reduce());
    for (int i = 0; i < 2; i++) ck_filled(gvmm_buffer_address(buffers[i]), 3, gvmm_buffer_size(buffers[i]));
}

/* llama.cpp#24489: the other device writes into a buffer that only its owner may touch. */
START_TEST(buffers_must_be_open_to_the_other_devices_of_the_process)
{
    start(false);
    ck_nccl(reduce(), INVALID_USAGE, "not open to the other devices");
    for (int i = 0; i < 2; i++) ck_ok(gvmm_buffer_set_access(buffers[i], 1 - i, GVMM_ACCESS_READ_WRITE)); /* later */
    ck_reduces();
    grow_both(3 * G); /* the new piece is as the resource says */
    ck_nccl(reduce(), INVALID_USAGE, "not open to the other devices");
    for (int i = 0; i < 2; i++) ck_ok(gvmm_buffer_set_access(buffers[i], 1 - i, GVMM_ACCESS_READ_WRITE));
    ck_reduces();
    end();
}
END_TEST

START_TEST(peers_in_the_options_hold_for_what_is_grown_and_restored)
{
    start(true);
    ck_reduces();
    grow_both(5 * G);
    ck_reduces();
    for (int i = 0; i < 2; i++) {
        ck_ok(gvmm_buffer_evict(buffers[i], NULL));
        ck_ok(gvmm_buffer_restore(buffers[i]));
    }
    ck_reduces();
    end();
}
END_TEST

START_TEST(a_registration_is_of_one_segment)
{
    void *handles[2];
    gvmm_segment segments[2];
    size_t count;
    start(true);
    grow_both(5 * G);
    ck_nccl(ncclCommRegister(comms[0], pointer(buffers[0], 0), 5 * G, &handles[0]), INVALID_ARGUMENT, "one piece");
    ck_nccl(ncclCommRegister(comms[0], pointer(buffers[0], G), 2 * G, &handles[0]), INVALID_ARGUMENT, "one piece");
    ck_ok(gvmm_buffer_segments(buffers[0], segments, 2, &count));
    ck_assert_uint_eq(count, 2);
    for (size_t i = 0; i < count; i++)
        ck_nccl_ok(ncclCommRegister(comms[0], (void *)(uintptr_t)segments[i].address, segments[i].size, &handles[i]));
    ck_nccl(ncclCommRegister(comms[0], pointer(buffers[0], G), G, &(void *){NULL}), INVALID_USAGE, "twice");
    ck_reduces();
    for (size_t i = 0; i < count; i++) ck_nccl_ok(ncclCommDeregister(comms[0], handles[i]));
    ck_nccl(ncclCommDeregister(comms[0], handles[0]), INVALID_ARGUMENT, "not registered");
    end();
}
END_TEST

/* torch_memory_saver#88, sglang#40648: same address, other memory after waking. */
START_TEST(a_registration_that_is_not_renewed_is_of_pages_that_have_gone)
{
    void *handle;
    start(true);
    ck_nccl_ok(ncclCommRegister(comms[0], pointer(buffers[0], 0), 2 * G, &handle));
    uint64_t generation = gvmm_buffer_generation(buffers[0]);
    ck_reduces();
    ck_ok(gvmm_buffer_evict(buffers[0], NULL));
    ck_ok(gvmm_buffer_restore(buffers[0]));
    ck_assert_uint_ne(gvmm_buffer_generation(buffers[0]), generation); /* says so */
    ck_nccl(reduce(), INTERNAL_ERROR, "pages that have gone");
    ck_nccl_ok(ncclCommDeregister(comms[0], handle));
    ck_nccl_ok(ncclCommRegister(comms[0], pointer(buffers[0], 0), 2 * G, &handle));
    ck_reduces();
    ck_nccl_ok(ncclCommDeregister(comms[0], handle));
    end();
}
END_TEST

/* ---- renewing it by the handler, also when evicting or restoring fails ---- */

static void *registered;
static char told[64];

static void renew(void *user, const gvmm_residency_event *event)
{
    (void)user;
    static const char letters[] = "eEfrRF"; /* in the order of the values */
    size_t length = strlen(told);
    told[length] = letters[event->what];
    told[length + 1] = 0;
    if (event->what == GVMM_BEFORE_EVICT) {
        ck_nccl_ok(ncclCommDeregister(comms[0], registered));
        registered = NULL;
    }
    if (event->what == GVMM_EVICT_FAILED || event->what == GVMM_AFTER_RESTORE)
        ck_nccl_ok(ncclCommRegister(comms[0], pointer(buffers[0], 0), 2 * G, &registered));
}

START_TEST(the_handler_renews_it)
{
    start(true);
    told[0] = 0;
    gvmm_resource_set_residency_handler(resources[0], renew, NULL);
    ck_nccl_ok(ncclCommRegister(comms[0], pointer(buffers[0], 0), 2 * G, &registered));
    ck_ok(gvmm_buffer_evict(buffers[0], NULL));
    ck_assert_ptr_null(registered);
    ck_ok(gvmm_buffer_restore(buffers[0]));
    ck_reduces();
    ck_assert_str_eq(told, "eErR");

    fault_call("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY); /* no room for the contents */
    gvmm_result r = gvmm_buffer_evict(buffers[0], NULL);
    ck_ok(gvmm_faults_set(NULL));
    ck_fails(r, GVMM_E_NO_HOST_MEMORY);
    ck_assert_ptr_nonnull(registered);
    ck_reduces();
    ck_assert_str_eq(told, "eErRef");

    ck_ok(gvmm_buffer_evict(buffers[0], NULL));
    fault_call("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_fails(gvmm_buffer_restore(buffers[0]), GVMM_E_NO_DEVICE_MEMORY);
    ck_ok(gvmm_faults_set(NULL));
    ck_assert_ptr_null(registered); /* still asleep */
    ck_ok(gvmm_buffer_restore(buffers[0]));
    ck_assert_str_eq(told, "eErRefeErFrR");
    ck_reduces();
    ck_nccl_ok(ncclCommDeregister(comms[0], registered));
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nccl");
    TCase *reach = add_case(suite, "reach");
    tcase_add_test(reach, buffers_must_be_open_to_the_other_devices_of_the_process);
    tcase_add_test(reach, peers_in_the_options_hold_for_what_is_grown_and_restored);
    TCase *registration = add_case(suite, "registration");
    tcase_add_test(registration, a_registration_is_of_one_segment);
    tcase_add_test(registration, a_registration_that_is_not_renewed_is_of_pages_that_have_gone);
    tcase_add_test(registration, the_handler_renews_it);
    return run_suites(suite, NULL);
}

/* The simulated machine: its configuration and its limits. */
#include <unistd.h>

#include "sim_kit.h"

/* ---------------------------------------------------------------------------------------------
 * Configuration
 * ------------------------------------------------------------------------------------------- */

#define refused(field, value) \
    do { \
        gvmm_sim_config config_ = GVMM_SIM_CONFIG_INIT; \
        config_.field = (value); \
        ck_fails(gvmm_sim_reset(&config_), GVMM_E_INVALID); \
        ck_names(#field); \
    } while (0)

START_TEST(values_out_of_range_are_refused_by_name)
{
    refused(devices, 0);
    refused(devices, 17);
    refused(numa_nodes, 0);
    refused(numa_nodes, 9);
    refused(memory, 0);
    refused(memory, 4095);
    refused(memory, ((uint64_t)1 << 50) + 1);
    refused(address_space, 0);
    refused(address_space, ((uint64_t)1 << 47) + 1);
    refused(granularity, 0);
    refused(granularity, 2048);
    refused(granularity, 3 * MiB);
    refused(granularity, (uint64_t)2 << 30);
    refused(descriptors, (1u << 20) + 1);
    refused(struct_size, 0);
    refused(struct_size, sizeof(size_t) - 1);
    refused(struct_size, sizeof(gvmm_sim_config) + 1);
    ck_assert_int_eq(device_count, 2); /* and the machine is the old one */
    int count;
    ck_cu(cu->cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 2);
}
END_TEST

/* A caller that was built with an older header. */
START_TEST(a_shorter_struct_leaves_the_rest_at_its_defaults)
{
    gvmm_sim_config config = {.struct_size = offsetof(gvmm_sim_config, numa_nodes), .devices = 3, .granularity = 1};
    ck_ok(gvmm_sim_reset(&config));
    int count;
    size_t granularity;
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    ck_cu(cu->cuDeviceGetCount(&count));
    ck_cu(cu->cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    ck_assert_int_eq(count, 3);
    ck_assert_uint_eq(granularity, 2 * MiB);
    machine_start(NULL);
}
END_TEST

START_TEST(text_in_the_environment)
{
    size_t bytes;
    int count, node;
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    setenv("GVMM_SIM",
           "devices=4,numa_nodes=2, memory=8G,granularity=64K,address_space=1T,descriptors=0x10,peers=0,latency=0", 1);
    ck_ok(gvmm_sim_reset(NULL));
    ck_cu(cu->cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 4);
    ck_cu(cu->cuDeviceTotalMem(&bytes, 3));
    ck_assert_uint_eq(bytes, (size_t)8 << 30);
    ck_cu(cu->cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 3));
    ck_assert_int_eq(node, 1);
    ck_cu(cu->cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    ck_assert_uint_eq(bytes, 65536);
    ck_cu(cu->cuDeviceCanAccessPeer(&count, 0, 1));
    ck_assert_int_eq(count, 0);

    const char *const good[] = {"", ",", "devices=1", "memory=4096", "memory=64k", "granularity=2m,,peers=1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        setenv("GVMM_SIM", good[i], 1);
        ck_ok(gvmm_sim_reset(NULL));
    }
    unsetenv("GVMM_SIM");
    machine_start(NULL);
}
END_TEST

START_TEST(text_that_makes_no_sense_is_refused_by_name)
{
    static const struct {
        const char *text, *named;
    } bad[] = {
        {"devices", "devices"},
        {"devices=", "devices"},
        {"devices=x", "devices"},
        {"devices=-1", "devices"},
        {"devices=17", "devices"},
        {"devices=4294967297", "devices"},
        {"devices=2x", "devices"},
        {"devices=2;memory=8G", "devices"},
        {"memory=8Q", "memory"},
        {"memory=8GB", "memory"},
        {"memory=99999999999G", "memory"},
        {"granularity=3M", "granularity"},
        {"granularity=1K", "granularity"},
        {"peers=2", "peers"},
        {"latency=yes", "latency"},
        {"memory=8G,speed=9", "speed"},
        {"=1", "GVMM_SIM"},
        {"numa_nodes=9", "numa_nodes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("GVMM_SIM", bad[i].text, 1);
        ck_assert_msg(gvmm_sim_reset(NULL) == GVMM_E_INVALID, "%s is accepted", bad[i].text);
        ck_names(bad[i].named);
        ck_names("GVMM_SIM");
    }
    char longest[2000];
    memset(longest, ',', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    setenv("GVMM_SIM", longest, 1);
    ck_fails(gvmm_sim_reset(NULL), GVMM_E_INVALID);
    unsetenv("GVMM_SIM");
}
END_TEST

START_TEST(a_program_that_starts_with_bad_text_is_told)
{
    char text[2000];
    setenv("GVMM_SIM", "devices=0", 1);
    ck_assert_int_eq(child_run("init", text, sizeof text), CUDA_ERROR_INVALID_VALUE);
    ck_assert_ptr_nonnull(strstr(text, "GVMM_SIM"));
    ck_assert_ptr_nonnull(strstr(text, "devices"));
    setenv("GVMM_SIM", "devices=3", 1);
    ck_assert_int_eq(child_run("init", text, sizeof text), CUDA_SUCCESS);
    ck_assert_str_eq(text, "");
    unsetenv("GVMM_SIM");
}
END_TEST

START_TEST(every_granularity_works)
{
    const uint64_t sizes[] = {4096, 65536, 2 * MiB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
        config.granularity = sizes[i];
        machine_start(&config);
        size_t granularity;
        CUdeviceptr address;
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
        ck_cu(cu->cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        ck_assert_uint_eq(granularity, G);
        ck_cu_fails(cu->cuMemAddressReserve(&address, G + G / 2, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
        ck_cu_fails(cu->cuMemCreate(&handle, G / 2, &prop, 0), CUDA_ERROR_INVALID_VALUE);
        block small = block_make(G), large = block_make(3 * G);
        ck_assert_uint_eq(small.address % G, 0);
        ck_cu_fails(cu->cuMemUnmap(large.address + G / 2, G), CUDA_ERROR_INVALID_VALUE);
        write_pattern(large.address, 3 * G, 1);
        ck_cu(cu->cuMemcpyDtoD(small.address, large.address + G, G));
        ck_pattern(large.address, 3 * G, 1);
        fill(small.address, 7, G);
        ck_filled(small.address, 7, G);
        block_end(&small);
        block_end(&large);
    }
    machine_start(NULL);
}
END_TEST

START_TEST(one_to_sixteen_devices)
{
    for (unsigned n = 1; n <= 16; n++) {
        gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
        config.devices = n;
        machine_start(&config);
        int count;
        CUdevice device;
        CUcontext context;
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, (int)n - 1, CU_MEM_HANDLE_TYPE_NONE);
        ck_cu(cu->cuDeviceGetCount(&count));
        ck_assert_int_eq(count, n);
        ck_cu_fails(cu->cuDeviceGet(&device, (int)n), CUDA_ERROR_INVALID_DEVICE);
        ck_cu_fails(cu->cuDevicePrimaryCtxRetain(&context, (int)n), CUDA_ERROR_INVALID_DEVICE);
        ck_cu(cu->cuMemCreate(&handle, G, &prop, 0));
        prop.location.id = (int)n;
        CUmemGenericAllocationHandle none;
        ck_cu_fails(cu->cuMemCreate(&none, G, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
        CUdeviceptr address;
        ck_cu(cu->cuMemAddressReserve(&address, G, 0, 0, 0));
        ck_cu(cu->cuMemMap(address, G, 0, handle, 0));
        block b = {address, G, handle};
        for (unsigned d = 0; d < n; d++) block_grant(&b, (int)d, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        for (unsigned d = 0; d < n; d++) {
            unsigned char byte = (unsigned char)d, back = 255;
            ck_cu(gvmm_sim_write((int)d, address + d, &byte, 1));
            ck_cu(gvmm_sim_read((int)(n - 1 - d), &back, address + d, 1));
            ck_assert_uint_eq(back, d);
        }
        block_end(&b);
    }
    machine_start(NULL);
}
END_TEST

START_TEST(numa_nodes_are_as_many_as_configured)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.numa_nodes = 8;
    config.devices = 16;
    machine_start(&config);
    for (int node = 0; node <= 8; node++) {
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, node, CU_MEM_HANDLE_TYPE_NONE);
        CUresult result = cu->cuMemCreate(&handle, G, &prop, 0);
        ck_assert_int_eq(result, node < 8 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        if (result == CUDA_SUCCESS) ck_cu(cu->cuMemRelease(handle));
    }
    for (int device = 0; device < 16; device++) {
        int node;
        ck_cu(cu->cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device));
        ck_assert_int_eq(node, device / 2);
    }
    machine_start(NULL);
}
END_TEST

/* ---------------------------------------------------------------------------------------------
 * Limits
 * ------------------------------------------------------------------------------------------- */

START_TEST(device_memory_ends_exactly_at_the_limit)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    config.memory = 8 * config.granularity + 4096;
    machine_start(&config);
    CUmemGenericAllocationHandle handle[9], other;
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    size_t available, total;
    CUdeviceptr plain_memory, pooled;
    ck_cu_fails(cu->cuMemCreate(&other, 9 * G, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu(cu->cuMemCreate(&other, 8 * G, &prop, 0));
    ck_cu(cu->cuMemRelease(other));
    for (int i = 0; i < 8; i++) ck_cu(cu->cuMemCreate(&handle[i], G, &prop, 0));
    ck_cu(cu->cuMemGetInfo(&available, &total));
    ck_assert_uint_eq(available, 4096);
    ck_assert_uint_eq(total, config.memory);
    ck_cu_fails(cu->cuMemCreate(&handle[8], G, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(cu->cuMemAlloc(&plain_memory, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu_fails(cu->cuMemAllocAsync(&pooled, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    prop.location.id = 1; /* the other device has its own */
    ck_cu(cu->cuMemCreate(&other, 8 * G, &prop, 0));
    prop.location.id = 0;

    ck_cu(cu->cuMemRelease(handle[7])); /* one granule for whoever comes first */
    ck_cu(cu->cuMemAlloc(&plain_memory, G));
    ck_cu_fails(cu->cuMemCreate(&handle[7], G, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu(cu->cuMemFree(plain_memory));
    ck_cu(cu->cuMemAllocAsync(&pooled, G, NULL));
    ck_cu_fails(cu->cuMemCreate(&handle[7], G, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu(cu->cuMemFreeAsync(pooled, NULL));
    ck_cu(cu->cuCtxSynchronize());
    ck_cu(cu->cuMemCreate(&handle[7], G, &prop, 0));
    for (int i = 0; i < 8; i++) ck_cu(cu->cuMemRelease(handle[i]));
    ck_cu(cu->cuMemRelease(other));
    ck_cu(cu->cuMemGetInfo(&available, NULL));
    ck_assert_uint_eq(available, config.memory);
    machine_start(NULL);
}
END_TEST

START_TEST(address_space_ends_exactly_at_the_limit)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.address_space = 4 * config.granularity;
    machine_start(&config);
    CUdeviceptr a, b, c, plain_memory;
    ck_cu_fails(cu->cuMemAddressReserve(&a, 5 * G, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu(cu->cuMemAddressReserve(&a, 3 * G, 0, 0, 0));
    ck_cu(cu->cuMemAddressReserve(&b, G, 0, 0, 0));
    ck_cu_fails(cu->cuMemAddressReserve(&c, G, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ck_cu(cu->cuMemAlloc(&plain_memory, G)); /* does not count */
    ck_cu(cu->cuMemFree(plain_memory));
    ck_cu(cu->cuMemAddressFree(a, 3 * G));
    ck_cu(cu->cuMemAddressReserve(&c, 3 * G, 0, 0, 0));
    ck_cu(cu->cuMemAddressFree(b, G));
    ck_cu(cu->cuMemAddressFree(c, 3 * G));
    machine_start(NULL);
}
END_TEST

START_TEST(exported_descriptors_end_at_the_limit)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.descriptors = 2;
    machine_start(&config);
    block b = block_make(G);
    int fd[3];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++)
            ck_cu(cu->cuMemExportToShareableHandle(&fd[i], b.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        ck_cu_fails(cu->cuMemExportToShareableHandle(&fd[2], b.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                    CUDA_ERROR_OPERATING_SYSTEM);
        close(fd[0]);
        ck_cu(cu->cuMemExportToShareableHandle(&fd[0], b.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        close(fd[0]);
        close(fd[1]);
    }
    block_end(&b);
    machine_start(NULL);
}
END_TEST

START_TEST(without_peers_no_device_reaches_another)
{
    gvmm_sim_config config = GVMM_SIM_CONFIG_INIT;
    config.devices = 2;
    config.peers = false;
    machine_start(&config);
    int can = 9;
    CUcontext other;
    block b = block_make(G);
    CUmemAccessDesc desc[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ},
                               {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READ}};
    ck_cu(cu->cuDeviceCanAccessPeer(&can, 0, 1));
    ck_assert_int_eq(can, 0);
    ck_assert_int_ne(cu->cuMemSetAccess(b.address, G, desc, 2), CUDA_SUCCESS);
    ck_assert_uint_eq(access_of(b.address, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE); /* nothing has changed */
    ck_assert_uint_eq(access_of(b.address, 1), 0);
    ck_cu(cu->cuDevicePrimaryCtxRetain(&other, 1));
    ck_cu_fails(cu->cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    ck_cu(cu->cuDevicePrimaryCtxRelease(1));
    block_end(&b);
    machine_start(NULL);
}
END_TEST

static void nothing(void *data) { (void)data; }

/* Each kind in turn is all that is alive. */
START_TEST(a_reset_is_refused_while_something_is_alive)
{
    static char host[8192];
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle memory;
    CUdeviceptr address;
    CUstream s;
    CUevent e;
    CUgraph g;
    CUgraphExec x;
    CUuserObject o;
    void *pinned;
#define stands(make, kind, call, undo) \
    do { \
        ck_cu(make); \
        ck_fails(gvmm_sim_reset(NULL), GVMM_E_INVALID); \
        ck_names("a " kind " is alive"); \
        ck_names("made by " call); \
        ck_cu(undo); \
        ck_ok(gvmm_sim_reset(NULL)); \
        machine_start(NULL); \
    } while (0)
    stands(cu->cuMemCreate(&memory, G, &prop, 0), "memory", "cuMemCreate", cu->cuMemRelease(memory));
    stands(cu->cuMemAddressReserve(&address, G, 0, 0, 0), "reservation", "cuMemAddressReserve",
           cu->cuMemAddressFree(address, G));
    stands(cu->cuMemAlloc(&address, 1), "plain", "cuMemAlloc", cu->cuMemFree(address));
    stands(cu->cuMemAllocAsync(&address, 1, NULL), "pooled", "cuMemAllocAsync",
           (cu->cuMemFreeAsync(address, NULL), cu->cuCtxSynchronize()));
    stands(cu->cuMemAllocHost(&pinned, 1), "pinned", "cuMemAllocHost", cu->cuMemFreeHost(pinned));
    stands(cu->cuMemHostRegister(host, sizeof host, 0), "registered", "cuMemHostRegister",
           cu->cuMemHostUnregister(host));
    stands(cu->cuStreamCreate(&s, 0), "stream", "cuStreamCreate", cu->cuStreamDestroy(s));
    stands(cu->cuEventCreate(&e, 0), "event", "cuEventCreate", cu->cuEventDestroy(e));
    stands(cu->cuGraphCreate(&g, 0), "graph", "cuGraphCreate", cu->cuGraphDestroy(g));
    stands((cu->cuGraphCreate(&g, 0), cu->cuGraphInstantiateWithFlags(&x, g, 0), cu->cuGraphDestroy(g)),
           "executable graph", "cuGraphInstantiateWithFlags", cu->cuGraphExecDestroy(x));
    stands(cu->cuUserObjectCreate(&o, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC), "user object",
           "cuUserObjectCreate", cu->cuUserObjectRelease(o, 1));

    CUcontext context; /* contexts and pools are no obstacle */
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ck_cu(cu->cuCtxCreate(&context, 0, 0));
    ck_cu(cu->cuMemPoolCreate(&pool, &props));
    ck_ok(gvmm_sim_reset(NULL));
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_assert_ptr_null(context);
    machine_start(NULL);
}
END_TEST

/* Check's assertions are for its own processes: here a failed call is an exit status. */
static int child(const char *role)
{
    (void)role;
    return (int)gvmm_sim_driver()->cuInit(0);
}

int main(int argc, char **argv)
{
    if (argc > 1) return child(argv[1]);
    unsetenv("GVMM_SIM");
    unsetenv("GVMM_SIM_REPORT");
    Suite *suite = suite_create("simulated machine");
    TCase *config = add_machine_case(suite, "configuration");
    tcase_add_test(config, values_out_of_range_are_refused_by_name);
    tcase_add_test(config, a_shorter_struct_leaves_the_rest_at_its_defaults);
    tcase_add_test(config, text_in_the_environment);
    tcase_add_test(config, text_that_makes_no_sense_is_refused_by_name);
    tcase_add_test(config, a_program_that_starts_with_bad_text_is_told);
    tcase_add_test(config, every_granularity_works);
    tcase_add_test(config, one_to_sixteen_devices);
    tcase_add_test(config, numa_nodes_are_as_many_as_configured);
    TCase *limits = add_machine_case(suite, "limits");
    tcase_add_test(limits, device_memory_ends_exactly_at_the_limit);
    tcase_add_test(limits, address_space_ends_exactly_at_the_limit);
    tcase_add_test(limits, exported_descriptors_end_at_the_limit);
    tcase_add_test(limits, without_peers_no_device_reaches_another);
    tcase_add_test(limits, a_reset_is_refused_while_something_is_alive);
    return run_suites(suite, NULL);
}

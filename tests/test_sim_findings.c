/* What a GPU cannot tell: every kind of finding, once, with its whole text. */
#include <sys/mman.h>
#include <unistd.h>

#include "sim_kit.h"

#define ULL(value) ((unsigned long long)(uintptr_t)(value))

static void nothing(void *data) { (void)data; }

/* A stream whose work waits at a gate, and a mapped block. */
static CUstream busy;
static gate *closed;
static block b;

static void begin(void)
{
    b = block_make(2 * G);
    ck_cu(cu->cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    closed = gate_on(busy);
}

/* Lets the work run into its error. The context is lost by it: the rest needs none. */
static void run_into_error(void)
{
    gate_open(closed);
    ck_cu_fails(cu->cuStreamSynchronize(busy), CUDA_ERROR_ILLEGAL_ADDRESS);
    free(closed);
}

static void end(void) { ck_cu_fails(cu->cuStreamDestroy(busy), CUDA_ERROR_ILLEGAL_ADDRESS); }

/* ---------------------------------------------------------------------------------------------
 * Memory that was there when the work was queued
 * ------------------------------------------------------------------------------------------- */

START_TEST(memset_over_memory_that_was_unmapped)
{
    begin();
    ck_cu(cu->cuMemsetD8Async(b.address, 1, 2 * G, busy));
    uint64_t queued = calls_made() - 2;
    block_unmap(&b);
    uint64_t unmapped = calls_made() - 2;
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
    run_into_error();
    ck_finding(
        "cuMemsetD8Async (call %llu) on stream 0x%llx wrote 0x%llx, which was unmapped by cuMemUnmap (call %llu)",
        ULL(queued), ULL(busy), ULL(b.address), ULL(unmapped));
    block_free(&b);
    end();
}
END_TEST

START_TEST(copy_from_memory_that_was_unmapped)
{
    begin();
    block to = block_make(2 * G);
    ck_cu(cu->cuMemcpyDtoDAsync(to.address, b.address, 2 * G, busy));
    uint64_t queued = calls_made() - 2;
    block_unmap(&b);
    uint64_t unmapped = calls_made() - 2;
    run_into_error();
    ck_finding(
        "cuMemcpyDtoDAsync (call %llu) on stream 0x%llx read 0x%llx, which was unmapped by cuMemUnmap (call %llu)",
        ULL(queued), ULL(busy), ULL(b.address), ULL(unmapped));
    block_free(&b);
    block_end(&to);
    end();
}
END_TEST

/* The first byte that is not there is named, not the first of the work. */
START_TEST(copy_that_reaches_an_unmapped_neighbour)
{
    begin();
    CUdeviceptr address;
    block left = {.size = G}, right = {.size = G};
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    ck_cu(cu->cuMemAddressReserve(&address, 2 * G, 0, 0, 0));
    left.address = address;
    right.address = address + G;
    ck_cu(cu->cuMemCreate(&left.handle, G, &prop, 0));
    ck_cu(cu->cuMemMap(left.address, G, 0, left.handle, 0));
    ck_cu(cu->cuMemMap(right.address, G, 0, left.handle, 0)); /* the same memory again */
    block_grant(&left, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    block_grant(&right, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ck_cu(cu->cuMemcpyDtoDAsync(b.address + 7, address + 7, 2 * G - 7, busy));
    uint64_t queued = calls_made() - 2;
    block_unmap(&right);
    uint64_t unmapped = calls_made() - 2;
    run_into_error();
    ck_finding(
        "cuMemcpyDtoDAsync (call %llu) on stream 0x%llx read 0x%llx, which was unmapped by cuMemUnmap (call %llu)",
        ULL(queued), ULL(busy), ULL(right.address), ULL(unmapped));
    block_unmap(&left);
    ck_cu(cu->cuMemRelease(left.handle));
    ck_cu(cu->cuMemAddressFree(address, 2 * G));
    block_end(&b);
    end();
}
END_TEST

START_TEST(memset_without_access_when_it_runs)
{
    begin();
    ck_cu(cu->cuMemsetD32Async(b.address, 1, G / 4, busy));
    uint64_t queued = calls_made() - 2;
    block_grant(&b, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    run_into_error();
    ck_finding("cuMemsetD32Async (call %llu) on stream 0x%llx wrote 0x%llx, which is not open to device 0 for that",
               ULL(queued), ULL(busy), ULL(b.address));
    block_end(&b);
    end();
}
END_TEST

START_TEST(copy_without_access_when_it_runs)
{
    begin();
    block from = block_make(G);
    ck_cu(cu->cuMemcpyDtoDAsync(b.address, from.address, G, busy));
    uint64_t queued = calls_made() - 2;
    block_grant(&from, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    run_into_error();
    ck_finding("cuMemcpyDtoDAsync (call %llu) on stream 0x%llx read 0x%llx, which is not open to device 0 for that",
               ULL(queued), ULL(busy), ULL(from.address));
    block_end(&from);
    block_end(&b);
    end();
}
END_TEST

static CUgraphExec one_node(CUdeviceptr address)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUcontext context;
    CUDA_MEMSET_NODE_PARAMS set = {.dst = address, .value = 1, .elementSize = 1, .width = 16, .height = 1};
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_cu(cu->cuGraphCreate(&graph, 0));
    ck_cu(cu->cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, context));
    ck_cu(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    ck_cu(cu->cuGraphDestroy(graph));
    return exec;
}

START_TEST(graph_over_memory_that_was_unmapped)
{
    begin();
    CUgraphExec exec = one_node(b.address + 32);
    block_unmap(&b);
    uint64_t unmapped = calls_made() - 2;
    ck_cu(cu->cuGraphLaunch(exec, busy));
    uint64_t queued = calls_made() - 2;
    ck_cu(cu->cuGraphExecDestroy(exec));
    run_into_error();
    ck_finding(
        "graph memset node (call %llu) on stream 0x%llx wrote 0x%llx, which was unmapped by cuMemUnmap (call %llu)",
        ULL(queued), ULL(busy), ULL(b.address) + 32, ULL(unmapped));
    block_free(&b);
    end();
}
END_TEST

START_TEST(memory_that_was_given_back_to_its_pool)
{
    CUdeviceptr pooled;
    CUstream other;
    begin();
    ck_cu(cu->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ck_cu(cu->cuMemAllocAsync(&pooled, 64, busy));
    ck_cu(cu->cuMemsetD8Async(pooled, 1, 64, busy));
    uint64_t queued = calls_made() - 2;
    ck_cu(cu->cuMemFreeAsync(pooled, other)); /* which waits for nothing */
    uint64_t freed = calls_made() - 2;
    ck_cu_fails(cu->cuMemsetD8Async(pooled, 1, 64, busy), CUDA_ERROR_INVALID_VALUE);
    ck_cu(cu->cuStreamSynchronize(other));
    ck_cu(cu->cuStreamDestroy(other));
    run_into_error();
    ck_finding(
        "cuMemsetD8Async (call %llu) on stream 0x%llx wrote 0x%llx, which was unmapped by cuMemFreeAsync (call %llu)",
        ULL(queued), ULL(busy), ULL(pooled), ULL(freed));
    block_end(&b);
    end();
}
END_TEST

START_TEST(memory_that_was_freed)
{
    CUdeviceptr plain_memory;
    ck_cu(cu->cuMemAlloc(&plain_memory, 64));
    CUgraphExec exec = one_node(plain_memory);
    ck_cu(cu->cuMemFree(plain_memory));
    uint64_t freed = calls_made() - 2;
    ck_cu(cu->cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    ck_cu(cu->cuGraphLaunch(exec, busy));
    uint64_t queued = calls_made() - 2;
    ck_cu_fails(cu->cuStreamSynchronize(busy), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_finding(
        "graph memset node (call %llu) on stream 0x%llx wrote 0x%llx, which was unmapped by cuMemFree (call %llu)",
        ULL(queued), ULL(busy), ULL(plain_memory), ULL(freed));
    ck_cu(cu->cuGraphExecDestroy(exec));
    end();
}
END_TEST

/* Before anything else could be mapped there: the latest unmapping counts. */
START_TEST(the_latest_unmapping_is_named)
{
    begin();
    ck_cu(cu->cuMemsetD8Async(b.address, 1, 1, busy));
    uint64_t queued = calls_made() - 2;
    block_unmap(&b);
    ck_cu(cu->cuMemMap(b.address, b.size, 0, b.handle, 0));
    block_unmap(&b);
    uint64_t unmapped = calls_made() - 2;
    run_into_error();
    ck_finding(
        "cuMemsetD8Async (call %llu) on stream 0x%llx wrote 0x%llx, which was unmapped by cuMemUnmap (call %llu)",
        ULL(queued), ULL(busy), ULL(b.address), ULL(unmapped));
    block_free(&b);
    end();
}
END_TEST

START_TEST(default_streams_have_their_numbers)
{
    begin();
    gate_open(closed);
    ck_cu(cu->cuStreamSynchronize(busy)); /* it is not needed here */
    free(closed);
    ck_cu(cu->cuLaunchHostFunc(CU_STREAM_PER_THREAD, nothing, NULL));
    gate *g = gate_on(CU_STREAM_LEGACY);
    ck_cu(cu->cuMemsetD8Async(b.address, 1, 1, NULL));
    uint64_t queued = calls_made() - 2;
    block_unmap(&b);
    uint64_t unmapped = calls_made() - 2;
    gate_open(g);
    ck_cu_fails(cu->cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_finding("cuMemsetD8Async (call %llu) on stream 0x1 wrote 0x%llx, which was unmapped by cuMemUnmap (call %llu)",
               ULL(queued), ULL(b.address), ULL(unmapped));
    free(g);
    block_free(&b);
    end();
}
END_TEST

START_TEST(host_memory_that_is_not_there)
{
    begin();
    gate_open(closed);
    ck_cu(cu->cuStreamSynchronize(busy)); /* it is not needed here */
    free(closed);
    ck_cu_fails(cu->cuMemcpyHtoD(b.address, (void *)(uintptr_t)16, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_finding("cuMemcpyHtoD (call %llu) on stream 0x1 could not move bytes at 0x%llx: error 14 of the system",
               ULL(calls_made() - 2), ULL(b.address));
    block_end(&b);
    end();
}
END_TEST

static void *reset_device_1(void *unused)
{
    (void)unused;
    cu->cuDevicePrimaryCtxReset(1); /* waits for the work */
    return NULL;
}

/* One thread waits for a copy that an error keeps from being done, while another resets the context. */
START_TEST(a_reset_makes_no_success_of_work_that_failed)
{
    for (int i = 0; i < 100; i++) {
        pthread_t other;
        CUcontext context;
        char back[4] = "no";
        block bad = block_make(G), good = block_make(G);
        block_grant(&bad, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        block_grant(&good, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 1));
        ck_cu(cu->cuCtxPushCurrent(context));
        gate *g = gate_on(NULL);
        ck_cu(cu->cuMemsetD8Async(bad.address, 1, G, NULL));
        block_unmap(&bad);
        ck_assert_int_eq(pthread_create(&other, NULL, reset_device_1, NULL), 0);
        gate_open(g); /* about when the copy is queued */
        CUresult r = cu->cuMemcpyDtoH(back, good.address, sizeof back);
        ck_assert_msg(r != CUDA_SUCCESS || back[0] == 0, "success, but nothing was copied");
        pthread_join(other, NULL);
        free(g);
        ck_cu(cu->cuCtxPopCurrent(NULL));
        ck_cu(cu->cuDevicePrimaryCtxRelease(1));
        block_free(&bad);
        block_end(&good);
        gvmm_sim_findings_clear();
        machine_end();
        machine_of_two_devices();
    }
}
END_TEST

/* ---------------------------------------------------------------------------------------------
 * Handles that are not, or no more
 * ------------------------------------------------------------------------------------------- */

START_TEST(destroyed_streams)
{
    CUstream s;
    ck_cu(cu->cuStreamCreate(&s, 0));
    ck_cu(cu->cuStreamDestroy(s));
    ck_cu_fails(cu->cuStreamSynchronize(s), CUDA_ERROR_INVALID_HANDLE);
    ck_finding("cuStreamSynchronize (call %llu): stream 0x%llx was destroyed; a real driver may crash here",
               ULL(calls_made() - 2), ULL(s));
    ck_cu_fails(cu->cuStreamDestroy(s), CUDA_ERROR_INVALID_HANDLE);
    ck_finding("cuStreamDestroy (call %llu): stream 0x%llx was destroyed before; a real driver may crash here",
               ULL(calls_made() - 2), ULL(s));
    ck_cu_fails(cu->cuStreamQuery((CUstream)(uintptr_t)0x99), CUDA_ERROR_INVALID_HANDLE);
    ck_finding("cuStreamQuery (call %llu): stream 0x99 is not a stream; a real driver may crash here",
               ULL(calls_made() - 2));
    ck_cu_fails(cu->cuStreamDestroy((CUstream)(uintptr_t)0x99), CUDA_ERROR_INVALID_HANDLE);
    ck_finding("cuStreamDestroy (call %llu): stream 0x99 is not a stream; a real driver may crash here",
               ULL(calls_made() - 2));
}
END_TEST

START_TEST(destroyed_events)
{
    CUevent e;
    ck_cu(cu->cuEventCreate(&e, 0));
    ck_cu(cu->cuEventRecord(e, NULL));
    ck_cu(cu->cuEventDestroy(e));
    ck_cu_fails(cu->cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
    ck_finding("cuEventQuery (call %llu): event 0x%llx was destroyed; a real driver may crash here",
               ULL(calls_made() - 2), ULL(e));
    ck_cu_fails(cu->cuEventDestroy(e), CUDA_ERROR_INVALID_HANDLE);
    ck_finding("cuEventDestroy (call %llu): event 0x%llx was destroyed; a real driver may crash here",
               ULL(calls_made() - 2), ULL(e));
    ck_cu_fails(cu->cuStreamWaitEvent(NULL, (CUevent)(uintptr_t)5, 0), CUDA_ERROR_INVALID_HANDLE);
    ck_finding("cuStreamWaitEvent (call %llu): event 0x5 is not an event; a real driver may crash here",
               ULL(calls_made() - 2));
}
END_TEST

START_TEST(destroyed_executables)
{
    b = block_make(G);
    CUgraphExec exec = one_node(b.address);
    ck_cu(cu->cuGraphExecDestroy(exec));
    ck_cu_fails(cu->cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE);
    ck_finding("cuGraphLaunch (call %llu): graph executable 0x%llx was destroyed; a real driver may crash here",
               ULL(calls_made() - 2), ULL(exec));
    ck_cu_fails(cu->cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_VALUE);
    ck_finding("cuGraphExecDestroy (call %llu): graph executable 0x%llx was destroyed; a real driver may crash here",
               ULL(calls_made() - 2), ULL(exec));
    block_end(&b);
}
END_TEST

START_TEST(memory_released_twice)
{
    CUmemGenericAllocationHandle again;
    b = block_make(G);
    ck_cu(cu->cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)b.address));
    ck_assert_uint_eq(again, b.handle);
    ck_cu(cu->cuMemRelease(b.handle));
    ck_cu(cu->cuMemRelease(again));
    ck_cu_fails(cu->cuMemRelease(again), CUDA_ERROR_INVALID_VALUE); /* though the memory lives */
    ck_finding("cuMemRelease (call %llu): handle 0x%llx was released before", ULL(calls_made() - 2), ULL(again));
    ck_filled(b.address, 0, G);
    block_unmap(&b);
    ck_cu(cu->cuMemAddressFree(b.address, G));
    ck_cu_fails(cu->cuMemRelease(b.handle), CUDA_ERROR_INVALID_VALUE); /* and now that it does not */
    ck_finding("cuMemRelease (call %llu): handle 0x%llx was released before", ULL(calls_made() - 2), ULL(b.handle));
    ck_cu_fails(cu->cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
    ck_cu_fails(cu->cuMemRelease(12345), CUDA_ERROR_INVALID_VALUE);
    ck_finding("cuMemRelease (call %llu): 0x3039 is not a handle of memory; a real driver may crash here",
               ULL(calls_made() - 2));
}
END_TEST

START_TEST(memory_freed_twice)
{
    CUdeviceptr p, q;
    ck_cu(cu->cuMemAlloc(&p, 100));
    ck_cu(cu->cuMemFree(p));
    uint64_t freed = calls_made() - 2;
    ck_cu_fails(cu->cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
    ck_finding("cuMemFree (call %llu): 0x%llx was given back by cuMemFree (call %llu) before", ULL(calls_made() - 2),
               ULL(p), ULL(freed));
    CUstream s;
    ck_cu(cu->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    gate *g = gate_on(s);
    ck_cu(cu->cuMemAllocAsync(&q, 100, s));
    ck_cu(cu->cuMemFreeAsync(q, s));
    freed = calls_made() - 2;
    ck_cu_fails(cu->cuMemFreeAsync(q, s), CUDA_ERROR_INVALID_VALUE);
    ck_finding("cuMemFreeAsync (call %llu): 0x%llx is being freed already", ULL(calls_made() - 2), ULL(q));
    gate_end(g);
    ck_cu_fails(cu->cuMemFreeAsync(q, s), CUDA_ERROR_INVALID_VALUE);
    ck_finding("cuMemFreeAsync (call %llu): 0x%llx was given back by cuMemFreeAsync (call %llu) before",
               ULL(calls_made() - 2), ULL(q), ULL(freed));
    ck_cu(cu->cuStreamDestroy(s));
}
END_TEST

START_TEST(more_references_given_away_than_one_has)
{
    CUuserObject o;
    CUgraph g;
    ck_cu(cu->cuGraphCreate(&g, 0));
    ck_cu(cu->cuUserObjectCreate(&o, NULL, nothing, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ck_cu(cu->cuGraphRetainUserObject(g, o, 1, 0));
    ck_cu(cu->cuUserObjectRelease(o, 3)); /* one of the three is the graph's */
    ck_finding("cuUserObjectRelease (call %llu): gives 3 references to user object 0x%llx away, but the caller has 2",
               ULL(calls_made() - 2), ULL(o));
    ck_assert_uint_eq(alive(GVMM_SIM_USER_OBJECT), 0);
    ck_cu(cu->cuUserObjectCreate(&o, NULL, nothing, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ck_cu(cu->cuGraphRetainUserObject(g, o, 3, CU_GRAPH_USER_OBJECT_MOVE));
    ck_finding(
        "cuGraphRetainUserObject (call %llu): gives 3 references to user object 0x%llx away, but the caller has 2",
        ULL(calls_made() - 2), ULL(o));
    ck_cu(cu->cuUserObjectRetain(o, 1)); /* or it would be lost for good */
    ck_cu(cu->cuGraphDestroy(g));
    ck_assert_uint_eq(alive(GVMM_SIM_USER_OBJECT), 0);
}
END_TEST

/* Nobody can give back what is left after that: the machine's end (a reset) takes it. */
START_TEST(a_user_object_that_is_lost_does_not_keep_the_machine)
{
    CUuserObject o;
    CUgraph g;
    ck_cu(cu->cuGraphCreate(&g, 0));
    ck_cu(cu->cuUserObjectCreate(&o, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ck_cu(cu->cuGraphRetainUserObject(g, o, 2, CU_GRAPH_USER_OBJECT_MOVE));
    ck_cu(cu->cuGraphDestroy(g));
    ck_assert_uint_eq(alive(GVMM_SIM_USER_OBJECT), 1);
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 1);
    gvmm_sim_findings_clear();
    machine_end();
    machine_of_two_devices();
    ck_assert_uint_eq(alive(GVMM_SIM_USER_OBJECT), 0);
}
END_TEST

START_TEST(memory_that_an_error_keeps_does_not_keep_the_machine)
{
    CUdeviceptr plain, pooled;
    void *pinned;
    CUcontext context;
    ck_cu(cu->cuDevicePrimaryCtxRetain(&context, 1));
    begin();
    ck_cu(cu->cuMemAlloc(&plain, G));
    ck_cu(cu->cuMemAllocAsync(&pooled, G, NULL));
    ck_cu(cu->cuMemAllocHost(&pinned, 100));
    ck_cu(cu->cuMemsetD8Async(b.address, 1, 2 * G, busy));
    block_unmap(&b);
    run_into_error();
    ck_cu_fails(cu->cuMemFree(plain), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_cu_fails(cu->cuMemFreeAsync(pooled, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_cu_fails(cu->cuMemFreeHost(pinned), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_cu(cu->cuCtxSetCurrent(context)); /* the error is there too */
    ck_cu_fails(cu->cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    end();
    ck_cu(cu->cuMemRelease(b.handle));
    ck_cu(cu->cuMemAddressFree(b.address, b.size));
    ck_cu(cu->cuDevicePrimaryCtxReset(0)); /* takes what was allocated in it */
    ck_assert_uint_eq(alive(GVMM_SIM_PLAIN) + alive(GVMM_SIM_PINNED), 0);
    ck_assert_uint_eq(alive(GVMM_SIM_POOLED), 1);
    gvmm_sim_findings_clear();
    machine_end();
    machine_of_two_devices();
    ck_assert_uint_eq(alive(GVMM_SIM_POOLED), 0);
    ck_cu(cu->cuMemAllocAsync(&pooled, G, NULL));
    ck_cu(cu->cuMemFreeAsync(pooled, NULL));
    ck_cu(cu->cuCtxSynchronize());
}
END_TEST

/* Captured unlooked at, as on a GPU; found when it runs. */
START_TEST(a_captured_memset_of_pageable_memory)
{
    static char bytes[64];
    CUstream s;
    CUgraph g;
    CUgraphExec x;
    ck_cu(cu->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    ck_cu(cu->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ck_cu(cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)bytes, 1, sizeof bytes, s));
    ck_cu(cu->cuStreamEndCapture(s, &g));
    ck_cu(cu->cuGraphInstantiateWithFlags(&x, g, 0));
    ck_cu(cu->cuGraphDestroy(g));
    ck_cu(cu->cuGraphLaunch(x, s));
    ck_cu_fails(cu->cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(bytes[0], 0);
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 1);
    gvmm_sim_findings_clear();
    ck_cu(cu->cuGraphExecDestroy(x));
    ck_cu_fails(cu->cuStreamDestroy(s), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(a_graph_that_is_to_be_its_own_child)
{
    CUgraph g;
    CUgraphNode node;
    ck_cu(cu->cuGraphCreate(&g, 0));
    ck_cu_fails(cu->cuGraphAddChildGraphNode(&node, g, NULL, 0, g), CUDA_ERROR_INVALID_VALUE);
    ck_finding("cuGraphAddChildGraphNode (call %llu): graph 0x%llx is to be its own child; a real driver crashes here",
               ULL(calls_made() - 2), ULL(g));
    ck_cu(cu->cuGraphDestroy(g));
}
END_TEST

START_TEST(a_mapping_past_the_end_of_its_reservation)
{
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    ck_cu(cu->cuMemAddressReserve(&address, G, 0, 0, 0));
    ck_cu(cu->cuMemCreate(&handle, 2 * G, &prop, 0));
    ck_cu(cu->cuMemMap(address, 2 * G, 0, handle, 0));
    ck_finding("cuMemMap (call %llu): the mapping at 0x%llx runs past the end of its reservation at 0x%llx",
               ULL(calls_made() - 2), ULL(address), ULL(address) + G);
    ck_cu(cu->cuMemUnmap(address, 2 * G));
    ck_cu(cu->cuMemRelease(handle));
    ck_cu(cu->cuMemAddressFree(address, G));
}
END_TEST

/* ---------------------------------------------------------------------------------------------
 * Keeping them
 * ------------------------------------------------------------------------------------------- */

/* What is written to standard error by `count` findings. */
static size_t written(bool quiet, int count, char *text, size_t size)
{
    int fd = memfd_create("stderr", 0), saved = dup(STDERR_FILENO);
    ck_assert(fd >= 0 && saved >= 0);
    dup2(fd, STDERR_FILENO);
    gvmm_sim_quiet(quiet);
    for (int i = 0; i < count; i++) cu->cuStreamQuery((CUstream)(uintptr_t)(0x100 + i));
    gvmm_sim_quiet(true);
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t n = pread(fd, text, size - 1, 0);
    close(fd);
    text[n < 0 ? 0 : n] = 0;
    return (size_t)n;
}

START_TEST(findings_are_written_unless_quiet)
{
    char text[2000];
    ck_assert_uint_eq(written(true, 2, text, sizeof text), 0);
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 2);
    written(false, 1, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "stream 0x100 is not a stream"));
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 3);
    gvmm_sim_findings_clear();
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
}
END_TEST

typedef struct order {
    int next;
    bool fine;
} order;

static void check_order(void *user, const char *text)
{
    order *o = user;
    char wanted[40];
    snprintf(wanted, sizeof wanted, "stream 0x%x is", 0x100 + o->next++);
    if (!strstr(text, wanted)) o->fine = false;
}

START_TEST(findings_are_kept_in_order_and_counted_beyond_the_limit)
{
    char text[100];
    order o = {0, true};
    written(true, 12000, text, sizeof text);
    ck_assert_uint_eq(gvmm_sim_findings(check_order, &o), 12000);
    ck_assert(o.fine);
    ck_assert_int_eq(o.next, 10000);
    gvmm_sim_findings_clear();
    gvmm_sim_findings_clear();
    written(true, 1, text, sizeof text);
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 1);
    gvmm_sim_findings_clear();
}
END_TEST

/* Correct work makes none, however late it is. */
START_TEST(work_that_is_done_before_the_unmapping_is_no_finding)
{
    begin();
    CUevent e;
    ck_cu(cu->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    ck_cu(cu->cuMemsetD8Async(b.address, 1, 2 * G, busy));
    ck_cu(cu->cuEventRecord(e, busy));
    gate_open(closed);
    ck_cu(cu->cuEventSynchronize(e));
    block_end(&b);
    gate_end(closed);
    ck_cu(cu->cuEventDestroy(e));
    ck_cu(cu->cuStreamDestroy(busy));
    ck_assert_uint_eq(gvmm_sim_findings(NULL, NULL), 0);
}
END_TEST

int main(void)
{
    unsetenv("GVMM_SIM");
    Suite *suite = suite_create("findings");
    TCase *memory = add_machine_case(suite, "memory");
    tcase_add_test(memory, memset_over_memory_that_was_unmapped);
    tcase_add_test(memory, copy_from_memory_that_was_unmapped);
    tcase_add_test(memory, copy_that_reaches_an_unmapped_neighbour);
    tcase_add_test(memory, memset_without_access_when_it_runs);
    tcase_add_test(memory, copy_without_access_when_it_runs);
    tcase_add_test(memory, graph_over_memory_that_was_unmapped);
    tcase_add_test(memory, memory_that_was_given_back_to_its_pool);
    tcase_add_test(memory, memory_that_was_freed);
    tcase_add_test(memory, the_latest_unmapping_is_named);
    tcase_add_test(memory, default_streams_have_their_numbers);
    tcase_add_test(memory, host_memory_that_is_not_there);
    tcase_add_test(memory, work_that_is_done_before_the_unmapping_is_no_finding);
    tcase_add_test(memory, a_reset_makes_no_success_of_work_that_failed);
    TCase *handles = add_machine_case(suite, "handles");
    tcase_add_test(handles, destroyed_streams);
    tcase_add_test(handles, destroyed_events);
    tcase_add_test(handles, destroyed_executables);
    tcase_add_test(handles, memory_released_twice);
    tcase_add_test(handles, memory_freed_twice);
    tcase_add_test(handles, more_references_given_away_than_one_has);
    tcase_add_test(handles, a_user_object_that_is_lost_does_not_keep_the_machine);
    tcase_add_test(handles, memory_that_an_error_keeps_does_not_keep_the_machine);
    tcase_add_test(handles, a_captured_memset_of_pageable_memory);
    tcase_add_test(handles, a_graph_that_is_to_be_its_own_child);
    tcase_add_test(handles, a_mapping_past_the_end_of_its_reservation);
    TCase *keeping = add_machine_case(suite, "keeping");
    tcase_add_test(keeping, findings_are_written_unless_quiet);
    tcase_add_test(keeping, findings_are_kept_in_order_and_counted_beyond_the_limit);
    return run_suites(suite, NULL);
}

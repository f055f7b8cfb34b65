/* P: two devices. */
#include "conformance.h"

static CUmemAccessDesc access_of(int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {location(CU_MEM_LOCATION_TYPE_DEVICE, device), flags};
    return access;
}

#define READ_WRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static CUdeviceptr mapped_on(int device, size_t size)
{
    CUdeviceptr p = reserve(size);
    map(p, size, create_on(device, size));
    return p;
}

static void say_access(CUdeviceptr p, int device)
{
    unsigned long long flags = 9;
    CUmemLocation l = location(CU_MEM_LOCATION_TYPE_DEVICE, device);
    TELL("get", cuMemGetAccess(&flags, &l, p));
    say("%llu", flags);
}

static CUdeviceptr open_to_both(size_t size)
{
    CUdeviceptr p = mapped_on(0, size);
    CUmemAccessDesc both[2] = {access_of(0, READ_WRITE), access_of(1, READ_WRITE)};
    DO(cuMemSetAccess(p, size, both, 2));
    return p;
}

FACT(P_can_access, "Device 0 can access device 1; itself; one that is not there.")
{
    int can = 9;
    needs_two_devices();
    TELL("", cuDeviceCanAccessPeer(&can, 0, 1));
    say("%d", can);
    TELL("itself", cuDeviceCanAccessPeer(&can, 0, 0));
    say("%d", can);
    TELL("missing", cuDeviceCanAccessPeer(&can, 0, 99));
}
FACT(P_set_both, "Setting access for both devices, with no peer access enabled and no context on the other.")
{
    needs_two_devices();
    CUmemAccessDesc both[2] = {access_of(0, READ_WRITE), access_of(1, READ_WRITE)};
    TELL("", cuMemSetAccess(mapped_on(0, 2 * G), 2 * G, both, 2));
}
FACT(P_regrant, "Granting device 0 again does not take device 1's access.")
{
    needs_two_devices();
    CUdeviceptr p = open_to_both(2 * G);
    TELL("", cuMemSetAccess(p, 2 * G, &read_write, 1));
    say_access(p, 1);
}
FACT(P_never_granted, "The access of a device that was never granted any.")
{
    needs_two_devices();
    say_access(buffer(2 * G), 1);
}
FACT(P_revoke, "Taking device 1's access alone.")
{
    needs_two_devices();
    CUdeviceptr p = open_to_both(2 * G);
    CUmemAccessDesc none = access_of(1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    TELL("", cuMemSetAccess(p, 2 * G, &none, 1));
    say_access(p, 0);
    say_access(p, 1);
    DO(cuCtxSetCurrent(context_of(1)));
    TELL("memset", cuMemsetD8(p, 1, G));
}
FACT(P_peer_only, "Memory open to the other device alone.")
{
    needs_two_devices();
    CUdeviceptr p = mapped_on(0, 2 * G);
    CUmemAccessDesc other = access_of(1, READ_WRITE);
    TELL("", cuMemSetAccess(p, 2 * G, &other, 1));
    TELL("own", cuMemsetD8(p, 1, G));
    DO(cuCtxSetCurrent(context_of(1)));
    TELL("other", cuMemsetD8(p, 1, G));
}
FACT(P_memset_from_peer, "A memset in device 1's context of device 0's memory.")
{
    needs_two_devices();
    CUdeviceptr p = open_to_both(2 * G);
    DO(cuCtxSetCurrent(context_of(1)));
    TELL("", cuMemsetD8(p, 5, 2 * G));
    say("byte=%d", byte_at(p));
}
FACT(P_memset_not_granted, "A memset in device 1's context of memory that it was not granted.")
{
    needs_two_devices();
    CUdeviceptr p = buffer(2 * G);
    DO(cuCtxSetCurrent(context_of(1)));
    TELL("", cuMemsetD8(p, 5, 2 * G));
}
FACT(P_copy_not_granted, "A copy to the host in device 1's context from memory that it was not granted.")
{
    needs_two_devices();
    unsigned char byte = 0;
    CUdeviceptr p = buffer(2 * G);
    DO(cuCtxSetCurrent(context_of(1)));
    TELL("", cuMemcpyDtoH(&byte, p, 1));
}
FACT(P_stripe, "Chunks of two devices in one range: one call sets access, one memset crosses, one copy crosses.")
{
    needs_two_devices();
    CUdeviceptr p = reserve(2 * G);
    CUmemAccessDesc both[2] = {access_of(0, READ_WRITE), access_of(1, READ_WRITE)};
    map(p, G, create_on(0, G));
    map(p + G, G, create_on(1, G));
    TELL("access", cuMemSetAccess(p, 2 * G, both, 2));
    TELL("memset", cuMemsetD8(p, 9, 2 * G));
    TELL("copy", cuMemcpyDtoD(p, p + G, G));
}
FACT(P_device_99, "Setting access for a device that is not there.")
{
    needs_two_devices();
    CUmemAccessDesc bad = access_of(99, READ_WRITE);
    TELL("", cuMemSetAccess(mapped_on(0, G), G, &bad, 1));
}
FACT(P_ordinal, "The device ordinal of memory is its own device's, whoever asks.")
{
    needs_two_devices();
    int ordinal = 9;
    CUdeviceptr p = mapped_on(1, G);
    TELL("", cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    say("%d", ordinal);
}
FACT(P_info, "Memory of device 1 does not count for device 0.")
{
    needs_two_devices();
    size_t before = free_bytes();
    create_on(1, 32 * G);
    say("own=%d", free_moved(before, 32 * G));
}
FACT(P_plain_not_enabled, "Plain memory of device 0 in device 1's context, without peer access.")
{
    needs_two_devices();
    CUdeviceptr p = plain(2 * G);
    DO(cuCtxSetCurrent(context_of(1)));
    TELL("memset", cuMemsetD8(p, 5, G));
    TELL("copy", cuMemcpyDtoD(p + G, p, G));
}
FACT(P_enable, "Enabling peer access, twice; disabling it, twice; enabling it for oneself.")
{
    needs_two_devices();
    CUcontext other = context_of(1);
    TELL("enable", cuCtxEnablePeerAccess(other, 0));
    TELL("again", cuCtxEnablePeerAccess(other, 0));
    TELL("disable", cuCtxDisablePeerAccess(other));
    TELL("again", cuCtxDisablePeerAccess(other));
    TELL("itself", cuCtxEnablePeerAccess(ctx, 0));
}
FACT(P_enabled_plain, "Plain memory of device 1 in device 0's context, with peer access enabled.")
{
    needs_two_devices();
    CUcontext other = context_of(1);
    DO(cuCtxSetCurrent(other));
    CUdeviceptr p = 0;
    DO(cuMemAlloc(&p, 2 * G));
    DO(cuCtxSetCurrent(ctx));
    DO(cuCtxEnablePeerAccess(other, 0));
    TELL("memset", cuMemsetD8(p, 5, G));
    TELL("synchronize", cuCtxSynchronize());
    DO(cuCtxDisablePeerAccess(other));
    TELL("free", cuMemFree(p));
}
FACT(P_enabled_mapped, "Peer access enabled between contexts does not open mapped memory.")
{
    needs_two_devices();
    CUdeviceptr p = buffer(2 * G);
    DO(cuCtxSetCurrent(context_of(1)));
    DO(cuCtxEnablePeerAccess(ctx, 0));
    CUresult r = drv->cuMemsetD8(p, 5, G);
    DO(cuCtxDisablePeerAccess(ctx));
    tell("", r);
}
FACT(P_copy_peer, "cuMemcpyPeer between mapped memory of two devices, each open to its own.")
{
    needs_two_devices();
    CUdeviceptr p = buffer(2 * G), q = mapped_on(1, 2 * G);
    CUmemAccessDesc own = access_of(1, READ_WRITE);
    DO(cuMemSetAccess(q, 2 * G, &own, 1));
    DO(cuMemsetD8(p, 66, 2 * G));
    TELL("", cuMemcpyPeer(q, context_of(1), p, ctx, 2 * G));
    DO(cuCtxSynchronize());
    DO(cuCtxSetCurrent(context_of(1)));
    say("byte=%d", byte_at(q + G));
}
FACT(P_copy_across, "cuMemcpyDtoD between mapped memory of two devices, each open to its own only.")
{
    needs_two_devices();
    CUdeviceptr p = buffer(2 * G), q = mapped_on(1, 2 * G);
    CUmemAccessDesc own = access_of(1, READ_WRITE);
    DO(cuMemSetAccess(q, 2 * G, &own, 1));
    TELL("", cuMemcpyDtoD(q, p, 2 * G));
    TELL("synchronize", cuCtxSynchronize());
}
FACT(P_event_across, "A stream of device 1 waits for an event of device 0.")
{
    needs_two_devices();
    CUstream s = stream(), t = NULL;
    CUevent e = event();
    gate *g = gate_on(s);
    DO(cuEventRecord(e, s));
    DO(cuCtxSetCurrent(context_of(1)));
    DO(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    TELL("wait", cuStreamWaitEvent(t, e, 0));
    TELL("query", cuStreamQuery(t));
    gate_open(g);
    TELL("synchronize", cuStreamSynchronize(t));
    DO(cuStreamDestroy(t));
}
FACT(P_event_wrong_stream, "An event of device 0 recorded on a stream of device 1.")
{
    needs_two_devices();
    CUstream t = NULL;
    CUevent e = event();
    DO(cuCtxSetCurrent(context_of(1)));
    DO(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    TELL("", cuEventRecord(e, t));
    DO(cuStreamDestroy(t));
}
FACT(P_stream_wrong_context, "A memset of device 0's memory on a stream of device 0, in device 1's context.")
{
    needs_two_devices();
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G);
    DO(cuCtxSetCurrent(context_of(1)));
    TELL("", cuMemsetD8Async(p, 1, G, s));
    TELL("synchronize", cuStreamSynchronize(s));
}
FACT(P_capture_other_device, "A capture on device 0 in global mode; a forbidden call about a stream of device 1.")
{
    needs_two_devices();
    CUstream s = stream(), t = NULL;
    DO(cuCtxSetCurrent(context_of(1)));
    DO(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    DO(cuCtxSetCurrent(ctx));
    begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuCtxSetCurrent(context_of(1)));
    TELL("", cuStreamSynchronize(t));
    DO(cuCtxSetCurrent(ctx));
    end(s);
    DO(cuStreamDestroy(t));
}
FACT(P_pool_access, "A pool of device 0 opened to device 1.")
{
    needs_two_devices();
    CUmemoryPool pool = NULL;
    CUmemAccessDesc other = access_of(1, READ_WRITE);
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemPoolProps props;
    memset(&props, 0, sizeof props);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = location(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    DO(cuMemPoolCreate(&pool, &props));
    TELL("before", cuMemPoolGetAccess(&flags, pool, &other.location));
    say("%d", (int)flags);
    TELL("set", cuMemPoolSetAccess(pool, &other, 1));
    TELL("after", cuMemPoolGetAccess(&flags, pool, &other.location));
    say("%d", (int)flags);
    DO(cuMemPoolDestroy(pool));
}
FACT_ALONE(P_sticky_elsewhere, "An error that sticks to device 0's context leaves device 1's alone.")
{
    needs_two_devices();
    CUstream s = stream();
    CUdeviceptr p = buffer(2 * G);
    gate *g = gate_on(s);
    DO(cuMemsetD8Async(p, 1, 2 * G, s));
    DO(cuMemUnmap(p, 2 * G));
    gate_open(g);
    TELL("own", cuStreamSynchronize(s));
    CUcontext other = NULL;
    TELL("retain", cuDevicePrimaryCtxRetain(&other, 1));
    TELL("current", cuCtxSetCurrent(other));
    TELL("other", cuCtxSynchronize());
}

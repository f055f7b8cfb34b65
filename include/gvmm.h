/* gvmm: GPU virtual memory, managed.
 *
 * Device buffers that grow without copying, share their memory, and are released in the right order.
 * Needs no CUDA header: a gvmm_stream is a CUstream and a cudaStream_t, a gvmm_graph a CUgraph and a
 * cudaGraph_t. Sizes and offsets are bytes; device addresses are uint64_t.
 *
 * To begin with: gvmm_resource_create (no options needed), gvmm_buffer_create, gvmm_buffer_grow, gvmm_buffer_close,
 * gvmm_buffer_release. examples/ has programs; docs/lifetimes.md who holds what.
 *
 * Every function that can fail returns a gvmm_result and then writes its `out` parameters only on
 * GVMM_OK; a failed call has changed nothing. What is created has one reference, the caller's, and has one function
 * that gives it up. Unless its comment says otherwise, every function may be called from any thread, and while streams
 * capture, whose captures it leaves valid; none needs a current CUDA context, and all leave the current one as it was.
 *
 * The CUDA driver does not work in a child of fork. There every call that would need it, or a lock, fails with
 * GVMM_E_NO_DRIVER, figures are 0, and what gives something up (release, free, trim, drain) does nothing, at once: it is
 * the parent's. */
#ifndef GVMM_H
#define GVMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GVMM_API __attribute__((visibility("default")))
#else
#define GVMM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define GVMM_VERSION_MAJOR 0
#define GVMM_VERSION_MINOR 1
#define GVMM_VERSION_PATCH 0

/* Version of the library that is running, "0.1.0". Static. */
GVMM_API const char *gvmm_version(void);

typedef struct CUstream_st *gvmm_stream;
typedef struct CUgraph_st *gvmm_graph;

/* The device's legacy default stream, by its CUDA name. Where a stream may be given, NULL means "none given" and the
 * comment says what is taken instead. A per-thread default stream (the token 2) is taken for the legacy one, which
 * waits for it. */
#define GVMM_STREAM_LEGACY ((gvmm_stream)0x1)

/* ---------------------------------------------------------------------------------------------
 * Errors: by what the caller can do about them.
 * ------------------------------------------------------------------------------------------- */

#define GVMM_RESULTS(X) \
    X(OK, 0, "success") \
    X(E_INVALID, 1, "an argument or option is wrong; the message names it") \
    X(E_CLOSED, 2, "the buffer has been closed") \
    X(E_NO_DEVICE_MEMORY, 3, "the device has no memory left") \
    X(E_NO_HOST_MEMORY, 4, "the host has no memory left") \
    X(E_NO_ADDRESS_SPACE, 5, "no range of device addresses is free for this size") \
    X(E_CAPTURING, 6, "the stream is capturing: try again after the capture has ended") \
    X(E_UNSUPPORTED, 7, "this device or driver cannot do it") \
    X(E_NO_DRIVER, 8, "no usable CUDA driver was found; the message says what was tried") \
    X(E_NOT_PERMITTED, 9, "the driver forbids it here: a host function, or missing rights") \
    X(E_PEER_GONE, 10, "another process that is needed has gone") \
    X(E_DRIVER, 11, "any other driver error; see the CUDA status")

typedef enum gvmm_result {
#define GVMM_X(name, value, text) GVMM_##name = value,
    GVMM_RESULTS(GVMM_X)
#undef GVMM_X
} gvmm_result;

/* Functions say what they return. Where that is GVMM_E_DRIVER, it is GVMM_E_UNSUPPORTED or GVMM_E_NOT_PERMITTED if the
 * driver's answer is. */

/* Name of a result, "GVMM_E_CLOSED", and one sentence about it. Static; never NULL. */
GVMM_API const char *gvmm_result_name(gvmm_result result);
GVMM_API const char *gvmm_result_text(gvmm_result result);

typedef struct gvmm_error {
    gvmm_result result;
    int status;         /* CUresult of the driver call that failed, or 0 */
    const char *call;   /* its name, "cuMemCreate", or NULL if no driver call failed */
    const char *object; /* what it was about, "memory", or NULL */
    const char *text;   /* one line for people */
} gvmm_error;

/* Describes the last failure on the calling thread; GVMM_OK and empty texts if there was none. A successful call does
 * not clear it.
 *
 * Owns     the texts are the thread's, until its next failure. Allocates nothing. */
GVMM_API void gvmm_last_error(gvmm_error *out);

/* What could not be reported by a return value: a driver call that failed while something was given back, or a wait
 * that was left out because it would have destroyed a capture. `error->result` is GVMM_E_CAPTURING for the latter.
 * `error` and its texts are good until the function returns. */
typedef void (*gvmm_warning_fn)(void *user, const gvmm_error *error);

/* Sets who is told of warnings, in place of a line on standard error; NULL restores that.
 *
 * Owns     `user` must stay valid until another function is set and no call is in progress.
 * Threads  `fn` runs on whatever thread releases something, one of gvmm's own too, with no lock held; it must not throw
 *          or jump. It may call gvmm, but must not evict or restore while that is under way, which may be waiting for it: on
 *          the thread that does so, and on gvmm's own, it is GVMM_E_INVALID then. */
GVMM_API void gvmm_set_warning_handler(gvmm_warning_fn fn, void *user);

/* ---------------------------------------------------------------------------------------------
 * Options: where memory lies and who may touch it. The values are the driver's.
 * ------------------------------------------------------------------------------------------- */

typedef enum gvmm_allocation_type {
    GVMM_ALLOCATION_PINNED = 1,
    GVMM_ALLOCATION_MANAGED = 2 /* refused by today's drivers: GVMM_E_UNSUPPORTED */
} gvmm_allocation_type;

typedef enum gvmm_location_type {
    GVMM_LOCATION_DEVICE = 1,
    GVMM_LOCATION_HOST = 2,             /* needs GVMM_HANDLE_NONE */
    GVMM_LOCATION_HOST_NUMA = 3,        /* of the node `numa_node` */
    GVMM_LOCATION_HOST_NUMA_CURRENT = 4 /* of the node that the creating thread runs on */
} gvmm_location_type;

typedef enum gvmm_handle_type {
    GVMM_HANDLE_NONE = 0,
    GVMM_HANDLE_POSIX_FD = 1,
    GVMM_HANDLE_WIN32 = 2, /* GVMM_E_UNSUPPORTED: needs security attributes */
    GVMM_HANDLE_WIN32_KMT = 4,
    GVMM_HANDLE_FABRIC = 8
} gvmm_handle_type;

typedef enum gvmm_granularity { GVMM_GRANULARITY_MINIMUM = 0, GVMM_GRANULARITY_RECOMMENDED = 1 } gvmm_granularity;

typedef enum gvmm_access { GVMM_ACCESS_NONE = 0, GVMM_ACCESS_READ = 1, GVMM_ACCESS_READ_WRITE = 3 } gvmm_access;

/* What the last gvmm_buffer_release of an open buffer does. */
typedef enum gvmm_release_mode {
    GVMM_RELEASE_SYNC = 0,    /* waits for the recorded stream, as gvmm_buffer_close */
    GVMM_RELEASE_DEFERRED = 1 /* as gvmm_buffer_close_deferred: never waits, never warns of captures. The default */
} gvmm_release_mode;

typedef struct gvmm_options {
    size_t struct_size; /* sizeof(gvmm_options); set by GVMM_OPTIONS_INIT */
    gvmm_allocation_type allocation_type;
    gvmm_location_type location;
    int numa_node; /* for GVMM_LOCATION_HOST_NUMA */
    gvmm_handle_type handle_type;
    gvmm_granularity granularity;
    bool gpu_direct_rdma;
    uint64_t addr_hint;  /* wished address of a new buffer, or 0. A hint: another address may come */
    uint64_t addr_align; /* alignment of new addresses, a power of two; 0: the granularity */
    const int *peers;    /* ordinals of further devices that may touch the memory; copied */
    size_t peer_count;
    gvmm_access self_access; /* of the memory's own location */
    gvmm_access peer_access; /* of every peer */
    uint64_t capacity;       /* address space to reserve for a new buffer, bytes: see gvmm_buffer_create */
    size_t chunk_size;       /* bytes of a chunk of memory, rounded up; 0: one chunk for each create and grow */
    const int *stripe;       /* ordinals of devices that take the chunks in turn; needs a chunk_size. Copied */
    size_t stripe_count;
    size_t ahead_count; /* chunks of chunk_size that a thread of gvmm makes ahead of need */
    int tag;            /* for gvmm_resource_evict; any number but GVMM_TAG_ANY, which would mean every tag */
    gvmm_release_mode release_mode;
    unsigned optional;    /* GVMM_OPTIONAL_ bits: what is left out, in place of an error, where it cannot be had */
    uint64_t reuse_limit; /* bytes of closed buffers to keep for gvmm_buffer_create; 0: none. See there */
    bool streams_outlive; /* a promise: streams that buffers record are not destroyed before the resource is released,
                             and do not capture. Without a reuse_limit of no effect, as is the next */
    bool zero_reused;     /* buffers made of kept memory are zero, too. Device memory only */
} gvmm_options;

/* What can be asked for "if available". A bit says nothing about what is not asked for. Where the device's word is not
 * enough, a chunk of memory is made to see; gvmm_resource_options tells what was got. */
typedef enum gvmm_optional {
    GVMM_OPTIONAL_RDMA = 1,   /* gpu_direct_rdma: false then */
    GVMM_OPTIONAL_FABRIC = 2, /* GVMM_HANDLE_FABRIC: GVMM_HANDLE_POSIX_FD then */
    GVMM_OPTIONAL_HANDLE = 4, /* any handle_type: GVMM_HANDLE_NONE then; also for GVMM_LOCATION_HOST */
    GVMM_OPTIONAL_PEERS = 8   /* peers: without those that are not there or cannot reach the memory */
} gvmm_optional;

/* As much address space as the location has memory. */
#define GVMM_CAPACITY_ALL UINT64_MAX

#define GVMM_OPTIONS_INIT \
    { \
        sizeof(gvmm_options), GVMM_ALLOCATION_PINNED, GVMM_LOCATION_DEVICE, 0, GVMM_HANDLE_POSIX_FD, \
            GVMM_GRANULARITY_RECOMMENDED, false, 0, 0, NULL, 0, GVMM_ACCESS_READ_WRITE, GVMM_ACCESS_READ_WRITE, 0, 0, \
            NULL, 0, 0, 0, GVMM_RELEASE_DEFERRED, 0, 0, false, false \
    }

/* ---------------------------------------------------------------------------------------------
 * Resource: a device, or the host, and the options of the memory that is made there.
 * ------------------------------------------------------------------------------------------- */

typedef struct gvmm_resource gvmm_resource;
typedef struct gvmm_buffer gvmm_buffer;

/* Makes a resource. Finds and starts the driver on first use, and holds the device's primary context (which CUDA makes
 * for the purpose if it is not there) as long as the resource or a buffer of it lives; host locations hold none.
 *
 * device   ordinal. For host locations only asked whether such memory is supported.
 * options  NULL: GVMM_OPTIONS_INIT. Copied.
 * Returns  GVMM_E_INVALID      no such device, or an option is wrong or contradicts another; the message names it
 *          GVMM_E_UNSUPPORTED  the device lacks what an option asks for
 *          GVMM_E_NO_DEVICE_MEMORY  no room for the chunk that an optional one is tried with
 *          GVMM_E_NO_DRIVER, GVMM_E_NO_HOST_MEMORY, GVMM_E_DRIVER
 * Owns     one reference to *out.
 * Capture  allowed. */
GVMM_API gvmm_result gvmm_resource_create(gvmm_resource **out, int device, const gvmm_options *options);

/* One reference more, one less. Buffers hold their resource: giving it up while they live is harmless. Both take NULL.
 * The last release gives up what the resource keeps for reuse; who retains it after that, by one of its buffers, finds
 * that it keeps nothing any more. */
GVMM_API gvmm_resource *gvmm_resource_retain(gvmm_resource *resource);
GVMM_API void gvmm_resource_release(gvmm_resource *resource);

/* Gives back kept memory (see gvmm_buffer_create), the oldest first, until no more than `keep` bytes are kept. It goes
 * when the work before it is done; gvmm_drain waits for that. Returns the bytes given up; 0 for NULL.
 *
 * Capture  harms none. */
GVMM_API size_t gvmm_resource_trim(gvmm_resource *resource, size_t keep);

/* Another reuse_limit from now on, bytes; what is kept above it goes as by gvmm_resource_trim. 0 keeps nothing. The
 * resource's options tell the first one.
 *
 * Returns  GVMM_E_INVALID: NULL, or the resource was made without a reuse_limit
 * Capture  harms none. */
GVMM_API gvmm_result gvmm_resource_set_reuse_limit(gvmm_resource *resource, uint64_t limit);

/* The device's ordinal, or -1 for host locations. */
GVMM_API int gvmm_resource_device(const gvmm_resource *resource);

/* What every size is rounded up to, bytes. */
GVMM_API size_t gvmm_resource_granularity(const gvmm_resource *resource);

/* The options in force: with the node that GVMM_LOCATION_HOST_NUMA_CURRENT was resolved to, what was got of the
 * optional ones, and `peers` and `stripe` pointing into the resource. */
GVMM_API void gvmm_resource_options(const gvmm_resource *resource, gvmm_options *out);

/* Can the device, can the CPU touch the memory? */
GVMM_API bool gvmm_resource_is_device_accessible(const gvmm_resource *resource);
GVMM_API bool gvmm_resource_is_host_accessible(const gvmm_resource *resource);

/* ---------------------------------------------------------------------------------------------
 * Buffer: a contiguous range of device addresses backed by physical memory that may be shared.
 *
 * Growing never changes the buffer it is given: the result is a second view of the same memory,
 * longer by one chunk. Memory goes back to the driver when the last view of it is gone.
 *
 * A buffer records one stream, whose work is waited for before the buffer's memory is given up. The stream must
 * outlive the buffer, or be replaced in it: the driver crashes when a destroyed stream is waited for. Work on other
 * streams is for the caller to order.
 * ------------------------------------------------------------------------------------------- */

/* Makes a buffer of `size` bytes, rounded up to the granularity. Its bytes are zero, unless it is made of kept memory
 * (see below). Size 0 gives an empty buffer, with address 0, and calls no driver. If the resource has a capacity, so
 * much address space is reserved with it, and the buffer and what is grown from it stay where they are until it is used
 * up; a capacity that the driver refuses is halved until it agrees, down to what is needed.
 *
 * With a reuse_limit the resource keeps the memory of buffers that end without waiting (gvmm_buffer_close_deferred, and
 * gvmm_buffer_release with GVMM_RELEASE_DEFERRED) and that nothing else shares, and hands it out again for the same
 * size, without calling the driver for it: to the stream that the memory was used on at once, to another stream after
 * making that wait for the work before. It has the bytes that were left in it, unless zero_reused is set. No stream
 * that is capturing is given kept memory. The oldest goes when the limit is reached; all of it, when memory is short,
 * before a gvmm_resource_evict, with the resource's last gvmm_resource_release, or by gvmm_resource_trim.
 *
 * stream   recorded stream. NULL: the device's legacy default stream; for host locations none. With a reuse_limit it
 *          must not begin to capture in another thread during the call.
 * Returns  GVMM_E_INVALID      resource or out is NULL, or the size does not fit 64 bits when rounded up
 *          GVMM_E_NO_DEVICE_MEMORY, GVMM_E_NO_HOST_MEMORY, GVMM_E_NO_ADDRESS_SPACE, GVMM_E_UNSUPPORTED,
 *          GVMM_E_NOT_PERMITTED, GVMM_E_DRIVER
 * Owns     one reference to *out; *out holds the resource.
 * Capture  allowed; waits for nothing, unless there is no memory left and some is on its way back: then for that. */
GVMM_API gvmm_result gvmm_buffer_create(gvmm_buffer **out, gvmm_resource *resource, size_t size, gvmm_stream stream);

/* The same with a capacity of its own, bytes, in place of the resource's; GVMM_CAPACITY_ALL is not allowed here. */
GVMM_API gvmm_result gvmm_buffer_create_with_capacity(gvmm_buffer **out, gvmm_resource *resource, size_t size,
                                                      uint64_t capacity, gvmm_stream stream);

/* How large the buffer can grow where it is, bytes, as far as its own reservation goes: what was got of the capacity.
 * Buffers that share a beginning compete for the space behind it: once one has grown there, the others have their size
 * and no more, until it is closed. */
GVMM_API uint64_t gvmm_buffer_capacity(const gvmm_buffer *buffer);

/* Makes a buffer that shows `buffer`'s memory followed by at least `size - gvmm_buffer_size(buffer)` new bytes. No
 * bytes are copied. The address stays the same where the address space behind the buffer is free; otherwise every chunk
 * is mapped again at a new address, and both addresses work. The result records the same stream.
 *
 * size     wanted bytes in all; rounded up to the granularity. Not more than the buffer has: the result is a full alias
 *          (same address, same size), and `chunk` has no effect.
 * chunk    options for the new bytes alone, or NULL for the resource's own. Must name the same location. Not stored.
 * Returns  GVMM_E_INVALID      a NULL, a size that overflows, or an option that is wrong or contradicts the resource
 *          GVMM_E_CLOSED       the buffer was closed
 *          GVMM_E_NO_DEVICE_MEMORY, GVMM_E_NO_HOST_MEMORY, GVMM_E_NO_ADDRESS_SPACE, GVMM_E_UNSUPPORTED,
 *          GVMM_E_NOT_PERMITTED,
 *          GVMM_E_DRIVER       After any failure `buffer` is as it was and nothing else is left.
 * Owns     one reference to *out. `buffer` stays open and yours.
 * Threads  any, also on buffers that share memory, at the same time.
 * Capture  allowed; waits for nothing, unless there is no memory left and some is on its way back: then for that. */
GVMM_API gvmm_result gvmm_buffer_grow(gvmm_buffer **out, gvmm_buffer *buffer, size_t size, const gvmm_options *chunk);

/* Waits for the stream, then gives up the buffer's share of its memory; address and size become 0. Closing a closed
 * buffer does nothing. Memory that other buffers or graphs still hold stays where it is.
 *
 * stream   waited for, and recorded, in place of the recorded stream; NULL: the recorded one.
 * Returns  GVMM_E_CAPTURING    the stream is capturing: the buffer stays open, its recorded stream unchanged
 *          GVMM_E_INVALID      buffer is NULL
 *          Else the memory is given up in every case, even if the wait fails; that and failures of giving back are
 *          warnings.
 * Threads  any, but not in a host function, where the driver can neither wait nor give back. Closing a buffer while another
 *          thread grows it is a mistake, but only defers the release.
 * Capture  harms none: it waits in relaxed capture mode. Where waiting for a default stream would end a capture that a
 *          blocking stream of the device has in progress, it gives up the memory without the wait, with one warning. */
GVMM_API gvmm_result gvmm_buffer_close(gvmm_buffer *buffer, gvmm_stream stream);

/* The same without waiting, in place of which gvmm remembers how far the stream is: the memory goes back when that work
 * is done, on a thread of gvmm. The call returns at once, and waits only where the driver gives no event; after it the
 * stream may be destroyed, unless it was capturing: then the memory goes when its graph is gone and this thread, or
 * gvmm_drain, has been here again. The stream's context has the event by which the end of the work is known: it must not be
 * destroyed or reset before the memory has gone back (gvmm_drain), with a reuse_limit after gvmm_resource_trim.
 *
 * stream   as in gvmm_buffer_close.
 * Returns  GVMM_E_INVALID      buffer is NULL
 *          A wrapped buffer is closed as by gvmm_buffer_close, with its waiting and its refusal.
 * Owns     memory that has not gone back counts as used; gvmm_drain waits for it, and an allocation that finds none
 *          waits for it once.
 * Threads  any. In a host function, where the driver answers no question, it is left to gvmm_drain in another thread, and
 *          the stream must live until then.
 * Capture  harms none, and does not refuse. While the stream is capturing, the graph that it captures into holds the
 *          memory, as by gvmm_buffer_retain_in_capture, and the stream must live until that graph and all of its
 *          launches are gone and the memory has gone back. While waiting for the default stream would end a capture,
 *          the memory is held until that capture is over. */
GVMM_API gvmm_result gvmm_buffer_close_deferred(gvmm_buffer *buffer, gvmm_stream stream);

/* One reference more. Takes NULL. */
GVMM_API gvmm_buffer *gvmm_buffer_retain(gvmm_buffer *buffer);

/* One reference less. The last one closes an open buffer as gvmm_buffer_close_deferred does, neither waiting nor
 * warning. With GVMM_RELEASE_SYNC it waits, as gvmm_buffer_close does; if the recorded stream is capturing it does not
 * wait, and warns once. Never fails. Takes NULL. */
GVMM_API void gvmm_buffer_release(gvmm_buffer *buffer);

/* 0 when empty or closed. NULL is as a closed buffer, here and below. */
GVMM_API uint64_t gvmm_buffer_address(const gvmm_buffer *buffer);
GVMM_API size_t gvmm_buffer_size(const gvmm_buffer *buffer);
GVMM_API bool gvmm_buffer_is_closed(const gvmm_buffer *buffer);

/* The resource, which the buffer holds as long as it lives, closed or not. Borrowed. */
GVMM_API gvmm_resource *gvmm_buffer_resource(const gvmm_buffer *buffer);

/* The recorded stream: NULL if none (host locations), GVMM_STREAM_LEGACY for the default stream. */
GVMM_API gvmm_stream gvmm_buffer_stream(const gvmm_buffer *buffer);

/* Replaces the recorded stream.
 *
 * Returns  GVMM_E_INVALID      stream is NULL
 *          GVMM_E_CLOSED */
GVMM_API gvmm_result gvmm_buffer_set_stream(gvmm_buffer *buffer, gvmm_stream stream);

/* ---------------------------------------------------------------------------------------------
 * Segments: a buffer's physical pieces. The driver's address-range queries see one of them only, so libraries that
 * register memory (NCCL, UCX, RDMA) need all.
 * ------------------------------------------------------------------------------------------- */

typedef struct gvmm_segment {
    uint64_t address;
    size_t size;
    uint64_t memory; /* identity of the physical memory: equal in two segments if and only if they show the same; but
                        what is imported twice is two (gvmm_buffer_identities tells that they are one) */
    int device;      /* ordinal of the device that has it, or -1 for host memory */
} gvmm_segment;

/* Writes the first `capacity` segments, in address order, and the number of all of them. `segments` may be NULL if
 * `capacity` is 0.
 *
 * Returns  GVMM_E_INVALID, GVMM_E_CLOSED */
GVMM_API gvmm_result gvmm_buffer_segments(const gvmm_buffer *buffer, gvmm_segment *segments, size_t capacity,
                                          size_t *count);

/* ---------------------------------------------------------------------------------------------
 * Other views of the same memory: shorter, put together otherwise, with less access. Nothing is copied.
 * ------------------------------------------------------------------------------------------- */

/* Makes a buffer that shows the beginning of `buffer`: `size` bytes and on to the next border of a chunk, or all, at
 * the same address. Memory behind it goes back when nobody else holds it. Size 0 gives an empty buffer. Records the
 * same stream.
 *
 * Returns  GVMM_E_INVALID, GVMM_E_CLOSED, GVMM_E_NO_HOST_MEMORY
 * Owns     one reference to *out. `buffer` stays open.
 * Capture  allowed; makes no driver call. */
GVMM_API gvmm_result gvmm_buffer_shrink(gvmm_buffer **out, gvmm_buffer *buffer, size_t size);

typedef struct gvmm_piece {
    gvmm_buffer *buffer;
    size_t offset, size; /* bytes; both at borders of the buffer's chunks. Size 0: all from offset on */
    bool read_only;      /* nobody writes through this view, whoever may write elsewhere, unless granted to it later */
} gvmm_piece;

/* Makes a buffer, at an address of its own, that shows the pieces one behind the other. A buffer may be there several
 * times. Each chunk keeps its readers. The result can grow, and holds the memory as the pieces' buffers do.
 *
 * resource  whose options hold for the new address and for growing.
 * stream    recorded stream, as in gvmm_buffer_create.
 * Returns   GVMM_E_INVALID     a NULL, or a piece that does not lie at borders of chunks; the message says which
 *           GVMM_E_CLOSED, GVMM_E_NO_HOST_MEMORY, GVMM_E_NO_ADDRESS_SPACE, GVMM_E_NO_DEVICE_MEMORY, GVMM_E_DRIVER
 * Owns      one reference to *out. The pieces stay open.
 * Capture   allowed; waits for nothing. */
GVMM_API gvmm_result gvmm_buffer_compose(gvmm_buffer **out, gvmm_resource *resource, const gvmm_piece *pieces,
                                         size_t count, gvmm_stream stream);

/* A ring: the whole buffer `times` (1 to 1024) in a row, so that what is written past its end is found at its
 * beginning. Else as gvmm_buffer_compose, with the buffer's resource and stream. */
GVMM_API gvmm_result gvmm_buffer_ring(gvmm_buffer **out, gvmm_buffer *buffer, unsigned times);

/* ---------------------------------------------------------------------------------------------
 * Access. It belongs to the memory, so it holds at every address where the memory is mapped, now and later. A read-only
 * view has readers of its own: those that the memory had when it was made, without writing. What is granted or revoked
 * later holds for the memory or for the view, not for both.
 * ------------------------------------------------------------------------------------------- */

/* Grants (or with GVMM_ACCESS_NONE revokes) a device's access to the memory that the buffer shows; of a read-only view,
 * to the view alone. Work that is under way is the caller's to wait for.
 *
 * device   ordinal, or -1 for the CPU (which can be granted host memory only).
 * Returns  GVMM_E_INVALID      a NULL, no such device, or a value that is not allowed
 *          GVMM_E_UNSUPPORTED  the device cannot reach the memory
 *          GVMM_E_CLOSED, GVMM_E_NO_HOST_MEMORY, GVMM_E_NO_DEVICE_MEMORY, GVMM_E_DRIVER
 *          After a failure the access is everywhere as it was.
 * Capture  allowed. */
GVMM_API gvmm_result gvmm_buffer_set_access(gvmm_buffer *buffer, int device, gvmm_access access);

/* The least access that the device (-1: the CPU) has to any byte of the buffer. Asks no driver.
 *
 * Returns  GVMM_E_INVALID, GVMM_E_CLOSED */
GVMM_API gvmm_result gvmm_buffer_get_access(const gvmm_buffer *buffer, int device, gvmm_access *out);

/* ---------------------------------------------------------------------------------------------
 * Evict and restore: physical memory given back, addresses kept (sleep and wake).
 *
 * All views of the memory are concerned, and graphs that use it work again after the restore. In between, touching it
 * is an error as for unmapped memory. Registrations of the memory elsewhere (NCCL, RDMA) point at the old pages: the
 * handler tells when to renew them, the generation whether it is needed.
 * ------------------------------------------------------------------------------------------- */

typedef enum gvmm_contents {
    GVMM_CONTENTS_DROP = 0, /* undefined after the restore */
    GVMM_CONTENTS_ZERO = 1, /* zero after the restore */
    GVMM_CONTENTS_HOST = 2, /* kept in pinned host memory, given up when the last chunk of the evict is back or gone */
    GVMM_CONTENTS_FILE = 3  /* kept in a file without a name in `directory` */
} gvmm_contents;

typedef struct gvmm_evict_options {
    size_t struct_size;
    gvmm_contents contents;
    gvmm_stream stream;    /* waited for first; NULL: the buffer's recorded stream, for a resource the legacy one */
    const char *directory; /* for GVMM_CONTENTS_FILE */
} gvmm_evict_options;

#define GVMM_EVICT_OPTIONS_INIT \
    { \
        sizeof(gvmm_evict_options), GVMM_CONTENTS_HOST, NULL, NULL \
    }
#define GVMM_TAG_ANY INT32_MIN

/* Evicts what is resident of the buffer's memory, or of the memory that was made with the resource's options of this
 * tag (GVMM_TAG_ANY: all of it) and is mapped. Doing it again does nothing. A host resource has no legacy stream and
 * waits for no stream unless it is given one. Before a resource is evicted, what was released deferred goes back, that
 * of other resources too: its work is waited for, as by gvmm_drain, but no pinning, nor what other threads released while
 * its stream captured and have not seen to since. That is evicted with the rest unless gvmm_drain has been called.
 *
 * options  NULL: contents kept in pinned host memory.
 * Returns  GVMM_E_CAPTURING       the stream is capturing, or waiting for the default stream would end a capture:
 *          nothing was evicted
 *          GVMM_E_NO_HOST_MEMORY  no room for the contents: nothing was evicted
 *          GVMM_E_UNSUPPORTED     contents of host memory are to be kept, or the driver cannot pin memory; or the buffer
 *                                 has imported memory, which is another's to evict (of a resource it is left out)
 *          GVMM_E_INVALID, GVMM_E_CLOSED, GVMM_E_DRIVER
 *          After a failure all is resident as before. One that comes when memory has been given back already (a copy
 *          failed under way) leaves it made anew, its generation says so; or evicted with its contents kept, with a
 *          warning, if the driver fails at that too.
 * Threads  any; evicting and restoring take turns. Work of other streams, also that which another view of the buffer's
 *          memory was released behind (gvmm_drain waits for it), and grows that are under way, are for the caller to
 *          order.
 * Capture  harms none. */
GVMM_API gvmm_result gvmm_buffer_evict(gvmm_buffer *buffer, const gvmm_evict_options *options);
GVMM_API gvmm_result gvmm_resource_evict(gvmm_resource *resource, int tag, const gvmm_evict_options *options);

/* Has `bytes` of host memory pinned ahead, on gvmm's threads, and returns at once: pinning takes longer than copying
 * (8 GiB: 0.3 s and 0.16 s). The next evict of the resource, or of a buffer of it, that keeps contents in host memory
 * takes it, also if it needs less or the pinning is still under way; one that needs more gives it up and pins its own,
 * and so does one that finds that the pinning failed. Taken, it goes the way of what an evict pins itself, so it is to be
 * prepared anew for the one after. gvmm_drain waits for the pinning.
 *
 * bytes    rounded up to the granularity. A resource has one such piece of memory, and asking again for the same
 *          does nothing; for another size, replaces it; for 0, gives it up.
 * Returns  GVMM_E_NO_HOST_MEMORY  the machine does not have as much, or no thread could be started
 *          GVMM_E_UNSUPPORTED     the resource is the host's
 *          GVMM_E_INVALID, GVMM_E_NO_DEVICE_MEMORY, GVMM_E_DRIVER
 *          After a failure what was prepared before still is. What fails later, the evict tries again.
 * Owns     host memory (pinned_bytes in the statistics) until it is taken or given up, at the latest with the end of
 *          the resource and its buffers.
 * Threads, Capture  any; harms none. */
GVMM_API gvmm_result gvmm_resource_prepare_evict(gvmm_resource *resource, size_t bytes);

/* Makes the memory anew at all its addresses and brings the contents back. When it returns, all work may use it. Doing
 * it again does nothing. The pinned host memory is given up by a thread of gvmm's right after; gvmm_drain waits for that,
 * and so does an evict that finds no host memory.
 *
 * Returns  GVMM_E_NO_DEVICE_MEMORY and others: everything is evicted as before, the contents still kept, to be tried
 *          again.
 * Threads, Capture  as evicting. */
GVMM_API gvmm_result gvmm_buffer_restore(gvmm_buffer *buffer);
GVMM_API gvmm_result gvmm_resource_restore(gvmm_resource *resource, int tag);

/* Bytes of the buffer that are evicted now; a number that grows with every restore of any of its chunks. */
GVMM_API size_t gvmm_buffer_evicted_bytes(const gvmm_buffer *buffer);
GVMM_API uint64_t gvmm_buffer_generation(const gvmm_buffer *buffer);

typedef enum gvmm_residency {
    GVMM_BEFORE_EVICT, /* the memory is still there: deregister it */
    GVMM_AFTER_EVICT,
    GVMM_EVICT_FAILED, /* it is as it was */
    GVMM_BEFORE_RESTORE,
    GVMM_AFTER_RESTORE, /* new pages at the old addresses: register them */
    GVMM_RESTORE_FAILED /* still evicted */
} gvmm_residency;

typedef struct gvmm_residency_event {
    gvmm_residency what;
    gvmm_buffer *buffer; /* that was evicted or restored; NULL if it was the resource's */
    int tag;             /* asked for, or the resource's own */
    size_t bytes;        /* concerned */
} gvmm_residency_event;

typedef void (*gvmm_residency_fn)(void *user, const gvmm_residency_event *event);

/* Sets who is told; NULL: nobody.
 *
 * Owns     `user` must stay valid until another handler is set, or the resource and its buffers are gone, and no evict
 *          or restore of them is in progress: one that has begun may still tell the old one.
 * Threads  `fn` runs on the evicting or restoring thread, with no lock held. It must not evict or restore, which is
 *          GVMM_E_INVALID there; it may use the buffer. */
GVMM_API void gvmm_resource_set_residency_handler(gvmm_resource *resource, gvmm_residency_fn fn, void *user);

/* ---------------------------------------------------------------------------------------------
 * Sharing: the memory of a buffer, shown by buffers of other processes too.
 *
 * The one who made the memory exports it, the others import it; docs/sharing.md has the rules. What goes over is a
 * descriptor (a few bytes that say what there is) and, for GVMM_HANDLE_POSIX_FD, a file descriptor for each chunk; for
 * GVMM_HANDLE_FABRIC the handles are in the descriptor. Nothing is copied and no work is waited for: order between the
 * processes is theirs.
 *
 * Whoever gets it can read and write the memory, and keeps it alive as long as it likes, also when the exporter has
 * gone. An importer decides itself who may touch its mapping of it: that is what the resource says that it imports
 * with. The CUDA driver does not work in a child of fork: start processes with exec.
 * ------------------------------------------------------------------------------------------- */

/* What a chunk of memory is known by, in all processes. Two are equal if and only if they are the same memory. */
typedef struct gvmm_identity {
    uint8_t origin[16];  /* of the process that made it: random */
    uint64_t serial;     /* of the chunk in that process, from 1 */
    uint32_t generation; /* how often it was restored: an evicted chunk comes back as other memory */
    uint32_t reserved;   /* 0 */
} gvmm_identity;

/* Writes the identities of the first `capacity` chunks, in address order, and the number of all of them. An alias has
 * its original's, imported memory that which it has where it was made. `list` may be NULL if `capacity` is 0.
 *
 * Returns  GVMM_E_INVALID, GVMM_E_CLOSED */
GVMM_API gvmm_result gvmm_buffer_identities(const gvmm_buffer *buffer, gvmm_identity *list, size_t capacity,
                                            size_t *count);

typedef struct gvmm_share_options {
    size_t struct_size;
    int timeout_ms;    /* for the whole exchange; negative: none */
    gvmm_buffer *have; /* receiving: a buffer whose chunks need not be sent again, as far as they come first; or NULL */
} gvmm_share_options;

#define GVMM_SHARE_OPTIONS_INIT \
    { \
        sizeof(gvmm_share_options), 30000, NULL \
    }

/* Why the handle type in force is not the one that was asked for: which driver call said no, and what would help.
 * `available` if it is, or if no driver had to be asked, as with GVMM_LOCATION_HOST and GVMM_HANDLE_WIN32. Out of memory is
 * never taken for an answer: the resource is not made then. */
struct gvmm_answer;
GVMM_API void gvmm_resource_handle_answer(const gvmm_resource *resource, struct gvmm_answer *out);

/* Sends the buffer over a connected Unix socket to a process that calls gvmm_buffer_receive. Returns when that holds
 * the memory: it need not be kept here any longer. The socket is of type SOCK_STREAM or SOCK_SEQPACKET, blocking or
 * not; both directions of it are used, and nobody else may use it meanwhile. Chunks that the receiver has already are
 * not sent again.
 *
 * options  NULL: GVMM_SHARE_OPTIONS_INIT.
 * Returns  GVMM_E_PEER_GONE    the other process has ended, closed the socket, or did not answer in time
 *          GVMM_E_INVALID      a NULL, no such socket, a chunk that is evicted, or what came is no answer
 *          GVMM_E_UNSUPPORTED  a chunk that cannot be exported: made with GVMM_HANDLE_NONE, imported, a read-only view;
 *                              or the process may not open as many descriptors as there are chunks: the message has the
 *                              numbers, larger chunks (option chunk_size) are the remedy
 *          GVMM_E_CLOSED, GVMM_E_NO_HOST_MEMORY, GVMM_E_DRIVER
 *          What the receiver fails with, if it says so: the message then begins with "the receiver".
 *          After a failure the socket is good for closing only. Those who have the memory already keep it.
 * Owns     each chunk keeps one open descriptor from its first export until it is released or evicted. It is closed by
 *          exec, not by fork.
 * Threads  any; several at a time, each with a socket of its own.
 * Capture  allowed; waits for no work. */
GVMM_API gvmm_result gvmm_buffer_send(gvmm_buffer *buffer, int socket, const gvmm_share_options *options);

/* Receives what gvmm_buffer_send sends. The memory is mapped in one piece and opened to the readers that the resource
 * names; it lies where the sender made it, on a device that the resource's readers must reach. The result can grow, by
 * memory of its own. It can be closed like any other; the sender's memory goes back when nobody has it any more.
 *
 * options  `have`: what an earlier receive gave, or NULL. The chunks that it and the sender's buffer begin with are
 *          taken from it, and if these are all of it the result stays at its address where there is room behind (see
 *          gvmm_buffer_capacity). It stays open. Whatever `have` is, the result shows what the sender's buffer shows.
 * stream   recorded stream, as in gvmm_buffer_create.
 * Returns  GVMM_E_PEER_GONE    as above
 *          GVMM_E_INVALID      a NULL, no such socket; or what came is no memory, not what the descriptor says, or
 *                              elsewhere than the resource's: the message says which
 *          GVMM_E_UNSUPPORTED  a version or handle type that this library does not know; a reader cannot reach the
 *                              memory; or no descriptor is left
 *          GVMM_E_CLOSED, GVMM_E_NO_HOST_MEMORY, GVMM_E_NO_ADDRESS_SPACE, GVMM_E_NO_DEVICE_MEMORY, GVMM_E_DRIVER
 *          What the sender fails with, if it says so: the message then begins with "the sender".
 *          After a failure nothing is mapped, no descriptor is open, and the socket is good for closing only.
 * Owns     one reference to *out, which holds the resource. No descriptor stays open.
 * Capture  allowed; waits for no work. */
GVMM_API gvmm_result gvmm_buffer_receive(gvmm_buffer **out, gvmm_resource *resource, int socket, gvmm_stream stream,
                                         const gvmm_share_options *options);

/* For who moves descriptors itself. `bytes` can be copied, stored and sent as they are; the file descriptors must be
 * passed on by the system (SCM_RIGHTS, pidfd_getfd, inheritance), in this order. */
typedef struct gvmm_shared {
    const void *bytes;
    size_t size;
    const int *fds;
    size_t fd_count; /* 0 for fabric handles */
    gvmm_handle_type handle_type;
} gvmm_shared;

typedef struct gvmm_export gvmm_export;

/* Exports a buffer as it is now.
 *
 * known    bytes at the beginning, up to a border of a chunk, that the importers have: these are named, but not handed
 *          out again. 0 for all.
 * Returns  as gvmm_buffer_send, without a peer's failures
 * Owns     *out, until gvmm_export_release, which withdraws it: it holds the memory, as fabric handles do not. Its
 *          descriptors keep the pages from going back also when the memory is evicted meanwhile. */
GVMM_API gvmm_result gvmm_buffer_export(gvmm_export **out, gvmm_buffer *buffer, size_t known);

/* What to hand over. Borrowed: it is the export's. Do not close the descriptors. */
GVMM_API void gvmm_export_contents(const gvmm_export *exported, gvmm_shared *out);

/* Takes NULL. */
GVMM_API void gvmm_export_release(gvmm_export *exported);

/* Makes a buffer of what another process (or this one) has exported.
 *
 * shared   `handle_type` is not looked at.
 * have     NULL, or a buffer that begins with the known bytes of the export.
 * Returns  as gvmm_buffer_receive, without a peer's failures
 * Owns     one reference to *out. The descriptors stay the caller's to close, and may be closed at once. */
GVMM_API gvmm_result gvmm_buffer_import(gvmm_buffer **out, gvmm_resource *resource, const gvmm_shared *shared,
                                        gvmm_buffer *have, gvmm_stream stream);

/* ---------------------------------------------------------------------------------------------
 * Graphs: work recorded in a graph uses memory at every launch. A graph that retains a buffer's memory keeps it mapped
 * until the graph, its executables and their launches in flight are gone, whatever becomes of the buffers.
 * ------------------------------------------------------------------------------------------- */

/* Makes `graph` hold the memory that the buffer has now. Later growth of the buffer is not held.
 *
 * Returns  GVMM_E_INVALID, GVMM_E_CLOSED, GVMM_E_NO_HOST_MEMORY, GVMM_E_UNSUPPORTED (driver without user objects),
 *          GVMM_E_DRIVER
 * Owns     the graph holds its own reference; the caller's is untouched. A thread of gvmm gives the memory back after
 *          the graph is gone; gvmm_drain waits for that.
 * Threads  not while another thread changes the graph: CUDA graphs are not thread-safe. */
GVMM_API gvmm_result gvmm_buffer_retain_in_graph(gvmm_buffer *buffer, gvmm_graph graph);

/* The same for the graph that `stream` is capturing into.
 *
 * Returns  also GVMM_E_INVALID  the stream is not capturing
 * Capture  allowed, that is the purpose. */
GVMM_API gvmm_result gvmm_buffer_retain_in_capture(gvmm_buffer *buffer, gvmm_stream stream);

/* Waits until everything that was given up has gone back to the driver: what was released deferred, when the work
 * before it is done; what graphs that are gone had retained, once the driver has said so, which it does some time after
 * the graph's end; pinned host memory that restored contents were kept in. Also for what gvmm makes ahead. Memory that
 * is held by buffers, graphs or a capture in progress is not waited for, nor what other threads give up during the call.
 *
 * What was released while its stream was capturing (or, on the default stream, while a blocking one was) needs an event on
 * that stream once the graph is gone. The thread that released it sees to that with its next call that makes memory or
 * gives some up deferred (not with one that kept memory is enough for); gvmm_drain does so for all threads.
 *
 * Threads  any but one that work waits for: not in a host function. On gvmm's own thread, where a warning handler may
 *          run, it returns at once. Not while another thread begins or ends a capture on a stream of that kind: that
 *          may crash the driver.
 * Capture  allowed. */
GVMM_API void gvmm_drain(void);

/* ---------------------------------------------------------------------------------------------
 * Mappings made elsewhere.
 * ------------------------------------------------------------------------------------------- */

/* Gives back what a wrapped buffer shows. `stream` is the one to wait for, or NULL. Anything but GVMM_OK becomes a
 * warning. */
typedef gvmm_result (*gvmm_free_fn)(void *user, uint64_t address, size_t size, gvmm_stream stream);

/* Makes a buffer of a mapping that gvmm did not make. It can be closed and released like any other; nothing else can
 * be made of it: it cannot grow, be composed, evicted or held by a graph.
 *
 * stream   recorded stream, as in gvmm_buffer_create.
 * free     called once, when the buffer is closed or last released, in place of waiting and unmapping. NULL:
 *          gvmm_resource_deallocate. A wrapper that owns nothing passes a function that does nothing.
 * Returns  GVMM_E_INVALID      a NULL, or address or size 0
 *          GVMM_E_NO_HOST_MEMORY
 * Owns     one reference to *out, which holds the resource. After a failure `free` is not called.
 * Threads  `free` runs on the thread that closes or last releases, with no lock held. */
GVMM_API gvmm_result gvmm_buffer_wrap(gvmm_buffer **out, gvmm_resource *resource, uint64_t address, size_t size,
                                      gvmm_stream stream, gvmm_free_fn free, void *user);

/* Unmaps `size` bytes at `address` and frees that reservation: for a mapping made by hand that is one reservation,
 * wholly mapped, whose memory handles have been released. Buffers made by gvmm never need it.
 *
 * stream   waited for first, as in gvmm_buffer_close; NULL: nothing is. A host location waits for real streams only.
 * Returns  GVMM_E_CAPTURING    the stream is capturing; nothing was done
 *          the first failure of unmapping and freeing; both are tried
 *          GVMM_OK for address 0 or size 0, without waiting for more than the stream
 * Capture  as gvmm_buffer_close. */
GVMM_API gvmm_result gvmm_resource_deallocate(gvmm_resource *resource, uint64_t address, size_t size,
                                              gvmm_stream stream);

/* ---------------------------------------------------------------------------------------------
 * Probe: what a device can do here. Its attributes say what the hardware could; whether the machine allows it (an IMEX
 * channel for fabric handles, the rights of a container for host memory) only trying tells.
 * ------------------------------------------------------------------------------------------- */

/* X(NAME, value, "name", "what is tried", "what to do if it fails") */
#define GVMM_CAPABILITIES(X) \
    X(MEMORY, 0, "memory", "device memory: create, map, open", \
      "gvmm makes no buffers here: a virtual GPU, or a driver without virtual memory management; use cudaMalloc") \
    X(POSIX_FD, 1, "posix_fd", "export to a descriptor, and import", \
      "set GVMM_HANDLE_NONE or GVMM_OPTIONAL_HANDLE; the memory then stays in this process") \
    X(FABRIC, 2, "fabric", "export to a fabric handle, and import", \
      "needs the nvidia-imex service and a channel in /dev/nvidia-caps-imex-channels; or set GVMM_OPTIONAL_FABRIC") \
    X(RDMA, 3, "rdma", "memory for network cards", \
      "leave out gpu_direct_rdma, or set GVMM_OPTIONAL_RDMA; network cards then go through host memory") \
    X(COMPRESSIBLE, 4, "compressible", "memory that the device may compress", \
      "nothing to do: gvmm does not ask for it") \
    X(HOST, 5, "host", "host memory, open to the CPU and the device", \
      "use GVMM_LOCATION_HOST_NUMA, or a newer driver") \
    X(HOST_NUMA, 6, "host_numa", "host memory of a chosen node", \
      "in a container allow the nodes (--cpuset-mems) and SYS_NICE; or use GVMM_LOCATION_HOST") \
    X(PEERS, 7, "peers", "access by every other device", \
      "leave out the devices without a link (nvidia-smi topo -p2p r), or set GVMM_OPTIONAL_PEERS") \
    X(RESERVATION, 8, "reservation", "address space for all of the device's memory", \
      "ask for a smaller capacity, and see that ulimit -v is unlimited") \
    X(POOLS, 9, "pools", "stream-ordered memory pools", "nothing to do for gvmm: cuMemAllocAsync does not work here") \
    X(GRAPHS, 10, "graphs", "graphs that hold memory", \
      "needs a driver with user objects; without, keep buffers open as long as the graphs that use them")

typedef enum gvmm_capability {
#define GVMM_X(name, value, text, what, advice) GVMM_CAPABILITY_##name = value,
    GVMM_CAPABILITIES(GVMM_X)
#undef GVMM_X
        GVMM_CAPABILITY_COUNT
} gvmm_capability;

/* "posix_fd", and in a few words what is tried for it. Static; "?" when out of range. */
GVMM_API const char *gvmm_capability_name(gvmm_capability capability);
GVMM_API const char *gvmm_capability_text(gvmm_capability capability);

typedef struct gvmm_answer {
    bool available;
    int status;         /* CUresult of the call that failed; 0 if it is the call's answer that says no */
    const char *call;   /* driver call that said no, "cuMemCreate"; NULL if available, or if nothing was asked */
    const char *advice; /* one line for people; NULL if available. Static, as `call` is */
} gvmm_answer;

typedef struct gvmm_probe_report {
    gvmm_answer answers[GVMM_CAPABILITY_COUNT];
    uint64_t memory;     /* bytes that the device has; 0 if it does not say. Here and below */
    uint64_t reservable; /* bytes of address space that can be reserved in one piece, to a factor of two */
    size_t granularity;  /* bytes, of device memory */
    uint64_t peers;      /* bit n: device n can access the memory */
    uint64_t numa_nodes; /* bit n: memory of node n can be had */
    int device;          /* its ordinal */
} gvmm_probe_report;

/* Tries each capability of a device with a real chunk of memory and gives everything back. Takes some milliseconds,
 * most of them to find the end of the address space, and makes no context. Peers and nodes are counted as available if
 * all, respectively any of them are; a machine with one device has no peers.
 *
 * It is quiet: nothing is printed, nothing becomes a warning, and the thread's last error stays as it was. What fails
 * while a chunk is given back counts as the capability's failure. Tools that list failing driver calls
 * (compute-sanitizer) see those that are tried in vain: fabric handles where the attribute promises them, and the end
 * of the address space.
 *
 * Returns  GVMM_E_INVALID     out is NULL, or no such device
 *          GVMM_E_NO_DRIVER, GVMM_E_DRIVER
 *          GVMM_OK whatever the answers are; "memory is short just now" is one.
 * Threads  any.
 * Capture  harms none. */
GVMM_API gvmm_result gvmm_probe(gvmm_probe_report *out, int device);

/* ---------------------------------------------------------------------------------------------
 * Pool: a stream-ordered allocator for many sizes, from 512 bytes to all of the device's memory.
 *
 * What a stream gave up can be had again by that stream at once, and by others when the work before is done. Free memory
 * that lies in the wrong place is mapped where it is needed before new memory is made. docs/pool.md says how.
 * ------------------------------------------------------------------------------------------- */

typedef struct gvmm_pool gvmm_pool;

typedef struct gvmm_pool_options {
    size_t struct_size;
    size_t limit; /* bytes of physical memory that the pool may have; 0: what the device has, or those of the stripe */
    /* Promises that every stream named in a free lives as long as the pool, and begins no capture while another thread
     * uses it: a free is then cheaper. */
    bool streams_outlive;
} gvmm_pool_options;

#define GVMM_POOL_OPTIONS_INIT \
    { \
        sizeof(gvmm_pool_options), 0, false \
    }

/* Makes a pool, with no memory yet. Reserves five times as much address space as the pool may have memory, 1 GiB at least,
 * or what can be had of that.
 *
 * resource  whose options the memory is made with: readers, handle types, stripe. Its location must be a device. Those
 *           about buffers have no effect here: chunk_size (but for a stripe), capacity, addr_hint, addr_align,
 *           ahead_count, tag, release_mode, reuse_limit and what belongs to it. Evicting the resource leaves the pool's
 *           memory alone.
 * options   NULL: GVMM_POOL_OPTIONS_INIT.
 * Returns   GVMM_E_INVALID      a NULL, or a struct_size of another version
 *           GVMM_E_UNSUPPORTED  the location is not a device
 *           GVMM_E_NO_HOST_MEMORY, GVMM_E_NO_ADDRESS_SPACE, GVMM_E_DRIVER
 * Owns      one reference to *out, which holds the resource.
 * Capture   allowed. */
GVMM_API gvmm_result gvmm_pool_create(gvmm_pool **out, gvmm_resource *resource, const gvmm_pool_options *options);

/* One reference more, one less. Both take NULL. The last release waits for the work of what was freed, and gives all
 * memory back. All blocks must have been freed before; if some were not, or a stream cannot be waited for as it captures, a
 * warning says so, nothing is given back, and the caller still has the reference. What a graph holds (see gvmm_pool_free)
 * keeps the pool. */
GVMM_API gvmm_pool *gvmm_pool_retain(gvmm_pool *pool);
GVMM_API void gvmm_pool_release(gvmm_pool *pool);

/* Allocates, for use by `stream` first: others must be made to wait for it, as with cuMemAllocAsync. The address is a
 * multiple of 512, for 1 MiB and more of 4096. The bytes are what was there before.
 *
 * stream   NULL: the device's legacy default stream. It must not begin to capture in another thread during the call.
 * Returns  GVMM_E_INVALID           a NULL, or size 0
 *          GVMM_E_NO_DEVICE_MEMORY  more than there is, or than the limit; after waiting for everything that was freed
 *          GVMM_E_NO_HOST_MEMORY, GVMM_E_NO_ADDRESS_SPACE, GVMM_E_DRIVER
 * Threads  any; a pool can be used by many at once.
 * Capture  allowed. While the stream captures, only memory whose work is done is taken; captured work that uses it must not
 *          run after the block was freed, unless it was freed into the same capture. */
GVMM_API gvmm_result gvmm_pool_malloc(uint64_t *out, gvmm_pool *pool, size_t size, gvmm_stream stream);

/* Frees a block, whose last use is work of `stream` so far, or comes before that. Does not wait.
 *
 * address  0: does nothing.
 * stream   NULL: the device's legacy default stream. After the call it may be destroyed, but with streams_outlive, or if it
 *          was capturing; its context must not, before the pool is released. One that is not the malloc's must not begin to
 *          capture in another thread during the call.
 * Returns  GVMM_E_INVALID  not the address of a block of this pool, or freed already: nothing was done
 * Threads  any.
 * Capture  harms none. While the stream captures, the graph that it captures into holds the block, as in
 *          gvmm_buffer_close_deferred: it can be had again when that graph and all of its launches are gone, and this
 *          thread, or gvmm_drain, has been here again. */
GVMM_API gvmm_result gvmm_pool_free(gvmm_pool *pool, uint64_t address, gvmm_stream stream);

/* Gives memory that is free and done with back to the driver until the pool has no more than `keep` bytes. Returns the
 * bytes that went. Only whole granules can go. Waits for nothing. Where the device has no memory left for another pool or a
 * buffer of the process, all its pools are trimmed; nothing else gives it back while the pool lives. */
GVMM_API size_t gvmm_pool_trim(gvmm_pool *pool, size_t keep);

/* Another limit; 0: none. Less than the pool has: it has to be trimmed, or gets no more. Blocks in the address space that
 * the first limit was given for always fit.
 *
 * Returns  GVMM_E_INVALID  pool is NULL */
GVMM_API gvmm_result gvmm_pool_set_limit(gvmm_pool *pool, size_t limit);

typedef struct gvmm_pool_stats {
    uint64_t live_bytes;     /* asked for and not freed */
    uint64_t rounded_bytes;  /* the same as the pool rounds it */
    uint64_t physical_bytes; /* memory that the pool has */
    uint64_t live_peak;      /* most live bytes, as seen when memory was not at hand, and by gvmm_pool_get_stats */
    uint64_t physical_peak;  /* most physical bytes */
    uint64_t blocks;         /* live blocks */
    uint64_t mallocs;        /* since the start */
    uint64_t reuses;         /* since the start: mallocs that got what had just been freed, without a search */
    uint64_t stitches;       /* since the start: pieces of free memory that were mapped elsewhere */
} gvmm_pool_stats;

/* The pool's figures. Each is true at some moment during the call. */
GVMM_API void gvmm_pool_get_stats(gvmm_pool *pool, gvmm_pool_stats *out);

/* The peaks become what they are now. */
GVMM_API void gvmm_pool_reset_peaks(gvmm_pool *pool);

/* malloc and free as torch.cuda.memory.CUDAPluggableAllocator calls them. The first malloc on a device makes a pool there,
 * with default options, which lives as long as the process. What fails is a warning, and malloc then gives NULL; size 0 and
 * NULL are allowed. */
GVMM_API void *gvmm_torch_malloc(ptrdiff_t size, int device, gvmm_stream stream);
GVMM_API void gvmm_torch_free(void *ptr, ptrdiff_t size, int device, gvmm_stream stream);

/* The pool that they use on a device, or NULL. Borrowed. */
GVMM_API gvmm_pool *gvmm_torch_pool(int device);

/* ---------------------------------------------------------------------------------------------
 * Ranks that agree: processes that work together must take the same decision, or one waits for what another never does.
 * Each probes its device and packs the report; all exchange the records by their own means (an all-gather of bytes), and
 * each computes the same answer from all of them.
 * ------------------------------------------------------------------------------------------- */

#define GVMM_PROBE_ROOM 32

/* A report as plain bytes: no pointers, no padding, the same in every process of a machine type. */
typedef struct gvmm_probe_record {
    uint32_t size;      /* of the record: tells versions apart */
    uint32_t count;     /* capabilities that the sender knows */
    uint32_t available; /* bit n: capability n */
    int32_t device;     /* as in the report, here and below */
    uint64_t memory, reservable, granularity, peers, numa_nodes;
    int32_t status[GVMM_PROBE_ROOM];
    char call[GVMM_PROBE_ROOM][44]; /* "" for none */
} gvmm_probe_record;

/* Returns  GVMM_E_INVALID  a NULL */
GVMM_API gvmm_result gvmm_probe_pack(gvmm_probe_record *out, const gvmm_probe_report *report);

typedef struct gvmm_common_report {
    /* Available is what every rank has; else the answer is that of the first rank that has it not. `memory` and
     * `reservable` are the least of all, `granularity` is a multiple of all, `numa_nodes` those that all have.
     * `peers` are the devices that have or can access every rank's memory, by ordinal: where the ranks number their
     * devices alike. `device` is -1. */
    gvmm_probe_report report;
    size_t ranks;
    size_t lacking[GVMM_CAPABILITY_COUNT]; /* how many ranks have it not */
    size_t first[GVMM_CAPABILITY_COUNT];   /* the first of them; `ranks` if none */
} gvmm_common_report;

/* What all ranks have. Makes no driver call, and gives the same on every rank that is given the same records in the same
 * order.
 *
 * records  one of each rank, in the order of the ranks.
 * Returns  GVMM_E_INVALID  a NULL, no records, one of another version of gvmm (the message says which), or granularities
 *          without a common multiple of 64 bits
 * Owns     the texts in it are static. */
GVMM_API gvmm_result gvmm_probe_common(gvmm_common_report *out, const gvmm_probe_record *records, size_t count);

/* Turns options into those that every rank can have, the same on all. What is asked for if available is kept or left out
 * as all can have it, and is no option any more: the bits of `optional` are cleared. GVMM_CAPACITY_ALL becomes the least
 * memory of all (times the stripe), a chunk_size a multiple of the common granularity.
 *
 * peers    room for options->peer_count ordinals, to which options->peers then points if any are left. May be where
 *          options->peers points already; NULL if there are none.
 * Returns  GVMM_E_UNSUPPORTED  some rank lacks what is asked for and not optional: so on every rank, before one of them
 *          fails alone. The message names the option, the first such rank, and what it was told.
 *          GVMM_E_INVALID      a NULL, or an option that is wrong or contradicts another */
GVMM_API gvmm_result gvmm_probe_settle(gvmm_options *options, int *peers, const gvmm_common_report *common);

/* ---------------------------------------------------------------------------------------------
 * Statistics
 * ------------------------------------------------------------------------------------------- */

typedef struct gvmm_stats {
    uint64_t physical_bytes; /* memory created and not released; not what was imported */
    uint64_t mapped_bytes;   /* sum of live mappings: memory mapped twice counts twice */
    uint64_t reserved_bytes; /* addresses */
    uint64_t buffers;        /* open buffers */
    uint64_t mappings;       /* live mappings, each with its place in a range */
    uint64_t memories;       /* physical chunks */
    uint64_t reservations;
    uint64_t allocations;      /* since the start: buffers made by gvmm_buffer_create, but for empty ones */
    uint64_t grows_in_place;   /* since the start */
    uint64_t grows_moved;      /* since the start */
    uint64_t aliases;          /* since the start: grows that needed no memory */
    uint64_t driver_calls;     /* since the start; process-wide figure only, 0 for a resource */
    uint64_t releases_waiting; /* process-wide only: given up and not yet back, but for what a graph holds; and jobs */
    uint64_t reused;           /* since the start: allocations that needed no memory, as kept memory was there */
    uint64_t kept_bytes;       /* kept for reuse now; also counted in physical_bytes */
    uint64_t imported_bytes;   /* memory of other processes (or exports of this one) that is held here */
    uint64_t pinned_bytes; /* host memory that gvmm has pinned now: for evicts, their backups and what is prepared */
} gvmm_stats;

/* Figures of one resource, or of the process if it is NULL. Each is true at some moment during the call; together they
 * are not a snapshot while other threads work. */
GVMM_API void gvmm_get_stats(const gvmm_resource *resource, gvmm_stats *out);

#ifdef __cplusplus
}
#endif
#endif

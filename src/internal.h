/* The library's map: what each file offers to those on its left.
 *
 *     exchange → share → graph, compose, evict, torch → contents → buffer, pool → grow → resource → order
 *         → stock, retire, reuse, prepare, heap → blocks → worker → ranks → options → probe → range → residence
 *         → mapping → memory → reservation, backup, placement → stream → device → stats → driver, faults, trace
 *         → wire, socket → host, seats → error
 *
 * A file uses only what is to its right (tools/check_includes.sh). Objects are reference counted; `create` and `retain`
 * give a reference, `release` takes one, takes NULL, and makes the one driver call that undoes the object. Host memory
 * is allocated before the driver call whose result it will hold. */
#ifndef GVMM_INTERNAL_H
#define GVMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gvmm.h"
#include "gvmm/driver.h"
#include "ref.h"

/* A function of its own also where a compiler would rather not: so that what is done all the time saves no registers for
 * what is not. */
#define SELDOM __attribute__((noinline))

/* ---- error.c: what failed, per thread; warnings ---- */

/* Record a failure and return `result`. The layer that first sees a failure does this; nobody records it again. */
gvmm_result gvmm__fail(gvmm_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));
gvmm_result gvmm__fail_driver(gvmm_driver_call call, CUresult status);

/* Adds what the failed driver call was about: "memory", "2097152 bytes on device 0". Returns `result`, which may be
 * better than what the status alone said. Does nothing for GVMM_OK. */
gvmm_result gvmm__about(gvmm_result result, const char *object, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Keep a failure while something else is tried, and put it back. */
typedef struct saved_error {
    gvmm_error error;
    char text[192];
} saved_error;
void gvmm__error_save(saved_error *out);
gvmm_result gvmm__error_restore(const saved_error *saved);

/* In between, the thread's warnings are held back: it holds a lock, and the handler may call gvmm. */
void gvmm__warnings_hold(void);
void gvmm__warnings_tell(void);

/* In a child of fork: whoever was setting the handler is not there. */
void gvmm__warnings_in_child(void);

/* Such a lock. */
void gvmm__silent_lock(pthread_mutex_t *lock);
void gvmm__silent_unlock(pthread_mutex_t *lock);

/* Tells the warning handler. Does not touch the thread's last error. */
void gvmm__warn(gvmm_result result, const char *object, uint64_t address, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* What the thread's last error says; nothing if the driver has shut down. */
void gvmm__warn_last(const char *object, uint64_t address);
void gvmm__warn_driver(gvmm_driver_call call, CUresult status, const char *object, uint64_t address);

/* ---- host.c: host memory, threads, small locks ---- */

void *gvmm__alloc(size_t size); /* NULL, and the failure recorded, when there is none */
void gvmm__free(void *ptr);

/* Rounds up; false if it does not fit. */
static inline bool gvmm__round_up(size_t *size, size_t granularity)
{
    bool power_of_two = (granularity & (granularity - 1)) == 0; /* always, so far; and a division takes long */
    size_t over = power_of_two ? *size & (granularity - 1) : *size % granularity;
    if (over == 0) return true;
    if (*size > SIZE_MAX - (granularity - over)) return false;
    *size += granularity - over;
    return true;
}

/* Whole pages, huge ones where they can be had, aligned to those. They are not there in a forked child. There is no
 * memory behind them before they are filled: false if it cannot be had. */
void *gvmm__pages_get(size_t size); /* NULL as gvmm__alloc */
bool gvmm__pages_fill(void *pages, size_t size);
void gvmm__pages_put(void *pages, size_t size);

/* Bytes that the machine and the process's control group have left; UINT64_MAX if they do not say. */
uint64_t gvmm__host_available(void);

/* A thread of ours, which no signal of the program's goes to; false if it cannot be had, and nothing is recorded. */
bool gvmm__thread_start(pthread_t *out, void *(*run)(void *), void *data);

/* Set by the fault wrapper: true makes the next allocation fail; getting and filling pages, starting threads and
 * watching forks count as such. */
extern bool (*gvmm__host_fault)(void);

/* Is this a child of fork of a process that had a driver? Nothing works there, and a thread that the child does not have
 * may hold any lock: what would take one fails, and what gives something up leaves it, as it is the parent's. */
extern atomic_bool gvmm__forked;
static inline bool gvmm__in_child(void) { return atomic_load_explicit(&gvmm__forked, memory_order_relaxed); }
gvmm_result gvmm__fail_in_child(void);

/* From now on; false if that cannot be had, and nothing is recorded. Not from two threads at once. */
bool gvmm__watch_forks(void);

/* A lock for a few loads and stores. Never held across a call. */
typedef atomic_flag small_lock;
void gvmm__lock_contended(small_lock *lock);
static inline void gvmm__lock(small_lock *lock)
{
    if (atomic_flag_test_and_set_explicit(lock, memory_order_acquire)) gvmm__lock_contended(lock);
}
static inline void gvmm__unlock(small_lock *lock) { atomic_flag_clear_explicit(lock, memory_order_release); }

/* Counts objects made with the driver table and the allocator in use, which cannot be replaced while there are any. */
void gvmm__hold(void);
void gvmm__unhold(void);
bool gvmm__held(void);

/* The same for host memory alone, which has nothing of the driver. */
void gvmm__hold_memory(void);
void gvmm__unhold_memory(void);

/* ---- seats.c: a small number for each thread ---- */

enum { SEATS = 128 };

/* The calling thread's, which no other has; 0: everybody's who found none; SEATS: not asked for yet. A thread that ends gives
 * its own to another. */
extern _Thread_local unsigned gvmm__seat;
void gvmm__seat_find(void);
unsigned gvmm__seats_used(void); /* from 0 on; those behind have never been anybody's */

/* ---- wire.c: descriptors of buffers as bytes, and the frames around them. No driver, no memory ---- */

enum { WIRE_VERSION = 1, WIRE_MOST_CHUNKS = 1 << 20, WIRE_FABRIC = 64 };

typedef struct wire_head {
    char magic[8];
    uint32_t version;
    uint32_t handle_type; /* a CUmemAllocationHandleType: descriptor or fabric */
    uint32_t count;       /* chunks */
    uint32_t known;       /* of these, the first ones, of which the importer has the memory: no handles come */
    uint64_t total;       /* bytes of all chunks */
    uint8_t origin[16];   /* of all identities */
    uint64_t reserved;    /* 0 */
    uint64_t checksum;    /* of all other bytes: finds what is damaged, not what is forged */
} wire_head;

typedef struct wire_chunk {
    uint64_t size;
    uint64_t serial;
    uint32_t generation;
    uint32_t location; /* a CUmemLocationType: device or host_numa */
    uint8_t place[16]; /* the device's UUID, or the number of the node and zeros */
} wire_chunk;

/* The bytes are a head, `count` chunks, and for fabric `count - known` handles. */
size_t gvmm__wire_size(size_t count, size_t known, unsigned handle_type);

/* Writes the checksum of finished bytes. */
void gvmm__wire_seal(void *bytes, size_t size);

/* Reads and checks all that can be told from the bytes alone. Every chunk's size is then not 0, and they add up. */
gvmm_result gvmm__wire_read(wire_head *out, const void *bytes, size_t size);

/* Of bytes that have been checked. `bytes` need not be aligned. */
wire_chunk gvmm__wire_chunk(const void *bytes, size_t chunk);
const void *gvmm__wire_fabric(const void *bytes, const wire_head *head, size_t chunk);

/* ---- socket.c: bytes and descriptors over a Unix socket; how many descriptors there may be ---- */

typedef struct connection {
    int socket;
    bool packets;      /* keeps messages apart: each piece is received as it was sent */
    uint64_t deadline; /* CLOCK_MONOTONIC, ms; UINT64_MAX: none */
    int timeout_ms;    /* for the message */
} connection;

enum { SOCKET_MOST_FDS = 253 }; /* in one message: the kernel's limit */

gvmm_result gvmm__connection_open(connection *out, int socket, int timeout_ms);

/* All of it. Descriptors go with the first byte. */
gvmm_result gvmm__connection_send(const connection *c, const void *bytes, size_t size, const int *fds, size_t fd_count);

/* All of it. With `fds`: room for SOCKET_MOST_FDS, *fd_count are open afterwards and the caller's; none after a
 * failure. Without: what comes is dropped. */
gvmm_result gvmm__connection_receive(const connection *c, void *bytes, size_t size, int *fds, size_t *fd_count);

void gvmm__fds_close(const int *fds, size_t count);
void gvmm__fds_end_on_exec(const int *fds, size_t count); /* makes exec close them */

/* Can the process open so many more? GVMM_E_UNSUPPORTED, with the limit and what helps, if not. *left: how many. */
gvmm_result gvmm__fds_need(size_t count, size_t *left);

/* ---- driver.c: the table in use ---- */

extern const gvmm_driver *gvmm__driver;
extern atomic_ullong gvmm__driver_calls;

static inline void gvmm__count_calls(uint64_t calls)
{
    atomic_fetch_add_explicit(&gvmm__driver_calls, calls, memory_order_relaxed);
}

static inline CUresult gvmm__counted(CUresult status)
{
    gvmm__count_calls(1);
    return status;
}

/* DRIVER(cuMemMap, ...) makes a driver call and gives a gvmm_result, the failure recorded. DRIVER_QUIET gives the
 * CUresult and records nothing. DRIVER_UNDO(object, address, cuMemUnmap, ...) is for calls that give something back: a
 * failure is a warning, and none at all when the driver has shut down already. DRIVER_COUNTED_IN leaves the counting to
 * whoever has a counter of his own: one that all threads share is what they would wait for. */
#define DRIVER_QUIET(name, ...) gvmm__counted(gvmm__driver->name(__VA_ARGS__))
#define DRIVER_COUNTED_IN(calls, name, ...) (++*(calls), gvmm__driver->name(__VA_ARGS__))
#define DRIVER(name, ...) gvmm__checked(GVMM_CALL_##name, DRIVER_QUIET(name, __VA_ARGS__))
#define DRIVER_UNDO(object, address, name, ...) \
    gvmm__checked_undo(GVMM_CALL_##name, DRIVER_QUIET(name, __VA_ARGS__), object, address)

static inline gvmm_result gvmm__checked(gvmm_driver_call call, CUresult status)
{
    return status == CUDA_SUCCESS ? GVMM_OK : gvmm__fail_driver(call, status);
}

static inline void gvmm__checked_undo(gvmm_driver_call call, CUresult status, const char *object, uint64_t address)
{
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_DEINITIALIZED) gvmm__warn_driver(call, status, object, address);
}

/* ---- stats.c: what is alive and what has happened ---- */

/* clang-format off */
#define GVMM_STATS(X) \
    X(physical_bytes) \
    X(mapped_bytes) \
    X(reserved_bytes) \
    X(buffers) \
    X(mappings) \
    X(memories) \
    X(reservations) \
    X(allocations) \
    X(grows_in_place) \
    X(grows_moved) \
    X(aliases) \
    X(reused) \
    X(imported_bytes) \
    X(pinned_bytes)
/* clang-format on */

typedef enum figure {
#define GVMM_X(name) STAT_##name,
    GVMM_STATS(GVMM_X)
#undef GVMM_X
        STAT_COUNT
} figure;

/* A resource's figures. Memory and reservations hold it, as they may outlive the resource. */
struct memory;
typedef struct account {
    ref refs;
    atomic_ullong figures[STAT_COUNT];
    pthread_mutex_t lock;
    struct memory *memories; /* all of it that is alive, newest first; guarded by lock */
} account;

account *gvmm__account_create(void);
account *gvmm__account_retain(account *a);
void gvmm__account_release(account *a);

/* Adds to (or, with a negated amount, takes from) the account's figure and the process's. */
void gvmm__account_add(account *a, figure which, uint64_t amount);
void gvmm__account_read(const account *a, gvmm_stats *out); /* NULL: the process */

/* ---- device.c: a device's primary context and capabilities ---- */

typedef struct device {
    int ordinal; /* -1: a host location; the rest is then unused */
    CUdevice handle;
    CUcontext primary; /* retained */
    small_lock lock;   /* guards what follows: events of the primary context, to be used again */
    unsigned event_count;
    CUevent events[32];
} device;

/* Retains the device's primary context. */
gvmm_result gvmm__device_open(device *out, int ordinal, CUdevice handle);
void gvmm__device_close(device *d);

/* An event without timing, of a context that is current; NULL if none can be had. Putting one back that may be part of
 * a capture (`reusable` false) destroys it. */
CUevent gvmm__event_get(device *d, CUcontext context);
void gvmm__event_put(device *d, CUcontext context, CUevent event, bool reusable);

/* Asks a capability; *out is false also for drivers that do not know the question. */
gvmm_result gvmm__device_can(bool *out, CUdevice handle, CUdevice_attribute attribute);

/* Makes a context current until gvmm__context_leave, which puts the old one back. */
gvmm_result gvmm__context_enter(CUcontext context);
void gvmm__context_leave(void);

/* ---- stream.c: the recorded stream and the wait before memory is given up ---- */

/* NULL, legacy and per-thread tokens: everything that is not a stream made by cuStreamCreate. */
static inline bool gvmm__stream_is_default(gvmm_stream stream) { return (uintptr_t)stream <= 2; }

/* What a buffer on `d` records for a stream that a caller names: real streams as they are, the legacy token for default
 * streams on a device, NULL for default streams on the host. */
static inline gvmm_stream gvmm__stream_recorded(gvmm_stream stream, const device *d)
{
    if (!gvmm__stream_is_default(stream)) return stream;
    return d->ordinal >= 0 ? GVMM_STREAM_LEGACY : NULL;
}

/* GVMM_E_CAPTURING if a real stream is capturing; another failure if that cannot be told. */
gvmm_result gvmm__stream_check(gvmm_stream stream);

/* Would waiting for a recorded stream end its capture or, of the default stream, another's? Not if that cannot be told. */
bool gvmm__stream_must_not_wait(gvmm_stream stream, const device *d);

/* The thread's capture mode is relaxed from enter to leave, so that waiting and asking leave all captures but the
 * stream's own alone, this thread's and others'. */
gvmm_result gvmm__relaxed_enter(CUstreamCaptureMode *old);
void gvmm__relaxed_leave(CUstreamCaptureMode old);

/* Waits in relaxed capture mode for a recorded stream, which is not capturing. Where waiting for the default stream
 * would end another's capture, warns and does not wait. A wait that fails is a warning too. `address` is for the
 * text. */
void gvmm__stream_wait(gvmm_stream stream, const device *d, uint64_t address);

/* The same for who must not go on without the wait: GVMM_E_CAPTURING, or the failure. */
gvmm_result gvmm__stream_wait_or_fail(gvmm_stream stream, const device *d);

/* Marks how far a recorded stream's work is with an event, one that is given or a new one; to be put back with
 * gvmm__event_put. After that the stream may be destroyed. Harms no capture, and asks no event that is part of one. Adds
 * to *calls what it does not count. */
typedef enum stream_mark {
    MARK_SET,
    MARK_LATER,     /* a default stream, while any call on it would end a capture */
    MARK_CAPTURING, /* the stream is capturing */
    MARK_FAILED
} stream_mark;
stream_mark gvmm__stream_mark(device *d, gvmm_stream stream, CUevent *event, CUcontext *context, unsigned *calls);

/* ---- backup.c: what evicted memory keeps its contents in, several memories in one ---- */

/* Something for the worker to do (see worker.c), embedded in what it is to be done to: handing over cannot fail. `run` is
 * called once, and owns the rest. */
typedef struct job {
    void (*run)(struct job *self);
    bool gives_back; /* device memory that was released: see gvmm__drain_released */
    struct job *next;
} job;

typedef struct backup {
    ref refs;
    account *account;     /* held: what is pinned counts there */
    job end;              /* for who has it ended by the worker */
    char *bytes;          /* host memory, or NULL */
    size_t size, pinned;  /* bytes; those from the beginning on that are page-locked */
    struct filling *fill; /* what fills the pages while they are pinned; NULL: nothing is left to do, or too little */
    CUdevice device;      /* whose primary context has the memory pinned, and is held for it */
    CUcontext primary;    /* NULL without host memory */
    int file;             /* descriptor of a file that has no name any more, or -1 */
} backup;

/* `directory` NULL: host memory of `size` bytes, to be pinned in the device's primary context; else a file there. */
gvmm_result gvmm__backup_create(backup **out, size_t size, const char *directory, CUdevice device, account *a);
backup *gvmm__backup_retain(backup *b);
void gvmm__backup_release(backup *b);

/* Releasing in two steps, as the second takes long: true if it was the last reference, and `end` is left to be called. */
bool gvmm__backup_drop(backup *b);
void gvmm__backup_end(backup *b);

/* Pins the memory from the beginning up to `end`, if it is not yet, in pieces; other threads prepare what is behind. One
 * copy must not reach over the border of a piece. Pages that were pinned stay so after a failure. */
gvmm_result gvmm__backup_pin(backup *b, size_t end);
size_t gvmm__backup_border(const backup *b, size_t offset); /* the first behind `offset` */

/* ---- placement.c: where memory is made and who may touch it; what options come down to (options.c makes it) ---- */

typedef struct placement {
    ref refs;
    unsigned access_count;
    CUmemAllocationProp prop;
    size_t granularity; /* bytes */
    uint64_t addr_hint;
    uint64_t addr_align;
    uint64_t capacity; /* bytes of address space for a new range; 0: no more than needed */
    size_t chunk_size; /* bytes, a multiple of the granularity; 0: a chunk is as large as what is asked for */
    int tag;
    unsigned stripe_count;
    gvmm_answer handle_answer; /* why the handle type is not the one asked for */
    const int *stripe; /* devices for the chunks in turn; it and `peers` in the same allocation as the placement */
    int *peers;        /* as many as the options had */
    CUmemAccessDesc access[];
} placement;

placement *gvmm__placement_retain(placement *p);
void gvmm__placement_release(placement *p);

/* The ordinal of the device that gets the how-manieth chunk of a range; -1: the host. */
int gvmm__placement_device(const placement *p, size_t place);

/* How many devices the chunks lie on; host memory counts as one. */
unsigned gvmm__placement_devices(const placement *p);

/* May a chunk lie on the device? */
bool gvmm__placement_has(const placement *p, int device);

/* Bytes that its device has, or the devices of its stripe together. */
gvmm_result gvmm__placement_memory(uint64_t *out, const placement *p);

/* ---- memory.c, reservation.c: undone by cuMemRelease, cuMemAddressFree ---- */

typedef struct mapping mapping;

/* Physical memory. Access belongs to it, so that a chunk is as open wherever it is mapped.
 *
 * A *view* is the memory of another, its original, with readers of its own: it has no handle, and what is said below of
 * an original's lock, mappings and residence holds for it through the original.
 *
 * An *evicted* memory has no handle and is mapped nowhere, but keeps its places: mappings go on to exist, and are made
 * real again when it is restored.
 *
 * *Imported* memory was made elsewhere: it is never evicted, and cannot be exported. */
typedef struct memory {
    ref refs;
    short device; /* ordinal, -1: host */
    bool imported;
    bool access_unsure;   /* the driver may have another than the list: putting it back has failed */
    atomic_bool resident; /* changed with the lock held; without it only a hint */
    bool waking;          /* resident, but not yet with its contents and generation; guarded by the lock */
    size_t size;
    account *account;
    placement *made_as;                                 /* NULL for a view */
    struct memory *original;                            /* NULL but for a view */
    struct memory *next_of_account, *before_of_account; /* originals only; guarded by the account's lock */
    /* Guarded by gvmm__memory_lock. It is held while the driver maps and unmaps, which waits for no work. */
    CUmemGenericAllocationHandle handle;
    mapping *mappings;       /* of the original and all its views */
    CUmemAccessDesc *access; /* into made_as, or allocated once it was changed */
    backup *backup;          /* of an evicted memory whose contents are kept; see evict.c */
    size_t backup_offset;
    uint64_t serial; /* of its identity; 0: nobody has asked yet */
    union {
        struct handout *handout; /* the descriptor that others get; NULL: nobody else can have the memory */
        gvmm_identity *identity; /* imported memory's */
    };
    unsigned access_count;
    unsigned generation; /* how often it was restored */
} memory;

/* A descriptor of exported memory, held by the memory while it is resident and by exports. -1: fabric handles. */
typedef struct handout {
    ref refs;
    int fd;
    bool wanted; /* by more than the export that made it; guarded by the memory's lock */
} handout;

/* May other processes have it, or is it theirs? Such memory is nobody's to use again. */
static inline bool gvmm__memory_is_shared(const memory *m) { return m->handout; /* or the identity */ }

/* `place`: the how-manieth chunk of its range this is, which decides the device where chunks are striped. */
gvmm_result gvmm__memory_create(memory **out, placement *p, size_t size, size_t place, account *a);
gvmm_result gvmm__memory_view(memory **out, memory *of, gvmm_access access);

/* Memory behind a handle that was imported, which it takes over unless it fails. `device` -1: of the host. */
gvmm_result gvmm__memory_import(memory **out, placement *p, CUmemGenericAllocationHandle handle, size_t size,
                                int device, const gvmm_identity *who, account *a);
memory *gvmm__memory_retain(memory *m);
void gvmm__memory_release(memory *m);

static inline memory *gvmm__memory_original(memory *m) { return m->original ? m->original : m; }

/* One of a few locks, by the original's address: no thread holds two. Or all of them, for dealing with many memories at
 * a time. */
void gvmm__memory_lock(memory *m);
void gvmm__memory_unlock(memory *m);
void gvmm__memory_lock_all(void);
void gvmm__memory_unlock_all(void);

/* The driver's part of making and giving back. */
gvmm_result gvmm__memory_get_handle(memory *m, CUmemGenericAllocationHandle *out);
void gvmm__memory_release_handle(memory *m, CUmemGenericAllocationHandle handle);

/* A location's access to the memory. -1 means the host. */
gvmm_access gvmm__memory_access(memory *m, int device);
gvmm_result gvmm__memory_set_access(memory *m, int device, gvmm_access access);

/* What it is known by elsewhere; of a view, its original's. */
gvmm_identity gvmm__memory_identity(memory *m);

/* Its descriptor, made the first time, and whether there is one; taking it back, if it still is that and no other export
 * has got it; its fabric handle. Of originals that were not imported. *who: what that names, which the next restore
 * changes. GVMM_E_INVALID if it is evicted, or not yet restored. */
gvmm_result gvmm__memory_export(handout **out, bool *made, gvmm_identity *who, memory *m);
bool gvmm__memory_is_exported(memory *m);
void gvmm__memory_unexport(memory *m, const handout *h);
gvmm_result gvmm__memory_export_fabric(unsigned char out[WIRE_FABRIC], gvmm_identity *who, memory *m);
void gvmm__handout_release(handout *h);

typedef struct reservation {
    ref refs;
    uint64_t base;
    size_t size;
    account *account;
    atomic_size_t claimed; /* bytes from the base on that mappings have taken; what is behind is free */
} reservation;

/* `hint` 0: anywhere. `align` 0: the granularity. */
gvmm_result gvmm__reservation_create(reservation **out, size_t size, uint64_t align, uint64_t hint, account *a);

/* At least `need` bytes and up to `wish`, which is halved until the driver agrees. */
gvmm_result gvmm__reservation_ahead(reservation **out, size_t need, uint64_t wish, uint64_t align, uint64_t hint,
                                    size_t granularity, account *a);

/* Reserves exactly [address, address + size), or nothing. NULL if that is not to be had, and no failure recorded. */
reservation *gvmm__reservation_probe(uint64_t address, size_t size, account *a);
reservation *gvmm__reservation_retain(reservation *r);
void gvmm__reservation_release(reservation *r);

/* Takes [address, address + size) if it is what comes next and is there. Ranges that share a beginning compete for it;
 * one gets it. Giving back takes everything from `address` on: ranges end from behind, and nobody else can have a claim
 * there. */
bool gvmm__reservation_claim(reservation *r, uint64_t address, size_t size);
void gvmm__reservation_unclaim(reservation *r, uint64_t address);

/* ---- mapping.c: undone by cuMemUnmap, and only then drops memory and reservation ---- */

struct mapping {
    uint64_t address; /* its size is the memory's */
    memory *memory;
    reservation *reservation;
    mapping *next; /* of the same original; guarded by its lock */
};

/* Maps the whole of `what` and opens it to its readers, now or when it is restored. Holds both. The address has been
 * claimed; also on failure that stays so. */
gvmm_result gvmm__mapping_open(mapping *out, reservation *where, uint64_t address, memory *what);

/* Gives the claim back too. */
void gvmm__mapping_close(mapping *m);

/* The driver's part of it, with the memory's lock held. What is mapped has no access yet; that can be given to a run of
 * adjacent mappings, `size` bytes, whose memories have the same readers. */
gvmm_result gvmm__mapping_map(const mapping *m, CUmemGenericAllocationHandle handle);
gvmm_result gvmm__mapping_give_access(const mapping *first, size_t size);
void gvmm__mapping_unmap(const mapping *m);

/* ---- residence.c: physical memory given back while its places stay, and made anew there ---- */

/* Original memory, held, and its first place by address when it was listed. */
typedef struct member {
    memory *memory;
    uint64_t at;
} member;

/* Give the physical memory of those that are resident back and keep the places; make that of a list of which none is
 * resident anew, and map it at all its places, or do nothing. The caller sees to it that nobody else does either. */
void gvmm__evict(const member *list, size_t count);
gvmm_result gvmm__restore(const member *list, size_t count);

/* ---- range.c: the immutable chain of adjacent mappings ---- */

/* One link: a mapping and the range in front of it. A range grown in place is the old range plus one link, so it costs
 * the same however long the range is, and the ranges share all other links. */
typedef struct range {
    ref refs;
    struct range *before; /* NULL for the first link */
    size_t total;         /* bytes up to the end of this link */
    mapping mapping;
} range;

static inline uint64_t gvmm__range_end(const range *r) { return r->mapping.address + r->mapping.memory->size; }
static inline uint64_t gvmm__range_base(const range *r) { return gvmm__range_end(r) - r->total; }

/* `before` followed by `what`, mapped right behind it at `address`, which has been claimed. Without `before` the range
 * is thought to begin with the reservation. Holds all three. */
gvmm_result gvmm__range_extend(range **out, range *before, reservation *where, uint64_t address, memory *what);

/* Releases what has been extended behind `before` so far, at `address` on, and gives back what was claimed for all. */
void gvmm__range_give_up(range *r, const range *before, reservation *where, uint64_t address);

/* The same as gvmm__range_extend with all of a list, in a row. A failure gives back what was claimed. */
gvmm_result gvmm__range_extend_by(range **out, range *before, reservation *where, uint64_t address, memory **list,
                                  size_t count);

/* Puts every memory of `from` in front of `tail`, which was made in `where` behind the room for them and is nobody
 * else's. The room has been claimed. After a failure `tail` has some of them in front and is good for releasing
 * only. */
gvmm_result gvmm__range_move(range *tail, const range *from, reservation *where);

/* Links; 0 for NULL. Walks them all. */
size_t gvmm__range_count(const range *r);

/* The links in address order, to be freed, and their number; NULL, and the failure recorded, if there is no memory. */
const range **gvmm__range_links(const range *r, size_t *count);
range *gvmm__range_retain(range *r);
void gvmm__range_release(range *r);

/* ---- probe.c: what a device can, found by trying ---- */

/* Makes a chunk as `prop` says, exports it if it is to be exportable, and gives it back. *out: whether all that worked,
 * without advice. Fails only when memory is short, which says nothing. */
gvmm_result gvmm__probe_chunk(gvmm_answer *out, const CUmemAllocationProp *prop);

/* What to do about a "no". Static. */
const char *gvmm__probe_advice(gvmm_capability which, const gvmm_answer *a);

/* ---- options.c: options → placement ---- */

gvmm_result gvmm__options_check(gvmm_options *out, const gvmm_options *given);

/* Turns checked options into what is to be had of them; `peers` and `stripe` then point into the placement. */
gvmm_result gvmm__placement_create(placement **out, gvmm_options *options, int ordinal);

/* ---- worker.c: a thread of ours, for what must not be done or waited for where it comes up ---- */

/* Starts the thread if it is not running. After that, gvmm__work cannot fail; it makes no driver call. */
gvmm_result gvmm__worker_start(void);
void gvmm__work(job *j);
uint64_t gvmm__work_waiting(void);
uint64_t gvmm__work_gives_back(void); /* how many of these give device memory back */
uint64_t gvmm__work_given_back(void); /* how many have, since the start */

/* Waits for the jobs that are there now, or for those of them that give back; not for what comes meanwhile, of which there
 * may be no end. The worker runs, and does not call it. */
void gvmm__work_wait(bool for_giving_back);

/* What the worker looks at besides, between jobs, as it cannot announce itself: nothing there; something was done;
 * nothing was done yet. */
typedef enum worker_need { WORKER_IDLE, WORKER_AGAIN, WORKER_SOON } worker_need;
void gvmm__worker_poll(worker_need (*look)(void));
void gvmm__worker_wake(void);

/* True on the worker, which must not wait for itself: a warning handler may call anything. */
bool gvmm__on_worker(void);

/* Rounds that the worker has made; waiting until it has made one more. */
uint64_t gvmm__worker_progress(void);
void gvmm__worker_wait_past(uint64_t seen);

/* ---- retire.c: deferred release ---- */

/* Embedded in what gives a range up. `done` is called when the range has gone, on the worker or, where only waiting was left,
 * within the call that waited. */
typedef struct retirement {
    range *range;       /* NULL: `done` gives up what there is */
    gvmm_stream stream; /* as recorded */
    device *device;
    void (*done)(struct retirement *self);
    union {
        struct { /* in a lane; the first also where it waits to be marked */
            struct retirement *next;
            uint64_t number;
        };
        job job; /* held by a graph */
    };
    CUevent event; /* reached when the range may go; NULL: not marked yet */
    union {
        CUcontext event_context;
        uint64_t thread; /* not marked yet: who is to do that */
    };
} retirement;

/* Gives the range back when its event is reached, or without one when the stream's work so far is done, and returns at
 * once. Never loses it: where nothing else will do, it waits here. With an event the stream may be gone. */
void gvmm__retire(retirement *r);

uint64_t gvmm__retire_waiting(void);

/* Marks what the calling thread released and could not be marked then. Costs a load if there is nothing. */
void gvmm__retire_mark(void);

/* gvmm_drain, but what other threads have to mark is left to them. The second does not wait for pinning, unpinning and
 * what is made ahead, either. */
void gvmm__drain(void);
void gvmm__drain_released(void);

/* How many have gone, with what graphs held. What goes is counted there as soon as it is not counted as waiting. */
uint64_t gvmm__retire_returned(void);

/* ---- reuse.c: what was given up in stream order, kept to be taken again ---- */

/* Embedded in what is kept. An open one has the number of its stream and perhaps an event, to be used again. */
typedef struct reusable {
    struct reusable *next, *before; /* in a bin */
    struct reusable *older, *newer; /* in a front */
    size_t size;                    /* bytes */
    gvmm_stream stream;             /* as recorded: where its last work is */
    uint64_t stream_id;             /* its number. UINT64_MAX: the handle says enough. 0: not known, the same as none */
    CUevent event;                  /* reached when that is done, unless streams outlive the cache; or NULL */
    CUcontext event_context;
} reusable;

typedef struct reuse reuse;

/* `limit` in bytes. `drop` is given what leaves the cache otherwise than by being taken, with the work before it still
 * to be waited for, by its event or, where streams outlive, by its stream. No lock is held then. */
gvmm_result gvmm__reuse_create(reuse **out, device *d, size_t limit, bool streams_outlive, void (*drop)(reusable *));

/* Keeps an entry, whose size, stream, stream_id and event are set. False if it cannot be kept: the stream is capturing,
 * no event can be had, it is too large. */
bool gvmm__reuse_put(reuse *u, reusable *e);

/* An entry of exactly that size which work of `stream` may use from now on, or NULL. `stream` as it was named, that is
 * not as recorded; *stream_id is what the entry, or what is made in its place, is to have. */
reusable *gvmm__reuse_take(reuse *u, size_t size, gvmm_stream stream, uint64_t *stream_id);

/* Drops the oldest entries until no more than `keep` bytes are kept; bytes dropped. For all caches: whether there were
 * any. */
size_t gvmm__reuse_trim(reuse *u, size_t keep);
bool gvmm__reuse_trim_all(void);

/* From now on, and for what is kept already. */
void gvmm__reuse_set_limit(reuse *u, size_t limit);

/* Of one cache, or of all that have not ended. */
typedef struct reuse_figures {
    uint64_t taken, put, calls; /* since the start; driver calls that gvmm__driver_calls does not know */
    uint64_t kept_bytes;
} reuse_figures;
void gvmm__reuse_read(reuse_figures *out, reuse *of);

/* A pool's cache gives to a stream only what the same stream put, as the pool has other memory for others. What it keeps
 * are not buffers: of its figures, only the calls are the process's. */
void gvmm__reuse_set_of_pool(reuse *u);

/* Drops all, and keeps nothing from then on; nobody takes any more. Doing it again does nothing. When it returns, `drop`
 * is not running and will not be called, unless a warning of `drop` has brought it about. gvmm__reuse_free: nobody puts any
 * more, either. */
void gvmm__reuse_end(reuse *u, reuse_figures *last);
void gvmm__reuse_free(reuse *u);

/* ---- stock.c: memory made ahead of need ---- */

typedef struct stock stock;
gvmm_result gvmm__stock_create(stock **out, placement *p, size_t count, account *a);

/* A chunk of chunk_size, or NULL; the worker makes another. NULL for a NULL stock. */
memory *gvmm__stock_take(stock *s);

/* Gives back what any resource has ahead on the device (-1: the host); each makes no more until one of its own is asked
 * for. True if there was something, or may be on its way back. */
bool gvmm__stocks_flush(int device);

/* Makes no more, gives back what is there, and drops the caller's reference. */
void gvmm__stock_end(stock *s);

/* ---- blocks.c: a pool's address space as blocks side by side; by size, by neighbour, by address ---- */

enum { REGION_SMALL, REGION_LARGE, REGIONS }; /* apart, so that small blocks do not hold what large ones leave */
enum { BIN_LEVELS = 40, BIN_SLOTS = 16 };
#define LARGE_BLOCK ((size_t)1 << 20)

typedef struct heap heap;
typedef struct pool_block pool_block;
typedef struct leaf leaf;

/* Free blocks by size. */
typedef struct bins {
    uint64_t bytes, levels;
    uint16_t slots[BIN_LEVELS];
    pool_block *first[BIN_LEVELS][BIN_SLOTS];
} bins;

/* Free blocks whose last work is in one order: a stream's, or done. Only blocks of the same arena are joined. */
typedef struct arena {
    bins bins[REGIONS];
} arena;

typedef enum block_kind {
    BLOCK_USED,  /* handed out; also while it waits for its work outside of the heap */
    BLOCK_READY, /* free, memory under all of it */
    BLOCK_HOLE   /* free, no memory under any of it: whole granules */
} block_kind;

struct pool_block {
    union {
        reusable kept;      /* handed out: live, or freed and in the cache */
        retirement retired; /* freed, and waiting for more than its stream */
        struct {
            pool_block *next, *before;
        } list; /* free: in a bin */
    };
    atomic_ullong tag; /* gvmm__block_tag of a block that was handed out; 0: never */
    heap *heap;
    size_t asked; /* bytes that the caller wanted */
    /* Of the heap, under its lock. The first two do not change while it is used. */
    uint64_t address;
    size_t size;
    pool_block *left, *right;
    arena *arena;    /* of a ready one */
    uint64_t number; /* when it came into its arena */
    block_kind kind;
    unsigned region;
};

/* Whoever frees an address changes the tag from live to not. */
static inline unsigned long long gvmm__block_tag(uint64_t address, bool live) { return address | (live ? 1 : 0); }

/* What blocks are multiples of: 512 bytes, large ones 4 KiB. The table has a leaf for each 2 MiB. */
enum { UNIT_SHIFT = 9, LARGE_SHIFT = 12, LEAF_SHIFT = 21 };

/* Of a rounded size: what is kept is told apart by that alone. */
static inline unsigned gvmm__block_region(size_t size) { return size < LARGE_BLOCK ? REGION_SMALL : REGION_LARGE; }
static inline unsigned gvmm__block_shift(unsigned region) { return region == REGION_SMALL ? UNIT_SHIFT : LARGE_SHIFT; }

/* Of a size that is less than 2^63. */
static inline size_t gvmm__block_round(size_t size)
{
    size_t step = size < LARGE_BLOCK ? (size_t)1 << UNIT_SHIFT : (size_t)1 << LARGE_SHIFT;
    return (size + step - 1) & ~(step - 1);
}

/* The best fit, by size and then by address; NULL: none. `quick`: looks at so many, and may miss it. And all from a size on,
 * roughly from small to large. */
pool_block *gvmm__bins_best(const bins *in, size_t size, bool quick);
pool_block *gvmm__bins_next(const bins *in, const pool_block *after, size_t least);

/* Room for so many cuts. */
gvmm_result gvmm__blocks_spare(heap *h, size_t count);

/* Takes a free block out of its bin. Cuts what is in none: gives the part behind `size`. Takes in the block to the right,
 * which is in none either. */
void gvmm__block_unlink(heap *h, pool_block *b);
pool_block *gvmm__block_cut(heap *h, pool_block *b, size_t size);
void gvmm__block_absorb(heap *h, pool_block *b);

/* Cuts [from, to) out of a free block and its bin; the rest stays free. Up to two cuts. */
pool_block *gvmm__block_carve(heap *h, pool_block *b, uint64_t from, uint64_t to);

/* Makes it free, joined with neighbours alike. Gives what it has become part of. */
pool_block *gvmm__block_put(heap *h, pool_block *b, block_kind kind, arena *of, uint64_t number);

/* Makes a block findable by its address, for which there has to be room; it is not live yet. Finds it, without a lock. What
 * is found at a wrong address can be any block of the heap: the tag tells. */
gvmm_result gvmm__blocks_room(heap *h, unsigned region, uint64_t address);
void gvmm__block_enter(heap *h, pool_block *b);
static inline pool_block *gvmm__block_at(const heap *h, uint64_t address);

/* Needs base, large and end. The end is also that of a start that failed. */
gvmm_result gvmm__blocks_start(heap *h);
void gvmm__blocks_end(heap *h);

/* ---- heap.c: physical memory under a pool's blocks, in pieces that can be moved ---- */

struct heap {
    uint64_t base, large, end; /* the large blocks' region begins at `large` */
    reservation *where;
    placement *placement;
    account *account;
    struct piece **pieces; /* by granule; NULL: none there */
    size_t limit;          /* bytes of physical memory */
    /* Figures, bytes; used: of blocks that are handed out. */
    size_t physical, physical_peak, used;
    uint64_t stitches;
    uint64_t moved; /* bytes of pieces that were stitched; pool.c sets it back */
    arena common;   /* blocks whose work is done */
    bins holes[REGIONS];
    /* blocks.c's */
    _Atomic(leaf *) *index;
    size_t leaves;
    struct slab *slabs;
    pool_block *spare;
    size_t spare_count;
};

struct leaf {
    _Atomic(pool_block *) at[1]; /* as many as blocks of the region can begin in a leaf */
};

static inline pool_block *gvmm__block_at(const heap *h, uint64_t address)
{
    uint64_t offset = address - h->base;
    if (offset >= h->end - h->base) return NULL;
    unsigned shift = address < h->large ? UNIT_SHIFT : LARGE_SHIFT;
    if (offset & (((uint64_t)1 << shift) - 1)) return NULL;
    leaf *l = atomic_load_explicit(&h->index[offset >> LEAF_SHIFT], memory_order_acquire);
    if (!l) return NULL;
    return atomic_load_explicit(&l->at[(offset & (((uint64_t)1 << LEAF_SHIFT) - 1)) >> shift], memory_order_acquire);
}

/* One reservation of `space` bytes or what can be had of it. After a failure there is nothing to end. */
gvmm_result gvmm__heap_start(heap *h, placement *p, account *a, uint64_t space, size_t limit);

/* Unmaps everything, also what is used. */
void gvmm__heap_end(heap *h);

/* The rest is for who holds the heap's lock, which is the caller's. Nothing here waits for work. */

/* A free block of one's own arena (NULL: none) or of the common one; *out is NULL if none is ready. */
gvmm_result gvmm__heap_take(pool_block **out, heap *h, unsigned region, size_t size, arena *own);

/* How many bytes have to be mapped to make one. */
gvmm_result gvmm__heap_missing(size_t *out, const heap *h, unsigned region, size_t size, const arena *own);

/* Makes one. `stitch`: of free pieces of the common arena where there are any, else of new ones. A failure leaves no new
 * memory; free pieces may have been moved or given back. */
gvmm_result gvmm__heap_fill(pool_block **out, heap *h, unsigned region, size_t size, const arena *own, bool stitch);

/* Frees a used block into an arena. */
void gvmm__heap_put(heap *h, pool_block *b, arena *of, uint64_t number);

/* The work of the arena's blocks up to this number is done: they become common. */
void gvmm__heap_done(heap *h, arena *of, uint64_t number);

/* Gives free pieces back until no more than `keep` bytes are left. Bytes that have gone. */
size_t gvmm__heap_trim(heap *h, size_t keep);

/* ---- order.c: free blocks by the stream that may have them at once ---- */

typedef struct order order;
typedef struct orders {
    heap *heap;
    device *device;
    bool streams_outlive;
    uint64_t entered; /* blocks, since the start: their numbers */
    unsigned count;
    order *list[32];
} orders;

/* With the heap's lock held: the stream's arena, NULL if it has none. `id`: its number, as reuse.c has it. */
arena *gvmm__order_arena(const orders *o, gvmm_stream stream, uint64_t id);

/* Frees a used block in the order of its stream. `event`, which is taken over, tells when its work is done; NULL: streams
 * outlive. False if there is no room for the order; nothing was taken over then. With the lock held. */
bool gvmm__order_enter(orders *o, pool_block *b, gvmm_stream stream, uint64_t id, CUevent event, CUcontext context);

/* Makes common what is done. With the lock held. */
void gvmm__orders_poll(orders *o);

/* The same for as long as making memory would take, or until all is done; takes the lock itself. */
void gvmm__orders_linger(orders *o, pthread_mutex_t *lock);

/* The same after waiting for all of it; takes the lock itself. */
void gvmm__orders_wait(orders *o, pthread_mutex_t *lock);
void gvmm__orders_end(orders *o);

/* ---- prepare.c: a backup made ahead of an evict ---- */

/* In a slot: a pointer that its owner has set to NULL and that is changed here alone. */
typedef struct prepared prepared;

/* Has a backup of `bytes` host memory made and pinned by the worker, in place of the one that is in the slot unless that
 * is of the same size; 0: gives that up. A failure leaves it. */
gvmm_result gvmm__prepare(prepared **slot, size_t bytes, CUdevice device, account *a);

/* The backup, the slot's reference with it, pinned as far as it has come; NULL if there is none, if it failed, or if it
 * is smaller than `bytes`, and then it is gone. */
backup *gvmm__prepare_take(prepared **slot, size_t bytes);
void gvmm__prepare_end(prepared **slot);

/* ---- resource.c ---- */

/* For who found no memory on a device (-1: the host), and holds no lock: waits for what is on its way back, and gives up
 * what is kept, what was made ahead there, and what pools there have free. `before` is gvmm__retire_returned() before the
 * attempt that failed. False if there was nothing, nor has anything come back since then: trying again is of no use. */
bool gvmm__make_room(int device, uint64_t before);

/* What pools do for that; pool.c is further left. */
typedef bool (*room_maker)(int device);
void gvmm__room_from(room_maker fn);

struct gvmm_resource {
    ref refs;             /* users together hold one, each buffer one */
    gvmm_options options; /* its lists are the placement's */
    int ordinal;          /* as given; also for host locations, where it was asked what it can do */
    device device;
    placement *placement;
    account *account;
    stock *stock;            /* NULL if nothing is made ahead */
    reuse *reuse;            /* NULL if nothing is kept */
    prepared *prepared;      /* prepare.c's */
    atomic_uint users;       /* references that are not buffers' */
    small_lock handler_lock; /* guards the next two */
    gvmm_residency_fn handler;
    void *handler_user;
};

void gvmm__resource_hold(gvmm_resource *resource);
void gvmm__resource_unhold(gvmm_resource *resource);

/* ---- grow.c: ranges of new memory ---- */

/* What a range is made with: the options that hold for the new bytes, and whose account and stock they come from. */
typedef struct maker {
    placement *placement;
    uint64_t capacity; /* address space to reserve where some has to be, bytes */
    account *account;
    stock *stock; /* NULL where options of the call's own hold */
} maker;

/* A range of `size` bytes at a new address. */
gvmm_result gvmm__range_make(range **out, const maker *with, size_t size);

/* `from` and `add` bytes behind: in place, or all of it at a new address. */
gvmm_result gvmm__range_grow(range **out, range *from, const maker *with, size_t add);

/* Claims the address space behind a range: what its reservation has left, or a new one. NULL if it is taken. */
reservation *gvmm__claim_behind(range *from, size_t size, account *a);

/* ---- torch.c ---- */

/* Releases its pools, which otherwise live as long as the process. */
void gvmm__torch_end(void);

/* ---- buffer.c ---- */

/* For the resource's cache. */
void gvmm__buffer_drop(reusable *e);

/* The buffer's range, retained, or NULL if it is empty. */
gvmm_result gvmm__buffer_borrow(range **out, const gvmm_buffer *buffer);

/* A buffer of a range, whose reference it takes over unless it fails. `stream` as recorded. When it moves, it has the
 * capacity that `like` was made with; NULL: the resource's. */
gvmm_result gvmm__buffer_make(gvmm_buffer **out, gvmm_resource *resource, const gvmm_buffer *like, range *r,
                              gvmm_stream stream);

/* ---- contents.c: what memory contains, out to a backup and back ---- */

/* Where contents are kept. */
typedef struct contents_place {
    const char *directory; /* as in gvmm__backup_create */
    prepared **ahead;      /* where a backup may have been made ahead */
    account *account;
} contents_place;

/* Copies the contents of all of the list, which is resident and in the order of devices and places, to one backup, and
 * evicts it. After a failure all is resident as before. Where a copy failed late,
 * that may be memory made anew (with a new generation); what even that fails for stays evicted, its contents kept, and
 * is a warning. */
gvmm_result gvmm__contents_out(const member *list, size_t count, const contents_place *where);

/* Restores all of the list, in the same order, with the contents that are kept. The worker ends the backup. After a
 * failure all is evicted, and what was kept still is. */
gvmm_result gvmm__contents_in(const member *list, size_t count);

/* ---- share.c: exports, imports ---- */

/* Can the chunks from the `first` on be exported, all as one handle type? 0 if there are none. */
gvmm_result gvmm__export_check(unsigned *handle_type, const range **links, size_t count, size_t first);

/* Exports a range, which may be NULL, without handles for its first `known` chunks. Holds it. */
gvmm_result gvmm__export_create(gvmm_export **out, range *r, size_t known);

/* Imports chunk by chunk, then puts together. Takes `bytes` over, and lets go of them also if it fails. `have` may be
 * NULL. */
typedef struct importer {
    gvmm_resource *resource;
    void *bytes;
    wire_head head;
    range *base;   /* the chunks that are known; NULL: none */
    memory **list; /* the others, those that have come */
    size_t wanted, count;
    int reached; /* the last device whose readers were found to reach it */
    int asked;   /* the last device that was asked for its UUID: */
    CUuuid uuid;
} importer;
gvmm_result gvmm__importer_begin(importer *out, gvmm_resource *resource, void *bytes, size_t size, range *have);

/* The next chunk's handle: a descriptor, which stays the caller's, or NULL for the one in the bytes. */
gvmm_result gvmm__importer_add(importer *i, const int *fd);
gvmm_result gvmm__importer_finish(gvmm_buffer **out, importer *i, gvmm_stream stream);
void gvmm__importer_end(importer *i); /* in every case */

#endif

/* A stand-in for libnccl.so.2 that adds on the CPU, over whatever driver the program uses, and is stricter than NCCL about
 * registrations: what NCCL would take and then go wrong with far away is an error here, at once.
 *
 *     a range that is registered lies in one piece of memory (NCCL used to take the first for all: NVIDIA/nccl#1820)
 *     no byte is registered twice, and nothing is left when the communicator ends
 *     what is registered is what is mapped there now (pages that were evicted are not)
 *     ranks of one process can write into one another's buffers
 *
 * The program that loads it exports gvmm_driver_get. Ranks of several processes meet in a file in memory. With
 * NCCL_DEBUG=INFO each rank says at its end what it has seen. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gvmm/driver.h"

#define PUBLIC __attribute__((visibility("default")))

enum { OK, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { MOST_RANKS = 8, MOST_REGISTERED = 64, MOST_OPERATIONS = 256 };
#define SLOT ((size_t)64 << 20) /* bytes that a rank can bring to one operation */

typedef struct ncclUniqueId {
    char internal[128]; /* the file's name */
} ncclUniqueId;

/* Shared by all ranks, in that file; a slot of bytes for each rank is behind it. */
typedef struct clique {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int size, arrived;
    unsigned turns;
} clique;
#define CLIQUE_BYTES ((size_t)4096)

typedef struct registration {
    uint64_t address;
    size_t size;
    CUmemGenericAllocationHandle memory; /* held, as a registration pins its pages */
} registration;

typedef struct ncclComm {
    clique *all;
    int rank, size, device;
    CUcontext context;
    registration registered[MOST_REGISTERED]; /* size 0: free */
    unsigned registrations, deregistrations, operations, zero_copy;
    struct ncclComm *next_here; /* of the same clique, in this process */
} ncclComm;

typedef struct operation {
    ncclComm *comm;
    uint64_t from, to;
    size_t bytes;
    bool reduce;
    CUstream stream;
    unsigned turn; /* the how-manieth of its communicator in the group */
} operation;

static operation waiting[MOST_OPERATIONS];
static unsigned waiting_count, depth;
static char last_error[256] = "no error";
static ncclComm *comms_here;

static const gvmm_driver *driver(void)
{
    const gvmm_driver *found = NULL;
    return gvmm_driver_get(&found) == GVMM_OK ? found : NULL;
}

static int fail(int result, const ncclComm *comm, const char *what)
{
    snprintf(last_error, sizeof last_error, "rank %d: %s", comm ? comm->rank : -1, what);
    return result;
}

/* ---- cliques ---- */

static clique *map_clique(int file)
{
    clique *all = mmap(NULL, CLIQUE_BYTES + MOST_RANKS * SLOT, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return all == MAP_FAILED ? NULL : all;
}

static clique *make_clique(int file)
{
    if (file < 0 || ftruncate(file, (off_t)(CLIQUE_BYTES + MOST_RANKS * SLOT)) != 0) return NULL;
    clique *all = map_clique(file);
    pthread_mutexattr_t lock;
    pthread_condattr_t turn;
    if (!all) return NULL;
    pthread_mutexattr_init(&lock);
    pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&all->lock, &lock);
    pthread_condattr_init(&turn);
    pthread_condattr_setpshared(&turn, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&all->turn, &turn);
    return all;
}

static unsigned char *slot(const clique *all, int rank)
{
    return (unsigned char *)all + CLIQUE_BYTES + (size_t)rank * SLOT;
}

/* Returns when all ranks have come; `count` are the caller's. */
static void meet(clique *all, int count)
{
    pthread_mutex_lock(&all->lock);
    unsigned turn = all->turns;
    all->arrived += count;
    if (all->arrived == all->size) {
        all->arrived = 0;
        all->turns++;
        pthread_cond_broadcast(&all->turn);
    }
    while (all->turns == turn) pthread_cond_wait(&all->turn, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

static int join(ncclComm **out, clique *all, int rank, int size)
{
    const gvmm_driver *cu = driver();
    ncclComm *comm = calloc(1, sizeof *comm);
    CUdevice device;
    if (!comm || !cu || !all) return fail(SYSTEM_ERROR, NULL, "no driver or no memory");
    if (cu->cuCtxGetDevice(&device) != CUDA_SUCCESS) return fail(INVALID_USAGE, NULL, "no device is current");
    *comm = (ncclComm){.all = all, .rank = rank, .size = size, .device = device, .next_here = comms_here};
    if (cu->cuDevicePrimaryCtxRetain(&comm->context, device) != CUDA_SUCCESS) return SYSTEM_ERROR;
    comms_here = comm;
    *out = comm;
    return OK;
}

PUBLIC int ncclGetVersion(int *version)
{
    *version = 22809;
    return OK;
}

PUBLIC const char *ncclGetLastError(ncclComm *comm)
{
    (void)comm;
    return last_error;
}

PUBLIC int ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/dev/shm/nccl-standin-XXXXXX");
    clique *all = make_clique(mkstemp(id->internal));
    if (!all) return fail(SYSTEM_ERROR, NULL, "no file in memory");
    munmap(all, CLIQUE_BYTES + MOST_RANKS * SLOT);
    return OK;
}

PUBLIC int ncclCommInitRank(ncclComm **out, int size, ncclUniqueId id, int rank)
{
    int file = open(id.internal, O_RDWR | O_CLOEXEC);
    clique *all = file >= 0 && size <= MOST_RANKS ? map_clique(file) : NULL;
    if (!all) return fail(INVALID_ARGUMENT, NULL, "an id that nobody made");
    pthread_mutex_lock(&all->lock);
    all->size = size;
    pthread_mutex_unlock(&all->lock);
    int result = join(out, all, rank, size);
    meet(all, 1);
    if (rank == 0) unlink(id.internal);
    return result;
}

PUBLIC int ncclCommInitAll(ncclComm **comms, int count, const int *devices)
{
    const gvmm_driver *cu = driver();
    clique *all = make_clique(memfd_create("nccl-standin", MFD_CLOEXEC));
    int result = cu && all && count <= MOST_RANKS ? OK : fail(SYSTEM_ERROR, NULL, "no driver or no memory");
    for (int i = 0; !result && i < count; i++) {
        CUcontext context;
        all->size = count;
        if (cu->cuDevicePrimaryCtxRetain(&context, devices[i]) != CUDA_SUCCESS) return SYSTEM_ERROR;
        cu->cuCtxPushCurrent(context);
        result = join(&comms[i], all, i, count);
        cu->cuCtxPopCurrent(&context);
        cu->cuDevicePrimaryCtxRelease(devices[i]); /* the communicator has its own reference */
    }
    return result;
}

static bool is_left_here(const clique *all)
{
    for (const ncclComm *c = comms_here; c; c = c->next_here)
        if (c->all == all) return true;
    return false;
}

PUBLIC int ncclCommDestroy(ncclComm *comm)
{
    const gvmm_driver *cu = driver();
    const char *talk = getenv("NCCL_DEBUG");
    unsigned left = 0;
    for (int i = 0; i < MOST_REGISTERED; i++)
        if (comm->registered[i].size && ++left) cu->cuMemRelease(comm->registered[i].memory);
    if (talk && strcmp(talk, "INFO") == 0)
        fprintf(stderr, "NCCL stand-in: rank %d: %u registered, %u deregistered, %u of %u operations registered\n",
                comm->rank, comm->registrations, comm->deregistrations, comm->zero_copy, comm->operations);
    ncclComm **at = &comms_here;
    while (*at != comm) at = &(*at)->next_here;
    *at = comm->next_here;
    cu->cuDevicePrimaryCtxRelease(comm->device);
    if (!is_left_here(comm->all)) munmap(comm->all, CLIQUE_BYTES + MOST_RANKS * SLOT);
    int result = left ? fail(INVALID_USAGE, comm, "ends with buffers registered") : OK;
    free(comm);
    return result;
}

/* ---- registration ---- */

static bool overlap(uint64_t a, size_t a_size, uint64_t b, size_t b_size) { return a < b + b_size && b < a + a_size; }

PUBLIC int ncclCommRegister(ncclComm *comm, void *buffer, size_t size, void **handle)
{
    const gvmm_driver *cu = driver();
    uint64_t address = (uintptr_t)buffer;
    CUdeviceptr base = 0;
    size_t mapped = 0;
    registration *place = NULL;
    for (int i = 0; i < MOST_REGISTERED; i++) {
        registration *r = &comm->registered[i];
        if (!r->size) place = r;
        else if (overlap(r->address, r->size, address, size)) return fail(INVALID_USAGE, comm, "registered twice");
    }
    if (!place || !size) return fail(INVALID_ARGUMENT, comm, "nothing to register, or too much");
    cu->cuCtxPushCurrent(comm->context);
    CUresult status = cu->cuMemGetAddressRange(&base, &mapped, address);
    cu->cuCtxPopCurrent(&(CUcontext){0});
    if (status != CUDA_SUCCESS) return fail(INVALID_ARGUMENT, comm, "nothing is mapped there");
    if (address + size > base + mapped) return fail(INVALID_ARGUMENT, comm, "the range is in more than one piece");
    if (cu->cuMemRetainAllocationHandle(&place->memory, buffer) != CUDA_SUCCESS)
        return fail(INVALID_ARGUMENT, comm, "not memory that can be shared");
    place->address = address;
    place->size = size;
    comm->registrations++;
    *handle = place;
    return OK;
}

PUBLIC int ncclCommDeregister(ncclComm *comm, void *handle)
{
    registration *r = handle;
    if (r < comm->registered || r >= comm->registered + MOST_REGISTERED || !r->size)
        return fail(INVALID_ARGUMENT, comm, "not registered");
    driver()->cuMemRelease(r->memory);
    r->size = 0;
    comm->deregistrations++;
    return OK;
}

/* Every registration of the range must be of what is mapped there now. *whole: they cover all of it. */
static int check_registered(bool *whole, ncclComm *comm, uint64_t address, size_t size)
{
    const gvmm_driver *cu = driver();
    size_t covered = 0;
    for (int i = 0; i < MOST_REGISTERED; i++) {
        registration *r = &comm->registered[i];
        if (!r->size || !overlap(r->address, r->size, address, size)) continue;
        CUmemGenericAllocationHandle now = 0;
        if (cu->cuMemRetainAllocationHandle(&now, (void *)(uintptr_t)r->address) != CUDA_SUCCESS || now != r->memory) {
            if (now) cu->cuMemRelease(now);
            return fail(INTERNAL_ERROR, comm, "a registration is of pages that have gone");
        }
        cu->cuMemRelease(now);
        uint64_t from = r->address > address ? r->address : address;
        uint64_t to = r->address + r->size < address + size ? r->address + r->size : address + size;
        covered += to - from;
    }
    *whole = covered == size;
    return OK;
}

/* ---- operations: put in a list, done when the group ends ---- */

/* A device writes straight into the buffer of another of the same process; plain memory is opened to it by NCCL. */
static int check_reach(const ncclComm *comm, uint64_t address, size_t size)
{
    const gvmm_driver *cu = driver();
    for (uint64_t at = address; at < address + size;) {
        CUdeviceptr base = 0;
        size_t mapped = 0;
        cu->cuCtxPushCurrent(comm->context);
        CUresult status = cu->cuMemGetAddressRange(&base, &mapped, at);
        cu->cuCtxPopCurrent(&(CUcontext){0});
        if (status != CUDA_SUCCESS) return fail(INVALID_ARGUMENT, comm, "the buffer is not mapped");
        CUmemGenericAllocationHandle memory;
        if (cu->cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)base) != CUDA_SUCCESS) return OK; /* plain */
        cu->cuMemRelease(memory);
        for (const ncclComm *other = comms_here; other; other = other->next_here) {
            unsigned long long flags = 0;
            CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, other->device};
            if (other->all != comm->all || other == comm) continue;
            if (cu->cuMemGetAccess(&flags, &location, base) == CUDA_SUCCESS &&
                flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                return fail(INVALID_USAGE, comm, "the buffer is not open to the other devices of the process");
        }
        at = base + mapped;
    }
    return OK;
}

static int bring(operation *o)
{
    const gvmm_driver *cu = driver();
    ncclComm *comm = o->comm;
    bool source = false, target = false;
    if (o->bytes > SLOT) return fail(INVALID_ARGUMENT, comm, "too many bytes for the stand-in");
    int result = check_registered(&source, comm, o->from, o->bytes);
    if (!result) result = check_registered(&target, comm, o->to, o->bytes);
    if (!result) result = check_reach(comm, o->to, o->bytes);
    if (result) return result;
    comm->operations++;
    comm->zero_copy += source && target;
    cu->cuCtxPushCurrent(comm->context);
    CUresult status = cu->cuStreamSynchronize(o->stream);
    if (status == CUDA_SUCCESS) status = cu->cuMemcpyDtoH(slot(comm->all, comm->rank), o->from, o->bytes);
    cu->cuCtxPopCurrent(&(CUcontext){0});
    return status == CUDA_SUCCESS ? OK : fail(SYSTEM_ERROR, comm, "the buffer cannot be read");
}

static CUresult put(const operation *o)
{
    const gvmm_driver *cu = driver();
    const clique *all = o->comm->all;
    size_t count = o->bytes / sizeof(uint32_t);
    CUresult status = CUDA_SUCCESS;
    if (!o->reduce) {
        for (int i = 0; i < o->comm->size && status == CUDA_SUCCESS; i++)
            status = cu->cuMemcpyHtoD(o->to + (size_t)i * o->bytes, slot(all, i), o->bytes);
        return status;
    }
    uint32_t *sums = calloc(count + 1, sizeof *sums);
    if (!sums) return CUDA_ERROR_OUT_OF_MEMORY;
    for (int rank = 0; rank < o->comm->size; rank++) {
        const uint32_t *words = (const uint32_t *)(const void *)slot(all, rank);
        for (size_t i = 0; i < count; i++) sums[i] += words[i];
    }
    status = cu->cuMemcpyHtoD(o->to, sums, o->bytes);
    free(sums);
    return status;
}

static int fetch(const operation *o)
{
    const gvmm_driver *cu = driver();
    cu->cuCtxPushCurrent(o->comm->context);
    CUresult status = put(o);
    cu->cuCtxPopCurrent(&(CUcontext){0});
    return status == CUDA_SUCCESS ? OK : fail(SYSTEM_ERROR, o->comm, "the buffer cannot be written");
}

/* The ranks of this process whose `turn`-th operation it is: all bring, all have come, all fetch, all have gone. What fails
 * comes to the meetings all the same, so that others do not wait for ever. */
static int do_turn(unsigned turn, const clique *all)
{
    int result = OK, count = 0;
    for (unsigned i = 0; i < waiting_count; i++) {
        if (waiting[i].turn != turn || waiting[i].comm->all != all) continue;
        count++;
        if (!result) result = bring(&waiting[i]);
    }
    if (count) meet((clique *)(uintptr_t)all, count);
    for (unsigned i = 0; i < waiting_count; i++)
        if (!result && waiting[i].turn == turn && waiting[i].comm->all == all) result = fetch(&waiting[i]);
    if (count) meet((clique *)(uintptr_t)all, count);
    return result;
}

static int do_all(void)
{
    int result = OK;
    for (unsigned i = 0; i < waiting_count; i++) {
        bool done = false; /* with an earlier one of the same clique and turn */
        for (unsigned k = 0; k < i; k++)
            done |= waiting[k].comm->all == waiting[i].comm->all && waiting[k].turn == waiting[i].turn;
        if (done) continue;
        int r = do_turn(waiting[i].turn, waiting[i].comm->all);
        if (!result) result = r;
    }
    waiting_count = 0;
    return result;
}

PUBLIC int ncclGroupStart(void)
{
    depth++;
    return OK;
}

PUBLIC int ncclGroupEnd(void)
{
    if (!depth) return fail(INVALID_USAGE, NULL, "no group has begun");
    return --depth ? OK : do_all();
}

static int queue(operation o)
{
    if (waiting_count == MOST_OPERATIONS) return fail(INVALID_USAGE, o.comm, "too many operations in a group");
    for (unsigned i = 0; i < waiting_count; i++) o.turn += waiting[i].comm == o.comm;
    waiting[waiting_count++] = o;
    return depth ? OK : do_all();
}

PUBLIC int ncclAllReduce(const void *from, void *to, size_t count, int type, int how, ncclComm *comm, CUstream stream)
{
    if (type != 3 || how != 0) return fail(INVALID_ARGUMENT, comm, "the stand-in adds unsigned words");
    return queue((operation){comm, (uintptr_t)from, (uintptr_t)to, count * 4, true, stream, 0});
}

PUBLIC int ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm *comm, CUstream stream)
{
    if (type != 1) return fail(INVALID_ARGUMENT, comm, "the stand-in gathers bytes");
    return queue((operation){comm, (uintptr_t)from, (uintptr_t)to, count, false, stream, 0});
}

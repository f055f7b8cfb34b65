/* NCCL without its header: the few prototypes, found at run time, so that the example builds where there is no NCCL; and
 * its ranks, all in one process or one that somebody has launched. */
#ifndef GVMM_EXAMPLES_NCCL_H
#define GVMM_EXAMPLES_NCCL_H

#include <dlfcn.h>
#include <unistd.h>

#include "common.h"

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
enum { ncclUint8 = 1, ncclUint32 = 3, ncclSum = 0 };

/* X(name, parameters), for functions that return an ncclResult_t. Registration came with NCCL 2.19. */
/* clang-format off */
#define NCCL_CALLS(X) \
    X(ncclGetVersion, (int *version)) \
    X(ncclGetUniqueId, (ncclUniqueId *id)) \
    X(ncclCommInitAll, (ncclComm_t *comms, int count, const int *devices)) \
    X(ncclCommInitRank, (ncclComm_t *comm, int size, ncclUniqueId id, int rank)) \
    X(ncclCommDestroy, (ncclComm_t comm)) \
    X(ncclCommRegister, (ncclComm_t comm, void *buffer, size_t size, void **handle)) \
    X(ncclCommDeregister, (ncclComm_t comm, void *handle)) \
    X(ncclGroupStart, (void)) \
    X(ncclGroupEnd, (void)) \
    X(ncclAllGather, (const void *from, void *to, size_t count, int type, ncclComm_t comm, gvmm_stream stream)) \
    X(ncclAllReduce, (const void *from, void *to, size_t count, int type, int how, ncclComm_t comm, gvmm_stream stream))
/* clang-format on */

static struct {
#define X(name, params) int(*name) params;
    NCCL_CALLS(X)
#undef X
    const char *(*ncclGetLastError)(ncclComm_t comm);
} nccl;

static inline void must_nccl(int result, const char *what)
{
    if (result == 0) return;
    fprintf(stderr, "%s: NCCL error %d: %s\n", what, result, nccl.ncclGetLastError(NULL));
    exit(1);
}

/* What cannot be shown here is no failure: 77 says so to CTest and Automake. */
static inline void skip(const char *kind, const char *why)
{
    printf("skip%s: nccl: %s\n", kind, why);
    exit(77);
}

static inline void find_function(void *library, void *out, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) skip("", "this NCCL is older than 2.19: it cannot register buffers");
    memcpy(out, &found, sizeof found);
}

/* libnccl.so.2, or the library that GVMM_NCCL names. */
static inline void open_nccl(void)
{
    int version = 0;
    const char *name = getenv("GVMM_NCCL");
    if (!name && !strstr(cu->origin, "libcuda")) skip("", "needs a GPU: NCCL does not know the simulated driver");
    void *library = dlopen(name ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("%s\n", dlerror());
        skip("", "there is no libnccl.so.2; GVMM_NCCL may say where it is");
    }
#define X(name, params) find_function(library, &nccl.name, #name);
    NCCL_CALLS(X)
#undef X
    find_function(library, &nccl.ncclGetLastError, "ncclGetLastError");
    must_nccl(nccl.ncclGetVersion(&version), "version");
    printf("nccl                    %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
}

/* ---- who is launched as what ---- */

/* What the launcher says: Open MPI, MPICH and Slurm by PMI, torchrun. -1 if none of them says anything. */
static inline int launched_as(const char *const *names)
{
    for (; *names; names++)
        if (getenv(*names)) return atoi(getenv(*names));
    return -1;
}

static inline int launched_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK", NULL};
    return launched_as(names);
}

static inline int launched_size(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE", NULL};
    return launched_as(names);
}

/* How many ranks are on this machine; all of them, if the launcher does not say. */
static inline int launched_here(int size)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE", NULL};
    int count = launched_as(names);
    return count > 0 ? count : size;
}

/* The rank on its machine, which is the device it takes. */
static inline int launched_place(int rank)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK",
                                        NULL};
    int place = launched_as(names);
    return place >= 0 ? place : rank;
}

/* Rank 0's id goes to the others through a file: no MPI is needed, and several machines may share it. The file is made
 * under another name, so that nobody finds half of it, and one that is there already is somebody else's. */
static inline void exchange_id(ncclUniqueId *id, int rank, const char *path)
{
    char other[4096 + 8];
    FILE *file;
    if (rank == 0) {
        must_nccl(nccl.ncclGetUniqueId(id), "id");
        snprintf(other, sizeof other, "%.4095s.new", path);
        file = fopen(other, "wb");
        expect(file && fwrite(id, sizeof *id, 1, file) == 1 && fclose(file) == 0, "the id file can be written");
        expect(link(other, path) == 0, "the id file is not there yet");
        unlink(other);
        return;
    }
    for (int tenths = 0; !(file = fopen(path, "rb")); tenths++) {
        expect(tenths < 600, "rank 0 has written the id file within a minute");
        usleep(100000);
    }
    expect(fread(id, sizeof *id, 1, file) == 1, "the id file is whole");
    fclose(file);
}

/* ---- ranks ---- */

enum { MOST_RANKS = 64 };

typedef struct rank {
    int number, device;
    CUcontext context;
    gvmm_stream stream;
    ncclComm_t comm;
} rank;

static rank ranks[MOST_RANKS]; /* of this process */
static int here, size;         /* how many those are, how many there are in all */

static inline void enter(const rank *r) { must_cu(cu->cuCtxSetCurrent(r->context), "context"); }

static inline void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

static inline void start_rank(rank *r, int number, int device)
{
    *r = (rank){.number = number, .device = device};
    must_cu(cu->cuDevicePrimaryCtxRetain(&r->context, device), "context");
    enter(r);
    must_cu(cu->cuStreamCreate(&r->stream, 0), "stream"); /* waits for copies without a stream */
}

/* One for each device. */
static inline void start_all_here(void)
{
    ncclComm_t comms[MOST_RANKS];
    int devices[MOST_RANKS];
    must_cu(cu->cuDeviceGetCount(&size), "devices");
    if (size < 2) skip(" (hardware)", "there is one device");
    if (size > MOST_RANKS) size = MOST_RANKS;
    for (here = 0; here < size; here++) {
        devices[here] = here;
        start_rank(&ranks[here], here, here);
    }
    must_nccl(nccl.ncclCommInitAll(comms, size, devices), "communicators");
    for (int i = 0; i < here; i++) ranks[i].comm = comms[i];
}

static inline void start_one(int number, int count, const char *path)
{
    ncclUniqueId id;
    int devices;
    must_cu(cu->cuDeviceGetCount(&devices), "devices");
    if (launched_here(count) > devices) skip(" (hardware)", "there is no device for each rank"); /* so say all */
    here = 1;
    size = count;
    start_rank(ranks, number, launched_place(number));
    exchange_id(&id, number, path);
    must_nccl(nccl.ncclCommInitRank(&ranks->comm, size, id, number), "communicator");
    if (number == 0) unlink(path); /* all have read it, or they would not have come this far */
}

/* The ranks that the command line or the launcher says: --rank N --size N --id FILE. True: `flag` was given too. */
static inline bool start_ranks(int argc, char **argv, const char *flag)
{
    int number = launched_rank(), count = launched_size();
    char path[4096];
    bool flagged = false, wrong = false;
    snprintf(path, sizeof path, "/tmp/gvmm-nccl-%ld", (long)getppid()); /* one launcher's ranks on one machine */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], flag) == 0) flagged = true;
        else if (i + 1 == argc) wrong = true;
        else if (strcmp(argv[i], "--rank") == 0) number = atoi(argv[++i]);
        else if (strcmp(argv[i], "--size") == 0) count = atoi(argv[++i]);
        else if (strcmp(argv[i], "--id") == 0) snprintf(path, sizeof path, "%s", argv[++i]);
        else wrong = true;
    }
    if (wrong || (number >= 0 && (count <= number || count > MOST_RANKS))) {
        fprintf(stderr, "usage: %s [%s] [--rank N --size N --id FILE]\n", argv[0], flag);
        exit(2);
    }
    open_device();
    open_nccl();
    if (number < 0) start_all_here();
    else start_one(number, count, path);
    return flagged;
}

static inline void end_ranks(void)
{
    must_nccl(nccl.ncclGroupStart(), "group"); /* the ranks of one thread end together, or each waits for the next */
    for (rank *r = ranks; r < ranks + here; r++) must_nccl(nccl.ncclCommDestroy(r->comm), "communicator");
    must_nccl(nccl.ncclGroupEnd(), "group");
    for (rank *r = ranks; r < ranks + here; r++) {
        must_cu(cu->cuStreamDestroy(r->stream), "stream");
        must_cu(cu->cuDevicePrimaryCtxRelease(r->device), "context");
    }
}

/* Every rank's bytes to every rank, by NCCL itself, over memory that is not gvmm's. `all`: those of this process's ranks
 * when it is called, those of all when it returns. */
static inline void gather(void *all, size_t bytes)
{
    CUdeviceptr space[MOST_RANKS];
    for (int i = 0; i < here; i++) {
        enter(&ranks[i]);
        must_cu(cu->cuMemAlloc(&space[i], bytes * (size_t)(size + 1)), "memory"); /* one's own behind those of all */
        must_cu(cu->cuMemcpyHtoD(space[i] + bytes * (size_t)size, (char *)all + bytes * (size_t)i, bytes), "copy");
    }
    must_nccl(nccl.ncclGroupStart(), "group");
    for (int i = 0; i < here; i++)
        must_nccl(nccl.ncclAllGather(pointer(space[i] + bytes * (size_t)size), pointer(space[i]), bytes, ncclUint8,
                                     ranks[i].comm, ranks[i].stream),
                  "gather");
    must_nccl(nccl.ncclGroupEnd(), "group");
    for (int i = 0; i < here; i++) {
        enter(&ranks[i]);
        must_cu(cu->cuStreamSynchronize(ranks[i].stream), "gather");
        must_cu(cu->cuMemcpyDtoH(all, space[i], bytes * (size_t)size), "copy");
        must_cu(cu->cuMemFree(space[i]), "memory");
    }
}

#endif

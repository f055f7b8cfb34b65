/* NCCL over memory that grows: all-reduce over a buffer, grow it in place, all-reduce over the whole, evict it, restore it,
 * and all-reduce again. NCCL is told of the buffer's pieces, and told anew when they change.
 *
 *     nccl_allreduce                                                  one process, all devices
 *     mpirun -np 2 nccl_allreduce                                     one process a device; needs no MPI to build
 *     nccl_allreduce --rank 0 --size 2 --id /tmp/id & nccl_allreduce --rank 1 --size 2 --id /tmp/id
 *
 * --by-piece reduces piece by piece, each of which is registered, in place of one call over the whole. */
#include "nccl.h"

enum { MOST_PIECES = 16 };

/* What each rank of this process has. */
typedef struct share {
    const rank *rank;
    gvmm_resource *resource;
    gvmm_buffer *buffer;
    void *handles[MOST_PIECES];
    size_t registered, registrations;
    uint64_t generation; /* of the memory that is registered */
} share;

static share shares[MOST_RANKS];
static bool by_piece;

static size_t pieces_of(const share *s, gvmm_segment *pieces)
{
    size_t count;
    must(gvmm_buffer_segments(s->buffer, pieces, MOST_PIECES, &count), "segments");
    expect(count <= MOST_PIECES, "the buffer is in few pieces");
    return count;
}

/* Registers the pieces that are not registered yet. One registration a piece: before it learned of ranges in several
 * pieces, NCCL took the first for all. */
static void register_pieces(share *s)
{
    gvmm_segment pieces[MOST_PIECES];
    size_t count = pieces_of(s, pieces);
    enter(s->rank);
    for (size_t i = s->registered; i < count; i++, s->registered++, s->registrations++)
        must_nccl(nccl.ncclCommRegister(s->rank->comm, pointer(pieces[i].address), pieces[i].size, &s->handles[i]),
                  "register");
    s->generation = gvmm_buffer_generation(s->buffer);
}

static void deregister_pieces(share *s)
{
    enter(s->rank);
    while (s->registered) must_nccl(nccl.ncclCommDeregister(s->rank->comm, s->handles[--s->registered]), "deregister");
}

/* The pages go, or other pages have come to the same addresses. */
static void on_residency(void *user, const gvmm_residency_event *event)
{
    if (event->what == GVMM_BEFORE_EVICT) deregister_pieces(user);
    if (event->what == GVMM_EVICT_FAILED || event->what == GVMM_AFTER_RESTORE) register_pieces(user);
}

/* What every rank can have: a rank that made its memory otherwise, or failed alone, would leave the others waiting. */
static void agree(gvmm_options *options, int *peers)
{
    static gvmm_probe_record records[MOST_RANKS];
    gvmm_probe_report report;
    gvmm_common_report common;
    for (int i = 0; i < here; i++) {
        must(gvmm_probe(&report, ranks[i].device), "probe");
        must(gvmm_probe_pack(&records[i], &report), "probe");
    }
    gather(records, sizeof *records);
    must(gvmm_probe_common(&common, records, (size_t)size), "common answer");
    must(gvmm_probe_settle(options, peers, &common), "options");
    printf("all ranks have          handle type %d, %s RDMA, %zu devices in reach\n", options->handle_type,
           options->gpu_direct_rdma ? "with" : "without", options->peer_count);
}

static void make_buffers(void)
{
    int peers[MOST_RANKS], devices;
    must_cu(cu->cuDeviceGetCount(&devices), "devices");
    if (devices > MOST_RANKS) devices = MOST_RANKS;
    for (int i = 0; i < devices; i++) peers[i] = i;
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.capacity = 64 * MiB; /* grows keep the address */
    options.gpu_direct_rdma = true;
    options.peers = peers; /* in one process NCCL lets a device write into another's buffer */
    options.peer_count = (size_t)devices;
    options.optional = GVMM_OPTIONAL_RDMA | GVMM_OPTIONAL_PEERS;
    agree(&options, peers);
    for (share *s = shares; s < shares + here; s++) {
        s->rank = &ranks[s - shares];
        must(gvmm_resource_create(&s->resource, s->rank->device, &options), "resource");
        gvmm_resource_set_residency_handler(s->resource, on_residency, s);
        must(gvmm_buffer_create(&s->buffer, s->resource, 4 * MiB, s->rank->stream), "buffer");
        register_pieces(s);
    }
}

static void grow(share *s, size_t bytes)
{
    gvmm_buffer *larger;
    must(gvmm_buffer_grow(&larger, s->buffer, bytes, NULL), "grow");
    expect(gvmm_buffer_address(larger) == gvmm_buffer_address(s->buffer), "the buffer stays where it is");
    gvmm_buffer_release(s->buffer);
    s->buffer = larger;
    register_pieces(s); /* the new one; the others are as they were */
}

static void put_to_sleep(share *s)
{
    must(gvmm_buffer_evict(s->buffer, NULL), "evict");
    expect(s->registered == 0, "nothing is registered of memory that is gone");
}

static void wake(share *s)
{
    must(gvmm_buffer_restore(s->buffer), "restore");
    expect(s->registered == 2, "both pieces are registered anew");
}

static void call_all_reduce(const share *s)
{
    gvmm_segment pieces[MOST_PIECES] = {{gvmm_buffer_address(s->buffer), gvmm_buffer_size(s->buffer), 0, 0}};
    size_t count = by_piece ? pieces_of(s, pieces) : 1;
    for (size_t i = 0; i < count; i++)
        must_nccl(nccl.ncclAllReduce(pointer(pieces[i].address), pointer(pieces[i].address), pieces[i].size / 4,
                                     ncclUint32, ncclSum, s->rank->comm, s->rank->stream),
                  "all-reduce");
}

/* Every rank's words differ; each must have become the sum of all. */
static void all_reduce(const char *what, unsigned step)
{
    unsigned seeds = 0;
    for (int i = 0; i < size; i++) seeds += step * ((unsigned)i + 1);
    for (share *s = shares; s < shares + here; s++) {
        enter(s->rank);
        write_words(gvmm_buffer_address(s->buffer), gvmm_buffer_size(s->buffer),
                    step * ((unsigned)s->rank->number + 1));
        expect(gvmm_buffer_generation(s->buffer) == s->generation, "what is registered is what is there");
    }
    must_nccl(nccl.ncclGroupStart(), "group");
    for (share *s = shares; s < shares + here; s++) call_all_reduce(s);
    must_nccl(nccl.ncclGroupEnd(), "group");
    for (share *s = shares; s < shares + here; s++) {
        enter(s->rank);
        must_cu(cu->cuStreamSynchronize(s->rank->stream), "all-reduce");
        expect(has_sums(gvmm_buffer_address(s->buffer), gvmm_buffer_size(s->buffer), (unsigned)size, seeds),
               "every word is the sum of all ranks'");
    }
    printf("%-24s%zu MiB in %zu pieces\n", what, gvmm_buffer_size(shares->buffer) / MiB, shares->registered);
}

int main(int argc, char **argv)
{
    by_piece = start_ranks(argc, argv, "--by-piece");
    make_buffers();
    all_reduce("all-reduce", 1);
    for (share *s = shares; s < shares + here; s++) grow(s, 12 * MiB);
    all_reduce("grown in place", 2);
    for (share *s = shares; s < shares + here; s++) put_to_sleep(s);
    for (share *s = shares; s < shares + here; s++) wake(s);
    all_reduce("evicted and restored", 3);
    printf("registrations           %zu a rank\n", shares->registrations);
    for (share *s = shares; s < shares + here; s++) {
        deregister_pieces(s);
        gvmm_buffer_release(s->buffer);
        gvmm_resource_release(s->resource);
    }
    end_ranks();
    expect_nothing_left();
    return 0;
}

/* Buffers sent to another owner, beside the driver's own export and import.
 *
 *     bench_share [--quick] [--only GROUP]
 *
 * On the machine's driver, or with GVMM_DRIVER=sim on the simulated one. Both ends are threads of this process, which
 * costs the driver what two processes cost it. README.md says what each figure means. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"

static size_t chunks = 1000;
static gvmm_resource *resource;

static const CUmemAllocationHandleType FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/* ---- the receiver: a thread that waits for the next exchange ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int socket; /* -1: nothing to do */
    bool end;
    gvmm_buffer *have, *got;
    double took; /* from the start of the sender */
    double began;
} receiver = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .socket = -1};

static void *receive_all(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&receiver.lock);
    while (!receiver.end) {
        if (receiver.socket < 0) {
            pthread_cond_wait(&receiver.changed, &receiver.lock);
            continue;
        }
        int end = receiver.socket;
        gvmm_share_options options = GVMM_SHARE_OPTIONS_INIT;
        options.have = receiver.have;
        pthread_mutex_unlock(&receiver.lock);
        gvmm_buffer *got;
        OK(gvmm_buffer_receive(&got, resource, end, NULL, &options));
        pthread_mutex_lock(&receiver.lock);
        receiver.took = now() - receiver.began;
        receiver.got = got;
        receiver.socket = -1;
        pthread_cond_broadcast(&receiver.changed);
    }
    pthread_mutex_unlock(&receiver.lock);
    return NULL;
}

/* What the sender took, and in *received until the receiver had its buffer. */
static double exchange(gvmm_buffer *buffer, gvmm_buffer *have, double *received)
{
    int ends[2];
    MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    pthread_mutex_lock(&receiver.lock);
    receiver.have = have;
    receiver.socket = ends[1];
    receiver.began = now();
    pthread_cond_broadcast(&receiver.changed);
    pthread_mutex_unlock(&receiver.lock);
    double start = now();
    OK(gvmm_buffer_send(buffer, ends[0], NULL));
    double took = now() - start;
    pthread_mutex_lock(&receiver.lock);
    while (receiver.socket >= 0) pthread_cond_wait(&receiver.changed, &receiver.lock);
    pthread_mutex_unlock(&receiver.lock);
    close(ends[0]);
    close(ends[1]);
    *received = receiver.took;
    MUST(gvmm_buffer_size(receiver.got) == gvmm_buffer_size(buffer));
    return took;
}

static gvmm_buffer *fresh(void)
{
    gvmm_buffer *buffer;
    OK(gvmm_buffer_create(&buffer, resource, chunks * G, NULL));
    return buffer;
}

/* ---- by hand ---- */

typedef struct row {
    CUmemGenericAllocationHandle *made, *imported;
    int *fds;
} row;

static row make_row(void)
{
    row r = {calloc(chunks, sizeof *r.made), calloc(chunks, sizeof *r.imported), calloc(chunks, sizeof *r.fds)};
    MUST(r.made && r.imported && r.fds);
    for (size_t i = 0; i < chunks; i++) CU(cu->cuMemCreate(&r.made[i], G, &raw_prop, 0));
    return r;
}

static void export_row(const row *r)
{
    for (size_t i = 0; i < chunks; i++) CU(cu->cuMemExportToShareableHandle(&r->fds[i], r->made[i], FD, 0));
}

static void import_row(const row *r)
{
    for (size_t i = 0; i < chunks; i++)
        CU(cu->cuMemImportFromShareableHandle(&r->imported[i], (void *)(intptr_t)r->fds[i], FD));
}

static void give_up_imports(const row *r)
{
    for (size_t i = 0; i < chunks; i++) CU(cu->cuMemRelease(r->imported[i]));
}

static void end_row(row *r, bool exported)
{
    for (size_t i = 0; i < chunks; i++) {
        if (exported) close(r->fds[i]);
        CU(cu->cuMemRelease(r->made[i]));
    }
    free(r->made);
    free(r->imported);
    free(r->fds);
}

static CUdeviceptr map_row(const row *r)
{
    CUdeviceptr base;
    CU(cu->cuMemAddressReserve(&base, chunks * G, 0, 0, 0));
    for (size_t i = 0; i < chunks; i++) {
        CU(cu->cuMemMap(base + i * G, G, 0, r->imported[i], 0));
        CU(cu->cuMemSetAccess(base + i * G, G, &raw_access, 1));
    }
    return base;
}

static void unmap_row(CUdeviceptr base)
{
    for (size_t i = 0; i < chunks; i++) CU(cu->cuMemUnmap(base + i * G, G));
    CU(cu->cuMemAddressFree(base, chunks * G));
}

/* ---- the first time ---- */

static double first_gvmm(void *until_mapped)
{
    double received, sent;
    gvmm_buffer *buffer = fresh();
    sent = exchange(buffer, NULL, &received);
    gvmm_buffer_release(receiver.got);
    gvmm_buffer_release(buffer);
    gvmm_drain(); /* nobody gives back while the next is timed; here and below */
    return until_mapped ? received : sent;
}

static double first_raw(void *until_mapped)
{
    row r = make_row();
    CUdeviceptr base = 0;
    double start = now();
    export_row(&r);
    import_row(&r);
    if (until_mapped) base = map_row(&r);
    double took = now() - start;
    if (until_mapped) unmap_row(base);
    give_up_imports(&r);
    end_row(&r, true);
    return took;
}

static void first_times(void)
{
    static int yes;
    for (int mapped = 0; mapped < 2; mapped++) {
        void *state = mapped ? &yes : NULL;
        side sides[] = {{first_gvmm, state}, {first_raw, state}};
        samples s[2];
        interleave(s, sides, 2, bench_quick ? 4 : 20, 1);
        const char *name = mapped ? "share_first_mapped" : "share_first";
        report(&(figure){.name = name, .size = chunks * G, .chunks = chunks, .per_chunk = true}, &s[0], &s[1]);
        if (!mapped)
            report_value("share_first_ratio", chunks, samples_median(&s[0]) / samples_median(&s[1]), NAN, 1.05,
                         "times the driver's own export and import");
        samples_free(&s[0]);
        samples_free(&s[1]);
    }
}

/* ---- the two halves, without a socket ---- */

static double export_gvmm(void *unused)
{
    gvmm_buffer *buffer = fresh();
    gvmm_export *e;
    (void)unused;
    double start = now();
    OK(gvmm_buffer_export(&e, buffer, 0));
    double took = now() - start;
    gvmm_export_release(e);
    gvmm_buffer_release(buffer);
    gvmm_drain();
    return took;
}

/* Of memory that is mapped, as the buffer's is. */
static double export_raw(void *unused)
{
    row r = make_row();
    (void)unused;
    memcpy(r.imported, r.made, chunks * sizeof *r.made);
    CUdeviceptr base = map_row(&r);
    double start = now();
    export_row(&r);
    double took = now() - start;
    unmap_row(base);
    end_row(&r, true);
    return took;
}

static double import_gvmm(void *shared)
{
    gvmm_buffer *got;
    double start = now();
    OK(gvmm_buffer_import(&got, resource, shared, NULL, NULL));
    double took = now() - start;
    gvmm_buffer_release(got);
    gvmm_drain();
    return took;
}

static double import_raw(void *state)
{
    const row *r = state;
    double start = now();
    import_row(r);
    CUdeviceptr base = map_row(r);
    double took = now() - start;
    unmap_row(base);
    give_up_imports(r);
    return took;
}

static void halves(void)
{
    gvmm_buffer *buffer = fresh();
    gvmm_export *e;
    gvmm_shared shared;
    row r = make_row();
    export_row(&r);
    OK(gvmm_buffer_export(&e, buffer, 0));
    gvmm_export_contents(e, &shared);
    side out[] = {{export_gvmm, NULL}, {export_raw, NULL}}, in[] = {{import_gvmm, &shared}, {import_raw, &r}};
    samples s[2];
    interleave(s, out, 2, bench_quick ? 4 : 20, 1);
    report(&(figure){.name = "share_export", .size = chunks * G, .chunks = chunks, .per_chunk = true}, &s[0], &s[1]);
    samples_free(&s[0]);
    samples_free(&s[1]);
    interleave(s, in, 2, bench_quick ? 4 : 20, 1);
    report(&(figure){.name = "share_import_mapped", .size = chunks * G, .chunks = chunks, .per_chunk = true}, &s[0],
           &s[1]);
    samples_free(&s[0]);
    samples_free(&s[1]);
    gvmm_export_release(e);
    gvmm_buffer_release(buffer);
    end_row(&r, true);
}

/* ---- again ---- */

static double again_gvmm(void *buffer)
{
    double received, sent = exchange(buffer, NULL, &received);
    gvmm_buffer_release(receiver.got);
    gvmm_drain();
    return sent;
}

static double again_raw(void *state)
{
    const row *r = state;
    double start = now();
    import_row(r);
    double took = now() - start;
    give_up_imports(r);
    return took;
}

static double export_again(void *buffer)
{
    gvmm_export *e;
    double start = now();
    OK(gvmm_buffer_export(&e, buffer, 0));
    double took = now() - start;
    gvmm_export_release(e);
    gvmm_drain();
    return took;
}

static void again(void)
{
    double received;
    gvmm_buffer *buffer = fresh();
    row r = make_row();
    export_row(&r);
    exchange(buffer, NULL, &received);
    gvmm_buffer *have = receiver.got;
    side sides[] = {{again_gvmm, buffer}, {again_raw, &r}};
    samples s[2], one[1];
    interleave(s, sides, 2, bench_quick ? 4 : 20, 1);
    report(&(figure){.name = "share_again", .size = chunks * G, .chunks = chunks, .per_chunk = true}, &s[0], &s[1]);
    report_value("share_again_chunk", chunks, samples_median(&s[0]) / (double)chunks,
                 samples_median(&s[1]) / (double)chunks, 50, "us a chunk");
    side alone[] = {{export_again, buffer}};
    interleave(one, alone, 1, bench_quick ? 4 : 20, 1);
    report(&(figure){.name = "share_export_again", .size = chunks * G, .chunks = chunks, .per_chunk = true}, &one[0],
           NULL);

    samples growth = {malloc(16 * sizeof(double)), 0};
    MUST(growth.us);
    for (int i = 0; i < 16; i++) { /* by one chunk, which alone goes over */
        gvmm_buffer *longer;
        OK(gvmm_buffer_grow(&longer, buffer, gvmm_buffer_size(buffer) + G, NULL));
        gvmm_buffer_release(buffer);
        buffer = longer;
        gvmm_drain();
        growth.us[growth.count++] = exchange(buffer, have, &received);
        MUST(gvmm_buffer_address(receiver.got) == gvmm_buffer_address(have));
        gvmm_buffer_release(have);
        have = receiver.got;
    }
    report(
        &(figure){.name = "share_growth", .size = G, .chunks = chunks, .note = "one chunk more, of which alone goes"},
        &growth, NULL);
    samples_free(&growth);
    samples_free(&one[0]);
    samples_free(&s[0]);
    samples_free(&s[1]);
    gvmm_buffer_release(have);
    gvmm_buffer_release(buffer);
    end_row(&r, true);
}

/* ---- main ---- */

/* Each chunk needs some, on both sides. */
static void raise_limit(void)
{
    struct rlimit limit;
    MUST(!getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < 6 * chunks) chunks = (size_t)limit.rlim_cur / 6;
}

int main(int argc, char **argv)
{
    bench_start(bench_options(argc, argv, "first|halves|again"));
    raise_limit();
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.chunk_size = G;
    options.capacity = (chunks + 64) * G;
    OK(gvmm_resource_create(&resource, 0, &options));
    pthread_t thread;
    MUST(!pthread_create(&thread, NULL, receive_all, NULL));
    if (!fits(3 * chunks * G)) {
        report_skip("share", 3 * chunks * G, chunks, "does not fit in device memory");
    } else {
        if (bench_wants("first")) first_times();
        if (bench_wants("halves")) halves();
        if (bench_wants("again")) again();
    }
    pthread_mutex_lock(&receiver.lock);
    receiver.end = true;
    pthread_cond_broadcast(&receiver.changed);
    pthread_mutex_unlock(&receiver.lock);
    pthread_join(thread, NULL);
    gvmm_resource_release(resource);
    return bench_end();
}

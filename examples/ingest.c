/* Reads a stream of unknown length into one contiguous device buffer that grows as bytes arrive, reads it
 * back and verifies every byte.
 *
 *     ingest FILE | ingest -          (- is standard input)
 *
 * Runs on the machine's GPU, or on the simulated driver where there is none. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gvmm/sim.h"

enum { PIECE = 8 << 20 }; /* bytes moved at a time */

static const gvmm_driver *cu;

static void die(const char *what)
{
    gvmm_error error;
    gvmm_last_error(&error);
    fprintf(stderr, "ingest: %s: %s\n", what, error.text);
    exit(1);
}

static void must(CUresult status, const char *what)
{
    if (status == CUDA_SUCCESS) return;
    fprintf(stderr, "ingest: %s: %s\n", what, gvmm_driver_status_name((int)status));
    exit(1);
}

/* A digest of the stream so far: every bit of every byte takes part. */
static uint64_t digest(uint64_t h, const unsigned char *bytes, size_t count)
{
    for (; count >= 8; bytes += 8, count -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    while (count--) h = (h ^ *bytes++) * 0x100000001b3u;
    return h;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Fills the piece as far as the stream goes, so that pieces, and so digests, do not depend on how a pipe delivers. */
static size_t read_piece(int fd, unsigned char *piece)
{
    size_t have = 0;
    ssize_t got;
    while (have < PIECE && (got = read(fd, piece + have, PIECE - have)) > 0) have += (size_t)got;
    if (have < PIECE && got < 0) {
        perror("ingest: read");
        exit(1);
    }
    return have;
}

static void progress(const char *what, uint64_t bytes)
{
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%s %.1f MiB ", what, (double)bytes / (1 << 20));
}

typedef struct outcome {
    uint64_t bytes, spared; /* spared: what growing by allocate, copy and free would have copied */
    unsigned in_place, moved;
    uint64_t addresses[64]; /* where the buffer has been */
} outcome;

/* A larger view of the same memory in place of the old one. */
static gvmm_buffer *grow(gvmm_buffer *buffer, size_t size, outcome *o)
{
    gvmm_buffer *larger;
    if (gvmm_buffer_grow(&larger, buffer, size, NULL)) die("grow");
    bool stayed = gvmm_buffer_address(larger) == gvmm_buffer_address(buffer);
    *(stayed ? &o->in_place : &o->moved) += 1;
    o->addresses[o->moved % 64] = gvmm_buffer_address(larger);
    o->spared += o->bytes;
    gvmm_buffer_release(buffer);
    return larger;
}

static bool ingest(int fd, outcome *o)
{
    gvmm_resource *resource;
    gvmm_buffer *buffer;
    if (gvmm_resource_create(&resource, 0, NULL)) die("resource");
    if (gvmm_buffer_create(&buffer, resource, PIECE, NULL)) die("buffer");

    o->addresses[0] = gvmm_buffer_address(buffer);
    unsigned char *piece = malloc(PIECE);
    if (!piece) exit(1);
    uint64_t written = 0, read_back = 0;
    for (size_t n; (n = read_piece(fd, piece)) > 0; o->bytes += n) {
        size_t size = gvmm_buffer_size(buffer);
        if (o->bytes + n > size) buffer = grow(buffer, size + size / 4 + PIECE, o);
        must(cu->cuMemcpyHtoD(gvmm_buffer_address(buffer) + o->bytes, piece, n), "copy to the device");
        written = digest(written, piece, n);
        progress("read", o->bytes + n);
    }
    for (uint64_t at = 0, n; at < o->bytes; at += n) {
        n = o->bytes - at < PIECE ? o->bytes - at : PIECE;
        must(cu->cuMemcpyDtoH(piece, gvmm_buffer_address(buffer) + at, n), "copy from the device");
        read_back = digest(read_back, piece, n);
        progress("verified", at + n);
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\n");
    free(piece);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    gvmm_drain(); /* releases are deferred; what is left is asked next */
    return written == read_back;
}

/* Nothing may be left: the driver is asked at every address the buffer had, and the simulated driver for all it
 * holds. */
static uint64_t left_over(const outcome *o, bool simulated)
{
    uint64_t left = 0;
    for (int i = 0; i < 64; i++) {
        CUmemGenericAllocationHandle handle;
        if (!o->addresses[i] || cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)o->addresses[i])) continue;
        left++;
        cu->cuMemRelease(handle);
    }
    size_t counts[GVMM_SIM_KIND_COUNT];
    if (!simulated) return left;
    gvmm_sim_census(counts, NULL, NULL);
    return left + counts[GVMM_SIM_MEMORY] + counts[GVMM_SIM_RESERVATION] + counts[GVMM_SIM_MAPPING];
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: ingest FILE | ingest -\n");
        return 2;
    }
    int fd = strcmp(argv[1], "-") == 0 ? STDIN_FILENO : open(argv[1], O_RDONLY);
    if (fd < 0) {
        perror(argv[1]);
        return 2;
    }
    if (gvmm_driver_get(&cu)) {
        const char *named = getenv("GVMM_DRIVER");
        if (named && *named) die("driver");
        if (gvmm_driver_install(gvmm_sim_driver()) || gvmm_driver_get(&cu)) die("simulated driver");
    }
    char device[128] = "?";
    CUcontext context;
    must(cu->cuDeviceGetName(device, sizeof device, 0), "device 0");
    must(cu->cuDevicePrimaryCtxRetain(&context, 0), "context");
    must(cu->cuCtxSetCurrent(context), "context");
    printf("driver                  %s, %s\n", cu->origin, device);
    printf("reading                 %s\n", fd == STDIN_FILENO ? "standard input" : argv[1]);

    outcome o = {0};
    double start = seconds();
    bool same = ingest(fd, &o);
    uint64_t left = left_over(&o, strcmp(cu->origin, gvmm_sim_driver()->origin) == 0);
    printf("bytes                   %llu\n", (unsigned long long)o.bytes);
    printf("grown in place, moved   %u, %u\n", o.in_place, o.moved);
    printf("bytes not copied        %llu\n", (unsigned long long)o.spared);
    printf("time                    %.3f s\n", seconds() - start);
    printf("every byte verified     %s\n", same ? "yes" : "NO");
    printf("left after close        %llu objects\n", (unsigned long long)left);
    must(cu->cuDevicePrimaryCtxRelease(0), "context");
    return same && left == 0 ? 0 : 1;
}

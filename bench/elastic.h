/* What the files of bench_elastic share.
 *
 * elastic_contents.c has the groups host and rotation, elastic_deferred.c deferred, bench_elastic.c the rest. */
#ifndef GVMM_BENCH_ELASTIC_H
#define GVMM_BENCH_ELASTIC_H

#include "bench.h"

/* The whole program is to take less than 100 s: what repeats stops when its share is used up. */
double seconds_left(void);
size_t times(size_t n); /* a tenth of it with --quick */

/* Samples that are not taken by interleave. */
samples room_for(size_t n);
void push(samples *s, double value);

double per_second(size_t bytes, double us); /* GB/s, of 10^9 bytes */

/* 8 GiB, or what fits three times into the device and into half of the host's memory. */
size_t model_size(void);

/* Whole, by 64 MiB, by 2 MiB. */
enum { LAYOUTS = 3 };
size_t chunk_of(size_t layout, size_t size);

gvmm_buffer *buffer_of(size_t size, size_t chunk); /* with a resource of its own */
void evict_with(gvmm_buffer *buffer, gvmm_contents contents);

/* elastic_backup.c: pinned host memory as an evict makes it, or NULL; given up. On device 0. */
void *backup_make(size_t size);
void backup_drop(void *made);

void contents(void);
void rotations(void);
void deferred(void);

#endif

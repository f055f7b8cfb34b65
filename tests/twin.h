/* The naive twin of the library: what ought to be alive, in plain arrays, with nothing shared and nothing counted.
 *
 * A view is a plain list of places; a place says which chunk is mapped where, in which reservation. Whether any of them is still alive
 * is found out by walking everything that has a view, every time it is asked. */
#ifndef GVMM_TEST_TWIN_H
#define GVMM_TEST_TWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gvmm.h"

enum {
    BUFFERS = 12,
    PIECES = 16, /* places of one view */
    PLACES = 512,
    STREAMS = 3, /* 0 and 2 are non-blocking, 1 is blocking */
    GRAPHS = 3,
    EXECS = 3,
    HELD = 4,    /* views that one graph holds */
    SETS = 4,    /* memsets of one graph */
    PENDING = 4, /* items queued on one stream */
    DECOYS = 4,
    RESOURCES = 3,
    BY_HAND = -1, /* in place of a resource: not the library's */
    BLOCKING = 1
};

/* The bytes of a chunk that are watched: its first eight and its last eight, each of one value. */
typedef struct chunk {
    size_t size;
    int resource;
    bool on_device;
    uint8_t access[2]; /* gvmm_access of devices 0 and 1 */
    uint8_t bytes[2];
    uint64_t identity; /* what gvmm_buffer_segments calls it; 0: not asked yet */
} chunk;

typedef struct space {
    uint64_t base;
    size_t size;
    int resource;
} space;

typedef struct place {
    uint64_t address;
    int chunk, space;
} place;

typedef struct view {
    int count;
    int place[PIECES];
} view;

/* Gives one end of a chunk the value. */
typedef struct set {
    int chunk, place, end;
    uint8_t value;
} set;

/* What a graph, an executable or a queued item does, and what it keeps alive meanwhile. */
typedef struct work {
    int set_count, held_count;
    set sets[SETS];
    view held[HELD];
} work;

typedef struct twin_buffer {
    bool alive, open, wrapped, own_free;
    int references, resource;
    gvmm_stream stream;
    view view;
} twin_buffer;

typedef struct twin_stream {
    bool gate, capturing;
    int pending_count;
    work pending[PENDING];
    int exec[PENDING]; /* whose launch it is, or -1 */
    work capture;
} twin_stream;

typedef struct twin_graph {
    bool alive;
    work work;
} twin_graph;

typedef struct twin {
    chunk chunks[PLACES];
    space spaces[PLACES];
    place places[PLACES];
    twin_buffer buffers[BUFFERS];
    twin_stream streams[STREAMS];
    twin_graph graphs[GRAPHS], execs[EXECS];
    uint64_t decoys[DECOYS];      /* one granule each; 0: none */
    gvmm_stats so_far[RESOURCES]; /* the figures that only ever grow */
} twin;

/* What is alive, found by walking. */
typedef struct survey {
    bool chunk[PLACES], space[PLACES], place[PLACES];
    int chunks, spaces, places; /* those made by hand too */
    int library_chunks;
    uint64_t device_bytes; /* physical, on device 0 */
} survey;

void twin_survey(const twin *t, survey *out);

/* The figures of one resource, or of all of them for -1. */
void twin_stats(const twin *t, const survey *s, int resource, gvmm_stats *out);

/* Slots that nothing alive uses. -1: none. */
int twin_free_place(const survey *s);
int twin_free_chunk(const survey *s);
int twin_free_space(const survey *s);

/* Nobody has reserved any of it. */
bool twin_is_free(const twin *t, const survey *s, size_t granule, uint64_t address, size_t size);

size_t twin_size(const twin *t, const view *v);
uint64_t twin_address(const twin *t, const view *v);

/* Does an open buffer other than `but` show the place? */
bool twin_shown_elsewhere(const twin *t, int place, int but);

/* Is work that touches the chunk, or the place, queued on the stream? */
bool twin_pending_on_chunk(const twin_stream *s, int chunk);
bool twin_pending_on_place(const twin_stream *s, int place);

/* What the work does to the bytes, done. */
void twin_do(twin *t, const work *w);

#endif

/* The naive twin: walking everything. */
#include "twin.h"

#include <string.h>

static void mark(const twin *t, survey *s, const view *v)
{
    for (int i = 0; i < v->count; i++) {
        const place *p = &t->places[v->place[i]];
        s->place[v->place[i]] = true;
        s->chunk[p->chunk] = true;
        s->space[p->space] = true;
    }
}

static void mark_held(const twin *t, survey *s, const work *w)
{
    for (int i = 0; i < w->held_count; i++) mark(t, s, &w->held[i]);
}

void twin_survey(const twin *t, survey *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < BUFFERS; i++)
        if (t->buffers[i].alive) mark(t, out, &t->buffers[i].view);
    for (int i = 0; i < GRAPHS; i++)
        if (t->graphs[i].alive) mark_held(t, out, &t->graphs[i].work);
    for (int i = 0; i < EXECS; i++)
        if (t->execs[i].alive) mark_held(t, out, &t->execs[i].work);
    for (int i = 0; i < STREAMS; i++) {
        const twin_stream *s = &t->streams[i];
        if (s->capturing) mark_held(t, out, &s->capture);
        for (int k = 0; k < s->pending_count; k++) mark_held(t, out, &s->pending[k]);
    }
    for (int i = 0; i < PLACES; i++) {
        out->places += out->place[i];
        out->spaces += out->space[i];
        out->chunks += out->chunk[i];
        if (!out->chunk[i]) continue;
        out->library_chunks += t->chunks[i].resource != BY_HAND;
        if (t->chunks[i].on_device) out->device_bytes += t->chunks[i].size;
    }
}

void twin_stats(const twin *t, const survey *s, int resource, gvmm_stats *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < PLACES; i++) {
        const chunk *c = &t->chunks[i], *shown = &t->chunks[t->places[i].chunk];
        const space *r = &t->spaces[i];
        if (s->chunk[i] && c->resource != BY_HAND && (resource < 0 || c->resource == resource)) {
            out->memories++;
            out->physical_bytes += c->size;
        }
        if (s->space[i] && r->resource != BY_HAND && (resource < 0 || r->resource == resource)) {
            out->reservations++;
            out->reserved_bytes += r->size;
        }
        if (s->place[i] && shown->resource != BY_HAND && (resource < 0 || shown->resource == resource)) {
            out->mappings++;
            out->mapped_bytes += shown->size;
        }
    }
    for (int i = 0; i < BUFFERS; i++) {
        const twin_buffer *b = &t->buffers[i];
        if (b->alive && b->open && (resource < 0 || b->resource == resource)) out->buffers++;
    }
    for (int i = 0; i < RESOURCES; i++) {
        if (resource >= 0 && i != resource) continue;
        out->allocations += t->so_far[i].allocations;
        out->grows_in_place += t->so_far[i].grows_in_place;
        out->grows_moved += t->so_far[i].grows_moved;
        out->aliases += t->so_far[i].aliases;
    }
}

static int first_unused(const bool used[PLACES])
{
    for (int i = 0; i < PLACES; i++)
        if (!used[i]) return i;
    return -1;
}

int twin_free_place(const survey *s) { return first_unused(s->place); }
int twin_free_chunk(const survey *s) { return first_unused(s->chunk); }
int twin_free_space(const survey *s) { return first_unused(s->space); }

static bool meet(uint64_t a, size_t a_size, uint64_t b, size_t b_size) { return a < b + b_size && b < a + a_size; }

bool twin_is_free(const twin *t, const survey *s, size_t granule, uint64_t address, size_t size)
{
    for (int i = 0; i < PLACES; i++)
        if (s->space[i] && meet(t->spaces[i].base, t->spaces[i].size, address, size)) return false;
    for (int i = 0; i < DECOYS; i++)
        if (t->decoys[i] && meet(t->decoys[i], granule, address, size)) return false;
    return true;
}

size_t twin_size(const twin *t, const view *v)
{
    size_t size = 0;
    for (int i = 0; i < v->count; i++) size += t->chunks[t->places[v->place[i]].chunk].size;
    return size;
}

uint64_t twin_address(const twin *t, const view *v) { return v->count ? t->places[v->place[0]].address : 0; }

bool twin_shown_elsewhere(const twin *t, int place, int but)
{
    for (int i = 0; i < BUFFERS; i++) {
        const twin_buffer *b = &t->buffers[i];
        for (int k = 0; i != but && b->alive && k < b->view.count; k++)
            if (b->view.place[k] == place) return true;
    }
    return false;
}

bool twin_pending_on_chunk(const twin_stream *s, int chunk)
{
    for (int i = 0; i < s->pending_count; i++)
        for (int k = 0; k < s->pending[i].set_count; k++)
            if (s->pending[i].sets[k].chunk == chunk) return true;
    return false;
}

bool twin_pending_on_place(const twin_stream *s, int place)
{
    for (int i = 0; i < s->pending_count; i++)
        for (int k = 0; k < s->pending[i].set_count; k++)
            if (s->pending[i].sets[k].place == place) return true;
    return false;
}

void twin_do(twin *t, const work *w)
{
    for (int i = 0; i < w->set_count; i++) t->chunks[w->sets[i].chunk].bytes[w->sets[i].end] = w->sets[i].value;
}

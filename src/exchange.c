/* Buffers over a socket. The two sides take turns, so that no more than one message's descriptors are on their way and
 * each side learns how the other fared:
 *
 *     sender      receiver
 *     OFFER                       how many chunks there are
 *                 ANSWER          the chunks that it has, by identity; how many descriptors it can take at a time
 *     DESCRIPTOR                  the bytes of an export without those
 *     HANDLES                     some descriptors ...
 *                 DONE            ... are imported; and so on. After the last one the receiver holds all of the memory
 *
 * Mapping it is then the receiver's own affair. With no descriptors to send, DONE follows DESCRIPTOR. Either side can
 * end it by a frame with a result that is not GVMM_OK in the place of its own. docs/sharing.md has the frames'
 * fields. */
#include <string.h>

#include "internal.h"

typedef enum kind { OFFER = 1, ANSWER, DESCRIPTOR, HANDLES, DONE } kind;

typedef struct frame {
    char magic[4];
    uint16_t version;
    uint16_t kind;
    uint32_t result; /* a gvmm_result */
    uint32_t count;  /* OFFER, ANSWER: chunks; HANDLES: descriptors */
    uint64_t size;   /* DESCRIPTOR: bytes that follow */
    uint32_t batch;  /* ANSWER: descriptors at a time */
    uint32_t zero;
} frame;

_Static_assert(sizeof(frame) == 32 && sizeof(gvmm_identity) == 32, "no padding: these are sent");

static frame frame_of(kind k) { return (frame){.magic = "gvm", .version = WIRE_VERSION, .kind = (uint16_t)k}; }

static gvmm_result send_frame(const connection *c, frame f) { return gvmm__connection_send(c, &f, sizeof f, NULL, 0); }

/* Tells the other side of a failure of ours, if it is still there to hear it; the failure is what is reported. */
static gvmm_result send_failure(const connection *c, kind k, gvmm_result r)
{
    saved_error first;
    gvmm__error_save(&first);
    frame f = frame_of(k);
    f.result = r;
    send_frame(c, f);
    return gvmm__error_restore(&first);
}

static gvmm_result check_frame(const frame *f, kind wanted, const char *who)
{
    if (memcmp(f->magic, "gvm", sizeof f->magic) != 0 || f->zero)
        return gvmm__fail(GVMM_E_INVALID, "socket: what came is nothing of gvmm's");
    if (f->version != WIRE_VERSION)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "socket: %s speaks version %u; this library knows %d", who, f->version,
                          WIRE_VERSION);
    if (f->kind != wanted || f->result > GVMM_E_DRIVER)
        return gvmm__fail(GVMM_E_INVALID, "socket: %s sent something else than it should have", who);
    if (f->result)
        return gvmm__fail((gvmm_result)f->result, "%s failed: %s", who, gvmm_result_name((gvmm_result)f->result));
    return GVMM_OK;
}

static gvmm_result receive_frame(const connection *c, frame *f, kind wanted, const char *who)
{
    gvmm_result r = gvmm__connection_receive(c, f, sizeof *f, NULL, NULL);
    return r ? r : check_frame(f, wanted, who);
}

/* Checks the options and the socket, and starts the clock. */
static gvmm_result begin(connection *c, int socket, gvmm_share_options *out, const gvmm_share_options *given)
{
    *out = (gvmm_share_options)GVMM_SHARE_OPTIONS_INIT;
    if (gvmm__in_child()) return gvmm__fail_in_child();
    if (given && given->struct_size != sizeof *given)
        return gvmm__fail(GVMM_E_INVALID, "share options: struct_size is %zu, not %zu", given->struct_size,
                          sizeof *given);
    if (given) *out = *given;
    return gvmm__connection_open(c, socket, out->timeout_ms);
}

/* ---- sender ---- */

static bool is_same(const gvmm_identity *a, const gvmm_identity *b) { return memcmp(a, b, sizeof *a) == 0; }

/* Reads what the receiver has. *known: as many of the first chunks are ours. */
static gvmm_result read_known(const connection *c, size_t *known, size_t theirs, const range **links, size_t count)
{
    gvmm_identity some[64];
    gvmm_result r = GVMM_OK;
    bool same = true;
    *known = 0;
    for (size_t done = 0; done < theirs && !r;) {
        size_t n = theirs - done < 64 ? theirs - done : 64;
        r = gvmm__connection_receive(c, some, n * sizeof *some, NULL, NULL);
        for (size_t i = 0; i < n && !r && same; i++) {
            gvmm_identity own;
            same = *known < count;
            if (same) own = gvmm__memory_identity(links[*known]->mapping.memory);
            same = same && is_same(&own, &some[i]);
            *known += same;
        }
        done += n;
    }
    return r;
}

static gvmm_result send_handles(const connection *c, const gvmm_shared *s, size_t batch)
{
    size_t done = 0;
    do {
        frame f;
        gvmm_result r = GVMM_OK;
        size_t n = s->fd_count - done < batch ? s->fd_count - done : batch;
        if (n) {
            f = frame_of(HANDLES);
            f.count = (uint32_t)n;
            r = gvmm__connection_send(c, &f, sizeof f, s->fds + done, n);
        }
        if (!r) r = receive_frame(c, &f, DONE, "the receiver");
        if (r) return r;
        done += n;
    } while (done < s->fd_count);
    return GVMM_OK;
}

static gvmm_result send_export(const connection *c, const gvmm_export *e, size_t batch)
{
    gvmm_shared s;
    gvmm_export_contents(e, &s);
    frame f = frame_of(DESCRIPTOR);
    f.size = s.size;
    gvmm_result r = send_frame(c, f);
    if (!r) r = gvmm__connection_send(c, s.bytes, s.size, NULL, 0);
    return r ? r : send_handles(c, &s, batch);
}

static gvmm_result send_range(const connection *c, range *range_, const range **links, size_t count)
{
    unsigned handle_type;
    frame f = frame_of(OFFER);
    f.count = (uint32_t)count;
    gvmm_result r = gvmm__export_check(&handle_type, links, count, 0);
    r = r ? send_failure(c, OFFER, r) : send_frame(c, f);
    if (!r) r = receive_frame(c, &f, ANSWER, "the receiver");
    if (!r && (f.count > WIRE_MOST_CHUNKS || f.batch == 0 || f.batch > SOCKET_MOST_FDS))
        r = gvmm__fail(GVMM_E_INVALID, "socket: the receiver's answer makes no sense");
    size_t known = 0, batch = r ? 0 : f.batch;
    if (!r) r = read_known(c, &known, f.count, links, count);
    if (r) return r;
    gvmm_export *e = NULL;
    r = gvmm__export_create(&e, range_, known);
    r = r ? send_failure(c, DESCRIPTOR, r) : send_export(c, e, batch);
    gvmm_export_release(e);
    return r;
}

gvmm_result gvmm_buffer_send(gvmm_buffer *buffer, int socket, const gvmm_share_options *options)
{
    if (!buffer) return gvmm__fail(GVMM_E_INVALID, "buffer is NULL");
    connection c;
    gvmm_share_options o;
    range *links = NULL;
    size_t count;
    gvmm_result r = begin(&c, socket, &o, options);
    if (!r) r = gvmm__buffer_borrow(&links, buffer);
    if (r) return r;
    const range **list = gvmm__range_links(links, &count);
    r = list ? send_range(&c, links, list, count) : GVMM_E_NO_HOST_MEMORY;
    if (list) gvmm__free(list);
    gvmm__range_release(links);
    return r;
}

/* ---- receiver ---- */

/* Says what is there of the buffer that is offered. */
static gvmm_result send_known(const connection *c, const range *have, size_t batch)
{
    gvmm_identity some[64];
    size_t count, n;
    const range **links = gvmm__range_links(have, &count);
    if (!links) return send_failure(c, ANSWER, GVMM_E_NO_HOST_MEMORY);
    if (count > WIRE_MOST_CHUNKS) count = WIRE_MOST_CHUNKS;
    frame f = frame_of(ANSWER);
    f.count = (uint32_t)count;
    f.batch = (uint32_t)batch;
    gvmm_result r = send_frame(c, f);
    for (size_t done = 0; done < count && !r; done += n) {
        n = count - done < 64 ? count - done : 64;
        for (size_t i = 0; i < n; i++) some[i] = gvmm__memory_identity(links[done + i]->mapping.memory);
        r = gvmm__connection_send(c, some, n * sizeof *some, NULL, 0);
    }
    gvmm__free(links);
    return r;
}

/* If the last DONE finds nobody, what was imported is good all the same. */
static gvmm_result send_done(const connection *c, const importer *i)
{
    saved_error before;
    gvmm__error_save(&before);
    gvmm_result r = send_frame(c, frame_of(DONE));
    if (!r || i->count < i->wanted) return r;
    gvmm__error_restore(&before);
    return GVMM_OK;
}

/* Takes descriptors and imports them; none stays open. The sender goes on while they are closed. */
static gvmm_result receive_handles(const connection *c, importer *i)
{
    int fds[SOCKET_MOST_FDS];
    size_t count = 0;
    frame f;
    gvmm_result r = gvmm__connection_receive(c, &f, sizeof f, fds, &count);
    if (r) return r;
    r = check_frame(&f, HANDLES, "the sender");
    if (!r && (f.count != count || count == 0 || count > i->wanted - i->count))
        r = gvmm__fail(GVMM_E_INVALID, "socket: %zu descriptors came, %u were promised, %zu are wanted", count, f.count,
                       i->wanted - i->count);
    for (size_t k = 0; k < count && !r; k++) r = gvmm__importer_add(i, &fds[k]);
    if (!r) r = send_done(c, i);
    gvmm__fds_close(fds, count);
    return r;
}

static gvmm_result import_from(const connection *c, importer *i)
{
    bool fabric = i->head.handle_type == CU_MEM_HANDLE_TYPE_FABRIC;
    gvmm_result r = GVMM_OK;
    while (i->count < i->wanted && !r) r = fabric ? gvmm__importer_add(i, NULL) : receive_handles(c, i);
    if (!r && (fabric || !i->wanted)) r = send_done(c, i);
    return r ? send_failure(c, DONE, r) : GVMM_OK;
}

static gvmm_result receive_export(const connection *c, void **bytes, size_t *size, size_t count)
{
    frame f;
    gvmm_result r = receive_frame(c, &f, DESCRIPTOR, "the sender");
    if (r) return r;
    if (f.size > gvmm__wire_size(count, 0, CU_MEM_HANDLE_TYPE_FABRIC))
        return gvmm__fail(GVMM_E_INVALID, "socket: the descriptor is longer than %zu chunks need", count);
    *size = (size_t)f.size;
    *bytes = gvmm__alloc(*size + 1);
    if (!*bytes) return send_failure(c, DONE, GVMM_E_NO_HOST_MEMORY);
    r = gvmm__connection_receive(c, *bytes, *size, NULL, NULL);
    if (r) gvmm__free(*bytes);
    return r;
}

static gvmm_result receive_range(const connection *c, gvmm_buffer **out, gvmm_resource *resource, range *have,
                                 gvmm_stream stream)
{
    frame f;
    size_t left, size = 0;
    void *bytes = NULL;
    importer i;
    gvmm_result r = receive_frame(c, &f, OFFER, "the sender");
    if (!r && f.count > WIRE_MOST_CHUNKS) r = gvmm__fail(GVMM_E_INVALID, "socket: more is offered than there can be");
    if (!r) r = gvmm__fds_need(f.count != 0, &left);
    if (r) return send_failure(c, ANSWER, r);
    size_t batch = left / 2 < SOCKET_MOST_FDS ? left / 2 : SOCKET_MOST_FDS; /* others need some, too */
    r = send_known(c, have, batch ? batch : 1);
    if (!r) r = receive_export(c, &bytes, &size, f.count);
    if (r) return r;
    r = gvmm__importer_begin(&i, resource, bytes, size, have);
    if (r) return send_failure(c, DONE, r);
    r = import_from(c, &i);
    if (!r) r = gvmm__importer_finish(out, &i, stream);
    gvmm__importer_end(&i);
    return r;
}

gvmm_result gvmm_buffer_receive(gvmm_buffer **out, gvmm_resource *resource, int socket, gvmm_stream stream,
                                const gvmm_share_options *options)
{
    if (!out || !resource) return gvmm__fail(GVMM_E_INVALID, "%s is NULL", out ? "resource" : "out");
    connection c;
    gvmm_share_options o;
    range *have = NULL;
    gvmm_result r = begin(&c, socket, &o, options);
    if (!r && o.have) r = gvmm__buffer_borrow(&have, o.have);
    if (r) return r;
    r = receive_range(&c, out, resource, have, stream);
    gvmm__range_release(have);
    return r;
}

/* Descriptors of buffers as bytes: written, and checked as far as the bytes go. All numbers are as the machine has
 * them: what can be imported was exported on the same machine, or on one of the same kind. */
#include <string.h>

#include "internal.h"

_Static_assert(sizeof(wire_head) == 64 && sizeof(wire_chunk) == 40, "no padding: these are sent");

size_t gvmm__wire_size(size_t count, size_t known, unsigned handle_type)
{
    size_t handles = handle_type == CU_MEM_HANDLE_TYPE_FABRIC ? (count - known) * WIRE_FABRIC : 0;
    return sizeof(wire_head) + count * sizeof(wire_chunk) + handles;
}

/* FNV-1a, over eight bytes at a time and what is left; the checksum itself counts as 0. */
static uint64_t checksum(const unsigned char *bytes, size_t size)
{
    const uint64_t prime = 0x100000001b3;
    uint64_t sum = 0xcbf29ce484222325, word;
    for (size_t at = 0; at < size; at += sizeof word) {
        word = 0;
        memcpy(&word, bytes + at, size - at < sizeof word ? size - at : sizeof word);
        if (at == offsetof(wire_head, checksum)) word = 0;
        sum = (sum ^ word) * prime;
        sum ^= sum >> 32; /* or the top bits of a word would stay at the top */
    }
    return sum;
}

void gvmm__wire_seal(void *bytes, size_t size)
{
    uint64_t sum = checksum(bytes, size);
    memcpy((unsigned char *)bytes + offsetof(wire_head, checksum), &sum, sizeof sum);
}

wire_chunk gvmm__wire_chunk(const void *bytes, size_t chunk)
{
    wire_chunk c;
    memcpy(&c, (const unsigned char *)bytes + sizeof(wire_head) + chunk * sizeof c, sizeof c);
    return c;
}

const void *gvmm__wire_fabric(const void *bytes, const wire_head *head, size_t chunk)
{
    size_t in_front = sizeof *head + head->count * sizeof(wire_chunk);
    return (const unsigned char *)bytes + in_front + (chunk - head->known) * WIRE_FABRIC;
}

static gvmm_result refuse(const char *why) { return gvmm__fail(GVMM_E_INVALID, "descriptor: %s", why); }

static gvmm_result check_head(const wire_head *head, size_t size)
{
    if (memcmp(head->magic, "gvmmbuf", sizeof head->magic) != 0) return refuse("it is none of a buffer");
    if (head->version != WIRE_VERSION)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "descriptor: its version is %u; this library knows %d", head->version,
                          WIRE_VERSION);
    if (head->handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && head->handle_type != CU_MEM_HANDLE_TYPE_FABRIC)
        return gvmm__fail(GVMM_E_UNSUPPORTED, "descriptor: its handle type is %u; this library knows %d and %d",
                          head->handle_type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_FABRIC);
    if (head->count > WIRE_MOST_CHUNKS) return refuse("it has more chunks than there can be");
    if (head->known > head->count) return refuse("it leaves out more chunks than it has");
    if (head->reserved) return refuse("its reserved field is not 0");
    if (size != gvmm__wire_size(head->count, head->known, head->handle_type))
        return refuse("its size is not that of its chunks");
    return GVMM_OK;
}

static gvmm_result check_chunk(const wire_chunk *c, size_t number)
{
    static const uint8_t zeros[sizeof c->place - sizeof(int32_t)];
    const char *why = NULL;
    int32_t node;
    memcpy(&node, c->place, sizeof node);
    if (!c->size) why = "its size is 0";
    if (!c->serial) why = "it has no identity";
    if (c->location == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
        if (node < 0 || memcmp(c->place + sizeof node, zeros, sizeof zeros) != 0) why = "there is no such node";
    } else if (c->location != CU_MEM_LOCATION_TYPE_DEVICE) {
        why = "its location is neither a device nor a node";
    }
    return why ? gvmm__fail(GVMM_E_INVALID, "descriptor: chunk %zu: %s", number, why) : GVMM_OK;
}

gvmm_result gvmm__wire_read(wire_head *out, const void *bytes, size_t size)
{
    wire_head head;
    if (size < sizeof head) return refuse("it is shorter than any");
    memcpy(&head, bytes, sizeof head);
    gvmm_result r = check_head(&head, size);
    if (!r && checksum(bytes, size) != head.checksum) r = refuse("it is damaged: its checksum is wrong");
    uint64_t total = 0;
    for (size_t i = 0; i < head.count && !r; i++) {
        wire_chunk c = gvmm__wire_chunk(bytes, i);
        r = check_chunk(&c, i);
        if (!r && c.size > UINT64_MAX - total) r = refuse("the sizes of its chunks overflow");
        total += c.size;
    }
    if (!r && total != head.total) r = refuse("its size is not the sum of its chunks'");
    if (!r) *out = head;
    return r;
}

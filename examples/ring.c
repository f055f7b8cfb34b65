/* A ring buffer without an end: the same memory is mapped twice in a row, so that a record which runs over the end is
 * one contiguous piece for the producer, for the consumer, and for any kernel between them. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "common.h"

enum { RECORDS = 200 };

static uint64_t base;
static size_t ring_bytes;
static atomic_size_t written, consumed; /* bytes since the start */
static unsigned crossings;

/* Records are of many sizes, multiples of a word; none fits the ring evenly. */
static size_t record_bytes(unsigned i) { return 4 * (1000 + (size_t)i * 7919 % 60000); }

static void *produce(void *unused)
{
    enter_device();
    for (unsigned i = 0; i < RECORDS; i++) {
        size_t bytes = record_bytes(i), at = atomic_load(&written), place = at % ring_bytes;
        while (at + bytes - atomic_load(&consumed) > ring_bytes) sched_yield(); /* full */
        write_words(base + place, bytes, i);
        crossings += place + bytes > ring_bytes;
        atomic_store(&written, at + bytes);
    }
    must_cu(cu->cuDevicePrimaryCtxRelease(0), "context");
    return unused;
}

static void consume(void)
{
    for (unsigned i = 0; i < RECORDS; i++) {
        size_t bytes = record_bytes(i), at = atomic_load(&consumed);
        while (atomic_load(&written) - at < bytes) sched_yield(); /* not there yet */
        expect(has_words(base + at % ring_bytes, bytes, i), "the record is what was written");
        atomic_store(&consumed, at + bytes);
    }
}

int main(void)
{
    open_device();
    gvmm_resource *resource;
    gvmm_buffer *memory, *ring;
    must(gvmm_resource_create(&resource, 0, NULL), "resource");
    must(gvmm_buffer_create(&memory, resource, 1, NULL), "buffer"); /* one chunk, the smallest there is */
    must(gvmm_buffer_ring(&ring, memory, 2), "ring");
    base = gvmm_buffer_address(ring);
    ring_bytes = gvmm_buffer_size(memory);
    expect(gvmm_buffer_size(ring) == 2 * ring_bytes, "the ring shows the memory twice");
    gvmm_buffer_release(memory); /* the ring holds it */

    pthread_t producer;
    expect(pthread_create(&producer, NULL, produce, NULL) == 0, "the producer runs");
    consume();
    pthread_join(producer, NULL);

    printf("ring                    %zu bytes, mapped twice\n", ring_bytes);
    printf("records                 %d, %zu bytes\n", RECORDS, atomic_load(&written));
    printf("over the end            %u\n", crossings);
    expect(crossings > 0, "records ran over the end");
    gvmm_buffer_release(ring);
    gvmm_resource_release(resource);
    expect_nothing_left();
    return 0;
}

/* Watching gvmm's driver calls: which were made, in what order, and whether everything was undone once and in the right order. */
#ifndef GVMM_TEST_WATCH_H
#define GVMM_TEST_WATCH_H

#include "support.h"

/* A case like add_case's, with gvmm's calls watched (over the fault wrapper) from before `plain` is made. After each test the
 * books must balance: a mapping is unmapped once and whole; memory is released once, after its last mapping; a reservation is
 * freed once, by its own address and size, with nothing mapped in it. The tests' own calls, through `cu`, are not in the books. */
TCase *add_watched_case(Suite *suite, const char *name);

/* The same, so far; with things still alive. */
void ck_in_order(void);

/* Forgets the calls seen so far, but not what is alive. */
void watch(void);

/* Since watch(): names in order, with a blank between them; how many of one call; of those that failed; and of those of one
 * call with an address in [address, address + size). */
const char *calls_seen(void);
unsigned calls_of(gvmm_driver_call call);
unsigned calls_failed(void);
unsigned calls_at(gvmm_driver_call call, uint64_t address, size_t size);
#define ck_calls(expected) ck_assert_str_eq(calls_seen(), expected)

/* Reserves what lies behind `buffer`, if it is free, so that a grow moves. free_decoy gives it back; 0: it was taken already. */
uint64_t block_behind(gvmm_buffer *buffer);

/* A buffer of `count` chunks of G that the next grow has to move; and its end, with that of the decoy if there is one. */
gvmm_buffer *chunks(size_t count, uint64_t *decoy);
void drop(gvmm_buffer *buffer, uint64_t decoy);

/* The buffer is where it was, open to device 0, with the pattern that was written. */
void ck_intact(gvmm_buffer *buffer, uint64_t address, size_t size, unsigned seed);

/* With `busy` held up, gives the buffer up in a thread of its own: while the work lasts that neither returns nor unmaps. */
void ck_waits_for(gvmm_stream busy, gvmm_buffer *buffer, void (*give_up)(gvmm_buffer *buffer));
void close_it(gvmm_buffer *buffer); /* leaves the caller's reference */
void release_it(gvmm_buffer *buffer);

/* If there is no second device, says that `test` does not run here. */
bool lacks_second_device(const char *test);

/* A resource on device 0 of which device 1 is a peer. */
gvmm_resource *resource_with_peer(void);

#endif

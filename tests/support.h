/* What the Check tests share: a driver to test on, buffers in known surroundings, gates, and the question whether
 * anything is left.
 *
 * Tests run on the simulated driver, or with GVMM_TEST_DRIVER=gpu on the machine's own. gvmm sees it through the fault
 * wrapper; the tests' own calls go past that, through `cu`, and are neither counted nor failed. */
#ifndef GVMM_TEST_SUPPORT_H
#define GVMM_TEST_SUPPORT_H

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gvmm/sim.h"
#include "internal.h"

#define MiB ((size_t)1 << 20)

extern const gvmm_driver *cu;
extern size_t G;             /* the granularity, bytes */
extern gvmm_resource *plain; /* device 0, default options; made and released by the fixture */
extern gvmm_stream stream;   /* a non-blocking stream, likewise */
extern bool on_gpu;
extern int device_count;

/* Fixture of every test case: a fresh simulated machine (two devices) or the GPU, device 0's context current, no fault
 * planned. The teardown checks that nothing is left and that the simulator found nothing wrong. */
void setup(void);
void teardown(void);

/* Adds a case with the fixture; `name` as Check prints it. */
TCase *add_case(Suite *suite, const char *name);

/* Runs the suites and gives main's exit status. Ends with Check's own closing line. */
int run_suites(Suite *first, ...);

/* ---- assertions ---- */

#define ck_ok(call) \
    do { \
        gvmm_result result_ = (call); \
        ck_assert_msg(result_ == GVMM_OK, "%s: %s (%s)", #call, gvmm_result_name(result_), last_text()); \
    } while (0)
#define ck_fails(call, expected) \
    do { \
        gvmm_result result_ = (call); \
        ck_assert_msg(result_ == (expected), "%s: %s, not %s (%s)", #call, gvmm_result_name(result_), \
                      gvmm_result_name(expected), last_text()); \
    } while (0)
#define ck_cu(call) \
    do { \
        CUresult status_ = (call); \
        ck_assert_msg(status_ == CUDA_SUCCESS, "%s: %s", #call, gvmm_driver_status_name((int)status_)); \
    } while (0)
#define ck_cu_fails(call, expected) \
    do { \
        CUresult status_ = (call); \
        ck_assert_msg(status_ == (expected), "%s: %s, not %s", #call, gvmm_driver_status_name((int)status_), \
                      #expected); \
    } while (0)
/* The last failure's text names `what`. */
#define ck_names(what) ck_assert_msg(strstr(last_text(), what) != NULL, "'%s' does not name '%s'", last_text(), what)
const char *last_text(void);

/* Everything that gvmm made has gone back to the driver. */
void ck_nothing_left(void);

/* Waits until gvmm has no more than `mappings` left: what a graph held comes back on other threads some time after the
 * graph is gone. Check's timeout bounds it. (Asking the driver for a handle at an address that another thread is
 * unmapping crashes it: H200, driver 580. gvmm's figures can be asked.) */
void wait_for_mappings(uint64_t mappings);

/* "Released" at exact addresses: no memory is mapped there and no such reservation exists. */
void ck_released(uint64_t address, size_t size);
void ck_mapped(uint64_t address);

/* ---- bytes ---- */

void fill(uint64_t address, unsigned char value, size_t size);
void ck_filled(uint64_t address, unsigned char value, size_t size);

/* A pattern that differs at every offset and with `seed`. */
void write_pattern(uint64_t address, size_t size, unsigned seed);
void ck_pattern(uint64_t address, size_t size, unsigned seed);

unsigned long long access_of(uint64_t address, int device);
CUmemAllocationProp properties_at(uint64_t address);

/* ---- buffers in known surroundings ---- */

/* A buffer with `hole` bytes of free address space behind it, so that a grow by as much stays in place. */
gvmm_buffer *buffer_with_hole_behind(gvmm_resource *resource, size_t size, size_t hole);

/* A buffer whose next address is reserved by somebody else, so that every grow moves. `*decoy` (size G) is the caller's
 * to free. */
gvmm_buffer *buffer_with_decoy_behind(gvmm_resource *resource, size_t size, uint64_t *decoy);
void free_decoy(uint64_t decoy);

gvmm_buffer *create(gvmm_resource *resource, size_t size);
gvmm_buffer *grow(gvmm_buffer *buffer, size_t size);
gvmm_resource *resource_with(gvmm_options options);

/* gvmm's calls go through `driver`, and `plain` is made anew on it; no other resource may be alive. */
void use_driver(const gvmm_driver *driver);

/* In `table`, streams are told apart as on a driver that uses handles again, which the simulated one does not: each stream's
 * number is that of one whose handle `streams_before` others have had. */
extern unsigned streams_before;
void number_streams_anew(gvmm_driver *table);

/* The default options but that a release waits: most tests look at what is left when it has returned. What deferred
 * releases do is for the tests of deferred release and of kept memory. */
gvmm_options waiting_options(void);
gvmm_options on_host(void); /* likewise, of host memory */

static inline uint64_t address(const gvmm_buffer *buffer) { return gvmm_buffer_address(buffer); }
gvmm_stats stats_of(const gvmm_resource *resource);

/* Until nothing waits to be given back, be it for the end of a capture, which must be near. */
void drain_wholly(void);

/* A mapping that is none of gvmm's: one reservation, wholly mapped, whose handle has been released. Open to nobody. */
uint64_t map_by_hand(size_t size);

/* For a wrapped buffer that owns nothing. */
gvmm_result free_nothing(void *user, uint64_t address, size_t size, gvmm_stream on);

gvmm_stream new_stream(unsigned flags);

/* ---- gates: GPU work that lasts until it is told to end ---- */

typedef struct gate gate;
gate *gate_on(gvmm_stream on); /* work queued behind it waits */
void gate_open(gate *g);       /* any thread */
void gate_end(gate *g);        /* opens it if need be, waits until it has been passed, frees it */

/* ---- warnings and faults ---- */

/* Counts warnings from setup on, instead of printing them; the text of the last. */
extern atomic_int warning_count;
extern gvmm_error last_warning;
extern char last_warning_text[256];
void ck_no_warnings(void);

/* Fails the nth driver call or host allocation from now on; `onwards`: and all after it. 0 ends it. */
void fault(uint64_t nth, bool onwards);
void fault_call(const char *call, uint64_t nth, CUresult status);

#endif

/* The model test: a string of bytes, decoded into operations on the library and on its naive twin, which are compared after each.
 *
 * Four bytes are one operation: what, and three arguments whose meaning is the operation's. Every string is valid; what cannot be done
 * in the state at hand is left out. The machine is a simulated one with little memory. */
#ifndef GVMM_TEST_MODEL_H
#define GVMM_TEST_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_OPERATION = 4 }; /* bytes of one */

/* Runs all operations on a new machine, then gives everything up and looks whether anything is left. The first difference is told on
 * standard error and ends the process with abort(). */
void model_run(const uint8_t *bytes, size_t size);

/* Tells every operation on standard error before it is run. */
extern bool model_tells;

#endif

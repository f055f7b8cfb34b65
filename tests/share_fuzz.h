/* Hostile descriptors and hostile peers, from a byte string: the first byte says what the rest is for, see share_run.
 * After each string nothing is left: no memory, no address, no descriptor. It ends the process if that is not so. */
#ifndef GVMM_SHARE_FUZZ_H
#define GVMM_SHARE_FUZZ_H

#include <stddef.h>
#include <stdint.h>

void share_run(const uint8_t *bytes, size_t size);

#endif

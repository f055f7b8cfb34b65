/* libFuzzer over what another process could send. As fuzz_model.c:
 *
 *     cmake -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DGVMM_FUZZ=ON -DGVMM_SANITIZE=address,undefined,fuzzer-no-link
 *     build/fuzz/tests/fuzz_share -max_len=400 new tests/corpus_share
 *     build/fuzz/tests/fuzz_share -merge=1 tests/corpus_share new */
#include "share_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    share_run(bytes, size);
    return 0;
}

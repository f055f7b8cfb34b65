/* libFuzzer over the model test's decoder. Coverage of the library needs it built with -fsanitize=fuzzer-no-link:
 *
 *     cmake -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DGVMM_FUZZ=ON -DGVMM_SANITIZE=address,undefined,fuzzer-no-link
 *     build/fuzz/tests/fuzz_model -max_len=800 new tests/corpus
 *     build/fuzz/tests/fuzz_model -merge=1 tests/corpus new */
#include "model.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    model_run(bytes, size);
    return 0;
}

/* Holds every signature of gvmm/driver_calls.h against NVIDIA's own typedef for that function and version. Compiled,
 * never run, where cuda.h and cudaTypedefs.h are found. */
#include <cuda.h>
#include <cudaTypedefs.h>

#include "gvmm/driver_calls.h"

#define GVMM_X(need, role, name, symbol, version, params, args) \
    _Static_assert(__builtin_types_compatible_p(PFN_##name##_v##version, CUresult(CUDAAPI *) params), \
                   "signature of " #name);
GVMM_DRIVER_CALLS(GVMM_X)
#undef GVMM_X

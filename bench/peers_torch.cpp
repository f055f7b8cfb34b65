// PyTorch's caching allocator as two C functions, those of a pluggable allocator, so that peers_loop.c can time it without
// Python. bench_peers.py compiles this where PyTorch and its headers are.
#include <c10/cuda/CUDACachingAllocator.h>

#include <sys/types.h>

extern "C" void *peers_torch_malloc(ssize_t size, int, cudaStream_t stream)
{
    return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(static_cast<size_t>(size), stream);
}

extern "C" void peers_torch_free(void *memory, ssize_t, int, cudaStream_t)
{
    c10::cuda::CUDACachingAllocator::raw_delete(memory);
}

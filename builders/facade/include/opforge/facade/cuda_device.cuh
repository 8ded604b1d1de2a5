// CUDA on the device's side: atomics, warps, loops over a grid, and mathematics of two widths.
#pragma once
#pragma GCC system_header
#include "cuda.h"

#ifdef __CUDACC__
// ---- atomics. A 16-bit number shares its 32 bits with its neighbour, and is replaced with both.
template <class T>
__device__ __forceinline__ T opforge_atomic_16_bits(T* address, T value) {
    const bool high = reinterpret_cast<size_t>(address) & 2;
    auto* word = reinterpret_cast<unsigned int*>(reinterpret_cast<size_t>(address) & ~static_cast<size_t>(2));
    unsigned int seen = *word, expected;
    T before;
    do {
        expected = seen;
        before.x = static_cast<unsigned short>(high ? expected >> 16 : expected & 0xffffU);
        const T after(static_cast<float>(before) + static_cast<float>(value));
        const unsigned int bits = after.x;
        seen = atomicCAS(word, expected, high ? (expected & 0xffffU) | (bits << 16) : (expected & 0xffff0000U) | bits);
    } while (seen != expected);
    return before;
}
__device__ __forceinline__ c10::Half gpuAtomicAdd(c10::Half* address, c10::Half value) {
    return opforge_atomic_16_bits(address, value);
}
__device__ __forceinline__ c10::BFloat16 gpuAtomicAdd(c10::BFloat16* address, c10::BFloat16 value) {
    return opforge_atomic_16_bits(address, value);
}
__device__ __forceinline__ float gpuAtomicAdd(float* address, float value) { return atomicAdd(address, value); }
__device__ __forceinline__ double gpuAtomicAdd(double* address, double value) { return atomicAdd(address, value); }
__device__ __forceinline__ int32_t gpuAtomicAdd(int32_t* address, int32_t value) { return atomicAdd(address, value); }
__device__ __forceinline__ int64_t gpuAtomicAdd(int64_t* address, int64_t value) {
    return static_cast<int64_t>(
        atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value)));
}
template <class T>
__device__ __forceinline__ void gpuAtomicAddNoReturn(T* address, T value) {
    gpuAtomicAdd(address, value);
}
// The names that old sources use for types which CUDA's own function does not take.
__device__ __forceinline__ c10::Half atomicAdd(c10::Half* address, c10::Half value) {
    return gpuAtomicAdd(address, value);
}
__device__ __forceinline__ c10::BFloat16 atomicAdd(c10::BFloat16* address, c10::BFloat16 value) {
    return gpuAtomicAdd(address, value);
}
__device__ __forceinline__ int64_t atomicAdd(int64_t* address, int64_t value) { return gpuAtomicAdd(address, value); }

// ---- warps
template <class T>
__device__ __forceinline__ T WARP_SHFL(T value, int lane, int width = warpSize, unsigned int mask = 0xffffffff) {
    return __shfl_sync(mask, value, lane, width);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_XOR(T value, int lanes, int width = warpSize, unsigned int mask = 0xffffffff) {
    return __shfl_xor_sync(mask, value, lanes, width);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_UP(T value, unsigned int delta, int width = warpSize,
                                          unsigned int mask = 0xffffffff) {
    return __shfl_up_sync(mask, value, delta, width);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_DOWN(T value, unsigned int delta, int width = warpSize,
                                            unsigned int mask = 0xffffffff) {
    return __shfl_down_sync(mask, value, delta, width);
}
__device__ __forceinline__ unsigned int WARP_BALLOT(int predicate, unsigned int mask = 0xffffffff) {
    return __ballot_sync(mask, predicate);
}

// ---- loops over a grid
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                        \
    int64_t opforge_##i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; \
    for (index_type i = opforge_##i; opforge_##i < (n);                                \
         opforge_##i += static_cast<int64_t>(blockDim.x) * gridDim.x, i = opforge_##i)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

namespace c10 {
namespace cuda {
namespace compat {
#define OPFORGE_TWO_WIDTHS(name)                                                     \
    __host__ __device__ __forceinline__ float name(float x) { return ::name##f(x); } \
    __host__ __device__ __forceinline__ double name(double x) { return ::name(x); }
OPFORGE_TWO_WIDTHS(ceil)
OPFORGE_TWO_WIDTHS(cos)
OPFORGE_TWO_WIDTHS(exp)
OPFORGE_TWO_WIDTHS(floor)
OPFORGE_TWO_WIDTHS(log)
OPFORGE_TWO_WIDTHS(log1p)
OPFORGE_TWO_WIDTHS(sin)
OPFORGE_TWO_WIDTHS(sqrt)
OPFORGE_TWO_WIDTHS(tan)
OPFORGE_TWO_WIDTHS(tanh)
#undef OPFORGE_TWO_WIDTHS
__host__ __device__ __forceinline__ float abs(float x) { return ::fabsf(x); }
__host__ __device__ __forceinline__ double abs(double x) { return ::fabs(x); }
__host__ __device__ __forceinline__ float pow(float x, float y) { return ::powf(x, y); }
__host__ __device__ __forceinline__ double pow(double x, double y) { return ::pow(x, y); }
__host__ __device__ __forceinline__ float max(float x, float y) { return ::fmaxf(x, y); }
__host__ __device__ __forceinline__ double max(double x, double y) { return ::fmax(x, y); }
__host__ __device__ __forceinline__ float min(float x, float y) { return ::fminf(x, y); }
__host__ __device__ __forceinline__ double min(double x, double y) { return ::fmin(x, y); }
}  // namespace compat
}  // namespace cuda
}  // namespace c10
#endif

#pragma once

// The little that CUDA and HIP spell differently, where the translation of names does not reach.

#include <cstdint>

#include <opforge/host_device.h>

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define OPFORGE_GRID_CONSTANT
#else
#include <cuda_runtime.h>
#define OPFORGE_GRID_CONSTANT __grid_constant__
#endif

namespace opforge::cuda {

// Lanes that exchange values. Half of a wavefront on those GPUs where it has 64.
constexpr int kWarp = 32;

template <typename T>
__device__ T shuffle_xor(T value, int distance) {
#if defined(__HIPCC__)
    return __shfl_xor(value, distance, kWarp);
#else
    return __shfl_xor_sync(0xffffffffu, value, distance, kWarp);
#endif
}

// Why the launch before it did not start; null where it did.
inline const char* launch_problem() {
    const cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
}

}  // namespace opforge::cuda

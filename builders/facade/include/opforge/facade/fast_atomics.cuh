// at::native::fastAtomicAdd: for 16-bit numbers the device's own instruction, where it has one.
#pragma once
#pragma GCC system_header
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <opforge/facade/cuda_device.cuh>

#ifdef __CUDACC__
namespace at {
namespace native {
// Adds to the element at `index` of `numel`. Without `fast_atomics`, or on a device without the instruction, a 16-bit
// number is replaced by comparing and swapping.
template <class scalar_t, class index_t>
__device__ __forceinline__ void fastAtomicAdd(scalar_t* tensor, index_t index, [[maybe_unused]] const index_t numel,
                                              scalar_t value, [[maybe_unused]] bool fast_atomics) {
#if __CUDA_ARCH__ >= 700
    if constexpr (std::is_same_v<scalar_t, c10::Half>) {
        if (fast_atomics) {
            ::atomicAdd(reinterpret_cast<__half*>(tensor + index), __half(__half_raw{value.x}));
            return;
        }
    }
#endif
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<scalar_t, c10::BFloat16>) {
        if (fast_atomics) {
            ::atomicAdd(reinterpret_cast<__nv_bfloat16*>(tensor + index), __nv_bfloat16(__nv_bfloat16_raw{value.x}));
            return;
        }
    }
#endif
    gpuAtomicAddNoReturn(tensor + index, value);
}
}  // namespace native
}  // namespace at
#endif

// The sizes of a kernel's launch. Only who asks for them gets them: sources have macros of these names.
#pragma once
#pragma GCC system_header
#include <opforge/facade/cuda_device.cuh>

namespace at {
namespace cuda {
namespace detail {
constexpr int CUDA_NUM_THREADS = 1024;
inline int GET_BLOCKS(int64_t n, int64_t threads = CUDA_NUM_THREADS) {
    TORCH_CHECK(n > 0, "CUDA kernel launch blocks must be positive, but got N=", n);
    const int64_t blocks = (n - 1) / threads + 1;
    TORCH_CHECK(blocks <= std::numeric_limits<int>::max(), "Can't schedule too many blocks on CUDA device");
    return static_cast<int>(blocks);
}
}  // namespace detail
}  // namespace cuda
}  // namespace at

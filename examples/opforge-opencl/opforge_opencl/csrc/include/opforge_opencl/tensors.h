#pragma once

// The tensors that kernels accept: contiguous, float32, in host memory.

#include <torch/csrc/stable/tensor.h>

#include "opforge_opencl/device.h"

namespace opforge_opencl {

using torch::stable::Tensor;

inline void check_tensor(const Tensor& tensor, const char* op, const char* name) {
    STD_TORCH_CHECK(tensor.is_cpu(), op, ": ", name, " must lie in host memory");
    STD_TORCH_CHECK(tensor.scalar_type() == torch::headeronly::ScalarType::Float, op, ": ", name, " must be float32");
    STD_TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous");
}

inline Buffer read(Device& on, const Tensor& tensor) {
    return Buffer(on, tensor.const_data_ptr(), static_cast<size_t>(tensor.numel()) * sizeof(float), false);
}

inline Buffer written(Device& on, const Tensor& tensor) {
    return Buffer(on, tensor.mutable_data_ptr(), static_cast<size_t>(tensor.numel()) * sizeof(float), true);
}

}  // namespace opforge_opencl

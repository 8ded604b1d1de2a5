#include "squared.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor forward(const Tensor& x) {
    STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "squared_relu: expected float32");
    STD_TORCH_CHECK(x.is_contiguous(), "squared_relu: expected a contiguous tensor");
    Tensor y = torch::stable::empty_like(x);
    const float* from = static_cast<const float*>(x.const_data_ptr());
    float* to = static_cast<float*>(y.mutable_data_ptr());
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = squared_relu(from[i]);
    return y;
}

Tensor meta(const Tensor& x) { return torch::stable::empty_like(x); }

STABLE_TORCH_LIBRARY(prebuilt_op, m) { m.def("squared_relu(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(prebuilt_op, CPU, m) { m.impl("squared_relu", TORCH_BOX(&forward)); }
STABLE_TORCH_LIBRARY_IMPL(prebuilt_op, Meta, m) { m.impl("squared_relu", TORCH_BOX(&meta)); }

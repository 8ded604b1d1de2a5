// A small op on the stable ABI. SLOPE is replaced to make an edit.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor bench_relu(const Tensor& x) {
    STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "float32 expected");
    Tensor y = torch::stable::empty_like(x);
    const float* from = static_cast<const float*>(x.const_data_ptr());
    float* to = static_cast<float*>(y.mutable_data_ptr());
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] > 0 ? from[i] : from[i] * SLOPE;
    return y;
}

STABLE_TORCH_LIBRARY(bench_relu, m) { m.def("bench_relu(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(bench_relu, CPU, m) { m.impl("bench_relu", TORCH_BOX(&bench_relu)); }

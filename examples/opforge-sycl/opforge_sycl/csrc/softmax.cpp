#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "opforge_sycl/launch.hpp"

// Declared here because torch's declaration includes ATen's headers.
extern "C" int32_t aoti_torch_get_current_sycl_queue(void** queue);

namespace {

using torch::stable::Tensor;

Tensor softmax(const Tensor& x) {
    STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "softmax: x must be float32");
    STD_TORCH_CHECK(x.is_contiguous() && x.dim() > 0, "softmax: x must be contiguous and have a dimension");
    Tensor y = torch::stable::empty_like(x);
    if (x.numel() == 0) return y;
    void* queue = nullptr;
    STD_TORCH_CHECK(aoti_torch_get_current_sycl_queue(&queue) == 0, "softmax: torch returned no SYCL queue");
    const int64_t columns = x.size(x.dim() - 1);
    const char* error = opforge_sycl::softmax(queue, static_cast<const float*>(x.const_data_ptr()),
                                              static_cast<float*>(y.mutable_data_ptr()), x.numel() / columns, columns);
    STD_TORCH_CHECK(error == nullptr, "softmax: ", error);
    return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(opforge_sycl_softmax, m) { m.def("softmax(Tensor x) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(opforge_sycl_softmax, XPU, m) { m.impl("softmax", TORCH_BOX(&softmax)); }

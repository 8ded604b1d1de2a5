#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "opforge_opencl/tensors.h"

extern "C" const char opforge_cl_softmax[];  // softmax.cl

namespace {

using namespace opforge_opencl;

constexpr size_t LANES = 64;  // work items a row; must be a power of two, because the reduction halves them

Tensor softmax(const Tensor& x, int64_t number) {
    check_tensor(x, "softmax", "x");
    STD_TORCH_CHECK(x.dim() > 0, "softmax: x must have a dimension");
    Tensor y = torch::stable::empty_like(x);
    if (x.numel() == 0) return y;
    const int64_t columns = x.size(x.dim() - 1);
    Device& on = device(number);
    Run(on, opforge_cl_softmax, "softmax")(static_cast<size_t>(x.numel() / columns) * LANES, LANES, read(on, x),
                                           written(on, y), static_cast<cl_ulong>(columns),
                                           Local{LANES * sizeof(float)});
    return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(opforge_opencl_softmax, m) { m.def("softmax(Tensor x, int device) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(opforge_opencl_softmax, CPU, m) { m.impl("softmax", TORCH_BOX(&softmax)); }

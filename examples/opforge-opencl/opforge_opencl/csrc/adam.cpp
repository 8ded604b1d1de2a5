#include <torch/csrc/stable/library.h>

#include <cmath>

#include "opforge_opencl/tensors.h"

extern "C" const char opforge_cl_adam[];  // adam.cl

namespace {

using namespace opforge_opencl;

void adam_(const Tensor& param, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq, int64_t step,
           double lr, double beta1, double beta2, double eps, double weight_decay, int64_t number) {
    STD_TORCH_CHECK(step > 0, "adam_: step counts from 1, not ", step);
    check_tensor(param, "adam_", "param");
    check_tensor(grad, "adam_", "grad");
    check_tensor(exp_avg, "adam_", "exp_avg");
    check_tensor(exp_avg_sq, "adam_", "exp_avg_sq");
    const int64_t n = param.numel();
    STD_TORCH_CHECK(grad.numel() == n && exp_avg.numel() == n && exp_avg_sq.numel() == n,
                    "adam_: all tensors must have as many elements as param, ", n);
    if (n == 0) return;
    Device& on = device(number);
    const double correction1 = 1.0 - std::pow(beta1, step), correction2 = 1.0 - std::pow(beta2, step);
    Run(on, opforge_cl_adam, "adam")(
        static_cast<size_t>(n), 0, written(on, param), read(on, grad), written(on, exp_avg), written(on, exp_avg_sq),
        static_cast<float>(1.0 - lr * weight_decay), static_cast<float>(lr / correction1), static_cast<float>(beta1),
        static_cast<float>(beta2), static_cast<float>(eps), static_cast<float>(1.0 / std::sqrt(correction2)));
}

}  // namespace

STABLE_TORCH_LIBRARY(opforge_opencl_adam, m) {
    m.def(
        "adam_(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, int step, float lr, float "
        "beta1, float beta2, float eps, float weight_decay, int device) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(opforge_opencl_adam, CPU, m) { m.impl("adam_", TORCH_BOX(&adam_)); }

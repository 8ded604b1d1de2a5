#include <opforge/stable_blocks.h>

#include <cmath>

#include "../fused/call.h"
#include "../fused/kernels.h"

namespace opforge::fused {
namespace {

constexpr const char* kLists[] = {"params", "grads", "exp_avgs", "exp_avg_sqs", "copies"};

AdamNumbers read_numbers(const StableIValue* stack, const DeviceNumbers& device) {
    Arguments arguments(stack + Call::arguments(kLists));
    double lr, beta1, beta2, eps, weight_decay;
    for (double* number : {&lr, &beta1, &beta2, &eps}) *number = arguments.real();
    const int64_t step = arguments.integer();
    const bool adamw_mode = arguments.flag();
    const bool corrects_bias = arguments.flag();
    weight_decay = arguments.real();
    const bool maximize = arguments.flag();
    if (!device.step) check_step(step);
    const AdamRule fixed(lr, beta1, beta2, eps, weight_decay, static_cast<double>(step), adamw_mode, corrects_bias,
                         maximize);
    return {fixed,
            device,
            static_cast<float>(lr),
            static_cast<float>(step),
            static_cast<float>(eps),
            static_cast<float>(weight_decay),
            static_cast<float>(std::log(beta1)),
            static_cast<float>(std::log(beta2)),
            adamw_mode,
            corrects_bias};
}

void fused_adam(StableIValue* stack, uint64_t, uint64_t) {
    Call call(stack, kLists);
    if (call.count() == 0) return;
    const DeviceGuard guard(call.noop(), "noop_flag");
    const TensorGroups groups = call.groups(guard.executor());
    check_launch("fused_adam_", launch_adam(groups, read_numbers(stack, call.device_numbers())));
}

void fused_adam_meta(StableIValue* stack, uint64_t, uint64_t) { Call(stack, kLists).check_meta(); }

}  // namespace
}  // namespace opforge::fused

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "fused_adam_(Tensor noop_flag, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] "
        "exp_avg_sqs, Tensor(d!)[] copies, *, Tensor? lr_tensor=None, Tensor? step_tensor=None, Tensor? "
        "grad_scale=None, float lr, float beta1, float beta2, float eps, int step, bool adamw_mode, bool "
        "bias_correction, float weight_decay, bool maximize=False) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("fused_adam_", OPFORGE_BOXED(&opforge::fused::fused_adam));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) { m.impl("fused_adam_", OPFORGE_BOXED(&opforge::fused::fused_adam_meta)); }

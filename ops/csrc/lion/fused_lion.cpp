#include <opforge/stable_blocks.h>

#include "../fused/call.h"
#include "../fused/kernels.h"

namespace opforge::fused {
namespace {

constexpr const char* kLists[] = {"params", "grads", "exp_avgs", "copies"};

LionNumbers read_numbers(const StableIValue* stack, const DeviceNumbers& device) {
    Arguments arguments(stack + Call::arguments(kLists));
    double lr, beta1, beta2, weight_decay;
    for (double* number : {&lr, &beta1, &beta2, &weight_decay}) *number = arguments.real();
    const bool maximize = arguments.flag();
    return {LionRule(lr, beta1, beta2, weight_decay, maximize), device, static_cast<float>(weight_decay)};
}

void fused_lion(StableIValue* stack, uint64_t, uint64_t) {
    Call call(stack, kLists);
    if (call.count() == 0) return;
    const DeviceGuard guard(call.noop(), "noop_flag");
    const TensorGroups groups = call.groups(guard.executor());
    check_launch("fused_lion_", launch_lion(groups, read_numbers(stack, call.device_numbers())));
}

void fused_lion_meta(StableIValue* stack, uint64_t, uint64_t) { Call(stack, kLists).check_meta(); }

}  // namespace
}  // namespace opforge::fused

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "fused_lion_(Tensor noop_flag, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] "
        "copies, *, Tensor? lr_tensor=None, Tensor? step_tensor=None, Tensor? grad_scale=None, float lr, float beta1, "
        "float beta2, float weight_decay, bool maximize=False) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("fused_lion_", OPFORGE_BOXED(&opforge::fused::fused_lion));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) { m.impl("fused_lion_", OPFORGE_BOXED(&opforge::fused::fused_lion_meta)); }

#include <opforge/stable_blocks.h>

#include "../cpu/optimizer_ids.h"
#include "../fused/kernels.h"

namespace opforge::cpu {
namespace {

constexpr const char* kTensors[] = {"params", "grads", "exp_avg", "exp_avg_sq"};
constexpr const char* kLists[] = {"params", "grads", "exp_avgs", "exp_avg_sqs"};

OptimizerIds& ids() {
    static OptimizerIds ids("adam");
    return ids;
}

// The numbers of one step, from the op's arguments.
struct AdamStep {
    int64_t count;
    double lr, beta1, beta2, eps, weight_decay;
    bool adamw_mode, bias_correction, maximize;

    AdamRule rule() const {
        check_step(count);
        return {lr, beta1, beta2, eps, weight_decay, static_cast<double>(count), adamw_mode, bias_correction, maximize};
    }

    AdamRollbackRule rollback() const {
        const double kept = adamw_mode ? 1.0 - lr * weight_decay : 1.0;
        if (beta1 == 0.0 || beta2 == 0.0 || kept == 0.0) {
            refuse({"beta1 ", beta1, ", beta2 ", beta2, ", 1 - lr * weight_decay ", kept,
                    ", expected none to be 0: such a step keeps nothing to go back from"});
        }
        return {rule(), static_cast<float>(1.0 / beta1), static_cast<float>(1.0 / beta2),
                static_cast<float>(1.0 / kept)};
    }
};

void create_adam(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    const int64_t id = arguments.integer();
    for (int i = 0; i < 5; ++i) arguments.real();  // unused: each update passes its own
    ids().create(id, arguments.flag());
    stack[0] = 0;
}

// Reads the arguments of adam_update and adam_rollback, including tensors.
AdamStep read_step(Arguments& arguments) {
    const int64_t id = arguments.integer();
    AdamStep step{};
    step.count = arguments.integer();
    for (double* number : {&step.lr, &step.beta1, &step.beta2, &step.eps, &step.weight_decay})
        *number = arguments.real();
    step.bias_correction = arguments.flag();
    arguments.tensors(kTensors);
    step.adamw_mode = ids().mode(id);
    return step;
}

void update(const AdamRule& rule, const std::vector<TensorGroup>& groups) {
    AdamNumbers numbers{rule};
    launch_adam(on_threads(groups), numbers);
}

void adam_update(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    const AdamStep step = read_step(arguments);
    update(step.rule(), arguments.groups(kTensors, false));
}

void adam_rollback_update(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    const AdamStep step = read_step(arguments);
    const auto groups = arguments.groups(kTensors, false);
    launch_adam_rollback(on_threads(groups), step.rollback());
}

void multi_adam(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    arguments.tensor_lists(kLists);
    AdamStep step{};
    step.count = arguments.integer();
    for (double* number : {&step.lr, &step.beta1, &step.beta2, &step.eps, &step.weight_decay})
        *number = arguments.real();
    for (bool* mode : {&step.adamw_mode, &step.bias_correction, &step.maximize}) *mode = arguments.flag();
    update(step.rule(), arguments.groups(kLists, true));
}

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "create_adam(int optimizer_id, float alpha=0.001, float betas0=0.9, float betas1=0.999, float eps=1e-08, "
        "float weight_decay=0., bool adamw_mode=True, bool should_log=False) -> int");
    m.def("destroy_adam(int optimizer_id) -> int");
    m.def(
        "adam_update(int optimizer_id, int step, float lr, float beta1, float beta2, float eps, float weight_decay, "
        "bool bias_correction, Tensor(a!) params, Tensor grads, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq) -> ()");
    m.def(
        "adam_rollback(int optimizer_id, int step, float lr, float beta1, float beta2, float eps, float weight_decay, "
        "bool bias_correction, Tensor(a!) params, Tensor grads, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq) -> ()");
    m.def(
        "multi_adam_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, int "
        "step, float lr, float beta1, float beta2, float eps, float weight_decay, bool adamw_mode, bool "
        "bias_correction, bool maximize) -> ()");
}

// For every backend, not only for the CPU: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("create_adam", OPFORGE_BOXED(&opforge::cpu::create_adam));
    m.impl("destroy_adam", OPFORGE_BOXED(&opforge::cpu::destroy<opforge::cpu::ids>));
    m.impl("adam_update", OPFORGE_BOXED(&opforge::cpu::adam_update));
    m.impl("adam_rollback", OPFORGE_BOXED(&opforge::cpu::adam_rollback_update));
    m.impl("multi_adam_", OPFORGE_BOXED(&opforge::cpu::multi_adam));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("adam_update", OPFORGE_BOXED(&opforge::cpu::tensors_meta<opforge::cpu::kTensors, 8>));
    m.impl("adam_rollback", OPFORGE_BOXED(&opforge::cpu::tensors_meta<opforge::cpu::kTensors, 8>));
    m.impl("multi_adam_", OPFORGE_BOXED(&opforge::cpu::lists_meta<opforge::cpu::kLists>));
}

#include <opforge/stable_blocks.h>

#include "../cpu/optimizer_ids.h"
#include "../fused/kernels.h"

namespace opforge::cpu {
namespace {

constexpr const char* kTensors[] = {"params", "grads", "exp_avg"};
constexpr const char* kLists[] = {"params", "grads", "exp_avgs"};

OptimizerIds& ids() {
    static OptimizerIds ids("lion");
    return ids;
}

LionRule read_rule(Arguments& arguments) {
    double lr, beta1, beta2, weight_decay;
    for (double* number : {&lr, &beta1, &beta2, &weight_decay}) *number = arguments.real();
    return {lr, beta1, beta2, weight_decay, false};
}

void update(const LionRule& rule, const std::vector<TensorGroup>& groups) {
    launch_lion(on_threads(groups), LionNumbers{rule});
}

void lion_update(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    const int64_t id = arguments.integer();
    arguments.integer();  // the step, which this rule does not use
    const LionRule rule = read_rule(arguments);
    arguments.tensors(kTensors);
    ids().mode(id);
    update(rule, arguments.groups(kTensors, false));
}

void multi_lion(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    arguments.tensor_lists(kLists);
    LionRule rule = read_rule(arguments);
    rule.maximize = arguments.flag();
    update(rule, arguments.groups(kLists, true));
}

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "create_lion(int optimizer_id, float alpha=0.001, float betas0=0.9, float betas1=0.999, float weight_decay=0., "
        "bool should_log=False) -> int");
    m.def("destroy_lion(int optimizer_id) -> int");
    m.def(
        "lion_update(int optimizer_id, int step, float lr, float beta1, float beta2, float weight_decay, "
        "Tensor(a!) params, Tensor grads, Tensor(b!) exp_avg) -> ()");
    m.def(
        "multi_lion_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, float lr, float beta1, float "
        "beta2, float weight_decay, bool maximize) -> ()");
}

// For every backend, not only for the CPU: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("create_lion", OPFORGE_BOXED(&opforge::cpu::create<opforge::cpu::ids>));
    m.impl("destroy_lion", OPFORGE_BOXED(&opforge::cpu::destroy<opforge::cpu::ids>));
    m.impl("lion_update", OPFORGE_BOXED(&opforge::cpu::lion_update));
    m.impl("multi_lion_", OPFORGE_BOXED(&opforge::cpu::multi_lion));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("lion_update", OPFORGE_BOXED(&opforge::cpu::tensors_meta<opforge::cpu::kTensors, 6>));
    m.impl("multi_lion_", OPFORGE_BOXED(&opforge::cpu::lists_meta<opforge::cpu::kLists>));
}

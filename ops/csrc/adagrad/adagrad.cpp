#include <opforge/stable_blocks.h>

#include "../cpu/optimizer_ids.h"
#include "../fused/kernels.h"

namespace opforge::cpu {
namespace {

constexpr const char* kTensors[] = {"params", "grads", "exp_avg_sq"};
constexpr const char* kLists[] = {"params", "grads", "exp_avg_sqs"};

OptimizerIds& ids() {
    static OptimizerIds ids("adagrad");
    return ids;
}

AdagradRule read_rule(Arguments& arguments) {
    AdagradRule rule{};
    for (float* number : {&rule.rate, &rule.eps, &rule.l2}) *number = static_cast<float>(arguments.real());
    return rule;
}

void adagrad_update(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    const int64_t id = arguments.integer();
    arguments.integer();  // the step, which this rule does not use
    const AdagradRule rule = read_rule(arguments);
    arguments.tensors(kTensors);
    ids().mode(id);
    const auto groups = arguments.groups(kTensors, false);
    launch_adagrad(on_threads(groups), rule);
}

void multi_adagrad(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    arguments.tensor_lists(kLists);
    AdagradRule rule = read_rule(arguments);
    rule.maximize = arguments.flag();
    const auto groups = arguments.groups(kLists, true);
    launch_adagrad(on_threads(groups), rule);
}

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "create_adagrad(int optimizer_id, float alpha=0.01, float eps=1e-08, float weight_decay=0., "
        "bool should_log=False) -> int");
    m.def("destroy_adagrad(int optimizer_id) -> int");
    m.def(
        "adagrad_update(int optimizer_id, int step, float lr, float eps, float weight_decay, Tensor(a!) params, "
        "Tensor grads, Tensor(b!) exp_avg_sq) -> ()");
    m.def(
        "multi_adagrad_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg_sqs, float lr, float eps, "
        "float weight_decay, bool maximize) -> ()");
}

// For every backend, not only for the CPU: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("create_adagrad", OPFORGE_BOXED(&opforge::cpu::create<opforge::cpu::ids>));
    m.impl("destroy_adagrad", OPFORGE_BOXED(&opforge::cpu::destroy<opforge::cpu::ids>));
    m.impl("adagrad_update", OPFORGE_BOXED(&opforge::cpu::adagrad_update));
    m.impl("multi_adagrad_", OPFORGE_BOXED(&opforge::cpu::multi_adagrad));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("adagrad_update", OPFORGE_BOXED(&opforge::cpu::tensors_meta<opforge::cpu::kTensors, 5>));
    m.impl("multi_adagrad_", OPFORGE_BOXED(&opforge::cpu::lists_meta<opforge::cpu::kLists>));
}

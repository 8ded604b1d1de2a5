// Functions whose tensors tests/compile/facade/test_calls.py follows.
#include <torch/extension.h>

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

torch::Tensor same(torch::Tensor x) { return x; }
torch::Tensor root(torch::Tensor x) { return x.sqrt(); }
std::vector<torch::Tensor> both(std::vector<torch::Tensor> list) { return {list.at(0), list.at(0) + list.at(1)}; }
torch::Tensor refused(torch::Tensor x, int64_t n) {
    TORCH_CHECK(n > 0, "refused");
    return x;
}

struct Scaled : torch::autograd::Function<Scaled> {
    static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x, torch::Tensor factor) {
        ctx->save_for_backward({x, factor});
        return x * factor;
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) {
        auto saved = ctx->get_saved_variables();
        return {grads[0] * saved[1], grads[0] * saved[0]};
    }
};
torch::Tensor scaled(torch::Tensor x, torch::Tensor factor) { return Scaled::apply(x, factor); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("same", &same);
    m.def("root", &root);
    m.def("both", &both);
    m.def("refused", &refused);
    m.def("scaled", &scaled);
}

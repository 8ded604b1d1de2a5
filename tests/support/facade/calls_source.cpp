// Functions whose tensors tests/compile/facade/test_calls.py follows.
#include <torch/extension.h>

#include <chrono>
#include <thread>

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

// Functions whose results torch changes, with and without a gradient.
struct Returned : torch::autograd::Function<Returned> {
    static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x) { return x; }
    static variable_list backward(AutogradContext* ctx, variable_list grads) { return grads; }
};
struct InGraph : torch::autograd::Function<InGraph> {
    static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x) {
        return torch::ones(x.sizes(), x.options().requires_grad(true));
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) { return grads; }
};
struct Zeroed : torch::autograd::Function<Zeroed> {
    static variable_list forward(AutogradContext* ctx, torch::Tensor x, torch::Tensor y) {
        x.zero_();
        ctx->mark_dirty({x});
        return {x, y + 1};
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) { return grads; }
};
struct Checked : torch::autograd::Function<Checked> {
    static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x) {
        if (x.dim() != 1) {
            throw std::invalid_argument("one dimension is expected");
        }
        return torch::full({}, torch::GradMode::is_enabled() ? 1 : 0, x.options());
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) { return grads; }
};
// Backward reads what is saved twice, with time between for another thread.
struct Rereads : torch::autograd::Function<Rereads> {
    static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x) {
        ctx->save_for_backward({x});
        return x * x;
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) {
        const auto first = ctx->get_saved_variables();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const auto second = ctx->get_saved_variables();
        return {grads[0] * (first.at(0) + second.at(0))};
    }
};
torch::Tensor rereads(torch::Tensor x) { return Rereads::apply(x); }
void out_of_memory() { c10::facade::fail_as_torch("CUDA out of memory. Tried to allocate 2.00 GiB.", "aten::empty"); }
torch::Tensor returned(torch::Tensor x) { return Returned::apply(x); }
torch::Tensor in_graph(torch::Tensor x) { return InGraph::apply(x); }
variable_list zeroed(torch::Tensor x, torch::Tensor y) { return Zeroed::apply(x, y); }
torch::Tensor checked(torch::Tensor x) { return Checked::apply(x); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("same", &same);
    m.def("root", &root);
    m.def("both", &both);
    m.def("refused", &refused);
    m.def("scaled", &scaled);
    m.def("returned", &returned);
    m.def("in_graph", &in_graph);
    m.def("zeroed", &zeroed);
    m.def("checked", &checked);
    m.def("rereads", &rereads);
    m.def("out_of_memory", &out_of_memory);
}

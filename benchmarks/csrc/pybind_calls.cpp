// Functions whose calls benchmarks/loading/facade_calls.py times: compiled on torch's headers and on the facade.
#include <torch/extension.h>

#include <tuple>

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void nothing() {}
int64_t number(int64_t i) { return i; }
torch::Tensor same(torch::Tensor x) { return x; }
torch::Tensor sum_of_two(torch::Tensor x, torch::Tensor y) { return x.add(y); }
torch::Tensor root(torch::Tensor x) { return x.sqrt(); }
torch::Tensor made(torch::Tensor x) { return torch::empty(x.sizes(), x.options()); }
torch::Tensor selected(torch::Tensor x) { return x.select(0, 0); }
int64_t elements(torch::Tensor x) {
    int64_t n = 1;
    for (int64_t i = 0; i < x.dim(); ++i) {
        n *= x.size(i);
    }
    return n;
}

// The sum of the elements of src for each index, as torch-scatter's scatter_sum makes it.
torch::Tensor scattered(torch::Tensor src, torch::Tensor index, int64_t dim, int64_t size) {
    auto sizes = src.sizes().vec();
    sizes[dim] = size;
    torch::Tensor out = torch::zeros(sizes, src.options());
    return out.scatter_add_(dim, index, src);
}
struct ScatterSum : public torch::autograd::Function<ScatterSum> {
    static variable_list forward(AutogradContext* ctx, Variable src, Variable index, int64_t dim, int64_t size) {
        ctx->saved_data["dim"] = dim;
        ctx->saved_data["sizes"] = src.sizes();
        torch::Tensor out = scattered(src, index, dim, size);
        ctx->save_for_backward({index});
        return {out};
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) {
        Variable index = ctx->get_saved_variables()[0];
        const int64_t dim = ctx->saved_data["dim"].toInt();
        return {torch::gather(grads[0], dim, index, false), Variable(), Variable(), Variable()};
    }
};
torch::Tensor scatter_sum(torch::Tensor src, torch::Tensor index, int64_t dim, int64_t size) {
    return ScatterSum::apply(src, index, dim, size)[0];
}
struct Same : public torch::autograd::Function<Same> {
    static Variable forward(AutogradContext* ctx, Variable x) { return x.view_as(x); }
    static variable_list backward(AutogradContext* ctx, variable_list grads) { return grads; }
};
torch::Tensor through_function(torch::Tensor x) { return Same::apply(x); }
}  // namespace

#define OF_OP_(name) #name "::scatter_sum"
#define OF_OP(name) OF_OP_(name)
static auto registered = torch::RegisterOperators().op(OF_OP(TORCH_EXTENSION_NAME), &scatter_sum);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("nothing", &nothing);
    m.def("number", &number);
    m.def("same", &same);
    m.def("sum_of_two", &sum_of_two);
    m.def("root", &root);
    m.def("made", &made);
    m.def("selected", &selected);
    m.def("elements", &elements);
    m.def("scattered", &scattered);
    m.def("scatter_sum", &scatter_sum);
    m.def("through_function", &through_function);
}

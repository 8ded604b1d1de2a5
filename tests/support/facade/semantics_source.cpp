// What a facade library does beside calling functions: autograd Functions, threads, the GIL, ops.
#include <torch/extension.h>

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Power : torch::autograd::Function<Power> {
    static Tensor forward(AutogradContext* ctx, Tensor x, int64_t n, std::optional<Tensor> scale) {
        TORCH_CHECK_INDEX(n != -7, "no such power: ", n);
        ctx->saved_data["n"] = n;
        ctx->save_for_backward({x});
        Tensor r = torch::ones_like(x);
        for (int64_t i = 0; i < n; ++i) {
            r = r * x;
        }
        return scale ? r * *scale : r;
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) {
        int64_t n = ctx->saved_data["n"].toInt();
        Tensor x = ctx->get_saved_variables()[0];
        TORCH_CHECK_NOT_IMPLEMENTED(n != 9, "no gradient of the ninth power");
        Tensor r = grads[0] * n;
        for (int64_t i = 1; i < n; ++i) {
            r = r * x;
        }
        return {r, Tensor(), Tensor()};
    }
};
#ifndef FACADE_TEST_OTHER  // the second library has the functions that share state, and one op
struct AddOne : torch::autograd::Function<AddOne> {
    static variable_list forward(AutogradContext* ctx, Tensor x) {
        x.add_(1);
        ctx->mark_dirty({x});
        Tensor count = torch::full({}, x.numel());
        ctx->mark_non_differentiable({count});
        return {x, count};
    }
    static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0] * 3}; }
};
struct Sum : torch::autograd::Function<Sum> {
    static Tensor forward(AutogradContext* ctx, at::TensorList list) {
        ctx->saved_data["count"] = static_cast<int64_t>(list.size());
        Tensor r = list[0].clone();
        for (size_t i = 1; i < list.size(); ++i) {
            r = r + list[i];
        }
        return r;
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) {
        variable_list r;
        for (int64_t i = 0; i < ctx->saved_data["count"].toInt(); ++i) {
            r.push_back(grads[0] * (i + 1));
        }
        return r;
    }
};
#endif

static int64_t calls = 0;
static Tensor twice(Tensor x) {
    ++calls;
    return x * 2;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def(
        "power", [](Tensor x, int64_t n, std::optional<Tensor> scale) { return Power::apply(x, n, scale); },
        py::arg("x"), py::arg("n"), py::arg("scale") = py::none());
    m.def("twice", &twice);
    m.def("calls", [] { return calls; });
#ifndef FACADE_TEST_OTHER
    m.def("add_one", [](Tensor x) { return AddOne::apply(x); });
    m.def("sum", [](std::vector<Tensor> list) { return Sum::apply(at::TensorList(list)); });
    m.def("requires_grad", [](Tensor x) { return x.requires_grad(); });
    m.def("held", [] { return opforge_PyGILState_Check() != 0; });
    m.def("held_when_released", [] {
        py::gil_scoped_release no_gil;
        return opforge_PyGILState_Check() != 0;
    });
    m.def("held_again", [] {
        py::gil_scoped_release no_gil;
        py::gil_scoped_acquire gil;
        return opforge_PyGILState_Check() != 0;
    });
    m.def("in_parallel", [](int64_t n) {
        std::vector<int64_t> squares(static_cast<size_t>(n));
        at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                squares[static_cast<size_t>(i)] = i * i;
            }
        });
        return squares;
    });
    m.def("tensors_in_parallel", [](Tensor x, int64_t n) {
        std::vector<Tensor> results(static_cast<size_t>(n));
        at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                results[static_cast<size_t>(i)] = x * i + 1;
            }
        });
        return results;
    });
    m.def("fails_in_parallel", [] {
        at::parallel_for(0, 64, 1, [&](int64_t begin, int64_t) { TORCH_CHECK_VALUE(begin < 0, "in a worker"); });
    });
    m.def("applies_in_parallel", [](Tensor x) {
        at::parallel_for(0, 64, 1, [&](int64_t, int64_t) { Power::apply(x, int64_t{2}, std::optional<Tensor>()); });
    });
    m.def("reduced", [](int64_t n) {
        return at::parallel_reduce(
            0, n, 10, int64_t{0},
            [](int64_t begin, int64_t end, int64_t sum) {
                for (int64_t i = begin; i < end; ++i) {
                    sum += i;
                }
                return sum;
            },
            std::plus<int64_t>());
    });
    m.def("grad_modes", [](Tensor x) {
        torch::NoGradGuard guard;
        return std::make_pair(at::GradMode::is_enabled(), (x * 2).requires_grad());
    });
#endif
}

TORCH_LIBRARY(FACADE_TEST_NAMESPACE, m) {
    m.def("twice(Tensor x, *, float by=2.0) -> Tensor");
#ifndef FACADE_TEST_OTHER
    m.def("pair(Tensor x, int[]? dims, str text) -> (Tensor, int)",
          [](Tensor x, std::optional<std::vector<int64_t>> dims, std::string text) {
              return std::make_tuple(dims ? x.sum(*dims) : x, static_cast<int64_t>(text.size()));
          });
    m.def("deduced", [](const Tensor& x, int64_t n, std::optional<Tensor> y) { return y ? x * n + *y : x * n; });
    m.def("refused(Tensor x) -> ()", [](Tensor) { TORCH_CHECK_INDEX(false, "refused ", 1); });
    m.def("through_function(Tensor x) -> Tensor",
          [](Tensor x) { return Power::apply(x, int64_t{-7}, std::optional<Tensor>()); });
#endif
}
TORCH_LIBRARY_IMPL(FACADE_TEST_NAMESPACE, CPU, m) {
    m.impl("twice", [](Tensor x, double by) { return x * by; });
}
TORCH_LIBRARY_IMPL(FACADE_TEST_NAMESPACE, Meta, m) {
    m.impl("twice", [](Tensor x, double) { return torch::empty_like(x); });
}

// Functions that test_thread_sanitizer.py calls in threads.
#include <torch/extension.h>

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Squared : torch::autograd::Function<Squared> {
    static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x) {
        ctx->save_for_backward({x});
        ctx->saved_data["factor"] = 2;
        return x * x;
    }
    static variable_list backward(AutogradContext* ctx, variable_list grads) {
        const auto saved = ctx->get_saved_variables();
        return {grads[0] * saved[0] * ctx->saved_data["factor"].toInt()};
    }
};
torch::Tensor squared(torch::Tensor x) { return Squared::apply(x); }

// Halves in torch's threads, which also make and free tensors.
torch::Tensor halved(torch::Tensor x) {
    py::gil_scoped_release no_gil;
    auto out = torch::empty_like(x);
    const float* from = x.data_ptr<float>();
    float* to = out.data_ptr<float>();
    at::parallel_for(0, x.numel(), 16, [&](int64_t begin, int64_t end) {
        torch::Tensor element = x.select(0, begin);
        for (int64_t i = begin; i < end; ++i) {
            to[i] = from[i] / 2;
        }
    });
    return out;
}

// A race: the tool must see it. Four threads wait for each other by what orders nothing: the GIL would order one that
// comes after another's end.
int64_t counted() {
    static int64_t n = 0;
    static std::atomic<int> arrived{0};
    py::gil_scoped_release no_gil;
    arrived.fetch_add(1, std::memory_order_relaxed);
    while (arrived.load(std::memory_order_relaxed) < 4) {
        std::this_thread::yield();
    }
    for (int i = 0; i < 1000; ++i) {
        n = n + 1;
    }
    return n;
}

struct Node {
    int64_t n = 0;
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("squared", &squared);
    m.def("halved", &halved);
    m.def("counted", &counted);
    py::class_<Node, std::shared_ptr<Node>>(m, "Node").def(py::init<>()).def_readwrite("n", &Node::n);
    m.def("same", [](std::shared_ptr<Node> node) { return node; });
}

// The activation of a transformer layer with its bias, and its gradient. The layer's other steps are torch's own.

#include <opforge/stable_blocks.h>

#include "../cpu/rows.h"

namespace opforge::cpu {
namespace {

// The derivative of gelu: with s = sigmoid(w), where gelu(x) = x s, it is s + x s (1 - s) w'.
inline Vec gelu_slope(Vec x) {
    const Vec one(1.0f), square = x * x;
    const Vec s = logistic(one, Vec(1.59576912f) * x * fma(Vec(0.044715f), square, one));
    return fma(x * s * (one - s) * Vec(1.59576912f), fma(Vec(0.134145f), square, one), s);
}

struct Operands {
    Dense out, x, bias;

    explicit Operands(Arguments& arguments, const char* name) {
        for (int i = 0; i < 3; ++i) arguments.tensor();
        const auto& handles = arguments.handles();
        out = values(handles[0], name, true);
        x = values(handles[1], "x", false);
        bias = values(handles[2], "bias", false);
        check_dim(x, "x", 1, 64, "channels as the last dimension");
        check_same_sizes(out, name, x, "x");
        check_same_dtype(out, name, x, "x");
        check_sizes(bias, "bias", {x.size(-1)}, "one for each channel");
        check_same_dtype(bias, "bias", x, "x");
    }

    // Replaces the vectors of out by compute(x + bias, out).
    template <typename Compute>
    void each(const Compute& compute) const {
        if (x.numel == 0) return;
        const int64_t columns = x.size(-1);
        with_dtype(x.kind, [&](auto type) {
            using T = typename decltype(type)::type;
            each_row(x.numel / columns, columns * x.item, [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    const T* const from = x.as<const T>() + row * columns;
                    const T* const biases = bias.as<const T>();
                    T* const to = out.as<T>() + row * columns;
                    int64_t k = 0;
                    for (; k + Vec::kWidth <= columns; k += Vec::kWidth) {
                        store(to + k, compute(load_early(from + k) + load(biases + k), load(to + k)));
                    }
                    if (k == columns) continue;
                    const int64_t left = columns - k;
                    const Vec sum = load_some(from + k, left) + load_some(biases + k, left);
                    store_some(to + k, compute(sum, load_some(to + k, left)), left);
                }
            });
        });
    }
};

void bias_gelu(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Operands(arguments, "out").each([](Vec x, Vec) { return gelu(x); });
}

void bias_gelu_grad(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Operands(arguments, "grad").each([](Vec x, Vec grad) { return grad * gelu_slope(x); });
}

constexpr char kKinds[] = "ttt";

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def("bias_gelu_(Tensor(a!) out, Tensor x, Tensor bias) -> ()");
    m.def("bias_gelu_grad_(Tensor(a!) grad, Tensor x, Tensor bias) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("bias_gelu_", OPFORGE_BOXED(&opforge::cpu::bias_gelu));
    m.impl("bias_gelu_grad_", OPFORGE_BOXED(&opforge::cpu::bias_gelu_grad));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("bias_gelu_", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kKinds>));
    m.impl("bias_gelu_grad_", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kKinds>));
}

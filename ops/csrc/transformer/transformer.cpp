// The activation of a transformer layer with its bias, and its gradient. The layer's other steps are torch's own.

#include <torch/csrc/stable/library.h>

#include "../cpu/rows.h"

namespace opforge::cpu {
namespace {

// The derivative of gelu: with s = sigmoid(w), where gelu(x) = x s, it is s + x s (1 - s) w'.
inline float gelu_slope(float x) {
    const float square = x * x;
    const float s = 1.0f / (1.0f + exp_of(-1.59576912f * x * (1.0f + 0.044715f * square)));
    return s + x * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * square);
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

    // Calls compute(x + bias, out, count) with blocks of floats. What it leaves in the first is stored in out.
    template <typename Compute>
    void each(const Compute& compute) const {
        if (x.numel == 0) return;
        const int64_t columns = x.size(-1);
        with_dtype(x.kind, [&](auto type) {
            using T = typename decltype(type)::type;
            each_row(x.numel / columns, columns * x.item, [&](int64_t begin, int64_t end) {
                alignas(64) float sums[kBlock], others[kBlock];
                for (int64_t row = begin; row < end; ++row) {
                    for (int64_t at = 0; at < columns; at += kBlock) {
                        const int64_t count = std::min(kBlock, columns - at);
                        const T* const from = x.as<const T>() + row * columns + at;
                        const T* const biases = bias.as<const T>() + at;
                        T* const to = out.as<T>() + row * columns + at;
                        for (int64_t k = 0; k < count; k += Vec::kWidth) {
                            store(sums + k, load_some(from + k, count - k) + load_some(biases + k, count - k));
                            store(others + k, load_some(to + k, count - k));
                        }
                        compute(sums, others, count);
                        from_floats(sums, count, to);
                    }
                }
            });
        });
    }
};

void bias_gelu(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Operands(arguments, "out").each([](float* x, const float*, int64_t count) {
        activate(x, count, Activation::Gelu);
    });
}

void bias_gelu_grad(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Operands(arguments, "grad").each([](float* x, const float* grad, int64_t count) {
        for (int64_t k = 0; k < count; ++k) x[k] = grad[k] * gelu_slope(x[k]);
    });
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

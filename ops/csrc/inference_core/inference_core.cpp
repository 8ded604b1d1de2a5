// Activations with a bias, gated activations, and norms with a residual, each in one pass.

#include <opforge/stable_blocks.h>

#include "../cpu/norms.h"

namespace opforge::cpu {
namespace {

void check_row(const Dense& row, const char* name, const Dense& in, const char* input) {
    check_sizes(row, name, {in.size(-1)}, "one for each channel");
    check_same_dtype(row, name, in, input);
}

void check_like(const Dense& tensor, const char* name, const Dense& in, const char* input) {
    check_same_sizes(tensor, name, in, input);
    check_same_dtype(tensor, name, in, input);
}

// Reads the last arguments of a norm, and checks all.
void finish(Norm& norm, Arguments& arguments, const char* input, bool centred) {
    norm.eps = static_cast<float>(arguments.real());
    check_dim(norm.in, input, 1, 64, "channels as the last dimension");
    check_like(norm.out, "the output", norm.in, input);
    if (norm.sum.sizes) check_like(norm.sum, "the residual output", norm.in, input);
    if (norm.residual.sizes) check_like(norm.residual, "the residual", norm.in, input);
    check_row(norm.gamma, "gamma", norm.in, input);
    if (centred) check_row(norm.beta, "beta", norm.in, input);
}

void layer_norm(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 4; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    Norm norm{};
    norm.out = values(handles[0], "output", true), norm.in = values(handles[1], "input", false);
    norm.gamma = values(handles[2], "gamma", false), norm.beta = values(handles[3], "beta", false);
    finish(norm, arguments, "input", true);
    normalize<true>(norm);
}

void pre_layer_norm(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 6; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    Norm norm{};
    norm.sum = values(handles[0], "res_output", true), norm.out = values(handles[1], "norm_output", true);
    norm.in = values(handles[2], "input", false), norm.residual = values(handles[3], "residual", false);
    norm.gamma = values(handles[4], "gamma", false), norm.beta = values(handles[5], "beta", false);
    finish(norm, arguments, "input", true);
    normalize<true>(norm);
}

void post_layer_norm(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 5; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    Norm norm{};
    norm.out = values(handles[0], "output", true), norm.in = values(handles[1], "input", false);
    norm.residual = values(handles[2], "residual", false);
    norm.gamma = values(handles[3], "gamma", false), norm.beta = values(handles[4], "beta", false);
    finish(norm, arguments, "input", true);
    normalize<true>(norm);
}

void rms_norm(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 3; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    Norm norm{};
    norm.out = values(handles[0], "norm_output", true), norm.in = values(handles[1], "norm_input", false);
    norm.gamma = values(handles[2], "gamma", false);
    finish(norm, arguments, "norm_input", false);
    normalize<false>(norm);
}

void rms_pre_norm(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 5; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    Norm norm{};
    norm.out = values(handles[0], "norm_output", true), norm.sum = values(handles[1], "residual_output", true);
    norm.in = values(handles[2], "norm_input", false), norm.residual = values(handles[3], "residual_input", false);
    norm.gamma = values(handles[4], "gamma", false);
    finish(norm, arguments, "norm_input", false);
    normalize<false>(norm);
}

// Rounds up to whole vectors. What is computed of a row beside its values costs less than a loop over the rest of it.
constexpr int64_t whole_vectors(int64_t count) { return (count + Vec::kWidth - 1) / Vec::kWidth * Vec::kWidth; }

// Adds a bias, unless it is null, to `count` values of a row from channel `at` on.
template <typename T>
void load_biased(const T* in, const T* bias, int64_t count, float* out) {
    for (int64_t k = 0; k < count; k += Vec::kWidth) {
        Vec x = count - k >= Vec::kWidth ? load_early(in + k) : load_some(in + k, count - k);
        if (bias) x = x + load_some(bias + k, count - k);
        store(out + k, x);
    }
}

void bias_activation(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    arguments.tensor();
    arguments.optional_tensor();
    const Dense x = values(arguments.handles()[0], "activation", true);
    const int64_t number = arguments.integer();
    const auto activation = static_cast<Activation>(number);
    if (activation != Activation::Gelu && activation != Activation::Relu && activation != Activation::Silu &&
        activation != Activation::Identity) {
        refuse({"act_type is ", number, ", expected 0 (GELU), 1 (ReLU), 2 (SiLU) or 6 (identity)"});
    }
    check_dim(x, "activation", 1, 64, "channels as the last dimension");
    Dense bias;
    if (arguments.lengths()[1]) {
        bias = values(arguments.handles()[1], "bias", false);
        check_row(bias, "bias", x, "activation");
    }
    if (x.numel == 0 || (activation == Activation::Identity && !bias.data)) return;
    const int64_t columns = x.size(-1);
    with_dtype(x.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        const T* const row_bias = bias.data ? bias.as<const T>() : nullptr;
        with_activation(activation, [&](const auto& activate) {
            each_row(x.numel / columns, columns * x.item, [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                    T* const data = x.as<T>() + row * columns;
                    int64_t k = 0;
                    for (; k + Vec::kWidth <= columns; k += Vec::kWidth) {
                        Vec y = load_early(data + k);
                        if (row_bias) y = y + load(row_bias + k);
                        store(data + k, activate(y));
                    }
                    if (k == columns) continue;
                    Vec y = load_some(data + k, columns - k);
                    if (row_bias) y = y + load_some(row_bias + k, columns - k);
                    store_some(data + k, activate(y), columns - k);
                }
            });
        });
    });
}

// Replaces whole vectors of floats. It is compiled once for all dtypes, and called once for each block.
[[gnu::noinline]] void activate_floats(Activation activation, float* data, int64_t count) {
    with_activation(activation, [&](const auto& activate) {
        for (int64_t k = 0; k < count; k += Vec::kWidth) store(data + k, activate(load(data + k)));
    });
}

void gated_activation(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    arguments.tensor();
    arguments.tensor();
    arguments.optional_tensor();
    const auto& handles = arguments.handles();
    const Dense out = values(handles[0], "output", true), in = values(handles[1], "input", false);
    const int64_t number = arguments.integer();
    const auto activation = static_cast<Activation>(number);
    if (activation != Activation::Geglu && activation != Activation::Reglu && activation != Activation::Siglu) {
        refuse({"activation_type is ", number, ", expected 3 (GEGLU), 4 (ReGLU) or 5 (SiGLU)"});
    }
    check_dim(in, "input", 1, 64, "channels as the last dimension");
    const int64_t columns = in.size(-1);
    bool fits = columns % 2 == 0 && out.dim == in.dim && out.size(-1) * 2 == columns;
    for (int64_t i = 0; fits && i + 1 < in.dim; ++i) fits = out.sizes[i] == in.sizes[i];
    if (!fits) {
        refuse({"output has shape ", text(out), " and input ", text(in),
                ", expected one shape, with half as many channels in output: each has a gate and a value in input"});
    }
    check_same_dtype(out, "output", in, "input");
    Dense bias;
    if (arguments.lengths()[2]) {
        bias = values(handles[2], "bias", false);
        check_row(bias, "bias", in, "input");
    }
    if (in.numel == 0) return;
    with_dtype(in.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        each_row(in.numel / columns, columns * in.item, [&](int64_t begin, int64_t end) {
            alignas(64) float pairs[2 * kBlock] = {}, gates[kBlock];
            for (int64_t row = begin; row < end; ++row) {
                for (int64_t at = 0; at < columns / 2; at += kBlock) {
                    const int64_t count = std::min(kBlock, columns / 2 - at);
                    load_biased<T>(in.as<const T>() + row * columns + 2 * at,
                                   bias.data ? bias.as<const T>() + 2 * at : nullptr, 2 * count, pairs);
                    const int64_t whole = whole_vectors(count);
                    for (int64_t k = 0; k < whole; ++k) gates[k] = pairs[2 * k];
                    activate_floats(activation, gates, whole);
                    for (int64_t k = 0; k < count; ++k) gates[k] *= pairs[2 * k + 1];
                    from_floats(gates, count, out.as<T>() + row * (columns / 2) + at);
                }
            }
        });
    });
}

constexpr char kActivation[] = "to", kGated[] = "tto", kThree[] = "ttt", kFour[] = "tttt", kFive[] = "ttttt",
               kSix[] = "tttttt";

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def("bias_activation(Tensor(a!) activation, Tensor? bias, int act_type) -> ()");
    m.def("layer_norm(Tensor(a!) output, Tensor input, Tensor gamma, Tensor beta, float epsilon) -> ()");
    m.def(
        "pre_layer_norm(Tensor(a!) res_output, Tensor(b!) norm_output, Tensor input, Tensor residual, Tensor gamma, "
        "Tensor beta, float epsilon) -> ()");
    m.def(
        "post_layer_norm(Tensor(a!) output, Tensor input, Tensor residual, Tensor gamma, Tensor beta, float epsilon) "
        "-> ()");
    m.def("rms_norm(Tensor(a!) norm_output, Tensor norm_input, Tensor gamma, float epsilon) -> ()");
    m.def(
        "rms_pre_norm(Tensor(a!) norm_output, Tensor(b!) residual_output, Tensor norm_input, Tensor residual_input, "
        "Tensor gamma, float epsilon) -> ()");
    m.def("gated_activation(Tensor(a!) output, Tensor input, Tensor? bias, int activation_type) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("bias_activation", OPFORGE_BOXED(&opforge::cpu::bias_activation));
    m.impl("layer_norm", OPFORGE_BOXED(&opforge::cpu::layer_norm));
    m.impl("pre_layer_norm", OPFORGE_BOXED(&opforge::cpu::pre_layer_norm));
    m.impl("post_layer_norm", OPFORGE_BOXED(&opforge::cpu::post_layer_norm));
    m.impl("rms_norm", OPFORGE_BOXED(&opforge::cpu::rms_norm));
    m.impl("rms_pre_norm", OPFORGE_BOXED(&opforge::cpu::rms_pre_norm));
    m.impl("gated_activation", OPFORGE_BOXED(&opforge::cpu::gated_activation));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("bias_activation", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kActivation>));
    m.impl("layer_norm", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kFour>));
    m.impl("pre_layer_norm", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kSix>));
    m.impl("post_layer_norm", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kFive>));
    m.impl("rms_norm", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kThree>));
    m.impl("rms_pre_norm", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kFive>));
    m.impl("gated_activation", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kGated>));
}

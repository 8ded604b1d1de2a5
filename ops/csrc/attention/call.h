#pragma once

// The ops of attention, forward and backward, which each library defines under a name of its own: with lists of blocks
// or without.

#include <iterator>

#include "operands.h"

namespace opforge::attention {

inline constexpr const char* kBiases[] = {"biases[0]", "biases[1]", "biases[2]"};
inline constexpr const char* kBiasGradients[] = {"bias_gradients[0]", "bias_gradients[1]", "bias_gradients[2]"};
static_assert(std::size(kBiases) == cpu::kMaxBiases && std::size(kBiasGradients) == cpu::kMaxBiases);

struct Call {
    cpu::Attention attention{};
    Sizes sizes{};
};

// Reads what forward and backward share. `tensors` are q, k and v; `biases` are as many as `count`.
[[gnu::noinline]] inline Call read_call(const AtenTensorHandle* tensors, const AtenTensorHandle* biases, size_t count,
                                        int64_t multiplied) {
    Call out;
    cpu::Attention& call = out.attention;
    out.sizes = read_sizes(tensors[0]);
    call.outer = out.sizes.outer, call.inner = out.sizes.inner, call.heads = out.sizes.heads;
    call.size = out.sizes.size;
    call.queries = call.keys = -1;
    call.q = read_heads(tensors[0], "q", false, out.sizes, call.queries);
    call.k = read_heads(tensors[1], "k", false, out.sizes, call.keys);
    call.v = read_heads(tensors[2], "v", false, out.sizes, call.keys);
    if (count > cpu::kMaxBiases) {
        refuse({"biases has ", count, " tensors, expected at most ", cpu::kMaxBiases, ": add some of them up before"});
    }
    call.bias_count = static_cast<int>(count);
    for (size_t i = 0; i < count; ++i) {
        call.biases[i] = read_bias(biases[i], kBiases[i], (multiplied >> i & 1) != 0, call);
    }
    return out;
}

// Reads the arguments after the tensors: the lists of blocks if kBlocks, then scale and causal.
template <bool kBlocks>
void read_options(Arguments& arguments, cpu::Attention& call) {
    if constexpr (kBlocks) {
        const size_t at = arguments.handles().size();
        arguments.tensor();
        arguments.tensor();
        int64_t offsets, columns;
        const int32_t* const first = read_indexes(arguments.handles()[at], "offsets", offsets);
        const int32_t* const second = read_indexes(arguments.handles()[at + 1], "columns", columns);
        const int64_t block = arguments.integer();
        call.blocks = checked_blocks(first, offsets, second, columns, block, call.heads, call.queries, call.keys);
    }
    call.scale = static_cast<float>(arguments.real());
    call.causal = arguments.flag();
}

// out, log_sums, q, k, v, biases, multiplied, options.
template <bool kBlocks>
void forward(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 5; ++i) arguments.tensor();
    arguments.tensor_list();
    const auto tensors = arguments.handles();
    const int64_t multiplied = arguments.integer();
    Call read = read_call(tensors.data() + 2, tensors.data() + 5, tensors.size() - 5, multiplied);
    cpu::Attention& call = read.attention;
    read_options<kBlocks>(arguments, call);
    const cpu::HeadRows out = read_heads(tensors[0], "out", true, read.sizes, call.queries);
    call.log_sum_stride = read_sums(tensors[1], "log_sums", true, call, call.log_sums);
    const DeviceGuard guard(tensors[0], "out");
    call.executor = guard.executor();
    cpu::attention_forward(call, out);
}

// dq, dk, dv, bias gradients, dout, q, k, v, out, log_sums, deltas, biases, multiplied, options.
template <bool kBlocks>
void backward(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 3; ++i) arguments.tensor();
    arguments.tensor_list();
    const size_t gradients = arguments.handles().size() - 3;
    for (int i = 0; i < 7; ++i) arguments.tensor();
    arguments.tensor_list();
    const auto tensors = arguments.handles();
    const AtenTensorHandle* const inputs = tensors.data() + 3 + gradients;
    const size_t biases = tensors.size() - 10 - gradients;
    const int64_t multiplied = arguments.integer();
    Call read = read_call(inputs + 1, inputs + 7, biases, multiplied);
    cpu::Attention& call = read.attention;
    read_options<kBlocks>(arguments, call);
    cpu::AttentionGradient gradient{};
    gradient.dout = read_heads(inputs[0], "dout", false, read.sizes, call.queries);
    gradient.out = read_heads(inputs[4], "out", false, read.sizes, call.queries);
    gradient.dq = read_heads(tensors[0], "dq", true, read.sizes, call.queries);
    gradient.dk = read_heads(tensors[1], "dk", true, read.sizes, call.keys);
    gradient.dv = read_heads(tensors[2], "dv", true, read.sizes, call.keys);
    call.log_sum_stride = read_sums(inputs[5], "log_sums", false, call, call.log_sums);
    const int64_t stride = read_sums(inputs[6], "deltas", true, call, gradient.deltas);
    if (stride != call.log_sum_stride) {
        refuse({"deltas has a last size of ", stride, ", expected that of log_sums, ", call.log_sum_stride});
    }
    if (gradients != biases) {
        refuse({"bias_gradients has ", gradients, " tensors, expected one for each bias, ", biases});
    }
    for (size_t i = 0; i < gradients; ++i) {
        const char* name = kBiasGradients[i];
        const Operand to = read_operand(tensors[3 + i], name, true);
        const Operand bias = operand(inputs[7 + i], false);
        if (to.numel == 0) continue;
        if (to.numel != bias.numel || !equal(to.dtype, "float32") || !to.contiguous) {
            refuse({name, " is ", to.dtype, " of shape ", tuple_text(to.sizes, to.dim),
                    ", expected contiguous float32 of the bias's shape, ", tuple_text(bias.sizes, bias.dim),
                    ", or no element if it is not wanted"});
        }
        call.biases[i].gradient = static_cast<float*>(to.data);
    }
    const DeviceGuard guard(tensors[0], "dq");
    call.executor = guard.executor();
    cpu::attention_backward(call, gradient);
}

// The Meta kernels check devices alone: shapes may be symbols.
inline void forward_meta(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 5; ++i) arguments.tensor();
    arguments.tensor_list();
    check_all_meta(arguments.handles());
}

inline void backward_meta(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 3; ++i) arguments.tensor();
    arguments.tensor_list();
    for (int i = 0; i < 7; ++i) arguments.tensor();
    arguments.tensor_list();
    check_all_meta(arguments.handles());
}

}  // namespace opforge::attention

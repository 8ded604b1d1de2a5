// Biases of channels for images whose channels lie together in memory, in one pass.

#include <opforge/stable_blocks.h>

#include "../cpu/rows.h"

namespace opforge::cpu {
namespace {

// Rounds to T. torch and DeepSpeed's kernels round each sum, so the results are theirs bit for bit.
template <typename T>
Pair rounded(Pair x) {
    if constexpr (std::is_same_v<T, float>) {
        return x;
    } else if constexpr (std::is_same_v<T, BFloat16>) {
        const Vec upper = set_bits(0xffff0000u);
        return {bit_and(rounded_to_bfloat16(x.first), upper), bit_and(rounded_to_bfloat16(x.second), upper)};
    } else {
        T stored[Pair::kWidth];
        store_pair(stored, x);
        return load_pair(stored);
    }
}

// All that it calls is inlined: what is called has its operands in memory, and reads them again after each store.
template <typename T>
[[gnu::flatten]] void add_rows(T* out, const T* in, const T* bias, const T* other, const T* other_bias, int64_t begin,
                               int64_t end, int64_t channels, bool streamed) {
    for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * channels;
        each_pair<T>(0, channels, [=](int64_t k, auto left) {
            Pair sum = load_pair(in + at + k, left) + load_pair(bias + k, left);
            if (other) {
                Pair second = load_pair(other + at + k, left);
                if (other_bias) second = rounded<T>(second + load_pair(other_bias + k, left));
                sum = rounded<T>(sum) + second;
            }
            store_pair(out + at + k, sum, left, streamed);
        });
    }
    if (streamed) end_streams();
}

void bias_add(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 3; ++i) arguments.tensor();
    for (int i = 0; i < 2; ++i) arguments.optional_tensor();
    const auto& handles = arguments.handles();
    const auto& lengths = arguments.lengths();
    const Dense out = values(handles[0], "out", true), in = values(handles[1], "input", false);
    const Dense bias = values(handles[2], "bias", false);
    check_dim(in, "input", 1, 64, "channels as the last dimension");
    const int64_t channels = in.size(-1);
    check_same_sizes(out, "out", in, "input");
    check_same_dtype(out, "out", in, "input");
    const auto check_bias = [&](const Dense& tensor, const char* name) {
        check_sizes(tensor, name, {channels}, "one for each channel of the input");
        check_same_dtype(tensor, name, in, "input");
    };
    check_bias(bias, "bias");
    Dense other, other_bias;
    if (lengths[3]) {
        other = values(handles[3], "other", false);
        check_same_sizes(other, "other", in, "input");
        check_same_dtype(other, "other", in, "input");
    }
    if (lengths[4]) {
        if (!lengths[3]) refuse({"other_bias is a tensor and other is None, expected both: pass other"});
        other_bias = values(handles[4], "other_bias", false);
        check_bias(other_bias, "other_bias");
    }
    if (in.numel == 0) return;
    with_dtype(in.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        const bool streamed = streams_rows(out, channels);
        each_row(in.numel / channels, channels * in.item, [&](int64_t begin, int64_t end) {
            add_rows<T>(out.as<T>(), in.as<T>(), bias.as<T>(), other.as<T>(), other_bias.as<T>(), begin, end, channels,
                        streamed);
        });
    });
}

constexpr char kKinds[] = "tttoo";

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "channel_bias_add_(Tensor(a!) out, Tensor input, Tensor bias, Tensor? other=None, Tensor? other_bias=None) -> "
        "()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("channel_bias_add_", OPFORGE_BOXED(&opforge::cpu::bias_add));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("channel_bias_add_", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kKinds>));
}

#pragma once

// Group quantization, for CPU and GPU kernels. A group's codes are integers in [-levels, levels), where levels is
// 2^(bits - 1). value = code * scale + offset; the offset is zero if the quantization is symmetric.

#include <cmath>

#include <opforge/element.h>
#include <opforge/multi_tensor.h>

namespace opforge {

// These ignore NaN. Their forms become one instruction with every compiler.
OPFORGE_HD inline float smaller(float a, float b) {
#if defined(OPFORGE_ON_DEVICE)
    return fminf(a, b);
#else
    return a < b ? a : b;
#endif
}
OPFORGE_HD inline float larger(float a, float b) {
#if defined(OPFORGE_ON_DEVICE)
    return fmaxf(a, b);
#else
    return a > b ? a : b;
#endif
}

// The range of a group's values. The largest magnitude is stored as bits, which have the order of the magnitudes, with
// NaN above all others.
struct GroupRange {
    uint32_t largest;
    float low, high;

    OPFORGE_HD static GroupRange of_nothing() { return {0, INFINITY, -INFINITY}; }

    OPFORGE_HD void add_magnitude(float x) {
        const uint32_t magnitude = to_bits(x) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    OPFORGE_HD void add(float x) {
        add_magnitude(x);
        low = smaller(x, low);
        high = larger(x, high);
    }
    OPFORGE_HD void add(const GroupRange& other) {
        largest = other.largest > largest ? other.largest : largest;
        low = smaller(other.low, low);
        high = larger(other.high, high);
    }
};

struct GroupParams {
    float scale, offset;
    float inverse;  // of the scale

    GroupParams() = default;

    // The params of a group with this range. If all values are equal (symmetric: zero), the scale is 1. The scale of a
    // group with an inf or a NaN is inf or NaN.
    OPFORGE_HD GroupParams(const GroupRange& range, float levels, bool symmetric) : scale(1), offset(0), inverse(1) {
        const float largest = of_bits(range.largest);
        float reach = largest;
        if (!symmetric) {
            reach = 0.5f * range.high - 0.5f * range.low;
            offset = 0.5f * range.high + 0.5f * range.low;
        }
        if (range.largest >= 0x7f800000u) {
            // The same NaN for all of them, and no offset, so that every device stores the same.
            scale = of_bits(range.largest > 0x7f800000u ? 0x7fc00000u : 0x7f800000u);
            offset = inverse = 0.0f;
            return;
        }
        if (reach == 0.0f) return;
        reach = reach < 0x1p-119f ? 0x1p-119f : reach;  // the inverse of a smaller number would be inf
        scale = reach * (1.0f / levels);                // exact, since levels is a power of two
        inverse = 1.0f / scale;
    }

    // The params that were stored, for dequantization.
    OPFORGE_HD GroupParams(const float* params, int64_t group, bool symmetric)
        : scale(params[symmetric ? group : 2 * group]), offset(symmetric ? 0.0f : params[2 * group + 1]), inverse(0) {}

    OPFORGE_HD void store(float* params, int64_t group, bool symmetric) const {
        params[symmetric ? group : 2 * group] = scale;
        if (!symmetric) params[2 * group + 1] = offset;
    }

    OPFORGE_HD float value(int code) const { return value(static_cast<float>(code)); }
    OPFORGE_HD float value(float code) const { return fmaf(code, scale, offset); }

    // Return the codes of values in the lowest bits of the result; the bits above are undefined. Beyond 2^23 a float
    // has no fraction, and its last bits are an integer: a GPU converts to integers at an eighth of the speed of an
    // addition. `zero` is the float of code 0, which may be slightly more than kZero.
    static constexpr float kZero = 0x1.8p23f;

    // Rounds to nearest, ties to even.
    OPFORGE_HD uint32_t code(float x, float levels, float zero = kZero) const {
        return to_bits(held(x, levels) + zero);
    }

    // The same for an offset of zero: then no finite value is below the lowest code.
    OPFORGE_HD uint32_t centred_code(float x, float levels, float zero = kZero) const {
        return to_bits(smaller(x * inverse, levels - 1.0f) + zero);
    }

    // Rounds up with a probability that is the fraction. `uniform` is a multiple of 2^-16 in [0, 1), so that a value
    // that is a code does not reach the next one.
    OPFORGE_HD uint32_t random_code(float x, float levels, float uniform, float zero = kZero) const {
        const float sum = held(x, levels) + uniform;
#if defined(__CUDA_ARCH__)
        return to_bits(__fadd_rd(sum, zero));
#else
        return to_bits(floorf(sum) + zero);
#endif
    }

private:
    OPFORGE_HD float held(float x, float levels) const {
        return larger(smaller((x - offset) * inverse, levels - 1.0f), -levels);
    }
};

// The keys of Philox's rounds, which are the same for a whole call.
struct PhiloxKeys {
    static constexpr int kRounds = 7;
    uint32_t words[kRounds][2];

    explicit PhiloxKeys(uint64_t seed) {
        auto first = static_cast<uint32_t>(seed), second = static_cast<uint32_t>(seed >> 32);
        for (auto& key : words) {
            key[0] = first, key[1] = second;
            first += 0x9e3779b9u, second += 0xbb67ae85u;
        }
    }
};

// Philox4x32-7 (Salmon et al., SC 2011): four words, for eight numbers, that depend only on the arguments.
struct Philox {
    static constexpr int kCount = 8;
    static constexpr uint32_t kFirst = 0xd2511f53u, kSecond = 0xcd9e8d57u;  // factors
    uint32_t words[4];

    OPFORGE_HD Philox(const PhiloxKeys& keys, uint64_t counter, uint64_t offset)
        : words{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(offset),
                static_cast<uint32_t>(offset >> 32)} {
#if defined(OPFORGE_ON_DEVICE)
#pragma unroll
#endif
        for (int round = 0; round < PhiloxKeys::kRounds; ++round) {
            const uint64_t first = product(words[0], kFirst), second = product(words[2], kSecond);
            words[0] = static_cast<uint32_t>(second >> 32) ^ words[1] ^ keys.words[round][0];
            words[2] = static_cast<uint32_t>(first >> 32) ^ words[3] ^ keys.words[round][1];
            words[1] = static_cast<uint32_t>(second);
            words[3] = static_cast<uint32_t>(first);
        }
    }

    // Returns number `i` of the eight, in [0, 1). The lower half of a word comes first. An integer below 2^16 in the
    // low bits of 2^23 is a float, so no conversion is needed.
    OPFORGE_HD float uniform(int i) const { return uniform(words[i / 2], i % 2); }
    OPFORGE_HD static float uniform(uint32_t word, int half) {
#if defined(__CUDA_ARCH__)
        const uint32_t bits = __byte_perm(word, 0x4b000000u, half == 0 ? 0x7610 : 0x7632);
#else
        const uint32_t bits = 0x4b000000u | (half == 0 ? word & 0xffffu : word >> 16);
#endif
        return of_bits(bits) * 0x1p-16f - 0x1p7f;  // exact
    }

private:
    OPFORGE_HD static uint64_t product(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
        uint64_t out;  // nvcc generates several instructions for a constant beyond 2^31
        asm("mul.wide.u32 %0, %1, %2;" : "=l"(out) : "r"(a), "r"(b));
        return out;
#else
        return static_cast<uint64_t>(a) * b;
#endif
    }
};

// The order in which groups are written. For communication they are reordered: partition `node * devices + device` of
// each slice of the pipeline moves to `device * nodes + node`, and the slices are one after the other.
struct Swizzle {
    int64_t slices = 1, nodes = 1, devices = 1;

    // `Int` can hold the number of groups.
    template <typename Int>
    OPFORGE_HD Int position(Int group, Int groups) const {
        if ((slices | nodes | devices) == 1) return group;
        const auto slices = static_cast<Int>(this->slices), nodes = static_cast<Int>(this->nodes);
        const auto devices = static_cast<Int>(this->devices), partitions = nodes * devices;
        const Int neighbours = groups / (partitions * slices);
        const Int slice = group / neighbours % slices;
        const Int partition = group / neighbours / slices;
        const Int moved = partition % devices * nodes + partition / devices;
        return (slice * partitions + moved) * neighbours + group % neighbours;
    }
};

// The layout of codes. Of two 4-bit codes in a byte, the first is in the upper half.
struct Groups {
    int64_t count;
    int64_t elements;  // per group
    int bits;          // 8, or 4 with an even number of elements per group
    bool symmetric;

    OPFORGE_HD float levels() const { return bits == 8 ? 128.0f : 8.0f; }
    OPFORGE_HD int64_t bytes(int64_t elements) const { return bits == 8 ? elements : elements / 2; }
};

// Returns code `i` of those at `codes`.
OPFORGE_HD inline int code_at(const uint8_t* codes, int64_t i, int bits) {
    if (bits == 8) return static_cast<int8_t>(codes[i]);
    const int byte = codes[i / 2];
    return static_cast<int8_t>(i % 2 == 0 ? byte & 0xf0 : byte << 4) >> 4;
}

struct QuantizeCall {
    Groups groups;
    const void* input;
    DType dtype;
    uint8_t* codes;
    float* params;
    Swizzle swizzle;
    bool stochastic;
    uint64_t seed, offset;
    Executor executor;
};

// Adds `tensors` quantized tensors, which are stored one after the other, and quantizes the sum.
struct ReduceCall {
    Groups groups;  // of the result
    const uint8_t* input;
    const float* input_params;
    int64_t tensors;
    int64_t input_groups;    // per tensor
    int64_t input_elements;  // per group
    uint8_t* codes;
    float* params;
    Executor executor;

    // Returns the sum of element `i` of all tensors, in their order.
    OPFORGE_HD float sum(int64_t i) const {
        const int64_t bytes = groups.bytes(input_groups * input_elements);
        float total = 0.0f;
        for (int64_t tensor = 0; tensor < tensors; ++tensor) {
            const GroupParams params(input_params, tensor * input_groups + i / input_elements, groups.symmetric);
            total += params.value(code_at(input + tensor * bytes, i, groups.bits));
        }
        return total;
    }
};

struct DequantizeCall {
    Groups groups;
    const uint8_t* codes;
    const float* params;
    void* output;
    DType dtype;
    Executor executor;
};

// The functions that each device implements, without torch. Each returns null, or the reason why its kernel did not
// start.
const char* launch_quantize(const QuantizeCall& call);
const char* launch_reduce(const ReduceCall& call);
const char* launch_dequantize(const DequantizeCall& call);

}  // namespace opforge

#pragma once

// Quantization to small floating-point numbers, for CPU and GPU kernels. A code has a sign, an exponent and a mantissa,
// from the highest bit down, and value = number(code) * scale. No code is an inf or a NaN. As in IEEE 754, exponent 0
// is for zero and subnormal numbers.

#include <opforge/quantizing.h>

namespace opforge {

// How a group is encoded. A group of zeros has scale 0. In a group with an inf or a NaN the scale is NaN and all codes
// are 0.
struct FpScale {
    float scale;
    float inverse;  // the factor of values before they are encoded; 0 if there is nothing to encode

    // `largest` are the bits of the group's largest magnitude, `range` is the largest number of the format.
    OPFORGE_HD static FpScale of(uint32_t largest, float range) {
        if (largest >= 0x7f800000u) return {of_bits(0x7fc00000u), 0.0f};
        if (largest == 0) return {0.0f, 0.0f};
        const float reach = smaller(of_bits(largest), 0x1.fffffcp127f);  // more could be dequantized to inf
        const float scale = reach / range;
        // A smaller scale would be subnormal, and its inverse inf.
        if (scale < 0x1p-126f) return {0x1p-126f, 0x1p126f};
        return {scale, range / reach};
    }
    OPFORGE_HD bool encodes() const { return inverse != 0.0f; }
};

// Codes of kExponent bits of exponent and kMantissa bits of mantissa.
template <int kExponent, int kMantissa>
struct FpFormat {
    static constexpr int kBits = 1 + kExponent + kMantissa;
    static constexpr int kExponentBits = kExponent;
    static constexpr int kMantissaBits = kMantissa;
    static constexpr int kDropped = 23 - kMantissa;  // bits of a float's mantissa
    static constexpr int kBias = (1 << (kExponent - 1)) - 1;
    static constexpr uint32_t kLargest = (1u << (kBits - 1)) - 1;                          // code
    static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;          // from float's exponent
    static constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;  // float's bits
    static constexpr uint32_t kHalf = 1u << (kDropped - 1);

    OPFORGE_HD static float range() { return of_bits((kLargest << kDropped) + kRebias); }

    // Returns the code of x, which is in [-range(), range()] but for rounding errors. `carry` is added to the bits that
    // are dropped: kHalf rounds to nearest, ties away from zero. A random number below 2 * kHalf rounds up with a
    // probability that is the fraction.
    OPFORGE_HD static uint32_t code(float x, uint32_t carry) {
        const uint32_t bits = to_bits(x), magnitude = bits & 0x7fffffffu;
        // The magnitude with the format's exponent, and all 23 bits of mantissa. Below the smallest normal number it is
        // a fixed-point number.
        const float held = smaller(of_bits(magnitude), of_bits(kSmallestNormal));
        const auto subnormal = static_cast<int32_t>(held * static_cast<float>(1 << 22) * (1 << kBias));
        const auto normal = static_cast<int32_t>(magnitude - kRebias);
        const int32_t wide = magnitude < kSmallestNormal ? subnormal : normal;
        const auto rounded = static_cast<int32_t>((static_cast<uint32_t>(wide) + carry) >> kDropped);
        const auto largest = static_cast<int32_t>(kLargest);
        return (bits >> 31) << (kBits - 1) | static_cast<uint32_t>(rounded < largest ? rounded : largest);
    }

    // Returns the carry of stochastic rounding. `random` has 16 random bits.
    OPFORGE_HD static uint32_t carry(uint32_t random) { return random << (kDropped - 16); }

    // Returns the number of a code.
    OPFORGE_HD static float number(uint32_t code) {
        const uint32_t magnitude = (code & kLargest) << kDropped;
        const float subnormal = of_bits(magnitude + kSmallestNormal) - of_bits(kSmallestNormal);
        const float normal = of_bits(magnitude + kRebias);
        const float value = static_cast<int32_t>(magnitude) < 1 << 23 ? subnormal : normal;
        return of_bits(to_bits(value) | (code >> (kBits - 1)) << 31);
    }
};

// Groups of `elements` values. The codes of a group are a stream of bits, from the lowest bit of each byte up, and the
// group's scale follows them, so that a row has four bytes more than the codes.
struct FpGroups {
    static constexpr int64_t kScaleBytes = 4;

    int64_t count;
    int64_t elements;
    int bits, mantissa;  // of a code

    OPFORGE_HD int64_t bytes(int64_t codes) const { return codes * bits / 8; }
    OPFORGE_HD int64_t row() const { return bytes(elements) + kScaleBytes; }
};

// Calls visit(FpFormat{}) for the format of the groups' codes.
template <typename Visit>
void with_format(const FpGroups& groups, const Visit& visit) {
    if (groups.bits == 12) return visit(FpFormat<4, 7>{});
    if (groups.bits == 6) return visit(FpFormat<3, 2>{});
    if (groups.bits == 4) return visit(FpFormat<2, 1>{});
    return groups.mantissa == 2 ? visit(FpFormat<5, 2>{}) : visit(FpFormat<4, 3>{});
}

// Moves codes of kBits bits, which are in lanes of kLane bits of a word, together in the word's lowest bits.
template <int kLane, int kBits>
OPFORGE_HD uint64_t packed(uint64_t word) {
    if constexpr (kLane == 64) {
        return word;
    } else {
        constexpr uint64_t kEach = kLane == 32 ? 1 : ~uint64_t{0} / ((uint64_t{1} << (2 * kLane % 64)) - 1);
        constexpr uint64_t kLow = kEach * ((uint64_t{1} << kBits) - 1);
        return packed<2 * kLane, 2 * kBits>((word & kLow) | (word >> (kLane - kBits) & (kLow << kBits)));
    }
}

// Undoes `packed`.
template <int kLane, int kBits>
OPFORGE_HD uint64_t unpacked(uint64_t word) {
    if constexpr (kLane == 64) {
        return word;
    } else {
        constexpr uint64_t kEach = kLane == 32 ? 1 : ~uint64_t{0} / ((uint64_t{1} << (2 * kLane % 64)) - 1);
        constexpr uint64_t kLow = kEach * ((uint64_t{1} << kBits) - 1);
        const uint64_t pairs = unpacked<2 * kLane, 2 * kBits>(word);
        return (pairs & kLow) | (pairs & (kLow << kBits)) << (kLane - kBits);
    }
}

struct FpQuantizeCall {
    FpGroups groups;
    const void* input;
    DType dtype;
    uint8_t* rows;
    bool stochastic;
    uint64_t seed, offset;
    Executor executor;
};

struct FpDequantizeCall {
    FpGroups groups;  // of the output
    const uint8_t* rows;
    void* output;
    DType dtype;
    const void* indexes;  // of the blocks to read; null to read all
    bool wide;            // whether the indexes are int64_t, not int32_t
    int64_t block;        // groups per index
    int64_t blocks;       // of the rows
    Executor executor;

    OPFORGE_HD int64_t index(int64_t at) const {
        return wide ? static_cast<const int64_t*>(indexes)[at] : static_cast<const int32_t*>(indexes)[at];
    }
    // Returns the group of the rows that becomes `group` of the output.
    OPFORGE_HD int64_t source(int64_t group) const {
        return indexes ? index(group / block) * block + group % block : group;
    }
};

// The functions that each device implements, without torch. Each returns null, or the reason why its kernel did not
// start.
const char* launch_fp_quantize(const FpQuantizeCall& call);
const char* launch_fp_dequantize(const FpDequantizeCall& call);

}  // namespace opforge

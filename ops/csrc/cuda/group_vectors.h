#pragma once

// Vectors of a group's values in registers: their extremes, and the codes that they become.

#include <opforge/quantizing.h>

#include "words.h"

namespace opforge::cuda {

// The output of a kernel.
struct Output {
    Groups groups;
    uint8_t* codes;
    float* params;
    Swizzle swizzle;
    bool stochastic;
    PhiloxKeys keys;
    uint64_t offset;
};

// A number that is a compile-time constant for the code that receives it.
template <int kValue>
struct Constant {
    __device__ operator int() const { return kValue; }
};

// A vector of values in registers: kWords words of T.
template <typename T, int kWords>
struct Vector {
    static constexpr int kCount = kWords * kInWord<T>;
    uint32_t words[kWords];

    __device__ float operator[](int k) const { return value_in<T>(words[k / kInWord<T>], k % kInWord<T>); }
};

// The extremes of the values in words, for each position in a word; NaN if there was one. A centred group has the
// offset zero, so its largest magnitude, `high`, is enough.
template <typename T, bool kCentred>
struct Extremes {
    uint32_t low = repeated(INFINITY), high = kCentred ? 0 : repeated(-INFINITY);

    template <int kWords>
    __device__ void add(const Vector<T, kWords>& x) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
            if constexpr (!kCentred) low = smaller_of<T>(low, x.words[w]);
            high = larger_of<T>(high, kCentred ? magnitudes<T>(x.words[w]) : x.words[w]);
        }
    }
    __device__ GroupRange range() const {
        GroupRange out = GroupRange::of_nothing();
#pragma unroll
        for (int k = 0; k < kInWord<T>; ++k) {
            if constexpr (kCentred) {
                out.add_magnitude(value_in<T>(high, k));
            } else {
                out.add(value_in<T>(low, k)), out.add(value_in<T>(high, k));
            }
        }
        return out;
    }

private:
    __device__ static uint32_t repeated(float x) {
        if constexpr (sizeof(T) == 4) {
            return to_bits(x);
        } else {
            return word_of<T>(x, x);
        }
    }
};

// Encodes a vector, whose first element is number `at` of all elements, and writes its codes in one store.
template <bool kStochastic, bool kCentred, typename T, int kWords>
__device__ void encode(const Output& out, int bits, const GroupParams& params, int64_t at, const Vector<T, kWords>& x,
                       uint8_t* to) {
    constexpr int kCount = kWords * kInWord<T>;
    const float levels = out.groups.levels();
    uint32_t codes[kCount];
    // The second code of a byte is 8 too large until the end, so that it does not borrow from the first.
    const float zero[] = {GroupParams::kZero, GroupParams::kZero + (bits == 4 ? 8.0f : 0.0f)};
    if constexpr (kStochastic) {
        // A vector uses all numbers of a draw, or its first or second half.
        const Philox philox(out.keys, static_cast<uint64_t>(at) / Philox::kCount, out.offset);
        const bool second = kCount < Philox::kCount && at % Philox::kCount != 0;
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            const uint32_t word = second ? philox.words[(k + kCount) / 2 % 4] : philox.words[k / 2];
            codes[k] = params.random_code(x[k], levels, Philox::uniform(word, k % 2), zero[k % 2]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            codes[k] =
                kCentred ? params.centred_code(x[k], levels, zero[k % 2]) : params.code(x[k], levels, zero[k % 2]);
        }
    }
    uint32_t words[kCount / 4];
    if (bits == 8) {
#pragma unroll
        for (int w = 0; w < kCount / 4; ++w) words[w] = word_of_bytes(codes + 4 * w, 4);
        if constexpr (kCount == 8) {
            *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
        } else {
            *reinterpret_cast<uint32_t*>(to) = words[0];
        }
    } else {
        uint32_t pairs[kCount / 2];
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) pairs[i] = codes[2 * i] * 16 + codes[2 * i + 1];
        const uint32_t word = word_of_bytes(pairs, kCount / 2) ^ 0x08080808u;
        if constexpr (kCount == 8) {
            *reinterpret_cast<uint32_t*>(to) = word;
        } else {
            *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
        }
    }
}

}  // namespace opforge::cuda

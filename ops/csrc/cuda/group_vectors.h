#pragma once

// Vectors of a group's values: read from memory, and held in registers with their extremes.

#include <opforge/quantizing.h>

#include "words.h"

namespace opforge::cuda {

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

// Reads a group's values of one dtype, as vectors of kWords words at addresses that are multiples of their size, or of
// 16 bytes.
template <typename T, int kWords>
struct Values {
    using Element = T;
    using Held = Vector<T, kWords>;
    static constexpr int kHeld = kWords < 16 ? 16 / kWords : 1;
    static constexpr int kResident = 2;  // blocks per multiprocessor
    static constexpr bool kSpecialised = true, kCanBeStochastic = true;

    const T* input;

    // Reads from the group whose first element is number `first` of all elements.
    __device__ Held load(int64_t first, uint32_t at) const {
        const T* const from = input + first + at;
        Held out;
        if constexpr (kWords == 2) {
            const uint2 words = *reinterpret_cast<const uint2*>(from);
            out.words[0] = words.x, out.words[1] = words.y;
        } else {
#pragma unroll
            for (int w = 0; w < kWords; w += 4) {
                const uint4 words = reinterpret_cast<const uint4*>(from)[w / 4];
                out.words[w] = words.x, out.words[w + 1] = words.y;
                out.words[w + 2] = words.z, out.words[w + 3] = words.w;
            }
        }
        return out;
    }
};

// Reads values of any dtype, one at a time.
struct AnyValues {
    const void* input;
    DType dtype;

    __device__ float value(int64_t at) const {
        if (dtype == DType::Float32) return static_cast<const float*>(input)[at];
        if (dtype == DType::BFloat16) return to_float(static_cast<const BFloat16*>(input)[at]);
        return to_float(static_cast<const Float16*>(input)[at]);
    }
};

}  // namespace opforge::cuda

#pragma once

// Words of 32 bits: one float, or two adjacent values of 16 bits, the first in the lower half. If the GPU has an
// instruction for both halves, that is used; otherwise each half is converted to a float.

#include <cmath>
#include <type_traits>

#include <opforge/element.h>

#include "runtime.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define OPFORGE_HAS_WORDS
#endif

namespace opforge::cuda {

template <typename T>
constexpr int kInWord = 4 / sizeof(T);

template <typename T>
__device__ float value_in(uint32_t word, int k) {
    if constexpr (sizeof(T) == 4) {
        return of_bits(word);
    } else {
        return to_float(T{static_cast<uint16_t>(word >> 16 * k)});
    }
}

// Returns `rest`, whose lowest byte is zero, with byte `k` of the word as its lowest byte.
__device__ inline uint32_t byte_in(uint32_t word, int k, uint32_t rest) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(word, rest, 0x7650 | k);
#else
    return rest | (word >> 8 * k & 0xffu);
#endif
}

// Returns a word of the lowest bytes of `count` words.
__device__ inline uint32_t word_of_bytes(const uint32_t* bytes, int count) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) word |= (bytes[i] & 0xffu) << 8 * i;
    return word;
}

// Returns a word of two values of 16 bits.
template <typename T>
__device__ uint32_t word_of(float first, float second) {
#if defined(OPFORGE_HAS_WORDS)
    uint32_t word;
    if constexpr (std::is_same_v<T, BFloat16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    }
    return word;
#else
    return from_float<T>(first).bits | static_cast<uint32_t>(from_float<T>(second).bits) << 16;
#endif
}

template <typename T>
__device__ uint32_t magnitudes(uint32_t word) {
    return word & (sizeof(T) == 4 ? 0x7fffffffu : 0x7fff7fffu);
}

#if !defined(OPFORGE_HAS_WORDS)
// Calls choose(a, b) for the values at each position of two words, unless one of them is NaN.
template <typename T, typename Choose>
__device__ uint32_t each_in(uint32_t a, uint32_t b, const Choose& choose) {
    float x[2];
    for (int k = 0; k < kInWord<T>; ++k) {
        const float first = value_in<T>(a, k), second = value_in<T>(b, k);
        x[k] = is_nan(first) || is_nan(second) ? NAN : choose(first, second);
    }
    if constexpr (sizeof(T) == 4) {
        return to_bits(x[0]);
    } else {
        return word_of<T>(x[0], x[1]);
    }
}
#endif

// Return the smaller and the larger values of two words; NaN if one of them is NaN.
template <typename T>
__device__ uint32_t smaller_of(uint32_t a, uint32_t b) {
#if defined(OPFORGE_HAS_WORDS)
    uint32_t out;
    if constexpr (sizeof(T) == 4) {
        float x;
        asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(of_bits(a)), "f"(of_bits(b)));
        out = to_bits(x);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
        asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    } else {
        asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    }
    return out;
#else
    return each_in<T>(a, b, [](float first, float second) { return fminf(first, second); });
#endif
}
template <typename T>
__device__ uint32_t larger_of(uint32_t a, uint32_t b) {
#if defined(OPFORGE_HAS_WORDS)
    uint32_t out;
    if constexpr (sizeof(T) == 4) {
        float x;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(of_bits(a)), "f"(of_bits(b)));
        out = to_bits(x);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    } else {
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    }
    return out;
#else
    return each_in<T>(a, b, [](float first, float second) { return fmaxf(first, second); });
#endif
}

}  // namespace opforge::cuda

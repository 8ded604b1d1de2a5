#pragma once

// Rows of values in vectors of floats, and the functions of activations.

#include <opforge/element.h>

#include "dense.h"
#include "simd/streaming.h"

namespace opforge::cpu {

// Loads up to a vector of `count` elements; the rest of it is 0.
template <typename T>
Vec load_some(const T* data, int64_t count) {
    if (count >= Vec::kWidth) return load(data);
    T last[Vec::kWidth] = {};
    std::memcpy(last, data, static_cast<size_t>(count) * sizeof(T));
    return load(last);
}
template <typename T>
void store_some(T* data, Vec x, int64_t count) {
    if (count >= Vec::kWidth) return store(data, x);
    T last[Vec::kWidth];
    store(last, x);
    std::memcpy(data, last, static_cast<size_t>(count) * sizeof(T));
}

// Calls visit(k, left) for the vectors of `count` elements. `left` is a constant for whole vectors, so that their loop
// has no call of memcpy, around which no vector stays in a register.
template <typename Visit>
void each_vector(int64_t count, const Visit& visit) {
    int64_t k = 0;
    for (; k + Vec::kWidth <= count; k += Vec::kWidth) visit(k, std::integral_constant<int64_t, Vec::kWidth>{});
    if (k < count) visit(k, count - k);
}

// Writes `count` elements, whose vectors are value(k, left), past the caches if `streamed`: then in blocks that are
// collected in the first-level cache. value(k, left) may read element k of `to`, and none before it.
template <typename T, typename Value>
void write_row(T* to, int64_t count, bool streamed, const Value& value) {
    if (!streamed) return each_vector(count, [&](int64_t k, auto left) { store_some(to + k, value(k, left), left); });
    alignas(64) T block[kBlock];
    for (int64_t begin = 0; begin < count; begin += kBlock) {
        const int64_t size = std::min(kBlock, count - begin);
        each_vector(size, [&](int64_t k, auto left) { store(block + k, value(begin + k, left)); });
        stream(to + begin, block, size);
    }
}

inline float sum_of(Vec x) {
    float lanes[Vec::kWidth], sum = 0.0f;
    store(lanes, x);
    for (int64_t i = 0; i < Vec::kWidth; ++i) sum += lanes[i];
    return sum;
}

// e^x within two units in the last place, in a form that compilers turn into vectors: x = n ln 2 + r, with a Taylor
// polynomial for |r| <= ln 2 / 2. The factor 2^n is applied in two halves, so that subnormal results are right.
inline float exp_of(float x) {
    x = x < -105.0f ? -105.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // the sum has n in its lowest bits
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    const auto whole = static_cast<int32_t>(to_bits(shifted) - 0x4b400000u);
    const int32_t half = whole >> 1;
    const float first = opforge::of_bits(static_cast<uint32_t>(half + 127) << 23);
    return p * first * opforge::of_bits(static_cast<uint32_t>(whole - half + 127) << 23);
}

// The activations, by DeepSpeed's numbers. Its GELU has the form with tanh.
enum class Activation : int64_t { Gelu, Relu, Silu, Geglu, Reglu, Siglu, Identity };

inline float silu(float x) { return x / (1.0f + exp_of(-x)); }
// x * (1 + tanh(u)) / 2 is x / (1 + e^(-2u)).
inline float gelu(float x) {
    const float u = 1.59576912f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp_of(-u));
}
inline float relu(float x) { return x < 0.0f ? 0.0f : x; }

inline void activate(float* x, int64_t count, Activation activation) {
    switch (activation) {
        case Activation::Gelu:
        case Activation::Geglu:
            for (int64_t k = 0; k < count; ++k) x[k] = gelu(x[k]);
            return;
        case Activation::Silu:
        case Activation::Siglu:
            for (int64_t k = 0; k < count; ++k) x[k] = silu(x[k]);
            return;
        case Activation::Relu:
        case Activation::Reglu:
            for (int64_t k = 0; k < count; ++k) x[k] = relu(x[k]);
            return;
        case Activation::Identity:
            return;
    }
}

}  // namespace opforge::cpu

#pragma once

// Rows of values in vectors of floats, and the functions of activations.

#include <opforge/element.h>

#include "dense.h"
#include "pair.h"
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

// Returns whether rows of `columns` elements are written past the caches: large ones that begin at multiples of kLine.
inline bool streams_rows(const Dense& rows, int64_t columns) {
    const auto begin = reinterpret_cast<uintptr_t>(rows.data), bytes = static_cast<uintptr_t>(columns * rows.item);
    return streams(rows.numel * rows.item) && (begin | bytes) % kLine == 0;
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

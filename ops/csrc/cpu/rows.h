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

// e^x within two units in the last place: x = n ln 2 + r, with a Taylor polynomial for |r| <= ln 2 / 2. The factor 2^n
// is applied in two halves, so that subnormal results are right.
inline Vec exp_of(Vec x) {
    using Lanes = uint32_t __attribute__((vector_size(sizeof(float) * Vec::kWidth)));
    using SignedLanes = int32_t __attribute__((vector_size(sizeof(float) * Vec::kWidth)));
    const auto as_vec = [](SignedLanes bits) { return Vec(reinterpret_cast<decltype(Vec::v)>(bits)); };
    const Vec magic(12582912.0f);
    x = smaller(Vec(89.0f), larger(Vec(-105.0f), x));
    const Vec shifted = fma(x, Vec(1.44269504f), magic);
    const Vec n = shifted - magic;
    const Vec r = fma(n, Vec(2.12194440e-4f), fma(n, Vec(-0.693359375f), x));
    Vec p(1.98412698e-4f);
    for (const float term : {1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f}) {
        p = fma(p, r, Vec(term));
    }
    p = fma(p * r, r, r) + Vec(1.0f);
    const auto whole = reinterpret_cast<SignedLanes>(reinterpret_cast<Lanes>(shifted.v) - 0x4b400000u);
    const SignedLanes half = whole >> 1;
    return p * as_vec((half + 127) << 23) * as_vec((whole - half + 127) << 23);
}

// The activations, by DeepSpeed's numbers. Its GELU has the form with tanh.
enum class Activation : int64_t { Gelu, Relu, Silu, Geglu, Reglu, Siglu, Identity };

// x / (1 + e^-u)
inline Vec logistic(Vec x, Vec u) { return x / (Vec(1.0f) + exp_of(negate_if(true, u))); }
inline Vec silu(Vec x) { return logistic(x, x); }
// x * (1 + tanh(u)) / 2 is x / (1 + e^(-2u)).
inline Vec gelu(Vec x) { return logistic(x, Vec(1.59576912f) * fma(Vec(0.044715f) * x * x, x, x)); }
inline Vec relu(Vec x) { return select_negative(x, Vec(0.0f), x); }

// Calls visit with the activation, as a function of a vector.
template <typename Visit>
void with_activation(Activation activation, const Visit& visit) {
    switch (activation) {
        case Activation::Gelu:
        case Activation::Geglu:
            return visit([](Vec x) { return gelu(x); });
        case Activation::Silu:
        case Activation::Siglu:
            return visit([](Vec x) { return silu(x); });
        case Activation::Relu:
        case Activation::Reglu:
            return visit([](Vec x) { return relu(x); });
        case Activation::Identity:
            return visit([](Vec x) { return x; });
    }
}

}  // namespace opforge::cpu

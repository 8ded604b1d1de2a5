#pragma once

// Layer norm and RMS norm of rows, with the sum of a residual in the same pass.

#include <cmath>
#include <vector>

#include "rows.h"

namespace opforge::cpu {

// The operands of a norm. `residual`, `sum` and `beta` may be absent. Outputs may be the inputs' own memory.
struct Norm {
    Dense out, sum, in, residual, gamma, beta;
    float eps;
};

// The sum of the squares of `count` values less their mean.
inline float squares(const float* x, int64_t count, float mean) {
    Vec sum(0.0f);
    const Vec centre(mean);
    int64_t k = 0;
    for (; k + Vec::kWidth <= count; k += Vec::kWidth) {
        const Vec distance = load(x + k) - centre;
        sum = fma(distance, distance, sum);
    }
    float rest = 0.0f;
    for (; k < count; ++k) rest += (x[k] - mean) * (x[k] - mean);
    return sum_of(sum) + rest;
}

template <bool kCentred, typename T>
void normalize_row(const Norm& norm, float* row, int64_t at, int64_t columns) {
    const T* const in = norm.in.as<const T>() + at;
    const T* const residual = norm.residual.data ? norm.residual.as<const T>() + at : nullptr;
    T* const sum = norm.sum.data ? norm.sum.as<T>() + at : nullptr;
    T* const out = norm.out.as<T>() + at;
    Vec total(0.0f);
    for (int64_t k = 0; k < columns; k += Vec::kWidth) {
        Vec x = load_some(in + k, columns - k);
        if (residual) x = x + load_some(residual + k, columns - k);
        if (sum) store_some(sum + k, x, columns - k);
        store(row + k, x);
        total = kCentred ? total + x : fma(x, x, total);
    }
    const auto count = static_cast<float>(columns);
    float mean = 0.0f, mean_square = sum_of(total) / count;
    if (kCentred) {
        mean = mean_square;
        mean_square = squares(row, columns, mean) / count;
    }
    const Vec centre(mean), scale(1.0f / std::sqrt(mean_square + norm.eps));
    const T* const gamma = norm.gamma.as<const T>();
    const T* const beta = norm.beta.as<const T>();
    for (int64_t k = 0; k < columns; k += Vec::kWidth) {
        const int64_t left = columns - k;
        const Vec x = load(row + k);
        Vec y = (kCentred ? x - centre : x) * scale * load_some(gamma + k, left);
        if (kCentred) y = y + load_some(beta + k, left);
        store_some(out + k, y, left);
    }
}

template <bool kCentred>
void normalize(const Norm& norm) {
    if (norm.in.numel == 0) return;
    const int64_t columns = norm.in.size(-1);
    with_dtype(norm.in.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        each_row(norm.in.numel / columns, columns * norm.in.item, [&](int64_t begin, int64_t end) {
            std::vector<float> row(static_cast<size_t>(columns + Vec::kWidth));
            for (int64_t i = begin; i < end; ++i) normalize_row<kCentred, T>(norm, row.data(), i * columns, columns);
        });
    });
}

}  // namespace opforge::cpu

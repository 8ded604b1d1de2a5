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

// Returns the sum of term(x) over `count` values, whose vectors are source(k, left), in four sums that do not wait for
// each other.
template <typename Source, typename Term>
float sum_of_terms(int64_t count, const Source& source, const Term& term) {
    constexpr int64_t kSums = 4, kWidth = Vec::kWidth;
    Vec sums[kSums] = {Vec(0.0f), Vec(0.0f), Vec(0.0f), Vec(0.0f)};
    const std::integral_constant<int64_t, kWidth> whole;
    int64_t k = 0;
    for (; k + kSums * kWidth <= count; k += kSums * kWidth) {
        for (int64_t i = 0; i < kSums; ++i) sums[i] = sums[i] + term(source(k + i * kWidth, whole));
    }
    for (; k + kWidth <= count; k += kWidth) sums[0] = sums[0] + term(source(k, whole));
    float total = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (k == count) return total;
    float last[kWidth];
    store(last, term(source(k, count - k)));
    for (int64_t i = 0; i < count - k; ++i) total += last[i];
    return total;
}

// Normalizes a row whose vectors are source(k, left). fetch(k) fetches the next row meanwhile.
template <bool kCentred, typename T, typename Source, typename Fetch>
void normalize_row(const Norm& norm, T* out, int64_t columns, bool streamed, const Source& source, const Fetch& fetch) {
    const auto count = static_cast<float>(columns);
    const float mean = kCentred ? sum_of_terms(columns, source, [](Vec x) { return x; }) / count : 0.0f;
    const Vec centre(mean);
    const auto square = [centre](Vec x) { return kCentred ? (x - centre) * (x - centre) : x * x; };
    const Vec scale(1.0f / std::sqrt(sum_of_terms(columns, source, square) / count + norm.eps));
    const T* const gamma = norm.gamma.as<const T>();
    const T* const beta = norm.beta.as<const T>();
    write_row(out, columns, streamed, [=](int64_t k, auto left) {
        fetch(k);
        const Vec x = (kCentred ? source(k, left) - centre : source(k, left)) * scale;
        const Vec factor = load_some(gamma + k, left);
        return kCentred ? fma(x, factor, load_some(beta + k, left)) : x * factor;
    });
}

// Normalizes a row, or the sum of two, for which `row` has space for whole vectors. Large results are written past the
// caches: `streamed`.
template <bool kCentred, typename T>
void normalize_row(const Norm& norm, float* row, int64_t at, int64_t columns, bool streamed) {
    const T* const in = norm.in.as<const T>() + at;
    T* const out = norm.out.as<T>() + at;
    if (!norm.residual.data) {
        const auto source = [in](int64_t k, auto left) { return load_some(in + k, left); };
        const auto fetch = [=](int64_t k) { __builtin_prefetch(in + columns + k); };
        return normalize_row<kCentred>(norm, out, columns, streamed, source, fetch);
    }
    const T* const residual = norm.residual.as<const T>() + at;
    const auto sum = [=](int64_t k, auto left) {
        const Vec x = load_some(in + k, left) + load_some(residual + k, left);
        store(row + k, x);
        return x;
    };
    if (norm.sum.data) {
        write_row(norm.sum.as<T>() + at, columns, streamed, sum);
    } else {
        each_vector(columns, sum);
    }
    const auto source = [row](int64_t k, auto) { return load(row + k); };
    normalize_row<kCentred>(norm, out, columns, streamed, source, [=](int64_t k) {
        __builtin_prefetch(in + columns + k);
        __builtin_prefetch(residual + columns + k);
    });
}

template <bool kCentred>
void normalize(const Norm& norm) {
    if (norm.in.numel == 0) return;
    const int64_t columns = norm.in.size(-1);
    with_dtype(norm.in.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        const bool streamed = streams(norm.in.numel * norm.in.item);
        each_row(norm.in.numel / columns, columns * norm.in.item, [&](int64_t begin, int64_t end) {
            std::vector<float> row(static_cast<size_t>(columns + Vec::kWidth));
            for (int64_t i = begin; i < end; ++i) {
                normalize_row<kCentred, T>(norm, row.data(), i * columns, columns, streamed);
            }
            if (streamed) end_streams();
        });
    });
}

}  // namespace opforge::cpu

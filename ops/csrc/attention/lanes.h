#pragma once

// What attention needs of a vector beside `Vec`'s own operations, in the vector types of GCC and Clang.

#include <cstdint>
#include <limits>
#include <utility>

#include "../cpu/elementwise.h"

namespace opforge::cpu {

constexpr int64_t kWidth = Vec::kWidth;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline int64_t whole_vectors(int64_t count) { return (count + kWidth - 1) / kWidth * kWidth; }

using Lanes = uint32_t __attribute__((vector_size(sizeof(float) * Vec::kWidth)));
using FloatLanes = float __attribute__((vector_size(sizeof(float) * Vec::kWidth)));

// exp(x) within 1.2 units in the last place; 0 below -87, where the result is hardly a normal number. A NaN stays one.
inline Vec exp(Vec x) {
    const Vec floor(-87.0f), magic(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec bounded = larger(floor, smaller(Vec(88.7f), x));
    const Vec rounded = fma(bounded, Vec(1.44269504f), magic);
    const Vec power = rounded - magic;
    Vec rest = fma(power, Vec(-0.693145752f), bounded);  // the upper bits of ln 2, then the others
    rest = fma(power, Vec(-1.42860677e-6f), rest);
    Vec sum(1.0f / 5040);
    for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
        sum = fma(sum, rest, Vec(term));
    }
    const auto exponent = reinterpret_cast<Lanes>(rounded.v) << 23;
    const auto scaled = reinterpret_cast<FloatLanes>(reinterpret_cast<Lanes>(sum.v) + exponent);
    const Vec result(reinterpret_cast<decltype(Vec::v)>(scaled));
    return select_nan(x, x, select_negative(x - floor, Vec(0.0f), result));
}

template <size_t... kLane>
void interleave(FloatLanes a, FloatLanes b, FloatLanes& low, FloatLanes& high, std::index_sequence<kLane...>) {
    constexpr int kHalf = kWidth / 2;
#if defined(__clang__)
    low = __builtin_shufflevector(a, b, (kLane / 2 + kLane % 2 * kWidth)...);
    high = __builtin_shufflevector(a, b, (kHalf + kLane / 2 + kLane % 2 * kWidth)...);
#else
    using Order = int32_t __attribute__((vector_size(sizeof(float) * Vec::kWidth)));
    low = __builtin_shuffle(a, b, Order{static_cast<int32_t>(kLane / 2 + kLane % 2 * kWidth)...});
    high = __builtin_shuffle(a, b, Order{static_cast<int32_t>(kHalf + kLane / 2 + kLane % 2 * kWidth)...});
#endif
}

// Transposes a square of kWidth x kWidth numbers.
inline void transpose(Vec* rows) {
    FloatLanes lanes[kWidth], next[kWidth];
    for (int64_t i = 0; i < kWidth; ++i) lanes[i] = reinterpret_cast<FloatLanes>(rows[i].v);
    for (int64_t step = 1; step < kWidth; step *= 2) {
        for (int64_t i = 0; i < kWidth / 2; ++i) {
            interleave(lanes[i], lanes[i + kWidth / 2], next[2 * i], next[2 * i + 1],
                       std::make_index_sequence<kWidth>{});
        }
        for (int64_t i = 0; i < kWidth; ++i) lanes[i] = next[i];
    }
    for (int64_t i = 0; i < kWidth; ++i) rows[i] = Vec(reinterpret_cast<decltype(Vec::v)>(lanes[i]));
}

// Transposes a matrix of whole squares.
inline void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                      int64_t to_stride) {
    for (int64_t row = 0; row < rows; row += kWidth) {
        for (int64_t column = 0; column < columns; column += kWidth) {
            Vec square[kWidth];
            for (int64_t i = 0; i < kWidth; ++i) square[i] = load(from + (row + i) * from_stride + column);
            transpose(square);
            for (int64_t i = 0; i < kWidth; ++i) store(to + (column + i) * to_stride + row, square[i]);
        }
    }
}

}  // namespace opforge::cpu

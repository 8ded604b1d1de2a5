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

// Replaces two vectors of sums by one: lanes with the bit kStep are those of `b`, of which each adds one kStep below.
template <int kStep, size_t... kLane>
FloatLanes fold(FloatLanes a, FloatLanes b, std::index_sequence<kLane...>) {
#if defined(__clang__)
    const FloatLanes low = __builtin_shufflevector(
        a, b, (static_cast<int>(kLane) - (kLane & kStep ? kStep : 0) + (kLane & kStep ? kWidth : 0))...);
    const FloatLanes high = __builtin_shufflevector(
        a, b, (static_cast<int>(kLane) + (kLane & kStep ? 0 : kStep) + (kLane & kStep ? kWidth : 0))...);
#else
    using Order = int32_t __attribute__((vector_size(sizeof(float) * Vec::kWidth)));
    const FloatLanes low = __builtin_shuffle(
        a, b, Order{static_cast<int32_t>(kLane - (kLane & kStep ? kStep : 0) + (kLane & kStep ? kWidth : 0))...});
    const FloatLanes high = __builtin_shuffle(
        a, b, Order{static_cast<int32_t>(kLane + (kLane & kStep ? 0 : kStep) + (kLane & kStep ? kWidth : 0))...});
#endif
    return low + high;
}

// Returns the sums of kWidth vectors over their lanes: lane i is that of sums[i]. It has no loop, so that all vectors
// stay in registers.
template <int kCount = kWidth>
FloatLanes lane_sums(const Vec* sums) {
    if constexpr (kCount == 1) {
        return reinterpret_cast<FloatLanes>(sums->v);
    } else {
        return fold<kCount / 2>(lane_sums<kCount / 2>(sums), lane_sums<kCount / 2>(sums + kCount / 2),
                                std::make_index_sequence<kWidth>{});
    }
}

template <int kStep, size_t... kLane>
FloatLanes neighbours(FloatLanes x, std::index_sequence<kLane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(x, x, static_cast<int>(kLane ^ kStep)...);
#else
    using Order = int32_t __attribute__((vector_size(sizeof(float) * Vec::kWidth)));
    return __builtin_shuffle(x, Order{static_cast<int32_t>(kLane ^ kStep)...});
#endif
}

// Returns the largest of a vector's lanes, of which none is NaN.
template <int kStep = kWidth / 2>
float largest_lane(Vec x) {
    if constexpr (kStep == 0) {
        float lanes[kWidth];
        store(lanes, x);
        return lanes[0];
    } else {
        const FloatLanes other =
            neighbours<kStep>(reinterpret_cast<FloatLanes>(x.v), std::make_index_sequence<kWidth>{});
        return largest_lane<kStep / 2>(larger(x, Vec(reinterpret_cast<decltype(Vec::v)>(other))));
    }
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

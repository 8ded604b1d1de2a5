#pragma once

// `Pair`, two vectors of consecutive values. bfloat16 is converted in pairs by half as many instructions: of each word
// the lower half is a value of the first vector and the upper half one of the second, so nothing moves between lanes.

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include <opforge/element.h>

#include "simd/streaming.h"
#include "vec.h"

namespace opforge::cpu {

// The order of the lanes is that of the dtype from which they were loaded. All operands of an operation have one order.
struct Pair {
    static constexpr int64_t kWidth = 2 * Vec::kWidth;
    Vec first, second;

    Pair() = default;
    Pair(Vec a, Vec b) : first(a), second(b) {}
    explicit Pair(float x) : first(x), second(x) {}
};

inline Pair operator+(Pair a, Pair b) { return {a.first + b.first, a.second + b.second}; }
inline Pair operator-(Pair a, Pair b) { return {a.first - b.first, a.second - b.second}; }
inline Pair operator*(Pair a, Pair b) { return {a.first * b.first, a.second * b.second}; }
inline Pair operator/(Pair a, Pair b) { return {a.first / b.first, a.second / b.second}; }
inline Pair larger(Pair a, Pair b) { return {larger(a.first, b.first), larger(a.second, b.second)}; }
inline Pair fma(Pair a, Pair b, Pair c) { return {fma(a.first, b.first, c.first), fma(a.second, b.second, c.second)}; }

// Returns bits whose upper half is the nearest bfloat16, as `store` rounds. The lower half of a NaN must be 0: then
// nothing is carried out of it, and its upper half is kept. That holds for what is computed from bfloat16 values alone:
// the NaN of an operation is that of an operand, made quiet, or the default one, and all of these have such a half.
inline Vec rounded_to_bfloat16(Vec x) {
    const Vec parity = bit_and(upper_half_down(x), set_bits(1));
    return add_bits(add_bits(x, set_bits(0x7fff)), parity);
}

// Returns a float that may be an operand beside bfloat16 values: its NaN is the default one, whatever its bits were.
inline float with_default_nan(float x) { return x == x ? x : std::numeric_limits<float>::quiet_NaN(); }

template <typename T>
Pair load_pair(const T* data) {
    if constexpr (std::is_same_v<T, BFloat16>) {
        Vec words;
        std::memcpy(&words.v, data, sizeof words.v);
        return {lower_half_up(words), bit_and(words, set_bits(0xffff0000u))};
    } else {
        return {load(data), load(data + Vec::kWidth)};
    }
}
// Loads `count` values; if they do not fill a pair, the rest of it is 0.
template <typename T>
Pair load_pair(const T* data, int64_t count) {
    if (count >= Pair::kWidth) return load_pair(data);
    T last[Pair::kWidth] = {};
    std::memcpy(last, data, static_cast<size_t>(count) * sizeof(T));
    return load_pair(last);
}

// Stores a pair, past the caches if `streamed`: then the address must be a multiple of kLine.
template <typename T>
void store_pair(T* data, Pair x, bool streamed = false) {
    if constexpr (std::is_same_v<T, BFloat16>) {
        const Vec lower = upper_half_down(rounded_to_bfloat16(x.first));
        put(data, with_upper_halves(lower, rounded_to_bfloat16(x.second)), streamed);
    } else if constexpr (std::is_same_v<T, Float16>) {
        put(data, packed_halves(x.first, x.second), streamed);
    } else {
        put(data, x.first, streamed), put(data + Vec::kWidth, x.second, streamed);
    }
}
// Stores `count` values, or the whole pair.
template <typename T>
void store_pair(T* data, Pair x, int64_t count, bool streamed) {
    if (count >= Pair::kWidth) return store_pair(data, x, streamed);
    T last[Pair::kWidth];
    store_pair(last, x);
    std::memcpy(data, last, static_cast<size_t>(count) * sizeof(T));
}

// Returns 1 in the lanes of the first `count` values, and 0 in the others.
template <typename T>
Pair ones(int64_t count) {
    T lanes[Pair::kWidth] = {};
    for (int64_t i = 0; i < count; ++i) from_float(1.0f, lanes[i]);
    return load_pair(lanes);
}

// Calls visit(k, left) for the pairs of values [k, end) of type T. Several visits take turns by whole lines of the
// caches: a line that is streamed in parts, with other stores between them, takes longer. `left` is a constant for the
// pairs of whole lines, so that their loop has no call of memcpy, around which no vector stays in a register.
template <typename T, typename... Visits>
void each_pair(int64_t k, int64_t end, const Visits&... visits) {
    constexpr int64_t kStep = std::max<int64_t>(Pair::kWidth, kLine / sizeof(T));
    const auto line = [&k](const auto& visit) {
        for (int64_t i = 0; i < kStep; i += Pair::kWidth) visit(k + i, std::integral_constant<int64_t, Pair::kWidth>{});
    };
    for (; k + kStep <= end; k += kStep) (line(visits), ...);
    for (; k < end; k += Pair::kWidth) (visits(k, end - k), ...);
}

inline double sum_of(Pair x) {
    float lanes[Vec::kWidth];
    store(lanes, x.first + x.second);
    double sums[Vec::kWidth];
    std::copy_n(lanes, Vec::kWidth, sums);
    for (int64_t half = Vec::kWidth / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
}

}  // namespace opforge::cpu

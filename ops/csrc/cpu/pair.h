#pragma once

// `Pair`, two vectors of consecutive values. bfloat16 is converted in pairs by half as many instructions: of each word
// the lower half is a value of the first vector and the upper half one of the second, so nothing moves between lanes.

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <opforge/element.h>

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
inline Pair fma(Pair a, Pair b, Pair c) { return {fma(a.first, b.first, c.first), fma(a.second, b.second, c.second)}; }

// Returns bits whose upper half is the nearest bfloat16, as `store` rounds. A NaN is quiet.
inline Vec rounded_to_bfloat16(Vec x) {
    const Vec parity = bit_and(upper_half_down(x), set_bits(1));
    return select_nan(x, bit_or(x, set_bits(0x00400000u)), add_bits(add_bits(x, set_bits(0x7fff)), parity));
}

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
        const Vec upper = bit_and(rounded_to_bfloat16(x.second), set_bits(0xffff0000u));
        put(data, bit_or(upper_half_down(rounded_to_bfloat16(x.first)), upper), streamed);
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

// Calls visit(k, left) for the pairs of `count` elements. `left` is a constant for whole pairs, so that their loop has
// no call of memcpy, around which no vector stays in a register.
template <typename Visit>
void each_pair(int64_t count, const Visit& visit) {
    int64_t k = 0;
    for (; k + Pair::kWidth <= count; k += Pair::kWidth) visit(k, std::integral_constant<int64_t, Pair::kWidth>{});
    if (k < count) visit(k, count - k);
}

inline float sum_of(Pair x) {
    float lanes[Vec::kWidth];
    store(lanes, x.first + x.second);
    for (int64_t half = Vec::kWidth / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

}  // namespace opforge::cpu

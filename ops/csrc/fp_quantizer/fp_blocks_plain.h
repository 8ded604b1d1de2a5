#pragma once

// Floating-point codes below x86-64-v3 and on other CPUs, by blocks, in loops that compilers turn into vectors.

#include <cstring>
#include <type_traits>

#include <opforge/element.h>
#include <opforge/fp_quantizing.h>

#include "../cpu/elementwise.h"
#include "../cpu/simd/streaming.h"

namespace opforge::cpu::plain {

constexpr int64_t kWord = 8;  // bytes
static_assert(kBlock % kWord == 0, "only the last block of a group has a part of a word");

// A code in memory before it is packed.
template <typename Format>
using Lane = std::conditional_t<(Format::kBits > 8), uint16_t, uint8_t>;

// The codes in one word, and their bytes when they are packed.
template <typename Format>
constexpr int64_t kCodes = kWord / static_cast<int64_t>(sizeof(Lane<Format>));
template <typename Format>
constexpr int64_t kBytes = kCodes<Format> * Format::kBits / 8;

// Returns the bits of the largest magnitude as a float. Bits have the order of the magnitudes, with NaN above all.
[[gnu::noinline]] inline uint32_t largest_magnitude(const float* x, int64_t count) {
    int32_t largest = 0;
    for (int64_t k = 0; k < count; ++k) {
        const auto magnitude = static_cast<int32_t>(to_bits(x[k]) & 0x7fffffffu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return static_cast<uint32_t>(largest);
}
template <typename T>
[[gnu::noinline]] uint32_t largest_magnitude(const T* x, int64_t count) {
    int16_t largest = 0;
    for (int64_t k = 0; k < count; ++k) {
        const auto magnitude = static_cast<int16_t>(x[k].bits & 0x7fffu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return to_bits(to_float(T{static_cast<uint16_t>(largest)}));
}

// Bytes that are read or written for a whole word of codes: up to two more than it has, since the compiler would split
// an access of six bytes. These are the group's scale at most, which is written after the codes.
template <typename Format>
constexpr size_t kAccess = kBytes<Format> == 6 ? 8 : kBytes<Format>;

// Writes `count` packed codes in front of a scale. `codes` has zeros up to a whole word.
template <typename Format>
void pack(const Lane<Format>* codes, int64_t count, uint8_t* out) {
    const auto word = [&](int64_t at, size_t bytes) {
        uint64_t lanes;
        std::memcpy(&lanes, codes + at, sizeof lanes);
        lanes = packed<8 * sizeof(Lane<Format>), Format::kBits>(lanes);
        std::memcpy(out + at * Format::kBits / 8, &lanes, bytes);
    };
    int64_t k = 0;
    for (; k + kCodes<Format> <= count; k += kCodes<Format>) word(k, kAccess<Format>);
    if (k < count) word(k, static_cast<size_t>((count - k) * Format::kBits / 8));
}

// Undoes `pack`. There is space for a whole word behind the codes.
template <typename Format>
void unpack(const uint8_t* in, int64_t count, Lane<Format>* codes) {
    const auto word = [&](int64_t at, size_t bytes) {
        uint64_t lanes = 0;
        std::memcpy(&lanes, in + at * Format::kBits / 8, bytes);
        lanes = unpacked<8 * sizeof(Lane<Format>), Format::kBits>(lanes);
        std::memcpy(codes + at, &lanes, sizeof lanes);
    };
    int64_t k = 0;
    for (; k + kCodes<Format> <= count; k += kCodes<Format>) word(k, kAccess<Format>);
    if (k < count) word(k, static_cast<size_t>((count - k) * Format::kBits / 8));
}

// Returns `count` values as floats: in place, or converted into the buffer.
inline const float* as_floats(const float* values, int64_t, float*) { return values; }
template <typename T>
const float* as_floats(const T* values, int64_t count, float* buffer) {
    to_floats(values, count, buffer);
    return buffer;
}

// Encodes values to nearest, after a multiplication by `inverse`.
template <typename Format>
void encode(const float* x, int64_t count, float inverse, Lane<Format>* codes) {
    for (int64_t k = 0; k < count; ++k) {
        codes[k] = static_cast<Lane<Format>>(Format::code(x[k] * inverse, Format::kHalf));
    }
}

// Writes the values of codes.
template <typename Format>
void decode(const Lane<Format>* codes, int64_t count, float scale, float* to) {
    for (int64_t k = 0; k < count; ++k) to[k] = Format::number(codes[k]) * scale;
}

// Encodes values with stochastic rounding.
template <typename Format>
void encode_randomly(const float* x, int64_t count, float inverse, const uint16_t* random, Lane<Format>* codes) {
    for (int64_t k = 0; k < count; ++k) {
        codes[k] = static_cast<Lane<Format>>(Format::code(x[k] * inverse, Format::carry(random[k])));
    }
}

// Writes the packed codes of `count` values, at most a block. `random` has a number for each if kRandom. It may write
// two bytes behind the codes.
template <typename Format, bool kRandom, typename T>
void encode_block(const T* values, int64_t count, float inverse, const uint16_t* random, uint8_t* out) {
    constexpr int64_t kAhead = 4096;  // bytes
    prefetch(values + kAhead / static_cast<int64_t>(sizeof(T)), count);
    alignas(64) float buffer[kBlock];
    alignas(64) Lane<Format> lanes[kBlock];
    const float* const x = as_floats(values, count, buffer);
    Lane<Format>* codes = lanes;
    if constexpr (Format::kBits == 8) codes = out;
    if constexpr (kRandom) {
        encode_randomly<Format>(x, count, inverse, random, codes);
    } else {
        encode<Format>(x, count, inverse, codes);
    }
    if constexpr (Format::kBits != 8) {
        for (int64_t k = count; k % kCodes<Format> != 0; ++k) codes[k] = 0;
        pack<Format>(codes, count, out);
    }
}

// Of how many values a group must be for a decoder with a table; 0: there is none.
template <typename Format, typename T>
constexpr int64_t kTableGroup = 0;

// Decodes the codes of a scale.
template <typename Format, typename T, bool kTable>
class Decoder {
public:
    static constexpr bool kStreams = false;

    explicit Decoder(float scale) : scale_(scale) {}

    // Writes the values of `count` packed codes, at most a block. It may read two bytes behind them.
    void block(const uint8_t* in, int64_t count, T* to, bool) const {
        alignas(64) float buffer[kBlock];
        alignas(64) Lane<Format> codes[kBlock];
        const Lane<Format>* source = codes;
        if constexpr (Format::kBits == 8) {
            source = in;
        } else {
            unpack<Format>(in, count, codes);
        }
        if constexpr (std::is_same_v<T, float>) {
            decode<Format>(source, count, scale_, to);
        } else {
            decode<Format>(source, count, scale_, buffer);
            from_floats(buffer, count, to);
        }
    }

private:
    float scale_;
};

}  // namespace opforge::cpu::plain

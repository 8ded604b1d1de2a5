#pragma once

// Floating-point codes at x86-64-v3: 32 values at a time stay in registers, as float16 numbers of which the codes are
// parts. The results are those of FpFormat::code and FpFormat::number. Stochastic rounding needs more bits than float16
// has, so there values stay floats.

#include <immintrin.h>

#include <cmath>

#include <opforge/element.h>
#include <opforge/fp_quantizing.h>

#include "../cpu/vec.h"
#include "fp_blocks_plain.h"
#include "fp_strips.h"

namespace opforge::cpu {

using plain::largest_magnitude;

constexpr int64_t kStrip = 32;  // values

inline __m256i all_halves(uint32_t bits) { return _mm256_set1_epi16(static_cast<short>(bits)); }

// How codes are parts of float16 numbers: multiplied by kFactor, the smallest normal number of the format is float16's.
template <typename Format>
struct InHalves {
    static constexpr int kShift = 10 - Format::kMantissaBits;
    // The largest numbers of a format with all of float16's exponents are beyond float16's range, where it has inf and
    // NaN. So its numbers are halved. Its numbers of exponent 1 then have exponent 0, where float16 has steps of twice
    // the relative size: twice their bits are those before halving, and above it is one exponent more.
    static constexpr bool kHalved = Format::kExponentBits == 5;
    static constexpr int kPower = kHalved ? 1 : 15 - Format::kBias;
    static constexpr float kFactor = 1.0f / (1 << kPower);
    static constexpr uint32_t kExponentOne = 0x400;
};

// Returns the codes of 16 values as words.
template <typename Format, typename T>
[[gnu::always_inline]] inline __m256i encode_words(const T* x, float inverse) {
    using In = InHalves<Format>;
    const Vec first(inverse), second(In::kFactor);  // their product could be subnormal
    const auto halves = [&](const T* values) {
        return _mm256_cvtps_ph((load(values) * first * second).v, _MM_FROUND_TO_ZERO);
    };
    const __m256i half = _mm256_set_m128i(halves(x + 8), halves(x));
    __m256i magnitude = _mm256_and_si256(half, all_halves(0x7fff));
    if constexpr (In::kHalved) {
        magnitude = _mm256_add_epi16(magnitude, _mm256_min_epu16(magnitude, all_halves(In::kExponentOne)));
    }
    magnitude = _mm256_srli_epi16(_mm256_add_epi16(magnitude, all_halves(1u << (In::kShift - 1))), In::kShift);
    const __m256i sign = _mm256_srli_epi16(half, 16 - Format::kBits);
    return _mm256_or_si256(magnitude, _mm256_and_si256(sign, all_halves(1u << (Format::kBits - 1))));
}

// The values that become a pair of codes, and their numbers with the format's exponent and all bits of mantissa,
// rounded at random.
struct RoundedLanes {
    __m256i bits, codes;
};
template <typename Format, typename T>
[[gnu::always_inline]] inline RoundedLanes round_randomly(const T* x, float inverse, const uint16_t* random) {
    constexpr float kUnits = static_cast<float>(1 << 22) * (1 << Format::kBias);
    const __m256 scaled = (load(x) * Vec(inverse)).v;
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(scaled), _mm256_set1_epi32(0x7fffffff));
    const __m256 held = _mm256_min_ps(_mm256_castsi256_ps(magnitude), set_bits(Format::kSmallestNormal).v);
    // Of the number as a subnormal and as a normal one, the larger is the one that FpFormat::code selects.
    const __m256i subnormal = _mm256_cvttps_epi32(_mm256_mul_ps(held, _mm256_set1_ps(kUnits)));
    const __m256i normal = _mm256_sub_epi32(magnitude, _mm256_set1_epi32(static_cast<int>(Format::kRebias)));
    const __m256i numbers = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(random)));
    const __m256i carry = _mm256_slli_epi32(numbers, Format::kDropped - 16);
    const __m256i sum = _mm256_add_epi32(_mm256_max_epi32(subnormal, normal), carry);
    return {_mm256_castps_si256(scaled), _mm256_srli_epi32(sum, Format::kDropped)};
}

// As encode_words, with stochastic rounding. `random` has a number for each value.
template <typename Format, typename T>
[[gnu::always_inline]] inline __m256i encode_words(const T* x, float inverse, const uint16_t* random) {
    const RoundedLanes a = round_randomly<Format>(x, inverse, random);
    const RoundedLanes b = round_randomly<Format>(x + 8, inverse, random + 8);
    const __m256i magnitude = _mm256_min_epu16(_mm256_packus_epi32(a.codes, b.codes), all_halves(Format::kLargest));
    const __m256i upper = _mm256_packs_epi32(_mm256_srai_epi32(a.bits, 16), _mm256_srai_epi32(b.bits, 16));
    const __m256i sign =
        _mm256_and_si256(_mm256_srli_epi16(upper, 16 - Format::kBits), all_halves(1u << (Format::kBits - 1)));
    return _mm256_permute4x64_epi64(_mm256_or_si256(magnitude, sign), 0xd8);
}

// Writes 24 bytes, three of each of 8 words.
inline void store_triples(uint8_t* out, __m256i words) {
    const __m256i lane =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    const __m256i order = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(words, lane), order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(bytes));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 16), _mm256_extracti128_si256(bytes, 1));
}

// Writes the packed codes of 32 values. `random` has a number for each if kRandom.
template <typename Format, bool kRandom, typename T>
[[gnu::always_inline]] inline void encode_strip(const T* x, float inverse, const uint16_t* random, uint8_t* out) {
    const auto words = [&](int64_t k) {
        if constexpr (kRandom) {
            return encode_words<Format>(x + k, inverse, random + k);
        } else {
            return encode_words<Format>(x + k, inverse);
        }
    };
    const __m256i first = words(0), second = words(16);
    const __m256i triples =
        _mm256_set1_epi32(1 | 1 << (16 + 12));  // the second of two codes of 12 bits behind the first
    if constexpr (Format::kBits == 12) {
        store_triples(out, _mm256_madd_epi16(first, triples));
        store_triples(out + 24, _mm256_madd_epi16(second, triples));
    } else {
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), 0xd8);
        if constexpr (Format::kBits == 8) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
        } else {
            const __m256i pairs = _mm256_maddubs_epi16(bytes, all_halves(1 | 1u << (8 + Format::kBits)));
            if constexpr (Format::kBits == 6) {
                store_triples(out, _mm256_madd_epi16(pairs, triples));
            } else {
                const __m128i low = _mm256_castsi256_si128(pairs), high = _mm256_extracti128_si256(pairs, 1);
                _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(low, high));
            }
        }
    }
}

// Writes the packed codes of `count` values. `random` has a number for each if kRandom, and memory up to a whole strip.
template <typename Format, bool kRandom, typename T>
void encode_block(const T* x, int64_t count, float inverse, const uint16_t* random, uint8_t* out) {
    encode_strips<Format, kStrip>(x, 0, count, out, [=](const T* values, int64_t at, uint8_t* codes) {
        encode_strip<Format, kRandom>(values, inverse, kRandom ? random + at : nullptr, codes);
    });
}

// Returns 16 codes as the highest bits of words, with other bits below. It may read four bytes behind them.
template <typename Format>
[[gnu::always_inline]] inline __m256i upper_codes(const uint8_t* in) {
    // The bytes of each code, and the factor that moves it up.
    struct Table {
        int8_t index[32];
        int16_t factor[16];
    };
    constexpr bool kTwoParts = Format::kBits == 12;  // of 16 bytes, the second begins at byte 8
    alignas(32) static constexpr Table kLane = [] {
        Table table{};
        for (int lane = 0; lane < 16; ++lane) {
            const int bit = lane * Format::kBits, first = bit / 8, base = kTwoParts && lane >= 8 ? 8 : 0;
            const int end = bit % 8 + Format::kBits;
            table.index[2 * lane] = static_cast<int8_t>(end > 8 ? first - base : -1);
            table.index[2 * lane + 1] = static_cast<int8_t>(first + (end > 8 ? 1 : 0) - base);
            table.factor[lane] = static_cast<int16_t>(1 << ((end > 8 ? 16 : 8) - end));
        }
        return table;
    }();
    const auto* const part = reinterpret_cast<const __m128i*>(in);
    __m256i bytes;
    if constexpr (Format::kBits == 4) {
        bytes = _mm256_broadcastq_epi64(_mm_loadl_epi64(part));
    } else if constexpr (kTwoParts) {
        bytes = _mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 8)), _mm_loadu_si128(part));
    } else {
        bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(part));
    }
    const auto constant = [](const void* at) { return _mm256_load_si256(static_cast<const __m256i*>(at)); };
    const __m256i own = _mm256_shuffle_epi8(bytes, constant(kLane.index));
    return Format::kBits == 8 ? own : _mm256_mullo_epi16(own, constant(kLane.factor));
}

// Returns 16 codes as float16 numbers.
template <typename Format>
[[gnu::always_inline]] inline __m256i decode_words(const uint8_t* in) {
    using In = InHalves<Format>;
    const __m256i codes = upper_codes<Format>(in);
    if constexpr (In::kHalved) {
        const __m256i magnitude = _mm256_and_si256(codes, all_halves(0x7fff));
        const __m256i other = _mm256_min_epu16(_mm256_srli_epi16(magnitude, 1), all_halves(In::kExponentOne));
        return _mm256_sub_epi16(codes, other);
    } else {
        // The sign is repeated up to the exponent.
        const __m256i moved = _mm256_srai_epi16(codes, 5 - Format::kExponentBits);
        return _mm256_and_si256(moved, all_halves(0x8000u | Format::kLargest << In::kShift));
    }
}

// As store(BFloat16*, Vec), without NaN; in the upper halves.
inline __m256i rounded_to_bfloat16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
}

// Writes 16 floats: the first 8 and the next.
inline void store_pair(float* to, __m256 a, __m256 b, bool streams) {
    put(to, _mm256_castps_si256(a), streams);
    put(to + 8, _mm256_castps_si256(b), streams);
}
inline void store_pair(Float16* to, __m256 a, __m256 b, bool streams) {
    const __m128i first = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    put(to, _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT), first), streams);
}
inline void store_pair(BFloat16* to, __m256 a, __m256 b, bool streams) {
    const __m256i first = _mm256_srli_epi32(rounded_to_bfloat16(a), 16);
    const __m256i second = _mm256_srli_epi32(rounded_to_bfloat16(b), 16);
    put(to, _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8), streams);
}

// Decodes the codes of a scale. It may read four bytes behind them.
template <typename Format, typename T, bool kTable>
class Decoder {
public:
    static constexpr bool kStreams = true;

    explicit Decoder(float scale)
        : scale_(scale), product_(scale * static_cast<float>(1 << InHalves<Format>::kPower)) {}

    // Writes the values of `count` packed codes, past the caches if `streams`, for which `to` is aligned to 64 bytes.
    void block(const uint8_t* in, int64_t count, T* to, bool streams) const {
        decode_strips<Format, kStrip>(in, count, to, streams, *this);
    }

    // The same for 32 values.
    [[gnu::always_inline]] void operator()(const uint8_t* in, T* to, bool streams) const {
        // A scale that is inf, NaN, or near the largest float.
        if (!(product_ < INFINITY && product_ > -INFINITY)) return decode_each<Format>(in, kStrip, scale_, to);
        const __m256 factor = _mm256_set1_ps(product_);
        for (int64_t k = 0; k < kStrip; k += 16) {
            const __m256i halves = decode_words<Format>(in + k * Format::kBits / 8);
            const __m256 first = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            const __m256 second = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
            store_pair(to + k, _mm256_mul_ps(first, factor), _mm256_mul_ps(second, factor), streams);
        }
    }

private:
    float scale_, product_;
};

// Of how many values a group must be for a table to cost less than the arithmetic, or 0 if there is no table: values of
// 16 bits are looked up, each byte by itself.
template <typename Format, typename T>
constexpr int64_t kTableGroup = sizeof(T) != 2 || Format::kBits > 6 ? 0 : 128;

template <typename Format, typename T>
class Decoder<Format, T, true> {
public:
    static constexpr bool kStreams = true;

    explicit Decoder(float scale) {
        alignas(32) T table[kEntries];
        for (int k = 0; k < kEntries; k += 8) store(table + k, Vec(load(kNumbers.x + k)) * Vec(scale));
        for (int part = 0; part < kParts; ++part) {
            const __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(table + 16 * part));
            const __m256i low = _mm256_and_si256(words, all_halves(0xff)), high = _mm256_srli_epi16(words, 8);
            // The low bytes of words 0 ... 7 and 8 ... 15, and the high ones.
            const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
            low_[part] = _mm256_permute4x64_epi64(bytes, 0x44);
            high_[part] = _mm256_permute4x64_epi64(bytes, 0xee);
        }
    }

    // Writes the values of `count` packed codes, past the caches if `streams`, for which `to` is aligned to 64 bytes.
    void block(const uint8_t* in, int64_t count, T* to, bool streams) const {
        decode_strips<Format, kStrip>(in, count, to, streams, *this);
    }

    // The same for 32 values.
    [[gnu::always_inline]] void operator()(const uint8_t* in, T* to, bool streams) const {
        const __m256i first = _mm256_srli_epi16(upper_codes<Format>(in), 16 - Format::kBits);
        const __m256i second = _mm256_srli_epi16(upper_codes<Format>(in + 2 * Format::kBits), 16 - Format::kBits);
        // In the order in which bytes are combined to words: values 0 ... 7, 16 ... 23, 8 ... 15, 24 ... 31.
        const __m256i codes = _mm256_packus_epi16(first, second);
        __m256i low = _mm256_shuffle_epi8(low_[0], codes), high = _mm256_shuffle_epi8(high_[0], codes);
        if constexpr (kParts == 2) {
            const __m256i is_second = _mm256_slli_epi16(codes, 3);  // bit 4 of a code as the highest one
            low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(low_[1], codes), is_second);
            high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(high_[1], codes), is_second);
            const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(codes, 2), _mm256_set1_epi8(-128));
            high = _mm256_xor_si256(high, sign);
        }
        put(to, _mm256_unpacklo_epi8(low, high), streams);
        put(to + 16, _mm256_unpackhi_epi8(low, high), streams);
    }

private:
    // Of codes of 6 bits the table has the magnitudes, of 4 bits all codes.
    static constexpr int kEntries = Format::kBits == 6 ? 32 : 16;
    static constexpr int kParts = kEntries / 16;
    static constexpr Numbers<Format, kEntries> kNumbers{};

    __m256i low_[kParts], high_[kParts];  // the bytes of the values, twice
};

}  // namespace opforge::cpu

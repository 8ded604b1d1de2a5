#pragma once

// Encodes floating-point codes at x86-64-v4: 64 values at a time stay in registers until their bytes are packed. The
// results are those of FpFormat::code.

#include <immintrin.h>

#include <opforge/element.h>
#include <opforge/fp_quantizing.h>

#include "../cpu/vec.h"
#include "fp_strips.h"

namespace opforge::cpu {

constexpr int64_t kStrip = 64;  // values

// Operands of vpternlog.
constexpr int kAndOr = 0xea;   // a & b | c
constexpr int kAndXor = 0x6a;  // a & b ^ c
constexpr int kSelect = 0xca;  // a ? b : c, for each bit
// Operand of vrange: the larger magnitude, or the smaller one, with the sign of the first operand.
constexpr int kLargerMagnitude = 3, kSmallerMagnitude = 2;

inline __m512i words_of(uint32_t bits) { return _mm512_set1_epi32(static_cast<int>(bits)); }
inline __m512 floats_of(uint32_t bits) { return _mm512_castsi512_ps(words_of(bits)); }

// 32 values: the first 16 and the next. Of BFloat16: the even ones and the odd ones, which takes fewer instructions.
struct ValuePair {
    __m512 a, b;
};
inline ValuePair load_pair(const float* x) { return {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)}; }
inline ValuePair load_pair(const Float16* x) {
    const auto* const halves = reinterpret_cast<const __m256i*>(x);
    return {_mm512_cvtph_ps(_mm256_loadu_si256(halves)), _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1))};
}
inline ValuePair load_pair(const BFloat16* x) {
    const __m512i both = _mm512_loadu_si512(x);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(both, words_of(0xffff0000u)))};
}

// Returns 32 random numbers of 16 bits, in the lanes of a pair's values.
struct WordPair {
    __m512i a, b;
};
template <typename T>
WordPair widened(const uint16_t* halves) {
    const auto* const half = reinterpret_cast<const __m256i*>(halves);
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(half)), _mm512_cvtepu16_epi32(_mm256_loadu_si256(half + 1))};
}
template <>
inline WordPair widened<BFloat16>(const uint16_t* halves) {
    const __m512i both = _mm512_loadu_si512(halves);
    return {_mm512_and_si512(both, words_of(0xffffu)), _mm512_srli_epi32(both, 16)};
}

// Returns the upper halves of a pair's lanes as 32 words, in the order of the values.
inline __m512i packed_halves(__m512i a, __m512i b) {
    const __m512i each = _mm512_packus_epi32(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), each);
}
template <typename T>
__m512i upper_halves(WordPair x) {
    return packed_halves(x.a, x.b);
}
template <>
inline __m512i upper_halves<BFloat16>(WordPair x) {
    return _mm512_ternarylogic_epi32(words_of(0xffff0000u), x.b, _mm512_srli_epi32(x.a, 16), kSelect);
}

// Returns x * inverse with the format's exponent and 23 bits of mantissa, behind the sign, as FpFormat::code has it.
// The sum of x and the larger of x and the smallest normal number is a fixed-point number below the latter, and twice
// x above. It is rounded towards zero: to nearest, the later rounding of the codes would be a second one.
template <typename Format, bool kRandom>
__m512i held(__m512 x, __m512 inverse) {
    __m512 scaled = _mm512_mul_ps(x, inverse);
    // Only the largest random carry could lead to a code beyond the largest one.
    if constexpr (kRandom) scaled = _mm512_range_ps(scaled, _mm512_set1_ps(Format::range()), kSmallerMagnitude);
    const __m512 other = _mm512_range_ps(scaled, floats_of(Format::kSmallestNormal), kLargerMagnitude);
    return _mm512_castps_si512(_mm512_add_round_ps(scaled, other, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
}

// Returns the codes of 32 values as words.
template <typename Format, bool kRandom, typename T>
[[gnu::always_inline]] inline __m512i encode_words(const T* x, __m512 inverse, const uint16_t* random) {
    const ValuePair values = load_pair(x);
    WordPair codes{held<Format, kRandom>(values.a, inverse), held<Format, kRandom>(values.b, inverse)};
    if constexpr (kRandom) {
        const WordPair carries = widened<T>(random);
        codes.a = _mm512_add_epi32(codes.a, _mm512_slli_epi32(carries.a, Format::kDropped - 16));
        codes.b = _mm512_add_epi32(codes.b, _mm512_slli_epi32(carries.b, Format::kDropped - 16));
    }
    // Where the lower halves add nothing, the sum is one of the upper halves, which takes half the instructions.
    constexpr uint32_t kAdded = (kRandom ? 0 : Format::kHalf) - Format::kSmallestNormal;
    __m512i upper;
    if constexpr ((kAdded & 0xffffu) == 0) {
        upper = _mm512_add_epi16(upper_halves<T>(codes), words_of(kAdded | kAdded >> 16));
    } else {
        upper =
            upper_halves<T>({_mm512_add_epi32(codes.a, words_of(kAdded)), _mm512_add_epi32(codes.b, words_of(kAdded))});
    }
    const __m512i magnitude = _mm512_srli_epi16(upper, Format::kDropped - 16);
    const __m512i sign = _mm512_srli_epi16(upper, 16 - Format::kBits);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(static_cast<short>(Format::kLargest)), magnitude, sign, kSelect);
}

// Writes 48 bytes, three of each of 16 words.
inline void store_triples(uint8_t* out, __m512i words) {
    const __m512i lane = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_shuffle_epi8(words, lane));
    _mm512_mask_storeu_epi32(out, 0x0fff, bytes);
}

// Writes the packed codes of 64 values. `random` has a number for each if kRandom.
template <typename Format, bool kRandom, typename T>
[[gnu::always_inline]] inline void encode_strip(const T* x, float inverse, const uint16_t* random, uint8_t* out) {
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m512i first = encode_words<Format, kRandom>(x, factor, random);
    const __m512i second = encode_words<Format, kRandom>(x + 32, factor, random + 32);
    if constexpr (Format::kBits == 12) {
        const __m512i weights = words_of(1 | 1 << (16 + 12));
        store_triples(out, _mm512_madd_epi16(first, weights));
        store_triples(out + 48, _mm512_madd_epi16(second, weights));
    } else {
        const __m512i each = _mm512_packus_epi16(first, second);
        const __m512i bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), each);
        if constexpr (Format::kBits == 8) {
            _mm512_storeu_si512(out, bytes);
            return;
        }
        // The code of each pair's second value is moved behind the first one's.
        const __m512i pairs = _mm512_maddubs_epi16(bytes, words_of(0x00010001u << (8 + Format::kBits) | 0x00010001u));
        if constexpr (Format::kBits == 6) {
            store_triples(out, _mm512_madd_epi16(pairs, words_of(1 | 1 << (16 + 12))));
        } else {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi16_epi8(pairs));
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

// Returns the bits of the largest magnitude as a float. Bits have the order of the magnitudes, with NaN above all.
[[gnu::noinline]] inline uint32_t largest_magnitude(const float* x, int64_t count) {
    const __m512i magnitude = words_of(0x7fffffffu);
    __m512i largest = _mm512_setzero_si512();
    int64_t k = 0;
    for (; k + 16 <= count; k += 16) {
        largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_loadu_si512(x + k), magnitude));
    }
    const auto rest = static_cast<__mmask16>((1u << (count - k)) - 1);
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_maskz_loadu_epi32(rest, x + k), magnitude));
    return _mm512_reduce_max_epu32(largest);
}
template <typename T>
[[gnu::noinline]] uint32_t largest_magnitude(const T* x, int64_t count) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i largest = _mm512_setzero_si512();
    int64_t k = 0;
    for (; k + 32 <= count; k += 32) {
        largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_loadu_si512(x + k), magnitude));
    }
    const auto rest = static_cast<__mmask32>((uint64_t{1} << (count - k)) - 1);
    largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_maskz_loadu_epi16(rest, x + k), magnitude));
    const __m512i upper = _mm512_srli_epi32(largest, 16), lower = _mm512_and_si512(largest, words_of(0xffffu));
    const uint32_t bits = _mm512_reduce_max_epu32(_mm512_max_epu32(upper, lower));
    return to_bits(to_float(T{static_cast<uint16_t>(bits)}));
}

}  // namespace opforge::cpu

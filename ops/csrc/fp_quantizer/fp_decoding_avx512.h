#pragma once

// Decodes floating-point codes at x86-64-v4: by arithmetic, or with a table of all values of a scale. The results are
// those of FpFormat::number.

#include <immintrin.h>

#include <cmath>

#include <opforge/element.h>
#include <opforge/fp_quantizing.h>

#include "../cpu/vec.h"
#include "fp_encoding_avx512.h"

namespace opforge::cpu {

// Returns 16 codes in words, with the sign in the highest bit, which is repeated up to the magnitude. That ends where
// a float has its exponent's lowest bit plus the format's bits of exponent.
template <typename Format>
__m512i spread(const uint8_t* in) {
    constexpr int kRepeated = 8 - Format::kExponentBits;
    if constexpr (Format::kBits == 8) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
        return _mm512_slli_epi32(_mm512_cvtepi8_epi32(bytes), 24 - kRepeated);
    }
    __m512i bytes;
    if constexpr (Format::kBits == 4) {
        int64_t codes;
        std::memcpy(&codes, in, sizeof codes);
        bytes = _mm512_set1_epi64(codes);
    } else if constexpr (Format::kBits == 6) {
        bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
    } else {
        bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
        const __m128i rest = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 8));
        bytes = _mm512_mask_broadcast_i32x4(bytes, 0xff00, rest);
    }
    // Each word gets the bytes of its code; those of four codes begin at byte kBits / 2 of the strip's part.
    alignas(64) static constexpr auto kBytes = [] {
        struct {
            int8_t index[64];
            int32_t shift[16];
        } table{};
        for (int lane = 0; lane < 16; ++lane) {
            const int bit = lane * Format::kBits, first = bit / 8;
            const int base = Format::kBits == 12 && lane >= 8 ? 8 : 0;
            for (int byte = 0; byte < 4; ++byte) {
                const bool in_code = first + byte <= (bit + Format::kBits - 1) / 8;
                table.index[4 * lane + byte] = static_cast<int8_t>(in_code ? first + byte - base : -1);
            }
            table.shift[lane] = 32 - Format::kBits - bit % 8;
        }
        return table;
    }();
    const __m512i own = _mm512_shuffle_epi8(bytes, _mm512_load_si512(kBytes.index));
    return _mm512_srai_epi32(_mm512_sllv_epi32(own, _mm512_loadu_si512(kBytes.shift)), kRepeated);
}

// Numbers are decoded with another exponent, whose lowest bits are zero: the code's are inserted there.
template <typename Format>
struct Decoded {
    static constexpr int kAnchor = 128 - (1 << Format::kExponentBits);
    // The number of a code, divided by what `values` has for it.
    static constexpr float kFactor = static_cast<float>(int64_t{1} << (128 - kAnchor - Format::kBias));

    // Returns 16 numbers, multiplied by `scale`.
    static __m512 values(const uint8_t* in, __m512 scale) {
        const __m512i codes = spread<Format>(in);
        const __m512 sum = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
            codes, words_of(Format::kLargest << Format::kDropped), words_of(kAnchor << 23), kAndOr));
        // The reverse of the sum in `held`.
        const __m512 other = _mm512_max_ps(sum, floats_of((kAnchor + 1) << 23));
        const __m512i number = _mm512_castps_si512(_mm512_fnmadd_ps(other, _mm512_set1_ps(0.5f), sum));
        const __m512i with_sign = _mm512_ternarylogic_epi32(codes, words_of(0x80000000u), number, kAndOr);
        return _mm512_mul_ps(_mm512_castsi512_ps(with_sign), scale);
    }
};

inline void store_pair(float* to, __m512 a, __m512 b, bool streams) {
    put(to, _mm512_castps_si512(a), streams);
    put(to + 16, _mm512_castps_si512(b), streams);
}
inline void store_pair(Float16* to, __m512 a, __m512 b, bool streams) {
    const __m256i first = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    const __m256i second = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
    put(to, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1), streams);
}
// As store(BFloat16*, Vec), without NaN.
inline __m512i rounded_to_bfloat16(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 is_odd = _mm512_test_epi32_mask(bits, words_of(0x10000u));
    const __m512i rounded = _mm512_add_epi32(bits, words_of(0x7fffu));
    return _mm512_mask_add_epi32(rounded, is_odd, rounded, words_of(1));
}
inline void store_pair(BFloat16* to, __m512 a, __m512 b, bool streams) {
    put(to, packed_halves(rounded_to_bfloat16(a), rounded_to_bfloat16(b)), streams);
}

// Decodes the codes of a scale. It may read four bytes behind them.
template <typename Format, typename T, bool kTable>
class Decoder {
public:
    static constexpr bool kStreams = true;

    explicit Decoder(float scale) : scale_(scale), product_(scale * Decoded<Format>::kFactor) {}

    // Writes the values of `count` packed codes, past the caches if `streams`, for which `to` is aligned to 64 bytes.
    void block(const uint8_t* in, int64_t count, T* to, bool streams) const {
        decode_strips<Format, kStrip>(in, count, to, streams, *this);
    }

    // The same for 64 values.
    [[gnu::always_inline]] void operator()(const uint8_t* in, T* to, bool streams) const {
        // A scale that is inf, NaN, or near the largest float.
        if (!(product_ < INFINITY && product_ > -INFINITY)) return decode_each<Format>(in, kStrip, scale_, to);
        const __m512 factor = _mm512_set1_ps(product_);
        for (int64_t k = 0; k < kStrip; k += 32) {
            const uint8_t* const half = in + k * Format::kBits / 8;
            const __m512 first = Decoded<Format>::values(half, factor);
            const __m512 second = Decoded<Format>::values(half + 2 * Format::kBits, factor);
            store_pair(to + k, first, second, streams);
        }
    }

private:
    float scale_, product_;
};

// Of how many values a group must be for a table to cost less than the arithmetic, or 0 if there is no table: values of
// 16 bits are looked up, 32 at once. That of 8 bits takes four registers.
template <typename Format, typename T>
constexpr int64_t kTableGroup = sizeof(T) != 2 || Format::kBits > 8 ? 0
                                : Format::kBits == 8                ? 256
                                                                    : 1;

template <typename Format, typename T>
class Decoder<Format, T, true> {
public:
    static constexpr bool kStreams = true;

    explicit Decoder(float scale) {
        alignas(64) T table[kEntries];
        for (int k = 0; k < kEntries; k += 16) store(table + k, Vec(load(kNumbers.x + k)) * Vec(scale));
        for (int k = 0; k < kEntries; k += 32) entries_[k / 32] = _mm512_load_si512(table + k);
    }

    // Writes the values of `count` packed codes, past the caches if `streams`, for which `to` is aligned to 64 bytes.
    void block(const uint8_t* in, int64_t count, T* to, bool streams) const {
        decode_strips<Format, kStrip>(in, count, to, streams, *this);
    }

    // The same for 64 values.
    [[gnu::always_inline]] void operator()(const uint8_t* in, T* to, bool streams) const {
        for (int64_t k = 0; k < kStrip; k += 32) {
            put(to + k, values(codes(in + k * Format::kBits / 8)), streams);
        }
    }

private:
    // Of codes of 8 bits the table has the magnitudes. Otherwise it has all codes, again and again: the bits above a
    // code do not matter.
    static constexpr bool kMagnitudes = Format::kBits == 8;
    static constexpr int kEntries = kMagnitudes ? 128 : 64;
    static constexpr Numbers<Format, kEntries> kNumbers{};

    __m512i values(__m512i codes) const {
        const __m512i low = _mm512_permutex2var_epi16(entries_[0], codes, entries_[1]);
        if constexpr (kMagnitudes) {
            const __m512i high = _mm512_permutex2var_epi16(entries_[2], codes, entries_[3]);
            const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
            const __m512i magnitude = _mm512_mask_blend_epi16(is_high, low, high);
            return _mm512_ternarylogic_epi32(_mm512_slli_epi16(codes, 8), words_of(0x80008000u), magnitude, kAndXor);
        }
        return low;
    }

    // Returns 32 codes as words, those of less than 8 bits with other bits above the sixth.
    static __m512i codes(const uint8_t* in) {
        if constexpr (Format::kBits == 8) {
            return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
        } else {
            // `index` moves the bytes of each code to its word, `shift` the code to the lowest bits.
            struct Table {
                int8_t index[64];
                int16_t shift[32];
            };
            alignas(64) static constexpr Table kLane = [] {
                Table table{};
                for (int word = 0; word < 32; ++word) {
                    const int bit = word * Format::kBits, base = Format::kBits == 6 && word >= 16 ? 8 : 0;
                    const bool two = bit % 8 + Format::kBits > 8;
                    table.index[2 * word] = static_cast<int8_t>(bit / 8 - base);
                    table.index[2 * word + 1] = static_cast<int8_t>(two ? bit / 8 + 1 - base : -1);
                    table.shift[word] = static_cast<int16_t>(bit % 8);
                }
                return table;
            }();
            __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
            if constexpr (Format::kBits == 6) {
                const __m128i rest = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 8));
                bytes = _mm512_mask_broadcast_i32x4(bytes, 0xff00, rest);
            }
            const __m512i own = _mm512_shuffle_epi8(bytes, _mm512_load_si512(kLane.index));
            return _mm512_srlv_epi16(own, _mm512_load_si512(kLane.shift));
        }
    }

    __m512i entries_[kEntries / 32];
};

}  // namespace opforge::cpu

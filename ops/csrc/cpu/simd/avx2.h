#pragma once

// Vec at x86-64-v3: AVX2, FMA and F16C; 8 lanes.

#include <immintrin.h>

#include <opforge/dtype.h>

namespace opforge::cpu {

struct Vec {
    static constexpr int64_t kWidth = 8;
    __m256 v;

    Vec() = default;
    Vec(__m256 x) : v(x) {}
    explicit Vec(float x) : v(_mm256_set1_ps(x)) {}
};

constexpr bool kConvertsHalves = true;  // whether the CPU has instructions that convert float16

inline Vec set_bits(uint32_t bits) { return {_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits)))}; }

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec bit_and(Vec a, Vec b) { return {_mm256_and_ps(a.v, b.v)}; }
inline Vec bit_or(Vec a, Vec b) { return {_mm256_or_ps(a.v, b.v)}; }
inline Vec bit_xor(Vec a, Vec b) { return {_mm256_xor_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }

// The bits as integers of 32 bits.
inline Vec add_bits(Vec a, Vec b) {
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), _mm256_castps_si256(b.v)))};
}
inline Vec lower_half_up(Vec a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.v), 16))}; }
inline Vec upper_half_down(Vec a) { return {_mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256(a.v), 16))}; }
// The lower halves of the words of `a`, and the upper ones of `b`. Those of `a` must be 0.
inline Vec with_upper_halves(Vec a, Vec b) {
    return {_mm256_castsi256_ps(_mm256_blend_epi16(_mm256_castps_si256(a.v), _mm256_castps_si256(b.v), 0xaa))};
}

// `b` if either is NaN.
inline Vec smaller(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec larger(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }

// The nearest finite number; of NaN any.
inline Vec bounded(Vec x) { return larger(Vec(-3.402823466e38f), smaller(Vec(3.402823466e38f), x)); }
// `then` if x < 0, else `otherwise` (also for NaN).
inline Vec select_negative(Vec x, Vec then, Vec otherwise) {
    return {_mm256_blendv_ps(otherwise.v, then.v, _mm256_cmp_ps(x.v, _mm256_setzero_ps(), _CMP_LT_OQ))};
}
// `then` if x is zero of either sign or NaN, else `otherwise`.
inline Vec select_zero_or_nan(Vec x, Vec then, Vec otherwise) {
    return {_mm256_blendv_ps(otherwise.v, then.v, _mm256_cmp_ps(x.v, _mm256_setzero_ps(), _CMP_EQ_UQ))};
}
// x if it is zero or NaN, else `otherwise`.
inline Vec zero_or_nan_of(Vec x, Vec otherwise) { return select_zero_or_nan(x, x, otherwise); }
inline Vec choose(bool flag, Vec then, Vec otherwise) {
    return bit_or(bit_and(then, set_bits(flag ? 0xffffffffu : 0u)),
                  bit_and(otherwise, set_bits(flag ? 0u : 0xffffffffu)));
}
// `flag ? x + y : y`.
inline Vec add_if(bool flag, Vec x, Vec y) { return bit_and(x, set_bits(flag ? 0xffffffffu : 0u)) + y; }
// `flag ? a * b + c : c`.
inline Vec fma_if(bool flag, Vec a, Vec b, Vec c) {
    const Vec kept = set_bits(flag ? 0xffffffffu : 0u);
    return fma(bit_and(a, kept), bit_and(b, kept), c);
}
// `then` if x is NaN, else `otherwise`.
inline Vec select_nan(Vec x, Vec then, Vec otherwise) {
    return {_mm256_blendv_ps(otherwise.v, then.v, _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q))};
}

inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x.v); }

inline Vec load(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}

// Writes a vector, past the caches if `streamed`: then the address must be a multiple of the vector's size.
inline void put(void* to, Vec x, bool streamed) {
    const __m256i bits = _mm256_castps_si256(x.v);
    streamed ? _mm256_stream_si256(static_cast<__m256i*>(to), bits)
             : _mm256_storeu_si256(static_cast<__m256i*>(to), bits);
}

inline Vec load(const Float16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline void store(Float16* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
// Two vectors as float16 numbers, one behind the other.
inline Vec packed_halves(Vec a, Vec b) {
    const __m128i lower = _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT);
    return {_mm256_castsi256_ps(_mm256_set_m128i(_mm256_cvtps_ph(b.v, _MM_FROUND_TO_NEAREST_INT), lower))};
}

inline Vec load(const BFloat16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
// Rounds to nearest even by adding half a unit minus the parity bit. A NaN keeps its upper bits and becomes quiet,
// since the sum could carry over into -0.
inline void store(BFloat16* p, Vec x) {
    const __m256i bits = _mm256_castps_si256(x.v);
    const __m256i parity = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(parity, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
    const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

}  // namespace opforge::cpu

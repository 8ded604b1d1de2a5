#pragma once

// Vec at x86-64-v4: AVX512 F, BW, DQ and VL; 16 lanes.

#include <immintrin.h>

#include <opforge/dtype.h>

namespace opforge::cpu {

struct Vec {
    static constexpr int64_t kWidth = 16;
    __m512 v;

    Vec() = default;
    Vec(__m512 x) : v(x) {}
    explicit Vec(float x) : v(_mm512_set1_ps(x)) {}
};

constexpr bool kConvertsHalves = true;  // whether the CPU has instructions that convert float16

inline Vec set_bits(uint32_t bits) { return {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits)))}; }

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec bit_and(Vec a, Vec b) { return {_mm512_and_ps(a.v, b.v)}; }
inline Vec bit_or(Vec a, Vec b) { return {_mm512_or_ps(a.v, b.v)}; }
inline Vec bit_xor(Vec a, Vec b) { return {_mm512_xor_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }

// The bits as integers of 32 bits.
inline Vec add_bits(Vec a, Vec b) {
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
inline Vec lower_half_up(Vec a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))}; }
inline Vec upper_half_down(Vec a) { return {_mm512_castsi512_ps(_mm512_srli_epi32(_mm512_castps_si512(a.v), 16))}; }
// The lower halves of the words of `a`, and the upper ones of `b`. Those of `a` must be 0.
inline Vec with_upper_halves(Vec a, Vec b) { return bit_or(a, bit_and(b, set_bits(0xffff0000u))); }

// `b` if either is NaN.
inline Vec smaller(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec larger(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }

// The nearest finite number; of NaN any.
inline Vec bounded(Vec x) {
    return {_mm512_range_ps(x.v, _mm512_set1_ps(3.402823466e38f), 2)};  // the smaller magnitude, the sign of x
}
// `then` if x < 0, else `otherwise` (also for NaN).
inline Vec select_negative(Vec x, Vec then, Vec otherwise) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_LT_OQ), otherwise.v, then.v)};
}
// `then` if x is zero of either sign or NaN, else `otherwise`.
inline Vec select_zero_or_nan(Vec x, Vec then, Vec otherwise) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_EQ_UQ), otherwise.v, then.v)};
}
// x if it is zero or NaN, else `otherwise`.
inline Vec zero_or_nan_of(Vec x, Vec otherwise) {
    // Four bits for each kind of x: a quiet and a signaling NaN (2: itself, quiet), zero (1: itself), others.
    return {_mm512_fixupimm_ps(otherwise.v, x.v, _mm512_set1_epi32(0x122), 0)};
}
inline Vec choose(bool flag, Vec then, Vec otherwise) {
    return {_mm512_mask_blend_ps(flag ? 0xffff : 0, otherwise.v, then.v)};
}
// `flag ? x + y : y`.
inline Vec add_if(bool flag, Vec x, Vec y) { return {_mm512_mask_add_ps(y.v, flag ? 0xffff : 0, x.v, y.v)}; }
// `flag ? a * b + c : c`.
inline Vec fma_if(bool flag, Vec a, Vec b, Vec c) { return {_mm512_mask3_fmadd_ps(a.v, b.v, c.v, flag ? 0xffff : 0)}; }
// `then` if x is NaN, else `otherwise`.
inline Vec select_nan(Vec x, Vec then, Vec otherwise) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), otherwise.v, then.v)};
}

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }

inline Vec load(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// Writes a vector, past the caches if `streamed`: then the address must be a multiple of the vector's size.
inline void put(void* to, Vec x, bool streamed) {
    streamed ? _mm512_stream_ps(static_cast<float*>(to), x.v) : _mm512_storeu_ps(to, x.v);
}

inline Vec load(const Float16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline void store(Float16* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
// Two vectors as float16 numbers, one behind the other.
inline Vec packed_halves(Vec a, Vec b) {
    const __m512i lower = _mm512_castsi256_si512(_mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
    return {_mm512_castsi512_ps(_mm512_inserti64x4(lower, _mm512_cvtps_ph(b.v, _MM_FROUND_TO_NEAREST_INT), 1))};
}

inline Vec load(const BFloat16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// Returns words whose upper halves are the nearest bfloat16. To nearest even by adding half a unit, less one if what is
// kept is even. A NaN keeps its upper bits and becomes quiet, since the sum could carry over into -0. (vcvtneps2bf16 is
// not in v4 and flushes denormals.)
inline __m512i rounded_words(Vec x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __m512i almost = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_mask_add_epi32(almost, is_odd, bits, _mm512_set1_epi32(0x8000));
    // The two lowest of eight fields of four bits are for quiet and signaling NaN: 2 is a quiet one, 0 leaves
    // `rounded`.
    return _mm512_castps_si512(_mm512_fixupimm_ps(_mm512_castsi512_ps(rounded), x.v, _mm512_set1_epi32(0x22), 0));
}
inline void store(BFloat16* p, Vec x) {
    const __m512i shifted = _mm512_srli_epi32(rounded_words(x), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(shifted));
}
// Two vectors, one behind the other.
inline void store(BFloat16* p, Vec a, Vec b) {
    // The numbers of the upper halves of the words of both vectors: 1, 3 ... 63.
    const __m512i first = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                                           25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi16(rounded_words(a), first, rounded_words(b)));
}

}  // namespace opforge::cpu

#pragma once

// Vec on aarch64: Advanced SIMD, which every such CPU has; 4 lanes.

#include <arm_neon.h>

#include <cstring>

#include <opforge/dtype.h>

namespace opforge::cpu {

struct Vec {
    static constexpr int64_t kWidth = 4;
    float32x4_t v;

    Vec() = default;
    Vec(float32x4_t x) : v(x) {}
    explicit Vec(float x) : v(vdupq_n_f32(x)) {}
};

inline uint32x4_t bits_of(Vec a) { return vreinterpretq_u32_f32(a.v); }
inline Vec of_bits(uint32x4_t bits) { return {vreinterpretq_f32_u32(bits)}; }

constexpr bool kConvertsHalves = true;  // whether the CPU has instructions that convert float16

inline Vec set_bits(uint32_t bits) { return of_bits(vdupq_n_u32(bits)); }

inline Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
inline Vec bit_and(Vec a, Vec b) { return of_bits(vandq_u32(bits_of(a), bits_of(b))); }
inline Vec bit_or(Vec a, Vec b) { return of_bits(vorrq_u32(bits_of(a), bits_of(b))); }
inline Vec bit_xor(Vec a, Vec b) { return of_bits(veorq_u32(bits_of(a), bits_of(b))); }
inline Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline Vec sqrt(Vec a) { return {vsqrtq_f32(a.v)}; }

// The bits as integers of 32 bits.
inline Vec add_bits(Vec a, Vec b) { return of_bits(vaddq_u32(bits_of(a), bits_of(b))); }
inline Vec lower_half_up(Vec a) { return of_bits(vshlq_n_u32(bits_of(a), 16)); }
inline Vec upper_half_down(Vec a) { return of_bits(vshrq_n_u32(bits_of(a), 16)); }
// The lower halves of the words of `a`, and the upper ones of `b`. Those of `a` must be 0.
inline Vec with_upper_halves(Vec a, Vec b) { return bit_or(a, bit_and(b, set_bits(0xffff0000u))); }

// `b` if either is NaN.
inline Vec smaller(Vec a, Vec b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
inline Vec larger(Vec a, Vec b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }

// The nearest finite number; of NaN any.
inline Vec bounded(Vec x) { return larger(Vec(-3.402823466e38f), smaller(Vec(3.402823466e38f), x)); }
// `then` if x < 0, else `otherwise` (also for NaN).
inline Vec select_negative(Vec x, Vec then, Vec otherwise) { return {vbslq_f32(vcltzq_f32(x.v), then.v, otherwise.v)}; }
// `then` if x is zero of either sign or NaN, else `otherwise`.
inline Vec select_zero_or_nan(Vec x, Vec then, Vec otherwise) {
    const uint32x4_t is_nan = vmvnq_u32(vceqq_f32(x.v, x.v));
    return {vbslq_f32(vorrq_u32(vceqzq_f32(x.v), is_nan), then.v, otherwise.v)};
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
inline Vec select_nan(Vec x, Vec then, Vec otherwise) { return {vbslq_f32(vceqq_f32(x.v, x.v), otherwise.v, then.v)}; }

inline Vec load(const float* p) { return {vld1q_f32(p)}; }
inline void store(float* p, Vec x) { vst1q_f32(p, x.v); }

inline Vec load(const int8_t* p) {
    uint32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    const int16x4_t halves = vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(bytes))));
    return {vcvtq_f32_s32(vmovl_s16(halves))};
}

// Writes a vector.
inline void put(void* to, Vec x, bool) { std::memcpy(to, &x.v, sizeof x.v); }

inline Vec load(const Float16* p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))))};
}
inline void store(Float16* p, Vec x) {
    vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(x.v)));
}
// Two vectors as float16 numbers, one behind the other.
inline Vec packed_halves(Vec a, Vec b) {
    return {vreinterpretq_f32_f16(vcombine_f16(vcvt_f16_f32(a.v), vcvt_f16_f32(b.v)))};
}

inline Vec load(const BFloat16* p) { return of_bits(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16)); }
// Rounds to nearest even by adding half a unit minus the parity bit. A NaN keeps its upper bits and becomes quiet,
// since the sum could carry over into -0.
inline void store(BFloat16* p, Vec x) {
    const uint32x4_t bits = bits_of(x);
    const uint32x4_t parity = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(parity, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    const uint32x4_t number = vceqq_f32(x.v, x.v);
    vst1_u16(reinterpret_cast<uint16_t*>(p), vshrn_n_u32(vbslq_u32(number, rounded, quiet), 16));
}

}  // namespace opforge::cpu

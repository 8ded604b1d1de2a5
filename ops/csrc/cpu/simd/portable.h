#pragma once

// Vec for a CPU without known extensions, such as plain x86-64: 4 lanes in the vector types of GCC and Clang, which
// become SSE2 there. Multiply and add round separately, and float16 is converted by integer arithmetic.

#include <cmath>
#include <cstring>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <opforge/dtype.h>

namespace opforge::cpu {

using Floats = float __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));
using Halves = uint16_t __attribute__((vector_size(8)));

struct Vec {
    static constexpr int64_t kWidth = 4;
    Floats v;

    Vec() = default;
    Vec(Floats x) : v(x) {}
    explicit Vec(float x) : v(Floats{x, x, x, x}) {}
};

inline Words bits_of(Floats x) { return reinterpret_cast<Words>(x); }
inline Floats of_bits(Words bits) { return reinterpret_cast<Floats>(bits); }
inline Words choose(Words mask, Words then, Words otherwise) { return (mask & then) | (~mask & otherwise); }
template <typename Mask>
Vec choose(Mask mask, Vec then, Vec otherwise) {
    return {of_bits(choose(reinterpret_cast<Words>(mask), bits_of(then.v), bits_of(otherwise.v)))};
}

constexpr bool kConvertsHalves = false;  // whether the CPU has instructions that convert float16

inline Vec set_bits(uint32_t bits) { return {of_bits(Words{bits, bits, bits, bits})}; }

inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec bit_and(Vec a, Vec b) { return {of_bits(bits_of(a.v) & bits_of(b.v))}; }
inline Vec bit_or(Vec a, Vec b) { return {of_bits(bits_of(a.v) | bits_of(b.v))}; }
inline Vec bit_xor(Vec a, Vec b) { return {of_bits(bits_of(a.v) ^ bits_of(b.v))}; }
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec sqrt(Vec a) { return {Floats{std::sqrt(a.v[0]), std::sqrt(a.v[1]), std::sqrt(a.v[2]), std::sqrt(a.v[3])}}; }

// The bits as integers of 32 bits.
inline Vec add_bits(Vec a, Vec b) { return {of_bits(bits_of(a.v) + bits_of(b.v))}; }
inline Vec lower_half_up(Vec a) { return {of_bits(bits_of(a.v) << 16)}; }
inline Vec upper_half_down(Vec a) { return {of_bits(bits_of(a.v) >> 16)}; }
// The lower halves of the words of `a`, and the upper ones of `b`. Those of `a` must be 0.
inline Vec with_upper_halves(Vec a, Vec b) { return bit_or(a, bit_and(b, set_bits(0xffff0000u))); }

// `b` if either is NaN.
inline Vec smaller(Vec a, Vec b) { return choose(a.v < b.v, a, b); }
inline Vec larger(Vec a, Vec b) { return choose(a.v > b.v, a, b); }

// The nearest finite number; of NaN any.
inline Vec bounded(Vec x) { return larger(Vec(-3.402823466e38f), smaller(Vec(3.402823466e38f), x)); }
// `then` if x < 0, else `otherwise` (also for NaN).
inline Vec select_negative(Vec x, Vec then, Vec otherwise) { return choose(x.v < 0.0f, then, otherwise); }
// `then` if x is zero of either sign or NaN, else `otherwise`.
inline Vec select_zero_or_nan(Vec x, Vec then, Vec otherwise) {
    return choose((x.v == 0.0f) | (x.v != x.v), then, otherwise);
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
inline Vec select_nan(Vec x, Vec then, Vec otherwise) { return choose(x.v != x.v, then, otherwise); }

inline Vec load(const float* p) {
    Floats x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
inline void store(float* p, Vec x) { std::memcpy(p, &x.v, sizeof x.v); }

inline Vec load(const int8_t* p) {
    using Bytes = int8_t __attribute__((vector_size(4)));
    Bytes bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return {__builtin_convertvector(bytes, Floats)};
}

// Writes a vector, past the caches if `streamed`: then the address must be a multiple of the vector's size.
inline void put(void* to, Vec x, bool streamed) {
#if defined(__SSE2__)
    if (streamed) return _mm_stream_ps(static_cast<float*>(to), x.v);
#endif
    std::memcpy(to, &x.v, sizeof x.v);
}

inline Words load_halves(const void* p) {
    Halves halves;
    std::memcpy(&halves, p, sizeof halves);
    return __builtin_convertvector(halves, Words);
}
inline void store_halves(void* p, Words words) {
    const Halves halves = __builtin_convertvector(words, Halves);
    std::memcpy(p, &halves, sizeof halves);
}

inline Vec load(const BFloat16* p) { return {of_bits(load_halves(p) << 16)}; }
// Rounds to nearest even by adding half a unit minus the parity bit. A NaN keeps its upper bits and becomes quiet,
// since the sum could carry over into -0.
inline void store(BFloat16* p, Vec x) {
    const Words bits = bits_of(x.v);
    const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    store_halves(p, choose(reinterpret_cast<Words>(x.v != x.v), bits | 0x00400000u, rounded) >> 16);
}

// A product with 2^112 changes the exponent's bias. It is exact for normal and subnormal values.
inline Vec load(const Float16* p) {
    const Words half = load_halves(p);
    const Words magnitude = (half & 0x7fffu) << 13;
    const Words finite = bits_of(of_bits(magnitude) * 0x1p112f);
    const Words special = reinterpret_cast<Words>((half & 0x7c00u) == 0x7c00u);
    return {of_bits((half & 0x8000u) << 16 | choose(special, magnitude | 0x7f800000u, finite))};
}
// Normal results are rounded by adding half a unit minus the parity bit. Subnormal ones are rounded by the addition of
// 0.5, whose last place is float16's smallest step. Magnitudes are compared as signed numbers, as SSE2 can.
inline void store(Float16* p, Vec x) {
    using Signed = int32_t __attribute__((vector_size(16)));
    const Words bits = bits_of(x.v);
    const Words magnitude = bits & 0x7fffffffu;
    const Signed size = reinterpret_cast<Signed>(magnitude);
    const Words normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const Words subnormal = bits_of(of_bits(magnitude) + 0.5f) - 0x3f000000u;
    const Words nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    Words half = choose(reinterpret_cast<Words>(size < 0x38800000), subnormal, normal);
    half = choose(reinterpret_cast<Words>(size >= 0x477ff000), Words{} + 0x7c00u, half);
    half = choose(reinterpret_cast<Words>(size > 0x7f800000), nan, half);
    store_halves(p, (bits >> 16 & 0x8000u) | half);
}
// Two vectors as float16 numbers, one behind the other.
inline Vec packed_halves(Vec a, Vec b) {
    Float16 halves[2 * Vec::kWidth];
    store(halves, a), store(halves + Vec::kWidth, b);
    Vec both;
    std::memcpy(&both.v, halves, sizeof both.v);
    return both;
}

}  // namespace opforge::cpu

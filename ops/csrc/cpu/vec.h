#pragma once

// `Vec`, a vector of floats with the same operations at every CPU level. The level is the one that this unit is
// compiled for; nothing here checks the CPU at run time.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "simd/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd/avx2.h"
#elif defined(__aarch64__)
#include "simd/neon.h"
#else
#include "simd/portable.h"
#endif

namespace opforge::cpu {

// The operations that opforge/rules.h defines for a float, for a vector.
inline Vec keep_if(bool flag, Vec x) { return bit_and(x, set_bits(flag ? 0xffffffffu : 0u)); }
inline Vec negate_if(bool flag, Vec x) { return bit_xor(x, set_bits(flag ? 0x80000000u : 0u)); }

inline Vec times_sign(Vec number, Vec x) {
    const Vec with_sign = bit_xor(number, bit_and(x, set_bits(0x80000000u)));
    return zero_or_nan_of(x, with_sign);
}

// Stores two vectors, one behind the other.
template <typename T>
void store(T* to, Vec a, Vec b) {
    store(to, a);
    store(to + Vec::kWidth, b);
}

}  // namespace opforge::cpu

// Is found before torch's header of the same name, and includes it. torch's includes all vector intrinsics of the
// compiler for two of them, which takes a fifth of the time of a small op's compiler and a third of its memory. So
// these two are written here, and <immintrin.h> is left to the sources that use it. Those of torch's C++ API get
// torch's own.
#pragma once

#if defined(__F16C__) && defined(__x86_64__) && defined(__has_builtin) && !defined(OPFORGE_LOADS_TORCH_BLOCKS) &&      \
    !defined(__CUDACC__) && !defined(__HIPCC__) && !defined(SYCL_LANGUAGE_VERSION) && !defined(CPU_CAPABILITY_AVX2) && \
    !defined(CPU_CAPABILITY_AVX512) && !defined(_IMMINTRIN_H_INCLUDED) && !defined(__IMMINTRIN_H)

namespace opforge {

using FourFloats = float __attribute__((vector_size(16)));
using EightHalves = short __attribute__((vector_size(16)));

inline float half_to_float(unsigned short bits) {
#if __has_builtin(__builtin_ia32_vcvtph2ps)
    return __builtin_ia32_vcvtph2ps(EightHalves{static_cast<short>(bits)})[0];
#else  // a later clang
    return __builtin_bit_cast(_Float16, bits);
#endif
}

// Rounds to the nearest.
inline unsigned short float_to_half(float value) {
    return static_cast<unsigned short>(__builtin_ia32_vcvtps2ph(FourFloats{value}, 0)[0]);
}

}  // namespace opforge

// What gcc and clang define in <immintrin.h>, so that it is skipped.
#define _IMMINTRIN_H_INCLUDED
#define __IMMINTRIN_H
#define _cvtsh_ss(bits) ::opforge::half_to_float(bits)
#define _cvtss_sh(value, rounding) ::opforge::float_to_half(value)
#include_next <torch/headeronly/util/Half.h>
#undef _cvtsh_ss
#undef _cvtss_sh
#undef _IMMINTRIN_H_INCLUDED
#undef __IMMINTRIN_H

#else
#include_next <torch/headeronly/util/Half.h>
#endif

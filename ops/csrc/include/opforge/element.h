#pragma once

// Converts one element between its dtype's bits and float.

#include <cstdint>
#include <cstring>

#include <opforge/c_math.h>
#include <opforge/dtype.h>
#include <opforge/host_device.h>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>

#include <hip/hip_fp16.h>
#endif

namespace opforge {

OPFORGE_HD inline uint32_t to_bits(float x) {
#if defined(OPFORGE_ON_DEVICE)
    return __float_as_uint(x);
#else
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

OPFORGE_HD inline float of_bits(uint32_t bits) {
#if defined(OPFORGE_ON_DEVICE)
    return __uint_as_float(bits);
#else
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

// These test the bits, so that compiler flags such as -ffast-math do not change the result.
OPFORGE_HD inline bool is_inf(float x) { return (to_bits(x) & 0x7fffffffu) == 0x7f800000u; }
OPFORGE_HD inline bool is_nan(float x) { return (to_bits(x) & 0x7fffffffu) > 0x7f800000u; }

OPFORGE_HD inline float to_float(float x) { return x; }
OPFORGE_HD inline float to_float(BFloat16 x) { return of_bits(static_cast<uint32_t>(x.bits) << 16); }
OPFORGE_HD inline float to_float(Float16 x) {
#if defined(OPFORGE_ON_DEVICE)
    return __half2float(__ushort_as_half(x.bits));
#else
    const uint32_t magnitude = x.bits & 0x7fffu;
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
    const uint32_t normal = (magnitude << 13) + ((magnitude >= 0x7c00u ? 224u : 112u) << 23);
    const uint32_t subnormal = to_bits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
    return of_bits(sign | (magnitude < 0x400u ? subnormal : normal));
#endif
}

// Rounds to nearest, ties to even. A NaN stays a NaN.
OPFORGE_HD inline void from_float(float x, float& out) { out = x; }
OPFORGE_HD inline void from_float(float x, BFloat16& out) {
    const uint32_t bits = to_bits(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    out.bits = static_cast<uint16_t>(is_nan(x) ? (bits >> 16) | 0x40u : rounded);
}
OPFORGE_HD inline void from_float(float x, Float16& out) {
#if defined(OPFORGE_ON_DEVICE)
    out.bits = __half_as_ushort(__float2half_rn(x));
#else
    const uint32_t bits = to_bits(x);
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the spacing is constant. Adding 2^23 to the number of spacings rounds it to an integer.
    const uint32_t subnormal = to_bits(of_bits(magnitude) * 0x1p24f + 0x1p23f) & 0xffffu;
    const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN, or beyond 65520
    out.bits = static_cast<uint16_t>(((bits >> 16) & 0x8000u) | (magnitude >= 0x477ff000u ? large : finite));
#endif
}

template <typename T>
OPFORGE_HD inline T from_float(float x) {
    T out;
    from_float(x, out);
    return out;
}

}  // namespace opforge

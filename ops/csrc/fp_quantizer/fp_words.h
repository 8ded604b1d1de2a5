#pragma once

// Floating-point codes in words: as few as are whole words, so that each lane of a warp moves a small, aligned part.

#include <opforge/fp_quantizing.h>

#include "../cuda/runtime.h"

namespace opforge::cuda {

template <typename Format>
struct FpWords {
    static constexpr int kBits = Format::kBits;
    static constexpr int kCodes = kBits == 8 ? 4 : kBits == 6 ? 16 : 8;
    static constexpr int kWords = kCodes * kBits / 32;  // 1 or 3

    // Writes codes, or zeros if the group has no codes.
    __device__ static void store(const uint32_t (&codes)[kCodes], bool encodes, uint8_t* to) {
        uint32_t words[kWords] = {};
#pragma unroll
        for (int k = 0; k < kCodes; ++k) {
            const int bit = k * kBits;
            words[bit / 32] |= codes[k] << bit % 32;
            if (bit % 32 + kBits > 32) words[bit / 32 + 1] |= codes[k] >> (32 - bit % 32);
        }
#pragma unroll
        for (int w = 0; w < kWords; ++w) reinterpret_cast<uint32_t*>(to)[w] = encodes ? words[w] : 0;
    }

    __device__ static void load(const uint8_t* from, uint32_t (&words)[kWords]) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[w] = reinterpret_cast<const uint32_t*>(from)[w];
    }
    // Returns code `k` of those in words. The bits above it are undefined.
    __device__ static uint32_t code(const uint32_t (&words)[kWords], int k) {
        const int bit = k * kBits;
        uint32_t code = words[bit / 32] >> bit % 32;
        if (bit % 32 + kBits > 32) code |= words[bit / 32 + 1] << (32 - bit % 32);
        return code;
    }
};

}  // namespace opforge::cuda

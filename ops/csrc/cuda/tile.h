#pragma once

// A block's tile of kTile elements in registers, kPerThread per thread. In a whole, aligned tile a thread holds runs of
// four adjacent elements, which it moves as one word of 16 or 8 bytes; the words of a warp are adjacent. In other tiles
// it holds single elements at distances of a block's width.

#include <opforge/element.h>

#include "words.h"

namespace opforge::cuda {

constexpr int kThreads = 256;
constexpr int kRun = 4;
constexpr int kPerThread = 8;
constexpr int kTile = kThreads * kPerThread;
constexpr int kAlignment = 16;

__device__ inline int64_t run_begin(int64_t begin, int run) {
    return begin + (run * kThreads + static_cast<int>(threadIdx.x)) * kRun;
}
__device__ inline int64_t element(int64_t begin, int k) { return begin + k * kThreads + static_cast<int>(threadIdx.x); }

// Loads the elements' bits as they are in memory: a word holds one 4-byte element, or in a whole tile two 2-byte
// elements. Loading and decoding are separate, so that all loads of a tile are started before the first is waited for.
template <bool kWhole>
__device__ inline void load(const void* data, bool wide, int64_t begin, int64_t end, uint32_t (&words)[kPerThread]) {
    if constexpr (kWhole) {
#pragma unroll
        for (int run = 0; run < kPerThread / kRun; ++run) {
            const int64_t at = run_begin(begin, run) / kRun;
            if (wide) {
                const uint4 four = static_cast<const uint4*>(data)[at];
                words[run * kRun] = four.x, words[run * kRun + 1] = four.y;
                words[run * kRun + 2] = four.z, words[run * kRun + 3] = four.w;
            } else {
                const uint2 two = static_cast<const uint2*>(data)[at];
                words[run * kRun] = two.x, words[run * kRun + 1] = two.y;
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            const int64_t at = element(begin, k);
            words[k] = 0;
            if (at < end) {
                words[k] = wide ? static_cast<const uint32_t*>(data)[at] : static_cast<const uint16_t*>(data)[at];
            }
        }
    }
}

template <bool kWhole>
__device__ inline void decode(const uint32_t (&words)[kPerThread], DType dtype, float (&x)[kPerThread]) {
    uint16_t halves[kPerThread];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
        const int pair = k / kRun * kRun + k % kRun / 2;
        halves[k] = static_cast<uint16_t>(kWhole ? words[pair] >> (k % 2 * 16) : words[k]);
    }
    if (dtype == DType::Float32) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) x[k] = of_bits(words[k]);
    } else if (dtype == DType::BFloat16) {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) x[k] = to_float(BFloat16{halves[k]});
    } else {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) x[k] = to_float(Float16{halves[k]});
    }
}

template <bool kWhole>
__device__ inline void store(void* data, DType dtype, int64_t begin, int64_t end, const float (&x)[kPerThread]) {
    if (dtype == DType::Float32) {
        if constexpr (kWhole) {
#pragma unroll
            for (int run = 0; run < kPerThread / kRun; ++run) {
                static_cast<float4*>(data)[run_begin(begin, run) / kRun] =
                    make_float4(x[run * kRun], x[run * kRun + 1], x[run * kRun + 2], x[run * kRun + 3]);
            }
        } else {
#pragma unroll
            for (int k = 0; k < kPerThread; ++k) {
                if (element(begin, k) < end) static_cast<float*>(data)[element(begin, k)] = x[k];
            }
        }
        return;
    }
    uint32_t words[kPerThread / 2];
    if (dtype == DType::BFloat16) {
#pragma unroll
        for (int w = 0; w < kPerThread / 2; ++w) words[w] = word_of<BFloat16>(x[2 * w], x[2 * w + 1]);
    } else {
#pragma unroll
        for (int w = 0; w < kPerThread / 2; ++w) words[w] = word_of<Float16>(x[2 * w], x[2 * w + 1]);
    }
    if constexpr (kWhole) {
#pragma unroll
        for (int run = 0; run < kPerThread / kRun; ++run) {
            static_cast<uint2*>(data)[run_begin(begin, run) / kRun] = make_uint2(words[2 * run], words[2 * run + 1]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < kPerThread; ++k) {
            const int64_t at = element(begin, k);
            if (at < end) static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(words[k / 2] >> k % 2 * 16);
        }
    }
}

}  // namespace opforge::cuda

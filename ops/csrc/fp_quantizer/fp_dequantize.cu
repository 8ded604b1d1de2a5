#include <opforge/fp_quantizing.h>

#include "../cuda/divisor.h"
#include "../cuda/words.h"
#include "fp_words.h"

namespace opforge::cuda {
namespace {

constexpr int kBlockThreads = 256;

inline bool is_aligned(const void* address, size_t size) { return reinterpret_cast<uintptr_t>(address) % size == 0; }

// Returns the row of an output group that has the index `at`, as its number `within` of the block; null if the index is
// out of range. The host cannot check indexes without waiting for the GPU.
__device__ const uint8_t* row_of(const FpDequantizeCall& call, int64_t at, int64_t within) {
    const int64_t index = call.index(at);
    if (index < 0 || index >= call.blocks) return nullptr;
    return call.rows + (index * call.block + within) * call.groups.row();
}

// Writes as many values as a vector of codes has, in one dtype.
template <typename T, int kCount>
__device__ void store(const float (&x)[kCount], T* to) {
    constexpr int kWords = kCount / kInWord<T>;
    uint32_t words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
        if constexpr (sizeof(T) == 4) {
            words[w] = to_bits(x[w]);
        } else {
            words[w] = word_of<T>(x[2 * w], x[2 * w + 1]);
        }
    }
    if constexpr (kWords == 2) {
        *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
#pragma unroll
        for (int w = 0; w < kWords; w += 4) {
            reinterpret_cast<uint4*>(to)[w / 4] = make_uint4(words[w], words[w + 1], words[w + 2], words[w + 3]);
        }
    }
}

template <typename Format>
constexpr int kRounds = 32 / FpWords<Format>::kCodes;  // vectors per thread

// For groups of whole vectors at aligned addresses, with fewer than 2^31 vectors. `vectors` divides by the vectors of a
// group, `groups` by the groups of an index.
template <typename Format, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    fp_dequantize(const OPFORGE_GRID_CONSTANT FpDequantizeCall call, const OPFORGE_GRID_CONSTANT Divisor vectors,
                  const OPFORGE_GRID_CONSTANT Divisor groups, uint32_t total) {
    using Packing = FpWords<Format>;
    constexpr int kCodes = Packing::kCodes;
    const auto each = static_cast<uint32_t>(call.groups.elements / kCodes);
    const uint32_t first = blockIdx.x * (kRounds<Format> * kBlockThreads) + threadIdx.x;
    uint32_t words[kRounds<Format>][Packing::kWords] = {};
    float scales[kRounds<Format>];
#pragma unroll
    for (int i = 0; i < kRounds<Format>; ++i) {  // threads without a vector read the last one
        const uint32_t at = first + i * kBlockThreads < total ? first + i * kBlockThreads : total - 1;
        const uint32_t group = vectors.divide(at), block = call.indexes ? groups.divide(group) : 0;
        const uint8_t* const row = call.indexes ? row_of(call, block, group - block * call.block)
                                                : call.rows + static_cast<int64_t>(group) * call.groups.row();
        scales[i] = NAN;
        if (row == nullptr) continue;
        Packing::load(row + static_cast<int64_t>(at - group * each) * 4 * Packing::kWords, words[i]);
        scales[i] = *reinterpret_cast<const float*>(row + static_cast<int64_t>(each) * 4 * Packing::kWords);
    }
#pragma unroll
    for (int i = 0; i < kRounds<Format>; ++i) {
        const uint32_t at = first + i * kBlockThreads;
        if (at >= total) return;
        float x[kCodes];
#pragma unroll
        for (int k = 0; k < kCodes; ++k) x[k] = Format::number(Packing::code(words[i], k)) * scales[i];
        store(x, static_cast<T*>(call.output) + static_cast<int64_t>(at) * kCodes);
    }
}

// For groups of any size at any address.
template <typename Format>
__global__ void __launch_bounds__(kBlockThreads) fp_dequantize_any(const OPFORGE_GRID_CONSTANT FpDequantizeCall call) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
    if (at >= call.groups.count * call.groups.elements) return;
    const int64_t group = at / call.groups.elements;
    const uint8_t* const row =
        call.indexes ? row_of(call, group / call.block, group % call.block) : call.rows + group * call.groups.row();
    float value = NAN;
    if (row != nullptr) {
        const int64_t bit = (at - group * call.groups.elements) * Format::kBits;
        uint32_t code = row[bit / 8];
        if (bit % 8 + Format::kBits > 8) code |= static_cast<uint32_t>(row[bit / 8 + 1]) << 8;
        uint32_t scale = 0;
        for (int byte = 0; byte < FpGroups::kScaleBytes; ++byte) {
            scale |= static_cast<uint32_t>(row[call.groups.bytes(call.groups.elements) + byte]) << 8 * byte;
        }
        value = Format::number(code >> bit % 8) * of_bits(scale);
    }
    if (call.dtype == DType::Float32) {
        static_cast<float*>(call.output)[at] = value;
    } else if (call.dtype == DType::BFloat16) {
        static_cast<BFloat16*>(call.output)[at] = from_float<BFloat16>(value);
    } else {
        static_cast<Float16*>(call.output)[at] = from_float<Float16>(value);
    }
}

template <typename Format>
const char* dequantize_rows(const FpDequantizeCall& call) {
    constexpr int kCodes = FpWords<Format>::kCodes;
    const int64_t each = call.groups.elements, total = call.groups.count * each;
    const bool whole =
        each % kCodes == 0 && total / kCodes <= 0x7fffffff && is_aligned(call.rows, 4) && is_aligned(call.output, 16);
    const int64_t in_block = kBlockThreads * (whole ? kCodes * kRounds<Format> : 1);
    const int64_t blocks = (total + in_block - 1) / in_block;
    if (blocks > 0x7fffffff) return "it has more elements than a launch can take";
    const auto stream = static_cast<cudaStream_t>(call.executor.stream);
    const auto grid = static_cast<unsigned>(blocks);
    const auto count = static_cast<uint32_t>(whole ? total / kCodes : 0);
    const Divisor vectors(static_cast<uint32_t>(whole ? each / kCodes : 1));
    const Divisor groups(static_cast<uint32_t>(whole ? call.block : 1));
    if (!whole) {
        fp_dequantize_any<Format><<<grid, kBlockThreads, 0, stream>>>(call);
    } else if (call.dtype == DType::Float32) {
        fp_dequantize<Format, float><<<grid, kBlockThreads, 0, stream>>>(call, vectors, groups, count);
    } else if (call.dtype == DType::BFloat16) {
        fp_dequantize<Format, BFloat16><<<grid, kBlockThreads, 0, stream>>>(call, vectors, groups, count);
    } else {
        fp_dequantize<Format, Float16><<<grid, kBlockThreads, 0, stream>>>(call, vectors, groups, count);
    }
    return launch_problem();
}

}  // namespace
}  // namespace opforge::cuda

namespace opforge {

const char* launch_fp_dequantize(const FpDequantizeCall& call) {
    const char* problem = nullptr;
    with_format(call.groups, [&](auto format) { problem = cuda::dequantize_rows<decltype(format)>(call); });
    return problem;
}

}  // namespace opforge

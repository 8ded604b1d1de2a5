#include "../cuda/divisor.h"
#include "../cuda/group_codes.h"
#include "integer_codes.h"

namespace opforge::cuda {
namespace {

// Eight codes as stored in memory. A byte in the low bits of 2^23 is already a float: a GPU converts integers at an
// eighth of the speed of an addition.
template <int kBits>
struct Codes {
    uint2 words;

    __device__ static Codes load(const uint8_t* from) {
        if constexpr (kBits == 8) {
            return {*reinterpret_cast<const uint2*>(from)};
        } else {
            return {{*reinterpret_cast<const uint32_t*>(from), 0}};
        }
    }
    __device__ void get(float (&x)[8]) const {
        if constexpr (kBits == 8) {
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const uint32_t from_zero = (k < 4 ? words.x : words.y) ^ 0x80808080u;
                x[k] = of_bits(byte_in(from_zero, k % 4, 0x4b000000u)) - (0x1p23f + 128.0f);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 8; k += 2) {
                const uint32_t pair = byte_in(words.x ^ 0x88888888u, k / 2, 0x4b000000u);
                x[k] = of_bits(pair & 0xff0000f0u) * 0x1p-4f - (0x1p19f + 8.0f);  // exact
                x[k + 1] = of_bits(pair & 0xff00000fu) - (0x1p23f + 8.0f);
            }
        }
    }
};

// Values that are sums over quantized tensors.
struct Sums {
    using Element = float;
    using Held = Vector<float, 8>;
    static constexpr int kHeld = 2;                                        // few, since the sums need registers
    static constexpr int kResident = 1;                                    // blocks per multiprocessor
    static constexpr bool kSpecialised = false, kCanBeStochastic = false;  // the sums take most of the time

    ReduceCall call;

    // A whole vector is always within one input group.
    __device__ Held load(int64_t first, uint32_t within) const {
        float total[8] = {};
        const int64_t at = first + within;
        const int64_t group = at / call.input_elements;
        const int64_t bytes = call.groups.bytes(call.input_groups * call.input_elements);
        const uint8_t* from = call.input + call.groups.bytes(at);
#pragma unroll 2
        for (int64_t tensor = 0; tensor < call.tensors; ++tensor, from += bytes) {
            const GroupParams params(call.input_params, tensor * call.input_groups + group, call.groups.symmetric);
            float codes[8];
            if (call.groups.bits == 8) {
                Codes<8>::load(from).get(codes);
            } else {
                Codes<4>::load(from).get(codes);
            }
#pragma unroll
            for (int k = 0; k < 8; ++k) total[k] += params.value(codes[k]);
        }
        Held out;
#pragma unroll
        for (int k = 0; k < 8; ++k) out.words[k] = to_bits(total[k]);
        return out;
    }
    __device__ float value(int64_t at) const { return call.sum(at); }
};

constexpr int kRounds = 4;  // vectors of eight codes per thread

// For groups whose size is a multiple of eight, at aligned addresses, with fewer than 2^31 vectors of eight.
template <int kBits>
__global__ void __launch_bounds__(kBlockThreads)
    dequantize(const OPFORGE_GRID_CONSTANT DequantizeCall call, const OPFORGE_GRID_CONSTANT Divisor eights) {
    const bool symmetric = call.groups.symmetric;
    const auto total = static_cast<uint32_t>(call.groups.count * call.groups.elements / 8);
    const uint32_t first = blockIdx.x * (kRounds * kBlockThreads) + threadIdx.x;
    Codes<kBits> codes[kRounds];
    GroupParams params[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {  // threads without a vector read the last one
        const uint32_t at = first + i * kBlockThreads < total ? first + i * kBlockThreads : total - 1;
        codes[i] = Codes<kBits>::load(call.codes + static_cast<int64_t>(at) * kBits);
        params[i] = GroupParams(call.params, eights.divide(at), symmetric);
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
        const uint32_t at = first + i * kBlockThreads;
        if (at >= total) return;
        float x[8];
        codes[i].get(x);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = params[i].value(x[k]);
        if (call.dtype == DType::Float32) {
            auto* to = static_cast<float4*>(call.output) + 2 * static_cast<int64_t>(at);
            to[0] = make_float4(x[0], x[1], x[2], x[3]);
            to[1] = make_float4(x[4], x[5], x[6], x[7]);
        } else if (call.dtype == DType::BFloat16) {
            static_cast<uint4*>(call.output)[at] =
                make_uint4(word_of<BFloat16>(x[0], x[1]), word_of<BFloat16>(x[2], x[3]), word_of<BFloat16>(x[4], x[5]),
                           word_of<BFloat16>(x[6], x[7]));
        } else {
            static_cast<uint4*>(call.output)[at] =
                make_uint4(word_of<Float16>(x[0], x[1]), word_of<Float16>(x[2], x[3]), word_of<Float16>(x[4], x[5]),
                           word_of<Float16>(x[6], x[7]));
        }
    }
}

// For groups of any size at any address.
__global__ void __launch_bounds__(kBlockThreads) dequantize_any(const OPFORGE_GRID_CONSTANT DequantizeCall call) {
    const Groups& groups = call.groups;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
    if (at >= groups.count * groups.elements) return;
    const int64_t group = at / groups.elements;
    const uint8_t* codes = call.codes + groups.bytes(group * groups.elements);
    const float value = GroupParams(call.params, group, groups.symmetric)
                            .value(code_at(codes, at - group * groups.elements, groups.bits));
    if (call.dtype == DType::Float32) {
        static_cast<float*>(call.output)[at] = value;
    } else if (call.dtype == DType::BFloat16) {
        static_cast<BFloat16*>(call.output)[at] = from_float<BFloat16>(value);
    } else {
        static_cast<Float16*>(call.output)[at] = from_float<Float16>(value);
    }
}

}  // namespace
}  // namespace opforge::cuda

namespace opforge {

const char* launch_reduce(const ReduceCall& call) {
    const bool whole = call.groups.elements % 8 == 0 && call.input_elements % 8 == 0 &&
                       cuda::is_aligned(call.input, 8) && cuda::is_aligned(call.codes, 8);
    const cuda::IntegerCodes codes{call.groups, call.codes, call.params, {}, false, PhiloxKeys(0), 0};
    return cuda::launch(cuda::Sums{call}, cuda::Sums{call}, codes, whole, call.executor);
}

const char* launch_dequantize(const DequantizeCall& call) {
    const int64_t each = call.groups.elements;
    const int64_t total = call.groups.count * each;
    const bool whole = each % 8 == 0 && total / 8 <= 0x7fffffff && cuda::is_aligned(call.codes, 8) &&
                       cuda::is_aligned(call.output, 16);
    const int64_t in_block = cuda::kBlockThreads * (whole ? 8 * cuda::kRounds : 1);
    const int64_t blocks = (total + in_block - 1) / in_block;
    if (blocks > 0x7fffffff) return "it has more elements than a launch can take";
    const auto stream = static_cast<cudaStream_t>(call.executor.stream);
    const auto grid = static_cast<unsigned>(blocks);
    const cuda::Divisor eights(whole ? static_cast<uint32_t>(each / 8) : 1);
    if (whole && call.groups.bits == 8) {
        cuda::dequantize<8><<<grid, cuda::kBlockThreads, 0, stream>>>(call, eights);
    } else if (whole) {
        cuda::dequantize<4><<<grid, cuda::kBlockThreads, 0, stream>>>(call, eights);
    } else {
        cuda::dequantize_any<<<grid, cuda::kBlockThreads, 0, stream>>>(call);
    }
    return cuda::launch_problem();
}

}  // namespace opforge

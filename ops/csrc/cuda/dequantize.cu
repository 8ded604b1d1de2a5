#include "group_codes.h"

namespace opforge::cuda {
namespace {

// The sums over quantized tensors.
struct Sums {
    static constexpr int kCount = 8;
    static constexpr int kMostHeld = 2;
    static constexpr int kResident = 1;  // blocks on a multiprocessor
    static constexpr bool kCanBeStochastic = false;
    static constexpr bool kMayBeSmall = false;
    struct Held {
        float x[kCount];
    };

    ReduceCall call;

    // Whole vectors lie in one input group.
    __device__ Held load(int64_t at) const {
        Held out{};
        const int64_t group = at / call.input_elements;
        const int64_t bytes = call.groups.bytes(call.input_groups * call.input_elements);
        const uint8_t* codes = call.input + call.groups.bytes(at);
#pragma unroll 2
        for (int64_t tensor = 0; tensor < call.tensors; ++tensor, codes += bytes) {
            const GroupParams params(call.input_params, tensor * call.input_groups + group, call.groups.symmetric);
            uint2 words{};
            if (call.groups.bits == 8) {
                words = *reinterpret_cast<const uint2*>(codes);
            } else {
                words.x = *reinterpret_cast<const uint32_t*>(codes);
            }
            const auto* bytes_of = reinterpret_cast<const uint8_t*>(&words);
#pragma unroll
            for (int k = 0; k < kCount; ++k) out.x[k] += params.value(code_at(bytes_of, k, call.groups.bits));
        }
        return out;
    }
    __device__ float one(int64_t at) const { return call.sum(at); }
    __device__ static void decode(const Held& held, float (&x)[kCount]) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) x[k] = held.x[k];
    }
};

// Eight codes a thread. `kWhole`: groups are whole eights at aligned addresses.
template <bool kWhole>
__global__ void __launch_bounds__(kBlockThreads) dequantize(const OPFORGE_GRID_CONSTANT DequantizeCall call) {
    const Groups& groups = call.groups;
    const int64_t total = groups.count * groups.elements;
    const int64_t at = (static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x) * 8;
    if (at >= total) return;
    float x[8];
    if constexpr (kWhole) {
        // A division of 64 bits costs more than all the rest.
        const int64_t group = total / 8 <= 0xffffffff
                                  ? static_cast<uint32_t>(at / 8) / static_cast<uint32_t>(groups.elements / 8)
                                  : at / groups.elements;
        const GroupParams params(call.params, group, groups.symmetric);
        uint2 words{};
        if (groups.bits == 8) {
            words = *reinterpret_cast<const uint2*>(call.codes + at);
        } else {
            words.x = *reinterpret_cast<const uint32_t*>(call.codes + at / 2);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const auto* bytes = reinterpret_cast<const uint8_t*>(&words);
            x[k] = params.value(code_at(bytes, k, groups.bits));
        }
        if (call.dtype == DType::Float32) {
            auto* to = reinterpret_cast<float4*>(static_cast<float*>(call.output) + at);
            to[0] = make_float4(x[0], x[1], x[2], x[3]);
            to[1] = make_float4(x[4], x[5], x[6], x[7]);
            return;
        }
        uint32_t halves[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            halves[k] =
                call.dtype == DType::BFloat16 ? from_float<BFloat16>(x[k]).bits : from_float<Float16>(x[k]).bits;
        }
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(call.output) + at) =
            make_uint4(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16, halves[4] | halves[5] << 16,
                       halves[6] | halves[7] << 16);
    } else {
        for (int64_t i = at; i < total && i < at + 8; ++i) {
            const int64_t group = i / groups.elements;
            const uint8_t* codes = call.codes + groups.bytes(group * groups.elements);
            const float value = GroupParams(call.params, group, groups.symmetric)
                                    .value(code_at(codes, i - group * groups.elements, groups.bits));
            if (call.dtype == DType::Float32) {
                static_cast<float*>(call.output)[i] = value;
            } else if (call.dtype == DType::BFloat16) {
                static_cast<BFloat16*>(call.output)[i] = from_float<BFloat16>(value);
            } else {
                static_cast<Float16*>(call.output)[i] = from_float<Float16>(value);
            }
        }
    }
}

}  // namespace
}  // namespace opforge::cuda

namespace opforge {

const char* launch_reduce(const ReduceCall& call) {
    const bool whole = call.groups.elements % 8 == 0 && call.input_elements % 8 == 0 &&
                       cuda::is_aligned(call.input, 8) && cuda::is_aligned(call.codes, 8);
    const cuda::Output out{call.groups, call.codes, call.params, {}, false, 0, 0};
    return cuda::launch(cuda::Sums{call}, out, whole, call.place);
}

const char* launch_dequantize(const DequantizeCall& call) {
    const int64_t total = call.groups.count * call.groups.elements;
    const int64_t blocks = (total + 8 * cuda::kBlockThreads - 1) / (8 * cuda::kBlockThreads);
    if (blocks > 0x7fffffff) return "it has more elements than a launch can take";
    const bool whole =
        call.groups.elements % 8 == 0 && cuda::is_aligned(call.codes, 8) && cuda::is_aligned(call.output, 16);
    const auto stream = static_cast<cudaStream_t>(call.place.stream);
    const auto grid = static_cast<unsigned>(blocks);
    if (whole) {
        cuda::dequantize<true><<<grid, cuda::kBlockThreads, 0, stream>>>(call);
    } else {
        cuda::dequantize<false><<<grid, cuda::kBlockThreads, 0, stream>>>(call);
    }
    return cuda::launch_problem();
}

}  // namespace opforge

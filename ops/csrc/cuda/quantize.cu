#include "group_codes.h"

namespace opforge::cuda {
namespace {

// A vector of values of one dtype, 16 bytes, as it lies in memory.
template <typename T>
struct Values {
    static constexpr int kCount = 16 / sizeof(T);
    static constexpr int kMostHeld = 4;
    static constexpr int kResident = 2;  // blocks on a multiprocessor
    static constexpr bool kCanBeStochastic = true;
    static constexpr bool kMayBeSmall = true;  // worth a kernel of fewer registers
    struct Held {
        uint4 words;
    };

    const T* input;

    __device__ Held load(int64_t at) const { return {*reinterpret_cast<const uint4*>(input + at)}; }
    __device__ float one(int64_t at) const { return to_float(input[at]); }
    __device__ static void decode(const Held& held, float (&x)[kCount]) {
        const uint32_t words[] = {held.words.x, held.words.y, held.words.z, held.words.w};
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
            if constexpr (sizeof(T) == 4) {
                x[k] = of_bits(words[k]);
            } else {
                x[k] = to_float(T{static_cast<uint16_t>(words[k / 2] >> (k % 2 * 16))});
            }
        }
    }
};

template <typename T>
const char* quantize_values(const QuantizeCall& call) {
    const Output out{call.groups, call.codes, call.params, call.swizzle, call.stochastic, call.seed, call.offset};
    const bool whole =
        call.groups.elements % Values<T>::kCount == 0 && is_aligned(call.input, 16) && is_aligned(call.codes, 8);
    return launch(Values<T>{static_cast<const T*>(call.input)}, out, whole, call.place);
}

}  // namespace
}  // namespace opforge::cuda

namespace opforge {

const char* launch_quantize(const QuantizeCall& call) {
    if (call.dtype == DType::Float32) return cuda::quantize_values<float>(call);
    if (call.dtype == DType::BFloat16) return cuda::quantize_values<BFloat16>(call);
    return cuda::quantize_values<Float16>(call);
}

}  // namespace opforge

#include "group_codes.h"

namespace opforge::cuda {
namespace {

// Reads values of one dtype, 16 bytes at a time.
template <typename T>
struct Values {
    using Element = T;
    using Held = Vector<T, 4>;
    static constexpr int kHeld = 4;
    static constexpr int kResident = 2;  // blocks per multiprocessor
    static constexpr bool kSpecialised = true, kCanBeStochastic = true;

    const T* input;

    // Reads from the group whose first element is number `first` of all elements.
    __device__ Held load(int64_t first, uint32_t at) const {
        const uint4 words = *reinterpret_cast<const uint4*>(input + first + at);
        return {words.x, words.y, words.z, words.w};
    }
};

// Reads values of any dtype, one at a time.
struct AnyValues {
    const void* input;
    DType dtype;

    __device__ float value(int64_t at) const {
        if (dtype == DType::Float32) return static_cast<const float*>(input)[at];
        if (dtype == DType::BFloat16) return to_float(static_cast<const BFloat16*>(input)[at]);
        return to_float(static_cast<const Float16*>(input)[at]);
    }
};

template <typename T>
const char* quantize_values(const QuantizeCall& call) {
    const Output out{call.groups,           call.codes, call.params, call.swizzle, call.stochastic,
                     PhiloxKeys(call.seed), call.offset};
    const bool whole =
        call.groups.elements % Values<T>::Held::kCount == 0 && is_aligned(call.input, 16) && is_aligned(call.codes, 8);
    return launch(Values<T>{static_cast<const T*>(call.input)}, AnyValues{call.input, call.dtype}, out, whole,
                  call.executor);
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

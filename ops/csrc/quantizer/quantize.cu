#include "../cuda/group_codes.h"
#include "integer_codes.h"

namespace opforge::cuda {
namespace {

template <typename T>
const char* quantize_values(const QuantizeCall& call) {
    using Source = Values<T, 4>;
    const IntegerCodes codes{call.groups,           call.codes, call.params, call.swizzle, call.stochastic,
                             PhiloxKeys(call.seed), call.offset};
    const bool whole =
        call.groups.elements % Source::Held::kCount == 0 && is_aligned(call.input, 16) && is_aligned(call.codes, 8);
    return launch(Source{static_cast<const T*>(call.input)}, AnyValues{call.input, call.dtype}, codes, whole,
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

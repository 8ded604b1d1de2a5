// The operators of torch's C++ API.
#pragma once
#include "numbers.h"

namespace at {
inline namespace opforge_facade {

template <int>
struct ops {
    template <class R, class... A>
    static R call(const char* name, const char* overload, const A&... arguments) {
        return facade::call<R>(name, overload, arguments...);
    }
    // For an operator that changes a tensor and returns it.
    template <size_t K = 1, class... A>
    static void in_place(const char* name, const char* overload, const A&... arguments) {
        facade::call_in_place<K>(name, overload, arguments...);
    }
#include "near_scalars.h"
#include "scalars.h"
};

#include "generated/functions.inc"

// Those that torch writes by hand. The first four are of one dimension, which would be the bool of another overload.
OPFORGE_IF_USED
inline Tensor var(const Tensor& self, int dim) { return self.var(dim); }
OPFORGE_IF_USED
inline Tensor std(const Tensor& self, int dim) { return self.std(dim); }
OPFORGE_IF_USED
inline std::tuple<Tensor, Tensor> var_mean(const Tensor& self, int dim) {
    return var_mean(self, OptionalIntArrayRef(IntArrayRef(int64_t{dim})));
}
OPFORGE_IF_USED
inline std::tuple<Tensor, Tensor> std_mean(const Tensor& self, int dim) {
    return std_mean(self, OptionalIntArrayRef(IntArrayRef(int64_t{dim})));
}
inline int64_t numel(const Tensor& tensor) { return tensor.numel(); }
inline int64_t size(const Tensor& tensor, int64_t dim) { return tensor.size(dim); }
inline int64_t stride(const Tensor& tensor, int64_t dim) { return tensor.stride(dim); }
inline bool is_complex(const Tensor& tensor) { return tensor.is_complex(); }
inline bool is_floating_point(const Tensor& tensor) { return tensor.is_floating_point(); }
OPFORGE_IF_USED
inline bool is_signed(const Tensor& tensor) { return tensor.is_signed(); }
OPFORGE_IF_USED
inline bool is_inference(const Tensor& tensor) { return tensor.is_inference(); }
OPFORGE_IF_USED
inline bool is_conj(const Tensor& tensor) { return tensor.is_conj(); }
OPFORGE_IF_USED
inline bool is_neg(const Tensor& tensor) { return tensor.is_neg(); }
OPFORGE_IF_USED
inline Tensor conj(const Tensor& tensor) { return tensor.conj(); }

}  // namespace opforge_facade
}  // namespace at

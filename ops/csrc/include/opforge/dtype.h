#pragma once

#include <cstdint>

namespace opforge {

// Element types that the kernels read and write. Arithmetic is always in float.
enum class DType : int { Float32, BFloat16, Float16 };

// For storage only: the bits of one element.
struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

// A type as a value, so that a generic lambda can be called with a type.
template <typename T>
struct Type {
    using type = T;
};

// Calls visit(Type<T>{}) for the element type that `dtype` names.
template <typename Visit>
auto with_dtype(DType dtype, Visit visit) {
    switch (dtype) {
        case DType::BFloat16:
            return visit(Type<BFloat16>{});
        case DType::Float16:
            return visit(Type<Float16>{});
        default:
            return visit(Type<float>{});
    }
}

// The same for optimizer states, which are never float16: squares of small gradients underflow in it.
template <typename Visit>
auto with_state_dtype(DType dtype, Visit visit) {
    return dtype == DType::BFloat16 ? visit(Type<BFloat16>{}) : visit(Type<float>{});
}

}  // namespace opforge

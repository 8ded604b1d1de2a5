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
#include "scalars.h"
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wreturn-type"
#include "generated/functions.inc"
#pragma GCC diagnostic pop

}  // namespace opforge_facade
}  // namespace at

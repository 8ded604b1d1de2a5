// AT_DISPATCH_*: code for each dtype, chosen at run time.
#pragma once
#include "checks.h"
#include "tensor.h"

namespace at {
inline namespace opforge_facade {
namespace facade {
inline ScalarType scalar_type(ScalarType t) { return t; }
inline ScalarType scalar_type(const DeprecatedTypeProperties& t) { return t.scalarType(); }
}  // namespace facade
}  // namespace opforge_facade
}  // namespace at

#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                         \
    [&] {                                                                                           \
        const auto& the_type = TYPE;                                                                \
        constexpr const char* at_dispatch_name = NAME;                                              \
        const at::ScalarType _st = ::at::facade::scalar_type(the_type);                             \
        switch (_st) {                                                                              \
            __VA_ARGS__                                                                             \
            default:                                                                                \
                ::c10::facade::fail<::c10::NotImplementedError>(::c10::facade::text(                \
                    '"', at_dispatch_name, "\" not implemented for '", ::c10::toString(_st), "'")); \
        }                                                                                           \
    }()
#define AT_PRIVATE_CASE_TYPE_USING_HINT(enum_type, HINT, ...)                     \
    case enum_type: {                                                             \
        using HINT [[maybe_unused]] = c10::impl::ScalarTypeToCPPTypeT<enum_type>; \
        return __VA_ARGS__();                                                     \
    }
#define AT_DISPATCH_CASE(enum_type, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(enum_type, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_INDEX_TYPES(TYPE, NAME, ...)                                                  \
    AT_DISPATCH_SWITCH(TYPE, NAME,                                                                \
                       AT_PRIVATE_CASE_TYPE_USING_HINT(at::ScalarType::Int, index_t, __VA_ARGS__) \
                           AT_PRIVATE_CASE_TYPE_USING_HINT(at::ScalarType::Long, index_t, __VA_ARGS__))
#include "generated/dispatch.inc"

// TORCH_CHECK and its family.
#pragma once
#include <torch/headeronly/macros/Macros.h>
#include <torch/headeronly/util/Exception.h>

#include "errors.h"

#define OPFORGE_CHECK_TEXT(cond, ...) \
    ::c10::facade::check_text(                                                                      \
      "Expected " #cond " to be true, but got false.  (Could this error message be improved?  "   \
      "If so, please report an enhancement request to PyTorch.)",                                 \
      ##__VA_ARGS__)
// An if statement, as torch's: sources do leave out the semicolon after it.
#define OPFORGE_CHECK(type, cond, ...)                                      \
    if (C10_UNLIKELY_OR_CONST(!(cond))) {                                   \
        ::c10::facade::fail<type>(OPFORGE_CHECK_TEXT(cond, ##__VA_ARGS__)); \
    }
#define TORCH_CHECK(cond, ...) OPFORGE_CHECK(::c10::Error, cond, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(cond, ...) OPFORGE_CHECK(::c10::IndexError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(cond, ...) OPFORGE_CHECK(::c10::ValueError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(cond, ...) OPFORGE_CHECK(::c10::TypeError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_LINALG(cond, ...) OPFORGE_CHECK(::c10::LinAlgError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(cond, ...) OPFORGE_CHECK(::c10::NotImplementedError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_WITH(type, cond, ...) OPFORGE_CHECK(::c10::type, cond, ##__VA_ARGS__)
#define TORCH_CHECK_WITH_MSG(type, cond, kind, ...) OPFORGE_CHECK(::c10::type, cond, ##__VA_ARGS__)
#define TORCH_CHECK_ARG(cond, n, ...) TORCH_CHECK(cond, "invalid argument ", n, ": ", ##__VA_ARGS__)
#define TORCH_CHECK_IF_NOT_ON_CUDA(cond, ...) TORCH_CHECK(cond, ##__VA_ARGS__)
#define OPFORGE_STRING_(x) #x
#define OPFORGE_STRING(x) OPFORGE_STRING_(x)
#define TORCH_INTERNAL_ASSERT(cond, ...)                                                               \
    if (C10_UNLIKELY_OR_CONST(!(cond))) {                                                              \
        ::c10::facade::fail(::c10::facade::text(                                                     \
        #cond " INTERNAL ASSERT FAILED at \"" __FILE__ "\":" OPFORGE_STRING(__LINE__) ", please report a bug " \
        "to PyTorch. ",                                                                          \
        ##__VA_ARGS__)); \
    }
#ifdef NDEBUG
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...) \
    while (false) TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#define TORCH_CHECK_DEBUG(...) \
    while (false) TORCH_CHECK(__VA_ARGS__)
#else
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...) TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#define TORCH_CHECK_DEBUG(...) TORCH_CHECK(__VA_ARGS__)
#endif
#define OPFORGE_CHECK_OP(a, b, op)                                                                                   \
    if (C10_UNLIKELY_OR_CONST(!((a)op(b)))) {                                                                        \
        ::c10::facade::fail(::c10::facade::text("Check failed: " #a " " #op " " #b " (", (a), " vs. ", (b), "). ")); \
    }
#define TORCH_CHECK_EQ(a, b) OPFORGE_CHECK_OP(a, b, ==)
#define TORCH_CHECK_NE(a, b) OPFORGE_CHECK_OP(a, b, !=)
#define TORCH_CHECK_LE(a, b) OPFORGE_CHECK_OP(a, b, <=)
#define TORCH_CHECK_LT(a, b) OPFORGE_CHECK_OP(a, b, <)
#define TORCH_CHECK_GE(a, b) OPFORGE_CHECK_OP(a, b, >=)
#define TORCH_CHECK_GT(a, b) OPFORGE_CHECK_OP(a, b, >)
#define C10_THROW_ERROR(type, text) throw ::c10::type(text)
// Deprecated names.
#define AT_ASSERTM(cond, ...) TORCH_INTERNAL_ASSERT(cond, ##__VA_ARGS__)
#define AT_ASSERT(cond, ...) TORCH_INTERNAL_ASSERT(cond, ##__VA_ARGS__)
#define AT_CHECK(...) TORCH_CHECK(__VA_ARGS__)
#define AT_INDEX_ERROR(...) ::c10::facade::fail<::c10::IndexError>(::c10::facade::text(__VA_ARGS__))
#define AT_ERROR(...) ::c10::facade::fail(::c10::facade::text(__VA_ARGS__))
#define AT_WARN(...) TORCH_WARN(__VA_ARGS__)

#define TORCH_WARN(...) \
    ::c10::facade::warn(__func__, __FILE__, static_cast<uint32_t>(__LINE__), ::c10::facade::text(__VA_ARGS__))
#define TORCH_WARN_ONCE(...)                                              \
    do {                                                                  \
        static const bool opforge_once = (TORCH_WARN(__VA_ARGS__), true); \
        static_cast<void>(opforge_once);                                  \
    } while (false)
#define TORCH_WARN_DEPRECATION(...) TORCH_WARN(__VA_ARGS__)
// torch calls what a program has set for it, which none does, or prints the text if a variable asks for it.
#define C10_LOG_API_USAGE_ONCE(...)                                          \
    [[maybe_unused]] static const bool C10_ANONYMOUS_VARIABLE(opforge_log) = \
        (static_cast<void>(::std::string(__VA_ARGS__)), true);

namespace c10 {
inline namespace opforge_facade {
namespace facade {
inline void warn(const char* function, const char* file, uint32_t line, const std::string& text) {
    aoti_torch_warn(function, file, line, text.c_str());
}
}  // namespace facade
}  // namespace opforge_facade
}  // namespace c10

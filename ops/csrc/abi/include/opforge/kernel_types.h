// The types of kernels and of schemas as text, so that the loader can refuse a kernel that does not fit its schema.
// torch sees a boxed kernel as a function of any types, and would pass it whatever the schema says.
//
// A list of types is "Tensor|int[]?|=|Tensor|": those of the arguments, "=", those of what is returned.
#pragma once

#include <torch/headeronly/core/Layout.h>
#include <torch/headeronly/core/MemoryFormat.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>

#include <opforge/kernel.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace opforge {

// What the compiler prints for T is in this function's name.
template <typename T>
const char* name_with() {
    return __PRETTY_FUNCTION__;
}

// Appends the schema's type that torch's boxing converts from or to T. For any other type: "<", `name_with`, ">".
template <typename T>
struct TypeText {
    static void append_to(std::string& text) {
        if constexpr (std::is_same_v<T, bool>) {
            append(text, "bool");
        } else if constexpr (std::is_integral_v<T> && sizeof(T) == sizeof(int64_t)) {
            append(text, "int");
        } else if constexpr (std::is_same_v<T, double>) {
            append(text, "float");
        } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>) {
            append(text, "str");
        } else if constexpr (std::is_same_v<T, torch::stable::Tensor>) {
            append(text, "Tensor");
        } else if constexpr (std::is_same_v<T, torch::stable::Device>) {
            append(text, "Device");
        } else if constexpr (std::is_same_v<T, torch::headeronly::ScalarType>) {
            append(text, "ScalarType");
        } else if constexpr (std::is_same_v<T, torch::headeronly::Layout>) {
            append(text, "Layout");
        } else if constexpr (std::is_same_v<T, torch::headeronly::MemoryFormat>) {
            append(text, "MemoryFormat");
#if defined(TORCH_VERSION_2_13_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0
        } else if constexpr (std::is_same_v<T, torch::stable::Generator>) {
            append(text, "Generator");
#endif
        } else {
            append(text, "<");
            append(text, name_with<T>());
            append(text, ">");
        }
    }
};

template <typename T>
struct TypeText<std::optional<T>> {
    static void append_to(std::string& text) {
        TypeText<T>::append_to(text);
        append(text, "?");
    }
};

template <typename T>
struct TypeText<std::vector<T>> {
    static void append_to(std::string& text) {
        TypeText<T>::append_to(text);
        append(text, "[]");
    }
};

template <typename T>
struct TypeText<torch::headeronly::HeaderOnlyArrayRef<T>> : TypeText<std::vector<T>> {};

template <typename... T>
struct TypeList {
    static void append_to(std::string& text) {
        ((TypeText<std::remove_cv_t<std::remove_reference_t<T>>>::append_to(text), append(text, "|")), ...);
    }
};

template <typename Result>
struct ReturnTypes : TypeList<Result> {};
template <>
struct ReturnTypes<void> : TypeList<> {};
template <typename... T>
struct ReturnTypes<std::tuple<T...>> : TypeList<T...> {};

template <typename Function>
struct FunctionTypes;
template <typename Result, typename... Arguments>
struct FunctionTypes<Result(Arguments...)> {
    static void append_to(std::string& text) {
        TypeList<Arguments...>::append_to(text);
        append(text, "=|");
        ReturnTypes<Result>::append_to(text);
    }
};

}  // namespace opforge

// An exception of a kernel gets the paths of files, and does not leave a library that contains a C++ runtime of its
// own: see opforge/exceptions.h. The types of the function go with it.
#undef TORCH_BOX
#define TORCH_BOX(function)                                                                                            \
    (::opforge::Kernel{&::opforge::OPFORGE_CAUGHT<&torch::stable::detail::boxer<                                       \
                           std::remove_pointer_t<std::remove_reference_t<decltype(function)>>, (function)>::boxed_fn>, \
                       &::opforge::FunctionTypes<typename torch::headeronly::guts::infer_function_traits_t<            \
                           std::remove_pointer_t<std::remove_reference_t<decltype(function)>>>::func_type>::append_to, \
                       __FILE__ ":" C10_STRINGIZE(__LINE__), #function})

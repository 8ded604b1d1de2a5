// Calls of the dispatcher: how C++ values become the stable ABI's 64 bits, and back.
#pragma once
#include "tensor.h"

namespace at {
inline namespace opforge_facade {
namespace facade {

template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class T>
struct is_list : std::false_type {};
template <class T, class A>
struct is_list<std::vector<T, A>> : std::true_type {};
template <class T>
struct is_list<ArrayRef<T>> : std::true_type {};
template <class T>
struct is_list<c10::List<T>> : std::true_type {};
template <class T, size_t N>
struct is_list<std::array<T, N>> : std::true_type {};
template <class T>
struct is_tuple : std::false_type {};
template <class... T>
struct is_tuple<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct is_tuple<std::pair<A, B>> : std::true_type {};

template <class T>
StableIValue bits(const T& value) {
    static_assert(sizeof(T) <= sizeof(StableIValue) && std::is_trivially_copyable_v<T>);
    StableIValue r = 0;
    std::memcpy(&r, &value, sizeof(T));
    return r;
}
template <class T>
T from_bits(StableIValue value) {
    T r;
    std::memcpy(&r, &value, sizeof(T));
    return r;
}

// Returns a value that the dispatcher takes over.
template <class T>
StableIValue put(const T& v) {
    if constexpr (std::is_same_v<T, Tensor>) {
        AtenTensorHandle h;
        if (v.handle_or_null()) {
            check(aoti_torch_new_tensor_handle(v.handle_or_null(), &h), "a tensor");
        } else {
            check(aoti_torch_new_uninitialized_tensor(&h), "an undefined tensor");
        }
        return bits(h);
    } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
        // an optional that holds an undefined tensor is none, as in torch's own calls
        return v && v->defined() ? bits(new StableIValue(put(*v))) : bits(nullptr);
    } else if constexpr (std::is_same_v<T, std::optional<Generator>>) {
        if (v && v->defined()) {
            fail("an operator with a generator is not on torch's stable ABI before torch 2.13: give it none");
        }
        return bits(nullptr);
    } else if constexpr (is_optional<T>::value) {
        return v ? bits(new StableIValue(put(*v))) : bits(nullptr);
    } else if constexpr (std::is_same_v<T, OptionalIntArrayRef>) {
        return v ? bits(new StableIValue(put(*v))) : bits(nullptr);
    } else if constexpr (is_list<T>::value) {
        StableListHandle list;
        check(torch_new_list_reserve_size(v.size(), &list), "a list");
        for (const typename T::value_type& element : v) {
            check(torch_list_push_back(list, put<typename T::value_type>(element)), "a list");
        }
        return bits(list);
    } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>) {
        StringHandle string;
        check(torch_new_string_handle(v.data(), v.size(), &string), "a string");
        return bits(string);
    } else if constexpr (std::is_same_v<T, Device>) {
        return static_cast<uint64_t>(static_cast<uint32_t>(static_cast<int32_t>(v.index()))) |
               static_cast<uint64_t>(static_cast<uint32_t>(static_cast<int32_t>(v.type()))) << 32;
    } else if constexpr (std::is_same_v<T, TypeMeta>) {
        return bits(static_cast<int32_t>(v.toScalarType()));
    } else if constexpr (std::is_enum_v<T>) {
        return bits(static_cast<int32_t>(v));
    } else if constexpr (std::is_same_v<T, bool>) {
        return bits(v);
    } else if constexpr (std::is_integral_v<T> || std::is_same_v<T, SymInt>) {
        return bits(static_cast<int64_t>(v));
    } else {
        static_assert(std::is_floating_point_v<T>, "a value of this type cannot be passed on torch's stable ABI");
        return bits(static_cast<double>(v));
    }
}

// Returns the value that the dispatcher hands over, and frees what carried it.
template <class T>
T take(StableIValue v) {
    if constexpr (std::is_same_v<T, Tensor>) {
        return Tensor::adopt(from_bits<AtenTensorHandle>(v));
    } else if constexpr (is_optional<T>::value) {
        std::unique_ptr<StableIValue> inner(from_bits<StableIValue*>(v));
        return inner ? T(take<typename T::value_type>(*inner)) : std::nullopt;
    } else if constexpr (is_list<T>::value) {
        auto list = from_bits<StableListHandle>(v);
        size_t n = 0;
        check(torch_list_size(list, &n), "a list");
        std::vector<typename T::value_type> r;
        r.reserve(n);
        for (size_t i = 0; i < n; ++i) {
            StableIValue element;
            check(torch_list_get_item(list, i, &element), "a list");
            r.push_back(take<typename T::value_type>(element));
        }
        check(torch_delete_list(list), "a list");
        if constexpr (std::is_same_v<T, c10::List<typename T::value_type>>) {
            return T(std::move(r));
        } else if constexpr (std::is_same_v<T, std::vector<typename T::value_type>>) {
            return r;
        } else {
            T fixed;
            if (r.size() != fixed.size()) {
                fail(text("expected a list of ", fixed.size(), " elements, got ", r.size()));
            }
            std::copy(r.begin(), r.end(), fixed.begin());
            return fixed;
        }
    } else if constexpr (std::is_same_v<T, std::string>) {
        auto string = from_bits<StringHandle>(v);
        size_t n = 0;
        const char* p = nullptr;
        check(torch_string_length(string, &n), "a string");
        check(torch_string_c_str(string, &p), "a string");
        std::string r(p, n);
        check(torch_delete_string(string), "a string");
        return r;
    } else if constexpr (std::is_same_v<T, Device>) {
        return {static_cast<DeviceType>(static_cast<int32_t>(v >> 32)),
                static_cast<DeviceIndex>(static_cast<int32_t>(v))};
    } else if constexpr (std::is_enum_v<T>) {
        return static_cast<T>(from_bits<int32_t>(v));
    } else if constexpr (std::is_same_v<T, bool>) {
        return from_bits<bool>(v);
    } else if constexpr (std::is_same_v<T, SymInt>) {
        return from_bits<int64_t>(v);
    } else if constexpr (std::is_integral_v<T>) {
        auto i = from_bits<int64_t>(v);
        if constexpr (sizeof(T) < sizeof(int64_t)) {
            if (i < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
                i > static_cast<int64_t>(std::numeric_limits<T>::max())) {
                fail(text("the number ", i, " does not fit into the ", sizeof(T) * 8, " bits of the C++ argument"));
            }
        }
        return static_cast<T>(i);
    } else {
        static_assert(std::is_floating_point_v<T>, "a value of this type cannot be passed on torch's stable ABI");
        return static_cast<T>(from_bits<double>(v));
    }
}
template <class R, size_t... I>
R take_tuple(StableIValue* stack, std::index_sequence<I...>) {
    return R{take<std::tuple_element_t<I, R>>(stack[I])...};
}
template <class R>
constexpr size_t results() {
    if constexpr (std::is_void_v<R>) {
        return 0;
    } else if constexpr (is_tuple<R>::value) {
        return std::tuple_size_v<R>;
    } else {
        return 1;
    }
}
inline void dispatch(const char* name, const char* overload, StableIValue* stack) {
    c10::facade::Depth depth;
    check(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION), name);
}
template <class R, class... A>
R call(const char* name, const char* overload, const A&... arguments) {
    constexpr size_t n = std::max(sizeof...(A), results<R>());
    StableIValue stack[n + 1] = {put(arguments)...};
    dispatch(name, overload, stack);
    if constexpr (is_tuple<R>::value) {
        return take_tuple<R>(stack, std::make_index_sequence<std::tuple_size_v<R>>());
    } else if constexpr (!std::is_void_v<R>) {
        return take<R>(stack[0]);
    }
}
// For an operator that changes tensors and returns them: N results, which are dropped.
template <size_t N = 1, class... A>
void call_in_place(const char* name, const char* overload, const A&... arguments) {
    StableIValue stack[sizeof...(A) + 1] = {put(arguments)...};
    dispatch(name, overload, stack);
    for (size_t i = 0; i < N; ++i) {
        Tensor::adopt(from_bits<AtenTensorHandle>(stack[i]));
    }
}
}  // namespace facade
}  // namespace opforge_facade
}  // namespace at

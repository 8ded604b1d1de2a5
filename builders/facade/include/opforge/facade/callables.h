// The signature of anything that can be registered: a function, a pointer to one, a lambda.
#pragma once
#include "tensor.h"

namespace opforge_facade_detail {
template <class F, class = void>
struct Signature : Signature<decltype(&F::operator())> {};
template <class R, class... A>
struct Signature<R (*)(A...)> {
    using type = R(A...);
};
template <class R, class... A>
struct Signature<R (*)(A...) noexcept> {
    using type = R(A...);
};
template <class C, class R, class... A>
struct Signature<R (C::*)(A...)> {
    using type = R(A...);
};
template <class C, class R, class... A>
struct Signature<R (C::*)(A...) const> {
    using type = R(A...);
};
template <class C, class R, class... A>
struct Signature<R (C::*)(A...) noexcept> {
    using type = R(A...);
};
template <class C, class R, class... A>
struct Signature<R (C::*)(A...) const noexcept> {
    using type = R(A...);
};
template <class F>
using signature_t = typename Signature<std::decay_t<F>>::type;
template <class T>
using bare_t = std::remove_cv_t<std::remove_reference_t<T>>;

// What owns an argument's contents while a function runs: of a view what it shows.
template <class T>
struct Owned {
    using type = T;
};
template <class T>
struct Owned<c10::ArrayRef<T>> {
    using type = std::vector<T>;
};
template <class T>
struct Owned<std::optional<c10::ArrayRef<T>>> {
    using type = std::optional<std::vector<T>>;
};
template <class T>
struct Owned<c10::OptionalArrayRef<T>> {
    using type = std::optional<std::vector<T>>;
};
template <>
struct Owned<std::string_view> {
    using type = std::string;
};
template <>
struct Owned<std::optional<std::string_view>> {
    using type = std::optional<std::string>;
};
template <class T>
using owned_t = typename Owned<T>::type;

template <class K, class = void>
struct HandsItself : std::false_type {};
template <class K>
struct HandsItself<K, std::void_t<decltype(K::is_loaded)>> : std::true_type {};
// Hands a kept argument to a parameter of type A: an lvalue to a reference, else it is moved.
template <class A, class K>
decltype(auto) hand(K& kept) {
    if constexpr (HandsItself<K>::value) {
        return kept.template hand<A>();
    } else if constexpr (std::is_lvalue_reference_v<A> || !std::is_same_v<bare_t<A>, K>) {
        return (kept);
    } else {
        return std::move(kept);
    }
}
}  // namespace opforge_facade_detail

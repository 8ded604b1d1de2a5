// Conversions that a source writes itself: specializations of pybind11's type_caster, with the parts that they are
// written with.
#pragma once
#include "objects.h"

namespace pybind11 {
inline namespace opforge_facade {
// A source writes its casters in pybind11::detail, where any other name of the facade's would hide a class of the
// source's: so only those that pybind11 has are there.
namespace facade {
// ---- the name of a type in signatures, as a constant: its parts, which are put together when a function is added
struct NamePart {};
template <size_t N>
struct Literal : NamePart {
    char text[N]{};
    constexpr explicit Literal(const char (&given)[N]) {
        for (size_t i = 0; i < N; ++i) {
            text[i] = given[i];
        }
    }
    std::string shown(bool) const { return text; }
};
template <class A, class B>
struct Joined : NamePart {
    A first;
    B second;
    constexpr Joined(const A& a, const B& b) : first(a), second(b) {}
    std::string shown(bool argument) const { return first.shown(argument) + second.shown(argument); }
};
// Of one of the facade's conversions.
template <class C>
struct NameOf : NamePart {
    std::string shown(bool argument) const { return C::name(argument); }
};
template <class A, class B>
struct ByUse : NamePart {
    A argument;
    B result;
    constexpr ByUse(const A& a, const B& b) : argument(a), result(b) {}
    std::string shown(bool is_argument) const { return is_argument ? argument.shown(true) : result.shown(false); }
};

template <bool B, class T = void>
using enable_if_t = std::enable_if_t<B, T>;
template <bool B, class T, class F>
using conditional_t = std::conditional_t<B, T, F>;
template <class T>
using remove_cv_t = std::remove_cv_t<T>;
template <class T>
using intrinsic_t = std::remove_cv_t<std::remove_pointer_t<std::remove_reference_t<T>>>;

template <class A, class B, class = std::enable_if_t<std::is_base_of_v<NamePart, A> && std::is_base_of_v<NamePart, B>>>
constexpr Joined<A, B> operator+(const A& a, const B& b) {
    return {a, b};
}
template <size_t N>
constexpr Literal<N> const_name(const char (&text)[N]) {
    return Literal<N>(text);
}
template <bool First, size_t N, size_t M>
constexpr auto const_name(const char (&first)[N], const char (&second)[M]) {
    if constexpr (First) {
        return Literal<N>(first);
    } else {
        return Literal<M>(second);
    }
}
template <size_t N, size_t M>
constexpr ByUse<Literal<N>, Literal<M>> io_name(const char (&argument)[N], const char (&result)[M]) {
    return {const_name(argument), const_name(result)};
}
constexpr Literal<1> concat() { return const_name(""); }
template <class A>
constexpr A concat(const A& name) {
    return name;
}
template <class A, class... B>
constexpr auto concat(const A& first, const B&... rest) {
    return first + const_name(", ") + concat(rest...);
}

// ---- what a caster converts to where a parameter is a T
template <class T>
using cast_op_type =
    std::conditional_t<std::is_pointer_v<std::remove_reference_t<T>>, intrinsic_t<T>*, intrinsic_t<T>&>;
template <class T>
using movable_cast_op_type =
    std::conditional_t<std::is_rvalue_reference_v<T> && !std::is_pointer_v<std::remove_reference_t<T>>,
                       intrinsic_t<T>&&, cast_op_type<T>>;

#define PYBIND11_TYPE_CASTER(type, py_name)                                                                        \
    static_assert(::opforge_facade_python::is_own_type<type>,                                                      \
                  "opforge's facade uses a source's type_caster for a type of the source's own alone: build this " \
                  "source with torch's own headers (opforge: abi=\"torch\").");                                    \
    OPFORGE_CASTER(type, py_name)
#define OPFORGE_CASTER(type, py_name)                                                                   \
protected:                                                                                              \
    type value;                                                                                         \
                                                                                                        \
public:                                                                                                 \
    static constexpr auto name = py_name;                                                               \
    template <class Pointed, class = std::enable_if_t<std::is_same_v<type, std::remove_cv_t<Pointed>>>> \
    static ::pybind11::handle cast(Pointed* pointer, ::pybind11::return_value_policy policy,            \
                                   ::pybind11::handle parent) {                                         \
        if (!pointer) {                                                                                 \
            return ::pybind11::none().release();                                                        \
        }                                                                                               \
        if (policy == ::pybind11::return_value_policy::take_ownership) {                                \
            const std::unique_ptr<Pointed> owned(pointer);                                              \
            return cast(std::move(*pointer), policy, parent);                                           \
        }                                                                                               \
        return cast(*pointer, policy, parent);                                                          \
    }                                                                                                   \
    operator type*() { return &value; }                                                                 \
    operator type&() { return value; }                                                                  \
    operator type&&() && { return std::move(value); }                                                   \
    template <class Parameter>                                                                          \
    using cast_op_type = ::pybind11::facade::movable_cast_op_type<Parameter>

// ---- the facade's own conversions, as casters: sources write theirs with them
template <class T, class C>
class caster_by {
    OPFORGE_CASTER(T, NameOf<C>());
    bool load(handle source, bool convert) { return source && C::load(source.ptr(), convert, value); }
    static handle cast(const T& value, return_value_policy, handle) { return C::cast(value).release(); }
};
template <class L, class V>
struct list_caster : caster_by<L, ConvertList<L, V>> {};
template <class S, class V>
struct set_caster : caster_by<S, ConvertSet<S, V>> {};
template <class M, class K, class V>
struct map_caster : caster_by<M, ConvertMap<M, K, V>> {};
// The source's caster, the facade's conversion, or the one of a class.
template <class T>
using make_caster = std::conditional_t<HasCaster<intrinsic_t<T>>::value, detail::type_caster<intrinsic_t<T>>,
                                       caster_by<intrinsic_t<T>, Convert<intrinsic_t<T>>>>;
template <class T>
decltype(auto) cast_op(make_caster<T>& caster) {
    return static_cast<typename make_caster<T>::template cast_op_type<T>>(caster);
}
template <class T>
decltype(auto) cast_op(make_caster<T>&& caster) {
    return static_cast<typename make_caster<T>::template cast_op_type<std::add_rvalue_reference_t<T>>>(
        std::move(caster));
}
}  // namespace facade
namespace detail {
template <class T>
class type_caster<T, std::enable_if_t<!facade::is_own_type<T>>> : public facade::caster_by<T, facade::Convert<T>> {};
using facade::cast_op;
using facade::cast_op_type;
using facade::concat;
using facade::conditional_t;
using facade::const_name;
using facade::enable_if_t;
using facade::intrinsic_t;
using facade::io_name;
using facade::list_caster;
using facade::make_caster;
using facade::map_caster;
using facade::movable_cast_op_type;
using facade::remove_cv_t;
using facade::set_caster;
#ifndef _
template <size_t N>
constexpr auto _(const char (&text)[N]) {
    return const_name(text);
}
#endif
}  // namespace detail
}  // namespace opforge_facade
}  // namespace pybind11
#define PYBIND11_NAMESPACE pybind11
#define PYBIND11_NAMESPACE_BEGIN(name) namespace name {
#define PYBIND11_NAMESPACE_END(name) }

// A type that the facade converts, as a class that the source registers.
#define PYBIND11_MAKE_OPAQUE(...)                                  \
    namespace opforge_facade_python {                              \
    template <>                                                    \
    struct IsOpaque<__VA_ARGS__> : std::true_type {};              \
    template <>                                                    \
    struct Convert<__VA_ARGS__> : ConvertInstance<__VA_ARGS__> {}; \
    }

namespace opforge_facade_python {
template <class T>
struct CastedBySource {
    static constexpr bool is_loaded = true;
    ::pybind11::detail::type_caster<T> caster;
    template <class A>
    decltype(auto) hand() {
        return ::pybind11::facade::cast_op<A>(std::move(caster));
    }
};
template <class T>
struct ConvertBySource {
    using Caster = ::pybind11::detail::type_caster<T>;
    static bool load(PyObject* o, bool convert, CastedBySource<T>& value) { return value.caster.load(o, convert); }
    static bool load(PyObject* o, bool convert, T& value) {
        Caster caster;
        return caster.load(o, convert) && (value = ::pybind11::facade::cast_op<T>(std::move(caster)), true);
    }
    template <class V>
    static Ref cast(V&& value, Policy policy = Policy::automatic, PyObject* parent = nullptr) {
        Ref made = Ref::steal(Caster::cast(std::forward<V>(value), policy, parent).ptr());
        if (!made && opforge_PyErr_Occurred()) {
            throw Raised();
        }
        return not_null(std::move(made));
    }
    static std::string name(bool argument) { return Caster::name.shown(argument); }
};
template <class T>
struct ConvertOwn<T, std::enable_if_t<HasCaster<T>::value>> : ConvertBySource<T> {};
template <class T>
struct Convert<CastedBySource<T>> : ConvertBySource<T> {};
template <class T>
struct Convert<T*, std::enable_if_t<HasCaster<std::remove_const_t<T>>::value>>
    : ConvertBySource<std::remove_const_t<T>> {};
}  // namespace opforge_facade_python

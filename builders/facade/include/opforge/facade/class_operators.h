// Operators of a class, as pybind11 has them: c.def(py::self + py::self), c.def(2.0 * py::self), c.def(-py::self).
#pragma once
#pragma GCC system_header
#include "classes.h"

namespace pybind11 {
inline namespace opforge_facade {
namespace facade {
struct self_t {};
// Which of the operands is the class itself.
enum class Operands { One, SelfFirst, SelfSecond };

template <class O, Operands Where, class Other>
struct class_operator {
    template <class C, class... E>
    void add_to(C& c, const E&... extras) const {
        using T = typename C::type;
        using Second = std::conditional_t<std::is_same_v<Other, self_t>, T, Other>;
        if constexpr (Where == Operands::One) {
            c.def(O::name, [](const T& v) { return O::of(v); }, is_operator(), extras...);
        } else if constexpr (Where == Operands::SelfSecond) {
            c.def(O::reversed, [](const T& v, const Second& o) { return O::of(o, v); }, is_operator(), extras...);
        } else if constexpr (O::in_place) {
            c.def(
                O::name, [](T& v, const Second& o) -> decltype(auto) { return O::of(v, o); }, is_operator(), extras...);
        } else {
            c.def(O::name, [](const T& v, const Second& o) { return O::of(v, o); }, is_operator(), extras...);
        }
    }
};

#define OPFORGE_OPERATOR(id, reversed_id, symbol, is_in_place, parameter)                                       \
    struct of_##id {                                                                                            \
        static constexpr const char *name = "__" #id "__", *reversed = "__" #reversed_id "__";                  \
        static constexpr bool in_place = is_in_place;                                                           \
        template <class L, class R>                                                                             \
        static auto of(parameter l, const R& r) -> decltype(l symbol r) {                                       \
            return l symbol r;                                                                                  \
        }                                                                                                       \
    };                                                                                                          \
    inline class_operator<of_##id, Operands::SelfFirst, self_t> operator symbol(const self_t&, const self_t&) { \
        return {};                                                                                              \
    }                                                                                                           \
    template <class T>                                                                                          \
    class_operator<of_##id, Operands::SelfFirst, T> operator symbol(const self_t&, const T&) {                  \
        return {};                                                                                              \
    }
#define OPFORGE_BINARY_OPERATOR(id, reversed_id, symbol)                                        \
    OPFORGE_OPERATOR(id, reversed_id, symbol, false, const L&)                                  \
    template <class T>                                                                          \
    class_operator<of_##id, Operands::SelfSecond, T> operator symbol(const T&, const self_t&) { \
        return {};                                                                              \
    }
OPFORGE_BINARY_OPERATOR(sub, rsub, -)
OPFORGE_BINARY_OPERATOR(add, radd, +)
OPFORGE_BINARY_OPERATOR(mul, rmul, *)
OPFORGE_BINARY_OPERATOR(truediv, rtruediv, /)
OPFORGE_BINARY_OPERATOR(mod, rmod, %)
OPFORGE_BINARY_OPERATOR(lshift, rlshift, <<)
OPFORGE_BINARY_OPERATOR(rshift, rrshift, >>)
OPFORGE_BINARY_OPERATOR(and, rand, &)
OPFORGE_BINARY_OPERATOR(xor, rxor, ^)
OPFORGE_BINARY_OPERATOR(or, ror, |)
OPFORGE_BINARY_OPERATOR(eq, eq, ==)
OPFORGE_BINARY_OPERATOR(ne, ne, !=)
OPFORGE_BINARY_OPERATOR(gt, lt, >)
OPFORGE_BINARY_OPERATOR(ge, le, >=)
OPFORGE_BINARY_OPERATOR(lt, gt, <)
OPFORGE_BINARY_OPERATOR(le, ge, <=)
OPFORGE_OPERATOR(iadd, , +=, true, L&)
OPFORGE_OPERATOR(isub, , -=, true, L&)
OPFORGE_OPERATOR(imul, , *=, true, L&)
OPFORGE_OPERATOR(itruediv, , /=, true, L&)
OPFORGE_OPERATOR(imod, , %=, true, L&)
OPFORGE_OPERATOR(ilshift, , <<=, true, L&)
OPFORGE_OPERATOR(irshift, , >>=, true, L&)
OPFORGE_OPERATOR(iand, , &=, true, L&)
OPFORGE_OPERATOR(ixor, , ^=, true, L&)
OPFORGE_OPERATOR(ior, , |=, true, L&)
#undef OPFORGE_BINARY_OPERATOR
#undef OPFORGE_OPERATOR

#define OPFORGE_UNARY_OPERATOR(id, function, expression)     \
    struct of_##id {                                         \
        static constexpr const char* name = "__" #id "__";   \
        template <class L>                                   \
        static auto of(const L& l) -> decltype(expression) { \
            return expression;                               \
        }                                                    \
    };                                                       \
    inline class_operator<of_##id, Operands::One, void> function(const self_t&) { return {}; }
OPFORGE_UNARY_OPERATOR(neg, operator-, -l)
OPFORGE_UNARY_OPERATOR(pos, operator+, +l)
OPFORGE_UNARY_OPERATOR(abs, abs, std::abs(l))
OPFORGE_UNARY_OPERATOR(hash, hash, std::hash<L>()(l))
OPFORGE_UNARY_OPERATOR(invert, operator~, ~l)
OPFORGE_UNARY_OPERATOR(bool, operator!, !!l)
OPFORGE_UNARY_OPERATOR(int, int_, static_cast<int>(l))
OPFORGE_UNARY_OPERATOR(float, float_, static_cast<double>(l))
#undef OPFORGE_UNARY_OPERATOR
}  // namespace facade
static const facade::self_t self{};
using facade::hash;
}  // namespace opforge_facade
}  // namespace pybind11

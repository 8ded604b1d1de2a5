// Functions of complex numbers, as c10/util/complex.h has them in std: what std (thrust in CUDA) computes of the same
// number. log1p and expm1, for which neither has a function, are computed as torch's are.
#pragma once
#include <torch/headeronly/util/complex.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define OPFORGE_COMPLEX thrust
#else
#define OPFORGE_COMPLEX std
#endif

#pragma GCC visibility push(hidden)
namespace c10 {
inline namespace opforge_facade {
template <class T>
struct is_complex : std::false_type {};
template <class T>
struct is_complex<std::complex<T>> : std::true_type {};
template <class T>
struct is_complex<c10::complex<T>> : std::true_type {};
template <class T>
struct scalar_value_type {
    using type = T;
};
template <class T>
struct scalar_value_type<std::complex<T>> {
    using type = T;
};
template <class T>
struct scalar_value_type<c10::complex<T>> {
    using type = T;
};
}  // namespace opforge_facade
}  // namespace c10

namespace c10_complex_math {
inline namespace opforge_facade {
template <class T>
C10_HOST_DEVICE OPFORGE_COMPLEX::complex<T> converted(const c10::complex<T>& z) {
    return static_cast<OPFORGE_COMPLEX::complex<T>>(z);
}
#define OPFORGE_COMPLEX_FUNCTION(NAME)                                            \
    template <class T>                                                            \
    C10_HOST_DEVICE c10::complex<T> NAME(const c10::complex<T>& z) {              \
        return static_cast<c10::complex<T>>(OPFORGE_COMPLEX::NAME(converted(z))); \
    }
OPFORGE_COMPLEX_FUNCTION(exp)
OPFORGE_COMPLEX_FUNCTION(log)
OPFORGE_COMPLEX_FUNCTION(log10)
OPFORGE_COMPLEX_FUNCTION(sqrt)
OPFORGE_COMPLEX_FUNCTION(sin)
OPFORGE_COMPLEX_FUNCTION(cos)
OPFORGE_COMPLEX_FUNCTION(tan)
OPFORGE_COMPLEX_FUNCTION(asin)
OPFORGE_COMPLEX_FUNCTION(acos)
OPFORGE_COMPLEX_FUNCTION(atan)
OPFORGE_COMPLEX_FUNCTION(sinh)
OPFORGE_COMPLEX_FUNCTION(cosh)
OPFORGE_COMPLEX_FUNCTION(tanh)
OPFORGE_COMPLEX_FUNCTION(asinh)
OPFORGE_COMPLEX_FUNCTION(acosh)
OPFORGE_COMPLEX_FUNCTION(atanh)
#undef OPFORGE_COMPLEX_FUNCTION
template <class T>
C10_HOST_DEVICE c10::complex<T> log2(const c10::complex<T>& z) {
    return c10_complex_math::log(z) / c10::complex<T>(::log(2.0), 0.0);
}
template <class T>
C10_HOST_DEVICE c10::complex<T> log1p(const c10::complex<T>& z) {
#if defined(__CUDACC__) || defined(__HIPCC__)
    const T x = z.real(), y = z.imag(), angle = std::atan2(y, x + T(1));
    if (std::hypot(x, y) < T(0.5)) {
        const T r = x * (T(2) + x) + y * y;
        return r == 0 ? c10::complex<T>(x, angle) : c10::complex<T>(T(0.5) * std::log1p(r), angle);
    }
    return {std::log(std::hypot(x + 1, y)), angle};
#else
    const c10::complex<T> one_more = z + T(1);
    if (one_more == T(1)) {
        return z;
    }
    const c10::complex<T> log_of_it = c10_complex_math::log(one_more);
    return one_more - T(1) == z ? log_of_it : log_of_it * (z / (one_more - T(1)));
#endif
}
template <class T>
C10_HOST_DEVICE c10::complex<T> expm1(const c10::complex<T>& z) {
    const T x = z.real(), y = z.imag(), half = std::sin(y / 2);
    return {std::expm1(x) * std::cos(y) - T(2) * half * half, std::exp(x) * std::sin(y)};
}
template <class T>
C10_HOST_DEVICE c10::complex<T> pow(const c10::complex<T>& x, const c10::complex<T>& y) {
    return static_cast<c10::complex<T>>(OPFORGE_COMPLEX::pow(converted(x), converted(y)));
}
template <class T>
C10_HOST_DEVICE c10::complex<T> pow(const c10::complex<T>& x, const T& y) {
    return static_cast<c10::complex<T>>(OPFORGE_COMPLEX::pow(converted(x), y));
}
template <class T>
C10_HOST_DEVICE c10::complex<T> pow(const T& x, const c10::complex<T>& y) {
    return static_cast<c10::complex<T>>(OPFORGE_COMPLEX::pow(x, converted(y)));
}
}  // namespace opforge_facade
}  // namespace c10_complex_math

namespace std {
template <class T>
constexpr T real(const c10::complex<T>& z) {
    return z.real();
}
template <class T>
constexpr T imag(const c10::complex<T>& z) {
    return z.imag();
}
template <class T>
C10_HOST_DEVICE T abs(const c10::complex<T>& z) {
    return OPFORGE_COMPLEX::abs(c10_complex_math::converted(z));
}
template <class T>
C10_HOST_DEVICE T arg(const c10::complex<T>& z) {
    return std::atan2(z.imag(), z.real());
}
template <class T>
constexpr T norm(const c10::complex<T>& z) {
    return z.real() * z.real() + z.imag() * z.imag();
}
template <class T>
constexpr c10::complex<T> conj(const c10::complex<T>& z) {
    return c10::complex<T>(z.real(), -z.imag());
}
#if !__has_include(<torch/headeronly/util/complex_utils.h>)  // newer torches' own headers have these
template <class T>
bool isnan(const c10::complex<T>& z) {
    return std::isnan(z.real()) || std::isnan(z.imag());
}
template <class T>
class numeric_limits<c10::complex<T>> : public numeric_limits<T> {};
#endif
using c10_complex_math::acos;
using c10_complex_math::acosh;
using c10_complex_math::asin;
using c10_complex_math::asinh;
using c10_complex_math::atan;
using c10_complex_math::atanh;
using c10_complex_math::cos;
using c10_complex_math::cosh;
using c10_complex_math::exp;
using c10_complex_math::expm1;
using c10_complex_math::log;
using c10_complex_math::log10;
using c10_complex_math::log1p;
using c10_complex_math::log2;
using c10_complex_math::pow;
using c10_complex_math::sin;
using c10_complex_math::sinh;
using c10_complex_math::sqrt;
using c10_complex_math::tan;
using c10_complex_math::tanh;
}  // namespace std
#pragma GCC visibility pop
#undef OPFORGE_COMPLEX

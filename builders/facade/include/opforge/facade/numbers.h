// Numbers beside tensors. The stable ABI passes no Scalar, so a number travels as a 0-dim tensor on the
// CPU, of the dtype that makes torch's promotion come out as for a number. What does not come out the
// same, bit for bit and in its errors, is refused at compile time: see generate.py.
#pragma once
#include "dispatcher_calls.h"
#include "parallel.h"

namespace at {
inline namespace opforge_facade {
namespace facade {

inline ScalarType default_dtype() {
    return call<Tensor>("aten::empty", "memory_format", IntArrayRef(), std::optional<ScalarType>(),
                        std::optional<Layout>(), std::optional<Device>(), std::optional<bool>(),
                        std::optional<MemoryFormat>())
        .scalar_type();
}
OPFORGE_IF_USED
inline Tensor converted(const Tensor& t, ScalarType type) {
    if (t.scalar_type() == type) {
        return t;
    }
    return call<Tensor>("aten::to", "dtype", t, type, false, false, std::optional<MemoryFormat>());
}
// Returns the number as a 0-dim tensor of its own type: bool, int64, float64 or complex128.
OPFORGE_IF_USED
inline Tensor number(const Scalar& s) {
    AtenTensorHandle h;
    if (s.isBoolean()) {
        check(aoti_torch_scalar_to_tensor_bool(s.toBool(), &h), "a number");
    } else if (s.isIntegral(false)) {
        check(aoti_torch_scalar_to_tensor_int64(s.toLong(), &h), "a number");
    } else if (s.isFloatingPoint()) {
        check(aoti_torch_scalar_to_tensor_float64(s.toDouble(), &h), "a number");
    } else {
        check(aoti_torch_scalar_to_tensor_complex128(s.toComplexDouble(), &h), "a number");
    }
    return Tensor::adopt(h);
}
enum class Category { Bool, Integer, Real, Complex };
inline Category category(ScalarType t) {
    return t == ScalarType::Bool ? Category::Bool
           : isComplexType(t)    ? Category::Complex
           : isFloatingType(t)   ? Category::Real
                                 : Category::Integer;
}
// Returns the number as a 0-dim tensor that beside a tensor of dtype t, which has dimensions, gives the
// dtype that the number would give.
OPFORGE_IF_USED
inline Tensor wrapped(const Scalar& s, ScalarType t) {
    if (s.isFloatingPoint() && category(t) < Category::Real) {
        return converted(number(s), default_dtype());
    }
    if (s.isComplex() && category(t) < Category::Complex) {
        return converted(number(s), toComplexType(category(t) == Category::Real ? t : default_dtype()));
    }
    return number(s);
}
// Calls f with the tensor, which has a dimension: beside a 0-dim tensor the number's dtype would count.
template <class F>
Tensor with_dimension(const Tensor& self, F f) {
    if (self.dim() > 0) {
        return f(self);
    }
    return call<Tensor>("aten::squeeze", "dim", f(call<Tensor>("aten::unsqueeze", "", self, int64_t{0})), int64_t{0});
}
OPFORGE_IF_USED
inline Tensor binary(const char* name, const char* overload, const Tensor& self, const Scalar& s) {
    return with_dimension(
        self, [&](const Tensor& x) { return call<Tensor>(name, overload, x, wrapped(s, x.scalar_type())); });
}
OPFORGE_IF_USED
inline Tensor& binary_in_place(const char* name, const char* overload, const Tensor& self, const Scalar& s) {
    Tensor x = self.dim() > 0 ? self : call<Tensor>("aten::unsqueeze", "", self, int64_t{0});
    call_in_place(name, overload, x, wrapped(s, x.scalar_type()));
    return const_cast<Tensor&>(self);
}
// Where a number beside a tensor must be on its device.
OPFORGE_IF_USED
inline Tensor number_for(const Tensor& t, const Scalar& s) {
    return t.is_meta() ? number(s).to(t.device()) : number(s);
}
OPFORGE_IF_USED
inline ScalarType promoted(const Tensor& a, const Tensor& b) {
    return a.scalar_type() == b.scalar_type() ? a.scalar_type() : call<ScalarType>("aten::result_type", "Tensor", a, b);
}
// torch's own check before it writes a result of one dtype into a tensor of another.
OPFORGE_IF_USED
inline void check_cast(ScalarType from, ScalarType to) {
    Category a = category(from), b = category(to);
    if ((a == Category::Complex && b != a) || (a == Category::Real && b < a) ||
        (a != Category::Bool && b == Category::Bool)) {
        fail(
            text("result type ", c10::toString(from), " can't be cast to the desired output type ", c10::toString(to)));
    }
}
OPFORGE_IF_USED
inline Tensor& written(const Tensor& self, const Tensor& result) {
    check_cast(result.scalar_type(), self.scalar_type());
    if (self.sizes() != result.sizes()) {
        fail(text("output with shape ", self.sizes(), " doesn't match the broadcast shape ", result.sizes()));
    }
    call_in_place("aten::copy_", "", self, result, false);
    return const_cast<Tensor&>(self);
}
OPFORGE_IF_USED
inline void check_factor(const char* name, ScalarType t, const Scalar& factor) {
    if (factor.isBoolean() && t != ScalarType::Bool) {
        fail(text("Boolean ", name, " only supported for Boolean results."));
    }
    if (category(t) < Category::Real && !factor.isIntegral(true)) {
        fail(text("For integral input tensors, argument ", name, " must not be a floating point number."));
    }
}
OPFORGE_IF_USED
inline void check_alpha(ScalarType t, const Scalar& alpha) {
    check_factor("alpha", t, alpha);
    if (category(t) != Category::Complex && alpha.isComplex()) {
        fail("For non-complex input tensors, argument alpha must not be a complex number.");
    }
    if (alpha.isComplex()) {
        fail("add and sub with a complex alpha are not on torch's stable ABI: multiply the tensor first");
    }
}
inline void check_subtraction(bool self_is_bool, bool other_is_bool) {
    if (self_is_bool && other_is_bool) {
        fail(
            "Subtraction, the `-` operator, with two bool tensors is not supported. "
            "Use the `^` or `logical_xor()` operator instead.");
    }
    if (self_is_bool || other_is_bool) {
        fail(
            "Subtraction, the `-` operator, with a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead.");
    }
}
inline bool is_float8(ScalarType t) {
    return isReducedFloatingType(t) && t != ScalarType::Half && t != ScalarType::BFloat16;
}
// Of a dtype that no number of C++ is converted to here.
inline void check_within(const Scalar& s, ScalarType t, double lowest, double highest) {
    const double value = s.toDouble();
    const bool is_infinity = t == ScalarType::Float8_e5m2 && std::isinf(value);  // the one with an infinity
    if (!is_infinity && (value < lowest || value > highest)) {
        fail(text("value cannot be converted to type c10::", c10::toString(t), " without overflow"));
    }
}
// Fails if the number does not fit into a dtype, as torch does before it uses the number in a kernel.
OPFORGE_IF_USED
inline void check_fits(const Scalar& s, ScalarType t) {
    switch (t) {
#define OPFORGE_FITS(T, N)            \
    case ScalarType::N:               \
        static_cast<void>(s.to<T>()); \
        break;
        OPFORGE_FITS(uint8_t, Byte)
        OPFORGE_FITS(int8_t, Char)
        OPFORGE_FITS(int16_t, Short)
        OPFORGE_FITS(int, Int)
        OPFORGE_FITS(int64_t, Long)
        OPFORGE_FITS(Half, Half)
        OPFORGE_FITS(BFloat16, BFloat16)
        OPFORGE_FITS(float, Float)
        OPFORGE_FITS(double, Double)
#undef OPFORGE_FITS
        case ScalarType::Float8_e5m2:
        case ScalarType::Float8_e5m2fnuz:
            return check_within(s, t, -57344, 57344);
        case ScalarType::Float8_e4m3fn:
            return check_within(s, t, -448, 448);
        case ScalarType::Float8_e4m3fnuz:
            return check_within(s, t, -240, 240);
        case ScalarType::Float8_e8m0fnu:  // without a sign: an integer may have one, as torch wraps it
            return check_within(s, t, s.isIntegral(true) ? -std::ldexp(1, 127) : std::ldexp(1, -127),
                                std::ldexp(1, 127));
        default:
            break;
    }
}
// Whether every operator of two tensors gives its result contiguous strides. Those of a tensor without elements, and of
// a dimension of one, count beside a tensor of another shape.
OPFORGE_IF_USED
inline bool gives_contiguous(const Tensor& a, const Tensor& b) {
    if (a.sizes() == b.sizes()) {
        return a.is_contiguous() && b.is_contiguous();
    }
    auto is_exact = [](const Tensor& t) { return t.strides() == c10::contiguous_strides(t.sizes()); };
    return is_exact(a) && is_exact(b);
}
// Returns a + alpha * b. Real and complex numbers: torch's one C function of this family, which computes
// a - (-alpha) * b by the same kernel. Integers: a sum over both, which is exact.
OPFORGE_IF_USED
inline Tensor sum_of(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    ScalarType t = promoted(a, b);
    check_alpha(t, alpha);
    if (category(t) >= Category::Real) {
        Tensor x = a.scalar_type() == ScalarType::Bool ? converted(a, t) : a;
        Tensor y = b.scalar_type() == ScalarType::Bool ? converted(b, t) : b;
        AtenTensorHandle h;
        c10::facade::Depth depth;
        check(aoti_torch_aten_subtract_Tensor(x.handle(), y.handle(), -alpha.toDouble(), &h), "add or sub");
        return Tensor::adopt(h);
    }
    if (t == ScalarType::Bool) {
        return call<Tensor>("aten::logical_or", "", a,
                            alpha.toBool() ? b
                                           : call<Tensor>("aten::zeros_like", "", b, std::optional<ScalarType>(),
                                                          std::optional<Layout>(), std::optional<Device>(),
                                                          std::optional<bool>(), std::optional<MemoryFormat>()));
    }
    check_fits(alpha, t);
    Tensor y = converted(b, t);
    if (alpha.toLong() == -1) {
        y = call<Tensor>("aten::neg", "", y);
    } else if (alpha.toLong() != 1) {
        y = call<Tensor>("aten::mul", "Tensor", y, converted(number(alpha), t));
    }
    // a 0-dim tensor may be on the CPU beside one of another device
    Tensor x = converted(a, t);
    x = x.dim() == 0 && y.dim() > 0 ? x.to(y.device()) : x;
    y = y.dim() == 0 && x.dim() > 0 ? y.to(x.device()) : y;
    auto both = call<std::vector<Tensor>>("aten::broadcast_tensors", "", std::vector<Tensor>{x, y});
    Tensor sum = call<Tensor>("aten::sum", "dim_IntList", call<Tensor>("aten::stack", "", both, int64_t{0}),
                              std::optional<IntArrayRef>(int64_t{0}), false, std::optional<ScalarType>(t));
    if (gives_contiguous(a, b)) {
        return sum;
    }
    // in the strides that every operator of two tensors gives its result
    Tensor result = call<Tensor>("aten::bitwise_xor", "Tensor", x, y);
    call_in_place("aten::copy_", "", result, sum, false);
    return result;
}
OPFORGE_IF_USED
inline Tensor difference(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    check_subtraction(a.scalar_type() == ScalarType::Bool, b.scalar_type() == ScalarType::Bool);
    check_alpha(promoted(a, b), alpha);
    return sum_of(a, b, -alpha);
}
// Returns x to a power, by the operators that torch's kernel uses for some exponents in the place of pow. For other
// exponents torch's vectors of pow give other last bits with a number than with a tensor.
OPFORGE_IF_USED
inline Tensor power(const Tensor& self, const Scalar& exponent) {
    auto times = [](const Tensor& a, const Tensor& b) { return call<Tensor>("aten::mul", "Tensor", a, b); };
    Category c = category(self.scalar_type());
    if (exponent.isIntegral(false) && c < Category::Real && exponent.toLong() < 0) {
        fail("Integers to negative integer powers are not allowed.");
    }
    Tensor x = self;
    if (exponent.isFloatingPoint() && c < Category::Real) {
        x = converted(self, default_dtype());
        c = Category::Real;
    }
    const ScalarType type = x.scalar_type();
    if (is_float8(type)) {  // torch fills and copies these, and has no kernel for another exponent
        return exponent.equal(0)
                   ? call<Tensor>("aten::ones_like", "", x, std::optional<ScalarType>(), std::optional<Layout>(),
                                  std::optional<Device>(), std::optional<bool>(), std::optional<MemoryFormat>())
               : exponent.equal(1) ? call<Tensor>("aten::clone", "", x, std::optional<MemoryFormat>())
                                   : binary("aten::pow", "Tensor_Tensor", x, exponent);
    }
    const bool keeps_dtype = c >= Category::Real || (exponent.isIntegral(false) && c == Category::Integer);
    if (keeps_dtype && exponent.equal(2)) {
        return call<Tensor>("aten::square", "", x);
    }
    const bool listed =
        exponent.equal(3) || exponent.equal(0.5) || exponent.equal(-0.5) || exponent.equal(-1) || exponent.equal(-2);
    if (keeps_dtype && !exponent.isComplex()) {
        check_fits(exponent, type);
    }
    if (c == Category::Complex && exponent.equal(1)) {
        return call<Tensor>("aten::clone", "", x, std::optional<MemoryFormat>());
    }
    if (c == Category::Real && listed) {
        // float16 is multiplied as float32, and rounded once
        const Tensor wide = type == ScalarType::Half ? converted(x, ScalarType::Float) : x;
        if (exponent.equal(3)) {
            return converted(times(times(wide, wide), wide), type);
        }
        if (exponent.equal(-2)) {
            return converted(call<Tensor>("aten::reciprocal", "", times(wide, wide)), type);
        }
        return call<Tensor>(exponent.equal(0.5)    ? "aten::sqrt"
                            : exponent.equal(-0.5) ? "aten::rsqrt"
                                                   : "aten::reciprocal",
                            "", x);
    }
    return binary("aten::pow", "Tensor_Tensor", x, exponent);
}
inline ScalarType dtype_of(const Scalar& s) {
    return s.isFloatingPoint() ? default_dtype() : s.isComplex() ? toComplexType(default_dtype()) : s.type();
}
// torch fills a single element of a reduced type without its check of the number.
OPFORGE_IF_USED
inline void check_fill(const Scalar& s, const Tensor& t) {
    if (!(isReducedFloatingType(t.scalar_type()) && t.numel() == 1)) {
        check_fits(s, t.scalar_type());
    } else {
        static_cast<void>(s.toDouble());  // fails for a number with an imaginary part
    }
}
// Each element once: torch fills an expanded tensor with a number, and refuses to do so with a tensor.
OPFORGE_IF_USED
inline void fill_with(const Tensor& t, const Scalar& s) {
    check_fill(s, t);
    Tensor x = t;
    for (int64_t i = 0; i < x.dim(); ++i) {
        if (x.stride(i) == 0 && x.size(i) > 1) {
            x = call<Tensor>("aten::narrow", "", x, i, int64_t{0}, int64_t{1});
        }
    }
    call_in_place("aten::fill_", "Tensor", x, number(s));
}
OPFORGE_IF_USED
inline Tensor filled(const Tensor& t, const Scalar& s) {
    fill_with(t, s);
    return t;
}
OPFORGE_IF_USED
inline Tensor empty(IntArrayRef size, const TensorOptions& o) {
    return call<Tensor>("aten::empty", "memory_format", size, o.scalar_type_opt(), layout_to_pass(o), device_to_pass(o),
                        o.pinned_memory_opt(), o.memory_format_opt());
}
// Returns begin, begin + step, ... below end. torch computes real numbers in a way that depends on its vectors.
OPFORGE_IF_USED
inline Tensor range(const Scalar& begin, const Scalar& end, const Scalar& step, TensorOptions o) {
    const bool is_real = !begin.isIntegral(true) || !end.isIntegral(true) || !step.isIntegral(true);
    const ScalarType t = o.scalar_type_opt().value_or(is_real ? default_dtype() : ScalarType::Long);
    if (t == ScalarType::Bool || isComplexType(t)) {
        fail<NotImplementedError>(text("\"arange_cpu\" not implemented for '", c10::toString(t), "'"));
    }
    const bool in_reals = is_real && category(t) >= Category::Real;
    auto integer = [](const Scalar& s) { return s.isIntegral(true) ? s.toLong() : int64_t(s.toDouble()); };
    const double start = begin.toDouble(), stop = end.toDouble(), stride = step.toDouble();
    if (!(stride > 0 || stride < 0)) {
        fail("step must be nonzero");
    }
    if (!std::isfinite(start) || !std::isfinite(stop)) {
        fail(text("unsupported range: ", start, " -> ", stop));
    }
    const int64_t a = integer(begin), b = integer(end), s = integer(step);
    const bool in_longs =
        !is_real || t == ScalarType::Long;  // torch counts these in integers, and all others in doubles
    if (stride > 0 ? start > stop : start < stop) {
        fail("upper bound and lower bound inconsistent with step sign");
    }
    if (in_longs && s == 0) {
        fail("invalid size, possible overflow?");
    }
    const int64_t n = !in_longs ? int64_t(std::ceil((stop - start) / stride))
                      : s > 0   ? std::max<int64_t>((b - a + s - 1) / s, 0)
                                : std::max<int64_t>((a - b - s - 1) / -s, 0);
    // by operators alone: what a mode makes has no memory that could be written
    Tensor ones = call<Tensor>("aten::ones", "", IntArrayRef(n), std::optional<ScalarType>(ScalarType::Long),
                               layout_to_pass(o), device_to_pass(o), std::optional<bool>());
    Tensor counted = call<Tensor>("aten::cumsum", "", ones, int64_t{0}, std::optional<ScalarType>());
    if (in_reals) {
        counted = converted(sum_of(counted, number(-1), 1), ScalarType::Double);
    }
    Tensor stepped = call<Tensor>("aten::mul", "Tensor", counted, in_reals ? number(stride) : number(s));
    stepped = sum_of(stepped, in_reals ? number(start) : number(a - s), 1);
    Tensor result = empty(n, o.dtype(t));
    call_in_place("aten::copy_", "", result, stepped, false);
    return result;
}
OPFORGE_IF_USED
inline Tensor number_first(const char* name, const char* overload, const Scalar& s, const Tensor& other) {
    return with_dimension(
        other, [&](const Tensor& x) { return call<Tensor>(name, overload, wrapped(s, x.scalar_type()), x); });
}
// Returns the dtype of two numbers that stand beside each other.
inline ScalarType of_numbers(const Scalar& a, const Scalar& b) {
    return category(a.type()) >= category(b.type()) ? dtype_of(a) : dtype_of(b);
}
// Returns the number in the tensor's dtype, where the tensor is.
OPFORGE_IF_USED
inline Tensor number_in(const Tensor& t, const Scalar& s) {
    const Tensor made = converted(number(s), t.scalar_type());
    return t.is_cpu() ? made : made.to(t.device());
}
// Returns the number in the tensor's dtype for each place of an index.
OPFORGE_IF_USED
inline Tensor filling(const Tensor& t, const Tensor& index, const Scalar& s) {
    check_fits(s, t.scalar_type());
    return call<Tensor>("aten::expand", "", number_in(t, s), index.sizes(), false);
}
OPFORGE_IF_USED
inline Tensor chosen_by(const Tensor& condition, const Tensor& a, const Tensor& b) {
    return call<Tensor>("aten::where", "self", condition, a, b);
}
OPFORGE_IF_USED
inline void check_real(const char* name, const Tensor& t) {
    if (!isFloatingType(t.scalar_type()) || is_float8(t.scalar_type())) {
        fail<NotImplementedError>(text('"', name, "\" not implemented for '", c10::toString(t.scalar_type()), "'"));
    }
}
OPFORGE_IF_USED
inline void check_number(const char* name, const Tensor& t) {
    if (category(t.scalar_type()) != Category::Integer) {
        check_real(name, t);
    }
}
// Returns the dtype that torch's kernels compute in.
inline ScalarType computed_in(ScalarType t) { return isReducedFloatingType(t) ? ScalarType::Float : t; }
OPFORGE_IF_USED
inline Tensor widened(const Tensor& t) { return converted(t, computed_in(t.scalar_type())); }
OPFORGE_IF_USED
inline Tensor times(const Tensor& t, const Scalar& s) { return s.equal(1) ? t : binary("aten::mul", "Tensor", t, s); }
// Returns a factor as torch's kernels take it: rounded to integers for those.
OPFORGE_IF_USED
inline Scalar factor_for(const Scalar& s, ScalarType t) {
    check_fits(s, computed_in(t));
    if (category(t) >= Category::Real && !s.isBoolean()) {
        return s;
    }
    return Scalar(s.isIntegral(true) ? s.toLong() : int64_t(s.toDouble()));
}
// Returns a + value * (x op y), computed as torch's kernels do: in float32 for the smaller types.
OPFORGE_IF_USED
inline Tensor added_term(const char* name, const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& value) {
    const Tensor term = call<Tensor>(name, "Tensor", x, y);
    const ScalarType t = promoted(a, term);
    if (t == ScalarType::Bool || is_float8(t)) {
        fail<NotImplementedError>(text("\"addcmul_cpu_out\" not implemented for '", c10::toString(t), "'"));
    }
    const Scalar factor = factor_for(value, t);
    if (isReducedFloatingType(t)) {
        return converted(sum_of(widened(a), call<Tensor>(name, "Tensor", widened(x), widened(y)), factor), t);
    }
    return sum_of(a, term, factor);
}
// Writes a result as torch's out= does: the tensor takes the result's size and strides. A comparison has no gradient,
// so that it is written into a tensor that requires one, too.
OPFORGE_IF_USED
inline Tensor& put(Tensor& out, const Tensor& result) {
    const bool compares = result.scalar_type() == ScalarType::Bool;
    if (!compares && aoti_torch_grad_mode_is_enabled() && (result.requires_grad() || out.requires_grad())) {
        fail(
            "functions with out=... arguments don't support automatic differentiation, but one of the arguments"
            " requires grad.");
    }
    check_cast(result.scalar_type(), out.scalar_type());
    if (out.sizes() != result.sizes()) {
        call_in_place("aten::resize_", "", out, result.sizes(), std::optional<MemoryFormat>());
        if (out.strides() != result.strides()) {
            call_in_place("aten::as_strided_", "", out, result.sizes(), result.strides(), std::optional<int64_t>());
        }
    }
    AutoGradMode mode(!compares && aoti_torch_grad_mode_is_enabled());
    call_in_place("aten::copy_", "", out, result, false);
    return out;
}
// Returns beta * a + alpha * product, of the product's size and dtype. `argument` is one of the product's.
OPFORGE_IF_USED
inline Tensor added(const Tensor& a, const Tensor& product, const Tensor& argument, const Scalar& beta,
                    const Scalar& alpha) {
    const ScalarType t = product.scalar_type();
    if (a.scalar_type() != t && t == argument.scalar_type()) {  // not by autocast
        fail(text("expected m1 and m2 to have the same dtype, but got: ", c10::toString(a.scalar_type()),
                  " != ", c10::toString(t)));
    }
    const Tensor input = converted(call<Tensor>("aten::expand", "", a, product.sizes(), false), t);
    const Scalar input_factor = factor_for(beta, t), factor = factor_for(alpha, t);
    if (input_factor.equal(0)) {  // not even what is no number is added
        return converted(times(widened(product), factor), t);
    }
    return converted(sum_of(converted(times(widened(input), input_factor), computed_in(t)), widened(product), factor),
                     t);
}
// Returns the dimension that index_add adds along. Raises as torch does for what does not fit.
OPFORGE_IF_USED
inline int64_t checked_index_add(const Tensor& into, int64_t dim, const Tensor& index, const Tensor& source) {
    const int64_t along = wrapped_dim(dim, into.dim(), true);
    if (index.dim() > 1) {
        fail("index_add_(): Index is supposed to be a vector");
    }
    if (index.scalar_type() != ScalarType::Long && index.scalar_type() != ScalarType::Int) {
        fail("index_add_(): Expected dtype int32/int64 for index");
    }
    if (into.scalar_type() != source.scalar_type()) {
        fail(text("index_add_(): self (", c10::toString(into.scalar_type()), ") and source (",
                  c10::toString(source.scalar_type()), ") must have the same scalar type"));
    }
    bool fits = source.dim() == into.dim();
    for (int64_t i = 0; fits && i < into.dim(); ++i) {
        fits = source.size(i) == (i == along ? index.numel() : into.size(i));
    }
    if (!fits) {
        fail(text("index_add_(): a source of ", index.numel(), " slices of self's size ", into.sizes(),
                  " along dimension ", along, " was expected, got ", source.sizes()));
    }
    return along;
}
OPFORGE_IF_USED
inline double reduced_count(const Tensor& t, OptionalIntArrayRef dim) {
    if (!dim || dim->empty()) {
        return double(t.numel());
    }
    double count = 1;
    for (int64_t i : *dim) {
        count *= t.dim() > 0 ? double(t.size(i)) : 1;
    }
    return count;
}
// A norm of another number than 2. Where all is zero its gradient is zero, and not that of a root.
OPFORGE_IF_USED
inline Tensor norm_by_powers(const Tensor& a, double p, IntArrayRef dim, bool keepdim,
                             std::optional<ScalarType> dtype) {
    if (category(a.scalar_type()) < Category::Real) {
        fail(text("linalg.vector_norm: Expected a floating point or complex tensor as input. Got ",
                  c10::toString(a.scalar_type())));
    }
    if (is_float8(a.scalar_type())) {
        fail<NotImplementedError>(text("\"norm_cpu\" not implemented for '", c10::toString(a.scalar_type()), "'"));
    }
    if (p < 0 && reduced_count(a, dim) == 0) {
        fail(text("linalg.vector_norm cannot compute the ", p,
                  " norm on an empty tensor because the operation does not"
                  " have an identity"));
    }
    const Tensor x = call<Tensor>("aten::abs", "", dtype ? converted(a, *dtype) : a);
    const ScalarType type = x.scalar_type();
    if (std::isinf(p)) {
        return call<Tensor>(p > 0 ? "aten::amax" : "aten::amin", "", x, dim, keepdim);
    }
    auto sum = [&](const Tensor& t, ScalarType in) {
        return call<Tensor>("aten::sum", "dim_IntList", t, std::optional<IntArrayRef>(dim), keepdim,
                            std::optional<ScalarType>(in));
    };
    if (p == 1) {
        return sum(x, type);
    }
    if (p == 0) {  // a gradient of zeros
        return sum_of(sum(converted(binary("aten::ne", "Tensor", x, 0), type), type),
                      sum(call<Tensor>("aten::sign", "", x), type), 0);
    }
    const Tensor powers = sum(power(widened(x), p), computed_in(type));
    const Tensor is_zero = binary("aten::eq", "Tensor", powers, 0);
    const Tensor root =
        power(call<Tensor>("aten::masked_fill", "Tensor", powers, is_zero, number_for(powers, 1)), 1 / p);
    return converted(
        call<Tensor>("aten::masked_fill", "Tensor", root, is_zero, number_for(powers, p > 0 ? 0.0 : HUGE_VAL)), type);
}
}  // namespace facade
}  // namespace opforge_facade
}  // namespace at

namespace c10 {
inline namespace opforge_facade {
inline ScalarType TensorOptions::default_dtype() { return at::facade::default_dtype(); }
}  // namespace opforge_facade
}  // namespace c10

// Tensor::index and index_put_ with numbers, slices, None, "..." and tensors, and Tensor's other
// methods that need operators.
#pragma once
#include "operators.h"
#include "symbols.h"

namespace at {
inline namespace opforge_facade {
namespace indexing {

struct NoneIndex {
    operator std::optional<int64_t>() const { return std::nullopt; }
};
struct EllipsisIndexType {};
inline constexpr NoneIndex None{};
inline constexpr EllipsisIndexType Ellipsis{};

struct Slice {
    OPFORGE_IF_USED
    Slice(std::optional<int64_t> start = std::nullopt, std::optional<int64_t> stop = std::nullopt,
          std::optional<int64_t> step = std::nullopt)
        : step_(step.value_or(1)) {
        if (step_ == 0) {
            c10::facade::fail<c10::ValueError>("slice step cannot be zero");
        }
        start_ = start.value_or(step_ < 0 ? std::numeric_limits<int64_t>::max() : 0);
        stop_ = stop.value_or(step_ < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max());
    }
    int64_t start() const { return start_; }
    int64_t stop() const { return stop_; }
    int64_t step() const { return step_; }

private:
    int64_t start_, stop_, step_;
};

struct TensorIndex {
    OPFORGE_IF_USED
    TensorIndex(NoneIndex v) : value(v) {}
    OPFORGE_IF_USED
    TensorIndex(std::nullopt_t) : value(NoneIndex()) {}
    OPFORGE_IF_USED
    TensorIndex(EllipsisIndexType v) : value(v) {}
    OPFORGE_IF_USED
    TensorIndex(const char* text) : value(EllipsisIndexType()) {
        if (std::string_view(text) != "...") {
            c10::facade::fail(
                c10::facade::text("Expected \"...\" to represent an ellipsis index, but got \"", text, "\""));
        }
    }
    OPFORGE_IF_USED
    TensorIndex(Slice v) : value(v) {}
    OPFORGE_IF_USED
    TensorIndex(Tensor v) : value(std::move(v)) {}
    template <class T, class = std::enable_if_t<std::is_same_v<T, bool>>>
    TensorIndex(T v) : value(bool{v}) {}
    template <class I, class = std::enable_if_t<std::is_integral_v<I> && !std::is_same_v<I, bool>>, int = 0>
    TensorIndex(I v) : value(static_cast<int64_t>(v)) {}
    std::variant<NoneIndex, EllipsisIndexType, int64_t, bool, Slice, Tensor> value;
};
}  // namespace indexing

namespace facade {
struct Indexed {
    Tensor view;
    std::vector<std::optional<Tensor>> tensors;  // none: the view is the result
};
OPFORGE_IF_USED
inline Tensor bool_index(const Tensor& t, bool value) {
    // True selects the new dimension, false nothing of it
    return value ? converted(number(Scalar(0)), ScalarType::Long).unsqueeze(0).to(t.device())
                 : empty(int64_t{0}, TensorOptions(ScalarType::Long).device(t.device()));
}
// The numbers of dimensions that the indices take, without those that add one.
OPFORGE_IF_USED
inline int64_t taken_dims(ArrayRef<indexing::TensorIndex> indices) {
    int64_t n = 0;
    for (const auto& index : indices) {
        if (auto* t = std::get_if<Tensor>(&index.value)) {
            bool mask = t->scalar_type() == ScalarType::Bool || t->scalar_type() == ScalarType::Byte;
            n += mask ? t->dim() : 1;
        } else {
            n += std::holds_alternative<int64_t>(index.value) || std::holds_alternative<indexing::Slice>(index.value);
        }
    }
    return n;
}
OPFORGE_IF_USED
inline Tensor selected(const Tensor& t, int64_t dim, int64_t index, int64_t original_dim) {
    if (t.dim() == 0) {
        fail<IndexError>(
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to "
            "convert a 0-dim tensor to a number");
    }
    int64_t size = t.size(dim);
    if (index < -size || index >= size) {
        fail<IndexError>(text("index ", index, " is out of bounds for dimension ", original_dim, " with size ", size));
    }
    return t.select(dim, index);
}
OPFORGE_IF_USED
inline Indexed indexed(const Tensor& self, ArrayRef<indexing::TensorIndex> indices) {
    Indexed r{self, {}};
    int64_t dim = 0, original = 0;
    const int64_t taken = taken_dims(indices);
    if (taken > self.dim()) {
        fail<IndexError>(text("too many indices for tensor of dimension ", self.dim()));
    }
    auto record = [&](const Tensor& t) {
        r.tensors.resize(static_cast<size_t>(dim) + 1);
        r.tensors[static_cast<size_t>(dim)] = t.device() == self.device() ? t : t.to(self.device());
        ++dim;
    };
    for (const auto& index : indices) {
        if (std::holds_alternative<indexing::NoneIndex>(index.value)) {
            r.view = r.view.unsqueeze(dim++);
        } else if (std::holds_alternative<indexing::EllipsisIndexType>(index.value)) {
            dim += self.dim() - taken;
            original += self.dim() - taken;
        } else if (auto* i = std::get_if<int64_t>(&index.value)) {
            r.view = selected(r.view, dim, *i, original++);
        } else if (auto* b = std::get_if<bool>(&index.value)) {
            r.view = r.view.unsqueeze(dim);
            record(bool_index(self, *b));
        } else if (auto* s = std::get_if<indexing::Slice>(&index.value)) {
            if (s->step() < 0) {
                fail<c10::ValueError>("step must be greater than zero");
            }
            r.view = r.view.slice(dim++, s->start(), s->stop(), s->step());
            ++original;
        } else {
            const Tensor& t = std::get<Tensor>(index.value);
            ScalarType type = t.scalar_type();
            if (t.dim() == 0 && isIntegralType(type, true)) {
                if (type == ScalarType::Bool || type == ScalarType::Byte) {
                    r.view = r.view.unsqueeze(dim);
                    record(bool_index(self, t.item().to<bool>()));
                } else {
                    r.view = selected(r.view, dim, t.item().toLong(), original);
                }
            } else {
                record(t);
            }
            ++original;
        }
    }
    return r;
}
// Copies, after leading dimensions of one were left out of the source.
OPFORGE_IF_USED
inline void copy_broadcast(const Tensor& target, Tensor source) {
    int64_t extra = source.dim() - target.dim();
    for (; extra > 0 && source.size(0) == 1; --extra) {
        source = source.squeeze(0);
    }
    target.copy_(source);
}
}  // namespace facade
}  // namespace opforge_facade

template <int>
Tensor Tensor::index(ArrayRef<indexing::TensorIndex> indices) const {
    if (indices.empty()) {
        c10::facade::fail("Passing an empty index list to Tensor::index() is not valid syntax");
    }
    auto [view, tensors] = facade::indexed(*this, indices);
    if (tensors.empty()) {
        return view.handle_or_null() == handle_or_null() ? view.alias() : view;
    }
    return facade::call<Tensor>("aten::index", "Tensor", view, tensors);
}
template <int>
Tensor Tensor::index(std::initializer_list<indexing::TensorIndex> indices) const {
    return index(ArrayRef<indexing::TensorIndex>(indices));
}
template <int>
Tensor& Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor& values) {
    if (indices.empty()) {
        c10::facade::fail("Passing an empty index list to Tensor::index_put_() is not valid syntax");
    }
    auto [view, tensors] = facade::indexed(*this, indices);
    if (tensors.empty()) {
        facade::copy_broadcast(view, values);
    } else {
        Tensor source = values;
        while (source.dim() > 0 && source.dim() > view.dim() && source.size(0) == 1) {
            source = source.squeeze(0);
        }
        facade::call_in_place("aten::index_put_", "", view, tensors, source.to(device()), false);
    }
    return *this;
}
template <int>
Tensor& Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Scalar& value) {
    if (facade::category(scalar_type()) < facade::Category::Real) {
        facade::check_fits(value, scalar_type());
    }
    return index_put_(indices, facade::converted(facade::number(value), scalar_type()).to(device()));
}
template <int>
Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& values) {
    return index_put_(ArrayRef<indexing::TensorIndex>(indices), values);
}
template <int>
Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> indices, const Scalar& value) {
    return index_put_(ArrayRef<indexing::TensorIndex>(indices), value);
}
template <int>
Tensor Tensor::operator[](int64_t i) const {
    return select(0, i);
}
template <int>
Tensor Tensor::operator[](const Tensor& i) const {
    if (!i.defined()) {
        c10::facade::fail<IndexError>("Can only index with tensors that are defined");
    }
    if (i.dim() != 0) {
        c10::facade::fail<IndexError>(c10::facade::text("Can only index with tensors that are scalars (zero-dim)"));
    }
    return (*this)[i.item()];
}
template <int>
Tensor& Tensor::operator=(const Scalar& value) && {
    return fill_(value);
}

template <int>
Scalar Tensor::item() const {
    if (numel() != 1) {
        c10::facade::fail(c10::facade::text("a Tensor with ", numel(), " elements cannot be converted to Scalar"));
    }
    switch (scalar_type()) {
#define OPFORGE_ITEM(T, N, function)                                           \
    case ScalarType::N: {                                                      \
        T value{};                                                             \
        facade::check(aoti_torch_item_##function(handle(), &value), "item()"); \
        return value;                                                          \
    }
        OPFORGE_ITEM(float, Float, float32)
        OPFORGE_ITEM(double, Double, float64)
        OPFORGE_ITEM(int64_t, Long, int64)
        OPFORGE_ITEM(int32_t, Int, int32)
        OPFORGE_ITEM(int16_t, Short, int16)
        OPFORGE_ITEM(int8_t, Char, int8)
        OPFORGE_ITEM(uint8_t, Byte, uint8)
        OPFORGE_ITEM(uint16_t, UInt16, uint16)
        OPFORGE_ITEM(uint32_t, UInt32, uint32)
        OPFORGE_ITEM(bool, Bool, bool)
        OPFORGE_ITEM(BFloat16, BFloat16, bfloat16)
        OPFORGE_ITEM(c10::complex<float>, ComplexFloat, complex64)
#undef OPFORGE_ITEM
        case ScalarType::Half: {
            // the C function's type for it is not the same in all headers: a half is exact in float32
            float value{};
            Tensor wide = facade::converted(*this, ScalarType::Float);
            facade::check(aoti_torch_item_float32(wide.handle(), &value), "item()");
            return value;
        }
        case ScalarType::ComplexDouble: {
            Tensor parts = view_as_real(*this).reshape(int64_t{2});
            double re{}, im{};
            facade::check(aoti_torch_item_float64(parts.select(0, 0).handle(), &re), "item()");
            facade::check(aoti_torch_item_float64(parts.select(0, 1).handle(), &im), "item()");
            return c10::complex<double>(re, im);
        }
        case ScalarType::Float8_e5m2:
        case ScalarType::Float8_e4m3fn:
        case ScalarType::Float8_e5m2fnuz:
        case ScalarType::Float8_e4m3fnuz:
            return facade::converted(*this, ScalarType::Float).item();
        case ScalarType::ComplexHalf:
            return facade::converted(*this, ScalarType::ComplexFloat).item();
        case ScalarType::UInt64: {
            const Scalar value = facade::converted(*this, ScalarType::Long).item();
            if (value.toLong() < 0) {
                c10::facade::fail("item() over 2^63 - 1 is not on torch's stable ABI, as no Scalar is");
            }
            return value;
        }
        default:
            c10::facade::fail(
                c10::facade::text("item() of ", c10::toString(scalar_type()), " is not on torch's stable ABI"));
    }
}

// The stable ABI cannot read requires_grad. In grad mode an alias is a leaf exactly if its base needs
// no gradient.
inline bool Tensor::requires_grad() const {
    struct GradMode {
        bool before = aoti_torch_grad_mode_is_enabled();
        GradMode() { aoti_torch_grad_mode_set_enabled(true); }
        ~GradMode() { aoti_torch_grad_mode_set_enabled(before); }
    } mode;
    ScalarType t = scalar_type();
    if (!isFloatingType(t) && !isComplexType(t)) {
        return false;
    }
    return !facade::call<Tensor>("aten::alias", "", *this).is_leaf();
}

inline namespace opforge_facade {
// ---- operators
#define OPFORGE_BINARY(op, method)                         \
    template <int N = 0>                                   \
    Tensor operator op(const Tensor& a, const Tensor& b) { \
        return a.method(b);                                \
    }                                                      \
    template <int N = 0>                                   \
    Tensor operator op(const Tensor& a, const Scalar& b) { \
        return a.method(b);                                \
    }
OPFORGE_BINARY(+, add)
OPFORGE_BINARY(-, sub)
OPFORGE_BINARY(*, mul)
OPFORGE_BINARY(/, div)
OPFORGE_BINARY(%, remainder)
OPFORGE_BINARY(&, bitwise_and)
OPFORGE_BINARY(|, bitwise_or)
OPFORGE_BINARY(^, bitwise_xor)
OPFORGE_BINARY(==, eq)
OPFORGE_BINARY(!=, ne)
OPFORGE_BINARY(<, lt)
OPFORGE_BINARY(<=, le)
OPFORGE_BINARY(>, gt)
OPFORGE_BINARY(>=, ge)
#undef OPFORGE_BINARY
template <int N = 0>
Tensor operator+(const Scalar& a, const Tensor& b) {
    return b.add(a);
}
template <int N = 0>
Tensor operator*(const Scalar& a, const Tensor& b) {
    return b.mul(a);
}
// torch's headers compute these in a tensor of the other's dtype, which the number must fit into.
template <int N = 0>
Tensor operator-(const Scalar& a, const Tensor& b) {
    return empty_like(b).fill_(a).sub_(b);
}
template <int N = 0>
Tensor operator/(const Scalar& a, const Tensor& b) {
    return empty_like(b).fill_(a).div_(b);
}
template <int N = 0>
Tensor operator%(const Scalar& a, const Tensor& b) {
    return empty_like(b).fill_(a).remainder_(b);
}
template <int N = 0>
Tensor operator&(const Scalar& a, const Tensor& b) {
    return b.bitwise_and(a);
}
template <int N = 0>
Tensor operator|(const Scalar& a, const Tensor& b) {
    return b.bitwise_or(a);
}
template <int N = 0>
Tensor operator^(const Scalar& a, const Tensor& b) {
    return b.bitwise_xor(a);
}
template <int N = 0>
Tensor operator==(const Scalar& a, const Tensor& b) {
    return b.eq(a);
}
template <int N = 0>
Tensor operator!=(const Scalar& a, const Tensor& b) {
    return b.ne(a);
}
template <int N = 0>
Tensor operator<(const Scalar& a, const Tensor& b) {
    return b.gt(a);
}
template <int N = 0>
Tensor operator<=(const Scalar& a, const Tensor& b) {
    return b.ge(a);
}
template <int N = 0>
Tensor operator>(const Scalar& a, const Tensor& b) {
    return b.lt(a);
}
template <int N = 0>
Tensor operator>=(const Scalar& a, const Tensor& b) {
    return b.le(a);
}
// Prints as the running torch does: what a handle points at is torch's own tensor.
OPFORGE_IF_USED
std::ostream& print(std::ostream& stream, const Tensor& tensor, int64_t width) {
    if (!tensor.defined()) {
        return stream << "[ Tensor (undefined) ]";
    }
    static const auto found = c10::facade::torch_function<std::ostream&(std::ostream&, const void*, int64_t)>(
        "print", "_ZN2at5printERSoRKNS_6TensorEl");
    return found(stream, tensor.handle(), width);
}
OPFORGE_IF_USED
void print(const Tensor& tensor, int64_t width = 80) { print(std::cout, tensor, width); }
OPFORGE_IF_USED
std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) { return print(stream, tensor, 80); }

inline std::optional<Device> device_of(const Tensor& t) {
    return t.defined() ? std::optional<Device>(t.device()) : std::nullopt;
}
inline std::optional<Device> device_of(TensorList list) {
    return list.empty() ? std::nullopt : device_of(list.front());
}
}  // namespace opforge_facade
}  // namespace at

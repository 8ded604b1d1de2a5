// Small parts of ATen and c10 that sources use beside tensors: TensorArg's checks, irange, opmath_type.
#pragma once
#include "checks.h"
#include "indexing.h"

namespace c10 {
inline namespace opforge_facade {
template <class I>
class integer_range {
public:
    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = I;
        using difference_type = std::ptrdiff_t;
        using pointer = I*;
        using reference = I;
        explicit iterator(I value) : value_(value) {}
        I operator*() const { return value_; }
        iterator& operator++() {
            ++value_;
            return *this;
        }
        bool operator==(const iterator& o) const { return value_ == o.value_; }
        bool operator!=(const iterator& o) const { return value_ != o.value_; }

    private:
        I value_;
    };
    integer_range(I begin, I end) : begin_(begin), end_(end) {}
    iterator begin() const { return begin_; }
    iterator end() const { return end_; }

private:
    iterator begin_, end_;
};
template <class A, class B>
integer_range<B> irange(A begin, B end) {
    return {static_cast<B>(begin), std::max(static_cast<B>(begin), end)};
}
template <class I>
integer_range<I> irange(I end) {
    return {I(0), std::max(I(0), end)};
}
inline int64_t maybe_wrap_dim(int64_t dim, int64_t count, bool wrap_scalar = true) {
    return at::facade::wrapped_dim(dim, count, wrap_scalar);
}
OPFORGE_IF_USED
inline int64_t multiply_integers(IntArrayRef list) {
    return std::accumulate(list.begin(), list.end(), int64_t{1}, std::multiplies<int64_t>());
}
// Host code has no device to set: a CPU's guard does nothing.
class OptionalDeviceGuard {
public:
    OptionalDeviceGuard() = default;
    explicit OptionalDeviceGuard(std::optional<Device> device) { check(device); }
    void reset_device(Device device) { check(device); }

private:
    static void check(std::optional<Device> device) {
        if (device && !device->is_cpu()) {
            facade::fail(
                facade::text("a device guard for ", device->str(), " is not in the facade's headers for the CPU"));
        }
    }
};
class DeviceGuard {
public:
    explicit DeviceGuard(Device device) : guard_(device) {}

private:
    OptionalDeviceGuard guard_;
};
}  // namespace opforge_facade
}  // namespace c10

namespace at {
inline namespace opforge_facade {
using c10::maybe_wrap_dim;

template <class T>
struct OpMathType {
    using type = T;
};
template <>
struct OpMathType<Half> {
    using type = float;
};
template <>
struct OpMathType<BFloat16> {
    using type = float;
};
template <>
struct OpMathType<c10::complex<Half>> {
    using type = c10::complex<float>;
};
template <class T>
using opmath_type = typename OpMathType<T>::type;

// The type in which sums of a type are kept, on the CPU and on a GPU.
template <class T, bool gpu>
struct AccumulateType {
    using type = T;
};
#define OPFORGE_ACCUMULATE(T, cpu, gpu) \
    template <>                         \
    struct AccumulateType<T, false> {   \
        using type = cpu;               \
    };                                  \
    template <>                         \
    struct AccumulateType<T, true> {    \
        using type = gpu;               \
    };
OPFORGE_ACCUMULATE(bool, bool, bool)
OPFORGE_ACCUMULATE(uint8_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(int8_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(int16_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(int32_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(int64_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(float, double, float)
OPFORGE_ACCUMULATE(double, double, double)
OPFORGE_ACCUMULATE(Half, float, float)
OPFORGE_ACCUMULATE(BFloat16, float, float)
OPFORGE_ACCUMULATE(c10::complex<float>, c10::complex<double>, c10::complex<float>)
OPFORGE_ACCUMULATE(c10::complex<double>, c10::complex<double>, c10::complex<double>)
#undef OPFORGE_ACCUMULATE
template <class T, bool gpu>
using acc_type = typename AccumulateType<T, gpu>::type;

template <class T>
bool _isnan(T value) {
    if constexpr (std::is_integral_v<T>) {
        return false;
    } else if constexpr (std::is_floating_point_v<T>) {
        return std::isnan(value);
    } else {
        return std::isnan(static_cast<float>(value));
    }
}

// ---- ATen/TensorUtils.h
using CheckedFrom = const char*;
struct TensorGeometryArg;
struct TensorArg {
    const Tensor& tensor;
    const char* name;
    int pos;
    TensorArg(const Tensor& tensor, const char* name, int pos) : tensor(tensor), name(name), pos(pos) {}
    TensorArg(Tensor&&, const char*, int) = delete;
    const Tensor* operator->() const { return &tensor; }
    const Tensor& operator*() const { return tensor; }
};
OPFORGE_IF_USED
inline std::ostream& operator<<(std::ostream& stream, const TensorArg& t) {
    return t.pos == 0 ? stream << '\'' << t.name << '\'' : stream << "argument #" << t.pos << " '" << t.name << '\'';
}
OPFORGE_IF_USED
inline void checkDim(CheckedFrom c, const TensorArg& t, int64_t dim) {
    TORCH_CHECK(t->dim() == dim, "Expected ", dim, "-dimensional tensor, but got ", t->dim(),
                "-dimensional tensor for ", t, " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkSize(CheckedFrom c, const TensorArg& t, IntArrayRef size) {
    checkDim(c, t, static_cast<int64_t>(size.size()));
    TORCH_CHECK(t->sizes() == size, "Expected tensor of size ", size, ", but got tensor of size ", t->sizes(), " for ",
                t, " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkSize(CheckedFrom c, const TensorArg& t, int64_t dim, int64_t size) {
    TORCH_CHECK(t->size(dim) == size, "Expected tensor to have size ", size, " at dimension ", dim, ", but got size ",
                t->size(dim), " for ", t, " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkNumel(CheckedFrom c, const TensorArg& t, int64_t numel) {
    TORCH_CHECK(t->numel() == numel, "Expected tensor for ", t, " to have ", numel, " elements; but it actually has ",
                t->numel(), " elements (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkContiguous(CheckedFrom c, const TensorArg& t) {
    TORCH_CHECK(t->is_contiguous(), "Expected contiguous tensor, but got non-contiguous tensor for ", t,
                " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkAllContiguous(CheckedFrom c, ArrayRef<TensorArg> list) {
    for (const auto& t : list) {
        if (t->defined()) {
            checkContiguous(c, t);
        }
    }
}
OPFORGE_IF_USED
inline void checkScalarType(CheckedFrom c, const TensorArg& t, ScalarType type) {
    TORCH_CHECK(t->scalar_type() == type, "Expected tensor for ", t, " to have scalar type ", c10::toString(type),
                "; but got ", c10::toString(t->scalar_type()), " instead (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkSameType(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
    TORCH_CHECK(a->scalar_type() == b->scalar_type(), "Expected tensor for ", a,
                " to have the same type as tensor for ", b, "; but type ", c10::toString(a->scalar_type()),
                " does not equal ", c10::toString(b->scalar_type()), " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkDefined(CheckedFrom c, const TensorArg& t) {
    TORCH_CHECK(t->defined(), "Expected tensor for ", t, " to be non-null, but it was undefined ",
                " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkAllDefined(CheckedFrom c, ArrayRef<TensorArg> list) {
    for (const auto& t : list) {
        checkDefined(c, t);
    }
}
OPFORGE_IF_USED
inline void checkSameSize(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
    TORCH_CHECK(a->sizes() == b->sizes(), "Expected tensor for ", a, " to have same size as tensor for ", b, "; but ",
                a->sizes(), " does not equal ", b->sizes(), " (while checking arguments for ", c, ")");
}
}  // namespace opforge_facade
}  // namespace at

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
OPFORGE_IF_USED
ScalarType promoteTypes(ScalarType a, ScalarType b) { return at::promote_types(a, b); }
OPFORGE_IF_USED
bool canCast(ScalarType from, ScalarType to) { return at::can_cast(from, to); }
OPFORGE_IF_USED
bool isSignedType(ScalarType t) {
    TORCH_CHECK(!isQIntType(t), "isSignedType not supported for quantized types");
    return isFloatingType(t) || isComplexType(t) || t == ScalarType::Char || t == ScalarType::Short ||
           t == ScalarType::Int || t == ScalarType::Long;
}
OPFORGE_IF_USED
ScalarType get_default_dtype_as_scalartype() { return at::facade::default_dtype(); }
OPFORGE_IF_USED
TypeMeta get_default_dtype() { return at::facade::default_dtype(); }
#define OPFORGE_CONSTANT(NAME, VALUE) \
    template <class T>                \
    constexpr T NAME = static_cast<T>(VALUE);
OPFORGE_CONSTANT(e, 2.718281828459045235360287471352662)
OPFORGE_CONSTANT(euler, 0.577215664901532860606512090082402)
OPFORGE_CONSTANT(frac_1_pi, 0.318309886183790671537767526745028)
OPFORGE_CONSTANT(frac_1_sqrt_pi, 0.564189583547756286948079451560772)
OPFORGE_CONSTANT(frac_sqrt_2, 0.707106781186547524400844362104849)
OPFORGE_CONSTANT(frac_sqrt_3, 0.577350269189625764509148780501957)
OPFORGE_CONSTANT(golden_ratio, 1.618033988749894848204586834365638)
OPFORGE_CONSTANT(ln_10, 2.302585092994045684017991454684364)
OPFORGE_CONSTANT(ln_2, 0.693147180559945309417232121458176)
OPFORGE_CONSTANT(log_10_e, 0.434294481903251827651128918916605)
OPFORGE_CONSTANT(log_2_e, 1.442695040888963407359924681001892)
OPFORGE_CONSTANT(pi, 3.141592653589793238462643383279502)
OPFORGE_CONSTANT(sqrt_2, 1.414213562373095048801688724209698)
OPFORGE_CONSTANT(sqrt_3, 1.732050807568877293527446341505872)
#undef OPFORGE_CONSTANT
// A number of one type as one of another: of a complex number its real part, and of one for a byte its last 8 bits.
template <class To, class From>
C10_HOST_DEVICE To convert(From from) {
    if constexpr (is_complex<From>::value && std::is_same_v<To, bool>) {
        return from.real() || from.imag();
    } else if constexpr (is_complex<From>::value && !is_complex<To>::value) {
        return convert<To>(from.real());
    } else if constexpr (std::is_same_v<To, uint8_t>) {
        return static_cast<uint8_t>(static_cast<int64_t>(from));
    } else if constexpr (is_complex<To>::value && !std::is_constructible_v<To, From>) {
        return static_cast<To>(complex<float>(from));
    } else {
        return static_cast<To>(from);
    }
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
#define OPFORGE_OPMATH(T, math) \
    template <>                 \
    struct OpMathType<T> {      \
        using type = math;      \
    };
OPFORGE_OPMATH(Half, float)
OPFORGE_OPMATH(BFloat16, float)
OPFORGE_OPMATH(c10::Float8_e5m2, float)
OPFORGE_OPMATH(c10::Float8_e4m3fn, float)
OPFORGE_OPMATH(c10::Float8_e5m2fnuz, float)
OPFORGE_OPMATH(c10::Float8_e4m3fnuz, float)
OPFORGE_OPMATH(c10::Float8_e8m0fnu, float)
OPFORGE_OPMATH(c10::complex<Half>, c10::complex<float>)
#undef OPFORGE_OPMATH
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
OPFORGE_ACCUMULATE(char, int64_t, int64_t)
OPFORGE_ACCUMULATE(int8_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(int16_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(int32_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(int64_t, int64_t, int64_t)
OPFORGE_ACCUMULATE(float, double, float)
OPFORGE_ACCUMULATE(double, double, double)
OPFORGE_ACCUMULATE(Half, float, float)
OPFORGE_ACCUMULATE(BFloat16, float, float)
OPFORGE_ACCUMULATE(c10::Float8_e5m2, float, float)
OPFORGE_ACCUMULATE(c10::Float8_e4m3fn, float, float)
OPFORGE_ACCUMULATE(c10::Float8_e5m2fnuz, float, float)
OPFORGE_ACCUMULATE(c10::Float8_e4m3fnuz, float, float)
OPFORGE_ACCUMULATE(c10::complex<Half>, c10::complex<float>, c10::complex<float>)
OPFORGE_ACCUMULATE(c10::complex<float>, c10::complex<double>, c10::complex<float>)
OPFORGE_ACCUMULATE(c10::complex<double>, c10::complex<double>, c10::complex<double>)
#undef OPFORGE_ACCUMULATE
template <class T, bool gpu>
using acc_type = typename AccumulateType<T, gpu>::type;
// The same of a dtype.
#define OPFORGE_CASE(T, NAME) \
    case ScalarType::NAME:    \
        return CppTypeToScalarType<opmath_type<T>>::value;
OPFORGE_IF_USED
ScalarType toOpMathType(ScalarType type) {
    switch (type) {
        AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(OPFORGE_CASE)
        default:
            TORCH_INTERNAL_ASSERT(false, "Unrecognized ScalarType: ", type);
    }
}
#undef OPFORGE_CASE
#define OPFORGE_CASE(T, NAME) \
    case ScalarType::NAME:    \
        return is_cuda ? CppTypeToScalarType<acc_type<T, true>>::value : CppTypeToScalarType<acc_type<T, false>>::value;
OPFORGE_IF_USED
ScalarType toAccumulateType(ScalarType type, bool is_cuda) {
    switch (type) {
        AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(OPFORGE_CASE)
        default:
            TORCH_INTERNAL_ASSERT(false, "Unrecognized ScalarType: ", type);
    }
}
#undef OPFORGE_CASE
OPFORGE_IF_USED
ScalarType toAccumulateType(ScalarType type, DeviceType device) {
    return toAccumulateType(type, device == DeviceType::CUDA);
}

template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
C10_HOST_DEVICE constexpr T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}
template <class T>
C10_HOST_DEVICE constexpr T round_up(T a, T b) {
    return ceil_div(a, b) * b;
}

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
                "; but got ", t->type().toString(), " instead (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkSameType(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
    const auto one = a->type(), other = b->type();
    TORCH_CHECK(one == other, "Expected tensor for ", a, " to have the same type as tensor for ", b, "; but type ",
                one.toString(), " does not equal ", other.toString(), " (while checking arguments for ", c, ")");
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
OPFORGE_IF_USED
inline void checkDimRange(CheckedFrom c, const TensorArg& t, int64_t begin, int64_t end) {
    TORCH_CHECK(t->dim() >= begin && t->dim() < end, "Expected ", begin, " to ", end - 1, " dimensions, but got ",
                t->dim(), "-dimensional tensor for ", t, " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkSameDim(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
    TORCH_CHECK(a->dim() == b->dim(), "Expected tensor for ", a, " to have the same dimension as tensor for ", b,
                "; but ", a->dim(), " does not equal ", b->dim(), " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkSameNumel(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
    TORCH_CHECK(a->numel() == b->numel(), "Expected tensor for ", a, " to have same number of elements as tensor for ",
                b, "; but ", a->numel(), " does not equal ", b->numel(), " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkSameGPU(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
    std::ostringstream on_cpu;
    for (const TensorArg* t : {&a, &b}) {
        if ((*t)->is_cpu()) {
            on_cpu << "Tensor for " << *t << " is on CPU, ";
        }
    }
    TORCH_CHECK(on_cpu.str().empty(), on_cpu.str(), "but expected it to be on GPU (while checking arguments for ", c,
                ")");
    TORCH_CHECK(a->get_device() == b->get_device(), "Expected tensor for ", a,
                " to have the same device as tensor for ", b, "; but device ", a->get_device(), " does not equal ",
                b->get_device(), " (while checking arguments for ", c, ")");
}
OPFORGE_IF_USED
inline void checkScalarTypes(CheckedFrom c, const TensorArg& t, ArrayRef<ScalarType> types) {
    std::ostringstream names;
    for (size_t i = 0; i < types.size(); ++i) {
        names << (i ? ", " : "") << c10::toString(types[i]);
    }
    TORCH_CHECK(std::find(types.begin(), types.end(), t->scalar_type()) != types.end(), "Expected tensor for ", t,
                " to have one of the following scalar types: ", names.str(), "; but got ", t->type().toString(),
                " instead (while checking arguments for ", c, ")");
}
// Each of the defined tensors is compared with the first of them.
#define OPFORGE_CHECK_ALL(NAME)                                           \
    OPFORGE_IF_USED                                                       \
    inline void checkAll##NAME(CheckedFrom c, ArrayRef<TensorArg> list) { \
        const TensorArg* first = nullptr;                                 \
        for (const auto& t : list) {                                      \
            if (t->defined()) {                                           \
                first ? check##NAME(c, *first, t) : static_cast<void>(0); \
                first = first ? first : &t;                               \
            }                                                             \
        }                                                                 \
    }
OPFORGE_CHECK_ALL(SameNumel)
OPFORGE_CHECK_ALL(SameGPU)
OPFORGE_CHECK_ALL(SameType)
OPFORGE_CHECK_ALL(SameSize)
#undef OPFORGE_CHECK_ALL
OPFORGE_IF_USED
inline void checkDeviceType(CheckedFrom c, ArrayRef<Tensor> tensors, DeviceType type) {
    for (const auto& t : tensors) {
        TORCH_CHECK(!t.defined() || t.device().type() == type, "Expected tensor to have ", type,
                    " DeviceType, but got tensor with ", t.device().type(),
                    " DeviceType (while checking arguments for ", c, ")");
    }
}
OPFORGE_IF_USED
inline void checkLayout(CheckedFrom c, ArrayRef<Tensor> tensors, Layout layout) {
    for (const auto& t : tensors) {
        TORCH_CHECK(!t.defined() || t.layout() == layout, "Expected tensor to have ", layout,
                    " Layout, but got tensor with ", t.layout(), " Layout (while checking arguments for ", c, ")");
    }
}
OPFORGE_IF_USED
inline void check_dim_size(const Tensor& t, int64_t dim, int64_t at, int64_t size) {
    TORCH_CHECK(t.dim() == dim && t.size(at) == size, "Expected a tensor of dimension ", dim, " and tensor.size[", at,
                "] == ", size, ", but got : dimension ", t.dim(), " and tensor.size[", at, "] = ", t.size(at));
}
inline void* maybe_data_ptr(const Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }
inline void* maybe_data_ptr(const TensorArg& t) { return maybe_data_ptr(*t); }

// The seed of a generator that was given none.
constexpr uint64_t default_rng_seed_val = 67280421310721;
}  // namespace opforge_facade
}  // namespace at

namespace torch {
inline namespace opforge_facade {
namespace autograd {
// What is written through a pointer is unknown to autograd: a view without elements counts it for the whole tensor.
OPFORGE_IF_USED
inline void increment_version(const at::Tensor& t) {
    const at::Tensor view = t.detach();
    (view.dim() ? view : view.unsqueeze(0)).narrow(0, 0, 0).zero_();
}
}  // namespace autograd
namespace utils {
OPFORGE_IF_USED
inline at::Tensor flatten_dense_tensors(at::TensorList tensors) { return at::flatten_dense_tensors(tensors); }
OPFORGE_IF_USED
inline std::vector<at::Tensor> unflatten_dense_tensors(const at::Tensor& flat, at::TensorList tensors) {
    return at::unflatten_dense_tensors(flat, tensors);
}
}  // namespace utils
}  // namespace opforge_facade
}  // namespace torch

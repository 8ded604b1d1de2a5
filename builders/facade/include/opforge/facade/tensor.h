// Tensor: a shared handle of the stable ABI. A Tensor without a handle is an undefined one.
#pragma once
#include <torch/headeronly/core/TensorAccessor.h>

#include "types.h"

#define OPFORGE_REFUSED(name, type)                          \
    name " is not on torch's stable ABI: it passes no " type \
         ". Pass a tensor, or build this source with "       \
         "torch's own headers (opforge: abi=\"torch\")."

namespace at {
using namespace c10;
// In no inline namespace: sources declare `namespace at { class Tensor; }` themselves before they include a header.
class Tensor;
inline namespace opforge_facade {
using TensorBase = Tensor;
using TensorList = ArrayRef<Tensor>;
using ITensorListRef = TensorList;
using OptionalTensorRef = std::optional<Tensor>;
using c10::Device;
using c10::Generator;
using c10::Scalar;
using c10::SymInt;
using c10::SymIntArrayRef;

using torch::headeronly::DefaultPtrTraits;
#if defined(__CUDACC__) || defined(__HIPCC__)
using torch::headeronly::RestrictPtrTraits;
#endif
template <size_t N, class index_t>
struct IndexBoundsCheck {
    IndexBoundsCheck(index_t i) {
        if (i < 0 || i >= index_t{N}) {
            c10::facade::fail<IndexError>(
                c10::facade::text("Index ", i, " is not within bounds of a tensor of dimension ", N));
        }
    }
};
template <class T, size_t N, template <class> class P = DefaultPtrTraits, class index_t = int64_t>
using TensorAccessorBase = torch::headeronly::detail::TensorAccessorBase<IntArrayRef, T, N, P, index_t>;
template <class T, size_t N, template <class> class P = DefaultPtrTraits, class index_t = int64_t>
using TensorAccessor = torch::headeronly::detail::TensorAccessor<IntArrayRef, T, N, P, index_t>;
template <class T, size_t N, template <class> class P = DefaultPtrTraits, class index_t = int64_t>
using GenericPackedTensorAccessor =
    torch::headeronly::detail::GenericPackedTensorAccessor<TensorAccessor<T, N - 1, P, index_t>,
                                                           IndexBoundsCheck<N, index_t>, T, N, P, index_t>;
template <class T, size_t N, template <class> class P = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, P, int32_t>;
template <class T, size_t N, template <class> class P = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, P, int64_t>;
template <class T, size_t N, template <class> class P = DefaultPtrTraits, class index_t = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, P, index_t>;

namespace indexing {
struct TensorIndex;
}
namespace Reduction {
enum Reduction { None, Mean, Sum, END };
}

// What the deprecated Tensor::type() gives.
class DeprecatedTypeProperties {
public:
    DeprecatedTypeProperties(ScalarType type, Device device, Layout layout)
        : type_(type), device_(device), layout_(layout) {}
    ScalarType scalarType() const { return type_; }
    TypeMeta typeMeta() const { return type_; }
    DeprecatedTypeProperties toScalarType(ScalarType type) const { return {type, device_, layout_}; }
    Layout layout() const { return layout_; }
    DeviceType device_type() const { return device_.type(); }
    bool is_cuda() const { return device_.is_cuda(); }
    bool is_sparse() const { return layout_ == Layout::Sparse; }
    template <int = 0>
    std::string toString() const {
        std::ostringstream name;
        if (layout_ != Layout::Strided) {
            name << layout_;
        } else if (isQIntType(type_)) {
            name << "Quantized";
        }
        // torch writes this one device as it writes the key of the dispatcher.
        name << (device_.is_meta() ? "Meta" : DeviceTypeName(device_.type())) << c10::toString(type_) << "Type";
        return name.str();
    }
    TensorOptions options(DeviceIndex index = -1) const {
        return TensorOptions(type_).device(device_.type(), index).layout(layout_);
    }
    operator TensorOptions() const { return options(); }
    bool operator==(const DeprecatedTypeProperties& o) const {
        return type_ == o.type_ && device_.type() == o.device_.type() && layout_ == o.layout_;
    }
    bool operator!=(const DeprecatedTypeProperties& o) const { return !(*this == o); }

private:
    ScalarType type_;
    Device device_;
    Layout layout_;
};
inline DeprecatedTypeProperties CPU(ScalarType t) { return {t, DeviceType::CPU, Layout::Strided}; }
inline DeprecatedTypeProperties CUDA(ScalarType t) { return {t, DeviceType::CUDA, Layout::Strided}; }

// A tensor's memory as a whole. Only an undefined tensor has none, and who else shares it cannot be asked.
class Storage {
public:
    explicit Storage(const Tensor& tensor);
    operator bool() const { return true; }
    size_t nbytes() const { return size_; }

private:
    size_t size_;
};

// The calls that a Tensor's methods make: a template, so that the methods can be declared first.
template <int>
struct ops;
namespace facade {
using c10::facade::check;
using c10::facade::fail;
using c10::facade::text;

// Returns the index of a dimension that may count from the end.
inline int64_t wrapped_dim(int64_t dim, int64_t count, bool scalar_has_one = true) {
    if (count == 0 && scalar_has_one) {
        count = 1;
    }
    if (count == 0) {
        fail<IndexError>(text("Dimension specified as ", dim, " but tensor has no dimensions"));
    }
    if (dim < -count || dim >= count) {
        fail<IndexError>(text("Dimension out of range (expected to be in range of [", -count, ", ", count - 1,
                              "], but got ", dim, ")"));
    }
    return dim < 0 ? dim + count : dim;
}
inline Tensor with_grad(const TensorOptions& options, Tensor made);
inline std::optional<MemoryFormat> memory_format(const TensorOptions& options, std::optional<MemoryFormat> format) {
    if (options.has_memory_format() && format) {
        fail(
            "Cannot set memory_format both in TensorOptions and explicit argument; please delete the redundant "
            "setter.");
    }
    return format ? format : options.memory_format_opt();
}
// A factory's device and layout, none where they are those that it has by default: passing a value that can be none
// costs a tenth of a call of `empty`.
inline std::optional<Device> device_to_pass(const TensorOptions& options) {
    const std::optional<Device> device = options.device_opt();
    return device && device->is_cpu() && !device->has_index() ? std::nullopt : device;
}
inline std::optional<Layout> layout_to_pass(const TensorOptions& options) {
    const std::optional<Layout> layout = options.layout_opt();
    return layout == Layout::Strided ? std::nullopt : layout;
}
}  // namespace facade
}  // namespace opforge_facade

class Tensor {
public:
    Tensor() = default;
    Tensor(const Tensor&) = default;
    Tensor(Tensor&&) noexcept = default;
    ~Tensor() = default;
    Tensor& operator=(const Tensor&) & = default;
    Tensor& operator=(Tensor&&) & noexcept = default;
    // What is assigned to a temporary, as x[0] = y, is copied into its elements.
    OPFORGE_IF_USED
    Tensor& operator=(const Scalar& value) &&;
    Tensor& operator=(const Tensor& other) && { return static_cast<Tensor&&>(*this).assign(other); }
    Tensor& operator=(Tensor&& other) && { return static_cast<Tensor&&>(*this).assign(other); }

    // Takes a handle over. An undefined tensor's handle is freed, and none is kept.
    static Tensor adopt(AtenTensorHandle handle) {
        Tensor r;
        if (handle) {
            r.handle_ = Handle(handle);
            bool defined = true;
            facade::check(aoti_torch_is_defined(handle, &defined), "a tensor");
            if (!defined) {
                r.reset();
            }
        }
        return r;
    }
    AtenTensorHandle handle_or_null() const { return handle_.get(); }
    AtenTensorHandle handle() const {
        if (__builtin_expect(!defined(), 0)) {
            facade::fail("this operation needs a tensor, and the one given is undefined");
        }
        return handle_.get();
    }

    bool defined() const { return handle_.get() != nullptr; }
    void reset() { handle_ = Handle(); }
    // An undefined tensor has one dimension, and no elements in it, as torch's has.
    int64_t dim() const {
        int64_t n = 1;
        if (!defined()) {
            return n;
        }
        facade::check(aoti_torch_get_dim(handle(), &n), "dim()");
        return n;
    }
    int64_t ndimension() const { return dim(); }
    int64_t numel() const {
        int64_t n = 0;
        if (!defined()) {
            return n;
        }
        facade::check(aoti_torch_get_numel(handle(), &n), "numel()");
        return n;
    }
    IntArrayRef sizes() const {
        static const int64_t none[] = {0};
        if (!defined()) {
            return none;
        }
        int64_t* p;
        facade::check(aoti_torch_get_sizes(handle(), &p), "sizes()");
        return {p, static_cast<size_t>(dim())};
    }
    IntArrayRef strides() const {
        int64_t* p;
        facade::check(aoti_torch_get_strides(handle(), &p), "strides()");
        return {p, static_cast<size_t>(dim())};
    }
    int64_t size(int64_t i) const {
        auto s = sizes();
        return s[facade::wrapped_dim(i, s.size(), false)];
    }
    int64_t stride(int64_t i) const {
        auto s = strides();
        return s[facade::wrapped_dim(i, s.size(), false)];
    }
    SymIntArrayRef sym_sizes() const { return c10::fromIntArrayRefSlow(sizes()); }
    SymIntArrayRef sym_strides() const { return c10::fromIntArrayRefSlow(strides()); }
    SymInt sym_size(int64_t i) const { return size(i); }
    SymInt sym_stride(int64_t i) const { return stride(i); }
    SymInt sym_numel() const { return numel(); }
    int64_t storage_offset() const {
        int64_t n;
        facade::check(aoti_torch_get_storage_offset(handle(), &n), "storage_offset()");
        return n;
    }
    ScalarType scalar_type() const {
        int32_t t;
        facade::check(aoti_torch_get_dtype(handle(), &t), "scalar_type()");
        return static_cast<ScalarType>(t);
    }
    TypeMeta dtype() const { return scalar_type(); }
    size_t itemsize() const { return elementSize(scalar_type()); }
    int64_t element_size() const { return static_cast<int64_t>(itemsize()); }
    size_t nbytes() const { return static_cast<size_t>(numel()) * itemsize(); }
    Device device() const {
        int32_t type, index;
        facade::check(aoti_torch_get_device_type(handle(), &type), "device()");
        facade::check(aoti_torch_get_device_index(handle(), &index), "device()");
        return {static_cast<DeviceType>(type), static_cast<DeviceIndex>(type == 0 ? -1 : index)};
    }
    DeviceIndex get_device() const {
        int32_t index;
        facade::check(aoti_torch_get_device_index(handle(), &index), "get_device()");
        return static_cast<DeviceIndex>(index);
    }
    Layout layout() const {
        int32_t l;
        facade::check(aoti_torch_get_layout(handle(), &l), "layout()");
        return static_cast<Layout>(l);
    }
    bool is_cpu() const { return device().is_cpu(); }
    bool is_cuda() const { return device().is_cuda(); }
    bool is_xpu() const { return device().is_xpu(); }
    bool is_mps() const { return device().is_mps(); }
    bool is_hip() const { return device().is_hip(); }
    bool is_hpu() const { return device().is_hpu(); }
    bool is_xla() const { return device().is_xla(); }
    bool is_meta() const { return device().is_meta(); }
    bool is_privateuseone() const { return device().is_privateuseone(); }
    bool is_sparse() const { return layout() == Layout::Sparse; }
    bool is_sparse_csr() const { return layout() == Layout::SparseCsr; }
    bool is_mkldnn() const { return layout() == Layout::Mkldnn; }
    bool is_floating_point() const { return isFloatingType(scalar_type()); }
    bool is_complex() const { return isComplexType(scalar_type()); }
    bool is_contiguous() const {
        bool r;
        facade::check(aoti_torch_is_contiguous(handle(), &r), "is_contiguous()");
        return r;
    }
    bool is_contiguous(MemoryFormat format) const {
        return format == MemoryFormat::ChannelsLast     ? has_channels_last_strides(4)
               : format == MemoryFormat::ChannelsLast3d ? has_channels_last_strides(5)
                                                        : is_contiguous();
    }
    // Whether the elements lie side by side, in whatever order of the dimensions.
    template <int = 0>
    bool is_non_overlapping_and_dense() const {
        std::vector<std::pair<int64_t, int64_t>> steps;
        for (int64_t i = 0; i < dim(); ++i) {
            if (size(i) > 1) {
                steps.emplace_back(stride(i), size(i));
            }
        }
        std::sort(steps.begin(), steps.end());
        int64_t expected = 1;
        for (const auto& [step, size] : steps) {
            if (step != expected) {
                return is_contiguous();  // as a tensor without elements is
            }
            expected *= size;
        }
        return true;
    }
    // The format whose order the strides are in: that of torch, which looks at no dimension's exact step.
    MemoryFormat suggest_memory_format(bool channels_last_strides_exact_match = false) const {
        if (layout() == Layout::Strided) {
            for (MemoryFormat format : {MemoryFormat::ChannelsLast, MemoryFormat::ChannelsLast3d}) {
                const int64_t n = format == MemoryFormat::ChannelsLast ? 4 : 5;
                if (channels_last_strides_exact_match ? has_channels_last_strides(n) : is_like_channels_last(n)) {
                    return format;
                }
            }
        }
        return MemoryFormat::Contiguous;
    }
    DeprecatedTypeProperties type() const { return {scalar_type(), device(), layout()}; }
    OPFORGE_IF_USED
    std::string toString() const { return defined() ? type().toString() : "UndefinedType"; }
    TensorOptions options() const { return {scalar_type(), device(), layout()}; }

    bool requires_grad() const;
    Tensor& set_requires_grad(bool r) const {
        facade::check(torch_set_requires_grad(handle(), r), "set_requires_grad()");
        return const_cast<Tensor&>(*this);
    }
    // not a default of the argument: clang makes no Tensor within its class
    template <int N = 0>
    void backward() const {
        backward<N>(Tensor());
    }
    template <int N = 0>
    void backward(const Tensor& gradient, std::optional<bool> retain_graph = std::nullopt, bool create_graph = false,
                  std::optional<ArrayRef<Tensor>> inputs = std::nullopt) const;
    template <int N = 0>
    Tensor grad() const;
    template <int N = 0>
    void retain_grad() const;
    // Returns the hook's number. The hook lives as long as the gradient's node.
    template <class F>
    unsigned register_hook(F&& hook) const;
    template <int N = 0>
    std::string name() const;
    Tensor& requires_grad_(bool r = true) const { return set_requires_grad(r); }
    template <int N = 0>
    bool is_leaf() const {
        return ops<N>::template call<bool>("aten::is_leaf", "", *this);
    }
    template <int N = 0>
    int64_t _version() const {
        return ops<N>::template call<int64_t>("aten::_version", "", *this);
    }
    template <int N = 0>
    bool is_conj() const {
        return ops<N>::template call<bool>("aten::is_conj", "", *this);
    }
    template <int N = 0>
    Tensor conj() const {
        return is_complex() ? ops<N>::template call<Tensor>("aten::conj", "", *this) : *this;
    }
    // Of one dimension: without these an integer would be the bool of another overload.
    template <int N = 0>
    Tensor var(int dim) const {
        return var(OptionalIntArrayRef(IntArrayRef(int64_t{dim})));
    }
    template <int N = 0>
    Tensor std(int dim) const {
        return std(OptionalIntArrayRef(IntArrayRef(int64_t{dim})));
    }
    template <int N = 0>
    bool is_neg() const {
        return ops<N>::template call<bool>("aten::is_neg", "", *this);
    }
    template <int N = 0>
    bool is_inference() const {
        return ops<N>::template call<bool>("aten::is_inference", "", *this);
    }
    template <int N = 0>
    bool is_signed() const {
        return ops<N>::template call<bool>("aten::is_signed", "", *this);
    }

    void* data_ptr() const {
        void* p;
        facade::check(aoti_torch_get_data_ptr(handle(), &p), "data_ptr()");
        return p;
    }
    void* mutable_data_ptr() const {
        void* p;
        facade::check(torch_get_mutable_data_ptr(handle(), &p), "mutable_data_ptr()");
        return p;
    }
    const void* const_data_ptr() const {
        const void* p;
        facade::check(torch_get_const_data_ptr(handle(), &p), "const_data_ptr()");
        return p;
    }
    template <class T>
    T* data_ptr() const {
        check_element<T>();
        return static_cast<T*>(allocated(data_ptr()));
    }
    template <class T>
    T* mutable_data_ptr() const {
        check_element<T>();
        return static_cast<T*>(allocated(mutable_data_ptr()));
    }
    template <class T>
    const std::remove_const_t<T>* const_data_ptr() const {
        check_element<T>();
        return static_cast<const std::remove_const_t<T>*>(allocated(const_data_ptr()));
    }
    template <class T>
    T* data() const {
        return data_ptr<T>();
    }
    template <class T, size_t N>
    TensorAccessor<T, N> accessor() const& {
        static_assert(N > 0, "accessor is used for indexing tensor, for scalars use *data_ptr<T>()");
        check_dims(N);
        return TensorAccessor<T, N>(element_data<T>(), sizes().data(), strides().data());
    }
    template <class T, size_t N>
    TensorAccessor<T, N> accessor() && = delete;
    template <class T, size_t N, template <class> class P = DefaultPtrTraits, class I = int64_t>
    GenericPackedTensorAccessor<T, N, P, I> generic_packed_accessor() const& {
        static_assert(N > 0, "accessor is used for indexing tensor, for scalars use *data_ptr<T>()");
        check_dims(N);
        return GenericPackedTensorAccessor<T, N, P, I>(static_cast<typename P<T>::PtrType>(element_data<T>()),
                                                       sizes().data(), strides().data());
    }
    template <class T, size_t N, template <class> class P = DefaultPtrTraits, class I = int64_t>
    GenericPackedTensorAccessor<T, N> generic_packed_accessor() && = delete;
    template <class T, size_t N, template <class> class P = DefaultPtrTraits, class I = int64_t>
    GenericPackedTensorAccessor<T, N, P, I> packed_accessor() const& {
        return generic_packed_accessor<T, N, P, I>();
    }
    template <class T, size_t N, template <class> class P = DefaultPtrTraits>
    PackedTensorAccessor32<T, N, P> packed_accessor32() const& {
        if (numel() > static_cast<int64_t>(std::numeric_limits<int32_t>::max())) {
            facade::fail("numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
        }
        return generic_packed_accessor<T, N, P, int32_t>();
    }
    template <class T, size_t N, template <class> class P = DefaultPtrTraits>
    PackedTensorAccessor32<T, N, P> packed_accessor32() && = delete;
    template <class T, size_t N, template <class> class P = DefaultPtrTraits>
    PackedTensorAccessor64<T, N, P> packed_accessor64() const& {
        return generic_packed_accessor<T, N, P, int64_t>();
    }
    template <class T, size_t N, template <class> class P = DefaultPtrTraits>
    PackedTensorAccessor64<T, N, P> packed_accessor64() && = delete;

    template <int N = 0>
    Scalar item() const;
    template <class T>
    T item() const {
        return item().to<T>();
    }
    template <int N = 0>
    Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
        if (is_contiguous(format)) {
            return *this;
        }
        return ops<N>::template call<Tensor>("aten::contiguous", "", *this, format);
    }
    template <int N = 0>
    MaybeOwned<Tensor> expect_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const& {
        return MaybeOwned<Tensor>::owned(defined() ? contiguous(format) : Tensor());
    }
    template <int N = 0>
    Tensor detach() const {
        return ops<N>::template call<Tensor>("aten::detach", "", *this);
    }
    // Of a tensor's memory. Of a storage the stable ABI tells the size alone.
    template <int N = 0>
    Storage storage() const {
        return Storage(*this);
    }
    template <int N = 0>
    Tensor& set_() const {
        ops<N>::in_place("aten::set_", "", *this);
        return const_cast<Tensor&>(*this);
    }
    template <int N = 0>
    Tensor& set_(const Tensor& source) const {
        ops<N>::in_place("aten::set_", "source_Tensor", *this, source);
        return const_cast<Tensor&>(*this);
    }
    template <int N = 0>
    Tensor& set_(const Tensor& source, int64_t storage_offset, IntArrayRef size, IntArrayRef stride = {}) const {
        ops<N>::in_place("aten::set_", "source_Tensor_storage_offset", *this, source, storage_offset, size, stride);
        return const_cast<Tensor&>(*this);
    }
    template <int N = 0>
    Tensor& copy_(const Tensor& source, bool non_blocking = false) const {
        ops<N>::in_place("aten::copy_", "", *this, source, non_blocking);
        return const_cast<Tensor&>(*this);
    }
    template <int N = 0>
    Tensor to(TensorOptions options = {}, bool non_blocking = false, bool copy = false,
              std::optional<MemoryFormat> format = std::nullopt) const {
        return ops<N>::template call<Tensor>("aten::to", "dtype_layout", *this, options.scalar_type_opt(),
                                             options.layout_opt(), options.device_opt(), options.pinned_memory_opt(),
                                             non_blocking, copy, facade::memory_format(options, format));
    }
    template <int N = 0>
    Tensor to(std::optional<ScalarType> dtype, std::optional<Layout> layout, std::optional<Device> device,
              std::optional<bool> pin_memory, bool non_blocking, bool copy, std::optional<MemoryFormat> format) const {
        return ops<N>::template call<Tensor>("aten::to", "dtype_layout", *this, dtype, layout, device, pin_memory,
                                             non_blocking, copy, format);
    }
    template <int N = 0>
    Tensor to(Device device, ScalarType dtype, bool non_blocking = false, bool copy = false,
              std::optional<MemoryFormat> format = std::nullopt) const {
        return ops<N>::template call<Tensor>("aten::to", "device", *this, device, dtype, non_blocking, copy, format);
    }
    template <int N = 0>
    Tensor to(ScalarType dtype, bool non_blocking = false, bool copy = false,
              std::optional<MemoryFormat> format = std::nullopt) const {
        return ops<N>::template call<Tensor>("aten::to", "dtype", *this, dtype, non_blocking, copy, format);
    }
    template <int N = 0>
    Tensor to(TypeMeta dtype, bool non_blocking = false, bool copy = false,
              std::optional<MemoryFormat> format = std::nullopt) const {
        return to(ScalarType(dtype), non_blocking, copy, format);
    }
    template <int N = 0>
    Tensor to(const Tensor& other, bool non_blocking = false, bool copy = false,
              std::optional<MemoryFormat> format = std::nullopt) const {
        return ops<N>::template call<Tensor>("aten::to", "other", *this, other, non_blocking, copy, format);
    }
    Tensor toType(ScalarType t) const { return to(TensorOptions(t)); }
    Tensor toBackend(DeviceType) const = delete;
    Tensor cpu() const { return to(options().device(DeviceType::CPU)); }
    Tensor cuda() const { return to(options().device(DeviceType::CUDA)); }
    Tensor meta() const { return to(options().device(DeviceType::Meta)); }

    template <int N = 0>
    Tensor index(ArrayRef<indexing::TensorIndex> indices) const;
    template <int N = 0>
    Tensor index(std::initializer_list<indexing::TensorIndex> indices) const;
    template <int N = 0>
    Tensor& index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor& values);
    template <int N = 0>
    Tensor& index_put_(ArrayRef<indexing::TensorIndex> indices, const Scalar& value);
    template <int N = 0>
    Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& values);
    template <int N = 0>
    Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Scalar& value);
    template <int N = 0>
    Tensor index(const c10::List<std::optional<Tensor>>& indices) const {
        return ops<N>::template call<Tensor>("aten::index", "Tensor", *this, indices);
    }
    template <int N = 0>
    Tensor& index_put_(const c10::List<std::optional<Tensor>>& indices, const Tensor& values,
                       bool accumulate = false) const {
        ops<N>::in_place("aten::index_put_", "", *this, indices, values, accumulate);
        return const_cast<Tensor&>(*this);
    }
    Tensor operator[](const Scalar& i) const {
        if (!i.isIntegral(false)) {
            facade::fail("Can only index tensors with integral scalars");
        }
        return (*this)[i.toLong()];
    }
    template <int N = 0>
    Tensor operator[](const Tensor& i) const;
    template <int N = 0>
    Tensor operator[](int64_t i) const;
    Tensor operator-() const { return neg(); }
    Tensor operator~() const { return bitwise_not(); }
    template <int N = 0>
    Tensor& operator+=(const Tensor& other) {
        return add_(other);
    }
    template <int N = 0>
    Tensor& operator+=(const Scalar& other) {
        return add_(other);
    }
    template <int N = 0>
    Tensor& operator-=(const Tensor& other) {
        return sub_(other);
    }
    template <int N = 0>
    Tensor& operator-=(const Scalar& other) {
        return sub_(other);
    }
    template <int N = 0>
    Tensor& operator*=(const Tensor& other) {
        return mul_(other);
    }
    template <int N = 0>
    Tensor& operator*=(const Scalar& other) {
        return mul_(other);
    }
    template <int N = 0>
    Tensor& operator/=(const Tensor& other) {
        return div_(other);
    }
    template <int N = 0>
    Tensor& operator/=(const Scalar& other) {
        return div_(other);
    }
    template <int N = 0>
    Tensor& operator&=(const Tensor& other) {
        return bitwise_and_(other);
    }
    template <int N = 0>
    Tensor& operator|=(const Tensor& other) {
        return bitwise_or_(other);
    }
    template <int N = 0>
    Tensor& operator^=(const Tensor& other) {
        return bitwise_xor_(other);
    }

#include "generated/methods.inc"

private:
    Tensor& assign(const Tensor& other) && {
        copy_(other);
        return *this;
    }
    template <class T>
    void check_element() const {
        if constexpr (!std::is_void_v<T>) {
            constexpr ScalarType expected = CppTypeToScalarType<std::remove_const_t<T>>::value;
            if (scalar_type() != expected) {
                facade::fail(facade::text("expected scalar type ", c10::toString(expected), " but found ",
                                          c10::toString(scalar_type())));
            }
        }
    }
    template <class T>
    T* element_data() const {
        if constexpr (std::is_const_v<T>) {
            return const_data_ptr<T>();
        } else {
            return data_ptr<T>();
        }
    }
    // A meta or a fake tensor has elements without memory.
    template <class P>
    P* allocated(P* memory) const {
        if (__builtin_expect(!memory, 0) && numel() > 0) {
            facade::fail(
                "The tensor has a non-zero number of elements, but its data is not allocated yet.\nIf you're using "
                "torch.compile/export/fx, it is likely that we are erroneously tracing into a custom kernel. To fix "
                "this, please wrap the custom kernel into an opaque custom op. Please see the following for details: "
                "https://pytorch.org/tutorials/advanced/custom_ops_landing_page.html\nIf you're using Caffe2, Caffe2 "
                "uses a lazy allocation, so you will need to call mutable_data() or raw_mutable_data() to actually "
                "allocate memory.");
        }
        return memory;
    }
    void check_dims(size_t n) const {
        if (dim() != static_cast<int64_t>(n)) {
            facade::fail(facade::text("TensorAccessor expected ", n, " dims but tensor has ", dim()));
        }
    }
    bool has_channels_last_strides(int64_t n) const {
        if (dim() != n) {
            return false;
        }
        auto size = sizes(), step = strides();
        int64_t expected = 1;
        for (int64_t i = 0; i < n; ++i) {
            int64_t d = i == 0 ? 1 : i == n - 1 ? 0 : n - i;  // channels first, then the last dimensions
            if (size[d] != 1) {
                if (step[d] != expected) {
                    return false;
                }
                expected *= size[d];
            }
        }
        return true;
    }
    // Whether the strides grow from the channels over the last dimensions to the batch. Channels of one, and whatever
    // could be both, is not in this order.
    bool is_like_channels_last(int64_t n) const {
        if (dim() != n) {
            return false;
        }
        auto size = sizes(), step = strides();
        if (step[1] == 0) {
            return false;
        }
        int64_t least = 0;
        for (int64_t i = 0; i < n; ++i) {
            int64_t d = i == 0 ? 1 : i == n - 1 ? 0 : n - i;
            if (size[d] == 0 || step[d] < least || (d == 0 && least == step[1])) {
                return false;
            }
            least = step[d] * std::max<int64_t>(size[d], 1);
        }
        return true;
    }
    // Each Tensor has a handle of its own, which counts one reference of torch's. A shared one would need memory for a
    // count beside torch's.
    class Handle {
    public:
        Handle() = default;
        explicit Handle(AtenTensorHandle owned) : handle_(owned) {}
        Handle(const Handle& o) {
            if (o.handle_) {
                facade::check(aoti_torch_new_tensor_handle(o.handle_, &handle_), "a tensor");
            }
        }
        Handle(Handle&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
        Handle& operator=(Handle o) noexcept {
            std::swap(handle_, o.handle_);
            return *this;
        }
        ~Handle() {
            if (handle_) {
                aoti_torch_delete_tensor_object(handle_);
            }
        }
        AtenTensorHandle get() const { return handle_; }

    private:
        AtenTensorHandle handle_ = nullptr;
    };
    Handle handle_;
};

inline namespace opforge_facade {
OPFORGE_IF_USED
inline MaybeOwned<Tensor> borrow_from_optional_tensor(const std::optional<Tensor>& tensor) {
    return MaybeOwned<Tensor>::owned(tensor.value_or(Tensor()));
}
inline Storage::Storage(const Tensor& tensor) {
    int64_t bytes = 0;
    facade::check(aoti_torch_get_storage_size(tensor.handle(), &bytes), "storage()");
    size_ = static_cast<size_t>(bytes);
}
namespace facade {
inline Tensor with_grad(const TensorOptions& options, Tensor made) {
    if (options.requires_grad()) {
        made.set_requires_grad(true);
    }
    return made;
}
}  // namespace facade
}  // namespace opforge_facade
}  // namespace at

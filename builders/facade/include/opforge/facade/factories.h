// Tensors of memory and of numbers that a source has: from_blob, tensor.
#pragma once
#include "indexing.h"

extern "C" __attribute__((weak, visibility("default"))) AOTITorchError torch_from_blob(
    void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t storage_offset, int32_t dtype,
    int32_t device_type, int32_t device_index, AtenTensorHandle* result, int32_t layout, const uint8_t* opaque_metadata,
    int64_t opaque_metadata_size, void (*deleter)(void* data, void* context), void* context);

namespace at {
inline namespace opforge_facade {
OPFORGE_IF_USED
inline Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& options = {}) {
    if (sizes.size() != strides.size()) {
        c10::facade::fail(c10::facade::text("from_blob: ", sizes.size(), " sizes and ", strides.size(),
                                            " strides were given, but there is one each"));
    }
    AtenTensorHandle h;
    Device device = options.device();
    ScalarType type = options.dtype();
    facade::check(
        aoti_torch_create_tensor_from_blob(data, static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), 0,
                                           static_cast<int32_t>(type), static_cast<int32_t>(device.type()),
                                           device.has_index() ? device.index() : 0, &h),
        "from_blob");
    return facade::with_grad(options, Tensor::adopt(h));
}
OPFORGE_IF_USED
inline Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& options = {}) {
    return from_blob(data, sizes, c10::contiguous_strides(sizes), options);
}
// With a deleter: torch 2.11 has the function for it, and an older one is refused when it is called.
template <class D, class = std::enable_if_t<std::is_invocable_v<D&, void*>>>
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, D deleter, const TensorOptions& options = {}) {
    if (!data) {  // what torch's C function makes of no memory never calls the deleter
        Tensor made = from_blob(data, sizes, strides, options);
        deleter(data);
        return made;
    }
    if (!torch_from_blob) {
        c10::facade::fail("from_blob with a deleter needs torch 2.11 or newer");
    }
    AtenTensorHandle h;
    Device device = options.device();
    ScalarType type = options.dtype();
    using F = std::function<void(void*)>;
    auto* context = new F(std::move(deleter));
    auto release = [](void* p, void* c) {
        std::unique_ptr<F> f(static_cast<F*>(c));
        (*f)(p);
    };
    AOTITorchError code = torch_from_blob(data, static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), 0,
                                          static_cast<int32_t>(type), static_cast<int32_t>(device.type()),
                                          device.has_index() || device.is_cpu() ? device.index() : 0, &h,
                                          static_cast<int32_t>(Layout::Strided), nullptr, 0, release, context);
    if (code != AOTI_TORCH_SUCCESS) {
        delete context;
    }
    facade::check(code, "from_blob");
    return facade::with_grad(options, Tensor::adopt(h));
}
template <class D, class = std::enable_if_t<std::is_invocable_v<D&, void*>>>
Tensor from_blob(void* data, IntArrayRef sizes, D deleter, const TensorOptions& options = {}) {
    return from_blob(data, sizes, c10::contiguous_strides(sizes), std::move(deleter), options);
}

namespace facade {
template <class T>
Tensor tensor_of(const T* data, size_t n, std::vector<int64_t> sizes, const TensorOptions& options) {
    constexpr ScalarType element = CppTypeToScalarType<T>::value;
    // a source's literals are int and double: torch gives a list of them the dtype of Python's numbers
    ScalarType type = options.has_dtype()           ? ScalarType(options.dtype())
                      : std::is_same_v<T, bool>     ? ScalarType::Bool
                      : std::is_integral_v<T>       ? ScalarType::Long
                      : isComplexType(element)      ? toComplexType(default_dtype())
                      : std::is_floating_point_v<T> ? default_dtype()
                                                    : element;
    Tensor r = empty(sizes, TensorOptions(element));
    // what torch.compile's fake tensors and the device meta make has no memory
    if (void* memory = n > 0 ? r.data_ptr() : nullptr) {
        std::memcpy(memory, data, n * sizeof(T));
    }
    return with_grad(options, r.to(options.dtype(type).requires_grad(std::nullopt)));
}
}  // namespace facade
template <class T>
Tensor tensor(ArrayRef<T> list, const TensorOptions& options = {}) {
    return facade::tensor_of(list.data(), list.size(), {static_cast<int64_t>(list.size())}, options);
}
template <class T>
Tensor tensor(std::initializer_list<T> list, const TensorOptions& options = {}) {
    return tensor(ArrayRef<T>(list), options);
}
namespace facade {
// A list in a text, as torch writes it.
template <class T>
void write_list(std::ostream& stream, const T& value) {
    stream << value;
}
template <class L>
void write_list(std::ostream& stream, const std::initializer_list<L>& list) {
    const char* separator = "{";
    for (const L& part : list) {
        stream << std::exchange(separator, ", ");
        write_list(stream, part);
    }
    stream << "}";
}
template <class L>
OPFORGE_COLD std::string written_list(const L& list) {
    std::ostringstream stream;
    write_list(stream, list);
    return stream.str();
}
// The elements of lists in lists.
template <class T>
struct Elements {
    struct Element {
        T value;
    };
    std::vector<Element> all;  // a vector of bools has no memory of bools

    // Adds elements, and returns their sizes.
    std::vector<int64_t> add(T value) {
        all.push_back({value});
        return {};
    }
    template <class L>
    std::vector<int64_t> add(std::initializer_list<L> list) {
        std::vector<std::vector<int64_t>> sizes;
        for (const L& part : list) {  // an inner list is checked before an outer one
            sizes.push_back(add(part));
        }
        for (size_t i = 1; i < sizes.size(); ++i) {
            if (sizes[i] != sizes[0]) {
                c10::facade::fail(c10::facade::text("Expected all sub-lists to have sizes: ", sizes[0], " (e.g. ",
                                                    written_list(*list.begin()), "), but got sub-list ",
                                                    written_list(list.begin()[i]), " with sizes: ", sizes[i]));
            }
        }
        std::vector<int64_t> all_sizes{static_cast<int64_t>(list.size())};
        if (!sizes.empty()) {
            all_sizes.insert(all_sizes.end(), sizes[0].begin(), sizes[0].end());
        }
        return all_sizes;
    }
};
template <class T, class L>
Tensor tensor_of_lists(std::initializer_list<L> lists, size_t dim, const TensorOptions& options) {
    Elements<T> elements;
    std::vector<int64_t> sizes = elements.add(lists);
    sizes.resize(dim);
    return tensor_of(reinterpret_cast<const T*>(elements.all.data()), elements.all.size(), std::move(sizes), options);
}
}  // namespace facade
template <class T>
using List2 = std::initializer_list<std::initializer_list<T>>;
template <class T>
Tensor tensor(List2<T> lists, const TensorOptions& options = {}) {
    return facade::tensor_of_lists<T>(lists, 2, options);
}
template <class T>
Tensor tensor(std::initializer_list<List2<T>> lists, const TensorOptions& options = {}) {
    return facade::tensor_of_lists<T>(lists, 3, options);
}
template <class T>
Tensor tensor(List2<List2<T>> lists, const TensorOptions& options = {}) {
    return facade::tensor_of_lists<T>(lists, 4, options);
}
template <class T>
Tensor tensor(const std::vector<T>& list, const TensorOptions& options = {}) {
    return tensor(ArrayRef<T>(list), options);
}
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
Tensor tensor(T value, const TensorOptions& options = {}) {
    return facade::tensor_of(&value, 1, {}, options);
}
template <class T>
Tensor tensor(c10::complex<T> value, const TensorOptions& options = {}) {
    return facade::tensor_of(&value, 1, {}, options);
}
}  // namespace opforge_facade
}  // namespace at

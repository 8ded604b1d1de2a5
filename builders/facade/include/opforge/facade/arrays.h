// numpy's arrays, as pybind11 has them. numpy's functions are those of its public table, whose places do not change.
// Memory, sizes and strides are read through the buffer protocol, so no layout of an array is compiled in.
#pragma once
#pragma GCC system_header
#include "buffers.h"

namespace pybind11 {
inline namespace opforge_facade {
namespace facade {
// ---- numpy's table of functions
enum NumpyPlace {
    ArrayType = 2,
    DescrFromType = 45,
    FromAny = 69,
    Resize = 80,
    NewCopy = 85,
    NewFromDescr = 94,
    Newshape = 135,
    Squeeze = 136,
    View = 137,
    DescrConverter = 174,
    EquivTypes = 182,
    SetBaseObject = 282
};
enum NumpyFlag {
    ContiguousC = 1,
    ContiguousFortran = 2,
    OwnData = 4,
    ForceCast = 0x10,
    EnsureArray = 0x40,
    Writeable = 0x400
};
// numpy's PyArray_Dims.
struct NumpyDims {
    ssize_t* values;
    int n;
};
// Returns the table. It is not a static variable: another thread would wait for it with the GIL held.
template <int Used = 0>
void** numpy_table() {
    static std::atomic<void**> table{nullptr};
    if (!table.load()) {
        const std::string version = handle(attribute(imported("numpy").get(), "__version__").get()).cast<std::string>();
        const bool is_first = version.compare(0, 2, "1.") == 0;
        Ref module = imported(is_first ? "numpy.core.multiarray" : "numpy._core.multiarray");
        Ref capsule = attribute(module.get(), "_ARRAY_API");
        table = static_cast<void**>(opforge_PyCapsule_GetPointer(capsule.get(), nullptr));
        if (!table.load()) {
            throw Raised();
        }
    }
    return table.load();
}
template <class R, class... A>
R call_numpy(NumpyPlace place, A... arguments) {
    return reinterpret_cast<R (*)(A...)>(numpy_table()[place])(arguments...);
}
template <int Used = 0>
bool is_array(PyObject* o) {
    return is(o, static_cast<_typeobject*>(numpy_table()[ArrayType]));
}
// Returns an array of any object, whose conversion may have failed.
template <int Used = 0>
PyObject* to_array(PyObject* o, PyObject* descr, int flags) {
    if (!o) {
        Ref of_type = Ref::steal(descr);
        raise(opforge_PyExc_ValueError, of_type ? "cannot create a pybind11::array_t from a nullptr"
                                                : "cannot create a pybind11::array from a nullptr");
        return nullptr;
    }
    return call_numpy<PyObject*>(FromAny, o, descr, 0, 0, EnsureArray | flags, static_cast<PyObject*>(nullptr));
}
}  // namespace facade

// ---- numpy's dtypes
class dtype : public object {
public:
    using python_type = void;
    dtype() = default;
    explicit dtype(facade::Ref r) : object(std::move(r)) {}
    explicit dtype(const str& format) : dtype(from_args(format)) {}
    explicit dtype(const std::string& format) : dtype(str(format)) {}
    explicit dtype(const char* format) : dtype(str(format)) {}
    explicit dtype(int number)
        : object(facade::checked(facade::call_numpy<PyObject*>(facade::DescrFromType, number))) {}
    explicit dtype(const buffer_info& info) : dtype(of_format(info.format)) {}
    template <int Used = 0>
    static dtype from_args(const object& description) {
        PyObject* made = nullptr;
        if (!facade::call_numpy<int>(facade::DescrConverter, description.ptr(), &made) || !made) {
            throw facade::Raised();
        }
        return dtype(facade::Ref::steal(made));
    }
    template <class T>
    static dtype of() {
        return dtype(num_of<T>());
    }
    template <class T>
    static constexpr int num_of() {
        return facade::NumpyType<std::remove_cv_t<T>>::number;
    }
    ssize_t itemsize() const { return attr("itemsize").cast<ssize_t>(); }
    ssize_t alignment() const { return attr("alignment").cast<ssize_t>(); }
    bool has_fields() const { return !attr("names").is_none(); }
    char kind() const { return letter("kind"); }
    char char_() const { return letter("char"); }
    char byteorder() const { return letter("byteorder"); }
    int num() const { return attr("num").cast<int>(); }

private:
    char letter(const char* name) const { return attr(name).cast<std::string>()[0]; }
    template <int Used = 0>
    static dtype of_format(const std::string& format) {
        const char* module = facade::attribute_or_none(facade::imported("numpy").get(), "_core")
                                 ? "numpy._core._internal"
                                 : "numpy.core._internal";
        return dtype(
            handle(facade::attribute(facade::imported(module).get(), "_dtype_from_pep3118").get())(format).ref());
    }
};

// ---- numpy's arrays
namespace facade {
// What is read of an array, once.
struct ArrayView {
    char* data = nullptr;
    std::vector<ssize_t> shape, strides;
    ssize_t itemsize = 0;
};
// Access without checks, to one element by its indices.
template <class T, ssize_t Dims>
class unchecked_reference {
public:
    explicit unchecked_reference(std::shared_ptr<const ArrayView> view) : view_(std::move(view)), data_(view_->data) {
        if constexpr (Dims >= 0) {
            std::copy_n(view_->strides.begin(), Dims, strides_.begin());
        } else {
            strides_ = view_->strides.data();
        }
    }
    template <class... I>
    const T& operator()(I... index) const {
        static_assert(Dims < 0 || sizeof...(I) == static_cast<size_t>(Dims),
                      "Invalid number of indices for unchecked array reference");
        ssize_t offset = 0;
        size_t dim = 0;
        ((offset += static_cast<ssize_t>(index) * strides_[dim++]), ...);
        return *reinterpret_cast<const T*>(data_ + offset);
    }
    template <ssize_t D = Dims, class = std::enable_if_t<D == 1 || D<0>> const T & operator[](ssize_t index) const {
        return (*this)(index);
    }
    template <class... I>
    const T* data(I... index) const {
        return &(*this)(index...);
    }
    static constexpr ssize_t itemsize() { return sizeof(T); }
    ssize_t shape(ssize_t dim) const { return view_->shape[static_cast<size_t>(dim)]; }
    ssize_t ndim() const { return static_cast<ssize_t>(view_->shape.size()); }
    ssize_t size() const { return Sizes(view_->shape).product(); }
    ssize_t nbytes() const { return size() * itemsize(); }

private:
    std::shared_ptr<const ArrayView> view_;
    const char* data_;
    std::conditional_t<(Dims < 0), const ssize_t*, std::array<ssize_t, static_cast<size_t>(Dims < 0 ? 0 : Dims)>>
        strides_;
};
template <class T, ssize_t Dims>
class unchecked_mutable_reference : public unchecked_reference<T, Dims> {
    using Base = unchecked_reference<T, Dims>;

public:
    using Base::Base;
    using Base::operator();
    using Base::operator[];
    template <class... I>
    T& operator()(I... index) {
        return const_cast<T&>(static_cast<const Base&>(*this)(index...));
    }
    template <ssize_t D = Dims, class = std::enable_if_t<D == 1 || D<0>> T & operator[](ssize_t index) {
        return (*this)(index);
    }
    template <class... I>
    T* mutable_data(I... index) {
        return &(*this)(index...);
    }
};
}  // namespace facade

class array : public buffer {
public:
    using python_type = void;  // its conversion is one of its own
    using ShapeContainer = facade::Sizes;
    using StridesContainer = facade::Sizes;
    enum { c_style = facade::ContiguousC, f_style = facade::ContiguousFortran, forcecast = facade::ForceCast };

    array() : array(0, static_cast<const double*>(nullptr)) {}
    explicit array(facade::Ref r) : buffer(std::move(r)) {}
    array(const object& o) : array(facade::checked(facade::to_array(o.ptr(), nullptr, 0))) {}
    array(const accessor& o) : array(o.get()) {}
    array(const pybind11::dtype& type, ShapeContainer shape, StridesContainer strides, const void* data = nullptr,
          handle base = {})
        : buffer(made(type, shape.values, std::move(strides.values), data, base)) {}
    array(const pybind11::dtype& type, ShapeContainer shape, const void* data = nullptr, handle base = {})
        : array(type, std::move(shape), StridesContainer(), data, base) {}
    template <class N, class = std::enable_if_t<std::is_integral_v<N> && !std::is_same_v<N, bool>>>
    array(const pybind11::dtype& type, N count, const void* data = nullptr, handle base = {})
        : array(type, ShapeContainer{count}, data, base) {}
    template <class T>
    array(ShapeContainer shape, StridesContainer strides, const T* data, handle base = {})
        : array(pybind11::dtype::of<T>(), std::move(shape), std::move(strides), static_cast<const void*>(data), base) {}
    template <class T>
    array(ShapeContainer shape, const T* data, handle base = {})
        : array(std::move(shape), StridesContainer(), data, base) {}
    template <class T>
    explicit array(ssize_t count, const T* data, handle base = {})
        : array(ShapeContainer{count}, StridesContainer(), data, base) {}
    explicit array(const buffer_info& info, handle base = {})
        : array(pybind11::dtype(info), info.shape, info.strides, info.ptr, base) {}

    pybind11::dtype dtype() const { return pybind11::dtype(facade::attribute(ptr(), "dtype")); }
    object base() const {
        object found = facade::attribute(ptr(), "base");
        return found.is_none() ? object() : found;
    }
    ssize_t size() const { return facade::Sizes(memory().shape).product(); }
    ssize_t itemsize() const { return memory().itemsize; }
    ssize_t nbytes() const { return size() * itemsize(); }
    ssize_t ndim() const { return static_cast<ssize_t>(memory().shape.size()); }
    const ssize_t* shape() const { return memory().shape.data(); }
    ssize_t shape(ssize_t dim) const { return shape()[in_range(dim)]; }
    const ssize_t* strides() const { return memory().strides.data(); }
    ssize_t strides(ssize_t dim) const { return strides()[in_range(dim)]; }
    int flags() const { return attr("flags").attr("num").cast<int>(); }
    bool writeable() const { return flags() & facade::Writeable; }
    bool owndata() const { return flags() & facade::OwnData; }

    template <class... I>
    const void* data(I... index) const {
        return memory().data + offset_at(index...);
    }
    template <class... I>
    void* mutable_data(I... index) {
        check_writeable();
        return memory().data + offset_at(index...);
    }
    template <class... I>
    ssize_t offset_at(I... index) const {
        if (static_cast<ssize_t>(sizeof...(I)) > ndim()) {
            fail(sizeof...(I), "too many indices for an array");
        }
        ssize_t offset = 0, dim = 0;
        ((offset += checked_index(static_cast<ssize_t>(index), dim) * memory().strides[static_cast<size_t>(dim)],
          ++dim),
         ...);
        return offset;
    }
    template <class... I>
    ssize_t index_at(I... index) const {
        return offset_at(index...) / itemsize();
    }
    template <class T, ssize_t Dims = -1>
    facade::unchecked_mutable_reference<T, Dims> mutable_unchecked() & {
        check_dims(Dims);
        check_writeable();
        return facade::unchecked_mutable_reference<T, Dims>((memory(), view_));
    }
    template <class T, ssize_t Dims = -1>
    facade::unchecked_reference<T, Dims> unchecked() const& {
        check_dims(Dims);
        return facade::unchecked_reference<T, Dims>((memory(), view_));
    }
    array squeeze() { return array(facade::checked(facade::call_numpy<PyObject*>(facade::Squeeze, ptr()))); }
    array view(const std::string& type) {
        return array(facade::checked(facade::call_numpy<PyObject*>(
            facade::View, ptr(), pybind11::dtype(type).release().ptr(), static_cast<PyObject*>(nullptr))));
    }
    array reshape(ShapeContainer shape) {
        facade::NumpyDims dims{shape.values.data(), static_cast<int>(shape.values.size())};
        return array(facade::checked(facade::call_numpy<PyObject*>(facade::Newshape, ptr(), &dims, 0)));
    }
    void resize(ShapeContainer shape, bool refcheck = true) {
        facade::NumpyDims dims{shape.values.data(), static_cast<int>(shape.values.size())};
        view_.reset();
        facade::checked(facade::call_numpy<PyObject*>(facade::Resize, ptr(), &dims, static_cast<int>(refcheck), -1));
    }
    template <int Used = 0>
    static array ensure(handle h, int flags = 0) {
        return array(cleared(facade::to_array(h.ptr(), nullptr, flags)));
    }

protected:
    static facade::Ref cleared(PyObject* made) {
        if (!made) {
            opforge_PyErr_Clear();
        }
        return facade::Ref::steal(made);
    }
    [[noreturn]] void fail(ssize_t dim, const std::string& text) const {
        throw index_error(text + ": " + std::to_string(dim) + " (ndim = " + std::to_string(ndim()) + ")");
    }
    void check_writeable() const {
        if (!writeable()) {
            throw std::domain_error("array is not writeable");
        }
    }
    template <int Used = 0>
    const facade::ArrayView& memory() const {
        if (!view_) {
            const buffer_info info = request();
            auto view = std::make_shared<facade::ArrayView>();
            *view = {static_cast<char*>(info.ptr), info.shape, info.strides, info.itemsize};
            if (std::any_of(view->shape.begin(), view->shape.end(), [](ssize_t n) { return n < 2; })) {
                view->strides = attr("strides").cast<std::vector<ssize_t>>();  // a buffer's are those of any layout
            }
            view_ = std::move(view);
        }
        return *view_;
    }

private:
    ssize_t in_range(ssize_t dim) const {
        if (dim >= ndim()) {
            fail(dim, "invalid axis");
        }
        return dim;
    }
    ssize_t checked_index(ssize_t index, ssize_t dim) const {
        const ssize_t n = memory().shape[static_cast<size_t>(dim)];
        if (index >= n) {
            throw index_error("index " + std::to_string(index) + " is out of bounds for axis " + std::to_string(dim) +
                              " with size " + std::to_string(n));
        }
        return index;
    }
    void check_dims(ssize_t dims) const {
        if (dims >= 0 && ndim() != dims) {
            throw std::domain_error("array has incorrect number of dimensions: " + std::to_string(ndim()) +
                                    "; expected " + std::to_string(dims));
        }
    }
    // Returns a new array, of given memory a copy unless `base` keeps that.
    template <int Used = 0>
    static facade::Ref made(const pybind11::dtype& type, std::vector<ssize_t>& shape, std::vector<ssize_t> strides,
                            const void* data, handle base) {
        using namespace facade;
        if (strides.empty()) {
            strides = contiguous_strides(shape, type.itemsize());
        }
        if (strides.size() != shape.size()) {
            throw std::runtime_error("NumPy: shape ndim doesn't match strides ndim");
        }
        int flags = 0;
        if (base && data) {
            flags = is_array(base.ptr()) ? array(Ref::borrow(base.ptr())).flags() & ~OwnData : Writeable;
        }
        Ref descr = type.ref();
        Ref array = checked(call_numpy<PyObject*>(NewFromDescr, numpy_table()[ArrayType], descr.release(),
                                                  static_cast<int>(shape.size()), shape.data(), strides.data(),
                                                  const_cast<void*>(data), flags, static_cast<PyObject*>(nullptr)));
        if (data && base) {
            call_numpy<int>(SetBaseObject, array.get(), base.inc_ref().ptr());
        }
        return data && !base ? checked(call_numpy<PyObject*>(NewCopy, array.get(), -1)) : array;
    }
    mutable std::shared_ptr<const facade::ArrayView> view_;
};

template <class T, int Flags = array::forcecast>
class array_t : public array {
public:
    using value_type = T;
    array_t() : array(0, static_cast<const T*>(nullptr)) {}
    explicit array_t(facade::Ref r) : array(std::move(r)) {}
    array_t(const object& o) : array(facade::checked(converted(o.ptr()))) {}
    array_t(const accessor& o) : array_t(o.get()) {}
    explicit array_t(const buffer_info& info, handle base = {}) : array(info, base) {}
    array_t(ShapeContainer shape, StridesContainer strides, const T* data = nullptr, handle base = {})
        : array(std::move(shape), std::move(strides), data, base) {}
    explicit array_t(ShapeContainer shape, const T* data = nullptr, handle base = {})
        : array(shape, facade::contiguous_strides(shape.values, sizeof(T), (Flags & f_style) != 0), data, base) {}
    explicit array_t(ssize_t count, const T* data = nullptr, handle base = {}) : array(count, data, base) {}

    constexpr ssize_t itemsize() const { return sizeof(T); }
    template <class... I>
    ssize_t index_at(I... index) const {
        return offset_at(index...) / itemsize();
    }
    template <class... I>
    const T* data(I... index) const {
        return static_cast<const T*>(array::data(index...));
    }
    template <class... I>
    T* mutable_data(I... index) {
        return static_cast<T*>(array::mutable_data(index...));
    }
    template <class... I>
    const T& at(I... index) const {
        check_all<I...>();
        return *data(index...);
    }
    template <class... I>
    T& mutable_at(I... index) {
        check_all<I...>();
        return *mutable_data(index...);
    }
    template <ssize_t Dims = -1>
    facade::unchecked_mutable_reference<T, Dims> mutable_unchecked() & {
        return array::mutable_unchecked<T, Dims>();
    }
    template <ssize_t Dims = -1>
    facade::unchecked_reference<T, Dims> unchecked() const& {
        return array::unchecked<T, Dims>();
    }
    static array_t ensure(handle h) { return array_t(cleared(converted(h.ptr()))); }
    static bool check_(handle h) {
        constexpr int layout = Flags & (c_style | f_style);
        return h && facade::is_array(h.ptr()) &&
               facade::call_numpy<unsigned char>(facade::EquivTypes, facade::attribute(h.ptr(), "dtype").get(),
                                                 pybind11::dtype::of<T>().ptr()) &&
               (!layout || (array(facade::Ref::borrow(h.ptr())).flags() & layout) == layout);
    }

private:
    template <class... I>
    void check_all() const {
        if (static_cast<ssize_t>(sizeof...(I)) != ndim()) {
            fail(sizeof...(I), "index dimension mismatch");
        }
    }
    static PyObject* converted(PyObject* o) {
        return facade::to_array(o, pybind11::dtype::of<T>().release().ptr(), Flags);
    }
};
template <class T>
bool buffer_info::item_type_is_equivalent_to() const {
    return facade::call_numpy<unsigned char>(facade::EquivTypes, dtype::of<T>().ptr(), dtype(*this).ptr()) != 0;
}
}  // namespace opforge_facade
}  // namespace pybind11

namespace opforge_facade_python {
template <>
struct Convert<pybind11::dtype> {
    static bool load(PyObject* o, bool, pybind11::dtype& value) {
        if (opforge_PyObject_IsInstance(o, attribute(imported("numpy").get(), "dtype").get()) != 1) {
            return false;
        }
        value = pybind11::dtype(Ref::borrow(o));
        return true;
    }
    static Ref cast(const pybind11::dtype& value) { return not_null(value.ref()); }
    static std::string name(bool) { return "numpy.dtype"; }
};
template <>
struct Convert<pybind11::array> {
    static bool load(PyObject* o, bool, pybind11::array& value) {
        if (!pybind11::facade::is_array(o)) {
            return false;
        }
        value = pybind11::array(Ref::borrow(o));
        return true;
    }
    static Ref cast(const pybind11::array& value) { return not_null(value.ref()); }
    static std::string name(bool) { return "numpy.ndarray"; }
};
template <class T, int Flags>
struct Convert<pybind11::array_t<T, Flags>> {
    static bool load(PyObject* o, bool convert, pybind11::array_t<T, Flags>& value) {
        if (!convert && !value.check_(o)) {
            return false;
        }
        value = pybind11::array_t<T, Flags>::ensure(o);
        return static_cast<bool>(value);
    }
    static Ref cast(const pybind11::array_t<T, Flags>& value) { return not_null(value.ref()); }
    static std::string name(bool argument) {
        return (argument ? "typing.Annotated[numpy.typing.ArrayLike, " : "numpy.typing.NDArray[") +
               pybind11::facade::NumpyType<T>::name() + "]";
    }
};
}  // namespace opforge_facade_python

// Python's buffers and capsules, as pybind11 has them.
#pragma once
#include <initializer_list>

#include "module.h"

// Python's Py_buffer, which is of the stable ABI from Python 3.11 on.
struct OpforgePyBuffer {
    void* buf;
    PyObject* obj;
    OpforgePySize len, itemsize;
    int readonly, ndim;
    char* format;
    OpforgePySize *shape, *strides, *suboffsets;
    void* internal;
};
OPFORGE_PYTHON(int, PyObject_GetBuffer, PyObject*, OpforgePyBuffer*, int)
OPFORGE_PYTHON(void, PyBuffer_Release, OpforgePyBuffer*)
OPFORGE_PYTHON(int, PyObject_CheckBuffer, PyObject*)
OPFORGE_PYTHON(const char*, PyCapsule_GetName, PyObject*)
OPFORGE_PYTHON(int, PyCapsule_SetPointer, PyObject*, void*)
OPFORGE_PYTHON(void*, PyCapsule_GetContext, PyObject*)
OPFORGE_PYTHON(int, PyCapsule_SetContext, PyObject*, void*)

namespace pybind11 {
inline namespace opforge_facade {
using ssize_t = OpforgePySize;
using size_t = std::size_t;
template <class T>
struct format_descriptor;

namespace facade {
// Sizes and strides, from any container of integers.
struct Sizes {
    std::vector<ssize_t> values;
    Sizes() = default;
    Sizes(std::vector<ssize_t> v) : values(std::move(v)) {}
    template <class T, class = std::enable_if_t<std::is_convertible_v<T, ssize_t>>>
    Sizes(std::initializer_list<T> v) : values(v.begin(), v.end()) {}
    template <class C,
              class = std::enable_if_t<std::is_convertible_v<decltype(*std::begin(std::declval<const C&>())), ssize_t>>>
    Sizes(const C& c) : values(std::begin(c), std::end(c)) {}
    template <class I, class = typename std::iterator_traits<I>::iterator_category>
    Sizes(I first, I last) : values(first, last) {}
    ssize_t product() const {
        ssize_t n = 1;
        for (ssize_t v : values) {
            n *= v;
        }
        return n;
    }
};
// Strides of a contiguous array: the last dimension is the densest in C's order, the first in Fortran's.
template <int Used = 0>
std::vector<ssize_t> contiguous_strides(const std::vector<ssize_t>& shape, ssize_t itemsize, bool is_fortran = false) {
    std::vector<ssize_t> strides(shape.size(), itemsize);
    for (size_t i = 1; i < shape.size(); ++i) {
        const size_t at = is_fortran ? i : shape.size() - 1 - i, beside = is_fortran ? i - 1 : at + 1;
        strides[at] = strides[beside] * shape[beside];
    }
    return strides;
}

// ---- numpy's numbers of dtypes. Integers of one size have one number, which is that of the C type without `long
// long`.
template <class T>
struct is_complex : std::false_type {};
template <class T>
struct is_complex<std::complex<T>> : std::true_type {};
template <class T, class = void>
struct NumpyType;
template <class T>
struct NumpyType<T, std::enable_if_t<std::is_integral_v<T>>> {
    static constexpr bool is_bool = std::is_same_v<T, bool>, is_signed = std::is_signed_v<T>;
    static constexpr int log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    static constexpr int number = is_bool ? 0 : 1 + 2 * log2 + !is_signed;
    static constexpr char code = is_bool ? '?' : (is_signed ? "bhiq" : "BHIQ")[log2];
    static std::string name() {
        return is_bool ? "numpy.bool" : (is_signed ? "numpy.int" : "numpy.uint") + std::to_string(8 * sizeof(T));
    }
};
template <class T>
struct NumpyType<T, std::enable_if_t<std::is_floating_point_v<T>>> {
    static constexpr int place = sizeof(T) == 4 ? 0 : sizeof(T) == 8 ? 1 : 2, number = 11 + place;
    static constexpr char code = "fdg"[place];
    static std::string name() {
        return place == 2 ? "numpy.longdouble" : "numpy.float" + std::to_string(8 * sizeof(T));
    }
};
template <class T>
struct NumpyType<std::complex<T>> {
    static constexpr int place = NumpyType<T>::place, number = 14 + place;
    static std::string name() {
        return place == 2 ? "numpy.clongdouble" : "numpy.complex" + std::to_string(16 * sizeof(T));
    }
};
}  // namespace facade

// ---- buffers
template <class T>
struct format_descriptor {
    static constexpr char c = facade::NumpyType<T>::code;
    static constexpr char value[2] = {c, '\0'};
    static std::string format() { return std::string(1, c); }
};
template <class T>
struct format_descriptor<std::complex<T>> {
    static constexpr char c = format_descriptor<T>::c;
    static constexpr char value[3] = {'Z', c, '\0'};
    static std::string format() { return std::string(value); }
};

struct buffer_info {
    void* ptr = nullptr;
    ssize_t itemsize = 0, size = 0;
    std::string format;
    ssize_t ndim = 0;
    std::vector<ssize_t> shape, strides;
    bool readonly = false;

    buffer_info() = default;
    buffer_info(void* p, ssize_t of_item, const std::string& f, ssize_t dims, facade::Sizes sizes, facade::Sizes steps,
                bool is_readonly = false)
        : ptr(p),
          itemsize(of_item),
          size(sizes.product()),
          format(f),
          ndim(dims),
          shape(std::move(sizes.values)),
          strides(std::move(steps.values)),
          readonly(is_readonly) {
        if (shape.size() != static_cast<size_t>(ndim) || strides.size() != shape.size()) {
            throw std::runtime_error("buffer_info: ndim doesn't match shape and/or strides length");
        }
    }
    template <class T>
    buffer_info(T* p, facade::Sizes sizes, facade::Sizes steps, bool is_readonly = false)
        : buffer_info(p, sizeof(T), format_descriptor<T>::format(), static_cast<ssize_t>(sizes.values.size()), sizes,
                      std::move(steps), is_readonly) {}
    buffer_info(void* p, ssize_t of_item, const std::string& f, ssize_t n, bool is_readonly = false)
        : buffer_info(p, of_item, f, 1, {n}, {of_item}, is_readonly) {}
    template <class T>
    buffer_info(T* p, ssize_t n, bool is_readonly = std::is_const_v<T>)
        : buffer_info(const_cast<std::remove_const_t<T>*>(p), sizeof(T),
                      format_descriptor<std::remove_const_t<T>>::format(), n, is_readonly) {}
    template <class T>
    bool item_type_is_equivalent_to() const;

private:
    friend class buffer;
    struct Release {
        void operator()(OpforgePyBuffer* view) const {
            opforge_PyBuffer_Release(view);
            delete view;
        }
    };
    std::unique_ptr<OpforgePyBuffer, Release> view_;
};

namespace facade {
struct BufferType {
    static constexpr const char* name = "typing_extensions.Buffer";
    static bool is_of(PyObject* o) { return opforge_PyObject_CheckBuffer(o) != 0; }
    static PyObject* converted(PyObject* o) { return refuse(o, "buffer"); }
};
struct CapsuleType {
    static constexpr const char* name = "typing_extensions.CapsuleType";
    static bool is_of(PyObject* o) { return is(o, &opforge_PyCapsule_Type); }
    static PyObject* converted(PyObject* o) { return refuse(o, "capsule"); }
};
}  // namespace facade

class buffer : public facade::typed_object<facade::BufferType> {
public:
    using typed_object::typed_object;
    template <int Used = 0>
    buffer_info request(bool writable = false) const {
        constexpr int is_writable = 1, with_format = 4, with_strides = 0x18;
        auto view = std::make_unique<OpforgePyBuffer>();
        facade::checked(
            opforge_PyObject_GetBuffer(ptr(), view.get(), with_format | with_strides | (writable ? is_writable : 0)));
        buffer_info info;
        info.view_.reset(view.release());
        const OpforgePyBuffer& v = *info.view_;
        info.ptr = v.buf;
        info.itemsize = v.itemsize;
        info.format = v.format ? v.format : "B";
        info.ndim = v.ndim;
        info.readonly = v.readonly != 0;
        info.shape.assign(v.shape, v.shape + v.ndim);
        info.size = facade::Sizes(info.shape).product();
        info.strides = v.strides ? std::vector<ssize_t>(v.strides, v.strides + v.ndim)  // ctypes leaves them out
                                 : facade::contiguous_strides(info.shape, v.itemsize);
        return info;
    }
};

class capsule : public facade::typed_object<facade::CapsuleType> {
public:
    using typed_object::typed_object;
    explicit capsule(const void* value, const char* name = nullptr, OpforgePyDestructor destructor = nullptr)
        : typed_object(facade::checked(opforge_PyCapsule_New(const_cast<void*>(value), name, destructor))) {}
    capsule(const void* value, OpforgePyDestructor destructor) : capsule(value, nullptr, destructor) {}
    capsule(const void* value, void (*destructor)(void*)) : capsule(value, nullptr, destructor) {}
    capsule(const void* value, const char* name, void (*destructor)(void*))
        : capsule(value, name, destructor ? &destroy<> : nullptr) {
        facade::checked(opforge_PyCapsule_SetContext(ptr(), reinterpret_cast<void*>(destructor)));
    }
    explicit capsule(void (*destructor)()) : capsule(reinterpret_cast<void*>(destructor), nullptr, &call<>) {}
    template <class T>
    operator T*() const {
        return get_pointer<T>();
    }
    template <class T = void>
    T* get_pointer() const {
        void* found = opforge_PyCapsule_GetPointer(ptr(), name());
        if (!found) {
            throw facade::Raised();
        }
        return static_cast<T*>(found);
    }
    void set_pointer(const void* value) {
        facade::checked(opforge_PyCapsule_SetPointer(ptr(), const_cast<void*>(value)));
    }
    const char* name() const { return opforge_PyCapsule_GetName(ptr()); }

private:
    // A capsule is freed while an exception may be set, which its destructor must not see.
    template <class F>
    static void aside(F run) {
        PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
        opforge_PyErr_Fetch(&type, &value, &trace);
        run();
        opforge_PyErr_Restore(type, value, trace);
    }
    template <int Used = 0>
    static void destroy(PyObject* o) {
        aside([o] {
            auto* destructor = reinterpret_cast<void (*)(void*)>(opforge_PyCapsule_GetContext(o));
            destructor(opforge_PyCapsule_GetPointer(o, opforge_PyCapsule_GetName(o)));
        });
    }
    template <int Used = 0>
    static void call(PyObject* o) {
        aside([o] { reinterpret_cast<void (*)()>(opforge_PyCapsule_GetPointer(o, nullptr))(); });
    }
};
}  // namespace opforge_facade
}  // namespace pybind11

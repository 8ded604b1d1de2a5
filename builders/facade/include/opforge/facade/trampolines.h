// Methods of C++ that a class in Python overrides: PYBIND11_OVERRIDE.
#pragma once
#include "classes.h"

namespace opforge_facade_python {
// Whether the function of Python that runs is this method of this object: it calls the one that it overrides.
OPFORGE_IF_USED
bool is_in_override(PyObject* self, const char* name) {
    PyObject* const frame = opforge_PyEval_GetFrame();
    if (!frame) {
        return false;
    }
    const Ref code = attribute(frame, "f_code");
    std::string running;
    Convert<std::string>::load(attribute(code.get(), "co_name").get(), true, running);
    int64_t count = 0;
    Convert<int64_t>::load(attribute(code.get(), "co_argcount").get(), true, count);
    if (running != name || count == 0) {
        return false;
    }
    const Ref names = attribute(code.get(), "co_varnames");
    const Ref first = Ref::steal(
        opforge_PyObject_GetItem(attribute(frame, "f_locals").get(), opforge_PyTuple_GetItem(names.get(), 0)));
    opforge_PyErr_Clear();  // the argument may be deleted
    return first.get() == self;
}
// Returns the method of a class in Python that overrides a C++ one, empty if there is none.
OPFORGE_IF_USED
Ref override_of(const void* address, const Class* type, const char* name) {
    const Ref self = type ? living_object(address, type) : Ref();
    Ref method = self ? attribute_or_none(self.get(), name) : Ref();
    if (!method) {
        return {};
    }
    const Ref function = attribute_or_none(method.get(), "__func__");
    const bool is_of_cpp = type_name((function ? function : method).get()) == "builtin_function_or_method";
    return is_of_cpp || is_in_override(self.get(), name) ? Ref() : method;
}
// Returns what an override gives. A reference to a value is one to the last that was given, as in pybind11.
template <class R>
R from_override(const pybind11::object& given) {
    if constexpr (std::is_void_v<R>) {
        return;
    } else if constexpr (!std::is_reference_v<R> || UsesInstances<std::decay_t<R>>::value) {
        return given.cast<R>();
    } else {
        static std::decay_t<R> kept;
        return kept = given.cast<std::decay_t<R>>();
    }
}
}  // namespace opforge_facade_python

namespace pybind11 {
inline namespace opforge_facade {
template <class T>
function get_override(const T* object, const char* name) {
    const py_detail::Gil gil;
    return function(py_detail::override_of(object, py_detail::class_of<T>(), name));
}
template <class T>
function get_overload(const T* object, const char* name) {
    return get_override(object, name);
}
}  // namespace opforge_facade
}  // namespace pybind11

#define PYBIND11_TYPE(...) __VA_ARGS__
#define PYBIND11_OVERRIDE_IMPL(ret_type, cname, name, ...)                                                             \
    do {                                                                                                               \
        ::pybind11::gil_scoped_acquire opforge_gil;                                                                    \
        if (::pybind11::function opforge_override = ::pybind11::get_override(static_cast<const cname*>(this), name)) { \
            return ::opforge_facade_python::from_override<ret_type>(opforge_override(__VA_ARGS__));                    \
        }                                                                                                              \
    } while (false)
#define PYBIND11_OVERRIDE_NAME(ret_type, cname, name, fn, ...)                                    \
    do {                                                                                          \
        PYBIND11_OVERRIDE_IMPL(PYBIND11_TYPE(ret_type), PYBIND11_TYPE(cname), name, __VA_ARGS__); \
        return cname::fn(__VA_ARGS__);                                                            \
    } while (false)
#define PYBIND11_OVERRIDE_PURE_NAME(ret_type, cname, name, fn, ...)                                             \
    do {                                                                                                        \
        PYBIND11_OVERRIDE_IMPL(PYBIND11_TYPE(ret_type), PYBIND11_TYPE(cname), name, __VA_ARGS__);               \
        throw std::runtime_error("Tried to call pure virtual function \"" PYBIND11_TEXT(cname) "::" name "\""); \
    } while (false)
#define PYBIND11_TEXT(...) #__VA_ARGS__
#define PYBIND11_OVERRIDE(ret_type, cname, fn, ...) \
    PYBIND11_OVERRIDE_NAME(PYBIND11_TYPE(ret_type), PYBIND11_TYPE(cname), #fn, fn, __VA_ARGS__)
#define PYBIND11_OVERRIDE_PURE(ret_type, cname, fn, ...) \
    PYBIND11_OVERRIDE_PURE_NAME(PYBIND11_TYPE(ret_type), PYBIND11_TYPE(cname), #fn, fn, __VA_ARGS__)
#define PYBIND11_OVERLOAD_INT PYBIND11_OVERRIDE_IMPL
#define PYBIND11_OVERLOAD_NAME PYBIND11_OVERRIDE_NAME
#define PYBIND11_OVERLOAD_PURE_NAME PYBIND11_OVERRIDE_PURE_NAME
#define PYBIND11_OVERLOAD PYBIND11_OVERRIDE
#define PYBIND11_OVERLOAD_PURE PYBIND11_OVERRIDE_PURE

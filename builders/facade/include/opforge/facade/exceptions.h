// The exceptions of pybind11, and the Python exception that each C++ exception becomes.
#pragma once
#include "checks.h"
#include "python.h"

namespace pybind11 {
inline namespace opforge_facade {

using error_already_set = ::opforge_facade_python::Raised;
#define OPFORGE_EXCEPTION(name, python)                                           \
    class name : public std::runtime_error {                                      \
    public:                                                                       \
        explicit name(const std::string& text = "") : std::runtime_error(text) {} \
        static PyObject* type() { return opforge_PyExc_##python; }                \
    };
OPFORGE_EXCEPTION(value_error, ValueError)
OPFORGE_EXCEPTION(type_error, TypeError)
OPFORGE_EXCEPTION(index_error, IndexError)
OPFORGE_EXCEPTION(key_error, KeyError)
OPFORGE_EXCEPTION(attribute_error, AttributeError)
OPFORGE_EXCEPTION(import_error, ImportError)
OPFORGE_EXCEPTION(buffer_error, BufferError)
OPFORGE_EXCEPTION(stop_iteration, StopIteration)
OPFORGE_EXCEPTION(cast_error, RuntimeError)
#undef OPFORGE_EXCEPTION

namespace detail {
using namespace ::opforge_facade_detail;
using namespace ::opforge_facade_python;

// Sets the Python exception for the C++ exception that is being handled, as torch and pybind11 do.
OPFORGE_COLD inline void translate() {
    try {
        throw;
    } catch (const Raised& e) {
        e.restore();
#define OPFORGE_TRANSLATE(cpp, python) \
    }                                  \
    catch (const cpp& e) {             \
        raise(python, e.what());
        OPFORGE_TRANSLATE(c10::IndexError, opforge_PyExc_IndexError)
        OPFORGE_TRANSLATE(c10::ValueError, opforge_PyExc_ValueError)
        OPFORGE_TRANSLATE(c10::TypeError, opforge_PyExc_TypeError)
        OPFORGE_TRANSLATE(c10::NotImplementedError, opforge_PyExc_NotImplementedError)
    } catch (const c10::LinAlgError& e) {
        raise_torch_error("torch.linalg", "LinAlgError", e.what());
    } catch (const c10::OutOfMemoryError& e) {
        raise_torch_error("torch", "OutOfMemoryError", e.what());
        OPFORGE_TRANSLATE(value_error, value_error::type())
        OPFORGE_TRANSLATE(type_error, type_error::type())
        OPFORGE_TRANSLATE(index_error, index_error::type())
        OPFORGE_TRANSLATE(key_error, key_error::type())
        OPFORGE_TRANSLATE(attribute_error, attribute_error::type())
        OPFORGE_TRANSLATE(import_error, import_error::type())
        OPFORGE_TRANSLATE(buffer_error, buffer_error::type())
        OPFORGE_TRANSLATE(stop_iteration, stop_iteration::type())
        OPFORGE_TRANSLATE(std::bad_alloc, opforge_PyExc_MemoryError)
        OPFORGE_TRANSLATE(std::domain_error, opforge_PyExc_ValueError)
        OPFORGE_TRANSLATE(std::invalid_argument, opforge_PyExc_ValueError)
        OPFORGE_TRANSLATE(std::length_error, opforge_PyExc_ValueError)
        OPFORGE_TRANSLATE(std::out_of_range, opforge_PyExc_IndexError)
        OPFORGE_TRANSLATE(std::range_error, opforge_PyExc_ValueError)
        OPFORGE_TRANSLATE(std::overflow_error, opforge_PyExc_OverflowError)
        OPFORGE_TRANSLATE(std::exception, opforge_PyExc_RuntimeError)
#undef OPFORGE_TRANSLATE
    } catch (...) {
        raise(opforge_PyExc_RuntimeError, "Caught an unknown exception!");
    }
}
}  // namespace detail
}  // namespace opforge_facade
}  // namespace pybind11

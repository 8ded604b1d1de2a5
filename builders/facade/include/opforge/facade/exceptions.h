// The exceptions of pybind11, and the Python exception that each C++ exception becomes.
#pragma once
#include "checks.h"
#include "python.h"

namespace pybind11 {
inline namespace opforge_facade {

using error_already_set = ::opforge_facade_python::Raised;
class builtin_exception : public std::runtime_error {
public:
    builtin_exception(const std::string& text, PyObject* type) : std::runtime_error(text), type_(type) {}
    PyObject* type() const { return type_; }

private:
    PyObject* type_;
};
#define OPFORGE_EXCEPTION(name, python)                                                                  \
    class name : public builtin_exception {                                                              \
    public:                                                                                              \
        explicit name(const std::string& text = "") : builtin_exception(text, opforge_PyExc_##python) {} \
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

namespace facade {
using namespace ::opforge_facade_detail;
using namespace ::opforge_facade_python;

// The type of Python's exception for a C++ one, as torch and pybind11 have it.
OPFORGE_COLD inline PyObject* python_type_of(const std::exception& e) {
    if (const auto* own = dynamic_cast<const builtin_exception*>(&e)) {
        return own->type();
    }
#define OPFORGE_IS(cpp, python)         \
    if (dynamic_cast<const cpp*>(&e)) { \
        return opforge_PyExc_##python;  \
    }
    OPFORGE_IS(c10::IndexError, IndexError)
    OPFORGE_IS(c10::ValueError, ValueError)
    OPFORGE_IS(c10::TypeError, TypeError)
    OPFORGE_IS(c10::NotImplementedError, NotImplementedError)
    OPFORGE_IS(std::bad_alloc, MemoryError)
    OPFORGE_IS(std::domain_error, ValueError)
    OPFORGE_IS(std::invalid_argument, ValueError)
    OPFORGE_IS(std::length_error, ValueError)
    OPFORGE_IS(std::out_of_range, IndexError)
    OPFORGE_IS(std::range_error, ValueError)
    OPFORGE_IS(std::overflow_error, OverflowError)
#undef OPFORGE_IS
    return opforge_PyExc_RuntimeError;
}
// Replaces the dispatcher's names of types by Python's in the text of an error of torch's, as torch does.
OPFORGE_COLD inline std::string with_pythons_types(std::string text) {
    for (const char* dtype : {"Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"}) {
        for (const char* device : {"CPU", "CUDA"}) {
            const std::string name = std::string(device) + dtype + "Type";
            for (size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
                const bool sparse = at >= 6 && text.compare(at - 6, 6, "Sparse") == 0;
                const size_t begin = sparse ? at - 6 : at;
                const std::string python = std::string("torch.") + (device[1] == 'U' ? "cuda." : "") +
                                           (sparse ? "sparse." : "") + dtype + "Tensor";
                text.replace(begin, name.size() + (at - begin), python);
                at = begin + python.size();
            }
        }
    }
    return text;
}
// How a source's own translators are asked first; null as long as it has registered none: see registered_exceptions.h.
inline void (*&translate_by_source())() {
    static void (*translate)() = nullptr;
    return translate;
}
// Sets the Python exception for the C++ exception that is being handled, as torch and pybind11 do by themselves. It has
// few handlers: a compiler makes more code for one than for asking for a type.
OPFORGE_COLD inline void translate_by_type() {
    try {
        throw;
    } catch (const Raised& e) {
        e.restore();
    } catch (const std::exception& e) {
        const bool is_torchs = dynamic_cast<const c10::Error*>(&e);
        const std::string text = is_torchs ? with_pythons_types(e.what()) : e.what();
        if (dynamic_cast<const c10::LinAlgError*>(&e)) {
            raise_torch_error("torch.linalg", "LinAlgError", text.c_str());
        } else if (dynamic_cast<const c10::OutOfMemoryError*>(&e)) {
            raise_torch_error("torch", "OutOfMemoryError", text.c_str());
        } else {
            raise(python_type_of(e), text.c_str());
        }
    } catch (...) {
        raise(opforge_PyExc_RuntimeError, "Caught an unknown exception!");
    }
}
OPFORGE_COLD inline void translate() {
    auto* by_source = translate_by_source();
    (by_source ? by_source : &translate_by_type)();
}
}  // namespace facade
}  // namespace opforge_facade
}  // namespace pybind11

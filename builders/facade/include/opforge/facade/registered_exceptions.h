// py::register_exception, py::exception and translators: Python exceptions for C++ exceptions of the source.
#pragma once
#include "module.h"

namespace pybind11 {
inline namespace opforge_facade {
inline void set_error(const handle& type, const char* text) { opforge_PyErr_SetString(type.ptr(), text); }
inline void set_error(const handle& type, const handle& value) { opforge_PyErr_SetObject(type.ptr(), value.ptr()); }
// Sets an exception whose cause is the one that is set.
OPFORGE_IF_USED
inline void raise_from(PyObject* type, const char* text) {
    const error_already_set cause;
    if (cause.traceback()) {
        facade::checked(opforge_PyObject_SetAttrString(cause.exception(), "__traceback__", cause.traceback()));
    }
    opforge_PyErr_SetString(type, text);
    const error_already_set raised;
    for (const char* name : {"__cause__", "__context__"}) {
        facade::checked(opforge_PyObject_SetAttrString(raised.exception(), name, cause.exception()));
    }
    raised.restore();
}
OPFORGE_IF_USED
inline void raise_from(const error_already_set& cause, PyObject* type, const char* text) {
    cause.restore();
    raise_from(type, text);
}

// A Python exception of the module, named as its class.
template <class T>
class exception : public object {
public:
    exception() = default;
    exception(const handle& scope, const char* name, const handle& base = PyExc_Exception) {
        const std::string full = scope.attr("__name__").template cast<std::string>() + "." + name;
        object::operator=(facade::checked(opforge_PyErr_NewException(full.c_str(), base.ptr(), nullptr)));
        if (hasattr(scope, "__dict__") && scope.attr("__dict__").contains(name)) {
            throw std::runtime_error("Error during initialization: multiple incompatible definitions with name \"" +
                                     std::string(name) + "\"");
        }
        setattr(scope, name, *this);
    }
    void operator()(const char* text) const { set_error(*this, text); }
};

using ExceptionTranslator = void (*)(std::exception_ptr);
namespace facade {
struct Translator {
    ExceptionTranslator translate;
    Translator* next;
};
// Those of this library alone, and those that pybind11 shows to every library, which here are this library's as well.
template <bool Local>
Translator*& newest_translator() {
    static Translator* newest = nullptr;
    return newest;
}
// Asks each translator for the exception that is being handled, the newest first. What one throws is the next one's.
OPFORGE_IF_USED
OPFORGE_COLD void ask_translators() {
    std::exception_ptr thrown = std::current_exception();
    for (const Translator* first : {newest_translator<true>(), newest_translator<false>()}) {
        for (const Translator* each = first; each; each = each->next) {
            try {
                return each->translate(thrown);
            } catch (...) {
                thrown = std::current_exception();
            }
        }
    }
    try {
        std::rethrow_exception(thrown);
    } catch (...) {
        translate_by_type();
    }
}
template <bool Local>
OPFORGE_COLD void add_translator(ExceptionTranslator translate) {
    newest_translator<Local>() = new Translator{translate, newest_translator<Local>()};
    translate_by_source() = &ask_translators<>;
}
template <class T, bool Local>
exception<T>& register_exception(const handle& scope, const char* name, const handle& base) {
    static exception<T>* made = nullptr;  // as long as the process: a translator has no data
    static int module = 0;                // which run of the module's body has it
    const int running = ::opforge_facade_python::loading().module;
    if (!made) {
        made = new exception<T>(scope, name, base);
    } else if (module != running) {  // the first one threw
        setattr(scope, name, *made);
    }
    module = running;
    add_translator<Local>([](std::exception_ptr thrown) {
        try {
            std::rethrow_exception(thrown);
        } catch (const T& e) {
            set_error(*made, e.what());
        }
    });
    return *made;
}
}  // namespace facade
template <class F>
void register_exception_translator(F&& translate) {
    facade::add_translator<false>(std::forward<F>(translate));
}
template <class F>
void register_local_exception_translator(F&& translate) {
    facade::add_translator<true>(std::forward<F>(translate));
}
template <class T>
exception<T>& register_exception(const handle& scope, const char* name, const handle& base = PyExc_Exception) {
    return facade::register_exception<T, false>(scope, name, base);
}
template <class T>
exception<T>& register_local_exception(const handle& scope, const char* name, const handle& base = PyExc_Exception) {
    return facade::register_exception<T, true>(scope, name, base);
}

// A value that is made once, with the GIL held, and never ends.
template <class T>
class gil_safe_call_once_and_store {
public:
    template <class F>
    gil_safe_call_once_and_store& call_once_and_store_result(F&& make) {
        if (!stored_.load()) {
            T* made = new T(make());
            T* none = nullptr;
            if (!stored_.compare_exchange_strong(none, made)) {  // the GIL was let go of while it was made
                delete made;
            }
        }
        return *this;
    }
    T& get_stored() { return *stored_; }

private:
    std::atomic<T*> stored_{nullptr};
};
}  // namespace opforge_facade
}  // namespace pybind11
#define PYBIND11_CONSTINIT

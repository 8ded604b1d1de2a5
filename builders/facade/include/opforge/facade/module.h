// PYBIND11_MODULE: a module of Python functions that behave as pybind11's, through Python's stable API.
#pragma once
#include "callables.h"
#include "checks.h"
#include "instances.h"

namespace pybind11 {
inline namespace opforge_facade {
namespace py_detail = ::opforge_facade_python;

// ---- exceptions
class error_already_set : public py_detail::Raised {};
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

// ---- Python's objects, as far as functions of tensors need them
class handle {
public:
    handle() = default;
    handle(PyObject* p) : object_(p) {}
    PyObject* ptr() const { return object_; }
    bool is_none() const { return object_ == py_detail::none(); }
    explicit operator bool() const { return object_ != nullptr; }
    bool is(handle o) const { return object_ == o.object_; }
    template <class T>
    T cast() const;

protected:
    PyObject* object_ = nullptr;
};
class object : public handle {
public:
    object() = default;
    object(py_detail::Ref r) : handle(r.get()), kept_(std::move(r)) {}
    py_detail::Ref ref() const { return kept_; }

private:
    py_detail::Ref kept_;
};
class none : public object {
public:
    none() : object(py_detail::Ref::borrow(py_detail::none())) {}
};
class bytes : public object {
public:
    bytes() : bytes("", 0) {}
    bytes(const char* data, size_t n)
        : object(py_detail::checked(opforge_PyBytes_FromStringAndSize(data, static_cast<OpforgePySize>(n)))) {}
    bytes(const char* text) : bytes(text, std::strlen(text)) {}
    bytes(const std::string& text) : bytes(text.data(), text.size()) {}
    bytes(std::string_view text) : bytes(text.data(), text.size()) {}
    explicit bytes(py_detail::Ref r) : object(std::move(r)) {}
    operator std::string() const { return std::string(std::string_view(*this)); }
    operator std::string_view() const {
        char* p = nullptr;
        OpforgePySize n = 0;
        py_detail::checked(opforge_PyBytes_AsStringAndSize(ptr(), &p, &n));
        return {p, static_cast<size_t>(n)};
    }
};
// A number or string of Python's that is made of a C++ value.
template <class T>
class value_object : public object {
public:
    value_object() : value_object(T()) {}
    value_object(T value) : object(py_detail::Convert<T>::cast(value)) {}
    explicit value_object(py_detail::Ref r) : object(std::move(r)) {}
    operator T() const { return cast<T>(); }
};
class bool_ : public value_object<bool> {
    using value_object::value_object;
};
class int_ : public value_object<long long> {
public:
    using value_object::value_object;
    template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
    operator T() const {
        return cast<T>();
    }
};
class float_ : public value_object<double> {
    using value_object::value_object;
};
class str : public value_object<std::string> {
public:
    using value_object::value_object;
    str(const char* text) : value_object(std::string(text)) {}
};
template <class T>
T handle::cast() const {
    T value{};
    if (!py_detail::Convert<T>::load(object_, true, value)) {
        throw cast_error("Unable to cast Python instance of type <class '" + py_detail::type_name(object_) +
                         "'> to C++ type '" + py_detail::Convert<T>::name(true) + "'");
    }
    return value;
}
template <class T>
object cast(const T& value) {
    return py_detail::Convert<T>::cast(value);
}
template <class T>
T cast(const handle& value) {
    return value.cast<T>();
}

// ---- the GIL
class gil_scoped_release {
public:
    gil_scoped_release() : thread_(opforge_PyEval_SaveThread()) {}
    ~gil_scoped_release() { opforge_PyEval_RestoreThread(thread_); }
    gil_scoped_release(const gil_scoped_release&) = delete;
    gil_scoped_release& operator=(const gil_scoped_release&) = delete;

private:
    void* thread_;
};
class gil_scoped_acquire {
    py_detail::Gil gil_;
};
template <class... T>
struct call_guard {};
template <class... T>
struct keep_alive_tuple {};
template <size_t, size_t>
struct keep_alive {};
struct is_operator {};

// ---- arguments
struct arg_v;
struct arg {
    constexpr explicit arg(const char* name = nullptr) : name(name) {}
    template <class T>
    arg_v operator=(T&& value) const;
    arg& noconvert(bool flag = true) {
        converts = !flag;
        return *this;
    }
    arg& none(bool flag = true) {
        takes_none = flag;
        return *this;
    }
    const char* name;
    bool converts = true;
    bool takes_none = true;
};
struct arg_v : arg {
    template <class T>
    arg_v(const arg& base, const T& v) : arg(base) {
        if constexpr (std::is_same_v<T, std::nullopt_t> || std::is_same_v<T, std::nullptr_t> ||
                      std::is_base_of_v<::pybind11::none, T>) {
            value = py_detail::Ref::borrow(py_detail::none());
        } else if constexpr (std::is_base_of_v<object, T>) {
            value = v.ref();
        } else if constexpr (std::is_convertible_v<T, const char*>) {  // a null pointer is None
            value = py_detail::Convert<const char*>::cast(v);
        } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
            value = py_detail::Convert<std::string>::cast(std::string_view(v));
        } else {
            try {
                value = py_detail::Convert<T>::cast(v);
            } catch (const py_detail::NotRegistered&) {  // reported with the function's name
                not_registered = py_detail::demangled(typeid(T));
            }
        }
    }
    arg_v& noconvert(bool flag = true) {
        arg::noconvert(flag);
        return *this;
    }
    arg_v& none(bool flag = true) {
        arg::none(flag);
        return *this;
    }
    py_detail::Ref value;
    std::string not_registered;  // the default's type, if it has no Python class yet
};
template <class T>
arg_v arg::operator=(T&& value) const {
    return arg_v(*this, static_cast<const std::decay_t<T>&>(value));
}
struct kw_only {};
struct pos_only {};
inline namespace literals {
constexpr arg operator""_a(const char* name, size_t) { return arg(name); }
}  // namespace literals
template <class... A>
struct overload_cast_impl {
    template <class R>
    constexpr auto operator()(R (*f)(A...)) const -> decltype(f) {
        return f;
    }
    template <class R, class C>
    constexpr auto operator()(R (C::*f)(A...), std::false_type = {}) const -> decltype(f) {
        return f;
    }
    template <class R, class C>
    constexpr auto operator()(R (C::*f)(A...) const, std::true_type) const -> decltype(f) {
        return f;
    }
};
constexpr std::true_type const_{};
template <class... A>
inline constexpr overload_cast_impl<A...> overload_cast{};

namespace detail {

struct Argument {
    std::string name;
    Ref otherwise;
    bool converts = true;
    bool takes_none = true;
};
// One C++ function behind a Python name.
struct Overload {
    std::vector<Argument> arguments;
    std::vector<std::string> types, exact_types;  // the second for arguments that are not converted
    std::string name, result, doc;
    size_t positional = 0, only_positional = 0;
    bool is_method = false;
    bool is_operator = false;  // other operands are Python's to try
    return_value_policy policy = return_value_policy::automatic;
    std::vector<std::pair<size_t, size_t>> keeps;  // which keeps which alive: the result, and arguments from 1
    // By pointers, so that a module without classes has no code of theirs: what keeps, and whether the constructor of
    // an object has run, which a constructor's overload has.
    void (*keep)(PyObject*, PyObject*) = nullptr;
    bool (*has_run)(PyObject*) = nullptr;
    // Calls the function. Returns an empty reference if the values are not convertible to its parameters.
    Ref (*call)(void*, PyObject* const*, const bool*, return_value_policy) = nullptr;
    void* function = nullptr;
    Overload* next = nullptr;

    OPFORGE_COLD std::string signature() const {
        std::string text = "(";
        for (size_t i = 0; i < types.size(); ++i) {
            text += i ? ", " : "";
            text += i && i == only_positional ? "/, " : "";
            if (i == positional && positional < types.size()) {
                text += "*, ";
            }
            const bool named = i < arguments.size() && !arguments[i].name.empty();
            const std::string number = std::to_string(i - (is_method && i > 0));
            text += (named                 ? arguments[i].name
                     : is_method && i == 0 ? "self"
                                           : "arg" + number) +
                    ": " + (i < arguments.size() && !arguments[i].converts ? exact_types[i] : types[i]);
            if (i < arguments.size() && arguments[i].otherwise) {
                text += " = " + shown(arguments[i].otherwise.get());
            }
        }
        text += only_positional && only_positional == types.size() ? ", /" : "";
        return text + ") -> " + result;
    }
};
struct MethodDef {  // PyMethodDef of the stable ABI
    const char* name;
    PyObject* (*call)(PyObject*, PyObject* const*, OpforgePySize, PyObject*);
    int flags;
    const char* doc;
};
OPFORGE_COLD inline Ref method_of(MethodDef& definition) {
    return method_of(checked(opforge_PyCMethod_New(&definition, nullptr, nullptr, nullptr)));
}
// Makes a subclass of one of Python's own types, with one method.
OPFORGE_COLD inline Ref made_type(const char* name, const char* base, MethodDef& method) {
    Ref builtins = imported("builtins");
    Ref bases = checked(opforge_PyTuple_New(1)), members = checked(opforge_PyDict_New());
    checked(opforge_PyTuple_SetItem(bases.get(), 0, attribute(builtins.get(), base).release()));
    checked(opforge_PyDict_SetItemString(members.get(), method.name, method_of(method).get()));
    return called(attribute(builtins.get(), "type").get(), checked(opforge_PyUnicode_InternFromString(name)), bases,
                  members);
}
// A function of a scope, with its overloads in their order. All live as long as the process, as the library does: lists
// without an owner are a quarter of the code that a compiler makes for containers of them.
struct Function {
    std::string name, doc;
    PyObject* object = nullptr;  // what its scope has of it
    PyObject* scope = nullptr;
    Overload* overloads = nullptr;
    MethodDef definition{};
    Function* next = nullptr;

    void add(Overload* overload) {
        Overload** last = &overloads;
        while (*last) {
            last = &(*last)->next;
        }
        *last = overload;
    }
};
constexpr size_t most_arguments = 64;

// What a call gives: values by their place, then values by the names in a tuple.
struct Given {
    PyObject* const* values;
    size_t positional;
    PyObject* names;
    size_t named;

    PyObject* name(size_t i) const { return opforge_PyTuple_GetItem(names, static_cast<OpforgePySize>(i)); }
    // Returns the value of a name, or null.
    PyObject* by_name(const std::string& wanted) const {
        for (size_t i = 0; i < named; ++i) {
            OpforgePySize n = 0;
            const char* text = opforge_PyUnicode_AsUTF8AndSize(name(i), &n);
            if (!text) {
                opforge_PyErr_Clear();
            } else if (wanted == std::string_view(text, static_cast<size_t>(n))) {
                return values[positional + i];
            }
        }
        return nullptr;
    }
};
inline std::string key_text(PyObject* key) {
    std::string text;
    Convert<std::string>::load(key, true, text);
    return text;
}
// Puts a call's values in the order of the function's parameters: false if they are not its arguments.
inline bool bind(const Overload& f, const Given& given, PyObject** values) {
    const size_t n = f.types.size();
    if (given.positional > f.positional) {
        return false;
    }
    size_t used = 0;
    for (size_t i = 0; i < n; ++i) {
        const Argument* argument = i < f.arguments.size() ? &f.arguments[i] : nullptr;
        const bool can_be_named = given.named && argument && !argument->name.empty() && i >= f.only_positional;
        PyObject* value = nullptr;
        if (i < given.positional) {
            value = given.values[i];
            if (can_be_named && given.by_name(argument->name)) {
                return false;  // given twice
            }
        } else if (argument) {
            if (can_be_named) {
                value = given.by_name(argument->name);
                used += value != nullptr;
            }
            if (!value) {
                value = argument->otherwise.get();
            }
        }
        if (!value || (argument && !argument->takes_none && py_detail::is_none(value))) {
            return false;
        }
        values[i] = value;
    }
    return used == given.named;
}
// A constructor's signature without its own object and result: (self: m.C, x: int) -> None is m.C(x: int).
OPFORGE_COLD inline std::string constructor_signature(const std::string& text) {
    const size_t begin = sizeof("(self: ") - 1, last = text.rfind(" -> "), comma = text.find(", ");
    const size_t end = comma < last ? comma : text.rfind(')', last), next = comma < last ? comma + 2 : end;
    return text.substr(begin, end - begin) + "(" + text.substr(next, last - next);
}
OPFORGE_COLD inline std::string no_match(const Function& f, const Given& given) {
    const bool is_constructor = f.overloads->has_run;
    std::string text = f.name + "(): incompatible " + (is_constructor ? "constructor" : "function") +
                       " arguments. The following argument types are supported:\n";
    size_t i = 0;
    for (const Overload* overload = f.overloads; overload; overload = overload->next) {
        text += "    " + std::to_string(++i) + ". " +
                (is_constructor ? constructor_signature(overload->signature()) : overload->signature()) + "\n";
    }
    text += "\nInvoked with: ";
    for (size_t k = is_constructor; k < given.positional; ++k) {
        text += (k > is_constructor ? ", " : "") + shown(given.values[k]);
    }
    if (given.named > 0) {
        text += given.positional > is_constructor ? "; kwargs: " : "kwargs: ";
        for (size_t k = 0; k < given.named; ++k) {
            text += (k ? ", " : "") + key_text(given.name(k)) + "=" + shown(given.values[given.positional + k]);
        }
    }
    return text;
}
inline Ref call_overloads(const Function& f, const Given& given) {
    if (f.overloads->has_run && given.positional > 0 && f.overloads->has_run(given.values[0])) {
        return Ref::borrow(py_detail::none());  // it has run
    }
    // several functions: first the one that needs no conversion
    PyObject* values[most_arguments];
    bool converts[most_arguments];
    for (int pass = f.overloads->next ? 0 : 1; pass < 2; ++pass) {
        for (const Overload* each = f.overloads; each; each = each->next) {
            const Overload& overload = *each;
            if (!bind(overload, given, values)) {
                continue;
            }
            for (size_t i = 0; i < overload.types.size(); ++i) {
                converts[i] = pass == 1 && (i >= overload.arguments.size() || overload.arguments[i].converts);
            }
            Ref result;
            try {
                result = overload.call(overload.function, values, converts, overload.policy);
            } catch (const NotRegistered&) {
                throw type_error("Unable to convert function return value to a Python type! The signature was\n\t" +
                                 overload.signature());
            }
            if (result) {
                for (const auto& [nurse, patient] : overload.keeps) {
                    overload.keep(nurse ? values[nurse - 1] : result.get(),
                                  patient ? values[patient - 1] : result.get());
                }
                return result;
            }
        }
    }
    if (f.overloads->is_operator) {
        return attribute(imported("builtins").get(), "NotImplemented");
    }
    raise(opforge_PyExc_TypeError, no_match(f, given).c_str());
    return {};
}
inline PyObject* call_function(PyObject* self, PyObject* const* values, OpforgePySize n, PyObject* names) {
    auto& f = *static_cast<Function*>(opforge_PyLong_AsVoidPtr(self));
    try {
        const size_t named = names ? static_cast<size_t>(opforge_PyTuple_Size(names)) : 0;
        return call_overloads(f, {values, static_cast<size_t>(n), names, named}).release();
    } catch (...) {
        translate();
    }
    return nullptr;
}

template <class... G>
struct Guards {
    std::tuple<G...> guards;
};
using TypeName = std::string (*)(bool);
template <class F, class S, class G>
struct Call;
template <class F, class R, class... A, class... G>
struct Call<F, R(A...), call_guard<G...>> {
    static_assert(sizeof...(A) <= most_arguments, "a function of more than 64 arguments");
    static constexpr size_t arity = sizeof...(A);
    F f;
    static Ref run(void* call, PyObject* const* values, const bool* converts, return_value_policy policy) {
        return static_cast<Call*>(call)->with(values, converts, policy, std::index_sequence_for<A...>());
    }
    template <size_t... I>
    Ref with([[maybe_unused]] PyObject* const* values, [[maybe_unused]] const bool* converts,
             [[maybe_unused]] return_value_policy policy, std::index_sequence<I...>) {
        std::tuple<Holder<kept_t<A>>...> kept;
        if (!(load<A>(values[I], converts[I], std::get<I>(kept).value) && ...)) {
            return {};
        }
        if constexpr (std::is_void_v<R>) {
            {
                [[maybe_unused]] std::tuple<G...> guards;
                f(hand<A>(std::get<I>(kept).value)...);
            }
            return Ref::borrow(py_detail::none());
        } else {
            auto run = [&]() -> R {
                [[maybe_unused]] std::tuple<G...> guards;
                return f(hand<A>(std::get<I>(kept).value)...);
            };
            return cast_result<R>(run(), policy, sizeof...(A) > 0 ? values[0] : nullptr);
        }
    }
    template <class T, class = void>
    struct Holder {
        T value{};
    };
    template <class T>
    struct Holder<T, std::enable_if_t<std::is_same_v<T, c10::Device>>> {
        T value{c10::DeviceType::CPU};
    };
    template <class T>
    static bool load(PyObject* o, bool convert, kept_t<T>& value) {
        if constexpr (std::is_same_v<bare_t<T>, c10::IntArrayRef>) {
            if (!is(o, TupleFlag) && !is(o, ListFlag)) {
                return false;
            }
        }
        return Convert<kept_t<T>>::load(o, convert, value);
    }
    template <class T>
    using argument_t = std::conditional_t<std::is_same_v<bare_t<T>, c10::IntArrayRef>, c10::IntArrayRef, kept_t<T>>;
    // The functions that name the types of the arguments, and then that of the result.
    static const TypeName* type_names() {
        static constexpr TypeName names[] = {&Convert<argument_t<A>>::name..., name_of_result()};
        return names;
    }
    static constexpr TypeName name_of_result() {
        if constexpr (std::is_void_v<R>) {
            return [](bool) { return std::string("None"); };
        } else {
            return &Convert<bare_t<R>>::name;
        }
    }
};

template <class... X>
struct guard_of {
    using type = call_guard<>;
};
template <class... G, class... X>
struct guard_of<call_guard<G...>, X...> {
    using type = call_guard<G...>;
};
template <class Y, class... X>
struct guard_of<Y, X...> : guard_of<X...> {};

inline void extra(Overload& o, const char* doc) { o.doc = doc; }
inline void extra(Overload& o, const std::string& doc) { o.doc = doc; }
inline void extra(Overload& o, const arg& a) {
    o.arguments.push_back({a.name ? a.name : "", {}, a.converts, a.takes_none});
}
inline void extra(Overload& o, const arg_v& a) {
    if (!a.not_registered.empty()) {
        throw import_error("arg(): could not convert default argument '" +
                           (a.name ? std::string(a.name) + ": " : std::string()) + a.not_registered +
                           (o.name.empty() ? "'" : "' in function '" + o.name + "'") +
                           " into a Python object (type not registered yet?)");
    }
    o.arguments.push_back({a.name ? a.name : "", a.value, a.converts, a.takes_none});
}
inline void extra(Overload& o, kw_only) { o.positional = o.arguments.size(); }
inline void extra(Overload& o, pos_only) { o.only_positional = o.arguments.size(); }
template <class... G>
void extra(Overload&, call_guard<G...>) {}
template <size_t A, size_t B>
void extra(Overload& o, keep_alive<A, B>) {
    o.keeps.emplace_back(A, B);
    o.keep = py_detail::keep_alive;
}
inline void extra(Overload& o, return_value_policy policy) { o.policy = policy; }
inline void extra(Overload& o, is_operator) { o.is_operator = true; }

OPFORGE_COLD inline std::string doc_of(const Function& f) {
    const bool several = f.overloads->next;
    std::string text = several ? f.name + "(*args, **kwargs)\nOverloaded function.\n\n" : "";
    size_t i = 0;
    for (const Overload* o = f.overloads; o; o = o->next) {
        text += i > 0 ? "\n" : "";
        ++i;
        text += (several ? std::to_string(i) + ". " : "") + f.name + o->signature() + "\n";
        text += o->doc.empty() ? "" : "\n" + o->doc + "\n";
    }
    return text;
}
// __reduce_ex__ of a record: Python pickles a function as a name in the object that it is bound to. That is its module,
// and a method has none.
OPFORGE_COLD inline PyObject* reduce_record(PyObject*, PyObject* const* values, OpforgePySize, PyObject*) {
    try {
        Ref module = attribute(values[0], "module");
        if (py_detail::is_none(module.get())) {
            throw type_error("cannot pickle a method of C++");
        }
        Ref arguments = checked(opforge_PyTuple_New(1)), reduced = checked(opforge_PyTuple_New(2));
        checked(opforge_PyTuple_SetItem(arguments.get(), 0, module.release()));
        Ref import = attribute(imported("importlib").get(), "import_module");
        checked(opforge_PyTuple_SetItem(reduced.get(), 0, import.release()));
        checked(opforge_PyTuple_SetItem(reduced.get(), 1, arguments.release()));
        return reduced.release();
    } catch (...) {
        translate();
    }
    return nullptr;
}
// Returns what a Python function is bound to: the address of the C++ one, as a number that knows the function's module.
OPFORGE_COLD inline Ref function_record(Function* f, const Ref& module) {
    static PyObject* type = nullptr;
    if (!type) {
        static MethodDef reduce{"__reduce_ex__", reduce_record, 0x82, nullptr};
        type = made_type("function_record", "int", reduce).release();
    }
    Ref record = called(type, checked(opforge_PyLong_FromVoidPtr(f)));
    checked(opforge_PyObject_SetAttrString(record.get(), "module", module.get()));
    return record;
}
// Makes the Python object of a function whose first overload is there. It lives as long as the process, as
// the library does. `address` is what it is bound to: the address of the C++ one, as a number.
OPFORGE_COLD inline Ref function_object(Function* f, const Ref& address, const Ref& module_name) {
    constexpr int fast_and_keywords = 0x82;  // METH_FASTCALL | METH_KEYWORDS
    f->definition.name = f->name.c_str();
    f->definition.call = call_function;
    f->definition.flags = fast_and_keywords;
    return checked(opforge_PyCMethod_New(&f->definition, address.get(), module_name.get(), nullptr));
}
enum class Kind { Function, Method, Static };
// What of an overload is the same code for every signature: before what is stated beside the function, and after it.
OPFORGE_COLD inline Overload* new_overload(const char* name, Kind kind, const TypeName* names, size_t n,
                                           bool has_named_arguments) {
    auto* overload = new Overload();
    overload->name = name;
    for (size_t i = 0; i < n; ++i) {
        overload->types.push_back(names[i](true));
        overload->exact_types.push_back(names[i](false));
    }
    overload->result = names[n](false);
    overload->positional = n;
    overload->is_method = kind == Kind::Method;
    if (overload->is_method && has_named_arguments) {
        overload->arguments.push_back({"self", {}, true, false});
    }
    return overload;
}
OPFORGE_COLD inline void check_arguments(const Overload& overload) {
    if (!overload.arguments.empty() && overload.arguments.size() != overload.types.size()) {
        throw std::runtime_error("the function '" + overload.name + "' has " + std::to_string(overload.types.size()) +
                                 " arguments, and " + std::to_string(overload.arguments.size()) +
                                 " py::arg were given");
    }
}
// Returns the overload of a C++ function, with what is stated beside it.
template <class F, class... X>
OPFORGE_COLD Overload* overload_of(const char* name, Kind kind, F&& f, const X&... extras) {
    using Guard = typename guard_of<X...>::type;
    using Caller = Call<std::decay_t<F>, signature_t<F>, Guard>;
    constexpr bool has_named_arguments = (std::is_base_of_v<arg, X> || ...);
    Overload* overload = new_overload(name, kind, Caller::type_names(), Caller::arity, has_named_arguments);
    (extra(*overload, extras), ...);
    check_arguments(*overload);
    overload->call = Caller::run;
    overload->function = new Caller{std::forward<F>(f)};
    return overload;
}
// Adds an overload to the function of a name in a module or a class.
OPFORGE_COLD inline void add(PyObject* scope, const char* name, Overload* overload, Kind kind = Kind::Function) {
    static Function* newest = nullptr;
    Function* f = newest;
    while (f && !(f->scope == scope && f->name == name)) {
        f = f->next;
    }
    // a scope can be a new one at the address of a module whose body threw
    Ref members = attribute(scope, "__dict__");
    Ref present = called(attribute(members.get(), "get").get(), checked(opforge_PyUnicode_InternFromString(name)));
    const bool first = !f || present.get() != f->object;
    if (first) {
        f = new Function();
        f->name = name;
        f->scope = scope;
        f->next = newest;
        newest = f;
    }
    f->add(overload);
    f->doc = doc_of(*f);
    f->definition.doc = f->doc.c_str();
    if (!first) {
        return;
    }
    const bool is_in_module = kind == Kind::Function;
    Ref module = attribute(scope, is_in_module ? "__name__" : "__module__");
    Ref made = function_object(f, function_record(f, is_in_module ? module : Ref::borrow(py_detail::none())), module);
    if (kind == Kind::Method) {
        made = method_of(made);
    } else if (kind == Kind::Static) {
        made = called(attribute(imported("builtins").get(), "staticmethod").get(), made);
    }
    checked(opforge_PyObject_SetAttrString(scope, name, made.get()));
    f->object = made.release();
}
}  // namespace detail

class module_ : public object {
public:
    explicit module_(py_detail::Ref m) : object(std::move(m)) {}

    template <class F, class... X>
    module_& def(const char* name, F&& f, const X&... extras) {
        detail::add(ptr(), name, detail::overload_of(name, detail::Kind::Function, std::forward<F>(f), extras...));
        return *this;
    }
    module_ def_submodule(const char* name, const char* doc = nullptr) {
        std::string full = name_of(*this) + "." + name;
        module_ m(py_detail::Ref::borrow(py_detail::checked(opforge_PyImport_AddModule(full.c_str())).release()));
        if (doc) {
            m.doc() = doc;
        }
        py_detail::checked(opforge_PyObject_SetAttrString(ptr(), name, m.ptr()));
        return m;
    }

    class accessor {
    public:
        accessor(PyObject* o, std::string name) : owner_(o), name_(std::move(name)) {}
        template <class T>
        void operator=(const T& value) && {
            py_detail::Ref r;
            if constexpr (std::is_base_of_v<object, T>) {
                r = value.ref();
            } else if constexpr (std::is_convertible_v<const T&, const char*>) {  // a null pointer is None
                r = py_detail::Convert<const char*>::cast(value);
            } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
                r = py_detail::Convert<std::string>::cast(std::string_view(value));
            } else {
                r = py_detail::Convert<T>::cast(value);
            }
            py_detail::checked(opforge_PyObject_SetAttrString(owner_, name_.c_str(), r.get()));
        }

    private:
        PyObject* owner_;
        std::string name_;
    };
    accessor attr(const char* name) const { return {ptr(), name}; }
    accessor doc() const { return {ptr(), "__doc__"}; }

private:
    static std::string name_of(const module_& m) {
        return object(py_detail::attribute(m.ptr(), "__name__")).cast<std::string>();
    }
};
using module = module_;

namespace detail {
// PyModuleDef of the stable ABI, in a build with a global lock.
struct ModuleDef {
    OpforgePySize references;
    void* type;
    PyObject* (*init)();
    OpforgePySize index;
    PyObject* copy;
    const char* name;
    const char* doc;
    OpforgePySize size;
    void* methods;
    void* slots;
    void *traverse, *clear, *free;
};
OPFORGE_COLD inline PyObject* make_module(const char* name, bool by_definition, void (*fill)(module_&)) {
    try {
        auto& loading = ::opforge_facade_python::loading();
        if (loading.error) {
            raise(opforge_PyExc_ImportError, loading.error->c_str());
            return nullptr;
        }
        loading.has_reached_module = true;
        c10::facade::check_numbers_once();
        Ref made;
        if (by_definition) {
            // an object's head is not the same in a build without a global lock: there the loader calls
            // opforge_facade_module
            if (std::strstr(opforge_Py_GetVersion(), "free-threading")) {
                raise(opforge_PyExc_ImportError, "a facade library is loaded by its loader in a free-threaded Python");
                return nullptr;
            }
            static ModuleDef definition{1,  nullptr, nullptr, 0,       nullptr, name,   nullptr,
                                        -1, nullptr, nullptr, nullptr, nullptr, nullptr};
            constexpr int stable_abi = 3;
            made = checked(opforge_PyModule_Create2(&definition, stable_abi));
        } else {
            made = checked(opforge_PyModule_New(name));
        }
        module_ m(made);
        ++loading.module;
        try {
            fill(m);
        } catch (...) {  // the next import registers the classes again
            if (loading.forget_classes) {
                loading.forget_classes(loading.module);
            }
            throw;
        }
        return made.release();
    } catch (...) {
        translate();
        return nullptr;
    }
}
}  // namespace detail
}  // namespace opforge_facade
}  // namespace pybind11
namespace py = pybind11;

namespace opforge_facade_python {
template <>
struct Convert<pybind11::bytes> {
    static bool load(PyObject* o, bool, pybind11::bytes& value) {
        if (!is(o, BytesFlag)) {
            return false;
        }
        value = pybind11::bytes(Ref::borrow(o));
        return true;
    }
    static Ref cast(const pybind11::bytes& value) { return value.ref(); }
    static std::string name(bool) { return "bytes"; }
};
// Converts an object of one of Python's own types as it is, and an integer where a float is expected.
template <class T>
struct ConvertValueObject {
    static bool load(PyObject* o, bool convert, T& value) {
        if (double real = 0; is_float && convert && is(o, LongFlag) && Convert<double>::load(o, true, real)) {
            value = T(Convert<double>::cast(real));
            return true;
        }
        if (!is_of(o)) {
            return false;
        }
        value = T(Ref::borrow(o));
        return true;
    }
    static Ref cast(const T& value) { return value.ref(); }
    static std::string name(bool) { return type; }

private:
    static constexpr bool is_bool = std::is_same_v<T, pybind11::bool_>, is_int = std::is_same_v<T, pybind11::int_>,
                          is_float = std::is_same_v<T, pybind11::float_>;
    static constexpr const char* type = is_bool ? "bool" : is_int ? "int" : is_float ? "float" : "str";
    static bool is_of(PyObject* o) {
        if constexpr (is_bool) {
            return o == Ref::steal(opforge_PyBool_FromLong(0)).get() ||
                   o == Ref::steal(opforge_PyBool_FromLong(1)).get();
        } else if constexpr (is_float) {
            return is(o, &opforge_PyFloat_Type);
        } else {
            return is(o, is_int ? LongFlag : UnicodeFlag);
        }
    }
};
template <>
struct Convert<pybind11::bool_> : ConvertValueObject<pybind11::bool_> {};
template <>
struct Convert<pybind11::int_> : ConvertValueObject<pybind11::int_> {};
template <>
struct Convert<pybind11::float_> : ConvertValueObject<pybind11::float_> {};
template <>
struct Convert<pybind11::str> : ConvertValueObject<pybind11::str> {};
template <>
struct Convert<pybind11::object> {
    static bool load(PyObject* o, bool, pybind11::object& value) {
        value = pybind11::object(Ref::borrow(o));
        return true;
    }
    static Ref cast(const pybind11::object& value) { return value.ref(); }
    static std::string name(bool) { return "object"; }
};
template <>
struct Convert<pybind11::handle> {
    static bool load(PyObject* o, bool, pybind11::handle& value) {
        value = pybind11::handle(o);
        return true;
    }
    static Ref cast(const pybind11::handle& value) {
        if (!value.ptr()) {
            throw Raised();
        }
        return Ref::borrow(value.ptr());
    }
    static std::string name(bool) { return "object"; }
};
template <>
struct Convert<pybind11::none> {
    static Ref cast(const pybind11::none& value) { return value.ref(); }
    static std::string name(bool) { return "None"; }
};
}  // namespace opforge_facade_python

#define OPFORGE_MODULE(name, variable)                                                    \
    static void opforge_fill_##name(::pybind11::module_&);                                \
    extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name() {         \
        return ::pybind11::detail::make_module(#name, true, &opforge_fill_##name);        \
    }                                                                                     \
    extern "C" __attribute__((visibility("default"))) PyObject* opforge_facade_module() { \
        return ::pybind11::detail::make_module(#name, false, &opforge_fill_##name);       \
    }                                                                                     \
    void opforge_fill_##name([[maybe_unused]] ::pybind11::module_& variable)
#define PYBIND11_MODULE(name, variable, ...) OPFORGE_MODULE(name, variable)

// PYBIND11_MODULE: a module of Python functions that behave as pybind11's, through Python's stable API.
#pragma once
#include "callables.h"
#include "casters.h"
#include "checks.h"
#include "instances.h"
#include "objects.h"

namespace pybind11 {
inline namespace opforge_facade {
namespace py_detail = ::opforge_facade_python;

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
        try {
            value = facade::to_python(v);
        } catch (const py_detail::NotRegistered&) {  // reported with the function's name
            not_registered = py_detail::demangled(typeid(T));
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

namespace facade {

struct Given;
struct Argument {
    std::string name;
    Ref otherwise;
    bool converts = true;
    bool takes_none = true;
};
// Which keeps which alive: the result, or an argument from 1 on.
struct Keep {
    size_t nurse, patient;
    Keep* next;
};
constexpr size_t nowhere = static_cast<size_t>(-1);
// One C++ function behind a Python name.
struct Overload {
    Argument* arguments = nullptr;  // as many as are stated: each was made with room for those that are left out
    size_t stated = 0;
    // What names the types of the parameters, and then of the result: of an argument that is converted, or of a value.
    std::string (*const* type_names)(bool) = nullptr;
    size_t parameters = 0;
    std::string name, doc;
    std::string signature;  // as the types were named when the function was added
    size_t positional = 0, only_positional = 0;
    size_t rest = nowhere, names = nowhere;  // where py::args and py::kwargs are
    bool is_method = false;
    bool is_operator = false;  // other operands are Python's to try
    return_value_policy policy = return_value_policy::automatic;
    Keep* keeps = nullptr;
    // By pointers, so that a module without them has no code of theirs: what keeps, what makes the rest of the
    // arguments, and whether the constructor of an object has run, which a constructor's overload has.
    void (*keep)(PyObject*, PyObject*) = nullptr;
    Ref (*gather)(const Overload&, const Given&, size_t) = nullptr;  // py::args, or py::kwargs
    bool (*has_run)(PyObject*) = nullptr;
    // Calls the function. Returns an empty reference if the values are not convertible to its parameters.
    Ref (*call)(void*, PyObject* const*, const bool*, return_value_policy) = nullptr;
    void* function = nullptr;
    Overload* next = nullptr;

    const Argument* argument(size_t i) const { return i < stated ? &arguments[i] : nullptr; }
    void state(const Argument& argument) { arguments[stated++] = argument; }
    OPFORGE_COLD void sign() {
        std::string& text = signature = "(";
        for (size_t i = 0; i < parameters; ++i) {
            const Argument* argument = this->argument(i);
            text += i ? ", " : "";
            text += i && i == only_positional ? "/, " : "";
            if (i != rest && i != names) {
                text += i == positional && rest == nowhere ? "*, " : "";
                if (argument && !argument->name.empty()) {
                    text += argument->name;
                } else if (is_method && i == 0) {
                    text += "self";
                } else {
                    text += "arg";
                    c10::facade::append(text, i - is_method);
                }
                text += ": ";
            }
            text += type_names[i](!argument || argument->converts);
            if (argument && argument->otherwise) {
                text += " = ";
                text += shown(argument->otherwise.get());
            }
        }
        text += only_positional && only_positional == parameters ? ", /" : "";
        text += ") -> ";
        text += type_names[parameters](false);
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
inline bool bind(const Overload& f, const Given& given, PyObject** values, Ref* made) {
    const size_t n = f.parameters;
    if (given.positional > f.positional && f.rest == nowhere) {
        return false;
    }
    size_t used = 0;
    for (size_t i = 0; i < n; ++i) {
        if (i == f.rest || i == f.names) {
            values[i] = (made[i == f.names] = f.gather(f, given, i)).get();
            continue;
        }
        const Argument* argument = f.argument(i);
        const bool can_be_named = given.named && argument && !argument->name.empty() && i >= f.only_positional;
        PyObject* value = nullptr;
        if (i < given.positional && i < f.positional) {
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
    return used == given.named || f.names != nowhere;
}
// A constructor's signature without its own object and result: (self: m.C, x: int) -> None is m.C(x: int).
OPFORGE_COLD inline std::string constructor_signature(const std::string& text) {
    const size_t begin = sizeof("(self: ") - 1, last = text.rfind(" -> "), comma = text.find(", ");
    const size_t end = comma < last ? comma : text.rfind(')', last), next = comma < last ? comma + 2 : end;
    const std::string_view all = text;
    return c10::facade::joined({all.substr(begin, end - begin), "(", all.substr(next, last - next)});
}
OPFORGE_COLD inline std::string no_match(const Function& f, const Given& given) {
    const bool is_constructor = f.overloads->has_run;
    std::string text = f.name;
    text += "(): incompatible ";
    text += is_constructor ? "constructor" : "function";
    text += " arguments. The following argument types are supported:\n";
    size_t i = 0;
    for (const Overload* overload = f.overloads; overload; overload = overload->next) {
        text += "    ";
        c10::facade::append(text, ++i);
        text += ". ";
        text += is_constructor ? constructor_signature(overload->signature) : overload->signature;
        text += "\n";
    }
    text += "\nInvoked with: ";
    for (size_t k = is_constructor; k < given.positional; ++k) {
        text += k > is_constructor ? ", " : "";
        text += shown(given.values[k]);
    }
    if (given.named > 0) {
        text += given.positional > is_constructor ? "; kwargs: " : "kwargs: ";
        for (size_t k = 0; k < given.named; ++k) {
            text += k ? ", " : "";
            text += key_text(given.name(k));
            text += "=";
            text += shown(given.values[given.positional + k]);
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
    Ref made[2];
    for (int pass = f.overloads->next ? 0 : 1; pass < 2; ++pass) {
        for (const Overload* each = f.overloads; each; each = each->next) {
            const Overload& overload = *each;
            if (!bind(overload, given, values, made)) {
                continue;
            }
            for (size_t i = 0; i < overload.parameters; ++i) {
                const Argument* argument = overload.argument(i);
                converts[i] = pass == 1 && (!argument || argument->converts);
            }
            Ref result;
            try {
                result = overload.call(overload.function, values, converts, overload.policy);
            } catch (const NotRegistered&) {
                throw type_error(
                    c10::facade::joined({"Unable to convert function return value to a Python type! "
                                         "The signature was\n\t",
                                         overload.signature}));
            }
            if (result) {
                for (const Keep* k = overload.keeps; k; k = k->next) {
                    overload.keep(k->nurse ? values[k->nurse - 1] : result.get(),
                                  k->patient ? values[k->patient - 1] : result.get());
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
    // Returns the place of an argument of a type.
    template <class T>
    static constexpr size_t place_of() {
        size_t i = 0, found = nowhere;
        ((found = std::is_same_v<bare_t<A>, T> ? i : found, ++i), ...);
        return found;
    }
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

OPFORGE_IF_USED
inline void extra(Overload& o, const char* doc) { o.doc = doc; }
OPFORGE_IF_USED
inline void extra(Overload& o, const std::string& doc) { o.doc = doc; }
OPFORGE_IF_USED
inline void extra(Overload& o, const arg& a) { o.state({a.name ? a.name : "", {}, a.converts, a.takes_none}); }
OPFORGE_IF_USED
inline void extra(Overload& o, const arg_v& a) {
    if (!a.not_registered.empty()) {
        throw import_error(c10::facade::joined(
            {"arg(): could not convert default argument '", a.name ? a.name : "", a.name ? ": " : "", a.not_registered,
             "'", o.name.empty() ? "" : " in function '", o.name, o.name.empty() ? "" : "'",
             " into a Python object (type not registered yet?)"}));
    }
    o.state({a.name ? a.name : "", a.value, a.converts, a.takes_none});
}
inline void extra(Overload& o, kw_only) { o.positional = o.stated; }
inline void extra(Overload& o, pos_only) { o.only_positional = o.stated ? o.stated : o.is_method; }
template <class... G>
void extra(Overload&, call_guard<G...>) {}
template <size_t A, size_t B>
void extra(Overload& o, keep_alive<A, B>) {
    o.keeps = new Keep{A, B, o.keeps};
    o.keep = &py_detail::keep_alive<>;
}
inline void extra(Overload& o, return_value_policy policy) { o.policy = policy; }
inline void extra(Overload& o, is_operator) { o.is_operator = true; }

OPFORGE_COLD inline std::string doc_of(const Function& f) {
    const bool several = f.overloads->next;
    std::string text;
    if (several) {
        text += f.name;
        text += "(*args, **kwargs)\nOverloaded function.\n\n";
    }
    size_t i = 0;
    for (const Overload* o = f.overloads; o; o = o->next) {
        text += i++ > 0 ? "\n" : "";
        if (several) {
            c10::facade::append(text, i);
            text += ". ";
        }
        text += f.name;
        text += o->signature;
        text += "\n";
        if (!o->doc.empty()) {
            text += "\n";
            text += o->doc;
            text += "\n";
        }
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
OPFORGE_COLD inline Overload* new_overload(const char* name, Kind kind, const TypeName* names, size_t n, size_t room) {
    auto* overload = new Overload();
    overload->name = name;
    overload->type_names = names;
    overload->parameters = overload->positional = n;
    overload->is_method = kind == Kind::Method;
    overload->arguments = room ? new Argument[room] : nullptr;
    if (overload->is_method && room) {
        overload->state({"self", {}, true, false});
    }
    return overload;
}
OPFORGE_COLD inline void check_arguments(const Overload& overload) {
    if (overload.stated && overload.stated != overload.parameters) {
        std::string text = c10::facade::joined({"the function '", overload.name, "' has "});
        c10::facade::append(text, overload.parameters);
        text += " arguments, and ";
        c10::facade::append(text, overload.stated);
        text += " py::arg were given";
        throw std::runtime_error(text);
    }
}
// Returns the values behind the positional parameters, or those whose names no parameter has.
OPFORGE_IF_USED
OPFORGE_COLD inline Ref gathered(const Overload& f, const Given& given, size_t place) {
    Ref list = checked(opforge_PyList_New(0)), dict = checked(opforge_PyDict_New());
    for (size_t i = f.positional; place == f.rest && i < given.positional; ++i) {
        checked(opforge_PyList_Append(list.get(), given.values[i]));
    }
    if (place == f.rest) {
        return checked(opforge_PySequence_Tuple(list.get()));
    }
    for (size_t i = 0; i < given.named; ++i) {
        const std::string text = key_text(given.name(i));
        bool is_known = false;
        for (size_t k = 0; k < f.stated; ++k) {
            is_known |= !f.arguments[k].name.empty() && f.arguments[k].name == text;
        }
        if (!is_known) {
            checked(opforge_PyDict_SetItem(dict.get(), given.name(i), given.values[given.positional + i]));
        }
    }
    return dict;
}
// py::arg is stated for the other parameters.
OPFORGE_IF_USED
OPFORGE_COLD inline void skip_gathered(Overload& f) {
    for (size_t place : {f.rest, f.names}) {
        if (f.stated && place <= f.stated) {
            for (size_t i = f.stated++; i > place; --i) {
                f.arguments[i] = f.arguments[i - 1];
            }
            f.arguments[place] = Argument();
        }
    }
}
// Returns the overload of a C++ function, with what is stated beside it.
template <class F, class... X>
OPFORGE_COLD Overload* overload_of(const char* name, Kind kind, F&& f, const X&... extras) {
    using Guard = typename guard_of<X...>::type;
    using Caller = Call<std::decay_t<F>, signature_t<F>, Guard>;
    constexpr bool has_named_arguments = (std::is_base_of_v<arg, X> || ...);
    constexpr size_t room = has_named_arguments ? Caller::arity + sizeof...(X) + 1 : 0;  // with self, and py::args
    Overload* overload = new_overload(name, kind, Caller::type_names(), Caller::arity, room);
    constexpr size_t rest = Caller::template place_of<args>(), names = Caller::template place_of<kwargs>();
    if constexpr (rest != nowhere || names != nowhere) {
        overload->rest = rest;
        overload->names = names;
        overload->positional = rest < names ? rest : names;
        overload->gather = gathered<>;
    }
    (extra(*overload, extras), ...);
    if constexpr (rest != nowhere || names != nowhere) {
        skip_gathered<>(*overload);
    }
    check_arguments(*overload);
    overload->sign();
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
}  // namespace facade

class module_ : public object {
public:
    explicit module_(py_detail::Ref m) : object(std::move(m)) {}

    template <class F, class... X>
    module_& def(const char* name, F&& f, const X&... extras) {
        facade::add(ptr(), name, facade::overload_of(name, facade::Kind::Function, std::forward<F>(f), extras...));
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

    static module_ import(const char* name) { return module_(py_detail::imported(name)); }
    void add_object(const char* name, const handle& value) {
        py_detail::checked(opforge_PyObject_SetAttrString(ptr(), name, value.ptr()));
    }

private:
    static std::string name_of(const module_& m) {
        return object(py_detail::attribute(m.ptr(), "__name__")).cast<std::string>();
    }
};
using module = module_;

namespace facade {
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
}  // namespace facade
}  // namespace opforge_facade
}  // namespace pybind11
namespace py = pybind11;

namespace opforge_facade_python {
template <>
struct Convert<pybind11::module_> {
    static Ref cast(const pybind11::module_& value) { return value.ref(); }
    static std::string name(bool) { return "types.ModuleType"; }
};
}  // namespace opforge_facade_python

#define OPFORGE_MODULE(name, variable)                                                    \
    static void opforge_fill_##name(::pybind11::module_&);                                \
    extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name() {         \
        return ::pybind11::facade::make_module(#name, true, &opforge_fill_##name);        \
    }                                                                                     \
    extern "C" __attribute__((visibility("default"))) PyObject* opforge_facade_module() { \
        return ::pybind11::facade::make_module(#name, false, &opforge_fill_##name);       \
    }                                                                                     \
    void opforge_fill_##name([[maybe_unused]] ::pybind11::module_& variable)
#define PYBIND11_MODULE(name, variable, ...) OPFORGE_MODULE(name, variable)

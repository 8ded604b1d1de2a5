// py::class_ and py::enum_.
#pragma once
#include "module.h"

namespace pybind11 {
inline namespace opforge_facade {

struct dynamic_attr {};
struct multiple_inheritance {};
struct arithmetic {};
struct module_local {
    constexpr explicit module_local(bool = true) {}
};
template <class... A>
struct init_of {
    template <class T>
    static std::shared_ptr<T> make(A... arguments) {
        if constexpr (std::is_constructible_v<T, A...>) {
            return std::shared_ptr<T>(new T(std::forward<A>(arguments)...));
        } else {
            return std::shared_ptr<T>(new T{std::forward<A>(arguments)...});
        }
    }
};
// The same of the class that overrides, whichever object is made.
template <class... A>
struct init_alias_of {};
template <class F>
struct init_by {
    F make;
};
// One factory of the class, and one of the class that overrides.
template <class F, class G>
struct init_by_two {
    F make;
    G make_alias;
};
// What pickles an object, and makes one of that again.
template <class G, class S>
struct pickle_by {
    G get;
    S set;
};
template <class G, class S>
pickle_by<std::decay_t<G>, std::decay_t<S>> pickle(G&& get, S&& set) {
    return {std::forward<G>(get), std::forward<S>(set)};
}
template <class... A>
init_of<A...> init() {
    return {};
}
template <class... A>
init_alias_of<A...> init_alias() {
    return {};
}
template <class F>
init_by<std::decay_t<F>> init(F&& f) {
    return {std::forward<F>(f)};
}
template <class F, class G>
init_by_two<std::decay_t<F>, std::decay_t<G>> init(F&& f, G&& g) {
    return {std::forward<F>(f), std::forward<G>(g)};
}

namespace facade {
// What a class is declared with beside its C++ type: its holder, its base, or a class that overrides.
template <class T, class X, class = void>
struct IsHolder : std::false_type {};
template <class T>
struct IsHolder<T, std::unique_ptr<T>> : std::true_type {};
template <class T>
struct IsHolder<T, std::shared_ptr<T>> : std::true_type {};
// The class by which Python overrides virtual methods: of those that a class is declared with, the one that has it as
// its base.
template <class T, class X>
constexpr bool is_alias = std::is_base_of_v<T, X> && !std::is_same_v<T, X>;
template <class T, class... X>
struct AliasOf {
    using type = void;
};
template <class T, class X, class... Y>
struct AliasOf<T, X, Y...> {
    using type = std::conditional_t<is_alias<T, X>, X, typename AliasOf<T, Y...>::type>;
};
// Adds a base to a class's, if what it is declared with is one.
template <class T, class X>
void add_base(std::vector<BaseClass>& bases, const char* name) {
    static_assert(IsHolder<T, X>::value || std::is_base_of_v<X, T> || std::is_base_of_v<T, X>,
                  "py::class_ in the facade has std::unique_ptr or std::shared_ptr as its holder: build this source "
                  "with torch's own headers (opforge: abi=\"torch\").");
    if constexpr (!IsHolder<T, X>::value && !is_alias<T, X>) {
        const Class* base = class_of<X>();
        if (!base) {
            c10::facade::fail(c10::facade::text("generic_type: type \"", name, "\" referenced unknown base type \"",
                                                class_name<X>(), "\""));
        }
        bases.push_back({base, [](void* p) -> void* { return static_cast<X*>(static_cast<T*>(p)); }});
    }
}

struct ClassOptions {
    std::string doc;
    bool has_dict = false;
};
inline void class_option(ClassOptions& o, const char* doc) { o.doc = doc; }
inline void class_option(ClassOptions& o, const std::string& doc) { o.doc = doc; }
inline void class_option(ClassOptions& o, dynamic_attr) { o.has_dict = true; }
inline void class_option(ClassOptions&, module_local) {}
inline void class_option(ClassOptions&, multiple_inheritance) {}
inline void class_option(ClassOptions&, arithmetic) {}

OPFORGE_IF_USED
inline std::string text_attribute(PyObject* o, const char* name) {
    std::string text;
    Convert<std::string>::load(attribute(o, name).get(), true, text);
    return text;
}
OPFORGE_IF_USED
inline bool has_attribute(PyObject* o, const char* name) {
    Ref found = Ref::steal(opforge_PyObject_GetAttrString(o, name));
    opforge_PyErr_Clear();
    return static_cast<bool>(found);
}
OPFORGE_IF_USED
inline std::string class_of_self(PyObject* const* values, OpforgePySize n) {
    Ref type = Ref::steal(n > 0 ? opforge_PyObject_Type(values[0]) : nullptr);
    return type ? text_attribute(type.get(), "__module__") + "." + text_attribute(type.get(), "__qualname__")
                : std::string("a class");
}
OPFORGE_IF_USED
inline PyObject* no_constructor(PyObject*, PyObject* const* values, OpforgePySize n, PyObject*) {
    try {
        raise(opforge_PyExc_TypeError, (class_of_self(values, n) + ": No constructor defined!").c_str());
    } catch (...) {
        translate();
    }
    return nullptr;
}
// __getstate__ of a class without one of its own. Python's would copy the slot, and two objects would own one C++
// object.
OPFORGE_IF_USED
inline PyObject* no_state(PyObject*, PyObject* const* values, OpforgePySize n, PyObject*) {
    try {
        raise(opforge_PyExc_TypeError, ("cannot pickle '" + class_of_self(values, n) + "' object").c_str());
    } catch (...) {
        translate();
    }
    return nullptr;
}
// __get__(property, object, class) of what class_property makes.
OPFORGE_IF_USED
inline PyObject* copy_of_getter(PyObject*, PyObject* const* values, OpforgePySize, PyObject*) {
    try {
        return called(attribute(attribute(values[0], "fget").get(), "copy").get()).release();
    } catch (...) {
        translate();
    }
    return nullptr;
}
// Returns a property of a class that gives a copy of a dictionary.
OPFORGE_IF_USED
inline Ref class_property(const Ref& dict) {
    static PyObject* type = nullptr;
    if (!type) {
        static MethodDef get{"__get__", copy_of_getter<>, 0x82, nullptr};
        type = made_type("static_property", "property", get).release();
    }
    return called(type, dict);
}
// Checks that the constructor of each C++ class that an object is of has run.
OPFORGE_IF_USED
inline void check_constructed(PyObject* o) {
    Ref type = Ref::steal(opforge_PyObject_Type(o));
    const Instance* only = instance_of(o);
    if (only && only->type->type == type.get()) {
        return;
    }
    Ref order = attribute(type.get(), "__mro__");  // none of them is of a module: a __new__ has returned something else
    for (OpforgePySize i = 0; i < opforge_PyTuple_Size(order.get()); ++i) {
        PyObject* above = opforge_PyTuple_GetItem(order.get(), i);
        for (const auto& entry : classes()) {
            if (entry.second->type == above && !instance_of(o, entry.second)) {
                raise_without_constructor(*entry.second);
            }
        }
    }
}
// type.__call__, and then that check: a subclass's __init__ need not call it.
OPFORGE_IF_USED
inline PyObject* call_class(PyObject*, PyObject* arguments, PyObject* keywords) {
    try {
        static std::atomic<PyObject*> call{nullptr};
        if (!call) {
            call = attribute(attribute(imported("builtins").get(), "type").get(), "__call__").release();
        }
        Ref made = checked(opforge_PyObject_Call(call, arguments, keywords));
        check_constructed(made.get());
        return made.release();
    } catch (...) {
        translate();
    }
    return nullptr;
}
// The class of a module's classes.
OPFORGE_IF_USED
inline PyObject* metaclass() {
    static PyObject* type = nullptr;
    if (!type) {
        constexpr int keywords = 0x3;  // METH_VARARGS | METH_KEYWORDS
        static MethodDef call{"__call__", nullptr, keywords, nullptr};
        call.call = reinterpret_cast<decltype(call.call)>(call_class<>);
        Ref made = made_type("pybind11_type", "type", call);
        checked(opforge_PyObject_SetAttrString(made.get(), "__module__",
                                               Convert<std::string>::cast("pybind11_builtins").get()));
        type = made.release();
    }
    return type;
}
// Returns the base of all classes: they have its layout, so a class can have several of them as its bases.
OPFORGE_IF_USED
inline PyObject* base_of_all() {
    static PyObject* type = nullptr;
    if (!type) {
        static MethodDef init{"__init__", no_constructor<>, 0x82, nullptr};
        static MethodDef state{"__getstate__", no_state<>, 0x82, nullptr};
        Ref members = checked(opforge_PyDict_New()), bases = checked(opforge_PyTuple_New(1));
        auto put = [&](const char* key, const Ref& value) {
            checked(opforge_PyDict_SetItemString(members.get(), key, value.get()));
        };
        put("__slots__", Convert<std::vector<std::string>>::cast({"_opforge_instance", "__weakref__"}));
        put("__module__", Convert<std::string>::cast("pybind11_builtins"));
        put(init.name, method_of(init));
        put(state.name, method_of(state));
        checked(opforge_PyTuple_SetItem(bases.get(), 0, attribute(imported("builtins").get(), "object").release()));
        type = called(metaclass(), Convert<std::string>::cast("pybind11_object"), bases, members).release();
    }
    return type;
}
// Makes the Python class of a C++ class, and registers it. Without a scope it has no place to be found in.
OPFORGE_IF_USED
inline Class* make_class(PyObject* scope, const char* name, const std::type_info& cpp, std::vector<BaseClass> above,
                         const ClassOptions& options) {
    if (classes().count(cpp)) {
        c10::facade::fail(c10::facade::text("generic_type: type \"", name, "\" is already registered!"));
    }
    const bool is_nested = scope && has_attribute(scope, "__module__") && has_attribute(scope, "__qualname__");
    const std::string module =
        scope ? text_attribute(scope, is_nested ? "__module__" : "__name__") : "pybind11_builtins";
    const std::string qualified = is_nested ? text_attribute(scope, "__qualname__") + "." + name : name;
    bool base_has_dict = false;
    Ref bases = checked(opforge_PyList_New(0)), members = checked(opforge_PyDict_New());
    for (const BaseClass& base : above) {
        base_has_dict |= base.type->has_dict;
        checked(opforge_PyList_Append(bases.get(), base.type->type));
    }
    if (above.empty()) {
        checked(opforge_PyList_Append(bases.get(), base_of_all()));
    }
    auto put = [&](const char* key, const Ref& value) {
        checked(opforge_PyDict_SetItemString(members.get(), key, value.get()));
    };
    std::vector<std::string> slots;
    if (options.has_dict && !base_has_dict) {
        slots.push_back("__dict__");
    }
    put("__slots__", Convert<std::vector<std::string>>::cast(slots));
    put("__module__", Convert<std::string>::cast(module));
    put("__qualname__", Convert<std::string>::cast(qualified));
    if (!options.doc.empty()) {
        put("__doc__", Convert<std::string>::cast(options.doc));
    }
    static MethodDef init{"__init__", no_constructor<>, 0x82, nullptr};
    put(init.name, method_of(init));
    Ref type =
        called(metaclass(), Convert<std::string>::cast(name), checked(opforge_PySequence_Tuple(bases.get())), members);
    if (scope) {
        checked(opforge_PyObject_SetAttrString(scope, name, type.get()));
    }
    auto* made = new Class();
    made->name = module + "." + qualified;
    made->type = type.release();
    made->bases = std::move(above);
    made->has_dict = options.has_dict || base_has_dict;
    auto& loading = ::opforge_facade_python::loading();
    made->module = loading.module;
    classes()[cpp] = made;
    loading.forget_classes = [](int module) {
        for (auto i = classes().begin(); i != classes().end();) {
            i = i->second->module == module ? classes().erase(i) : std::next(i);
        }
    };
    return made;
}
// A method's own object comes first: a method of a base is one of the class.
template <class T, class C, class R, class... A>
auto method_of(R (C::*f)(A...)) {
    return [f](T& self, A... arguments) -> R { return (self.*f)(std::forward<A>(arguments)...); };
}
template <class T, class C, class R, class... A>
auto method_of(R (C::*f)(A...) const) {
    return [f](const T& self, A... arguments) -> R { return (self.*f)(std::forward<A>(arguments)...); };
}
template <class T, class C, class R, class... A>
auto method_of(R (C::*f)(A...) noexcept) {
    return method_of<T>(static_cast<R (C::*)(A...)>(f));
}
template <class T, class C, class R, class... A>
auto method_of(R (C::*f)(A...) const noexcept) {
    return method_of<T>(static_cast<R (C::*)(A...) const>(f));
}
template <class T, class F>
auto method_of(F&& f) {
    return std::forward<F>(f);
}
// Makes an object of a class from one of a type that becomes it, or returns an empty reference.
OPFORGE_IF_USED
Ref converted_implicitly(PyObject* o, const Class& c) {
    for (auto* fits : c.implicit) {
        if (fits(o)) {
            if (Ref made =
                    Ref::steal(opforge_PyObject_CallFunctionObjArgs(c.type, o, static_cast<PyObject*>(nullptr)))) {
                return made;
            }
            opforge_PyErr_Clear();
        }
    }
    return {};
}
// The type of a property of a class itself. A class's attribute is set by its metaclass.
OPFORGE_IF_USED
PyObject* static_property() {
    static PyObject* type = nullptr;
    if (!type) {
        Ref names = checked(opforge_PyDict_New());
        called(attribute(imported("builtins").get(), "exec").get(), Convert<std::string>::cast(R"(
class pybind11_static_property(property):
    __module__ = "pybind11_builtins"
    def __get__(self, o, cls):
        return property.__get__(self, cls, cls)
    def __set__(self, o, value):
        property.__set__(self, o if isinstance(o, type) else type(o), value)
def set_attribute(cls, name, value):
    found = next((c.__dict__[name] for c in cls.__mro__ if name in c.__dict__), None)
    if isinstance(found, pybind11_static_property) and not isinstance(value, pybind11_static_property):
        found.__set__(cls, value)
    else:
        type.__setattr__(cls, name, value)
)"),
               names);
        auto found = [&](const char* name) {
            return checked(opforge_PyObject_GetItem(names.get(), Convert<std::string>::cast(name).get()));
        };
        checked(opforge_PyObject_SetAttrString(metaclass(), "__setattr__", found("set_attribute").get()));
        type = found("pybind11_static_property").release();
    }
    return type;
}
enum class Operands;
template <class O, Operands Where, class Other>
struct class_operator;  // see class_operators.h
}  // namespace facade

// Objects of `From` become one of `To` where a function takes that.
template <class From, class To>
void implicitly_convertible() {
    auto found = py_detail::classes().find(typeid(To));
    if (found == py_detail::classes().end()) {
        c10::facade::fail("implicitly_convertible: Unable to find type " + py_detail::demangled(typeid(To)));
    }
    found->second->convert = facade::converted_implicitly<>;
    found->second->implicit.push_back([](PyObject* o) {
        py_detail::kept_t<From> value{};
        return py_detail::Convert<decltype(value)>::load(o, false, value);
    });
}

template <class T, class... X>
class class_ : public object {
public:
    using type = T;
    template <class... E>
    class_(handle scope, const char* name, const E&... extras) {
        facade::ClassOptions options;
        (facade::class_option(options, extras), ...);
        std::vector<py_detail::BaseClass> bases;
        (facade::add_base<T, X>(bases, name), ...);
        py_detail::Class* made = facade::make_class(scope.ptr(), name, typeid(T), std::move(bases), options);
        object::operator=(object(py_detail::Ref::borrow(made->type)));
    }
    template <class F, class... E>
    class_& def(const char* name, F&& f, const E&... extras) {
        auto method = facade::method_of<T>(std::forward<F>(f));
        facade::add(ptr(), name, facade::overload_of(name, facade::Kind::Method, std::move(method), extras...),
                    facade::Kind::Method);
        if (std::strcmp(name, "__eq__") == 0) {  // as for a class of Python's own
            hash_unless_defined();
        }
        return *this;
    }
    template <class... A, class... E>
    class_& def(const init_of<A...>&, const E&... extras) {
        return constructor(
            "__init__",
            [](py_detail::Self<T> self, A... arguments) {
                if constexpr (!std::is_void_v<Alias>) {
                    if (!std::is_constructible_v<T, A...> || is_of_subclass(self)) {
                        return finish(self, std::shared_ptr<T>(
                                                init_of<A...>::template make<Alias>(std::forward<A>(arguments)...)));
                    }
                }
                if constexpr (std::is_void_v<Alias> || std::is_constructible_v<T, A...>) {
                    finish(self, init_of<A...>::template make<T>(std::forward<A>(arguments)...));
                }
            },
            extras...);
    }
    template <class... A, class... E>
    class_& def(const init_alias_of<A...>&, const E&... extras) {
        return constructor(
            "__init__",
            [](py_detail::Self<T> self, A... arguments) {
                finish(self, std::shared_ptr<T>(init_of<A...>::template make<Alias>(std::forward<A>(arguments)...)));
            },
            extras...);
    }
    template <class F, class G, class... E>
    class_& def(const init_by_two<F, G>& by, const E&... extras) {
        return by_two(by, static_cast<facade::signature_t<F>*>(nullptr), extras...);
    }
    template <class F, class... E>
    class_& def(const init_by<F>& factory, const E&... extras) {
        return by_factory("__init__", factory.make, static_cast<facade::signature_t<F>*>(nullptr), extras...);
    }
    template <class G, class S, class... E>
    class_& def(const pickle_by<G, S>& by, const E&... extras) {
        def("__getstate__", by.get);
        return by_factory("__setstate__", by.set, static_cast<facade::signature_t<S>*>(nullptr), extras...);
    }
    template <class O, facade::Operands Where, class Other, class... E>
    class_& def(const facade::class_operator<O, Where, Other>& op, const E&... extras) {
        op.add_to(*this, extras...);
        return *this;
    }
    template <class F, class... E>
    class_& def_static(const char* name, F&& f, const E&... extras) {
        facade::add(ptr(), name, facade::overload_of(name, facade::Kind::Static, std::forward<F>(f), extras...),
                    facade::Kind::Static);
        return *this;
    }
    template <class C, class D, class... E>
    class_& def_readwrite(const char* name, D C::* member, const E&... extras) {
        auto get = [member](const T& self) -> const D& { return self.*member; };
        auto set = [member](T& self, const D& value) { self.*member = value; };
        return property(name, getter(facade::Kind::Method, get, extras...), setter(facade::Kind::Method, set),
                        extras...);
    }
    template <class C, class D, class... E>
    class_& def_readonly(const char* name, const D C::* member, const E&... extras) {
        auto get = [member](const T& self) -> const D& { return self.*member; };
        return property(name, getter(facade::Kind::Method, get, extras...), {}, extras...);
    }
    // pybind11 does not name the object of these functions "self".
    template <class G, class S, class... E>
    class_& def_property(const char* name, G&& get, S&& set, const E&... extras) {
        return property(name, getter(facade::Kind::Function, std::forward<G>(get), extras...),
                        setter(facade::Kind::Function, std::forward<S>(set)), extras...);
    }
    template <class G, class... E>
    class_& def_property_readonly(const char* name, G&& get, const E&... extras) {
        return property(name, getter(facade::Kind::Function, std::forward<G>(get), extras...), {}, extras...);
    }

    template <class G, class S, class... E>
    class_& def_property_static(const char* name, G&& get, S&& set, const E&... extras) {
        return property_of(
            facade::static_property(), name,
            getter(facade::Kind::Static, std::forward<G>(get), return_value_policy::reference, extras...),
            setter(facade::Kind::Static, std::forward<S>(set)), extras...);
    }
    template <class G, class... E>
    class_& def_property_readonly_static(const char* name, G&& get, const E&... extras) {
        return def_property_static(name, std::forward<G>(get), nullptr, extras...);
    }
    template <class D, class... E>
    class_& def_readwrite_static(const char* name, D* member, const E&... extras) {
        return def_property_static(
            name, [member](const object&) -> const D& { return *member; },
            [member](const object&, const D& value) { *member = value; }, extras...);
    }
    template <class D, class... E>
    class_& def_readonly_static(const char* name, const D* member, const E&... extras) {
        return def_property_readonly_static(name, [member](const object&) -> const D& { return *member; }, extras...);
    }

private:
    using Alias = typename facade::AliasOf<T, X...>::type;
    // Whether an object's class is one of Python's: its methods may override.
    static bool is_of_subclass(const py_detail::Self<T>& self) {
        const py_detail::Ref type = py_detail::checked(opforge_PyObject_Type(self.object));
        return type.get() != py_detail::class_of<T>()->type;
    }
    // An object of a factory's, for a class of Python's one of the class that overrides.
    static std::shared_ptr<T> fitting(const py_detail::Self<T>& self, std::shared_ptr<T> made, bool is_held) {
        if constexpr (!std::is_void_v<Alias>) {
            if (made && is_of_subclass(self) && !dynamic_cast<Alias*>(made.get())) {
                if (is_held) {
                    throw type_error(
                        "pybind11::init(): construction failed: returned holder-wrapped instance is not an alias "
                        "instance");
                }
                if constexpr (std::is_constructible_v<Alias, T&&>) {
                    return std::make_shared<Alias>(std::move(*made));
                } else {
                    throw type_error(
                        "pybind11::init(): unable to convert returned instance to required alias class: no "
                        "`Alias<Class>(Class &&)` constructor available");
                }
            }
        }
        return made;
    }
    template <class F, class G, class R, class... A, class... E>
    class_& by_two(const init_by_two<F, G>& by, R (*)(A...), const E&... extras) {
        return constructor(
            "__init__",
            [by](py_detail::Self<T> self, A... arguments) mutable {
                finish(self, is_of_subclass(self) ? owned(by.make_alias(std::forward<A>(arguments)...))
                                                  : owned(by.make(std::forward<A>(arguments)...)));
            },
            extras...);
    }
    // What a factory gives: an object, or a pointer that owns one.
    template <class R>
    static std::shared_ptr<T> owned(R&& made) {
        if constexpr (std::is_same_v<T, std::decay_t<R>> || std::is_base_of_v<T, std::decay_t<R>>) {
            return std::make_shared<std::decay_t<R>>(std::forward<R>(made));
        } else {
            return std::shared_ptr<T>(std::forward<R>(made));
        }
    }
    static void finish(const py_detail::Self<T>& self, std::shared_ptr<T> made) {
        if (!made) {
            throw type_error("pybind11::init(): factory function returned nullptr");
        }
        py_detail::Instance instance;
        instance.pointer = made.get();
        instance.held = std::move(made);
        instance.type = py_detail::class_of<T>();
        py_detail::put_instance(self.object, std::move(instance));
    }
    template <class F, class... E>
    class_& constructor(const char* name, F f, const E&... extras) {
        auto* overload = facade::overload_of(name, facade::Kind::Method, std::move(f), extras...);
        overload->has_run = [](PyObject* o) { return py_detail::instance_of(o, py_detail::class_of<T>()) != nullptr; };
        facade::add(ptr(), name, overload, facade::Kind::Method);
        return *this;
    }
    template <class F, class R, class... A, class... E>
    class_& by_factory(const char* name, F make, R (*)(A...), const E&... extras) {
        return constructor(
            name,
            [make](py_detail::Self<T> self, A... arguments) mutable {
                constexpr bool is_held = facade::IsHolder<T, std::decay_t<R>>::value;
                finish(self, fitting(self, owned(make(std::forward<A>(arguments)...)), is_held));
            },
            extras...);
    }
    static void property_extra(facade::Overload&, const char*) {}
    static void property_extra(facade::Overload& o, return_value_policy policy) { o.policy = policy; }
    template <class G, class... E>
    py_detail::Ref getter(facade::Kind kind, G&& get, const E&... extras) {
        if constexpr (std::is_base_of_v<object, std::decay_t<G>>) {  // a function of Python's
            return get.ref();
        } else {
            return own_getter(kind, std::forward<G>(get), extras...);
        }
    }
    template <class G, class... E>
    py_detail::Ref own_getter(facade::Kind kind, G&& get, const E&... extras) {
        auto* f = new facade::Function();
        f->add(facade::overload_of("", kind, facade::method_of<T>(std::forward<G>(get))));
        f->overloads->policy = return_value_policy::reference_internal;
        (property_extra(*f->overloads, extras), ...);
        return finished(f);
    }
    template <class S>
    py_detail::Ref setter(facade::Kind kind, S&& set) {
        if constexpr (std::is_null_pointer_v<std::decay_t<S>>) {
            return {};
        } else if constexpr (std::is_base_of_v<object, std::decay_t<S>>) {
            return set.ref();
        } else {
            auto* f = new facade::Function();
            f->add(facade::overload_of("", kind, facade::method_of<T>(std::forward<S>(set))));
            return finished(f);
        }
    }
    py_detail::Ref finished(facade::Function* f) {
        f->doc = facade::doc_of(*f);
        f->definition.doc = f->doc.c_str();
        return facade::function_object(f, facade::function_record(f, py_detail::Ref::borrow(py_detail::none())),
                                       py_detail::attribute(ptr(), "__module__"));
    }
    static const char* doc_among() { return nullptr; }
    template <class... E>
    static const char* doc_among(const char* doc, const E&...) {
        return doc;
    }
    template <class Y, class... E>
    static const char* doc_among(const Y&, const E&... rest) {
        return doc_among(rest...);
    }
    template <class... E>
    class_& property(const char* name, py_detail::Ref get, py_detail::Ref set, const E&... extras) {
        return property_of(py_detail::attribute(py_detail::imported("builtins").get(), "property").get(), name,
                           std::move(get), std::move(set), extras...);
    }
    template <class... E>
    class_& property_of(PyObject* kind, const char* name, const py_detail::Ref& get, const py_detail::Ref& set,
                        const E&... extras) {
        py_detail::Ref nothing = py_detail::Ref::borrow(py_detail::none());
        const char* doc = doc_among(extras...);
        py_detail::Ref text =
            doc ? py_detail::Convert<std::string>::cast(doc) : py_detail::Convert<std::string>::cast("");
        py_detail::Ref made = py_detail::called(kind, get, set ? set : nothing, nothing, text);
        py_detail::checked(opforge_PyObject_SetAttrString(ptr(), name, made.get()));
        return *this;
    }
    void hash_unless_defined() {
        py_detail::Ref members = py_detail::attribute(ptr(), "__dict__");
        py_detail::Ref found = py_detail::called(py_detail::attribute(members.get(), "get").get(),
                                                 py_detail::Convert<std::string>::cast("__hash__"));
        if (py_detail::is_none(found.get())) {
            py_detail::checked(opforge_PyObject_SetAttrString(ptr(), "__hash__", py_detail::none()));
        }
    }
};

template <class T>
class enum_ : public class_<T> {
    using Underlying = std::underlying_type_t<T>;
    using Number = std::conditional_t<std::is_signed_v<Underlying>, int64_t, uint64_t>;

public:
    template <class... E>
    enum_(handle scope, const char* name, const E&... extras)
        : class_<T>(scope, name, extras...), scope_(scope), name_(name) {
        constexpr bool converts = std::is_convertible_v<T, Underlying>;
        constexpr bool is_arithmetic = (std::is_same_v<E, arithmetic> || ...);
        const std::string shown = name_;
        auto number = [](T value) { return number_of(value); };
        auto& c = *this;
        c.def(init([](Number value) { return static_cast<T>(static_cast<Underlying>(value)); }), arg("value"));
        c.def_property_readonly("name", [kept = members_](T value) { return text_in(*kept, value); });
        c.def_property_readonly("value", number);
        c.def("__int__", number);
        c.def("__index__", number);
        c.def("__hash__", number);
        c.def("__getstate__", number);
        c.def("__str__", [shown, kept = members_](T value) { return shown + "." + text_in(*kept, value); });
        c.def("__repr__", [shown, kept = members_, number](T value) {
            return "<" + shown + "." + text_in(*kept, value) + ": " + std::to_string(number(value)) + ">";
        });
        compare_equal("__eq__", true);
        compare_equal("__ne__", false);
        if (is_arithmetic) {
            compare("__lt__", [](Number a, Number b) { return a < b; });
            compare("__gt__", [](Number a, Number b) { return a > b; });
            compare("__le__", [](Number a, Number b) { return a <= b; });
            compare("__ge__", [](Number a, Number b) { return a >= b; });
            if (converts) {
                combine("and", [](Number a, Number b) { return a & b; });
                combine("or", [](Number a, Number b) { return a | b; });
                combine("xor", [](Number a, Number b) { return a ^ b; });
                c.def("__invert__", [](T value) { return -static_cast<int64_t>(number_of(value)) - 1; });
            }
        }
        facade::ClassOptions options;
        (facade::class_option(options, extras), ...);
        doc_ = options.doc.empty() ? "" : options.doc + "\n\n";
        c.def("__reduce__", [number](object self) {
            return std::pair(object(py_detail::checked(opforge_PyObject_Type(self.ptr()))),
                             std::tuple(number(self.template cast<T>())));
        });
        py_detail::Ref members = facade::class_property(all_);
        py_detail::checked(opforge_PyObject_SetAttrString(this->ptr(), "__members__", members.get()));
    }
    enum_& value(const char* name, T value, const char* doc = nullptr) {
        for (const auto& member : *members_) {
            if (member.first == name) {
                throw value_error(name_ + ": element \"" + name + "\" already exists!");
            }
        }
        members_->emplace_back(name, value);
        py_detail::Ref made = py_detail::object_of_value(T(value));
        py_detail::checked(opforge_PyObject_SetAttrString(this->ptr(), name, made.get()));
        py_detail::checked(opforge_PyDict_SetItemString(all_.get(), name, made.get()));
        doc_ += (members_->size() == 1 ? "Members:\n\n  " : "\n\n  ") + std::string(name) +
                (doc ? " : " + std::string(doc) : std::string());
        this->doc() = doc_;
        return *this;
    }
    enum_& export_values() {
        for (const auto& member : *members_) {
            py_detail::Ref made = py_detail::attribute(this->ptr(), member.first.c_str());
            py_detail::checked(opforge_PyObject_SetAttrString(scope_.ptr(), member.first.c_str(), made.get()));
        }
        return *this;
    }

private:
    using Members = std::vector<std::pair<std::string, T>>;
    static std::string text_in(const Members& members, T value) {
        for (const auto& [name, known] : members) {
            if (known == value) {
                return name;
            }
        }
        return "???";
    }
    static Number number_of(T value) { return static_cast<Number>(static_cast<Underlying>(value)); }
    // A member beside another value: an enumeration that C++ converts to a number is compared as a number.
    void compare_equal(const char* name, bool when_equal) {
        this->def(
            name,
            [when_equal](T a, object other) {
                T b{};
                if (py_detail::Convert<T>::load(other.ptr(), false, b)) {
                    return (a == b) == when_equal;
                }
                if (!std::is_convertible_v<T, Underlying>) {
                    return !when_equal;
                }
                constexpr int equal = 2;  // Py_EQ of the stable ABI
                py_detail::Ref mine = py_detail::Convert<Number>::cast(number_of(a));
                const int same = opforge_PyObject_RichCompareBool(mine.get(), other.ptr(), equal);
                py_detail::checked(same);
                return (same == 1) == when_equal;
            },
            arg("other"));
    }
    template <class F>
    void compare(const char* name, F f) {
        this->def(
            name,
            [f](T a, object other) {
                T b{};
                if (py_detail::Convert<T>::load(other.ptr(), false, b)) {
                    return f(number_of(a), number_of(b));
                }
                if (!std::is_convertible_v<T, Underlying>) {
                    throw type_error("Expected an enumeration of matching type!");
                }
                return f(number_of(a),
                         object(py_detail::checked(opforge_PyNumber_Long(other.ptr()))).template cast<Number>());
            },
            arg("other"));
    }
    template <class F>
    void combine(const std::string& name, F f) {
        auto both = [f](T a, Number b) { return f(number_of(a), b); };
        this->def(("__" + name + "__").c_str(), both, arg("other"));
        this->def(("__r" + name + "__").c_str(), both, arg("other"));
    }
    handle scope_;
    std::string name_, doc_;
    std::shared_ptr<Members> members_ = std::make_shared<Members>();
    py_detail::Ref all_ = py_detail::checked(opforge_PyDict_New());  // of the members by their names
};
}  // namespace opforge_facade
}  // namespace pybind11

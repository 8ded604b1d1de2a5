// Python objects of C++ classes. An object's layout is not known here, so the C++ object is behind a capsule
// in a slot of the Python object: it is freed with it.
#pragma once
#include <cxxabi.h>

#include <mutex>
#include <typeindex>

#include "conversions.h"

namespace pybind11 {
inline namespace opforge_facade {
enum class return_value_policy : uint8_t {
    automatic,
    automatic_reference,
    take_ownership,
    copy,
    move,
    reference,
    reference_internal
};
namespace detail {
template <class T, class = void>
class type_caster;
}
}  // namespace opforge_facade
}  // namespace pybind11

namespace opforge_facade_python {
// Returns a function that becomes a method of the object it is got from. CPython makes one by a function that is not in
// its stable ABI. So the library does not link it: ctypes finds it, when a class is registered.
OPFORGE_COLD inline Ref method_of(const Ref& function) {
    const Ref ctypes = imported("ctypes"), object = attribute(ctypes.get(), "py_object");
    const Ref kind = called(attribute(ctypes.get(), "PYFUNCTYPE").get(), object, object);
    Ref named = checked(opforge_PyTuple_New(2));
    checked(opforge_PyTuple_SetItem(named.get(), 0,
                                    checked(opforge_PyUnicode_InternFromString("PyInstanceMethod_New")).release()));
    checked(opforge_PyTuple_SetItem(named.get(), 1, attribute(ctypes.get(), "pythonapi").release()));
    return called(called(kind.get(), named).get(), function);
}

using Policy = ::pybind11::return_value_policy;

struct Class;
struct BaseClass {
    const Class* type;
    void* (*pointer)(void*);  // to it, from one to the class
};
// A class or an enumeration that the source registers.
struct Class {
    std::string name;  // with its module
    PyObject* type = nullptr;
    std::vector<BaseClass> bases;
    bool has_dict = false;
    Ref (*convert)(PyObject*, const Class&) = nullptr;  // of a class that other objects become
    std::vector<bool (*)(PyObject*)> implicit{};        // which those are
    int module = 0;                                     // of Loading: which run of the module's body made it
};
OPFORGE_IF_USED
inline std::map<std::type_index, Class*>& classes() {
    static auto* all = new std::map<std::type_index, Class*>();
    return *all;
}
template <class T>
const Class* class_of() {
    auto found = classes().find(typeid(T));
    return found == classes().end() ? nullptr : found->second;
}
OPFORGE_IF_USED
OPFORGE_COLD inline std::string demangled(const std::type_info& type) {
    int status = 0;
    std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
    std::string name = text ? text.get() : type.name();
    constexpr std::string_view inner = "opforge_facade::";  // the namespace within torch's
    for (size_t at = name.find(inner); at != std::string::npos; at = name.find(inner)) {
        name.erase(at, inner.size());
    }
    return name;
}
template <class T>
std::string class_name() {
    if (const Class* c = class_of<T>()) {
        return c->name;
    }
    return demangled(typeid(T));
}

struct Instance {
    std::shared_ptr<void> held;  // owns the C++ object, or nothing if that is another's
    void* pointer = nullptr;
    const Class* type = nullptr;
    std::vector<PyObject*> kept;     // objects that live as long as this one
    PyObject* owner = nullptr;       // a weak reference to the Python object
    std::unique_ptr<Instance> next;  // of another class: a class in Python can have several of C++ as its bases
};
// The object of each C++ object: one that is returned again is the same object. Several objects have one address if
// the C++ object of an older one has ended without it. The lock is for Pythons without a global one, and is not held
// while Python runs.
struct Objects {
    std::mutex lock;
    std::multimap<std::pair<const void*, const Class*>, Instance*> all;
};
OPFORGE_IF_USED
inline Objects& objects() {
    static auto* made = new Objects();  // capsules end after this library's statics
    return *made;
}
// Returns the newest living object of a C++ object, or an empty reference. An object whose end has begun is none: a
// callback of a weak reference to it would get it back after that.
OPFORGE_IF_USED
inline Ref living_object(const void* address, const Class* type) {
    std::vector<Ref> owners;
    {
        std::lock_guard<std::mutex> hold(objects().lock);
        const auto [first, last] = objects().all.equal_range({address, type});
        for (auto i = last; i != first;) {
            owners.push_back(Ref::borrow((--i)->second->owner));
        }
    }
    for (const Ref& owner : owners) {
        Ref object = called(owner.get());
        if (!is_none(object.get())) {
            return object;
        }
    }
    return {};
}
constexpr const char* instance_name = "opforge.instance";
OPFORGE_IF_USED
inline const Name& slot() {
    static std::atomic<const Name*> made{nullptr};
    if (!made) {
        made = new Name("_opforge_instance");
    }
    return *made;
}
OPFORGE_IF_USED
inline void free_instance(PyObject* capsule) {
    std::unique_ptr<Instance> instance(static_cast<Instance*>(opforge_PyCapsule_GetPointer(capsule, instance_name)));
    for (; instance; instance = std::move(instance->next)) {
        {
            std::lock_guard<std::mutex> hold(objects().lock);
            auto& all = objects().all;
            const auto [first, last] = all.equal_range({instance->pointer, instance->type});
            auto own = std::find_if(first, last, [&](const auto& entry) { return entry.second == instance.get(); });
            if (own != last) {
                all.erase(own);
            }
        }
        instance->held.reset();
        opforge_Py_DecRef(instance->owner);
        for (PyObject* o : instance->kept) {
            opforge_Py_DecRef(o);
        }
    }
}
// Returns what is behind an object of a registered class: null if its constructor has not run. The slot is read and
// set without the __getattr__ and __setattr__ of a subclass in Python.
OPFORGE_IF_USED
inline Instance* instance_of(PyObject* o) {
    Ref capsule = Ref::steal(opforge_PyObject_GenericGetAttr(o, slot().get()));
    void* instance = nullptr;
    if (capsule && is(capsule.get(), &opforge_PyCapsule_Type) &&
        opforge_PyCapsule_GetDestructor(capsule.get()) == &free_instance<>) {  // of this library, and of no other
        instance = opforge_PyCapsule_GetPointer(capsule.get(), instance_name);
    }
    if (!instance) {
        opforge_PyErr_Clear();
    }
    return static_cast<Instance*>(instance);
}
OPFORGE_IF_USED
inline void put_instance(PyObject* o, Instance made) {
    Ref owner = checked(opforge_PyWeakref_NewRef(o, nullptr));
    auto instance = std::make_unique<Instance>(std::move(made));
    Instance* first = instance_of(o);
    Ref capsule = first ? Ref() : checked(opforge_PyCapsule_New(instance.get(), instance_name, &free_instance<>));
    instance->owner = owner.release();
    std::unique_lock<std::mutex> hold(objects().lock);
    objects().all.emplace(std::pair(instance->pointer, instance->type), instance.get());
    if (first) {
        instance->next = std::move(first->next);
        first->next = std::move(instance);
        return;
    }
    hold.unlock();
    instance.release();  // the capsule's from here on
    checked(opforge_PyObject_GenericSetAttr(o, slot().get(), capsule.get()));
}
// Returns a pointer to an object of a class as one to another class, or null if that is none of its bases.
OPFORGE_IF_USED
inline void* pointer_as(void* pointer, const Class* type, const Class* wanted) {
    if (type == wanted) {
        return pointer;
    }
    for (const BaseClass& base : type->bases) {
        if (void* found = pointer_as(base.pointer(pointer), base.type, wanted)) {
            return found;
        }
    }
    return nullptr;
}
// Returns the part of an object that a class is, or is a base of: null if its constructor has not run.
OPFORGE_IF_USED
inline Instance* instance_of(PyObject* o, const Class* wanted) {
    Instance* each = instance_of(o);
    while (each && !pointer_as(each->pointer, each->type, wanted)) {
        each = each->next.get();
    }
    return each;
}
OPFORGE_IF_USED
inline void keep_alive(PyObject* nurse, PyObject* patient) {
    if (is_none(nurse) || is_none(patient)) {
        return;
    }
    Instance* instance = instance_of(nurse);
    if (!instance) {
        c10::facade::fail("py::keep_alive needs an object of a class of this module as the one that keeps");
    }
    opforge_Py_IncRef(patient);
    std::lock_guard<std::mutex> hold(objects().lock);
    instance->kept.push_back(patient);
}
OPFORGE_IF_USED
[[noreturn]] OPFORGE_COLD inline void raise_without_constructor(const Class& c) {
    raise(opforge_PyExc_TypeError, (c.name + ".__init__() must be called when overriding __init__").c_str());
    throw Raised();
}
// Returns the C++ object behind an object, or null if that is none of the class.
OPFORGE_IF_USED
inline void* find_instance(PyObject* o, const Class* wanted, std::shared_ptr<void>* held = nullptr) {
    if (!wanted || !is(o, reinterpret_cast<_typeobject*>(wanted->type))) {
        return nullptr;
    }
    Instance* instance = instance_of(o, wanted);
    if (!instance) {
        raise_without_constructor(*wanted);
    }
    if (held) {
        *held = instance->held;
    }
    return pointer_as(instance->pointer, instance->type, wanted);
}
// The same, and of another object what the class makes of it: `made` is that object, which has to live as long.
OPFORGE_IF_USED
inline void* find_converted(PyObject* o, const Class* wanted, bool convert, Ref& made,
                            std::shared_ptr<void>* held = nullptr) {
    void* found = find_instance(o, wanted, held);
    if (!found && convert && wanted && wanted->convert) {
        made = wanted->convert(o, *wanted);
        found = made ? find_instance(made.get(), wanted, held) : nullptr;
    }
    return found;
}
OPFORGE_IF_USED
inline Ref new_object(const Class* c) {
    static std::atomic<PyObject*> make{nullptr};
    if (!make) {
        make = attribute(attribute(imported("builtins").get(), "object").get(), "__new__").release();
    }
    return checked(opforge_PyObject_CallFunctionObjArgs(make.load(), c->type, static_cast<PyObject*>(nullptr)));
}

// ---- what is a class of the source's own
template <class T>
struct IsRefused : std::false_type {};
template <>
struct IsRefused<at::Tensor> : std::true_type {};  // it has no class behind a pointer
template <>
struct IsRefused<c10::Scalar> : std::true_type {};
template <>
struct IsRefused<c10::Generator> : std::true_type {};
template <>
struct IsRefused<c10::TensorOptions> : std::true_type {};
template <>
struct IsRefused<c10::MemoryFormat> : std::true_type {};
template <>
struct IsRefused<c10::Layout> : std::true_type {};
template <>
struct IsRefused<c10::DeviceType> : std::true_type {};
template <class F>
struct IsRefused<std::function<F>> : std::true_type {};
template <class T, class D>
struct IsRefused<std::unique_ptr<T, D>> : std::true_type {};

// A result is of a class that the source does not register.
struct NotRegistered {};
// Returns the owner of an object that knows it by std::enable_shared_from_this, or an empty pointer.
template <class T, class = void>
struct OwnerOf {
    static std::shared_ptr<void> find(T*) { return {}; }
};
template <class T>
struct OwnerOf<T, std::void_t<decltype(std::declval<T&>().weak_from_this())>> {
    static std::shared_ptr<void> find(T* object) { return object->weak_from_this().lock(); }
};
// Makes the object of a C++ object, or returns the one that there is.
template <class T>
Ref object_of(T* pointer, Policy policy, PyObject* parent, const std::shared_ptr<T>& shared = {}) {
    using Plain = std::remove_const_t<T>;
    if (!pointer) {
        return Ref::borrow(none());
    }
    const Class* c = class_of<Plain>();
    void* address = const_cast<Plain*>(pointer);
    if constexpr (std::is_polymorphic_v<Plain>) {  // an object of a registered subclass is one of that
        auto derived = classes().find(typeid(*pointer));
        if (derived != classes().end()) {
            c = derived->second;
            address = const_cast<void*>(dynamic_cast<const void*>(pointer));
        }
    }
    if (!c) {
        throw NotRegistered();
    }
    // whatever the policy: a method that returns its own object by reference gives that one, and no copy
    if (Ref found = living_object(address, c)) {
        return found;
    }
    Instance made;
    made.type = c;
    made.pointer = address;
    if (shared) {
        made.held = std::const_pointer_cast<Plain>(shared);
    } else if (policy == Policy::copy || policy == Policy::move) {
        if constexpr (std::is_copy_constructible_v<Plain>) {
            auto copy = std::make_shared<Plain>(*pointer);
            made.type = class_of<Plain>() ? class_of<Plain>() : c;
            made.pointer = copy.get();
            made.held = copy;
        } else {
            c10::facade::fail("return_value_policy = copy, but type is non-copyable!");
        }
    } else if (auto owner = OwnerOf<Plain>::find(const_cast<Plain*>(pointer))) {
        made.held = std::move(owner);
    } else if (policy == Policy::take_ownership) {
        made.held = std::shared_ptr<Plain>(const_cast<Plain*>(pointer));
    }
    Ref object = new_object(made.type);
    put_instance(object.get(), std::move(made));
    if (policy == Policy::reference_internal && parent) {
        keep_alive(object.get(), parent);
    }
    return object;
}
template <class T>
Ref object_of_value(T&& value) {
    using Plain = std::decay_t<T>;
    if (!class_of<Plain>()) {
        throw NotRegistered();
    }
    auto made = std::make_shared<Plain>(std::forward<T>(value));
    return object_of<Plain>(made.get(), Policy::take_ownership, nullptr, made);
}

// ---- arguments
template <class T>
struct Loaded {
    static constexpr bool is_loaded = true;
    T* pointer = nullptr;
    Ref made;
    template <class A>
    decltype(auto) hand() {
        if constexpr (std::is_lvalue_reference_v<A>) {
            return static_cast<T&>(*pointer);
        } else {
            return T(*pointer);
        }
    }
};
template <class T>
struct LoadedPointer {
    static constexpr bool is_loaded = true;
    T* pointer = nullptr;
    Ref made;
    template <class A>
    T* hand() {
        return pointer;
    }
};
// Whether a type is of the standard library or of the facade: no source registers one of these.
template <class T>
constexpr bool is_of_a_library() {
    std::string_view text = __PRETTY_FUNCTION__;
    text = text.substr(text.find("T = ") + 4);
    text = text.substr(0, text.find_first_of("<];"));
    return text.substr(0, 5) == "std::" || text.find("opforge_facade") != std::string_view::npos;
}
template <class T>
constexpr bool is_own_type =
    (std::is_class_v<T> || std::is_union_v<T> || std::is_enum_v<T>) && !IsRefused<T>::value && !is_of_a_library<T>();
template <class T, class = void>
struct IsComplete : std::false_type {};
template <class T>
struct IsComplete<T, std::void_t<decltype(sizeof(T))>> : std::true_type {};
template <class T>
struct HasCaster
    : std::conjunction<std::bool_constant<is_own_type<T>>, IsComplete<::pybind11::detail::type_caster<T>>> {};
template <class T>
constexpr bool is_own_class = (is_own_type<T> && !HasCaster<T>::value) || IsOpaque<T>::value;
template <class T>
struct IsConvertible {
    static_assert(is_own_class<T>,
                  "this type has no conversion from and to Python in the facade: build this source with torch's own "
                  "headers (opforge: abi=\"torch\").");
};
template <class T>
struct ConvertInstance : IsConvertible<T> {
    static constexpr bool of_instance = true;
    static bool load(PyObject* o, bool convert, T& value) {
        Ref made;
        auto* found = static_cast<T*>(find_converted(o, class_of<T>(), convert, made));
        return found && (value = *found, true);
    }
    static Ref cast(const T& value) { return object_of(&value, Policy::copy, nullptr); }
    static Ref cast(T&& value) { return object_of_value(std::move(value)); }
    static std::string name(bool) { return class_name<T>(); }
};
// An object whose constructor runs.
template <class T>
struct Self {
    PyObject* object = nullptr;
};
template <class T>
struct Convert<Self<T>> {
    static bool load(PyObject* o, bool, Self<T>& value) {
        const Class* c = class_of<T>();
        value.object = o;
        return c && is(o, reinterpret_cast<_typeobject*>(c->type));
    }
    static std::string name(bool) { return class_name<T>(); }
};
template <class T>
struct Convert<Loaded<T>> {
    static bool load(PyObject* o, bool convert, Loaded<T>& value) {
        value.pointer = static_cast<T*>(find_converted(o, class_of<T>(), convert, value.made));
        return value.pointer != nullptr;
    }
    static std::string name(bool) { return class_name<T>(); }
};
template <class T>
struct Convert<LoadedPointer<T>> : IsConvertible<std::remove_const_t<T>> {
    using Plain = std::remove_const_t<T>;
    static bool load(PyObject* o, bool convert, LoadedPointer<T>& value) {
        if (is_none(o)) {
            return convert;
        }
        value.pointer = static_cast<Plain*>(find_converted(o, class_of<Plain>(), convert, value.made));
        return value.pointer != nullptr;
    }
    static std::string name(bool) { return class_name<Plain>(); }
};
template <class T>
struct Convert<T*, std::enable_if_t<is_own_class<std::remove_const_t<T>>>> {
    static Ref cast(T* value) { return object_of(value, Policy::take_ownership, nullptr); }
    static std::string name(bool) { return class_name<std::remove_const_t<T>>(); }
};
// A pointer to a value as a result is that value.
template <class T>
constexpr bool is_plain_value = (std::is_arithmetic_v<T> && !is_character<T>) || IsRefused<T>::value ||
                                (std::is_class_v<T> && is_of_a_library<T>() && !IsOpaque<T>::value);
template <class T>
struct Convert<T*, std::enable_if_t<is_plain_value<std::remove_const_t<T>>>> {
    using Plain = std::remove_const_t<T>;
    static Ref cast(T* value) { return value ? Convert<Plain>::cast(*value) : Ref::borrow(none()); }
    static std::string name(bool argument) { return Convert<Plain>::name(argument); }
};
template <class T>
struct Convert<std::shared_ptr<T>> : IsConvertible<std::remove_const_t<T>> {
    static bool load(PyObject* o, bool convert, std::shared_ptr<T>& value) {
        using Plain = std::remove_const_t<T>;
        if (is_none(o)) {
            value.reset();
            return convert;
        }
        std::shared_ptr<void> held;
        Ref made;
        auto* found = static_cast<Plain*>(find_converted(o, class_of<Plain>(), convert, made, &held));
        if (found && !held) {  // Python refers to an object that something else owns
            held = OwnerOf<Plain>::find(found);
            if (!held) {
                throw std::runtime_error("Unable to cast from non-held to held instance (T& to Holder<T>) of type '" +
                                         demangled(typeid(std::shared_ptr<T>)) + "''");
            }
        }
        value = std::shared_ptr<T>(std::move(held), found);
        return found != nullptr;
    }
    static Ref cast(const std::shared_ptr<T>& value) {
        return object_of(value.get(), Policy::take_ownership, nullptr, value);
    }
    static std::string name(bool) { return class_name<std::remove_const_t<T>>(); }
};
// A result alone: an object of Python's may have other owners.
template <class T, class D>
struct Convert<std::unique_ptr<T, D>> : IsConvertible<std::remove_const_t<T>> {
    static Ref cast(std::unique_ptr<T, D>&& value) { return Convert<std::shared_ptr<T>>::cast(std::move(value)); }
    static std::string name(bool) { return class_name<std::remove_const_t<T>>(); }
};
// A result's conversion, by the policy of the function.
template <class R, class V>
Ref cast_result(V&& value, Policy policy, PyObject* parent) {
    using Bare = std::remove_cv_t<std::remove_reference_t<R>>;
    using Pointed = std::remove_const_t<std::remove_pointer_t<Bare>>;
    if constexpr (HasCaster<Pointed>::value) {
        return Convert<Bare>::cast(std::forward<V>(value), policy, parent);
    } else if constexpr (std::is_pointer_v<Bare> && is_own_class<Pointed>) {
        const bool is_automatic = policy == Policy::automatic || policy == Policy::automatic_reference;
        return object_of(value, is_automatic ? Policy::take_ownership : policy, parent);
    } else if constexpr (std::is_lvalue_reference_v<R> && UsesInstances<Bare>::value) {
        const bool is_automatic = policy == Policy::automatic || policy == Policy::automatic_reference;
        return object_of(&value, is_automatic || policy == Policy::move ? Policy::copy : policy, parent);
    } else {
        return Convert<Bare>::cast(std::forward<V>(value));
    }
}
}  // namespace opforge_facade_python

// Python's objects beside tensors, as pybind11 has them: attributes, items, calls, iteration, Python's own containers.
#pragma once
#include "exceptions.h"
#include "instances.h"

namespace pybind11 {
inline namespace opforge_facade {

class handle;
class object;
class accessor;
class iterator;
struct arg_v;

namespace facade {
using namespace ::opforge_facade_python;

// A tuple of arguments, or a dict of those with names, that a call takes apart: f(*args, **kwargs).
struct kwargs_proxy {
    PyObject* dict;
};
struct args_proxy {
    PyObject* tuple;
    kwargs_proxy operator*() const { return {tuple}; }
};

// Returns a C++ value as a Python object: None of a null pointer and of no value.
template <class T>
Ref to_python(const T& value);
// Makes Python's function of a C++ one.
template <class F>
Ref as_function(const F& f);
// Calls an object. An argument with a name is a keyword.
template <class... A>
Ref call_object(PyObject* function, const A&... arguments);

// What an object, a reference to one, and an attribute or item of one can do.
template <class D>
class object_api {
public:
    accessor attr(const char* name) const;
    accessor attr(const handle& name) const;
    accessor doc() const;
    accessor operator[](const char* key) const;
    accessor operator[](const handle& key) const;
    template <class I, class = std::enable_if_t<std::is_integral_v<I>>>
    accessor operator[](I index) const;
    template <class... A>
    object operator()(const A&... arguments) const;
    args_proxy operator*() const { return {pointer()}; }
    iterator begin() const;
    iterator end() const;
    template <class T>
    bool contains(const T& key) const;
    template <class T>
    T cast() const;
    bool is_none() const { return pointer() == none(); }
    template <class O>
    bool is(const O& o) const {
        return pointer() == o.ptr();
    }
    template <class O>
    bool equal(const O& o) const {
        constexpr int is_equal = 2;  // Py_EQ of the stable ABI
        const int found = opforge_PyObject_RichCompareBool(pointer(), to_python(o).get(), is_equal);
        checked(found);
        return found == 1;
    }
    template <class O>
    bool not_equal(const O& o) const {
        return !equal(o);
    }
#define OPFORGE_OBJECT_OPERATORS(o) \
    o(+, Add) o(-, Subtract) o(*, Multiply) o(/, TrueDivide) o(&, And) o(|, Or) o(^, Xor) o(<<, Lshift) o(>>, Rshift)
#define OPFORGE_OBJECT_OPERATOR(symbol, name)                 \
    template <class O>                                        \
    object operator symbol(const object_api<O>& other) const; \
    template <class O>                                        \
    object operator symbol## = (const object_api<O>& other);
    OPFORGE_OBJECT_OPERATORS(OPFORGE_OBJECT_OPERATOR)
#undef OPFORGE_OBJECT_OPERATOR
    object operator-() const;
    object operator~() const;

private:
    PyObject* pointer() const { return static_cast<const D&>(*this).ptr(); }
};
}  // namespace facade

class handle : public facade::object_api<handle> {
public:
    handle() = default;
    handle(PyObject* p) : object_(p) {}
    PyObject* ptr() const { return object_; }
    PyObject*& ptr() { return object_; }
    explicit operator bool() const { return object_ != nullptr; }
    const handle& inc_ref() const {
        opforge_Py_IncRef(object_);
        return *this;
    }
    const handle& dec_ref() const {
        opforge_Py_DecRef(object_);
        return *this;
    }

protected:
    PyObject* object_ = nullptr;
};
class object : public handle {
public:
    object() = default;
    object(facade::Ref r) : handle(r.get()), kept_(std::move(r)) {}
    facade::Ref ref() const { return kept_; }
    // Returns the object, whose reference the caller owns then.
    handle release() {
        object_ = nullptr;
        return kept_.release();
    }

private:
    facade::Ref kept_;
};
namespace facade {
// As pybind11's, an operator such as += returns the result, and assigns it to nothing.
#define OPFORGE_OBJECT_OPERATOR(symbol, name)                                                          \
    template <class D>                                                                                 \
    template <class O>                                                                                 \
    object object_api<D>::operator symbol(const object_api<O>& other) const {                          \
        return checked(opforge_PyNumber_##name(pointer(), static_cast<const O&>(other).ptr()));        \
    }                                                                                                  \
    template <class D>                                                                                 \
    template <class O>                                                                                 \
    object object_api<D>::operator symbol## = (const object_api<O>& other) {                           \
        return checked(opforge_PyNumber_InPlace##name(pointer(), static_cast<const O&>(other).ptr())); \
    }
OPFORGE_OBJECT_OPERATORS(OPFORGE_OBJECT_OPERATOR)
#undef OPFORGE_OBJECT_OPERATOR
template <class D>
object object_api<D>::operator-() const {
    return checked(opforge_PyNumber_Negative(pointer()));
}
template <class D>
object object_api<D>::operator~() const {
    return checked(opforge_PyNumber_Invert(pointer()));
}
}  // namespace facade
template <class T>
T reinterpret_borrow(handle h) {
    return T(facade::Ref::borrow(h.ptr()));
}
template <class T>
T reinterpret_steal(handle h) {
    return T(facade::Ref::steal(h.ptr()));
}

// An attribute or an item: it is read where its value is needed, and set where a value is given.
class accessor : public facade::object_api<accessor> {
public:
    accessor(PyObject* owner, facade::Ref key, bool is_item)
        : of_(owner), owner_(facade::Ref::borrow(owner)), key_(std::move(key)), is_item_(is_item) {}
    // A place of a list or a tuple, which is not kept: a tuple is filled by its only owner.
    accessor(PyObject* owner, size_t place) : of_(owner), place_(static_cast<OpforgePySize>(place)) {}
    accessor(const accessor&) = default;
    accessor(accessor&&) = default;
    void operator=(const accessor& o) && { set(o.get().ref()); }
    void operator=(const accessor& o) & { value_ = o.get(); }
    template <class T>
    void operator=(const T& value) && {
        set(facade::to_python(value));
    }
    template <class T>
    void operator=(const T& value) & {
        value_ = object(facade::to_python(value));
    }
    PyObject* ptr() const { return get().ptr(); }
    operator object() const { return get(); }
    operator handle() const { return get(); }
    const object& get() const {
        if (!value_) {
            value_ = facade::checked(place_ >= 0 ? opforge_PySequence_GetItem(of_, place_)
                                     : is_item_  ? opforge_PyObject_GetItem(of_, key_.get())
                                                 : opforge_PyObject_GetAttr(of_, key_.get()));
        }
        return value_;
    }

private:
    void set(facade::Ref value) const {
        if (place_ >= 0) {  // as by PyObject_SetItem, but for a place that holds nothing yet
            const bool is_list = facade::is(of_, facade::ListFlag);
            return facade::checked(
                (is_list ? opforge_PyList_SetItem : opforge_PyTuple_SetItem)(of_, place_, value.release()));
        }
        facade::checked(is_item_ ? opforge_PyObject_SetItem(of_, key_.get(), value.get())
                                 : opforge_PyObject_SetAttr(of_, key_.get(), value.get()));
    }
    PyObject* of_;
    facade::Ref owner_, key_;
    bool is_item_ = false;
    OpforgePySize place_ = -1;
    mutable object value_;
};

// ---- iteration
class iterator : public object {
public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = handle;
    using reference = const handle;
    using pointer = const handle*;
    iterator() = default;
    explicit iterator(facade::Ref r) : object(std::move(r)) {}
    iterator& operator++() {
        value_ = facade::Ref::steal(opforge_PyIter_Next(ptr()));
        if (!value_ && opforge_PyErr_Occurred()) {
            throw facade::Raised();
        }
        has_begun_ = true;
        return *this;
    }
    iterator operator++(int) {
        iterator before = *this;
        ++*this;
        return before;
    }
    handle operator*() const { return current().get(); }
    static iterator sentinel() { return {}; }
    friend bool operator==(const iterator& a, const iterator& b) { return a.place() == b.place(); }
    friend bool operator!=(const iterator& a, const iterator& b) { return !(a == b); }

private:
    const facade::Ref& current() const {
        if (object_ && !has_begun_) {
            ++const_cast<iterator&>(*this);
        }
        return value_;
    }
    PyObject* place() const { return object_ ? current().get() : nullptr; }
    facade::Ref value_;
    bool has_begun_ = false;
};
// The keys and values of a dict, as pairs.
class dict_iterator {
public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = std::pair<handle, handle>;
    using reference = value_type;
    using pointer = const value_type*;
    dict_iterator() = default;  // behind the last
    explicit dict_iterator(PyObject* dict) : dict_(dict), place_(0) { ++*this; }
    dict_iterator& operator++() {
        PyObject *key = nullptr, *value = nullptr;
        if (!opforge_PyDict_Next(dict_, &place_, &key, &value)) {
            place_ = -1;
        }
        entry_ = {key, value};
        return *this;
    }
    value_type operator*() const { return entry_; }
    const value_type* operator->() const { return &entry_; }
    bool operator==(const dict_iterator& o) const { return place_ == o.place_; }
    bool operator!=(const dict_iterator& o) const { return place_ != o.place_; }

private:
    PyObject* dict_ = nullptr;
    value_type entry_;
    OpforgePySize place_ = -1;
};

// ---- Python's own types
class none : public object {
public:
    none() : object(facade::Ref::borrow(facade::none())) {}
};
class bytes : public object {
public:
    bytes() : bytes("", 0) {}
    bytes(const char* data, size_t n)
        : object(facade::checked(opforge_PyBytes_FromStringAndSize(data, static_cast<OpforgePySize>(n)))) {}
    bytes(const char* text) : bytes(text, std::strlen(text)) {}
    bytes(const std::string& text) : bytes(text.data(), text.size()) {}
    bytes(std::string_view text) : bytes(text.data(), text.size()) {}
    explicit bytes(facade::Ref r) : object(std::move(r)) {}
    bytes(const object& o) : object(of(o.ptr())) {}
    bytes(const accessor& o) : object(of(o.ptr())) {}
    operator std::string() const { return std::string(std::string_view(*this)); }
    operator std::string_view() const {
        char* p = nullptr;
        OpforgePySize n = 0;
        facade::checked(opforge_PyBytes_AsStringAndSize(ptr(), &p, &n));
        return {p, static_cast<size_t>(n)};
    }

private:
    static facade::Ref of(PyObject* o);
};
// A number or string of Python's that is made of a C++ value, or of another object by its type.
template <class T>
class value_object : public object {
public:
    value_object() : value_object(T()) {}
    value_object(T value) : object(facade::Convert<T>::cast(value)) {}
    explicit value_object(facade::Ref r) : object(std::move(r)) {}
    operator T() const { return cast<T>(); }

protected:
    static facade::Ref made(const char* type, const handle& of, bool is_one) {
        return is_one ? facade::Ref::borrow(of.ptr())
                      : facade::called(facade::attribute(facade::imported("builtins").get(), type).get(),
                                       facade::Ref::borrow(of.ptr()));
    }
};
class bool_ : public value_object<bool> {
public:
    using value_object::value_object;
    bool_(const object& o) : value_object(made("bool", o, false)) {}
    bool_(const accessor& o) : bool_(o.get()) {}
};
class int_ : public value_object<long long> {
public:
    using value_object::value_object;
    // Of any integer's own range: an unsigned one may be over that of a long long.
    template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
    int_(T value)
        : value_object(
              facade::Convert<std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>>::cast(value)) {}
    int_(const object& o) : value_object(made("int", o, facade::is(o.ptr(), facade::LongFlag))) {}
    int_(const accessor& o) : int_(o.get()) {}
    template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
    operator T() const {
        return cast<T>();
    }
};
class float_ : public value_object<double> {
public:
    using value_object::value_object;
    float_(const object& o) : value_object(made("float", o, facade::is(o.ptr(), &opforge_PyFloat_Type))) {}
    float_(const accessor& o) : float_(o.get()) {}
};
class str : public value_object<std::string> {
public:
    using value_object::value_object;
    str(const char* text) : value_object(std::string(text)) {}
    str(const char* text, size_t n) : value_object(std::string(text, n)) {}
    explicit str(const handle& h) : value_object(facade::checked(opforge_PyObject_Str(h.ptr()))) {}
    str(const object& o) : str(static_cast<const handle&>(o)) {}
    str(const accessor& o) : str(o.get()) {}
    template <class... A>
    str format(const A&... arguments) const {
        return str(attr("format")(arguments...).ref());
    }
};

namespace facade {
struct ListType {
    static constexpr const char* name = "list";
    static bool is_of(PyObject* o) { return is(o, ListFlag); }
    static PyObject* converted(PyObject* o) { return opforge_PySequence_List(o); }
};
struct TupleType {
    static constexpr const char* name = "tuple";
    static bool is_of(PyObject* o) { return is(o, TupleFlag); }
    static PyObject* converted(PyObject* o) { return opforge_PySequence_Tuple(o); }
};
struct DictType {
    static constexpr const char* name = "dict";
    static bool is_of(PyObject* o) { return is(o, DictFlag); }
    static PyObject* converted(PyObject* o) {
        return called(attribute(imported("builtins").get(), "dict").get(), Ref::borrow(o)).release();
    }
};
struct SetType {
    static constexpr const char* name = "set";
    static bool is_of(PyObject* o) { return is(o, &opforge_PySet_Type); }
    static PyObject* converted(PyObject* o) { return opforge_PySet_New(o); }
};
// Types without a conversion: an object of another one is an error.
inline PyObject* refuse(PyObject* o, const char* type) {
    raise(opforge_PyExc_TypeError,
          ("Object of type '" + type_name(o) + "' is not an instance of '" + type + "'").c_str());
    return nullptr;
}
struct FunctionType {
    static constexpr const char* name = "collections.abc.Callable";
    static bool is_of(PyObject* o) { return opforge_PyCallable_Check(o) != 0; }
    static PyObject* converted(PyObject* o) { return refuse(o, "function"); }
};
struct SequenceType {
    static constexpr const char* name = "collections.abc.Sequence";
    static bool is_of(PyObject* o) { return opforge_PySequence_Check(o) != 0; }
    static PyObject* converted(PyObject* o) { return refuse(o, "sequence"); }
};
struct IterableType {
    static constexpr const char* name = "collections.abc.Iterable";
    static bool is_of(PyObject* o) {
        const bool can = Ref::steal(opforge_PyObject_GetIter(o)) ? true : false;
        opforge_PyErr_Clear();
        return can;
    }
    static PyObject* converted(PyObject* o) { return refuse(o, "iterable"); }
};
struct TypeType {
    static constexpr const char* name = "type";
    static bool is_of(PyObject* o) { return is(o, &opforge_PyType_Type); }
    static PyObject* converted(PyObject* o) { return refuse(o, "type"); }
};

// An object of one of Python's types: of another object if it is one, or is converted.
template <class Type>
class typed_object : public object {
public:
    using python_type = Type;
    typed_object() = default;
    explicit typed_object(Ref r) : object(std::move(r)) {}
    typed_object(const object& o) : object(of(o.ptr())) {}
    typed_object(const accessor& o) : object(of(o.ptr())) {}
    static bool check_(const handle& h) { return h.ptr() && Type::is_of(h.ptr()); }

private:
    static Ref of(PyObject* o) { return Type::is_of(o) ? Ref::borrow(o) : checked(Type::converted(o)); }
};
inline size_t size_of(PyObject* o) {
    const OpforgePySize n = opforge_PyObject_Size(o);
    if (n < 0) {
        throw Raised();
    }
    return static_cast<size_t>(n);
}
}  // namespace facade
inline facade::Ref bytes::of(PyObject* o) {
    return facade::is(o, facade::BytesFlag) ? facade::Ref::borrow(o) : facade::checked(facade::refuse(o, "bytes"));
}

class list : public facade::typed_object<facade::ListType> {
public:
    using typed_object::typed_object;
    using object_api::operator[];
    template <class I, class = std::enable_if_t<std::is_integral_v<I>>>
    accessor operator[](I place) const {
        return {ptr(), static_cast<size_t>(place)};
    }
    list() : list(size_t{0}) {}
    template <class N, class = std::enable_if_t<std::is_integral_v<N>>>
    explicit list(N n) : typed_object(facade::checked(opforge_PyList_New(static_cast<OpforgePySize>(n)))) {}
    size_t size() const { return facade::size_of(ptr()); }
    bool empty() const { return size() == 0; }
    template <class T>
    void append(const T& value) {
        facade::checked(opforge_PyList_Append(ptr(), facade::to_python(value).get()));
    }
    template <class T>
    void insert(size_t place, const T& value) {
        facade::checked(
            opforge_PyList_Insert(ptr(), static_cast<OpforgePySize>(place), facade::to_python(value).get()));
    }
    void clear() { attr("clear")(); }
};
class tuple : public facade::typed_object<facade::TupleType> {
public:
    using typed_object::typed_object;
    using object_api::operator[];
    template <class I, class = std::enable_if_t<std::is_integral_v<I>>>
    accessor operator[](I place) const {
        return {ptr(), static_cast<size_t>(place)};
    }
    tuple() : tuple(size_t{0}) {}
    template <class N, class = std::enable_if_t<std::is_integral_v<N>>>
    explicit tuple(N n) : typed_object(facade::checked(opforge_PyTuple_New(static_cast<OpforgePySize>(n)))) {}
    size_t size() const { return facade::size_of(ptr()); }
    bool empty() const { return size() == 0; }
};
class dict : public facade::typed_object<facade::DictType> {
public:
    using typed_object::typed_object;
    dict() : typed_object(facade::checked(opforge_PyDict_New())) {}
    template <class... A, class = std::enable_if_t<(sizeof...(A) > 0) && (std::is_same_v<arg_v, A> && ...)>>
    explicit dict(const A&... entries) : dict() {
        (facade::checked(opforge_PyDict_SetItemString(ptr(), entries.name, entries.value.get())), ...);
    }
    size_t size() const { return facade::size_of(ptr()); }
    bool empty() const { return size() == 0; }
    void clear() { attr("clear")(); }
    dict_iterator begin() const { return dict_iterator(ptr()); }
    dict_iterator end() const { return {}; }
};
class set : public facade::typed_object<facade::SetType> {
public:
    using typed_object::typed_object;
    set() : typed_object(facade::checked(opforge_PySet_New(nullptr))) {}
    size_t size() const { return facade::size_of(ptr()); }
    bool empty() const { return size() == 0; }
    template <class T>
    bool add(const T& value) {
        facade::checked(opforge_PySet_Add(ptr(), facade::to_python(value).get()));
        return true;
    }
};
class function : public facade::typed_object<facade::FunctionType> {
public:
    using typed_object::typed_object;
};
class sequence : public facade::typed_object<facade::SequenceType> {
public:
    using typed_object::typed_object;
    size_t size() const { return facade::size_of(ptr()); }
    bool empty() const { return size() == 0; }
};
class iterable : public facade::typed_object<facade::IterableType> {
public:
    using typed_object::typed_object;
};
class type : public facade::typed_object<facade::TypeType> {
public:
    using typed_object::typed_object;
    static type of(const handle& h) { return type(facade::checked(opforge_PyObject_Type(h.ptr()))); }
};
// The rest of a call's arguments, and of those with names.
class args : public tuple {
public:
    using tuple::tuple;
};
class kwargs : public dict {
public:
    using dict::dict;
};

// pybind11 has a type for each kind of attribute and item. Sources name them in tables of types.
namespace detail {
#define OPFORGE_ACCESSOR(NAME)                               \
    class NAME : public ::pybind11::accessor {               \
    public:                                                  \
        NAME(const ::pybind11::accessor& o) : accessor(o) {} \
    };
OPFORGE_ACCESSOR(item_accessor)
OPFORGE_ACCESSOR(list_accessor)
OPFORGE_ACCESSOR(tuple_accessor)
OPFORGE_ACCESSOR(sequence_accessor)
OPFORGE_ACCESSOR(str_attr_accessor)
OPFORGE_ACCESSOR(obj_attr_accessor)
#undef OPFORGE_ACCESSOR
}  // namespace detail

// ---- of any object
// A pointer refers to an object of a class, and owns none unless the policy says so.
template <class T>
object cast(T&& value, return_value_policy policy = return_value_policy::automatic_reference,
            const handle& parent = {}) {
    if constexpr (facade::UsesInstances<std::decay_t<std::remove_pointer_t<std::decay_t<T>>>>::value) {
        const bool is_reference =
            std::is_pointer_v<std::decay_t<T>> && policy == return_value_policy::automatic_reference;
        return facade::cast_result<T>(std::forward<T>(value), is_reference ? return_value_policy::reference : policy,
                                      parent.ptr());
    } else if constexpr (!std::is_copy_constructible_v<std::decay_t<T>>) {
        return facade::Convert<std::decay_t<T>>::cast(std::forward<T>(value));
    } else {
        return facade::to_python(value);
    }
}
template <class T>
T cast(const handle& value) {
    return value.cast<T>();
}
// A tuple that knows the types of its values, for signatures.
template <class... A>
class typed_tuple : public tuple {
public:
    using python_type = void;  // its conversion is one of its own
    using tuple::tuple;
};
template <class... A>
auto make_tuple(const A&... values) {
    typed_tuple<std::decay_t<const A&>...> made(sizeof...(A));
    OpforgePySize i = 0;
    (facade::checked(opforge_PyTuple_SetItem(made.ptr(), i++, facade::to_python(values).release())), ...);
    return made;
}
OPFORGE_IF_USED
std::ptrdiff_t hash(const handle& h) {
    const OpforgePySize value = opforge_PyObject_Hash(h.ptr());
    if (value == -1) {
        throw facade::Raised();
    }
    return value;
}
inline size_t len(const handle& h) { return facade::size_of(h.ptr()); }
inline bool hasattr(const handle& h, const char* name) { return bool(facade::attribute_or_none(h.ptr(), name)); }
inline object getattr(const handle& h, const char* name) { return facade::attribute(h.ptr(), name); }
inline object getattr(const handle& h, const char* name, const handle& otherwise) {
    facade::Ref found = facade::attribute_or_none(h.ptr(), name);
    return found ? found : facade::Ref::borrow(otherwise.ptr());
}
inline void setattr(const handle& h, const char* name, const handle& value) {
    facade::checked(opforge_PyObject_SetAttrString(h.ptr(), name, value.ptr()));
}
OPFORGE_IF_USED
inline bool hasattr(const handle& h, const handle& name) { return hasattr(h, std::string(str(name)).c_str()); }
OPFORGE_IF_USED
inline object getattr(const handle& h, const handle& name) { return h.attr(name); }
OPFORGE_IF_USED
inline void delattr(const handle& h, const char* name) {
    facade::checked(opforge_PyObject_SetAttrString(h.ptr(), name, nullptr));
}
OPFORGE_IF_USED
inline str repr(const handle& h) { return str(facade::checked(opforge_PyObject_Repr(h.ptr()))); }
OPFORGE_IF_USED
inline iterator iter(const handle& h) { return iterator(facade::checked(opforge_PyObject_GetIter(h.ptr()))); }
template <class T>
bool isinstance(const handle& h) {
    if constexpr (constexpr bool is_class = facade::UsesInstances<T>::value; std::is_base_of_v<object, T> || is_class) {
        std::conditional_t<is_class, facade::Loaded<T>, T> value{};
        return facade::Convert<decltype(value)>::load(h.ptr(), false, value);
    }
    return false;  // as in pybind11, a type without a class in Python
}
OPFORGE_IF_USED
inline bool isinstance(const handle& h, const handle& type) {
    const int found = opforge_PyObject_IsInstance(h.ptr(), type.ptr());
    facade::checked(found);
    return found == 1;
}
template <class... A>
void print(const A&... values) {
    facade::call_object(facade::attribute(facade::imported("builtins").get(), "print").get(), values...);
}

namespace facade {
template <class T>
Ref to_python(const T& value) {
    if constexpr (std::is_same_v<T, std::nullopt_t> || std::is_same_v<T, std::nullptr_t>) {
        return Ref::borrow(::opforge_facade_python::none());
    } else if constexpr (std::is_base_of_v<object, T>) {
        return value.ref();
    } else if constexpr (std::is_same_v<T, accessor>) {
        return value.get().ref();
    } else if constexpr (std::is_convertible_v<const T&, const char*>) {  // a null pointer is None
        return Convert<const char*>::cast(value);
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
        return Convert<std::string>::cast(std::string_view(value));
    } else if constexpr (std::is_pointer_v<T>) {  // which Python does not own
        return cast_result<T>(value, Policy::reference, nullptr);
    } else {
        return Convert<T>::cast(value);
    }
}
// Adds an argument of a call to a list, or to the dict of those with names.
template <class T>
void put_argument(const Ref& values, Ref& named, const T& value) {
    if constexpr (std::is_base_of_v<arg_v, T>) {
        named = named ? named : checked(opforge_PyDict_New());
        checked(opforge_PyDict_SetItemString(named.get(), value.name, value.value.get()));
    } else if constexpr (std::is_same_v<T, args_proxy>) {
        called(attribute(values.get(), "extend").get(), Ref::borrow(value.tuple));
    } else if constexpr (std::is_same_v<T, kwargs_proxy>) {
        named = named ? named : checked(opforge_PyDict_New());
        called(attribute(named.get(), "update").get(), Ref::borrow(value.dict));
    } else {
        checked(opforge_PyList_Append(values.get(), to_python(value).get()));
    }
}
template <class... A>
Ref call_object(PyObject* function, const A&... arguments) {
    Ref values = checked(opforge_PyList_New(0)), named;
    (put_argument(values, named, arguments), ...);
    return checked(opforge_PyObject_Call(function, checked(opforge_PySequence_Tuple(values.get())).get(), named.get()));
}
template <class D>
accessor object_api<D>::attr(const char* name) const {
    return {pointer(), checked(opforge_PyUnicode_InternFromString(name)), false};
}
template <class D>
accessor object_api<D>::attr(const handle& name) const {
    return {pointer(), Ref::borrow(name.ptr()), false};
}
template <class D>
accessor object_api<D>::doc() const {
    return attr("__doc__");
}
template <class D>
accessor object_api<D>::operator[](const char* key) const {
    return {pointer(), Convert<const char*>::cast(key), true};
}
template <class D>
accessor object_api<D>::operator[](const handle& key) const {
    return {pointer(), Ref::borrow(key.ptr()), true};
}
template <class D>
template <class I, class>
accessor object_api<D>::operator[](I index) const {
    return {pointer(), Convert<I>::cast(index), true};
}
template <class D>
template <class... A>
object object_api<D>::operator()(const A&... arguments) const {
    return call_object(pointer(), arguments...);
}
template <class D>
iterator object_api<D>::begin() const {
    return iter(handle(pointer()));
}
template <class D>
iterator object_api<D>::end() const {
    return {};
}
template <class D>
template <class T>
bool object_api<D>::contains(const T& key) const {
    return attr("__contains__")(key).template cast<bool>();
}
template <class D>
template <class T>
T object_api<D>::cast() const {
    // a reference or a pointer to an object of a class is that object
    using Plain = std::remove_reference_t<std::remove_pointer_t<T>>;
    using Object = std::conditional_t<std::is_pointer_v<T>, LoadedPointer<Plain>, Loaded<std::remove_const_t<Plain>>>;
    constexpr bool is_instance = UsesInstances<std::remove_const_t<Plain>>::value;
    std::conditional_t<is_instance, Object, T> value{};
    PyObject* o = pointer();
    if (!Convert<decltype(value)>::load(o, true, value)) {
        throw cast_error("Unable to cast Python instance of type <class '" + type_name(o) + "'> to C++ type '" +
                         demangled(typeid(T)) + "'");
    }
    if constexpr (is_instance) {
        return value.template hand<T>();
    } else {
        return value;
    }
}
}  // namespace facade
}  // namespace opforge_facade
}  // namespace pybind11

namespace opforge_facade_python {
template <int Used>
pybind11::object Raised::type() const {
    return Ref::borrow(state_->type);
}
template <int Used>
pybind11::object Raised::value() const {
    return Ref::borrow(state_->value);
}
template <int Used>
pybind11::object Raised::trace() const {
    return Ref::borrow(state_->trace);
}
// A result that is no object is an error. Without a look at it the next overload would run.
inline Ref not_null(Ref result) {
    if (!result) {
        throw NotRegistered();
    }
    return result;
}
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
// A container or another type of Python's: nothing is converted.
template <class T>
struct Convert<T, std::enable_if_t<std::is_base_of_v<pybind11::facade::typed_object<typename T::python_type>, T>>> {
    static bool load(PyObject* o, bool, T& value) {
        if (!T::python_type::is_of(o)) {
            return false;
        }
        value = T(Ref::borrow(o));
        return true;
    }
    static Ref cast(const T& value) { return not_null(value.ref()); }
    static std::string name(bool) { return T::python_type::name; }
};
template <>
struct Convert<pybind11::args> {
    static bool load(PyObject* o, bool, pybind11::args& value) {
        value = pybind11::args(Ref::borrow(o));
        return true;
    }
    static Ref cast(const pybind11::args& value) { return value.ref(); }
    static std::string name(bool argument) { return argument ? "*args" : "tuple"; }
};
template <>
struct Convert<pybind11::kwargs> {
    static bool load(PyObject* o, bool, pybind11::kwargs& value) {
        value = pybind11::kwargs(Ref::borrow(o));
        return true;
    }
    static Ref cast(const pybind11::kwargs& value) { return value.ref(); }
    static std::string name(bool argument) { return argument ? "**kwargs" : "dict[str, typing.Any]"; }
};
template <>
struct Convert<pybind11::accessor> {
    static Ref cast(const pybind11::accessor& value) { return value.get().ref(); }
    static std::string name(bool) { return "object"; }
};
template <>
struct Convert<pybind11::iterator> {
    static bool load(PyObject* o, bool, pybind11::iterator& value) {
        if (!attribute_or_none(o, "__next__")) {
            return false;
        }
        value = pybind11::iterator(Ref::borrow(o));
        return true;
    }
    static Ref cast(const pybind11::iterator& value) { return not_null(value.ref()); }
    static std::string name(bool) { return "collections.abc.Iterator"; }
};
template <class... A>
struct Convert<pybind11::typed_tuple<A...>> {
    static Ref cast(const pybind11::typed_tuple<A...>& value) { return value.ref(); }
    static std::string name(bool) {
        std::string text;
        ((text += (text.empty() ? "" : ", ") + Convert<A>::name(false)), ...);
        return "tuple[" + (text.empty() ? "()" : text) + "]";
    }
};
template <>
struct Convert<pybind11::object> {
    static bool load(PyObject* o, bool, pybind11::object& value) {
        value = pybind11::object(Ref::borrow(o));
        return true;
    }
    static Ref cast(const pybind11::object& value) { return not_null(value.ref()); }
    static std::string name(bool) { return "object"; }
};
template <>
struct Convert<pybind11::handle> {
    static bool load(PyObject* o, bool, pybind11::handle& value) {
        value = pybind11::handle(o);
        return true;
    }
    static Ref cast(const pybind11::handle& value) { return not_null(Ref::borrow(value.ptr())); }
    static std::string name(bool) { return "object"; }
};
// A function that calls Python's, in any thread.
template <class R, class... A>
struct Convert<std::function<R(A...)>> {
    using Function = std::function<R(A...)>;
    static bool load(PyObject* o, bool convert, Function& value) {
        if (is_none(o)) {
            value = nullptr;
            return convert;
        }
        if (!opforge_PyCallable_Check(o)) {
            return false;
        }
        std::shared_ptr<PyObject> kept(Ref::borrow(o).release(), [](PyObject* p) {
            Gil gil;
            opforge_Py_DecRef(p);
        });
        value = [kept](A... arguments) -> R {
            Gil gil;
            Ref result = pybind11::facade::call_object(kept.get(), arguments...);
            if constexpr (!std::is_void_v<R>) {
                return pybind11::handle(result.get()).cast<R>();
            }
        };
        return true;
    }
    static Ref cast(const Function& f) { return f ? pybind11::facade::as_function(f) : Ref::borrow(none()); }
    static std::string name(bool) {
        std::string text;
        ((text += (text.empty() ? "" : ", ") + Convert<std::decay_t<A>>::name(true)), ...);
        std::string result = "None";
        if constexpr (!std::is_void_v<R>) {
            result = Convert<std::decay_t<R>>::name(false);
        }
        return "collections.abc.Callable[[" + text + "], " + result + "]";
    }
};
template <>
struct Convert<pybind11::none> {
    static Ref cast(const pybind11::none& value) { return value.ref(); }
    static std::string name(bool) { return "None"; }
};
}  // namespace opforge_facade_python

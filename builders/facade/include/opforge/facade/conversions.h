// Conversions between Python's objects and C++ types, with pybind11's rules.
#pragma once
#include <complex>
#include <deque>
#include <list>
#include <set>

#include "callables.h"
#include "indexing.h"
#include "python.h"

namespace opforge_facade_python {

template <class T>
struct Never : std::false_type {};
template <class T>
struct ConvertInstance;
// A type's conversion: `load` returns false if the object is no such value, `cast` returns a new
// object, `name` is the type in signatures, which differs between arguments and results. A type without
// one of its own here is a class or an enumeration of the source: see instances.h.
template <class T, class = void>
struct ConvertOwn : ConvertInstance<T> {};
template <class T, class = void>
struct Convert : ConvertOwn<T> {};
// A type that the source has a conversion of its own for: see casters.h.
template <class T>
struct HasCaster;
// A type that has a conversion here, and is a class of the source by its wish: PYBIND11_MAKE_OPAQUE.
template <class T>
struct IsOpaque : std::false_type {};
template <class T, class = void>
struct UsesInstances : std::false_type {};
template <class T>
struct UsesInstances<T, std::void_t<decltype(Convert<T>::of_instance)>> : std::true_type {};
// What is kept of an argument of such a type while a function runs.
template <class T>
struct Loaded;
template <class T>
struct LoadedPointer;
// What is kept of one with a conversion of the source's: that.
template <class T>
struct CastedBySource;

template <class T>
constexpr bool is_character =
    std::is_same_v<T, char> || std::is_same_v<T, wchar_t> || std::is_same_v<T, char16_t> || std::is_same_v<T, char32_t>;

template <>
struct Convert<bool> {
    static bool load(PyObject* o, bool convert, bool& value) {
        Ref yes = Ref::steal(opforge_PyBool_FromLong(1)), no = Ref::steal(opforge_PyBool_FromLong(0));
        if (o == yes.get() || o == no.get()) {
            value = o == yes.get();
            return true;
        }
        if (!convert) {
            std::string name = type_name(o);
            if (name != "bool" && name != "bool_") {  // numpy's
                return false;
            }
        }
        if (is_none(o)) {
            value = false;
            return true;
        }
        constexpr int nb_bool = 9;  // Py_nb_bool of the stable ABI
        Ref type = Ref::steal(opforge_PyObject_Type(o));
        auto* test = reinterpret_cast<int (*)(PyObject*)>(
            opforge_PyType_GetSlot(reinterpret_cast<_typeobject*>(type.get()), nb_bool));
        int result = test ? test(o) : -1;
        if (result == 0 || result == 1) {
            value = result == 1;
            return true;
        }
        opforge_PyErr_Clear();
        return false;
    }
    static Ref cast(bool value) { return checked(opforge_PyBool_FromLong(value)); }
    static std::string name(bool) { return "bool"; }
};

template <class T>
struct Convert<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool> && !is_character<T>>> {
    using Wide = std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
    static bool load(PyObject* o, bool convert, T& value) {
        const bool is_long = is(o, LongFlag);
        if (!is_long && is(o, &opforge_PyFloat_Type)) {
            return false;
        }
        if (!convert && !is_long && !opforge_PyIndex_Check(o)) {
            return false;
        }
        Wide wide;
        if constexpr (std::is_signed_v<T>) {
            wide = opforge_PyLong_AsLongLong(o);
        } else {
            Ref index = is_long ? Ref::borrow(o) : Ref::steal(opforge_PyNumber_Index(o));
            wide = index ? opforge_PyLong_AsUnsignedLongLong(index.get()) : static_cast<Wide>(-1);
        }
        const bool failed = wide == static_cast<Wide>(-1) && opforge_PyErr_Occurred();
        if (failed || static_cast<Wide>(static_cast<T>(wide)) != wide) {
            opforge_PyErr_Clear();
            if (failed && convert && opforge_PyNumber_Check(o)) {
                Ref number = Ref::steal(opforge_PyNumber_Long(o));
                opforge_PyErr_Clear();
                return number && load(number.get(), false, value);
            }
            return false;
        }
        value = static_cast<T>(wide);
        return true;
    }
    static Ref cast(T value) {
        if constexpr (std::is_signed_v<T>) {
            return checked(opforge_PyLong_FromLongLong(value));
        } else {
            return checked(opforge_PyLong_FromUnsignedLongLong(value));
        }
    }
    static std::string name(bool argument) { return argument ? "typing.SupportsInt | typing.SupportsIndex" : "int"; }
};

template <class T>
struct Convert<T, std::enable_if_t<std::is_floating_point_v<T>>> {
    static bool load(PyObject* o, bool convert, T& value) {
        if (!convert && !is(o, &opforge_PyFloat_Type)) {
            return false;
        }
        double wide = opforge_PyFloat_AsDouble(o);
        if (wide == -1 && opforge_PyErr_Occurred()) {
            opforge_PyErr_Clear();
            if (convert && opforge_PyNumber_Check(o)) {
                Ref number = Ref::steal(opforge_PyNumber_Float(o));
                opforge_PyErr_Clear();
                return number && load(number.get(), false, value);
            }
            return false;
        }
        value = static_cast<T>(wide);
        return true;
    }
    static Ref cast(T value) { return checked(opforge_PyFloat_FromDouble(static_cast<double>(value))); }
    static std::string name(bool argument) {
        return argument ? "typing.SupportsFloat | typing.SupportsIndex" : "float";
    }
};

template <class C, class T>
struct ConvertComplex {
    static bool load(PyObject* o, bool convert, C& value) {
        if (!convert && !is(o, &opforge_PyComplex_Type)) {
            return false;
        }
        double re = opforge_PyComplex_RealAsDouble(o);
        double im = opforge_PyErr_Occurred() ? 0 : opforge_PyComplex_ImagAsDouble(o);
        if (opforge_PyErr_Occurred()) {
            opforge_PyErr_Clear();
            return false;
        }
        value = C(static_cast<T>(re), static_cast<T>(im));
        return true;
    }
    static Ref cast(const C& value) { return checked(opforge_PyComplex_FromDoubles(value.real(), value.imag())); }
    static std::string name(bool argument) {
        return argument ? "typing.SupportsComplex | typing.SupportsFloat | typing.SupportsIndex" : "complex";
    }
};
template <class T>
struct Convert<std::complex<T>> : ConvertComplex<std::complex<T>, T> {};
// torch's own conversion: it takes any number, and has a name of its own in signatures.
template <class T>
struct Convert<c10::complex<T>> : ConvertComplex<c10::complex<T>, T> {
    static bool load(PyObject* o, bool, c10::complex<T>& value) {
        return ConvertComplex<c10::complex<T>, T>::load(o, true, value);
    }
    static std::string name(bool) { return "complex"; }
};

template <>
struct Convert<std::string> {
    static bool load(PyObject* o, bool, std::string& value) {
        OpforgePySize n = 0;
        if (is(o, UnicodeFlag)) {
            const char* p = opforge_PyUnicode_AsUTF8AndSize(o, &n);
            if (!p) {
                opforge_PyErr_Clear();
                return false;
            }
            value.assign(p, static_cast<size_t>(n));
            return true;
        }
        if (is(o, BytesFlag)) {
            char* p = nullptr;
            if (opforge_PyBytes_AsStringAndSize(o, &p, &n) < 0) {
                throw Raised();
            }
            value.assign(p, static_cast<size_t>(n));
            return true;
        }
        if (is(o, &opforge_PyByteArray_Type)) {
            value.assign(opforge_PyByteArray_AsString(o), static_cast<size_t>(opforge_PyByteArray_Size(o)));
            return true;
        }
        return false;
    }
    static Ref cast(std::string_view value) {
        return checked(opforge_PyUnicode_DecodeUTF8(value.data(), static_cast<OpforgePySize>(value.size()), nullptr));
    }
    static std::string name(bool) { return "str"; }
};

// A character is a text of one.
template <>
struct Convert<char> {
    static bool load(PyObject* o, bool convert, char& value) {
        std::string text;
        if (convert && is_none(o)) {
            raise_value_error("Cannot convert None to a character");
        }
        if (!Convert<std::string>::load(o, convert, text)) {
            return false;
        }
        if (text.empty()) {
            raise_value_error("Cannot convert empty string to a character");
        }
        if (text.size() == 2 && (static_cast<unsigned char>(text[0]) & 0xFCU) == 0xC0U) {  // one of Latin-1
            text = std::string(1, static_cast<char>((static_cast<unsigned char>(text[0]) & 3U) << 6 |
                                                    (static_cast<unsigned char>(text[1]) & 0x3FU)));
        }
        if (text.size() > 1) {
            const bool is_one = (static_cast<unsigned char>(text[0]) & 0x80U) && length_of_first(text) == text.size();
            raise_value_error(is_one ? "Character code point not in range(0x100)"
                                     : "Expected a character, but multi-character string found");
        }
        value = text[0];
        return true;
    }
    static Ref cast(char value) { return checked(opforge_PyUnicode_DecodeLatin1(&value, 1, nullptr)); }
    static std::string name(bool) { return "str"; }

private:
    [[noreturn]] static void raise_value_error(const char* text) {
        opforge_PyErr_SetString(opforge_PyExc_ValueError, text);
        throw Raised();
    }
    static size_t length_of_first(const std::string& text) {
        const auto first = static_cast<unsigned char>(text[0]);
        return (first & 0xE0U) == 0xC0U ? 2 : (first & 0xF0U) == 0xE0U ? 3 : 4;
    }
};

// What is kept of an argument that is text for C: None is a null pointer.
struct LoadedText {
    static constexpr bool is_loaded = true;
    std::optional<std::string> text;
    template <class A>
    const char* hand() {
        return text ? text->c_str() : nullptr;
    }
};
template <>
struct Convert<LoadedText> {
    static bool load(PyObject* o, bool convert, LoadedText& value) {
        if (is_none(o)) {
            return convert;
        }
        value.text.emplace();
        return Convert<std::string>::load(o, convert, *value.text);
    }
    static std::string name(bool) { return "str"; }
};
template <>
struct Convert<const char*> {
    static Ref cast(const char* value) { return value ? Convert<std::string>::cast(value) : Ref::borrow(none()); }
    static std::string name(bool) { return "str"; }
};

template <>
struct Convert<at::Tensor> {
    static bool load(PyObject* o, bool, at::Tensor& value) {
        if (!is_tensor(o)) {
            return false;
        }
        value = to_tensor(o);
        return true;
    }
    static Ref cast(const at::Tensor& value) { return from_tensor(value); }
    static std::string name(bool) { return "torch.Tensor"; }
};

// A number that is returned. As in torch, none is an argument.
template <>
struct Convert<c10::Scalar> {
    static bool load(PyObject*, bool, c10::Scalar&) { return false; }
    static Ref cast(const c10::Scalar& value) {
        return value.isBoolean()         ? Convert<bool>::cast(value.toBool())
               : value.isFloatingPoint() ? Convert<double>::cast(value.toDouble())
               : value.isComplex()       ? Convert<c10::complex<double>>::cast(value.toComplexDouble())
                                         : Convert<int64_t>::cast(value.toLong());
    }
    static std::string name(bool) { return "Union[Number, torch.SymInt, torch.SymFloat, torch.SymBool]"; }
};

// A value of an enumeration, and its name in Python's module torch.
template <class E>
struct Named {
    E value;
    const char* name;
};
constexpr Named<c10::ScalarType> dtype_names[] = {
    {c10::ScalarType::Byte, "uint8"},
    {c10::ScalarType::Char, "int8"},
    {c10::ScalarType::Short, "int16"},
    {c10::ScalarType::Int, "int32"},
    {c10::ScalarType::Long, "int64"},
    {c10::ScalarType::Half, "float16"},
    {c10::ScalarType::Float, "float32"},
    {c10::ScalarType::Double, "float64"},
    {c10::ScalarType::ComplexHalf, "complex32"},
    {c10::ScalarType::ComplexFloat, "complex64"},
    {c10::ScalarType::ComplexDouble, "complex128"},
    {c10::ScalarType::Bool, "bool"},
    {c10::ScalarType::BFloat16, "bfloat16"},
    {c10::ScalarType::Float8_e5m2, "float8_e5m2"},
    {c10::ScalarType::Float8_e4m3fn, "float8_e4m3fn"},
    {c10::ScalarType::Float8_e5m2fnuz, "float8_e5m2fnuz"},
    {c10::ScalarType::Float8_e4m3fnuz, "float8_e4m3fnuz"},
    {c10::ScalarType::UInt16, "uint16"},
    {c10::ScalarType::UInt32, "uint32"},
    {c10::ScalarType::UInt64, "uint64"},
};
template <>
struct Convert<c10::ScalarType> {
    static bool load(PyObject* o, bool, c10::ScalarType& value) {
        if (opforge_PyObject_IsInstance(o, torch().dtype) != 1) {
            return false;
        }
        for (const auto& [type, name] : dtype_names) {
            if (attribute(torch().module, name).get() == o) {
                value = type;
                return true;
            }
        }
        return false;
    }
    static Ref cast(c10::ScalarType value) {
        for (const auto& [type, name] : dtype_names) {
            if (type == value) {
                return attribute(torch().module, name);
            }
        }
        c10::facade::fail(c10::facade::text("the dtype ", c10::toString(value), " has no conversion to Python"));
    }
    static std::string name(bool) { return "torch.dtype"; }
};
template <>
struct Convert<c10::Device> {
    static bool load(PyObject* o, bool, c10::Device& value) {
        if (opforge_PyObject_IsInstance(o, torch().device) != 1) {
            return false;
        }
        Ref text = checked(opforge_PyObject_Str(o));
        std::string string;
        Convert<std::string>::load(text.get(), true, string);
        value = c10::Device(string);
        return true;
    }
    static Ref cast(const c10::Device& value) {
        Ref text = Convert<std::string>::cast(value.str());
        return called(torch().device, text);
    }
    static std::string name(bool) { return "torch.device"; }
};
// torch's layouts and memory formats, by their Python names.
template <class E>
struct ConvertNamed {
    static bool load(PyObject* o, bool, E& value) {
        for (const auto& [number, name] : Convert<E>::names) {
            if (attribute_or_none(torch().module, name).get() == o) {
                value = number;
                return true;
            }
        }
        return false;
    }
    static Ref cast(E value) {
        for (const auto& [number, name] : Convert<E>::names) {
            if (number == value) {
                return attribute(torch().module, name);
            }
        }
        c10::facade::fail(c10::facade::text(value, " has no conversion to Python"));
    }
};
template <>
struct Convert<c10::Layout> : ConvertNamed<c10::Layout> {
    static constexpr Named<c10::Layout> names[] = {
        {c10::Layout::Strided, "strided"},      {c10::Layout::Sparse, "sparse_coo"},
        {c10::Layout::SparseCsr, "sparse_csr"}, {c10::Layout::SparseCsc, "sparse_csc"},
        {c10::Layout::SparseBsr, "sparse_bsr"}, {c10::Layout::SparseBsc, "sparse_bsc"},
        {c10::Layout::Mkldnn, "_mkldnn"},       {c10::Layout::Jagged, "jagged"},
    };
    static std::string name(bool) { return "torch.layout"; }
};
template <>
struct Convert<c10::MemoryFormat> : ConvertNamed<c10::MemoryFormat> {
    static constexpr Named<c10::MemoryFormat> names[] = {
        {c10::MemoryFormat::Contiguous, "contiguous_format"},
        {c10::MemoryFormat::Preserve, "preserve_format"},
        {c10::MemoryFormat::ChannelsLast, "channels_last"},
        {c10::MemoryFormat::ChannelsLast3d, "channels_last_3d"},
    };
    static std::string name(bool) { return "torch.memory_format"; }
};
// Gives a loaded value to `take`. A class of the source need not have a default constructor, and a device has none.
template <class T, class F>
bool load_value(PyObject* o, bool convert, F take) {
    if constexpr (UsesInstances<T>::value) {
        Loaded<T> kept;
        return Convert<Loaded<T>>::load(o, convert, kept) && (take(kept.template hand<T>()), true);
    } else if constexpr (std::is_same_v<T, c10::Device>) {
        T value(c10::DeviceType::CPU);
        return Convert<T>::load(o, convert, value) && (take(std::move(value)), true);
    } else {
        T value{};
        return Convert<T>::load(o, convert, value) && (take(std::move(value)), true);
    }
}
// The first alternative that takes the object without a conversion, or else the first that takes it with one.
template <class... T>
struct Convert<std::variant<T...>> {
    static bool load(PyObject* o, bool convert, std::variant<T...>& value) {
        return (convert && (load_as<T>(o, false, value) || ...)) || (load_as<T>(o, convert, value) || ...);
    }
    static Ref cast(const std::variant<T...>& value) {
        return std::visit([](const auto& held) { return Convert<std::decay_t<decltype(held)>>::cast(held); }, value);
    }
    static std::string name(bool argument) {
        std::string text;
        ((text += (text.empty() ? "" : " | ") + Convert<T>::name(argument)), ...);
        return text;
    }

private:
    template <class A>
    static bool load_as(PyObject* o, bool convert, std::variant<T...>& value) {
        return load_value<A>(o, convert, [&](A&& held) { value = std::move(held); });
    }
};
template <class C>
struct Convert<std::optional<C>> {
    using T = std::remove_const_t<C>;
    static bool load(PyObject* o, bool convert, std::optional<C>& value) {
        if (is_none(o)) {
            value.reset();
            return true;
        }
        return load_value<T>(o, convert, [&](T&& inner) { value.emplace(std::move(inner)); });
    }
    static Ref cast(const std::optional<C>& value) { return value ? Convert<T>::cast(*value) : Ref::borrow(none()); }
    static std::string name(bool argument) { return Convert<T>::name(argument) + " | None"; }
};

// What is no sequence, and is gone through once, is a list only where conversions are allowed.
inline bool is_list_like(PyObject* o, bool convert) {
    if (opforge_PySequence_Check(o)) {
        return !is(o, UnicodeFlag) && !is(o, BytesFlag);
    }
    if (!convert) {
        return false;
    }
    if (is(o, &opforge_PySet_Type) || is(o, &opforge_PyFrozenSet_Type)) {
        return true;
    }
    std::string name = type_name(o);
    return name == "generator" || name == "dict_keys" || name == "dict_values" || name == "dict_items" ||
           name == "map" || name == "zip";
}
template <class T, class F>
bool load_items(PyObject* o, bool convert, F add) {
    if (opforge_PySequence_Check(o) && opforge_PySequence_Size(o) < 0) {
        throw Raised();
    }
    // what else has items is iterated: a mapping's are its keys
    Ref list = is(o, ListFlag) || is(o, TupleFlag) ? Ref::borrow(o) : checked(opforge_PySequence_List(o));
    const OpforgePySize n = opforge_PySequence_Size(list.get());
    for (OpforgePySize i = 0; i < n; ++i) {
        Ref item = checked(opforge_PySequence_GetItem(list.get(), i));
        if (!load_value<T>(item.get(), convert, add)) {
            return false;
        }
    }
    return true;
}
template <class L>
Ref cast_items(const L& value) {
    Ref list = checked(opforge_PyList_New(static_cast<OpforgePySize>(value.size())));
    OpforgePySize i = 0;
    for (const typename L::value_type& element : value) {
        checked(opforge_PyList_SetItem(list.get(), i++,
                                       Convert<std::decay_t<typename L::value_type>>::cast(element).release()));
    }
    return list;
}
template <class L, class T>
struct ConvertList {
    static bool load(PyObject* o, bool convert, L& value) {
        if (!is_list_like(o, convert)) {
            return false;
        }
        value.clear();
        return load_items<T>(o, convert, [&](T&& element) { value.push_back(std::move(element)); });
    }
    static Ref cast(const L& value) { return cast_items(value); }
    static std::string name(bool argument) {
        return (argument ? "collections.abc.Sequence[" : "list[") + Convert<T>::name(argument) + "]";
    }
};
template <class T, class A>
struct Convert<std::vector<T, A>> : ConvertList<std::vector<T, A>, T> {};
template <class T, class A>
struct Convert<std::deque<T, A>> : ConvertList<std::deque<T, A>, T> {};
template <class T, class A>
struct Convert<std::list<T, A>> : ConvertList<std::list<T, A>, T> {};
template <class T>
struct Convert<c10::ArrayRef<T>> {
    static Ref cast(const c10::ArrayRef<T>& value) {
        Ref list = cast_items(value);
        // of integers torch makes a tuple
        return std::is_same_v<T, int64_t> ? checked(opforge_PySequence_Tuple(list.get())) : list;
    }
    static std::string name(bool argument) {
        return std::is_same_v<T, int64_t> ? "Tuple[int, ...]" : Convert<std::vector<T>>::name(argument);
    }
};
template <class T, size_t N>
struct Convert<std::array<T, N>> {
    static bool load(PyObject* o, bool convert, std::array<T, N>& value) {
        if (!is_list_like(o, convert)) {
            return false;
        }
        std::vector<T> list;
        if (!Convert<std::vector<T>>::load(o, convert, list) || list.size() != N) {
            return false;
        }
        std::move(list.begin(), list.end(), value.begin());
        return true;
    }
    static Ref cast(const std::array<T, N>& value) { return cast_items(value); }
    static std::string name(bool argument) {
        return "typing.Annotated[" + Convert<std::vector<T>>::name(argument) + ", \"FixedSize(" + std::to_string(N) +
               ")\"]";
    }
};
template <class S, class T>
struct ConvertSet {
    static bool load(PyObject* o, bool convert, S& value) {
        if (!is(o, &opforge_PySet_Type) && !is(o, &opforge_PyFrozenSet_Type) &&
            !(convert && type_name(o) == "dict_keys")) {
            return false;
        }
        value.clear();
        return load_items<T>(o, convert, [&](T&& element) { value.insert(std::move(element)); });
    }
    static Ref cast(const S& value) {
        Ref set = checked(opforge_PySet_New(nullptr));
        for (const auto& element : value) {
            checked(opforge_PySet_Add(set.get(), Convert<T>::cast(element).get()));
        }
        return set;
    }
    static std::string name(bool argument) {
        return (argument ? "collections.abc.Set[" : "set[") + Convert<T>::name(argument) + "]";
    }
};
template <class T, class C, class A>
struct Convert<std::set<T, C, A>> : ConvertSet<std::set<T, C, A>, T> {};
template <class T, class H, class E, class A>
struct Convert<std::unordered_set<T, H, E, A>> : ConvertSet<std::unordered_set<T, H, E, A>, T> {};
template <class M, class K, class V>
struct ConvertMap {
    static bool load(PyObject* o, bool convert, M& value) {
        if (!is(o, DictFlag)) {  // another mapping is converted
            Ref type = Ref::steal(opforge_PyObject_Type(o));
            if (!convert || !attribute_or_none(o, "items") || !attribute_or_none(type.get(), "__getitem__")) {
                return false;
            }
            Ref items = checked(opforge_PyMapping_Items(o));
            return load(called(attribute(imported("builtins").get(), "dict").get(), items).get(), convert, value);
        }
        value.clear();
        PyObject *key = nullptr, *item = nullptr;
        OpforgePySize position = 0;
        while (opforge_PyDict_Next(o, &position, &key, &item)) {
            auto add = [&](K&& k) {
                return load_value<V>(item, convert, [&](V&& v) { value.emplace(std::move(k), std::move(v)); });
            };
            bool is_added = false;
            if (!load_value<K>(key, convert, [&](K&& k) { is_added = add(std::move(k)); }) || !is_added) {
                return false;
            }
        }
        return true;
    }
    static Ref cast(const M& value) {
        Ref dict = checked(opforge_PyDict_New());
        for (const auto& [k, v] : value) {
            checked(opforge_PyDict_SetItem(dict.get(), Convert<K>::cast(k).get(), Convert<V>::cast(v).get()));
        }
        return dict;
    }
    static std::string name(bool argument) {
        return (argument ? "collections.abc.Mapping[" : "dict[") + Convert<K>::name(argument) + ", " +
               Convert<V>::name(argument) + "]";
    }
};
template <class K, class V, class C, class A>
struct Convert<std::map<K, V, C, A>> : ConvertMap<std::map<K, V, C, A>, K, V> {};
template <class K, class V, class H, class E, class A>
struct Convert<std::unordered_map<K, V, H, E, A>> : ConvertMap<std::unordered_map<K, V, H, E, A>, K, V> {};
template <class K, class V>
struct Convert<c10::Dict<K, V>> {
    static bool load(PyObject* o, bool convert, c10::Dict<K, V>& value) {
        std::vector<std::pair<K, V>> items;
        if (!is(o, DictFlag) || !load_items<std::pair<K, V>>(checked(opforge_PyMapping_Items(o)).get(), convert,
                                                             [&](auto&& item) { items.push_back(std::move(item)); })) {
            return false;
        }
        value = c10::Dict<K, V>();
        for (auto& [k, v] : items) {
            value.insert_or_assign(std::move(k), std::move(v));
        }
        return true;
    }
    static Ref cast(const c10::Dict<K, V>& value) {
        Ref dict = checked(opforge_PyDict_New());
        for (const auto& entry : value) {
            checked(opforge_PyDict_SetItem(dict.get(), Convert<K>::cast(entry.key()).get(),
                                           Convert<V>::cast(entry.value()).get()));
        }
        return dict;
    }
    static std::string name(bool argument) { return Convert<std::map<K, V>>::name(argument); }
};

template <class T, class... E>
struct ConvertTuple {
    static bool load(PyObject* o, bool convert, T& value) {
        if (!opforge_PySequence_Check(o)) {
            return false;
        }
        const OpforgePySize n = opforge_PySequence_Size(o);
        if (n < 0) {
            throw Raised();
        }
        return n == static_cast<OpforgePySize>(sizeof...(E)) &&
               load_all(o, convert, value, std::index_sequence_for<E...>());
    }
    static Ref cast(const T& value) { return cast_all(value, std::index_sequence_for<E...>()); }
    static std::string name(bool argument) {
        std::string text;
        ((text += (text.empty() ? "" : ", ") + Convert<std::decay_t<E>>::name(argument)), ...);
        return "tuple[" + (text.empty() ? "()" : text) + "]";
    }

private:
    template <size_t... I>
    static bool load_all(PyObject* o, bool convert, T& value, std::index_sequence<I...>) {
        return (Convert<std::decay_t<E>>::load(checked(opforge_PySequence_GetItem(o, I)).get(), convert,
                                               std::get<I>(value)) &&
                ...);
    }
    template <size_t... I>
    static Ref cast_all(const T& value, std::index_sequence<I...>) {
        Ref tuple = checked(opforge_PyTuple_New(sizeof...(E)));
        (checked(opforge_PyTuple_SetItem(tuple.get(), I, Convert<std::decay_t<E>>::cast(std::get<I>(value)).release())),
         ...);
        return tuple;
    }
};
template <class... E>
struct Convert<std::tuple<E...>> : ConvertTuple<std::tuple<E...>, E...> {};
template <class A, class B>
struct Convert<std::pair<A, B>> : ConvertTuple<std::pair<A, B>, A, B> {};

// What is kept of an argument while a function runs.
template <class T>
struct Kept {
    using owned = opforge_facade_detail::owned_t<T>;
    // of a view nothing asks whether it has a class
    using type = std::conditional_t<
        HasCaster<T>::value, CastedBySource<T>,
        std::conditional_t<std::conjunction_v<std::is_same<owned, T>, UsesInstances<T>>, Loaded<T>, owned>>;
};
// A value behind a pointer: a number, a container, a tensor. None is no null pointer, as it is of a class.
template <class T>
struct PointedValue {
    static constexpr bool is_loaded = true;
    T value{};
    template <class A>
    T* hand() {
        return &value;
    }
};
template <class T>
struct Convert<PointedValue<T>> {
    static bool load(PyObject* o, bool convert, PointedValue<T>& value) {
        return Convert<T>::load(o, convert, value.value);
    }
    static std::string name(bool argument) { return Convert<T>::name(argument); }
};
template <class T>
struct Kept<T*> {
    using Plain = std::remove_const_t<T>;
    using type = std::conditional_t<HasCaster<Plain>::value, CastedBySource<Plain>,
                                    std::conditional_t<std::disjunction_v<std::is_void<T>, UsesInstances<Plain>>,
                                                       LoadedPointer<T>, PointedValue<Plain>>>;
};
struct LoadedText;
template <>
struct Kept<const char*> {
    using type = LoadedText;
};
template <class T>
using kept_t = typename Kept<std::remove_cv_t<std::remove_reference_t<T>>>::type;
}  // namespace opforge_facade_python

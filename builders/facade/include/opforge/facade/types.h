// Small types of c10: ArrayRef, Device, Scalar, TensorOptions and their like.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/Layout.h>
#include <torch/headeronly/core/MemoryFormat.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>
#include <torch/headeronly/util/complex.h>

#include "errors.h"

namespace c10 {
inline namespace opforge_facade {

using std::nullopt;
using std::nullopt_t;
using std::optional;
using std::string_view;
template <class T>
constexpr auto make_optional(T&& value) {
    return std::make_optional(std::forward<T>(value));
}

template <class T>
class ArrayRef : public HeaderOnlyArrayRef<T> {
public:
    using HeaderOnlyArrayRef<T>::HeaderOnlyArrayRef;
    constexpr ArrayRef() = default;
    constexpr ArrayRef(const HeaderOnlyArrayRef<T>& other) : HeaderOnlyArrayRef<T>(other) {}
    ArrayRef slice(size_t begin, size_t count) const {
        if (begin + count > this->size()) {
            facade::fail(
                facade::text("ArrayRef: invalid slice, N = ", begin, "; M = ", count, "; size = ", this->size()));
        }
        return {this->data() + begin, count};
    }
    ArrayRef slice(size_t begin) const { return slice(begin, this->size() - begin); }
};
template <class T>
std::ostream& operator<<(std::ostream& stream, ArrayRef<T> list) {
    stream << '[';
    for (size_t i = 0; i < list.size(); ++i) {
        stream << (i ? ", " : "") << list[i];
    }
    return stream << ']';
}
template <class T>
bool operator==(ArrayRef<T> a, ArrayRef<T> b) {
    return a.equals(b);
}
template <class T>
bool operator!=(ArrayRef<T> a, ArrayRef<T> b) {
    return !a.equals(b);
}
template <class T>
bool operator==(const std::vector<T>& a, ArrayRef<T> b) {
    return ArrayRef<T>(a).equals(b);
}
template <class T>
bool operator==(ArrayRef<T> a, const std::vector<T>& b) {
    return a.equals(ArrayRef<T>(b));
}
using IntArrayRef = ArrayRef<int64_t>;
using IntList = IntArrayRef;
OPFORGE_IF_USED
inline std::vector<int64_t> contiguous_strides(IntArrayRef sizes) {
    std::vector<int64_t> strides(sizes.size());
    int64_t step = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
        strides[i] = step;
        step *= std::max<int64_t>(sizes[i], 1);
    }
    return strides;
}

// An optional list. A single number is a list of one, as for ArrayRef.
template <class T>
class OptionalArrayRef {
public:
    OptionalArrayRef() = default;
    OptionalArrayRef(std::nullopt_t) {}
    OptionalArrayRef(const T& one) : list_(ArrayRef<T>(one)) {}
    OptionalArrayRef(std::initializer_list<T> list) : list_(ArrayRef<T>(list)) {}
    OptionalArrayRef(std::optional<ArrayRef<T>> list) : list_(list) {}
    template <class A>
    OptionalArrayRef(const std::optional<std::vector<T, A>>& list)
        : list_(list ? std::optional<ArrayRef<T>>(*list) : std::nullopt) {}
    template <class U,
              class = std::enable_if_t<!std::is_same_v<std::decay_t<U>, OptionalArrayRef> &&
                                       std::is_convertible_v<U&&, ArrayRef<T>> && !std::is_convertible_v<U&&, T>>>
    OptionalArrayRef(U&& list) : list_(ArrayRef<T>(std::forward<U>(list))) {}
    bool has_value() const { return list_.has_value(); }
    explicit operator bool() const { return list_.has_value(); }
    const ArrayRef<T>& value() const { return list_.value(); }
    const ArrayRef<T>& operator*() const { return *list_; }
    const ArrayRef<T>* operator->() const { return &*list_; }

private:
    std::optional<ArrayRef<T>> list_;
};
using OptionalIntArrayRef = OptionalArrayRef<int64_t>;

// The stable ABI has no symbolic sizes: a size is the number that it has in this call.
class SymInt {
public:
    SymInt(int64_t value = 0) : value_(value) {}
    operator int64_t() const { return value_; }
    int64_t guard_int(const char*, int64_t) const { return value_; }
    int64_t expect_int() const { return value_; }
    std::optional<int64_t> maybe_as_int() const { return value_; }
    bool is_symbolic() const { return false; }

private:
    int64_t value_;
};
using SymIntArrayRef = ArrayRef<SymInt>;
using OptionalSymIntArrayRef = OptionalArrayRef<SymInt>;
static_assert(sizeof(SymInt) == sizeof(int64_t));
inline SymIntArrayRef fromIntArrayRefSlow(IntArrayRef list) {
    return {reinterpret_cast<const SymInt*>(list.data()), list.size()};
}
inline IntArrayRef asIntArrayRefSlow(SymIntArrayRef list, const char* = nullptr, int64_t = 0) {
    return {reinterpret_cast<const int64_t*>(list.data()), list.size()};
}

template <class T>
class SmallVectorImpl : public std::vector<T> {
public:
    using std::vector<T>::vector;
    // Of anything with elements, such as an ArrayRef.
    template <class C, class = decltype(std::begin(std::declval<const C&>()), std::end(std::declval<const C&>()))>
    explicit SmallVectorImpl(const C& elements) : std::vector<T>(std::begin(elements), std::end(elements)) {}
    template <class I, class = typename std::iterator_traits<I>::iterator_category>
    void append(I first, I last) {
        this->insert(this->end(), first, last);
    }
    void append(size_t count, T value) { this->insert(this->end(), count, value); }
    void append(std::initializer_list<T> list) { this->insert(this->end(), list); }
    void append(const SmallVectorImpl& other) {
        const std::vector<T> kept = other;  // it may be this one
        this->insert(this->end(), kept.begin(), kept.end());
    }
    T pop_back_val() {
        T last = std::move(this->back());
        this->pop_back();
        return last;
    }
};
template <class T, unsigned = 6>
class SmallVector : public SmallVectorImpl<T> {
public:
    using SmallVectorImpl<T>::SmallVectorImpl;
};
constexpr size_t kDimVectorStaticSize = 5;
using DimVector = SmallVector<int64_t, kDimVectorStaticSize>;

// torch's List is a handle: copies share their elements.
template <class T>
class List {
public:
    using value_type = T;
    List() : list_(std::make_shared<std::vector<T>>()) {}
    List(std::initializer_list<T> list) : list_(std::make_shared<std::vector<T>>(list)) {}
    explicit List(ArrayRef<T> list) : list_(std::make_shared<std::vector<T>>(list.begin(), list.end())) {}
    explicit List(std::vector<T> list) : list_(std::make_shared<std::vector<T>>(std::move(list))) {}
    size_t size() const { return list_->size(); }
    bool empty() const { return list_->empty(); }
    T get(size_t i) const { return list_->at(i); }
    void set(size_t i, T value) const { list_->at(i) = std::move(value); }
    void push_back(T value) const { list_->push_back(std::move(value)); }
    template <class... A>
    void emplace_back(A&&... arguments) const {
        list_->emplace_back(std::forward<A>(arguments)...);
    }
    void reserve(size_t n) const { list_->reserve(n); }
    void clear() const { list_->clear(); }
    typename std::vector<T>::reference operator[](size_t i) const { return list_->at(i); }
    auto begin() const { return list_->begin(); }
    auto end() const { return list_->end(); }
    std::vector<T> vec() const { return *list_; }

private:
    std::shared_ptr<std::vector<T>> list_;
};

// torch's dictionary: copies share their entries, which keep the order in which they were inserted.
template <class K, class V>
class Dict {
    static_assert(std::is_same_v<K, std::string> || std::is_same_v<K, int64_t> || std::is_same_v<K, double> ||
                      std::is_same_v<K, bool>,
                  "the facade's c10::Dict has keys of std::string, int64_t, double or bool");
    using Entries = std::list<std::pair<const K, V>>;
    using Place = typename Entries::iterator;

public:
    using key_type = K;
    using mapped_type = V;
    using size_type = size_t;
    class Entry {
    public:
        Entry() = default;
        const K& key() const { return place_->first; }
        const V& value() const { return place_->second; }
        template <class T>
        void setValue(T&& value) const {
            place_->second = V(std::forward<T>(value));
        }

    private:
        friend class Dict;
        explicit Entry(Place place) : place_(place) {}
        Place place_;
    };
    class iterator {
    public:
        using iterator_category = std::forward_iterator_tag;
        using value_type = Entry;
        using difference_type = std::ptrdiff_t;
        using pointer = const Entry*;
        using reference = const Entry&;
        iterator() = default;
        iterator& operator++() {
            ++entry_.place_;
            return *this;
        }
        iterator operator++(int) {
            iterator before(*this);
            ++*this;
            return before;
        }
        const Entry& operator*() const { return entry_; }
        const Entry* operator->() const { return &entry_; }
        bool operator==(const iterator& other) const { return entry_.place_ == other.entry_.place_; }
        bool operator!=(const iterator& other) const { return entry_.place_ != other.entry_.place_; }

    private:
        friend class Dict;
        explicit iterator(Place place) : entry_(place) {}
        Entry entry_;
    };

    Dict() : map_(std::make_shared<Map>()) {}
    Dict copy() const {
        Dict other;
        for (const auto& [key, value] : map_->entries) {
            other.insert(key, value);
        }
        return other;
    }
    iterator begin() const { return iterator(map_->entries.begin()); }
    iterator end() const { return iterator(map_->entries.end()); }
    bool empty() const { return map_->entries.empty(); }
    size_t size() const { return map_->entries.size(); }
    void clear() const {
        map_->places.clear();
        map_->entries.clear();
    }
    template <class A, class B>
    std::pair<iterator, bool> insert(A&& key, B&& value) const {
        K k(std::forward<A>(key));
        const auto found = map_->places.find(k);
        if (found != map_->places.end()) {
            return {iterator(found->second), false};
        }
        const Place place = map_->entries.emplace(map_->entries.end(), k, V(std::forward<B>(value)));
        map_->places.emplace(std::move(k), place);
        return {iterator(place), true};
    }
    template <class A, class B>
    std::pair<iterator, bool> insert_or_assign(A&& key, B&& value) const {
        K k(std::forward<A>(key));
        const auto found = map_->places.find(k);
        if (found == map_->places.end()) {
            return insert(std::move(k), std::forward<B>(value));
        }
        found->second->second = V(std::forward<B>(value));
        return {iterator(found->second), false};
    }
    void erase(iterator at) const {
        map_->places.erase(at->key());
        map_->entries.erase(at.entry_.place_);
    }
    size_t erase(const K& key) const {
        const iterator found = find(key);
        if (found == end()) {
            return 0;
        }
        erase(found);
        return 1;
    }
    V at(const K& key) const {
        const iterator found = find(key);
        if (found == end()) {
            throw std::out_of_range("Argument passed to at() was not in the map.");
        }
        return found->value();
    }
    iterator find(const K& key) const {
        const auto found = map_->places.find(key);
        return found == map_->places.end() ? end() : iterator(found->second);
    }
    bool contains(const K& key) const { return map_->places.count(key) > 0; }
    void reserve(size_t n) const { map_->places.reserve(n); }
    bool is(const Dict& other) const { return map_ == other.map_; }

private:
    struct Map {
        Entries entries;
        std::unordered_map<K, Place> places;
    };
    std::shared_ptr<Map> map_;
};

// ---- numbers of dtypes
inline bool isFloatingType(ScalarType t) {
    switch (t) {
        case ScalarType::Half:
        case ScalarType::Float:
        case ScalarType::Double:
        case ScalarType::BFloat16:
        case ScalarType::Float8_e5m2:
        case ScalarType::Float8_e4m3fn:
        case ScalarType::Float8_e5m2fnuz:
        case ScalarType::Float8_e4m3fnuz:
        case ScalarType::Float8_e8m0fnu:
            return true;
        default:
            return false;
    }
}
inline bool isReducedFloatingType(ScalarType t) {
    return isFloatingType(t) && t != ScalarType::Float && t != ScalarType::Double;
}
inline bool isComplexType(ScalarType t) {
    return t == ScalarType::ComplexHalf || t == ScalarType::ComplexFloat || t == ScalarType::ComplexDouble;
}
inline bool isIntegralType(ScalarType t, bool bool_counts) {
    switch (t) {
        case ScalarType::Byte:
        case ScalarType::Char:
        case ScalarType::Short:
        case ScalarType::Int:
        case ScalarType::Long:
        case ScalarType::UInt16:
        case ScalarType::UInt32:
        case ScalarType::UInt64:
            return true;
        default:
            return bool_counts && t == ScalarType::Bool;
    }
}
inline bool isIntegralType(ScalarType t) { return isIntegralType(t, false); }
inline size_t elementSize(ScalarType t) { return aoti_torch_dtype_element_size(static_cast<int32_t>(t)); }
inline ScalarType toRealValueType(ScalarType t) {
    return t == ScalarType::ComplexHalf     ? ScalarType::Half
           : t == ScalarType::ComplexFloat  ? ScalarType::Float
           : t == ScalarType::ComplexDouble ? ScalarType::Double
                                            : t;
}
OPFORGE_IF_USED
inline ScalarType toComplexType(ScalarType t) {
    switch (t) {
        case ScalarType::BFloat16:
        case ScalarType::Float:
        case ScalarType::ComplexFloat:
            return ScalarType::ComplexFloat;
        case ScalarType::Half:
        case ScalarType::ComplexHalf:
            return ScalarType::ComplexHalf;
        case ScalarType::Double:
        case ScalarType::ComplexDouble:
            return ScalarType::ComplexDouble;
        default:
            facade::fail(facade::text("Unknown Complex ScalarType for ", toString(t)));
    }
}

// What Tensor::dtype() gives: it compares with and turns into a ScalarType.
class TypeMeta {
public:
    TypeMeta() = default;
    TypeMeta(ScalarType t) : type_(t) {}
    operator ScalarType() const { return type_; }
    ScalarType toScalarType() const { return type_; }
    ScalarType id() const { return type_; }
    size_t itemsize() const { return elementSize(type_); }
    // As torch names it: the type that a compiler on Linux prints.
    std::string_view name() const {
        switch (type_) {
            case ScalarType::Byte:
                return "unsigned char";
            case ScalarType::Char:
                return "signed char";
            case ScalarType::Short:
                return "short int";
            case ScalarType::Long:
                return "long int";
            case ScalarType::UInt16:
                return "short unsigned int";
            case ScalarType::UInt32:
                return "unsigned int";
            case ScalarType::UInt64:
                return "long unsigned int";
            default:
                return written_name();
        }
    }
    // As a source writes it.
    std::string_view written_name() const {
        switch (type_) {
#define OPFORGE_NAME(T, N) \
    case ScalarType::N:    \
        return #T;
            AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(OPFORGE_NAME)
            AT_FORALL_QINT_TYPES(OPFORGE_NAME)
#undef OPFORGE_NAME
            default:
                return toString(type_);
        }
    }
    template <class T>
    bool Match() const {
        return type_ == CppTypeToScalarType<T>::value;
    }
    template <class T>
    static TypeMeta Make() {
        return CppTypeToScalarType<T>::value;
    }
    friend bool operator==(TypeMeta a, TypeMeta b) { return a.type_ == b.type_; }
    friend bool operator!=(TypeMeta a, TypeMeta b) { return a.type_ != b.type_; }
    friend bool operator==(TypeMeta a, ScalarType b) { return a.type_ == b; }
    friend bool operator!=(TypeMeta a, ScalarType b) { return a.type_ != b; }
    friend bool operator==(ScalarType a, TypeMeta b) { return a == b.type_; }
    friend bool operator!=(ScalarType a, TypeMeta b) { return a != b.type_; }
    friend std::ostream& operator<<(std::ostream& stream, TypeMeta t) { return stream << t.name(); }

private:
    ScalarType type_ = ScalarType::Undefined;
};
inline ScalarType typeMetaToScalarType(TypeMeta t) { return t; }
inline TypeMeta scalarTypeToTypeMeta(ScalarType t) { return t; }
inline std::optional<ScalarType> optTypeMetaToScalarType(std::optional<TypeMeta> t) {
    return t ? std::optional<ScalarType>(*t) : std::nullopt;
}

// ---- devices
using DeviceIndex = int8_t;
class Device {
public:
    using Type = DeviceType;
    // Any index, as torch's own class in a build with NDEBUG, which setup scripts have.
    Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}
    Device(const std::string& text) {
        uint32_t type = 0;
        int32_t index = -1;
        facade::check(torch_parse_device_string(text.c_str(), &type, &index), "the name of a device");
        type_ = static_cast<DeviceType>(type);
        index_ = static_cast<DeviceIndex>(index);
    }
    Device(const char* text) : Device(std::string(text)) {}
    DeviceType type() const noexcept { return type_; }
    DeviceIndex index() const noexcept { return index_; }
    bool has_index() const noexcept { return index_ != -1; }
    void set_index(DeviceIndex index) { index_ = index; }
    bool is_cpu() const noexcept { return type_ == DeviceType::CPU; }
    bool is_cuda() const noexcept { return type_ == DeviceType::CUDA; }
    bool is_xpu() const noexcept { return type_ == DeviceType::XPU; }
    bool is_mps() const noexcept { return type_ == DeviceType::MPS; }
    bool is_hip() const noexcept { return type_ == DeviceType::HIP; }
    bool is_xla() const noexcept { return type_ == DeviceType::XLA; }
    bool is_hpu() const noexcept { return type_ == DeviceType::HPU; }
    bool is_meta() const noexcept { return type_ == DeviceType::Meta; }
    bool is_privateuseone() const noexcept { return type_ == DeviceType::PrivateUse1; }
    std::string str() const {
        std::string text = name(type_);
        return has_index() ? text + ":" + std::to_string(static_cast<int>(index_)) : text;
    }
    friend bool operator==(const Device& a, const Device& b) { return a.type_ == b.type_ && a.index_ == b.index_; }
    friend bool operator!=(const Device& a, const Device& b) { return !(a == b); }

    static const char* name(DeviceType type) {
        switch (type) {
            case DeviceType::CPU:
                return "cpu";
            case DeviceType::CUDA:
                return "cuda";
            case DeviceType::XPU:
                return "xpu";
            case DeviceType::MPS:
                return "mps";
            case DeviceType::Meta:
                return "meta";
            case DeviceType::PrivateUse1:
                return "privateuseone";
            case DeviceType::HPU:
                return "hpu";
            case DeviceType::XLA:
                return "xla";
            default:
                return "unknown";
        }
    }

private:
    DeviceType type_ = DeviceType::CPU;
    DeviceIndex index_ = -1;
};
OPFORGE_IF_USED
inline std::ostream& operator<<(std::ostream& stream, const Device& device) { return stream << device.str(); }
OPFORGE_IF_USED
inline std::string DeviceTypeName(DeviceType type, bool lower_case = false) {
    std::string name = Device::name(type);
    if (!lower_case) {
        for (char& c : name) {
            c = static_cast<char>(std::toupper(c));
        }
    }
    return name;
}

// Templates: where torch's own headers print these, theirs are preferred.
template <int N = 0>
std::ostream& operator<<(std::ostream& stream, Layout layout) {
    switch (layout) {
        case Layout::Strided:
            return stream << "Strided";
        case Layout::Sparse:
            return stream << "Sparse";
        case Layout::SparseCsr:
            return stream << "SparseCsr";
        case Layout::SparseCsc:
            return stream << "SparseCsc";
        case Layout::SparseBsr:
            return stream << "SparseBsr";
        case Layout::SparseBsc:
            return stream << "SparseBsc";
        case Layout::Mkldnn:
            return stream << "Mkldnn";
        case Layout::Jagged:
            return stream << "Jagged";
        default:
            facade::fail("Unknown layout");
    }
}
template <int N = 0>
std::ostream& operator<<(std::ostream& stream, MemoryFormat format) {
    switch (format) {
        case MemoryFormat::Preserve:
            return stream << "Preserve";
        case MemoryFormat::Contiguous:
            return stream << "Contiguous";
        case MemoryFormat::ChannelsLast:
            return stream << "ChannelsLast";
        case MemoryFormat::ChannelsLast3d:
            return stream << "ChannelsLast3d";
        default:
            facade::fail(facade::text("Unknown memory format ", static_cast<int>(format)));
    }
}

// A generator of random numbers: torch's Python object of it (generators.h). torch 2.10's stable ABI passes none, so no
// operator takes one.
class Generator {
public:
    struct State;
    Generator() = default;
    explicit Generator(std::shared_ptr<State> state) : state_(std::move(state)) {}
    bool defined() const { return static_cast<bool>(state_); }
    bool operator==(const Generator& other) const { return state_ == other.state_; }
    bool operator!=(const Generator& other) const { return state_ != other.state_; }
    template <int = 0>
    Device device() const;
    template <int = 0>
    uint64_t current_seed() const;
    template <int = 0>
    uint64_t seed() const;
    template <int = 0>
    uint64_t get_offset() const;
    template <int = 0>
    void set_offset(uint64_t offset) const;
    template <int = 0>
    void set_current_seed(uint64_t seed) const;
    template <int = 0>
    std::mutex& mutex() const;
    // Returns the generator of a device's kind.
    template <class T>
    T* get() const;
    State* state() const { return state_.get(); }

private:
    std::shared_ptr<State> state_;
};

// ---- numbers whose type is known at run time
class Scalar {
public:
    Scalar() : Scalar(int64_t{0}) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    Scalar(T value) {
        if constexpr (std::is_same_v<T, bool>) {
            kind_ = Kind::Bool;
            integer_ = value;
        } else if constexpr (std::is_integral_v<T>) {
            kind_ = Kind::Integer;
            if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
                if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
                    facade::fail("a Scalar over 2^63 - 1 is not supported by the facade");
                }
            }
            integer_ = static_cast<int64_t>(value);
        } else {
            kind_ = Kind::Real;
            real_ = value;
        }
    }
    Scalar(Half value) : Scalar(static_cast<double>(static_cast<float>(value))) {}
    Scalar(BFloat16 value) : Scalar(static_cast<double>(static_cast<float>(value))) {}
    template <class T>
    Scalar(complex<T> value) : kind_(Kind::Complex), real_(value.real()), imaginary_(value.imag()) {}

    bool isFloatingPoint() const { return kind_ == Kind::Real; }
    bool isComplex() const { return kind_ == Kind::Complex; }
    bool isBoolean() const { return kind_ == Kind::Bool; }
    bool isIntegral(bool bool_counts) const { return kind_ == Kind::Integer || (bool_counts && kind_ == Kind::Bool); }
    ScalarType type() const {
        switch (kind_) {
            case Kind::Bool:
                return ScalarType::Bool;
            case Kind::Integer:
                return ScalarType::Long;
            case Kind::Real:
                return ScalarType::Double;
            default:
                return ScalarType::ComplexDouble;
        }
    }
    template <class T>
    T to() const {
        if constexpr (std::is_same_v<T, bool>) {
            return kind_ == Kind::Real      ? real_ != 0
                   : kind_ == Kind::Complex ? real_ != 0 || imaginary_ != 0
                                            : integer_ != 0;
        } else if constexpr (is_complex_number<T>) {
            using V = typename T::value_type;
            return isIntegral(true) ? T(convert<V>(integer_)) : T(convert<V>(real_), convert<V>(imaginary_));
        } else {
            if (kind_ == Kind::Complex && imaginary_ != 0) {
                overflow<T>();
            }
            return isIntegral(true) ? convert<T>(integer_) : convert<T>(real_);
        }
    }
#define OPFORGE_TO(T, N) \
    OPFORGE_IF_USED      \
    T to##N() const { return to<T>(); }
    OPFORGE_TO(uint8_t, Byte)
    OPFORGE_TO(int8_t, Char)
    OPFORGE_TO(int16_t, Short)
    OPFORGE_TO(int, Int)
    OPFORGE_TO(int64_t, Long)
    OPFORGE_TO(float, Float)
    OPFORGE_TO(double, Double)
    OPFORGE_TO(bool, Bool)
    OPFORGE_TO(Half, Half)
    OPFORGE_TO(BFloat16, BFloat16)
    OPFORGE_TO(complex<float>, ComplexFloat)
    OPFORGE_TO(complex<double>, ComplexDouble)
#undef OPFORGE_TO
    bool equal(bool value) const { return isBoolean() && (integer_ != 0) == value; }
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> && !std::is_same_v<T, bool>>>
    bool equal(T value) const {
        switch (kind_) {
            case Kind::Real:
                return real_ == static_cast<double>(value);
            case Kind::Complex:
                return imaginary_ == 0 && real_ == static_cast<double>(value);
            case Kind::Integer:
                return std::is_integral_v<T> ? integer_ == static_cast<int64_t>(value)
                                             : static_cast<double>(integer_) == static_cast<double>(value);
            default:
                return false;
        }
    }
    Scalar operator-() const {
        Scalar r = *this;
        r.integer_ = -integer_;
        r.real_ = -real_;
        r.imaginary_ = -imaginary_;
        return r;
    }

private:
    enum class Kind : uint8_t { Bool, Integer, Real, Complex };
    template <class T>
    static constexpr bool is_complex_number =
        std::is_same_v<T, complex<float>> || std::is_same_v<T, complex<double>> || std::is_same_v<T, complex<Half>>;
    template <class T>
    [[noreturn]] static void overflow() {
        facade::fail(facade::text("value cannot be converted to type ",
                                  TypeMeta(CppTypeToScalarType<T>::value).written_name(), " without overflow"));
    }
    // torch's own rule: a number beyond the type's limits is an error. An infinity is none for a type that has
    // one, and a negative integer wraps to an unsigned type down to minus its largest.
    template <class T, class F>
    static T convert(F value) {
        if constexpr (std::is_floating_point_v<F>) {
            constexpr double highest = largest<T>();
            constexpr double lowest = std::is_integral_v<T> ? static_cast<double>(smallest<T>()) : -highest;
            const bool allowed = !std::is_integral_v<T> && !std::isfinite(value);
            if (!allowed && !(value >= lowest && value <= highest)) {
                overflow<T>();
            }
        } else if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(F)) {
            const F low =
                std::is_unsigned_v<T> ? -static_cast<F>(std::numeric_limits<T>::max()) : static_cast<F>(smallest<T>());
            if (value > static_cast<F>(std::numeric_limits<T>::max()) || value < low) {
                overflow<T>();
            }
        } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
            if (static_cast<double>(value) > largest<T>() || static_cast<double>(value) < -largest<T>()) {
                overflow<T>();
            }
        }
        if constexpr (std::is_arithmetic_v<T>) {
            return static_cast<T>(value);
        } else {
            return static_cast<T>(static_cast<float>(value));
        }
    }
    template <class T>
    static constexpr double largest() {
        if constexpr (std::is_same_v<T, Half>) {
            return 65504.0;
        } else if constexpr (std::is_same_v<T, BFloat16>) {
            return 3.3895313892515355e38;
        } else {
            return static_cast<double>(std::numeric_limits<T>::max());
        }
    }
    template <class T>
    static constexpr auto smallest() {
        if constexpr (std::is_integral_v<T>) {
            return std::numeric_limits<T>::min();
        } else {
            return 0;
        }
    }
    Kind kind_ = Kind::Integer;
    int64_t integer_ = 0;
    double real_ = 0;
    double imaginary_ = 0;
};
OPFORGE_IF_USED
inline std::ostream& operator<<(std::ostream& stream, const Scalar& s) {
    if (s.isFloatingPoint()) {
        return stream << s.toDouble();
    }
    if (s.isBoolean()) {
        return stream << (s.toBool() ? "true" : "false");
    }
    return s.isComplex() ? stream << s.toComplexDouble() : stream << s.toLong();
}

// A value, or another's that is borrowed: here a value of its own, which of a tensor is a handle.
template <class T>
class MaybeOwned {
public:
    MaybeOwned() = default;
    static MaybeOwned borrowed(const T& value) { return MaybeOwned(T(value)); }
    static MaybeOwned owned(T&& value) { return MaybeOwned(std::move(value)); }
    template <class... A>
    static MaybeOwned owned(std::in_place_t, A&&... arguments) {
        return MaybeOwned(T(std::forward<A>(arguments)...));
    }
    const T& operator*() const& { return value_; }
    T operator*() && { return std::move(value_); }
    const T* operator->() const { return &value_; }

private:
    explicit MaybeOwned(T&& value) : value_(std::move(value)) {}
    T value_;
};

// ---- what a factory is asked for
class TensorOptions {
public:
    TensorOptions() = default;
    TensorOptions(ScalarType t) : dtype_(t) {}
    TensorOptions(TypeMeta t) : dtype_(t) {}
    TensorOptions(Layout l) : layout_(l) {}
    TensorOptions(MemoryFormat m) : memory_format_(m) {}
    template <class T, class = std::enable_if_t<std::is_same_v<std::decay_t<T>, Device> ||
                                                std::is_same_v<std::decay_t<T>, DeviceType>>>
    TensorOptions(T&& d) : device_(Device(std::forward<T>(d))) {}
    // Of a tensor, at once: one by one each copy waits for the bytes of the one before.
    TensorOptions(ScalarType t, Device d, Layout l) : dtype_(t), device_(d), layout_(l) {}

#define OPFORGE_SETTER(T, NAME)                        \
    TensorOptions NAME(std::optional<T> value) const { \
        TensorOptions r = *this;                       \
        r.NAME##_ = value;                             \
        return r;                                      \
    }
    OPFORGE_SETTER(ScalarType, dtype)
    OPFORGE_SETTER(Device, device)
    OPFORGE_SETTER(Layout, layout)
    OPFORGE_SETTER(bool, requires_grad)
    OPFORGE_SETTER(bool, pinned_memory)
    OPFORGE_SETTER(MemoryFormat, memory_format)
#undef OPFORGE_SETTER
    TensorOptions dtype(ScalarType t) const { return dtype(std::optional<ScalarType>(t)); }
    TensorOptions dtype(TypeMeta t) const { return dtype(ScalarType(t)); }
    template <class T>
    TensorOptions dtype() const {
        return dtype(CppTypeToScalarType<T>::value);
    }
    TensorOptions device(Device d) const { return device(std::optional<Device>(d)); }
    TensorOptions device(DeviceType d, DeviceIndex index = -1) const { return device(Device(d, index)); }
    TensorOptions device_index(DeviceIndex index) const { return device(Device(DeviceType::CUDA, index)); }

    Device device() const { return device_.value_or(Device(DeviceType::CPU)); }
    TypeMeta dtype() const { return dtype_ ? *dtype_ : default_dtype(); }
    Layout layout() const { return layout_.value_or(Layout::Strided); }
    bool requires_grad() const { return requires_grad_.value_or(false); }
    bool pinned_memory() const { return pinned_memory_.value_or(false); }
    bool is_sparse() const { return layout() == Layout::Sparse; }
    bool has_device() const { return device_.has_value(); }
    bool has_dtype() const { return dtype_.has_value(); }
    bool has_layout() const { return layout_.has_value(); }
    bool has_requires_grad() const { return requires_grad_.has_value(); }
    bool has_pinned_memory() const { return pinned_memory_.has_value(); }
    bool has_memory_format() const { return memory_format_.has_value(); }
    std::optional<Device> device_opt() const { return device_; }
    std::optional<TypeMeta> dtype_opt() const { return dtype_ ? std::optional<TypeMeta>(*dtype_) : std::nullopt; }
    std::optional<ScalarType> scalar_type_opt() const { return dtype_; }
    std::optional<Layout> layout_opt() const { return layout_; }
    std::optional<bool> requires_grad_opt() const { return requires_grad_; }
    std::optional<bool> pinned_memory_opt() const { return pinned_memory_; }
    std::optional<MemoryFormat> memory_format_opt() const { return memory_format_; }
    OPFORGE_IF_USED
    TensorOptions merge_in(const TensorOptions& other) const {
        TensorOptions r = *this;
        r.take(&TensorOptions::dtype_, other);
        r.take(&TensorOptions::device_, other);
        r.take(&TensorOptions::layout_, other);
        r.take(&TensorOptions::requires_grad_, other);
        r.take(&TensorOptions::pinned_memory_, other);
        r.take(&TensorOptions::memory_format_, other);
        return r;
    }

private:
    static ScalarType default_dtype();
    template <class T>
    void take(std::optional<T> TensorOptions::* field, const TensorOptions& other) {
        if (other.*field) {
            this->*field = other.*field;
        }
    }
    std::optional<ScalarType> dtype_;
    std::optional<Device> device_;
    std::optional<Layout> layout_;
    std::optional<bool> requires_grad_;
    std::optional<bool> pinned_memory_;
    std::optional<MemoryFormat> memory_format_;
};
// Of this type alone: a device and a dtype are converted to it, and have operators of their own.
template <class T, class = std::enable_if_t<std::is_same_v<T, TensorOptions>>>
std::ostream& operator<<(std::ostream& stream, const T& o) {
    auto print = [&stream](const char* name, const auto& value, bool is_set) {
        stream << name << value << (is_set ? "" : " (default)");
    };
    auto truth = [](bool value) { return value ? "true" : "false"; };
    print("TensorOptions(dtype=", o.dtype().name(), o.has_dtype());
    print(", device=", o.device(), o.has_device());
    print(", layout=", o.layout(), o.has_layout());
    print(", requires_grad=", truth(o.requires_grad()), o.has_requires_grad());
    print(", pinned_memory=", truth(o.pinned_memory()), o.has_pinned_memory());
    if (o.has_memory_format()) {
        return stream << ", memory_format=" << *o.memory_format_opt() << ")";
    }
    return stream << ", memory_format=(nullopt))";
}
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
template <class T>
TensorOptions dtype() {
    return TensorOptions(CppTypeToScalarType<T>::value);
}
inline TensorOptions device(Device d) { return TensorOptions(d); }
inline TensorOptions device_index(DeviceIndex index) { return TensorOptions().device_index(index); }
inline TensorOptions layout(Layout l) { return TensorOptions(l); }
inline TensorOptions requires_grad(bool r = true) { return TensorOptions().requires_grad(r); }
inline TensorOptions memory_format(MemoryFormat m) { return TensorOptions(m); }

#define OPFORGE_CONSTANT(T, N) constexpr ScalarType k##N = ScalarType::N;
AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(OPFORGE_CONSTANT)
OPFORGE_CONSTANT(, UInt16)
OPFORGE_CONSTANT(, UInt32)
OPFORGE_CONSTANT(, UInt64)
#undef OPFORGE_CONSTANT
constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong, kFloat16 = kHalf,
                     kFloat32 = kFloat, kFloat64 = kDouble, kComplexHalf32 = kComplexHalf;

// The facade reads torch's numbers of dtypes, devices, layouts, and the sizes of elements, as its headers
// state them. A torch in which they are others is refused when a library loads.
namespace facade {
struct Number {
    int32_t (*of_torch)();
    int32_t expected;
};
OPFORGE_COLD inline void check_numbers() {
    static constexpr Number dtypes[] = {
        {aoti_torch_dtype_uint8, static_cast<int32_t>(ScalarType::Byte)},
        {aoti_torch_dtype_int8, static_cast<int32_t>(ScalarType::Char)},
        {aoti_torch_dtype_int16, static_cast<int32_t>(ScalarType::Short)},
        {aoti_torch_dtype_int32, static_cast<int32_t>(ScalarType::Int)},
        {aoti_torch_dtype_int64, static_cast<int32_t>(ScalarType::Long)},
        {aoti_torch_dtype_float16, static_cast<int32_t>(ScalarType::Half)},
        {aoti_torch_dtype_float32, static_cast<int32_t>(ScalarType::Float)},
        {aoti_torch_dtype_float64, static_cast<int32_t>(ScalarType::Double)},
        {aoti_torch_dtype_complex32, static_cast<int32_t>(ScalarType::ComplexHalf)},
        {aoti_torch_dtype_complex64, static_cast<int32_t>(ScalarType::ComplexFloat)},
        {aoti_torch_dtype_complex128, static_cast<int32_t>(ScalarType::ComplexDouble)},
        {aoti_torch_dtype_bool, static_cast<int32_t>(ScalarType::Bool)},
        {aoti_torch_dtype_bfloat16, static_cast<int32_t>(ScalarType::BFloat16)},
        {aoti_torch_dtype_float8_e5m2, static_cast<int32_t>(ScalarType::Float8_e5m2)},
        {aoti_torch_dtype_float8_e4m3fn, static_cast<int32_t>(ScalarType::Float8_e4m3fn)},
        {aoti_torch_dtype_uint16, static_cast<int32_t>(ScalarType::UInt16)},
        {aoti_torch_dtype_uint32, static_cast<int32_t>(ScalarType::UInt32)},
        {aoti_torch_dtype_uint64, static_cast<int32_t>(ScalarType::UInt64)}};
    for (const auto& [of_torch, expected] : dtypes) {
        if (const int32_t number = of_torch(); number != expected) {
            fail(text("this torch numbers the dtype ", toString(static_cast<ScalarType>(expected)), " ", number,
                      ", and this library was built for ", expected, ": build it again with this torch"));
        }
    }
    static constexpr std::pair<ScalarType, size_t> sizes[] = {
#define OPFORGE_SIZE(T, N) {ScalarType::N, sizeof(T)},
        AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(OPFORGE_SIZE)
#undef OPFORGE_SIZE
    };
    for (const auto& [type, size] : sizes) {
        if (elementSize(type) != size) {
            fail(text("an element of the dtype ", toString(type), " has ", elementSize(type),
                      " bytes in this torch, and this library was built for ", size,
                      ": build it again with this torch"));
        }
    }
    static constexpr Number others[] = {
        {aoti_torch_device_type_cpu, static_cast<int32_t>(DeviceType::CPU)},
        {aoti_torch_device_type_cuda, static_cast<int32_t>(DeviceType::CUDA)},
        {aoti_torch_device_type_meta, static_cast<int32_t>(DeviceType::Meta)},
        {aoti_torch_device_type_xpu, static_cast<int32_t>(DeviceType::XPU)},
        {aoti_torch_device_type_mps, static_cast<int32_t>(DeviceType::MPS)},
        {aoti_torch_device_type_privateuse1, static_cast<int32_t>(DeviceType::PrivateUse1)},
        {aoti_torch_layout_strided, static_cast<int32_t>(Layout::Strided)},
        {aoti_torch_layout_sparse_coo, static_cast<int32_t>(Layout::Sparse)},
        {aoti_torch_layout_sparse_csr, static_cast<int32_t>(Layout::SparseCsr)},
        {aoti_torch_layout_jagged, static_cast<int32_t>(Layout::Jagged)},
        {aoti_torch_memory_format_contiguous_format, static_cast<int32_t>(MemoryFormat::Contiguous)},
        {aoti_torch_memory_format_preserve_format, static_cast<int32_t>(MemoryFormat::Preserve)},
        {aoti_torch_memory_format_channels_last, static_cast<int32_t>(MemoryFormat::ChannelsLast)},
        {aoti_torch_memory_format_channels_last_3d, static_cast<int32_t>(MemoryFormat::ChannelsLast3d)}};
    for (const auto& [of_torch, expected] : others) {
        if (const int32_t number = of_torch(); number != expected) {
            fail(text("this torch numbers devices, layouts or memory formats otherwise (", number, " for ", expected,
                      "): build this library again with this torch"));
        }
    }
}
// Once in a library, where an error has a way to Python: a static's initializer would end the process.
inline void check_numbers_once() {
    static const bool checked = (check_numbers(), true);
    static_cast<void>(checked);
}
}  // namespace facade

}  // namespace opforge_facade
}  // namespace c10

namespace std {
template <>
struct hash<c10::Device> {
    size_t operator()(c10::Device d) const noexcept {
        return static_cast<size_t>(static_cast<uint32_t>(static_cast<uint8_t>(d.type())) << 16 |
                                   static_cast<uint32_t>(static_cast<uint8_t>(d.index())));
    }
};
}  // namespace std

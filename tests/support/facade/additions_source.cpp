// What a source adds to pybind11 itself: exceptions, conversions, containers as classes, and classes of several bases.
#include <pybind11/functional.h>
#include <torch/extension.h>

#include <stdexcept>

struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Worse : Refused {
    using Refused::Refused;
};
struct Coded : std::exception {
    explicit Coded(int code) : code(code) {}
    const char* what() const noexcept override { return "coded"; }
    int code;
};
struct NotOfStandard {
    int n;
};
struct Again : std::exception {};

// Three conversions: of a struct, of a template, and one that is written without the macro.
struct Pair {
    float x = 0, y = 0;
};
template <class T>
struct Boxed {
    T value;
};
struct Named {
    std::string text;
};
struct Strict {
    int n = 0;
};
enum class Side { Left, Right };
struct Counts : std::vector<int> {
    using std::vector<int>::vector;
};

namespace pybind11 {
namespace detail {
template <>
struct type_caster<Pair> {
public:
    PYBIND11_TYPE_CASTER(Pair, const_name("Pair"));
    bool load(handle source, bool) {
        if (!isinstance<py::sequence>(source)) {
            return false;
        }
        auto values = reinterpret_borrow<py::sequence>(source);
        if (values.size() != 2) {
            return false;
        }
        value.x = values[0].cast<float>();
        value.y = values[1].cast<float>();
        return true;
    }
    static handle cast(const Pair& pair, return_value_policy, handle) {
        return py::make_tuple(pair.x, pair.y).release();
    }
};
template <class T>
struct type_caster<Boxed<T>> {
    using Inner = make_caster<T>;
    PYBIND11_TYPE_CASTER(Boxed<T>, const_name("Boxed[") + Inner::name + const_name("]"));
    bool load(handle source, bool convert) {
        Inner inner;
        if (!hasattr(source, "value") || !inner.load(source.attr("value"), convert)) {
            return false;
        }
        value.value = cast_op<T&&>(std::move(inner));
        return true;
    }
    static handle cast(const Boxed<T>& boxed, return_value_policy policy, handle parent) {
        object inner = reinterpret_steal<object>(Inner::cast(boxed.value, policy, parent));
        if (!inner) {
            return handle();
        }
        return py::module_::import("types").attr("SimpleNamespace")(py::arg("value") = inner).release();
    }
};
template <>
class type_caster<Named> {
public:
    static constexpr auto name = io_name("str | bytes", "str");
    bool load(handle source, bool convert) {
        make_caster<std::string> text;
        if (!convert || !text.load(source, convert)) {
            return false;
        }
        named_.text = cast_op<std::string&>(text);
        return true;
    }
    static handle cast(const Named& named, return_value_policy, handle) { return py::str(named.text).release(); }
    operator Named*() { return &named_; }
    operator Named&() { return named_; }
    template <class T>
    using cast_op_type = pybind11::detail::cast_op_type<T>;

private:
    Named named_;
};
template <>
struct type_caster<Counts> : list_caster<Counts, int> {};
}  // namespace detail
}  // namespace pybind11
namespace PYBIND11_NAMESPACE {
namespace detail {
template <>
struct type_caster<Strict> {
    PYBIND11_TYPE_CASTER(Strict, const_name<true>("Strict", "Loose"));
    bool load(handle source, bool) {
        if (source.is_none()) {
            throw Refused("none");
        }
        value.n = py::cast<int>(source);
        return value.n != 3;
    }
    static handle cast(Strict strict, return_value_policy, handle) {
        if (strict.n < 0) {
            throw py::value_error("below zero");
        }
        return strict.n == 0 ? handle() : py::int_(strict.n).release();
    }
};
template <>
class type_caster<Side> {
public:
    bool load(handle source, bool) {
        const auto text = py::cast<std::string>(source);
        value = text == "left" ? Side::Left : Side::Right;
        return text == "left" || text == "right";
    }
    static handle cast(Side side, return_value_policy, handle) {
        return py::str(side == Side::Left ? "left" : "right").release();
    }

private:
    PYBIND11_TYPE_CASTER(Side, _("side"));
};
}  // namespace detail
}  // namespace PYBIND11_NAMESPACE

using Lengths = std::vector<int64_t>;
using Table = std::map<std::string, double>;
PYBIND11_MAKE_OPAQUE(Lengths);
PYBIND11_MAKE_OPAQUE(std::map<std::string, double>);

int alive = 0;
struct Counted {
    Counted() { ++alive; }
    Counted(const Counted&) { ++alive; }
    ~Counted() { --alive; }
};
struct First : Counted {
    explicit First(int a = 1) : a(a) {}
    virtual ~First() = default;
    virtual std::string who() const { return "first"; }
    int a;
};
struct Second {
    explicit Second(int b = 2) : b(b) { ++alive; }
    ~Second() { --alive; }
    int twice() const { return 2 * b; }
    int b;
};
struct Third {
    int c = 3;
};
struct Both : First, Second {
    Both(int a, int b) : First(a), Second(b) {}
    std::string who() const override { return "both"; }
};
struct Deeper : Both, Third {
    Deeper() : Both(5, 6) {}
};

// What is iterated over: objects of a class, a map, and numbers that are made on the way.
struct Item {
    int n;
};
struct Shelf {
    std::vector<Item> items{{1}, {2}, {3}};
    std::map<std::string, int> prices{{"a", 1}, {"b", 2}};
};
struct Countdown {
    int n;
    int operator*() const { return n; }
    void operator++() { --n; }
    bool operator==(const Countdown& other) const { return n == other.n; }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    py::register_exception<Refused>(m, "RefusedError");
    py::register_exception<Worse>(m, "WorseError", PyExc_LookupError);
    static py::exception<Coded> coded(m, "CodedError", PyExc_OSError);
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) {
                std::rethrow_exception(thrown);
            }
        } catch (const Coded& e) {
            if (e.code == 0) {
                throw Refused("code 0");
            }
            py::set_error(coded, std::to_string(e.code).c_str());
        } catch (const NotOfStandard& e) {
            throw py::key_error(std::to_string(e.n));
        }
    });
    py::register_local_exception_translator([](std::exception_ptr thrown) {
        try {
            std::rethrow_exception(thrown);
        } catch (const Again&) {
            PyErr_SetString(PyExc_ZeroDivisionError, "again");
        } catch (const std::domain_error& e) {
            py::set_error(PyExc_ArithmeticError, py::make_tuple(e.what(), 3));
        }
    });
    m.def("throws", [](const std::string& what, int n) {
        if (what == "refused") {
            throw Refused("refused " + std::to_string(n));
        } else if (what == "worse") {
            throw Worse("worse");
        } else if (what == "coded") {
            throw Coded(n);
        } else if (what == "not of the standard") {
            throw NotOfStandard{n};
        } else if (what == "again") {
            throw Again();
        } else if (what == "domain") {
            throw std::domain_error("domain");
        } else if (what == "length") {
            throw std::length_error("length");
        } else if (what == "value") {
            throw py::value_error("value");
        } else if (what == "check") {
            TORCH_CHECK(n == 0, "n is ", n);
        } else if (what == "from") {
            try {
                py::module_::import("math").attr("sqrt")(-1);
            } catch (py::error_already_set& e) {
                py::raise_from(e, PyExc_TypeError, "no root");
                throw py::error_already_set();
            }
        }
        throw 7;
    });
    m.def("called", [](const py::function& f) { return f(); });
    m.def("caught", [](const py::function& f) {
        try {
            f();
        } catch (py::error_already_set& e) {
            return e.matches(PyExc_LookupError);
        }
        return false;
    });
    m.def("stored", [] {
        PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> storage;
        return storage.call_once_and_store_result([] { return py::list(2); }).get_stored();
    });

    m.def("swapped", [](const Pair& pair) { return Pair{pair.y, pair.x}; });
    m.def("pair_by_value", [](Pair pair) { return pair.x; });
    m.def("pair_by_pointer", [](const Pair* pair) { return pair->x; });
    m.def("changed", [](Pair& pair) { return pair.x += 1; });
    m.def("pairs", [](const std::vector<Pair>& pairs) { return pairs; });
    m.def("maybe", [](std::optional<Pair> pair) { return pair; });
    m.def("either", [](const std::variant<int, Pair>& either) { return either; });
    m.def("pointed", [](bool null) {
        static Pair pair{1, 2};
        return null ? nullptr : &pair;
    });
    m.def("made", []() -> Pair* { return new Pair{3, 4}; }, py::return_value_policy::take_ownership);
    m.def("called_with", [](const std::function<Pair(Pair)>& f) { return f(Pair{1, 2}); });
    m.def("cast", [](const py::object& given) { return py::cast(given.cast<Pair>()); });
    m.def("by_default", [](const Pair& pair) { return pair.y; }, py::arg("pair") = Pair{7, 8});
    m.def("is_a", [](const py::object& given) { return py::isinstance<Pair>(given); });
    m.def("boxed", [](const Boxed<torch::Tensor>& boxed) { return Boxed<torch::Tensor>{boxed.value + 1}; });
    m.def("boxed", [](const Boxed<std::vector<double>>& boxed) { return boxed; });
    m.def("named", [](const Named& named) { return Named{named.text + "!"}; });
    m.def("strictly_named", [](const Named& named) { return named; }, py::arg("named").noconvert());
    m.def("strict", [](const Strict& strict, int more) { return Strict{strict.n + more}; });
    m.def("side", [](Side side) { return side == Side::Left ? Side::Right : Side::Left; });
    m.def("counts", [](const Counts& counts) { return counts; });

    py::class_<Lengths>(m, "Lengths")
        .def(py::init<>())
        .def(py::init<size_t, int64_t>())
        .def("append", [](Lengths& lengths, int64_t n) { lengths.push_back(n); })
        .def("__len__", &Lengths::size);
    py::class_<Table>(m, "Table").def(py::init<>()).def("put", [](Table& table, const std::string& key, double value) {
        table[key] = value;
    });
    m.def("total", [](const Lengths& lengths) { return std::accumulate(lengths.begin(), lengths.end(), int64_t(0)); });
    m.def("grow", [](Lengths& lengths) { lengths.push_back(9); });
    m.def("grow_pointed", [](Lengths* lengths) { lengths->push_back(8); });
    m.def("lengths", [](int64_t n) { return Lengths(2, n); });
    m.def("plain", [](const std::vector<double>& values) { return values; });
    m.def("total_of_table", [](const Table& table) { return static_cast<double>(table.size()); });

    py::class_<First>(m, "First")
        .def(py::init<int>(), py::arg("a") = 1)
        .def("who", &First::who)
        .def_readwrite("a", &First::a);
    py::class_<Second>(m, "Second")
        .def(py::init<int>(), py::arg("b") = 2)
        .def("twice", &Second::twice)
        .def_readwrite("b", &Second::b);
    py::class_<Third>(m, "Third", py::dynamic_attr()).def(py::init<>()).def_readwrite("c", &Third::c);
    py::class_<Both, First, Second>(m, "Both", py::multiple_inheritance()).def(py::init<int, int>());
    py::class_<Deeper, Both, Third>(m, "Deeper").def(py::init<>());
    m.def("first_of", [](First& first) { return first.a += 10; });
    m.def("second_of", [](const Second& second) { return second.b; });
    m.def("second_at", [](const Second* second) { return second ? second->b : -1; });
    m.def("third_of", [](const Third& third) { return third.c; });
    m.def("both_of", [](const Both& both) { return both.a * 100 + both.b; });
    m.def("as_first", []() -> First* { return new Both(7, 8); });
    m.def("alive", [] { return alive; });

    py::class_<Item>(m, "Item").def(py::init<int>()).def_readwrite("n", &Item::n);
    py::class_<Shelf>(m, "Shelf")
        .def(py::init<>())
        .def(
            "__iter__", [](Shelf& shelf) { return py::make_iterator(shelf.items.begin(), shelf.items.end()); },
            py::keep_alive<0, 1>())
        .def(
            "whole", [](Shelf& shelf) { return py::make_iterator(shelf.items); }, py::keep_alive<0, 1>())
        .def(
            "copies",
            [](Shelf& shelf) {
                return py::make_iterator<py::return_value_policy::copy>(shelf.items.begin(), shelf.items.end());
            },
            py::keep_alive<0, 1>())
        .def("prices", [](Shelf& shelf) { return py::make_iterator(shelf.prices.begin(), shelf.prices.end()); })
        .def("names", [](Shelf& shelf) { return py::make_key_iterator(shelf.prices.begin(), shelf.prices.end()); })
        .def("values", [](Shelf& shelf) { return py::make_value_iterator(shelf.prices); });
    m.def("countdown", [](int n) { return py::make_iterator(Countdown{n}, Countdown{0}); });
    m.def("storage", [](const torch::Tensor& x) { return std::pair(x.storage() ? 1 : 0, x.storage().nbytes()); });
}

// Functions that take Python's own objects and containers, and call back into Python.
#include <torch/extension.h>

#include <pybind11/chrono.h>
#include <pybind11/eval.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

static py::dict described(torch::Tensor x, const py::dict& options) {
    py::dict out;
    out["shape"] = x.sizes().vec();
    out["dtype"] = py::str(py::cast(x).attr("dtype"));
    for (auto item : options) {
        out[item.first] = py::make_tuple(item.second, 1);
    }
    if (options.contains("scale")) {
        out["scaled"] = x * options["scale"].cast<double>();
    }
    return out;
}
static py::list split(torch::Tensor x, const py::list& sizes) {
    py::list out;
    int64_t at = 0;
    for (py::handle size : sizes) {
        const auto n = size.cast<int64_t>();
        out.append(x.narrow(0, at, n));
        at += n;
    }
    out.append(py::none());
    out.insert(0, "first");
    return out;
}
static torch::Tensor applied(const py::function& f, torch::Tensor x, const py::args& rest, const py::kwargs& named) {
    return f(x, *rest, **named).cast<torch::Tensor>();
}
static std::string caught(const py::object& f) {
    try {
        f();
    } catch (py::error_already_set& e) {
        return e.matches(PyExc_KeyError) ? "a KeyError" : "another exception";
    } catch (const py::cast_error&) {
        return "a cast_error";
    }
    return "nothing";
}

// Types that a source uses more seldom, and C++ functions as objects.
struct Counter {
    int n = 0;
    int get() const { return n; }
    ~Counter() { ++freed; }
    static int freed;
};
int Counter::freed = 0;
template <class T>
static T implicit(const py::object& o) {
    return o;
}
static py::object sliced(const std::vector<double>& values, const py::slice& slice) {
    size_t first = 0, last = 0, step = 0, n = 0;
    if (!slice.compute(values.size(), &first, &last, &step, &n)) {
        throw py::error_already_set();
    }
    py::list out;
    for (size_t i = 0; i < n; ++i, first += step) {
        out.append(values[first]);
    }
    return py::make_tuple(out, py::list(py::cast(values))[py::slice(0, 3, 2)], py::slice(py::none(), py::int_(2), {}));
}
static void further(py::module_& m) {
    using Clock = std::chrono::system_clock;
    using std::chrono::microseconds;
    m.def("letter", [](char c) { return static_cast<int>(static_cast<unsigned char>(c)); });
    m.def("of_letter", [](int n) { return static_cast<char>(n); });
    m.def(
        "letters", [](std::array<char, 3> a, char c) { return std::string(a.data(), 3) + c; }, py::arg("a"),
        py::arg("c") = 'x');
    m.def("as_bool", &implicit<py::bool_>);
    m.def("as_int", &implicit<py::int_>);
    m.def("as_float", &implicit<py::float_>);
    m.def("as_str", &implicit<py::str>);
    m.def("as_bytes", &implicit<py::bytes>);
    m.def("of_items", [](const py::dict& d) {
        py::int_ a = d["a"];
        py::str b = d["b"];
        py::bytes c = d["c"];
        return py::make_tuple(a, b, c);
    });
    m.def("adder", [](int k) {
        auto counter = std::make_shared<Counter>();
        return py::cpp_function([k, counter](int a, int b) { return a + b + k + ++counter->n; }, py::arg("a"),
                                py::arg("b") = 10, py::name("added"), "Adds.");
    });
    m.def("freed", [] { return Counter::freed; });
    m.def("twice", [](const std::function<int(int)>& f) {
        return f ? [f](int x) { return f(f(x)); } : std::function<int(int)>();
    });
    py::class_<Counter, std::shared_ptr<Counter>> counter(m, "Counter");
    counter.def(py::init<>()).def_property_readonly("n", py::cpp_function(&Counter::get));
    counter.def_property("w", py::cpp_function([](const Counter& c) { return c.n; }),
                         py::cpp_function([](Counter& c, int n) { c.n = n; }));
    counter.def_property("fixed", &Counter::get, nullptr);
    counter.attr("bumped") = py::cpp_function([](Counter& c, int by) { return c.n += by; }, py::name("bumped"),
                                              py::is_method(counter), py::arg("by") = 2);
    m.def("sliced", &sliced);
    m.def("byte_array",
          [](py::bytearray a) { return py::make_tuple(a.size(), std::string(a), py::bytearray("q", 1)); });
    m.def("view",
          [](py::bytes b) { return py::bytes(py::memoryview::from_memory(std::string_view(b)).attr("tobytes")()); });
    m.def("weak", [](const py::object& o, const py::object& f) {
        py::weakref w(o, py::cpp_function([f](py::handle weak) {
                          f();
                          weak.dec_ref();
                      }));
        const bool is_same = w().is(o);
        w.release();
        return is_same;
    });
    m.def("dots", [](const py::object& x) { return py::object(x[py::ellipsis()]); });
    m.def("without_lock", [](int n) {
        Py_BEGIN_ALLOW_THREADS;
        n += 1;
        Py_END_ALLOW_THREADS;
        return n + static_cast<int>(py::hash(py::int_(3)));
    });
    m.def("of_accessor", [](const py::dict& d) {
        const py::detail::item_accessor item = d["a"];
        return py::object(item);
    });
    m.def("frozen", [](const py::frozenset& s) { return s.size(); });
    m.def("evaluated", [](const std::string& text, const py::dict& names) { return py::eval(text, names); });
    m.def("executed", [] {
        py::dict names;
        py::exec("\n    a = 3\n    b = a * 2\n", py::globals(), names);
        return names;
    });
    m.def("milliseconds", [](std::chrono::milliseconds d) { return d.count(); });
    m.def("seconds", [](double d) { return std::chrono::duration<double>(d); });
    m.def("nanoseconds", [](int64_t n) { return std::chrono::nanoseconds(n); });
    m.def("moment", [](int64_t n) { return Clock::time_point(microseconds(n)); });
    m.def("of_moment", [](Clock::time_point p) { return (p - Clock::time_point()) / microseconds(1); });
    m.def("since", [](std::chrono::steady_clock::time_point p) { return p + std::chrono::seconds(1); });
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.attr("defaults") = py::dict(py::arg("a") = 1, py::arg("b") = "two");
    m.attr("parts") = py::make_tuple(1, 2.5, "s", py::none(), true);
    m.add_object("pi", py::module_::import("math").attr("pi"));
    m.def("described", &described, py::arg("x"), py::arg("options") = py::dict());
    m.def("split", &split);
    m.def("applied", &applied);
    m.def("caught", &caught);
    m.def("swapped", [](const py::tuple& t) {
        return py::make_tuple(py::object(t[1]), py::object(t[0]), py::len(t), t.size(), t.empty());
    });
    m.def("tuple_of", [](const py::object& o) { return py::tuple(o); });
    m.def("list_of", [](const py::object& o) { return py::list(o); });
    m.def("dict_of", [](const py::object& o) { return py::dict(o); });
    m.def("set_of", [](const py::object& o) { return py::set(o); });
    m.def("function_of", [](const py::object& o) { return py::function(o); });
    m.def("numbers_of", [](const py::object& o) { return py::make_tuple(py::int_(o), py::float_(o), py::str(o)); });
    m.def("callback", [](const std::function<double(double)>& f, double x) { return f ? f(x) : -1; });
    m.def("in_order", [](const std::function<bool(torch::Tensor)>& f, std::vector<torch::Tensor> list) {
        return std::count_if(list.begin(), list.end(), f);
    });
    m.def("root", [](const py::object& x) { return py::module_::import("math").attr("sqrt")(x); });
    m.def("missing_module", [] { return py::module_::import("no_such_module_at_all"); });
    m.def(
        "many", [](int a, const py::args& rest, const py::kwargs& named) { return py::make_tuple(a, rest, named); },
        py::arg("a"));
    m.def("only_named", [](const py::kwargs& named) { return named; });
    m.def("only_rest", [](const py::args& rest) { return rest; });
    m.def(
        "behind", [](int a, const py::args& rest, int b) { return py::make_tuple(a, rest, b); }, py::arg("a"),
        py::arg("b") = 7);
    m.def("kind", [](const py::object& o) {
        return py::isinstance<py::str>(o)         ? "str"
               : py::isinstance<py::list>(o)      ? "list"
               : py::isinstance<py::dict>(o)      ? "dict"
               : py::isinstance<py::tuple>(o)     ? "tuple"
               : py::isinstance<torch::Tensor>(o) ? "tensor"
               : py::isinstance<py::function>(o)  ? "function"
               : py::isinstance<py::sequence>(o)  ? "sequence"
               : py::isinstance<py::bool_>(o)     ? "bool"
               : py::isinstance<py::int_>(o)      ? "int"
               : o.is_none()                      ? "none"
                                                  : "other";
    });
    m.def("is_a", [](const py::object& o, const py::type& t) { return py::isinstance(o, t); });
    m.def("type_of", [](const py::object& o) { return py::type::of(o); });
    m.def("attributes", [](const py::object& o) {
        o.attr("x") = 3;
        py::setattr(o, "y", py::str("set"));
        auto x = o.attr("x").cast<int>();
        return py::make_tuple(x, py::hasattr(o, "y"), py::hasattr(o, "z"), py::getattr(o, "z", py::int_(5)),
                              o.attr("y"), o.attr("__class__").attr("__name__"));
    });
    m.def("attribute", [](const py::object& o, const char* name) { return py::object(o.attr(name)); });
    m.def("item", [](const py::object& o, const py::object& key) { return py::object(o[key]); });
    m.def("set_item", [](const py::object& o, const py::object& key, double value) { o[key] = value; });
    m.def("filled", [](int n) {
        py::list l(n);
        py::tuple t(n);
        for (int i = 0; i < n; ++i) {
            l[i] = i * 1.5;
            t[i] = std::to_string(i);
        }
        l[0] = "again";
        return py::make_tuple(l, t);
    });
    m.def("past_the_end", [](py::list l) { l[l.size()] = 1; });
    m.def("number_at", [](const py::list& l, size_t i) { return l[i].cast<double>(); });
    m.def("sum_of", [](const py::iterable& values) {
        double sum = 0;
        for (auto value : values) {
            sum += py::cast<double>(value);
        }
        return sum;
    });
    m.def("joined", [](const py::sequence& values) {
        std::string text;
        for (size_t i = 0; i < values.size(); ++i) {
            text += py::cast<std::string>(py::str(values[i])) + ";";
        }
        return text;
    });
    m.def("compared", [](const py::object& a, const py::object& b) {
        return py::make_tuple(a.is(b), a.equal(b), a.not_equal(b), py::len(py::repr(a)) > 0);
    });
    m.def("formatted", [](double x) { return py::str("{:.2f} and {}").format(x, "more"); });
    m.def("grown", [](const py::object& o) {
        py::set s;
        s.add(1);
        s.add(o);
        py::dict d;
        d["k"] = s;
        const bool had = d.contains("k") && !d.contains("q");
        d.clear();
        return py::make_tuple(s.size(), had, d.empty(), s.contains(1));
    });
    m.def("kept", [](py::object o) {
        py::handle h = o.release();
        return py::reinterpret_steal<py::object>(h);
    });
    m.def("optional", [](const std::optional<py::dict>& d) { return d ? py::object(*d) : py::object(py::none()); });
    m.def("nested", [](const std::vector<py::dict>& list, const std::map<std::string, py::object>& map) {
        return list.size() + map.size();
    });
    further(m);
}

// Functions of every kind that a PYBIND11_MODULE can define in the facade. module_cases.py calls them.
#include <torch/extension.h>

using torch::Tensor;

static Tensor scaled(Tensor x, double by, int64_t times, bool negate) {
    for (int64_t i = 0; i < times; ++i) {
        x = x * by;
    }
    return negate ? -x : x;
}
static std::string kind(const std::string& what) {
    if (what == "check") {
        TORCH_CHECK(false, "a check of ", 3, " parts: ", at::kFloat);
    } else if (what == "plain check") {
        TORCH_CHECK(what.empty());
    } else if (what == "index") {
        TORCH_CHECK_INDEX(false, "an index");
    } else if (what == "value") {
        TORCH_CHECK_VALUE(false, "a value");
    } else if (what == "type") {
        TORCH_CHECK_TYPE(false, "a type");
    } else if (what == "not implemented") {
        TORCH_CHECK_NOT_IMPLEMENTED(false, "not implemented");
    } else if (what == "argument") {
        TORCH_CHECK_ARG(false, 2, "is wrong");
    } else if (what == "AT_ERROR") {
        AT_ERROR("an error of ", 2, " parts");
    } else if (what == "AT_ASSERTM") {
        AT_ASSERTM(what.empty(), "asserted");
    } else if (what == "dispatch") {
        AT_DISPATCH_FLOATING_TYPES(at::kInt, "my_kernel", [&] { return; });
    } else if (what == "runtime_error") {
        throw std::runtime_error("runtime");
    } else if (what == "out_of_range") {
        throw std::out_of_range("range");
    } else if (what == "invalid_argument") {
        throw std::invalid_argument("argument");
    } else if (what == "domain_error") {
        throw std::domain_error("domain");
    } else if (what == "overflow_error") {
        throw std::overflow_error("overflow");
    } else if (what == "length_error") {
        throw std::length_error("length");
    } else if (what == "bad_alloc") {
        throw std::bad_alloc();
    } else if (what == "py::value_error") {
        throw py::value_error("py value");
    } else if (what == "py::type_error") {
        throw py::type_error("py type");
    } else if (what == "py::index_error") {
        throw py::index_error("py index");
    } else if (what == "py::key_error") {
        throw py::key_error("py key");
    } else if (what == "c10::Error") {
        try {
            TORCH_CHECK(false, "caught");
        } catch (const c10::Error& e) {
            return std::string("caught ") + e.what_without_backtrace();
        }
    } else if (what == "number") {
        throw 3;
    }
    return "nothing";
}
static int64_t overloaded_int(int64_t) { return 1; }
static int64_t overloaded_double(double) { return 2; }
static int64_t overloaded_tensor(Tensor) { return 3; }

// Python's own values, and names of standard headers that torch's bring.
static py::str values(py::int_ n, py::float_ f, py::bool_ b, const py::str& s) {
    const int whole = n;
    const double real = f;
    std::queue<std::string> parts;
    parts.push(std::string(s) + std::to_string(whole) + (static_cast<bool>(b) ? "t" : "f"));
    return parts.front() + (isinf(real) ? "inf" : std::to_string(real));
}

struct AddOne : torch::autograd::Function<AddOne> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, Tensor x) {
        x.add_(1);
        ctx->mark_dirty({x});
        return x;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
        return {grads[0]};
    }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.doc() = "A module of functions.";
    m.attr("number") = 7;
    m.attr("label") = "seven";
    m.attr("whole") = py::int_(3);
    m.attr("half") = py::float_(0.5);
    m.attr("yes") = py::bool_(true);
    m.attr("word") = py::str("word");
    m.def("values", &values, py::arg("n"), py::arg("f") = py::float_(1.5), py::arg("b") = py::bool_(true),
          py::arg("s") = py::str("z"));
    m.def("scaled", &scaled, "Returns a multiple.", py::arg("x"), py::arg("by") = 2.0, py::arg("times") = 1,
          py::arg("negate") = false);
    m.def("kind", &kind);
    m.def("changed", [](Tensor x) { return AddOne::apply(x); });
    m.def("same", [](Tensor x) { return x; });
    m.def("nothing", [](const Tensor&) {});
    m.def("undefined", []() { return Tensor(); });
    m.def("defined", [](const std::optional<Tensor>& x) { return x.has_value() && x->defined(); });
    m.def("int32", [](int x) { return x; }, py::arg("x") = 3);
    m.def("int64", [](int64_t x) { return x; });
    m.def("uint8", [](uint8_t x) { return static_cast<int>(x); });
    m.def("uint64", [](uint64_t x) { return x; });
    m.def("real", [](double x) { return x; });
    m.def("single", [](float x) { return x; });
    m.def("flag", [](bool x) { return x; });
    m.def("text", [](const std::string& x) { return x + "!"; }, py::arg("x") = "default");
    m.def("exact", [](int64_t x) { return x; }, py::arg("x").noconvert());
    m.def("no_none", [](std::optional<int64_t> x) { return x; }, py::arg("x").none(false));
    m.def("optional", [](std::optional<int64_t> x) { return x; }, py::arg("x") = py::none());
    m.def("optional_text", [](std::optional<std::string> x) { return x; }, py::arg("x") = std::nullopt);
    m.def("sum", [](const std::vector<int64_t>& x) { return std::accumulate(x.begin(), x.end(), int64_t{0}); });
    m.def("nested", [](std::vector<std::vector<double>> x) { return x; });
    m.def("tensors", [](std::vector<Tensor> x) { return x; });
    m.def("table", [](std::map<std::string, int64_t> x) { return x; });
    m.def("pair", [](std::pair<int64_t, std::string> x) { return x; });
    m.def("tuple", [](Tensor x) { return std::make_tuple(x, int64_t{2}, std::string("three")); });
    m.def("three", [](std::array<int64_t, 3> x) { return x; });
    m.def("set", [](std::set<int64_t> x) { return static_cast<int64_t>(x.size()); });
    m.def("bytes", [](const std::string& x) { return py::bytes(x); });
    m.def("complex", [](c10::complex<double> x) { return x; });
    m.def("dtype", [](at::ScalarType x) { return x; });
    m.def("device", [](at::Device x) { return x; });
    m.def("sizes", [](at::IntArrayRef x) { return static_cast<int64_t>(x.size()); });
    m.def("overloaded", &overloaded_int, "An integer.", py::arg("x"));
    m.def("overloaded", &overloaded_double, py::arg("x"));
    m.def("overloaded", &overloaded_tensor, "A tensor.", py::arg("x"));
    m.def("keywords", [](int64_t a, int64_t b) { return a - b; }, py::arg("a"), py::kw_only(), py::arg("b") = 1);
    m.def("released", [](Tensor x) { return x + 1; }, py::call_guard<py::gil_scoped_release>());
    m.def("released_inside", [](Tensor x) {
        py::gil_scoped_release no_gil;
        return x + 1;
    });
    m.def("select", [](Tensor x, int64_t dim, int64_t i) { return x.select(dim, i); });
    m.def("size", [](Tensor x, int64_t dim) { return x.size(dim); });
    m.def("matmul", [](Tensor x, Tensor y) { return x.matmul(y); });
    m.def("row", [](Tensor x, int64_t i) { return x[i]; });
    m.def("item", [](Tensor x) { return x.item<double>(); });
    m.def("accessor", [](Tensor x) { return x.accessor<float, 2>()[0][1]; });
    m.def("pointer", [](Tensor x) { return *x.data_ptr<int64_t>(); });
}

// Names that sources of the field use beside operators. tests/compile/facade/test_names.py calls them.
namespace at {
class Tensor;  // as sources in CUDA declare it before they include a header
}
void declared_early(const at::Tensor& x, at::Tensor& y);
#include <torch/extension.h>

#include <ATen/AccumulateType.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <ATen/ceil_div.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/MathConstants.h>
#include <c10/util/MaybeOwned.h>
#include <torch/fft.h>
#include <torch/nn/functional/padding.h>
#include <torch/special.h>

#include <unordered_set>
#if !AT_PARALLEL_OPENMP || AT_PARALLEL_NATIVE
#error torch has other threads
#endif

using torch::Tensor;

static int64_t freed = 0;

static std::string text(const Tensor& x, const std::string& what) {
    C10_LOG_API_USAGE_ONCE("opforge.tests.checks");
    if (what == "equal") {
        TORCH_CHECK_EQ(x.dim(), 9);
    } else if (what == "greater") {
        TORCH_CHECK_GT(x.dim(), 1 + 1);
    } else if (what == "thrown") {
        C10_THROW_ERROR(ValueError, "thrown");
    } else if (what == "list") {
        TORCH_CHECK(false, "list ", std::vector<int64_t>{1, 2});
    } else if (what == "long list") {
        TORCH_CHECK(false, std::vector<int64_t>(102, 7));
    } else if (what == "type") {
        return x.toString();
    } else if (what == "options") {
        return c10::str(x.options());
    } else if (what == "own options") {
        return c10::str(at::TensorOptions(at::kHalf)
                            .device(at::kCUDA, 1)
                            .requires_grad(true)
                            .memory_format(at::MemoryFormat::ChannelsLast));
    } else if (what == "no options") {
        return c10::str(at::TensorOptions().pinned_memory(false));
    }
    return c10::str(x.layout(), " ", x.suggest_memory_format());
}
static Tensor owned(int64_t n) {
    auto* list = new std::vector<int64_t>(static_cast<size_t>(n), 7);
    const torch::Deleter release = [list](void* memory) {
        freed += memory == list->data() ? 1 : 100;
        delete list;
    };
    return torch::from_blob(list->data(), {n}, release, torch::kLong);
}
// Lists that are no tensor.
static Tensor ragged(int kind) {
    if (kind == 0) {
        return torch::tensor({{1, 2}, {3}});
    } else if (kind == 1) {
        return torch::tensor({{{1.5}, {2.}}, {{3.}}});
    } else if (kind == 2) {
        return torch::tensor({{{true}, {true, false}}, {{true}, {true}}});
    }
    return torch::tensor({{{{1}, {2}}, {{1}, {2}}}, {{{1}, {2}}}});
}
// What a caller gives beside the sizes, one by one.
static std::vector<Tensor> separately(const Tensor& x) {
    const auto o = x.options();
    return {
        at::zeros({2, 3}, at::kDouble, at::kStrided, at::kCPU, false),
        at::zeros({2}, c10::optTypeMetaToScalarType(o.dtype_opt()), o.layout_opt(), o.device_opt(),
                  o.pinned_memory_opt()),
        at::empty(x.sizes(), x.scalar_type(), x.layout(), x.device(), false, c10::MemoryFormat::Contiguous).fill_(1),
        at::full({2}, 3, x.scalar_type(), x.layout(), x.device(), false),
        at::zeros_like(x, at::kInt, at::kStrided, at::kCPU, false, c10::nullopt),
        at::arange(3, x.scalar_type(), x.layout(), x.device(), false)};
}
// Fails as torch's headers and operators do: both name a type as the dispatcher does.
static Tensor refused(const Tensor& x, std::string what) {
    const char* text = "a CPUFloatType and a SparseCUDALongType";
    TORCH_CHECK(what != "check", text);
    TORCH_CHECK_INDEX(what != "index", text);
    TORCH_CHECK_VALUE(what != "value", text);
    TORCH_CHECK_LINALG(what != "linalg", text);
    if (what == "own") {
        throw std::runtime_error(text);
    }
    return x;
}
static int64_t length(at::OptionalIntArrayRef list) { return list ? static_cast<int64_t>(list->size()) : -1; }

template <class T>
static std::string size_of() {
    return std::to_string(sizeof(T));
}
static std::string dispatched(const Tensor& x) {
    std::string r;
    AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND1(at::kHalf, x.scalar_type(), "dispatched",
                                                [&] { r += size_of<scalar_t>(); });
    AT_DISPATCH_FLOATING_TYPES_AND5(at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kComplexFloat, x.scalar_type(),
                                    "dispatched", [&] { r += size_of<scalar_t>(); });
    AT_DISPATCH_V2(x.scalar_type(), "dispatched", AT_WRAP([&] { r += size_of<scalar_t>(); }),
                   AT_EXPAND(AT_FLOATING_TYPES), AT_EXPAND(AT_COMPLEX_TYPES), at::kHalf);
    return r;
}
static std::vector<at::ScalarType> short_dtypes() {
    return {torch::kU8,  torch::kU16, torch::kU32, torch::kU64, torch::kI8, torch::kI16,
            torch::kI32, torch::kI64, torch::kF16, torch::kF32, torch::kF64};
}
// How many threads of a loop record what is computed.
static int64_t recording() {
    torch::NoGradGuard no_grad;
    std::atomic<int64_t> n = 0;
    at::parallel_for(0, 8, 1, [&](int64_t, int64_t) { n += at::GradMode::is_enabled(); });
    return n;
}

// backward fails, or returns a gradient for what is no tensor.
struct Fails : torch::autograd::Function<Fails> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, Tensor x, std::vector<Tensor> list, std::string what) {
        ctx->saved_data["what"] = what;
        return x * static_cast<int64_t>(list.size());
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list grads) {
        const std::string what = ctx->saved_data["what"].toStringRef();
        TORCH_CHECK(what != "error", what);
        TORCH_CHECK_INDEX(what != "index", what);
        TORCH_CHECK_VALUE(what != "value", what);
        TORCH_CHECK_TYPE(what != "type", what);
        TORCH_CHECK_NOT_IMPLEMENTED(what != "not implemented", what);
        TORCH_CHECK_LINALG(what != "linalg", what);
        if (what == "range") {
            throw std::out_of_range(what);
        }
        return {grads[0], what == "list" ? grads[0] : Tensor(), what == "text" ? grads[0] : Tensor()};
    }
};

// The gradient of x * y + z, from two tensors and one that is undefined.
struct Saves : torch::autograd::Function<Saves> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, Tensor x, Tensor y, Tensor z) {
        ctx->save_for_backward({x, Tensor(), y});
        return x * y + z;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list grads) {
        auto saved = ctx->get_saved_variables();
        TORCH_CHECK(saved.size() == 3 && !saved[1].defined(), "other tensors were saved");
        return {grads[0] * saved[2], grads[0] * saved[0], grads[0]};
    }
};
// Backward returns too few gradients.
struct Shapeless : torch::autograd::Function<Shapeless> {
    static Tensor forward(torch::autograd::AutogradContext*, Tensor x) { return x * 2; }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
        return {};
    }
};
// Elements by each kind of accessor, at the place [0, 1].
static std::vector<double> elements(const Tensor& x) {
    return {x.accessor<float, 2>()[0][1], x.packed_accessor32<float, 2>()[0][1], x.packed_accessor64<float, 2>()[0][1],
            x.generic_packed_accessor<float, 2>()[0][1]};
}
static int64_t index_size(const Tensor& x) {
    return AT_DISPATCH_INDEX_TYPES(x.scalar_type(), "index_size", [] { return static_cast<int64_t>(sizeof(index_t)); });
}

void declared_early(const Tensor& x, Tensor& y) { y = x + 1; }

namespace inner {
template <class T>
struct Doubles : torch::autograd::Function<Doubles<T>> {
    static Tensor forward(torch::autograd::AutogradContext*, Tensor x) { return x * 2; }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
        return {grads[0] * 2};
    }
};
}  // namespace inner

// A kernel, its derivative and its cast call their op again, each below a guard.
static Tensor scaled(const Tensor& x, c10::SymInt n) {
    static auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("facade_names::scaled", "").typed<decltype(scaled)>();
    return op.call(x, n);
}
struct Scaled : torch::autograd::Function<Scaled> {
    using List = torch::autograd::variable_list;
    static List forward(torch::autograd::AutogradContext* context, const Tensor& x, c10::SymInt n) {
        context->saved_data["n"] = n;
        context->saved_data["sizes"] = x.sym_sizes();
        at::AutoDispatchBelowADInplaceOrView guard;
        return {scaled(x, n)};
    }
    static List backward(torch::autograd::AutogradContext* context, List grads) {
        TORCH_CHECK(context->saved_data["sizes"].toList()[0].get().toSymInt() == grads[0].sym_size(0));
        return {scaled(grads[0], context->saved_data["n"].toSymInt()), Tensor()};
    }
};
TORCH_LIBRARY_IMPL(facade_names, Autograd, m) {
    m.impl("scaled", [](const Tensor& x, c10::SymInt n) { return Scaled::apply(x, n)[0]; });
}
TORCH_LIBRARY_IMPL(facade_names, Autocast, m) { m.impl("scaled", &scaled); }
TORCH_LIBRARY_IMPL(facade_names, AutocastCPU, m) {
    m.impl("scaled", [](const Tensor& x, c10::SymInt n) {
        c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCPU);
        return scaled(at::autocast::cached_cast(at::kFloat, x, at::kCPU), n);
    });
}
TORCH_LIBRARY_IMPL(facade_names, CPU, m) {
    m.impl("scaled", [](const Tensor& x, c10::SymInt n) { return x * n.guard_int(__FILE__, __LINE__); });
}
TORCH_LIBRARY_IMPL(facade_names, Meta, m) {
    m.impl("scaled", [](const Tensor& x, c10::SymInt) { return at::empty_like(x); });
}

TORCH_LIBRARY(facade_names, m) {
    m.set_python_module("facade_names.fakes", "//names");
    m.def("scaled(Tensor x, SymInt n) -> Tensor", {at::Tag::pt2_compliant_tag, at::Tag::pointwise});
    m.def("refused(Tensor x, str what) -> Tensor", &refused);
    m.def("length(int[]? list=None) -> int", &length);
    m.def("deduced", [](const Tensor& x, int64_t n) { return std::make_tuple(x * n, n); });
}

// What the stable ABI has no function for: Python's of torch, or those of libtorch by their symbols.
static void graph_and_settings(py::module_& m) {
    using torch::autograd::grad;
    m.def(
        "gradients",
        [](const Tensor& x, const Tensor& unused) {
            const Tensor y = (x * x * x).sum(), first = grad({y}, {x}, {}, true, true)[0];
            const auto some = grad({x * 2}, {x, unused}, {x}, c10::nullopt, false, true);
            (x * 3).sum().backward({}, c10::nullopt, false, at::TensorList({x}));
            torch::autograd::backward({x.sum()}, {});
            Tensor kept = x * 2;
            kept.retain_grad();
            kept.backward(torch::ones_like(kept));
            return std::vector<Tensor>{first, grad({first.sum()}, {x})[0], some[0], some[1], x.grad(), kept.grad()};
        },
        py::call_guard<py::gil_scoped_release>());
    m.def("gradient_error", [](const Tensor& x) -> std::string {
        try {
            grad({x}, {x});
        } catch (const c10::Error& e) {
            return e.what_without_backtrace();
        }
        return "";
    });
    m.def("gradient_in_parallel",
          [](const Tensor& x) { at::parallel_for(0, 1, 1, [&](int64_t, int64_t) { x.sum().backward(); }); });
    m.def("in_inference_mode", [](const Tensor& x) {
        c10::InferenceMode guard;
        const Tensor y = x * 2;
        c10::InferenceMode off(false);
        return std::make_tuple(y.is_inference(), (x * 2).is_inference(), c10::InferenceMode::is_enabled());
    });
    m.def("seeded", [](uint64_t seed) {
        torch::manual_seed(seed);
        return torch::rand({3});
    });
    m.def("with_threads", [](int n) {
        const int before = at::get_num_threads();
        at::set_num_threads(n);
        const int now = at::get_num_threads();
        at::set_num_threads(before);
        return std::make_tuple(now, at::get_num_interop_threads() > 0, at::intraop_default_num_threads() > 0);
    });
    m.def("built_with", [] {
        return std::make_tuple(at::hasMKL(), at::hasLAPACK(), at::hasOpenMP(), at::globalContext().hasMKLDNN(),
                               at::hasCUDA(), c10::get_default_dtype().toScalarType(), c10::pi<double>);
    });
    m.def("types_of_two", [](at::ScalarType a, at::ScalarType b) {
        return std::make_tuple(c10::promoteTypes(a, b), c10::canCast(a, b), c10::isSignedType(a));
    });
    m.def("special", [](const Tensor& x) {
        return std::vector<Tensor>{torch::special::expit(x), torch::special::logsumexp(x, {0}, true),
                                   torch::special::softmax(x, 0, torch::kFloat64), torch::special::polygamma(1, x)};
    });
    m.def("distinct", [](const std::vector<at::Device>& list) {
        return std::unordered_set<at::Device>(list.begin(), list.end()).size();
    });
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.attr("nothing") = static_cast<const char*>(nullptr);
    m.def("text", &text, py::arg("x"), py::arg("what") = "");
    m.def("owned", &owned);
    m.def("freed", [] { return freed; });
    m.def("ragged", &ragged);
    m.def("separately", &separately);
    m.def("refused", &refused);
    m.def("doubles", [](const Tensor& x) { return inner::Doubles<int>::apply(x); });
    m.def("length", &length, py::arg("list") = py::none());
    m.def("dispatched", &dispatched);
    m.def("short_dtypes", &short_dtypes);
    m.def("recording", &recording);
    m.def("whole", [](uint64_t n) { return py::make_tuple(py::int_(n), py::int_(n > 5), py::int_(-3)); });
    m.def("attribute", [](const py::object& o, const std::string& name) { return o.attr(name.c_str()); });
    m.def("entry", [](const py::dict& d) { return d["key"]; });
    m.def("iterated", [](const py::list& l) { return py::iter(l); });
    m.def("next", [](const py::iterator& i) { return py::object(i.attr("__next__")()); });
    m.def("without", [](const py::object& o, const py::str& name) {
        const bool before = py::hasattr(o, name);
        py::object was = py::getattr(o, name);
        py::delattr(o, "x");
        return py::make_tuple(before, was, py::hasattr(o, name));
    });
    m.def("begin_with_cuda", [] { at::globalContext().lazyInitCUDA(); });
    m.def("number", [](const Tensor& x) { return x.item(); });
    m.def("from_number", [](const at::Scalar& n) { return n.toDouble(); });
    m.def("null", [](const char* text) { return text == nullptr; }, py::arg("text") = nullptr);
    m.def("layout", [](at::Layout layout) { return layout; });
    m.def("format", [](at::MemoryFormat format) { return format; });
    m.def("alternative", [](std::variant<int64_t, double, std::string, std::vector<int64_t>> v) {
        return static_cast<int>(v.index());
    });
    m.def("either", [](bool first) -> std::variant<int64_t, std::string> {
        if (first) {
            return int64_t{3};
        }
        return std::string("three");
    });
    m.def("fails", [](Tensor x, std::vector<Tensor> list, std::string what) { return Fails::apply(x, list, what); });
    m.def("shapeless", [](Tensor x) { return Shapeless::apply(x); });
    m.def("saves", [](Tensor x, Tensor y, Tensor z) { return Saves::apply(x, y, z); });
    m.def("with_factors", [](const Tensor& a, const Tensor& x, const Tensor& y) { return at::addmm(a, x, y, 0.5, 2); });
    m.def("first", [](const Tensor& x) { return *x.data_ptr<float>(); });
    m.def("first_by_accessor", [](const Tensor& x) { return x.accessor<float, 1>()[0]; });
    m.def("kind", [](std::vector<int64_t>) { return "list"; });
    m.def("kind", [](std::map<std::string, int64_t>) { return "mapping"; });
    m.def("kind", [](py::int_) { return "number"; });
    m.def("numbers", [](std::vector<int64_t> numbers) { return numbers; });
    m.def("list_first", [](std::vector<int64_t>) { return "list"; });
    m.def("list_first", [](py::object) { return "object"; });
    m.def("parts_of_error", [](py::function f) -> py::object {
        try {
            f();
        } catch (const py::error_already_set& e) {
            return py::make_tuple(e.type(), e.value(), e.trace());
        }
        return py::none();
    });
    m.def("sums", [](const Tensor& x) {
        return std::make_tuple(x + x, x + 1, x + x.index({"...", torch::indexing::Slice(0, 1)}));
    });
    m.def("one_complex", [] { return torch::scalar_tensor(c10::complex<double>(1, 2), torch::kHalf); });
    m.def("elements", &elements);
    m.def("index_size", &index_size);
    m.def("copied", [](const Tensor& x, bool copy) { return x.to(x.scalar_type(), false, copy); });
    m.def("length_error", [] { throw std::length_error("length"); });
    m.def("sizes", [](const Tensor& x) { return x.sizes(); });
    m.def("joined", [](std::vector<Tensor> list) { return at::cat(list); });
    m.def("item", [](const Tensor& x) { return x.item<double>(); });
    m.def("early", [](const Tensor& x) {
        Tensor y;
        declared_early(x, y);
        return y;
    });
    m.def("at_least_one", [](at::Tensor out, const at::Tensor& x) { return at::ge_out(out, x, 1); });
    m.def("one_more", [](at::Tensor out, const at::Tensor& x) { return at::add_out(out, x, 1); });
    m.def("set", [](const Tensor& x, const Tensor& source, int kind) {
        return kind == 0 ? x.set_() : kind == 1 ? x.set_(source) : x.set_(source, 1, {2, 1}, {1, 1});
    });
    m.def("settings", [] {
        const auto& context = at::globalContext();
        return std::make_tuple(context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
                               context.deterministicCuDNN(), context.deterministicMkldnn(),
                               context.deterministicFillUninitializedMemory());
    });
    m.def("padded", [](const Tensor& x) { return at::replication_pad1d(x, {1, 1}); });
    m.def("is_dense", [](const Tensor& x) { return x.is_non_overlapping_and_dense(); });
    m.def("expected", [](const std::optional<const Tensor>& x) {
        c10::MaybeOwned<Tensor> given = at::borrow_from_optional_tensor(x ? std::optional<Tensor>(*x) : std::nullopt);
        return *given->expect_contiguous();
    });
    m.def("wide_types", [](at::ScalarType type) {
        static_assert(std::is_same_v<at::opmath_type<c10::Float8_e4m3fn>, float>);
        static_assert(std::is_same_v<at::acc_type<char, false>, int64_t>);
        return std::vector<std::string>{c10::toString(at::toOpMathType(type)),
                                        c10::toString(at::toAccumulateType(type, false)),
                                        c10::toString(at::toAccumulateType(type, at::kCUDA))};
    });
    m.def("rounded_up", [](int64_t a, int64_t b) { return std::pair(at::ceil_div(a, b), at::round_up(a, b)); });
    m.def("generator", [](std::optional<at::Generator> generator, uint64_t seed) {
        if (!generator) {
            return std::make_tuple(py::object(py::none()), uint64_t{0}, c10::Device("meta"));
        }
        const std::lock_guard<std::mutex> hold(generator->mutex());
        generator->set_current_seed(seed);
        return std::make_tuple(py::cast(*generator), generator->current_seed(), generator->device());
    });
    m.def("pointed", [](double x) {
        static double kept;
        kept = x;
        return std::vector<double*>{&kept, nullptr};
    });
    m.def("dispatched", [](const std::string& name, const Tensor& x) {  // as if each op took a number
        return c10::Dispatcher::singleton()
            .findSchemaOrThrow(name.c_str(), "")
            .typed<Tensor(const Tensor&, double)>()
            .call(x, 2.0);
    });
    m.def("hooked", [](const Tensor& x) {
        const Tensor y = x * 3;
        y.register_hook([](const Tensor& gradient) { return gradient * 2; });
        return y;
    });
    m.def("combined", [](const py::object& a, const py::object& b) {
        py::list all;
        all += py::make_tuple(a + b, a - b, a * b, a / b, a & b, a << b, -a, ~a);
        return all;
    });
    m.def("drawn", [](const Tensor& x, std::optional<at::Generator> generator) { return at::bernoulli(x, generator); });
    graph_and_settings(m);
}

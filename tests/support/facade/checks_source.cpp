// Checks, logs and small names that sources of the field use. tests/compile/facade/test_checks.py calls them.
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/utils/tensor_flatten.h>
#include <torch/extension.h>

#include <ATen/TensorUtils.h>
#include <ATen/div_rtn.h>

static void checked(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
    const at::TensorArg x(a, "x", 1), y(b, "y", 2);
    if (what == "types") {
        at::checkAllSameType("f", {x, y});
    } else if (what == "dtype") {
        at::checkScalarType("f", x, at::kLong);
    } else if (what == "sizes") {
        at::checkAllSameSize("f", {x, y});
    } else if (what == "elements") {
        at::checkAllSameNumel("f", {x, y});
    } else if (what == "GPUs") {
        at::checkAllSameGPU("f", {x, y});
    } else if (what == "dimensions") {
        at::checkSameDim("f", x, y);
    } else if (what == "range") {
        at::checkDimRange("f", x, 3, 5);
    } else if (what == "dtypes") {
        at::checkScalarTypes("f", x, {at::kFloat, at::kDouble});
    } else if (what == "device") {
        at::checkDeviceType("f", {a, b}, at::kCUDA);
    } else if (what == "layout") {
        at::checkLayout("f", {a, b}, at::kSparse);
    } else if (what == "size") {
        at::check_dim_size(a, 2, 1, 9);
    } else if (what == "determinism") {
        at::globalContext().alertNotDeterministic("put_");
    }
}
static void logged(bool fatal) {
    LOG(INFO) << "never seen";
    LOG(WARNING) << "warning " << 3;
    LOG_IF(ERROR, true) << "error";
    VLOG(1) << "never seen";
    CHECK(!fatal) << "text";
}
static int64_t quotient(int64_t x, int64_t y) { return div_rtn(x, y); }
static std::vector<at::Tensor> flattened(const at::Tensor& x) {
    const at::Tensor flat = torch::utils::flatten_dense_tensors({x, x * 2});
    std::vector<at::Tensor> all = torch::utils::unflatten_dense_tensors(flat, {x, x});
    all.push_back(flat);
    return all;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("checked", &checked);
    m.def("logged", &logged);
    m.def("quotient", &quotient);
    m.def("flattened", &flattened);
    m.def("increment_version", [](const at::Tensor& x) { torch::autograd::increment_version(x); });
    m.def("bytes_like", [](const at::Tensor& x) { return torch::zeros({2}, x.type().toScalarType(at::kByte)); });
    m.def("seed", [] { return at::default_rng_seed_val; });
}

// The same op by pybind and ATen's headers, as most extensions are written today. SLOPE is replaced to make an edit.
#include <torch/extension.h>

at::Tensor bench_relu(const at::Tensor& x) {
    TORCH_CHECK(x.scalar_type() == at::kFloat, "float32 expected");
    at::Tensor y = at::empty_like(x);
    const float* from = x.const_data_ptr<float>();
    float* to = y.mutable_data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] > 0 ? from[i] : from[i] * SLOPE;
    return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("bench_relu", &bench_relu); }

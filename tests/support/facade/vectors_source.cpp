// Vectors of the CPU as extensions use them. tests/compile/facade/test_vectors.py calls them.
#include <torch/extension.h>

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

using at::vec::Vectorized;

template <class T>
static void scale(const T* x, T* y, int64_t n, float by) {
    using Vec = Vectorized<T>;
    at::vec::map<T>([by](Vec v) { return v * Vec(static_cast<T>(by)) + Vec(static_cast<T>(1)); }, y, x, n);
}
static at::Tensor scaled(const at::Tensor& x, double by) {
    at::Tensor y = at::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "scaled", [&] {
        scale<scalar_t>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel(), static_cast<float>(by));
    });
    return y;
}
static at::Tensor exponential(const at::Tensor& x) {
    at::Tensor y = at::empty_like(x);
    at::vec::map<float>([](Vectorized<float> v) { return v.exp(); }, y.data_ptr<float>(), x.data_ptr<float>(),
                        x.numel());
    return y;
}
static double sum(const at::Tensor& x) {
    return at::vec::reduce_all<float>([](Vectorized<float>& a, Vectorized<float>& b) { return a + b; },
                                      x.data_ptr<float>(), x.numel());
}
static at::Tensor to_half(const at::Tensor& x) {
    at::Tensor y = at::empty_like(x, at::kBFloat16);
    at::vec::convert(x.data_ptr<float>(), y.data_ptr<at::BFloat16>(), x.numel());
    return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("scaled", &scaled);
    m.def("exponential", &exponential);
    m.def("sum", &sum);
    m.def("to_half", &to_half);
    m.def("lanes", [] { return Vectorized<float>::size(); });
    m.def("first_of", [](const at::Tensor& x) {
        float first[Vectorized<float>::size()];
        Vectorized<float>::loadu(x.data_ptr<float>(), 3).store(first);
        return std::make_tuple(first[0], first[1], first[2]);
    });
}

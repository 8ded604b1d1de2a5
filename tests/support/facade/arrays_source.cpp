// Functions with numpy's arrays, Python's buffers and capsules.
#include <torch/extension.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

static int freed = 0;

template <class A>
static py::tuple described(const A& a) {
    std::vector<py::ssize_t> shape(a.shape(), a.shape() + a.ndim()), strides(a.strides(), a.strides() + a.ndim());
    return py::make_tuple(shape, strides, a.size(), a.itemsize(), a.nbytes(), a.ndim(), a.writeable(), a.owndata(),
                          a.dtype(), std::string(1, a.dtype().kind()), a.dtype().num());
}
static py::tuple described_info(const py::buffer_info& info) {
    return py::make_tuple(info.shape, info.strides, info.size, info.itemsize, info.ndim, info.readonly, info.format,
                          info.item_type_is_equivalent_to<double>(), info.item_type_is_equivalent_to<int64_t>());
}
template <class T>
static T sum(const py::array_t<T>& a) {
    T total = 0;
    auto r = a.template unchecked<2>();
    for (py::ssize_t i = 0; i < r.shape(0); ++i) {
        for (py::ssize_t j = 0; j < r.shape(1); ++j) {
            total += r(i, j);
        }
    }
    return total;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    using Contiguous = py::array_t<double, py::array::c_style | py::array::forcecast>;
    using Fortran = py::array_t<float, py::array::f_style | py::array::forcecast>;
    m.def("any", [](const py::array& a) { return described(a); });
    m.def("doubles", [](const py::array_t<double>& a) { return py::make_tuple(described(a), a); });
    m.def("contiguous", [](const Contiguous& a) { return py::make_tuple(described(a), a); });
    m.def("fortran", [](const Fortran& a) { return described(a); });
    m.def("strict", [](const py::array_t<int>& a) { return described(a); }, py::arg("a").noconvert());
    m.def("overloaded", [](const py::array_t<int>& a) { return py::make_tuple("int", a.size()); });
    m.def("overloaded", [](const py::array_t<double>& a) { return py::make_tuple("double", a.size()); });
    m.def("bools", [](py::array_t<bool> a) { return a; });
    m.def("bytes_of", [](py::array_t<uint8_t> a) { return a; });
    m.def("complexes", [](py::array_t<std::complex<float>> a) { return a; });
    m.def("several", [](const std::vector<py::array>& list, std::optional<py::array_t<float>> o) {
        return py::make_tuple(list.size(), list, o ? o->size() : -1);
    });
    m.def("sum", &sum<double>);
    m.def("sum", &sum<int64_t>);
    m.def("at", [](const py::array_t<double>& a, int i, int j) { return a.at(i, j); });
    m.def("at_one", [](const py::array_t<double>& a, int i) { return a.at(i); });
    m.def("item_at", [](const py::array& a, int i, int j, int k) { return a.index_at(i, j, k) + a.offset_at(i); });
    m.def("axis", [](const py::array& a, int i) { return py::make_tuple(a.shape(i), a.strides(i)); });
    m.def("set", [](py::array_t<double> a, int i, double v) {
        a.mutable_at(i) = v;
        return a;
    });
    m.def("doubled", [](py::array_t<float>& a) {
        auto w = a.mutable_unchecked();
        for (py::ssize_t i = 0; i < a.shape(0); ++i) {
            w[i] *= 2;
        }
        return a;
    });
    m.def("three", [](const py::array_t<float>& a) { return a.unchecked<3>().ndim(); });
    m.def("made", [] {
        const double values[] = {1, 2, 3, 4, 5, 6};
        std::vector<int> shape{2, 3};
        py::array_t<double> empty, count(4), sizes({2, 2}), copied(shape, values), transposed({3, 2}, {8, 24}, values);
        py::array_t<float, py::array::f_style> fortran({2, 3});
        py::array typed(py::dtype("int16"), {2, 2}), counted(3, values);
        return py::make_tuple(empty, described(count), described(sizes), copied, transposed, described(fortran),
                              described(typed), counted, described(copied));
    });
    m.def("kept", [] {
        auto* values = new std::vector<float>{1, 2, 3};
        py::capsule owner(values, [](void* p) {
            ++freed;
            delete static_cast<std::vector<float>*>(p);
        });
        return py::array_t<float>({3}, {4}, values->data(), owner);
    });
    m.def("freed", [] { return freed; });
    m.def("part", [](py::array_t<double> a) { return py::array_t<double>({2}, {8}, a.data(1), a); });
    m.def("base", [](const py::array& a) { return a.base(); });
    m.def("nothing", [](int) {
        ++freed;
        return py::object();
    });
    m.def("nothing", [](double) { return py::object(py::str("double")); });
    m.def("nothings", [] { return std::vector<py::object>(1); });
    m.def("no_handle", [] { return py::handle(); });
    m.def("no_array", [] { return py::array_t<int>::ensure(py::str("text")); });
    m.def("squeezed", [](py::array a) { return a.squeeze(); });
    m.def("reshaped", [](py::array a, std::vector<py::ssize_t> shape) { return a.reshape(shape); });
    m.def("viewed", [](py::array a, const std::string& type) { return a.view(type); });
    m.def("resized", [](int n) {
        py::array_t<int> a(2);
        a.mutable_at(0) = 1;
        a.mutable_at(1) = 2;
        a.resize({n});
        return py::make_tuple(a.size(), a.at(1));
    });
    m.def("of_object", [](const py::object& o) { return py::array(o); });
    m.def("ensured", [](const py::object& o) {
        auto a = py::array_t<int>::ensure(o);
        return a ? py::object(a) : py::object(py::none());
    });
    m.def("kinds", [](const py::object& o) {
        return py::make_tuple(py::isinstance<py::array>(o), py::isinstance<py::array_t<double>>(o),
                              py::isinstance<py::buffer>(o), py::isinstance<py::capsule>(o));
    });
    m.def("dtypes", [] {
        return py::make_tuple(py::dtype::of<int>(), py::dtype::of<long long>(), py::dtype::of<unsigned long>(),
                              py::dtype::of<bool>(), py::dtype::of<std::complex<double>>(), py::dtype("f4"),
                              py::dtype::of<char>().itemsize(), py::dtype::of<float>().num());
    });
    m.def("named", [](const std::string& s) { return py::dtype(s).itemsize(); });
    m.def("same", [](const py::dtype& t) { return t; });
    m.def("info", [](const py::buffer& b) { return described_info(b.request()); });
    m.def("written", [](const py::buffer& b) {
        py::buffer_info info = b.request(true);
        static_cast<char*>(info.ptr)[0] = 'X';
        return info.size;
    });
    m.def("of_info", [](const py::buffer& b) { return py::array(b.request()); });
    m.def("own_info", [] {
        int values[] = {1, 2, 3, 4};
        return py::make_tuple(py::array(py::buffer_info(values, 4)),
                              py::array_t<int>(py::buffer_info(values, {2, 2}, {8, 4})));
    });
    m.def("bad_info",
          [](int n) { return py::buffer_info(nullptr, 4, py::format_descriptor<float>::format(), n, {2}, {4}).size; });
    m.def("capsule", [] { return py::capsule(&freed, "counter"); });
    m.def("counted", [](const py::capsule& c) { return py::make_tuple(*c.get_pointer<int>() == freed, c.name()); });
    m.def("from_tensor", [](torch::Tensor x) { return py::array_t<float>(x.sizes().vec(), x.data_ptr<float>()); });
    m.def("to_tensor", [](py::array_t<float, py::array::c_style> a) {
        return torch::from_blob(a.mutable_data(), {a.size()}, torch::kFloat).clone();
    });
    m.def("tensor_behind", [](const torch::Tensor* x, const int* n, const std::vector<double>* v) {
        return x->mul(*n).sum().item<double>() + v->back();
    });
}

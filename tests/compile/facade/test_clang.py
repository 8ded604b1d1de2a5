"""The facade compiled by clang, where it and gcc differ: Python's symbols, names of types, addresses of operators."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from facade import compiling
from facade.module_record import load

SOURCE = """#include <torch/extension.h>
struct Refused : std::runtime_error { using std::runtime_error::runtime_error; };
struct Pair { double x = 0, y = 0; };
enum class Side { Left, Right };
struct Counter { int64_t n = 0; Side side = Side::Left; };
namespace pybind11 { namespace detail {
template <> struct type_caster<Pair> {
    PYBIND11_TYPE_CASTER(Pair, const_name("Pair"));
    bool load(handle source, bool convert) {
        make_caster<std::vector<double>> list;
        if (!list.load(source, convert) || cast_op<std::vector<double>&>(list).size() != 2) return false;
        value = {cast_op<std::vector<double>&>(list)[0], cast_op<std::vector<double>&>(list)[1]};
        return true;
    }
    static handle cast(const Pair& pair, return_value_policy, handle) { return make_tuple(pair.x, pair.y).release(); }
};
} }
template <class T> struct Doubles : torch::autograd::Function<Doubles<T>> {
    static at::Tensor forward(torch::autograd::AutogradContext* ctx, at::Tensor x) {
        ctx->save_for_backward({x});
        return x * x;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list grads) {
        return {grads[0] * ctx->get_saved_variables()[0] * 2};
    }
};
at::Tensor scaled(const at::Tensor& x, double by, c10::optional<at::Tensor> more) {
    TORCH_CHECK_VALUE(by > 0, "by is ", by);
    at::Tensor y = at::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scaled", [&] {
        const auto* from = x.const_data_ptr<scalar_t>();
        auto* to = y.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, x.numel(), 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) to[i] = from[i] * static_cast<scalar_t>(by);
        });
    });
    return more ? y + *more : y;
}
TORCH_LIBRARY(facade_clang, m) { m.def("scaled(Tensor x, float by, Tensor? more=None) -> Tensor", &scaled); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    py::register_exception<Refused>(m, "RefusedError", PyExc_LookupError);
    py::enum_<Side>(m, "Side").value("Left", Side::Left).value("Right", Side::Right);
    py::class_<Counter> counter(m, "Counter");
    counter.def(py::init<>()).def_readwrite("n", &Counter::n).def_readwrite("side", &Counter::side);
    m.def("scaled", &scaled, py::arg("x"), py::arg("by") = 2.0, py::arg("more") = py::none());
    m.def("relu", static_cast<at::Tensor (*)(const at::Tensor&)>(&at::relu));
    m.def("doubles", [](at::Tensor x) { return Doubles<float>::apply(x); });
    m.def("swapped", [](const Pair& pair) { return Pair{pair.y, pair.x}; });
    m.def("sums", [](const std::map<std::string, std::vector<int64_t>>& lists) {
        std::map<std::string, int64_t> sums;
        for (const auto& [name, list] : lists) sums[name] = std::accumulate(list.begin(), list.end(), int64_t{0});
        return sums;
    });
    m.def("refused", [](int n) -> int { if (n) throw Refused("refused"); throw std::out_of_range("range"); });
    m.def("counted", [](Counter& counter) { return ++counter.n; });
}
"""


@pytest.mark.skipif(not shutil.which("clang++"), reason="clang++ is not installed: Debian has it in the package clang")
def test_a_library_that_clang_has_compiled_does_what_one_of_gcc_does(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text(SOURCE)
    target = tmp_path / "clang_op.so"
    given = compiling.command("facade", "clang_op", [tmp_path / "op.cpp"], target, ["-O0"])
    command = ["clang++", *(part for part in given[1:] if part != "-fno-gnu-unique")]  # a flag of gcc's
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[:3000]
    module = load(target, "clang_op")
    x = torch.arange(4.0) - 2
    assert torch.equal(module.scaled(x, 3), x * 3) and torch.equal(module.scaled(x, more=x), x * 3)
    assert torch.equal(torch.ops.facade_clang.scaled(x, 3.0), x * 3) and torch.equal(module.relu(x), x.relu())
    for call in (module.scaled, torch.ops.facade_clang.scaled):
        with pytest.raises(ValueError, match="by is -1"):
            call(x, -1.0)
    y = module.doubles(x.requires_grad_())
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * x)
    assert y.grad_fn.name() == "torch::autograd::CppNode<Doubles<float> >"
    assert module.swapped([1, 2]) == (2, 1) and module.sums({"a": (1, 2), "b": []}) == {"a": 3, "b": 0}
    with pytest.raises(module.RefusedError, match="refused") as raised:
        module.refused(1)
    assert isinstance(raised.value, LookupError)
    with pytest.raises(IndexError, match="range"):
        module.refused(0)
    counter = module.Counter()
    counter.side = module.Side.Right
    assert module.counted(counter) == 1 and counter.n == 1 and str(counter.side) == "Side.Right"
    with pytest.raises(TypeError, match=r"(?s)swapped\(\): incompatible function arguments.*\(arg0: Pair\) -> Pair"):
        module.swapped([1])
    exported = subprocess.run(["nm", "-D", "--defined-only", str(target)], capture_output=True, text=True, check=True)
    own = {line.split()[-1] for line in exported.stdout.splitlines() if "opforge" in line or "pybind11" in line}
    # friends of the standard library's classes stay visible, with the library's classes in their names
    assert {name for name in own if not name.startswith("_ZSt")} == {"opforge_facade_module"}

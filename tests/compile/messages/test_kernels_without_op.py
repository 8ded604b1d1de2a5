"""Kernels that are registered for no op: a warning when it was built, with the name that is meant."""

from __future__ import annotations

import pytest
from support import sample_ops

import opforge

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.usefixtures("precompiled")

SOURCE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor relu(Tensor x) { return x; }
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("relu(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) { m.impl("relu", TORCH_BOX(&relu)); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CUDA, m) { m.impl("relux", TORCH_BOX(&relu)); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@_, CUDA, m) { m.impl("relu", TORCH_BOX(&relu)); }
STABLE_TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("reluu", TORCH_BOX(&relu)); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, Meta, m) { m.impl("relu", TORCH_BOX(&relu)); }
STABLE_TORCH_LIBRARY_IMPL(another_library_of_later, CUDA, m) { m.impl("forward", TORCH_BOX(&relu)); }
"""
WRONG = [(7, "@NAME@::relux", "@NAME@::relu"), (8, "@NAME@_::relu", "@NAME@::relu"), (9, "aten::reluu", "aten::relu")]
"""The line of each kernel that has no op, the name that it is registered for, and the one that is meant."""


def test_the_op_with_a_similar_name_is_named_and_no_other_kernel_is_a_mistake(tmp_path, caplog):
    builder = sample_ops.op_from_source(tmp_path, SOURCE)
    name = builder.name
    builder().load()
    assert sorted(caplog.messages) == sorted(
        f"{name}: a kernel is registered for {function} ({tmp_path}/{name}.cpp:{line}), and no op has this name: it"
        f" is never called. Did you mean {near}?".replace("@NAME@", name)
        for line, function, near in WRONG
    )


@pytest.mark.parametrize(
    "include",
    [
        pytest.param("", id="no torch"),
        pytest.param(
            "#include <torch/library.h>\n", id="torch", marks=pytest.mark.long("compiles torch's headers for 14 s")
        ),
    ],
)
def test_an_op_without_a_function_is_a_warning_that_says_what_to_write(tmp_path, caplog, include):
    path = tmp_path / "empty.cpp"
    path.write_text(include + "int value() { return 7; }\n")
    opforge.load("empty", path)
    (message,) = caplog.messages
    assert message.startswith(
        "empty: it has no function: the library registers none in torch.ops.empty. Write a PYBIND11_MODULE("
    )
    assert message.endswith("or extern \"C\" before each of plain functions, which need no torch (abi='c')")

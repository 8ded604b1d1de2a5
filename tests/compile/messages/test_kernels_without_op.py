"""Kernels that are registered for no op: a warning when it was built, with the name that is meant."""

from __future__ import annotations

import pytest
from support import sample_ops

import opforge

torch = pytest.importorskip("torch", reason="pip install torch")
pytestmark = pytest.mark.usefixtures("not_optimized")

SOURCE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor relu(Tensor x) { return x; }
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("relu(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) { m.impl("relu", TORCH_BOX(&relu)); }
STABLE_TORCH_LIBRARY_IMPL(SPACE, CUDA, m) { m.impl("FUNCTION", TORCH_BOX(&relu)); }
"""


@pytest.mark.parametrize(
    ("space", "function", "near"),
    [("@NAME@", "relux", "@NAME@::relu"), ("@NAME@_", "relu", "@NAME@::relu"), ("aten", "reluu", "aten::relu")],
    ids=["name", "namespace", "aten"],
)
def test_the_op_with_a_similar_name_is_named(tmp_path, caplog, space, function, near):
    source = SOURCE.replace("SPACE", space).replace("FUNCTION", function)
    builder = sample_ops.op_from_source(tmp_path, source)
    name = builder.name
    builder().load()
    assert caplog.messages == [
        f"{name}: a kernel is registered for {space}::{function} ({tmp_path}/{name}.cpp:8), and no op has this name: it"
        f" is never called. Did you mean {near}?".replace("@NAME@", name)
    ]


@pytest.mark.parametrize(("space", "function"), [("@NAME@", "relu"), ("another_library_of_later", "forward")])
def test_a_kernel_of_an_op_or_for_a_later_library_is_no_mistake(tmp_path, caplog, space, function):
    source = SOURCE.replace("SPACE", space).replace("FUNCTION", function)
    sample_ops.op_from_source(tmp_path, source)().load()
    assert caplog.messages == []


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

"""Builders of small ops, with their sources."""

from __future__ import annotations

import itertools
import os
import sys
import types
from typing import Any

from support.text_files import write

_numbers = itertools.count()

FACADE_SOURCE = """\
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) {
  TORCH_CHECK(x.dim() == 1, "expected one dimension");
  return x + x;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice, "Twice the tensor.", py::arg("x")); }
"""
STABLE_SOURCE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor relu(const Tensor& x) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "relu: float32 expected");
  Tensor y = torch::stable::empty_like(x);
  const float* from = static_cast<const float*>(x.const_data_ptr());
  float* to = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] > 0 ? from[i] : 0;
  return y;
}
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("relu(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) { m.impl("relu", TORCH_BOX(&relu)); }
"""
STABLE_HEADERS = "#include <torch/csrc/stable/library.h>\n#include <torch/csrc/stable/tensor.h>\n"
"""The first lines of most sources on the stable ABI."""
EXPORT = 'extern "C" __attribute__((visibility("default")))'
PLAIN_SOURCE = f"""\
#include "value.h"
{EXPORT} int value() {{ return VALUE; }}
"""


def unique_name(stem: str = "op") -> str:
    """Returns a name that no op in this process has: what torch has registered stays until the process ends."""
    return f"{stem}_{os.getpid()}_{next(_numbers)}"


def builder_class(folder: Any, name: str, **attributes: Any) -> Any:
    """Returns an OpBuilder subclass that looks as if it were defined in a module inside `folder`."""
    from opforge.builders.base import OpBuilder

    # The same name in every process: the class's package is part of what a look-up is remembered by.
    module = types.ModuleType(f"sample_module_{next(_numbers)}")
    module.__file__ = os.path.join(str(folder), "ops.py")
    sys.modules[module.__name__] = module
    attributes = {"sources": [f"{name}.cpp"], **attributes}
    return type("TestedBuilder", (OpBuilder,), {"__module__": module.__name__, "name": name, **attributes})


def stable_op(folder: Any, name: str = "", **attributes: Any) -> Any:
    """Writes the source of a relu on the stable ABI, in a namespace of its own, and returns its builder class."""
    name = name or unique_name("relu")
    os.makedirs(folder, exist_ok=True)
    write(folder, f"{name}.cpp", STABLE_SOURCE.replace("@NAME@", name))
    return builder_class(folder, name, **attributes)


def op_from_source(folder: Any, source: str, **attributes: Any) -> Any:
    """Writes `source` with a unique name in place of @NAME@ and returns the builder class of that name."""
    name = unique_name("op")
    os.makedirs(folder, exist_ok=True)
    write(folder, f"{name}.cpp", source.replace("@NAME@", name))
    return builder_class(folder, name, **attributes)


def relu_fake(x: Any) -> Any:
    """Returns a tensor of the relu's shape and dtype: the fake kernel of `stable_op`."""
    import torch

    return torch.empty_like(x)


def plain_op(folder: Any, name: str = "plain", value: int = 1, source: str = PLAIN_SOURCE, **attributes: Any) -> Any:
    """Writes the source of a plain C op and returns its builder class.

    The op's function `value()` returns the number in `value.h`. It needs no torch.
    """
    os.makedirs(folder, exist_ok=True)
    write(folder, f"{name}.cpp", source)
    set_value(folder, value)
    return builder_class(folder, name, abi="c", **attributes)


def set_value(folder: Any, value: int) -> None:
    """Writes the `value.h` of a plain op."""
    write(folder, "value.h", f"#define VALUE {value}\n")

"""Projects of kernel packages: folders with kernel.toml or build.toml, small sources and Python."""

from __future__ import annotations

from typing import Any

from support.text_files import write

SOURCE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor scale(const Tensor& x) {
  Tensor y = torch::stable::empty_like(x);
  const float* from = static_cast<const float*>(x.const_data_ptr());
  float* to = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * @FACTOR@;
  return y;
}
Tensor meta(const Tensor& x) { return torch::stable::empty_like(x); }
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("scale(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CPU, m) { m.impl("scale", TORCH_BOX(&scale)); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, Meta, m) { m.impl("scale", TORCH_BOX(&meta)); }
"""
INIT = '''\
"""Scales."""

from ._ops import ops


def scale(x):
    """Returns x times the factor."""
    return ops.scale(x)
'''


def scale_project(folder: Any, name: str = "acme/scale", version: str = "2.3", factor: int = 2, **more: str) -> str:
    """Writes a project whose op multiplies by `factor`; returns its folder. `more` are further lines of kernel.toml."""
    short = name.rpartition("/")[2].replace("-", "_")
    source = SOURCE.replace("@NAME@", short).replace("@FACTOR@", str(factor))
    write(folder, "csrc/scale.cpp", source)
    write(folder, f"python/{short}/__init__.py", INIT)
    lines = [f'name = "{name}"', f'version = "{version}"', 'license = "Apache-2.0"', f'python = "python/{short}"']
    lines += [f"{field.replace('_', '-')} = {value}" for field, value in more.items() if not value.startswith("[[")]
    write(folder, "kernel.toml", "\n".join([*lines, "", "[op]", 'sources = ["csrc/scale.cpp"]', ""]))
    return str(folder)


def python_project(folder: Any, name: str = "acme/plain", version: str = "1", text: str = "VALUE = 1\n") -> str:
    """Writes a project without a library; returns its folder."""
    write(folder, "python/__init__.py", text)
    write(folder, "kernel.toml", f'name = "{name}"\nversion = "{version}"\nlicense = "MIT"\npython = "python"\n')
    return str(folder)


def hub_project(folder: Any, repository: str, text: str, depends: str = "") -> str:
    """Writes a kernel of the hub without a library; returns its folder. `depends` are entries of kernel-depends."""
    name = repository.rpartition("/")[2].lower()
    toml = f"""[general]
name = "{name}"
version = 1
edition = 5
license = "MIT"
backends = ["cpu"]
hub.repo-id = "{repository}"
kernel-depends = [{depends}]
[torch-noarch]
"""
    write(folder, "build.toml", toml)
    write(folder, f"torch-ext/{name}/__init__.py", text)
    return str(folder)

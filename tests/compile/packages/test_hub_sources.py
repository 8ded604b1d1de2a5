"""A kernel written for the hub's builder: packed from its build.toml, and loaded by the hub's own loader."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from support.paths import SOURCE_TREE
from support.text_files import write

import opforge
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import project

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]
HEADERS = os.path.join(SOURCE_TREE, "opforge", "ops", "csrc", "hub", "include")
"""What the sources of a hub kernel include."""
BINDING = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include "registration.h"
#include "torch_binding.h"

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("negate(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("negate", TORCH_BOX(&negate)); }
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""
"""As the hub's kernels write it: nothing follows the last line."""
KERNEL = """\
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#ifndef CPU_KERNEL
#error "the builder names the backend"
#endif
torch::stable::Tensor negate(const torch::stable::Tensor& x) {
  auto y = torch::stable::empty_like(x);
  const float* from = static_cast<const float*>(x.const_data_ptr());
  float* to = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = -from[i];
  return y;
}
"""
BUILD = """\
[general]
name = "negate"
version = 3
edition = 5
license = "Apache-2.0"
backends = ["cpu"]
hub.repo-id = "acme/negate"

[torch]
src = ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"]
stable-abi = "2.10"

[kernel.negate_cpu]
backend = "cpu"
depends = ["torch"]
src = ["negate_cpu/negate.cpp"]
"""
LOAD = """
import sys, pathlib, warnings
warnings.simplefilter("ignore")
import kernels, torch
module = kernels.get_local_kernel(pathlib.Path(sys.argv[1]), trust_remote_code=True)
print(module.negate(torch.ones(2)).tolist(), "opforge" in sys.modules)
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    write(folder, "build.toml", BUILD)
    write(folder, "negate_cpu/negate.cpp", KERNEL)
    write(folder, "torch-ext/torch_binding.cpp", BINDING)
    header = "#pragma once\n#include <torch/csrc/stable/tensor.h>\n"
    write(
        folder, "torch-ext/torch_binding.h", header + "torch::stable::Tensor negate(const torch::stable::Tensor& x);\n"
    )
    text = "from ._ops import ops\n\n\ndef negate(x):\n    return ops.negate(x)\n"
    write(folder, "torch-ext/negate/__init__.py", text)
    test = "import negate, torch\ndef test_it():\n    assert negate.negate(torch.ones(1)).tolist() == [-1]\n"
    write(folder, "tests/test_negate.py", test)
    variant, _source = pack(project.read(str(folder)), str(folder), Options(with_source=True))
    return folder, variant


def test_it_is_built_tried_and_written_in_the_hubs_form(out):
    _folder, variant = out
    assert (variant.checks["import"], variant.checks["tests"]) == ("passed", "passed: 1 passed")
    assert variant.label == f"torch-stable-abi210-cpu-{os.uname().machine}-linux"
    assert (variant.metadata.name, variant.metadata.version) == ("negate", 3)
    assert variant.metadata.opforge["name"] == "acme/negate"
    # The namespace of a hub kernel's ops is its name with digits of this very build: the metadata's id has both.
    assert variant.metadata.id.startswith("_negate_cpu_")


@pytest.mark.parametrize("end", ["", ";"])
def test_the_extension_is_registered_with_and_without_a_semicolon(tmp_path, end):
    text = f'#include "registration.h"\nREGISTER_EXTENSION(NAME){end}\nint after() {{ return 1; }}\n'
    source = write(tmp_path, "x.cpp", text)
    strict = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", HEADERS]
    done = subprocess.run([*strict, source], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_its_sources_are_built_where_no_variant_fits(out, monkeypatch):
    monkeypatch.setenv("OPFORGE_KERNELS", f"acme/negate={out[0]}/build/source-cpu")
    assert opforge.get_kernel("acme/negate").negate(torch.ones(1)).tolist() == [-1.0]


def test_the_hubs_own_loader_loads_it(out):
    python = os.environ.get("HUB_KERNELS_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("kernels") is None:
        pytest.skip("needs the hub's loader: pip install kernels==0.17.2, or HUB_KERNELS_PYTHON=python with it")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", LOAD, str(out[0])]
    done = subprocess.run(command, env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert done.stdout == "[-1.0, -1.0] False\n", done.stderr

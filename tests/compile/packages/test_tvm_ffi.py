"""A kernel for tvm-ffi: built from its build.toml, tried, and loaded here and by the hub's own loader."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from support.processes import forked_python
from support.text_files import write

import opforge
from opforge.packages.load import get_kernel as loading
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux"),
    pytest.mark.skipif(
        importlib.util.find_spec("tvm_ffi") is None, reason="not run: needs tvm-ffi: pip install apache-tvm-ffi"
    ),
]
BUILD = """\
[general]
name = "double"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cpu"]
python-depends = ["tvm-ffi"]
hub.repo-id = "acme/double"

[tvm-ffi]
src = ["tvm-ffi-ext/binding.cpp"]
cxx-flags = ["-DOF_THE_FRAMEWORK"]

[kernel.double_cpu]
backend = "cpu"
depends = []
cxx-flags = ["-DOF_THE_KERNEL=2"]
src = ["double_cpu/*.cpp"]
"""
BINDING = """\
#include <tvm/ffi/tvm_ffi.h>
#if !defined(OF_THE_FRAMEWORK) || !defined(CPU_KERNEL)
#error "the framework's flags are missing"
#endif
void twice(tvm::ffi::TensorView out, tvm::ffi::TensorView x);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(twice, twice);
"""
KERNEL = """\
#include <tvm/ffi/tvm_ffi.h>
void twice(tvm::ffi::TensorView out, tvm::ffi::TensorView x) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = OF_THE_KERNEL * from[i];
}
"""
INIT = """\
import torch
from ._ops import ops


def twice(x):
    out = torch.empty_like(x)
    ops.twice(out, x)
    return out
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tvm")
    write(folder, "build.toml", BUILD)
    write(folder, "tvm-ffi-ext/binding.cpp", BINDING)
    write(folder, "tvm-ffi-ext/double/__init__.py", INIT)
    write(folder, "double_cpu/double.cpp", KERNEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked_python.python())  # what tries it has imported torch already
        (variant,) = pack(reading.read(str(folder)), str(folder), Options())
    return folder, variant


def test_it_is_built_in_the_hubs_form(folder):
    variant = folder[1]
    assert variant.label.startswith("tvm-ffi0") and variant.label.endswith(f"-cpu-{os.uname().machine}-linux")
    assert variant.checks["import"] == "passed"
    assert variant.checks["schemas"] == "not run: its functions are not ops of torch"


def test_it_is_loaded_here(folder):
    loading.reset()
    assert opforge.get_local_kernel(folder[0]).twice(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_the_hubs_own_loader_loads_it(folder):
    if importlib.util.find_spec("kernels") is None:
        pytest.skip("not run: needs the hub's loader: pip install kernels==0.17.2")
    code = "import sys, pathlib, kernels, torch\nmodule = kernels.get_local_kernel(pathlib.Path(sys.argv[1]))\n"
    code += "print(module.twice(torch.ones(2)).tolist())\n"
    done = subprocess.run(
        [forked_python.python(), "-c", code, str(folder[0])], capture_output=True, text=True, timeout=250
    )
    assert done.stdout == "[2.0, 2.0]\n", done.stderr

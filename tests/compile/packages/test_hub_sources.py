"""A kernel written for the hub's builder: packed from its build.toml, and loaded by the hub's own loader."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from support.paths import SOURCE_TREE
from support.processes import forked_python
from support.text_files import write

from opforge.accelerator.target import Target
from opforge.builders.toolchains import sycl
from opforge.errors import PackError, SettingError
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

pytestmark = [pytest.mark.compile, pytest.mark.skipif(sys.platform != "linux", reason="packages are made on Linux")]
HEADERS = os.path.join(SOURCE_TREE, "opforge", "ops", "csrc", "hub", "include")
"""What the sources of a hub kernel include."""
BINDING = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include "registration.h"
#include "torch_binding.h"

static torch::stable::Tensor negated(const torch::stable::Tensor& x) {
  auto y = torch::stable::empty_like(x);
  negate(static_cast<const float*>(x.const_data_ptr()), static_cast<float*>(y.mutable_data_ptr()), x.numel());
  return y;
}
STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("negate(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("negate", TORCH_BOX(&negated)); }
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""
"""As the hub's kernels write it: nothing follows the last line."""
KERNEL = """\
#ifndef CPU_KERNEL
#error "the builder names the backend"
#endif
void negate(const float* from, float* to, long count) {
  for (long i = 0; i < count; ++i) to[i] = -from[i];
}
"""
BUILD = """\
[general]
name = "negate"
version = 3
edition = 5
license = "Apache-2.0"
backends = ["cpu", "metal", "rocm", "xpu"]
hub.repo-id = "acme/negate"

[torch]
src = ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"]
stable-abi = "2.10"

[kernel.negate_cpu]
backend = "cpu"
depends = ["torch"]
src = ["negate_cpu/negate.cpp"]

[kernel.negate_metal]
backend = "metal"
depends = ["torch", "metal-cpp"]
src = ["negate_cpu/negate.cpp"]

[kernel.negate_rocm]
backend = "rocm"
depends = ["torch"]
src = ["negate_cpu/negate.cpp"]

[kernel.negate_xpu]
backend = "xpu"
depends = ["torch", "sycl_tla"]
src = ["negate_cpu/negate.cpp"]
"""
"""It is for three backends that cannot be built here: without a compiler, an architecture, a library."""
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
    write(folder, "torch-ext/torch_binding.h", "#pragma once\nvoid negate(const float* from, float* to, long count);\n")
    text = "from ._ops import ops\n\n\ndef negate(x):\n    return ops.negate(x)\n"
    write(folder, "torch-ext/negate/__init__.py", text)
    test = "import negate, torch\ndef test_it():\n    assert negate.negate(torch.ones(1)).tolist() == [-1]\n"
    write(folder, "tests/test_negate.py", test)
    passed_over = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked_python.python())  # what tries it has imported torch already
        options = Options(with_source=True)
        variant, source = pack(reading.read(str(folder)), str(folder), options, pass_over=passed_over.append)
    return folder, variant, dict(passed_over), source


def test_it_is_built_tried_and_written_in_the_hubs_form(out):
    variant = out[1]
    assert (variant.checks["import"], variant.checks["tests"]) == ("passed", "passed: 1 passed")
    assert variant.label == f"torch-stable-abi210-cpu-{os.uname().machine}-linux"
    assert (variant.metadata.name, variant.metadata.version) == ("negate", 3)
    assert variant.metadata.opforge["name"] == "acme/negate"
    # The namespace of a hub kernel's ops is its name with digits of this very build: the metadata's id has both.
    assert variant.metadata.id.startswith("_negate_cpu_")


def test_its_sources_are_a_variant_that_is_built_by_its_import(out):
    source = out[3]
    assert (source.label, source.checks["import"]) == ("source-cpu", "passed")


def test_backends_that_cannot_be_built_here_are_passed_over_with_the_reason(out):
    folder, _variant, passed_over, _source = out
    assert passed_over == {
        "metal": "opforge builds for cpu, cuda, rocm, xpu",
        "rocm": "target='hip' cannot be used: expected its architecture, such as hip:gfx942, "
        "by --target or PYTORCH_ROCM_ARCH.",
        "xpu": f"{folder}/build.toml: kernel.negate_xpu: it depends on sycl_tla: name a folder or a wheel with its "
        'headers, --depend sycl_tla=PATH. Expected depends = ["torch"], or what --depend names.',
    }
    with pytest.raises(SettingError, match="expected its architecture"):
        pack(reading.read(str(folder)), str(folder), Options(targets=(Target.parse("hip"),)))


def test_a_kernel_that_can_be_built_for_none_of_its_backends_is_an_error_with_all_reasons(out, tmp_path, monkeypatch):
    shutil.copytree(out[0], tmp_path / "copy")
    monkeypatch.setattr(sycl, "which", lambda _program: None)
    text = BUILD.replace('"cpu", ', "").replace('"cpu"', '"rocm"').replace(', "sycl_tla"', "")
    write(tmp_path / "copy", "build.toml", text)
    with pytest.raises(PackError) as caught:
        pack(reading.read(str(tmp_path / "copy")), str(tmp_path / "copy"), Options())
    assert [line.strip(" -").partition(":")[0] for line in str(caught.value).splitlines()[1:4]] == [
        *("metal", "rocm", "xpu")
    ]
    assert "xpu: No SYCL compiler was found.\n" in str(caught.value)
    assert "Install what is missing, or name a --target" in str(caught.value)


@pytest.mark.parametrize("end", ["", ";"])
def test_the_extension_is_registered_with_and_without_a_semicolon(tmp_path, end):
    text = f'#include "registration.h"\nREGISTER_EXTENSION(NAME){end}\nint after() {{ return 1; }}\n'
    source = write(tmp_path, "x.cpp", text)
    strict = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", HEADERS]
    done = subprocess.run([*strict, source], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_hubs_own_loader_loads_it(out):
    python = os.environ.get("HUB_KERNELS_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("kernels") is None:
        pytest.skip("needs the hub's loader: pip install kernels==0.17.2, or HUB_KERNELS_PYTHON=python with it")
    if python == sys.executable:
        python = forked_python.python()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", LOAD, str(out[0])]
    done = subprocess.run(command, env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert done.stdout == "[-1.0, -1.0] False\n", done.stderr

"""Packages of libraries with plain functions: Triton ops and C functions, called without Triton and a compiler."""

from __future__ import annotations

import ctypes
import json
import os
import sys

import pytest
from support import child_processes
from support.gpu import triton_parts
from support.processes import forked_python
from support.text_files import write

from opforge.accelerator.target import Target
from opforge.errors import PackError
from opforge.packages.form import metadata
from opforge.packages.pack import plain
from opforge.packages.pack.run import Options, pack
from opforge.packages.sources import reading

pytestmark = [pytest.mark.compile]
BUILDER = f"""
from opforge.builders.triton import Kernel, TritonOpBuilder


class ScaleBuilder(TritonOpBuilder):
    name = "scale"
    python_functions = "scale.functions:bind"
    kernels = [
        Kernel(f"scale_{{block}}", "kernels.py", "scale", {triton_parts.ARGUMENTS!r}, {{"BLOCK": block}})
        for block in (512, 1024)
    ]
"""
TOML = """
name = "acme/scale"
version = "1.2"
license = "MIT"
builder = "builder:ScaleBuilder"
python = "scale"
targets = ["cuda:sm_80+sm_90"]
"""
LAUNCH = """
import importlib.util, os, sys
folder = os.environ["VARIANT"]
spec = importlib.util.spec_from_file_location("any_name", folder + "/__init__.py", submodule_search_locations=[folder])
module = sys.modules["any_name"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["any_name._ops"].ops.kernels.raw_stream = lambda device: 4242
module.scale(Tensor(4096), Tensor(8192), 0.5)
print("triton" in sys.modules)
"""


@pytest.fixture
def project(tmp_path, builds_are_shared):
    folder = tmp_path / "project"
    write(folder, "kernel.toml", TOML)
    write(folder, "builder.py", BUILDER)
    write(folder, "kernels.py", triton_parts.KERNELS)
    write(folder, "factor.py", triton_parts.FACTOR)
    write(folder, "scale/__init__.py", "from ._ops import ops\n\nscale = ops.scale\n")
    write(folder, "scale/functions.py", triton_parts.FUNCTIONS)
    return folder


def packed(folder, out, **options):
    return pack(reading.read(str(folder)), str(out), Options(**{"tried": False, **options}))


@triton_parts.needs_triton
def test_a_triton_op_is_launched_from_its_package_without_triton_and_a_compiler(project, cuda_driver, tmp_path):
    (variant,) = packed(project, tmp_path / "out")
    toolkit = plain.backend_version(reading.read(str(project)), Target.parse("cuda:sm_80")).replace(".", "")
    assert variant.label == f"torch-stable-abi210-cu{toolkit}-{os.uname().machine}-linux"
    assert metadata.read(variant.folder).archs == ("8.0", "9.0a"), "as Triton compiles for sm_90"
    path, mark = triton_parts.forbidden_compilers(tmp_path)
    log = tmp_path / "driver.log"
    env = {
        "PATH": path,
        "VARIANT": variant.folder,
        "LD_LIBRARY_PATH": cuda_driver,
        "FAKE_GPU_LOG": str(log),
        "FAKE_GPU_PARAMETERS": "6",
        "FAKE_GPU_CAPABILITY": "80",
    }
    code = triton_parts.WITHOUT_TRITON + triton_parts.TENSOR + LAUNCH
    output = child_processes.run_with_torch(code, env=env)
    assert output.strip() == "False" and not os.path.exists(mark)
    (launched,) = [line for line in log.read_text().splitlines() if line.startswith("cuLaunchKernel")]
    assert launched.endswith("4242 1000 2000 800 3f000000 0 0")


@triton_parts.needs_triton
def test_functions_outside_of_the_packages_python_are_refused(project, tmp_path):
    write(project, "builder.py", BUILDER.replace("scale.functions", "elsewhere.functions"))
    with pytest.raises(PackError) as caught:
        packed(project, tmp_path / "out")
    assert "python_functions is 'elsewhere.functions:bind', and the package's Python is 'scale'" in str(caught.value)
    assert "Name a module of it: scale.functions:bind" in str(caught.value)


def test_plain_functions_of_a_builder_alone_are_called_from_their_package(tmp_path, builds_are_shared, monkeypatch):
    source = 'extern "C" __attribute__((visibility("default"))) float half(float x) { return x / 2; }\n'
    write(tmp_path, "half_of.cpp", source)
    write(tmp_path, "half_functions.py", "def bind(op):\n    return {'quarter': lambda x: op.half(op.half(x))}\n")
    builder = (
        "import ctypes\nfrom opforge import OpBuilder\n\n\nclass HalfBuilder(OpBuilder):\n    name = 'half'\n"
        "    abi = 'c'\n    sources = ['half_of.cpp']\n    python_functions = 'half_functions:bind'\n"
        "    signatures = {'half': (ctypes.c_float, [ctypes.c_float])}\n"
    )
    write(tmp_path, "half_builder.py", builder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    project = reading.read("half_builder:HalfBuilder", "acme/half", "1")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", forked_python.python())  # what tries it has imported torch already
        (variant,) = pack(project, str(tmp_path / "out"), Options())
    assert variant.checks["import"] == "passed", variant.checks
    assert variant.checks["schemas"] == "not run: its functions are not ops of torch"
    code = (
        "import json, opforge\n"
        "op = opforge.get_kernel('acme/half')\n"
        "print(json.dumps([op.half(3.0), op.quarter(3.0)]))\n"
    )
    output = child_processes.run_with_torch(code, env={"OPFORGE_KERNELS": f"acme/half={variant.folder}"})
    assert json.loads(output) == [1.5, 0.75]


def test_a_type_that_cannot_be_written_down_is_refused(tmp_path, builds_are_shared, monkeypatch):
    class Own(ctypes.Structure):
        pass

    write(tmp_path, "own.cpp", 'extern "C" __attribute__((visibility("default"))) void own(void*) {}\n')
    from opforge import OpBuilder

    builder = type(
        "OwnBuilder",
        (OpBuilder,),
        {
            "name": "own",
            "abi": "c",
            "sources": ["own.cpp"],
            "folder": str(tmp_path),
            "signatures": {"own": (None, [Own])},
        },
    )
    project = reading.read(str(_toml(tmp_path)))._replace(builder=lambda target, portable: builder(target))
    with pytest.raises(
        PackError, match=r"the signature of 'own' has .*Own'>, which a package cannot hold\nUse a type of ctypes"
    ):
        pack(project, str(tmp_path / "out"), Options(tried=False))


def _toml(folder):
    text = 'name = "acme/own"\nversion = 1\nlicense = "MIT"\n[op]\nsources = ["own.cpp"]\nabi = "c"\n'
    write(folder, "kernel.toml", text)
    return folder


def test_a_variant_that_was_packed_from_another_source_is_removed(tmp_path, builds_are_shared):
    """It is for a better level of the processor: a checkout that is loaded would take it."""
    folder = tmp_path / "project"
    signature = "{'triple': (ctypes.c_int, [ctypes.c_int])}"
    op = f"    name, sources, abi, signatures = 'triple', ['triple.cpp'], 'c', {signature}\n"
    write(folder, "builder.py", f"import ctypes\nfrom opforge import OpBuilder\nclass TripleBuilder(OpBuilder):\n{op}")
    lines = ['name = "acme/triple"', 'version = "1"', 'license = "MIT"', 'builder = "builder:TripleBuilder"']
    write(folder, "kernel.toml", "\n".join(lines))
    write(folder, "triple.cpp", 'extern "C" int triple(int x) { return 2 * x; }\n')
    levels = [(Target.parse(f"cpu:{level}"),) for level in ("x86-64", "x86-64-v2")]
    old = [packed(folder, tmp_path, targets=level)[0] for level in levels]
    assert sorted(os.listdir(tmp_path / "build")) == ["checks.json", *sorted(variant.label for variant in old)]
    write(folder, "triple.cpp", 'extern "C" int triple(int x) { return 3 * x; }\n')
    (variant,) = packed(folder, tmp_path, targets=levels[0])
    assert sorted(os.listdir(tmp_path / "build")) == ["checks.json", variant.label]

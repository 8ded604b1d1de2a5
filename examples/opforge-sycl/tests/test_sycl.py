"""The installed package: its builders are found, report a missing compiler, and the kernel computes correct results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import opforge_sycl
import pytest
from opforge_sycl.builders.softmax import SYCLSoftmaxBuilder

from opforge.errors import SourceNotFoundError
from opforge.ops.cases import Case
from opforge.testing import OpContract

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_ICPX = "/opt/intel/oneapi/compiler/latest/bin/icpx"
PACKAGE = os.path.dirname(os.path.abspath(opforge_sycl.__file__))
RUN = """
import ctypes, os, sys
import torch
import opforge
prefix, package, source = sys.argv[1:]
op = opforge.load(
    "run_time_softmax", [source], abi="c",
    extra_cflags=["-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING"],
    extra_include_paths=[f"{prefix}/include"],
    extra_ldflags=[f"-L{prefix}/lib", "-lsycl"],
    signatures={"softmax": (ctypes.c_char_p, [ctypes.c_char_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2])},
)
with open(f"{package}/csrc/includes/opforge_sycl/softmax.hpp", "rb") as file:
    header = file.read()
for rows, columns in ((1, 1), (3, 63), (5, 1000), (2, 4096)):
    x = torch.randn(rows, columns) * 10
    y = torch.empty_like(x)
    result = op.softmax(header, x.data_ptr(), y.data_ptr(), rows, columns).decode()
    assert not result.startswith("!"), result
    torch.testing.assert_close(y.double(), x.double().softmax(-1), rtol=1e-5, atol=1e-7)
print(result)
"""


SOFTMAX = Case(
    "softmax",
    lambda place: (10 * place.draw(*place.shape),),
    "softmax",
    reference=lambda x: x.softmax(-1),
    shapes=((1, 1), (3, 63), (5, 1000), (0, 5)),
    tolerance=1e-5,
    strided=False,
    opcheck=("test_schema",),  # the op has no fake kernel
    compiled=False,
)


class TestSoftmaxContract(OpContract):
    builder, cases = SYCLSoftmaxBuilder, (SOFTMAX,)
    device = "xpu"


def build_ops(*arguments, **variables):
    code = "import sys; from opforge.cli import build_ops; sys.argv[0] = 'build-ops'; build_ops()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)


def test_the_builder_is_offered_to_the_xpu_accelerator():
    process = build_ops("--list", "--json", "--target", "xpu")
    assert {"name": "SYCLSoftmaxBuilder", "accelerator": "xpu"} in json.loads(process.stdout), process.stderr


def test_the_error_without_a_compiler_lists_where_it_was_searched_and_what_to_install(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("g++", "ld", "as"):
        if shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    if os.path.exists(DEFAULT_ICPX):
        pytest.skip("icpx is installed in its default folder, which is always searched")
    variables = {"PATH": str(tmp_path / "bin"), "CMPLR_ROOT": "", "ONEAPI_ROOT": ""}
    process = build_ops("SYCLSoftmax", "--target", "xpu", **variables)
    assert process.returncode == 1
    searched = "  - CMPLR_ROOT\n  - ONEAPI_ROOT\n  - icpx on PATH"
    assert f"No SYCL compiler was found. Looked for:\n{searched}" in process.stderr
    assert "Install Intel's oneAPI DPC++/C++ compiler" in process.stderr


def test_the_op_is_incompatible_with_another_device():
    assert SYCLSoftmaxBuilder("cpu").is_compatible().reasons == ("it is an op for xpu, not for cpu",)


def test_sources_are_read_from_the_installed_package():
    builder = SYCLSoftmaxBuilder("xpu")
    assert builder.sources == [os.path.join(PACKAGE, "csrc", name) for name in ("softmax.cpp", "softmax.sycl")]
    assert builder.spec().include_dirs == ("csrc/includes",)  # what all builders of the package have in common
    assert builder.sycl_kernel_include("csrc/includes") == os.path.join(PACKAGE, "csrc", "includes")
    roots = {root.name: root.path for root in builder.spec().roots}
    assert roots["sycl:opforge_sycl"] == PACKAGE


def test_the_error_of_a_missing_kernel_names_the_folder():
    with pytest.raises(SourceNotFoundError) as error:
        SYCLSoftmaxBuilder.sycl_kernel_path("csrc/no_such.sycl")
    assert f"names 'csrc/no_such.sycl', which does not exist. Looked in:\n  - {PACKAGE}\n" in str(error.value)


def test_the_op_builds_with_icpx(tmp_path):
    if not (shutil.which("icpx") or os.path.exists(DEFAULT_ICPX)):
        pytest.skip("icpx is not here: source the setvars.sh of Intel's oneAPI")
    process = build_ops("SYCLSoftmax", "--target", "xpu", "--out", str(tmp_path / "layer"))
    assert process.returncode == 0, process.stderr


def test_the_kernel_computes_a_softmax_on_intels_cpu_driver(tmp_path):
    prefix = os.environ.get("OPFORGE_TEST_SYCL")
    if not prefix:
        pytest.skip("set OPFORGE_TEST_SYCL to a virtual environment with dpcpp-cpp-rt in it (1.7 GB)")
    variables = {
        "LD_LIBRARY_PATH": f"{prefix}/lib",
        "OCL_ICD_FILENAMES": f"{prefix}/lib/libintelocl.so",
        "ONEAPI_DEVICE_SELECTOR": "opencl:cpu",
    }
    source = os.path.join(HERE, "run_time.cpp")
    command = [sys.executable, "-c", RUN, prefix, PACKAGE, source]
    process = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert process.returncode == 0 and process.stdout.strip(), process.stderr


def test_the_launch_compiles_with_the_headers_of_sycl(tmp_path):
    prefix = os.environ.get("OPFORGE_TEST_SYCL")
    if not prefix:
        pytest.skip("set OPFORGE_TEST_SYCL to a virtual environment with dpcpp-cpp-rt in it (1.7 GB)")
    process = subprocess.run(
        [
            *("g++", "-std=c++17", "-fsyntax-only", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-I{prefix}/include"),
            *(f"-I{PACKAGE}/csrc/includes", "-x", "c++", f"{PACKAGE}/csrc/softmax.sycl"),
        ],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr

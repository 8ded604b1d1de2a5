"""The package as it is installed: its builders are found, say what they lack, and the kernel is right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import opforge_sycl
import pytest
from opforge_sycl.builders.softmax import SYCLSoftmaxBuilder

from opforge.builders.spec.description import describe
from opforge.errors import SourceNotFoundError

HERE = os.path.dirname(os.path.abspath(__file__))
ALWAYS = "/opt/intel/oneapi/compiler/latest/bin/icpx"
PACKAGE = os.path.dirname(os.path.abspath(opforge_sycl.__file__))
RUN = """
import ctypes, os, sys
import torch
import opforge
from opforge.builders.spec.description import describe
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
    told = op.softmax(header, x.data_ptr(), y.data_ptr(), rows, columns).decode()
    assert not told.startswith("!"), told
    torch.testing.assert_close(y.double(), x.double().softmax(-1), rtol=1e-5, atol=1e-7)
print(told)
"""


def build_ops(*arguments, **changes):
    code = "import sys; from opforge.cli import build_ops; sys.argv[0] = 'build-ops'; build_ops()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True)


def test_the_builder_is_offered_to_the_xpu_accelerator():
    listed = build_ops("--list", "--json", "--target", "xpu")
    assert {"name": "SYCLSoftmaxBuilder", "accelerator": "xpu"} in json.loads(listed.stdout), listed.stderr


def test_without_a_compiler_it_says_where_it_looked_and_what_to_install(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("g++", "ld", "as"):
        if shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    if os.path.exists(ALWAYS):
        pytest.skip("icpx is installed where it is always looked for")
    bare = {"PATH": str(tmp_path / "bin"), "CMPLR_ROOT": "", "ONEAPI_ROOT": ""}
    told = build_ops("SYCLSoftmax", "--target", "xpu", **bare)
    assert told.returncode == 1
    assert "No SYCL compiler was found. Looked for:\n  - CMPLR_ROOT\n  - ONEAPI_ROOT\n  - icpx on PATH" in told.stderr
    assert "Install Intel's oneAPI DPC++/C++ compiler" in told.stderr


def test_it_is_no_op_for_another_device():
    assert SYCLSoftmaxBuilder("cpu").is_compatible().reasons == ("it is an op for xpu, not for cpu",)


def test_its_sources_are_read_where_they_are_installed():
    builder = SYCLSoftmaxBuilder("xpu")
    assert builder.sources == [os.path.join(PACKAGE, "csrc", name) for name in ("softmax.cpp", "softmax.sycl")]
    assert builder.include_dirs == [os.path.join(PACKAGE, "csrc", "includes")]
    described = describe(builder.spec())
    assert [(root, path) for root, path, _ in described.sources] == [
        ("sycl:opforge_sycl", "csrc/softmax.cpp"),
        ("sycl:opforge_sycl", "csrc/softmax.sycl"),
    ]


def test_a_kernel_that_is_not_there_is_named_with_the_folder():
    with pytest.raises(SourceNotFoundError) as refused:
        SYCLSoftmaxBuilder.sycl_kernel_path("csrc/no_such.sycl")
    assert f"names 'csrc/no_such.sycl', which does not exist. Looked in:\n  - {PACKAGE}\n" in str(refused.value)


def test_it_builds_with_icpx(tmp_path):
    if not (shutil.which("icpx") or os.path.exists(ALWAYS)):
        pytest.skip("icpx is not here: source the setvars.sh of Intel's oneAPI")
    built = build_ops("SYCLSoftmax", "--target", "xpu", "--out", str(tmp_path / "layer"))
    assert built.returncode == 0, built.stderr


def test_the_kernel_is_right_on_intels_cpu_driver(tmp_path):
    prefix = os.environ.get("OPFORGE_TEST_SYCL")
    if not prefix:
        pytest.skip("set OPFORGE_TEST_SYCL to a virtual environment with dpcpp-cpp-rt in it (1.7 GB)")
    chosen = {
        "LD_LIBRARY_PATH": f"{prefix}/lib",
        "OCL_ICD_FILENAMES": f"{prefix}/lib/libintelocl.so",
        "ONEAPI_DEVICE_SELECTOR": "opencl:cpu",
    }
    source = os.path.join(HERE, "run_time.cpp")
    command = [sys.executable, "-c", RUN, prefix, PACKAGE, source]
    told = subprocess.run(command, env={**os.environ, **chosen}, capture_output=True, text=True)
    assert told.returncode == 0 and told.stdout.strip(), told.stderr


def test_the_launch_is_what_syclhpp_takes(tmp_path):
    prefix = os.environ.get("OPFORGE_TEST_SYCL")
    if not prefix:
        pytest.skip("set OPFORGE_TEST_SYCL to a virtual environment with dpcpp-cpp-rt in it (1.7 GB)")
    checked = subprocess.run(
        [
            *("g++", "-std=c++17", "-fsyntax-only", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-I{prefix}/include"),
            *(f"-I{PACKAGE}/csrc/includes", "-x", "c++", f"{PACKAGE}/csrc/softmax.sycl"),
        ],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr

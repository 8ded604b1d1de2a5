"""Libraries stand in for NVIDIA's, as `make matrix --stand-ins` makes them: over small libraries in torch's place."""

from __future__ import annotations

import ctypes
import os
import subprocess

import pytest
from support import scripts

NO_DEVICE = 100
VERSION = "libcublas_alone.so.13"
"""cuBLAS gives its functions a version of its own name. No name here is one that the process may have."""


@pytest.fixture(scope="module")
def stand_ins():
    """The script .ci/stand_ins.py, as a module."""
    return scripts.load(".ci/stand_ins.py")


def library(path, source, *options):
    """Builds a library from C functions, of any machine that a compiler is for."""
    flags = ["-xc", "-w", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{path.name}", "-Wl,-rpath,$ORIGIN"]
    command = ["g++", *flags, "-", "-o", str(path), *[f"-Wl,{option}" for option in options]]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return str(path)


def test_a_library_loads_without_nvidias_and_each_of_their_functions_says_no_device(stand_ins, tmp_path):
    torch, runtime, real = tmp_path / "torch" / "lib", tmp_path / "nvidia" / "cu13" / "lib", tmp_path / "real"
    for folder in (torch, runtime, real):
        folder.mkdir(parents=True)
    script = tmp_path / "version.map"
    script.write_text(f"{VERSION} {{ global: *; }};\n")
    cublas = library(real / VERSION, "int cublasAlone() { return 0; }", f"--version-script={script}")
    nccl = library(real / "libnccl_alone.so.2", "int ncclAlone() { return 0; }")
    driver = library(real / "libcuda.so.1", "int cuInit() { return 0; }")
    cudart = library(runtime / "libcudart_alone.so.13", "int cudaAlone() { return 7; }")
    calls = {"cublasAlone": NO_DEVICE, "ncclAlone": NO_DEVICE, "nvOfTorch": 5, "cudaAlone": 7}
    source = "".join(f"int {name}(); int call_{name}() {{ return {name}(); }}\n" for name in calls)
    own = library(torch / "libc10_alone.so", "int nvOfTorch() { return 5; }")
    rpath = f"-rpath={runtime}"
    whole = library(torch / "libtorch_alone.so", source, cublas, nccl, cudart, own, rpath)
    library(torch / "libdriver.so", "int cuInit(); int call() { return cuInit(); }", driver)

    made = stand_ins.make(str(torch), str(tmp_path / "nvidia"))
    assert made == [VERSION, "libnccl_alone.so.2"], "neither the runtime, which is real, nor the driver"
    assert sorted(os.listdir(torch)) == [
        "libc10_alone.so",
        VERSION,
        "libdriver.so",
        "libnccl_alone.so.2",
        "libtorch_alone.so",
    ]
    loaded = ctypes.CDLL(whole, mode=os.RTLD_NOW)
    assert {name: loaded[f"call_{name}"]() for name in calls} == calls
    assert stand_ins.make(str(torch), str(tmp_path / "nvidia")) == [], "they are there"


def test_of_nvidias_packages_a_torch_keeps_the_runtime_alone(stand_ins, tmp_path):
    linux = 'platform_system == "Linux"'
    lines = [
        "Name: torch",
        "Requires-Dist: filelock",
        f"Requires-Dist: nvidia-cudnn-cu13==9.1; {linux}",
        f"Requires-Dist: nvidia-cuda-runtime-cu12==12.8; {linux}",
        f"Requires-Dist: cuda-toolkit[cublas,cudart]==13.0; {linux}",
        "",
        "Requires-Dist of the text: nvidia-none",
    ]
    kept = [*lines[:2], lines[3], f"Requires-Dist: cuda-toolkit[cudart]==13.0; {linux}", *lines[5:]]
    metadata = tmp_path / "METADATA"
    metadata.write_text("\n".join(lines))
    stand_ins.spare_requirements(str(metadata))
    assert metadata.read_text().split("\n") == kept

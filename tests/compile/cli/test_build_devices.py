"""`build-ops` for a device that is not here and for the CPU, in one run."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support import child_processes, sample_ops, text_files
from support.build_output import states

MODULE = """\
from opforge import OpBuilder

class Host(OpBuilder):
    name, sources, abi = "host", ["host.cpp"], "c"

class Device(OpBuilder):
    name, sources, abi, devices = "device", ["device.cu"], "c", ("cuda",)
"""
DEVICE = """\
__global__ void add(float* x) { x[threadIdx.x] += 1; }
extern "C" __attribute__((visibility("default"))) int launch(float* x) {
  add<<<1, 32>>>(x);
  return cudaGetLastError();
}
"""
run = child_processes.run_command_with_torch
pytestmark = pytest.mark.skipif(
    not (shutil.which("nvcc") or os.access("/usr/local/cuda/bin/nvcc", os.X_OK)),
    reason="needs nvcc (apt install nvidia-cuda-toolkit, or pip install nvidia-cuda-nvcc)",
)


@pytest.fixture
def ops_folder(tmp_path, monkeypatch):
    """The working folder, with a module of one op for the CPU and one for CUDA."""
    folder = tmp_path / "work"
    folder.mkdir()
    text_files.write(folder, "devops.py", MODULE)
    text_files.write(folder, "host.cpp", sample_ops.EXPORT + " int value() { return 1; }\n")
    text_files.write(folder, "device.cu", DEVICE)
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("ops_folder")
def test_ops_for_the_cpu_and_for_a_gpu_are_built_in_one_run(tmp_path):
    out = str(tmp_path / "out")
    ops = ("devops:Device", "devops:Host", "--target", "cuda:sm_80", "--cpu-level", "x86-64")
    plans = run("build-ops", *ops, "--dry-run")
    assert plans.returncode == 0, plans.stderr
    assert "devops:Device for cuda:sm_80: would be built" in plans.stdout.splitlines()
    assert any("-gencode" in line and line.startswith("  device ") for line in plans.stdout.splitlines())
    assert plans.stderr.splitlines()[-1].startswith("2 would be built; about ")

    built = run("build-ops", *ops, "--out", out)
    assert built.returncode == 0, built.stderr
    assert states(built) == [["built", "devops:Device"], ["built", "devops:Host"]], "each op for its own device"

    explain = ("cache", "explain", "devops:Device", "--target")
    bare = {"OPFORGE_CACHE_LAYERS": out, "OPFORGE_CACHE_DIR": str(tmp_path / "other"), "PATH": str(tmp_path)}
    hit = run(*explain, "cuda:sm_86", **bare)
    assert hit.returncode == 0 and hit.stdout.startswith("hit: devops:Device for cuda:sm_86, "), hit.stdout
    miss = run(*explain, "cuda:sm_100", **bare)
    assert miss.returncode == 1 and miss.stdout.count("it holds code for sm_80, but the target is sm_100") == 1
    op_line = run("inspect", "devops:Device", "--target", "cuda:sm_80").stdout.splitlines()[1]
    assert " by nvcc " in op_line and " with " in op_line, "both compilers are named"

    inspected = json.loads(run("inspect", "devops:Device", "--target", "cuda:sm_80", "--json").stdout)["files"][0]
    assert [(kernel["name"], kernel["arch"]) for kernel in inspected["kernels"]] == [("_Z3addPf", "sm_80")]
    assert inspected["entry"]["target"] == "cuda:sm_80"

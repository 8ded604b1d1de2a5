"""`opforge inspect` of what real compilers made: the host's, nvcc, hipcc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from click.testing import CliRunner
from support import sample_ops, text_files

from opforge.builders.inspection.examine import examine
from opforge.cli.inspect import command

KERNELS = """\
extern "C" __global__ void add(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }
extern "C" __global__ void share(float* x) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[255 - threadIdx.x];
}
"""
SPILLING = """\
extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* x) {
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = x[i * 32 + threadIdx.x];
  for (int k = 0; k < 10; ++k) {
#pragma unroll
    for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i + 7) % 64] + x[k];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i * 32 + threadIdx.x] = v[i];
}
"""


@pytest.fixture(scope="module")
def nvcc():
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.access(found, os.X_OK):
        pytest.skip("needs nvcc (apt install nvidia-cuda-toolkit, or pip install nvidia-cuda-nvcc)")
    return found


def compiled(tool, folder, name, source, *options):
    path = text_files.write(
        folder, "k" + os.path.splitext(name)[1].replace("so", "") + (".hip" if "hip" in tool else ".cu"), source
    )
    made = os.path.join(str(folder), name)
    subprocess.run([tool, *options, "-o", made, path], check=True, capture_output=True, cwd=folder)
    return made


def by_name(told):
    return {(one["name"], one["arch"]): one for one in told["kernels"]}


def test_an_entry_tells_what_it_exports_needs_and_holds(tmp_path):
    entry = sample_ops.stable_op(tmp_path)().build()
    done = CliRunner().invoke(command, [entry.folder, "--json"])
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.stdout)["files"]
    assert told["kind"] == "library" and told["machine"] == os.uname().machine
    assert told["exports"] == ["opforge_describe", "opforge_register"] == entry.binary["exports"]
    assert told["needs"] == entry.binary["needs"] and told["floors"] == entry.binary["floors"]
    assert "opforge_register" in {one["name"] for one in told["functions"]}
    assert all(one["size"] > 0 for one in told["functions"])
    assert told["shims"]["floor"] == "2.10" and "torch_library_impl" in told["shims"]["used"]
    assert told["entry"]["abi"] == "torch-stable" and told["images"] == [] and told["kernels"] == []
    text = CliRunner().invoke(command, [entry.key[:8]])
    assert text.exit_code == 0 and f"op {told['entry']['op']} for cpu:" in text.stdout
    assert "torch\t2.10 or newer, by " in text.stdout


def test_device_code_is_told_by_architecture_and_kernel(nvcc, tmp_path):
    codes = ("-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90a,code=sm_90a")
    ptx = ("-gencode", "arch=compute_80,code=compute_80")
    launch = KERNELS + 'extern "C" int launch(float* x) { add<<<1, 32>>>(x, 9); share<<<1, 256>>>(x); return 0; }\n'
    made = compiled(
        nvcc, tmp_path, "k.so", launch, *codes, *ptx, "-shared", "-Xcompiler=-fPIC", "-Xfatbin=-compress-mode=none"
    )
    told = examine(made)
    held = {(one["kind"], one["arch"]) for one in told["images"]}
    assert held == {("SASS", "sm_80"), ("SASS", "sm_90a"), ("PTX", "compute_80")}
    kernels = by_name(told)
    assert set(kernels) == {(name, arch) for name in ("add", "share") for arch in ("sm_80", "sm_90a")}
    assert kernels["share", "sm_80"]["shared"] == 1024 and kernels["add", "sm_80"]["shared"] == 0
    assert all(one["registers"] > 0 and one["code"] > 0 and one["spills"] == 0 for one in kernels.values())
    assert "launch" in told["exports"]


def test_spills_and_registers_agree_with_the_assembler(nvcc, tmp_path):
    path = text_files.write(tmp_path, "s.cu", SPILLING)
    command_line = [nvcc, "-arch=sm_90", "-cubin", "-Xptxas=-v", "-o", "s.cubin", path]
    said = subprocess.run(command_line, check=True, capture_output=True, text=True, cwd=tmp_path).stderr
    told = examine(str(tmp_path / "s.cubin"))
    kernel = by_name(told)["spill", "sm_90"]
    assert f"Used {kernel['registers']} registers" in said and f"{kernel['stack']} bytes stack frame" in said
    assert kernel["stack"] > 0 and (kernel["spills"] is None or kernel["spills"] > 0)
    assert told["kind"] == "cubin" and bool(told["notes"]) == (kernel["spills"] is None)


def test_a_device_file_that_lies_among_the_data_is_found(nvcc, tmp_path):
    compiled(nvcc, tmp_path, "k.cubin", KERNELS, "-arch=sm_80", "-cubin")
    text_files.write(
        tmp_path,
        "h.c",
        '__asm__(".section .rodata\\n.balign 64\\n.incbin \\"k.cubin\\"\\n.byte 1,2,3\\n");\nint f(void) { return 1; }',
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "h.so", "h.c"], check=True, cwd=tmp_path)
    told = examine(str(tmp_path / "h.so"))
    assert told["images"] == [
        {"kind": "SASS", "arch": "sm_80", "size": os.path.getsize(tmp_path / "k.cubin"), "compression": ""}
    ]
    assert set(by_name(told)) == {("add", "sm_80"), ("share", "sm_80")}


def test_hsaco_is_told_by_architecture_and_kernel(tmp_path):
    pytest.importorskip("msgpack", reason="needs msgpack (pip install msgpack)")
    hipcc = shutil.which("hipcc")
    if hipcc is None:
        pytest.skip("needs hipcc (apt install hipcc)")
    source = "#include <hip/hip_runtime.h>\n" + KERNELS + 'extern "C" void launch(float* x) { add<<<1, 32>>>(x, 9); }\n'
    options = ("--offload-arch=gfx90a", "--offload-arch=gfx908", "-fPIC", "-shared")
    told = examine(compiled(hipcc, tmp_path, "k.so", source, *options))
    assert {(one["kind"], one["arch"]) for one in told["images"]} == {("HSACO", "gfx90a"), ("HSACO", "gfx908")}
    kernels = by_name(told)
    assert kernels["share", "gfx90a"]["shared"] == 1024
    assert all(one["registers"] and one["scalar_registers"] and one["spills"] == 0 for one in kernels.values())

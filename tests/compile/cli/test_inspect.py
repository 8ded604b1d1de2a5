"""`opforge inspect` of files from real compilers: the host's, nvcc, hipcc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from click.testing import CliRunner
from support import sample_ops, text_files
from support.store.fake_store import ME

from opforge.builders.declaration.description import description_key
from opforge.builders.inspection.examine import examine
from opforge.cache import layer
from opforge.cli import group
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
    path = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.access(path, os.X_OK):
        pytest.skip("needs nvcc (apt install nvidia-cuda-toolkit, or pip install nvidia-cuda-nvcc)")
    return path


def compiled(compiler, folder, name, source, *options):
    path = text_files.write(folder, "kernels.hip" if "hip" in compiler else "kernels.cu", source)
    output = os.path.join(str(folder), name)
    subprocess.run([compiler, *options, "-o", output, path], check=True, capture_output=True, cwd=folder)
    return output


def by_name(content):
    return {(kernel["name"], kernel["arch"]): kernel for kernel in content["kernels"]}


def test_an_entry_is_inspected_for_exports_needs_and_functions(tmp_path):
    entry = sample_ops.stable_op(tmp_path)().build()
    done = CliRunner().invoke(command, [entry.folder, "--json"])
    assert done.exit_code == 0, done.output
    (content,) = json.loads(done.stdout)["files"]
    assert content["kind"] == "library" and content["machine"] == os.uname().machine
    assert content["exports"] == ["opforge_describe", "opforge_register"] == entry.record["exports"]
    assert content["needs"] == entry.record["needs"] and content["floors"] == entry.record["floors"]
    assert "opforge_register" in {function["name"] for function in content["functions"]}
    assert all(function["size"] > 0 for function in content["functions"])
    assert content["shims"]["floor"] == "2.10" and "torch_library_impl" in content["shims"]["used"]
    assert content["entry"]["abi"] == "torch-stable" and content["images"] == [] and content["kernels"] == []
    text = CliRunner().invoke(command, [entry.key[:8]])
    assert text.exit_code == 0 and f"op {content['entry']['op']} for cpu:" in text.stdout
    assert "torch\t2.10 or newer, by " in text.stdout
    name, other = entry.record["op"], "cuda:sm_90"
    of_target = CliRunner().invoke(command, [name, "--target", entry.record["target"]])
    assert of_target.exit_code == 0 and f"op {name} for {entry.record['target']}" in of_target.stdout
    of_none = CliRunner().invoke(command, [name, "--target", other])
    assert of_none.exit_code == 2 and f"{name!r} is not an op that is offered for cuda." in of_none.stderr


def test_an_entry_of_a_layer_is_inspected_without_what_the_layer_does_not_hold(tmp_path):
    builder = sample_ops.plain_op(tmp_path / "op", "of_a_layer")()
    built = builder.build()
    entry = layer.add(str(tmp_path / "layer"), built, description_key(builder.spec()), ME)
    done = CliRunner().invoke(command, [f"{entry.folder}/", "--json"])
    assert done.exit_code == 0, done.output
    (content,) = json.loads(done.stdout)["files"]
    assert content["entry"]["op"] == built.record["op"] and content["exports"] == built.record["exports"]
    assert content["entry"]["compiler"] == content["entry"]["said"] == ""
    text = CliRunner().invoke(command, [entry.folder]).stdout
    assert f"op {built.record['op']} for {built.record['target']}, ABI c\n" in text


def test_all_entries_of_a_layer_are_inspected_and_listing_it_changes_nothing(tmp_path, monkeypatch):
    folder, ops = tmp_path / "layer", []
    for name in ("first", "second"):
        builder = sample_ops.plain_op(tmp_path / name, name)()
        layer.add(str(folder), builder.build(), description_key(builder.spec()), ME)
        ops.append(builder.name)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(folder))
    for line in ("ls", "cache stats", "verify", "cache path"):
        done = CliRunner().invoke(group, line.split())
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(group, ["gc", "--dry-run"])
    assert done.exit_code == 1 and "no CACHEDIR.TAG of opforge's" in done.output, "gc removes from stores alone"
    assert os.listdir(folder) == ["v2"] and sorted(os.listdir(folder / "v2")) == ["descriptions", "entries"]
    done = CliRunner().invoke(command, [f"{folder}/", "--json"])
    assert done.exit_code == 0, done.output
    assert sorted(file["entry"]["op"] for file in json.loads(done.stdout)["files"]) == sorted(ops)
    text = CliRunner().invoke(command, [str(folder)]).stdout
    assert all(f"op {name} for cpu:" in text for name in ops)


def test_an_op_that_only_the_cache_knows_is_inspected_by_its_name(tmp_path):
    entry = sample_ops.plain_op(tmp_path, name="of_load")().build()
    done = CliRunner().invoke(command, ["of-load", "--json"])
    assert done.exit_code == 0, done.output
    assert [file["path"] for file in json.loads(done.stdout)["files"]] == [entry.library]
    assert CliRunner().invoke(command, ["of_laod"]).exit_code == 2


def test_a_layer_without_entries_says_what_can_be_inspected(tmp_path):
    (tmp_path / "v2" / "entries").mkdir(parents=True)
    done = CliRunner().invoke(command, [str(tmp_path)])
    assert (
        done.exit_code == 1
        and "cannot be inspected: the folder holds no such file.\nhint: Name a library" in done.stderr
    )
    assert "an entry, or a layer" in done.stderr


def test_device_code_is_listed_by_architecture_and_kernel(nvcc, tmp_path):
    codes = ("-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90a,code=sm_90a")
    ptx = ("-gencode", "arch=compute_80,code=compute_80")
    launch = KERNELS + 'extern "C" int launch(float* x) { add<<<1, 32>>>(x, 9); share<<<1, 256>>>(x); return 0; }\n'
    library = compiled(
        nvcc, tmp_path, "k.so", launch, *codes, *ptx, "-shared", "-Xcompiler=-fPIC", "-Xfatbin=-compress-mode=none"
    )
    content = examine(library)
    images = {(image["kind"], image["arch"]) for image in content["images"]}
    assert images == {("SASS", "sm_80"), ("SASS", "sm_90a"), ("PTX", "compute_80")}
    kernels = by_name(content)
    assert set(kernels) == {(name, arch) for name in ("add", "share") for arch in ("sm_80", "sm_90a")}
    assert kernels["share", "sm_80"]["shared"] == 1024 and kernels["add", "sm_80"]["shared"] == 0
    assert all(kernel["registers"] > 0 and kernel["code"] > 0 and kernel["spills"] == 0 for kernel in kernels.values())
    assert "launch" in content["exports"]


def test_spills_and_registers_agree_with_the_assembler(nvcc, tmp_path):
    path = text_files.write(tmp_path, "s.cu", SPILLING)
    command_line = [nvcc, "-arch=sm_90", "-cubin", "-Xptxas=-v", "-o", "s.cubin", path]
    ptxas = subprocess.run(command_line, check=True, capture_output=True, text=True, cwd=tmp_path).stderr
    content = examine(str(tmp_path / "s.cubin"))
    kernel = by_name(content)["spill", "sm_90"]
    assert f"Used {kernel['registers']} registers" in ptxas and f"{kernel['stack']} bytes stack frame" in ptxas
    assert kernel["stack"] > 0 and (kernel["spills"] is None or kernel["spills"] > 0)
    assert content["kind"] == "cubin" and bool(content["notes"]) == (kernel["spills"] is None)


def test_a_device_file_in_a_data_section_is_found(nvcc, tmp_path):
    compiled(nvcc, tmp_path, "k.cubin", KERNELS, "-arch=sm_80", "-cubin")
    text_files.write(
        tmp_path,
        "h.c",
        '__asm__(".section .rodata\\n.balign 64\\n.incbin \\"k.cubin\\"\\n.byte 1,2,3\\n");\nint f(void) { return 1; }',
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "h.so", "h.c"], check=True, cwd=tmp_path)
    content = examine(str(tmp_path / "h.so"))
    size = os.path.getsize(tmp_path / "k.cubin")
    assert content["images"] == [{"kind": "SASS", "arch": "sm_80", "size": size, "compression": "", "bare": True}]
    assert set(by_name(content)) == {("add", "sm_80"), ("share", "sm_80")}


def test_hsaco_is_listed_by_architecture_and_kernel(tmp_path):
    hipcc = shutil.which("hipcc")
    if hipcc is None:
        pytest.skip("needs hipcc (apt install hipcc)")
    source = "#include <hip/hip_runtime.h>\n" + KERNELS + 'extern "C" void launch(float* x) { add<<<1, 32>>>(x, 9); }\n'
    options = ("--offload-arch=gfx90a", "--offload-arch=gfx908", "-fPIC", "-shared")
    content = examine(compiled(hipcc, tmp_path, "k.so", source, *options))
    assert {(image["kind"], image["arch"]) for image in content["images"]} == {("HSACO", "gfx90a"), ("HSACO", "gfx908")}
    kernels = by_name(content)
    assert kernels["share", "gfx90a"]["shared"] == 1024
    assert all(
        kernel["registers"] and kernel["scalar_registers"] and kernel["spills"] == 0 for kernel in kernels.values()
    )

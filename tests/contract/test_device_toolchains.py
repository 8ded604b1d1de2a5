"""Kernels built by the installed device compilers: one library of device and host code, its inputs, its errors."""

from __future__ import annotations

import json
import os

import pytest
from support import sample_ops, text_files
from support.compilers.installed_compilers import DEVICES, skip_if_missing

from opforge.builders.load_op import find
from opforge.errors import CompileError, OpIncompatibleError

pytestmark = pytest.mark.compile
KERNEL = """\
#include "scale.h"
#include <cuda_runtime.h>
__global__ void scale_kernel(float* x, int64_t n, float by) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) x[i] *= by;
}
extern "C" __attribute__((visibility("default"))) int scale(float* x, int64_t n, float by, void* stream) {
  scale_kernel<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, n, by);
  return static_cast<int>(cudaGetLastError());
}
"""
HEADER = '#include <cstdint>\nextern "C" int scale(float* x, int64_t n, float by, void* stream);\n'
BINDING = """\
#include "scale.h"
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
void scale_(Tensor x, double by) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "scale_: float32 expected");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device(), &stream));
  const int code = scale(static_cast<float*>(x.mutable_data_ptr()), x.numel(), static_cast<float>(by), stream);
  STD_TORCH_CHECK(code == cudaSuccess, "scale_: ", cudaGetErrorString(static_cast<cudaError_t>(code)));
}
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("scale_(Tensor(a!) x, float by) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CUDA, m) { m.impl("scale_", TORCH_BOX(&scale_)); }
"""
OPENCL = '__kernel void twice(__global float* x) {\n  x[get_global_id(0)] *= 2; // "quoted" \\\n}\n'
READS_OPENCL = """\
extern "C" const char opforge_cl_twice[];
extern "C" int clGetPlatformIDs(unsigned int, void*, unsigned int*);
extern "C" __attribute__((visibility("default"))) int status() { return clGetPlatformIDs(0, nullptr, nullptr); }
extern "C" __attribute__((visibility("default"))) const char* source() { return opforge_cl_twice; }
"""


@pytest.mark.parametrize("name", DEVICES)
def test_device_and_host_sources_become_one_library(name, missing_compilers, tmp_path):
    skip_if_missing(missing_compilers, name)
    op = sample_ops.unique_name("scale")
    for file, text in (("scale.cu", KERNEL), ("binding.cpp", BINDING.replace("@NAME@", op)), ("scale.h", HEADER)):
        text_files.write(tmp_path, file, text)
    attributes = {"sources": ["scale.cu", "binding.cpp"], "devices": ["cuda", "hip"]}
    builder = sample_ops.builder_class(tmp_path, op, **attributes)(DEVICES[name])
    entry = builder.build()
    assert entry.record["target"] == DEVICES[name]
    assert {"opforge_describe", "opforge_register"} <= set(entry.record["exports"])
    assert ("libtorch_cuda.so" if name == "nvcc" else "libtorch_hip.so") in entry.record["needs"]
    assert not any("cudart" in library for library in entry.record["needs"]), "the runtime is linked in"
    read = {(root, path) for root, path, *_ in entry.build()["inputs"]["files"]}
    assert {("own", "scale.cu"), ("own", "binding.cpp"), ("own", "scale.h")} <= read
    assert str(tmp_path) not in str(entry.build()["components"])
    assert find(builder.spec()).entry.origin == "cache"
    text_files.write(tmp_path, "scale.h", HEADER + "// changed\n")
    assert find(builder.spec()).entry is None, "the header that both sources include is an input"


@pytest.mark.parametrize("name", DEVICES)
def test_a_plain_kernel_loads_without_a_device_and_its_launch_fails(name, missing_compilers, tmp_path, monkeypatch):
    skip_if_missing(missing_compilers, name)
    monkeypatch.setenv("TMPDIR", str(temporary := tmp_path / "temporary"))
    temporary.mkdir()
    op = sample_ops.unique_name("plain")
    text_files.write(tmp_path, "scale.cu", KERNEL)
    text_files.write(tmp_path, "scale.h", HEADER)
    cls = sample_ops.builder_class(tmp_path, op, abi="c", sources=["scale.cu"], devices=["cuda", "hip"])
    loaded = cls(DEVICES[name].replace("+sm_90a+ptx", "")).load()
    assert loaded.origin == "built"
    if not os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/kfd"):
        assert loaded.scale(None, 10, None, None) != 0
    assert not os.listdir(temporary), "a compiler that only prints its commands has left a folder"


@pytest.mark.parametrize("name", DEVICES)
def test_an_error_names_the_line_of_the_original_source(name, missing_compilers, tmp_path):
    skip_if_missing(missing_compilers, name)
    text_files.write(tmp_path, "wrong.cu", '#include "wrong.h"\n')
    header = text_files.write(tmp_path, "wrong.h", "#include <cuda_runtime.h>\n\ncudaNoSuch_t y;\n")
    cls = sample_ops.builder_class(tmp_path, "wrong", abi="c", sources=["wrong.cu"], devices=["cuda", "hip"])
    with pytest.raises(CompileError) as error:
        cls(DEVICES[name]).build()
    assert f"compile wrong.cu failed: {header}:3" in str(error.value)
    assert ">    3 | cudaNoSuch_t y;" in str(error.value)


def test_a_cuda_source_is_loaded_by_opforge_load(missing_compilers, tmp_path, monkeypatch):
    skip_if_missing(missing_compilers, "nvcc")
    import opforge

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0+PTX")
    kernel, _ = text_files.write(tmp_path, "scale.cu", KERNEL), text_files.write(tmp_path, "scale.h", HEADER)
    loaded = opforge.load(sample_ops.unique_name("own"), kernel, extra_cuda_cflags=["-lineinfo"])
    with open(os.path.join(os.path.dirname(loaded.path), "build.json")) as file:
        plan = json.load(file)["components"]
    assert plan["target"] == "cuda:sm_90+ptx" and "-lineinfo" in plan["device_flags"]


def test_opencl_sources_are_in_the_library_unchanged(tmp_path):
    text_files.write(tmp_path, "twice.cl", OPENCL)
    text_files.write(tmp_path, "binding.cpp", READS_OPENCL)
    op = sample_ops.unique_name("twice")
    cls = sample_ops.builder_class(tmp_path, op, abi="c", sources=["twice.cl", "binding.cpp"], devices=["opencl"])
    entry = cls().build()
    assert "libOpenCL.so.1" in entry.record["needs"]
    with open(entry.library, "rb") as file:
        assert OPENCL.encode() in file.read()
    text_files.write(tmp_path, "twice.cl", OPENCL + "// more\n")
    assert find(cls().spec()).entry is None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cuda:sm_20", "does not know sm_20 (compute capability 2.0); it knows sm_"),
        ("cuda:sm_990a", "does not know sm_990a (compute capability 99.0a)"),
    ],
)
def test_an_unknown_architecture_is_named_with_those_that_nvcc_knows(target, message, missing_compilers, tmp_path):
    skip_if_missing(missing_compilers, "nvcc")
    text_files.write(tmp_path, "scale.cu", KERNEL)
    cls = sample_ops.builder_class(tmp_path, "scale", abi="c", sources=["scale.cu"], devices=["cuda"])
    with pytest.raises(OpIncompatibleError) as error:
        cls(target).build()
    assert message in str(error.value)

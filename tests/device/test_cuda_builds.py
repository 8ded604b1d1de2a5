"""A CUDA op built for the device of this machine runs on it, and a failed check is an error in Python."""

from __future__ import annotations

import pytest
from support import sample_ops, text_files

from opforge.accelerator.target import Target
from opforge.builders.declaration import machine
from opforge.builders.toolchains import nvcc
from opforge.errors import OpIncompatibleError, ToolchainNotFoundError

pytestmark = pytest.mark.device
SOURCE = """\
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
__global__ void kernel(float* x, int64_t n, float by) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) x[i] *= by;
}
void scale_(Tensor x, double by) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "scale_: float32 expected");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device(), &stream));
  kernel<<<(x.numel() + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<float*>(x.mutable_data_ptr()), x.numel(), static_cast<float>(by));
  STD_TORCH_CHECK(cudaGetLastError() == cudaSuccess, "scale_: the launch failed");
}
STABLE_TORCH_LIBRARY(@NAME@, m) { m.def("scale_(Tensor(a!) x, float by) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(@NAME@, CUDA, m) { m.impl("scale_", TORCH_BOX(&scale_)); }
"""


@pytest.fixture
def scale(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.version.hip:
        pytest.skip("needs a CUDA device and a torch with CUDA")
    try:
        nvcc.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    name = sample_ops.unique_name("scale")
    text_files.write(tmp_path, f"{name}.cu", SOURCE.replace("@NAME@", name))
    return sample_ops.builder_class(tmp_path, name, sources=[f"{name}.cu"], devices=["cuda"])


@pytest.mark.parametrize("target", [None, "cuda:native", "cuda:sm_80+ptx"])
def test_an_op_runs_on_the_device_of_this_machine(scale, target):
    import torch

    if target == "cuda:sm_80+ptx" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs compute capability 8.0")
    op = scale(target).load()
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        op.scale_(x, 2.0)
    torch.cuda.synchronize()
    assert torch.equal(x.cpu(), torch.arange(1000, dtype=torch.float32) * 2)
    with pytest.raises(RuntimeError, match="scale_: float32 expected"):
        op.scale_(x.half(), 2.0)


def test_the_devices_are_known_and_code_for_another_is_refused(scale):
    import torch

    major, minor = torch.cuda.get_device_capability()
    assert f"sm_{major}{minor}" in machine.present("cuda")
    assert f"sm_{major}{minor}" in scale().target.arch
    with pytest.raises(OpIncompatibleError, match="which does not run code for cuda:sm_320"):
        scale(Target("cuda", ("sm_320",))).load()

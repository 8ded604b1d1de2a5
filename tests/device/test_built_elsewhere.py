"""Ops built elsewhere, for this GPU or for another: taken from the layer, compiled by the driver, or rejected."""

from __future__ import annotations

import pytest
import torch
from support.gpu import triton_parts

from opforge.accelerator.target import Target
from opforge.builders.cuda import BUILDERS
from opforge.errors import OpIncompatibleError

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]


@pytest.mark.parametrize("name", BUILDERS)
def test_an_op_in_the_layer_is_loaded_from_it(cuda_op, layers_of_machine, name):
    if not layers_of_machine:
        pytest.skip("OPFORGE_CACHE_LAYERS names no layer of ops that were built elsewhere")
    assert cuda_op(name).origin in layers_of_machine.split(":")


def other_arch() -> str:
    """Returns an architecture whose code this GPU does not run."""
    return "sm_80" if torch.cuda.get_device_capability()[0] != 8 else "sm_90"


@pytest.mark.skipif(torch.version.hip is not None, reason="names NVIDIA's architectures")
@pytest.mark.parametrize("name", ["FusedAdamBuilder", "TritonSoftmaxBuilder"])
def test_the_error_for_code_of_another_gpu_names_both(name):
    import importlib

    module, _, attribute = BUILDERS[name].partition(":")
    builder = getattr(importlib.import_module(module), attribute)(Target("cuda", (other_arch(),)))
    with pytest.raises(OpIncompatibleError, match=rf"sm_\d+, which does not run code for cuda:{other_arch()}"):
        builder.load()


@pytest.mark.skipif(torch.version.hip is not None, reason="names NVIDIA's architectures")
@triton_parts.needs_triton
def test_the_driver_compiles_a_triton_kernel_that_is_ptx(tmp_path):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs compute capability 9.0: older GPUs run the machine code instead of the PTX")
    op = triton_parts.scale_op(tmp_path)("cuda:sm_80+ptx").load()
    x = torch.arange(3000, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    op.scale(x, y, 2.0)
    assert torch.equal(y, x * 2)
    assert {image["arch"] for image in op.kernels.images()} == {"sm_80", "compute_80"}

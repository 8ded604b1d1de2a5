"""AMD's GPUs under the CUDA accelerator."""

from __future__ import annotations

import os

import pytest
import torch
from support.devices.fake_devices import FREE, TOTAL
from support.devices.files import write_files

from opforge.accelerator import Target
from opforge.accelerator.vendors import rocm


@pytest.fixture
def rocm_accelerator(cuda_machine, monkeypatch, tmp_path):
    """The CUDA accelerator on a machine with an AMD GPU and a torch for ROCm."""
    accelerator, device = cuda_machine
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    write_files(
        tmp_path,
        {
            "dev/kfd": "",
            "sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0\n",
            "sys/class/kfd/kfd/topology/nodes/1/gpu_id": "51110\n",
        },
    )
    device.properties.gcnArchName = "gfx942:sramecc+:xnack-"
    return accelerator


def test_the_target_is_for_hip_and_other_names_are_cudas(rocm_accelerator):
    assert rocm_accelerator.is_available()
    assert rocm_accelerator.target() == Target("hip", ("gfx942",))
    assert rocm_accelerator.device_arch(1) == "gfx942"
    assert rocm_accelerator.device_name(0) == "cuda:0"
    assert rocm_accelerator.visible_devices_envs() == ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
    assert rocm_accelerator.export_envs() == ["NCCL_", "TORCH_NCCL_", "RCCL_", "HSA_"]
    assert rocm_accelerator.is_bf16_supported() and rocm_accelerator.is_fp16_supported()
    assert rocm_accelerator.communication_backend_name() == "nccl" and not rocm_accelerator.supports_nvtx_domain
    assert rocm_accelerator.capabilities().compute_capability is None
    assert rocm_accelerator.mem_get_info() == (FREE, TOTAL)


def test_a_machine_without_a_usable_device_is_the_reason(rocm_accelerator, monkeypatch, tmp_path):
    accelerator = rocm_accelerator
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    assert accelerator.unavailable_reason() == "HIP_VISIBLE_DEVICES='' hides every device"
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/1/gpu_id").write_text("0\n")
    assert accelerator.unavailable_reason() == "no device: no /sys/class/kfd/kfd/topology/nodes/*/gpu_id names a GPU"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert rocm.device_problem(str(tmp_path)) == (
        "this user may not open /dev/kfd: it must be in the group that owns it (render)"
    )
    (tmp_path / "dev/kfd").unlink()
    assert accelerator.unavailable_reason() == "no driver: there is no /dev/kfd"
    (tmp_path / "dev/dxg").write_text("")
    assert accelerator.is_available()


@pytest.mark.parametrize(("arch", "is_supported"), [("gfx90a", False), ("gfx942", True), ("gfx950", True)])
def test_products_in_float8_need_cdna_3(rocm_accelerator, cuda_machine, arch, is_supported):
    cuda_machine[1].properties.gcnArchName = f"{arch}:sramecc+:xnack-"
    assert rocm_accelerator.is_fp8_supported() is is_supported

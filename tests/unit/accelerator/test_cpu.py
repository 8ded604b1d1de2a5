"""The CPU accelerator's own answers."""

from __future__ import annotations

import importlib.util
import json

import pytest

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.errors import SettingError


@pytest.fixture
def cpu():
    return CPUAccelerator()


def test_capabilities_are_found_once_and_are_plain_json(cpu):
    found = cpu.capabilities()
    assert cpu.capabilities() is found
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
    assert found.device == "cpu" and found.arch == "+".join(cpu.target().arch)
    assert "float32" in found.dtypes and "bfloat16" in found.dtypes
    assert found.cores >= 1 and found.total_memory > 0 and found.compute_capability is None


def test_capabilities_cannot_be_changed(cpu):
    with pytest.raises(AttributeError):
        cpu.capabilities().triton = True


def test_the_backend_is_gloo_unless_oneccl_is_there(cpu, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cpu.communication_backend_name() == "gloo"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert cpu.communication_backend_name() == "ccl"


def test_the_visible_devices_variable_is_the_cpus_own(cpu):
    assert cpu.visible_devices_envs() == ["OPFORGE_VISIBLE_NUMA_NODES"]
    assert all("CUDA" not in name for name in [*cpu.visible_devices_envs(), *cpu.export_envs()])


def test_a_compile_backend_that_does_not_exist_is_refused_with_those_that_do(cpu):
    assert cpu.get_compile_backend() == "inductor"
    cpu.set_compile_backend("eager")
    assert cpu.get_compile_backend() == "eager"
    with pytest.raises(SettingError) as refused:
        cpu.set_compile_backend("egaer")
    assert "backend='egaer' cannot be used: expected one of torch.compile's backends:" in str(refused.value)
    assert "inductor" in str(refused.value)


def test_setting_a_state_on_a_numbered_device_works(cpu):
    import torch

    state = cpu.get_rng_state(0)
    first = torch.rand(3)
    cpu.set_rng_state(state, 0)
    assert torch.equal(torch.rand(3), first)


def test_pinning_is_the_tensor_itself_and_flat_on_request(cpu):
    import torch

    tensor = torch.ones(2, 3)
    assert cpu.pin_memory(tensor) is tensor
    assert cpu.pin_memory(tensor, make_copy=False) is tensor
    assert cpu.pin_memory(tensor, make_copy=False, match_shape=False).shape == (6,)
    assert cpu.is_pinned(tensor) is False


def test_pinned_scratch_on_a_device_is_refused(cpu):
    import torch

    for device in ("cuda", "meta", "nonsense"):
        with pytest.raises(
            SettingError, match=f"device='{device}' cannot be used: expected 'cpu': only the host's memory"
        ):
            cpu.pin_empty(3, dtype=torch.float32, device=device)


def test_tensors_of_the_host_are_on_the_accelerator(cpu):
    import torch

    assert cpu.on_accelerator(torch.ones(1))
    assert not cpu.on_accelerator(torch.ones(1, device="meta"))

"""The CPU accelerator: capabilities, variables, backends, pinning."""

from __future__ import annotations

import importlib.util
import json

import pytest

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.interface.accelerator import ITT_COLLECTOR
from opforge.errors import SettingError


@pytest.fixture
def cpu():
    return CPUAccelerator()


def test_capabilities_are_probed_once_and_are_plain_json(cpu):
    capabilities = cpu.capabilities()
    assert cpu.capabilities() is capabilities
    assert json.loads(json.dumps(capabilities.as_dict())) == capabilities.as_dict()
    assert capabilities.device == "cpu" and capabilities.arch == "+".join(cpu.target().arch)
    assert "float32" in capabilities.dtypes and "bfloat16" in capabilities.dtypes
    assert capabilities.cores >= 1 and capabilities.total_memory > 0 and capabilities.compute_capability is None


def test_capabilities_cannot_be_changed(cpu):
    with pytest.raises(AttributeError):
        cpu.capabilities().triton = True


def test_the_backend_is_gloo_unless_oneccl_is_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert CPUAccelerator().communication_backend_name() == "gloo"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert CPUAccelerator().communication_backend_name() == "ccl"


def test_a_number_stands_for_a_process_and_may_exceed_the_nodes(cpu):
    import torch

    for index in (cpu.device_count() + 7, 0, "3", torch.device("cpu", 5), "cpu:2"):
        cpu.set_device(index)
        number = index.index if isinstance(index, torch.device) else int(str(index).rpartition(":")[2])
        assert cpu.current_device() == number and cpu.current_device_name() == "cpu"
    cpu.set_device(torch.device("cpu"))
    assert cpu.current_device() == 2, "a torch.device without a number changes nothing"
    with cpu.device(torch.device("cpu", 9)):
        assert cpu.current_device() == 9
    assert cpu.current_device() == 2


def test_ranges_go_to_itt_only_with_a_collector_that_would_record_them(monkeypatch):
    import torch.profiler

    pushed: list[str] = []
    monkeypatch.setattr(torch.profiler.itt, "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler.itt, "range_push", pushed.append)
    monkeypatch.setattr(torch.profiler.itt, "range_pop", lambda: pushed.append("pop"))
    for variable in ITT_COLLECTOR:
        monkeypatch.delenv(variable, raising=False)
    CPUAccelerator().range_push("unseen")
    for variable in ITT_COLLECTOR:
        monkeypatch.setenv(variable, "/opt/vtune/lib64/runtime/libittnotify_collector.so")
        accelerator = CPUAccelerator()
        accelerator.range_push("step")
        accelerator.range_pop()
        monkeypatch.delenv(variable)
    assert pushed == ["step", "pop"] * 2


def test_no_variable_is_that_of_another_device(cpu):
    assert cpu.visible_devices_envs() == ["OPFORGE_VISIBLE_NUMA_NODES"]
    assert all("CUDA" not in name for name in [*cpu.visible_devices_envs(), *cpu.export_envs()])


def test_an_unknown_compile_backend_is_an_error_with_the_existing_ones(cpu):
    assert cpu.get_compile_backend() == "inductor"
    cpu.set_compile_backend("eager")
    assert cpu.get_compile_backend() == "eager"
    with pytest.raises(SettingError) as raised:
        cpu.set_compile_backend("egaer")
    assert "backend='egaer' cannot be used: expected one of torch.compile's backends:" in str(raised.value)
    assert "inductor" in str(raised.value)


def test_a_generators_state_can_be_set_with_a_device_number(cpu):
    import torch

    state = cpu.get_rng_state(0)
    first = torch.rand(3)
    cpu.set_rng_state(state, 0)
    assert torch.equal(torch.rand(3), first)


def test_pinning_returns_the_tensor_itself_flat_on_request(cpu):
    import torch

    tensor = torch.ones(2, 3)
    assert cpu.pin_memory(tensor) is tensor
    assert cpu.pin_memory(tensor, make_copy=False) is tensor
    assert cpu.pin_memory(tensor, make_copy=False, match_shape=False).shape == (6,)
    assert cpu.is_pinned(tensor) is False


def test_pinned_memory_on_a_device_is_an_error(cpu):
    import torch

    for device in ("cuda", "meta", "nonsense"):
        with pytest.raises(
            SettingError, match=f"device='{device}' cannot be used: expected 'cpu': only the host's memory"
        ):
            cpu.pin_empty(3, dtype=torch.float32, device=device)


def test_only_host_tensors_are_on_the_accelerator(cpu):
    import torch

    assert cpu.on_accelerator(torch.ones(1))
    assert not cpu.on_accelerator(torch.ones(1, device="meta"))

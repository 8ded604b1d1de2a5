"""What the accelerator takes from `torch.accelerator`, and what it does without it."""

from __future__ import annotations

from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.fallback import torch_graph
from opforge.testing import AcceleratorContract


class TorchGraph:
    """As torch.accelerator.Graph: what it captures, it captures as a context manager."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __enter__(self) -> TorchGraph:
        self.calls.append((self.graph_pool, self.capture_error_mode))  # type: ignore[attr-defined]
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append("end")

    def replay(self) -> None:
        self.calls.append("replay")


@pytest.fixture
def own_torch_accelerator(cuda_machine, monkeypatch):
    """The CUDA accelerator, whose module has no graphs, on a machine where torch.accelerator is CUDA's."""
    accelerator, _ = cuda_machine
    called: list[str] = []
    theirs = SimpleNamespace(
        current_accelerator=lambda check_available=False: torch.device("cuda"),
        get_device_capability=lambda index: {"supported_dtypes": {torch.float32, torch.float8_e4m3fn}},
        empty_host_cache=lambda: called.append("empty_host_cache"),
        Graph=TorchGraph,
    )
    monkeypatch.setattr(torch, "accelerator", theirs)
    monkeypatch.setattr(type(accelerator), "_captures_graphs", lambda self: False)
    return accelerator, called


def test_a_device_without_graphs_of_its_own_has_those_of_torch_accelerator(own_torch_accelerator):
    accelerator, _ = own_torch_accelerator
    graph = accelerator.create_graph()
    assert isinstance(graph, TorchGraph)
    with accelerator.capture_to_graph(graph, pool=(0, 3), capture_error_mode="relaxed"):
        assert accelerator.is_current_stream_capturing()
    assert not accelerator.is_current_stream_capturing()
    accelerator.replay_graph(graph)
    assert graph.calls == [((0, 3), "relaxed"), "end", "replay"]
    with accelerator.capture_to_graph(graph):
        pass
    assert graph.calls[3:] == [(None, "default"), "end"]


def test_a_device_that_torch_accelerator_has_no_graphs_for_gets_the_emulation():
    def refuse() -> None:
        raise RuntimeError("no graphs for this device")

    assert torch_graph.of(refuse) is None


def test_a_torch_that_was_built_for_a_device_that_is_not_there_is_not_asked(own_torch_accelerator, monkeypatch):
    accelerator, called = own_torch_accelerator
    monkeypatch.setattr(
        torch.accelerator,
        "current_accelerator",
        lambda check_available=False: None if check_available else torch.device("cuda"),
    )
    accelerator.empty_host_cache()
    assert called == [] and torch.float8_e4m3fn not in accelerator.tensor_dtypes()


def test_dtypes_and_the_hosts_cache_are_torch_accelerators(own_torch_accelerator):
    accelerator, called = own_torch_accelerator
    assert accelerator.tensor_dtypes() == {torch.float32, torch.float8_e4m3fn}
    accelerator.empty_host_cache()
    assert called == ["empty_host_cache"]


@pytest.mark.parametrize("wrong", ["", "memory_allocated", "random.initial_seed"])
def test_the_contract_compares_an_accelerator_with_torchs(cuda_machine, monkeypatch, wrong):
    accelerator, device = cuda_machine
    theirs = SimpleNamespace(
        current_accelerator=lambda check_available=False: torch.device("cuda"),
        memory_allocated=accelerator.memory_allocated,
        max_memory_allocated=lambda: (_ for _ in ()).throw(NotImplementedError("not for this device")),
        random=SimpleNamespace(
            initial_seed=accelerator.initial_seed, get_rng_state=lambda: device.generators[0].get_state()
        ),
    )
    monkeypatch.setattr(torch, "accelerator", theirs)
    contract = AcceleratorContract()
    contract.accelerator = accelerator
    if wrong:
        of = attrgetter(wrong.rpartition(".")[0])(theirs) if "." in wrong else theirs
        setattr(of, wrong.rpartition(".")[2], lambda: -5)
        with pytest.raises(AssertionError, match=f"{wrong} of torch.accelerator is -5, and "):
            contract.test_it_agrees_with_torch_accelerator_where_that_is_for_the_same_device()
    else:
        contract.test_it_agrees_with_torch_accelerator_where_that_is_for_the_same_device()


def test_the_seed_of_each_device_is_its_generators(cuda_machine):
    accelerator, device = cuda_machine
    device.generators[0].manual_seed(5)
    device.generators[1].manual_seed(6)
    assert (accelerator.initial_seed(), accelerator.initial_seed(0), accelerator.initial_seed(1)) == (5, 5, 6)


def test_pools_and_modes_of_a_capture_reach_torchs_module(cuda_machine):
    accelerator, device = cuda_machine
    graph, pool = accelerator.create_graph(), accelerator.graph_pool_handle()
    with accelerator.capture_to_graph(graph, pool=pool, capture_error_mode="thread_local"):
        pass
    assert "capture (0, 1) thread_local" in device.calls


def test_accumulated_counters_are_reset_on_the_device(cuda_machine):
    accelerator, device = cuda_machine
    accelerator.reset_accumulated_memory_stats(1)
    assert device.calls == ["reset_accumulated_memory_stats"]


def test_the_host_holds_float8_and_computes_no_products_in_it():
    cpu = CPUAccelerator()
    assert {torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool} <= cpu.tensor_dtypes()
    assert torch.quint8 not in cpu.tensor_dtypes() and not cpu.is_fp8_supported()
    assert cpu.graph_pool_handle() is None

"""What is written once for all vendors, over a made-up module of torch's kind."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from opforge.accelerator.fallback.streams import HostEvent, HostStream
from opforge.accelerator.interface.accelerator import Accelerator
from opforge.accelerator.target import Target


class MadeUp(Accelerator):
    name = torch_device = "madeup"
    interface_version = 1

    def __init__(self, **offers):
        super().__init__()
        self.module = SimpleNamespace(
            current_device=lambda: 1, device_count=lambda: 2, is_available=lambda: True, **offers
        )

    def _device_module(self):
        return self.module


def test_devices_are_numbered_and_named():
    device = MadeUp()
    assert (device.device_name(), device.device_name(0), device.current_device_name()) == (
        "madeup",
        "madeup:0",
        "madeup:1",
    )
    assert (device.current_device(), device.device_count(), device.is_available()) == (1, 2, True)
    assert device.target() == Target("madeup")
    assert device.op_builder_dir() == "opforge.builders.madeup"
    assert not device.use_host_timers() and not device.resolves_data_dependency()


def test_what_the_module_offers_is_used_with_the_index():
    asked = []
    device = MadeUp(
        memory_allocated=lambda index: asked.append(index) or 7,
        memory_reserved=lambda index: 9,
        mem_get_info=lambda index: (3, 10),
        memory_stats=lambda index: {"x": index},
        default_generators=["first", "second"],
        is_bf16_supported=lambda: True,
    )
    assert device.memory_allocated(1) == 7 and asked == [1]
    assert device.memory_cached() == device.memory_reserved() == 9
    assert device.available_memory() == 3
    assert device.memory_stats(1) == {"x": 1}
    assert (device.default_generator(), device.default_generator(0)) == ("second", "first")
    assert device.is_bf16_supported() is True


def test_what_the_module_lacks_has_a_default():
    device = MadeUp(get_device_properties=lambda index: SimpleNamespace(total_memory=100 + index))
    assert device.total_memory() == 101
    assert device.mem_get_info(0) == (100, 100)
    assert device.memory_allocated() == device.max_memory_cached() == 0
    assert device.reset_peak_memory_stats() is None and device.empty_cache() is None
    assert device.is_bf16_supported() is False
    assert device.lazy_call(lambda: "now") == "now"
    assert device.Stream is HostStream and device.Event is HostEvent
    with device.device(0), device.stream(device.Stream()):
        pass


def test_the_modules_own_streams_are_used():
    stream = type("Stream", (), {})
    device = MadeUp(
        Stream=stream,
        Event="its event",
        stream=contextlib.nullcontext,
        current_stream=lambda index: f"current {index}",
        default_stream=lambda index: f"default {index}",
    )
    assert device.Stream is stream and device.Event == "its event"
    assert (device.current_stream(0), device.default_stream(1)) == ("current 0", "default 1")
    with device.stream("mine") as entered:
        assert entered == "mine"


def test_a_module_that_names_no_default_stream_gives_its_current_one():
    device = MadeUp(Stream=object, current_stream=lambda index: "current")
    assert device.default_stream() == "current"


def test_the_raw_streams_function_is_torchs_own(monkeypatch):
    function = object()
    monkeypatch.setattr(torch._C, "_madeup_getCurrentRawStream", function, raising=False)
    assert MadeUp(Stream=object).raw_stream_function() is function
    monkeypatch.undo()
    with pytest.raises(NotImplementedError, match="madeup: torch has no function for the handle"):
        MadeUp(Stream=object).raw_stream_function()
    assert MadeUp().raw_stream_function()(1) == 0, "a device without streams"


def test_multiprocessors_are_counted_by_torch_or_one():
    counts = {None: 7, 1: 9}
    device = MadeUp(get_device_properties=lambda index: SimpleNamespace(multi_processor_count=counts[index]))
    assert (device.multiprocessor_count(), device.multiprocessor_count(1)) == (7, 9)
    assert MadeUp().multiprocessor_count() == 1
    assert MadeUp(get_device_properties=lambda index: "text").multiprocessor_count() == 1


def test_the_modules_own_graphs_are_used():
    graph = type("Graph", (), {"replay": lambda self: replayed.append(self)})
    replayed: list[object] = []
    device = MadeUp(
        MADEUPGraph=graph,
        graph=lambda graph, pool, stream: contextlib.nullcontext((graph, pool, stream)),
        is_current_stream_capturing=lambda: 1,
    )
    made = device.create_graph()
    assert type(made) is graph
    with device.capture_to_graph(made, pool="pool", stream="stream") as captured:
        assert captured == (made, "pool", "stream")
    assert device.is_current_stream_capturing() is True
    device.replay_graph(made)
    assert replayed == [made]


def test_pinning_goes_through_torch():
    class Tensor:
        shape, pinned = (2, 3), False

        def pin_memory(self):
            copy = Tensor()
            copy.pinned = True
            return copy

        def is_pinned(self):
            return self.pinned

        def numel(self):
            return 6

        def new_empty(self, shape, pin_memory):
            return shape, pin_memory

    device, tensor = MadeUp(), Tensor()
    assert device.is_pinned(device.pin_memory(tensor)) and not device.is_pinned(tensor)
    assert device.pin_memory(tensor, make_copy=False) == ((2, 3), True)
    assert device.pin_memory(tensor, make_copy=False, match_shape=False) == ((6,), True)
    assert device.register_host_memory(0, 1) is False and device.unregister_host_memory(0) is None


def test_an_unavailable_device_says_what_torch_said():
    assert MadeUp().unavailable_reason() == "torch.madeup.is_available() is False"
    with pytest.raises(AttributeError):
        MadeUp().manual_seed(1)

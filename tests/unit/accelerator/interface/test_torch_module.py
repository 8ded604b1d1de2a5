"""The interface's methods over torch's module for a device: here over a fake module with a few functions."""

from __future__ import annotations

import contextlib
import gc
import threading
from types import SimpleNamespace

import pytest
import torch

from opforge.accelerator.fallback.streams import HostEvent, HostStream
from opforge.accelerator.interface.accelerator import Accelerator
from opforge.accelerator.target import Target


class FakeAccelerator(Accelerator):
    """An accelerator whose torch module has three functions and `members`."""

    name = torch_device = "fake"
    interface_version = 1

    def __init__(self, **members):
        super().__init__()
        self.module = SimpleNamespace(
            current_device=lambda: 1, device_count=lambda: 2, is_available=lambda: True, **members
        )

    def _device_module(self):
        return self.module


def test_devices_are_numbered_and_named():
    device = FakeAccelerator()
    assert (device.device_name(), device.device_name(0), device.current_device_name()) == ("fake", "fake:0", "fake:1")
    assert (device.current_device(), device.device_count(), device.is_available()) == (1, 2, True)
    assert device.target() == Target("fake")
    assert device.op_builder_dir() == "opforge.builders.fake"
    assert not device.use_host_timers() and not device.resolves_data_dependency()


def test_a_function_of_the_module_gets_the_index():
    indexes = []
    device = FakeAccelerator(
        memory_allocated=lambda index: indexes.append(index) or 7,
        memory_reserved=lambda index: 9,
        mem_get_info=lambda index: (3, 10),
        memory_stats=lambda index: {"x": index},
        default_generators=["first", "second"],
        is_bf16_supported=lambda: True,
    )
    assert device.memory_allocated(1) == 7 and indexes == [1]
    assert device.memory_cached() == device.memory_reserved() == 9
    assert device.available_memory() == 3
    assert device.memory_stats(1) == {"x": 1}
    assert (device.default_generator(), device.default_generator(0)) == ("second", "first")
    assert device.is_bf16_supported() is True


def test_a_function_that_the_module_lacks_has_a_default():
    device = FakeAccelerator(get_device_properties=lambda index: SimpleNamespace(total_memory=100 + index))
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
    device = FakeAccelerator(
        Stream=stream,
        Event="event class",
        stream=contextlib.nullcontext,
        current_stream=lambda index: f"current {index}",
        default_stream=lambda index: f"default {index}",
    )
    assert device.Stream is stream and device.Event == "event class"
    assert (device.current_stream(0), device.default_stream(1)) == ("current 0", "default 1")
    with device.stream("stream") as entered:
        assert entered == "stream"


def test_the_current_stream_is_returned_if_the_module_has_no_default_stream():
    device = FakeAccelerator(Stream=object, current_stream=lambda index: "current")
    assert device.default_stream() == "current"


def test_a_stream_stays_the_threads_own_until_another_is_set_if_torch_has_scopes_alone():
    current, left = threading.local(), []

    @contextlib.contextmanager
    def scope(stream):
        before, current.stream = getattr(current, "stream", "default"), stream
        try:
            yield
        finally:
            current.stream = before
            left.append(stream)

    device = FakeAccelerator(Stream=object, stream=scope, current_stream=lambda index: current.stream)
    device.set_stream("first")
    gc.collect()
    assert device.current_stream() == "first" and left == []
    thread = threading.Thread(target=device.set_stream, args=["another thread's"])
    thread.start()
    thread.join()
    assert device.current_stream() == "first"
    device.set_stream("second")
    assert device.current_stream() == "second" and "second" not in left and "first" in left


def test_the_function_for_raw_streams_is_torchs_own(monkeypatch):
    function = object()
    monkeypatch.setattr(torch._C, "_fake_getCurrentRawStream", function, raising=False)
    assert FakeAccelerator(Stream=object).raw_stream_function() is function
    monkeypatch.undo()
    with pytest.raises(NotImplementedError, match="fake: torch has no function for the handle"):
        FakeAccelerator(Stream=object).raw_stream_function()
    assert FakeAccelerator().raw_stream_function()(1) == 0, "a device without streams"


def test_torch_reports_the_number_of_multiprocessors_or_it_is_one():
    counts = {None: 7, 1: 9}
    device = FakeAccelerator(get_device_properties=lambda index: SimpleNamespace(multi_processor_count=counts[index]))
    assert (device.multiprocessor_count(), device.multiprocessor_count(1)) == (7, 9)
    assert FakeAccelerator().multiprocessor_count() == 1
    assert FakeAccelerator(get_device_properties=lambda index: "text").multiprocessor_count() == 1


def test_the_modules_own_graphs_are_used():
    replayed: list[object] = []
    graph_class = type("Graph", (), {"replay": lambda self: replayed.append(self)})
    device = FakeAccelerator(
        FAKEGraph=graph_class,
        graph=lambda graph, pool, stream: contextlib.nullcontext((graph, pool, stream)),
        is_current_stream_capturing=lambda: 1,
    )
    graph = device.create_graph()
    assert type(graph) is graph_class
    with device.capture_to_graph(graph, pool="pool", stream="stream") as captured:
        assert captured == (graph, "pool", "stream")
    assert device.is_current_stream_capturing() is True
    device.replay_graph(graph)
    assert replayed == [graph]


def test_memory_is_pinned_by_torch():
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

    device, tensor = FakeAccelerator(), Tensor()
    assert device.is_pinned(device.pin_memory(tensor)) and not device.is_pinned(tensor)
    assert device.pin_memory(tensor, make_copy=False) == ((2, 3), True)
    assert device.pin_memory(tensor, make_copy=False, match_shape=False) == ((6,), True)
    assert device.register_host_memory(0, 1) is False and device.unregister_host_memory(0) is None


def test_an_unavailable_device_has_torchs_result_as_the_reason():
    assert FakeAccelerator().unavailable_reason() == "torch.fake.is_available() is False"
    with pytest.raises(AttributeError):
        FakeAccelerator().manual_seed(1)

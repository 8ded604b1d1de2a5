"""What every accelerator guarantees of streams, events and graphs."""

from __future__ import annotations

import torch
from support.devices.every_accelerator import torch_device


def test_streams_can_be_entered_and_waited_for(accelerator):
    default = accelerator.default_stream()
    assert default is not None and accelerator.current_stream(0) is not None
    stream = accelerator.Stream()
    with accelerator.stream(stream):
        assert accelerator.current_stream() == stream
    assert accelerator.current_stream() != stream
    with accelerator.stream(None):
        pass
    stream.wait_stream(accelerator.current_stream())
    stream.synchronize()
    assert stream.query() is True
    with stream:
        assert accelerator.current_stream() == stream


def test_events_are_recorded_reached_and_timed(accelerator):
    start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
    stream = accelerator.current_stream()
    start.record(stream)
    torch.ones(1000, device=torch_device(accelerator)).sum()
    end.record()
    end.wait()
    stream.wait_event(end)
    end.synchronize()
    assert end.query() is True
    assert 0 <= start.elapsed_time(end) < 60_000
    assert stream.record_event() is not None


def test_graphs_are_captured_and_replayed(accelerator):
    graph = accelerator.create_graph()
    assert graph is not None
    inputs = torch.ones(3, device=torch_device(accelerator))
    assert accelerator.is_current_stream_capturing() is False
    with accelerator.capture_to_graph(graph, pool=None, stream=None):
        doubled = inputs * 2
        assert accelerator.is_current_stream_capturing() is True
    inputs.fill_(5)
    accelerator.replay_graph(graph)
    accelerator.synchronize()
    if not doubled.is_meta:
        assert doubled.tolist() == [10.0, 10.0, 10.0]

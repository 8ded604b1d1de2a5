"""Tests of every accelerator's streams, events and graphs."""

from __future__ import annotations

import torch

from .tested import AcceleratorTests


class StreamTests(AcceleratorTests):
    """The tests of streams, events and graphs."""

    def test_streams_can_be_entered_and_waited_for(self) -> None:
        accelerator = self.accelerator
        default, current = accelerator.default_stream(), accelerator.current_stream(0)
        assert default is not None and current is not None, (
            f"the default stream is {default!r}, the current one {current!r}: expected objects, which callers wait for"
        )
        stream = accelerator.Stream()
        with accelerator.stream(stream):
            inside = accelerator.current_stream()
            assert inside == stream, f"in `with stream(s)` the current stream is {inside!r}, expected {stream!r}"
        after = accelerator.current_stream()
        assert after != stream, (
            f"after `with stream(s)` the current stream is still {after!r}: work goes to the wrong one"
        )
        with accelerator.stream(None):
            pass
        stream.wait_stream(after)
        stream.synchronize()
        answer = stream.query()
        assert answer is True, f"query() of a synchronized stream is {answer!r}, expected True: callers poll it"
        with stream:
            inside = accelerator.current_stream()
            assert inside == stream, f"in `with s` the current stream is {inside!r}, expected {stream!r}"

    def test_a_stream_can_be_made_the_current_one(self) -> None:
        accelerator = self.accelerator
        before, stream = accelerator.current_stream(), accelerator.Stream()
        accelerator.set_stream(stream)
        inside = accelerator.current_stream()
        accelerator.set_stream(before)
        assert inside == stream, f"after set_stream(s) the current stream is {inside!r}, expected {stream!r}"
        after = accelerator.current_stream()
        assert after == before, f"after set_stream() of the earlier stream the current one is {after!r}"

    def test_events_are_recorded_reached_and_timed(self) -> None:
        accelerator = self.accelerator
        start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
        stream = accelerator.current_stream()
        start.record(stream)
        torch.ones(1000, device=self.tensor_device).sum()
        end.record()
        end.wait()
        stream.wait_event(end)
        end.synchronize()
        answer = end.query()
        assert answer is True, f"query() of a synchronized event is {answer!r}, expected True: callers poll it"
        elapsed = start.elapsed_time(end)
        assert 0 <= elapsed < 60_000, (
            f"elapsed_time() is {elapsed!r}, expected milliseconds between two recorded events"
        )
        event = stream.record_event()
        assert event is not None, "record_event() returned None, expected an event: callers wait for it"

    def test_graphs_are_captured_and_replayed(self) -> None:
        accelerator = self.accelerator
        graph = accelerator.create_graph()
        assert graph is not None, "create_graph() returned None, expected an object: one that runs nothing, if need be"
        inputs = torch.ones(3, device=self.tensor_device)
        answer = accelerator.is_current_stream_capturing()
        assert answer is False, f"outside of a capture, is_current_stream_capturing() is {answer!r}, expected False"
        with accelerator.capture_to_graph(graph, pool=accelerator.graph_pool_handle(), stream=None):
            doubled = inputs * 2
            answer = accelerator.is_current_stream_capturing()
            assert answer is True, (
                f"in a capture, is_current_stream_capturing() is {answer!r}, expected True: code that synchronizes"
                " then breaks the graph"
            )
        inputs.fill_(5)
        accelerator.replay_graph(graph)
        accelerator.synchronize()
        if not doubled.is_meta:
            assert doubled.tolist() == [10.0, 10.0, 10.0], (
                f"a replay with other inputs left {doubled.tolist()}, expected [10.0, 10.0, 10.0]: it must run again"
            )

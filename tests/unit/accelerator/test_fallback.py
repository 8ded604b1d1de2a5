"""The emulations for devices without streams or graphs: they measure time and replay work."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.fallback.streams import HostEvent, HostStream, current_stream, stream_scope


def test_events_measure_real_milliseconds():
    start, end = HostEvent(enable_timing=True), HostEvent(enable_timing=True)
    start.record()
    time.sleep(0.02)
    end.record()
    assert 20 <= start.elapsed_time(end) < 2000
    assert end.elapsed_time(start) < 0


def test_timing_an_event_that_was_not_recorded_or_keeps_no_time_is_an_error():
    timed, plain = HostEvent(enable_timing=True), HostEvent()
    with pytest.raises(RuntimeError, match=r"The first event was never recorded: call its record\(\) first"):
        timed.elapsed_time(HostStream().record_event(HostEvent(enable_timing=True)))
    timed.record()
    with pytest.raises(
        RuntimeError, match=r"The second event records no time: create it with Event\(enable_timing=True\)"
    ):
        timed.elapsed_time(plain)


def test_stream_scopes_nest_and_belong_to_their_thread():
    default, outer, inner = current_stream(), HostStream(), HostStream()
    with stream_scope(outer):
        with inner as entered:
            assert current_stream() is inner is entered
            seen = []
            thread = threading.Thread(target=lambda: seen.append(current_stream()))
            thread.start()
            thread.join()
            assert seen == [default]
            with stream_scope(None):
                assert current_stream() is inner
        assert current_stream() is outer
    assert current_stream() is default


def test_what_is_no_stream_is_refused_as_on_a_device():
    accelerator, before = CPUAccelerator(), current_stream()
    for use in (accelerator.set_stream, accelerator.stream):
        with pytest.raises(TypeError, match=r"^'x' is not a stream: expected Stream\(\), current_stream\(\) or None$"):
            use("x")
        use(None)
    assert current_stream() is before
    with accelerator.stream(torch.cpu.current_stream()) as of_torch:
        assert current_stream() is of_torch


def test_two_threads_may_be_inside_one_stream():
    own, shared, entered, leave = HostStream(), HostStream(), threading.Event(), threading.Event()

    def enter():
        with shared:
            entered.set()
            assert leave.wait(20)

    thread = threading.Thread(target=enter)
    with own:
        with shared:
            thread.start()
            assert entered.wait(20)
        assert current_stream() is own
        leave.set()
        thread.join()


def test_a_replayed_graph_reads_its_inputs_again():
    import torch

    cpu = CPUAccelerator()
    graph, inputs, weight = cpu.create_graph(), torch.ones(4), torch.rand(4, 4, requires_grad=True)
    total = torch.zeros(())
    with cpu.capture_to_graph(graph):
        assert cpu.is_current_stream_capturing()
        product = (weight @ inputs).relu()
        shaped = product.reshape(2, 2).t().contiguous()
        total.add_(shaped.detach().sum())
    assert not cpu.is_current_stream_capturing()
    torch.testing.assert_close(product, (weight @ inputs).relu())
    first = total.clone()
    inputs.fill_(3)
    cpu.replay_graph(graph)
    torch.testing.assert_close(product, (weight @ inputs).relu())
    torch.testing.assert_close(shaped, product.reshape(2, 2).t())
    torch.testing.assert_close(total, 4 * first)


def test_a_captured_training_step_trains_on_replay():
    import torch

    cpu = CPUAccelerator()
    weight = torch.nn.Parameter(torch.zeros(3))
    goal = torch.tensor([1.0, 2.0, 3.0])
    weight.grad = torch.zeros(3)
    graph = cpu.create_graph()
    with cpu.capture_to_graph(graph):
        weight.grad.zero_()
        ((weight - goal) ** 2).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
    for _ in range(60):
        cpu.replay_graph(graph)
    torch.testing.assert_close(weight.detach(), goal, atol=1e-4, rtol=0)


def test_a_graph_captured_in_inference_mode_replays():
    import torch

    cpu = CPUAccelerator()
    graph, inputs = cpu.create_graph(), torch.ones(3, 2)
    with torch.inference_mode(), cpu.capture_to_graph(graph):
        result = torch.nn.functional.linear(inputs, torch.ones(2, 2)).reshape(-1)
    inputs.fill_(2)
    cpu.replay_graph(graph)
    assert result.tolist() == [4.0] * 6


def test_replaying_an_empty_graph_and_filling_a_full_one_are_errors():
    import torch

    cpu = CPUAccelerator()
    graph = cpu.create_graph()
    with pytest.raises(RuntimeError, match=r"The graph is empty: fill it with capture_to_graph\(graph\)"):
        cpu.replay_graph(graph)
    with pytest.raises(ZeroDivisionError), cpu.capture_to_graph(graph):
        torch.ones(1)
        1 / 0
    with pytest.raises(RuntimeError, match="The graph is empty"):
        cpu.replay_graph(graph)
    with cpu.capture_to_graph(graph):
        torch.ones(1)
    with pytest.raises(RuntimeError, match="The graph is full: create another"), cpu.capture_to_graph(graph):
        pass
    graph.reset()
    with cpu.capture_to_graph(graph):
        torch.ones(1)

"""The stand-ins of devices without streams or graphs do real work."""

from __future__ import annotations

import threading
import time

import pytest

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.fallback.streams import HostEvent, HostStream, current_stream, stream_scope


def test_events_measure_real_milliseconds():
    start, end = HostEvent(enable_timing=True), HostEvent(enable_timing=True)
    start.record()
    time.sleep(0.02)
    end.record()
    assert 20 <= start.elapsed_time(end) < 2000
    assert end.elapsed_time(start) < 0


def test_an_event_that_was_not_recorded_or_keeps_no_time_says_so():
    timed, plain = HostEvent(enable_timing=True), HostEvent()
    with pytest.raises(RuntimeError, match=r"The first event was never recorded: call its record\(\) first"):
        timed.elapsed_time(HostStream().record_event(HostEvent(enable_timing=True)))
    timed.record()
    with pytest.raises(
        RuntimeError, match=r"The second event keeps no time: create it with Event\(enable_timing=True\)"
    ):
        timed.elapsed_time(plain)


def test_stream_scopes_nest_and_belong_to_their_thread():
    outside, one, two = current_stream(), HostStream(), HostStream()
    with stream_scope(one):
        with two as entered:
            assert current_stream() is two is entered
            seen = []
            thread = threading.Thread(target=lambda: seen.append(current_stream()))
            thread.start()
            thread.join()
            assert seen == [outside]
            with stream_scope(None):
                assert current_stream() is two
        assert current_stream() is one
    assert current_stream() is outside


def test_two_threads_may_be_inside_one_stream():
    mine, shared, entered, left = HostStream(), HostStream(), threading.Event(), threading.Event()

    def enter():
        with shared:
            entered.set()
            assert left.wait(20)

    thread = threading.Thread(target=enter)
    with mine:
        with shared:
            thread.start()
            assert entered.wait(20)
        assert current_stream() is mine
        left.set()
        thread.join()


def test_a_replayed_graph_reads_its_inputs_afresh():
    import torch

    cpu = CPUAccelerator()
    graph, given, weight = cpu.create_graph(), torch.ones(4), torch.rand(4, 4, requires_grad=True)
    total = torch.zeros(())
    with cpu.capture_to_graph(graph):
        assert cpu.is_current_stream_capturing()
        product = (weight @ given).relu()
        shaped = product.reshape(2, 2).t().contiguous()
        total.add_(shaped.detach().sum())
    assert not cpu.is_current_stream_capturing()
    torch.testing.assert_close(product, (weight @ given).relu())
    first = total.clone()
    given.fill_(3)
    cpu.replay_graph(graph)
    torch.testing.assert_close(product, (weight @ given).relu())
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
    graph, given = cpu.create_graph(), torch.ones(3, 2)
    with torch.inference_mode(), cpu.capture_to_graph(graph):
        result = torch.nn.functional.linear(given, torch.ones(2, 2)).reshape(-1)
    given.fill_(2)
    cpu.replay_graph(graph)
    assert result.tolist() == [4.0] * 6


def test_an_empty_or_full_graph_says_so():
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

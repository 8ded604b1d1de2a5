"""Progress bars, and the estimate of the time that is left."""

from __future__ import annotations

import logging

from opforge.cli import progress


def test_bars_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "is_terminal", lambda stream: True)
    with progress.reporter(2, quiet=False) as bars:
        assert isinstance(bars, progress.Bars)
        for label in ("A", "B"):
            bars.begin(label)
            bars.step(label, 1, 2, "compile [a].cpp")
            bars.end(label, "built")
        logging.getLogger("opforge").debug("beside the bars")
    assert capsys.readouterr().out == ""


def test_the_time_left_follows_the_work_done(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    estimate = progress.TimeEstimate(total=30.0)
    estimate.begin("small", 10.0)
    estimate.begin("large", 20.0)
    assert estimate.seconds_left() is None, "nothing is done yet"
    now[0] = 106.0
    estimate.step("small", 0.5)
    estimate.step("large", 0.5)
    assert estimate.done == 15.0 and estimate.seconds_left() == 6.0
    estimate.end("small")
    assert estimate.done == 20.0 and estimate.seconds_left() == 3.0
    now[0] = 109.0
    estimate.end("large")
    assert estimate.done == 30.0 and estimate.seconds_left() == 0.0


def test_an_op_may_end_while_another_thread_reads_the_work_done():
    estimate = progress.TimeEstimate(total=3.0)

    class EndingWeight(float):
        def __mul__(self, fraction):
            estimate.end("second")
            return float(self) * fraction

    estimate.begin("first", EndingWeight(1.0))
    estimate.begin("second", 2.0)
    assert estimate.done == 0.0
    assert estimate.done == 2.0


def test_steps_that_take_no_time_do_not_change_the_estimate(monkeypatch):
    monkeypatch.setattr(progress, "is_terminal", lambda stream: True)
    with progress.reporter(2, quiet=False, total=10.0) as bars:
        assert isinstance(bars, progress.Bars)
        bars.begin("A", 5.0)
        bars.step("A", 1, 4, "name libtorch_cpu.so")
        bars.step("A", 2, 4, "name libtorch_cuda.so")
        assert bars.estimate.seconds_left() is None
        bars.step("A", 3, 4, "compile a.cu")
        assert bars.estimate.done == 2.5


def test_a_silent_reporter_prints_nothing(capsys):
    with progress.reporter(1, quiet=True) as reporter:
        reporter.begin("A")
        reporter.step("A", 1, 1, "x")
        reporter.end("A", "built")
    assert capsys.readouterr() == ("", "")

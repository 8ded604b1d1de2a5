"""The targets of our ops, and how figures are compared with them."""

from __future__ import annotations

import dataclasses

import pytest


def test_every_target_belongs_to_something_that_is_measured():
    from benchmarks.gpu.functions import FUNCTIONS
    from benchmarks.gpu.targets import SHARES

    from opforge.ops import triton as ops

    measured = {(function.name, way) for function in FUNCTIONS for way in ("forward", "backward")}
    measured |= {(name, "forward") for name in ("quantize", "dequantize")}
    paged = {("decode", "forward"), ("gather", "forward")}
    assert set(SHARES) <= {*measured, *paged, ("adamw", "large")}
    assert {name for name, _way in measured} == {name for name in ops.__all__ if not name.startswith("fused_")}
    assert max(max(function.lengths) for function in FUNCTIONS) == 128 * 1024


def our_figure(function, way, share, ours, rival=None):
    """Returns our figure of a task, compared with its targets. `ours` and `rival` are microseconds."""
    from benchmarks.gpu.targets import SHARES, judged
    from benchmarks.gpu.timing import Figure

    figures = [Figure("a task", "copy", 90.0, 90.0, 1000.0, 1.0), Figure("a task", "opforge", ours, ours, 1.0, share)]
    figures += [Figure("a task", "torch", rival, rival, 1.0, 0.5)] if rival else []
    return judged(figures, SHARES.get((function, way)))[1]


@pytest.mark.parametrize(
    ("function", "way", "share", "rival", "met"),
    [
        ("softmax", "forward", 0.9, 100.0, True),
        ("softmax", "forward", 0.89, 100.0, False),
        ("layer_norm", "backward", 0.76, 100.0, True),
        ("layer_norm", "backward", 0.76, 97.0, False),
        ("layer_norm", "backward", 0.76, 98.5, True),
        ("gelu", "forward", 0.1, 100.0, True),
        ("gelu", "forward", 0.99, 50.0, False),
        ("softmax", "forward", 0.95, None, True),
        ("gelu", "forward", 0.95, None, None),
    ],
)
def test_ours_must_reach_its_share_and_be_no_slower_than_its_rivals(function, way, share, rival, met):
    assert our_figure(function, way, share, 100.0, rival).met is met


def test_the_line_of_a_figure_has_its_target_and_the_time_of_the_fastest_rival():
    from benchmarks.gpu.__main__ import HEAD, line

    figure = our_figure("softmax", "forward", 0.95, 100.0, 125.0)
    assert (figure.target, figure.note) == ("0.9 of copy, no slower than its rivals", "0.80 of the time of torch")
    assert line(figure).endswith("0.950  met: 0.9 of copy, no slower than its rivals  0.80 of the time of torch")
    assert line(dataclasses.replace(figure, target="", note="")).rstrip() == line(figure)[: len(HEAD)]
    assert "MISSED: 0.9 of copy" in line(our_figure("softmax", "forward", 0.5, 100.0))


def test_a_call_that_returns_other_bits_the_second_time_misses_its_target():
    from benchmarks.gpu.targets import judged
    from benchmarks.gpu.timing import Figure

    figures = [Figure("a task", "opforge", 1.0, 1.0, 1.0, 0.8)]
    assert judged(figures, 0.75, repeats=True)[0].met and not judged(figures, 0.75, repeats=False)[0].met
    assert judged(figures, 0.75, repeats=False)[0].note.endswith("; TWO CALLS GAVE DIFFERENT BITS")


def test_our_other_kernels_are_no_rivals():
    from benchmarks.gpu.targets import judged
    from benchmarks.gpu.timing import Figure

    times = {"copy": 5.0, "opforge": 100.0, "opforge, Triton": 10.0, "torch fused": 110.0}
    figures = judged([Figure("a task", name, time, time, None, None) for name, time in times.items()], None)
    assert figures[1].met and figures[1].note == "0.91 of the time of torch fused"
    assert [figure.met for figure in figures if figure.contender != "opforge"] == [None] * 3

"""How reports are printed."""

from __future__ import annotations

import io

from rich.console import Console


def test_a_report_is_plain_lines_in_a_pipe():
    from benchmarks import show

    from opforge.bench.harness import Report

    report = Report("what is measured", "a ceiling")
    report.table("steps", "ms", against=("ours",)).add("ours", [1.0, 2.0])
    report.figure("load", 1.25, "ms", 1.5)
    report.left_out.append("a rival: not here")
    report.notes.append("a note")
    output = io.StringIO()
    show.report("load", report, Console(file=output, soft_wrap=True))
    lines = output.getvalue().splitlines()
    assert "load: what is measured" in lines
    assert "Ceiling: a ceiling" in lines
    assert "  ours       1.5        1        2        1" in lines
    assert "met load: 1.25 ms (target: at most 1.5 ms)" in lines
    assert "Note: a note" in lines
    assert "Left out: a rival: not here" in lines
    assert "\x1b" not in output.getvalue()


def test_a_value_has_enough_digits_to_differ_from_its_target():
    from benchmarks import show

    assert show.distinct(1.00002, 1.0) == "1.00002"
    assert show.distinct(1.25, 1.0) == "1.25"
    assert show.distinct(1.0, 1.0) == "1"

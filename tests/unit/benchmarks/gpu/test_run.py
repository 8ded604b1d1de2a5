"""A run of several parts: failures, the end of its time, and what is saved."""

from __future__ import annotations

import json

from support.gpu import fake_gpu


def test_the_failure_of_a_part_does_not_end_the_others(rows, capsys, monkeypatch):
    from benchmarks.gpu import __main__ as main
    from benchmarks.gpu import first_launch

    def fail(gpu):
        raise OSError("no such tool")

    monkeypatch.setattr(first_launch, "run", fail)
    monkeypatch.setattr(rows, "FUNCTIONS", rows.FUNCTIONS[2:3])
    monkeypatch.delattr(rows.ops, "dequantize")
    results = json.loads(json.dumps(main.measure(fake_gpu.create(), ["first_launch", "rows"])))
    assert "OSError: no such tool" in results["failed"].pop("first_launch")
    assert set(results["failed"]) == {f"dequantize {bits} bits, groups of 64" for bits in (8, 4)}
    assert all("has no attribute 'dequantize'" in error for error in results["failed"].values())
    assert len(results["figures"]) == 2 * 3 + 2 * 2
    output = capsys.readouterr().out
    assert "softmax forward, rows of 64" in output
    assert "left out: softmax forward, rows of 64: Liger: not installed: pip install liger-kernel" in output
    assert {left_out["contender"] for left_out in results["left_out"]} == {"Liger", "torch"}


def test_each_figure_is_saved_at_once_and_no_task_begins_after_the_time(rows, capsys):
    from benchmarks.gpu import __main__ as main

    gpu, saved = fake_gpu.create(), []

    def save(results):
        saved.append(len(results["figures"]))
        if len(saved) == 3:
            gpu.ends = 0.0

    results = main.measure(gpu, ["rows.softmax", "rows.gelu"], save)
    assert saved[:3] == [1, 2, 3] and len(results["figures"]) == 3  # those of the first task
    assert results["stopped"] == ["rows.softmax", "rows.gelu"] and not results["failed"]
    assert "rows.gelu: out of time, the rest of it was not measured" in capsys.readouterr().out

"""The benchmarks of rows: which tasks and contenders they have."""

from __future__ import annotations

import pytest
from support.gpu import fake_gpu


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.test_all("runs each benchmark once")
def test_each_task_is_measured_beside_the_copy_with_every_contender_that_can_take_part(rows, compiled):
    gpu = fake_gpu.create({"copy": 50.0, "opforge": 80.0})
    figures = list(rows.run(gpu, compiled=compiled))
    tasks = list(dict.fromkeys(figure.task for figure in figures))
    assert len(tasks) == len(gpu.results) == 5 * 2 + 4
    for task, results in zip(tasks, gpu.results, strict=True):
        rivals = ["torch.compile"] if compiled else ["torch"] if "quantize" not in task else []
        assert [figure.contender for figure in figures if figure.task == task] == ["copy", "opforge", *rivals]
        fake_gpu.assert_results_agree(results)
    (ours,) = [
        figure for figure in figures if figure.task == "softmax backward, rows of 64" and figure.contender == "opforge"
    ]
    assert ours.gigabytes_a_second == pytest.approx(3 * 4 * 256 / 80.0 / 1e3)
    assert ours.note == f"0.80 of the time of {'torch.compile' if compiled else 'torch'}"
    assert ours.target.endswith("the same bits twice")


def test_for_few_rows_only_the_rivals_times_are_the_target(rows, monkeypatch):
    from benchmarks.gpu import few

    monkeypatch.setattr(few, "SHAPES", ((2, 64),))
    figures = list(few.run(fake_gpu.create({"opforge": 90.0})))
    assert len(figures) == 3 * 2 * 2 and {figure.share for figure in figures} == {None}
    assert figures[0].task == "layer_norm forward, 2 rows of 64"
    assert figures[0].met and figures[0].target == "no slower than its rivals"


def test_contenders_that_take_no_part_are_noted_with_the_reason(rows, monkeypatch):
    gpu = fake_gpu.create()
    functions = [function for function in rows.FUNCTIONS if function.name in ("rms_norm", "gelu")]
    monkeypatch.setattr(rows, "FUNCTIONS", functions)
    list(rows.run(gpu))
    reasons = {(left_out.task, left_out.contender): left_out.reason for left_out in gpu.left_out}
    assert reasons["rms_norm backward, rows of 64", "Liger"] == "not installed: pip install liger-kernel"
    assert reasons["gelu forward, rows of 64", "Liger"] == "Liger has no GELU but that which multiplies (GEGLU)"
    assert reasons["dequantize 4 bits, groups of 64", "torch"] == "torch has no quantisation by groups of its own"
    assert len(reasons) == 2 * 2 + 4 * 2


def test_a_rival_that_fails_is_left_out_and_a_failure_of_ours_is_raised():
    from benchmarks.gpu.contenders import usable

    def fail():
        raise RuntimeError("blocks of 131072 are too large\nat some line")

    gpu = fake_gpu.create()
    calls = usable(gpu, "a task", {"opforge": lambda: int, "Liger": lambda: fail, "torch": fail})
    assert list(calls) == ["opforge"]
    assert [(left_out.contender, left_out.reason) for left_out in gpu.left_out] == [
        ("Liger", "RuntimeError: blocks of 131072 are too large"),
        ("torch", "RuntimeError: blocks of 131072 are too large"),
    ]
    with pytest.raises(RuntimeError, match="blocks of 131072"):
        usable(gpu, "a task", {"opforge": lambda: fail})


def test_the_parts_of_rows_together_are_all_of_its_tasks(rows):
    from benchmarks.gpu import BENCHMARKS, FUNCTIONS, NAMES, selected_parts

    def tasks(*only):
        return {figure.task for figure in rows.run(fake_gpu.create(), *only)}

    assert set.union(*map(tasks, FUNCTIONS)) == tasks()
    assert {task.partition(" ")[0] for task in tasks("softmax")} == {"softmax"}
    assert {task.partition(" ")[0] for task in tasks("quantisation")} == {"quantize", "dequantize"}
    assert list(selected_parts(["quantizer", "rows"])) == ["quantizer", *(f"rows.{part}" for part in FUNCTIONS)]
    assert list(selected_parts(["few.softmax"])) == ["few.softmax"] and set(selected_parts([])) < set(NAMES)
    assert all(BENCHMARKS[name.partition(".")[0]] for name in NAMES)

"""What the GPU's benchmarks reckon with, without a GPU: bytes, targets, who takes part. Nothing is timed."""

from __future__ import annotations

import dataclasses
import json
import os
import sys

import gpu_clock
import pytest
import torch
import triton_parts

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    """`import benchmarks` finds the checkout's."""
    monkeypatch.syspath_prepend(CHECKOUT)


@pytest.fixture
def rows(monkeypatch):
    """The question, small, with torch's functions in place of ours, and without Liger."""
    from benchmarks.gpu import rows

    gpu_clock.small(rows, monkeypatch, 64)
    monkeypatch.setattr(rows, "ops", gpu_clock.stand_in())
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    return rows


def bytes_each(name, way, dtype):
    from benchmarks.gpu.functions import FUNCTIONS

    (function,) = [one for one in FUNCTIONS if one.name == name]
    return function.bytes_moved(way, 1, dtype)


def test_a_function_moves_each_of_its_matrices_once():
    assert bytes_each("layer_norm", "forward", torch.bfloat16) == 4  # x, y
    assert bytes_each("rms_norm", "backward", torch.bfloat16) == 6  # dy, x, dx
    assert bytes_each("softmax", "backward", torch.float32) == 12  # dy, y, dx
    assert bytes_each("gelu", "forward", torch.float32) == 8
    assert bytes_each("swiglu", "forward", torch.bfloat16) == 6  # gate, up, y
    assert bytes_each("swiglu", "backward", torch.bfloat16) == 10  # dy, gate, up, and two gradients


def test_quantisation_moves_values_codes_and_a_scale_a_group():
    from benchmarks.gpu.functions import quantized_bytes

    assert quantized_bytes(1024, 128, 8, torch.bfloat16) == 2048 + 1024 + 8 * 4
    assert quantized_bytes(1024, 128, 4, torch.bfloat16) == 2048 + 512 + 8 * 4


@pytest.mark.parametrize("bits", [8, 4])
def test_the_rule_in_torchs_words_is_ours(bits):
    from benchmarks.gpu.functions import torch_dequantize, torch_quantize

    from opforge.ops.triton import references

    x = torch.randn(6, 32)
    x[2] = 0.0
    codes, scales = torch_quantize(x, 32, bits)
    wanted, wanted_scales, _offsets = references.quantize(x, 32, bits, True)
    assert codes.dtype == torch.int8 and codes.numel() == x.numel() * bits // 8
    torch.testing.assert_close(scales, wanted_scales)
    assert torch.equal(torch_dequantize(codes, scales, bits, torch.float32), (wanted * wanted_scales[:, None]).view(-1))


def test_every_target_is_of_something_that_is_measured():
    from benchmarks.gpu.functions import FUNCTIONS
    from benchmarks.gpu.targets import SHARES

    from opforge.ops import triton as ops

    measured = {(one.name, way) for one in FUNCTIONS for way in one.moved}
    measured |= {(name, "forward") for name in ("quantize", "dequantize")}
    assert set(SHARES) <= measured
    assert {name for name, _way in measured} == {name for name in ops.__all__ if not name.startswith("fused_")}
    assert max(max(one.lengths) for one in FUNCTIONS) == 128 * 1024


def judged(function, way, share, ours, rival=None):
    from benchmarks.gpu.targets import judged
    from benchmarks.gpu.timing import Figure

    figures = [Figure("a task", "copy", 90.0, 90.0, 1000.0, 1.0), Figure("a task", "opforge", ours, ours, 1.0, share)]
    figures += [Figure("a task", "torch", rival, rival, 1.0, 0.5)] if rival else []
    return judged(figures, function, way)[1]


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
    assert judged(function, way, share, 100.0, rival).met is met


def test_a_verdict_says_what_was_wanted_and_how_far_the_fastest_rival_is():
    from benchmarks.gpu.__main__ import HEAD, line

    one = judged("softmax", "forward", 0.95, 100.0, 125.0)
    assert (one.target, one.note) == ("0.9 of copy, no slower than its rivals", "0.80 of the time of torch")
    assert line(one).endswith("0.950  met: 0.9 of copy, no slower than its rivals  0.80 of the time of torch")
    assert line(dataclasses.replace(one, target="", note="")).rstrip() == line(one)[: len(HEAD)]
    assert "MISSED: 0.9 of copy" in line(judged("softmax", "forward", 0.5, 100.0))


def test_each_task_is_measured_beside_the_copy_with_every_contender_that_can_take_part(rows):
    gpu = gpu_clock.clock({"copy": 50.0, "opforge": 80.0})
    figures = list(rows.run(gpu))
    tasks = list(dict.fromkeys(one.task for one in figures))
    assert len(tasks) == len(gpu.results) == 5 * 2 + 4
    for task, results in zip(tasks, gpu.results, strict=True):
        rivals = ["torch", "torch.compile"] if "quantize" not in task else ["torch.compile"]
        assert [one.contender for one in figures if one.task == task] == ["copy", "opforge", *rivals]
        gpu_clock.agree(results)
    speed = next(one for one in figures if one.task == "softmax backward, rows of 64" and one.contender == "opforge")
    assert speed.gigabytes_a_second == pytest.approx(3 * 4 * 256 / 80.0 / 1e3)
    assert speed.note.startswith("0.80 of the time of torch")


def test_who_takes_no_part_is_told_with_the_reason(rows, monkeypatch):
    gpu = gpu_clock.clock()
    monkeypatch.setattr(rows, "FUNCTIONS", [one for one in rows.FUNCTIONS if one.name in ("rms_norm", "gelu")])
    list(rows.run(gpu))
    told = {(one.task, one.contender): one.reason for one in gpu.left_out}
    assert told["rms_norm backward, rows of 64", "Liger"] == "not installed: pip install liger-kernel"
    assert told["gelu forward, rows of 64", "Liger"] == "Liger has no GELU but that which multiplies (GEGLU)"
    assert told["dequantize 4 bits, groups of 64", "torch"] == "torch has no quantisation by groups of its own"
    assert len(told) == 2 * 2 + 4 * 2


def test_a_rival_that_fails_is_left_out_and_ours_may_not_fail(rows):
    def fail():
        raise RuntimeError("blocks of 131072 are too large\nat some line")

    gpu = gpu_clock.clock()
    calls = rows.taking_part(gpu, "a task", {"opforge": lambda: int, "Liger": lambda: fail, "torch": fail})
    assert list(calls) == ["opforge"]
    assert [(one.contender, one.reason) for one in gpu.left_out] == [
        ("Liger", "RuntimeError: blocks of 131072 are too large"),
        ("torch", "RuntimeError: blocks of 131072 are too large"),
    ]
    with pytest.raises(RuntimeError, match="blocks of 131072"):
        rows.taking_part(gpu, "a task", {"opforge": lambda: fail})


def test_one_failed_question_hides_no_other(rows, capsys, monkeypatch):
    from benchmarks.gpu import __main__ as main
    from benchmarks.gpu import first_launch

    def fail(gpu):
        raise OSError("no such tool")

    monkeypatch.setattr(first_launch, "run", fail)
    monkeypatch.setattr(rows, "FUNCTIONS", rows.FUNCTIONS[2:3])
    monkeypatch.delattr(rows.ops, "dequantize")  # rows fails too, after half of its tasks
    answer = json.loads(json.dumps(main.measure(gpu_clock.clock(), ["first_launch", "rows"])))
    assert "OSError: no such tool" in answer["failed"]["first_launch"] and "dequantize" in answer["failed"]["rows"]
    assert len(answer["figures"]) == 2 * 4 + 3
    printed = capsys.readouterr().out
    assert "softmax forward, rows of 64" in printed
    assert "left out: softmax forward, rows of 64: Liger: not installed: pip install liger-kernel" in printed
    assert {one["contender"] for one in answer["left_out"]} == {"Liger", "torch"}


def test_a_part_of_the_rows_is_measured_alone_and_all_parts_are_all_of_it(rows):
    from benchmarks.gpu import ROWS
    from benchmarks.gpu.__main__ import NAMES, parts

    def tasks(*only):
        return {one.task for one in rows.run(gpu_clock.clock(), *only)}

    assert set.union(*map(tasks, ROWS)) == tasks()
    assert {task.partition(" ")[0] for task in tasks("softmax")} == {"softmax"}
    assert {task.partition(" ")[0] for task in tasks("quantisation")} == {"quantize", "dequantize"}
    assert parts(["quantizer", "rows"]) == ["quantizer", *(f"rows.{part}" for part in ROWS)]
    assert set(parts(["rows"])) < set(NAMES)


def test_what_was_measured_is_kept_at_once_and_nothing_is_begun_after_the_time(rows, capsys):
    from benchmarks.gpu import __main__ as main

    gpu, kept = gpu_clock.clock(), []

    def keep(answer):
        kept.append(len(answer["figures"]))
        if len(kept) == 4:
            gpu.ends = 0.0

    answer = main.measure(gpu, ["rows.softmax", "rows.gelu"], keep)
    assert kept[:4] == [1, 2, 3, 4] and len(answer["figures"]) == 4  # those of the first task
    assert answer["stopped"] == ["rows.softmax", "rows.gelu"] and not answer["failed"]
    assert "rows.gelu: out of time, what is left of it was not measured" in capsys.readouterr().out


def test_a_layer_that_was_brought_along_is_measured_instead_of_a_new_one(tmp_path, monkeypatch):
    from benchmarks.gpu import first_launch

    answers = iter([told(0.01, "/brought", 0), told(0.9, "jit", 12), told(0.2, "jit", 0)])
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", "/other:/brought")
    monkeypatch.setattr(first_launch, "ROUNDS", 1)
    monkeypatch.setattr(first_launch.Scratch, "child", lambda *_arguments, **_settings: next(answers))
    assert [one.microseconds for one in first_launch.run(gpu_clock.clock())] == pytest.approx([1e4, 9e5, 2e5])


def told(first, origin, compiled):
    return {"first": first, "again": 0.1, "origin": origin, "compiled": compiled}


def one_round(answers, tmp_path, monkeypatch):
    from benchmarks.gpu import first_launch
    from benchmarks.scratch import Scratch

    scratch, started = Scratch(str(tmp_path)), []

    def child(module, *arguments, **settings):
        started.append((arguments[0], settings))
        return answers[len(started) - 1]

    monkeypatch.setattr(scratch, "child", child)
    return first_launch.one_round(scratch, "/layer", "cuda", "cuda:sm_90"), started


def test_a_first_launch_starts_from_empty_stores(tmp_path, monkeypatch):
    answers = [told(0.01, "/layer", 0), told(0.9, "jit", 12), told(0.2, "jit", 0)]
    seconds, started = one_round(answers, tmp_path, monkeypatch)
    assert list(seconds.values()) == [0.01, 0.9, 0.2]
    (_, ours), (_, cold), (_, warm) = started
    assert ours["OPFORGE_CACHE_LAYERS"] == "/layer" and ours["OPFORGE_PREBUILT"] == "require"
    assert cold["TRITON_CACHE_DIR"] == warm["TRITON_CACHE_DIR"] and not os.listdir(cold["TRITON_CACHE_DIR"])
    assert len({one["OPFORGE_CACHE_DIR"] for _how, one in started}) == 3
    assert [how for how, _one in started] == ["prebuilt", "triton", "triton"]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([told(0.01, "cache", 0)], "came from 'cache', expected /layer"),
        ([told(0.01, "/layer", 0), told(0.9, "jit", 0)], "nothing compiled: 0 files were added"),
        ([told(0.01, "/layer", 0), told(0.9, "jit", 9), told(0.9, "jit", 2)], "cache warm: 2 files were added"),
    ],
)
def test_a_first_launch_that_is_not_what_it_claims_is_no_figure(tmp_path, monkeypatch, answers, said):
    with pytest.raises(Exception, match=said) as caught:
        one_round(answers, tmp_path, monkeypatch)
    assert type(caught.value).__name__ == "ChildError"


def test_a_cold_launch_must_take_ten_times_as_long_as_a_prebuilt_one():
    from benchmarks.gpu.first_launch import COLD, WARM, compared

    ours, cold, _warm = compared({"opforge": [0.02, 0.01, 0.03], COLD: [0.3, 0.2, 0.2], WARM: [0.1]})
    assert (ours.microseconds, ours.best, cold.best) == pytest.approx((20_000, 10_000, 200_000))
    assert ours.met and ours.note == "a cold one takes 10.0 times as long"
    assert compared({"opforge": [0.021], COLD: [0.2], WARM: [0.1]})[0].met is False


@triton_parts.needs_triton
def test_a_process_of_triton_itself_tells_its_first_launch(tmp_path):
    from benchmarks.gpu.child_launch import TRITON
    from benchmarks.scratch import Scratch

    found = Scratch(str(tmp_path)).child(
        "gpu.child_launch", TRITON, "cpu", "cuda:sm_90", TRITON_INTERPRET="1", PYTHONPATH=os.pathsep.join(sys.path)
    )
    assert found["origin"] == "jit" and found["compiled"] == 0 and found["first"] > 0

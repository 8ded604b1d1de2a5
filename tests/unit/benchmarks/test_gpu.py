"""What the GPU's benchmarks reckon with, without a GPU: bytes, targets, who takes part. Nothing is timed."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from support.gpu import gpu_clock, triton_parts
from support.paths import CHECKOUT


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
    assert set(SHARES) <= {*measured, ("adamw", "large")}
    assert {name for name, _way in measured} == {name for name in ops.__all__ if not name.startswith("fused_")}
    assert max(max(one.lengths) for one in FUNCTIONS) == 128 * 1024


def judged(function, way, share, ours, rival=None):
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
    assert judged(function, way, share, 100.0, rival).met is met


def test_a_verdict_says_what_was_wanted_and_how_far_the_fastest_rival_is():
    from benchmarks.gpu.__main__ import HEAD, line

    one = judged("softmax", "forward", 0.95, 100.0, 125.0)
    assert (one.target, one.note) == ("0.9 of copy, no slower than its rivals", "0.80 of the time of torch")
    assert line(one).endswith("0.950  met: 0.9 of copy, no slower than its rivals  0.80 of the time of torch")
    assert line(dataclasses.replace(one, target="", note="")).rstrip() == line(one)[: len(HEAD)]
    assert "MISSED: 0.9 of copy" in line(judged("softmax", "forward", 0.5, 100.0))


def test_what_gives_other_bits_the_second_time_misses_its_target():
    from benchmarks.gpu.targets import judged
    from benchmarks.gpu.timing import Figure

    one = [Figure("a task", "opforge", 1.0, 1.0, 1.0, 0.8)]
    assert judged(one, 0.75, repeats=True)[0].met and not judged(one, 0.75, repeats=False)[0].met
    assert judged(one, 0.75, repeats=False)[0].note.endswith("; TWO CALLS GAVE DIFFERENT BITS")


def test_our_other_forms_are_no_rivals():
    from benchmarks.gpu.targets import judged
    from benchmarks.gpu.timing import Figure

    names = {"copy": 5.0, "opforge": 100.0, "opforge, Triton": 10.0, "torch fused": 110.0}
    figures = judged([Figure("a task", name, time, time, None, None) for name, time in names.items()], None)
    assert figures[1].met and figures[1].note == "0.91 of the time of torch fused"
    assert [one.met for one in figures if one.contender != "opforge"] == [None] * 3


@pytest.mark.parametrize("compiled", [False, True])
def test_each_task_is_measured_beside_the_copy_with_every_contender_that_can_take_part(rows, compiled):
    gpu = gpu_clock.clock({"copy": 50.0, "opforge": 80.0})
    figures = list(rows.run(gpu, compiled=compiled))
    tasks = list(dict.fromkeys(one.task for one in figures))
    assert len(tasks) == len(gpu.results) == 5 * 2 + 4
    for task, results in zip(tasks, gpu.results, strict=True):
        rivals = ["torch.compile"] if compiled else ["torch"] if "quantize" not in task else []
        assert [one.contender for one in figures if one.task == task] == ["copy", "opforge", *rivals]
        gpu_clock.agree(results)
    speed = next(one for one in figures if one.task == "softmax backward, rows of 64" and one.contender == "opforge")
    assert speed.gigabytes_a_second == pytest.approx(3 * 4 * 256 / 80.0 / 1e3)
    assert speed.note == f"0.80 of the time of {'torch.compile' if compiled else 'torch'}"
    assert speed.target.endswith("the same bits twice")


def test_of_few_rows_only_the_rivals_times_are_the_target(rows, monkeypatch):
    from benchmarks.gpu import few

    monkeypatch.setattr(few, "SHAPES", ((2, 64),))
    figures = list(few.run(gpu_clock.clock({"opforge": 90.0})))
    assert len(figures) == 3 * 2 * 2 and {one.share for one in figures} == {None}
    assert figures[0].task == "layer_norm forward, 2 rows of 64"
    assert figures[0].met and figures[0].target == "no slower than its rivals"


def test_who_takes_no_part_is_told_with_the_reason(rows, monkeypatch):
    gpu = gpu_clock.clock()
    monkeypatch.setattr(rows, "FUNCTIONS", [one for one in rows.FUNCTIONS if one.name in ("rms_norm", "gelu")])
    list(rows.run(gpu))
    told = {(one.task, one.contender): one.reason for one in gpu.left_out}
    assert told["rms_norm backward, rows of 64", "Liger"] == "not installed: pip install liger-kernel"
    assert told["gelu forward, rows of 64", "Liger"] == "Liger has no GELU but that which multiplies (GEGLU)"
    assert told["dequantize 4 bits, groups of 64", "torch"] == "torch has no quantisation by groups of its own"
    assert len(told) == 2 * 2 + 4 * 2


def test_a_rival_that_fails_is_left_out_and_ours_may_not_fail():
    def fail():
        raise RuntimeError("blocks of 131072 are too large\nat some line")

    from benchmarks.gpu.contenders import taking_part

    gpu = gpu_clock.clock()
    calls = taking_part(gpu, "a task", {"opforge": lambda: int, "Liger": lambda: fail, "torch": fail})
    assert list(calls) == ["opforge"]
    assert [(one.contender, one.reason) for one in gpu.left_out] == [
        ("Liger", "RuntimeError: blocks of 131072 are too large"),
        ("torch", "RuntimeError: blocks of 131072 are too large"),
    ]
    with pytest.raises(RuntimeError, match="blocks of 131072"):
        taking_part(gpu, "a task", {"opforge": lambda: fail})


def test_one_failed_question_hides_no_other(rows, capsys, monkeypatch):
    from benchmarks.gpu import __main__ as main
    from benchmarks.gpu import first_launch

    def fail(gpu):
        raise OSError("no such tool")

    monkeypatch.setattr(first_launch, "run", fail)
    monkeypatch.setattr(rows, "FUNCTIONS", rows.FUNCTIONS[2:3])
    monkeypatch.delattr(rows.ops, "dequantize")
    answer = json.loads(json.dumps(main.measure(gpu_clock.clock(), ["first_launch", "rows"])))
    assert "OSError: no such tool" in answer["failed"].pop("first_launch")
    assert set(answer["failed"]) == {f"dequantize {bits} bits, groups of 64" for bits in (8, 4)}
    assert all("has no attribute 'dequantize'" in one for one in answer["failed"].values())
    assert len(answer["figures"]) == 2 * 3 + 2 * 2
    printed = capsys.readouterr().out
    assert "softmax forward, rows of 64" in printed
    assert "left out: softmax forward, rows of 64: Liger: not installed: pip install liger-kernel" in printed
    assert {one["contender"] for one in answer["left_out"]} == {"Liger", "torch"}


def test_a_part_of_the_rows_is_measured_alone_and_all_parts_are_all_of_it(rows):
    from benchmarks.gpu import FUNCTIONS, NAMES, QUESTIONS, parts

    def tasks(*only):
        return {one.task for one in rows.run(gpu_clock.clock(), *only)}

    assert set.union(*map(tasks, FUNCTIONS)) == tasks()
    assert {task.partition(" ")[0] for task in tasks("softmax")} == {"softmax"}
    assert {task.partition(" ")[0] for task in tasks("quantisation")} == {"quantize", "dequantize"}
    assert list(parts(["quantizer", "rows"])) == ["quantizer", *(f"rows.{part}" for part in FUNCTIONS)]
    assert list(parts(["few.softmax"])) == ["few.softmax"] and set(parts([])) < set(NAMES)
    assert all(QUESTIONS[name.partition(".")[0]] for name in NAMES)


class Calls(SimpleNamespace):
    """The ops of the optimizers, which do nothing and count their calls by name."""

    def __getattr__(self, name):
        if not name.startswith("fused_"):
            raise AttributeError(name)
        return lambda *_arguments, **_options: self.called.append(name)


@pytest.fixture
def optimizers(monkeypatch):
    """The question, small, with ops that do nothing."""
    from benchmarks.gpu import optimizers

    calls = Calls(called=[])
    monkeypatch.setattr(optimizers, "_loaded", lambda _builder, _target: calls)
    monkeypatch.setattr(optimizers, "ops", calls)
    monkeypatch.setattr(optimizers, "SMALL", [10] * 3)
    monkeypatch.setattr(optimizers, "captured", lambda call: call)
    return optimizers


def test_optimizers_are_measured_by_both_kernels_beside_torchs(optimizers):
    figures = list(optimizers.run(gpu_clock.clock({"copy": 50.0, "opforge": 90.0})))
    found = {}
    for one in figures:
        found.setdefault(one.task.replace(", 0 Mi", ""), []).append(one.contender)
    ours, small = ["opforge", "opforge, Triton"], "AdamW fp32, 1000 x 1000,"
    assert found == {
        "AdamW fp32": ["copy", *ours, "torch fused"],
        f"{small} the call, 20 in a row": [*ours, "torch fused"],
        f"{small} step(), 20 in a row": ["opforge", "torch AdamW(fused=True)", "torch AdamW(foreach=True)"],
        f"{small} the call in a graph": [*ours, "torch fused"],
        f"{small} step() in a graph": ["opforge", "torch AdamW(fused=True)"],
        "AdamW bf16 + fp32 master": ["copy", *ours, "torch: cast, fused step, cast"],
        "AdamW all bf16": ["copy", *ours, "torch fused"],
        "Lion fp32": ["copy", *ours],
        "LAMB fp32": ["copy", *ours],
    }
    assert figures[1].target == "0.92 of copy, no slower than its rivals" and figures[1].met is (
        figures[1].share > 0.92
    )
    assert figures[1].gigabytes_a_second == pytest.approx(28 * (1 << 15) / 90.0 / 1e3)
    three = next(one for one in figures if one.contender.startswith("torch: cast"))
    assert three.gigabytes_a_second == pytest.approx(40 * (1 << 14) / 100.0 / 1e3)
    assert [one.contender for one in optimizers.run(gpu_clock.clock(), "lion")] == ["copy", *ours]


def test_the_quantizer_is_measured_both_ways(monkeypatch):
    from benchmarks.gpu import quantizer

    op = SimpleNamespace(quantize_=lambda *_a, **_k: None, dequantize_=lambda *_a: None)
    monkeypatch.setattr(quantizer.QuantizerBuilder, "load", lambda _builder: op)
    monkeypatch.setattr(quantizer, "ROWS", (128,))
    figures = list(quantizer.run(gpu_clock.clock()))
    tasks = list(dict.fromkeys(one.task for one in figures))
    assert tasks == [f"CUDA {way} {bits} bits, groups of 128" for bits in (8, 4) for way in ("quantize", "dequantize")]
    assert [one.contender for one in figures][:3] == ["copy", "opforge", "opforge, stochastic"]
    assert figures[1].gigabytes_a_second == pytest.approx(3 * (1 << 16) / 100.0 / 1e3)
    assert figures[1].target == "0.9 of copy"


def test_what_was_measured_is_kept_at_once_and_nothing_is_begun_after_the_time(rows, capsys):
    from benchmarks.gpu import __main__ as main

    gpu, kept = gpu_clock.clock(), []

    def keep(answer):
        kept.append(len(answer["figures"]))
        if len(kept) == 3:
            gpu.ends = 0.0

    answer = main.measure(gpu, ["rows.softmax", "rows.gelu"], keep)
    assert kept[:3] == [1, 2, 3] and len(answer["figures"]) == 3  # those of the first task
    assert answer["stopped"] == ["rows.softmax", "rows.gelu"] and not answer["failed"]
    assert "rows.gelu: out of time, what is left of it was not measured" in capsys.readouterr().out


def test_a_layer_that_was_brought_along_is_measured_instead_of_a_new_one(tmp_path, monkeypatch):
    from benchmarks.gpu import first_launch

    answers = iter([told(0.02, "/brought", 0), told(0.01, "/brought", 0), told(0.9, "jit", 12), told(0.2, "jit", 0)])
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", "/other:/brought")
    monkeypatch.setattr(first_launch, "ROUNDS", 1)
    monkeypatch.setattr(first_launch.Scratch, "child", lambda *_arguments, **_settings: next(answers))
    figures = first_launch.run(gpu_clock.clock())
    assert [one.microseconds for one in figures[:4]] == pytest.approx([1e4, 2e4, 9e5, 2e5])
    assert [one.task for one in figures[4:]] == [first_launch.WHOLE] * 4 and figures[4].microseconds > 0


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


def test_a_first_launch_starts_from_stores_without_kernels(tmp_path, monkeypatch):
    answers = [told(0.02, "/layer", 0), told(0.01, "/layer", 0), told(0.9, "jit", 12), told(0.2, "jit", 0)]
    seconds, started = one_round(answers, tmp_path, monkeypatch)
    assert {name: first for name, (first, _whole) in seconds.items()} == {
        "opforge, the store's first process": 0.02,
        "opforge": 0.01,
        "Triton, nothing compiled": 0.9,
        "Triton, its own cache warm": 0.2,
    }
    (_, alone), (_, ours), (_, cold), (_, warm) = started
    assert ours["OPFORGE_CACHE_LAYERS"] == "/layer" and ours["OPFORGE_PREBUILT"] == "require" and ours == alone
    assert cold["TRITON_CACHE_DIR"] == warm["TRITON_CACHE_DIR"] and not os.listdir(cold["TRITON_CACHE_DIR"])
    assert len({one["OPFORGE_CACHE_DIR"] for _how, one in started}) == 3
    assert [how for how, _one in started] == ["prebuilt", "prebuilt", "triton", "triton"]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([told(0.01, "cache", 0)], "came from 'cache', expected /layer"),
        ([*[told(0.01, "/layer", 0)] * 2, told(0.9, "jit", 0)], "nothing compiled: 0 files were added"),
        (
            [*[told(0.01, "/layer", 0)] * 2, told(0.9, "jit", 9), told(0.9, "jit", 2)],
            "cache warm: 2 files were added",
        ),
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

"""The benchmarks of the optimizers and of both quantizers, with ops that do nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.gpu import fake_gpu


class FakeOps:
    """The ops of the optimizers. They do nothing."""

    def __getattr__(self, name):
        if not name.startswith("fused_"):
            raise AttributeError(name)
        return lambda *_arguments, **_options: None


@pytest.fixture
def optimizers(checkout_on_path, monkeypatch):
    """`benchmarks.gpu.optimizers` with small tensors and fake ops."""
    from benchmarks.gpu import optimizers

    ops = FakeOps()
    monkeypatch.setattr(optimizers, "loaded_op", lambda _builder, _target: ops)
    monkeypatch.setattr(optimizers, "ops", ops)
    monkeypatch.setattr(optimizers, "SMALL", [10] * 3)
    monkeypatch.setattr(optimizers, "captured", lambda call: call)
    return optimizers


@pytest.mark.long("interprets every kernel of the optimizers")
def test_optimizers_are_measured_with_both_kernels_beside_torchs(optimizers):
    figures = list(optimizers.run(fake_gpu.create({"copy": 50.0, "opforge": 90.0})))
    contenders = {}
    for figure in figures:
        contenders.setdefault(figure.task.replace(", 0 Mi", ""), []).append(figure.contender)
    ours, small = ["opforge", "opforge, Triton"], "AdamW fp32, 1000 x 1000,"
    assert contenders == {
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
    assert figures[1].target == "0.92 of copy, no slower than its rivals"
    assert figures[1].met is (figures[1].share > 0.92)
    assert figures[1].gigabytes_a_second == pytest.approx(28 * (1 << 15) / 90.0 / 1e3)
    (three,) = [figure for figure in figures if figure.contender.startswith("torch: cast")]
    assert three.gigabytes_a_second == pytest.approx(40 * (1 << 14) / 100.0 / 1e3)
    assert [figure.contender for figure in optimizers.run(fake_gpu.create(), "lion")] == ["copy", *ours]


def test_the_quantizer_is_measured_in_both_directions(monkeypatch):
    from benchmarks.gpu import quantizer

    op = SimpleNamespace(quantize_=lambda *_a, **_k: None, dequantize_=lambda *_a: None)
    monkeypatch.setattr(quantizer.QuantizerBuilder, "load", lambda _builder: op)
    monkeypatch.setattr(quantizer, "GROUPS", (128,))
    figures = list(quantizer.run(fake_gpu.create()))
    tasks = list(dict.fromkeys(figure.task for figure in figures))
    assert tasks == [f"CUDA {way} {bits} bits, groups of 128" for bits in (8, 4) for way in ("quantize", "dequantize")]
    assert [figure.contender for figure in figures][:3] == ["copy", "opforge", "opforge, stochastic"]
    moved = (3 + 4 / 128) * (1 << 16)  # values, codes, scales
    assert figures[1].gigabytes_a_second == pytest.approx(moved / 100.0 / 1e3)
    assert figures[1].target == "0.9 of copy"


def test_the_floating_point_quantizer_is_measured_in_each_format(monkeypatch):
    from benchmarks.gpu import fp_quantizer

    calls = []
    op = SimpleNamespace(
        fp_quantize_=lambda *arguments: calls.append(arguments[2:]),
        fp_dequantize_=lambda *arguments: calls.append(arguments[2:]),
        fp_selective_dequantize_=lambda *arguments: calls.append(arguments[3:]),
    )
    monkeypatch.setattr(fp_quantizer.FPQuantizerBuilder, "load", lambda _builder: op)
    monkeypatch.setattr(fp_quantizer, "GROUPS", (512,))
    gpu = fake_gpu.create()
    figures = list(fp_quantizer.run(gpu))
    assert not gpu.failed and len(figures) == 5 * (3 + 2 + 2)
    assert set(calls) == {(512, *form, *rest) for form in fp_quantizer.FORMATS.values() for rest in ((), (True,))}
    ours = [figure for figure in figures if figure.contender == "opforge"][:3]
    assert [figure.task for figure in ours] == [
        f"FP {way} 12 bits, groups of 512" for way in ("quantize", "dequantize", "dequantize 1 of 4 blocks")
    ]
    assert [figure.target for figure in ours] == ["0.9 of copy"] * 3
    moved = [(3.5 + 4 / 512) * count for count in (1 << 16, 1 << 16, 1 << 14)]
    assert [figure.gigabytes_a_second for figure in ours] == pytest.approx([x / 100.0 / 1e3 for x in moved])

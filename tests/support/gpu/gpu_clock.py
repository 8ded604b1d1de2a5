"""A GPU's clock for machines without one: contenders run on the CPU, once, and the times are made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


def clock(times: Mapping[str, float] | None = None) -> Any:
    """The benchmarks' own Gpu, but for what it would ask the device; `results` holds what each call gave.

    `times` are microseconds by contender; others take 100.
    """
    from benchmarks.gpu.timing import Gpu

    class Clock(Gpu):
        device = "cpu"

        def __init__(self) -> None:
            self.name, self.memory, self.l2, self.target = "none", 1 << 20, 1 << 10, "cuda:sm_90"
            self.rounds, self.left_out, self.failed = 1, [], {}
            self.results: list[dict[str, Any]] = []

        def measure(self, contenders: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
            self.results.append({name: call() for name, call in contenders.items() if name != "copy"})
            return {name: [(times or {}).get(name, 100.0)] for name in contenders}

        measure_steps = measure

        def wait(self) -> None:
            pass

    return Clock()


def small(rows: Any, monkeypatch: Any, columns: int) -> None:
    """Make the tasks of `benchmarks.gpu.rows` so small that the interpreter runs them, in a dtype that it has right."""
    from dataclasses import replace

    import torch

    monkeypatch.setattr(rows, "FUNCTIONS", [replace(one, lengths=(columns,)) for one in rows.FUNCTIONS])
    monkeypatch.setattr(rows, "SIZES", (columns,))
    monkeypatch.setattr(rows, "DTYPE", torch.float32)
    monkeypatch.setattr(rows, "ELEMENTS", 4 * columns)
    monkeypatch.setattr(rows, "BACKEND", "eager")


def agree(results: Mapping[str, Any]) -> None:
    """Each contender's result is ours: tensors, or tuples of them; codes may differ where a half was rounded."""
    import torch

    ours = _tensors(results["opforge"])
    for name, found in results.items():
        for one, other in zip(ours, _tensors(found), strict=False):  # ours gives offsets too, which are empty
            if one.dtype == torch.int8:
                assert (one.view(-1) != other.view(-1)).float().mean() < 0.02, name
            else:
                torch.testing.assert_close(one.view(-1), other.view(-1), rtol=1e-4, atol=1e-4)


def _tensors(found: Any) -> list[Any]:
    return [*found] if isinstance(found, tuple) else [found]


def stand_in() -> SimpleNamespace:
    """torch's own functions under the names and with the arguments of `opforge.ops.triton`'s."""
    import torch.nn.functional as F
    from benchmarks.gpu import functions

    def quantize(x: Any, group_size: int, bits: int) -> Any:
        codes, scales = functions.torch_quantize(x, group_size, bits)
        return codes, scales, scales.new_empty(0)

    return SimpleNamespace(
        layer_norm=lambda x, weight, bias, eps: F.layer_norm(x, weight.shape, weight, bias, eps),
        rms_norm=lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps),
        softmax=lambda x: x.softmax(-1),
        gelu=lambda x: F.gelu(x),
        swiglu=lambda gate, up: F.silu(gate) * up,
        quantize=quantize,
        dequantize=lambda codes, scales, offsets, bits, dtype: functions.torch_dequantize(codes, scales, bits, dtype),
    )

"""A GPU for the benchmarks on machines without one: contenders run on the CPU, once, and the times are constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


def create(times: Mapping[str, float] | None = None) -> Any:
    """Returns the benchmarks' own Gpu without its calls of the device.

    Args:
        times: Microseconds by contender. Other contenders take 100.

    Returns:
        A Gpu whose attribute `results` has what the contenders returned, one dictionary for each measurement.
    """
    from benchmarks.gpu.timing import Gpu

    class FakeGpu(Gpu):
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

    return FakeGpu()


def shrink(rows: Any, monkeypatch: Any, columns: int) -> None:
    """Makes the tasks of `benchmarks.gpu.rows` small, in a dtype that the interpreter computes correctly."""
    from dataclasses import replace

    import torch

    monkeypatch.setattr(rows, "FUNCTIONS", [replace(function, lengths=(columns,)) for function in rows.FUNCTIONS])
    monkeypatch.setattr(rows, "GROUPS", (columns,))
    monkeypatch.setattr(rows, "DTYPE", torch.float32)
    monkeypatch.setattr(rows, "ELEMENTS", 4 * columns)
    monkeypatch.setattr(rows, "BACKEND", "eager")


def assert_results_agree(results: Mapping[str, Any]) -> None:
    """Checks that each contender returned what ours did. Codes may differ if a half was rounded."""
    import torch

    ours = _tensors(results["opforge"])
    for name, result in results.items():
        for expected, actual in zip(ours, _tensors(result), strict=False):  # ours also returns offsets, which are empty
            if expected.dtype == torch.int8:
                assert (expected.view(-1) != actual.view(-1)).float().mean() < 0.02, name
            else:
                torch.testing.assert_close(expected.view(-1), actual.view(-1), rtol=1e-4, atol=1e-4)


def _tensors(result: Any) -> list[Any]:
    return [*result] if isinstance(result, tuple) else [result]


def torch_ops() -> SimpleNamespace:
    """Returns torch's own functions under the names and with the arguments of `opforge.ops.triton`'s."""
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

"""`python -m benchmarks.gpu.host_time`: what a call of a Triton op costs the host until the driver is called.

No GPU is needed: the kernels are of no library, and a function of C that does nothing stands for the driver's launch.
Tensors are of the CPU, whose memory is allocated faster than a GPU's, by about a microsecond a tensor. Processor time
of one thread is counted; rivals take turns with ours, and are torch's whole calls of 4 x 64 numbers.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from opforge.builders.triton import TRITON_BUILDERS
from opforge.builders.triton_op_builder.launching import SIGNATURES, PrebuiltKernels
from opforge.ops import triton as ops
from opforge.ops.triton import registry
from opforge.ops.triton.optimizers.adam import fused_adam_

ROUNDS, SECONDS = 15, 0.02
"""Samples of each call, and how long one takes."""
COUNTS = (1, 100, 1000)
HEAD = ("call", "opforge, us", "torch, us")


class HostOnly(PrebuiltKernels):
    """The kernels of an op whose launches end before the driver."""

    def __init__(self, op: str, kernels: Any) -> None:
        self.op, self.choices, self._ready = op, {}, {}
        self._constants = {kernel.name: kernel.constants for kernel in kernels}
        self._packing = {kernel.name: (struct.Struct(kernel.packing()).pack, kernel.pointers()) for kernel in kernels}
        self.raw_stream = lambda _device: 0
        nothing = ctypes.CDLL(None).labs
        _result, nothing.argtypes = SIGNATURES["opforge_launch"]
        nothing.restype = ctypes.c_void_p

        def launch(*arguments: Any) -> None:
            nothing(*arguments)

        self._launch = launch

    def _make_ready(self, name: str, device: int, tensor: Any) -> ctypes.c_void_p:
        assert name in self._packing, name
        return self._ready.setdefault((name, device), ctypes.c_void_p(1))


class Row(NamedTuple):
    """A call of ours, with a rival's."""

    name: str
    ours: Callable[[], object]
    rival: Callable[[], object] | None


def bind() -> None:
    """Makes all Triton ops launch nothing."""
    for where in TRITON_BUILDERS.values():
        module, _, name = where.partition(":")
        builder = getattr(importlib.import_module(module), name)
        registry.bind(HostOnly(builder.name, builder.kernels))


def rows() -> Iterator[Row]:
    """Yields the calls."""
    x, weight, bias = torch.randn(4, 64), torch.ones(64), torch.zeros(64)
    yield Row("rms_norm", lambda: ops.rms_norm(x, weight), lambda: F.rms_norm(x, (64,), weight))
    yield Row("layer_norm", lambda: ops.layer_norm(x, weight, bias), lambda: F.layer_norm(x, (64,), weight, bias))
    yield Row("softmax", lambda: ops.softmax(x), lambda: F.softmax(x, -1))
    yield Row("gelu", lambda: ops.gelu(x), lambda: F.gelu(x))
    yield Row("swiglu", lambda: ops.swiglu(x, x), lambda: F.silu(x) * x)
    codes, scales, offsets = ops.quantize(x, 64)
    yield Row("quantize", lambda: ops.quantize(x, 64), lambda: (x / (x.abs().amax(1, True) / 127)).round().char())
    yield Row("dequantize", lambda: ops.dequantize(codes, scales, offsets), lambda: codes * scales[:, None])
    leaf, dy = x.clone().requires_grad_(), torch.randn(4, 64)
    yield Row(
        "softmax, forward and backward",
        lambda: torch.autograd.grad(ops.softmax(leaf), leaf, dy),
        lambda: torch.autograd.grad(F.softmax(leaf, -1), leaf, dy),
    )
    for count in COUNTS:
        for name, is_fresh in (("the same gradients", False), ("gradients at new addresses", True)):
            yield Row(f"fused_adam_ of {count} tensors, {name}", _adam(count, is_fresh), None)


def _adam(count: int, is_fresh: bool) -> Callable[[], object]:
    params, grads, first, second = ([torch.zeros(64) for _ in range(count)] for _ in range(4))
    flag, others = torch.zeros(1, dtype=torch.int32), [torch.zeros(64) for _ in range(count)]
    numbers: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    modes: dict[str, Any] = {"step": 3, "adamw_mode": True, "bias_correction": True}

    def step() -> None:
        if is_fresh:  # made beside the last ones, so that none has the address of another
            others[:], grads[:] = grads, [torch.zeros(64) for _ in range(count)]
        fused_adam_(flag, params, grads, first, second, [], **numbers, **modes)

    return step


def cost(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the microseconds of processor time of each call: medians of samples that were taken by turns."""
    counts, samples = dict[str, int](), {name: list[float]() for name in calls}
    for name, call in calls.items():
        call()
        began = time.thread_time()
        call()
        counts[name] = max(1, int(SECONDS / max(time.thread_time() - began, 1e-6)))
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.thread_time()
            for _ in range(counts[name]):
                call()
            samples[name].append((time.thread_time() - began) / counts[name] * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> int:
    """Prints the table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.host_time", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each call")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bind()
    print(f"| {' | '.join(HEAD)} |\n|{' -- |' * len(HEAD)}")
    for row in rows():
        calls = {"ours": row.ours} | ({"rival": row.rival} if row.rival else {})
        with torch.set_grad_enabled("backward" in row.name):
            found = cost(calls, options.rounds)
        rival = f"{found['rival']:.1f}" if row.rival else ""
        print(f"| {row.name} | {found['ours']:.1f} | {rival} |", flush=True)
    registry.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main())

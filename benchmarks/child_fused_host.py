"""The fused ops' contenders on the host, by turns in one process: `python -m benchmarks.child_fused_host CASE`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from . import adamw_steps
from .adamw_steps import BETAS, DECAY, LR, Memory
from .harness import take_turns

SIZES = {"large": ((16 << 20,), 11, 1), "list": ((1000,) * 1000, 15, 3), "single": ((1000,), 25, 200)}
GROUP = 512
Contenders = dict[str, Callable[[], object]]


def _with_states(optimizer: torch.optim.Optimizer, memory: Memory) -> Callable[[], object]:
    states = zip(memory.params, memory.exp_avg, memory.exp_avg_sq, strict=True)
    for param, first, second in states:
        optimizer.state[param] = {"step": 100, "exp_avg": first, "exp_avg_sq": second}
    return optimizer.step


def _optimizers(name: str) -> tuple[Contenders, int, int]:
    from opforge.ops import CPULion, FusedAdam, FusedLamb, FusedLion

    sizes, rounds, inner = SIZES[name]
    memory = adamw_steps.make(sizes)
    options: dict[str, Any] = {"lr": LR, "betas": BETAS, "weight_decay": DECAY}
    return (
        {
            "FusedAdam": _with_states(FusedAdam(memory.params, **options), memory),
            "CPUAdam": adamw_steps.ours(memory),
            "torch AdamW(fused)": adamw_steps.torch_fused(memory),
            "C loop of AdamW": adamw_steps.c_loop(memory, 1),
            "FusedLion": _with_states(FusedLion(memory.params, **options), memory),
            "CPULion": _with_states(CPULion(memory.params, **options), memory),
            "FusedLamb": _with_states(FusedLamb(memory.params, **options), memory),
        },
        rounds,
        inner,
    )


def _quantizer() -> tuple[Contenders, int, int]:
    from opforge.builders.cpu.quantizer import QuantizerBuilder

    op = QuantizerBuilder().load()
    values = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0))
    groups = values.numel() // GROUP
    scale, zero = torch.tensor(0.02), torch.tensor(0, dtype=torch.int32)
    contenders: Contenders = {
        # Its scale is given: it looks for no range, and reads the values once.
        "torch.quantize_per_tensor, int8": lambda: torch.quantize_per_tensor(values, scale, zero, torch.qint8),
    }
    for bits in (8, 4):
        for kind in (op.Symmetric, op.Asymmetric):
            for stochastic in (False, True):
                title = f"int{bits}, {kind.name.lower()}{', stochastic' if stochastic else ''}"
                contenders[title] = lambda bits=bits, kind=kind, stochastic=stochastic: op.quantize(
                    values, groups, bits, kind, stochastic=stochastic
                )
    moved = torch.zeros(values.nbytes * 5 // 8, dtype=torch.int8)
    target = torch.empty_like(moved)
    contenders["copy"] = lambda: target.copy_(moved)
    return contenders, 11, 1


def main() -> None:
    """Print one JSON object: processor seconds of a call by contender, on one thread."""
    torch.set_num_threads(1)
    name = sys.argv[1]
    contenders, rounds, inner = _quantizer() if name == "quantizer" else _optimizers(name)
    print(json.dumps(take_turns(contenders, rounds, warmup=2, inner=inner, clock=time.process_time)))


if __name__ == "__main__":
    main()

"""A process that runs the fused ops' contenders in turns: `python -m benchmarks.optimizers.child_fused_host CASE`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import take_turns

from . import adamw_steps
from .adamw_steps import BETAS, DECAY, LR, set_states

SIZES = {"large": ((16 << 20,), 11, 1), "list": ((1000,) * 1000, 15, 3), "single": ((1000,), 25, 200)}
"""Case -> sizes of the tensors, rounds, calls per turn."""
GROUP = 512
Contenders = dict[str, Callable[[], object]]


def _optimizers(case: str) -> tuple[Contenders, int, int]:
    """Returns the contenders of a case, the rounds, and the calls per turn."""
    from opforge.ops import CPULion, FusedAdam, FusedLamb, FusedLion

    sizes, rounds, inner = SIZES[case]
    memory = adamw_steps.make(sizes)
    options: dict[str, Any] = {"lr": LR, "betas": BETAS, "weight_decay": DECAY}

    def step(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
        return set_states(optimizer, memory, lambda: 100)

    return (
        {
            "FusedAdam": step(FusedAdam(memory.params, **options)),
            "CPUAdam": adamw_steps.ours(memory),
            "torch AdamW(fused)": adamw_steps.torch_fused(memory),
            "C loop of AdamW": adamw_steps.c_loop(memory, 1),
            "FusedLion": step(FusedLion(memory.params, **options)),
            "CPULion": step(CPULion(memory.params, **options)),
            "FusedLamb": step(FusedLamb(memory.params, **options)),
        },
        rounds,
        inner,
    )


def _quantizer() -> tuple[Contenders, int, int]:
    """Returns the quantizer's contenders, the rounds, and the calls per turn."""
    from opforge.builders.cpu.quantizer import QuantizerBuilder

    op = QuantizerBuilder().load()
    values = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0))
    groups = values.numel() // GROUP
    scale, zero = torch.tensor(0.02), torch.tensor(0, dtype=torch.int32)
    contenders: Contenders = {
        # It is passed its scale: it computes no range, and reads the values once.
        "torch.quantize_per_tensor, int8": lambda: torch.quantize_per_tensor(values, scale, zero, torch.qint8),
    }
    for bits in (8, 4):
        for kind in (op.Symmetric, op.Asymmetric):
            for stochastic in (False, True):
                title = f"int{bits}, {kind.name.lower()}{', stochastic' if stochastic else ''}"
                contenders[title] = lambda bits=bits, kind=kind, stochastic=stochastic: op.quantize(
                    values, groups, bits, kind, stochastic=stochastic
                )
    source = torch.zeros(values.nbytes * 5 // 8, dtype=torch.int8)
    target = torch.empty_like(source)
    contenders["copy"] = lambda: target.copy_(source)
    return contenders, 11, 1


def main() -> None:
    """Prints one JSON object: processor seconds of a call by contender, on one thread."""
    torch.set_num_threads(1)
    case = sys.argv[1]
    contenders, rounds, inner = _quantizer() if case == "quantizer" else _optimizers(case)
    print(json.dumps(take_turns(contenders, rounds, warmup=2, inner=inner, clock=time.process_time)))


if __name__ == "__main__":
    main()

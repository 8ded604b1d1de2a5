"""A process that runs calls and copies in turns: `python -m benchmarks.quantizers.child_fp_quantizer THREADS DTYPE`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import take_turns

ELEMENTS, GROUP, BLOCKS, ROUNDS = 16 << 20, 512, 64, 9
FORMATS = {
    "12 bits": (12, 7),
    "8 bits, mantissa 3": (8, 3),
    "8 bits, mantissa 2": (8, 2),
    "6 bits": (6, 2),
    "4 bits": (4, 1),
}


def _copy(size: int) -> Callable[[], object]:
    """Returns a copy that reads and writes `size` bytes in all."""
    source, target = (torch.zeros(size // 2, dtype=torch.uint8) for _ in range(2))
    return lambda: target.copy_(source)


def main() -> None:
    """Prints one JSON object: for each format, the seconds of each call and of its copy."""
    from opforge.builders.cpu.fp_quantizer import FPQuantizerBuilder

    threads, dtype = int(sys.argv[1]), getattr(torch, sys.argv[2])
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    op: Any = FPQuantizerBuilder().load()
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0)).to(dtype)
    back, part = torch.empty_like(values), torch.empty(BLOCKS // 4, ELEMENTS // BLOCKS, dtype=dtype)
    indexes = torch.arange(0, BLOCKS, 4, dtype=torch.int32)
    results = {}
    for case, (bits, mantissa) in FORMATS.items():
        rows = torch.zeros(ELEMENTS // GROUP, GROUP * bits // 8 + 4, dtype=torch.uint8)
        form = (GROUP, bits, mantissa)
        whole = values.nbytes + rows.nbytes
        contenders = {
            "quantize": lambda rows=rows, form=form: op.fp_quantize_(rows, values, *form),
            "copy for quantize": _copy(whole),
            "dequantize": lambda rows=rows, form=form: op.fp_dequantize_(back, rows, *form),
            "copy for dequantize": _copy(whole),
            "quantize, stochastic": lambda rows=rows, form=form: op.fp_quantize_(rows, values, *form, True, 1),
            "copy for quantize, stochastic": _copy(whole),
            "dequantize 1 of 4 blocks": lambda rows=rows, form=form: op.fp_selective_dequantize_(
                part, rows, indexes, *form
            ),
            "copy for dequantize 1 of 4 blocks": _copy(whole // 4),
        }
        results[case] = take_turns(contenders, ROUNDS, clock=clock)
    print(json.dumps(results))


if __name__ == "__main__":
    main()

"""Steps AdamW's contenders in turns: `python -m benchmarks.optimizers.child_adamw CASE CONTENDER ...`."""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import torch

from benchmarks.harness import take_turns

from . import adamw_steps

THREADS = 2


class Case(NamedTuple):
    """The tensors of a step, and how often it is timed."""

    sizes: tuple[int, ...]
    rounds: int
    inner: int = 1
    pause: float = 0.005


CASES = {
    "large": Case((64 << 20,), 15),
    "list": Case((1000,) * 1000, 25, 5),
    "single": Case((1000,), 50, 200, 0.0),
}


def main() -> None:
    """Prints one JSON object: seconds of a step by contender, and the bytes that a step must move."""
    case_name, *contenders = sys.argv[1:]
    case = CASES[case_name]
    torch.set_num_threads(THREADS)
    memory = adamw_steps.make(case.sizes)
    has_bf16 = any(contender.endswith(":bf16") for contender in contenders)
    low = adamw_steps.make(case.sizes, torch.bfloat16) if has_bf16 else memory
    steps = {}
    for contender in contenders:
        name, _, dtype = contender.partition(":")
        steps[contender] = adamw_steps.CONTENDERS[name](low if dtype else memory)
    samples = take_turns(steps, case.rounds, warmup=3, inner=case.inner, pause=case.pause)
    print(json.dumps({"samples": samples, "traffic": memory.traffic, "low_traffic": low.traffic}))


if __name__ == "__main__":
    main()

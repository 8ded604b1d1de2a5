"""A child: the first training step of the transformer of examples/, compiled. Prints its time, and what was found."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from contextlib import nullcontext
from typing import Any

EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "examples")
BATCH, ALPHABET = 16, 65


def main() -> None:
    """Runs one step; with a name, inside `opforge.compiled`; with a second word, by `opforge.compile`."""
    sys.path.insert(0, os.path.join(EXAMPLE, "char_transformer"))
    import torch
    import torch._inductor.compile_fx  # what the first compile imports anyway

    model_file: Any = importlib.import_module("model")  # of the example

    import opforge

    torch.manual_seed(0)
    model = model_file.CharTransformer(ALPHABET)
    codes = torch.randint(ALPHABET, (BATCH, model_file.LENGTH + 1))
    name, is_ahead = sys.argv[1] if len(sys.argv) > 1 else "", len(sys.argv) > 2
    step: Any = opforge.compile(model.loss, name) if is_ahead else torch.compile(model.loss)
    scope: Any = opforge.compiled(name) if name and not is_ahead else nullcontext()
    began = time.perf_counter()
    with scope as graphs:
        found = time.perf_counter()
        loss: Any = step(codes[:, :-1], codes[:, 1:])
        loss.backward()
        ended = time.perf_counter()
    left = time.perf_counter()
    times = {"enter": found - began, "step": ended - began, "leave": left - ended}
    found, compiled = (graphs.found, len(graphs.compiled)) if graphs else (0, -1)
    if is_ahead:
        found, compiled = step.found, step.compiled or bool(step.problem)
    print(json.dumps({**times, "found": found, "graphs": compiled}))


if __name__ == "__main__":
    main()

"""`python -m benchmarks.gpu [QUESTION ...] [--json FILE]`: measures the named questions, or all, on the first GPU."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from dataclasses import asdict
from typing import Any

from . import QUESTIONS


def main() -> int:
    """Gives 0, 1 where a question failed, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"any of: {', '.join(QUESTIONS)}")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each contender")
    asked = parser.parse_args()
    for name in asked.questions:
        if name not in QUESTIONS:
            parser.error(f"there is no question {name!r}; there are: {', '.join(QUESTIONS)}")
    import torch

    if not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is False. Run this on a machine with one.", file=sys.stderr)
        return 2
    from .timing import Gpu

    gpu = Gpu(asked.rounds)
    print(f"{gpu.name}, second cache {gpu.l2 >> 20} MiB, torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"{'task':40} {'contender':36} {'median us':>11} {'best us':>11} {'GB/s':>8} {'of copy':>8}")
    answer: dict[str, Any] = {"gpu": gpu.name, "torch": torch.__version__, "figures": [], "failed": {}}
    for name in asked.questions or QUESTIONS:
        try:
            figures = importlib.import_module(f"benchmarks.gpu.{name}").run(gpu)
        except Exception:
            answer["failed"][name] = traceback.format_exc()
            print(f"{name} failed:\n{answer['failed'][name]}", file=sys.stderr)
            continue
        finally:
            torch.cuda.empty_cache()
        for one in figures:
            speed = "" if one.gigabytes_a_second is None else f"{one.gigabytes_a_second:8.0f}"
            share = "" if one.share is None else f"{one.share:8.3f}"
            print(f"{one.task:40} {one.contender:36} {one.microseconds:11.1f} {one.best:11.1f} {speed:>8} {share:>8}")
            answer["figures"].append(asdict(one))
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(answer, file, indent=1)
    return 1 if answer["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

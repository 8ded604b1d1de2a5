"""`python -m benchmarks.gpu [QUESTION ...] [--json FILE]`: measures the named questions, or all, on the first GPU."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import QUESTIONS

if TYPE_CHECKING:
    from .timing import Figure, Gpu

HEAD = f"{'task':44} {'contender':36} {'median us':>11} {'best us':>11} {'GB/s':>8} {'of copy':>8}"


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
    print(f"{gpu.name}, second cache {gpu.l2 >> 20} MiB, torch {torch.__version__}, CUDA {torch.version.cuda}\n{HEAD}")
    answer = measure(gpu, asked.questions or QUESTIONS)
    answer |= {"gpu": gpu.name, "torch": torch.__version__, "rounds": gpu.rounds}
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(answer, file, indent=1)
    return 1 if answer["failed"] else 0


def measure(gpu: Gpu, questions: Iterable[str]) -> dict[str, Any]:
    """Print each question's figures as they come, and give all back, with what failed and what was left out."""
    import torch

    answer: dict[str, Any] = {"figures": [], "failed": {}}
    for name in questions:
        told = len(gpu.left_out)
        try:
            for one in importlib.import_module(f"benchmarks.gpu.{name}").run(gpu):
                print(line(one))
                answer["figures"].append(asdict(one))
        except Exception:
            answer["failed"][name] = traceback.format_exc()
            print(f"{name} failed:\n{answer['failed'][name]}", file=sys.stderr)
        finally:
            torch.cuda.empty_cache()
        for left in gpu.left_out[told:]:
            print(f"left out: {left.task}: {left.contender}: {left.reason}")
    answer["left_out"] = [asdict(one) for one in gpu.left_out]
    return answer


def line(one: Figure) -> str:
    """A figure as a line of the table under HEAD; what it was to reach stands behind it."""
    speed = "" if one.gigabytes_a_second is None else f"{one.gigabytes_a_second:.0f}"
    share = "" if one.share is None else f"{one.share:.3f}"
    verdict = f"{'met' if one.met else 'MISSED'}: {one.target}" if one.target else ""
    figures = f"{one.task:44} {one.contender:36} {one.microseconds:11.1f} {one.best:11.1f} {speed:>8} {share:>8}"
    return "  ".join(part for part in (figures, verdict, one.note) if part)


if __name__ == "__main__":
    sys.exit(main())

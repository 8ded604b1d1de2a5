"""`python -m benchmarks.gpu [QUESTION ...] [--json FILE]`: measures the named questions, or all, on the first GPU.

Figures are printed, and written to FILE, as they come: a run that is killed leaves what it had.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import QUESTIONS, ROWS

if TYPE_CHECKING:
    from .timing import Figure, Gpu

NAMES = (*QUESTIONS, *(f"rows.{part}" for part in ROWS))
HEAD = f"{'task':44} {'contender':36} {'median us':>11} {'best us':>11} {'GB/s':>8} {'of copy':>8}"


def main() -> int:
    """Gives 0, 1 where a question failed, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"any of: {', '.join(NAMES)}")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each contender")
    parser.add_argument("--minutes", type=float, help="begin no task after so long")
    asked = parser.parse_args()
    for name in asked.questions:
        if name not in NAMES:
            parser.error(f"there is no question {name!r}; there are: {', '.join(NAMES)}")
    import torch

    if not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is False. Run this on a machine with one.", file=sys.stderr)
        return 2
    from .timing import Gpu

    gpu = Gpu(asked.rounds, asked.minutes)
    about = {"gpu": gpu.name, "torch": torch.__version__, "cuda": torch.version.cuda, "rounds": gpu.rounds}
    print(f"{gpu.name}, second cache {gpu.l2 >> 20} MiB, torch {torch.__version__}, CUDA {torch.version.cuda}\n{HEAD}")

    def keep(answer: dict[str, Any]) -> None:
        if asked.json:
            with open(asked.json + ".part", "w", encoding="utf-8") as file:
                json.dump(answer | about, file, indent=1)
            os.replace(file.name, asked.json)

    answer = measure(gpu, parts(asked.questions or QUESTIONS), keep)
    return 1 if answer["failed"] else 0


def parts(questions: Iterable[str]) -> list[str]:
    """The questions, with `rows` as its parts: what fails in one of them hides no other."""
    return [part for name in questions for part in ([f"rows.{one}" for one in ROWS] if name == "rows" else [name])]


def measure(
    gpu: Gpu,
    questions: Iterable[str],
    keep: Callable[[dict[str, Any]], None] = lambda _answer: None,
) -> dict[str, Any]:
    """Print each question's figures as they come, and give all back, with what failed and what was left out.

    `keep` is called with what there is, after each figure.
    """
    import torch

    from .timing import OutOfTimeError

    answer: dict[str, Any] = {"figures": [], "failed": {}, "stopped": []}
    for name in questions:
        told = len(gpu.left_out)
        try:
            module, _, part = name.partition(".")
            for one in importlib.import_module(f"benchmarks.gpu.{module}").run(gpu, *([part] if part else [])):
                print(line(one), flush=True)
                answer["figures"].append(asdict(one))
                keep(answer)
        except OutOfTimeError:
            answer["stopped"].append(name)
            print(f"{name}: out of time, what is left of it was not measured", flush=True)
        except Exception:
            answer["failed"][name] = traceback.format_exc()
            print(f"{name} failed:\n{answer['failed'][name]}", file=sys.stderr, flush=True)
        finally:
            torch.cuda.empty_cache()
        for left in gpu.left_out[told:]:
            print(f"left out: {left.task}: {left.contender}: {left.reason}", flush=True)
        answer["left_out"] = [asdict(one) for one in gpu.left_out]
        keep(answer)
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

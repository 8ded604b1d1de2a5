"""`python -m benchmarks.gpu [QUESTION ...] [--json FILE]`: measures the named questions, or all, on the current GPU.

Figures are printed, and written to FILE, as they come: a run that is killed leaves what it had.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import NAMES, parts

if TYPE_CHECKING:
    from .timing import Figure, Gpu

HEAD = f"{'task':52} {'contender':36} {'median us':>11} {'best us':>11} {'GB/s':>8} {'of copy':>8}"


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
    from .timing import Figure, Gpu

    gpu = Gpu(asked.rounds, asked.minutes)
    planned = parts(asked.questions)
    about = {"gpu": gpu.name, "torch": torch.__version__, "cuda": torch.version.cuda, "rounds": gpu.rounds}
    print(f"{gpu.name}, second cache {gpu.l2 >> 20} MiB, torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(
        f"{len(planned)} parts, {sum(planned.values()) / 60:.0f} minutes by guess: {', '.join(planned)}\n{HEAD}",
        flush=True,
    )

    def keep(answer: dict[str, Any]) -> None:
        if asked.json:
            with open(asked.json + ".part", "w", encoding="utf-8") as file:
                json.dump(answer | about, file, indent=1)
            os.replace(file.name, asked.json)

    answer = measure(gpu, planned, keep)
    missed = [one for one in answer["figures"] if one["met"] is False]
    judged = sum(one["met"] is not None for one in answer["figures"])
    print(f"{judged - len(missed)} of {judged} targets met, {len(answer['failed'])} tasks or parts failed", flush=True)
    for one in missed:
        print(line(Figure(**one)), flush=True)
    return 1 if answer["failed"] else 0


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

    answer: dict[str, Any] = {"figures": [], "failed": {}, "stopped": [], "seconds": {}}
    for name in questions:
        told, began = len(gpu.left_out), time.monotonic()
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
            gpu.failed[name] = traceback.format_exc()
        with suppress(RuntimeError):  # what is wrong with the device for good, each task tells by itself
            torch.cuda.empty_cache()
        for task in [one for one in gpu.failed if one not in answer["failed"]]:
            answer["failed"][task] = gpu.failed[task]
            print(f"{task} failed:\n{gpu.failed[task]}", flush=True)
        for left in gpu.left_out[told:]:
            print(f"left out: {left.task}: {left.contender}: {left.reason}", flush=True)
        answer["left_out"] = [asdict(one) for one in gpu.left_out]
        answer["seconds"][name] = round(time.monotonic() - began, 1)
        keep(answer)
    return answer


def line(one: Figure) -> str:
    """A figure as a line of the table under HEAD; what it was to reach stands behind it."""
    speed = "" if one.gigabytes_a_second is None else f"{one.gigabytes_a_second:.0f}"
    share = "" if one.share is None else f"{one.share:.3f}"
    verdict = f"{'met' if one.met else 'MISSED'}: {one.target}" if one.target else ""
    figures = f"{one.task:52} {one.contender:36} {one.microseconds:11.1f} {one.best:11.1f} {speed:>8} {share:>8}"
    return "  ".join(part for part in (figures, verdict, one.note) if part)


if __name__ == "__main__":
    sys.exit(main())

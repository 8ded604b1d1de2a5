"""`python -m benchmarks.gpu [NAME ...] [--json FILE]`: runs the named benchmarks, or all, on the current GPU.

Figures are printed, and written to FILE, one by one: a run that is killed leaves what it has measured.
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

from . import NAMES, selected_parts

if TYPE_CHECKING:
    from .timing import Figure, Gpu

HEAD = f"{'task':52} {'contender':36} {'median us':>11} {'best us':>11} {'GB/s':>8} {'of copy':>8}"


def main() -> int:
    """Returns 0, 1 if a task failed, or 2 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)}")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--rounds", type=int, default=30, help="samples of each contender")
    parser.add_argument("--minutes", type=float, help="begin no task after this time")
    options = parser.parse_args()
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r}; expected any of: {', '.join(NAMES)}")
    import torch

    if not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is False. Run this on a machine with one.", file=sys.stderr)
        return 2
    from .timing import Figure, Gpu

    gpu = Gpu(options.rounds, options.minutes)
    planned = selected_parts(options.names)
    machine = {"gpu": gpu.name, "torch": torch.__version__, "cuda": torch.version.cuda, "rounds": gpu.rounds}
    print(f"{gpu.name}, second cache {gpu.l2 >> 20} MiB, torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(
        f"{len(planned)} parts, {sum(planned.values()) / 60:.0f} minutes by guess: {', '.join(planned)}\n{HEAD}",
        flush=True,
    )

    def save(results: dict[str, Any]) -> None:
        if options.json:
            with open(options.json + ".part", "w", encoding="utf-8") as file:
                json.dump(results | machine, file, indent=1)
            os.replace(file.name, options.json)

    results = measure(gpu, planned, save)
    missed = [figure for figure in results["figures"] if figure["met"] is False]
    judged = sum(figure["met"] is not None for figure in results["figures"])
    print(f"{judged - len(missed)} of {judged} targets met, {len(results['failed'])} tasks or parts failed", flush=True)
    for figure in missed:
        print(line(Figure(**figure)), flush=True)
    return 1 if results["failed"] else 0


def measure(
    gpu: Gpu,
    parts: Iterable[str],
    save: Callable[[dict[str, Any]], None] = lambda _results: None,
) -> dict[str, Any]:
    """Runs parts of benchmarks and prints each figure at once.

    Args:
        gpu: The GPU to measure.
        parts: Names such as `rows.softmax`.
        save: Called with the results so far, after each figure.

    Returns:
        `figures`, `failed` (part or task -> traceback), `stopped` (parts for which there was no time), `left_out`
        (contenders that took no part), and `seconds` by part.
    """
    import torch

    from .timing import OutOfTimeError

    results: dict[str, Any] = {"figures": [], "failed": {}, "stopped": [], "seconds": {}}
    for name in parts:
        left_out_before, began = len(gpu.left_out), time.monotonic()
        try:
            benchmark, _, part = name.partition(".")
            for figure in importlib.import_module(f"benchmarks.gpu.{benchmark}").run(gpu, *([part] if part else [])):
                print(line(figure), flush=True)
                results["figures"].append(asdict(figure))
                save(results)
        except OutOfTimeError:
            results["stopped"].append(name)
            print(f"{name}: out of time, the rest of it was not measured", flush=True)
        except Exception:
            gpu.failed[name] = traceback.format_exc()
        with suppress(RuntimeError):  # raised if the device has failed for good; each task reports that itself
            torch.cuda.empty_cache()
        for task in [task for task in gpu.failed if task not in results["failed"]]:
            results["failed"][task] = gpu.failed[task]
            print(f"{task} failed:\n{gpu.failed[task]}", flush=True)
        for left_out in gpu.left_out[left_out_before:]:
            print(f"left out: {left_out.task}: {left_out.contender}: {left_out.reason}", flush=True)
        results["left_out"] = [asdict(left_out) for left_out in gpu.left_out]
        results["seconds"][name] = round(time.monotonic() - began, 1)
        save(results)
    return results


def line(figure: Figure) -> str:
    """Returns a figure as a line of the table under HEAD, followed by its target."""
    speed = "" if figure.gigabytes_a_second is None else f"{figure.gigabytes_a_second:.0f}"
    share = "" if figure.share is None else f"{figure.share:.3f}"
    verdict = f"{'met' if figure.met else 'MISSED'}: {figure.target}" if figure.target else ""
    times = f"{figure.microseconds:11.1f} {figure.best:11.1f}"
    columns = f"{figure.task:52} {figure.contender:36} {times} {speed:>8} {share:>8}"
    return "  ".join(part for part in (columns, verdict, figure.note) if part)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks [QUESTION ...] [--json FILE]`: runs the named benchmarks, or all."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from typing import Any

from rich.console import Console

from . import QUESTIONS, machine, show
from .scratch import LONG, Scratch, is_long


def main(arguments: list[str] | None = None) -> int:
    """Gives 0, or 1 where a benchmark failed. A missed target is no failure: the figures are the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"any of: {', '.join(QUESTIONS)}")
    parser.add_argument("--json", metavar="FILE", help="write all samples and figures there too ('-': to the output)")
    parser.add_argument("--long", action="store_true", help=f"measure what takes minutes too; so does {LONG}=1")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.questions if name not in QUESTIONS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(QUESTIONS)}")
    asked.long = asked.long or is_long()
    to_output = asked.json == "-"
    console = Console(stderr=to_output, soft_wrap=not sys.stdout.isatty())
    facts = machine.describe()
    show.machine(facts, console)
    failed = False
    reports: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="opforge-bench-") as folder:
        scratch = Scratch(folder, asked.long)
        # In their own order, however asked: what one has built cold, a later one finds warm.
        for name in (one for one in QUESTIONS if one in (asked.questions or QUESTIONS)):
            began = time.perf_counter()
            # The benchmarks that run in this process use the run's own store too, and threads as the children do.
            os.environ["OPFORGE_CACHE_DIR"] = scratch.cache
            try:
                found = importlib.import_module(f"benchmarks.{name}").run(scratch)
            except Exception:
                failed = True
                reports[name] = {"error": traceback.format_exc()}
                console.print(f"\n{name} failed:\n{reports[name]['error']}", style="red", markup=False)
                continue
            spent = time.perf_counter() - began
            show.report(name, found, console)
            console.print(f"({name} took {spent:.0f} s)", style="dim", highlight=False)
            reports[name] = {**found.to_json(), "seconds": spent}
    answer = {"machine": facts, "long": asked.long, "load_average_at_end": list(os.getloadavg()), "benchmarks": reports}
    if to_output:
        print(json.dumps(answer))
    elif asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(answer, file, indent=1)
            file.write("\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

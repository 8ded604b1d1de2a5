"""Compares two checkouts: `python -m benchmarks.by_turns BEFORE AFTER NAME ... [--turns N] [--rounds N]`.

Each turn runs the named benchmarks in both, by the Python of its own `.venv`, so that both meet the machine in the same
state. Printed are the medians of all samples, and the ratio of the second to the first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from rich.console import Console
from rich.table import Table

RUN = """
import importlib, sys
from benchmarks import module_name
from benchmarks.__main__ import main
rounds, file, *names = sys.argv[1:]
for module in map(importlib.import_module, map(module_name, names)):
    if int(rounds) and hasattr(module, "ROUNDS"):
        module.ROUNDS = int(rounds)
sys.exit(main([*names, "--json", file]))
"""
Samples = dict[tuple[str, str, str], list[float]]
"""Values by the benchmark, what was measured, and its unit."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a benchmark failed in a checkout."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_turns", description=__doc__)
    parser.add_argument("before", help="a checkout with an environment in .venv")
    parser.add_argument("after", help="another one")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a benchmark that both have")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0, help="how often a run measures each contender; 0: as it says")
    options = parser.parse_args(arguments)
    found: list[Samples] = [{}, {}]
    for turn in range(options.turns):
        order = (0, 1) if turn % 2 == 0 else (1, 0)  # neither is always the first
        for which in order:
            checkout = (options.before, options.after)[which]
            reports = run(checkout, options.names, options.rounds)
            for problem in (f"{name}: {report['error']}" for name, report in reports.items() if "error" in report):
                print(f"{checkout}: {problem}", file=sys.stderr)
                return 1
            add(found[which], reports)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(*found))
    return 0


def run(checkout: str, names: list[str], rounds: int) -> dict[str, Any]:
    """Runs benchmarks in a checkout; returns their reports by name."""
    with tempfile.TemporaryDirectory(prefix="opforge-turn-") as folder:
        file, python = os.path.join(folder, "reports.json"), os.path.join(checkout, ".venv", "bin", "python")
        subprocess.run([python, "-c", RUN, str(rounds), file, *names], cwd=checkout, stdout=sys.stderr, check=False)
        with open(file, encoding="utf-8") as written:
            reports: dict[str, Any] = json.load(written)["benchmarks"]
    return reports


def add(found: Samples, reports: dict[str, Any]) -> None:
    """Adds the samples of tables, and the figures, each of which is one sample."""
    for name, report in reports.items():
        for each in report["tables"]:
            for row in each["rows"]:
                found.setdefault((name, f"{each['title']}: {row['contender']}", each["unit"]), []).extend(
                    row["samples"]
                )
        for figure in report["figures"]:
            found.setdefault((name, figure["what"], figure["unit"]), []).append(figure["value"])


def table(before: Samples, after: Samples) -> Table:
    """Returns what both have measured, with the ratio of the second to the first."""
    shown = Table("benchmark", "measured", "before", "after", "unit", "ratio", box=None)
    for key in before:
        if key in after:
            one, other = statistics.median(before[key]), statistics.median(after[key])
            ratio = f"{other / one:.2f}" if one else "-"
            shown.add_row(key[0], key[1], f"{one:.4g}", f"{other:.4g}", key[2], ratio)
    return shown


if __name__ == "__main__":
    sys.exit(main())

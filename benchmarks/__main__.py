"""`python -m benchmarks [NAME ...] [--json FILE]`: runs the named benchmarks, or all."""

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

from opforge.bench import files, machine
from opforge.errors import BenchFileError

from . import BENCHMARKS, module_name, show
from .scratch import LONG, Scratch, is_long

NAMES = [*BENCHMARKS, *sorted({*BENCHMARKS.values()} - {*BENCHMARKS})]
"""The benchmarks, and the folders that hold several."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a benchmark failed. A missed target is no failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)}")
    parser.add_argument(
        "--json", metavar="FILE", help="also write all samples and figures to FILE ('-': to the output)"
    )
    parser.add_argument("--long", action="store_true", help=f"also measure what takes minutes; {LONG}=1 does the same")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; expected any of: {', '.join(NAMES)}")
    long = options.long or is_long()
    to_output = options.json == "-"
    if options.json and not to_output:
        try:
            files.check_writable(options.json)
        except BenchFileError as error:
            parser.error(str(error))
    console = Console(stderr=to_output, soft_wrap=not sys.stdout.isatty())
    description = machine.describe()
    show.machine(description, console)
    # In the table's order, whatever order was requested: a later benchmark uses what an earlier one built cold.
    selected = [name for name, folder in BENCHMARKS.items() if {name, folder} & {*(options.names or BENCHMARKS)}]
    with tempfile.TemporaryDirectory(prefix="opforge-bench-") as folder:
        scratch = Scratch(folder, long)
        reports = {name: _run(name, scratch, console) for name in selected}
    output = {
        "machine": description,
        "long": long,
        "load_average_at_end": list(os.getloadavg()),
        "benchmarks": reports,
    }
    if to_output:
        print(json.dumps(output))
    elif options.json:
        files.write(options.json, json.dumps(output, indent=1) + "\n")
    return int(any("error" in report for report in reports.values()))


def _run(name: str, scratch: Scratch, console: Console) -> dict[str, Any]:
    """Runs one benchmark and prints its report. Returns the report for JSON, or its traceback as `error`."""
    began = time.perf_counter()
    # Some benchmarks measure in this process: they must use the run's store, as the child processes do.
    os.environ["OPFORGE_CACHE_DIR"] = scratch.cache
    try:
        report = importlib.import_module(module_name(name)).run(scratch)
    except Exception:
        error = traceback.format_exc()
        console.print(f"\n{name} failed:\n{error}", style="red", markup=False)
        return {"error": error}
    seconds = time.perf_counter() - began
    show.report(name, report, console)
    console.print(f"({name} took {seconds:.0f} s)", style="dim", highlight=False)
    return {**report.to_json(), "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())

"""Counts how many defects the tests find: `python tests/mutants`, `python tests/mutants --drawn 30`.

Each defect is put into a copy of the checkout, and tests run there until one fails. For a defect that is drawn those
are the tests that reach its line: `--record` notes them first, with coverage.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from by_hand import EDITS
from drawn import SEED, draw

ROOT = Path(__file__).resolve().parents[2]
FIRST = ("tests/spine", "tests/unit", "tests/contract/test_accelerators.py")
MAPS = ROOT / ".cache" / "mutants"
MOST_TESTS = 400
"""How many of the tests that reach a line are run; those of the fewest lines first would be the most pointed."""
SECONDS = 900
CONFIG = """
[run]
source_pkgs = opforge
concurrency = multiprocessing,thread
parallel = true
sigterm = true
context = ${PYTEST_CURRENT_TEST-none}
data_file = DATA
"""


def copy_of_checkout(folder: Path) -> None:
    """Copies what git knows and what it does not ignore, with its links."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    metadata = ROOT / "src" / "opforge.egg-info"
    if metadata.exists():  # some versions of pip leave none behind: then that of the environment counts
        shutil.copytree(metadata, folder / "src" / metadata.name)


def run(folder: Path, tests: Sequence[str], tier: str) -> tuple[str, float]:
    """Runs tests in a copy until one fails; returns the failed one or an empty text, and processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    options = ["-x", "-q", "-n", "2", "-p", "no:cacheprovider", "--timeout", "200", *(("--tier", tier) if tier else ())]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS)
        output, failed = done.stdout, done.returncode not in (0, 5)
    except subprocess.TimeoutExpired:
        output, failed = "FAILED no end", True
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    by = (lines[0] if lines else f"ERROR {output[-300:]}") if failed else ""
    return by, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def count(
    name: str, folder: Path, path: str, change: Callable[[str], str], tests: Sequence[Sequence[str]], tier: str
) -> bool:
    """Puts a defect into the copy, and runs each group of tests until one fails. Returns whether it was found."""
    file = folder / path
    text = file.read_text()
    file.write_text(change(text))
    seconds, by = 0.0, ""
    try:
        for group in tests:
            by, more = run(folder, group, tier)
            seconds += more
            if by:
                break
    finally:
        file.write_text(text)
    print(f"{name:70} {'found' if by else 'SURVIVED':8} {seconds:5.0f} s  {by.split(' - ')[0][:160]}", flush=True)
    return bool(by)


def record(tier: str) -> None:
    """Runs a tier with coverage, and notes which tests reach which lines."""
    shutil.rmtree(MAPS / tier, ignore_errors=True)
    (MAPS / tier).mkdir(parents=True)
    config = MAPS / tier / "coveragerc"
    config.write_text(CONFIG.replace("DATA", str(MAPS / tier / "data")))
    env = {**os.environ, "COVERAGE_PROCESS_START": str(config)}
    tests = FIRST if tier == "first" else ("tests",)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--tier", tier, *tests]
    subprocess.run(command, cwd=ROOT, env=env, check=False)
    subprocess.run([sys.executable, "-m", "coverage", "combine", f"--rcfile={config}"], cwd=ROOT, check=True)


def reaching(tier: str, path: str, line: int) -> list[str]:
    """Returns the tests that reach a line, by what was recorded."""
    from coverage import CoverageData

    data = CoverageData(str(MAPS / tier / "data"))
    data.read()
    real = os.path.realpath(ROOT / path)
    contexts = {
        context.partition(" (")[0]
        for name in data.measured_files()
        if os.path.realpath(name) == real
        for context in data.contexts_by_lineno(name).get(line, [])
    }
    return sorted(context for context in contexts if "::" in context)[:MOST_TESTS]


def replaced(old: str, new: str) -> Callable[[str], str]:
    """Returns what replaces a text, which must be there once."""

    def change(text: str) -> str:
        assert text.count(old) == 1, f"it is there {text.count(old)} times: {old}"
        return text.replace(old, new)

    return change


def line_replaced(line: int, text: str) -> Callable[[str], str]:
    """Returns what replaces a line."""

    def change(content: str) -> str:
        lines = content.splitlines(keepends=True)
        return "".join([*lines[: line - 1], text, *lines[line:]])

    return change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="defects of by_hand.py; without any, all")
    parser.add_argument("--tier", default="first", choices=("first", "rest", "all"))
    parser.add_argument("--drawn", type=int, default=0, help="that many drawn defects in place of those by hand")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first drawn ones")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--record", action="store_true", help="note which tests reach which lines, and do nothing else")
    parser.add_argument(
        "--quick", action="store_true", help="run only what is tried first, and not the rest of the tier"
    )
    options = parser.parse_args()
    if options.record:
        return record(options.tier)
    tier = "" if options.tier == "all" else options.tier
    rest = [["tests"] if options.tier != "first" else [*FIRST]]
    with tempfile.TemporaryDirectory(prefix="opforge-mutants-") as scratch:
        folder = Path(scratch, "checkout")
        copy_of_checkout(folder)
        found = []
        if options.drawn:
            for number, place in enumerate(draw(ROOT, options.drawn, options.seed)[options.skip :], options.skip):
                tests = reaching(options.tier, place.path, place.first)
                name = f"{number} {place.path}:{place.first} {place.what}"
                groups = [tests] if tests else []
                found.append(count(name, folder, place.path, line_replaced(place.first, place.text), groups, tier))
        else:
            for name in options.names or EDITS:
                edit = EDITS[name]
                groups = [[test] for test in edit.tests] + ([] if options.quick else rest)
                found.append(count(name, folder, edit.path, replaced(edit.old, edit.new), groups, tier))
    print(f"{sum(found)} of {len(found)} found")
    sys.exit(not all(found) and not options.drawn)


if __name__ == "__main__":
    main()

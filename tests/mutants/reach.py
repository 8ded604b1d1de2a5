"""Which tests reach which lines of the product: noted by coverage, a part of the tests at a time, in `.cache/mutants`."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from support import tiers

MAPS = ROOT / ".cache" / "mutants"
SPINE = "tests/spine"
CONFIG = """
[run]
source_pkgs = opforge
concurrency = multiprocessing,thread
parallel = true
patch = _exit
context = ${PYTEST_CURRENT_TEST-}
data_file = DATA
disable_warnings = no-data-collected, module-not-measured, module-not-imported, already-imported
"""
"""A process that a test starts has the test's name as its context by the environment, the test's own by contexts.py."""


def parts(tier: str) -> list[str]:
    """Returns what is recorded at a time: each place of the first tier, and each folder of tests/unit."""
    folder = ROOT / "tests"
    places = tiers.FIRST if tier == "first" else sorted(path.name for path in folder.iterdir() if path.is_dir())
    unit = sorted(path.name for path in (folder / "unit").iterdir() if not path.name.startswith("__"))
    found = [name for place in places for name in ([f"unit/{one}" for one in unit] if place == "unit" else [place])]
    return [f"tests/{name}" for name in found]


def record(tier: str, paths: Iterable[str]) -> None:
    """Runs parts of a tier with coverage. Without paths, those that are not recorded yet: it may be interrupted."""
    for part in [*paths] or [part for part in parts(tier) if not (_folder(tier, part) / "data").exists()]:
        print(f"{tier} {part}", flush=True)
        folder = _folder(tier, part)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = folder / "coveragerc"
        config.write_text(CONFIG.replace("DATA", str(folder / "data")))
        here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        env = {**os.environ, "COVERAGE_PROCESS_START": str(config), "PYTHONPATH": here}
        chosen = ("--tier", tier) if tier != "all" else ()
        options = ["-q", "-n", "2", "-p", "no:cacheprovider", "-p", "contexts", *chosen]
        subprocess.run([sys.executable, "-m", "pytest", *options, part], cwd=ROOT, env=env, check=False)
        combine = [sys.executable, "-m", "coverage", "combine", "--quiet", f"--rcfile={config}"]
        subprocess.run(combine, cwd=ROOT, check=True)


def _folder(tier: str, part: str) -> Path:
    return MAPS / tier / part.replace("/", "-")


@functools.cache
def _noted(tier: str) -> tuple[dict[str, list[dict[int, list[str]]]], dict[str, int]]:
    """Returns, for each file, the tests that reach each line, by part; and how many files each test reaches."""
    from coverage import CoverageData

    reached: dict[str, list[dict[int, list[str]]]] = {}
    files: dict[str, int] = {}
    for name in sorted((MAPS / tier).glob("*/data")):
        data = CoverageData(str(name))
        data.read()
        for file in data.measured_files():
            lines = data.contexts_by_lineno(file)
            reached.setdefault(os.path.realpath(file), []).append(lines)
            for context in {context for contexts in lines.values() for context in contexts}:
                files[context] = files.get(context, 0) + 1
    return reached, files


def reaching(tier: str, path: str, lines: Iterable[int], named: Sequence[str] = ()) -> list[str]:
    """Returns the tests that reach one of the lines, the most pointed first.

    Those are what is below the paths that are named, and then what reaches few files.
    """
    reached, files = _noted(tier)
    contexts = {
        context
        for part in reached.get(os.path.realpath(ROOT / path), [])
        for line in lines
        for context in part.get(line, [])
    }
    tests: dict[str, int] = {}
    for context in contexts:
        test = re.sub(r" \((setup|call|teardown)\)$", "", context)
        if "::" in test:
            tests[test] = tests.get(test, 0) + files[context]
    return sorted(tests, key=lambda test: (test.startswith(SPINE), not test.startswith((*named,)), tests[test], test))

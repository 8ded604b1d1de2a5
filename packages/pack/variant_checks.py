"""Tries a variant that runs here in a process of its own: imports it, runs torch's checks, and the package's tests."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opforge.packages.form.metadata import Metadata
from opforge.packages.project import hub_cache
from opforge.packages.sources.project import Project

from . import device_tests, properties

CHECKS = ("schemas", "import", "opcheck", "graph", "tests")
TIMEOUT = 1800.0
MOST_FAILURES = 5
"""How many of the tests that failed are named."""
LONG_SECONDS = 60.0
"""How long a package's tests may take before the longest one is named."""
PASSED = "passed"
CLIENT = "kernels"
"""The distribution, and the module, of the hub's own loader."""
OURS, HUBS = "OPFORGE_KERNELS", "LOCAL_KERNELS"
"""The variables that name folders of kernels for opforge, and for the hub's own loader."""
LOADED = re.compile(r"""\bget_kernel\(\s*["']([\w./-]+/[\w.-]+)["']""", re.ASCII)


def not_run(reason: str) -> dict[str, str]:
    """Returns the outcome of checks that were not run."""
    return dict.fromkeys(CHECKS, f"not run: {reason}")


def run(
    folder: str, project: Project, stated: Metadata, note: Callable[[str], None] = lambda _text: None
) -> dict[str, str]:
    """Returns the outcome of each check: passed, failed with the reason, or not run with the reason.

    `note` is called with the longest test if all of them take long.
    """
    if problem := unfit(stated):
        return not_run(problem)
    with tempfile.TemporaryDirectory(prefix="opforge-try-") as scratch:
        environment = _environment(folder, project, scratch)
        checks = _checks(folder, project, environment, scratch)
        return {**checks, "tests": _tests(project, environment, scratch, checks["import"] == PASSED, note)}


def _environment(folder: str, project: Project, scratch: str) -> dict[str, str]:
    """Returns the environment in which the variant in a folder is tried."""
    # The tests of a hub kernel import it by its Python name.
    os.symlink(folder, os.path.join(scratch, project.python_name))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((scratch, project.folder, *filter(None, [os.environ.get("PYTHONPATH")]))),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Where the hub's own loader looks, which its tests call. Others that the user has named stay named.
        **{name: os.pathsep.join(_named(name, project.name, folder)) for name in (OURS, HUBS)},
    }


def _checks(folder: str, project: Project, environment: Mapping[str, str], scratch: str) -> dict[str, str]:
    """Returns the outcome of each check but the package's tests."""
    outcome = os.path.join(scratch, "outcome.json")
    module = "opforge.packages.pack.variant_checks_process"
    done = _child([sys.executable, "-m", module, folder, project.samples, outcome], environment, scratch)
    try:
        with open(outcome, encoding="utf-8") as file:
            checks: dict[str, str] = json.load(file)
    except (OSError, ValueError):
        checks = dict.fromkeys(CHECKS[:-1], "not run: the process that tries it ended")
        checks["import"] = f"failed: {done}"
    return checks


def _tests(
    project: Project, environment: Mapping[str, str], scratch: str, is_imported: bool, note: Callable[[str], None]
) -> str:
    """Returns the outcome of the package's tests, which are run if the package could be imported."""
    if project.tests and _lack_client(project.tests):
        return f"not run: they import {CLIENT}, the hub's own loader: pip install {CLIENT}"
    if project.tests and (others := _other_kernels(project)):
        advice = f"name its folder, {HUBS}={others[0]}=FOLDER"
        return f"not run: they load {', '.join(others)}, which is not here: {advice}"
    if not project.tests:
        return "not run: the package has none"
    if not is_imported:
        return "not run: the package cannot be imported"
    plugins = ("-p", "no:cacheprovider", "-p", "opforge.packages.pack.device_tests")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, project.tests]
    notes, began = os.path.join(scratch, "tests.json"), time.monotonic()
    # What the user sets for other tests would change what is printed; a narrow terminal leaves out errors.
    own = {device_tests.NOTES: notes, "PYTEST_ADDOPTS": "", "COLUMNS": "200"}
    done = _child(command, {**environment, **own}, scratch)
    done = done.replace(os.path.relpath(project.folder, scratch) + os.sep, "")
    outcome = _tests_outcome(f"{done}{_unfinished(notes)}" if done.startswith("exit: ") else done)
    seconds = time.monotonic() - began
    if seconds > LONG_SECONDS:
        note(f"the package's tests took {seconds:.0f} s{_longest(notes)}")
    return outcome


def _notes(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {"running": "", "longest": ("", 0.0)}


def _unfinished(path: str) -> str:
    running = _notes(path)["running"]
    return f", in {running}" if running else ""


def _longest(path: str) -> str:
    name, seconds = _notes(path)["longest"]
    return f", and {seconds:.0f} s of that {name}" if name else ""


def _lack_client(tests: str) -> bool:
    """Returns whether a package's tests import the hub's own loader, and it is not installed."""
    if importlib.util.find_spec(CLIENT) is not None:
        return False
    pattern = re.compile(rf"^\s*(?:import|from)\s+{CLIENT}\b", re.MULTILINE)
    return any(pattern.search(path.read_text("utf-8", "replace")) for path in Path(tests).rglob("*.py"))


def _named(variable: str, name: str, folder: str) -> list[str]:
    """Returns the folders in a variable, NAME=FOLDER each; the package that is tried replaces the one of its name."""
    before = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
    return [f"{name}={folder}", *(part for part in before if part.partition("=")[0].strip() != name)]


def _other_kernels(project: Project) -> list[str]:
    """Returns the kernels that a package's tests load by the hub's loader, and that it would have to download."""
    local = {part.partition("=")[0].strip().lower() for part in _named(HUBS, project.name, "")}
    names_in_tests: dict[str, None] = {}
    for path in sorted(Path(project.tests).rglob("*.py")):
        for name in LOADED.findall(path.read_text("utf-8", "replace")):
            if name.lower() not in local and not hub_cache.is_cached(name):
                names_in_tests[name] = None
    return [*names_in_tests]


def unfit(stated: Metadata) -> str:
    """Returns why a variant cannot run on this machine, or an empty text."""
    from opforge.builders.declaration.machine import this_machine
    from opforge.builders.lookup import device_requirements, fit

    record: Any = stated.opforge["record"]
    if record is None:
        backend = stated.opforge["properties"]["backend"]
        device = properties.DEVICES.get(backend, "")
        has_device = backend in ("cpu", "universal") or (device and this_machine(device).devices)
        return "" if has_device else f"no device for {backend} is here"
    device, _, arch = record["target"].partition(":")
    here = this_machine(device)
    if device != "cpu" and not here.devices:
        return f"no {device} device is here"
    problem = fit.entry_problem(record, here)
    if not problem and device != "cpu":
        problem = device_requirements.device_problem(record, tuple(arch.split("+")), here)
    return problem or ""


def _child(command: list[str], environment: Mapping[str, str], folder: str) -> str:
    """Runs a command and returns its last line of output, with how it ended if it failed."""
    try:
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"exit: it took longer than {TIMEOUT:.0f} s"
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines() or [""]
    last = lines[-1] if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    if done.returncode == 0:
        return str(last)
    text = _summary(lines) if "pytest" in command else "".join(last)
    return f"exit {done.returncode}: {text}"


def _summary(lines: list[str]) -> str:
    """Returns pytest's last line, with the first of its lines on tests that failed: their names and errors."""
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    more = [f"and {len(failed) - MOST_FAILURES} more"] if len(failed) > MOST_FAILURES else []
    total = re.sub(r" in [0-9.]+s.*", "", lines[-1].strip("= "))
    return "; ".join([total, *failed[:MOST_FAILURES], *more])


def _tests_outcome(line: str) -> str:
    """Returns the outcome of pytest's last line, without the time that it took."""
    if line.endswith("No module named pytest"):
        return "failed: pytest is missing, which runs the package's tests: pip install pytest (--no-try runs none)"
    summary = re.sub(r" in [0-9.]+s.*", "", line.strip("= "))
    if line.startswith("exit 5"):
        return "not run: pytest found no test"
    failure = re.sub(r"^exit [0-9]+: ", "", line)
    return f"failed: {failure}" if line.startswith("exit") else f"{PASSED}: {summary}"

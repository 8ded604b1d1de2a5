"""Tests whether compiled graphs can be shared with the installed torch, in processes of their own; records the result.

A release of torch that opforge does not know may have changed what `torch_internals/inductor.py` wraps. A function of
another form would give wrong graphs without an error. So it is tried: a graph must be found in another process without
a compiler; after an edit of a kernel, a schema or a fake kernel the results must be those of the edit; and where a
guard fails something must be compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from opforge.builders.declaration import machine
from opforge.foundation.remembered_values import RACY_NS
from opforge.torch_internals import inductor

from . import graph_steps
from .graph_steps import EDITED, FIRST, FOUND, MARK

TITLES = {
    FIRST: "functions are compiled and kept",
    FOUND: "another process finds them without a compiler, and a guard that fails is noticed",
    EDITED: "edits of a kernel, a schema and a fake kernel are noticed",
}
SETTINGS = {"OPFORGE_REMOTES": "", "OPFORGE_COMPILED_WAIT": "0", "OPFORGE_CACHE_LAYERS": ""}
LAST = 400
"""How many characters of what a process printed are shown."""


class Outcome(NamedTuple):
    """The result of a step."""

    step: str
    state: str
    """ok, failed, or skipped: a step before it has failed."""
    reason: str = ""
    seconds: float = 0.0


def run(timeout: float, ended: Callable[[Outcome], None]) -> tuple[str, list[Outcome]]:
    """Tries the installed torch, each step in a process of its own. Returns its version and the outcomes.

    If all steps pass, that is remembered on this machine for this torch, unless opforge knows it.

    Args:
        timeout: Seconds that one step may take.
        ended: Is called with each outcome.
    """
    version = machine.this_machine().torch
    if not version:
        return "", [Outcome(TITLES[FIRST], "failed", "torch is not installed")]
    before = inductor.stamps()
    if before[0].is_racy(before[1]):  # torch was installed just now: a change in the same moment would not be seen
        time.sleep(2 * RACY_NS / 1e9)
        before = inductor.stamps()
    outcomes = list[Outcome]()
    with tempfile.TemporaryDirectory(prefix="opforge-check-") as folder:
        for kind in (FIRST, FOUND, EDITED):
            if outcomes and outcomes[-1].state != "ok":
                outcome = Outcome(TITLES[kind], "skipped", "the step before it did not pass")
            else:
                outcome = _step(kind, version, folder, timeout)
            outcomes.append(outcome)
            ended(outcome)
    if all(outcome.state == "ok" for outcome in outcomes):
        inductor.remember(version, before)
    return version, outcomes


def _step(kind: str, version: str, folder: str, timeout: float) -> Outcome:
    env = {**os.environ, **SETTINGS, "OPFORGE_CACHE_DIR": os.path.join(folder, "store")}
    env["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, kind)
    if kind == FOUND:
        env["CXX"] = os.path.join(folder, "no-compiler")
    began = time.monotonic()
    command = [sys.executable, "-P", "-m", graph_steps.__name__, kind, version]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(TITLES[kind], "failed", f"it did not end within {timeout:g} s", timeout)
    seconds = round(time.monotonic() - began, 1)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        last = " ".join(done.stderr.split())[-LAST:]
        return Outcome(TITLES[kind], "failed", f"exit status {done.returncode}: {last}", seconds)
    problems = json.loads(lines[-1].removeprefix(MARK))
    return Outcome(TITLES[kind], "failed" if problems else "ok", "; ".join(problems), seconds)

"""What each build of the corpus really asked for is recorded, is a part of the compiler, or has a reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from support import sample_ops, text_files
from support.compilers.observed_builds import CASES

from opforge.accelerator.target import Target
from opforge.builders import cpu
from opforge.observer.build import observe
from opforge.observer.compare import compare

LONG_TESTS = bool(os.environ.get("OPFORGE_LONG_TESTS"))  # conftest.py removes opforge's variables before a test
UNITS = (".cpp", ".cu", ".hip", ".S")
long = pytest.mark.skipif(not LONG_TESTS, reason="`make observe` runs all: set OPFORGE_LONG_TESTS=1")


def run(case, folder, monkeypatch):
    """Builds a case; returns what was found, and why notes are missing."""

    def filled(text):
        return text.replace("{0}", str(folder))

    if missing := [name for name in case.needs if not shutil.which(name)]:
        pytest.skip(f"needs {missing[0]}")
    for name, text in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text_files.write(path.parent, path.name, filled(text))
    for command in case.before:
        subprocess.run(filled(command).split(), check=True, capture_output=True)
    for name, value in case.variables.items():
        monkeypatch.setenv(name, filled(value))
    units = sorted(name for name in case.files if name.endswith(UNITS))
    attributes = {
        name: list(map(filled, value)) if isinstance(value, list) else value for name, value in case.attributes.items()
    }
    if case.device:
        attributes["devices"] = (case.device.partition(":")[0],)
    builder = sample_ops.builder_class(folder, "plain", **{"abi": "c", "sources": units, **attributes})
    return compare(observe(builder(Target.parse(case.device) if case.device else None).spec()))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if case.is_quick else long) for name, case in CASES.items()]
)
def test_what_a_build_asks_for_is_noticed(tmp_path, monkeypatch, name):
    case = CASES[name]
    outcome = run(case, tmp_path, monkeypatch)
    findings = [str(finding) for finding in outcome.findings]
    unnoticed = [line for line in findings if case.unnoticed and re.fullmatch(case.unnoticed, line)]
    assert [line for line in findings if line not in unnoticed] == []
    assert bool(unnoticed) == bool(case.unnoticed), (
        f"what {case.unnoticed} names is noticed now: say so in docs/cache.md"
    )
    assert [gap for gap in outcome.gaps if not (case.gaps and re.fullmatch(case.gaps, gap))] == []
    assert bool(outcome.gaps) == bool(case.gaps)


@long
@pytest.mark.parametrize("name", sorted(cpu.BUILDERS))
def test_what_the_build_of_an_op_of_ours_asks_for_is_noticed(name):
    from opforge.accelerator.by_device import accelerator_of

    if name == "CCLCommBuilder" and "CCL_ROOT" not in os.environ:
        pytest.skip("needs oneCCL (set CCL_ROOT)")
    builder = accelerator_of("cpu").create_op_builder(name)
    outcome = compare(observe(builder.spec()))
    assert (list(map(str, outcome.findings)), outcome.gaps) == ([], ())

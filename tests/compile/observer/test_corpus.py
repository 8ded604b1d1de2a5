"""What each build of the corpus really asked for is recorded, is a part of the compiler, or has a reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import sample_ops, text_files, tiers
from support.compilers import traced
from support.compilers.observed_builds import ADMITTED, CASES
from support.observer import build, reader
from support.observer.build import observe
from support.observer.compare import compare
from support.paths import CHECKOUT

from opforge.accelerator.by_device import accelerator_of
from opforge.accelerator.target import Target
from opforge.builders import cpu, cuda
from opforge.builders.toolchains.zig import ZigToolchain
from opforge.builders.triton import TRITON_BUILDERS

LONG = tiers.is_long()
UNITS = (".cpp", ".cu", ".hip", ".S")
long = pytest.mark.long("`make observe` runs all")


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
    assert {*case.excused} <= {*outcome.excused.values()}
    assert [gap for gap in outcome.gaps if not (case.gaps and re.fullmatch(case.gaps, gap))] == []
    assert bool(outcome.gaps) == bool(case.gaps)


def test_each_line_on_what_is_not_noticed_is_shown_by_a_build_or_a_test():
    text = Path(CHECKOUT, "docs", "cache.md").read_text().partition("A change is not noticed of\n\n")[2]
    lines = [line[2:] for line in text.partition("\n\n")[0].splitlines() if line.startswith("- ")]
    assert [line for line in lines if not line.startswith(tuple(ADMITTED))] == []
    assert [beginning for beginning in ADMITTED if not any(line.startswith(beginning) for line in lines)] == []
    shown = {name for names in ADMITTED.values() for name in names}
    for path, _, test in (name.partition("::") for name in shown - CASES.keys()):
        assert f"def {test}(" in Path(CHECKOUT, path).read_text()
    assert {name for name, case in CASES.items() if case.unnoticed or case.excused} == shown & CASES.keys()


def check(spec):
    """Builds an op that must ask for nothing that is not noticed."""
    outcome = compare(observe(spec))
    assert (list(map(str, outcome.findings)), outcome.gaps) == ([], ())


@long
@pytest.mark.parametrize("name", sorted(cpu.BUILDERS))
def test_what_the_build_of_an_op_of_ours_asks_for_is_noticed(name):
    if name == "CCLCommBuilder" and "CCL_ROOT" not in os.environ:
        pytest.skip("needs oneCCL (set CCL_ROOT)")
    check(accelerator_of("cpu").create_op_builder(name).spec())


@long
@pytest.mark.parametrize("name", sorted(cuda.BUILDERS))
def test_what_the_build_of_an_op_for_a_gpu_asks_for_is_noticed(name):
    if name in TRITON_BUILDERS:
        pytest.importorskip("triton", reason="pip install 'opforge[triton]'")
    elif not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    check(accelerator_of("cuda").get_op_builder(name)(Target.parse("cuda:sm_80")).spec())


@long
def test_what_a_static_compiler_asks_for_is_noticed(tmp_path, monkeypatch):
    """zig is one program, without a C library that could be observed: strace sees what it does."""
    pytest.importorskip("ziglang", reason="pip install 'opforge[portable]'")
    if not traced.is_allowed(tmp_path):
        pytest.skip("needs strace, and the right to trace processes")
    observed: list[tuple[str, str]] = []
    steps, notes = ZigToolchain.steps, build.read_notes

    def traced_steps(*arguments):
        logged = ((tmp_path / f"{number}.strace", step) for number, step in enumerate(steps(*arguments)))
        return [step._replace(argv=(*traced.argv(str(log)), *step.argv)) for log, step in logged]

    def with_traces(folder):
        work = os.path.join(os.path.dirname(folder), "work")
        for log in tmp_path.glob("*.strace"):
            opened, absent = traced.read(log, work)
            observed.extend([*((reader.READ, path) for path in opened), *((reader.ABSENT, path) for path in absent)])
        image = reader.Image("traced", "zig", tuple(observed))
        return reader.Observation((*notes(folder).images, image))

    monkeypatch.setattr(ZigToolchain, "steps", traced_steps)
    monkeypatch.setattr(build, "read_notes", with_traces)
    text_files.write(tmp_path, "plain.cpp", sample_ops.PLAIN_SOURCE)
    text_files.write(tmp_path, "value.h", "#define VALUE 1\n")
    builder = sample_ops.builder_class(tmp_path, "plain", abi="c")(Target.parse("cpu:x86-64-v2"), portable=True)
    outcome = compare(observe(builder.spec()))
    assert list(map(str, outcome.findings)) == []
    assert all(re.fullmatch(".*/zig, started by .*, left no notes", gap) for gap in outcome.gaps)
    assert (reader.READ, str(tmp_path / "value.h")) in observed

"""Builds whose compilers together need more memory than there is: real compilers under a control group's limit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support import child_processes, sample_ops, text_files
from support.processes.memory_group import memory_group

from opforge.builders.run import memory_needs, ninja

UNITS = 4
TEXT_BYTES = 20 << 20
"""The length of a text in each source: g++ needs about five times as much."""
HELD = """
constexpr int held() {
    int sum = 0;
    for (int i = 0; i < 200000; ++i) sum += i & 3;
    return sum;
}
constexpr int kept = held();
"""
"""Half a second of work for g++ while it has all that memory: otherwise four may each have ended before the next."""
LIMIT_BYTES = 300 << 20
"""Enough for two compilers, and not for four."""
BUILD = """
import logging, sys
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
from support import sample_ops
cls = sample_ops.builder_class({folder!r}, "hungry", abi="c", sources={sources!r})
print(cls().build().origin)
"""


@pytest.fixture
def hungry(folder):
    """The code of a process that builds an op of four sources, each of which takes g++ about 100 MiB."""
    return code_of(folder, "", "text[3]")


def code_of(folder, more, value):
    folder.mkdir()
    sources = [f"hungry{number}.cpp" for number in range(UNITS)]
    for number, name in enumerate(sources):
        function = f"{sample_ops.EXPORT} int value{number}() {{ return {value}; }}\n"
        text_files.write(folder, name, f'const char text[] = "{"x" * TEXT_BYTES}";\n{more}{function}')
    return BUILD.format(folder=str(folder), sources=sources)


def run_in(group, code, **env):
    """Runs Python in a group; returns its output, and what it logged."""
    command = [*group.prefix(), sys.executable, "-c", code]
    done = subprocess.run(
        command, env=child_processes.environment(**env), capture_output=True, text=True, timeout=120, check=False
    )
    progress = "opforge: "  # the lines that a slow machine adds
    return done.stdout, "".join(line for line in done.stderr.splitlines(True) if not line.startswith(progress))


def test_a_build_whose_compiler_was_killed_for_memory_ends_with_fewer_at_once(folder, own_store):
    code = code_of(folder, HELD, "text[3] + kept")
    with memory_group(LIMIT_BYTES) as group:
        out, err = run_in(group, code, OPFORGE_JOBS="4")
    assert out == "built\n", err
    assert err == (
        "WARNING hungry: a compiler was killed for lack of memory, with 4 at once. The other files are built again with"
        " 2 at once\n"
    )


def test_a_compiler_that_is_killed_alone_is_an_error_at_once(hungry, own_store):
    code = hungry.replace("['hungry0.cpp', 'hungry1.cpp', 'hungry2.cpp', 'hungry3.cpp']", "['hungry0.cpp']")
    with memory_group(LIMIT_BYTES // 3) as group:
        out, err = run_in(group, code)
    assert out == "" and "WARNING" not in err
    assert "BuildResourceError: hungry: the build stopped: a compiler was killed, or memory ran out." in err, err


@pytest.mark.long("compiles sources of 20 MiB once more; test_parallelism.py has what may run at once")
def test_of_sources_that_were_never_built_as_many_are_compiled_first_as_fit_in_the_worst_case(hungry, own_store):
    with memory_group(LIMIT_BYTES) as group:
        out, err = run_in(group, hungry)
    assert (out, err) == ("built\n", "")
    (peaks,) = (own_store / "v2" / "peaks").iterdir()
    measured = json.loads(peaks.read_text())
    assert sorted(measured) == [f"own/hungry{number}.cpp" for number in range(UNITS)]
    assert all(TEXT_BYTES < peak < memory_needs.COMPILER_BYTES["c"] for peak in measured.values())


def test_what_an_entry_that_does_not_fit_needed_is_known_to_the_build(folder, tmp_path, own_store, monkeypatch):
    monkeypatch.setitem(memory_needs.COMPILER_BYTES, "c", 1 << 20)
    monkeypatch.setattr(ninja, "measured", lambda _work: {"0.plain.o": 5 << 20})  # g++ may end before it is measured
    cls = sample_ops.plain_op(folder)
    (stated,) = cls().build().record["peaks"].values()
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(own_store))
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "another"))
    sample_ops.set_value(folder, 2)
    known = []
    of = memory_needs.MemoryNeeds.of

    def noted(self, steps):
        known.append(dict(self.known))
        return of(self, steps)

    monkeypatch.setattr(memory_needs.MemoryNeeds, "of", noted)
    assert cls().load().value() == 2
    assert known[0] == {"own/plain.cpp": stated}

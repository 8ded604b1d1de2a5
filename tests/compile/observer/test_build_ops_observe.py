"""`build-ops --observe`: what a user's own compiler asks for and opforge does not record."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

OP = """\
from opforge import OpBuilder

class PlainBuilder(OpBuilder):
    name = "plain"
    sources = ["plain.cpp"]
    abi = "c"
"""
SOURCE = 'extern "C" __attribute__((visibility("default"))) int value() { return VALUE; }\n'


@pytest.fixture
def observe(tmp_path):
    """Runs `build-ops --observe` for an op whose compiler is a script or a program; returns the outcome."""
    (tmp_path / "own_ops.py").write_text(OP)
    (tmp_path / "plain.cpp").write_text(SOURCE)
    (tmp_path / "value.txt").write_text("1\n")

    def run(compiler, *options, **variables):
        program = tmp_path / "c++wrap"
        if compiler.startswith("#!"):
            program.write_text(compiler)
            program.chmod(0o700)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OPFORGE_CACHE_DIR": str(tmp_path / "store")}
        environment |= {"CXX": str(program) if compiler else "g++", **variables}
        command = [sys.executable, "-m", "opforge", "build-ops", "own_ops:PlainBuilder", "--observe", *options]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def published(folder):
    """Returns what a build leaves in the store: entries, objects, logs, its own folder."""
    areas = [folder / "store" / "v2" / name for name in ("entries", "plans", "objects", "logs", "staging")]
    return [path.name for area in areas if area.is_dir() for path in area.iterdir()]


def test_nothing_is_found_with_a_compiler_that_opforge_knows(tmp_path, observe):
    done = observe("", CXXFLAGS="-DVALUE=1")
    assert re.fullmatch(r"own_ops:PlainBuilder for cpu:\S+: all that the build asked for is noticed\n", done.stdout)
    assert done.returncode == 0, done.stderr
    assert published(tmp_path) == []


def test_a_file_that_a_wrapper_reads_by_itself_is_named(tmp_path, observe):
    done = observe(f'#!/bin/sh\nexec g++ -DVALUE=$(cat {tmp_path}/value.txt) "$@"\n')
    assert done.returncode == 1, done.stderr
    assert f"  read and not an input: {tmp_path}/value.txt, by /usr/bin/cat\n" in done.stdout
    assert "note: which variables /usr/bin/dash read is not seen" in done.stderr or "bash" in done.stderr
    assert published(tmp_path) == []


def test_a_file_that_a_wrapper_looks_for_is_named_in_json(tmp_path, observe):
    wrapper = f'#!/usr/bin/env python3\nimport os, sys\nextra = []\nif os.path.exists("{tmp_path}/extra"):\n'
    wrapper += '    extra = ["-O0"]\nos.execvp("g++", ["g++", "-DVALUE=1", *extra, *sys.argv[1:]])\n'
    done = observe(wrapper, "--json")
    assert done.returncode == 1, done.stderr
    (record,) = json.loads(done.stdout)["ops"]
    assert ("looked for", f"{tmp_path}/extra") in {(finding["kind"], finding["name"]) for finding in record["findings"]}


def test_a_compiler_that_cannot_be_observed_is_no_compiler_without_findings(tmp_path, observe):
    text = '#include <unistd.h>\nint main(int n, char** words) { words[0] = "g++"; return execvp("g++", words); }\n'
    (tmp_path / "wrap.c").write_text(text)
    subprocess.run(["cc", "-w", "-static", "wrap.c", "-o", "c++wrap"], cwd=tmp_path, check=True)
    done = observe("as it is", CXXFLAGS="-DVALUE=1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "could not be observed\n" in done.stdout
    assert f"{tmp_path}/c++wrap, started by" in done.stdout
    assert "left no notes" in done.stdout


def test_a_compiler_that_fails_only_while_it_is_observed_is_named(tmp_path, observe):
    refuse = '[ -z "$LD_PRELOAD" ] || { echo "not with LD_PRELOAD" >&2; exit 1; }'
    done = observe(f'#!/bin/sh\n{refuse}\nexec g++ -DVALUE=1 "$@"\n')
    assert done.returncode == 2, done.stdout + done.stderr
    assert "plain is built without the observer, and not with it" in done.stdout
    assert "not with LD_PRELOAD" in done.stdout


def test_a_build_that_fails_in_any_case_is_reported(observe):
    done = observe("", CXXFLAGS="-DVALUE=nothing")
    assert done.returncode == 1
    assert "failed\n" in done.stdout
    assert "nothing" in done.stdout


def test_a_file_that_a_compiler_lists_and_that_no_program_read_is_reported_as_a_gap(tmp_path, observe):
    """Another process may have read it: a server that compiles, or one that has kept the outcome."""
    (tmp_path / "served.h").write_text("")
    lists = f"for list in *.o.d; do sed -i '1s|: |: {tmp_path}/served.h |' $list; done"
    done = observe(f'#!/bin/sh\ng++ -DVALUE=1 "$@" || exit 1\n[ ! -f 0.plain.o.d ] || {{ {lists}; }}\n')
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"nothing that was observed read {tmp_path}/served.h\n" in done.stdout

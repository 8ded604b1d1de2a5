"""Compilers that opforge does not know, while they are observed: what they ask for is named."""

from __future__ import annotations

import os
import subprocess

import pytest
from support import sample_ops
from support.observer.build import NotObservableError, observe
from support.observer.compare import compare

from opforge.cache.current_store import current_store

SOURCE = 'extern "C" __attribute__((visibility("default"))) int value() { return VALUE; }\n'


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """Builds a plain op with a compiler that is a script, a program, or g++; returns what was found."""
    (tmp_path / "value.txt").write_text("1\n")

    def run(compiler="", **variables):
        program = tmp_path / "c++wrap"
        if compiler:
            program.write_text(compiler)
            program.chmod(0o700)
        monkeypatch.setenv("CXX", str(program) if program.exists() else "g++")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return compare(observe(sample_ops.plain_op(tmp_path, source=SOURCE)().spec()))

    return run


def published():
    """Returns what a build leaves in the store: entries, objects, logs, its own folder."""
    folders = [current_store().layout.path(name) for name in ("entries", "plans", "objects", "logs", "staging")]
    return [name for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)]


def test_nothing_is_found_with_a_compiler_that_opforge_knows(outcome):
    found = outcome(CXXFLAGS="-DVALUE=1")
    assert (found.findings, found.gaps, published()) == ((), (), [])


def test_a_file_that_a_wrapper_reads_by_itself_is_named(tmp_path, outcome):
    found = outcome(f'#!/bin/sh\nexec g++ -DVALUE=$(cat {tmp_path}/value.txt) "$@"\n')
    assert f"read and not an input: {tmp_path}/value.txt, by /usr/bin/cat" in map(str, found.findings)
    assert published() == []


def test_a_file_that_a_wrapper_looks_for_is_named(tmp_path, outcome):
    wrapper = f'#!/usr/bin/env python3\nimport os, sys\nextra = []\nif os.path.exists("{tmp_path}/extra"):\n'
    wrapper += '    extra = ["-O0"]\nos.execvp("g++", ["g++", "-DVALUE=1", *extra, *sys.argv[1:]])\n'
    assert ("looked for", f"{tmp_path}/extra") in {(found.kind, found.name) for found in outcome(wrapper).findings}


def test_a_compiler_that_cannot_be_observed_is_a_gap(tmp_path, outcome):
    text = '#include <unistd.h>\nint main(int n, char** words) { words[0] = "g++"; return execvp("g++", words); }\n'
    (tmp_path / "wrap.c").write_text(text)
    subprocess.run(["cc", "-w", "-static", "wrap.c", "-o", "c++wrap"], cwd=tmp_path, check=True)
    gaps = outcome(CXXFLAGS="-DVALUE=1").gaps
    assert any(f"{tmp_path}/c++wrap, started by" in gap and "left no notes" in gap for gap in gaps), gaps


def test_a_compiler_that_fails_only_while_it_is_observed_is_named(outcome):
    refuse = '[ -z "$LD_PRELOAD" ] || { echo "not with LD_PRELOAD" >&2; exit 1; }'
    with pytest.raises(NotObservableError, match=r"(?s)^plain is built without the observer, .*not with LD_PRELOAD"):
        outcome(f'#!/bin/sh\n{refuse}\nexec g++ -DVALUE=1 "$@"\n')


def test_a_file_that_a_compiler_lists_and_that_no_program_read_is_a_gap(tmp_path, outcome):
    """Another process may have read it: a server that compiles, or one that has kept the outcome."""
    (tmp_path / "served.h").write_text("")
    lists = f"for list in *.o.d; do sed -i '1s|: |: {tmp_path}/served.h |' $list; done"
    gaps = outcome(f'#!/bin/sh\ng++ -DVALUE=1 "$@" || exit 1\n[ ! -f 0.plain.o.d ] || {{ {lists}; }}\n').gaps
    assert f"nothing that was observed read {tmp_path}/served.h" in "\n".join(gaps)

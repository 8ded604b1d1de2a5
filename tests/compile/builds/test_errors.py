"""What the error of a failed build says, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import threading

import pytest
from support import child_processes, gate, polling, sample_ops, text_files

from opforge.errors import (
    BuildResourceError,
    CompileError,
    SourceNotFoundError,
    ToolchainNotFoundError,
    UnstableInputError,
)


def refused(cls, kind=CompileError):
    with pytest.raises(kind) as caught:
        cls().load()
    return str(caught.value)


def test_a_syntax_error_shows_its_place_first(folder, own_store):
    cls = sample_ops.plain_op(folder, source="int ok;\nint value( { return 1; }\nint more;\n")
    text = refused(cls)
    lines = text.splitlines()
    assert re.match(rf"plain: compile plain.cpp failed: {folder}/plain.cpp:2:\d+: error: ", lines[0])
    assert lines[1:3] == ["     1 | int ok;", ">    2 | int value( { return 1; }"]
    assert re.fullmatch(r" {7}\| [ ~]*\^[ ~]*", lines[3]) and lines[4] == "     3 | int more;"
    assert re.fullmatch(r"and \d further errors? in the full log", lines[5])
    assert lines[6].startswith("command: ") and "g++" in lines[6]
    log = lines[7].removeprefix("full log: ")
    with open(log) as file:
        assert "error: " in file.read()
    assert len(lines) == 8
    assert os.listdir(own_store / "v2" / "staging") == []


def test_a_missing_header_says_where_to_name_its_folder(folder):
    text = refused(sample_ops.plain_op(folder, source='#include "no/such.h"\n'))
    assert "plain.cpp:1:10: error: no/such.h: No such file or directory\n" in text
    assert "\nhint: add the folder that holds no/such.h" in text


def test_a_library_that_is_not_there_is_named(folder):
    text = refused(sample_ops.plain_op(folder, libraries=["no_such_library_here"]))
    assert re.match(r"plain: link plain failed: .*no_such_library_here", text), text


def test_a_missing_source_is_named_with_where_it_was_sought(folder):
    text = refused(sample_ops.plain_op(folder, sources=["gone.cpp"]), SourceNotFoundError)
    assert f"The op 'plain' names 'gone.cpp', which does not exist. Looked in:\n  - {folder}\n" in text


def test_no_compiler_says_what_to_install(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    text = refused(sample_ops.plain_op(folder), ToolchainNotFoundError)
    assert "Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++" in text


def test_a_mended_source_builds(folder):
    cls = sample_ops.plain_op(folder, source="broken")
    refused(cls)
    sample_ops.plain_op(folder)
    assert cls().load().value() == 1


def test_a_library_without_plain_functions_is_an_error_that_says_how(folder):
    cls = sample_ops.plain_op(folder, source="int value() { return 1; }\n")
    assert refused(cls).startswith(
        'plain: the library exports no function that can be called by name. Begin each with: extern "C"'
    )


def test_a_file_that_keeps_changing_is_an_error_that_names_it(folder, own_store):
    cls = sample_ops.plain_op(folder)
    stop = threading.Event()

    def scribble():
        number = 0
        while not stop.wait(0.002):
            number += 1
            text_files.write(folder, ".new", f"#define VALUE {number}\n")
            os.replace(folder / ".new", folder / "value.h")

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        text = refused(cls, UnstableInputError)
    finally:
        stop.set()
        thread.join()
    assert text == (
        f"plain: these files kept changing while they were compiled; stop writing to them:\n  - {folder}/value.h"
    )
    assert os.listdir(own_store / "v2" / "staging") == []


def test_a_compiler_that_is_killed_is_a_matter_of_memory(folder):
    cls = sample_ops.plain_op(folder, source=gate.SOURCE)
    gate.close_gate(folder)

    def kill():
        for pid in polling.wait_for(lambda: child_processes.compilers_in(folder)):
            os.kill(pid, 9)

    thread = threading.Thread(target=kill)
    thread.start()
    text = refused(cls, BuildResourceError)
    thread.join()
    assert "plain: the build stopped: a compiler was killed, or memory ran out. " in text and "OPFORGE_JOBS=1" in text
    gate.open_gate(folder)
    assert cls().load().value() == 1

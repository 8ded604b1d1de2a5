"""Where programs are looked for: on PATH, and nowhere that nobody named."""

from __future__ import annotations

import os

import pytest
from support import text_files

from opforge.builders.toolchains.discovery import programs
from opforge.errors import ToolchainNotFoundError


def test_an_empty_path_does_not_run_what_lies_in_the_working_folder(tmp_path, monkeypatch, relu_folder):
    from opforge import load

    for name in ("g++", "c++", "clang++", "as", "nvcc"):
        text_files.write_script(tmp_path, name, f"touch {tmp_path}/ran")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("COMPILER_PATH", raising=False)
    assert programs.which("g++") is None and programs.started_by_compiler("as") == ""
    with pytest.raises(ToolchainNotFoundError):
        load(relu_folder.name, [str(relu_folder / "relu.cpp")])
    assert not os.path.exists(tmp_path / "ran")


@pytest.mark.parametrize("value", [".", "/nowhere:", ":/nowhere"])
def test_the_working_folder_is_searched_if_path_names_it(tmp_path, monkeypatch, value):
    text_files.write_script(tmp_path, "g++", "exit 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", value)
    assert programs.which("g++") == str(tmp_path / "g++")


def test_programs_of_the_compiler_are_looked_for_in_its_own_path_first(tmp_path, monkeypatch):
    for folder in ("own", "path"):
        (tmp_path / folder).mkdir()
        text_files.write_script(tmp_path / folder, "as", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("COMPILER_PATH", f"/nowhere:{tmp_path}/own")
    assert programs.started_by_compiler("as") == str(tmp_path / "own" / "as")


@pytest.mark.parametrize(
    ("command", "content"), [("ccache g++", "\x7fELF"), ("ccache g++", "#!/bin/sh\n"), ("g++", "#!/bin/sh\n")]
)
def test_the_compiler_that_a_variable_names_for_ccache_counts_and_all_others_of_path(
    tmp_path, monkeypatch, command, content
):
    for name in ("ccache", "g++", "clang", "other"):
        text_files.write(tmp_path, name, content if name == "g++" else "#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    argv = [f"{tmp_path}/{command.split()[0]}", *command.split()[1:]]
    assert programs.starts_others(argv) is (content != "\x7fELF")
    monkeypatch.setenv("CCACHE_COMPILER", f"{tmp_path}/other")
    assert {*programs.behind(argv)} == {f"{tmp_path}/{name}" for name in ("g++", "clang", "other")} - {argv[0]}
    assert {f"CCACHE_COMPILER={tmp_path}/other", f"PATH={tmp_path}"} <= {*programs.state(argv)}

"""A PATH with one fake compiler."""

from __future__ import annotations

import pytest
from support import text_files
from support.compilers.fake_compiler import RECORDING_SCRIPT

from opforge.builders.toolchains import host


@pytest.fixture
def bin(tmp_path, monkeypatch):
    """The first folder on PATH, with a g++ that replies to the probe's commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "include").mkdir()
    text_files.write_script(
        folder, "g++", RECORDING_SCRIPT.format(machine="x86_64-linux-gnu", include=tmp_path / "include")
    )
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(host, "CANDIDATES", ("g++",))
    return folder

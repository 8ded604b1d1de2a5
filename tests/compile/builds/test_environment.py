"""How the environment changes a build: flags, another compiler, folders; and a look-up without any compiler."""

from __future__ import annotations

import subprocess

import pytest
from support import sample_ops

from opforge.errors import (
    ToolchainNotFoundError,
)


def test_ldflags_are_honoured_and_in_the_key(folder, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    monkeypatch.setenv("LDFLAGS", "-Wl,-soname,from-ldflags.so")
    entry = cls().build()
    assert entry.key != first.key
    notes = subprocess.run(["readelf", "-d", entry.library], capture_output=True, text=True, check=True).stdout
    assert "[from-ldflags.so]" in notes


def test_cxx_may_name_a_c_compiler(folder, monkeypatch):
    monkeypatch.setenv("CXX", "gcc")
    source = '#include <string>\nextern "C" int value() { return std::string(1000, 0).size(); }\n'
    assert sample_ops.plain_op(folder, source=source)().load().value() == 1000


def test_without_a_compiler_what_was_built_is_still_found(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cls().build().key == first.key


def test_without_a_compiler_an_edited_header_is_no_stale_hit(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder, value=1)
    cls().build()
    sample_ops.set_value(folder, 2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainNotFoundError, match="apt install g\\+\\+"):
        cls().load()

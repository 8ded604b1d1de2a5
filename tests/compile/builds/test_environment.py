"""How the environment changes a build: flags, another compiler, folders; and a look-up without any compiler."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from support import sample_ops, text_files

from opforge.errors import (
    ToolchainNotFoundError,
)


def test_cxxflags_are_honoured_and_in_the_key(folder, monkeypatch):
    sample_ops.plain_op(folder)
    text_files.write(folder, "value.h", "#ifndef VALUE\n#define VALUE 1\n#endif\n")
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    first = cls().build()
    monkeypatch.setenv("CXXFLAGS", "-DVALUE=5")
    assert cls().build().key != first.key
    assert cls().load().value() == 5
    monkeypatch.delenv("CXXFLAGS")
    assert cls().build().key == first.key


def test_ldflags_are_honoured_and_in_the_key(folder, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    monkeypatch.setenv("LDFLAGS", "-Wl,-soname,from-ldflags.so")
    entry = cls().build()
    assert entry.key != first.key
    notes = subprocess.run(["readelf", "-d", entry.library], capture_output=True, text=True, check=True).stdout
    assert "[from-ldflags.so]" in notes


def test_cxx_is_honoured_and_in_the_key(folder, tmp_path, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    wrapper = text_files.write_script(tmp_path, "my-g++", f'touch {tmp_path}/ran; exec g++ -DEXTRA "$@"')
    monkeypatch.setenv("CXX", wrapper)
    assert cls().build().key != first.key
    assert (tmp_path / "ran").exists()


def test_a_cpath_folder_is_watched(folder, tmp_path, monkeypatch):
    (tmp_path / "cpath").mkdir()
    cls = sample_ops.plain_op(folder, source=sample_ops.PLAIN_SOURCE.replace('"value.h"', "<from_cpath.h>"))
    monkeypatch.setenv("CPATH", str(tmp_path / "cpath"))
    text_files.write(tmp_path / "cpath", "from_cpath.h", "#define VALUE 1\n")
    assert cls().load().value() == 1
    text_files.write(tmp_path / "cpath", "from_cpath.h", "#define VALUE 2\n")
    assert cls().load().value() == 2


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++ (apt install clang)")
def test_clang_builds_it_too(folder, monkeypatch):
    cls = sample_ops.plain_op(folder)
    first = cls().build()
    monkeypatch.setenv("CXX", "clang++")
    assert cls().build().key != first.key
    assert cls().load().value() == 1


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

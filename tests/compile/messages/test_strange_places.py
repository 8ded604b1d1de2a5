"""Names, paths and limits that are strange: what is wrong is said, and not something else."""

from __future__ import annotations

import os
import sys
import zipfile

import pytest
from support import child_processes, sample_ops, text_files

from opforge.builders.toolchains.discovery import probe
from opforge.errors import CacheDirError, SourceNotFoundError, ToolchainError

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("header", ["value\\", "my value\\", "value\\\\"])
def test_a_header_whose_name_ends_with_a_backslash_is_an_input(tmp_path, header):
    text_files.write(tmp_path, "plain.cpp", sample_ops.PLAIN_SOURCE.replace("value.h", header))
    (tmp_path / header).write_text("#define VALUE 1\n")
    cls = sample_ops.builder_class(tmp_path, "plain", abi="c")
    assert cls().load().value() == 1
    (tmp_path / header).write_text("#define VALUE 2\n")
    assert cls().build().origin == "built"


@pytest.mark.parametrize("character", ["\n", "\r"])
def test_a_line_break_in_the_stores_path_is_named(tmp_path, monkeypatch, character):
    root = f"{tmp_path}/a{character}b"
    monkeypatch.setenv("OPFORGE_CACHE_DIR", root)
    with pytest.raises(CacheDirError) as caught:
        sample_ops.plain_op(tmp_path / "op")().build()
    assert str(caught.value) == (
        f"The cache folder {root} cannot be used: its path has a line break. Set OPFORGE_CACHE_DIR to a folder without"
        " one"
    )


def test_the_sources_of_a_builder_in_a_zip_file_must_be_unpacked(tmp_path, monkeypatch):
    path = str(tmp_path / "all.zip")
    text = "import opforge\nclass Builder(opforge.OpBuilder):\n    name, sources = 'plain', ['plain.cpp']\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("zipped_builders/__init__.py", text)
        file.writestr("zipped_builders/plain.cpp", "int value;\n")
    monkeypatch.setattr(sys, "path", [path, *sys.path])
    import zipped_builders

    with pytest.raises(SourceNotFoundError) as caught:
        zipped_builders.Builder().load()
    assert str(caught.value).endswith(
        f"\n{path} is a file, and compilers read none within it: install its package unpacked."
    )


SMALL_STACK = """
import os, resource
from support import sample_ops
resource.setrlimit(resource.RLIMIT_STACK, (200 << 10, 200 << 10))
try:
    sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
except Exception as error:
    print(error)
"""


def test_a_small_stack_is_named(tmp_path):
    sample_ops.plain_op(tmp_path / "op")
    printed = child_processes.run_python(SMALL_STACK, env={"FOLDER": str(tmp_path / "op")})
    assert "was ended by signal 11" in printed
    assert "The stack is limited to 200 KiB: raise the limit (`ulimit -s 8192`)." in printed
    assert "Run it again" not in printed


def test_a_system_without_dev_null_is_named(monkeypatch):
    monkeypatch.setattr(os, "devnull", "/dev/no-such-null")
    with pytest.raises(ToolchainError) as caught:
        probe.run(["g++"], "--version")
    assert str(caught.value).endswith(
        "/dev/no-such-null is missing: give this system, or its container, a /dev with `null` in it"
    )

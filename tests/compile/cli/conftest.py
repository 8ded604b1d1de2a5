"""A folder with a module of ops, for the commands that build them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gate, sample_ops, text_files

MODULE = """\
from opforge import OpBuilder

class Relu(OpBuilder):
    name, sources = "relu", ["relu.cpp"]

class Bad(OpBuilder):
    name, sources = "bad", ["bad.cpp"]

class Slow(OpBuilder):
    name, sources, abi = "slow", ["slow.cpp"], "c"

class Quick(OpBuilder):
    name, sources, abi = "quick", ["quick.cpp"], "c"
"""


@pytest.fixture
def ops_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a module `ownops`.

    Relu builds, Bad has an error on line 10, Slow's compiler waits while the gate is closed, Quick is plain C.
    """
    folder = tmp_path / "work"
    folder.mkdir()
    source = sample_ops.STABLE_SOURCE.replace("@NAME@", "relu")
    text_files.write(folder, "ownops.py", MODULE)
    text_files.write(folder, "relu.cpp", source)
    text_files.write(folder, "bad.cpp", source.replace("++i) to[i]", "++i to[i]"))
    text_files.write(folder, "slow.cpp", gate.SOURCE)
    text_files.write(folder, "quick.cpp", sample_ops.PLAIN_SOURCE)
    sample_ops.set_value(folder, 1)
    monkeypatch.chdir(folder)
    return folder

"""A user's folders: nothing of this process's state is needed to follow what a promise says."""

from __future__ import annotations

import shutil

import pytest
from support import child_processes, sample_ops, text_files

MODULE = """
import os
from opforge import OpBuilder
FOLDER = os.path.dirname(os.path.abspath(__file__))
class Plain(OpBuilder):
    name, abi, sources = "plain", "c", [FOLDER + "/plain.cpp"]
"""


@pytest.fixture(autouse=True)
def needs_a_compiler():
    """Skips the tests of a machine on which nothing can be built."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ (apt install g++)")


@pytest.fixture
def folder(tmp_path):
    """The folder of an op of plain C, `plain`, whose `value()` is the number in its header: 1."""
    sample_ops.plain_op(tmp_path / "op")
    return tmp_path / "op"


@pytest.fixture
def declared(folder):
    """The variables with which other processes find `plain_ops:Plain`, the declaration of the op in `folder`."""
    text_files.write(folder, "plain_ops.py", MODULE)
    return {"PYTHONPATH": f"{child_processes.environment()['PYTHONPATH']}:{folder}"}

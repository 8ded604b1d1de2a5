"""Modules that are named on a command line are searched in the working folder."""

from __future__ import annotations

import os
import sys

import pytest
from support import sample_ops
from support.text_files import write

from opforge.bench import selection as bench_selection
from opforge.cli import selection
from opforge.packages.sources import reading
from opforge.remote.farm import engines

TEXT = """\
from concurrent.futures import ThreadPoolExecutor
from opforge import OpBuilder

from opforge.ops.cases import Case


class B(OpBuilder):
    name, sources = "relu", ["relu.cpp"]

CASES = Case("relu", sizes=(8,), inputs=lambda place: (place.draw(*place.shape),), function=lambda _op: abs)
print("imported")

def executor():
    return ThreadPoolExecutor(1)
"""


@pytest.mark.parametrize(
    "find",
    [
        lambda module: selection.select([f"{module}:B"])[0].builder_class(),
        lambda module: reading.read(f"{module}:B").builder,
        lambda module: bench_selection.select([f"{module}:CASES"]),
        lambda module: engines.open_engine(f"{module}:executor"),
    ],
    ids=["build-ops", "pack", "bench", "--on"],
)
def test_a_module_in_the_working_folder_is_found_and_prints_to_standard_error(tmp_path, monkeypatch, capsys, find):
    module = sample_ops.unique_name("ops")
    write(tmp_path, f"{module}.py", TEXT)
    monkeypatch.chdir(tmp_path)
    # As in a console script: no entry stands for the working folder.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", os.getcwd())])
    assert find(module) is not None
    assert sys.path.count(os.getcwd()) == 1
    assert capsys.readouterr() == ("", "imported\n")

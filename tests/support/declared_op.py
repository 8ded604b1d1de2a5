"""An op of plain C in a folder, with its declaration in a module: what other processes build and load."""

from __future__ import annotations

from pathlib import Path

from support import child_processes, text_files

MODULE = """
import os
from opforge import OpBuilder
FOLDER = os.path.dirname(os.path.abspath(__file__))
class Plain(OpBuilder):
    name, abi, sources = "plain", "c", [FOLDER + "/plain.cpp"]
"""


def declare(folder: Path) -> None:
    """Writes the module `plain_ops` with the declaration of the op in a folder, `Plain`."""
    text_files.write(folder, "plain_ops.py", MODULE)


def variables(folder: Path) -> dict[str, str]:
    """Returns the variables with which other processes find the module in a folder."""
    return {"PYTHONPATH": f"{child_processes.environment()['PYTHONPATH']}:{folder}"}

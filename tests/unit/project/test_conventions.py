"""The conventions of CONTRIBUTING.md that a test can check: lengths of files, sizes of folders, names of variables."""

from __future__ import annotations

import ast
import os
from collections import Counter

import pytest
from support.paths import CHECKOUT

FOLDERS = ("accelerator", "builders", "cache", "ops", "src/opforge", "tests", "benchmarks", "examples")
SUFFIXES = (".py", ".c", ".cpp", ".cu", ".h", ".hpp", ".cl", ".sycl")
MAX_LINES = 300
MAX_FILES = 15
REGISTRIES = ("builders/cpu", "builders/cuda", "builders/triton", "builders/toolchains", "accelerator/devices")
"""Folders with one file for each op, compiler or device. They may have any number."""
VAGUE = {"one", "told", "given", "made", "found", "known"}
"""Names of variables that do not say what the variable holds."""
EXEMPT = {
    # Their text is part of the plan keys of the ops that they build.
    "builders/toolchains/source_translation.py",
    "builders/toolchains/triton_worker.py",
    "ops/triton/kernels/quantize.py",
    "src/opforge/errors/base.py",  # UnknownAcceleratorError.known is public
}


def code_files():
    """Yields the path of every code file, relative to the checkout."""
    for folder in FOLDERS:
        # Symlinks below src/opforge lead to other folders of this list. os.walk does not follow them.
        for path, subfolders, names in os.walk(os.path.join(CHECKOUT, folder)):
            subfolders[:] = [name for name in subfolders if name != "__pycache__" and not name.startswith(".")]
            yield from (
                os.path.relpath(os.path.join(path, name), CHECKOUT) for name in names if name.endswith(SUFFIXES)
            )


def read(path):
    with open(os.path.join(CHECKOUT, path), encoding="utf-8") as file:
        return file.read()


def vague_names(code):
    """Yields the (line, name) of every assignment, loop target and parameter with a vague name."""
    for node in ast.walk(ast.parse(code)):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs)):
            name = node.name or ""
        if name in VAGUE:
            yield node.lineno, name


def test_the_code_files_of_every_folder_are_checked():
    folders = {path.split(os.sep)[0] for path in code_files()}
    assert folders == {folder.split("/")[0] for folder in FOLDERS}


def test_no_file_is_too_long():
    lengths = {path: len(read(path).splitlines()) for path in code_files()}
    too_long = {path: length for path, length in sorted(lengths.items()) if length > MAX_LINES}
    assert too_long == {}, f"a file may have {MAX_LINES} lines: divide these by subject"


def test_no_folder_has_too_many_files():
    sizes = Counter(os.path.dirname(path) for path in code_files())
    too_large = {path: size for path, size in sorted(sizes.items()) if size > MAX_FILES and path not in REGISTRIES}
    assert too_large == {}, f"a folder may have {MAX_FILES} code files: divide these by subject"


@pytest.mark.parametrize(
    "code",
    [
        "one = 1",
        "told: int = 1",
        "for given in (): pass",
        "[made for made in ()]",
        "def f(found): pass",
        "lambda known: 1",
        "with f() as one: pass",
        "(told := 1)",
        "first, *given = ()",
    ],
)
def test_a_vague_name_is_recognized(code):
    assert len(list(vague_names(code))) == 1


def test_no_variable_has_a_vague_name():
    names = [
        f"{path}:{line}: {name}"
        for path in sorted(code_files())
        if path.endswith(".py") and path not in EXEMPT
        for line, name in vague_names(read(path))
    ]
    assert names == [], "name each variable for what it holds: entry, path, record"

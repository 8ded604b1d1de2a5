"""Defects that are drawn: an operator of Python at a random place of the product, by a published seed."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SEED = 20261128
"""The seed of the defects that are counted."""
PRODUCT = ("accelerator", "builders", "cache", "ops", "packages", "remote", "src/opforge")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Place(NamedTuple):
    """A defect: a line of a file, what takes its place, and what was changed in it."""

    path: str
    line: int
    text: str
    what: str
    identity: str
    """What names the defect when other lines change or the file moves: its file's name, its line and its new line."""


def _changed(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yields each defect of one node, as another node."""
    other = copy.deepcopy(node)
    if isinstance(other, ast.Compare) and type(other.ops[0]) in COMPARISONS:
        other.ops[0] = COMPARISONS[type(other.ops[0])]()
        yield other, "another comparison"
    elif isinstance(other, ast.BoolOp):
        other.op = ast.Or() if isinstance(other.op, ast.And) else ast.And()
        yield other, "and for or"
    elif isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.Not):
        yield other.operand, "without not"
    elif isinstance(other, ast.Constant) and type(other.value) is int:
        yield ast.Constant(other.value + 1), "one more"
    elif isinstance(other, ast.Constant) and type(other.value) is bool:
        yield ast.Constant(not other.value), "the other truth"
    elif isinstance(other, ast.BinOp) and isinstance(other.op, ast.Add | ast.Sub):
        other.op = ast.Sub() if isinstance(other.op, ast.Add) else ast.Add()
        yield other, "minus for plus"


def places(root: Path, path: Path) -> Iterator[Place]:
    """Yields each defect of a file, in the order of its lines. Annotations, docstrings and constants of modules are left."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    statements = {id(inner): inner for node in functions for inner in ast.walk(node) if isinstance(inner, ast.stmt)}
    for statement in statements.values():
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.AnnAssign | ast.Raise):
            continue
        parts = [
            value
            for name, value in ast.iter_fields(statement)
            if name in ("test", "value", "iter", "targets") and isinstance(value, ast.expr)
        ]
        for node in (inner for part in parts for inner in ast.walk(part)):
            if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
                continue
            for other, what in _changed(node):
                line = lines[node.lineno - 1].encode()
                written = f"({ast.unparse(ast.fix_missing_locations(other))})".encode()
                new = line[: node.col_offset] + written + line[node.end_col_offset :]
                name = path.relative_to(root).as_posix()
                identity = f"{path.name}: {lines[node.lineno - 1].strip()} -> {new.decode().strip()}"
                yield Place(name, node.lineno, new.decode(), what, identity)


def draw(root: Path, count: int, seed: int = SEED, below: Sequence[str] = ()) -> list[Place]:
    """Returns `count` defects of the product's lines, by chance alone; of these folders alone, if there are any.

    The same ones are drawn after other lines have changed, and after files have moved: each place has its own number.
    """
    files = sorted(path for folder in PRODUCT for path in (root / folder).rglob("*.py") if not _is_link(root, path))
    found = {place.identity: place for path in files for place in places(root, path)}
    wanted = [place for place in found.values() if not below or place.path.startswith(tuple(below))]
    return sorted(wanted, key=lambda place: hashlib.sha256(f"{seed} {place.identity}".encode()).digest())[:count]


def _is_link(root: Path, path: Path) -> bool:
    """Returns whether a link leads to a file: src/opforge has links to the other folders."""
    return any(parent.is_symlink() for parent in [path, *path.parents][: len(path.relative_to(root).parts)])

"""Adds imports to a module, at the place where a person would write them."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from .syntax.tree import dotted_text


def with_imports(module: cst.Module, added: Sequence[cst.SimpleStatementLine]) -> tuple[cst.Module, int]:
    """Returns the module with the added imports, and the index of the statement before which they were inserted.

    They follow `import torch` if the module's first imports have it, in the order of their block. In a module without
    imports at its start they follow the docstring and the imports from `__future__`.
    """
    if not added:
        return module, 0
    body = list(module.body)
    index, has_imports = _insertion_index(body)
    lines = list(added)
    if not has_imports:
        index = _first_index(body)
        if index:
            lines[0] = lines[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        if index < len(body) and not getattr(body[index], "leading_lines", ()):
            blank_lines = 2 if isinstance(body[index], cst.FunctionDef | cst.ClassDef) else 1
            body[index] = body[index].with_changes(leading_lines=[cst.EmptyLine(indent=False)] * blank_lines)
    return module.with_changes(body=[*body[:index], *lines, *body[index:]]), index


def _first_index(body: Sequence[cst.CSTNode]) -> int:
    """Returns the index of the first statement after the docstring and `from __future__`."""
    index = 1 if body and _is_docstring(body[0]) else 0
    while index < len(body) and _imported_module(body[index]) == "__future__":
        index += 1
    return index


def _leading_imports(body: Sequence[cst.CSTNode]) -> range:
    """Returns the indices of the imports at the module's start."""
    start = end = _first_index(body)
    while end < len(body) and _imported_module(body[end]) is not None:
        end += 1
    return range(start, end)


def _insertion_index(body: Sequence[cst.CSTNode]) -> tuple[int, bool]:
    """Returns the index before which imports belong, and whether the module has imports at its start."""
    leading = _leading_imports(body)
    absolute = [index for index in leading if not (_imported_module(body[index]) or "").startswith(".")]
    if not leading:
        return leading.start, False
    if not absolute:
        return leading.start, True
    of_torch = [index for index in absolute if (_imported_module(body[index]) or "").partition(".")[0] == "torch"]
    last = of_torch[-1] if of_torch else absolute[-1]
    first = last
    while first - 1 in absolute and not getattr(body[first], "leading_lines", ()):
        first -= 1
    if of_torch:
        # Within torch's block, before the `from` imports that sort after ours.
        for index in range(first + 1, last + 1):
            sorts_later = (_imported_module(body[index]) or "").lower() > "opforge"
            line = body[index]
            assert isinstance(line, cst.SimpleStatementLine)
            if isinstance(line.body[0], cst.ImportFrom) and sorts_later and not line.leading_lines:
                return index, True
    return last + 1, True


def _imported_module(line: cst.CSTNode) -> str | None:
    """Returns the first module that a line imports, a relative one with its dots; None if it is no import."""
    if not isinstance(line, cst.SimpleStatementLine):
        return None
    modules = []
    for statement in line.body:
        if isinstance(statement, cst.Import):
            modules.append(statement.names[0].evaluated_name)
        elif isinstance(statement, cst.ImportFrom):
            modules.append("." * len(statement.relative) + dotted_text(statement.module))
        else:
            return None
    return modules[0]


def _is_docstring(line: cst.CSTNode) -> bool:
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    statement = line.body[0]
    return isinstance(statement, cst.Expr) and isinstance(statement.value, cst.SimpleString | cst.ConcatenatedString)

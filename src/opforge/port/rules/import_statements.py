"""Import statements: those that tie a module to a vendor, and the ones that converted code needs."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from opforge.port.conversions import ORIGIN, module_of
from opforge.port.names import short_name
from opforge.port.syntax import dotted
from opforge.port.ties import Module
from opforge.port.vendors import PACKAGES

SAME_NAMES = frozenset({"get_accelerator", "set_accelerator"})
"""What DeepSpeed's accelerator package and opforge both offer."""


def look_at_import(module: Module, node: cst.Import | cst.ImportFrom) -> None:
    """Look at one import. That of torch's own module for a vendor works everywhere, and is no tie."""
    if isinstance(node, cst.Import):
        for alias in node.names:
            _look_at_package(module, node, alias.evaluated_name)
        return
    name = module_of(node)
    _look_at_package(module, node, name)
    if name in ORIGIN:
        _look_at_origin(module, node)
    elif isinstance(node.names, cst.ImportStar) and short_name(name) is not None:
        module.leave(node, name.split(".")[1], "which names it brings cannot be seen here")


def _look_at_package(module: Module, node: cst.Import | cst.ImportFrom, name: str) -> None:
    vendor = PACKAGES.get(name.partition(".")[0])
    if vendor is not None:
        module.leave(node, vendor, "a package that only this vendor's machines have")


def _look_at_origin(module: Module, node: cst.ImportFrom) -> None:
    names = {"*"} if isinstance(node.names, cst.ImportStar) else {alias.evaluated_name for alias in node.names}
    if not names <= SAME_NAMES:
        other = ", ".join(sorted(names - SAME_NAMES))
        module.leave(node, "", f"opforge does not offer {other}: import from opforge what it has")
        return
    module.convert(node, "", lambda old: old.with_changes(module=cst.Name("opforge")), needs="nothing")


def with_imports(module: cst.Module, added: Sequence[cst.SimpleStatementLine]) -> tuple[cst.Module, int]:
    """Give the module with these imports among its own, and the number of the statement before which they stand.

    They follow `import torch` where the module starts with it, or what sorts before them in its block; without
    imports at its start, the docstring and what comes from `__future__`.
    """
    if not added:
        return module, 0
    body = list(module.body)
    place, has_imports = _place(body)
    lines = list(added)
    if not has_imports:
        place, lines = _first_place(body), list(added)
        if place:
            lines[0] = lines[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        if place < len(body) and not getattr(body[place], "leading_lines", ()):
            blank = 2 if isinstance(body[place], cst.FunctionDef | cst.ClassDef) else 1
            body[place] = body[place].with_changes(leading_lines=[cst.EmptyLine(indent=False)] * blank)
    return module.with_changes(body=[*body[:place], *lines, *body[place:]]), place


def _first_place(body: Sequence[cst.CSTNode]) -> int:
    """Give the place after the docstring and `from __future__`."""
    place = 1 if body and _is_docstring(body[0]) else 0
    while place < len(body) and _is_future(body[place]):
        place += 1
    return place


def leading_imports(body: Sequence[cst.CSTNode]) -> range:
    """Give which statements are the imports that the module starts with."""
    start = end = _first_place(body)
    while end < len(body) and _imported(body[end]) is not None:
        end += 1
    return range(start, end)


def _place(body: Sequence[cst.CSTNode]) -> tuple[int, bool]:
    leading = leading_imports(body)
    absolute = [at for at in leading if not (_imported(body[at]) or "").startswith(".")]
    if not leading:
        return leading.start, False
    if not absolute:
        return leading.start, True
    with_torch = [at for at in absolute if (_imported(body[at]) or "").partition(".")[0] == "torch"]
    last = with_torch[-1] if with_torch else absolute[-1]
    first = last
    while first - 1 in absolute and not getattr(body[first], "leading_lines", ()):
        first -= 1
    if with_torch:
        # Within torch's block, before the `from` imports that sort after ours.
        for at in range(first + 1, last + 1):
            later = (_imported(body[at]) or "").lower() > "opforge"
            if isinstance(body[at].body[0], cst.ImportFrom) and later and not body[at].leading_lines:  # type: ignore[attr-defined]
                return at, True
    return last + 1, True


def _imported(statement: cst.CSTNode) -> str | None:
    """Give what a statement imports from, a relative one with its dots; None for another statement."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return None
    names = []
    for one in statement.body:
        if isinstance(one, cst.Import):
            names.append(one.names[0].evaluated_name)
        elif isinstance(one, cst.ImportFrom):
            parts = dotted(one.module) if one.module is not None else None
            names.append("." * len(one.relative) + ".".join(part.value for part in parts or ()))
        else:
            return None
    return names[0]


def _is_docstring(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    only = statement.body[0]
    return isinstance(only, cst.Expr) and isinstance(only.value, cst.SimpleString | cst.ConcatenatedString)


def _is_future(statement: cst.CSTNode) -> bool:
    return _imported(statement) == "__future__"

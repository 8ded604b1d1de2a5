"""Walks the nodes of a parsed module, and reads dotted names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import libcst as cst


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Returns a node's children in the order of the text, without whitespace, commas and other layout."""
    names = _fields.get(type(node))
    if names is None:
        names = [field.name for field in dataclasses.fields(node) if not _LAYOUT.search(field.name)]
        _fields[type(node)] = names
    nodes: list[cst.CSTNode] = []
    for name in names:
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            nodes.append(value)
        elif isinstance(value, list | tuple):
            nodes.extend(element for element in value if isinstance(element, cst.CSTNode))
    return nodes


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yields a node and all nodes below it, parents first."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))


_fields: dict[type[cst.CSTNode], list[str]] = {}
_LAYOUT = re.compile(
    r"whitespace|^(lpar|rpar|lbracket|rbracket|lbrace|rbrace|comma|semicolon|leading_lines|lines_|header|footer|newline|dot|equal)"
)


def dotted(node: cst.BaseExpression) -> list[cst.Name] | None:
    """Returns the names in `a.b.c`; None if the expression is anything else."""
    parts: list[cst.Name] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    return [node, *reversed(parts)]


def dotted_text(node: cst.BaseExpression | None) -> str:
    """Returns `a.b.c` as text; "" if there is no expression, or it is anything else."""
    return ".".join(part.value for part in (dotted(node) if node is not None else None) or ())


def last_name(function: cst.BaseExpression) -> str:
    """Returns the last part of a function's name: `to` for `x.to`, "" if it has no name."""
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""

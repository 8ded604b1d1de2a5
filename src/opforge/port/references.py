"""The vendor references of a module, and the conversion of each. The rules add to them, the analysis decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from .conversions import Convert, Writer
from .syntax.module import Syntax
from .syntax.tree import walk


class Reference(NamedTuple):
    """One place that refers to a vendor, and what can be done about it."""

    node: cst.CSTNode
    vendors: frozenset[str]
    """The vendors that it refers to, or may refer to; empty if it refers to none in particular."""
    problem: str | None
    """Why it cannot be converted; None if it can."""
    convert: Convert | None = None
    note: str = ""
    """Findings to review after the conversion."""
    selects_vendor: bool = False
    """Whether code may choose a vendor by it: it queries the vendor, or is a function that is passed on uncalled."""
    needs: str = "accelerator"
    """The names that the new code uses: "accelerator", "torch", "both" or "nothing"."""


class Module:
    """A module, and the references that the rules have found in it so far."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax, self.write = syntax, Writer(syntax)
        self.references: list[Reference] = []
        self.handled: set[cst.CSTNode] = set()
        """Nodes that the decision about an outer node covers."""
        self.own_members = _own_members(syntax.module)
        """Methods and attributes that the module's own classes define."""

    def leave(self, node: cst.CSTNode, vendors: str | Sequence[str], problem: str) -> None:
        """Adds a reference that a person must decide about. `vendors`: one, several or "" for none."""
        self.references.append(Reference(node, _vendor_set(vendors), problem))

    def convert(
        self,
        node: cst.CSTNode,
        vendors: str | Sequence[str],
        convert: Convert,
        note: str = "",
        selects_vendor: bool = False,
        needs: str = "accelerator",
    ) -> None:
        """Adds a reference that can be converted."""
        self.references.append(Reference(node, _vendor_set(vendors), None, convert, note, selects_vendor, needs))


def _vendor_set(vendors: str | Sequence[str]) -> frozenset[str]:
    return frozenset(filter(None, [vendors] if isinstance(vendors, str) else vendors))


def _own_members(module: cst.Module) -> frozenset[str]:
    names: set[str] = set()
    for node in walk(module):
        if isinstance(node, cst.ClassDef):
            for member in node.body.body:
                if isinstance(member, cst.FunctionDef):
                    names.add(member.name.value)
                for statement in member.body if isinstance(member, cst.SimpleStatementLine) else ():
                    if isinstance(statement, cst.AnnAssign) and isinstance(statement.target, cst.Name):
                        names.add(statement.target.value)
        elif isinstance(node, cst.AssignTarget | cst.AnnAssign) and isinstance(node.target, cst.Attribute):
            names.add(node.target.attr.value)
    return frozenset(names)

"""What ties a module to a vendor, as the finders of ties tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst

from .conversions import Convert, Writer
from .syntax import Syntax, walk


class Tie(NamedTuple):
    """One tie, and what can be done about it."""

    node: cst.CSTNode
    vendors: frozenset[str]
    """Whose it is, or may be; empty: of no vendor in particular."""
    why_left: str
    """Why it cannot be converted; "" where it can."""
    convert: Convert | None = None
    note: str = ""
    """What to look at once it is converted."""
    asks: bool = False
    """Whether it is a question about the vendor, or is handed on uncalled: what code chooses a vendor by."""
    needs: str = "accelerator"
    """What the new code names: "accelerator", "torch", "both" or "nothing"."""


class Module:
    """One module while its ties are looked for."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax, self.write = syntax, Writer(syntax)
        self.ties: list[Tie] = []
        self.settled: set[cst.CSTNode] = set()
        """Nodes that a decision about an outer one has dealt with."""
        self.own = _own_members(syntax.module)
        """Methods and attributes that the module's own classes define."""

    def leave(self, node: cst.CSTNode, vendors: str | Sequence[str], why: str) -> None:
        """Remember a tie that a person must decide about. `vendors`: one, several or none ("")."""
        self.ties.append(Tie(node, _named(vendors), why))

    def convert(
        self,
        node: cst.CSTNode,
        vendors: str | Sequence[str],
        how: Convert,
        note: str = "",
        asks: bool = False,
        needs: str = "accelerator",
    ) -> None:
        """Remember a tie and what takes its place."""
        self.ties.append(Tie(node, _named(vendors), "", how, note, asks, needs))


def _named(vendors: str | Sequence[str]) -> frozenset[str]:
    return frozenset(filter(None, [vendors] if isinstance(vendors, str) else vendors))


def _own_members(module: cst.Module) -> frozenset[str]:
    found: set[str] = set()
    for node in walk(module):
        if isinstance(node, cst.ClassDef):
            for one in node.body.body:
                if isinstance(one, cst.FunctionDef):
                    found.add(one.name.value)
                for small in one.body if isinstance(one, cst.SimpleStatementLine) else ():
                    if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
                        found.add(small.target.value)
        elif isinstance(node, cst.AssignTarget | cst.AnnAssign) and isinstance(node.target, cst.Attribute):
            found.add(node.target.attr.value)
    return frozenset(found)

"""Finds a module's ties, and settles by their surroundings which of them are converted."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from .findings import KEEP
from .rules import device_values, import_statements, tensor_members, vendor_names
from .syntax import Syntax, children, dotted
from .ties import Module, Tie

SCRIPTED = frozenset({"torch.jit.script", "torch.jit.script_method", "torch.jit.export", "triton.jit"})
"""Decorators whose functions are compiled from a part of Python in which `get_accelerator` means nothing."""

STRINGS = cst.SimpleString | cst.ConcatenatedString | cst.FormattedString | cst.BinaryOperation
"""What may spell a device."""

KEEPING = re.compile(rf"#\s*{KEEP}\b")
IMPORT_NOTE = "runs when the module is imported, so the accelerator is chosen then"


def ties(syntax: Syntax) -> tuple[Module, list[Tie]]:
    """Give the ties of a module in the order of the text, each with the decision about it."""
    module = Module(syntax)
    _look(module)
    kept = syntax.lines_with(KEEPING)
    found = [tie for tie in module.ties if not (kept and kept & _lines(syntax, tie.node))]
    several = " and ".join(sorted(_apart({vendors for tie in found if (vendors := tie.vendors)})))
    chosen = _choices(syntax, found)
    decided = [
        _in_its_place(syntax, tie, chosen.get(_unit(syntax, tie.node), several if tie.asks else "")) for tie in found
    ]
    return module, sorted(decided, key=lambda tie: _start(syntax, tie.node))


def _look(module: Module) -> None:
    """Show each node to those who know ties of its kind, the outer ones first."""
    waiting: list[cst.CSTNode] = [module.syntax.module]
    while waiting:
        node = waiting.pop()
        settled = node in module.settled
        if isinstance(node, cst.Import | cst.ImportFrom):
            import_statements.look_at_import(module, node)
            continue
        if isinstance(node, cst.Global | cst.Nonlocal):
            continue
        if isinstance(node, cst.Name):
            if not settled:
                vendor_names.look_at_name(module, node)
            continue
        if isinstance(node, cst.Attribute):
            # The parts of a dotted name mean nothing without it.
            if dotted(node) is not None if settled else _attribute(module, node):
                continue
            module.settled.add(node.attr)
        elif isinstance(node, cst.Arg) and node.keyword is not None:
            module.settled.add(node.keyword)
        elif isinstance(node, cst.Subscript):
            vendor_names.look_at_subscript(module, node)
        elif isinstance(node, cst.Call) and not settled:
            _call(module, node)
        elif isinstance(node, STRINGS) and not settled:
            device_values.look_at_string(module, node)
        if isinstance(node, cst.ConcatenatedString):
            module.settled.update((node.left, node.right))
        waiting.extend(reversed(children(node)))


def _call(module: Module, node: cst.Call) -> None:
    tensor_members.look_at_keyword(module, node)
    if not (vendor_names.look_at_call(module, node) or tensor_members.look_at_call(module, node)):
        device_values.look_at_device_call(module, node)
        device_values.look_at_string(module, node)


def _attribute(module: Module, node: cst.Attribute) -> bool:
    """Look at an attribute; whether all that is in it is settled with it."""
    if vendor_names.look_at_properties(module, node):
        return False
    if vendor_names.look_at_name(module, node):
        return True
    tensor_members.look_at_attribute(module, node)
    return False


def _start(syntax: Syntax, node: cst.CSTNode) -> tuple[int, int]:
    start = syntax.position(node).start
    return start.line, start.column


def _lines(syntax: Syntax, node: cst.CSTNode) -> set[int]:
    where = syntax.position(node)
    return set(range(where.start.line, where.end.line + 1))


def _unit(syntax: Syntax, node: cst.CSTNode) -> cst.CSTNode:
    """Give the innermost function whose body holds the node; outside of functions the module's or class's statement."""
    for holder, held in syntax.ancestors(node):
        if isinstance(holder, cst.FunctionDef) and held is holder.body:
            return holder
        if isinstance(holder, cst.Module):
            return held
        if isinstance(holder, cst.IndentedBlock) and isinstance(syntax.parent(holder), cst.ClassDef):
            return held
    return node


def _apart(named: set[frozenset[str]]) -> frozenset[str]:
    """Give the vendors that are told apart where these are named: none where they may all be the same one."""
    if not named or frozenset.intersection(*named):
        return frozenset()
    return frozenset.union(*named)


def _choices(syntax: Syntax, found: Iterable[Tie]) -> dict[cst.CSTNode, str]:
    """Give the units that name several vendors: code that chooses between them, of which no part may be converted."""
    named: dict[cst.CSTNode, set[frozenset[str]]] = {}
    for tie in found:
        if tie.vendors:
            named.setdefault(_unit(syntax, tie.node), set()).add(tie.vendors)
    return {unit: " and ".join(sorted(several)) for unit, each in named.items() if (several := _apart(each))}


def _in_its_place(syntax: Syntax, tie: Tie, between: str) -> Tie:
    if tie.convert is None:
        return tie
    if between and tie.vendors:
        why = f"this code tells {between} apart: put one path through the accelerator in its place"
    else:
        why = _cannot_call(syntax, tie.node)
    if why:
        return tie._replace(why_left=why, convert=None, note="")
    if tie.needs != "nothing" and runs_at_import(syntax, tie.node):
        return tie._replace(note="; ".join(filter(None, (tie.note, IMPORT_NOTE))))
    return tie


def _cannot_call(syntax: Syntax, node: cst.CSTNode) -> str:
    """Give why no call may stand in the node's place; "" where one may."""
    for holder, held in syntax.ancestors(node):
        if isinstance(holder, cst.Annotation):
            return "a type annotation, which needs a class and not a call"
        if isinstance(holder, cst.MatchPattern):
            return "a pattern, in which no call may stand"
        if isinstance(holder, cst.ClassDef) and held in (*holder.bases, *holder.keywords):
            return "a base class"
        if isinstance(holder, cst.FunctionDef) and held is holder.body:
            for decorator in holder.decorators:
                called = decorator.decorator
                function = called.func if isinstance(called, cst.Call) else called
                if syntax.meaning(function) in SCRIPTED:
                    return "in a function that is compiled by its decorator, which knows no get_accelerator"
    return ""


def runs_at_import(syntax: Syntax, node: cst.CSTNode) -> bool:
    """Whether the code runs when the module is imported: it is in no function's body, nor under __main__."""
    for holder, held in syntax.ancestors(node):
        if isinstance(holder, cst.FunctionDef | cst.Lambda) and held is holder.body:
            return False
        if isinstance(holder, cst.If) and held is holder.body and "__main__" in syntax.code(holder.test):
            return False
    return True

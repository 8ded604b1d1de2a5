"""Finds a module's vendor references, and decides by the code around them which ones are converted."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from .findings import KEEP
from .references import Module, Reference
from .rules import device_values, import_statements, tensor_members, vendor_names
from .syntax.module import Syntax
from .syntax.tree import children, dotted

SCRIPTED = frozenset({"torch.jit.script", "torch.jit.script_method", "torch.jit.export", "triton.jit"})
"""Decorators that compile a function from a subset of Python, which cannot call `get_accelerator`."""

STRINGS = cst.SimpleString | cst.ConcatenatedString | cst.FormattedString | cst.BinaryOperation
"""Expressions that may spell a device."""

KEEP_COMMENT = re.compile(rf"#\s*{KEEP}\b")
IMPORT_NOTE = "runs when the module is imported, so the accelerator is chosen then"


def find_references(syntax: Syntax) -> tuple[Module, list[Reference]]:
    """Returns the module and its vendor references in the order of the text, each with the decision about it."""
    module = Module(syntax)
    _visit(module)
    kept_lines = syntax.lines_with_comment(KEEP_COMMENT)
    references = [
        reference for reference in module.references if not (kept_lines and kept_lines & _lines(syntax, reference.node))
    ]
    in_module = _describe(_distinguished({reference.vendors for reference in references if reference.vendors}))
    in_units = _units_that_choose(syntax, references)
    decided = []
    for reference in references:
        vendors = in_units.get(_unit(syntax, reference.node), in_module if reference.selects_vendor else "")
        decided.append(_decide(syntax, reference, vendors))
    return module, sorted(decided, key=lambda reference: _start(syntax, reference.node))


def _visit(module: Module) -> None:
    """Shows each node to the rules for its kind, outer nodes first."""
    waiting: list[cst.CSTNode] = [module.syntax.module]
    while waiting:
        node = waiting.pop()
        handled = node in module.handled
        if isinstance(node, cst.Import | cst.ImportFrom):
            import_statements.visit_import(module, node)
            continue
        if isinstance(node, cst.Global | cst.Nonlocal):
            continue
        if isinstance(node, cst.Name):
            if not handled:
                vendor_names.visit_name(module, node)
            continue
        if isinstance(node, cst.Attribute):
            # The parts of a dotted name have no meaning without the whole.
            if dotted(node) is not None if handled else _visit_attribute(module, node):
                continue
            module.handled.add(node.attr)
        elif isinstance(node, cst.Arg) and node.keyword is not None:
            module.handled.add(node.keyword)
        elif isinstance(node, cst.Subscript):
            vendor_names.visit_subscript(module, node)
        elif isinstance(node, cst.Call) and not handled:
            _visit_call(module, node)
        elif isinstance(node, STRINGS) and not handled:
            device_values.visit_string(module, node)
        if isinstance(node, cst.ConcatenatedString):
            module.handled.update((node.left, node.right))
        waiting.extend(reversed(children(node)))


def _visit_call(module: Module, node: cst.Call) -> None:
    tensor_members.visit_keywords(module, node)
    if not (vendor_names.visit_call(module, node) or tensor_members.visit_call(module, node)):
        device_values.visit_device_call(module, node)
        device_values.visit_string(module, node)


def _visit_attribute(module: Module, node: cst.Attribute) -> bool:
    """Visits an attribute. Returns whether its parts need no visit."""
    if vendor_names.visit_properties(module, node):
        return False
    if vendor_names.visit_name(module, node):
        return True
    tensor_members.visit_attribute(module, node)
    return False


def _start(syntax: Syntax, node: cst.CSTNode) -> tuple[int, int]:
    start = syntax.position(node).start
    return start.line, start.column


def _lines(syntax: Syntax, node: cst.CSTNode) -> set[int]:
    position = syntax.position(node)
    return set(range(position.start.line, position.end.line + 1))


def _unit(syntax: Syntax, node: cst.CSTNode) -> cst.CSTNode:
    """Returns the innermost function whose body has the node; outside functions, the module's or class's statement."""
    for parent, child in syntax.ancestors(node):
        if isinstance(parent, cst.FunctionDef) and child is parent.body:
            return parent
        is_class = isinstance(parent, cst.IndentedBlock) and isinstance(syntax.parent(parent), cst.ClassDef)
        if is_class or isinstance(parent, cst.Module):
            return child
    return node


def _distinguished(vendor_sets: set[frozenset[str]]) -> frozenset[str]:
    """Returns the vendors that code distinguishes if it names these; none if all may be the same vendor."""
    if not vendor_sets or frozenset.intersection(*vendor_sets):
        return frozenset()
    return frozenset.union(*vendor_sets)


def _describe(vendors: Iterable[str]) -> str:
    return " and ".join(sorted(vendors))


def _units_that_choose(syntax: Syntax, references: Iterable[Reference]) -> dict[cst.CSTNode, str]:
    """Returns the units that choose between vendors, and those vendors. No part of such a unit may be converted."""
    vendor_sets: dict[cst.CSTNode, set[frozenset[str]]] = {}
    for reference in references:
        if reference.vendors:
            vendor_sets.setdefault(_unit(syntax, reference.node), set()).add(reference.vendors)
    distinguished = {unit: _describe(_distinguished(sets)) for unit, sets in vendor_sets.items()}
    return {unit: vendors for unit, vendors in distinguished.items() if vendors}


def _decide(syntax: Syntax, reference: Reference, vendors: str) -> Reference:
    """Returns the reference with the decision that its place requires. `vendors`: those that its unit distinguishes."""
    if reference.convert is None:
        return reference
    if vendors and reference.vendors:
        problem: str | None = f"this code distinguishes {vendors}: replace it by one path through the accelerator"
    else:
        problem = _call_problem(syntax, reference.node)
    if problem is not None:
        return reference._replace(problem=problem, convert=None, note="")
    if reference.needs != "nothing" and runs_at_import(syntax, reference.node):
        return reference._replace(note="; ".join(filter(None, (reference.note, IMPORT_NOTE))))
    return reference


def _call_problem(syntax: Syntax, node: cst.CSTNode) -> str | None:
    """Returns why the node cannot be replaced by a call; None if it can."""
    for parent, child in syntax.ancestors(node):
        if isinstance(parent, cst.Annotation):
            return "a type annotation, which must be a class and not a call"
        if isinstance(parent, cst.MatchPattern):
            return "a pattern, which cannot hold a call"
        if isinstance(parent, cst.ClassDef) and child in (*parent.bases, *parent.keywords):
            return "a base class"
        if isinstance(parent, cst.FunctionDef) and child is parent.body:
            for decorator in parent.decorators:
                expression = decorator.decorator
                function = expression.func if isinstance(expression, cst.Call) else expression
                if syntax.qualified_name(function) in SCRIPTED:
                    return "in a function that its decorator compiles: compiled code cannot call get_accelerator"
    return None


def runs_at_import(syntax: Syntax, node: cst.CSTNode) -> bool:
    """Returns whether the code runs when the module is imported: not in a function's body, nor below `__main__`."""
    for parent, child in syntax.ancestors(node):
        if isinstance(parent, cst.FunctionDef | cst.Lambda) and child is parent.body:
            return False
        if isinstance(parent, cst.If) and child is parent.body and "__main__" in syntax.code(parent.test):
            return False
    return True

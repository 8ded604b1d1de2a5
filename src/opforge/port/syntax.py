"""One parsed module: its nodes in order, each one's parent, and what its names stand for."""

from __future__ import annotations

import dataclasses
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from typing import TypeGuard

import libcst as cst
from libcst.metadata import (
    Assignment,
    BaseAssignment,
    ClassScope,
    CodeRange,
    ImportAssignment,
    MetadataWrapper,
    PositionProvider,
    Scope,
    ScopeProvider,
)

from opforge.errors import PortError

UNKNOWN = ""
"""What a name stands for that the module does not bind."""


class Syntax:
    """A module and what is known about its names.

    Raises libcst.ParserSyntaxError where the text is not Python, PortError where it is and libcst fails all the same.
    """

    def __init__(self, text: str, name: str = "<text>") -> None:
        try:
            module = cst.parse_module(text)
        except (TypeError, cst.CSTValidationError) as error:  # for one, `not(lambda: x).y` up to libcst 1.9
            advice = "Put spaces around its operators, or leave the file out"
            raise PortError(name, f"the parser libcst cannot read it ({error})", advice) from error
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._wrapper = wrapper
        self._text = text
        self._lines: list[str] = []
        self._parents = {child: node for node in walk(wrapper.module) for child in children(node)}
        self._scopes = wrapper.resolve(ScopeProvider)
        self._positions: dict[cst.CSTNode, CodeRange] | None = None
        self._bound: dict[Scope, dict[str, list[BaseAssignment]]] = {}

    def position(self, node: cst.CSTNode) -> CodeRange:
        """Give where the node stands: lines from 1, columns from 0. Found for all nodes at the first question."""
        if self._positions is None:
            self._positions = dict(self._wrapper.resolve(PositionProvider))
        return self._positions[node]

    def follows_a_word(self, node: cst.CSTNode) -> bool:
        """Whether the character before the node belongs to a name, a keyword or a number."""
        self._lines = self._lines or re.split(r"\r\n|\r|\n", self._text)
        start = self.position(node).start
        before = self._lines[start.line - 1][: start.column][-1:]
        return before == "_" or before.isalnum()

    def lines_with(self, comment: re.Pattern[str]) -> set[int]:
        """Give the numbers of the lines with a comment that the pattern matches."""
        if comment.search(self._text) is None:
            return set()
        tokens = tokenize.generate_tokens(io.StringIO(self._text).readline)
        return {one.start[0] for one in tokens if one.type == tokenize.COMMENT and comment.match(one.string)}

    def code(self, node: cst.CSTNode) -> str:
        """Give the node's text."""
        return self.module.code_for_node(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Give the node that holds this one; None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        """Give (holder, held) pairs from the node outwards."""
        held, holder = node, self.parent(node)
        while holder is not None:
            yield holder, held
            held, holder = holder, self.parent(holder)

    def scopes(self) -> set[Scope]:
        """Give every scope that something is bound or used in."""
        return {scope for scope in self._scopes.values() if scope is not None}

    def bound(self, scope: Scope, root: str) -> list[BaseAssignment]:
        """Give the assignments of a name in one scope; `import a.b` binds `a`."""
        if scope not in self._bound:
            table: dict[str, list[BaseAssignment]] = {}
            for one in scope.assignments:
                table.setdefault(one.name.partition(".")[0], []).append(one)
            self._bound[scope] = table
        return self._bound[scope].get(root, [])

    def assignments(self, name: cst.Name) -> Sequence[BaseAssignment]:
        """Give the assignments that a name in use may come from: those of the innermost scope that binds it."""
        scope = self._scopes.get(name)
        first = True
        while scope is not None:
            # The body of a class is seen from itself only, not from the functions in it.
            found = self.bound(scope, name.value) if first or not isinstance(scope, ClassScope) else []
            if found or scope.parent is scope:
                return found
            scope, first = scope.parent, False
        return ()

    def imports(self, name: cst.Name) -> set[type[cst.CSTNode]]:
        """Give the kinds of import statements that may have bound the name: Import, ImportFrom, both or none."""
        found = self.assignments(name)
        return {type(one.node) for one in found if isinstance(one, ImportAssignment)}

    def uses(self, name: cst.Name) -> list[cst.Name]:
        """Give every use of the variable that the name stands for here, whichever of its values it has."""
        scope = self._scopes.get(name)
        own = self.bound(scope, name.value) if scope is not None else []
        found = own or self.assignments(name)
        nodes = (access.node for one in found for access in one.references)
        return list(dict.fromkeys(node for node in nodes if isinstance(node, cst.Name)))

    def meaning(self, node: cst.BaseExpression) -> str | None:
        """Give the full name of what an imported name or an attribute of one stands for, such as `torch.cuda.Event`.

        None: it is something else, or may be. UNKNOWN: the module binds no such name.
        """
        parts = dotted(node)
        if parts is None:
            return None
        root, rest = parts[0], [part.value for part in parts[1:]]
        found = self.assignments(root)
        if not found:
            return UNKNOWN
        meant = {self._imported(one, root.value) for one in found}
        meant.discard("None")  # `except ImportError: torch = None`
        if len(meant) != 1:
            return None
        (name,) = meant
        return None if name is None else ".".join([name, *rest])

    def makes_device(self, node: cst.CSTNode) -> TypeGuard[cst.Call]:
        """Whether the node is a call of torch.device."""
        return isinstance(node, cst.Call) and self.meaning(node.func) == "torch.device"

    def _imported(self, assignment: BaseAssignment, root: str) -> str | None:
        """Give what an import binds the name to; "None" for `name = None`, None for every other assignment."""
        if isinstance(assignment, ImportAssignment):
            statement = assignment.node
            if isinstance(statement, cst.ImportFrom):
                if statement.relative or statement.module is None or isinstance(statement.names, cst.ImportStar):
                    return None
                module = ".".join(part.value for part in dotted(statement.module) or ())
                for alias in statement.names:
                    if (alias.evaluated_alias or alias.evaluated_name) == root:
                        return f"{module}.{alias.evaluated_name}"
            elif isinstance(statement, cst.Import):
                for alias in statement.names:
                    if alias.evaluated_alias == root:
                        return alias.evaluated_name
                    if alias.evaluated_alias is None and alias.evaluated_name.partition(".")[0] == root:
                        return root
            return None
        if isinstance(assignment, Assignment):
            target = self.parent(assignment.node)
            assigning = target and self.parent(target)
            if isinstance(assigning, cst.Assign) and isinstance(assigning.value, cst.Name):
                return "None" if assigning.value.value == "None" else None
        return None


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Give the nodes that a node holds, in the order of the text, without spaces, commas and the like."""
    names = _fields.get(type(node))
    if names is None:
        names = _fields[type(node)] = [one.name for one in dataclasses.fields(node) if not _LAYOUT.search(one.name)]
    found: list[cst.CSTNode] = []
    for name in names:
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(one for one in value if isinstance(one, cst.CSTNode))
    return found


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Give a node and all below it, each before what it holds."""
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
    """Give the names of `a.b.c`; None where the expression is anything else."""
    parts: list[cst.Name] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    return [node, *reversed(parts)]


def last_name(function: cst.BaseExpression) -> str:
    """Give the last part of what is called: `to` of `x.to`, "" where it has no name."""
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""

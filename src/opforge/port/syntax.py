"""One parsed module: its nodes in order, their parents, and what its names refer to."""

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

UNBOUND = ""
"""The qualified name of a name that the module does not bind."""


class Syntax:
    """A parsed module with parents, positions and scopes.

    Raises:
        libcst.ParserSyntaxError: The text is not Python.
        PortError: The text is Python, but libcst cannot parse it.
    """

    def __init__(self, text: str, name: str = "<text>") -> None:
        try:
            module = cst.parse_module(text)
        except (TypeError, cst.CSTValidationError) as error:  # for example `not(lambda: x).y` up to libcst 1.9
            advice = "Put spaces around its operators, or exclude the file"
            raise PortError(name, f"the parser libcst cannot read it ({error})", advice) from error
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._wrapper = wrapper
        self._text = text
        self._lines: list[str] = []
        self._parents = {child: node for node in walk(wrapper.module) for child in children(node)}
        self._scopes = wrapper.resolve(ScopeProvider)
        self._positions: dict[cst.CSTNode, CodeRange] | None = None
        self._assignments: dict[Scope, dict[str, list[BaseAssignment]]] = {}

    def position(self, node: cst.CSTNode) -> CodeRange:
        """Returns where the node is: lines from 1, columns from 0. The first call computes it for all nodes."""
        if self._positions is None:
            self._positions = dict(self._wrapper.resolve(PositionProvider))
        return self._positions[node]

    def follows_word(self, node: cst.CSTNode) -> bool:
        """Returns whether the character before the node belongs to a name, a keyword or a number."""
        self._lines = self._lines or re.split(r"\r\n|\r|\n", self._text)
        start = self.position(node).start
        before = self._lines[start.line - 1][: start.column][-1:]
        return before == "_" or before.isalnum()

    def lines_with_comment(self, pattern: re.Pattern[str]) -> set[int]:
        """Returns the numbers of the lines that have a comment which matches the pattern."""
        if pattern.search(self._text) is None:
            return set()
        tokens = tokenize.generate_tokens(io.StringIO(self._text).readline)
        return {token.start[0] for token in tokens if token.type == tokenize.COMMENT and pattern.match(token.string)}

    def code(self, node: cst.CSTNode) -> str:
        """Returns the node's text."""
        return self.module.code_for_node(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Returns the node's parent; None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        """Yields (parent, child) pairs from the node outwards."""
        child, parent = node, self.parent(node)
        while parent is not None:
            yield parent, child
            child, parent = parent, self.parent(parent)

    def scopes(self) -> set[Scope]:
        """Returns every scope in which a name is bound or used."""
        return {scope for scope in self._scopes.values() if scope is not None}

    def assignments_in(self, scope: Scope, name: str) -> list[BaseAssignment]:
        """Returns the assignments of a name in one scope; `import a.b` binds `a`."""
        if scope not in self._assignments:
            table: dict[str, list[BaseAssignment]] = {}
            for assignment in scope.assignments:
                table.setdefault(assignment.name.partition(".")[0], []).append(assignment)
            self._assignments[scope] = table
        return self._assignments[scope].get(name, [])

    def assignments(self, name: cst.Name) -> Sequence[BaseAssignment]:
        """Returns the assignments that a use of a name may refer to: those in the innermost scope that binds it."""
        scope = self._scopes.get(name)
        is_innermost = True
        while scope is not None:
            # Names of a class body are visible in the body itself, not in the functions that it defines.
            is_visible = is_innermost or not isinstance(scope, ClassScope)
            assignments = self.assignments_in(scope, name.value) if is_visible else []
            if assignments or scope.parent is scope:
                return assignments
            scope, is_innermost = scope.parent, False
        return ()

    def import_kinds(self, name: cst.Name) -> set[type[cst.CSTNode]]:
        """Returns the kinds of import statements that may bind the name: Import, ImportFrom, both or none."""
        assignments = self.assignments(name)
        return {type(assignment.node) for assignment in assignments if isinstance(assignment, ImportAssignment)}

    def uses(self, name: cst.Name) -> list[cst.Name]:
        """Returns every use of the variable that the name refers to here, whatever its value at that use."""
        scope = self._scopes.get(name)
        own = self.assignments_in(scope, name.value) if scope is not None else []
        assignments = own or self.assignments(name)
        nodes = (access.node for assignment in assignments for access in assignment.references)
        return list(dict.fromkeys(node for node in nodes if isinstance(node, cst.Name)))

    def qualified_name(self, node: cst.BaseExpression) -> str | None:
        """Returns the full name of an imported name or of an attribute of one, such as `torch.cuda.Event`.

        None if the expression is something else, or may be. UNBOUND if the module does not bind the name.
        """
        parts = dotted(node)
        if parts is None:
            return None
        root, rest = parts[0], [part.value for part in parts[1:]]
        assignments = self.assignments(root)
        if not assignments:
            return UNBOUND
        names = {self._imported_name(assignment, root.value) for assignment in assignments}
        names.discard("None")  # `except ImportError: torch = None`
        if len(names) != 1:
            return None
        (name,) = names
        return None if name is None else ".".join([name, *rest])

    def is_device_call(self, node: cst.CSTNode) -> TypeGuard[cst.Call]:
        """Returns whether the node is a call of torch.device."""
        return isinstance(node, cst.Call) and self.qualified_name(node.func) == "torch.device"

    def _imported_name(self, assignment: BaseAssignment, root: str) -> str | None:
        """Returns what an import binds `root` to; "None" for `root = None`, None for every other assignment."""
        if isinstance(assignment, ImportAssignment):
            statement = assignment.node
            if isinstance(statement, cst.ImportFrom):
                if statement.relative or statement.module is None or isinstance(statement.names, cst.ImportStar):
                    return None
                module = dotted_text(statement.module)
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
            assign = target and self.parent(target)
            if isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Name):
                return "None" if assign.value.value == "None" else None
        return None


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

"""One parsed module: its nodes in order, their parents, and the variables that its names refer to."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from opforge.errors import PortError

from .scopes import Scopes, Variable
from .tree import children, dotted, dotted_text, walk

IMPORTS = cst.Import | cst.ImportFrom
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
        self._scopes = Scopes(wrapper.module)
        self._positions: dict[cst.CSTNode, CodeRange] | None = None

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

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the module's statement that has the node."""
        return next(child for parent, child in self.ancestors(node) if isinstance(parent, cst.Module))

    def bindings(self, name: str) -> list[cst.CSTNode]:
        """Returns the nodes that bind a name in any scope of the module; `import a.b` binds `a`."""
        return self._scopes.bindings.get(name, [])

    def variable(self, name: cst.Name) -> Variable | None:
        """Returns the variable that a name refers to; None if the module does not bind it."""
        return self._scopes.variable(name)

    def import_kinds(self, name: cst.Name) -> set[type[cst.CSTNode]]:
        """Returns the kinds of import statements that may bind the name: Import, ImportFrom, both or none."""
        variable = self.variable(name)
        if variable is None:
            return set()
        if "import kinds" not in variable.facts:
            variable.facts["import kinds"] = {type(node) for node in variable.bindings if isinstance(node, IMPORTS)}
        kinds: set[type[cst.CSTNode]] = variable.facts["import kinds"]
        return kinds

    def qualified_name(self, node: cst.BaseExpression) -> str | None:
        """Returns the full name of an imported name or of an attribute of one, such as `torch.cuda.Event`.

        None if the expression is something else, or may be. UNBOUND if the module does not bind the name.
        """
        parts = dotted(node)
        if parts is None:
            return None
        root, rest = parts[0], [part.value for part in parts[1:]]
        variable = self.variable(root)
        if variable is None:
            return UNBOUND
        if "imported name" not in variable.facts:
            names = {self._imported_name(binding, root.value) for binding in variable.bindings}
            names.discard("None")  # `except ImportError: torch = None`
            variable.facts["imported name"] = names.pop() if len(names) == 1 else None
        name = variable.facts["imported name"]
        return None if name is None else ".".join([name, *rest])

    def is_device_call(self, node: cst.CSTNode) -> TypeGuard[cst.Call]:
        """Returns whether the node is a call of torch.device."""
        return isinstance(node, cst.Call) and self.qualified_name(node.func) == "torch.device"

    def _imported_name(self, binding: cst.CSTNode, root: str) -> str | None:
        """Returns the name that an import binds `root` to; "None" for `root = None`, None for every other binding."""
        if isinstance(binding, cst.ImportFrom):
            if binding.relative or binding.module is None or isinstance(binding.names, cst.ImportStar):
                return None
            module = dotted_text(binding.module)
            for alias in binding.names:
                if (alias.evaluated_alias or alias.evaluated_name) == root:
                    return f"{module}.{alias.evaluated_name}"
        elif isinstance(binding, cst.Import):
            for alias in binding.names:
                if alias.evaluated_alias == root:
                    return alias.evaluated_name
                if alias.evaluated_alias is None and alias.evaluated_name.partition(".")[0] == root:
                    return root
        elif isinstance(binding, cst.Name):
            target = self.parent(binding)
            assign = target and self.parent(target)
            if isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Name):
                return "None" if assign.value.value == "None" else None
        return None

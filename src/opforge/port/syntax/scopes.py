"""Which variable each name of a module refers to, and the nodes that bind it.

libcst's ScopeProvider compares every use of a variable with every assignment: four thousand of both take a minute.
Here both are collected once.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from .tree import children, dotted

COMPREHENSIONS = cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp


class Variable:
    """One variable: a name in a scope."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bindings: list[cst.CSTNode] = []
        """The nodes that bind it: an assigned Name, or the Import, ImportFrom, FunctionDef, ClassDef or Param."""
        self.uses: list[cst.Name] = []
        """Where its value is read, also in inner scopes."""
        self.facts: dict[object, Any] = {}
        """Answers about it, by question: each use asks again."""


class Scope:
    """The variables of a module, function, class or comprehension."""

    def __init__(self, parent: Scope | None, is_class: bool = False, is_comprehension: bool = False) -> None:
        self.parent, self.is_class, self.is_comprehension = parent, is_class, is_comprehension
        self.variables: dict[str, Variable] = {}
        self.elsewhere: dict[str, Scope] = {}
        """The scopes of the names that are declared global or nonlocal."""


class Scopes:
    """The variables of a module."""

    def __init__(self, module: cst.Module) -> None:
        self._module_scope = Scope(None)
        self._variables: dict[cst.Name, Variable] = {}
        self._uses: list[tuple[cst.Name, Scope]] = []
        self.bindings: dict[str, list[cst.CSTNode]] = {}
        """The nodes that bind a name in any scope of the module."""
        self._visit_children(module, self._module_scope)
        for name, scope in self._uses:
            if (variable := self._resolve(name.value, scope)) is not None:
                variable.uses.append(name)
                self._variables[name] = variable

    def variable(self, name: cst.Name) -> Variable | None:
        """Returns the variable that a name refers to; None if the module does not bind it, or it is no variable."""
        return self._variables.get(name)

    def _resolve(self, name: str, scope: Scope) -> Variable | None:
        innermost: Scope | None = scope
        current: Scope | None = scope
        while current is not None:
            current = current.elsewhere.get(name, current)
            # Names of a class body are visible in the body itself, not in the functions that it defines.
            if name in current.variables and (current is innermost or not current.is_class):
                return current.variables[name]
            current = current.parent
        return None

    def _bind(self, name: str, node: cst.CSTNode, scope: Scope, place: cst.CSTNode | None = None) -> None:
        """Records that `node` binds a name. `place` is the Name that spells it, if there is one."""
        scope = scope.elsewhere.get(name, scope)
        variable = scope.variables.setdefault(name, Variable(name))
        variable.bindings.append(node)
        self.bindings.setdefault(name, []).append(node)
        if isinstance(place, cst.Name):
            self._variables[place] = variable

    def _visit_children(self, node: cst.CSTNode, scope: Scope) -> None:
        for child in children(node):
            self._visit(child, scope)

    def _visit(self, node: cst.CSTNode, scope: Scope) -> None:
        if isinstance(node, cst.Name):
            self._uses.append((node, scope))
        elif isinstance(node, cst.Attribute | cst.Arg):
            self._visit(node.value, scope)
        elif isinstance(node, cst.Import | cst.ImportFrom):
            self._visit_import(node, scope)
        elif isinstance(node, cst.AssignTarget):
            self._visit_target(node.target, scope)
        elif isinstance(node, cst.AnnAssign | cst.AugAssign | cst.For):
            self._visit_target(node.target, scope)
            for child in children(node):
                if child is not node.target:
                    self._visit(child, scope)
        elif isinstance(node, cst.NamedExpr):
            outer = scope
            while outer.is_comprehension and outer.parent is not None:
                outer = outer.parent
            self._visit_target(node.target, outer)
            self._visit(node.value, scope)
        elif isinstance(node, cst.AsName):
            self._visit_target(node.name, scope)
        elif isinstance(node, cst.FunctionDef | cst.Lambda):
            self._visit_function(node, scope)
        elif isinstance(node, cst.ClassDef):
            self._visit_class(node, scope)
        elif isinstance(node, COMPREHENSIONS):
            self._visit_comprehension(node, scope)
        elif isinstance(node, cst.Global | cst.Nonlocal):
            self._visit_declaration(node, scope)
        elif isinstance(node, cst.MatchAs | cst.MatchStar | cst.MatchMapping):
            self._visit_pattern(node, scope)
        elif isinstance(node, cst.MatchKeywordElement):
            self._visit(node.pattern, scope)
        elif isinstance(node, cst.TypeVar | cst.TypeVarTuple | cst.ParamSpec | cst.TypeAlias):
            self._bind(node.name.value, node, scope, node.name)
            for child in children(node):
                if child is not node.name:
                    self._visit(child, scope)
        else:
            self._visit_children(node, scope)

    def _visit_import(self, node: cst.Import | cst.ImportFrom, scope: Scope) -> None:
        for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
            if parts := dotted(alias.asname.name if alias.asname else alias.name):
                self._bind(parts[0].value, node, scope)

    def _visit_target(self, target: cst.CSTNode, scope: Scope) -> None:
        if isinstance(target, cst.Name):
            self._bind(target.value, target, scope, target)
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._visit_target(element.value, scope)
        else:
            self._visit(target, scope)  # an attribute or an item: its parts are read

    def _visit_function(self, node: cst.FunctionDef | cst.Lambda, scope: Scope) -> None:
        outside: list[cst.CSTNode] = []
        if isinstance(node, cst.FunctionDef):
            self._bind(node.name.value, node, scope, node.name)
            outside += node.decorators
            scope = self._with_type_parameters(node, scope)
            outside += filter(None, [node.returns])
        inside = Scope(scope)
        parameters = node.params
        stars = [star for star in (parameters.star_arg, parameters.star_kwarg) if isinstance(star, cst.Param)]
        for parameter in (*parameters.posonly_params, *parameters.params, *parameters.kwonly_params, *stars):
            self._bind(parameter.name.value, parameter, inside, parameter.name)
            outside += filter(None, [parameter.default, parameter.annotation])
        for child in outside:
            self._visit(child, scope)
        self._visit(node.body, inside)

    def _visit_class(self, node: cst.ClassDef, scope: Scope) -> None:
        self._bind(node.name.value, node, scope, node.name)
        for decorator in node.decorators:
            self._visit(decorator, scope)
        scope = self._with_type_parameters(node, scope)
        for argument in (*node.bases, *node.keywords):
            self._visit(argument, scope)
        self._visit(node.body, Scope(scope, is_class=True))

    def _with_type_parameters(self, node: cst.FunctionDef | cst.ClassDef, scope: Scope) -> Scope:
        """Returns the scope of a definition's annotations or bases: one of its own if it has type parameters."""
        if node.type_parameters is None:
            return scope
        inside = Scope(scope)
        self._visit(node.type_parameters, inside)
        return inside

    def _visit_comprehension(self, node: cst.CSTNode, scope: Scope) -> None:
        inside = Scope(scope, is_comprehension=True)
        clause: cst.CompFor | None = node.for_in  # type: ignore[attr-defined]
        iterable_scope = scope
        while clause is not None:
            self._visit(clause.iter, iterable_scope)  # the first one is evaluated outside
            self._visit_target(clause.target, inside)
            for condition in clause.ifs:
                self._visit(condition, inside)
            clause, iterable_scope = clause.inner_for_in, inside
        for child in children(node):
            if not isinstance(child, cst.CompFor):
                self._visit(child, inside)

    def _visit_declaration(self, node: cst.Global | cst.Nonlocal, scope: Scope) -> None:
        for item in node.names:
            name, target = item.name.value, self._module_scope
            if isinstance(node, cst.Nonlocal):
                enclosing = scope.parent
                while enclosing is not None and (enclosing.is_class or name not in enclosing.variables):
                    enclosing = enclosing.parent
                target = enclosing or self._module_scope
            if target is not scope:
                scope.elsewhere[name] = target

    def _visit_pattern(self, node: cst.MatchAs | cst.MatchStar | cst.MatchMapping, scope: Scope) -> None:
        name = node.rest if isinstance(node, cst.MatchMapping) else node.name
        if name is not None:
            self._bind(name.value, name, scope, name)
        for child in children(node):
            if child is not name:
                self._visit(child, scope)

"""The code that takes a tie's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import libcst as cst
from libcst.metadata import ImportAssignment

from .syntax import Syntax, dotted

FACE = ("opforge", "opforge.accelerator", "opforge.accelerator.select")
ORIGIN = ("deepspeed.accelerator", "deepspeed.accelerator.real_accelerator")
"""Modules that offer `get_accelerator`: ours, and DeepSpeed's, whose imports are turned into ours."""

Convert = Callable[[cst.CSTNode], cst.CSTNode]
"""Makes the new node from the old one, whose inner parts may have been converted already."""

N = TypeVar("N", bound=cst.CSTNode)


class Writer:
    """Writes calls of the accelerator's methods, under the name that the module has or will have for it."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self.name, self.imported_at = self._accelerator_name()
        """The name of `get_accelerator`, and which statement of the module imports it; -1: none does."""
        self.torch, self.torch_at = self._torch_name()
        """The same for the module `torch`."""

    def _accelerator_name(self) -> tuple[str, int]:
        scopes = self._syntax.scopes()
        for place, statement in enumerate(self._syntax.module.body):
            for name in _imports_of(statement, (*FACE, *ORIGIN), "get_accelerator"):
                if sum(len(self._syntax.bound(scope, name)) for scope in scopes) == 1:
                    return name, place
        return self._free("get_accelerator", "opforge_get_accelerator"), -1

    def _torch_name(self) -> tuple[str, int]:
        scopes = self._syntax.scopes()
        for place, statement in enumerate(self._syntax.module.body):
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            for one in statement.body:
                for alias in one.names if isinstance(one, cst.Import) else ():
                    whole = alias.evaluated_name.partition(".")[0] if alias.asname is None else alias.evaluated_name
                    name = alias.evaluated_alias or whole
                    bound = [each for scope in scopes for each in self._syntax.bound(scope, name)]
                    if whole == "torch" and all(isinstance(each, ImportAssignment) for each in bound):
                        return name, place
        return self._free("torch", "opforge_torch"), -1

    def _free(self, *names: str) -> str:
        scopes = self._syntax.scopes()
        free = (name for name in names if not any(self._syntax.bound(scope, name) for scope in scopes))
        return next(free, f"_{names[-1]}")

    def imports(self, accelerator: bool, torch: bool, before: int) -> list[cst.SimpleStatementLine]:
        """Give the imports that are missing; those after statement number `before` come too late."""
        missing = []
        if torch and not 0 <= self.torch_at < before:
            missing.append("import torch" + (f" as {self.torch}" if self.torch != "torch" else ""))
        if accelerator and not 0 <= self.imported_at < before:
            renamed = f" as {self.name}" if self.name != "get_accelerator" else ""
            missing.append(f"from opforge import get_accelerator{renamed}")
        return [cst.SimpleStatementLine([_small(text)]) for text in missing]

    def accelerator(self) -> cst.Name:
        """Give `get_accelerator`."""
        return cst.Name(self.name)

    def member(self, name: str) -> cst.Attribute:
        """Give `get_accelerator().name`."""
        return cst.Attribute(cst.Call(self.accelerator()), cst.Name(name))

    def call(self, method: str, *arguments: cst.BaseExpression | None) -> cst.Call:
        """Give `get_accelerator().method(...)`, without the arguments that are None."""
        return cst.Call(self.member(method), [cst.Arg(one) for one in arguments if one is not None])

    def general(self, name: str) -> cst.BaseExpression:
        """Give `torch.name`."""
        return cst.parse_expression(f"{self.torch}.{name}")


def _small(text: str) -> cst.BaseSmallStatement:
    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement.body[0]


def _imports_of(statement: cst.CSTNode, modules: Sequence[str], name: str) -> list[str]:
    """Give the local names under which a statement imports a name from one of the modules."""
    found = []
    for one in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
        if isinstance(one, cst.ImportFrom) and module_of(one) in modules and not isinstance(one.names, cst.ImportStar):
            found += [each.evaluated_alias or name for each in one.names if each.evaluated_name == name]
    return found


def module_of(statement: cst.ImportFrom) -> str:
    """Give the module that a statement imports from; "" for one that is relative."""
    parts = dotted(statement.module) if statement.module is not None and not statement.relative else None
    return ".".join(part.value for part in parts or ())


def in_parentheses_of(old: cst.CSTNode, new: N) -> N:
    """Give the new expression within the old one's parentheses."""
    left, right = getattr(old, "lpar", ()), getattr(old, "rpar", ())
    return new.with_changes(lpar=left, rpar=right) if left else new


def with_keyword(argument: cst.Arg, name: str) -> cst.Arg:
    """Give the argument by that keyword, written `name=value`."""
    none = cst.SimpleWhitespace("")
    return argument.with_changes(keyword=cst.Name(name), equal=cst.AssignEqual(none, none))


def without_comma(arguments: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Give the arguments without the comma after the last, for lists of which the last was taken away."""
    if not arguments:
        return []
    *first, last = arguments
    return [*first, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)]

"""The code that replaces a vendor reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import libcst as cst

from .syntax.module import IMPORTS, Syntax
from .syntax.tree import dotted_text

OPFORGE_MODULES = ("opforge", "opforge.accelerator", "opforge.accelerator.select")
DEEPSPEED_MODULES = ("deepspeed.accelerator", "deepspeed.accelerator.real_accelerator")
"""Modules that offer `get_accelerator`. Imports from DeepSpeed's are turned into imports from opforge."""

Convert = Callable[[cst.CSTNode], cst.CSTNode]
"""Returns the new node for the original one, whose inner parts may have been converted already."""

N = TypeVar("N", bound=cst.CSTNode)


class Writer:
    """Writes calls of the accelerator's methods, by the name that the module has or will have for it."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self.accelerator_name, self.accelerator_import = self._find_accelerator()
        """The name of `get_accelerator`, and the index of the module's statement that imports it; -1 if none does."""
        self.torch_name, self.torch_import = self._find_torch()
        """The same for the module `torch`."""

    def _find_accelerator(self) -> tuple[str, int]:
        for index, statement in enumerate(self._syntax.module.body):
            for name in _local_names(statement, (*OPFORGE_MODULES, *DEEPSPEED_MODULES), "get_accelerator"):
                if len(self._syntax.bindings(name)) == 1:
                    return name, index
        return self._unused_name("get_accelerator", "opforge_get_accelerator"), -1

    def _find_torch(self) -> tuple[str, int]:
        rebound = set[str]()
        for index, line in enumerate(self._syntax.module.body):
            if not isinstance(line, cst.SimpleStatementLine):
                continue
            for statement in line.body:
                for alias in statement.names if isinstance(statement, cst.Import) else ():
                    module = alias.evaluated_name.partition(".")[0] if alias.asname is None else alias.evaluated_name
                    name = alias.evaluated_alias or module
                    if module != "torch" or name in rebound:
                        continue
                    if all(isinstance(binding, IMPORTS) for binding in self._syntax.bindings(name)):
                        return name, index
                    rebound.add(name)
        return self._unused_name("torch", "opforge_torch"), -1

    def _unused_name(self, *names: str) -> str:
        unused = (name for name in names if not self._syntax.bindings(name))
        return next(unused, f"_{names[-1]}")

    def missing_imports(self, accelerator: bool, torch: bool, before: int) -> list[cst.SimpleStatementLine]:
        """Returns the imports to add, so that the new code's names are bound before statement number `before`."""
        lines = []
        if torch and not 0 <= self.torch_import < before:
            lines.append("import torch" + (f" as {self.torch_name}" if self.torch_name != "torch" else ""))
        if accelerator and not 0 <= self.accelerator_import < before:
            alias = f" as {self.accelerator_name}" if self.accelerator_name != "get_accelerator" else ""
            lines.append(f"from opforge import get_accelerator{alias}")
        return [cst.SimpleStatementLine([_small_statement(line)]) for line in lines]

    def accelerator(self) -> cst.Name:
        """Returns `get_accelerator`."""
        return cst.Name(self.accelerator_name)

    def member(self, name: str) -> cst.Attribute:
        """Returns `get_accelerator().name`."""
        return cst.Attribute(cst.Call(self.accelerator()), cst.Name(name))

    def call(self, method: str, *arguments: cst.BaseExpression | None) -> cst.Call:
        """Returns `get_accelerator().method(...)`, without the arguments that are None."""
        return cst.Call(self.member(method), [cst.Arg(argument) for argument in arguments if argument is not None])

    def torch_member(self, name: str) -> cst.BaseExpression:
        """Returns `torch.name`."""
        return cst.parse_expression(f"{self.torch_name}.{name}")


def _small_statement(text: str) -> cst.BaseSmallStatement:
    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement.body[0]


def _local_names(line: cst.CSTNode, modules: Sequence[str], name: str) -> list[str]:
    """Returns the local names under which a line of the module imports a name from one of the modules."""
    names = []
    for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
        if isinstance(statement, cst.ImportFrom) and imported_module(statement) in modules:
            aliases = () if isinstance(statement.names, cst.ImportStar) else statement.names
            names += [alias.evaluated_alias or name for alias in aliases if alias.evaluated_name == name]
    return names


def imported_module(statement: cst.ImportFrom) -> str:
    """Returns the module that a statement imports from; "" for a relative import."""
    return "" if statement.relative else dotted_text(statement.module)


def in_parentheses_of(old: cst.CSTNode, new: N) -> N:
    """Returns the new expression within the old one's parentheses."""
    left, right = getattr(old, "lpar", ()), getattr(old, "rpar", ())
    return new.with_changes(lpar=left, rpar=right) if left else new


def with_keyword(argument: cst.Arg, name: str) -> cst.Arg:
    """Returns the argument with that keyword, written `name=value`."""
    no_space = cst.SimpleWhitespace("")
    return argument.with_changes(keyword=cst.Name(name), equal=cst.AssignEqual(no_space, no_space))


def without_last_comma(arguments: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Returns the arguments without the comma after the last, for a list whose last argument was removed."""
    if not arguments:
        return []
    *first, last = arguments
    return [*first, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)]

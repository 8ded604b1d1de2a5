"""One module's text, ported: what is tied to a vendor replaced, everything else as it was to the byte."""

from __future__ import annotations

import ast
import dataclasses
import warnings
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import libcst as cst

from opforge.errors import PortError

from .analysis import runs_at_import, ties
from .findings import CONVERTED, LEFT, NOTE, Finding
from .rules.import_statements import with_imports
from .syntax import Syntax
from .ties import Module, Tie
from .vendors import HINT

FAULT = "It was not changed; report this as a fault of opforge"


class Ported(NamedTuple):
    """A module before and after."""

    text: str
    """The new text; the same one where there is nothing to convert."""
    findings: list[Finding]
    """In the order of the text. Places are those in the text before."""
    after: list[Finding]
    """What is left and what is to be looked at, by their places in the new text."""


def port(text: str, name: str = "<text>") -> Ported:
    """Port one module's text. Raises PortError where it is not Python; `name` says which it is."""
    if not HINT.search(text):
        return Ported(text, [], [])
    try:
        _parse(text)  # libcst dies of a text that is nested very deeply; Python refuses it
        return _ported(Syntax(text, name), text, name)
    except PortError:
        raise
    except cst.ParserSyntaxError as error:
        told = error.message.strip().splitlines()[0]
        raise PortError(name, f"line {error.raw_line}: {told}", "Mend it, or leave the file out") from error
    except cst.CSTValidationError as error:
        raise PortError(name, f"its converted form would not be Python ({error})", FAULT) from error
    except SyntaxError as error:
        raise PortError(name, f"line {error.lineno or 1}: {error.msg}", "Mend it, or leave the file out") from error
    except (RecursionError, MemoryError) as error:
        raise PortError(name, "it is nested too deeply to be parsed", "Leave the file out") from error


def _ported(syntax: Syntax, text: str, name: str) -> Ported:
    module, found = ties(syntax)
    findings = [finding for tie in found for finding in _findings(syntax, tie)]
    converted = {tie.node: tie for tie in found if tie.convert is not None}
    if not converted:
        return Ported(text, findings, findings)
    new, start, count = _rewritten(module, converted)
    _check(name, new)
    return Ported(new, findings, [_moved(one, start, count) for one in findings if one.kind != CONVERTED])


def _rewritten(module: Module, converted: dict[cst.CSTNode, Tie]) -> tuple[str, int, int]:
    """Give the new text, the line before which imports were added, and how many lines that took."""
    syntax = module.syntax
    needs = {tie.needs for tie in converted.values()}
    used_at = min(
        (
            _statement(syntax, node)
            for node, tie in converted.items()
            if tie.needs != "nothing" and runs_at_import(syntax, node)
        ),
        default=len(syntax.module.body),
    )
    added = module.write.imports(bool(needs & {"accelerator", "both"}), bool(needs & {"torch", "both"}), used_at)
    above = {holder for node in converted for holder, _held in syntax.ancestors(node)}
    new = _with_new(syntax, syntax.module, converted, above | set(converted))
    with_added, place = with_imports(new, added)
    body = syntax.module.body
    start = syntax.position(body[place]).start.line if added and place < len(body) else 1 << 30
    return with_added.code, start, with_added.code.count("\n") - new.code.count("\n")


def _with_new(
    syntax: Syntax, node: Any, converted: Mapping[cst.CSTNode, Tie], touched: AbstractSet[cst.CSTNode]
) -> Any:
    """Give the node with new code in the ties' places, from the inside out. `touched`: the ties and all above them."""
    if node not in touched:
        return node
    changes: dict[str, object] = {}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, cst.CSTNode) and value in touched:
            changes[field.name] = _with_new(syntax, value, converted, touched)
        elif isinstance(value, list | tuple) and not touched.isdisjoint(value):
            changes[field.name] = [_with_new(syntax, one, converted, touched) for one in value]
    new = node.with_changes(**changes) if changes else node
    tie = converted.get(node)
    return new if tie is None or tie.convert is None else _after_a_word(syntax, node, tie.convert(new))


def _statement(syntax: Syntax, node: cst.CSTNode) -> int:
    """Give the number of the module's statement that the node is in."""
    top = node
    for holder, held in syntax.ancestors(node):
        top = held if isinstance(holder, cst.Module) else top
    return next(at for at, one in enumerate(syntax.module.body) if one is top)


def _after_a_word(syntax: Syntax, old: cst.CSTNode, new: cst.CSTNode) -> cst.CSTNode:
    """Give the new code in parentheses where it would run into the word before it, as in `else'cuda'`."""
    if not isinstance(new, cst.BaseExpression) or new.lpar or syntax.code(old)[:1].isidentifier():
        return new
    if syntax.code(new)[:1].isidentifier() and syntax.follows_a_word(old):
        return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return new


def _findings(syntax: Syntax, tie: Tie) -> list[Finding]:
    start = syntax.position(tie.node).start
    text = " ".join(syntax.code(tie.node).split())
    if tie.convert is None:
        return [Finding(start.line, start.column + 1, LEFT, text, tie.why_left)]
    becomes = " ".join(syntax.code(tie.convert(tie.node)).split())
    made = [Finding(start.line, start.column + 1, CONVERTED, text, becomes)]
    return made + ([Finding(start.line, start.column + 1, NOTE, text, tie.note)] if tie.note else [])


def _moved(finding: Finding, start: int, count: int) -> Finding:
    return finding._replace(line=finding.line + count) if finding.line >= start else finding


def _check(name: str, text: str) -> None:
    try:
        _parse(text)
    except SyntaxError as error:
        problem = f"its converted form would not be Python (line {error.lineno}: {error.msg})"
        raise PortError(name, problem, FAULT) from error


def _parse(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes and the like are the author's own
        try:
            ast.parse(text)
        except ValueError as error:  # a null byte, which later Pythons call a syntax error
            raise SyntaxError(str(error)) from error

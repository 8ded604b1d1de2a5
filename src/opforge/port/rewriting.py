"""Ports one module's text: vendor references are replaced, every other byte stays."""

from __future__ import annotations

import ast
import dataclasses
import warnings
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import libcst as cst

from opforge.errors import PortError

from .analysis import find_references, runs_at_import
from .findings import CONVERTED, LEFT, NOTE, Finding
from .import_insertion import with_imports
from .references import Module, Reference
from .syntax.module import Syntax
from .vendors import HINT

BUG_ADVICE = "The file was not changed; report this as a bug in opforge"
SYNTAX_ADVICE = "Fix it, or exclude the file"


class Ported(NamedTuple):
    """A module after porting."""

    text: str
    """The new text; the original one if there is nothing to convert."""
    findings: list[Finding]
    """In the order of the text, with their places in the original text."""
    remaining: list[Finding]
    """Findings that remain or need a review, with their places in the new text."""


def port_text(text: str, name: str = "<text>") -> Ported:
    """Ports one module's text. Raises PortError, which has `name` as its path, if the text is not Python."""
    if not HINT.search(text):
        return Ported(text, [], [])
    try:
        _parse(text)  # libcst crashes on very deep nesting, which Python's parser rejects
        return _port(Syntax(text, name), text, name)
    except PortError:
        raise
    except cst.ParserSyntaxError as error:
        message = error.message.strip().splitlines()[0]
        raise PortError(name, f"line {error.raw_line}: {message}", SYNTAX_ADVICE) from error
    except cst.CSTValidationError as error:
        raise PortError(name, f"its converted form would not be Python ({error})", BUG_ADVICE) from error
    except SyntaxError as error:
        raise PortError(name, f"line {error.lineno or 1}: {error.msg}", SYNTAX_ADVICE) from error
    except (RecursionError, MemoryError) as error:
        raise PortError(name, "it is nested too deeply to be parsed", "Exclude the file") from error


def _port(syntax: Syntax, text: str, name: str) -> Ported:
    module, references = find_references(syntax)
    findings = [finding for reference in references for finding in _findings(syntax, reference)]
    converted = {reference.node: reference for reference in references if reference.convert is not None}
    if not converted:
        return Ported(text, findings, findings)
    new_text, first_line, count = _rewrite(module, converted)
    _check(name, new_text)
    remaining = [finding for finding in findings if finding.kind != CONVERTED]
    return Ported(new_text, findings, [_move(finding, first_line, count) for finding in remaining])


def _rewrite(module: Module, converted: dict[cst.CSTNode, Reference]) -> tuple[str, int, int]:
    """Returns the new text, the line before which imports were added, and how many lines that took."""
    syntax = module.syntax
    needs = {reference.needs for reference in converted.values()}
    index_of: dict[cst.CSTNode, int] = {statement: index for index, statement in enumerate(syntax.module.body)}
    first_use = min(
        (
            index_of[syntax.statement(node)]
            for node, reference in converted.items()
            if reference.needs != "nothing" and runs_at_import(syntax, node)
        ),
        default=len(syntax.module.body),
    )
    added = module.write.missing_imports(
        accelerator=bool(needs & {"accelerator", "both"}), torch=bool(needs & {"torch", "both"}), before=first_use
    )
    ancestors = {parent for node in converted for parent, _child in syntax.ancestors(node)}
    new = _convert(syntax, syntax.module, converted, ancestors | set(converted))
    new_with_imports, index = with_imports(new, added)
    body = syntax.module.body
    first_line = syntax.position(body[index]).start.line if added and index < len(body) else 1 << 30
    new_text = new_with_imports.code
    return new_text, first_line, new_text.count("\n") - new.code.count("\n")


def _convert(
    syntax: Syntax, node: Any, converted: Mapping[cst.CSTNode, Reference], touched: AbstractSet[cst.CSTNode]
) -> Any:
    """Returns the node with its references converted, inner ones first.

    `touched` holds the references and their ancestors. Every other node is reused as it is.
    """
    if node not in touched:
        return node
    changes: dict[str, object] = {}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, cst.CSTNode) and value in touched:
            changes[field.name] = _convert(syntax, value, converted, touched)
        elif isinstance(value, list | tuple) and not touched.isdisjoint(value):
            changes[field.name] = [_convert(syntax, element, converted, touched) for element in value]
    new = node.with_changes(**changes) if changes else node
    reference = converted.get(node)
    if reference is None or reference.convert is None:
        return new
    return _separate_from_word(syntax, node, reference.convert(new))


def _separate_from_word(syntax: Syntax, old: cst.CSTNode, new: cst.CSTNode) -> cst.CSTNode:
    """Returns the new code, in parentheses if it would run into the word before it, as in `else'cuda'`."""
    if not isinstance(new, cst.BaseExpression) or new.lpar or syntax.code(old)[:1].isidentifier():
        return new
    if syntax.code(new)[:1].isidentifier() and syntax.follows_word(old):
        return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return new


def _findings(syntax: Syntax, reference: Reference) -> list[Finding]:
    start = syntax.position(reference.node).start
    text = " ".join(syntax.code(reference.node).split())
    if reference.convert is None:
        return [Finding(start.line, start.column + 1, LEFT, text, reference.problem or "")]
    new_text = " ".join(syntax.code(reference.convert(reference.node)).split())
    findings = [Finding(start.line, start.column + 1, CONVERTED, text, new_text)]
    if reference.note:
        findings.append(Finding(start.line, start.column + 1, NOTE, text, reference.note))
    return findings


def _move(finding: Finding, first_line: int, count: int) -> Finding:
    """Returns the finding `count` lines further down if it is at or below `first_line`."""
    return finding._replace(line=finding.line + count) if finding.line >= first_line else finding


def _check(name: str, text: str) -> None:
    try:
        _parse(text)
    except SyntaxError as error:
        problem = f"its converted form would not be Python (line {error.lineno}: {error.msg})"
        raise PortError(name, problem, BUG_ADVICE) from error


def _parse(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like are in the author's code
        try:
            ast.parse(text)
        except ValueError as error:  # a null byte, which later Pythons report as a SyntaxError
            raise SyntaxError(str(error)) from error

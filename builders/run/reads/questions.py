"""What sources ask the preprocessor without reading a file: is there a header of this name, and what is the date?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from opforge.builders.spec.build_plan import Step

OPERATORS = (b"__has_include", b"__has_include_next", b"__has_embed")
WRAPPER = re.compile(
    rb"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\([^)\n]*\))?[ \t]+[^\n]*"
    rb"__has_(?:include|include_next|embed)\b(?!\s*\(\s*[<\"])",
    re.MULTILINE,
)
"""A macro whose text asks: what it is called with may be a header's name too."""
DEFINITION = re.compile(rb"[ \t]*#[ \t]*define\b")
DATES = (b"__DATE__", b"__TIME__", b"__TIMESTAMP__")
DATE = "SOURCE_DATE_EPOCH"
"""The variable that replaces the present date."""
DIRECTIVE = re.compile(rb"^#(?:define|undef) .*$", re.MULTILINE)
MARK = b"opforge_asks_for"
QUOTED = re.compile(rb'<([^>\n]+)>|"([^"\n]+)"')


class Questions(NamedTuple):
    """What the text of some files asks."""

    names: frozenset[str] = frozenset()
    """The headers that are asked for by their names."""
    expressions: Mapping[str, frozenset[bytes]] = {}
    """File -> what stands in place of a header's name there, such as a macro."""
    dated: bool = False
    """Whether a file holds the date of its compilation."""


def in_files(paths: Iterable[str]) -> Questions:
    """Returns the questions in files. One in a comment or in a branch that is not compiled counts as well."""
    texts, paths, dated = dict[str, bytes](), list(paths), False
    for path in paths:
        text = content_of(path)
        dated = dated or is_dated(text)
        if b"__has_" in text:
            texts[path] = _in_whole_lines(text)
    wrappers = {name for text in texts.values() for name in WRAPPER.findall(text)}
    for path in paths if wrappers else ():
        text = content_of(path)
        if path not in texts and any(name in text for name in wrappers):
            texts[path] = _in_whole_lines(text)
    words = sorted({*OPERATORS, *wrappers}, reverse=True)
    asking = re.compile(rb"\b(?:" + b"|".join(words) + rb")\s*\(\s*(?:/\*.*?\*/\s*)?((?:[^()\n]|\([^()\n]*\))+)\)")
    names, expressions = set[str](), dict[str, frozenset[bytes]]()
    for path, text in texts.items():
        unclear = set()
        for match in asking.finditer(text):
            literal = QUOTED.match(match[1])
            if literal:
                names.add(os.fsdecode(literal[1] or literal[2]))
            elif not DEFINITION.match(text, text.rfind(b"\n", 0, match.start()) + 1):  # there it is a parameter
                unclear.add(match[1].strip())
        if unclear:
            expressions[path] = frozenset(unclear)
    return Questions(frozenset(names), expressions, dated)


def is_dated(text: bytes) -> bool:
    """Returns whether a text holds the date of its compilation."""
    return any(name in text for name in DATES)


def _in_whole_lines(text: bytes) -> bytes:
    return text.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")


def content_of(path: str) -> bytes:
    """Returns the bytes of a file that was read; none if it is gone, which its stamp shows."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def macros_step(step: Step) -> Step:
    """Returns a step that lists every definition of a macro in a unit, in order."""
    at, output = step.argv.index("-MD"), f"{step.output}.macros"
    source = step.argv[step.argv.index("-c", at) + 1]
    argv = (*step.argv[:at], "-E", "-dD", "-w", source, "-o", output)
    return Step(output, (), argv, f"list the macros of {step.title.partition(' ')[2]}")


def expansion_step(compiler: Sequence[str], work: str, macros: Step, expressions: Iterable[bytes]) -> Step:
    """Returns a step that expands expressions, after `macros` was run in the folder `work`.

    Each is expanded with the definitions that hold at the end of the unit, and with those before each `#undef` and each
    second definition of a name: a directive in between may have used these.
    """
    with open(os.path.join(work, macros.output), "rb") as file:
        directives = DIRECTIVE.findall(file.read())
    probe = b"".join(MARK + b" " + expression + b"\n" for expression in sorted(expressions))
    lines, defined = [], set[bytes]()
    for directive in directives:
        name = re.split(rb"[ (]", directive, maxsplit=2)[1]
        if name in defined:
            lines += [probe, b"#undef " + name + b"\n"]
        defined = defined - {name} if directive.startswith(b"#undef") else defined | {name}
        lines.append(directive + b"\n")
    source, output = f"{macros.output}.h", f"{macros.output}.i"
    with open(os.path.join(work, source), "wb") as file:
        file.write(b"".join([*lines, probe]))
    return Step(output, (), (*compiler, "-E", "-P", "-w", "-x", "c++", source, "-o", output), "expand macros")


def expanded_names(path: str) -> set[str]:
    """Returns the headers' names in what an expansion step has written."""
    names = set[str]()
    with open(path, "rb") as file:
        for line in file:
            literal = QUOTED.search(line) if line.startswith(MARK) else None
            if literal:
                name = os.fsdecode(literal[1] or literal[2])
                names |= {name, name.replace(" ", "")}  # the preprocessor may put spaces between the pieces of a name
    return names

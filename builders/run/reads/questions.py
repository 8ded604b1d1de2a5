"""Questions of files that read no other file: does a header exist, what is the date, what is a variable's value?"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from opforge.builders.declaration.build_plan import Step

OPERATOR = rb"__has_(?:include_next|include|embed)\b"
GAP = rb"(?:\s|/\*(?:[^*]|\*(?!/))*\*/)*"
"""White space and comments."""
NAME = rb'(?:<([^>\n]+)>|"([^"\n]+)")'
DEFINED = re.compile(rb"\bdefined\s*\(?\s*" + OPERATOR)
CONDITION = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*(?:el)?if\b(.*)$", re.MULTILINE)
MACRO = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*define[ \t]+(\w+)(\([^)\n]*\))?(.*)$", re.MULTILINE)
COMMENT = re.compile(rb"/\*.*?(?:\*/|$)|//.*")
DATES = (b"__DATE__", b"__TIME__", b"__TIMESTAMP__")
DATE = "SOURCE_DATE_EPOCH"
"""The variable that replaces the present date."""
PIECE = re.compile(rb'(?<!")\b(?:__|__has|__has_|_?has_include|_?has_embed|_?has_|_include|_embed)\b(?!")')
"""Parts from which `##` may form the name of an operator. A text in quotes is none: `"__" #name "__"` asks nothing."""
GETENV = re.compile(rb"%:getenv\(\s*(\w+)")
"""How GCC's specs ask for a variable."""
DIRECTIVE = re.compile(rb"^#(?:define|undef) .*$", re.MULTILINE)
MARK = b"opforge_asks_for"
BUILT_IN = re.compile(rb"\b__(has_\w+)")
"""The operators, some of which compilers refuse outside of directives."""
EXPANDED = re.compile(rb"\bopforge_" + OPERATOR[2:] + GAP + rb"\(" + GAP + NAME)
CONTINUED = re.compile(rb"\\[ \t]*\r?\n")
MODULE_MAPS = ("module.modulemap", "module.private.modulemap", "module.map", "module_private.map")
"""The files by which clang tells, with -fmodules, that a header belongs to a module."""
PREDEFINED = "stdc-predef.h"
"""The header that gcc includes before each source, if it exists. The C library's is listed as any other header is."""
HEAD_BYTES = 1 << 16
"""How much of a large file must have no zero byte for it to be text: one that `#embed` or `.incbin` names may be data.
"""
BINARY = (b"\x7fELF", b"!<ar", b"!<th")
"""How objects, archives and thin archives begin, which a linker reads: no source begins like this."""


class Questions(NamedTuple):
    """The questions in the text of some files."""

    names: frozenset[str] = frozenset()
    """The headers that are asked for by their names."""
    expressions: frozenset[bytes] = frozenset()
    """The conditions in which something else stands in place of a header's name, such as a macro."""
    variables: frozenset[str] = frozenset()
    """The variables that decide what a file means: that of the date, and those that specs ask for."""
    has_day: bool = False
    """Whether the present day is a part of the library."""
    modified: frozenset[str] = frozenset()
    """The files whose own times are a part of the library."""
    pastes: bool = False
    """Whether `##` is in it."""
    has_piece: bool = False
    """Whether a part is in it from which `##` may form an operator."""

    asks_for_any: bool = False
    """Whether `##` may put the operator together: then nobody knows for which header it asks."""


NOTHING = Questions()


def of_all(parts: Iterable[Questions]) -> Questions:
    """Returns the questions of several files together."""
    parts = [*parts]
    pastes, has_piece = any(part.pastes for part in parts), any(part.has_piece for part in parts)
    return Questions(
        names=frozenset[str]().union(*(part.names for part in parts)),
        expressions=frozenset[bytes]().union(*(part.expressions for part in parts)),
        variables=frozenset[str]().union(*(part.variables for part in parts)),
        has_day=any(part.has_day for part in parts),
        modified=frozenset[str]().union(*(part.modified for part in parts)),
        pastes=pastes,
        has_piece=has_piece,
        asks_for_any=(pastes and has_piece) or any(part.asks_for_any for part in parts),
    )


def in_files(
    paths: Iterable[str], own: Collection[str] = (), words: Sequence[str] = (), is_dated: bool = False
) -> dict[str, Questions]:
    """Returns the questions of each file that asks any. One in a comment or in a branch that is not compiled counts.

    Args:
        paths: The files.
        own: Those of the op itself. Some questions count in these alone: others' headers have macros that nobody uses.
        words: Those of the commands, whose definitions may ask too: as the file "".
        is_dated: Whether SOURCE_DATE_EPOCH replaces the present day.
    """
    texts, others = {"": _definitions(words)}, dict[str, bytes]()
    line = os.fsencode("\n".join(words))
    found = {"": _in_own_text("", line, is_dated)._replace(variables=frozenset(variables_of(line)))}
    for path in paths:
        text = content_of(path)
        asked = _in_own_text(path, text, is_dated) if path in own else Questions()
        found[path] = asked._replace(variables=frozenset(variables_of(text)))
        if b"__has_" in text:
            texts[path] = CONTINUED.sub(b"", text)
        else:
            others[path] = text
    asking, wrappers = OPERATOR, set[bytes]()
    while new := {name for text in texts.values() for name in _macros(text, asking)} - wrappers:
        wrappers |= new
        asking = rb"(?:" + b"|".join([OPERATOR, *(name + rb"\b" for name in sorted(wrappers))]) + rb")"
        for path, text in others.items():
            if path not in texts and any(name in text for name in new):
                texts[path] = CONTINUED.sub(b"", text)
    for path, text in texts.items():
        names = frozenset(os.fsdecode(match[1] or match[2]) for match in _literal(asking).finditer(text))
        conditions = [COMMENT.sub(b" ", condition).strip() for condition in CONDITION.findall(text)]
        unclear = frozenset(condition for condition in conditions if _asks(condition, asking))
        found[path] = found[path]._replace(names=names, expressions=unclear)
    return {path: asked for path, asked in found.items() if asked != NOTHING}


def _in_own_text(path: str, text: bytes, is_dated: bool) -> Questions:
    """Returns the questions that count in the op's own files alone."""
    return Questions(
        has_day=not is_dated and b"__DATE__" in text,
        modified=frozenset([path] if path and b"__TIMESTAMP__" in text else []),
        pastes=b"##" in text,
        has_piece=PIECE.search(text) is not None,
    )


def implied_names(words: Sequence[str], paths: Iterable[str], is_clang: bool) -> set[str]:
    """Returns the headers that a compiler asks for by itself.

    `words` are the commands', `paths` the files that were read.
    """
    names = set(MODULE_MAPS) if {"-fmodules", "-fcxx-modules"} & {*words} else set[str]()
    if not is_clang and not any(os.path.basename(path) == PREDEFINED for path in paths):
        names.add(PREDEFINED)
    return names


def _literal(asking: bytes) -> re.Pattern[bytes]:
    """Returns the form of a question that names the header. `asking` are the operators and macros that ask."""
    return re.compile(rb"\b" + asking + GAP + rb"\(" + GAP + NAME + GAP + rb"\)")


def _macros(text: bytes, asking: bytes) -> list[bytes]:
    """Returns the names of the macros that ask for a header which their text does not name, or not wholly.

    In `#define HAS(x) __has_include(<x.h>)` a parameter is a part of the name.
    """
    macros = [macro for macro in MACRO.findall(text) if re.search(asking, macro[2])]
    return [name for name, parameters, body in macros if _asks(body, asking, is_whole=not parameters.strip(b"( )"))]


def _asks(text: bytes, asking: bytes, is_whole: bool = True) -> bool:
    """Returns whether a condition, or a macro's text, asks for a header that it does not name."""
    unnamed = _literal(asking).sub(b" ", text) if is_whole else text
    return re.search(rb"\b" + asking, DEFINED.sub(b" ", unnamed)) is not None


def _definitions(words: Sequence[str]) -> bytes:
    """Returns the definitions of macros in a command, as directives."""
    values = [word[2:] or after for word, after in zip(words, (*words[1:], ""), strict=False) if word.startswith("-D")]
    return b"".join(b"#define " + os.fsencode(value.replace("=", " ", 1)) + b"\n" for value in values)


def variables_of(text: bytes) -> set[str]:
    """Returns the variables that decide what a text means: of the date, if it holds that of now, and those of specs."""
    variables = {os.fsdecode(name) for name in GETENV.findall(text)} if b"%:getenv(" in text else set[str]()
    return variables | {DATE} if any(name in text for name in DATES) else variables


def content_of(path: str) -> bytes:
    """Returns the bytes of a source that was read; none of an object or a library, which asks nothing.

    None if it is gone, which its stamp shows.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(HEAD_BYTES)
            is_data = len(head) == HEAD_BYTES and (b"\0" in head)
            return b"" if is_data or head[: len(BINARY[0])] in BINARY else head + file.read()
    except FileNotFoundError:
        return b""


def macros_step(step: Step) -> Step:
    """Returns a step that lists every definition of a macro in a unit, in order."""
    at, output = step.argv.index("-MD"), f"{step.output}.macros"
    source = step.argv[step.argv.index("-c", at) + 1]
    argv = (*step.argv[:at], "-E", "-dD", "-w", source, "-o", output)
    return Step(output, (), argv, f"list the macros of {step.title.partition(' ')[2]}")


def expansion_step(compiler: Sequence[str], work: str, macros: Step, expressions: Iterable[bytes]) -> Step:
    """Returns a step that expands conditions, after `macros` was run in the folder `work`.

    Each is expanded with the definitions that hold at the end of the unit, and with those before each `#undef` and each
    second definition of a name: a directive in between may have used these.
    """
    with open(os.path.join(work, macros.output), "rb") as file:
        directives = [BUILT_IN.sub(rb"opforge_\1", directive) for directive in DIRECTIVE.findall(file.read())]
    probe = b"".join(MARK + b" " + BUILT_IN.sub(rb"opforge_\1", text) + b"\n" for text in sorted(expressions))
    lines, defined = [], set[bytes]()
    for directive in directives:
        name = re.split(rb"[ (]", directive, maxsplit=2)[1]
        if name.startswith(b"opforge_has_"):
            continue  # older compilers, and sources for these, define the operators
        if name in defined:
            lines += [probe, b"#undef " + name + b"\n"]
        defined = defined - {name} if directive.startswith(b"#undef") else defined | {name}
        lines.append(directive + b"\n")
    source, output = f"{macros.output}.h", f"{macros.output}.i"
    with open(os.path.join(work, source), "wb") as file:
        file.write(b"".join([*lines, probe]))
    return Step(
        output, (), (*compiler, "-E", "-P", "-w", "-nostdinc", "-x", "c++", source, "-o", output), "expand macros"
    )


def expanded_names(path: str) -> set[str]:
    """Returns the headers' names in what an expansion step has written."""
    names = set[str]()
    with open(path, "rb") as file:
        for line in file:
            for literal in EXPANDED.finditer(line) if line.startswith(MARK) else ():
                name = os.fsdecode(literal[1] or literal[2])
                names |= {name, name.replace(" ", "")}  # the preprocessor may put spaces between the pieces of a name
    return names

"""The files that the assembler reads by `.incbin` and `.include`. No compiler lists them; GNU's assembler does.

clang has an assembler of its own, and a launcher such as ccache may start none. Then the unit is compiled once more, to
assembly: its directives name the files. If macros of the assembler put the names together, GNU's assembler lists them.
If neither works, every existing file counts that a source names in quotes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from opforge.builders.declaration.build_plan import Step
from opforge.foundation.files import folder_names

from .questions import content_of

ASSEMBLED = re.compile(rb"\.inc(?:bin|lude)\b", re.IGNORECASE)
"""The directives by which the assembler reads further files."""
EMBEDDING = (b".incbin", b".INCBIN")
KEYWORD = re.compile(rb"\b(?:__)?asm")
MACROS = re.compile(rb"\.(?:macro|irpc?|rept?)\b|\\\(\)", re.IGNORECASE)
"""The means by which the assembler composes a directive, whose text is then in no source."""
PLAIN = re.compile(rb'\.incbin[ \t]+"([^"\\\n]+)"', re.IGNORECASE)
"""A directive with the whole name of a file."""
QUOTED = re.compile(rb'"([^"\\\n]+)')
STRINGIZED = re.compile(rb"#define[ \t]+\w+\([^\n]*(?:\\\r?\n[^\n]*)*#[ \t]*\w")
"""A macro that puts an argument in quotes."""
BARE = re.compile(rb"[\w.+/-]*[./][\w.+/-]*\w")
"""Pattern of the name of a file without quotes."""
SOURCES = (".s", ".S", ".sx")
"""The ends of names of sources in assembly, which no compiler translates."""


def may_read(own: Iterable[str], others: Iterable[str], words: Sequence[str]) -> bool:
    """Returns whether the assembler may read a file for a unit.

    Args:
        own: The op's own files among those that the compiler listed, which are searched more closely.
        others: The rest of them.
        words: The command, whose definitions may hold a directive.
    """
    own = [*own]
    texts = [*map(content_of, own), os.fsencode("\n".join(words))]
    # Literals, the preprocessor and the assembler's macros put directives together: so any assembly counts.
    if any(path.endswith(SOURCES) for path in own):
        return True
    if any(ASSEMBLED.search(text) or KEYWORD.search(text) for text in texts):
        return True
    return any(word in text for text in map(content_of, others) for word in EMBEDDING)


def assembly_step(step: Step, is_clang: bool) -> Step:
    """Returns a step that compiles a unit to assembly, with all directives as they are written."""
    return _again(step, is_clang, f"{step.output}.s", "-S")


def listing_step(step: Step, is_clang: bool) -> Step:
    """Returns a step that compiles a unit once more, so that GNU's assembler lists what it reads."""
    output = f"{step.output}.listed.o"
    return _again(step, is_clang, output, f"-Wa,--MD,{output}.d", "-c")._replace(assembled=f"{output}.d")


def is_assembly(step: Step) -> bool:
    """Returns whether a unit's source is assembly already."""
    return step.unit is not None and step.unit.path.endswith(SOURCES)


def _again(step: Step, is_clang: bool, output: str, *options: str) -> Step:
    at = step.argv.index("-MD")
    source = step.argv[step.argv.index("-c", at) + 1]
    # With link-time optimization the compiler writes no assembly, and clang's own assembler expands the directives.
    further = ("-fno-lto", "-w", *(["-fno-integrated-as"] if is_clang else []))
    argv = (*step.argv[:at], *further, *options, source, "-o", output)
    return Step(output, (), argv, f"list the embedded files of {step.title.partition(' ')[2]}")


def names_in(path: str) -> list[str] | None:
    """Returns the names of the files that the assembly in a file embeds; None if the text alone does not say it."""
    with open(path, "rb") as file:
        text = file.read()
    if MACROS.search(text):
        return None
    names = PLAIN.findall(text)
    return [*map(os.fsdecode, names)] if len(names) == len(ASSEMBLED.findall(text)) else None


def files_named(names: Iterable[str], folders: Sequence[str]) -> set[str]:
    """Returns the files with these names in any of the folders that are searched."""
    files, inside = set[str](), [(folder, {*folder_names(folder)}) for folder in dict.fromkeys(folders)]
    for name in names:
        first = name.partition("/")[0]
        # Most are no files. The names in a folder are read once, and a file is looked for only if it may be there.
        places = [folder for folder, there in inside if first in there or first in ("", ".", "..")]
        files.update(path for place in places if os.path.isfile(path := os.path.join(place, name)))
    return files


def files_in_quotes(paths: Iterable[str], words: Iterable[str], folders: Sequence[str]) -> set[str]:
    """Returns the files that these sources, or definitions among the words of the command, name in quotes.

    Without quotes a name counts if a macro of the op's may quote it.
    """
    texts = [*map(content_of, paths)]
    quotes = any(map(STRINGIZED.search, texts))
    names = set[bytes]()
    for text in (*texts, os.fsencode("\n".join(words))):
        names.update(QUOTED.findall(text))
        if quotes:
            names.update(BARE.findall(text))
    return files_named(map(os.fsdecode, names), folders)

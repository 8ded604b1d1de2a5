"""A precompiled header for a build in which many units begin with the same header of torch's.

It is made in the build's own folder and deleted with it: gcc would not notice that a header in it has changed. Each
unit that uses it has also read what it was made from, which gcc does not list for such a unit. A unit uses it only if
the header is its first include: then the compiler sees the same text either way.

Those of the stable ABI and of the facade are kept: they take a tenth and a seventh of the room of torch's, and with one
an edited unit compiles in a fourth or a fifth of the time. It is an object of the store, with the files that it was
made from, and is compared before it is used as any object is (object_reuse.py). It is made where a unit is compiled
a second time within an hour, so not where a new version of a program is built.

The text is not all. gcc keeps no state of pragmas in such a header (pack, diagnostic), and the header is made from
another file than the unit (__BASE_FILE__). torch and the system leave nothing of that behind. So all that it was made
from must be theirs, nothing of the command may add to it, and no warning may be an error: otherwise whether there is
such a header, which the number of cores decides, would decide which program is built.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from opforge.builders.declaration.abi import FACADE, STABLE, TORCH
from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.declaration.kernel_roots import FACADE as FACADE_ROOT
from opforge.builders.declaration.kernel_roots import OPFORGE_ABI

from .reads.files_read import folders_in_flags
from .reads.provenance import Read
from .reads.questions import content_of

UNITS_A_COMPILER = {TORCH: 2, STABLE: 4, FACADE: 4}
"""The number of units, for each compiler that runs at once, from which on it saves time to make the header first.

The other compilers wait while it is made. See benchmarks/building/precompiled_header.py.
"""
IS_KEPT = {STABLE, FACADE}
"""The ABIs whose header is kept in the store: it is shared by ops, and so made without the module's own name."""
OF_THE_MODULE = "-DTORCH_EXTENSION_NAME="
"""gcc refuses the header for a unit if a macro that is new in the unit is a word of the header's text."""
ENTRY = "opforge/facade/module_entry.h"
"""The facade's header with the module's own name in it: a unit includes it after the precompiled one."""
WITHOUT_ENTRY = "#define OPFORGE_PRECOMPILED\n"
"""What has the facade's other headers leave it out."""
NAME = "first.h"
OUTPUT = NAME + ".gch"
COMMENTS = r"\A(?:\s|//[^\n]*\n|/\*.*?\*/)*"
FIRST_DIRECTIVE = re.compile(COMMENTS + r'#[ \t]*include[ \t]*(<torch/[^>"\n]+>|"torch/[^>"\n]+")', re.DOTALL)
SPLICE = re.compile(r"\\[ \t\f\v]*\r?\n")
"""Where a line goes on in the next one, also that of a comment: compilers join them before all else."""
TRIGRAPH = "??/"
"""A backslash, for some standards of C++."""
ADDING = re.compile(
    r"@|--?include(?!-dir)|--?imacros|-x|--language|-fplugin|--?specs|--config|-wrapper|-Xpreprocessor|"
    r"-Wp,.*(?:include|imacros|@)"
)
"""The flags that add a text to a unit or change how it is read, beside those that name folders and macros."""
FATAL = re.compile(r"-Werror|--warn-error|--?pedantic-errors")
"""The flags by which a warning is an error. In such a header gcc forgets which warnings it has switched off."""
FATAL_PRAGMA = re.compile(rb"\bdiagnostic[ \t]+(?:error|fatal)\b")
NAMING = re.compile(r"__(?:BASE_FILE|FILE|INCLUDE_LEVEL|COUNTER|LINE|TIMESTAMP)__")
"""Names in a definition that may mean another thing in a file of its own."""
ROOTS = ("torch", FACADE_ROOT.name, OPFORGE_ABI.name)
"""The roots of the headers that leave no state of pragmas behind, beside those of the system."""
LONGEST_PREAMBLE = 64 << 10
"""The number of characters of a source in which its first include is searched."""


def apply(
    plan: BuildPlan, steps: Sequence[Step], jobs: int, roots: Mapping[str, str], work: str, pays_for_one: bool = False
) -> list[Step]:
    """Returns the steps, changed so that the first one makes a precompiled header and others use it.

    They are not changed if that would not save time.

    Args:
        plan: The plan of the steps.
        steps: The steps that are to be run.
        jobs: The number of compilers that run at once.
        roots: The folders of roots.
        work: The build folder, in which the header's source is written.
        pays_for_one: Whether the header saves time for a single unit.
    """
    enough = UNITS_A_COMPILER.get(plan.abi, 0) * jobs
    if enough and pays_for_one:
        enough = 1
    units = [step for step in steps if step.unit]
    if not enough or len(units) < enough:
        return list(steps)
    # The header's content follows from the flags: units with other flags, of another group, do not share it.
    first = {
        unit.output: (_first_include(unit, roots, dict(plan.environment)), _flags(unit))
        for unit in units
        if not any(ADDING.match(word) or FATAL.match(word) or NAMING.search(word) for word in _flags(unit))
    }
    counts = Counter(pair for pair in first.values() if pair[0])
    (header, flags), count = counts.most_common(1)[0] if counts else (("", ()), 0)
    if count < enough:
        return list(steps)
    with open(os.path.join(work, NAME), "w", encoding="utf-8") as file:
        file.write(f"{WITHOUT_ENTRY if plan.abi == FACADE else ''}#include {header}\n")
    making, shared = _making(flags, header, plan.abi in IS_KEPT), (header, flags)
    after = ("-include", ENTRY) if plan.abi == FACADE else ()
    return [making, *(_using(step, making, after) if first.get(step.output) == shared else step for step in steps)]


def uses_header(step: Step) -> bool:
    """Returns whether a step uses the precompiled header."""
    return OUTPUT in step.inputs


def is_faithful(header: Iterable[Read], units: Iterable[Read], folders: Collection[str]) -> bool:
    """Returns whether units are the same with the header and without it, by the files that were read.

    Args:
        header: The files that the header was made from.
        units: The files that the units have read which use it.
        folders: The compiler's own folders.
    """
    own = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    if not all(read.tree or read.location.root in ROOTS or read.path.startswith(own) for read in header):
        return False
    return not any(FATAL_PRAGMA.search(content_of(read.path)) for read in units if not read.tree)


def _first_include(step: Step, roots: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Returns the header of torch's that the step's unit begins with, quoted as there; empty if there is none.

    A header of that name that is not torch's own may mean another thing from another folder, or the second time.
    """
    assert step.unit is not None
    path = step.unit.resolve(roots)
    try:
        with open(path or "", encoding="utf-8", errors="replace") as file:
            text = SPLICE.sub("", file.read(LONGEST_PREAMBLE))
    except OSError:
        return ""  # the compiler reports it
    match = FIRST_DIRECTIVE.match(text)
    if not match or TRIGRAPH in text[: match.end()]:
        return ""
    header, of_torch = match[1][1:-1], tuple(os.path.realpath(roots.get(name, os.devnull)) + os.sep for name in ROOTS)
    folders = [*folders_in_flags(step.argv), *environment.get("CPATH", "").split(os.pathsep)]
    folders += [os.path.dirname(path or "")] if match[1][0] == '"' else []
    found = (os.path.join(folder, header) for folder in folders)
    is_torchs = all(os.path.realpath(file).startswith(of_torch) for file in found if os.path.lexists(file))
    return match[1] if is_torchs else ""


def _flags(unit: Step) -> tuple[str, ...]:
    """Returns the compiler of a unit with its flags, up to those that name the unit's own files."""
    return unit.argv[: unit.argv.index("-MD")] if "-MD" in unit.argv else ()


def _making(flags: tuple[str, ...], header: str, is_shared: bool) -> Step:
    """Returns the step that makes the header with these flags. Ops share it if nothing in it is the module's own."""
    depfile = OUTPUT + ".d"
    common = (word for word in flags if not (is_shared and word.startswith(OF_THE_MODULE)))
    argv = (*common, "-MD", "-MF", depfile, "-x", "c++-header", NAME, "-o", OUTPUT)
    return Step(OUTPUT, (NAME,), argv, f"precompile {header}", depfile)


def _using(step: Step, making: Step, after: tuple[str, ...]) -> Step:
    """Returns the step, changed to use the header, and with the flags `after` it."""
    at = step.argv.index("-MD")
    argv = (*step.argv[:at], "-include", NAME, *after, *step.argv[at:])
    return step._replace(inputs=(*step.inputs, making.output), argv=argv)

"""Which files the steps of a build have read, as far as compilers, linkers, flags and sources tell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from opforge.builders.spec.build_plan import Step
from opforge.cache.records.inputs import Inputs

from .job import Job
from .provenance import Provenance, Read

ASSEMBLED = re.compile(rb"\.inc(?:bin|lude)\b")
"""By these the assembler reads further files, of which no compiler tells."""
QUOTED = re.compile(rb'"([^"\\\n]+)')
NAMED = re.compile(r"(?:^|[=,@]|^-[A-Za-z]+)/")
"""Where a path begins in a flag: -fplugin=/x, -Wl,-T,/x, -T/x, @/x, or a word of its own."""
NO_INPUT = re.compile(r"^-D|-M|-o$|-fopt-info|-fdump|-ftime-|-foptimization-record|generate")
"""What stands before a path that the compiler does not read: text, or a file that it or the op itself writes."""
FOLDER_FLAGS = ("-I", "-isystem", "-iquote", "-idirafter", "-L", "--embed-dir=", "-Wa,-I")
"""The flags that name a folder to be searched, in the same word or the next."""


def reads_of_step(
    job: Job, work: str, step: Step, provenance: Provenance, reused: Mapping[str, Inputs], written: Collection[str]
) -> list[Read]:
    """The files that a step's object was compiled from, now or when it was stored."""
    paths = set[str]()
    if step.output in reused:
        known = (one.resolve(provenance.roots) for one in reused[step.output].files)
        paths = {path for path in known if path is not None}
    elif step.depfile:
        with open(os.path.join(work, step.depfile), "rb") as file:
            named = (os.path.join(work, name) for name in parse_depfile(os.fsdecode(file.read())))
            paths = {path for path in named if not path.startswith(work + os.sep)}  # stubs and objects are its own
    elif step.unit:  # a compiler that tells of no header: its sources are all that is known
        paths = set(step.inputs)
    if step.unit and step.output not in reused:
        own = [path for path in paths if not provenance.place(path).seal]
        paths |= assembled_files(own, step.argv, search_folders(job))
    flags = {*job.plan.compile_flags, *job.plan.device_flags, *job.plan.link_flags}
    paths |= files_in_flags(step.argv, flags).difference(written)
    return [provenance.place(path) for path in paths]


def search_folders(job: Job) -> list[str]:
    """The folders in which a new header or library would be found: those of the plan, of its flags, of the compiler."""
    plan = job.plan
    named = [os.path.join(job.roots[one.root], one.path) for one in (*plan.include, *plan.system_include)]
    told = folders_in_flags((*plan.compile_flags, *plan.link_flags))
    libraries = dict(plan.environment).get("LIBRARY_PATH", "").split(os.pathsep)
    return [*named, *told, *filter(os.path.isabs, libraries), *job.toolchain.search_folders()]


def parse_depfile(text: str) -> list[str]:
    """The prerequisites of the first rule in a make-style dependency file; -MP adds an empty rule for each."""
    body = text.replace("\\\n", " ").lstrip().partition("\n")[0].partition(":")[2]
    names = re.findall(r"(?:\\[ \t#:\\]|\S)+", body)
    return [re.sub(r"\\([ \t#:\\])", r"\1", name).replace("$$", "$") for name in names]


def folders_in_flags(flags: Sequence[str]) -> list[str]:
    """The absolute folders that a compiler's flags tell it to search, for headers or for libraries."""
    found = []
    for before, flag in zip(("", *flags), flags, strict=False):
        begun = next((one for one in FOLDER_FLAGS if flag.startswith(one)), "")
        named = flag if before in FOLDER_FLAGS else flag[len(begun) :]
        if (begun or before in FOLDER_FLAGS) and os.path.isabs(named):
            found.append(named)
    return found


def files_in_flags(words: Sequence[str], flags: Collection[str]) -> set[str]:
    """The files that a command names in its flags: a plugin, specs, a profile, a linker's script, further arguments.

    They decide as sources do, and no compiler tells that it read one. A path that is a word of its own counts where it
    is one of the `flags`; otherwise it is a program, or a source, which are known.
    """
    found = set()
    for before, word in zip(("", *words), words, strict=False):
        if not word.startswith(("-", "@")) and word not in flags:
            continue
        for match in NAMED.finditer(word):
            start = match.end() - 1
            flag = word[:start] if word.startswith(("-", "@")) else before + word[:start]
            if not NO_INPUT.search(flag):
                whole = word[start:]
                # The last is what clang takes from a folder of profiles.
                meant = (whole, whole.partition(",")[0], os.path.join(whole, "default.profdata"))
                found |= {path for path in meant if os.path.isfile(path)}
        if word.startswith("@") and word[1:] in found:
            with suppress(OSError, ValueError), open(word[1:], encoding="utf-8", errors="surrogateescape") as file:
                inner = [one for one in shlex.split(file.read()) if one != word]
                found |= files_in_flags(inner, inner)
    return found


def assembled_files(paths: Iterable[str], words: Iterable[str], folders: Sequence[str]) -> set[str]:
    """The files that `.incbin` may read in these sources: every quoted name of one that is there, as its own may be
    put together by macros. None where no source has the word."""
    text = b""
    for path in paths:
        with suppress(FileNotFoundError), open(path, "rb") as file:  # one that has gone has no stamp either
            text += file.read() + b"\n"
    if not ASSEMBLED.search(text):
        return set()
    names = map(os.fsdecode, QUOTED.findall(text + os.fsencode("\n".join(words))))
    places = {os.path.join(folder, name) for name in dict.fromkeys(names) for folder in folders}
    return {path for path in places if os.path.isfile(path)}

"""Which files the steps of a build read, as far as compilers, linkers, flags and sources show it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from opforge.builders.declaration.abi import FACADE, TORCH_HEADERS
from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.declaration.flag_paths import words_in
from opforge.builders.inspection import archives
from opforge.builders.run.job import Job
from opforge.builders.toolchains.discovery.programs import is_wrapper
from opforge.cache.records.inputs import Inputs
from opforge.cache.records.validity import PRECOMPILED

from . import assembled, equal_headers, linker_scripts
from .depfile import read_depfile
from .provenance import Provenance, Read
from .questions import content_of

DEPENDENCY = re.compile(rb'\bGCC[ \t]+dependency[ \t]*(?:\\?"([^"\\\n]+)|<([^>\n]+)>)')
"""A pragma that compares the times of two files."""
PATH_IN_FLAG = re.compile(r"(?:^|[=,@]|^-[A-Za-z]+)/")
"""Where an absolute path begins in a flag: -fplugin=/x, -Wl,-T,/x, -T/x, @/x, or a word of its own."""
RESPONSE_FILE = re.compile(r"(?:^|,|=)@(/[^,]*)")
"""A file of arguments: @/x, -Wl,@/x or -Xcompiler=@/x."""
NO_INPUT = re.compile(r"^-D|-M|-o$|-fopt-info|-fdump|-ftime-|-foptimization-record|generate")
"""Options whose path is not an input: a definition, or a file that the compiler or the op itself writes."""
COMPILERS_OUTPUT = re.compile(r"(cc\w{6}|.*-[0-9a-f]{6})\.s")
"""The names of the files that gcc and clang write for the assembler."""
LIBRARY_VARIABLES = ("LIBRARY_PATH", "LPATH")
FOLDER_VARIABLES = (*LIBRARY_VARIABLES, "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")
FILE_VARIABLES = ("CXX_MODULE_MAPPER",)
"""The variables that name a file as a flag does."""
PLUGIN = re.compile(r"-fplugin=([^/]+)")
"""A plugin of gcc by its bare name: it lies in gcc's own folder of plugins, or in the one that a flag names."""
PLUGIN_FOLDER = "-iplugindir="
MODULE_MAPPER = "-fmodule-mapper="
FOLDER_FLAGS = (
    *("-I", "-isystem", "-iquote", "-L", "--embed-dir="),
    *("--include-directory=", "--include-directory", "--library-directory=", "--library-directory"),
    *("--library-path=", "--library-path"),
)
"""The flags that name a folder to be searched, in the same word or in the next one."""
LATER_FLAGS = ("-idirafter", "-isystem-after", "--include-directory-after=", "--include-directory-after")
"""Those of the folders that are searched after the compiler's own."""
RUN_PATHS = ("-rpath", "--rpath", "-R")
"""The arguments of a linker that name a folder for the dynamic linker, with = or in the next word."""
PARTS = ("-Wl,", "-Wp,", "-Wa,", "-Xcompiler=")
"""Beginnings of words that hold several arguments for another program."""
PASSED_ON = frozenset({"-Xlinker", "-Xpreprocessor", "-Xassembler", "-Xclang", "-Xcompiler"})
"""Options that pass the next argument to another program."""


def reads_of_step(
    job: Job,
    work: str,
    step: Step,
    provenance: Provenance,
    reused: Mapping[str, Inputs],
    written: Collection[str],
    embedded: set[str],
    list_assembled: Callable[[Step, Sequence[str]], Iterable[str] | None],
) -> list[Read]:
    """Returns the files that a step's object was compiled from.

    Args:
        job: The job.
        work: The build folder.
        step: The step. It has been run, or its object is one of `reused`.
        provenance: Assigns paths to roots.
        reused: The inputs of the objects that came from the store, by the name of the object.
        written: The files that flags name and that the compilers write: these are no inputs.
        embedded: Gets the files that the assembler alone has read, such as those of `.incbin`. They may be as large as
            a model's weights. The preprocessor asks nothing in them: of these a digest is taken, and no more.
        list_assembled: Compiles a unit once more, and returns such files, which are looked for in these folders; None
            if nothing shows them.
    """
    paths = _listed(job, work, step, provenance, reused)
    if step.unit and step.output not in reused:
        paths |= set(filter(os.path.isfile, job.toolchain.unlisted_files()))
        untrusted = [path for path in paths if not provenance.locate(path).tree]
        data = _data_of_unit(job, work, step, paths, untrusted, list_assembled)
        words, folders = arguments(step.argv), [*search_folders(job), *job.toolchain.search_folders()]
        paths |= equal_headers.unlisted(paths, {*untrusted}, words, folders)
        paths |= dependencies_of_pragmas(untrusted, folders)
        embedded |= data
        paths |= data
    if not step.unit:
        folders = [*search_folders(job), *job.toolchain.library_folders(), *linker_folders(job)]
        paths |= archives.files_of_link(arguments(step.argv), paths, folders, bool(step.depfile))
        paths |= {*_scripts(job)}
    return [provenance.locate(path) for path in paths | _named_by_flags(job, step, written)]


def _listed(job: Job, work: str, step: Step, provenance: Provenance, reused: Mapping[str, Inputs]) -> set[str]:
    """Returns the files that the compiler has listed; of a reused object those that were recorded with it."""
    if step.output in reused:
        resolved = (file.resolve(provenance.roots) for file in reused[step.output].files)
        return {path for path in resolved if path is not None}
    if step.depfile:
        listed = (os.path.join(work, name) for name in read_depfile(os.path.join(work, step.depfile), work))
        links = f"{work}/{TORCH_HEADERS}/"
        listed = (_behind_links(job, path, links) if path.startswith(links) else path for path in listed)
        return {path for path in listed if not path.startswith(work + os.sep)}  # not the build's stubs and objects
    return set(step.inputs) if step.unit else set()  # the compiler lists no headers: only the sources are known


def _data_of_unit(
    job: Job,
    work: str,
    step: Step,
    paths: set[str],
    untrusted: Sequence[str],
    list_assembled: Callable[[Step, Sequence[str]], Iterable[str] | None],
) -> set[str]:
    """Returns the files of a unit that are no text of C++, beside `paths`: embedded ones, precompiled headers, plugins.

    `untrusted` are those of `paths` that lie in no trusted tree; `list_assembled` is that of `reads_of_step`.
    """
    words, folders = arguments(step.argv), [*search_folders(job), *job.toolchain.search_folders()]
    found: Iterable[str] | None = ()
    is_lto = any(word.startswith("-flto") for word in words)  # the link assembles such a unit
    if os.path.isfile(list_of := os.path.join(work, step.assembled)) and not is_lto:  # not if ccache had the object
        found = [os.path.join(work, name) for name in read_depfile(list_of, work)]
    elif assembled.may_read(untrusted, paths.difference(untrusted), words):
        found = list_assembled(step, [work, *folders])
    if found is None:
        found = assembled.files_in_quotes(untrusted, words, folders)
    data = {path for path in found if not (path.startswith(work + os.sep) or _is_compilers_output(path))}
    data |= {*precompiled_headers(untrusted), *plugins(words, job.toolchain.search_folders())}
    return data - paths


def _named_by_flags(job: Job, step: Step, written: Collection[str]) -> set[str]:
    """Returns the files that flags and variables name, and the modules of C++20, without those that are written."""
    flags = {flag for plan in job.located_plan.variants() for flag in _flags(plan)}
    environment = dict(job.plan.environment)
    variables = [name for name in FILE_VARIABLES if name in environment]
    named = [f"-{name}={environment[name]}" for name in variables]
    maps = [f"{MODULE_MAPPER}{environment[name]}" for name in variables]
    paths = set(files_in_flags((*step.argv, *named), flags)).difference(written)
    return paths.union(modules([*arguments(step.argv), *maps]))


def _behind_links(job: Job, path: str, links: str) -> str:
    """Returns the header of torch's that was read through a link of a build on the facade."""
    return os.path.join(job.roots["torch"], "include", path[len(links) :])


def precompiled_headers(paths: Iterable[str]) -> Iterator[str]:
    """Yields the precompiled headers beside these files: what is in one decides whether a compiler takes it."""
    for path in (path + ending for path in paths for ending in PRECOMPILED):
        names = os.listdir(path) if os.path.isdir(path) else [""]
        yield from filter(os.path.isfile, (os.path.join(path, name) if name else path for name in names))


def plugins(words: Iterable[str], searched: Iterable[str]) -> Iterator[str]:
    """Yields gcc's plugins that flags give by their bare names."""
    names = [match[1] for word in words if (match := PLUGIN.fullmatch(word))]
    folders = [word[len(PLUGIN_FOLDER) :] for word in words if word.startswith(PLUGIN_FOLDER)]
    folders += [os.path.join(os.path.dirname(folder.rstrip("/")), "plugin") for folder in searched] if names else []
    yield from filter(os.path.isfile, (f"{folder}/{name}.so" for folder in folders for name in names))


def modules(words: Iterable[str]) -> set[str]:
    """Returns the compiled modules of C++20 that a file names by which gcc looks them up."""
    maps = [word[len(MODULE_MAPPER) :] for word in words if word.startswith(f"{MODULE_MAPPER}/")]
    lines = [line.split() for path in maps if os.path.isfile(path) for line in content_of(path).splitlines()]
    paths = [os.fsdecode(line[1]) for line in lines if len(line) > 1]
    return {path for path in paths if os.path.isabs(path) and os.path.isfile(path)}


def _is_compilers_output(path: str) -> bool:
    """Returns whether a file that an assembler read was the compiler's own, which is gone again.

    It lies outside of the build folder if the compiler does not accept that one as its folder for temporary files.
    """
    return COMPILERS_OUTPUT.fullmatch(os.path.basename(path)) is not None and not os.path.lexists(path)


def search_folders(job: Job) -> list[str]:
    """Returns the folders that are searched before the compiler's own: the plan's, those of flags and of variables."""
    plan, variants = job.located_plan, job.located_plan.variants()
    folders = [*(folder for variant in variants for folder in variant.include), *plan.system_include]
    include = [os.path.join(job.roots[folder.root], folder.path) for folder in dict.fromkeys(folders)]
    if plan.abi == FACADE:  # it is searched through the links to parts of it
        include.append(os.path.join(job.roots["torch"], "include"))
    flags = [folder for variant in variants for folder in folders_in_flags(_shared_out(_flags(variant))[0])]
    values = [dict(plan.environment).get(name, "").split(os.pathsep) for name in FOLDER_VARIABLES]
    named = [folder for value in values for folder in value if os.path.isabs(folder)]
    return [*include, *flags, *named, *map(os.path.realpath, named), *job.toolchain.first_folders()]


def linker_folders(job: Job) -> list[str]:
    """Returns the folders that flags name to the linker alone, as -Wl,-L/x does: it searches them after all others.

    gcc and clang put their own folders of libraries, and those of -L, before the words that they pass on.
    """
    words = [word for variant in job.located_plan.variants() for word in _shared_out(_flags(variant))[1]]
    return folders_in_flags(words)


def run_paths(words: Sequence[str]) -> list[str]:
    """Returns the absolute folders in which the library will look for others, by the arguments of a link."""
    folders = [
        word if before in RUN_PATHS else word.partition("=")[2]
        for before, word in pairwise(("", *words))
        if before in RUN_PATHS or word.partition("=")[0] in RUN_PATHS
    ]
    return [folder for text in folders for folder in text.split(":") if os.path.isabs(folder)]


def source_folders(job: Job) -> list[str]:
    """Returns the folders of the op's sources, in which what they include in quotes is looked for first."""
    paths = (os.path.join(job.roots[source.root], source.path) for source in job.plan.sources)
    return list(dict.fromkeys(map(os.path.dirname, paths)))


def compiler_folders(job: Job) -> list[str]:
    """Returns the folders that the compiler searches by itself, in order, and those that it searches after them."""
    plan, variants = job.located_plan, job.located_plan.variants()
    # What the compiler itself adds to every library is a part of it. A wrapper may add others, as mpicxx does.
    links = plan.libraries or any(flag.startswith(("-l", "--library")) for flag in arguments(plan.link_flags))
    scripts = _scripts(job)
    links = links or any(b"-l" in text for text in scripts.values()) or is_wrapper(job.toolchain.argv)
    own = (*job.toolchain.search_folders(), *(job.toolchain.library_folders() if links else ()))
    after = [folder for variant in variants for folder in folders_in_flags(_flags(variant), LATER_FLAGS)]
    # gcc searches most of its own folders before these two variables', and prints them all in order.
    libraries = [dict(plan.environment).get(name, "").split(os.pathsep) for name in LIBRARY_VARIABLES]
    named = {folder for value in libraries for folder in value if os.path.isabs(folder)}
    by_variable = named | {*map(os.path.realpath, named)}
    before = {*search_folders(job)} - by_variable
    last = linker_scripts.folders_in(scripts.values())
    return [folder for folder in (*own, *after, *linker_folders(job), *last) if folder not in before]


def _scripts(job: Job) -> dict[str, bytes]:
    """Returns the scripts that the op's flags give to the linker, by their paths."""
    folders = [*search_folders(job), *linker_folders(job)]
    return linker_scripts.scripts(arguments(job.located_plan.link_flags), folders)


def _flags(plan: BuildPlan) -> tuple[str, ...]:
    return (*plan.compile_flags, *plan.device_flags, *plan.link_flags)


def _shared_out(flags: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the words that the compiler itself obeys, and those that it passes on to the linker."""
    own, linkers = list[str](), list[str]()
    for before, word in pairwise(("", *_unfolded(flags))):
        is_linkers = before == "-Xlinker" or word.startswith("-Wl,")
        (linkers if is_linkers else own).append(word)
    return own, linkers


def _unfolded(flags: Iterable[str], within: tuple[str, ...] = ()) -> list[str]:
    """Returns the words of flags, with those in files (@FILE) in their places."""
    words = list[str]()
    for flag in flags:
        is_file = flag.startswith("@/") and os.path.isfile(flag[1:]) and flag not in within
        words += _unfolded(words_in(flag[1:]), (*within, flag)) if is_file else [flag]
    return words


def folders_in_flags(flags: Sequence[str], names: Sequence[str] = FOLDER_FLAGS) -> list[str]:
    """Returns the absolute folders that flags make a compiler search: those that the flags `names` name, in order."""
    folders, flags = list[str](), arguments(flags)
    for before, flag in pairwise(("", *flags)):
        prefix = next((prefix for prefix in names if flag.startswith(prefix)), "")
        folder = flag if before in names else flag[len(prefix) :]
        if (prefix or before in names) and os.path.isabs(folder):
            folders.append(folder)
    return folders


def arguments(flags: Iterable[str], within: tuple[str, ...] = ()) -> list[str]:
    """Returns every argument in flags: also those in files (@FILE), and those that are passed on to another program.

    `within` are the files that are being read.
    """
    words: list[str] = []
    for flag in flags:
        if flag.startswith(PARTS):
            words += arguments(flag[flag.index("=" if flag[1] == "X" else ",") + 1 :].split(","), within)
        elif flag.startswith("@/") and os.path.isfile(flag[1:]) and flag not in within:
            words += arguments(words_in(flag[1:]), (*within, flag))
        elif flag not in PASSED_ON:
            words.append(flag)
    return words


def files_in_flags(words: Sequence[str], flags: Collection[str], within: tuple[str, ...] = ()) -> set[str]:
    """Returns the files that flags of a command name: a plugin, specs, a profile, a linker's script, more arguments.

    The outcome depends on them as it does on sources, and no compiler lists them. A path that is a word of its own is
    one of them only if it is among `flags`: otherwise it is a program or a source, which are known already.

    `within` are the files of arguments that are being read.
    """
    files = set()
    for before, word in pairwise(("", *words)):
        if not word.startswith(("-", "@")) and word not in flags:
            continue
        for match in PATH_IN_FLAG.finditer(word):
            start = match.end() - 1
            flag = word[:start] if word.startswith(("-", "@")) else before + word[:start]
            if not NO_INPUT.search(flag):
                path = word[start:]
                # clang reads default.profdata if a flag names a folder of profiles.
                candidates = (path, path.partition(",")[0], os.path.join(path, "default.profdata"))
                files |= {path for path in candidates if os.path.isfile(path)}
        for name in {match[1] for match in RESPONSE_FILE.finditer(word)} & files - {*within}:
            inner = words_in(name)
            files |= files_in_flags(inner, inner, (*within, name))
    return files


def dependencies_of_pragmas(paths: Iterable[str], folders: Sequence[str]) -> set[str]:
    """Returns the files that `#pragma GCC dependency` names in these sources: if one is newer, the compiler warns.

    `folders` are those that are searched, after the source's own.
    """
    files = set[str]()
    for path in paths:
        for quoted, bracketed in DEPENDENCY.findall(content_of(path)):
            name = os.fsdecode(quoted or bracketed)
            candidates = (os.path.join(folder, name) for folder in (os.path.dirname(path), *folders))
            files |= {candidate for candidate in candidates if os.path.isfile(candidate)}
    return files

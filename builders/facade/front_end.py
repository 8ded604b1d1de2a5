"""The lines of a source on the facade that a compiler's front end rejects: all of them, not only the first.

The scan of `obstacles.py` knows constructs by their text. The compiler finds the rest: a name or an
overload that the facade lacks. Headers of torch that are not covered are empty here, so that the compiler goes on.
"""

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from opforge.foundation import exit_status

from .flags import STANDARD, compile_flags, link_torch_headers, nvcc_flags
from .obstacles import NO_SCALAR, PYTHON_TYPES, Kind, Obstacle, Sources, covered, torch_includes

MESSAGE = re.compile(
    r"^(?P<path>[^\s:][^:\n]*):(?P<line>\d+)(?::\d+)?:\s+(?P<kind>fatal error|error|required from)(?P<text>.*)$"
)
OF_TORCH = re.compile(
    r"\b(?:at|torch|c10|py|pybind11|opforge_facade|caffe2)::"
    r"|['\u2018](?:at|torch|c10|py|pybind11)['\u2019]"
    r"|['\u2018](?:AT|TORCH|C10|CAFFE2|PYBIND11|THC?)_\w+['\u2019]"
    r"|stable ABI|poisoned|has no conversion"
)
OF_NVCC = re.compile(r"^(?P<path>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$")
"""An error of nvcc's front end. What needed the line follows, each with its place, and then an empty line."""
NEEDED = re.compile(r"\bat line (?P<line>\d+)(?: of (?P<path>.+))?$")
ASSERTED = re.compile(r'static assertion failed with "(.*)"$')
DEVICE = ("-gencode", "arch=compute_80,code=sm_80", "-fdevice-syntax-only", "-cuda")
"""nvcc's options for its front ends alone: the host's half is not compiled, and no code is made for a device."""
MISSING = re.compile(r"(?P<name>[^\s:'\u2019]+): No such file or directory|'(?P<other>[^']+)' file not found")
NAMED = re.compile(
    r"no member (?:named )?['\u2018](\w+)['\u2019]"
    r"|^['\u2018](\w+)['\u2019] (?:is not a member|was not declared|does not name)"
    r"|^use of undeclared \w+ '(\w+)'"
    r"|^identifier '(\w+)' is undefined"
)
QUOTED = re.compile(r"['\u2018]((?:'(?:\\.|[^'\\\s])'|(?<=\w)'(?=\w)|[^'\u2019])+)['\u2019]")
"""What a compiler quotes first. A character in it, as in `T<'a'>`, does not end it."""
REFUSED = re.compile(r"(\w+) is not on torch's stable ABI")
OPENED = re.compile(r"\.+ (.+)$")
"""A line of -H."""
OF_COMPILER = re.compile(r"[a-z_]+")
"""A header of the standard library."""
STANDARDS = re.compile(
    r"-std=((?:c|gnu)\+\+(\d\w))\b|CMAKE_CXX_STANDARD\s+(\d\d)|\bstandard\s*=\s*[\"'](c\+\+(\d\w))[\"']"
)
"""The standard of C++ that a project's files ask for, as a flag, for CMake, or in a kernel.toml."""
MACROS = re.compile(r"""["'(\s]-D\s*(\w+)|\(\s*["'](\w+)["']\s*,\s*(?:None\s*\)|f?["'])""")
"""A flag that defines a macro, or a pair of setuptools' `define_macros`."""
CONDITIONS = re.compile(r"^\s*#\s*(?:el)?if(.*)", re.MULTILINE)
CAPITALS = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
BUILD_FILES = ("setup.py", "CMakeLists.txt", "kernel.toml", "pyproject.toml")
DRAFTS = {"1z": "17", "2a": "20", "2b": "23", "2c": "26"}
TIMEOUT = 600
"""Seconds for one source. A facade source takes one to ten."""


class Refusals(NamedTuple):
    """The report of a compiler's front end on sources."""

    obstacles: list[Obstacle]
    """An obstacle for each name of torch's that the facade lacks."""
    not_judged: list[str]
    """A text for each source that could not be judged, because a header of another project was not found."""
    included: frozenset[str]
    """The headers that are not covered and are opened. Other includes are in parts that are not compiled."""


def refusals(
    compiler: Sequence[str],
    sources: Sources,
    torch_include: Path,
    work: Path,
    standard: str = STANDARD,
    nvcc: str = "",
    toolkit: Sequence[str] = (),
    macros: Sequence[str] = (),
) -> Refusals:
    """Compiles the sources without making code, and returns the lines that the compiler refuses.

    Args:
        compiler: The C++ compiler's program and flags.
        sources: The sources.
        torch_include: torch's include folder.
        work: An empty folder for what the compiler needs.
        standard: The standard of C++.
        nvcc: The compiler of sources in CUDA; empty to leave them out.
        toolkit: The folders of CUDA's headers, which C++ sources may include too.
        macros: What is defined besides, as NAME or NAME=VALUE, or taken away, as -UNAME.

    Raises:
        FileNotFoundError: torch's headers are not there.
    """
    headers, empty = work / "torch", work / "empty"
    link_torch_headers(headers, torch_include)
    _put_empty_headers(sources, empty)
    of_cuda = [part for folder in toolkit for part in ("-isystem", folder)]
    given = ("extension", headers, Path(sysconfig.get_path("include")), standard)
    found, not_judged, included = dict[Obstacle, None](), list[str](), set[str]()
    for unit in sources.units:
        # A source in C that includes torch is C++ for g++, as torch's builder calls it.
        is_c = unit.suffix == ".c" and not any(torch_includes(unit, sources.files[unit]))
        if is_c or (unit.suffix == ".cu" and not nvcc):
            continue
        flags = [
            *_folder_flags(sources, unit, empty),
            *(macro if macro[0] == "-" else f"-D{macro}" for macro in macros),
        ]
        if unit.suffix == ".cu":
            output = _output_of_nvcc(nvcc, compiler, [*nvcc_flags(*given), *flags, str(unit)], work)
        else:
            flags = [*compile_flags(*given), *flags, *of_cuda]
            output = _output([*compiler, "-w", "-H", "-fsyntax-only", *flags, str(unit)])
        if output is None:
            not_judged.append(f"{unit}: the compiler did not end in {TIMEOUT} s")
            continue
        text, opened = output
        included.update(os.path.relpath(name, empty) for name in opened if Path(name).is_relative_to(empty))
        missing = [match for match in map(MISSING.search, text.splitlines()) if match]
        for match in missing:
            not_judged.append(f"{unit}: {_missing(match['name'] or match['other'])}")
        if missing:
            continue
        refused = dict.fromkeys(_in_output(text, sources.files))
        if text and not refused:  # it was killed, or fails in a way of its own
            lines = text.splitlines()
            not_judged.append(
                f"{unit}: the compiler fails: {next((line for line in lines if 'error' in line), lines[0])}"
            )
        found.update(refused)
    return Refusals(sorted(found), list(dict.fromkeys(not_judged)), frozenset(included))


def _missing(header: str) -> str:
    if OF_COMPILER.fullmatch(header):
        return f"the compiler does not have the header <{header}>"
    return f"{header} is not found: its folder is named by -I FOLDER"


def standard_of(root: Path) -> str:
    """Returns the newest standard of C++ that the text of a project's own build files asks for, or the facade's.

    The files are read and not run: a flag that is put together is not found.
    """
    asked = {STANDARD.removeprefix("c++"): STANDARD}
    for flag, of_flag, of_cmake, in_toml, of_toml in STANDARDS.findall(_build_files(root)):
        number = of_flag or of_cmake or of_toml
        asked[DRAFTS.get(number, number)] = flag or in_toml or f"c++{of_cmake}"
    newest = max((number for number in asked if number.isdecimal() and number < "90"), default="17")
    return asked[newest]


def macros_of(root: Path, sources: Iterable[str]) -> list[str]:
    """Returns the macros that the text of a project's own build files defines, and that its sources use.

    In a condition any name counts; elsewhere only one in capitals, which is hardly the name of something else.
    """
    defined = {flag or pair for flag, pair in MACROS.findall(_build_files(root))}
    used = " ".join(part for text in sources for part in (*CONDITIONS.findall(text), *CAPITALS.findall(text)))
    return sorted(defined.intersection(re.findall(r"\w+", used)))


def undefined_of(root: Path) -> list[str]:
    """Returns the flags in the text of a project's own build files that take a macro away, as CUDA's of half have."""
    return sorted(set(re.findall(r"-U\w+", _build_files(root))))


def _build_files(root: Path) -> str:
    """Returns the text of a project's build files."""
    text = ""
    for name in BUILD_FILES:
        with suppress(OSError):
            text += (root / name).read_text(encoding="utf-8", errors="replace") + "\n"
    return text


def _output(command: Sequence[str]) -> tuple[str, set[str]] | None:
    """Returns what a compiler says, empty if it does not fail, and the headers it opens; None if it does not end."""
    try:
        ended = exit_status.run(
            command,
            TIMEOUT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return None
    lines = ended.stderr.splitlines()
    opened = {match[1] for match in map(OPENED.match, lines) if match}
    said = "\n".join(line for line in lines if not OPENED.match(line)).strip()
    return (said or f"error: it ended with {ended.returncode}") if ended.returncode else "", opened


def _output_of_nvcc(
    nvcc: str, host: Sequence[str], arguments: Sequence[str], work: Path
) -> tuple[str, set[str]] | None:
    """Returns what `_output` returns, of nvcc's front ends; `host` is the C++ compiler and its flags."""
    listed, of_host = work / "listed.d", [f"-Xcompiler={word}" for word in host[1:]]
    to = ("-MD", "-MF", str(listed), "-o", str(work / "half.ii"))
    output = _output([nvcc, "-ccbin", host[0], *of_host, "-w", *DEVICE, *to, *arguments])
    return output and (_as_others_say(output[0]), _listed(listed))


def _listed(path: Path) -> set[str]:
    """Returns the files in a compiler's list of the files that it read; none if it wrote no list."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return set()
    path.unlink()
    return set(re.findall(r"(?:\\.|[^\s\\])+", text))


def _as_others_say(output: str) -> str:
    """Returns the output of nvcc's front end with its errors in the form of other compilers.

    Each is preceded by a line for each place that needed it.
    """
    lines = list[str]()
    said = iter(output.splitlines())
    for line in said:
        match = OF_NVCC.match(line)
        if not match:
            lines.append(line)
            continue
        path = match["path"]
        text = ASSERTED.sub(r"static assertion failed: \1", match["text"])
        for context in said:
            if not context.strip():
                break
            if needed := NEEDED.search(context):
                path = needed["path"] or path
                lines.append(f"{path}:{needed['line']}: required from here")
        lines.append(f"{match['path']}:{match['line']}: error: {text.replace(chr(34), chr(39))}")
    return "\n".join(lines)


def _in_output(output: str, files: Iterable[Path]) -> Iterator[Obstacle]:
    """Yields what a compiler's output says of the project's own lines.

    An error in the facade is that of the last line which needed it. Errors of the project's own names follow from
    those of torch's names, and count only if there is none of these.
    """
    own = {os.path.normpath(path): path for path in files}
    errors = list[tuple[Path, int, str]]()
    needed_by: tuple[Path, int] | None = None
    for line in output.splitlines():
        match = MESSAGE.match(line)
        if not match:
            continue
        path, number = own.get(os.path.normpath(match["path"])), int(match["line"])
        if match["kind"] == "required from":
            needed_by = (path, number) if path else needed_by
            continue
        text = match["text"].lstrip(": ")
        if path:
            errors.append((path, number, text))
        elif needed_by:
            errors.append((*needed_by, text.removeprefix("static assertion failed: ")))
        needed_by = None
    of_torch = [error for error in errors if OF_TORCH.search(error[2])]
    for path, number, text in of_torch or errors[:1]:
        yield _obstacle(path, number, text.replace("opforge_facade::", ""))


def _put_empty_headers(sources: Sources, folder: Path) -> None:
    """Makes an empty header in the place of each of torch's that the facade does not have."""
    for path, plain in sources.files.items():
        for name in (match[2] for match in torch_includes(path, plain)):
            if not covered(name) and ".." not in name:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).touch()


def _folder_flags(sources: Sources, unit: Path, empty: Path) -> list[str]:
    """Returns the flags by which a source's headers are found: those of the project's that were found come last.

    Args:
        sources: What the source belongs to.
        unit: The source.
        empty: The folder with empty headers in the place of those that the facade does not have.
    """
    named = [part for folder in sources.named_folders for part in ("-I", str(folder))]
    found = sources.found_folders(unit)
    later = [part for folder in found for part in ("-iquote", str(folder), "-idirafter", str(folder))]
    later += ["-idirafter", str(empty)]
    return [*named, *([f"-Xcompiler={part}" for part in later] if unit.suffix == ".cu" else later)]


def _obstacle(path: Path, line: int, text: str) -> Obstacle:
    if refused := REFUSED.match(text):
        return Obstacle(path, line, refused[1], Kind.LATER, NO_SCALAR if "Scalar" in text else text)
    if "has no conversion" in text:
        return Obstacle(path, line, "a parameter or a result", Kind.LATER, PYTHON_TYPES)
    if "of this type cannot be" in text:
        return Obstacle(path, line, "a parameter or a result", Kind.LATER, text)
    name = NAMED.search(text) or QUOTED.search(text)
    construct = next((group for group in name.groups() if group), "") if name else text.split(" ", 1)[0]
    says = "the facade does not have this" if OF_TORCH.search(text) else "the compiler rejects this"
    return Obstacle(path, line, construct, Kind.LATER, f"{says}: {text}")

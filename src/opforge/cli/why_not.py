"""`opforge why-not`: the lines that keep sources with torch's C++ API from one binary for every torch and Python."""

from __future__ import annotations

import lzma
import os
import shlex
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from opforge.errors import InspectionError, ToolchainNotFoundError
from opforge.fast_path.library import FACADE, STABLE

from . import messages
from .guard import FAILED, OK, Guarded, json_option
from .output import counted, emit_json

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from opforge.builders.facade.obstacles import Obstacle, Sources

ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
MOST_BYTES = 2 << 30
"""Limit of what is unpacked from an archive."""
EXIT_CODES = (
    "Exit codes: 0 success, nothing keeps the sources from one binary; 1 something does, or a source could not be"
    " judged; 2 wrong usage; 130 interrupted."
)


class Report(NamedTuple):
    """The findings in the sources of one argument."""

    sources: Sources
    obstacles: list[Obstacle]
    not_judged: list[str]
    """Why a source could not be judged, one text each."""
    of_cuda: int
    """How many of the obstacles are CUDA's: --cpu leaves them out."""
    to_write: str
    """The line to write if nothing keeps the sources."""
    is_stable: bool
    """Whether the sources use torch's stable ABI alone."""
    read_only: tuple[Path, ...] = ()
    """Sources in CUDA that were not compiled, as there is no nvcc."""
    macros: Sequence[str] = ()
    """What the project's build may define and no -D names."""


class Asked(NamedTuple):
    """What the options ask for."""

    cpu: bool
    folders: tuple[Path, ...]
    """Folders of further headers."""
    macros: tuple[str, ...]
    """Macros that are defined, as NAME or NAME=VALUE."""


class Compilers(NamedTuple):
    """What sources are compiled by."""

    host: tuple[str, ...] = ()
    """The C++ compiler's program and flags; empty if sources are only read."""
    nvcc: str = ""
    toolkit: tuple[str, ...] = ()
    """The folders of CUDA's headers."""


@click.command("why-not", cls=Guarded, epilog=EXIT_CODES)
@click.argument("what", nargs=-1, required=True, metavar="PATH|PACKAGE...")
@click.option(
    "--cpu", is_flag=True,
    help="Leave out sources in CUDA or with its headers, and code that is compiled only with CUDA.",
)  # fmt: skip
@click.option(
    "-I", "--include", "folders", multiple=True, type=click.Path(exists=True, file_okay=False), metavar="FOLDER",
    help="A folder of further headers, such as another project's. Repeatable.",
)  # fmt: skip
@click.option(
    "-D", "--define", "macros", multiple=True, metavar="NAME[=VALUE]",
    help="A macro that the project's build defines, such as CPU_ONLY. Repeatable.",
)  # fmt: skip
@click.option("--no-compile", is_flag=True, help="Only read the sources: known constructs alone are found.")
@json_option
def command(
    what: Sequence[str], cpu: bool, folders: Sequence[str], macros: Sequence[str], no_compile: bool, as_json: bool
) -> None:
    """Show which lines keep C++ that includes torch/extension.h from one binary for every torch and Python.

    Every line is listed, with its construct and whether it can never work, needs a newer torch, or does not work yet.
    If there is none, the line to write is printed. Sources are read, then their C++ is compiled without making code.
    Nothing of a project is executed.

    PATH is a C++ or CUDA file, a folder with a project, its setup.py, or the archive of a source distribution. PACKAGE
    is an installed one that has its sources.

    \b
    Examples:
      opforge why-not csrc/op.cpp
      opforge why-not --cpu torch_scatter-2.1.2.tar.gz
    """
    with tempfile.TemporaryDirectory(prefix="opforge-why-not-") as work:
        compilers = Compilers() if no_compile else _compilers(cpu)
        asked = Asked(cpu, tuple(Path(folder) for folder in folders), tuple(macros))
        reports = _reports(what, asked, compilers, Path(work))
    if as_json:
        emit_json(_document(reports))
    else:
        _print(reports, cpu)
    click.get_current_context().exit(FAILED if any(found.obstacles or found.not_judged for found in reports) else OK)


def _compilers(cpu: bool) -> Compilers:
    """Returns the compilers, or none, with a note, where sources can only be read."""
    from opforge.builders.declaration.machine import torch_folder
    from opforge.builders.toolchains import nvcc
    from opforge.builders.toolchains.host import find_compiler

    problem = "torch is not installed" if torch_folder() is None else ""
    try:
        compiler = find_compiler()
    except ToolchainNotFoundError as error:
        compiler, problem = (), str(error).partition("\n")[0]
    if problem:
        messages.show("note", f"the sources are only read, and not compiled: {problem}")
        return Compilers()
    try:
        if cpu:
            return Compilers(tuple(compiler))
        of_cuda = nvcc.find()
        return Compilers(tuple(compiler), of_cuda, tuple(nvcc.header_folders(of_cuda)))
    except ToolchainNotFoundError:
        return Compilers(tuple(compiler))


def _reports(what: Iterable[str], asked: Asked, compilers: Compilers, work: Path) -> list[Report]:
    """Returns the reports: one for all files that are named, and one for each project."""
    from opforge.builders.facade.obstacles import HEADER_ENDINGS, UNIT_ENDINGS

    files = [Path(name) for name in what if os.path.isfile(name) and not _is_project_file(name)]
    for file in files:
        if file.suffix not in (*UNIT_ENDINGS, *HEADER_ENDINGS):
            problem = "it is neither a C++ or CUDA source nor a header"
            raise InspectionError(
                str(file), problem, f"Name such files ({', '.join(UNIT_ENDINGS)}), a folder or an sdist"
            )
    reports = [_report(files, None, asked, compilers, work, partial(_of_load, files))] if files else []
    for name in what:
        if Path(name) not in files:
            root, shown = _project(name, work)
            found = _report([], root, asked, compilers, work, partial(_of_project, root, shown), shown)
            reports.append(_shown(found, root, shown))
    return reports


def _report(
    units: Sequence[Path],
    root: Path | None,
    asked: Asked,
    compilers: Compilers,
    work: Path,
    to_write: Callable[[str], str],
    shown: str = "",
) -> Report:
    """Returns the report of these files, or of the project in the folder `root`, which errors show as `shown`.

    `to_write` returns the line to write for an ABI.
    """
    from opforge.builders.declaration.machine import torch_folder
    from opforge.builders.facade.flags import STANDARD
    from opforge.builders.facade.front_end import macros_of, refusals, standard_of, undefined_of
    from opforge.builders.facade.obstacles import find_sources, obstacles_of, project_units
    from opforge.builders.jit_builders import detect_abi

    every = units or project_units(root or Path())
    sources = find_sources(every, asked.folders, root, asked.cpu, asked.macros)
    if root and not sources.files:
        kinds = "C++ source for the CPU" if asked.cpu else "C++ or CUDA source"
        raise InspectionError(shown, f"it has no {kinds} that includes torch", "Name its source folder")
    obstacles, not_judged = obstacles_of(sources), list[str]()
    read_only: tuple[Path, ...] = ()
    if compilers.host:
        known = {(found.path, found.line) for found in obstacles}
        scratch = Path(tempfile.mkdtemp(dir=work))
        standard = standard_of(root) if root else STANDARD
        include = Path(torch_folder() or "") / "include"
        macros = [*asked.macros, *(undefined_of(root) if root else ())]
        said = refusals(compilers.host, sources, include, scratch, standard, compilers.nvcc, compilers.toolkit, macros)
        not_judged = said.not_judged
        read_only = tuple(unit for unit in sources.units if unit.suffix == ".cu" and not compilers.nvcc)
        if not not_judged and not read_only:
            obstacles = [found for found in obstacles if found.header is None or found.header in said.included]
            refused = {found.path for found in said.obstacles}
            obstacles = [found for found in obstacles if not found.is_method or found.path in refused]
        further = (found for found in said.obstacles if (found.path, found.line) not in known)
        obstacles = sorted([*obstacles, *further])
    of_cuda = 0
    if not asked.cpu and obstacles:
        without = obstacles_of(find_sources(every, asked.folders, root, without_cuda=True, macros=asked.macros))
        scanned = len(obstacles_of(sources))
        of_cuda = scanned - len(without)
    is_stable = detect_abi("\n".join(sources.files.values())) == STABLE
    line = to_write(STABLE if is_stable else FACADE)
    named = {macro.partition("=")[0] for macro in asked.macros}
    unnamed = [name for name in macros_of(root, sources.files.values()) if name not in named] if root else []
    return Report(sources, obstacles, not_judged, of_cuda, line, is_stable, read_only, unnamed)


def _is_project_file(name: str) -> bool:
    return os.path.basename(name) in ("setup.py", "pyproject.toml", "kernel.toml") or name.endswith(ARCHIVES)


def _project(name: str, work: Path) -> tuple[Path, str]:
    """Returns the folder of a project's sources, and how its name is shown. Raises InspectionError."""
    if os.path.isdir(name):
        return Path(name), name
    if os.path.isfile(name):
        return (_unpacked(name, work), name) if name.endswith(ARCHIVES) else (Path(name).parent, os.path.dirname(name))
    if os.sep in name or name.endswith(ARCHIVES):
        raise InspectionError(name, "there is no such file or folder", "Correct the path")
    return _of_distribution(name), name


def _unpacked(name: str, work: Path) -> Path:
    """Unpacks an archive, and returns the folder with its content. Raises InspectionError."""
    folder = Path(tempfile.mkdtemp(dir=work))
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(name) as archive:
                _check_size(name, sum(member.file_size for member in archive.infolist()))
                archive.extractall(folder)  # noqa: S202 - zipfile drops '..', and makes no links
        else:
            with tarfile.open(name) as packed:
                _check_size(name, sum(member.size for member in packed.getmembers()))
                packed.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError) as error:
        raise InspectionError(name, f"it cannot be unpacked: {error}", "Get the archive again") from error
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _check_size(name: str, size: int) -> None:
    if size > MOST_BYTES:
        problem = f"it would be {size} bytes when it is unpacked, more than {MOST_BYTES}"
        raise InspectionError(name, problem, "Unpack it, and name the folder")


def _of_distribution(name: str) -> Path:
    """Returns the folder of an installed distribution's sources. Raises InspectionError."""
    from importlib import metadata
    from urllib.parse import unquote, urlparse

    from opforge.builders.facade.obstacles import UNIT_ENDINGS

    try:
        found = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        advice = "Name a file, a folder, an archive, or an installed package"
        raise InspectionError(name, "there is no such file, folder or installed package", advice) from None
    where = urlparse(_url_of(found))
    if where.scheme == "file" and os.path.isdir(unquote(where.path)):
        return Path(unquote(where.path))
    sources = [path for path in found.files or () if path.suffix in UNIT_ENDINGS]
    if not sources:
        advice = f"Name its source distribution: pip download --no-deps --no-binary :all: {name}"
        raise InspectionError(name, f"{name} {found.version} was installed without its C++ sources", advice)
    return Path(os.path.commonpath([os.path.dirname(str(path.locate())) for path in sources]))


def _url_of(found: Distribution) -> str:
    """Returns the URL that a distribution was installed from; empty if its installer has not noted one."""
    from opforge.cache.schema import TEXT, FormatError, parse, record

    try:
        value = parse((found.read_text("direct_url.json") or "{}").encode(), record({}, {"url": TEXT}, is_open=True))
    except FormatError:
        return ""
    return str(value.get("url", ""))


def _shown(found: Report, root: Path, shown: str) -> Report:
    """Returns the report with the paths of an unpacked archive or a package as its own ones."""
    if os.path.isdir(shown):
        return found

    def path(own: Path) -> Path:
        return Path(root.name, os.path.relpath(own, root))

    import dataclasses

    obstacles = [dataclasses.replace(entry, path=path(entry.path)) for entry in found.obstacles]
    units = tuple(path(unit) for unit in found.sources.units)
    not_judged = [text.replace(f"{root}{os.sep}", f"{root.name}{os.sep}") for text in found.not_judged]
    left_out = tuple((path(unit), header) for unit, header in found.sources.left_out)
    sources = dataclasses.replace(found.sources, units=units, left_out=left_out)
    read_only = tuple(map(path, found.read_only))
    return found._replace(sources=sources, obstacles=obstacles, not_judged=not_judged, read_only=read_only)


def _of_load(files: Sequence[Path], abi: str) -> str:
    from opforge.builders.facade.obstacles import UNIT_ENDINGS

    units = [file for file in files if file.suffix in UNIT_ENDINGS]
    names = ", ".join(f'"{file}"' for file in units)
    return f'opforge.load("{units[0].stem}", [{names}], abi="{abi}")' if units else ""


def _of_project(root: Path, shown: str, abi: str) -> str:
    if (root / "kernel.toml").is_file():
        return f'abi = "{abi}"  # in {os.path.join(shown, "kernel.toml")}'
    if _say(root.glob("*.py"), ("BuildExtension", "CppExtension", "CUDAExtension")):
        return (
            f"OPFORGE_CPP_EXTENSION=torch-facade pip wheel --no-build-isolation --no-deps {shlex.quote(shown or '.')}"
        )
    if _say(root.rglob("*.py"), ("cpp_extension import load", "cpp_extension.load", "cpp_extension._jit_compile")):
        return 'opforge.compat.cpp_extension.install(abi="torch-facade")  # before it compiles, at or after its import'
    return f'opforge.load("NAME", [SOURCES], abi="{abi}")  # its build does not use torch\'s BuildExtension'


def _say(files: Iterable[Path], names: Sequence[str]) -> bool:
    """Returns whether a file says one of some names. No code of a project is executed."""
    return any(name in file.read_text(errors="replace") for file in files if file.is_file() for name in names)


def _document(reports: Sequence[Report]) -> dict[str, object]:
    return {
        "sources": [str(unit) for found in reports for unit in found.sources.units],
        "obstacles": [
            {
                "path": str(entry.path),
                "line": entry.line,
                "construct": entry.construct,
                "kind": entry.kind.value,
                "reason": entry.reason,
            }
            for found in reports
            for entry in found.obstacles
        ],
        "not_judged": [text for found in reports for text in found.not_judged],
        "left_out": [
            {"path": str(unit), "header": header} for found in reports for unit, header in found.sources.left_out
        ],
        "write": [
            found.to_write for found in reports if found.to_write and not found.obstacles and not found.not_judged
        ],
    }


def _print(reports: Sequence[Report], cpu: bool) -> None:
    from opforge.builders.facade.obstacles import report

    for number, found in enumerate(reports):
        if number:
            click.echo()
        for text in found.not_judged:
            messages.show("warning", text)
        if found.read_only:
            sources = counted(len(found.read_only), "source in CUDA was", "sources in CUDA were")
            messages.show("note", f"{sources} only read, and not compiled: there is no nvcc")
        if found.macros:
            options = " ".join(f"-D {name}" for name in found.macros)
            text = "the project's build may define macros that its sources use"
            messages.show("note", f"{text}: name those that it does, with their values: {options}")
        for unit, header in found.sources.left_out:
            messages.show("note", f"{unit} is left out: it includes {header}, which a build without CUDA does not have")
        if found.obstacles or not found.not_judged:
            click.echo(report(found.obstacles))
        if found.of_cuda and not cpu:
            click.echo(f"{counted(found.of_cuda, 'line is', 'lines are')} for CUDA: --cpu leaves out such lines")
        if found.to_write and not found.obstacles and not found.not_judged:
            already = ", on torch's stable ABI already" if found.is_stable else ""
            sources = counted(len(found.sources.units), "source", "sources")
            click.echo(f"{sources}{already}. To build them so:\n  {found.to_write}")

"""Reads which torch, Python, glibc and devices each extension of torch in an installed environment loads under."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from mmap import ACCESS_READ, mmap
from typing import NamedTuple

from opforge.builders.inspection import elf, shims, symbol_scope
from opforge.builders.inspection.elf_file import ElfFile
from opforge.builders.inspection.reader import FileFormatError, Reader
from opforge.errors import InspectionError

from . import measure, python_abi
from .library import TORCH_CXX

LIBRARY = re.compile(r".+\.so(?:\.\d+)*")
"""The names of shared libraries."""
TORCH = "libtorch.so"
"""Torch's library that needs all others of it."""
OF_TORCH = ("libtorch", "libc10")
"""How the names of torch's own libraries begin."""
TAG = re.compile(r"\.(?:cpython-|pypy)(\d)(\d+)(t?)[.-]|\.pypy(\d)(\d+)-")
"""The Python that the name of an extension module is for."""
FIRST_STABLE = "2.9"
"""The first torch with the stable ABI: its header gives a version to each function that came later."""
OLDEST_LIMITED = 2
"""The minor version of the first Python 3 with a limited API."""
LEFT_BY_PIP = "~"
"""How the names of folders begin that an interrupted pip has left: they are not installed."""
NO_EXTENSIONS = ("torch",)
"""Distributions that are torch itself."""
SITES = re.compile(r"(?:lib|lib64)/python3(?:\.\d+t?)?/(?:site|dist)-packages")
"""Debian has its packages for every Python 3 in lib/python3/dist-packages."""
UNKNOWN = "?"
UNKNOWN_TEXT = (
    "may be bound to one Python: comparing its functions needs the headers of this Python (python3-dev) and a C "
    "compiler"
)
ADVICE = "Name an environment's folder, or its site-packages"


class Extension(NamedTuple):
    """One library of an installed distribution that uses torch."""

    distribution: str
    version: str
    path: str
    """Below the folder that the distribution is installed in; of an editable installation the whole path."""
    torch: str
    """The oldest torch that it loads under; "any" if it is linked with torch and calls none of its functions; empty if
    it is bound to the release that it was built for."""
    unstable: tuple[str, ...]
    """The functions of torch outside of the stable ABI that bind it, readable names."""
    python: str
    """The oldest Python that it loads under; "any" if it uses none of its functions; empty if it is bound to one."""
    bound_to_python: str
    """The Python that it is bound to, as 3.11; "one" if its name does not say which; empty if there is none; "?" if it
    cannot be known, without headers of Python or a C compiler."""
    glibc: str
    """The oldest glibc that it loads under; empty if it needs none."""
    archs: tuple[str, ...]
    """The architectures of the device code in it."""
    missing: tuple[str, ...]
    """The symbols that neither torch nor another library of this environment has: it does not load here."""
    unreadable: str
    """Why the library, or the distribution's list of files, cannot be read; empty if it can."""

    @property
    def problems(self) -> list[str]:
        """Why it is not one binary for every torch and every Python; a line each."""
        if self.unreadable:
            return [f"cannot be read: {self.unreadable}"]
        lines = []
        if self.missing:
            lines.append(f"does not load with the torch of this environment, which lacks {_listed(self.missing)}")
        if not self.torch:
            lines.append(f"is bound to one release of torch, by {_listed(self.unstable)}")
        if self.bound_to_python == UNKNOWN:
            lines.append(UNKNOWN_TEXT)
        elif self.bound_to_python:
            lines.append(f"is bound to {_python_text(self.bound_to_python)}")
        return lines


def extensions(where: str = "") -> list[Extension]:
    """Returns the libraries in an environment that use torch, sorted by distribution and path.

    Args:
        where: An environment's folder, or a folder that distributions are installed in; empty for the environment of
            this process.

    Raises InspectionError if it is no folder, or no distribution is installed there, OSError.
    """
    found: list[Extension] = []
    if where and not os.path.isdir(where):
        raise InspectionError(where, "it is not a folder" if os.path.exists(where) else "it does not exist", ADVICE)
    sites = _sites(where) if where else None
    distributions = metadata.distributions(path=sites) if sites is not None else metadata.distributions()
    installed = [one for one in distributions if not _folder(one).startswith(LEFT_BY_PIP)]
    if where and not installed:
        raise InspectionError(where, "no distribution is installed there", ADVICE)
    named = [(*_name_and_version(one), one) for one in installed]
    torch = next((str(one.locate_file("torch/lib")) for name, _, one in named if name == "torch"), "")
    seen: set[str] = set()
    for name, version, one in named:
        if name in NO_EXTENSIONS or name in seen:  # the first on the path is the one that is imported
            continue
        seen.add(name)
        blank = Extension(name, version, "", "", (), "", "", "", (), (), "")
        try:
            paths = _libraries(one)
        except Exception as error:  # one broken list of files must not hide every other distribution
            found.append(blank._replace(path=f"{_folder(one)}/RECORD", unreadable=str(error)))
            continue
        found += [extension for path in paths if (extension := _read(one, blank._replace(path=path), torch))]
    return sorted(found)


def _sites(where: str) -> list[str]:
    """Returns the folders of an environment that distributions are installed in. Raises OSError."""
    below = [os.path.join(parent, name) for parent, name in _python_folders(where)]
    return below or [where]


def _python_folders(where: str) -> Iterator[tuple[str, str]]:
    for library in ("lib", "lib64"):
        parent = os.path.join(where, library)
        if not os.path.isdir(parent) or os.path.islink(parent):
            continue
        for python in sorted(os.listdir(parent)):
            for site in ("site-packages", "dist-packages"):
                if SITES.fullmatch(f"{library}/{python}/{site}") and os.path.isdir(os.path.join(parent, python, site)):
                    yield os.path.join(parent, python), site


def _folder(one: metadata.Distribution) -> str:
    """Returns the name of the folder with a distribution's metadata, such as foo-1.0.dist-info."""
    return os.path.basename(str(getattr(one, "_path", "")))


def _name_and_version(one: metadata.Distribution) -> tuple[str, str]:
    """Returns the name of a distribution, in lower case and with single dashes, and its version.

    The folder's name has them if METADATA is missing or damaged.
    """
    name, _, version = os.path.splitext(_folder(one))[0].partition("-")
    with suppress(Exception):  # each version of importlib raises something else
        name, version = one.metadata["Name"] or name, one.metadata["Version"] or version
    return re.sub(r"[-_.]+", "-", name).lower(), version


def _libraries(one: metadata.Distribution) -> list[str]:
    """Returns the paths of a distribution's shared libraries, relative to where it is installed.

    Those of an editable installation are in its source folder, and in no list.
    """
    listed = [str(file) for file in one.files or ()]
    project = _project(one)
    below = _below(project) if project else []
    return sorted(path for path in (*listed, *below) if LIBRARY.fullmatch(os.path.basename(path)))


def _project(one: metadata.Distribution) -> str:
    """Returns the source folder of an editable installation; empty for any other."""
    try:
        origin = json.loads(one.read_text("direct_url.json") or "{}")
        is_editable, url = origin["dir_info"]["editable"], urllib.parse.urlsplit(origin["url"])
    except (KeyError, TypeError, ValueError):
        return ""
    return urllib.parse.unquote(url.path) if is_editable is True and url.scheme == "file" else ""


def _below(project: str) -> Iterator[str]:
    """Yields the files of a project, without environments, hidden folders and what a build has left."""
    for folder, folders, files in os.walk(project):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not (folder == project and name == "build")
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
        )
        yield from (os.path.join(folder, name) for name in files)


def _read(one: metadata.Distribution, blank: Extension, torch: str) -> Extension | None:
    """Returns the library at the path of `blank` with its needs; None if it does not use torch, or is not there."""
    file = str(one.locate_file(blank.path))
    try:
        library = _opened(file)
        symbols = elf.undefined(library.symbols(".dynsym"))
        unstable = [name for name in symbols if TORCH_CXX.match(name)]
        calls = [name for name in symbols if name.startswith(shims.PREFIXES)]
        is_linked = any(name.startswith(OF_TORCH) for name in library.needed())
        if not unstable and not is_linked and not any(name.startswith("aoti_torch_") for name in calls):
            return None
        measured = measure.of_library(file)
        missing = symbol_scope.missing_symbols(library, [os.path.dirname(file)], torch) if torch else []
        if missing and not is_linked:  # whoever imports it opens torch's libraries for it before
            missing = symbol_scope.not_defined_with(missing, os.path.join(torch, TORCH))
    except FileNotFoundError:
        return None
    except (OSError, FileFormatError, ValueError) as error:
        return blank._replace(unreadable=str(error)) if _claims_torch(one) else None
    oldest, bound = _python(os.path.basename(blank.path), symbols)
    return blank._replace(
        torch="" if unstable else _torch(calls),
        unstable=tuple(sorted(unstable)),
        python=oldest,
        bound_to_python=bound,
        glibc=measured["floors"]["glibc"],
        archs=tuple(measured["archs"]),
        missing=tuple(missing),
    )


def _torch(calls: Sequence[str]) -> str:
    """Returns the oldest torch of a library on the stable ABI that calls these functions."""
    return (shims.torch_floor(calls)["floor"] or FIRST_STABLE) if calls else "any"


def _claims_torch(one: metadata.Distribution) -> bool:
    """Returns whether a distribution says that it needs torch, or cannot be asked."""
    try:
        return any(re.match(r"torch\b(?!-)", requirement) for requirement in one.requires or ())
    except Exception:  # each version of importlib raises something else
        return True


def _opened(path: str) -> ElfFile:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # a pipe would block for ever
        if os.fstat(file.fileno()).st_size == 0:
            raise FileFormatError(f"{path} is empty")
        return ElfFile(Reader(mmap(file.fileno(), 0, access=ACCESS_READ), path))


def _python(name: str, symbols: Sequence[str]) -> tuple[str, str]:
    """Returns the oldest Python of a library, and the one that it is bound to: one of them is empty."""
    tag = TAG.search(name)
    if tag and tag[1]:
        return "", f"{tag[1]}.{tag[2]}{tag[3]}"
    used = {symbol for symbol in symbols if symbol.startswith(python_abi.PREFIXES)}
    if not used:
        return "any", ""
    if not python_abi.limited_api(3, OLDEST_LIMITED):
        return "", UNKNOWN
    for minor in range(OLDEST_LIMITED, sys.version_info.minor + 1):
        if used <= python_abi.limited_api(3, minor):
            return f"3.{minor}", ""
    return "", "one"


def _python_text(version: str) -> str:
    return "one Python" if version == "one" else f"Python {version}"


def _listed(symbols: Sequence[str]) -> str:
    from opforge.foundation.symbols import demangled

    shown = list(demangled(symbols[:1]).values())
    more = f" and {len(symbols) - 1} more" if len(symbols) > 1 else ""
    return shown[0] + more

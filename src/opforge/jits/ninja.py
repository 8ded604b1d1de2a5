"""JITs that call ninja: their key is what ninja is told, with sources by content and paths by what they stand for.

A build's own files of headers are known after it alone. So an entry has the list of the user's headers, each with the
include folder that has it and its content, and an entry counts where these are the same. Headers of the JIT's package
come with its version; those of the system and of CUDA are not compared, as the compiler may be another one too. What
cannot be known on another machine is not kept: a header that no include folder has, a library in a folder of the
user's.
"""

from __future__ import annotations

import os
import re
import subprocess
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.keys import bytes_digest, canonical
from opforge.cache.schema import SHA256, FormatError, items, row, text, whole
from opforge.graphs import notices
from opforge.machine_folder import write_file

from .adapter import Adapter
from .page import Files

INPUTS, BUILD = "inputs.json", "build.ninja"
SYSTEM = ("/usr/", "/opt/", "/lib/", "/lib64/", "/nix/")
"""Where systems and CUDA have their headers and libraries."""
MAX_HEADERS = 10_000
HEADERS = items(row(whole(), text(), SHA256), MAX_HEADERS)
"""For each header of the user's: which include folder has it, its path there, its content."""
TOOLS = re.compile(r"^(?:cxx|cc|nvcc|cuda_home|name|\w+_launcher) = .*$", re.MULTILINE)
INCLUDE = re.compile(r"(?:-I|-isystem )(?P<path>[^\s$]+)")
LIBRARIES = re.compile(r"(?:-L|(?<=\s))(?P<path>/[^\s$]+)(?=\s|$)")
SOURCE = re.compile(r"^build \S+: (?!link)\S+ (?P<path>/\S+)$", re.MULTILINE)


class _Ordered(NamedTuple):
    """What ninja is told, on any machine."""

    key: str
    roots: Sequence[str]
    """The folders in which a header of the user's may be: those of the sources, and those of -I, in their order."""
    problem: str
    """Why it is not kept."""


class NinjaAdapter(Adapter):
    """The base of adapters of JITs that run ninja in a folder, and load a library from there."""

    holds = "host"
    carries = r"[\w.-]{1,200}\.so|inputs\.json"

    @abstractmethod
    def packages(self) -> Sequence[str]:
        """Returns the folders of the packages whose versions are in the fingerprint."""

    def run(self, folder: str, build: Callable[[], Any]) -> None:
        """Runs ninja in a folder, or puts what it would make there. Raises what `build` raises."""
        ordered = self._ordered(folder)
        what = f"{self.name}'s library {os.path.basename(folder)}"
        if not self.active or ordered.problem:
            if self.active:
                notices.warn("%s is neither found nor kept: %s", what, ordered.problem)
            build()
            return

        with ExitStack() as claim:
            found = self.entries.get_or_claim(ordered.key, what, claim, lambda: self._found(ordered))
            if found is None:
                build()
                try:
                    files = self._built(folder, ordered)
                    self.entries.put(f"{ordered.key}.{bytes_digest(files[INPUTS])[:16]}", what, files)
                except (OSError, ValueError) as error:
                    notices.warn("%s is not kept: %s", what, error)
                return
        for path in found.keys() - {INPUTS}:
            write_file(os.path.join(folder, path), found[path], 0o700)  # in the place of an older one, which is loaded

    def _ordered(self, folder: str) -> _Ordered:
        with open(os.path.join(folder, BUILD), encoding="utf-8") as file:
            told = file.read().replace("$:", ":").replace(" $\n", " ")
        includes = [path for path in INCLUDE.findall(told) if not path.startswith(SYSTEM)]
        sources = [match["path"] for match in SOURCE.finditer(told)]
        for source in sources:
            with open(source, "rb") as opened:
                told = told.replace(source, bytes_digest(opened.read()))
        told = told.replace(folder, "$folder")
        for name in sorted(os.listdir(folder)):
            if name.endswith(".cubin"):  # which is embedded
                with open(os.path.join(folder, name), "rb") as opened:
                    told += f"\n{name} {bytes_digest(opened.read())}"
        for number, root in enumerate(self.packages()):
            told = told.replace(root, f"$package{number}")
        for number, path in enumerate(dict.fromkeys(includes)):
            told = re.sub(rf"(-I|-isystem ){re.escape(path)}(?=\s|$)", rf"\1$include{number}", told)
        told = TOOLS.sub("", told)
        others = [match["path"] for match in LIBRARIES.finditer(told) if not match["path"].startswith(SYSTEM)]
        problem = f"{others[0]} may change, and its content is not known" if others else ""
        roots = [*dict.fromkeys([*map(os.path.dirname, sources), *includes])]
        return _Ordered(bytes_digest(told.encode()), roots, problem)

    def _built(self, folder: str, ordered: _Ordered) -> Files:
        """Returns what ninja has made. Raises ValueError for headers of the user's that could not be found again."""
        rows = list[list[Any]]()
        for path in sorted({*self._headers(folder)}):
            place = _place(path, ordered.roots)
            if place is None:
                raise ValueError(f"no include folder has {path}")
            with open(path, "rb") as file:
                rows.append([*place, bytes_digest(file.read())])
        files = {INPUTS: canonical(rows)}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".so"):
                with open(os.path.join(folder, name), "rb") as file:
                    files[name] = file.read()
        return files

    def _headers(self, folder: str) -> Iterator[str]:
        """Yields the files that compilers have read, without those of the system and of packages."""
        listed = subprocess.run(["ninja", "-t", "deps"], cwd=folder, capture_output=True, text=True, check=True).stdout
        known = (*SYSTEM, *(os.path.join(root, "") for root in (*self.packages(), folder)))
        with open(os.path.join(folder, BUILD), encoding="utf-8") as file:
            sources = {match["path"] for match in SOURCE.finditer(file.read().replace("$:", ":"))}
        for line in listed.splitlines():
            if line.startswith("    "):
                path = os.path.normpath(os.path.join(folder, line.strip()))
                if not path.startswith(known) and path not in sources:
                    yield path

    def _found(self, ordered: _Ordered) -> Files | None:
        """Returns an entry whose headers are those of this machine."""
        for key in self.entries.all_keys():
            if key.startswith(f"{ordered.key}."):
                files = self.entries.get(key)
                if files is None:
                    continue
                try:
                    rows = schema.parse(files[INPUTS], HEADERS)
                except (KeyError, FormatError) as error:
                    notices.warn("%s: the list of headers in %s cannot be used: %s", self.name, key, error)
                    continue
                if all(_is_same(number, name, sha256, ordered.roots) for number, name, sha256 in rows):
                    return files
        return None


def _place(path: str, roots: Sequence[str]) -> tuple[int, str] | None:
    for number, root in enumerate(roots):
        if path.startswith(os.path.join(root, "")):
            return number, os.path.relpath(path, root)
    return None


def _is_same(number: int, name: str, sha256: str, roots: Sequence[str]) -> bool:
    """Returns whether the first of the include folders that has a header is the same, with the same content."""
    if number >= len(roots) or any(os.path.exists(os.path.join(root, name)) for root in roots[:number]):
        return False
    try:
        with open(os.path.join(roots[number], name), "rb") as file:
            return bytes_digest(file.read()) == sha256
    except OSError:
        return False

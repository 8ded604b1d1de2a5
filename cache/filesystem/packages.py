"""Which files a package has installed, by the list of the system's package manager or of a wheel.

Such a file is replaced only together with the list. So the list's own stamp stands for it, if no link on the way to it
can be switched.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from opforge import formats

from .disk import Disk
from .files import UNREADABLE, read_json, write_file

KEPT_ANSWERS = ("toolchains", "packages.json")
"""Where a store keeps the answers."""
DPKG, APK, PACMAN = "/var/lib/dpkg", "/lib/apk/db", "/var/lib/pacman/local"
"""Databases whose lists of files are text. rpm's is read by rpm alone: its files are compared one by one."""
MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
"""Folders of / that are links into /usr where the two are merged: lists have either spelling."""
SYSTEM, DIST_INFO = "system", ".dist-info"


class Listed(NamedTuple):
    """A file that a package has installed."""

    package: str
    """`system`, or the wheel's folder of metadata."""
    stamp_file: str
    """The file that changes when a package is installed, upgraded or removed."""


class PackageFiles:
    """Answers for many files. `kept` is a file that holds the answers of the present state of the system's database."""

    def __init__(self, disk: Disk, kept: str = "") -> None:
        self._disk, self._kept = disk, kept
        self.database = next((path for path in _databases() if os.path.exists(path)), "")
        self._state = [
            formats.PACKAGE_LISTS,
            *([list(disk.stamp(path) or ()) for path in (self.database, f"{DPKG}/diversions")]),
        ]
        self._answers: dict[str, bool] = {}
        self._tops: frozenset[str] | None = None
        self._paths: frozenset[str] | None = None
        self._is_changed = False
        self._read()
        self._folders: dict[str, str | None] = {"/": "/"}
        self._wheels: dict[str, list[str]] = {}
        self._records: dict[str, frozenset[str]] = {}

    def find(self, path: str) -> Listed | None:
        """Returns the package that a file belongs to; None if no list has it, or if a link may lead elsewhere."""
        wheel = self._wheel(path)
        if wheel:
            return wheel
        real = self._real(path) if self.database else None
        return Listed(SYSTEM, self.database) if real and self._is_listed(real) else None

    def is_in_wheels(self, folder: str) -> bool:
        """Returns whether wheels are installed in a folder, or in one above it."""
        while folder != "/" and not self._metadata(folder):
            folder = os.path.dirname(folder)
        return folder != "/"

    def save(self) -> None:
        """Writes the new answers. If that fails, the lists are read again next time."""
        if self._kept and self._is_changed:
            try:
                tops = sorted(self._tops or ())
                content = json.dumps({"state": self._state, "tops": tops, "files": self._answers})
                write_file(self._kept, content.encode())
                self._is_changed = False
            except OSError:
                return

    def _read(self) -> None:
        try:
            record = read_json(self._kept)
            if record["state"] == self._state:
                answers = {str(path): bool(answer) for path, answer in record["files"].items()}
                self._answers, self._tops = answers, frozenset(map(str, record["tops"]))
        except UNREADABLE:
            return

    def _is_listed(self, path: str) -> bool:
        """Returns whether the system's package manager lists this path, in either spelling of a merged /usr."""
        if path not in self._answers:
            first, _, rest = path.lstrip("/").partition("/")
            spellings = [path]
            if first == "usr" and os.path.islink("/" + rest.partition("/")[0]):
                spellings.append("/" + rest)
            # An op's sources are new in each build. Where no package has a file, the lists need not be read for them.
            if self._tops is not None and not any(_top(spelling) in self._tops for spelling in spellings):
                return False
            if self._paths is None:
                self._paths = frozenset(_listed_paths(self.database))
                self._tops = frozenset(map(_top, self._paths))
            self._answers[path] = any(spelling in self._paths for spelling in spellings)
            self._is_changed = True
        return self._answers[path]

    def _real(self, path: str, links: int = 0) -> str | None:
        """Returns the path with links resolved; None if a link on the way belongs to no package."""
        if path in self._folders:
            return self._folders[path]
        parent, name = os.path.split(path)
        real: str | None = None
        above = self._real(parent, links) if links < 40 else None
        if above is not None:
            real = os.path.join(above, name)
            if os.path.islink(real):
                is_merged = above == "/" and name in MERGED
                target = os.path.normpath(os.path.join(above, os.readlink(real)))
                real = self._real(target, links + 1) if is_merged or self._is_listed(real) else None
        self._folders[path] = real
        return real

    def _wheel(self, path: str) -> Listed | None:
        """Returns the wheel that lists a file: one in the nearest folder above it that holds wheels' metadata."""
        site, below = os.path.dirname(path), os.path.basename(path)
        while site != "/" and not self._metadata(site):
            below = os.path.join(os.path.basename(site), below)
            site = os.path.dirname(site)
        start = _plain_name(below.partition("/")[0])
        for name in self._metadata(site) if site != "/" else ():
            if not _plain_name(name).startswith(start):
                continue
            record = os.path.join(site, name, "RECORD")
            if record not in self._records:
                self._records[record] = frozenset(_recorded_paths(record))
            if below in self._records[record]:
                has_link = os.path.realpath(path) != os.path.join(os.path.realpath(site), below)
                return None if has_link else Listed(name, record)
        return None

    def _metadata(self, folder: str) -> list[str]:
        if folder not in self._wheels:
            names = self._disk.names(folder)
            self._wheels[folder] = sorted(name for name in names if name.endswith(DIST_INFO))
        return self._wheels[folder]


def _databases() -> tuple[str, ...]:
    return f"{DPKG}/status", f"{APK}/installed", PACMAN


def _listed_paths(database: str) -> Iterator[str]:
    """Yields every path that the system's packages have installed."""
    if database == PACMAN:
        for name in os.listdir(PACMAN):
            lines = _lines(os.path.join(PACMAN, name, "files"))
            yield from ("/" + line.rstrip("/") for line in lines if line and not line.startswith("%"))
    elif database.startswith(APK):
        folder = ""
        for line in _lines(database):
            if line.startswith("F:"):
                folder = line[2:]
                yield "/" + folder
            elif line.startswith("R:"):
                yield f"/{folder}/{line[2:]}"
    else:
        # What another package or the administrator has put in place of a listed file is not the package's.
        diverted = set(_lines(f"{DPKG}/diversions")[0::3])
        for name in os.listdir(f"{DPKG}/info"):
            if name.endswith(".list"):
                yield from (line for line in _lines(f"{DPKG}/info/{name}") if line not in diverted)


def _recorded_paths(record: str) -> Iterator[str]:
    """Yields the paths in a wheel's RECORD, relative to the folder that it is installed in."""
    for line in _lines(record):
        if not line.startswith('"'):
            yield line.rsplit(",", 2)[0]


def _top(path: str) -> str:
    """Returns the first two parts of a path, such as /usr/include."""
    return "/".join(path.split("/", 3)[:3])


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return file.read().split("\n")
    except OSError:
        return []


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()

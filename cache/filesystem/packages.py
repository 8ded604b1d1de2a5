"""Which files a package has installed, by the list of the system's package manager or of a wheel.

Such a file is replaced only together with the list. So the list's own stamp stands for it, if no link on the way to it
can be switched.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple

from opforge.foundation import formats, remembered_values, remembered_values_writer
from opforge.foundation.remembered_values import FlatStamps

from .disk import Disk

KEPT_IN, NAME = "toolchains", "packages"
"""The folder of a store in which the answers are remembered, and under which name."""
DPKG, APK, PACMAN = "/var/lib/dpkg", "/lib/apk/db", "/var/lib/pacman/local"
"""Databases whose lists of files are text. rpm's is read by rpm alone: its files are compared one by one."""
MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
"""Folders of / that are links into /usr where the two are merged: lists have either spelling."""
SYSTEM, DIST_INFO = "system", ".dist-info"
SEPARATORS = re.compile(r"[-_.]+")


class Listed(NamedTuple):
    """A file that a package has installed."""

    package: str
    """`system`, or the wheel's folder of metadata."""
    stamp_file: str
    """The file that changes when a package is installed, upgraded or removed."""


class _Place(NamedTuple):
    """Where a folder lies among installed wheels."""

    site: str
    """The nearest folder, this one or above it, that holds wheels' metadata; empty if there is none."""
    below: str
    """The folder's path below it, with a slash at the end."""
    is_linked: bool
    """Whether a link leads out of it on the way."""
    wheels: list[str]
    """The wheels that may have installed the folder: those that begin like it. None for the nearest folder itself."""


class PackageFiles:
    """Answers for many files. In the folder `kept` those are remembered that the system's database gives as it is."""

    def __init__(self, disk: Disk, kept: str = "") -> None:
        self._disk, self._kept = disk, kept
        self.database = next(
            (path for path in (f"{DPKG}/status", f"{APK}/installed", PACMAN) if os.path.exists(path)), ""
        )
        self._at, watched = disk.now_ns(), [self.database, f"{DPKG}/diversions"]
        self._stamps = FlatStamps(watched, disk.flat_stamps(watched))
        self._answers, self._tops = self._remembered()
        self._paths = set[bytes]()
        self._is_changed = False
        self._folders: dict[str, str | None] = {"/": "/"}
        self._wheels: dict[str, list[str]] = {}
        self._records: dict[str, frozenset[str]] = {}
        self._places: dict[str, _Place] = {}

    def find(self, path: str) -> Listed | None:
        """Returns the package that a file belongs to; None if no list has it, or if a link may lead elsewhere."""
        if wheel := self._wheel(path):
            return wheel
        real = self._real(path) if self.database else None
        return Listed(SYSTEM, self.database) if real and self._is_listed(real) else None

    def is_in_wheels(self, folder: str) -> bool:
        """Returns whether wheels are installed in a folder, or in one above it."""
        return self._nearest_wheels(folder) != ""

    def save(self) -> None:
        """Remembers the new answers. If that fails, the lists are read again next time."""
        if self._kept and self._is_changed:
            value = [formats.PACKAGE_LISTS, self._answers, self._tops]
            self._is_changed = not remembered_values_writer.remember(
                NAME, self._stamps, value, self._at, folder=self._kept
            )

    def _remembered(self) -> tuple[dict[str, bool], dict[str, bool]]:
        """Returns the answers for files, and for the first folders of their paths, of this state of the database."""
        found = remembered_values.recall(NAME, self._disk.flat_stamps, self._kept) if self._kept else None
        if found is None or found[1].paths != self._stamps.paths or found[0][0] != formats.PACKAGE_LISTS:
            return {}, {}
        return found[0][1], found[0][2]

    def _is_listed(self, path: str) -> bool:
        """Returns whether the system's package manager lists this path, in either spelling of a merged /usr."""
        if path not in self._answers:
            first, _, rest = path.lstrip("/").partition("/")
            spellings = [path]
            if first == "usr" and os.path.islink("/" + rest.partition("/")[0]):
                spellings.append("/" + rest)
            # An op's sources are new in each build. Where no package has a file, the lists need not be read for them.
            if not any(self._tops.get(_top(spelling), True) for spelling in spellings):
                return False
            if not self._paths:
                self._paths = _listed_paths(self.database)
            self._answers[path] = any(os.fsencode(spelling) in self._paths for spelling in spellings)
            if not self._answers[path]:  # packages list their folders too
                self._tops.update((top, os.fsencode(top) in self._paths) for top in map(_top, spellings))
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
        folder, name = os.path.split(path)
        if folder not in self._places:
            self._places[folder] = self._place(folder)
        site, below, is_linked, wheels = self._places[folder]
        for wheel in wheels:
            record = os.path.join(site, wheel, "RECORD")
            if record not in self._records:
                self._records[record] = _recorded_paths(record)
            if below + name in self._records[record]:
                return None if is_linked or os.path.islink(path) else Listed(wheel, record)
        return None

    def _place(self, folder: str) -> _Place:
        site = self._nearest_wheels(folder)
        if site in ("", folder):
            return _Place(site, "", False, [])
        below = os.path.relpath(folder, site)
        is_linked = os.path.realpath(folder) != os.path.join(os.path.realpath(site), below)
        start = _plain_name(below.partition("/")[0])
        wheels = [wheel for wheel in self._metadata(site) if _plain_name(wheel).startswith(start)]
        return _Place(site, below + "/", is_linked, wheels)

    def _nearest_wheels(self, folder: str) -> str:
        """Returns the folder, or the nearest one above it, that holds wheels' metadata; empty if none does."""
        while not self._metadata(folder):
            above = os.path.dirname(folder)
            if above == folder:  # the root, which POSIX may also call `//`
                return ""
            folder = above
        return "" if folder.strip("/") == "" else folder

    def _metadata(self, folder: str) -> list[str]:
        if folder not in self._wheels:
            names = self._disk.names(folder)
            self._wheels[folder] = sorted(name for name in names if name.endswith(DIST_INFO))
        return self._wheels[folder]


def _listed_paths(database: str) -> set[bytes]:
    """Returns every path that the system's packages have installed."""
    if database == PACMAN:
        lines = _content(*(os.path.join(PACMAN, name, "files") for name in os.listdir(PACMAN))).split(b"\n")
        return {b"/" + line.rstrip(b"/") for line in lines if line and not line.startswith(b"%")}
    paths, folder = set[bytes](), b""
    if database.startswith(APK):
        for line in _content(database).split(b"\n"):
            if line.startswith(b"F:"):
                folder = line[2:]
                paths.add(b"/" + folder)
            elif line.startswith(b"R:"):
                paths.add(b"/" + folder + b"/" + line[2:])
        return paths
    lists = (f"{DPKG}/info/{name}" for name in os.listdir(f"{DPKG}/info") if name.endswith(".list"))
    paths.update(_content(*lists).split(b"\n"))
    # What another package or the administrator has put in place of a listed file is not the package's.
    paths.difference_update(_content(f"{DPKG}/diversions").split(b"\n")[0::3])
    return paths


def _recorded_paths(record: str) -> frozenset[str]:
    """Returns the paths in a wheel's RECORD, relative to the folder that it is installed in."""
    lines = _content(record).decode("utf-8", "surrogateescape").split("\n")
    return frozenset([line.rsplit(",", 2)[0] for line in lines if line[:1] != '"'])


def _top(path: str) -> str:
    """Returns the first two parts of a path, such as /usr/include."""
    return "/".join(path.split("/", 3)[:3])


def _content(*paths: str) -> bytes:
    """Returns the contents of files, one after another; a file that cannot be read is left out."""
    contents = []
    for path in paths:
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            contents.append(file.read())
    return b"\n".join(contents)


def _plain_name(name: str) -> str:
    return SEPARATORS.sub("_", name).lower()

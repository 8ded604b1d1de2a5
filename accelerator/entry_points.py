"""Entry points of other packages. What each folder of sys.path has is remembered as long as the folder is the same."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opforge.foundation import formats, remembered_values

if TYPE_CHECKING:
    from importlib.metadata import Distribution

GROUPS = ("opforge.accelerators", "opforge.op_builders", "opforge.sources", "opforge.cases", "opforge.jits")
METADATA = (".dist-info", ".egg-info", ".egg")


class EntryPoint:
    """One name that a distribution adds to a group."""

    __slots__ = ("group", "name", "source", "value")

    def __init__(self, group: str, name: str, value: str, source: str) -> None:
        self.group, self.name, self.value, self.source = group, name, value, source


def entry_points(group: str) -> list[EntryPoint]:
    """Returns the entry points of one of GROUPS, in the order of sys.path.

    If two distributions of one name are installed, the first one on sys.path counts, as it does for imports.
    """
    points: list[EntryPoint] = []
    folder_of: dict[str, str] = {}
    for folder in folders():
        for row_group, name, value, distribution, version in _rows(folder):
            if row_group == group and folder_of.setdefault(distribution, folder) == folder:
                points.append(EntryPoint(row_group, name, value, f"{distribution} {version}"))
    return points


def folders() -> list[str]:
    """Returns the folders of sys.path as absolute paths, each once."""
    paths = []
    for folder in sys.path:
        try:
            paths.append(folder if folder[:1] == "/" else os.path.abspath(folder))
        except FileNotFoundError:
            continue  # the working folder was removed: nothing can be imported from below it
    return list(dict.fromkeys(paths))


def watched(folder: str) -> list[str]:
    """Returns the paths whose stamps change with a folder's entry points: its own, and those of development installs.

    The files of the latter are rewritten in place. In an image the files of all: the folder is known by its names.
    """
    ends = METADATA if remembered_values.is_known_by_content(folder) else ".egg-info"
    names = [name for name in _names(folder) if name.endswith(ends)]
    return [folder, *(os.path.join(folder, name, "entry_points.txt") for name in names)]


def _rows(folder: str) -> list[list[str]]:
    """Returns a folder's entry points, each as [group, name, value, distribution, version]."""
    if not any(name.endswith(METADATA) for name in _names(folder)):
        return []  # such as the script's own, which changes with every file
    name = remembered_values.name_of(("entry points", formats.ENTRY_POINTS, folder))
    found = remembered_values.recall(name)
    if found and _is_valid(found[0]):
        rows: list[list[str]] = found[0]
        return rows
    at, paths = time.time_ns(), watched(folder)
    stamps = remembered_values.FlatStamps(paths, remembered_values.stamps_of(paths))
    rows = _scan(folder)
    from opforge.foundation import remembered_values_writer, settings  # a hit does not write

    if remembered_values_writer.is_in_use(settings.cache_dir()):
        remembered_values_writer.remember(name, stamps, rows, at)
    return rows


def _is_valid(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 5 and all(isinstance(field, str) for field in row) for row in rows
    )


def _names(folder: str) -> list[str]:
    try:
        # importlib looks into a zip file on sys.path, so scan it as if it held a distribution.
        return [".egg-info"] if os.path.isfile(folder) else os.listdir(folder)
    except OSError:
        return []


def _scan(folder: str) -> list[list[str]]:
    rows = []
    for distribution in _distributions(folder):
        try:
            points = [point for point in distribution.entry_points if point.group in GROUPS]
            identity = [str(distribution.metadata["Name"]), str(distribution.version)] if points else []
        except Exception:  # noqa: S112  # one package's broken metadata must not hide every other package
            continue
        rows += [[point.group, point.name, point.value, *identity] for point in points]
    return rows


def _distributions(folder: str) -> Iterator[Distribution]:
    """Yields the distributions in a folder that may add to GROUPS; all those in a zip file.

    Most have other groups alone: importlib takes six times as long to say so as reading their files does.
    """
    import importlib.metadata

    if os.path.isfile(folder):
        yield from importlib.metadata.distributions(path=[folder])
        return
    for name in _names(folder):
        if not name.lower().endswith((".dist-info", ".egg-info")):
            continue
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                content = file.read()
        except OSError:
            continue
        if any(group.encode() in content for group in GROUPS):
            yield importlib.metadata.Distribution.at(os.path.join(folder, name))

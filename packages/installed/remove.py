"""Removes installed packages. Only files that an installation has written are removed."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from opforge.cache import schema
from opforge.cache.layout import Layout, entry_name
from opforge.cache.records.schemas import RECORD
from opforge.cache.schema import SHA256
from opforge.errors import KernelFormatError
from opforge.foundation.files import folder_names, is_temp_name
from opforge.packages.form import metadata
from opforge.packages.form.version import Range

from . import releases
from .folders import held, remove_folder
from .layout import Root
from .releases import Installed


def remove(root: Root, name: str, numbers: Range) -> list[Installed]:
    """Removes the releases of a package in a range of versions; returns them. Raises OSError.

    The release's file goes first: a process that is killed leaves files that nothing names, which the next removal
    takes. One whose file cannot be read is removed, too.
    """
    if not os.path.isdir(root.join()):
        return []
    present = [number for number in releases.versions(root, name) if number in numbers]
    removed = [releases.read(root, name, number) or Installed(name, number, root) for number in present]
    for release in removed:
        _forget(root, release)
    sweep(root)
    return removed


def sweep(root: Root) -> list[str]:
    """Removes the files that no release names; returns the digests of variants that are gone. Raises OSError.

    Nothing is removed while something is installed: what it has placed is named at its end. The next removal takes it.
    Nothing is removed either if a release or a folder of releases cannot be read: a newer opforge has installed it, it
    is another user's, or the disk fails.
    """
    with held(root, alone=True) as is_alone:
        return _sweep(root) if is_alone else []


def _sweep(root: Root) -> list[str]:
    used, signed = set[str](), set[str]()
    try:
        present = [*releases.every(root)]
    except OSError:
        return []
    for name, number in present:
        release = releases.read(root, name, number)
        if release is None:
            return []
        used |= {part.digest for part in release.variants}
        signed.add(release.digest)
    _remove_rest(root, signed)
    trees = [name for name in folder_names(root.join("trees")) if _is_digest(name) and _is_variant(root.tree(name))]
    unused = [digest for digest in trees if digest not in used]
    kept = {_library_paths(root, digest) for digest in used} if unused else set()
    for digest in unused:
        paths = _library_paths(root, digest)
        if paths not in kept:  # two releases may hold the same library
            _withdraw(paths)
        remove_folder(root.tree(digest), last=metadata.FILE)
    return unused


def _is_digest(name: str) -> bool:
    return not schema.problem(name, SHA256)


def _is_variant(folder: str) -> bool:
    """Returns whether a folder was put there by an installation: a variant appears with its metadata, or not at all."""
    return os.path.lexists(os.path.join(folder, metadata.FILE))


def _remove_rest(root: Root, signed: Collection[str]) -> None:
    """Removes signed releases that none installed names, files in parts, and folders of names that are empty now."""
    for top in (root.join("releases"), root.join("names")):
        for folder, _folders, files in os.walk(top, topdown=False):
            for name in files:
                if is_temp_name(name) or (_is_digest(name) and name not in signed):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
            if folder != top:
                with suppress(OSError):
                    os.rmdir(folder)  # it may hold other names


def _library_paths(root: Root, digest: str) -> tuple[str, ...]:
    """Returns the paths below which a variant's library is an entry of the root's layer; none if it has no library."""
    layout = Layout(root.path)
    try:
        record = metadata.read(root.tree(digest)).opforge.get("record")
    except (OSError, KernelFormatError):
        return ()
    if record is None or schema.problem(record, RECORD):
        return ()  # it was never an entry
    name = entry_name(record["key"], record["sha256"])
    return layout.entry(name), os.path.join(layout.description(record["description"]), name)


def _withdraw(paths: tuple[str, ...]) -> None:
    """Removes an entry from the root's layer."""
    for path in paths:
        if os.path.isdir(path):
            remove_folder(path)
        elif os.path.lexists(path):
            os.unlink(path)


def _forget(root: Root, release: Installed) -> None:
    """Removes the records of an installed release; the files of its variants stay."""
    paths = [root.release(release.name, release.version.canonical)]
    if release.digest:
        paths.append(root.join("releases", release.digest))
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)

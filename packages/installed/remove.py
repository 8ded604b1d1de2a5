"""Removes installed packages. Only what an installation has written is removed."""

from __future__ import annotations

import os

from opforge.cache.layout import Layout, entry_name
from opforge.packages.form import metadata
from opforge.packages.form.version import Range

from . import releases
from .add import held, remove_folder
from .layout import Root
from .releases import Installed


def remove(root: Root, name: str, numbers: Range) -> list[Installed]:
    """Removes the releases of a package in a range of versions; returns them. Raises OSError.

    The release's file goes first: a process that is killed leaves files that nothing names, which the next removal
    takes.
    """
    removed = list(releases.matching(root, name, numbers))
    for release in removed:
        _forget(root, release)
    folder = root.join("names", *name.split("/"))
    for path in (folder, os.path.dirname(folder)):
        try:
            os.rmdir(path)
        except OSError:
            break  # it holds other versions, or other names
    if removed:
        sweep(root)
    return removed


def sweep(root: Root) -> list[str]:
    """Removes the files of variants that no release names; returns their digests. Raises OSError.

    Nothing is removed while something is installed: what it has placed is named at its end. The next removal takes it.
    """
    with held(root, alone=True) as is_alone:
        return _sweep(root) if is_alone else []


def _sweep(root: Root) -> list[str]:
    used = {
        part.digest
        for name in releases.names(root)
        for number in releases.versions(root, name)
        for part in getattr(releases.read(root, name, number), "variants", ())
    }
    try:
        present = os.listdir(root.join("trees"))
    except OSError:
        return []
    _withdraw(root, [digest for digest in present if digest not in used])
    unused = [digest for digest in present if digest not in used and len(digest) == 64]
    for digest in unused:
        remove_folder(root.tree(digest))
    return unused


def _withdraw(root: Root, digests: list[str]) -> None:
    """Removes the entries of variants that are going from the root's layer."""
    layout = Layout(root.path)
    for digest in digests:
        try:
            record = metadata.read(root.tree(digest)).opforge["record"]
            name, description = entry_name(record["key"], record["sha256"]), record["description"]
            folders = (layout.entry(name), os.path.join(layout.description(description), name))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # it has no library
        for path in folders:
            if os.path.isdir(path):
                remove_folder(path)
            elif os.path.lexists(path):
                os.unlink(path)


def _forget(root: Root, release: Installed) -> None:
    """Removes what an installation has written of a release, but for the files of its variants."""
    paths = [root.release(release.name, str(release.version))]
    if release.digest:
        paths.append(root.join("releases", release.digest))
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue

"""Packages in folders that OPFORGE_KERNELS names: checkouts, and variants packed or built for the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from opforge.foundation import settings
from opforge.foundation.files import folder_names, stamp_of
from opforge.packages.choose import candidate
from opforge.packages.choose.candidate import VariantCandidate
from opforge.packages.form import digests, metadata, names
from opforge.packages.form.metadata import Metadata
from opforge.packages.installed import receipt

PLACES = ("", "build")
MAX_STEPS = 40
"""Of links that lead to links: the system follows no more."""


class Checkout(NamedTuple):
    """A variant in a folder that is not installed."""

    candidate: VariantCandidate
    folder: str
    metadata: Metadata


def folders() -> dict[str, str]:
    """Returns the folder of each package that OPFORGE_KERNELS names. Raises KernelFormatError, SettingError."""
    chosen = settings.kernels()
    for name in chosen:
        names.check(name, "OPFORGE_KERNELS")
    return chosen


def variants(folder: str) -> tuple[list[Checkout], list[str]]:
    """Returns the variants in a package's folder, and why others cannot be read.

    They lie in the folder itself, in its build/, or the folder is one.
    """
    checkouts: list[Checkout] = []
    problems: list[str] = []
    places = [folder] if _is_variant(folder) else [path for path in _children(folder) if _is_variant(path)]
    for path in places:
        try:
            choice, stated = candidate.read(path)
            checkouts.append(Checkout(choice, path, stated))
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    return checkouts, problems


def watched(folder: str) -> list[str]:
    """Returns the paths whose stamps change if another variant appears in a package's folder, or states other things.

    Links are compared themselves: of one, everything that it leads to follows.
    """
    folders = [folder, os.path.join(folder, PLACES[1]), *filter(os.path.isdir, _children(folder))]
    paths = [*folders, *(os.path.join(path, metadata.FILE) for path in folders)]
    return with_targets(paths)


def stamps(folder: str) -> receipt.Stamps:
    """Returns the stamps of a variant's files, taken before they are hashed, and of what links among them lead to.

    Empty if one cannot be read: hashing it says what is wrong.
    """
    try:
        found = receipt.stamps(folder)
        targets = with_targets([os.path.join(folder, path) for path in found])[len(found) :]
        return found | {path: stamp_of(path) for path in targets}
    except (OSError, ValueError):
        return {}


def with_targets(paths: list[str]) -> list[str]:
    """Returns paths, and after them each step of the links among them: the stamps of all change with what is read."""
    more = list[str]()
    for path in paths:
        for _step in range(MAX_STEPS):
            if not os.path.islink(path):
                break
            path = os.path.join(os.path.dirname(path), os.readlink(path))
            more.append(path)
    return [*paths, *dict.fromkeys(more)]


def content(choice: Checkout) -> str:
    """Returns the digest of a variant whose files are those that it states; empty if it states none."""
    stated = choice.metadata
    if stated.files is None:
        return ""
    return content_of(stated.files if stated.algorithm == "sha256" else digests.of_folder(choice.folder))


def content_of(files: Mapping[str, str]) -> str:
    """Returns a digest of files by their digests: of all but the metadata, which names no op."""
    return digests.of_bytes(repr(sorted(files.items())).encode())


def _children(folder: str) -> list[str]:
    paths: list[str] = []
    for place in PLACES:
        parent = os.path.join(folder, place) if place else folder
        paths += [os.path.join(parent, name) for name in folder_names(parent)]
    return paths


def _is_variant(path: str) -> bool:
    return os.path.isfile(os.path.join(path, metadata.FILE))

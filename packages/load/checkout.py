"""Packages in folders that OPFORGE_KERNELS names: checkouts, and what was packed or built for the hub."""

from __future__ import annotations

import os
from typing import NamedTuple

from opforge import settings
from opforge.packages.choose import candidate
from opforge.packages.choose.candidate import Candidate
from opforge.packages.form import metadata, names
from opforge.packages.form.metadata import Metadata

PLACES = ("", "build")


class Checkout(NamedTuple):
    """A variant in a folder that is not installed."""

    candidate: Candidate
    folder: str
    metadata: Metadata


def folders() -> dict[str, str]:
    """Returns the folder of each package that OPFORGE_KERNELS names. Raises KernelFormatError, SettingError."""
    chosen = settings.kernel_checkouts()
    for name in chosen:
        names.check(name, "OPFORGE_KERNELS")
    return chosen


def variants(folder: str) -> tuple[list[Checkout], list[str]]:
    """Returns the variants in a package's folder, and why others cannot be read.

    They lie in the folder itself, in its build/, or the folder is one.
    """
    checkouts: list[Checkout] = []
    problems: list[str] = []
    places = [folder] if os.path.isfile(os.path.join(folder, metadata.FILE)) else []
    for place in () if places else PLACES:
        parent = os.path.join(folder, place) if place else folder
        try:
            children = sorted(os.listdir(parent))
        except OSError:
            continue
        places += [path for path in (os.path.join(parent, name) for name in children) if _is_variant(path)]
    for path in places:
        try:
            choice, stated = candidate.read(path)
            checkouts.append(Checkout(choice, path, stated))
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    return checkouts, problems


def _is_variant(path: str) -> bool:
    return os.path.isfile(os.path.join(path, metadata.FILE))

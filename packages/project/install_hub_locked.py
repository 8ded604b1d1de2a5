"""Installs the kernels of a hub's lock file from the Hugging Face cache of this machine. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import os
import shlex

from opforge.errors import KernelLockError, KernelNotFoundError, OpforgeError
from opforge.foundation.files import read_file
from opforge.packages.choose import candidate, environment, order
from opforge.packages.form import digests, metadata, names, origin
from opforge.packages.form.version import Version
from opforge.packages.installed import add
from opforge.packages.installed.layout import Root
from opforge.packages.installed.releases import Installed

from . import LOCK_FILE, hub_cache, hub_locks, required
from .hub_locks import HubLocked

FILE = "kernels.lock"
MAX_BYTES = 32 << 20
GIT_DIGITS = 40
"""Digits of a git hash: the cache names a file by it if git holds the file, and otherwise by its SHA-256."""


def is_used(folder: str) -> bool:
    """Returns whether a project is locked by the hub alone. Raises KernelFormatError, OSError."""
    if not os.path.isfile(os.path.join(folder, FILE)) or os.path.isfile(os.path.join(folder, LOCK_FILE)):
        return False
    needed = required.find(folder)
    return needed is None or needed.is_hubs


def install_hub_locked(root: Root, folder: str, all_platforms: bool) -> list[tuple[Installed, bool]]:
    """Installs the kernels of a project's `kernels.lock`; returns each release, and whether it was new.

    Raises KernelLockError with all that is missing and the command that gets it; KernelFormatError, OSError.
    """
    path = os.path.join(folder, FILE)
    chosen, missing = list[tuple[HubLocked, list[str]]](), list[str]()
    for kernel in hub_locks.parse(read_file(path, MAX_BYTES), path):
        try:
            chosen.append((kernel, _variants(kernel, path, all_platforms)))
        except (OpforgeError, OSError, ValueError) as error:
            missing.append(f"{kernel.repository} {kernel.commit[:12]}: {error}".replace("\n", "\n    "))
    if missing:
        raise KernelLockError(path, missing, f"Get everything with: kernels download {shlex.quote(folder)}")
    _refuse_one_version_twice(chosen, path)
    results = []
    for kernel, folders in chosen:
        source = origin.text(kernel.repository, kernel.commit, kernel.revision)
        results.append((add.from_folders(root, _name(kernel), folders, source, follow_links=True), True))
    return results


def _refuse_one_version_twice(chosen: list[tuple[HubLocked, list[str]]], path: str) -> None:
    """Raises KernelLockError if two revisions of a repository state one version: one folder holds a release."""
    by_release: dict[tuple[str, Version | None], HubLocked] = {}
    for kernel, folders in chosen:
        release = (_name(kernel), metadata.read(folders[0]).release)
        other = by_release.setdefault(release, kernel)
        if other is not kernel:
            what = f"{kernel.repository} {release[1]} is locked at {other.commit[:12]} and at {kernel.commit[:12]}"
            raise KernelLockError(path, [what], "Lock one revision of each version: kernels lock")


def _name(kernel: HubLocked) -> str:
    return names.check(kernel.repository.lower(), FILE)


def _variants(kernel: HubLocked, path: str, all_platforms: bool) -> list[str]:
    """Returns the folders of the variants to install: those that fit best, or all that are in the cache."""
    name, build = _name(kernel), _snapshot(kernel)
    folders = [os.path.join(build, label) for label in sorted(os.listdir(build))]
    folders = [folder for folder in folders if os.path.isfile(os.path.join(folder, "metadata.json"))]
    # For a framework or a backend that is not known here: the hub's own tool ignores such folders, too.
    unknown = [folder for folder in folders if not hub_cache.is_label(os.path.basename(folder))]
    folders = [folder for folder in folders if folder not in unknown]
    read = {folder: candidate.read(folder)[0] for folder in folders}
    if not all_platforms:
        here = environment.here(candidate.asked_for(read.values()))
        best = order.best(list(read.values()), here)
        read = {folder: choice for folder, choice in read.items() if choice in best}
    if not read:
        labels = ", ".join(map(os.path.basename, [*folders, *unknown])) or "none"
        raise KernelNotFoundError(name, [f"{build}: no variant in it fits this machine; it has: {labels}"], "")
    for folder in read:
        if problem := hub_cache.refusal(name, folder):
            raise ValueError(f"{folder}: {problem}")
        expected = kernel.hashes.get(os.path.basename(folder))
        if expected and _hash(folder) != expected:
            raise ValueError(f"{folder} does not have the hash that {path} states")
    return [*read]


def _snapshot(kernel: HubLocked) -> str:
    """Returns the folder of a kernel's variants in the cache. Raises KernelNotFoundError."""
    folders = [f"{folder}/snapshots/{kernel.commit}/build" for folder in hub_cache.repositories(kernel.repository)]
    for folder in folders:
        if os.path.isdir(folder):
            return folder
    raise KernelNotFoundError(kernel.repository, folders, "")


def _hash(folder: str) -> str:
    """Returns the hash that the older format has of a variant: over each path with its hash on the hub."""
    digest = hashlib.sha256()
    for path in sorted([*digests.files_of(folder), "metadata.json"]):
        file = os.path.join(folder, path)
        with open(file, "rb") as opened:
            content = opened.read()
        if len(os.path.basename(os.path.realpath(file))) == GIT_DIGITS:
            content = b"blob %d\0" % len(content) + content
            value = hashlib.sha1(content, usedforsecurity=False).digest()
        else:
            value = hashlib.sha256(content).digest()
        digest.update(path.encode() + value)
    return f"sha256-{digest.hexdigest()}"

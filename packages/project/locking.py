"""Makes and checks the lock file of a project."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from opforge.errors import KernelLockError, WithdrawnError
from opforge.packages.form import version
from opforge.packages.form.version import Range
from opforge.packages.registry import dependencies, selection
from opforge.packages.registry.selection import Choice, Source, Verified
from opforge.remote.stores.urls import without_credentials

from . import lock_file, required
from .lock_file import LockedKernel, LockFile
from .required import Required


def current(folder: str) -> LockFile | None:
    """Returns the project's lock; None if there is none. Raises KernelFormatError, OSError."""
    try:
        return lock_file.read(os.path.join(folder, lock_file.FILE))
    except FileNotFoundError:
        return None


Say = Callable[[Sequence[Verified]], None]
"""Gets the releases that were chosen, before anything is written or installed."""


def silent(_chosen: Sequence[Verified]) -> None:
    """Says nothing."""


def make(
    folder: str, among: Sequence[Source], upgrade: Collection[str] | None = None, say: Say = silent
) -> tuple[LockFile, list[str]]:
    """Returns the lock of a project, and what changed and what was withdrawn, a line each.

    What is locked stays as long as it is in the required range; `upgrade` names the packages that may change, all of
    them if it is empty. Raises what `resolve` raises, KernelFormatError; KernelLockError if what stays was withdrawn.
    """
    needed, before = required.read(folder), current(folder)
    kept: dict[str, LockedKernel] = {}
    if before is not None and upgrade != ():
        kept = {kernel.name: kernel for kernel in before.kernels if upgrade is None or kernel.name not in upgrade}
    wanted_ranges = [(name, _kept(kept.get(name), numbers)) for name, numbers in needed.kernels]
    versions = {name: kernel.version for name, kernel in kept.items()}
    try:
        choices = dependencies.resolve(wanted_ranges, among, all_platforms=True, kept=versions)
    except WithdrawnError as error:
        name = error.what.partition(" ")[0]
        if name not in kept:
            raise
        raise KernelLockError(_path(folder), [f"{error.what}: {error.reason}"], another(name)) from error
    say([choice.verified for choice in choices])
    lock = LockFile(
        {name: _shown(numbers) for name, numbers in needed.kernels},
        tuple(_locked(choice, needed, choices) for choice in choices),
    )
    warnings = [
        f"warning: {verified.release.name} {verified.release.version} was withdrawn: {verified.withdrawn}"
        for verified in (choice.verified for choice in choices)
        if verified.withdrawn
    ]
    return lock, _changes(before, lock) + warnings


def another(*names: str) -> str:
    """Returns the advice for locked packages that were withdrawn from use."""
    options = " ".join(f"--upgrade-kernel {name}" for name in names)
    return f"Lock another release with: opforge lock {options}"


def _path(folder: str) -> str:
    return os.path.join(folder, lock_file.FILE)


def _kept(kernel: LockedKernel | None, numbers: Range) -> Range:
    if kernel is None or kernel.version not in numbers:
        return numbers
    return version.exactly(kernel.version)


def _shown(numbers: Range) -> str:
    return numbers.text or "*"


def _locked(choice: Choice, needed: Required, choices: Sequence[Choice]) -> LockedKernel:
    verified = choice.verified
    name = verified.release.name
    reasons = [f"project {numbers}" for other, numbers in needed.kernels if other == name]
    others = [other.verified.release for other in choices]
    reasons += [f"{other.name} {other.depends[name] or 'any'}" for other in others if name in other.depends]
    return LockedKernel(
        name,
        verified.release.version,
        verified.signed.digest,
        without_credentials(verified.source.remote.url),
        tuple(sorted(reasons)),
    )


def limits(needed: Required, lock: LockFile) -> dict[str, frozenset[str] | None]:
    """Returns for each locked kernel what torch must be built for, by who needs it; None if that does not matter.

    The project's own table says it, so that a lock file serves machines with any device.
    """
    found: dict[str, frozenset[str] | None] = {}

    def limit(name: str) -> frozenset[str] | None:
        if name not in found:
            found[name] = frozenset()  # a circle of packages adds nothing
            parts = [direct[name]] if name in direct else []
            parts += [limit(other) for other in needed_by.get(name, ())]
            found[name] = None if None in parts else frozenset().union(*filter(None, parts))
        return found[name]

    direct = {
        name: frozenset(needed.devices[name]) if name in needed.devices else None for name, _numbers in needed.kernels
    }
    locked = {kernel.name for kernel in lock.kernels}
    needed_by = {
        kernel.name: [other for other in (reason.split(" ")[0] for reason in kernel.requires) if other in locked]
        for kernel in lock.kernels
    }
    return {kernel.name: limit(kernel.name) for kernel in lock.kernels}


def _changes(before: LockFile | None, after: LockFile) -> list[str]:
    old = {kernel.name: kernel for kernel in before.kernels} if before else {}
    new = {kernel.name: kernel for kernel in after.kernels}
    lines = [f"removed {name} {old[name].version}" for name in sorted(old.keys() - new.keys())]
    lines += [f"added {name} {new[name].version}" for name in sorted(new.keys() - old.keys())]
    for name in sorted(new.keys() & old.keys()):
        if old[name].version != new[name].version:
            lines.append(f"changed {name} {old[name].version} to {new[name].version}")
        elif old[name].digest != new[name].digest:
            lines.append(f"changed {name} {new[name].version}: it has another digest")
    return lines


def problems(folder: str) -> list[str]:
    """Returns how a project's lock file differs from what the project requires. Asks no remote.

    Raises KernelFormatError if there is no lock file, or it cannot be read.
    """
    needed, lock = required.read(folder), current(folder)
    if lock is None:
        raise lock_file.missing(folder)
    locked = {kernel.name: kernel for kernel in lock.kernels}
    lines = []
    for name, numbers in needed.kernels:
        if name not in locked:
            lines.append(f"{name} {numbers} is required, and not in the lock file")
        elif locked[name].version not in numbers:
            lines.append(f"{name} {numbers} is required, and {locked[name].version} is locked")
        elif lock.required.get(name) != _shown(numbers) or f"project {numbers}" not in locked[name].requires:
            lines.append(f"{name} {numbers} is required, and the lock file was made for something else")
    own = {name for name, _numbers in needed.kernels}
    lines += [f"{name} is in the lock file, and not required any more" for name in sorted(set(lock.required) - own)]
    return lines


def check(folder: str) -> LockFile:
    """Returns a project's lock if it is what the project requires. Raises KernelLockError, KernelFormatError."""
    if lines := problems(folder):
        raise KernelLockError(_path(folder), lines, "Bring it up to date with: opforge lock")
    lock = current(folder)
    assert lock is not None
    return lock


def sources_of(kernel: LockedKernel, urls: Sequence[str], offline: bool = False) -> list[Source]:
    """Returns the remotes to get a locked release from: these, or the configured ones, or where it was locked from.

    The lock file's own remote has no options: `lock_file` refuses a query.
    """
    among = selection.sources(urls, offline)
    return among or ([*selection.sources([kernel.source])] if kernel.source.startswith("file://") else [])

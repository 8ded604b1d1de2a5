"""Installs the releases of a project's lock file: one request for each blob, one for each new release, no index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opforge.errors import (
    KernelIncompatibleError,
    KernelLockError,
    KernelNotFoundError,
    OpforgeError,
    SignatureError,
    WithdrawnError,
)
from opforge.packages.choose import environment
from opforge.packages.installed.layout import Root
from opforge.packages.installed.releases import Installed
from opforge.packages.registry import install_release, kept_releases, selection
from opforge.packages.registry.selection import Choice, Source
from opforge.remote import statements
from opforge.remote.stores.urls import without_credentials
from opforge.remote.transfer import Report, ignore

from . import install_hub_locked, locking, required
from .lock_file import LockedKernel
from .locking import Say, silent

Skip = Callable[[LockedKernel, Sequence[str], str], None]
"""Gets a kernel that is not installed here, the devices that it is required for, and what torch is built for."""


def install_locked(
    root: Root,
    folder: str,
    frozen: bool,
    all_platforms: bool,
    urls: Sequence[str],
    report: Report = ignore,
    say: Say = silent,
    offline: bool = False,
    skip: Skip = lambda kernel, devices, backend: None,
) -> list[tuple[Installed, bool]]:
    """Installs a project's kernels; returns each release, and whether it was new. A lock file of the hub serves, too.

    `frozen` fails if the lock file is not what the project requires; otherwise it is written anew first. `offline`
    forbids the network. What the project does not require for this machine's torch goes to `skip`, unless
    `all_platforms`. Raises KernelLockError that lists everything that is missing, and what installing raises.
    """
    if install_hub_locked.is_used(folder):
        return install_hub_locked.install_hub_locked(root, folder, all_platforms)
    if not frozen and (locking.current(folder) is None or locking.problems(folder)):
        from .lock_file import write

        lock, _changes = locking.make(folder, selection.sources(urls, offline))
        write(folder, lock)
    lock = locking.check(folder)
    installed, missing, withdrawn = [], [], list[str]()
    limits, backend = locking.limits(required.read(folder), lock), environment.here().backend
    for kernel in lock.kernels:
        devices = limits[kernel.name]
        if devices is not None and backend not in devices and not all_platforms:
            skip(kernel, sorted(devices), backend)
            continue
        among = locking.sources_of(kernel, urls, offline)
        try:
            choice = _choice(kernel, among, all_platforms)
            say([choice.verified])
            installed.append(install_release.install_release(root, choice, report))
        except OpforgeError as error:
            withdrawn += [kernel.name] if isinstance(error, WithdrawnError) else []
            missing.append(f"{kernel.name} {kernel.version}: {error}".replace("\n", "\n    "))
        install_release.note_withdrawals(among, root)
    if missing:
        elsewhere = "Get everything with: opforge install --frozen --remote URL"
        advice = locking.another(*withdrawn) if withdrawn else elsewhere
        raise KernelLockError(f"{folder}/opforge.lock", missing, advice)
    return installed


def _choice(kernel: LockedKernel, among: Sequence[Source], all_platforms: bool) -> Choice:
    """Returns the choice of a locked release. Its digest is the lock's, so the index need not be read."""
    for source in among:
        where = f"{source.remote}/{statements.name_of(kernel.digest)}"
        # Whether another remote has it only that remote can say.
        is_known = len(among) == 1 or without_credentials(source.remote.url) == kernel.source
        signed = kept_releases.signed(source.store, kernel.digest, where, is_known)
        if signed is None:
            continue
        # The digest in the lock vouches for the bytes; the signature is what this machine trusts.
        try:
            verified = selection.accepted_release(source, source.recent_lists, signed, kernel.name, kernel.version)
        except SignatureError:  # what is kept lacks what was published since: a name in a list, a key's signature
            signed = kept_releases.signed(source.store, kernel.digest, where, from_kept=False) or signed
            verified = selection.accepted_release(source, source.lists, signed, kernel.name, kernel.version)
        chosen, problems = selection.variants_for(verified.release.variants, environment.here, all_platforms)
        if not chosen:
            raise KernelIncompatibleError(f"{kernel.name} {kernel.version}", problems)
        return Choice(verified, chosen)
    searched = [str(source.remote) for source in among] or ["no remote"]
    raise KernelNotFoundError(f"{kernel.name} {kernel.version}", searched, "Name the remote that has it: --remote URL.")

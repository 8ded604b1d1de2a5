"""Installs releases from remotes: the signed release, and the blobs of the variants that were chosen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from opforge.cache.filesystem import lock
from opforge.errors import KernelInstallError, OpforgeError
from opforge.foundation import settings
from opforge.foundation.files import make_folder, write_file
from opforge.packages.installed import add, releases, withdrawals
from opforge.packages.installed.folders import make_readable, make_root
from opforge.packages.installed.layout import Root
from opforge.packages.installed.releases import Installed, InstalledVariant
from opforge.remote import blobs
from opforge.remote.blobs import BlobError
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.transfer import Report, Reported, ignore
from opforge.remote.withdrawal_lists import CHOOSING

from . import verify_installed
from .release import Variant
from .selection import Choice, Source, Verified

ADVICE = "The remote, or what lies between, has changed it: report it to the remote's owner"


def install_release(root: Root, choice: Choice, report: Report = ignore) -> tuple[Installed, bool]:
    """Installs the variants of a choice; returns the release, and whether anything was new.

    Processes that install the same wait for one download. Raises KernelInstallError, StoreError, OSError.
    """
    verified = choice.verified
    name, number = verified.release.name, verified.release.version
    before = _complete(root, choice)
    if before is not None:
        before = _signed_anew(before, choice) if before.signer != verified.signer else before
        return before._replace(withdrawn=verified.withdrawn or before.withdrawn), False
    path = root.join("locks", f"{name.replace('/', '.')}-{number}.lock")
    try:
        make_root(root)
        make_folder(os.path.dirname(path))
        with lock.acquire(path, f"{name} {number}", settings.lock_timeout(), lambda: bool(_complete(root, choice))):
            before = _complete(root, choice)
            if before is not None:
                return before, False
            return _install(root, choice, report), True
    except OSError as error:
        if isinstance(error, OpforgeError):
            raise
        raise add.unwritable(root, f"{name} {number}", error) from error


def note_withdrawals(among: Iterable[Source], *chosen: Root) -> None:
    """Notes what the lists that were read say of installed releases, also in the chosen folders. Raises OSError."""
    for source in among:
        for listed in (*source.lists.read, *source.recent_lists.read):
            withdrawals.note(listed, *chosen)


def _signed_anew(installed: Installed, choice: Choice) -> Installed:
    """Returns an installed release after noting the key that signs it now: what that withdraws is noted in it.

    What the key before it has withdrawn does not count any more: no list of the new key would ever take it back.
    """
    verified = choice.verified
    renewed = installed._replace(signer=verified.signer, source=str(verified.source.remote), **_withdrawal(verified))
    with suppress(OSError):  # as in a read-only environment
        _keep_signed(renewed.root, verified)
        add.add_release(renewed)
    return renewed


def _withdrawal(verified: Verified) -> dict[str, Any]:
    """Returns the fields of an installed release for what its signer has withdrawn."""
    return {"withdrawn": verified.withdrawn, "stops": CHOOSING if verified.withdrawn else ""}


def _keep_signed(root: Root, verified: Verified) -> None:
    path = root.join("releases", verified.signed.digest)
    make_readable(os.path.dirname(path))
    write_file(path, verified.signed.file(), 0o644)


def _complete(root: Root, choice: Choice) -> Installed | None:
    """Returns the installed release if it has all variants of a choice, and none was changed or lost since."""
    verified = choice.verified
    installed = releases.read(root, verified.release.name, verified.release.version)
    if installed is None or installed.digest != verified.signed.digest:
        return None
    present = {part.digest for part in installed.variants if verify_installed.is_intact(part)}
    return installed if {part.digest for part in choice.variants} <= present else None


def _install(root: Root, choice: Choice, report: Report) -> Installed:
    verified, what = choice.verified, f"{choice.verified.release.name} {choice.verified.release.version}"
    with add.staging(root) as scratch:  # from now on no removal takes what is there
        earlier = releases.read(root, verified.release.name, verified.release.version)
        if earlier is not None and earlier.digest != verified.signed.digest:
            earlier = None  # it came from a folder or another registry: this release takes its place
        before = [part for part in earlier.variants if verify_installed.is_intact(part)] if earlier else []
        variants: dict[str, InstalledVariant] = {part.digest: part for part in before}
        for number, part in enumerate(choice.variants):
            if part.digest not in variants:
                folder = os.path.join(scratch, str(number))
                _download(verified.source.store, part, folder, what, scratch, report)
                variants[part.digest] = add.add_tree(root, folder, part.label, part.digest)
        _keep_signed(root, verified)
        installed = Installed(
            name=verified.release.name,
            version=verified.release.version,
            root=root,
            digest=verified.signed.digest,
            signer=verified.signer,
            source=str(verified.source.remote),
            **_withdrawal(verified),
            variants=tuple(variants[digest] for digest in sorted(variants)),
        )
        add.add_release(installed)
        return installed


def _download(store: ObjectStore, part: Variant, folder: str, what: str, scratch: str, report: Report) -> None:
    with tempfile.TemporaryFile(dir=scratch) as file:
        reported: Any = Reported(file, report, part.label, part.blob.size)
        store.download(part.blob.name, reported, part.blob.size)
        try:
            blobs.unpack(file, part.tree, folder)
        except BlobError as error:
            raise KernelInstallError(what, str(error), ADVICE) from error

"""Verifies installed packages: stamps, and if requested every digest and the signature against today's trust."""

from __future__ import annotations

import os

from opforge.errors import OpforgeError
from opforge.foundation.files import changed_path, read_file
from opforge.packages.installed import receipt
from opforge.packages.installed.releases import Installed, InstalledVariant
from opforge.remote.signatures import trust_file
from opforge.remote.statements import Signed

from . import release as releases
from .release import Release


def is_intact(part: InstalledVariant) -> bool:
    """Returns whether an installed variant is what was installed: by its stamps, otherwise by its digests."""
    return not _problem(part, deep=False)


def _problem(part: InstalledVariant, deep: bool) -> str:
    """Returns how a variant differs from what was installed; of one whose stamps are the same, only if `deep`."""
    if not deep and not changed_path(part.folder, part.receipt):
        return ""
    return receipt.digest_problem(part.folder, part.files, part.metadata_sha256, part.bytecode)


def problems(installed: Installed, deep: bool) -> list[str]:
    """Returns the problems of an installed release; empty if there are none."""
    lines = []
    for part in installed.variants:
        if problem := _problem(part, deep):
            lines.append(f"{part.candidate.label}: {problem}")
        added = receipt.added_bytecode(part.folder, part.files, part.bytecode) if deep else []
        lines += [f"{part.candidate.label}: bytecode that no installation has made: {path}" for path in added]
    return lines + (_signature_problems(installed) if deep and installed.digest else [])


def signed_release(installed: Installed) -> tuple[Signed, Release]:
    """Returns the signed statement of an installed release, and what it states. Raises OSError, KernelFormatError."""
    path = installed.root.join("releases", installed.digest)
    signed = releases.split(read_file(path, releases.MAX_BYTES), installed.digest, path)
    return signed, releases.parse(signed.data, path, installed.name, installed.version)


def stated_source(installed: Installed) -> str:
    """Returns the source that the signed release of an installed one states; empty if it has none, or is damaged."""
    try:
        return signed_release(installed)[1].source
    except (OSError, OpforgeError, ValueError):
        return ""


def _signature_problems(installed: Installed) -> list[str]:
    path = installed.root.join("releases", installed.digest)
    try:
        signed, stated = signed_release(installed)
        if installed.signer:
            trust_file.verify(path, signed.data, signed.signatures, f"package:{installed.name}", trust_file.read())
    except OSError as error:
        return [f"its release {os.path.basename(path)} cannot be read ({error.strerror})"]
    except (OpforgeError, ValueError) as error:
        return [str(error)]
    digests = {part.digest for part in stated.variants}
    return [
        f"{part.candidate.label} is not of its release" for part in installed.variants if part.digest not in digests
    ]

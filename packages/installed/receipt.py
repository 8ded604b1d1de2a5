"""A receipt: the stamps of an installed variant's files and folders, as they were when all digests were right."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

Stamps = dict[str, list[int]]


def stamps(folder: str) -> Stamps:
    """Returns the stamp of each file and folder of a variant, by its path below the folder. Bytecode has none.

    Raises OSError, ValueError for what is neither a file nor a folder.
    """
    from opforge.packages.form import digests  # not on the path of a load

    paths = digests.files_of(folder)
    paths += [name for name in digests.LEFT_OUT if os.path.exists(os.path.join(folder, name))]
    folders = {os.path.dirname(path) for path in paths} | {""}
    return {path: stamp_of(os.path.join(folder, path)) for path in sorted({*paths, *folders})}


def stamp_of(path: str) -> list[int]:
    """Returns what changes with a file: its size, times and inode. Raises OSError."""
    status = os.lstat(path)
    # A folder's size and times change with the names in it: a file that was added is seen by that.
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def differs(folder: str, expected: Mapping[str, Any]) -> str:
    """Returns the path of the first file or folder whose stamp differs from the receipt's; empty if none does."""
    lstat = os.lstat
    for path, stamp in expected.items():
        try:
            status = lstat(f"{folder}/{path}" if path else folder)
        except OSError:
            return path or folder
        if [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino] != stamp:
            return path or folder
    return ""


def digest_problem(folder: str, files: Mapping[str, str], metadata_sha256: str) -> str:
    """Returns how an installed variant differs from what was installed, after hashing every file; or an empty text."""
    import base64
    import binascii

    from opforge.packages.form import digests

    try:
        problems = digests.problems(folder, files)
        text = digests.digest_of(os.path.join(folder, "metadata.json"))
    except (OSError, ValueError) as error:
        return f"it cannot be read ({getattr(error, 'strerror', None) or error})"
    if not problems and binascii.hexlify(base64.b64decode(text)).decode() != metadata_sha256:
        problems = ["File hash mismatch for metadata.json"]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more

"""A receipt: the stamps of a variant's files and folders, as they were when all digests were right."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping

from opforge.cache.filesystem.files import stamp_of
from opforge.packages.form import digests

Stamps = dict[str, list[int]]


def stamps(folder: str) -> Stamps:
    """Returns the stamp of each file and folder of a variant, by its path below the folder. Bytecode has none.

    Raises OSError, ValueError for what is neither a file nor a folder.
    """
    paths = digests.files_of(folder)
    paths += [name for name in digests.LEFT_OUT if os.path.exists(os.path.join(folder, name))]
    folders = {os.path.dirname(path) for path in paths} | {""}
    return {path: stamp_of(os.path.join(folder, path)) for path in sorted({*paths, *folders})}


def digest_problem(folder: str, files: Mapping[str, str], metadata_sha256: str) -> str:
    """Returns how an installed variant differs from what was installed, after hashing every file; or an empty text."""
    try:
        problems = digests.problems(folder, files)
        text = digests.digest_of(os.path.join(folder, "metadata.json"))
    except (OSError, ValueError) as error:
        return f"it cannot be read ({getattr(error, 'strerror', None) or error})"
    if not problems and binascii.hexlify(base64.b64decode(text)).decode() != metadata_sha256:
        problems = ["File hash mismatch for metadata.json"]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more

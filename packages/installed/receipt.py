"""A receipt: the stamps of a variant's files and folders, as they were when all digests were right.

Bytecode that an installation has made has stamps, too: Python runs it without a look at its source. What other Pythons
add has none.
"""

from __future__ import annotations

import base64
import binascii
import os
import sys
from collections.abc import Collection, Mapping
from importlib.util import cache_from_source

from opforge.foundation.files import stamp_of
from opforge.packages.form import digests

Stamps = dict[str, list[int]]


def bytecode_of(folder: str, files: Collection[str]) -> dict[str, str]:
    """Returns the digest of the bytecode of this Python below a variant's folder, by its path. Raises OSError."""
    paths = [] if sys.pycache_prefix else [cache_from_source(path) for path in files if path.endswith(".py")]
    present = [path for path in paths if os.path.isfile(os.path.join(folder, path))]
    return {path: digests.digest_of(os.path.join(folder, path)) for path in present}


def changed_bytecode(folder: str, bytecode: Mapping[str, str]) -> list[str]:
    """Returns the paths of bytecode that is not what was made with the installation."""
    changed = _links(folder, bytecode)
    for path, digest in bytecode.items():
        try:
            if digests.digest_of(os.path.join(folder, path)) != digest:
                changed.append(path)
        except (OSError, ValueError):
            changed.append(path)
    return changed


def added_bytecode(folder: str, files: Collection[str], bytecode: Collection[str]) -> list[str]:
    """Returns the paths of bytecode of this Python that the installation has not made. It is not used."""
    added = []
    for path in files if bytecode else ():
        parent, name = os.path.split(path)
        place = os.path.join(parent, "__pycache__")
        opening = f"{name.removesuffix('.py')}.{sys.implementation.cache_tag}."
        if name.endswith(".py") and os.path.isdir(os.path.join(folder, place)):
            names = sorted(os.listdir(os.path.join(folder, place)))
            added += [os.path.join(place, name) for name in names if name.startswith(opening)]
    return [path for path in added if path not in bytecode]


def stamps(folder: str, bytecode: Collection[str] = ()) -> Stamps:
    """Returns the stamp of each file and folder of a variant, and of this bytecode, by its path below the folder.

    Raises OSError, ValueError for what is neither a file nor a folder.
    """
    paths = digests.files_of(folder)
    paths += [name for name in digests.LEFT_OUT if os.path.exists(os.path.join(folder, name))]
    folders = {os.path.dirname(path) for path in paths} | {""}
    return {path: stamp_of(os.path.join(folder, path)) for path in sorted({*paths, *folders, *bytecode})}


def digest_problem(
    folder: str, files: Mapping[str, str], metadata_sha256: str, bytecode: Mapping[str, str] | None = None
) -> str:
    """Returns how an installed variant differs from what was installed, after hashing every file; or an empty text."""
    try:
        problems = digests.problems(folder, files)
        problems += [f"Unknown file: {path}" for path in digests.modules_without_source(folder)]
        text = digests.digest_of(os.path.join(folder, "metadata.json"))
    except (OSError, ValueError) as error:
        return f"it cannot be read ({getattr(error, 'strerror', None) or error})"
    if not problems and binascii.hexlify(base64.b64decode(text)).decode() != metadata_sha256:
        problems = ["File hash mismatch for metadata.json"]
    problems += [f"File hash mismatch for {path}" for path in changed_bytecode(folder, bytecode or {})]
    problems += [f"{path} is a link" for path in _links(folder, (*files, "metadata.json"))]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more


def _links(folder: str, paths: Collection[str]) -> list[str]:
    """Returns the paths of which a part is a link: the stamp of a link does not change with what it leads to."""
    top = os.path.realpath(folder)
    return [path for path in paths if os.path.realpath(os.path.join(top, path)) != os.path.join(top, path)]

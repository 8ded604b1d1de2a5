"""The digests of a variant's files: standard base64, by path, as the hub's metadata has them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Mapping

from opforge.cache.trees import MAX_LEVELS, digest_of_hashes
from opforge.cache.trees import path_problem as path_problem

CHUNK = 64 << 10
"""Bytes that are read at a time: small enough that the same memory is used again."""
SIZES = {"sha256": 32, "sha512": 64}
LEFT_OUT = ("metadata.json", "metadata.json.sigstore")
"""Files of a variant without a digest: the one that holds the digests, and its signature."""


def text_problem(value: object, algorithm: str) -> str:
    """Returns why a value is no digest in base64, or an empty text."""
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    # The same bytes have one text: in base64 the last digit may have bits that belong to no byte.
    is_digest = len(data) == SIZES[algorithm] and base64.b64encode(data).decode() == value
    return "" if is_digest else f"{ascii(value)[:100]}: expected {algorithm} in base64"


def is_bytecode(path: str) -> bool:
    """Returns whether a file is bytecode that Python wrote: no digest covers it."""
    return path.endswith(".pyc") or "__pycache__" in path.split("/")


def files_of(folder: str) -> list[str]:
    """Returns the paths of a variant's files, sorted; without bytecode and the metadata. Links are followed.

    Raises OSError, and ValueError for what is neither a file nor a folder.
    """
    return sorted(path for path in _paths(folder) if path not in LEFT_OUT and not is_bytecode(path))


def modules_without_source(folder: str) -> list[str]:
    """Returns the paths of bytecode beside the sources, sorted: Python imports each as a module of its own.

    Raises what `files_of` raises.
    """
    return sorted(path for path in _paths(folder) if path.endswith(".pyc"))


def _paths(folder: str) -> list[str]:
    """Returns the paths of all files below a folder, except for those in `__pycache__`. Links are followed."""
    paths: list[str] = []
    _collect(folder, "", paths)
    return paths


def _collect(folder: str, prefix: str, paths: list[str]) -> None:
    if prefix.count("/") > MAX_LEVELS + 1:  # a file there is refused by its path
        raise ValueError(f"{folder} has too many levels of folders, or a link to a folder above it")
    with os.scandir(folder) as children:
        for child in children:
            path = prefix + child.name
            mode = child.stat().st_mode
            if child.name == "__pycache__":
                continue
            if stat.S_ISDIR(mode):
                _collect(child.path, f"{path}/", paths)
            elif stat.S_ISREG(mode):
                paths.append(path)
            else:
                raise ValueError(f"{child.path} is neither a file nor a folder")


def digest_of(path: str, algorithm: str = "sha256") -> str:
    """Returns the digest of a file in base64. Raises OSError, ValueError if it is not a regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{path} is not a regular file")
        digest = hashlib.new(algorithm)
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return base64.b64encode(digest.digest()).decode()


def of_bytes(data: bytes) -> str:
    """Returns the SHA-256 of some bytes in base64."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def of_folder(folder: str, algorithm: str = "sha256") -> dict[str, str]:
    """Returns the digest of each file of a variant. Raises OSError, ValueError."""
    return {path: digest_of(os.path.join(folder, path), algorithm) for path in files_of(folder)}


def problems(folder: str, expected: Mapping[str, str], algorithm: str = "sha256") -> list[str]:
    """Returns how a variant's files differ from their digests, in the hub's words. Raises OSError."""
    try:
        actual = of_folder(folder, algorithm)
    except ValueError as error:  # too many levels of folders, or no file: no digest covers it
        return [str(error)]
    lines = [f"Missing file: {path}" for path in expected.keys() - actual.keys()]
    lines += [f"Unknown file: {path}" for path in actual.keys() - expected.keys()]
    lines += [
        f"File hash mismatch for {path}: expected: {expected[path]}, got: {actual[path]}"
        for path in expected.keys() & actual.keys()
        if expected[path] != actual[path]
    ]
    return sorted(lines)


def tree_digest(files: Mapping[str, str], metadata: bytes) -> str:
    """Returns the digest that names a variant's tree, by the SHA-256 of each file in base64, and the metadata."""
    hashes = {path: base64.b64decode(value).hex() for path, value in files.items()}
    return digest_of_hashes({**hashes, "metadata.json": hashlib.sha256(metadata).hexdigest()})

"""The digests of a variant's files: standard base64, by path, as the hub's metadata has them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Mapping

CHUNK = 64 << 10
"""Bytes that are read at a time: small enough that the same memory is used again."""
SIZES = {"sha256": 32, "sha512": 64}
LEFT_OUT = ("metadata.json", "metadata.json.sigstore")
"""Files of a variant without a digest: the one that holds the digests, and its signature."""
MAX_PATH, MAX_PART, MAX_LEVELS = 400, 255, 32


def path_problem(path: str) -> str:
    """Returns why a file of a package may not have this path, or an empty text."""
    parts = path.split("/")
    if not path or len(path) > MAX_PATH or not path.isascii() or not path.isprintable() or "\\" in path or ":" in path:
        return f"{ascii(path)[:100]} is no path of a file in a package"
    if any(part in ("", ".", "..") or part.endswith((".", " ")) for part in parts):
        return f"{ascii(path)[:100]} does not stay inside the package"
    longest = max(map(len, parts))
    if longest > MAX_PART:
        return f"{ascii(path)[:100]} has a part of {longest} characters, more than {MAX_PART}"
    if len(parts) > MAX_LEVELS + 1:
        return f"{ascii(path)[:100]} is below {len(parts) - 1} levels of folders, more than {MAX_LEVELS}"
    return ""


def text_problem(value: object, algorithm: str) -> str:
    """Returns why a value is no digest in base64, or an empty text."""
    try:
        is_digest = isinstance(value, str) and len(base64.b64decode(value, validate=True)) == SIZES[algorithm]
    except (binascii.Error, ValueError):
        is_digest = False
    return "" if is_digest else f"{ascii(value)[:100]} is no {algorithm} in base64"


def is_bytecode(path: str) -> bool:
    """Returns whether a file is bytecode that Python wrote: no digest covers it."""
    return path.endswith(".pyc") or "__pycache__" in path.split("/")


def files_of(folder: str) -> list[str]:
    """Returns the paths of a variant's files, sorted; without bytecode and the metadata. Links are followed.

    Raises OSError, and ValueError for what is neither a file nor a folder.
    """
    paths: list[str] = []
    _collect(folder, "", paths)
    return sorted(path for path in paths if path not in LEFT_OUT)


def _collect(folder: str, prefix: str, paths: list[str]) -> None:
    if prefix.count("/") > MAX_LEVELS + 1:  # a file there is refused by its path
        raise ValueError(f"{folder} has too many levels of folders, or a link to a folder above it")
    with os.scandir(folder) as children:
        for child in children:
            path = prefix + child.name
            mode = child.stat().st_mode
            if is_bytecode(path):
                continue
            if stat.S_ISDIR(mode):
                _collect(child.path, f"{path}/", paths)
            elif stat.S_ISREG(mode):
                paths.append(path)
            else:
                raise ValueError(f"{child.path} is neither a file nor a folder")


def digest_of(path: str, algorithm: str = "sha256") -> str:
    """Returns the digest of a file in base64. Raises OSError, ValueError if it is no regular file."""
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
    """Returns the SHA-256, in hex digits, that names a variant: over each path with its digest, and the metadata."""
    digest = hashlib.sha256()
    for path, value in sorted(files.items()):
        digest.update(f"{path}\0{value}\0".encode())
    digest.update(hashlib.sha256(metadata).digest())
    return digest.hexdigest()

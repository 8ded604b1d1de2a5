"""Builds the library that observes, keeps it in the checkout's .cache, and runs something with it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from opforge.foundation.files import make_folder

from opforge.cache.keys import key_of
from opforge.errors import ToolchainError, ToolchainNotFoundError

from .reader import ROOT

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = tuple(os.path.join(HERE, name) for name in ("notes.c", "files.c", "programs.c"))
HEADER = os.path.join(HERE, "notes.h")
FOLDER = os.path.join(HERE, *[os.pardir] * 3, ".cache", "observer")
"""Where the library is kept, for each compiler and each state of its sources."""
FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-builtin", "-fno-delete-null-pointer-checks")
"""The last one keeps the checks of paths that a C library's headers say are never NULL: Rust passes NULL to statx."""
COMPILERS = ("cc", "gcc", "clang")
INSTALL = "Install one (Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc)."
BUILD_SECONDS = 60.0


def library() -> str:
    """Returns the path of the library that observes. Builds it, if it is not kept.

    Raises ToolchainNotFoundError, ToolchainError, OSError.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise ToolchainNotFoundError("C compiler", [f"{name} on PATH" for name in COMPILERS], INSTALL)
    digest = hashlib.sha256()
    for source in (HEADER, *SOURCES):
        with open(source, "rb") as file:
            digest.update(file.read())
    stat = os.stat(compiler)
    key = key_of([digest.hexdigest(), FLAGS, os.path.realpath(compiler), stat.st_size, stat.st_mtime_ns])
    path = os.path.join(os.path.abspath(FOLDER), f"{key}.so")
    if not os.path.isfile(path):
        make_folder(os.path.dirname(path))
        _build(compiler, path)
    return path


def _build(compiler: str, path: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".so", dir=os.path.dirname(path))
    os.close(handle)
    command = [compiler, *FLAGS, *SOURCES, "-o", temporary, "-ldl"]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=BUILD_SECONDS, check=False
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
            raise ToolchainError(
                compiler, f"it does not compile {HERE}: {lines[0]}", "Repair it, or put another first on PATH"
            )
        os.chmod(temporary, 0o500)
        os.rename(temporary, path)  # another process may have built it meanwhile: the outcome is the same
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def variables(library_path: str, notes: str) -> dict[str, str]:
    """Returns the variables with which programs are observed. `notes` is the folder of their notes."""
    loaded = os.environ.get("LD_PRELOAD", "")
    return {
        "LD_PRELOAD": f"{library_path}:{loaded}" if loaded else library_path,
        "OBSERVER_NOTES": notes,
        "OBSERVER_START": ROOT,
    }


@contextmanager
def observing(library_path: str, notes: str) -> Iterator[None]:
    """Observes the programs that this process starts meanwhile."""
    own = variables(library_path, notes)
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

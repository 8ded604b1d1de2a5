"""The libraries of headers that a hub kernel's `depends` names: installed ones, or those at a path from the user."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache

from opforge.builders.declaration.kernel_roots import KernelRoot
from opforge.errors import KernelFormatError

TORCH = "torch"
KNOWN = re.compile(r"cutlass_\d{1,2}_\d{1,2}|sycl_tla", re.ASCII)
"""Headers alone. Nothing of them is fetched: a version that is not the user's own would decide what is built."""
REFUSED = {"metal-cpp": "it is Apple's, and opforge does not build for Metal"}
OPTION = "--depend NAME=PATH"
EXPECTED = f"{OPTION}, with a folder that has include/, or a wheel of it"
MAX_BYTES = 2 << 30
DEPTH = 5
"""Folders below a path in which include/ is looked for."""


def parse(text: str) -> tuple[str, str]:
    """Returns the name and the path of a `--depend`. Raises KernelFormatError."""
    name, separator, path = text.partition("=")
    if not separator or not KNOWN.fullmatch(name):
        raise KernelFormatError(f"--depend {text}", f"{name!r} is not a dependency of a hub kernel", EXPECTED)
    if not os.path.exists(path):
        raise KernelFormatError(f"--depend {text}", f"{path} does not exist", EXPECTED)
    return name, os.path.abspath(path)


def problem(name: str, provided: Mapping[str, str]) -> str:
    """Returns why a kernel that depends on `name` cannot be built, or an empty text."""
    if name == TORCH or name in provided:
        return ""
    if name in REFUSED:
        return f"'depends' names {name!r}: {REFUSED[name]}"
    if KNOWN.fullmatch(name):
        return f"it depends on {name}: name a folder or a wheel with its headers, --depend {name}=PATH"
    return f"'depends' names {name!r}, which opforge does not know"


def roots(name: str, path: str) -> list[KernelRoot]:
    """Returns the roots with the headers of a dependency that lies at a path. Raises KernelFormatError, OSError."""
    folder = _unpacked(path) if os.path.isfile(path) else path
    top = next(_tops(folder), "")
    if not top:
        raise KernelFormatError(f"--depend {name}={path}", "there is no folder include/ in it", EXPECTED)
    found = [KernelRoot(name, top)]
    tools = os.path.join(top, "tools", "util")
    if os.path.isdir(os.path.join(tools, "include")):  # CUTLASS has headers for its users there
        found.append(KernelRoot(f"{name}_util", tools))
    return found


def tvm_ffi() -> tuple[str, str]:
    """Returns the folder of the installed tvm-ffi, and its version; two empty texts if there is none. No import."""
    from importlib import metadata, util

    found = util.find_spec("tvm_ffi")
    places = list(found.submodule_search_locations or ()) if found else []
    if not places or not os.path.isdir(os.path.join(places[0], "include")):
        return "", ""
    try:
        return os.path.realpath(places[0]), metadata.version("apache-tvm-ffi")
    except metadata.PackageNotFoundError:
        return "", ""


def _tops(folder: str) -> Iterator[str]:
    """Yields the folders that have an include/, those with the fewest levels first; a folder `include` itself is one.

    Of a wheel the headers lie some levels below.
    """
    if os.path.basename(folder.rstrip("/")) == "include":
        yield os.path.dirname(folder.rstrip("/"))
    level = [folder]
    for _depth in range(DEPTH):
        below: list[str] = []
        for path in level:
            if os.path.isdir(os.path.join(path, "include")):
                yield path
            below += sorted(child.path for child in os.scandir(path) if child.is_dir(follow_symlinks=False))
        level = below


@cache
def _unpacked(path: str) -> str:
    """Returns a folder with a wheel's content, which is removed when the process ends. Raises KernelFormatError."""
    folder = tempfile.mkdtemp(prefix="opforge-depend-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
                raise KernelFormatError(path, f"it unpacks to more than {MAX_BYTES} bytes", EXPECTED)
            archive.extractall(folder)
    except zipfile.BadZipFile as error:
        raise KernelFormatError(path, f"it is neither a folder nor a wheel ({error})", EXPECTED) from error
    return folder

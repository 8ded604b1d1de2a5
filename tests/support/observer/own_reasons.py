"""Why something need not be an input, as far as that depends on the build: its folders, its toolchain."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

from opforge.builders.run.reads.files_read import LIBRARY_VARIABLES
from opforge.builders.toolchains import triton_worker
from opforge.builders.toolchains.triton import TritonToolchain

from .build import ObservedBuild

MULTILIB = re.compile(r"/(lib|[\w-]+-linux-gnu)(/\d+|/specs|/crt\w\.o)*")
"""What gcc looks for in a folder of LIBRARY_PATH and in those of -B."""
LIBRARIES_OF_CLANG = re.compile(r"/(lib(32|64|x32)?|[\w-]+-linux-gnu)(/.*)?")
CLANGS = ("clang", "zig")
"""How the names of programs begin that hold clang. zig's looks for the folders, and zig links libraries of its own."""
PYTHON = re.compile(
    r"/lib/python[\d.]+(/|$)|/(python\d+\.zip|pybuilddir\.txt|Modules/Setup.*|pyvenv\.cfg|[\w.]+\._pth)$"
)
"""Python's own files, the packages beside them, and where it looks for both."""
MODULE = re.compile(r"/site-packages/(?!triton/|_distutils_hack/).*\.pyc?$")
"""What kernels may import."""


class OwnReasons:
    """The reasons of one build."""

    def __init__(self, build: ObservedBuild) -> None:
        roots, inputs, toolchain = build.job.roots, build.inputs, build.job.toolchain
        self._runs_triton = isinstance(toolchain, TritonToolchain)
        self._beside_driver = os.path.dirname(os.path.dirname(toolchain.argv[0]))
        values = (os.environ.get(name, "") for name in LIBRARY_VARIABLES)
        self._library_folders = [os.path.normpath(folder) for value in values for folder in value.split(":") if folder]
        # The linker's own way to look for a library may be to list the folder.
        self._libraries = {os.path.normpath(folder) for folder in toolchain.library_folders()}
        self._packaged = {os.path.dirname(path) for file in inputs.files if file.tree and (path := file.resolve(roots))}
        search = (folder.resolve(roots) for folder in (*inputs.searched, *inputs.compiler_folders))
        self._search = {
            spelling for path in search if path for spelling in (os.path.normpath(path), os.path.realpath(path))
        }

    def reason(self, kind: str, path: str, program: str) -> str:
        """Returns why something need not be known, as far as that depends on this build; empty if it must be."""
        if self._runs_triton and os.path.basename(program).startswith("python"):
            return self._of_triton(kind, path)
        if kind != "variable" and os.path.basename(program) == "ccache" and _is_below(path, _folders_of_ccache()):
            return "a result that ccache keeps, or its configuration"
        if kind == "listed":
            return "the compiler's own libraries" if path in self._libraries else ""
        if kind == "looked for":
            return self._beside_a_package(path) or self._beside_libraries(path, os.path.basename(program))
        return ""

    def _of_triton(self, kind: str, path: str) -> str:
        """Returns the reason for what the process asks for that runs Triton; empty for kernels and what they import."""
        if kind == "variable":
            return "" if path in triton_worker.OURS else "it is removed before Triton is imported"
        is_pythons = PYTHON.search(path) or (kind == "listed" and path in sys.path) or path.endswith("/openssl.cnf")
        # Kernels may import any other module, which is an input then.
        is_module = MODULE.search(path) is not None
        return "a part of Python or of Triton" if is_pythons and not is_module else ""

    def _beside_a_package(self, path: str) -> str:
        """Returns the reason for a name that a package's header looks for beside itself; empty for others."""
        folder = os.path.dirname(path)
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        is_beside = folder in self._packaged and folder not in self._search and not os.path.exists(path)
        return "a name beside a header of a package" if is_beside else ""

    def _beside_libraries(self, path: str, program: str) -> str:
        """Returns the reason for a folder of another kind of libraries; empty for other paths."""
        is_clangs = program.startswith(CLANGS) and _is_below(path, [self._beside_driver])
        if is_clangs and LIBRARIES_OF_CLANG.fullmatch(path.removeprefix(self._beside_driver)):
            return "where clang looks for its own libraries"
        for folder in self._library_folders:
            is_multilib = _is_below(path, [folder]) and MULTILIB.fullmatch(path.removeprefix(folder))
            if path == os.path.normpath(f"{folder}/../lib") or is_multilib:
                return "a folder of another kind of libraries, beside one of LIBRARY_PATH"
        return ""


def _folders_of_ccache() -> list[str]:
    """Returns where ccache keeps results, temporary files and settings."""
    named = [os.environ.get(name, "") for name in ("CCACHE_DIR", "CCACHE_TEMPDIR", "CCACHE_CONFIGPATH")]
    own = ("~/.ccache", "~/.cache/ccache", "~/.config/ccache", "/etc/ccache.conf")
    return [*filter(None, named), *map(os.path.expanduser, own)]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{folder}/") for folder in folders)

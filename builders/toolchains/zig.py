"""`zig c++`: C++ for Linux systems older than this one and for other processors, against any glibc."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from opforge.builders.declaration.machine import package_folder
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.errors import ToolchainNotFoundError
from opforge.foundation.environment import COMPILER_VARIABLES
from opforge.foundation.lazy import cached_property

from .discovery import probe, programs, search
from .discovery.programs import which
from .host import HostToolchain

GLIBC = "2.28"
"""The oldest glibc that torch's own libraries run on: what is built for it runs on every system that torch runs on."""
ROOT = "zig"
INSTALL = "Install it (pip install 'opforge[portable]', or ziglang alone), or set OPFORGE_SYSROOT to a sysroot."
ADVICE = (
    "If it names its cache, set ZIG_GLOBAL_CACHE_DIR to a folder where it can write; otherwise reinstall it:"
    " pip install --force-reinstall ziglang"
)
LEVELS = {"x86-64": "baseline", "aarch64": "baseline"}
"""zig's name for the lowest level of a processor. It writes the other levels with underscores."""


class ZigToolchain(HostToolchain):
    """zig's clang with zig's libc++ linked in, so that the library needs nothing but glibc."""

    shared_flags: tuple[str, ...] = ("-g",)
    # Not the processor's level: zig builds its libc++ again for each level that the linker gets, which takes a minute.

    def __init__(self, layout: Layout, disk: Disk, machine: str) -> None:
        self._layout, self._disk = layout, disk
        self.zig, self.machine = find(), machine
        self.argv = (self.zig, "c++", "-target", f"{machine}-linux-gnu.{GLIBC}")

    @cached_property
    def _info(self) -> probe.CompilerInfo:
        values = (os.environ.get(variable, "") for variable in COMPILER_VARIABLES)
        name = (*self.argv, *values, *programs.state((self.zig,)))
        return probe.cached_info(name, probe.HOST_SHAPE, self._layout, self._disk, self._probe)

    def _probe(self) -> probe.CompilerInfo:
        version = probe.run((self.zig,), "version", advice=ADVICE).strip()
        program = os.path.realpath(self.zig)
        return {
            "identity": {
                "version": f"zig {version}",
                "target": " ".join(self.argv[2:]),
                "zig sha256": self._disk.digest(program),
            },
            "machine": f"{self.machine}-linux-gnu",
            "version": f"zig {version} clang",
            "search": search.header_folders(probe.run(self.argv, "-x", "c++", "-E", "-v", os.devnull, advice=ADVICE)),
            "first": [],
            "linker": "",
            "tells_archives": False,
            "libraries": [],
            "specs": [],
            "stamps": {program: list(self._disk.stamp(program) or ())},
            "absent": [],
        }

    def root_paths(self) -> Mapping[str, str]:
        return {ROOT: os.path.dirname(os.path.realpath(self.zig))}

    def trusted_roots(self) -> Mapping[str, str]:
        return {ROOT: os.path.basename(os.path.realpath(self.zig))}

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        compile_flags, link_flags = super().flags()
        # Its functions must call each other and its own C++ runtime, not another library's functions of the same name.
        # Without --gc-sections what it does not use of that runtime would be a quarter of a small library.
        return ("-fno-sanitize=undefined", *compile_flags), ("-Wl,-Bsymbolic", "-Wl,--gc-sections", *link_flags)

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"-mcpu={LEVELS.get(level, level.replace('-', '_'))}" for level in arch)


def find() -> str:
    """Returns the path of zig: of PyPI's package, or from PATH. Raises ToolchainNotFoundError."""
    folder = package_folder("ziglang")
    path = (which(os.path.join(folder, "zig")) if folder else None) or which("zig")
    if path is None:
        raise ToolchainNotFoundError("compiler for portable libraries", ["the package ziglang", "zig on PATH"], INSTALL)
    return path

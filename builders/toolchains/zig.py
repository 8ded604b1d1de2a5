"""`zig c++`: C++ for Linux systems older than this one, and for other processors, against a glibc of choice."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence

from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.errors import ToolchainNotFoundError

from . import probe
from .host import MACHINES, HostToolchain, which

GLIBC = "2.28"
"""The oldest glibc that torch's own libraries run on: what is built for it runs wherever torch does."""
ROOT = "zig"
INSTALL = "Install it (pip install 'opforge[portable]', or ziglang alone), or name a sysroot in OPFORGE_SYSROOT."
ADVICE = "Install it anew: pip install --force-reinstall ziglang"
LEVELS = {"x86-64": "baseline", "aarch64": "baseline"}
"""What zig calls the lowest level of a processor; it writes the others with underscores."""


class ZigToolchain(HostToolchain):
    """zig's clang, with the libc++ that it brings linked in: the library asks for glibc and nothing else."""

    shared_flags: tuple[str, ...] = ("-g",)
    # Without the processor's level: zig builds its libc++ once for each that the linker is told, a minute each time.

    def __init__(self, layout: Layout, disk: Disk, machine: str) -> None:
        self._layout, self._disk, self.linker = layout, disk, ""
        self.zig, self.machine = find(), machine
        self.argv = (self.zig, "c++", "-target", f"{machine}-linux-gnu.{GLIBC}")
        self._cached_info: probe.CompilerInfo | None = None

    @property
    def _info(self) -> probe.CompilerInfo:
        if self._cached_info is None:
            name = (*self.argv, *(os.environ.get(one, "") for one in probe.PROBE_ENV))
            self._cached_info = probe.cached_info(name, probe.HOST_SHAPE, self._layout, self._disk, self._probe)
        return self._cached_info

    def _probe(self) -> probe.CompilerInfo:
        version = probe.run((self.zig,), "version", advice=ADVICE).strip()
        program = os.path.realpath(self.zig)
        told = {
            "version": f"zig {version}",
            "target": " ".join(self.argv[2:]),
            "zig sha256": self._disk.digest(program),
        }
        return {
            "identity": told,
            "machine": f"{self.machine}-linux-gnu",
            "version": f"zig {version} clang",
            "search": probe.header_folders(self.argv),
            "linker_flags": [],
            "tells_archives": False,
            "stamps": {program: list(self._disk.stamp(program) or ())},
            "absent": [],
        }

    def root_paths(self) -> Mapping[str, str]:
        return {ROOT: os.path.dirname(os.path.realpath(self.zig))}

    def trusted_roots(self) -> Mapping[str, str]:
        return {ROOT: os.path.basename(os.path.realpath(self.zig))}

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        compile_flags, link_flags = super().flags()
        # Its functions find each other and its own C++ runtime, whatever else is in the process.
        return ("-fno-sanitize=undefined", *compile_flags), ("-Wl,-Bsymbolic", *link_flags)

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"-mcpu={LEVELS.get(one, one.replace('-', '_'))}" for one in arch)


def find() -> str:
    """The path of zig: PyPI's package first, then PATH. Raises ToolchainNotFoundError."""
    spec = importlib.util.find_spec("ziglang")
    packaged = [os.path.join(place, "zig") for place in (spec.submodule_search_locations or () if spec else ())]
    path = next(filter(None, map(which, packaged)), None) or which("zig")
    if path is None:
        raise ToolchainNotFoundError("compiler for portable libraries", ["the package ziglang", "zig on PATH"], INSTALL)
    return path


def machine_of(arch: Sequence[str]) -> str:
    """The processor that code for these levels runs on, as a triple names it."""
    level = arch[0] if arch else ""
    return MACHINES.get(level.rpartition("-v")[0] or level, os.uname().machine)

"""A toolchain for plans. It has no compiler."""

from __future__ import annotations

from opforge.builders.toolchains.toolchain import Toolchain


class FakeToolchain(Toolchain):
    """Identifies itself by one word and takes every target."""

    def identity(self):
        return (("version", "fake"),)

    def programs(self):
        return {}

    def steps(self, plan, roots, library):
        return []

    def target_problem(self, device, arch):
        return None

    def environment(self):
        return ()

    def flags(self):
        return (), ()

    def target_flags(self, device, arch):
        return tuple(f"-march={name}" for name in arch)

    def device_flags(self, arch, flags):
        return tuple(f"-gencode={name}" for name in arch)

    def search_folders(self):
        return ()

"""The host's compiler against another system's headers and libraries, such as a manylinux image's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.errors import SettingError

from .host import HostToolchain

ROOT = "sysroot"


class SysrootToolchain(HostToolchain):
    """g++ or clang++ with `--sysroot`. The folder's path is in no key; the files that are read from it are hashed."""

    def __init__(self, layout: Layout, disk: Disk, folder: str) -> None:
        super().__init__(layout, disk)
        if not os.path.isdir(folder):
            raise SettingError("OPFORGE_SYSROOT", folder, "a folder with a system's usr/include and its libraries")
        self._folder = os.path.realpath(folder)
        self._own = self.argv[1:]
        self.argv = (*self.argv, f"--sysroot={self._folder}")

    def identity(self) -> tuple[tuple[str, str], ...]:
        folders = [folder.replace(self._folder, ROOT) for folder in self._info["search"]]
        arguments = " ".join([*self._own, f"--sysroot={ROOT}"])
        return tuple(sorted({**dict(super().identity()), "arguments": arguments, "search": key_of(folders)}.items()))

    def root_paths(self) -> Mapping[str, str]:
        return {ROOT: self._folder}

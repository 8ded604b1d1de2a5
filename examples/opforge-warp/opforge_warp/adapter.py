"""Warp: its modules, each in a folder that Warp names by a digest of sources, options, compiler and processor."""

from __future__ import annotations

from collections.abc import Callable

from opforge.jits.folder import FolderAdapter


class Warp(FolderAdapter):
    """Points `warp.config.kernel_cache_dir` to a folder with what is kept."""

    name, module, package, versions, holds = "warp", "warp", "warp-lang", ("1.19",), "host"
    carries = r"wp_[\w.-]{1,200}\.(?:o|meta|cubin|ptx)"

    def point(self, folder: str) -> Callable[[], object]:
        """Makes Warp use a folder: before its first kernel and after it."""
        import warp

        before = warp.config.kernel_cache_dir
        warp.config.kernel_cache_dir = folder
        return lambda: setattr(warp.config, "kernel_cache_dir", before)


WARP = Warp()

"""Compilers that a JIT's ninja starts: they are identified as those of ops are, by the digests of their programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from opforge.cache.current_store import current_store
from opforge.cache.keys import bytes_digest, canonical


def identity(host: Iterable[Sequence[str]], device: str) -> str:
    """Returns the digest of the identities of some compilers.

    It is remembered as long as their programs are the same, so a further call starts no process.

    Args:
        host: The commands of C and C++ compilers.
        device: The path of nvcc or hipcc; empty if there is none.

    Raises:
        ToolchainError: A compiler does not work, or is not here.
        ToolchainNotFoundError: The device's compiler has no host compiler.
    """
    from opforge.builders.toolchains.discovery import probe, programs  # not needed for what was fetched
    from opforge.builders.toolchains.hipcc import Hipcc
    from opforge.builders.toolchains.nvcc import Nvcc

    store, found = current_store(), []
    for first, *others in host:
        argv = [programs.which(first) or first, *others]
        found.append(probe.host_info(argv, store.layout, store.disk)["identity"])
    if device:
        kind = Hipcc if os.path.basename(device) == "hipcc" else Nvcc
        toolchain = kind(store.layout, store.disk)
        toolchain.argv = (device,)
        found.append(toolchain.info["identity"])
    return bytes_digest(canonical(found))

"""`opforge.triton_cache()`."""

from __future__ import annotations

from opforge.errors import ToolchainNotFoundError


def triton_cache() -> str:
    """Keep the kernels that Triton compiles by itself in opforge's store from now on; returns their folder.

    In this process and those that it starts. They gain the store's locking, checking and bounds, and may be moved with
    it. Raises ToolchainNotFoundError where there is no Triton, CacheDirError where the store cannot be written.
    """
    try:
        from .kernel_cache import install
    except ImportError as error:
        from opforge.builders.toolchains.triton import ADVICE

        raise ToolchainNotFoundError("Triton", [f"the package triton ({error})"], ADVICE) from error
    return install()

"""`opforge.triton_cache()`."""

from __future__ import annotations

from opforge.errors import ToolchainNotFoundError


def triton_cache() -> str:
    """Makes Triton keep the kernels that it compiles itself in opforge's store, and returns their folder.

    This applies to this process and to those that it starts from now on. The store locks, checks and limits these
    kernels as it does its entries, and they may be moved with it.

    Raises:
        ToolchainNotFoundError: Triton is not installed.
        CacheDirError: the store cannot be written.
    """
    try:
        from .kernel_cache import install
    except ImportError as error:
        from opforge.builders.toolchains.triton import ADVICE

        raise ToolchainNotFoundError("Triton", [f"the package triton ({error})"], ADVICE) from error
    return install()

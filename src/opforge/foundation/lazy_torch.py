"""torch, for modules that must be importable without it: `from opforge.foundation.lazy_torch import torch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class LazyTorch:
        """The module torch, which is imported when its first attribute is read."""

        def __getattr__(self, name: str) -> Any:
            import torch

            self.__dict__ = vars(torch)  # shared with the module: from now on an attribute costs no call
            return getattr(torch, name)

    torch = LazyTorch()

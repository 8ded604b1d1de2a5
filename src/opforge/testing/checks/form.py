"""What the contracts of `opforge check` share: the loaded op and the device are given, and few shapes are tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from opforge.testing.contract import Contract
from opforge.testing.ops import OpContract


class Check(Contract):
    """A contract about an op that is loaded already. Its tests use `loaded` and `device`."""

    loaded: ClassVar[Any]
    """What the builder's `load()` has returned."""
    device: str = "cpu"

    @classmethod
    def of(cls, loaded: Any, device: str) -> type[Check]:
        """Returns this check for an op that was loaded for a device."""
        return type(cls.__name__, (cls,), {"loaded": loaded, "device": device})


class OpCheck(OpContract, Check):
    """The contract of ops for one function of the op. Of its tests only SHORT are run."""

    SHORT: ClassVar[tuple[str, ...]] = (
        "test_torch_accepts_schema_fake_kernel_and_autograd",
        "test_results_agree_with_float64",
        "test_every_element_is_written",
        "test_other_dtypes_are_refused",
    )
    function: ClassVar[str] = ""
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16)
    shapes: Sequence[tuple[int, ...]] = ((0, 8), (3, 15), (2, 1025))
    strided = False

    def make_op(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self.loaded, self.function)
        return function

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the tests that are run."""
        return [name for name in super().names() if name in cls.SHORT]


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    """Returns the same random values on each machine."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

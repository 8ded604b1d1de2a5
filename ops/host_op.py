"""The ops of the host: they compute tensors of the CPU, for functions that take tensors of any device."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from torch import Tensor


def on_host(tensor: Tensor) -> bool:
    """Returns whether the host's kernels run: other devices have those of opforge.ops.triton."""
    return tensor.device.type in ("cpu", "meta")


loaded: dict[str, Any] = {}
"""Builder's name -> the op."""


def host_op(builder: str) -> Any:
    """Returns the functions of a host op by the name of its builder, and builds it first if necessary.

    The accelerator in use does not matter.
    """
    _load(builder)
    return loaded[builder]


def _load(builder: str) -> None:
    from opforge.builders.cpu import BUILDERS

    if builder not in loaded:
        loaded[builder] = resolve_name(BUILDERS[builder])().load()


# torch.compile calls it, and does not trace it. torch.compiler.assume_constant_result would import torch's compiler.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]

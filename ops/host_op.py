"""The ops of the host: they compute tensors of the CPU, for functions that take tensors of any device."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import Any

from torch import Tensor


def on_host(tensor: Tensor) -> bool:
    """Returns whether the host's kernels run: other devices have those of opforge.ops.triton."""
    return tensor.device.type in ("cpu", "meta")


@cache
def host_op(builder: str) -> Any:
    """Returns the functions of a host op by the name of its builder, and builds it first if necessary.

    The accelerator in use does not matter.
    """
    from opforge.builders.cpu import BUILDERS

    return resolve_name(BUILDERS[builder])().load()

"""The ops of the host: they compute tensors of the CPU, for functions that take tensors of any device."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor


def on_host(tensor: Tensor) -> bool:
    """Returns whether the host's kernels run: other devices have those of opforge.ops.triton."""
    return tensor.device.type in ("cpu", "meta")


@cache
def host_op(builder: str) -> Any:
    """Returns the functions of a host op by the name of its builder, and builds it first if necessary."""
    from opforge.builders.cpu import BUILDERS

    module, _, name = BUILDERS[builder].partition(":")
    return getattr(__import__(module, fromlist=[name]), name)().load()

"""The tensors that one call of an optimizer's op updates."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

Group: TypeAlias = dict[str, Any]
"""A parameter group of torch's: the options by name, and "params"."""
State: TypeAlias = dict[str, Any]
"""The states of one parameter by name, and "step"."""


class Launch(NamedTuple):
    """Parameters of one group with the same number of steps, their gradients and their states, in one order."""

    group: Group
    step: Any
    """The number of the coming step, from 1: an int, or a tensor if steps are counted on the device."""
    params: list[Tensor]
    grads: list[Tensor]
    states: list[State]

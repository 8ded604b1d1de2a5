"""The baseline of ops that move memory: torch's copy of as many bytes, on the device of the case."""

from __future__ import annotations

from opforge.foundation.lazy_torch import torch

from .case import Call, Prepared

COPY = "copy"


def copy_of(moved: float, device: str = "cpu") -> Call:
    """Returns a copy that reads and writes `moved` bytes in all, half of them each way."""
    source = torch.zeros(max(1, int(moved) // 2), dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    return lambda: target.copy_(source)


def copied(inputs: Prepared) -> Call:
    """Returns a copy of as many bytes as the case's call moves: the rival COPY of a case."""
    return copy_of(inputs.amount, inputs.place.device)

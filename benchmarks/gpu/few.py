"""Few rows: fewer than fill the GPU. The latency of a kernel is what counts, and bandwidth says nothing."""

from __future__ import annotations

from collections.abc import Iterator

from . import functions, rows
from .timing import Figure, Gpu

SHAPES = ((16, 131_072), (64, 16_384), (256, 4096))
"""Rows and columns."""


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """Yields the figures of the norms and softmax, forward and backward."""
    for function in functions.FUNCTIONS:
        if function.name in ("layer_norm", "rms_norm", "softmax") and only in ("", function.name):
            for shape in SHAPES:
                for way in ("forward", "backward"):
                    yield from rows.measured(gpu, function, way, shape, share=False)

"""What our ops are to reach, and whether they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .timing import Figure

OURS, COPY = "opforge", "copy"
SHARES = {
    ("adamw", "large"): 0.92,
    ("layer_norm", "forward"): 0.9,
    ("layer_norm", "backward"): 0.75,
    ("rms_norm", "forward"): 0.9,
    ("rms_norm", "backward"): 0.75,
    ("softmax", "forward"): 0.9,
    ("quantize", "forward"): 0.9,
    ("dequantize", "forward"): 0.9,
}
"""(function, way) -> the share of the copy's bandwidth; what is not here is only to be no slower than its rivals."""
NOISE = 1.02
"""Medians of one kernel measured twice may differ by this much: a rival is slower only beyond it."""
FIRST_LAUNCH = 10.0
"""How many times as long as a prebuilt kernel's first launch a cold one is to take."""


def is_rival(contender: str) -> bool:
    """Whether it is somebody else's: not ours in any of its forms, nor the copy."""
    return contender != COPY and not contender.startswith(OURS)


def judged(figures: Sequence[Figure], wanted: float | None, repeats: bool | None = None) -> list[Figure]:
    """One task's figures, ours with what it was to reach: its share of the copy, no rival's time exceeded.

    `repeats` is whether two calls gave the same bits, None where nothing was promised.
    """
    fastest = min((one for one in figures if is_rival(one.contender)), key=lambda one: one.microseconds, default=None)
    told = []
    for one in figures:
        if one.contender == OURS:
            goals, met, note = [], True, "no rival took part"
            if wanted is not None:
                goals.append(f"{wanted} of copy")
                met = one.share is not None and one.share >= wanted
            if fastest is not None:
                goals.append("no slower than its rivals")
                met = met and one.microseconds <= fastest.microseconds * NOISE
                note = f"{one.microseconds / fastest.microseconds:.2f} of the time of {fastest.contender}"
            if repeats is not None:
                goals.append("the same bits twice")
                met = met and repeats
                note += "" if repeats else "; TWO CALLS GAVE DIFFERENT BITS"
            one = replace(one, target=", ".join(goals), met=met if goals else None, note=note)
        told.append(one)
    return told
